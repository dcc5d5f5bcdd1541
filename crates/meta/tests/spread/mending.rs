//! Damage between nodes is repaired, and only damage: repairs read all records once more before
//! they write.

use crate::checking::{assert_sound, create, findings, ties};
use crate::cluster::{Cluster, Faults, ROOT, Rng, name, number_of, scaled, seed};
use crate::same::{dir, entry_of, inodes, walk};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use tatami_meta::store::Store;
use tatami_wire::meta::{BACK_POINTERS_MAX, InodeTemplate, MetaOp, MetaReply, MetaResult};
use tatami_wire::partition::{HashRange, name_hash};
use tatami_wire::repair::{EntryLocation, LocatedEntry, Repair};
use tatami_wire::{Attr, Cred, Errno, Ino, InodeKind, ShardId};

// Offsets as docs/reference/formats.md draws them.
const NLINK: usize = 4;
const PARENT: usize = 48;
const FLAGS: usize = 132;

fn key(tag: u8, ino: Ino) -> Vec<u8> {
    [&[tag][..], &ino.0.to_be_bytes()].concat()
}

fn entry_key(dir: Ino, file: &str) -> Vec<u8> {
    let hash = name_hash(seed(), file.as_bytes());
    [&key(b'E', dir)[..], &hash.to_be_bytes(), file.as_bytes()].concat()
}

/// Returns an entry as docs/reference/formats.md draws it.
fn entry(ino: Ino, kind: u8) -> Vec<u8> {
    [&[1, kind][..], &ino.0.to_le_bytes()].concat()
}

/// Puts a record on the node that serves its shard, or removes it.
fn put(cluster: &mut Cluster, shard: ShardId, key: &[u8], value: Option<Vec<u8>>) {
    let node = number_of(cluster.map.owner(shard).expect("served"));
    let store = cluster.meta(node).expect("it is up").store_mut();
    store.corrupt_pair(&(key.to_vec(), value));
    cluster.kill(node, 0);
    cluster.step();
}

fn record(cluster: &mut Cluster, shard: ShardId, key: &[u8]) -> Option<Vec<u8>> {
    let node = number_of(cluster.map.owner(shard).expect("served"));
    cluster.meta(node).expect("it is up").store_mut().get(key).expect("reads")
}

/// Changes an inode's record, on any node.
fn patch(cluster: &mut Cluster, ino: Ino, at: usize, bytes: &[u8]) {
    for (key, shard) in
        [(key(b'I', ino), ino.owner_shard()), (key(b'Y', ino), ino.allocating_shard())]
    {
        if let Some(mut value) = record(cluster, shard, &key) {
            value[at..at + bytes.len()].copy_from_slice(bytes);
            return put(cluster, shard, &key, Some(value));
        }
    }
}

fn mend(cluster: &mut Cluster, ino: Ino, mend: Repair) -> MetaResult {
    cluster.call(9, &Cred::ROOT, MetaOp::Repair { ino, repair: mend })
}

fn attr(cluster: &mut Cluster, ino: Ino) -> Result<Attr, Errno> {
    match cluster.call(9, &Cred::ROOT, MetaOp::GetAttr { ino })? {
        MetaReply::Attr(attr) => Ok(attr),
        other => panic!("no attributes: {other:?}"),
    }
}

const MENDED: MetaResult = Ok(MetaReply::Repaired(true));
const REFUSED: MetaResult = Ok(MetaReply::Repaired(false));

/// Returns all entries that lead to an inode.
fn names_of(cluster: &mut Cluster, ino: Ino) -> Vec<LocatedEntry> {
    let mut all = Vec::new();
    for (shard, _) in cluster.map.first_shards() {
        match cluster.call(9, &Cred::ROOT, MetaOp::ListEntriesOf { shard, inos: vec![ino] }) {
            Ok(MetaReply::LocatedEntries { names, more: false }) => all.extend(names),
            other => panic!("no names: {other:?}"),
        }
    }
    all
}

