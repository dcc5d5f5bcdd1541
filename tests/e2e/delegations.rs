//! Cached names and attributes of mounts: they cost no request, and they are never stale, even if
//! the mounts or daemons that hold the delegations die. Every test has a mount per node.

use rustix::process::Signal;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tatami_tests::files::{create, fill_directory, names, put, refused, stat};
use tatami_tests::policies::{are_policies_wanted, skip_with_policies};
use tatami_tests::{Cluster, job, process};
use tatami_wire::partition::{name_hash, name_seed};

/// No wait in these tests is longer.
const PATIENCE: Duration = Duration::from_secs(120);

fn two() -> (Cluster, PathBuf, PathBuf) {
    let cluster = Cluster::start(2);
    let (a, b) = (cluster.mount(0), cluster.mount(1));
    (cluster, a, b)
}

/// Returns the number of requests about names so far.
fn requests(cluster: &Cluster) -> u64 {
    let status = cluster.status();
    let nodes = status["nodes"].as_array().expect("nodes");
    nodes.iter().map(|node| node["meta_requests"].as_u64().expect("a number")).sum()
}

/// Returns the number of requests about names when it does not grow: no mount reports closed files
/// any more.
fn settled_requests(cluster: &Cluster) -> u64 {
    // A mount collects closed files for 50 ms. Background work sends requests twice a second, and
    // on a busy machine a status takes as long.
    const SAME: u32 = 2;
    const QUIET: Duration = Duration::from_millis(150);
    let deadline = Instant::now() + PATIENCE;
    let (mut before, mut same, mut since) = (requests(cluster), 0, Instant::now());
    while same < SAME || since.elapsed() < QUIET {
        process::pause();
        let now = requests(cluster);
        if now == before {
            same += 1;
        } else {
            (before, same, since) = (now, 0, Instant::now());
        }
        assert!(Instant::now() < deadline, "the number of requests grows and grows");
    }
    before
}

/// Repeats `work` until `rounds` of it have cost no request. Background work sends some, but not at
/// every moment.
fn becomes_free(cluster: &Cluster, rounds: u64, mut work: impl FnMut()) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let before = requests(cluster);
        (0..rounds).for_each(|_| work());
        let cost = requests(cluster) - before;
        if cost == 0 {
            return;
        }
        assert!(Instant::now() < deadline, "{cost} requests for {rounds} rounds");
    }
}

/// Makes `mount` cache `path`, so that it sends no request for it.
fn warm(cluster: &Cluster, path: &Path) {
    becomes_free(cluster, 500, || drop(fs::metadata(path)));
}

/// Returns the number of read calls of a mount so far: one for each request of the kernel, and few
/// others.
fn kernel_requests(cluster: &Cluster, node: u16) -> u64 {
    let path = format!("/proc/{}/io", cluster.mount_pid(node));
    let text = fs::read_to_string(path).expect("a process of ours");
    let calls = text.lines().find_map(|line| line.strip_prefix("syscr: ")).expect("syscr");
    calls.parse().expect("a number")
}

/// Repeats `work` until a round of it costs `names` requests of the kernel: one for each name of a
/// file, and none for the directories above it. A few more are allowed in all rounds together: the
/// kernel asks for a directory again after 2 s.
fn is_kept(cluster: &Cluster, node: u16, names: u64, mut work: impl FnMut()) {
    const ROUNDS: u64 = 100;
    let deadline = Instant::now() + PATIENCE;
    loop {
        let before = kernel_requests(cluster, node);
        (0..ROUNDS).for_each(|_| work());
        let cost = kernel_requests(cluster, node) - before;
        if cost <= ROUNDS * names + ROUNDS / 10 {
            return;
        }
        assert!(Instant::now() < deadline, "{cost} requests of the kernel for {ROUNDS} rounds");
    }
}

fn mode(path: impl AsRef<Path>) -> u32 {
    stat(path).mode() & 0o7777
}

fn set_mode(path: impl AsRef<Path>, mode: u32) {
    fs::set_permissions(path, PermissionsExt::from_mode(mode)).expect("chmod");
}

