//! A client against a daemon that breaks connections at any time. Accepted writes arrive, once and
//! in order, and impossible ones are reported.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

use parking_lot::Mutex;
use proptest::prelude::*;
use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use tatami_client::{Client, ClientOptions, DataFile, Endpoint, PayloadSink};
use tatami_wire::admin::{AdminCall, AdminReply, AdminResult, ClusterMap, NodeInfo, NodeState};
use tatami_wire::frame::{self, FrameClass, FrameError};
use tatami_wire::handshake::{self, Authentication, Hello, Role, ServerIdentity};
use tatami_wire::meta::{MetaCall, MetaOp, MetaReply, MetaResult};
use tatami_wire::object::{ObjectCall, ObjectOp, ObjectReply, ObjectResult, ObjectState};
use tatami_wire::*;

/// The faults of the daemon's connections.
#[derive(Clone, Debug, Default)]
struct Plan {
    /// Numbers of the requests (over all connections) at which the connection breaks before the
    /// request is executed.
    before: Vec<u64>,
    /// The same, after the request is executed and before its reply.
    after: Vec<u64>,
    /// The same, half-way through the reply.
    within: Vec<u64>,
    /// Object bytes that the disk can hold.
    capacity: u64,
}

#[derive(Default)]
struct World {
    plan: Plan,
    requests: u64,
    bytes: HashMap<Ino, Vec<u8>>,
    /// Executed `(slot, seq)` pairs with their replies, as `meta` keeps them.
    answers: HashMap<(u32, u64), MetaResult>,
    removed: u64,
}

struct Daemon {
    world: Arc<Mutex<World>>,
    address: String,
    key: VolumeKey,
}

impl Daemon {
    fn start(plan: Plan) -> Daemon {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let world = Arc::new(Mutex::new(World { plan, ..World::default() }));
        let key = VolumeKey::new([3; 32]);
        let daemon = Daemon { world, address: address.clone(), key: key.clone() };
        let world = daemon.world.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (world, address, key) = (world.clone(), address.clone(), key.clone());
                thread::spawn(move || {
                    let _ = serve(stream.unwrap(), &world, &address, key);
                });
            }
        });
        daemon
    }

    fn client(&self, patience: Duration) -> Arc<Client> {
        let mut options = ClientOptions::new(Endpoint::Tcp(self.address.clone()));
        options.key = Some(self.key.clone());
        options.patience = patience;
        Arc::new(Client::connect(options).unwrap())
    }

    fn file(&self, client: &Arc<Client>, ino: Ino) -> DataFile {
        let cap = Cap::sign(&self.key, ino, Access::BOTH, Timestamp::from_sec(1 << 40));
        client.open_data(&attr(ino), cap).unwrap()
    }
}

fn attr(ino: Ino) -> Attr {
    Attr::with_defaults(ino, InodeKind::File)
}

