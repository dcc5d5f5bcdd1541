//! Copies that a later one can continue (`tatami cp --resume`): the part file beside the
//! destination, and which blocks of it are right.
//!
//! A part file belongs to one source, by its record. Its bytes count where the sums of a block are
//! equal on both sides: nothing else shows what a killed process had written.

use crate::copy_steps::{LargeSink, LargeSource, StepFailure};
use crate::copy_stream::{CopySink, CopySource};
use crate::copy_trees::{CopyTrees, FileFacts};
use crate::error::CommandResult;
use crate::interrupt::check_interrupt;
use crate::part_files::{LocalPart, VolumePart};
use crate::volume_path::AnyPath;
use rustix::fs::{Mode, OFlags, openat};
use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use tatami_client::DataFile;
use tatami_remote::{
    BLOCK, BlockSum, PartFile, PartRecord, PartStart, RemoteSession, sum_block, sum_file,
};
use tatami_wire::Errno;
use tatami_wire::object::SeekTarget;

/// Files from this size on can be continued, in bytes.
pub const RESUME_MIN: u64 = 64 << 20;
/// One request asks for the sums of so many blocks.
const SUMS_STEP: u64 = 16;
/// Most such requests without a reply.
const SUMS_AHEAD: usize = 4;

/// The sums of some blocks.
type BlockSums = Vec<Option<BlockSum>>;

impl CopyTrees<'_> {
    /// As [`CopyTrees::create_sink`], for a copy that a later one can continue.
    ///
    /// # Errors
    /// Those of making the file.
    pub fn create_part(
        &self,
        path: &AnyPath,
        mode: u16,
        old: Option<&FileFacts>,
        record: &PartRecord,
    ) -> Result<(CopySink, PartStart), Errno> {
        let (end, keeps_inode) = self.find_sink_place(path, old)?;
        match (end, keeps_inode) {
            (AnyPath::Local(path), false) => {
                let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
                let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
                let dir = dir.unwrap_or(Path::new("."));
                let failed = |e: rustix::io::Errno| Errno(e.raw_os_error());
                let dir = openat(rustix::fs::CWD, dir, flags, Mode::empty()).map_err(failed)?;
                let name = path.file_name().ok_or(Errno::EINVAL)?;
                let (part, start) = PartFile::open(dir, name, record).map_err(failed)?;
                let mode = mode & 0o777 & !self.umask;
                Ok((CopySink::LocalPart(Box::new(LocalPart { part, mode })), start))
            }
            (AnyPath::Volume(path), false) => {
                let (part, start) = VolumePart::open(self.volume()?, &path, mode & 0o777, record)?;
                Ok((CopySink::VolumePart(Box::new(part)), start))
            }
            (path, _) => Ok((self.create_sink(&path, mode, old)?, PartStart::InPlace)),
        }
    }
}

fn sum_volume_file(file: &DataFile, from: u64, end: u64) -> Result<BlockSums, Errno> {
    let (mut sums, mut bytes, mut at) = (Vec::new(), vec![0; BLOCK as usize], from);
    while at < end {
        let len = BLOCK.min(end - at);
        let has_data = match file.seek(SeekTarget::Data, at) {
            Ok(start) => start < at + len,
            Err(Errno::ENXIO) => false,
            Err(e) => return Err(e),
        };
        sums.push(match has_data {
            false => None,
            true => {
                let mut done = 0;
                while done < len as usize {
                    match file.read_at(&mut bytes[done..len as usize], at + done as u64)? {
                        0 => break,
                        n => done += n,
                    }
                }
                Some(sum_block(&bytes[..done]))
            }
        });
        at += len;
    }
    Ok(sums)
}

/// Sums that are there, or are computed at another site.
enum BegunSums {
    Here(Result<BlockSums, Errno>),
    There(Arc<RemoteSession>, u64),
}

