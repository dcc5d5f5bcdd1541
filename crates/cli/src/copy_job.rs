//! The copy of one source with everything below it, for `cp`, `sync` and `mv`.
//!
//! A failure of one file does not stop the others, as in cp(1). What ends the whole copy: Ctrl-C,
//! a reader of the output that has gone, and a volume that cannot be reached.

use crate::copy_steps::{CopyItem, CopyQueue};
use crate::copy_stream::{self, CopySource, copy_bytes, is_standard_stream};
use crate::copy_trees::{CopyTrees, FileFacts, append_name, facts_of_site, volume_identity};
use crate::error::{CommandFailure, CommandResult, ExitStatus, keep_first};
use crate::interrupt::{check_interrupt, is_interrupted};
use crate::site_tree;
use crate::term::{self, TermOutput};
use crate::volume_path::AnyPath;
use indicatif::ProgressBar;
use std::collections::{HashMap, HashSet};
use std::io::Write;
use std::time::Duration;
use tatami_client::OperationScope;
use tatami_wire::{Errno, Ino, InodeKind};

/// After Ctrl-C, how long a request still waits for a node, so that complete files get their names.
const LAST_WAIT: Duration = Duration::from_secs(2);

/// Entries among which directories of another site are searched that can be listed ahead.
const LOOK_AHEAD: usize = 512;

/// Small files of the volume that are read together.
const READ_AHEAD: usize = 1024;

/// How often a file is copied, if a link to another site breaks each time.
pub const ATTEMPTS_MAX: u32 = 4;

/// Whether a request that waits for a node is given up, because the user has interrupted the copy.
fn gives_up_waiting(_: u32, waited: Duration) -> bool {
    is_interrupted() && waited >= LAST_WAIT
}

/// Which files are copied although the destination has a file of that name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExistingRule {
    /// It is copied.
    Replace,
    /// It is left alone.
    Keep,
    /// It is copied if it is newer than the copy, or has another size.
    Newer,
    /// It is copied if its size or its time differs.
    SizeOrTime,
    /// It is copied if its bytes differ.
    Bytes,
}

/// How files are copied.
#[derive(Clone, Copy, Debug)]
pub struct CopyRules {
    pub recursive: bool,
    /// Copies have the mode and the times of the originals.
    pub preserve: bool,
    pub verbose: bool,
    /// Devices, named pipes and sockets below a directory are no error.
    pub skip_special: bool,
    pub existing: ExistingRule,
    /// Entries of the destination that the source has not are removed.
    pub delete: bool,
    /// Nothing is changed; the steps are printed.
    pub dry_run: bool,
    /// A large file from or to another site is continued, and can be continued.
    pub resume: bool,
}

/// What a copy has done.
#[derive(Clone, Copy, Debug, Default)]
pub struct CopyTotals {
    pub files: u64,
    pub bytes: u64,
    /// Files that were left alone, because the destination has a copy already.
    pub unchanged: u64,
    pub deleted: u64,
}

/// A copy at work.
pub struct CopyJob<'a> {
    pub sides: &'a CopyTrees<'a>,
    pub rules: CopyRules,
    pub bar: ProgressBar,
    pub totals: CopyTotals,
    out: TermOutput,
    result: CommandResult,
    /// Number of failures.
    failed: u64,
    /// Directories that were copied, for their times: each copy inside changes them.
    dirs: Vec<(AnyPath, FileFacts)>,
    /// Copies from and to other sites.
    pub queue: CopyQueue,
    /// Files that were found so far.
    found: u64,
}

