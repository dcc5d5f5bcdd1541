//! Frames: the format of requests and replies in a byte stream.
//!
//! ```text
//! offset  0      2      3      4          8             12       16
//!         ┌──────┬──────┬──────┬──────────┬─────────────┬────────┬───────────┐
//!         │magic │class │ cpu  │ body len │ payload len │ crc32c │ sequence  │
//!         │ u16  │ u8   │ u8   │ u32      │ u32         │ u32    │ u64       │
//!         └──────┴──────┴──────┴──────────┴─────────────┴────────┴───────────┘
//!         body (postcard), then payload (raw bytes of a file; with a reply
//!         about names: the delegations granted with it)
//! ```
//!
//! All numbers are little-endian. `cpu` says where the sender of a request runs, so that the thread
//! that serves it on the same machine can run there, too: the number of the CPU plus 1, or 0. The
//! checksum covers the header (with the checksum itself as 0) and the body. Payloads rely on the
//! checksums of TCP and of the disk. Lengths are checked against their bounds before any
//! allocation.

use serde::{Serialize, de::DeserializeOwned};
use std::io::{self, IoSlice, Read, Write};

/// Bytes of a frame header.
pub const HEADER_LEN: usize = 24;
/// Longest body, in bytes.
pub const BODY_MAX: usize = 1 << 20;
/// Longest payload, in bytes: more than the largest request of the kernel.
pub const PAYLOAD_MAX: usize = 4 << 20;
const MAGIC: u16 = 0x6d74; // "tm"

/// The type of a frame's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameClass {
    /// [`crate::meta::MetaCall`] and [`crate::meta::MetaResult`].
    Meta = 2,
    /// [`crate::object::ObjectCall`] and [`crate::object::ObjectResult`].
    Object = 3,
    /// [`crate::admin::AdminCall`] and [`crate::admin::AdminResult`].
    Admin = 4,
    /// [`crate::delegation::RecallCall`] and [`crate::delegation::RecallNote`].
    Recall = 5,
    /// [`crate::transaction::PeerMessage`].
    Peer = 6,
    /// Messages to the I/O process of another site: `tatami_remote::RemoteCall` and `RemoteReply`.
    /// Daemons refuse it.
    Remote = 7,
}

/// The fixed start of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// Type of the body.
    pub class: FrameClass,
    /// The CPU on which the sender of a request waits for the reply, if it is known.
    pub cpu: Option<u8>,
    /// Bytes of the body, at most [`BODY_MAX`].
    pub body_len: u32,
    /// Bytes of the payload, at most [`PAYLOAD_MAX`].
    pub payload_len: u32,
    /// Checksum of header and body.
    pub crc: u32,
    /// Sequence number of the request, repeated in the reply.
    pub seq: u64,
}

/// Bytes that are not a frame, or a body that does not match its class.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum FrameError {
    #[error("connection closed")]
    Closed,
    #[error("connection: {0}")]
    Io(#[from] io::Error),
    #[error("not a Tatami frame (it starts with {0:#06x}): is another program using this port?")]
    Magic(u16),
    #[error("unknown frame class {0}")]
    Class(u8),
    #[error("frame of {0} body and {1} payload bytes is over the bound")]
    TooLong(u32, u32),
    #[error(
        "frame checksum is {found:#010x}, should be {expected:#010x}: bytes were damaged on the way"
    )]
    Checksum { found: u32, expected: u32 },
    #[error("frame body: {0}")]
    Body(#[from] postcard::Error),
    #[error("frame body has {0} bytes too many")]
    Trailing(usize),
    #[error("a reply that fits no request")]
    Unexpected,
}

