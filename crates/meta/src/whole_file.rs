//! Small files as a whole: one operation makes such a file with its bytes, or reads them. A batch
//! of these operations writes or reads many files by one request.

use crate::error::MetaOutcome;
use crate::operation::Txn;
use crate::store::Store;
use crate::{attr, entry, inline};
use tatami_wire::meta::MetaReply;
use tatami_wire::{Access, Errno, Ino, SetAttr, VolumeKey};

/// Creates a file that has its bytes beside its inode from the start, and then changes its
/// attributes.
///
/// # Errors
/// Those of [`entry::create`]; `EXDEV` where files of the directory do not have so many bytes
/// there.
pub(crate) fn create_filled<S: Store>(
    txn: &mut Txn<'_, S>,
    key: &VolumeKey,
    parent: Ino,
    new: &entry::NewInode<'_>,
    bytes: &[u8],
    set: Option<&SetAttr>,
) -> MetaOutcome<MetaReply> {
    let made = entry::create(txn, key, parent, new, true, None)?;
    let MetaReply::Created { attr: made, .. } = made else {
        return Err(Errno::EPROTO.into());
    };
    inline::fill_new_file(txn, made.ino, bytes)?;
    if let Some(set) = set {
        // The size is that of the bytes.
        let set = SetAttr { size: None, blocks: None, changed: None, ..set.clone() };
        attr::set_attr(txn, made.ino, &set)?;
    }
    let attr = txn.inspect_inode(made.ino, |inode| inode.to_attr(made.ino))?;
    Ok(MetaReply::Created { attr, cap: None, created: true })
}

/// Returns all bytes of a file, or that they are elsewhere.
///
/// # Errors
/// Those of an open for reading.
pub(crate) fn read_file<S: Store>(txn: &mut Txn<'_, S>, ino: Ino) -> MetaOutcome<MetaReply> {
    let inode = txn.load_inode(ino)?;
    attr::check_open(&inode, txn.cred, Access::READ)?;
    inline::read_whole(txn, ino)
}
