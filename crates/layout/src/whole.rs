//! Files of which all bytes lie in one object.
//!
//! Striped and tiled layouts are further variants of [`Layout`].

use serde::{Deserialize, Serialize};

/// The number of a node (a machine with a daemon) within one volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NodeId(pub u16);

impl std::fmt::Display for NodeId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// The number of one object of a file: objects of a file count from 0.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Piece(pub u32);

/// How the bytes of one file are spread over objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Layout {
    /// The whole file is piece 0, on one node.
    Whole {
        /// The node that keeps the object.
        node: NodeId,
    },
}

/// A run of bytes that is contiguous both in the file and in one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// First byte, counted from the start of the file.
    pub file_offset: u64,
    /// The node that keeps the object.
    pub node: NodeId,
    /// Which object of the file.
    pub piece: Piece,
    /// First byte, counted from the start of the object.
    pub object_offset: u64,
    /// Length in bytes, never 0.
    pub len: u64,
}

impl Layout {
    /// Splits the byte range `offset .. offset + len` of the file into extents,
    /// in file order and without gaps. A range that would pass the end of the
    /// 64-bit offset space is cut there.
    pub fn extents(&self, offset: u64, len: u64) -> impl Iterator<Item = Extent> + use<> {
        let len = len.min(u64::MAX - offset);
        match *self {
            Layout::Whole { node } => (len > 0)
                .then_some(Extent {
                    file_offset: offset,
                    node,
                    piece: Piece(0),
                    object_offset: offset,
                    len,
                })
                .into_iter(),
        }
    }

    /// The file offset of byte `object_offset` of `piece`, or `None` when the
    /// layout has no such piece. The inverse of [`Layout::extents`].
    pub fn file_offset(&self, piece: Piece, object_offset: u64) -> Option<u64> {
        match *self {
            Layout::Whole { .. } => (piece == Piece(0)).then_some(object_offset),
        }
    }

    /// The size of a file whose objects have the sizes that `size_of` tells.
    pub fn file_size(&self, size_of: impl Fn(NodeId, Piece) -> u64) -> u64 {
        match *self {
            Layout::Whole { node } => size_of(node, Piece(0)),
        }
    }

    /// All objects of the file.
    pub fn pieces(&self) -> impl Iterator<Item = (NodeId, Piece)> + use<> {
        match *self {
            Layout::Whole { node } => std::iter::once((node, Piece(0))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Every byte of a range lies in exactly one extent, and the extent
        /// leads back to the byte.
        #[test]
        fn extents_cover_and_invert(node in 0u16..8, offset in 0u64..1 << 40, len in 0u64..5000) {
            let layout = Layout::Whole { node: NodeId(node) };
            let mut at = offset;
            for e in layout.extents(offset, len) {
                prop_assert_eq!(e.file_offset, at);
                prop_assert!(e.len > 0);
                for probe in [0, e.len / 2, e.len - 1] {
                    prop_assert_eq!(
                        layout.file_offset(e.piece, e.object_offset + probe),
                        Some(e.file_offset + probe)
                    );
                }
                at += e.len;
            }
            prop_assert_eq!(at, offset + len);
        }
    }

    #[test]
    fn a_range_at_the_end_of_the_offset_space_is_cut() {
        let layout = Layout::Whole { node: NodeId(0) };
        let last: Vec<_> = layout.extents(u64::MAX - 3, 100).collect();
        assert_eq!(last.len(), 1);
        assert_eq!(last[0].len, 3);
        assert_eq!(layout.extents(u64::MAX, 1).count(), 0);
    }

    #[test]
    fn other_pieces_do_not_belong_to_a_whole_file() {
        let layout = Layout::Whole { node: NodeId(2) };
        assert_eq!(layout.file_offset(Piece(1), 0), None);
        assert_eq!(layout.pieces().collect::<Vec<_>>(), vec![(NodeId(2), Piece(0))]);
        assert_eq!(layout.file_size(|n, _| u64::from(n.0) * 10), 20);
    }
}
