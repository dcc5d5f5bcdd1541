//! Shards move from node to node, invisible to clients.

use crate::checking::{assert_sound, create};
use crate::cluster::{Cluster, Faults, LAYOUT, ROOT, executor, name, scaled};
use crate::same::{inodes, same_answers, storm, walk};
use proptest::prelude::*;
use tatami_meta::OperationContext;
use tatami_meta::store::Store;
use tatami_wire::meta::{InodeTemplate, MetaOp, MetaReply};
use tatami_wire::{Access, ClientId, Cred, Errno, Ino, ShardId};

const NOW_AND_THEN: Faults = Faults { lost: 0, twice: 0, deaths: 0, moves: 50 };
const BAD: Faults = Faults { lost: 10, twice: 10, deaths: 0, moves: 50 };
const WORSE: Faults = Faults { lost: 5, twice: 10, deaths: 10, moves: 50 };

fn dir(cluster: &mut Cluster, parent: Ino, dir: &str) -> Ino {
    let op = MetaOp::Create {
        parent,
        name: name(dir),
        node: InodeTemplate::Dir,
        mode: 0o755,
        umask: 0,
        exclusive: true,
        open: None,
    };
    match cluster.call(1, &Cred::ROOT, op) {
        Ok(MetaReply::Created { attr, .. }) => attr.ino,
        other => panic!("{dir}: {other:?}"),
    }
}

/// Makes nested directories with files.
fn plant(cluster: &mut Cluster) {
    for n in 0..6 {
        let d = dir(cluster, ROOT, &format!("d{n}"));
        let below = dir(cluster, d, "below");
        for n in 0..10 {
            create(cluster, below, &format!("f{n}"));
        }
        // It never gets an entry.
        dir(cluster, d, "young");
    }
}

#[test]
fn a_volume_grows_from_one_node_and_shrinks_again() {
    let mut cluster = Cluster::with_shards_on(1, 4, 16, 1);
    plant(&mut cluster);
    cluster.quiet();
    for (shards, to) in [(8..16, 1), (4..8, 2), (12..16, 3), (0..1, 2)] {
        let count = walk(&mut cluster);
        cluster.move_to(shards, to);
        assert_eq!(walk(&mut cluster), count);
        let more = format!("more-{to}-{}", cluster.now);
        dir(&mut cluster, ROOT, &more);
        cluster.quiet();
        assert_sound(&mut cluster);
    }
    assert_eq!(cluster.moved, 17);
    let count = walk(&mut cluster);
    cluster.quiet();
    assert_eq!(inodes(&mut cluster), count);
    cluster.move_to(0..16, 3);
    cluster.quiet();
    for node in 0..3 {
        let meta = cluster.meta(node).expect("it is up");
        assert_eq!((meta.count_shards(), meta.inode_count()), (0, 0));
        let mut left = Vec::new();
        let all = &mut |key: &[u8], _: &[u8]| {
            left.push(char::from(key[0]));
            std::ops::ControlFlow::Continue(())
        };
        meta.store_mut().scan(&[], &[], all).expect("memory does not fail");
        // The store, its incarnation, the map and replies belong to the node.
        assert!(left.iter().all(|tag| "SNMR".contains(*tag)), "node {node}: {left:?}");
    }
    assert_eq!(walk(&mut cluster), count);
    assert_sound(&mut cluster);
}

#[test]
fn a_request_sent_again_after_a_move_gets_its_first_answer() {
    let mut cluster = Cluster::new(2, 16, 7);
    let op = MetaOp::Create {
        parent: ROOT,
        name: name("once"),
        node: InodeTemplate::File(LAYOUT),
        mode: 0o644,
        umask: 0,
        exclusive: true,
        open: None,
    };
    let (now, client) = (cluster.time(), ClientId([77; 16]));
    let ctx = OperationContext { now, client, slot: 3, seq: 5, trusted: true };
    let meta = cluster.meta(0).expect("it is up");
    let first = meta.apply(&ctx, &Cred::ROOT, &op).into_result();
    meta.commit().expect("memory does not fail");
    assert!(matches!(first, Ok(MetaReply::Created { created: true, .. })));
    cluster.move_to(0..1, 1);
    cluster.kill(0, 1);
    cluster.quiet();
    let meta = cluster.meta(0).expect("it is up");
    assert_eq!(meta.apply(&ctx, &Cred::ROOT, &op).into_result(), first);
    let next = OperationContext { seq: 6, ..ctx };
    let elsewhere = meta.apply(&next, &Cred::ROOT, &op).into_result();
    assert!(matches!(elsewhere, Ok(MetaReply::WrongShard { .. })), "{elsewhere:?}");
    let meta = cluster.meta(1).expect("it is up");
    assert_eq!(meta.apply(&next, &Cred::ROOT, &op).into_result(), Err(Errno::EEXIST));
}

