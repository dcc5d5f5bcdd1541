//! Inodes and objects that outlive their name or writer: inodes that clients still have open,
//! objects of removed inodes, files whose writer died.

use crate::attr;
use crate::error::Outcome;
use crate::job;
use crate::keys::{self, Key, Parsed, tag};
use crate::state::State;
use crate::store::{Store, prefix_end};
use crate::tiled;
use crate::txn::Txn;
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use tatami_wire::meta::{DataState, MetaReply};
use tatami_wire::{ClientId, Errno, Ino, NodeId, Piece, READDIR_MAX};

/// Most records that one `ExpireClient` releases. Its caller repeats it until `Clients` does not
/// list the client any more.
const EXPIRE_MAX: usize = 4096;
/// Most clients that `Clients` lists, and most inodes in a housekeeping list.
const LIST_MAX: usize = 16 * 1024;

/// Releases the last handle of this client.
pub(crate) fn release<S: Store>(txn: &mut Txn<'_, S>, ino: Ino) -> Outcome<MetaReply> {
    let client = txn.ctx.client;
    // An inode that is gone needs no release, so a late one does no harm.
    txn.state.opens.remove(ino, client);
    if txn.find(ino)?.is_some() {
        drop_writer(txn, ino, client)?;
        drop_keeper(txn, ino, client)?;
    }
    Ok(MetaReply::Done)
}

/// Handles the close of an existing file by this client. If the file is kept only because the
/// client had it open (not by the client's request), and the client has nothing open any more, it
/// is kept no longer.
pub(crate) fn let_go<S: Store>(txn: &mut Txn<'_, S>, ino: Ino) -> Outcome<()> {
    let client = txn.ctx.client;
    let (is_kept, writers) =
        txn.peek(ino, |inode| (inode.nlink == 0 && inode.keepers > 0, inode.writers))?;
    if !is_kept || txn.state.opens.has(ino, client) {
        return Ok(());
    }
    let writes = writers > 0 && txn.get(&keys::writer(ino, client))?.is_some();
    if !writes && txn.get(&keys::orphan(client, ino))?.as_deref() == Some(KEPT_WHILE_OPEN) {
        drop_keeper(txn, ino, client)?;
    }
    Ok(())
}

/// The value of a keeper record: the client keeps the inode until its `Release`.
pub(crate) const KEPT: &[u8] = &[1];
/// The same: as long as the client is recorded to have it open.
pub(crate) const KEPT_WHILE_OPEN: &[u8] = &[2];

/// Returns the other clients that are recorded to have a file open. `writes`: some client writes.
pub(crate) fn others_with<S: Store>(
    txn: &Txn<'_, S>,
    ino: Ino,
    writes: bool,
) -> Outcome<BTreeSet<ClientId>> {
    let mut clients: BTreeSet<_> = txn.state.opens.of(ino).collect();
    if writes {
        // Writers are recorded in the store, readers in memory: both count.
        for key in txn.keys(&keys::of_ino(tag::WRITER, ino), usize::MAX)? {
            if let Some(Parsed::Writer { client, .. }) = keys::parse(&key)
                && txn.get(&key)?.is_some()
            {
                clients.insert(client);
            }
        }
    }
    clients.remove(&txn.ctx.client);
    Ok(clients)
}

/// Removes the writer record of `client`. Returns whether there was one.
fn drop_writer<S: Store>(txn: &mut Txn<'_, S>, ino: Ino, client: ClientId) -> Outcome<bool> {
    let mark = keys::writer(ino, client);
    if txn.inode(ino)?.writers == 0 {
        return Ok(false);
    }
    let Some(value) = txn.get(&mark)? else { return Ok(false) };
    attr::unmark(txn, ino, client, (mark, &value))?;
    Ok(true)
}

fn drop_keeper<S: Store>(txn: &mut Txn<'_, S>, ino: Ino, client: ClientId) -> Outcome<()> {
    let mark = keys::orphan(client, ino);
    if txn.inode(ino)?.keepers == 0 || txn.get(&mark)?.is_none() {
        return Ok(());
    }
    let inode = txn.edit(ino)?;
    inode.keepers = inode.keepers.saturating_sub(1);
    let dead = inode.is_dead();
    txn.delete(mark);
    // No name and no keeper is left.
    if dead {
        txn.kill(ino)?;
    }
    Ok(())
}

