//! Directories with policies, and small files that lie beside their inode.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use tatami_tests::Cluster;
use tatami_tests::command::{ask, run, shell};
use tatami_tests::files::{bytes_of, get, open, put, stat};

/// An ordinary user.
const USER: u32 = 4021;
const LIMIT: usize = 4096;

/// Returns a volume of two nodes in which all files of up to 4 KiB lie beside their inode.
fn start() -> Cluster {
    let cluster = Cluster::start(2);
    cluster.tatami("set", &["--inline", "4k", ":/"]);
    cluster
}

fn json_of(text: &str) -> serde_json::Value {
    serde_json::from_str(text).expect("JSON")
}

/// Whether the bytes of a file lie beside its inode.
fn is_inline(cluster: &Cluster, path: &str) -> bool {
    let said = json_of(&cluster.tatami("where", &["--json", path]).out);
    let file = &said["files"][0];
    let inline = file["inline"].as_bool().expect("it says so");
    assert!(!inline || file["extents"].as_array().is_some_and(Vec::is_empty), "{said}");
    inline
}

fn policy_of(cluster: &Cluster, path: &str) -> serde_json::Value {
    let said = json_of(&cluster.tatami("get", &["--json", path]).out);
    said["directories"][0]["policies"]["inline"].clone()
}

/// A policy is set by the command or as an attribute, is inherited, and goes along with copies.
#[test]
fn policies_are_inherited_and_carried_by_copies() {
    let cluster = start();
    let (one, two) = (cluster.mount(0), cluster.mount(1));
    run(&mut shell(&one, "mkdir -p a/b && echo small > a/b/f && mkdir plain"));
    assert_eq!(policy_of(&cluster, ":/a/b"), 4096);
    assert!(is_inline(&cluster, ":/a/b/f"));
    let said = cluster.tatami("where", &[":/a/b/f"]).out;
    assert!(said.contains("beside the inode"), "{said}");
    assert!(cluster.tatami("stat", &[":/a/b/f"]).out.contains("beside the inode"));
    assert!(cluster.tatami("get", &[":/a"]).out.contains("4096"));
    run(&mut shell(&two, "getfattr -n user.tatami.inline --only-values a | grep -qx 4096"));
    cluster.tatami("set", &["--inline", "0", ":/plain"]);
    run(&mut shell(&two, "setfattr -n user.tatami.inline -v 1k a/b && mkdir plain/sub"));
    assert_eq!(policy_of(&cluster, ":/a/b"), 1024);
    assert_eq!(policy_of(&cluster, ":/plain/sub"), 0);
    run(&mut shell(
        &one,
        "cp -a a plain/copy && rsync -aX a/ plain/synced && tar --xattrs -cf plain/t.tar a && \
         mkdir plain/x && tar --xattrs --xattrs-include='*' -xf plain/t.tar -C plain/x",
    ));
    for copy in [":/plain/copy/b", ":/plain/synced/b", ":/plain/x/a/b"] {
        assert_eq!(policy_of(&cluster, copy), 1024, "{copy}");
    }
    for (words, code) in [
        ("setfattr -n user.tatami.inline -v 65k a", 1),
        ("setfattr -n user.tatami.colour -v 1 a", 1),
        ("setfattr -n user.tatami.inline -v 4k a/b/f", 1),
    ] {
        let said = ask(&mut shell(&one, words));
        assert!(said.code == Some(code) && said.err.contains("Invalid argument"), "{said:?}");
    }
    for words in [&["--inline", "65k", ":/a"][..], &[":/a"], &["--inline", "4k", ":/a/b/f"]] {
        let said = ask(cluster.command("set").args(words));
        assert_eq!(said.code, Some(2), "{words:?}: {said:?}");
    }
    let said = ask(cluster.command_as(USER, "set").args(["--inline", "4k", ":/plain"]));
    assert!(said.code == Some(1) && said.err.contains("ermission denied"), "{said:?}");
    cluster.tatami("set", &["--unset", "inline", ":/plain"]);
    assert_eq!(policy_of(&cluster, ":/plain"), serde_json::Value::Null);
    cluster.finish();
}

