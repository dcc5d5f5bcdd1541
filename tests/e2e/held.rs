//! Creates of small files that a mount holds back until the first byte: they cost one request, and
//! no program of any mount notices.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use tatami_tests::Cluster;
use tatami_tests::command::{run, shell};
use tatami_tests::files::{get, put, stat};
use tatami_tests::process::wait_ms;
use tatami_tests::request_count::expect_requests;

/// What a program does with a path, and a word for it.
type PathWork<'a> = (&'static str, &'a dyn Fn(&Path));

/// Files in a directory after which its mount holds creates back.
const WARM: usize = 6;

fn start() -> Cluster {
    let cluster = Cluster::start(2);
    cluster.tatami("set", &["--inline", "4k", ":/"]);
    cluster
}

/// Makes a directory on a mount, and some files in it, so that the mount holds creates back there.
fn warm_dir(mount: &Path, name: &str) -> PathBuf {
    let dir = mount.join(name);
    fs::create_dir(&dir).expect("mkdir");
    (0..WARM).for_each(|n| put(dir.join(format!("warm{n}")), b"warm"));
    dir
}

/// Makes a file and writes nothing.
fn create(path: impl AsRef<Path>) -> File {
    OpenOptions::new().write(true).create_new(true).mode(0o640).open(path).expect("created")
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).expect("a listing");
    entries.map(|entry| entry.expect("an entry").file_name().display().to_string()).collect()
}

/// Open, write and close of a new file are one request. Closes are reported together.
#[test]
fn one_request_makes_a_small_file() {
    const FILES: u64 = 256;
    let cluster = start();
    let one = cluster.mount(0);
    expect_requests(&cluster, "creates with a write", FILES + FILES / 5, |round| {
        let dir = warm_dir(&one, &format!("d{round}"));
        (0..FILES).for_each(|n| put(dir.join(n.to_string()), format!("{n:100}")));
    });
    let two = cluster.mount(1);
    for n in 0..FILES {
        assert_eq!(get(two.join(format!("d0/{n}"))), format!("{n:100}").into_bytes());
    }
    cluster.finish();
}

/// Files that are too large for their inodes get an object with their create: they cost as many
/// requests as in a directory without small files, although their creates are held back.
#[test]
fn a_large_first_write_costs_no_more_than_elsewhere() {
    const FILES: u64 = 64;
    let cluster = start();
    let (one, two) = (cluster.mount(0), cluster.mount(1));
    for dir in ["plain", "small"] {
        fs::create_dir(one.join(dir)).expect("mkdir");
    }
    cluster.tatami("set", &["--inline", "0", ":/plain"]);
    let bytes = vec![7; 100_000];
    let writes: [PathWork<'_>; 4] = [
        ("more than any inode has", &|path| put(path, &bytes)),
        ("more than the limit", &|path| put(path, &bytes[..5000])),
        ("behind the limit", &|path| create(path).write_all_at(b"end", 5000).expect("write")),
        ("a size", &|path| create(path).set_len(5000).expect("set")),
    ];
    for (at, (what, write)) in writes.into_iter().enumerate() {
        let mut dirs = Vec::new();
        for parent in ["plain", "small"] {
            // The create, and the size with the close.
            let most = 2 * FILES + FILES / 2;
            expect_requests(&cluster, &format!("{what}, {parent}"), most, |round| {
                let dir = format!("{parent}/{at}-{round}");
                let path = warm_dir(&one, &dir);
                (0..FILES).for_each(|n| write(&path.join(n.to_string())));
                dirs.truncate(usize::from(parent == "small"));
                dirs.push(dir);
            });
        }
        for n in 0..FILES {
            let expected = get(one.join(&dirs[0]).join(n.to_string()));
            for mount in [&one, &two] {
                assert_eq!(get(mount.join(&dirs[1]).join(n.to_string())), expected, "{what}");
            }
        }
    }
    cluster.finish();
}

