//! Clients that keep an inode which has lost its last name.

use crate::error::MetaOutcome;
use crate::keys::{self, ParsedKey, tag};
use crate::operation::Txn;
use crate::store::Store;
use std::collections::BTreeSet;
use tatami_wire::{ClientId, Ino};

/// Handles the close of an existing file by this client. If the file is kept only because the
/// client had it open (not by the client's request), and the client has nothing open any more, it
/// is kept no longer.
pub(crate) fn release_if_closed<S: Store>(txn: &mut Txn<'_, S>, ino: Ino) -> MetaOutcome<()> {
    let client = txn.ctx.client;
    let (is_kept, writers) =
        txn.inspect_inode(ino, |inode| (inode.nlink == 0 && inode.keepers > 0, inode.writers))?;
    if !is_kept || txn.state.opens.is_open_by(ino, client) {
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
pub(crate) fn other_openers<S: Store>(
    txn: &Txn<'_, S>,
    ino: Ino,
    writes: bool,
) -> MetaOutcome<BTreeSet<ClientId>> {
    let mut clients: BTreeSet<_> = txn.state.opens.clients_of(ino).collect();
    if writes {
        // Writers are recorded in the store, readers in memory: both count.
        for key in txn.list_keys(&keys::inode_prefix(tag::WRITER, ino), usize::MAX)? {
            if let Some(ParsedKey::Writer { client, .. }) = keys::parse(&key)
                && txn.get(&key)?.is_some()
            {
                clients.insert(client);
            }
        }
    }
    clients.remove(&txn.ctx.client);
    Ok(clients)
}

pub(crate) fn drop_keeper<S: Store>(
    txn: &mut Txn<'_, S>,
    ino: Ino,
    client: ClientId,
) -> MetaOutcome<()> {
    let mark = keys::orphan(client, ino);
    if txn.load_inode(ino)?.keepers == 0 || txn.get(&mark)?.is_none() {
        return Ok(());
    }
    let inode = txn.edit_inode(ino)?;
    inode.keepers = inode.keepers.saturating_sub(1);
    let dead = inode.is_unreferenced();
    txn.delete_record(mark);
    // No name and no keeper is left.
    if dead {
        txn.remove_inode(ino)?;
    }
    Ok(())
}
