//! Walks a shape from any byte of its data on, without visiting the data before.

use crate::shape_node::{ShapeNode, ShapePart};

/// Blocks of equal length at equal distances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StridedRun {
    /// Where the first block begins, in bytes.
    pub disp: i64,
    /// Length of each block in bytes, never 0.
    pub block: u64,
    /// From the beginning of a block to that of the next, in bytes. Without meaning for a single
    /// block.
    pub stride: i64,
    /// Number of blocks, never 0.
    pub count: u64,
}

/// A strided run of the file with the place of its first byte in a piece or a request, where its
/// blocks are contiguous.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlacedRun {
    pub from: u64,
    pub block: u64,
    pub stride: u64,
    pub count: u64,
    pub place: u64,
}

impl PlacedRun {
    pub fn from_run(run: StridedRun, place: u64) -> PlacedRun {
        let StridedRun { disp, block, stride, count } = run;
        PlacedRun { from: disp as u64, block, stride: stride as u64, count, place }
    }

    pub fn end(&self) -> u64 {
        self.from + (self.count - 1) * self.stride + self.block
    }

    pub fn len(&self) -> u64 {
        self.block * self.count
    }

    /// Returns the first block that ends after `at`: where it begins, and its place.
    pub fn first_block_after(&self, at: u64) -> Option<(u64, u64)> {
        let mut number = 0;
        if at >= self.from + self.block {
            if self.count == 1 {
                return None;
            }
            number = (at - self.from) / self.stride;
            if at - self.from - number * self.stride >= self.block {
                number += 1;
            }
        }
        let block = (self.from + number * self.stride, self.place + number * self.block);
        (number < self.count).then_some(block)
    }

    /// Counts its bytes in `len` bytes of the file, a multiple of its stride.
    pub fn data_len_in(&self, len: u64) -> u64 {
        if self.count == 1 { len } else { len / self.stride * self.block }
    }
}

/// A part, some copies of which have been visited.
#[derive(Clone, Debug)]
enum WalkLevel<'a> {
    Copies { child: &'a ShapeNode, base: i64, stride: i64, next: u64, count: u64 },
    Parts { parts: &'a [ShapePart], base: i64, next: usize },
}

/// Iterator over the strided runs of a stretch of data, in type-map order.
#[derive(Clone, Debug)]
pub struct StridedRuns<'a> {
    levels: Vec<WalkLevel<'a>>,
    /// The rest of a block that the stretch begins in.
    head: Option<(i64, u64)>,
    left: u64,
}

impl<'a> StridedRuns<'a> {
    /// Endless copies of `kind`, the first at `base`, `extent` apart.
    pub(crate) fn new(
        kind: &'a ShapeNode,
        base: i64,
        extent: i64,
        from: u64,
        len: u64,
    ) -> StridedRuns<'a> {
        let mut runs = StridedRuns { levels: Vec::new(), head: None, left: len };
        if kind.size() == 0 {
            runs.left = 0;
        }
        if runs.left > 0 {
            runs.levels.push(WalkLevel::Copies {
                child: kind,
                base,
                stride: extent,
                next: 0,
                count: u64::MAX,
            });
            runs.skip_data(from);
        }
        runs
    }

    /// Skips `skip` bytes of data from the beginning of the last level on.
    fn skip_data(&mut self, mut skip: u64) {
        while skip > 0 {
            let (kind, at) = match self.levels.last_mut() {
                Some(WalkLevel::Copies { child, base, stride, next, .. }) => {
                    let (whole, rest) = (skip / child.size(), skip % child.size());
                    *next = whole;
                    skip = rest;
                    if rest == 0 {
                        return;
                    }
                    *next += 1;
                    (*child, base.wrapping_add((whole as i64).wrapping_mul(*stride)))
                }
                Some(WalkLevel::Parts { parts, base, next }) => {
                    let part = parts.partition_point(|p| p.start <= skip) - 1;
                    *next = part;
                    skip -= parts[part].start;
                    if skip == 0 {
                        return;
                    }
                    *next += 1;
                    (&parts[part].kind, base.wrapping_add(parts[part].disp))
                }
                None => return,
            };
            match kind {
                ShapeNode::Run(len) => {
                    self.head = Some((at.wrapping_add(skip as i64), len - skip));
                    return;
                }
                other => self.enter_part(other, at),
            }
        }
    }

    /// Descends into a part that is no run.
    fn enter_part(&mut self, kind: &'a ShapeNode, base: i64) {
        match kind {
            ShapeNode::Run(_) => {}
            ShapeNode::Vector(v) => self.levels.push(WalkLevel::Copies {
                child: &v.child,
                base,
                stride: v.stride,
                next: 0,
                count: v.count,
            }),
            ShapeNode::List(l) => {
                self.levels.push(WalkLevel::Parts { parts: &l.parts, base, next: 0 })
            }
        }
    }

    fn single_block(&mut self, disp: i64, len: u64) -> StridedRun {
        let block = len.min(self.left);
        self.left -= block;
        StridedRun { disp, block, stride: block as i64, count: 1 }
    }
}

