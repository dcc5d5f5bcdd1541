//! Full disks: the error says so, nothing is damaged, and freed space can be used again.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tatami_tests::command::{program, run};
use tatami_tests::files::{create, get, names, open, put};
use tatami_tests::model::pattern;
use tatami_tests::policies::skip_with_policies;
use tatami_tests::{Cluster, Setup};

/// New files do not go to another node.
const REFUSE: &str = "[client]\nwhen_full = \"refuse\"\n";

/// Gives a node a disk of its own, in memory.
fn disk_on(node: u16, size: &'static str) -> impl Fn(&Path) + 'static {
    move |dir| {
        let place = dir.join(format!("node{node}"));
        fs::create_dir_all(&place).expect("mkdir");
        run(program("mount -t tmpfs -o")
            .arg(format!("mode=0711,size={size}"))
            .arg("tmpfs")
            .arg(place));
    }
}

/// Writes 64 KiB files into `folder` until an operation fails. Returns the number of whole files
/// and the error.
fn fill(folder: &Path) -> (u64, io::Error) {
    for number in 0.. {
        let attempt = || {
            let mut file = fs::File::create(folder.join(format!("fill-{number}")))?;
            file.write_all(&pattern(number as u8, 0, 64 * 1024))?;
            file.sync_all()
        };
        if let Err(error) = attempt() {
            return (number, error);
        }
        assert!(number < 100_000, "the disk is not small");
    }
    unreachable!("the loop ends by returning")
}

fn check_and_empty(folder: &Path, whole: u64) {
    for number in 0..whole {
        let path = folder.join(format!("fill-{number}"));
        assert!(get(&path) == pattern(number as u8, 0, 64 * 1024), "{}", path.display());
    }
    for name in names(folder).iter().filter(|n| n.starts_with("fill-")) {
        fs::remove_file(folder.join(name)).expect("unlink on a full disk");
    }
}

/// Objects of removed files are freed later: waits for the space.
fn write_again(path: PathBuf) {
    let bytes = pattern(9, 0, 4 << 20);
    let start = Instant::now();
    loop {
        let attempt = || {
            let file = fs::File::create(&path)?;
            file.write_all_at(&bytes, 0)?;
            file.sync_all()
        };
        match attempt() {
            Ok(()) => break,
            Err(e) if e.raw_os_error() == Some(libc::ENOSPC) => {
                assert!(start.elapsed() < Duration::from_secs(120), "space does not come back");
                wait();
            }
            Err(other) => panic!("{}: {other}", path.display()),
        }
    }
    assert!(get(path) == bytes);
}

/// Waits until `bytes` bytes are free on the disk of `dir`.
fn wait_for_space(dir: &Path, bytes: u64) {
    let free = || {
        let disk = rustix::fs::statvfs(dir).expect("statvfs");
        disk.f_bavail * disk.f_frsize
    };
    let start = Instant::now();
    while free() < bytes {
        assert!(start.elapsed() < Duration::from_secs(120), "the space does not come back");
        wait();
    }
}

#[allow(clippy::disallowed_methods)] // the space comes back without an event
fn wait() {
    std::thread::sleep(Duration::from_millis(50));
}

/// A node's disk is full: its files get ENOSPC, through its own mount and
/// through another; everything else goes on.
#[test]
fn a_full_disk_refuses_and_recovers() {
    if skip_with_policies("its small disk has no room for the journal of a region device") {
        return;
    }
    let cluster = Setup::nodes(2).config(REFUSE).prepare(disk_on(1, "24m")).start();
    let (a, b) = (cluster.mount(0), cluster.mount(1));
    put(b.join("before"), pattern(1, 0, 1 << 20));
    drop(create(b.join("elsewhere")));
    for round in 0..2 {
        let (whole, error) = fill(&b);
        assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "{error}");
        assert!(whole > 16, "{whole} files of 64 KiB on 24 MiB");

        // From the other node: the error comes at write, fsync or close, and is not lost.
        let file = open(a.join("elsewhere"));
        let written = file.write_all_at(&pattern(2, 0, 8 << 20), 0).and_then(|()| file.sync_all());
        assert_eq!(written.map_err(|e| e.raw_os_error()), Err(Some(libc::ENOSPC)));
        file.set_len(0).expect("cut to nothing on a full disk");
        drop(file);

        // The rest of the volume does not notice.
        put(a.join("other-node"), pattern(3, 0, 1 << 20));
        assert!(get(b.join("other-node")) == pattern(3, 0, 1 << 20));
        assert!(get(a.join("before")) == pattern(1, 0, 1 << 20));

        check_and_empty(if round == 0 { &b } else { &a }, whole);
        write_again(b.join("after"));
        fs::remove_file(b.join("after")).expect("unlink");
        wait_for_space(&cluster.dir().join("node1"), 8 << 20);
    }
    cluster.finish();
}

