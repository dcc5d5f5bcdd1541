//! The tree of a shape: runs, vectors and lists of parts, folded where the parts follow a rule.

use std::sync::Arc;

use thiserror::Error;

/// How deep repetitions may be nested.
pub const MAX_DEPTH: u8 = 64;

/// How many nodes the tree of one shape may have.
pub const MAX_WEIGHT: u64 = 1 << 26;

/// Why a shape cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ShapeError {
    /// A size or a displacement does not fit into 63 bits.
    #[error("a size or displacement of the datatype does not fit into 63 bits")]
    Overflow,
    /// More than [`MAX_DEPTH`] nested repetitions.
    #[error("the datatype is nested more than {MAX_DEPTH} deep")]
    TooDeep,
    /// More than [`MAX_WEIGHT`] irregular parts.
    #[error("the datatype has more than {MAX_WEIGHT} irregular parts")]
    TooComplex,
}

/// How the blocks of a part follow one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum BlockOrder {
    /// Each block begins at or after the end of the one before.
    Apart,
    /// Each block begins at or after the beginning of the one before; some overlap.
    Overlapping,
    /// Some block begins before the one that precedes it.
    Mixed,
}

/// Properties of a part, known without walking it. Places are relative to the part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PartFacts {
    /// A number that equal parts share. It comes first, as the first to be compared.
    pub hash: u64,
    /// Bytes of data.
    pub size: u64,
    /// The lowest byte, and the one after the highest.
    pub low: i64,
    pub high: i64,
    /// Where the last block (in type-map order) begins. The first begins at 0.
    pub last: i64,
    /// Nodes of the tree.
    pub weight: u64,
    pub depth: u8,
    pub order: BlockOrder,
}

/// A part of a shape, the first byte of its first block at 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ShapeNode {
    /// This number of contiguous bytes.
    Run(u64),
    Vector(Arc<ShapeVector>),
    List(Arc<ShapeList>),
}

/// `count` ≥ 2 copies of `child`, `stride` bytes from one to the next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ShapeVector {
    pub facts: PartFacts,
    pub count: u64,
    pub stride: i64,
    pub child: ShapeNode,
}

/// Two or more parts without a rule. The first is at 0. Equal neighbours share one node in memory.
#[derive(Debug)]
pub(crate) struct ShapeList {
    pub facts: PartFacts,
    pub parts: Box<[ShapePart]>,
}

impl PartialEq for ShapeList {
    /// Compares equal neighbours once: lists of equal lists of equal lists would otherwise be
    /// walked as often as they have blocks.
    fn eq(&self, other: &ShapeList) -> bool {
        if self.facts != other.facts || self.parts.len() != other.parts.len() {
            return false;
        }
        let mut last: Option<(&ShapePart, &ShapePart)> = None;
        self.parts.iter().zip(&other.parts).all(|(a, b)| {
            let again = last
                .is_some_and(|(x, y)| x.kind.is_same_node(&a.kind) && y.kind.is_same_node(&b.kind));
            last = Some((a, b));
            (a.start, a.disp) == (b.start, b.disp) && (again || a.kind == b.kind)
        })
    }
}

impl Eq for ShapeList {}

/// One part of a [`ShapeList`].
#[derive(Clone, Debug)]
pub(crate) struct ShapePart {
    /// Bytes of data in the parts before.
    pub start: u64,
    pub disp: i64,
    pub kind: ShapeNode,
}

/// A part at its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ShapeBody {
    pub disp: i64,
    pub kind: ShapeNode,
}

const EMPTY: ShapeBody = ShapeBody { disp: 0, kind: ShapeNode::Run(0) };

/// Returns the number if it fits into 63 bits and a sign.
pub(crate) fn checked_i64(n: i128) -> Result<i64, ShapeError> {
    i64::try_from(n).map_err(|_| ShapeError::Overflow)
}

/// Returns the size if it fits into 63 bits.
pub(crate) fn checked_size(n: u128) -> Result<u64, ShapeError> {
    i64::try_from(n).map(|n| n as u64).map_err(|_| ShapeError::Overflow)
}

/// Returns a hash of `next` and the numbers before it.
pub(crate) fn mix_hash(before: u64, next: u64) -> u64 {
    let hash = (before.rotate_left(23) ^ next).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    hash ^ (hash >> 32)
}

impl ShapeNode {
    /// Whether the two are one node in memory.
    fn is_same_node(&self, other: &ShapeNode) -> bool {
        match (self, other) {
            (ShapeNode::Vector(a), ShapeNode::Vector(b)) => Arc::ptr_eq(a, b),
            (ShapeNode::List(a), ShapeNode::List(b)) => Arc::ptr_eq(a, b),
            (ShapeNode::Run(a), ShapeNode::Run(b)) => a == b,
            _ => false,
        }
    }

