//! A client and nodes with several executors: each has connections of its own, and the delegations
//! of one do not mix with those of another.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use tatami_client::{Client, ClientOptions, Endpoint};
use tatami_wire::admin::{AdminReply, AdminResult, ClusterMap, DiskSpace, NodeInfo, NodeState};
use tatami_wire::delegation::{DelegationGrant, RecallCall, RecallNotice};
use tatami_wire::frame::{self, FrameClass, FrameError};
use tatami_wire::handshake::{self, Authentication, Hello, Role, ServerIdentity};
use tatami_wire::meta::{MetaCall, MetaOp, MetaReply, MetaResult};
use tatami_wire::*;

/// The requests that came.
#[derive(Default)]
struct Asked {
    /// The purpose of each connection: the role, the node to which the daemon passes everything on,
    /// if any, and its executor.
    opened: BTreeSet<(u8, Option<NodeId>, u8)>,
    /// Requests about names, by the executor that got them.
    requests: BTreeMap<ExecutorId, u32>,
}

/// A daemon of node 0 that claims to pass requests on to node 1.
struct Daemon {
    asked: Arc<Mutex<Asked>>,
    dir: tempfile::TempDir,
}

/// The executors of shards 0 to 3.
const EXECUTORS: [ExecutorId; 4] = [
    ExecutorId { node: NodeId(0), index: 0 },
    ExecutorId { node: NodeId(0), index: 1 },
    ExecutorId { node: NodeId(1), index: 0 },
    ExecutorId { node: NodeId(1), index: EXECUTORS_MAX - 1 },
];

impl Daemon {
    fn start() -> Daemon {
        let daemon = Daemon { asked: Arc::default(), dir: tempfile::tempdir().unwrap() };
        let listener = UnixListener::bind(daemon.dir.path().join("socket")).unwrap();
        let asked = daemon.asked.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let asked = asked.clone();
                thread::spawn(move || {
                    let _ = serve(stream.unwrap(), &asked);
                });
            }
        });
        daemon
    }

    fn client(&self) -> Client {
        let socket = Endpoint::Unix(self.dir.path().join("socket"));
        Client::connect(ClientOptions::new(socket)).unwrap()
    }

    fn requests(&self) -> [u32; 4] {
        let asked = self.asked.lock();
        EXECUTORS.map(|id| asked.requests.get(&id).copied().unwrap_or(0))
    }
}

fn serve(mut stream: UnixStream, asked: &Mutex<Asked>) -> Result<(), FrameError> {
    let key = VolumeKey::new([3; 32]);
    let identity = ServerIdentity { volume: VolumeId([1; 16]), node: NodeId(0), key };
    let hello = handshake::accept_client(&mut stream, Authentication::Kernel, &identity, [5; 16])
        .map_err(|_| FrameError::Unexpected)?;
    handshake::admit_client(&mut stream)?;
    asked.lock().opened.insert((hello.role as u8, hello.node, hello.executor));
    let mut body = Vec::new();
    loop {
        let header = frame::read_frame(&mut stream, &mut body)?;
        let (mut out, mut granted) = (Vec::new(), Vec::new());
        match header.class {
            FrameClass::Admin => {
                let answer: AdminResult = Ok(AdminReply::CountedMap(map().into()));
                frame::encode_frame(&mut out, FrameClass::Admin, header.seq, &answer, 0);
            }
            FrameClass::Meta => {
                let call: MetaCall = frame::decode_body(&body)?;
                let answer = meta(&hello, &call, asked, &mut granted);
                frame::encode_frame(&mut out, FrameClass::Meta, header.seq, &answer, granted.len());
            }
            FrameClass::Recall => {
                let call: RecallCall = frame::decode_body(&body)?;
                assert_eq!(call, RecallCall::KeepAlive);
                let note = RecallNotice::Term {
                    term_millis: 600_000,
                    lease_millis: 600_000,
                    epoch: 1,
                    durable_millis: 0,
                    space: Some(space_of(hello.node.unwrap_or(NodeId(0)))),
                };
                frame::encode_frame(&mut out, FrameClass::Recall, header.seq, &note, 0);
            }
            FrameClass::Object | FrameClass::Peer | FrameClass::Remote => {
                panic!("this is about names, and we are no node")
            }
        }
        out.extend(granted);
        stream.write_all(&out)?;
    }
}

fn space_of(node: NodeId) -> DiskSpace {
    let disk = u64::from(node.0) + 1;
    DiskSpace { total: 1000 * disk, free: 100 * disk, available: 10 * disk, disk, inodes: disk }
}

fn map() -> ClusterMap {
    let node = |id: u16| NodeInfo {
        id: NodeId(id),
        state: NodeState::Serving,
        name: format!("node{id}"),
        address: "127.0.0.1:1".into(),
        moved: 0,
        socket: "/nowhere".into(),
    };
    ClusterMap {
        volume: VolumeId([1; 16]),
        name: "several".into(),
        epoch: 1,
        nodes: vec![node(0), node(1)],
        shards: EXECUTORS.to_vec(),
        moves: vec![0; EXECUTORS.len()],
    }
}

/// Serves an executor that has all inodes, and delegates them to every client.
fn meta(hello: &Hello, call: &MetaCall, asked: &Mutex<Asked>, granted: &mut Vec<u8>) -> MetaResult {
    let id = ExecutorId { node: hello.node.unwrap_or(NodeId(0)), index: hello.executor };
    assert_eq!(map().owner(call.shard), Some(id), "{call:?} came to {id}");
    *asked.lock().requests.entry(id).or_default() += 1;
    match call.op {
        // The last executor takes part in the names of the third one's inodes.
        MetaOp::SyncNames { ref inos } => {
            let also = if inos.contains(&ino(2)) { vec![EXECUTORS[3]] } else { Vec::new() };
            Ok(MetaReply::NamesSynced { epoch: 1, unsynced: also })
        }
        MetaOp::GetAttr { ino } => {
            *granted =
                DelegationGrant { delegated: vec![ino], ..DelegationGrant::default() }.encode();
            Ok(MetaReply::Attr(attr(ino)))
        }
        _ => Err(Errno::ENOSYS),
    }
}

