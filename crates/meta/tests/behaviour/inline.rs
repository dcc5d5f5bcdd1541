//! Policies of directories, and files with their bytes beside the inode.

use crate::harness::*;
use tatami_wire::batch::{BATCH_BYTES_MAX, BatchOp, BatchResult};
use tatami_wire::inline::{InlineOp, InlineReply};
use tatami_wire::meta::{DataState, MetaOp, MetaReply, XattrMode};
use tatami_wire::{
    Access, Attr, Cap, Errno, Ino, Layout, NodeId, SetAttr, SetTime, Timestamp, XattrClass,
};

const INLINE: &str = "user.tatami.inline";
const LIMIT: usize = 4096;

impl Shard {
    fn inline(&mut self, (attr, cap): (&Attr, Cap), op: InlineOp) -> Result<InlineReply, Errno> {
        match self.apply(MetaOp::Inline { ino: attr.ino, cap, op })? {
            MetaReply::Inline(reply) => Ok(reply),
            other => panic!("no reply to it: {other:?}"),
        }
    }

    fn write(&mut self, file: (&Attr, Cap), offset: u64, bytes: &[u8]) -> InlineReply {
        let bytes = bytes.to_vec().into();
        self.inline(file, InlineOp::Write { offset, bytes }).expect("a reply")
    }

    fn read(&mut self, file: (&Attr, Cap), offset: u64, len: u32) -> Vec<u8> {
        match self.inline(file, InlineOp::Read { offset, len }).expect("a reply") {
            InlineReply::Done { bytes, .. } => bytes.into_vec(),
            other => panic!("no bytes: {other:?}"),
        }
    }

    /// Copies the bytes to an object of node 1, as a client does; returns the reply of the shard.
    fn move_out(&mut self, ino: Ino, size: u64, meanwhile: impl FnOnce(&mut Shard)) -> Outcome {
        let number = match self.apply(MetaOp::Reserve { ino, nodes: vec![NodeId(1)] })? {
            MetaReply::Pieces { first, .. } => first,
            other => panic!("no piece: {other:?}"),
        };
        meanwhile(self);
        let time = Timestamp::from_sec(700);
        let state = DataState { size, blocks: 8, mtime: time, changed: time };
        let base = (NodeId(1), number);
        match self.apply(MetaOp::Relayout { ino, pieces: Vec::new(), base, state })? {
            MetaReply::Attr(attr) => Ok(attr),
            other => panic!("no attributes: {other:?}"),
        }
    }
}

type Outcome = Result<Attr, Errno>;

fn is_done(reply: &InlineReply) -> bool {
    matches!(reply, InlineReply::Done { .. })
}

fn make_open(s: &mut Shard, name: &str) -> (Attr, Cap) {
    let (attr, cap, _) = s.create_open(ROOT, name, Access::BOTH).expect("create");
    (attr, cap.expect("it is open"))
}

/// Returns a volume with the policy on its root, and an open file there.
fn with_file() -> (Shard, Attr, Cap) {
    let mut s = Shard::new();
    s.setxattr(ROOT, INLINE, b"4k").expect("set");
    let (attr, cap) = make_open(&mut s, "f");
    (s, attr, cap)
}

#[test]
fn a_policy_is_an_attribute_of_directories_that_new_ones_inherit() {
    let mut s = Shard::new();
    let before = s.dir(ROOT, "before").ino;
    s.setxattr(ROOT, INLINE, b"4k").expect("set");
    assert_eq!(s.getxattr(ROOT, INLINE), Ok(b"4096".to_vec()));
    assert_eq!(s.listxattr(ROOT), Ok(vec![INLINE.into()]));
    assert_eq!(s.getattr(ROOT).expect("attr").xattr_class, XattrClass::Xattrs);
    let below = s.dir(ROOT, "below").ino;
    let deep = s.dir(below, "deep").ino;
    assert_eq!(s.getxattr(deep, INLINE), Ok(b"4096".to_vec()));
    assert_eq!(s.getxattr(before, INLINE), Err(Errno::ENODATA));
    assert!(s.file(deep, "f").layout.is_inline());
    assert!(!s.file(before, "f").layout.is_inline());
    s.setxattr(deep, INLINE, b"0").expect("set");
    assert!(!s.file(deep, "g").layout.is_inline());
    s.removexattr(below, INLINE).expect("removed");
    assert_eq!(s.removexattr(below, INLINE), Err(Errno::ENODATA));
    assert!(!s.file(below, "f").layout.is_inline());
    let mode = |s: &mut Shard, dir, mode| s.setxattr_mode(dir, INLINE, b"8", mode);
    assert_eq!(mode(&mut s, ROOT, XattrMode::Create), Err(Errno::EEXIST));
    assert_eq!(mode(&mut s, below, XattrMode::Replace), Err(Errno::ENODATA));
    s.meta.commit().expect("commit");
    let mut s = s.reopen();
    assert_eq!(s.getxattr(deep, INLINE), Ok(b"0".to_vec()));
    s.assert_sound();
}

