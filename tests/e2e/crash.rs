//! Daemons and mounts that die at any moment: no acknowledged change is lost, all others carry on,
//! and no process hangs.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tatami_tests::files::{bytes_of, create, get, names, open, open_with, put};
use tatami_tests::model::pattern;
use tatami_tests::process::wait_ms;
use tatami_tests::seed::{Rng, scaled};
use tatami_tests::worker::Worker;
use tatami_tests::{Cluster, Setup};

/// Number of daemons that are killed in one run.
const ROUNDS: u64 = 6;
/// Least number of operations of all workers together between two deaths.
const BETWEEN: u64 = 20;
/// Longest time that the workers may take for them.
const AT_WORK: Duration = Duration::from_secs(300);

/// Runs workers on every mount, each in a folder of its own. Daemons are killed and started
/// meanwhile: every operation waits and then succeeds, exactly once.
fn survive(cluster: Cluster, victims: &[u16]) {
    let mut rng = Rng::with_seed(cluster.seed());
    let done = AtomicBool::new(false);
    let steps = AtomicU64::new(0);
    let mut workers: Vec<(u16, PathBuf, Worker)> = Vec::new();
    for node in 0..cluster.nodes() {
        for kind in ["closed", "held"] {
            let name = PathBuf::from(format!("{kind}-{node}"));
            let folder = cluster.mount(node).join(&name);
            workers.push((node, name, Worker::new(folder, rng.u64(..), kind == "held")));
        }
    }
    std::thread::scope(|scope| {
        let at_work: Vec<_> = workers
            .iter_mut()
            .map(|(_, _, worker)| {
                scope.spawn(|| {
                    while !done.load(Ordering::Relaxed) {
                        worker.step()?;
                        steps.fetch_add(1, Ordering::Relaxed);
                    }
                    Ok::<(), String>(())
                })
            })
            .collect();
        for round in 0..scaled(ROUNDS) {
            wait_ms(rng.u64(20..600));
            let (start, enough) = (Instant::now(), (round + 1) * BETWEEN);
            // Slow workers must do some operations between the deaths. A worker that has failed
            // reports the reason when it is joined.
            while steps.load(Ordering::Relaxed) < enough
                && !at_work.iter().any(|worker| worker.is_finished())
            {
                if start.elapsed() > AT_WORK {
                    done.store(true, Ordering::Relaxed);
                    panic!("the workers do not get on");
                }
                wait_ms(5);
            }
            let victim = victims[rng.usize(..victims.len())];
            println!("round {round}: node {victim} dies");
            cluster.kill_node(victim);
            wait_ms(rng.u64(0..300));
            cluster.start_node(victim);
        }
        wait_ms(200);
        done.store(true, Ordering::Relaxed);
        for worker in at_work {
            worker.join().expect("a worker does not panic").unwrap_or_else(|e| panic!("{e}"));
        }
    });
    println!("{} operations", steps.into_inner());
    for (node, name, worker) in &workers {
        // Another mount sees closed files; files that a worker still has open need not be visible
        // there.
        let held = name.to_string_lossy().starts_with("held");
        let reader = if held { *node } else { (node + 1) % cluster.nodes() };
        let folder = cluster.mount(reader).join(name);
        worker.compare(&folder).unwrap_or_else(|e| panic!("{}: {e}", name.display()));
    }
    drop(workers);
    cluster.finish();
}

#[test]
fn the_daemon_that_keeps_the_names_may_die_at_any_time() {
    survive(Cluster::start(2), &[0]);
}

#[test]
fn a_daemon_that_keeps_bytes_may_die_at_any_time() {
    survive(Cluster::start(2), &[1]);
}

#[test]
fn any_daemon_of_three_may_die_without_passthrough() {
    survive(Setup::nodes(3).without_passthrough().start(), &[0, 1, 2]);
}

/// All daemons die at once, as when a job's nodes lose their service.
#[test]
fn all_daemons_may_die_together() {
    let cluster = Cluster::start(3);
    let mut rng = Rng::with_seed(cluster.seed());
    let mut worker = Worker::new(cluster.mount(1).join("w"), rng.u64(..), true);
    for _ in 0..scaled(2) {
        for _ in 0..100 {
            worker.step().unwrap_or_else(|e| panic!("{e}"));
        }
        (0..3).for_each(|node| cluster.kill_node(node));
        (0..3).for_each(|node| cluster.start_node(node));
        worker.compare(&cluster.mount(1).join("w")).unwrap_or_else(|e| panic!("{e}"));
    }
    drop(worker);
    cluster.finish();
}

