//! Re-layout of files: which objects are set aside, when they replace the old ones, and when
//! objects become garbage.

use crate::harness::*;
use proptest::prelude::*;
use tatami_layout::{PieceTiles, Shape, View};
use tatami_wire::meta::{DataState, MetaOp, MetaReply};
use tatami_wire::tiles::{NewPiece, RESERVE_PIECES_MAX};
use tatami_wire::{Access, Attr, Errno, Ino, Layout, NodeId, Piece, Timestamp};

impl Shard {
    fn reserve(&mut self, ino: Ino, nodes: &[u16]) -> Result<(u32, u64), Errno> {
        let nodes = nodes.iter().map(|node| NodeId(*node)).collect();
        match self.apply(MetaOp::Reserve { ino, nodes })? {
            MetaReply::Pieces { first, stamp } => Ok((first, stamp)),
            other => panic!("not pieces: {other:?}"),
        }
    }

    fn relayout(
        &mut self,
        ino: Ino,
        pieces: Vec<NewPiece>,
        base: (u16, u32),
        size: u64,
    ) -> Result<Attr, Errno> {
        let time = Timestamp::from_sec(500);
        let state = DataState { size, blocks: size.div_ceil(512), mtime: time, changed: time };
        let base = (NodeId(base.0), base.1);
        match self.apply(MetaOp::Relayout { ino, pieces, base, state })? {
            MetaReply::Attr(attr) => Ok(attr),
            other => panic!("not attributes: {other:?}"),
        }
    }

    /// One object: the result of `tatami relayout --to whole`.
    fn make_whole(&mut self, ino: Ino, node: u16, number: u32, size: u64) -> Result<Attr, Errno> {
        self.relayout(ino, Vec::new(), (node, number), size)
    }
}

/// Every second block of 10 bytes, from the one with this number.
fn stripe(piece: u32, node: u16, number: u64, stamp: u64, len: u64) -> NewPiece {
    let block = Shape::resized(0, 20, &Shape::bytes(10).expect("shape")).expect("shape");
    let view = View::new(number * 10, 1, block).expect("view");
    let mut tiles = PieceTiles::new(piece);
    let view = tiles.add_view(&view).expect("added");
    tiles.append(stamp, view, 0, len, 0).expect("appended");
    NewPiece { piece, node: NodeId(node), tiles: tiles.encode().into(), blocks: 8 }
}

/// Returns a file of 100 bytes that only client A has open for writing.
fn file(s: &mut Shard) -> Ino {
    let ino = s.create_open(ROOT, "f", Access::BOTH).expect("create").0.ino;
    s.commit(ino, Some(100), false).expect("commit");
    ino
}

/// Returns the same file, striped over the nodes 0 and 2; closed.
fn striped(s: &mut Shard) -> Ino {
    let ino = file(s);
    let (first, stamp) = s.reserve(ino, &[0, 2, 1]).expect("set aside");
    let pieces = vec![stripe(first, 0, 0, stamp + 1, 50), stripe(first + 1, 2, 1, stamp + 1, 50)];
    let attr = s.relayout(ino, pieces, (1, first + 2), 0).expect("laid out");
    assert_eq!((attr.size, attr.blocks), (100, 16));
    assert_eq!(attr.layout, Layout::with_base(NodeId(1), Piece::of_bytes(first + 2), true));
    ino
}

