//! `tatami relayout`, `where` and `recover` on files of a volume, with readers, writers and deaths
//! beside them.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::{Duration, Instant};
use tatami_layout::journal;
use tatami_tests::cluster_hosts::skip_on_hosts;
use tatami_tests::command::{Said, ask, program, run, wide_number};
use tatami_tests::files::{bytes_of, get, put, stat};
use tatami_tests::job::{Job, NODES, SIZE, tiled_file};
use tatami_tests::model::pattern;
use tatami_tests::policies::skip_with_policies;
use tatami_tests::process::{is_alive, kill_hard};
use tatami_tests::{Cluster, Setup};
use tatami_wire::{Ino, NodeId, Piece};

#[allow(clippy::disallowed_methods)] // background work ends without an event
fn pause() {
    std::thread::sleep(Duration::from_millis(20));
}

/// Runs `tatami relayout ARGS`, which must work and change the file.
fn relayout(cluster: &Cluster, args: &[&str]) {
    let said = run(cluster.command("relayout").arg("--json").args(args));
    let report: serde_json::Value = serde_json::from_str(&said.out).expect("JSON");
    assert_eq!(report["files"][0]["changed"], true, "{args:?}: {report}");
}

/// Runs `tatami where --json` for one file.
fn whereabouts(cluster: &Cluster, path: &str) -> serde_json::Value {
    let said = cluster.tatami("where", &["--json", path]);
    let report: serde_json::Value = serde_json::from_str(&said.out).expect("JSON");
    report["files"][0].clone()
}

fn nodes_of(report: &serde_json::Value) -> Vec<u64> {
    let extents = report["extents"].as_array().expect("extents");
    extents.iter().map(|extent| extent["node"].as_u64().expect("a node")).collect()
}

/// Returns all objects on the disks of the nodes: node, and name.
fn objects(cluster: &Cluster) -> BTreeSet<(u16, String)> {
    let mut found = BTreeSet::new();
    for node in 0..cluster.nodes() {
        let objects = cluster.dir().join(format!("node{node}/objects"));
        for bucket in fs::read_dir(&objects).expect("buckets") {
            // Buckets and objects appear and vanish.
            let Ok(names) = fs::read_dir(bucket.expect("a bucket").path()) else { continue };
            let names = names.filter_map(Result::ok).map(|name| name.file_name());
            found.extend(names.map(|name| (node, name.to_string_lossy().into_owned())));
        }
    }
    found
}

/// Waits until the volume has `count` objects.
fn wait_for_objects(cluster: &Cluster, count: usize) {
    let start = Instant::now();
    loop {
        let found = objects(cluster);
        if found.len() == count {
            return;
        }
        assert!(start.elapsed() < Duration::from_secs(120), "{count}, not {found:?}");
        pause();
    }
}

fn writer(path: &Path) -> fs::File {
    let opened = OpenOptions::new().write(true).open(path);
    opened.unwrap_or_else(|e| panic!("open {}: {e}", path.display()))
}

