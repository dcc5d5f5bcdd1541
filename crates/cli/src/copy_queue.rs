//! Copies from and to other sites, of which many are under way at once: a small file is one call,
//! and a large one is copied in parts. The steps are awaited in the order in which they began, so
//! the failure of each is known with its path.

use crate::copy_job::{ATTEMPTS_MAX, CopyItem, CopyJob, ExistingRule};
use crate::copy_parts::{RESUME_MIN, find_missing};
use crate::copy_stream::{CopySink, CopySource, is_standard_stream, last_name};
use crate::copy_trees::{FileFacts, change_of};
use crate::error::{CommandFailure, CommandResult};
use crate::interrupt::{check_interrupt, is_interrupted};
use crate::site_tree::{self, errno_of, session_of};
use crate::term;
use crate::volume_path::AnyPath;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io::{self, Read, Write};
use std::sync::Arc;
use tatami_remote::{
    BYTES_MAX, PartRecord, PartStart, RemoteError, RemoteSession, SiteEntry, SiteFile,
};
use tatami_wire::{Errno, InodeKind};

/// Most small files, directories and links that are under way at once.
const NAMES_MAX: usize = 64;
/// Most bytes of small files that are under way at once.
const SMALL_MAX: usize = 8 << 20;
/// Most bytes of large files that are asked for and have not come.
const PARTS_MAX: usize = 32 << 20;
/// Most large files that are under way at once.
const LARGE_MAX: usize = 16;
/// A small file up to this size is copied without its holes.
const HOLES_MIN: u64 = 64 << 10;
/// Fewest bytes that are asked for.
const FETCH_MIN: usize = 64 << 10;
/// Most directories whose listings are asked for before they are needed.
const LISTINGS_MAX: usize = 32;

/// A failed step of one file.
pub struct StepFailure {
    failure: CommandFailure,
    /// The link broke while the file was under way: it is copied once more.
    is_broken: bool,
}

impl StepFailure {
    /// Returns a failure on `path`.
    pub fn new(path: &AnyPath, what: &str, errno: Errno) -> StepFailure {
        StepFailure { failure: path.operation_failure(what, errno), is_broken: false }
    }

    /// Returns the failure of a call for `path`.
    pub fn of_remote(path: &AnyPath, what: &str, error: RemoteError) -> StepFailure {
        let errno = errno_of(error);
        let is_broken = errno == Errno::ESTALE;
        StepFailure { failure: path.operation_failure(what, errno), is_broken }
    }
}

/// A file on its way.
pub struct QueuedCopy {
    item: CopyItem,
    /// What is at the destination, behind links.
    old: Option<FileFacts>,
    attempt: u32,
    /// Bytes that the progress bar has counted.
    counted: u64,
}

/// Where the bytes of a large file come from.
pub enum LargeSource {
    Here(CopySource),
    Site(Arc<RemoteSession>, u64),
}

/// Where the bytes of a large file go.
pub enum LargeSink {
    Here(CopySink),
    Site(Arc<RemoteSession>, u64),
}

struct LargeCopy {
    copy: QueuedCopy,
    source: LargeSource,
    sink: LargeSink,
    failure: Option<StepFailure>,
    /// Parts that were asked for and have not come.
    unread: usize,
}

/// A step whose reply is awaited.
enum QueuedStep {
    /// A whole file is sent.
    Put { copy: QueuedCopy, session: Arc<RemoteSession>, ticket: u64, bytes: usize },
    /// A whole file is asked for.
    Fetch { copy: QueuedCopy, session: Arc<RemoteSession>, ticket: u64, bytes: usize },
    /// A part of a large file is asked for.
    Part { id: u64, session: Arc<RemoteSession>, ticket: u64, offset: u64, bytes: usize },
    /// The end of a large file. `ticket`: it was sent.
    Finish { id: u64, ticket: Option<u64> },
    /// A directory or link is made, or times are set.
    Name { path: AnyPath, what: &'static str, session: Arc<RemoteSession>, ticket: u64 },
}

/// The steps under way.
#[derive(Default)]
pub struct CopyQueue {
    steps: VecDeque<QueuedStep>,
    large: BTreeMap<u64, LargeCopy>,
    last_id: u64,
    /// Files to be copied once more.
    again: Vec<QueuedCopy>,
    /// Listings that were asked for, with their numbers and tickets.
    listings: HashMap<SiteFile, (u64, u64)>,
    /// Directories that could not be made.
    unmade: Vec<AnyPath>,
}

impl CopyQueue {
    fn count_names(&self) -> usize {
        let is_name = |step: &&QueuedStep| {
            !matches!(step, QueuedStep::Part { .. } | QueuedStep::Finish { .. })
        };
        self.steps.iter().filter(is_name).count()
    }

