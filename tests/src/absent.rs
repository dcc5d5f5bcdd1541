//! Stopped nodes, which answer no request, and work that must not wait for them.

use crate::files::put;
use crate::{Cluster, job, process};
use rustix::process::Signal;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::mpsc::channel;
use std::time::Duration;
use tatami_wire::Ino;

/// Time limit of work that must not wait, even on a slow machine.
const AT_ONCE: Duration = Duration::from_secs(300);

/// A stopped daemon, which continues when the value is dropped. Otherwise a failed test would leave
/// it stopped, and programs that look at the processes of this machine would hang.
pub struct Stopped(i32);

impl Stopped {
    /// Stops the daemon with this process number, which the caller's test has started.
    pub fn new(pid: i32) -> Stopped {
        process::signal(pid, Signal::STOP);
        Stopped(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        process::signal(self.0, Signal::CONT);
    }
}

/// Does work that must not wait for an absent node.
///
/// # Panics
/// If it waits or fails.
pub fn at_once<R: Send + 'static>(what: &str, work: impl FnOnce() -> R + Send + 'static) -> R {
    let (done, result) = channel();
    std::thread::spawn(move || done.send(work()));
    result
        .recv_timeout(AT_ONCE)
        .unwrap_or_else(|_| panic!("{what}: it waits for the node, or has failed"))
}

/// Makes a directory on each of `nodes` nodes, with a file in each, and returns their names.
///
/// # Panics
/// If they can't be made.
pub fn directory_of_each(cluster: &Cluster, nodes: u16) -> Vec<PathBuf> {
    let client = job::client(cluster, 0);
    let mut found: Vec<Option<PathBuf>> = vec![None; usize::from(nodes)];
    for n in 0.. {
        let (name, root) = (PathBuf::from(format!("dir{n}")), cluster.mount(0));
        fs::create_dir(root.join(&name)).expect("mkdir");
        // The first entry moves the directory to its owner shard, and so to its node.
        put(root.join(&name).join("first"), "first");
        let ino = Ino(fs::metadata(root.join(&name)).expect("stat").ino());
        let node = client.map().owner(ino.owner_shard()).expect("a shard").node.0;
        found[usize::from(node)].get_or_insert(name);
        if found.iter().all(Option::is_some) {
            break;
        }
    }
    found.into_iter().flatten().collect()
}
