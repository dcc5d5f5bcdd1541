//! Locks among the processes of one mount, and of several.

use rustix::process::Signal;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use tatami_tests::command::{ask, program, run, shell};
use tatami_tests::files::{bytes_of, open, put, refused};
use tatami_tests::{Cluster, Setup, process};

/// No wait in these tests is longer.
const PATIENCE: Duration = Duration::from_secs(240);
/// A lease that tests can wait for.
const SHORT_LEASE: &str = "[node]\nlease_sec = 2\n";

fn one() -> (Cluster, PathBuf) {
    let cluster = Cluster::start(1);
    let mount = cluster.mount(0);
    put(mount.join("f"), vec![0; 1000]);
    (cluster, mount)
}

/// Returns whether another process gets the lock of `path` without waiting.
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
    // It may take a moment: a program that another test starts at the same moment has copies of all
    // descriptors of this process until its exec.
    let mut flock = program("flock -w 60 -x");
    let freed = ask(flock.arg(&path).arg("true")).code == Some(0);
    assert!(freed, "the lock goes with its descriptor");
    cluster.finish();
}

#[test]
fn locks_of_a_killed_process_are_freed() {
    let (cluster, m) = one();
    let path = m.join("f");
    let mut holder = holder(&m, "exec 9<f; flock -x 9");
    assert!(!others_get(&path, "-x"));
    holder.kill().expect("kill -9");
    holder.wait().expect("its end");
    assert!(others_get(&path, "-x"));
    cluster.finish();
}

/// Starts a process that runs `script` in `dir`, reports ready, and then sleeps.
fn holder(dir: &Path, script: &str) -> Child {
    let mut child = shell(dir, &format!("{script}; echo ready; exec sleep 1000"))
        .stdout(Stdio::piped())
        .spawn()
        .expect("a process that holds the lock");
    let mut ready = [0; 6];
    child.stdout.as_mut().expect("a pipe").read_exact(&mut ready).expect("ready");
    child
}

/// Sets an open-file-description lock: its owner is the descriptor, so two owners fit into one
/// process.
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
    // Waits: a program that another test starts at the same moment has copies of all descriptors of
    // this process until its exec.
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

fn two() -> (Cluster, PathBuf, PathBuf) {
    two_as(Setup::nodes(2))
}

/// Returns a cluster with two mounts, and a file on the node of the first.
fn two_as(setup: Setup) -> (Cluster, PathBuf, PathBuf) {
    let cluster = setup.start();
    let (a, b) = (cluster.mount(0), cluster.mount(1));
    put(a.join("f"), vec![0; 1000]);
    (cluster, a, b)
}

fn write_lock(file: &File, start: i64, len: i64) -> Result<(), i32> {
    range_lock(file, libc::F_OFD_SETLK, libc::F_WRLCK, start, len).map(drop)
}

fn wait_for_lock(file: &File, start: i64, len: i64) -> Result<(), i32> {
    range_lock(file, libc::F_OFD_SETLKW, libc::F_WRLCK, start, len).map(drop)
}

fn free(file: &File, start: i64, len: i64) {
    range_lock(file, libc::F_OFD_SETLK, libc::F_UNLCK, start, len).expect("F_UNLCK");
}

/// Tries until it gets the lock, because the release of a lock has no event.
fn get_in_the_end(file: &File, start: i64, len: i64) {
    let deadline = Instant::now() + PATIENCE;
    while let Err(errno) = write_lock(file, start, len) {
        assert_eq!(errno, libc::EAGAIN);
        assert!(Instant::now() < deadline, "the lock is not freed");
        std::thread::yield_now();
    }
}

fn requests(cluster: &Cluster) -> u64 {
    let status = cluster.status();
    let nodes = status["nodes"].as_array().expect("nodes");
    nodes.iter().map(|node| node["meta_requests"].as_u64().expect("a number")).sum()
}

