//! A server: the real namespace code, with an account of the costs of its rounds.
//!
//! A round is the executor's of `crates/node`: apply the arrived inputs, commit once, then send
//! messages and replies one after the other.

use super::clients::{ReceivedAnswer, ScaleSlot};
use super::costs::ScaleCosts;
use super::store::HashStore;
use super::sums::ScaleSums;
use crate::network::VirtualTime;
use std::collections::{BTreeMap, VecDeque};
use tatami_meta::{
    Applied, FinishedOperation, Meta, MetaConfig, OperationContext, SplitLimits, Ticket,
};
use tatami_wire::transaction::PeerMessage;
use tatami_wire::{Cred, ExecutorId, Ino, ShardMap, Timestamp, VolumeId, VolumeKey};

/// Most inputs of one round, as in the executor.
const ROUND_MAX: usize = 1024;
/// The start of the servers' clocks, in seconds.
const BEGIN: i64 = 1_000_000;
/// The executor's clock for due work counts whole ms, and one more.
const TICK: VirtualTime = 1_000_000;

/// An input of a server.
pub(super) enum ServerInput {
    /// The request of a slot.
    Request(u32),
    Message(ExecutorId, Box<PeerMessage>),
}

/// The result of a round, with the time from its beginning at which each reply or message leaves.
#[derive(Default)]
pub(super) struct ServerRound {
    pub takes: VirtualTime,
    pub answers: Vec<(VirtualTime, u32, ReceivedAnswer)>,
    pub messages: Vec<(VirtualTime, ExecutorId, PeerMessage)>,
}

pub(super) struct ScaleServer {
    meta: Box<Meta<HashStore>>,
    inbox: VecDeque<ServerInput>,
    /// Messages that are handled before requests.
    first: VecDeque<ServerInput>,
    peers_first: bool,
    waiting: BTreeMap<Ticket, u32>,
    /// The server has no work and sleeps.
    pub asleep: bool,
    /// The planned wake-up for due work.
    pub alarm: Option<VirtualTime>,
}

pub(super) fn server_clock(now: VirtualTime) -> Timestamp {
    let (sec, nsec) = (now / 1_000_000_000, now % 1_000_000_000);
    Timestamp { sec: BEGIN + sec as i64, nsec: nsec as u32 }
}

/// Returns the number of records that a message makes its receiver write.
fn count_records(message: &PeerMessage) -> u64 {
    match message {
        PeerMessage::Prepare { writes, .. } => writes.len() as u64,
        _ => 0,
    }
}

impl ScaleServer {
    pub fn start(
        executor: ExecutorId,
        map: &ShardMap,
        volume: VolumeId,
        split_above: Option<u64>,
        peers_first: bool,
    ) -> Result<ScaleServer, String> {
        let config =
            MetaConfig { executor, map: map.clone(), volume, key: VolumeKey::new([1; 32]) };
        let mut meta =
            Meta::open(HashStore::default(), config, server_clock(0)).map_err(|e| e.to_string())?;
        let limits = split_above.map(SplitLimits::regardless_of_clients);
        limits.into_iter().for_each(|limits| meta.set_split_limits(limits));
        Ok(ScaleServer {
            meta: Box::new(meta),
            inbox: VecDeque::new(),
            first: VecDeque::new(),
            peers_first,
            waiting: BTreeMap::new(),
            asleep: true,
            alarm: None,
        })
    }

    pub fn receive_input(&mut self, input: ServerInput) {
        match input {
            ServerInput::Message(..) if self.peers_first => self.first.push_back(input),
            input => self.inbox.push_back(input),
        }
    }

    pub fn has_work(&self) -> bool {
        !self.inbox.is_empty() || !self.first.is_empty()
    }

    /// Returns the number of requests and messages that wait.
    pub fn queue_len(&self) -> usize {
        self.inbox.len() + self.first.len()
    }

    /// Returns whether work is due.
    pub fn is_due(&self, now: VirtualTime) -> bool {
        self.meta.deadline().is_some_and(|due| due <= server_clock(now))
    }

    /// Returns the time of the next due work, if nothing arrives before.
    pub fn wakes_at(&self, now: VirtualTime) -> Option<VirtualTime> {
        let due = self.meta.deadline()?;
        let nanos = (due.sec - BEGIN) * 1_000_000_000 + i64::from(due.nsec);
        Some(VirtualTime::try_from(nanos).unwrap_or(0).max(now) + TICK)
    }

    /// Returns whether the server has the inode of a directory or of one of its partitions.
    pub fn has_inode(&mut self, ino: Ino) -> bool {
        let key = [&b"I"[..], &ino.0.to_be_bytes()].concat();
        self.meta.store_mut().has_record(&key)
    }

    /// Runs one round. With `woken` the server was asleep before.
    pub fn run_round(
        &mut self,
        now: VirtualTime,
        woken: bool,
        (slots, costs, sums): (&mut [ScaleSlot], &ScaleCosts, &mut ScaleSums),
    ) -> ServerRound {
        let mut round = ServerRound::default();
        let moment = server_clock(now);
        sums.rounds += 1;
        if woken {
            round.takes += costs.wake;
            sums.wake += costs.wake;
            sums.wakes += 1;
        }
        if self.is_due(now) {
            self.meta.tick(moment);
        }
        let mut answers = Vec::new();
        for _ in 0..ROUND_MAX {
            let Some(input) = self.first.pop_front().or_else(|| self.inbox.pop_front()) else {
                break;
            };
            match input {
                ServerInput::Request(slot) => {
                    let asked = &mut slots[slot as usize];
                    let heard = self.apply_request(moment, slot, asked);
                    round.takes += sums.count_request(costs, asked, heard.as_ref());
                    answers.extend(heard.map(|heard| (slot, heard)));
                }
                ServerInput::Message(from, message) => {
                    let takes = costs.message + count_records(&message) * costs.record;
                    round.takes += takes;
                    sums.count_message(takes);
                    self.meta.receive_message(moment, from, *message);
                }
            }
        }
        // A commit to a store in memory always succeeds.
        let committed = self.meta.commit();
        debug_assert!(committed.is_ok());
        for FinishedOperation { ticket, result, .. } in self.meta.take_finished() {
            if let Some(slot) = self.waiting.remove(&ticket) {
                answers.push((slot, ReceivedAnswer::from_result(&result)));
            }
        }
        for out in self.meta.take_outbox() {
            let takes = costs.message + count_records(&out.message) * costs.record;
            round.takes += takes;
            sums.count_message(takes);
            round.messages.push((round.takes, out.to, out.message));
        }
        for (slot, heard) in answers {
            round.takes += costs.send;
            round.answers.push((round.takes, slot, heard));
        }
        sums.busy += round.takes;
        round
    }

    fn apply_request(
        &mut self,
        now: Timestamp,
        number: u32,
        slot: &ScaleSlot,
    ) -> Option<ReceivedAnswer> {
        let op = slot.op.as_ref()?;
        let context = OperationContext {
            now,
            client: slot.client,
            slot: slot.number,
            seq: slot.seq,
            trusted: true,
        };
        match self.meta.apply(&context, &Cred::ROOT, op) {
            Applied::Done(result) => Some(ReceivedAnswer::from_result(&result)),
            Applied::Pending(ticket) => {
                self.waiting.insert(ticket, number);
                None
            }
        }
    }
}