#[test]
fn what_is_known_costs_no_request() {
    let (cluster, a, b) = two();
    fs::create_dir(a.join("d")).expect("mkdir");
    put(a.join("d/f"), "x");
    for mount in [&a, &b] {
        becomes_free(&cluster, 500, || {
            assert_eq!(stat(mount.join("d/f")).len(), 1);
            assert_eq!(refused(fs::metadata(mount.join("d/none"))), libc::ENOENT);
        });
    }
    cluster.finish();
}

/// Returns the line of `ls -lU` for each entry, without the total.
fn listed(dir: &Path) -> BTreeSet<String> {
    let out = Command::new("ls").arg("-lU").arg(dir).env("LC_ALL", "C").output().expect("ls");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8_lossy(&out.stdout).lines().skip(1).map(str::to_owned).collect()
}

#[test]
fn listing_with_attributes_asks_for_a_thousand_at_a_time() {
    for (nodes, files) in [(1, 4000), (2, 500)] {
        let cluster = Cluster::start(nodes);
        let (first, last) = (cluster.mount(0), cluster.mount(nodes - 1));
        let deadline = Instant::now() + PATIENCE;
        for round in 0.. {
            let d = format!("d{round}");
            fs::create_dir(first.join(&d)).expect("mkdir");
            (0..files).for_each(|n| drop(create(first.join(&d).join(n.to_string()))));
            // The name of the directory is not a part of the listing, nor are closes of the files.
            stat(last.join(&d));
            let before = settled_requests(&cluster);
            assert_eq!(listed(&last.join(&d)).len(), files);
            let cost = requests(&cluster) - before;
            // ls asks for an attribute of a directory that has some: its policies.
            let policies = u64::from(are_policies_wanted());
            if cost <= files.div_ceil(1000) as u64 + policies {
                break;
            }
            assert!(Instant::now() < deadline, "{cost} requests for {files} entries");
        }
        cluster.finish();
    }
}

#[test]
fn what_a_listing_has_told_is_never_old() {
    let (cluster, a, b) = two();
    for (d, files) in [("small", 200), ("large", 2000)] {
        let (here, there) = (a.join(d), b.join(d));
        fill_directory([&a, &b], d, files);
        for round in 0..6 {
            let (mine, other) = if round % 2 == 0 { (&here, &there) } else { (&there, &here) };
            assert_eq!(listed(other), listed(mine), "round {round}");
            let file = |n: usize| mine.join((n + round).to_string());
            set_mode(file(10), 0o604);
            fs::remove_file(file(20)).expect("unlink");
            fs::rename(file(30), mine.join(format!("new{round}"))).expect("rename");
            put(file(40), vec![0; round + 1]);
            let attribute = |name: &str| {
                let flags = rustix::fs::XattrFlags::empty();
                rustix::fs::setxattr(file(50), name, b"some", flags).expect("setxattr");
                let (mut value, at) = ([0; 8], other.join((50 + round).to_string()));
                rustix::fs::getxattr(at, name, &mut value).expect("getxattr")
            };
            for mount in [mine, other] {
                let none = rustix::fs::getxattr(mount.join("5"), "security.selinux", &mut [0; 8]);
                assert_eq!(none, Err(rustix::io::Errno::OPNOTSUPP));
            }
            assert_eq!(attribute("user.colour"), 4, "that there was none is known no more");
            assert_eq!(attribute("security.selinux"), 4);
            assert_eq!(mode(other.join((10 + round).to_string())), 0o604);
            assert_eq!(refused(fs::metadata(other.join((20 + round).to_string()))), libc::ENOENT);
            assert_eq!(refused(fs::metadata(other.join((30 + round).to_string()))), libc::ENOENT);
            assert_eq!(stat(other.join(format!("new{round}"))).len(), 0);
            assert_eq!(stat(other.join((40 + round).to_string())).len(), round as u64 + 1);
            assert_eq!(listed(other), listed(mine), "after round {round}");
        }
    }
    cluster.finish();
}