fn lost_and_found(cluster: &mut Cluster) -> Ino {
    let op = MetaOp::Create {
        parent: ROOT,
        name: name("lost+found"),
        node: InodeTemplate::Dir,
        mode: 0o700,
        umask: 0,
        exclusive: true,
        open: None,
    };
    let found = MetaOp::Lookup { parent: ROOT, name: name("lost+found") };
    match cluster.call(9, &Cred::ROOT, op) {
        Ok(MetaReply::Created { attr, .. }) => attr.ino,
        Err(Errno::EEXIST) => match cluster.call(9, &Cred::ROOT, found) {
            Ok(MetaReply::Attr(attr)) => attr.ino,
            other => panic!("not found: {other:?}"),
        },
        other => panic!("not made: {other:?}"),
    }
}

/// Returns a directory on node 1 with a file, in the root, whose entries may be on another.
fn tree(seed: u64) -> (Cluster, Ino, Ino) {
    let mut cluster = Cluster::new(3, 16, seed);
    let root = number_of(cluster.map.owner(ROOT.owner_shard()).expect("served")) as u16;
    let d = dir(&mut cluster, ROOT, Some((root + 1) % 3));
    let file = create(&mut cluster, d, "file");
    cluster.quiet();
    assert_sound(&mut cluster);
    (cluster, d, file)
}

fn place(dir: Ino, file: &str) -> EntryLocation {
    EntryLocation { partition: dir, name: name(file) }
}

#[test]
fn nothing_that_is_right_is_mended() {
    let (mut cluster, d, file) = tree(1);
    let lost = lost_and_found(&mut cluster);
    let at = EntryLocation { partition: ROOT, name: entry_of(&mut cluster, ROOT, d) };
    let (of_dir, of_file) =
        (attr(&mut cluster, d).expect("it is there"), attr(&mut cluster, file).expect("likewise"));
    let other = place(d, "other");
    for (ino, no) in [
        (d, Repair::FixEntry(at.clone())),
        (file, Repair::FixEntry(place(d, "file"))),
        (file, Repair::FixEntry(other.clone())),
        (d, Repair::RemoveDuplicateEntry { place: at.clone(), stays: at.clone() }),
        (d, Repair::RemoveDuplicateEntry { place: at.clone(), stays: other.clone() }),
        (d, Repair::SetBackPointer(at.clone())),
        (d, Repair::SetBackPointer(other.clone())),
        (file, Repair::SetBackPointer(place(d, "file"))),
        (ROOT, Repair::FixRoot),
        (d, Repair::FixRoot),
        (d, Repair::RemoveDuplicateRecord),
        (file, Repair::SetLinkCount { version: of_file.version, nlink: 1 }),
        (file, Repair::SetLinkCount { version: of_file.version, nlink: 0 }),
        (file, Repair::SetLinkCount { version: of_file.version + 1, nlink: 2 }),
        (d, Repair::SetLinkCount { version: of_dir.version, nlink: 2 }),
        (d, Repair::SetLinkCount { version: of_dir.version, nlink: 7 }),
        (file, Repair::RemoveInode { version: of_file.version }),
        (d, Repair::RemoveInode { version: of_dir.version }),
        (file, Repair::MoveToLostFound { version: of_file.version + 1, lost, from: None }),
        (d, Repair::MoveToLostFound { version: of_dir.version, lost, from: Some(other) }),
        (lost, Repair::MoveToLostFound { version: 1, lost, from: None }),
    ] {
        assert_eq!(mend(&mut cluster, ino, no.clone()), REFUSED, "{no:?} of {ino}");
    }
    cluster.quiet();
    assert_sound(&mut cluster);
    assert_eq!(attr(&mut cluster, d), Ok(of_dir));
    assert_eq!(attr(&mut cluster, file), Ok(of_file));
}

#[test]
fn only_who_is_trusted_mends() {
    let (mut cluster, _, file) = tree(2);
    let now = cluster.time();
    let meta = cluster.meta(0).expect("it is up");
    let client = tatami_wire::ClientId([5; 16]);
    let ctx = tatami_meta::OperationContext { now, client, slot: 0, seq: 1, trusted: false };
    for op in [
        MetaOp::Repair { ino: file, repair: Repair::RemoveDuplicateRecord },
        MetaOp::ListEntriesOf { shard: ShardId(0), inos: vec![file] },
        MetaOp::ScanPartitions { shard: ShardId(0), after: Ino(0) },
    ] {
        let refused = tatami_meta::Applied::Done(Err(Errno::EPERM));
        assert_eq!(meta.apply(&ctx, &Cred::ROOT, &op), refused);
    }
}

