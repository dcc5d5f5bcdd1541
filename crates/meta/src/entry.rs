//! Entries of directories: looking up, making, linking, removing, listing.

use crate::attr;
use crate::error::{Failure, Outcome};
use crate::inode::Inode;
use crate::keys::{self, Parsed};
use crate::permission::{self, Name, want};
use crate::record::Entry;
use crate::store::Store;
use crate::txn::Txn;
use std::ops::ControlFlow;
use std::sync::Arc;
use tatami_wire::meta::{Bytes, DirEntry, MetaReply, NewNode};
use tatami_wire::partition::Range;
use tatami_wire::{Access, Errno, Ino, Kind, Layout, PATH_MAX, READDIR_MAX, VolumeKey};

/// The properties of a new inode.
pub(crate) struct New<'a> {
    pub node: &'a NewNode,
    pub mode: u16,
    pub umask: u16,
}

pub(crate) fn lookup<S: Store>(
    txn: &mut Txn<'_, S>,
    parent: Ino,
    name: &[u8],
) -> Outcome<MetaReply> {
    let ino = leads_to(txn, parent, name)?;
    let inode = target(txn, ino)?;
    Ok(MetaReply::Attr(txn.attr(ino, &inode)?))
}

/// Returns the number of the inode that `name` leads to in `parent`.
fn leads_to<S: Store>(txn: &mut Txn<'_, S>, parent: Ino, name: &[u8]) -> Outcome<Ino> {
    let name = permission::name(name)?;
    let dir = txn.inode(parent)?;
    permission::check_dir(&dir)?;
    permission::check(&dir, txn.cred, want::EXEC)?;
    Ok(match name {
        Name::Dot => txn.whole(parent, &dir),
        Name::DotDot if dir.is_part() => txn.inode(txn.whole(parent, &dir))?.parent,
        Name::DotDot => dir.parent,
        Name::Plain(name) => {
            // Before the lookup: a missing entry in the wrong partition must not mean ENOENT.
            txn.in_place(parent, &dir, name)?;
            txn.look_up(parent, name)?.ok_or(Errno::ENOENT)?.ino
        }
    })
}

/// As [`lookup`], without a message to other nodes.
pub(crate) fn find<S: Store>(txn: &mut Txn<'_, S>, parent: Ino, name: &[u8]) -> Outcome<MetaReply> {
    let ino = leads_to(txn, parent, name)?;
    Ok(match txn.find_here(ino)? {
        // Its owner shard knows all of its partitions.
        Some(inode) if inode.is_parted() => MetaReply::Leads(ino),
        Some(inode) => MetaReply::Attr(inode.attr(ino)),
        None if txn.may_be_elsewhere() => MetaReply::Leads(ino),
        None => return Err(crate::record::Damaged("entry without inode").into()),
    })
}

/// Returns the inode that an entry leads to.
fn target<S: Store>(txn: &mut Txn<'_, S>, ino: Ino) -> Outcome<Arc<Inode>> {
    // An entry without inode is damage, not a removal that the caller missed.
    txn.find(ino)?.ok_or_else(|| crate::record::Damaged("entry without inode").into())
}

pub(crate) fn create<S: Store>(
    txn: &mut Txn<'_, S>,
    key: &VolumeKey,
    parent: Ino,
    name: &[u8],
    new: &New<'_>,
    exclusive: bool,
    open: Option<Access>,
) -> Outcome<MetaReply> {
    let name = permission::name(name)?;
    let dir = txn.inode(parent)?;
    permission::check_dir(&dir)?;
    permission::check(&dir, txn.cred, want::EXEC)?;
    let name = name.plain(Errno::EEXIST)?;
    txn.in_place(parent, &dir, name)?;
    if let Some(entry) = txn.entry(parent, name)? {
        let is_file = entry.kind == Kind::File && matches!(new.node, NewNode::File(_));
        if exclusive || !is_file {
            return Err(Errno::EEXIST.into());
        }
        return open_existing(txn, key, entry.ino, open);
    }
    // After the lookup, as in Linux: an existing name is reported also without write permission.
    permission::check_insert(&dir, txn.cred)?;
    txn.need_room()?;
    let inode = make(txn, &dir, new)?;
    // A file's inode lies on the shard of its entry, so that a create touches one executor.
    let ino = txn.allocate(parent.shard(), inode.is_dir())?;
    txn.add_inode(ino, inode);
    txn.adopt(parent, dir);
    txn.attach(parent, name, ino)?;
    opened(txn, key, ino, open, true)
}

fn open_existing<S: Store>(
    txn: &mut Txn<'_, S>,
    key: &VolumeKey,
    ino: Ino,
    open: Option<Access>,
) -> Outcome<MetaReply> {
    let inode = target(txn, ino)?;
    if let Some(access) = open {
        attr::check_open(&inode, txn.cred, access)?;
    }
    opened(txn, key, ino, open, false)
}