#[test]
fn locks_reach_other_mounts() {
    let (cluster, a, b) = two();
    for (here, there) in [(&a, &b), (&b, &a)] {
        let (path, other) = (here.join("f"), there.join("f"));
        let file = open(&path);
        assert!(others_get(&other, "-x"));
        file.lock_shared().expect("LOCK_SH");
        assert!(others_get(&other, "-s") && !others_get(&other, "-x"));
        file.lock().expect("LOCK_EX");
        assert!(!others_get(&other, "-s") && !others_get(&path, "-s"));
        let theirs = open(&other);
        write_lock(&theirs, 0, 0).expect("the two sorts do not know of each other");
        free(&theirs, 0, 0);
        file.unlock().expect("LOCK_UN");
        assert!(others_get(&other, "-x"));

        write_lock(&file, 100, 100).expect("F_OFD_SETLK");
        assert_eq!(write_lock(&theirs, 150, 100), Err(libc::EAGAIN));
        write_lock(&theirs, 200, 100).expect("the range beside it");
        let test = |kind| range_lock(&theirs, libc::F_OFD_GETLK, kind, 150, 1);
        assert_eq!(test(libc::F_RDLCK), Ok(libc::F_WRLCK));
        range_lock(&file, libc::F_OFD_SETLK, libc::F_RDLCK, 100, 100).expect("downgraded");
        assert_eq!(test(libc::F_RDLCK), Ok(libc::F_UNLCK));
        assert_eq!(test(libc::F_WRLCK), Ok(libc::F_RDLCK));
        drop((file, theirs));
        // The kernel reports the end of an open file after close(2) has returned.
        get_in_the_end(&open(&other), 0, 0);
        get_in_the_end(&open(&path), 0, 0);

        // Locks of a process: closing any descriptor of the file releases them.
        let file = open(&path);
        range_lock(&file, libc::F_SETLK, libc::F_WRLCK, 0, 10).expect("F_SETLK");
        let theirs = open(&other);
        assert_eq!(write_lock(&theirs, 5, 1), Err(libc::EAGAIN));
        drop(open(&path));
        write_lock(&theirs, 5, 1).expect("freed by close");
    }
    cluster.finish();
}

#[test]
fn a_waiter_on_another_mount_gets_the_lock_when_it_is_freed() {
    let (cluster, a, b) = two();
    let (one, two, three) = (open(a.join("f")), open(b.join("f")), open(a.join("f")));
    wait_for_lock(&one, 0, 0).expect("lock");
    let (sender, receiver) = mpsc::channel();
    std::thread::scope(|scope| {
        for file in [&two, &three] {
            let sender = sender.clone();
            scope.spawn(move || {
                let result = wait_for_lock(file, 0, 0);
                sender.send(result).expect("the test listens");
                free(file, 0, 0);
            });
        }
        let early = receiver.recv_timeout(Duration::from_millis(100));
        assert_eq!(early, Err(mpsc::RecvTimeoutError::Timeout), "got a lock that was taken");
        free(&one, 0, 0);
        for _ in 0..2 {
            assert_eq!(receiver.recv_timeout(PATIENCE), Ok(Ok(())));
        }
    });
    drop((one, two, three));
    cluster.finish();
}

/// A signal ends the wait for a lock, and the waiter does not get it.
#[test]
fn a_signal_ends_a_wait() {
    let (cluster, a, b) = two();
    let held = open(a.join("f"));
    held.lock().expect("LOCK_EX");
    wait_for_lock(&held, 0, 0).expect("F_OFD_SETLKW");
    for mount in [&a, &b] {
        for call in ["fcntl.flock(f, fcntl.LOCK_EX)", "fcntl.lockf(f, fcntl.LOCK_EX)"] {
            let script = format!(
                "import fcntl, signal\n\
                 def stop(*_): raise KeyError\n\
                 signal.signal(signal.SIGALRM, stop)\n\
                 f = open('f', 'r+')\n\
                 signal.setitimer(signal.ITIMER_REAL, 0.3)\n\
                 try:\n    {call}\n    print('locked')\n\
                 except KeyError: print('interrupted')"
            );
            let mut python = program("/usr/bin/python3 -c");
            let said = run(python.arg(&script).current_dir(mount));
            assert_eq!(said.out.trim(), "interrupted", "{}: {call}", mount.display());
            // A killed waiter does not block its mount either.
            let mut killed = program("timeout -s KILL 0.3 /usr/bin/python3 -c");
            let wait = format!("import fcntl; f = open('f', 'r+'); {call}");
            assert_ne!(ask(killed.arg(wait).current_dir(mount)).code, Some(0));
        }
    }
    held.unlock().expect("LOCK_UN");
    free(&held, 0, 0);
    assert!(others_get(&b.join("f"), "-x"));
    get_in_the_end(&open(b.join("f")), 0, 0);
    drop(held);
    cluster.finish();
}

