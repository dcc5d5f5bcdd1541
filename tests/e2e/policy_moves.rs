//! `tatami set -r` and `tatami relayout --to policy`: files that are there move to where the
//! policies want them, while programs use them, and while processes die.

use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tatami_tests::command::{ask, run, shell, wide_number};
use tatami_tests::files::{bytes_of, get, open, put, stat};
use tatami_tests::model::pattern;
use tatami_tests::process::pause;
use tatami_tests::{Cluster, Setup};

/// An ordinary user.
const USER: u32 = 4022;
/// Bytes that a file beside its inode may have here.
const LIMIT: usize = 4096;
/// The largest object of a region.
const REGION_MAX: usize = 4 << 20;

/// Directions in turn: what the command sets, and the engine of a file by its size.
type Direction = (&'static [&'static str], fn(usize) -> &'static str);

const DIRECTIONS: [Direction; 6] = [
    (&["--inline", "4k", "--engine", "region"], |size| match size {
        0..=LIMIT => "inline",
        _ if size <= REGION_MAX => "region",
        _ => "file",
    }),
    (&["--unset", "inline"], |size| if size <= REGION_MAX { "region" } else { "file" }),
    (&["--engine", "file"], |_| "file"),
    (&["--inline", "4k"], |size| if size <= LIMIT { "inline" } else { "file" }),
    (&["--inline", "64k", "--engine", "region"], |size| match size {
        0..=65_536 => "inline",
        _ if size <= REGION_MAX => "region",
        _ => "file",
    }),
    (&["--unset", "inline", "--unset", "engine"], |_| "file"),
];

fn start() -> Cluster {
    let cluster = Setup::nodes(2).with_regions().start();
    // The test chooses the policies, also where all tests run with some.
    cluster.tatami("set", &["--unset", "inline", "--unset", "engine", ":/"]);
    cluster
}

fn json_of(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}

fn engine_of(cluster: &Cluster, path: &str) -> String {
    let said = json_of(&cluster.tatami("where", &["--json", path]).out);
    said["files"][0]["engine"].as_str().expect("it says so").to_owned()
}

/// Runs `tatami set -r --json ARGS :/d`.
fn set_tree(cluster: &Cluster, args: &[&str]) -> Value {
    json_of(&run(cluster.command("set").args(["-r", "--json"]).args(args).arg(":/d")).out)
}

/// Returns the reasons of the files that were left, by name.
fn reasons(report: &Value) -> BTreeMap<String, String> {
    let files = report["left_files"].as_array().expect("a list");
    let text = |value: &Value| value.as_str().expect("text").to_owned();
    files.iter().map(|file| (text(&file["path"]), text(&file["reason"]))).collect()
}

/// Makes files of many sizes in directories of both mounts. Returns their bytes by name.
fn make_tree(cluster: &Cluster) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    fs::create_dir_all(cluster.mount(0).join("d/e/f")).expect("mkdir");
    let sizes = [0, 1, 100, LIMIT, LIMIT + 1, 50_000, 65_536, 300_000, REGION_MAX, REGION_MAX + 1];
    for (n, size) in sizes.into_iter().enumerate() {
        for (node, dir) in [(0, "d"), (1, "d/e"), (1, "d/e/f")] {
            let name = format!("{dir}/{size}");
            let bytes = pattern(n as u8, 0, size);
            put(cluster.mount(node).join(&name), &bytes);
            files.insert(name, bytes);
        }
    }
    files
}

fn check_tree(cluster: &Cluster, files: &BTreeMap<String, Vec<u8>>) {
    for (n, (name, bytes)) in files.iter().enumerate() {
        assert!(get(cluster.mount((n % 2) as u16).join(name)) == *bytes, "{name}");
    }
}

