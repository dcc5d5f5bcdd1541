//! Connections to other executors, on this node and on others: one with each, made at the first
//! message. Both sides send over it, so that answers also acknowledge, in TCP, the messages they
//! answer. If both sides have made one, they agree on that of the lesser executor.
//!
//! A message that cannot be sent is dropped: transactions repeat it until it is answered.

use crate::context::NodeContext;
use crate::cpu_follower;
use crate::dial::{self, DialError};
use crate::executor::handle::ExecutorHandle;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tatami_net::{NetStream, make_random_id};
use tatami_wire::handshake::{Hello, Role};
use tatami_wire::transaction::PeerMessage;
use tatami_wire::{ClientId, ExecutorId, ProtocolRange};

/// First pause, and the longest one, before the next try to connect to an executor that refused.
const RETRY_PAUSE: Duration = Duration::from_millis(10);
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(1);
/// Most messages that wait for a connection to be made.
const WAITING_MAX: usize = 1024;

enum Link {
    /// There is no connection, and none is made before that time.
    Down { not_before: Instant, pause: Duration },
    /// A thread makes a connection.
    Dialing { pause: Duration, waiting: Vec<PeerMessage> },
    /// The executor's index of the connection, and whether it was made here.
    Up { at: usize, ours: bool },
}

/// See the module.
pub(crate) struct Links {
    shared: Arc<NodeContext>,
    executor: ExecutorHandle,
    table: LinkTable,
}

impl Links {
    pub(crate) fn new(
        shared: Arc<NodeContext>,
        here: ExecutorId,
        executor: ExecutorHandle,
    ) -> Links {
        Links { shared, executor, table: LinkTable { here, links: BTreeMap::new() } }
    }

    /// Returns the connection over which the message must be sent now; `None` if the message waits
    /// for one, or is dropped.
    pub(crate) fn route_message(
        &mut self,
        to: ExecutorId,
        message: PeerMessage,
    ) -> Option<(usize, PeerMessage)> {
        let here = self.table.here;
        let never = Link::Down { not_before: Instant::now(), pause: RETRY_PAUSE };
        let link = self.table.links.entry(to).or_insert(never);
        match link {
            Link::Up { at, .. } => return Some((*at, message)),
            Link::Dialing { waiting, .. } if waiting.len() < WAITING_MAX => waiting.push(message),
            Link::Dialing { .. } => {}
            // One message triggers one try: the pause keeps an absent node from being called for
            // each message.
            Link::Down { not_before, pause } if *not_before <= Instant::now() => {
                let pause = *pause;
                *link = match start_dialing(&self.shared, here, &self.executor, to) {
                    true => Link::Dialing { pause, waiting: vec![message] },
                    false => down_link(pause),
                };
            }
            Link::Down { .. } => {}
        }
        None
    }

    /// Records a connection that was made here. Returns the messages that must be sent over it
    /// first; `None` if the connection is not needed.
    pub(crate) fn add_own_link(&mut self, to: ExecutorId, at: usize) -> Option<Vec<PeerMessage>> {
        self.table.add_own_link(to, at)
    }

    /// Records a connection that the other executor has made. Returns the messages that must be
    /// sent over it.
    pub(crate) fn add_accepted_link(&mut self, from: ExecutorId, at: usize) -> Vec<PeerMessage> {
        self.table.add_accepted_link(from, at)
    }

    /// Records that no connection could be made.
    pub(crate) fn record_failure(&mut self, to: ExecutorId) {
        if let Some(link @ Link::Dialing { .. }) = self.table.links.get_mut(&to)
            && let Link::Dialing { pause, .. } = *link
        {
            // The waiting messages go with it: their transactions repeat them.
            *link = down_link(pause);
        }
    }

    /// Records that a connection has ended.
    pub(crate) fn remove_link(&mut self, other: ExecutorId, at: usize) {
        self.table.remove_link(other, at);
    }
}

/// The connection in use with each executor.
struct LinkTable {
    here: ExecutorId,
    links: BTreeMap<ExecutorId, Link>,
}

impl LinkTable {
    fn add_own_link(&mut self, to: ExecutorId, at: usize) -> Option<Vec<PeerMessage>> {
        match self.links.get(&to) {
            // Both sides have called each other. Both apply the same rule, so both keep the
            // connection that the lesser executor made.
            Some(Link::Up { ours: false, .. }) if to < self.here => None,
            _ => Some(self.replace_link(to, Link::Up { at, ours: true })),
        }
    }

    fn add_accepted_link(&mut self, from: ExecutorId, at: usize) -> Vec<PeerMessage> {
        // The handshake refuses an executor that takes this one's name.
        assert_ne!(from, self.here, "an executor sends itself a message");
        match self.links.get(&from) {
            // The lesser executor keeps its own. Messages stay queued for it, so none is sent on a
            // connection that the other side is about to close.
            Some(Link::Up { ours: true, .. } | Link::Dialing { .. }) if self.here < from => {
                Vec::new()
            }
            _ => self.replace_link(from, Link::Up { at, ours: false }),
        }
    }

    fn remove_link(&mut self, other: ExecutorId, at: usize) {
        if let Some(link) = self.links.get_mut(&other)
            // A connection that was replaced ends later than its successor begins, and changes
            // nothing.
            && matches!(link, Link::Up { at: up, .. } if *up == at)
        {
            *link = Link::Down { not_before: Instant::now(), pause: RETRY_PAUSE };
        }
    }