#[test]
fn who_would_wait_for_himself_is_told() {
    let (cluster, a, b) = two();
    let (one, two) = (open(a.join("f")), open(b.join("f")));
    wait_for_lock(&one, 0, 1).expect("the first byte");
    wait_for_lock(&two, 1, 1).expect("the second");
    let both = std::thread::scope(|scope| {
        let wait = |file, at| {
            let result = wait_for_lock(file, at, 1);
            // The refused owner releases its locks, so that the other gets them.
            free(file, 0, 2);
            result
        };
        let first = &one;
        let other = scope.spawn(move || wait(first, 1));
        let here = wait(&two, 0);
        [other.join().expect("no panic"), here]
    });
    assert!(both.contains(&Err(libc::EDEADLK)) && both.contains(&Ok(())), "{both:?}");
    drop((one, two));
    cluster.finish();
}

#[test]
fn locks_of_a_process_killed_on_another_mount_are_freed() {
    let (cluster, a, b) = two();
    let hold = "exec 9<f; flock -x 9";
    let mut child = holder(&b, hold);
    assert!(!others_get(&a.join("f"), "-s"));
    child.kill().expect("kill -9");
    child.wait().expect("its end");
    let mut flock = program("flock -w 240 -x");
    assert_eq!(ask(flock.arg(a.join("f")).arg("true")).code, Some(0));
    cluster.finish();
}

/// A mount dies, and its lease ends.
#[test]
fn a_killed_mount_loses_its_locks() {
    let (cluster, a, b) = two_as(Setup::nodes(2).config(SHORT_LEASE));
    let theirs = open(b.join("f"));
    wait_for_lock(&theirs, 0, 0).expect("F_OFD_SETLKW");
    let ours = open(a.join("f"));
    assert_eq!(write_lock(&ours, 0, 1), Err(libc::EAGAIN));
    cluster.kill_mount(1);
    wait_for_lock(&ours, 0, 0).expect("freed");
    drop(theirs);
    cluster.start_mount(1);
    assert_eq!(write_lock(&open(b.join("f")), 0, 1), Err(libc::EAGAIN));
    drop(ours);
    cluster.finish();
}

/// A stopped mount has not given up its locks.
#[test]
fn a_stopped_mount_keeps_its_locks() {
    let (cluster, a, b) = two_as(Setup::nodes(2).config(SHORT_LEASE));
    let (ours, theirs) = (open(a.join("f")), open(b.join("f")));
    wait_for_lock(&theirs, 0, 0).expect("F_OFD_SETLKW");
    let pid = cluster.mount_pid(1);
    process::signal(pid, Signal::STOP);
    // The node recalls the lock in vain.
    assert_eq!(write_lock(&ours, 0, 1), Err(libc::EAGAIN));
    process::signal(pid, Signal::CONT);
    theirs.write_all_at(b"mine", 0).expect("it is");
    free(&theirs, 0, 0);
    wait_for_lock(&ours, 0, 0).expect("freed");
    assert_eq!(&bytes_of(&ours)[..4], b"mine");
    drop((ours, theirs));
    cluster.finish();
}

#[test]
fn locks_survive_the_daemon() {
    let (cluster, a, b) = two();
    let (ours, theirs) = (open(a.join("f")), open(b.join("f")));
    for round in 0..3 {
        wait_for_lock(&theirs, 0, 100).expect("F_OFD_SETLKW");
        theirs.lock().expect("LOCK_EX");
        if round > 0 {
            // Now the locks are at the node, and not delegated.
            assert_eq!(write_lock(&ours, 50, 1), Err(libc::EAGAIN));
            wait_for_lock(&ours, 100, 100).expect("beside it");
        }
        cluster.kill_node(0);
        cluster.start_node(0);
        assert_eq!(write_lock(&ours, 50, 1), Err(libc::EAGAIN));
        assert!(!others_get(&a.join("f"), "-s"));
        if round > 0 {
            assert_eq!(write_lock(&theirs, 150, 1), Err(libc::EAGAIN));
        }
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| wait_for_lock(&ours, 0, 100));
            if round > 1 {
                // The waiters go on waiting.
                cluster.kill_node(0);
                cluster.start_node(0);
            }
            free(&theirs, 0, 100);
            assert_eq!(waiter.join().expect("no panic"), Ok(()));
        });
        theirs.unlock().expect("LOCK_UN");
        free(&ours, 0, 0);
    }
    drop((ours, theirs));
    cluster.finish();
}