/// A repair names an inode without a name while another client gives it one: it does not get both.
#[test]
fn an_inode_that_changes_is_not_rescued() {
    let (mut cluster, d, file) = tree(3);
    let lost = lost_and_found(&mut cluster);
    let before = attr(&mut cluster, file).expect("it is there").version;
    let link = MetaOp::Link { ino: file, parent: ROOT, name: name("new") };
    cluster.call(1, &Cred::ROOT, link).expect("link");
    let rescue = Repair::MoveToLostFound { version: before, lost, from: None };
    assert_eq!(mend(&mut cluster, file, rescue), REFUSED);
    let links = Repair::SetLinkCount { version: before, nlink: 1 };
    assert_eq!(mend(&mut cluster, file, links), REFUSED);
    put(&mut cluster, d.owner_shard(), &entry_key(d, "file"), None);
    assert_eq!(mend(&mut cluster, file, Repair::FixEntry(place(d, "file"))), REFUSED);
    mend_all(&mut cluster, Faults::default());
    assert_sound(&mut cluster);
    assert_eq!(attr(&mut cluster, file).map(|attr| attr.nlink), Ok(1));
}

/// The remaining partitions of a directory keep its entry: their entries are not lost.
#[test]
fn a_directory_of_which_partitions_are_left_keeps_its_name() {
    let (mut cluster, d) = crate::splitting::spread(16, 40);
    let at = EntryLocation { partition: ROOT, name: entry_of(&mut cluster, ROOT, d) };
    put(&mut cluster, d.owner_shard(), &key(b'I', d), None);
    assert_eq!(mend(&mut cluster, d, Repair::FixEntry(at)), Err(Errno::ENOTEMPTY));
}

fn listed(cluster: &mut Cluster, dir: Ino) -> BTreeSet<Vec<u8>> {
    let list = MetaOp::ReadDir { dir, after: 0, limit: 1000, plus: false };
    match cluster.call(9, &Cred::ROOT, list) {
        Ok(MetaReply::Entries { entries, .. }) => {
            entries.into_iter().map(|entry| entry.name.into_vec()).collect()
        }
        other => panic!("no listing: {other:?}"),
    }
}

fn parts(cluster: &mut Cluster) -> BTreeMap<Ino, HashRange> {
    let mut all = BTreeMap::new();
    for (shard, _) in cluster.map.first_shards() {
        match cluster.call(9, &Cred::ROOT, MetaOp::ScanPartitions { shard, after: Ino(0) }) {
            Ok(MetaReply::PartitionRecords { parts, next: None }) => {
                all.extend(parts.into_iter().map(|part| (part.ino, part.range)));
            }
            other => panic!("no partitions: {other:?}"),
        }
    }
    all
}

/// Each partition in turn loses its record, the first one, too: all names are there again.
#[test]
fn lost_partitions_are_made_anew() {
    let (mut cluster, d) = crate::splitting::spread(16, 40);
    assert_sound(&mut cluster);
    let (before, all) = (listed(&mut cluster, d), parts(&mut cluster));
    assert!(all.len() >= 8 && all.keys().all(|part| cluster.map.directory_of(*part) == d));
    for (part, range) in &all {
        let like = match *part == d {
            true => *all.keys().find(|other| **other != d).expect("there are others"),
            false => d,
        };
        let anew = Repair::RecreatePartition { range: *range, like };
        assert_eq!(mend(&mut cluster, *part, anew.clone()), REFUSED, "it is there");
        put(&mut cluster, part.owner_shard(), &key(b'I', *part), None);
        let wrong = Repair::RecreatePartition { range: *range, like: *part };
        assert_eq!(mend(&mut cluster, *part, wrong), REFUSED);
        assert_eq!(mend(&mut cluster, *part, anew), MENDED, "{part} {range:?}");
        cluster.quiet();
        mend_all(&mut cluster, Faults::default());
        assert_sound(&mut cluster);
        assert_eq!(listed(&mut cluster, d), before);
        assert_eq!(parts(&mut cluster), all);
    }
    walk(&mut cluster);
}

