//! Encrypted connections: which sides accept each other, the words of a refusal, and bytes in both
//! directions at once.

mod common;

use common::{HOUR, TestAuthority, VOLUME, member_trust, open_trust};
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use tatami_cluster::CertificateFile;
use tatami_net::dial::{self, PlainWait};
use tatami_net::handshake::{HandshakeProgress, PendingHandshake, introduce_client};
use tatami_net::{DeadlineStream, Endpoint, Listener, NetStream, TlsTrust};
use tatami_wire::handshake::{HandshakeError, Hello, Role, ServerIdentity, admit_client};
use tatami_wire::{ClientId, NodeId, ProtocolRange, VolumeId, VolumeKey};

const MODE: rustix::fs::Mode = rustix::fs::Mode::from_raw_mode(0o600);

fn hello() -> Hello {
    Hello {
        protocol: ProtocolRange::of_process(),
        role: Role::Data,
        client: ClientId([1; 16]),
        slot: 0,
        volume: Some(VOLUME),
        node: None,
        executor: 0,
        user: None,
    }
}

fn free_endpoint() -> Endpoint {
    let free = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a port");
    Endpoint::from_address(&free.to_string())
}

fn accept(listener: &Listener) -> NetStream {
    loop {
        match listener.accept() {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => thread::yield_now(),
            accepted => return accepted.expect("accepted"),
        }
    }
}

#[allow(clippy::disallowed_methods)] // the peer is slow on purpose
fn be_slow() {
    thread::sleep(Duration::from_millis(1));
}

/// Serves a handshake until it ends.
fn serve(stream: NetStream) -> Result<NetStream, HandshakeError> {
    let (volume, node) = (VOLUME, NodeId(3));
    let identity = ServerIdentity { volume, node, key: VolumeKey::new([7; 32]) };
    let peer = stream.identify_peer().expect("a peer");
    let mut pending = PendingHandshake::new(stream, peer).expect("random bytes");
    loop {
        match pending.receive_bytes(&identity) {
            HandshakeProgress::Pending => thread::yield_now(),
            HandshakeProgress::Failed(e) => return Err(e),
            HandshakeProgress::Proved(_) => {
                admit_client(&mut &pending.stream).expect("sent");
                return Ok(pending.stream);
            }
        }
    }
}

/// What both sides of a new connection say, the client first.
fn meet(
    client: Option<Arc<TlsTrust>>,
    server: Option<Arc<TlsTrust>>,
) -> (Result<NetStream, HandshakeError>, Result<NetStream, HandshakeError>) {
    let endpoint = free_endpoint();
    let listener = Listener::listen(&endpoint, MODE, server).expect("listening");
    thread::scope(|scope| {
        let client = scope.spawn(|| {
            let near = dial::connect(&endpoint, client.as_deref(), &PlainWait)?;
            let key = VolumeKey::new([7; 32]);
            let mut timed = DeadlineStream::new(&near, Duration::from_secs(60));
            introduce_client(&mut timed, near.transport(), &hello(), Some(&key))?;
            near.set_timeouts(None, None)?;
            Ok(near)
        });
        let far = serve(accept(&listener));
        (client.join().expect("the client ends"), far)
    })
}

fn refusals(client: Option<Arc<TlsTrust>>, server: Option<Arc<TlsTrust>>) -> [String; 2] {
    let (near, far) = meet(client, server);
    [near.expect_err("refused").to_string(), far.expect_err("refused").to_string()]
}

#[test]
fn members_of_a_volume_exchange_bytes_in_both_directions_at_once() {
    let dir = tempfile::tempdir().expect("a directory");
    let tls = member_trust(dir.path(), &TestAuthority::new("authority"));
    let (near, far) = meet(Some(tls.clone()), Some(tls));
    let (near, far) = (near.expect("welcome"), far.expect("a hello"));
    const TOTAL: usize = 20 << 20;
    let byte = |at: usize, seed: usize| (at.wrapping_mul(2_654_435_761) >> 7) as u8 ^ seed as u8;
    let send = |mut stream: &NetStream, seed: usize| {
        let bytes: Vec<u8> = (0..TOTAL).map(|at| byte(at, seed)).collect();
        let mut sent = 0;
        while sent < TOTAL {
            // Of all lengths, also longer than a record, a buffer and a write.
            let len = (1 + sent % 300_007).min(TOTAL - sent);
            let part = &bytes[sent..sent + len];
            let (head, tail) = part.split_at(len.min(13));
            let parts = [io::IoSlice::new(head), io::IoSlice::new(tail)];
            sent += stream.write_vectored(&parts).expect("sent");
        }
    };
    let receive = |mut stream: &NetStream, seed: usize| {
        let mut buf = vec![0; 70_001];
        let mut got = 0;
        while got < TOTAL {
            let n = match stream.read(&mut buf[..1 + got % 70_000]) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                n => n.expect("received"),
            };
            assert!(n > 0, "the stream ended after {got} bytes");
            assert!(buf[..n].iter().enumerate().all(|(i, b)| *b == byte(got + i, seed)), "{got}");
            got += n;
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| send(&near, 1));
        scope.spawn(|| send(&far, 2));
        scope.spawn(|| receive(&near, 2));
        receive(&far, 1);
    });
    drop(near);
    assert_eq!((&far).read(&mut [0]).expect("the end"), 0);
}