/// Makes `f` on mount `one`, and changes its bytes and its size by both mounts. After writes that
/// mount `one` must see, the function calls `settle`.
pub fn rewrite_small_file(one: &Path, two: &Path, settle: impl Fn(&File)) {
    put(one.join("f"), b"some bytes");
    assert_eq!(get(two.join("f")), b"some bytes");
    let file = open(two.join("f"));
    file.write_all_at(b"SOME", 0).expect("pwrite");
    file.write_all_at(b"end", 100).expect("pwrite");
    settle(&file);
    assert_eq!(stat(one.join("f")).len(), 103);
    let bytes = get(one.join("f"));
    assert!(bytes.starts_with(b"SOME bytes\0") && bytes.ends_with(b"\0end"));
    file.set_len(4).expect("ftruncate");
    file.set_len(6).expect("ftruncate");
    assert_eq!(get(one.join("f")), b"SOME\0\0");
    drop(file);
    // Truncated by a path, and at an open.
    run(&mut shell(one, "truncate -s 2 f && test \"$(cat f)\" = SO && echo new > f"));
    assert_eq!(get(two.join("f")), b"new\n");
}

/// A small file is what a file is, seen by two mounts, and has no object.
#[test]
fn a_small_file_beside_its_inode_is_a_file() {
    let cluster = start();
    let (one, two) = (cluster.mount(0), cluster.mount(1));
    // Without an fsync: each change is seen when its call has returned.
    rewrite_small_file(&one, &two, |_| ());
    // A rewrite of the same length, with the old time: no mount shows the old bytes.
    run(&mut shell(&one, "touch -d 2001-02-03 f && cat f && cat f"));
    run(&mut shell(&two, "cat f && printf 'NEW\\n' > f && touch -d 2001-02-03 f"));
    assert_eq!(get(one.join("f")), b"NEW\n");
    // Names, and a file without one.
    run(&mut shell(&one, "ln f g && mv g h && chmod 600 h && test $(stat -c %h f) = 2"));
    let file = open(one.join("h"));
    run(&mut shell(&one, "rm f && rm h"));
    file.write_all_at(&[5; LIMIT + 1], 0).expect("pwrite");
    assert!(bytes_of(&file) == [5; LIMIT + 1]);
    drop(file);
    // Room that is reserved, and a mapping.
    let script = "import mmap, os\n\
        f = os.open('m', os.O_RDWR | os.O_CREAT)\n\
        os.write(f, b'mapped bytes')\n\
        m = mmap.mmap(f, 12, mmap.MAP_PRIVATE)\n\
        assert m[:6] == b'mapped'\n\
        os.posix_fallocate(f, 0, 100)\n\
        assert os.fstat(f).st_size == 100 and os.pread(f, 200, 0)[:12] == b'mapped bytes'\n";
    put(cluster.dir().join("map.py"), script);
    run(&mut shell(&one, "python3 ../../map.py || python3 ../map.py"));
    cluster.finish();
}

/// Returns a line that no other writer writes.
fn line_of(writer: usize, n: usize) -> Vec<u8> {
    format!("{writer:3} {n:6} {:>20}\n", writer * 1_000_000 + n).into_bytes()
}

/// Writers on two mounts append to one file, which outgrows its limit meanwhile. It has each line
/// once. A reader that has had it open from the start sees all of it.
#[test]
fn a_file_grows_out_of_its_inode_under_appends_of_two_mounts() {
    const WRITERS: usize = 4;
    const LINES: usize = 200;
    let cluster = start();
    for round in 0..3 {
        let name = format!("log{round}");
        put(cluster.mount(0).join(&name), b"");
        let mut reader = File::open(cluster.mount(1).join(&name)).expect("open");
        let write = |writer: usize| {
            let path = cluster.mount((writer % 2) as u16).join(&name);
            std::thread::spawn(move || {
                let mut file = OpenOptions::new().append(true).open(path).expect("open");
                (0..LINES).for_each(|n| file.write_all(&line_of(writer, n)).expect("append"));
                file.sync_all().expect("fsync");
            })
        };
        let writers: Vec<_> = (0..WRITERS).map(write).collect();
        let mut seen = Vec::new();
        while writers.iter().any(|writer| !writer.is_finished()) {
            reader.seek(SeekFrom::Start(0)).expect("seek");
            let mut now = Vec::new();
            reader.read_to_end(&mut now).expect("read");
            assert!(now.starts_with(&seen), "what was read once stays");
            seen = now;
        }
        writers.into_iter().for_each(|writer| writer.join().expect("it wrote"));
        let mut expected: Vec<Vec<u8>> =
            (0..WRITERS).flat_map(|w| (0..LINES).map(move |n| line_of(w, n))).collect();
        reader.seek(SeekFrom::Start(0)).expect("seek");
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes).expect("read");
        assert_eq!(bytes, get(cluster.mount(0).join(&name)));
        let mut lines: Vec<Vec<u8>> =
            bytes.split_inclusive(|b| *b == b'\n').map(<[u8]>::to_vec).collect();
        lines.sort();
        expected.sort();
        assert!(lines == expected, "{} lines of {}", lines.len(), expected.len());
        assert!(!is_inline(&cluster, &format!(":/{name}")));
    }
    cluster.finish();
}