impl FrameHeader {
    /// Decodes a header, and checks everything that does not need the body.
    ///
    /// # Errors
    /// Wrong magic, class or lengths.
    pub fn decode(b: &[u8; HEADER_LEN]) -> Result<FrameHeader, FrameError> {
        let u32_at = |i: usize| u32::from_le_bytes([b[i], b[i + 1], b[i + 2], b[i + 3]]);
        let magic = u16::from_le_bytes([b[0], b[1]]);
        if magic != MAGIC {
            return Err(FrameError::Magic(magic));
        }
        let class = match b[2] {
            2 => FrameClass::Meta,
            3 => FrameClass::Object,
            4 => FrameClass::Admin,
            5 => FrameClass::Recall,
            6 => FrameClass::Peer,
            7 => FrameClass::Remote,
            other => return Err(FrameError::Class(other)),
        };
        let (body_len, payload_len) = (u32_at(4), u32_at(8));
        // Before any allocation, because the lengths come from the network.
        if body_len as usize > BODY_MAX || payload_len as usize > PAYLOAD_MAX {
            return Err(FrameError::TooLong(body_len, payload_len));
        }
        let mut seq = [0; 8];
        seq.copy_from_slice(&b[16..24]);
        let header = FrameHeader {
            class,
            cpu: b[3].checked_sub(1),
            body_len,
            payload_len,
            crc: u32_at(12),
            seq: u64::from_le_bytes(seq),
        };
        assert_eq!(header.encode(), *b, "a header has other bytes on the other side");
        Ok(header)
    }

    fn encode(&self) -> [u8; HEADER_LEN] {
        let mut b = [0; HEADER_LEN];
        b[..2].copy_from_slice(&MAGIC.to_le_bytes());
        b[2] = self.class as u8;
        b[3] = self.cpu.map_or(0, |cpu| cpu.saturating_add(1));
        b[4..8].copy_from_slice(&self.body_len.to_le_bytes());
        b[8..12].copy_from_slice(&self.payload_len.to_le_bytes());
        b[12..16].copy_from_slice(&self.crc.to_le_bytes());
        b[16..24].copy_from_slice(&self.seq.to_le_bytes());
        b
    }

    /// Compares the checksum with that of `body`.
    ///
    /// # Errors
    /// [`FrameError::Checksum`].
    pub fn verify_checksum(&self, body: &[u8]) -> Result<(), FrameError> {
        let expected = FrameHeader { crc: 0, ..*self }.compute_checksum(body);
        if expected != self.crc {
            return Err(FrameError::Checksum { found: self.crc, expected });
        }
        Ok(())
    }

    fn compute_checksum(&self, body: &[u8]) -> u32 {
        crc32c::crc32c_append(crc32c::crc32c(&self.encode()), body)
    }
}

/// Appends header and body of a frame to `out`. The caller must send `payload_len` bytes after it.
///
/// # Panics
/// If the message is longer than [`BODY_MAX`] or the payload than [`PAYLOAD_MAX`]. The makers of
/// messages bound both.
pub fn encode_frame<T: Serialize>(
    out: &mut Vec<u8>,
    class: FrameClass,
    seq: u64,
    message: &T,
    payload_len: usize,
) {
    let fits = encode_frame_if_fits(out, class, seq, message, payload_len);
    assert!(fits, "frame over its bound");
}

/// Like [`encode_frame`], for a request of a thread that waits for its reply on this CPU. A number
/// above 254 is left out.
///
/// # Panics
/// As [`encode_frame`].
pub fn encode_request<T: Serialize>(
    out: &mut Vec<u8>,
    class: FrameClass,
    seq: u64,
    request: &T,
    payload_len: usize,
    cpu: Option<usize>,
) {
    let cpu = cpu.and_then(|cpu| u8::try_from(cpu).ok()).filter(|cpu| *cpu < u8::MAX);
    let fits = encode_with_cpu(out, class, seq, request, payload_len, cpu);
    assert!(fits, "frame over its bound");
}

/// Like [`encode_frame`], for a message that may be too long. Then returns false and leaves `out`
/// unchanged.
pub fn encode_frame_if_fits<T: Serialize>(
    out: &mut Vec<u8>,
    class: FrameClass,
    seq: u64,
    message: &T,
    payload_len: usize,
) -> bool {
    encode_with_cpu(out, class, seq, message, payload_len, None)
}

