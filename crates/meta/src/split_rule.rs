//! The rule that decides when a partition of a directory splits.
//!
//! A split spreads the entries of a partition over several executors. That pays where several
//! clients change the directory: their requests meet at one executor before, and at several after.
//! One client gains little: it waits for each of its answers. It loses, because requests, log
//! writes and wake-ups that one executor shares between operations then lie on several.
//!
//! So a partition that several clients change splits above [`SplitLimits::shared`] entries. One
//! that a single client changes splits above [`SplitLimits::alone`]: a directory must spread before
//! its split is so large that it holds up the executor.

use crate::millis::add_millis;
use std::collections::HashMap;
use tatami_wire::hash::HashBuilder;
use tatami_wire::{ClientId, Ino, Timestamp};

/// Changes of two clients within this many ms are changes at the same time.
const TOGETHER_MS: u64 = 1_000;

/// Most partitions whose last changes are remembered; at this number, the old ones are removed.
const WATCHED_MAX: usize = 4_096;

/// Above how many entries a partition splits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SplitLimits {
    /// Most entries of a partition that several clients change.
    pub shared: u64,
    /// Most entries of a partition that one client changes.
    pub alone: u64,
}

impl Default for SplitLimits {
    fn default() -> SplitLimits {
        SplitLimits { shared: 1_024, alone: 8_192 }
    }
}

impl SplitLimits {
    /// Returns limits that do not depend on the number of clients.
    pub fn regardless_of_clients(entries: u64) -> SplitLimits {
        SplitLimits { shared: entries, alone: entries }
    }
}

/// A change of the entries of a partition with more than [`SplitLimits::shared`] of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LargePartitionChange {
    pub part: Ino,
    /// After the change.
    pub entries: u64,
    /// A new entry was made.
    pub has_grown: bool,
    pub client: ClientId,
}

/// The last change of a partition.
struct LastChange {
    client: ClientId,
    at: Timestamp,
    /// Several clients change the partition until then.
    shared_until: Option<Timestamp>,
}

/// Decides which partitions split, from their recent changes.
#[derive(Default)]
pub(crate) struct SplitRule {
    pub limits: SplitLimits,
    /// Of large partitions only. In memory: after a restart, the next two changes show again
    /// whether there are several clients.
    last: HashMap<Ino, LastChange, HashBuilder>,
}

impl SplitRule {
    /// Records a change. Returns whether the partition is to be split.
    pub fn record_change(&mut self, change: &LargePartitionChange, now: Timestamp) -> bool {
        let LargePartitionChange { part, entries, has_grown, client } = *change;
        let Some(last) = self.last.get_mut(&part) else {
            self.watch_partition(part, client, now);
            return has_grown && entries > self.limits.alone;
        };
        if last.client != client && now < add_millis(last.at, TOGETHER_MS) {
            last.shared_until = Some(add_millis(now, TOGETHER_MS));
        }
        (last.client, last.at) = (client, now);
        // A partition that only shrinks is left alone: to move its entries is wasted work.
        has_grown && entries > self.current_limit(part, now)
    }

    /// Returns the number of entries above which the partition splits now.
    pub fn current_limit(&self, part: Ino, now: Timestamp) -> u64 {
        let until = self.last.get(&part).and_then(|last| last.shared_until);
        if until.is_some_and(|until| now < until) { self.limits.shared } else { self.limits.alone }
    }

    fn watch_partition(&mut self, part: Ino, client: ClientId, now: Timestamp) {
        if self.last.len() >= WATCHED_MAX {
            self.last.retain(|_, last| now < add_millis(last.at, TOGETHER_MS));
        }
        // With too many, a partition counts as that of one client, and splits later.
        if self.last.len() < WATCHED_MAX {
            self.last.insert(part, LastChange { client, at: now, shared_until: None });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: SplitLimits = SplitLimits { shared: 10, alone: 20 };
    const A: ClientId = ClientId([1; 16]);
    const B: ClientId = ClientId([2; 16]);

    fn rule() -> SplitRule {
        SplitRule { limits: LIMITS, ..SplitRule::default() }
    }

    fn at(ms: u64) -> Timestamp {
        add_millis(Timestamp::from_sec(5), ms)
    }

    fn growth(client: ClientId, entries: u64) -> LargePartitionChange {
        LargePartitionChange { part: Ino(7), entries, has_grown: true, client }
    }

    #[test]
    fn one_client_has_a_higher_limit() {
        let mut rule = rule();
        for entries in 11..=20 {
            assert!(!rule.record_change(&growth(A, entries), at(entries)));
        }
        assert!(rule.record_change(&growth(A, 21), at(21)));
    }

    #[test]
    fn the_first_change_of_a_second_client_splits() {
        let mut rule = rule();
        assert!(!rule.record_change(&growth(A, 15), at(0)));
        assert!(rule.record_change(&growth(B, 16), at(999)));
        assert_eq!(rule.current_limit(Ino(7), at(1_500)), LIMITS.shared);
        assert_eq!(rule.current_limit(Ino(8), at(1_500)), LIMITS.alone);
        // The split may have been in vain: the next change asks for it again.
        assert!(rule.record_change(&growth(B, 17), at(1_500)));
    }

    #[test]
    fn clients_that_follow_each_other_are_each_alone() {
        let mut rule = rule();
        assert!(!rule.record_change(&growth(A, 15), at(0)));
        assert!(!rule.record_change(&growth(B, 16), at(1_000)));
        assert!(rule.record_change(&growth(A, 17), at(1_010)));
        assert_eq!(rule.current_limit(Ino(7), at(2_010)), LIMITS.alone);
        assert!(!rule.record_change(&growth(A, 18), at(3_000)));
    }

    #[test]
    fn a_removal_counts_as_a_change_and_does_not_split() {
        let mut rule = rule();
        let removal = |client| LargePartitionChange { has_grown: false, ..growth(client, 15) };
        assert!(!rule.record_change(&removal(A), at(0)));
        assert!(!rule.record_change(&removal(B), at(1)));
        assert!(rule.record_change(&growth(B, 16), at(2)));
    }

    #[test]
    fn the_table_is_bounded() {
        let mut rule = rule();
        for n in 0..2 * WATCHED_MAX as u64 {
            let change = LargePartitionChange { part: Ino(n), ..growth(A, 21) };
            assert!(rule.record_change(&change, at(0)), "watched or not");
        }
        assert_eq!(rule.last.len(), WATCHED_MAX);
        rule.record_change(&growth(A, 15), at(2_000));
        let new = LargePartitionChange { part: Ino(u64::MAX), ..growth(A, 15) };
        rule.record_change(&new, at(2_000));
        assert_eq!(rule.last.len(), 2, "the old ones are gone");
    }
}
