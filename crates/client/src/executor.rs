//! One executor of a node, as a client reaches it: its metadata connections, and the delegations
//! and locks that it has granted.

use crate::connection::{ConnectError, Connection};
use crate::delegations::Delegations;
use crate::locks::LockSession;
use crate::peer::{Retry, Way};
use crate::waiting::GRACE;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::time::Duration;
use tatami_wire::delegation::Granted;
use tatami_wire::frame::{Class, FrameError};
use tatami_wire::handshake::{Role, SLOTS_MAX};
use tatami_wire::meta::{MetaCall, MetaReply, MetaResult};
use tatami_wire::{Errno, ExecutorId};

/// A metadata connection with its slot in the executor's table of replies (NFSv4.1 sessions).
struct Slot {
    number: u32,
    /// Sequence number of the next request.
    next: u64,
    /// Boxed, because the slot moves with every request.
    connection: Option<Box<Connection>>,
}

impl Slot {
    /// Returns the slot's connection; `connect` makes one if there is none.
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

/// A metadata request in flight, if it could be sent.
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

/// An executor and the connections to it.
pub(crate) struct Executor {
    pub(crate) id: ExecutorId,
    /// The route to the executor's node.
    way: Arc<Way>,
    slots: Mutex<Slots>,
    slot_freed: Condvar,
    /// The metadata that its shards have delegated to this client.
    pub(crate) delegations: Delegations,
    /// The lock session with the executor.
    pub(crate) locks: LockSession,
}

impl Executor {
    /// Returns the executor with that number on the node of the route.
    pub(crate) fn new(way: Arc<Way>, index: u8) -> Executor {
        Executor {
            id: ExecutorId { node: way.node, index },
            way,
            slots: Mutex::default(),
            slot_freed: Condvar::new(),
            delegations: Delegations::default(),
            locks: LockSession::default(),
        }
    }

    /// Sends one metadata request, repeated under the same sequence number until a reply comes.
    /// Returns the reply, and the delegations that came with it.
    ///
    /// # Errors
    /// `EHOSTDOWN` when the daemon stays away for longer than the operation timeout.
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

    /// Begins a metadata request, so that others can begin before its reply. The caller must end
    /// it. Threads that begin several requests must do so in the same order: each holds a slot
    /// while it takes the next one, so another order could deadlock.
    pub(crate) fn begin(&self, call: &MetaCall) -> Begun {
        let (mut slot, seq) = self.next_slot();
        // A silent node must not delay the requests to the other nodes: it gets little time here,
        // and the rest in `Executor::end`.
        let sent = match slot.connection(|number| self.connect_within(GRACE, Role::Meta, number)) {
            Ok(connection) => match connection.send(Class::Meta, seq, call, &[]) {
                Ok(()) => true,
                Err(e) => {
                    slot.connection = None;
                    self.log_broken(&e);
                    false
                }
            },
            // `Executor::end` tries again, with the full timeout.
            Err(_) => false,
        };
        Begun { slot, seq, sent }
    }

    /// Waits for the reply to a request that was begun, as [`Executor::meta`].
    ///
    /// # Errors
    /// As [`Executor::meta`].
    pub(crate) fn end(
        &self,
        begun: Begun,
        call: &MetaCall,
    ) -> Result<(MetaResult, Option<Granted>), Errno> {
        self.end_within(self.way.patience(), begun, call)
    }

    /// As [`Executor::end`], with another timeout.
    ///
    /// # Errors
    /// As [`Executor::meta`].
    pub(crate) fn end_within(
        &self,
        patience: Duration,
        begun: Begun,
        call: &MetaCall,
    ) -> Result<(MetaResult, Option<Granted>), Errno> {
        let Begun { mut slot, seq, mut sent } = begun;
        let mut retry = Retry::new(patience);
        let result = loop {
            let left = retry.time_left();
            match slot.connection(|number| self.connect_within(left, Role::Meta, number)) {
                // `sent` holds for the first attempt only: on any later connection the request is
                // sent again, under the same number.
                Ok(connection) => match ask(connection, left, seq, call, std::mem::take(&mut sent))
                {
                    // Other executors are away, and nothing was done. The executor stores no reply
                    // for this number, so the request is repeated.
                    Ok((Ok(MetaReply::Later), _)) => self.way.answered(),
                    Ok(answer) => {
                        self.way.answered();
                        retry.end();
                        break Ok(answer);
                    }
                    Err(e) => {
                        // The request may have taken effect. The slot and its number stay, so that
                        // the executor recognizes the repetition and returns the stored reply.
                        slot.connection = None;
                        self.log_broken(&e);
                    }
                },
                Err(e) if e.lacks_descriptors() => break Err(Errno::ENFILE),
                Err(e) if !e.may_pass() => break Err(self.way.refused(&self.id, &e)),
                Err(e) => tracing::debug!(executor = %self.id, error = %e, "daemon away"),
            }
            if !retry.pause() {
                break Err(self.way.gave_up(&self.id, &retry));
            }
        };
        // The slot goes back only now: until its request has ended, its number must not be used for
        // another.
        self.slots.lock().idle.push(slot);
        self.slot_freed.notify_one();
        result
    }

    /// Opens the connection over which the executor recalls delegations.
    pub(crate) fn connect_recalls(&self) -> Result<Connection, ConnectError> {
        self.connect(Role::Recall, 0)
    }

    fn connect(&self, role: Role, slot: u32) -> Result<Connection, ConnectError> {
        self.way.connect(self.id.index, role, slot)
    }

    fn connect_within(
        &self,
        patience: Duration,
        role: Role,
        slot: u32,
    ) -> Result<Connection, ConnectError> {
        self.way.connect_within(patience, self.id.index, role, slot)
    }

    fn log_broken(&self, e: &FrameError) {
        tracing::warn!(executor = %self.id, error = %e, "metadata request broken off; trying again");
    }

    fn take_slot(&self) -> Slot {
        let mut slots = self.slots.lock();
        loop {
            if let Some(slot) = slots.idle.pop() {
                return slot;
            }
            if slots.made < SLOTS_MAX {
                // A new slot, up to the number that an executor keeps replies for.
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
    patience: Duration,
    seq: u64,
    call: &MetaCall,
    sent: bool,
) -> Result<(MetaResult, Option<Granted>), FrameError> {
    connection.set_patience(patience);
    if !sent {
        connection.send(Class::Meta, seq, call, &[])?;
    }
    // All read bytes stay in the buffer of the connection: the payload is small, and decoded at
    // once.
    let (reply, payload) = connection.receive_along(Class::Meta, seq, Granted::LEN_MAX)?;
    let granted = (!payload.is_empty()).then(|| Granted::decode(payload)).transpose()?;
    Ok((reply, granted))
}