#[test]
fn what_is_no_policy_is_refused() {
    let mut s = Shard::new();
    for (name, value) in [(INLINE, "65k"), (INLINE, ""), (INLINE, "-1"), ("user.tatami.x", "1")] {
        assert_eq!(s.setxattr(ROOT, name, value.as_bytes()), Err(Errno::EINVAL), "{name}={value}");
    }
    let file = s.file(ROOT, "f").ino;
    assert_eq!(s.setxattr(file, INLINE, b"4k"), Err(Errno::EINVAL));
    assert_eq!(s.getxattr(file, "user.tatami.x"), Err(Errno::ENODATA));
    let refused = s.as_user(user(7)).setxattr(ROOT, INLINE, b"4k");
    assert_eq!(refused, Err(Errno::EACCES));
}

#[test]
fn bytes_beside_an_inode_are_a_file() {
    let (mut s, attr, cap) = with_file();
    let f = (&attr, cap);
    assert!(is_done(&s.write(f, 10, b"hello")));
    assert_eq!(s.read(f, 0, 100), b"\0\0\0\0\0\0\0\0\0\0hello");
    assert_eq!(s.read(f, 12, 2), b"ll");
    assert_eq!(s.read(f, 15, 2), b"");
    let bytes = b" world".to_vec().into();
    assert!(is_done(&s.inline(f, InlineOp::Append { bytes }).expect("a reply")));
    assert!(is_done(&s.inline(f, InlineOp::SetSize { size: 18 }).expect("a reply")));
    assert!(is_done(&s.inline(f, InlineOp::SetSize { size: 4000 }).expect("a reply")));
    let now = s.getattr(attr.ino).expect("attr");
    assert_eq!((now.size, now.blocks, now.maybe_written_elsewhere), (4000, 1, false));
    assert!(now.mtime > attr.mtime && now.version > attr.version);
    let all = s.read(f, 10, 4000);
    assert_eq!((all.len(), &all[..8]), (3990, &b"hello wo"[..]));
    assert!(all[8..].iter().all(|b| *b == 0), "what was cut does not come back");
    // Another client learns it at once, and a report of the bytes changes nothing.
    let other = s.as_client(B).open(attr.ino, Access::BOTH).expect("open");
    assert_eq!((other.0.size, s.read((&other.0, other.1), 10, 5)), (4000, b"hello".to_vec()));
    s.as_client(A).commit(attr.ino, Some(1), true).expect("commit");
    assert_eq!(s.getattr(attr.ino).expect("attr").size, 4000);
    s.meta.commit().expect("commit");
    let mut s = s.reopen();
    assert_eq!(s.read(f, 10, 5), b"hello");
    s.assert_sound();
    // No client's death makes the shard ask for objects, and nothing of the file is left.
    s.as_client(A).expire(B).expect("expire");
    assert!(s.unsettled().is_empty());
    s.unlink(ROOT, "f", false).expect("unlink");
    s.assert_sound();
    assert!(s.garbage(0).is_empty() && s.garbage(1).is_empty());
}

/// Returns an operation that makes the file `name` of `dir` with these bytes.
fn fill(parent: Ino, name: &str, bytes: &[u8]) -> BatchOp {
    BatchOp::CreateFilled {
        parent,
        name: name.as_bytes().to_vec().into(),
        layout: Layout::whole(NodeId(0)),
        mode: 0o666,
        umask: 0o022,
        bytes: bytes.to_vec().into(),
        set: None,
    }
}

fn read_all(s: &mut Shard, ino: Ino) -> Result<Option<Vec<u8>>, Errno> {
    match s.apply(MetaOp::ReadInline { ino })? {
        MetaReply::Inline(InlineReply::Done { bytes, .. }) => Ok(Some(bytes.into_vec())),
        MetaReply::Inline(InlineReply::Moved { .. }) => Ok(None),
        other => panic!("no bytes: {other:?}"),
    }
}

