//! Copies large files from and to other sites. The command splits a file into parts and has many of
//! them under way. It sends parts of the next file before the last ones of this file have arrived.

use crate::copy_job::CopyJob;
use crate::copy_parts::{RESUME_MIN, find_missing};
use crate::copy_steps::{
    CopyItem, CopyQueue, LargeCopy, LargeSink, LargeSource, QueuedCopy, QueuedStep, StepFailure,
};
use crate::copy_stream::CopySource;
use crate::copy_trees::change_of;
use crate::error::CommandResult;
use crate::interrupt::{check_interrupt, is_interrupted};
use crate::site_tree::{self, session_of};
use crate::term;
use crate::volume_path::AnyPath;
use std::io::{self, Read, Write};
use tatami_remote::{BYTES_MAX, PartRecord, PartStart};

/// Most bytes of large files that are asked for and have not come.
const PARTS_MAX: usize = 32 << 20;

fn read_chunk(source: &mut CopySource, offset: u64, len: usize) -> io::Result<Vec<u8>> {
    source.seek_to(offset)?;
    let mut bytes = vec![0; len];
    let mut done = 0;
    while done < len {
        match source.read(&mut bytes[done..]) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted && !is_interrupted() => {}
            Err(e) => return Err(e),
        }
    }
    bytes.truncate(done);
    Ok(bytes)
}