/// A mount that holds creates back in directories gives their paths back, too, when their shards
/// move. Else it would take its old names for true when the shards return.
#[test]
fn old_names_of_directories_do_not_come_back_with_their_shards() {
    const PARENTS: usize = 8;
    const DIRS: usize = 8;
    let cluster = start();
    let (one, two) = (cluster.mount(0), cluster.mount(1));
    let mut dirs = Vec::new();
    for parent in (0..PARENTS).map(|n| n.to_string()) {
        fs::create_dir(one.join(&parent)).expect("mkdir");
        for n in 0..DIRS {
            // Changes of two mounts: none has all names of the parent.
            fs::create_dir(two.join(&parent).join(format!("other{n}"))).expect("mkdir");
            dirs.push(format!("{parent}/d{n}"));
            warm_dir(&one, &dirs[dirs.len() - 1]);
        }
    }
    // The kernel has forgotten the names.
    wait_ms(300);
    assert!(dirs.iter().all(|dir| stat(one.join(dir)).is_dir()));
    cluster.tatami("node drain", &["node1"]);
    for dir in &dirs {
        fs::rename(two.join(dir), two.join(format!("{dir}-old"))).expect("rename");
        fs::create_dir(two.join(dir)).expect("mkdir");
        fs::set_permissions(two.join(dir), fs::Permissions::from_mode(0o711)).expect("chmod");
    }
    cluster.tatami("node rebalance", &["node1"]);
    for dir in &dirs {
        assert_eq!(stat(one.join(dir)).mode() & 0o777, 0o711, "{dir}");
        assert_eq!(names(&one.join(dir)), [""; 0], "{dir}");
        assert_eq!(names(&one.join(format!("{dir}-old"))).len(), WARM, "{dir}");
    }
    cluster.finish();
}

/// Programs that make files in one directory at the same time do not see to it that the creates of
/// the others are sent.
#[test]
fn writers_of_one_directory_need_one_request_a_file() {
    const WRITERS: u64 = 4;
    const FILES: u64 = 100;
    let cluster = start();
    let one = cluster.mount(0);
    let most = WRITERS * FILES * 3 / 2;
    expect_requests(&cluster, "creates side by side", most, |round| {
        let dir = warm_dir(&one, &format!("d{round}"));
        std::thread::scope(|scope| {
            for writer in 0..WRITERS {
                let dir = &dir;
                scope.spawn(move || {
                    (0..FILES).for_each(|n| put(dir.join(format!("{writer}-{n}")), b"bytes"));
                });
            }
        });
        assert_eq!(names(&dir).len() as u64, WARM as u64 + WRITERS * FILES);
    });
    cluster.finish();
}

/// Prints the attributes of directory `argv[1]` and of twenty files in it. `hold`: makes them
/// before that, and keeps them open until the end of the input. Each create must be seen at once.
const SHOW: &str = r"
import os, sys
path, mode = sys.argv[1:]
names = [f'{path}/new{n}' for n in range(20)]
def show(found):
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_nlink
files = names
if mode == 'hold':
    last, files = os.stat(path), []
    for name in names:
        files.append(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o640))
        now = os.stat(path)
        assert (now.st_size, now.st_nlink) == (last.st_size + 1, last.st_nlink)
        assert now.st_mtime_ns > last.st_mtime_ns and now.st_ctime_ns > last.st_ctime_ns
        last = now
print(show(os.stat(path)), [(show(os.stat(f)), oct(os.stat(f).st_mode)) for f in files], flush=True)
if mode == 'hold':
    sys.stdin.read()
";

fn show_attributes(dir: &Path, mode: &str) -> (String, Child) {
    let mut command = Command::new("python3");
    command.args(["-c", SHOW]).arg(dir).arg(mode).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("python3");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("stdout")).read_line(&mut line).expect("a line");
    (line, child)
}

/// A file has its attributes while it is held back, and its directory has those of a directory with
/// this file. They stay the same when the file is made.
#[test]
fn attributes_are_those_of_files_that_exist() {
    const FILES: u64 = 20;
    let cluster = start();
    let (one, two) = (cluster.mount(0), cluster.mount(1));
    // The files of all rounds stay open, so that no round makes those of another.
    let mut rounds = Vec::new();
    expect_requests(&cluster, "creates without a byte", 2 * WARM as u64 + FILES / 2, |round| {
        let dir = warm_dir(&one, &format!("d{round}"));
        let (shown, program) = show_attributes(&dir, "hold");
        rounds.push((dir, shown, program));
    });
    let (dir, held, mut program) = rounds.pop().expect("it has run");
    assert_eq!(held.matches("0o100640").count() as u64, FILES, "{held}");
    drop(program.stdin.take());
    assert!(program.wait().expect("it ends").success());
    for mount in [&two, &one] {
        let (made, mut program) = show_attributes(&mount.join(dir.file_name().expect("d")), "look");
        assert_eq!(made, held);
        assert!(program.wait().expect("it ends").success());
    }
    for (_, _, mut program) in rounds {
        drop(program.stdin.take());
        program.wait().expect("it ends");
    }
    cluster.finish();
}