/// What an fsync has acknowledged is there after the death of all daemons, beside the inode and
/// after the file has left it.
#[test]
fn synced_bytes_survive_the_death_of_all_daemons() {
    let cluster = start();
    let write = |name: &str, len: usize| {
        let options = OpenOptions::new().write(true).create(true).mode(0o644).clone();
        let mut file = options.open(cluster.mount(0).join(name)).expect("open");
        file.write_all(&vec![7; len]).expect("write");
        file.sync_all().expect("fsync");
        file
    };
    let (small, large) = (write("small", 100), write("large", LIMIT));
    large.write_all_at(&[8; 10], LIMIT as u64).expect("pwrite");
    large.sync_all().expect("fsync");
    for node in 0..2 {
        cluster.kill_node(node);
    }
    for node in 0..2 {
        cluster.start_node(node);
    }
    assert!(is_inline(&cluster, ":/small") && !is_inline(&cluster, ":/large"));
    assert!(get(cluster.mount(1).join("small")) == [7; 100]);
    assert!(get(cluster.mount(1).join("large")) == [&[7; LIMIT][..], &[8; 10]].concat());
    // The open files go on.
    small.write_all_at(&[9; 5], 100).expect("pwrite");
    drop((small, large));
    assert_eq!(stat(cluster.mount(1).join("small")).len(), 105);
    cluster.finish();
}

/// A mount dies while its files grow. Each file is whole, beside its inode or in its object.
#[test]
fn a_mount_that_dies_while_files_grow_leaves_whole_files() {
    let cluster = start();
    let dir = cluster.mount(0);
    for name in 0..40 {
        put(dir.join(name.to_string()), [name as u8; LIMIT]);
    }
    let grow = std::thread::spawn(move || {
        for name in 0..40u8 {
            let file = OpenOptions::new().append(true).open(dir.join(name.to_string()));
            let grown = file.and_then(|mut file| file.write_all(&[name; LIMIT]));
            if grown.is_err() {
                return;
            }
        }
    });
    // The kill comes while some file is on its way.
    while (0..40).all(|name| stat(cluster.mount(1).join(name.to_string())).len() == LIMIT as u64) {
        std::thread::yield_now();
    }
    cluster.kill_mount(0);
    grow.join().expect("it ends");
    cluster.start_mount(0);
    for name in 0..40u8 {
        let bytes = get(cluster.mount(1).join(name.to_string()));
        assert!(bytes.len() >= LIMIT && bytes.iter().all(|b| *b == name), "{name}");
    }
    cluster.finish();
}

/// Tools and libraries that write in other ways: a user without a mount, MPI-like pieces by
/// relayout, a tree that is copied in and out, and nodes that are emptied.
#[test]
fn commands_work_on_files_beside_their_inodes() {
    let cluster = start();
    let one = cluster.mount(0);
    run(&mut shell(&one, "mkdir -m 777 d && echo small > d/f && head -c 9000 /dev/zero > d/g"));
    let work = cluster.dir().join("work");
    fs::create_dir(&work).expect("made");
    run(&mut shell(&work, "mkdir t && echo a > t/a && head -c 5000 /dev/urandom > t/b"));
    let path = |name: &str| work.join(name).to_str().expect("UTF-8").to_owned();
    cluster.tatami("cp", &["-r", &path("t"), ":/d/t"]);
    cluster.tatami("cp", &["-r", ":/d/t", &path("back")]);
    run(&mut shell(&work, "diff -r t back"));
    assert!(is_inline(&cluster, ":/d/t/a") && !is_inline(&cluster, ":/d/t/b"));
    run(cluster.command_as(USER, "cp").args([&path("t/b"), ":/d/of-user"]));
    assert_eq!(stat(one.join("d/of-user")).len(), 5000);
    assert_eq!(stat(one.join("d/of-user")).uid(), USER);
    cluster.tatami("relayout", &["--to", "whole", "--on", "node1", ":/d/f"]);
    assert!(!is_inline(&cluster, ":/d/f"));
    assert_eq!(get(one.join("d/f")), b"small\n");
    put(one.join("d/h"), b"striped");
    cluster.tatami("relayout", &["--to", "striped", ":/d/h"]);
    assert_eq!(get(cluster.mount(1).join("d/h")), b"striped");
    put(one.join("d/stays"), b"no node has an object of it");
    cluster.tatami("node drain", &["1"]);
    assert!(is_inline(&cluster, ":/d/stays"));
    assert_eq!(get(Path::new(&one).join("d/stays")), b"no node has an object of it");
    cluster.finish();
}
