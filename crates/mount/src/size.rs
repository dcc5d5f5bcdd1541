//! Sizes and times of open files: the state at the shard, the newer state of this
//! mount, and its commit.

use crate::backing::UnwrittenTimes;
use crate::deferred_close::DeferredClose;
use crate::filesystem::FileSystem;
use crate::open::{CommitMark, OpenInode};
use crate::{attr, caller};
use rustix::fs::{Timespec, Timestamps, UTIME_OMIT};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;
use tatami_client::{DataFile, lock_interruptibly, merge_object_state, stat_file as stat};
use tatami_fuse::Request;
use tatami_fuse::request::FuseSetAttr;
use tatami_wire::meta::DataState;
use tatami_wire::object::ObjectState;
use tatami_wire::{Access, Attr, Cred, Errno, Ino, InodeKind, SetAttr, Timestamp, XattrClass};

/// Most attempts to get attributes that are not overtaken by a commit.
const ATTEMPTS: usize = 4;

/// Longest wait for the attributes of the root directory if older ones are known.
const ROOT_WAIT: Duration = Duration::from_secs(1);

/// The reason for a commit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CommitReason {
    /// An fsync, a change of times or the close of a descriptor. Other descriptors may refer to the
    /// same handle, such as those of a forked process.
    HandleStays,
    /// The handle is released, and is not counted any more.
    HandleReleased,
}

impl FileSystem {
    /// GETATTR and STATX.
    ///
    /// # Errors
    /// Those of the shard.
    pub(crate) fn get_attr(&self, request: &Request<'_>) -> Result<Attr, Errno> {
        let (ino, pid) = (Ino(request.header.node), request.header.pid);
        let changes = self.attr_cache.change_count();
        if let Some(attr) = self.walk_cache.take_attr(pid, ino, changes) {
            return Ok(attr);
        }
        let attr = match self.attr_cache.take_looked_up_attr(ino, pid) {
            Some(mut attr) => {
                if let Some(inode) = self.open_inodes.get(ino) {
                    self.apply_local_state(&inode, &mut attr);
                }
                attr
            }
            None if ino == Ino::ROOT => self.root_attr(request)?,
            None => match self.fetch_attr(&caller::base_credentials(request), ino) {
                Ok(attr) => {
                    self.attr_cache.cache_attr(&attr);
                    attr
                }
                Err(e @ (Errno::ENOENT | Errno::ESTALE)) => {
                    return self.removed_dirs.removed_attr(ino).ok_or(e);
                }
                Err(e) => return Err(e),
            },
        };
        if attr.kind == InodeKind::Dir {
            self.walk_cache.start_walk(pid, &attr, changes);
        }
        Ok(attr)
    }

    /// Returns the attributes of the root directory. Programs that look at the mount point need
    /// them (`ls` of the parent directory, `df`) and must not hang. If the node does not answer in
    /// time, returns the last known ones.
    fn root_attr(&self, request: &Request<'_>) -> Result<Attr, Errno> {
        let known = self.root_attr.lock().clone();
        let part = known.as_ref().map(|_| tatami_client::OperationScope::begin_part(ROOT_WAIT));
        let asked = self.fetch_attr(&caller::base_credentials(request), Ino::ROOT);
        drop(part);
        match (asked, known) {
            (Ok(attr), _) => {
                self.attr_cache.cache_attr(&attr);
                *self.root_attr.lock() = Some(attr.clone());
                Ok(attr)
            }
            (Err(Errno::EHOSTDOWN), Some(attr)) => Ok(attr),
            (Err(e), _) => Err(e),
        }
    }

    /// Returns the attributes of an inode, with the newer state of this mount.
    ///
    /// # Errors
    /// Those of the shard.
    pub(crate) fn fetch_attr(&self, cred: &Cred, ino: Ino) -> Result<Attr, Errno> {
        let Some(inode) = self.open_inodes.get(ino) else {
            return Ok(self.client.refresh_written_attr(self.client.getattr(cred, ino)?));
        };
        self.send_touch(&inode)?;
        let mut attempt = 0;
        loop {
            let generation = inode.generation.load(SeqCst);
            let mut attr = self.client.getattr(cred, ino)?;
            attempt += 1;
            let known_better = self.apply_local_state(&inode, &mut attr);
            // A commit after the shard's reply would make these attributes too old.
            if known_better {
                return Ok(attr);
            }
            if inode.generation.load(SeqCst) == generation || attempt == ATTEMPTS {
                return Ok(self.client.refresh_written_attr(attr));
            }
        }
    }