/// Whatever another mount does next in the directory, it finds the file.
#[test]
fn another_mount_finds_each_file_whose_create_is_held_back() {
    let cluster = start();
    let (one, two) = (cluster.mount(0), cluster.mount(1));
    let looks: [PathWork<'_>; 9] = [
        ("stat", &|dir| assert_eq!(stat(dir.join("new")).len(), 0)),
        ("list", &|dir| assert!(names(dir).contains(&"new".to_owned()))),
        ("count", &|dir| assert_eq!(names(dir).len(), WARM + 1)),
        ("create", &|dir| {
            let again = OpenOptions::new().write(true).create_new(true).open(dir.join("new"));
            assert_eq!(again.expect_err("it is there").kind(), ErrorKind::AlreadyExists);
        }),
        ("open", &|dir| {
            assert_eq!(
                File::open(dir.join("new")).expect("open").metadata().expect("fstat").len(),
                0
            )
        }),
        ("rmdir", &|dir| {
            (0..WARM).for_each(|n| fs::remove_file(dir.join(format!("warm{n}"))).expect("rm"));
            let kind = fs::remove_dir(dir).expect_err("it has a file").kind();
            assert_eq!(kind, ErrorKind::DirectoryNotEmpty);
        }),
        ("rename", &|dir| {
            fs::rename(dir.join("new"), dir.join("newer")).expect("renamed");
            fs::rename(dir.join("newer"), dir.join("new")).expect("renamed");
        }),
        ("link", &|dir| fs::hard_link(dir.join("new"), dir.join("second")).expect("linked")),
        ("chmod", &|dir| {
            fs::set_permissions(dir, PermissionsExt::from_mode(0o700)).expect("chmod")
        }),
    ];
    for (what, look) in looks {
        let dir = warm_dir(&one, what);
        let before = stat(&dir).mtime_nsec();
        let mut file = create(dir.join("new"));
        let number = file.metadata().expect("fstat").ino();
        look(&two.join(what));
        file.write_all(b"the bytes").expect("write");
        assert_eq!(file.metadata().expect("fstat").ino(), number, "{what}");
        drop(file);
        for mount in [&one, &two] {
            let path = mount.join(what).join("new");
            assert_eq!(get(&path), b"the bytes", "{what}");
            assert_eq!((stat(&path).ino(), stat(&path).mode() & 0o7777), (number, 0o640), "{what}");
        }
        assert_ne!(stat(&dir).mtime_nsec(), before, "{what}");
    }
    cluster.finish();
}

/// The same for programs of the mount that holds the create back.
#[test]
fn programs_of_the_same_mount_find_it_too() {
    let cluster = start();
    let one = cluster.mount(0);
    let dir = warm_dir(&one, "d");
    let before = stat(&dir).mtime_nsec();
    let first = create(dir.join("a"));
    assert_ne!(stat(&dir).mtime_nsec(), before, "the directory's time");
    let second = create(dir.join("b"));
    assert_eq!(names(&dir).len(), WARM + 2);
    let third = create(dir.join("c"));
    run(&mut shell(&dir, "test -f c && ! mkdir c 2> /dev/null && mv c e && ln e f && chmod 600 e"));
    let fourth = create(dir.join("d"));
    assert_eq!(stat(dir.join("d")).ino(), fourth.metadata().expect("fstat").ino());
    let fifth = create(dir.join("g"));
    fs::remove_file(dir.join("g")).expect("rm");
    for (n, file) in [&first, &second, &third, &fourth, &fifth].into_iter().enumerate() {
        file.write_all_at(&[n as u8; 10], 5).expect("pwrite");
        file.sync_all().expect("fsync");
        assert_eq!(file.metadata().expect("fstat").len(), 15, "{n}");
    }
    drop([first, second, third, fourth, fifth]);
    // Never written, larger than the limit, cut, and mapped.
    drop(create(dir.join("empty")));
    put(dir.join("large"), vec![7; 5000]);
    let grown = create(dir.join("grown"));
    grown.set_len(4000).expect("ftruncate");
    drop(grown);
    let found = |name: &str| get(cluster.mount(1).join("d").join(name));
    assert_eq!(found("a"), [[0; 5].as_slice(), &[0; 10]].concat());
    assert_eq!(found("f"), [[0; 5].as_slice(), &[2; 10]].concat());
    assert_eq!((found("empty").len(), found("large").len(), found("grown").len()), (0, 5000, 4000));
    // A directory and its file, renamed and removed while the create is held back.
    let deep = warm_dir(&dir, "deep");
    let file = create(deep.join("x"));
    run(&mut shell(
        &dir,
        "mv deep moved && ! rmdir moved 2> /dev/null && rm -r moved && test ! -e moved",
    ));
    file.write_all_at(b"unlinked", 0).expect("pwrite");
    drop(file);
    cluster.finish();
}