fn encode_with_cpu<T: Serialize>(
    out: &mut Vec<u8>,
    class: FrameClass,
    seq: u64,
    message: &T,
    payload_len: usize,
    cpu: Option<u8>,
) -> bool {
    let start = out.len();
    out.resize(start + HEADER_LEN, 0);
    let mut buffer = postcard::to_extend(message, std::mem::take(out))
        .expect("messages are plain data: encoding into memory cannot fail");
    let body_len = buffer.len() - start - HEADER_LEN;
    if body_len > BODY_MAX || payload_len > PAYLOAD_MAX {
        buffer.truncate(start);
        *out = buffer;
        return false;
    }
    let mut header = FrameHeader {
        class,
        cpu,
        body_len: body_len as u32,
        payload_len: payload_len as u32,
        crc: 0,
        seq,
    };
    // Last, because the checksum covers the lengths.
    header.crc = header.compute_checksum(&buffer[start + HEADER_LEN..]);
    let head = header.encode();
    assert!(
        FrameHeader::decode(&head).is_ok_and(|read| read == header),
        "a header has other bytes on the other side"
    );
    buffer[start..start + HEADER_LEN].copy_from_slice(&head);
    assert_eq!(
        buffer.len(),
        start + HEADER_LEN + body_len,
        "a frame has another length than header and body"
    );
    *out = buffer;
    true
}

/// Decodes a message, which must use all of `body`.
///
/// # Errors
/// [`FrameError::Body`], [`FrameError::Trailing`].
pub fn decode_body<T: DeserializeOwned>(body: &[u8]) -> Result<T, FrameError> {
    let (message, rest) = postcard::take_from_bytes(body)?;
    match rest.len() {
        0 => Ok(message),
        n => Err(FrameError::Trailing(n)),
    }
}

/// Splits a frame from the start of a buffer, if the buffer has the complete header and body.
///
/// Returns the header and the body. The payload follows at `HEADER_LEN + body_len`. `Ok(None)`
/// means that more bytes must be read.
///
/// # Errors
/// Those of [`FrameHeader::decode`] and [`FrameHeader::verify_checksum`].
pub fn split_frame(buffer: &[u8]) -> Result<Option<(FrameHeader, &[u8])>, FrameError> {
    let Some((head, rest)) = buffer.split_first_chunk::<HEADER_LEN>() else {
        return Ok(None);
    };
    let header = FrameHeader::decode(head)?;
    let Some(body) = rest.get(..header.body_len as usize) else {
        return Ok(None);
    };
    header.verify_checksum(body)?;
    Ok(Some((header, body)))
}

/// Reads one header and body from a stream, into `body`. The payload of `payload_len` bytes remains
/// in the stream.
///
/// # Errors
/// [`FrameError::Closed`] at an end of the stream between two frames, and all others.
pub fn read_frame(stream: &mut impl Read, body: &mut Vec<u8>) -> Result<FrameHeader, FrameError> {
    let mut head = [0; HEADER_LEN];
    let mut got = 0;
    while got < HEADER_LEN {
        match stream.read(&mut head[got..]) {
            Ok(0) if got == 0 => return Err(FrameError::Closed),
            Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            Ok(n) => got += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e.into()),
        }
    }
    let header = FrameHeader::decode(&head)?;
    assert!(
        header.body_len as usize <= BODY_MAX,
        "memory is allocated for a body beyond its bound"
    );
    body.resize(header.body_len as usize, 0);
    stream.read_exact(body)?;
    header.verify_checksum(body)?;
    Ok(header)
}

/// Writes an encoded frame and its payload with as few system calls as the
/// kernel allows, usually one.
///
/// # Errors
/// Those of the stream.
pub fn write_frame(stream: &mut impl Write, frame: &[u8], payload: &[u8]) -> io::Result<()> {
    let mut done = 0;
    while done < frame.len() + payload.len() {
        let (a, b) = if done < frame.len() {
            (&frame[done..], payload)
        } else {
            (&payload[done - frame.len()..], &[][..])
        };
        match stream.write_vectored(&[IoSlice::new(a), IoSlice::new(b)]) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => done += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}
