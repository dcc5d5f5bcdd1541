//! The inode record: all of a file system object except its name, its bytes and its extended
//! attributes. `docs/reference/formats.md` draws it.

use crate::acl::Acl;
use crate::record::{DamagedRecord, RecordReader, kind_byte, put_time};
use std::sync::Arc;
use tatami_wire::partition::HashRange;
use tatami_wire::policy::{INLINE_MAX, POLICIES, Policies, PolicyRow};
use tatami_wire::{Attr, Ino, InodeKind, Layout, NodeId, PATH_MAX, Piece, Timestamp, XattrClass};

/// Most names of one inode, and most subdirectories of one directory: XFS's bound.
pub(crate) const LINK_MAX: u32 = i32::MAX as u32;

const VERSION: u8 = 1;
const LAYOUT_WHOLE: u8 = 1;
const LAYOUT_TILED: u8 = 2;
const LAYOUT_WHOLE_RELOCATED: u8 = 3;
const LAYOUT_TILED_RELOCATED: u8 = 4;
const LAYOUT_INLINE: u8 = 5;
const LAYOUT_INLINE_TO_REGION: u8 = 6;

/// An inode, in memory. Its number is its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Inode {
    pub kind: InodeKind,
    /// 0 to 0o7777.
    pub mode: u16,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u64,
    /// Of a directory: number of entries. Of a link: length of the target.
    pub size: u64,
    pub blocks: u64,
    pub atime: Timestamp,
    pub mtime: Timestamp,
    pub ctime: Timestamp,
    pub btime: Timestamp,
    /// Of a file: the state of its object that `size` is from.
    pub changed: Timestamp,
    pub version: u64,
    /// Of a directory: its parent (of the root: itself). Else 0.
    pub parent: Ino,
    pub layout: Layout,
    /// Of a file with its bytes beside it: the most bytes there.
    pub inline_limit: u32,
    /// Of such a file: when it outgrows the limit, its bytes move to a region of a device.
    pub leaves_to_region: bool,
    /// Made by `O_TMPFILE` and not named yet: may still get its first name.
    pub linkable: bool,
    /// A client could write bytes: objects may exist.
    pub touched: bool,
    /// A writer died: the size must be recovered from the objects (`U` record).
    pub pending_recovery: bool,
    /// It has, or had, pieces (a `T` record).
    pub pieces: bool,
    /// Objects were set aside to re-lay it out, and since then only the client that did so could
    /// change its bytes.
    pub relayout_mark: bool,
    /// Objects are set aside for it.
    pub set_aside: bool,
    /// Number of clients that keep it beyond its last name (`O` records).
    pub keepers: u32,
    /// Number of clients that have it open for writing (`W` records).
    pub writers: u32,
    /// Sum of attribute name lengths, each plus one: the length of a listing.
    pub xattr_list: u32,
    /// Sum of attribute value lengths.
    pub xattr_bytes: u32,
    pub acl: Option<Arc<Acl>>,
    pub default_acl: Option<Arc<Acl>>,
    /// Target of a symbolic link.
    pub target: Vec<u8>,
    /// Of a directory, or a partition of one.
    pub policies: Policies,
    /// Of a directory, or a partition of one: the range of name hashes under its number.
    pub range: HashRange,
}

mod flag {
    pub const LINKABLE: u8 = 1;
    pub const TOUCHED: u8 = 2;
    pub const PENDING_RECOVERY: u8 = 4;
    pub const PIECES: u8 = 8;
    pub const RELAYOUT_MARK: u8 = 16;
    pub const SET_ASIDE: u8 = 32;
    pub const PARTITIONED: u8 = 64;
    pub const POLICIES: u8 = 128;
}

