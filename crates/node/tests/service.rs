//! The service of a node for a client that follows the protocol.

mod common;

use common::*;
use std::io::Read;
use std::time::{Duration, Instant};
use tatami_client::connection::Connection;
use tatami_wire::admin::{AdminCall, AdminReply, Durability, MountInfo};
use tatami_wire::delegation::{DelegationGrant, RecallCall, RecallNotice};
use tatami_wire::frame::{FrameClass, PAYLOAD_MAX};
use tatami_wire::handshake::Role;
use tatami_wire::meta::{DataState, MetaCall, MetaOp, MetaReply, MetaResult};
use tatami_wire::object::{ObjectCall, ObjectOp, ObjectReply, ObjectResult, SeekTarget};
use tatami_wire::{Attr, Cred, Errno, Ino, NodeId, Piece, SetAttr, ShardId};

#[test]
fn names_are_kept_over_both_transports_and_over_a_restart() {
    let volume = Volume::new(1);
    let node = volume.start(0);
    let mut local = Session::new(volume.unix(0), 1);
    let mut remote = Session::new(volume.tcp(0), 2);
    let (attr, _) = local.create("a", 0);
    let seen_elsewhere = |attr: &Attr| Attr { maybe_written_elsewhere: true, ..attr.clone() };
    assert_eq!(remote.lookup("a").expect("found"), seen_elsewhere(&attr));
    local.close(attr.ino);
    assert_eq!(remote.lookup("a").expect("found"), attr);
    let (attr, _) = remote.create("b", 0);
    assert_eq!(local.lookup("b").expect("found"), seen_elsewhere(&attr));
    assert_eq!(local.lookup("c"), Err(Errno::ENOENT));
    assert_eq!(local.meta(MetaOp::Sync), Ok(MetaReply::Synced { epoch: 1 }));
    drop((local, remote));
    node.stop();

    let _node = volume.start(0);
    let mut local = Session::new(volume.unix(0), 3);
    assert_eq!(local.lookup("b").expect("found again"), seen_elsewhere(&attr));
    let status = local.status();
    assert_eq!((status.inodes, status.shards), (3, 1));
    assert!(status.trouble.is_empty(), "{:?}", status.trouble);
}

#[test]
fn bytes_are_written_and_read_over_both_transports() {
    let volume = Volume::new(1);
    let node = volume.start(0);
    let mut local = Session::new(volume.unix(0), 1);
    let mut remote = Session::new(volume.tcp(0), 2);
    let (_, cap) = local.create("file", 0);
    let bytes: Vec<u8> = (0..PAYLOAD_MAX as u32).map(|i| (i * 7 / 256) as u8).collect();
    for session in [&mut local, &mut remote] {
        assert_eq!(session.read(cap, 0, 100), Ok(vec![]));
        assert_eq!(session.write(cap, 5, b"hello"), Ok(5));
        assert_eq!(session.read(cap, 0, 100).expect("read"), b"\0\0\0\0\0hello");
        assert_eq!(session.write(cap, 0, &bytes), Ok(bytes.len() as u64));
        assert_eq!(session.read(cap, 0, PAYLOAD_MAX as u32).expect("read"), bytes);
        assert_eq!(
            session.read(cap, bytes.len() as u64 - 3, 10).expect("read"),
            bytes[bytes.len() - 3..]
        );
        let (appended, _) = session.data(cap, ObjectOp::Append, &bytes);
        assert_eq!(
            appended,
            Ok(ObjectReply::Written { offset: bytes.len() as u64, len: bytes.len() as u64 })
        );
        let (seek, _) =
            session.data(cap, ObjectOp::Seek { what: SeekTarget::Hole, offset: 0 }, &[]);
        assert_eq!(seek, Ok(ObjectReply::Offset(2 * bytes.len() as u64)));
        let (synced, _) = session.data(cap, ObjectOp::Sync { data_only: false }, &[]);
        let Ok(ObjectReply::State(state)) = synced else { panic!("{synced:?}") };
        assert_eq!(state.size, 2 * bytes.len() as u64);
        let (cut, _) = session.data(cap, ObjectOp::Truncate { size: 0 }, &[]);
        assert!(cut.is_ok());
    }
    let (_, source) = local.create("source", 0);
    local.write(source, 0, b"copied").expect("written");
    let copy =
        ObjectOp::CopyFrom { source, source_piece: Piece(0), source_offset: 1, offset: 0, len: 99 };
    assert_eq!(remote.data(cap, copy, &[]).0, Ok(ObjectReply::Written { offset: 0, len: 5 }));
    assert_eq!(remote.read(cap, 0, 100).expect("read"), b"opied");
    node.stop();
    let _node = volume.start(0);
    let mut again = Session::new(volume.tcp(0), 3);
    assert_eq!(again.read(cap, 0, 100).expect("read"), b"opied");
}