/// Makes the directory `large`, which splits.
fn make_large_directory(cluster: &Cluster) {
    let (one, two) = (cluster.mount(0), cluster.mount(1));
    fill_directory([&one, &two], "large", 2500);
    fs::create_dir(one.join("large/sub")).expect("mkdir");
    put(one.join("large/sub/file"), "x");
}

#[test]
fn a_large_directory_that_is_known_costs_no_request() {
    let cluster = Cluster::start(3);
    let large_dir = cluster.mount(0).join("large");
    make_large_directory(&cluster);
    let volume = job::client(&cluster, 0).volume();
    let partition = |name: &str| name_hash(name_seed(volume), name.as_bytes()) >> 60;
    let ways = [true, false].map(|is_first| {
        let names = (0..).map(|n| format!("way{n}"));
        let way = names.into_iter().find(|name| (partition(name) == 0) == is_first);
        let way = way.expect("one of so many names");
        fs::create_dir(large_dir.join(&way)).expect("mkdir");
        put(large_dir.join(&way).join("file"), "x");
        way
    });
    // It splits where two clients change it within a second, which a busy disk may prevent.
    let deadline = Instant::now() + PATIENCE;
    loop {
        let dir = cluster.tatami("dir --json", &[large_dir.to_str().expect("a path in UTF-8")]);
        if dir.out.matches("\"shard\"").count() > 1 {
            break;
        }
        assert!(Instant::now() < deadline, "it has split: {}", dir.out);
        fs::create_dir(large_dir.join("again")).expect("mkdir");
        fs::remove_dir(cluster.mount(1).join("large/again")).expect("rmdir");
    }
    for node in [0, 1] {
        let dir = cluster.mount(node).join("large");
        // A path through the directory touches only one of its partitions: the first, whose reply
        // has nothing about the others, or another one.
        for way in &ways {
            is_kept(&cluster, node, 500, || {
                assert_eq!(stat(dir.join(way).join("file")).len(), 1);
            });
        }
        warm(&cluster, &dir);
        let mut n = 0;
        becomes_free(&cluster, 500, || {
            n += 1;
            stat(dir.join((n % 97).to_string()));
            assert_eq!(refused(fs::metadata(dir.join(format!("none{}", n % 13)))), libc::ENOENT);
            assert_eq!(stat(&dir).len(), 2503);
        });
    }
    cluster.finish();
}

#[test]
fn in_a_large_directory_nothing_is_old() {
    let cluster = Cluster::start(3);
    make_large_directory(&cluster);
    let seen = |node: u16| {
        let dir = cluster.mount(node).join("large");
        // A mount that asks often may see counts and times that are a second old, but not after an
        // fsync.
        File::open(&dir).expect("open").sync_all().expect("fsync");
        let of = stat(dir);
        (of.len(), of.nlink(), of.mode(), of.modified().expect("mtime"), of.ctime_nsec())
    };
    for round in 0..12u16 {
        let (mine, other) = (round % 3, (round + 1) % 3);
        let [here, there] = [mine, other].map(|node| cluster.mount(node).join("large"));
        let quiet = Instant::now();
        // The other mount caches most of the directory.
        while round % 3 == 0 && quiet.elapsed() < Duration::from_secs(3) {
            (0..300).for_each(|n| drop(fs::metadata(there.join((n * 7 % 2000).to_string()))));
            stat(there.join("sub/file"));
        }
        let file = |n: u16| (n + round).to_string();
        let before = seen(other);
        assert_eq!(seen(mine), before, "round {round}");
        drop(create(here.join(format!("new{round}"))));
        assert_eq!((seen(other).0, seen(other).1), (before.0 + 1, before.1), "round {round}");
        fs::create_dir(here.join(format!("dir{round}"))).expect("mkdir");
        assert_eq!((seen(other).0, seen(other).1), (before.0 + 2, before.1 + 1), "round {round}");
        fs::rename(here.join(file(100)), here.join(format!("renamed{round}"))).expect("rename");
        assert_eq!(refused(fs::metadata(there.join(file(100)))), libc::ENOENT);
        assert_eq!(
            (stat(there.join(format!("renamed{round}"))).len(), seen(other)),
            (0, seen(mine))
        );
        fs::remove_file(here.join(file(200))).expect("unlink");
        assert_eq!(refused(fs::metadata(there.join(file(200)))), libc::ENOENT);
        assert_eq!(seen(other).0, before.0 + 1, "round {round}");
        set_mode(here.clone(), 0o700 + u32::from(round));
        assert_eq!(seen(other).2 & 0o777, 0o700 + u32::from(round));
        fs::remove_dir(here.join(format!("dir{round}"))).expect("rmdir");
        assert_eq!(seen(other), seen(mine), "round {round}");
        assert_eq!(names(&there).len() as u64, seen(other).0);
    }
    cluster.finish();
}

