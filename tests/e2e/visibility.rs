//! Visibility of the changes of one mount on another: the promises of docs/reference/semantics.md
//! between nodes. Every test has a mount per node.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::PathBuf;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};
use tatami_tests::files::{bytes_of, create, get, names, open, open_with, put, refused, stat};
use tatami_tests::map::Map;
use tatami_tests::model::pattern;
use tatami_tests::policies::skip_with_policies;
use tatami_tests::process::wait_ms;
use tatami_tests::{Cluster, Setup};

fn two() -> (Cluster, PathBuf, PathBuf) {
    let cluster = Cluster::start(2);
    let (a, b) = (cluster.mount(0), cluster.mount(1));
    (cluster, a, b)
}

#[test]
fn names_are_seen_at_once() {
    let (cluster, a, b) = two();
    for (here, there) in [(&a, &b), (&b, &a)] {
        // The mount has looked the name up before: it must not cache the absence either.
        assert_eq!(refused(fs::metadata(there.join("new"))), libc::ENOENT);
        put(here.join("new"), "x");
        assert!(there.join("new").is_file());
        fs::create_dir(here.join("dir")).expect("mkdir");
        assert_eq!(names(there), ["dir", "new"]);

        fs::rename(here.join("new"), here.join("dir/moved")).expect("rename");
        assert_eq!(refused(fs::metadata(there.join("new"))), libc::ENOENT);
        assert_eq!(get(there.join("dir/moved")), b"x");

        fs::remove_file(here.join("dir/moved")).expect("unlink");
        assert_eq!(refused(File::open(there.join("dir/moved"))), libc::ENOENT);
        assert!(names(there.join("dir")).is_empty());
        fs::remove_dir(here.join("dir")).expect("rmdir");
        assert_eq!(refused(fs::metadata(there.join("dir"))), libc::ENOENT);
    }
    cluster.finish();
}

#[test]
fn attributes_are_seen_at_once() {
    let (cluster, a, b) = two();
    put(a.join("f"), "12345");
    assert_eq!(stat(b.join("f")).mode() & 0o7777, 0o644);

    fs::set_permissions(a.join("f"), PermissionsExt::from_mode(0o4711)).expect("chmod");
    assert_eq!(stat(b.join("f")).mode() & 0o7777, 0o4711);
    std::os::unix::fs::chown(b.join("f"), Some(12), Some(34)).expect("chown");
    assert_eq!((stat(a.join("f")).uid(), stat(a.join("f")).gid()), (12, 34));

    let long_ago = SystemTime::UNIX_EPOCH + Duration::new(1_000_000_007, 123_456_789);
    open(a.join("f")).set_modified(long_ago).expect("utimens");
    assert_eq!(stat(b.join("f")).modified().expect("mtime"), long_ago);

    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(a.join("f"), "user.colour", b"blue", flags).expect("setxattr");
    let mut value = [0; 16];
    let len = rustix::fs::getxattr(b.join("f"), "user.colour", &mut value).expect("getxattr");
    assert_eq!(&value[..len], b"blue");

    fs::hard_link(b.join("f"), b.join("g")).expect("link");
    assert_eq!(stat(a.join("f")).nlink(), 2);
    assert_eq!(stat(a.join("g")).ino(), stat(b.join("f")).ino());
    cluster.finish();
}

