//! A place where one data connection is accepted: a TCP port that listens for a short time, and
//! takes the first connection that proves the secret.

use crate::refusal::refuse;
use parking_lot::{Condvar, Mutex};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::io;
use std::net::{IpAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use tatami_net::{DeadlineStream, NetStream, PinnedTls, wrap_plain_socket};
use tatami_remote::{
    DataOffer, DataSecret, PROOF_WAIT, RemoteFailure, parse_port_range, prove_as_server,
};

/// How long a place takes connections.
const OFFER_TIME: Duration = Duration::from_secs(20);
/// Connections that may prove themselves at once.
const CALLERS_MAX: usize = 8;
/// The variable with the ports at which places may listen.
const PORTS: &str = "TATAMI_DATA_PORTS";

/// The life of one offer, shared by the thread that listens and those that check callers.
#[derive(Debug, Default)]
struct PlaceState {
    /// Threads that check a caller.
    callers: usize,
    /// A connection was taken, or the place has ended.
    is_over: bool,
}

#[derive(Debug, Default)]
struct PlaceShared {
    state: Mutex<PlaceState>,
    changed: Condvar,
}

/// Closes the port of a place.
#[derive(Debug)]
pub(crate) struct PlaceCloser(Arc<TcpListener>);

impl PlaceCloser {
    /// Closes it, if it is open. The thread that waits there ends.
    pub(crate) fn close(&self) {
        // Fails only on a port that is closed.
        let _ = rustix::net::shutdown(&*self.0, rustix::net::Shutdown::Both);
    }
}

/// Returns the address of this machine that the ssh of this process came to.
fn find_own_address() -> Option<IpAddr> {
    let variable = std::env::var("SSH_CONNECTION").ok()?;
    // A link-local address has its interface behind a percent sign, which bind(2) would need.
    variable.split_whitespace().nth(2)?.parse().ok()
}

fn bind_listener(address: IpAddr) -> io::Result<TcpListener> {
    let ports = std::env::var(PORTS).ok().filter(|text| !text.trim().is_empty());
    let Some(ports) = ports else { return TcpListener::bind((address, 0)) };
    let range = parse_port_range(&ports)
        .ok_or_else(|| io::Error::other(format!("{PORTS}={ports} is no FIRST-LAST")))?;
    // Processes that begin at once do not try the same ports one after the other.
    let (count, first) = (u32::from(range.end() - range.start()) + 1, u32::from(*range.start()));
    let mut last = io::Error::from(io::ErrorKind::AddrInUse);
    for step in 0..count {
        let port = first + (std::process::id().wrapping_add(step)) % count;
        match TcpListener::bind((address, port as u16)) {
            Ok(listener) => return Ok(listener),
            Err(e) => last = e,
        }
    }
    Err(last)
}

/// Makes a new certificate for one offer; returns it, and the settings of TLS with its key.
fn make_certificate() -> io::Result<(Vec<u8>, PinnedTls)> {
    let key = rcgen::KeyPair::generate().map_err(io::Error::other)?;
    let params = rcgen::CertificateParams::new(["tatami-data".to_owned()]);
    let made = params.and_then(|params| params.self_signed(&key)).map_err(io::Error::other)?;
    let certificate = made.der().to_vec();
    let tls = PinnedTls::new_server(&certificate, &key.serialize_der())?;
    Ok((certificate, tls))
}

/// Opens a place, and returns its offer and what closes it. `serve` gets the connection that has
/// proven itself.
///
/// # Errors
/// There is no port, or ssh has not started this process.
pub(crate) fn open_place(
    connection: u32,
    encrypt: bool,
    serve: impl FnOnce(NetStream) + Send + 'static,
) -> Result<(DataOffer, PlaceCloser), RemoteFailure> {
    let address = find_own_address().ok_or_else(|| {
        refuse(Errno::ADDRNOTAVAIL, "no data connection: SSH_CONNECTION has no address")
    })?;
    open_place_at(address, connection, encrypt, serve)
}

fn open_place_at(
    address: IpAddr,
    connection: u32,
    encrypt: bool,
    serve: impl FnOnce(NetStream) + Send + 'static,
) -> Result<(DataOffer, PlaceCloser), RemoteFailure> {
    let failed = |e: io::Error| {
        let errno = Errno::from_io_error(&e).unwrap_or(Errno::IO);
        refuse(errno, &format!("no data connection: {e}"))
    };
    let listener = bind_listener(address).map_err(failed)?;
    let port = listener.local_addr().map_err(failed)?.port();
    // A caller that has gone meanwhile must not stop the thread.
    listener.set_nonblocking(true).map_err(failed)?;
    let secret = DataSecret::make().map_err(failed)?;
    let (certificate, tls) = match encrypt {
        true => make_certificate().map(|(der, tls)| (der, Some(tls))).map_err(failed)?,
        false => (Vec::new(), None),
    };
    let addresses = vec![address.to_string()];
    let certificate = certificate.into();
    let offer = DataOffer { connection, addresses, port, secret: secret.clone(), certificate };
    let listener = Arc::new(listener);
    let closer = PlaceCloser(listener.clone());
    let accept = move || accept_one(&listener, &secret, tls.as_ref(), serve);
    let started = thread::Builder::new().name("data-place".to_owned()).spawn(accept);
    started.map(|_| (offer, closer)).map_err(failed)
}

fn accept_one(
    listener: &Arc<TcpListener>,
    secret: &DataSecret,
    tls: Option<&PinnedTls>,
    serve: impl FnOnce(NetStream) + Send + 'static,
) {
    let shared = Arc::new(PlaceShared::default());
    let serve = Arc::new(Mutex::new(Some(serve)));
    let deadline = Instant::now() + OFFER_TIME;
    while let Some(left) = deadline.checked_duration_since(Instant::now()) {
        {
            let mut state = shared.state.lock();
            while !state.is_over && state.callers >= CALLERS_MAX {
                if shared.changed.wait_until(&mut state, deadline).timed_out() {
                    break;
                }
            }
            if state.is_over || state.callers >= CALLERS_MAX {
                break;
            }
        }
        let (seconds, nanos) = (left.as_secs() as i64, i64::from(left.subsec_nanos()));
        let wait = Timespec { tv_sec: seconds, tv_nsec: nanos };
        let mut events = [PollFd::new(&**listener, PollFlags::IN)];
        match poll(&mut events, Some(&wait)) {
            Ok(0) | Err(Errno::INTR) => continue,
            Ok(_) => {}
            Err(_) => break,
        }
        let socket = match listener.accept() {
            Ok((socket, _)) => socket,
            // The caller has gone meanwhile.
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => continue,
            Err(e) if e.kind() == io::ErrorKind::ConnectionAborted => continue,
            // The place was closed.
            Err(_) => break,
        };
        if socket.set_nonblocking(false).is_err() {
            continue;
        }
        shared.state.lock().callers += 1;
        let (shared, serve) = (shared.clone(), serve.clone());
        let (secret, tls) = (secret.clone(), tls.cloned());
        let check = {
            let (shared, listener) = (shared.clone(), listener.clone());
            move || {
                let proven = check_caller(socket.into(), &secret, tls.as_ref(), &shared);
                if proven.is_some() {
                    PlaceCloser(listener.clone()).close();
                }
                drop(listener);
                shared.state.lock().callers -= 1;
                shared.changed.notify_all();
                let work = proven.and_then(|stream| Some((serve.lock().take()?, stream)));
                if let Some((serve, stream)) = work {
                    serve(stream);
                }
            }
        };
        if thread::Builder::new().name("data-caller".to_owned()).spawn(check).is_err() {
            shared.state.lock().callers -= 1;
        }
    }
}

/// Checks one caller; returns its connection if it has proven the secret and is the first.
fn check_caller(
    socket: OwnedFd,
    secret: &DataSecret,
    tls: Option<&PinnedTls>,
    shared: &PlaceShared,
) -> Option<NetStream> {
    let stream = match tls {
        Some(tls) => tls.wrap_socket(socket).ok()?,
        None => wrap_plain_socket(socket),
    };
    stream.prepare_for_daemon().ok()?;
    let take = || {
        let mut state = shared.state.lock();
        // A caller that knows the secret but has no TLS is none of ours.
        let is_first = !state.is_over && !stream.lacks_encryption();
        state.is_over |= is_first;
        is_first
    };
    prove_as_server(&mut DeadlineStream::new(&stream, PROOF_WAIT), secret, take).ok()?;
    stream.set_timeouts(None, None).ok()?;
    Some(stream)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{Ipv4Addr, TcpStream};
    use std::sync::mpsc;
    use tatami_remote::{ProofError, prove_as_caller};

    /// Opens a place that echoes five bytes.
    fn open_echo(encrypt: bool) -> (DataOffer, mpsc::Receiver<()>) {
        let (ended, waits) = mpsc::channel();
        let serve = move |stream: NetStream| {
            let mut bytes = [0; 5];
            let _ = (&stream).read_exact(&mut bytes).and_then(|()| (&stream).write_all(&bytes));
            let _ = ended.send(());
        };
        let address = Ipv4Addr::LOCALHOST.into();
        (open_place_at(address, 7, encrypt, serve).expect("a port").0, waits)
    }

    fn connect_to(offer: &DataOffer) -> io::Result<NetStream> {
        let socket = TcpStream::connect((offer.addresses[0].as_str(), offer.port))?;
        match offer.certificate.is_empty() {
            true => Ok(wrap_plain_socket(socket.into())),
            false => PinnedTls::new_client(&offer.certificate)?.wrap_socket(socket.into()),
        }
    }

    #[test]
    fn a_place_that_is_closed_takes_nobody() {
        let (offer, closer) =
            open_place_at(Ipv4Addr::LOCALHOST.into(), 7, false, |_| {}).expect("a port");
        closer.close();
        assert!(connect_to(&offer).is_err());
    }

    #[test]
    fn a_place_takes_one_caller_that_has_the_secret() {
        for encrypt in [true, false] {
            let (offer, ended) = open_echo(encrypt);
            // A stranger that says nothing keeps no other caller waiting.
            let silent = TcpStream::connect(("127.0.0.1", offer.port)).expect("it listens");
            let mut stranger = TcpStream::connect(("127.0.0.1", offer.port)).expect("it listens");
            stranger.write_all(&[b'x'; 200]).expect("a small message");
            let mut nothing = Vec::new();
            let _ = stranger.read_to_end(&mut nothing);
            assert!(!nothing.windows(5).any(|part| part == b"xxxxx"), "a stranger is served");
            let wrong = DataSecret::make().expect("random bytes");
            let stream = connect_to(&offer).expect("it listens");
            let mut both = DeadlineStream::new(&stream, PROOF_WAIT);
            assert!(matches!(prove_as_caller(&mut both, &wrong), Err(ProofError::Wrong)));
            // The holder of the secret without TLS is refused where TLS is wanted.
            if encrypt {
                let plain = DataOffer { certificate: Vec::new().into(), ..offer.clone() };
                let stream = connect_to(&plain).expect("it listens");
                let mut both = DeadlineStream::new(&stream, PROOF_WAIT);
                assert!(prove_as_caller(&mut both, &offer.secret).is_err());
            }
            let stream = connect_to(&offer).expect("it listens");
            let mut both = DeadlineStream::new(&stream, PROOF_WAIT);
            prove_as_caller(&mut both, &offer.secret).expect("the secret is right");
            (&stream).write_all(b"hello").expect("it reads");
            let mut bytes = [0; 5];
            (&stream).read_exact(&mut bytes).expect("it echoes");
            assert_eq!(&bytes, b"hello");
            ended.recv().expect("it has served");
            let again = connect_to(&offer).and_then(|stream| {
                let mut both = DeadlineStream::new(&stream, PROOF_WAIT);
                prove_as_caller(&mut both, &offer.secret).map_err(io::Error::other)
            });
            assert!(again.is_err(), "an offer is for one connection");
            drop(silent);
        }
    }
}
