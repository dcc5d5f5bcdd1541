//! Attributes of one inode: reading and changing them, and the effects of opening and closing a
//! file.

use crate::data_state::{check_state, differs_from_inode, is_later, record_data_state};
use crate::error::MetaOutcome;
use crate::inode::Inode;
use crate::keepers;
use crate::keys::{self, ParsedKey, RecordKey, tag};
use crate::operation::Txn;
use crate::permission::{self, want};
use crate::store::Store;
use crate::tiled::{self, relayout};
use crate::writer_marks::{MAKER_MARK, MARK, SOLE_MARK, clear_sole_marks};
use std::ops::ControlFlow;
use std::sync::Arc;
use tatami_wire::meta::{Bytes, DataState, MetaReply, REPORT_CLOSED_MAX};
use tatami_wire::{
    Access, Attr, Cap, ClientId, Cred, Errno, FILE_SIZE_MAX, Ino, InodeKind, READDIR_MAX, SetAttr,
    SetTime, VolumeKey,
};

pub(crate) fn get_attr<S: Store>(txn: &mut Txn<'_, S>, ino: Ino) -> MetaOutcome<MetaReply> {
    let inode = txn.load_own_inode(ino)?;
    Ok(MetaReply::Attr(txn.summed_attr(ino, &inode)?))
}

pub(crate) fn get_own_attr<S: Store>(txn: &mut Txn<'_, S>, ino: Ino) -> MetaOutcome<MetaReply> {
    let inode = txn.load_own_inode(ino)?;
    let attr = inode.to_attr(ino);
    Ok(if inode.is_partitioned() { MetaReply::FirstPartition(attr) } else { MetaReply::Attr(attr) })
}

pub(crate) fn readlink<S: Store>(txn: &mut Txn<'_, S>, ino: Ino) -> MetaOutcome<MetaReply> {
    let inode = txn.load_inode(ino)?;
    if inode.kind != InodeKind::Symlink {
        return Err(Errno::EINVAL.into());
    }
    Ok(MetaReply::Bytes(Bytes::from(inode.target.clone())))
}

/// Makes the changes in `set`, all or none.
pub(crate) fn set_attr<S: Store>(
    txn: &mut Txn<'_, S>,
    ino: Ino,
    set: &SetAttr,
) -> MetaOutcome<MetaReply> {
    let old = txn.load_own_inode(ino)?;
    if *set == (SetAttr { by_handle: set.by_handle, ..SetAttr::default() }) {
        return Ok(MetaReply::Attr(txn.summed_attr(ino, &old)?));
    }
    let (cred, now) = (txn.cred, txn.now());
    check_set(&old, cred, set)?;
    let old = match &set.written {
        Some(state) => {
            commit_data(txn, ino, Some(state), false)?;
            txn.load_own_inode(ino)?
        }
        None => old,
    };
    let cut = match set.size {
        Some(size) if old.layout.is_tiled() => Some(tiled::cut_file(txn, ino, size, set)?),
        _ => None,
    };
    let inode = txn.edit_inode(ino)?;
    // Later than the cut, too, which has a time of the disk's clock.
    inode.ctime = inode.ctime.advanced_to(now).max(set.changed.unwrap_or_default());
    change_owner_and_mode(inode, &old, cred, set);
    if set.size.is_some() && old.layout.is_inline() {
        // The bytes beside it have been cut, and their times set, by an operation of their own.
        if !cred.is_root() && set.mode.is_none() {
            inode.mode = permission::strip_privileges(inode, inode.mode, cred);
        }
    } else if let Some(size) = set.size {
        // A cut changes bytes: the copies of a re-layout are not current any more.
        inode.relayout_mark = false;
        let changed = set.changed.unwrap_or(inode.changed);
        if let Some((size, blocks)) = cut {
            inode.size = size;
            inode.blocks = blocks;
            inode.changed = inode.changed.max(changed);
        } else if changed >= inode.changed {
            inode.size = size;
            // The object's time orders the reports: an older one must not undo a later one.
            inode.blocks = set.blocks.unwrap_or(inode.blocks);
            inode.changed = changed;
        }
        inode.mtime = inode.ctime;
        // An object exists that was cut or extended.
        inode.touched = true;
        if !cred.is_root() && set.mode.is_none() {
            inode.mode = permission::strip_privileges(inode, inode.mode, cred);
        }
    }
    // The time of this very change, which is later than all before it.
    let moment = inode.ctime;
    let time = |t| match t {
        SetTime::Now => moment,
        SetTime::At(t) => t,
    };
    if let Some(t) = set.atime {
        inode.atime = time(t);
    }
    if let Some(t) = set.mtime {
        inode.mtime = time(t);
        inode.changed = inode.changed.max(set.changed.unwrap_or_default());
    }
    if !old.is_partitioned() {
        return Ok(MetaReply::Attr(inode.to_attr(ino)));
    }
    let sets_mtime = set.mtime.is_some();
    // Partitions have copies of the permissions, so that an operation on a name needs its
    // partition only.
    txn.update_partitions(ino, |dir, part| {
        permission::copy_permissions(dir, part);
        if sets_mtime {
            part.mtime = dir.mtime;
        }
    })?;
    let inode = txn.load_inode(ino)?;
    Ok(MetaReply::Attr(txn.summed_attr(ino, &inode)?))
}