impl Inode {
    /// Returns an inode without names, all its times `now`.
    pub fn new(kind: InodeKind, mode: u16, uid: u32, gid: u32, now: Timestamp) -> Inode {
        Inode {
            kind,
            mode,
            nlink: 0,
            uid,
            gid,
            rdev: 0,
            size: 0,
            blocks: 0,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            changed: Timestamp::default(),
            version: 1,
            parent: Ino(0),
            layout: Layout::whole(NodeId(0)),
            inline_limit: 0,
            leaves_to_region: false,
            linkable: false,
            touched: false,
            pending_recovery: false,
            pieces: false,
            relayout_mark: false,
            set_aside: false,
            keepers: 0,
            writers: 0,
            xattr_list: 0,
            xattr_bytes: 0,
            acl: None,
            default_acl: None,
            target: Vec::new(),
            policies: Policies::default(),
            range: HashRange::ALL,
        }
    }

    pub fn is_dir(&self) -> bool {
        self.kind == InodeKind::Dir
    }

    pub fn is_file(&self) -> bool {
        self.kind == InodeKind::File
    }

    /// Returns whether its entries are in several partitions, and this is one of them.
    pub fn is_partitioned(&self) -> bool {
        self.range.bits > 0
    }

    /// Returns whether it is a partition other than the first, which is the directory itself.
    pub fn is_later_partition(&self) -> bool {
        self.range.from > 0
    }

    /// Returns whether the directory differs from `old` in its entries only, with its size, link
    /// count and times: then a path through it is walked as before.
    pub fn differs_in_entries(&self, old: &Inode) -> bool {
        let walked = |dir: &Inode| (dir.kind, dir.mode, dir.uid, dir.gid, dir.parent);
        let attached =
            |dir: &Inode| (dir.acl.clone(), dir.default_acl.clone(), dir.xattr_list, dir.policies);
        let counted = |dir: &Inode| (dir.size, dir.nlink, dir.mtime);
        // A rename of the directory itself changes nothing that is counted, even within a moment.
        self.is_dir()
            && self.nlink > 0
            && counted(self) != counted(old)
            && walked(self) == walked(old)
            && attached(self) == attached(old)
    }

    /// Returns whether nothing holds the inode any more.
    pub fn is_unreferenced(&self) -> bool {
        self.nlink == 0 && self.keepers == 0
    }

    fn attached_kinds(&self) -> XattrClass {
        match self {
            Inode { acl: None, default_acl: None, xattr_list: 0, policies, .. }
                if policies.is_empty() =>
            {
                XattrClass::NoXattr
            }
            Inode { acl: None, default_acl: None, .. } => XattrClass::Xattrs,
            _ => XattrClass::Acl,
        }
    }

