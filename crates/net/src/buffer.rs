//! Received bytes of one connection that are not yet used: frames, and the starts of payloads.

use std::io::{self, Read};
use tatami_wire::frame::{self, FrameError, FrameHeader, HEADER_LEN};

/// See the module.
#[derive(Debug)]
pub struct FrameBuffer {
    /// Received and not yet used bytes are `bytes[start..end]`.
    bytes: Vec<u8>,
    start: usize,
    end: usize,
    size: usize,
    keep: usize,
}

impl FrameBuffer {
    /// Makes a buffer of `size` bytes. It grows to `keep` bytes before it moves received bytes, and
    /// beyond that as far as one frame needs. A buffer larger than `keep` is freed after use.
    pub fn new(size: usize, keep: usize) -> FrameBuffer {
        FrameBuffer { bytes: vec![0; size], start: 0, end: 0, size, keep }
    }

    /// Returns the number of received bytes that are not yet used.
    pub fn len(&self) -> usize {
        self.end - self.start
    }

    /// Checks whether all received bytes are used.
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Checks whether no room is left after the received bytes.
    pub fn is_full(&self) -> bool {
        self.end == self.bytes.len()
    }

    /// Takes `len` received bytes.
    ///
    /// # Panics
    /// If fewer bytes have been received.
    pub fn take_bytes(&mut self, len: usize) -> &[u8] {
        assert!(len <= self.len(), "bytes are taken after they have come");
        let from = self.start;
        self.start += len;
        &self.bytes[from..self.start]
    }

    /// Returns header and body of the next frame, if both have been received. The caller must take
    /// their bytes, then those of the payload.
    ///
    /// # Errors
    /// Bytes that are no frame.
    pub fn next_frame(&self) -> Result<Option<(FrameHeader, &[u8])>, FrameError> {
        frame::split_frame(&self.bytes[self.start..self.end])
    }

    /// Returns the length of the next frame without its payload. Until its header has come, that is
    /// the length of a header.
    ///
    /// # Errors
    /// Bytes that are no header.
    pub fn next_frame_len(&self) -> Result<usize, FrameError> {
        Ok(match self.bytes[self.start..self.end].first_chunk::<HEADER_LEN>() {
            Some(head) => HEADER_LEN + FrameHeader::decode(head)?.body_len as usize,
            None => HEADER_LEN,
        })
    }

    /// Returns the room for further bytes, so that no more than `most` are unused then.
    pub fn free_space(&mut self, most: usize) -> &mut [u8] {
        let upto = self.bytes.len().min(self.start + most);
        &mut self.bytes[self.end..upto]
    }

    /// Records that `len` bytes have been received into [`FrameBuffer::free_space`].
    pub fn record_received(&mut self, len: usize) {
        self.end += len;
        assert!(self.end <= self.bytes.len(), "bytes are received into the buffer");
    }

    /// Receives bytes once, so that no more than `most` are unused then. Returns their number; 0 at
    /// the end of the stream.
    ///
    /// # Errors
    /// Those of the stream.
    pub fn receive_bytes(&mut self, mut stream: impl Read, most: usize) -> io::Result<usize> {
        let got = stream.read(self.free_space(most))?;
        self.record_received(got);
        Ok(got)
    }

    /// Receives the bytes that have arrived, waiting for at least one: the rest of the next frame
    /// without its payload, and up to `read_ahead` bytes.
    ///
    /// # Errors
    /// Those of the stream; `UnexpectedEof` at its end.
    pub fn wait_for_bytes(&mut self, stream: impl Read, read_ahead: usize) -> io::Result<()> {
        let needed = self.next_frame_len().unwrap_or(HEADER_LEN).max(read_ahead);
        self.make_room(needed);
        self.receive_some(stream, needed)
    }

    /// Returns the next `len` bytes of a payload, receiving the missing ones.
    ///
    /// # Errors
    /// Those of the stream; `UnexpectedEof` at its end.
    pub fn receive_payload(&mut self, mut stream: impl Read, len: usize) -> io::Result<&[u8]> {
        self.make_room(len);
        while self.len() < len {
            // Reads no further than needed: so the next chunk begins at the front of the buffer,
            // and no bytes have to be moved.
            self.receive_some(&mut stream, len)?;
        }
        Ok(self.take_bytes(len))
    }

    fn receive_some(&mut self, mut stream: impl Read, most: usize) -> io::Result<()> {
        loop {
            match self.receive_bytes(&mut stream, most) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) => return Ok(()),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// Makes room for `len` unused bytes, without moving received bytes if possible.
    pub fn make_room(&mut self, len: usize) {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
            if self.bytes.len() > self.keep && len <= self.keep {
                self.bytes = vec![0; self.size];
            }
        }
        if self.bytes.len() - self.start >= len {
            return;
        }
        if self.start + len <= self.keep {
            self.bytes.resize(self.keep, 0);
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
            prop_assert_eq!(end, io::ErrorKind::UnexpectedEof);
            writer.join().expect("the writer ends");
        }
    }
}