/// Checks that `cred` may make the change. The rules of Linux' `setattr_prepare`.
fn check_set(inode: &Inode, cred: &Cred, set: &SetAttr) -> Result<(), Errno> {
    let owner = cred.is_root() || cred.uid == inode.uid;
    if let Some(size) = set.size {
        match inode.kind {
            InodeKind::File => {}
            InodeKind::Dir => return Err(Errno::EISDIR),
            _ => return Err(Errno::EINVAL),
        }
        if size > FILE_SIZE_MAX {
            return Err(Errno::EFBIG);
        }
        if !set.by_handle {
            permission::check_access(inode, cred, want::WRITE)?;
        }
    } else if set.blocks.is_some() || set.changed.is_some() && set.mtime.is_none() {
        return Err(Errno::EINVAL);
    }
    if set.changed.is_some_and(|t| !t.is_valid()) || set.written.is_some() && set.size.is_some() {
        return Err(Errno::EINVAL);
    }
    if set.mode.is_some_and(|m| m > 0o7777) {
        return Err(Errno::EINVAL);
    }
    if set.mode.is_some() && inode.kind == InodeKind::Symlink {
        return Err(Errno::EOPNOTSUPP);
    }
    // -1 means "no change" in chown(2), so it cannot be an owner.
    if set.uid == Some(u32::MAX) || set.gid == Some(u32::MAX) {
        return Err(Errno::EINVAL);
    }
    let gives_away = set.uid.is_some_and(|uid| uid != inode.uid);
    let foreign_group = set.gid.is_some_and(|gid| gid != inode.gid && !cred.in_group(gid));
    let chown = set.uid.is_some() || set.gid.is_some();
    if !cred.is_root() && (gives_away || foreign_group || chown && !owner) {
        return Err(Errno::EPERM);
    }
    if (set.mode.is_some() || set.touch) && !owner {
        return Err(Errno::EPERM);
    }
    check_times(inode, cred, set)
}

fn check_times(inode: &Inode, cred: &Cred, set: &SetAttr) -> Result<(), Errno> {
    let at = |t: &Option<SetTime>| matches!(t, Some(SetTime::At(_)));
    for t in [&set.atime, &set.mtime] {
        if let Some(SetTime::At(t)) = t
            && !t.is_valid()
        {
            return Err(Errno::EINVAL);
        }
    }
    let owner = permission::check_owner(inode, cred);
    if at(&set.atime) || at(&set.mtime) {
        return owner;
    }
    match (set.atime, set.mtime) {
        (None, None) => Ok(()),
        // A cut sets the time of the last change, too.
        _ if set.size.is_some() => Ok(()),
        (Some(_), Some(_)) if owner.is_err() => permission::check_access(inode, cred, want::WRITE),
        _ => owner,
    }
}

fn change_owner_and_mode(inode: &mut Inode, old: &Inode, cred: &Cred, set: &SetAttr) {
    if set.uid.is_some() || set.gid.is_some() {
        inode.uid = set.uid.unwrap_or(inode.uid);
        inode.gid = set.gid.unwrap_or(inode.gid);
        if !old.is_dir() {
            // By the old group, as Linux does: the bit applied to that group.
            inode.mode = permission::strip_privileges(old, inode.mode, cred);
        }
    }
    if let Some(mode) = set.mode {
        inode.mode = permission::settable_mode(mode, inode.gid, cred);
        if let Some(acl) = &inode.acl {
            inode.acl = Some(Arc::new(acl.with_mode(mode)));
        }
    }
}