#[test]
fn requests_sent_together_are_answered_in_order() {
    let volume = Volume::new(1);
    let _node = volume.start(0);
    for (id, endpoint) in [(1, volume.unix(0)), (2, volume.tcp(0))] {
        let mut session = Session::new(endpoint, id);
        let (_, cap) = session.create(&format!("file {id}"), 0);
        let connection = session.data_connection();
        const N: u64 = 300;
        for i in 0..N {
            let op = match i % 3 {
                0 => ObjectOp::Write { offset: i / 3 * 1000 },
                1 => ObjectOp::Read { offset: i / 3 * 1000, len: 1000 },
                _ => ObjectOp::Stat,
            };
            let payload = if i % 3 == 0 { vec![i as u8; 1000] } else { vec![] };
            let call = ObjectCall { cap, piece: Piece(0), op };
            connection.send(FrameClass::Object, i, &call, &payload).expect("sent");
        }
        let mut buffer = vec![0; 1000];
        for i in 0..N {
            let (result, len) = connection
                .receive::<ObjectResult>(FrameClass::Object, i, &mut buffer)
                .expect("an answer");
            match (i % 3, result.expect("done")) {
                (0, ObjectReply::Written { offset, len }) => {
                    assert_eq!((offset, len), (i / 3 * 1000, 1000))
                }
                (1, ObjectReply::Data) => assert_eq!(buffer[..len], [(i - 1) as u8; 1000]),
                (2, ObjectReply::State(state)) => assert_eq!(state.size, (i / 3 + 1) * 1000),
                (_, other) => panic!("answer {i} is {other:?}"),
            }
        }
    }
}

/// Long answers are sent uncopied as far as a pipe holds them, and the rest after them.
#[test]
fn reads_of_any_length_and_place_bring_the_same_bytes_over_both_transports() {
    let volume = Volume::new(1);
    let _node = volume.start(0);
    let mut local = Session::new(volume.unix(0), 1);
    let mut remote = Session::new(volume.tcp(0), 2);
    let (_, cap) = local.create("file", 0);
    let all: Vec<u8> = (0..3_500_000u32).map(|i| (i / 5) as u8).collect();
    assert_eq!(local.write(cap, 0, &all), Ok(all.len() as u64));
    let count = PAYLOAD_MAX as u32;
    for offset in [0, 1, 4096, 1_000_003, 3_400_000, 3_499_999, 3_500_000, 1 << 40] {
        for len in [0, 1, 65_535, 65_536, 100_001, 1 << 20, (1 << 20) + 1, count] {
            let start = all.len().min(offset as usize);
            let expected = &all[start..all.len().min(start + len as usize)];
            for session in [&mut local, &mut remote] {
                let got = session.read(cap, offset, len).expect("read");
                assert!(got == expected, "{len} bytes at {offset}: {} came", got.len());
            }
        }
    }
    assert_eq!(remote.read(cap, u64::MAX, 1 << 20), Err(Errno::EINVAL));
    assert_eq!(remote.read(cap, 0, 10).as_deref(), Ok(&all[..10]), "the connection lives");
}