/// A partition that its directory does not know has names of its own, and some that the directory
/// has, too.
#[test]
fn what_an_unknown_partition_has_comes_home() {
    let (mut cluster, d, file) = tree(6);
    let sub = dir(&mut cluster, d, None);
    cluster.quiet();
    let sub_name = String::from_utf8(entry_of(&mut cluster, d, sub).into_vec()).expect("text");
    let range = HashRange { from: 1 << 62, bits: 4 };
    let part = cluster.map.partition_number(d, range.from);
    let mut value = record(&mut cluster, d.owner_shard(), &key(b'I', d)).expect("it is there");
    // As docs/reference/formats.md draws it: two entries, one of a directory, and the range.
    value[NLINK..NLINK + 4].copy_from_slice(&3u32.to_le_bytes());
    value[24..32].copy_from_slice(&3u64.to_le_bytes());
    value[PARENT..PARENT + 8].copy_from_slice(&d.0.to_le_bytes());
    value[FLAGS] |= 64;
    value.extend(range.from.to_le_bytes());
    value.push(range.bits);
    put(&mut cluster, part.owner_shard(), &key(b'I', part), Some(value));
    put(&mut cluster, part.owner_shard(), &entry_key(part, "file"), Some(entry(file, 1)));
    put(&mut cluster, part.owner_shard(), &entry_key(part, &sub_name), Some(entry(sub, 2)));
    let other = create(&mut cluster, ROOT, "other");
    cluster.quiet();
    put(&mut cluster, part.owner_shard(), &entry_key(part, "second name"), Some(entry(other, 1)));
    assert_eq!(parts(&mut cluster), [(part, range)].into());
    // The subdirectory is only there.
    put(&mut cluster, d.owner_shard(), &entry_key(d, &sub_name), None);
    assert_eq!(mend(&mut cluster, d, Repair::EmptyPartition), REFUSED);
    assert_eq!(mend(&mut cluster, part, Repair::EmptyPartition), MENDED);
    assert_eq!(mend(&mut cluster, part, Repair::EmptyPartition), MENDED, "now it goes");
    assert_eq!(mend(&mut cluster, part, Repair::EmptyPartition), REFUSED);
    mend_all(&mut cluster, Faults::default());
    assert_sound(&mut cluster);
    assert_eq!(parts(&mut cluster), BTreeMap::new());
    let expected = ["file", "second name", &sub_name];
    assert_eq!(listed(&mut cluster, d), expected.map(|name| name.as_bytes().to_vec()).into());
    assert_eq!(attr(&mut cluster, other).map(|attr| attr.nlink), Ok(2));
    let (found, count) = (walk(&mut cluster), inodes(&mut cluster));
    assert_eq!(found, count);
    // Partitions that a directory knows stay.
    let (mut cluster, d) = crate::splitting::spread(16, 40);
    for part in parts(&mut cluster).into_keys() {
        assert_eq!(mend(&mut cluster, part, Repair::EmptyPartition), REFUSED, "{part} of {d}");
    }
    assert_sound(&mut cluster);
}

