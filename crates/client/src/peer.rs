//! One node, as a client reaches it: pools of connections, and patience while
//! its daemon is away.

use crate::connection::{Caller, ConnectError, Connection, Endpoint};
use crate::delegations::Delegations;
use crate::locks::LockSession;
use parking_lot::{Condvar, Mutex};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::time::Duration;
use tatami_wire::delegation::Granted;
use tatami_wire::frame::{Class, FrameError};
use tatami_wire::handshake::{Role, SLOTS_MAX};
use tatami_wire::meta::{MetaCall, MetaReply, MetaResult};
use tatami_wire::{Errno, NodeId};

/// First and longest pause between attempts to reach a daemon that is away.
const PAUSE_FIRST: Duration = Duration::from_millis(2);
const PAUSE_LONGEST: Duration = Duration::from_millis(250);
/// Idle connections for bytes that are kept for the next use.
const IDLE_DATA_MAX: usize = 64;

/// A metadata connection with its place in the daemon's table of answers.
struct Slot {
    number: u32,
    /// Sequence number of the next request.
    next: u64,
    /// Boxed: the slot moves with every request.
    connection: Option<Box<Connection>>,
}

impl Slot {
    /// Its connection, which `connect` makes if there is none.
    fn connection(
        &mut self,
        connect: impl FnOnce(u32) -> Result<Connection, ConnectError>,
    ) -> Result<&mut Connection, ConnectError> {
        Ok(match &mut self.connection {
            Some(connection) => connection,
            none => none.insert(Box::new(connect(self.number)?)),
        })
    }
}

/// A metadata request that is under way, if it could be sent.
pub(crate) struct Begun {
    slot: Slot,
    seq: u64,
    sent: bool,
}

#[derive(Default)]
struct Slots {
    idle: Vec<Slot>,
    made: u32,
}

