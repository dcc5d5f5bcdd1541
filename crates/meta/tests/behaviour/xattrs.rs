//! Extended attributes and access control lists.

use crate::harness::*;
use tatami_wire::meta::{InodeTemplate, MetaOp, XattrMode};
use tatami_wire::{Access, Errno, XattrClass};

const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";
const NO_ID: u32 = u32::MAX;

/// Returns a list in the kernel's form.
fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut out = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        out.extend_from_slice(&tag.to_le_bytes());
        out.extend_from_slice(&perm.to_le_bytes());
        out.extend_from_slice(&id.to_le_bytes());
    }
    out
}

/// Owner rwx, user 7 `perm`, group r-x, mask `mask`, others nothing.
fn for_user_7(perm: u16, mask: u16) -> Vec<u8> {
    acl(&[(1, 7, NO_ID), (2, perm, 7), (4, 5, NO_ID), (0x10, mask, NO_ID), (0x20, 0, NO_ID)])
}

#[test]
fn attributes_are_set_read_listed_and_removed() {
    let mut s = Shard::new();
    let f = s.file(ROOT, "f").ino;
    s.setxattr(f, "user.a", b"one").expect("set");
    s.setxattr(f, "user.b", b"").expect("empty values are values");
    assert_eq!(s.getxattr(f, "user.a"), Ok(b"one".to_vec()));
    assert_eq!(s.getxattr(f, "user.b"), Ok(vec![]));
    assert_eq!(s.getxattr(f, "user.c"), Err(Errno::ENODATA));
    s.meta.commit().expect("commit");
    s.setxattr(f, "user.a", b"another").expect("replace");
    assert_eq!(s.listxattr(f), Ok(vec!["user.a".into(), "user.b".into()]));
    let set = |s: &mut Shard, n, mode| s.setxattr_mode(f, n, b"x", mode);
    assert_eq!(set(&mut s, "user.a", XattrMode::Create), Err(Errno::EEXIST));
    assert_eq!(set(&mut s, "user.z", XattrMode::Replace), Err(Errno::ENODATA));
    s.assert_sound();
    s.removexattr(f, "user.a").expect("remove");
    assert_eq!(s.removexattr(f, "user.a"), Err(Errno::ENODATA));
    assert_eq!(s.listxattr(f), Ok(vec!["user.b".into()]));
    s.assert_sound();
    s.unlink(ROOT, "f", false).expect("unlink");
    s.assert_sound();
}

#[test]
fn names_and_values_have_their_bounds() {
    let mut s = Shard::new();
    let f = s.file(ROOT, "f").ino;
    let long = format!("user.{}", "x".repeat(251));
    assert_eq!(s.setxattr(f, &long, b""), Err(Errno::ERANGE));
    assert_eq!(s.setxattr(f, "user.", b""), Err(Errno::EINVAL));
    assert_eq!(s.setxattr(f, "", b""), Err(Errno::ERANGE));
    assert_eq!(s.setxattr(f, "other.x", b""), Err(Errno::EOPNOTSUPP));
    assert_eq!(s.setxattr(f, "system.x", b""), Err(Errno::EOPNOTSUPP));
    assert_eq!(s.setxattr(f, "user.x", &vec![0; 65537]), Err(Errno::E2BIG));
    for i in 0..16 {
        s.setxattr(f, &format!("user.{i}"), &vec![0; 65536]).expect("within a megabyte");
    }
    assert_eq!(s.setxattr(f, "user.more", b"1"), Err(Errno::ENOSPC));
    assert!(s.setxattr(f, "user.3", b"less").is_ok());
    assert!(s.setxattr(f, "user.more", b"1").is_ok());
    s.assert_sound();
}

