//! Calls of a copy, of which many are under way at once: whole small files, and parts of large
//! ones.
//!
//! Order: a copy writes each byte of a file once, so its parts may arrive in any order, by ssh and
//! by data connections. A part is sent when the file is open there, and a file gets its name when
//! all its parts have their replies. Nothing else waits for anything.

use crate::data_line::WINDOW_BYTES;
use crate::data_task::DataTask;
use crate::data_transfers::MEASURE_BYTES;
use crate::part_record::{BlockSum, PartStart};
use crate::remote_message::{BYTES_MAX, RemoteCall, RemoteReply, SiteAttr, SiteChange, sum_bytes};
use crate::remote_session::{KnownFile, RemoteError, RemoteSession, SessionState};
use tatami_wire::meta::Bytes;

fn bytes_of(path: &[u8]) -> Bytes {
    path.to_vec().into()
}

impl RemoteSession {
    /// Sends a call whose reply is awaited later, with room for its payload. Returns its ticket.
    fn begin_call(
        &self,
        call: &RemoteCall,
        payload: &[u8],
        room: usize,
    ) -> Result<u64, RemoteError> {
        self.with_state(|state| self.begin_call_in(state, call, payload, room))
    }

    fn begin_call_in(
        &self,
        state: &mut SessionState,
        call: &RemoteCall,
        payload: &[u8],
        room: usize,
    ) -> Result<u64, RemoteError> {
        let ticket = self.send_at_once(state, call, payload)?;
        state.slots.add(ticket, vec![0; room]);
        self.keep_window(state)?;
        Ok(ticket)
    }

    /// Waits for the reply to a call that was begun.
    fn await_reply(&self, ticket: u64) -> Result<(RemoteReply, Vec<u8>), RemoteError> {
        self.with_state(|state| {
            loop {
                if let Some(reply) = state.slots.take(ticket) {
                    return reply;
                }
                if state.awaits_call(ticket) {
                    self.receive_oldest(state)?;
                } else if state.data.has_tasks() {
                    self.step_data(state)?;
                } else {
                    state.slots.forget(ticket);
                    return Err(self.odd());
                }
            }
        })
    }

    /// Sends a call and waits for its reply, while parts of other files are under way.
    pub(crate) fn call_aside(&self, call: &RemoteCall) -> Result<RemoteReply, RemoteError> {
        let ticket = self.begin_call(call, &[], 0)?;
        Ok(self.await_reply(ticket)?.0)
    }

    /// Waits until a call that was begun is carried out.
    ///
    /// # Errors
    /// Those of the call, and of the link.
    pub fn await_done(&self, ticket: u64) -> Result<(), RemoteError> {
        match self.await_reply(ticket)?.0 {
            RemoteReply::Done => Ok(()),
            _ => Err(self.odd()),
        }
    }

    /// Sends a whole file, at most [`BYTES_MAX`]. [`RemoteSession::await_done`] tells the result.
    ///
    /// # Errors
    /// Those of the link.
    pub fn put_file(
        &self,
        path: &[u8],
        mode: u32,
        change: SiteChange,
        may_replace: bool,
        bytes: &[u8],
    ) -> Result<u64, RemoteError> {
        let (path, sum) = (bytes_of(path), sum_bytes(bytes));
        let call = RemoteCall::PutFile { path, mode, change, may_replace, sum };
        self.begin_call(&call, bytes, 0)
    }

    /// Asks for the first `len` bytes of a file, at most [`BYTES_MAX`].
    ///
    /// # Errors
    /// Those of the link.
    pub fn fetch_file(&self, path: &[u8], len: usize) -> Result<u64, RemoteError> {
        let len = len.min(BYTES_MAX);
        let call = RemoteCall::FetchFile { path: bytes_of(path), len: len as u32 };
        self.begin_call(&call, &[], len)
    }

    /// Waits for a file that was asked for: its attributes and its first bytes.
    ///
    /// # Errors
    /// As for open(2); `EINVAL` for a special file; those of the link.
    pub fn await_file(&self, ticket: u64) -> Result<(SiteAttr, Vec<u8>), RemoteError> {
        match self.await_reply(ticket)? {
            (RemoteReply::Fetched { attr, .. }, bytes) => Ok((attr, bytes)),
            _ => Err(self.odd()),
        }
    }

    /// Begins to make a directory, under the umask there.
    ///
    /// # Errors
    /// Those of the link.
    pub fn begin_dir(&self, path: &[u8], mode: u32) -> Result<u64, RemoteError> {
        let call = RemoteCall::MakeDir { path: bytes_of(path), mode, is_exact: false };
        self.begin_call(&call, &[], 0)
    }