/// The death of a daemon, and of the mount, while creates are held back.
#[test]
fn held_creates_survive_a_daemon_and_leave_nothing_half_when_the_mount_dies() {
    let cluster = start();
    let (one, two) = (cluster.mount(0), cluster.mount(1));
    let dirs: Vec<_> = (0..6).map(|n| warm_dir(&one, &format!("d{n}"))).collect();
    let files: Vec<_> = dirs.iter().map(|dir| create(dir.join("new"))).collect();
    for node in 0..2 {
        cluster.kill_node(node);
    }
    for node in 0..2 {
        cluster.start_node(node);
    }
    for (n, file) in files.iter().enumerate() {
        file.write_all_at(b"after", 0).expect("pwrite");
        assert_eq!(get(two.join(format!("d{n}/new"))), b"after");
    }
    drop(files);
    let dirs: Vec<_> = (0..6).map(|n| warm_dir(&one, &format!("e{n}"))).collect();
    let files: Vec<_> = dirs.iter().map(|dir| create(dir.join("new"))).collect();
    cluster.kill_mount(0);
    drop(files);
    for n in 0..6 {
        let dir = two.join(format!("e{n}"));
        // Others go on at once: a mount that is dead has nothing any more.
        put(dir.join("other"), b"other");
        assert!(names(&dir).len() > WARM);
        assert!(fs::metadata(dir.join("new")).map_or(true, |found| found.len() == 0));
        put(dir.join("new"), b"of the other");
    }
    cluster.start_mount(0);
    assert_eq!(get(cluster.mount(0).join("e3/new")), b"of the other");
    cluster.finish();
}

/// Two mounts make files in one directory at the same time: each name once, and no bytes are lost.
#[test]
fn two_mounts_that_make_files_in_one_directory_lose_none() {
    const FILES: usize = 300;
    let cluster = start();
    let (one, two) = (cluster.mount(0), cluster.mount(1));
    warm_dir(&one, "d");
    let make = |mount: &Path, writer: u8| {
        let dir = mount.join("d");
        std::thread::spawn(move || {
            let mut won = 0;
            for n in 0..FILES {
                put(dir.join(format!("own{writer}-{n}")), [writer; 50]);
                let path = dir.join(format!("shared{n}"));
                match OpenOptions::new().write(true).create_new(true).open(path) {
                    Ok(mut file) => {
                        file.write_all(&[writer; 50]).expect("write");
                        won += 1;
                    }
                    Err(error) => assert_eq!(error.kind(), ErrorKind::AlreadyExists),
                }
            }
            won
        })
    };
    let makers = [make(&one, 1), make(&two, 2)];
    let won: usize = makers.into_iter().map(|maker| maker.join().expect("it made files")).sum();
    assert_eq!(won, FILES, "one of them makes each shared file");
    for mount in [&one, &two] {
        let dir = mount.join("d");
        assert_eq!(names(&dir).len(), WARM + 3 * FILES);
        for n in 0..FILES {
            for writer in [1, 2] {
                assert_eq!(get(dir.join(format!("own{writer}-{n}"))), [writer; 50]);
            }
            let bytes = get(dir.join(format!("shared{n}")));
            assert!(bytes == [1; 50] || bytes == [2; 50], "{n}: {bytes:?}");
        }
    }
    cluster.finish();
}
