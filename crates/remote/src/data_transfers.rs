//! Large accesses over data connections.
//!
//! Order: before a part goes to a data connection, all calls on the stream of ssh have their
//! replies. Before a call goes to ssh, all parts have theirs. Parts that are under way together
//! touch different bytes.
//!
//! A data connection that breaks: the I/O process is asked, through ssh, to finish what it had
//! received. Then its parts are repeated, over another connection or through ssh. If ssh breaks,
//! the I/O process has ended, and the session repeats all parts on a new one.

use crate::data_line::ReadPart;
use crate::data_pool::DataEvent;
use crate::data_stream::{DataStream, connect_to_any, prove_to_site};
use crate::data_task::DataTask;
use crate::remote_message::{BYTES_MAX, DataOffer, RemoteCall, RemoteFailure, RemoteReply};
use crate::remote_session::{RemoteError, RemoteSession, SessionState};
use crate::site_hops::SiteHops;
use crate::ssh_config::SshConfig;
use std::io;

/// Accesses below this size go through ssh, in bytes.
const ACCESS_MIN: usize = 64 << 10;
/// Connections are made when a session has moved so many bytes.
const FIRST_BYTES: u64 = 1 << 20;
/// Least size of a part of an access that is spread over several connections.
const PART_MIN: usize = 256 << 10;
/// Bytes after which transfers that never pause are measured.
pub(crate) const MEASURE_BYTES: u64 = 48 << 20;

impl RemoteSession {
    /// Whether an access to a file goes over data connections. Makes them when the session has
    /// moved enough bytes.
    ///
    /// # Errors
    /// Those of the link.
    pub(crate) fn uses_data(
        &self,
        state: &mut SessionState,
        file: u64,
        len: usize,
    ) -> Result<bool, RemoteError> {
        let is_served = state.files.contains_key(&file);
        if !is_served || self.route.streams == Some(0) || state.data.is_given_up {
            return Ok(false);
        }
        if state.data.count_streams() == 0 {
            state.data.moved = state.data.moved.saturating_add(len as u64);
            if len < ACCESS_MIN || state.data.moved < FIRST_BYTES {
                return Ok(false);
            }
            self.finish_data(state)?;
            self.open_streams(state)?;
        }
        // A small part that would wait for earlier calls goes behind them.
        let is_large = len >= PART_MIN || (len >= ACCESS_MIN && state.is_quiet());
        Ok(is_large && state.data.count_streams() > 0)
    }

    /// Sends bytes to be written, and does not wait until they are.
    ///
    /// # Errors
    /// Those of the link.
    pub(crate) fn write_by_data(
        &self,
        state: &mut SessionState,
        file: u64,
        stream: u64,
        bytes: &[u8],
    ) -> Result<(), RemoteError> {
        if state.data.has_write_at(file, stream, bytes.len()) {
            self.finish_data(state)?;
        }
        self.await_replies(state)?;
        let mut stream = stream;
        for part in bytes.chunks(part_size(bytes.len(), state)) {
            let window = state.data.choose_window();
            while state.data.count_write_bytes() + part.len() > window {
                self.step_data(state)?;
            }
            state.seq += 1;
            state.data.writes.insert(state.seq, (file, stream, part.len()));
            let bytes = state.data.copy_to_room(part);
            let task = DataTask { seq: state.seq, file, stream, bytes, is_read: false };
            state.data.hand_in(task);
            stream += part.len() as u64;
        }
        if state.data.busy.is_some_and(|(_, bytes)| bytes >= MEASURE_BYTES) {
            self.measure_pace(state)?;
        }
        Ok(())
    }