#[test]
fn the_open_file_itself_is_handed_out_on_the_socket_only() {
    let volume = Volume::new(1);
    let _node = volume.start(0);
    let mut local = Session::new(volume.unix(0), 1);
    let (_, cap) = local.create("file", 0);
    let open = |create| ObjectCall { cap, piece: Piece(0), op: ObjectOp::OpenFd { create } };
    let connection = local.data_connection();
    connection.send(FrameClass::Object, 1, &open(false), &[]).expect("sent");
    let (result, fd) =
        connection.receive_with_fd::<ObjectResult>(FrameClass::Object, 1).expect("an answer");
    assert_eq!((result, fd.is_none()), (Err(Errno::ENOENT), true));
    connection.send(FrameClass::Object, 3, &open(true), &[]).expect("sent");
    let (result, fd) =
        connection.receive_with_fd::<ObjectResult>(FrameClass::Object, 3).expect("an answer");
    assert_eq!(result, Ok(ObjectReply::Opened));
    let file = std::fs::File::from(fd.expect("a descriptor"));
    std::os::unix::fs::FileExt::write_all_at(&file, b"straight", 0).expect("written");
    assert_eq!(local.read(cap, 0, 100).expect("read"), b"straight");

    let mut remote = Session::new(volume.tcp(0), 2);
    let (refused, _) = remote.data(cap, ObjectOp::OpenFd { create: false }, &[]);
    assert_eq!(refused, Err(Errno::EOPNOTSUPP));
}

#[test]
fn what_is_unlinked_goes_from_the_disk_of_its_node() {
    let volume = Volume::new(2);
    let _nodes = (volume.start(0), volume.start(1));
    let mut names = Session::new(volume.unix(0), 1);
    for home in [0, 1] {
        let mut there = Session::new(volume.tcp(home), 2 + home as u8);
        let (_, cap) = names.create("file", home);
        there.write(cap, 0, b"bytes").expect("written");
        names.meta(MetaOp::Commit { ino: cap.ino, state: None, close: true }).expect("closed");
        let objects = |there: &mut Session| match there
            .admin(AdminCall::ListObjects { after: None, limit: 10 })
        {
            Ok(AdminReply::Objects { objects, end: true }) => objects,
            other => panic!("no list: {other:?}"),
        };
        assert_eq!(objects(&mut there)[0].0, cap.ino);
        names
            .meta(MetaOp::Unlink { parent: Ino::ROOT, name: bytes("file"), keep: false })
            .expect("gone");
        eventually("the object is gone", || objects(&mut there).is_empty());
        // A client that still reads it must not take it for an empty file.
        assert_eq!(there.read(cap, 0, 10), Err(Errno::ESTALE));
        assert_eq!(there.data(cap, ObjectOp::Stat, &[]).0, Err(Errno::ESTALE));
        eventually("nothing is left to do", || {
            let op = MetaOp::ListGarbage { node: NodeId(home), limit: 10 };
            names.meta(op) == Ok(MetaReply::Garbage(vec![]))
        });
    }
}

#[test]
fn a_client_that_stays_away_is_given_up_and_its_file_settled() {
    let mut volume = Volume::new(2);
    volume.lease = std::time::Duration::from_secs(1);
    let _nodes = (volume.start(0), volume.start(1));
    let mut writer = Session::new(volume.unix(0), 1);
    let (_, cap) = writer.create("file", 1);
    let (_, doomed) = writer.create("doomed", 0);
    let mut bytes_of = Session::new(volume.tcp(1), 2);
    bytes_of.write(cap, 0, &[1; 12345]).expect("written");
    writer.write(doomed, 0, b"kept open").expect("written");
    writer
        .meta(MetaOp::Unlink { parent: Ino::ROOT, name: bytes("doomed"), keep: true })
        .expect("unlinked");
    let mut other = Session::new(volume.unix(0), 3);
    assert_eq!(other.lookup("file").expect("found").size, 0);
    assert_eq!(other.read(doomed, 0, 100).expect("still there"), b"kept open");
    // The writer dies without closing.
    drop(writer);
    eventually("the size is learnt", || other.lookup("file").expect("found").size == 12345);
    eventually("what it kept is gone", || {
        other.meta(MetaOp::GetAttr { ino: doomed.ino }) == Err(Errno::ESTALE)
    });
    let object = AdminCall::StatObject { ino: doomed.ino, piece: Piece(0) };
    eventually(
        "its object is gone",
        || matches!(other.admin(object.clone()), Ok(AdminReply::Object(state)) if !state.exists),
    );
}

