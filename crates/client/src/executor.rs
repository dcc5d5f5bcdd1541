//! One executor of a node, as a client reaches it: its metadata connections, and the delegations
//! and locks that it has granted.

use crate::awaited_node::WaitReason;
use crate::connection::{ConnectError, Connection};
use crate::delegations::DelegationCache;
use crate::lock_session::LockSession;
use crate::retry::Retry;
use crate::route::NodeRoute;
use crate::waiting::GRACE;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::time::Duration;
use tatami_wire::delegation::DelegationGrant;
use tatami_wire::frame::{FrameClass, FrameError};
use tatami_wire::handshake::{Role, SLOTS_MAX};
use tatami_wire::meta::{MetaCall, MetaReply, MetaResult};
use tatami_wire::{Errno, ExecutorId};

/// A metadata connection with its slot in the executor's table of replies (NFSv4.1 sessions).
struct SessionSlot {
    number: u32,
    /// Sequence number of the next request.
    next: u64,
    /// Boxed, because the slot moves with every request.
    connection: Option<Box<Connection>>,
}

impl SessionSlot {
    /// Returns the slot's connection; `connect` makes one if there is none.
    fn ensure_connection(
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
pub(crate) struct PendingCall {
    slot: SessionSlot,
    seq: u64,
    sent: bool,
}

#[derive(Default)]
struct SessionSlots {
    idle: Vec<SessionSlot>,
    made: u32,
}

/// An executor and the connections to it.
pub(crate) struct ExecutorClient {
    pub(crate) id: ExecutorId,
    /// The route to the executor's node.
    way: Arc<NodeRoute>,
    slots: Mutex<SessionSlots>,
    slot_freed: Condvar,
    /// The metadata that its shards have delegated to this client.
    pub(crate) delegations: DelegationCache,
    /// The lock session with the executor.
    pub(crate) locks: LockSession,
}

impl ExecutorClient {
    /// Returns the executor with that number on the node of the route.
    pub(crate) fn new(way: Arc<NodeRoute>, index: u8) -> ExecutorClient {
        ExecutorClient {
            id: ExecutorId { node: way.node, index },
            way,
            slots: Mutex::default(),
            slot_freed: Condvar::new(),
            delegations: DelegationCache::default(),
            locks: LockSession::default(),
        }
    }

    /// Sends one metadata request, repeated under the same sequence number until a reply comes.
    /// Returns the reply, and the delegations that came with it.
    ///
    /// # Errors
    /// `EHOSTDOWN` when the daemon stays away for longer than the operation timeout.
    pub(crate) fn send_meta(
        &self,
        call: &MetaCall,
    ) -> Result<(MetaResult, Option<DelegationGrant>), Errno> {
        let (slot, seq) = self.next_slot();
        self.finish_call(PendingCall { slot, seq, sent: false }, call)
    }

    /// Closes the connections that no request uses.
    pub(crate) fn close_idle_connections(&self) {
        self.slots.lock().idle.iter_mut().for_each(|slot| slot.connection = None);
    }

    fn next_slot(&self) -> (SessionSlot, u64) {
        let mut slot = self.acquire_slot();
        let seq = slot.next;
        slot.next += 1;
        (slot, seq)
    }

    /// Begins a metadata request, so that others can begin before its reply. The caller must end
    /// it. Threads that begin several requests must do so in the same order: each holds a slot
    /// while it takes the next one, so another order could deadlock.
    pub(crate) fn begin_call(&self, call: &MetaCall) -> PendingCall {
        let (mut slot, seq) = self.next_slot();
        // A silent node must not delay the requests to the other nodes: it gets little time here,
        // and the rest in `Executor::finish_call`.
        let sent =
            match slot.ensure_connection(|number| self.connect_within(GRACE, Role::Meta, number)) {
                Ok(connection) => match connection.send(FrameClass::Meta, seq, call, &[]) {
                    Ok(()) => true,
                    Err(e) => {
                        slot.connection = None;
                        self.log_broken_request(&e);
                        false
                    }
                },
                // `Executor::finish_call` tries again, with the full timeout.
                Err(_) => false,
            };
        PendingCall { slot, seq, sent }
    }

    /// Waits for the reply to a request that was begun, as [`ExecutorClient::send_meta`].
    ///
    /// # Errors
    /// As [`ExecutorClient::send_meta`].
    pub(crate) fn finish_call(
        &self,
        begun: PendingCall,
        call: &MetaCall,
    ) -> Result<(MetaResult, Option<DelegationGrant>), Errno> {
        self.finish_call_within(self.way.timeout(), begun, call)
    }

    /// As [`ExecutorClient::finish_call`], with another timeout.
    ///
    /// # Errors
    /// As [`ExecutorClient::send_meta`].
    pub(crate) fn finish_call_within(
        &self,
        patience: Duration,
        begun: PendingCall,
        call: &MetaCall,
    ) -> Result<(MetaResult, Option<DelegationGrant>), Errno> {
        let PendingCall { mut slot, seq, mut sent } = begun;
        let mut retry = Retry::new(patience);
        let result = loop {
            let mut reason = WaitReason::Down;
            let left = retry.time_left();
            match slot.ensure_connection(|number| self.connect_within(left, Role::Meta, number)) {
                // `sent` holds for the first attempt only: on any later connection the request is
                // sent again, under the same number.
                Ok(connection) => {
                    match send_and_receive(connection, left, seq, call, std::mem::take(&mut sent)) {
                        // Other executors are away, and nothing was done. The executor stores no
                        // reply for this number, so the request is repeated.
                        Ok((Ok(MetaReply::TryLater), _)) => {
                            // The node itself is there. The wait goes on, so it is not reported as
                            // ended.
                            self.way.clear_away();
                            reason = WaitReason::NeedsOthers;
                        }
                        Ok(answer) => {
                            self.way.mark_reachable();
                            retry.record_answer();
                            break Ok(answer);
                        }
                        Err(e) => {
                            // The request may have taken effect. The slot and its number stay, so
                            // that the executor recognizes the repetition and returns the stored
                            // reply.
                            slot.connection = None;
                            self.log_broken_request(&e);
                        }
                    }
                }
                Err(e) if e.lacks_descriptors() => break Err(Errno::ENFILE),
                Err(e) if !e.is_transient() => break Err(self.way.report_refusal(&self.id, &e)),
                Err(e) => tracing::debug!(executor = %self.id, error = %e, "daemon away"),
            }
            if !retry.pause_for(&self.way.awaited, reason) {
                break Err(self.way.report_timeout(&self.id, &retry));
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

    fn log_broken_request(&self, e: &FrameError) {
        tracing::warn!(executor = %self.id, error = %e, "metadata request broken off; trying again");
    }

    fn acquire_slot(&self) -> SessionSlot {
        let mut slots = self.slots.lock();
        loop {
            if let Some(slot) = slots.idle.pop() {
                return slot;
            }
            if slots.made < SLOTS_MAX {
                // A new slot, up to the number that an executor keeps replies for.
                let number = slots.made;
                slots.made += 1;
                return SessionSlot { number, next: 1, connection: None };
            }
            self.slot_freed.wait(&mut slots);
        }
    }
}

fn send_and_receive(
    connection: &mut Connection,
    patience: Duration,
    seq: u64,
    call: &MetaCall,
    sent: bool,
) -> Result<(MetaResult, Option<DelegationGrant>), FrameError> {
    connection.set_patience(patience);
    if !sent {
        connection.send(FrameClass::Meta, seq, call, &[])?;
    }
    // All read bytes stay in the buffer of the connection: the payload is small, and decoded at
    // once.
    let (reply, payload) =
        connection.receive_borrowed(FrameClass::Meta, seq, DelegationGrant::LEN_MAX)?;
    let granted = (!payload.is_empty()).then(|| DelegationGrant::decode(payload)).transpose()?;
    Ok((reply, granted))
}
