//! The daemons of a volume, their clocks, and the cuts between them.

use crate::client::ClientRequest;
use crate::daemon::{Daemon, DaemonInput, DaemonOutput, SimDefect, SimDurability};
use crate::network::VirtualTime;
use fastrand::Rng;
use std::collections::{BTreeSet, VecDeque};
use tatami_wire::meta::{MetaOp, MetaResult};
use tatami_wire::{ExecutorId, NodeId, ShardMap, Timestamp};

/// The start of virtual time, in seconds of the daemons' clocks.
const CLOCK_START: i64 = 1_000_000;
/// Most rounds that one request may take when there are no other requests and no faults.
const ROUNDS_MAX: u32 = 10_000;
/// Time that passes while all daemons are idle.
const IDLE: VirtualTime = 1_000;

/// Returns the executor of the daemon with that number: two daemons in a row are executors of one
/// node.
pub(crate) fn executor_id(number: usize) -> ExecutorId {
    ExecutorId { node: NodeId(number as u16 / 2), index: number as u8 % 2 }
}

/// Returns the number of the daemon.
pub(crate) fn daemon_number(executor: ExecutorId) -> usize {
    usize::from(executor.node.0) * 2 + usize::from(executor.index)
}

/// See the module.
pub(crate) struct SimCluster {
    pub map: ShardMap,
    pub daemons: Vec<Daemon>,
    /// Offset of each clock, in microseconds.
    clocks: Vec<i64>,
    /// Pairs (from, to) of daemons between which messages do not arrive.
    cuts: BTreeSet<(usize, usize)>,
    /// The planned round of each daemon for due work.
    wakes: Vec<Option<VirtualTime>>,
    /// Virtual time that [`SimCluster::run_request`] has reached.
    asked: VirtualTime,
}

impl SimCluster {
    /// Starts `nodes` daemons with empty stores and about the same number of the `shards` each.
    /// Partitions of directories with more entries than `split_above` are split.
    ///
    /// # Errors
    /// The error that keeps shards from opening.
    pub fn start(
        nodes: u16,
        shards: usize,
        durability: SimDurability,
        split_above: Option<u64>,
        defect: Option<SimDefect>,
    ) -> Result<SimCluster, String> {
        let ids: Vec<_> = (0..usize::from(nodes)).map(executor_id).collect();
        let map = match ids[..] {
            [alone] => ShardMap::with_one_shard(alone),
            _ => ShardMap::with_even_blocks(1, shards, &ids).ok_or("there is no such map")?,
        };
        let start =
            |id: &ExecutorId| Daemon::start(*id, map.clone(), durability, split_above, defect);
        let daemons = ids.iter().map(start).collect::<Result<Vec<_>, _>>()?;
        let (clocks, wakes) = (vec![0; ids.len()], vec![None; ids.len()]);
        Ok(SimCluster { map, daemons, clocks, cuts: BTreeSet::new(), wakes, asked: 0 })
    }

    pub fn is_alone(&self) -> bool {
        self.daemons.len() == 1
    }

    /// Returns the daemon to which a client sends the operation.
    pub fn target_daemon(&self, op: &MetaOp) -> usize {
        self.map.owner(op.target_inode().owner_shard()).map_or(0, daemon_number)
    }

    /// Returns the time of a daemon's clock.
    pub fn daemon_clock(&self, at: usize, now: VirtualTime) -> Timestamp {
        let micros = now as i64 + self.clocks[at];
        let nsec = micros.rem_euclid(1_000_000) as u32 * 1_000;
        Timestamp { sec: CLOCK_START + micros.div_euclid(1_000_000), nsec }
    }

    /// Sets a clock forward by `step` microseconds, or back.
    pub fn set_clock(&mut self, at: usize, step: i64) {
        self.clocks[at] += step;
    }

    pub fn cut_link(&mut self, from: usize, to: usize) {
        self.cuts.insert((from, to));
    }

    pub fn restore_link(&mut self, from: usize, to: usize) {
        self.cuts.remove(&(from, to));
    }

    pub fn restore_links(&mut self) {
        self.cuts.clear();
    }

    pub fn is_reachable(&self, from: usize, to: usize) -> bool {
        !self.cuts.contains(&(from, to))
    }

    /// Returns the time at which to wake a daemon for due work, unless a wake-up is already planned
    /// by then.
    pub fn next_wake(&mut self, at: usize, now: VirtualTime) -> Option<VirtualTime> {
        let due = self.daemons[at].deadline()?;
        let micros =
            (due.sec - CLOCK_START) * 1_000_000 + i64::from(due.nsec).div_euclid(1_000) + 1;
        let wake = VirtualTime::try_from(micros - self.clocks[at]).unwrap_or(0).max(now + 50);
        let sooner = self.wakes[at].is_none_or(|planned| planned > wake);
        sooner.then(|| *self.wakes[at].insert(wake))
    }

    /// Forgets a planned wake-up that is due.
    pub fn clear_wake(&mut self, at: usize, now: VirtualTime) {
        self.wakes[at].take_if(|planned| *planned <= now);
    }

    /// Returns the number of unfinished transactions.
    pub fn under_way(&self) -> usize {
        self.daemons.iter().map(Daemon::under_way).sum()
    }

    /// Runs one request while there are no other requests and no faults.
    ///
    /// # Errors
    /// There is no reply.
    pub fn run_request(
        &mut self,
        now: VirtualTime,
        request: ClientRequest,
    ) -> Result<MetaResult, String> {
        let to = self.target_daemon(&request.op);
        self.run_request_at(to, now, request)
    }

    /// As [`SimCluster::run_request`], for a request to this daemon.
    ///
    /// # Errors
    /// There is no reply.
    pub fn run_request_at(
        &mut self,
        to: usize,
        now: VirtualTime,
        request: ClientRequest,
    ) -> Result<MetaResult, String> {
        // Without deaths a round draws no random numbers that matter.
        let mut rng = Rng::with_seed(0);
        self.asked = self.asked.max(now);
        let question = format!("{:?}", request.op);
        let mut arriving = VecDeque::from([(to, DaemonInput::Request(request))]);
        let mut answer = None;
        for _ in 0..ROUNDS_MAX {
            let at = match arriving.pop_front() {
                Some((at, input)) => {
                    self.daemons[at].receive_input(input);
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
                let clock = self.daemon_clock(from, self.asked);
                for output in self.daemons[from].run_round(&mut rng, clock, None) {
                    match output {
                        DaemonOutput::Reply(reply) => answer = Some(reply.result),
                        DaemonOutput::Message(to, message) => {
                            let input = DaemonInput::Message(executor_id(from), message);
                            arriving.push_back((daemon_number(to), input));
                        }
                    }
                }
            }
        }
        Err(format!("{question} is not answered"))
    }
}
