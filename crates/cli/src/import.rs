//! Copies into the volume: creates, closes and names the entries of a directory in batches.

use crate::copy_job::CopyJob;
use crate::copy_steps::CopyItem;
use crate::copy_stream::{CopySink, CopySource, copy_bytes};
use crate::copy_trees::{FileFacts, attrs_of_copy};
use crate::error::CommandResult;
use crate::interrupt::check_interrupt;
use crate::volume_path::{AnyPath, last_component};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use tatami_client::{CreateItem, FilledFile, UnnamedFile};
use tatami_wire::batch::BatchOp;
use tatami_wire::meta::InodeTemplate;
use tatami_wire::{Errno, Ino, InodeKind};

/// Entries created by one request. This is also the number of files open at a time.
const ENTRIES_PER_REQUEST: usize = 256;

impl CopyJob<'_> {
    /// Copies the entries of a directory of this machine to the directory `dir` of the volume.
    /// Returns the items that the caller must handle one by one: directories, which are made unless
    /// they existed, and entries that exist or could not be made. `is_new`: the directory is empty.
    ///
    /// # Errors
    /// What ends the whole copy.
    pub fn import_items(
        &mut self,
        dir: Ino,
        is_new: bool,
        items: Vec<CopyItem>,
    ) -> CommandResult<Vec<CopyItem>> {
        let (mut new, mut rest) = (Vec::new(), Vec::new());
        for item in items {
            match &item.old {
                None => new.push(item),
                Some(old) if is_replaced(&item, old) => match self.must_copy(&item, old) {
                    Ok(true) => new.push(item),
                    Ok(false) => {
                        self.totals.unchanged += 1;
                        self.bar.inc(item.facts.size);
                        self.update_attrs(&item, old)
                            .or_else(|failure| self.record_failure(failure))?;
                    }
                    Err(failure) => self.record_failure(failure)?,
                },
                Some(_) => rest.push(item),
            }
        }
        // The first entry moves a new directory to the executor of its own shard. Until then no
        // batch can be run there.
        let is_spread = self.sides.require_volume()?.client().map().first_shards().len() > 1;
        let mut most = if is_new && is_spread { 1 } else { ENTRIES_PER_REQUEST };
        let tree = self.sides.require_volume()?;
        // Without an answer, the files are copied as any others, which gives the right error.
        let inline_limit = tree.client().find_inline_limit(tree.cred(), dir).unwrap_or(0);
        let mut items = new.into_iter().peekable();
        while items.peek().is_some() {
            let some: Vec<_> = items.by_ref().take(most).collect();
            most = ENTRIES_PER_REQUEST;
            let (files, others): (Vec<_>, Vec<_>) =
                some.into_iter().partition(|item| item.facts.kind == InodeKind::File);
            rest.extend(self.make_dirs_and_links(dir, others)?);
            rest.extend(self.copy_files(dir, inline_limit, files)?);
        }
        Ok(rest)
    }

    /// Makes directories and symbolic links.
    fn make_dirs_and_links(
        &mut self,
        dir: Ino,
        items: Vec<CopyItem>,
    ) -> CommandResult<Vec<CopyItem>> {
        let (mut new, mut which, mut rest) = (Vec::new(), Vec::new(), Vec::new());
        for item in items {
            let node = match (item.facts.kind, &item.from) {
                (InodeKind::Dir, _) => Some(InodeTemplate::Dir),
                (InodeKind::Symlink, AnyPath::Local(path)) => {
                    std::fs::read_link(path).ok().map(|target| {
                        InodeTemplate::Symlink(target.into_os_string().into_vec().into())
                    })
                }
                _ => None,
            };
            match node {
                Some(node) => {
                    // The copy must be able to fill a directory, regardless of the mode of the
                    // original.
                    let mode = match item.facts.kind {
                        InodeKind::Dir => (item.facts.mode & 0o777) | 0o700,
                        _ => 0o777,
                    };
                    new.push(CreateItem { name: entry_name(&item.to), node, mode });
                    which.push(item);
                }
                None => rest.push(item),
            }
        }
        let tree = self.sides.require_volume()?;
        let (client, cred) = (tree.client(), tree.cred());
        let all = client.create_many(cred, dir, new, self.sides.umask, true, None);
        for (mut item, made) in which.into_iter().zip(all) {
            match (made, item.facts.kind) {
                (Ok(made), InodeKind::Dir) => {
                    item.made = Some(made.attr.ino);
                    rest.push(item);
                }
                (Ok(_), _) => {
                    self.totals.files += 1;
                    self.print_step(|| format!("{} -> {}", item.from, item.to))?;
                }
                // The caller retries the item alone, which gives the right error.
                (Err(_), _) => rest.push(self.look_again(item)),
            }
        }
        Ok(rest)
    }

    /// Copies files that do not exist there. Returns those that must be copied one by one.
    fn copy_files(
        &mut self,
        dir: Ino,
        inline_limit: u64,
        items: Vec<CopyItem>,
    ) -> CommandResult<Vec<CopyItem>> {
        let sides = self.sides;
        let (mut rest, mut sources, mut which) = (Vec::new(), Vec::new(), Vec::new());
        let items = self.make_small_files(dir, inline_limit, items, &mut rest)?;
        for item in items {
            match sides.open_source(&item.from, Some(&item.facts)) {
                Ok(source) => {
                    sources.push(source);
                    which.push(item);
                }
                Err(_) => rest.push(item),
            }
        }
        let new = which.iter().map(|item| (entry_name(&item.to), item.facts.mode & 0o777));
        let tree = sides.require_volume()?;
        let (client, cred) = (tree.client(), tree.cred());
        let made = client.create_unnamed_many(cred, dir, new.collect(), sides.umask);
        let (mut written, mut ended) = (Vec::new(), Ok(()));
        for ((item, mut source), made) in which.into_iter().zip(sources).zip(made) {
            let opened = made
                .and_then(|made| tree.open_unnamed(dir, &entry_name(&item.to), made).map(Box::new));
            // The caller copies it alone, which gives the right error. After Ctrl-C the files that
            // were made are only deleted.
            let Ok(file) = opened else {
                rest.push(item);
                continue;
            };
            if ended.is_err() {
                continue;
            }
            match self.copy_into(&item, &mut source, file) {
                Ok(file) => written.push((item, file)),
                Err(failure) => ended = self.record_failure(failure),
            }
        }
        // After Ctrl-C the files that were complete get their names.
        rest.extend(self.name_files(written)?);
        ended.map(|()| rest)
    }

    /// Makes new small files with all their bytes, where these lie beside the inodes. Returns the
    /// files that are no such ones. Adds those to `rest` that must be copied one by one.
    fn make_small_files(
        &mut self,
        dir: Ino,
        inline_limit: u64,
        items: Vec<CopyItem>,
        rest: &mut Vec<CopyItem>,
    ) -> CommandResult<Vec<CopyItem>> {
        let is_small = |item: &CopyItem| item.old.is_none() && item.facts.size <= inline_limit;
        let (small, mut others): (Vec<_>, Vec<_>) =
            items.into_iter().partition(|item| inline_limit > 0 && is_small(item));
        let (mut new, mut which) = (Vec::new(), Vec::new());
        for item in small {
            let AnyPath::Local(path) = &item.from else {
                others.push(item);
                continue;
            };
            match read_small_file(path, inline_limit) {
                Ok(Some(bytes)) => {
                    let preserved = self.rules.preserve.then_some(&item.facts);
                    let set = attrs_of_copy(None, preserved);
                    let (name, mode) = (entry_name(&item.to), item.facts.mode & 0o777);
                    new.push(FilledFile { name, mode, bytes, set });
                    which.push(item);
                }
                // It has grown.
                Ok(None) => others.push(item),
                // The copy alone gives the right error.
                Err(_) => rest.push(item),
            }
        }
        let tree = self.sides.require_volume()?;
        let (client, cred) = (tree.client(), tree.cred());
        let made = client.create_filled_many(cred, dir, new, self.sides.umask);
        for (item, made) in which.into_iter().zip(made) {
            match made {
                Ok(attr) => {
                    self.bar.inc(attr.size);
                    self.totals.bytes += attr.size;
                    self.totals.files += 1;
                    self.print_step(|| format!("{} -> {}", item.from, item.to))?;
                }
                // The policy has changed meanwhile.
                Err(Errno::EXDEV) => others.push(item),
                Err(_) => rest.push(self.look_again(item)),
            }
        }
        check_interrupt()?;
        Ok(others)
    }

    fn copy_into(
        &mut self,
        item: &CopyItem,
        source: &mut CopySource,
        file: Box<UnnamedFile>,
    ) -> CommandResult<Box<UnnamedFile>> {
        let size = (item.facts.size, item.facts.is_sparse());
        let mut sink = CopySink::VolumeNew(file);
        copy_bytes((&item.from, &item.to), size, source, &mut sink, &self.bar)?;
        match sink {
            CopySink::VolumeNew(file) => Ok(file),
            _ => Err(item.to.operation_failure("cannot write", Errno::EIO)),
        }
    }

    /// Commits the sizes of complete files, with `preserve` their modes and times, and gives them
    /// their names. Returns those whose name exists meanwhile.
    fn name_files(
        &mut self,
        written: Vec<(CopyItem, Box<UnnamedFile>)>,
    ) -> CommandResult<Vec<CopyItem>> {
        let tree = self.sides.require_volume()?;
        let (client, cred) = (tree.client(), tree.cred());
        let (mut files, mut commits) = (Vec::new(), Vec::new());
        for (item, mut file) in written {
            match file.close_deferred() {
                Ok(commit) => {
                    commits.push(commit);
                    files.push((item, file));
                }
                Err(e) => self.record_failure(item.to.operation_failure("cannot write", e))?,
            }
        }
        let done = client.run_batch(cred, commits);
        let mut files = self.keep_done(files, done, "cannot write")?;
        let preserves = self.rules.preserve;
        let set_of =
            |item: &CopyItem| attrs_of_copy(item.old.as_ref(), preserves.then_some(&item.facts));
        let (to_set, rest): (Vec<_>, Vec<_>) =
            files.into_iter().partition(|(item, _)| set_of(item).is_some());
        files = rest;
        if !to_set.is_empty() {
            let sets = to_set.iter().map(|(item, file)| BatchOp::SetAttr {
                ino: file.ino(),
                set: set_of(item).unwrap_or_default(),
            });
            let done = client.run_batch(cred, sets.collect());
            files.extend(self.keep_done(to_set, done, "cannot set times of")?);
        }
        let target = |file: &UnnamedFile| {
            let (dir, name) = file.target();
            (file.ino(), dir, name.to_vec())
        };
        let (replacing, files): (Vec<_>, Vec<_>) =
            files.into_iter().partition(|(item, _)| item.old.is_some());
        let mut linked =
            client.replace_many(cred, replacing.iter().map(|(_, file)| target(file)).collect());
        linked.extend(client.link_many(cred, files.iter().map(|(_, f)| target(f)).collect()));
        let mut rest = Vec::new();
        for ((item, file), linked) in replacing.into_iter().chain(files).zip(linked) {
            match linked {
                Ok(_) => {
                    file.forget_file();
                    self.totals.files += 1;
                    self.totals.bytes += item.facts.size;
                    self.print_step(|| format!("{} -> {}", item.from, item.to))?;
                }
                Err(Errno::EEXIST) => rest.push(self.look_again(item)),
                Err(e) => self.record_failure(item.to.operation_failure("cannot make", e))?,
            }
        }
        Ok(rest)
    }

    /// Keeps the files of which an operation succeeded, and records the failures of the others.
    fn keep_done<T>(
        &mut self,
        files: Vec<(CopyItem, Box<UnnamedFile>)>,
        done: Vec<Result<T, Errno>>,
        what: &str,
    ) -> CommandResult<Vec<(CopyItem, Box<UnnamedFile>)>> {
        let mut kept = Vec::with_capacity(files.len());
        let mut ended = Ok(());
        for ((item, file), done) in files.into_iter().zip(done) {
            match done {
                Ok(_) => kept.push((item, file)),
                Err(e) if ended.is_ok() => {
                    ended = self.record_failure(item.to.operation_failure(what, e));
                }
                Err(_) => {}
            }
        }
        ended.map(|()| kept)
    }

    /// Looks at the destination of an item that could not be made, for the copy one by one.
    fn look_again(&self, mut item: CopyItem) -> CopyItem {
        item.old = self.sides.read_facts(&item.to, false).ok();
        item
    }
}

/// Whether a file is replaced by a new one. Other kinds, and files that must keep their inode, are
/// copied one by one.
fn is_replaced(item: &CopyItem, old: &FileFacts) -> bool {
    let is_writable = rustix::process::geteuid().is_root() || old.mode & 0o200 != 0;
    item.facts.kind == InodeKind::File
        && old.kind == InodeKind::File
        && !old.must_keep_inode()
        && is_writable
        && item.facts.identity != old.identity
}

/// Reads a whole file; `None` if it is longer than `limit`, in bytes.
fn read_small_file(path: &Path, limit: u64) -> std::io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(limit + 1).read_to_end(&mut bytes)?;
    Ok((bytes.len() as u64 <= limit).then_some(bytes))
}

fn entry_name(path: &AnyPath) -> Vec<u8> {
    match path {
        AnyPath::Volume(path) => last_component(path).to_vec(),
        AnyPath::Local(_) | AnyPath::Site(_) => Vec::new(),
    }
}