#[test]
fn a_connected_client_is_not_given_up() {
    let volume = Volume::new(1);
    let _node = volume.start(0);
    let mut client = Session::new(volume.unix(0), 1);
    client.create("file", 0);
    let mut other = Session::new(volume.unix(0), 2);
    let expire = MetaOp::ExpireClient { client: client.caller.client };
    assert_eq!(other.meta(expire.clone()), Err(Errno::EBUSY));
    drop(client);
    eventually("it may be given up", || other.meta(expire.clone()) == Ok(MetaReply::Done));
}

#[test]
fn a_request_sent_again_is_done_once() {
    let volume = Volume::new(1);
    let node = volume.start(0);
    let mut client = Session::new(volume.unix(0), 1);
    let (attr, _) = client.create("file", 0);
    let seq = client.seq;
    drop(client);
    node.stop();
    let _node = volume.start(0);
    let mut client = Session::new(volume.tcp(0), 1);
    client.seq = seq - 1;
    assert_eq!(client.create("file", 0).0, attr);
    let state = DataState { size: 1, blocks: 8, mtime: attr.mtime, changed: attr.mtime };
    client.meta(MetaOp::Commit { ino: attr.ino, state: Some(state), close: true }).expect("new");
}

#[test]
fn a_node_tells_about_itself() {
    let volume = Volume::new(2);
    let _node = volume.start(1);
    let mut session = Session::new(volume.unix(1), 1);
    assert_eq!(session.admin(AdminCall::Ping), Ok(AdminReply::Pong));
    assert_eq!(session.admin(AdminCall::Map), Ok(AdminReply::Map(volume.map.clone())));
    let Ok(AdminReply::Space(space)) = session.admin(AdminCall::Space) else { panic!("no space") };
    assert!(space.total >= space.free && space.free >= space.available);
    let info = MountInfo {
        path: "/mnt".into(),
        pid: 1,
        passthrough: false,
        why_not: Some("test".into()),
        io_uring: false,
        why_no_io_uring: Some("test".into()),
    };
    session.admin(AdminCall::Announce(info.clone())).expect("noted");
    let long = MountInfo { path: "x".repeat(5000), ..info.clone() };
    assert_eq!(session.admin(AdminCall::Announce(long)), Err(Errno::EINVAL));
    let mut other = Session::new(volume.tcp(1), 2);
    let status = other.status();
    assert_eq!(status.mounts, [info]);
    assert_eq!((status.id, status.shards, status.pid), (NodeId(1), 0, std::process::id()));
    assert_eq!(status.connections, 2);
    assert_eq!(status.clients, [session.caller.client, other.caller.client]);
    drop(session);
    eventually("the mount is gone", || other.status().mounts.is_empty());
    let op = MetaOp::GetAttr { ino: Ino::ROOT };
    assert_eq!(other.meta(op), Ok(MetaReply::WrongShard { epoch: 0 }));
}

#[test]
fn an_ordered_end_answers_first_and_closes_when_all_is_done() {
    let volume = Volume::new(1);
    let node = volume.start(0);
    let mut idle = volume.raw_unix(0);
    let mut session = Session::new(volume.unix(0), 1);
    session.create("file", 0);
    assert_eq!(session.admin(AdminCall::Shutdown), Ok(AdminReply::Done));
    node.wait();
    assert!(session.try_meta(MetaOp::StatVolume).is_err());
    assert_eq!(idle.read(&mut [0; 1]).expect("a clean end"), 0);
    assert!(!std::path::Path::new(&volume.map.nodes[0].socket).exists());
    let _node = volume.start(0);
    assert!(Session::new(volume.unix(0), 2).lookup("file").is_ok());
}

