//! Inodes and objects that outlive their name or writer: inodes that clients still have open,
//! objects of removed inodes, files whose writer died.

use crate::error::MetaOutcome;
use crate::keepers::drop_keeper;
use crate::keys::{self, ParsedKey, RecordKey, tag};
use crate::operation::Txn;
use crate::store::{Store, prefix_end};
use crate::tiled::{self, relayout};
use crate::{attr, data_state, job};
use std::ops::ControlFlow;
use tatami_wire::meta::{DataState, MetaReply};
use tatami_wire::{ClientId, Errno, Ino, NodeId, Piece, READDIR_MAX};

/// Most records that one `ExpireClient` releases. Its caller repeats it until `Clients` does not
/// list the client any more.
const EXPIRE_MAX: usize = 4096;
/// Most clients that `Clients` lists, and most inodes in a housekeeping list.
const LIST_MAX: usize = 16 * 1024;

/// Releases the last handle of this client.
pub(crate) fn release_handles<S: Store>(txn: &mut Txn<'_, S>, ino: Ino) -> MetaOutcome<MetaReply> {
    let client = txn.ctx.client;
    // An inode that is gone needs no release, so a late one does no harm.
    txn.state.opens.record_close(ino, client);
    if txn.find_inode(ino)?.is_some() {
        drop_writer(txn, ino, client)?;
        drop_keeper(txn, ino, client)?;
    }
    Ok(MetaReply::Done)
}

/// Removes the writer record of `client`. Returns whether there was one.
fn drop_writer<S: Store>(txn: &mut Txn<'_, S>, ino: Ino, client: ClientId) -> MetaOutcome<bool> {
    let mark = keys::writer(ino, client);
    if txn.load_inode(ino)?.writers == 0 {
        return Ok(false);
    }
    let Some(value) = txn.get(&mark)? else { return Ok(false) };
    attr::remove_writer_mark(txn, ino, client, (mark, &value))?;
    Ok(true)
}

/// Releases all records of an expired client. The replies on its slots go last, so that `Clients`
/// lists it until nothing is left.
pub(crate) fn expire_client<S: Store>(
    txn: &mut Txn<'_, S>,
    client: ClientId,
) -> MetaOutcome<MetaReply> {
    txn.state.opens.forget_client(client);
    let mut left = EXPIRE_MAX;
    for key in writer_marks(txn, client, left)? {
        let Some(ParsedKey::Writer { ino, .. }) = keys::parse(&key) else { continue };
        left -= 1;
        match txn.find_inode(ino)? {
            Some(_) if drop_writer(txn, ino, client)? => {
                // Bytes beside the inode need no report.
                if txn.inspect_inode(ino, |inode| inode.layout.is_inline())? {
                    continue;
                }
                // Its unreported writes may have changed the size: it must be recovered from the
                // objects.
                txn.edit_inode(ino)?.pending_recovery = true;
                txn.put_record(keys::pending_recovery(ino), vec![1]);
            }
            _ => txn.delete_record(key),
        }
    }
    for key in txn.list_keys(&keys::client_prefix(tag::ORPHAN, client), left)? {
        let Some(ParsedKey::Orphan { ino, .. }) = keys::parse(&key) else { continue };
        left -= 1;
        match txn.find_inode(ino)? {
            Some(_) => drop_keeper(txn, ino, client)?,
            None => txn.delete_record(key),
        }
    }
    left -= job::expire_ranks(txn, client, left)?;
    if left > 0 {
        for key in txn.list_keys(&keys::client_prefix(tag::REPLY, client), usize::MAX)? {
            txn.delete_record(key);
        }
    }
    Ok(MetaReply::Done)
}

