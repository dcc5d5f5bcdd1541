//! The names that may not be durable yet: which executors must sync so that the name of a file
//! survives a power cut, with the directories above it.
//!
//! Executors write their logs to disk by themselves, within about a second, and report on the
//! recall connections up to when their changes are durable (`lasting`). So only recent names are
//! recorded here: names that were made, moved or seen a short time ago. A record has the inode, the
//! directory of the name, and the executors that have reported the name since. Names without a
//! record are durable.
//!
//! An executor that has decided a transaction names the other participants when it syncs on behalf
//! of inodes.

use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use tatami_wire::meta::{MetaOp, MetaReply, RenameMode, SYNC_NAMES_MAX};
use tatami_wire::{ExecutorId, Ino, hash};

/// Most names that are recorded. Beyond, all executors concerned are asked for any file.
const NAMES_MAX: usize = 1 << 18;

/// Shortest time between two sweeps of durable names.
const SWEEP: Duration = Duration::from_secs(1);

/// Executors, and when each reported the name last, by [`uptime`](crate::uptime::uptime).
type UnsyncedExecutors = BTreeMap<ExecutorId, Duration>;

/// See the module.
#[derive(Default)]
pub(crate) struct UnsyncedNames {
    kept: AtomicBool,
    known: Mutex<UnsyncedTable>,
}

#[derive(Default)]
struct UnsyncedTable {
    /// Changes of an executor up to this time survive a power cut.
    durable_until: HashMap<ExecutorId, Duration>,
    names: HashMap<Ino, UnsyncedName, hash::HashBuilder>,
    /// Changes of names in a directory.
    contents: HashMap<Ino, UnsyncedExecutors, hash::HashBuilder>,
    /// Executors of names that were too many to record.
    common: UnsyncedExecutors,
    /// The time of the last sweep.
    last_sweep: Duration,
}

/// The name of an inode.
struct UnsyncedName {
    /// Its directory.
    parent: Ino,
    unsynced: UnsyncedExecutors,
}

/// The sync that a name needs.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct SyncTargets {
    /// The inode, and the directories above it.
    pub(crate) inos: Vec<Ino>,
    /// The executors to ask.
    pub(crate) executors: BTreeSet<ExecutorId>,
}

impl UnsyncedNames {
    /// Starts recording. The caller must also report durable times with
    /// [`UnsyncedNames::record_durable`].
    pub(crate) fn start_recording(&self) {
        // Relaxed: no other data depends on the flag. A name that is missed because a thread sees
        // it late was made before the recording.
        self.kept.store(true, Relaxed);
    }

    /// Records the names in the reply of `here` to `op`. `home` returns the executor that has an
    /// inode.
    pub(crate) fn record_reply(
        &self,
        op: &MetaOp,
        reply: &MetaReply,
        here: ExecutorId,
        home: impl Fn(Ino) -> Option<ExecutorId>,
        now: Duration,
    ) {
        if !self.kept.load(Relaxed) {
            return;
        }
        match (op, reply) {
            (
                MetaOp::LookupEntry { parent, .. } | MetaOp::Lookup { parent, .. },
                MetaReply::Attr(attr),
            ) => {
                self.known.lock().record_name(attr.ino, *parent, [Some(here)], now);
            }
            (MetaOp::LookupEntry { parent, .. }, MetaReply::Referral(ino)) => {
                self.known.lock().record_name(*ino, *parent, [Some(here), home(*ino)], now);
            }
            (MetaOp::Create { parent, .. }, MetaReply::Created { attr, .. })
            | (MetaOp::Link { parent, .. }, MetaReply::Attr(attr)) => {
                let mut known = self.known.lock();
                known.record_name(attr.ino, *parent, [Some(here)], now);
                known.record_change(*parent, here, now);
            }
            (MetaOp::ReadDir { dir, .. }, MetaReply::Entries { entries, .. }) => {
                let mut known = self.known.lock();
                for entry in entries {
                    let home = if entry.attr.is_some() { None } else { home(entry.ino) };
                    known.record_name(entry.ino, *dir, [Some(here), home], now);
                }
            }
            (
                MetaOp::Unlink { parent, .. } | MetaOp::Rmdir { parent, .. },
                MetaReply::Removed { .. },
            ) => {
                self.known.lock().record_change(*parent, here, now);
            }
            (MetaOp::Rename { parent, new_parent, mode, .. }, MetaReply::Renamed { moved, .. }) => {
                let mut known = self.known.lock();
                known.record_change(*parent, here, now);
                known.record_change(*new_parent, here, now);
                let back = (*mode == RenameMode::Exchange).then_some(*parent);
                for (ino, above) in moved.iter().zip([*new_parent].into_iter().chain(back)) {
                    known.record_name(*ino, above, [Some(here)], now);
                }
            }
            _ => {}
        }
    }