/// The kernel may keep the attributes of a file that it has just created, although the file is open
/// for writing: each change must end that.
#[test]
fn attributes_of_a_new_open_file_are_seen_at_once() {
    let (cluster, a, b) = two();
    let modes = |mode: u32| PermissionsExt::from_mode(mode);
    for i in 0..50 {
        let name = format!("new-{i}");
        let file = create(a.join(&name));
        let now = || file.metadata().expect("fstat");
        assert_eq!((now().len(), now().nlink()), (0, 1));
        match i % 4 {
            // By another mount.
            0 => {
                fs::set_permissions(b.join(&name), modes(0o4600)).expect("chmod");
                assert_eq!(now().mode() & 0o7777, 0o4600);
                fs::hard_link(b.join(&name), b.join(format!("also-{i}"))).expect("link");
                assert_eq!(now().nlink(), 2);
            }
            1 => {
                let other = OpenOptions::new().write(true).open(b.join(&name)).expect("open");
                other.set_len(5).expect("truncate");
                assert_eq!(now().len(), 5);
            }
            // By this one.
            2 => {
                fs::set_permissions(a.join(&name), modes(0o640)).expect("chmod");
                assert_eq!(now().mode() & 0o7777, 0o640);
                file.set_len(4096).expect("truncate");
                assert_eq!(now().len(), 4096);
                Map::shared(&file, 4096).bytes()[..6].copy_from_slice(b"mapped");
                assert_eq!(&get(a.join(&name))[..6], b"mapped");
            }
            _ => {
                let before = now().modified().expect("a time");
                wait_ms(20);
                (&file).write_all(b"seven b").expect("write");
                assert_eq!(now().len(), 7);
                assert!(now().modified().expect("a time") > before);
                assert_eq!(stat(b.join(&name)).len(), 7);
            }
        }
    }
    cluster.finish();
}

#[test]
fn data_are_seen_after_close() {
    let (cluster, a, b) = two();
    for (here, there) in [(&a, &b), (&b, &a)] {
        for round in 0..20u8 {
            // Same size each time: only the bytes distinguish old from new.
            let bytes = pattern(round, 0, 300_000);
            put(here.join("f"), &bytes);
            assert!(get(there.join("f")) == bytes, "round {round}: old bytes after close");
        }
        fs::remove_file(here.join("f")).expect("unlink");
    }
    cluster.finish();
}

#[test]
fn data_changed_in_place_are_seen_after_close() {
    let (cluster, a, b) = two();
    for (here, there) in [(&a, &b), (&b, &a)] {
        let mut expected = pattern(1, 0, 100_000);
        put(here.join("f"), &expected);
        for round in 0..20u8 {
            let (writer, reader) = if round % 2 == 0 { (here, there) } else { (there, here) };
            let at = usize::from(round) * 4999;
            let bytes = pattern(round ^ 0x55, 0, 1000);
            open(writer.join("f")).write_all_at(&bytes, at as u64).expect("pwrite");
            expected[at..at + 1000].copy_from_slice(&bytes);
            assert!(get(reader.join("f")) == expected, "round {round}: old bytes after close");
        }
        fs::remove_file(here.join("f")).expect("unlink");
    }
    cluster.finish();
}

#[test]
fn data_are_seen_after_fsync() {
    let (cluster, a, b) = two();
    for (here, there) in [(&a, &b), (&b, &a)] {
        let file = create(here.join("f"));
        let mut all = Vec::new();
        for round in 0..10u8 {
            let bytes = pattern(round, 0, 50_000);
            file.write_all_at(&bytes, all.len() as u64).expect("pwrite");
            all.extend(bytes);
            file.sync_all().expect("fsync");
            assert_eq!(stat(there.join("f")).len(), all.len() as u64);
            assert!(get(there.join("f")) == all, "round {round}: old bytes after fsync");
        }
        drop(file);
        fs::remove_file(here.join("f")).expect("unlink");
    }
    cluster.finish();
}

#[test]
fn sizes_agree_on_all_nodes() {
    let cluster = Cluster::start(3);
    for writer in 0..3 {
        let name = format!("from-{writer}");
        put(cluster.mount(writer).join(&name), vec![7; 12_345]);
        for (size, change) in [(12_345, 12_345u64), (100, 100), (5_000_000, 5_000_000)] {
            open(cluster.mount((writer + 1) % 3).join(&name)).set_len(change).expect("ftruncate");
            for reader in 0..3 {
                let path = cluster.mount(reader).join(&name);
                assert_eq!(stat(&path).len(), size, "on node {reader}");
                assert_eq!(get(&path).len() as u64, size, "on node {reader}");
            }
        }
        // An append by one node continues where another's ended.
        for node in 0..3 {
            let path = cluster.mount(node).join(&name);
            let mut file = OpenOptions::new().append(true).open(path).expect("open to append");
            file.write_all(b"0123456789").expect("append");
        }
        for reader in 0..3 {
            assert_eq!(stat(cluster.mount(reader).join(&name)).len(), 5_000_030);
        }
    }
    cluster.finish();
}

