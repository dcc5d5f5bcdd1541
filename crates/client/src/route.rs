//! The route to a node: how its daemon is reached, and whether it is away.

use crate::awaited_node::AwaitedNode;
use crate::connection::{Caller, ConnectError, Connection};
use crate::retry::Retry;
use crate::waiting::{self, GRACE};
use parking_lot::RwLock;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use tatami_net::Endpoint;
use tatami_wire::handshake::Role;
use tatami_wire::{Errno, NodeId};

/// The advice in the log when an operation has given up.
pub(crate) const AWAY: &str =
    "the daemon did not come back; start it with `tatami up` or `tatami node start`";

/// The route to a node.
pub(crate) struct NodeRoute {
    pub(crate) node: NodeId,
    /// It changes with the address of the node.
    endpoint: RwLock<Endpoint>,
    pub(crate) caller: Caller,
    patience: Duration,
    /// A thread has waited for the node for the whole timeout, and no reply has come since.
    is_away: AtomicBool,
    /// Reports the waits for the node.
    pub(crate) awaited: Arc<AwaitedNode>,
}

impl NodeRoute {
    pub(crate) fn new(
        node: NodeId,
        endpoint: Endpoint,
        caller: Caller,
        patience: Duration,
        awaited: AwaitedNode,
    ) -> NodeRoute {
        let (is_away, awaited) = (AtomicBool::new(false), Arc::new(awaited));
        let endpoint = RwLock::new(endpoint);
        NodeRoute { node, endpoint, caller, patience, is_away, awaited }
    }

    /// Opens a connection; `executor` is 0 for requests to no executor in particular.
    pub(crate) fn connect(
        &self,
        executor: u8,
        role: Role,
        slot: u32,
    ) -> Result<Connection, ConnectError> {
        self.connect_within(self.timeout(), executor, role, slot)
    }

    /// As [`NodeRoute::connect`]; no single wait is longer than `patience`.
    pub(crate) fn connect_within(
        &self,
        patience: Duration,
        executor: u8,
        role: Role,
        slot: u32,
    ) -> Result<Connection, ConnectError> {
        let NodeRoute { caller, awaited, .. } = self;
        let endpoint = self.endpoint();
        Connection::open_watched(&endpoint, executor, caller, role, slot, patience, awaited)
    }

    /// Returns how the node is reached.
    pub(crate) fn endpoint(&self) -> Endpoint {
        self.endpoint.read().clone()
    }

    /// Uses another address for new connections, if the node is reached by its address.
    pub(crate) fn change_address(&self, address: &str) {
        let mut endpoint = self.endpoint.write();
        if matches!(&*endpoint, Endpoint::Tcp(_)) {
            *endpoint = Endpoint::from_address(address);
            self.is_away.store(false, Relaxed);
        }
    }

    /// Returns how long the node is waited for. After one wait in vain, the time is short until the
    /// node answers again. Otherwise a program that goes on after an error (it closes its files, it
    /// opens the next one) would wait the whole time for each.
    pub(crate) fn timeout(&self) -> Duration {
        if self.is_away.load(Relaxed) { self.patience.min(GRACE) } else { self.patience }
    }

    /// Records that the node has answered.
    pub(crate) fn mark_reachable(&self) {
        self.clear_away();
        self.awaited.record_answer();
    }

    /// Records that the node has answered, but not with what the thread waits for.
    pub(crate) fn clear_away(&self) {
        // Only the first thread writes the flag: all threads read it with each request, and a write
        // would take the cache line from them. Relaxed: the flag guards no other data.
        if self.is_away.load(Relaxed) {
            self.is_away.store(false, Relaxed);
        }
    }

    /// Reports that the node did not answer since `retry` began. Returns the error of the
    /// operation.
    pub(crate) fn report_timeout(&self, who: &dyn fmt::Display, retry: &Retry) -> Errno {
        self.awaited.record_timeout();
        if waiting::is_asker_ending() {
            tracing::debug!(node = %who, "the program that waited for it is being ended");
            return Errno::EHOSTDOWN;
        }
        // Only a silence of the whole timeout counts: the time of this wait may have been cut by
        // the operation's deadline.
        if retry.silence.elapsed() >= self.patience {
            self.is_away.store(true, Relaxed);
        }
        let seconds = retry.silence.elapsed().as_secs_f64();
        tracing::error!(node = %who, endpoint = %self.endpoint(), seconds, "{AWAY}");
        Errno::EHOSTDOWN
    }

    /// Reports that a node refuses the connection, and that waiting cannot help.
    pub(crate) fn report_refusal(&self, who: &dyn fmt::Display, e: &ConnectError) -> Errno {
        self.awaited.record_timeout();
        tracing::error!(node = %who, error = %e, "connection refused for good");
        e.errno()
    }
}
