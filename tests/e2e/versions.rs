//! Earlier states of files: the policy `versions`, and the commands that list and restore them.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};
use tatami_tests::command::{ask, run, shell, wide_number};
use tatami_tests::files::{get, open, put, stat};
use tatami_tests::policies::skip_with_policies;
use tatami_tests::process::pause;
use tatami_tests::{Cluster, Setup};

/// An ordinary user.
const USER: u32 = 4022;
/// Longest wait for an event.
const DEADLINE: Duration = Duration::from_secs(60);

/// Returns a volume of two nodes with region devices, whose files keep versions by this rule.
fn start(rule: &str) -> Cluster {
    let cluster = Setup::nodes(2).with_regions().start();
    cluster.tatami("set", &["--inline", "0", "--engine", "region", "--versions", rule, ":/"]);
    cluster
}

fn json_of(text: &str) -> serde_json::Value {
    serde_json::from_str(text).expect("JSON")
}

/// Returns numbers and sizes of the versions of a file.
fn versions_of(cluster: &Cluster, path: &str) -> Vec<(u64, u64)> {
    let said = json_of(&cluster.tatami("versions", &["--json", path]).out);
    let all = said["files"][0]["versions"].as_array().expect("a list");
    let version =
        |v: &serde_json::Value| (v["version"].as_u64().expect("a number"), wide_number(&v["size"]));
    all.iter().map(version).collect()
}

/// Returns the bytes of a version.
fn version_bytes(cluster: &Cluster, path: &str, number: u64) -> Vec<u8> {
    let to = cluster.dir().join("copy-of-version");
    let number = number.to_string();
    let target = to.to_str().expect("UTF-8");
    cluster.tatami("restore", &["--version", &number, "--to", target, path]);
    let bytes = get(&to);
    fs::remove_file(&to).expect("removed");
    bytes
}

fn restore(cluster: &Cluster, path: &str, number: u64) {
    cluster.tatami("restore", &["--version", &number.to_string(), path]);
}

fn append(path: &Path, bytes: &[u8]) {
    let mut file = OpenOptions::new().append(true).open(path).expect("open");
    file.write_all(bytes).expect("append");
}

/// The ways in which programs rewrite files, and the versions that they leave.
#[test]
fn a_rewrite_leaves_one_version_of_what_was_there() {
    let cluster = start("10");
    let (one, two) = (cluster.mount(0), cluster.mount(1));
    put(one.join("f"), b"first");
    assert_eq!(versions_of(&cluster, ":/f"), []);
    let said = cluster.tatami("versions", &[":/f"]).out;
    assert!(said.contains("no older version yet"), "{said}");
    // 256 writes after a cut at the open are one change.
    let mut file = File::create(one.join("f")).expect("open with O_TRUNC");
    for n in 0..256usize {
        file.write_all(&[n as u8; 4096]).expect("write");
    }
    assert_eq!(versions_of(&cluster, ":/f"), [(1, 5)]);
    drop(file);
    assert_eq!(version_bytes(&cluster, ":/f", 1), b"first");
    // Each open of a program that appends, on the same mount at once, sees a closed state.
    append(&one.join("f"), b"x");
    append(&one.join("f"), b"y");
    assert_eq!(versions_of(&cluster, ":/f"), [(1, 5), (2, 1 << 20), (3, (1 << 20) + 1)]);
    // Programs of a shell that share an open file are one writer.
    run(&mut shell(
        &one,
        "cp /dev/null g; { echo a; ls / > /dev/null; echo b; cat /dev/null; echo c; } > g",
    ));
    assert_eq!((versions_of(&cluster, ":/g"), get(two.join("g"))), (vec![], b"a\nb\nc\n".into()));
    run(&mut shell(&one, "cp f g && cp g f && dd if=f of=g bs=4k status=none"));
    assert_eq!(versions_of(&cluster, ":/g"), [(1, 6), (2, (1 << 20) + 2)]);
    // What was synced is a state, while the program goes on.
    let file = open(two.join("g"));
    for n in 0..3u8 {
        file.write_all_at(&[n; 100], 0).expect("write");
        file.write_all_at(&[n; 100], 4096).expect("write");
        file.sync_all().expect("fsync");
    }
    drop(file);
    let sizes: Vec<u64> = versions_of(&cluster, ":/g").iter().map(|v| v.1).collect();
    assert_eq!(sizes, [6, (1 << 20) + 2, (1 << 20) + 2, (1 << 20) + 2, (1 << 20) + 2]);
    assert_eq!(version_bytes(&cluster, ":/g", 5)[..100], [1; 100]);
    // A rename over a file is another file.
    run(&mut shell(&one, "echo new > h.tmp && echo old > h && mv h.tmp h"));
    assert_eq!(versions_of(&cluster, ":/h"), []);
    // Reads, attributes and names make none, and the space is that of the file.
    let before = versions_of(&cluster, ":/f").len();
    run(&mut shell(&two, "cat f > /dev/null; chmod 600 f; ln f l; mv l m; touch f; : >> f"));
    assert_eq!(versions_of(&cluster, ":/m").len(), before);
    let used = |name: &str| run(&mut shell(&one, &format!("du -k {name}"))).out;
    assert_eq!(used("f").split('\t').next(), used("g").split('\t').next());
    cluster.finish();
}

