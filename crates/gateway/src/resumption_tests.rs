//! A session over links that break: at each end of a message, and after every ninth byte within
//! one, in calls and in replies. Each operation is done once, and each reply is right.

use crate::gateway_loop::{GatewayError, serve_gateway};
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;
use std::time::Duration;
use tatami_remote::{
    FileOpen, RemoteCall, RemoteReply, SiteBackend, SiteSessionKey, parse_greeting, sum_bytes,
};
use tatami_wire::frame::{self, FrameClass};

/// Longest wait for a reply.
const REPLY_WAIT: Duration = Duration::from_secs(120);
/// `TIO_RDWR | TIO_CREATE | TIO_EXCL`.
const OPENS_NEW: u32 = 0x2 | 0x8 | 0x10;
const TEXT: &[u8] = b"forty bytes that must arrive as they are.";
const FILE: u64 = 1;
/// Sessions at a time.
const SIDE_BY_SIDE: usize = 8;

/// The streams of a process of ssh, and its thread.
struct TestLink {
    stream: UnixStream,
    service: JoinHandle<Result<(), GatewayError>>,
    key: SiteSessionKey,
}

impl TestLink {
    fn start() -> TestLink {
        let (mut stream, far) = UnixStream::pair().expect("a pair");
        stream.set_read_timeout(Some(REPLY_WAIT)).expect("a socket");
        let output = far.try_clone().expect("a descriptor");
        let service = std::thread::spawn(move || serve_gateway(far.into(), output.into()));
        let mut line = Vec::new();
        while line.last() != Some(&b'\n') {
            let mut byte = [0];
            stream.read_exact(&mut byte).expect("a greeting");
            line.push(byte[0]);
        }

        let greeting = parse_greeting(&line).expect("its first word").expect("its facts");
        TestLink { stream, service, key: greeting.session.expect("a key") }
    }

    fn send(&mut self, call: &RemoteCall) {
        let mut bytes = Vec::new();
        frame::encode_frame(&mut bytes, FrameClass::Remote, 0, call, 0);
        self.stream.write_all(&bytes).expect("it is read");
    }
}

/// Reads so many bytes, and then nothing more.
struct CutReader<'a> {
    stream: &'a UnixStream,
    left: &'a mut Option<usize>,
}

impl Read for CutReader<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let len = self.left.map_or(buf.len(), |left| left.min(buf.len()));
        let got = self.stream.read(&mut buf[..len])?;
        if let Some(left) = self.left {
            *left -= got;
        }
        Ok(got)
    }
}

/// The near side of a session, of which one link is cut after some bytes.
struct TestSession {
    link: TestLink,
    key: SiteSessionKey,
    ended: Vec<JoinHandle<Result<(), GatewayError>>>,
    calls: Vec<Vec<u8>>,
    received: usize,
    /// Bytes of calls and of replies until a cut.
    cut_calls: Option<usize>,
    cut_replies: Option<usize>,
    cuts: usize,
    /// The ends of all messages, for further cuts.
    ends: [Vec<usize>; 2],
}

impl TestSession {
    fn start(cut_calls: Option<usize>, cut_replies: Option<usize>) -> TestSession {
        let link = TestLink::start();
        let (key, ends) = (link.key.clone(), [vec![0], vec![0]]);
        let (ended, calls, received, cuts) = (vec![], vec![], 0, 0);
        TestSession { link, key, ended, calls, received, cut_calls, cut_replies, cuts, ends }
    }

    /// Replaces the link, as a session does. Returns the number of calls that had arrived.
    fn resume(&mut self) -> usize {
        self.cuts += 1;
        let mut link = TestLink::start();
        let (key, received) = (self.key.clone(), self.received as u64);
        let attempt = self.cuts as u64;
        link.send(&RemoteCall::ResumeSession { key, received, attempt });
        let before = std::mem::replace(&mut self.link, link);
        self.ended.push(before.service);
        match read_message(&mut &self.link.stream) {
            Some((RemoteReply::Resumed { received }, _)) => received as usize,
            other => panic!("{other:?}"),
        }
    }

    fn send_frames(&mut self, mut from: usize) {
        while from < self.calls.len() {
            let frame = self.calls[from].clone();
            let len = self.cut_calls.map_or(frame.len(), |left| left.min(frame.len()));
            self.link.stream.write_all(&frame[..len]).expect("it is read");
            from += 1;
            let Some(left) = &mut self.cut_calls else { continue };
            *left -= len;
            if *left == 0 {
                self.cut_calls = None;
                let _ = self.link.stream.shutdown(std::net::Shutdown::Both);
                let arrived = self.resume();
                assert!(arrived <= from, "it counts calls that were not sent");
                from = arrived;
            }
        }
    }

