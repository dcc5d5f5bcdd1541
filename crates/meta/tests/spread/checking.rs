//! Each node checks the records of its own shards, and all of them report which names lead to which
//! inodes.

use crate::cluster::{Cluster, LAYOUT, ROOT, name};
use crate::same::dir;
use std::collections::{BTreeMap, BTreeSet};
use tatami_meta::store::Store;
use tatami_wire::meta::{
    BACK_POINTERS_MAX, BackPointer, Finding, InodeEntries, InodeTemplate, MetaOp, MetaReply,
};
use tatami_wire::{Cred, Ino, InodeKind};

/// Returns the problems that all nodes find in their own records.
pub fn findings(cluster: &mut Cluster, limit: u32, repair: bool) -> Vec<Finding> {
    let mut all = Vec::new();
    for (shard, _) in cluster.map.first_shards() {
        let mut next = Some(Ino::first_in_shard(shard));
        while let Some(after) = next {
            let op = MetaOp::Check { after, limit, repair };
            match cluster.call(9, &Cred::ROOT, op) {
                Ok(MetaReply::Checked { findings, next: following, .. }) => {
                    all.extend(findings);
                    next = following;
                }
                other => panic!("not checked: {other:?}"),
            }
        }
    }
    all
}

/// Returns the back-pointers of all nodes, `limit` inodes at a time.
pub fn ties(
    cluster: &mut Cluster,
    limit: u32,
) -> (BTreeMap<Ino, BackPointer>, BTreeMap<Ino, Vec<InodeEntries>>) {
    let (mut inodes, mut names) = (BTreeMap::new(), BTreeMap::<Ino, Vec<InodeEntries>>::new());
    for (shard, _) in cluster.map.first_shards() {
        let mut next = Some(Ino(0));
        while let Some(after) = next {
            let op = MetaOp::ScanBackPointers { shard, after, last: Ino(u64::MAX), limit };
            match cluster.call(9, &Cred::ROOT, op) {
                Ok(MetaReply::BackPointers { inodes: found, names: leading, upto }) => {
                    inodes.extend(found.into_iter().map(|tied| (tied.ino, tied)));
                    for naming in leading {
                        names.entry(naming.ino).or_default().push(naming);
                    }
                    assert!(upto.is_none_or(|upto| upto > after), "it goes on");
                    next = upto;
                }
                other => panic!("no ties: {other:?}"),
            }
        }
    }
    (inodes, names)
}

/// Returns inodes that have more than one record.
pub fn twins(cluster: &mut Cluster) -> Vec<Ino> {
    let (mut known, mut twins) = (BTreeSet::new(), Vec::new());
    for (shard, _) in cluster.map.first_shards() {
        let op = MetaOp::ScanBackPointers {
            shard,
            after: Ino(0),
            last: Ino(u64::MAX),
            limit: BACK_POINTERS_MAX,
        };
        match cluster.call(9, &Cred::ROOT, op) {
            Ok(MetaReply::BackPointers { inodes, upto: None, .. }) => {
                twins.extend(inodes.iter().map(|tied| tied.ino).filter(|ino| !known.insert(*ino)));
            }
            other => panic!("no ties: {other:?}"),
        }
    }
    twins
}

/// Asserts that a check finds nothing, and that names and inodes agree.
pub fn assert_sound(cluster: &mut Cluster) {
    for limit in [8, 1000] {
        let findings = findings(cluster, limit, false);
        assert!(findings.is_empty(), "{findings:#?}");
    }
    assert_eq!(twins(cluster), [], "one record an inode");
    let (inodes, mut names) = ties(cluster, BACK_POINTERS_MAX);
    assert_eq!(ties(cluster, 8), (inodes.clone(), names.clone()), "a few at a time");
    for (ino, tied) in inodes {
        let namings = names.remove(&ino).unwrap_or_default();
        let count: u32 = namings.iter().map(|naming| naming.count).sum();
        assert!(!tied.changing && namings.iter().all(|n| !n.changing && Some(n.kind) == tied.kind));
        match tied.kind {
            _ if ino == ROOT => assert_eq!(count, 0),
            _ if tied.kept && count == 0 => assert_eq!(tied.nlink, 0),
            Some(InodeKind::Dir) => {
                assert_eq!(namings.len(), 1, "{ino} has one name");
                assert_eq!((count, namings[0].dir), (1, tied.parent));
            }
            _ => assert_eq!(count, tied.nlink, "{ino}"),
        }
    }
    assert!(names.is_empty(), "names of nothing: {names:#?}");
}

pub fn create(cluster: &mut Cluster, parent: Ino, file: &str) -> Ino {
    create_by(cluster, 1, parent, file)
}

/// Makes a file as client `client`.
pub fn create_by(cluster: &mut Cluster, client: u8, parent: Ino, file: &str) -> Ino {
    let op = MetaOp::Create {
        parent,
        name: name(file),
        node: InodeTemplate::File(LAYOUT),
        mode: 0o644,
        umask: 0,
        exclusive: true,
        open: None,
    };
    match cluster.call(client, &Cred::ROOT, op) {
        Ok(MetaReply::Created { attr, .. }) => attr.ino,
        other => panic!("not made: {other:?}"),
    }
}

/// Damages a record of one node.
fn corrupt(cluster: &mut Cluster, node: usize, key: &[u8], change: impl Fn(&mut Vec<u8>) -> bool) {
    let store = cluster.meta(node).expect("it is up").store_mut();
    let mut value = store.get(key).expect("reads").expect("it is there");
    let stays = change(&mut value);
    store.corrupt_pair(&(key.to_vec(), stays.then_some(value)));
    cluster.kill(node, 0);
    cluster.step();
}

#[test]
fn what_is_broken_on_one_node_is_found_and_mended() {
    // Offsets as docs/reference/formats.md draws them: link count and size of a directory.
    for at in [4, 24] {
        let mut cluster = Cluster::new(3, 16, 3);
        let d = dir(&mut cluster, ROOT, Some(2));
        create(&mut cluster, d, "file");
        dir(&mut cluster, d, None);
        cluster.quiet();
        assert_sound(&mut cluster);
        let key = [&b"I"[..], &d.0.to_be_bytes()].concat();
        corrupt(&mut cluster, 2, &key, |value| {
            value[at] = 77;
            true
        });
        let found = findings(&mut cluster, 1000, true);
        assert!(found.iter().any(|f| f.ino == d && f.repaired), "{found:#?}");
        cluster.quiet();
        assert_sound(&mut cluster);
    }
}

#[test]
fn what_does_not_fit_between_nodes_is_told() {
    let mut cluster = Cluster::new(3, 16, 4);
    let d = dir(&mut cluster, ROOT, Some(2));
    let file = create(&mut cluster, d, "file");
    cluster.quiet();
    // The directory's entry is on another node.
    let (_, names) = ties(&mut cluster, BACK_POINTERS_MAX);
    assert_eq!((names[&d][0].dir, names[&d][0].count), (ROOT, 1));
    assert_eq!((names[&file][0].dir, names[&file][0].count), (d, 1));
    let key = [&b"I"[..], &d.0.to_be_bytes()].concat();
    corrupt(&mut cluster, 2, &key, |_| false);
    let (inodes, names) = ties(&mut cluster, BACK_POINTERS_MAX);
    assert!(!inodes.contains_key(&d) && names.contains_key(&d), "a name of nothing");
    let found = findings(&mut cluster, 1000, false);
    assert!(found.iter().all(|f| f.ino == d || f.ino == ROOT), "{found:#?}");
}