/// No process syncs or closes.
fn sizes_while_written(cluster: &Cluster) {
    // The bytes are on the writer's node, on the reader's, or on a third. The file is new, existed
    // before, or is cached.
    for (round, (creator, is_known)) in
        [(None, false), (Some(0), false), (Some(1), true), (Some(2), true), (None, true)]
            .into_iter()
            .enumerate()
    {
        let what = format!("file of {creator:?}, known: {is_known}");
        let name = format!("file-{round}");
        let path = |node| cluster.mount(node).join(&name);
        if let Some(creator) = creator {
            put(path(creator), "first");
        }
        let file = match creator {
            None => create(path(0)),
            Some(_) => {
                // The open must drop the cached attributes.
                for _ in 0..if is_known { 3 } else { 0 } {
                    assert_eq!(stat(path(1)).len(), 5);
                }
                open(path(0))
            }
        };
        let reader = File::open(path(1)).expect("open");
        let first = stat(path(1)).modified().expect("mtime");
        // Longer than a tick of the clock of file times.
        wait_ms(20);
        let mut length = if creator.is_some() { 5 } else { 0 };
        assert_eq!(stat(path(1)).len(), length, "{what}");
        for step in 1..5u8 {
            let bytes = pattern(step, 0, 70_001);
            // A forked process does the same at its end: that close does not end the writing.
            drop(file.try_clone().expect("dup"));
            file.write_all_at(&bytes, length).expect("pwrite");
            length += bytes.len() as u64;
            // Bytes for another node are on their way when write has returned.
            let start = Instant::now();
            while stat(path(1)).len() != length && creator.is_some_and(|node| node != 0) {
                assert!(
                    start.elapsed() < Duration::from_secs(60),
                    "{what}: {}",
                    stat(path(1)).len()
                );
                wait_ms(5);
            }
            let asked = [stat(path(1)), reader.metadata().expect("fstat"), stat(path(2))];
            for found in &asked {
                assert_eq!(found.len(), length, "{what}, step {step}");
                assert!(found.modified().expect("mtime") > first, "{what}, step {step}");
                assert!(found.blocks() > 0, "{what}, step {step}");
            }
            let mut tail = vec![0; bytes.len()];
            reader.read_exact_at(&mut tail, length - bytes.len() as u64).expect("pread");
            assert!(tail == bytes, "{what}, step {step}: other bytes");
        }
        // A set time counts more than the writes before it. Those must be reported to the shard
        // before; otherwise the end of a process that another test has forked may report them
        // later.
        file.sync_all().expect("fsync");
        let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_007);
        open(path(2)).set_modified(long_ago).expect("utimens");
        assert_eq!(stat(path(1)).modified().expect("mtime"), long_ago, "{what}");
        file.set_len(9).expect("ftruncate");
        assert_eq!(stat(path(1)).len(), 9, "{what}");
        drop(file);
        assert_eq!((stat(path(1)).len(), stat(path(2)).len()), (9, 9), "{what}");
    }
}

#[test]
fn a_file_that_is_written_elsewhere_is_as_long_as_it_is() {
    let cluster = Cluster::start(3);
    sizes_while_written(&cluster);
    cluster.finish();
}

#[test]
fn the_same_without_passthrough() {
    let cluster = Setup::nodes(3).without_passthrough().start();
    sizes_while_written(&cluster);
    cluster.finish();
}

