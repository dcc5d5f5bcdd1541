//! Predicts the speed of many servers: the real namespace code in virtual time, with given costs of
//! operations.
//!
//! Each of up to 1,024 servers has a real [`Meta`](tatami_meta::Meta), and each client process real
//! partition maps ([`Directories`](tatami_wire::partition::Directories)). So the set of requests
//! and messages, the redirected requests, and the splits with their delays are not assumed: they
//! happen. The costs come from measurements elsewhere ([`Costs`]); the delays of messages are
//! assumptions ([`Network`]).
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
mod server;
mod split;
mod spread;
mod store;
mod sums;
mod world;

pub use costs::{Costs, Kind, Machines, Network};
pub use split::Split;
pub use sums::Sums;

use clients::Names;
use tatami_wire::Ino;
use world::{Until, Work, World};

/// Most servers of a prediction: each of them has four shards.
pub const SERVERS_MAX: u16 = 1024;

/// The setting of a prediction.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Number of servers, 1 to [`SERVERS_MAX`].
    pub servers: u16,
    /// Number of client processes, all together.
    pub processes: u32,
    /// Requests that each process has under way at the same time.
    pub depth: u32,
    /// Most processes that make files in a new directory until it has spread, with one request
    /// under way each.
    pub growers: u32,
    /// The delays of messages.
    pub network: Network,
    /// The costs of operations.
    pub costs: Costs,
    /// The CPUs of servers and clients.
    pub machines: Machines,
    /// Partitions with more entries than this split, if the limit differs from a volume's.
    pub split_above: Option<u64>,
    /// Servers take messages of other servers before requests, unlike the executor, to see the
    /// effect of that order.
    pub peers_first: bool,
    /// The seed of all random decisions.
    pub seed: u64,
}

/// The number of counted operations in each phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Operations for each server.
    pub each: u64,
    /// Least number of operations of all servers together.
    pub least: u64,
}

impl Window {
    fn count(self, servers: u16) -> u64 {
        (self.each * u64::from(servers)).max(self.least)
    }
}

/// The figures of operations of one kind.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Phase {
    /// The kind of the operations …
    pub kind: Kind,
    /// … and whether the files were made before the directory had spread: many of those inodes are
    /// elsewhere than their names.
    pub old: bool,
    /// Number of servers.
    pub servers: u16,
    /// Virtual time in seconds.
    pub seconds: f64,
    /// Busy share of the busiest server: 0 to 1 and a little more, since a round counts when it
    /// begins.
    pub busiest: f64,
    /// Most requests and messages that waited at one server at the same time.
    pub longest: u64,
    /// The counts.
    pub sums: Sums,
}

impl Phase {
    /// Returns operations per second.
    pub fn rate(&self) -> f64 {
        self.sums.done as f64 / self.seconds
    }

    /// Returns CPU time in ns divided by that of all servers, 0 to 1.
    pub fn share(&self, cpu: u64) -> f64 {
        cpu as f64 / 1e9 / self.seconds / f64::from(self.servers)
    }
}

/// The spread of a directory over all servers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Growth {
    /// The figures until then.
    pub phase: Phase,
    /// Entries by then; most of them are displaced.
    pub entries: u64,
    /// Whether the directory has spread. If not, some partitions have grown too large to be split.
    pub complete: bool,
    /// The largest share of all names on one server, divided by an equal share.
    pub largest: f64,
}

/// The results for one directory in which all processes work.
#[derive(Clone, Debug, PartialEq)]
pub struct Shared {
    /// The spread of the directory.
    pub growth: Growth,
    /// The first creates of one process that begins then, alone, without a partition map.
    pub newcomer: Phase,
    /// The figures of each kind, then those of displaced files, if there are several servers.
    pub phases: Vec<Phase>,
}

/// Number of creates of the newcomer.
const NEWCOMER: u64 = 4096;
/// Partitions with more entries than this split by default.
const SPLIT_ABOVE: u64 = 1024;
/// A directory that has not spread with twice the expected entries plus this number never does.
const MORE: u64 = 32 * 1024;
/// Least number of replies to each request under way during the counting. At first all requests are
/// sent at the same moment and arrive in one burst. With long delays, the burst is visible for two
/// round trips.
const ROUND_TRIPS: u64 = 4;
/// The skipped operations of a phase are the counted ones divided by this.
const SKIPPED: u64 = 2;

impl Setting {
    fn world(&self) -> Result<World, String> {
        if self.servers == 0 || self.servers > SERVERS_MAX || self.processes == 0 || self.depth == 0
        {
            return Err(format!("there are no predictions for {self:?}"));
        }
        World::new(self)
    }