/// Releases all records of an expired client. The replies on its slots go last, so that `Clients`
/// lists it until nothing is left.
pub(crate) fn expire<S: Store>(txn: &mut Txn<'_, S>, client: ClientId) -> Outcome<MetaReply> {
    txn.state.opens.forget(client);
    let mut left = EXPIRE_MAX;
    for key in marks(txn, client, left)? {
        let Some(Parsed::Writer { ino, .. }) = keys::parse(&key) else { continue };
        left -= 1;
        match txn.find(ino)? {
            Some(_) if drop_writer(txn, ino, client)? => {
                // Its unreported writes may have changed the size: it must be recovered from the
                // objects.
                txn.edit(ino)?.unsettled = true;
                txn.put(keys::unsettled(ino), vec![1]);
            }
            _ => txn.delete(key),
        }
    }
    for key in txn.keys(&keys::of_client(tag::ORPHAN, client), left)? {
        let Some(Parsed::Orphan { ino, .. }) = keys::parse(&key) else { continue };
        left -= 1;
        match txn.find(ino)? {
            Some(_) => drop_keeper(txn, ino, client)?,
            None => txn.delete(key),
        }
    }
    left -= job::expire(txn, client, left)?;
    if left > 0 {
        for key in txn.keys(&keys::of_client(tag::REPLY, client), usize::MAX)? {
            txn.delete(key);
        }
    }
    Ok(MetaReply::Done)
}

