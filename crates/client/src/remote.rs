//! Write-behind: writes to a file on another node are sent one after the other, without waiting for
//! the replies.
//!
//! There is one stream per object, shared by all handles of this client, so that a read through one
//! handle always sees the writes of another. A write stays in memory until the daemon has
//! acknowledged it. When the daemon dies, the writes without a reply are sent again, in order, to
//! its next incarnation. To write the same bytes twice does no harm. A write that the daemon could
//! not do (a full disk) is reported to every handle once, at its next write, flush or sync.

use crate::cause::note_cause;
use crate::connection::Connection;
use crate::peer::{Peer, Retry};
use crate::waiting::{self, lock_patiently};
use parking_lot::{Mutex, MutexGuard};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Weak};
use tatami_wire::frame::{Class, FrameError};
use tatami_wire::object::{ObjectCall, ObjectResult};
use tatami_wire::{Errno, Ino, Piece};

/// Most unacknowledged bytes per object.
const WINDOW_BYTES: usize = 8 << 20;
/// Most unacknowledged writes per object. Their replies fit any socket buffer, so the daemon never
/// waits for this client while this client waits for it.
const WINDOW_WRITES: usize = 128;
/// Buffers of acknowledged writes that are kept for the next ones.
const SPARE_BUFFERS: usize = 8;

/// All streams of a client.
#[derive(Default)]
pub(crate) struct Streams {
    open: Mutex<HashMap<(Ino, Piece), Weak<WriteStream>>>,
}

impl Streams {
    /// Returns the stream of this object of `ino`; makes it if there is none.
    pub(crate) fn of(&self, ino: Ino, piece: Piece, peer: &Arc<Peer>) -> Arc<WriteStream> {
        let mut open = self.open.lock();
        if let Some(stream) = open.get(&(ino, piece)).and_then(Weak::upgrade) {
            return stream;
        }
        if open.len() >= 1024 && open.len().is_power_of_two() {
            open.retain(|_, stream| stream.strong_count() > 0);
        }
        let stream = Arc::new(WriteStream { peer: peer.clone(), state: Mutex::default() });
        open.insert((ino, piece), Arc::downgrade(&stream));
        stream
    }
}

struct Pending {
    seq: u64,
    call: ObjectCall,
    data: Vec<u8>,
}

#[derive(Default)]
struct State {
    /// Set while writes are in flight.
    connection: Option<Connection>,
    next: u64,
    pending: VecDeque<Pending>,
    bytes: usize,
    spare: Vec<Vec<u8>>,
    /// Attempts since the last reply: set while the connection breaks again and again.
    retry: Option<Retry>,
    failures: Failures,
}

/// Writes that failed after they were accepted.
#[derive(Clone, Copy, Default)]
struct Failures {
    count: u64,
    last: Option<Errno>,
}

/// How many failures a handle has reported.
#[derive(Clone, Copy, Default)]
pub(crate) struct Told(u64);

/// The writes in flight to one object.
pub(crate) struct WriteStream {
    peer: Arc<Peer>,
    state: Mutex<State>,
}

impl WriteStream {
    /// Returns the failures so far, which a handle that is opened now does not report.
    pub(crate) fn told(&self) -> Told {
        Told(self.state.lock().failures.count)
    }

    /// Sends a write. Returns when it is in flight.
    ///
    /// # Errors
    /// A failure of an earlier write that `told` does not include. `EHOSTDOWN` when the program
    /// that asked is being ended: nothing of this write was accepted.
    pub(crate) fn write(
        &self,
        call: ObjectCall,
        data: &[u8],
        told: &mut Told,
    ) -> Result<(), Errno> {
        let mut state = lock_patiently(&self.state)?;
        while !state.pending.is_empty()
            && (state.bytes + data.len() > WINDOW_BYTES || state.pending.len() >= WINDOW_WRITES)
        {
            self.settle_one(&mut state)?;
        }
        // Before the write is accepted: a caller that gets an error must not find its bytes
        // written.
        report(&state.failures, told)?;
        let mut buffer = state.spare.pop().unwrap_or_default();
        buffer.clear();
        buffer.extend_from_slice(data);
        state.next += 1;
        let pending = Pending { seq: state.next, call, data: buffer };
        let sent = match &mut state.connection {
            Some(connection) => send(connection, &pending).is_ok(),
            None => false,
        };
        // Also after a failed send: the write is accepted, and the reconnect sends all pending
        // writes in order.
        state.bytes += pending.data.len();
        state.pending.push_back(pending);
        if !sent {
            // The write is accepted: if the program does not wait any more, it stays in the stream.
            let _ = self.reconnect(&mut state);
        }
        Ok(())
    }