    /// Adds the newer state of this mount to attributes from another reply.
    ///
    /// # Errors
    /// Those of the shard.
    pub(crate) fn with_local_state(&self, cred: &Cred, attr: Attr) -> Result<Attr, Errno> {
        match self.open_inodes.get(attr.ino) {
            // The shard may have replied before a commit of this mount.
            Some(inode) if inode.state.lock().writers > 0 || self.has_changes(&inode) => {
                self.fetch_attr(cred, attr.ino)
            }
            _ => Ok(attr),
        }
    }

    pub(crate) fn has_changes(&self, inode: &OpenInode) -> bool {
        inode.is_ahead() || inode.generation.load(SeqCst) > 0
    }

    /// Updates `attr` with the state that the shard does not have yet. Returns whether there is
    /// any.
    fn apply_local_state(&self, inode: &OpenInode, attr: &mut Attr) -> bool {
        let (backing, reported, writer, writers) = {
            let state = inode.state.lock();
            (state.backing.clone(), state.committed, state.writer.clone(), state.writers)
        };
        let written = inode.is_ahead();
        let now = match (backing, writer) {
            (Some(backing), _) => match backing.current_state() {
                Ok(Some(now)) if written || reported != Some(commit_mark(&now)) => Some(now),
                _ => None,
            },
            (None, Some(writer)) if written => writer.stat().ok(),
            _ => None,
        };
        match now {
            // No handle here is for writing, so another client wrote this.
            Some(now) if attr.maybe_written_elsewhere && writers == 0 => {
                *attr = merge_object_state(attr.clone(), &now);
                true
            }
            Some(mut now) if now.exists => {
                if attr.layout.is_tiled() {
                    // A handle from before the first tiles only has the state of the base.
                    now.size = now.size.max(attr.size);
                    now.blocks = now.blocks.max(attr.blocks);
                }
                attr.apply_object_state(&DataState::from(now));
                true
            }
            _ => false,
        }
    }

    /// Commits the state of `inode`'s bytes to the shard, if it has changed since the last commit.
    /// Also reports the close of the last writer: at once, or with the returned deferred close.
    ///
    /// # Errors
    /// Those of the shard and of the object's node. The next commit tries again.
    pub(crate) fn commit_state(
        &self,
        inode: &OpenInode,
        data: &DataFile,
        occasion: CommitReason,
    ) -> Result<Option<DeferredClose>, Errno> {
        let _order = lock_interruptibly(&inode.order)?;
        self.commit_locked(inode, data, occasion)
    }

    /// Like [`FileSystem::commit_state`]. The caller must hold `inode.order`.
    fn commit_locked(
        &self,
        inode: &OpenInode,
        data: &DataFile,
        occasion: CommitReason,
    ) -> Result<Option<DeferredClose>, Errno> {
        let (last, noted) = {
            let state = inode.state.lock();
            (occasion == CommitReason::HandleReleased && state.writers == 0, state.registered)
        };
        let Some(pending) = self.find_uncommitted(inode, data)? else {
            self.send_touch(inode)?;
            if last && noted {
                inode.state.lock().registered = false;
                return Ok(self.deferred_closes.defer_write_close(inode.ino));
            }
            return Ok(None);
        };
        let reported = Some(DataState::from(pending.now));
        if last {
            self.send_touch(inode)?;
        }
        let touch = std::mem::take(&mut inode.state.lock().touch);
        let attr = if touch {
            let set = SetAttr { written: reported, touch, ..SetAttr::default() };
            self.client.setattr(&Cred::ROOT, inode.ino, set)?
        } else {
            self.client.commit(&Cred::ROOT, inode.ino, reported, last)?
        };
        let passed = record_committed(inode, &pending);
        inode.state.lock().registered &= !last;
        // Passthrough writes cannot clear setuid themselves.
        if passed {
            self.drop_suid(&attr);
        }
        Ok(None)
    }