/// Returns the writer records of `client`. They lie by inode, so all are scanned: there are as many
/// as files open for writing.
fn marks<S: Store>(txn: &Txn<'_, S>, client: ClientId, limit: usize) -> Outcome<Vec<Key>> {
    let mut found = Vec::new();
    txn.scan(&[], &[tag::WRITER], &mut |key, _| {
        if matches!(keys::parse(key), Some(Parsed::Writer { client: c, .. }) if c == client) {
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
pub(crate) fn clients<S: Store>(txn: &mut Txn<'_, S>) -> Outcome<MetaReply> {
    let mut found = txn.state.opens.clients();
    for tag in [tag::ORPHAN, tag::REPLY] {
        // Skip the other records of each client found.
        let mut from = Some(vec![tag]);
        while let Some(start) = from.take() {
            txn.scan(&start, &[tag], &mut |key, _| {
                let (Some(Parsed::Orphan { client, .. }) | Some(Parsed::Reply { client, .. })) =
                    keys::parse(key)
                else {
                    return Ok(ControlFlow::Continue(()));
                };
                found.insert(client);
                from = prefix_end(&keys::of_client(tag, client));
                Ok(ControlFlow::Break(()))
            })?;
            if found.len() >= LIST_MAX {
                break;
            }
        }
    }
    txn.scan(&[], &[tag::WRITER], &mut |key, _| {
        if let Some(Parsed::Writer { client, .. }) = keys::parse(key) {
            found.insert(client);
        }
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(MetaReply::Clients(found.into_iter().take(LIST_MAX).collect()))
}

fn bound(limit: u32) -> usize {
    (limit.max(1) as usize).min(LIST_MAX)
}

/// Lists removed inodes whose objects on `node` may still exist.
pub(crate) fn garbage<S: Store>(
    txn: &mut Txn<'_, S>,
    node: NodeId,
    limit: u32,
) -> Outcome<MetaReply> {
    let found = txn.keys(&keys::of_node(tag::GARBAGE, node), bound(limit))?;
    let ino = |key: &Key| match keys::parse(key) {
        Some(Parsed::Garbage { ino, .. }) => Some(ino),
        _ => None,
    };
    Ok(MetaReply::Garbage(found.iter().filter_map(ino).collect()))
}

pub(crate) fn garbage_done<S: Store>(
    txn: &mut Txn<'_, S>,
    node: NodeId,
    inos: &[Ino],
) -> Outcome<MetaReply> {
    if inos.len() > LIST_MAX {
        return Err(Errno::E2BIG.into());
    }
    inos.iter().for_each(|ino| txn.delete(keys::garbage(node, *ino)));
    Ok(MetaReply::Done)
}

/// Lists objects on `node` that their inode does not need any more.
pub(crate) fn dropped<S: Store>(
    txn: &mut Txn<'_, S>,
    node: NodeId,
    limit: u32,
) -> Outcome<MetaReply> {
    let (mut found, limit) = (Vec::new(), bound(limit));
    let prefix = keys::of_node(tag::DROPPED, node);
    txn.scan(&prefix, &prefix, &mut |key, value| {
        if found.len() >= limit {
            return Ok(ControlFlow::Break(()));
        }
        if let Some(Parsed::Dropped { ino, object, .. }) = keys::parse(key)
            && !tiled::is_reserved(txn, ino, value)?
        {
            found.push((ino, object));
        }
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(MetaReply::GarbagePieces(found))
}

pub(crate) fn dropped_done<S: Store>(
    txn: &mut Txn<'_, S>,
    node: NodeId,
    objects: &[(Ino, Piece)],
) -> Outcome<MetaReply> {
    if objects.len() > LIST_MAX {
        return Err(Errno::E2BIG.into());
    }
    objects.iter().for_each(|(ino, object)| txn.delete(keys::dropped(node, *ino, *object)));
    Ok(MetaReply::Done)
}

/// Returns those of `inos` whose bytes may be changing, or whose objects on `node` wait for their
/// removal.
pub(crate) fn in_flux<S: Store>(
    txn: &mut Txn<'_, S>,
    node: NodeId,
    inos: &[Ino],
) -> Outcome<MetaReply> {
    if inos.len() > READDIR_MAX as usize {
        return Err(Errno::E2BIG.into());
    }
    let mut found = Vec::new();
    for &ino in inos {
        // A writer may still make an object, and a pending recovery may find one: fsck must not
        // remove it.
        let open = txn.find(ino)?.is_some_and(|inode| inode.writers > 0 || inode.unsettled);
        if open
            || txn.get(&keys::garbage(node, ino))?.is_some()
            || !txn.keys(&keys::dropped_of(node, ino), 1)?.is_empty()
        {
            found.push(ino);
        }
    }
    Ok(MetaReply::InFlux(found))
}

/// Returns the nodes that have garbage.
pub(crate) fn garbage_nodes<S: Store>(state: &State<S>) -> Outcome<BTreeSet<NodeId>> {
    let mut nodes = nodes_of(state, tag::GARBAGE)?;
    nodes.extend(nodes_of(state, tag::DROPPED)?);
    Ok(nodes)
}

/// Returns the nodes that have garbage of one kind.
pub(crate) fn nodes_of<S: Store>(state: &State<S>, tag: u8) -> Outcome<BTreeSet<NodeId>> {
    let mut nodes = BTreeSet::new();
    let mut from = Some(vec![tag]);
    while let Some(start) = from.take() {
        state.scan(&start, &[tag], &mut |key, _| {
            let (Some(Parsed::Garbage { node, .. }) | Some(Parsed::Dropped { node, .. })) =
                keys::parse(key)
            else {
                return Ok(ControlFlow::Continue(()));
            };
            nodes.insert(node);
            from = prefix_end(&keys::of_node(tag, node));
            Ok(ControlFlow::Break(()))
        })?;
    }
    Ok(nodes)
}

/// Lists files whose writer died.
pub(crate) fn unsettled<S: Store>(txn: &mut Txn<'_, S>, limit: u32) -> Outcome<MetaReply> {
    let limit = bound(limit).min(READDIR_MAX as usize);
    let mut attrs = Vec::new();
    for key in txn.keys(&[tag::UNSETTLED], limit)? {
        if let Some(Parsed::Unsettled(ino)) = keys::parse(&key)
            && let Some(inode) = txn.find(ino)?
        {
            attrs.push(inode.attr(ino));
        }
    }
    Ok(MetaReply::Unsettled(attrs))
}

/// Applies the size and times that were recovered from the objects of such a file.
pub(crate) fn settle<S: Store>(
    txn: &mut Txn<'_, S>,
    ino: Ino,
    state: Option<&DataState>,
) -> Outcome<MetaReply> {
    if let Some(state) = state {
        attr::check_state(state)?;
    }
    match txn.find(ino)? {
        Some(inode) if inode.unsettled => {
            let state = match state {
                Some(state) if inode.layout.is_tiled() => Some(tiled::learn(txn, ino, state)?),
                other => other.copied(),
            };
            let inode = txn.edit(ino)?;
            inode.unsettled = false;
            // The recovered bytes may be newer than the copies of a re-layout.
            inode.moving = false;
            if let Some(state) = state {
                attr::learn(inode, &state);
            }
            txn.delete(keys::unsettled(ino));
        }
        // Recovered before, or gone: nothing to apply.
        _ => {}
    }
    Ok(MetaReply::Done)
}
