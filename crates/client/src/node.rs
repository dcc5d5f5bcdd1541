//! One node, as a client reaches it: pools of connections, its executors, and the timeout while its
//! daemon is away.

use crate::awaited_node::{AwaitedNode, WaitReason};
use crate::connection::{Caller, ConnectError, Connection};
use crate::executor::ExecutorClient;
use crate::retry::Retry;
use crate::route::NodeRoute;
use parking_lot::Mutex;
use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tatami_net::Endpoint;
use tatami_wire::admin::{AdminCall, AdminResult};
use tatami_wire::frame::FrameError;
use tatami_wire::handshake::Role;
use tatami_wire::{ClientId, EXECUTORS_MAX, Errno, NodeId};

/// Most idle data connections that are kept for later use.
const IDLE_DATA_MAX: usize = 64;

/// A node and the connections to it.
pub(crate) struct NodeClient {
    pub(crate) node: NodeId,
    way: Arc<NodeRoute>,
    data: Mutex<Vec<Connection>>,
    admin: Mutex<Vec<Connection>>,
    /// Most nodes that serve shards do so with this executor alone; many serve none.
    first: OnceLock<ExecutorClient>,
    /// The others, by number less one, filled when they are first used.
    more: OnceLock<OtherExecutors>,
}

type OtherExecutors = Box<[OnceLock<Box<ExecutorClient>>]>;

impl NodeClient {
    pub(crate) fn new(
        node: NodeId,
        endpoint: Endpoint,
        caller: Caller,
        patience: Duration,
        awaited: AwaitedNode,
    ) -> NodeClient {
        NodeClient {
            node,
            way: Arc::new(NodeRoute::new(node, endpoint, caller, patience, awaited)),
            data: Mutex::default(),
            admin: Mutex::default(),
            first: OnceLock::new(),
            more: OnceLock::new(),
        }
    }

    /// Returns the executor with that number; `None` where no node has so many.
    pub(crate) fn executor(&self, index: u8) -> Option<&ExecutorClient> {
        let new = || ExecutorClient::new(self.way.clone(), index);
        let Some(place) = index.checked_sub(1) else { return Some(self.first.get_or_init(new)) };
        let none = || (1..EXECUTORS_MAX).map(|_| OnceLock::new()).collect();
        let place = self.more.get_or_init(none).get(usize::from(place))?;
        Some(place.get_or_init(|| Box::new(new())))
    }

    /// Returns whether the bytes of connections to the node are encrypted.
    pub(crate) fn encrypts(&self) -> bool {
        self.way.caller.tls.is_some() && self.way.endpoint().local_socket().is_none()
    }

    /// Uses another address for new connections. Closes those that no request uses: they end at the
    /// old address, and a request would wait for a silence before it is sent again.
    pub(crate) fn change_address(&self, address: &str) {
        self.way.change_address(address);
        self.data.lock().clear();
        self.admin.lock().clear();
        self.known_executors().for_each(ExecutorClient::close_idle_connections);
    }

    /// Returns the executors that this client has used.
    pub(crate) fn known_executors(&self) -> impl Iterator<Item = &ExecutorClient> {
        let more = self.more.get().into_iter().flatten();
        self.first.get().into_iter().chain(more.filter_map(OnceLock::get).map(Box::as_ref))
    }

    /// Sends one request to the node itself. Unlike all others it is sent once: a caller that asks
    /// for a node's health wants to know that it is down.
    pub(crate) fn send_admin(&self, request: &AdminCall) -> Result<AdminResult, Errno> {
        self.send_admin_within(self.way.timeout(), request)
    }

    /// As [`NodeClient::send_admin`]; no single wait is longer than `patience`.
    pub(crate) fn send_admin_within(
        &self,
        patience: Duration,
        request: &AdminCall,
    ) -> Result<AdminResult, Errno> {
        let retry = Retry::new(patience);
        let idle = self.admin.lock().pop();
        if let Some(mut connection) = idle {
            connection.set_patience(patience);
            // The daemon may have been restarted since: then a fresh connection is tried.
            match connection.call_admin(request) {
                Ok(reply) => return Ok(self.return_admin_connection(connection, reply)),
                Err(e) if is_timeout(&e) => return Err(self.report_timeout(&retry)),
                Err(_) => {}
            }
        }
        let connected = self.way.connect_within(retry.time_left(), 0, Role::Admin, 0);
        let mut connection = connected.map_err(|e| match e.is_transient() {
            _ if e.lacks_descriptors() => Errno::ENFILE,
            true if e.is_timeout() => self.report_timeout(&retry),
            true => Errno::EHOSTDOWN,
            false => self.report_refusal(&e),
        })?;
        match connection.call_admin(request) {
            Ok(reply) => Ok(self.return_admin_connection(connection, reply)),
            Err(e) => {
                self.log_broken_request("question", &e);
                Err(if is_timeout(&e) { self.report_timeout(&retry) } else { Errno::EHOSTDOWN })
            }
        }
    }