impl<'a> CopyJob<'a> {
    pub fn new(sides: &'a CopyTrees<'a>, rules: CopyRules) -> CopyJob<'a> {
        let (out, bar, result) = (TermOutput::new(), term::byte_bar(0), Ok(()));
        let (totals, dirs, queue) = (CopyTotals::default(), Vec::new(), CopyQueue::default());
        CopyJob { sides, rules, bar, totals, out, result, failed: 0, dirs, queue, found: 0 }
    }

    /// Copies a source to exactly `to`. Failures of single files are kept for
    /// [`CopyJob::finish`]. Returns whether all of it was copied.
    ///
    /// # Errors
    /// What ends the whole copy.
    pub fn copy_source(&mut self, from: &AnyPath, to: &AnyPath) -> CommandResult<bool> {
        let before = self.failed;
        let copied = self.begin_source(from, to).and_then(|item| self.copy_items(item));
        if let Err(failure) = copied {
            self.record_failure(failure)?;
        }
        Ok(self.failed == before)
    }

    /// Keeps the failure of one file, and goes on.
    ///
    /// # Errors
    /// The failure itself if it ends the whole copy.
    pub fn record_failure(&mut self, failure: CommandFailure) -> CommandResult {
        // After Ctrl-C a request that waited for a node has failed, too: no reason of its own.
        check_interrupt()?;
        match failure.exit {
            ExitStatus::Interrupted | ExitStatus::Quiet | ExitStatus::Degraded => Err(failure),
            _ => {
                self.failed += 1;
                let result = &mut self.result;
                self.bar.suspend(|| keep_first(result, failure));
                Ok(())
            }
        }
    }

    /// Counts a failure that needs no message of its own.
    pub fn count_failure(&mut self) {
        self.failed += 1;
    }

    /// Counts a file that was copied.
    pub fn count_file(&mut self, bytes: u64) {
        self.totals.files += 1;
        self.totals.bytes += bytes;
        self.show_files();
    }

    fn add_found(&mut self, files: u64) {
        self.found += files;
        self.show_files();
    }

    fn show_files(&self) {
        let done = self.totals.files + self.totals.unchanged;
        self.bar.set_prefix(format!("{done}/{} files", self.found.max(done)));
    }

    /// Completes all copies under way.
    ///
    /// # Errors
    /// What ends the whole copy.
    pub fn complete_copies(&mut self) -> CommandResult {
        let drained = self.drain_queue();
        if drained.is_err() {
            self.abandon_queue();
        }
        drained
    }

    /// Ends the copy.
    ///
    /// # Errors
    /// The first failure of a file.
    pub fn finish(mut self) -> CommandResult {
        self.bar.finish_and_clear();
        self.out.flush()?;
        self.result
    }

    /// Prints a step, with `-v` or in a dry run.
    pub fn print_step(&mut self, text: impl FnOnce() -> String) -> CommandResult {
        if self.rules.verbose || self.rules.dry_run {
            let out = &mut self.out;
            let text = text();
            self.bar.suspend(|| writeln!(out, "{text}").and_then(|()| out.flush()))?;
        }
        Ok(())
    }

    /// Checks a source that the user has named.
    fn begin_source(&mut self, from: &AnyPath, to: &AnyPath) -> CommandResult<CopyItem> {
        let sides = self.sides;
        // A symbolic link on the command line is followed. Links found below a directory are copied
        // as links.
        let facts = sides
            .read_facts(from, !self.rules.recursive)
            .map_err(|e| from.operation_failure("cannot copy", e))?;
        if facts.kind == InodeKind::Dir && !self.rules.recursive {
            let failure = from.operation_failure("cannot copy", Errno::EISDIR);
            return Err(failure.try_this(format!("tatami cp -r {from} {to}")));
        }
        if facts.kind == InodeKind::Dir && sides.lies_within(to, facts.identity) {
            let what = format!("cannot copy {from} into itself: {to} lies in it");
            return Err(CommandFailure::new(what).try_this("name a destination outside of it"));
        }
        if Some(facts.identity) == sides.volume_dir {
            let what =
                format!("cannot copy {from} into the volume: it is the directory of this volume");
            return Err(
                CommandFailure::new(what).try_this("tatami cp -r : DIR copies the files out")
            );
        }
        // A destination that the user has named is followed, too.
        let old = match sides.read_facts(to, true) {
            Ok(old) => Some(old),
            Err(_) => sides.read_facts(to, false).ok(),
        };
        if facts.kind == InodeKind::File {
            self.bar.inc_length(facts.size);
            self.add_found(1);
        }
        let (from, to) = (from.clone(), to.clone());
        Ok(CopyItem { from, to, facts, old, made: None, target: None, content: None })
    }

    fn copy_items(&mut self, first: CopyItem) -> CommandResult {
        let mut todo = vec![first];
        // The copy skips the directory that it makes itself: a copy into its own source would never
        // end.
        let mut top = None;
        let mut copied = Ok(());
        while let Some(mut item) = todo.pop() {
            let _scope = OperationScope::begin(0, gives_up_waiting);
            if item.facts.kind == InodeKind::Dir {
                self.queue.list_ahead(todo.iter().rev().take(LOOK_AHEAD));
            }
            if item.facts.is_inline && item.content.is_none() && !self.rules.dry_run {
                self.read_ahead(&mut item, &mut todo);
            }
            let done = check_interrupt().and_then(|()| match item.facts.kind {
                InodeKind::Dir => self.copy_directory(item, &mut top).map(|items| {
                    todo.extend(items.into_iter().rev());
                }),
                InodeKind::Symlink => self.copy_link(&item),
                // A special file that the user names is read, as cp(1) does.
                kind if kind == InodeKind::File || !self.rules.recursive => self.copy_file(item),
                _ if self.rules.skip_special => Ok(()),
                _ => {
                    let what = format!("{} was not copied: it is a special file", item.from);
                    Err(CommandFailure::new(what).try_this("leave such files out: --skip-special"))
                }
            });
            copied = done.or_else(|failure| self.record_failure(failure));
            if copied.is_err() {
                break;
            }
        }
        if copied.is_err() {
            self.abandon_queue();
        } else if !self.dirs.is_empty() {
            copied = self.complete_copies();
        }
        // The innermost first. Also after Ctrl-C: what was copied is complete.
        let dirs = std::mem::take(&mut self.dirs);
        let sets_times = self.rules.preserve && !self.rules.dry_run;
        for (to, facts) in dirs.iter().rev().filter(|_| sets_times) {
            match to {
                AnyPath::Site(file) if !is_interrupted() => self.queue_times(file, facts)?,
                _ => {
                    if let Err(e) = self.sides.preserve_attrs(to, facts) {
                        self.record_failure(to.operation_failure("cannot set times of", e))?;
                    }
                }
            }
        }
        if copied.is_ok() && sets_times && !dirs.is_empty() {
            copied = self.complete_copies();
        }
        copied
    }

    /// Reads the bytes of a small file of the volume together with those that are copied next. A
    /// file that cannot be read so is opened when its turn comes, which gives the right error.
    fn read_ahead(&self, item: &mut CopyItem, todo: &mut [CopyItem]) {
        let Ok(tree) = self.sides.volume() else { return };
        let next = todo.iter_mut().rev().take(READ_AHEAD);
        let is_small = |item: &CopyItem| item.facts.is_inline && item.content.is_none();
        let next = next.take_while(|item| item.facts.kind == InodeKind::File);
        let mut items: Vec<&mut CopyItem> =
            std::iter::once(item).chain(next.filter(|item| is_small(item))).collect();
        let files: Vec<(Ino, u64)> =
            items.iter().map(|item| (Ino(item.facts.identity.1), item.facts.size)).collect();
        let read = tree.client().read_inline_many(tree.cred(), &files);
        for (item, bytes) in items.iter_mut().zip(read) {
            item.content = bytes.ok();
        }
    }

    /// Copies a directory and the entries that can be copied at once. Returns the others.
    fn copy_directory(
        &mut self,
        item: CopyItem,
        top: &mut Option<(u64, u64)>,
    ) -> CommandResult<Vec<CopyItem>> {
        let CopyItem { from, to, facts, old, made, .. } = item;
        let sides = self.sides;
        let failed = |e| from.operation_failure("cannot copy", e);
        // A listing of the volume or a site has the attributes, too: it saves a request for each.
        let mut targets = HashMap::new();
        let mut known = match &from {
            AnyPath::Volume(_) => sides.list_facts(&from).map_err(failed)?,
            AnyPath::Site(dir) => {
                let mut known = HashMap::new();
                for entry in self.queue.list_dir(dir).map_err(failed)? {
                    let facts = facts_of_site(dir, &entry.attr).map_err(failed)?;
                    let name = entry.name.into_vec();
                    if let Some(target) = entry.target {
                        targets.insert(name.clone(), target.into_vec());
                    }
                    known.insert(name, facts);
                }
                known
            }
            AnyPath::Local(_) => HashMap::new(),
        };
        let names = match &from {
            AnyPath::Volume(_) | AnyPath::Site(_) => {
                let mut names: Vec<_> = known.keys().cloned().collect();
                names.sort_unstable();
                names
            }
            AnyPath::Local(_) => sides.list_names(&from).map_err(failed)?,
        };
        let replaces = old.as_ref().is_some_and(|old| old.kind != InodeKind::Dir);
        if replaces {
            self.remove_conflict(&from, &to, "is no directory")?;
        }
        let is_new = old.is_none() || replaces;
        if is_new {
            self.print_step(|| format!("{from} -> {to}"))?;
        }
        let (own, is_new) = match made {
            Some(ino) => (Some(volume_identity(ino)), true),
            None if self.rules.dry_run => (old.as_ref().map(|old| old.identity), is_new),
            // Nothing is there, so this makes it. Its identity is of no use: the top is known.
            None if is_new && top.is_some() && to.is_site() => {
                if let AnyPath::Site(file) = &to {
                    self.queue_dir(file, facts.mode)?;
                }
                (Some(facts.identity), true)
            }
            None => {
                let is_new = sides
                    .mkdir(&to, facts.mode)
                    .map_err(|e| to.operation_failure("cannot make", e))?;
                (Some(sides.read_facts(&to, true).map_err(failed)?.identity), is_new)
            }
        };
        let mut there = match is_new {
            true => HashMap::new(),
            false => sides.list_facts(&to).map_err(|e| to.operation_failure("cannot read", e))?,
        };
        let top = *top.get_or_insert(own.unwrap_or(facts.identity));
        if self.rules.delete {
            self.delete_others(&to, &names, &mut there)?;
        }
        let mut items = Vec::with_capacity(names.len());
        for name in names {
            let (from, old) = (append_name(&from, &name), there.remove(&name));
            let target = targets.remove(&name);
            let facts_now = match known.remove(&name) {
                Some(facts) => Ok(facts),
                None => sides.read_facts(&from, false),
            };
            match facts_now {
                Ok(entry) if own.is_some() && entry.identity == top => {}
                Ok(entry) => match sides.why_left_out(&facts, &entry) {
                    Some(why) => {
                        let note = format!("{from}: left out, because {why}");
                        self.bar.suspend(|| term::print_note(&note));
                    }
                    None => {
                        let to = append_name(&to, &name);
                        let (facts, made, content) = (entry, None, None);
                        items.push(CopyItem { from, to, facts, old, made, target, content });
                    }
                },
                Err(Errno::ENOENT) => {} // removed meanwhile
                Err(e) => self.record_failure(from.operation_failure("cannot copy", e))?,
            }
        }
        let is_file = |item: &&CopyItem| item.facts.kind == InodeKind::File;
        self.bar.inc_length(items.iter().filter(is_file).map(|item| item.facts.size).sum());
        self.add_found(items.iter().filter(is_file).count() as u64);
        if let (AnyPath::Local(_), AnyPath::Volume(_), Some((_, ino)), false) =
            (&from, &to, own, self.rules.dry_run)
        {
            items = self.import_items(Ino(ino), is_new, items)?;
        }
        self.dirs.push((to, facts));
        Ok(items)
    }

    /// Removes the entries of the directory `to` that are not among `names`.
    fn delete_others(
        &mut self,
        to: &AnyPath,
        names: &[Vec<u8>],
        there: &mut HashMap<Vec<u8>, FileFacts>,
    ) -> CommandResult {
        let names: HashSet<&Vec<u8>> = names.iter().collect();
        let mut extra: Vec<Vec<u8>> =
            there.keys().filter(|name| !names.contains(name)).cloned().collect();
        extra.sort_unstable();
        for name in extra {
            check_interrupt()?;
            there.remove(&name);
            self.delete_path(&append_name(to, &name))?;
        }
        Ok(())
    }

    fn delete_path(&mut self, path: &AnyPath) -> CommandResult {
        if !self.rules.dry_run {
            let removed = self.sides.remove_path(path);
            removed.map_err(|e| path.operation_failure("cannot remove", e))?;
        }
        self.totals.deleted += 1;
        self.print_step(|| format!("deleted {path}"))
    }

    /// Removes what is in the way of a copy of another kind, if the user has asked for that.
    fn remove_conflict(&mut self, from: &AnyPath, to: &AnyPath, why: &str) -> CommandResult {
        if self.rules.delete {
            return self.delete_path(to);
        }
        let what = format!("cannot copy {from} to {to}: the destination {why}");
        Err(CommandFailure::new(what).try_this("remove it first; or tatami sync --delete"))
    }

    fn copy_link(&mut self, item: &CopyItem) -> CommandResult {
        let CopyItem { from, to, old, .. } = item;
        let failed = |e| to.operation_failure("cannot make", e);
        if let Some(old) = old {
            if old.kind == InodeKind::Dir {
                self.remove_conflict(from, to, "is a directory")?;
            } else {
                let is_same = old.kind == InodeKind::Symlink
                    && self.sides.read_link(from).ok() == self.sides.read_link(to).ok();
                if self.rules.existing == ExistingRule::Keep
                    || is_same && self.rules.existing != ExistingRule::Replace
                {
                    self.totals.unchanged += 1;
                    return Ok(());
                }
                if !self.rules.dry_run {
                    self.sides.remove_path(to).map_err(failed)?;
                }
            }
        }
        self.print_step(|| format!("{from} -> {to}"))?;
        if !self.rules.dry_run {
            let target = match &item.target {
                Some(target) => Ok(target.clone()),
                None => self.sides.read_link(from),
            };
            let target = target.map_err(|e| from.operation_failure("cannot read", e))?;
            match to {
                AnyPath::Site(file) => self.queue_link(file, &target)?,
                _ => self.sides.make_link(to, &target).map_err(failed)?,
            }
        }
        self.totals.files += 1;
        Ok(())
    }

    fn copy_file(&mut self, item: CopyItem) -> CommandResult {
        let CopyItem { from, to, facts, .. } = &item;
        let sides = self.sides;
        let mut old = item.old;
        if old.is_some_and(|old| old.kind == InodeKind::Symlink) {
            // The copy goes to the file behind the link. A link that leads nowhere is an error, as
            // in cp(1).
            let behind = sides.read_facts(to, true);
            old = Some(behind.map_err(|e| to.operation_failure("cannot write through", e))?);
        }
        if let Some(there) = old.filter(|_| !is_standard_stream(to)) {
            if there.identity == facts.identity {
                return Err(CommandFailure::new(format!("{from} and {to} are the same file")));
            }
            if there.kind == InodeKind::Dir {
                self.remove_conflict(from, to, "is a directory")?;
                old = None;
            } else if !self.must_copy(&item, &there)? {
                self.totals.unchanged += 1;
                self.bar.inc(facts.size);
                self.show_files();
                return self.update_attrs(&item, &there);
            }
        }
        if !is_standard_stream(to) {
            self.print_step(|| format!("{from} -> {to}"))?;
        }
        if self.rules.dry_run {
            self.totals.files += 1;
            return Ok(());
        }
        match self.uses_queue(&item) {
            true => self.queue_copy(item, old),
            false => self.copy_file_alone(&item, old.as_ref()),
        }
    }

    /// Copies a file before any other copy begins.
    ///
    /// # Errors
    /// Those of the copy.
    pub fn copy_file_alone(&mut self, item: &CopyItem, old: Option<&FileFacts>) -> CommandResult {
        let CopyItem { from, to, facts, .. } = item;
        let before = self.bar.position();
        // A stream cannot be read again, and what a stream has got cannot be taken back.
        let may_repeat =
            ![from, to].into_iter().any(is_standard_stream) && facts.kind == InodeKind::File;
        for attempt in 1.. {
            let broken = site_tree::count_broken_files();
            match self.copy_file_once(item, old) {
                // Of a file that was under way when a link broke, nothing is left there.
                Err(_)
                    if may_repeat
                        && site_tree::count_broken_files() > broken
                        && attempt < ATTEMPTS_MAX =>
                {
                    check_interrupt()?;
                    self.bar.set_position(before);
                }
                copied => {
                    copied?;
                    break;
                }
            }
        }
        self.count_file(self.bar.position().saturating_sub(before));
        Ok(())
    }

    fn copy_file_once(&self, item: &CopyItem, old: Option<&FileFacts>) -> CommandResult {
        let CopyItem { from, to, facts, .. } = item;
        let sides = self.sides;
        let mut source = match &item.content {
            Some(bytes) => CopySource::Memory(std::io::Cursor::new(bytes.clone())),
            None => sides
                .open_source(from, Some(facts))
                .map_err(|e| from.operation_failure("cannot read", e))?,
        };
        let write_failed = |e| to.operation_failure("cannot write", e);
        let mut sink = sides.create_sink(to, facts.mode, old).map_err(write_failed)?;
        let size = (facts.size, facts.is_sparse());
        copy_bytes((from, to), size, &mut source, &mut sink, &self.bar)?;
        let preserved = (self.rules.preserve && facts.kind == InodeKind::File).then_some(facts);
        let may_replace = self.rules.existing != ExistingRule::Keep;
        let to_stream = is_standard_stream(to);
        let finished = sides.finish_sink(sink, old, preserved, may_replace);
        match finished {
            // The reader has gone: no message, as after SIGPIPE.
            Err(e) if to_stream => {
                Err(copy_stream::write_failure(to, std::io::Error::from_raw_os_error(e.0)))
            }
            finished => finished.map_err(write_failed),
        }
    }

    /// Whether a file with a copy `there` must be copied again.
    pub fn must_copy(&self, item: &CopyItem, there: &FileFacts) -> CommandResult<bool> {
        let facts = &item.facts;
        Ok(match self.rules.existing {
            ExistingRule::Replace => true,
            ExistingRule::Keep => false,
            ExistingRule::Newer => facts.mtime > there.mtime || facts.size != there.size,
            ExistingRule::SizeOrTime => facts.mtime != there.mtime || facts.size != there.size,
            ExistingRule::Bytes if facts.size != there.size => true,
            ExistingRule::Bytes => {
                let open = |path: &AnyPath, facts| -> CommandResult<CopySource> {
                    let opened = self.sides.open_source(path, Some(facts));
                    opened.map_err(|e| path.operation_failure("cannot read", e))
                };
                let (one, other) = (open(&item.from, facts)?, open(&item.to, there)?);
                !copy_stream::have_same_bytes((&item.from, &item.to), one, other)?
            }
        })
    }

    /// Gives an unchanged copy the mode and the time of the original, where `sync` finds others.
    pub fn update_attrs(&mut self, item: &CopyItem, there: &FileFacts) -> CommandResult {
        let CopyItem { from, to, facts, .. } = item;
        let is_sync = matches!(self.rules.existing, ExistingRule::SizeOrTime | ExistingRule::Bytes);
        let is_same = (facts.mode, facts.mtime) == (there.mode, there.mtime);
        if !is_sync || is_same || !self.rules.preserve {
            return Ok(());
        }
        self.print_step(|| format!("{from} -> {to} (mode and time)"))?;
        if self.rules.dry_run {
            return Ok(());
        }
        let set = self.sides.preserve_attrs(to, facts);
        set.map_err(|e| to.operation_failure("cannot set times of", e))
    }
}

impl CopyTotals {
    /// Formats what was done.
    pub fn describe(&self) -> String {
        let plural = if self.files == 1 { "" } else { "s" };
        let mut text =
            format!("{} file{plural} copied, {}", self.files, term::format_size(self.bytes));
        if self.unchanged > 0 {
            text.push_str(&format!("; {} were there", self.unchanged));
        }
        if self.deleted > 0 {
            text.push_str(&format!("; {} deleted", self.deleted));
        }
        text
    }

    /// Completes the failure of an interrupted copy: what is done, and how to go on.
    pub fn explain_interrupt(&self, failure: CommandFailure, go_on: &str) -> CommandFailure {
        match failure.exit {
            ExitStatus::Interrupted => CommandFailure {
                what: format!("interrupted: {}; no file is incomplete", self.describe()),
                ..failure
            }
            .try_this(go_on),
            _ => failure,
        }
    }
}