/// The last reported size and times are available without the node of the bytes.
#[test]
fn the_last_word_counts_while_the_node_of_the_bytes_is_away() {
    let cluster = Setup::nodes(2).config("[volume]\nshards = \"0\"\n").start();
    let (a, b) = (cluster.mount(0), cluster.mount(1));
    let file = create(b.join("f"));
    file.write_all_at(b"synced", 0).expect("pwrite");
    file.sync_all().expect("fsync");
    file.write_all_at(b"not synced", 0).expect("pwrite");
    assert_eq!(stat(a.join("f")).len(), 10);
    cluster.kill_node(1);
    let start = Instant::now();
    // A process that another test has forked may have ended meanwhile; the close of its descriptors
    // then has reported everything.
    let last = stat(a.join("f")).len();
    assert!(matches!(last, 6 | 10), "{last}");
    assert!(start.elapsed() < Duration::from_secs(30), "less than what operations wait for a node");
    cluster.start_node(1);
    let start = Instant::now();
    while stat(a.join("f")).len() != 10 {
        assert!(start.elapsed() < Duration::from_secs(60), "it is back");
        wait_ms(50);
    }
    drop(file);
    cluster.finish();
}

#[test]
fn blocks_agree_on_all_nodes() {
    let (cluster, a, b) = two();
    put(a.join("full"), vec![1; 1 << 20]);
    create(a.join("sparse")).set_len(1 << 30).expect("ftruncate");
    for mount in [&a, &b] {
        assert_eq!(stat(mount.join("full")).blocks(), 2048);
        assert!(stat(mount.join("sparse")).blocks() < 64);
    }
    cluster.finish();
}

#[test]
fn truncation_is_seen_at_once() {
    let (cluster, a, b) = two();
    put(a.join("f"), pattern(3, 0, 200_000));
    assert_eq!(get(b.join("f")).len(), 200_000);
    open(a.join("f")).set_len(70_000).expect("ftruncate");
    assert!(get(b.join("f")) == pattern(3, 0, 70_000));
    open(b.join("f")).set_len(90_000).expect("ftruncate");
    let bytes = get(a.join("f"));
    assert!(bytes[..70_000] == pattern(3, 0, 70_000)[..]);
    assert!(bytes[70_000..].iter().all(|b| *b == 0) && bytes.len() == 90_000);
    open_with(b.join("f"), libc::O_TRUNC);
    assert_eq!(stat(a.join("f")).len(), 0);
    cluster.finish();
}

#[test]
fn appends_from_two_mounts_are_atomic() {
    const RECORDS: usize = 200;
    const LEN: usize = 1000;
    let (cluster, a, b) = two();
    put(a.join("log"), "");
    let start = Barrier::new(2);
    std::thread::scope(|scope| {
        for (writer, mount) in [&a, &b].into_iter().enumerate() {
            let start = &start;
            scope.spawn(move || {
                let mut log = OpenOptions::new().append(true).open(mount.join("log")).expect("log");
                start.wait();
                for record in 0..RECORDS {
                    let mut line = format!("{writer} {record} ").into_bytes();
                    line.resize(LEN - 1, b'.');
                    line.push(b'\n');
                    assert_eq!(log.write(&line).expect("append"), LEN);
                }
            });
        }
    });
    let text = String::from_utf8(get(b.join("log"))).expect("whole records are text");
    assert_eq!(text.len(), 2 * RECORDS * LEN);
    let mut next = [0, 0];
    for line in text.lines() {
        assert_eq!(line.len(), LEN - 1, "records were mixed");
        let mut words = line.split(' ');
        let mut number = || words.next().and_then(|w| w.parse::<usize>().ok()).expect("a number");
        let (writer, record) = (number(), number());
        assert_eq!(record, next[writer], "records of one writer keep their order");
        next[writer] += 1;
    }
    assert_eq!(next, [RECORDS, RECORDS]);
    cluster.finish();
}

/// Runs `attempt` on all mounts at the same time and counts the winners.
fn race(mounts: &[PathBuf], attempt: impl Fn(&PathBuf) -> bool + Sync) -> usize {
    let start = Barrier::new(mounts.len());
    std::thread::scope(|scope| {
        let racers: Vec<_> = mounts
            .iter()
            .map(|mount| {
                scope.spawn(|| {
                    start.wait();
                    attempt(mount)
                })
            })
            .collect();
        racers.into_iter().map(|r| usize::from(r.join().expect("a racer"))).sum()
    })
}

