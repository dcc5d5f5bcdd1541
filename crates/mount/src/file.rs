//! Files: open, read, write, close.

use crate::backing::Backing;
use crate::deferred_close::DeferredClose;
use crate::errno::to_kernel_errno;
use crate::filesystem::FileSystem;
use crate::open::{CommitMark, OpenInode, OpenKind};
use crate::open_file::{FileLockState, OpenFile};
use crate::size::{self, CommitReason};
use crate::spare_pool::SparePoolMoment;
use crate::{attr, caller};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;
use tatami_client::{DataFile, PayloadSink, lock_interruptibly, stat_file};
use tatami_fuse::abi::fopen;
use tatami_fuse::{OpenReply, Reply, Request, SplicedReply};
use tatami_wire::frame::PAYLOAD_MAX;
use tatami_wire::object::{AllocMode, SeekTarget};
use tatami_wire::{Access, Attr, Cap, Cred, Errno, Ino};

/// The kernel's open flag for a file that is opened for execution.
const FMODE_EXEC: i32 = 0x20;
/// Longest wait of an open for the close of conflicting opens.
const CLOSE_WAIT: Duration = Duration::from_secs(2);
/// Most bytes that one COPY_FILE_RANGE copies. The caller repeats the call for the rest.
const COPY_MAX: u64 = 64 << 20;
/// Shortest read of a remote file, in bytes, that is spliced past this process. For shorter reads,
/// a copy is cheaper than the additional system calls.
const SPLICE_MIN: usize = 64 << 10;

/// Splices bytes from a node's socket to the kernel, without a copy in this process.
struct PassageSink<'a, 'b>(&'a mut SplicedReply<'b>);

impl PayloadSink for PassageSink<'_, '_> {
    fn begin_payload(&mut self, len: usize) {
        self.0.start_reply(len);
    }

    fn take_payload(&mut self, socket: BorrowedFd<'_>, len: usize) -> std::io::Result<usize> {
        Ok(self.0.take_bytes(socket, len)?)
    }
}

/// An open in progress. The inode is counted as open, so that a removal keeps it. The open either
/// succeeds or is undone when this value is dropped.
pub(crate) struct PendingOpen<'a> {
    fs: &'a FileSystem,
    inode: Option<Arc<OpenInode>>,
    writes: bool,
}

impl PendingOpen<'_> {
    pub(crate) fn inode(&self) -> &Arc<OpenInode> {
        self.inode.as_ref().expect("it is there until it is made a file")
    }
}

impl Drop for PendingOpen<'_> {
    fn drop(&mut self) {
        if let Some(inode) = self.inode.take() {
            self.fs.end_use(&inode, self.writes, None);
        }
    }
}

/// The result of CREATE and TMPFILE.
pub(crate) struct CreatedFile {
    pub(crate) attr: Attr,
    pub(crate) opened: OpenReply,
    /// The file did not exist before.
    pub(crate) is_new: bool,
}

/// A WRITE request.
pub(crate) struct WriteRequest<'a> {
    pub(crate) handle: u64,
    pub(crate) offset: u64,
    pub(crate) data: &'a [u8],
    /// The write goes to the current end of the file.
    pub(crate) append: bool,
    pub(crate) kill_suidgid: bool,
}

