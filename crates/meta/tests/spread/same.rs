//! A namespace over several nodes answers as one on a single node, with any faults of messages and
//! nodes, and leaves nothing behind.

use crate::checking::assert_sound;
use crate::cluster::{
    Cluster, Faults, LAYOUT, ROOT, Rng, config, executor, name, number_of, scaled,
};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use tatami_meta::{Applied, MemoryStore, Meta, OperationContext};
use tatami_wire::meta::{DirEntry, InodeTemplate, MetaOp, MetaReply, MetaResult, RenameMode};
use tatami_wire::{Access, Attr, ClientId, Cred, Errno, Ino, InodeKind, SetAttr, Timestamp};

const NAMES: u64 = 5;

/// Inodes in the order of their creation.
struct Inos {
    all: Vec<Ino>,
}

impl Inos {
    fn number(&self, ino: Ino) -> Ino {
        Ino(self.all.iter().position(|known| *known == ino).map_or(u64::MAX, |at| at as u64))
    }

    fn attr(&self, attr: &Attr) -> Attr {
        let ino = self.number(attr.ino);
        if attr.kind != InodeKind::Dir {
            return Attr { ino, ..attr.clone() };
        }
        // Each partition of a directory has a version of its own. Of two changes at one moment, the
        // second has a later time only if it is in the same partition.
        let time = |t: Timestamp| Timestamp { nsec: t.nsec / 1_000_000 * 1_000_000, ..t };
        let (mtime, ctime) = (time(attr.mtime), time(attr.ctime));
        Attr { ino, version: 0, mtime, ctime, ..attr.clone() }
    }

    /// Returns an answer without the parts that differ between nodes.
    fn plain(&self, result: &MetaResult) -> MetaResult {
        Ok(match result.clone()? {
            MetaReply::Attr(attr) | MetaReply::Opened { attr, .. } => {
                MetaReply::Attr(self.attr(&attr))
            }
            MetaReply::Created { attr, created, .. } => {
                MetaReply::Created { attr: self.attr(&attr), cap: None, created }
            }
            MetaReply::Removed { ino, last } => {
                MetaReply::Removed { ino: ino.map(|ino| self.number(ino)), last }
            }
            MetaReply::Renamed { ino, last, moved } => {
                let moved = moved.into_iter().map(|ino| self.number(ino)).collect();
                MetaReply::Renamed { ino: ino.map(|ino| self.number(ino)), last, moved }
            }
            MetaReply::Entries { entries, end, parent, upto } => {
                let plain =
                    |entry: DirEntry| DirEntry { ino: self.number(entry.ino), attr: None, ..entry };
                let entries = entries.into_iter().map(plain).collect();
                MetaReply::Entries { entries, end, parent: self.number(parent), upto }
            }
            other => other,
        })
    }
}

/// Returns a random operation, with inodes by their order.
fn random_op(rng: &mut Rng, count: u64) -> impl Fn(&Inos) -> MetaOp + use<> {
    let any = |rng: &mut Rng| match rng.below(3) {
        0 => 0,
        1 => count.saturating_sub(1 + rng.below(6)),
        _ => rng.below(count),
    };
    let (a, b, what) = (any(rng) as usize, any(rng) as usize, rng.below(112));
    let letter = |rng: &mut Rng| name(&[b'a' + rng.below(NAMES) as u8]);
    let (n, m) = (letter(rng), letter(rng));
    let (mode, keep) = (rng.below(3), rng.percent(5));
    move |inos: &Inos| {
        let (a, b) = (inos.all[a], inos.all[b]);
        let (n, m) = (n.clone(), m.clone());
        let create = |node| MetaOp::Create {
            parent: a,
            name: n.clone(),
            node,
            mode: 0o755,
            umask: 0,
            exclusive: mode > 0,
            open: None,
        };
        match what {
            0..20 => create(InodeTemplate::Dir),
            20..32 => create(InodeTemplate::File(LAYOUT)),
            32..38 => MetaOp::Unlink { parent: a, name: n, keep },
            38..46 => MetaOp::Rmdir { parent: a, name: n, keep },
            46..72 => MetaOp::Rename {
                parent: a,
                name: n,
                new_parent: b,
                new_name: m,
                mode: [RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange]
                    [mode as usize],
                keep,
            },
            72..78 => MetaOp::Link { ino: b, parent: a, name: n },
            78..84 => MetaOp::Lookup { parent: a, name: n },
            84..88 => MetaOp::Lookup { parent: a, name: name("..") },
            88..92 => MetaOp::GetAttr { ino: a },
            92..96 => {
                let set = SetAttr { mode: Some(0o700 + mode as u16), ..SetAttr::default() };
                MetaOp::SetAttr { ino: a, set }
            }
            96..100 => MetaOp::ReadDir { dir: a, after: 0, limit: 100, plus: true },
            100..109 => MetaOp::Open { ino: a, access: Access::READ, registered: true },
            _ => MetaOp::ReportClosed { inos: vec![], empty: vec![], read: vec![a] },
        }
    }
}