#[test]
fn exclusive_creation_has_one_winner() {
    let cluster = Cluster::start(3);
    let mounts: Vec<PathBuf> = (0..3).map(|node| cluster.mount(node)).collect();
    for round in 0..50 {
        let file = format!("lock-{round}");
        let won = |mount: &PathBuf| {
            let path = mount.join(&file);
            OpenOptions::new().write(true).create_new(true).open(path).is_ok()
        };
        assert_eq!(race(&mounts, won), 1, "O_EXCL");
        let dir = format!("dir-{round}");
        assert_eq!(race(&mounts, |m| fs::create_dir(m.join(&dir)).is_ok()), 1, "mkdir");
        // Each racer has a target name of its own: renaming a file onto itself succeeds.
        let own = AtomicUsize::new(0);
        let away = |m: &PathBuf| {
            let target = format!("moved-{}", own.fetch_add(1, Ordering::Relaxed));
            fs::rename(m.join(&file), m.join(&dir).join(target)).is_ok()
        };
        assert_eq!(race(&mounts, away), 1, "rename of one name");
        let moved = PathBuf::from(&dir).join(&names(mounts[0].join(&dir))[0]);
        let linked = |m: &PathBuf| fs::hard_link(m.join(&moved), m.join(&file)).is_ok();
        assert_eq!(race(&mounts, linked), 1, "link");
        assert_eq!(race(&mounts, |m| fs::remove_file(m.join(&file)).is_ok()), 1, "unlink");
    }
    cluster.finish();
}

#[test]
fn creation_without_exclusion_gives_everybody_the_same_file() {
    let cluster = Cluster::start(3);
    let mounts: Vec<PathBuf> = (0..3).map(|node| cluster.mount(node)).collect();
    for round in 0..30 {
        let name = format!("shared-{round}");
        let all = race(&mounts, |mount| {
            let path = mount.join(&name);
            OpenOptions::new()
                .append(true)
                .create(true)
                .open(path)
                .is_ok_and(|mut file| file.write_all(b"one line\n").is_ok())
        });
        assert_eq!(all, 3);
        assert_eq!(get(mounts[round % 3].join(&name)).len(), 3 * 9);
    }
    cluster.finish();
}

#[test]
fn mapped_stores_are_seen_after_msync() {
    let (cluster, a, b) = two();
    for (here, there) in [(&a, &b), (&b, &a)] {
        put(here.join("f"), vec![0; 64 * 1024]);
        // Through the mount of its node and through the other one.
        for writer in [here, there] {
            let file = open(writer.join("f"));
            let map = Map::shared(&file, 64 * 1024);
            for round in 1..5u8 {
                map.bytes()[10_000] = round;
                map.bytes()[50_000] = round + 100;
                map.sync();
                for reader in [here, there] {
                    let bytes = get(reader.join("f"));
                    let seen = (bytes[10_000], bytes[50_000]);
                    let (by, on) = (writer.display(), reader.display());
                    assert_eq!(seen, (round, round + 100), "stored by {by}, read on {on}");
                }
            }
        }
        fs::remove_file(here.join("f")).expect("unlink");
    }
    cluster.finish();
}

#[test]
fn an_unlinked_open_file_stays_usable_on_its_mount() {
    let (cluster, a, b) = two();
    for (creator, user) in [(&a, &a), (&a, &b), (&b, &a)] {
        put(creator.join("f"), pattern(9, 0, 100_000));
        let file = open(user.join("f"));
        fs::remove_file(user.join("f")).expect("unlink");
        assert_eq!(refused(fs::metadata(creator.join("f"))), libc::ENOENT);
        assert_eq!(file.metadata().expect("fstat").nlink(), 0);
        assert!(bytes_of(&file) == pattern(9, 0, 100_000));
        file.write_all_at(b"still here", 99_995).expect("pwrite");
        file.sync_all().expect("fsync");
        assert_eq!(file.metadata().expect("fstat").len(), 100_005);
        assert_eq!(&bytes_of(&file)[99_995..], b"still here");
        file.set_len(3).expect("ftruncate");
        assert_eq!(bytes_of(&file).len(), 3);
    }
    cluster.finish();
}