    /// Returns the state of the bytes if the shard does not have it. Then the caller must commit
    /// it, and hold `inode.order` meanwhile.
    fn find_uncommitted(
        &self,
        inode: &OpenInode,
        data: &DataFile,
    ) -> Result<Option<PendingCommit>, Errno> {
        // Read the counter before the bytes' state. So a write after the state was read is
        // committed again.
        let writes = inode.write_count();
        inode.state.lock().is_empty = false;
        let Some(now) = uncommitted_state(inode, data)? else {
            let mut state = inode.state.lock();
            state.is_empty = state.committed.is_some_and(|reported| reported.size == 0);
            return Ok(None);
        };
        self.hand_in_spare(inode);
        Ok(Some(PendingCommit { now, writes }))
    }

    /// Moves the time of the last change at the shard if that was put off.
    fn send_touch(&self, inode: &OpenInode) -> Result<(), Errno> {
        if !std::mem::take(&mut inode.state.lock().touch) {
            return Ok(());
        }
        let set = SetAttr { touch: true, ..SetAttr::default() };
        match self.client.setattr(&Cred::ROOT, inode.ino, set) {
            // It was removed meanwhile.
            Err(Errno::ENOENT | Errno::ESTALE) => Ok(()),
            sent => sent.map(drop),
        }
    }

    /// Hands in a spare file that has bytes. The daemon makes an object of it, at the latest when a
    /// client asks for the object by name, or this process ends. So the commit need not wait.
    fn hand_in_spare(&self, inode: &OpenInode) {
        let lent = inode.state.lock().backing.as_mut().and_then(|backing| backing.spare.take());
        if let Some(lent) = lent {
            self.spare_pool.hand_in_slot(&lent);
        }
    }

    /// Clears setuid and setgid, as a write by an ordinary user does.
    pub(crate) fn drop_suid(&self, attr: &Attr) {
        let mode = attr::without_suid(attr.mode);
        if mode != attr.mode {
            let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
            if let Err(error) = self.client.setattr(&Cred::ROOT, attr.ino, set) {
                tracing::warn!(ino = %attr.ino, %error, "setuid could not be taken away");
            }
        }
    }

    /// SETATTR.
    ///
    /// # Errors
    /// Those of the shard and of the object's node.
    pub(crate) fn set_attr(&self, request: &Request<'_>, set: &FuseSetAttr) -> Result<Attr, Errno> {
        let changed = self.apply_set_attr(request, set);
        self.attr_cache.count_change();
        if let Ok(attr) = &changed {
            self.attr_cache.cache_attr(attr);
        }
        changed
    }

    fn apply_set_attr(&self, request: &Request<'_>, set: &FuseSetAttr) -> Result<Attr, Errno> {
        let ino = Ino(request.header.node);
        let mut change = attr::from_fuse_set_attr(set);
        // Before the request, so that no thread gets the old attributes after the change.
        self.attr_cache.forget_inode(ino);
        if set.size.is_some() {
            return self.set_size(request, set, change);
        }
        let inode = self.open_inodes.get(ino);
        let _order = inode.as_ref().map(|i| lock_interruptibly(&i.order)).transpose()?;
        if let Some(inode) = &inode
            && let Some(attr) = self.put_off_touch(request, inode, &change)
        {
            return Ok(attr);
        }
        let pending = match &inode {
            Some(inode) => self.find_commit_before(inode, &change)?,
            None => None,
        };
        if change.mtime.is_some() {
            let attr = self.client.getattr(&Cred::ROOT, ino)?;
            change.changed = self.client.fetch_change_time(&attr);
        }
        let mut attr =
            self.send_change(request, inode.as_deref(), &mut change, pending.as_ref())?;
        if set.kill_suidgid {
            self.drop_suid(&attr);
            attr.mode = attr::without_suid(attr.mode);
        }
        if let Some(inode) = &inode {
            inode.state.lock().mode = attr.mode;
            if change.mtime.is_some() {
                self.set_backing_time(inode, attr.mtime)?;
            }
            self.apply_local_state(inode, &mut attr);
        }
        Ok(attr)
    }

