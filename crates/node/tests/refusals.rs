//! How a node treats connections and requests that it must refuse, and the cases in which it does
//! not start.

mod common;

use common::*;
use parking_lot::Mutex;
use proptest::prelude::*;
use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use tatami_client::connection::{Caller, ConnectError, Connection};
use tatami_node::{NodeDaemon, StartError};
use tatami_skip::skip_test;
use tatami_wire::admin::{AdminCall, AdminReply, MountInfo};
use tatami_wire::delegation::RecallCall;
use tatami_wire::frame::{self, BODY_MAX, FrameClass, HEADER_LEN, PAYLOAD_MAX};
use tatami_wire::handshake::{HandshakeError, Role};
use tatami_wire::meta::{InodeTemplate, MetaCall, MetaOp, MetaReply};
use tatami_wire::object::{ObjectCall, ObjectOp, ObjectReply};
use tatami_wire::transaction::{PeerMessage, Txid};
use tatami_wire::{
    Access, Cap, ClientId, Cred, Errno, ExecutorId, Ino, Layout, NodeId, Piece, ShardId, Timestamp,
    VolumeId, VolumeKey,
};

fn handshake_error(result: Result<Connection, ConnectError>) -> HandshakeError {
    match result.err().expect("no connection") {
        ConnectError::Handshake { source, .. } => source,
        other => panic!("no handshake: {other}"),
    }
}

#[test]
fn strangers_are_refused_in_the_handshake_and_told_why() {
    let volume = Volume::new(1);
    let _node = volume.start(0);
    for role in [Role::Meta, Role::Data, Role::Admin, Role::Recall] {
        let wrong_key = Caller { key: Some(VolumeKey::new([1; 32])), ..caller(1) };
        let error = handshake_error(try_connect(&volume.tcp(0), &wrong_key, role));
        assert!(matches!(error, HandshakeError::Key), "{error}");
        let no_key = Caller { key: None, ..caller(1) };
        let error = handshake_error(try_connect(&volume.tcp(0), &no_key, role));
        assert!(matches!(error, HandshakeError::Key), "{error}");
        connect(&volume.unix(0), &no_key, role);
        let ours = VolumeId([1; 16]);
        let other = Caller { volume: Some(ours), ..caller(1) };
        for endpoint in [volume.tcp(0), volume.unix(0)] {
            let error = handshake_error(try_connect(&endpoint, &other, role)).to_string();
            assert!(error.contains(&VOLUME.to_string()), "{error}");
        }
    }
}

#[test]
fn another_version_reads_ours_from_the_answer() {
    let volume = Volume::new(1);
    let _node = volume.start(0);
    let mut stream = volume.raw_tcp(0);
    stream.write_all(b"TATAMI\r\n\x02\0\0\0 whatever version 2 says next").expect("sent");
    let answer = rest(&mut stream);
    assert_eq!(&answer[..8], b"TATAMI\r\n");
    assert_eq!(answer[8..12], tatami_wire::PROTOCOL_VERSION.to_le_bytes());
}

