//! Read-ahead of a file that is read from its start to its end: several pieces are under way at
//! once, ahead of the kernel's own read-ahead, which may be short.

use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Bytes of a piece.
pub(crate) const PIECE: u64 = 1 << 20;
/// Most pieces of a file that are under way or kept ahead of the reader.
const AHEAD_MAX: u64 = 8;
/// Pieces behind the reader that are kept: the kernel's requests may arrive in another order.
const BEHIND: u64 = 2;
/// Requests in order after which pieces are read ahead.
const RUN_MIN: u64 = 2;

/// A piece of a file, which is there or will be.
#[derive(Debug, Default)]
pub(crate) struct ReadPiece {
    bytes: Mutex<Option<Result<Vec<u8>, Errno>>>,
    ready: Condvar,
}

impl ReadPiece {
    /// Sets the bytes. A short piece is one at the end of the file.
    pub(crate) fn set_bytes(&self, bytes: Result<Vec<u8>, Errno>) {
        *self.bytes.lock() = Some(bytes);
        self.ready.notify_all();
    }

    /// Waits for the bytes, and copies those from `from` on. Returns their number.
    ///
    /// # Errors
    /// Those of the read.
    pub(crate) fn copy_bytes(&self, from: usize, into: &mut [u8]) -> Result<usize, Errno> {
        let mut bytes = self.bytes.lock();
        self.ready.wait_while(&mut bytes, |bytes| bytes.is_none());
        match &*bytes {
            Some(Ok(bytes)) => {
                let rest = bytes.get(from..).unwrap_or_default();
                let len = rest.len().min(into.len());
                into[..len].copy_from_slice(&rest[..len]);
                Ok(len)
            }
            Some(Err(errno)) => Err(*errno),
            None => Err(Errno::IO),
        }
    }
}

/// What is read ahead of one open file.
#[derive(Debug, Default)]
pub(crate) struct ReadAhead {
    /// The end of the last request.
    next: u64,
    /// Requests in order.
    run: u64,
    /// The version of the bytes to which the pieces belong.
    version: u64,
    pieces: BTreeMap<u64, Arc<ReadPiece>>,
}

/// What answers a request.
#[derive(Debug, Default)]
pub(crate) struct ReadPlan {
    /// The pieces that have its bytes, by their offsets; none: it is read by itself.
    pub(crate) parts: Vec<(u64, Arc<ReadPiece>)>,
    /// The pieces that must be asked for, in order.
    pub(crate) asks: Vec<(u64, Arc<ReadPiece>)>,
}

impl ReadAhead {
    /// Plans a request. `version` is that of the bytes now, and `size` the size that is known.
    pub(crate) fn plan_read(&mut self, offset: u64, len: u64, version: u64, size: u64) -> ReadPlan {
        let end = offset.saturating_add(len);
        let is_next = offset <= self.next + BEHIND * PIECE && end + BEHIND * PIECE >= self.next;
        if version != self.version || !is_next {
            self.pieces.clear();
            self.version = version;
        }
        if is_next {
            self.run += 1;
            self.next = self.next.max(end);
        } else {
            (self.run, self.next) = (0, end);
        }
        let mut plan = ReadPlan::default();
        if self.run < RUN_MIN || len == 0 {
            return plan;
        }
        let first = offset / PIECE * PIECE;
        let last = (end - 1) / PIECE * PIECE;
        let ahead = (self.run - RUN_MIN + 1).min(AHEAD_MAX) * PIECE;
        self.pieces.retain(|at, _| at + BEHIND * PIECE >= first);
        let mut at = first;
        while at <= last || (at <= last + ahead && at < size) {
            let known = self.pieces.get(&at).cloned();
            let piece = known.unwrap_or_else(|| {
                let piece = Arc::new(ReadPiece::default());
                self.pieces.insert(at, piece.clone());
                plan.asks.push((at, piece.clone()));
                piece
            });
            if at <= last {
                plan.parts.push((at, piece));
            }
            at += PIECE;
        }
        plan
    }

    /// Forgets all pieces: one of them was short or failed.
    pub(crate) fn forget_pieces(&mut self) {
        self.pieces.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: u64 = 128 << 10;

    #[test]
    fn reads_in_order_run_ahead_and_others_do_not() {
        let (mut ahead, size) = (ReadAhead::default(), 64 << 20);
        assert!(ahead.plan_read(0, LEN, 0, size).parts.is_empty());
        let plan = ahead.plan_read(LEN, LEN, 0, size);
        assert_eq!((plan.parts.len(), plan.asks.len()), (1, 2));
        let mut asked = plan.asks.len();
        for at in 2..64 {
            let plan = ahead.plan_read(at * LEN, LEN, 0, size);
            assert_eq!(plan.parts[0].0, at * LEN / PIECE * PIECE);
            asked += plan.asks.len();
            assert!(ahead.pieces.len() as u64 <= AHEAD_MAX + BEHIND + 2);
        }
        // Each piece was asked for once.
        assert_eq!(asked as u64, 63 * LEN / PIECE + 1 + AHEAD_MAX);
        assert!(ahead.plan_read(50 << 20, LEN, 0, size).parts.is_empty());
        assert!(ahead.pieces.is_empty());
    }

    #[test]
    fn nothing_is_read_ahead_behind_the_end_and_a_write_discards_pieces() {
        let mut ahead = ReadAhead::default();
        let _ = ahead.plan_read(0, LEN, 0, 3 * LEN);
        let plan = ahead.plan_read(LEN, LEN, 0, 3 * LEN);
        assert_eq!((plan.parts.len(), plan.asks.len()), (1, 1));
        let plan = ahead.plan_read(2 * LEN, LEN, 1, 3 * LEN);
        assert_eq!(plan.asks.len(), 1, "another version of the bytes");
    }

    #[test]
    fn a_short_piece_gives_what_it_has() {
        let piece = ReadPiece::default();
        piece.set_bytes(Ok(vec![1, 2, 3]));
        let mut into = [0; 4];
        assert_eq!(piece.copy_bytes(1, &mut into), Ok(2));
        assert_eq!((into, piece.copy_bytes(9, &mut [0; 1])), ([2, 3, 0, 0], Ok(0)));
    }
}
