//! rename(2) in all its forms.

use crate::harness::*;
use tatami_wire::meta::{MetaOp, MetaReply, RenameMode::*};
use tatami_wire::{Errno, Ino};

#[test]
fn a_file_moves_and_keeps_its_inode() {
    let mut s = Shard::new();
    let d = s.dir(ROOT, "d").ino;
    let f = s.file(ROOT, "f").ino;
    assert_eq!(s.rename((ROOT, "f"), (d, "g"), Replace), Ok((None, false)));
    assert_eq!(s.lookup(ROOT, "f"), Err(Errno::ENOENT));
    let moved = s.lookup(d, "g").expect("moved");
    assert_eq!((moved.ino, moved.nlink), (f, 1));
    assert!(moved.ctime >= s.getattr(d).expect("dir").mtime);
    s.assert_sound();
}

#[test]
fn what_is_replaced_loses_a_name() {
    let mut s = Shard::new();
    let f = s.file(ROOT, "f").ino;
    let g = s.file(ROOT, "g").ino;
    s.link(g, ROOT, "g2").expect("link");
    assert_eq!(s.rename((ROOT, "f"), (ROOT, "g"), Replace), Ok((Some(g), false)));
    assert_eq!(s.getattr(g).map(|a| a.nlink), Ok(1));
    assert_eq!(s.rename((ROOT, "g"), (ROOT, "g2"), Replace), Ok((Some(g), true)));
    assert_eq!(s.getattr(g), Err(Errno::ESTALE));
    assert_eq!(s.lookup(ROOT, "g2").map(|a| a.ino), Ok(f));
    assert_eq!(s.names(ROOT), ["g2"]);
    s.assert_sound();
}

#[test]
fn what_is_replaced_can_be_kept() {
    let mut s = Shard::new();
    let f = s.file(ROOT, "f").ino;
    let g = s.file(ROOT, "g").ino;
    let op = MetaOp::Rename {
        parent: ROOT,
        name: name("f"),
        new_parent: ROOT,
        new_name: name("g"),
        mode: Replace,
        keep: true,
    };
    assert_eq!(s.apply(op), Ok(MetaReply::Renamed { ino: Some(g), last: true, moved: vec![f] }));
    assert_eq!(s.getattr(g).map(|a| a.nlink), Ok(0));
    assert_eq!(s.lookup(ROOT, "g").map(|a| a.ino), Ok(f));
    s.assert_sound();
    s.release(g).expect("release");
    assert_eq!(s.getattr(g), Err(Errno::ESTALE));
    s.assert_sound();
}

#[test]
fn directories_move_with_their_parent_link() {
    let mut s = Shard::new();
    let a = s.dir(ROOT, "a").ino;
    let b = s.dir(ROOT, "b").ino;
    let x = s.dir(a, "x").ino;
    assert_eq!(s.rename((a, "x"), (b, "y"), Replace), Ok((None, false)));
    assert_eq!(s.lookup(x, "..").map(|d| d.ino), Ok(b));
    let nlinks = |s: &mut Shard, ino| s.getattr(ino).map(|a| (a.nlink, a.size));
    assert_eq!(nlinks(&mut s, a), Ok((2, 0)));
    assert_eq!(nlinks(&mut s, b), Ok((3, 1)));
    s.assert_sound();
}

#[test]
fn a_directory_replaces_only_an_empty_directory() {
    let mut s = Shard::new();
    let a = s.dir(ROOT, "a").ino;
    let b = s.dir(ROOT, "b").ino;
    let f = s.file(ROOT, "f").ino;
    s.file(b, "x");
    assert_eq!(s.rename((ROOT, "a"), (ROOT, "b"), Replace), Err(Errno::ENOTEMPTY));
    assert_eq!(s.rename((ROOT, "a"), (ROOT, "f"), Replace), Err(Errno::ENOTDIR));
    assert_eq!(s.rename((ROOT, "f"), (ROOT, "a"), Replace), Err(Errno::EISDIR));
    assert_eq!(s.rename((ROOT, "b"), (ROOT, "a"), Replace), Ok((Some(a), true)));
    assert_eq!(s.getattr(a), Err(Errno::ESTALE));
    assert_eq!(s.getattr(f).map(|a| a.nlink), Ok(1));
    assert_eq!(s.getattr(ROOT).map(|a| (a.nlink, a.size)), Ok((3, 2)));
    s.assert_sound();
}

