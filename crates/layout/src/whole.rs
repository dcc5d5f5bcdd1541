//! Where the objects of a file are.
//!
//! A `whole` file is one object on one node, the node of its creator. A `tiled` file also has
//! pieces, one of each writer on the writer's node; their tiles lie over the first object, the
//! base. The layout itself knows the base only.

use serde::{Deserialize, Serialize};

/// The number of a node (a machine with a daemon) within one volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NodeId(pub u16);

impl std::fmt::Display for NodeId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// The number of one object of a file: the objects of a file count from 0.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Piece(pub u32);

impl Piece {
    /// The base of a file that was never relocated: all bytes of a whole file, and of a tiled file
    /// the bytes that no tile covers.
    pub const BASE: Piece = Piece(0);
    /// No object: the bytes lie beside the inode. No piece of a file gets this number.
    pub const INLINE: Piece = Piece(u32::MAX);
    /// Most pieces that one file may get in its lifetime: their objects have numbers.
    pub const TILED_MAX: u32 = (1 << 30) - 1;
    /// The bit of objects that lie in a region of a device, while they fit there.
    const REGION: u32 = 1 << 31;
    /// The bit of objects in regions that keep their earlier states. The rule follows in the
    /// number.
    const VERSIONS: u32 = 1 << 30;
    /// Bits behind the rule of such an object: the number that counts.
    const VERSIONED_BITS: u32 = 12;
    /// The object of a new file that lies in a region.
    pub const FIRST_REGION: Piece = Piece(Piece::REGION);

    /// The object that holds the bytes of piece `number` of a tiled file, from 1 to
    /// [`Piece::TILED_MAX`]; for a number of [`Piece::region_number`], the object in a region.
    pub fn of_bytes(number: u32) -> Piece {
        match number & Piece::REGION {
            0 => Piece(number.saturating_mul(2).saturating_sub(1)),
            _ => Piece(number),
        }
    }

    /// Marks `number`, from 1 to [`Piece::TILED_MAX`], as that of an object in a region.
    pub fn region_number(number: u32) -> u32 {
        number | Piece::REGION
    }

    /// The object of a new file that lies in a region and keeps its earlier states. `rule` has at
    /// most [`Piece::RULE_BITS`] bits; 0 is the object that keeps none.
    pub fn first_versioned(rule: u32) -> Piece {
        match rule & ((1 << Piece::RULE_BITS) - 1) {
            0 => Piece::FIRST_REGION,
            rule => Piece(Piece::REGION | Piece::VERSIONS | rule << Piece::VERSIONED_BITS),
        }
    }

    /// Bits of the rule by which an object keeps earlier states.
    pub const RULE_BITS: u32 = 18;

    /// Returns the rule by which the object keeps earlier states; 0 for one that keeps none.
    pub fn version_rule(self) -> u32 {
        match self.is_in_region() && self.0 & Piece::VERSIONS != 0 {
            true => (self.0 & !(Piece::REGION | Piece::VERSIONS)) >> Piece::VERSIONED_BITS,
            false => 0,
        }
    }

    /// Returns the number of another object in a region for the same file, with the same rule;
    /// `None` if there are no more such numbers.
    pub fn next_in_region(self, number: u32) -> Option<u32> {
        match self.version_rule() {
            0 => Some(Piece::region_number(number)),
            rule if number < 1 << Piece::VERSIONED_BITS => {
                Some(Piece::first_versioned(rule).0 | number)
            }
            _ => None,
        }
    }

    /// Whether the object lies in a region, if its node has a region device and the object fits.
    pub fn is_in_region(self) -> bool {
        self.0 & Piece::REGION != 0 && self != Piece::INLINE
    }

    /// The object that holds the journal of piece `number`: the tiles that were added since the
    /// last publication.
    pub fn of_journal(number: u32) -> Piece {
        Piece(number.saturating_mul(2))
    }

    /// The number of the piece that this object is a part of; 0 for the base.
    pub fn number(self) -> u32 {
        match self.is_in_region() {
            true if self.version_rule() > 0 => self.0 & ((1 << Piece::VERSIONED_BITS) - 1),
            true => self.0 & !Piece::REGION,
            false => self.0.div_ceil(2),
        }
    }

    /// Whether this object is the journal of a piece.
    pub fn is_journal(self) -> bool {
        self.0 > 0 && self.0.is_multiple_of(2) && !self.is_in_region()
    }
}

/// How the bytes of one file are spread over objects: the base, and pieces whose tiles may lie over
/// it. The shard keeps the tiles beside the inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "LayoutCode", into = "LayoutCode")]
pub struct Layout {
    node: NodeId,
    base: Piece,
    is_tiled: bool,
}

/// A layout as it is sent.
#[derive(Serialize, Deserialize)]
enum LayoutCode {
    Whole { node: NodeId },
    Tiled { node: NodeId },
    Relocated { node: NodeId, base: Piece, tiled: bool },
}

impl From<Layout> for LayoutCode {
    fn from(Layout { node, base, is_tiled }: Layout) -> LayoutCode {
        match (base, is_tiled) {
            (Piece::BASE, false) => LayoutCode::Whole { node },
            (Piece::BASE, true) => LayoutCode::Tiled { node },
            _ => LayoutCode::Relocated { node, base, tiled: is_tiled },
        }
    }
}

impl From<LayoutCode> for Layout {
    fn from(code: LayoutCode) -> Layout {
        match code {
            LayoutCode::Whole { node } => Layout::whole(node),
            LayoutCode::Tiled { node } => Layout::with_base(node, Piece::BASE, true),
            LayoutCode::Relocated { node, base, tiled } => Layout::with_base(node, base, tiled),
        }
    }
}