#[test]
fn a_file_is_laid_out_anew_and_stays_what_it_is() {
    let cluster = Cluster::start(NODES);
    let mounts: Vec<_> = (0..NODES).map(|node| cluster.mount(node)).collect();
    let mut bytes = pattern(1, 0, SIZE);
    tiled_file(&cluster, "f", &bytes);
    let report = whereabouts(&cluster, ":/f");
    assert_eq!(nodes_of(&report), [0, 1, 2, 3]);
    assert_eq!(report["extents"][1]["count"], 50, "{report}");
    assert_eq!(report["extents"][1]["stride"], "4000", "{report}");
    let before = stat(mounts[0].join("f"));
    let mut readers = Vec::new();
    let steps: [&[&str]; 8] = [
        &[":/f"],
        &["--to", "striped", "--stripe", "4k", ":/f"],
        &["--to", "striped", "--stripe", "16k", "--on", "3,node1", ":/f"],
        &["--on", "2", ":/f"],
        &["--on", "0", "--threads", "1", ":/f"],
        &["--to", "striped", "--on", "0", ":/f"],
        &["--to", "striped", "--stripe", "64k", ":/f"],
        &[":/f"],
    ];
    let nodes: [&[u64]; 8] = [&[0], &[0, 1, 2, 3], &[3, 1], &[2], &[0], &[0], &[0, 1, 2, 3], &[0]];
    for (step, nodes) in steps.into_iter().zip(nodes) {
        for mount in &mounts {
            readers.push(fs::File::open(mount.join("f")).expect("open"));
        }
        relayout(&cluster, step);
        let report = whereabouts(&cluster, ":/f");
        assert_eq!(nodes_of(&report), nodes, "{step:?}: {report}");
        for (i, reader) in readers.iter().enumerate() {
            assert!(bytes_of(reader) == bytes, "reader {i} after {step:?}");
        }
        for mount in &mounts {
            assert!(get(mount.join("f")) == bytes, "after {step:?} on {}", mount.display());
        }
        let again = cluster.tatami("relayout", step);
        assert!(again.out.contains("has this layout already"), "{step:?}: {}", again.out);
        let after = stat(mounts[1].join("f"));
        assert_eq!(after.modified().ok(), before.modified().ok(), "the bytes did not change");
        assert_eq!((after.ino(), after.len()), (before.ino(), before.len()));
        // All the old objects are removed, even if the file is open. A striped file has a base with
        // its first append.
        wait_for_objects(&cluster, nodes.len());
    }
    drop(readers);
    // After each step it is an ordinary file.
    for (i, step) in steps.iter().enumerate() {
        let mount = &mounts[i % mounts.len()];
        let new = pattern(50 + i as u8, 0, 5555);
        let at = 7777 * (i + 1);
        writer(&mount.join("f")).write_all_at(&new, at as u64).expect("write");
        bytes[at..at + new.len()].copy_from_slice(&new);
        let end = bytes.len() as u64 + 10;
        writer(&mount.join("f")).write_all_at(&new, end).expect("write beyond the end");
        bytes.resize(end as usize, 0);
        bytes.extend(&new);
        for other in &mounts {
            assert!(get(other.join("f")) == bytes, "before {step:?} on {}", other.display());
        }
        let end = bytes.len() - 3000;
        writer(&mounts[3].join("f")).set_len(end as u64).expect("cut");
        bytes.truncate(end);
        cluster.tatami("relayout", step);
        for other in &mounts {
            assert!(get(other.join("f")) == bytes, "after {step:?} on {}", other.display());
        }
        cluster.fsck();
    }
    // A job tiles it, and after a truncation to nothing it is whole.
    let job = Job::open(&cluster, Ino(before.ino()));
    let parts = job.write(&pattern(9, 0, SIZE));
    job.publish(parts);
    job.close();
    assert!(get(mounts[1].join("f"))[..SIZE] == pattern(9, 0, SIZE));
    put(mounts[2].join("f"), "short");
    assert_eq!(get(mounts[0].join("f")), b"short");
    fs::remove_file(mounts[3].join("f")).expect("unlink");
    wait_for_objects(&cluster, 0);
    cluster.finish();
}

#[test]
fn who_had_it_open_reads_on_and_new_writers_are_heard() {
    let cluster = Cluster::start(2);
    let mounts = [cluster.mount(0), cluster.mount(1)];
    let mut bytes = pattern(3, 0, 300_000);
    put(mounts[0].join("f"), &bytes);
    // On its own node the kernel reads the disk itself.
    let readers = [fs::File::open(mounts[0].join("f")), fs::File::open(mounts[1].join("f"))];
    relayout(&cluster, &["--to", "striped", "--stripe", "4k", ":/f"]);
    wait_for_objects(&cluster, 2);
    for reader in readers.iter().flatten() {
        assert!(bytes_of(reader) == bytes);
    }
    for (i, mount) in mounts.iter().enumerate() {
        let new = pattern(20 + i as u8, 0, 10_000);
        writer(&mount.join("f")).write_all_at(&new, 5000 * i as u64).expect("write");
        bytes[5000 * i..5000 * i + new.len()].copy_from_slice(&new);
        for other in &mounts {
            assert!(get(other.join("f")) == bytes, "{i} on {}", other.display());
        }
    }
    // A mapping would show the old file, so the open is refused with an error.
    let both = OpenOptions::new().read(true).write(true).open(mounts[0].join("f"));
    if let Err(error) = &both {
        assert_eq!(error.raw_os_error(), Some(libc::EBUSY));
    }
    drop((both, readers));
    // The mount learns of a close a moment later; an open does not notice.
    let file = OpenOptions::new().read(true).write(true).open(mounts[0].join("f"));
    let file = file.expect("open, with nobody else there");
    assert!(bytes_of(&file) == bytes);
    drop(file);
    cluster.finish();
}

