//! Datatypes without their basic types: nested strided runs of bytes.
//!
//! A [`Shape`] is an MPI datatype reduced to places: a sequence of runs of bytes in *type-map
//! order* (the order in which data is packed), a lower bound and an extent. It is kept as a tree of
//! repetitions, and as a list of blocks only where the blocks follow no rule: a vector of a million
//! blocks is one node. Equal neighbours at equal distances are found and folded when a shape is
//! made, so that an `indexed` type that is regular costs no more than the equivalent `vector`.
//! (Datatype flattening of ROMIO; "listless I/O" of Worringen, Träff and Ritzdorf, 2003.)

use crate::runs::{ShapeBlocks, StridedRuns};
use crate::shape_node::{ShapeBody, ShapeError, ShapeNode, checked_i64, checked_size};

/// A datatype without its basic types. Cheap to clone.
///
/// Sizes and displacements are in bytes and below 2⁶³. Two shapes are equal when
/// they were folded to the same tree; equal shapes have the same blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    lb: i64,
    extent: i64,
    pub(crate) body: ShapeBody,
}

impl Shape {
    /// `len` contiguous bytes.
    pub fn bytes(len: u64) -> Result<Shape, ShapeError> {
        let len = checked_size(u128::from(len))?;
        let body = ShapeBody { disp: 0, kind: ShapeNode::Run(len) };
        Ok(Shape { lb: 0, extent: len as i64, body })
    }

    /// `count` copies, each one extent after the other (`MPI_Type_contiguous`).
    pub fn contiguous(count: u64, child: &Shape) -> Result<Shape, ShapeError> {
        Shape::repeat_spaced(count, child.extent, child)
    }

    /// `count` blocks of `blocklen` copies, `stride` bytes from block to block
    /// (`MPI_Type_create_hvector`).
    pub fn hvector(
        count: u64,
        blocklen: u64,
        stride: i64,
        child: &Shape,
    ) -> Result<Shape, ShapeError> {
        Shape::repeat_spaced(count, stride, &Shape::contiguous(blocklen, child)?)
    }

    /// Blocks of `blocks[i].0` copies at displacement `blocks[i].1` (`MPI_Type_create_hindexed`).
    pub fn hindexed(blocks: &[(u64, i64)], child: &Shape) -> Result<Shape, ShapeError> {
        let mut known: Option<(u64, Shape)> = None;
        let mut all = ShapeBuilder::default();
        for &(count, disp) in blocks {
            let block = match &known {
                Some((same, block)) if *same == count => block.clone(),
                _ => Shape::contiguous(count, child)?,
            };
            all.add_block(count, disp, &block)?;
            known = Some((count, block));
        }
        all.into_shape()
    }

    /// Blocks of a number of copies of a shape at a displacement, one per element of `blocks`
    /// (`MPI_Type_create_struct`). No padding for alignment is added.
    pub fn structure(blocks: &[(u64, i64, Shape)]) -> Result<Shape, ShapeError> {
        let mut all = ShapeBuilder::default();
        for (count, disp, child) in blocks {
            all.add_block(*count, *disp, &Shape::contiguous(*count, child)?)?;
        }
        all.into_shape()
    }

    /// The same data with another lower bound and extent
    /// (`MPI_Type_create_resized`).
    pub fn resized(lb: i64, extent: i64, child: &Shape) -> Result<Shape, ShapeError> {
        Shape::from_body(lb, extent, child.body.clone())
    }

    /// One byte: the filetype of the default view.
    pub(crate) fn one_byte() -> Shape {
        Shape { lb: 0, extent: 1, body: ShapeBody { disp: 0, kind: ShapeNode::Run(1) } }
    }

    pub(crate) fn from_body(lb: i64, extent: i64, body: ShapeBody) -> Result<Shape, ShapeError> {
        checked_i64(i128::from(lb) + i128::from(extent))?;
        Ok(Shape { lb, extent, body })
    }

    fn repeat_spaced(count: u64, stride: i64, child: &Shape) -> Result<Shape, ShapeError> {
        if count == 0 {
            return Shape::bytes(0);
        }
        let way = i128::from(stride) * i128::from(count - 1);
        let (lb, ub) = (i128::from(child.lb), i128::from(child.lb) + i128::from(child.extent));
        let (lb, ub) = (lb.min(lb + way), ub.max(ub + way));
        Shape::with_bounds(lb, ub, child.body.repeat_body(count, stride)?)
    }

    fn with_bounds(lb: i128, ub: i128, body: ShapeBody) -> Result<Shape, ShapeError> {
        checked_i64(ub)?;
        Ok(Shape { lb: checked_i64(lb)?, extent: checked_i64(ub - lb)?, body })
    }

    /// Bytes of data.
    pub fn size(&self) -> u64 {
        self.body.kind.size()
    }

    /// The lower bound.
    pub fn lb(&self) -> i64 {
        self.lb
    }

    /// The distance from one copy to the next.
    pub fn extent(&self) -> i64 {
        self.extent
    }

    /// The lowest byte of data, 0 where there is none.
    pub fn true_lb(&self) -> i64 {
        // In range: checked when the part was put at its place.
        self.body.disp + self.body.kind.facts().low
    }

    /// The distance from the lowest byte of data to the end of the highest. At most `i64::MAX`,
    /// also for data further apart.
    pub fn true_extent(&self) -> i64 {
        let facts = self.body.kind.facts();
        facts.high.saturating_sub(facts.low)
    }

    /// Whether copies of the shape are one run of bytes that begins at
    /// displacement 0, however many there are.
    pub fn is_contiguous(&self) -> bool {
        match self.body.kind {
            ShapeNode::Run(0) => true,
            ShapeNode::Run(len) => self.body.disp == 0 && self.extent == len as i64,
            _ => false,
        }
    }

    /// The runs of the data bytes `from .. from + len` of endlessly many copies
    /// of the shape, in type-map order, blocks that touch joined. Starts in
    /// O(depth · log), then O(1) amortised a block. Displacements
    /// past 63 bits wrap.
    pub fn blocks(&self, from: u64, len: u64) -> ShapeBlocks<'_> {
        ShapeBlocks::new(self.runs(from, len))
    }

    /// The same as strided runs, for copying loops.
    pub fn runs(&self, from: u64, len: u64) -> StridedRuns<'_> {
        StridedRuns::new(&self.body.kind, self.body.disp, self.extent, from, len)
    }
}

/// Blocks that are being combined into one shape.
#[derive(Default)]
struct ShapeBuilder {
    bounds: Option<(i128, i128)>,
    parts: Vec<ShapeBody>,
}

impl ShapeBuilder {
    fn add_block(&mut self, count: u64, disp: i64, block: &Shape) -> Result<(), ShapeError> {
        if count == 0 {
            return Ok(());
        }
        let lb = i128::from(disp) + i128::from(block.lb);
        let ub = lb + i128::from(block.extent);
        let (low, high) = self.bounds.unwrap_or((lb, ub));
        self.bounds = Some((low.min(lb), high.max(ub)));
        if block.size() > 0 {
            self.parts.push(block.body.shift_by(disp)?);
        }
        Ok(())
    }

    fn into_shape(self) -> Result<Shape, ShapeError> {
        let (lb, ub) = self.bounds.unwrap_or((0, 0));
        Shape::with_bounds(lb, ub, ShapeBody::from_parts(self.parts)?)
    }
}