#[test]
fn namespaces_have_their_owners() {
    let mut s = Shard::new();
    let f = s.file(ROOT, "f").ino;
    s.chmod(f, 0o644).expect("chmod");
    s.setxattr(f, "trusted.t", b"1").expect("root");
    s.setxattr(f, "security.s", b"1").expect("root");
    s.setxattr(f, "user.u", b"1").expect("root");
    s.as_user(user(5));
    assert_eq!(s.setxattr(f, "user.u", b"2"), Err(Errno::EACCES));
    assert_eq!(s.getxattr(f, "user.u"), Ok(b"1".to_vec()));
    assert_eq!(s.setxattr(f, "trusted.t", b"2"), Err(Errno::EPERM));
    assert_eq!(s.getxattr(f, "trusted.t"), Err(Errno::ENODATA));
    assert_eq!(s.setxattr(f, "security.s", b"2"), Err(Errno::EPERM));
    assert_eq!(s.getxattr(f, "security.s"), Ok(b"1".to_vec()));
    assert_eq!(s.listxattr(f), Ok(vec!["security.s".into(), "user.u".into()]));
    s.as_root().chmod(f, 0o600).expect("chmod");
    assert_eq!(s.as_user(user(5)).getxattr(f, "user.u"), Err(Errno::EACCES));
    s.as_root();
    let link = s.make(ROOT, "l", InodeTemplate::Symlink(name("f")), 0o777).expect("link").ino;
    assert_eq!(s.setxattr(link, "user.u", b"1"), Err(Errno::EPERM), "no user attributes on links");
    assert_eq!(s.getxattr(link, "user.u"), Err(Errno::ENODATA));
    assert!(s.setxattr(link, "trusted.t", b"1").is_ok());
    s.chmod(ROOT, 0o1777).expect("chmod");
    assert_eq!(s.as_user(user(5)).setxattr(ROOT, "user.u", b"1"), Err(Errno::EPERM), "sticky");
    s.assert_sound();
}

#[test]
fn a_list_sets_the_mode_and_the_mode_sets_the_list() {
    let mut s = Shard::new();
    let f = s.file(ROOT, "f").ino;
    s.setxattr(f, ACCESS, &for_user_7(6, 6)).expect("set");
    let attr = s.getattr(f).expect("attr");
    assert_eq!((attr.mode, attr.xattr_class == XattrClass::Acl), (0o760, true));
    assert_eq!(s.getxattr(f, ACCESS), Ok(for_user_7(6, 6)));
    assert_eq!(s.listxattr(f), Ok(vec![ACCESS.into()]));
    s.chmod(f, 0o740).expect("chmod");
    assert_eq!(s.getxattr(f, ACCESS), Ok(for_user_7(6, 4)), "the mask moved");
    s.as_user(user(7));
    assert!(s.open(f, Access::READ).is_ok());
    assert_eq!(s.open(f, Access::WRITE).map(|_| ()), Err(Errno::EACCES));
    assert_eq!(s.as_user(user(8)).open(f, Access::READ).map(|_| ()), Err(Errno::EACCES));
    s.as_root().removexattr(f, ACCESS).expect("remove");
    assert_eq!(
        s.getattr(f).map(|a| (a.mode, a.xattr_class == XattrClass::Acl)),
        Ok((0o740, false))
    );
    assert_eq!(s.removexattr(f, ACCESS), Err(Errno::ENODATA));
    assert_eq!(s.getxattr(f, ACCESS), Err(Errno::ENODATA));
    s.assert_sound();
}

#[test]
fn attributes_tell_what_hangs_on_an_inode() {
    let mut s = Shard::new();
    let f = s.file(ROOT, "f").ino;
    let attached = |s: &mut Shard| s.getattr(f).map(|attr| attr.xattr_class);
    assert_eq!(attached(&mut s), Ok(XattrClass::NoXattr));
    s.setxattr(f, "user.a", b"1").expect("set");
    assert_eq!(attached(&mut s), Ok(XattrClass::Xattrs));
    s.setxattr(f, ACCESS, &for_user_7(6, 6)).expect("set");
    assert_eq!(attached(&mut s), Ok(XattrClass::Acl));
    s.removexattr(f, ACCESS).expect("remove");
    assert_eq!(attached(&mut s), Ok(XattrClass::Xattrs));
    s.removexattr(f, "user.a").expect("remove");
    assert_eq!(attached(&mut s), Ok(XattrClass::NoXattr));
}