fn serve(
    mut stream: TcpStream,
    world: &Mutex<World>,
    address: &str,
    key: VolumeKey,
) -> Result<(), FrameError> {
    let identity = ServerIdentity { volume: VolumeId([1; 16]), node: NodeId(0), key };
    let hello = handshake::accept_client(&mut stream, Authentication::Key, &identity, [5; 16])
        .map_err(|_| FrameError::Unexpected)?;
    handshake::admit_client(&mut stream)?;
    let mut body = Vec::new();
    loop {
        let header = frame::read_frame(&mut stream, &mut body)?;
        let mut payload = vec![0; header.payload_len as usize];
        stream.read_exact(&mut payload)?;
        let mut world = world.lock();
        let mut out = Vec::new();
        let mut data = Vec::new();
        if hello.role != Role::Admin {
            world.requests += 1;
            if world.plan.before.contains(&world.requests) {
                return Ok(());
            }
        }
        match header.class {
            FrameClass::Admin => {
                let call: AdminCall = frame::decode_body(&body)?;
                assert_eq!(call, AdminCall::CountedMap);
                let answer: AdminResult = Ok(AdminReply::CountedMap(map(address).into()));
                frame::encode_frame(&mut out, FrameClass::Admin, header.seq, &answer, 0);
            }
            FrameClass::Meta => {
                let call: MetaCall = frame::decode_body(&body)?;
                let answer = meta(&mut world, &hello, header.seq, &call.op);
                frame::encode_frame(&mut out, FrameClass::Meta, header.seq, &answer, 0);
            }
            FrameClass::Object => {
                let call: ObjectCall = frame::decode_body(&body)?;
                let answer = object(&mut world, &call, &payload, &mut data);
                frame::encode_frame(&mut out, FrameClass::Object, header.seq, &answer, data.len());
            }
            FrameClass::Recall | FrameClass::Peer | FrameClass::Remote => {
                panic!("nobody asked for delegations, and we are no node")
            }
        }
        if hello.role != Role::Admin && world.plan.after.contains(&world.requests) {
            return Ok(());
        }
        let within = world.plan.within.contains(&world.requests);
        drop(world);
        out.extend_from_slice(&data);
        if hello.role != Role::Admin && within {
            stream.write_all(&out[..out.len() / 2])?;
            return Ok(());
        }
        stream.write_all(&out)?;
    }
}

fn map(address: &str) -> ClusterMap {
    ClusterMap {
        volume: VolumeId([1; 16]),
        name: "lossy".into(),
        epoch: 1,
        nodes: vec![NodeInfo {
            id: NodeId(0),
            state: NodeState::Serving,
            name: "node0".into(),
            address: address.into(),
            moved: 0,
            socket: "/nowhere".into(),
        }],
        shards: vec![ExecutorId::first_of_node(NodeId(0))],
        moves: vec![0],
    }
}

/// Serves a shard with one rule: a name can be removed any number of times, and each removal is
/// counted.
fn meta(world: &mut World, hello: &Hello, seq: u64, op: &MetaOp) -> MetaResult {
    if let Some(answer) = world.answers.get(&(hello.slot, seq)) {
        return answer.clone();
    }
    assert!(matches!(op, MetaOp::Unlink { .. }));
    world.removed += 1;
    let answer = Ok(MetaReply::Removed { ino: Some(Ino(world.removed)), last: true });
    world.answers.insert((hello.slot, seq), answer.clone());
    answer
}

fn object(
    world: &mut World,
    call: &ObjectCall,
    payload: &[u8],
    data: &mut Vec<u8>,
) -> ObjectResult {
    let capacity = world.plan.capacity;
    let bytes = world.bytes.entry(call.cap.ino).or_default();
    let at = match call.op {
        ObjectOp::Write { offset } => offset,
        ObjectOp::Append => bytes.len() as u64,
        ObjectOp::Read { offset, len } => {
            let start = bytes.len().min(offset as usize);
            let end = bytes.len().min(start + len as usize);
            data.extend_from_slice(&bytes[start..end]);
            return Ok(ObjectReply::Data);
        }
        ObjectOp::Stat => {
            let size = bytes.len() as u64;
            return Ok(ObjectReply::State(ObjectState {
                exists: true,
                size,
                ..Default::default()
            }));
        }
        _ => return Err(Errno::ENOSYS),
    };
    let end = at as usize + payload.len();
    if end as u64 > capacity {
        return Err(Errno::ENOSPC);
    }
    bytes.resize(bytes.len().max(end), 0);
    bytes[at as usize..end].copy_from_slice(payload);
    Ok(ObjectReply::Written { offset: at, len: payload.len() as u64 })
}

/// Collects the bytes of a read.
#[derive(Default)]
struct Memory {
    bytes: Vec<u8>,
    left: usize,
}

impl PayloadSink for Memory {
    fn begin_payload(&mut self, len: usize) {
        self.bytes.clear();
        self.left = len;
    }