    fn work(&self, kind: Kind, names: Names, until: Until) -> Work {
        let (processes, depth) = (self.processes, self.depth);
        Work { kind, names, until, processes, depth, enters: false }
    }

    /// Returns the end of a phase: the numbers of skipped and of counted operations.
    fn until(&self, window: Window, part: u64) -> Until {
        let under_way = u64::from(self.processes) * u64::from(self.depth);
        let counted = window.count(self.servers).max(ROUND_TRIPS * under_way) / part;
        Until::Count { skipped: (counted / SKIPPED).max(under_way), counted }
    }

    /// Runs phases in which all processes work in one new directory. `kinds` are in the order of
    /// [`Kind::ALL`].
    ///
    /// # Errors
    /// An operation that fails.
    pub fn shared(&self, kinds: &[Kind], window: Window) -> Result<Shared, String> {
        let mut world = self.world()?;
        let dir = self.make_shared(&mut world)?;
        let follow = match self.until(window, 1) {
            Until::Count { skipped, counted } => 2 * (skipped + counted),
            _ => 0,
        };
        let growth = self.grow(&mut world, dir, follow)?;
        let told = world.spread().map(|spread| spread.told()).unwrap_or_default();
        world.know(told);
        for process in &mut world.processes {
            process.since = process.next;
        }
        let mut phases = Vec::new();
        for kind in kinds {
            let (kind, part) = (*kind, if *kind == Kind::Unlink { 2 } else { 1 });
            let until = self.until(window, part);
            phases.push(world.run(self.work(kind, Names::New, until))?);
        }
        let made: u64 = world.processes.iter().map(|process| process.since[0]).sum();
        for kind in [Kind::Stat, Kind::Unlink].into_iter().filter(|kind| kinds.contains(kind)) {
            let counted = made / 4;
            let until = Until::Count { skipped: counted / SKIPPED, counted };
            if self.servers > 1 {
                phases.push(world.run(self.work(kind, Names::Old, until))?);
            }
        }
        world.know_nothing(1);
        let work = self.work(Kind::Create, Names::Each(NEWCOMER), Until::Names);
        let newcomer = world.run(Work { processes: 1, depth: 1, ..work })?;
        Ok(Shared { growth, newcomer, phases })
    }

    fn make_shared(&self, world: &mut World) -> Result<Ino, String> {
        let work = self.work(Kind::Mkdir, Names::Each(1), Until::Names);
        world.run(Work { processes: 1, enters: true, ..work })?;
        let dir = world.processes[0].dir;
        for process in &mut world.processes {
            (process.dir, process.next) = (dir, [0; 2]);
        }
        Ok(dir)
    }

    /// Makes files until the directory has spread, and until no partition is left that would split
    /// because of the `follow` entries of the later phases.
    fn grow(&self, world: &mut World, dir: Ino, follow: u64) -> Result<Growth, String> {
        world.know_nothing(self.processes);
        let above = self.split_above.unwrap_or(SPLIT_ABOVE);
        world.watch(dir, above, follow);
        let most = MORE + 2 * world.spread().map_or(0, |spread| spread.entries(above));
        let until = Until::Spread { most };
        let work = self.work(Kind::Create, Names::New, until);
        let phase =
            world.run(Work { processes: self.growers.min(self.processes), depth: 1, ..work })?;
        let entries = phase.sums.done;
        let (complete, largest) =
            world.spread().map_or((true, 1.0), |spread| (spread.is_complete(), spread.largest()));
        Ok(Growth { phase, entries, complete, largest })
    }

    /// Runs phases in which each process works in a directory of its own. `kinds` are in the order
    /// of [`Kind::ALL`].
    ///
    /// # Errors
    /// An operation that fails.
    pub fn private(&self, kinds: &[Kind], window: Window) -> Result<Vec<Phase>, String> {
        let mut world = self.world()?;
        world.know_nothing(self.processes);
        let work = self.work(Kind::Mkdir, Names::Each(1), Until::Names);
        world.run(Work { enters: true, ..work })?;
        world.know(Default::default());
        // With its first entry a directory moves to its owner shard.
        world.processes.iter_mut().for_each(|process| process.next = [0; 2]);
        world.run(self.work(Kind::Create, Names::Each(1), Until::Names))?;
        let run = |kind: &Kind| {
            let part = if *kind == Kind::Unlink { 2 } else { 1 };
            world.run(self.work(*kind, Names::New, self.until(window, part)))
        };
        kinds.iter().map(run).collect()
    }

