//! Permissions of inodes, and valid names.
//!
//! The rules are those of path_resolution(7), inode(7) and acl(5), in the order in which Linux
//! checks them, so that the same mistake gets the same error number.

use crate::inode::Inode;
use tatami_wire::{Cred, Errno, NAME_MAX};

/// Wanted permission, the bits of one class of a mode.
pub(crate) mod want {
    pub const READ: u8 = 4;
    pub const WRITE: u8 = 2;
    pub const EXEC: u8 = 1;
}

pub(crate) const SETUID: u16 = 0o4000;
pub(crate) const SETGID: u16 = 0o2000;
pub(crate) const STICKY: u16 = 0o1000;
const GROUP_EXEC: u16 = 0o010;

/// Checks that `cred` has all permissions in `want` (see [`want`]).
///
/// # Errors
/// `EACCES`
pub(crate) fn check_access(inode: &Inode, cred: &Cred, want: u8) -> Result<(), Errno> {
    if has_access(inode, cred, want) { Ok(()) } else { Err(Errno::EACCES) }
}

fn has_access(inode: &Inode, cred: &Cred, want: u8) -> bool {
    if cred.is_root() {
        // Even the superuser executes only files that some user may execute.
        return inode.is_dir() || want & want::EXEC == 0 || inode.mode & 0o111 != 0;
    }
    let class = |shift: u16| (inode.mode >> shift & 7) as u8 & want == want;
    if cred.uid == inode.uid {
        return class(6);
    }
    match &inode.acl {
        // As in Linux, a list whose mask allows nothing is not consulted.
        Some(acl) if inode.mode & 0o070 != 0 => acl.is_allowed(cred, inode.gid, want),
        _ if cred.in_group(inode.gid) => class(3),
        _ => class(0),
    }
}

/// Copies the permissions of a directory, and its policies, to a partition.
pub(crate) fn copy_permissions(dir: &Inode, part: &mut Inode) {
    (part.mode, part.uid, part.gid) = (dir.mode, dir.uid, dir.gid);
    part.acl.clone_from(&dir.acl);
    part.default_acl.clone_from(&dir.default_acl);
    part.policies = dir.policies;
}

/// Checks that `cred` owns the inode or is the superuser.
///
/// # Errors
/// `EPERM`
pub(crate) fn check_owner(inode: &Inode, cred: &Cred) -> Result<(), Errno> {
    if cred.is_root() || cred.uid == inode.uid { Ok(()) } else { Err(Errno::EPERM) }
}

/// Checks that `cred` may add an entry to `dir`.
///
/// # Errors
/// `ENOTDIR`; `ENOENT` for a directory that is removed but still open; `EACCES`
pub(crate) fn check_insert(dir: &Inode, cred: &Cred) -> Result<(), Errno> {
    check_dir(dir)?;
    if dir.nlink == 0 {
        return Err(Errno::ENOENT);
    }
    check_access(dir, cred, want::WRITE | want::EXEC)
}

/// Checks that `cred` may remove the entry that leads to `victim` from `dir`.
///
/// # Errors
/// `EACCES`; `EPERM` by the sticky bit
pub(crate) fn check_remove(dir: &Inode, victim: &Inode, cred: &Cred) -> Result<(), Errno> {
    check_access(dir, cred, want::WRITE | want::EXEC)?;
    let protected =
        dir.mode & STICKY != 0 && !cred.is_root() && cred.uid != victim.uid && cred.uid != dir.uid;
    if protected { Err(Errno::EPERM) } else { Ok(()) }
}

/// Checks that the inode is a directory.
///
/// # Errors
/// `ENOTDIR`
pub(crate) fn check_dir(inode: &Inode) -> Result<(), Errno> {
    if inode.is_dir() { Ok(()) } else { Err(Errno::ENOTDIR) }
}

/// Returns the mode after a change of the owner or of the bytes by a user that may not keep foreign
/// privileges: without setuid, and without setgid where that means a privilege (executable by the
/// group) or `cred` could not have set it.
pub(crate) fn strip_privileges(inode: &Inode, mode: u16, cred: &Cred) -> u16 {
    let mut mode = mode & !SETUID;
    let group_exec = mode & GROUP_EXEC != 0;
    if group_exec || !(cred.is_root() || cred.in_group(inode.gid)) {
        mode &= !SETGID;
    }
    mode
}

/// Returns the mode that a chmod(2) by `cred` of an inode with group `gid` results in: only members
/// of the group can set setgid.
pub(crate) fn settable_mode(mode: u16, gid: u32, cred: &Cred) -> u16 {
    if cred.is_root() || cred.in_group(gid) { mode } else { mode & !SETGID }
}

/// Returns group and mode of a new inode in `dir`, by the setgid rules.
pub(crate) fn inherit_group(dir: &Inode, is_dir: bool, mode: u16, cred: &Cred) -> (u32, u16) {
    if dir.mode & SETGID == 0 {
        return (cred.gid, mode);
    }
    if is_dir {
        return (dir.gid, mode | SETGID);
    }
    let privileged = SETGID | GROUP_EXEC;
    let strip = mode & privileged == privileged && !cred.is_root() && !cred.in_group(dir.gid);
    (dir.gid, if strip { mode & !SETGID } else { mode })
}

/// A name as it occurs in a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EntryName<'a> {
    /// `.`
    Dot,
    /// `..`
    DotDot,
    /// Any other name.
    Plain(&'a [u8]),
}

