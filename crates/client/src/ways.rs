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
use tatami_wire::meta::{MetaOp, MetaReply, RenameMode, SYNCED_MAX};
use tatami_wire::{ExecutorId, Ino, hash};

/// Most names that are recorded. Beyond, all executors concerned are asked for any file.
const NAMES_MAX: usize = 1 << 18;

/// Shortest time between two sweeps of durable names.
const SWEEP: Duration = Duration::from_secs(1);

/// Executors, and when each reported the name last, by [`uptime`](crate::delegations::uptime).
type Debts = BTreeMap<ExecutorId, Duration>;

/// See the module.
#[derive(Default)]
pub(crate) struct Ways {
    kept: AtomicBool,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    /// Changes of an executor up to this time survive a power cut.
    lasting: HashMap<ExecutorId, Duration>,
    names: HashMap<Ino, Way, hash::Build>,
    /// Changes of names in a directory.
    contents: HashMap<Ino, Debts, hash::Build>,
    /// Executors of names that were too many to record.
    common: Debts,
    /// The time of the last sweep.
    swept: Duration,
}

/// The name of an inode.
struct Way {
    /// Its directory.
    above: Ino,
    debts: Debts,
}

/// The sync that a name needs.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Owed {
    /// The inode, and the directories above it.
    pub(crate) inos: Vec<Ino>,
    /// The executors to ask.
    pub(crate) executors: BTreeSet<ExecutorId>,
}

impl Ways {
    /// Starts recording. The caller must also report durable times with [`Ways::lasts`].
    pub(crate) fn keep(&self) {
        // Relaxed: no other data depends on the flag. A name that is missed because a thread sees
        // it late was made before the recording.
        self.kept.store(true, Relaxed);
    }

    /// Records the names in the reply of `here` to `op`. `home` returns the executor that has an
    /// inode.
    pub(crate) fn learn(
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
                MetaOp::Find { parent, .. } | MetaOp::Lookup { parent, .. },
                MetaReply::Attr(attr),
            ) => {
                self.known.lock().note(attr.ino, *parent, [Some(here)], now);
            }
            (MetaOp::Find { parent, .. }, MetaReply::Leads(ino)) => {
                self.known.lock().note(*ino, *parent, [Some(here), home(*ino)], now);
            }
            (MetaOp::Create { parent, .. }, MetaReply::Created { attr, .. })
            | (MetaOp::Link { parent, .. }, MetaReply::Attr(attr)) => {
                let mut known = self.known.lock();
                known.note(attr.ino, *parent, [Some(here)], now);
                known.note_change(*parent, here, now);
            }
            (MetaOp::ReadDir { dir, .. }, MetaReply::Entries { entries, .. }) => {
                let mut known = self.known.lock();
                for entry in entries {
                    let home = if entry.attr.is_some() { None } else { home(entry.ino) };
                    known.note(entry.ino, *dir, [Some(here), home], now);
                }
            }
            (
                MetaOp::Unlink { parent, .. } | MetaOp::Rmdir { parent, .. },
                MetaReply::Removed { .. },
            ) => {
                self.known.lock().note_change(*parent, here, now);
            }
            (MetaOp::Rename { parent, new_parent, mode, .. }, MetaReply::Renamed { moved, .. }) => {
                let mut known = self.known.lock();
                known.note_change(*parent, here, now);
                known.note_change(*new_parent, here, now);
                let back = (*mode == RenameMode::Exchange).then_some(*parent);
                for (ino, above) in moved.iter().zip([*new_parent].into_iter().chain(back)) {
                    known.note(*ino, above, [Some(here)], now);
                }
            }
            _ => {}
        }
    }

    /// Records that changes of `executor` up to `until` survive a power cut.
    pub(crate) fn lasts(&self, executor: ExecutorId, until: Duration, now: Duration) {
        let known = &mut *self.known.lock();
        let lasting = known.lasting.entry(executor).or_default();
        *lasting = until.max(*lasting);
        if now >= known.swept + SWEEP {
            known.swept = now;
            known.forget();
        }
    }

    /// Records that these inodes were synced, for changes up to `since`.
    pub(crate) fn synced(&self, inos: &[Ino], since: Duration) {
        let known = &mut *self.known.lock();
        for ino in inos {
            if let Some(way) = known.names.get_mut(ino) {
                way.debts.retain(|_, told| *told >= since);
            }
        }
    }

    /// As [`Ways::synced`], for the names in a directory.
    pub(crate) fn contents_synced(&self, dir: Ino, since: Duration) {
        if let Some(debts) = self.known.lock().contents.get_mut(&dir) {
            debts.retain(|_, told| *told >= since);
        }
    }

    /// Returns the sync that the name of an inode needs; `None` where names are not recorded.
    pub(crate) fn owed(&self, ino: Ino) -> Option<Owed> {
        self.kept.load(Relaxed).then(|| self.known.lock().owed(ino))
    }

    /// As [`Ways::owed`], with the changes in this directory.
    pub(crate) fn owed_in(&self, dir: Ino) -> Option<Owed> {
        if !self.kept.load(Relaxed) {
            return None;
        }
        let known = self.known.lock();
        let mut owed = known.owed(dir);
        owed.executors
            .extend(known.contents.get(&dir).into_iter().flat_map(|d| known.unsettled(d)));
        Some(owed)
    }
}