    /// Reads; returns the bytes read, fewer at the end of the file.
    ///
    /// # Errors
    /// Those of reading, and of the link.
    pub(crate) fn read_by_data(
        &self,
        state: &mut SessionState,
        file: u64,
        stream: u64,
        into: &mut [u8],
    ) -> Result<u64, RemoteError> {
        self.finish_data(state)?;
        self.await_replies(state)?;
        let size = part_size(into.len(), state);
        let window = state.data.choose_window();
        let (first, mut asked, mut done, mut result) = (state.seq + 1, 0, 0, Ok(()));
        let mut received = 0;
        // The numbers of these tasks follow one another: no other call is sent meanwhile but those
        // that repair a connection, whose numbers are kept out of the way.
        let count = into.len().div_ceil(size);
        state.seq += count as u64;
        while received < count {
            while asked < count && (asked - received + 1) * size <= window {
                let at = asked * size;
                let bytes = state.data.take_room(size.min(into.len() - at));
                let (seq, stream) = (first + asked as u64, stream + at as u64);
                state.data.hand_in(DataTask { seq, file, stream, bytes, is_read: true });
                asked += 1;
            }
            self.step_data(state)?;
            while let Some((seq, part)) = state.data.reads.pop_first() {
                received += 1;
                let at = (seq - first) as usize * size;
                match part.reply {
                    RemoteReply::Bytes { .. } => {
                        // A part at the end of the file is short, and those behind it are empty.
                        into[at..at + part.len].copy_from_slice(&part.bytes[..part.len]);
                        done += part.len as u64;
                    }
                    RemoteReply::Failed(failure) => result = Err(self.refused(failure)),
                    _ => result = Err(self.odd()),
                }
                state.data.keep_room(part.bytes);
            }
        }
        self.measure_pace(state)?;
        result.map(|()| done)
    }

    /// Waits for the replies of all data connections. Errors of writes are kept with their files.
    ///
    /// # Errors
    /// Those of the link.
    pub(crate) fn finish_data(&self, state: &mut SessionState) -> Result<(), RemoteError> {
        if state.data.busy.is_none() && !state.data.has_tasks() {
            return Ok(());
        }
        while state.data.has_tasks() {
            self.step_data(state)?;
        }
        self.measure_pace(state)
    }

    /// Ends a measurement. Makes another connection if that may help.
    pub(crate) fn measure_pace(&self, state: &mut SessionState) -> Result<(), RemoteError> {
        let Some((start, bytes)) = state.data.busy.take() else { return Ok(()) };
        let streams = state.data.count_streams() as u32;
        let grows = state.data.pace.add_transfer(bytes, start.elapsed(), streams);
        if grows && self.route.streams.is_none() && streams > 0 {
            self.open_stream(state)?;
        }
        Ok(())
    }

    /// Waits for one event of the data connections, and acts on it.
    pub(crate) fn step_data(&self, state: &mut SessionState) -> Result<(), RemoteError> {
        if !state.data.leftover.is_empty() {
            return self.repeat_tasks(state);
        }
        let Some(pool) = &mut state.data.pool else { return Ok(()) };
        match pool.await_event() {
            Some(DataEvent::Finished { task, reply, len }) => {
                self.note_finished(state, task, *reply, len);
                Ok(())
            }
            Some(DataEvent::Lost { connection, tasks }) => {
                state.data.leftover.extend(tasks);
                // The I/O process must not carry out an old call after its repetition.
                self.call_at_once(state, &RemoteCall::CloseData { connection }).map(|_| ())
            }
            None => {
                state.data.drop_pool();
                Ok(())
            }
        }
    }

    fn note_finished(
        &self,
        state: &mut SessionState,
        task: DataTask,
        reply: RemoteReply,
        len: usize,
    ) {
        if let Some((_, bytes)) = &mut state.data.busy {
            *bytes += task.bytes.len() as u64;
        }
        if task.is_read && state.slots.has(task.seq) {
            let reply = match reply {
                RemoteReply::Failed(failure) => {
                    Err(self.explain_failure(state, Some(task.file), failure))
                }
                reply => Ok((reply, len)),
            };
            return state.slots.fill(task.seq, reply, task.bytes);
        }
        if task.is_read {
            state.data.reads.insert(task.seq, ReadPart { reply, bytes: task.bytes, len });
            return;
        }
        state.data.writes.remove(&task.seq);
        if let RemoteReply::Failed(failure) = reply {
            let error = self.refused(failure);
            if let Some(known) = state.files.get_mut(&task.file) {
                known.error.get_or_insert(error);
            }
        }
        state.data.keep_room(task.bytes);
    }