fn attr(ino: Ino) -> Attr {
    Attr::with_defaults(ino, InodeKind::File)
}

fn ino(shard: u16) -> Ino {
    Ino::new(ShardId(shard), ShardId(shard), 7)
}

#[test]
fn each_executor_is_asked_over_connections_of_its_own() {
    let daemon = Daemon::start();
    let client = daemon.client();
    for shard in 0..4 {
        let found = client.getattr(&Cred::ROOT, ino(shard)).unwrap();
        assert_eq!(found.ino, ino(shard));
        let expected = [0, 1, 2, 3].map(|n| u32::from(n <= shard));
        assert_eq!(daemon.requests(), expected);
    }
    client.sync().unwrap();
    assert_eq!(daemon.requests(), [2; 4]);
    let last = EXECUTORS_MAX - 1;
    let meta = [(None, 0), (None, 1), (Some(NodeId(1)), 0), (Some(NodeId(1)), last)];
    let mut opened = BTreeSet::from(meta.map(|(node, index)| (Role::Meta as u8, node, index)));
    opened.insert((Role::Admin as u8, None, 0));
    assert_eq!(daemon.asked.lock().opened, opened);
}

#[test]
fn only_executors_that_have_something_of_a_file_are_asked_to_sync_it() {
    let daemon = Daemon::start();
    let client = daemon.client();
    client.sync_inode(ino(1)).unwrap();
    assert_eq!(daemon.requests(), [1; 4], "what they have told of names was not noted");
    thread::scope(|scope| {
        let (stop, held) = UnixStream::pair().unwrap();
        let client = &client;
        let run = move || client.hold_delegations(EXECUTORS[0], held.as_fd(), None, None);
        let holder = scope.spawn(run);
        let end = Instant::now() + Duration::from_secs(30);
        let asked = |shard: u16| {
            let before = daemon.requests();
            client.sync_inode(ino(shard)).unwrap();
            let after = daemon.requests();
            [0, 1, 2, 3].map(|n| after[n] - before[n])
        };
        while asked(1) != [0, 1, 0, 0] {
            assert!(Instant::now() < end, "all are asked");
        }
        assert_eq!(asked(1), [0, 1, 0, 0]);
        assert_eq!(asked(2), [0, 0, 1, 1], "and those that have a part in it");
        assert_eq!(asked(3), [0, 0, 0, 1]);
        drop(stop);
        holder.join().unwrap().unwrap();
    });
}

/// This daemon answers every administrative request with its map, so a node that is asked for its
/// space counts as away.
#[test]
fn space_that_came_with_terms_costs_no_request() {
    let daemon = Daemon::start();
    let client = daemon.client();
    assert_eq!(client.statfs().total, 0, "it holds no delegations, so it asks");
    thread::scope(|scope| {
        let hold = |shard: usize| {
            let (stop, held) = UnixStream::pair().unwrap();
            let client = &client;
            let run = move || client.hold_delegations(EXECUTORS[shard], held.as_fd(), None, None);
            (stop, scope.spawn(run))
        };
        let holders = [hold(0), hold(2)];
        let end = Instant::now() + Duration::from_secs(30);
        while client.statfs().total != 3000 {
            assert!(Instant::now() < end, "the nodes told nothing");
            thread::yield_now();
        }
        let reported = client.statfs();
        assert_eq!((reported.free, reported.available, reported.inodes), (300, 30, 3));
        for (stop, holder) in holders {
            drop(stop);
            holder.join().unwrap().unwrap();
        }
    });
}

#[test]
fn what_one_executor_has_delegated_ends_with_its_connection() {
    let daemon = Daemon::start();
    let client = daemon.client();
    assert_eq!(client.name_executors(), BTreeSet::from(EXECUTORS));
    let is_asked = |shard: u16| {
        let before = daemon.requests()[usize::from(shard)];
        client.getattr(&Cred::ROOT, ino(shard)).unwrap();
        daemon.requests()[usize::from(shard)] > before
    };
    thread::scope(|scope| {
        let hold = |shard: usize| {
            let (stop, held) = UnixStream::pair().unwrap();
            let client = &client;
            let run = move || client.hold_delegations(EXECUTORS[shard], held.as_fd(), None, None);
            (stop, scope.spawn(run))
        };
        let ((stop, first), (last_stop, second)) = (hold(0), hold(1));
        let end = Instant::now() + Duration::from_secs(30);
        for shard in [0, 1] {
            while is_asked(shard) {
                assert!(Instant::now() < end, "nothing is delegated");
                thread::yield_now();
            }
        }
        assert_eq!([0, 1, 2].map(is_asked), [false, false, true]);
        drop(stop);
        first.join().unwrap().unwrap();
        assert_eq!([0, 0, 1, 1].map(is_asked), [true, true, false, false]);
        drop(last_stop);
        second.join().unwrap().unwrap();
        assert_eq!([0, 1].map(is_asked), [true, true]);
    });
    let recalls: Vec<_> =
        daemon.asked.lock().opened.iter().copied().filter(|o| o.0 == Role::Recall as u8).collect();
    assert_eq!(recalls, [(Role::Recall as u8, None, 0), (Role::Recall as u8, None, 1)]);
}