/// Writing goes on while the daemon that has the bytes is absent for a moment.
#[test]
fn a_stream_of_writes_survives_the_daemon_it_goes_to() {
    let cluster = Cluster::start(2);
    drop(create(cluster.mount(1).join("stream")));
    let all = pattern(7, 0, 24 << 20);
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut file = open(cluster.mount(0).join("stream"));
            for (i, part) in all.chunks(100_000).enumerate() {
                file.write_all(part).expect("a write waits for the daemon");
                if i == 20 {
                    sender.send(()).expect("the test listens");
                }
            }
            file.sync_all().expect("fsync");
        });
        receiver.recv().expect("the writer is in the middle");
        cluster.kill_node(1);
        wait_ms(200);
        cluster.start_node(1);
        writer.join().expect("the writer");
    });
    assert!(get(cluster.mount(1).join("stream")) == all, "bytes were lost or mixed");
    cluster.finish();
}

/// A large file is read while the daemon that has it dies, again and again, in the middle of its
/// replies: the reader waits, and gets the right bytes.
#[test]
fn a_large_read_survives_the_daemon_it_comes_from() {
    let cluster = Cluster::start(2);
    let mut rng = Rng::with_seed(cluster.seed());
    let all = pattern(9, 0, 48 << 20);
    put(cluster.mount(1).join("large"), &all);
    let done = AtomicBool::new(false);
    let rounds = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut rounds = 0;
            while !done.load(Ordering::Relaxed) {
                let file = open_with(cluster.mount(0).join("large"), libc::O_RDONLY);
                rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("fadvise");
                assert!(bytes_of(&file) == all, "other bytes than were written");
                rounds += 1;
            }
            rounds
        });
        for _ in 0..scaled(ROUNDS) {
            wait_ms(rng.u64(10..150));
            cluster.kill_node(1);
            cluster.start_node(1);
        }
        done.store(true, Ordering::Relaxed);
        reader.join().expect("the reader")
    });
    println!("read {rounds} times");
    cluster.finish();
}

/// Checks which operations work while a daemon is absent, which fail, and how soon.
#[test]
fn a_daemon_that_stays_away_costs_a_clear_error_in_time() {
    let cluster = Setup::nodes(2).config("[client]\npatience_sec = 2\n").start();
    let (a, b) = (cluster.mount(0), cluster.mount(1));
    put(a.join("on-0"), pattern(1, 0, 500_000));
    put(b.join("on-1"), pattern(2, 0, 500_000));
    let held = open(a.join("on-1"));
    cluster.kill_node(1);

    let start = Instant::now();
    let error = fs::read(a.join("on-1")).expect_err("bytes of a dead node");
    assert_eq!(error.raw_os_error(), Some(libc::EHOSTDOWN), "{error}");
    let error = held.sync_all().err().map(|e| e.raw_os_error());
    assert!(matches!(error, None | Some(Some(libc::EHOSTDOWN))), "{error:?}");
    assert!(start.elapsed() < Duration::from_secs(60), "patience is 2 s");
    // Everything else goes on.
    assert!(get(a.join("on-0")) == pattern(1, 0, 500_000));
    assert_eq!(names(&a), ["on-0", "on-1"]);
    put(a.join("more"), "x");
    fs::rename(a.join("more"), a.join("renamed")).expect("rename");

    cluster.start_node(1);
    assert!(get(a.join("on-1")) == pattern(2, 0, 500_000));
    drop(held);

    // Without the daemon of the names, operations on names fail with a clear error.
    cluster.kill_node(0);
    let start = Instant::now();
    let error = fs::metadata(b.join("on-1")).expect_err("names of a dead shard");
    assert_eq!(error.raw_os_error(), Some(libc::EHOSTDOWN), "{error}");
    let error = fs::write(b.join("new"), "x").expect_err("a name on a dead shard");
    assert_eq!(error.raw_os_error(), Some(libc::EHOSTDOWN), "{error}");
    assert!(start.elapsed() < Duration::from_secs(60), "patience is 2 s");
    cluster.start_node(0);
    assert!(get(b.join("on-1")) == pattern(2, 0, 500_000));
    assert_eq!(names(&b), ["on-0", "on-1", "renamed"]);
    cluster.finish();
}

/// Waits until every file below `folder` is as long as its size says. If a mount dies during a
/// write, the size is recovered when the mount's lease ends.
fn wait_for_sizes(folder: &Path) {
    let deadline = Instant::now() + Duration::from_secs(120);
    let agrees = |path: &Path| get(path).len() as u64 == fs::metadata(path).expect("stat").len();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder") {
            let entry = entry.expect("an entry");
            let kind = entry.file_type().expect("its kind");
            if kind.is_dir() {
                folders.push(entry.path());
            }
            while kind.is_file() && !agrees(&entry.path()) {
                assert!(Instant::now() < deadline, "{} is not settled", entry.path().display());
                wait_ms(50);
            }
        }
    }
}