    /// Returns the attributes that stat(2) shows.
    pub fn to_attr(&self, ino: Ino) -> Attr {
        Attr {
            ino,
            kind: self.kind,
            mode: self.mode,
            nlink: self.nlink,
            uid: self.uid,
            gid: self.gid,
            rdev: self.rdev,
            size: self.size,
            blocks: self.blocks,
            atime: self.atime,
            mtime: self.mtime,
            ctime: self.ctime,
            btime: self.btime,
            version: self.version,
            layout: self.layout,
            xattr_class: self.attached_kinds(),
            // The inode itself has all that is known of bytes beside it.
            maybe_written_elsewhere: !self.layout.is_inline()
                && (self.writers > 0 || self.pending_recovery),
            object_changed: self.changed,
        }
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(160 + self.target.len());
        let flags = if self.linkable { flag::LINKABLE } else { 0 }
            | if self.touched { flag::TOUCHED } else { 0 }
            | if self.pending_recovery { flag::PENDING_RECOVERY } else { 0 }
            | if self.pieces { flag::PIECES } else { 0 }
            | if self.relayout_mark { flag::RELAYOUT_MARK } else { 0 }
            | if self.set_aside { flag::SET_ASIDE } else { 0 }
            | if self.is_partitioned() { flag::PARTITIONED } else { 0 }
            | if self.policies.is_empty() { 0 } else { flag::POLICIES };
        out.extend_from_slice(&[VERSION, kind_byte(self.kind)]);
        out.extend_from_slice(&self.mode.to_le_bytes());
        for n in [self.nlink, self.uid, self.gid] {
            out.extend_from_slice(&n.to_le_bytes());
        }
        for n in [self.rdev, self.size, self.blocks, self.version, self.parent.0] {
            out.extend_from_slice(&n.to_le_bytes());
        }
        for t in [self.atime, self.mtime, self.ctime, self.btime, self.changed] {
            put_time(&mut out, t);
        }
        for n in [self.keepers, self.writers, self.xattr_list, self.xattr_bytes] {
            out.extend_from_slice(&n.to_le_bytes());
        }
        let (node, base) = (self.layout.node(), self.layout.base());
        let layout = match (base, self.layout.is_tiled()) {
            (Piece::BASE, false) => LAYOUT_WHOLE,
            (Piece::BASE, true) => LAYOUT_TILED,
            (Piece::INLINE, _) if self.leaves_to_region => LAYOUT_INLINE_TO_REGION,
            (Piece::INLINE, _) => LAYOUT_INLINE,
            (_, false) => LAYOUT_WHOLE_RELOCATED,
            (_, true) => LAYOUT_TILED_RELOCATED,
        };
        out.extend_from_slice(&[flags, layout]);
        out.extend_from_slice(&node.0.to_le_bytes());
        Acl::encode(self.acl.as_deref(), &mut out);
        Acl::encode(self.default_acl.as_deref(), &mut out);
        out.extend_from_slice(&(self.target.len() as u16).to_le_bytes());
        out.extend_from_slice(&self.target);
        match base {
            Piece::BASE => {}
            Piece::INLINE => out.extend_from_slice(&self.inline_limit.to_le_bytes()),
            base => out.extend_from_slice(&base.0.to_le_bytes()),
        }
        if self.is_partitioned() {
            out.extend_from_slice(&self.range.from.to_le_bytes());
            out.push(self.range.bits);
        }
        if !self.policies.is_empty() {
            out.push(self.policies.present().count() as u8);
            for (row, value) in self.policies.present() {
                out.push(row.id);
                out.extend_from_slice(&value.to_le_bytes());
            }
        }
        out
    }

    pub fn decode(bytes: &[u8]) -> Result<Inode, DamagedRecord> {
        let bad = DamagedRecord("inode");
        let mut r = RecordReader::new(bytes, VERSION, "inode")?;
        let kind = r.read_kind()?;
        let mode = r.read_u16()?;
        let (nlink, uid, gid) = (r.read_u32()?, r.read_u32()?, r.read_u32()?);
        let (rdev, size, blocks) = (r.read_u64()?, r.read_u64()?, r.read_u64()?);
        let (version, parent) = (r.read_u64()?, r.read_ino()?);
        let (atime, mtime, ctime, btime) =
            (r.read_time()?, r.read_time()?, r.read_time()?, r.read_time()?);
        let changed = r.read_time()?;
        let (keepers, writers) = (r.read_u32()?, r.read_u32()?);
        let (xattr_list, xattr_bytes) = (r.read_u32()?, r.read_u32()?);
        let flags = r.read_u8()?;
        let (layout, node) = (r.read_u8()?, NodeId(r.read_u16()?));
        if mode > 0o7777 {
            return Err(bad);
        }
        let acl = Acl::decode(&mut r)?.map(Arc::new);
        let default_acl = Acl::decode(&mut r)?.map(Arc::new);
        let len = usize::from(r.read_u16()?);
        if len > PATH_MAX {
            return Err(bad);
        }
        let target = r.read_bytes(len)?.to_vec();
        let mut inline_limit = 0;
        let (base, is_tiled) = match layout {
            LAYOUT_WHOLE => (Piece::BASE, false),
            LAYOUT_TILED => (Piece::BASE, true),
            LAYOUT_INLINE | LAYOUT_INLINE_TO_REGION => {
                inline_limit = r.read_u32()?;
                (Piece::INLINE, false)
            }
            LAYOUT_WHOLE_RELOCATED | LAYOUT_TILED_RELOCATED => match r.read_u32()? {
                0 | u32::MAX => return Err(bad),
                base => (Piece(base), layout == LAYOUT_TILED_RELOCATED),
            },
            _ => return Err(bad),
        };
        let leaves_to_region = layout == LAYOUT_INLINE_TO_REGION;
        let layout = Layout::with_base(node, base, is_tiled);
        let range = match flags & flag::PARTITIONED {
            0 => HashRange::ALL,
            _ => HashRange { from: r.read_u64()?, bits: r.read_u8()? },
        };
        let parted = flags & flag::PARTITIONED != 0;
        if !range.is_valid() || parted && (range.bits == 0 || kind != InodeKind::Dir) {
            return Err(bad);
        }
        let policies = match flags & flag::POLICIES {
            0 => Policies::default(),
            _ if kind != InodeKind::Dir => return Err(bad),
            _ => read_policies(&mut r)?,
        };
        // Size and limit of bytes beside an inode are lengths in memory.
        let inline_is_right = match base {
            Piece::INLINE => kind == InodeKind::File && size <= INLINE_MAX as u64,
            _ => true,
        };
        if !inline_is_right || inline_limit as usize > INLINE_MAX {
            return Err(bad);
        }
        r.expect_end()?;
        Ok(Inode {
            kind,
            mode,
            nlink,
            uid,
            gid,
            rdev,
            size,
            blocks,
            atime,
            mtime,
            ctime,
            btime,
            changed,
            version,
            parent,
            layout,
            inline_limit,
            leaves_to_region,
            linkable: flags & flag::LINKABLE != 0,
            touched: flags & flag::TOUCHED != 0,
            pending_recovery: flags & flag::PENDING_RECOVERY != 0,
            pieces: flags & flag::PIECES != 0,
            relayout_mark: flags & flag::RELAYOUT_MARK != 0,
            set_aside: flags & flag::SET_ASIDE != 0,
            keepers,
            writers,
            xattr_list,
            xattr_bytes,
            acl,
            default_acl,
            target,
            policies,
            range,
        })
    }
}