struct Single {
    meta: Meta<MemoryStore>,
    seq: u64,
}

impl Single {
    fn call(&mut self, now: Timestamp, client: u8, op: &MetaOp) -> MetaResult {
        self.seq += 1;
        let client = ClientId([client; 16]);
        let ctx = OperationContext { now, client, slot: 0, seq: self.seq, trusted: true };
        self.meta.apply(&ctx, &Cred::ROOT, op).into_result()
    }
}

/// Compares the answers. With `split`, partitions with more entries are split.
pub fn same_answers(seed: u64, faults: Faults, ops: u32, split: Option<u64>) {
    let mut cluster = Cluster::new(3, 16, seed);
    cluster.faults = faults;
    split.into_iter().for_each(|entries| cluster.split_above(entries));
    let meta = Meta::open(MemoryStore::new(), config(), cluster.time()).expect("opens");
    let mut single = Single { meta, seq: 0 };
    let (mut here, mut there) = (Inos { all: vec![ROOT] }, Inos { all: vec![ROOT] });
    let mut rng = Rng::new(!seed);
    for step in 0..ops {
        let op = random_op(&mut rng, here.all.len() as u64);
        let now = cluster.time();
        // Files are opened by another client than the one that removes names.
        let client = match op(&here) {
            MetaOp::Open { .. } | MetaOp::ReportClosed { .. } => 2,
            _ => 1,
        };
        let expected = single.call(now, client, &op(&here));
        let found = cluster.call(client, &Cred::ROOT, op(&there));
        if let (
            Ok(MetaReply::Created { attr: one, created: true, .. }),
            Ok(MetaReply::Created { attr: other, created: true, .. }),
        ) = (&expected, &found)
        {
            here.all.push(one.ino);
            there.all.push(other.ino);
        }
        assert_eq!(
            there.plain(&found),
            here.plain(&expected),
            "step {step} of seed {seed}: {:?}",
            op(&there)
        );
    }
    cluster.quiet();
    let inodes = inodes(&mut cluster);
    assert_eq!(inodes, single.meta.inode_count(), "seed {seed}");
}

pub fn inodes(cluster: &mut Cluster) -> u64 {
    (0..cluster.nodes()).map(|node| cluster.meta(node).map_or(0, |meta| meta.inode_count())).sum()
}