    pub fn facts(&self) -> PartFacts {
        match self {
            ShapeNode::Run(len) => PartFacts {
                hash: mix_hash(1, *len),
                size: *len,
                low: 0,
                high: *len as i64,
                last: 0,
                weight: 1,
                depth: 0,
                order: BlockOrder::Apart,
            },
            ShapeNode::Vector(vector) => vector.facts,
            ShapeNode::List(list) => list.facts,
        }
    }

    pub fn size(&self) -> u64 {
        match self {
            ShapeNode::Run(len) => *len,
            ShapeNode::Vector(vector) => vector.facts.size,
            ShapeNode::List(list) => list.facts.size,
        }
    }

    /// `count` copies, `stride` apart.
    pub fn repeat_part(&self, count: u64, stride: i64) -> Result<ShapeNode, ShapeError> {
        if count == 0 || self.size() == 0 {
            return Ok(ShapeNode::Run(0));
        }
        if count == 1 {
            return Ok(self.clone());
        }
        match self {
            ShapeNode::Run(len) if stride == *len as i64 => {
                return Ok(ShapeNode::Run(checked_size(u128::from(*len) * u128::from(count))?));
            }
            ShapeNode::Vector(inner)
                if i128::from(inner.stride) * i128::from(inner.count) == i128::from(stride) =>
            {
                let all = inner.count.checked_mul(count).ok_or(ShapeError::Overflow)?;
                return ShapeNode::new_vector(all, inner.stride, inner.child.clone());
            }
            _ => {}
        }
        ShapeNode::new_vector(count, stride, self.clone())
    }

    fn new_vector(count: u64, stride: i64, child: ShapeNode) -> Result<ShapeNode, ShapeError> {
        let of = child.facts();
        let size = checked_size(u128::from(of.size) * u128::from(count))?;
        // One block has a byte at least, so count is below 2^63 here.
        let way = i128::from(stride) * i128::from(count - 1);
        let apart = i128::from(stride);
        let order =
            if of.order == BlockOrder::Apart && apart >= i128::from(of.high) - i128::from(of.low) {
                BlockOrder::Apart
            } else if of.order < BlockOrder::Mixed && apart >= i128::from(of.last) {
                BlockOrder::Overlapping
            } else {
                BlockOrder::Mixed
            };
        if of.depth >= MAX_DEPTH {
            return Err(ShapeError::TooDeep);
        }
        let facts = PartFacts {
            hash: mix_hash(mix_hash(mix_hash(2, count), stride as u64), of.hash),
            size,
            low: checked_i64(way.min(0) + i128::from(of.low))?,
            high: checked_i64(way.max(0) + i128::from(of.high))?,
            last: checked_i64(way + i128::from(of.last))?,
            weight: of.weight + 1,
            depth: of.depth + 1,
            order,
        };
        if facts.weight > MAX_WEIGHT {
            return Err(ShapeError::TooComplex);
        }
        Ok(ShapeNode::Vector(Arc::new(ShapeVector { count, stride, child, facts })))
    }
}

impl ShapeBody {
    /// The same, `by` bytes further on.
    pub fn shift_by(&self, by: i64) -> Result<ShapeBody, ShapeError> {
        if self.kind.size() == 0 {
            return Ok(EMPTY);
        }
        let facts = self.kind.facts();
        let disp = i128::from(self.disp) + i128::from(by);
        checked_i64(disp + i128::from(facts.low))?;
        checked_i64(disp + i128::from(facts.high))?;
        Ok(ShapeBody { disp: checked_i64(disp)?, kind: self.kind.clone() })
    }

    /// `count` copies, `stride` apart.
    pub fn repeat_body(&self, count: u64, stride: i64) -> Result<ShapeBody, ShapeError> {
        ShapeBody { disp: 0, kind: self.kind.repeat_part(count, stride)? }.shift_by(self.disp)
    }

    /// Combines the parts one after the other, folded where they follow a rule.
    pub fn from_parts(parts: Vec<ShapeBody>) -> Result<ShapeBody, ShapeError> {
        let mut parts: Vec<ShapeBody> = parts.into_iter().filter(|p| p.kind.size() > 0).collect();
        while join_runs(&mut parts) | fold_strides(&mut parts)? || fold_period(&mut parts)? {}
        match parts.len() {
            0 => Ok(EMPTY),
            1 => Ok(parts.swap_remove(0)),
            _ => ShapeBody::new_list(&parts),
        }
    }

