//! Tiled files: pieces, tiles, cuts, and their removal.

use crate::harness::*;
use proptest::prelude::*;
use tatami_layout::{PieceTiles, Shape, TileIndex, View};
use tatami_meta::store::Store;
use tatami_wire::meta::{DataState, MetaOp, MetaReply};
use tatami_wire::tiles::{
    ADD_PIECES_MAX, Cut, PIECES_MAX, PieceGrowth, PieceInfo, PieceUpdate, TilePage,
};
use tatami_wire::{Access, Attr, Errno, Ino, NodeId, Piece, SetAttr, Timestamp};

impl Shard {
    pub fn add_pieces(&mut self, ino: Ino, nodes: &[(u16, u32)]) -> Result<(u32, u64), Errno> {
        let nodes = nodes.iter().map(|(node, n)| (NodeId(*node), *n)).collect();
        match self.apply(MetaOp::AddPieces { ino, nodes })? {
            MetaReply::Pieces { first, stamp } => Ok((first, stamp)),
            other => panic!("not pieces: {other:?}"),
        }
    }

    pub fn publish(&mut self, ino: Ino, parts: Vec<PieceUpdate>) -> Result<Attr, Errno> {
        self.publish_cuts(ino, parts, Vec::new())
    }

    fn publish_cuts(
        &mut self,
        ino: Ino,
        parts: Vec<PieceUpdate>,
        cuts: Vec<Cut>,
    ) -> Result<Attr, Errno> {
        match self.apply(MetaOp::Publish { ino, updates: parts, cuts, base: None })? {
            MetaReply::Attr(attr) => Ok(attr),
            other => panic!("not attributes: {other:?}"),
        }
    }

    pub fn tiles(&mut self, ino: Ino, step: u32) -> TilePage {
        let mut all = TilePage::default();
        let mut after = 0;
        loop {
            match self.apply(MetaOp::ListTiles { ino, after, limit: step }) {
                Ok(MetaReply::Tiles(mut page)) => {
                    after = page.pieces.last().map_or(after, |p| p.piece);
                    page.pieces.splice(0..0, std::mem::take(&mut all.pieces));
                    page.cuts.splice(0..0, std::mem::take(&mut all.cuts));
                    all = page;
                    if all.end {
                        return all;
                    }
                }
                other => panic!("not tiles: {other:?}"),
            }
        }
    }

    pub fn dropped(&mut self, node: u16) -> Vec<(Ino, u32)> {
        match self.apply(MetaOp::ListGarbagePieces { node: NodeId(node), limit: 100 }) {
            Ok(MetaReply::GarbagePieces(found)) => {
                found.into_iter().map(|(ino, object)| (ino, object.0)).collect()
            }
            other => panic!("not garbage: {other:?}"),
        }
    }

    pub fn cut(&mut self, ino: Ino, size: u64) -> Result<Attr, Errno> {
        let changed = Some(Timestamp::from_sec(self.now));
        self.setattr(
            ino,
            SetAttr { size: Some(size), blocks: Some(0), changed, ..SetAttr::default() },
        )
    }
}

/// Tiles of one rank: `len` bytes of every fourth block of 8 bytes, from the block of the rank.
fn strided(rank: u32, stamp: u64, len: u64) -> Vec<u8> {
    let block = Shape::resized(0, 32, &Shape::bytes(8).expect("shape")).expect("shape");
    let view = View::new(u64::from(rank) * 8, 1, block).expect("view");
    let mut tiles = PieceTiles::new(rank);
    let view = tiles.add_view(&view).expect("added");
    tiles.append(stamp, view, 0, len, 0).expect("appended");
    tiles.encode()
}

/// One run of bytes.
fn run(rank: u32, stamp: u64, offset: u64, len: u64) -> Vec<u8> {
    let mut tiles = PieceTiles::new(rank);
    let view = tiles.add_view(&View::all_bytes()).expect("added");
    tiles.append(stamp, view, offset, len, 0).expect("appended");
    tiles.encode()
}

fn part(piece: u32, tiles: Vec<u8>, close: bool) -> PieceUpdate {
    PieceUpdate { piece, tiles: tiles.into(), blocks: 8, close }
}

