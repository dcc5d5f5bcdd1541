//! Replies that the other side may not have received yet. A link that breaks loses what was on its
//! way, and the next link carries it once more.

use std::collections::VecDeque;
use std::sync::Arc;

/// Most bytes of replies that are kept. The other side acknowledges replies long before; without
/// room the oldest ones are given up, and a link that breaks cannot be replaced.
const BYTES_MAX: usize = 64 << 20;
/// Buffers that are used again. New memory would cost as much as the copy into it.
const SPARE_MAX: usize = 4;

/// The replies by their numbers: the first reply of a session is number 0.
#[derive(Debug, Default)]
pub(crate) struct KeptReplies {
    first: u64,
    frames: VecDeque<Arc<Vec<u8>>>,
    bytes: usize,
    spare: Vec<Vec<u8>>,
}

impl KeptReplies {
    /// Returns an empty buffer for a reply.
    pub(crate) fn take_buffer(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }

    /// Adds the next reply.
    pub(crate) fn add_reply(&mut self, frame: Vec<u8>) {
        self.bytes += frame.len();
        self.frames.push_back(Arc::new(frame));
        while self.bytes > BYTES_MAX && self.frames.len() > 1 {
            self.drop_first();
        }
    }

    /// Returns the number that the next reply gets.
    pub(crate) fn next_number(&self) -> u64 {
        self.first + self.frames.len() as u64
    }

    /// Forgets the replies below number `count`, which have arrived.
    pub(crate) fn forget_received(&mut self, count: u64) {
        while self.first < count && !self.frames.is_empty() {
            self.drop_first();
        }
    }

    /// Whether all replies from number `count` on are here.
    pub(crate) fn has_all_from(&self, count: u64) -> bool {
        (self.first..=self.next_number()).contains(&count)
    }

    /// Returns the replies from number `from` on, at most `count`.
    pub(crate) fn list_from(&self, from: u64, count: usize) -> Vec<Arc<Vec<u8>>> {
        let skipped = from.saturating_sub(self.first) as usize;
        self.frames.iter().skip(skipped).take(count).cloned().collect()
    }

    fn drop_first(&mut self) {
        let Some(frame) = self.frames.pop_front() else { return };
        self.first += 1;
        self.bytes -= frame.len();
        // One that is being sent is freed behind that.
        if let Ok(mut buffer) = Arc::try_unwrap(frame)
            && self.spare.len() < SPARE_MAX
        {
            buffer.clear();
            self.spare.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_kept_until_they_have_arrived() {
        let mut kept = KeptReplies::default();
        for byte in 0..5_u8 {
            kept.add_reply(vec![byte; 10]);
        }
        kept.forget_received(2);
        assert_eq!(kept.next_number(), 5);
        assert!(kept.has_all_from(2) && kept.has_all_from(5));
        assert!(!kept.has_all_from(1) && !kept.has_all_from(6));
        let some: Vec<u8> = kept.list_from(3, 8).iter().map(|frame| frame[0]).collect();
        assert_eq!(some, [3, 4]);
        assert!(kept.take_buffer().is_empty());
        kept.forget_received(100);
        assert_eq!((kept.next_number(), kept.bytes), (5, 0));
    }

    #[test]
    fn replies_without_room_are_given_up() {
        let mut kept = KeptReplies::default();
        for _ in 0..5 {
            kept.add_reply(vec![0; BYTES_MAX / 3]);
        }
        assert!(!kept.has_all_from(0) && kept.has_all_from(3), "{}", kept.first);
    }
}
