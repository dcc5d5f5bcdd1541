//! Directories and their entries: names, links, special files, renames, listings of directories
//! that change meanwhile.

use rustix::fs::{CWD, FileType, Mode, RenameFlags};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use tatami_tests::Cluster;
use tatami_tests::command::{ask, program, run, shell};
use tatami_tests::files::{get, names, put, refused, stat};

fn one() -> (Cluster, PathBuf) {
    let cluster = Cluster::start(1);
    let mount = cluster.mount(0);
    (cluster, mount)
}

fn rename_with(from: &Path, to: &Path, flags: RenameFlags) -> Result<(), rustix::io::Errno> {
    rustix::fs::renameat_with(CWD, from, CWD, to, flags)
}

#[test]
fn rename_without_replacing_refuses_what_is_there() {
    let (cluster, m) = one();
    put(m.join("a"), "a");
    put(m.join("b"), "b");
    let keep = RenameFlags::NOREPLACE;
    assert_eq!(rename_with(&m.join("a"), &m.join("b"), keep), Err(rustix::io::Errno::EXIST));
    rename_with(&m.join("a"), &m.join("c"), keep).expect("to a free name");
    assert_eq!((get(m.join("b")), get(m.join("c"))), (b"b".to_vec(), b"a".to_vec()));
    cluster.finish();
}

#[test]
fn rename_exchanges_two_names_whatever_they_are() {
    let (cluster, m) = one();
    put(m.join("file"), "bytes");
    fs::create_dir_all(m.join("dir/inner")).expect("mkdir");
    put(m.join("dir/inner/deep"), "deep");
    fs::create_dir(m.join("other")).expect("mkdir");
    let (file, dir) = (stat(m.join("file")).ino(), stat(m.join("dir/inner")).ino());
    rename_with(&m.join("file"), &m.join("dir/inner"), RenameFlags::EXCHANGE).expect("exchange");
    assert_eq!((stat(m.join("file")).ino(), stat(m.join("dir/inner")).ino()), (dir, file));
    assert_eq!(get(m.join("file/deep")), b"deep");
    assert_eq!(get(m.join("dir/inner")), b"bytes");
    assert_eq!(stat(m.join("file/..")).ino(), stat(&m).ino(), "`..` moved along");
    cluster.finish();
}

#[test]
fn a_directory_cannot_move_into_itself() {
    let cluster = Cluster::start(2);
    let (a, b) = (cluster.mount(0), cluster.mount(1));
    fs::create_dir_all(a.join("x/y/z")).expect("mkdir");
    assert_eq!(refused(fs::rename(a.join("x"), a.join("x/y/z/x"))), libc::EINVAL);
    assert_eq!(refused(fs::rename(a.join("x/y"), a.join("x"))), libc::ENOTEMPTY);
    // Two mounts that would, together, make a loop: one must lose.
    for round in 0..20 {
        let (p, q) = (format!("p{round}"), format!("q{round}"));
        fs::create_dir(a.join(&p)).expect("mkdir");
        fs::create_dir(a.join(&q)).expect("mkdir");
        let start = std::sync::Barrier::new(2);
        let (one, two) = std::thread::scope(|scope| {
            let one = scope.spawn(|| {
                start.wait();
                fs::rename(a.join(&p), a.join(&q).join("in")).is_ok()
            });
            start.wait();
            let two = fs::rename(b.join(&q), b.join(&p).join("in")).is_ok();
            (one.join().expect("a racer"), two)
        });
        assert!(one != two, "round {round}: p into q {one}, q into p {two}");
    }
    cluster.finish();
}

#[test]
fn names_have_up_to_255_bytes_of_any_value() {
    let (cluster, m) = one();
    let longest = "n".repeat(255);
    put(m.join(&longest), "x");
    assert_eq!(names(&m), [longest.as_str()]);
    assert_eq!(refused(File::create(m.join("n".repeat(256)))), libc::ENAMETOOLONG);
    assert_eq!(refused(fs::create_dir(m.join("n".repeat(256)))), libc::ENAMETOOLONG);
    assert_eq!(refused(fs::metadata(m.join("n".repeat(256)))), libc::ENAMETOOLONG);
    fs::remove_file(m.join(&longest)).expect("unlink");
    let odd: Vec<u8> = (1..=255u8).filter(|b| *b != b'/').collect();
    for part in odd.chunks(100) {
        put(m.join(OsStr::from_bytes(part)), part);
        assert_eq!(get(m.join(OsStr::from_bytes(part))), part);
    }
    let mut found: Vec<Vec<u8>> = fs::read_dir(&m)
        .expect("readdir")
        .map(|e| e.expect("an entry").file_name().as_bytes().to_vec())
        .collect();
    found.sort();
    let mut expected: Vec<Vec<u8>> = odd.chunks(100).map(<[u8]>::to_vec).collect();
    expected.sort();
    assert_eq!(found, expected);
    cluster.finish();
}

