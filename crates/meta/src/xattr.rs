//! Extended attributes, by the rules of xattr(7), and access control lists in the form in which the
//! kernel passes them as attributes.

use crate::acl::Acl;
use crate::error::Outcome;
use crate::inode::Inode;
use crate::keys::{self, Parsed, tag};
use crate::permission::{self, STICKY, want};
use crate::store::Store;
use crate::txn::Txn;
use std::ops::ControlFlow;
use std::sync::Arc;
use tatami_wire::meta::{Bytes, MetaReply, XattrMode};
use tatami_wire::{Cred, Errno, Ino, Kind, XATTR_NAME_MAX, XATTR_VALUE_MAX};

/// Longest listing of one inode's names, in bytes: `XATTR_LIST_MAX` of Linux.
const LIST_MAX: u32 = 64 * 1024;
/// Most bytes in all values of one inode.
const BYTES_MAX: u32 = 1 << 20;

const ACCESS: &[u8] = b"system.posix_acl_access";
const DEFAULT: &[u8] = b"system.posix_acl_default";

/// The namespace of xattr(7) that a name belongs to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Space {
    User,
    Trusted,
    Security,
    AccessList,
    DefaultList,
}

fn space(name: &[u8]) -> Result<Space, Errno> {
    if name.is_empty() || name.len() > XATTR_NAME_MAX {
        return Err(Errno::ERANGE);
    }
    if name.contains(&0) {
        return Err(Errno::EINVAL);
    }
    let spaces = [
        (&b"user."[..], Space::User),
        (b"trusted.", Space::Trusted),
        (b"security.", Space::Security),
    ];
    match name {
        ACCESS => return Ok(Space::AccessList),
        DEFAULT => return Ok(Space::DefaultList),
        _ => {}
    }
    for (prefix, space) in spaces {
        if let Some(rest) = name.strip_prefix(prefix) {
            return if rest.is_empty() { Err(Errno::EINVAL) } else { Ok(space) };
        }
    }
    Err(Errno::EOPNOTSUPP)
}

fn check_read(inode: &Inode, cred: &Cred, space: Space) -> Result<(), Errno> {
    match space {
        Space::User if !matches!(inode.kind, Kind::File | Kind::Dir) => Err(Errno::ENODATA),
        Space::User => permission::check(inode, cred, want::READ),
        // As in Linux: without privilege these attributes are invisible, not forbidden.
        Space::Trusted if !cred.is_root() => Err(Errno::ENODATA),
        _ => Ok(()),
    }
}

fn check_write(inode: &Inode, cred: &Cred, space: Space) -> Result<(), Errno> {
    match space {
        Space::User if !matches!(inode.kind, Kind::File | Kind::Dir) => Err(Errno::EPERM),
        Space::User => {
            if inode.is_dir() && inode.mode & STICKY != 0 {
                permission::check_owner(inode, cred)?;
            }
            permission::check(inode, cred, want::WRITE)
        }
        Space::Trusted | Space::Security if !cred.is_root() => Err(Errno::EPERM),
        Space::Trusted | Space::Security => Ok(()),
        Space::AccessList | Space::DefaultList if inode.kind == Kind::Symlink => {
            Err(Errno::EOPNOTSUPP)
        }
        Space::AccessList | Space::DefaultList => permission::check_owner(inode, cred),
    }
}

fn list_of(inode: &Inode, space: Space) -> Option<&Arc<Acl>> {
    match space {
        Space::AccessList => inode.acl.as_ref(),
        Space::DefaultList => inode.default_acl.as_ref(),
        _ => None,
    }
}

pub(crate) fn get<S: Store>(txn: &mut Txn<'_, S>, ino: Ino, name: &[u8]) -> Outcome<MetaReply> {
    let inode = txn.own_inode(ino)?;
    let space = space(name)?;
    check_read(&inode, txn.cred, space)?;
    let value = match space {
        Space::AccessList | Space::DefaultList if inode.kind == Kind::Symlink => {
            return Err(Errno::EOPNOTSUPP.into());
        }
        Space::AccessList | Space::DefaultList => list_of(&inode, space).map(|acl| acl.to_xattr()),
        _ if inode.xattr_list == 0 => None,
        _ => txn.get(&keys::xattr(ino, name))?,
    };
    Ok(MetaReply::Bytes(Bytes::from(value.ok_or(Errno::ENODATA)?)))
}

