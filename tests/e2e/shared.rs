//! The file pointer and the lock that the ranks of an open share, requested from the shard by
//! clients on several nodes: each operation is one request, nothing is counted twice or lost, and
//! the lock goes from rank to rank in turn.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};
use tatami_client::{Client, JobMember};
use tatami_tests::job::client;
use tatami_tests::{Cluster, Setup};
use tatami_wire::job::{JobOp, JobReply};
use tatami_wire::meta::{InodeTemplate, MetaOp, MetaReply};
use tatami_wire::tiles::PieceGrowth;
use tatami_wire::{Access, Cred, Ino, NodeId};

/// No wait in these tests is longer.
const PATIENCE: Duration = Duration::from_secs(240);
/// The number of an open.
const OPEN: u64 = 0xfeed;

/// Returns the number of requests about names so far.
fn requests(cluster: &Cluster) -> u64 {
    let status = cluster.status();
    let nodes = status["nodes"].as_array().expect("nodes");
    nodes.iter().map(|node| node["meta_requests"].as_u64().expect("a number")).sum()
}

/// Repeats `work` until it has cost no more than `most` requests and a tenth: background work has
/// some of its own.
fn costs(cluster: &Cluster, most: u64, mut work: impl FnMut()) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let before = requests(cluster);
        work();
        let cost = requests(cluster) - before;
        assert!(cost >= most, "{cost} requests: fewer than there were operations");
        if cost <= most + most / 10 {
            return;
        }
        assert!(Instant::now() < deadline, "{cost} requests for {most} operations");
    }
}

/// Makes a file on the shard of the root, at node 0.
fn file(client: &Arc<Client>) -> Ino {
    let node = InodeTemplate::File(client.new_layout());
    let made = client.create(&Cred::ROOT, Ino::ROOT, b"f", node, 0o644, 0, true, None);
    made.expect("create").attr.ino
}

fn members(cluster: &Cluster, ranks: u32) -> (Ino, Vec<JobMember>) {
    let of = |rank: u32| client(cluster, rank as u16 % cluster.nodes());
    let ino = file(&of(0));
    (ino, (0..ranks).map(|rank| JobMember::new(of(rank), ino, OPEN, rank)).collect())
}

#[test]
fn each_operation_is_one_request_however_many_ranks_contend() {
    const ROUNDS: u64 = 100;
    let cluster = Cluster::start(2);
    let (_, ranks) = members(&cluster, 4);
    let inside = AtomicBool::new(false);
    costs(&cluster, ROUNDS * 4, || {
        let seen: Vec<Vec<i64>> = std::thread::scope(|scope| {
            let add = |rank: &JobMember| {
                (0..ROUNDS).map(|_| rank.add_to_pointer(1).expect("add")).collect::<Vec<i64>>()
            };
            let all: Vec<_> = ranks.iter().map(|rank| scope.spawn(move || add(rank))).collect();
            all.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        });
        assert!(seen.iter().all(|seen| seen.is_sorted()));
        let all: BTreeSet<i64> = seen.iter().flatten().copied().collect();
        assert_eq!(all.len() as u64, ROUNDS * 4, "each is told once");
    });
    costs(&cluster, 2 * ROUNDS * 4, || {
        std::thread::scope(|scope| {
            for rank in &ranks {
                scope.spawn(|| {
                    for _ in 0..ROUNDS {
                        rank.lock().expect("lock");
                        assert!(!inside.swap(true, SeqCst), "two have the lock");
                        inside.store(false, SeqCst);
                        rank.unlock().expect("unlock");
                    }
                });
            }
        });
    });
    drop(ranks);
    cluster.finish();
}

