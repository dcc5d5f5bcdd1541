//! Spare files that the home node lends to this client for new inodes; see
//! [`tatami_tables::SpareTable`].

use crate::DataFile;
use crate::connection::Connection;
use crate::descriptors::is_reserved_descriptor;
use crate::local_object::{disk_error, stat_file};
use crate::node::NodeClient;
use crate::waiting::lock_interruptibly;
use parking_lot::Mutex;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tatami_tables::{ClaimCount, SLOTS, SpareTable};
use tatami_wire::frame::FrameClass;
use tatami_wire::object::{ObjectCall, ObjectOp, ObjectResult, ObjectState};
use tatami_wire::{Cap, Errno, Ino, Piece};

/// A table of spare files. When it is dropped, the daemon makes objects of the files that stand for
/// an inode.
pub struct BorrowedSpares {
    table: SpareTable,
    peer: Arc<NodeClient>,
    /// The capability by which the table was made. It may expire.
    cap: Cap,
    /// The daemon keeps the table as long as this connection. `None` after a broken request: the
    /// daemon may still handle it, so the slots are not used any more.
    connection: Mutex<Option<Connection>>,
    /// The file of the table, on the disk of the spare files.
    file: OwnedFd,
    is_broken: AtomicBool,
}

/// A spare file that stands for no inode yet.
#[derive(Clone, Debug)]
pub struct SpareFile {
    /// Its slot in the table.
    pub slot: usize,
    /// Open for reading and writing, and empty.
    pub file: Arc<OwnedFd>,
    /// Its state when it was lent.
    pub state: ObjectState,
}

impl BorrowedSpares {
    /// Number of slots, counted from 0.
    pub const SLOTS: usize = SLOTS;

    /// Asks the home node for a new table, in the name of `data`, a file that the client may write.
    ///
    /// # Errors
    /// `EOPNOTSUPP` where the disk does not suit, `EPERM` where the daemon does not trust this
    /// client, `EHOSTDOWN` when the daemon stays away, `EINVAL` for a file on another node.
    pub fn begin(data: &DataFile) -> Result<BorrowedSpares, Errno> {
        let object = data.local_object()?;
        let mut id = [0; 8];
        getrandom::fill(&mut id).map_err(|_| Errno::EIO)?;
        let id = u64::from_ne_bytes(id);
        let op = ObjectOp::CreateSpareTable { table: id };
        let (file, connection, cap) = object.with_valid_cap(|cap| {
            let mut kept = None;
            // An idle connection may be broken; then the daemon is asked on a new one.
            for _ in 0..2 {
                let timeout = object.peer.timeout();
                let Ok(mut connection) = object.peer.take_data_connection(timeout) else { break };
                if let Ok(answer) = object.request_descriptor(&mut connection, cap, &op) {
                    kept = Some((answer?, connection, cap));
                    break;
                }
            }
            kept.ok_or(Errno::EHOSTDOWN)
        })?;
        let (peer, connection) = (object.peer.clone(), Mutex::new(Some(connection)));
        let (table, is_broken) = (SpareTable::map_file(&file)?, AtomicBool::new(false));
        Ok(BorrowedSpares { table, peer, cap, connection, file, is_broken })
    }

    /// Waits until no request for spare files is under way.
    ///
    /// # Errors
    /// `EHOSTDOWN` if the calling program is being ended.
    pub fn wait_until_idle(&self) -> Result<(), Errno> {
        lock_interruptibly(&self.connection).map(drop)
    }

    /// Syncs the disk of the spare files, on which the objects of this node are, too.
    ///
    /// # Errors
    /// Those of syncfs(2).
    pub fn sync_disk(&self) -> Result<(), Errno> {
        rustix::fs::syncfs(&self.file).map_err(disk_error)
    }

    /// Asks for empty files for these slots, at most [`OPEN_DESCRIPTORS_MAX`]. Returns those of the
    /// first slots. For these, the file that the slot had before is an object when this returns.
    /// `None` after the end of the table: then all its files are, or will be before any client can
    /// ask for them. The request is sent once.
    ///
    /// # Errors
    /// Those of the disk, for the first slot; `ENFILE` where this process has no room for a file.
    pub fn request_spares(&self, slots: &[usize]) -> Result<Option<Vec<SpareFile>>, Errno> {
        let op = ObjectOp::GetSpares { slots: slots.iter().map(|slot| *slot as u16).collect() };
        let call = ObjectCall { cap: self.cap, piece: Piece::BASE, op };
        let mut kept = lock_interruptibly(&self.connection)?;
        let Some(connection) = kept.as_mut() else { return Ok(None) };
        connection.set_patience(self.peer.timeout());
        let answered = connection
            .send(FrameClass::Object, 0, &call, &[])
            .and_then(|()| connection.receive_with_fds::<ObjectResult>(FrameClass::Object, 0));
        let fds = match answered {
            Ok((Ok(_), fds)) => fds,
            Ok((Err(Errno::ENOENT), _)) => return Ok(None),
            Ok((Err(errno), _)) => return Err(errno),
            Err(error) => {
                tracing::debug!(%error, "a table of spare files has ended");
                self.is_broken.store(true, Ordering::SeqCst);
                // The daemon ends the table with its connection.
                *kept = None;
                return Ok(None);
            }
        };
        // The kernel drops descriptors for which this process has no room. The last numbers are
        // left for connections.
        let fds = fds.into_iter().take_while(|fd| !is_reserved_descriptor(fd));
        let files: Result<Vec<_>, Errno> = fds
            .zip(slots)
            .map(|(fd, slot)| {
                let state = stat_file(&fd)?;
                Ok(SpareFile { slot: *slot, file: Arc::new(fd), state })
            })
            .collect();
        files.and_then(|files| if files.is_empty() { Err(Errno::ENFILE) } else { Ok(Some(files)) })
    }

    /// Returns whether the file of a slot stands for an inode, and is no object.
    pub fn stands_for_inode(&self, slot: usize) -> bool {
        self.table.assigned_inode(slot).is_some()
    }

    /// Returns the present moment, to be taken before an inode is made.
    pub fn now(&self) -> ClaimCount {
        self.table.current_claims()
    }

    /// Assigns the file of a slot to `ino`, which did not exist at `since`. If this returns false,
    /// the caller must ask the daemon for the file, see [`DataFile::local_file`], and then give the
    /// slot back.
    pub fn assign_slot(&self, slot: usize, ino: Ino, since: ClaimCount) -> bool {
        self.table.assign_slot(slot, ino, since)
    }

    /// Takes the slot's file, which is empty, from `ino`. Returns false where the file has become
    /// the inode's object, or the table has ended.
    pub fn release_slot(&self, slot: usize, ino: Ino) -> bool {
        self.table.return_slot(slot, ino)
    }

    /// Returns whether the table has ended, or is about to.
    pub fn is_ended(&self) -> bool {
        self.is_broken.load(Ordering::SeqCst) || self.table.is_ended()
    }
}
