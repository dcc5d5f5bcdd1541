//! The queue of copies from and to other sites. The command has many files under way at once. A
//! small file is one call, and a large one goes in parts. The command awaits the replies in the
//! order of their calls, so it knows the path of each failure.

use crate::copy_job::{ATTEMPTS_MAX, CopyJob, ExistingRule};
use crate::copy_steps::{CopyItem, QueuedCopy, QueuedStep, StepFailure};
use crate::copy_stream::{is_standard_stream, last_name};
use crate::copy_trees::{FileFacts, change_of};
use crate::error::CommandResult;
use crate::interrupt::{check_interrupt, is_interrupted};
use crate::site_tree::{self, session_of};
use crate::term;
use crate::volume_path::AnyPath;
use std::io::{Read, Write};
use tatami_remote::{BYTES_MAX, RemoteError, RemoteSession, SiteFile};
use tatami_wire::InodeKind;

/// Most small files, directories and links that are under way at once.
const NAMES_MAX: usize = 64;
/// Most bytes of small files that are under way at once.
const SMALL_MAX: usize = 8 << 20;
/// Most large files that are under way at once.
const LARGE_MAX: usize = 16;
/// A small file up to this size is copied without its holes.
const HOLES_MIN: u64 = 64 << 10;
/// Fewest bytes that are asked for.
const FETCH_MIN: usize = 64 << 10;
/// What fails where a directory or link cannot be made.
const MAKES: &str = "cannot make";

/// Whether a file is copied by one call.
fn is_small(facts: &FileFacts) -> bool {
    facts.size < BYTES_MAX as u64 && (!facts.is_sparse() || facts.size <= HOLES_MIN)
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
        self.queue_name(to, MAKES, |session, path| session.begin_dir(path, mode))
    }

    /// Begins to make a symbolic link of another site.
    pub fn queue_link(&mut self, to: &SiteFile, target: &[u8]) -> CommandResult {
        self.queue_name(to, MAKES, |session, path| session.begin_link(path, target))
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

    /// Whether a file of the same name is replaced.
    pub fn may_replace(&self) -> bool {
        self.rules.existing != ExistingRule::Keep
    }

    /// Ends a copy: counts it, keeps its failure, or notes that it must be made once more.
    pub fn settle_copy(
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
        let most = (facts.size as usize + 1).clamp(FETCH_MIN, BYTES_MAX);
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
        let begun = session_of(file).map_err(|e| StepFailure::new(to, "cannot write", e)).and_then(
            |session| {
                let (path, mode) = (site_tree::path_of(file), u32::from(facts.mode & 0o777));
                let begun = session.put_file(path, mode, change, self.may_replace(), bytes);
                let failed = |e| StepFailure::of_remote(to, "cannot write", e);
                Ok((begun.map_err(failed)?, session))
            },
        );
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
        let bytes = (facts.size as usize + 1).clamp(FETCH_MIN, BYTES_MAX);
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
    pub fn complete_oldest(&mut self) -> CommandResult {
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
                        if what == MAKES {
                            self.queue.unmade.push(path);
                        }
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
        let mut sink = self.sides.create_sink(to, facts.mode, copy.old.as_ref()).map_err(failed)?;
        sink.write_all(bytes).map_err(|e| failed(e.into()))?;
        let preserved = self.rules.preserve.then_some(facts);
        self.sides
            .finish_sink(sink, copy.old.as_ref(), preserved, self.may_replace())
            .map_err(failed)
    }
}