#[test]
fn the_pointer_survives_its_daemon_and_goes_along_with_its_shard() {
    let cluster = Cluster::start(2);
    let (ino, ranks) = members(&cluster, 3);
    let (stop, steps) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for rank in &ranks {
            scope.spawn(|| {
                while !stop.load(SeqCst) {
                    rank.lock().expect("lock");
                    let before = rank.add_to_pointer(1).expect("add");
                    assert_eq!(
                        before,
                        rank.add_to_pointer(1).expect("add") - 1,
                        "somebody else was inside"
                    );
                    steps.fetch_add(2, SeqCst);
                    rank.unlock().expect("unlock");
                }
            });
        }
        let some_more = || {
            let (from, deadline) = (steps.load(SeqCst), Instant::now() + PATIENCE);
            while steps.load(SeqCst) < from + 60 {
                assert!(Instant::now() < deadline, "no rank gets on");
                std::thread::yield_now();
            }
        };
        for round in 0..3 {
            some_more();
            cluster.kill_node(0);
            cluster.start_node(0);
            some_more();
            cluster.tatami("node drain", &[["node0", "node1"][round % 2]]);
        }
        some_more();
        stop.store(true, SeqCst);
    });
    assert_eq!(ranks[1].add_to_pointer(0), Ok(steps.load(SeqCst) as i64), "each step counts once");
    // After the end of the open, the next one with that number starts at 0.
    drop(ranks);
    assert_eq!(JobMember::new(client(&cluster, 1), ino, OPEN, 0).add_to_pointer(1), Ok(0));
    cluster.finish();
}

#[test]
fn the_lock_of_a_process_that_is_gone_goes_to_the_next() {
    let cluster = Setup::nodes(2).config("[node]\nlease_sec = 2\n").start();
    let (ino, ranks) = members(&cluster, 1);
    // A process that dies sends nothing. Dropping a member would report its end.
    let gone = client(&cluster, 1);
    let op = MetaOp::Job { ino, open: OPEN, rank: 7, joined: false, op: JobOp::Lock };
    let reply = gone.send_meta(&Cred::ROOT, op).expect("lock");
    assert!(matches!(reply, MetaReply::Job { reply: JobReply::Locked, .. }), "{reply:?}");
    std::thread::scope(|scope| {
        let (has, hears) = std::sync::mpsc::channel();
        let waits = &ranks[0];
        scope.spawn(move || {
            waits.lock().expect("lock");
            has.send(()).expect("somebody hears");
        });
        // A live member keeps the lock, however long it takes.
        assert!(hears.recv_timeout(Duration::from_secs(5)).is_err(), "it was taken away");
        drop(gone);
        hears.recv_timeout(PATIENCE).expect("the lock of a process that is gone");
    });
    ranks[0].unlock().expect("unlock");
    drop(ranks);
    cluster.finish();
}

/// One rank has the file open for all. When that rank dies, its pieces stay open as long as any
/// other lives: a rank that goes on writing must find its journal.
#[test]
fn a_file_stays_open_as_long_as_any_rank_of_the_open_lives() {
    let cluster = Setup::nodes(2).config("[node]\nlease_sec = 2\n").start();
    let (first, other, looks) = (client(&cluster, 0), client(&cluster, 1), client(&cluster, 1));
    let (name, layout) = (b"f", InodeTemplate::File(first.new_layout()));
    let made = first.create(&Cred::ROOT, Ino::ROOT, name, layout, 0o644, 0, true, None);
    let ino = made.expect("create").attr.ino;
    first.open(&Cred::ROOT, ino, Access::BOTH).expect("open");
    first.add_pieces(&Cred::ROOT, ino, vec![(NodeId(1), 1)]).expect("a piece");
    let growth = || {
        let pieces = looks.fetch_raw_tiles(ino).expect("tiles").pieces;
        pieces.first().map(|piece| piece.growth)
    };
    let presence = other.keep_client_alive(first.id(), ino).expect("a connection");
    drop(first);
    let lease_is_over = Instant::now() + Duration::from_secs(5);
    while Instant::now() < lease_is_over {
        assert_eq!(growth(), Some(PieceGrowth::Open), "a rank lives");
        pause();
    }
    drop(presence);
    let deadline = Instant::now() + PATIENCE;
    while growth() == Some(PieceGrowth::Open) {
        assert!(Instant::now() < deadline, "the pieces of a job that is gone are closed");
        pause();
    }
    cluster.finish();
}

/// Waits between two checks.
fn pause() {
    #[allow(clippy::disallowed_methods)] // a lease ends without an event
    std::thread::sleep(Duration::from_millis(50));
}