/// Programs on two mounts rewrite one file in turn. Each state is kept, and each can be restored.
#[test]
fn states_of_writers_on_two_mounts_are_kept_and_restored() {
    let cluster = start("20");
    let mounts = [cluster.mount(0), cluster.mount(1)];
    let state = |n: usize| vec![n as u8 + 1; 1000 + 10_007 * n];
    for n in 0..8 {
        put(mounts[n % 2].join("f"), state(n));
    }
    let expected: Vec<_> = (0..7).map(|n| (n as u64 + 1, state(n).len() as u64)).collect();
    assert_eq!(versions_of(&cluster, ":/f"), expected);
    for n in 0..7 {
        assert!(version_bytes(&cluster, ":/f", n as u64 + 1) == state(n), "version {n}");
    }
    // A reader that has the file open, and a handle that writes, go on.
    let reader = open(mounts[1].join("f"));
    restore(&cluster, ":/f", 3);
    for mount in &mounts {
        assert!(get(mount.join("f")) == state(2));
        assert_eq!(stat(mount.join("f")).len(), state(2).len() as u64);
    }
    let mut byte = [0; 10];
    assert_eq!(reader.read_at(&mut byte, 0).expect("read"), 10);
    assert_eq!(byte, [3; 10]);
    drop(reader);
    // The restore can be undone: what was there is the last version.
    let last = *versions_of(&cluster, ":/f").last().expect("one");
    assert_eq!(last, (8, state(7).len() as u64));
    restore(&cluster, mounts[0].join("f").to_str().expect("UTF-8"), 8);
    assert!(get(mounts[1].join("f")) == state(7));
    // Into the volume, and not over a file that is there.
    cluster.tatami("restore", &["--version", "1", "--to", ":/old", ":/f"]);
    assert!(get(mounts[1].join("old")) == state(0));
    let again = ["--version", "1", "--to", ":/old", ":/f"];
    let said = ask(cluster.command("restore").args(again));
    assert!(said.code == Some(1) && said.err.contains(":/old exists"), "{said:?}");
    let said = ask(cluster.command("restore").args(["--version", "99", ":/f"]));
    assert!(said.code == Some(1) && said.err.contains("has no version 99"), "{said:?}");
    assert!(said.err.contains("tatami versions :/f"), "{said:?}");
    cluster.finish();
}

/// A reader sees the old or the restored state as a whole, also while restores follow each other.
#[test]
fn a_restore_is_seen_as_a_whole() {
    let cluster = start("60");
    let (one, two) = (cluster.mount(0), cluster.mount(1));
    put(one.join("f"), vec![1; 300_000]);
    put(one.join("f"), vec![2; 300_000]);
    restore(&cluster, ":/f", 1);
    // Without the kernel's cache of the reader, which another mount's change leaves for a moment.
    let path = two.join("f");
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let reader = std::thread::spawn({
        let stop = stop.clone();
        move || {
            let mut reads = 0;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                let bytes = get(&path);
                assert_eq!(bytes.len(), 300_000);
                assert!(bytes.chunks(65_536).all(|part| part.iter().all(|b| *b == part[0])));
                reads += 1;
            }
            reads
        }
    });
    for n in 0..10 {
        restore(&cluster, ":/f", 1 + n % 2);
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    assert!(reader.join().expect("it read") > 0);
    cluster.finish();
}

