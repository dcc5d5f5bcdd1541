//! New connections: accepting them, the handshake, and handing them on.
//!
//! One thread accepts, and does all handshakes at once. A peer gets a thread or an executor only
//! after it has proved its identity and has got a slot.

use crate::connections::WRITE_TIMEOUT;
use crate::connections::admission::ConnectionAdmission;
use crate::connections::connection_slots::ConnectionClass;
use crate::connections::handshakes::{ConnectionOrigin, HANDSHAKE_TIMEOUT, PendingHandshakes};
use crate::connections::registry::RegisteredConnection;
use crate::context::NodeContext;
use crate::counters::RefusalCounters;
use crate::dial::DialError;
use crate::executor::handle::{ConnectionKind, ExecutorHandle, NewConnection};
use crate::executor::start::start_if_needed;
use crate::services::relay;
use crate::services::{admin_connection, data_connection};
use crate::stop::StopFlag;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tatami_net::handshake::{HandshakeProgress, PendingHandshake};
use tatami_net::{DeadlineStream, Listener, NetStream, PeerIdentity, is_own_user};
use tatami_wire::ExecutorId;
use tatami_wire::handshake::{self, HandshakeError, Hello, Role};

/// Most listeners: one for each transport that the daemon listens with.
const LISTENERS_MAX: u64 = 8;
/// The epoll(7) tokens of the node's end, of the first listener, and of the first connection in its
/// handshake.
const STOP_TOKEN: u64 = 0;
const FIRST_LISTENER: u64 = 1;
const FIRST_HANDSHAKE: u64 = FIRST_LISTENER + LISTENERS_MAX;
/// Most events that are handled before the next wait.
const EVENTS_MAX: usize = 256;
/// Most connections that are accepted at a listener before the other listener and the handshakes
/// get their turn.
const ACCEPT_MAX: usize = 64;
/// Pause after an accept that failed because descriptors or memory ran out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Accepts connections, and does their handshakes all at once, until the node ends.
pub(crate) fn run_acceptor(shared: &Arc<NodeContext>, door: Listeners) {
    let Listeners { listeners, epoll } = door;
    let mut reception =
        Acceptor { shared, epoll, handshakes: PendingHandshakes::new(FIRST_HANDSHAKE) };
    let mut events = Vec::with_capacity(EVENTS_MAX);
    while !shared.stop.is_set() {
        let left = |at: Instant| at.saturating_duration_since(Instant::now());
        let timeout = reception.handshakes.next_deadline().map(left).map(|left| Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: i64::from(left.subsec_nanos()),
        });
        events.clear();
        let room = rustix::buffer::spare_capacity(&mut events);
        // An interrupted wait is handled as one whose time is over.
        let _ = epoll::wait(&reception.epoll, room, timeout.as_ref());
        let has = |token| events.iter().any(|event| event.data.u64() == token);
        // Handshakes under way go on before new connections take slots.
        for event in events.iter().filter(|event| event.data.u64() >= FIRST_HANDSHAKE) {
            reception.continue_handshake(event.data.u64());
        }
        for (token, listener) in (FIRST_LISTENER..).zip(&listeners) {
            if has(token) {
                reception.accept_waiting(listener);
            }
        }
        reception.drop_expired();
    }
}

/// The listeners.
pub(crate) struct Listeners {
    listeners: Vec<Listener>,
    epoll: OwnedFd,
}

impl Listeners {
    /// Watches the listeners, and `stop`.
    ///
    /// # Errors
    /// Those of epoll(7).
    pub(crate) fn new(listeners: Vec<Listener>, stop: &StopFlag) -> io::Result<Listeners> {
        assert!(listeners.len() as u64 <= LISTENERS_MAX, "each listener has a token of its own");
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let watch = |fd: BorrowedFd<'_>, token| {
            epoll::add(&epoll, fd, EventData::new_u64(token), EventFlags::IN)
        };
        watch(stop.as_fd(), STOP_TOKEN)?;
        for (token, listener) in (FIRST_LISTENER..).zip(&listeners) {
            watch(listener.as_fd(), token)?;
        }
        Ok(Listeners { listeners, epoll })
    }
}

