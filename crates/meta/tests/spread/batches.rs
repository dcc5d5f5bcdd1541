//! Batch operations, where other nodes have names and inodes, too. A node does not run the
//! operations that it cannot do alone, and they cost the others nothing.

use crate::checking::{assert_sound, create};
use crate::cluster::{Cluster, LAYOUT, ROOT, executor, name};
use crate::same::dir;
use crate::splitting::partitions;
use std::collections::BTreeSet;
use tatami_wire::batch::{BatchOp, BatchResult, RetainedEntry};
use tatami_wire::meta::{InodeTemplate, MetaOp, MetaReply};
use tatami_wire::{Access, Cred, Errno, Ino};

fn file(parent: Ino, n: &str) -> BatchOp {
    let (name, node) = (name(n), InodeTemplate::File(LAYOUT));
    BatchOp::Create { parent, name, node, mode: 0o644, umask: 0, exclusive: true, open: None }
}

fn run_batch(cluster: &mut Cluster, client: u8, operations: Vec<BatchOp>) -> Vec<BatchResult> {
    match cluster.call(client, &Cred::ROOT, MetaOp::Batch { operations }) {
        Ok(MetaReply::BatchResults(all)) => all,
        other => panic!("no batch: {other:?}"),
    }
}

#[test]
fn an_act_that_needs_others_is_left_alone() {
    let mut cluster = Cluster::new(3, 16, 7);
    let d = dir(&mut cluster, ROOT, Some(1));
    let other = dir(&mut cluster, ROOT, Some(2));
    // With the first entry they move to their owner shards.
    for dir in [d, other] {
        create(&mut cluster, dir, "first");
    }
    // It has no entries yet: it is embedded, and not at its owner shard.
    let young = loop {
        let n = format!("young{}", cluster.now);
        let (node, parent) = (InodeTemplate::Dir, ROOT);
        let (mode, umask, exclusive) = (0o755, 0, true);
        let op =
            MetaOp::Create { parent, name: name(&n), node, mode, umask, exclusive, open: None };
        let Ok(MetaReply::Created { attr, .. }) = cluster.call(1, &Cred::ROOT, op) else {
            panic!("no directory")
        };
        if cluster.map.owner(attr.ino.owner_shard()) == Some(executor(1)) {
            break attr.ino;
        }
    };
    let messages = cluster.messages;
    let replies = run_batch(
        &mut cluster,
        1,
        vec![
            file(d, "a"),
            file(young, "b"),
            file(other, "c"),
            BatchOp::GetAttr { ino: other },
            BatchOp::LookupEntry { parent: d, name: name("a") },
        ],
    );
    assert!(matches!(replies[0], BatchResult::Created { .. }));
    assert_eq!(replies[1], BatchResult::NeedsOtherNodes);
    assert_eq!(replies[2..4], [BatchResult::WrongShard, BatchResult::WrongShard]);
    assert!(matches!(replies[4], BatchResult::Attr(_)));
    assert_eq!(cluster.messages, messages);
    // A file that has come from another node.
    let rename = MetaOp::Rename {
        parent: d,
        name: name("a"),
        new_parent: other,
        new_name: name("a"),
        mode: tatami_wire::meta::RenameMode::Replace,
        keep: false,
    };
    assert!(cluster.call(1, &Cred::ROOT, rename).is_ok());
    cluster.quiet();
    let replies = run_batch(
        &mut cluster,
        1,
        vec![
            BatchOp::Unlink { parent: other, name: name("a"), keep: false },
            BatchOp::LookupEntry { parent: other, name: name("a") },
        ],
    );
    assert_eq!(replies[0], BatchResult::NeedsOtherNodes);
    assert!(matches!(replies[1], BatchResult::Referral(_)));
    assert_sound(&mut cluster);
}

#[test]
fn a_split_directory_is_told_of() {
    let mut cluster = Cluster::new(3, 16, 11);
    cluster.split_above(8);
    let d = dir(&mut cluster, ROOT, Some(1));
    create(&mut cluster, d, "first");
    let many =
        |from: u32| (from..from + 200).map(|n| file(d, &format!("file{n}"))).collect::<Vec<_>>();
    let replies = run_batch(&mut cluster, 1, many(0));
    // No more files are made at once than a split can handle.
    let made =
        replies.iter().filter(|result| matches!(result, BatchResult::Created { .. })).count();
    assert!((7..=24).contains(&made), "{made}");
    assert!(replies[made..].iter().all(|result| *result == BatchResult::Busy));
    cluster.quiet();
    let replies = run_batch(&mut cluster, 2, many(200));
    let parted = replies
        .iter()
        .filter(|result| matches!(result, BatchResult::WrongPartition { .. }))
        .count();
    assert!(parted > 100, "{replies:?}");
    cluster.quiet();
    // An older client that looks up existing names.
    let finds =
        (0..made).map(|n| BatchOp::LookupEntry { parent: d, name: name(&format!("file{n}")) });
    let replies = run_batch(&mut cluster, 3, finds.collect());
    assert!(
        replies.iter().all(|result| matches!(
            result,
            BatchResult::WrongPartition { .. } | BatchResult::Attr(_)
        ))
    );
    assert_sound(&mut cluster);
}

