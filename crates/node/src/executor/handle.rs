//! How other threads reach an executor: connections, orders and results are events of its channel.

use crate::connections::admission::ConnectionAdmission;
use mio::Waker;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use tatami_net::{NetStream, PeerIdentity};
use tatami_wire::admin::ClusterMap;
use tatami_wire::{Errno, ExecutorId};

/// The purpose of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionKind {
    /// Requests and their answers, on this slot of the client.
    Requests { slot: u32 },
    /// Recalls of the client's delegations.
    Recall,
    /// Messages of executors, on a connection that the other one has made.
    Peer { from: ExecutorId },
    /// Messages of executors, on a connection that this executor has made.
    Link { to: ExecutorId },
}

/// A connection that has passed its handshake.
pub(crate) struct NewConnection {
    pub(crate) stream: Arc<NetStream>,
    pub(crate) peer: PeerIdentity,
    pub(crate) kind: ConnectionKind,
    pub(crate) admission: Option<ConnectionAdmission>,
}

/// A message of another thread to the executor.
pub(super) enum ExecutorEvent {
    Connection(NewConnection),
    /// The connection to another executor; `None` if it could not be made.
    Link(ExecutorId, Option<Arc<NetStream>>),
    /// The shard map of another executor of the node.
    Map(Arc<ClusterMap>),
    /// The result of the log's sync.
    Synced(io::Result<()>),
    /// An order, and the channel for its answer.
    Order(ExecutorOrder, Sender<Result<(), Errno>>),
}

/// An order about shards.
#[derive(Clone)]
pub(crate) enum ExecutorOrder {
    /// See [`AdminCall::MergeMap`](tatami_wire::admin::AdminCall).
    MergeMap(Box<ClusterMap>),
    /// See [`AdminCall::MigrateShards`](tatami_wire::admin::AdminCall).
    MoveShards { first: u16, count: u16, to: ExecutorId },
}

/// How other threads reach the executor.
#[derive(Clone)]
pub(crate) struct ExecutorHandle {
    events: Sender<ExecutorEvent>,
    waker: Arc<Waker>,
}

impl ExecutorHandle {
    /// Makes the handle of an executor that waits with `waker`, and the end of its channel.
    pub(super) fn new(waker: Waker) -> (ExecutorHandle, Receiver<ExecutorEvent>) {
        let (events, received) = channel();
        (ExecutorHandle { events, waker: Arc::new(waker) }, received)
    }

    /// Hands a connection over. If the executor has ended, the connection closes.
    pub(crate) fn hand_over(&self, connection: NewConnection) {
        self.send_event(ExecutorEvent::Connection(connection));
    }

    /// Hands over a connection to another executor, or reports that there is none.
    pub(crate) fn hand_over_link(&self, to: ExecutorId, link: Option<Arc<NetStream>>) {
        self.send_event(ExecutorEvent::Link(to, link));
    }

    /// Hands over the shard map of another executor of the node.
    pub(crate) fn send_map(&self, map: Arc<ClusterMap>) {
        self.send_event(ExecutorEvent::Map(map));
    }

    /// Gives an order. If the executor has ended, `answer` is dropped.
    pub(crate) fn send_order(&self, order: ExecutorOrder, answer: Sender<Result<(), Errno>>) {
        self.send_event(ExecutorEvent::Order(order, answer));
    }

    /// Sends an event and wakes the executor.
    pub(super) fn send_event(&self, news: ExecutorEvent) {
        if self.events.send(news).is_ok() {
            self.wake();
        }
    }

    /// Makes the executor look at its channel and at the stop flag.
    pub(crate) fn wake(&self) {
        if let Err(e) = self.waker.wake() {
            tracing::error!(error = %e, "cannot wake the executor");
        }
    }
}
