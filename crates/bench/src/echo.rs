//! The null server: the baseline of a metadata request. Frames of the same size, over the same kind
//! of socket, through the same kind of event loop, with no work behind them.
//!
//! The server is a process with one thread and an epoll loop, as the executor of a shard is. In the
//! `Messages` depth both sides do all the work of the `wire` crate: encode, checksum, decode. In
//! the `Bytes` depth the frame goes back unread: that measures the socket alone.

use crate::error::{BenchError, doing};
use crate::worker::{Done, Workload};
use rustix::event::epoll;
use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use tatami_wire::frame::{self, Class, HEADER_LEN, Header};
use tatami_wire::meta::{Bytes, MetaCall, MetaOp, MetaReply, MetaResult, NewNode};
use tatami_wire::{Attr, Cred, Ino, Kind, Layout, NodeId, ShardId, Timestamp};

/// The task of one process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum EchoPart {
    /// Answers until this many clients have connected and disconnected.
    Server {
        /// Number of connections to wait for.
        clients: usize,
        /// Where the server listens: a path of a UNIX socket, or TCP on the loopback.
        socket: Option<PathBuf>,
        /// Whether the server decodes messages.
        depth: Depth,
    },
    /// Sends one request at a time. The phases are `create ADDRESS`, `stat ADDRESS` and `unlink
    /// ADDRESS`. Several addresses are separated by commas. Each request goes to a random one, as
    /// the requests of a client in a spread directory do.
    Client {
        /// Number of requests in a phase.
        requests: u64,
        /// Whether the client encodes and decodes messages.
        depth: Depth,
    },
}

/// How much of the work of the `wire` crate is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Depth {
    /// Encode, checksum and decode on both sides.
    Messages,
    /// The frame goes back unchanged.
    Bytes,
}

/// A connection of either kind.
enum Socket {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Socket {
    /// Connects to the address that a server reported.
    fn connect(address: &str) -> io::Result<Socket> {
        if Path::new(address).is_absolute() {
            return Ok(Socket::Unix(UnixStream::connect(address)?));
        }
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        Ok(Socket::Tcp(stream))
    }
}

impl Read for Socket {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Unix(s) => s.read(buf),
            Socket::Tcp(s) => s.read(buf),
        }
    }
}

impl Write for Socket {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Unix(s) => s.write(buf),
            Socket::Tcp(s) => s.write(buf),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Socket::Unix(s) => s.as_fd(),
            Socket::Tcp(s) => s.as_fd(),
        }
    }
}

enum Listener {
    Unix(UnixListener),
    Tcp(TcpListener),
}

impl Listener {
    fn bind(socket: Option<&Path>) -> io::Result<(Listener, String)> {
        match socket {
            Some(path) => {
                // bind(2) fails if the socket of an earlier run still exists.
                let _ = std::fs::remove_file(path);
                let address = path.to_str().ok_or(io::ErrorKind::InvalidInput)?.to_owned();
                Ok((Listener::Unix(UnixListener::bind(path)?), address))
            }
            None => {
                let listener = TcpListener::bind("127.0.0.1:0")?;
                let address = listener.local_addr()?.to_string();
                Ok((Listener::Tcp(listener), address))
            }
        }
    }

    fn accept(&self) -> io::Result<Socket> {
        let socket = match self {
            Listener::Unix(l) => {
                let (stream, _) = l.accept()?;
                stream.set_nonblocking(true)?;
                Socket::Unix(stream)
            }
            Listener::Tcp(l) => {
                let (stream, _) = l.accept()?;
                stream.set_nonblocking(true)?;
                stream.set_nodelay(true)?;
                Socket::Tcp(stream)
            }
        };
        Ok(socket)
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Unix(l) => l.as_fd(),
            Listener::Tcp(l) => l.as_fd(),
        }
    }
}

/// Returns attributes such as a small file has: the size of a typical reply.
fn sample_attr() -> Attr {
    let time = Timestamp { sec: 1_790_000_000, nsec: 123_456_789 };
    Attr {
        uid: 1000,
        gid: 1000,
        atime: time,
        mtime: time,
        ctime: time,
        btime: time,
        version: 12_345,
        ..Attr::plain(Ino(123_456), Kind::File)
    }
}

/// Returns the request that an operation of mdtest sends through the library.
fn request(operation: &str, number: u64) -> Option<MetaCall> {
    let (parent, name) = (Ino(1234), Bytes::from(format!("file.mdtest.0.{number}").into_bytes()));
    let op = match operation {
        "create" => MetaOp::Create {
            parent,
            name,
            node: NewNode::File(Layout::Whole { node: NodeId(0) }),
            mode: 0o664,
            umask: 0o022,
            exclusive: false,
            open: None,
        },
        "stat" => MetaOp::Lookup { parent, name },
        "unlink" => MetaOp::Unlink { parent, name, keep: false },
        _ => return None,
    };
    Some(MetaCall { shard: ShardId(0), cred: Cred::ROOT, op })
}