/// Versions are thinned out by count and by age.
#[test]
fn versions_end_by_count_and_by_age() {
    let cluster = start("3");
    let one = cluster.mount(0);
    for n in 0..10u8 {
        put(one.join("f"), vec![n; 100 + usize::from(n)]);
    }
    assert_eq!(versions_of(&cluster, ":/f"), [(7, 106), (8, 107), (9, 108)]);
    run(&mut shell(&one, "mkdir short none && setfattr -n user.tatami.versions -v 5,1s short"));
    cluster.tatami("set", &["--versions", "0", ":/none"]);
    put(one.join("short/f"), b"one");
    put(one.join("short/f"), b"four");
    // It may be gone by now: the rule says one second.
    assert!(versions_of(&cluster, ":/short/f").len() <= 1);
    let begin = Instant::now();
    while !versions_of(&cluster, ":/short/f").is_empty() {
        assert!(begin.elapsed() < DEADLINE, "the version does not end");
        pause();
    }
    assert_eq!(versions_of(&cluster, ":/f").len(), 3);
    put(one.join("none/f"), b"one");
    put(one.join("none/f"), b"two");
    let said = ask(cluster.command("versions").arg(":/none/f"));
    assert!(said.code == Some(1) && said.err.contains("keeps no versions"), "{said:?}");
    assert!(said.err.contains("tatami set --engine region --versions 10 DIR"), "{said:?}");
    cluster.finish();
}

/// Daemons stop, and die. Versions and their numbers are there again.
#[test]
fn versions_survive_restarts_and_deaths_of_the_daemon() {
    let cluster = start("5");
    let (one, two) = (cluster.mount(0), cluster.mount(1));
    let state = |n: u8| vec![n + 1; 5000 * usize::from(n + 1)];
    let check = |last: u8| {
        let numbers: Vec<u64> = versions_of(&cluster, ":/f").iter().map(|v| v.0).collect();
        let expected: Vec<u64> = (u64::from(last).saturating_sub(4).max(1)..=last.into()).collect();
        assert_eq!(numbers, expected);
        for number in numbers {
            let bytes = version_bytes(&cluster, ":/f", number);
            assert!(bytes == state(number as u8 - 1), "version {number}");
        }
        assert!(get(two.join("f")) == state(last));
    };
    for n in 0..4 {
        put(one.join("f"), state(n));
    }
    check(3);
    cluster.kill_node(0);
    cluster.start_node(0);
    check(3);
    put(two.join("f"), state(4));
    run(cluster.command("node stop").arg("0"));
    cluster.start_node(0);
    check(4);
    for n in 5..9 {
        put(one.join("f"), state(n));
        cluster.kill_node(0);
        cluster.start_node(0);
    }
    check(8);
    restore(&cluster, ":/f", 6);
    cluster.kill_node(0);
    cluster.start_node(0);
    assert!(get(two.join("f")) == state(5));
    assert_eq!(versions_of(&cluster, ":/f").last().map(|v| v.0), Some(9));
    cluster.finish();
}

/// A mount dies in the middle of a write. What it has written is a state, which the next program
/// that rewrites the file leaves as a version.
#[test]
fn the_state_of_a_mount_that_died_is_kept() {
    let cluster = start("5");
    let (one, two) = (cluster.mount(0), cluster.mount(1));
    put(one.join("f"), b"whole");
    let mut file = File::create(one.join("f")).expect("open");
    file.write_all(b"half").expect("write");
    file.metadata().expect("fstat");
    cluster.kill_mount(0);
    drop(file);
    put(two.join("f"), b"new");
    assert_eq!(versions_of(&cluster, ":/f"), [(1, 5), (2, 4)]);
    assert_eq!(version_bytes(&cluster, ":/f", 2), b"half");
    cluster.start_mount(0);
    assert_eq!(get(one.join("f")), b"new");
    cluster.finish();
}

/// Who may not read a file does not see its versions, and who may not write it restores none.
#[test]
fn other_users_get_what_the_mode_says() {
    let cluster = start("5");
    let one = cluster.mount(0);
    for (name, mode) in [("secret", "600"), ("shown", "644"), ("shared", "666")] {
        put(one.join(name), b"one");
        put(one.join(name), b"other");
        run(&mut shell(&one, &format!("chmod {mode} {name}")));
    }
    run(&mut shell(&one, "chmod 755 ."));
    let versions = |name: &str| ask(cluster.command_as(USER, "versions").arg(format!(":/{name}")));
    let restored = |name: &str| {
        ask(cluster.command_as(USER, "restore").args(["--version", "1", &format!(":/{name}")]))
    };
    for said in [versions("secret"), restored("secret"), restored("shown")] {
        assert!(said.code == Some(1) && said.err.contains("ermission denied"), "{said:?}");
    }
    assert_eq!((versions("shown").code, versions("shared").code), (Some(0), Some(0)));
    assert_eq!(restored("shared").code, Some(0));
    assert_eq!((get(one.join("shown")), get(one.join("shared"))), (b"other".into(), b"one".into()));
    cluster.finish();
}