/// A layout knows the base only. Of a tiled file these methods therefore return what holds without
/// tiles; a caller that needs more asks the shard for the tiles.
impl Layout {
    /// The layout of a new file: one object on this node.
    pub const fn whole(node: NodeId) -> Layout {
        Layout::with_base(node, Piece::BASE, false)
    }

    /// The layout of a file with this base, with or without pieces over it. A file gets another
    /// base than piece 0 when it is relocated, so that a client with the old layout cannot mistake
    /// the new object for the old one.
    pub const fn with_base(node: NodeId, base: Piece, is_tiled: bool) -> Layout {
        Layout { node, base, is_tiled }
    }

    /// The layout of a file with its bytes beside the inode. `node` is that of its creator.
    pub const fn inline(node: NodeId) -> Layout {
        Layout::with_base(node, Piece::INLINE, false)
    }

    /// The layout of a new file of small size: one object in a region of this node's device.
    pub const fn in_region(node: NodeId) -> Layout {
        Layout::with_base(node, Piece::FIRST_REGION, false)
    }

    /// As [`Layout::in_region`], of an object that keeps earlier states by this rule.
    pub fn in_region_keeping(node: NodeId, rule: u32) -> Layout {
        Layout::with_base(node, Piece::first_versioned(rule), false)
    }

    /// Whether the bytes lie beside the inode, and the file has no object.
    pub fn is_inline(&self) -> bool {
        self.base == Piece::INLINE
    }

    /// The same base, with pieces over it or without.
    pub fn with_tiles(&self, is_tiled: bool) -> Layout {
        Layout { is_tiled, ..*self }
    }

    /// The node that keeps the base.
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// The base: all bytes of a whole file, and of a tiled one the bytes that no tile covers.
    pub fn base(&self) -> Piece {
        self.base
    }

    /// Whether tiles may lie over the base.
    pub fn is_tiled(&self) -> bool {
        self.is_tiled
    }

    /// Whether a new file may have this layout.
    pub fn is_of_new_file(&self) -> bool {
        *self == Layout::whole(self.node)
    }

    /// All objects of the file.
    pub fn all_objects(&self) -> impl Iterator<Item = (NodeId, Piece)> + use<> {
        (!self.is_inline()).then_some((self.node(), self.base())).into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_layout_has_what_it_was_made_of(node in 0u16..8, base in 0u32..3, tiled: bool) {
            let layout = Layout::with_base(NodeId(node), Piece(base), tiled);
            prop_assert_eq!((layout.node(), layout.base()), (NodeId(node), Piece(base)));
            prop_assert_eq!(layout.is_tiled(), tiled);
            prop_assert_eq!(layout.with_tiles(!tiled).with_tiles(tiled), layout);
            prop_assert!(layout.all_objects().eq([(NodeId(node), Piece(base))]));
        }
    }

    #[test]
    fn a_file_beside_its_inode_has_no_object() {
        let layout = Layout::inline(NodeId(3));
        assert!(layout.is_inline() && !layout.is_tiled() && !layout.is_of_new_file());
        assert_eq!((layout.node(), layout.all_objects().count()), (NodeId(3), 0));
        assert!(Piece::of_journal(Piece::TILED_MAX) < Piece::FIRST_REGION);
    }

    proptest! {
        #[test]
        fn a_versioned_object_has_its_rule_and_number(rule in 1u32..200 << 10, number in 0u32..4096) {
            let first = Layout::in_region_keeping(NodeId(3), rule).base();
            prop_assert!(first.is_in_region() && !first.is_journal() && first != Piece::INLINE);
            prop_assert_eq!((first.version_rule(), first.number()), (rule, 0));
            let next = Piece::of_bytes(first.next_in_region(number).expect("a number"));
            prop_assert!(next.is_in_region() && next != Piece::INLINE);
            prop_assert_eq!((next.version_rule(), next.number()), (rule, number));
            prop_assert_eq!(first.next_in_region(4096), None);
        }
    }

    #[test]
    fn an_object_without_versions_has_no_rule() {
        assert_eq!(Piece::first_versioned(0), Piece::FIRST_REGION);
        let plain = Piece::FIRST_REGION.next_in_region(77).map(Piece::of_bytes);
        assert_eq!(plain, Some(Piece::of_bytes(Piece::region_number(77))));
        for piece in [Piece::BASE, Piece::INLINE, Piece::FIRST_REGION, Piece(12)] {
            assert_eq!(piece.version_rule(), 0);
        }
    }

    #[test]
    fn objects_in_regions_have_numbers_of_their_own() {
        assert!(Layout::in_region(NodeId(3)).base().is_in_region());
        assert!(!Piece::INLINE.is_in_region() && !Piece::BASE.is_in_region());
        for number in [0, 1, 77, Piece::TILED_MAX] {
            let piece = Piece::of_bytes(Piece::region_number(number));
            assert!(piece.is_in_region() && !piece.is_journal());
            assert_eq!(piece.number(), number);
        }
    }

    #[test]
    fn objects_of_a_piece_lead_back_to_it() {
        assert_eq!((Piece::BASE.number(), Piece::BASE.is_journal()), (0, false));
        for number in [1, 2, 77, Piece::TILED_MAX] {
            let (bytes, journal) = (Piece::of_bytes(number), Piece::of_journal(number));
            assert_eq!((bytes.number(), bytes.is_journal()), (number, false));
            assert_eq!((journal.number(), journal.is_journal()), (number, true));
        }
        assert_eq!(Piece::of_bytes(1), Piece(1));
        assert_eq!(Piece::of_journal(1), Piece(2));
    }
}
