//! The names that an fsync covers survive a power cut of any nodes, though it has asked a few of
//! them only.

use crate::cluster::{Cluster, LAYOUT, ROOT, Rng, executor, name, number_of};
use std::collections::BTreeSet;
use tatami_wire::meta::{InodeTemplate, MetaOp, MetaReply, RenameMode};
use tatami_wire::{Cred, ExecutorId, Ino};

const NODES: usize = 6;
/// Operations before an fsync.
const STEPS: u32 = 60;
const WORLDS: u64 = 400;

/// A file or directory, its parent, and the executors that have reported its name to a client.
struct Named {
    ino: Ino,
    above: usize,
    name: String,
    is_dir: bool,
    told_by: BTreeSet<ExecutorId>,
}

struct World {
    cluster: Cluster,
    rng: Rng,
    all: Vec<Named>,
}

impl World {
    fn new(seed: u64) -> World {
        let mut cluster = Cluster::new(NODES as u16, 64, seed);
        cluster.split_above(8);
        cluster.sync_by_themselves();
        let (name, told_by) = (String::new(), BTreeSet::new());
        let root = Named { ino: ROOT, above: 0, name, is_dir: true, told_by };
        World { cluster, rng: Rng::new(seed ^ 0x5eed), all: vec![root] }
    }

    fn pick(&mut self, fits: impl Fn(&Named) -> bool) -> Option<usize> {
        let some: Vec<_> = (0..self.all.len()).filter(|at| fits(&self.all[*at])).collect();
        (!some.is_empty()).then(|| some[self.rng.below(some.len() as u64) as usize])
    }

    /// Returns it and the directories above.
    fn way(&self, at: usize) -> Vec<usize> {
        let mut way = vec![at];
        while *way.last().expect("it begins somewhere") != 0 {
            way.push(self.all[way[way.len() - 1]].above);
        }
        way
    }

    fn make(&mut self, is_dir: bool) {
        let above = self.pick(|known| known.is_dir).expect("the root is one");
        let text = format!("n{}", self.all.len());
        let node = if is_dir { InodeTemplate::Dir } else { InodeTemplate::File(LAYOUT) };
        let (parent, mode) = (self.all[above].ino, 0o755);
        let op = MetaOp::Create {
            parent,
            name: name(&text),
            node,
            mode,
            umask: 0,
            exclusive: true,
            open: None,
        };
        match self.cluster.call(1, &Cred::ROOT, op) {
            Ok(MetaReply::Created { attr, .. }) => {
                let told_by = [self.cluster.answered_by[&1]].into();
                self.all.push(Named { ino: attr.ino, above, name: text, is_dir, told_by });
            }
            other => panic!("not made: {other:?}"),
        }
    }

    fn rename(&mut self) {
        let Some(at) = self.pick(|known| known.ino != ROOT) else { return };
        let to = self.pick(|known| known.is_dir).expect("the root is one");
        if self.way(to).contains(&at) {
            return;
        }
        let text = format!("r{}", self.rng.below(1 << 30));
        let op = MetaOp::Rename {
            parent: self.all[self.all[at].above].ino,
            name: name(&self.all[at].name),
            new_parent: self.all[to].ino,
            new_name: name(&text),
            mode: RenameMode::NoReplace,
            keep: false,
        };
        match self.cluster.call(1, &Cred::ROOT, op) {
            Ok(MetaReply::Renamed { moved, .. }) => assert_eq!(moved, [self.all[at].ino]),
            other => panic!("not moved: {other:?}"),
        }
        let by = self.cluster.answered_by[&1];
        let known = &mut self.all[at];
        (known.above, known.name) = (to, text);
        known.told_by.insert(by);
    }