    /// Sends calls, and then receives their replies.
    fn run_calls(&mut self, calls: &[(RemoteCall, &[u8])]) -> Vec<(RemoteReply, Vec<u8>)> {
        let first = self.calls.len();
        for (call, payload) in calls {
            let mut bytes = Vec::new();
            frame::encode_frame(&mut bytes, FrameClass::Remote, 5, call, payload.len());
            bytes.extend_from_slice(payload);
            let end = self.ends[0].last().expect("the start") + bytes.len();
            self.ends[0].push(end);
            self.calls.push(bytes);
        }
        self.send_frames(first);
        let mut replies = Vec::new();
        while replies.len() < calls.len() {
            let left = &mut self.cut_replies;
            let is_cut = *left == Some(0);
            let mut reader = CutReader { stream: &self.link.stream, left };
            match read_message(&mut reader).filter(|_| !is_cut) {
                Some((reply, bytes)) => {
                    let len = encode_reply(&reply, &bytes);
                    let end = self.ends[1].last().expect("the start") + len;
                    self.ends[1].push(end);
                    self.received += 1;
                    replies.push((reply, bytes));
                }
                None => {
                    assert_eq!(self.cut_replies.take(), Some(0), "the link broke by itself");
                    let _ = self.link.stream.shutdown(std::net::Shutdown::Both);
                    // Calls that the other side had not read by then do not count.
                    let arrived = self.resume();
                    assert!(arrived <= self.calls.len());
                    self.send_frames(arrived);
                }
            }
        }
        replies
    }

    fn end(mut self) -> (usize, [Vec<usize>; 2]) {
        self.link.send(&RemoteCall::EndSession);
        self.ended.push(self.link.service);
        for service in self.ended {
            service.join().expect("no panic").expect("a regular end");
        }
        (self.cuts, self.ends)
    }
}

fn encode_reply(reply: &RemoteReply, bytes: &[u8]) -> usize {
    let mut frame = Vec::new();
    frame::encode_frame(&mut frame, FrameClass::Remote, 5, reply, bytes.len());
    frame.len() + bytes.len()
}

fn read_message(stream: &mut impl Read) -> Option<(RemoteReply, Vec<u8>)> {
    let mut body = Vec::new();
    let header = frame::read_frame(stream, &mut body).ok()?;
    let mut bytes = vec![0; header.payload_len as usize];
    stream.read_exact(&mut bytes).ok()?;
    Some((frame::decode_body(&body).expect("a reply"), bytes))
}

/// Runs calls of which most have another effect when they are repeated.
fn run_session(cut_calls: Option<usize>, cut_replies: Option<usize>) -> (usize, [Vec<usize>; 2]) {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("file");
    let open = FileOpen {
        path: path.as_os_str().as_encoded_bytes().to_vec().into(),
        flags: OPENS_NEW,
        read_buffer: 1 << 16,
        sieve: true,
        backend: SiteBackend::Posix,
    };
    let mut session = TestSession::start(cut_calls, cut_replies);
    let begin = RemoteCall::Begin { open: open.clone(), mode: 0o600, ranks: 1 };
    let begun = session.run_calls(&[(begin, &[])]);
    let [(RemoteReply::Token { token, backend }, _)] = &begun[..] else { panic!("{begun:?}") };
    let open = FileOpen { backend: backend.clone(), ..open };
    let (file, rank, token) = (FILE, 0, token.clone());
    let add = |delta| RemoteCall::AddToPointer { file, delta };
    let sum = sum_bytes(TEXT);
    let made = RemoteCall::MakeDir {
        path: dir.path().join("made").as_os_str().as_encoded_bytes().to_vec().into(),
        mode: 0o700,
        is_exact: true,
    };
    let calls: [(RemoteCall, &[u8]); 12] = [
        (RemoteCall::Open { file, open, rank, token }, &[]),
        (add(3), &[]),
        (RemoteCall::Write { file, stream: 0, sum }, TEXT),
        (add(4), &[]),
        (RemoteCall::Lock { file }, &[]),
        (RemoteCall::Read { file, stream: 0, len: 100 }, &[]),
        (RemoteCall::Unlock { file }, &[]),
        (made, &[]),
        (RemoteCall::SetSize { file, size: 10 }, &[]),
        (RemoteCall::Read { file, stream: 0, len: 100 }, &[]),
        (add(5), &[]),
        (RemoteCall::Close { file }, &[]),
    ];
    let replies = session.run_calls(&calls);
    let done = || (RemoteReply::Done, Vec::new());
    let bytes = |bytes: &[u8]| (RemoteReply::Bytes { sum: sum_bytes(bytes) }, bytes.to_vec());
    let pointer = |value| (RemoteReply::Pointer(value), Vec::new());
    let expected = [
        done(),
        pointer(0),
        done(),
        pointer(3),
        done(),
        bytes(TEXT),
        done(),
        done(),
        done(),
        bytes(&TEXT[..10]),
        pointer(7),
        done(),
    ];
    assert_eq!(replies, expected, "cut after {cut_calls:?} {cut_replies:?}");
    let ended = session.end();
    assert_eq!(std::fs::read(&path).expect("the file"), &TEXT[..10]);
    ended
}

