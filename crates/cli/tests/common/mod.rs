//! A volume in a temporary directory, driven by the built `tatami`. At the end of a test everything
//! that it started is gone, also after a failure.
#![allow(dead_code)] // each test file uses its own part of this

pub mod users;

use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// The output and exit code of a command.
#[derive(Debug)]
pub struct Said {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl From<Output> for Said {
    fn from(output: Output) -> Said {
        Said {
            code: output.status.code(),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

impl Said {
    /// Asserts this exit code and these parts of the standard error.
    #[track_caller]
    pub fn fails(&self, code: i32, parts: &[&str]) -> &Said {
        assert_eq!(self.code, Some(code), "{self:#?}");
        for part in parts {
            assert!(self.err.contains(part), "no {part:?} in {self:#?}");
        }
        self
    }

    /// Asserts success.
    #[track_caller]
    pub fn works(&self) -> &Said {
        assert_eq!(self.code, Some(0), "{self:#?}");
        self
    }

    /// Returns the output as JSON.
    #[track_caller]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.out).unwrap_or_else(|e| panic!("{e}: {self:#?}"))
    }
}

/// Path of `tatami`.
pub const TATAMI: &str = env!("CARGO_BIN_EXE_tatami");

/// Copies a program that a test then starts.
///
/// Another process copies: a program that another test starts meanwhile would inherit the
/// descriptor for writing, and the kernel executes no file that is open for writing.
pub fn copy_program(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg(from).arg(to).status();
    assert!(copied.expect("cp runs").success());
}

/// Returns `tatami` with these arguments and without settings of the caller.
pub fn command<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(TATAMI);
    for (name, _) in std::env::vars_os() {
        if name.as_encoded_bytes().starts_with(b"TATAMI_") {
            command.env_remove(name);
        }
    }
    command.args(args).stdin(Stdio::null()).env("LC_ALL", "C");
    command
}

/// Runs `tatami` with these arguments.
pub fn tatami<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Said {
    command(args).output().expect("tatami can be run").into()
}

/// A directory for a volume, and the volume in it after `up`.
pub struct Volume {
    dir: tempfile::TempDir,
}

impl Volume {
    /// Makes an empty directory.
    pub fn new() -> Volume {
        // A short name: the path of a UNIX socket is limited.
        let dir = tempfile::Builder::new().prefix("ttm").tempdir_in("/tmp");
        Volume { dir: dir.expect("a temporary directory") }
    }

    /// Starts a volume without mounts.
    #[track_caller]
    pub fn up(nodes: u16) -> Volume {
        let volume = Volume::new();
        volume.run("up", ["--no-mount", "--nodes", &nodes.to_string()]).works();
        volume
    }

    /// Starts a volume with mounts at `mnt`.
    #[track_caller]
    pub fn mounted(nodes: u16) -> Volume {
        let volume = Volume::new();
        let mnt = volume.path("mnt");
        let nodes = nodes.to_string();
        volume.run("up", ["--nodes", &nodes, "--mount", mnt.to_str().expect("UTF-8")]).works();
        volume
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub fn path(&self, below: &str) -> PathBuf {
        self.dir.path().join(below)
    }

    /// Returns `tatami VERB --dir DIR ARGS`; the verb may have two words.
    pub fn command<S: AsRef<OsStr>>(
        &self,
        verb: &str,
        args: impl IntoIterator<Item = S>,
    ) -> Command {
        let mut command = command(verb.split(' '));
        command.arg("--dir").arg(self.dir()).args(args);
        command
    }

    /// Runs that command.
    pub fn run<S: AsRef<OsStr>>(&self, verb: &str, args: impl IntoIterator<Item = S>) -> Said {
        self.command(verb, args).output().expect("tatami can be run").into()
    }

    /// Returns the TCP address of a node.
    pub fn address(&self, node: usize) -> String {
        let said = self.run("node list", ["--json"]);
        let listed = said.works().json();
        listed["nodes"][node]["address"].as_str().expect("an address").to_owned()
    }

    /// Returns the process number of a daemon, if it runs.
    pub fn pid(&self, node: usize) -> Option<i64> {
        self.run("node list", ["--json"]).works().json()["nodes"][node]["pid"].as_i64()
    }

    /// Returns all processes with the directory in their command line.
    pub fn processes(&self) -> Vec<i32> {
        let needle = self.dir().as_os_str().as_encoded_bytes();
        let mut found = Vec::new();
        for entry in std::fs::read_dir("/proc").expect("/proc").flatten() {
            let pid = entry.file_name().to_str().and_then(|n| n.parse::<i32>().ok());
            let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let program = line.split(|b| *b == 0).next().unwrap_or_default();
            let ours = matches!(program, b"tatami" | b"tatami-node" | b"tatami-mount");
            if let Some(pid) = pid
                && ours
                && line.windows(needle.len()).any(|w| w == needle)
            {
                found.push(pid);
            }
        }
        found
    }

    /// Returns the mount points below the directory, the last first.
    pub fn mounts(&self) -> Vec<PathBuf> {
        let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let paths = table.lines().filter_map(|l| l.split(' ').nth(4)).map(PathBuf::from);
        let mut found: Vec<PathBuf> = paths.filter(|p| p.starts_with(self.dir())).collect();
        found.reverse();
        found
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for log in ["node0/log", "node1/log"] {
                let text = std::fs::read_to_string(self.path(log)).unwrap_or_default();
                if !text.is_empty() {
                    eprintln!("--- {log}\n{text}");
                }
            }
        }
        if self.path("volume.toml").exists() {
            let _ = self.run("down", ["--force"]);
        }
        for path in self.mounts() {
            let _ = rustix::mount::unmount(&path, rustix::mount::UnmountFlags::DETACH);
        }
        for pid in self.processes() {
            if let Some(pid) = Pid::from_raw(pid) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }
}
