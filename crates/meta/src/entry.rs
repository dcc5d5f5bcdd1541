//! Entries of directories: looking up, making, linking, removing, listing.

use crate::attr;
use crate::error::{MetaOutcome, OperationFailure};
use crate::inode::Inode;
use crate::keepers;
use crate::keys::{self, ParsedKey};
use crate::operation::Txn;
use crate::permission::{self, EntryName, want};
use crate::record::EntryRecord;
use crate::store::Store;
use std::ops::ControlFlow;
use std::sync::Arc;
use tatami_wire::meta::{Bytes, DirEntry, InodeTemplate, MetaReply};
use tatami_wire::partition::HashRange;
use tatami_wire::{
    Access, Errno, Ino, InodeKind, Layout, NodeId, PATH_MAX, READDIR_MAX, VolumeKey,
};
use xxhash_rust::xxh3::xxh3_64;

/// The properties of a new inode.
pub(crate) struct NewInode<'a> {
    /// Empty for a file without a name.
    pub name: &'a [u8],
    pub node: &'a InodeTemplate,
    pub mode: u16,
    pub umask: u16,
}

/// Returns the node for the bytes of a new file: the one that its client asks for, or with the
/// policy `placement=spread` one of all that serve, by a hash of its name.
fn choose_node<S: Store>(txn: &Txn<'_, S>, dir: &Inode, name: &[u8], asked: NodeId) -> NodeId {
    if !dir.policies.spreads_files() {
        return asked;
    }
    let map = txn.state.cluster();
    let serving = || map.members().filter(|node| map.is_serving(node.id));
    // A file without a name has only its time.
    let hash = if name.is_empty() { txn.now().nsec.into() } else { xxh3_64(name) };
    let at = hash.checked_rem(serving().count() as u64).unwrap_or(0);
    serving().nth(at as usize).map_or(asked, |node| node.id)
}

pub(crate) fn lookup<S: Store>(
    txn: &mut Txn<'_, S>,
    parent: Ino,
    name: &[u8],
) -> MetaOutcome<MetaReply> {
    let ino = resolve_name(txn, parent, name)?;
    let inode = load_target(txn, ino)?;
    Ok(MetaReply::Attr(txn.summed_attr(ino, &inode)?))
}

/// Returns the number of the inode that `name` leads to in `parent`.
fn resolve_name<S: Store>(txn: &mut Txn<'_, S>, parent: Ino, name: &[u8]) -> MetaOutcome<Ino> {
    let name = permission::parse_name(name)?;
    let dir = txn.load_inode(parent)?;
    permission::check_dir(&dir)?;
    permission::check_access(&dir, txn.cred, want::EXEC)?;
    Ok(match name {
        EntryName::Dot => txn.whole_directory(parent, &dir),
        EntryName::DotDot if dir.is_later_partition() => {
            txn.load_inode(txn.whole_directory(parent, &dir))?.parent
        }
        EntryName::DotDot => dir.parent,
        EntryName::Plain(name) => {
            // Before the lookup: a missing entry in the wrong partition must not mean ENOENT.
            txn.check_name_range(parent, &dir, name)?;
            txn.lookup_entry(parent, name)?.ok_or(Errno::ENOENT)?.ino
        }
    })
}

/// As [`lookup`], without a message to other nodes.
pub(crate) fn lookup_referral<S: Store>(
    txn: &mut Txn<'_, S>,
    parent: Ino,
    name: &[u8],
) -> MetaOutcome<MetaReply> {
    let ino = resolve_name(txn, parent, name)?;
    Ok(match txn.find_local_inode(ino)? {
        // Its owner shard knows all of its partitions.
        Some(inode) if inode.is_partitioned() => MetaReply::Referral(ino),
        Some(inode) => MetaReply::Attr(inode.to_attr(ino)),
        None if txn.may_be_elsewhere() => MetaReply::Referral(ino),
        None => return Err(crate::record::DamagedRecord("entry without inode").into()),
    })
}

/// Returns the inode that an entry leads to.
fn load_target<S: Store>(txn: &mut Txn<'_, S>, ino: Ino) -> MetaOutcome<Arc<Inode>> {
    // An entry without inode is damage, not a removal that the caller missed.
    txn.find_inode(ino)?.ok_or_else(|| crate::record::DamagedRecord("entry without inode").into())
}

pub(crate) fn create<S: Store>(
    txn: &mut Txn<'_, S>,
    key: &VolumeKey,
    parent: Ino,
    new: &NewInode<'_>,
    exclusive: bool,
    open: Option<Access>,
) -> MetaOutcome<MetaReply> {
    create_as(txn, key, parent, new, exclusive, open, None)
}