#[test]
fn a_file_is_made_and_read_with_all_its_bytes_by_one_operation() {
    let mut s = Shard::new();
    let plain = s.dir(ROOT, "plain").ino;
    s.setxattr(ROOT, INLINE, b"4k").expect("set");
    let set = SetAttr { mtime: Some(SetTime::At(Timestamp::from_sec(77))), ..SetAttr::default() };
    let mut op = fill(ROOT, "f", b"all bytes");
    if let BatchOp::CreateFilled { set: with, .. } = &mut op {
        *with = Some(set);
    }
    let Ok(MetaReply::Created { attr, cap: None, created: true }) = s.apply(op.clone().into())
    else {
        panic!("it is not made");
    };
    assert_eq!((attr.size, attr.mode, attr.mtime.sec), (9, 0o644, 77));
    assert!(attr.layout.is_inline() && !attr.maybe_written_elsewhere);
    assert_eq!(read_all(&mut s, attr.ino), Ok(Some(b"all bytes".to_vec())));
    assert_eq!(s.apply(op.into()), Err(Errno::EEXIST));
    // Neither the name nor an inode is left of what cannot be made so.
    for (dir, bytes) in [(ROOT, vec![1; LIMIT + 1]), (plain, vec![1]), (plain, Vec::new())] {
        assert_eq!(s.apply(fill(dir, "g", &bytes).into()), Err(Errno::EXDEV));
        assert_eq!(s.lookup(dir, "g"), Err(Errno::ENOENT));
    }
    // Each operation of a batch by itself.
    let operations = vec![
        fill(ROOT, "a", &[7; LIMIT]),
        fill(plain, "b", b"b"),
        fill(ROOT, "f", b"other"),
        fill(ROOT, "c", b""),
    ];
    let Ok(MetaReply::BatchResults(all)) = s.apply(MetaOp::Batch { operations }) else {
        panic!("no results");
    };
    let made = |result: &BatchResult| match result {
        BatchResult::Created { attr, .. } => Ok((attr.ino, attr.size)),
        BatchResult::Failed(errno) => Err(*errno),
        other => panic!("{other:?}"),
    };
    let all: Vec<_> = all.iter().map(made).collect();
    assert_eq!((all[1], all[2]), (Err(Errno::EXDEV), Err(Errno::EEXIST)));
    let (a, c) = (all[0].expect("made"), all[3].expect("made"));
    assert_eq!((a.1, c.1), (LIMIT as u64, 0));
    assert_eq!(read_all(&mut s, c.0), Ok(Some(Vec::new())));
    let object = s.file(plain, "object").ino;
    assert_eq!(read_all(&mut s, object), Ok(None));
    // A batch of reads stops where its reply is full.
    let operations = vec![BatchOp::ReadInline { ino: a.0 }; BATCH_BYTES_MAX / LIMIT + 2];
    let Ok(MetaReply::BatchResults(read)) = s.apply(MetaOp::Batch { operations }) else {
        panic!("no results");
    };
    let done = read.iter().filter(|result| **result != BatchResult::Busy);
    assert_eq!(done.count(), BATCH_BYTES_MAX / LIMIT);
    s.chmod(attr.ino, 0o600).expect("chmod");
    s.as_user(user(7));
    assert_eq!(read_all(&mut s, attr.ino), Err(Errno::EACCES));
    assert_eq!(read_all(&mut s, a.0).map(|bytes| bytes.map(|b| b.len())), Ok(Some(LIMIT)));
    assert_eq!(s.apply(fill(ROOT, "of-user", b"x").into()), Err(Errno::EACCES));
    s.as_root();
    s.meta.commit().expect("commit");
    let mut s = s.reopen();
    assert_eq!(read_all(&mut s, attr.ino), Ok(Some(b"all bytes".to_vec())));
    s.assert_sound();
}

#[test]
fn a_capability_decides_what_may_be_done() {
    let (mut s, attr, _) = with_file();
    let (_, reads) = s.open(attr.ino, Access::READ).expect("open");
    let write = InlineOp::Write { offset: 0, bytes: b"x".to_vec().into() };
    assert_eq!(s.inline((&attr, reads), write), Err(Errno::EACCES));
    let (other, of_other) = make_open(&mut s, "g");
    assert_eq!(s.inline((&attr, of_other), InlineOp::Stat), Err(Errno::EKEYREJECTED));
    assert!(s.inline((&other, of_other), InlineOp::Stat).is_ok());
}

