//! Permissions on entries.

use crate::harness::*;
use tatami_wire::meta::{InodeTemplate, MetaOp, RenameMode};
use tatami_wire::{Errno, NodeId};

#[test]
fn searching_needs_execute_and_changing_needs_write_too() {
    let mut s = Shard::new();
    let d = s.dir(ROOT, "d").ino;
    let f = s.file(d, "f").ino;
    s.chown(d, Some(10), Some(10)).expect("chown");
    s.chmod(d, 0o754).expect("chmod");
    s.as_user(user(11));
    assert_eq!(s.lookup(d, "f"), Err(Errno::EACCES));
    assert_eq!(s.lookup(d, "absent"), Err(Errno::EACCES));
    assert_eq!(s.unlink(d, "f", false), Err(Errno::EACCES));
    s.as_user(member(11, &[10]));
    assert_eq!(s.lookup(d, "f").map(|a| a.ino), Ok(f));
    assert_eq!(s.make(d, "g", InodeTemplate::Dir, 0o755), Err(Errno::EACCES));
    assert_eq!(s.make(d, "f", InodeTemplate::Dir, 0o755), Err(Errno::EEXIST), "first what is seen");
    assert_eq!(s.unlink(d, "f", false), Err(Errno::EACCES));
    assert_eq!(s.link(f, d, "g"), Err(Errno::EACCES));
    assert_eq!(s.tmpfile(d), Err(Errno::EACCES));
    assert_eq!(s.rename((d, "f"), (d, "g"), RenameMode::Replace), Err(Errno::EACCES));
    s.as_user(user(10));
    assert!(s.make(d, "g", InodeTemplate::Dir, 0o755).is_ok());
    assert!(s.unlink(d, "f", false).is_ok());
    s.assert_sound();
}

#[test]
fn a_sticky_directory_protects_what_others_own() {
    let mut s = Shard::new();
    let d = s.dir(ROOT, "tmp").ino;
    s.chmod(d, 0o1777).expect("chmod");
    s.as_user(user(10));
    s.file(d, "f");
    s.dir(d, "sub");
    s.as_user(user(11));
    s.file(d, "mine");
    assert_eq!(s.unlink(d, "f", false), Err(Errno::EPERM));
    assert_eq!(s.rmdir(d, "sub", false), Err(Errno::EPERM));
    assert_eq!(s.rename((d, "f"), (d, "g"), RenameMode::Replace), Err(Errno::EPERM));
    assert_eq!(s.rename((d, "mine"), (d, "f"), RenameMode::Replace), Err(Errno::EPERM));
    assert!(s.rename((d, "mine"), (d, "mine2"), RenameMode::Replace).is_ok());
    assert!(s.as_user(user(10)).unlink(d, "f", false).is_ok());
    assert!(s.as_root().rmdir(d, "sub", false).is_ok());
    s.assert_sound();
}

#[test]
fn a_new_inode_belongs_to_its_maker() {
    let mut s = Shard::new();
    s.chmod(ROOT, 0o777).expect("chmod");
    s.as_user(member(10, &[30]));
    let f = s.file(ROOT, "f");
    assert_eq!((f.uid, f.gid, f.mode), (10, 10, 0o644));
}

#[test]
fn setgid_directories_hand_on_their_group() {
    let mut s = Shard::new();
    let d = s.dir(ROOT, "d").ino;
    s.chown(d, None, Some(30)).expect("chown");
    s.chmod(d, 0o2777).expect("chmod");
    s.as_user(user(10));
    let sub = s.dir(d, "sub");
    assert_eq!((sub.gid, sub.mode), (30, 0o2755));
    let f = s.make(d, "f", InodeTemplate::File(LAYOUT), 0o2777).expect("file");
    assert_eq!((f.gid, f.mode), (30, 0o755), "no setgid for a group one is not in");
    assert_eq!(s.tmpfile(d).map(|t| t.gid), Ok(30));
}

#[test]
fn moving_a_directory_rewrites_its_parent_and_needs_permission_for_that() {
    let mut s = Shard::new();
    s.chmod(ROOT, 0o777).expect("chmod");
    let sub = s.dir(ROOT, "sub").ino;
    s.chmod(sub, 0o755).expect("chmod");
    s.as_user(user(10));
    let own = s.dir(ROOT, "own").ino;
    assert_eq!(s.rename((ROOT, "sub"), (own, "sub"), RenameMode::Replace), Err(Errno::EACCES));
    assert!(s.rename((ROOT, "sub"), (ROOT, "bus"), RenameMode::Replace).is_ok(), "same parent");
    s.assert_sound();
}

#[test]
fn housekeeping_is_for_nodes() {
    let mut s = Shard::new();
    let mut ctx = s.context();
    ctx.trusted = false;
    let garbage = MetaOp::ListGarbage { node: NodeId(0), limit: 1 };
    for op in [garbage, MetaOp::ListClients, MetaOp::ExpireClient { client: B }] {
        assert_eq!(s.meta.apply(&ctx, &s.cred, &op).into_result(), Err(Errno::EPERM));
    }
}

#[test]
fn a_group_list_past_its_bound_is_refused() {
    let mut s = Shard::new();
    s.as_user(member(1, &vec![0; 2000]));
    assert_eq!(s.getattr(ROOT), Err(Errno::EINVAL));
}