    /// A list of two or more parts as they are.
    fn new_list(bodies: &[ShapeBody]) -> Result<ShapeBody, ShapeError> {
        let origin = bodies[0].disp;
        let mut parts: Vec<ShapePart> = Vec::with_capacity(bodies.len());
        let mut facts = PartFacts { hash: 3, weight: 1, ..bodies[0].kind.facts() };
        let mut size = 0u128;
        let (mut depth, mut ends) = (0, i64::MIN);
        for (i, body) in bodies.iter().enumerate() {
            let of = body.kind.facts();
            let disp = checked_i64(i128::from(body.disp) - i128::from(origin))?;
            let place = |at: i64| checked_i64(i128::from(disp) + i128::from(at));
            let (low, high) = (place(of.low)?, place(of.high)?);
            if i > 0 {
                facts.order = facts.order.max(of.order);
                if disp < facts.last {
                    facts.order = BlockOrder::Mixed;
                } else if low < ends {
                    facts.order = facts.order.max(BlockOrder::Overlapping);
                }
            }
            facts.low = facts.low.min(low);
            facts.high = facts.high.max(high);
            facts.last = place(of.last)?;
            ends = ends.max(high);
            facts.hash = mix_hash(mix_hash(facts.hash, disp as u64), of.hash);
            let same = parts.last().map(|p| &p.kind).filter(|kind| **kind == body.kind);
            facts.weight += if same.is_some() { 1 } else { of.weight };
            if facts.weight > MAX_WEIGHT {
                return Err(ShapeError::TooComplex);
            }
            depth = depth.max(of.depth);
            let kind = same.unwrap_or(&body.kind).clone();
            parts.push(ShapePart { start: checked_size(size)?, disp, kind });
            size += u128::from(of.size);
        }
        facts.size = checked_size(size)?;
        if depth >= MAX_DEPTH {
            return Err(ShapeError::TooDeep);
        }
        facts.depth = depth + 1;
        let kind = ShapeNode::List(Arc::new(ShapeList { parts: parts.into(), facts }));
        ShapeBody { disp: 0, kind }.shift_by(origin)
    }
}

/// Joins runs that touch. Returns whether there were any.
fn join_runs(parts: &mut Vec<ShapeBody>) -> bool {
    let before = parts.len();
    parts.dedup_by(|next, last| match (&next.kind, &mut last.kind) {
        (ShapeNode::Run(more), ShapeNode::Run(len))
            if last.disp.checked_add(*len as i64) == Some(next.disp) =>
        {
            match len.checked_add(*more).filter(|&sum| sum <= i64::MAX as u64) {
                Some(sum) => *len = sum,
                None => return false,
            }
            true
        }
        _ => false,
    });
    parts.len() != before
}

/// Replaces three or more equal parts at equal distances by one. Returns whether there were any.
fn fold_strides(parts: &mut Vec<ShapeBody>) -> Result<bool, ShapeError> {
    let step = |i: usize| {
        (parts[i].kind == parts[i + 1].kind)
            .then(|| parts[i + 1].disp.checked_sub(parts[i].disp))
            .flatten()
    };
    let mut out = Vec::new();
    let (mut i, mut folded) = (0, false);
    while i < parts.len() {
        let stride = if i + 2 < parts.len() { step(i) } else { None };
        let mut end = i + 1;
        if stride.is_some() {
            while end < parts.len() && step(end - 1) == stride {
                end += 1;
            }
        }
        match stride {
            Some(stride) if end - i >= 3 && parts[i].kind.facts().depth < MAX_DEPTH => {
                out.push(parts[i].repeat_body((end - i) as u64, stride)?);
                folded = true;
                i = end;
            }
            _ => {
                out.push(parts[i].clone());
                i += 1;
            }
        }
    }
    *parts = out;
    Ok(folded)
}

/// The longest sequence of parts that is tried as a repeated one.
const MAX_PERIOD: usize = 64;

/// Most parts before the repeated sequence.
const MAX_LEAD: usize = 3;

/// Replaces a sequence that is repeated by one part, where that is half of the list or more.
/// Returns whether there was one.
fn fold_period(parts: &mut Vec<ShapeBody>) -> Result<bool, ShapeError> {
    for lead in 0..=MAX_LEAD.min(parts.len()) {
        let rest = &parts[lead..];
        let apart = |i: usize, p: usize| rest[i].disp.checked_sub(rest[i - p].disp);
        for p in 2..=MAX_PERIOD.min(rest.len() / 2) {
            let Some(stride) = apart(p, p) else { continue };
            let same = (p..rest.len())
                .take_while(|&i| apart(i, p) == Some(stride) && rest[i].kind == rest[i - p].kind)
                .count();
            let whole = (same + p) / p;
            if whole < 2 || whole * p * 2 < parts.len() {
                continue;
            }
            let one = ShapeBody::from_parts(rest[..p].to_vec())?;
            if one.kind.facts().depth >= MAX_DEPTH {
                return Ok(false);
            }
            let all = one.repeat_body(whole as u64, stride)?;
            parts.splice(lead..lead + whole * p, [all]);
            return Ok(true);
        }
    }
    Ok(false)
}
