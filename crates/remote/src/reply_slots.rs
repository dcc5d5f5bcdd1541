//! Replies that a caller awaits later, while further calls are sent.

use crate::remote_error::RemoteError;
use crate::remote_message::RemoteReply;
use std::collections::BTreeMap;

/// A reply, and how many bytes of its payload there are.
type PayloadReply = Result<(RemoteReply, usize), RemoteError>;

#[derive(Debug, Default)]
struct AwaitedReply {
    /// Room for the payload.
    room: Vec<u8>,
    reply: Option<PayloadReply>,
}

/// The calls with an awaited reply, by their numbers.
#[derive(Debug, Default)]
pub(crate) struct AwaitedReplies(BTreeMap<u64, AwaitedReply>);

impl AwaitedReplies {
    /// Adds a call with room for its payload.
    pub(crate) fn add(&mut self, seq: u64, room: Vec<u8>) {
        self.0.insert(seq, AwaitedReply { room, reply: None });
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
    pub(crate) fn fill(&mut self, seq: u64, reply: PayloadReply, room: Vec<u8>) {
        if let Some(slot) = self.0.get_mut(&seq) {
            *slot = AwaitedReply { room, reply: Some(reply) };
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
        let AwaitedReply { mut room, reply } = self.0.remove(&seq)?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;

    #[test]
    fn a_reply_is_taken_once_and_cut_to_its_payload() {
        let mut awaited = AwaitedReplies::default();
        awaited.add(1, vec![0; 8]);
        awaited.add(2, Vec::new());
        assert!(awaited.take(1).is_none(), "it has no reply yet");
        let mut room = awaited.take_room(1);
        room[..3].copy_from_slice(b"abc");
        awaited.fill(1, Ok((RemoteReply::Bytes { sum: 7 }, 3)), room);
        let error = RemoteError { errno: Errno::HOSTDOWN, what: String::new() };
        awaited.fail_all(&error);
        let expected = (RemoteReply::Bytes { sum: 7 }, b"abc".to_vec());
        assert_eq!(awaited.take(1), Some(Ok(expected)), "a reply that has come stays");
        assert_eq!(awaited.take(2), Some(Err(error)));
        assert!(!awaited.has(1) && awaited.take(1).is_none());
    }
}
