//! Users without the volume's key. They reach other nodes through the daemon of their own node.

mod common;

use common::*;
use tatami_client::connection::{Caller, ConnectError, Endpoint};
use tatami_client::{Client, ClientOptions};
use tatami_skip::skip_test;
use tatami_wire::admin::{AdminCall, AdminReply};
use tatami_wire::handshake::{self, Authentication, HandshakeError, Hello, Role};
use tatami_wire::meta::{MetaOp, MetaReply};
use tatami_wire::object::ObjectOp;
use tatami_wire::tiles::PieceUpdate;
use tatami_wire::{Access, ClientId, Cred, Errno, Ino, NodeId, ProtocolRange, SetAttr};

/// Two nodes; the shard and the files of these tests are on node 0.
fn two() -> (Volume, [Running; 2]) {
    use std::os::unix::fs::PermissionsExt;
    let volume = Volume::new(2);
    let nodes = [volume.start(0), volume.start(1)];
    // The temporary directory is closed to others; the sockets must not be.
    std::fs::set_permissions(volume.dir.path(), PermissionsExt::from_mode(0o711)).expect("set");
    (volume, nodes)
}

/// Node 0, through the daemon of node 1.
fn through(volume: &Volume) -> Endpoint {
    Endpoint::Through(volume.map.nodes[1].socket.clone().into(), NodeId(0))
}

fn without_key(id: u8) -> Caller {
    Caller { key: None, ..caller(id) }
}

fn set_mode(session: &mut Session, ino: Ino, mode: u16) {
    let set = SetAttr { mode: Some(mode), ..Default::default() };
    session.meta(MetaOp::SetAttr { ino, set }).expect("chmod");
}