/// The state of the acceptor's thread.
struct Acceptor<'a> {
    shared: &'a Arc<NodeContext>,
    epoll: OwnedFd,
    handshakes: PendingHandshakes<PendingHandshake>,
}

impl Acceptor<'_> {
    /// Accepts waiting connections, a limited number at a time: the handshakes under way get their
    /// turn in between.
    fn accept_waiting(&mut self, listener: &Listener) {
        for _ in 0..ACCEPT_MAX {
            match listener.accept() {
                Ok(stream) => self.start_handshake(stream),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                // The peer may be gone before it is accepted; the next one may be there.
                Err(e) if e.raw_os_error() == Some(libc::ECONNABORTED) => {}
                Err(e) => {
                    self.shared.connections.refusals.not_accepted.record_event(|n| {
                        tracing::error!(error = %e, so_far = n, "cannot accept connections");
                    });
                    // A dropped handshake frees a descriptor for the next accept. Without one to
                    // drop, a pause keeps this loop from spinning.
                    match self.handshakes.drop_one() {
                        Some(stranger) => self.record_crowded_out(&stranger),
                        None => drop(self.shared.stop.wait(ACCEPT_PAUSE)),
                    }
                    break;
                }
            }
        }
    }

    fn start_handshake(&mut self, stream: NetStream) {
        let known = stream.prepare_for_daemon().and_then(|()| stream.identify_peer());
        let peer = match known {
            Ok(peer) => peer,
            Err(e) => {
                return self.shared.connections.refusals.broken.record_event(|n| {
                    tracing::warn!(error = %e, so_far = n, "cannot learn who connects; connection dropped");
                });
            }
        };
        let origin = ConnectionOrigin::from_peer(&stream, &peer);
        let stranger = match PendingHandshake::new(stream, peer) {
            Ok(stranger) => stranger,
            Err(e) => {
                return self.shared.connections.refusals.not_accepted.record_event(|n| {
                    tracing::error!(error = %e, so_far = n, "no random bytes for a handshake; connection dropped");
                });
            }
        };
        let (number, gone) = self.handshakes.add_handshake(origin, Instant::now(), stranger);
        if let Some(gone) = gone {
            self.record_crowded_out(&gone);
        }
        // Mostly the first bytes have arrived by now, so the connection no longer counts as silent.
        self.continue_handshake(number);
        let Some(stranger) = self.handshakes.get(number) else { return };
        let data = EventData::new_u64(number);
        if let Err(e) = epoll::add(&self.epoll, &stranger.stream, data, EventFlags::IN) {
            self.shared.connections.refusals.not_accepted.record_event(|n| {
                tracing::error!(error = %e, so_far = n, "cannot watch a connection; it was dropped");
            });
            self.handshakes.remove(number);
        }
    }

    /// Handles the bytes that a connection in its handshake has sent.
    fn continue_handshake(&mut self, number: u64) {
        // The connection may have gone since the event.
        let Some(stranger) = self.handshakes.get(number) else { return };
        let heard = stranger.receive_bytes(&self.shared.settings.identity);
        if matches!(heard, HandshakeProgress::Pending) {
            return;
        }
        let Some(PendingHandshake { stream, peer, .. }) = self.handshakes.remove(number) else {
            return;
        };
        // The connection is not watched yet if its handshake ended with its first bytes.
        let _ = epoll::delete(&self.epoll, &stream);
        match heard {
            HandshakeProgress::Pending => {}
            HandshakeProgress::Proved(hello) => {
                admit_on_a_thread(self.shared, stream, peer, *hello)
            }
            HandshakeProgress::Failed(e) => {
                log_failure(&self.shared.connections.refusals, &peer, &e)
            }
        }
    }

    fn record_crowded_out(&self, stranger: &PendingHandshake) {
        let peer = &stranger.peer;
        self.shared.connections.refusals.crowded_out.record_event(|n| {
            tracing::warn!(%peer, so_far = n, "too many handshakes under way: the oldest was dropped");
        });
    }

    fn drop_expired(&mut self) {
        for stranger in self.handshakes.take_expired(Instant::now()) {
            let peer = &stranger.peer;
            let what = if stranger.is_silent() { "it said nothing" } else { "it was too slow" };
            self.shared.connections.refusals.silent.record_event(|n| {
                tracing::warn!(%peer, so_far = n, "connection dropped in the handshake: {what}");
            });
        }
    }
}

