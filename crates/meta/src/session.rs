//! Exactly-once execution: the last answer of each slot of each client.
//!
//! A client has one request in progress on a slot. When the answer does not come, it sends the
//! request again with the same sequence number, maybe on another connection, maybe to a restarted
//! daemon. The answer to a request that changed something is stored in the same batch as the
//! change, so a store has both or neither. (Slots as in NFSv4.1, RFC 8881 section 2.10.6.)
//!
//! A failed request changed nothing, so its answer is kept in memory only: it serves to refuse a
//! late duplicate on a dying connection. When the daemon dies, those connections die with it, and a
//! request repeated after that is executed for the first time.

use crate::context::OperationContext;
use crate::error::MetaOutcome;
use crate::keys;
use crate::record::{decode_reply, decode_reply_seq};
use crate::state::MetaState;
use crate::store::Store;
use std::collections::HashMap;
use tatami_wire::meta::MetaResult;
use tatami_wire::{ClientId, Errno, hash};

/// Slots cached in memory. Beyond that, all are dropped and read again from the store as they are
/// used.
const REMEMBERED: usize = 64 * 1024;

/// The end of the last request on a slot.
#[derive(Clone, Copy, Debug)]
enum LastRequest {
    /// With an answer that is in the store.
    Stored,
    /// With nothing written: running it again does the same.
    Harmless,
    /// With this error, and nothing written.
    Failed(Errno),
}

/// The decision whether to run a request.
pub(crate) enum SlotAdmission {
    /// It is new.
    Run,
    /// It has been run; this was the answer.
    Replay(MetaResult),
}

/// The cached slots.
#[derive(Default)]
pub(crate) struct ReplySlots {
    slots: HashMap<(ClientId, u32), (u64, LastRequest), hash::HashBuilder>,
}

impl ReplySlots {
    /// Decides whether a request that changes something is to be run.
    ///
    /// # Errors
    /// `EPROTO` for a sequence number below the slot's last
    pub fn admit_request<S: Store>(
        &mut self,
        state: &MetaState<S>,
        ctx: &OperationContext,
    ) -> MetaOutcome<SlotAdmission> {
        let (last, how) = match self.slots.get(&(ctx.client, ctx.slot)) {
            Some(known) => *known,
            None => match state.get(&keys::reply(ctx.client, ctx.slot))? {
                Some(bytes) => (decode_reply_seq(&bytes)?, LastRequest::Stored),
                None => return Ok(SlotAdmission::Run),
            },
        };
        // A client sends a new number only when it waits for the last one no more.
        if ctx.seq > last {
            return Ok(SlotAdmission::Run);
        }
        // A late duplicate, whose answer the client does not wait for.
        if ctx.seq < last {
            return Err(Errno::EPROTO.into());
        }
        Ok(match how {
            LastRequest::Harmless => SlotAdmission::Run,
            LastRequest::Failed(e) => SlotAdmission::Replay(Err(e)),
            LastRequest::Stored => match state.get(&keys::reply(ctx.client, ctx.slot))? {
                Some(bytes) => SlotAdmission::Replay(Ok(decode_reply(&bytes)?.1)),
                // The client was expired meanwhile: it must not go on with this id.
                None => return Err(Errno::EPROTO.into()),
            },
        })
    }

    /// Records a success, whose answer is in the store if the request wrote anything.
    pub fn record_success(&mut self, ctx: &OperationContext, wrote: bool) {
        self.record_end(ctx, if wrote { LastRequest::Stored } else { LastRequest::Harmless });
    }

    /// Records a failure.
    pub fn record_failure(&mut self, ctx: &OperationContext, error: Errno) {
        self.record_end(ctx, LastRequest::Failed(error));
    }

    /// Drops the cached slots, after a failed commit.
    pub fn clear(&mut self) {
        self.slots.clear();
    }

    /// Drops the slots of an expired client.
    pub fn forget_client(&mut self, client: ClientId) {
        self.slots.retain(|(c, _), _| *c != client);
    }

    fn record_end(&mut self, ctx: &OperationContext, last: LastRequest) {
        if self.slots.len() >= REMEMBERED {
            // A full cache is dropped as a whole: successful answers are in the store.
            self.slots.clear();
        }
        self.slots.insert((ctx.client, ctx.slot), (ctx.seq, last));
    }
}