/// A tree goes through all directions. Each file keeps what it is: bytes, number, times, links. The
/// second run moves nothing.
#[test]
fn a_tree_moves_in_all_directions_and_keeps_what_it_is() {
    let cluster = start();
    let (one, two) = (cluster.mount(0), cluster.mount(1));
    let files = make_tree(&cluster);
    // One file with two names in two directories, a sparse file, links, and one in pieces.
    fs::hard_link(one.join("d/100"), one.join("d/e/linked")).expect("linked");
    std::os::unix::fs::symlink("100", one.join("d/symlink")).expect("linked");
    let sparse = File::create(two.join("d/sparse")).expect("made");
    sparse.write_all_at(&[7; LIMIT], 1 << 20).expect("written");
    sparse.set_len(1 << 30).expect("extended");
    drop(sparse);
    let pieces = pattern(9, 0, 30_000);
    make_pieces(&cluster, &pieces);
    let before: BTreeMap<_, _> = files.keys().map(|name| (name, stat(one.join(name)))).collect();
    let blocks = stat(one.join("d/sparse")).blocks();
    for (args, engine) in DIRECTIONS {
        let dry = set_tree(&cluster, &[args, &["--dry-run"]].concat());
        let report = set_tree(&cluster, args);
        assert_eq!(report["failed"], 0, "{args:?}: {report}");
        assert_eq!(
            reasons(&report),
            [(":/d/pieces".into(), "in-pieces".into())].into(),
            "{args:?}"
        );
        assert_eq!((&report["directories"], &report["left"]), (&3.into(), &1.into()));
        assert_eq!((&dry["dry_run"], &dry["left"]), (&true.into(), &1.into()), "{dry}");
        for (name, bytes) in &files {
            assert_eq!(engine_of(&cluster, &format!(":/{name}")), engine(bytes.len()), "{name}");
            let (now, old) = (stat(two.join(name)), &before[name]);
            assert_eq!((now.ino(), now.len(), now.nlink()), (old.ino(), old.len(), old.nlink()));
            assert_eq!(now.modified().expect("time"), old.modified().expect("time"), "{name}");
        }
        check_tree(&cluster, &files);
        assert!(get(two.join("d/e/linked")) == files["d/100"], "{args:?}");
        assert!(get(two.join("d/pieces")) == pieces, "{args:?}");
        let sparse = stat(one.join("d/sparse"));
        assert!(sparse.len() == 1 << 30 && sparse.blocks() <= blocks + 8, "{sparse:?}");
        let again = set_tree(&cluster, args);
        assert_eq!((&again["moved"], &again["left"]), (&0.into(), &1.into()), "{args:?}: {again}");
        assert_eq!(again["same"].as_u64(), Some(files.len() as u64 + 1), "{args:?}: {again}");
        let again = ask(cluster.command("relayout").args(["--to", "policy", "-r", ":/d"]));
        assert!(again.out.contains("0 files moved") && again.code == Some(0), "{again:?}");
        cluster.fsck();
    }
    let mut sparse = open(one.join("d/sparse"));
    let mut part = vec![1; LIMIT + 2];
    sparse.read_exact_at(&mut part, (1 << 20) - 1).expect("read");
    assert!(part[0] == 0 && part[1..=LIMIT] == [7; LIMIT] && part[LIMIT + 1] == 0);
    sparse.seek(SeekFrom::End(-3)).expect("seek");
    let mut end = Vec::new();
    sparse.read_to_end(&mut end).expect("read");
    assert_eq!(end, [0; 3]);
    drop(sparse);
    // Each file still is one that can be changed, wherever it went.
    for (name, bytes) in &files {
        let mut file = OpenOptions::new().append(true).open(two.join(name)).expect("open");
        file.write_all(b"end").expect("append");
        drop(file);
        assert!(get(one.join(name)) == [&bytes[..], b"end"].concat(), "{name}");
    }
    cluster.finish();
}

fn make_pieces(cluster: &Cluster, bytes: &[u8]) {
    put(cluster.mount(0).join("d/pieces"), bytes);
    cluster.tatami("relayout", &["--to", "striped", "--stripe", "4k", ":/d/pieces"]);
}