/// Runs `tatami relayout --background` and returns its process.
fn in_background(cluster: &Cluster, args: &[&str]) -> i32 {
    let said = run(cluster.command("relayout").arg("--background").args(args));
    let number = said.out.split_whitespace().nth(1).and_then(|word| word.parse().ok());
    number.unwrap_or_else(|| panic!("{said:?}"))
}

/// Returns the result of `tatami relayout --status` for a process that has ended.
fn when_it_has_ended(cluster: &Cluster, process: i32) -> serde_json::Value {
    let start = Instant::now();
    loop {
        let said = cluster.tatami("relayout", &["--status", "--json"]);
        let report: serde_json::Value = serde_json::from_str(&said.out).expect("JSON");
        let all = report["relayouts"].as_array().expect("a list").clone();
        let ours = all.into_iter().rfind(|one| one["pid"] == process).expect("a note");
        if ours["state"] != "running" {
            return ours;
        }
        let (copied, size) = (wide_number(&ours["copied"]), wide_number(&ours["size"]));
        assert!(copied <= size, "{ours}");
        assert!(start.elapsed() < Duration::from_secs(120), "{ours}");
        pause();
    }
}

#[test]
fn it_goes_on_in_the_background_and_says_how_far_it_is() {
    let cluster = Cluster::start(NODES);
    let bytes = pattern(1, 0, 60 << 20);
    put(cluster.mount(0).join("f"), &bytes);
    put(cluster.mount(1).join("g"), "short");
    let process = in_background(&cluster, &["--to", "striped", ":/f", ":/g"]);
    let report = when_it_has_ended(&cluster, process);
    assert_eq!((&report["state"], &report["changed"]), (&"done".into(), &2.into()), "{report}");
    assert_eq!(nodes_of(&whereabouts(&cluster, ":/f")), [0, 1, 2, 3]);
    assert!(get(cluster.mount(2).join("f")) == bytes);
    let said = cluster.tatami("relayout", &["--status"]);
    let line = said.out.lines().find(|line| line.contains(&format!("process {process},")));
    assert!(line.is_some_and(|line| line.ends_with("done; 2 files changed")), "{said:?}");

    // The status reports failures, too, and the end of a killed process.
    let file = writer(&cluster.mount(2).join("f"));
    let process = in_background(&cluster, &[":/f", ":/no", ":/g"]);
    let report = when_it_has_ended(&cluster, process);
    assert_eq!((&report["state"], &report["changed"]), (&"failed".into(), &1.into()), "{report}");
    let failures = report["failures"].as_array().expect("a list");
    assert_eq!(failures.len(), 2, "{report}");
    assert!(failures[0].as_str().expect("text").contains("open for writing"), "{report}");
    drop(file);
    let process = in_background(&cluster, &["--on", "1", ":/f"]);
    kill_hard(cluster.pid_outside(0, process));
    let report = when_it_has_ended(&cluster, process);
    assert!(report["state"] == "died" || report["state"] == "done", "{report}");
    assert!(get(cluster.mount(3).join("f")) == bytes);
    cluster.finish();
}

/// Returns the nodes with bytes of a file, and its objects.
fn places_of(cluster: &Cluster, path: &str) -> (BTreeSet<u64>, BTreeSet<String>) {
    let report = whereabouts(cluster, path);
    let extents = report["extents"].as_array().expect("extents");
    let objects = extents.iter().map(|extent| extent["object"].to_string()).collect();
    (nodes_of(&report).into_iter().collect(), objects)
}

