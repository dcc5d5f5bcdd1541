//! New connections: accepting them, shaking hands, and handing them on.

use crate::counters::Place;
use crate::executor::{ExecutorHandle, NewConnection};
use crate::meta_conn::Kind;
use crate::peer::Peer;
use crate::relay::{self, NotPassed};
use crate::shared::{Registered, Shared, enlarge_buffers};
use crate::stream::{Deadlined, Stream};
use crate::{admin, data};
use rustix::event::{PollFd, PollFlags, poll};
use std::io;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tatami_wire::handshake::{self, HandshakeError, Hello, Role};
use tatami_wire::{ClientId, ExecutorId};

/// A handshake must be over after this time.
pub(crate) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// A peer that takes none of our bytes for so long loses its connection.
pub(crate) const WRITE_TIMEOUT: Duration = Duration::from_secs(60);
/// Pause after an accept that failed because descriptors or memory ran out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Seconds after which a silent TCP peer is probed, between probes, and probes
/// without an answer until it counts as dead.
const KEEPALIVE: (u64, u64, u32) = (15, 5, 3);
/// Of what strangers can make happen, one time in so many is logged after the first few.
const LOG_EVERY: u64 = 1000;

/// Accepts connections until the node ends.
pub(crate) fn run(shared: &Arc<Shared>, tcp: &TcpListener, unix: &UnixListener) {
    while !shared.stop.is_set() {
        let mut fds = [
            PollFd::new(tcp, PollFlags::IN),
            PollFd::new(unix, PollFlags::IN),
            PollFd::new(&shared.stop, PollFlags::IN),
        ];
        // An interrupted poll is as good as one that found nothing.
        let _ = poll(&mut fds, None);
        if shared.stop.is_set() {
            break;
        }
        let accepted = [
            tcp.accept().map(|(s, _)| Stream::Tcp(s)),
            unix.accept().map(|(s, _)| Stream::Unix(s)),
        ];
        for result in accepted {
            match result {
                Ok(stream) => greet_on_a_thread(shared, stream),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                // The peer may be gone before we accept it; all others pass.
                Err(e) if e.raw_os_error() == Some(libc::ECONNABORTED) => {}
                Err(e) => {
                    static FAILED: Often = Often::new();
                    FAILED.say(|n| {
                        tracing::error!(error = %e, so_far = n, "cannot accept connections");
                    });
                    shared.stop.wait(ACCEPT_PAUSE);
                }
            }
        }
    }
}

fn greet_on_a_thread(shared: &Arc<Shared>, stream: Stream) {
    let Some(place) = shared.handshakes.take() else {
        // Whoever has something to say comes again; this protects the others.
        static DROPPED: Often = Often::new();
        DROPPED.say(|n| {
            tracing::warn!(so_far = n, "too many handshakes under way: connection dropped");
        });
        return;
    };
    let shared = shared.clone();
    let spawned = std::thread::Builder::new().name("connection".to_owned()).spawn(move || {
        let stream = Arc::new(stream);
        // From here on the end of the node ends the connection as well.
        if let Some(registered) = shared.registry.add(&stream) {
            greet(&shared, &stream, &registered, place);
        }
    });
    if let Err(e) = spawned {
        tracing::error!(error = %e, "cannot start a thread for a connection; it was dropped");
    }
}

fn greet(shared: &Arc<Shared>, stream: &Arc<Stream>, registered: &Registered<'_>, place: Place) {
    if let Err(e) = prepare(stream) {
        tracing::debug!(error = %e, "connection dropped");
        return;
    }
    let mut peer = match Peer::of(stream) {
        Ok(peer) => peer,
        Err(e) => {
            tracing::warn!(error = %e, "cannot learn who connects; connection dropped");
            return;
        }
    };
    let mut timed = Deadlined::new(stream, HANDSHAKE_TIMEOUT);
    let mut nonce = [0; 16];
    if let Err(e) = getrandom::fill(&mut nonce) {
        tracing::error!(error = %e, "no random bytes for a handshake; connection dropped");
        return;
    }
    let hello = match handshake::accept(&mut timed, stream.transport(), &shared.identity, nonce) {
        Ok(hello) => hello,
        Err(e) => {
            log_failure(&peer, &e);
            return;
        }
    };
    let refused = |timed: &mut Deadlined<'_>, peer: &Peer, why: &str| {
        tracing::warn!(%peer, client = %hello.client, "connection refused: {why}");
        let _ = handshake::refuse(timed, why);
    };
    if let Some(user) = &hello.user
        && let Err(why) = peer.bind(user)
    {
        return refused(&mut timed, &peer, why);
    }
    let admission = match admit(shared, &hello, &peer) {
        Ok(admission) => admission,
        Err(why) => return refused(&mut timed, &peer, &why),
    };
    if let Some(node) = hello.node.filter(|node| *node != shared.node()) {
        match relay::connect(shared, &hello, &peer, node) {
            Ok(far) if handshake::admit(&mut timed).is_ok() => {
                drop(place);
                tracing::debug!(%peer, client = %hello.client, role = ?hello.role, %node, "passed on");
                relay::serve(stream, &far, &peer);
            }
            Ok(_) => {}
            Err(NotPassed::Away(why)) => drop(handshake::put_off(&mut timed, &why)),
            Err(NotPassed::Refused(why)) => refused(&mut timed, &peer, &why),
        }
        return;
    }
    let executor = match executor(shared, &hello) {
        Ok(executor) => executor,
        Err(why) => return refused(&mut timed, &peer, &why),
    };
    if handshake::admit(&mut timed).is_err() {
        return;
    }
    drop(place);
    tracing::debug!(%peer, client = %hello.client, role = ?hello.role, "connected");
    if let Some((executor, kind)) = executor {
        if stream.set_nonblocking().is_ok() {
            let (stream, admission) = (stream.clone(), Some(admission));
            executor.hand_over(NewConnection { stream, peer, kind, admission });
        }
        return;
    }
    if stream.set_timeouts(None, Some(WRITE_TIMEOUT)).is_err() {
        return;
    }
    match hello.role {
        Role::Data => {
            enlarge_buffers(stream);
            data::serve(shared, stream, &peer);
        }
        _ => admin::serve(shared, stream, &peer, registered.id),
    }
}