fn log_refusal(refusals: &RefusalCounters, peer: &PeerIdentity, hello: &Hello, why: &str) {
    refusals.refused.record_event(|n| {
        tracing::warn!(%peer, client = %hello.client, so_far = n, "connection refused: {why}");
    });
}

/// Gives a known peer its slot, and continues on a thread of its own. So there are no more threads
/// than slots.
fn admit_on_a_thread(
    shared: &Arc<NodeContext>,
    stream: NetStream,
    mut peer: PeerIdentity,
    hello: Hello,
) {
    // The binding comes first: slots and permissions count for the bound user.
    let bound = hello.user.as_ref().map_or(Ok(()), |user| peer.bind_user(user));
    let admitted =
        bound.map_err(str::to_owned).and_then(|()| admit_connection(shared, &hello, &peer));
    let admission = match admitted {
        Ok(admission) => admission,
        Err(why) => {
            log_refusal(&shared.connections.refusals, &peer, &hello, &why);
            let mut answer = Vec::new();
            let _ = handshake::refuse_client(&mut answer, &why);
            let _ = stream.send_at_once(&answer);
            return;
        }
    };
    let shared = shared.clone();
    let spawned = std::thread::Builder::new().name("connection".to_owned()).spawn(move || {
        let stream = Arc::new(stream);
        // From here on the end of the node ends the connection as well.
        if let Some(registered) = shared.connections.registry.register_connection(&stream) {
            serve_connection(&shared, &stream, &registered, peer, &hello, admission);
        }
    });
    if let Err(e) = spawned {
        tracing::error!(error = %e, "cannot start a thread for a connection; it was dropped");
    }
}

fn serve_connection(
    shared: &Arc<NodeContext>,
    stream: &Arc<NetStream>,
    registered: &RegisteredConnection<'_>,
    peer: PeerIdentity,
    hello: &Hello,
    admission: ConnectionAdmission,
) {
    let mut timed = DeadlineStream::new(stream, HANDSHAKE_TIMEOUT);
    let refused = |timed: &mut DeadlineStream<'_>, why: &str| {
        log_refusal(&shared.connections.refusals, &peer, hello, why);
        let _ = handshake::refuse_client(timed, why);
    };
    if let Some(node) = hello.node.filter(|node| *node != shared.settings.node()) {
        // Reached first, admitted second: the client learns from the answer whether its node is
        // there.
        match relay::connect_for_user(shared, hello, &peer, node) {
            Ok((far, protocol)) => {
                if handshake::admit_relayed_client(&mut timed, hello, protocol).is_ok() {
                    tracing::debug!(%peer, client = %hello.client, role = ?hello.role, %node, "passed on");
                    relay::relay_connection(stream, &far, &peer);
                }
            }
            Err(DialError::Unreachable(why)) => {
                drop(handshake::report_unavailable(&mut timed, &why))
            }
            Err(DialError::Damaged(why)) => drop(handshake::report_damage(&mut timed, &why)),
            Err(DialError::Refused(why)) => refused(&mut timed, &why),
        }
        return;
    }
    // Before the executor is looked up: a damaged store is reported as such, not as an unknown
    // executor.
    if !matches!(hello.role, Role::Data | Role::Admin)
        && let Some(why) = shared.executors.refusal_reason(hello.executor)
    {
        tracing::debug!(%peer, client = %hello.client, "connection refused: {why}");
        let _ = handshake::report_damage(&mut timed, &why);
        return;
    }
    let executor = match find_executor(shared, hello) {
        Ok(executor) => executor,
        Err(why) => return refused(&mut timed, &why),
    };
    if handshake::admit_client(&mut timed).is_err() {
        return;
    }
    tracing::debug!(%peer, client = %hello.client, role = ?hello.role, "connected");
    if let Some((executor, kind)) = executor {
        if stream.set_nonblocking().is_ok() {
            let (stream, admission) = (stream.clone(), Some(admission));
            // The admission goes along, so that its slot stays taken while the connection lives.
            executor.hand_over(NewConnection { stream, peer, kind, admission });
        }
        return;
    }
    if stream.set_timeouts(None, Some(WRITE_TIMEOUT)).is_err() {
        return;
    }
    match hello.role {
        Role::Data => {
            stream.enlarge_untuned_buffers();
            data_connection::serve_data(shared, stream, &peer, hello.client);
        }
        _ => admin_connection::serve_admin(shared, stream, &peer, registered.id),
    }
}