/// Walks the whole tree, checks it, and returns the number of inodes.
pub fn walk(cluster: &mut Cluster) -> u64 {
    let (mut queue, mut names) = (vec![(ROOT, ROOT)], BTreeMap::<Ino, u32>::new());
    let mut dirs = BTreeSet::new();
    while let Some((dir, parent)) = queue.pop() {
        assert!(dirs.insert(dir), "a directory has two names");
        let attr = match cluster.call(9, &Cred::ROOT, MetaOp::GetAttr { ino: dir }) {
            Ok(MetaReply::Attr(attr)) => attr,
            other => panic!("{dir}: {other:?}"),
        };
        let list = MetaOp::ReadDir { dir, after: 0, limit: 1000, plus: false };
        let Ok(MetaReply::Entries { entries, end: true, parent: above, .. }) =
            cluster.call(9, &Cred::ROOT, list)
        else {
            panic!("{dir} cannot be listed")
        };
        assert_eq!(above, parent, "{dir} knows where it lies");
        assert_eq!(attr.size, entries.len() as u64);
        let subdirs = entries.iter().filter(|entry| entry.kind == InodeKind::Dir).count();
        assert_eq!(attr.nlink as usize, 2 + subdirs);
        for entry in entries {
            match entry.kind {
                InodeKind::Dir => queue.push((entry.ino, dir)),
                _ => *names.entry(entry.ino).or_default() += 1,
            }
        }
    }
    for (ino, count) in &names {
        match cluster.call(9, &Cred::ROOT, MetaOp::GetAttr { ino: *ino }) {
            Ok(MetaReply::Attr(attr)) => assert_eq!(attr.nlink, *count, "{ino}"),
            other => panic!("{ino}: {other:?}"),
        }
    }
    (dirs.len() + names.len()) as u64
}

/// Runs clients that work at the same time on the same few names.
pub fn storm(seed: u64, faults: Faults, ops: u32, split: Option<u64>) {
    let mut cluster = Cluster::new(3, 16, seed);
    cluster.faults = faults;
    split.into_iter().for_each(|entries| cluster.split_above(entries));
    let mut inos = Inos { all: vec![ROOT] };
    let mut rng = Rng::new(!seed);
    let mut left = ops;
    while left > 0 {
        for client in 1..6 {
            if let Some(Ok(MetaReply::Created { attr, created: true, .. })) = cluster.answer(client)
            {
                inos.all.push(attr.ino);
            }
            if !cluster.is_busy(client) && left > 0 {
                left -= 1;
                let op = random_op(&mut rng, inos.all.len() as u64)(&inos);
                // A kept inode has no name, and the walk does not find it.
                let op = match op {
                    MetaOp::Unlink { parent, name, .. } => {
                        MetaOp::Unlink { parent, name, keep: false }
                    }
                    MetaOp::Rmdir { parent, name, .. } => {
                        MetaOp::Rmdir { parent, name, keep: false }
                    }
                    MetaOp::Rename { parent, name, new_parent, new_name, mode, .. } => {
                        MetaOp::Rename { parent, name, new_parent, new_name, mode, keep: false }
                    }
                    other => other,
                };
                cluster.ask(client, &Cred::ROOT, op);
            }
        }
        cluster.step();
        assert!(cluster.now < 100_000_000, "it goes on");
    }
    cluster.quiet();
    // Kept inodes go with their last user.
    for client in 1..6 {
        cluster.answer(client);
        let opens = cluster.opens.remove(&client).unwrap_or_default();
        for ino in opens {
            let closed = MetaOp::ReportClosed { inos: vec![], empty: vec![], read: vec![ino] };
            assert_eq!(cluster.call(client, &Cred::ROOT, closed), Ok(MetaReply::Done));
        }
    }
    cluster.quiet();
    assert!(cluster.longest < 20_000, "an operation took {} ms", cluster.longest);
    let found = walk(&mut cluster);
    cluster.quiet();
    assert_sound(&mut cluster);
    assert_eq!(inodes(&mut cluster), found, "seed {seed}");
}

