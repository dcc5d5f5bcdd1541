//! Deadlock detection: a search of the wait-for graph.

use super::{LockOwner, ServerLocks};
use std::collections::BTreeSet;
use tatami_wire::Ino;
use tatami_wire::lock::{Lock, LockSort};

impl ServerLocks {
    /// Whether the holders that conflict with `lock` wait for `owner`, directly or through others.
    /// A process counts as a whole, as in Linux: one waiting thread is enough.
    pub(super) fn would_deadlock(&self, owner: LockOwner, ino: Ino, lock: &Lock) -> bool {
        let mut met = BTreeSet::new();
        let mut next = self.conflicting_owners(owner, ino, lock);
        while let Some(other) = next.pop() {
            if other == owner {
                return true;
            }
            // Each owner once: the graph may have cycles that do not contain `owner`.
            if !met.insert(other) {
                continue;
            }
            for (ino, wait) in self.waits_by_owner.get(&other).into_iter().flatten() {
                let waiters = self.files.get(ino).into_iter().flat_map(|file| &file.waiters);
                let of_other = waiters.filter(|w| w.client == other.0 && w.wait == *wait);
                of_other.for_each(|w| next.extend(self.conflicting_owners(other, *ino, &w.lock)));
            }
        }
        false
    }

    fn conflicting_owners(&self, owner: LockOwner, ino: Ino, lock: &Lock) -> Vec<LockOwner> {
        let Some(file) = self.files.get(&ino) else { return Vec::new() };
        let held = file.table(LockSort::Range).find_conflicts(owner, lock.span, lock.kind);
        held.map(|held| held.owner).collect()
    }
}