/// Open files, kept inodes and garbage move along.
#[test]
fn what_clients_hold_goes_along() {
    let mut cluster = Cluster::new(2, 16, 3);
    let open = |file: &str| MetaOp::Create {
        parent: ROOT,
        name: name(file),
        node: InodeTemplate::File(LAYOUT),
        mode: 0o644,
        umask: 0,
        exclusive: true,
        open: Some(Access::WRITE),
    };
    let Ok(MetaReply::Created { attr, .. }) = cluster.call(1, &Cred::ROOT, open("kept")) else {
        panic!("not made")
    };
    assert!(cluster.call(1, &Cred::ROOT, open("gone")).is_ok());
    let unlink = |file: &str, keep| MetaOp::Unlink { parent: ROOT, name: name(file), keep };
    assert!(cluster.call(1, &Cred::ROOT, unlink("kept", true)).is_ok());
    assert!(cluster.call(1, &Cred::ROOT, unlink("gone", false)).is_ok());
    cluster.quiet();
    cluster.move_to(0..8, 1);
    cluster.quiet();
    let now = cluster.time();
    let ask = |cluster: &mut Cluster, node: usize, op: MetaOp| {
        let client = ClientId([99; 16]);
        let ctx = OperationContext { now, client, slot: 0, seq: cluster.now, trusted: true };
        cluster.now += 1;
        let meta = cluster.meta(node).expect("it is up");
        let result = meta.apply(&ctx, &Cred::ROOT, &op).into_result();
        meta.commit().expect("memory does not fail");
        result
    };
    let garbage = MetaOp::ListGarbage { node: tatami_wire::NodeId(1), limit: 10 };
    assert_eq!(ask(&mut cluster, 0, garbage.clone()), Ok(MetaReply::Garbage(Vec::new())));
    let Ok(MetaReply::Garbage(found)) = ask(&mut cluster, 1, garbage) else { panic!("no list") };
    assert_eq!(found.len(), 1);
    let holder = ClientId([1; 16]);
    let Ok(MetaReply::Clients(clients)) = ask(&mut cluster, 1, MetaOp::ListClients) else {
        panic!("no list")
    };
    assert!(clients.contains(&holder));
    let get = MetaOp::GetAttr { ino: attr.ino };
    assert!(cluster.call(2, &Cred::ROOT, get.clone()).is_ok(), "it is kept");
    assert!(cluster.call(1, &Cred::ROOT, MetaOp::Release { ino: attr.ino }).is_ok());
    assert_eq!(cluster.call(2, &Cred::ROOT, get), Err(Errno::ESTALE));
}

/// If either node dies, with any loss by a power cut, one of them has the shards.
#[test]
fn power_cuts_lose_no_shard() {
    for seed in 0..200 {
        let mut cluster = Cluster::new(2, 16, seed);
        plant(&mut cluster);
        let count = walk(&mut cluster);
        cluster.quiet();
        for node in 0..2 {
            cluster.meta(node).expect("it is up").sync().expect("memory does not fail");
        }
        for _ in 0..3 {
            cluster.faults.moves = 200;
            let steps = cluster.rng.below(60);
            (0..steps).for_each(|_| cluster.step());
            let victim = cluster.rng.below(2) as usize;
            cluster.cut_power(victim);
            let steps = cluster.rng.below(60);
            (0..steps).for_each(|_| cluster.step());
        }
        cluster.quiet();
        assert_eq!(walk(&mut cluster), count, "seed {seed}");
        assert_eq!(inodes(&mut cluster), count, "seed {seed}");
        assert_sound(&mut cluster);
    }
}

#[test]
fn a_closed_shard_waits_for_a_dead_taker_no_longer_than_it_must() {
    let mut cluster = Cluster::new(2, 16, 5);
    plant(&mut cluster);
    cluster.quiet();
    let now = cluster.time();
    let meta = cluster.meta(0).expect("it is up");
    assert_eq!(meta.begin_move(now, 0, 1, executor(1)), Ok(()));
    assert_eq!(meta.begin_move(now, 1, 1, executor(1)), Err(Errno::EBUSY));
    while !cluster.meta(0).expect("it is up").is_closed(ShardId(0)) {
        cluster.step();
    }
    cluster.kill(1, 5_000);
    let began = cluster.now;
    let look = MetaOp::ReadDir { dir: ROOT, after: 0, limit: 100, plus: false };
    assert!(cluster.call(1, &Cred::ROOT, look).is_ok());
    assert!(cluster.now - began < 4_000, "{} ms", cluster.now - began);
    let meta = cluster.meta(0).expect("it is up");
    assert_eq!(meta.take_move_failure(), Some(Errno::EHOSTDOWN));
    cluster.quiet();
    assert_sound(&mut cluster);
}

#[test]
fn a_large_directory_comes_back_to_one_node() {
    let mut cluster = Cluster::new(2, 16, 1);
    cluster.split_above(4);
    for n in 0..40 {
        create(&mut cluster, ROOT, &format!("f{n}"));
    }
    cluster.quiet();
    let there: Vec<u16> = (0..16)
        .filter(|shard| cluster.meta(1).is_some_and(|meta| meta.serves_shard(ShardId(*shard))))
        .collect();
    there.into_iter().for_each(|shard| cluster.move_to(shard..shard + 1, 0));
    cluster.kill(0, 10);
    cluster.quiet();
    assert_eq!(walk(&mut cluster), 41);
    assert_sound(&mut cluster);
    create(&mut cluster, ROOT, "more");
    assert_eq!(walk(&mut cluster), 42);
}

proptest! {
    #![proptest_config(scaled(60))]

    #[test]
    fn answers_are_the_same(seed: u64) {
        same_answers(seed, NOW_AND_THEN, 150, None);
    }

    #[test]
    fn answers_are_the_same_on_a_bad_network(seed: u64) {
        same_answers(seed, BAD, 100, Some(4));
    }

    #[test]
    fn answers_are_the_same_when_nodes_die(seed: u64) {
        same_answers(seed, WORSE, 100, Some(4));
    }

    #[test]
    fn many_at_once_go_on(seed: u64) {
        storm(seed, NOW_AND_THEN, 200, Some(4));
    }

    #[test]
    fn many_at_once_go_on_when_nodes_die(seed: u64) {
        storm(seed, WORSE, 150, None);
    }

    #[test]
    fn large_directories_move_too(seed: u64) {
        storm(seed, WORSE, 150, Some(3));
    }
}