/// Returns the writer records of `client`. They lie by inode, so all are scanned: there are as many
/// as files open for writing.
fn writer_marks<S: Store>(
    txn: &Txn<'_, S>,
    client: ClientId,
    limit: usize,
) -> MetaOutcome<Vec<RecordKey>> {
    let mut found = Vec::new();
    txn.scan_records(&[], &[tag::WRITER], &mut |key, _| {
        if matches!(keys::parse(key), Some(ParsedKey::Writer { client: c, .. }) if c == client) {
            if found.len() >= limit {
                return Ok(ControlFlow::Break(()));
            }
            found.push(key.to_vec());
        }
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(found)
}

/// Lists the clients with records here.
pub(crate) fn list_clients<S: Store>(txn: &mut Txn<'_, S>) -> MetaOutcome<MetaReply> {
    let mut found = txn.state.opens.all_clients();
    for tag in [tag::ORPHAN, tag::REPLY] {
        // Skip the other records of each client found.
        let mut from = Some(vec![tag]);
        while let Some(start) = from.take() {
            txn.scan_records(&start, &[tag], &mut |key, _| {
                let (Some(ParsedKey::Orphan { client, .. })
                | Some(ParsedKey::Reply { client, .. })) = keys::parse(key)
                else {
                    return Ok(ControlFlow::Continue(()));
                };
                found.insert(client);
                from = prefix_end(&keys::client_prefix(tag, client));
                Ok(ControlFlow::Break(()))
            })?;
            if found.len() >= LIST_MAX {
                break;
            }
        }
    }
    txn.scan_records(&[], &[tag::WRITER], &mut |key, _| {
        if let Some(ParsedKey::Writer { client, .. }) = keys::parse(key) {
            found.insert(client);
        }
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(MetaReply::Clients(found.into_iter().take(LIST_MAX).collect()))
}

fn clamp_limit(limit: u32) -> usize {
    (limit.max(1) as usize).min(LIST_MAX)
}

/// Lists removed inodes whose objects on `node` may still exist.
pub(crate) fn list_garbage<S: Store>(
    txn: &mut Txn<'_, S>,
    node: NodeId,
    limit: u32,
) -> MetaOutcome<MetaReply> {
    let found = txn.list_keys(&keys::node_prefix(tag::GARBAGE, node), clamp_limit(limit))?;
    let ino = |key: &RecordKey| match keys::parse(key) {
        Some(ParsedKey::Garbage { ino, .. }) => Some(ino),
        _ => None,
    };
    Ok(MetaReply::Garbage(found.iter().filter_map(ino).collect()))
}

pub(crate) fn remove_garbage_records<S: Store>(
    txn: &mut Txn<'_, S>,
    node: NodeId,
    inos: &[Ino],
) -> MetaOutcome<MetaReply> {
    if inos.len() > LIST_MAX {
        return Err(Errno::E2BIG.into());
    }
    inos.iter().for_each(|ino| txn.delete_record(keys::garbage_inode(node, *ino)));
    Ok(MetaReply::Done)
}

/// Lists objects on `node` that their inode does not need any more.
pub(crate) fn list_dropped_objects<S: Store>(
    txn: &mut Txn<'_, S>,
    node: NodeId,
    limit: u32,
) -> MetaOutcome<MetaReply> {
    let (mut found, limit) = (Vec::new(), clamp_limit(limit));
    let prefix = keys::node_prefix(tag::DROPPED, node);
    txn.scan_records(&prefix, &prefix, &mut |key, value| {
        if found.len() >= limit {
            return Ok(ControlFlow::Break(()));
        }
        if let Some(ParsedKey::Dropped { ino, object, .. }) = keys::parse(key)
            && !relayout::is_reserved(txn, ino, value)?
        {
            found.push((ino, object));
        }
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(MetaReply::GarbagePieces(found))
}

pub(crate) fn remove_dropped_records<S: Store>(
    txn: &mut Txn<'_, S>,
    node: NodeId,
    objects: &[(Ino, Piece)],
) -> MetaOutcome<MetaReply> {
    if objects.len() > LIST_MAX {
        return Err(Errno::E2BIG.into());
    }
    objects
        .iter()
        .for_each(|(ino, object)| txn.delete_record(keys::dropped_object(node, *ino, *object)));
    Ok(MetaReply::Done)
}

/// Returns those of `inos` whose bytes may be changing, or whose objects on `node` wait for their
/// removal.
pub(crate) fn list_in_flight<S: Store>(
    txn: &mut Txn<'_, S>,
    node: NodeId,
    inos: &[Ino],
) -> MetaOutcome<MetaReply> {
    if inos.len() > READDIR_MAX as usize {
        return Err(Errno::E2BIG.into());
    }
    let mut found = Vec::new();
    for &ino in inos {
        // A writer may still make an object, and a pending recovery may find one: fsck must not
        // remove it.
        let open =
            txn.find_inode(ino)?.is_some_and(|inode| inode.writers > 0 || inode.pending_recovery);
        if open
            || txn.get(&keys::garbage_inode(node, ino))?.is_some()
            || !txn.list_keys(&keys::dropped_prefix(node, ino), 1)?.is_empty()
        {
            found.push(ino);
        }
    }
    Ok(MetaReply::InFlight(found))
}

/// Lists files whose writer died.
pub(crate) fn list_pending_recovery<S: Store>(
    txn: &mut Txn<'_, S>,
    limit: u32,
) -> MetaOutcome<MetaReply> {
    let limit = clamp_limit(limit).min(READDIR_MAX as usize);
    let mut attrs = Vec::new();
    for key in txn.list_keys(&[tag::PENDING_RECOVERY], limit)? {
        if let Some(ParsedKey::PendingRecovery(ino)) = keys::parse(&key)
            && let Some(inode) = txn.find_inode(ino)?
        {
            attrs.push(inode.to_attr(ino));
        }
    }
    Ok(MetaReply::PendingRecovery(attrs))
}

/// Applies the size and times that were recovered from the objects of such a file.
pub(crate) fn recover_size<S: Store>(
    txn: &mut Txn<'_, S>,
    ino: Ino,
    state: Option<&DataState>,
) -> MetaOutcome<MetaReply> {
    if let Some(state) = state {
        data_state::check_state(state)?;
    }
    match txn.find_inode(ino)? {
        Some(inode) if inode.pending_recovery => {
            let state = match state {
                Some(state) if inode.layout.is_tiled() => {
                    Some(tiled::recover_base(txn, ino, state)?)
                }
                other => other.copied(),
            };
            let inode = txn.edit_inode(ino)?;
            inode.pending_recovery = false;
            // The recovered bytes may be newer than the copies of a re-layout.
            inode.relayout_mark = false;
            if let Some(state) = state {
                data_state::recover_data_state(inode, &state);
            }
            txn.delete_record(keys::pending_recovery(ino));
        }
        // Recovered before, or gone: nothing to apply.
        _ => {}
    }
    Ok(MetaReply::Done)
}