impl FileSystem {
    /// Counts `ino` as open before the request to the daemon, so that no removal can run between
    /// both.
    pub(crate) fn begin_open(&self, ino: Ino, writes: bool) -> PendingOpen<'_> {
        self.open_inodes.announce_open(OpenKind::File);
        self.enter_announced(ino, writes)
    }

    fn enter_announced(&self, ino: Ino, writes: bool) -> PendingOpen<'_> {
        let inode = self.open_inodes.add_user(ino, !writes);
        if writes {
            inode.state.lock().writers += 1;
            self.client.revoke_attr_timeout(ino);
        }
        PendingOpen { fs: self, inode: Some(inode), writes }
    }

    /// Ends one use of `inode`. `closing` is set if this was the last writer, and the close is
    /// still to be sent to the shard.
    fn end_use(&self, inode: &Arc<OpenInode>, writes: bool, closing: Option<DeferredClose>) {
        if writes {
            let mut state = inode.state.lock();
            state.writers -= 1;
            if state.writers == 0 {
                state.writer = None;
            }
        }
        let nobody_reads = || self.deferred_closes.defer_read_close(inode.ino);
        let reads: Option<&dyn Fn()> = if writes { None } else { Some(&nobody_reads) };
        let Some(last) = self.open_inodes.remove_user(inode, OpenKind::File, reads) else {
            return;
        };
        if let Some(backing) = last.backing
            && self.spare_pool.return_backing(inode.ino, backing, last.is_empty)
            && let Some(closing) = closing
        {
            self.deferred_closes.mark_empty(inode.ino, closing);
        }
        if last.is_kept
            && let Err(error) = self.client.release_inode(inode.ino)
        {
            tracing::warn!(ino = %inode.ino, %error, "the shard keeps a removed file");
        }
    }

    /// OPEN. An open for reading and writing conflicts with opens from before a re-layout of the
    /// file. It waits for their close for a while, because the kernel sends RELEASE only after
    /// close(2) has returned.
    ///
    /// # Errors
    /// Those of the shard and of the object's node.
    pub(crate) fn open(&self, request: &Request<'_>, flags: i32) -> Result<OpenReply, Errno> {
        match self.try_open(request, flags) {
            Err(Errno::EBUSY)
                if self.open_inodes.wait_until_closed(Ino(request.header.node), CLOSE_WAIT) =>
            {
                self.try_open(request, flags)
            }
            opened => opened,
        }
    }

    fn try_open(&self, request: &Request<'_>, flags: i32) -> Result<OpenReply, Errno> {
        let ino = Ino(request.header.node);
        let access = Access::from_open_flags(flags);
        let opening = self.begin_open(ino, access.write);
        let opened = {
            // Held during the request, so that the close of an earlier writer cannot reach the
            // shard after this open.
            let order = &opening.inode().order;
            let _order = access.write.then(|| lock_interruptibly(order)).transpose()?;
            // A deferred close that is reported after this open would end the open at the shard.
            match access.write {
                true => self.deferred_closes.cancel_write_close(ino, 0),
                false => self.deferred_closes.cancel_read_close(ino, 0),
            };
            let opened =
                caller::run_as_caller(request, |cred| self.client.open_noted(cred, ino, access));
            if opened.is_ok() && access.write {
                opening.inode().state.lock().registered = true;
            }
            opened
        };
        let (attr, cap) = match opened {
            // Execution needs no read permission. The kernel has checked the execute permission.
            Err(Errno::EACCES) if flags & FMODE_EXEC != 0 && !access.write => {
                self.client.open_noted(&Cred::ROOT, ino, access)?
            }
            other => other?,
        };
        self.attr_cache.cache_attr(&attr);
        self.attach_handle(opening, &attr, cap, access, None)
    }

    /// CREATE.
    ///
    /// # Errors
    /// Those of the shard and of the object's node.
    pub(crate) fn create(
        &self,
        request: &Request<'_>,
        name: &[u8],
        flags: i32,
        mode: u32,
        umask: u32,
    ) -> Result<CreatedFile, Errno> {
        let parent = Ino(request.header.node);
        let access = Access::from_open_flags(flags);
        let exclusive = flags & libc::O_EXCL != 0;
        let (mode, umask) = ((mode & 0o7777) as u16, (umask & 0o777) as u16);
        // Before the request: the inode must be kept if it is removed right after its creation.
        self.open_inodes.announce_open(OpenKind::File);
        // The inode is not known before the reply. These moments show afterwards whether a close
        // was reported meanwhile, and whether the inode is newer than the spare file.
        let before = self.deferred_closes.current_moment();
        let free = self.spare_pool.current_moment();
        let result = self.create_as_caller(request, mode, |cred| {
            self.client.create_open(cred, parent, name, mode, umask, exclusive, access)
        });
        self.attr_cache.count_change();
        let mut made = result.inspect_err(|_| self.open_inodes.withdraw_open(OpenKind::File))?;
        let cap = made.cap.ok_or(Errno::EPROTO);
        let opening = self.enter_announced(made.attr.ino, access.write);
        let may_be_closed = !made.created
            && match access.write {
                true => self.deferred_closes.cancel_write_close(made.attr.ino, before),
                false => self.deferred_closes.cancel_read_close(made.attr.ino, before),
            };
        if may_be_closed {
            // A close of an earlier open may have reached the shard after this create. Open again,
            // so that the open is registered.
            self.client.open_noted(&Cred::ROOT, made.attr.ino, access)?;
        }
        {
            let mut state = opening.inode().state.lock();
            state.registered |= access.write;
            state.no_capability |= made.created;
        }
        let cap = cap?;
        if !made.created && flags & libc::O_TRUNC != 0 && access.write {
            // The kernel takes the file for new, and so will not truncate it.
            let now = self.client.open_data(&made.attr, cap)?.truncate(0)?;
            let set = tatami_wire::SetAttr {
                size: Some(0),
                blocks: Some(now.blocks),
                changed: Some(now.changed),
                by_handle: true,
                ..Default::default()
            };
            made.attr = self.client.setattr(&Cred::ROOT, made.attr.ino, set)?;
        }
        let free = made.created.then_some(&free);
        let opened = self.attach_handle(opening, &made.attr, cap, access, free)?;
        Ok(CreatedFile { attr: made.attr, opened, is_new: made.created })
    }

    /// TMPFILE.
    ///
    /// # Errors
    /// Those of the shard and of the object's node.
    pub(crate) fn tmpfile(
        &self,
        request: &Request<'_>,
        flags: i32,
        mode: u32,
        umask: u32,
    ) -> Result<CreatedFile, Errno> {
        let parent = Ino(request.header.node);
        let access = Access::from_open_flags(flags);
        let (mode, umask) = ((mode & 0o7777) as u16, (umask & 0o777) as u16);
        self.open_inodes.announce_open(OpenKind::File);
        let result = self.create_as_caller(request, mode, |cred| {
            self.client.tmpfile(cred, parent, mode, umask, access)
        });
        let made = result.inspect_err(|_| self.open_inodes.withdraw_open(OpenKind::File))?;
        let opening = self.enter_announced(made.attr.ino, access.write);
        {
            let mut state = opening.inode().state.lock();
            state.registered |= access.write;
            state.no_capability = true;
        }
        // The file has no name, so the shard keeps it until the release after the last close.
        self.open_inodes.mark_kept(made.attr.ino);
        let opened =
            self.attach_handle(opening, &made.attr, made.cap.ok_or(Errno::EPROTO)?, access, None)?;
        Ok(CreatedFile { attr: made.attr, opened, is_new: true })
    }

    /// Makes an open file of an inode and chooses the kernel's path to its bytes. `made` is the
    /// moment before a new inode was created.
    fn attach_handle(
        &self,
        mut opening: PendingOpen<'_>,
        attr: &Attr,
        cap: Cap,
        access: Access,
        made: Option<&SparePoolMoment>,
    ) -> Result<OpenReply, Errno> {
        let data = Arc::new(self.client.open_data(attr, cap)?);
        let inode = opening.inode().clone();
        let (mut flags, backing) = self.choose_data_path(&inode, attr, &data, access, made)?;
        if access.write {
            self.page_validity.forget_state(attr.ino);
        }
        // The close of a reader without locks needs no FLUSH. A FLUSH costs as much as the open.
        let silent = !access.write && !self.lock_waits.are_used(attr.ino);
        if silent {
            flags |= fopen::NOFLUSH;
        }
        {
            let mut state = inode.state.lock();
            state.mode = attr.mode;
            if access.write {
                state.writer = Some(data.clone());
            }
        }
        // The handle takes over the count of `opening`.
        opening.inode = None;
        let handle = self.files.insert(Arc::new(OpenFile {
            inode,
            data,
            access,
            opened_size: attr.size,
            lock_state: FileLockState::new(silent),
        }));
        Ok(OpenReply { handle, flags, backing })
    }

    /// Returns the open flags for the kernel, and the number of the backing file or 0.
    fn choose_data_path(
        &self,
        inode: &OpenInode,
        attr: &Attr,
        data: &DataFile,
        access: Access,
        made: Option<&SparePoolMoment>,
    ) -> Result<(u32, i32), Errno> {
        const DIRECT: u32 = fopen::DIRECT_IO | fopen::PARALLEL_DIRECT_WRITES;
        if let Some(stale) = self.take_stale_backing(inode, attr, access)? {
            return Ok((fopen::PASSTHROUGH | DIRECT, stale));
        }
        if !data.shows_all_writes() {
            return self.choose_uncached_path(inode, access);
        }
        if !(self.passthrough && data.has_local_file()) {
            if access.write {
                return Ok((DIRECT, 0));
            }
            let keep = self.page_validity.record_open(attr, data)?;
            inode.state.lock().no_backing = true;
            return Ok((if keep { fopen::KEEP_CACHE } else { 0 }, 0));
        }
        let mut state = inode.state.lock();
        if let Some(backing) = &mut state.backing {
            let id = backing.id.0;
            // Only readers had the file open. A writer needs a descriptor for its commits.
            if access.write && backing.file.is_none() {
                let file = data.local_file(true)?.ok_or(Errno::ESTALE)?;
                let reported = size::commit_mark(&stat_file(&file)?);
                backing.file = Some(file);
                state.committed = Some(reported);
            }
            return Ok((fopen::PASSTHROUGH, id));
        }
        // The file is local or untiled again, but other opens still use it through this process.
        // The kernel allows no mix of cached and passthrough opens of one inode.
        if state.no_backing {
            return Ok((DIRECT, 0));
        }
        // Writes must go through this process, so that the first one can clear setuid.
        let suid = access.write && attr::without_suid(attr.mode) != attr.mode;
        if suid {
            return Ok((DIRECT, 0));
        }
        let lent = made
            .filter(|_| access.write)
            .and_then(|before| self.spare_pool.take_spare(data, before, attr.mtime));
        if let Some(backing) = lent {
            data.set_local_file(backing.file.clone());
            state.committed = Some(CommitMark { size: 0, mtime: attr.mtime });
            let id = backing.id;
            state.backing = Some(backing);
            return Ok((fopen::PASSTHROUGH, id.0));
        }
        // Readers of a file without bytes are served by this process until a writer comes. An
        // object that had bytes is not created again: the bytes are lost, and each access must
        // report that.
        let Some(file) = data.local_file(access.write && attr.size == 0)? else {
            return Ok((DIRECT, 0));
        };
        let now = stat_file(&file)?;
        // With passthrough, the kernel would take the end of the object for the end of the file.
        if now.size < attr.size {
            drop(state);
            if data.is_lost(now.size)? {
                return Ok((DIRECT, 0));
            }
            state = inode.state.lock();
            if let Some(backing) = &state.backing {
                return Ok((fopen::PASSTHROUGH, backing.id.0));
            }
            if state.no_backing {
                return Ok((DIRECT, 0));
            }
        }
        match self.device.open_backing(&file) {
            Ok(id) => {
                state.committed = Some(size::commit_mark(&now));
                let base = attr.layout.base();
                let file = access.write.then_some(file);
                if file.is_none() {
                    data.set_local_file(None);
                }
                state.backing = Some(Backing { id, file, base, spare: None, unwritten: None });
                Ok((fopen::PASSTHROUGH, id.0))
            }
            Err(errno) => {
                tracing::warn!(ino = %attr.ino, %errno, "a file could not bypass us");
                Ok((DIRECT, 0))
            }
        }
    }

    /// Returns the backing file of an inode that was re-laid out while other opens use it. The
    /// kernel demands this file for each further open of the inode. With `DIRECT_IO`, it sends all
    /// requests but those of mappings to this process.
    ///
    /// # Errors
    /// `EBUSY` for an open that could map the file for writing: these writes would be lost.
    fn take_stale_backing(
        &self,
        inode: &OpenInode,
        attr: &Attr,
        access: Access,
    ) -> Result<Option<i32>, Errno> {
        let mut state = inode.state.lock();
        if state.backing.as_ref().is_some_and(|backing| backing.base != attr.layout.base()) {
            state.stale_backing = state.backing.take();
            state.committed = None;
        }
        let Some(stale) = &state.stale_backing else { return Ok(None) };
        if access.read && access.write {
            return Err(Errno::EBUSY);
        }
        let id = stale.id.0;
        state.no_backing = true;
        self.page_validity.forget_state(inode.ino);
        Ok(Some(id))
    }

    /// Returns the open flags for a file, such as a tiled one, whose state does not show all writes
    /// of other clients, and the number of its backing file or 0. The kernel keeps no pages across
    /// opens.
    ///
    /// # Errors
    /// `EBUSY` as for [`FileSystem::take_stale_backing`], while the file is open from before its
    /// first tiles.
    fn choose_uncached_path(&self, inode: &OpenInode, access: Access) -> Result<(u32, i32), Errno> {
        self.page_validity.forget_state(inode.ino);
        let mut state = inode.state.lock();
        state.no_backing = true;
        match &state.backing {
            Some(_) if access.read && access.write => Err(Errno::EBUSY),
            Some(backing) => Ok((fopen::PASSTHROUGH | fopen::DIRECT_IO, backing.id.0)),
            None => Ok((if access.write { fopen::DIRECT_IO } else { 0 }, 0)),
        }
    }

    /// RELEASE. No process waits for the reply.
    pub(crate) fn release(&self, handle: u64) {
        if let Some(file) = self.files.remove(handle) {
            self.free_locks_of_file(&file, handle);
            self.close_file(&file);
        }
    }

    /// Closes an open file that is not in the table any more.
    pub(crate) fn close_file(&self, file: &OpenFile) {
        let mut closing = None;
        if file.access.write {
            // The commit reads the size, so all accepted writes must have reached the object.
            let flushed = file.data.flush();
            file.data.end_changes();
            // `commit` must see the count without this writer, to recognise the last one. `leave`
            // decrements again.
            file.inode.state.lock().writers -= 1;
            let reported = self.commit_state(&file.inode, &file.data, CommitReason::HandleReleased);
            file.inode.state.lock().writers += 1;
            match flushed.and(reported) {
                Ok(waits) => {
                    closing = waits;
                    let mut state = file.inode.state.lock();
                    // The last writer is gone, and its state is committed. The kernel has its own
                    // descriptor for other opens.
                    if state.writers == 1
                        && let Some(backing) = state.backing.as_mut().filter(|b| b.spare.is_none())
                    {
                        backing.file = None;
                    }
                }
                Err(error) => {
                    tracing::warn!(ino = %file.inode.ino, %error, "a file did not end well");
                }
            }
        }
        self.end_use(&file.inode, file.access.write, closing);
    }

    fn get_file(&self, handle: u64) -> Result<Arc<OpenFile>, Errno> {
        let file = self.files.get(handle).ok_or(Errno::EBADF)?;
        self.check_locks(&file)?;
        Ok(file)
    }

    /// FLUSH: a process closes a descriptor. `owner` identifies the process's locks.
    ///
    /// # Errors
    /// Errors of earlier writes, and those of the shard.
    pub(crate) fn flush(&self, handle: u64, owner: u64) -> Result<(), Errno> {
        let file = self.files.get(handle).ok_or(Errno::EBADF)?;
        self.flush_file(&file, owner)
    }

    fn flush_file(&self, file: &OpenFile, owner: u64) -> Result<(), Errno> {
        let checked = self.check_locks(file);
        let flushed = match file.access.write {
            true => {
                let flushed = file.data.flush();
                let reported =
                    self.commit_state(&file.inode, &file.data, CommitReason::HandleStays);
                flushed.and(reported.map(drop))
            }
            false => Ok(()),
        };
        checked.and(flushed).and(self.free_locks_of_process(file, owner))
    }

    /// Repeats a FLUSH in a thread, after the process was killed and did not wait for the node.
    /// Otherwise its locks would stay.
    pub(crate) fn flush_later(self: &Arc<Self>, handle: u64, owner: u64) {
        let Some(file) = self.files.get(handle) else { return };
        let fs = self.clone();
        let flush = move || {
            if let Err(error) = fs.flush_file(&file, owner) {
                tracing::warn!(ino = %file.inode.ino, %error, "a file did not end well");
            }
        };
        // Not joined: the thread ends when the node answers or the operation timeout expires.
        if let Err(error) = std::thread::Builder::new().name("flush".into()).spawn(flush) {
            tracing::warn!(%error, "no thread to end a file; its locks stay until the mount ends");
        }
    }

    /// FSYNC.
    /// FSYNC.
    ///
    /// # Errors
    /// Errors of earlier writes, and those of the shard.
    pub(crate) fn fsync(&self, handle: u64, data_only: bool) -> Result<(), Errno> {
        let file = self.get_file(handle)?;
        // First the bytes, then their size: a power cut between both must not leave a size without
        // its bytes.
        file.data.sync(data_only)?;
        if file.access.write {
            self.commit_state(&file.inode, &file.data, CommitReason::HandleStays)?;
        }
        self.client.sync_inode(file.inode.ino)
    }

    /// READ.
    ///
    /// # Errors
    /// Those of the object's node; `ESTALE` for a file that another mount has
    /// removed along with its bytes.
    pub(crate) fn reply_read(&self, reply: Reply<'_>, handle: u64, offset: u64, size: usize) {
        let file = match self.get_file(handle) {
            Ok(file) => file,
            Err(e) => {
                reply.send_error(to_kernel_errno(e));
                return;
            }
        };
        let far = file.access.read && file.data.can_splice();
        if far && (SPLICE_MIN..=PAYLOAD_MAX).contains(&size) {
            reply.send_spliced(|passage| {
                let got = file.data.read_into(&mut PassageSink(passage), offset, size);
                got.and_then(|got| self.check_short_read(&file, offset, size, got))
                    .map_err(to_kernel_errno)
            });
        } else {
            reply.send_filled(size, |buf| {
                self.read_file(&file, offset, buf).map_err(to_kernel_errno)
            });
        }
    }

    fn read_file(&self, file: &OpenFile, offset: u64, buf: &mut [u8]) -> Result<usize, Errno> {
        if file.access.read {
            let got = file.data.read_at(buf, offset)?;
            self.check_short_read(file, offset, buf.len(), got)?;
            return Ok(got);
        }
        // A file that is open only for writing needs a page for a mapping or for a partial write.
        let (attr, cap) = self.client.open(&Cred::ROOT, file.inode.ino, Access::READ)?;
        self.client.open_data(&attr, cap)?.read_at(buf, offset)
    }

    /// Checks a read that returned fewer bytes than the file had at its open.
    fn check_short_read(
        &self,
        file: &OpenFile,
        offset: u64,
        size: usize,
        got: usize,
    ) -> Result<(), Errno> {
        if got < size && offset.saturating_add(got as u64) < file.opened_size {
            // The file was longer. If it was removed, this is not its end, and `getattr` fails.
            self.client.getattr(&Cred::ROOT, file.inode.ino)?;
        }
        Ok(())
    }

    /// WRITE. Returns the number of accepted bytes.
    ///
    /// # Errors
    /// Those of the object's node, including errors of earlier writes.
    pub(crate) fn write_file(&self, write: &WriteRequest<'_>) -> Result<usize, Errno> {
        let file = self.get_file(write.handle)?;
        let inode = &file.inode;
        let mode = inode.state.lock().mode;
        if write.kill_suidgid && attr::without_suid(mode) != mode {
            let attr = self.client.getattr(&Cred::ROOT, inode.ino)?;
            self.drop_suid(&attr);
            inode.state.lock().mode = attr::without_suid(attr.mode);
        }
        file.data.check_changeable()?;
        let result = if write.append {
            file.data.append(write.data)
        } else {
            file.data.write_at(write.data, write.offset)
        };
        self.note_write(&file);
        result
    }

    /// Notes a change of the bytes. Also after a failure, because a part may have been written.
    fn note_write(&self, file: &OpenFile) {
        if !file.count_write() {
            // The attributes of a lookup that the thread has just made are old now.
            self.attr_cache.forget_inode(file.inode.ino);
        }
    }

    /// FALLOCATE.
    ///
    /// # Errors
    /// Those of the object's node; `EOPNOTSUPP` for modes that Tatami does not support.
    pub(crate) fn allocate_range(
        &self,
        handle: u64,
        mode: i32,
        offset: u64,
        len: u64,
    ) -> Result<(), Errno> {
        const KEEP: i32 = libc::FALLOC_FL_KEEP_SIZE;
        const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | KEEP;
        const ZERO: i32 = libc::FALLOC_FL_ZERO_RANGE;
        const ZERO_KEEP: i32 = ZERO | KEEP;
        let file = self.get_file(handle)?;
        let mode = match mode {
            0 => AllocMode::Extend,
            KEEP => AllocMode::Keep,
            PUNCH => AllocMode::Punch,
            ZERO => AllocMode::Zero,
            ZERO_KEEP => AllocMode::ZeroKeep,
            _ => return Err(Errno::EOPNOTSUPP),
        };
        file.data.check_changeable()?;
        let result = file.data.allocate(mode, offset, len);
        self.note_write(&file);
        result.map(|_| ())
    }

    /// LSEEK for data or a hole.
    ///
    /// # Errors
    /// `ENXIO` beyond the end; those of the object's node.
    pub(crate) fn seek_extent(&self, handle: u64, offset: i64, whence: i32) -> Result<u64, Errno> {
        let what = match whence {
            libc::SEEK_DATA => SeekTarget::Data,
            libc::SEEK_HOLE => SeekTarget::Hole,
            _ => return Err(Errno::EINVAL),
        };
        let offset = u64::try_from(offset).map_err(|_| Errno::ENXIO)?;
        self.get_file(handle)?.data.seek(what, offset)
    }

    /// COPY_FILE_RANGE. Returns the number of copied bytes.
    ///
    /// # Errors
    /// `EXDEV` or `EOPNOTSUPP` if the kernel must read and write instead.
    pub(crate) fn copy_range(
        &self,
        from: (u64, u64),
        to: (u64, u64),
        len: u64,
    ) -> Result<u64, Errno> {
        let (source, target) = (self.get_file(from.0)?, self.get_file(to.0)?);
        target.data.check_changeable()?;
        let copied = target.data.copy_from(&source.data, from.1, to.1, len.min(COPY_MAX));
        self.note_write(&target);
        copied
    }

    /// Commits the writes to files that stay open after the end of the mount. The opens stay
    /// registered, because the kernel may continue to write to local files. The size recovery after
    /// this client's lease then takes the final state.
    pub(crate) fn commit_all(&self) {
        for file in self.files.list_open().iter().filter(|f| f.access.write) {
            let reported = file.data.flush();
            let reported = reported.and(
                self.commit_state(&file.inode, &file.data, CommitReason::HandleStays).map(drop),
            );
            if let Err(error) = reported {
                tracing::warn!(ino = %file.inode.ino, %error, "a file did not end well");
            }
        }
    }

    /// Closes all files and directories, for the end of the mount.
    pub(crate) fn close_all(&self) {
        for file in self.files.drain_open() {
            self.close_file(&file);
        }
        for dir in self.dirs.drain_open() {
            self.close_dir(&dir);
        }
    }
}
