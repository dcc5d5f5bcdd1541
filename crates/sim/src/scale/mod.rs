//! Predicts the speed of many servers: the real namespace code in virtual time, with given costs of
//! operations.
//!
//! Each of up to 1,024 servers has a real [`Meta`](tatami_meta::Meta), and each client process real
//! partition maps ([`PartitionMaps`](tatami_wire::partition_map::PartitionMaps)). So the set of
//! requests and messages, the redirected requests, and the splits with their delays are not
//! assumed: they happen. The costs come from measurements elsewhere ([`ScaleCosts`]); the delays of
//! messages are assumptions ([`NetworkDelay`]).
//!
//! A server works as the executor of `crates/node` does, one round after the other. A round takes
//! the arrived requests and messages, up to 1,024, commits once, then sends the messages to other
//! servers and the replies, one by one. While the server works, more requests arrive. When none has
//! arrived, it sleeps, and a wake-up has a cost of its own. Clients have a fixed number of requests
//! under way (a closed loop), and send the next request as soon as they have a reply.
//!
//! Left out: bandwidth (all messages but those of splits are small), loss, disks (a volume with
//! durability `log` waits for none), merges of tables, and clients that share machines.

mod clients;
mod costs;
mod scale_world;
mod server;
mod setting;
mod split;
mod spread;
mod store;
mod sums;

pub use costs::{Machines, NetworkDelay, OperationKind, ScaleCosts};
pub use setting::{SERVERS_MAX, ScaleSetting};
pub use split::DirectorySplit;
pub use sums::{ScalePhase, ScaleSums};

use clients::PhaseNames;
use scale_world::{PhaseEnd, PhaseWork, ScaleWorld};
use tatami_meta::SplitLimits;
use tatami_wire::Ino;

/// The number of counted operations in each phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountWindow {
    /// Operations for each server.
    pub each: u64,
    /// Least number of operations of all servers together.
    pub least: u64,
}

impl CountWindow {
    fn operation_count(self, servers: u16) -> u64 {
        (self.each * u64::from(servers)).max(self.least)
    }
}

/// The spread of a directory over all servers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DirectoryGrowth {
    /// The figures until then.
    pub phase: ScalePhase,
    /// Entries by then; most of them are displaced.
    pub entries: u64,
    /// Whether the directory has spread. If not, some partitions have grown too large to be split.
    pub complete: bool,
    /// The largest share of all names on one server, divided by an equal share.
    pub largest: f64,
}

/// The results for one directory in which all processes work.
#[derive(Clone, Debug, PartialEq)]
pub struct SharedDirectory {
    /// The spread of the directory.
    pub growth: DirectoryGrowth,
    /// The first creates of one process that begins then, alone, without a partition map.
    pub newcomer: ScalePhase,
    /// The figures of each kind, then those of displaced files, if there are several servers.
    pub phases: Vec<ScalePhase>,
}

/// Number of creates of the newcomer.
const NEWCOMER: u64 = 4096;
/// A directory that has not spread with twice the expected entries plus this number never does.
const MORE: u64 = 32 * 1024;
/// Least number of replies to each request under way during the counting. At first all requests are
/// sent at the same moment and arrive in one burst. With long delays, the burst is visible for two
/// round trips.
const ROUND_TRIPS: u64 = 4;
/// The skipped operations of a phase are the counted ones divided by this.
const SKIPPED: u64 = 2;

impl ScaleSetting {
    fn new_world(&self) -> Result<ScaleWorld, String> {
        if self.servers == 0 || self.servers > SERVERS_MAX || self.processes == 0 || self.depth == 0
        {
            return Err(format!("there are no predictions for {self:?}"));
        }
        ScaleWorld::new(self)
    }

    fn new_work(&self, kind: OperationKind, names: PhaseNames, until: PhaseEnd) -> PhaseWork {
        let (processes, depth) = (self.processes, self.depth);
        PhaseWork { kind, names, until, processes, depth, enters: false }
    }

    /// Returns the end of a phase: the numbers of skipped and of counted operations.
    fn count_until(&self, window: CountWindow, part: u64) -> PhaseEnd {
        let under_way = u64::from(self.processes) * u64::from(self.depth);
        let counted = window.operation_count(self.servers).max(ROUND_TRIPS * under_way) / part;
        PhaseEnd::Count { skipped: (counted / SKIPPED).max(under_way), counted }
    }

