//! The connected clients, and the time since which others are away.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::time::{Duration, Instant};
use tatami_wire::ClientId;

/// Most clients without a connection that are remembered; the one that left first is dropped first.
/// A forgotten client counts as never seen.
const ABSENT_MAX: usize = 16 * 1024;

#[derive(Debug)]
struct ClientPresence {
    /// The user that it belongs to; `None` for a trusted client.
    uid: Option<u32>,
    connections: u32,
    disconnected: Option<Instant>,
    /// The time of its last sign of life, if it sends any.
    last_alive: Option<Instant>,
}

/// All clients that have been connected since the start.
#[derive(Debug, Default)]
pub(crate) struct ClientTable {
    /// Clients that hold locks or open files and have not been here since our start: when their
    /// lease was first checked.
    first_checks: Mutex<HashMap<ClientId, Instant>>,
    entries: Mutex<HashMap<ClientId, ClientPresence>>,
}

impl ClientTable {
    /// Records a new connection. Returns false when the client id belongs to another user: a user
    /// that has learnt an id must not act as that client.
    pub(crate) fn add_connection(&self, client: ClientId, uid: Option<u32>) -> bool {
        self.first_checks.lock().remove(&client);
        let mut entries = self.entries.lock();
        if entries.len() >= ABSENT_MAX && !entries.contains_key(&client) {
            let absent = entries.iter().filter_map(|(id, e)| Some((e.disconnected?, *id)));
            if let Some((_, oldest)) = absent.min() {
                entries.remove(&oldest);
            }
        }
        let entry = entries.entry(client).or_insert(ClientPresence {
            uid,
            connections: 0,
            disconnected: None,
            last_alive: None,
        });
        if entry.uid != uid {
            return false;
        }
        entry.connections += 1;
        entry.disconnected = None;
        true
    }

    /// Records the end of a connection that [`ClientTable::add_connection`] admitted.
    pub(crate) fn remove_connection(&self, client: ClientId) {
        if let Some(entry) = self.entries.lock().get_mut(&client) {
            entry.connections = entry.connections.saturating_sub(1);
            if entry.connections == 0 {
                entry.disconnected = Some(Instant::now());
            }
        }
    }

    /// Whether the client has a connection now.
    pub(crate) fn is_connected(&self, client: ClientId) -> bool {
        self.entries.lock().get(&client).is_some_and(|e| e.connections > 0)
    }

    /// Whether the client has been without a connection for `lease`. A client that has not been
    /// here since our start gets a whole lease from the first check on. It may have got locks or
    /// files here through another node, and come itself only later.
    pub(crate) fn is_expired(&self, client: ClientId, lease: Duration) -> bool {
        let left = match self.entries.lock().get(&client) {
            Some(ClientPresence { disconnected: None, .. }) => return false,
            Some(ClientPresence { disconnected: Some(left), .. }) => *left,
            None => self.first_check(client),
        };
        left.elapsed() >= lease
    }

    fn first_check(&self, client: ClientId) -> Instant {
        let mut strangers = self.first_checks.lock();
        if strangers.len() >= ABSENT_MAX && !strangers.contains_key(&client) {
            // All of them are checked again, and get another lease.
            strangers.clear();
        }
        *strangers.entry(client).or_insert_with(Instant::now)
    }

    /// Records a sign of life. A client that sends one sends them regularly from then on.
    pub(crate) fn record_alive(&self, client: ClientId) {
        if let Some(entry) = self.entries.lock().get_mut(&client) {
            entry.last_alive = Some(Instant::now());
        }
    }

    /// Returns all connected clients, in order, without those that owe a sign of life for `lease`:
    /// a stopped process keeps its connections.
    pub(crate) fn alive_clients(&self, lease: Duration) -> Vec<ClientId> {
        let entries = self.entries.lock();
        let is_alive = |e: &ClientPresence| {
            e.connections > 0 && e.last_alive.is_none_or(|at| at.elapsed() < lease)
        };
        let mut ids: Vec<_> =
            entries.iter().filter(|(_, e)| is_alive(e)).map(|(id, _)| *id).collect();
        ids.sort_unstable();
        ids
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ClientId = ClientId([1; 16]);

    #[test]
    fn a_client_expires_a_lease_after_its_last_connection() {
        let clients = ClientTable::default();
        assert!(clients.is_expired(A, Duration::ZERO), "unknown: gone since it was asked for");
        assert!(!clients.is_expired(A, Duration::from_secs(3600)), "a grace of one lease");
        assert!(clients.add_connection(A, None));
        assert!(clients.add_connection(A, None));
        clients.remove_connection(A);
        assert!(!clients.is_expired(A, Duration::ZERO), "one connection is left");
        assert_eq!(
            clients.alive_clients(Duration::ZERO),
            [A],
            "it has not said that it would tell"
        );
        clients.record_alive(A);
        assert_eq!(clients.alive_clients(Duration::from_secs(3600)), [A]);
        assert_eq!(clients.alive_clients(Duration::ZERO), []);
        clients.remove_connection(A);
        assert!(clients.is_expired(A, Duration::ZERO));
        assert!(!clients.is_expired(A, Duration::from_secs(3600)));
        assert!(!clients.is_connected(A));
    }

    #[test]
    fn an_id_stays_with_its_user() {
        let clients = ClientTable::default();
        assert!(clients.add_connection(A, Some(1000)));
        assert!(!clients.add_connection(A, Some(1001)));
        assert!(!clients.add_connection(A, None));
        clients.remove_connection(A);
        assert!(!clients.add_connection(A, Some(1001)), "also after it left");
        assert!(clients.add_connection(A, Some(1000)));
    }

    #[test]
    fn the_table_is_bounded() {
        let clients = ClientTable::default();
        for n in 0..ABSENT_MAX + 10 {
            let mut id = [0; 16];
            id[..8].copy_from_slice(&(n as u64).to_le_bytes());
            assert!(clients.add_connection(ClientId(id), None));
            clients.remove_connection(ClientId(id));
        }
        assert!(clients.entries.lock().len() <= ABSENT_MAX);
    }
}
