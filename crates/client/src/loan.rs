//! Files that our own node lends us for new inodes; see [`tatami_lend`].

use crate::DataFile;
use crate::connection::Connection;
use crate::data::stat_file;
use parking_lot::Mutex;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use tatami_lend::{Moment, SLOTS, Table};
use tatami_wire::object::{ObjectOp, ObjectState};
use tatami_wire::{Errno, Ino};

/// A table of lent files. Dropped, it ends: the daemon makes objects of what is lent.
pub struct Loan {
    id: u64,
    table: Table,
    /// The table lives as long as this.
    _connection: Mutex<Connection>,
}

/// A lent file that stands for no inode yet.
#[derive(Clone, Debug)]
pub struct Spare {
    /// Its place in the table.
    pub slot: usize,
    /// Open for reading and writing, and empty.
    pub file: Arc<OwnedFd>,
    /// How it was when it was lent.
    pub state: ObjectState,
}

impl Loan {
    /// Files in it, numbered from 0.
    pub const SLOTS: usize = SLOTS;

    /// A new table of our own node, asked for in the name of `data`, a file that we may write.
    ///
    /// # Errors
    /// `EOPNOTSUPP` where the disk does not suit, `EPERM` where the daemon does not trust us,
    /// `EHOSTDOWN` when it stays away, `EINVAL` for a file on another node.
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
            // One that was used before may be broken; the daemon is asked on a new one then.
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

    /// An empty file for a slot. When this returns, what the slot stood for is an object; where the
    /// answer is `ENOENT`, too: the table has ended. It is asked for once: after any other error the
    /// slot must not be used again, since the daemon may still come to answer.
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

    /// Now, before an inode is made.
    pub fn now(&self) -> Moment {
        self.table.now()
    }

    /// The file of a slot stands for `ino`, which did not exist at `since`. Where this is false,
    /// the daemon must be asked for the file, see [`DataFile::local_file`], and then
    /// the slot given back.
    pub fn lend(&self, slot: usize, ino: Ino, since: Moment) -> bool {
        self.table.lend(slot, ino, since)
    }

    /// The slot's file, which is empty, stands for `ino` no longer. False where it has become its object,
    /// or the table has ended.
    pub fn give_back(&self, slot: usize, ino: Ino) -> bool {
        self.table.give_back(slot, ino)
    }

    /// Nothing is lent any more.
    pub fn is_ended(&self) -> bool {
        self.table.is_ended()
    }
}