#[test]
fn files_of_a_drained_node_are_moved_as_drain_advises() {
    if skip_with_policies("it tells places by the files of objects, which regions have not") {
        return;
    }
    const ANNA: u32 = 4001;
    let cluster = Cluster::start(NODES);
    let (m, bytes) = (cluster.mount(2), pattern(1, 0, SIZE));
    for node in 0..3 {
        put(cluster.mount(node).join(format!("on{node}")), &bytes);
    }
    put(m.join("empty"), "");
    put(m.join("striped"), &bytes);
    relayout(&cluster, &["--to", "striped", "--stripe", "16k", ":/striped"]);
    put(m.join("beside"), &bytes);
    relayout(&cluster, &["--to", "striped", "--stripe", "16k", "--on", "0,1", ":/beside"]);
    tiled_file(&cluster, "tiled", &bytes);
    fs::create_dir(m.join("anna")).expect("mkdir");
    put(m.join("anna/own"), &bytes);
    for path in ["anna", "anna/own"] {
        std::os::unix::fs::chown(m.join(path), Some(ANNA), Some(ANNA)).expect("chown");
    }
    let names = ["on0", "on1", "on2", "striped", "beside", "tiled", "anna/own"];
    let places = || names.map(|name| places_of(&cluster, &format!(":/{name}")));
    let before = places();
    let drained = cluster.tatami("node drain", &["node2"]).out;
    let (_, advice) = drained.rsplit_once("other nodes: tatami ").expect("advice");
    let mut words: Vec<&str> = advice.split_whitespace().collect();
    // The test has the directory of the volume already.
    assert_eq!(words.drain(1..3).next(), Some("--dir"), "{advice}");
    assert_eq!(
        words.iter().rev().take(4).rev().copied().collect::<Vec<_>>(),
        ["-r", "--from", "node2", ":/"]
    );

    // An ordinary user moves the own files.
    let said = ask(cluster.command_as(ANNA, words[0]).args(&words[1..]));
    assert_eq!(said.code, Some(1), "{said:?}");
    assert!(said.err.contains("permission denied"), "{said:?}");
    assert!(!places_of(&cluster, ":/anna/own").0.contains(&2), "{said:?}");
    assert_eq!(places_of(&cluster, ":/on2"), before[2], "it is another user's");

    run(cluster.command(words[0]).args(&words[1..]));
    let after = places();
    for ((name, (_, old)), (nodes, new)) in names.iter().zip(&before).zip(&after) {
        assert!(!nodes.contains(&2), "{name} has bytes on {nodes:?}");
        assert_eq!(new == old, ["on0", "on1"].contains(name), "{name}: {old:?}, {new:?}");
        assert!(get(cluster.mount(1).join(name)) == bytes, "{name}");
    }
    assert_eq!(after[3].0, BTreeSet::from([0, 1, 3]), "striped over the others");
    assert_eq!(after[2].0.len(), 1, "whole as before");
    // The stripes are as long as before.
    let said = cluster
        .tatami("relayout", &["--to", "striped", "--stripe", "16k", "--on", "0,1,3", ":/striped"]);
    assert!(said.out.contains("has this layout already"), "{said:?}");
    // Nothing is left to do, and a file that is named gets a line.
    let said = cluster.tatami("relayout", &["-r", "--from", "2", ":/"]);
    assert_eq!(said.out, "", "{said:?}");
    let said = cluster.tatami("relayout", &["--from", "node2", ":/on0"]);
    assert!(said.out.contains("has nothing on these nodes"), "{said:?}");
    // The daemon removes the old objects meanwhile.
    let start = Instant::now();
    while !cluster.tatami("node drain", &["node2"]).out.contains("no names and no bytes left") {
        assert!(start.elapsed() < Duration::from_secs(120), "{:?}", objects(&cluster));
        pause();
    }
    cluster.finish();
}

