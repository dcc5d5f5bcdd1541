//! The lock table: which owner holds which bytes of a file. It implements the rules of flock(2) and
//! of fcntl(2)'s record locks, for the node that keeps the locks of all clients, and for the client
//! that remembers its own.
//!
//! It has no I/O, no clock and no threads. A table finds the conflicts of a lock, and replaces,
//! splits and joins the locks of one owner.

use std::collections::BTreeMap;
use std::ops::RangeBounds;
use tatami_wire::lock::{ByteRange, LockKind};

/// A run of bytes that one owner has locked in one mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LockRun<T> {
    /// The last byte.
    end: u64,
    kind: LockKind,
    tag: T,
}

/// The locks of one owner: disjoint runs, by their first byte.
type LockRuns<T> = BTreeMap<u64, LockRun<T>>;

/// A lock that is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldLock<O, T> {
    /// Its owner.
    pub owner: O,
    /// Its bytes.
    pub span: ByteRange,
    /// Its mode.
    pub kind: LockKind,
    /// The value that its owner has stored with it.
    pub tag: T,
}

/// The locks of one sort of one file. `O` names owners. A tag `T` comes with each lock, and
/// adjacent locks are joined only if their tags are equal.
#[derive(Clone, Debug)]
pub struct LockTable<O, T> {
    owners: BTreeMap<O, LockRuns<T>>,
    len: usize,
}

impl<O, T> Default for LockTable<O, T> {
    fn default() -> Self {
        LockTable { owners: BTreeMap::new(), len: 0 }
    }
}

