//! Received bytes of one blocking connection that are not yet used.

use crate::connections::stream::SocketStream;
use std::io::{self, Read};
use tatami_wire::frame::{self, FrameError, FrameHeader, HEADER_LEN};

/// Bytes of a payload that are received, and written to disk, at a time: large enough that system
/// calls don't count, small enough for the processor's cache.
pub(crate) const CHUNK: usize = 256 * 1024;
/// Most bytes that are read ahead: a few small requests.
const READ_AHEAD: usize = 64 * 1024;
/// Size of the buffer that is kept; a larger one is freed after use.
const BUFFER_KEEP: usize = CHUNK + READ_AHEAD;

/// See the module.
pub(crate) struct Inbox {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl Inbox {
    pub(crate) fn new() -> Inbox {
        Inbox { bytes: vec![0; READ_AHEAD], start: 0, end: 0 }
    }

    /// Returns the header of the next frame, if header and body have arrived. The caller must take
    /// the body with [`Inbox::take_body`], then the payload with [`Inbox::receive_payload`].
    ///
    /// # Errors
    /// Bytes that are no frame.
    pub(crate) fn next_header(&self) -> Result<Option<FrameHeader>, FrameError> {
        Ok(frame::split_frame(self.buffered_bytes())?.map(|(header, _)| header))
    }

    /// Returns the body of the frame of this header.
    pub(crate) fn take_body(&mut self, header: &FrameHeader) -> &[u8] {
        let from = self.start + HEADER_LEN;
        self.start = from + header.body_len as usize;
        &self.bytes[from..self.start]
    }

    /// Returns the next `len` bytes of a payload, receiving the missing ones.
    ///
    /// # Errors
    /// Those of the stream, and its end.
    pub(crate) fn receive_payload(
        &mut self,
        stream: &SocketStream,
        len: usize,
    ) -> io::Result<&[u8]> {
        self.make_room(len);
        while self.end - self.start < len {
            // Reads no further than needed: so the next chunk begins at the front of the buffer,
            // and no bytes have to be moved.
            let upto = self.start + len;
            self.receive_bytes(stream, upto)?;
        }
        let from = self.start;
        self.start += len;
        Ok(&self.bytes[from..self.start])
    }

    /// Receives the bytes that have arrived, waiting for at least one.
    ///
    /// # Errors
    /// Those of the stream; `UnexpectedEof` at its end.
    pub(crate) fn wait_for_bytes(&mut self, stream: &SocketStream) -> io::Result<()> {
        let needed = match self.buffered_bytes().first_chunk::<HEADER_LEN>() {
            Some(head) => match FrameHeader::decode(head) {
                Ok(header) => HEADER_LEN + header.body_len as usize,
                Err(_) => HEADER_LEN,
            },
            None => HEADER_LEN,
        };
        self.make_room(needed.max(READ_AHEAD));
        let upto = self.bytes.len().min(self.start + needed.max(READ_AHEAD));
        self.receive_bytes(stream, upto)
    }

    /// Returns the number of received bytes that are not yet used.
    pub(crate) fn len(&self) -> usize {
        self.end - self.start
    }

    fn buffered_bytes(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    fn receive_bytes(&mut self, mut stream: &SocketStream, upto: usize) -> io::Result<()> {
        loop {
            match stream.read(&mut self.bytes[self.end..upto]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => {
                    self.end += n;
                    return Ok(());
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// Makes room for `len` bytes from the start on, without moving received bytes if possible.
    fn make_room(&mut self, len: usize) {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
            if self.bytes.len() > BUFFER_KEEP && len <= BUFFER_KEEP {
                self.bytes = vec![0; READ_AHEAD];
            }
        }
        if self.bytes.len() - self.start >= len {
            return;
        }
        if self.start + len <= BUFFER_KEEP {
            self.bytes.resize(BUFFER_KEEP, 0);
            return;
        }
        self.bytes.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        if self.bytes.len() < len {
            self.bytes.resize(len, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Write;
    use std::os::unix::net::UnixStream;
    use tatami_wire::frame::FrameClass;

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
            let receiver = SocketStream::Unix(receiver);
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
            let mut inbox = Inbox::new();
            for (i, (body, payload)) in frames.iter().enumerate() {
                let header = loop {
                    match inbox.next_header().expect("a frame") {
                        Some(header) => break header,
                        None => inbox.wait_for_bytes(&receiver).expect("more"),
                    }
                };
                prop_assert_eq!((header.seq, header.payload_len as usize), (i as u64, *payload));
                let message: Vec<u8> = frame::decode_body(inbox.take_body(&header)).expect("a body");
                prop_assert_eq!(message, content(i, *body));
                let mut got = Vec::new();
                while got.len() < *payload {
                    let n = take.min(*payload - got.len());
                    got.extend_from_slice(inbox.receive_payload(&receiver, n).expect("a payload"));
                }
                prop_assert_eq!(got, content(i, *payload));
            }
            prop_assert_eq!(inbox.len(), 0);
            let end = inbox.wait_for_bytes(&receiver).expect_err("an end").kind();
            prop_assert_eq!(end, io::ErrorKind::UnexpectedEof);
            writer.join().expect("the writer ends");
        }
    }
}