/// Which executor the connection is for, if it is for one, and what it is there.
fn executor(shared: &Arc<Shared>, hello: &Hello) -> Result<Option<(ExecutorHandle, Kind)>, String> {
    let kind = match hello.role {
        Role::Meta => Kind::Requests { slot: hello.slot },
        Role::Recall => Kind::Recall,
        Role::Peer => {
            let from = ExecutorId::try_from(hello.slot).map_err(|e| e.to_string())?;
            Kind::Peer { from }
        }
        Role::Data | Role::Admin => return Ok(None),
    };
    let executor = match kind {
        // It may be about to get shards.
        Kind::Peer { .. } => shared.executors.get_or_start(shared, hello.executor),
        _ => shared.executors.get(hello.executor),
    };
    match executor {
        Some(executor) => Ok(Some((executor, kind))),
        None => Err(format!("node {} has no executor {}", shared.node(), hello.executor)),
    }
}

/// What an admitted connection holds until it ends.
pub(crate) struct Admission {
    _places: (Place, Option<Place>),
    shared: Arc<Shared>,
    /// Whose connection it is.
    pub(crate) client: ClientId,
}

impl Drop for Admission {
    fn drop(&mut self) {
        self.shared.clients.leave(self.client);
    }
}

fn admit(shared: &Arc<Shared>, hello: &Hello, peer: &Peer) -> Result<Admission, String> {
    if let Some(volume) = hello.volume.filter(|v| *v != shared.identity.volume) {
        return Err(format!("this daemon serves volume {}, not {volume}", shared.identity.volume));
    }
    let passed_on = hello.node.is_some_and(|node| node != shared.node());
    let (places, what) = match hello.role {
        // It has threads here, whatever it is for there.
        _ if passed_on => (&shared.data_places, "bytes"),
        Role::Meta | Role::Recall | Role::Peer => (&shared.meta_places, "names"),
        Role::Data => (&shared.data_places, "bytes"),
        Role::Admin => (&shared.admin_places, "questions"),
    };
    // Others wait until it gives back what it was given.
    if hello.role == Role::Recall && !peer.is_trusted() {
        return Err("names are delegated to the superuser's mounts only".to_owned());
    }
    if hello.role == Role::Peer {
        let here = ExecutorId { node: shared.node(), index: hello.executor };
        let from = ExecutorId::try_from(hello.slot).map_err(|e| e.to_string())?;
        let known = from != here && shared.map().nodes.iter().any(|info| info.id == from.node);
        if !peer.is_trusted() || passed_on || !known {
            return Err(format!("executor {from} has nothing to say to executor {here}"));
        }
    }
    let full = || format!("node {} has too many connections for {what}", shared.node());
    let place = places.take().ok_or_else(full)?;
    let of_strangers = match peer.is_trusted() {
        true => None,
        false => Some(shared.stranger_places.take().ok_or_else(full)?),
    };
    if !shared.clients.arrive(hello.client, peer.uid()) {
        return Err("this client id belongs to another user".to_owned());
    }
    Ok(Admission { _places: (place, of_strangers), shared: shared.clone(), client: hello.client })
}

pub(crate) fn prepare(stream: &Stream) -> io::Result<()> {
    let Stream::Tcp(tcp) = stream else { return Ok(()) };
    use rustix::net::sockopt;
    let (idle, interval, probes) = KEEPALIVE;
    tcp.set_nodelay(true)?;
    sockopt::set_socket_keepalive(tcp, true)?;
    sockopt::set_tcp_keepidle(tcp, Duration::from_secs(idle))?;
    sockopt::set_tcp_keepintvl(tcp, Duration::from_secs(interval))?;
    sockopt::set_tcp_keepcnt(tcp, probes)?;
    // Probes are not sent while bytes of ours wait to be acknowledged.
    let silence = idle + interval * u64::from(probes);
    sockopt::set_tcp_user_timeout(tcp, (silence * 1000) as u32)?;
    Ok(())
}

/// Tells of a failed handshake.
fn log_failure(peer: &Peer, e: &HandshakeError) {
    static FAILED: Often = Often::new();
    FAILED.say(|n| {
        tracing::warn!(%peer, so_far = n, "connection dropped in the handshake: {e}");
    });
}

/// Something that strangers can make happen as often as they like: the log
/// tells of the first few times and then now and then.
struct Often(AtomicU64);

impl Often {
    const FIRST: u64 = 20;

    const fn new() -> Often {
        Often(AtomicU64::new(0))
    }

    fn say(&self, log: impl FnOnce(u64)) {
        let n = self.0.fetch_add(1, Ordering::Relaxed) + 1;
        if n <= Self::FIRST || n.is_multiple_of(LOG_EVERY) {
            log(n);
        }
    }
}
