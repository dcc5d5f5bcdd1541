//! What every transport does alike. A new transport is one more row of `endpoints`.

mod common;

use common::{TestAuthority, member_trust};
use std::fmt;
use std::io::{self, Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use tatami_net::dial::{self, PlainWait};
use tatami_net::handshake::{HandshakeProgress, PendingHandshake, introduce_client};
use tatami_net::{DeadlineStream, Endpoint, Listener, NetStream, TlsTrust};
use tatami_wire::handshake::{
    Authentication, HandshakeError, Hello, Role, ServerIdentity, Welcome, admit_client,
};
use tatami_wire::{ClientId, NodeId, ProtocolRange, VolumeId, VolumeKey};

const MODE: rustix::fs::Mode = rustix::fs::Mode::from_raw_mode(0o600);

/// A free address, and the certificates of a transport with encryption.
struct TransportCase {
    endpoint: Endpoint,
    tls: Option<Arc<TlsTrust>>,
}

impl TransportCase {
    fn listen(&self) -> io::Result<Listener> {
        Listener::listen(&self.endpoint, MODE, self.tls.clone())
    }
}

impl fmt::Display for TransportCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.endpoint, if self.tls.is_some() { " with TLS" } else { "" })
    }
}

/// One case of each transport.
fn transport_cases(dir: &Path) -> Vec<TransportCase> {
    let tcp = || {
        let free = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a port");
        Endpoint::from_address(&free.to_string())
    };
    let tls = member_trust(dir, &TestAuthority::new("authority"));
    vec![
        TransportCase { endpoint: Endpoint::Unix(dir.join("socket")), tls: None },
        TransportCase { endpoint: tcp(), tls: None },
        TransportCase { endpoint: tcp(), tls: Some(tls) },
    ]
}

fn for_each_transport(test: impl Fn(&TransportCase, &Listener)) {
    let dir = tempfile::tempdir().expect("a directory");
    for case in transport_cases(dir.path()) {
        let listener = case.listen().expect("listening");
        test(&case, &listener);
    }
}

/// Returns both ends of a new connection.
fn connect_pair(case: &TransportCase, listener: &Listener) -> (NetStream, NetStream) {
    let near = dial::connect(&case.endpoint, case.tls.as_deref(), &PlainWait).expect("connected");
    let far = loop {
        match listener.accept() {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => thread::yield_now(),
            accepted => break accepted.expect("accepted"),
        }
    };
    far.prepare_for_daemon().expect("prepared");
    if case.tls.is_some() {
        // The handshake of TLS needs both sides.
        thread::scope(|scope| {
            scope.spawn(|| (&near).write_all(b"x").expect("sent"));
            (&far).read_exact(&mut [0]).expect("received");
        });
    }
    (near, far)
}

/// Does the handshake with these keys on both sides.
fn shake_hands(
    pair: (NetStream, NetStream),
    key: Option<VolumeKey>,
) -> (Result<Welcome, HandshakeError>, Result<Hello, HandshakeError>) {
    let (near, far) = pair;
    let (volume, node) = (VolumeId([4; 16]), NodeId(3));
    let client = thread::spawn(move || {
        let hello = Hello {
            protocol: ProtocolRange::of_process(),
            role: Role::Data,
            client: ClientId([1; 16]),
            slot: 0,
            volume: Some(volume),
            node: None,
            executor: 0,
            user: None,
        };
        introduce_client(&mut &near, near.transport(), &hello, key.as_ref())
    });
    let identity = ServerIdentity { volume, node, key: VolumeKey::new([7; 32]) };
    let peer = far.identify_peer().expect("a peer");
    let mut pending = PendingHandshake::new(far, peer).expect("random bytes");
    let heard = loop {
        match pending.receive_bytes(&identity) {
            HandshakeProgress::Pending => thread::yield_now(),
            HandshakeProgress::Proved(hello) => break Ok(*hello),
            HandshakeProgress::Failed(e) => break Err(e),
        }
    };
    if heard.is_ok() {
        admit_client(&mut &pending.stream).expect("sent");
    }
    drop(pending);
    (client.join().expect("the client ends"), heard)
}

