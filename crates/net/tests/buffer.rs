//! The receive buffer: frames come out as they went in.

use proptest::prelude::*;
use std::io::{ErrorKind, Write};
use std::os::unix::net::UnixStream;
use tatami_net::FrameBuffer;
use tatami_wire::frame::{self, FrameClass, HEADER_LEN};

const CHUNK: usize = 256 * 1024;
const READ_AHEAD: usize = 64 * 1024;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    /// Frames come out as they went in, however they are cut on their way and however payloads
    /// are taken.
    #[test]
    fn frames_come_out_as_they_went_in(
        frames in prop::collection::vec((0usize..2000, prop_oneof![0usize..100, 0usize..700_000]), 1..6),
        pieces in prop::collection::vec(1usize..200_000, 1..8),
        take in 1usize..2 * CHUNK,
    ) {
        let (mut sender, receiver) = UnixStream::pair().expect("a pair");
        let content = |i: usize, len: usize| -> Vec<u8> {
            (0..len).map(|at| (at * 31 + i) as u8).collect()
        };
        let mut sent = Vec::new();
        for (i, (body, payload)) in frames.iter().enumerate() {
            frame::encode_frame(&mut sent, FrameClass::Object, i as u64, &content(i, *body), *payload);
            sent.extend(content(i, *payload));
        }
        let writer = std::thread::spawn(move || {
            let mut rest = &sent[..];
            for piece in pieces.iter().cycle() {
                let (now, later) = rest.split_at(rest.len().min(*piece));
                sender.write_all(now).expect("sent");
                rest = later;
                if rest.is_empty() {
                    break;
                }
            }
        });
        let mut buffer = FrameBuffer::new(READ_AHEAD, CHUNK + READ_AHEAD);
        for (i, (body, payload)) in frames.iter().enumerate() {
            let header = loop {
                match buffer.next_frame().expect("a frame").map(|(header, _)| header) {
                    Some(header) => break header,
                    None => buffer.wait_for_bytes(&receiver, READ_AHEAD).expect("more"),
                }
            };
            prop_assert_eq!((header.seq, header.payload_len as usize), (i as u64, *payload));
            let message: Vec<u8> = {
                let body = &buffer.take_bytes(HEADER_LEN + header.body_len as usize)[HEADER_LEN..];
                frame::decode_body(body).expect("a body")
            };
            prop_assert_eq!(message, content(i, *body));
            let mut got = Vec::new();
            while got.len() < *payload {
                let n = take.min(*payload - got.len());
                got.extend_from_slice(buffer.receive_payload(&receiver, n).expect("a payload"));
            }
            prop_assert_eq!(got, content(i, *payload));
        }
        prop_assert_eq!(buffer.len(), 0);
        let end = buffer.wait_for_bytes(&receiver, READ_AHEAD).expect_err("an end").kind();
        prop_assert_eq!(end, ErrorKind::UnexpectedEof);
        writer.join().expect("the writer ends");
    }
}
