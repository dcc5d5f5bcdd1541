//! One node, as a client reaches it: pools of connections, its executors, and the timeout while its
//! daemon is away.

use crate::connection::{Caller, ConnectError, Connection, Endpoint};
use crate::executor::Executor;
use crate::waiting::{self, GRACE, Silence};
use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tatami_wire::frame::{Class, FrameError};
use tatami_wire::handshake::Role;
use tatami_wire::{ClientId, EXECUTORS_MAX, Errno, NodeId};

/// First and longest pause between attempts to reach a daemon that is away.
const PAUSE_FIRST: Duration = Duration::from_millis(2);
const PAUSE_LONGEST: Duration = Duration::from_millis(250);
/// Most idle data connections that are kept for later use.
const IDLE_DATA_MAX: usize = 64;

/// The advice in the log when an operation has given up.
pub(crate) const AWAY: &str =
    "the daemon did not come back; start it with `tatami up` or `tatami node start`";

/// The route to a node.
pub(crate) struct Way {
    pub(crate) node: NodeId,
    pub(crate) endpoint: Endpoint,
    caller: Caller,
    patience: Duration,
    /// A thread has waited for the node for the whole timeout, and no reply has come since.
    is_away: AtomicBool,
}

impl Way {
    pub(crate) fn new(node: NodeId, endpoint: Endpoint, caller: Caller, patience: Duration) -> Way {
        Way { node, endpoint, caller, patience, is_away: AtomicBool::new(false) }
    }

    /// Opens a connection; `executor` is 0 for requests to no executor in particular.
    pub(crate) fn connect(
        &self,
        executor: u8,
        role: Role,
        slot: u32,
    ) -> Result<Connection, ConnectError> {
        self.connect_within(self.patience(), executor, role, slot)
    }

    /// As [`Way::connect`]; no single wait is longer than `patience`.
    pub(crate) fn connect_within(
        &self,
        patience: Duration,
        executor: u8,
        role: Role,
        slot: u32,
    ) -> Result<Connection, ConnectError> {
        Connection::open_to(&self.endpoint, executor, &self.caller, role, slot, patience)
    }

    /// Returns how long the node is waited for. After one wait in vain, the time is short until the
    /// node answers again. Otherwise a program that goes on after an error (it closes its files, it
    /// opens the next one) would wait the whole time for each.
    pub(crate) fn patience(&self) -> Duration {
        if self.is_away.load(Relaxed) { self.patience.min(GRACE) } else { self.patience }
    }

    /// Records that the node has answered.
    pub(crate) fn answered(&self) {
        // Only the first thread writes the flag: all threads read it with each request, and a write
        // would take the cache line from them. Relaxed: the flag guards no other data.
        if self.is_away.load(Relaxed) {
            self.is_away.store(false, Relaxed);
        }
    }

    /// Reports that the node did not answer since `retry` began. Returns the error of the
    /// operation.
    pub(crate) fn gave_up(&self, who: &dyn fmt::Display, retry: &Retry) -> Errno {
        if waiting::asker_ends() {
            tracing::debug!(node = %who, "the program that waited for it is being ended");
            return Errno::EHOSTDOWN;
        }
        // Only a silence of the whole timeout counts: the time of this wait may have been cut by
        // the operation's deadline.
        if retry.silence.lasted() >= self.patience {
            self.is_away.store(true, Relaxed);
        }
        let seconds = retry.silence.lasted().as_secs_f64();
        tracing::error!(node = %who, endpoint = %self.endpoint, seconds, "{AWAY}");
        Errno::EHOSTDOWN
    }

    /// Reports that a node refuses the connection, and that waiting cannot help.
    pub(crate) fn refused(&self, who: &dyn fmt::Display, e: &ConnectError) -> Errno {
        tracing::error!(node = %who, error = %e, "connection refused for good");
        e.errno()
    }
}

/// A node and the connections to it.
pub(crate) struct Peer {
    pub(crate) node: NodeId,
    way: Arc<Way>,
    data: Mutex<Vec<Connection>>,
    admin: Mutex<Vec<Connection>>,
    /// Most nodes that serve shards do so with this executor alone; many serve none.
    first: OnceLock<Executor>,
    /// The others, by number less one, filled when they are first used.
    more: OnceLock<Others>,
}

type Others = Box<[OnceLock<Box<Executor>>]>;

/// Repeats attempts until a deadline, with growing pauses.
pub(crate) struct Retry {
    silence: Silence,
    patience: Duration,
    pause: Duration,
}

impl Retry {
    pub(crate) fn new(patience: Duration) -> Retry {
        Retry { silence: Silence::new(Duration::ZERO), patience, pause: PAUSE_FIRST }
    }

    /// Returns how long an attempt may still wait.
    pub(crate) fn time_left(&self) -> Duration {
        self.silence.time_left(self.patience)
    }

    /// Waits a little. Returns false when the time is over, or when the program that asked is being
    /// ended.
    pub(crate) fn pause(&mut self) -> bool {
        if self.silence.goes_on(self.patience).is_err() {
            return false;
        }
        #[allow(clippy::disallowed_methods)] // a daemon that is down sends no event
        std::thread::sleep(self.pause.min(self.time_left()));
        self.pause = (self.pause * 2).min(PAUSE_LONGEST);
        true
    }

    /// Records that a reply came.
    pub(crate) fn end(&self) {
        self.silence.end();
    }
}

