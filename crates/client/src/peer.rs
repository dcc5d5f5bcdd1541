//! One node, as a client reaches it: pools of connections, its executors, and
//! patience while its daemon is away.

use crate::connection::{Caller, ConnectError, Connection, Endpoint};
use crate::executor::Executor;
use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tatami_wire::frame::{Class, FrameError};
use tatami_wire::handshake::Role;
use tatami_wire::{EXECUTORS_MAX, Errno, NodeId};

/// First and longest pause between attempts to reach a daemon that is away.
const PAUSE_FIRST: Duration = Duration::from_millis(2);
const PAUSE_LONGEST: Duration = Duration::from_millis(250);
/// Idle connections for bytes that are kept for the next use.
const IDLE_DATA_MAX: usize = 64;

/// What whoever gives up is told.
pub(crate) const AWAY: &str =
    "the daemon did not come back; start it with `tatami up` or `tatami node start`";

/// How a node is reached.
pub(crate) struct Way {
    pub(crate) node: NodeId,
    pub(crate) endpoint: Endpoint,
    caller: Caller,
    pub(crate) patience: Duration,
}

impl Way {
    /// A new connection; `executor` is 0 where none is meant.
    pub(crate) fn connect(
        &self,
        executor: u8,
        role: Role,
        slot: u32,
    ) -> Result<Connection, ConnectError> {
        Connection::open_to(&self.endpoint, executor, &self.caller, role, slot, self.patience)
    }
}

/// A node and the connections to it.
pub(crate) struct Peer {
    pub(crate) node: NodeId,
    way: Arc<Way>,
    data: Mutex<Vec<Connection>>,
    admin: Mutex<Vec<Connection>>,
    /// Most nodes that serve shards do so with this one alone; many serve none.
    first: OnceLock<Executor>,
    /// The others, by number less one, as they are met.
    more: OnceLock<Others>,
}

type Others = Box<[OnceLock<Box<Executor>>]>;

/// Keeps trying until a deadline, with growing pauses.
pub(crate) struct Retry {
    /// By [`moment`].
    deadline: Duration,
    pause: Duration,
}

/// The time on a clock that is some milliseconds behind and costs next to nothing: every request asks, and
/// hardly any ever needs it.
fn moment() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec as u32)
}

impl Retry {
    pub(crate) fn new(patience: Duration) -> Retry {
        Retry { deadline: moment().saturating_add(patience), pause: PAUSE_FIRST }
    }

    /// Waits a little; false when the time is over.
    pub(crate) fn pause(&mut self) -> bool {
        let left = self.deadline.saturating_sub(moment());
        if left.is_zero() {
            return false;
        }
        #[allow(clippy::disallowed_methods)] // a daemon that is down sends no event
        std::thread::sleep(self.pause.min(left));
        self.pause = (self.pause * 2).min(PAUSE_LONGEST);
        true
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
            way: Arc::new(Way { node, endpoint, caller, patience }),
            data: Mutex::default(),
            admin: Mutex::default(),
            first: OnceLock::new(),
            more: OnceLock::new(),
        }
    }

    /// The executor of that number; `None` where no node has so many.
    pub(crate) fn executor(&self, index: u8) -> Option<&Executor> {
        let new = || Executor::new(self.way.clone(), index);
        let Some(place) = index.checked_sub(1) else { return Some(self.first.get_or_init(new)) };
        let none = || (1..EXECUTORS_MAX).map(|_| OnceLock::new()).collect();
        let place = self.more.get_or_init(none).get(usize::from(place))?;
        Some(place.get_or_init(|| Box::new(new())))
    }

    /// The executors that we have met.
    pub(crate) fn executors(&self) -> impl Iterator<Item = &Executor> {
        let more = self.more.get().into_iter().flatten();
        self.first.get().into_iter().chain(more.filter_map(OnceLock::get).map(Box::as_ref))
    }

    /// One question to the node itself. Unlike all others it is asked once:
    /// whoever asks for a node's health wants to hear that it is down.
    pub(crate) fn admin<Q: Serialize, R: DeserializeOwned>(&self, request: &Q) -> Result<R, Errno> {
        let idle = self.admin.lock().pop();
        if let Some(mut connection) = idle {
            // The daemon may have been restarted since: then try a fresh one.
            if let Ok(reply) = connection.call(Class::Admin, 0, request) {
                self.admin.lock().push(connection);
                return Ok(reply);
            }
        }
        let mut connection = self.connect(Role::Admin).map_err(|e| match e.may_pass() {
            _ if e.lacks_descriptors() => Errno::ENFILE,
            true => Errno::EHOSTDOWN,
            false => self.refused(&e),
        })?;
        match connection.call(Class::Admin, 0, request) {
            Ok(reply) => {
                self.admin.lock().push(connection);
                Ok(reply)
            }
            Err(e) => {
                self.log_broken("question", &e);
                Err(Errno::EHOSTDOWN)
            }
        }
    }

    /// Runs `attempt` on a data connection until one attempt gets through.
    /// Only for requests that may take effect twice.
    ///
    /// # Errors
    /// What `attempt` returned, or `EHOSTDOWN`.
    pub(crate) fn data<R>(
        &self,
        mut attempt: impl FnMut(&mut Connection) -> Result<R, FrameError>,
    ) -> Result<R, Errno> {
        let mut retry = Retry::new(self.way.patience);
        loop {
            match self.take_data() {
                Ok(mut connection) => match attempt(&mut connection) {
                    Ok(reply) => {
                        self.return_data(connection);
                        return Ok(reply);
                    }
                    Err(e) => self.log_broken("data request", &e),
                },
                Err(e) if e.lacks_descriptors() => return Err(Errno::ENFILE),
                Err(e) if !e.may_pass() => return Err(self.refused(&e)),
                Err(e) => tracing::debug!(node = self.node.0, error = %e, "daemon away"),
            }
            if !retry.pause() {
                return Err(self.gave_up());
            }
        }
    }

    /// A data connection for the caller alone.
    pub(crate) fn take_data(&self) -> Result<Connection, ConnectError> {
        match self.data.lock().pop() {
            Some(connection) => Ok(connection),
            None => self.connect(Role::Data),
        }
    }

    /// Gives back a connection on which nothing is under way.
    pub(crate) fn return_data(&self, connection: Connection) {
        let mut idle = self.data.lock();
        if idle.len() < IDLE_DATA_MAX {
            idle.push(connection);
        }
    }

    pub(crate) fn patience(&self) -> Duration {
        self.way.patience
    }

    pub(crate) fn gave_up(&self) -> Errno {
        tracing::error!(
            node = self.node.0,
            endpoint = %self.way.endpoint,
            seconds = self.way.patience.as_secs_f64(),
            "{AWAY}"
        );
        Errno::EHOSTDOWN
    }

    fn refused(&self, e: &ConnectError) -> Errno {
        tracing::error!(node = self.node.0, error = %e, "connection refused for good");
        e.errno()
    }

    fn log_broken(&self, what: &str, e: &FrameError) {
        tracing::warn!(node = self.node.0, error = %e, "{what} broken off; trying again");
    }

    fn connect(&self, role: Role) -> Result<Connection, ConnectError> {
        self.way.connect(0, role, 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tatami_wire::ClientId;

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
