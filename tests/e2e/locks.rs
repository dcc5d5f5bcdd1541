//! Locks among the processes of one mount.

use std::fs::File;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::mpsc;
use std::time::Duration;
use tatami_tests::Cluster;
use tatami_tests::command::{ask, program, shell};
use tatami_tests::files::{open, put};

fn one() -> (Cluster, PathBuf) {
    let cluster = Cluster::start(1);
    let mount = cluster.mount(0);
    put(mount.join("f"), vec![0; 1000]);
    (cluster, mount)
}

/// Whether another process gets the lock of `path` without waiting.
fn others_get(path: &Path, how: &str) -> bool {
    let mut flock = program("flock -n");
    ask(flock.arg(how).arg(path).arg("true")).code == Some(0)
}

#[test]
fn flock_excludes_other_processes() {
    let (cluster, m) = one();
    let path = m.join("f");
    let file = open(&path);
    assert!(others_get(&path, "-x"));
    file.lock_shared().expect("LOCK_SH");
    assert!(others_get(&path, "-s") && !others_get(&path, "-x"));
    file.unlock().expect("LOCK_UN");
    file.lock().expect("LOCK_EX");
    assert!(!others_get(&path, "-s"));
    drop(file);
    // Soon: a program that another test starts in this moment has all our
    // descriptors until it runs.
    let mut flock = program("flock -w 60 -x");
    let freed = ask(flock.arg(&path).arg("true")).code == Some(0);
    assert!(freed, "the lock goes with its descriptor");
    cluster.finish();
}

#[test]
fn locks_of_a_killed_process_are_freed() {
    let (cluster, m) = one();
    let path = m.join("f");
    let mut holder = shell(&m, "exec 9<f; flock -x 9; echo ready; exec sleep 1000")
        .stdout(Stdio::piped())
        .spawn()
        .expect("a process that holds the lock");
    let mut ready = [0; 6];
    holder.stdout.as_mut().expect("a pipe").read_exact(&mut ready).expect("ready");
    assert!(!others_get(&path, "-x"));
    holder.kill().expect("kill -9");
    holder.wait().expect("its end");
    assert!(others_get(&path, "-x"));
    cluster.finish();
}

/// An open-file-description lock: its owner is the descriptor, so two owners
/// fit into one process.
fn range_lock(file: &File, command: i32, kind: i32, start: i64, len: i64) -> Result<i32, i32> {
    // SAFETY: all-zero is a valid value of this plain C struct.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = start;
    lock.l_len = len;
    // SAFETY: the descriptor is open and the struct outlives the call.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), command, &mut lock) };
    if result == -1 {
        return Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(0));
    }
    Ok(i32::from(lock.l_type))
}

#[test]
fn byte_ranges_are_locked_one_by_one() {
    let (cluster, m) = one();
    let (one, two) = (open(m.join("f")), open(m.join("f")));
    let set = |file: &File, kind, start, len| range_lock(file, libc::F_OFD_SETLK, kind, start, len);
    set(&one, libc::F_WRLCK, 0, 100).expect("first range");
    set(&two, libc::F_WRLCK, 100, 100).expect("the range beside it");
    assert_eq!(set(&two, libc::F_RDLCK, 50, 10), Err(libc::EAGAIN));
    set(&one, libc::F_UNLCK, 40, 30).expect("free the middle");
    set(&two, libc::F_RDLCK, 50, 10).expect("the freed range");
    set(&one, libc::F_RDLCK, 55, 5).expect("readers share");
    assert_eq!(set(&one, libc::F_WRLCK, 55, 5), Err(libc::EAGAIN));
    let test = |start| range_lock(&two, libc::F_OFD_GETLK, libc::F_WRLCK, start, 1);
    assert_eq!(test(10), Ok(libc::F_WRLCK), "who asks is told of the lock");
    assert_eq!(test(500), Ok(libc::F_UNLCK));
    drop(one);
    // Waiting: a program that another test starts in this moment has all our
    // descriptors until it runs.
    range_lock(&two, libc::F_OFD_SETLKW, libc::F_WRLCK, 0, 1000)
        .expect("all of it, once the other is closed");
    drop(two);
    cluster.finish();
}

#[test]
fn locks_of_processes_exclude_each_other() {
    let (cluster, m) = one();
    // The lock of a process (not of a descriptor) against another owner's.
    let file = open(m.join("f"));
    range_lock(&file, libc::F_SETLK, libc::F_WRLCK, 0, 10).expect("F_SETLK");
    let other = open(m.join("f"));
    let refused = range_lock(&other, libc::F_OFD_SETLK, libc::F_WRLCK, 5, 1);
    assert_eq!(refused, Err(libc::EAGAIN));
    // Closing any descriptor of the file frees the process' locks.
    drop(open(m.join("f")));
    range_lock(&other, libc::F_OFD_SETLK, libc::F_WRLCK, 5, 1).expect("freed by close");
    drop((file, other));
    cluster.finish();
}

#[test]
fn a_waiter_gets_the_lock_when_it_is_freed() {
    let (cluster, m) = one();
    let (one, two) = (open(m.join("f")), open(m.join("f")));
    range_lock(&one, libc::F_OFD_SETLK, libc::F_WRLCK, 0, 0).expect("lock");
    let (sender, receiver) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let result = range_lock(&two, libc::F_OFD_SETLKW, libc::F_WRLCK, 0, 0);
            sender.send(result).expect("the test listens");
        });
        let early = receiver.recv_timeout(Duration::from_millis(100));
        assert_eq!(early, Err(mpsc::RecvTimeoutError::Timeout), "got a lock that was taken");
        range_lock(&one, libc::F_OFD_SETLK, libc::F_UNLCK, 0, 0).expect("unlock");
        assert!(receiver.recv_timeout(Duration::from_secs(60)).expect("the waiter").is_ok());
    });
    drop((one, two));
    cluster.finish();
}