/// The kernel does not even send a request to the mount.
/// Several mounts change a large directory. The size and the times that a mount shows are those of
/// a second ago at most, and the mode is never old.
#[test]
fn of_a_large_directory_that_others_change_counts_are_a_second_old_at_most() {
    let cluster = Cluster::start(2);
    let [here, there] = [0, 1].map(|node| cluster.mount(node).join("large"));
    make_large_directory(&cluster);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0.. {
                drop(create(here.join(format!("more{n}"))));
                fs::remove_file(here.join(format!("more{n}"))).expect("unlink");
                if stop.load(Ordering::SeqCst) {
                    return;
                }
            }
        });
        for round in 0..20u32 {
            // Often enough to be given old counts.
            (0..50).for_each(|n| drop(fs::metadata(there.join(n.to_string()))));
            set_mode(&here, 0o700 + round);
            assert_eq!(mode(&there) & 0o777, 0o700 + round);
        }
        stop.store(true, Ordering::SeqCst);
    });
    fs::create_dir(here.join("last")).expect("mkdir");
    let entries = names(&there).len() as u64;
    for dir in [&here, &there] {
        File::open(dir).expect("open").sync_all().expect("fsync");
        let shown = stat(dir);
        assert_eq!((shown.len(), shown.nlink()), (entries, 4), "after an fsync");
    }
    // Without one, after a second.
    let begun = Instant::now();
    fs::remove_dir(here.join("last")).expect("rmdir");
    while (stat(&there).len(), stat(&there).nlink()) != (entries - 1, 3) {
        assert!(begun.elapsed() < PATIENCE, "an old size is shown for ever");
    }
    cluster.finish();
}

/// The requests of one name after the other, in a directory that two mounts change in turns.
#[test]
fn in_a_directory_that_others_change_a_name_costs_few_requests() {
    // The first ones lie in a directory that is small enough to be asked for exactly.
    const NAMES: u64 = 2 * 500;
    let (cluster, a, b) = two();
    fs::create_dir(a.join("busy")).expect("mkdir");
    let in_turns = |work: &dyn Fn(PathBuf)| {
        let before = requests(&cluster);
        for n in 0..NAMES / 2 {
            for (mount, by) in [(&a, "a"), (&b, "b")] {
                work(mount.join("busy").join(format!("{by}{n}")));
            }
        }
        requests(&cluster) - before
    };
    let deadline = Instant::now() + PATIENCE;
    loop {
        let costs = [
            in_turns(&|path| drop(create(path))),
            in_turns(&|path| assert!(path.exists())),
            in_turns(&|path| fs::remove_file(path).expect("unlink")),
            in_turns(&|path| fs::create_dir(path).expect("mkdir")),
            in_turns(&|path| fs::remove_dir(path).expect("rmdir")),
        ];
        // A quarter more is for what is asked once in a while: the directory's size and times.
        let most = [2, 0, 1, 2, 1].map(|each| NAMES * each + NAMES / 4);
        if costs.iter().zip(most).all(|(cost, most)| *cost <= most) {
            break;
        }
        assert!(Instant::now() < deadline, "{costs:?} requests for {NAMES} names, not {most:?}");
    }
    cluster.finish();
}

