//! Open files: reads with a read-ahead, and writes that are sent behind.

use crate::read_ahead::{PIECE, ReadAhead, ReadPiece};
use crate::site_nodes::{KnownNode, NodeTable};
use parking_lot::Mutex;
use rustix::io::Errno;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tatami_remote::{MountCall, MountSession, RemoteReply, ReopenFiles, sum_bytes};

/// The flags of an open that are not used again after a broken link.
const ONCE: i32 = libc::O_TRUNC | libc::O_EXCL | libc::O_CREAT;

/// An open file.
pub(crate) struct OpenSiteFile {
    pub(crate) number: u64,
    pub(crate) node: Arc<KnownNode>,
    flags: i32,
    /// Failed writes of the inode before the open.
    failures: u64,
    /// Why it could not be opened again after a broken link.
    lost: Mutex<Option<Errno>>,
    ahead: Mutex<ReadAhead>,
}

/// The open files of a mount, by their numbers.
pub(crate) struct FileTable {
    nodes: Arc<NodeTable>,
    files: Mutex<HashMap<u64, Arc<OpenSiteFile>>>,
}

impl FileTable {
    pub(crate) fn new(nodes: Arc<NodeTable>) -> FileTable {
        FileTable { nodes, files: Mutex::default() }
    }

    /// Keeps a file that is open there.
    pub(crate) fn add_file(&self, number: u64, node: Arc<KnownNode>, flags: i32) {
        node.open.lock().push(number);
        let failures = node.writes.count_failures();
        let file = OpenSiteFile {
            number,
            node,
            flags: flags & !ONCE,
            failures,
            lost: Mutex::default(),
            ahead: Mutex::default(),
        };
        self.files.lock().insert(number, Arc::new(file));
    }

    /// Returns an open file.
    ///
    /// # Errors
    /// `EBADF`, and the reason why a file was lost with a link.
    pub(crate) fn find_file(&self, number: u64) -> Result<Arc<OpenSiteFile>, Errno> {
        let file = self.files.lock().get(&number).cloned().ok_or(Errno::BADF)?;
        let lost = *file.lost.lock();
        lost.map_or(Ok(file), Err)
    }

    /// Forgets an open file.
    pub(crate) fn remove_file(&self, number: u64) {
        if let Some(file) = self.files.lock().remove(&number) {
            file.node.open.lock().retain(|open| *open != number);
        }
    }
}

impl ReopenFiles for FileTable {
    fn list_files(&self) -> Vec<(u64, MountCall)> {
        let files: Vec<_> = self.files.lock().values().cloned().collect();
        let reopen = |file: Arc<OpenSiteFile>| {
            let number = file.number;
            // A file without a name has gone with the I/O process. This call fails, which is right.
            let node = self.nodes.locate_node(&file.node).unwrap_or_default();
            (number, MountCall::Open { file: number, node, flags: file.flags })
        };
        files.into_iter().map(reopen).collect()
    }

    fn lose_file(&self, file: u64, errno: Errno) {
        if let Some(file) = self.files.lock().get(&file) {
            let errno = if errno == Errno::NOENT { Errno::STALE } else { errno };
            *file.lost.lock() = Some(errno);
        }
    }
}

impl OpenSiteFile {
    fn is_writer(&self) -> bool {
        self.flags & libc::O_ACCMODE != libc::O_RDONLY
    }

    /// Reads at an offset for request `unique`. Returns the number of bytes, fewer at the end.
    ///
    /// # Errors
    /// Those of the call.
    pub(crate) fn read_at(
        &self,
        session: &MountSession,
        unique: u64,
        offset: u64,
        into: &mut [u8],
    ) -> Result<usize, Errno> {
        let version = self.node.version.load(Ordering::SeqCst);
        let size = self.node.size.load(Ordering::Relaxed);
        let plan = {
            let mut ahead = self.ahead.lock();
            let plan = ahead.plan_read(offset, into.len() as u64, version, size);
            // Under the lock: a request that finds a piece in the table must not wait for nothing.
            for (at, piece) in &plan.asks {
                self.ask_for_piece(session, *at, piece.clone());
            }
            plan
        };
        let mut done = 0;
        for (at, piece) in &plan.parts {
            let from = (offset + done as u64 - at) as usize;
            let len = (into.len() - done).min(PIECE as usize - from);
            let copied = piece.copy_bytes(from, &mut into[done..done + len]);
            done += *copied.as_ref().unwrap_or(&0);
            if copied != Ok(len) {
                break;
            }
        }
        if done == into.len() {
            return Ok(done);
        }
        // No plan, or a short piece. The file may have grown since that was read.
        if !plan.parts.is_empty() {
            self.ahead.lock().forget_pieces();
        }
        let (file, offset) = (self.number, offset + done as u64);
        let call = MountCall::Read { file, offset, len: (into.len() - done) as u32 };
        match session.call(unique, call)? {
            (RemoteReply::Bytes { .. }, bytes) if bytes.len() <= into.len() - done => {
                into[done..done + bytes.len()].copy_from_slice(&bytes);
                Ok(done + bytes.len())
            }
            _ => Err(Errno::PROTO),
        }
    }

    fn ask_for_piece(&self, session: &MountSession, offset: u64, piece: Arc<ReadPiece>) {
        let call = MountCall::Read { file: self.number, offset, len: PIECE as u32 };
        session.send_call(call, &[], move |reply| {
            piece.set_bytes(match reply {
                Ok((RemoteReply::Bytes { .. }, bytes)) => Ok(bytes),
                Ok(_) => Err(Errno::PROTO),
                Err(errno) => Err(errno),
            });
        });
    }

    /// Sends bytes to be written, and does not wait until they are.
    ///
    /// # Errors
    /// That of an earlier write, and those of the link.
    pub(crate) fn write_behind(
        &self,
        session: &MountSession,
        offset: u64,
        bytes: &[u8],
        clears_ids: bool,
    ) -> Result<(), Errno> {
        self.node.writes.check_since(self.failures)?;
        let sum = sum_bytes(bytes);
        let call = MountCall::Write { file: self.number, offset, sum, clears_ids };
        let node = self.node.clone();
        self.node.writes.begin_write();
        session.send_call(call, bytes, move |reply| {
            node.writes.end_write(reply.map(|_| ()));
        });
        // A read that comes later is behind the write in the stream.
        self.node.note_change();
        // Without a link it has failed by now.
        self.node.writes.check_since(self.failures)
    }

    /// Waits until all writes have been made.
    ///
    /// # Errors
    /// That of a write since the open.
    pub(crate) fn await_writes(&self) -> Result<(), Errno> {
        if !self.is_writer() {
            return Ok(());
        }
        self.node.writes.await_writes();
        self.node.writes.check_since(self.failures)
    }

    /// Brings all writes to the disk there.
    ///
    /// # Errors
    /// That of a write since the open, and those of fsync(2).
    pub(crate) fn sync_file(
        &self,
        session: &MountSession,
        unique: u64,
        data_only: bool,
    ) -> Result<(), Errno> {
        let synced = session.call(unique, MountCall::Sync { file: self.number, data_only });
        // Their replies come before that of the sync.
        self.node.writes.check_since(self.failures)?;
        synced.map(|_| ())
    }
}