fn index(page: &TilePage) -> TileIndex {
    let decode = |p: &PieceInfo| match p.tiles.is_empty() {
        true => PieceTiles::new(0),
        false => PieceTiles::decode(&p.tiles).expect("reads"),
    };
    let pieces = page.pieces.iter().map(|p| (Piece::of_bytes(p.piece), decode(p))).collect();
    let cuts = page.cuts.iter().map(|c| tatami_layout::TileCut { stamp: c.stamp, size: c.size });
    TileIndex::with_base(pieces, cuts.collect(), page.base_size, u64::MAX)
}

/// Returns a file of 100 bytes that client A has open for writing, with four open pieces.
fn tiled(s: &mut Shard) -> (Ino, u32, u64) {
    let ino = s.create_open(ROOT, "f", Access::BOTH).expect("create").0.ino;
    s.commit(ino, Some(100), false).expect("commit");
    let (first, stamp) = s.add_pieces(ino, &[(0, 1), (1, 1), (2, 2)]).expect("pieces");
    (ino, first, stamp)
}

#[test]
fn a_file_becomes_tiled_and_grows_with_its_tiles() {
    let mut s = Shard::new();
    let (ino, first, stamp) = tiled(&mut s);
    assert_eq!(first, 1);
    let attr = s.getattr(ino).expect("attributes");
    assert!(attr.layout.is_tiled());
    assert_eq!((attr.layout.node(), attr.size), (LAYOUT.node(), 100), "the base is where it was");
    let page = s.tiles(ino, 3);
    let nodes: Vec<_> = page.pieces.iter().map(|p| (p.piece, p.node.0, p.growth)).collect();
    let open = PieceGrowth::Open;
    assert_eq!(nodes, [(1, 0, open), (2, 1, open), (3, 2, open), (4, 2, open)]);
    let parts = (0..4).map(|r| part(first + r, strided(r, stamp + 1, 80), false)).collect();
    let attr = s.publish(ino, parts).expect("published");
    assert_eq!((attr.size, attr.blocks), (320, 1 + 4 * 8), "base and pieces");
    let page = s.tiles(ino, 1);
    assert_eq!(index(&page).size(), 320);
    s.assert_sound();
    // Once closed, their journals go, and no client adds to them.
    let parts = (0..4).map(|r| part(first + r, strided(r, stamp + 1, 160), true)).collect();
    assert_eq!(s.publish(ino, parts).expect("published").size, 640);
    let again = s.publish(ino, vec![part(first, strided(0, stamp + 2, 8), false)]);
    assert_eq!(again, Err(Errno::ESTALE));
    assert_eq!(s.dropped(0), [(ino, 2)]);
    assert_eq!(s.dropped(2), [(ino, 6), (ino, 8)]);
    s.commit(ino, None, true).expect("closed");
    assert!(s.unsettled().is_empty(), "nothing is left to be learnt");
    let mut s = {
        s.meta.commit().expect("commit");
        s.reopen()
    };
    assert_eq!(s.getattr(ino).expect("attributes").size, 640);
    assert_eq!(s.tiles(ino, 100).pieces.len(), 4);
    let done = MetaOp::ReportPiecesRemoved { node: NodeId(2), pieces: vec![(ino, Piece(6))] };
    assert_eq!(s.apply(done), Ok(MetaReply::Done));
    assert_eq!(s.dropped(2), [(ino, 8)]);
    s.assert_sound();
}