#[test]
fn paths_through_loops_and_beyond_the_limit_are_refused() {
    let (cluster, m) = one();
    std::os::unix::fs::symlink("two", m.join("one")).expect("symlink");
    std::os::unix::fs::symlink("one", m.join("two")).expect("symlink");
    assert_eq!(refused(File::open(m.join("one"))), libc::ELOOP);
    assert_eq!(refused(File::open(m.join("one/below"))), libc::ELOOP);
    let long = "d/".repeat(2100);
    assert_eq!(refused(fs::metadata(m.join(long))), libc::ENAMETOOLONG);
    let target = "t".repeat(4095);
    std::os::unix::fs::symlink(&target, m.join("long")).expect("a target of 4095 bytes");
    assert_eq!(fs::read_link(m.join("long")).expect("readlink").as_os_str().len(), 4095);
    cluster.finish();
}

#[test]
fn a_tree_can_be_a_hundred_deep() {
    let (cluster, m) = one();
    let mut path = m.clone();
    for level in 0..100 {
        path.push(format!("level{level}"));
        fs::create_dir(&path).expect("mkdir");
    }
    put(path.join("bottom"), "found");
    let found = run(&mut shell(&m, "find . -name bottom | wc -l; find . -type d | wc -l")).out;
    assert_eq!(found.split_whitespace().collect::<Vec<_>>(), ["1", "101"]);
    fs::remove_dir_all(m.join("level0")).expect("rm -r");
    assert!(names(&m).is_empty());
    cluster.finish();
}

#[test]
fn hard_links_are_one_file() {
    let cluster = Cluster::start(2);
    let (a, b) = (cluster.mount(0), cluster.mount(1));
    put(a.join("one"), "bytes");
    fs::create_dir(a.join("dir")).expect("mkdir");
    fs::hard_link(b.join("one"), b.join("dir/two")).expect("link");
    assert_eq!(stat(a.join("one")).ino(), stat(a.join("dir/two")).ino());
    assert_eq!(stat(a.join("one")).nlink(), 2);
    put(b.join("dir/two"), "other bytes");
    assert_eq!(get(a.join("one")), b"other bytes");
    fs::remove_file(a.join("one")).expect("unlink");
    assert_eq!(
        (get(b.join("dir/two")), stat(b.join("dir/two")).nlink()),
        (b"other bytes".into(), 1)
    );
    assert_eq!(refused(fs::hard_link(a.join("dir"), a.join("again"))), libc::EPERM);
    cluster.finish();
}

#[test]
fn directories_count_their_links() {
    let (cluster, m) = one();
    fs::create_dir(m.join("d")).expect("mkdir");
    assert_eq!(stat(m.join("d")).nlink(), 2);
    fs::create_dir(m.join("d/e")).expect("mkdir");
    put(m.join("d/f"), "");
    assert_eq!(stat(m.join("d")).nlink(), 3);
    fs::rename(m.join("d/e"), m.join("e")).expect("rename");
    assert_eq!(stat(m.join("d")).nlink(), 2);
    assert_eq!(refused(fs::remove_dir(m.join("d"))), libc::ENOTEMPTY);
    assert_eq!(refused(fs::remove_dir(m.join("d/f"))), libc::ENOTDIR);
    assert_eq!(refused(fs::remove_file(m.join("e"))), libc::EISDIR);
    cluster.finish();
}

#[test]
fn inode_numbers_are_the_same_on_all_mounts_and_after_a_restart() {
    let cluster = Cluster::start(2);
    put(cluster.mount(0).join("f"), "");
    fs::create_dir(cluster.mount(1).join("d")).expect("mkdir");
    let numbers = |node| {
        let m = cluster.mount(node);
        [stat(m.join("f")).ino(), stat(m.join("d")).ino(), stat(&m).ino()]
    };
    let before = numbers(0);
    assert_eq!(numbers(1), before);
    cluster.down();
    cluster.up();
    assert_eq!((numbers(0), numbers(1)), (before, before));
    cluster.finish();
}

