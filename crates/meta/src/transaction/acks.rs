//! What a participant tells a coordinator so that it can forget a transaction that has happened.
//!
//! Nobody waits for that, so it does not wake anybody: it goes along with the next message to that executor, or
//! after a while with all that has come together.

use super::{Out, Transactions, later};
use std::collections::BTreeMap;
use tatami_wire::transaction::{PeerMessage, Txid};
use tatami_wire::{ExecutorId, Timestamp};

/// So long (in ms) it waits for company: less than until the coordinator asks again.
const DELAY: u64 = 20;
/// No more than this in one message.
const TOGETHER_MAX: usize = 4096;

/// See the module.
#[derive(Default)]
pub(crate) struct Acks {
    /// They wait for a sync: see [`Meta::acknowledge_once_lasting`](crate::Meta::acknowledge_once_lasting).
    pub wait_for_sync: bool,
    /// Done since the last commit.
    staged: Vec<Txid>,
    /// Committed, if they wait for a sync.
    unsynced: Vec<Txid>,
    /// Those of them that the sync under way concerns.
    syncing: Vec<Txid>,
    /// By coordinator, and since when the first waits.
    done: BTreeMap<ExecutorId, (Timestamp, Vec<Txid>)>,
    now: Timestamp,
}

impl Acks {
    /// The transaction is done here once this has been committed.
    pub fn add(&mut self, txid: Txid, now: Timestamp) {
        self.staged.push(txid);
        self.now = now;
    }

    pub fn committed(&mut self) {
        let staged = std::mem::take(&mut self.staged);
        match self.wait_for_sync {
            true => self.unsynced.extend(staged),
            false => self.are_done(staged),
        }
    }

    fn are_done(&mut self, txids: Vec<Txid>) {
        for txid in txids {
            self.done.entry(txid.executor).or_insert((self.now, Vec::new())).1.push(txid);
        }
    }

    /// A sync of all that is committed begins.
    pub fn begin_sync(&mut self) {
        self.syncing.append(&mut self.unsynced);
    }

    /// What was committed when the sync began survives a power cut.
    pub fn synced(&mut self) {
        let synced = std::mem::take(&mut self.syncing);
        self.are_done(synced);
    }

    pub fn undone(&mut self) {
        self.staged.clear();
    }

    /// Whether nothing waits for a commit.
    pub fn is_settled(&self) -> bool {
        self.staged.is_empty()
    }

    /// When the first must be told.
    pub fn due(&self) -> Option<Timestamp> {
        self.done.values().map(|(since, _)| later(*since, DELAY)).min()
    }

    fn take(&mut self, to: ExecutorId) -> Option<Out> {
        let txids = &mut self.done.get_mut(&to)?.1;
        let some = txids.split_off(txids.len().saturating_sub(TOGETHER_MAX));
        if txids.is_empty() {
            self.done.remove(&to);
        }
        let message = PeerMessage::Finished { txids: some };
        Some(Out { to, message, changed: Vec::new(), seen: Vec::new() })
    }
}

impl Transactions {
    /// What leaves now, and what goes along.
    pub fn take_outs(&mut self) -> Vec<Out> {
        let mut outs = std::mem::take(&mut self.ready_outs);
        if !self.acks.done.is_empty() {
            let mut executors: Vec<_> = outs.iter().map(|out| out.to).collect();
            executors.sort_unstable();
            executors.dedup();
            outs.extend(executors.into_iter().filter_map(|executor| self.acks.take(executor)));
        }
        outs
    }

    /// Tells what has waited long enough.
    pub fn tell_done(&mut self) {
        let late = |(since, _): &(Timestamp, Vec<Txid>)| later(*since, DELAY) <= self.now;
        let due: Vec<_> = self
            .acks
            .done
            .iter()
            .filter(|(_, all)| late(all))
            .map(|(executor, _)| *executor)
            .collect();
        for executor in due {
            while let Some(out) = self.acks.take(executor) {
                self.outs.push(out);
            }
        }
    }
}
