//! The MPI file view: which bytes of a file a process sees, and in which order.
//!
//! Seen through a view, the visible bytes of a file form a *stream*: stream byte
//! `k` is the `k`-th visible byte. [`View::offset_of`] leads from stream to
//! file, [`View::stream_before`] back, both in O(depth · log) of the filetype's
//! tree and in O(1) of the number of its copies.

use std::sync::Arc;

use thiserror::Error;

use crate::code::{DecodeError, decode_number, encode_number};
use crate::runs::{ShapeBlocks, StridedRun, StridedRuns};
use crate::shape::Shape;
use crate::shape_node::{BlockOrder, ShapeBody, ShapeNode, mix_hash};

/// The largest offset of a byte of a file.
pub const MAX_OFFSET: u64 = i64::MAX as u64 - 1;

/// Why a filetype makes no view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ViewError {
    /// A visible byte would lie before the file or past its last offset.
    #[error("displacement and filetype lead to a byte before the file, or past its largest offset")]
    Outside,
    /// A displacement is below zero.
    #[error("the filetype has a negative displacement")]
    Negative,
    /// Displacements are not in non-decreasing order.
    #[error("the displacements of the filetype decrease")]
    Decreasing,
    /// Blocks of the filetype overlap, or a copy of it begins before the end of the copy before: no
    /// [`View`], but a [`crate::ProgramView`].
    #[error("the filetype overlaps itself, or its copies reach into one another")]
    Disorder,
    /// The filetype is not made of whole etypes.
    #[error("the filetype has {filetype} bytes, which is no multiple of the etype's {etype}")]
    Etype {
        /// Size of the filetype in bytes.
        filetype: u64,
        /// Size of the etype in bytes.
        etype: u64,
    },
}

/// A file view that is in file order and shows no byte twice: tiles and the index rely on that. A
/// program sets a [`crate::ProgramView`]. Cheap to clone.
///
/// Two views are equal when they show the same bytes in the same order, as far as their folded
/// trees show; the etype does not count.
#[derive(Clone, Debug)]
pub struct View(Arc<ViewInner>);

#[derive(Debug)]
struct ViewInner {
    disp: u64,
    etype: u64,
    filetype: Shape,
    /// The endless repetition in its simplest form: copies of `kind`, the first at
    /// `origin`, `period` bytes apart, each with `size` bytes of data.
    origin: u64,
    kind: ShapeNode,
    period: u64,
    size: u64,
    hash: u64,
}

impl PartialEq for View {
    fn eq(&self, other: &View) -> bool {
        let (a, b) = (&*self.0, &*other.0);
        Arc::ptr_eq(&self.0, &other.0)
            || (a.hash == b.hash
                && a.origin == b.origin
                && a.period == b.period
                && a.kind == b.kind)
    }
}

impl Eq for View {}

impl View {
    /// The default view: every byte of the file.
    pub fn all_bytes() -> View {
        View(Arc::new(ViewInner {
            disp: 0,
            etype: 1,
            filetype: Shape::one_byte(),
            origin: 0,
            kind: ShapeNode::Run(1),
            period: 1,
            size: 1,
            hash: hash_view(0, &ShapeNode::Run(1), 1),
        }))
    }

    /// The view of `MPI_File_set_view`: copies of `filetype`, one extent after the
    /// other, from byte `disp` of the file on. `etype_size` in bytes; it may be 0 for a
    /// filetype without data.
    ///
    /// # Errors
    ///
    /// A filetype that is no multiple of the etype, has bytes before its displacement 0, or blocks
    /// that are not in order; [`ViewError::Disorder`] where blocks or copies overlap, which shows
    /// only in an access that reaches the same byte twice or a later copy.
    pub fn new(disp: u64, etype_size: u64, filetype: Shape) -> Result<View, ViewError> {
        let body = &filetype.body;
        let facts = body.kind.facts();
        if facts.size > 0 && (etype_size == 0 || !facts.size.is_multiple_of(etype_size)) {
            return Err(ViewError::Etype { filetype: facts.size, etype: etype_size });
        }
        if facts.size > 0 && body.disp.saturating_add(facts.low) < 0 {
            return Err(ViewError::Negative);
        }
        if facts.order == BlockOrder::Mixed {
            return Err(ViewError::Decreasing);
        }
        let extent = filetype.extent();
        let span = i128::from(facts.high) - i128::from(facts.low);
        if facts.order != BlockOrder::Apart || (facts.size > 0 && i128::from(extent) < span) {
            return Err(ViewError::Disorder);
        }
        let origin = disp.saturating_add(body.disp as u64);
        if disp > MAX_OFFSET || (facts.size > 0 && origin > MAX_OFFSET) {
            return Err(ViewError::Outside);
        }
        let (kind, period) = simplify_copies(body, extent as u64);
        let size = kind.size();
        let origin = if size == 0 { disp } else { origin };
        let hash = hash_view(origin, &kind, period);
        let etype = etype_size;
        Ok(View(Arc::new(ViewInner { disp, etype, filetype, origin, kind, period, size, hash })))
    }

