//! Bytes from a stranger in the handshake of TLS, on both sides: rustls parses them, and a session
//! of ours stands between it and the socket.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rcgen::{CertificateParams, KeyPair};
use std::io::{self, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, LazyLock};
use tatami_cluster::{CertificateEntry, CertificateFile, PrivateKeyText};
use tatami_net::dial::{self, PlainWait};
use tatami_net::handshake::{HandshakeProgress, PendingHandshake};
use tatami_net::{Endpoint, Listener, TlsTrust};
use tatami_wire::handshake::ServerIdentity;
use tatami_wire::{NodeId, VolumeId, VolumeKey};

const VOLUME: VolumeId = VolumeId([4; 16]);

/// What both sides need.
struct Sides {
    tls: Arc<TlsTrust>,
    /// Of the server that is tested.
    encrypted: (Endpoint, Listener),
    /// Of the false server that the tested client meets.
    plain: (Endpoint, TcpListener),
}

static SIDES: LazyLock<Sides> = LazyLock::new(|| {
    let params = CertificateParams::new([CertificateFile::member_name(VOLUME)]).expect("a name");
    let key = KeyPair::generate().expect("a key");
    let certificate = params.self_signed(&key).expect("a certificate").pem();
    let private_key = Some(PrivateKeyText(key.serialize_pem()));
    let entry = CertificateEntry { begins: 0, ends: 1 << 40, certificate, private_key };
    let (authorities, machine) = (vec![entry.clone()], Some(entry));
    let file = CertificateFile { volume: VOLUME, authorities, machine };
    let dir = std::env::temp_dir().join(format!("tatami-fuzz-{}-tls", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a directory of this process");
    let path = CertificateFile::path_in(&dir);
    file.save(&path).expect("saved");
    let tls = TlsTrust::load(path, VOLUME).expect("loaded");
    let _ = std::fs::remove_dir_all(dir);
    let free = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a port");
    let endpoint = Endpoint::from_address(&free.to_string());
    let mode = rustix::fs::Mode::RUSR;
    let listener = Listener::listen(&endpoint, mode, Some(tls.clone())).expect("listening");
    let plain = TcpListener::bind("127.0.0.1:0").expect("listening");
    let at = Endpoint::from_address(&plain.local_addr().expect("an address").to_string());
    Sides { tls, encrypted: (endpoint, listener), plain: (at, plain) }
});

fuzz_target!(|bytes: &[u8]| {
    let Some((kind, body)) = bytes.split_first() else { return };
    match kind % 2 {
        0 => meet_server(body),
        _ => meet_client(body),
    }
});

fn meet_server(body: &[u8]) {
    let (endpoint, listener) = &SIDES.encrypted;
    let Endpoint::Tcp(address) = endpoint else { return };
    let mut stranger = TcpStream::connect(address).expect("connected");
    let stream = loop {
        match listener.accept() {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => std::thread::yield_now(),
            accepted => break accepted.expect("accepted"),
        }
    };
    let peer = stream.identify_peer().expect("a peer");
    let mut pending = PendingHandshake::new(stream, peer).expect("random bytes");
    let key = VolumeKey::new([7; 32]);
    let identity = ServerIdentity { volume: VOLUME, node: NodeId(3), key };
    // In two parts, and then the end of the stream.
    for part in [&body[..body.len() / 2], &body[body.len() / 2..]] {
        let _ = stranger.write_all(part);
        if !matches!(pending.receive_bytes(&identity), HandshakeProgress::Pending) {
            return;
        }
    }
    let _ = stranger.shutdown(Shutdown::Write);
    while matches!(pending.receive_bytes(&identity), HandshakeProgress::Pending) {}
}

fn meet_client(body: &[u8]) {
    let (endpoint, listener) = &SIDES.plain;
    let near = dial::connect(endpoint, Some(&SIDES.tls), &PlainWait).expect("connected");
    let (mut stranger, _) = listener.accept().expect("accepted");
    let _ = stranger.write_all(body);
    let _ = stranger.shutdown(Shutdown::Write);
    assert!((&near).write_all(b"hello").is_err(), "a stranger has no certificate");
}
