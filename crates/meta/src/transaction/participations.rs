//! The transactions of other executors that this one takes part in.

use std::collections::{BTreeSet, VecDeque};
use tatami_wire::transaction::{PeerMessage, TransactionAge, Txid};
use tatami_wire::{ExecutorId, Timestamp};

/// A request of another executor that waits for a lock.
#[derive(Debug)]
pub(crate) struct WaitingRequest {
    pub from: ExecutorId,
    pub message: PeerMessage,
    pub age: TransactionAge,
    pub blockers: Vec<Txid>,
    pub ask_at: Timestamp,
}

/// The last transactions that a participant has ended or refused in this incarnation.
///
/// A late message must not prepare one of them again: it could be found committed once more, and
/// undo later changes. (A prepare that was meant for another incarnation is refused as a whole.)
#[derive(Debug, Default)]
pub(crate) struct EndedTransactions {
    known: BTreeSet<Txid>,
    order: VecDeque<Txid>,
}

impl EndedTransactions {
    /// Far more than end while one message is under way.
    const MAX: usize = 64 * 1024;

    pub fn record_end(&mut self, txid: Txid) {
        if self.known.insert(txid) {
            self.order.push_back(txid);
        }
        if self.order.len() > EndedTransactions::MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
        assert_eq!(self.known.len(), self.order.len(), "an ended transaction is listed twice");
        assert!(
            self.order.len() <= EndedTransactions::MAX,
            "more ended transactions are kept than their bound"
        );
    }

    pub fn contains(&self, txid: &Txid) -> bool {
        self.known.contains(txid)
    }
}