    /// Begins to make a symbolic link.
    ///
    /// # Errors
    /// Those of the link.
    pub fn begin_link(&self, path: &[u8], target: &[u8]) -> Result<u64, RemoteError> {
        let call = RemoteCall::MakeLink { path: bytes_of(path), target: bytes_of(target) };
        self.begin_call(&call, &[], 0)
    }

    /// Begins to change the attributes of a path.
    ///
    /// # Errors
    /// Those of the link.
    pub fn begin_change(&self, path: &[u8], change: SiteChange) -> Result<u64, RemoteError> {
        let call = RemoteCall::Change { path: bytes_of(path), change };
        self.begin_call(&call, &[], 0)
    }

    /// Begins to list a directory. Returns listing and ticket for
    /// [`RemoteSession::list_dir_begun`].
    ///
    /// # Errors
    /// Those of the link.
    pub fn begin_listing(&self, path: &[u8]) -> Result<(u64, u64), RemoteError> {
        let listing = self.choose_number();
        Ok((listing, self.begin_piece(path, listing, 0)?))
    }

    /// Begins to read a piece of a listing.
    pub(crate) fn begin_piece(
        &self,
        path: &[u8],
        listing: u64,
        piece: u32,
    ) -> Result<u64, RemoteError> {
        self.begin_call(&RemoteCall::List { path: bytes_of(path), listing, piece }, &[], 0)
    }

    /// Waits for a piece of a listing.
    pub(crate) fn await_piece(&self, ticket: u64) -> Result<RemoteReply, RemoteError> {
        Ok(self.await_reply(ticket)?.0)
    }

    /// As [`RemoteSession::open_sink`], while parts of other files are under way.
    ///
    /// # Errors
    /// Those of the link.
    pub fn begin_sink(&self, path: &[u8], mode: u32) -> Result<u64, RemoteError> {
        let file = self.choose_number();
        let call = RemoteCall::OpenSink { file, path: bytes_of(path), mode };
        self.with_state(|state| {
            state.files.insert(file, KnownFile::new(call.clone()));
            self.send_at_once(state, &call, &[])?;
            self.keep_window(state)
        })
        .inspect_err(|_| self.close_copy(file))?;
        Ok(file)
    }

    /// Opens a file that a later copy can continue. Returns its number. `record`: that of the
    /// source.
    ///
    /// # Errors
    /// As for open(2), and those of the link.
    pub fn open_part(
        &self,
        path: &[u8],
        mode: u32,
        record: &[u8],
    ) -> Result<(u64, PartStart), RemoteError> {
        let (file, record) = (self.choose_number(), bytes_of(record));
        let call = RemoteCall::OpenPart { file, path: bytes_of(path), mode, record };
        match self.call_aside(&call)? {
            RemoteReply::Part(start) => {
                self.with_state(|state| state.files.insert(file, KnownFile::new(call)));
                Ok((file, start))
            }
            _ => Err(self.odd()),
        }
    }

    /// Begins to compute the sums of the blocks from `from` to `end` of an open file.
    ///
    /// # Errors
    /// Those of the link.
    pub fn begin_sums(&self, file: u64, from: u64, end: u64) -> Result<u64, RemoteError> {
        self.begin_call(&RemoteCall::SumBlocks { file, from, end }, &[], 0)
    }

    /// Waits for the sums of blocks, as many as were asked for. `None`: a hole.
    ///
    /// # Errors
    /// As for read(2), and those of the link.
    pub fn await_sums(&self, ticket: u64) -> Result<Vec<Option<BlockSum>>, RemoteError> {
        match self.await_reply(ticket)?.0 {
            RemoteReply::Sums(sums) => Ok(sums),
            _ => Err(self.odd()),
        }
    }

    /// Sends bytes of a sink, at most [`BYTES_MAX`], and does not wait until they are written.
    ///
    /// # Errors
    /// Those of the link, and those of earlier writes to the file.
    pub fn write_part(&self, file: u64, offset: u64, bytes: Vec<u8>) -> Result<(), RemoteError> {
        self.with_state(|state| {
            if self.uses_data(state, file, bytes.len())? {
                while state.data.count_write_bytes() + bytes.len() > WINDOW_BYTES {
                    self.step_data(state)?;
                }
                // The file is open there before a part of it arrives by another way.
                while state.awaits_file(file) {
                    self.receive_oldest(state)?;
                }
                state.seq += 1;
                let seq = state.seq;
                state.data.writes.insert(seq, (file, offset, bytes.len()));
                state.data.hand_in(DataTask { seq, file, stream: offset, bytes, is_read: false });
                self.measure_if_due(state)?;
            } else {
                let call = RemoteCall::Write { file, stream: offset, sum: sum_bytes(&bytes) };
                self.send_at_once(state, &call, &bytes)?;
                self.keep_window(state)?;
            }
            match state.files.get(&file).and_then(|known| known.error.clone()) {
                Some(error) => Err(error),
                None => Ok(()),
            }
        })
    }