/// A mount process is killed: the others go on. After a new mount, the files that it had closed
/// exist, and unfinished work is cleaned up.
#[test]
fn a_mount_that_dies_loses_nothing_that_was_closed() {
    let cluster = Setup::nodes(2).config("[node]\nlease_sec = 2\n").start();
    let mut rng = Rng::with_seed(cluster.seed());
    for round in 0..scaled(3) {
        let name = format!("round-{round}");
        let folder = cluster.mount(1).join(&name);
        let mut worker = Worker::new(&folder, rng.u64(..), false);
        let mut neighbour =
            Worker::new(cluster.mount(0).join(format!("next-{round}")), rng.u64(..), true);
        // One open file was written and not closed; another has no name any more.
        let held = create(folder.with_extension("held"));
        held.write_all_at(&pattern(3, 0, 200_000), 0).expect("pwrite");
        let nameless = create(folder.with_extension("nameless"));
        nameless.write_all_at(&pattern(4, 0, 200_000), 0).expect("pwrite");
        fs::remove_file(folder.with_extension("nameless")).expect("unlink");

        let alive = AtomicBool::new(true);
        std::thread::scope(|scope| {
            let at_work = scope.spawn(|| {
                while worker.step_until_death()? {}
                Ok::<(), String>(())
            });
            let beside = scope.spawn(|| {
                while alive.load(Ordering::Relaxed) {
                    neighbour.step()?;
                }
                Ok::<(), String>(())
            });
            wait_ms(rng.u64(20..500));
            cluster.kill_mount(1);
            at_work.join().expect("the worker").unwrap_or_else(|e| panic!("{e}"));
            alive.store(false, Ordering::Relaxed);
            beside.join().expect("the neighbour").unwrap_or_else(|e| panic!("{e}"));
        });
        drop((held, nameless));
        cluster.start_mount(1);
        wait_for_sizes(&folder);
        // The operation that was under way may be done or not, which the worker finds out. All
        // operations before it must be done.
        worker.settle(&folder).unwrap_or_else(|e| panic!("{e}"));
        neighbour
            .compare(&cluster.mount(0).join(format!("next-{round}")))
            .unwrap_or_else(|e| panic!("{e}"));
        let size = fs::metadata(folder.with_extension("held")).expect("stat").len();
        assert!(size <= 200_000, "a size that nobody wrote");
    }
    cluster.finish();
}

/// The end of a forked process, too, leaves the files of the others open.
#[test]
fn what_is_written_after_a_duplicate_was_closed_is_found() {
    let cluster = Setup::nodes(2).config("[node]\nlease_sec = 2\n").start();
    let held: Vec<_> = (0..2)
        .map(|node| {
            put(cluster.mount(node).join(format!("f{node}")), pattern(1, 0, 1000));
            let file = open(cluster.mount(1).join(format!("f{node}")));
            file.write_all_at(&pattern(2, 0, 1000), 1000).expect("pwrite");
            drop(file.try_clone().expect("dup"));
            file.write_all_at(&pattern(3, 0, 3000), 2000).expect("pwrite");
            file
        })
        .collect();
    let path = |node| cluster.mount(0).join(format!("f{node}"));
    let wait_for = |what: &str| {
        let start = Instant::now();
        while (0..2).any(|node| fs::metadata(path(node)).expect("stat").len() != 5000) {
            assert!(start.elapsed() < Duration::from_secs(120), "{what}");
            wait_ms(50);
        }
    };
    wait_for("while it is open");
    cluster.kill_mount(1);
    drop(held);
    wait_ms(4000);
    wait_for("when it was settled");
    cluster.start_mount(1);
    cluster.finish();
}

/// Space of nameless files that a dead mount had open is freed.
#[test]
fn what_a_dead_mount_had_unlinked_is_freed() {
    let cluster = Setup::nodes(2).config("[node]\nlease_sec = 2\n").start();
    for creator in 0..2 {
        put(cluster.mount(creator).join(format!("big-{creator}")), pattern(1, 0, 4 << 20));
    }
    let held: Vec<_> = (0..2).map(|i| open(cluster.mount(1).join(format!("big-{i}")))).collect();
    for i in 0..2 {
        fs::remove_file(cluster.mount(1).join(format!("big-{i}"))).expect("unlink");
    }
    assert_eq!(held[0].metadata().expect("fstat").nlink(), 0);
    cluster.kill_mount(1);
    drop(held);
    let start = Instant::now();
    while objects(&cluster) > 0 {
        assert!(start.elapsed() < Duration::from_secs(120), "objects of nobody stay");
        wait_ms(100);
    }
    cluster.start_mount(1);
    cluster.finish();
}

/// Backing files on all nodes.
fn objects(cluster: &Cluster) -> usize {
    (0..cluster.nodes())
        .map(|node| {
            let objects = cluster.dir().join(format!("node{node}/objects"));
            let shelves = fs::read_dir(objects).into_iter().flatten().flatten();
            shelves.filter_map(|s| fs::read_dir(s.path()).ok()).map(Iterator::count).sum::<usize>()
        })
        .sum()
}
