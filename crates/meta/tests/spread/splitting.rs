//! Directories that split as they grow (GIGA+).

use crate::checking::{assert_sound, create, create_by};
use crate::cluster::{Cluster, Faults, ROOT, Rng, name};
use crate::same::dir;
use proptest::prelude::*;
use std::collections::BTreeSet;
use tatami_meta::SplitLimits;
use tatami_wire::meta::{Bytes, MetaOp, MetaReply, PartitionInfo, RenameMode, XattrMode};
use tatami_wire::{Attr, Cred, Errno, Ino, InodeKind, SetAttr, SetTime, Timestamp};

pub fn attr(cluster: &mut Cluster, ino: Ino) -> Attr {
    match cluster.call(1, &Cred::ROOT, MetaOp::GetAttr { ino }) {
        Ok(MetaReply::Attr(attr)) => attr,
        other => panic!("no attributes: {other:?}"),
    }
}

pub fn partitions(cluster: &mut Cluster, dir: Ino) -> Vec<PartitionInfo> {
    match cluster.call(1, &Cred::ROOT, MetaOp::ListPartitions { dir }) {
        Ok(MetaReply::Partitions(all)) => all,
        other => panic!("no partitions: {other:?}"),
    }
}

fn names(cluster: &mut Cluster, client: u8, dir: Ino, limit: u32) -> Vec<Bytes> {
    let list = MetaOp::ReadDir { dir, after: 0, limit, plus: true };
    match cluster.call(client, &Cred::ROOT, list) {
        Ok(MetaReply::Entries { entries, end: true, .. }) => {
            assert!(entries.is_sorted_by(|a, b| a.cookie < b.cookie), "in order, each once");
            entries.into_iter().map(|entry| entry.name).collect()
        }
        other => panic!("no listing: {other:?}"),
    }
}

pub fn done(cluster: &mut Cluster, op: MetaOp) {
    if let Err(errno) = cluster.call(1, &Cred::ROOT, op.clone()) {
        panic!("{op:?}: {errno}");
    }
}

/// Returns a directory with `files` files, and directories, which has split.
pub fn spread(shards: usize, files: u32) -> (Cluster, Ino) {
    let mut cluster = Cluster::new(3, shards, 7);
    cluster.split_above(8);
    let d = dir(&mut cluster, ROOT, Some(1));
    for n in 0..files {
        create(&mut cluster, d, &format!("file{n}"));
    }
    dir(&mut cluster, d, None);
    cluster.quiet();
    (cluster, d)
}

#[test]
fn own_attributes_of_a_split_directory_are_those_of_its_first_partition() {
    let (mut cluster, d) = spread(16, 40);
    let mut own = |ino| cluster.call(1, &Cred::ROOT, MetaOp::GetOwnAttr { ino });
    let Ok(MetaReply::FirstPartition(first)) = own(d) else { panic!("it has split") };
    assert!(matches!(own(ROOT), Ok(MetaReply::Attr(root)) if root.ino == ROOT), "it has not");
    let later = Ino(d.0 ^ 1);
    assert!(own(later).is_err(), "it is not there");
    let sum = attr(&mut cluster, d);
    assert!(first.size < sum.size && first.mode == sum.mode && first.ino == d);
    let shown = first.with_counts_of(&sum);
    assert_eq!((shown.size, shown.mtime, shown.nlink), (sum.size, sum.mtime, 1));
    // A change of the mode concerns all partitions, and the first one shows it.
    let set = SetAttr { mode: Some(0o711), ..SetAttr::default() };
    done(&mut cluster, MetaOp::SetAttr { ino: d, set });
    let own = cluster.call(1, &Cred::ROOT, MetaOp::GetOwnAttr { ino: d });
    assert!(matches!(own, Ok(MetaReply::FirstPartition(own)) if own.mode == 0o711));
}

#[test]
fn a_directory_splits_as_it_grows() {
    for (shards, files) in [(16, 40), (256, 300), (8, 20)] {
        let (mut cluster, d) = spread(shards, files);
        let parts = partitions(&mut cluster, d);
        assert!(parts.len() >= 8, "{parts:?}");
        assert_eq!(parts.iter().map(|part| part.entries).sum::<u64>(), u64::from(files) + 1);
        let owners: BTreeSet<_> = parts.iter().map(|part| cluster.map.owner(part.shard)).collect();
        assert_eq!(owners.len(), 3, "on all nodes");
        let all = attr(&mut cluster, d);
        assert_eq!((all.ino, all.size, all.nlink), (d, u64::from(files) + 1, 3));
        for (client, limit) in [(1, 1000), (2, 3), (3, 1)] {
            assert_eq!(names(&mut cluster, client, d, limit).len() as u32, files + 1);
        }
        assert_sound(&mut cluster);
    }
}

