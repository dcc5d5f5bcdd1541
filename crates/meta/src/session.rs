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

use crate::Context;
use crate::error::Outcome;
use crate::keys;
use crate::record::{decode_reply, decode_reply_seq};
use crate::state::State;
use crate::store::Store;
use std::collections::HashMap;
use tatami_wire::hash;
use tatami_wire::meta::MetaResult;
use tatami_wire::{ClientId, Errno};

/// Slots cached in memory. Beyond that, all are dropped and read again from the store as they are
/// used.
const REMEMBERED: usize = 64 * 1024;

/// The end of the last request on a slot.
#[derive(Clone, Copy, Debug)]
enum Last {
    /// With an answer that is in the store.
    Stored,
    /// With nothing written: running it again does the same.
    Harmless,
    /// With this error, and nothing written.
    Failed(Errno),
}

/// The decision whether to run a request.
pub(crate) enum Admission {
    /// It is new.
    Run,
    /// It has been run; this was the answer.
    Replay(MetaResult),
}

/// The cached slots.
#[derive(Default)]
pub(crate) struct Sessions {
    slots: HashMap<(ClientId, u32), (u64, Last), hash::Build>,
}

impl Sessions {
    /// Decides whether a request that changes something is to be run.
    ///
    /// # Errors
    /// `EPROTO` for a sequence number below the slot's last
    pub fn admit<S: Store>(&mut self, state: &State<S>, ctx: &Context) -> Outcome<Admission> {
        let (last, how) = match self.slots.get(&(ctx.client, ctx.slot)) {
            Some(known) => *known,
            None => match state.get(&keys::reply(ctx.client, ctx.slot))? {
                Some(bytes) => (decode_reply_seq(&bytes)?, Last::Stored),
                None => return Ok(Admission::Run),
            },
        };
        // A client sends a new number only when it waits for the last one no more.
        if ctx.seq > last {
            return Ok(Admission::Run);
        }
        // A late duplicate, whose answer the client does not wait for.
        if ctx.seq < last {
            return Err(Errno::EPROTO.into());
        }
        Ok(match how {
            Last::Harmless => Admission::Run,
            Last::Failed(e) => Admission::Replay(Err(e)),
            Last::Stored => match state.get(&keys::reply(ctx.client, ctx.slot))? {
                Some(bytes) => Admission::Replay(Ok(decode_reply(&bytes)?.1)),
                // The client was expired meanwhile: it must not go on with this id.
                None => return Err(Errno::EPROTO.into()),
            },
        })
    }

    /// Records a success, whose answer is in the store if the request wrote anything.
    pub fn done(&mut self, ctx: &Context, wrote: bool) {
        self.remember(ctx, if wrote { Last::Stored } else { Last::Harmless });
    }

    /// Records a failure.
    pub fn failed(&mut self, ctx: &Context, error: Errno) {
        self.remember(ctx, Last::Failed(error));
    }

    /// Drops the cached slots, after a failed commit.
    pub fn clear(&mut self) {
        self.slots.clear();
    }

    /// Drops the slots of an expired client.
    pub fn forget(&mut self, client: ClientId) {
        self.slots.retain(|(c, _), _| *c != client);
    }

    fn remember(&mut self, ctx: &Context, last: Last) {
        if self.slots.len() >= REMEMBERED {
            // A full cache is dropped as a whole: successful answers are in the store.
            self.slots.clear();
        }
        self.slots.insert((ctx.client, ctx.slot), (ctx.seq, last));
    }
}
