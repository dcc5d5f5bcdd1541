//! Other users of this machine, each with an own `tatami` process. Only the superuser can run
//! programs as other users.

use super::Said;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tatami_skip::skip_test;

/// The user with a volume, and the user without.
pub const OWNER: u32 = 12_345;
pub const OTHER: u32 = 12_346;

/// A directory that all can enter, with `tatami` in it and the owner's home.
pub struct Users {
    dir: tempfile::TempDir,
}

impl Users {
    /// `None` if this process may not run programs as other users.
    pub fn new() -> Option<Users> {
        if !rustix::process::geteuid().is_root() {
            skip_test("only root can play another user");
            return None;
        }
        let dir = tempfile::Builder::new().prefix("ttm").tempdir_in("/tmp").expect("a directory");
        let users = Users { dir };
        users.set_mode(users.dir.path(), 0o755);
        std::fs::copy(env!("CARGO_BIN_EXE_tatami"), users.path("tatami")).expect("copied");
        std::fs::create_dir(users.path("home")).expect("made");
        users.give("home", OWNER);
        Some(users)
    }

    pub fn path(&self, below: &str) -> PathBuf {
        self.dir.path().join(below)
    }

    pub fn set_mode(&self, path: &Path, mode: u32) {
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).expect("set");
    }

    pub fn give(&self, below: &str, uid: u32) {
        chown(self.path(below), Some(uid), Some(uid)).expect("given away");
    }

    /// Returns the directory of the owner's volume.
    pub fn volume(&self) -> PathBuf {
        self.path("home/volume")
    }

    /// Returns `tatami VERB --dir THE-OWNER'S-VOLUME ARGS` run by user `uid`; the verb may have two
    /// words.
    pub fn command(&self, uid: u32, verb: &str, args: &[&str]) -> Command {
        let mut command = Command::new(self.path("tatami"));
        command.args(verb.split(' ')).arg("--dir").arg(self.volume()).args(args);
        let path = std::env::var_os("PATH").unwrap_or_default();
        command.env_clear().env("PATH", path).env("HOME", self.path("home")).env("LC_ALL", "C");
        command.current_dir("/").stdin(Stdio::null()).uid(uid).gid(uid);
        command
    }

    pub fn run(&self, uid: u32, verb: &str, args: &[&str]) -> Said {
        self.command(uid, verb, args).output().expect("it runs").into()
    }
}

impl Drop for Users {
    fn drop(&mut self) {
        self.run(OWNER, "down", &["--force"]);
    }
}