#[test]
fn a_directory_of_one_client_splits_later() {
    let mut cluster = Cluster::new(3, 16, 7);
    cluster.set_split_limits(SplitLimits { shared: 8, alone: 40 });
    let d = dir(&mut cluster, ROOT, Some(1));
    for n in 0..40 {
        create(&mut cluster, d, &format!("file{n}"));
    }
    cluster.quiet();
    assert_eq!(partitions(&mut cluster, d).len(), 1);
    create(&mut cluster, d, "one more");
    cluster.quiet();
    assert!(partitions(&mut cluster, d).len() > 1);
    assert_sound(&mut cluster);
}

#[test]
fn a_second_client_makes_a_directory_split() {
    let mut cluster = Cluster::new(3, 16, 7);
    cluster.set_split_limits(SplitLimits { shared: 8, alone: 1_000 });
    let d = dir(&mut cluster, ROOT, Some(1));
    for n in 0..30 {
        create(&mut cluster, d, &format!("file{n}"));
    }
    cluster.quiet();
    assert_eq!(partitions(&mut cluster, d).len(), 1);
    create_by(&mut cluster, 1, d, "by the first");
    create_by(&mut cluster, 2, d, "by the second");
    cluster.quiet();
    let parts = partitions(&mut cluster, d);
    assert!(parts.len() > 1, "{parts:?}");
    assert_eq!(parts.iter().map(|part| part.entries).sum::<u64>(), 32);
    assert_sound(&mut cluster);
}

#[test]
fn a_small_directory_does_not_split() {
    let (mut cluster, d) = spread(16, 7);
    assert_eq!(partitions(&mut cluster, d).len(), 1);
}

/// Once the client knows the partitions, making a file asks one node, which asks no other.
#[test]
fn making_files_in_a_split_directory_needs_one_node() {
    let (mut cluster, d) = spread(16, 200);
    let parts = partitions(&mut cluster, d).len();
    let (messages, corrected) = (cluster.messages, cluster.corrected);
    let files: Vec<_> = (0..50).map(|n| create(&mut cluster, d, &format!("more{n}"))).collect();
    assert_eq!((cluster.messages, cluster.corrected), (messages, corrected));
    assert_eq!(partitions(&mut cluster, d).len(), parts, "that was no split");
    let shards: BTreeSet<_> = files.iter().map(|ino| ino.owner_shard()).collect();
    assert!(shards.len() > 5, "{shards:?}");
    let messages = cluster.messages;
    for (n, ino) in files.iter().enumerate() {
        let (parent, name) = (d, name(&format!("more{n}")));
        let found = cluster.call(1, &Cred::ROOT, MetaOp::Lookup { parent, name: name.clone() });
        assert!(matches!(found, Ok(MetaReply::Attr(attr)) if attr.ino == *ino));
        done(&mut cluster, MetaOp::Unlink { parent, name, keep: false });
    }
    assert_eq!(cluster.messages, messages);
}

#[test]
fn permissions_hold_in_all_partitions() {
    let (mut cluster, d) = spread(16, 60);
    let user = Cred { uid: 7, gid: 7, groups: Vec::new() };
    let lookup = |n: u32| MetaOp::Lookup { parent: d, name: name(&format!("file{n}")) };
    let may = |cluster: &mut Cluster| {
        let all =
            (0..60).map(|n| cluster.call(2, &user, lookup(n)).is_ok()).collect::<BTreeSet<_>>();
        assert_eq!(all.len(), 1, "the same everywhere");
        all.contains(&true)
    };
    assert!(may(&mut cluster));
    let mode = |mode| SetAttr { mode: Some(mode), ..SetAttr::default() };
    done(&mut cluster, MetaOp::SetAttr { ino: d, set: mode(0o700) });
    assert!(!may(&mut cluster));
    let owner = SetAttr { uid: Some(7), ..SetAttr::default() };
    done(&mut cluster, MetaOp::SetAttr { ino: d, set: owner });
    assert!(may(&mut cluster));
    let owner = SetAttr { uid: Some(0), ..SetAttr::default() };
    done(&mut cluster, MetaOp::SetAttr { ino: d, set: owner });
    // Version 2; owner rwx, user 7 r-x, group ---, mask r-x, others ---.
    let mut acl = vec![2, 0, 0, 0];
    for (tag, perm, id) in [(1u16, 7u16, !0u32), (2, 5, 7), (4, 0, !0), (16, 5, !0), (32, 0, !0)] {
        acl.extend([tag.to_le_bytes(), perm.to_le_bytes()].concat());
        acl.extend(id.to_le_bytes());
    }
    let set = |name: &str, value: Vec<u8>| MetaOp::SetXattr {
        ino: d,
        name: crate::cluster::name(name),
        value: value.into(),
        mode: XattrMode::Set,
    };
    done(&mut cluster, set("system.posix_acl_access", acl));
    assert!(may(&mut cluster));
    let time = Timestamp::from_sec(77);
    let times = SetAttr { mtime: Some(SetTime::At(time)), ..SetAttr::default() };
    done(&mut cluster, MetaOp::SetAttr { ino: d, set: times });
    assert_eq!(attr(&mut cluster, d).mtime, time);
    done(&mut cluster, set("user.x", b"value".to_vec()));
    cluster.quiet();
    assert_sound(&mut cluster);
}

