//! New files that have their bytes, for a while, in a spare file of their node that the mount has
//! borrowed, and that is no object yet: programs must not notice.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tatami_tests::files::{create, get, open, stat};
use tatami_tests::policies::skip_with_policies;
use tatami_tests::{Cluster, Setup};

fn two() -> (Cluster, PathBuf, PathBuf) {
    let cluster = Cluster::start(2);
    let (a, b) = (cluster.mount(0), cluster.mount(1));
    (cluster, a, b)
}

/// Returns the number of backing files of objects on a node.
fn objects(cluster: &Cluster, node: u16) -> usize {
    let dir = cluster.dir().join(format!("node{node}/objects"));
    let buckets = fs::read_dir(dir).expect("there").flatten().map(|entry| entry.path());
    let files = |bucket: PathBuf| fs::read_dir(bucket).expect("there").count();
    buckets.map(files).sum()
}

/// Waits for background work of a daemon.
fn until(what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(120);
    while !is_so() {
        assert!(Instant::now() < end, "in vain: {what}");
        #[allow(clippy::disallowed_methods)] // there is no event
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Makes the mount borrow spare files. The file that it takes for that is an object until its
/// removal.
fn warm(dir: &Path) {
    for _ in 0..2 {
        drop(create(dir.join("warm")));
        fs::remove_file(dir.join("warm")).expect("unlink");
    }
}

#[test]
fn a_file_closed_without_a_byte_has_no_object() {
    if skip_with_policies("it counts the files of objects, which bytes beside an inode have not") {
        return;
    }
    let (cluster, a, b) = two();
    warm(&a);
    until("the first object is removed", || objects(&cluster, 0) == 0);
    for i in 0..200 {
        drop(create(a.join(format!("empty-{i}"))));
    }
    assert_eq!(objects(&cluster, 0), 0);
    for i in 0..200 {
        assert_eq!(stat(b.join(format!("empty-{i}"))).len(), 0);
        let mut file = open(a.join(format!("empty-{i}")));
        write!(file, "now {i}").expect("write");
    }
    assert_eq!(objects(&cluster, 0), 200);
    for i in 0..200 {
        assert_eq!(get(b.join(format!("empty-{i}"))), format!("now {i}").as_bytes());
    }
    cluster.finish();
}

/// Many more files than the spare files of one request, all open at once.
#[test]
fn each_new_file_has_bytes_of_its_own() {
    let (cluster, a, b) = two();
    warm(&a);
    for round in 0..2 {
        let name = |i: i32| format!("file-{round}-{i}");
        let files: Vec<_> = (0..200).map(|i| create(a.join(name(i)))).collect();
        for (i, file) in files.iter().enumerate().filter(|(i, _)| i % 3 > 0) {
            file.write_all_at(format!("bytes of {i}").as_bytes(), 0).expect("pwrite");
        }
        drop(files);
        for i in 0..200 {
            let expected = if i % 3 > 0 { format!("bytes of {i}") } else { String::new() };
            assert_eq!(get(a.join(name(i))), expected.as_bytes());
            assert_eq!(get(b.join(name(i))), expected.as_bytes());
        }
    }
    cluster.finish();
}

#[test]
fn two_mounts_write_to_one_new_file() {
    let (cluster, a, b) = two();
    warm(&a);
    for i in 0..50 {
        let (here, there) = (a.join(format!("f{i}")), b.join(format!("f{i}")));
        let ours = create(&here);
        if i % 2 == 0 {
            ours.write_all_at(b"ours", 0).expect("pwrite");
        }
        let theirs = open(&there);
        theirs.write_all_at(b"theirs", 4).expect("pwrite");
        theirs.sync_all().expect("fsync");
        if i % 2 == 1 {
            ours.write_all_at(b"ours", 0).expect("pwrite");
        }
        drop((ours, theirs));
        assert_eq!(get(&here), b"ourstheirs");
        assert_eq!(get(&there), b"ourstheirs");
    }
    cluster.finish();
}

#[test]
fn times_are_those_of_the_file_and_not_of_what_was_lent() {
    let (cluster, a, b) = two();
    warm(&a);
    #[allow(clippy::disallowed_methods)] // the spare file must be older
    std::thread::sleep(Duration::from_millis(1100));
    let file = create(a.join("f"));
    let made = stat(b.join("f"));
    let time = |m: &fs::Metadata| (m.mtime(), m.mtime_nsec());
    assert_eq!(time(&file.metadata().expect("fstat")), time(&made));
    file.sync_all().expect("fsync");
    assert_eq!(time(&file.metadata().expect("fstat")), time(&made));
    file.set_modified(std::time::UNIX_EPOCH).expect("futimens");
    assert_eq!(file.metadata().expect("fstat").mtime(), 0);
    drop(file);
    assert_eq!((stat(a.join("f")).mtime(), stat(b.join("f")).mtime()), (0, 0));
    // The mount borrows the returned file with that time again.
    let again = create(a.join("g"));
    assert!(again.metadata().expect("fstat").mtime() > 0);
    again.write_all_at(b"x", 0).expect("pwrite");
    drop(again);
    assert!(time(&stat(b.join("g"))) > time(&made));
    cluster.finish();
}

#[test]
fn bytes_that_nobody_was_told_of_survive_the_daemon() {
    if skip_with_policies(
        "it writes while the daemon is away, which only a file of the disk allows",
    ) {
        return;
    }
    let (cluster, a, b) = two();
    warm(&a);
    let (written, empty) = (create(a.join("written")), create(a.join("empty")));
    written.write_all_at(b"before", 0).expect("pwrite");
    cluster.kill_node(0);
    written.write_all_at(b" and while it is away", 6).expect("pwrite");
    cluster.start_node(0);
    written.write_all_at(b" and after", 27).expect("pwrite");
    empty.write_all_at(b"late", 0).expect("pwrite");
    drop((written, empty));
    assert_eq!(get(b.join("written")), b"before and while it is away and after");
    assert_eq!(get(b.join("empty")), b"late");
    drop(create(a.join("next")));
    cluster.finish();
}

#[test]
fn what_was_written_before_the_mount_died_is_in_the_object() {
    let cluster = Setup::nodes(2).config("[node]\nlease_sec = 2\n").start();
    let (a, b) = (cluster.mount(0), cluster.mount(1));
    warm(&a);
    let held = create(a.join("held"));
    held.write_all_at(b"written", 0).expect("pwrite");
    drop(create(a.join("empty")));
    cluster.kill_mount(0);
    drop(held);
    cluster.start_mount(0);
    until("its size is learnt", || stat(b.join("held")).len() > 0);
    assert_eq!(get(b.join("held")), b"written");
    assert_eq!(get(b.join("empty")), b"");
    cluster.finish();
}

/// The shard learns of files that were closed without an object, and then removes no object. It
/// must never assume so of a file for which another mount, or the same one, has made an object.
#[test]
fn a_file_that_was_closed_empty_leaves_nothing_whoever_opens_it_besides() {
    let (cluster, a, b) = two();
    warm(&a);
    let make = |i: usize| {
        let (here, there) = (a.join(format!("f{i}")), b.join(format!("f{i}")));
        let file = create(&here);
        match i % 7 {
            0 => {}
            1 => drop(open(&there)),
            2 => assert_eq!(get(&there), b""),
            3 => file.set_len(10).and_then(|()| file.set_len(0)).expect("ftruncate"),
            4 => {
                drop(file);
                drop(open(&here));
            }
            5 => {
                drop(file);
                open(&there).write_all_at(b"theirs", 0).expect("pwrite");
            }
            _ => {
                drop(file);
                open(&here).write_all_at(b"ours", 0).expect("pwrite");
                fs::File::create(&there).expect("cut");
            }
        }
        here
    };
    for i in 0..70 {
        fs::remove_file(make(i)).expect("unlink");
    }
    // Enough files that the shard knows of most before they are removed.
    let files: Vec<_> = (100..450).map(make).collect();
    for file in files {
        fs::remove_file(file).expect("unlink");
    }
    until("all objects are removed", || objects(&cluster, 0) == 0);
    cluster.finish();
}

#[test]
fn a_file_removed_while_it_is_open_leaves_nothing() {
    let (cluster, a, _) = two();
    warm(&a);
    for i in 0..20 {
        let file = create(a.join("gone"));
        fs::remove_file(a.join("gone")).expect("unlink");
        if i % 2 == 0 {
            file.write_all_at(b"still here", 0).expect("pwrite");
            assert_eq!(file.metadata().expect("fstat").len(), 10);
        }
    }
    // Checks with fsck that no object is left without its inode.
    cluster.finish();
}

/// Returns the number of requests about names, and about bytes, so far.
fn count_requests(cluster: &Cluster) -> [u64; 2] {
    let status = cluster.status();
    let nodes = status["nodes"].as_array().expect("nodes");
    ["meta_requests", "object_requests"]
        .map(|counter| nodes.iter().map(|node| node[counter].as_u64().expect("a number")).sum())
}

/// A small file costs a request at its creation and one at its close. Its spare file becomes an
/// object later, together with those of other files.
#[test]
fn a_small_file_costs_two_requests_that_are_waited_for() {
    if skip_with_policies("it counts the files of objects, which bytes beside an inode have not") {
        return;
    }
    const FILES: u64 = 320;
    let (cluster, a, b) = two();
    warm(&a);
    let end = Instant::now() + Duration::from_secs(120);
    for round in 0.. {
        let dir = a.join(format!("d{round}"));
        fs::create_dir(&dir).expect("mkdir");
        let before = count_requests(&cluster);
        for i in 0..FILES {
            create(dir.join(i.to_string())).write_all_at(b"bytes", 0).expect("pwrite");
        }
        let now = count_requests(&cluster);
        let [names, bytes] = [0, 1].map(|n| now[n] - before[n]);
        // Background work sends some more.
        if names <= FILES * 2 + FILES / 5 && bytes <= FILES / 5 {
            break;
        }
        assert!(Instant::now() < end, "{names} and {bytes} requests for {FILES} files");
    }
    for i in 0..FILES {
        assert_eq!(get(b.join(format!("d0/{i}"))), b"bytes");
    }
    until("all files are objects", || objects(&cluster, 0) as u64 >= FILES);
    cluster.finish();
}

/// The other mount reads while the files are no objects yet.
#[test]
fn bytes_are_there_for_others_as_soon_as_the_file_is_closed() {
    let (cluster, a, b) = two();
    warm(&a);
    for i in 0..300 {
        let name = format!("f{i}");
        create(a.join(&name)).write_all_at(name.as_bytes(), 0).expect("pwrite");
        match i % 3 {
            0 => assert_eq!(get(b.join(&name)), name.as_bytes()),
            1 => open(b.join(&name)).write_all_at(b"F", 0).expect("pwrite"),
            _ => assert_eq!(get(a.join(&name)), name.as_bytes()),
        }
        assert_eq!(stat(b.join(&name)).len(), name.len() as u64);
    }
    for i in 0..300 {
        let name = format!("{}{i}", if i % 3 == 1 { 'F' } else { 'f' });
        assert_eq!(get(a.join(format!("f{i}"))), name.as_bytes());
    }
    cluster.finish();
}

#[test]
fn files_closed_a_moment_before_survive_the_daemon_and_the_mount() {
    let (cluster, a, b) = two();
    warm(&a);
    let write = |round: u32| {
        for i in 0..40 {
            let file = create(a.join(format!("{round}.{i}")));
            file.write_all_at(format!("bytes of {i}").as_bytes(), 0).expect("pwrite");
        }
    };
    let check = |round: u32| {
        for i in 0..40 {
            let expected = format!("bytes of {i}");
            assert_eq!(get(b.join(format!("{round}.{i}"))), expected.as_bytes(), "{round}.{i}");
        }
    };
    for round in 0..3 {
        write(round);
        cluster.kill_node(0);
        cluster.start_node(0);
        check(round);
    }
    write(3);
    cluster.kill_mount(0);
    check(3);
    cluster.start_mount(0);
    write(4);
    cluster.kill_mount(0);
    cluster.kill_node(0);
    cluster.start_node(0);
    cluster.start_mount(0);
    check(4);
    // Also checks with fsck that no byte is missing.
    cluster.finish();
}