    fn take_payload(&mut self, socket: BorrowedFd<'_>, len: usize) -> std::io::Result<usize> {
        let mut buffer = vec![0; len.min(1000)];
        let n = rustix::io::read(socket, &mut buffer)?;
        self.bytes.extend_from_slice(&buffer[..n]);
        self.left -= n;
        Ok(n)
    }
}

const PATIENT: Duration = Duration::from_secs(60);

#[derive(Clone, Debug)]
enum Step {
    Write { offset: usize, len: usize, byte: u8 },
    Read { offset: usize, len: usize },
    ReadInto { offset: usize, len: usize },
    Flush,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0..20_000usize, 1..9000usize, any::<u8>())
            .prop_map(|(offset, len, byte)| Step::Write { offset, len, byte }),
        1 => (0..30_000usize, 1..9000usize).prop_map(|(offset, len)| Step::Read { offset, len }),
        1 => (0..30_000usize, 1..9000usize).prop_map(|(offset, len)| Step::ReadInto { offset, len }),
        1 => Just(Step::Flush),
    ];
    prop::collection::vec(step, 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Write-behind over connections that break before and after requests are executed: reads
    /// through any handle see all writes, in order.
    #[test]
    fn writes_survive_broken_connections(
        steps in steps(),
        before in prop::collection::vec(1..60u64, 0..5),
        after in prop::collection::vec(1..60u64, 0..5),
        within in prop::collection::vec(1..60u64, 0..5),
    ) {
        let daemon = Daemon::start(Plan { before, after, within, capacity: u64::MAX });
        let client = daemon.client(PATIENT);
        let ino = Ino(77);
        let (writer, reader) = (daemon.file(&client, ino), daemon.file(&client, ino));
        let mut model = Vec::new();
        for step in steps {
            match step {
                Step::Write { offset, len, byte } => {
                    prop_assert_eq!(writer.write_at(&vec![byte; len], offset as u64), Ok(len));
                    model.resize(model.len().max(offset + len), 0);
                    model[offset..offset + len].fill(byte);
                }
                Step::Read { offset, len } => {
                    let mut buf = vec![0; len];
                    let got = reader.read_at(&mut buf, offset as u64).unwrap();
                    let start = model.len().min(offset);
                    prop_assert_eq!(&buf[..got], &model[start..model.len().min(offset + len)]);
                }
                Step::ReadInto { offset, len } => {
                    let mut memory = Memory::default();
                    let got = reader.read_into(&mut memory, offset as u64, len).unwrap();
                    let start = model.len().min(offset);
                    prop_assert_eq!(&memory.bytes, &model[start..model.len().min(offset + len)]);
                    prop_assert_eq!((got, memory.left), (memory.bytes.len(), 0));
                }
                Step::Flush => prop_assert_eq!(writer.flush(), Ok(())),
            }
        }
        prop_assert_eq!(writer.flush(), Ok(()));
        let world = daemon.world.lock();
        prop_assert_eq!(world.bytes.get(&ino).cloned().unwrap_or_default(), model);
    }

    /// Requests that change names are repeated under the same number, so that each takes effect
    /// once, however often the connection breaks.
    #[test]
    fn a_repeated_request_takes_effect_once(
        before in prop::collection::vec(1..30u64, 0..6),
        after in prop::collection::vec(1..30u64, 0..6),
        count in 1..20u64,
    ) {
        let daemon = Daemon::start(Plan { before, after, ..Plan::default() });
        let client = daemon.client(PATIENT);
        for n in 1..=count {
            let removed = client.unlink(&Cred::ROOT, Ino::ROOT, b"x", false).unwrap();
            prop_assert_eq!(removed.ino, Some(Ino(n)));
        }
        prop_assert_eq!(daemon.world.lock().removed, count);
    }
}