    /// Runs an fsync as a client does. Returns the number of asked executors.
    fn fsync(&mut self, at: usize) -> usize {
        let way = self.way(at);
        let inos: Vec<Ino> = way.iter().map(|at| self.all[*at].ino).collect();
        let home = self.cluster.map.owner(inos[0].owner_shard()).expect("there is such a shard");
        let mut left: BTreeSet<_> =
            way.iter().flat_map(|at| self.all[*at].told_by.clone()).collect();
        left.insert(home);
        let mut asked = BTreeSet::new();
        while let Some(next) = left.pop_first() {
            asked.insert(next);
            let also = self.cluster.sync_names(number_of(next), &inos);
            left.extend(also.into_iter().filter(|other| !asked.contains(other)));
        }
        asked.len()
    }

    fn assert_there(&mut self, at: usize) {
        let way = self.way(at);
        for at in way.into_iter().rev().filter(|at| *at != 0) {
            let (parent, text) = (self.all[self.all[at].above].ino, self.all[at].name.clone());
            let op = MetaOp::Lookup { parent, name: name(&text) };
            match self.cluster.call(2, &Cred::ROOT, op) {
                Ok(MetaReply::Attr(attr)) => assert_eq!(attr.ino, self.all[at].ino),
                other => panic!("{text} in {parent} is lost: {other:?}"),
            }
        }
    }
}

#[test]
fn what_was_synced_is_there_after_a_power_cut() {
    let mut spared = 0;
    for seed in 0..WORLDS {
        let mut world = World::new(seed);
        for _ in 0..STEPS {
            match world.rng.below(10) {
                0..5 => world.make(false),
                5..8 => world.make(true),
                _ => world.rename(),
            }
        }
        world.make(false);
        let file = world.pick(|known| !known.is_dir).expect("one was made");
        spared += NODES - world.fsync(file);
        // The participants get the outcome, and acknowledge it, at different times.
        (0..world.rng.below(1500)).for_each(|_| world.cluster.step());
        for node in 0..NODES {
            if world.rng.percent(60) {
                world.cluster.cut_power(node);
            }
        }
        world.cluster.quiet();
        world.assert_there(file);
    }
    assert!(spared > WORLDS as usize, "nearly all executors were asked each time");
}

/// A participant has applied its part, and power is cut before that is on its disk: it gets the
/// outcome again.
#[test]
fn a_coordinator_remembers_until_the_parts_of_others_last() {
    let mut cluster = Cluster::new(2, 16, 3);
    cluster.sync_by_themselves();
    let [here, there] = [0, 1].map(|node| crate::same::dir(&mut cluster, ROOT, Some(node)));
    let file = crate::checking::create(&mut cluster, here, "file");
    cluster.quiet();
    let op = MetaOp::Rename {
        parent: here,
        name: name("file"),
        new_parent: there,
        new_name: name("file"),
        mode: RenameMode::NoReplace,
        keep: false,
    };
    cluster.call(1, &Cred::ROOT, op).expect("renamed");
    let coordinator = number_of(cluster.answered_by[&1]);
    let other = 1 - coordinator;
    // A client has it synced.
    assert_eq!(cluster.sync_names(coordinator, &[file, there]), [executor(other)]);
    assert_eq!(cluster.sync_names(other, &[file, there]), []);
    // The outcome gets to the other, which acknowledges it; the coordinator syncs any decision that
    // it has forgotten.
    (0..100).for_each(|_| cluster.step());
    cluster.meta(coordinator).expect("it is up").sync().expect("memory does not fail");
    let store = cluster.meta(other).expect("it is up").store_mut();
    assert!(store.unsynced_commits() > 0, "its part is not on its disk");
    cluster.kill(other, 30);
    cluster.lose_unsynced(other);
    cluster.quiet();
    let op = MetaOp::Lookup { parent: there, name: name("file") };
    match cluster.call(2, &Cred::ROOT, op) {
        Ok(MetaReply::Attr(attr)) => assert_eq!(attr.ino, file),
        found => panic!("the file is lost: {found:?}"),
    }
}
