//! Processes in the background: their identity, whether they live, how they end.
//!
//! A process is identified by number, start time and boot. The number alone may belong to another
//! process by now. Once found, the process is held by a descriptor (pidfd), so that a signal cannot
//! reach a different process.

use crate::error::{CommandResult, FailureContext};
use crate::replace_file::replace_file;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// What a background process of a volume does. `ps` and `top` show its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DaemonRole {
    /// It serves a node.
    Node,
    /// It serves a mount.
    Mount,
    /// It keeps the volume of a batch job.
    Keeper,
    /// It removes the volume of a batch job from its host.
    Cleaner,
}

impl DaemonRole {
    /// Returns the name of the process: at most 15 bytes, or the kernel cuts it.
    pub fn process_name(self) -> &'static str {
        match self {
            DaemonRole::Node => "tatami-node",
            DaemonRole::Mount => "tatami-mount",
            DaemonRole::Keeper => "tatami-keeper",
            DaemonRole::Cleaner => "tatami-cleaner",
        }
    }

    /// Names this process. Without it the kernel would show the last component of the path that was
    /// started: `exe`, because a daemon is started as `/proc/self/exe`.
    pub fn name_this_process(self) {
        let name = std::ffi::CString::new(self.process_name()).expect("a name without a zero byte");
        if let Err(error) = rustix::thread::set_name(&name) {
            tracing::debug!(%error, "this process keeps its name");
        }
    }
}

/// The content of a process file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessRecord {
    /// Process number.
    pub pid: i32,
    /// When it started, in clock ticks after the boot.
    pub start: u64,
    /// Id of the boot of the machine.
    pub boot: String,
}

/// A process that lives, or lived at the lookup.
#[derive(Debug)]
pub struct RunningProcess {
    /// Its number.
    pub pid: i32,
    fd: OwnedFd,
}

fn boot_id() -> String {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    id.unwrap_or_default().trim().to_owned()
}

/// Returns state and start time of a process from its `stat` line. The process name in brackets may
/// contain any character.
fn parse_stat(stat: &str) -> Option<(char, u64)> {
    let mut fields = stat.get(stat.rfind(')')? + 1..)?.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    // proc_pid_stat(5): the state is field 3, the start time field 22.
    Some((state, fields.nth(18)?.parse().ok()?))
}

fn read_stat(pid: i32) -> Option<(char, u64)> {
    parse_stat(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

impl ProcessRecord {
    /// Returns the record of this process.
    pub fn of_self() -> ProcessRecord {
        ProcessRecord::of_process(rustix::process::getpid().as_raw_nonzero().get())
    }

    /// Returns the record of the process that has this number now.
    pub fn of_process(pid: i32) -> ProcessRecord {
        ProcessRecord { pid, start: read_stat(pid).map_or(0, |(_, start)| start), boot: boot_id() }
    }

    /// Writes the record to a file.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn save(&self, path: &Path) -> CommandResult {
        let text = toml::to_string(self).context(|| format!("cannot write {}", path.display()))?;
        replace_file(path, &text)
    }

    /// Reads a record from a file; `None` if the file is missing or is no such file.
    pub fn load(path: &Path) -> Option<ProcessRecord> {
        toml::from_str(&std::fs::read_to_string(path).ok()?).ok()
    }

    /// Returns whether the file at `path` may name this process: it belongs to the same user, or to
    /// the superuser. Otherwise a user could make the superuser end processes of others.
    pub fn may_be_from(&self, path: &Path) -> bool {
        let owner = |path: &Path| std::fs::symlink_metadata(path).map(|m| m.uid()).ok();
        let file = owner(path);
        // A process that is gone has no owner, and signals cannot harm it.
        let process = owner(Path::new(&format!("/proc/{}", self.pid)));
        file == Some(0) || process.is_none() || file == process
    }

    /// Returns the process, if it lives and is still the same one.
    pub fn find_running(&self) -> Option<RunningProcess> {
        if self.boot != boot_id() {
            return None;
        }
        let fd = pidfd_open(Pid::from_raw(self.pid)?, PidfdFlags::empty()).ok()?;
        // The state is read after the descriptor is open: only then both refer to the same process.
        let (state, start) = read_stat(self.pid)?;
        (start == self.start && !matches!(state, 'Z' | 'X'))
            .then_some(RunningProcess { pid: self.pid, fd })
    }
}

/// Returns the process that wrote the file at `path`, if it lives.
pub fn find_recorded(path: &Path) -> Option<RunningProcess> {
    ProcessRecord::load(path).filter(|record| record.may_be_from(path))?.find_running()
}

impl RunningProcess {
    /// Sends a signal. A process that has already ended is no error.
    pub fn send_signal(&self, signal: Signal) {
        if let Err(error) = pidfd_send_signal(&self.fd, signal) {
            tracing::debug!(pid = self.pid, %error, "no signal sent");
        }
    }

    /// Returns the descriptor, which can be read once the process has ended.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Returns the user that runs the process. `None` after the process has ended.
    pub fn owner(&self) -> Option<u32> {
        std::fs::symlink_metadata(format!("/proc/{}", self.pid)).map(|meta| meta.uid()).ok()
    }

    /// Returns whether the process is stopped, by SIGSTOP or by a debugger.
    pub fn is_stopped(&self) -> bool {
        // Reads `status` instead of `stat`: the kernel locks `stat` while a process starts another
        // program.
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid));
        status.is_ok_and(|status| {
            let state = status.lines().find_map(|line| line.strip_prefix("State:"));
            state.is_some_and(|state| state.trim_start().to_lowercase().starts_with('t'))
        })
    }

    /// Waits for the end of the process. Returns false when it still lives after `limit`.
    pub fn wait_for_end(&self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let timeout = Timespec::try_from(left).ok();
            match poll(&mut [PollFd::new(&self.fd, PollFlags::IN)], timeout.as_ref()) {
                Ok(0) => return false,
                Ok(_) => return true,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => {
                    tracing::debug!(pid = self.pid, %error, "cannot wait");
                    return false;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_name_with_brackets_and_blanks_does_not_confuse() {
        let mut line = String::from("7 (a b) c) S");
        for n in 4..=30 {
            line.push_str(&format!(" {n}"));
        }
        assert_eq!(parse_stat(&line), Some(('S', 22)));
        assert_eq!(parse_stat("7 (x) S 1 2"), None);
        assert_eq!(parse_stat(""), None);
    }

    #[test]
    fn a_process_is_found_until_it_ends_and_a_reused_number_is_not() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().expect("cat runs");
        let pid = child.id() as i32;
        let record =
            ProcessRecord { pid, start: read_stat(pid).expect("it lives").1, boot: boot_id() };
        let running = record.find_running().expect("it lives");
        assert!(
            ProcessRecord { start: record.start + 1, ..record.clone() }.find_running().is_none()
        );
        assert!(
            ProcessRecord { boot: "another".into(), ..record.clone() }.find_running().is_none()
        );
        assert!(!running.wait_for_end(Duration::ZERO));
        running.send_signal(Signal::TERM);
        assert!(running.wait_for_end(Duration::from_secs(60)));
        child.wait().expect("it is our child");
        assert!(record.find_running().is_none());
        running.send_signal(Signal::KILL);
    }

    #[test]
    fn a_record_survives_its_file() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("pid");
        assert!(find_recorded(&path).is_none());
        ProcessRecord::of_self().save(&path).expect("written");
        assert_eq!(find_recorded(&path).map(|r| r.pid), Some(ProcessRecord::of_self().pid));
        std::fs::write(&path, "1234\n").expect("written");
        assert!(find_recorded(&path).is_none());
    }
}
