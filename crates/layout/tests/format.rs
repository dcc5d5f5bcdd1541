//! The bytes of encoded pieces, so that a change of format does not pass unnoticed.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

use tatami_layout::*;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn piece(rank: u32, view: &View, writes: &[(u64, u64, u64)]) -> PieceTiles {
    let mut piece = PieceTiles::new(rank);
    let number = piece.add_view(view).unwrap();
    let mut at = 0;
    for &(stamp, stream, len) in writes {
        piece.append(stamp, number, stream, len, at).unwrap();
        at += len;
    }
    piece
}

fn bytes(len: u64) -> Shape {
    Shape::bytes(len).unwrap()
}

#[test]
fn a_strided_view() {
    let filetype = Shape::resized(0, 80_000, &bytes(8)).unwrap();
    let view = View::new(1024, 8, filetype).unwrap();
    let piece = piece(77, &view, &[(1_790_000_000_000_000, 0, 8 << 20)]);
    assert_eq!(hex(&piece.encode()), "014d018008080080e20900000801168080afa2dbffad060080808004");
}

#[test]
fn parts_of_every_kind() {
    let vector = Shape::hvector(3, 1, 10, &bytes(2)).unwrap();
    let runs = Shape::hindexed(&[(1, 0), (2, 5), (3, 11)], &bytes(1)).unwrap();
    let equal = Shape::hindexed(&[(1, 0), (1, 50), (1, 130), (1, 190)], &vector).unwrap();
    let parts = [(1, 3, vector), (1, 40, runs), (1, 100, equal)];
    let view = View::new(0, 1, Shape::structure(&parts).unwrap()).unwrap();
    assert_eq!(
        hex(&piece(0, &view, &[(5, 0, 36)]).encode()),
        "010001000106ea040604030001031400021e02030001080208035c030401031400020038744c01160a0024"
    );
}

#[test]
fn tiles_of_every_kind() {
    let strided = [(100, 0, 4), (100, 10, 4), (100, 20, 4), (100, 30, 2)];
    let others = [(100, 500, 7), (101, 600, 7), (90, 50, 7)];
    let mut piece = piece(1, &View::all_bytes(), &[&strided[..], &others].concat());
    let number = piece.add_view(&View::new(9, 1, bytes(3)).unwrap()).unwrap();
    piece
        .push(Tile { stamp: 90, view: number, start: 5, block: 2, stride: 6, len: 9, at: 1000 })
        .unwrap();
    assert_eq!(
        hex(&piece.encode()),
        "01010200010002000001090100060000030612c80100040a0c173c0217ac07071e02c8011e15cb08010159020609e807"
    );
}

#[test]
fn planes_at_explicit_offsets() {
    let writes: Vec<_> = (0..100)
        .flat_map(|plane| (0..10).map(move |row| (7, plane * 1000 + row * 50, 8)))
        .collect();
    assert_eq!(
        hex(&piece(0, &View::all_bytes(), &writes).encode()),
        "0100020001000200000100010084920c000164d00f010a64000801140e0100c03e"
    );
}