#[test]
fn a_nonblocking_stream_takes_a_part_and_then_the_same_bytes_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let tls = member_trust(dir.path(), &TestAuthority::new("authority"));
    let (near, far) = meet(Some(tls.clone()), Some(tls));
    let (near, far) = (near.expect("welcome"), far.expect("a hello"));
    for stream in [&near, &far] {
        stream.set_nonblocking().expect("set");
    }
    let empty = (&far).read(&mut [0; 100]).expect_err("nothing came");
    assert_eq!(empty.kind(), io::ErrorKind::WouldBlock);
    let bytes: Vec<u8> = (0..32 << 20).map(|at: usize| (at / 7 % 251) as u8).collect();
    let (mut sent, mut got, mut buf) = (0, Vec::new(), vec![0; 100_000]);
    let mut blocked = 0;
    while got.len() < bytes.len() {
        // The writer goes on until the socket is full, and only then the reader until it is empty.
        while sent < bytes.len() {
            match (&near).write(&bytes[sent..]) {
                Ok(n) => sent += n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    blocked += 1;
                    break;
                }
                Err(e) => panic!("{e}"),
            }
        }
        loop {
            match (&far).read(&mut buf) {
                Ok(n) => got.extend_from_slice(&buf[..n]),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) => panic!("{e}"),
            }
        }
    }
    assert!(got == bytes && blocked > 0 && !far.has_input());
}

#[test]
fn what_is_left_after_a_short_read_needs_no_event() {
    let dir = tempfile::tempdir().expect("a directory");
    let tls = member_trust(dir.path(), &TestAuthority::new("authority"));
    let (near, far) = meet(Some(tls.clone()), Some(tls));
    let (near, far) = (near.expect("welcome"), far.expect("a hello"));
    (&near).write_all(b"several bytes").expect("sent");
    let mut byte = [0; 7];
    (&far).read_exact(&mut byte).expect("received");
    assert_eq!(&byte, b"several");
    assert!(far.has_input(), "the rest waits outside of the socket");
    let mut rest = [0; 100];
    assert_eq!((&far).read(&mut rest).expect("received"), 6);
    assert!(!far.has_input() && rest.starts_with(b" bytes"));
}

#[test]
fn strangers_are_refused_in_words_that_name_the_cause() {
    let dirs: Vec<_> = (0..7).map(|_| tempfile::tempdir().expect("a directory")).collect();
    let [ours, theirs] = ["ours", "theirs"].map(TestAuthority::new);
    let good = member_trust(dirs[0].path(), &ours);
    let other = member_trust(dirs[1].path(), &theirs);
    let with = |at: usize, volume, from, to| {
        open_trust(dirs[at].path(), &ours.file_with(ours.issue(volume, from, to)))
    };
    let expired = with(2, VOLUME, -10 * HOUR, -5 * HOUR);
    let early = with(3, VOLUME, 3 * HOUR + 60, 5 * HOUR);
    let foreign = with(4, VolumeId([9; 16]), -HOUR, HOUR);
    // (client, server, what the client hears, what the server hears)
    let cases = [
        (&good, &other, "from another authority", "from another authority"),
        (&other, &good, "from another authority", "from another authority"),
        (&good, &expired, "expired 5 hours ago", "has expired or is not valid yet"),
        (&expired, &good, "has expired or is not valid yet", "expired 5 hours ago"),
        (&good, &early, "valid only in 3 hours", "has expired or is not valid yet"),
        (&early, &good, "has expired or is not valid yet", "valid only in 3 hours"),
        (&good, &foreign, "that of another volume", "that of another volume"),
        (&foreign, &good, "that of another volume", "that of another volume"),
    ];
    for (client, server, near, far) in cases {
        let said = refusals(Some(client.clone()), Some(server.clone()));
        assert!(said[0].contains(near), "the client: {said:?}, not {near}");
        assert!(said[1].contains(far), "the server: {said:?}, not {far}");
    }
}