/// A node stays away in the midst of a storm: operations that do not need it go on.
fn without_one(seed: u64) {
    let mut cluster = Cluster::new(3, 16, seed);
    let mut inos = Inos { all: vec![ROOT] };
    let mut rng = Rng::new(!seed);
    for _ in 0..60 {
        let op = random_op(&mut rng, inos.all.len() as u64)(&inos);
        if let Ok(MetaReply::Created { attr, created: true, .. }) = cluster.call(1, &Cred::ROOT, op)
        {
            inos.all.push(attr.ino);
        }
    }
    // Directories of the first two nodes, each with files whose inodes lie beside them.
    let homes = |cluster: &Cluster, node| {
        let home = |ino: &&Ino| cluster.map.owner(ino.owner_shard()) == Some(executor(node));
        inos.all.iter().filter(home).copied().collect::<Vec<_>>()
    };
    let near: Vec<_> = [homes(&cluster, 0), homes(&cluster, 1)].concat();
    for client in 1..6 {
        let op = random_op(&mut rng, inos.all.len() as u64)(&inos);
        // Operations that the dead node itself coordinates wait for it, with all their locks.
        if cluster.map.owner(op.target_inode().owner_shard()) != Some(executor(2)) {
            cluster.ask(client, &Cred::ROOT, op);
        }
    }
    (0..rng.below(8)).for_each(|_| cluster.step());
    cluster.kill(2, 30_000);
    let began = cluster.now;
    for (n, dir) in near.into_iter().enumerate() {
        let create = MetaOp::Create {
            parent: dir,
            name: name(&format!("file{n}")),
            node: InodeTemplate::File(LAYOUT),
            mode: 0o644,
            umask: 0,
            exclusive: true,
            open: None,
        };
        // A directory that is embedded on the dead node needs that node.
        if cluster.map.owner(dir.allocating_shard()) == Some(executor(2)) {
            continue;
        }
        let _ = cluster.call(7, &Cred::ROOT, create);
    }
    assert!(cluster.now - began < 15_000, "held up for {} ms", cluster.now - began);
    assert!(cluster.meta(2).is_none(), "it is still away");
    cluster.quiet();
    walk(&mut cluster);
}

/// Makes a directory whose owner shard is on `node`, or on any.
pub fn dir(cluster: &mut Cluster, parent: Ino, node: Option<u16>) -> Ino {
    for n in 0..100 {
        let name = name(&format!("dir{n}"));
        let create = MetaOp::Create {
            parent,
            name,
            node: InodeTemplate::Dir,
            mode: 0o755,
            umask: 0,
            exclusive: true,
            open: None,
        };
        let Ok(MetaReply::Created { attr, .. }) = cluster.call(1, &Cred::ROOT, create) else {
            continue;
        };
        let home = cluster.map.owner(attr.ino.owner_shard());
        if node.is_none_or(|node| home == Some(executor(usize::from(node)))) {
            return attr.ino;
        }
    }
    panic!("no directory has its home on node {node:?}");
}

pub fn entry_of(cluster: &mut Cluster, dir: Ino, ino: Ino) -> tatami_wire::meta::Bytes {
    let list = MetaOp::ReadDir { dir, after: 0, limit: 1000, plus: false };
    let Ok(MetaReply::Entries { entries, .. }) = cluster.call(1, &Cred::ROOT, list) else {
        panic!("it can be listed")
    };
    entries.into_iter().find(|entry| entry.ino == ino).expect("it is there").name
}

/// Two nodes at once move two directories each far below the other: one of the moves fails.
fn no_cycle(seed: u64) {
    let mut cluster = Cluster::new(5, 16, seed);
    let places = [1, 2].map(|node| {
        let above = dir(&mut cluster, ROOT, Some(node));
        let moved = dir(&mut cluster, above, None);
        (above, moved, dir(&mut cluster, moved, None))
    });
    let names = places.map(|(above, moved, _)| entry_of(&mut cluster, above, moved));
    // Messages overtake each other.
    cluster.faults = Faults { twice: 1, ..Faults::default() };
    for (client, (at, to)) in [(1, (0, 1)), (2, (1, 0))] {
        let rename = MetaOp::Rename {
            parent: places[at].0,
            name: names[at].clone(),
            new_parent: places[to].2,
            new_name: name("moved"),
            mode: RenameMode::NoReplace,
            keep: false,
        };
        cluster.ask(client, &Cred::ROOT, rename);
    }
    while cluster.is_busy(1) || cluster.is_busy(2) {
        cluster.step();
    }
    cluster.quiet();
    let done = [1, 2].map(|client| cluster.answer(client).expect("it is over").is_ok());
    assert!(done[0] != done[1], "one is moved: {done:?}");
    let found = walk(&mut cluster);
    assert_eq!(inodes(&mut cluster), found, "seed {seed}");
}