/// A mount that was absent for longer than its lease learns that others may have had its locks.
#[test]
fn who_was_away_for_too_long_is_told() {
    let (cluster, a, b) = two_as(Setup::nodes(2).config(SHORT_LEASE));
    let (ours, theirs) = (open(a.join("f")), open(b.join("f")));
    wait_for_lock(&theirs, 0, 0).expect("F_OFD_SETLKW");
    let pid = cluster.mount_pid(1);
    process::signal(pid, Signal::STOP);
    cluster.kill_node(0);
    cluster.start_node(0);
    // The mount does not come back to reclaim the lock.
    wait_for_lock(&ours, 0, 0).expect("freed");
    ours.write_all_at(b"mine", 0).expect("written");
    process::signal(pid, Signal::CONT);
    assert_eq!(refused(theirs.write_all_at(b"late", 0)), libc::EIO);
    assert_eq!(refused(theirs.read_at(&mut [0; 4], 0)), libc::EIO);
    assert_eq!(write_lock(&theirs, 500, 1), Err(libc::EIO));
    let report = lines_of_eio(&cluster);
    for operation in ["WRITE", "READ", "SETLK"] {
        let line = report.iter().find(|line| line.contains(&format!("operation=\"{operation}\"")));
        let line = line.unwrap_or_else(|| panic!("{operation} is not in {report:#?}"));
        assert!(line.contains("lost the locks") && line.contains("ino="), "{line}");
    }
    drop(theirs);
    let again = open(b.join("f"));
    assert_eq!(write_lock(&again, 0, 1), Err(libc::EAGAIN));
    assert_eq!(&bytes_of(&again)[..4], b"mine");
    free(&ours, 0, 0);
    wait_for_lock(&again, 0, 0).expect("freed");
    drop((ours, again));
    cluster.finish();
}

/// Returns the lines about `EIO` in the logs of the mounts.
fn lines_of_eio(cluster: &Cluster) -> Vec<String> {
    let logs = cluster.mount_logs().into_iter();
    let logs = logs.flat_map(|logs| std::fs::read_dir(logs).expect("readdir"));
    let text = |log: std::io::Result<std::fs::DirEntry>| {
        std::fs::read_to_string(log.expect("an entry").path()).expect("a log")
    };
    let text: String = logs.map(text).collect();
    text.lines().filter(|line| line.contains("answered EIO")).map(str::to_owned).collect()
}

/// Adds one to a number in the file, and a line at its end, under a lock: no update of another
/// process is lost.
fn count(path: &Path, rounds: u64) {
    let mut file = open(path);
    for _ in 0..rounds {
        wait_for_lock(&file, 0, 0).expect("F_OFD_SETLKW");
        let mut number = [0; 8];
        file.read_exact_at(&mut number, 0).expect("8 bytes");
        let number = u64::from_le_bytes(number) + 1;
        file.write_all_at(&number.to_le_bytes(), 0).expect("8 bytes");
        // The end as in the result of fstat(2).
        let end = file.metadata().expect("fstat").len();
        file.write_all_at(b"line\n", end).expect("a line");
        free(&file, 0, 0);
    }
    file.flush().expect("nothing is buffered");
}

fn all_count(cluster: Cluster, a: &Path, b: &Path) {
    put(a.join("n"), [0; 8]);
    let rounds = 40;
    std::thread::scope(|scope| {
        for mount in [a, b, a, b] {
            scope.spawn(move || count(&mount.join("n"), rounds));
        }
    });
    for mount in [a, b] {
        let bytes = std::fs::read(mount.join("n")).expect("read");
        assert_eq!(bytes[..8], (4 * rounds).to_le_bytes());
        assert_eq!(bytes.len() as u64, 8 + 4 * rounds * 5, "lines were lost");
    }
    cluster.finish();
}

