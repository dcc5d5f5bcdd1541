//! Walks a shape from any byte of its data on, without visiting the data before.

use crate::shape::{Kind, Part};

/// Blocks of equal length at equal distances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
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

/// A part, some copies of which have been visited.
#[derive(Clone, Debug)]
enum Level<'a> {
    Copies { child: &'a Kind, base: i64, stride: i64, next: u64, count: u64 },
    Parts { parts: &'a [Part], base: i64, next: usize },
}

/// Iterator over the strided runs of a stretch of data, in type-map order.
#[derive(Clone, Debug)]
pub struct Runs<'a> {
    levels: Vec<Level<'a>>,
    /// The rest of a block that the stretch begins in.
    head: Option<(i64, u64)>,
    left: u64,
}

impl<'a> Runs<'a> {
    /// Endless copies of `kind`, the first at `base`, `extent` apart.
    pub(crate) fn new(kind: &'a Kind, base: i64, extent: i64, from: u64, len: u64) -> Runs<'a> {
        let mut runs = Runs { levels: Vec::new(), head: None, left: len };
        if kind.size() == 0 {
            runs.left = 0;
        }
        if runs.left > 0 {
            runs.levels.push(Level::Copies {
                child: kind,
                base,
                stride: extent,
                next: 0,
                count: u64::MAX,
            });
            runs.seek(from);
        }
        runs
    }

    /// Skips `skip` bytes of data from the beginning of the last level on.
    fn seek(&mut self, mut skip: u64) {
        while skip > 0 {
            let (kind, at) = match self.levels.last_mut() {
                Some(Level::Copies { child, base, stride, next, .. }) => {
                    let (whole, rest) = (skip / child.size(), skip % child.size());
                    *next = whole;
                    skip = rest;
                    if rest == 0 {
                        return;
                    }
                    *next += 1;
                    (*child, base.wrapping_add((whole as i64).wrapping_mul(*stride)))
                }
                Some(Level::Parts { parts, base, next }) => {
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
                Kind::Run(len) => {
                    self.head = Some((at.wrapping_add(skip as i64), len - skip));
                    return;
                }
                other => self.enter(other, at),
            }
        }
    }

    /// Descends into a part that is no run.
    fn enter(&mut self, kind: &'a Kind, base: i64) {
        match kind {
            Kind::Run(_) => {}
            Kind::Vector(v) => self.levels.push(Level::Copies {
                child: &v.child,
                base,
                stride: v.stride,
                next: 0,
                count: v.count,
            }),
            Kind::List(l) => self.levels.push(Level::Parts { parts: &l.parts, base, next: 0 }),
        }
    }

    fn single(&mut self, disp: i64, len: u64) -> Run {
        let block = len.min(self.left);
        self.left -= block;
        Run { disp, block, stride: block as i64, count: 1 }
    }
}

impl Iterator for Runs<'_> {
    type Item = Run;

    fn next(&mut self) -> Option<Run> {
        if self.left == 0 {
            return None;
        }
        if let Some((disp, len)) = self.head.take() {
            return Some(self.single(disp, len));
        }
        loop {
            let left = self.left;
            match self.levels.last_mut()? {
                Level::Copies { next, count, .. } if next == count => {
                    self.levels.pop();
                }
                Level::Copies { child, base, stride, next, count } => {
                    let disp = base.wrapping_add((*next as i64).wrapping_mul(*stride));
                    let Kind::Run(len) = **child else {
                        *next += 1;
                        let child = *child;
                        self.enter(child, disp);
                        continue;
                    };
                    if *stride == len as i64 {
                        let all = (*count - *next).saturating_mul(len);
                        *next = *count;
                        return Some(self.single(disp, all));
                    }
                    let whole = (left / len).min(*count - *next);
                    if whole == 0 {
                        return Some(self.single(disp, left));
                    }
                    *next += whole;
                    self.left -= whole * len;
                    return Some(Run { disp, block: len, stride: *stride, count: whole });
                }
                Level::Parts { parts, next, .. } if *next == parts.len() => {
                    self.levels.pop();
                }
                Level::Parts { parts, base, next } => {
                    let part = &parts[*next];
                    let disp = base.wrapping_add(part.disp);
                    *next += 1;
                    match &part.kind {
                        Kind::Run(len) => {
                            let len = *len;
                            return Some(self.single(disp, len));
                        }
                        other => self.enter(other, disp),
                    }
                }
            }
        }
    }
}

/// Iterator over the blocks of a stretch of data: displacement and length of
/// each, in type-map order, those that touch joined.
#[derive(Clone, Debug)]
pub struct Blocks<'a> {
    runs: Runs<'a>,
    run: Option<Run>,
}

impl<'a> Blocks<'a> {
    pub(crate) fn new(mut runs: Runs<'a>) -> Blocks<'a> {
        let run = runs.next();
        Blocks { runs, run }
    }

    /// The next block as it lies in the tree.
    fn piece(&mut self) -> Option<(i64, u64)> {
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

impl Iterator for Blocks<'_> {
    type Item = (i64, u64);

    fn next(&mut self) -> Option<(i64, u64)> {
        let (disp, mut len) = self.piece()?;
        while let Some(next) = self.run {
            if next.disp != disp.wrapping_add(len as i64) {
                break;
            }
            len += next.block;
            self.piece();
        }
        Some((disp, len))
    }
}