#[test]
fn what_no_writer_could_have_is_refused() {
    let mut s = Shard::new();
    let (ino, first, stamp) = tiled(&mut s);
    let dir = s.dir(ROOT, "d").ino;
    assert_eq!(s.add_pieces(dir, &[(0, 1)]), Err(Errno::EINVAL));
    assert_eq!(s.add_pieces(ino, &[]), Err(Errno::EINVAL));
    assert_eq!(s.add_pieces(ino, &[(0, ADD_PIECES_MAX), (1, 1)]), Err(Errno::EINVAL));
    assert_eq!(s.add_pieces(ino, &[(0, u32::MAX), (1, u32::MAX)]), Err(Errno::EINVAL));
    let good = || run(0, stamp + 1, 0, 10);
    assert_eq!(s.publish(ino, vec![part(9, good(), false)]), Err(Errno::ESTALE));
    assert_eq!(s.publish(ino, vec![part(first, vec![9; 30], false)]), Err(Errno::EINVAL));
    let twice = vec![part(first, good(), false), part(first, good(), false)];
    assert_eq!(s.publish(ino, twice), Err(Errno::EINVAL));
    let late = vec![part(first, run(0, 1 << 63, 0, 10), false)];
    assert_eq!(s.publish(ino, late), Err(Errno::EINVAL));
    let far = vec![Cut { stamp: 1 << 63, size: 1 }];
    assert_eq!(s.publish_cuts(ino, Vec::new(), far), Err(Errno::EINVAL));
    // A client that could not open it for writing cannot add to it either.
    s.as_client(B).as_user(user(7));
    assert_eq!(s.add_pieces(ino, &[(0, 1)]), Err(Errno::EACCES));
    assert_eq!(s.publish(ino, vec![part(first, good(), false)]), Err(Errno::EACCES));
    s.as_client(A).as_root();
    let whole = s.file(ROOT, "whole").ino;
    assert_eq!(s.publish(whole, vec![part(1, good(), false)]), Err(Errno::ESTALE));
    assert!(s.tiles(whole, 10).pieces.is_empty());
    s.assert_sound();
}

#[test]
fn a_file_has_only_so_many_pieces() {
    let mut s = Shard::new();
    let ino = s.create_open(ROOT, "f", Access::BOTH).expect("create").0.ino;
    for _ in 0..PIECES_MAX / ADD_PIECES_MAX {
        s.add_pieces(ino, &[(0, ADD_PIECES_MAX)]).expect("pieces");
    }
    assert_eq!(s.add_pieces(ino, &[(0, 1)]), Err(Errno::EFBIG));
}

#[test]
fn a_cut_takes_tiles_and_what_comes_later_stays() {
    let mut s = Shard::new();
    let (ino, first, stamp) = tiled(&mut s);
    s.publish(ino, vec![part(first, run(0, stamp + 1, 50, 950), false)]).expect("published");
    assert_eq!(s.cut(ino, 600).expect("cut").size, 600);
    assert_eq!(index(&s.tiles(ino, 9)).size(), 600);
    assert_eq!(s.cut(ino, 800).expect("longer").size, 800);
    // Its owner does not know of the cut, and reports the same once more.
    let attr = s.publish(ino, vec![part(first, run(0, stamp + 1, 50, 950), false)]);
    assert_eq!(attr.expect("published").size, 800);
    let (second, stamp) = s.add_pieces(ino, &[(3, 1)]).expect("pieces");
    let attr = s.publish(ino, vec![part(second, run(0, stamp + 1, 900, 10), true)]);
    assert_eq!(attr.expect("published").size, 910, "written after the cuts");
    let page = s.tiles(ino, 9);
    let found = index(&page).lookup(550, 400);
    assert_eq!(found[0].piece, Some(Piece::of_bytes(first)));
    assert_eq!(found[0].len, 50, "up to the first cut");
    assert_eq!(found.last().map(|f| (f.file_offset, f.len)), Some((900, 10)));
    let cuts = vec![Cut { stamp: stamp + 5, size: 20 }];
    assert_eq!(s.publish_cuts(ino, Vec::new(), cuts).expect("published").size, 20);
    s.assert_sound();
}

#[test]
fn cut_to_nothing_a_file_is_whole_again_once_nobody_adds_to_it() {
    let mut s = Shard::new();
    let (ino, first, stamp) = tiled(&mut s);
    let parts = (0..4).map(|r| part(first + r, strided(r, stamp + 1, 80), r > 0)).collect();
    s.publish(ino, parts).expect("published");
    let attr = s.cut(ino, 0).expect("cut");
    assert_eq!((attr.size, attr.layout.is_tiled()), (0, true), "one piece is open");
    assert_eq!(s.tiles(ino, 9).pieces.len(), 1);
    assert_eq!(s.dropped(1), [(ino, 3), (ino, 4)], "bytes and journal");
    let attr = s.publish(ino, vec![part(first, strided(0, stamp + 1, 80), true)]);
    assert_eq!(attr.expect("published").size, 0, "it was written before the cut");
    let attr = s.cut(ino, 0).expect("cut");
    assert_eq!(attr.layout, LAYOUT);
    assert_eq!(s.commit(ino, Some(7), false).expect("commit").size, 7, "as any whole file");
    s.assert_sound();
    // New pieces do not get old numbers: garbage has those.
    assert_eq!(s.add_pieces(ino, &[(1, 1)]).expect("pieces").0, 5);
    assert_eq!(s.getattr(ino).expect("attributes").size, 7);
    s.assert_sound();
}