    /// Records that changes of `executor` up to `until` survive a power cut.
    pub(crate) fn record_durable(&self, executor: ExecutorId, until: Duration, now: Duration) {
        let known = &mut *self.known.lock();
        let lasting = known.durable_until.entry(executor).or_default();
        *lasting = until.max(*lasting);
        if now >= known.last_sweep + SWEEP {
            known.last_sweep = now;
            known.drop_durable();
        }
    }

    /// Records that these inodes were synced, for changes up to `since`.
    pub(crate) fn record_synced(&self, inos: &[Ino], since: Duration) {
        let known = &mut *self.known.lock();
        for ino in inos {
            if let Some(way) = known.names.get_mut(ino) {
                way.unsynced.retain(|_, acked_at| *acked_at >= since);
            }
        }
    }

    /// As [`UnsyncedNames::record_synced`], for the names in a directory.
    pub(crate) fn record_contents_synced(&self, dir: Ino, since: Duration) {
        if let Some(debts) = self.known.lock().contents.get_mut(&dir) {
            debts.retain(|_, acked_at| *acked_at >= since);
        }
    }

    /// Returns the sync that the name of an inode needs; `None` where names are not recorded.
    pub(crate) fn sync_targets(&self, ino: Ino) -> Option<SyncTargets> {
        self.kept.load(Relaxed).then(|| self.known.lock().sync_targets(ino))
    }

    /// As [`UnsyncedNames::sync_targets`], with the changes in this directory.
    pub(crate) fn directory_sync_targets(&self, dir: Ino) -> Option<SyncTargets> {
        if !self.kept.load(Relaxed) {
            return None;
        }
        let known = self.known.lock();
        let mut owed = known.sync_targets(dir);
        owed.executors
            .extend(known.contents.get(&dir).into_iter().flat_map(|d| known.unsynced_executors(d)));
        Some(owed)
    }
}

impl UnsyncedTable {
    /// Records that `ino` has a name in `above`, which these executors have reported.
    fn record_name<const N: usize>(
        &mut self,
        ino: Ino,
        above: Ino,
        executors: [Option<ExecutorId>; N],
        now: Duration,
    ) {
        if self.names.len() >= NAMES_MAX {
            self.merge_into_common();
        }
        // The sync for another name of the inode stays due, with the directories above that name: a
        // crash may leave either name.
        let before = self.names.get(&ino).filter(|way| way.parent != above).map(|way| way.parent);
        let more = before.map(|above| self.collect_unsynced(above)).unwrap_or_default();
        let way = self
            .names
            .entry(ino)
            .or_insert_with(|| UnsyncedName { parent: above, unsynced: UnsyncedExecutors::new() });
        way.parent = above;
        let acked_at = executors.into_iter().flatten().map(|executor| (executor, now));
        more.into_iter()
            .chain(acked_at)
            .for_each(|(executor, acked_at)| record_latest(&mut way.unsynced, executor, acked_at));
    }

    /// Records a change in a directory.
    fn record_change(&mut self, dir: Ino, executor: ExecutorId, now: Duration) {
        record_latest(self.contents.entry(dir).or_default(), executor, now);
    }

    /// Returns the inode and the directories above, as far as they are recorded.
    fn walk_ancestors(&self, ino: Ino) -> impl Iterator<Item = (Ino, &UnsyncedName)> {
        let first = self.names.get(&ino).map(|way| (ino, way));
        // Names that were seen at different times may lead in a circle, so the walk is bounded.
        let next =
            move |(_, way): &(Ino, &UnsyncedName)| Some((way.parent, self.names.get(&way.parent)?));
        std::iter::successors(first, next).take(SYNC_NAMES_MAX - 1)
    }

    fn collect_unsynced(&self, ino: Ino) -> UnsyncedExecutors {
        let mut all = UnsyncedExecutors::new();
        for (executor, acked_at) in self.walk_ancestors(ino).flat_map(|(_, way)| &way.unsynced) {
            record_latest(&mut all, *executor, *acked_at);
        }
        all
    }

    fn sync_targets(&self, ino: Ino) -> SyncTargets {
        let mut owed = SyncTargets {
            inos: vec![ino],
            executors: self.unsynced_executors(&self.common).collect(),
        };
        for (_, way) in self.walk_ancestors(ino) {
            owed.inos.push(way.parent);
            owed.executors.extend(self.unsynced_executors(&way.unsynced));
        }
        owed
    }