    /// Waits until no write is in flight.
    ///
    /// # Errors
    /// A failure that `told` does not include. `EHOSTDOWN` when the program that asked is being
    /// ended: the writes stay in flight.
    pub(crate) fn flush(&self, told: &mut Told) -> Result<(), Errno> {
        let mut state = lock_patiently(&self.state)?;
        self.settle_all(&mut state)?;
        report(&state.failures, told)
    }

    /// Waits until no write is in flight, for a reader: failures are left for the writers.
    ///
    /// # Errors
    /// `EHOSTDOWN` when the program that asked is being ended.
    pub(crate) fn settle(&self) -> Result<(), Errno> {
        let mut state = lock_patiently(&self.state)?;
        self.settle_all(&mut state)
    }

    fn settle_all(&self, state: &mut MutexGuard<'_, State>) -> Result<(), Errno> {
        while !state.pending.is_empty() {
            self.settle_one(state)?;
        }
        if let Some(connection) = state.connection.take() {
            self.peer.return_data(connection);
        }
        Ok(())
    }

    /// Receives the reply to the oldest write in flight.
    fn settle_one(&self, state: &mut MutexGuard<'_, State>) -> Result<(), Errno> {
        let State { connection, pending, retry, .. } = &mut **state;
        let Some(oldest) = pending.front() else { return Ok(()) };
        // No thread has waited for the connection since it broke.
        let Some(connection) = connection else { return self.reconnect(state) };
        // The connection may be from an attempt that had little time left.
        connection.set_patience(retry.as_ref().map_or(self.peer.patience(), Retry::time_left));
        match connection.receive::<ObjectResult>(Class::Object, oldest.seq, &mut []) {
            Ok((result, _)) => {
                if let Some(retry) = state.retry.take() {
                    retry.end();
                }
                let done = state.pending.pop_front().expect("it was there a line ago");
                state.bytes -= done.data.len();
                if state.spare.len() < SPARE_BUFFERS {
                    state.spare.push(done.data);
                }
                if let Err(e) = result {
                    tracing::warn!(ino = %done.call.cap.ino, node = self.peer.node.0, error = %e,
                        "a write accepted before could not be done");
                    state.failures = Failures { count: state.failures.count + 1, last: Some(e) };
                }
                Ok(())
            }
            Err(e) => {
                tracing::warn!(node = self.peer.node.0, error = %e,
                    "writes broken off; sending them again");
                self.reconnect(state)
            }
        }
    }

    /// Connects again and sends all writes without a reply, in their order. When no reply comes for
    /// the operation timeout, all of them have failed.
    ///
    /// # Errors
    /// `EHOSTDOWN` when the program that asked is being ended; all of them are still in flight.
    fn reconnect(&self, state: &mut MutexGuard<'_, State>) -> Result<(), Errno> {
        state.connection = None;
        let mut retry = match state.retry.take() {
            Some(mut retry) => {
                if !retry.pause() {
                    return self.give_up(state, &retry);
                }
                retry
            }
            None => Retry::new(self.peer.patience()),
        };
        loop {
            match self.peer.take_data(retry.time_left()) {
                Ok(mut connection) => {
                    if state.pending.iter().all(|p| send(&mut connection, p).is_ok()) {
                        state.connection = Some(connection);
                        // `retry` is kept until a reply comes: a daemon that accepts connections
                        // and dies again must not be tried for ever.
                        state.retry = Some(retry);
                        return Ok(());
                    }
                }
                Err(e) if e.may_pass() => {
                    tracing::debug!(node = self.peer.node.0, error = %e, "daemon away");
                }
                Err(e) => {
                    tracing::error!(node = self.peer.node.0, error = %e, "refused for good");
                    return self.give_up(state, &retry);
                }
            }
            if !retry.pause() {
                return self.give_up(state, &retry);
            }
        }
    }

    fn give_up(&self, state: &mut MutexGuard<'_, State>, retry: &Retry) -> Result<(), Errno> {
        let e = self.peer.gave_up(retry);
        if waiting::asker_ends() {
            return Err(e);
        }
        // A later flush must not wait for them again. They count as one failure.
        state.pending.clear();
        state.bytes = 0;
        state.failures = Failures { count: state.failures.count + 1, last: Some(e) };
        Ok(())
    }
}

impl Drop for WriteStream {
    /// Waits for the writes in flight. A handle that was dropped without a flush learns of no
    /// failure, but its bytes are written.
    fn drop(&mut self) {
        // The last close has no program behind it: it waits for the whole operation timeout.
        let _ = self.settle();
    }
}

fn send(connection: &mut Connection, pending: &Pending) -> Result<(), FrameError> {
    connection.send(Class::Object, pending.seq, &pending.call, &pending.data)
}

fn report(failures: &Failures, told: &mut Told) -> Result<(), Errno> {
    match failures.last {
        Some(e) if failures.count > told.0 => {
            told.0 = failures.count;
            note_cause(e, || format!("a write accepted before, which the log tells of: {e}"));
            Err(e)
        }
        _ => Ok(()),
    }
}
