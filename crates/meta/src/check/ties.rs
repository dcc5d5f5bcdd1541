//! Back-pointers between names and inodes, for a client that compares those of several nodes.

use crate::error::MetaOutcome;
use crate::inode::Inode;
use crate::keys::{self, ParsedKey, RecordKey, tag};
use crate::operation::Txn;
use crate::record::{EntryRecord, kind_byte};
use crate::store::Store;
use crate::transaction::record::DecisionRecord;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use tatami_wire::Ino;
use tatami_wire::meta::{BACK_POINTERS_MAX, BackPointer, Bytes, InodeEntries, MetaReply};
use tatami_wire::transaction::RecordItem;

/// Returns inodes of this node above `after`, and entries of this node that lead to such inodes.
pub(crate) fn list_ties<S: Store>(
    txn: &Txn<'_, S>,
    after: Ino,
    last: Ino,
    limit: u32,
) -> MetaOutcome<MetaReply> {
    // Entries for one inode may state several kinds, and go into one answer.
    let limit = limit.clamp(8, BACK_POINTERS_MAX) as usize;
    let mut range = InodeRange { after, last };
    let mut inodes = list_inodes(txn, &mut range, limit)?;
    let mut names = list_names(txn, &mut range, limit)?;
    // Both lists must end at the same inode, so the shorter range counts.
    inodes.retain(|tied| range.contains(tied.ino));
    names.retain(|naming| range.contains(naming.ino));
    let upto = (range.last != last).then_some(range.last);
    Ok(MetaReply::BackPointers { inodes, names, upto })
}

struct InodeRange {
    after: Ino,
    last: Ino,
}

impl InodeRange {
    fn contains(&self, ino: Ino) -> bool {
        ino > self.after && ino <= self.last
    }
}

fn list_inodes<S: Store>(
    txn: &Txn<'_, S>,
    range: &mut InodeRange,
    limit: usize,
) -> MetaOutcome<Vec<BackPointer>> {
    let mut found = Vec::new();
    for tag in [tag::INODE, tag::EMBEDDED_DIR] {
        let mut count = 0;
        txn.scan_records(&keys::inode_prefix(tag, range.after), &[tag], &mut |key, value| {
            let (Some(ParsedKey::Inode(ino)) | Some(ParsedKey::EmbeddedDir(ino))) =
                keys::parse(key)
            else {
                return Ok(ControlFlow::Continue(()));
            };
            if ino > range.last {
                return Ok(ControlFlow::Break(()));
            }
            let inode = Inode::decode(value).ok();
            if range.contains(ino) && !inode.as_ref().is_some_and(Inode::is_later_partition) {
                count += 1;
                let changing = txn.state.locks.read_blocker(key).is_some();
                found.push(describe_inode(ino, inode, changing));
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

fn describe_inode(ino: Ino, inode: Option<Inode>, changing: bool) -> BackPointer {
    BackPointer {
        ino,
        kind: inode.as_ref().map(|inode| inode.kind),
        nlink: inode.as_ref().map_or(0, |inode| inode.nlink),
        kept: inode.as_ref().is_some_and(|inode| inode.keepers > 0),
        parent: inode.as_ref().map_or(Ino(0), |inode| inode.parent),
        version: inode.as_ref().map_or(0, |inode| inode.version),
        changing,
    }
}

fn list_names<S: Store>(
    txn: &Txn<'_, S>,
    range: &mut InodeRange,
    limit: usize,
) -> MetaOutcome<Vec<InodeEntries>> {
    let mut found: BTreeMap<(Ino, u8), InodeEntries> = BTreeMap::new();
    // Pending changes are marked, so that a transaction in progress is not taken for damage.
    let PendingEntries { keys: changed, coming } = pending_entries(txn)?;
    let mut add = |entry: EntryRecord, dir, count, changing, range: &mut InodeRange| {
        if !range.contains(entry.ino) {
            return;
        }
        let EntryRecord { ino, kind } = entry;
        let new = InodeEntries { ino, kind, dir, count: 0, changing: false };
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
    txn.scan_records(&[tag::ENTRY], &[tag::ENTRY], &mut |key, value| {
        if let (Some(ParsedKey::Entry { parent, .. }), Ok(entry)) =
            (keys::parse(key), EntryRecord::decode(value))
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
struct PendingEntries {
    keys: BTreeSet<RecordKey>,
    /// The inodes that they will lead to, with their directory.
    coming: Vec<(Ino, EntryRecord)>,
}

fn pending_entries<S: Store>(txn: &Txn<'_, S>) -> MetaOutcome<PendingEntries> {
    let mut changes = PendingEntries::default();
    let mut comes = |item: &RecordItem<Bytes>| -> MetaOutcome<()> {
        if let (Some(ParsedKey::Entry { parent, .. }), Some(value)) =
            (keys::parse(&item.key), &item.value)
        {
            let dir = txn.state.map().directory_of(parent);
            changes.coming.push((dir, EntryRecord::decode(value)?));
        }
        Ok(())
    };
    for held in txn.state.locks.held().values() {
        held.prepared.writes.iter().try_for_each(&mut comes)?;
    }
    // Of transactions decided here, participants hold the keys only until they get the outcome.
    let mut decided = Vec::new();
    txn.scan_records(&[tag::COMMITTED], &[tag::COMMITTED], &mut |_, value| {
        decided.push(DecisionRecord::decode(value)?);
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