/// The disk of a node is full to the last byte of user data. Names still work on it, for its own
/// clients and for others, in every directory, until its reserve is used up. Then names can still
/// be removed.
#[test]
fn names_go_on_where_bytes_have_filled_the_disk() {
    if skip_with_policies("its small disk has no room for the journal of a region device") {
        return;
    }
    for (size, names_at_least) in [("24m", 500), ("200m", 5000)] {
        let cluster = Setup::nodes(2).config(REFUSE).prepare(disk_on(1, size)).start();
        let (a, b) = (cluster.mount(0), cluster.mount(1));
        for number in 0..8 {
            fs::create_dir(a.join(format!("dir-{number}"))).expect("mkdir");
        }
        let (whole, error) = fill(&b);
        assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "{error}");
        for number in 0..names_at_least {
            let path = a.join(format!("dir-{}/name-{number}", number % 8));
            match number % 4 {
                0 => fs::create_dir(&path).map(drop),
                3 => fs::hard_link(a.join("dir-1/name-1"), &path),
                _ => fs::File::create(&path).map(drop),
            }
            .unwrap_or_else(|e| panic!("{size}, {}: {e}", path.display()));
        }
        put(a.join("dir-3/with-bytes"), pattern(7, 0, 1 << 20));
        assert!(get(b.join("dir-3/with-bytes")) == pattern(7, 0, 1 << 20));
        cluster.kill_node(1);
        cluster.start_node(1);
        for number in 0..8 {
            fs::create_dir(b.join(format!("dir-{number}/after"))).expect("mkdir after a restart");
        }
        check_and_empty(&b, whole);
        cluster.finish();
    }
}

/// New files of a node with a full disk go to the next one, which `tatami where` shows; existing
/// files of the full one stay there.
#[test]
fn new_files_go_to_the_next_node_when_the_disk_is_full() {
    if skip_with_policies("its small disk has no room for the journal of a region device") {
        return;
    }
    let cluster = Setup::nodes(2).prepare(disk_on(1, "24m")).start();
    let b = cluster.mount(1);
    let node_of = |name: &str| {
        let said = cluster.tatami("where", &["--json", b.join(name).to_str().expect("UTF-8")]);
        let report: serde_json::Value = serde_json::from_str(&said.out).expect("JSON");
        report["files"][0]["extents"][0]["node"].as_u64()
    };
    let first = create(b.join("first"));
    for number in 0..600 {
        put(b.join(format!("f-{number}")), pattern(number as u8, 0, 64 * 1024));
    }
    for number in 0..600 {
        let path = b.join(format!("f-{number}"));
        assert!(get(&path) == pattern(number as u8, 0, 64 * 1024), "{}", path.display());
    }
    assert_eq!((node_of("f-0"), node_of("f-599")), (Some(1), Some(0)));
    let written = |n: u64| first.write_all_at(&pattern(1, 0, 64 * 1024), n << 16);
    let refused =
        (0..1000).find_map(|n| written(n).err()).expect("its bytes stay on the full disk");
    assert_eq!(refused.raw_os_error(), Some(libc::ENOSPC));
    drop(first);
    cluster.finish();
}

/// The disk with the names is full of bytes: names can still be removed, and no acknowledged change
/// is lost, also over a restart.
#[test]
fn a_full_disk_below_the_names_damages_nothing() {
    let cluster = Setup::nodes(2).config(REFUSE).prepare(disk_on(0, "200m")).start();
    let (a, b) = (cluster.mount(0), cluster.mount(1));
    put(b.join("on-1"), pattern(5, 0, 100_000));
    let (whole, error) = fill(&a);
    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "{error}");
    assert!(whole > 100, "{whole} files of 64 KiB on 200 MiB");
    // Names on the full disk are made, or refused with ENOSPC; never half.
    let mut made = 0;
    for number in 0..2000 {
        match fs::File::create(b.join(format!("name-{number}"))) {
            Ok(_) => made += 1,
            Err(e) => {
                assert_eq!(e.raw_os_error(), Some(libc::ENOSPC), "{e}");
                break;
            }
        }
    }
    let there = names(&b).iter().filter(|n| n.starts_with("name-")).count();
    assert_eq!(there, made);
    cluster.kill_node(0);
    cluster.start_node(0);
    assert!(get(a.join("on-1")) == pattern(5, 0, 100_000));
    assert_eq!(names(&b).iter().filter(|n| n.starts_with("name-")).count(), made);
    check_and_empty(&a, whole);
    write_again(a.join("after"));
    cluster.finish();
}

/// `df` shows less room after a file and the same room after its removal.
#[test]
fn df_follows_what_is_written_and_removed() {
    if skip_with_policies("its small disk has no room for the journal of a region device") {
        return;
    }
    let cluster = Setup::nodes(2).prepare(disk_on(1, "64m")).start();
    let mount = cluster.mount(1);
    let free = || {
        let volume = rustix::fs::statvfs(&mount).expect("statvfs");
        volume.f_bfree * volume.f_frsize
    };
    let total = |cluster: &Cluster| {
        let volume = rustix::fs::statvfs(cluster.mount(0)).expect("statvfs");
        volume.f_blocks * volume.f_frsize
    };
    let disk = rustix::fs::statvfs(cluster.dir()).expect("statvfs of the disk of node 0");
    assert_eq!(total(&cluster), disk.f_blocks * disk.f_frsize + (64 << 20));
    // Other programs use the disk of node 0, too. Only the small disk is exact, so the differences
    // are read from its own file system.
    let small = || {
        let disk = rustix::fs::statvfs(cluster.dir().join("node1")).expect("statvfs");
        disk.f_bavail * disk.f_frsize
    };
    let before = small();
    put(mount.join("f"), vec![1; 16 << 20]);
    assert!(before - small() >= 16 << 20);
    assert!(free() > 0);
    fs::remove_file(mount.join("f")).expect("unlink");
    wait_for_space(&cluster.dir().join("node1"), before - (1 << 20));
    cluster.finish();
}
