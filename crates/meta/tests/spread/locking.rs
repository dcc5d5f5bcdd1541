//! Operations over several nodes make progress despite constant changes by others; and their number
//! of messages.

use crate::checking::{assert_sound, create};
use crate::cluster::{Cluster, LAYOUT, ROOT, Rng, name};
use crate::same::dir;
use crate::splitting::{attr, done, partitions, spread};
use tatami_wire::meta::{InodeTemplate, MetaOp, MetaReply, RenameMode};
use tatami_wire::{Cred, Ino, SetAttr};

fn make(parent: Ino, file: &str) -> MetaOp {
    MetaOp::Create {
        parent,
        name: name(file),
        node: InodeTemplate::File(LAYOUT),
        mode: 0o644,
        umask: 0,
        exclusive: false,
        open: None,
    }
}

fn rename(parent: Ino, from: &str, new_parent: Ino, to: &str, mode: RenameMode) -> MetaOp {
    let (name, new_name) = (name(from), name(to));
    MetaOp::Rename { parent, name, new_parent, new_name, mode, keep: false }
}

fn chmod(ino: Ino, mode: u16) -> MetaOp {
    MetaOp::SetAttr { ino, set: SetAttr { mode: Some(mode), ..SetAttr::default() } }
}

/// One node asks the other once, and sends it the outcome; the acknowledgement goes along with a
/// later message.
#[test]
fn a_rename_between_two_nodes_takes_three_messages() {
    const TIMES: u32 = 100;
    let mut cluster = Cluster::new(5, 64, 1);
    let [here, there] = [0, 1].map(|node| dir(&mut cluster, ROOT, Some(node)));
    create(&mut cluster, here, "one");
    create(&mut cluster, there, "two");
    cluster.quiet();
    let before = cluster.parcels;
    let (mut from, mut to) = (here, there);
    for _ in 0..TIMES {
        done(&mut cluster, rename(from, "one", to, "one", RenameMode::NoReplace));
        (from, to) = (to, from);
    }
    cluster.quiet();
    let messages = cluster.parcels - before;
    assert!((3 * TIMES..3 * TIMES + 3).contains(&messages), "{messages} messages");
    // One that replaces an entry, whose inode is on the other node, too, takes two more. The last
    // acknowledgement has no later message to go along with.
    create(&mut cluster, here, "three");
    cluster.quiet();
    let before = cluster.parcels;
    done(&mut cluster, rename(here, "three", there, "two", RenameMode::Replace));
    cluster.quiet();
    assert!(cluster.parcels - before <= 6, "{} messages", cluster.parcels - before);
    assert_sound(&mut cluster);
}

/// Sends the constant requests until the operation of `client` is answered. Returns the time that
/// took, in ms.
fn meanwhile(
    cluster: &mut Cluster,
    others: std::ops::Range<u8>,
    mut next: impl FnMut(u8) -> MetaOp,
    client: u8,
    op: MetaOp,
) -> u64 {
    let load = |cluster: &mut Cluster, next: &mut dyn FnMut(u8) -> MetaOp| {
        for other in others.clone() {
            drop(cluster.answer(other));
            if !cluster.is_busy(other) {
                cluster.ask(other, &Cred::ROOT, next(other));
            }
        }
        cluster.step();
    };
    (0..50).for_each(|_| load(cluster, &mut next));
    let began = cluster.now;
    cluster.ask(client, &Cred::ROOT, op.clone());
    while cluster.is_busy(client) {
        load(cluster, &mut next);
        assert!(cluster.now - began < 60_000, "{op:?} does not come to its end");
    }
    let took = cluster.now - began;
    match cluster.answer(client) {
        Some(Ok(_)) => took,
        other => panic!("{op:?}: {other:?}"),
    }
}

/// Clients that make files change the records of all partitions again and again.
#[test]
fn changes_of_a_directory_get_through_however_busy_it_is() {
    let (mut cluster, d) = spread(64, 60);
    let e = dir(&mut cluster, ROOT, Some(2));
    create(&mut cluster, e, "one");
    assert!(partitions(&mut cluster, d).len() > 8);
    let mut rng = Rng::new(3);
    let mut busy = |client| make(d, &format!("{client} {}", rng.below(1 << 30)));
    let before = attr(&mut cluster, d).size;
    for (op, most) in [
        (chmod(d, 0o700), 300),
        (rename(e, "one", d, "another", RenameMode::NoReplace), 300),
        (rename(d, "another", e, "one", RenameMode::NoReplace), 300),
        (rename(d, "file1", d, "elsewhere", RenameMode::NoReplace), 300),
        (MetaOp::GetAttr { ino: d }, 300),
    ] {
        let took = meanwhile(&mut cluster, 10..40, &mut busy, 1, op.clone());
        assert!(took < most, "{op:?} took {took} ms");
    }
    cluster.quiet();
    assert_eq!(attr(&mut cluster, d).mode & 0o777, 0o700);
    assert!(attr(&mut cluster, d).size > before + 500, "it was busy");
    assert_sound(&mut cluster);
}

/// An entry that moves from one partition to another is counted once.
#[test]
fn what_stat_says_of_a_split_directory_was_true_at_one_moment() {
    let (mut cluster, d) = spread(64, 60);
    let size = attr(&mut cluster, d).size;
    let mut number = [0; 40];
    let mut moves = |client: u8| {
        let last = number[usize::from(client)];
        number[usize::from(client)] += 1;
        let from = if last == 0 { format!("file{client}") } else { format!("{client} {last}") };
        rename(d, &from, d, &format!("{client} {}", last + 1), RenameMode::NoReplace)
    };
    for round in 0..20 {
        let stat = MetaOp::GetAttr { ino: d };
        (0..7).for_each(|_| cluster.step());
        for other in 10..30 {
            drop(cluster.answer(other));
            if !cluster.is_busy(other) {
                cluster.ask(other, &Cred::ROOT, moves(other));
            }
        }
        cluster.ask(1, &Cred::ROOT, stat);
        while cluster.is_busy(1) {
            for other in 10..30 {
                drop(cluster.answer(other));
                if !cluster.is_busy(other) {
                    cluster.ask(other, &Cred::ROOT, moves(other));
                }
            }
            cluster.step();
        }
        match cluster.answer(1) {
            Some(Ok(MetaReply::Attr(attr))) => assert_eq!(attr.size, size, "round {round}"),
            other => panic!("no attributes: {other:?}"),
        }
    }
    cluster.quiet();
    assert_sound(&mut cluster);
}