#[test]
fn with_sync_durability_everything_works_as_without() {
    let volume = Volume::new(1);
    let mut options = volume.options(0);
    options.durability = Durability::Sync;
    let _node = tatami_node::NodeDaemon::start(options).expect("the node starts");
    let mut session = Session::new(volume.unix(0), 1);
    session.create("file", 0);
    assert!(session.lookup("file").is_ok());
    assert_eq!(session.meta(MetaOp::Sync), Ok(MetaReply::Synced { epoch: 1 }));
}

/// A recall connection, and its messages.
struct Recalls {
    connection: Connection,
    /// The time of the last sign of life: the client's term ends at the earliest one `term` later.
    alive: Instant,
    term: Duration,
}

impl Recalls {
    fn open(volume: &Volume, id: u8) -> Recalls {
        let connection = connect(&volume.tcp(0), &caller(id), Role::Recall);
        let mut recalls = Recalls { connection, alive: Instant::now(), term: Duration::ZERO };
        recalls.sign();
        recalls
    }

    fn sign(&mut self) {
        self.alive = Instant::now();
        self.connection.send(FrameClass::Recall, 0, &RecallCall::KeepAlive, &[]).expect("sent");
        let RecallNotice::Term { term_millis: millis, .. } = self.next() else {
            panic!("not a term")
        };
        self.term = Duration::from_millis(millis.into());
        assert!(self.term >= Duration::from_secs(1));
    }

    /// Whether `asked` waits as long as it must.
    fn holds_up(&self, asked: &Asked) -> bool {
        // On a slow machine the term may be over: then the request need not wait.
        !asked.is_answered() || self.alive.elapsed() >= self.term
    }

    fn next(&mut self) -> RecallNotice {
        self.connection.receive(FrameClass::Recall, 0, &mut []).expect("a note").0
    }

    fn give_back(&mut self, id: u64) {
        self.connection.send(FrameClass::Recall, 0, &RecallCall::Returned(id), &[]).expect("sent");
    }
}

/// One request on a connection of its own, not yet answered.
struct Asked(Connection);

impl Asked {
    fn new(volume: &Volume, id: u8, op: MetaOp) -> Asked {
        let mut connection = connect(&volume.tcp(0), &caller(id), Role::Meta);
        let call = MetaCall { shard: ShardId(0), cred: Cred::ROOT, op };
        // Later than all earlier requests of the client.
        let seq = 1 << 32;
        connection.send(FrameClass::Meta, seq, &call, &[]).expect("sent");
        Asked(connection)
    }

    fn is_answered(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let wait = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
        poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&wait)).expect("poll") > 0
    }

    fn answer(mut self) -> (MetaResult, Option<DelegationGrant>) {
        let mut payload = [0; DelegationGrant::LEN_MAX];
        let (result, len) =
            self.0.receive(FrameClass::Meta, 1 << 32, &mut payload).expect("an answer");
        (result, (len > 0).then(|| DelegationGrant::decode(&payload[..len]).expect("it reads")))
    }
}

fn chmod(ino: Ino, mode: u16) -> MetaOp {
    MetaOp::SetAttr { ino, set: SetAttr { mode: Some(mode), ..SetAttr::default() } }
}