/// Chosen files move where the policies of their directories want them, and nothing is set.
#[test]
fn chosen_files_follow_the_policies_of_their_directories() {
    let cluster = start();
    let one = cluster.mount(0);
    fs::create_dir(one.join("d")).expect("mkdir");
    for name in ["d/a", "d/b", "top"] {
        put(one.join(name), pattern(1, 0, 9000));
    }
    cluster.tatami("set", &["--engine", "region", ":/d"]);
    let said = cluster.tatami("relayout", &["--to", "policy", "--json", ":/d/a", ":/top"]);
    let report = json_of(&said.out);
    assert_eq!((&report["moved"], &report["same"]), (&1.into(), &1.into()), "{report}");
    assert_eq!(wide_number(&report["bytes"]), 9000);
    let engines = || ["d/a", "d/b", "top"].map(|name| engine_of(&cluster, &format!(":/{name}")));
    assert_eq!(engines(), ["region", "file", "file"]);
    // By a path of a mount, slowly, and in the background.
    let path = one.join("d").display().to_string();
    let said = ask(cluster.command("relayout").args(["--to", "policy", &path]));
    assert!(said.code == Some(2) && said.err.contains("is a directory"), "{said:?}");
    cluster.tatami("relayout", &["--to", "policy", "--rate", "20m", "-r", &path]);
    assert_eq!(engines(), ["region", "region", "file"]);
    let args = ["-r", "--inline", "16k", "--rate", "100", "--background", ":/"];
    let said = cluster.tatami("set", &args).out;
    let process = said.split_whitespace().nth(1).and_then(|pid| pid.parse::<u64>().ok());
    let process = process.expect("a number");
    let begun = Instant::now();
    let note = loop {
        let said = json_of(&cluster.tatami("relayout", &["--status", "--json"]).out);
        let all = said["relayouts"].as_array().expect("a list").clone();
        let ours = all.into_iter().find(|one| one["pid"] == process).expect("a note");
        if ours["state"] != "running" {
            break ours;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{ours}");
        pause();
    };
    assert_eq!((&note["state"], &note["changed"]), (&"done".into(), &3.into()), "{note}");
    assert_eq!(engines(), ["inline", "inline", "inline"]);
    for (args, why) in [
        (&["--to", "policy", "--on", "1", ":/top"][..], "choose the place"),
        (&["--rate", "3", ":/top"], "belong to --to policy"),
        (&["--to", "policy", "--rate", "0", ":/top"], "a rate of nothing"),
    ] {
        let said = ask(cluster.command("relayout").args(args));
        assert!(said.code == Some(2) && said.err.contains(why), "{args:?}: {said:?}");
    }
    let said = ask(cluster.command("set").args(["--dry-run", "--inline", "4k", ":/"]));
    assert!(said.code == Some(2) && said.err.contains("without -r"), "{said:?}");
    cluster.finish();
}

/// A file that a program has open stays, with its reason, and moves later. What is beside the inode
/// moves while programs have it open.
#[test]
fn what_is_open_stays_and_is_named() {
    let cluster = start();
    let (one, two) = (cluster.mount(0), cluster.mount(1));
    fs::create_dir(one.join("d")).expect("mkdir");
    for name in ["read", "written", "mapped", "free"] {
        put(one.join("d").join(name), pattern(1, 0, 3000));
    }
    let reader = File::open(two.join("d/read")).expect("open");
    let writer = OpenOptions::new().append(true).open(two.join("d/written")).expect("open");
    // A mapping keeps a file open without a descriptor.
    let script = "import mmap, os, sys\n\
        f = os.open('d/mapped', os.O_RDWR)\n\
        m = mmap.mmap(f, 3000)\n\
        os.close(f)\n\
        print('mapped', flush=True)\n\
        sys.stdin.readline()\n\
        m[:3] = b'new'\n\
        m.flush()\n";
    put(cluster.dir().join("map.py"), script);
    let mut mapping = std::process::Command::new("python3")
        .arg(cluster.dir().join("map.py"))
        .current_dir(&one)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3 runs");
    let mut ready = [0; 7];
    mapping.stdout.as_mut().expect("piped").read_exact(&mut ready).expect("it maps");
    let report = set_tree(&cluster, &["--inline", "4k", "--engine", "region"]);
    let open = |name: &str| (format!(":/d/{name}"), "open".to_owned());
    let expected = BTreeMap::from([open("read"), open("written"), open("mapped")]);
    assert_eq!((reasons(&report), &report["moved"]), (expected, &1.into()), "{report}");
    let said = ask(cluster.command("relayout").args(["--to", "policy", ":/d/read"]));
    assert!(said.out.contains("stays where it is: a program has it open"), "{said:?}");
    // They go on.
    (&writer).write_all(b"more").expect("append");
    mapping.stdin.as_mut().expect("piped").write_all(b"\n").expect("told");
    assert!(mapping.wait().expect("it ends").success());
    assert!(bytes_of(&reader) == pattern(1, 0, 3000));
    drop((reader, writer));
    let report = set_tree(&cluster, &["--inline", "4k", "--engine", "region"]);
    assert_eq!((&report["moved"], &report["left"]), (&3.into(), &0.into()), "{report}");
    let changed = pattern(1, 0, 3000);
    assert!(get(two.join("d/mapped")) == [b"new", &changed[3..]].concat());
    assert!(get(one.join("d/written")) == [&changed[..], b"more"].concat());
    // Beside the inode, open files move under their programs: to a region, and on to a disk when
    // the programs have closed them.
    let mut reader = File::open(two.join("d/read")).expect("open");
    let mut writer = OpenOptions::new().append(true).open(one.join("d/read")).expect("open");
    writer.write_all(b" before").expect("append");
    let report = set_tree(&cluster, &["--inline", "0"]);
    assert_eq!((&report["moved"], &report["left"]), (&4.into(), &0.into()), "{report}");
    writer.write_all(b" after").expect("append");
    let expected = [&changed[..], b" before after"].concat();
    let mut seen = Vec::new();
    reader.read_to_end(&mut seen).expect("read");
    writer.sync_all().expect("fsync");
    reader.seek(SeekFrom::Start(0)).expect("seek");
    seen.clear();
    reader.read_to_end(&mut seen).expect("read");
    assert!(seen == expected, "{} bytes of {}", seen.len(), expected.len());
    drop(writer);
    assert_eq!(engine_of(&cluster, ":/d/read"), "region");
    assert!(get(one.join("d/read")) == expected);
    drop(reader);
    cluster.finish();
}

/// Clears a flag when it is dropped.
struct EndOnDrop<'a>(&'a AtomicBool);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

