//! Nodes in temporary directories, and calls to them.
#![allow(dead_code)] // each test file uses a part

use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tatami_client::connection::{Caller, ConnectError, Connection, Endpoint};
use tatami_node::{NodeDaemon, NodeOptions, RunError, StopHandle};
use tatami_wire::admin::{
    AdminCall, AdminReply, AdminResult, ClusterMap, NodeInfo, NodeState, NodeStatus,
};
use tatami_wire::frame::{FrameClass, FrameError, PAYLOAD_MAX};
use tatami_wire::handshake::Role;
use tatami_wire::meta::{InodeTemplate, MetaCall, MetaOp, MetaReply, MetaResult};
use tatami_wire::object::{ObjectCall, ObjectOp, ObjectReply, ObjectResult};
use tatami_wire::{
    Access, Attr, Cap, ClientId, Cred, Errno, ExecutorId, Ino, Layout, NodeId, Piece, SHARDS_MAX,
    ShardId, ShardMap, VolumeId, VolumeKey,
};

pub const VOLUME: VolumeId = VolumeId([0x55; 16]);
/// Longest wait in these tests.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub fn key() -> VolumeKey {
    VolumeKey::new([9; 32])
}

/// A volume of some nodes, none of them started.
pub struct Volume {
    pub dir: tempfile::TempDir,
    pub map: ClusterMap,
    pub lease: Duration,
}

impl Volume {
    pub fn new(nodes: u16) -> Volume {
        let dir = tempfile::tempdir().expect("a temporary directory");
        // Free ports, all held until the last is chosen, on a loopback address that no other
        // program connects from or listens on in between.
        static VOLUMES: AtomicU32 = AtomicU32::new(0);
        let nth = VOLUMES.fetch_add(1, Ordering::Relaxed) % 250 + 1;
        let [.., a, b] = std::process::id().to_be_bytes();
        let address = format!("127.{a}.{b}.{nth}:0");
        let ports: Vec<_> =
            (0..nodes).map(|_| TcpListener::bind(&address).expect("a port")).collect();
        let node = |(id, port): (u16, &TcpListener)| NodeInfo {
            id: NodeId(id),
            state: NodeState::Serving,
            name: format!("node{id}"),
            address: port.local_addr().expect("bound").to_string(),
            moved: 0,
            socket: dir.path().join(format!("{id}.socket")).display().to_string(),
        };
        let nodes = (0..).zip(&ports).map(node).collect();
        let map = ClusterMap {
            volume: VOLUME,
            name: "test".into(),
            epoch: 1,
            nodes,
            shards: vec![ExecutorId::first_of_node(NodeId(0))],
            moves: vec![0],
        };
        Volume { dir, map, lease: Duration::from_secs(60) }
    }

    /// Makes a volume whose shards are distributed to all nodes.
    pub fn spread(nodes: u16) -> Volume {
        Volume::spread_on(nodes, 1)
    }

    /// Makes a volume whose shards are distributed to this number of executors on each node.
    pub fn spread_on(nodes: u16, executors: u8) -> Volume {
        let mut volume = Volume::new(nodes);
        let of = |node| move |index| ExecutorId { node: NodeId(node), index };
        let all: Vec<_> = (0..nodes).flat_map(|node| (0..executors).map(of(node))).collect();
        let map = ShardMap::with_even_blocks(1, SHARDS_MAX, &all).expect("a power of two");
        let owner = |shard: u16| map.owner(ShardId(shard)).expect("there is one");
        volume.map.shards = (0..SHARDS_MAX as u16).map(owner).collect();
        volume.map.moves = vec![0; SHARDS_MAX];
        volume
    }

    pub fn data_dir(&self, node: u16) -> PathBuf {
        self.dir.path().join(format!("data{node}"))
    }

    pub fn options(&self, node: u16) -> NodeOptions {
        let mut options =
            NodeOptions::new(self.data_dir(node), self.map.clone(), NodeId(node), key());
        options.lease = self.lease;
        options
    }