impl<O: Ord + Copy, T: Copy + PartialEq> LockTable<O, T> {
    /// Returns the number of locks.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no lock is held.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the locks of owners other than `owner` that conflict with a lock of `span`, one lock
    /// an owner.
    pub fn find_conflicts(
        &self,
        owner: O,
        span: ByteRange,
        kind: LockKind,
    ) -> impl Iterator<Item = HeldLock<O, T>> + '_ {
        let others = self.owners.iter().filter(move |(other, _)| **other != owner);
        others.filter_map(move |(other, runs)| {
            let held = |(start, run): (&u64, &LockRun<T>)| HeldLock {
                owner: *other,
                span: ByteRange { start: *start, end: run.end },
                kind: run.kind,
                tag: run.tag,
            };
            overlapping_runs(runs, span).map(held).find(|held| kinds_conflict(held.kind, kind))
        })
    }

    /// Returns the conflicting lock that begins first.
    pub fn first_conflict(
        &self,
        owner: O,
        span: ByteRange,
        kind: LockKind,
    ) -> Option<HeldLock<O, T>> {
        self.find_conflicts(owner, span, kind).min_by_key(|held| held.span.start)
    }

    /// Whether any of these owners holds a lock.
    pub fn holds_any_of(&self, owners: impl RangeBounds<O>) -> bool {
        self.owners.range(owners).next().is_some()
    }

    /// Whether the owner holds any byte of `span`.
    pub fn holds_any(&self, owner: O, span: ByteRange) -> bool {
        self.owners.get(&owner).is_some_and(|runs| overlapping_runs(runs, span).next().is_some())
    }

    /// Whether the owner holds all of `span`, in this mode or exclusively.
    pub fn holds_all(&self, owner: O, span: ByteRange, kind: LockKind) -> bool {
        let Some(runs) = self.owners.get(&owner) else { return false };
        let mut next = span.start;
        for (start, run) in overlapping_runs(runs, span) {
            if *start > next || run.kind < kind {
                return false;
            }
            if run.end >= span.end {
                return true;
            }
            next = run.end + 1;
        }
        false
    }

    /// Sets a lock of the owner on `span`, whatever locks others hold: the caller has checked for
    /// conflicts. It replaces the owner's older locks within `span`.
    pub fn set_lock(&mut self, owner: O, span: ByteRange, kind: LockKind, tag: T) {
        let runs = self.owners.entry(owner).or_default();
        let before = runs.len();
        // First makes room, then joins with both neighbours: so the runs of an owner stay disjoint
        // and maximal.
        cut_span(runs, span);
        let ByteRange { mut start, mut end } = span;
        let same = |run: &LockRun<T>| run.kind == kind && run.tag == tag;
        if let Some((left, run)) = runs.range(..start).next_back()
            && run.end + 1 == start
            && same(run)
        {
            start = *left;
        }
        if let Some(run) = runs.get(&(end + 1))
            && same(run)
        {
            let right = run.end;
            runs.remove(&(end + 1));
            end = right;
        }
        runs.insert(start, LockRun { end, kind, tag });
        self.len = self.len + runs.len() - before;
    }

    /// Sets a lock as [`LockTable::set_lock`] does, but keeps the owner's exclusive locks
    /// exclusive.
    pub fn add_lock(&mut self, owner: O, span: ByteRange, kind: LockKind, tag: T) {
        if kind == LockKind::Exclusive {
            return self.set_lock(owner, span, kind, tag);
        }
        let mut free = Vec::new();
        let mut next = Some(span.start);
        for (start, run) in
            self.owners.get(&owner).into_iter().flat_map(|runs| overlapping_runs(runs, span))
        {
            if let Some(first) = next.filter(|first| first < start) {
                free.push(ByteRange { start: first, end: start - 1 });
            }
            next = (run.end < span.end).then(|| run.end + 1);
        }
        free.extend(next.map(|start| ByteRange { start, end: span.end }));
        free.into_iter().for_each(|span| self.set_lock(owner, span, kind, tag));
    }

    /// Whether [`LockTable::free_span`] would leave one lock as two.
    pub fn would_split(&self, owner: O, span: ByteRange) -> bool {
        let runs = self.owners.get(&owner);
        let before = runs.and_then(|runs| runs.range(..span.start).next_back());
        before.is_some_and(|(_, run)| run.end > span.end)
    }

    /// Frees the owner's locks within `span`.
    pub fn free_span(&mut self, owner: O, span: ByteRange) {
        let Some(runs) = self.owners.get_mut(&owner) else { return };
        let before = runs.len();
        cut_span(runs, span);
        self.len = self.len + runs.len() - before;
        if runs.is_empty() {
            self.owners.remove(&owner);
        }
    }

    /// Frees all locks for which `keep` returns false.
    pub fn retain(&mut self, mut keep: impl FnMut(&HeldLock<O, T>) -> bool) {
        let mut len = 0;
        self.owners.retain(|owner, runs| {
            runs.retain(|start, run| {
                let span = ByteRange { start: *start, end: run.end };
                keep(&HeldLock { owner: *owner, span, kind: run.kind, tag: run.tag })
            });
            len += runs.len();
            !runs.is_empty()
        });
        self.len = len;
    }

    /// Returns all locks, by owner and first byte.
    pub fn iter(&self) -> impl Iterator<Item = HeldLock<O, T>> + '_ {
        self.owners.iter().flat_map(|(owner, runs)| {
            runs.iter().map(|(start, run)| HeldLock {
                owner: *owner,
                span: ByteRange { start: *start, end: run.end },
                kind: run.kind,
                tag: run.tag,
            })
        })
    }
}

fn kinds_conflict(one: LockKind, other: LockKind) -> bool {
    one == LockKind::Exclusive || other == LockKind::Exclusive
}

/// Returns the runs that have a byte in `span`.
fn overlapping_runs<T>(
    runs: &LockRuns<T>,
    span: ByteRange,
) -> impl Iterator<Item = (&u64, &LockRun<T>)> {
    let first = runs.range(..span.start).next_back().filter(|(_, run)| run.end >= span.start);
    first.into_iter().chain(runs.range(span.start..=span.end))
}

/// Removes `span` from the runs, splitting those that reach beyond it.
fn cut_span<T: Copy>(runs: &mut LockRuns<T>, span: ByteRange) {
    let ByteRange { start, end } = span;
    if let Some((_, run)) = runs.range_mut(..start).next_back()
        && run.end >= start
    {
        // A run that covers all of `span` leaves two parts; then no other run can lie within.
        let whole = *run;
        run.end = start - 1;
        if whole.end > end {
            runs.insert(end + 1, whole);
            return;
        }
    }
    while let Some((&at, &run)) = runs.range(start..=end).next() {
        runs.remove(&at);
        if run.end > end {
            runs.insert(end + 1, run);
        }
    }
}