/// Returns a line that no other writer writes.
fn line_of(writer: usize, n: usize) -> Vec<u8> {
    format!("{writer:3} {n:6} {:>40}\n", writer * 1_000_000 + n).into_bytes()
}

/// Programs on two mounts append, read, map, rename and link in a tree that moves to and fro. No
/// line is lost, and none is there twice.
#[test]
fn programs_go_on_while_a_tree_moves_to_and_fro() {
    const LINES: usize = 150;
    let cluster = start();
    let (one, two) = (cluster.mount(0), cluster.mount(1));
    let files = make_tree(&cluster);
    put(one.join("d/kept-open"), b"");
    put(one.join("d/log"), b"");
    let moving = AtomicBool::new(true);
    let mut rounds = 0;
    std::thread::scope(|scope| {
        // Also if this closure panics: the scope waits for its threads.
        let ending = EndOnDrop(&moving);
        let mut writers = Vec::new();
        for writer in 0..4 {
            let mount = cluster.mount((writer % 2) as u16);
            // Two open the file for each line, two keep it open.
            writers.push(scope.spawn(move || {
                let append = |name: &str| {
                    OpenOptions::new().append(true).open(mount.join(name)).expect("open")
                };
                let mut kept = append("d/kept-open");
                for n in 0..LINES {
                    match writer < 2 {
                        true => append("d/log").write_all(&line_of(writer, n)).expect("append"),
                        false => kept.write_all(&line_of(writer, n)).expect("append"),
                    }
                    pause();
                }
            }));
        }
        // Files are replaced by rename, as editors do, and read back.
        let renamer = scope.spawn(|| {
            for n in 0..LINES {
                let bytes = pattern(n as u8, 0, n * 100);
                put(two.join("d/new"), &bytes);
                fs::rename(two.join("d/new"), two.join("d/e/replaced")).expect("renamed");
                assert!(get(two.join("d/e/replaced")) == bytes, "{n}");
                pause();
            }
        });
        // A shared mapping for each round.
        let mapper = scope.spawn(|| {
            let script = "import mmap, os\n\
                f = os.open('d/mapped', os.O_RDWR | os.O_CREAT)\n\
                n = int(os.environ['N'])\n\
                os.ftruncate(f, 6000)\n\
                m = mmap.mmap(f, 6000)\n\
                assert n == 0 or m[n * 10 - 10:n * 10] == b'%010d' % (n - 1), n\n\
                m[n * 10:n * 10 + 10] = b'%010d' % n\n\
                m.flush()\n";
            put(cluster.dir().join("map.py"), script);
            for n in 0..30 {
                let mount = cluster.mount(n % 2);
                let mut command = std::process::Command::new("python3");
                command.arg(cluster.dir().join("map.py")).current_dir(mount);
                run(command.env("N", n.to_string()));
            }
        });
        let readers: Vec<_> = (0..2)
            .map(|n: u16| {
                let (mount, files, moving) = (cluster.mount(n), &files, &moving);
                scope.spawn(move || {
                    while moving.load(Ordering::SeqCst) {
                        for (name, bytes) in files.iter().filter(|(_, b)| b.len() < 100_000) {
                            assert!(get(mount.join(name)) == *bytes, "{name}");
                        }
                    }
                })
            })
            .collect();
        loop {
            let is_last = writers.iter().all(std::thread::ScopedJoinHandle::is_finished)
                && renamer.is_finished()
                && mapper.is_finished();
            for (args, _) in DIRECTIONS {
                let report = set_tree(&cluster, args);
                assert_eq!(report["failed"], 0, "{report}");
                rounds += 1;
            }
            if is_last {
                break;
            }
        }
        drop(ending);
        readers.into_iter().for_each(|reader| reader.join().expect("it reads"));
        writers.into_iter().for_each(|writer| writer.join().expect("it writes"));
        renamer.join().expect("it renames");
        mapper.join().expect("it maps");
    });
    println!("moved {rounds} times");
    for (name, writers) in [("d/log", 0..2), ("d/kept-open", 2..4)] {
        let bytes = get(two.join(name));
        let mut lines: Vec<_> =
            bytes.split_inclusive(|b| *b == b'\n').map(<[u8]>::to_vec).collect();
        let mut expected: Vec<_> =
            writers.flat_map(|w| (0..LINES).map(move |n| line_of(w, n))).collect();
        lines.sort();
        expected.sort();
        assert!(lines == expected, "{name}: {} lines of {}", lines.len(), expected.len());
    }
    let mapped = get(one.join("d/mapped"));
    let expected: Vec<u8> = (0..30).flat_map(|n| format!("{n:010}").into_bytes()).collect();
    assert!(mapped.len() == 6000 && mapped[..300] == expected);
    check_tree(&cluster, &files);
    // With nothing open, all are where they belong.
    let report = set_tree(&cluster, DIRECTIONS[0].0);
    assert_eq!((&report["left"], &report["failed"]), (&0.into(), &0.into()), "{report}");
    cluster.finish();
}

