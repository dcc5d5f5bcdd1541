//! The calls of one data connection here, with parts that are compressed where that pays.

use crate::compression_form::CompressionForm;
use crate::compression_pace::CompressionPace;
use crate::data_task::DataTask;
use crate::part_compressor::{PartCompressor, PartExpander};
use crate::remote_message::{RemoteCall, RemoteReply, sum_bytes};
use crate::site_route::SiteCompression;
use std::collections::VecDeque;
use std::io::{self, Read};
use std::time::Instant;
use tatami_wire::frame::{self, FrameClass, FrameError};

/// See the module.
#[derive(Debug)]
pub(crate) struct CompressedCalls {
    compressor: PartCompressor,
    expander: PartExpander,
    /// The paces of writes and of reads.
    paces: [CompressionPace; 2],
    /// Whether the parts without a reply are compressed.
    steps: VecDeque<bool>,
    /// The last reply, or when the first part after a pause was taken.
    last: Instant,
    head: Vec<u8>,
    body: Vec<u8>,
    compressed: Vec<u8>,
}

impl CompressedCalls {
    pub(crate) fn new(wish: SiteCompression) -> CompressedCalls {
        CompressedCalls {
            compressor: PartCompressor::default(),
            expander: PartExpander::default(),
            paces: [CompressionPace::new(wish), CompressionPace::new(wish)],
            steps: VecDeque::new(),
            last: Instant::now(),
            head: Vec::new(),
            body: Vec::new(),
            compressed: Vec::new(),
        }
    }

    /// Returns the frame of a task and its payload. A checksum is computed here.
    pub(crate) fn make_call<'a>(&'a mut self, task: &'a DataTask) -> (&'a [u8], &'a [u8]) {
        if self.steps.is_empty() {
            self.last = Instant::now();
        }
        let (file, stream, len) = (task.file, task.stream, task.bytes.len() as u32);
        let pace = &mut self.paces[usize::from(task.is_read)];
        if !task.is_read && pace.wants_sample() {
            pace.add_sample(self.compressor.take_sample(&task.bytes));
        }
        let is_compressed = pace.compresses_next();
        self.steps.push_back(is_compressed);
        let mut payload: &[u8] = if task.is_read { &[] } else { &task.bytes };
        let mut call = task.as_call();
        match call {
            RemoteCall::Read { .. } if is_compressed => {
                call = RemoteCall::ReadCompressed { file, stream, len };
            }
            RemoteCall::Write { sum, .. } if is_compressed => {
                if let Some((form, compressed)) = self.compressor.compress_part(payload) {
                    payload = compressed;
                    call = RemoteCall::WriteCompressed { file, stream, sum, form, len };
                }
            }
            _ => {}
        }
        self.head.clear();
        let frame = (&mut self.head, FrameClass::Remote, task.seq);
        frame::encode_frame(frame.0, frame.1, frame.2, &call, payload.len());
        (&self.head, payload)
    }

    /// Receives the reply to the oldest task, and the bytes of a read. Returns how many they are.
    ///
    /// # Errors
    /// Those of the connection; a reply that fits no call, or damaged bytes.
    pub(crate) fn receive_reply(
        &mut self,
        input: &mut impl Read,
        task: &mut DataTask,
    ) -> io::Result<(RemoteReply, usize)> {
        let broken = |e: FrameError| match e {
            FrameError::Io(e) => e,
            other => io::Error::other(other.to_string()),
        };
        let odd = || io::Error::other("a reply that fits no call");
        let header = frame::read_frame(input, &mut self.body).map_err(broken)?;
        let reply: RemoteReply = frame::decode_body(&self.body).map_err(broken)?;
        let payload = header.payload_len as usize;
        let room = if task.is_read { task.bytes.len() } else { 0 };
        if header.class != FrameClass::Remote || header.seq != task.seq || payload > room {
            return Err(odd());
        }
        let is_compressed = self.steps.pop_front().ok_or_else(odd)?;
        let pace = &mut self.paces[usize::from(task.is_read)];
        let mut len = payload;
        let sum = match &reply {
            RemoteReply::CompressedBytes { sum, form, len: whole } => {
                len = *whole as usize;
                if len > room || (*form == CompressionForm::Plain && len != payload) {
                    return Err(odd());
                }
                if *form == CompressionForm::Plain {
                    input.read_exact(&mut task.bytes[..len])?;
                } else {
                    self.compressed.resize(payload, 0);
                    input.read_exact(&mut self.compressed)?;
                    let into = &mut task.bytes[..len];
                    self.expander
                        .expand(*form, &self.compressed, into)
                        .map_err(io::Error::other)?;
                }
                Some(*sum)
            }
            RemoteReply::Bytes { sum } => {
                input.read_exact(&mut task.bytes[..len])?;
                Some(*sum)
            }
            _ => {
                input.read_exact(&mut task.bytes[..len])?;
                None
            }
        };
        if sum.is_some_and(|sum| sum != sum_bytes(&task.bytes[..len])) {
            return Err(io::Error::other("bytes were damaged on the way"));
        }
        let now = Instant::now();
        let bytes = if task.is_read { len } else { task.bytes.len() };
        pace.add_part(bytes as u64, now.duration_since(self.last), is_compressed);
        self.last = now;
        if task.is_read && pace.wants_sample() {
            // What comes next most likely is of the same kind.
            pace.add_sample(self.compressor.take_sample(&task.bytes[..len]));
        }
        let reply = sum.map_or(reply, |sum| RemoteReply::Bytes { sum });
        Ok((reply, len))
    }
}
