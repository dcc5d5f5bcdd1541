//! The admission of a connection: its slot, and its entry among the connections of its client.

use crate::connections::clients::ClientTable;
use crate::connections::connection_slots::ConnectionSlot;
use std::sync::Arc;
use tatami_wire::ClientId;

/// The slot and the registration of an admitted connection, held until it ends.
pub(crate) struct ConnectionAdmission {
    _seat: ConnectionSlot,
    clients: Arc<ClientTable>,
    /// The client of the connection.
    pub(crate) client: ClientId,
}

impl ConnectionAdmission {
    /// Makes the admission of a client that is registered in `clients`.
    pub(crate) fn new(
        seat: ConnectionSlot,
        clients: Arc<ClientTable>,
        client: ClientId,
    ) -> ConnectionAdmission {
        ConnectionAdmission { _seat: seat, clients, client }
    }
}

impl Drop for ConnectionAdmission {
    fn drop(&mut self) {
        self.clients.remove_connection(self.client);
    }
}
