//! Locks of programs that use the library, without a mount.

mod common;

use common::{PATIENCE, Session, Volume, key};
use std::sync::Arc;
use std::time::Duration;
use tatami_client::{Client, ClientOptions, LockOutcome, Unbuffered};
use tatami_wire::lock::{ByteRange, Lock, LockKind, LockSort};
use tatami_wire::{Errno, Ino};

fn client(volume: &Volume) -> Arc<Client> {
    let options = ClientOptions { key: Some(key()), ..ClientOptions::new(volume.tcp(0)) };
    Arc::new(Client::connect(options).expect("connected"))
}

fn lock(start: u64, end: u64) -> Lock {
    let span = ByteRange { start, end };
    Lock { sort: LockSort::Range, owner: 1, pid: 0, span, kind: LockKind::Exclusive }
}

fn set(client: &Client, ino: Ino, lock: &Lock) -> Result<LockOutcome, Errno> {
    client.set_lock(ino, lock, 0, None, &Unbuffered)
}

fn free(client: &Client, ino: Ino) {
    client.free_lock(ino, (LockSort::Range, 1), ByteRange::ALL, &Unbuffered).expect("freed");
}

#[test]
fn programs_without_a_mount_exclude_each_other() {
    let volume = Volume::new(1);
    let node = volume.start(0);
    let ino = Session::new(volume.tcp(0), 9).create("file", 0).0.ino;
    let (a, b) = (client(&volume), client(&volume));
    assert_eq!(set(&a, ino, &lock(0, 9)), Ok(LockOutcome::Done));
    assert_eq!(set(&b, ino, &lock(5, 5)), Err(Errno::EAGAIN));
    assert_eq!(set(&b, ino, &lock(10, 19)), Ok(LockOutcome::Done));
    let held = b.test_lock(ino, &lock(0, 0), &Unbuffered).expect("asked").expect("held");
    assert_eq!((held.span, held.pid), (ByteRange { start: 0, end: 9 }, 0));
    // The operation timeout ends the wait.
    let wait = |client: &Client, wait, patience| {
        client.wait_for_lock(ino, &lock(0, 5), wait, patience, &Unbuffered)
    };
    assert_eq!(wait(&b, 1, Duration::from_millis(20)), Err(Errno::EAGAIN));
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| wait(&b, 2, PATIENCE));
        free(&a, ino);
        assert_eq!(waiter.join().expect("no panic"), Ok(()));
    });
    assert_eq!(set(&a, ino, &lock(0, 0)), Err(Errno::EAGAIN));
    // The restarted node knows no locks, and gets them from the clients as they come.
    node.stop();
    let _node = volume.start(0);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| set(&a, ino, &lock(0, 0)));
        assert_eq!(set(&b, ino, &lock(30, 39)), Ok(LockOutcome::Done));
        assert_eq!(other.join().expect("no panic"), Err(Errno::EAGAIN));
    });
    b.end_lock_sessions();
    assert_eq!(set(&a, ino, &lock(0, 39)), Ok(LockOutcome::Done));
    a.end_lock_sessions();
}