/// As [`create`]; a file gets the number `number`, if there is one.
pub(crate) fn create_as<S: Store>(
    txn: &mut Txn<'_, S>,
    key: &VolumeKey,
    parent: Ino,
    new: &NewInode<'_>,
    exclusive: bool,
    open: Option<Access>,
    number: Option<Ino>,
) -> MetaOutcome<MetaReply> {
    let name = permission::parse_name(new.name)?;
    let dir = txn.load_inode(parent)?;
    permission::check_dir(&dir)?;
    permission::check_access(&dir, txn.cred, want::EXEC)?;
    let name = name.require_plain(Errno::EEXIST)?;
    txn.check_name_range(parent, &dir, name)?;
    if let Some(entry) = txn.load_entry(parent, name)? {
        let is_file = entry.kind == InodeKind::File && matches!(new.node, InodeTemplate::File(_));
        if exclusive || !is_file {
            return Err(Errno::EEXIST.into());
        }
        return open_existing(txn, key, entry.ino, open);
    }
    // After the lookup, as in Linux: an existing name is reported also without write permission.
    permission::check_insert(&dir, txn.cred)?;
    txn.require_room()?;
    let inode = build_inode(txn, &dir, new)?;
    // A file's inode lies on the shard of its entry, so that a create touches one executor.
    let ino = match number {
        Some(number) => number,
        None => txn.allocate_ino(parent.owner_shard(), inode.is_dir())?,
    };
    txn.add_inode(ino, inode);
    txn.reuse_inode(parent, dir);
    txn.attach_entry(parent, name, ino)?;
    open_created(txn, key, ino, open, true)
}

fn open_existing<S: Store>(
    txn: &mut Txn<'_, S>,
    key: &VolumeKey,
    ino: Ino,
    open: Option<Access>,
) -> MetaOutcome<MetaReply> {
    let inode = load_target(txn, ino)?;
    if let Some(access) = open {
        attr::check_open(&inode, txn.cred, access)?;
    }
    open_created(txn, key, ino, open, false)
}

fn open_created<S: Store>(
    txn: &mut Txn<'_, S>,
    key: &VolumeKey,
    ino: Ino,
    open: Option<Access>,
    created: bool,
) -> MetaOutcome<MetaReply> {
    let is_file = txn.inspect_inode(ino, Inode::is_file)?;
    let cap = match open {
        // The client that makes a file may open it as requested, with any mode.
        Some(access) if is_file && txn.is_here(ino) => {
            if !access.write {
                txn.record_open(ino);
            }
            Some(attr::sign_capability(txn, key, ino, access)?)
        }
        _ => None,
    };
    Ok(MetaReply::Created {
        attr: txn.inspect_inode(ino, |inode| inode.to_attr(ino))?,
        cap,
        created,
    })
}

/// Returns a new inode with its properties in `dir`, without number and name.
fn build_inode<S: Store>(
    txn: &Txn<'_, S>,
    dir: &Inode,
    new: &NewInode<'_>,
) -> Result<Inode, Errno> {
    let cred = txn.cred;
    let kind = match new.node {
        InodeTemplate::File(_) => InodeKind::File,
        InodeTemplate::Dir => InodeKind::Dir,
        InodeTemplate::Symlink(_) => InodeKind::Symlink,
        InodeTemplate::Fifo => InodeKind::Fifo,
        InodeTemplate::Socket => InodeKind::Socket,
        InodeTemplate::CharDev(_) => InodeKind::CharDev,
        InodeTemplate::BlockDev(_) => InodeKind::BlockDev,
    };
    let is_dir = kind == InodeKind::Dir;
    let (gid, mode) = permission::inherit_group(dir, is_dir, new.mode & 0o7777, cred);
    let mut inode = Inode::new(kind, mode, cred.uid, gid, txn.now());
    match new.node {
        InodeTemplate::File(layout) if layout.is_of_new_file() => {
            inode.inline_limit = dir.policies.inline_limit();
            let in_region = dir.policies.uses_regions();
            inode.leaves_to_region = in_region && inode.inline_limit > 0;
            let node = choose_node(txn, dir, new.name, layout.node());
            inode.layout = match inode.inline_limit {
                0 if in_region => {
                    Layout::in_region_keeping(node, dir.policies.version_rule().code())
                }
                0 => Layout::whole(node),
                _ => Layout::inline(node),
            };
        }
        // A file becomes tiled with its first piece, and is re-laid out when it has bytes.
        InodeTemplate::File(_) => return Err(Errno::EINVAL),
        InodeTemplate::Symlink(target) => {
            check_symlink_target(target)?;
            inode.mode = 0o777;
            inode.size = target.len() as u64;
            inode.target = target.to_vec();
            return Ok(inode);
        }
        InodeTemplate::CharDev(_) | InodeTemplate::BlockDev(_) if !cred.is_root() => {
            return Err(Errno::EPERM);
        }
        InodeTemplate::CharDev(rdev) | InodeTemplate::BlockDev(rdev) => inode.rdev = *rdev,
        InodeTemplate::Dir => inode.policies = dir.policies,
        InodeTemplate::Fifo | InodeTemplate::Socket => {}
    }
    match &dir.default_acl {
        Some(default) => {
            let (bits, acl) = default.inherit_mode(mode);
            inode.mode = mode & !0o777 | bits;
            inode.acl = acl.map(Arc::new);
            inode.default_acl = if is_dir { Some(default.clone()) } else { None };
        }
        None => inode.mode = mode & !(new.umask & 0o777),
    }
    Ok(inode)
}