    /// Begins to read at most [`BYTES_MAX`] of a source.
    ///
    /// # Errors
    /// Those of the link.
    pub fn begin_read(&self, file: u64, offset: u64, len: usize) -> Result<u64, RemoteError> {
        let len = len.min(BYTES_MAX);
        self.with_state(|state| {
            if self.uses_data(state, file, len)? {
                state.seq += 1;
                let seq = state.seq;
                state.slots.add(seq, Vec::new());
                let bytes = vec![0; len];
                state.data.hand_in(DataTask { seq, file, stream: offset, bytes, is_read: true });
                self.measure_if_due(state)?;
                return Ok(seq);
            }
            let call = RemoteCall::Read { file, stream: offset, len: len as u32 };
            self.begin_call_in(state, &call, &[], len)
        })
    }

    /// Waits for bytes that were asked for; fewer at the end of the file.
    ///
    /// # Errors
    /// As for read(2), and those of the link.
    pub fn await_read(&self, ticket: u64) -> Result<Vec<u8>, RemoteError> {
        match self.await_reply(ticket)? {
            (RemoteReply::Bytes { .. }, bytes) => Ok(bytes),
            _ => Err(self.odd()),
        }
    }

    fn measure_if_due(&self, state: &mut SessionState) -> Result<(), RemoteError> {
        match state.data.busy.is_some_and(|(_, bytes)| bytes >= MEASURE_BYTES) {
            true => self.measure_pace(state),
            false => Ok(()),
        }
    }

    /// Extends a sink that ends in a hole, and does not wait.
    ///
    /// # Errors
    /// Those of the link.
    pub fn extend_sink(&self, file: u64, size: u64) -> Result<(), RemoteError> {
        self.with_state(|state| {
            self.send_at_once(state, &RemoteCall::SetSize { file, size }, &[])?;
            self.keep_window(state)
        })
    }

    /// Returns the next range of data at or after `from` of a source, while parts are under way.
    ///
    /// # Errors
    /// As for lseek(2), and those of the link.
    pub fn find_data_ahead(&self, file: u64, from: u64) -> Result<Option<(u64, u64)>, RemoteError> {
        match self.call_aside(&RemoteCall::FindData { file, from })? {
            RemoteReply::Data(range) => {
                Ok(range.filter(|(start, end)| from <= *start && start < end))
            }
            _ => Err(self.odd()),
        }
    }

    /// Whether a part of a sink has no reply over a data connection yet.
    pub fn has_parts(&self, file: u64) -> bool {
        self.with_state(|state| state.data.writes.values().any(|(of, ..)| *of == file))
    }

    /// Begins to complete a sink, after all its parts.
    ///
    /// # Errors
    /// Those of the link.
    pub fn begin_finish(
        &self,
        file: u64,
        change: SiteChange,
        may_replace: bool,
    ) -> Result<u64, RemoteError> {
        self.with_state(|state| {
            while state.data.writes.values().any(|(of, ..)| *of == file) {
                self.step_data(state)?;
            }
            let call = RemoteCall::FinishSink { file, change, may_replace };
            self.begin_call_in(state, &call, &[], 0)
        })
    }

    /// Waits until a sink is complete.
    ///
    /// # Errors
    /// The first error of the calls for the file.
    pub fn await_finish(&self, file: u64, ticket: u64) -> Result<(), RemoteError> {
        let finished = self.await_done(ticket);
        let known = self.with_state(|state| state.files.remove(&file));
        known.and_then(|known| known.error).map_or(finished, Err)
    }

    /// Returns the first error of the writes to a sink so far.
    pub fn error_of(&self, file: u64) -> Option<RemoteError> {
        self.with_state(|state| state.files.get(&file).and_then(|known| known.error.clone()))
    }

    /// Closes a source, or a sink that is given up, while parts of other files are under way.
    pub fn close_copy(&self, file: u64) {
        self.with_state(|state| {
            state.files.remove(&file);
            // Without a link the other side has closed it.
            let _ = self.send_at_once(state, &RemoteCall::Close { file }, &[]);
        });
    }
}