/// Checks permission for `access` and signs it; records a writer.
pub(crate) fn open_inode<S: Store>(
    txn: &mut Txn<'_, S>,
    key: &VolumeKey,
    ino: Ino,
    access: Access,
    noted: bool,
) -> MetaOutcome<MetaReply> {
    let inode = txn.load_inode(ino)?;
    check_open(&inode, txn.cred, access)?;
    let cap = sign_capability(txn, key, ino, access)?;
    if noted && !access.write {
        txn.record_open(ino);
    }
    // A mount drops privileges when bytes are written. Writes of other clients are not reported, so
    // their open drops them.
    if access.write && !txn.ctx.trusted && !txn.cred.is_root() {
        let mode = permission::strip_privileges(&inode, inode.mode, txn.cred);
        if mode != inode.mode {
            txn.edit_inode(ino)?.mode = mode;
        }
    }
    Ok(MetaReply::Opened { attr: txn.load_inode(ino)?.to_attr(ino), cap })
}

/// Checks that `cred` may open the inode's bytes.
pub(crate) fn check_open(inode: &Inode, cred: &Cred, access: Access) -> Result<(), Errno> {
    match inode.kind {
        InodeKind::File => {}
        InodeKind::Dir => return Err(Errno::EISDIR),
        InodeKind::Symlink => return Err(Errno::ELOOP),
        _ => return Err(Errno::EINVAL),
    }
    let read = if access.read { want::READ } else { 0 };
    let write = if access.write { want::WRITE } else { 0 };
    permission::check_access(inode, cred, read | write)
}

/// Signs a capability. With write access, this client may change the bytes from now on until its
/// commit with `close`.
pub(crate) fn sign_capability<S: Store>(
    txn: &mut Txn<'_, S>,
    key: &VolumeKey,
    ino: Ino,
    access: Access,
) -> MetaOutcome<Cap> {
    if access.write {
        let mark = keys::writer(ino, txn.ctx.client);
        let (writers, touched) = txn.inspect_inode(ino, |inode| (inode.writers, inode.touched))?;
        if writers == 0 || txn.get(&mark)?.is_none() {
            if writers > 0 {
                // With a second writer, neither alone knows whether an object exists.
                clear_sole_marks(txn, ino)?;
            }
            // Clients that cache the attributes must learn that the bytes may change, so this
            // raises the version.
            let inode = txn.edit_inode(ino)?;
            inode.writers += 1;
            inode.touched = true;
            // A new writer may change bytes during a re-layout. The shard sees each change of bytes
            // beside the inode.
            inode.relayout_mark &= inode.layout.is_inline();
            txn.put_record(mark, if touched { MARK } else { SOLE_MARK }.to_vec());
        }
    }
    Ok(Cap::sign(key, ino, access, txn.now()))
}

/// Corrects the attributes in an answer for the requesting client: of a file that only this client
/// writes, it knows the rest.
pub(crate) fn correct_for_client<S: Store>(
    txn: &mut Txn<'_, S>,
    reply: &mut MetaReply,
) -> MetaOutcome<()> {
    match reply {
        MetaReply::Attr(attr)
        | MetaReply::Created { attr, .. }
        | MetaReply::Opened { attr, .. } => correct_attr(txn, attr),
        MetaReply::Entries { entries, .. } => {
            let mut attrs = entries.iter_mut().filter_map(|entry| entry.attr.as_mut());
            attrs.try_for_each(|attr| correct_attr(txn, attr))
        }
        _ => Ok(()),
    }
}

fn correct_attr<S: Store>(txn: &mut Txn<'_, S>, attr: &mut Attr) -> MetaOutcome<()> {
    if attr.maybe_written_elsewhere && txn.is_here(attr.ino) {
        // The only writer knows its own writes, so it may cache the attributes.
        let alone =
            txn.inspect_inode(attr.ino, |inode| inode.writers == 1 && !inode.pending_recovery)?;
        let mark = keys::writer(attr.ino, txn.ctx.client);
        attr.maybe_written_elsewhere = !(alone && txn.get(&mark)?.is_some());
    }
    Ok(())
}

