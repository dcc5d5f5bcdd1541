//! Directories with policies, and small files that lie beside their inode.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;
use tatami_tests::Cluster;
use tatami_tests::command::{ask, run, shell};
use tatami_tests::files::{bytes_of, get, open, put, stat};
use tatami_tests::request_count::expect_requests;

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

/// The mount keeps the attributes of a lookup or create for the next request of the thread. A write
/// ends that, however fast it is.
#[test]
fn the_size_is_right_at_once_after_each_write() {
    const FILES: usize = 300;
    let cluster = start();
    for (n, mount) in [cluster.mount(0), cluster.mount(1)].iter().enumerate() {
        let dir = mount.join(format!("d{n}"));
        fs::create_dir(&dir).expect("mkdir");
        for file in 0..FILES {
            let mut file = File::create(dir.join(file.to_string())).expect("create");
            for size in [12, 24] {
                file.write_all(&[1; 12]).expect("write");
                assert_eq!(file.metadata().expect("fstat").len(), size);
            }
        }
    }
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

/// A small file beside its inode costs a request to make it and one to write it. The shard records
/// the write itself, so that the close has nothing to report.
#[test]
fn a_small_file_is_made_by_two_requests() {
    const FILES: usize = 200;
    /// The closes are reported together, and a program without a mount has to begin.
    const MOST: u64 = FILES as u64 * 2 + 60;
    let cluster = start();
    let (one, two) = (cluster.mount(0), cluster.mount(1));
    expect_requests(&cluster, "through a mount", MOST, |round| {
        let dir = one.join(format!("m{round}"));
        fs::create_dir(&dir).expect("mkdir");
        for n in 0..FILES {
            put(dir.join(n.to_string()), format!("{n:100}"));
        }
    });
    // Times that are set after the last write stay, at the cost of one request more.
    let old = std::time::UNIX_EPOCH + Duration::from_secs(981_173_106);
    expect_requests(&cluster, "with a time", MOST + FILES as u64, |round| {
        let dir = one.join(format!("t{round}"));
        fs::create_dir(&dir).expect("mkdir");
        for n in 0..FILES {
            let mut file = File::create_new(dir.join(n.to_string())).expect("open");
            file.write_all(format!("{n:100}").as_bytes()).expect("write");
            file.set_modified(old).expect("futimens");
            let there = file.metadata().expect("fstat");
            assert!(there.len() == 100 && there.modified().is_ok_and(|time| time == old));
        }
    });
    // A second write, with an fsync, and what another mount sees after the close.
    for n in 0..FILES {
        let there = stat(two.join(format!("t0/{n}")));
        assert!(there.len() == 100 && there.modified().is_ok_and(|time| time == old), "{n}");
    }
    let mut file = OpenOptions::new().append(true).open(one.join("t0/0")).expect("open");
    file.write_all(b"more").expect("write");
    let written = file.metadata().expect("fstat");
    file.sync_all().expect("fsync");
    drop(file);
    for mount in [&one, &two] {
        let there = stat(mount.join("t0/0"));
        assert_eq!(there.len(), 104);
        assert!(there.modified().is_ok_and(|time| time > old));
        assert_eq!(
            (there.mtime_nsec(), there.ctime_nsec()),
            (written.mtime_nsec(), written.ctime_nsec())
        );
    }
    let script = format!(
        "import os, sys\n\
         os.mkdir(sys.argv[1])\n\
         for n in range({FILES}):\n    \
             f = os.open(f'{{sys.argv[1]}}/{{n}}', os.O_WRONLY | os.O_CREAT | os.O_EXCL)\n    \
             os.write(f, b'%100d' % n)\n    \
             os.close(f)\n"
    );
    expect_requests(&cluster, "without a mount", MOST, |round| {
        let line = ["--node", "0", "--at", "/tatami-inline-test", "--", "python3", "-c", &script];
        let dir = format!("/tatami-inline-test/p{round}");
        run(cluster.command("run").args(line).arg(dir));
    });
    for dir in ["m0", "t0", "p0"] {
        for n in [1, FILES - 1] {
            assert_eq!(get(two.join(format!("{dir}/{n}"))), format!("{n:100}").into_bytes());
        }
    }
    assert!(is_inline(&cluster, ":/p0/1") && is_inline(&cluster, ":/m0/1"));
    cluster.finish();
}

/// The bytes of a small file come with its open, and are never old.
#[test]
fn a_small_file_is_read_by_the_request_that_opens_it() {
    const FILES: usize = 200;
    let cluster = start();
    let (one, two) = (cluster.mount(0), cluster.mount(1));
    fs::create_dir(one.join("d")).expect("mkdir");
    for n in 0..FILES {
        put(one.join(format!("d/{n}")), format!("{n:100}"));
    }
    fs::read_dir(two.join("d")).expect("a listing").for_each(drop);
    // A lookup and an open of each, and the closes together.
    expect_requests(&cluster, "reads", FILES as u64 * 2 + FILES as u64 / 5, |_| {
        for n in 0..FILES {
            assert_eq!(get(two.join(format!("d/{n}"))), format!("{n:100}").into_bytes());
        }
    });
    // An open file shows each change of another mount when its write has returned: of the same
    // length, in place, cut, longer than the limit, with its old time.
    let reader = open(two.join("d/0"));
    let writer = open(one.join("d/0"));
    let mut expected = format!("{:100}", 0).into_bytes();
    for step in 0..40_u8 {
        let mut buf = [0; 300];
        let got = reader.read_at(&mut buf, 0).expect("read");
        assert!(buf[..got] == expected, "step {step}");
        match step % 4 {
            0 => {
                writer.write_all_at(&[b'a' + step % 26], 7).expect("pwrite");
                expected[7] = b'a' + step % 26;
            }
            1 => {
                let set = File::options().write(true).open(one.join("d/0")).expect("open");
                set.write_all_at(b"time", 0).expect("pwrite");
                set.set_modified(std::time::UNIX_EPOCH).expect("utimensat");
                expected[..4].copy_from_slice(b"time");
            }
            2 => {
                writer.set_len(50).expect("ftruncate");
                expected.truncate(50);
            }
            _ => {
                writer.write_all_at(&[step; 50], 50).expect("pwrite");
                expected.truncate(50);
                expected.extend([step; 50]);
            }
        }
    }
    writer.write_all_at(&[9; LIMIT + 1], 0).expect("pwrite");
    let mut buf = vec![0; LIMIT + 100];
    assert_eq!(reader.read_at(&mut buf, 0).expect("read"), LIMIT + 1);
    assert!(buf[..=LIMIT].iter().all(|b| *b == 9));
    drop((reader, writer));
    cluster.finish();
}

/// A tree of small files is copied in and out by few requests, as exactly as any other tree.
#[test]
fn copies_of_small_files_share_requests() {
    const FILES: usize = 600;
    let cluster = start();
    let one = cluster.mount(0);
    let work = cluster.dir().join("work");
    fs::create_dir(&work).expect("made");
    let script = format!(
        "mkdir -p t/sub && cd t && for i in $(seq {FILES}); do echo \"content of $i\" > f$i; done && \
         : > empty && head -c 4096 /dev/urandom > limit && head -c 4097 /dev/urandom > larger && \
         truncate -s 3000 hole && ln -s f1 link && echo below > sub/f && chmod 4751 f7 && \
         touch -d '2001-02-03 04:05:06.789' f8"
    );
    run(&mut shell(&work, &script));
    let path = |name: &str| work.join(name).to_str().expect("UTF-8").to_owned();
    expect_requests(&cluster, "copies in", 60, |round| {
        cluster.tatami("cp", &["-a", &path("t"), &format!(":/t{round}")]);
    });
    let show = "find . -type f -printf '%p %m %s %T@\\n' | sort";
    let original = run(&mut shell(&work.join("t"), show)).out;
    assert_eq!(run(&mut shell(&one.join("t0"), show)).out, original);
    run(&mut shell(&work, &format!("diff -r t {}", one.join("t0").display())));
    assert!(is_inline(&cluster, ":/t0/limit") && !is_inline(&cluster, ":/t0/larger"));
    // Again over it: replaced, and skipped where they are the same.
    run(&mut shell(&work, "echo other > t/f3 && mkdir t/more && echo m > t/more/m"));
    let said = cluster.tatami("cp", &["-auv", &path("t/."), ":/t0"]).out;
    assert!(said.contains("f3") && said.contains("more/m") && !said.contains("f4 "), "{said}");
    expect_requests(&cluster, "copies out", 60, |round| {
        cluster.tatami("cp", &["-a", ":/t0", &path(&format!("back{round}"))]);
    });
    run(&mut shell(&work, "diff -r t back0 && test $(stat -c %a back0/f7) = 4751"));
    // Of another user: what may not be read is named, and the rest is copied.
    run(&mut shell(&work, "chmod 600 t/f9 && chmod 711 . && chmod 755 t"));
    run(&mut shell(&one, "chmod 600 t0/f9 && mkdir -m 777 open"));
    for (from, to) in
        [(path("t"), ":/open/t".to_owned()), (":/t0".to_owned(), "/dev/shm".to_owned())]
    {
        let to = match to.starts_with(':') {
            true => to,
            false => format!("{to}/{}", cluster.dir().file_name().expect("a name").display()),
        };
        let said = ask(cluster.command_as(USER, "cp").args(["-r", &from, &to]));
        assert!(said.code == Some(1) && said.err.contains("f9"), "{said:?}");
        if !to.starts_with(':') {
            assert_eq!(fs::read(format!("{to}/f10")).expect("copied"), b"content of 10\n");
            fs::remove_dir_all(to).expect("removed");
        }
    }
    assert_eq!(stat(one.join("open/t/f10")).uid(), USER);
    cluster.finish();
}

/// The calls of the C library for many files of a directory, by Python.
#[test]
fn programs_write_and_read_many_small_files_by_few_requests() {
    let cluster = start();
    let (one, two) = (cluster.mount(0), cluster.mount(1));
    let library = tatami_tests::command::target_dir().join("mpi/libtatami_io.so");
    let script = r#"
import ctypes, os, sys
lib = ctypes.CDLL(sys.argv[1])
class Content(ctypes.Structure):
    _fields_ = [('name', ctypes.c_char_p), ('bytes', ctypes.c_void_p),
                ('length', ctypes.c_uint64), ('result', ctypes.c_int64)]
for call in (lib.tio_write_files, lib.tio_read_files): call.restype = ctypes.c_int64
lib.tio_error.restype = ctypes.c_char_p
def write(directory, files, mode=0o640):
    kept = [ctypes.create_string_buffer(data, max(len(data), 1)) for _, data in files]
    array = (Content * len(files))()
    for item, (name, data), buffer in zip(array, files, kept):
        item.name, item.bytes, item.length = name, ctypes.addressof(buffer), len(data)
    failed = lib.tio_write_files(directory, array, ctypes.c_size_t(len(files)), mode)
    return failed, [item.result for item in array]
def read(directory, names, room=9000):
    kept = [ctypes.create_string_buffer(room) for _ in names]
    array = (Content * len(names))()
    for item, name, buffer in zip(array, names, kept):
        item.name, item.bytes, item.length = name, ctypes.addressof(buffer), room
    failed = lib.tio_read_files(directory, array, ctypes.c_size_t(len(names)))
    results = [item.result for item in array]
    return failed, [r if r < 0 else (r, b.raw[:min(r, room)]) for r, b in zip(results, kept)]
os.umask(0o022)
directory = os.fsencode(sys.argv[2])
count = int(sys.argv[3])
files = [(b'n%d' % n, b'content %d' % n) for n in range(count)]
if sys.argv[4] == 'write':
    assert write(directory, files) == (0, [len(data) for _, data in files]), lib.tio_error()
else:
    failed, found = read(directory, [name for name, _ in files])
    assert failed == 0 and found == [(len(data), data) for _, data in files], found[:3]
if sys.argv[4] == 'odd':
    # Large and empty files, over old ones, names that are none, and a directory.
    odd = [(b'large', b'x' * 8000), (b'empty', b''), (b'n1', b'new'), (b'../up', b'u'), (b'sub', b'd')]
    os.mkdir(directory + b'/sub')
    failed, results = write(directory, odd)
    assert failed == 2 and results == [8000, 0, 3, -22, -21], results
    failed, found = read(directory, [name for name, _ in odd] + [b'none'])
    assert failed == 3 and found == [(8000, b'x' * 8000), (0, b''), (3, b'new'), -22, -21, -2], found
    assert read(directory, [b'large'], room=10) == (0, [(8000, b'x' * 10)])
    assert lib.tio_read_files(b'/nowhere', None, 0) == -2 and b'/nowhere' in lib.tio_error()
    assert lib.tio_write_files(directory, None, 3, 0) == -22
    assert os.stat(directory + b'/n0').st_mode & 0o7777 == 0o640
"#;
    put(cluster.dir().join("lists.py"), script);
    let script = cluster.dir().join("lists.py");
    let call = |dir: &Path, count: usize, what: &str| {
        let (script, library, dir) = (script.display(), library.display(), dir.display());
        format!("python3 {script} {library} {dir} {count} {what}")
    };
    expect_requests(&cluster, "written", 40, |round| {
        let dir = one.join(format!("w{round}"));
        fs::create_dir(&dir).expect("mkdir");
        run(&mut shell(&one, &call(&dir, 1000, "write")));
    });
    expect_requests(&cluster, "read", 40, |_| {
        run(&mut shell(&one, &call(&two.join("w0"), 1000, "read")));
    });
    assert_eq!(get(two.join("w0/n999")), b"content 999");
    run(&mut shell(&one, &call(&one.join("w0"), 1000, "odd")));
    // Without the policy, and on another file system.
    cluster.tatami("set", &["--inline", "0", ":/"]);
    let other = cluster.dir().join("other");
    for dir in [one.join("objects"), other] {
        fs::create_dir(&dir).expect("mkdir");
        run(&mut shell(&one, &call(&dir, 20, "write")));
        run(&mut shell(&one, &call(&dir, 20, "odd")));
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
