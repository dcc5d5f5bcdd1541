//! A data directory whose daemon was killed a moment ago. This is a test program of its own: a
//! child that is being started holds, for a moment, the open files of its parent, and so the locks
//! of other tests.

use rustix::fs::FlockOperation;
use std::fs::File;
use std::process::{Command, Stdio};
use tatami_cluster::DataDir;
use tatami_wire::{NodeId, VolumeId};

#[test]
fn a_daemon_that_was_killed_is_waited_for() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let open = || DataDir::open_or_create(dir.path(), VolumeId([7; 16]), NodeId(3));
    drop(open().expect("made"));
    let path = dir.path().join("lock");
    for _ in 0..20 {
        // The lock belongs to the open file, which the child gets as its input.
        let lock = File::options().read(true).write(true).open(&path).expect("there");
        rustix::fs::flock(&lock, FlockOperation::LockExclusive).expect("free");
        let mut child = Command::new("sleep")
            .arg("1000")
            .stdin(Stdio::from(lock))
            .spawn()
            .expect("a child starts");
        std::fs::write(&path, child.id().to_string()).expect("written");
        let error = open().expect_err("in use").to_string();
        assert!(error.contains(&format!("process {}", child.id())), "{error}");
        child.kill().expect("killed");
        drop(open().expect("free as soon as the child is gone"));
        child.wait().expect("gone");
    }
}