#[test]
fn the_base_is_told_apart() {
    let mut s = Shard::new();
    let (ino, first, stamp) = tiled(&mut s);
    s.publish(ino, vec![part(first, run(0, stamp + 1, 0, 500), false)]).expect("published");
    assert_eq!(s.commit(ino, Some(40), false).expect("commit").size, 500, "shorter than the tiles");
    assert_eq!(s.commit(ino, Some(700), false).expect("commit").size, 700);
    let old = DataState {
        size: 9,
        blocks: 0,
        mtime: Timestamp::from_sec(1),
        changed: Timestamp::from_sec(1),
    };
    let op = MetaOp::Commit { ino, state: Some(old), close: false };
    assert!(matches!(s.apply(op), Ok(MetaReply::Attr(attr)) if attr.size == 700), "no news");
    s.assert_sound();
}

#[test]
fn a_dead_writers_pieces_are_to_be_settled() {
    let mut s = Shard::new();
    let (ino, first, stamp) = tiled(&mut s);
    s.publish(ino, vec![part(first, run(0, stamp + 1, 0, 500), true)]).expect("published");
    s.expire(A).expect("expired");
    assert_eq!(s.unsettled(), [ino]);
    let growth: Vec<_> = s.as_client(B).tiles(ino, 9).pieces.iter().map(|p| p.growth).collect();
    let lost = PieceGrowth::Abandoned;
    assert_eq!(growth, [PieceGrowth::Closed, lost, lost, lost]);
    // Housekeeping reports the content of their journals, then the size of the base.
    let parts = vec![
        part(2, run(1, stamp + 1, 500, 500), true),
        part(3, run(2, stamp + 1, 1000, 500), true),
        part(4, run(3, stamp + 1, 1500, 1), true),
    ];
    assert_eq!(s.publish(ino, parts).expect("published").size, 1501);
    s.settle(ino, 90).expect("settled");
    assert!(s.unsettled().is_empty());
    assert_eq!(s.getattr(ino).expect("attributes").size, 1501);
    s.assert_sound();
}

#[test]
fn a_close_without_a_publication_is_the_end_of_a_writer_too() {
    let mut s = Shard::new();
    let (ino, _, _) = tiled(&mut s);
    s.commit(ino, None, true).expect("closed");
    assert_eq!(s.unsettled(), [ino]);
    s.assert_sound();
}

#[test]
fn who_made_no_piece_leaves_none_behind() {
    let mut s = Shard::new();
    let (ino, first, stamp) = tiled(&mut s);
    s.as_client(B).open(ino, Access::BOTH).expect("open");
    s.as_client(B).commit(ino, None, true).expect("closed");
    assert!(s.as_client(A).unsettled().is_empty(), "the pieces are another's, who has it open");
    // The client's own piece is closed before.
    s.as_client(B).open(ino, Access::BOTH).expect("open");
    let (own, _) = s.as_client(B).add_pieces(ino, &[(0, 1)]).expect("a piece");
    let parts = vec![part(own, run(9, stamp + 1, 0, 5), true)];
    s.as_client(B).publish(ino, parts).expect("published");
    s.as_client(B).commit(ino, None, true).expect("closed");
    assert!(s.as_client(A).unsettled().is_empty());
    s.publish(ino, vec![part(first, run(0, stamp + 1, 0, 500), true)]).expect("published");
    s.commit(ino, None, true).expect("closed");
    assert_eq!(s.unsettled(), [ino]);
    s.assert_sound();
}