/// The command, a daemon or a mount is killed while a tree moves. Each file is whole, and the same
/// command goes on with the rest.
#[test]
fn what_is_killed_meanwhile_costs_no_byte() {
    let cluster = Setup::nodes(2).with_regions().config("[node]\nlease_sec = 2\n").start();
    let mut files = make_tree(&cluster);
    for n in 0..150 {
        let name = format!("d/many-{n}");
        let bytes = pattern(n as u8, 0, n * 60);
        put(cluster.mount((n % 2) as u16).join(&name), &bytes);
        files.insert(name, bytes);
    }
    for path in [cluster.mount(0), cluster.mount(1)] {
        run(&mut shell(&path, "sync -f ."));
    }
    let mut random = fastrand::Rng::with_seed(cluster.seed());
    for round in 0..9 {
        let (args, _) = DIRECTIONS[round % DIRECTIONS.len()];
        let mut command = cluster.command("set");
        command.arg("-r").args(args).arg(":/d").stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().expect("starts");
        for _ in 0..random.usize(..25) {
            pause();
        }
        match round % 3 {
            0 => child.kill().expect("killed"),
            1 => {
                let node = random.u16(..2);
                cluster.kill_node(node);
                cluster.start_node(node);
            }
            _ => {
                let node = random.u16(..2);
                cluster.kill_mount(node);
                cluster.start_mount(node);
            }
        }
        child.wait().expect("it ends");
        check_tree(&cluster, &files);
        cluster.fsck();
    }
    // A dead command has its file open until its lease ends.
    let begun = Instant::now();
    loop {
        let report = set_tree(&cluster, DIRECTIONS[0].0);
        assert_eq!(report["failed"], 0, "{report}");
        if report["left"] == 0 {
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(120), "{report}");
    }
    for (name, bytes) in &files {
        let expected = DIRECTIONS[0].1(bytes.len());
        assert_eq!(engine_of(&cluster, &format!(":/{name}")), expected, "{name}");
    }
    check_tree(&cluster, &files);
    cluster.finish();
}