/// Returns the reply that a shard gives to such a request.
fn answer(call: &MetaCall) -> MetaResult {
    Ok(match &call.op {
        MetaOp::Create { .. } => {
            MetaReply::Created { attr: sample_attr(), cap: None, created: true }
        }
        MetaOp::Unlink { .. } => MetaReply::Removed { ino: Some(Ino(123_456)), last: true },
        _ => MetaReply::Attr(sample_attr()),
    })
}

/// Most bytes that one read takes.
const READ_MAX: usize = 16 << 10;

/// A process of the null server: the server itself or a client.
pub struct Echo {
    part: EchoPart,
    listener: Option<Listener>,
    connections: Vec<Socket>,
}

impl Echo {
    /// Returns a process that has not started anything yet.
    pub fn new(part: EchoPart) -> Echo {
        Echo { part, listener: None, connections: Vec::new() }
    }
}

impl Workload for Echo {
    fn prepare(&mut self, phase: &str) -> Result<String, BenchError> {
        match &self.part {
            EchoPart::Server { socket, .. } => {
                let bound = Listener::bind(socket.as_deref()).map_err(doing("listening"))?;
                self.listener = Some(bound.0);
                Ok(bound.1)
            }
            EchoPart::Client { .. } => {
                let (_, addresses) = split(phase)?;
                let connections = addresses.split(',').map(Socket::connect);
                let connections = connections.collect::<io::Result<_>>();
                self.connections = connections.map_err(doing("connecting"))?;
                Ok(String::new())
            }
        }
    }

    fn run(&mut self, phase: &str) -> Result<Done, BenchError> {
        match &self.part {
            EchoPart::Server { clients, depth, .. } => {
                let listener = self.listener.take().expect("prepared before it runs");
                serve(&listener, *clients, *depth).map_err(doing("serving the echo"))
            }
            EchoPart::Client { requests, depth } => {
                let mut sockets = std::mem::take(&mut self.connections);
                let (operation, _) = split(phase)?;
                let done = match depth {
                    Depth::Messages => ask(&mut sockets, operation, *requests),
                    Depth::Bytes => ask_bytes(&mut sockets, operation, *requests),
                };
                done.map_err(doing("asking the echo"))?;
                Ok(Done { ops: *requests, bytes: 0 })
            }
        }
    }
}

fn split(phase: &str) -> Result<(&str, &str), BenchError> {
    phase
        .split_once(' ')
        .filter(|(operation, _)| request(operation, 0).is_some())
        .ok_or_else(|| BenchError::Usage(format!("the echo has no phase '{phase}'")))
}

fn wrong(e: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, e)
}

/// Picks the server of the next request.
fn any<'a>(sockets: &'a mut [Socket], order: &mut fastrand::Rng) -> &'a mut Socket {
    let at = order.usize(..sockets.len());
    &mut sockets[at]
}

/// Sends one request at a time. Encodes each request and decodes each reply.
fn ask(sockets: &mut [Socket], operation: &str, requests: u64) -> io::Result<()> {
    let mut out = Vec::new();
    let mut input = vec![0; READ_MAX];
    let mut order = fastrand::Rng::new();
    for number in 0..requests {
        let socket = any(sockets, &mut order);
        let call = request(operation, number).expect("checked when the phase was prepared");
        out.clear();
        frame::encode(&mut out, Class::Meta, number, &call, 0);
        socket.write_all(&out)?;
        let mut end = 0;
        let (header, reply) = loop {
            match socket.read(&mut input[end..])? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                n => end += n,
            }
            if let Some((header, body)) = frame::split(&input[..end]).map_err(wrong)? {
                break (header, frame::decode_body::<MetaResult>(body).map_err(wrong)?);
            }
        };
        if header.seq != number || reply.is_err() {
            return Err(wrong("the answer fits no request"));
        }
    }
    Ok(())
}

/// Sends the same frame again and again.
fn ask_bytes(sockets: &mut [Socket], operation: &str, requests: u64) -> io::Result<()> {
    let call = request(operation, 0).expect("checked when the phase was prepared");
    let mut out = Vec::new();
    frame::encode(&mut out, Class::Meta, 0, &call, 0);
    let mut input = vec![0; out.len()];
    let mut order = fastrand::Rng::new();
    for _ in 0..requests {
        let socket = any(sockets, &mut order);
        socket.write_all(&out)?;
        socket.read_exact(&mut input)?;
    }
    Ok(())
}

struct Conversation {
    socket: Socket,
    input: Vec<u8>,
    end: usize,
}