#[test]
fn an_answer_waits_until_what_it_contradicts_is_given_back() {
    let volume = Volume::new(1);
    let _node = volume.start(0);
    let mut maker = Session::new(volume.tcp(0), 9);
    let (attr, other) = (maker.create("file", 0).0, maker.create("other", 0).0);
    let get = MetaOp::GetAttr { ino: attr.ino };
    let mut b = Recalls::open(&volume, 8);
    let (_, granted) = Asked::new(&volume, 8, get).answer();
    assert_eq!(granted.expect("there are some").delegated, [], "its maker writes to it");
    maker.close(attr.ino);
    b.sign();
    drop(b);
    // Nothing is delegated to a client without a recall connection.
    let get = MetaOp::GetAttr { ino: attr.ino };
    assert_eq!(Asked::new(&volume, 1, get.clone()).answer().1, None);
    let mut a = Recalls::open(&volume, 1);
    let (_, granted) = Asked::new(&volume, 1, get.clone()).answer();
    assert_eq!(granted.expect("it is").delegated, [attr.ino]);

    // The client's own change recalls nothing.
    let mut names = connect(&volume.tcp(0), &caller(1), Role::Meta);
    let call = MetaCall { shard: ShardId(0), cred: Cred::ROOT, op: chmod(attr.ino, 0o600) };
    names.send(FrameClass::Meta, 1 << 33, &call, &[]).expect("sent");
    let mut payload = [0; DelegationGrant::LEN_MAX];
    let (result, len): (MetaResult, _) =
        names.receive(FrameClass::Meta, 1 << 33, &mut payload).expect("an answer");
    assert!(result.is_ok());
    assert_eq!(DelegationGrant::decode(&payload[..len]).expect("it reads").changed, [attr.ino]);

    // The change of another client does. No client sees it meanwhile, and unrelated requests do not
    // wait.
    a.sign();
    let changing = Asked::new(&volume, 2, chmod(attr.ino, 0o640));
    let RecallNotice::Recall { id, inos, .. } = a.next() else { panic!("not a recall") };
    assert_eq!(inos, [attr.ino]);
    let reading = Asked::new(&volume, 3, get);
    assert!(a.holds_up(&changing) && a.holds_up(&reading));
    let elsewhere = Asked::new(&volume, 4, MetaOp::GetAttr { ino: other.ino });
    assert!(elsewhere.answer().0.is_ok());
    assert!(a.holds_up(&changing));
    a.give_back(id);
    assert!(changing.answer().0.is_ok());
    let (seen, _) = reading.answer();
    assert!(matches!(seen, Ok(MetaReply::Attr(attr)) if attr.mode == 0o640));
}

#[test]
fn an_answer_waits_for_no_longer_than_a_term_or_a_connection() {
    let volume = Volume::new(1);
    let _node = volume.start(0);
    let mut maker = Session::new(volume.tcp(0), 9);
    let (attr, _) = maker.create("file", 0);
    maker.close(attr.ino);
    let get = MetaOp::GetAttr { ino: attr.ino };
    for leaves in [true, false] {
        let id = if leaves { 1 } else { 2 };
        let mut a = Recalls::open(&volume, id);
        assert!(Asked::new(&volume, id, get.clone()).answer().1.is_some());
        let changing = Asked::new(&volume, id + 10, chmod(attr.ino, 0o640));
        assert!(matches!(a.next(), RecallNotice::Recall { .. }));
        if leaves {
            drop(a);
            assert!(changing.answer().0.is_ok());
        } else {
            assert!(changing.answer().0.is_ok());
            // The connection of a client that was too slow is closed.
            assert!(a.connection.receive::<RecallNotice>(FrameClass::Recall, 0, &mut []).is_err());
        }
    }
}

#[test]
fn a_daemon_that_starts_waits_for_those_who_may_know_something() {
    let volume = Volume::new(1);
    let node = volume.start(0);
    let (attr, _) = Session::new(volume.tcp(0), 9).create("file", 0);
    let a = Recalls::open(&volume, 1);
    node.stop();
    let started = Instant::now();
    let node = volume.start(0);
    let get = MetaOp::GetAttr { ino: attr.ino };
    let asked = Asked::new(&volume, 2, get.clone());
    assert!(!asked.is_answered() || started.elapsed() >= a.term);
    drop(a);
    let _back = Recalls::open(&volume, 1);
    assert!(asked.answer().0.is_ok());
    // Or until the term of the absent clients is over.
    node.stop();
    let _node = volume.start(0);
    assert!(Asked::new(&volume, 2, get).answer().0.is_ok());
}