#[test]
fn what_is_written_under_a_lock_is_seen_under_the_next() {
    let (cluster, a, b) = two();
    all_count(cluster, &a, &b);
}

#[test]
fn the_same_without_passthrough() {
    let (cluster, a, b) = two_as(Setup::nodes(2).without_passthrough());
    all_count(cluster, &a, &b);
}

/// The page cache of the reader's node hides nothing, and neither does the size.
#[test]
fn a_reader_that_locks_sees_what_was_written() {
    let (cluster, a, b) = two();
    for (writer, reader) in [(&a, &b), (&b, &a)] {
        let write = open(writer.join("f"));
        let read = File::open(reader.join("f")).expect("open");
        let share = |file: &File, kind| {
            range_lock(file, libc::F_OFD_SETLKW, kind, 0, 0).expect("F_OFD_SETLKW")
        };
        for round in 1..20u8 {
            share(&write, libc::F_WRLCK);
            let len = 1000 + usize::from(round);
            write.write_all_at(&vec![round; len], 0).expect("write");
            free(&write, 0, 0);
            share(&read, libc::F_RDLCK);
            assert_eq!(bytes_of(&read), vec![round; len]);
            free(&read, 0, 0);
        }
        write.set_len(1000).expect("truncate");
    }
    cluster.finish();
}

#[test]
fn sqlite_works_on_two_mounts_at_once() {
    let (cluster, a, b) = two();
    let rounds = 15;
    run(program("sqlite3")
        .arg(a.join("db"))
        .arg("PRAGMA journal_mode=delete; CREATE TABLE t(w, i);"));
    let script = "import sqlite3, sys\n\
        db = sqlite3.connect('db', timeout=240, isolation_level=None)\n\
        for i in range(int(sys.argv[2])):\n\
        \x20   db.execute('BEGIN IMMEDIATE')\n\
        \x20   n = db.execute('SELECT count(*) FROM t').fetchone()[0]\n\
        \x20   db.execute('INSERT INTO t VALUES (?, ?)', (int(sys.argv[1]), n))\n\
        \x20   db.execute('COMMIT')\n";
    let writers: Vec<_> = [&a, &b, &a, &b]
        .iter()
        .enumerate()
        .map(|(number, mount)| {
            let mut python = program("/usr/bin/python3 -c");
            python.arg(script).arg(number.to_string()).arg(rounds.to_string());
            python.current_dir(mount).spawn().expect("python3")
        })
        .collect();
    for mut writer in writers {
        assert!(writer.wait().expect("its end").success());
    }
    for mount in [&a, &b] {
        let question = "PRAGMA integrity_check; SELECT count(*), count(DISTINCT i), max(i) FROM t;";
        let said = run(program("sqlite3").arg(mount.join("db")).arg(question));
        let all = 4 * rounds;
        assert_eq!(said.out.trim(), format!("ok\n{all}|{all}|{}", all - 1));
    }
    cluster.finish();
}

/// Without other lockers, locks cost no request; another locker gets the lock at once.
#[test]
fn locks_of_a_file_of_ones_own_cost_no_request() {
    let (cluster, a, b) = two();
    for mount in [&a, &b] {
        let deadline = Instant::now() + PATIENCE;
        let file = open(mount.join("f"));
        loop {
            let before = requests(&cluster);
            for _ in 0..500 {
                file.lock().expect("LOCK_EX");
                file.unlock().expect("LOCK_UN");
                write_lock(&file, 10, 10).expect("F_OFD_SETLK");
                free(&file, 10, 10);
            }
            let cost = requests(&cluster) - before;
            if cost == 0 {
                break;
            }
            assert!(Instant::now() < deadline, "{cost} requests for 1000 locks");
        }
        let other = open(if mount == &a { b.join("f") } else { a.join("f") });
        write_lock(&file, 0, 100).expect("F_OFD_SETLK");
        assert_eq!(write_lock(&other, 50, 1), Err(libc::EAGAIN));
        write_lock(&other, 200, 100).expect("beside it");
        assert_eq!(write_lock(&file, 250, 1), Err(libc::EAGAIN));
    }
    cluster.finish();
}