#[test]
fn a_file_beyond_its_limit_moves_if_nothing_changed_meanwhile() {
    let (mut s, attr, cap) = with_file();
    let f = (&attr, cap);
    assert!(is_done(&s.write(f, 0, &[7; LIMIT])));
    for reply in [
        s.write(f, 1, &[7; LIMIT]),
        s.inline(f, InlineOp::Append { bytes: vec![1].into() }).expect("a reply"),
        s.inline(f, InlineOp::SetSize { size: LIMIT as u64 + 1 }).expect("a reply"),
        s.write(f, u64::MAX, b"x"),
    ] {
        assert_eq!(reply, InlineReply::TooLarge);
    }
    let other = s.as_client(B).open(attr.ino, Access::BOTH).expect("open");
    s.as_client(A);
    let changed = s.move_out(attr.ino, LIMIT as u64, |s| {
        assert!(is_done(&s.as_client(B).write((&other.0, other.1), 5, b"new")));
        s.as_client(A);
    });
    assert_eq!(changed, Err(Errno::EBUSY), "the copy is not the file any more");
    assert_eq!(s.read(f, 4, 5), b"\x07new\x07");
    let short = s.move_out(attr.ino, 5, |_| {});
    assert_eq!(short, Err(Errno::EINVAL), "a copy of another length");
    let moved = s.move_out(attr.ino, LIMIT as u64, |_| {}).expect("moved");
    assert!(!moved.layout.is_inline() && !moved.layout.is_tiled());
    assert_eq!((moved.layout.node(), moved.size), (NodeId(1), LIMIT as u64));
    let place = InlineReply::Moved { layout: moved.layout, size: LIMIT as u64 };
    assert_eq!(s.write(f, 0, b"x"), place);
    let reply = s.as_client(B).inline((&other.0, other.1), InlineOp::Stat);
    assert_eq!(reply, Ok(place));
    s.assert_sound();
    // Both clients still have it open for writing, and their reports count from now on.
    s.as_client(A).commit(attr.ino, Some(9000), true).expect("commit");
    assert_eq!(s.getattr(attr.ino).expect("attr").size, 9000);
    s.as_client(B).commit(attr.ino, None, true).expect("commit");
    s.as_client(A).unlink(ROOT, "f", false).expect("unlink");
    s.assert_sound();
    assert_eq!(s.garbage(1), [attr.ino]);
}

/// Two clients move a file at the same time, and bytes change in between without a change of size.
#[test]
fn an_old_copy_of_another_client_does_not_become_the_file() {
    let (mut s, attr, cap) = with_file();
    assert!(is_done(&s.write((&attr, cap), 0, b"old")));
    let other = s.as_client(B).open(attr.ino, Access::BOTH).expect("open");
    let old_copy = s.as_client(A).move_out(attr.ino, 3, |s| {
        assert!(is_done(&s.as_client(B).write((&other.0, other.1), 0, b"new")));
        // The other one begins, and has not ended when this one does.
        let reserve = MetaOp::Reserve { ino: attr.ino, nodes: vec![NodeId(1)] };
        assert!(matches!(s.apply(reserve), Ok(MetaReply::Pieces { .. })));
        s.as_client(A);
    });
    assert_eq!(old_copy, Err(Errno::EBUSY), "the copy was made before the change");
    assert_eq!(s.read((&attr, cap), 0, 3), b"new");
    s.as_client(B).move_out(attr.ino, 3, |_| {}).expect("moved");
    for client in [A, B] {
        s.as_client(client).commit(attr.ino, None, true).expect("closed");
    }
    s.assert_sound();
}

