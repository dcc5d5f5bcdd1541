//! Finds the processes that use a mount: by their working directory, their root, an open file or a
//! mapped file below it, or a mount namespace of their own that shows it. This module reads links
//! in /proc only. That does not access the mounted file system, and so cannot hang on it.

use crate::mountinfo;
use crate::term;
use std::collections::{BTreeMap, VecDeque};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::time::Duration;

/// Most users that a message lists.
const LISTED: usize = 8;
/// Longest wait for the entries of one process in /proc.
const INSPECT_TIMEOUT: Duration = Duration::from_secs(2);

/// One process that keeps a mount busy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountUser {
    /// Its number.
    pub pid: i32,
    /// Its name.
    pub name: String,
    /// How the process uses the mount.
    pub what: String,
    /// The process uses nothing there. Its mount namespace is a copy of ours and so contains the
    /// mount.
    pub has_copy_only: bool,
}

/// Returns those of [`find_users`] that would lose something if the mount went away.
pub fn find_affected_users(path: &Path) -> Vec<MountUser> {
    find_users(path).into_iter().filter(|user| !user.has_copy_only).collect()
}

/// Returns the processes that use a file at or below `path`, or have it in their mount namespace,
/// by process number.
///
/// While a process starts another program, the kernel locks its directory in /proc, even while the
/// start waits for a file system that does not reply. Such a process is skipped after a timeout.
/// The unmount itself fails if that process uses `path`.
pub fn find_users(path: &Path) -> Vec<MountUser> {
    let Ok(processes) = std::fs::read_dir("/proc") else { return Vec::new() };
    let me = std::process::id() as i32;
    let pids = processes.flatten().filter_map(|p| p.file_name().to_str()?.parse::<i32>().ok());
    inspect_processes(pids.filter(|pid| *pid != me).collect(), &UsedMount::from_path(path))
}

/// Inspects the processes on a separate thread. If one blocks, that thread is abandoned and a new
/// one continues with the next process.
fn inspect_processes(mut pids: VecDeque<i32>, mount: &UsedMount) -> Vec<MountUser> {
    let mut found = BTreeMap::new();
    while !pids.is_empty() {
        let (sender, receiver) = channel();
        let (mount, all) = (mount.clone(), pids.clone());
        std::thread::spawn(move || {
            // The receiver is gone once this thread has been abandoned.
            all.into_iter().all(|pid| sender.send(mount.find_user(pid)).is_ok())
        });
        while let Some(pid) = pids.pop_front() {
            match receiver.recv_timeout(INSPECT_TIMEOUT) {
                Ok(Some(user)) => drop(found.insert(pid, user)),
                Ok(None) => {}
                Err(_) => {
                    tracing::warn!(pid, "the process could not be inspected in time");
                    break;
                }
            }
        }
    }
    found.into_values().collect()
}

/// The properties of a mount that identify its users.
#[derive(Clone)]
struct UsedMount {
    path: PathBuf,
    device: Option<String>,
    namespace: Option<PathBuf>,
}

impl UsedMount {
    fn from_path(path: &Path) -> UsedMount {
        UsedMount {
            path: path.to_owned(),
            device: mountinfo::mount_at(path).map(|m| m.device),
            namespace: std::fs::read_link("/proc/self/ns/mnt").ok(),
        }
    }

    fn find_user(&self, pid: i32) -> Option<MountUser> {
        let process = PathBuf::from(format!("/proc/{pid}"));
        // A process that ends meanwhile, or belongs to another user, shows nothing. A namespace
        // that cannot be read counts as ours.
        let theirs = std::fs::read_link(process.join("ns/mnt")).ok();
        let elsewhere = theirs.is_some() && theirs != self.namespace;
        let (what, has_copy_only) = match (&self.device, elsewhere) {
            (Some(device), true) => namespace_use(&process, &self.path, device),
            _ => process_use(&process, &self.path).map(|what| (what, false)),
        }?;
        let name = std::fs::read_to_string(process.join("comm")).unwrap_or_default();
        let name = term::escape_name(name.trim().as_bytes());
        Some(MountUser { pid, name, what, has_copy_only })
    }
}

/// Returns how a process with another mount namespace holds the file system, and whether that is
/// only an unused copy of our mount. The process holds it as long as it is mounted there, unless
/// our unmount propagates. A mount at another path, or of a subdirectory, is deliberate and so
/// counts as used.
fn namespace_use(process: &Path, path: &Path, device: &str) -> Option<(String, bool)> {
    let table = std::fs::read(process.join("mountinfo")).ok()?;
    let mut held: Vec<_> = mountinfo::parse(&table)
        .into_iter()
        .filter(|m| m.device == device && !(m.path == path && m.propagates))
        .collect();
    // Deliberate mounts sort first: the message names the first one.
    held.sort_by_key(|m| m.path == path && m.root == Path::new("/"));
    let first = held.first()?;
    let shown = term::escape_name(first.path.as_os_str().as_bytes());
    let sees = format!("sees it at {shown} in a mount namespace of its own");
    if first.path != path || first.root != Path::new("/") {
        return Some((sees, false));
    }
    Some(match process_use(process, path) {
        Some(what) => (format!("{what} in a mount namespace of its own"), false),
        None => (sees, true),
    })
}

fn process_use(process: &Path, path: &Path) -> Option<String> {
    let below = |link: PathBuf| {
        let target = std::fs::read_link(link).ok()?;
        target.starts_with(path).then_some(target)
    };
    let show = |p: &Path| term::escape_name(p.as_os_str().as_bytes());
    for (link, what) in [("cwd", "works in"), ("root", "has its root at"), ("exe", "runs")] {
        if let Some(target) = below(process.join(link)) {
            return Some(format!("{what} {}", show(&target)));
        }
    }
    for fd in std::fs::read_dir(process.join("fd")).ok()?.flatten() {
        if let Some(target) = below(fd.path()) {
            return Some(format!("has {} open", show(&target)));
        }
    }
    let maps = std::fs::read(process.join("maps")).ok()?;
    let mapped = maps.split(|b| *b == b'\n').filter_map(|line| {
        let at = line.iter().position(|b| *b == b'/')?;
        let target = Path::new(std::ffi::OsStr::from_bytes(&line[at..]));
        target.starts_with(path).then(|| format!("has {} mapped", show(target)))
    });
    mapped.into_iter().next()
}

/// Formats one line per process.
pub fn describe_users(users: &[MountUser]) -> String {
    let mut lines: Vec<String> = users
        .iter()
        .take(LISTED)
        .map(|user| format!("{} (process {}) {}", user.name, user.pid, user.what))
        .collect();
    if users.len() > LISTED {
        lines.push(format!("and {} more", users.len() - LISTED));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_file_shows() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().canonicalize().expect("it is there");
        assert!(find_users(&path).is_empty());
        let file = std::fs::File::create(path.join("f")).expect("created");
        let mut child = std::process::Command::new("cat")
            .stdin(std::process::Stdio::piped())
            .stdout(file)
            .spawn()
            .expect("cat runs");
        let users = find_users(&path);
        drop(child.stdin.take());
        child.wait().expect("it ends");
        let user = users.iter().find(|u| u.pid == child.id() as i32).expect("it uses it");
        assert!(user.what.ends_with("f open"), "{}", user.what);
        assert!(describe_users(&users).contains(&format!("(process {})", child.id())));
    }
}
