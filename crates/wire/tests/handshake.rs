//! Handshakes of two sides: which clients are admitted, which are refused, and the reasons that
//! they get.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

use proptest::prelude::*;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::thread;
use tatami_wire::handshake::*;
use tatami_wire::{
    ClientId, EXECUTORS_MAX, NodeId, OLDEST_PROTOCOL, PROTOCOL_VERSION, ProtocolRange, VolumeId,
    VolumeKey,
};

fn identity() -> ServerIdentity {
    ServerIdentity { volume: VolumeId([9; 16]), node: NodeId(3), key: VolumeKey::new([1; 32]) }
}

fn hello() -> Hello {
    Hello {
        protocol: ProtocolRange::of_process(),
        role: Role::Data,
        client: ClientId([4; 16]),
        slot: 17,
        volume: None,
        node: None,
        executor: 5,
        user: None,
    }
}

/// Runs both sides. The server admits each client that `accept` identifies.
fn meet(
    authentication: Authentication,
    hello: Hello,
    key: Option<VolumeKey>,
) -> (Result<Welcome, HandshakeError>, Result<Hello, HandshakeError>) {
    let (mut ours, mut theirs) = UnixStream::pair().unwrap();
    let server = thread::spawn(move || {
        let met = accept_client(&mut theirs, authentication, &identity(), [2; 16]);
        if met.is_ok() {
            admit_client(&mut theirs).unwrap();
        }
        met
    });
    let met = connect_client(&mut ours, authentication, &hello, key.as_ref(), [1; 16]);
    drop(ours);
    (met, server.join().unwrap())
}

#[test]
fn a_client_with_the_key_is_let_in() {
    let key = Some(VolumeKey::new([1; 32]));
    let (client, server) = meet(Authentication::Key, hello(), key);
    let (volume, node) = (VolumeId([9; 16]), NodeId(3));
    assert_eq!(client.unwrap(), Welcome { volume, node, protocol: PROTOCOL_VERSION });
    assert_eq!(server.unwrap(), hello());
}

#[test]
fn a_node_tells_another_its_number() {
    let key = Some(VolumeKey::new([1; 32]));
    let peer = Hello { role: Role::Peer, slot: 4000, ..hello() };
    let (client, server) = meet(Authentication::Key, peer.clone(), key.clone());
    assert!(client.is_ok());
    assert_eq!(server.unwrap(), peer);
    let slot = Hello { slot: SLOTS_MAX, ..hello() };
    assert!(meet(Authentication::Key, slot, key.clone()).1.is_err(), "no client has so many slots");
    let far = Hello { executor: EXECUTORS_MAX, ..hello() };
    assert!(meet(Authentication::Key, far, key).1.is_err(), "no node has so many executors");
}

#[test]
fn on_a_unix_socket_no_key_is_needed() {
    let (client, server) = meet(Authentication::Kernel, hello(), None);
    assert!(client.is_ok() && server.is_ok());
}

#[test]
fn a_wrong_key_is_noticed_by_both_sides() {
    let wrong = VolumeKey::new([5; 32]);
    let (client, server) = meet(Authentication::Key, hello(), Some(wrong.clone()));
    // The client finds the server's proof wrong, and shows the server its failure.
    assert!(matches!(client, Err(HandshakeError::Key)));
    assert!(matches!(server, Err(HandshakeError::Key)), "{server:?}");
    let (client, server) = meet(Authentication::Key, hello(), None);
    assert!(matches!((client, server), (Err(HandshakeError::Key), Err(HandshakeError::Key))));

    // A client that ignores the wrong proof is refused, too.
    let (mut ours, mut theirs) = UnixStream::pair().unwrap();
    let server = thread::spawn(move || {
        accept_client(&mut theirs, Authentication::Key, &identity(), [2; 16])
    });
    // The server would wait for a hello of another length than this.
    ours.set_read_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
    let mut bytes = [0; 71];
    bytes[..8].copy_from_slice(b"TATAMI\r\n");
    bytes[8..12].copy_from_slice(&PROTOCOL_VERSION.to_le_bytes());
    bytes[12] = 1;
    ours.write_all(&bytes).unwrap();
    let mut challenge = [0; 63];
    ours.read_exact(&mut challenge).unwrap();
    ours.write_all(&[0; 16]).unwrap();
    let mut verdict = [9; 2];
    ours.read_exact(&mut verdict).unwrap();
    assert_eq!(verdict, [1, 0]);
    assert!(matches!(server.join().unwrap(), Err(HandshakeError::Key)));
}

