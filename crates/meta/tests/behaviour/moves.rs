//! Moves of files to where a policy wants them: beside the inode, to a region, to a disk.

use crate::harness::*;
use tatami_wire::inline::{InlineOp, InlineReply};
use tatami_wire::meta::{Bytes, DataState, MetaOp, MetaReply};
use tatami_wire::moves::{InlineTerms, MoveStart, MoveTarget, MovedBytes};
use tatami_wire::policy::INLINE_MAX;
use tatami_wire::{Access, Attr, Cap, Errno, Ino, NodeId, Piece, Timestamp};

const TERMS: InlineTerms = InlineTerms { limit: 4096, leaves_to_region: true };

impl Shard {
    fn begin(&mut self, ino: Ino, to: MoveTarget) -> Result<MoveStart, Errno> {
        match self.apply(MetaOp::BeginMove { ino, to })? {
            MetaReply::MoveBegun(start) => Ok(start),
            other => panic!("not the begin of a move: {other:?}"),
        }
    }

    fn finish(&mut self, ino: Ino, moved: MovedBytes) -> Result<Attr, Errno> {
        match self.apply(MetaOp::FinishMove { ino, moved })? {
            MetaReply::Attr(attr) => Ok(attr),
            other => panic!("not attributes: {other:?}"),
        }
    }

    fn put_inside(&mut self, ino: Ino, bytes: &[u8]) -> Result<Attr, Errno> {
        let moved = MovedBytes::Inode { terms: TERMS, bytes: Bytes::from(bytes.to_vec()) };
        self.finish(ino, moved)
    }

    /// Moves the file to an object of node 1, and returns its number, too.
    fn put_outside(&mut self, ino: Ino, in_region: bool, size: u64) -> Result<(Attr, u32), Errno> {
        let node = NodeId(1);
        let start =
            self.begin(ino, MoveTarget::Object { node, region_rule: in_region.then_some(0) })?;
        let MoveStart::Copies { number } = start else { panic!("{start:?}") };
        let time = Timestamp::from_sec(500);
        let state = DataState { size, blocks: 8, mtime: time, changed: time };
        Ok((self.finish(ino, MovedBytes::Object { node, number, state })?, number))
    }

    fn read_inside(&mut self, ino: Ino) -> InlineReply {
        let (_, cap): (Attr, Cap) = self.open(ino, Access::READ).expect("open");
        let op = InlineOp::Read { offset: 0, len: INLINE_MAX as u32 };
        match self.apply(MetaOp::Inline { ino, cap, op }) {
            Ok(MetaReply::Inline(reply)) => reply,
            other => panic!("{other:?}"),
        }
    }
}

/// A file of `size` bytes with an object on node 0, which only client A has open for writing.
fn file(s: &mut Shard, size: u64) -> Ino {
    let ino = s.create_open(ROOT, "f", Access::BOTH).expect("create").0.ino;
    s.commit(ino, Some(size), false).expect("commit");
    ino
}

#[test]
fn a_file_moves_into_its_inode_and_out_again() {
    let mut s = Shard::new();
    let ino = file(&mut s, 5);
    let before = s.getattr(ino).expect("attributes");
    let start = s.begin(ino, MoveTarget::Inode(TERMS));
    assert_eq!(start, Ok(MoveStart::Copies { number: 0 }));
    let attr = s.put_inside(ino, b"hello").expect("moved");
    assert!(attr.layout.is_inline());
    assert_eq!((attr.size, attr.mtime, attr.ctime), (5, before.mtime, before.ctime));
    assert_eq!(s.dropped(1), [(ino, 0)], "the old object");
    match s.read_inside(ino) {
        InlineReply::Done { bytes, .. } => assert_eq!(bytes.as_slice(), b"hello"),
        other => panic!("{other:?}"),
    }
    s.assert_sound();
    // It leaves the inode for an object with a new number, since the old one may still be garbage.
    s.open(ino, Access::BOTH).expect("open");
    let (attr, number) = s.put_outside(ino, true, 5).expect("moved");
    assert_eq!(attr.layout.base(), Piece::of_bytes(number));
    assert!(attr.layout.base().is_in_region() && number != Piece::region_number(0));
    s.commit(ino, None, true).expect("closed");
    s.assert_sound();
    // From the region to the disk.
    s.open(ino, Access::BOTH).expect("open");
    let (attr, _) = s.put_outside(ino, false, 5).expect("moved");
    assert!(!attr.layout.base().is_in_region() && !attr.layout.is_inline());
    assert_eq!(attr.mtime, before.mtime);
    s.meta.commit().expect("commit");
    let mut s = s.reopen();
    s.unlink(ROOT, "f", false).expect("unlink");
    s.assert_sound();
}

#[test]
fn a_file_with_an_object_stays_while_another_client_has_it_open() {
    let mut s = Shard::new();
    let ino = file(&mut s, 5);
    for access in [Access::READ, Access::BOTH] {
        s.as_client(B).open_noted(ino, access).expect("open");
        s.as_client(A);
        assert_eq!(s.begin(ino, MoveTarget::Inode(TERMS)), Err(Errno::EBUSY), "{access:?}");
        let to = MoveTarget::Object { node: NodeId(1), region_rule: Some(0) };
        assert_eq!(s.begin(ino, to), Err(Errno::EBUSY), "{access:?}");
        let closed = |inos: &[Ino], read: &[Ino]| MetaOp::ReportClosed {
            inos: inos.to_vec(),
            empty: Vec::new(),
            read: read.to_vec(),
        };
        let op = if access.write { closed(&[ino], &[]) } else { closed(&[], &[ino]) };
        s.as_client(B).apply(op).expect("closed");
        s.as_client(A);
        // An open in between is noticed in the end.
        s.begin(ino, MoveTarget::Inode(TERMS)).expect("nobody has it open");
        s.as_client(B).open_noted(ino, access).expect("open");
        s.as_client(A);
        assert_eq!(s.put_inside(ino, b"hello"), Err(Errno::EBUSY), "{access:?}");
        let op = if access.write { closed(&[ino], &[]) } else { closed(&[], &[ino]) };
        s.as_client(B).apply(op).expect("closed");
        s.as_client(A);
    }
    s.begin(ino, MoveTarget::Inode(TERMS)).expect("nobody has it open");
    s.commit(ino, Some(6), false).expect("changed by its own client");
    s.assert_sound();
    assert!(!s.getattr(ino).expect("attributes").layout.is_inline());
}

