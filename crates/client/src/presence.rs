//! A process that keeps the client of another process alive.
//!
//! A client loses its open files one lease after its last connection to the shard's node. Processes
//! that work on one file together have it opened by one of them. The file must stay open as long as
//! any of them lives, so each has a connection there in the name of that client. It sends no
//! request.

use crate::Client;
use crate::connection::Connection;
use parking_lot::Mutex;
use tatami_wire::{ClientId, Errno, Ino};

/// As long as this value lives and the node's daemon runs, the client in whose name it was made
/// counts as connected.
pub struct Presence {
    connection: Mutex<Connection>,
}

impl std::fmt::Debug for Presence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Presence").finish_non_exhaustive()
    }
}

impl Presence {
    /// Returns whether the connection is still there.
    pub fn is_connected(&self) -> bool {
        !self.connection.lock().is_stale()
    }
}

impl Client {
    /// Connects as `client`, one of the same user, to the node of the shard that has `ino`. Costs
    /// no request.
    ///
    /// # Errors
    /// `EACCES` where that client is another user's, `EHOSTDOWN` when the daemon does not answer.
    pub fn keep_client_alive(&self, client: ClientId, ino: Ino) -> Result<Presence, Errno> {
        let executor = self.owner(ino.owner_shard()).ok_or(Errno::ESTALE)?;
        let opened = self.node_client(executor.node)?.connect_as(client);
        let connection = opened.map_err(|e| match e.is_transient() {
            _ if e.lacks_descriptors() => Errno::ENFILE,
            true => Errno::EHOSTDOWN,
            false => e.errno(),
        })?;
        Ok(Presence { connection: Mutex::new(connection) })
    }
}