    pub fn start(&self, node: u16) -> Running {
        let node = NodeDaemon::start(self.options(node)).expect("the node starts");
        let stop = node.stop_handle();
        let thread = std::thread::spawn(move || node.run());
        Running { stop, thread: Some(thread) }
    }

    pub fn unix(&self, node: u16) -> Endpoint {
        Endpoint::Unix(self.map.nodes[usize::from(node)].socket.clone().into())
    }

    pub fn tcp(&self, node: u16) -> Endpoint {
        Endpoint::Tcp(self.map.nodes[usize::from(node)].address.clone())
    }

    pub fn raw_unix(&self, node: u16) -> UnixStream {
        let stream = UnixStream::connect(&self.map.nodes[usize::from(node)].socket);
        let stream = stream.expect("connects");
        stream.set_read_timeout(Some(PATIENCE)).expect("set");
        stream
    }

    pub fn raw_tcp(&self, node: u16) -> TcpStream {
        let stream = TcpStream::connect(&self.map.nodes[usize::from(node)].address);
        let stream = stream.expect("connects");
        stream.set_read_timeout(Some(PATIENCE)).expect("set");
        stream
    }
}

/// A node that runs in this process.
pub struct Running {
    stop: StopHandle,
    thread: Option<JoinHandle<Result<(), RunError>>>,
}

impl Running {
    pub fn stop(mut self) {
        self.stop.stop();
        self.join();
    }

    /// Waits until the node has ended by itself.
    pub fn wait(mut self) {
        self.join();
    }