impl Known {
    /// Records that `ino` has a name in `above`, which these executors have reported.
    fn note<const N: usize>(
        &mut self,
        ino: Ino,
        above: Ino,
        executors: [Option<ExecutorId>; N],
        now: Duration,
    ) {
        if self.names.len() >= NAMES_MAX {
            self.give_up();
        }
        // The sync for another name of the inode stays due, with the directories above that name: a
        // crash may leave either name.
        let before = self.names.get(&ino).filter(|way| way.above != above).map(|way| way.above);
        let more = before.map(|above| self.debts_of_way(above)).unwrap_or_default();
        let way = self.names.entry(ino).or_insert_with(|| Way { above, debts: Debts::new() });
        way.above = above;
        let told = executors.into_iter().flatten().map(|executor| (executor, now));
        more.into_iter()
            .chain(told)
            .for_each(|(executor, told)| add(&mut way.debts, executor, told));
    }

    /// Records a change in a directory.
    fn note_change(&mut self, dir: Ino, executor: ExecutorId, now: Duration) {
        add(self.contents.entry(dir).or_default(), executor, now);
    }

    /// Returns the inode and the directories above, as far as they are recorded.
    fn way(&self, ino: Ino) -> impl Iterator<Item = (Ino, &Way)> {
        let first = self.names.get(&ino).map(|way| (ino, way));
        // Names that were seen at different times may lead in a circle, so the walk is bounded.
        let next = move |(_, way): &(Ino, &Way)| Some((way.above, self.names.get(&way.above)?));
        std::iter::successors(first, next).take(SYNCED_MAX - 1)
    }

    fn debts_of_way(&self, ino: Ino) -> Debts {
        let mut all = Debts::new();
        for (executor, told) in self.way(ino).flat_map(|(_, way)| &way.debts) {
            add(&mut all, *executor, *told);
        }
        all
    }

    fn owed(&self, ino: Ino) -> Owed {
        let mut owed = Owed { inos: vec![ino], executors: self.unsettled(&self.common).collect() };
        for (_, way) in self.way(ino) {
            owed.inos.push(way.above);
            owed.executors.extend(self.unsettled(&way.debts));
        }
        owed
    }

    fn is_settled(&self, executor: ExecutorId, told: Duration) -> bool {
        self.lasting.get(&executor).is_some_and(|lasting| told < *lasting)
    }

    fn unsettled<'a>(&'a self, debts: &'a Debts) -> impl Iterator<Item = ExecutorId> + 'a {
        let open =
            |(executor, told): &(&ExecutorId, &Duration)| !self.is_settled(**executor, **told);
        debts.iter().filter(open).map(|(executor, _)| *executor)
    }

    /// Drops durable names. A durable name below one that is not stays until a later sweep, because
    /// the walk upwards leads through it.
    fn forget(&mut self) {
        let owes = |debts: &Debts| self.unsettled(debts).next().is_some();
        let done = |(ino, way): (&Ino, &Way)| {
            let stays = owes(&way.debts) || self.names.contains_key(&way.above);
            (!stays).then_some(*ino)
        };
        let done: Vec<Ino> = self.names.iter().filter_map(done).collect();
        let empty: Vec<Ino> =
            self.contents.iter().filter(|(_, debts)| !owes(debts)).map(|(dir, _)| *dir).collect();
        done.iter().for_each(|ino| drop(self.names.remove(ino)));
        empty.iter().for_each(|dir| drop(self.contents.remove(dir)));
        let settled = self.common.iter().filter(|(e, told)| self.is_settled(**e, **told));
        let settled: Vec<_> = settled.map(|(executor, _)| *executor).collect();
        settled.iter().for_each(|executor| _ = self.common.remove(executor));
    }

    /// Drops all records, because there are too many. From then on all executors concerned are
    /// asked for any name.
    fn give_up(&mut self) {
        let names = std::mem::take(&mut self.names).into_values().map(|way| way.debts);
        let contents = std::mem::take(&mut self.contents).into_values();
        for (executor, told) in names.chain(contents).flatten() {
            if !self.is_settled(executor, told) {
                add(&mut self.common, executor, told);
            }
        }
    }
}

fn add(debts: &mut Debts, executor: ExecutorId, told: Duration) {
    let last = debts.entry(executor).or_insert(told);
    *last = told.max(*last);
}

#[cfg(test)]
mod tests {
    use super::*;
    use tatami_wire::meta::{Bytes, NewNode};
    use tatami_wire::{Attr, Kind, NodeId};

    const DIR: Ino = Ino(10);
    const FILE: Ino = Ino(20);
    const TARGET: Ino = Ino(30);