#[test]
fn nodes_are_named_on_the_command_line() {
    let cluster = Cluster::start(2);
    put(cluster.mount(0).join("f"), "bytes");
    let places = |nodes: u64| assert_eq!(places_of(&cluster, ":/f").0, BTreeSet::from([nodes]));
    relayout(&cluster, &["--on", "node1", ":/f"]);
    places(1);
    // As release 0.1.0 called it.
    relayout(&cluster, &["--nodes", "0", ":/f"]);
    places(0);
    relayout(&cluster, &["--from", "0,node0", ":/f"]);
    places(1);
    for (args, why) in [
        (&["--from", "1", "--on", "node1", ":/f"][..], "both leave node1 and move to node1"),
        (&["--from", "0,1", ":/f"], "no node that can take the files"),
        (&["--from", "7", ":/f"], "there is no node \"7\""),
        (&["--from", "1", "--to", "container", ":/f"], "a container is a directory on a mount"),
        (&["--from", "1", "/etc/hostname"], "not in a volume"),
    ] {
        let said = ask(cluster.command("relayout").args(args));
        assert!(said.code != Some(0) && said.err.contains(why), "{args:?}: {said:?}");
    }
    let help = run(cluster.command("relayout").arg("--help")).out;
    assert!(help.contains("--on") && !help.contains("--nodes"), "{help}");
    cluster.finish();
}

#[test]
fn a_file_that_is_written_stays_as_it_is() {
    let cluster = Cluster::start(NODES);
    let bytes = pattern(1, 0, SIZE);
    tiled_file(&cluster, "f", &bytes);
    let file = writer(&cluster.mount(2).join("f"));
    let said = ask(cluster.command("relayout").arg(":/f"));
    assert_eq!(said.code, Some(1), "{said:?}");
    assert!(said.err.contains("a program has it open for writing"), "{}", said.err);
    file.write_all_at(b"new", 5).expect("write");
    drop(file);
    relayout(&cluster, &[":/f"]);
    assert!(get(cluster.mount(1).join("f"))[..10] == [&bytes[..5], b"new", &bytes[8..10]].concat());
    // The same for a job that has the file open.
    let job = Job::open(&cluster, Ino(stat(cluster.mount(0).join("f")).ino()));
    let said = ask(cluster.command("relayout").args(["--to", "striped", ":/f"]));
    assert_eq!(said.code, Some(1), "{said:?}");
    job.publish(job.write(&pattern(2, 0, SIZE)));
    job.close();
    relayout(&cluster, &["--to", "striped", ":/f"]);
    assert!(get(cluster.mount(3).join("f")) == pattern(2, 0, SIZE));
    cluster.finish();
}

#[test]
fn what_was_overwritten_is_given_back() {
    let cluster = Cluster::start(NODES);
    let path = cluster.mount(1).join("f");
    tiled_file(&cluster, "f", &pattern(1, 0, SIZE));
    let once = stat(&path).blocks();
    for seed in 2..5 {
        let job = Job::open(&cluster, Ino(stat(&path).ino()));
        job.publish(job.write(&pattern(seed, 0, SIZE)));
        job.close();
    }
    assert!(stat(&path).blocks() > 3 * once, "old pieces stay");
    relayout(&cluster, &["-r", ":/"]);
    assert!(stat(&path).blocks() <= once + 8, "{} of {once} blocks", stat(&path).blocks());
    assert!(get(&path) == pattern(4, 0, SIZE));
    wait_for_objects(&cluster, 1);
    cluster.finish();
}

/// Blocks of the file that is written and read during its relayout.
const BLOCKS: usize = 64;
const BLOCK: usize = 9000;
const WRITES: u8 = 60;

/// Each byte of a block is the number of a write. For each block: the last write with a close that
/// has returned, and the last that has begun.
struct Versions {
    closed: Vec<AtomicU8>,
    begun: Vec<AtomicU8>,
}

impl Versions {
    fn check(&self, mount: &Path) {
        let lowest: Vec<u8> = self.closed.iter().map(|v| v.load(Ordering::SeqCst)).collect();
        let bytes = get(mount.join("f"));
        assert_eq!(bytes.len(), BLOCKS * BLOCK);
        for (i, block) in bytes.chunks(BLOCK).enumerate() {
            let highest = self.begun[i].load(Ordering::SeqCst);
            let wrong = block.iter().position(|byte| !(lowest[i]..=highest).contains(byte));
            if let Some(at) = wrong {
                let is = block[at];
                panic!("byte {at} of block {i} is {is}, not {}..={highest}", lowest[i]);
            }
        }
    }
}

