//! Deadlock detection: a search of the wait-for graph.

use super::{Locks, Owner};
use std::collections::BTreeSet;
use tatami_wire::Ino;
use tatami_wire::lock::{Lock, LockSort};

impl Locks {
    /// Whether the holders that conflict with `lock` wait for `owner`, directly or through others.
    /// A process counts as a whole, as in Linux: one waiting thread is enough.
    pub(super) fn would_deadlock(&self, owner: Owner, ino: Ino, lock: &Lock) -> bool {
        let mut met = BTreeSet::new();
        let mut next = self.in_the_way(owner, ino, lock);
        while let Some(other) = next.pop() {
            if other == owner {
                return true;
            }
            // Each owner once: the graph may have cycles that do not contain `owner`.
            if !met.insert(other) {
                continue;
            }
            for (ino, wait) in self.waiting.get(&other).into_iter().flatten() {
                let waiters = self.files.get(ino).into_iter().flat_map(|file| &file.waiters);
                let of_other = waiters.filter(|w| w.client == other.0 && w.wait == *wait);
                of_other.for_each(|w| next.extend(self.in_the_way(other, *ino, &w.lock)));
            }
        }
        false
    }

    fn in_the_way(&self, owner: Owner, ino: Ino, lock: &Lock) -> Vec<Owner> {
        let Some(file) = self.files.get(&ino) else { return Vec::new() };
        let held = file.table(LockSort::Range).conflicts(owner, lock.span, lock.kind);
        held.map(|held| held.owner).collect()
    }
}