#[test]
fn names_move_between_partitions_and_directories() {
    let (mut cluster, d) = spread(16, 40);
    let e = dir(&mut cluster, ROOT, Some(0));
    let rename = |new_parent: Ino, from: &str, to: &str, mode| MetaOp::Rename {
        parent: d,
        name: name(from),
        new_parent,
        new_name: name(to),
        mode,
        keep: false,
    };
    for n in 0..20 {
        let mode = [RenameMode::Replace, RenameMode::NoReplace][n % 2];
        done(&mut cluster, rename(d, &format!("file{n}"), &format!("moved{n}"), mode));
    }
    for n in 20..30 {
        let (from, to) = (format!("file{n}"), format!("file{}", n + 10));
        done(&mut cluster, rename(d, &from, &to, RenameMode::Exchange));
    }
    for n in 20..30 {
        done(&mut cluster, rename(e, &format!("file{n}"), "one", RenameMode::Replace));
    }
    assert_eq!(attr(&mut cluster, d).size, 31);
    assert_eq!(attr(&mut cluster, e).size, 1);
    for n in 0..5 {
        let ino = attr(&mut cluster, e).ino;
        assert_eq!(ino, e);
        let (parent, at) = (d, name(&format!("moved{n}")));
        let Ok(MetaReply::Attr(file)) =
            cluster.call(1, &Cred::ROOT, MetaOp::Lookup { parent, name: at })
        else {
            panic!("it is there")
        };
        let link = MetaOp::Link { ino: file.ino, parent: d, name: name(&format!("link{n}")) };
        done(&mut cluster, link);
    }
    // The directory itself moves, with all partitions.
    let old = crate::same::entry_of(&mut cluster, ROOT, d);
    let moved = MetaOp::Rename {
        parent: ROOT,
        name: old,
        new_parent: e,
        new_name: name("d"),
        mode: RenameMode::NoReplace,
        keep: false,
    };
    done(&mut cluster, moved);
    let above = cluster.call(2, &Cred::ROOT, MetaOp::Lookup { parent: d, name: name("..") });
    assert!(matches!(above, Ok(MetaReply::Attr(attr)) if attr.ino == e));
    cluster.quiet();
    assert_sound(&mut cluster);
}

#[test]
fn a_split_directory_is_removed_when_it_is_empty() {
    let (mut cluster, d) = spread(16, 40);
    let at = crate::same::entry_of(&mut cluster, ROOT, d);
    let rmdir = |keep| MetaOp::Rmdir { parent: ROOT, name: at.clone(), keep };
    for entry in names(&mut cluster, 1, d, 1000) {
        assert_eq!(cluster.call(3, &Cred::ROOT, rmdir(false)), Err(Errno::ENOTEMPTY));
        let (parent, name) = (d, entry);
        let kind = match cluster.call(1, &Cred::ROOT, MetaOp::Lookup { parent, name: name.clone() })
        {
            Ok(MetaReply::Attr(attr)) => attr.kind,
            other => panic!("it is there: {other:?}"),
        };
        done(
            &mut cluster,
            match kind {
                InodeKind::Dir => MetaOp::Rmdir { parent, name, keep: false },
                _ => MetaOp::Unlink { parent, name, keep: false },
            },
        );
    }
    assert!(partitions(&mut cluster, d).len() > 1);
    done(&mut cluster, rmdir(true));
    // A client that has it open sees no entries, and makes none, in any partition that it may
    // believe in.
    assert_eq!(names(&mut cluster, 1, d, 10), [] as [Bytes; 0]);
    for n in 0..20 {
        let make = MetaOp::Create {
            parent: d,
            name: name(&format!("late{n}")),
            node: tatami_wire::meta::InodeTemplate::Dir,
            mode: 0o755,
            umask: 0,
            exclusive: true,
            open: None,
        };
        assert_eq!(cluster.call(1, &Cred::ROOT, make), Err(Errno::ENOENT));
    }
    done(&mut cluster, MetaOp::Release { ino: d });
    cluster.quiet();
    assert_sound(&mut cluster);
}