fn check_symlink_target(target: &[u8]) -> Result<(), Errno> {
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
) -> MetaOutcome<MetaReply> {
    let dir = txn.load_inode(parent)?;
    permission::check_insert(&dir, txn.cred)?;
    txn.require_room()?;
    let node = &InodeTemplate::File(layout);
    let mut inode = build_inode(txn, &dir, &NewInode { name: b"", node, mode, umask })?;
    inode.linkable = true;
    let ino = txn.allocate_ino(parent.owner_shard(), false)?;
    txn.add_inode(ino, inode);
    txn.keep_for_client(ino, txn.ctx.client)?;
    open_created(txn, key, ino, Some(open), true)
}

pub(crate) fn link<S: Store>(
    txn: &mut Txn<'_, S>,
    ino: Ino,
    parent: Ino,
    name: &[u8],
) -> MetaOutcome<MetaReply> {
    let name = permission::parse_name(name)?;
    let dir = txn.load_inode(parent)?;
    permission::check_dir(&dir)?;
    permission::check_access(&dir, txn.cred, want::EXEC)?;
    let name = name.require_plain(Errno::EEXIST)?;
    txn.check_name_range(parent, &dir, name)?;
    if txn.load_entry(parent, name)?.is_some() {
        return Err(Errno::EEXIST.into());
    }
    permission::check_insert(&dir, txn.cred)?;
    let inode = txn.load_inode(ino)?;
    if inode.is_dir() {
        return Err(Errno::EPERM.into());
    }
    let is_first = inode.nlink == 0;
    if is_first {
        // Only a file made without a name may get its first one, from a client that has it open.
        let ours = keys::orphan(txn.ctx.client, ino);
        if !inode.linkable || txn.get(&ours)?.is_none() {
            return Err(Errno::ENOENT.into());
        }
    }
    txn.require_room()?;
    txn.attach_entry(parent, name, ino)?;
    // Only the first link may start without a name: a file that is unlinked later stays unlinked.
    txn.edit_inode(ino)?.linkable = false;
    if is_first {
        // The name keeps the file from now on. A client that still writes it has a writer record.
        keepers::drop_keeper(txn, ino, txn.ctx.client)?;
    }
    Ok(MetaReply::Attr(txn.load_inode(ino)?.to_attr(ino)))
}

pub(crate) fn unlink<S: Store>(
    txn: &mut Txn<'_, S>,
    parent: Ino,
    name: &[u8],
    keep: bool,
) -> MetaOutcome<MetaReply> {
    let name = permission::parse_name(name)?;
    let dir = txn.load_inode(parent)?;
    permission::check_dir(&dir)?;
    permission::check_access(&dir, txn.cred, want::EXEC)?;
    let name = name.require_plain(Errno::EISDIR)?;
    txn.check_name_range(parent, &dir, name)?;
    let ino = txn.load_entry(parent, name)?.ok_or(Errno::ENOENT)?.ino;
    let victim = load_target(txn, ino)?;
    permission::check_remove(&dir, &victim, txn.cred)?;
    if victim.is_dir() {
        return Err(Errno::EISDIR.into());
    }
    txn.reuse_inode(ino, victim);
    txn.reuse_inode(parent, dir);
    txn.detach_entry(parent, name, ino)?;
    let last = txn.release_unnamed(ino, keep)?;
    Ok(MetaReply::Removed { ino: Some(ino), last })
}

