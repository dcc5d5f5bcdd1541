//! Extended attributes, by the rules of xattr(7), and access control lists in the form in which the
//! kernel passes them as attributes.

use crate::acl::Acl;
use crate::error::MetaOutcome;
use crate::inode::Inode;
use crate::keys::{self, ParsedKey, tag};
use crate::operation::Txn;
use crate::permission::{self, STICKY, want};
use crate::store::Store;
use std::ops::ControlFlow;
use std::sync::Arc;
use tatami_wire::meta::{Bytes, MetaReply, XattrMode};
use tatami_wire::policy::{Policies, PolicyRow};
use tatami_wire::{Cred, Errno, Ino, InodeKind, XATTR_NAME_MAX, XATTR_VALUE_MAX};

/// Longest listing of one inode's names, in bytes: `XATTR_LIST_MAX` of Linux.
const LIST_MAX: u32 = 64 * 1024;
/// Most bytes in all values of one inode.
const BYTES_MAX: u32 = 1 << 20;

const ACCESS: &[u8] = b"system.posix_acl_access";
const DEFAULT: &[u8] = b"system.posix_acl_default";

/// The namespace of xattr(7) that a name belongs to.
#[derive(Clone, Copy)]
enum XattrNamespace {
    User,
    /// A policy of directories; `None`: one that is not known.
    Policy(Option<&'static PolicyRow>),
    Trusted,
    Security,
    AccessList,
    DefaultList,
}

fn namespace_of(name: &[u8]) -> Result<XattrNamespace, Errno> {
    if name.is_empty() || name.len() > XATTR_NAME_MAX {
        return Err(Errno::ERANGE);
    }
    if name.contains(&0) {
        return Err(Errno::EINVAL);
    }
    let spaces = [
        (&b"user."[..], XattrNamespace::User),
        (b"trusted.", XattrNamespace::Trusted),
        (b"security.", XattrNamespace::Security),
    ];
    match name {
        ACCESS => return Ok(XattrNamespace::AccessList),
        DEFAULT => return Ok(XattrNamespace::DefaultList),
        _ => {}
    }
    if let Some(row) = PolicyRow::of_attribute(name) {
        return Ok(XattrNamespace::Policy(row));
    }
    for (prefix, space) in spaces {
        if let Some(rest) = name.strip_prefix(prefix) {
            return if rest.is_empty() { Err(Errno::EINVAL) } else { Ok(space) };
        }
    }
    Err(Errno::EOPNOTSUPP)
}

fn check_read(inode: &Inode, cred: &Cred, space: XattrNamespace) -> Result<(), Errno> {
    match space {
        XattrNamespace::User | XattrNamespace::Policy(_)
            if !matches!(inode.kind, InodeKind::File | InodeKind::Dir) =>
        {
            Err(Errno::ENODATA)
        }
        XattrNamespace::User | XattrNamespace::Policy(_) => {
            permission::check_access(inode, cred, want::READ)
        }
        // As in Linux: without privilege these attributes are invisible, not forbidden.
        XattrNamespace::Trusted if !cred.is_root() => Err(Errno::ENODATA),
        _ => Ok(()),
    }
}

fn check_write(inode: &Inode, cred: &Cred, space: XattrNamespace) -> Result<(), Errno> {
    match space {
        XattrNamespace::User | XattrNamespace::Policy(_)
            if !matches!(inode.kind, InodeKind::File | InodeKind::Dir) =>
        {
            Err(Errno::EPERM)
        }
        XattrNamespace::User | XattrNamespace::Policy(_) => {
            if inode.is_dir() && inode.mode & STICKY != 0 {
                permission::check_owner(inode, cred)?;
            }
            permission::check_access(inode, cred, want::WRITE)
        }
        XattrNamespace::Trusted | XattrNamespace::Security if !cred.is_root() => Err(Errno::EPERM),
        XattrNamespace::Trusted | XattrNamespace::Security => Ok(()),
        XattrNamespace::AccessList | XattrNamespace::DefaultList
            if inode.kind == InodeKind::Symlink =>
        {
            Err(Errno::EOPNOTSUPP)
        }
        XattrNamespace::AccessList | XattrNamespace::DefaultList => {
            permission::check_owner(inode, cred)
        }
    }
}

fn acl_of(inode: &Inode, space: XattrNamespace) -> Option<&Arc<Acl>> {
    match space {
        XattrNamespace::AccessList => inode.acl.as_ref(),
        XattrNamespace::DefaultList => inode.default_acl.as_ref(),
        _ => None,
    }
}

pub(crate) fn get_xattr<S: Store>(
    txn: &mut Txn<'_, S>,
    ino: Ino,
    name: &[u8],
) -> MetaOutcome<MetaReply> {
    let inode = txn.load_own_inode(ino)?;
    let space = namespace_of(name)?;
    check_read(&inode, txn.cred, space)?;
    let value = match space {
        XattrNamespace::AccessList | XattrNamespace::DefaultList
            if inode.kind == InodeKind::Symlink =>
        {
            return Err(Errno::EOPNOTSUPP.into());
        }
        XattrNamespace::AccessList | XattrNamespace::DefaultList => {
            acl_of(&inode, space).map(|acl| acl.to_xattr())
        }
        XattrNamespace::Policy(row) => row.and_then(|row| {
            let value = inode.policies.value_of(row.kind)?;
            Some((row.format)(value).into_bytes())
        }),
        _ if inode.xattr_list == 0 => None,
        _ => txn.get(&keys::xattr(ino, name))?,
    };
    Ok(MetaReply::Bytes(Bytes::from(value.ok_or(Errno::ENODATA)?)))
}

pub(crate) fn list_xattrs<S: Store>(txn: &mut Txn<'_, S>, ino: Ino) -> MetaOutcome<MetaReply> {
    let inode = txn.load_own_inode(ino)?;
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
    for (row, _) in inode.policies.present() {
        push(row.attribute().as_bytes());
    }
    if inode.xattr_list > 0 {
        let prefix = keys::inode_prefix(tag::XATTR, ino);
        let root = txn.cred.is_root();
        txn.scan_records(&prefix, &prefix, &mut |key, _| {
            if let Some(ParsedKey::Xattr { name, .. }) = keys::parse(key)
                && (root || !name.starts_with(b"trusted."))
            {
                push(name);
            }
            Ok(ControlFlow::Continue(()))
        })?;
    }
    Ok(MetaReply::Bytes(Bytes::from(names)))
}

pub(crate) fn set_xattr<S: Store>(
    txn: &mut Txn<'_, S>,
    ino: Ino,
    name: &[u8],
    value: &[u8],
    mode: XattrMode,
) -> MetaOutcome<MetaReply> {
    if value.len() > XATTR_VALUE_MAX {
        return Err(Errno::E2BIG.into());
    }
    let inode = txn.load_own_inode(ino)?;
    let space = namespace_of(name)?;
    check_write(&inode, txn.cred, space)?;
    if matches!(space, XattrNamespace::AccessList | XattrNamespace::DefaultList) {
        return set_acl(txn, ino, space, value);
    }
    if let XattrNamespace::Policy(row) = space {
        return set_policy(txn, ino, row, value, mode);
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
    txn.require_room()?;
    let now = txn.now();
    let inode = txn.edit_inode(ino)?;
    inode.xattr_list = list;
    inode.xattr_bytes = bytes;
    inode.ctime = inode.ctime.advanced_to(now);
    txn.put_record(key, value.to_vec());
    Ok(MetaReply::Done)
}

pub(crate) fn remove_xattr<S: Store>(
    txn: &mut Txn<'_, S>,
    ino: Ino,
    name: &[u8],
) -> MetaOutcome<MetaReply> {
    let inode = txn.load_own_inode(ino)?;
    let space = namespace_of(name)?;
    check_write(&inode, txn.cred, space)?;
    if matches!(space, XattrNamespace::AccessList | XattrNamespace::DefaultList) {
        if acl_of(&inode, space).is_none() {
            return Err(Errno::ENODATA.into());
        }
        return put_acl(txn, ino, space, None);
    }
    if let XattrNamespace::Policy(row) = space {
        let row = row.filter(|row| inode.policies.value_of(row.kind).is_some());
        let row = row.ok_or(Errno::ENODATA)?;
        check_together(inode.policies, row, None)?;
        return put_policy(txn, ino, row, None);
    }
    let key = keys::xattr(ino, name);
    let old = if inode.xattr_list == 0 { None } else { txn.get(&key)? };
    let old = old.ok_or(Errno::ENODATA)?;
    let now = txn.now();
    let inode = txn.edit_inode(ino)?;
    inode.xattr_list = inode.xattr_list.saturating_sub(name.len() as u32 + 1);
    inode.xattr_bytes = inode.xattr_bytes.saturating_sub(old.len() as u32);
    inode.ctime = inode.ctime.advanced_to(now);
    txn.delete_record(key);
    Ok(MetaReply::Done)
}

fn set_policy<S: Store>(
    txn: &mut Txn<'_, S>,
    ino: Ino,
    row: Option<&PolicyRow>,
    value: &[u8],
    mode: XattrMode,
) -> MetaOutcome<MetaReply> {
    let (is_dir, old, policies) = txn.inspect_inode(ino, |inode| {
        let old = row.and_then(|row| inode.policies.value_of(row.kind));
        (inode.is_dir(), old, inode.policies)
    })?;
    // Policies are for what is made below a directory.
    let row = row.filter(|_| is_dir).ok_or(Errno::EINVAL)?;
    match (mode, old) {
        (XattrMode::Create, Some(_)) => return Err(Errno::EEXIST.into()),
        (XattrMode::Replace, None) => return Err(Errno::ENODATA.into()),
        _ => {}
    }
    let value = std::str::from_utf8(value).ok().and_then(row.parse).ok_or(Errno::EINVAL)?;
    check_together(policies, row, Some(value))?;
    txn.require_room()?;
    put_policy(txn, ino, row, Some(value))
}

/// Refuses policies that contradict each other: what they promise together would not be kept.
fn check_together(
    mut policies: Policies,
    row: &PolicyRow,
    value: Option<u64>,
) -> Result<(), Errno> {
    policies.set_value(row.kind, value);
    if policies.are_consistent() { Ok(()) } else { Err(Errno::EINVAL) }
}

fn put_policy<S: Store>(
    txn: &mut Txn<'_, S>,
    ino: Ino,
    row: &PolicyRow,
    value: Option<u64>,
) -> MetaOutcome<MetaReply> {
    let now = txn.now();
    let inode = txn.edit_inode(ino)?;
    inode.policies.set_value(row.kind, value);
    inode.ctime = inode.ctime.advanced_to(now);
    // Partitions have copies, so that a create needs its partition only.
    txn.update_partitions(ino, permission::copy_permissions)?;
    Ok(MetaReply::Done)
}

fn set_acl<S: Store>(
    txn: &mut Txn<'_, S>,
    ino: Ino,
    space: XattrNamespace,
    value: &[u8],
) -> MetaOutcome<MetaReply> {
    // setxattr(2) with an empty value removes the list.
    let acl = if value.is_empty() { None } else { Acl::from_xattr(value)? };
    if matches!(space, XattrNamespace::DefaultList)
        && acl.is_some()
        && !txn.load_inode(ino)?.is_dir()
    {
        return Err(Errno::EACCES.into());
    }
    put_acl(txn, ino, space, acl)
}

fn put_acl<S: Store>(
    txn: &mut Txn<'_, S>,
    ino: Ino,
    space: XattrNamespace,
    acl: Option<Acl>,
) -> MetaOutcome<MetaReply> {
    let (now, cred) = (txn.now(), txn.cred);
    let inode = txn.edit_inode(ino)?;
    inode.ctime = inode.ctime.advanced_to(now);
    match space {
        XattrNamespace::DefaultList => inode.default_acl = acl.map(Arc::new),
        _ => {
            if let Some(acl) = &acl {
                let mode = inode.mode & !0o777 | acl.to_mode();
                inode.mode = permission::settable_mode(mode, inode.gid, cred);
            }
            inode.acl = acl.filter(|acl| !acl.is_plain_mode()).map(Arc::new);
        }
    }
    // Partitions have copies of the permissions.
    txn.update_partitions(ino, permission::copy_permissions)?;
    Ok(MetaReply::Done)
}