/// A user moves the own files, and nobody else's.
#[test]
fn a_user_moves_the_own_files_only() {
    let cluster = start();
    let one = cluster.mount(0);
    fs::create_dir(one.join("d")).expect("mkdir");
    put(one.join("d/own"), pattern(1, 0, 1000));
    put(one.join("d/other"), pattern(2, 0, 1000));
    for path in ["d", "d/own"] {
        std::os::unix::fs::chown(one.join(path), Some(USER), Some(USER)).expect("chown");
    }
    let said = ask(cluster.command_as(USER, "set").args(["-r", "--inline", "4k", ":/"]));
    assert!(said.code == Some(1) && said.err.contains("ermission denied"), "{said:?}");
    assert_eq!(engine_of(&cluster, ":/d/own"), "file");
    let said = ask(cluster.command_as(USER, "set").args(["-r", "--json", "--inline", "4k", ":/d"]));
    assert!(said.code == Some(1) && said.err.contains("ermission denied"), "{said:?}");
    let report = json_of(&said.out);
    assert_eq!((&report["moved"], &report["failed"]), (&1.into(), &1.into()), "{report}");
    assert_eq!(engine_of(&cluster, ":/d/own"), "inline");
    assert_eq!(engine_of(&cluster, ":/d/other"), "file");
    assert!(get(one.join("d/other")) == pattern(2, 0, 1000));
    assert_eq!((stat(one.join("d/own")).uid(), stat(one.join("d/own")).gid()), (USER, USER));
    cluster.finish();
}

/// On a full device, files stay files of the disk, and the command says why. A node without a
/// device keeps its files, too.
#[test]
fn a_full_device_and_none_leave_the_files_where_they_are() {
    const FILES: u32 = 400;
    let cluster = Setup { regions: false, ..Setup::nodes(1) }.start();
    let one = cluster.mount(0);
    cluster.tatami("set", &["--unset", "inline", "--unset", "engine", ":/"]);
    fs::create_dir(one.join("d")).expect("mkdir");
    let bytes_of_file = |n: u32| vec![n as u8; 150_000 + n as usize];
    for n in 0..FILES {
        put(one.join(format!("d/{n}")), bytes_of_file(n));
    }
    let report = set_tree(&cluster, &["--engine", "region"]);
    assert_eq!((&report["moved"], &report["left"]), (&0.into(), &FILES.into()), "{report}");
    assert!(reasons(&report).values().all(|reason| reason == "no-device"), "{report}");
    let said = ask(cluster.command("relayout").args(["--to", "policy", ":/d/0"]));
    assert!(said.out.contains("node0 has no region device"), "{said:?}");

    let device = cluster.dir().join("small");
    File::create(&device).and_then(|file| file.set_len(64 << 20)).expect("a sparse file");
    cluster.tatami("node add", &["--region-device", device.to_str().expect("UTF-8")]);
    let space = json_of(&cluster.tatami("df", &["--json"]).out);
    cluster.tatami("relayout", &["--on", "node1", "-r", ":/d"]);
    let report = set_tree(&cluster, &["--engine", "region"]);
    let left = report["left"].as_u64().expect("a number");
    assert!(left > 0 && report["moved"].as_u64() > Some(100), "{report}");
    assert!(reasons(&report).values().all(|reason| reason == "device-full"), "{report}");
    let full = ask(cluster.command("relayout").args(["--to", "policy", "-r", ":/d"]));
    assert!(full.out.contains("the region device of node1 is full"), "{full:?}");
    assert!(full.out.contains("0 files moved"), "{full:?}");
    assert!((0..FILES).all(|n| get(one.join(format!("d/{n}"))) == bytes_of_file(n)));
    // What `df` shows is the sum of disk and device.
    let now = json_of(&cluster.tatami("df", &["--json"]).out);
    let free = |said: &Value| wide_number(&said["regions"]["free"]);
    assert!(free(&now) + 100 * 150_000 < free(&space), "{now}");
    let of_disk = wide_number(&now["nodes"][0]["total"]);
    let of_device = wide_number(&now["nodes"][1]["regions"]["total"]);
    assert!(now["nodes"][0]["regions"].is_null() && of_device > 32 << 20, "{now}");
    // Both nodes are on one disk.
    assert_eq!(wide_number(&now["total"]), of_disk + of_device, "{now}");
    let seen = rustix::fs::statvfs(&one).expect("statvfs");
    assert_eq!(seen.f_blocks * seen.f_frsize, (of_disk + of_device) / 4096 * 4096);
    assert!(cluster.tatami("df", &[]).out.contains("node1, regions"));
    let status = cluster.status();
    assert_eq!(wide_number(&status["regions"]["total"]), of_device);
    assert_eq!(wide_number(&status["nodes"][1]["regions"]["total"]), of_device);
    cluster.finish();
}