    fn return_admin_connection<R>(&self, connection: Connection, reply: R) -> R {
        self.way.mark_reachable();
        self.admin.lock().push(connection);
        reply
    }

    /// Runs `attempt` on a data connection until one attempt gets a reply. Only for requests that
    /// may take effect twice.
    ///
    /// # Errors
    /// The error that `attempt` returned, or `EHOSTDOWN`.
    pub(crate) fn with_data_connection<R>(
        &self,
        mut attempt: impl FnMut(&mut Connection) -> Result<R, FrameError>,
    ) -> Result<R, Errno> {
        let mut retry = Retry::new(self.way.timeout());
        loop {
            match self.take_data_connection(retry.time_left()) {
                Ok(mut connection) => match attempt(&mut connection) {
                    Ok(reply) => {
                        self.return_data_connection(connection);
                        retry.record_answer();
                        return Ok(reply);
                    }
                    Err(e) => self.log_broken_request("data request", &e),
                },
                Err(e) if e.lacks_descriptors() => return Err(Errno::ENFILE),
                Err(e) if !e.is_transient() => return Err(self.report_refusal(&e)),
                Err(e) => tracing::debug!(node = self.node.0, error = %e, "daemon away"),
            }
            if !self.pause_before_retry(&mut retry) {
                return Err(self.report_timeout(&retry));
            }
        }
    }

    /// Takes a data connection for the caller alone. No single wait on it is longer than
    /// `patience`.
    pub(crate) fn take_data_connection(
        &self,
        patience: Duration,
    ) -> Result<Connection, ConnectError> {
        let idle = self.data.lock().pop();
        match idle {
            Some(mut connection) => {
                connection.set_patience(patience);
                Ok(connection)
            }
            None => self.way.connect_within(patience, 0, Role::Data, 0),
        }
    }

    /// Gives back a connection without requests in flight.
    pub(crate) fn return_data_connection(&self, connection: Connection) {
        self.way.mark_reachable();
        let mut idle = self.data.lock();
        if idle.len() < IDLE_DATA_MAX {
            idle.push(connection);
        }
    }

    /// Waits a little before the next attempt to reach the node, as [`Retry::pause`].
    pub(crate) fn pause_before_retry(&self, retry: &mut Retry) -> bool {
        retry.pause_for(&self.way.awaited, WaitReason::Down)
    }

    /// Records that the node has answered.
    pub(crate) fn mark_reachable(&self) {
        self.way.mark_reachable();
    }

    /// Records that a thread no longer waits for the node.
    pub(crate) fn record_timeout(&self) {
        self.way.awaited.record_timeout();
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.way.timeout()
    }

    pub(crate) fn report_timeout(&self, retry: &Retry) -> Errno {
        self.way.report_timeout(&self.node, retry)
    }

    fn report_refusal(&self, e: &ConnectError) -> Errno {
        self.way.report_refusal(&self.node, e)
    }

    /// Opens a data connection in the name of another client of the same user.
    pub(crate) fn connect_as(&self, client: ClientId) -> Result<Connection, ConnectError> {
        let caller = Caller { client, ..self.way.caller.clone() };
        Connection::open_to(&self.way.endpoint(), 0, &caller, Role::Data, 0, self.way.timeout())
    }

    fn log_broken_request(&self, what: &str, e: &FrameError) {
        tracing::warn!(node = self.node.0, error = %e, "{what} broken off; trying again");
    }
}

fn is_timeout(e: &FrameError) -> bool {
    matches!(e, FrameError::Io(e) if e.kind() == io::ErrorKind::TimedOut)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executors_are_made_as_they_are_met() {
        let endpoint = Endpoint::Tcp("127.0.0.1:1".into());
        let caller = Caller { client: ClientId([7; 16]), volume: None, key: None, tls: None };
        let awaited = AwaitedNode::new(Some(NodeId(3)), "node3".into(), None);
        let peer = NodeClient::new(NodeId(3), endpoint, caller, Duration::ZERO, awaited);
        let met =
            || peer.known_executors().map(|executor| executor.id.to_string()).collect::<Vec<_>>();
        assert!(met().is_empty());
        let first: *const ExecutorClient = peer.executor(0).expect("every node has it");
        assert!(peer.more.get().is_none(), "nobody has asked for another");
        let last = EXECUTORS_MAX - 1;
        for index in [last, 1, 0, last] {
            assert_eq!(peer.executor(index).expect("it may be there").id.index, index);
        }
        assert!(peer.executor(EXECUTORS_MAX).is_none() && peer.executor(u8::MAX).is_none());
        assert_eq!(met(), ["3", "3.1", "3.63"]);
        assert!(std::ptr::eq(first, peer.executor(0).expect("it was there")));
    }
}
