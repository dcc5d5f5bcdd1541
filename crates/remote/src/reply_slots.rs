//! Replies that a caller awaits later, while further calls are sent.

use crate::remote_error::RemoteError;
use crate::remote_message::RemoteReply;
use std::collections::BTreeMap;

/// A reply, and how many bytes of its payload there are.
type SlotReply = Result<(RemoteReply, usize), RemoteError>;

#[derive(Debug, Default)]
struct ReplySlot {
    /// Room for the payload.
    room: Vec<u8>,
    reply: Option<SlotReply>,
}

/// The calls with an awaited reply, by their numbers.
#[derive(Debug, Default)]
pub(crate) struct ReplySlots(BTreeMap<u64, ReplySlot>);

impl ReplySlots {
    /// Adds a call with room for its payload.
    pub(crate) fn add(&mut self, seq: u64, room: Vec<u8>) {
        self.0.insert(seq, ReplySlot { room, reply: None });
    }

    /// Whether the reply to a call is awaited.
    pub(crate) fn has(&self, seq: u64) -> bool {
        self.0.contains_key(&seq)
    }

    /// Takes the room of a call, which comes back with its reply.
    pub(crate) fn take_room(&mut self, seq: u64) -> Vec<u8> {
        self.0.get_mut(&seq).map(|slot| std::mem::take(&mut slot.room)).unwrap_or_default()
    }

    /// Keeps the reply to a call, with the room.
    pub(crate) fn fill(&mut self, seq: u64, reply: SlotReply, room: Vec<u8>) {
        if let Some(slot) = self.0.get_mut(&seq) {
            *slot = ReplySlot { room, reply: Some(reply) };
        }
    }

    /// Gives all calls without a reply this error.
    pub(crate) fn fail_all(&mut self, error: &RemoteError) {
        for slot in self.0.values_mut() {
            slot.reply.get_or_insert_with(|| Err(error.clone()));
        }
    }

    /// Takes the reply to a call, with the bytes of its payload, if it is there.
    pub(crate) fn take(&mut self, seq: u64) -> Option<Result<(RemoteReply, Vec<u8>), RemoteError>> {
        self.0.get(&seq).filter(|slot| slot.reply.is_some())?;
        let ReplySlot { mut room, reply } = self.0.remove(&seq)?;
        reply.map(|reply| {
            reply.map(|(reply, len)| {
                room.truncate(len);
                (reply, room)
            })
        })
    }

    /// Forgets a call.
    pub(crate) fn forget(&mut self, seq: u64) {
        self.0.remove(&seq);
    }
}
