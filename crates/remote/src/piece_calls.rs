//! The calls of a file that lies in pieces of its ranks, as on a volume of the other site: what
//! the ranks have sealed travels to rank 0 here, and from there to its I/O process.

use crate::remote_message::{RemoteCall, RemoteReply};
use crate::remote_session::{RemoteError, RemoteSession};
use tatami_wire::frame::PAYLOAD_MAX;

impl RemoteSession {
    /// Waits until all writes to a file have been made; with `durable`, until they are on the disk.
    /// Returns what rank 0 must publish.
    ///
    /// # Errors
    /// The first error of the writes since the last call.
    pub fn seal(&self, file: u64, durable: bool) -> Result<Vec<u8>, RemoteError> {
        let sealed = match self.call(&RemoteCall::Seal { file, durable }) {
            Ok(RemoteReply::Sealed(bytes)) => Ok(bytes.into_vec()),
            Ok(_) => Err(self.odd()),
            Err(error) => Err(error),
        };
        self.take_error(file).map_or(sealed, Err)
    }

    /// Ends a sync or an open as rank 0. `sealed` is what each rank has sealed.
    ///
    /// # Errors
    /// Those of the calls.
    pub fn publish(
        &self,
        file: u64,
        sealed: &[&[u8]],
        durable: bool,
        closing: bool,
    ) -> Result<(), RemoteError> {
        let mut bytes = 0;
        for (rank, part) in (0..).zip(sealed).filter(|(_, part)| !part.is_empty()) {
            bytes += part.len() as u64;
            for part in part.chunks(PAYLOAD_MAX) {
                self.with_state(|state| {
                    self.post(state, &RemoteCall::AddSealed { file, rank }, part)
                })?;
            }
        }
        let ranks = sealed.len() as u32;
        let published =
            self.done(&RemoteCall::Publish { file, durable, closing, ranks, sealed: bytes });
        self.take_error(file).map_or(published, Err)
    }

    /// Returns a stamp for a new view epoch.
    ///
    /// # Errors
    /// Those of the call.
    pub fn next_stamp(&self, file: u64) -> Result<u64, RemoteError> {
        match self.call(&RemoteCall::NextStamp { file })? {
            RemoteReply::Stamp(stamp) => Ok(stamp),
            _ => Err(self.odd()),
        }
    }

    /// Begins a view epoch, switches atomic mode, or records a publication, and does not wait. An
    /// error is that of a later call.
    ///
    /// # Errors
    /// Those of the link.
    pub fn begin_epoch(&self, file: u64, stamp: u64) -> Result<(), RemoteError> {
        self.with_state(|state| self.post(state, &RemoteCall::BeginEpoch { file, stamp }, &[]))
    }

    /// See [`RemoteSession::begin_epoch`].
    ///
    /// # Errors
    /// Those of the link.
    pub fn set_atomic(&self, file: u64, on: bool) -> Result<(), RemoteError> {
        self.with_state(|state| self.post(state, &RemoteCall::SetAtomic { file, on }, &[]))
    }

    /// See [`RemoteSession::begin_epoch`].
    ///
    /// # Errors
    /// Those of the link.
    pub fn mark_published(&self, file: u64) -> Result<(), RemoteError> {
        self.with_state(|state| self.post(state, &RemoteCall::MarkPublished { file }, &[]))
    }
}