/// Files are made, removed and listed while the directory splits and nodes die: names that exist
/// throughout are listed once.
fn listings(seed: u64, faults: Faults) {
    let mut cluster = Cluster::new(3, 64, seed);
    let mut rng = Rng::new(seed);
    let d = dir(&mut cluster, ROOT, None);
    let stay: BTreeSet<Bytes> = (0..6)
        .map(|n| {
            let file = format!("stays{n}");
            create(&mut cluster, d, &file);
            name(&file)
        })
        .collect();
    cluster.split_above(2 + seed % 8);
    cluster.faults = faults;
    let mut left = 200;
    while left > 0 {
        for client in 1..6 {
            if let Some(Ok(MetaReply::Entries { entries, .. })) = cluster.answer(client) {
                assert!(entries.is_sorted_by(|a, b| a.cookie < b.cookie), "each once");
                let listed: BTreeSet<_> = entries.into_iter().map(|entry| entry.name).collect();
                assert!(listed.is_superset(&stay), "seed {seed}: {listed:?}");
            }
            if cluster.is_busy(client) || left == 0 {
                continue;
            }
            left -= 1;
            let (parent, name) = (d, name(&format!("{}", rng.below(60))));
            let op = match rng.below(10) {
                0..6 => MetaOp::Create {
                    parent,
                    name,
                    node: tatami_wire::meta::InodeTemplate::File(crate::cluster::LAYOUT),
                    mode: 0o644,
                    umask: 0,
                    exclusive: false,
                    open: None,
                },
                6 => MetaOp::Unlink { parent, name, keep: false },
                _ => {
                    let limit = 1 + rng.below(20) as u32;
                    MetaOp::ReadDir { dir: d, after: 0, limit, plus: rng.percent(50) }
                }
            };
            cluster.ask(client, &Cred::ROOT, op);
        }
        cluster.step();
    }
    cluster.quiet();
    (1..6).for_each(|client| drop(cluster.answer(client)));
    assert_sound(&mut cluster);
    let found = names(&mut cluster, 9, d, 1000).len() as u64;
    let parts = partitions(&mut cluster, d);
    assert_eq!(parts.iter().map(|part| part.entries).sum::<u64>(), found);
    assert!(parts.len() > 4, "it has split");
}

/// Batch creation, or a directory of an older volume, makes partitions whose entries do not fit a
/// message.
#[test]
fn a_very_large_partition_splits_with_several_messages() {
    const FILES: u32 = 30_000;
    let mut cluster = Cluster::new(3, 64, 5);
    cluster.split_above(u64::MAX);
    let d = dir(&mut cluster, ROOT, Some(1));
    for n in 0..FILES {
        create(
            &mut cluster,
            d,
            &format!("a rather long name of a file, as programs make them: {n}"),
        );
    }
    cluster.quiet();
    assert_eq!(partitions(&mut cluster, d).len(), 1);
    cluster.split_above(1024);
    // One of the messages may be lost.
    cluster.faults = Faults { lost: 5, twice: 5, deaths: 0, moves: 0 };
    create(&mut cluster, d, "last");
    cluster.quiet();
    let parts = partitions(&mut cluster, d);
    assert!(parts.len() >= 16, "{} partitions", parts.len());
    let entries = parts.iter().map(|part| part.entries);
    assert_eq!(entries.clone().sum::<u64>(), u64::from(FILES) + 1);
    assert!(entries.max() < Some(u64::from(FILES) / 8));
    assert_eq!(names(&mut cluster, 2, d, 1000).len() as u32, FILES + 1);
    assert!(cluster.largest < tatami_wire::frame::BODY_MAX / 2, "{} bytes", cluster.largest);
}

#[test]
fn what_was_to_be_split_is_split_after_a_death() {
    let mut cluster = Cluster::new(3, 16, 5);
    cluster.split_above(8);
    let d = dir(&mut cluster, ROOT, Some(1));
    for n in 0..8 {
        create(&mut cluster, d, &format!("file{n}"));
    }
    cluster.quiet();
    create(&mut cluster, d, "one more");
    cluster.kill(1, 10);
    assert!(cluster.meta(1).is_none());
    cluster.quiet();
    assert!(partitions(&mut cluster, d).len() > 1);
    assert_sound(&mut cluster);
}

proptest! {
    #![proptest_config(crate::words::scaled(60))]

    #[test]
    fn a_listing_is_complete_while_a_directory_splits(seed: u64) {
        listings(seed, Faults::default());
        listings(seed, Faults { lost: 5, twice: 10, deaths: 10, moves: 0 });
    }
}
