//! Back-pointers between names and inodes, for a client that compares those of several nodes.

use crate::error::Outcome;
use crate::inode::Inode;
use crate::keys::{self, Key, Parsed, tag};
use crate::record::{Entry, kind_byte};
use crate::store::Store;
use crate::transaction::record::Committed;
use crate::txn::Txn;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use tatami_wire::Ino;
use tatami_wire::meta::{Bytes, MetaReply, Naming, TIES_MAX, Tied};
use tatami_wire::transaction::Item;

/// Returns inodes of this node above `after`, and entries of this node that lead to such inodes.
pub(crate) fn ties<S: Store>(
    txn: &Txn<'_, S>,
    after: Ino,
    last: Ino,
    limit: u32,
) -> Outcome<MetaReply> {
    // Entries for one inode may state several kinds, and go into one answer.
    let limit = limit.clamp(8, TIES_MAX) as usize;
    let mut range = Range { after, last };
    let mut inodes = inodes(txn, &mut range, limit)?;
    let mut names = names(txn, &mut range, limit)?;
    // Both lists must end at the same inode, so the shorter range counts.
    inodes.retain(|tied| range.has(tied.ino));
    names.retain(|naming| range.has(naming.ino));
    let upto = (range.last != last).then_some(range.last);
    Ok(MetaReply::Ties { inodes, names, upto })
}

struct Range {
    after: Ino,
    last: Ino,
}

impl Range {
    fn has(&self, ino: Ino) -> bool {
        ino > self.after && ino <= self.last
    }
}

fn inodes<S: Store>(txn: &Txn<'_, S>, range: &mut Range, limit: usize) -> Outcome<Vec<Tied>> {
    let mut found = Vec::new();
    for tag in [tag::INODE, tag::YOUNG] {
        let mut count = 0;
        txn.scan(&keys::of_ino(tag, range.after), &[tag], &mut |key, value| {
            let (Some(Parsed::Inode(ino)) | Some(Parsed::Young(ino))) = keys::parse(key) else {
                return Ok(ControlFlow::Continue(()));
            };
            if ino > range.last {
                return Ok(ControlFlow::Break(()));
            }
            let inode = Inode::decode(value).ok();
            if range.has(ino) && !inode.as_ref().is_some_and(Inode::is_part) {
                count += 1;
                let changing = txn.state.locks.against_reading(key).is_some();
                found.push(tied(ino, inode, changing));
            }
            if count == limit {
                range.last = ino;
                return Ok(ControlFlow::Break(()));
            }
            Ok(ControlFlow::Continue(()))
        })?;
    }
    found.sort_by_key(|tied| tied.ino);
    Ok(found)
}

fn tied(ino: Ino, inode: Option<Inode>, changing: bool) -> Tied {
    Tied {
        ino,
        kind: inode.as_ref().map(|inode| inode.kind),
        nlink: inode.as_ref().map_or(0, |inode| inode.nlink),
        kept: inode.as_ref().is_some_and(|inode| inode.keepers > 0),
        parent: inode.as_ref().map_or(Ino(0), |inode| inode.parent),
        version: inode.as_ref().map_or(0, |inode| inode.version),
        changing,
    }
}

fn names<S: Store>(txn: &Txn<'_, S>, range: &mut Range, limit: usize) -> Outcome<Vec<Naming>> {
    let mut found: BTreeMap<(Ino, u8), Naming> = BTreeMap::new();
    // Pending changes are marked, so that a transaction in progress is not taken for damage.
    let Changes { keys: changed, coming } = changes(txn)?;
    let mut add = |entry: Entry, dir, count, changing, range: &mut Range| {
        if !range.has(entry.ino) {
            return;
        }
        let Entry { ino, kind } = entry;
        let new = Naming { ino, kind, dir, count: 0, changing: false };
        let naming = found.entry((ino, kind_byte(kind))).or_insert(new);
        naming.dir = dir;
        naming.count = naming.count.saturating_add(count);
        naming.changing |= changing;
        if found.len() > limit
            && let Some(((ino, _), _)) = found.pop_last()
            && ino.0 - 1 > range.after.0
        {
            range.last = Ino(ino.0 - 1);
        }
    };
    txn.scan(&[tag::ENTRY], &[tag::ENTRY], &mut |key, value| {
        if let (Some(Parsed::Entry { parent, .. }), Ok(entry)) =
            (keys::parse(key), Entry::decode(value))
        {
            add(entry, txn.state.map().directory_of(parent), 1, changed.contains(key), range);
        }
        Ok(ControlFlow::Continue(()))
    })?;
    coming.into_iter().for_each(|(dir, entry)| add(entry, dir, 0, true, range));
    Ok(found.into_values().collect())
}

/// Entries that transactions are about to write.
#[derive(Default)]
struct Changes {
    keys: BTreeSet<Key>,
    /// The inodes that they will lead to, with their directory.
    coming: Vec<(Ino, Entry)>,
}

fn changes<S: Store>(txn: &Txn<'_, S>) -> Outcome<Changes> {
    let mut changes = Changes::default();
    let mut comes = |item: &Item<Bytes>| -> Outcome<()> {
        if let (Some(Parsed::Entry { parent, .. }), Some(value)) =
            (keys::parse(&item.key), &item.value)
        {
            let dir = txn.state.map().directory_of(parent);
            changes.coming.push((dir, Entry::decode(value)?));
        }
        Ok(())
    };
    for held in txn.state.locks.held().values() {
        held.prepared.writes.iter().try_for_each(&mut comes)?;
    }
    // Of transactions decided here, participants hold the keys only until they get the outcome.
    let mut decided = Vec::new();
    txn.scan(&[tag::COMMITTED], &[tag::COMMITTED], &mut |_, value| {
        decided.push(Committed::decode(value)?);
        Ok(ControlFlow::Continue(()))
    })?;
    for part in decided.iter().flat_map(|committed| committed.participants.values()) {
        part.writes.iter().try_for_each(&mut comes)?;
    }
    for held in txn.state.locks.held().values() {
        let written = held.prepared.writes.iter().map(|item| &item.key);
        let keys = written.chain(&held.prepared.intents);
        changes.keys.extend(keys.map(|key| key.to_vec()));
    }
    Ok(changes)
}