#[test]
fn readers_and_writers_beside_it_lose_nothing() {
    let cluster = Cluster::start(NODES);
    let mounts: Vec<_> = (0..NODES).map(|node| cluster.mount(node)).collect();
    put(mounts[1].join("f"), vec![1; BLOCKS * BLOCK]);
    let versions = Versions {
        closed: (0..BLOCKS).map(|_| AtomicU8::new(1)).collect(),
        begun: (0..BLOCKS).map(|_| AtomicU8::new(1)).collect(),
    };
    let end = AtomicBool::new(false);
    let mut changed = 0;
    std::thread::scope(|scope| {
        for mount in &mounts {
            scope.spawn(|| {
                while !end.load(Ordering::SeqCst) {
                    versions.check(mount);
                }
            });
        }
        let mut writers = Vec::new();
        for rank in 0..2 {
            let (versions, mounts) = (&versions, &mounts);
            let mut random = fastrand::Rng::with_seed(cluster.seed() ^ rank);
            writers.push(scope.spawn(move || {
                for number in 2..WRITES {
                    let i = random.usize(..BLOCKS / 2) * 2 + rank as usize;
                    versions.begun[i].store(number, Ordering::SeqCst);
                    let file = writer(&mounts[random.usize(..mounts.len())].join("f"));
                    let at = (i * BLOCK) as u64;
                    file.write_all_at(&vec![number; BLOCK], at).expect("write");
                    drop(file);
                    versions.closed[i].store(number, Ordering::SeqCst);
                    for _ in 0..random.usize(..20) {
                        pause();
                    }
                }
            }));
        }
        let goals: [&[&str]; 4] = [
            &["--to", "striped", "--stripe", "8k"],
            &["--on", "2"],
            &["--to", "striped", "--stripe", "32k", "--on", "1,3"],
            &["--on", "0"],
        ];
        let mut last_round = false;
        while !last_round {
            last_round = writers.iter().all(std::thread::ScopedJoinHandle::is_finished);
            for goal in goals {
                let said = ask(cluster.command("relayout").args(goal).arg(":/f"));
                let busy = said.code == Some(1) && said.err.contains("open for writing");
                assert!(said.code == Some(0) || busy && !last_round, "{said:?}");
                changed += u32::from(said.code == Some(0));
            }
        }
        end.store(true, Ordering::SeqCst);
    });
    println!("laid out anew {changed} times");
    mounts.iter().for_each(|mount| versions.check(mount));
    wait_for_objects(&cluster, 1);
    cluster.finish();
}

/// Starts a command that runs until it is killed.
fn start(command: &mut Command) -> std::process::Child {
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("starts")
}

/// Striped and whole again, in turns.
const GOALS: [&[&str]; 2] = [&["--to", "striped", "--stripe", "64k", ":/f"], &[":/f"]];

/// Runs relayout again until a dead command counts as dead.
fn relayout_in_the_end(cluster: &Cluster, args: &[&str]) {
    let start = Instant::now();
    loop {
        let said: Said = ask(cluster.command("relayout").args(args));
        if said.code == Some(0) {
            return;
        }
        assert!(said.err.contains("open for writing"), "{said:?}");
        assert!(start.elapsed() < Duration::from_secs(120), "{said:?}");
    }
}

#[test]
fn a_command_that_is_killed_leaves_the_file_and_no_garbage() {
    let cluster = Setup::nodes(NODES).config("[node]\nlease_sec = 2\n").start();
    let mount = cluster.mount(3);
    let bytes = pattern(7, 0, 24 << 20);
    put(cluster.mount(1).join("f"), &bytes);
    let mut random = fastrand::Rng::with_seed(cluster.seed());
    for round in 0..6 {
        let mut child = start(cluster.command("relayout").args(GOALS[round % 2]));
        for _ in 0..random.usize(..15) {
            pause();
        }
        // The command may have ended already.
        child.kill().expect("killed");
        child.wait().expect("waited for");
        assert!(get(mount.join("f")) == bytes, "round {round}");
        cluster.fsck();
    }
    for goal in GOALS {
        relayout_in_the_end(&cluster, goal);
    }
    assert!(get(mount.join("f")) == bytes);
    wait_for_objects(&cluster, 1);
    cluster.finish();
}

