//! Other users of this machine, each with an own `tatami` process. Only the superuser can run
//! programs as other users.

use super::Said;
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_change, unmount,
};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use std::fs::File;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
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
    /// A shared lock on `/tmp`: there the users have notes on their processes, which all tests with
    /// these users share. The last one of them removes the notes.
    notes: File,
}

impl Users {
    /// `None` if this process may not run programs as other users.
    pub fn new() -> Option<Users> {
        if !rustix::process::geteuid().is_root() {
            skip_test("only root can play another user");
            return None;
        }
        let dir = tempfile::Builder::new().prefix("ttm").tempdir_in("/tmp").expect("a directory");
        let notes = File::open("/tmp").expect("it is there");
        notes.lock_shared().expect("a directory can be locked");
        let users = Users { dir, notes };
        users.set_mode(users.dir.path(), 0o755);
        super::copy_program(Path::new(super::TATAMI), &users.path("tatami"));
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

/// Gives this thread, and the programs that it starts from now on, a mount namespace in which the
/// users may mount, as on most machines: they may open `/dev/fuse`, and they have names, for which
/// `fusermount3` asks. `scratch` is an empty directory.
pub fn let_users_mount(scratch: &Path) {
    let device = Path::new("/dev/fuse");
    // SAFETY: descriptors stay shared; the mount table and the working directory of this thread
    // become its own, and no other thread relies on them.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS) }.expect("root may do this");
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", private).expect("no mount propagates");
    // Devices on other file systems may be disabled (`nodev`).
    mount("tmpfs", scratch, "tmpfs", MountFlags::empty(), None).expect("a tmpfs");
    let node = scratch.join("fuse");
    let all = Mode::from_raw_mode(0o666);
    // The kernel's number of the device (Documentation/admin-guide/devices.txt).
    mknodat(CWD, &node, FileType::CharacterDevice, all, makedev(10, 229)).expect("a device");
    std::fs::set_permissions(&node, PermissionsExt::from_mode(0o666)).expect("set");
    mount_bind(&node, device).expect("bound");
    let table = std::fs::read_to_string("/etc/passwd").expect("text");
    let named = [OWNER, OTHER].map(|uid| format!("ttm{uid}:x:{uid}:{uid}::/:/bin/sh\n"));
    std::fs::write(scratch.join("passwd"), table + &named.concat()).expect("written");
    mount_bind(scratch.join("passwd"), "/etc/passwd").expect("bound");
    unmount(scratch, UnmountFlags::DETACH).expect("unmounted");
}

impl Drop for Users {
    fn drop(&mut self) {
        for dir in [self.volume(), self.path("roots")] {
            // Only some tests make the second one.
            let Ok(meta) = std::fs::metadata(&dir) else { continue };
            let mut down = Command::new(self.path("tatami"));
            down.args(["down", "--force", "--dir"]).arg(dir).uid(meta.uid()).gid(meta.uid());
            // After a success it is down already.
            let _ = down.env("HOME", self.path("home")).output();
        }
        if self.notes.unlock().is_ok() && self.notes.try_lock().is_ok() {
            for uid in [OWNER, OTHER] {
                let _ = std::fs::remove_dir_all(format!("/tmp/tatami-{uid}"));
            }
        }
    }
}