impl CopyJob<'_> {
    /// Copies the parts of a large file. Its end is awaited later.
    pub fn begin_large(&mut self, copy: QueuedCopy) -> CommandResult {
        let (large, size, start) = match self.open_large(copy) {
            Ok(opened) => opened,
            Err(failed) => {
                let (copy, failure) = *failed;
                return self.settle_copy(copy, Err(failure));
            }
        };
        let CopyItem { from, to, facts, .. } = large.copy.item.clone();
        let id = self.queue.last_id + 1;
        self.queue.last_id = id;
        let mut ranges = None;
        let mut large = large;
        match start {
            Some(PartStart::Continued) => {
                let mut there = 0;
                let bar = self.bar.clone();
                let found =
                    find_missing((&from, &to), &large.source, &large.sink, size, &mut |bytes| {
                        there += bytes;
                        bar.inc(bytes);
                    })?;
                large.copy.counted += there;
                match found {
                    Ok(missing) => {
                        let there = term::format_size(missing.there);
                        let all = term::format_size(size);
                        self.print_step(|| format!("{to}: {there} of {all} were there"))?;
                        ranges = Some(missing.ranges);
                    }
                    Err(failure) => large.failure = Some(failure),
                }
            }
            Some(PartStart::Replaced) => {
                let note = format!(
                    "{to}: begun anew, because the part of an earlier copy is of another source, \
                     or of another state of it"
                );
                self.bar.suspend(|| term::print_note(&note));
            }
            _ => {}
        }
        let is_part = matches!(start, Some(start) if start != PartStart::InPlace);
        self.queue.large.insert(id, large);
        match ranges {
            Some(ranges) => {
                for (at, end) in ranges {
                    self.copy_parts(id, at, end)?;
                }
            }
            None if facts.is_sparse() => self.copy_sparse(id, size, is_part)?,
            None => self.copy_parts(id, 0, size)?,
        }
        self.queue.steps.push_back(QueuedStep::Finish { id, ticket: None });
        Ok(())
    }

    #[allow(clippy::type_complexity)]
    fn open_large(
        &self,
        copy: QueuedCopy,
    ) -> Result<(LargeCopy, u64, Option<PartStart>), Box<(QueuedCopy, StepFailure)>> {
        match self.open_both(&copy) {
            Ok((source, sink, size, start)) => {
                let large = LargeCopy { copy, source, sink, failure: None, unread: 0 };
                Ok((large, size, start))
            }
            Err(failure) => Err(Box::new((copy, failure))),
        }
    }

    /// Opens both sides of a large file. Returns the size of the source, too.
    fn open_both(
        &self,
        copy: &QueuedCopy,
    ) -> Result<(LargeSource, LargeSink, u64, Option<PartStart>), StepFailure> {
        let CopyItem { from, facts, .. } = &copy.item;
        let read_failed = |e| StepFailure::new(from, "cannot read", e);
        let mut record = PartRecord {
            size: facts.size,
            modified: (facts.mtime.sec, facts.mtime.nsec),
            ino: facts.identity.1,
        };
        let source = match from {
            AnyPath::Site(file) => {
                let session = session_of(file).map_err(read_failed)?;
                let opened = session.open_source(site_tree::path_of(file));
                let (number, attr) =
                    opened.map_err(|e| StepFailure::of_remote(from, "cannot read", e))?;
                record = PartRecord { size: attr.size, modified: attr.modified, ino: attr.ino };
                LargeSource::Site(session, number)
            }
            _ => LargeSource::Here(self.sides.open_source(from, Some(facts)).map_err(read_failed)?),
        };
        let resumes = self.rules.resume && record.size >= RESUME_MIN;
        let sink = self.open_large_sink(copy, resumes.then_some(&record));
        match sink {
            Ok((sink, start)) => Ok((source, sink, record.size, start)),
            Err(failure) => {
                if let LargeSource::Site(session, number) = &source {
                    session.close_copy(*number);
                }
                Err(failure)
            }
        }
    }

    fn open_large_sink(
        &self,
        copy: &QueuedCopy,
        record: Option<&PartRecord>,
    ) -> Result<(LargeSink, Option<PartStart>), StepFailure> {
        let CopyItem { to, facts, .. } = &copy.item;
        let failed = |e| StepFailure::new(to, "cannot write", e);
        let remote_failed = |e| StepFailure::of_remote(to, "cannot write", e);
        let (mode, old) = (facts.mode & 0o777, copy.old.as_ref());
        match (to, record) {
            (AnyPath::Site(file), Some(record)) => {
                let session = session_of(file).map_err(failed)?;
                let path = site_tree::path_of(file);
                let opened = session.open_part(path, mode.into(), &record.encode());
                let (number, start) = opened.map_err(remote_failed)?;
                Ok((LargeSink::Site(session, number), Some(start)))
            }
            (AnyPath::Site(file), None) => {
                let session = session_of(file).map_err(failed)?;
                let opened = session.begin_sink(site_tree::path_of(file), mode.into());
                Ok((LargeSink::Site(session, opened.map_err(remote_failed)?), None))
            }
            (_, Some(record)) => {
                let made = self.sides.create_part(to, mode, old, record).map_err(failed)?;
                Ok((LargeSink::Here(made.0), Some(made.1)))
            }
            (_, None) => {
                let made = self.sides.create_sink(to, mode, old).map_err(failed)?;
                Ok((LargeSink::Here(made), None))
            }
        }
    }

    /// Copies the ranges of a large file that are no holes. `is_part`: it has its size already.
    fn copy_sparse(&mut self, id: u64, size: u64, is_part: bool) -> CommandResult {
        let mut at = 0;
        while at < size {
            let Some(large) = self.queue.large.get_mut(&id) else { return Ok(()) };
            let from = &large.copy.item.from;
            let found = match &mut large.source {
                LargeSource::Here(source) => {
                    source.find_data(at).map_err(|e| StepFailure::new(from, "cannot read", e))
                }
                LargeSource::Site(session, file) => session
                    .find_data_ahead(*file, at)
                    .map_err(|e| StepFailure::of_remote(from, "cannot read", e)),
            };
            let (start, end) = match found {
                Ok(found) => found.unwrap_or((size, size)),
                Err(failure) => {
                    large.failure.get_or_insert(failure);
                    return Ok(());
                }
            };
            let (start, end) = (start.min(size), end.min(size));
            let hole = start - at;
            large.copy.counted += hole;
            self.bar.inc(hole);
            if start == size && !is_part {
                self.extend_large(id, size);
            }
            self.copy_parts(id, start, end)?;
            at = end.max(start);
        }
        Ok(())
    }

    fn extend_large(&mut self, id: u64, size: u64) {
        let Some(large) = self.queue.large.get_mut(&id) else { return };
        let to = &large.copy.item.to;
        let done = match &mut large.sink {
            LargeSink::Here(sink) => {
                sink.set_size(size).map_err(|e| StepFailure::new(to, "cannot write", e))
            }
            LargeSink::Site(session, file) => session
                .extend_sink(*file, size)
                .map_err(|e| StepFailure::of_remote(to, "cannot write", e)),
        };
        if let Err(failure) = done {
            large.failure.get_or_insert(failure);
        }
    }

    /// Copies a range of a large file, in parts.
    fn copy_parts(&mut self, id: u64, mut at: u64, end: u64) -> CommandResult {
        while at < end {
            check_interrupt()?;
            let len = (BYTES_MAX as u64).min(end - at) as usize;
            while self.queue.count_part_bytes() + len > PARTS_MAX {
                self.complete_oldest()?;
            }
            let Some(large) = self.queue.large.get_mut(&id) else { return Ok(()) };
            if large.failure.is_some() {
                return Ok(());
            }
            let from = &large.copy.item.from;
            match &mut large.source {
                LargeSource::Here(source) => {
                    let read = read_chunk(source, at, len);
                    let failed = |e: io::Error| StepFailure::new(from, "cannot read", e.into());
                    match read.map_err(failed) {
                        Ok(bytes) if bytes.is_empty() => return Ok(()),
                        Ok(bytes) => self.write_large(id, at, bytes),
                        Err(failure) => {
                            check_interrupt()?;
                            large.failure = Some(failure);
                        }
                    }
                }
                LargeSource::Site(session, file) => {
                    let begun = session.begin_read(*file, at, len);
                    match begun.map_err(|e| StepFailure::of_remote(from, "cannot read", e)) {
                        Ok(ticket) => {
                            large.unread += 1;
                            let (session, offset, bytes) = (session.clone(), at, len);
                            let step = QueuedStep::Part { id, session, ticket, offset, bytes };
                            self.queue.steps.push_back(step);
                        }
                        Err(failure) => large.failure = Some(failure),
                    }
                }
            }
            at += len as u64;
        }
        Ok(())
    }

    /// Writes a part of a large file. A failure is kept with it.
    pub fn write_large(&mut self, id: u64, offset: u64, bytes: Vec<u8>) {
        let Some(large) = self.queue.large.get_mut(&id) else { return };
        if large.failure.is_some() || bytes.is_empty() {
            return;
        }
        let (to, len) = (&large.copy.item.to, bytes.len() as u64);
        let written = match &mut large.sink {
            LargeSink::Here(sink) => sink
                .seek_to(offset)
                .and_then(|()| sink.write_all(&bytes))
                .map_err(|e| StepFailure::new(to, "cannot write", e.into())),
            LargeSink::Site(session, file) => session
                .write_part(*file, offset, bytes)
                .map_err(|e| StepFailure::of_remote(to, "cannot write", e)),
        };
        match written {
            Ok(()) => {
                large.copy.counted += len;
                self.bar.inc(len);
            }
            Err(failure) => large.failure = Some(failure),
        }
    }

    /// Sends the ends of large files that have all their parts, so that each costs no round trip of
    /// its own.
    pub fn send_finishes(&mut self) {
        let may_replace = self.may_replace();
        let CopyQueue { steps, large, .. } = &mut self.queue;
        for step in steps.iter_mut() {
            let QueuedStep::Finish { id, ticket: ticket @ None } = step else { continue };
            let Some(large) = large.get_mut(id) else { continue };
            let LargeSink::Site(session, file) = &large.sink else { continue };
            if large.unread > 0 || large.failure.is_some() || session.has_parts(*file) {
                continue;
            }
            if let Some(error) = session.error_of(*file) {
                let to = &large.copy.item.to;
                large.failure = Some(StepFailure::of_remote(to, "cannot write", error));
                continue;
            }
            let change = change_of(self.rules.preserve.then_some(&large.copy.item.facts));
            match session.begin_finish(*file, change, may_replace) {
                Ok(sent) => *ticket = Some(sent),
                Err(e) => {
                    let to = &large.copy.item.to;
                    large.failure = Some(StepFailure::of_remote(to, "cannot write", e));
                }
            }
        }
    }

    /// Completes a large file.
    pub fn finish_large(&mut self, id: u64, ticket: Option<u64>) -> CommandResult {
        let Some(LargeCopy { copy, source, sink, failure, .. }) = self.queue.large.remove(&id)
        else {
            return Ok(());
        };
        let (to, facts) = (&copy.item.to, &copy.item.facts);
        let preserved = self.rules.preserve.then_some(facts);
        let may_replace = self.may_replace();
        let done = match (sink, failure) {
            (LargeSink::Site(session, file), Some(failure)) => {
                session.close_copy(file);
                Err(failure)
            }
            (LargeSink::Here(_), Some(failure)) => Err(failure),
            (LargeSink::Here(sink), None) => self
                .sides
                .finish_sink(sink, copy.old.as_ref(), preserved, may_replace)
                .map_err(|e| StepFailure::new(to, "cannot write", e)),
            (LargeSink::Site(session, file), None) => {
                let sent = match ticket {
                    Some(ticket) => Ok(ticket),
                    None => session.begin_finish(file, change_of(preserved), may_replace),
                };
                sent.and_then(|ticket| session.await_finish(file, ticket))
                    .map_err(|e| StepFailure::of_remote(to, "cannot write", e))
            }
        };
        if let LargeSource::Site(session, file) = source {
            session.close_copy(file);
        }
        self.settle_copy(copy, done)
    }
}