/// Requests on a slot while an operation waits on it.
#[test]
fn a_late_request_gets_no_newer_answer() {
    let mut cluster = Cluster::new(3, 16, 1);
    let root = number_of(cluster.map.owner(ROOT.owner_shard()).expect("served"));
    let other = (0..3).find(|node| usize::from(*node) != root);
    let above = dir(&mut cluster, ROOT, other);
    let moved = dir(&mut cluster, ROOT, None);
    // The first entry moves the directory to its owner shard.
    dir(&mut cluster, above, None);
    let op = MetaOp::Rename {
        parent: ROOT,
        name: entry_of(&mut cluster, ROOT, moved),
        new_parent: above,
        new_name: name("moved"),
        mode: RenameMode::Replace,
        keep: false,
    };
    let now = cluster.time();
    let meta = cluster.meta(root).expect("alive");
    let mut ask = |seq| {
        let ctx = OperationContext { now, client: ClientId([77; 16]), slot: 9, seq, trusted: true };
        meta.apply(&ctx, &Cred::ROOT, &op)
    };
    let first = ask(5);
    assert!(matches!(first, Applied::Pending(_)), "{first:?}");
    assert_eq!(ask(5), first, "sent again");
    assert_eq!(ask(4), Applied::Done(Err(Errno::EPROTO)), "late");
    let newer = ask(6);
    assert!(matches!(newer, Applied::Pending(_)) && newer != first, "{newer:?}");
}

const BAD: Faults = Faults { lost: 10, twice: 10, deaths: 0, moves: 0 };
const WORSE: Faults = Faults { lost: 5, twice: 10, deaths: 10, moves: 0 };

proptest! {
    #![proptest_config(scaled(100))]

    #[test]
    fn several_nodes_answer_as_one(seed: u64) {
        same_answers(seed, Faults::default(), 300, None);
    }

    #[test]
    fn lost_and_repeated_messages_change_no_answer(seed: u64) {
        same_answers(seed, BAD, 150, None);
    }

    #[test]
    fn nodes_that_die_change_no_answer(seed: u64) {
        same_answers(seed, WORSE, 150, None);
    }

    #[test]
    fn directories_that_split_answer_as_one(seed: u64) {
        same_answers(seed, Faults::default(), 300, Some(1 + seed % 3));
    }

    #[test]
    fn directories_that_split_while_nodes_die_answer_as_one(seed: u64) {
        same_answers(seed, WORSE, 150, Some(1 + seed % 3));
    }

    #[test]
    fn two_moves_make_no_cycle(seed: u64) {
        no_cycle(seed);
    }

    #[test]
    fn a_node_that_stays_away_holds_up_only_who_needs_it(seed: u64) {
        without_one(seed);
    }

    #[test]
    fn a_storm_leaves_a_sound_tree(seed: u64) {
        storm(seed, Faults::default(), 400, None);
    }

    #[test]
    fn a_storm_with_faults_leaves_a_sound_tree(seed: u64) {
        storm(seed, WORSE, 300, None);
    }

    #[test]
    fn a_storm_leaves_directories_that_split_sound(seed: u64) {
        storm(seed, Faults::default(), 400, Some(1 + seed % 3));
    }

    #[test]
    fn a_storm_with_faults_leaves_directories_that_split_sound(seed: u64) {
        storm(seed, WORSE, 300, Some(1 + seed % 3));
    }
}
