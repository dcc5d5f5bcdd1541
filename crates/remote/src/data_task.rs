//! A part of a large access, on its way to a data connection.

use crate::remote_message::{RemoteCall, sum_bytes};

/// A part of a large access.
#[derive(Clone, Debug)]
pub(crate) struct DataTask {
    /// Its number, in the order of the program.
    pub(crate) seq: u64,
    /// The file.
    pub(crate) file: u64,
    /// The position in its view.
    pub(crate) stream: u64,
    /// The bytes to be written, or room for those that are read.
    pub(crate) bytes: Vec<u8>,
    /// Whether it is a read.
    pub(crate) is_read: bool,
}

impl DataTask {
    /// Returns the call that carries it out. A checksum is computed here.
    pub(crate) fn as_call(&self) -> RemoteCall {
        let (file, stream) = (self.file, self.stream);
        match self.is_read {
            true => RemoteCall::Read { file, stream, len: self.bytes.len() as u32 },
            false => RemoteCall::Write { file, stream, sum: sum_bytes(&self.bytes) },
        }
    }
}