#[test]
fn what_is_beside_an_inode_changes_its_terms_or_leaves_while_others_write() {
    let mut s = Shard::new();
    s.setxattr(ROOT, "user.tatami.inline", b"4k").expect("set");
    let (attr, cap, _) = s.create_open(ROOT, "f", Access::BOTH).expect("create");
    let (ino, cap) = (attr.ino, cap.expect("open"));
    let write = |s: &mut Shard| {
        let op = InlineOp::Write { offset: 0, bytes: b"hello".to_vec().into() };
        s.apply(MetaOp::Inline { ino, cap, op }).expect("written");
    };
    write(&mut s);
    let stays = |s: &mut Shard, limit, leaves_to_region| {
        s.begin(ino, MoveTarget::Inode(InlineTerms { limit, leaves_to_region }))
    };
    assert_eq!(stays(&mut s, 4096, false), Ok(MoveStart::Stays { changed: false }));
    assert_eq!(stays(&mut s, 100, true), Ok(MoveStart::Stays { changed: true }));
    assert_eq!(stays(&mut s, 100, true), Ok(MoveStart::Stays { changed: false }));
    assert_eq!(stays(&mut s, 4, true), Err(Errno::EFBIG));
    assert_eq!(stays(&mut s, 0, true), Err(Errno::EINVAL));
    assert_eq!(stays(&mut s, INLINE_MAX as u32 + 1, true), Err(Errno::EINVAL));
    // Another user's file.
    let to = MoveTarget::Inode(TERMS);
    assert_eq!(s.as_client(B).as_user(user(7)).begin(ino, to), Err(Errno::EACCES));
    // A client that has it open too: its write ends the move.
    s.as_root().open(ino, Access::BOTH).expect("open");
    let node = NodeId(1);
    let start = s.begin(ino, MoveTarget::Object { node, region_rule: Some(0) }).expect("begun");
    let MoveStart::Copies { number } = start else { panic!("{start:?}") };
    write(s.as_client(A));
    let time = Timestamp::from_sec(500);
    let state = DataState { size: 5, blocks: 8, mtime: time, changed: time };
    let moved = MovedBytes::Object { node, number, state };
    assert_eq!(s.as_client(B).finish(ino, moved), Err(Errno::EBUSY));
    s.put_outside(ino, true, 5).expect("moved");
    s.commit(ino, None, true).expect("closed");
    s.as_client(A).commit(ino, Some(9), true).expect("closed");
    assert_eq!(s.getattr(ino).expect("attributes").size, 9);
    s.assert_sound();
}

#[test]
fn a_copy_of_another_size_and_a_file_in_pieces_are_refused() {
    let mut s = Shard::new();
    let ino = file(&mut s, 5);
    s.begin(ino, MoveTarget::Inode(TERMS)).expect("begun");
    assert_eq!(s.put_inside(ino, b"hell"), Err(Errno::EINVAL));
    let large = MovedBytes::Inode {
        terms: InlineTerms { limit: 4, ..TERMS },
        bytes: Bytes::from(b"hello".to_vec()),
    };
    assert_eq!(s.finish(ino, large), Err(Errno::EFBIG));
    s.as_client(B);
    assert_eq!(s.put_inside(ino, b"hello"), Err(Errno::EBADF), "it is not open there");
    s.as_client(A);
    s.put_inside(ino, b"hello").expect("moved");
    assert_eq!(s.put_inside(ino, b"hello"), Err(Errno::EBADF), "it is closed");
    let (attr, ..) = s.create_open(ROOT, "g", Access::BOTH).expect("create");
    let nodes = vec![(NodeId(0), 1)];
    s.apply(MetaOp::AddPieces { ino: attr.ino, nodes }).expect("added");
    s.commit(attr.ino, None, true).expect("closed");
    s.open(attr.ino, Access::BOTH).expect("open");
    let to = MoveTarget::Object { node: NodeId(1), region_rule: Some(0) };
    let refused = s.begin(attr.ino, to);
    assert!(matches!(refused, Err(Errno::EINVAL | Errno::EBUSY)), "{refused:?}");
    s.assert_sound();
}

/// A file that has lost its bytes and is in pieces then has a base that is no old garbage.
#[test]
fn a_file_that_had_an_object_gets_another_base() {
    let mut s = Shard::new();
    let ino = file(&mut s, 0);
    s.begin(ino, MoveTarget::Inode(TERMS)).expect("begun");
    s.put_inside(ino, b"").expect("moved");
    s.open(ino, Access::BOTH).expect("open");
    s.apply(MetaOp::AddPieces { ino, nodes: vec![(NodeId(0), 1)] }).expect("added");
    let attr = s.getattr(ino).expect("attributes");
    assert!(attr.layout.is_tiled() && attr.layout.base() != Piece::BASE, "{:?}", attr.layout);
    s.assert_sound();
}
