//! Processes of a cluster under test, found by the directory in their command lines and ended by
//! number: never by a name that processes of others may share.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Longest wait for the end of a process after `SIGKILL`: a process that syncs a file ends when the
/// disk has answered.
const GONE: Duration = Duration::from_secs(300);

/// Returns the numbers of all processes with a path in `dir` in their command line.
pub fn processes_of(dir: &Path) -> Vec<i32> {
    let needle = dir.as_os_str().as_encoded_bytes();
    let mut found = Vec::new();
    let Ok(entries) = fs::read_dir("/proc") else { return found };
    for entry in entries.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse::<i32>().ok()) else {
            continue;
        };
        if pid == std::process::id() as i32 {
            continue;
        }
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let program = line.split(|b| *b == 0).next().unwrap_or_default();
        let program = program.rsplit(|b| *b == b'/').next().unwrap_or_default();
        // A command, or a daemon, whose name says what it serves.
        let ours = matches!(program, b"tatami" | b"tatami-node" | b"tatami-mount");
        if ours && line.windows(needle.len()).any(|w| w == needle) {
            found.push(pid);
        }
    }
    found
}

/// Returns whether the process exists and is no zombie.
pub fn is_alive(pid: i32) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    let state = stat.rsplit(')').next().and_then(|rest| rest.trim_start().chars().next());
    !matches!(state, Some('Z' | 'X') | None)
}

/// Kills a process with SIGKILL, and waits until it has ended. The caller knows that its test
/// started the process `pid`.
///
/// # Panics
/// If the process still exists after minutes.
pub fn kill_hard(pid: i32) {
    signal(pid, rustix::process::Signal::KILL);
    let start = Instant::now();
    while is_alive(pid) {
        assert!(start.elapsed() < GONE, "process {pid} is still there after SIGKILL");
        pause();
    }
}

/// Sends a signal to one process; a process that has ended is no error.
pub fn signal(pid: i32, signal: rustix::process::Signal) {
    if let Some(pid) = rustix::process::Pid::from_raw(pid) {
        let _ = rustix::process::kill_process(pid, signal);
    }
}

/// Waits one step for a condition without an event, such as the end of a process that is not a
/// child.
#[allow(clippy::disallowed_methods)]
pub fn pause() {
    std::thread::sleep(Duration::from_millis(5));
}

/// Returns the mount points at or below `dir`, the innermost first.
pub fn mounts_below(dir: &Path) -> Vec<PathBuf> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mut found: Vec<PathBuf> = table
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        .map(|path| PathBuf::from(path.replace("\\040", " ")))
        .filter(|path| path.starts_with(dir))
        .collect();
    found.reverse();
    found
}

/// Returns the number of the mount at `path` in /sys/fs/fuse/connections.
fn fuse_connection(path: &Path) -> Option<String> {
    let table = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let line = table.lines().rev().find(|line| {
        line.split(' ').nth(4).is_some_and(|p| Path::new(p) == path) && line.contains(" - fuse")
    })?;
    // Device numbers are major:minor; FUSE names a connection by the minor one.
    Some(line.split(' ').nth(2)?.split_once(':')?.1.to_owned())
}

/// Ends all waits in the FUSE mount at `path` with an error. For mounts that no longer answer.
pub fn abort_mount(path: &Path) {
    if let Some(connection) = fuse_connection(path) {
        let _ = fs::write(format!("/sys/fs/fuse/connections/{connection}/abort"), "1");
    }
}

/// Detaches everything mounted at or below `dir`.
pub fn unmount_all(dir: &Path) {
    for path in mounts_below(dir) {
        let flags = rustix::mount::UnmountFlags::DETACH;
        if let Err(error) = rustix::mount::unmount(&path, flags) {
            eprintln!("umount {}: {error}", path.display());
        }
    }
}

/// Waits this many milliseconds: tests choose the moment of a death by time.
#[allow(clippy::disallowed_methods)] // there is no event to wait for
pub fn wait_ms(ms: u64) {
    std::thread::sleep(std::time::Duration::from_millis(ms));
}