/// Returns the executor that the connection is for, if it is for one, and its purpose there.
fn find_executor(
    shared: &Arc<NodeContext>,
    hello: &Hello,
) -> Result<Option<(ExecutorHandle, ConnectionKind)>, String> {
    let kind = match hello.role {
        Role::Meta => ConnectionKind::Requests { slot: hello.slot },
        Role::Recall => ConnectionKind::Recall,
        Role::Peer => {
            let from = ExecutorId::try_from(hello.slot).map_err(|e| e.to_string())?;
            ConnectionKind::Peer { from }
        }
        Role::Data | Role::Admin => return Ok(None),
    };
    let executor = match kind {
        // An executor without shards is started for a peer: shards may be about to move to it.
        ConnectionKind::Peer { .. } => start_if_needed(shared, hello.executor),
        _ => shared.executors.get(hello.executor),
    };
    match executor {
        Some(executor) => Ok(Some((executor, kind))),
        None => Err(format!("node {} has no executor {}", shared.settings.node(), hello.executor)),
    }
}

fn admit_connection(
    shared: &Arc<NodeContext>,
    hello: &Hello,
    peer: &PeerIdentity,
) -> Result<ConnectionAdmission, String> {
    if let Some(volume) = hello.volume.filter(|v| *v != shared.settings.identity.volume) {
        return Err(format!(
            "this daemon serves volume {}, not {volume}",
            shared.settings.identity.volume
        ));
    }
    if !shared.settings.allow_other
        && let Some(user) = peer.uid().filter(|user| !is_own_user(*user))
    {
        // The mode of the socket already keeps local users out; this check is for connections that
        // other nodes relay.
        return Err(format!(
            "user {user} may not use this volume: it is open to other users than its own only with \
             mount.allow_other = true in its tatami.toml"
        ));
    }
    let passed_on = hello.node.is_some_and(|node| node != shared.settings.node());
    let row = match hello.role {
        // A relayed connection has threads here, whatever its purpose at the other node.
        _ if passed_on => ConnectionClass::Bytes,
        Role::Meta | Role::Recall | Role::Peer => ConnectionClass::Names,
        Role::Data => ConnectionClass::Bytes,
        Role::Admin => ConnectionClass::Admin,
    };
    // Other clients wait until a holder returns its delegations, so an ordinary user must not
    // become one.
    if hello.role == Role::Recall && !peer.is_trusted() {
        return Err("names are delegated to the superuser's mounts only".to_owned());
    }
    if hello.role == Role::Peer {
        let here = ExecutorId { node: shared.settings.node(), index: hello.executor };
        let from = ExecutorId::try_from(hello.slot).map_err(|e| e.to_string())?;
        let known = from != here && shared.map.current().find_member(from.node).is_some();
        if !peer.is_trusted() || passed_on || !known {
            return Err(format!("executor {from} has nothing to say to executor {here}"));
        }
    }
    let full = || format!("node {} has too many connections for {row}", shared.settings.node());
    // The slot before the client's entry: a refused connection must leave no entry behind.
    let seat = shared.connections.slots.try_acquire(row, peer.uid()).ok_or_else(full)?;
    if !shared.connections.clients.add_connection(hello.client, peer.uid()) {
        return Err("this client id belongs to another user".to_owned());
    }
    Ok(ConnectionAdmission::new(seat, shared.connections.clients.clone(), hello.client))
}

/// Logs a failed handshake. Each reason has a counter and a log limit of its own, so a flood of one
/// does not hide another.
fn log_failure(refusals: &RefusalCounters, peer: &PeerIdentity, e: &HandshakeError) {
    let kind = match e {
        HandshakeError::Key | HandshakeError::Encryption(_) => &refusals.wrong_key,
        HandshakeError::Version { .. } => &refusals.other_version,
        _ => &refusals.broken,
    };
    kind.record_event(
        |n| tracing::warn!(%peer, so_far = n, "connection dropped in the handshake: {e}"),
    );
}