    /// Whether the two are one object in memory: an answer without comparing them.
    pub fn is_same(&self, other: &View) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Whether the view is one run of bytes without end, from some displacement on: the view of a
    /// program that sets none, or sets a contiguous filetype.
    pub fn is_default(&self) -> bool {
        matches!(self.0.kind, ShapeNode::Run(len) if len > 0 && len == self.0.period)
    }

    /// Where the view begins in the file, in bytes.
    pub fn disp(&self) -> u64 {
        self.0.disp
    }

    /// Bytes of the etype.
    pub fn etype_size(&self) -> u64 {
        self.0.etype
    }

    /// Bytes of data of one filetype.
    pub fn filetype_size(&self) -> u64 {
        self.0.filetype.size()
    }

    /// The filetype.
    pub fn filetype(&self) -> &Shape {
        &self.0.filetype
    }

    /// The file offset of byte `stream`; `u64::MAX` when that lies past
    /// [`MAX_OFFSET`], or the view shows nothing.
    pub fn offset_of(&self, stream: u64) -> u64 {
        let v = &*self.0;
        if v.size == 0 {
            return u64::MAX;
        }
        let (copy, rest) = (stream / v.size, stream % v.size);
        let at = u128::from(v.origin)
            + u128::from(copy) * u128::from(v.period)
            + place_of_byte(&v.kind, rest) as u128;
        if at > u128::from(MAX_OFFSET) { u64::MAX } else { at as u64 }
    }

    /// Returns how many stream bytes lie before `offset` in the file, and whether the byte at
    /// `offset` is itself visible (then it is the stream byte of that number).
    pub fn stream_before(&self, offset: u64) -> (u64, bool) {
        let (before, visible, _) = self.run_at(offset);
        (before, visible)
    }

    /// The same, and how many bytes from `offset` on are visible without a gap, as far as one leaf
    /// of the tree shows.
    pub(crate) fn run_at(&self, offset: u64) -> (u64, bool, u64) {
        let v = &*self.0;
        let offset = offset.min(MAX_OFFSET + 1);
        if v.size == 0 || offset < v.origin {
            return (0, false, 0);
        }
        let (copy, rest) = ((offset - v.origin) / v.period, (offset - v.origin) % v.period);
        let (before, run) = data_before(&v.kind, rest as i64);
        let endless = self.is_default();
        let run = if endless { MAX_OFFSET + 1 - offset } else { run };
        (copy.saturating_mul(v.size).saturating_add(before), run > 0, run)
    }