    fn executor(node: u16) -> ExecutorId {
        ExecutorId::first(NodeId(node))
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn create(parent: Ino, kind: Kind) -> MetaOp {
        let node = if kind == Kind::Dir { NewNode::Dir } else { NewNode::Fifo };
        let (name, mode, umask) = (Bytes::from(b"n".to_vec()), 0, 0);
        MetaOp::Create { parent, name, node, mode, umask, exclusive: true, open: None }
    }

    fn created(ino: Ino, kind: Kind) -> MetaReply {
        MetaReply::Created { attr: Attr::plain(ino, kind), cap: None, created: true }
    }

    /// Node 0 has made a directory, and node 1 a file in it.
    fn made() -> Ways {
        let ways = Ways::default();
        ways.keep();
        learn(&ways, &create(Ino::ROOT, Kind::Dir), &created(DIR, Kind::Dir), 0, 100);
        learn(&ways, &create(DIR, Kind::File), &created(FILE, Kind::File), 1, 200);
        ways
    }

    fn learn(ways: &Ways, op: &MetaOp, reply: &MetaReply, node: u16, now: u64) {
        ways.learn(op, reply, executor(node), |_| Some(executor(7)), ms(now));
    }

    fn asked(ways: &Ways, ino: Ino) -> Vec<u16> {
        ways.owed(ino).expect("kept").executors.iter().map(|id| id.node.0).collect()
    }

    #[test]
    fn a_file_owes_what_the_directories_above_owe_until_it_lasts() {
        let ways = made();
        assert_eq!(asked(&ways, FILE), [0, 1]);
        assert_eq!(ways.owed(FILE).expect("kept").inos, [FILE, DIR, Ino::ROOT]);
        assert_eq!(asked(&ways, DIR), [0]);
        assert_eq!(asked(&ways, TARGET), []);
        // A change that was reported at that moment may have been made after it.
        ways.lasts(executor(1), ms(200), ms(3000));
        assert_eq!(asked(&ways, FILE), [0, 1]);
        ways.lasts(executor(1), ms(201), ms(6000));
        assert_eq!(asked(&ways, FILE), [0]);
        // An older report does not move the durable time back.
        ways.lasts(executor(1), ms(150), ms(9000));
        assert_eq!(asked(&ways, FILE), [0]);
        assert_eq!(ways.known.lock().names.len(), 2, "what is below stays");
        ways.lasts(executor(0), ms(500), ms(12_000));
        ways.lasts(executor(0), ms(500), ms(15_000));
        assert_eq!(asked(&ways, FILE), []);
        let known = ways.known.lock();
        assert!(known.names.is_empty() && known.contents.is_empty());
    }

    #[test]
    fn what_was_synced_is_not_synced_again() {
        let ways = made();
        ways.synced(&ways.owed(FILE).expect("kept").inos, ms(150));
        assert_eq!(asked(&ways, FILE), [1], "it was made after the sync began");
        ways.synced(&[FILE], ms(201));
        assert_eq!(asked(&ways, FILE), []);
    }

    #[test]
    fn a_directory_owes_what_was_made_and_removed_in_it() {
        let ways = made();
        let all = |ways: &Ways| ways.owed_in(DIR).expect("kept").executors;
        assert_eq!(all(&ways), BTreeSet::from([executor(0), executor(1)]));
        let unlink = MetaOp::Unlink { parent: DIR, name: Bytes::new(), keep: false };
        let removed = MetaReply::Removed { ino: Some(FILE), last: true };
        learn(&ways, &unlink, &removed, 2, 300);
        assert!(all(&ways).contains(&executor(2)));
        assert_eq!(asked(&ways, DIR), [0]);
        ways.contents_synced(DIR, ms(400));
        assert_eq!(all(&ways), BTreeSet::from([executor(0)]));
    }

    #[test]
    fn what_is_moved_owes_what_both_places_owe() {
        let ways = made();
        learn(&ways, &create(Ino::ROOT, Kind::Dir), &created(TARGET, Kind::Dir), 3, 300);
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
        assert_eq!(ways.owed(FILE).expect("kept").inos, [FILE, TARGET, Ino::ROOT]);
    }

    #[test]
    fn names_that_lead_in_a_circle_have_an_end() {
        let ways = made();
        learn(&ways, &create(DIR, Kind::Dir), &created(DIR, Kind::Dir), 5, 500);
        assert_eq!(ways.owed(FILE).expect("kept").inos.len(), SYNCED_MAX);
        assert_eq!(asked(&ways, FILE), [0, 1, 5]);
    }

    #[test]
    fn of_too_many_names_all_executors_are_asked_for_any() {
        let ways = made();
        ways.known.lock().give_up();
        assert_eq!(asked(&ways, FILE), [0, 1]);
        assert_eq!(asked(&ways, TARGET), [0, 1]);
        ways.lasts(executor(0), ms(1000), ms(2000));
        ways.lasts(executor(1), ms(1000), ms(4000));
        assert_eq!(asked(&ways, TARGET), []);
        assert!(ways.known.lock().common.is_empty());
    }

    #[test]
    fn nothing_is_noted_where_nobody_tells_what_lasts() {
        let ways = Ways::default();
        learn(&ways, &create(DIR, Kind::File), &created(FILE, Kind::File), 1, 200);
        assert_eq!((ways.owed(FILE), ways.owed_in(DIR)), (None, None));
        assert!(ways.known.lock().names.is_empty());
    }
}
