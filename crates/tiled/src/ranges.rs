//! Sets of bytes as runs: they answer quickly whether a byte may have been written.

use std::collections::BTreeMap;

/// A set of byte positions as disjoint runs that do not touch.
#[derive(Clone, Debug, Default)]
pub struct RangeSet {
    /// The run that was extended last, if it is not empty: the next write usually continues it.
    last: (u64, u64),
    /// Where the next run behind it begins; none begins between.
    room: u64,
    /// All other runs.
    others: BTreeMap<u64, u64>,
}

impl RangeSet {
    /// Adds `from .. to`.
    pub fn insert_range(&mut self, mut from: u64, mut to: u64) {
        if from >= to {
            return;
        }
        let (start, end) = self.last;
        let fits = start < end && from >= end && to < self.room;
        // The usual case, a write that continues the last one, needs no lookup in the map.
        if fits && from == end {
            self.last.1 = to;
            return;
        }
        if start < end {
            self.others.insert(start, end);
        }
        if fits {
            self.last = (from, to);
            return;
        }
        while let Some((start, end)) = self.run_before(to).filter(|(_, end)| *end >= from) {
            self.others.remove(&start);
            (from, to) = (from.min(start), to.max(end));
        }
        self.last = (from, to);
        self.room = self.others.range(to..).next().map_or(u64::MAX, |(start, _)| *start);
    }

    /// Returns the last of the other runs that begins at or before `at`.
    fn run_before(&self, at: u64) -> Option<(u64, u64)> {
        self.others.range(..=at).next_back().map(|(start, end)| (*start, *end))
    }

    /// Whether the set has any of `from .. to`.
    pub fn overlaps_range(&self, from: u64, to: u64) -> bool {
        let (start, end) = self.last;
        if from >= to || start >= end || (from >= end && to <= self.room) {
            return false;
        }
        (from < end && start < to) || self.run_before(to - 1).is_some_and(|(_, end)| end > from)
    }

    /// Returns the range from the first byte to the end of the last; `None` of an empty set.
    pub fn hull(&self) -> Option<(u64, u64)> {
        let (start, end) = self.last;
        let first = self.others.first_key_value().map_or(start, |(first, _)| start.min(*first));
        let last = self.others.last_key_value().map_or(end, |(_, last)| end.max(*last));
        (start < end).then_some((first, last))
    }

    #[cfg(test)]
    fn count_runs(&self) -> usize {
        self.others.len() + usize::from(self.last.0 < self.last.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_of_runs_has_what_was_added() {
        let mut random = fastrand::Rng::with_seed(3);
        for _ in 0..300 {
            let (mut ranges, mut model) = (RangeSet::default(), [false; 200]);
            let mut at = 0;
            for _ in 0..random.usize(0..30) {
                // Mostly where the last one ended, or a little further on.
                let from = match random.u8(0..4) {
                    0 => at.min(180),
                    1 => (at + random.usize(0..9)).min(180),
                    _ => random.usize(0..180),
                };
                let to = from + random.usize(0..20);
                at = to;
                ranges.insert_range(from as u64, to as u64);
                model[from..to].fill(true);
            }
            for from in 0..199 {
                let to = random.usize(from..200);
                let meets = model[from..to].contains(&true);
                assert_eq!(ranges.overlaps_range(from as u64, to as u64), meets && from < to);
            }
            let first = model.iter().position(|set| *set).map(|at| at as u64);
            let last = model.iter().rposition(|set| *set).map(|at| at as u64 + 1);
            assert_eq!(ranges.hull(), first.zip(last));
            let runs = model.chunk_by(|a, b| a == b).filter(|run| run[0]).count();
            assert_eq!(ranges.count_runs(), runs);
        }
    }
}