    fn is_durable(&self, executor: ExecutorId, acked_at: Duration) -> bool {
        self.durable_until.get(&executor).is_some_and(|lasting| acked_at < *lasting)
    }

    fn unsynced_executors<'a>(
        &'a self,
        debts: &'a UnsyncedExecutors,
    ) -> impl Iterator<Item = ExecutorId> + 'a {
        let open = |(executor, acked_at): &(&ExecutorId, &Duration)| {
            !self.is_durable(**executor, **acked_at)
        };
        debts.iter().filter(open).map(|(executor, _)| *executor)
    }

    /// Drops durable names. A durable name below one that is not stays until a later sweep, because
    /// the walk upwards leads through it.
    fn drop_durable(&mut self) {
        let owes = |debts: &UnsyncedExecutors| self.unsynced_executors(debts).next().is_some();
        let done = |(ino, way): (&Ino, &UnsyncedName)| {
            let stays = owes(&way.unsynced) || self.names.contains_key(&way.parent);
            (!stays).then_some(*ino)
        };
        let done: Vec<Ino> = self.names.iter().filter_map(done).collect();
        let empty: Vec<Ino> =
            self.contents.iter().filter(|(_, debts)| !owes(debts)).map(|(dir, _)| *dir).collect();
        done.iter().for_each(|ino| drop(self.names.remove(ino)));
        empty.iter().for_each(|dir| drop(self.contents.remove(dir)));
        let settled = self.common.iter().filter(|(e, acked_at)| self.is_durable(**e, **acked_at));
        let settled: Vec<_> = settled.map(|(executor, _)| *executor).collect();
        settled.iter().for_each(|executor| _ = self.common.remove(executor));
    }

    /// Drops all records, because there are too many. From then on all executors concerned are
    /// asked for any name.
    fn merge_into_common(&mut self) {
        let names = std::mem::take(&mut self.names).into_values().map(|way| way.unsynced);
        let contents = std::mem::take(&mut self.contents).into_values();
        for (executor, acked_at) in names.chain(contents).flatten() {
            if !self.is_durable(executor, acked_at) {
                record_latest(&mut self.common, executor, acked_at);
            }
        }
    }
}

fn record_latest(debts: &mut UnsyncedExecutors, executor: ExecutorId, acked_at: Duration) {
    let last = debts.entry(executor).or_insert(acked_at);
    *last = acked_at.max(*last);
}

#[cfg(test)]
mod tests {
    use super::*;
    use tatami_wire::meta::{Bytes, InodeTemplate};
    use tatami_wire::{Attr, InodeKind, NodeId};

    const DIR: Ino = Ino(10);
    const FILE: Ino = Ino(20);
    const TARGET: Ino = Ino(30);