/// The inode is made where the entry will lie, so that the link needs no other node. A link from
/// elsewhere needs one, and has the same effect.
#[test]
fn a_file_without_a_name_lies_where_its_name_will() {
    let mut cluster = Cluster::new(3, 16, 17);
    cluster.split_above(8);
    let d = dir(&mut cluster, ROOT, Some(1));
    for n in 0..60 {
        create(&mut cluster, d, &format!("file{n}"));
    }
    cluster.quiet();
    let unnamed = |parent, n: &str| BatchOp::Tmpfile {
        parent,
        name: name(n),
        layout: LAYOUT,
        mode: 0o644,
        umask: 0,
        open: Access::WRITE,
    };
    assert!(partitions(&mut cluster, d).len() > 1);
    let mut linked = 0;
    for n in 0..30 {
        let n = format!("new{n}");
        let made = run_batch(&mut cluster, 1, vec![unnamed(d, &n)]);
        let part = match made[0] {
            BatchResult::WrongPartition { part, .. } => part,
            _ => d,
        };
        let made = run_batch(&mut cluster, 1, vec![unnamed(part, &n)]);
        let BatchResult::Created { attr, .. } = &made[0] else { panic!("{made:?}") };
        let messages = cluster.messages;
        let link = BatchOp::Link { ino: attr.ino, parent: part, name: name(&n) };
        match &run_batch(&mut cluster, 1, vec![link])[0] {
            BatchResult::Attr(attr) => assert_eq!(attr.nlink, 1),
            // The partition has grown enough to wait for its next split.
            other => assert_eq!(*other, BatchResult::Busy),
        }
        linked += usize::from(cluster.messages == messages);
    }
    assert_eq!(linked, 30, "no link needed another node");
    cluster.quiet();
    let tmpfile = MetaOp::Tmpfile {
        parent: ROOT,
        layout: LAYOUT,
        mode: 0o644,
        umask: 0,
        open: Access::WRITE,
    };
    let Ok(MetaReply::Created { attr, .. }) = cluster.call(1, &Cred::ROOT, tmpfile) else {
        panic!("no file")
    };
    let other = dir(&mut cluster, ROOT, Some(2));
    create(&mut cluster, other, "first");
    assert_ne!(cluster.map.owner(attr.ino.owner_shard()), cluster.map.owner(other.owner_shard()));
    let link = MetaOp::Link { ino: attr.ino, parent: other, name: name("far") };
    assert!(
        matches!(cluster.call(1, &Cred::ROOT, link), Ok(MetaReply::Attr(attr)) if attr.nlink == 1)
    );
    cluster.quiet();
    let unlink = MetaOp::Unlink { parent: other, name: name("far"), keep: false };
    let commit = MetaOp::Commit { ino: attr.ino, state: None, close: true };
    assert!(cluster.call(1, &Cred::ROOT, commit).is_ok());
    assert!(cluster.call(1, &Cred::ROOT, unlink).is_ok());
    cluster.quiet();
    let gone = cluster.call(1, &Cred::ROOT, MetaOp::GetAttr { ino: attr.ino });
    assert_eq!(gone, Err(Errno::ESTALE), "nothing keeps it");
    assert_sound(&mut cluster);
}

#[test]
fn a_directory_elsewhere_can_be_cleared() {
    let mut cluster = Cluster::new(3, 16, 13);
    cluster.split_above(8);
    let d = dir(&mut cluster, ROOT, Some(1));
    for n in 0..60 {
        create(&mut cluster, d, &format!("file{n}"));
    }
    cluster.quiet();
    let (mut after, mut removed, mut seen) = (0, 0, BTreeSet::new());
    loop {
        let op = MetaOp::ClearDir { dir: d, after, limit: 5, with_names: true };
        match cluster.call(1, &Cred::ROOT, op) {
            Ok(MetaReply::DirCleared { removed: more, names, retained: left, end, upto }) => {
                assert_eq!(names.len(), more as usize);
                removed += more;
                seen.extend(names);
                // The files made before the split lie where they were made.
                for RetainedEntry { name, reason: why, .. } in left {
                    assert_eq!(why, None);
                    let unlink = MetaOp::Unlink { parent: d, name: name.clone(), keep: false };
                    assert!(cluster.call(1, &Cred::ROOT, unlink).is_ok());
                    seen.insert(name);
                }
                after = upto;
                if end {
                    break;
                }
            }
            other => panic!("not cleared: {other:?}"),
        }
    }
    assert!(removed > 20 && seen.len() == 60, "{removed} of {}", seen.len());
    let attr = cluster.call(1, &Cred::ROOT, MetaOp::GetAttr { ino: d });
    assert!(matches!(attr, Ok(MetaReply::Attr(attr)) if attr.size == 0));
    let nothing = cluster.call(1, &Cred::ROOT, MetaOp::SumDir { dir: Ino(77), after: 0, limit: 5 });
    assert_eq!(nothing, Err(Errno::ESTALE));
    assert_sound(&mut cluster);
}