#[test]
fn garbage_and_half_messages_end_their_connection_and_nothing_else() {
    let volume = Volume::new(1);
    let _node = volume.start(0);
    let mut good = Session::new(volume.tcp(0), 1);
    good.create("file", 0);
    for garbage in [&b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"[..], &[0xff; 5000], b"TATAMI\r\n"]
    {
        let mut stream = volume.raw_tcp(0);
        // The other side may close before it has read all.
        let _ = stream.write_all(garbage);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        assert_eq!(rest(&mut stream), b"");
        let mut stream = volume.raw_unix(0);
        let _ = stream.write_all(garbage);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        assert_eq!(rest(&mut stream), b"");
    }
    assert!(good.lookup("file").is_ok());
}

/// A connection after a good handshake, as a bare stream; that of a node is node 7's.
fn greeted(volume: &Volume, role: Role) -> std::net::TcpStream {
    use tatami_wire::ProtocolRange;
    use tatami_wire::handshake::{self, Authentication, Hello};
    let mut stream = volume.raw_tcp(0);
    let hello = Hello {
        protocol: ProtocolRange::of_process(),
        role,
        client: ClientId([0xaa; 16]),
        slot: 7,
        volume: None,
        node: None,
        executor: 0,
        user: None,
    };
    handshake::connect_client(&mut stream, Authentication::Key, &hello, Some(&key()), [3; 16])
        .expect("a handshake");
    stream
}

const ROLES: [(Role, FrameClass); 5] = [
    (Role::Meta, FrameClass::Meta),
    (Role::Data, FrameClass::Object),
    (Role::Admin, FrameClass::Admin),
    (Role::Recall, FrameClass::Recall),
    (Role::Peer, FrameClass::Peer),
];

#[test]
fn frames_that_are_wrong_end_their_connection() {
    let volume = Volume::spread(8);
    let _node = volume.start(0);
    let mut good = Session::new(volume.tcp(0), 1);
    for (role, class) in ROLES {
        let frame = |class, payload| {
            let mut frame = Vec::new();
            frame::encode_frame(&mut frame, class, 1, &"not a request", payload);
            frame
        };
        let mut wrong_length = frame(class, 0);
        wrong_length[4..8].copy_from_slice(&(BODY_MAX as u32 + 1).to_le_bytes());
        let mut huge_payload = frame(class, 0);
        huge_payload[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
        let mut damaged = frame(class, 0);
        damaged[HEADER_LEN] ^= 1;
        let other = ROLES.iter().find(|(r, _)| *r != role).expect("another").1;
        let half = frame(class, 0)[..HEADER_LEN + 3].to_vec();
        for bytes in [
            frame(class, 0),
            frame(other, 0),
            wrong_length,
            huge_payload,
            damaged,
            half,
            vec![9; 24],
        ] {
            let mut stream = greeted(&volume, role);
            let _ = stream.write_all(&bytes);
            let _ = stream.shutdown(std::net::Shutdown::Write);
            assert_eq!(rest(&mut stream), b"", "{role:?}: {bytes:?}");
        }
        assert!(good.meta(MetaOp::StatVolume).is_ok());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    /// However the bytes of a trusted client change on their way, the node lives.
    #[test]
    fn a_node_outlives_any_bytes(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        which in 0..ROLES.len(),
    ) {
        static NODE: std::sync::OnceLock<(Volume, Running)> = std::sync::OnceLock::new();
        let (volume, _) = NODE.get_or_init(|| {
            let volume = Volume::spread(8);
            let node = volume.start(0);
            (volume, node)
        });
        let (role, class) = ROLES[which];
        let mut sent = Vec::new();
        let call = MetaCall { shard: ShardId(0), cred: Cred::ROOT, op: MetaOp::StatVolume };
        match role {
            Role::Meta => frame::encode_frame(&mut sent, class, 1, &call, 0),
            Role::Data => {
                let now = Timestamp::from_sec(i64::MAX / 2);
                let cap = Cap::sign(&key(), Ino(99), Access::BOTH, now);
                let op = ObjectOp::Read { offset: 0, len: 10 };
                let call = ObjectCall { cap, piece: Piece(0), op };
                frame::encode_frame(&mut sent, class, 1, &call, 0);
            }
            Role::Admin => frame::encode_frame(&mut sent, class, 1, &AdminCall::Ping, 0),
            Role::Recall => frame::encode_frame(&mut sent, class, 1, &RecallCall::KeepAlive, 0),
            Role::Peer => {
                let txid = Txid { executor: ExecutorId::first_of_node(NodeId(7)), incarnation: 1, number: 1 };
                frame::encode_frame(&mut sent, class, 1, &PeerMessage::Prepared { txid }, 0);
            }
        }
        sent.extend_from_slice(&bytes);
        for (at, byte) in changes {
            let at = at.index(sent.len());
            sent[at] = byte;
        }
        let mut stream = greeted(volume, role);
        let _ = stream.write_all(&sent);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        rest(&mut stream);
        let mut good = Session::new(volume.tcp(0), 1);
        prop_assert_eq!(good.admin(AdminCall::Ping), Ok(AdminReply::Pong));
        prop_assert!(good.meta(MetaOp::StatVolume).is_ok());
    }
}

#[test]
fn a_client_that_takes_no_answers_stops_only_itself() {
    let volume = Volume::new(1);
    let _node = volume.start(0);
    let mut good = Session::new(volume.unix(0), 1);
    for i in 0..300 {
        good.create(&format!("{i:0>200}"), 0);
    }
    let mut greedy = greeted(&volume, Role::Meta);
    greedy.set_nonblocking(true).expect("set");
    let op = MetaOp::ReadDir { dir: Ino::ROOT, after: 0, limit: 1000, plus: true };
    let mut frame = Vec::new();
    let call = MetaCall { shard: ShardId(0), cred: Cred::ROOT, op };
    frame::encode_frame(&mut frame, FrameClass::Meta, 1, &call, 0);
    // Sends requests until the node accepts no more: it must not buffer answers without bound.
    let mut asked = 0;
    let mut full = 0;
    while full < 20 {
        match greedy.write(&frame) {
            Ok(n) if n == frame.len() => (asked, full) = (asked + 1, 0),
            Ok(_) => break,
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {
                full += 1;
                assert!(good.lookup(&format!("{:0>200}", 1)).is_ok());
            }
            Err(e) => panic!("broken off: {e}"),
        }
    }
    assert!(good.meta(MetaOp::StatVolume).is_ok());
    // When the client takes its answers after all, they are all there.
    greedy.set_nonblocking(false).expect("set");
    let mut body = Vec::new();
    for _ in 0..asked.min(100) {
        let header = frame::read_frame(&mut greedy, &mut body).expect("an answer");
        assert_eq!(header.seq, 1);
    }
}

#[test]
fn capabilities_are_checked_where_the_bytes_are() {
    let volume = Volume::new(1);
    let _node = volume.start(0);
    let mut session = Session::new(volume.tcp(0), 1);
    let (attr, cap) = session.create("file", 0);
    let now = Timestamp::from_sec(0);
    let sign = |key: &VolumeKey, access, now| Cap::sign(key, attr.ino, access, now);
    let forged = sign(&VolumeKey::new([1; 32]), Access::BOTH, Timestamp::from_sec(1 << 40));
    let expired = sign(&key(), Access::BOTH, now);
    let reading = sign(&key(), Access::READ, Timestamp::from_sec(1 << 40));
    for payload in [0, 10, PAYLOAD_MAX] {
        let payload = vec![7; payload];
        assert_eq!(session.write(forged, 0, &payload), Err(Errno::EKEYREJECTED));
        assert_eq!(session.write(expired, 0, &payload), Err(Errno::EKEYEXPIRED));
        assert_eq!(session.write(reading, 0, &payload), Err(Errno::EACCES));
    }
    let (copied, _) = session.data(
        cap,
        ObjectOp::CopyFrom {
            source: forged,
            source_piece: Piece(0),
            source_offset: 0,
            offset: 0,
            len: 1,
        },
        &[],
    );
    assert_eq!(copied, Err(Errno::EKEYREJECTED));
    assert_eq!(session.read(cap, 0, 10), Ok(vec![]));
    assert_eq!(session.read(cap, 0, PAYLOAD_MAX as u32 + 1), Err(Errno::EINVAL));
    // Unexpected bytes do not put requests and answers out of step.
    assert_eq!(session.data(cap, ObjectOp::Stat, b"surprise").0, Err(Errno::EPROTO));
    assert!(matches!(session.data(cap, ObjectOp::Stat, &[]).0, Ok(ObjectReply::State(_))));
}

#[test]
fn ordinary_users_act_as_themselves_and_give_no_orders() {
    if !rustix::process::geteuid().is_root() {
        return skip_test("only root can play another user");
    }
    let volume = Volume::new(1);
    let _node = volume.start(0);
    let mut root = Session::new(volume.unix(0), 1);
    let (attr, cap) = root.create("roots", 0);
    root.meta(MetaOp::SetAttr {
        ino: Ino::ROOT,
        set: tatami_wire::SetAttr { mode: Some(0o777), ..Default::default() },
    })
    .expect("everybody may make files");
    // The temporary directory is closed to others; the socket must not be.
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(volume.dir.path(), PermissionsExt::from_mode(0o711)).expect("set");
    as_user(12345, 12346, || {
        let mut user = Session::new(volume.unix(0), 2);
        user.cred = Cred::ROOT;
        let (mine, _) = user.create("mine", 0);
        assert_eq!((mine.uid, mine.gid), (12345, 12346), "whatever it says");
        let chown = MetaOp::SetAttr {
            ino: attr.ino,
            set: tatami_wire::SetAttr { mode: Some(0o777), ..Default::default() },
        };
        assert_eq!(user.meta(chown), Err(Errno::EPERM));
        assert_eq!(user.meta(MetaOp::ListClients), Err(Errno::EPERM));
        assert_eq!(user.meta(MetaOp::ListGarbage { node: NodeId(0), limit: 1 }), Err(Errno::EPERM));
        for order in [
            AdminCall::Shutdown,
            AdminCall::ListObjects { after: None, limit: 1 },
            AdminCall::RemoveObjects { ino: attr.ino },
            AdminCall::StatObject { ino: attr.ino, piece: Piece(0) },
            AdminCall::Announce(MountInfo {
                path: "/".into(),
                pid: 1,
                passthrough: true,
                why_not: None,
                io_uring: true,
                why_no_io_uring: None,
            }),
        ] {
            assert_eq!(user.admin(order), Err(Errno::EPERM));
        }
        assert_eq!(user.admin(AdminCall::Ping), Ok(AdminReply::Pong));
        assert!(user.status().clients.is_empty(), "ids are as good as names");
        // For bytes, only a capability counts.
        assert_eq!(user.write(cap, 0, b"allowed"), Ok(7));
        // The client id of another user is of no use.
        let stolen = try_connect(&volume.unix(0), &caller(1), Role::Meta);
        assert!(matches!(handshake_error(stolen), HandshakeError::Refused(_)));
    });
}

#[test]
fn requests_to_the_wrong_shard_or_for_unknown_nodes_are_refused() {
    let volume = Volume::new(1);
    let _node = volume.start(0);
    let mut connection = connect(&volume.unix(0), &caller(1), Role::Meta);
    let call = MetaCall { shard: ShardId(1), cred: Cred::ROOT, op: MetaOp::StatVolume };
    let result: Result<MetaReply, Errno> =
        connection.call(FrameClass::Meta, 1, &call).expect("answer");
    assert_eq!(result, Err(Errno::ESTALE));
    let op = MetaOp::Create {
        parent: Ino::ROOT,
        name: bytes("nowhere"),
        node: InodeTemplate::File(Layout::whole(NodeId(7))),
        mode: 0o644,
        umask: 0,
        exclusive: true,
        open: None,
    };
    let call = MetaCall { shard: ShardId(0), cred: Cred::ROOT, op };
    let result: Result<MetaReply, Errno> =
        connection.call(FrameClass::Meta, 2, &call).expect("answer");
    assert_eq!(result, Err(Errno::EINVAL));
}

fn start_error(volume: &Volume) -> StartError {
    NodeDaemon::start(volume.options(0)).err().expect("does not start")
}

#[test]
fn a_node_that_cannot_start_says_why_and_what_to_do() {
    let volume = Volume::new(1);
    let running = volume.start(0);
    let error = start_error(&volume).to_string();
    assert!(error.contains(&format!("process {}", std::process::id())), "{error}");

    // Another directory, but the same port.
    let mut options = volume.options(0);
    options.dir = volume.dir.path().join("elsewhere");
    let error = NodeDaemon::start(options.clone()).err().expect("port in use");
    assert!(matches!(error, StartError::PortInUse { .. }), "{error}");
    assert!(error.to_string().contains(&volume.map.nodes[0].address), "{error}");
    // The same socket.
    options.map.nodes[0].address = "127.0.0.1:0".into();
    let error = NodeDaemon::start(options.clone()).err().expect("socket in use");
    assert!(matches!(error, StartError::SocketInUse { .. }), "{error}");
    running.stop();

    options.map.nodes[0].address = "192.0.2.1:7000".into();
    let error = NodeDaemon::start(options.clone()).err().expect("not our address");
    assert!(matches!(error, StartError::Listen { .. }), "{error}");
    options.node = NodeId(5);
    let error = NodeDaemon::start(options).err().expect("unknown");
    assert!(matches!(error, StartError::UnknownNode(_)), "{error}");

    let mut other = volume.options(0);
    other.map.volume = VolumeId([1; 16]);
    let error = NodeDaemon::start(other).err().expect("another volume").to_string();
    assert!(error.contains("it belongs to volume"), "{error}");

    let socket = &volume.map.nodes[0].socket;
    std::fs::write(socket, b"a file").expect("written");
    let error = start_error(&volume);
    assert!(matches!(error, StartError::NotASocket { .. }), "{error}");
    std::fs::remove_file(socket).expect("removed");
    // A killed daemon leaves a socket that does not answer.
    drop(UnixListener::bind(socket).expect("bound"));
    assert!(std::path::Path::new(socket).exists());
    volume.start(0).stop();
}

/// Half-open connections of each kind: more than the handshake slots of one user.
const CROWD: usize = 400;

#[test]
fn strangers_that_say_nothing_keep_nobody_out() {
    let volume = Volume::new(1);
    let _node = volume.start(0);
    let root = rustix::process::geteuid().is_root();
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(volume.dir.path(), PermissionsExt::from_mode(0o711)).expect("set");
    let as_other = |uid, run: &(dyn Fn() + Sync)| match root {
        true => as_user(uid, uid, run),
        // Without root the test cannot run as another user: then all connections are one user's.
        false => run(),
    };
    let (tcp, unix) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    let crowd = || {
        for _ in 0..CROWD {
            tcp.lock().push(volume.raw_tcp(0));
            unix.lock().push(volume.raw_unix(0));
        }
    };
    as_other(12345, &crowd);
    // All of these are admitted while the crowd is there, at the first attempt.
    let mut good = Session::new(volume.tcp(0), 1);
    good.create("file", 0);
    for _ in 0..20 {
        for role in [Role::Meta, Role::Data, Role::Admin, Role::Recall] {
            connect(&volume.tcp(0), &caller(1), role);
            connect(&volume.unix(0), &caller(1), role);
        }
        as_other(12346, &|| drop(connect(&volume.unix(0), &caller(2), Role::Meta)));
    }
    // The connections of the crowd are dropped one by one, and counted.
    for mut stream in tcp.into_inner() {
        assert_eq!(stream.read(&mut [0; 1]).expect("an end"), 0);
    }
    for mut stream in unix.into_inner() {
        assert_eq!(stream.read(&mut [0; 1]).expect("an end"), 0);
    }
    let away = good.status().turned_away;
    assert_eq!(away.silent + away.crowded_out, 2 * CROWD as u64, "{away:?}");
    assert!(!root || away.crowded_out >= 200, "one user has few places: {away:?}");
}

#[test]
fn each_reason_to_turn_somebody_away_is_counted_by_itself() {
    let volume = Volume::new(1);
    let _node = volume.start(0);
    let wrong_key = Caller { key: Some(VolumeKey::new([1; 32])), ..caller(1) };
    for _ in 0..100 {
        let mut stream = volume.raw_tcp(0);
        let _ = stream.write_all(b"GET / HTTP/1.1\r\n\r\n");
        let _ = stream.read(&mut [0; 1]);
    }
    for _ in 0..3 {
        assert!(try_connect(&volume.tcp(0), &wrong_key, Role::Meta).is_err());
    }
    let mut stream = volume.raw_tcp(0);
    stream.write_all(b"TATAMI\r\n\x02\0\0\0").expect("sent");
    rest(&mut stream);
    // The node itself must not be a peer of its own.
    assert!(try_connect(&volume.tcp(0), &caller(1), Role::Peer).is_err());
    let mut good = Session::new(volume.tcp(0), 1);
    // The node may be about to read the last message of a client that has gone.
    let deadline = std::time::Instant::now() + PATIENCE;
    while good.status().turned_away.wrong_key < 3 && std::time::Instant::now() < deadline {
        std::thread::yield_now();
    }
    let away = good.status().turned_away;
    assert_eq!((away.wrong_key, away.other_version, away.refused), (3, 1, 1), "{away:?}");
    assert_eq!((away.broken, away.silent, away.crowded_out), (100, 0, 0), "{away:?}");
}

#[test]
fn users_that_take_all_they_can_get_leave_room_for_others() {
    if !rustix::process::geteuid().is_root() {
        return skip_test("only root can play another user");
    }
    let volume = Volume::new(1);
    let _node = volume.start(0);
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(volume.dir.path(), PermissionsExt::from_mode(0o711)).expect("set");
    let greedy = as_user(12345, 12345, || {
        let more = || try_connect(&volume.unix(0), &caller(2), Role::Admin).ok();
        std::iter::from_fn(more).collect::<Vec<_>>()
    });
    assert!(greedy.len() > 100, "{}", greedy.len());
    let mut root = Session::new(volume.unix(0), 1);
    assert_eq!(root.admin(AdminCall::Ping), Ok(AdminReply::Pong));
    as_user(12346, 12346, || drop(connect(&volume.unix(0), &caller(3), Role::Data)));
}

#[test]
fn a_silent_connection_does_not_keep_others_out() {
    let volume = Volume::new(1);
    let _node = volume.start(0);
    let silent: Vec<_> = (0..20).map(|_| volume.raw_tcp(0)).collect();
    let mut good = Session::new(volume.tcp(0), 1);
    good.create("file", 0);
    // Each of them is dropped when it has been silent for a second.
    for mut stream in silent {
        assert_eq!(stream.read(&mut [0; 1]).expect("an end"), 0);
    }
}

#[test]
fn a_closed_volume_lets_its_own_user_in_only() {
    if !rustix::process::geteuid().is_root() {
        return skip_test("only root can play another user");
    }
    use std::os::unix::fs::PermissionsExt;
    let volume = Volume::new(2);
    std::fs::set_permissions(volume.dir.path(), PermissionsExt::from_mode(0o711)).expect("set");
    let _far = volume.start(1);
    let mut options = volume.options(0);
    options.allow_other = false;
    let node = NodeDaemon::start(options).expect("the node starts");
    let stop = node.stop_handle();
    let thread = std::thread::spawn(move || node.run());
    let no_key = |id| Caller { key: None, ..caller(id) };
    let socket = &volume.map.nodes[0].socket;
    as_user(12345, 12345, || {
        let error = try_connect(&volume.unix(0), &no_key(2), Role::Admin).err().expect("closed");
        assert!(matches!(error, ConnectError::Unreachable { .. }), "{error}");
    });
    std::fs::set_permissions(socket, PermissionsExt::from_mode(0o666)).expect("set");
    as_user(12345, 12345, || {
        for role in [Role::Meta, Role::Data, Role::Admin] {
            let refused = handshake_error(try_connect(&volume.unix(0), &no_key(2), role));
            assert!(refused.to_string().contains("mount.allow_other"), "{refused}");
            // Nor through a node that is open to others.
            let through = tatami_client::Endpoint::Through(
                volume.map.nodes[1].socket.clone().into(),
                NodeId(0),
            );
            let refused = handshake_error(try_connect(&through, &no_key(3), role));
            assert!(refused.to_string().contains("mount.allow_other"), "{refused}");
        }
    });
    connect(&volume.unix(0), &no_key(1), Role::Meta);
    connect(&volume.tcp(0), &caller(1), Role::Meta);
    stop.stop();
    thread.join().expect("ends").expect("well");
}