fn opened<S: Store>(
    txn: &mut Txn<'_, S>,
    key: &VolumeKey,
    ino: Ino,
    open: Option<Access>,
    created: bool,
) -> Outcome<MetaReply> {
    let is_file = txn.peek(ino, Inode::is_file)?;
    let cap = match open {
        // The client that makes a file may open it as requested, with any mode.
        Some(access) if is_file && txn.is_here(ino) => {
            if !access.write {
                txn.note_open(ino);
            }
            Some(attr::grant(txn, key, ino, access)?)
        }
        _ => None,
    };
    Ok(MetaReply::Created { attr: txn.peek(ino, |inode| inode.attr(ino))?, cap, created })
}

/// Returns a new inode with its properties in `dir`, without number and name.
fn make<S: Store>(txn: &Txn<'_, S>, dir: &Inode, new: &New<'_>) -> Result<Inode, Errno> {
    let cred = txn.cred;
    let kind = match new.node {
        NewNode::File(_) => Kind::File,
        NewNode::Dir => Kind::Dir,
        NewNode::Symlink(_) => Kind::Symlink,
        NewNode::Fifo => Kind::Fifo,
        NewNode::Socket => Kind::Socket,
        NewNode::CharDev(_) => Kind::CharDev,
        NewNode::BlockDev(_) => Kind::BlockDev,
    };
    let is_dir = kind == Kind::Dir;
    let (gid, mode) = permission::inherit_group(dir, is_dir, new.mode & 0o7777, cred);
    let mut inode = Inode::new(kind, mode, cred.uid, gid, txn.now());
    match new.node {
        NewNode::File(layout @ Layout::Whole { .. }) => inode.layout = *layout,
        // A file becomes tiled with its first piece, and is re-laid out when it has bytes.
        NewNode::File(_) => return Err(Errno::EINVAL),
        NewNode::Symlink(target) => {
            check_target(target)?;
            inode.mode = 0o777;
            inode.size = target.len() as u64;
            inode.target = target.to_vec();
            return Ok(inode);
        }
        NewNode::CharDev(_) | NewNode::BlockDev(_) if !cred.is_root() => return Err(Errno::EPERM),
        NewNode::CharDev(rdev) | NewNode::BlockDev(rdev) => inode.rdev = *rdev,
        NewNode::Dir | NewNode::Fifo | NewNode::Socket => {}
    }
    match &dir.default_acl {
        Some(default) => {
            let (bits, acl) = default.inherit(mode);
            inode.mode = mode & !0o777 | bits;
            inode.acl = acl.map(Arc::new);
            inode.default_acl = if is_dir { Some(default.clone()) } else { None };
        }
        None => inode.mode = mode & !(new.umask & 0o777),
    }
    Ok(inode)
}

fn check_target(target: &[u8]) -> Result<(), Errno> {
    match target {
        b"" => Err(Errno::ENOENT),
        _ if target.len() > PATH_MAX => Err(Errno::ENAMETOOLONG),
        _ if target.contains(&0) => Err(Errno::EINVAL),
        _ => Ok(()),
    }
}

/// Makes a file without a name, kept by this client.
pub(crate) fn tmpfile<S: Store>(
    txn: &mut Txn<'_, S>,
    key: &VolumeKey,
    parent: Ino,
    layout: Layout,
    mode: u16,
    umask: u16,
    open: Access,
) -> Outcome<MetaReply> {
    let dir = txn.inode(parent)?;
    permission::check_insert(&dir, txn.cred)?;
    txn.need_room()?;
    let mut inode = make(txn, &dir, &New { node: &NewNode::File(layout), mode, umask })?;
    inode.linkable = true;
    let ino = txn.allocate(parent.shard(), false)?;
    txn.add_inode(ino, inode);
    txn.keep(ino, txn.ctx.client)?;
    opened(txn, key, ino, Some(open), true)
}

pub(crate) fn link<S: Store>(
    txn: &mut Txn<'_, S>,
    ino: Ino,
    parent: Ino,
    name: &[u8],
) -> Outcome<MetaReply> {
    let name = permission::name(name)?;
    let dir = txn.inode(parent)?;
    permission::check_dir(&dir)?;
    permission::check(&dir, txn.cred, want::EXEC)?;
    let name = name.plain(Errno::EEXIST)?;
    txn.in_place(parent, &dir, name)?;
    if txn.entry(parent, name)?.is_some() {
        return Err(Errno::EEXIST.into());
    }
    permission::check_insert(&dir, txn.cred)?;
    let inode = txn.inode(ino)?;
    if inode.is_dir() {
        return Err(Errno::EPERM.into());
    }
    if inode.nlink == 0 {
        // Only a file made without a name may get its first one, from a client that has it open.
        let ours = keys::orphan(txn.ctx.client, ino);
        if !inode.linkable || txn.get(&ours)?.is_none() {
            return Err(Errno::ENOENT.into());
        }
    }
    txn.need_room()?;
    txn.attach(parent, name, ino)?;
    // Only the first link may start without a name: a file that is unlinked later stays unlinked.
    txn.edit(ino)?.linkable = false;
    Ok(MetaReply::Attr(txn.inode(ino)?.attr(ino)))
}