/// A node and the connections to it.
pub(crate) struct Peer {
    pub(crate) node: NodeId,
    pub(crate) endpoint: Endpoint,
    caller: Caller,
    patience: Duration,
    slots: Mutex<Slots>,
    slot_freed: Condvar,
    data: Mutex<Vec<Connection>>,
    admin: Mutex<Vec<Connection>>,
    /// What the shards of this node have delegated to us.
    pub(crate) delegations: Delegations,
    /// What locks we hold there.
    pub(crate) locks: LockSession,
}

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
            endpoint,
            caller,
            patience,
            slots: Mutex::default(),
            slot_freed: Condvar::new(),
            data: Mutex::default(),
            admin: Mutex::default(),
            delegations: Delegations::default(),
            locks: LockSession::default(),
        }
    }

    /// One metadata request, repeated under the same sequence number until it
    /// is answered, and what was granted with the answer.
    ///
    /// # Errors
    /// `EHOSTDOWN` when the daemon stays away for longer than our patience.
    pub(crate) fn meta(&self, call: &MetaCall) -> Result<(MetaResult, Option<Granted>), Errno> {
        let (slot, seq) = self.next_slot();
        self.end(Begun { slot, seq, sent: false }, call)
    }

    fn next_slot(&self) -> (Slot, u64) {
        let mut slot = self.take_slot();
        let seq = slot.next;
        slot.next += 1;
        (slot, seq)
    }

    /// Begins a metadata request, so that others may be begun before it is answered. It must be
    /// ended. Threads that begin several must do so in the same order.
    pub(crate) fn begin(&self, call: &MetaCall) -> Begun {
        let (mut slot, seq) = self.next_slot();
        let sent = match slot.connection(|number| self.connect(Role::Meta, number)) {
            Ok(connection) => match connection.send(Class::Meta, seq, call, &[]) {
                Ok(()) => true,
                Err(e) => {
                    slot.connection = None;
                    self.log_broken("metadata request", &e);
                    false
                }
            },
            // It is tried again, with patience.
            Err(_) => false,
        };
        Begun { slot, seq, sent }
    }

    /// The answer to a request that was begun, as [`Peer::meta`].
    ///
    /// # Errors
    /// As [`Peer::meta`].
    pub(crate) fn end(
        &self,
        begun: Begun,
        call: &MetaCall,
    ) -> Result<(MetaResult, Option<Granted>), Errno> {
        self.end_within(self.patience, begun, call)
    }

    /// As [`Peer::end`], with another patience.
    ///
    /// # Errors
    /// As [`Peer::meta`].
    pub(crate) fn end_within(
        &self,
        patience: Duration,
        begun: Begun,
        call: &MetaCall,
    ) -> Result<(MetaResult, Option<Granted>), Errno> {
        let Begun { mut slot, seq, mut sent } = begun;
        let mut retry = Retry::new(patience);
        let result = loop {
            match slot.connection(|number| self.connect(Role::Meta, number)) {
                Ok(connection) => match ask(connection, seq, call, std::mem::take(&mut sent)) {
                    // Other nodes are away; nothing was done.
                    Ok((Ok(MetaReply::Later), _)) => {}
                    Ok(answer) => break Ok(answer),
                    Err(e) => {
                        slot.connection = None;
                        self.log_broken("metadata request", &e);
                    }
                },
                Err(e) if !e.may_pass() => break Err(self.refused(&e)),
                Err(e) => tracing::debug!(node = self.node.0, error = %e, "daemon away"),
            }
            if !retry.pause() {
                break Err(self.gave_up());
            }
        };
        self.slots.lock().idle.push(slot);
        self.slot_freed.notify_one();
        result
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
        let mut connection = self
            .connect(Role::Admin, 0)
            .map_err(|e| if e.may_pass() { Errno::EHOSTDOWN } else { self.refused(&e) })?;
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
        let mut retry = Retry::new(self.patience);
        loop {
            match self.take_data() {
                Ok(mut connection) => match attempt(&mut connection) {
                    Ok(reply) => {
                        self.return_data(connection);
                        return Ok(reply);
                    }
                    Err(e) => self.log_broken("data request", &e),
                },
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
            None => self.connect(Role::Data, 0),
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
        self.patience
    }

    pub(crate) fn gave_up(&self) -> Errno {
        tracing::error!(
            node = self.node.0,
            endpoint = %self.endpoint,
            seconds = self.patience.as_secs_f64(),
            "the daemon did not come back; start it with `tatami up` or `tatami node start`"
        );
        Errno::EHOSTDOWN
    }

    fn refused(&self, e: &ConnectError) -> Errno {
        tracing::error!(node = self.node.0, error = %e, "connection refused for good");
        Errno::EPROTO
    }

    fn log_broken(&self, what: &str, e: &FrameError) {
        tracing::warn!(node = self.node.0, error = %e, "{what} broken off; trying again");
    }

    /// The connection over which the node asks for what it has delegated.
    pub(crate) fn connect_recalls(&self) -> Result<Connection, ConnectError> {
        self.connect(Role::Recall, 0)
    }

    fn connect(&self, role: Role, slot: u32) -> Result<Connection, ConnectError> {
        Connection::open(&self.endpoint, &self.caller, role, slot, self.patience)
    }

    fn take_slot(&self) -> Slot {
        let mut slots = self.slots.lock();
        loop {
            if let Some(slot) = slots.idle.pop() {
                return slot;
            }
            if slots.made < SLOTS_MAX {
                let number = slots.made;
                slots.made += 1;
                return Slot { number, next: 1, connection: None };
            }
            self.slot_freed.wait(&mut slots);
        }
    }
}

fn ask(
    connection: &mut Connection,
    seq: u64,
    call: &MetaCall,
    sent: bool,
) -> Result<(MetaResult, Option<Granted>), FrameError> {
    if !sent {
        connection.send(Class::Meta, seq, call, &[])?;
    }
    let (reply, payload) = connection.receive_along(Class::Meta, seq, Granted::LEN_MAX)?;
    let granted = (!payload.is_empty()).then(|| Granted::decode(payload)).transpose()?;
    Ok((reply, granted))
}
