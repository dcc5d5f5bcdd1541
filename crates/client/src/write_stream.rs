//! Write-behind: writes to a file on another node are sent one after the other, without waiting for
//! the replies.
//!
//! There is one stream per object, shared by all handles of this client, so that a read through one
//! handle always sees the writes of another. A write stays in memory until the daemon has
//! acknowledged it. When the daemon dies, the writes without a reply are sent again, in order, to
//! its next incarnation. To write the same bytes twice does no harm. A write that the daemon could
//! not do (a full disk) is reported to every handle once, at its next write, flush or sync.

use crate::cause::record_cause;
use crate::connection::Connection;
use crate::node::NodeClient;
use crate::retry::Retry;
use crate::waiting::{self, lock_interruptibly};
use parking_lot::{Mutex, MutexGuard};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Weak};
use tatami_wire::frame::{FrameClass, FrameError};
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
pub(crate) struct WriteStreams {
    open: Mutex<HashMap<(Ino, Piece), Weak<WriteStream>>>,
}

impl WriteStreams {
    /// Returns the stream of this object of `ino`; makes it if there is none.
    pub(crate) fn get_stream(
        &self,
        ino: Ino,
        piece: Piece,
        peer: &Arc<NodeClient>,
    ) -> Arc<WriteStream> {
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

struct PendingWrite {
    seq: u64,
    call: ObjectCall,
    data: Vec<u8>,
}

#[derive(Default)]
struct WriteStreamState {
    /// Set while writes are in flight.
    connection: Option<Connection>,
    next: u64,
    pending: VecDeque<PendingWrite>,
    bytes: usize,
    spare: Vec<Vec<u8>>,
    /// Attempts since the last reply: set while the connection breaks again and again.
    retry: Option<Retry>,
    failures: WriteFailures,
}

/// Writes that failed after they were accepted.
#[derive(Clone, Copy, Default)]
struct WriteFailures {
    count: u64,
    last: Option<Errno>,
}

/// How many failures a handle has reported.
#[derive(Clone, Copy, Default)]
pub(crate) struct SeenFailures(u64);

/// The writes in flight to one object.
pub(crate) struct WriteStream {
    peer: Arc<NodeClient>,
    state: Mutex<WriteStreamState>,
}

impl WriteStream {
    /// Returns the failures so far, which a handle that is opened now does not report.
    pub(crate) fn current_failures(&self) -> SeenFailures {
        SeenFailures(self.state.lock().failures.count)
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
        seen: &mut SeenFailures,
    ) -> Result<(), Errno> {
        let mut state = lock_interruptibly(&self.state)?;
        while !state.pending.is_empty()
            && (state.bytes + data.len() > WINDOW_BYTES || state.pending.len() >= WINDOW_WRITES)
        {
            self.receive_reply(&mut state)?;
        }
        // Before the write is accepted: a caller that gets an error must not find its bytes
        // written.
        report_failures(&state.failures, seen)?;
        let mut buffer = state.spare.pop().unwrap_or_default();
        buffer.clear();
        buffer.extend_from_slice(data);
        state.next += 1;
        let pending = PendingWrite { seq: state.next, call, data: buffer };
        let sent = match &mut state.connection {
            Some(connection) => send_write(connection, &pending).is_ok(),
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
    pub(crate) fn flush(&self, seen: &mut SeenFailures) -> Result<(), Errno> {
        let mut state = lock_interruptibly(&self.state)?;
        self.receive_all_replies(&mut state)?;
        report_failures(&state.failures, seen)
    }

    /// Waits until no write is in flight, for a reader: failures are left for the writers.
    ///
    /// # Errors
    /// `EHOSTDOWN` when the program that asked is being ended.
    pub(crate) fn wait_for_writes(&self) -> Result<(), Errno> {
        let mut state = lock_interruptibly(&self.state)?;
        self.receive_all_replies(&mut state)
    }

    fn receive_all_replies(
        &self,
        state: &mut MutexGuard<'_, WriteStreamState>,
    ) -> Result<(), Errno> {
        while !state.pending.is_empty() {
            self.receive_reply(state)?;
        }
        if let Some(connection) = state.connection.take() {
            self.peer.return_data_connection(connection);
        }
        Ok(())
    }

    /// Receives the reply to the oldest write in flight.
    fn receive_reply(&self, state: &mut MutexGuard<'_, WriteStreamState>) -> Result<(), Errno> {
        let WriteStreamState { connection, pending, retry, .. } = &mut **state;
        let Some(oldest) = pending.front() else { return Ok(()) };
        // No thread has waited for the connection since it broke.
        let Some(connection) = connection else { return self.reconnect(state) };
        // The connection may be from an attempt that had little time left.
        connection.set_patience(retry.as_ref().map_or(self.peer.timeout(), Retry::time_left));
        match connection.receive::<ObjectResult>(FrameClass::Object, oldest.seq, &mut []) {
            Ok((result, _)) => {
                if let Some(retry) = state.retry.take() {
                    retry.record_answer();
                    self.peer.mark_reachable();
                }
                let done = state.pending.pop_front().expect("it was there a line ago");
                state.bytes -= done.data.len();
                if state.spare.len() < SPARE_BUFFERS {
                    state.spare.push(done.data);
                }
                if let Err(e) = result {
                    tracing::warn!(ino = %done.call.cap.ino, node = self.peer.node.0, error = %e,
                        "a write accepted before could not be done");
                    state.failures =
                        WriteFailures { count: state.failures.count + 1, last: Some(e) };
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
    fn reconnect(&self, state: &mut MutexGuard<'_, WriteStreamState>) -> Result<(), Errno> {
        state.connection = None;
        let mut retry = match state.retry.take() {
            Some(mut retry) => {
                if !self.peer.pause_before_retry(&mut retry) {
                    return self.fail_pending(state, &retry);
                }
                retry
            }
            None => Retry::new(self.peer.timeout()),
        };
        loop {
            match self.peer.take_data_connection(retry.time_left()) {
                Ok(mut connection) => {
                    if state.pending.iter().all(|p| send_write(&mut connection, p).is_ok()) {
                        state.connection = Some(connection);
                        // `retry` is kept until a reply comes: a daemon that accepts connections
                        // and dies again must not be tried for ever.
                        state.retry = Some(retry);
                        return Ok(());
                    }
                }
                Err(e) if e.is_transient() => {
                    tracing::debug!(node = self.peer.node.0, error = %e, "daemon away");
                }
                Err(e) => {
                    tracing::error!(node = self.peer.node.0, error = %e, "refused for good");
                    return self.fail_pending(state, &retry);
                }
            }
            if !self.peer.pause_before_retry(&mut retry) {
                return self.fail_pending(state, &retry);
            }
        }
    }

    fn fail_pending(
        &self,
        state: &mut MutexGuard<'_, WriteStreamState>,
        retry: &Retry,
    ) -> Result<(), Errno> {
        let e = self.peer.report_timeout(retry);
        if waiting::is_asker_ending() {
            return Err(e);
        }
        // A later flush must not wait for them again. They count as one failure.
        state.pending.clear();
        state.bytes = 0;
        state.failures = WriteFailures { count: state.failures.count + 1, last: Some(e) };
        Ok(())
    }
}

impl Drop for WriteStream {
    /// Waits for the writes in flight. A handle that was dropped without a flush learns of no
    /// failure, but its bytes are written.
    fn drop(&mut self) {
        // The last close has no program behind it: it waits for the whole operation timeout.
        let _ = self.wait_for_writes();
    }
}

fn send_write(connection: &mut Connection, pending: &PendingWrite) -> Result<(), FrameError> {
    connection.send(FrameClass::Object, pending.seq, &pending.call, &pending.data)
}

fn report_failures(failures: &WriteFailures, seen: &mut SeenFailures) -> Result<(), Errno> {
    match failures.last {
        Some(e) if failures.count > seen.0 => {
            seen.0 = failures.count;
            record_cause(e, || format!("a write accepted before, which the log tells of: {e}"));
            Err(e)
        }
        _ => Ok(()),
    }
}