#[test]
fn a_removed_file_is_garbage_on_all_its_nodes() {
    let mut s = Shard::new();
    let (ino, _, _) = tiled(&mut s);
    s.unlink(ROOT, "f", false).expect("unlink");
    for node in [0, 1, 2] {
        assert_eq!(s.garbage(node), [ino], "node {node}");
    }
    assert!(s.garbage(3).is_empty());
    assert_eq!(s.dropped(0), [(ino, 1), (ino, 2)]);
    assert_eq!(s.dropped(2), [(ino, 5), (ino, 6), (ino, 7), (ino, 8)]);
    assert_eq!(s.getattr(ino), Err(Errno::ESTALE));
    s.assert_sound();
}

#[test]
fn an_answer_that_was_lost_is_given_again() {
    let mut s = Shard::new();
    let (ino, _, _) = tiled(&mut s);
    let nodes = vec![(NodeId(1), 3)];
    let first = s.apply(MetaOp::AddPieces { ino, nodes: nodes.clone() });
    s.meta.commit().expect("commit");
    s = s.reopen();
    s.seq -= 1;
    assert_eq!(s.apply(MetaOp::AddPieces { ino, nodes }), first);
    assert_eq!(s.tiles(ino, 100).pieces.len(), 7);
}

/// Returns a store key: its kind, the inode, and the rest.
fn key(kind: u8, ino: Ino, rest: &[u8]) -> Vec<u8> {
    [&[kind][..], &ino.0.to_be_bytes(), rest].concat()
}

/// Breaks a volume with a tiled file, and asserts that a check finds it, repairs it, and then finds
/// nothing more.
fn breaks(what: &str, damage: impl Fn(&mut Shard, Ino)) {
    let mut s = Shard::new();
    let (ino, first, stamp) = tiled(&mut s);
    let parts = (0..4).map(|r| part(first + r, strided(r, stamp + 1, 80), r > 0)).collect();
    s.publish(ino, parts).expect("published");
    s.meta.commit().expect("commit");
    s.assert_sound();
    damage(&mut s, ino);
    let mut s = s.reopen();
    assert!(!s.check(1000, false).is_empty(), "{what}: not seen");
    assert!(!s.check(1000, false).is_empty(), "{what}: a look has mended it");
    assert!(s.check(1000, true).iter().all(|finding| finding.repaired), "{what}: not mended");
    let left = s.check(1000, true);
    assert!(left.is_empty(), "{what}: {left:#?}");
    s.tiles(ino, 2);
    s.unlink(ROOT, "f", false).expect("unlink");
    s.assert_sound();
}

fn set(s: &mut Shard, key: Vec<u8>, value: Option<Vec<u8>>) {
    s.meta.store_mut().corrupt_pair(&(key, value));
}

fn edit(s: &mut Shard, key: Vec<u8>, edit: impl Fn(&mut Vec<u8>)) {
    let mut value = s.meta.store_mut().get(&key).expect("get").expect("there");
    edit(&mut value);
    set(s, key, Some(value));
}

#[test]
fn broken_records_of_pieces_are_found_and_mended() {
    let piece = |ino, n: u32| key(b'P', ino, &n.to_be_bytes());
    let record = |ino| key(b'T', ino, &[]);
    breaks("a piece that does not read", |s, ino| edit(s, piece(ino, 2), |v| v[0] = 9));
    breaks("tiles that do not read", |s, ino| edit(s, piece(ino, 3), |v| v.truncate(40)));
    breaks("a piece that is gone", |s, ino| set(s, piece(ino, 4), None));
    breaks("a piece of nobody", |s, ino| {
        let value = s.meta.store_mut().get(&piece(ino, 4)).expect("get");
        set(s, piece(Ino(ino.0 + 99), 1), value);
    });
    breaks("a record of nobody", |s, ino| {
        let value = s.meta.store_mut().get(&record(ino)).expect("get");
        set(s, record(Ino(ino.0 + 99)), value);
    });
    breaks("no record of the pieces", |s, ino| set(s, record(ino), None));
    breaks("a record that does not read", |s, ino| edit(s, record(ino), |v| v[0] = 0));
    breaks("a number that was used", |s, ino| edit(s, record(ino), |v| v[1] = 1));
    breaks("a wrong number of open pieces", |s, ino| edit(s, record(ino), |v| v[9] = 3));
    breaks("an end that is too near", |s, ino| edit(s, record(ino), |v| v[29] = 1));
    breaks("an inode that does not know", |s, ino| edit(s, key(b'I', ino, &[]), |v| v[132] &= !8));
    breaks("an inode that says whole", |s, ino| edit(s, key(b'I', ino, &[]), |v| v[133] = 1));
    breaks("a wrong size", |s, ino| edit(s, key(b'I', ino, &[]), |v| v[24] = 77));
    breaks("bytes in use marked as garbage", |s, ino| {
        let key = [&b"D\0\x01"[..], &ino.0.to_be_bytes(), &3u32.to_be_bytes()].concat();
        set(s, key, Some(vec![1]));
    });
}

