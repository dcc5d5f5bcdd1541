//! The state of a session's data connections.

use crate::data_pool::{DEPTH, DataPool};
use crate::data_stream::DataStream;
use crate::data_task::DataTask;
use crate::relay_chain::RelayChain;
use crate::remote_message::{BYTES_MAX, RemoteReply};
use crate::site_route::SiteCompression;
use crate::stream_pace::StreamPace;
use std::collections::BTreeMap;
use std::io;
use std::time::Instant;

/// Most bytes of writes whose replies have not come.
pub(crate) const WINDOW_BYTES: usize = 32 << 20;
/// Times that a session makes new connections after some have ended.
const REOPENS_MAX: u32 = 64;

/// Room for parts that is kept, each at most the bytes of one call. New memory would cost as much
/// time as the copy into it.
const ROOMS_MAX: usize = 16;
/// Parts that wait behind those under way. More of them would only leave the caches of
/// the processor before they are sent.
const WAITING: usize = 2;

/// A read of the session that has its reply.
#[derive(Debug)]
pub(crate) struct ReadPart {
    /// The reply.
    pub(crate) reply: RemoteReply,
    /// The bytes, in room that may be longer.
    pub(crate) bytes: Vec<u8>,
    /// Bytes that were read.
    pub(crate) len: usize,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct DataLine {
    /// The connections; none before the first large transfer, and after a broken link.
    pub(crate) pool: Option<DataPool>,
    /// Bytes that this session has moved before it had connections.
    pub(crate) moved: u64,
    /// Connections cannot be made: everything goes through ssh.
    pub(crate) is_given_up: bool,
    /// A connection has been made.
    has_worked: bool,
    /// Connections that have been made again.
    reopened: u32,
    /// Tasks to be repeated. They stood on connections that have ended.
    pub(crate) leftover: Vec<DataTask>,
    /// Positions and lengths of writes without a reply, with their files.
    pub(crate) writes: BTreeMap<u64, (u64, u64, usize)>,
    /// Reads with a reply, by their numbers.
    pub(crate) reads: BTreeMap<u64, ReadPart>,
    /// Room of earlier reads.
    rooms: Vec<Vec<u8>>,
    /// Measures whether more connections help.
    pub(crate) pace: StreamPace,
    /// When the first task of those under way was handed in, and the bytes since.
    pub(crate) busy: Option<(Instant, u64)>,
    /// The relays on the routers.
    pub(crate) relays: RelayChain,
}

impl DataLine {
    /// Returns the number of connections that work.
    pub(crate) fn count_streams(&self) -> usize {
        self.pool.as_ref().map_or(0, DataPool::count_streams)
    }

    /// Whether any task is without its end.
    pub(crate) fn has_tasks(&self) -> bool {
        !self.leftover.is_empty() || self.pool.as_ref().is_some_and(|pool| pool.count_tasks() > 0)
    }

    /// Ends all connections, as their link has ended. Their tasks are kept, to be repeated.
    pub(crate) fn abandon(&mut self) {
        self.drop_pool();
        self.relays = RelayChain::default();
        // What made the last connection impossible may be over with the old link.
        self.is_given_up &= !self.has_worked;
    }

    /// Ends everything after the session has given up its link. Returns the files of writes without
    /// a known result.
    pub(crate) fn forget_tasks(&mut self) -> Vec<u64> {
        self.abandon();
        self.leftover.clear();
        self.reads.clear();
        self.busy = None;
        std::mem::take(&mut self.writes).into_values().map(|(file, ..)| file).collect()
    }

    /// Counts an attempt to make connections anew; `false`: too many have ended.
    pub(crate) fn may_reopen(&mut self) -> bool {
        self.reopened += 1;
        self.reopened <= REOPENS_MAX
    }

    /// Hands a task to the connections, or keeps it to be repeated.
    pub(crate) fn hand_in(&mut self, task: DataTask) {
        self.busy.get_or_insert_with(|| (Instant::now(), 0));
        match &mut self.pool {
            Some(pool) => pool.submit([task]),
            None => self.leftover.push(task),
        }
    }

    /// Adds a connection. `wish`: whether its parts are compressed.
    ///
    /// # Errors
    /// Those of starting its thread.
    pub(crate) fn add_stream(
        &mut self,
        connection: u32,
        stream: DataStream,
        wish: SiteCompression,
    ) -> io::Result<()> {
        self.has_worked = true;
        self.pool.get_or_insert_default().add_stream(connection, stream, wish)
    }

    /// Takes back the tasks of a pool after the end of its last connection.
    pub(crate) fn drop_pool(&mut self) {
        if let Some(pool) = self.pool.take() {
            self.leftover.extend(pool.end());
        }
    }

    /// Returns the bytes of writes without a reply.
    pub(crate) fn count_write_bytes(&self) -> usize {
        self.writes.values().map(|(.., len)| *len).sum()
    }

    /// Returns room for a read of `len` bytes.
    pub(crate) fn take_room(&mut self, len: usize) -> Vec<u8> {
        let mut room = self.rooms.pop().unwrap_or_default();
        room.resize(len, 0);
        room
    }

    /// Returns a copy of a part to be written.
    pub(crate) fn copy_to_room(&mut self, part: &[u8]) -> Vec<u8> {
        let mut room = self.rooms.pop().unwrap_or_default();
        room.clear();
        room.extend_from_slice(part);
        room
    }

    /// Returns how many bytes of parts may be without a reply.
    pub(crate) fn choose_window(&self) -> usize {
        WINDOW_BYTES.min((self.count_streams().max(1) * DEPTH + WAITING) * BYTES_MAX)
    }

    /// Keeps room for later parts.
    pub(crate) fn keep_room(&mut self, room: Vec<u8>) {
        if self.rooms.len() < ROOMS_MAX {
            self.rooms.push(room);
        }
    }

    /// Whether a write without a reply may touch bytes of another access.
    pub(crate) fn has_write_at(&self, file: u64, stream: u64, len: usize) -> bool {
        let end = stream + len as u64;
        self.writes
            .values()
            .any(|(of, from, n)| *of != file || (*from < end && stream < from + *n as u64))
    }
}