/// Policies that contradict each other are refused, by the command and by the shard.
#[test]
fn only_files_in_regions_keep_versions() {
    if skip_with_policies("its directories must have no policies at first") {
        return;
    }
    let cluster = Setup::nodes(1).with_regions().start();
    let one = cluster.mount(0);
    run(&mut shell(&one, "mkdir d"));
    let refused = |words: &[&str], remedy: &str| {
        let said = ask(cluster.command("set").args(words));
        assert!(said.code == Some(2) && said.err.contains(remedy), "{words:?}: {said:?}");
    };
    refused(&["--versions", "10", ":/d"], "tatami set --engine region --versions 10 :/d");
    refused(&["--versions", "201", ":/d"], "a count from 0 to 200");
    let both = ["--inline", "4k", "--engine", "region", "--versions", "3,7d", ":/d"];
    refused(&both, "tatami set --inline 0 --engine region --versions 3,7d :/d");
    let said = ask(&mut shell(&one, "setfattr -n user.tatami.versions -v 3 d"));
    assert!(said.err.contains("Invalid argument"), "{said:?}");
    // From beside the inode to regions with versions, and back, each by one command.
    cluster.tatami("set", &["--inline", "4k", ":/d"]);
    cluster.tatami("set", &["--inline", "0", "--engine", "region", "--versions", "3,7d", ":/d"]);
    let said = json_of(&cluster.tatami("get", &["--json", ":/d"]).out);
    assert_eq!(said["directories"][0]["policies"]["versions"], "3,7d");
    refused(&["--engine", "file", ":/d"], "--versions 0 for none");
    for words in ["setfattr -x user.tatami.engine d", "setfattr -n user.tatami.inline -v 1k d"] {
        let said = ask(&mut shell(&one, words));
        assert!(said.err.contains("Invalid argument"), "{said:?}");
    }
    run(&mut shell(
        &one,
        "cp -a d copy && mkdir d/sub && getfattr -n user.tatami.versions copy d/sub",
    ));
    cluster.tatami("set", &["--versions", "0", "--engine", "file", "--inline", "1k", ":/d"]);
    cluster.tatami("set", &["--unset", "engine", "--unset", "versions", ":/copy"]);
    // A file of the disk, a directory, and a file that is not there.
    put(one.join("plain"), b"bytes");
    for (path, words) in
        [(":/plain", "keeps no versions"), (":/d", "is no file"), (":/x", "no such")]
    {
        let said = ask(cluster.command("versions").arg(path));
        assert!(said.code != Some(0) && said.err.contains(words), "{said:?}");
    }
    cluster.finish();
}

/// Versions go along when a file moves to another node, and stay when it outgrows its region.
#[test]
fn versions_go_along_and_stay() {
    let cluster = start("4");
    let (one, two) = (cluster.mount(0), cluster.mount(1));
    let state = |n: u8| vec![n + 1; 70_000 * usize::from(n + 1)];
    for n in 0..4 {
        put(one.join("f"), state(n));
    }
    let times = || {
        let said = json_of(&cluster.tatami("versions", &["--json", ":/f"]).out);
        said["files"][0]["versions"].clone()
    };
    let before = times();
    cluster.tatami("relayout", &["--on", "node1", ":/f"]);
    let said = cluster.tatami("where", &["--json", ":/f"]).out;
    assert!(said.contains("region"), "{said}");
    assert_eq!(times(), before);
    assert!(get(two.join("f")) == state(3));
    for number in 1..=3 {
        assert!(version_bytes(&cluster, ":/f", number) == state(number as u8 - 1));
    }
    restore(&cluster, ":/f", 2);
    assert!(get(one.join("f")) == state(1));
    let said = ask(cluster.command("relayout").args(["--to", "striped", ":/f"]));
    assert!(said.code == Some(1) && said.err.contains("versions"), "{said:?}");
    // It outgrows its region. What it had stays, and what it was is one more.
    append(&two.join("f"), &vec![9; 5 << 20]);
    assert_eq!(versions_of(&cluster, ":/f").iter().map(|v| v.0).collect::<Vec<_>>(), [2, 3, 4, 5]);
    assert!(version_bytes(&cluster, ":/f", 5) == state(1));
    let said = ask(cluster.command("restore").args(["--version", "5", ":/f"]));
    assert!(said.code == Some(1) && said.err.contains("--to PATH"), "{said:?}");
    cluster.kill_node(1);
    cluster.start_node(1);
    assert_eq!(versions_of(&cluster, ":/f").len(), 4);
    run(&mut shell(&one, "rm f"));
    cluster.finish();
}

