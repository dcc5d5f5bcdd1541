//! A node that is killed, or stopped and so answers no request: operations that do not concern it
//! go on at once.

use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use tatami_tests::absent::{Stopped, at_once, directory_of_each};
use tatami_tests::files::{create, get};
use tatami_tests::{Cluster, Setup, job, process};
use tatami_wire::meta::{MetaOp, MetaReply};
use tatami_wire::{Cred, Ino};

const NODES: u16 = 3;
/// The operation timeout is longer than any test, so a wait for an absent node is detected.
const PATIENT: &str = "[client]\npatience_sec = 3600\n";

/// Makes a node absent, by a stop or a kill, while `work` runs.
fn without(cluster: &Cluster, node: u16, stopped: bool, work: impl FnOnce()) {
    let guard = stopped.then(|| Stopped::new(cluster.node_pid(node)));
    if !stopped {
        cluster.kill_node(node);
    }
    work();
    if guard.is_none() {
        cluster.start_node(node);
    }
}

/// Waits until no node reports any more that another node takes part in the names of these
/// directories. Transactions made them a moment ago, and a node learns only after a while that the
/// other's part is on its disk.
fn await_settled(cluster: &Cluster, names: &[PathBuf]) {
    let client = job::client(cluster, 0);
    for name in names {
        let ino = Ino(fs::metadata(cluster.mount(0).join(name)).expect("stat").ino());
        for executor in client.name_executors() {
            let op = || MetaOp::SyncNames { inos: vec![ino, Ino::ROOT] };
            let is_settled = || match client.request_executor(executor, &Cred::ROOT, op()) {
                Ok(MetaReply::NamesSynced { unsynced: also, .. }) => also.is_empty(),
                other => panic!("{executor}: {other:?}"),
            };
            while !is_settled() {
                process::pause();
            }
        }
    }
}

/// Returns a name in an open directory as a path that needs no directory above it.
fn within(dir: &File, name: &str) -> PathBuf {
    Path::new("/proc/self/fd").join(dir.as_raw_fd().to_string()).join(name)
}

#[test]
fn fsync_waits_for_no_node_that_has_nothing_of_the_file() {
    let cluster = Setup::nodes(NODES).config(PATIENT).start();
    let names = directory_of_each(&cluster, NODES);
    // On each mount, each directory has a file that is held open.
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
    await_settled(&cluster, &names);
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
