//! Acknowledgements: a participant reports finished transactions, so that the coordinator can
//! forget its decisions.
//!
//! No operation waits for them, so they wake no thread. They are sent along with the next message
//! to that executor, or after a while in one message.

use crate::millis::add_millis;
use crate::transaction::intervals::ACK_DELAY_MS;
use crate::transaction::messages::OutgoingMessage;
use std::collections::BTreeMap;
use tatami_wire::transaction::{PeerMessage, Txid};
use tatami_wire::{ExecutorId, Timestamp};

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
    pub done: BTreeMap<ExecutorId, (Timestamp, Vec<Txid>)>,
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
        assert!(
            self.wait_for_sync || self.unsynced.is_empty(),
            "an acknowledgement waits for a sync that nobody asked for"
        );
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
        self.done.values().map(|(since, _)| add_millis(*since, ACK_DELAY_MS)).min()
    }

    pub fn take_message(&mut self, to: ExecutorId) -> Option<OutgoingMessage> {
        let txids = &mut self.done.get_mut(&to)?.1;
        let some = txids.split_off(txids.len().saturating_sub(TOGETHER_MAX));
        // An entry is made with its first acknowledgement and removed with its last.
        assert!(!some.is_empty(), "a message of acknowledgements has none");
        assert!(
            some.iter().all(|txid| txid.executor == to),
            "an acknowledgement goes to another than its coordinator"
        );
        if txids.is_empty() {
            self.done.remove(&to);
        }
        let message = PeerMessage::Finished { txids: some };
        Some(OutgoingMessage::new(to, message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tatami_wire::NodeId;

    const COORDINATOR: ExecutorId = ExecutorId { node: NodeId(2), index: 1 };
    const START: Timestamp = Timestamp { sec: 100, nsec: 0 };

    fn txid(number: u64) -> Txid {
        Txid { executor: COORDINATOR, incarnation: 1, number }
    }

    fn numbers_of(message: Option<OutgoingMessage>) -> Vec<u64> {
        match message.map(|m| m.message) {
            Some(PeerMessage::Finished { txids }) => txids.iter().map(|t| t.number).collect(),
            None => Vec::new(),
            Some(other) => panic!("no acknowledgement: {other:?}"),
        }
    }

    #[test]
    fn a_transaction_is_acknowledged_once_it_is_committed() {
        let mut acks = Acks::default();
        acks.record_finished(txid(1), START);
        assert!(!acks.has_none_staged() && acks.next_due().is_none());
        assert!(acks.take_message(COORDINATOR).is_none(), "before the commit");
        acks.mark_committed();
        assert!(acks.has_none_staged());
        assert_eq!(acks.next_due(), Some(add_millis(START, ACK_DELAY_MS)));
        assert_eq!(numbers_of(acks.take_message(COORDINATOR)), [1]);
        assert_eq!((acks.next_due(), acks.take_message(COORDINATOR).is_none()), (None, true));
    }

    #[test]
    fn an_undone_transaction_is_not_acknowledged() {
        let mut acks = Acks::default();
        acks.record_finished(txid(1), START);
        acks.clear_staged();
        assert!(acks.has_none_staged());
        acks.record_finished(txid(2), START);
        acks.mark_committed();
        assert_eq!(numbers_of(acks.take_message(COORDINATOR)), [2]);
    }

    #[test]
    fn the_first_of_several_sets_the_time_of_their_message() {
        let mut acks = Acks::default();
        for (number, later) in [(1, 0), (2, 5), (3, 9)] {
            acks.record_finished(txid(number), add_millis(START, later));
            acks.mark_committed();
        }
        assert_eq!(acks.next_due(), Some(add_millis(START, ACK_DELAY_MS)));
        assert_eq!(numbers_of(acks.take_message(COORDINATOR)), [1, 2, 3]);
    }

    #[test]
    fn a_message_takes_so_many_and_leaves_the_others_for_the_next() {
        let mut acks = Acks::default();
        let all = TOGETHER_MAX as u64 + 3;
        (0..all).for_each(|number| acks.record_finished(txid(number), START));
        acks.mark_committed();
        let mut sent = numbers_of(acks.take_message(COORDINATOR));
        assert_eq!(sent.len(), TOGETHER_MAX);
        assert!(acks.next_due().is_some(), "some are left");
        sent.extend(numbers_of(acks.take_message(COORDINATOR)));
        sent.sort_unstable();
        assert_eq!(sent, (0..all).collect::<Vec<_>>());
        assert!(acks.next_due().is_none());
    }

    #[test]
    fn a_sync_covers_what_was_committed_before_it_began() {
        let mut acks = Acks { wait_for_sync: true, ..Acks::default() };
        acks.record_finished(txid(1), START);
        acks.mark_committed();
        acks.begin_sync();
        acks.record_finished(txid(2), START);
        acks.mark_committed();
        assert!(acks.next_due().is_none(), "nothing has survived a power cut yet");
        acks.end_sync();
        assert_eq!(numbers_of(acks.take_message(COORDINATOR)), [1]);
        acks.begin_sync();
        acks.end_sync();
        assert_eq!(numbers_of(acks.take_message(COORDINATOR)), [2]);
    }
}
