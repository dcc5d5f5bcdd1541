//! Plans a write. Parts over bytes that the rank's own piece already has are rewritten in place;
//! the other parts are appended to the piece.

use crate::piece::OwnPiece;
use tatami_layout::{Piece, TileIndex, View};

/// A part of a write: stream position and length in bytes, and the place of the bytes in the rank's
/// own piece; `None` for new bytes.
pub type PlannedPart = (u64, u64, Option<u64>);

/// Plans a write of stream bytes `stream .. stream + len` from the piece alone. `None` where the
/// piece has bytes of another view epoch than `epoch` (of any epoch, if that is `None`): other
/// ranks may have written over them since.
pub fn plan_by_piece(
    piece: &OwnPiece,
    view: &View,
    stream: u64,
    len: u64,
    epoch: Option<u64>,
) -> Option<Vec<PlannedPart>> {
    let own = piece.tiles().own_extents(view, stream, len);
    let ours = own.iter().all(|part| part.at.is_none_or(|(_, stamp)| epoch == Some(stamp)));
    ours.then(|| {
        own.iter().map(|part| (part.stream, part.len, part.at.map(|(at, _)| at))).collect()
    })
}

/// Plans a write by the current owners of the bytes.
pub fn plan_by_index(
    index: &TileIndex,
    view: &View,
    stream: u64,
    len: u64,
    is_own: impl Fn(Piece) -> bool,
) -> Vec<PlannedPart> {
    let mut parts = Vec::new();
    let mut at = stream;
    for found in index.lookup_view(view, stream, len) {
        let mine = found.piece.is_some_and(&is_own);
        push_part(&mut parts, (at, found.len, mine.then_some(found.at)));
        at += found.len;
    }
    // The lookup stops at the end of the file, and bytes beyond it are new.
    push_part(&mut parts, (at, stream + len - at, None));
    parts
}

fn push_part(parts: &mut Vec<PlannedPart>, new: PlannedPart) {
    if new.1 == 0 {
        return;
    }
    match parts.last_mut() {
        Some(last) if last.2.is_none() && new.2.is_none() => last.1 += new.1,
        _ => parts.push(new),
    }
}