#[test]
fn a_whole_file_is_striped_and_made_whole_again() {
    let mut s = Shard::new();
    let ino = striped(&mut s);
    s.assert_sound();
    assert_eq!(s.dropped(1), [(ino, 0)], "the old base");
    assert!(s.dropped(0).is_empty() && s.dropped(2).is_empty(), "in use");
    let page = s.tiles(ino, 10);
    assert_eq!(
        page.pieces.iter().map(|p| (p.piece, p.node.0)).collect::<Vec<_>>(),
        [(1, 0), (2, 2)]
    );
    // It is completely closed: no client has a mark.
    s.as_client(B).open(ino, Access::BOTH).expect("open");
    let before = s.getattr(ino).expect("attributes");
    let (first, _) = s.reserve(ino, &[0]).expect("set aside");
    assert_eq!(first, 4);
    assert!(s.dropped(0).is_empty(), "not garbage yet");
    assert_eq!(s.getattr(ino), Ok(before), "nobody sees what is set aside");
    let attr = s.make_whole(ino, 0, first, 100).expect("whole");
    assert_eq!(attr.layout, Layout::with_base(NodeId(0), Piece::of_bytes(first), false));
    assert_eq!(attr.size, 100);
    assert!(s.tiles(ino, 10).pieces.is_empty());
    assert!(s.tiles(ino, 10).version > page.version, "who knew the tiles must see it");
    assert_eq!((s.dropped(0), s.dropped(2)), (vec![(ino, 1)], vec![(ino, 3)]));
    assert_eq!(s.dropped(1), [(ino, 0), (ino, 5)], "both old bases");
    s.assert_sound();
    s.meta.commit().expect("commit");
    let mut s = s.reopen();
    s.assert_sound();
    // It behaves as any whole file: written, tiled, cut to nothing, removed.
    s.open(ino, Access::BOTH).expect("open");
    assert_eq!(s.commit(ino, Some(150), false).expect("commit").size, 150);
    let (piece, _) = s.add_pieces(ino, &[(2, 1)]).expect("pieces");
    assert_eq!(piece, 5);
    assert_eq!(s.getattr(ino).expect("attributes").layout, attr.layout.with_tiles(true));
    s.unlink(ROOT, "f", false).expect("unlink");
    assert!(s.garbage(0).contains(&ino));
    assert!(s.dropped(0).contains(&(ino, 7)), "the base has another number than 0");
    s.assert_sound();
}