/// Runs one round of a client's fsck. Returns whether there was a problem.
fn round(cluster: &mut Cluster) -> bool {
    let mut wrong = findings(cluster, 1000, true).len();
    let (inodes, mut names) = ties(cluster, BACK_POINTERS_MAX);
    let mut above = BTreeMap::new();
    let mut wanted: Vec<(Ino, Repair)> = Vec::new();
    let twins = crate::checking::twins(cluster);
    wanted.extend(twins.into_iter().map(|ino| (ino, Repair::RemoveDuplicateRecord)));
    let all: BTreeSet<Ino> = inodes.keys().chain(names.keys()).copied().collect();
    for ino in all {
        let namings = names.remove(&ino).unwrap_or_default();
        let count: u32 = namings.iter().map(|naming| naming.count).sum();
        let mut places =
            || names_of(cluster, ino).into_iter().map(|named| named.location).collect::<Vec<_>>();
        let Some(tied) = inodes.get(&ino) else {
            wanted.extend(places().into_iter().map(|place| (ino, Repair::FixEntry(place))));
            continue;
        };
        let kind = tied.kind.expect("it reads");
        if kind == InodeKind::Dir {
            above.insert(ino, tied.parent);
        }
        let version = tied.version;
        if namings.iter().any(|naming| naming.kind != kind) {
            wanted.extend(places().into_iter().map(|place| (ino, Repair::FixEntry(place))));
        } else if ino == ROOT {
            wanted.extend((tied.parent != ROOT).then_some((ino, Repair::FixRoot)));
            let unname = |place: EntryLocation| {
                (ino, Repair::RemoveDuplicateEntry { stays: place.clone(), place })
            };
            wanted.extend(places().into_iter().map(unname));
        } else if count == 0 && tied.nlink == 0 {
            wanted.extend((!tied.kept).then_some((ino, Repair::RemoveInode { version })));
        } else if count == 0 {
            let lost = lost_and_found(cluster);
            wanted.push((ino, Repair::MoveToLostFound { version, lost, from: None }));
        } else if kind == InodeKind::Dir && count > 1 {
            let places = places();
            let right =
                |place: &&EntryLocation| cluster.map.directory_of(place.partition) == tied.parent;
            let stays = places.iter().find(right).unwrap_or(&places[0]).clone();
            let others = places.iter().filter(|place| **place != stays).cloned();
            wanted.extend(
                others.map(|place| {
                    (ino, Repair::RemoveDuplicateEntry { place, stays: stays.clone() })
                }),
            );
        } else if kind == InodeKind::Dir && namings[0].dir != tied.parent {
            wanted.push((ino, Repair::SetBackPointer(places().remove(0))));
        } else if kind == InodeKind::Dir && tied.nlink == 0 {
            wanted.push((ino, Repair::SetLinkCount { version, nlink: 2 }));
        } else if kind != InodeKind::Dir && count != tied.nlink {
            wanted.push((ino, Repair::SetLinkCount { version, nlink: count }));
        }
    }
    if wanted.is_empty() {
        wanted.extend(opened(cluster, &above, &inodes));
    }
    wrong += wanted.len();
    for (ino, mending) in wanted {
        let done = mend(cluster, ino, mending.clone());
        assert!(matches!(done, Ok(MetaReply::Repaired(_))), "{mending:?} of {ino}: {done:?}");
    }
    wrong > 0
}

/// Returns the repair that opens a ring of directories, if there is one.
fn opened(
    cluster: &mut Cluster,
    above: &BTreeMap<Ino, Ino>,
    inodes: &BTreeMap<Ino, tatami_wire::meta::BackPointer>,
) -> Option<(Ino, Repair)> {
    for start in above.keys() {
        let (mut at, mut way) = (*start, Vec::new());
        while at != ROOT && !way.contains(&at) {
            way.push(at);
            at = *above.get(&at)?;
        }
        if at != ROOT {
            let from = names_of(cluster, at).pop().map(|named| named.location);
            let lost = lost_and_found(cluster);
            return Some((
                at,
                Repair::MoveToLostFound { version: inodes[&at].version, lost, from },
            ));
        }
    }
    None
}

/// Checks and repairs, until there is no problem.
fn mend_all(cluster: &mut Cluster, faults: Faults) {
    for _ in 0..60 {
        cluster.quiet();
        cluster.faults = faults;
        if !round(cluster) {
            return cluster.quiet();
        }
    }
    panic!("there is no end");
}

/// Breaks a part of a tree, and records the inodes that are lost with it.
fn break_something(cluster: &mut Cluster, rng: &mut Rng, dirs: &[Ino], gone: &mut BTreeSet<Ino>) {
    let (known, _) = ties(cluster, BACK_POINTERS_MAX);
    let all: Vec<Ino> = known.keys().copied().filter(|ino| *ino != ROOT).collect();
    let ino = all[rng.below(all.len() as u64) as usize];
    let is_dir = known[&ino].kind == Some(InodeKind::Dir);
    let other = dirs[rng.below(dirs.len() as u64) as usize];
    let at = names_of(cluster, ino).pop().map(|named| named.location);
    let at = at.map(|EntryLocation { partition: part, name }| {
        (part, String::from_utf8(name.to_vec()).expect("text"))
    });
    match (rng.below(8), at) {
        (0, _) => {
            for (tag, shard) in [(b'I', ino.owner_shard()), (b'Y', ino.allocating_shard())] {
                put(cluster, shard, &key(tag, ino), None);
            }
            gone.insert(ino);
        }
        (1, Some((dir, file))) => put(cluster, dir.owner_shard(), &entry_key(dir, &file), None),
        (2, _) if !is_dir => patch(cluster, ino, NLINK, &[1 + rng.below(9) as u8]),
        (3, _) if is_dir => patch(cluster, ino, PARENT, &other.0.to_le_bytes()),
        // A wrong kind: 1 is a file, 2 a directory.
        (4, Some((dir, file))) => {
            let wrong = entry(ino, if is_dir { 1 } else { 2 });
            put(cluster, dir.owner_shard(), &entry_key(dir, &file), Some(wrong));
        }
        (5, _) => {
            let value = entry(ino, if is_dir { 2 } else { 1 });
            put(cluster, other.owner_shard(), &entry_key(other, "one more"), Some(value));
        }
        (6, _) => {
            let value = entry(Ino(ino.0 + 1000), 1);
            put(cluster, other.owner_shard(), &entry_key(other, "of nothing"), Some(value));
        }
        (7, _) if is_dir && ino.owner_shard() != ino.allocating_shard() => {
            if let Some(value) = record(cluster, ino.owner_shard(), &key(b'I', ino)) {
                put(cluster, ino.allocating_shard(), &key(b'Y', ino), Some(value));
            }
        }
        _ => {}
    }
}