    /// Runs phases in which all processes work in one new directory. `kinds` are in the order of
    /// [`OperationKind::ALL`].
    ///
    /// # Errors
    /// An operation that fails.
    pub fn run_shared(
        &self,
        kinds: &[OperationKind],
        window: CountWindow,
    ) -> Result<SharedDirectory, String> {
        let mut world = self.new_world()?;
        let dir = self.make_directory(&mut world)?;
        let follow = match self.count_until(window, 1) {
            PhaseEnd::Count { skipped, counted } => 2 * (skipped + counted),
            _ => 0,
        };
        let growth = self.grow_directory(&mut world, dir, follow)?;
        let reported = world.spread().map(|spread| spread.known_partitions()).unwrap_or_default();
        world.share_partitions(reported);
        for process in &mut world.processes {
            process.since = process.next;
        }
        let mut phases = Vec::new();
        for kind in kinds {
            let (kind, part) = (*kind, if *kind == OperationKind::Unlink { 2 } else { 1 });
            let until = self.count_until(window, part);
            phases.push(world.run_phase(self.new_work(kind, PhaseNames::New, until))?);
        }
        let made: u64 = world.processes.iter().map(|process| process.since[0]).sum();
        for kind in [OperationKind::Stat, OperationKind::Unlink]
            .into_iter()
            .filter(|kind| kinds.contains(kind))
        {
            let counted = made / 4;
            let until = PhaseEnd::Count { skipped: counted / SKIPPED, counted };
            if self.servers > 1 {
                phases.push(world.run_phase(self.new_work(kind, PhaseNames::Old, until))?);
            }
        }
        world.clear_partitions(1);
        let work =
            self.new_work(OperationKind::Create, PhaseNames::Each(NEWCOMER), PhaseEnd::Names);
        let newcomer = world.run_phase(PhaseWork { processes: 1, depth: 1, ..work })?;
        Ok(SharedDirectory { growth, newcomer, phases })
    }

    fn make_directory(&self, world: &mut ScaleWorld) -> Result<Ino, String> {
        let work = self.new_work(OperationKind::Mkdir, PhaseNames::Each(1), PhaseEnd::Names);
        world.run_phase(PhaseWork { processes: 1, enters: true, ..work })?;
        let dir = world.processes[0].dir;
        for process in &mut world.processes {
            (process.dir, process.next) = (dir, [0; 2]);
        }
        Ok(dir)
    }

    /// Makes files until the directory has spread, and until no partition is left that would split
    /// because of the `follow` entries of the later phases.
    fn grow_directory(
        &self,
        world: &mut ScaleWorld,
        dir: Ino,
        follow: u64,
    ) -> Result<DirectoryGrowth, String> {
        world.clear_partitions(self.processes);
        let above = self.split_above.unwrap_or(SplitLimits::default().shared);
        world.watch_directory(dir, above, follow);
        let most = MORE + 2 * world.spread().map_or(0, |spread| spread.entries_needed(above));
        let until = PhaseEnd::Spread { most };
        let work = self.new_work(OperationKind::Create, PhaseNames::New, until);
        let phase = world.run_phase(PhaseWork {
            processes: self.growers.min(self.processes),
            depth: 1,
            ..work
        })?;
        let entries = phase.sums.done;
        let (complete, largest) = world
            .spread()
            .map_or((true, 1.0), |spread| (spread.is_complete(), spread.relative_largest()));
        Ok(DirectoryGrowth { phase, entries, complete, largest })
    }

    /// Runs phases in which each process works in a directory of its own. `kinds` are in the order
    /// of [`OperationKind::ALL`].
    ///
    /// # Errors
    /// An operation that fails.
    pub fn run_private(
        &self,
        kinds: &[OperationKind],
        window: CountWindow,
    ) -> Result<Vec<ScalePhase>, String> {
        let mut world = self.new_world()?;
        world.clear_partitions(self.processes);
        let work = self.new_work(OperationKind::Mkdir, PhaseNames::Each(1), PhaseEnd::Names);
        world.run_phase(PhaseWork { enters: true, ..work })?;
        world.share_partitions(Default::default());
        // With its first entry a directory moves to its owner shard.
        world.processes.iter_mut().for_each(|process| process.next = [0; 2]);
        world.run_phase(self.new_work(
            OperationKind::Create,
            PhaseNames::Each(1),
            PhaseEnd::Names,
        ))?;
        let run = |kind: &OperationKind| {
            let part = if *kind == OperationKind::Unlink { 2 } else { 1 };
            world.run_phase(self.new_work(*kind, PhaseNames::New, self.count_until(window, part)))
        };
        kinds.iter().map(run).collect()
    }

