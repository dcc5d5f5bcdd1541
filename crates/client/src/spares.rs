//! Spare files that the home node lends to this client for new inodes; see
//! [`tatami_tables::SpareTable`].

use crate::DataFile;
use crate::connection::Connection;
use crate::local_object::stat_file;
use parking_lot::Mutex;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use tatami_tables::{ClaimCount, SLOTS, SpareTable};
use tatami_wire::object::{ObjectOp, ObjectState};
use tatami_wire::{Errno, Ino};

/// A table of spare files. When it is dropped, the daemon makes objects of the files that stand for
/// an inode.
pub struct BorrowedSpares {
    id: u64,
    table: SpareTable,
    /// The daemon keeps the table as long as this connection.
    _connection: Mutex<Connection>,
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
        let (file, connection) = object.with_valid_cap(|cap| {
            let mut kept = None;
            // An idle connection may be broken; then the daemon is asked on a new one.
            for _ in 0..2 {
                let timeout = object.peer.timeout();
                let Ok(mut connection) = object.peer.take_data_connection(timeout) else { break };
                if let Ok(answer) = object.request_descriptor(&mut connection, cap, &op) {
                    kept = Some((answer?, connection));
                    break;
                }
            }
            kept.ok_or(Errno::EHOSTDOWN)
        })?;
        let table = SpareTable::map_file(file)?;
        Ok(BorrowedSpares { id, table, _connection: Mutex::new(connection) })
    }

    /// Asks for an empty file for a slot. When this returns, the file that the slot had before is
    /// an object; also after `ENOENT`, which means that the table has ended. The request is sent
    /// once. After any other error the slot must not be used again, because the daemon may still
    /// handle the request.
    ///
    /// # Errors
    /// Those of the disk, `EHOSTDOWN` when the daemon is away.
    pub fn request_spare(&self, data: &DataFile, slot: usize) -> Result<SpareFile, Errno> {
        let op = ObjectOp::GetSpare { table: self.id, slot: slot as u16 };
        let object = data.local_object()?;
        let fd = object.with_valid_cap(|cap| {
            let connection = object.peer.take_data_connection(object.peer.timeout());
            let mut connection = connection.map_err(|e| {
                if e.lacks_descriptors() { Errno::ENFILE } else { Errno::EHOSTDOWN }
            })?;
            let answer = object.request_descriptor(&mut connection, cap, &op);
            let fd = answer.map_err(|_| Errno::EHOSTDOWN)?;
            object.peer.return_data_connection(connection);
            fd
        })?;
        let state = stat_file(&fd)?;
        Ok(SpareFile { slot, file: Arc::new(fd), state })
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

    /// Returns whether the table has ended.
    pub fn is_ended(&self) -> bool {
        self.table.is_ended()
    }
}