pub(crate) fn list<S: Store>(txn: &mut Txn<'_, S>, ino: Ino) -> Outcome<MetaReply> {
    let inode = txn.own_inode(ino)?;
    let mut names = Vec::new();
    let mut push = |name: &[u8]| {
        names.extend_from_slice(name);
        names.push(0);
    };
    if inode.acl.is_some() {
        push(ACCESS);
    }
    if inode.default_acl.is_some() {
        push(DEFAULT);
    }
    if inode.xattr_list > 0 {
        let prefix = keys::of_ino(tag::XATTR, ino);
        let root = txn.cred.is_root();
        txn.scan(&prefix, &prefix, &mut |key, _| {
            if let Some(Parsed::Xattr { name, .. }) = keys::parse(key)
                && (root || !name.starts_with(b"trusted."))
            {
                push(name);
            }
            Ok(ControlFlow::Continue(()))
        })?;
    }
    Ok(MetaReply::Bytes(Bytes::from(names)))
}

pub(crate) fn set<S: Store>(
    txn: &mut Txn<'_, S>,
    ino: Ino,
    name: &[u8],
    value: &[u8],
    mode: XattrMode,
) -> Outcome<MetaReply> {
    if value.len() > XATTR_VALUE_MAX {
        return Err(Errno::E2BIG.into());
    }
    let inode = txn.own_inode(ino)?;
    let space = space(name)?;
    check_write(&inode, txn.cred, space)?;
    if matches!(space, Space::AccessList | Space::DefaultList) {
        return set_list(txn, ino, space, value);
    }
    let key = keys::xattr(ino, name);
    let old = if inode.xattr_list == 0 { None } else { txn.get(&key)? };
    match (mode, &old) {
        (XattrMode::Create, Some(_)) => return Err(Errno::EEXIST.into()),
        (XattrMode::Replace, None) => return Err(Errno::ENODATA.into()),
        _ => {}
    }
    // Both lengths are bounded above, so they fit.
    let old_len = old.as_ref().map_or(0, |v| v.len() as u32);
    let list = inode.xattr_list + if old.is_none() { name.len() as u32 + 1 } else { 0 };
    let bytes = inode.xattr_bytes.saturating_sub(old_len) + value.len() as u32;
    if list > LIST_MAX || bytes > BYTES_MAX {
        return Err(Errno::ENOSPC.into());
    }
    txn.need_room()?;
    let now = txn.now();
    let inode = txn.edit(ino)?;
    inode.xattr_list = list;
    inode.xattr_bytes = bytes;
    inode.ctime = inode.ctime.moved_to(now);
    txn.put(key, value.to_vec());
    Ok(MetaReply::Done)
}

pub(crate) fn remove<S: Store>(txn: &mut Txn<'_, S>, ino: Ino, name: &[u8]) -> Outcome<MetaReply> {
    let inode = txn.own_inode(ino)?;
    let space = space(name)?;
    check_write(&inode, txn.cred, space)?;
    if matches!(space, Space::AccessList | Space::DefaultList) {
        if list_of(&inode, space).is_none() {
            return Err(Errno::ENODATA.into());
        }
        return put_list(txn, ino, space, None);
    }
    let key = keys::xattr(ino, name);
    let old = if inode.xattr_list == 0 { None } else { txn.get(&key)? };
    let old = old.ok_or(Errno::ENODATA)?;
    let now = txn.now();
    let inode = txn.edit(ino)?;
    inode.xattr_list = inode.xattr_list.saturating_sub(name.len() as u32 + 1);
    inode.xattr_bytes = inode.xattr_bytes.saturating_sub(old.len() as u32);
    inode.ctime = inode.ctime.moved_to(now);
    txn.delete(key);
    Ok(MetaReply::Done)
}

fn set_list<S: Store>(
    txn: &mut Txn<'_, S>,
    ino: Ino,
    space: Space,
    value: &[u8],
) -> Outcome<MetaReply> {
    // setxattr(2) with an empty value removes the list.
    let acl = if value.is_empty() { None } else { Acl::from_xattr(value)? };
    if space == Space::DefaultList && acl.is_some() && !txn.inode(ino)?.is_dir() {
        return Err(Errno::EACCES.into());
    }
    put_list(txn, ino, space, acl)
}

fn put_list<S: Store>(
    txn: &mut Txn<'_, S>,
    ino: Ino,
    space: Space,
    acl: Option<Acl>,
) -> Outcome<MetaReply> {
    let (now, cred) = (txn.now(), txn.cred);
    let inode = txn.edit(ino)?;
    inode.ctime = inode.ctime.moved_to(now);
    match space {
        Space::DefaultList => inode.default_acl = acl.map(Arc::new),
        _ => {
            if let Some(acl) = &acl {
                let mode = inode.mode & !0o777 | acl.mode();
                inode.mode = permission::settable(mode, inode.gid, cred);
            }
            inode.acl = acl.filter(|acl| !acl.is_mode()).map(Arc::new);
        }
    }
    // Partitions have copies of the permissions.
    txn.tell_parts(ino, permission::copy)?;
    Ok(MetaReply::Done)
}