/// Reads policies. One that is not known is refused: it may mean that files must be kept otherwise.
fn read_policies(r: &mut RecordReader<'_>) -> Result<Policies, DamagedRecord> {
    let bad = || DamagedRecord("inode");
    let count = r.read_u8()?;
    if count == 0 || usize::from(count) > POLICIES.len() {
        return Err(bad());
    }
    let mut policies = Policies::default();
    for _ in 0..count {
        let row = PolicyRow::with_id(r.read_u8()?).ok_or_else(bad)?;
        policies.set_value(row.kind, Some(r.read_u64()?));
    }
    Ok(policies)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::acl::tests::acl_for_user_7;
    use proptest::prelude::*;
    use tatami_wire::policy::PolicyKind;

    fn rich() -> Inode {
        let now = Timestamp { sec: -5, nsec: 999_999_999 };
        Inode {
            nlink: 3,
            rdev: 0x0801,
            size: 4096,
            blocks: 8,
            version: 17,
            parent: Ino(44),
            linkable: true,
            touched: true,
            pending_recovery: true,
            keepers: 2,
            writers: 1,
            xattr_list: 20,
            xattr_bytes: 300,
            acl: Some(Arc::new(acl_for_user_7(6, 4, 6))),
            default_acl: Some(Arc::new(acl_for_user_7(7, 5, 7))),
            target: b"../elsewhere".to_vec(),
            layout: Layout::whole(NodeId(513)),
            ..Inode::new(InodeKind::Symlink, 0o4751, 1000, 100, now)
        }
    }

    #[test]
    fn an_inode_reads_as_it_was_written() {
        let plain = Inode::new(InodeKind::File, 0o644, 0, 0, Timestamp::from_sec(9));
        let layout = Layout::with_base(NodeId(3), Piece::BASE, true);
        let tiled =
            Inode { layout, pieces: true, relayout_mark: true, set_aside: true, ..plain.clone() };
        let anew = |tiled| Layout::with_base(NodeId(3), Piece(7), tiled);
        let striped = Inode { layout: anew(true), ..rich() };
        let whole = Inode { layout: anew(false), ..plain.clone() };
        let range = HashRange { from: 0x0700_0000_0000_0000, bits: 8 };
        let part = Inode { kind: InodeKind::Dir, range, ..plain.clone() };
        let mut policies = Policies::default();
        policies.set_value(PolicyKind::Inline, Some(4096));
        let kept = Inode { kind: InodeKind::Dir, policies, range, ..plain.clone() };
        let layout = Layout::inline(NodeId(3));
        let small = Inode { layout, inline_limit: 4096, size: 17, ..plain.clone() };
        let leaves = Inode { leaves_to_region: true, ..small.clone() };
        assert_eq!(Inode::decode(&leaves.encode()), Ok(leaves));
        for inode in [rich(), plain, tiled, striped, whole, part, kept, small] {
            assert_eq!(Inode::decode(&inode.encode()), Ok(inode));
        }
    }

    /// The bytes of docs/reference/formats.md. If this fails, the format has changed: raise its
    /// version and keep reading the old one.
    #[test]
    fn the_format_is_the_one_written_down() {
        let time = |sec| Timestamp { sec, nsec: 1 };
        let inode = Inode {
            nlink: 2,
            rdev: 5,
            size: 6,
            blocks: 7,
            version: 8,
            parent: Ino(9),
            mtime: time(11),
            ctime: time(12),
            btime: time(13),
            changed: time(14),
            linkable: true,
            pieces: true,
            keepers: 14,
            writers: 15,
            xattr_list: 16,
            xattr_bytes: 17,
            layout: Layout::with_base(NodeId(18), Piece::BASE, true),
            default_acl: Some(Arc::new(acl_for_user_7(6, 5, 4))),
            target: b"to".to_vec(),
            ..Inode::new(InodeKind::Symlink, 0o1234, 3, 4, time(10))
        };
        let mut expected = vec![1, 3, 0x9c, 2];
        [2u32, 3, 4].iter().for_each(|n| expected.extend(n.to_le_bytes()));
        [5u64, 6, 7, 8, 9].iter().for_each(|n| expected.extend(n.to_le_bytes()));
        for sec in [10u64, 11, 12, 13, 14] {
            expected.extend(sec.to_le_bytes());
            expected.extend([1, 0, 0, 0]);
        }
        [14u32, 15, 16, 17].iter().for_each(|n| expected.extend(n.to_le_bytes()));
        expected.extend([9, 2, 18, 0, 0, 0, 5, 0]);
        for (tag, perm, id) in [(1, 7, !0), (2, 6, 7), (4, 5, !0), (16, 4, !0), (32, 0, !0u32)] {
            expected.extend([tag, perm]);
            expected.extend(id.to_le_bytes());
        }
        expected.extend([2, 0, b't', b'o']);
        assert_eq!(inode.encode(), expected);
        let layout = Layout::with_base(NodeId(18), Piece(0x0102), true);
        expected[133] = 4;
        expected.extend([2, 1, 0, 0]);
        let range = HashRange { from: 0x0102 << 47, bits: 16 };
        assert_eq!(Inode { layout, ..inode.clone() }.encode(), expected);
        expected.extend((0x0102u64 << 47).to_le_bytes());
        expected.push(16);
        (expected[1], expected[132]) = (2, 9 | 64);
        let part = Inode { layout, range, kind: InodeKind::Dir, ..inode };
        assert_eq!(part.encode(), expected);
    }

    proptest! {
        #[test]
        fn any_bytes_decode_or_do_not(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = Inode::decode(&bytes);
        }

        #[test]
        fn mutated_inodes_decode_or_do_not(
            edits in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..6),
            cut: proptest::sample::Index,
        ) {
            let mut bytes = rich().encode();
            for (at, to) in edits {
                let at = at.index(bytes.len());
                bytes[at] = to;
            }
            if let Ok(inode) = Inode::decode(&bytes) {
                // A decoded record can be encoded and decoded again.
                prop_assert_eq!(Inode::decode(&inode.encode()), Ok(inode));
            }
            bytes.truncate(cut.index(bytes.len()));
            prop_assert!(Inode::decode(&bytes).is_err(), "a cut record never reads");
        }
    }
}
