//! Sets of bytes as runs, and quick answers to "could this be written already?".

use std::collections::BTreeMap;

/// A set of byte positions as disjoint runs that do not touch.
#[derive(Clone, Debug, Default)]
pub struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    /// Adds `from .. to`.
    pub fn add(&mut self, mut from: u64, mut to: u64) {
        if from >= to {
            return;
        }
        if let Some((start, end)) = self.0.range_mut(..=from).next_back()
            && *end >= from
        {
            if *end >= to {
                return;
            }
            // The usual case: what comes goes on where the last one ended.
            from = *start;
        }
        while let Some((start, end)) = self.0.range(from..=to).next_back().map(|(s, e)| (*s, *e)) {
            self.0.remove(&start);
            to = to.max(end);
            from = from.min(start);
        }
        self.0.insert(from, to);
    }

    /// Is any of `from .. to` in it?
    pub fn meets(&self, from: u64, to: u64) -> bool {
        from < to && self.0.range(..to).next_back().is_some_and(|(_, end)| *end > from)
    }

    /// From the first byte to the end of the last; nothing of an empty set.
    pub fn hull(&self) -> Option<(u64, u64)> {
        Some((*self.0.first_key_value()?.0, *self.0.last_key_value()?.1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_of_runs_has_what_was_added() {
        let mut random = fastrand::Rng::with_seed(3);
        for _ in 0..300 {
            let (mut ranges, mut model) = (Ranges::default(), [false; 200]);
            for _ in 0..random.usize(0..30) {
                let from = random.usize(0..180);
                let to = from + random.usize(0..20);
                ranges.add(from as u64, to as u64);
                model[from..to].fill(true);
            }
            for from in 0..199 {
                let to = random.usize(from..200);
                let meets = model[from..to].contains(&true);
                assert_eq!(ranges.meets(from as u64, to as u64), meets && from < to);
            }
            let first = model.iter().position(|set| *set).map(|at| at as u64);
            let last = model.iter().rposition(|set| *set).map(|at| at as u64 + 1);
            assert_eq!(ranges.hull(), first.zip(last));
            let runs = model.chunk_by(|a, b| a == b).filter(|run| run[0]).count();
            assert_eq!(ranges.0.len(), runs);
        }
    }
}
