//! The cost of requests at the daemon: processor time of its threads per request, as the kernel
//! accounts it. Run with
//!
//! ```sh
//! cargo run --release -p tatami-node --example cost [names | bytes] [REQUESTS]
//! ```
//!
//! Daemon and clients are one process; the names of their threads distinguish them.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::TcpListener;
use std::time::{Duration, Instant};
use tatami_client::connection::{Caller, Connection, Endpoint};
use tatami_node::{NodeDaemon, NodeOptions};
use tatami_wire::admin::{ClusterMap, NodeInfo, NodeState};
use tatami_wire::frame::FrameClass;
use tatami_wire::handshake::Role;
use tatami_wire::meta::{InodeTemplate, MetaCall, MetaOp, MetaReply, MetaResult};
use tatami_wire::object::{ObjectCall, ObjectOp, ObjectResult};
use tatami_wire::{
    Access, Cap, ClientId, Cred, ExecutorId, Ino, Layout, NodeId, Piece, ShardId, VolumeId,
    VolumeKey,
};

/// Number of requests of each kind, unless the command line has another.
const REQUESTS: u64 = 20_000;
const MIB: usize = 1 << 20;
const VOLUME: VolumeId = VolumeId([1; 16]);

/// Returns the nanoseconds on a processor of each thread with this name.
fn cpu_of(name: &str) -> BTreeMap<OsString, u64> {
    let tasks = std::fs::read_dir("/proc/self/task").expect("/proc is there");
    tasks
        .filter_map(|task| {
            let task = task.ok()?;
            let comm = std::fs::read_to_string(task.path().join("comm")).ok()?;
            let stat = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
            let ns = stat.split_whitespace().next()?.parse::<u64>().ok()?;
            (comm.trim() == name).then_some((task.file_name(), ns))
        })
        .collect()
}

fn measure(what: &str, thread: &str, requests: u64, bytes: u64, run: impl FnOnce()) {
    let (before, wall) = (cpu_of(thread), Instant::now());
    run();
    let wall = wall.elapsed().as_secs_f64();
    let since = |(task, ns): (&OsString, &u64)| ns - before.get(task).unwrap_or(&0);
    let cpu = cpu_of(thread).iter().map(since).sum::<u64>() as f64 / 1e3;
    let rate = match bytes {
        0 => format!("{:8.0} requests/s", requests as f64 / wall),
        _ => format!("{:8.0} MiB/s", bytes as f64 / wall / MIB as f64),
    };
    println!("{what:34} {:8.2} µs CPU per request, {rate}", cpu / requests as f64);
}

fn main() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let port = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = port.local_addr().expect("bound").to_string();
    drop(port);
    let socket = dir.path().join("socket").display().to_string();
    let node = NodeInfo {
        id: NodeId(0),
        state: NodeState::Serving,
        name: "node0".into(),
        address: address.clone(),
        moved: 0,
        socket: socket.clone(),
    };
    let map = ClusterMap {
        volume: VOLUME,
        name: "cost".into(),
        epoch: 1,
        nodes: vec![node],
        shards: vec![ExecutorId::first_of_node(NodeId(0))],
        moves: vec![0],
    };
    let key = VolumeKey::new([1; 32]);
    let options = NodeOptions::new(dir.path().join("data"), map, NodeId(0), key.clone());
    let node = NodeDaemon::start(options).expect("the node starts");
    let unix = Endpoint::Unix(socket.into());
    let tcp = Endpoint::Tcp(address);
    let open = |endpoint: &Endpoint, id: u8, role| {
        let caller = Caller {
            client: ClientId([id; 16]),
            volume: Some(VOLUME),
            key: Some(key.clone()),
            tls: None,
        };
        Connection::open(endpoint, &caller, role, 0, Duration::from_secs(10)).expect("connects")
    };
    let only = std::env::args().nth(1);
    let wanted = |part| only.as_deref().is_none_or(|only| only == part);
    let rounds: &[_] = match wanted("names") {
        true => &[
            ("unix, 1 client", &unix, 1u8),
            ("tcp, 1 client", &tcp, 1),
            ("tcp, 8 clients", &tcp, 8),
        ],
        false => &[],
    };
    for &(name, endpoint, clients) in rounds {
        names(name, clients, |id| open(endpoint, id, Role::Meta));
    }
    let mut meta = open(&unix, 99, Role::Meta);
    let cap = create(&mut meta, 1, "bytes".to_owned());
    let rounds: &[_] = if wanted("bytes") { &[("unix", &unix), ("tcp", &tcp)] } else { &[] };
    for &(name, endpoint) in rounds {
        for size in [4096, 64 << 10, 256 << 10, MIB] {
            bytes(name, &mut open(endpoint, 98, Role::Data), cap, size);
        }
    }
    drop(node);
}