    fn join(&mut self) {
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the node's thread ends").expect("the node ends well");
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

pub fn caller(id: u8) -> Caller {
    Caller { client: ClientId([id; 16]), volume: Some(VOLUME), key: Some(key()), tls: None }
}

pub fn connect(endpoint: &Endpoint, caller: &Caller, role: Role) -> Connection {
    try_connect(endpoint, caller, role).expect("connects")
}

pub fn try_connect(
    endpoint: &Endpoint,
    caller: &Caller,
    role: Role,
) -> Result<Connection, ConnectError> {
    Connection::open(endpoint, caller, role, 0, PATIENCE)
}

/// A client of one node: one connection of each kind, opened when first used.
pub struct Session {
    endpoint: Endpoint,
    pub caller: Caller,
    pub cred: Cred,
    meta: Option<Connection>,
    data: Option<Connection>,
    admin: Option<Connection>,
    pub seq: u64,
}

impl Session {
    pub fn new(endpoint: Endpoint, id: u8) -> Session {
        let caller = caller(id);
        Session { endpoint, caller, cred: Cred::ROOT, meta: None, data: None, admin: None, seq: 0 }
    }

    pub fn try_meta(&mut self, op: MetaOp) -> Result<MetaResult, FrameError> {
        let connection =
            self.meta.get_or_insert_with(|| connect(&self.endpoint, &self.caller, Role::Meta));
        self.seq += 1;
        let call = MetaCall { shard: ShardId(0), cred: self.cred.clone(), op };
        connection.call(FrameClass::Meta, self.seq, &call)
    }

    pub fn meta(&mut self, op: MetaOp) -> MetaResult {
        self.try_meta(op).expect("an answer")
    }

    pub fn data(&mut self, cap: Cap, op: ObjectOp, payload: &[u8]) -> (ObjectResult, Vec<u8>) {
        let connection =
            self.data.get_or_insert_with(|| connect(&self.endpoint, &self.caller, Role::Data));
        self.seq += 1;
        let call = ObjectCall { cap, piece: Piece(0), op };
        connection.send(FrameClass::Object, self.seq, &call, payload).expect("sent");
        let mut buffer = vec![0; PAYLOAD_MAX];
        let (result, len) =
            connection.receive(FrameClass::Object, self.seq, &mut buffer).expect("an answer");
        buffer.truncate(len);
        (result, buffer)
    }

    pub fn data_connection(&mut self) -> &mut Connection {
        self.data.get_or_insert_with(|| connect(&self.endpoint, &self.caller, Role::Data))
    }

    pub fn admin(&mut self, call: AdminCall) -> AdminResult {
        let connection =
            self.admin.get_or_insert_with(|| connect(&self.endpoint, &self.caller, Role::Admin));
        self.seq += 1;
        connection.call(FrameClass::Admin, self.seq, &call).expect("an answer")
    }

    pub fn status(&mut self) -> NodeStatus {
        match self.admin(AdminCall::Status) {
            Ok(AdminReply::Status(status)) => *status,
            other => panic!("no status: {other:?}"),
        }
    }

    pub fn create(&mut self, name: &str, node: u16) -> (Attr, Cap) {
        let op = MetaOp::Create {
            parent: Ino::ROOT,
            name: bytes(name),
            node: InodeTemplate::File(Layout::whole(NodeId(node))),
            mode: 0o644,
            umask: 0,
            exclusive: true,
            open: Some(Access::BOTH),
        };
        match self.meta(op) {
            Ok(MetaReply::Created { attr, cap: Some(cap), created: true }) => (attr, cap),
            other => panic!("not created: {other:?}"),
        }
    }

    /// Ends the writing to a file.
    pub fn close(&mut self, ino: Ino) {
        let op = MetaOp::ReportClosed { inos: vec![ino], empty: vec![], read: vec![] };
        assert_eq!(self.meta(op), Ok(MetaReply::Done));
    }

    pub fn lookup(&mut self, name: &str) -> Result<Attr, Errno> {
        match self.meta(MetaOp::Lookup { parent: Ino::ROOT, name: bytes(name) })? {
            MetaReply::Attr(attr) => Ok(attr),
            other => panic!("not found: {other:?}"),
        }
    }

    pub fn write(&mut self, cap: Cap, offset: u64, data: &[u8]) -> Result<u64, Errno> {
        match self.data(cap, ObjectOp::Write { offset }, data).0? {
            ObjectReply::Written { len, .. } => Ok(len),
            other => panic!("not written: {other:?}"),
        }
    }

    pub fn read(&mut self, cap: Cap, offset: u64, len: u32) -> Result<Vec<u8>, Errno> {
        let (result, payload) = self.data(cap, ObjectOp::Read { offset, len }, &[]);
        match result? {
            ObjectReply::Data => Ok(payload),
            other => panic!("no data: {other:?}"),
        }
    }
}

pub fn bytes(text: &str) -> tatami_wire::meta::Bytes {
    text.as_bytes().to_vec().into()
}

/// Repeats the check until it succeeds.
#[allow(clippy::disallowed_methods)] // the awaited state sends no event
pub fn eventually(what: &str, mut ask: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !ask() {
        assert!(Instant::now() < deadline, "still not: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns all bytes that the other side sends until it closes.
pub fn rest(mut stream: impl Read) -> Vec<u8> {
    let mut rest = Vec::new();
    match stream.read_to_end(&mut rest) {
        Ok(_) => {}
        Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => {}
        Err(e) => panic!("neither bytes nor an end: {e}"),
    }
    rest
}

/// Runs a closure as an ordinary user of this machine. The kernel keeps users by thread, and so
/// does its report on the other end of a socket.
pub fn as_user<R: Send>(uid: u32, gid: u32, run: impl FnOnce() -> R + Send) -> R {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // SAFETY: system calls with numbers only. They must change this thread alone, and not
            // the process as the C library's would.
            unsafe {
                assert_eq!(libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<u32>()), 0);
                assert_eq!(libc::syscall(libc::SYS_setresgid, gid, gid, gid), 0);
                assert_eq!(libc::syscall(libc::SYS_setresuid, uid, uid, uid), 0);
            }
            run()
        });
        thread.join().expect("the user's part ends")
    })
}