    fn count_small_bytes(&self) -> usize {
        let bytes = self.steps.iter().map(|step| match step {
            QueuedStep::Put { bytes, .. } | QueuedStep::Fetch { bytes, .. } => *bytes,
            _ => 0,
        });
        bytes.sum()
    }

    fn count_part_bytes(&self) -> usize {
        let bytes = self.steps.iter().map(|step| match step {
            QueuedStep::Part { bytes, .. } => *bytes,
            _ => 0,
        });
        bytes.sum()
    }

    /// Asks for the listings of directories that are copied soon.
    pub fn list_ahead<'a>(&mut self, soon: impl Iterator<Item = &'a CopyItem>) {
        for item in soon.filter(|item| item.facts.kind == InodeKind::Dir) {
            if self.listings.len() >= LISTINGS_MAX {
                return;
            }
            let AnyPath::Site(file) = &item.from else { continue };
            if self.listings.contains_key(file) {
                continue;
            }
            let begun = session_of(file).map(|session| {
                session.begin_listing(site_tree::path_of(file))
            });
            // A failure is reported when the directory is copied.
            let Ok(Ok(begun)) = begun else { return };
            self.listings.insert(file.clone(), begun);
        }
    }

    /// Returns the entries of a directory of another site.
    ///
    /// # Errors
    /// Those of the listing.
    pub fn list_dir(&mut self, dir: &SiteFile) -> Result<Vec<SiteEntry>, Errno> {
        let session = session_of(dir)?;
        let path = site_tree::path_of(dir);
        let mut entries = match self.listings.remove(dir) {
            Some(begun) => session.list_dir_begun(path, begun),
            None => session.list_dir(path),
        }
        .map_err(errno_of)?;
        entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }
}

