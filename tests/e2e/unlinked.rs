//! Files that lose their last name on one mount while they are open on others.

use rustix::fs::{Mode, OFlags};
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::{Duration, Instant};
use tatami_tests::files::{bytes_of, create, get, open, put, refused, stat};
use tatami_tests::map::Map;
use tatami_tests::model::pattern;
use tatami_tests::process::wait_ms;
use tatami_tests::{Cluster, Setup};

const LEN: usize = 300_000;

/// The way to open the file where it stays open.
#[derive(Clone, Copy, Debug)]
enum How {
    Read,
    /// By the call that would also have created it.
    ReadOrMake,
    Write,
    Both,
}

impl How {
    fn open(self, path: &Path) -> Vec<File> {
        let read = |flags| {
            let file = rustix::fs::open(path, OFlags::RDONLY | flags, Mode::RUSR);
            File::from(file.unwrap_or_else(|e| panic!("open {}: {e}", path.display())))
        };
        match self {
            How::Read => vec![read(OFlags::empty())],
            How::ReadOrMake => vec![read(OFlags::CREATE)],
            How::Write => vec![open(path)],
            How::Both => vec![read(OFlags::empty()), open(path)],
        }
    }
}

/// The way to remove its name.
#[derive(Clone, Copy, Debug)]
enum Loss {
    Unlink,
    Replace,
    /// One of two names, in another directory, first.
    Names,
}

impl Loss {
    fn of(self, path: &Path) {
        let other = path.with_extension("other");
        match self {
            Loss::Unlink => fs::remove_file(path).expect("unlink"),
            Loss::Replace => {
                put(&other, "another file");
                fs::rename(other, path).expect("rename over");
                assert_eq!(get(path), b"another file");
                fs::remove_file(path).expect("unlink");
            }
            Loss::Names => {
                fs::create_dir(&other).expect("mkdir");
                fs::hard_link(path, other.join("name")).expect("link");
                fs::remove_file(path).expect("unlink");
                fs::remove_file(other.join("name")).expect("unlink");
                fs::remove_dir(other).expect("rmdir");
            }
        }
    }
}

/// Backing files on all nodes.
fn objects(cluster: &Cluster) -> usize {
    let of_node = |node| {
        let objects = cluster.dir().join(format!("node{node}/objects"));
        let shelves = fs::read_dir(objects).into_iter().flatten().flatten();
        shelves.filter_map(|s| fs::read_dir(s.path()).ok()).map(Iterator::count).sum::<usize>()
    };
    (0..cluster.nodes()).map(of_node).sum()
}

fn wait_until_freed(cluster: &Cluster, why: &str) {
    let start = Instant::now();
    while objects(cluster) > 0 {
        assert!(start.elapsed() < Duration::from_secs(120), "{why}: {} stay", objects(cluster));
        wait_ms(50);
    }
}

#[test]
fn a_file_removed_elsewhere_stays_usable() {
    let cluster = Cluster::start(3);
    // Made on the user's node, on the remover's, on the third; the directory lies on any node.
    for (round, (creator, how, loss)) in [
        (1, How::Read, Loss::Unlink),
        (0, How::Read, Loss::Replace),
        (2, How::ReadOrMake, Loss::Names),
        (1, How::Write, Loss::Names),
        (0, How::Both, Loss::Unlink),
        (2, How::Write, Loss::Replace),
        (0, How::ReadOrMake, Loss::Unlink),
        (2, How::Both, Loss::Names),
    ]
    .into_iter()
    .enumerate()
    {
        let what = format!("file of node {creator}, {how:?}, {loss:?}");
        let name = format!("dir-{round}/file");
        let [remover, user, creator] = [0, 1, creator].map(|node| cluster.mount(node).join(&name));
        fs::create_dir(creator.parent().expect("a directory")).expect("mkdir");
        put(&creator, pattern(9, 0, LEN));
        let mut files = how.open(&user);
        loss.of(&remover);
        assert_eq!(refused(fs::metadata(&user)), libc::ENOENT);
        for file in &files {
            assert_eq!(file.metadata().expect("fstat").nlink(), 0, "{what}");
            assert!(bytes_of(file) == pattern(9, 0, LEN), "{what}: other bytes");
        }
        cluster.fsck();
        let again = File::open(format!("/proc/self/fd/{}", files[0].as_raw_fd())).expect("open");
        if files.len() > 1 {
            drop(files.remove(0));
            wait_ms(200);
        }
        if let (How::Write | How::Both, Some(file)) = (how, files.last()) {
            file.write_all_at(b"still here", LEN as u64 - 5).expect("pwrite");
            file.sync_all().expect("fsync");
            assert_eq!(file.metadata().expect("fstat").len(), LEN as u64 + 5, "{what}");
            file.set_len(3).expect("ftruncate");
            assert_eq!(bytes_of(&again).len(), 3, "{what}");
        }
        drop(files);
        wait_ms(200);
        assert!(again.metadata().is_ok_and(|m| m.nlink() == 0), "{what}: opened once more");
        assert!(!bytes_of(&again).is_empty(), "{what}: opened once more");
        drop(again);
        wait_until_freed(&cluster, &what);
    }
    cluster.finish();
}

