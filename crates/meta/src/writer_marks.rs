//! The marks of clients that write a file.

use crate::error::MetaOutcome;
use crate::keys::{self, tag};
use crate::operation::Txn;
use crate::store::Store;
use tatami_wire::Ino;

/// The value of a writer record: the client may change the bytes.
pub(crate) const MARK: &[u8] = &[1];

/// The same, where no other client could, since there was no object: the client's report of the
/// object's existence is reliable.
pub(crate) const SOLE_MARK: &[u8] = &[2];

/// The same as [`MARK`], of a client that has made pieces of the file.
pub(crate) const MAKER_MARK: &[u8] = &[3];

/// Records that the client has made pieces: when it closes the file, they are checked.
pub(crate) fn record_piece_maker<S: Store>(txn: &mut Txn<'_, S>, ino: Ino) -> MetaOutcome<()> {
    let mark = keys::writer(ino, txn.ctx.client);
    if txn.get(&mark)?.is_some() {
        txn.put_record(mark, MAKER_MARK.to_vec());
    }
    Ok(())
}

/// Marks all writers as not alone: another client may make an object now.
pub(crate) fn clear_sole_marks<S: Store>(txn: &mut Txn<'_, S>, ino: Ino) -> MetaOutcome<()> {
    for mark in txn.list_keys(&keys::inode_prefix(tag::WRITER, ino), usize::MAX)? {
        if txn.get(&mark)?.as_deref() == Some(SOLE_MARK) {
            txn.put_record(mark, MARK.to_vec());
        }
    }
    Ok(())
}