    fn executor(node: u16) -> ExecutorId {
        ExecutorId::first_of_node(NodeId(node))
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn create(parent: Ino, kind: InodeKind) -> MetaOp {
        let node = if kind == InodeKind::Dir { InodeTemplate::Dir } else { InodeTemplate::Fifo };
        let (name, mode, umask) = (Bytes::from(b"n".to_vec()), 0, 0);
        MetaOp::Create { parent, name, node, mode, umask, exclusive: true, open: None }
    }

    fn created(ino: Ino, kind: InodeKind) -> MetaReply {
        MetaReply::Created { attr: Attr::with_defaults(ino, kind), cap: None, created: true }
    }

    /// Node 0 has made a directory, and node 1 a file in it.
    fn made() -> UnsyncedNames {
        let ways = UnsyncedNames::default();
        ways.start_recording();
        learn(&ways, &create(Ino::ROOT, InodeKind::Dir), &created(DIR, InodeKind::Dir), 0, 100);
        learn(&ways, &create(DIR, InodeKind::File), &created(FILE, InodeKind::File), 1, 200);
        ways
    }

    fn learn(ways: &UnsyncedNames, op: &MetaOp, reply: &MetaReply, node: u16, now: u64) {
        ways.record_reply(op, reply, executor(node), |_| Some(executor(7)), ms(now));
    }

    fn asked(ways: &UnsyncedNames, ino: Ino) -> Vec<u16> {
        ways.sync_targets(ino).expect("kept").executors.iter().map(|id| id.node.0).collect()
    }

    #[test]
    fn a_file_owes_what_the_directories_above_owe_until_it_lasts() {
        let ways = made();
        assert_eq!(asked(&ways, FILE), [0, 1]);
        assert_eq!(ways.sync_targets(FILE).expect("kept").inos, [FILE, DIR, Ino::ROOT]);
        assert_eq!(asked(&ways, DIR), [0]);
        assert_eq!(asked(&ways, TARGET), []);
        // A change that was reported at that moment may have been made after it.
        ways.record_durable(executor(1), ms(200), ms(3000));
        assert_eq!(asked(&ways, FILE), [0, 1]);
        ways.record_durable(executor(1), ms(201), ms(6000));
        assert_eq!(asked(&ways, FILE), [0]);
        // An older report does not move the durable time back.
        ways.record_durable(executor(1), ms(150), ms(9000));
        assert_eq!(asked(&ways, FILE), [0]);
        assert_eq!(ways.known.lock().names.len(), 2, "what is below stays");
        ways.record_durable(executor(0), ms(500), ms(12_000));
        ways.record_durable(executor(0), ms(500), ms(15_000));
        assert_eq!(asked(&ways, FILE), []);
        let known = ways.known.lock();
        assert!(known.names.is_empty() && known.contents.is_empty());
    }

    #[test]
    fn what_was_synced_is_not_synced_again() {
        let ways = made();
        ways.record_synced(&ways.sync_targets(FILE).expect("kept").inos, ms(150));
        assert_eq!(asked(&ways, FILE), [1], "it was made after the sync began");
        ways.record_synced(&[FILE], ms(201));
        assert_eq!(asked(&ways, FILE), []);
    }

    #[test]
    fn a_directory_owes_what_was_made_and_removed_in_it() {
        let ways = made();
        let all = |ways: &UnsyncedNames| ways.directory_sync_targets(DIR).expect("kept").executors;
        assert_eq!(all(&ways), BTreeSet::from([executor(0), executor(1)]));
        let unlink = MetaOp::Unlink { parent: DIR, name: Bytes::new(), keep: false };
        let removed = MetaReply::Removed { ino: Some(FILE), last: true };
        learn(&ways, &unlink, &removed, 2, 300);
        assert!(all(&ways).contains(&executor(2)));
        assert_eq!(asked(&ways, DIR), [0]);
        ways.record_contents_synced(DIR, ms(400));
        assert_eq!(all(&ways), BTreeSet::from([executor(0)]));
    }

    #[test]
    fn what_is_moved_owes_what_both_places_owe() {
        let ways = made();
        learn(&ways, &create(Ino::ROOT, InodeKind::Dir), &created(TARGET, InodeKind::Dir), 3, 300);
        let rename = MetaOp::Rename {
            parent: DIR,
            name: Bytes::new(),
            new_parent: TARGET,
            new_name: Bytes::new(),
            mode: RenameMode::Replace,
            keep: false,
        };
        let moved = MetaReply::Renamed { ino: None, last: false, moved: vec![FILE] };
        learn(&ways, &rename, &moved, 4, 400);
        assert_eq!(asked(&ways, FILE), [0, 1, 3, 4]);
        assert_eq!(ways.sync_targets(FILE).expect("kept").inos, [FILE, TARGET, Ino::ROOT]);
    }

    #[test]
    fn names_that_lead_in_a_circle_have_an_end() {
        let ways = made();
        learn(&ways, &create(DIR, InodeKind::Dir), &created(DIR, InodeKind::Dir), 5, 500);
        assert_eq!(ways.sync_targets(FILE).expect("kept").inos.len(), SYNC_NAMES_MAX);
        assert_eq!(asked(&ways, FILE), [0, 1, 5]);
    }

    #[test]
    fn of_too_many_names_all_executors_are_asked_for_any() {
        let ways = made();
        ways.known.lock().merge_into_common();
        assert_eq!(asked(&ways, FILE), [0, 1]);
        assert_eq!(asked(&ways, TARGET), [0, 1]);
        ways.record_durable(executor(0), ms(1000), ms(2000));
        ways.record_durable(executor(1), ms(1000), ms(4000));
        assert_eq!(asked(&ways, TARGET), []);
        assert!(ways.known.lock().common.is_empty());
    }

    #[test]
    fn nothing_is_noted_where_nobody_tells_what_lasts() {
        let ways = UnsyncedNames::default();
        learn(&ways, &create(DIR, InodeKind::File), &created(FILE, InodeKind::File), 1, 200);
        assert_eq!((ways.sync_targets(FILE), ways.directory_sync_targets(DIR)), (None, None));
        assert!(ways.known.lock().names.is_empty());
    }
}