#[test]
fn daemons_that_are_killed_cost_time_only() {
    let cluster = Cluster::start(NODES);
    let mount = cluster.mount(3);
    let bytes = pattern(8, 0, 24 << 20);
    put(cluster.mount(1).join("f"), &bytes);
    let mut random = fastrand::Rng::with_seed(cluster.seed());
    for round in 0..6 {
        let mut child = start(cluster.command("relayout").args(GOALS[round % 2]));
        for _ in 0..random.usize(..10) {
            pause();
        }
        let node = random.u16(..NODES);
        cluster.kill_node(node);
        cluster.start_node(node);
        let ended = child.wait().expect("waited for");
        // An absent node at the beginning is an error, and no other condition is.
        assert!(matches!(ended.code(), Some(0 | 1 | 3)), "{ended:?}");
        assert!(get(mount.join("f")) == bytes, "round {round}, node {node}");
        cluster.fsck();
    }
    for goal in GOALS {
        relayout_in_the_end(&cluster, goal);
    }
    assert!(get(mount.join("f")) == bytes);
    wait_for_objects(&cluster, 1);
    cluster.finish();
}

#[test]
fn a_full_disk_leaves_the_file_as_it_was() {
    if skip_on_hosts("the small disk is mounted on this machine; see host_faults")
        || skip_with_policies("its small disk has no room for the journal of a region device")
    {
        return;
    }
    let small = |dir: &Path| {
        let place = dir.join("node1");
        fs::create_dir_all(&place).expect("mkdir");
        run(program("mount -t tmpfs -o mode=0711,size=8m tmpfs").arg(place));
    };
    let cluster = Setup::nodes(2).prepare(small).start();
    let bytes = pattern(5, 0, 20 << 20);
    put(cluster.mount(0).join("f"), &bytes);
    for goal in [["--on", "1"], ["--to", "striped"]] {
        let said = ask(cluster.command("relayout").args(goal).arg(":/f"));
        assert_eq!(said.code, Some(1), "{said:?}");
        assert!(said.err.contains("there is no room for the copy"), "{}", said.err);
        assert!(get(cluster.mount(1).join("f")) == bytes);
        wait_for_objects(&cluster, 1);
    }
    put(cluster.mount(1).join("g"), pattern(6, 0, 4 << 20));
    cluster.finish();
}

#[test]
fn what_a_dead_job_left_is_told_and_settled() {
    let cluster = Setup::nodes(NODES).config("[node]\nlease_sec = 2\n").start();
    let job = Job::create(&cluster, "f");
    let bytes = pattern(5, 0, SIZE);
    job.write_unpublished(&bytes);
    let said = ask(cluster.command("recover").args(["--json", "--wait", "0", ":/f"]));
    let report: serde_json::Value = serde_json::from_str(&said.out).expect("JSON");
    let file = &report["files"][0];
    assert_eq!(file["settled"], false, "{report}");
    assert_eq!(file["found"].as_array().map(Vec::len), Some(usize::from(NODES)), "{report}");
    assert_eq!(
        wide_number(&file["found"][1]["journal"]),
        (SIZE / usize::from(NODES)) as u64,
        "{report}"
    );
    assert_eq!(file["found"][1]["state"], "open", "{report}");
    let ends = cluster.tatami("recover", &["--wait", "0", ":/f"]);
    assert!(ends.out.contains("4 pieces are not closed"), "{}", ends.out);
    // The job dies.
    drop(job);
    let path = cluster.mount(2).join("f");
    let said = cluster.tatami("recover", &[&path.display().to_string()]);
    assert!(said.out.contains(&format!("{SIZE} bytes are there")), "{}", said.out);
    assert!(get(&path) == bytes);
    let said = cluster.tatami("recover", &[":/f"]);
    assert!(said.out.contains("nothing to recover"), "{}", said.out);
    relayout(&cluster, &["--to", "striped", ":/f"]);
    assert!(get(&path) == bytes);
    cluster.finish();
}

