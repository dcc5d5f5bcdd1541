//! Processes in the background: their identity, whether they live, how they end.
//!
//! A process is identified by number, start time and boot. The number alone may belong to another
//! process by now. Once found, the process is held by a descriptor (pidfd), so that a signal cannot
//! reach a different process.

use crate::error::{Context, Outcome};
use crate::place::write_whole;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// The content of a process file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Process number.
    pub pid: i32,
    /// When it started, in clock ticks after the boot.
    pub start: u64,
    /// Id of the boot of the machine.
    pub boot: String,
}

/// A process that lives, or lived at the lookup.
#[derive(Debug)]
pub struct Running {
    /// Its number.
    pub pid: i32,
    fd: OwnedFd,
}

fn boot() -> String {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    id.unwrap_or_default().trim().to_owned()
}

/// Returns state and start time of a process from its `stat` line. The process name in brackets may
/// contain any character.
fn state_and_start(stat: &str) -> Option<(char, u64)> {
    let mut fields = stat.get(stat.rfind(')')? + 1..)?.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    // proc_pid_stat(5): the state is field 3, the start time field 22.
    Some((state, fields.nth(18)?.parse().ok()?))
}

fn look(pid: i32) -> Option<(char, u64)> {
    state_and_start(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

impl Record {
    /// Returns the record of this process.
    pub fn of_self() -> Record {
        let pid = rustix::process::getpid().as_raw_nonzero().get();
        Record { pid, start: look(pid).map_or(0, |(_, start)| start), boot: boot() }
    }

    /// Writes the record to a file.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn save(&self, path: &Path) -> Outcome {
        let text = toml::to_string(self).context(|| format!("cannot write {}", path.display()))?;
        write_whole(path, &text)
    }

    /// Reads a record from a file; `None` if the file is missing or is no such file.
    pub fn load(path: &Path) -> Option<Record> {
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
    pub fn running(&self) -> Option<Running> {
        if self.boot != boot() {
            return None;
        }
        let fd = pidfd_open(Pid::from_raw(self.pid)?, PidfdFlags::empty()).ok()?;
        // The state is read after the descriptor is open: only then both refer to the same process.
        let (state, start) = look(self.pid)?;
        (start == self.start && !matches!(state, 'Z' | 'X'))
            .then_some(Running { pid: self.pid, fd })
    }
}

/// Returns the process that wrote the file at `path`, if it lives.
pub fn recorded(path: &Path) -> Option<Running> {
    Record::load(path).filter(|record| record.may_be_from(path))?.running()
}

impl Running {
    /// Sends a signal. A process that has already ended is no error.
    pub fn signal(&self, signal: Signal) {
        if let Err(error) = pidfd_send_signal(&self.fd, signal) {
            tracing::debug!(pid = self.pid, %error, "no signal sent");
        }
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
    pub fn wait(&self, limit: Duration) -> bool {
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
        assert_eq!(state_and_start(&line), Some(('S', 22)));
        assert_eq!(state_and_start("7 (x) S 1 2"), None);
        assert_eq!(state_and_start(""), None);
    }

    #[test]
    fn a_process_is_found_until_it_ends_and_a_reused_number_is_not() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().expect("cat runs");
        let pid = child.id() as i32;
        let record = Record { pid, start: look(pid).expect("it lives").1, boot: boot() };
        let running = record.running().expect("it lives");
        assert!(Record { start: record.start + 1, ..record.clone() }.running().is_none());
        assert!(Record { boot: "another".into(), ..record.clone() }.running().is_none());
        assert!(!running.wait(Duration::ZERO));
        running.signal(Signal::TERM);
        assert!(running.wait(Duration::from_secs(60)));
        child.wait().expect("it is our child");
        assert!(record.running().is_none());
        running.signal(Signal::KILL);
    }

    #[test]
    fn a_record_survives_its_file() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("pid");
        assert!(recorded(&path).is_none());
        Record::of_self().save(&path).expect("written");
        assert_eq!(recorded(&path).map(|r| r.pid), Some(Record::of_self().pid));
        std::fs::write(&path, "1234\n").expect("written");
        assert!(recorded(&path).is_none());
    }
}