pub(crate) fn unlink<S: Store>(
    txn: &mut Txn<'_, S>,
    parent: Ino,
    name: &[u8],
    keep: bool,
) -> Outcome<MetaReply> {
    let name = permission::name(name)?;
    let dir = txn.inode(parent)?;
    permission::check_dir(&dir)?;
    permission::check(&dir, txn.cred, want::EXEC)?;
    let name = name.plain(Errno::EISDIR)?;
    txn.in_place(parent, &dir, name)?;
    let ino = txn.entry(parent, name)?.ok_or(Errno::ENOENT)?.ino;
    let victim = target(txn, ino)?;
    permission::check_remove(&dir, &victim, txn.cred)?;
    if victim.is_dir() {
        return Err(Errno::EISDIR.into());
    }
    txn.adopt(ino, victim);
    txn.adopt(parent, dir);
    txn.detach(parent, name, ino)?;
    let last = txn.settle(ino, keep)?;
    Ok(MetaReply::Removed { ino: Some(ino), last })
}

pub(crate) fn rmdir<S: Store>(
    txn: &mut Txn<'_, S>,
    parent: Ino,
    name: &[u8],
    keep: bool,
) -> Outcome<MetaReply> {
    let name = match permission::name(name)? {
        Name::Dot => return Err(Errno::EINVAL.into()),
        Name::DotDot => return Err(Errno::ENOTEMPTY.into()),
        Name::Plain(name) => name,
    };
    let dir = txn.inode(parent)?;
    permission::check_dir(&dir)?;
    permission::check(&dir, txn.cred, want::EXEC)?;
    txn.in_place(parent, &dir, name)?;
    let ino = txn.entry(parent, name)?.ok_or(Errno::ENOENT)?.ino;
    let victim = target(txn, ino)?;
    permission::check_remove(&dir, &victim, txn.cred)?;
    permission::check_dir(&victim)?;
    // All partitions must be empty. The transaction locks them, so they stay so until the commit.
    if !txn.is_empty(ino, &victim)? {
        return Err(Errno::ENOTEMPTY.into());
    }
    txn.detach(parent, name, ino)?;
    bury(txn, ino, keep)?;
    Ok(MetaReply::Removed { ino: Some(ino), last: true })
}

/// Removes a directory that has been detached and is empty.
pub(crate) fn bury<S: Store>(txn: &mut Txn<'_, S>, ino: Ino, keep: bool) -> Outcome<()> {
    // Its partitions go first: no partition may outlive its directory.
    txn.fold(ino)?;
    txn.edit(ino)?.nlink = 0;
    txn.settle(ino, keep)?;
    Ok(())
}

pub(crate) fn read_dir<S: Store>(
    txn: &mut Txn<'_, S>,
    dir: Ino,
    after: u64,
    limit: u32,
    plus: bool,
) -> Outcome<MetaReply> {
    let inode = txn.inode(dir)?;
    permission::check_dir(&inode)?;
    permission::check(&inode, txn.cred, want::READ)?;
    let limit = limit.clamp(1, READDIR_MAX) as usize;
    let mut entries: Vec<DirEntry> = Vec::new();
    let mut end = true;
    let is_past = after >= Range::ALL.last();
    if inode.is_parted() && !is_past && !inode.range.has(after + 1) {
        return Err(Failure::Parted(dir, inode.range));
    }
    if let Some(from) = after.checked_add(1) {
        let prefix = keys::of_ino(keys::tag::ENTRY, dir);
        let start = keys::entries_from(dir, from);
        txn.scan(&start, &prefix, &mut |key, value| {
            let Some(Parsed::Entry { hash, name, .. }) = keys::parse(key) else {
                return Ok(ControlFlow::Continue(()));
            };
            // Names with equal hashes share a cookie, so they must be in one answer.
            if entries.len() >= limit && entries.last().is_some_and(|last| last.cookie != hash) {
                end = false;
                return Ok(ControlFlow::Break(()));
            }
            let Entry { ino, kind } = Entry::decode(value)?;
            let name = Bytes::from(name.to_vec());
            entries.push(DirEntry { name, ino, kind, cookie: hash, attr: None });
            Ok(ControlFlow::Continue(()))
        })?;
    }
    let last = entries.last().filter(|_| !end).map_or(u64::MAX, |last| last.cookie + 1);
    // After the scan, so that the checked range is exactly the listed one.
    txn.may_list(&keys::entries_from(dir, after), &keys::entries_from(dir, last))?;
    // Attributes need search permission, as a lookup does.
    if plus && permission::check(&inode, txn.cred, want::EXEC).is_ok() {
        for entry in &mut entries {
            // For a directory in several partitions, these attributes would be incomplete.
            let found = txn.find_here(entry.ino)?.filter(|inode| !inode.is_parted());
            entry.attr = found.map(|inode| inode.attr(entry.ino));
        }
    }
    let upto = match entries.last() {
        Some(last) if !end => last.cookie,
        _ => inode.range.last(),
    };
    let end = end && (is_past || inode.range.is_last());
    Ok(MetaReply::Entries { entries, end, parent: inode.parent, upto })
}