#[test]
fn no_directory_becomes_its_own_descendant() {
    let mut s = Shard::new();
    let a = s.dir(ROOT, "a").ino;
    let b = s.dir(a, "b").ino;
    let c = s.dir(b, "c").ino;
    assert_eq!(s.rename((ROOT, "a"), (a, "x"), Replace), Err(Errno::EINVAL));
    assert_eq!(s.rename((ROOT, "a"), (c, "x"), Replace), Err(Errno::EINVAL));
    assert_eq!(s.rename((b, "c"), (ROOT, "a"), Replace), Err(Errno::ENOTEMPTY), "its ancestor");
    assert_eq!(s.rename((ROOT, "a"), (b, "c"), Exchange), Err(Errno::EINVAL));
    assert_eq!(s.rename((b, "c"), (ROOT, "a"), Exchange), Err(Errno::EINVAL));
    assert!(s.rename((a, "b"), (ROOT, "b"), Replace).is_ok());
    assert!(s.rename((ROOT, "a"), (c, "x"), Replace).is_ok());
    s.assert_sound();
}

#[test]
fn two_names_of_one_inode_stay_as_they_are() {
    let mut s = Shard::new();
    let f = s.file(ROOT, "f").ino;
    s.link(f, ROOT, "g").expect("link");
    assert_eq!(s.rename((ROOT, "f"), (ROOT, "g"), Replace), Ok((None, false)));
    assert_eq!(s.names(ROOT), ["f", "g"]);
    assert_eq!(s.rename((ROOT, "f"), (ROOT, "f"), Replace), Ok((None, false)));
    assert_eq!(s.rename((ROOT, "f"), (ROOT, "f"), NoReplace), Err(Errno::EEXIST));
    s.assert_sound();
}

#[test]
fn noreplace_keeps_what_is_there() {
    let mut s = Shard::new();
    s.file(ROOT, "f");
    s.file(ROOT, "g");
    assert_eq!(s.rename((ROOT, "f"), (ROOT, "g"), NoReplace), Err(Errno::EEXIST));
    assert_eq!(s.rename((ROOT, "f"), (ROOT, "h"), NoReplace), Ok((None, false)));
    assert_eq!(s.names(ROOT), ["g", "h"]);
    s.assert_sound();
}

#[test]
fn exchange_swaps_whatever_the_kinds() {
    let mut s = Shard::new();
    let a = s.dir(ROOT, "a").ino;
    let b = s.dir(ROOT, "b").ino;
    let d = s.dir(a, "d").ino;
    let f = s.file(b, "f").ino;
    s.file(d, "inside");
    assert_eq!(s.rename((a, "d"), (b, "none"), Exchange), Err(Errno::ENOENT));
    assert_eq!(s.rename((a, "d"), (b, "f"), Exchange), Ok((None, false)));
    assert_eq!(s.lookup(a, "d").map(|x| x.ino), Ok(f));
    assert_eq!(s.lookup(b, "f").map(|x| x.ino), Ok(d));
    assert_eq!(s.lookup(d, "..").map(|x| x.ino), Ok(b));
    let counts = |s: &mut Shard, ino| s.getattr(ino).map(|x| (x.nlink, x.size));
    assert_eq!(counts(&mut s, a), Ok((2, 1)));
    assert_eq!(counts(&mut s, b), Ok((3, 1)));
    assert_eq!(s.rename((ROOT, "a"), (ROOT, "b"), Exchange), Ok((None, false)));
    assert_eq!(s.lookup(ROOT, "a").map(|x| x.ino), Ok(b));
    s.assert_sound();
}

#[test]
fn dots_and_absent_names_do_not_move() {
    let mut s = Shard::new();
    let d = s.dir(ROOT, "d").ino;
    assert_eq!(s.rename((ROOT, "none"), (ROOT, "x"), Replace), Err(Errno::ENOENT));
    assert_eq!(s.rename((d, "."), (ROOT, "x"), Replace), Err(Errno::EBUSY));
    assert_eq!(s.rename((ROOT, "d"), (d, ".."), Replace), Err(Errno::EBUSY));
    assert_eq!(s.rename((ROOT, "d"), (Ino(77), "x"), Replace), Err(Errno::ESTALE));
    s.assert_sound();
}