#[test]
fn whoever_has_no_key_acts_as_himself_on_other_nodes_too() {
    if !rustix::process::geteuid().is_root() {
        return skip_test("only root can play another user");
    }
    let (volume, _nodes) = two();
    let mut root = Session::new(volume.unix(0), 1);
    let (secret, _) = root.create("secret", 0);
    let (public, _) = root.create("public", 0);
    let (suid, _) = root.create("suid", 0);
    set_mode(&mut root, Ino::ROOT, 0o777);
    set_mode(&mut root, secret.ino, 0o600);
    set_mode(&mut root, suid.ino, 0o4777);
    let tiled = MetaOp::AddPieces { ino: secret.ino, nodes: vec![(NodeId(1), 1)] };
    root.meta(tiled).expect("a piece");
    as_user(12345, 12346, || {
        let mut user = Session::new(through(&volume), 2);
        user.caller = without_key(2);
        user.cred = Cred::ROOT;
        let (mine, own) = user.create("mine", 0);
        assert_eq!((mine.uid, mine.gid), (12345, 12346), "whatever it says");
        let long: Vec<u8> = (0..3_000_000u32).map(|i| (i % 251) as u8).collect();
        for (i, part) in long.chunks(1 << 20).enumerate() {
            assert_eq!(user.write(own, (i as u64) << 20, part), Ok(part.len() as u64));
        }
        assert!(user.read(own, 1 << 20, 1 << 20).expect("read") == long[1 << 20..2 << 20]);

        let open = |ino, access| MetaOp::Open { ino, access, registered: false };
        for access in [Access::READ, Access::BOTH] {
            assert_eq!(user.meta(open(secret.ino, access)), Err(Errno::EACCES));
        }
        assert_eq!(user.meta(open(public.ino, Access::BOTH)), Err(Errno::EACCES));
        // The tiles show which rank wrote where, and so part of the content.
        let tiles = MetaOp::ListTiles { ino: secret.ino, after: 0, limit: 10 };
        assert_eq!(user.meta(tiles), Err(Errno::EACCES));
        let nodes = vec![(NodeId(1), 1)];
        assert_eq!(user.meta(MetaOp::AddPieces { ino: public.ino, nodes }), Err(Errno::EACCES));
        let parts =
            vec![PieceUpdate { piece: 1, tiles: Vec::new().into(), blocks: 0, close: true }];
        let publish =
            MetaOp::Publish { ino: secret.ino, updates: parts, cuts: Vec::new(), base: None };
        assert_eq!(user.meta(publish), Err(Errno::EACCES));
        let Ok(MetaReply::Opened { cap, .. }) = user.meta(open(public.ino, Access::READ)) else {
            panic!("everybody may read it");
        };
        assert_eq!(user.data(cap, ObjectOp::Write { offset: 0 }, b"x").0, Err(Errno::EACCES));
        let mut forged = cap;
        forged.access = Access::BOTH;
        let refused = user.data(forged, ObjectOp::Write { offset: 0 }, b"x").0;
        assert_eq!(refused, Err(Errno::EKEYREJECTED));
        // The node does not see the client's writes, so the set-user-ID bit goes when the client
        // gets the right to write.
        assert!(user.meta(open(suid.ino, Access::BOTH)).is_ok());

        assert_eq!(user.meta(MetaOp::ListClients), Err(Errno::EPERM));
        assert_eq!(user.admin(AdminCall::Shutdown), Err(Errno::EPERM));
        assert_eq!(user.admin(AdminCall::Ping), Ok(AdminReply::Pong));
        // A descriptor would be of another machine.
        for op in [ObjectOp::OpenFd { create: true }, ObjectOp::CreateSpareTable { table: 7 }] {
            assert_eq!(user.data(own, op, &[]).0, Err(Errno::EOPNOTSUPP));
        }

        // Neither another client's id nor delegations.
        let stolen = try_connect(&through(&volume), &without_key(1), Role::Meta);
        assert!(matches!(handshake_error(stolen.err()), HandshakeError::Refused(_)));
        let recalls = try_connect(&through(&volume), &without_key(2), Role::Recall);
        assert!(matches!(handshake_error(recalls.err()), HandshakeError::Refused(_)));
        for node in [None, Some(NodeId(0))] {
            let (role, client, user) = (Role::Admin, ClientId([2; 16]), Some(Cred::ROOT));
            let (protocol, slot) = (ProtocolRange::of_process(), 0);
            let hello =
                Hello { protocol, role, client, slot, volume: None, node, executor: 0, user };
            let mut stream = volume.raw_unix(1);
            let met = handshake::connect_client(
                &mut stream,
                Authentication::Kernel,
                &hello,
                None,
                [3; 16],
            );
            assert!(matches!(met, Err(HandshakeError::Refused(_))), "{met:?}");
        }
        let nowhere = Endpoint::Through(volume.map.nodes[1].socket.clone().into(), NodeId(7));
        let met = try_connect(&nowhere, &without_key(2), Role::Admin);
        assert!(matches!(handshake_error(met.err()), HandshakeError::Refused(_)));
    });
    assert_eq!(root.lookup("suid").expect("found").mode & 0o7777, 0o777);
}

fn handshake_error(error: Option<ConnectError>) -> HandshakeError {
    match error.expect("no connection") {
        ConnectError::Handshake { source, .. } => source,
        other => panic!("no handshake: {other}"),
    }
}

#[test]
fn a_client_without_a_key_uses_all_nodes_and_waits_for_them() {
    let (volume, [first, second]) = two();
    let mut options = ClientOptions::new(volume.unix(1));
    options.patience = PATIENCE;
    let client = Client::connect(options).expect("connects");
    client.create(&Cred::ROOT, Ino::ROOT, b"f", file(), 0o644, 0, true, None).expect("made");
    let ping = |node| client.send_admin(NodeId(node), AdminCall::Ping);
    assert_eq!((ping(0), ping(1)), (Ok(AdminReply::Pong), Ok(AdminReply::Pong)));
    // Its connections end with the node that they lead to, and are made again when it is back.
    first.stop();
    assert_eq!(ping(0), Err(Errno::EHOSTDOWN));
    assert_eq!(ping(1), Ok(AdminReply::Pong));
    let again = std::thread::scope(|scope| {
        let asked = scope.spawn(|| client.lookup(&Cred::ROOT, Ino::ROOT, b"f"));
        let again = volume.start(0);
        assert!(asked.join().expect("it does not panic").is_ok());
        again
    });
    // Broken relays do not delay the end of a daemon.
    second.stop();
    again.stop();
}

fn file() -> tatami_wire::meta::InodeTemplate {
    tatami_wire::meta::InodeTemplate::File(tatami_wire::Layout::whole(NodeId(0)))
}
