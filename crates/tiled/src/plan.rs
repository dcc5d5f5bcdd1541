//! Which parts of a write go over bytes that are the rank's own already: those are rewritten in place,
//! the others are appended to its piece.

use crate::piece::OwnPiece;
use tatami_layout::{Index, Piece, View};

/// A part of a write: stream position and length in bytes, and where in the own piece the bytes
/// are already; `None` for those that are new.
pub type Planned = (u64, u64, Option<u64>);

/// The plan for stream bytes `stream .. stream + len`, as far as the piece alone tells: nothing where it has bytes
/// of another view epoch than `epoch` (any, where that is `None`), over which others may have written since.
pub fn by_piece(
    piece: &OwnPiece,
    view: &View,
    stream: u64,
    len: u64,
    epoch: Option<u64>,
) -> Option<Vec<Planned>> {
    let own = piece.tiles().covered(view, stream, len);
    let ours = own.iter().all(|part| part.at.is_none_or(|(_, stamp)| epoch == Some(stamp)));
    ours.then(|| {
        own.iter().map(|part| (part.stream, part.len, part.at.map(|(at, _)| at))).collect()
    })
}

/// The plan by who has the bytes now.
pub fn by_index(
    index: &Index,
    view: &View,
    stream: u64,
    len: u64,
    is_own: impl Fn(Piece) -> bool,
) -> Vec<Planned> {
    let mut parts = Vec::new();
    let mut at = stream;
    for found in index.lookup_view(view, stream, len) {
        let mine = found.piece.is_some_and(&is_own);
        push(&mut parts, (at, found.len, mine.then_some(found.at)));
        at += found.len;
    }
    push(&mut parts, (at, stream + len - at, None));
    parts
}

fn push(parts: &mut Vec<Planned>, new: Planned) {
    if new.1 == 0 {
        return;
    }
    match parts.last_mut() {
        Some(last) if last.2.is_none() && new.2.is_none() => last.1 += new.1,
        _ => parts.push(new),
    }
}