    /// The runs of the file that hold the stream bytes `stream .. stream + len`: offset and length,
    /// in stream order, touching ones joined. Ends where the file could have no more bytes.
    pub fn extents(&self, stream: u64, len: u64) -> Extents<'_> {
        Extents(ShapeBlocks::new(self.inner_runs(stream, len)))
    }

    /// The same as strided runs; displacements are file offsets.
    pub fn strided_runs(&self, stream: u64, len: u64) -> impl Iterator<Item = StridedRun> + '_ {
        self.inner_runs(stream, len)
    }

    fn inner_runs(&self, stream: u64, len: u64) -> StridedRuns<'_> {
        let v = &*self.0;
        let mut len = len.min(u64::MAX - stream);
        if len > 0 && self.offset_of(stream + (len - 1)) == u64::MAX {
            let end = match self.stream_before(MAX_OFFSET) {
                (at, true) => at + 1,
                (end, false) => end,
            };
            len = end.saturating_sub(stream);
        }
        StridedRuns::new(&v.kind, v.origin as i64, v.period as i64, stream, len)
    }

    /// The part that is repeated without end, the place of its first copy, and the distance between
    /// copies.
    pub(crate) fn simplest_form(&self) -> (&ShapeNode, u64, u64) {
        (&self.0.kind, self.0.origin, self.0.period)
    }

    /// A number that equal views share.
    pub(crate) fn hash(&self) -> u64 {
        self.0.hash
    }

    /// Appends the view's encoding: see docs/reference/formats.md.
    pub fn encode(&self, out: &mut Vec<u8>) {
        encode_number(out, self.0.disp);
        encode_number(out, self.0.etype);
        self.0.filetype.encode(out);
    }

    /// Takes an encoded view.
    ///
    /// # Errors
    ///
    /// Bytes that are no view. What is allocated is bounded by the length of `from`.
    pub fn decode(from: &mut &[u8]) -> Result<View, DecodeError> {
        let disp = decode_number(from)?;
        let etype = decode_number(from)?;
        let filetype = Shape::decode(from)?;
        View::new(disp, etype, filetype).map_err(|_| DecodeError::Invalid("no valid view"))
    }
}

fn hash_view(origin: u64, kind: &ShapeNode, period: u64) -> u64 {
    mix_hash(mix_hash(origin, period), kind.facts().hash)
}

/// Returns the smallest part whose copies are the same sequence of blocks.
fn simplify_copies(body: &ShapeBody, extent: u64) -> (ShapeNode, u64) {
    let (mut kind, mut period) = (body.kind.clone(), extent);
    while let ShapeNode::Vector(v) = &kind {
        if i128::from(v.stride) * i128::from(v.count) != i128::from(period) {
            break;
        }
        period = v.stride as u64;
        kind = v.child.clone();
    }
    match kind {
        ShapeNode::Run(0) => (kind, 1),
        ShapeNode::Run(len) if len == period => (ShapeNode::Run(1), 1),
        _ => (kind, period),
    }
}

/// Returns the place of byte `rest` of a part's data. `rest` is below its size.
pub(crate) fn place_of_byte(kind: &ShapeNode, mut rest: u64) -> i64 {
    let (mut kind, mut at) = (kind, 0i64);
    loop {
        match kind {
            ShapeNode::Run(_) => return at + rest as i64,
            ShapeNode::Vector(v) => {
                let size = v.child.size();
                at += (rest / size) as i64 * v.stride;
                rest %= size;
                kind = &v.child;
            }
            ShapeNode::List(l) => {
                let part = &l.parts[l.parts.partition_point(|p| p.start <= rest) - 1];
                at += part.disp;
                rest -= part.start;
                kind = &part.kind;
            }
        }
    }
}

/// Counts the bytes of a part's data before place `at`, which is not before its first block, and
/// the contiguous bytes from there on. The blocks of the part are apart.
fn data_before(kind: &ShapeNode, mut at: i64) -> (u64, u64) {
    let (mut kind, mut before) = (kind, 0u64);
    loop {
        match kind {
            ShapeNode::Run(len) => {
                let inside = (at as u64).min(*len);
                return (before + inside, len - inside);
            }
            ShapeNode::Vector(v) => {
                let copy = (at as u64 / v.stride as u64).min(v.count - 1);
                before += copy * v.child.size();
                at -= copy as i64 * v.stride;
                kind = &v.child;
            }
            ShapeNode::List(l) => {
                let part = &l.parts[l.parts.partition_point(|p| p.disp <= at) - 1];
                before += part.start;
                at -= part.disp;
                kind = &part.kind;
            }
        }
    }
}

/// Iterator over the contiguous runs of a stretch of a view: file offset and length.
#[derive(Clone, Debug)]
pub struct Extents<'a>(ShapeBlocks<'a>);

impl Iterator for Extents<'_> {
    type Item = (u64, u64);

    fn next(&mut self) -> Option<(u64, u64)> {
        self.0.next().map(|(at, len)| (at as u64, len))
    }
}
