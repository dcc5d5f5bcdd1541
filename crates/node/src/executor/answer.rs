//! An answer of the executor, from the moment that its request was applied until it leaves.

use crate::executor::touched::TouchedInodes;
use tatami_meta::{Applied, FinishedOperation, OperationContext, Ticket};
use tatami_wire::Errno;
use tatami_wire::delegation::DelegationGrant;
use tatami_wire::meta::{MetaCall, MetaOp, MetaReply, MetaResult};

/// An answer that waits for the end of its round.
pub(crate) struct RoundAnswer {
    /// The connection that it goes to.
    pub(crate) to: usize,
    pub(crate) seq: u64,
    pub(crate) result: MetaResult,
    /// The request that was put to a shard; `None` if it was refused before.
    pub(crate) request: Option<(OperationContext, MetaCall)>,
    /// The inodes that the request has read and changed, if delegations need them.
    pub(crate) touched: TouchedInodes,
    /// The delegations that the answer carries.
    pub(crate) granted: Option<DelegationGrant>,
    /// The answer waits for other nodes, under this ticket.
    pub(crate) ticket: Option<Ticket>,
}

impl RoundAnswer {
    /// Makes an answer that may leave at the end of the round.
    pub(crate) fn new(
        to: usize,
        seq: u64,
        result: MetaResult,
        request: Option<(OperationContext, MetaCall)>,
    ) -> RoundAnswer {
        RoundAnswer {
            to,
            seq,
            result,
            request,
            touched: TouchedInodes::default(),
            granted: None,
            ticket: None,
        }
    }

    /// Makes the answer to a request that was put to a shard.
    pub(crate) fn from_applied(
        to: usize,
        seq: u64,
        applied: Applied,
        request: (OperationContext, MetaCall),
    ) -> RoundAnswer {
        let mut answer = RoundAnswer::new(to, seq, Err(Errno::EAGAIN), Some(request));
        answer.set_applied(applied);
        answer
    }

    /// Takes over the result of an attempt.
    pub(super) fn set_applied(&mut self, applied: Applied) {
        match applied {
            Applied::Done(result) => (self.result, self.ticket) = (result, None),
            Applied::Pending(ticket) => self.ticket = Some(ticket),
        }
    }

    /// Takes over the outcome, after the other nodes have replied.
    pub(crate) fn set_outcome(&mut self, finished: &FinishedOperation, delegates: bool) {
        let FinishedOperation { result, seen, changed, dir, part, .. } = finished;
        self.ticket = None;
        self.result = match result {
            Err(Errno::EAGAIN) => Ok(MetaReply::TryLater),
            other => other.clone(),
        };
        let seen = seen.iter().copied().chain(changed.iter().map(|changed| changed.ino)).collect();
        let dir = dir.clone().filter(|_| delegates).map(Box::new);
        let part = part.clone().filter(|_| delegates).map(Box::new);
        self.touched = TouchedInodes { seen, changed: changed.clone(), dir, part };
    }

    /// Whether the client waits for everything to survive a power cut.
    pub(crate) fn waits_for_sync(&self) -> bool {
        let syncs = |op: &MetaOp| matches!(op, MetaOp::Sync | MetaOp::SyncNames { .. });
        matches!(&self.request, Some((_, call)) if syncs(&call.op))
    }

    /// Whether the request changes something.
    pub(super) fn is_mutation(&self) -> bool {
        matches!(&self.request, Some((_, call)) if call.op.is_mutation())
    }
}