    /// Puts off a change that changes no value, such as the fchown(2) of tar: it only moves the
    /// time of the last change. The next request for the inode, or the close, takes it along.
    /// Returns the attributes then. Meanwhile another mount may see the former time.
    fn put_off_touch(
        &self,
        request: &Request<'_>,
        inode: &OpenInode,
        change: &SetAttr,
    ) -> Option<Attr> {
        let SetAttr { mode, uid, gid, .. } = *change;
        if *change != (SetAttr { mode, uid, gid, ..SetAttr::default() }) {
            return None;
        }
        let writer = inode.state.lock().writer.clone()?;
        // The new time must be later than that of the bytes, which the shard must know for that.
        if inode.is_ahead() || !matches!(uncommitted_state(inode, &writer), Ok(None)) {
            return None;
        }
        let attr = self.client.cached_attr(inode.ino)?;
        let same = mode.is_none_or(|mode| mode == attr.mode)
            && uid.is_none_or(|uid| uid == attr.uid)
            && gid.is_none_or(|gid| gid == attr.gid);
        // A change of owner takes setuid and file capabilities away, also from the same owner.
        let keeps =
            attr::without_suid(attr.mode) == attr.mode && attr.xattr_class == XattrClass::NoXattr;
        let allowed = [0, attr.uid].contains(&request.header.uid);
        let mut state = inode.state.lock();
        if !(same && keeps && allowed) || state.writers == 0 || !state.registered {
            return None;
        }
        state.touch = true;
        drop(state);
        let mut attr = attr;
        self.apply_local_state(inode, &mut attr);
        Some(attr)
    }

    /// Returns the state of the earlier writes if `change` must not overtake their commit. A later
    /// commit must not overwrite a time that is set now, nor clear a setuid bit that is set now.
    /// Passthrough writes always go first, which needs no node that may be down; so `change` gets a
    /// later time. Where the commit may have to clear setuid, it is sent by itself.
    fn find_commit_before(
        &self,
        inode: &OpenInode,
        change: &SetAttr,
    ) -> Result<Option<PendingCommit>, Errno> {
        let (writer, passed, mode) = {
            let state = inode.state.lock();
            (state.writer.clone(), state.backing.is_some(), state.mode)
        };
        let Some(writer) = writer.filter(|_| passed || change.mtime.is_some()) else {
            return Ok(None);
        };
        writer.wait_for_writes();
        if passed && attr::without_suid(mode) != mode {
            self.commit_locked(inode, &writer, CommitReason::HandleStays)?;
            return Ok(None);
        }
        self.find_uncommitted(inode, &writer)
    }

    /// Sends `change`, together with the commit of earlier writes.
    fn send_change(
        &self,
        request: &Request<'_>,
        inode: Option<&OpenInode>,
        change: &mut SetAttr,
        pending: Option<&PendingCommit>,
    ) -> Result<Attr, Errno> {
        let ino = Ino(request.header.node);
        change.written = pending.map(|pending| DataState::from(pending.now));
        let mut changed = self.send_set_attr(request, change, ino);
        if changed.as_ref().is_err_and(|e| *e != Errno::EHOSTDOWN) && change.written.is_some() {
            // The caller may not make the change. The bytes are committed all the same.
            let state = change.written.take();
            self.client.commit(&Cred::ROOT, ino, state, false)?;
            changed = self.send_set_attr(request, change, ino);
        }
        let (Some(inode), false) = (inode, changed == Err(Errno::EHOSTDOWN)) else {
            return changed;
        };
        let passed = pending.is_some_and(|pending| record_committed(inode, pending));
        if let Ok(attr) = &mut changed {
            // The time of the last change has moved further.
            inode.state.lock().touch = false;
            if passed && change.mode.is_none() {
                self.drop_suid(attr);
                attr.mode = attr::without_suid(attr.mode);
            }
        }
        changed
    }

    fn send_set_attr(
        &self,
        request: &Request<'_>,
        change: &mut SetAttr,
        ino: Ino,
    ) -> Result<Attr, Errno> {
        // The caller's groups decide whether setgid stays. There is no refusal that would trigger a
        // retry with the groups.
        if change.mode.is_some_and(|m| m & 0o2000 != 0) {
            let cred = caller::full_credentials(request);
            return self.client.setattr(&cred, ino, change.clone());
        }
        caller::run_as_caller(request, |cred| self.client.setattr(cred, ino, change.clone()))
    }

