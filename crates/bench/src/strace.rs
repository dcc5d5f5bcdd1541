//! Counts the system calls of a running process with strace(1): a number that a busy host does not
//! disturb.

use crate::error::{BenchError, path_error};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};

/// Calls by name.
pub type SyscallCounts = BTreeMap<String, u64>;

/// strace, attached to all threads of a process.
pub struct SyscallTrace {
    child: Child,
    messages: BufReader<ChildStderr>,
    out: PathBuf,
}

/// Returns whether strace is installed.
pub fn is_installed() -> bool {
    let mut version = Command::new("strace");
    let version = version.arg("-V").stdout(Stdio::null()).stderr(Stdio::null());
    version.status().is_ok_and(|s| s.success())
}

fn strace_error(problem: impl Into<String>) -> BenchError {
    BenchError::Program { program: "strace".into(), problem: problem.into() }
}

impl SyscallTrace {
    /// Attaches to a process, and returns when all threads are traced. The summary will go to a
    /// file in `dir`.
    ///
    /// # Errors
    /// When strace can't be started or may not trace the process.
    pub fn attach(pid: u32, dir: &Path) -> Result<SyscallTrace, BenchError> {
        let out = dir.join(format!("strace.{pid}"));
        let mut child = Command::new("strace")
            .args(["-c", "-f", "-o"])
            .arg(&out)
            .args(["-p", &pid.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|e| strace_error(format!("does not start: {e}")))?;
        let mut messages =
            BufReader::new(child.stderr.take().expect("its messages were asked for"));
        let mut line = String::new();
        // strace prints "Process N attached" when it sees every thread.
        while !line.contains("attached") {
            line.clear();
            let n = messages.read_line(&mut line).map_err(|e| strace_error(e.to_string()))?;
            if n == 0 {
                let _ = child.wait();
                return Err(strace_error(format!("may not trace process {pid}: run as root")));
            }
        }
        Ok(SyscallTrace { child, messages, out })
    }

    /// Detaches and returns the counts.
    ///
    /// # Errors
    /// When strace leaves no summary.
    pub fn finish_trace(mut self) -> Result<SyscallCounts, BenchError> {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::INT)
            .map_err(|e| strace_error(e.to_string()))?;
        // Reads to the end, so that strace never blocks on a full pipe.
        for _ in self.messages.by_ref().lines() {}
        self.child.wait().map_err(|e| strace_error(e.to_string()))?;
        let text = std::fs::read_to_string(&self.out).map_err(path_error("reading", &self.out))?;
        let _ = std::fs::remove_file(&self.out);
        Ok(parse_summary(&text))
    }
}

impl Drop for SyscallTrace {
    fn drop(&mut self) {
        // After `finish` strace has already ended, and neither call does anything.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Parses the table of `strace -c`: share, seconds, µs/call, calls, errors (may be missing), name.
pub fn parse_summary(text: &str) -> SyscallCounts {
    text.lines()
        .filter_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let calls = fields.get(3)?.parse().ok()?;
            let name = *fields.last()?;
            (name != "total" && fields.len() >= 5).then(|| (name.to_owned(), calls))
        })
        .collect()
}

/// Returns the number of all calls together.
pub fn total_calls(calls: &SyscallCounts) -> u64 {
    calls.values().sum()
}

/// Describes the most frequent calls, for people: `3.0 read, 1.0 write`.
pub fn describe_calls(calls: &SyscallCounts, operations: u64) -> String {
    let per_op = |n: u64| crate::stats::ratio_or_zero(n as f64, operations as f64);
    let mut list: Vec<_> = calls.iter().filter(|(_, n)| per_op(**n) >= 0.05).collect();
    list.sort_by(|a, b| b.1.cmp(a.1).then(a.0.cmp(b.0)));
    let list: Vec<_> = list.iter().map(|(name, n)| format!("{:.1} {name}", per_op(**n))).collect();
    if list.is_empty() { "none".into() } else { list.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_of_strace_is_understood() {
        let text = "\
% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 63.02    0.000150           7        20           read
 36.98    0.000088           8        10         2 openat
------ ----------- ----------- --------- --------- ----------------
100.00    0.000238           7        30         2 total
";
        let calls = parse_summary(text);
        assert_eq!(calls.get("read"), Some(&20));
        assert_eq!(calls.get("openat"), Some(&10));
        assert_eq!((calls.len(), total_calls(&calls)), (2, 30));
        assert_eq!(describe_calls(&calls, 10), "2.0 read, 1.0 openat");
        assert_eq!(describe_calls(&SyscallCounts::new(), 10), "none");
    }
}