#[test]
fn a_path_through_a_busy_directory_is_never_old() {
    let (cluster, a, b) = two();
    fs::create_dir_all(a.join("busy/below")).expect("mkdir");
    put(a.join("busy/below/f"), "x");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0.. {
                drop(create(a.join(format!("busy/{n}"))));
                drop(create(a.join(format!("busy/below/{n}"))));
                if stop.load(Ordering::SeqCst) {
                    return;
                }
            }
        });
        let walk = |path: &str| {
            (0..100).for_each(|n| drop(fs::metadata(b.join(path).join(n.to_string()))));
            fs::metadata(b.join(path).join("f"))
        };
        for round in 0..20u32 {
            assert_eq!(walk("busy/below").expect("it is there").len(), 1);
            set_mode(a.join("busy"), 0o700 + round);
            assert_eq!(mode(b.join("busy")), 0o700 + round);
            fs::create_dir(a.join("other")).expect("mkdir");
            put(a.join("other/f"), "four");
            assert_eq!(walk("other").expect("it is there").len(), 4);
            fs::rename(a.join("other"), a.join("third")).expect("rename");
            assert_eq!(refused(walk("other")), libc::ENOENT);
            assert_eq!(walk("third").expect("it is there").len(), 4);
            fs::remove_file(a.join("third/f")).expect("unlink");
            assert_eq!(refused(walk("third")), libc::ENOENT);
            fs::remove_dir(a.join("third")).expect("rmdir");
            assert_eq!(refused(fs::metadata(b.join("third"))), libc::ENOENT);
        }
        stop.store(true, Ordering::SeqCst);
    });
    cluster.finish();
}

#[test]
fn what_is_known_the_kernel_keeps() {
    let (cluster, a, b) = two();
    fs::create_dir_all(a.join("d/e")).expect("mkdir");
    put(a.join("d/e/f"), "x");
    for (node, mount) in [(0, &a), (1, &b)] {
        let (file, none) = (mount.join("d/e/f"), mount.join("d/e/none"));
        is_kept(&cluster, node, 2, || {
            assert_eq!(stat(&file).len(), 1);
            assert_eq!(refused(fs::metadata(&none)), libc::ENOENT);
        });
        is_kept(&cluster, node, 0, || assert!(stat(mount.join("d/e")).is_dir()));
        let open = File::open(&file).expect("open");
        is_kept(&cluster, node, 0, || {
            assert_eq!(open.metadata().expect("fstat").len(), 1);
        });
    }
    cluster.finish();
}

#[test]
fn what_the_kernel_keeps_is_never_old() {
    let (cluster, a, b) = two();
    for round in 1..5u32 {
        for (node, here, there) in [(0, &a, &b), (1, &b, &a)] {
            // Of a directory that another client has changed, the kernel keeps no name for 10 s.
            let at = format!("{round}.{node}");
            let (here, there) = (&here.join(&at), &there.join(&at));
            fs::create_dir_all(a.join(&at).join("e")).expect("mkdir");
            put(a.join(&at).join("e/f"), "some");
            let (dir, file, none) = (here.join("e"), here.join("e/f"), here.join("e/none"));
            let open = File::open(&file).expect("open");
            let size = stat(&file).len();
            is_kept(&cluster, node, 1, || {
                assert_eq!(open.metadata().expect("fstat").len(), size);
                assert_eq!(refused(fs::metadata(&none)), libc::ENOENT);
                assert!(fs::metadata(&dir).expect("stat").is_dir());
            });
            match round {
                1 => {
                    set_mode(there.join("e/f"), 0o604);
                    assert_eq!(open.metadata().expect("fstat").mode() & 0o7777, 0o604);
                    set_mode(there.join("e/f"), 0o600);
                    assert_eq!(mode(&file), 0o600);
                }
                2 => {
                    put(there.join("e/none"), "it is");
                    assert_eq!(stat(&none).len(), 5);
                    fs::remove_file(there.join("e/none")).expect("unlink");
                    assert_eq!(refused(fs::metadata(&none)), libc::ENOENT);
                }
                3 => {
                    put(there.join("e/f"), vec![0; size as usize + 1]);
                    assert_eq!(open.metadata().expect("fstat").len(), size + 1);
                    assert_eq!(stat(&file).len(), size + 1);
                }
                _ => {
                    fs::rename(there.join("e"), there.join("g")).expect("rename");
                    assert_eq!(refused(fs::metadata(&file)), libc::ENOENT);
                    assert_eq!(refused(fs::metadata(&dir)), libc::ENOENT);
                    assert_eq!(stat(here.join("g/f")).len(), size);
                    fs::rename(there.join("g"), there.join("e")).expect("rename");
                    assert_eq!(stat(&file).len(), size);
                }
            }
        }
    }
    cluster.finish();
}