#[test]
fn a_call_is_carried_out_once_wherever_its_link_breaks() {
    let (cuts, [calls, replies]) = run_session(None, None);
    assert_eq!(cuts, 0);
    let (all_calls, all_replies) = (calls[calls.len() - 1], replies[replies.len() - 1]);
    let in_calls = (9..all_calls).step_by(9).chain(calls.into_iter().filter(|at| *at > 0));
    let in_replies = (0..all_replies).step_by(9).chain(replies);
    let cuts: Vec<_> =
        in_calls.map(|at| (Some(at), None)).chain(in_replies.map(|at| (None, Some(at)))).collect();
    // Sessions mostly wait for each other's threads, so some of them run side by side.
    let count: usize = std::thread::scope(|scope| {
        let some = cuts.chunks(cuts.len().div_ceil(SIDE_BY_SIDE));
        let run = |some: &[_]| {
            some.iter().map(|(calls, replies)| run_session(*calls, *replies).0).sum::<usize>()
        };
        let all: Vec<_> = some.map(|some| scope.spawn(move || run(some))).collect();
        all.into_iter().map(|thread| thread.join().expect("no panic")).sum()
    });
    println!("{count} breaks");
    assert!(count > 100, "{count}");
}

#[test]
fn a_new_link_replaces_one_that_is_half_open() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut session = TestSession::start(None, None);
    let made = |name: &str| RemoteCall::MakeDir {
        path: dir.path().join(name).as_os_str().as_encoded_bytes().to_vec().into(),
        mode: 0o700,
        is_exact: true,
    };
    assert_eq!(session.run_calls(&[(made("a"), &[])])[0].0, RemoteReply::Done);
    let mut old = session.link.stream.try_clone().expect("a descriptor");
    assert_eq!(session.resume(), 1);
    // What the old link still brings does not count any more. It may have ended already.
    let mut bytes = Vec::new();
    frame::encode_frame(&mut bytes, FrameClass::Remote, 9, &made("late"), 0);
    let _ = old.write_all(&bytes);
    assert_eq!(session.run_calls(&[(made("b"), &[])])[0].0, RemoteReply::Done);
    assert!(!dir.path().join("late").exists());
    // An attempt that comes late takes nothing over.
    let mut late = TestLink::start();
    late.send(&RemoteCall::ResumeSession { key: session.key.clone(), received: 1, attempt: 1 });
    assert!(matches!(read_message(&mut &late.stream), Some((RemoteReply::Failed(_), _))));
    assert_eq!(session.run_calls(&[(made("c"), &[])])[0].0, RemoteReply::Done);
    late.send(&RemoteCall::EndSession);
    session.ended.push(late.service);
    session.end();
}

#[test]
fn a_session_that_has_ended_is_not_resumed_and_another_one_begins() {
    let mut link = TestLink::start();
    let key = SiteSessionKey::make().expect("random bytes");
    link.send(&RemoteCall::ResumeSession { key, received: 0, attempt: 1 });
    match read_message(&mut &link.stream) {
        Some((RemoteReply::Failed(failure), _)) => {
            assert!(failure.what.contains("has ended"), "{failure:?}");
        }
        other => panic!("{other:?}"),
    }
    link.send(&RemoteCall::Stat { path: b"/".to_vec().into() });
    assert!(matches!(
        read_message(&mut &link.stream),
        Some((RemoteReply::Failed(_) | RemoteReply::Stat(_), _))
    ));
    link.send(&RemoteCall::EndSession);
    link.service.join().expect("no panic").expect("a regular end");
}