/// Whether a file is copied by one call.
fn is_small(facts: &FileFacts) -> bool {
    facts.size < BYTES_MAX as u64 && (!facts.is_sparse() || facts.size <= HOLES_MIN)
}

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
    /// Whether a file is copied by the queue: between another site and something else.
    pub fn uses_queue(&self, item: &CopyItem) -> bool {
        let CopyItem { from, to, facts, .. } = item;
        if facts.kind != InodeKind::File || [from, to].into_iter().any(is_standard_stream) {
            return false;
        }
        match (from, to) {
            // Reads and writes of one session could wait for each other.
            (AnyPath::Site(from), AnyPath::Site(to)) => from.site != to.site,
            (AnyPath::Site(_), _) | (_, AnyPath::Site(_)) => true,
            _ => false,
        }
    }

    /// Begins the copy of a file, and completes some that began before.
    ///
    /// # Errors
    /// What ends the whole copy.
    pub fn queue_copy(&mut self, item: CopyItem, old: Option<FileFacts>) -> CommandResult {
        if self.queue.large.values().any(|large| large.copy.item.to == item.to) {
            self.drain_queue()?;
        }
        self.begin_copy(QueuedCopy { item, old, attempt: 1, counted: 0 })?;
        self.limit_queue()?;
        self.copy_again()
    }

    /// Completes all copies that have begun.
    ///
    /// # Errors
    /// What ends the whole copy.
    pub fn drain_queue(&mut self) -> CommandResult {
        while !self.queue.steps.is_empty() || !self.queue.again.is_empty() {
            while !self.queue.steps.is_empty() {
                self.complete_oldest()?;
            }
            self.copy_again()?;
        }
        Ok(())
    }

    /// Gives up all copies under way, after what ends the whole copy. Calls that make complete
    /// files are awaited after Ctrl-C, so that they are counted.
    pub fn abandon_queue(&mut self) {
        let queue = std::mem::take(&mut self.queue);
        for step in queue.steps.into_iter().filter(|_| is_interrupted()) {
            if let QueuedStep::Put { copy, session, ticket, .. } = step
                && session.await_done(ticket).is_ok()
            {
                self.totals.files += 1;
                self.totals.bytes += copy.counted;
            }
        }
    }

    /// Begins to make a directory of another site.
    pub fn queue_dir(&mut self, to: &SiteFile, mode: u16) -> CommandResult {
        // The copy must be able to fill it, regardless of the mode of the original.
        let mode = u32::from((mode & 0o777) | 0o700);
        self.queue_name(to, "cannot make", |session, path| session.begin_dir(path, mode))
    }

    /// Begins to make a symbolic link of another site.
    pub fn queue_link(&mut self, to: &SiteFile, target: &[u8]) -> CommandResult {
        self.queue_name(to, "cannot make", |session, path| session.begin_link(path, target))
    }

    /// Begins to set mode and time of a directory of another site.
    pub fn queue_times(&mut self, to: &SiteFile, facts: &FileFacts) -> CommandResult {
        let change = change_of(Some(facts));
        self.queue_name(to, "cannot set times of", |session, path| {
            session.begin_change(path, change)
        })
    }

    fn queue_name(
        &mut self,
        to: &SiteFile,
        what: &'static str,
        begin: impl FnOnce(&RemoteSession, &[u8]) -> Result<u64, RemoteError>,
    ) -> CommandResult {
        let path = AnyPath::Site(to.clone());
        let failed = |e| path.operation_failure(what, e);
        let session = session_of(to).map_err(failed)?;
        let begun = begin(&session, site_tree::path_of(to));
        let ticket = begun.map_err(|e| StepFailure::of_remote(&path, what, e).failure)?;
        self.queue.steps.push_back(QueuedStep::Name { path, what, session, ticket });
        self.limit_queue()
    }

    /// Completes the oldest steps until no more are under way than may be.
    fn limit_queue(&mut self) -> CommandResult {
        while self.queue.count_names() > NAMES_MAX
            || self.queue.count_small_bytes() > SMALL_MAX
            || self.queue.large.len() > LARGE_MAX
        {
            self.complete_oldest()?;
        }
        self.send_finishes();
        Ok(())
    }

    fn copy_again(&mut self) -> CommandResult {
        while let Some(copy) = self.queue.again.pop() {
            check_interrupt()?;
            self.begin_copy(copy)?;
        }
        Ok(())
    }

    fn begin_copy(&mut self, mut copy: QueuedCopy) -> CommandResult {
        self.bar.set_message(term::escape_name(&last_name(&copy.item.from)));
        copy.counted = 0;
        match (is_small(&copy.item.facts), &copy.item.from) {
            (true, AnyPath::Site(_)) => self.begin_fetch(copy),
            (true, _) => self.begin_put(copy),
            (false, _) => self.begin_large(copy),
        }
    }

    fn may_replace(&self) -> bool {
        self.rules.existing != ExistingRule::Keep
    }

    /// Ends a copy: counts it, keeps its failure, or notes that it must be made once more.
    fn settle_copy(
        &mut self,
        mut copy: QueuedCopy,
        done: Result<(), StepFailure>,
    ) -> CommandResult {
        match done {
            Ok(()) => {
                self.count_file(copy.counted);
                Ok(())
            }
            Err(failed) if failed.is_broken && copy.attempt < ATTEMPTS_MAX => {
                let position = self.bar.position().saturating_sub(copy.counted);
                self.bar.set_position(position);
                copy.attempt += 1;
                self.queue.again.push(copy);
                Ok(())
            }
            // The failure of the directory has been reported.
            Err(failed) if self.lies_in_unmade(&copy.item.to) => {
                check_interrupt()?;
                drop(failed);
                self.count_failure();
                Ok(())
            }
            Err(failed) => self.record_failure(failed.failure),
        }
    }

    fn lies_in_unmade(&self, path: &AnyPath) -> bool {
        let AnyPath::Site(file) = path else { return false };
        self.queue.unmade.iter().any(|dir| match dir {
            AnyPath::Site(dir) => dir.site == file.site && file.path.starts_with(&dir.path),
            _ => false,
        })
    }

    fn count_bytes(&mut self, copy: &mut QueuedCopy, bytes: u64) {
        copy.counted += bytes;
        self.bar.inc(bytes);
    }

    /// Copies a file that has changed its kind or grown meanwhile, without others beside it.
    fn copy_alone(&mut self, copy: QueuedCopy) -> CommandResult {
        let copied = self.copy_file_alone(&copy.item, copy.old.as_ref());
        copied.or_else(|failure| self.record_failure(failure))
    }

    fn begin_put(&mut self, copy: QueuedCopy) -> CommandResult {
        let CopyItem { from, facts, .. } = &copy.item;
        let failed = |e| StepFailure::new(from, "cannot read", e);
        let most = (facts.size as usize + 1).max(FETCH_MIN).min(BYTES_MAX);
        let read = self.sides.open_source(from, Some(facts)).map_err(failed).and_then(|source| {
            let mut bytes = Vec::with_capacity(facts.size as usize + 1);
            let read = source.take(most as u64).read_to_end(&mut bytes);
            read.map_err(|e| failed(e.into()))?;
            Ok(bytes)
        });
        match read {
            Ok(bytes) if bytes.len() == most => self.copy_alone(copy),
            Ok(bytes) => self.put_bytes(copy, &bytes),
            Err(failure) => {
                check_interrupt()?;
                self.settle_copy(copy, Err(failure))
            }
        }
    }

    /// Sends the bytes of a small file.
    fn put_bytes(&mut self, mut copy: QueuedCopy, bytes: &[u8]) -> CommandResult {
        let CopyItem { to, facts, .. } = &copy.item;
        let AnyPath::Site(file) = to else { return self.copy_alone(copy) };
        let change = change_of(self.rules.preserve.then_some(facts));
        let begun = session_of(file)
            .map_err(|e| StepFailure::new(to, "cannot write", e))
            .and_then(|session| {
                let (path, mode) = (site_tree::path_of(file), u32::from(facts.mode & 0o777));
                let begun = session.put_file(path, mode, change, self.may_replace(), bytes);
                let failed = |e| StepFailure::of_remote(to, "cannot write", e);
                Ok((begun.map_err(failed)?, session))
            });
        match begun {
            Ok((ticket, session)) => {
                let bytes = bytes.len();
                self.count_bytes(&mut copy, bytes as u64);
                self.queue.steps.push_back(QueuedStep::Put { copy, session, ticket, bytes });
                Ok(())
            }
            Err(failure) => self.settle_copy(copy, Err(failure)),
        }
    }

    fn begin_fetch(&mut self, copy: QueuedCopy) -> CommandResult {
        let CopyItem { from, facts, .. } = &copy.item;
        let AnyPath::Site(file) = from else { return self.copy_alone(copy) };
        // One byte more than is expected shows whether it has grown.
        let bytes = (facts.size as usize + 1).max(FETCH_MIN).min(BYTES_MAX);
        let begun = session_of(file)
            .map_err(|e| StepFailure::new(from, "cannot read", e))
            .and_then(|session| {
                let begun = session.fetch_file(site_tree::path_of(file), bytes);
                let failed = |e| StepFailure::of_remote(from, "cannot read", e);
                Ok((begun.map_err(failed)?, session))
            });
        match begun {
            Ok((ticket, session)) => {
                self.queue.steps.push_back(QueuedStep::Fetch { copy, session, ticket, bytes });
                Ok(())
            }
            Err(failure) => self.settle_copy(copy, Err(failure)),
        }
    }

    /// Waits for the oldest step, and does what follows.
    fn complete_oldest(&mut self) -> CommandResult {
        check_interrupt()?;
        self.send_finishes();
        match self.queue.steps.pop_front() {
            None => Ok(()),
            Some(QueuedStep::Put { copy, session, ticket, .. }) => {
                let done = session.await_done(ticket);
                let to = &copy.item.to;
                let done = done.map_err(|e| StepFailure::of_remote(to, "cannot write", e));
                self.settle_copy(copy, done)
            }
            Some(QueuedStep::Fetch { mut copy, session, ticket, bytes: asked }) => {
                let fetched = session.await_file(ticket);
                let from = &copy.item.from;
                match fetched.map_err(|e| StepFailure::of_remote(from, "cannot read", e)) {
                    Ok((_, bytes)) if bytes.len() == asked => self.copy_alone(copy),
                    Ok((_, bytes)) if copy.item.to.is_site() => self.put_bytes(copy, &bytes),
                    Ok((_, bytes)) => {
                        let done = self.write_small(&copy, &bytes);
                        self.count_bytes(&mut copy, bytes.len() as u64);
                        self.settle_copy(copy, done)
                    }
                    Err(failure) => self.settle_copy(copy, Err(failure)),
                }
            }
            Some(QueuedStep::Part { id, session, ticket, offset, .. }) => {
                let read = session.await_read(ticket);
                if let Some(large) = self.queue.large.get_mut(&id) {
                    large.unread -= 1;
                    let from = &large.copy.item.from;
                    match read.map_err(|e| StepFailure::of_remote(from, "cannot read", e)) {
                        Ok(bytes) => self.write_large(id, offset, bytes),
                        Err(failure) => drop(large.failure.get_or_insert(failure)),
                    }
                }
                Ok(())
            }
            Some(QueuedStep::Finish { id, ticket }) => self.finish_large(id, ticket),
            Some(QueuedStep::Name { path, what, session, ticket }) => {
                match session.await_done(ticket) {
                    Ok(()) => Ok(()),
                    // Another process has made it meanwhile.
                    Err(e)
                        if e.errno == rustix::io::Errno::EXIST
                            && self
                                .sides
                                .read_facts(&path, true)
                                .is_ok_and(|facts| facts.kind == InodeKind::Dir) =>
                    {
                        Ok(())
                    }
                    Err(_) if self.lies_in_unmade(&path) => {
                        self.count_failure();
                        Ok(())
                    }
                    Err(e) => {
                        let failed = StepFailure::of_remote(&path, what, e);
                        self.queue.unmade.push(path);
                        self.record_failure(failed.failure)
                    }
                }
            }
        }
    }

    /// Writes a small file of another site.
    fn write_small(&self, copy: &QueuedCopy, bytes: &[u8]) -> Result<(), StepFailure> {
        let CopyItem { to, facts, .. } = &copy.item;
        let failed = |e| StepFailure::new(to, "cannot write", e);
        let mut sink =
            self.sides.create_sink(to, facts.mode, copy.old.as_ref()).map_err(failed)?;
        sink.write_all(bytes).map_err(|e| failed(e.into()))?;
        let preserved = self.rules.preserve.then_some(facts);
        self.sides
            .finish_sink(sink, copy.old.as_ref(), preserved, self.may_replace())
            .map_err(failed)
    }

    /// Copies the parts of a large file. Its end is awaited later.
    fn begin_large(&mut self, copy: QueuedCopy) -> CommandResult {
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
                let found = find_missing(
                    (&from, &to),
                    &large.source,
                    &large.sink,
                    size,
                    &mut |bytes| {
                        there += bytes;
                        bar.inc(bytes);
                    },
                )?;
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
        let mut record =
            PartRecord { size: facts.size, modified: (facts.mtime.sec, facts.mtime.nsec), ino: facts.identity.1 };
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
    fn write_large(&mut self, id: u64, offset: u64, bytes: Vec<u8>) {
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
    fn send_finishes(&mut self) {
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

    fn finish_large(&mut self, id: u64, ticket: Option<u64>) -> CommandResult {
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