#[derive(Clone, Debug)]
enum Step {
    Add(u16, u32),
    Publish { piece: u32, offset: u64, len: u64, close: bool },
    Cut(u64),
    Base(u64),
    Reopen,
}

fn steps() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0u16..4, 1u32..4).prop_map(|(node, n)| Step::Add(node, n)),
        (1u32..12, 0u64..300, 1u64..100, any::<bool>())
            .prop_map(|(piece, offset, len, close)| Step::Publish { piece, offset, len, close }),
        prop_oneof![Just(0), 0u64..400].prop_map(Step::Cut),
        (0u64..400).prop_map(Step::Base),
        Just(Step::Reopen),
    ]
}

proptest! {
    #![proptest_config(scaled(64))]

    /// After any operations, the reported size is that of base and tiles, byte by byte, and the
    /// records agree with each other.
    #[test]
    fn the_size_is_that_of_base_and_tiles(list in proptest::collection::vec(steps(), 1..40)) {
        let mut s = Shard::new();
        let ino = s.create_open(ROOT, "f", Access::BOTH).expect("create").0.ino;
        let mut base = 0u64;
        // Of each piece: when its bytes were written, and where. The cuts, likewise.
        let mut pieces: std::collections::BTreeMap<u32, Option<(u64, u64, u64)>> = Default::default();
        let mut stamp = 0;
        let mut open = std::collections::BTreeSet::new();
        for step in list {
            match step {
                Step::Add(node, n) => {
                    let (first, at) = s.add_pieces(ino, &[(node, n)]).expect("pieces");
                    prop_assert!(at > stamp);
                    stamp = at;
                    for piece in first..first + n {
                        prop_assert!(!pieces.contains_key(&piece));
                        pieces.insert(piece, None);
                        open.insert(piece);
                    }
                }
                Step::Publish { piece, offset, len, close } => {
                    stamp += 1;
                    let published = s.publish(ino, vec![part(piece, run(piece, stamp, offset, len), close)]);
                    prop_assert_eq!(published.is_ok(), open.contains(&piece));
                    if published.is_ok() {
                        pieces.insert(piece, Some((stamp, offset, offset + len)));
                        if close {
                            open.remove(&piece);
                        }
                    }
                }
                Step::Cut(size) => {
                    s.cut(ino, size).expect("cut");
                    base = size;
                    for (_, offset, end) in pieces.values_mut().flatten() {
                        *end = (*end).min(size).max(*offset);
                    }
                    for (_, run) in pieces.iter_mut() {
                        *run = run.filter(|(_, offset, end)| offset < end);
                    }
                    stamp = stamp.max((s.now as u64) * 1_000_000) + 100;
                }
                Step::Base(size) => {
                    base = size;
                    s.commit(ino, Some(size), false).expect("commit");
                }
                Step::Reopen => {
                    s.meta.commit().expect("commit");
                    s = s.reopen();
                }
            }
            let ends = pieces.values().flatten().map(|run| run.2).max().unwrap_or(0);
            let attr = s.getattr(ino).expect("attributes");
            let page = s.tiles(ino, 5);
            if attr.layout.is_tiled() {
                prop_assert_eq!(index(&page).size(), attr.size);
            }
            // The size of a cut is the minimum, until a report states a shorter base.
            let least = page.cuts.last().map_or(0, |cut| cut.size);
            prop_assert_eq!(attr.size, base.max(ends).max(least));
            s.assert_sound();
        }
        s.unlink(ROOT, "f", false).expect("unlink");
        s.assert_sound();
        s.meta.commit().expect("commit");
        let all = s.meta.store_mut().visible().iter().filter(|(k, _)| matches!(k[0], b'P' | b'T')).count();
        prop_assert_eq!(all, 0);
    }
}
