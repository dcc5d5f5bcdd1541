//! The daemons of a volume, their clocks, and who can reach whom.

use crate::client::Request;
use crate::daemon::{Daemon, Defect, Durability, Input, Output};
use crate::network::Time;
use fastrand::Rng;
use std::collections::{BTreeSet, VecDeque};
use tatami_wire::meta::{MetaOp, MetaResult};
use tatami_wire::{ExecutorId, NodeId, ShardMap, Timestamp};

/// Where virtual time begins, in seconds of the daemons' clocks.
const BEGIN: i64 = 1_000_000;
/// Most rounds that one question may take when nobody else asks and nothing goes wrong.
const ROUNDS_MAX: u32 = 10_000;
/// Time that passes where all daemons wait for it.
const IDLE: Time = 1_000;

/// What the daemon with that number serves its shards as: in pairs they are of one node.
pub(crate) fn executor(number: usize) -> ExecutorId {
    ExecutorId { node: NodeId(number as u16 / 2), index: number as u8 % 2 }
}

/// The number of the daemon.
pub(crate) fn number_of(executor: ExecutorId) -> usize {
    usize::from(executor.node.0) * 2 + usize::from(executor.index)
}

/// See the module.
pub(crate) struct Cluster {
    pub map: ShardMap,
    pub daemons: Vec<Daemon>,
    /// By how much each clock is ahead, in microseconds.
    clocks: Vec<i64>,
    /// From whom messages do not reach whom.
    cuts: BTreeSet<(usize, usize)>,
    /// When a round of each daemon is planned because something is due.
    wakes: Vec<Option<Time>>,
    /// Virtual time to which [`Cluster::ask`] has come.
    asked: Time,
}

impl Cluster {
    /// `nodes` daemons with empty stores, which have about the same number of `shards` each. Partitions of
    /// directories with more entries than `split_above` are split.
    ///
    /// # Errors
    /// What keeps shards from opening.
    pub fn start(
        nodes: u16,
        shards: usize,
        durability: Durability,
        split_above: Option<u64>,
        defect: Option<Defect>,
    ) -> Result<Cluster, String> {
        let ids: Vec<_> = (0..usize::from(nodes)).map(executor).collect();
        let map = match ids[..] {
            [alone] => ShardMap::single(alone),
            _ => ShardMap::even(1, shards, &ids).ok_or("there is no such map")?,
        };
        let start =
            |id: &ExecutorId| Daemon::start(*id, map.clone(), durability, split_above, defect);
        let daemons = ids.iter().map(start).collect::<Result<Vec<_>, _>>()?;
        let (clocks, wakes) = (vec![0; ids.len()], vec![None; ids.len()]);
        Ok(Cluster { map, daemons, clocks, cuts: BTreeSet::new(), wakes, asked: 0 })
    }

    pub fn is_alone(&self) -> bool {
        self.daemons.len() == 1
    }

    /// The daemon that the operation is put to.
    pub fn place(&self, op: &MetaOp) -> usize {
        self.map.owner(op.target().shard()).map_or(0, number_of)
    }

    /// What a daemon's clock shows.
    pub fn clock(&self, at: usize, now: Time) -> Timestamp {
        let micros = now as i64 + self.clocks[at];
        let nsec = micros.rem_euclid(1_000_000) as u32 * 1_000;
        Timestamp { sec: BEGIN + micros.div_euclid(1_000_000), nsec }
    }

    /// Sets a clock forward by so many microseconds, or back.
    pub fn set_clock(&mut self, at: usize, step: i64) {
        self.clocks[at] += step;
    }

    pub fn cut(&mut self, from: usize, to: usize) {
        self.cuts.insert((from, to));
    }

    pub fn mend(&mut self, from: usize, to: usize) {
        self.cuts.remove(&(from, to));
    }

    pub fn mend_all(&mut self) {
        self.cuts.clear();
    }

    pub fn reaches(&self, from: usize, to: usize) -> bool {
        !self.cuts.contains(&(from, to))
    }

    /// When to wake a daemon because something is due there, unless that is planned already.
    pub fn wake(&mut self, at: usize, now: Time) -> Option<Time> {
        let due = self.daemons[at].deadline()?;
        let micros = (due.sec - BEGIN) * 1_000_000 + i64::from(due.nsec).div_euclid(1_000) + 1;
        let wake = Time::try_from(micros - self.clocks[at]).unwrap_or(0).max(now + 50);
        let sooner = self.wakes[at].is_none_or(|planned| planned > wake);
        sooner.then(|| *self.wakes[at].insert(wake))
    }

    /// A planned moment has come.
    pub fn woken(&mut self, at: usize, now: Time) {
        self.wakes[at].take_if(|planned| *planned <= now);
    }

    /// Number of transactions that are not over.
    pub fn under_way(&self) -> usize {
        self.daemons.iter().map(Daemon::under_way).sum()
    }

    /// Asks, while nobody else does and nothing goes wrong.
    ///
    /// # Errors
    /// There is no answer.
    pub fn ask(&mut self, now: Time, request: Request) -> Result<MetaResult, String> {
        // There are no choices to make without deaths.
        let mut rng = Rng::with_seed(0);
        self.asked = self.asked.max(now);
        let to = self.place(&request.op);
        let question = format!("{:?}", request.op);
        let mut arriving = VecDeque::from([(to, Input::Request(request))]);
        let mut answer = None;
        for _ in 0..ROUNDS_MAX {
            let at = match arriving.pop_front() {
                Some((at, input)) => {
                    self.daemons[at].receive(input);
                    vec![at]
                }
                None => match answer {
                    Some(result) => return Ok(result),
                    None => {
                        self.asked += IDLE;
                        (0..self.daemons.len()).collect()
                    }
                },
            };
            for from in at {
                let clock = self.clock(from, self.asked);
                for output in self.daemons[from].round(&mut rng, clock, None) {
                    match output {
                        Output::Reply(reply) => answer = Some(reply.result),
                        Output::Message(to, message) => {
                            let input = Input::Message(executor(from), message);
                            arriving.push_back((number_of(to), input));
                        }
                    }
                }
            }
        }
        Err(format!("{question} is not answered"))
    }
}
