//! Where in the file the tiles of a journal may lie: hulls of some tiles, hulls of some hulls, and
//! so on. A search skips most tiles by their hulls.

/// Tiles of one hull, and hulls of one hull on the next level.
const FANOUT: usize = 32;

/// Tiles that lie within `lo .. hi`, and have stamps up to `stamp`.
#[derive(Clone, Copy, Debug, Default)]
struct Hull {
    lo: u64,
    hi: u64,
    stamp: u64,
}

impl Hull {
    fn merge_hull(&mut self, other: Hull) {
        if self.hi == 0 {
            *self = other;
        }
        self.lo = self.lo.min(other.lo);
        self.hi = self.hi.max(other.hi);
        self.stamp = self.stamp.max(other.stamp);
    }
}

/// Hulls of hulls. They only grow: a search may visit a tile in vain after it was replaced.
#[derive(Clone, Debug, Default)]
pub(crate) struct TileHulls {
    /// The first level has a hull for each [`FANOUT`] tiles; the last has a single one.
    levels: Vec<Vec<Hull>>,
}

impl TileHulls {
    /// Records that the tile with number `slot` has this stamp and lies within `lo .. hi`.
    pub fn add_tile(&mut self, slot: usize, (lo, hi): (u64, u64), stamp: u64) {
        let new = Hull { lo, hi, stamp };
        let mut at = slot;
        for level in 0.. {
            at /= FANOUT;
            if level == self.levels.len() {
                // The last single hull becomes a part of the new one.
                let below = self.levels.last().and_then(|level| level.first()).copied();
                self.levels.push(below.into_iter().collect());
            }
            let hulls = &mut self.levels[level];
            if hulls.len() <= at {
                hulls.resize(at + 1, Hull::default());
            }
            hulls[at].merge_hull(new);
            if hulls.len() == 1 {
                return;
            }
        }
    }

    /// Reports whether `met` is true for a tile that may have bytes in `from .. to` and a stamp of
    /// `since` or later.
    pub fn any_tile(
        &self,
        range: (u64, u64),
        since: u64,
        mut met: impl FnMut(usize) -> bool,
    ) -> bool {
        let Some(top) = self.levels.len().checked_sub(1) else { return false };
        self.search_level(top, 0, range, since, &mut met)
    }

    fn search_level(
        &self,
        level: usize,
        at: usize,
        (from, to): (u64, u64),
        since: u64,
        met: &mut impl FnMut(usize) -> bool,
    ) -> bool {
        let Some(hull) = self.levels[level].get(at) else { return false };
        if hull.stamp < since || hull.lo >= to || from >= hull.hi {
            return false;
        }
        let parts = at * FANOUT..(at + 1) * FANOUT;
        match level.checked_sub(1) {
            // The last ones first: most writers continue where they wrote last.
            Some(level) => {
                parts.rev().any(|part| self.search_level(level, part, (from, to), since, met))
            }
            None => parts.rev().any(met),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// The search misses no tile that lies there, and visits few of many that lie elsewhere.
        #[test]
        fn what_lies_there_is_found(
            spans in prop::collection::vec((0u64..50, 1u64..30, 0u64..10), 0..3000),
            from in 0u64..60000, len in 1u64..40, since in 0u64..10,
        ) {
            let mut reach = TileHulls::default();
            let spans: Vec<(u64, u64, u64)> = (0u64..)
                .zip(spans)
                .map(|(i, (lo, len, stamp))| (i * 20 + lo, i * 20 + lo + len, stamp))
                .collect();
            for (slot, (lo, hi, stamp)) in spans.iter().enumerate() {
                reach.add_tile(slot, (*lo, *hi), *stamp);
            }
            let lies = |&(lo, hi, stamp): &(u64, u64, u64)| {
                lo < from + len && from < hi && stamp >= since
            };
            let mut looked = 0;
            let found = reach.any_tile((from, from + len), since, |slot| {
                looked += 1;
                spans.get(slot).is_some_and(lies)
            });
            prop_assert_eq!(found, spans.iter().any(lies));
            prop_assert!(looked <= 4 * FANOUT, "{} tiles were looked at", looked);
        }
    }
}