#[test]
fn a_list_that_says_no_more_than_the_mode_becomes_the_mode() {
    let mut s = Shard::new();
    let f = s.file(ROOT, "f").ino;
    let plain = acl(&[(1, 6, NO_ID), (4, 4, NO_ID), (0x20, 4, NO_ID)]);
    s.setxattr(f, ACCESS, &plain).expect("set");
    assert_eq!(
        s.getattr(f).map(|a| (a.mode, a.xattr_class == XattrClass::Acl)),
        Ok((0o644, false))
    );
    assert_eq!(s.getxattr(f, ACCESS), Err(Errno::ENODATA));
}

#[test]
fn lists_are_the_owners_and_must_be_valid() {
    let mut s = Shard::new();
    let f = s.file(ROOT, "f").ino;
    s.chown(f, Some(10), Some(10)).expect("chown");
    assert_eq!(s.as_user(user(11)).setxattr(f, ACCESS, &for_user_7(7, 7)), Err(Errno::EPERM));
    s.as_user(user(10));
    assert_eq!(s.setxattr(f, ACCESS, b"nonsense"), Err(Errno::EOPNOTSUPP));
    assert_eq!(s.setxattr(f, ACCESS, &for_user_7(7, 7)[..9]), Err(Errno::EINVAL));
    assert_eq!(s.setxattr(f, ACCESS, &acl(&[(1, 7, NO_ID)])), Err(Errno::EINVAL));
    assert_eq!(s.setxattr(f, DEFAULT, &for_user_7(7, 7)), Err(Errno::EACCES), "not a directory");
    s.as_root();
    let link = s.make(ROOT, "l", InodeTemplate::Symlink(name("f")), 0o777).expect("link").ino;
    assert_eq!(s.setxattr(link, ACCESS, &for_user_7(7, 7)), Err(Errno::EOPNOTSUPP));
}

#[test]
fn a_default_list_is_inherited_instead_of_the_umask() {
    let mut s = Shard::new();
    let d = s.dir(ROOT, "d").ino;
    s.setxattr(d, DEFAULT, &for_user_7(7, 7)).expect("set");
    assert_eq!(s.getattr(d).map(|a| a.mode), Ok(0o755), "it says nothing of the directory itself");
    let f = s.make(d, "f", InodeTemplate::File(LAYOUT), 0o666).expect("file");
    assert_eq!((f.mode, f.xattr_class == XattrClass::Acl), (0o660, true));
    let access =
        acl(&[(1, 6, NO_ID), (2, 7, 7), (4, 5, NO_ID), (0x10, 6, NO_ID), (0x20, 0, NO_ID)]);
    assert_eq!(s.getxattr(f.ino, ACCESS), Ok(access));
    assert_eq!(s.getxattr(f.ino, DEFAULT), Err(Errno::ENODATA));
    let sub = s.dir(d, "sub");
    assert_eq!(sub.mode, 0o770);
    assert_eq!(s.getxattr(sub.ino, DEFAULT), Ok(for_user_7(7, 7)));
    assert_eq!(s.getxattr(sub.ino, ACCESS), Ok(for_user_7(7, 7)));
    let link = s.make(d, "l", InodeTemplate::Symlink(name("f")), 0o777).expect("link");
    assert_eq!((link.mode, link.xattr_class == XattrClass::Acl), (0o777, false));
    s.removexattr(d, DEFAULT).expect("remove");
    assert_eq!(s.file(d, "g").mode, 0o644, "the umask again");
    s.meta.commit().expect("commit");
    let mut s = s.reopen();
    assert_eq!(s.getxattr(sub.ino, DEFAULT), Ok(for_user_7(7, 7)));
    s.assert_sound();
}

#[test]
fn attributes_of_a_removed_inode_go_with_it() {
    let mut s = Shard::new();
    let f = s.file(ROOT, "f").ino;
    s.setxattr(f, "user.a", b"1").expect("set");
    s.unlink(ROOT, "f", true).expect("unlink");
    assert_eq!(s.getxattr(f, "user.a"), Ok(b"1".to_vec()), "kept");
    s.release(f).expect("release");
    assert_eq!(s.apply(MetaOp::ListXattr { ino: f }), Err(Errno::ESTALE));
    s.assert_sound();
}