#[test]
fn a_mapping_of_a_file_removed_elsewhere_stays() {
    let cluster = Cluster::start(2);
    for creator in 0..2 {
        put(cluster.mount(creator).join("mapped"), pattern(5, 0, LEN));
        let file = File::open(cluster.mount(1).join("mapped")).expect("open");
        let map = Map::private(&file, LEN);
        drop(file);
        fs::remove_file(cluster.mount(0).join("mapped")).expect("unlink");
        wait_ms(200);
        assert!(map.bytes() == pattern(5, 0, LEN), "file of node {creator}");
        drop(map);
        wait_until_freed(&cluster, "the mapping is gone");
    }
    cluster.finish();
}

/// Clients with open files report the state that no disk has, before a restarted daemon serves
/// others.
#[test]
fn it_stays_usable_when_daemons_die() {
    let cluster = Cluster::start(2);
    let restart = || {
        (0..2).for_each(|node| cluster.kill_node(node));
        (0..2).for_each(|node| cluster.start_node(node));
    };
    for when in ["before", "after", "before and after"] {
        let mut held = Vec::new();
        for creator in 0..2 {
            for how in [How::Read, How::Write] {
                let name = format!("{how:?}-{creator}");
                put(cluster.mount(creator).join(&name), pattern(7, 0, LEN));
                held.extend(how.open(&cluster.mount(1).join(&name)));
            }
        }
        if when.starts_with("before") {
            restart();
        }
        for entry in fs::read_dir(cluster.mount(0)).expect("a listing") {
            fs::remove_file(entry.expect("an entry").path()).expect("unlink");
        }
        if when.ends_with("after") {
            restart();
        }
        for file in &held {
            assert_eq!(file.metadata().expect("fstat").nlink(), 0, "{when}");
            assert!(bytes_of(file) == pattern(7, 0, LEN), "{when}");
        }
        drop(held);
        wait_until_freed(&cluster, when);
    }
    cluster.finish();
}

#[test]
fn what_a_dead_mount_had_open_is_freed() {
    let cluster = Setup::nodes(2).config("[node]\nlease_sec = 2\n").start();
    let mut held = Vec::new();
    for how in [How::Read, How::Write] {
        let name = format!("{how:?}");
        put(cluster.mount(0).join(&name), pattern(1, 0, 4 << 20));
        held.extend(how.open(&cluster.mount(1).join(&name)));
        fs::remove_file(cluster.mount(0).join(&name)).expect("unlink");
    }
    assert!(held.iter().all(|file| file.metadata().is_ok_and(|m| m.nlink() == 0)));
    cluster.kill_mount(1);
    drop(held);
    wait_until_freed(&cluster, "their mount is dead");
    cluster.start_mount(1);
    cluster.finish();
}

/// A closed file is not kept, even if it was reported as open before.
#[test]
fn what_is_closed_everywhere_is_freed_at_once() {
    let cluster = Cluster::start(2);
    let (a, b) = (cluster.mount(0), cluster.mount(1));
    for round in 0..50 {
        let made = create(a.join("f"));
        made.write_all_at(&pattern(2, 0, 1000), 0).expect("pwrite");
        drop(made);
        // Read again and again, so that closes and opens cross.
        for _ in 0..round % 7 {
            assert_eq!(get(b.join("f")).len(), 1000);
        }
        fs::remove_file(if round % 2 == 0 { &a } else { &b }.join("f")).expect("unlink");
    }
    put(a.join("last"), "x");
    assert_eq!(stat(b.join("last")).len(), 1);
    fs::remove_file(a.join("last")).expect("unlink");
    wait_until_freed(&cluster, "all are closed");
    cluster.finish();
}