fn create(connection: &mut Connection, seq: u64, name: String) -> Cap {
    let op = MetaOp::Create {
        parent: Ino::ROOT,
        name: name.into_bytes().into(),
        node: InodeTemplate::File(Layout::whole(NodeId(0))),
        mode: 0o644,
        umask: 0,
        exclusive: true,
        open: Some(Access::BOTH),
    };
    match call(connection, seq, op) {
        MetaReply::Created { cap: Some(cap), .. } => cap,
        other => panic!("not created: {other:?}"),
    }
}

fn call(connection: &mut Connection, seq: u64, op: MetaOp) -> MetaReply {
    let call = MetaCall { shard: ShardId(0), cred: Cred::ROOT, op };
    let result: MetaResult = connection.call(FrameClass::Meta, seq, &call).expect("an answer");
    result.expect("done")
}

fn names(what: &str, clients: u8, open: impl Fn(u8) -> Connection) {
    static ROUND: std::sync::atomic::AtomicU8 = std::sync::atomic::AtomicU8::new(0);
    let round = ROUND.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let requests = std::env::args().nth(2).and_then(|n| n.parse().ok()).unwrap_or(REQUESTS);
    let each = requests / u64::from(clients);
    let mut connections: Vec<_> = (0..clients).map(|c| (c, open(round * 16 + c + 1))).collect();
    let mut phase = |verb: &str, first: u64, op: &(dyn Fn(&mut Connection, u64, String) + Sync)| {
        measure(&format!("{verb}, {what}"), "executor", each * u64::from(clients), 0, || {
            std::thread::scope(|scope| {
                for (c, connection) in &mut connections {
                    scope.spawn(move || {
                        for i in 0..each {
                            op(connection, first + i, format!("{round}.{c}.{i}"));
                        }
                    });
                }
            });
        });
    };
    phase("create", 1, &|connection, seq, name| {
        create(connection, seq, name);
    });
    phase("lookup", each + 1, &|connection, seq, name| {
        call(connection, seq, MetaOp::Lookup { parent: Ino::ROOT, name: name.into_bytes().into() });
    });
    phase("unlink", 2 * each + 1, &|connection, seq, name| {
        let name = name.into_bytes().into();
        call(connection, seq, MetaOp::Unlink { parent: Ino::ROOT, name, keep: false });
    });
}

fn bytes(what: &str, connection: &mut Connection, cap: Cap, size: usize) {
    const FILE: usize = 64 * MIB;
    const WINDOW: u64 = 8;
    let total = 512 * MIB / if size < 65536 { 8 } else { 1 };
    let count = (total / size) as u64;
    let data = vec![7; size];
    let mut buffer = vec![0; size];
    for writes in [true, false] {
        let verb = if writes { "write" } else { "read" };
        let name = format!("{verb} {} KiB, {what}", size >> 10);
        measure(&name, "connection", count, total as u64, || {
            for i in 0..count + WINDOW {
                if i < count {
                    let offset = (i as usize * size % FILE) as u64;
                    let (op, payload) = match writes {
                        true => (ObjectOp::Write { offset }, &data[..]),
                        false => (ObjectOp::Read { offset, len: size as u32 }, &[][..]),
                    };
                    let call = ObjectCall { cap, piece: Piece(0), op };
                    connection.send(FrameClass::Object, i, &call, payload).expect("sent");
                }
                if let Some(i) = i.checked_sub(WINDOW) {
                    let (result, len) = connection
                        .receive::<ObjectResult>(FrameClass::Object, i, &mut buffer)
                        .expect("an answer");
                    result.expect("done");
                    assert!(writes || len == size);
                }
            }
        });
    }
}