#[test]
fn a_replaced_open_file_stays_usable_on_its_mount() {
    let (cluster, a, b) = two();
    for user in [&a, &b] {
        put(a.join("f"), "old bytes");
        let old = open(user.join("f"));
        put(user.join("g"), "new bytes");
        fs::rename(user.join("g"), user.join("f")).expect("rename over");
        assert_eq!(bytes_of(&old), b"old bytes");
        assert_eq!(get(a.join("f")), b"new bytes");
    }
    cluster.finish();
}

#[test]
fn a_file_lies_on_the_node_of_its_creator() {
    if skip_with_policies("it counts the files of objects, which regions have not") {
        return;
    }
    let cluster = Cluster::start(3);
    for node in 0..3 {
        let path = cluster.mount(node).join(format!("from-{node}"));
        put(&path, vec![1; 10_000]);
        for asked in 0..3 {
            let same = cluster.mount(asked).join(format!("from-{node}"));
            let said = cluster.tatami("where --json", &[same.to_str().expect("a path in UTF-8")]);
            let report: serde_json::Value = serde_json::from_str(&said.out).expect("JSON");
            assert!(
                report.to_string().contains(&format!("\"node\":{node}")),
                "tatami where {}: {}",
                same.display(),
                said.out
            );
        }
        // The bytes are on that node's disk, and on no other.
        for other in 0..3 {
            let objects = cluster.dir().join(format!("node{other}/objects"));
            let kept = files_below(&objects);
            assert_eq!(kept, usize::from(other <= node), "objects of node {other}");
        }
    }
    cluster.finish();
}

fn files_below(dir: &std::path::Path) -> usize {
    let Ok(list) = fs::read_dir(dir) else { return 0 };
    list.flatten().map(|e| if e.path().is_dir() { files_below(&e.path()) } else { 1 }).sum()
}

/// A file that no process has opened for writing exists by name alone.
#[test]
fn creating_a_file_makes_no_object() {
    let (cluster, a, _) = two();
    let mode = rustix::fs::Mode::from_raw_mode(0o644);
    for i in 0..100 {
        let file = rustix::fs::FileType::RegularFile;
        rustix::fs::mknodat(rustix::fs::CWD, a.join(format!("empty-{i}")), file, mode, 0)
            .expect("mknod");
    }
    assert_eq!(files_below(&cluster.dir().join("node0/objects")), 0);
    cluster.finish();
}

#[test]
fn everything_is_there_again_after_down_and_up() {
    let cluster = Cluster::start(2);
    put(cluster.mount(0).join("here"), pattern(1, 0, 50_000));
    put(cluster.mount(1).join("there"), pattern(2, 0, 50_000));
    fs::create_dir(cluster.mount(1).join("dir")).expect("mkdir");
    cluster.down();
    assert!(!cluster.mount(0).join("here").exists(), "nothing is mounted after down");
    cluster.up();
    assert!(get(cluster.mount(1).join("here")) == pattern(1, 0, 50_000));
    assert!(get(cluster.mount(0).join("there")) == pattern(2, 0, 50_000));
    assert!(cluster.mount(0).join("dir").is_dir());
    cluster.finish();
}

#[test]
fn a_mode_that_forbids_writing_does_not_disturb_who_has_it_open() {
    let (cluster, a, b) = two();
    for mount in [&a, &b] {
        // As git and tar do: create for writing with a mode that forbids it.
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o444)
            .open(mount.join("ro"))
            .expect("create with mode 0444");
        file.write_all(b"written").expect("write");
        drop(file);
        assert_eq!(get(a.join("ro")), b"written");
        assert_eq!(get(b.join("ro")), b"written");
        fs::remove_file(mount.join("ro")).expect("unlink");
    }
    cluster.finish();
}
