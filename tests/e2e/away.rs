//! A node that is killed, or stopped and so answers nobody: what has nothing to do with it goes on at once.

use rustix::process::Signal;
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::time::Duration;
use tatami_tests::files::{create, get, put};
use tatami_tests::{Cluster, Setup, job, process};
use tatami_wire::Ino;

const NODES: u16 = 3;
/// Nobody waits for so long for a node that is away: who waits for one at all is found out.
const PATIENT: &str = "[client]\npatience_sec = 3600\n";
/// What goes on at once takes no longer, on however slow a machine.
const AT_ONCE: Duration = Duration::from_secs(300);

/// Does what must not wait for the node that is away.
fn at_once<R: Send + 'static>(what: &str, work: impl FnOnce() -> R + Send + 'static) -> R {
    let (done, result) = channel();
    std::thread::spawn(move || done.send(work()));
    result
        .recv_timeout(AT_ONCE)
        .unwrap_or_else(|_| panic!("{what}: it waits for the node, or has failed"))
}

/// A node is away, one way or the other, while `work` is done.
fn without(cluster: &Cluster, node: u16, stopped: bool, work: impl FnOnce()) {
    let pid = cluster.node_pid(node);
    match stopped {
        true => process::signal(pid, Signal::STOP),
        false => cluster.kill_node(node),
    }
    work();
    match stopped {
        true => process::signal(pid, Signal::CONT),
        false => cluster.start_node(node),
    }
}

/// A directory on each node, with a file in each.
fn directory_of_each(cluster: &Cluster) -> Vec<PathBuf> {
    let client = job::client(cluster, 0);
    let mut found: Vec<Option<PathBuf>> = vec![None; usize::from(NODES)];
    for n in 0.. {
        let (name, root) = (PathBuf::from(format!("dir{n}")), cluster.mount(0));
        fs::create_dir(root.join(&name)).expect("mkdir");
        // With this, the directory comes to its node.
        put(root.join(&name).join("first"), "first");
        let ino = Ino(fs::metadata(root.join(&name)).expect("stat").ino());
        let node = client.map().owner(ino.shard()).expect("a shard").node.0;
        found[usize::from(node)].get_or_insert(name);
        if found.iter().all(Option::is_some) {
            break;
        }
    }
    found.into_iter().flatten().collect()
}

/// An open directory as a path that needs no directory above it.
fn within(dir: &File, name: &str) -> PathBuf {
    Path::new("/proc/self/fd").join(dir.as_raw_fd().to_string()).join(name)
}

#[test]
fn fsync_waits_for_no_node_that_has_nothing_of_the_file() {
    let cluster = Setup::nodes(NODES).config(PATIENT).start();
    let names = directory_of_each(&cluster);
    // On each mount, each directory with a file that is held open.
    let held: Vec<Vec<(File, File)>> = (0..NODES)
        .map(|mount| {
            let hold = |name: &PathBuf| {
                let dir = cluster.mount(mount).join(name);
                let file = create(dir.join(format!("held-{mount}")));
                file.sync_all().expect("fsync");
                let dir = File::open(&dir).expect("open");
                // The directory itself was made a moment ago, maybe on another node.
                dir.sync_all().expect("fsync");
                (dir, file)
            };
            names.iter().map(hold).collect()
        })
        .collect();
    for (round, stopped) in [true, false].into_iter().enumerate() {
        for away in 0..NODES {
            without(&cluster, away, stopped, || {
                let others = || (0..NODES).filter(|node| *node != away);
                for (mount, node) in others().flat_map(|m| others().map(move |n| (m, n))) {
                    let (dir, held) = &held[usize::from(mount)][usize::from(node)];
                    let (dir, mut held) =
                        (dir.try_clone().expect("dup"), held.try_clone().expect("dup"));
                    let name = format!("{round}-{away}-{mount}");
                    at_once(
                        &format!("node {away} is away, mount {mount}, node {node}"),
                        move || {
                            held.write_all(name.as_bytes()).expect("write");
                            held.sync_all().expect("fsync of a file that was there");
                            let mut new = create(within(&dir, &name));
                            new.write_all(b"new").expect("write");
                            new.sync_all().expect("fsync of a new file");
                            fs::rename(within(&dir, &name), within(&dir, &format!("{name}-moved")))
                                .expect("rename");
                            new.sync_data().expect("fdatasync of a file that was renamed");
                            dir.sync_all().expect("fsync of its directory");
                        },
                    );
                }
            });
        }
    }
    for (node, name) in names.iter().enumerate() {
        for (round, away, mount) in [(0, 0, 1), (0, 1, 2), (1, 2, 0)] {
            if node != away {
                let name = name.join(format!("{round}-{away}-{mount}-moved"));
                assert_eq!(get(cluster.mount(0).join(name)), b"new");
            }
        }
    }
    drop(held);
    cluster.finish();
}