    fn replace_link(&mut self, other: ExecutorId, link: Link) -> Vec<PeerMessage> {
        match self.links.insert(other, link) {
            Some(Link::Dialing { waiting, .. }) => {
                assert!(waiting.len() <= WAITING_MAX, "more messages wait than their bound");
                waiting
            }
            _ => Vec::new(),
        }
    }
}

fn down_link(pause: Duration) -> Link {
    let longer = (pause * 2).min(RETRY_PAUSE_MAX);
    Link::Down { not_before: Instant::now() + pause, pause: longer }
}

/// Connects to another executor on a thread of its own, which hands the result to the executor.
/// Returns whether the thread started.
fn start_dialing(
    shared: &Arc<NodeContext>,
    here: ExecutorId,
    executor: &ExecutorHandle,
    to: ExecutorId,
) -> bool {
    let (shared, executor) = (shared.clone(), executor.clone());
    let call = move || {
        let link = match connect_link(&shared, here, to) {
            Ok(stream) => Some(Arc::new(stream)),
            Err(DialError::Unreachable(why)) => {
                tracing::debug!(executor = %to, "no word to it now: {why}");
                None
            }
            Err(DialError::Refused(why) | DialError::Damaged(why)) => {
                tracing::warn!(executor = %to, "it does not listen to this one: {why}");
                None
            }
        };
        executor.hand_over_link(to, link);
    };
    let spawned = cpu_follower::spawn_unbound("link", call);
    if let Err(e) = &spawned {
        tracing::error!(error = %e, "cannot start a thread for a connection to another node");
    }
    spawned.is_ok()
}

fn connect_link(
    shared: &NodeContext,
    here: ExecutorId,
    to: ExecutorId,
) -> Result<NetStream, DialError> {
    let away = |e: &dyn std::fmt::Display| DialError::Unreachable(e.to_string());
    // A new id for each connection: it names no client, so no session depends on it.
    let id = make_random_id().map_err(|e| away(&e))?;
    let hello = Hello {
        protocol: ProtocolRange::of_process(),
        role: Role::Peer,
        client: ClientId(id),
        slot: here.into(),
        volume: Some(shared.settings.identity.volume),
        node: None,
        executor: to.index,
        user: None,
    };
    let (stream, _) = dial::connect_node(shared, &hello, to.node)?;
    // Only after the handshake, which blocks with a deadline.
    stream.set_nonblocking().map_err(|e| away(&e))?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tatami_wire::NodeId;

    const LESSER: ExecutorId = ExecutorId { node: NodeId(3), index: 0 };
    const GREATER: ExecutorId = ExecutorId { node: NodeId(3), index: 1 };
    /// Connections, by the executor that made them.
    const OF_LESSER: usize = 1;
    const OF_GREATER: usize = 2;

    fn dialing(here: ExecutorId, to: ExecutorId) -> LinkTable {
        let message = PeerMessage::Finished { txids: Vec::new() };
        let link = Link::Dialing { pause: RETRY_PAUSE, waiting: vec![message] };
        LinkTable { here, links: [(to, link)].into() }
    }

    fn used(table: &LinkTable) -> Option<usize> {
        match table.links.values().next() {
            Some(Link::Up { at, .. }) => Some(*at),
            _ => None,
        }
    }

    #[test]
    fn two_that_call_each_other_agree_on_one_connection() {
        for order in 0..4 {
            let (mut lesser, mut greater) = (dialing(LESSER, GREATER), dialing(GREATER, LESSER));
            let mut said = 0;
            let mut made = |table: &mut LinkTable, to, at| {
                let waiting = table.add_own_link(to, at);
                said += waiting.as_ref().map_or(0, Vec::len);
                waiting.is_some()
            };
            let (mut heard, mut kept) = (0, true);
            if order & 1 == 0 {
                assert!(made(&mut lesser, GREATER, OF_LESSER));
                heard += lesser.add_accepted_link(GREATER, OF_GREATER).len();
            } else {
                heard += lesser.add_accepted_link(GREATER, OF_GREATER).len();
                assert!(made(&mut lesser, GREATER, OF_LESSER));
            }
            if order & 2 == 0 {
                kept = made(&mut greater, LESSER, OF_GREATER);
                heard += greater.add_accepted_link(LESSER, OF_LESSER).len();
            } else {
                heard += greater.add_accepted_link(LESSER, OF_LESSER).len();
                kept = made(&mut greater, LESSER, OF_GREATER) && kept;
            }
            assert_eq!((used(&lesser), used(&greater)), (Some(OF_LESSER), Some(OF_LESSER)));
            assert_eq!((said + heard, kept), (2, order & 2 == 0), "what waited is said once");
            if !kept {
                lesser.remove_link(GREATER, OF_GREATER);
            }
            assert_eq!(used(&lesser), Some(OF_LESSER));
        }
    }

    #[test]
    fn a_connection_that_comes_is_used_and_a_newer_one_in_its_place() {
        let mut table = LinkTable { here: LESSER, links: BTreeMap::new() };
        table.add_accepted_link(GREATER, 5);
        assert_eq!(used(&table), Some(5));
        // The other executor was restarted.
        table.add_accepted_link(GREATER, 6);
        table.remove_link(GREATER, 5);
        assert_eq!(used(&table), Some(6));
        table.remove_link(GREATER, 6);
        assert_eq!(used(&table), None);
    }
}