type Disturbance = (&'static str, Box<dyn Fn(&mut Shard)>);

#[test]
fn whoever_could_change_bytes_is_in_the_way() {
    let mut s = Shard::new();
    let ino = file(&mut s);
    s.as_client(B).open(ino, Access::BOTH).expect("open");
    assert_eq!(s.reserve(ino, &[0]), Err(Errno::EBUSY));
    s.commit(ino, None, true).expect("closed");
    assert_eq!(s.reserve(ino, &[0]), Err(Errno::EBADF), "not open");
    let disturbances: Vec<Disturbance> = vec![
        (
            "a writer that is gone again",
            Box::new(move |s| {
                s.as_client(B).open(ino, Access::BOTH).expect("open");
                s.commit(ino, None, true).expect("closed");
            }),
        ),
        (
            "a writer that created it once more",
            Box::new(move |s| {
                s.as_client(B).create_open(ROOT, "f", Access::WRITE).expect("open");
                s.commit(ino, None, true).expect("closed");
            }),
        ),
        ("a state", Box::new(move |s| drop(s.as_client(B).commit(ino, Some(100), false)))),
        ("a cut", Box::new(move |s| drop(s.as_client(B).cut(ino, 100)))),
        (
            "pieces",
            Box::new(move |s| {
                let (first, _) = s.as_client(B).add_pieces(ino, &[(0, 1)]).expect("pieces");
                let tiles = stripe(first, 0, 0, 1 << 60, 10).tiles;
                let part =
                    tatami_wire::tiles::PieceUpdate { piece: first, tiles, blocks: 1, close: true };
                s.publish(ino, vec![part]).expect("published");
            }),
        ),
        (
            "a writer that died",
            Box::new(move |s| {
                s.as_client(B).open(ino, Access::BOTH).expect("open");
                s.expire(B).expect("expired");
                s.settle(ino, 100).expect("settled");
            }),
        ),
    ];
    for (what, disturb) in disturbances {
        s.as_client(A);
        let (first, _) = s.reserve(ino, &[0]).expect(what);
        disturb(&mut s);
        let before = s.as_client(A).getattr(ino);
        assert_eq!(s.make_whole(ino, 0, first, 100), Err(Errno::EBUSY), "{what}");
        assert_eq!(s.getattr(ino), before, "{what}");
        s.assert_sound();
    }
    // An operation that could change no bytes does not matter.
    let (first, _) = s.reserve(ino, &[0]).expect("set aside");
    s.as_client(B).open(ino, Access::READ).expect("open");
    s.chmod(ino, 0o600).expect("chmod");
    s.rename((ROOT, "f"), (ROOT, "g"), tatami_wire::meta::RenameMode::Replace).expect("rename");
    s.as_client(A).open(ino, Access::BOTH).expect("a capability anew");
    s.make_whole(ino, 0, first, 100).expect("laid out");
    s.assert_sound();
}

#[test]
fn what_is_set_aside_is_garbage_when_its_client_is_gone() {
    let mut s = Shard::new();
    let ino = file(&mut s);
    let (first, _) = s.reserve(ino, &[0, 2]).expect("set aside");
    s.meta.commit().expect("commit");
    let mut s = s.reopen();
    assert!(s.dropped(0).is_empty());
    let flux = MetaOp::ListInFlight { node: NodeId(0), inos: vec![ino] };
    assert_eq!(s.apply(flux), Ok(MetaReply::InFlight(vec![ino])), "a check must not mind");
    // A client that died.
    s.expire(A).expect("expired");
    assert_eq!((s.dropped(0), s.dropped(2)), (vec![(ino, 1)], vec![(ino, 3)]));
    s.settle(ino, 100).expect("settled");
    assert_eq!(s.make_whole(ino, 0, first, 100), Err(Errno::EBADF), "taken for dead");
    // A client that gave up.
    s.as_client(B).open(ino, Access::BOTH).expect("open");
    let (mine, _) = s.reserve(ino, &[0]).expect("set aside");
    assert_eq!(s.make_whole(ino, 0, first, 100), Err(Errno::EBUSY), "it is garbage");
    s.meta.take_garbage_nodes();
    s.commit(ino, None, true).expect("closed");
    assert_eq!(s.meta.take_garbage_nodes(), [NodeId(0)], "housekeeping is worth a nudge");
    assert_eq!(s.dropped(0), [(ino, 1), (ino, Piece::of_bytes(mine).0)]);
    // And one whose file was removed.
    s.open(ino, Access::BOTH).expect("open");
    s.reserve(ino, &[3]).expect("set aside");
    s.unlink(ROOT, "f", false).expect("unlink");
    assert_eq!(s.dropped(3).len(), 1);
    s.assert_sound();
}

#[test]
fn what_does_not_fit_is_refused() {
    let mut s = Shard::new();
    let ino = file(&mut s);
    let dir = s.dir(ROOT, "d").ino;
    assert_eq!(s.reserve(dir, &[0]), Err(Errno::EINVAL));
    assert_eq!(s.reserve(ino, &[]), Err(Errno::EINVAL));
    assert_eq!(s.reserve(ino, &[0; RESERVE_PIECES_MAX + 1]), Err(Errno::EINVAL));
    assert_eq!(s.make_whole(ino, 0, 1, 100), Err(Errno::EBUSY), "nothing was set aside");
    let (first, stamp) = s.reserve(ino, &[0, 2, 1]).expect("set aside");
    let (one, two) = (stripe(first, 0, 0, stamp + 1, 50), stripe(first + 1, 2, 1, stamp + 1, 50));
    let base = (1, first + 2);
    let before = s.getattr(ino);
    for (what, pieces, base, size) in [
        ("too short", vec![one.clone()], base, 0),
        ("too long", vec![one.clone(), two.clone()], base, 101),
        ("twice", vec![one.clone(), one.clone()], base, 100),
        ("as the base, too", vec![one.clone(), two.clone()], (0, first), 0),
        ("on another node", vec![NewPiece { node: NodeId(1), ..one.clone() }], base, 100),
        ("no tiles", vec![NewPiece { tiles: vec![9; 9].into(), ..one.clone() }], base, 100),
        ("far", vec![stripe(first, 0, 0, 1 << 63, 50)], base, 100),
        ("not set aside", vec![], (1, first + 3), 100),
    ] {
        assert_eq!(s.relayout(ino, pieces, base, size), Err(Errno::EINVAL), "{what}");
        assert_eq!(s.getattr(ino), before, "{what}");
    }
    s.as_user(user(7)).open(ino, Access::WRITE).expect_err("not allowed");
    s.as_root().relayout(ino, vec![one, two], base, 0).expect("what does");
    s.assert_sound();
}

#[test]
fn an_answer_that_was_lost_is_given_again() {
    let mut s = Shard::new();
    let ino = file(&mut s);
    let (first, _) = s.reserve(ino, &[0]).expect("set aside");
    let attr = s.make_whole(ino, 0, first, 100);
    s.meta.commit().expect("commit");
    s = s.reopen();
    s.seq -= 1;
    assert_eq!(s.make_whole(ino, 0, first, 100), attr);
}

#[derive(Clone, Debug)]
enum Step {
    Open(bool),
    Close(bool),
    Cut(u64),
    Pieces(u16),
    Reserve(u16),
    Relayout,
    Expire(bool),
    Reopen,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => any::<bool>().prop_map(Step::Open),
        3 => any::<bool>().prop_map(Step::Close),
        1 => (0u64..300).prop_map(Step::Cut),
        1 => (0u16..3).prop_map(Step::Pieces),
        4 => (0u16..3).prop_map(Step::Reserve),
        6 => Just(Step::Relayout),
        1 => any::<bool>().prop_map(Step::Expire),
        1 => Just(Step::Reopen),
    ];
    proptest::collection::vec(step, 1..40)
}