    /// Repeats the tasks of connections that have ended.
    fn repeat_tasks(&self, state: &mut SessionState) -> Result<(), RemoteError> {
        if state.data.count_streams() == 0 && !state.data.is_given_up {
            match state.data.may_reopen() {
                true => self.open_streams(state)?,
                false => state.data.is_given_up = true,
            }
        }
        let mut tasks = std::mem::take(&mut state.data.leftover);
        tasks.sort_by_key(|task| task.seq);
        if state.data.count_streams() > 0 {
            tasks.into_iter().for_each(|task| state.data.hand_in(task));
            return Ok(());
        }
        // Nothing of the pool is left, so these are all.
        state.data.drop_pool();
        tasks.append(&mut state.data.leftover);
        for mut task in tasks {
            let payload: &[u8] = if task.is_read { &[] } else { &task.bytes };
            let seq = self.send_at_once(state, &task.as_call(), payload)?;
            let room: &mut [u8] = if task.is_read { &mut task.bytes } else { &mut [] };
            let (reply, len) = match self.receive_until(state, seq, room)? {
                Ok(done) => done,
                Err(error) => {
                    let errno = error.errno.raw_os_error();
                    let failure = RemoteFailure { errno, what: error.what };
                    (RemoteReply::Failed(failure), 0)
                }
            };
            self.note_finished(state, task, reply, len);
        }
        Ok(())
    }

    /// Sends a call through ssh and waits for its reply, while tasks may be under way.
    fn call_at_once(
        &self,
        state: &mut SessionState,
        call: &RemoteCall,
    ) -> Result<Result<RemoteReply, RemoteError>, RemoteError> {
        let seq = self.send_at_once(state, call, &[])?;
        Ok(self.receive_until(state, seq, &mut [])?.map(|(reply, _)| reply))
    }

    /// Makes the first data connections of a link. If there is no way for them, all bytes go
    /// through ssh from now on.
    fn open_streams(&self, state: &mut SessionState) -> Result<(), RemoteError> {
        let wanted = self.route.streams.unwrap_or(1) as usize;
        while state.data.count_streams() < wanted && self.open_stream(state)? {}
        state.data.is_given_up = state.data.count_streams() == 0;
        Ok(())
    }

    /// Makes one more data connection; `false`: there is no way for it.
    fn open_stream(&self, state: &mut SessionState) -> Result<bool, RemoteError> {
        let encrypt = self.route.encrypt.unwrap_or(true);
        let offer = match self.call_at_once(state, &RemoteCall::OpenData { encrypt })? {
            Ok(RemoteReply::Offer(offer)) => offer,
            Ok(_) | Err(_) => return Ok(false),
        };
        let connection = offer.connection;
        // Without TLS only where this side asked for it.
        let is_wanted = encrypt != offer.certificate.is_empty();
        let stream = match is_wanted {
            true => self.reach_offer(state, &offer),
            false => Err(io::ErrorKind::InvalidData.into()),
        };
        let wish = self.route.compression_in_force();
        let added = stream.and_then(|stream| state.data.add_stream(connection, stream, wish));
        if added.is_err() {
            self.call_at_once(state, &RemoteCall::CloseData { connection })?.ok();
        }
        Ok(added.is_ok())
    }

    fn reach_offer(&self, state: &mut SessionState, offer: &DataOffer) -> io::Result<DataStream> {
        let hops = self.route.choose_hops(state.attempt);
        let socket = match hops == SiteHops::default() {
            true => {
                let mut addresses = offer.addresses.clone();
                addresses
                    .extend(SshConfig::ask_ssh(&self.site).and_then(|config| config.host_name));
                connect_to_any(&addresses, offer.port)?
            }
            false => state.data.relays.reach_place(&self.site, &hops, offer)?,
        };
        prove_to_site(socket, offer).map_err(io::Error::other)
    }
}

/// Returns the size of the parts of an access, so that each connection gets one if they are large.
fn part_size(len: usize, state: &SessionState) -> usize {
    len.div_ceil(state.data.count_streams().max(1)).clamp(PART_MIN, BYTES_MAX)
}