    /// Runs the workload that is measured with real servers: in a new directory each process does
    /// `items` operations of each kind, one after the other, all of them counted.
    ///
    /// # Errors
    /// An operation that fails.
    pub fn whole(&self, kinds: &[Kind], items: u64) -> Result<Vec<Phase>, String> {
        let mut world = self.world()?;
        self.make_shared(&mut world)?;
        world.know_nothing(self.processes);
        let run = |kind: &Kind| world.run(self.work(*kind, Names::Each(items), Until::Names));
        kinds.iter().map(run).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COSTS: Costs = Costs {
        request: [20_000, 18_000, 12_000, 16_000],
        send: 5_000,
        correction: 11_000,
        wake: 6_000,
        message: 10_000,
        record: 1_000,
        client: [10_000; 4],
    };

    const WINDOW: Window = Window { each: 400, least: 4_000 };

    fn setting(servers: u16) -> Setting {
        Setting {
            servers,
            processes: 32 * u32::from(servers),
            depth: 1,
            growers: u32::MAX,
            network: Network::ETHERNET,
            costs: COSTS,
            machines: Machines::Each,
            split_above: None,
            peers_first: false,
            seed: 1,
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_figures() {
        let small = Setting { processes: 40, split_above: Some(64), ..setting(5) };
        let first = small.shared(&Kind::ALL, WINDOW).expect("works");
        assert_eq!(small.shared(&Kind::ALL, WINDOW).as_ref(), Ok(&first));
        let other = Setting { seed: 2, ..small };
        assert_ne!(other.shared(&Kind::ALL, WINDOW).as_ref(), Ok(&first));
    }

    #[test]
    fn what_is_asked_is_answered() {
        let items = 300;
        let small = Setting { processes: 12, depth: 2, split_above: Some(100), ..setting(4) };
        for phase in small.whole(&Kind::ALL, items).expect("works") {
            let Sums { requests, answers, done, .. } = phase.sums;
            assert_eq!((requests, done), (answers, 12 * items));
        }
    }

    #[test]
    fn a_server_without_a_network_makes_as_many_as_its_time_allows() {
        let alone = Setting {
            network: Network::NONE,
            costs: Costs { client: [0; 4], ..COSTS },
            ..setting(1)
        };
        for phases in [
            alone.shared(&Kind::ALL, WINDOW).expect("works").phases,
            alone.private(&Kind::ALL, WINDOW).expect("works"),
        ] {
            for phase in phases {
                let most = 1e9 / COSTS.request[phase.kind.at()] as f64;
                let ratio = phase.rate() / most;
                assert!((0.99..1.01).contains(&ratio), "{phase:?} has {ratio}");
            }
        }
    }

    #[test]
    fn private_directories_are_as_fast_on_each_server() {
        let rate = |servers| setting(servers).private(&Kind::ALL, WINDOW).expect("works")[0].rate();
        let (one, many) = (rate(1), rate(16));
        let efficiency = many / one / 16.0;
        assert!((0.9..1.05).contains(&efficiency), "{efficiency}");
    }

    #[test]
    fn a_directory_spreads_over_all_servers_and_is_faster_then() {
        let Shared { growth, newcomer, phases } =
            setting(16).shared(&Kind::ALL, WINDOW).expect("works");
        assert!(growth.complete, "{growth:?}");
        assert!(growth.entries > 1024 && growth.phase.sums.corrections > 0);
        let create = &phases[0];
        assert_eq!(create.sums.corrections, 0, "all know where to ask");
        assert!(create.rate() > 0.85 * 16.0 * 1e9 / 20_000.0, "{create:?}");
        // One correction for each split partition is enough.
        assert!((1..=17).contains(&newcomer.sums.corrections), "{newcomer:?}");
        let displaced = phases.iter().filter(|phase| phase.old && phase.kind == Kind::Stat);
        assert!(displaced.map(|phase| phase.sums.seconds).sum::<u64>() > 0);
    }

    #[test]
    fn who_shares_a_cpu_takes_turns() {
        let shared =
            Setting { processes: 4, network: Network::NONE, machines: Machines::One, ..setting(2) };
        let phases = shared.whole(&[Kind::Create], 500).expect("works");
        let sums = phases[0].sums;
        let worked = (sums.busy + sums.client) as f64 / 1e9 / phases[0].seconds;
        assert!((0.5..=1.001).contains(&worked), "{worked} of the CPU's time");
    }
}