proptest! {
    #![proptest_config(scaled(256))]

    /// A re-layout succeeds exactly if no other client could have changed the file's bytes since
    /// its objects were set aside. In any case no object is both in use and garbage, and none is
    /// neither.
    #[test]
    fn objects_come_in_exactly_if_nobody_could_write(list in steps()) {
        let mut s = Shard::new();
        let ino = file(&mut s);
        s.commit(ino, None, true).expect("closed");
        let client = |first: bool| if first { A } else { B };
        let mut open = [false, false];
        // The object, its node, and whether it may still be used; A alone re-lays out.
        let mut aside: Option<(u32, u16, bool)> = None;
        // All objects that were ever allocated.
        let mut all = vec![(1u16, 0u32)];
        for step in list {
            match step {
                Step::Open(first) => {
                    s.as_client(client(first)).open(ino, Access::BOTH).expect("open");
                    let new = !std::mem::replace(&mut open[usize::from(first)], true);
                    aside = aside.map(|(piece, node, good)| (piece, node, good && !new));
                }
                Step::Close(first) => {
                    s.as_client(client(first)).commit(ino, None, true).expect("closed");
                    open[usize::from(first)] = false;
                }
                Step::Cut(size) => {
                    s.as_client(B).cut(ino, size).expect("cut");
                    aside = aside.map(|(piece, node, _)| (piece, node, false));
                }
                Step::Pieces(node) => {
                    let (first, stamp) = s.as_client(B).add_pieces(ino, &[(node, 1)]).expect("pieces");
                    let tiles = stripe(first, node, 0, stamp + 1, 40).tiles;
                    let part = tatami_wire::tiles::PieceUpdate { piece: first, tiles, blocks: 1, close: true };
                    s.publish(ino, vec![part]).expect("published");
                    all.push((node, Piece::of_bytes(first).0));
                    aside = aside.map(|(piece, node, _)| (piece, node, false));
                }
                Step::Reserve(node) => {
                    let made = s.as_client(A).reserve(ino, &[node]);
                    let unsettled = !s.unsettled().is_empty();
                    prop_assert_eq!(made.is_ok(), open == [false, true] && !unsettled);
                    if let Ok((piece, _)) = made {
                        aside = Some((piece, node, true));
                        all.push((node, Piece::of_bytes(piece).0));
                    }
                }
                Step::Relayout => {
                    let Some((piece, node, good)) = aside else { continue };
                    let before = s.as_client(A).getattr(ino).expect("attributes");
                    let unsettled = !s.unsettled().is_empty();
                    let done = s.make_whole(ino, node, piece, before.size);
                    prop_assert_eq!(done.is_ok(), good && open == [false, true] && !unsettled);
                    if let Ok(attr) = done {
                        prop_assert_eq!(attr.size, before.size);
                        prop_assert_eq!(attr.layout, Layout::with_base(NodeId(node), Piece::of_bytes(piece), false));
                        aside = None;
                        open = [false, false];
                    } else {
                        prop_assert_eq!(s.getattr(ino), Ok(before));
                    }
                }
                Step::Expire(first) => {
                    s.expire(client(first)).expect("expired");
                    open[usize::from(first)] = false;
                    for ino in s.unsettled() {
                        s.settle(ino, 0).expect("settled");
                        aside = aside.map(|(piece, node, _)| (piece, node, false));
                    }
                }
                Step::Reopen => {
                    s.meta.commit().expect("commit");
                    s = s.reopen();
                }
            }
            s.assert_sound();
        }
        s.expire(A).expect("expired");
        s.expire(B).expect("expired");
        let layout = s.getattr(ino).expect("attributes").layout;
        let mut used = vec![(layout.node().0, layout.base().0)];
        used.extend(s.tiles(ino, 9).pieces.iter().map(|p| (p.node.0, Piece::of_bytes(p.piece).0)));
        for (node, object) in all {
            let garbage = s.dropped(node).contains(&(ino, object));
            prop_assert_eq!(garbage, !used.contains(&(node, object)), "{} on {}", object, node);
        }
    }
}