pub(crate) fn rmdir<S: Store>(
    txn: &mut Txn<'_, S>,
    parent: Ino,
    name: &[u8],
    keep: bool,
) -> MetaOutcome<MetaReply> {
    let name = match permission::parse_name(name)? {
        EntryName::Dot => return Err(Errno::EINVAL.into()),
        EntryName::DotDot => return Err(Errno::ENOTEMPTY.into()),
        EntryName::Plain(name) => name,
    };
    let dir = txn.load_inode(parent)?;
    permission::check_dir(&dir)?;
    permission::check_access(&dir, txn.cred, want::EXEC)?;
    txn.check_name_range(parent, &dir, name)?;
    let ino = txn.load_entry(parent, name)?.ok_or(Errno::ENOENT)?.ino;
    let victim = load_target(txn, ino)?;
    permission::check_remove(&dir, &victim, txn.cred)?;
    permission::check_dir(&victim)?;
    // All partitions must be empty. The transaction locks them, so they stay so until the commit.
    if !txn.is_empty_dir(ino, &victim)? {
        return Err(Errno::ENOTEMPTY.into());
    }
    txn.detach_entry(parent, name, ino)?;
    remove_directory(txn, ino, keep)?;
    Ok(MetaReply::Removed { ino: Some(ino), last: true })
}

/// Removes a directory that has been detached and is empty.
pub(crate) fn remove_directory<S: Store>(
    txn: &mut Txn<'_, S>,
    ino: Ino,
    keep: bool,
) -> MetaOutcome<()> {
    // Its partitions go first: no partition may outlive its directory.
    txn.merge_partitions(ino)?;
    txn.edit_inode(ino)?.nlink = 0;
    txn.release_unnamed(ino, keep)?;
    Ok(())
}

pub(crate) fn read_dir<S: Store>(
    txn: &mut Txn<'_, S>,
    dir: Ino,
    after: u64,
    limit: u32,
    plus: bool,
) -> MetaOutcome<MetaReply> {
    let inode = txn.load_inode(dir)?;
    permission::check_dir(&inode)?;
    permission::check_access(&inode, txn.cred, want::READ)?;
    let limit = limit.clamp(1, READDIR_MAX) as usize;
    let mut entries: Vec<DirEntry> = Vec::new();
    let mut end = true;
    let is_past = after >= HashRange::ALL.last_hash();
    if inode.is_partitioned() && !is_past && !inode.range.contains(after + 1) {
        return Err(OperationFailure::WrongPartition(dir, inode.range));
    }
    if let Some(from) = after.checked_add(1) {
        let prefix = keys::inode_prefix(keys::tag::ENTRY, dir);
        let start = keys::entries_from(dir, from);
        txn.scan_records(&start, &prefix, &mut |key, value| {
            let Some(ParsedKey::Entry { hash, name, .. }) = keys::parse(key) else {
                return Ok(ControlFlow::Continue(()));
            };
            // Names with equal hashes share a cookie, so they must be in one answer.
            if entries.len() >= limit && entries.last().is_some_and(|last| last.cookie != hash) {
                end = false;
                return Ok(ControlFlow::Break(()));
            }
            let EntryRecord { ino, kind } = EntryRecord::decode(value)?;
            let name = Bytes::from(name.to_vec());
            entries.push(DirEntry { name, ino, kind, cookie: hash, attr: None });
            Ok(ControlFlow::Continue(()))
        })?;
    }
    let last = entries.last().filter(|_| !end).map_or(u64::MAX, |last| last.cookie + 1);
    // After the scan, so that the checked range is exactly the listed one.
    txn.check_listable(&keys::entries_from(dir, after), &keys::entries_from(dir, last))?;
    // Attributes need search permission, as a lookup does.
    if plus && permission::check_access(&inode, txn.cred, want::EXEC).is_ok() {
        for entry in &mut entries {
            // For a directory in several partitions, these attributes would be incomplete.
            let found = txn.find_local_inode(entry.ino)?.filter(|inode| !inode.is_partitioned());
            entry.attr = found.map(|inode| inode.to_attr(entry.ino));
        }
    }
    let upto = match entries.last() {
        Some(last) if !end => last.cookie,
        _ => inode.range.last_hash(),
    };
    let end = end && (is_past || inode.range.is_last());
    Ok(MetaReply::Entries { entries, end, parent: inode.parent, upto })
}