/// In a directory that this mount made, and no other client uses, the absence of a name needs no
/// request.
#[test]
fn making_files_in_a_directory_of_ones_own_asks_once() {
    let (cluster, a, _) = two();
    let deadline = Instant::now() + PATIENCE;
    for n in 0.. {
        let dir = a.join(format!("d{n}"));
        fs::create_dir(&dir).expect("mkdir");
        let before = requests(&cluster);
        for i in 0..500 {
            drop(create(dir.join(i.to_string())));
        }
        let cost = requests(&cluster) - before;
        // One for each file, and a share of the requests that report closed files.
        if cost <= 500 * 6 / 5 {
            break;
        }
        assert!(Instant::now() < deadline, "{cost} requests for 500 files");
    }
    cluster.finish();
}

#[test]
fn whoever_knows_something_learns_of_every_change() {
    let (cluster, a, b) = two();
    fs::create_dir(a.join("d")).expect("mkdir");
    put(a.join("d/f"), "");
    for round in 0..60u32 {
        for (here, there) in [(&a, &b), (&b, &a)] {
            // Often enough that no more requests are needed.
            let know = |path: PathBuf| (0..3).for_each(|_| drop(fs::metadata(&path)));
            let made = format!("d/{round}");
            ["d/f", "d", &made].iter().for_each(|name| know(there.join(name)));
            set_mode(here.join("d/f"), 0o600 + round % 0o100);
            assert_eq!(mode(there.join("d/f")), 0o600 + round % 0o100);
            put(here.join("d/f"), vec![0; round as usize]);
            assert_eq!(stat(there.join("d/f")).len(), u64::from(round));
            assert_eq!(refused(fs::metadata(there.join(&made))), libc::ENOENT);
            put(here.join(&made), "");
            assert_eq!(stat(there.join(&made)).len(), 0);
            fs::hard_link(here.join("d/f"), here.join("d/link")).expect("link");
            assert_eq!(stat(there.join("d/f")).nlink(), 2);
            fs::rename(here.join("d/link"), here.join(&made)).expect("rename");
            assert_eq!(stat(there.join(&made)).ino(), stat(there.join("d/f")).ino());
            assert_eq!(refused(fs::metadata(there.join("d/link"))), libc::ENOENT);
            fs::remove_file(here.join(&made)).expect("unlink");
            assert_eq!(refused(File::open(there.join(&made))), libc::ENOENT);
            assert_eq!(stat(there.join("d/f")).nlink(), 1);
            sync_directories(&[here.join("d"), there.join("d")]);
            assert_eq!(stat(there.join("d")).mtime_nsec(), stat(here.join("d")).mtime_nsec());
        }
    }
    cluster.finish();
}

/// Ends the use of old counts of directories that both mounts change again and again.
fn sync_directories(dirs: &[PathBuf]) {
    dirs.iter().for_each(|dir| File::open(dir).expect("open").sync_all().expect("fsync"));
}