/// Commits a writer's report of the bytes.
pub(crate) fn commit_data<S: Store>(
    txn: &mut Txn<'_, S>,
    ino: Ino,
    state: Option<&DataState>,
    close: bool,
) -> MetaOutcome<MetaReply> {
    let old = txn.load_inode(ino)?;
    if !old.is_file() {
        return Err(Errno::EINVAL.into());
    }
    let mark = keys::writer(ino, txn.ctx.client);
    let marked = if old.writers > 0 { txn.get(&mark)? } else { None };
    // The inode itself has the state of bytes beside it.
    if let Some(state) = state.filter(|_| !old.layout.is_inline()) {
        if marked.is_none() {
            // A client that was expired and came back: it may still report bytes that it could
            // write if it opened the file now.
            permission::check_access(&old, txn.cred, want::WRITE)?;
        }
        check_state(state)?;
        // The report means that bytes have changed: a re-layout must start over.
        relayout::invalidate_relayout(txn, ino)?;
        let state = match old.layout.is_tiled() {
            true => tiled::apply_base_report(txn, ino, &old, state)?,
            false => Some(*state).filter(|state| is_later(state, old.changed, old.size)),
        };
        if let Some(state) = state.filter(|state| differs_from_inode(&old, state)) {
            let inode = txn.edit_inode(ino)?;
            record_data_state(inode, &state);
            inode.touched = true;
        }
    }
    if let Some(value) = marked.filter(|_| close) {
        remove_writer_mark(txn, ino, txn.ctx.client, (mark, &value))?;
        let attr = txn.load_inode(ino)?.to_attr(ino);
        // It may have been kept for this writer alone.
        keepers::release_if_closed(txn, ino)?;
        return Ok(MetaReply::Attr(attr));
    }
    Ok(MetaReply::Attr(txn.load_inode(ino)?.to_attr(ino)))
}

/// Removes the record that a client may change the bytes.
pub(crate) fn remove_writer_mark<S: Store>(
    txn: &mut Txn<'_, S>,
    ino: Ino,
    client: ClientId,
    (mark, value): (RecordKey, &[u8]),
) -> MetaOutcome<()> {
    txn.edit_hidden(ino)?.writers -= 1;
    txn.delete_record(mark);
    // Without write access the client cannot put objects in place: those set aside for it are
    // garbage.
    relayout::release_reserved(txn, ino, Some(client))?;
    if value == MAKER_MARK {
        tiled::mark_abandoned(txn, ino, client)?;
    }
    Ok(())
}

/// Handles closed files of a client. Files in `inos` and `empty` are no longer open for writing;
/// those in `empty` have no object, if no other client could make one. Those in `read` were open
/// without writing.
pub(crate) fn close_files<S: Store>(
    txn: &mut Txn<'_, S>,
    inos: &[Ino],
    empty: &[Ino],
    read: &[Ino],
) -> MetaOutcome<MetaReply> {
    if inos.len() + empty.len() + read.len() > REPORT_CLOSED_MAX {
        return Err(Errno::EINVAL.into());
    }
    read.iter().for_each(|ino| txn.state.opens.record_close(*ino, txn.ctx.client));
    let none = inos.iter().map(|ino| (*ino, false));
    for (ino, is_empty) in none.chain(empty.iter().map(|ino| (*ino, true))) {
        let mark = keys::writer(ino, txn.ctx.client);
        if txn.find_inode(ino)?.is_none_or(|inode| inode.writers == 0) {
            continue;
        }
        let Some(value) = txn.get(&mark)? else { continue };
        // Without an object there is nothing to recover or to remove later.
        if is_empty && value == SOLE_MARK {
            let inode = txn.edit_hidden(ino)?;
            let told_of =
                inode.size > 0 || inode.blocks > 0 || inode.pieces || inode.pending_recovery;
            inode.touched = told_of || inode.writers > 1;
        }
        remove_writer_mark(txn, ino, txn.ctx.client, (mark, &value))?;
        keepers::release_if_closed(txn, ino)?;
    }
    for ino in read {
        if txn.find_inode(*ino)?.is_some() {
            keepers::release_if_closed(txn, *ino)?;
        }
    }
    Ok(MetaReply::Done)
}

/// Lists inodes in number order, for checking.
pub(crate) fn scan_inodes<S: Store>(
    txn: &mut Txn<'_, S>,
    after: Ino,
    limit: u32,
) -> MetaOutcome<MetaReply> {
    let limit = limit.clamp(1, READDIR_MAX) as usize;
    let mut attrs = Vec::new();
    let mut end = true;
    if let Some(from) = after.0.checked_add(1) {
        txn.scan_records(&keys::inode(Ino(from)), &[tag::INODE], &mut |key, value| {
            if attrs.len() == limit {
                end = false;
                return Ok(ControlFlow::Break(()));
            }
            // Records that cannot be decoded are reported by `Check`.
            if let (Some(ParsedKey::Inode(ino)), Ok(inode)) =
                (keys::parse(key), Inode::decode(value))
                && !inode.is_later_partition()
            {
                attrs.push(inode.to_attr(ino));
            }
            Ok(ControlFlow::Continue(()))
        })?;
    }
    Ok(MetaReply::Inodes { attrs, end })
}
