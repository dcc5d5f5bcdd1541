//! Spare files that the home node lends to this client for new inodes; see [`tatami_lend`].

use crate::DataFile;
use crate::connection::Connection;
use crate::data::stat_file;
use parking_lot::Mutex;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use tatami_lend::{Moment, SLOTS, Table};
use tatami_wire::object::{ObjectOp, ObjectState};
use tatami_wire::{Errno, Ino};

/// A table of spare files. When it is dropped, the daemon makes objects of the files that stand for
/// an inode.
pub struct Loan {
    id: u64,
    table: Table,
    /// The daemon keeps the table as long as this connection.
    _connection: Mutex<Connection>,
}

/// A spare file that stands for no inode yet.
#[derive(Clone, Debug)]
pub struct Spare {
    /// Its slot in the table.
    pub slot: usize,
    /// Open for reading and writing, and empty.
    pub file: Arc<OwnedFd>,
    /// Its state when it was lent.
    pub state: ObjectState,
}

impl Loan {
    /// Number of slots, counted from 0.
    pub const SLOTS: usize = SLOTS;

    /// Asks the home node for a new table, in the name of `data`, a file that the client may write.
    ///
    /// # Errors
    /// `EOPNOTSUPP` where the disk does not suit, `EPERM` where the daemon does not trust this
    /// client, `EHOSTDOWN` when the daemon stays away, `EINVAL` for a file on another node.
    pub fn begin(data: &DataFile) -> Result<Loan, Errno> {
        if !data.is_local() {
            return Err(Errno::EINVAL);
        }
        let mut id = [0; 8];
        getrandom::fill(&mut id).map_err(|_| Errno::EIO)?;
        let id = u64::from_ne_bytes(id);
        let op = ObjectOp::Borrow { table: id };
        let (file, connection) = data.renewing(|cap| {
            let mut kept = None;
            // An idle connection may be broken; then the daemon is asked on a new one.
            for _ in 0..2 {
                let Ok(mut connection) = data.peer().take_data(data.peer().patience()) else {
                    break;
                };
                if let Ok(answer) = data.descriptor(&mut connection, cap, &op) {
                    kept = Some((answer?, connection));
                    break;
                }
            }
            kept.ok_or(Errno::EHOSTDOWN)
        })?;
        let table = Table::map(file)?;
        Ok(Loan { id, table, _connection: Mutex::new(connection) })
    }

    /// Asks for an empty file for a slot. When this returns, the file that the slot had before is
    /// an object; also after `ENOENT`, which means that the table has ended. The request is sent
    /// once. After any other error the slot must not be used again, because the daemon may still
    /// handle the request.
    ///
    /// # Errors
    /// Those of the disk, `EHOSTDOWN` when the daemon is away.
    pub fn spare(&self, data: &DataFile, slot: usize) -> Result<Spare, Errno> {
        let op = ObjectOp::Spare { table: self.id, slot: slot as u16 };
        let fd = data.renewing(|cap| {
            let connection = data.peer().take_data(data.peer().patience());
            let mut connection = connection.map_err(|e| {
                if e.lacks_descriptors() { Errno::ENFILE } else { Errno::EHOSTDOWN }
            })?;
            let answer = data.descriptor(&mut connection, cap, &op);
            let fd = answer.map_err(|_| Errno::EHOSTDOWN)?;
            data.peer().return_data(connection);
            fd
        })?;
        let state = stat_file(&fd)?;
        Ok(Spare { slot, file: Arc::new(fd), state })
    }

    /// Returns the present moment, to be taken before an inode is made.
    pub fn now(&self) -> Moment {
        self.table.now()
    }

    /// Assigns the file of a slot to `ino`, which did not exist at `since`. If this returns false,
    /// the caller must ask the daemon for the file, see [`DataFile::local_file`], and then give the
    /// slot back.
    pub fn lend(&self, slot: usize, ino: Ino, since: Moment) -> bool {
        self.table.lend(slot, ino, since)
    }

    /// Takes the slot's file, which is empty, from `ino`. Returns false where the file has become
    /// the inode's object, or the table has ended.
    pub fn give_back(&self, slot: usize, ino: Ino) -> bool {
        self.table.give_back(slot, ino)
    }

    /// Returns whether the table has ended.
    pub fn is_ended(&self) -> bool {
        self.table.is_ended()
    }
}