/// Whole records follow a damaged one. Their loss is reported until an operator accepts it, and the
/// rest of the file and of the volume works.
#[test]
fn a_damaged_journal_is_told_until_the_loss_is_accepted() {
    let cluster = Setup::nodes(NODES).config("[node]\nlease_sec = 2\n").start();
    let job = Job::create(&cluster, "f");
    let bytes = pattern(5, 0, SIZE);
    let mut damaged = 0;
    for rank in 0..u32::from(NODES) {
        let (part, tiles) = job.write_rank(rank, &bytes);
        let object = Piece::of_journal(part.piece);
        let client = &job.clients[rank as usize];
        let file =
            client.open_object(job.ino, NodeId(rank as u16), object, job.cap).expect("journal");
        let mut report = journal::encode(&tiles);
        if rank == 1 {
            // The stamp of the first tile.
            let tile = report.chunks(8).position(|word| word[..2] == [2, 8]).expect("a tile");
            report[tile * 8 + 17] ^= 4;
            damaged = part.piece;
        }
        assert_eq!(file.write_at(&report, 0), Ok(report.len()));
        file.flush().expect("flushed");
    }
    drop(job);
    let path = cluster.mount(2).join("f");
    let args = ["--json", "--wait", "60", &path.display().to_string()];
    let said = ask(cluster.command("recover").args(args));
    assert_eq!(said.code, Some(3), "{said:?}");
    let what = format!("the journal of piece {damaged} on node1 is damaged at byte");
    assert!(said.err.contains(&what) && said.err.contains("--accept-loss"), "{}", said.err);
    let report: serde_json::Value = serde_json::from_str(&said.out).expect("JSON");
    assert_eq!(
        (&report["files"][0]["settled"], &report["files"][0]["open"]),
        (&false.into(), &1.into())
    );
    // The log has one line about it, and the rest of the volume does its work.
    put(cluster.mount(1).join("g"), "bytes");
    assert_eq!(get(cluster.mount(3).join("g")), b"bytes");
    let goal = ask(cluster.command("relayout").args(["--to", "striped", ":/f"]));
    assert_ne!(goal.code, Some(0), "{goal:?}");
    let said = cluster.tatami("recover", &["--accept-loss", ":/f"]);
    assert!(said.out.contains(&format!("of piece {damaged}")), "{}", said.out);
    let left = get(&path);
    let differs = left.iter().zip(&bytes).filter(|(left, right)| left != right);
    assert!(differs.clone().count() > 0 && differs.into_iter().all(|(left, _)| *left == 0));
    let zeros = left.iter().filter(|byte| **byte == 0).count();
    assert!(zeros < SIZE / 3, "{zeros} bytes are lost of the part of one rank");
    let said = cluster.tatami("recover", &[":/f"]);
    assert!(said.out.contains("nothing to recover"), "{}", said.out);
    relayout(&cluster, &["--to", "striped", ":/f"]);
    assert!(get(&path) == left);
    cluster.finish();
}

#[test]
fn wrong_usage_is_told_and_changes_nothing() {
    let cluster = Cluster::start(2);
    let mount = cluster.mount(0);
    fs::create_dir(mount.join("d")).expect("mkdir");
    put(mount.join("d/f"), "bytes");
    put(mount.join("empty"), "");
    for (args, what) in [
        (&["--on", "7", ":/d/f"][..], "there is no node \"7\""),
        (&["--on", "0,1", ":/d/f"], "a whole file lies on one node"),
        (&["--to", "striped", "--stripe", "100", ":/d/f"], "too short"),
        (&["--to", "container", ":/d/f"], "a container is a directory"),
        (&[":/d"], "is a directory"),
    ] {
        let said = ask(cluster.command("relayout").args(args));
        assert_eq!(said.code, Some(2), "{said:?}");
        assert!(said.err.contains(what), "{}", said.err);
    }
    let said = ask(cluster.command("relayout").args([":/missing", ":/empty"]));
    assert_eq!(said.code, Some(1), "{said:?}");
    assert!(said.err.contains("missing") && said.out.contains("no byte"), "{said:?}");
    relayout(&cluster, &["--to", "striped", "-r", &mount.join("d").display().to_string()]);
    assert_eq!(get(mount.join("d/f")), b"bytes");
    let pid = cluster.node_pid(0);
    assert!(is_alive(pid));
    kill_hard(pid);
    let said = ask(cluster.command("relayout").env("TATAMI_CLIENT_PATIENCE_SEC", "1").arg(":/d/f"));
    assert_eq!(said.code, Some(3), "{said:?}");
    cluster.start_node(0);
    assert_eq!(get(mount.join("d/f")), b"bytes");
    cluster.finish();
}