#[test]
fn a_full_disk_is_told_to_every_handle_once() {
    let daemon = Daemon::start(Plan { capacity: 1000, ..Plan::default() });
    let client = daemon.client(PATIENT);
    let (one, two) = (daemon.file(&client, Ino(5)), daemon.file(&client, Ino(5)));
    assert_eq!(one.write_at(&[1; 1000], 0), Ok(1000));
    assert_eq!(one.write_at(&[2; 1000], 500), Ok(1000), "accepted, not yet refused");
    assert_eq!(one.flush(), Err(Errno::ENOSPC));
    assert_eq!(one.flush(), Ok(()));
    assert_eq!(two.flush(), Err(Errno::ENOSPC));
    let late = daemon.file(&client, Ino(5));
    assert_eq!(late.flush(), Ok(()), "opened after the failure");
    let mut buf = [0; 2000];
    assert_eq!(late.read_at(&mut buf, 0), Ok(1000));
    assert_eq!(buf[..1000], [1; 1000], "the failed write did no harm");
}

#[test]
fn an_append_whose_answer_is_lost_is_not_repeated() {
    let daemon = Daemon::start(Plan { after: vec![2], capacity: u64::MAX, ..Plan::default() });
    let client = daemon.client(PATIENT);
    let file = daemon.file(&client, Ino(5));
    assert_eq!(file.append(b"one"), Ok(3));
    assert_eq!(file.append(b"two"), Err(Errno::EIO));
    assert_eq!(file.append(b"three"), Ok(5));
    let mut buf = [0; 100];
    assert_eq!(file.read_at(&mut buf, 0), Ok(11));
    assert_eq!(&buf[..11], b"onetwothree");
}

#[test]
fn a_daemon_that_stays_away_ends_in_a_clear_error() {
    let daemon = Daemon::start(Plan { before: (1..1000).collect(), ..Plan::default() });
    let client = daemon.client(Duration::from_millis(300));
    let gone = client.unlink(&Cred::ROOT, Ino::ROOT, b"x", false);
    assert_eq!(gone, Err(Errno::EHOSTDOWN));
    let file = daemon.file(&client, Ino(5));
    assert_eq!(file.read_at(&mut [0; 10], 0), Err(Errno::EHOSTDOWN));
    assert_eq!(file.write_at(b"accepted", 0), Ok(8));
    assert_eq!(file.flush(), Err(Errno::EHOSTDOWN));
}

#[test]
fn nobody_there_is_told_at_once() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let endpoint = Endpoint::Tcp(format!("127.0.0.1:{port}"));
    let e = Client::connect(ClientOptions::new(endpoint)).err().unwrap();
    assert!(e.to_string().contains(&port.to_string()), "{e}");
    let socket = Endpoint::Unix("/nowhere/tatami.sock".into());
    let e = Client::connect(ClientOptions::new(socket)).err().unwrap();
    assert!(e.to_string().contains("/nowhere/tatami.sock"), "{e}");
}

#[test]
fn a_daemon_that_has_no_time_for_strangers_is_called_again() {
    let daemon = Daemon::start(Plan::default());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let busy = listener.local_addr().unwrap().to_string();
    let (world, address, key) = (daemon.world.clone(), busy.clone(), daemon.key.clone());
    let asked = thread::spawn(move || {
        // The daemon drops some connections at once, and others after the hello.
        for n in 0..6 {
            let (mut stream, _) = listener.accept().unwrap();
            if n % 2 == 1 {
                stream.read_exact(&mut [0; 12]).unwrap();
            }
        }
        serve(listener.accept().unwrap().0, &world, &address, key).ok();
    });
    let mut options = ClientOptions::new(Endpoint::Tcp(busy));
    options.key = Some(daemon.key.clone());
    drop(Client::connect(options.clone()).unwrap());
    asked.join().unwrap();
    // Without a daemon, the client does not wait.
    options.patience = Duration::from_secs(3600);
    assert!(Client::connect(options).is_err());
}