    /// Runs the workload that is measured with real servers: in a new directory each process does
    /// `items` operations of each kind, one after the other, all of them counted.
    ///
    /// # Errors
    /// An operation that fails.
    pub fn run_whole(
        &self,
        kinds: &[OperationKind],
        items: u64,
    ) -> Result<Vec<ScalePhase>, String> {
        let mut world = self.new_world()?;
        self.make_directory(&mut world)?;
        world.clear_partitions(self.processes);
        let run = |kind: &OperationKind| {
            world.run_phase(self.new_work(*kind, PhaseNames::Each(items), PhaseEnd::Names))
        };
        kinds.iter().map(run).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COSTS: ScaleCosts = ScaleCosts {
        request: [20_000, 18_000, 12_000, 16_000],
        send: 5_000,
        correction: 11_000,
        wake: 6_000,
        message: 10_000,
        record: 1_000,
        client: [10_000; 4],
    };

    const WINDOW: CountWindow = CountWindow { each: 400, least: 4_000 };

    fn setting(servers: u16) -> ScaleSetting {
        ScaleSetting {
            servers,
            processes: 32 * u32::from(servers),
            depth: 1,
            growers: u32::MAX,
            network: NetworkDelay::ETHERNET,
            costs: COSTS,
            machines: Machines::Each,
            split_above: None,
            peers_first: false,
            seed: 1,
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_figures() {
        let small = ScaleSetting { processes: 40, split_above: Some(64), ..setting(5) };
        let first = small.run_shared(&OperationKind::ALL, WINDOW).expect("works");
        assert_eq!(small.run_shared(&OperationKind::ALL, WINDOW).as_ref(), Ok(&first));
        let other = ScaleSetting { seed: 2, ..small };
        assert_ne!(other.run_shared(&OperationKind::ALL, WINDOW).as_ref(), Ok(&first));
    }

    #[test]
    fn what_is_asked_is_answered() {
        let items = 300;
        let small = ScaleSetting { processes: 12, depth: 2, split_above: Some(100), ..setting(4) };
        for phase in small.run_whole(&OperationKind::ALL, items).expect("works") {
            let ScaleSums { requests, answers, done, .. } = phase.sums;
            assert_eq!((requests, done), (answers, 12 * items));
        }
    }

    #[test]
    fn a_server_without_a_network_makes_as_many_as_its_time_allows() {
        let alone = ScaleSetting {
            network: NetworkDelay::NONE,
            costs: ScaleCosts { client: [0; 4], ..COSTS },
            ..setting(1)
        };
        for phases in [
            alone.run_shared(&OperationKind::ALL, WINDOW).expect("works").phases,
            alone.run_private(&OperationKind::ALL, WINDOW).expect("works"),
        ] {
            for phase in phases {
                let most = 1e9 / COSTS.request[phase.kind.index()] as f64;
                let ratio = phase.ops_per_sec() / most;
                assert!((0.99..1.01).contains(&ratio), "{phase:?} has {ratio}");
            }
        }
    }

    #[test]
    fn private_directories_are_as_fast_on_each_server() {
        let rate = |servers| {
            setting(servers).run_private(&OperationKind::ALL, WINDOW).expect("works")[0]
                .ops_per_sec()
        };
        let (one, many) = (rate(1), rate(16));
        let efficiency = many / one / 16.0;
        assert!((0.9..1.05).contains(&efficiency), "{efficiency}");
    }

    #[test]
    fn a_directory_spreads_over_all_servers_and_is_faster_then() {
        let SharedDirectory { growth, newcomer, phases } =
            setting(16).run_shared(&OperationKind::ALL, WINDOW).expect("works");
        assert!(growth.complete, "{growth:?}");
        assert!(growth.entries > 1024 && growth.phase.sums.corrections > 0);
        let create = &phases[0];
        assert_eq!(create.sums.corrections, 0, "all know where to ask");
        assert!(create.ops_per_sec() > 0.85 * 16.0 * 1e9 / 20_000.0, "{create:?}");
        // One correction for each split partition is enough.
        assert!((1..=17).contains(&newcomer.sums.corrections), "{newcomer:?}");
        let displaced =
            phases.iter().filter(|phase| phase.old && phase.kind == OperationKind::Stat);
        assert!(displaced.map(|phase| phase.sums.seconds).sum::<u64>() > 0);
    }

    #[test]
    fn who_shares_a_cpu_takes_turns() {
        let shared = ScaleSetting {
            processes: 4,
            network: NetworkDelay::NONE,
            machines: Machines::One,
            ..setting(2)
        };
        let phases = shared.run_whole(&[OperationKind::Create], 500).expect("works");
        let sums = phases[0].sums;
        let worked = (sums.busy + sums.client) as f64 / 1e9 / phases[0].seconds;
        assert!((0.5..=1.001).contains(&worked), "{worked} of the CPU's time");
    }
}