#[test]
fn special_files_work() {
    let (cluster, m) = one();
    // A pipe joins two processes.
    run(&mut shell(&m, "mkfifo pipe; echo through the pipe > pipe & cat pipe > out; wait"));
    assert_eq!(get(m.join("out")), b"through the pipe\n");
    assert!(stat(m.join("pipe")).file_type().is_fifo());
    // Clients find a socket by its name.
    let listener = UnixListener::bind(m.join("socket")).expect("bind");
    let mut client = UnixStream::connect(m.join("socket")).expect("connect");
    client.write_all(b"hello").expect("write to the socket");
    let mut five = [0; 5];
    listener.accept().expect("accept").0.read_exact(&mut five).expect("read from the socket");
    assert_eq!(&five, b"hello");
    drop((listener, client));
    // Devices keep their numbers.
    let mode = Mode::from_raw_mode(0o666);
    for (name, kind, major, minor) in [
        ("null", FileType::CharacterDevice, 1, 3),
        ("block", FileType::BlockDevice, 4095, 1_000_000),
    ] {
        let device = rustix::fs::makedev(major, minor);
        rustix::fs::mknodat(CWD, m.join(name), kind, mode, device).expect("mknod");
        assert_eq!(stat(m.join(name)).rdev(), device, "{name}");
    }
    cluster.finish();
}

#[test]
fn a_removed_directory_can_still_be_stood_in() {
    let (cluster, m) = one();
    let said = run(&mut shell(
        &m,
        "mkdir d; cd d; rmdir ../d; ls -A | wc -l; touch x 2>&1 || true; stat -c %h . ; cd ..; ls -A",
    ));
    assert!(said.out.starts_with("0\n"), "{}", said.out);
    assert!(said.out.contains("No such file"), "{}", said.out);
    assert!(said.out.trim_end().ends_with('0'), "no link left: {}", said.out);
    cluster.finish();
}

#[test]
fn a_listing_shows_what_stays_exactly_once_while_others_come_and_go() {
    const STAYING: usize = 3000;
    let cluster = Cluster::start(2);
    let dir = cluster.mount(0).join("big");
    fs::create_dir(&dir).expect("mkdir");
    for i in 0..STAYING {
        File::create(dir.join(format!("stays-{i}"))).expect("create");
    }
    let expected: BTreeSet<String> = (0..STAYING).map(|i| format!("stays-{i}")).collect();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let busy = scope.spawn(|| {
            let dir = cluster.mount(1).join("big");
            let mut round = 0;
            while !done.load(Ordering::Relaxed) {
                let names: Vec<_> =
                    (0..30).map(|i| dir.join(format!("comes-{round}-{i}"))).collect();
                names.iter().for_each(|n| drop(File::create(n).expect("create")));
                names.iter().for_each(|n| fs::remove_file(n).expect("unlink"));
                round += 1;
            }
            round
        });
        for node in [0, 1, 0, 1] {
            let mut seen = BTreeSet::new();
            for entry in fs::read_dir(cluster.mount(node).join("big")).expect("readdir") {
                let name = entry.expect("an entry").file_name().to_string_lossy().into_owned();
                assert!(seen.insert(name.clone()), "{name} was listed twice");
            }
            let stayed: BTreeSet<_> = seen.into_iter().filter(|n| n.starts_with("stays")).collect();
            assert!(stayed == expected, "{} of {STAYING} were listed", stayed.len());
        }
        done.store(true, Ordering::Relaxed);
        let rounds = busy.join().expect("the busy thread");
        println!("{rounds} rounds of 30 entries meanwhile");
    });
    // Removing while listing, as rm -r does, removes all.
    fs::remove_dir_all(&dir).expect("rm -r of a big directory");
    cluster.finish();
}

#[test]
fn a_listing_can_be_resumed_at_any_place() {
    let (cluster, m) = one();
    for i in 0..500 {
        put(m.join(format!("f{i}")), "");
    }
    // seekdir goes back to a position that telldir has returned.
    let c_path = std::ffi::CString::new(m.as_os_str().as_bytes()).expect("no zero byte");
    // SAFETY: plain calls of the directory functions with pointers that they returned.
    unsafe {
        let dir = libc::opendir(c_path.as_ptr());
        assert!(!dir.is_null());
        let mut order = Vec::new();
        loop {
            let place = libc::telldir(dir);
            let entry = libc::readdir(dir);
            if entry.is_null() {
                break;
            }
            let name = std::ffi::CStr::from_ptr((*entry).d_name.as_ptr()).to_owned();
            order.push((place, name));
        }
        assert_eq!(order.len(), 502, "500 files, `.` and `..`");
        for (place, name) in order.iter().rev().step_by(37) {
            libc::seekdir(dir, *place);
            let entry = libc::readdir(dir);
            assert!(!entry.is_null());
            assert_eq!(std::ffi::CStr::from_ptr((*entry).d_name.as_ptr()), name.as_c_str());
        }
        libc::closedir(dir);
    }
    cluster.finish();
}