impl BegunSums {
    fn of_site(session: &Arc<RemoteSession>, file: u64, from: u64, end: u64) -> BegunSums {
        match session.begin_sums(file, from, end) {
            Ok(ticket) => BegunSums::There(session.clone(), ticket),
            Err(e) => BegunSums::Here(Err(Errno(e.errno.raw_os_error()))),
        }
    }

    fn of_local(file: &std::fs::File, from: u64, end: u64) -> BegunSums {
        let sums = sum_file(file, from, end);
        BegunSums::Here(sums.map_err(|e| Errno(e.raw_os_error())))
    }

    fn await_sums(self, path: &AnyPath) -> Result<BlockSums, StepFailure> {
        match self {
            BegunSums::Here(sums) => sums.map_err(|e| StepFailure::new(path, "cannot read", e)),
            BegunSums::There(session, ticket) => session
                .await_sums(ticket)
                .map_err(|e| StepFailure::of_remote(path, "cannot read", e)),
        }
    }
}

/// What is missing in a part file.
pub struct MissingRanges {
    /// Starts and ends, in order.
    pub ranges: Vec<(u64, u64)>,
    /// Bytes that are there.
    pub there: u64,
}

/// Compares a part file with its source, without moving the bytes. `on_block` gets the bytes of
/// each block that is there. The outer error ends the command.
///
/// # Errors
/// Ctrl-C; those of reading.
pub fn find_missing(
    (from, to): (&AnyPath, &AnyPath),
    source: &LargeSource,
    sink: &LargeSink,
    size: u64,
    on_block: &mut dyn FnMut(u64),
) -> CommandResult<Result<MissingRanges, StepFailure>> {
    let mut missing = MissingRanges { ranges: Vec::new(), there: 0 };
    let (mut begun, mut next, mut at) = (VecDeque::new(), 0, 0);
    while at < size {
        check_interrupt()?;
        while next < size && begun.len() < SUMS_AHEAD {
            let end = size.min(next + SUMS_STEP * BLOCK);
            // Those there first: they are computed while this side computes its own.
            let of_sink = match sink {
                LargeSink::Site(session, file) => BegunSums::of_site(session, *file, next, end),
                LargeSink::Here(CopySink::LocalPart(part)) => {
                    BegunSums::of_local(part.part.file(), next, end)
                }
                LargeSink::Here(CopySink::VolumePart(part)) => {
                    BegunSums::Here(sum_volume_file(part.data(), next, end))
                }
                LargeSink::Here(_) => BegunSums::Here(Err(Errno::EINVAL)),
            };
            let of_source = match source {
                LargeSource::Site(session, file) => BegunSums::of_site(session, *file, next, end),
                LargeSource::Here(CopySource::Local(file)) => BegunSums::of_local(file, next, end),
                LargeSource::Here(CopySource::Volume(file)) => {
                    BegunSums::Here(sum_volume_file(file.data(), next, end))
                }
                LargeSource::Here(_) => BegunSums::Here(Err(Errno::EINVAL)),
            };
            begun.push_back((of_source, of_sink));
            next = end;
        }
        let Some((of_source, of_sink)) = begun.pop_front() else { break };
        let both = of_source.await_sums(from).and_then(|sums| Ok((sums, of_sink.await_sums(to)?)));
        let (ours, theirs) = match both {
            Ok(both) => both,
            Err(failure) => return Ok(Err(failure)),
        };
        let end = size.min(at + SUMS_STEP * BLOCK);
        let mut sums = ours.into_iter().zip(theirs);
        while at < end {
            let len = BLOCK.min(size - at);
            match sums.next() {
                Some((one, other)) if one == other => {
                    missing.there += len;
                    on_block(len);
                }
                _ => match missing.ranges.last_mut() {
                    Some((_, last)) if *last == at => *last = at + len,
                    _ => missing.ranges.push((at, at + len)),
                },
            }
            at += len;
        }
    }
    Ok(Ok(missing))
}