#[test]
fn a_side_without_encryption_is_refused_and_both_settings_are_named() {
    let dir = tempfile::tempdir().expect("a directory");
    let tls = member_trust(dir.path(), &TestAuthority::new("authority"));
    for (client, server) in [(Some(tls.clone()), None), (None, Some(tls.clone()))] {
        for said in refusals(client, server) {
            assert!(said.contains("volume.encryption"), "{said}");
        }
    }
    let [near, _] = refusals(Some(tls.clone()), None);
    assert!(near.contains("this side has volume.encryption = tls and the other side has none"));
    let [near, _] = refusals(None, Some(tls));
    assert!(near.contains("the daemon has volume.encryption = tls, and this side has none"));
}

#[test]
fn a_handshake_ends_by_its_deadline_however_slowly_bytes_come() {
    let dir = tempfile::tempdir().expect("a directory");
    let tls = member_trust(dir.path(), &TestAuthority::new("authority"));
    let listener = TcpListener::bind("127.0.0.1:0").expect("listening");
    let address = listener.local_addr().expect("an address").to_string();
    let near = dial::connect(&Endpoint::from_address(&address), Some(&tls), &PlainWait)
        .expect("connected");
    let (mut far, _) = listener.accept().expect("accepted");
    thread::scope(|scope| {
        // A handshake message of 16 KiB, of which a byte comes at a time.
        scope.spawn(move || {
            let mut head = vec![0x16, 3, 3, 0x40, 0, 2, 0, 0x3f, 0xfc];
            head.resize(16 << 10, 0);
            head.iter().all(|byte| {
                be_slow();
                far.write_all(&[*byte]).is_ok()
            })
        });
        let mut timed = DeadlineStream::new(&near, Duration::from_millis(300));
        let error = timed.write_all(b"hello").expect_err("too slow");
        let kinds = [io::ErrorKind::TimedOut, io::ErrorKind::WouldBlock];
        assert!(kinds.contains(&error.kind()), "{error}");
        drop(near);
    });
}

#[test]
fn a_server_bears_a_stranger_that_sends_a_byte_at_a_time_or_rubbish() {
    let dir = tempfile::tempdir().expect("a directory");
    let tls = member_trust(dir.path(), &TestAuthority::new("authority"));
    let endpoint = free_endpoint();
    let listener = Listener::listen(&endpoint, MODE, Some(tls)).expect("listening");
    let Endpoint::Tcp(address) = &endpoint else { panic!("an address") };
    for bytes in [&[0x16, 3, 1, 0, 5, 1, 0, 0, 1, 0][..], &[0xff; 600], b"GET / HTTP/1.1\r\n\r\n"] {
        let mut stranger = TcpStream::connect(address).expect("connected");
        let far = accept(&listener);
        let peer = far.identify_peer().expect("a peer");
        let mut pending = PendingHandshake::new(far, peer).expect("random bytes");
        let identity =
            ServerIdentity { volume: VOLUME, node: NodeId(3), key: VolumeKey::new([7; 32]) };
        assert!(matches!(pending.receive_bytes(&identity), HandshakeProgress::Pending));
        assert!(pending.is_silent());
        let mut ended = false;
        for byte in bytes {
            // The server may have closed already.
            let _ = stranger.write_all(&[*byte]);
            ended |= matches!(pending.receive_bytes(&identity), HandshakeProgress::Failed(_));
        }
        drop(stranger);
        while !ended {
            ended = matches!(pending.receive_bytes(&identity), HandshakeProgress::Failed(_));
        }
        assert!(!pending.is_silent());
    }
}

#[test]
fn new_certificates_are_taken_for_the_next_connection() {
    let dir = tempfile::tempdir().expect("a directory");
    let [old, new] = ["old", "new"].map(TestAuthority::new);
    let tls = member_trust(dir.path(), &old);
    let (near, far) = meet(Some(tls.clone()), Some(tls.clone()));
    let (near, far) = (near.expect("welcome"), far.expect("a hello"));
    let before = tls.generation();
    new.file_of_member().save(&CertificateFile::path_in(dir.path())).expect("saved");
    assert!(tls.generation() != before && tls.generation() == tls.generation());
    let (again, _) = meet(Some(tls.clone()), Some(tls.clone()));
    again.expect("both have the new ones");
    let elsewhere = tempfile::tempdir().expect("a directory");
    let stale = member_trust(elsewhere.path(), &old);
    let [said, _] = refusals(Some(stale), Some(tls.clone()));
    assert!(said.contains("another authority"), "{said}");
    (&near).write_all(b"goes on").expect("sent");
    let mut got = [0; 7];
    (&far).read_exact(&mut got).expect("received");
    assert_eq!(&got, b"goes on");

    // A file that cannot be used leaves the last ones in force.
    std::fs::write(CertificateFile::path_in(dir.path()), "nothing").expect("written");
    let (again, _) = meet(Some(tls.clone()), Some(tls));
    again.expect("as before");
}