impl Peer {
    pub(crate) fn new(
        node: NodeId,
        endpoint: Endpoint,
        caller: Caller,
        patience: Duration,
    ) -> Peer {
        Peer {
            node,
            way: Arc::new(Way::new(node, endpoint, caller, patience)),
            data: Mutex::default(),
            admin: Mutex::default(),
            first: OnceLock::new(),
            more: OnceLock::new(),
        }
    }

    /// Returns the executor with that number; `None` where no node has so many.
    pub(crate) fn executor(&self, index: u8) -> Option<&Executor> {
        let new = || Executor::new(self.way.clone(), index);
        let Some(place) = index.checked_sub(1) else { return Some(self.first.get_or_init(new)) };
        let none = || (1..EXECUTORS_MAX).map(|_| OnceLock::new()).collect();
        let place = self.more.get_or_init(none).get(usize::from(place))?;
        Some(place.get_or_init(|| Box::new(new())))
    }

    /// Returns the executors that this client has used.
    pub(crate) fn executors(&self) -> impl Iterator<Item = &Executor> {
        let more = self.more.get().into_iter().flatten();
        self.first.get().into_iter().chain(more.filter_map(OnceLock::get).map(Box::as_ref))
    }

    /// Sends one request to the node itself. Unlike all others it is sent once: a caller that asks
    /// for a node's health wants to know that it is down.
    pub(crate) fn admin<Q: Serialize, R: DeserializeOwned>(&self, request: &Q) -> Result<R, Errno> {
        self.admin_within(self.way.patience(), request)
    }

    /// As [`Peer::admin`]; no single wait is longer than `patience`.
    pub(crate) fn admin_within<Q: Serialize, R: DeserializeOwned>(
        &self,
        patience: Duration,
        request: &Q,
    ) -> Result<R, Errno> {
        let retry = Retry::new(patience);
        let idle = self.admin.lock().pop();
        if let Some(mut connection) = idle {
            connection.set_patience(patience);
            // The daemon may have been restarted since: then a fresh connection is tried.
            match connection.call(Class::Admin, 0, request) {
                Ok(reply) => return Ok(self.keep_admin(connection, reply)),
                Err(e) if is_timeout(&e) => return Err(self.gave_up(&retry)),
                Err(_) => {}
            }
        }
        let connected = self.way.connect_within(retry.time_left(), 0, Role::Admin, 0);
        let mut connection = connected.map_err(|e| match e.may_pass() {
            _ if e.lacks_descriptors() => Errno::ENFILE,
            true if e.is_timeout() => self.gave_up(&retry),
            true => Errno::EHOSTDOWN,
            false => self.refused(&e),
        })?;
        match connection.call(Class::Admin, 0, request) {
            Ok(reply) => Ok(self.keep_admin(connection, reply)),
            Err(e) => {
                self.log_broken("question", &e);
                Err(if is_timeout(&e) { self.gave_up(&retry) } else { Errno::EHOSTDOWN })
            }
        }
    }

    fn keep_admin<R>(&self, connection: Connection, reply: R) -> R {
        self.way.answered();
        self.admin.lock().push(connection);
        reply
    }

    /// Runs `attempt` on a data connection until one attempt gets a reply. Only for requests that
    /// may take effect twice.
    ///
    /// # Errors
    /// The error that `attempt` returned, or `EHOSTDOWN`.
    pub(crate) fn data<R>(
        &self,
        mut attempt: impl FnMut(&mut Connection) -> Result<R, FrameError>,
    ) -> Result<R, Errno> {
        let mut retry = Retry::new(self.way.patience());
        loop {
            match self.take_data(retry.time_left()) {
                Ok(mut connection) => match attempt(&mut connection) {
                    Ok(reply) => {
                        self.return_data(connection);
                        retry.end();
                        return Ok(reply);
                    }
                    Err(e) => self.log_broken("data request", &e),
                },
                Err(e) if e.lacks_descriptors() => return Err(Errno::ENFILE),
                Err(e) if !e.may_pass() => return Err(self.refused(&e)),
                Err(e) => tracing::debug!(node = self.node.0, error = %e, "daemon away"),
            }
            if !retry.pause() {
                return Err(self.gave_up(&retry));
            }
        }
    }

    /// Takes a data connection for the caller alone. No single wait on it is longer than
    /// `patience`.
    pub(crate) fn take_data(&self, patience: Duration) -> Result<Connection, ConnectError> {
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
    pub(crate) fn return_data(&self, connection: Connection) {
        self.way.answered();
        let mut idle = self.data.lock();
        if idle.len() < IDLE_DATA_MAX {
            idle.push(connection);
        }
    }

    pub(crate) fn patience(&self) -> Duration {
        self.way.patience()
    }

    pub(crate) fn gave_up(&self, retry: &Retry) -> Errno {
        self.way.gave_up(&self.node, retry)
    }

    fn refused(&self, e: &ConnectError) -> Errno {
        self.way.refused(&self.node, e)
    }

    /// Opens a data connection in the name of another client of the same user.
    pub(crate) fn connect_as(&self, client: ClientId) -> Result<Connection, ConnectError> {
        let Way { endpoint, caller, .. } = &*self.way;
        let caller = Caller { client, ..caller.clone() };
        Connection::open_to(endpoint, 0, &caller, Role::Data, 0, self.way.patience())
    }

    fn log_broken(&self, what: &str, e: &FrameError) {
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
        let caller = Caller { client: ClientId([7; 16]), volume: None, key: None };
        let peer = Peer::new(NodeId(3), endpoint, caller, Duration::ZERO);
        let met = || peer.executors().map(|executor| executor.id.to_string()).collect::<Vec<_>>();
        assert!(met().is_empty());
        let first: *const Executor = peer.executor(0).expect("every node has it");
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
