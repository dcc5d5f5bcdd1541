//! The truncations of this client, and the lost bytes that it has reported.

use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use tatami_wire::{Ino, Piece};

/// Most objects that are remembered as reported; beyond, some are reported again.
const REPORTED_MAX: usize = 4096;
/// Most inodes whose truncation by this client is remembered. When so many truncations could not be
/// reported to their shards, no byte counts as lost.
const CUTTING_MAX: usize = 65_536;

/// Truncations by this client of which the shard has not heard yet, and the objects that were
/// reported as lost.
#[derive(Default)]
pub(crate) struct LossTracker {
    pub(crate) cutting: Mutex<HashMap<Ino, u32>>,
    pub(crate) reported: Mutex<HashSet<(Ino, Piece)>>,
}

impl LossTracker {
    /// Begins a truncation of an object of `ino`: until [`LossTracker::end_cut`] its length proves
    /// nothing.
    pub(crate) fn begin_cut(&self, ino: Ino) {
        let mut cutting = self.cutting.lock();
        if cutting.len() < CUTTING_MAX || cutting.contains_key(&ino) {
            *cutting.entry(ino).or_default() += 1;
        }
    }

    /// Ends a truncation: the shard knows of it, or the object was not changed.
    pub(crate) fn end_cut(&self, ino: Ino) {
        let mut cutting = self.cutting.lock();
        if let Some(count) = cutting.get_mut(&ino) {
            *count -= 1;
            if *count == 0 {
                cutting.remove(&ino);
            }
        }
    }

    /// Ends all truncations of `ino`: the shard knows the object's length, also after a truncation
    /// that could not be reported before.
    pub(crate) fn forget_cuts(&self, ino: Ino) {
        self.cutting.lock().remove(&ino);
    }

    pub(crate) fn is_cutting(&self, ino: Ino) -> bool {
        let cutting = self.cutting.lock();
        cutting.len() >= CUTTING_MAX || cutting.contains_key(&ino)
    }

    /// Records a report. Returns whether it is the first of this object.
    pub(crate) fn record_report(&self, ino: Ino, piece: Piece) -> bool {
        let mut reported = self.reported.lock();
        if reported.len() >= REPORTED_MAX {
            reported.clear();
        }
        reported.insert((ino, piece))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_are_counted_and_reports_bounded() {
        let losses = LossTracker::default();
        losses.begin_cut(Ino(5));
        losses.begin_cut(Ino(5));
        losses.end_cut(Ino(5));
        assert!(losses.is_cutting(Ino(5)) && !losses.is_cutting(Ino(6)));
        losses.end_cut(Ino(5));
        losses.end_cut(Ino(5));
        assert!(!losses.is_cutting(Ino(5)));
        assert!(losses.record_report(Ino(5), Piece(0)));
        assert!(!losses.record_report(Ino(5), Piece(0)) && losses.record_report(Ino(5), Piece(1)));
        for ino in 0..2 * REPORTED_MAX as u64 {
            losses.record_report(Ino(ino), Piece(0));
        }
        assert!(losses.reported.lock().len() <= REPORTED_MAX);
    }
}