    fn set_size(
        &self,
        request: &Request<'_>,
        set: &FuseSetAttr,
        mut change: SetAttr,
    ) -> Result<Attr, Errno> {
        let ino = Ino(request.header.node);
        let size = set.size.unwrap_or(0);
        let file = set.handle.and_then(|h| self.files.get(h)).filter(|f| f.access.write);
        change.by_handle = file.is_some();
        // The truncation counts as a writer, so that a removal keeps the inode and the kernel
        // caches no attributes meanwhile.
        let cut = self.begin_open(ino, true);
        let inode = cut.inode();
        let _order = lock_interruptibly(&inode.order)?;
        let writer = file.map(|f| f.data.clone()).or_else(|| inode.state.lock().writer.clone());
        let (data, ours) = match writer {
            Some(data) => (data, false),
            None => {
                self.deferred_closes.cancel_write_close(ino, 0);
                let (attr, cap) = caller::run_as_caller(request, |cred| {
                    self.client.open(cred, ino, Access::WRITE)
                })?;
                (Arc::new(self.client.open_data(&attr, cap)?), true)
            }
        };
        // The object first. The shard orders the new size against commits of other writers by the
        // time of the truncation.
        let now = data.truncate(size);
        let result = now.and_then(|now| {
            change.size = Some(size);
            change.blocks = Some(now.blocks);
            change.changed = Some(now.changed);
            let mut attr = self.send_set_attr(request, &mut change, ino)?;
            inode.generation.fetch_add(1, SeqCst);
            inode.state.lock().committed = Some(commit_mark(&now));
            if let Some(mtime) = change.mtime.map(|_| attr.mtime) {
                self.set_backing_time(inode, mtime)?;
            }
            if set.kill_suidgid {
                self.drop_suid(&attr);
                attr.mode = attr::without_suid(attr.mode);
            }
            Ok(attr)
        });
        self.page_validity.forget_state(ino);
        if ours {
            data.end_changes();
        }
        if ours && let Err(error) = self.client.commit(&Cred::ROOT, ino, None, true) {
            tracing::debug!(%ino, %error, "the end of a cut was not told");
        }
        result
    }

    /// Sets the time of the backing file to the shard's time, so that both agree.
    fn set_backing_time(&self, inode: &OpenInode, mtime: Timestamp) -> Result<(), Errno> {
        let mut state = inode.state.lock();
        let Some(backing) = state.backing.clone() else {
            return Ok(());
        };
        let (Some(file), Some(before)) = (&backing.file, backing.current_state()?) else {
            return Ok(());
        };
        let times = Timestamps {
            last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
            last_modification: Timespec { tv_sec: mtime.sec, tv_nsec: mtime.nsec.into() },
        };
        rustix::fs::futimens(&**file, &times).map_err(system_errno)?;
        let now = stat(file)?;
        // Without other changes since the last commit, the new time is nothing to commit.
        if state.committed == Some(commit_mark(&before)) {
            state.committed = Some(commit_mark(&now));
        }
        if let Some(unwritten) = state.backing.as_mut().and_then(|b| b.unwritten.as_mut()) {
            *unwritten = UnwrittenTimes { real: now.mtime, shown: now.mtime };
        }
        Ok(())
    }
}

/// A state of the bytes that the shard does not have yet.
struct PendingCommit {
    now: ObjectState,
    /// Number of writes that it includes.
    writes: u64,
}

/// Records that the shard has confirmed `pending`. Returns whether the kernel writes the bytes
/// itself.
fn record_committed(inode: &OpenInode, pending: &PendingCommit) -> bool {
    inode.record_commit(pending.writes);
    let mut state = inode.state.lock();
    state.committed = Some(commit_mark(&pending.now));
    state.backing.is_some()
}

/// Returns the state of the bytes if the shard does not have it.
fn uncommitted_state(inode: &OpenInode, data: &DataFile) -> Result<Option<ObjectState>, Errno> {
    let (backing, reported) = {
        let state = inode.state.lock();
        (state.backing.clone(), state.committed)
    };
    let ahead = inode.is_ahead();
    let now = match backing {
        Some(backing) => {
            backing.current_state()?.filter(|now| ahead || reported != Some(commit_mark(now)))
        }
        None if ahead => Some(data.stat()?),
        None => None,
    };
    Ok(now.filter(|now| now.exists))
}

/// Returns the part of `state` that detects changes. Storage is not part of it, because disks
/// allocate it late.
pub(crate) fn commit_mark(state: &ObjectState) -> CommitMark {
    CommitMark { size: state.size, mtime: state.mtime }
}

fn system_errno(e: rustix::io::Errno) -> Errno {
    Errno(e.raw_os_error())
}