/// Validates a name of a request.
///
/// # Errors
/// `ENOENT` when it is empty, `ENAMETOOLONG` past [`NAME_MAX`] bytes, `EINVAL` when it contains
/// a slash or a zero byte
pub(crate) fn parse_name(bytes: &[u8]) -> Result<EntryName<'_>, Errno> {
    match bytes {
        b"" => Err(Errno::ENOENT),
        b"." => Ok(EntryName::Dot),
        b".." => Ok(EntryName::DotDot),
        _ if bytes.len() > NAME_MAX => Err(Errno::ENAMETOOLONG),
        _ if bytes.iter().any(|b| matches!(b, 0 | b'/')) => Err(Errno::EINVAL),
        _ => Ok(EntryName::Plain(bytes)),
    }
}

impl<'a> EntryName<'a> {
    /// Returns the name, where neither `.` nor `..` is valid.
    ///
    /// # Errors
    /// `otherwise`
    pub fn require_plain(self, otherwise: Errno) -> Result<&'a [u8], Errno> {
        match self {
            EntryName::Plain(name) => Ok(name),
            EntryName::Dot | EntryName::DotDot => Err(otherwise),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::acl::tests::acl_for_user_7;
    use std::sync::Arc;
    use tatami_wire::{InodeKind, Timestamp};

    fn inode(kind: InodeKind, mode: u16) -> Inode {
        Inode::new(kind, mode, 10, 20, Timestamp::default())
    }

    fn cred(uid: u32, gid: u32, groups: &[u32]) -> Cred {
        Cred { uid, gid, groups: groups.to_vec() }
    }

    #[test]
    fn the_first_class_that_fits_decides() {
        let file = inode(InodeKind::File, 0o047);
        assert!(
            check_access(&file, &cred(10, 20, &[]), want::READ).is_err(),
            "owner, though group may"
        );
        assert!(check_access(&file, &cred(11, 20, &[]), want::READ).is_ok());
        assert!(
            check_access(&file, &cred(11, 9, &[20]), want::WRITE).is_err(),
            "group, though others may"
        );
        assert!(check_access(&file, &cred(11, 9, &[]), want::WRITE).is_ok());
    }

    #[test]
    fn root_passes_but_executes_only_what_is_executable() {
        let root = Cred::ROOT;
        assert!(check_access(&inode(InodeKind::File, 0), &root, want::READ | want::WRITE).is_ok());
        assert!(check_access(&inode(InodeKind::File, 0), &root, want::EXEC).is_err());
        assert!(check_access(&inode(InodeKind::File, 0o010), &root, want::EXEC).is_ok());
        assert!(check_access(&inode(InodeKind::Dir, 0), &root, want::EXEC).is_ok());
    }

    #[test]
    fn a_list_decides_for_those_who_are_not_the_owner() {
        let mut file = inode(InodeKind::File, 0o770);
        file.acl = Some(Arc::new(acl_for_user_7(6, 0, 7)));
        assert!(check_access(&file, &cred(7, 1, &[]), want::WRITE).is_ok());
        assert!(check_access(&file, &cred(8, 20, &[]), want::READ).is_err());
        assert!(check_access(&file, &cred(10, 1, &[]), want::EXEC).is_ok(), "the owner");
    }

    #[test]
    fn a_sticky_directory_protects_entries_of_others() {
        let dir = inode(InodeKind::Dir, 0o1777);
        let victim = Inode::new(InodeKind::File, 0, 30, 0, Timestamp::default());
        assert_eq!(check_remove(&dir, &victim, &cred(31, 1, &[])), Err(Errno::EPERM));
        assert_eq!(check_remove(&dir, &victim, &cred(30, 1, &[])), Ok(()), "owner of the file");
        assert_eq!(
            check_remove(&dir, &victim, &cred(10, 1, &[])),
            Ok(()),
            "owner of the directory"
        );
        assert_eq!(check_remove(&dir, &victim, &Cred::ROOT), Ok(()));
    }

    #[test]
    fn setgid_directories_hand_on_their_group() {
        let dir = inode(InodeKind::Dir, 0o2775);
        let me = cred(1, 1, &[]);
        assert_eq!(inherit_group(&dir, true, 0o755, &me), (20, 0o2755));
        assert_eq!(inherit_group(&dir, false, 0o644, &me), (20, 0o644));
        assert_eq!(inherit_group(&dir, false, 0o2755, &me), (20, 0o755));
        assert_eq!(inherit_group(&dir, false, 0o2745, &me), (20, 0o2745));
        assert_eq!(inherit_group(&inode(InodeKind::Dir, 0o755), true, 0o755, &me), (1, 0o755));
    }

    #[test]
    fn privileges_go_with_a_new_owner() {
        let file = inode(InodeKind::File, 0o6755);
        assert_eq!(strip_privileges(&file, 0o6755, &Cred::ROOT), 0o755);
        assert_eq!(strip_privileges(&file, 0o6745, &Cred::ROOT), 0o2745, "mandatory locking");
        assert_eq!(strip_privileges(&file, 0o6745, &cred(10, 1, &[])), 0o745);
        assert_eq!(settable_mode(0o2755, 20, &cred(10, 1, &[])), 0o755);
        assert_eq!(settable_mode(0o2755, 20, &cred(10, 20, &[])), 0o2755);
    }

    #[test]
    fn names_have_their_bounds() {
        assert_eq!(parse_name(b""), Err(Errno::ENOENT));
        assert_eq!(parse_name(b"."), Ok(EntryName::Dot));
        assert_eq!(parse_name(b".."), Ok(EntryName::DotDot));
        assert_eq!(parse_name(b"..."), Ok(EntryName::Plain(b"...")));
        assert_eq!(parse_name(&[b'x'; 255]), Ok(EntryName::Plain(&[b'x'; 255])));
        assert_eq!(parse_name(&[b'x'; 256]), Err(Errno::ENAMETOOLONG));
        assert_eq!(parse_name(b"a/b"), Err(Errno::EINVAL));
        assert_eq!(parse_name(b"a\0"), Err(Errno::EINVAL));
    }
}