/// Names that move between directories on any nodes, and inodes that are elsewhere than their
/// names.
#[test]
fn what_is_known_of_several_nodes_is_never_old() {
    const DIRS: u32 = 6;
    let cluster = Cluster::start(4);
    let mounts: Vec<_> = (0..4).map(|node| cluster.mount(node)).collect();
    let dir = |n: u32| format!("d{}", n % DIRS);
    (0..DIRS).for_each(|n| fs::create_dir(mounts[0].join(dir(n))).expect("mkdir"));
    for round in 0..40u32 {
        let (here, there) = (&mounts[round as usize % 4], &mounts[(round as usize + 1) % 4]);
        let (old, new) = (dir(round), dir(round * 5 + 1));
        let (from, to) = (format!("{old}/f{round}"), format!("{new}/g{round}"));
        let know = |name: &str| (0..3).for_each(|_| drop(fs::metadata(there.join(name))));
        put(here.join(&from), "x");
        [&old, &new, &from, &to].into_iter().for_each(|name| know(name));
        let ino = stat(there.join(&from)).ino();
        fs::rename(here.join(&from), here.join(&to)).expect("rename");
        assert_eq!(stat(there.join(&to)).ino(), ino);
        assert_eq!(refused(fs::metadata(there.join(&from))), libc::ENOENT);
        know(&to);
        set_mode(here.join(&to), 0o600 + round % 8);
        assert_eq!(mode(there.join(&to)), 0o600 + round % 8);
        fs::hard_link(here.join(&to), here.join(&from)).expect("link");
        assert_eq!((stat(there.join(&to)).nlink(), stat(there.join(&from)).nlink()), (2, 2));
        fs::remove_file(here.join(&to)).expect("unlink");
        assert_eq!(refused(File::open(there.join(&to))), libc::ENOENT);
        assert_eq!(stat(there.join(&from)).nlink(), 1);
        let sub = format!("{old}/sub{round}");
        fs::create_dir(here.join(&sub)).expect("mkdir");
        know(&sub);
        put(there.join(&sub).join("below"), "");
        assert_eq!(names(here.join(&sub)), ["below"]);
        assert_eq!(refused(fs::remove_dir(here.join(&sub))), libc::ENOTEMPTY);
        let moved = format!("{new}/moved{round}");
        fs::rename(there.join(&sub), there.join(&moved)).expect("rename");
        assert_eq!(refused(fs::metadata(here.join(&sub))), libc::ENOENT);
        assert_eq!(names(here.join(&moved)), ["below"]);
        for name in [&old, &new] {
            sync_directories(&[here.join(name), there.join(name)]);
            assert_eq!(stat(there.join(name)).mtime_nsec(), stat(here.join(name)).mtime_nsec());
            assert_eq!(stat(there.join(name)).nlink(), stat(here.join(name)).nlink());
        }
    }
    cluster.finish();
}

/// Cached answers are right until the change, and never used after it.
#[test]
fn a_mount_that_was_stopped_holds_others_up_for_a_term_and_then_asks() {
    let (cluster, a, b) = two();
    put(a.join("f"), "");
    set_mode(a.join("f"), 0o600);
    warm(&cluster, &b.join("f"));
    let pid = cluster.mount_pid(1);
    process::signal(pid, Signal::STOP);
    let changed = std::thread::spawn({
        let f = a.join("f");
        move || set_mode(f, 0o640)
    });
    let deadline = Instant::now() + PATIENCE;
    while !changed.is_finished() {
        assert!(Instant::now() < deadline, "the stopped mount holds others up");
        std::thread::yield_now();
    }
    changed.join().expect("changed");
    assert_eq!(mode(a.join("f")), 0o640);
    process::signal(pid, Signal::CONT);
    assert_eq!(mode(b.join("f")), 0o640);
    warm(&cluster, &b.join("f"));
    cluster.finish();
}

#[test]
fn a_mount_that_was_killed_holds_nobody_up() {
    let (cluster, a, b) = two();
    put(a.join("f"), "");
    warm(&cluster, &b.join("f"));
    cluster.kill_mount(1);
    set_mode(a.join("f"), 0o640);
    cluster.start_mount(1);
    assert_eq!(mode(b.join("f")), 0o640);
    cluster.finish();
}