/// There is nothing to copy, whatever makes the file too large: a write, a cut, or bytes that are
/// too many for a request.
#[test]
fn an_empty_file_gets_an_object_with_the_first_bytes_above_the_limit() {
    let large = vec![1; LIMIT + 1];
    let leaves = || {
        [
            InlineOp::Write { offset: 0, bytes: large.clone().into() },
            InlineOp::Write { offset: LIMIT as u64, bytes: vec![1].into() },
            InlineOp::Append { bytes: large.clone().into() },
            InlineOp::SetSize { size: LIMIT as u64 + 1 },
            InlineOp::Leave,
        ]
    };
    for (op, engine) in leaves().into_iter().zip(["file", "region"].iter().cycle()) {
        let (mut s, _, _) = with_file();
        s.setxattr(ROOT, "user.tatami.engine", engine.as_bytes()).expect("set");
        let (attr, cap) = make_open(&mut s, "g");
        let read = s.open(attr.ino, Access::READ).expect("open").1;
        assert_eq!(s.inline((&attr, read), op.clone()), Err(Errno::EACCES));
        // Another client copies the file as it is, for a move that does not happen.
        let other = s.as_client(B).open(attr.ino, Access::BOTH).expect("open");
        let copy = s.move_out(attr.ino, 0, |s| {
            let reply = s.as_client(A).inline((&attr, cap), op.clone()).expect("a reply");
            let now = s.getattr(attr.ino).expect("attr").layout;
            assert_eq!(reply, InlineReply::Moved { layout: now, size: 0 }, "{op:?}");
            assert!(!now.is_inline() && !now.is_tiled() && now.node() == attr.layout.node());
            assert_eq!(now.base().is_in_region(), *engine == "region");
            s.as_client(B);
        });
        assert_eq!(copy, Err(Errno::EBUSY), "{op:?}");
        let moved = s.inline((&other.0, other.1), InlineOp::Stat).expect("a reply");
        assert!(matches!(moved, InlineReply::Moved { .. }));
        // The reports of its writers count from now on.
        s.as_client(A).commit(attr.ino, Some(9000), true).expect("commit");
        s.as_client(B).commit(attr.ino, None, true).expect("commit");
        assert_eq!(s.getattr(attr.ino).expect("attr").size, 9000);
        s.assert_sound();
        s.as_client(A).unlink(ROOT, "g", false).expect("unlink");
        s.assert_sound();
        let garbage = s.garbage(attr.layout.node().0);
        assert!(garbage.contains(&attr.ino), "its object is removed: {op:?}");
    }
    // Bytes must be copied first.
    let (mut s, attr, cap) = with_file();
    s.write((&attr, cap), 0, b"x");
    for op in leaves() {
        assert_eq!(s.inline((&attr, cap), op), Ok(InlineReply::TooLarge));
    }
}

#[test]
fn a_file_of_several_writers_is_not_beside_its_inode() {
    let (mut s, attr, cap) = with_file();
    let add = |ino| MetaOp::AddPieces { ino, nodes: vec![(NodeId(0), 1)] };
    assert!(matches!(s.apply(add(attr.ino)), Ok(MetaReply::Pieces { .. })));
    let now = s.getattr(attr.ino).expect("attr");
    assert!(now.layout.is_tiled() && !now.layout.is_inline());
    let reply = s.inline((&attr, cap), InlineOp::Stat);
    assert_eq!(reply, Ok(InlineReply::Moved { layout: now.layout, size: 0 }));
    let (other, cap) = make_open(&mut s, "g");
    s.write((&other, cap), 0, b"bytes");
    assert_eq!(s.apply(add(other.ino)), Err(Errno::EXDEV), "its bytes must be copied first");
    s.assert_sound();
}

/// A check finds bytes without their inode, bytes of a file that has objects, a wrong size, and
/// bytes that do not read.
#[test]
fn a_check_finds_wrong_bytes_beside_inodes() {
    use tatami_meta::store::Store;
    let key = |ino: Ino| [b"B".as_slice(), &ino.0.to_be_bytes()].concat();
    for (what, at, value) in [
        ("that is not there", None, vec![1, 7]),
        ("its bytes are in objects", Some("plain"), vec![1, 7]),
        ("it says 3", Some("f"), vec![1, 7, 7, 7, 7, 7]),
        ("they are lost", Some("f"), vec![9, 7, 7, 7]),
    ] {
        let (mut s, attr, cap) = with_file();
        s.write((&attr, cap), 0, b"abc");
        s.setxattr(ROOT, INLINE, b"0").expect("set");
        s.file(ROOT, "plain");
        s.meta.commit().expect("commit");
        s.assert_sound();
        let ino =
            at.map_or(Ino(attr.ino.0 + 1000), |name| s.lookup(ROOT, name).expect("there").ino);
        s.meta.store_mut().corrupt_pair(&(key(ino), Some(value)));
        let mut s = s.reopen();
        let found = s.check(1000, true);
        assert!(found.len() == 1 && found[0].what.contains(what), "{what}: {found:?}");
        s.assert_sound();
        let _ = s.meta.store_mut().get(&key(ino)).expect("read");
    }
}