#[test]
fn a_proof_can_not_be_used_again() {
    // A recorded proof fails in the next handshake, because the server's nonce differs.
    let key = VolumeKey::new([1; 32]);
    let mut recorded = Recorder::default();
    let (mut ours, mut theirs) = UnixStream::pair().unwrap();
    let server = thread::spawn(move || {
        accept_client(&mut theirs, Authentication::Key, &identity(), [2; 16]).unwrap();
        admit_client(&mut theirs).unwrap();
    });
    recorded.stream = Some(ours.try_clone().unwrap());
    connect_client(&mut recorded, Authentication::Key, &hello(), Some(&key), [1; 16]).unwrap();
    server.join().unwrap();
    drop(ours);

    (ours, theirs) = UnixStream::pair().unwrap();
    let server = thread::spawn(move || {
        accept_client(&mut theirs, Authentication::Key, &identity(), [3; 16])
    });
    ours.write_all(&recorded.sent).unwrap();
    assert!(matches!(server.join().unwrap(), Err(HandshakeError::Key)));
}

#[derive(Default)]
struct Recorder {
    stream: Option<UnixStream>,
    sent: Vec<u8>,
}

impl Read for Recorder {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        self.stream.as_mut().unwrap().read(buf)
    }
}

impl Write for Recorder {
    fn write(&mut self, buf: &[u8]) -> std::io::Result<usize> {
        self.sent.extend_from_slice(buf);
        self.stream.as_mut().unwrap().write(buf)
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn another_volume_is_another_volume() {
    let other = Hello { volume: Some(VolumeId([7; 16])), ..hello() };
    let (client, _) = meet(Authentication::Kernel, other, None);
    let text = client.unwrap_err().to_string();
    assert!(text.contains("0707") && text.contains("0909"), "{text}");
}

#[test]
fn both_sides_name_the_versions_when_they_have_none_in_common() {
    // A client of version 2 connects to this server.
    let (mut ours, mut theirs) = UnixStream::pair().unwrap();
    let server = thread::spawn(move || {
        accept_client(&mut theirs, Authentication::Kernel, &identity(), [2; 16])
    });
    let start_of = |version: u32| [&b"TATAMI\r\n"[..], &version.to_le_bytes()].concat();
    ours.write_all(&start_of(2)).unwrap();
    let mut start = [0; 12];
    ours.read_exact(&mut start).unwrap();
    assert_eq!(&start[..8], b"TATAMI\r\n");
    assert_eq!(start[8..12], PROTOCOL_VERSION.to_le_bytes());
    let e = server.join().unwrap().unwrap_err();
    assert!(matches!(e, HandshakeError::Version { theirs: 2, .. }));
    assert!(e.to_string().contains("version 2, this one 3 to 4"), "{e}");

    // This client connects to a server of version 99.
    let (mut ours, mut theirs) = UnixStream::pair().unwrap();
    theirs.write_all(&start_of(99)).unwrap();
    let e = connect_client(&mut ours, Authentication::Kernel, &hello(), None, [1; 16]).unwrap_err();
    assert!(matches!(e, HandshakeError::Version { theirs: 99, .. }), "{e}");
    assert!(e.to_string().contains("99"));
}

/// Runs both sides with the key and with these newest versions. A server of version 3 is one that
/// accepts only that version, as the daemons of that time.
fn agree(client: u32, server: u32) -> (Result<u32, HandshakeError>, Result<u32, HandshakeError>) {
    let range = |newest| ProtocolRange::of_process().up_to(newest);
    let (mut ours, mut theirs) = UnixStream::pair().unwrap();
    let served = thread::spawn(move || {
        let key = Authentication::Key;
        let mut handshake = ServerHandshake::with_protocol(range(server), key, [2; 16]);
        loop {
            let mut bytes = vec![0; handshake.bytes_needed()];
            theirs.read_exact(&mut bytes)?;
            if server == 3 && bytes.starts_with(b"TATAMI\r\n") && bytes[8..12] != [3, 0, 0, 0] {
                let mut head = [0; 63];
                head[..12].copy_from_slice(b"TATAMI\r\n\x03\0\0\0");
                theirs.write_all(&head)?;
                return Err(HandshakeError::NotTatami);
            }
            let mut answer = Vec::new();
            let hello = handshake.receive_bytes(&bytes, &identity(), &mut answer);
            theirs.write_all(&answer)?;
            if let Some(hello) = hello? {
                admit_client(&mut theirs)?;
                return Ok(hello.protocol.newest());
            }
        }
    });
    let (key, hello) = (VolumeKey::new([1; 32]), Hello { protocol: range(client), ..hello() });
    let met = connect_client(&mut ours, Authentication::Key, &hello, Some(&key), [1; 16]);
    drop(ours);
    (met.map(|welcome| welcome.protocol), served.join().unwrap())
}

#[test]
fn both_sides_agree_on_the_lower_version() {
    for (client, server) in [(4, 4), (3, 4), (3, 3)] {
        let (near, far) = agree(client, server);
        assert_eq!((near.unwrap(), far.unwrap()), (client.min(server), client.min(server)));
    }
    // The older server accepts the next call, with its own version.
    let (near, _) = agree(4, 3);
    assert!(matches!(near, Err(HandshakeError::Version { theirs: 3, .. })), "{near:?}");
}

#[test]
fn a_newer_client_gets_the_version_of_this_server() {
    let (mut ours, mut theirs) = UnixStream::pair().unwrap();
    let server = thread::spawn(move || {
        accept_client(&mut theirs, Authentication::Kernel, &identity(), [2; 16])
    });
    let mut bytes = [0; 71];
    bytes[..8].copy_from_slice(b"TATAMI\r\n");
    bytes[8..12].copy_from_slice(&99u32.to_le_bytes());
    bytes[12] = Role::Admin as u8;
    ours.write_all(&bytes).unwrap();
    let mut challenge = [0; 63];
    ours.read_exact(&mut challenge).unwrap();
    assert_eq!(challenge[8..12], PROTOCOL_VERSION.to_le_bytes());
    ours.write_all(&[0; 16]).unwrap();
    assert_eq!(server.join().unwrap().unwrap().protocol.newest(), PROTOCOL_VERSION);
}

#[test]
fn nobody_on_the_way_lowers_the_version() {
    // A machine in the middle that changes the version of the challenge breaks the proof.
    let (mut ours, mut middle) = UnixStream::pair().unwrap();
    let (mut middle_far, mut theirs) = UnixStream::pair().unwrap();
    let server = thread::spawn(move || {
        accept_client(&mut theirs, Authentication::Key, &identity(), [2; 16])
    });
    let changer = thread::spawn(move || {
        let mut hello = [0; 71];
        middle.read_exact(&mut hello).unwrap();
        hello[8..12].copy_from_slice(&99u32.to_le_bytes());
        middle_far.write_all(&hello).unwrap();
        let mut challenge = [0; 63];
        middle_far.read_exact(&mut challenge).unwrap();
        middle.write_all(&challenge).unwrap();
        let mut proof = [0; 16];
        middle.read_exact(&mut proof).unwrap();
        middle_far.write_all(&proof).unwrap();
    });
    let key = VolumeKey::new([1; 32]);
    let met = connect_client(&mut ours, Authentication::Key, &hello(), Some(&key), [1; 16]);
    assert!(matches!(met, Err(HandshakeError::Key)), "{met:?}");
    changer.join().unwrap();
    assert!(server.join().unwrap().is_err());
}

#[test]
fn the_version_of_a_node_behind_the_daemon_comes_with_the_verdict() {
    let relayed = |protocol: u32| {
        let (mut ours, mut theirs) = UnixStream::pair().unwrap();
        let server = thread::spawn(move || {
            let hello = accept_client(&mut theirs, Authentication::Kernel, &identity(), [2; 16]);
            admit_relayed_client(&mut theirs, &hello.unwrap(), protocol).unwrap();
        });
        let met = connect_client(&mut ours, Authentication::Kernel, &hello(), None, [1; 16]);
        server.join().unwrap();
        met.map(|welcome| welcome.protocol)
    };
    for protocol in OLDEST_PROTOCOL..=PROTOCOL_VERSION {
        assert_eq!(relayed(protocol).unwrap(), protocol);
    }
    let older = relayed(OLDEST_PROTOCOL - 1);
    assert!(matches!(older, Err(HandshakeError::Version { theirs: 2, .. })), "{older:?}");
}

#[test]
fn a_refusal_brings_its_reason() {
    let (mut ours, mut theirs) = UnixStream::pair().unwrap();
    let server = thread::spawn(move || {
        accept_client(&mut theirs, Authentication::Kernel, &identity(), [2; 16]).unwrap();
        refuse_client(&mut theirs, &"too many connections: é".repeat(20)).unwrap();
    });
    let e = connect_client(&mut ours, Authentication::Kernel, &hello(), None, [1; 16]).unwrap_err();
    assert!(e.to_string().contains("too many connections"), "{e}");
    server.join().unwrap();
}

proptest! {
    /// For all bytes from a stranger, the server ends with an error or with a peer without proof,
    /// and the client ends with an error.
    #[test]
    fn noise_ends_in_an_error(noise in prop::collection::vec(any::<u8>(), 0..200), prefix: bool) {
        let mut bytes = if prefix {
            [&b"TATAMI\r\n"[..], &PROTOCOL_VERSION.to_le_bytes()].concat()
        } else {
            Vec::new()
        };
        bytes.extend_from_slice(&noise);
        let mut peer = Script { input: &bytes, at: 0 };
        prop_assert!(accept_client(&mut peer, Authentication::Key, &identity(), [2; 16]).is_err());
        let mut peer = Script { input: &bytes, at: 0 };
        let key = VolumeKey::new([1; 32]);
        let met = connect_client(&mut peer, Authentication::Key, &hello(), Some(&key), [1; 16]);
        prop_assert!(met.is_err());
    }
}

/// A peer that sends fixed bytes and ignores all input.
struct Script<'a> {
    input: &'a [u8],
    at: usize,
}

impl Read for Script<'_> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        let n = (&self.input[self.at..]).read(buf)?;
        self.at += n;
        Ok(n)
    }
}

impl Write for Script<'_> {
    fn write(&mut self, buf: &[u8]) -> std::io::Result<usize> {
        Ok(buf.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
