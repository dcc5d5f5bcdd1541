//! Acknowledgements: a participant reports finished transactions, so that the coordinator can
//! forget its decisions.
//!
//! No operation waits for them, so they wake no thread. They are sent along with the next message
//! to that executor, or after a while in one message.

use super::{OutgoingMessage, Transactions, add_millis};
use std::collections::BTreeMap;
use tatami_wire::transaction::{PeerMessage, Txid};
use tatami_wire::{ExecutorId, Timestamp};

/// An acknowledgement waits at most this long (in ms) for others: less than until the coordinator
/// asks again.
const DELAY: u64 = 20;
/// Most acknowledgements in one message.
const TOGETHER_MAX: usize = 4096;

/// The acknowledgements; see the module.
#[derive(Default)]
pub(crate) struct Acks {
    /// Acknowledgements wait for a sync: see
    /// [`Meta::acknowledge_after_sync`](crate::Meta::acknowledge_after_sync).
    pub wait_for_sync: bool,
    /// Finished since the last commit.
    staged: Vec<Txid>,
    /// Committed, and waiting for a sync.
    unsynced: Vec<Txid>,
    /// The subset that the running sync covers.
    syncing: Vec<Txid>,
    /// By coordinator: since when the first one waits, and the transactions.
    done: BTreeMap<ExecutorId, (Timestamp, Vec<Txid>)>,
    now: Timestamp,
}

impl Acks {
    /// Records that the transaction is finished here, once this batch has been committed.
    pub fn record_finished(&mut self, txid: Txid, now: Timestamp) {
        self.staged.push(txid);
        self.now = now;
    }

    pub fn mark_committed(&mut self) {
        let staged = std::mem::take(&mut self.staged);
        // Before the sync a power cut could lose this part. The coordinator must keep its decision
        // until then.
        match self.wait_for_sync {
            true => self.unsynced.extend(staged),
            false => self.queue_acks(staged),
        }
    }

    fn queue_acks(&mut self, txids: Vec<Txid>) {
        for txid in txids {
            self.done.entry(txid.executor).or_insert((self.now, Vec::new())).1.push(txid);
        }
    }

    /// Begins a sync of all that is committed.
    pub fn begin_sync(&mut self) {
        // Only these: a commit during the sync may miss it.
        self.syncing.append(&mut self.unsynced);
    }

    /// Ends the sync: all that was committed when it began survives a power cut.
    pub fn end_sync(&mut self) {
        let synced = std::mem::take(&mut self.syncing);
        self.queue_acks(synced);
    }

    pub fn clear_staged(&mut self) {
        self.staged.clear();
    }

    /// Returns whether nothing waits for a commit.
    pub fn has_none_staged(&self) -> bool {
        self.staged.is_empty()
    }

    /// Returns when the first acknowledgement must be sent.
    pub fn next_due(&self) -> Option<Timestamp> {
        self.done.values().map(|(since, _)| add_millis(*since, DELAY)).min()
    }

    fn take_message(&mut self, to: ExecutorId) -> Option<OutgoingMessage> {
        let txids = &mut self.done.get_mut(&to)?.1;
        let some = txids.split_off(txids.len().saturating_sub(TOGETHER_MAX));
        if txids.is_empty() {
            self.done.remove(&to);
        }
        let message = PeerMessage::Finished { txids: some };
        Some(OutgoingMessage { to, message, changed: Vec::new(), seen: Vec::new() })
    }
}

impl Transactions {
    /// Takes the messages that leave now, with the acknowledgements that go along.
    pub fn take_messages(&mut self) -> Vec<OutgoingMessage> {
        let mut outs = std::mem::take(&mut self.ready_messages);
        if !self.acks.done.is_empty() {
            let mut executors: Vec<_> = outs.iter().map(|out| out.to).collect();
            executors.sort_unstable();
            executors.dedup();
            outs.extend(
                executors.into_iter().filter_map(|executor| self.acks.take_message(executor)),
            );
        }
        outs
    }

    /// Sends the acknowledgements that have waited long enough.
    pub fn send_due_acks(&mut self) {
        let late = |(since, _): &(Timestamp, Vec<Txid>)| add_millis(*since, DELAY) <= self.now;
        let due: Vec<_> = self
            .acks
            .done
            .iter()
            .filter(|(_, all)| late(all))
            .map(|(executor, _)| *executor)
            .collect();
        for executor in due {
            while let Some(out) = self.acks.take_message(executor) {
                self.staged_messages.push(out);
            }
        }
    }
}