/// The daemon that granted the delegation dies. Its next incarnation knows which clients may have
/// one.
#[test]
fn what_is_known_is_not_old_after_the_daemon_was_killed() {
    let (cluster, a, b) = two();
    fs::create_dir(a.join("d")).expect("mkdir");
    for round in 0..4u32 {
        let (f, there) = (a.join(format!("d/{round}")), b.join(format!("d/{round}")));
        put(&f, "");
        set_mode(&f, 0o600);
        warm(&cluster, &there);
        // One of the two daemons has the directory.
        let victim = (round % 2) as u16;
        cluster.kill_node(victim);
        cluster.start_node(victim);
        set_mode(&f, 0o640);
        assert_eq!(mode(&there), 0o640);
        warm(&cluster, &there);
    }
    // Nor when the mount that held the delegation died with the daemon.
    cluster.kill_mount(1);
    (0..2).for_each(|node| cluster.kill_node(node));
    (0..2).for_each(|node| cluster.start_node(node));
    set_mode(a.join("d/0"), 0o644);
    cluster.start_mount(1);
    assert_eq!(mode(b.join("d/0")), 0o644);
    assert_eq!(names(b.join("d")).len(), 4);
    cluster.finish();
}

/// As tar unpacks a file: the commit of the bytes goes with the time, and the owner, which stays as
/// it is, with the mode.
#[test]
fn unpacking_a_file_costs_three_requests() {
    if skip_with_policies("each write beside an inode is a request, too") {
        return;
    }
    const FILES: u64 = 200;
    let (cluster, a, b) = two();
    let time = std::time::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    let deadline = Instant::now() + PATIENCE;
    for n in 0.. {
        let dir = format!("d{n}");
        fs::create_dir(a.join(&dir)).expect("mkdir");
        let before = requests(&cluster);
        for i in 0..FILES {
            let file = create(a.join(&dir).join(i.to_string()));
            file.write_all_at(b"bytes", 0).expect("pwrite");
            file.set_modified(time).expect("futimens");
            let (uid, gid) = (rustix::process::getuid(), rustix::process::getgid());
            rustix::fs::fchown(&file, Some(uid), Some(gid)).expect("fchown");
            file.set_permissions(PermissionsExt::from_mode(0o640)).expect("fchmod");
        }
        let cost = requests(&cluster) - before;
        for i in 0..FILES {
            let there = stat(b.join(&dir).join(i.to_string()));
            let attributes = (there.len(), there.mtime(), there.mode() & 0o7777);
            assert_eq!(attributes, (5, 1_000_000_000, 0o640));
        }
        // Closed files are reported together.
        if cost <= FILES * 3 + FILES / 5 {
            break;
        }
        assert!(Instant::now() < deadline, "{cost} requests for {FILES} files");
    }
    cluster.finish();
}

#[test]
fn an_owner_that_stays_moves_the_time_of_the_last_change() {
    let (cluster, a, b) = two();
    let changed = |m: &fs::Metadata| (m.ctime(), m.ctime_nsec());
    for (n, writes) in [false, true, false, true].into_iter().enumerate() {
        let (here, there) = (a.join(n.to_string()), b.join(n.to_string()));
        let file = create(&here);
        file.write_all_at(b"bytes", 0).expect("pwrite");
        file.sync_all().expect("fsync");
        for asks in [true, false] {
            let before = changed(&file.metadata().expect("fstat"));
            // The clock of the shard may count in milliseconds.
            process::pause();
            if writes {
                file.write_all_at(b"more bytes", 0).expect("pwrite");
            }
            let mode = stat(&here).mode();
            let middle = changed(&file.metadata().expect("fstat"));
            process::pause();
            file.set_permissions(PermissionsExt::from_mode(mode)).expect("fchmod");
            if asks {
                let after = changed(&file.metadata().expect("fstat"));
                assert!(after > middle, "{after:?} after {middle:?}");
                assert_eq!(changed(&stat(&there)), after);
            } else {
                rustix::fs::fchown(&file, Some(rustix::process::getuid()), None).expect("fchown");
            }
            assert!(middle >= before);
        }
        let before = changed(&stat(&there));
        drop(file);
        assert!(changed(&stat(&there)) >= before);
        assert_eq!(changed(&stat(&here)), changed(&stat(&there)));
    }
    cluster.finish();
}