impl Iterator for StridedRuns<'_> {
    type Item = StridedRun;

    fn next(&mut self) -> Option<StridedRun> {
        if self.left == 0 {
            return None;
        }
        if let Some((disp, len)) = self.head.take() {
            return Some(self.single_block(disp, len));
        }
        loop {
            let left = self.left;
            match self.levels.last_mut()? {
                WalkLevel::Copies { next, count, .. } if next == count => {
                    self.levels.pop();
                }
                WalkLevel::Copies { child, base, stride, next, count } => {
                    let disp = base.wrapping_add((*next as i64).wrapping_mul(*stride));
                    let ShapeNode::Run(len) = **child else {
                        *next += 1;
                        let child = *child;
                        self.enter_part(child, disp);
                        continue;
                    };
                    if *stride == len as i64 {
                        let all = (*count - *next).saturating_mul(len);
                        *next = *count;
                        return Some(self.single_block(disp, all));
                    }
                    let whole = (left / len).min(*count - *next);
                    if whole == 0 {
                        return Some(self.single_block(disp, left));
                    }
                    *next += whole;
                    self.left -= whole * len;
                    return Some(StridedRun { disp, block: len, stride: *stride, count: whole });
                }
                WalkLevel::Parts { parts, next, .. } if *next == parts.len() => {
                    self.levels.pop();
                }
                WalkLevel::Parts { parts, base, next } => {
                    let part = &parts[*next];
                    let disp = base.wrapping_add(part.disp);
                    *next += 1;
                    match &part.kind {
                        ShapeNode::Run(len) => {
                            let len = *len;
                            return Some(self.single_block(disp, len));
                        }
                        other => self.enter_part(other, disp),
                    }
                }
            }
        }
    }
}

/// Iterator over the blocks of a stretch of data: displacement and length of
/// each, in type-map order, those that touch joined.
#[derive(Clone, Debug)]
pub struct ShapeBlocks<'a> {
    runs: StridedRuns<'a>,
    run: Option<StridedRun>,
}

impl<'a> ShapeBlocks<'a> {
    pub(crate) fn new(mut runs: StridedRuns<'a>) -> ShapeBlocks<'a> {
        let run = runs.next();
        ShapeBlocks { runs, run }
    }

    /// The next block as it lies in the tree.
    fn next_block(&mut self) -> Option<(i64, u64)> {
        let run = self.run.as_mut()?;
        let block = (run.disp, run.block);
        run.count -= 1;
        if run.count == 0 {
            self.run = self.runs.next();
        } else {
            run.disp = run.disp.wrapping_add(run.stride);
        }
        Some(block)
    }
}

impl Iterator for ShapeBlocks<'_> {
    type Item = (i64, u64);

    fn next(&mut self) -> Option<(i64, u64)> {
        let (disp, mut len) = self.next_block()?;
        while let Some(next) = self.run {
            if next.disp != disp.wrapping_add(len as i64) {
                break;
            }
            len += next.block;
            self.next_block();
        }
        Some((disp, len))
    }
}