#[test]
fn bytes_arrive_as_they_were_sent() {
    for_each_transport(|case, listener| {
        let (near, far) = connect_pair(case, listener);
        near.send_more(b"one ").expect("sent");
        near.send_at_once(b"two ").expect("sent");
        let parts = [io::IoSlice::new(b"thr"), io::IoSlice::new(b"ee")];
        assert_eq!((&near).write_vectored(&parts).expect("sent"), 5, "{case}");
        near.shutdown(rustix::net::Shutdown::Both);
        let mut got = String::new();
        (&far).read_to_string(&mut got).expect("received");
        assert_eq!(got, "one two three", "{case}");
    });
}

#[test]
fn a_send_to_a_closed_stream_is_an_error() {
    for_each_transport(|case, listener| {
        let (near, far) = connect_pair(case, listener);
        drop(far);
        let sent = (0..1000).map(|_| (&near).write(b"byte")).find(Result::is_err);
        assert!(sent.is_some(), "{case}");
    });
}

#[test]
fn a_deadline_holds_however_slowly_bytes_come() {
    for_each_transport(|case, listener| {
        let (near, far) = connect_pair(case, listener);
        let mut timed = DeadlineStream::new(&far, Duration::from_millis(100));
        let error = thread::scope(|scope| {
            scope.spawn(|| while (&near).write(b"x").is_ok() {});
            let error = loop {
                if let Err(e) = timed.read_exact(&mut [0]) {
                    break e;
                }
            };
            // The writer may wait for room in the TCP window. A shutdown of its own end wakes it;
            // one of the other end does not.
            near.shutdown(rustix::net::Shutdown::Both);
            error
        });
        let kinds = [io::ErrorKind::TimedOut, io::ErrorKind::WouldBlock];
        assert!(kinds.contains(&error.kind()), "{case}: {error}");
    });
}

#[test]
fn the_handshake_proves_what_the_transport_does_not() {
    for_each_transport(|case, listener| {
        let by_key = |key: Option<[u8; 32]>| {
            shake_hands(connect_pair(case, listener), key.map(VolumeKey::new))
        };
        let (welcome, hello) = by_key(Some([7; 32]));
        assert_eq!(welcome.expect("welcome").node, NodeId(3), "{case}");
        assert_eq!(hello.expect("a hello").client, ClientId([1; 16]), "{case}");
        let (near, _) = connect_pair(case, listener);
        let needs_key = near.transport().authentication == Authentication::Key;
        for key in [None, Some([8; 32])] {
            let (welcome, hello) = by_key(key);
            assert_eq!(welcome.is_err(), needs_key, "{case}");
            assert_eq!(hello.is_err(), needs_key, "{case}");
        }
    });
}

#[test]
fn an_address_in_use_is_not_taken() {
    for_each_transport(|case, _listener| {
        let error = case.listen().expect_err("it is in use");
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse, "{case}");
    });
}

#[test]
fn the_socket_of_a_dead_process_is_replaced_and_another_file_is_not() {
    let dir = tempfile::tempdir().expect("a directory");
    let case = TransportCase { endpoint: Endpoint::Unix(dir.path().join("socket")), tls: None };
    drop(case.listen().expect("listening"));
    let again = case.listen().expect("listening");
    connect_pair(&case, &again);
    let file = dir.path().join("file");
    std::fs::write(&file, "bytes").expect("written");
    let error = Listener::listen(&Endpoint::Unix(file), MODE, None).expect_err("it is no socket");
    assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
}

#[test]
fn the_kernel_names_the_peer_of_a_unix_socket() {
    for_each_transport(|case, listener| {
        let (_near, far) = connect_pair(case, listener);
        let peer = far.identify_peer().expect("a peer");
        assert!(peer.is_trusted() && peer.bound_user().is_none(), "this user itself");
        let names_process = peer.to_string().contains("process");
        let by_kernel = far.transport().authentication == Authentication::Kernel;
        assert_eq!(names_process, by_kernel, "{case}: {peer}");
    });
}