/// Answers `clients` connections until all are closed.
fn serve(listener: &Listener, clients: usize, depth: Depth) -> io::Result<Done> {
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let accepting = epoll::EventData::new_u64(u64::MAX);
    epoll::add(&poll, listener.as_fd(), accepting, epoll::EventFlags::IN)?;
    let mut conversations: Vec<Option<Conversation>> = Vec::with_capacity(clients);
    let mut open = 0;
    let mut ops = 0;
    let mut out = Vec::new();
    let mut events = Vec::with_capacity(64);
    while conversations.len() < clients || open > 0 {
        events.clear();
        match epoll::wait(&poll, rustix::buffer::spare_capacity(&mut events), None) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(e) => return Err(e.into()),
        }
        for event in events.drain(..) {
            let key = event.data.u64();
            if key == accepting.u64() {
                let socket = listener.accept()?;
                let data = epoll::EventData::new_u64(conversations.len() as u64);
                epoll::add(&poll, socket.as_fd(), data, epoll::EventFlags::IN)?;
                conversations.push(Some(Conversation { socket, input: vec![0; READ_MAX], end: 0 }));
                open += 1;
                continue;
            }
            let place = &mut conversations[key as usize];
            let Some(conversation) = place else { continue };
            match conversation.answer(&mut out, depth)? {
                Some(answered) => ops += answered,
                None => {
                    // Closing the descriptor takes it out of the poll.
                    *place = None;
                    open -= 1;
                }
            }
        }
    }
    Ok(Done { ops, bytes: 0 })
}

impl Conversation {
    /// Answers the requests that have arrived. `None` when the client has closed the connection.
    fn answer(&mut self, out: &mut Vec<u8>, depth: Depth) -> io::Result<Option<u64>> {
        match self.socket.read(&mut self.input[self.end..]) {
            Ok(0) => return Ok(None),
            Ok(n) => self.end += n,
            Err(e)
                if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) =>
            {
                return Ok(Some(0));
            }
            Err(e) => return Err(e),
        }
        out.clear();
        let (mut start, mut answered) = (0, 0);
        while let Some(len) = reply(&self.input[start..self.end], out, depth)? {
            start += len;
            answered += 1;
        }
        self.input.copy_within(start..self.end, 0);
        self.end -= start;
        // A client has one request under way, so its socket has room for the answer.
        self.socket.write_all(out)?;
        Ok(Some(answered))
    }
}

/// Appends the reply to the first frame in `input` to `out` and returns the length of that frame,
/// if it is complete.
fn reply(input: &[u8], out: &mut Vec<u8>, depth: Depth) -> io::Result<Option<usize>> {
    match depth {
        Depth::Messages => {
            let Some((header, body)) = frame::split(input).map_err(wrong)? else { return Ok(None) };
            let call: MetaCall = frame::decode_body(body).map_err(wrong)?;
            frame::encode(out, Class::Meta, header.seq, &answer(&call), 0);
            Ok(Some(HEADER_LEN + body.len()))
        }
        Depth::Bytes => {
            let Some((head, rest)) = input.split_first_chunk::<HEADER_LEN>() else {
                return Ok(None);
            };
            let len = Header::decode(head).map_err(wrong)?.body_len as usize;
            if rest.len() < len {
                return Ok(None);
            }
            out.extend_from_slice(&input[..HEADER_LEN + len]);
            Ok(Some(HEADER_LEN + len))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_request_is_answered_over_both_sockets_and_depths() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        for socket in [None, Some(dir.path().join("echo"))] {
            for depth in [Depth::Messages, Depth::Bytes] {
                let mut server =
                    Echo::new(EchoPart::Server { clients: 2, socket: socket.clone(), depth });
                let address = server.prepare("serve").expect("a free port or path");
                let served = std::thread::spawn(move || server.run("serve").map(|d| d.ops));
                let clients: Vec<_> = ["create", "unlink"]
                    .into_iter()
                    .map(|operation| {
                        let phase = format!("{operation} {address}");
                        let mut client = Echo::new(EchoPart::Client { requests: 50, depth });
                        client.prepare(&phase).expect("the server listens");
                        std::thread::spawn(move || client.run(&phase).map(|d| d.ops))
                    })
                    .collect();
                for client in clients {
                    assert_eq!(client.join().expect("no panic").expect("answers fit"), 50);
                }
                assert_eq!(served.join().expect("no panic").expect("it ends well"), 100);
            }
        }
    }

    #[test]
    fn unknown_phases_are_refused() {
        let mut client = Echo::new(EchoPart::Client { requests: 1, depth: Depth::Bytes });
        assert!(client.prepare("dance 127.0.0.1:1").is_err());
        assert!(client.prepare("create").is_err());
    }
}