/// A changed policy reaches files that are there, with the versions that they have.
#[test]
fn files_that_are_there_get_a_new_rule() {
    let cluster = start("4");
    let one = cluster.mount(0);
    run(&mut shell(&one, "mkdir d && for i in 1 2 3; do echo state $i > d/f; done && echo > d/g"));
    let set = |words: &[&str]| {
        let said = cluster.tatami("set", &[&["-r", "--json"], words, &[":/d"]].concat());
        json_of(&said.out)
    };
    let before = versions_of(&cluster, ":/d/f");
    assert_eq!(before.len(), 2);
    let said = set(&["--versions", "9"]);
    assert!(said["moved"] == 2 && said["left"] == 0, "{said}");
    assert_eq!(versions_of(&cluster, ":/d/f"), before);
    assert_eq!(version_bytes(&cluster, ":/d/f", 1), b"state 1\n");
    for n in 4..12 {
        put(one.join("d/f"), format!("state {n}\n"));
    }
    assert_eq!(versions_of(&cluster, ":/d/f").len(), 9);
    assert_eq!(set(&["--versions", "9"])["moved"], 0);
    // What has versions stays in its region. What has none goes where the policy says.
    let said = set(&["--versions", "0", "--engine", "file"]);
    assert!(said["moved"] == 1 && said["left"] == 1, "{said}");
    assert_eq!(said["left_files"][0]["reason"], "versions");
    assert_eq!(versions_of(&cluster, ":/d/f").len(), 9);
    assert_eq!(get(one.join("d/f")), b"state 11\n");
    // The command names a directory below if its policies would contradict each other.
    run(&mut shell(&one, "mkdir d/sub"));
    cluster.tatami("set", &["--inline", "0", "--engine", "region", "--versions", "3", ":/d/sub"]);
    let said = ask(cluster.command("set").args(["-r", "--inline", "1k", ":/d"]));
    assert!(said.code != Some(0) && said.err.contains(":/d/sub: only files in"), "{said:?}");
    cluster.finish();
}

/// Versions give way to new files on a device that fills up, and a removed file frees theirs.
#[test]
fn a_full_device_gives_up_versions_first() {
    let small = |dir: &Path| {
        let device = File::create(dir.join("small-node0"));
        device.and_then(|file| file.set_len(64 << 20)).expect("a sparse file");
    };
    let config = "[node]\nregion_device = \"small-{node}\"\n";
    let cluster = Setup::nodes(1).config(config).prepare(small).start();
    cluster.tatami("set", &["--inline", "0", "--engine", "region", "--versions", "50", ":/"]);
    let one = cluster.mount(0);
    let in_regions = |name: &str| {
        let said = json_of(&cluster.tatami("where", &["--json", &format!(":/{name}")]).out);
        said["files"][0]["engine"] == "region"
    };
    // 40 MiB of versions, on a device of three extents. One of them may have small regions only,
    // if the device got the file while it was cut: then there is room for 30.
    for n in 0..41u8 {
        put(one.join("f"), vec![n; 1_000_000]);
    }
    assert!(versions_of(&cluster, ":/f").len() >= 25);
    for n in 0..25u8 {
        put(one.join(n.to_string()), vec![n; 1_000_000]);
    }
    let objects = cluster.dir().join("node0/objects");
    let files = || {
        let buckets = fs::read_dir(&objects).expect("listed");
        buckets
            .map(|b| fs::read_dir(b.expect("read").path()).expect("listed").count())
            .sum::<usize>()
    };
    assert_eq!(files(), 0, "new files are on the disk, and versions on the device");
    let left = versions_of(&cluster, ":/f");
    assert!(left.len() < 40 && left.last() == Some(&(40, 1_000_000)), "{left:?}");
    assert!((0..25u8).all(|n| get(one.join(n.to_string())) == vec![n; 1_000_000]));
    assert!(in_regions("f") && get(one.join("f")) == vec![40; 1_000_000]);
    assert!(!cluster.status().to_string().contains("region device is nearly full"));
    // Without the file and its versions, there is room again.
    run(&mut shell(&one, "rm f [0-9] 1[0-9]"));
    cluster.kill_node(0);
    cluster.start_node(0);
    let begin = Instant::now();
    for n in 0..20u8 {
        // The removal of objects follows that of names.
        loop {
            put(one.join("new"), vec![n; 1_000_000]);
            if files() == 0 {
                break;
            }
            assert!(begin.elapsed() < DEADLINE, "the space of removed files is not free");
            run(&mut shell(&one, "rm new"));
            pause();
        }
        run(&mut shell(&one, &format!("mv new new{n}")));
    }
    cluster.finish();
}