#[test]
fn extended_attributes_follow_the_rules() {
    use rustix::fs::XattrFlags;
    let (cluster, m) = one();
    let f = m.join("f");
    put(&f, "");
    let set = |name: &str, value: &[u8], flags| rustix::fs::setxattr(&f, name, value, flags);
    set("user.a", b"1", XattrFlags::CREATE).expect("create");
    assert_eq!(set("user.a", b"2", XattrFlags::CREATE), Err(rustix::io::Errno::EXIST));
    assert_eq!(set("user.b", b"2", XattrFlags::REPLACE), Err(rustix::io::Errno::NODATA));
    set("user.big", &vec![7; 60_000], XattrFlags::empty()).expect("a large value");
    set("trusted.root", b"only", XattrFlags::empty()).expect("a trusted attribute, as root");
    set("security.test", b"s", XattrFlags::empty()).expect("a security attribute");
    let mut list = vec![0; 4096];
    let len = rustix::fs::listxattr(&f, &mut list).expect("listxattr");
    let mut all: Vec<&[u8]> = list[..len].split(|b| *b == 0).filter(|n| !n.is_empty()).collect();
    all.sort();
    assert_eq!(all, [&b"security.test"[..], b"trusted.root", b"user.a", b"user.big"]);
    let mut small = [0; 10];
    let short = rustix::fs::getxattr(&f, "user.big", &mut small);
    assert_eq!(short, Err(rustix::io::Errno::RANGE));
    rustix::fs::removexattr(&f, "user.a").expect("remove");
    assert_eq!(rustix::fs::removexattr(&f, "user.a"), Err(rustix::io::Errno::NODATA));
    assert_eq!(set("nonsense", b"x", XattrFlags::empty()), Err(rustix::io::Errno::OPNOTSUPP));
    let long = format!("user.{}", "n".repeat(251));
    assert_eq!(set(&long, b"x", XattrFlags::empty()), Err(rustix::io::Errno::RANGE));
    // A copy keeps the attributes on request.
    run(&mut shell(&m, "cp --preserve=xattr f g; getfattr -n trusted.root g | grep -q only"));
    cluster.finish();
}

#[test]
fn ls_without_a_mount_shows_what_the_mount_shows() {
    let (cluster, m) = one();
    fs::create_dir(m.join("dir")).expect("mkdir");
    put(m.join("dir/file"), "12345");
    std::os::unix::fs::symlink("file", m.join("dir/link")).expect("symlink");
    let said = cluster.tatami("ls", &[":/dir"]);
    assert_eq!(said.out.split_whitespace().collect::<Vec<_>>(), ["file", "link"]);
    assert_eq!(cluster.tatami("cat", &[":/dir/file"]).out, "12345");
    let local = cluster.dir().join("copy");
    let local = local.to_str().expect("UTF-8");
    cluster.tatami("cp", &[":/dir/file", local]);
    assert_eq!(get(local), b"12345");
    cluster.tatami("cp", &[local, ":/dir/back"]);
    assert_eq!(get(m.join("dir/back")), b"12345");
    cluster.tatami("rm", &[":/dir/back"]);
    assert!(!m.join("dir/back").exists());
    let missing = ask(cluster.command("cat").arg(":/dir/none"));
    assert!(missing.code != Some(0) && missing.err.contains("/dir/none"), "{}", missing.err);
    cluster.finish();
}

#[test]
fn find_and_du_agree_with_the_local_disk() {
    let (cluster, m) = one();
    let make = "mkdir -p x/y x/z; for i in 1 2 3; do echo $i > x/y/$i; ln -s $i x/z/$i; done; \
                ln x/y/1 x/z/hard; mkfifo x/pipe";
    let local = tempfile::tempdir_in(cluster.dir()).expect("a folder on disk");
    run(&mut shell(&m, make));
    run(&mut shell(local.path(), make));
    let look = "find x -printf '%y %P %l %n %s\\n' | grep -v ^d | sort; find x -type d | sort";
    let (here, there) = (run(&mut shell(&m, look)), run(&mut shell(local.path(), look)));
    assert_eq!(here.out, there.out);
    let tar = "tar cf - x | tar tf - | sort";
    assert_eq!(run(&mut shell(&m, tar)).out, run(&mut shell(local.path(), tar)).out);
    run(program("rm -r").arg(m.join("x")));
    cluster.finish();
}
