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