fn breaks_and_mends(seed: u64, faults: Faults, split: Option<u64>) {
    let mut cluster = Cluster::new(3, 16, seed);
    split.into_iter().for_each(|entries| cluster.split_above(entries));
    let mut rng = Rng::new(seed);
    let mut dirs = vec![ROOT];
    for n in 0..24 {
        let parent = dirs[rng.below(dirs.len() as u64) as usize];
        match rng.below(3) {
            0 => dirs.push(dir(&mut cluster, parent, None)),
            _ => drop(create(&mut cluster, parent, &format!("file{n}"))),
        }
    }
    cluster.quiet();
    assert_sound(&mut cluster);
    let before: BTreeSet<Ino> = ties(&mut cluster, BACK_POINTERS_MAX).0.into_keys().collect();
    let mut gone = BTreeSet::new();
    // In directories with one partition the entries lie under their own number.
    if split.is_none() {
        for _ in 0..1 + rng.below(4) {
            break_something(&mut cluster, &mut rng, &dirs, &mut gone);
        }
        cluster.quiet();
    }
    mend_all(&mut cluster, faults);
    assert_sound(&mut cluster);
    let found = walk(&mut cluster);
    assert_eq!(inodes(&mut cluster), found, "seed {seed}");
    let after: BTreeSet<Ino> = ties(&mut cluster, BACK_POINTERS_MAX).0.into_keys().collect();
    let lost: Vec<_> = before.difference(&after).filter(|ino| !gone.contains(ino)).collect();
    assert!(lost.is_empty(), "seed {seed} has lost {lost:?}");
}

/// Two directories that lie in each other, unreachable from the root.
#[test]
fn a_ring_is_opened() {
    let (mut cluster, d, file) = tree(5);
    let inner = dir(&mut cluster, d, None);
    let deep = dir(&mut cluster, inner, None);
    cluster.quiet();
    let old = entry_of(&mut cluster, ROOT, d);
    let old = entry_key(ROOT, std::str::from_utf8(&old).expect("text"));
    put(&mut cluster, ROOT.owner_shard(), &old, None);
    put(&mut cluster, inner.owner_shard(), &entry_key(inner, "round"), Some(entry(d, 2)));
    patch(&mut cluster, d, PARENT, &inner.0.to_le_bytes());
    mend_all(&mut cluster, Faults::default());
    assert_sound(&mut cluster);
    walk(&mut cluster);
    assert!(attr(&mut cluster, deep).is_ok() && attr(&mut cluster, file).is_ok());
}

const BAD: Faults = Faults { lost: 5, twice: 10, deaths: 10, moves: 0 };

proptest! {
    #![proptest_config(scaled(60))]

    #[test]
    fn whatever_is_broken_is_mended_and_nothing_else_is_lost(seed: u64) {
        breaks_and_mends(seed, Faults::default(), None);
    }

    #[test]
    fn nodes_that_die_meanwhile_break_nothing(seed: u64) {
        breaks_and_mends(seed, BAD, None);
    }

    #[test]
    fn a_sound_tree_stays_as_it_is(seed: u64) {
        breaks_and_mends(seed, BAD, Some(1 + seed % 3));
    }
}
