//! The files that the process at the other site has open. The threads of data connections
//! read and write them as well. A file itself lets one access after the other in.

use crate::copy_files::CopyFiles;
use crate::refusal::{FILES_MAX, failure, not_open, refuse};
use parking_lot::RwLock;
use rustix::io::Errno;
use std::collections::HashMap;
use std::sync::Arc;
use tatami_layout::Shape;
use tatami_remote::{BYTES_MAX, RemoteFailure, RemoteReply, sum_bytes};
use tatami_tiled::{Buffer, RankFile};

/// The open files, by the numbers that the other side has chosen.
#[derive(Default)]
pub(crate) struct SharedOpenFiles {
    ranks: RwLock<HashMap<u64, Arc<RankFile>>>,
    /// Sources and sinks of copies. Their numbers are others.
    pub(crate) copies: CopyFiles,
}

pub(crate) fn check_sum(payload: &[u8], sum: u32) -> Result<(), RemoteFailure> {
    match sum == sum_bytes(payload) {
        true => Ok(()),
        false => Err(refuse(Errno::IO, "bytes were damaged on the way")),
    }
}

fn one_byte() -> Result<Shape, RemoteFailure> {
    Shape::bytes(1).map_err(|_| refuse(Errno::NOMEM, "no memory"))
}

impl SharedOpenFiles {
    /// Refuses one more file where there are too many.
    pub(crate) fn check_room(&self) -> Result<(), RemoteFailure> {
        match self.ranks.read().len() < FILES_MAX {
            true => Ok(()),
            false => Err(refuse(Errno::MFILE, "too many open files")),
        }
    }

    pub(crate) fn insert(&self, number: u64, file: RankFile) {
        self.ranks.write().insert(number, Arc::new(file));
    }

    pub(crate) fn remove(&self, number: u64) {
        let removed = self.ranks.write().remove(&number);
        // Its last steps on the disk happen without the lock of the table.
        drop(removed);
    }

    pub(crate) fn find(&self, number: u64) -> Result<Arc<RankFile>, RemoteFailure> {
        self.ranks.read().get(&number).cloned().ok_or_else(not_open)
    }

    /// Writes bytes through the view of a file, or into a copy.
    pub(crate) fn write(
        &self,
        number: u64,
        stream: u64,
        sum: u32,
        payload: &mut [u8],
    ) -> Result<RemoteReply, RemoteFailure> {
        check_sum(payload, sum)?;
        if let Some(copy) = self.copies.find(number) {
            return copy.write(stream, payload).map(|()| RemoteReply::Done);
        }
        let byte = one_byte()?;
        let written = self.find(number)?.write(stream, &Buffer::from_slice(payload, &byte));
        written.map(|_| RemoteReply::Done).map_err(failure)
    }

    /// Reads through the view of a file, or from the source of a copy, into `out`.
    pub(crate) fn read(
        &self,
        number: u64,
        stream: u64,
        len: u32,
        out: &mut Vec<u8>,
    ) -> Result<RemoteReply, RemoteFailure> {
        out.resize((len as usize).min(BYTES_MAX), 0);
        if let Some(copy) = self.copies.find(number) {
            let read = copy.read(stream, out)?;
            out.truncate(read);
            return Ok(RemoteReply::Bytes { sum: sum_bytes(out) });
        }
        let byte = one_byte()?;
        let read = self.find(number)?.read(stream, &mut Buffer::from_slice(out, &byte));
        out.truncate(read.map_err(failure)? as usize);
        Ok(RemoteReply::Bytes { sum: sum_bytes(out) })
    }
}
