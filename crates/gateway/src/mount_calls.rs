//! The calls of a mount at the other site.

use crate::mount_table::{MountTable, entry_name, path_of_fd};
use crate::path_calls::{attr_of_file, failed, read_entry};
use crate::refusal::{path_of, refuse};
use rustix::fs::{
    Access, AtFlags, CWD, Dev, FallocateFlags, FileType, Gid, Mode, OFlags, RenameFlags, SeekFrom,
    Timespec, Timestamps, Uid, XattrFlags, openat, readlinkat,
};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, SystemTime};
use tatami_remote::{
    BYTES_MAX, MountCall, NewSiteNode, RemoteFailure, RemoteReply, SiteAttr, SiteAttrSet, SiteDir,
    SiteEntry, SiteNode, SiteSpace, SiteTime, sum_bytes,
};

/// Longest value and longest list of names of extended attributes, in bytes.
const XATTR_MAX: usize = 64 << 10;
/// Most bytes that one call copies: the calls behind it wait.
const COPY_MAX: u64 = 64 << 20;
/// After this time without a change, another change has another time.
const SETTLED: Duration = Duration::from_secs(2);
/// The bits set-user-id and set-group-id.
const ID_BITS: u32 = 0o6000;

type CallResult = Result<RemoteReply, RemoteFailure>;

/// An entry without a name.
fn entry_of(attr: SiteAttr, target: Option<OsString>) -> RemoteReply {
    let target = target.map(|target| target.into_vec().into());
    RemoteReply::Entry(SiteEntry { name: Vec::new().into(), attr, target })
}

fn reply_opened(attr: SiteAttr) -> RemoteReply {
    // A clock that is wrong makes the other side read once more, or trust a coarse time.
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let last = attr.modified.max(attr.changed).0.max(0) as u64;
    let is_settled = now.saturating_sub(Duration::from_secs(last)) > SETTLED;
    RemoteReply::Opened { attr, is_settled }
}

fn time_of(time: Option<SiteTime>) -> Timespec {
    match time {
        None => Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT },
        Some(SiteTime::Now) => Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW },
        Some(SiteTime::At(tv_sec, nsec)) => Timespec { tv_sec, tv_nsec: i64::from(nsec) },
    }
}

/// Returns the flags of an open that count here. The other side places all writes itself.
fn open_flags(flags: i32) -> OFlags {
    let kept = OFlags::RDWR | OFlags::WRONLY | OFlags::RDONLY | OFlags::TRUNC | OFlags::EXCL;
    OFlags::from_bits_truncate(flags as u32) & kept
}

impl MountTable {
    /// Carries out a call. The bytes of a read go to `out`.
    pub(crate) fn carry_out(
        &mut self,
        call: MountCall,
        payload: &[u8],
        out: &mut Vec<u8>,
    ) -> CallResult {
        match call {
            MountCall::Root { path } => self.open_root(path_of(&path)?),
            MountCall::Read { file, offset, len } => self.read_file(file, offset, len, out),
            MountCall::Write { file, offset, sum, clears_ids } => {
                if sum != sum_bytes(payload) {
                    return Err(refuse(Errno::IO, "bytes were damaged on the way"));
                }
                let file = self.file(file)?;
                let written = file.write_all_at(payload, offset);
                written.map_err(|e| failed(Errno::from_io_error(&e).unwrap_or(Errno::IO)))?;
                if clears_ids {
                    let mode = attr_of_file(file).map_err(failed)?.mode & 0o7777;
                    if mode & ID_BITS != 0 {
                        let mode = Mode::from_raw_mode(mode & !ID_BITS);
                        rustix::fs::fchmod(file, mode).map_err(failed)?;
                    }
                }
                Ok(RemoteReply::Done)
            }
            MountCall::List { dir, listing, piece } => self.list_piece(&dir, listing, piece),
            MountCall::EndList { listing } => {
                self.end_listing(listing);
                Ok(RemoteReply::Done)
            }
            MountCall::ReadXattr { node, name } => {
                let name = OsStr::from_bytes(&name);
                self.read_xattrs(&node, out, |path, into| rustix::fs::getxattr(path, name, into))
            }
            MountCall::ListXattrs { node } => {
                self.read_xattrs(&node, out, |path, into| rustix::fs::listxattr(path, into))
            }
            MountCall::Release { file } => {
                let file = self.files.remove(&file);
                file.map(|_| RemoteReply::Done).ok_or_else(crate::refusal::not_open)
            }
            MountCall::Sync { file, data_only } => {
                let file = self.file(file)?;
                let synced = match data_only {
                    true => rustix::fs::fdatasync(file),
                    false => rustix::fs::fsync(file),
                };
                synced.map(|()| RemoteReply::Done).map_err(failed)
            }
            MountCall::Allocate { file, mode, offset, len } => {
                let mode = FallocateFlags::from_bits_retain(mode);
                let done = rustix::fs::fallocate(self.file(file)?, mode, offset, len);
                done.map(|()| RemoteReply::Done).map_err(failed)
            }
            MountCall::Seek { file, offset, is_hole } => {
                let from = if is_hole { SeekFrom::Hole(offset) } else { SeekFrom::Data(offset) };
                rustix::fs::seek(self.file(file)?, from).map(RemoteReply::Size).map_err(failed)
            }
            MountCall::CopyRange { file, offset, to, to_offset, len } => {
                let (from, to) = (self.file(file)?, self.file(to)?);
                let (mut offset, mut to_offset) = (offset, to_offset);
                let len = len.min(COPY_MAX) as usize;
                let copied = rustix::fs::copy_file_range(
                    from,
                    Some(&mut offset),
                    to,
                    Some(&mut to_offset),
                    len,
                );
                copied.map(|copied| RemoteReply::Size(copied as u64)).map_err(failed)
            }
            other => self.change_names(other).map_err(failed),
        }
    }

    fn read_file(&self, file: u64, offset: u64, len: u32, out: &mut Vec<u8>) -> CallResult {
        let file = self.file(file)?;
        out.resize((len as usize).min(BYTES_MAX), 0);
        let mut done = 0;
        while done < out.len() {
            match file.read_at(&mut out[done..], offset.saturating_add(done as u64)) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => return Err(failed(Errno::from_io_error(&e).unwrap_or(Errno::IO))),
            }
        }
        out.truncate(done);
        Ok(RemoteReply::Bytes { sum: sum_bytes(out) })
    }

    fn read_xattrs(
        &mut self,
        node: &SiteNode,
        out: &mut Vec<u8>,
        read: impl FnOnce(&Path, &mut [u8]) -> Result<usize, Errno>,
    ) -> CallResult {
        let fd = self.open_node(node, OFlags::PATH).map_err(failed)?;
        out.resize(XATTR_MAX, 0);
        let len = read(&path_of_fd(&fd), out).map_err(failed)?;
        out.truncate(len);
        Ok(RemoteReply::Bytes { sum: sum_bytes(out) })
    }

    /// The calls on names and attributes.
    fn change_names(&mut self, call: MountCall) -> Result<RemoteReply, Errno> {
        let done = |()| RemoteReply::Done;
        match call {
            MountCall::Lookup { dir, name } => self.look_up(&dir, &name),
            MountCall::ReadAttr { node, file } => {
                if let Some(file) = file.and_then(|file| self.files.get(&file)) {
                    return Ok(entry_of(attr_of_file(file)?, None));
                }
                let (dir, name, attr) = self.find_node(&node)?;
                let is_link = FileType::from_raw_mode(attr.mode) == FileType::Symlink;
                let target = match is_link {
                    true => Some(readlinkat(&*dir, &name, Vec::new())?.into_bytes()),
                    false => None,
                };
                Ok(entry_of(attr, target.map(OsString::from_vec)))
            }
            MountCall::SetAttr { node, file, set } => self.set_attr(&node, file, &set),
            MountCall::Make { dir, name, new } => self.make_node(&dir, &name, new),
            MountCall::Remove { dir, name, is_dir } => {
                let flags = if is_dir { AtFlags::REMOVEDIR } else { AtFlags::empty() };
                let at = self.find_dir(&dir)?;
                rustix::fs::unlinkat(&*at, entry_name(&name)?, flags).map(done)
            }
            MountCall::Rename { dir, name, to, to_name, flags } => {
                let (from, to) = (self.find_dir(&dir)?, self.find_dir(&to)?);
                let flags = RenameFlags::from_bits(flags).ok_or(Errno::INVAL)?;
                let (name, to_name) = (entry_name(&name)?, entry_name(&to_name)?);
                rustix::fs::renameat_with(&*from, name, &*to, to_name, flags).map(done)
            }
            MountCall::Open { file, node, flags } => {
                let flags = open_flags(flags) - OFlags::EXCL;
                let fd = self.open_node(&node, flags)?;
                self.keep_file(file, fd).map(reply_opened)
            }
            MountCall::Create { file, dir, name, flags, mode } => {
                let at = self.find_dir(&dir)?;
                let always = OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
                let flags = open_flags(flags) | always | OFlags::NONBLOCK | OFlags::NOCTTY;
                let mode = Mode::from_raw_mode(mode & 0o7777);
                let fd = openat(&*at, entry_name(&name)?, flags, mode)?;
                self.keep_file(file, fd).map(reply_opened)
            }
            MountCall::SyncDir { dir } => {
                let at = self.find_dir(&dir)?;
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
                rustix::fs::fsync(openat(&*at, c".", flags, Mode::empty())?).map(done)
            }
            MountCall::ReadSpace => {
                let found = rustix::fs::fstatvfs(&*self.root()?)?;
                Ok(RemoteReply::Space(SiteSpace {
                    block_size: found.f_frsize,
                    blocks: found.f_blocks,
                    free: found.f_bfree,
                    available: found.f_bavail,
                    files: found.f_files,
                    files_free: found.f_ffree,
                    name_max: found.f_namemax,
                }))
            }
            MountCall::CheckAccess { node, mask } => {
                let fd = self.open_node(&node, OFlags::PATH)?;
                let mask = Access::from_bits(mask as _).ok_or(Errno::INVAL)?;
                rustix::fs::accessat(CWD, path_of_fd(&fd), mask, AtFlags::EACCESS).map(done)
            }
            MountCall::SetXattr { node, name, value, flags } => {
                let fd = self.open_node(&node, OFlags::PATH)?;
                let flags = XattrFlags::from_bits(flags).ok_or(Errno::INVAL)?;
                let name = OsStr::from_bytes(&name);
                rustix::fs::setxattr(path_of_fd(&fd), name, &value, flags).map(done)
            }
            MountCall::RemoveXattr { node, name } => {
                let fd = self.open_node(&node, OFlags::PATH)?;
                rustix::fs::removexattr(path_of_fd(&fd), OsStr::from_bytes(&name)).map(done)
            }
            _ => Err(Errno::NOSYS),
        }
    }

    fn look_up(&mut self, dir: &SiteDir, name: &[u8]) -> Result<RemoteReply, Errno> {
        let (at, name) = (self.find_dir(dir)?, entry_name(name)?);
        let entry = read_entry(&*at, name, false)?;
        self.keep_found(&at, name, &entry.attr);
        Ok(RemoteReply::Entry(entry))
    }

    fn make_node(
        &mut self,
        dir: &SiteDir,
        name: &[u8],
        new: NewSiteNode,
    ) -> Result<RemoteReply, Errno> {
        let (at, path) = (self.find_dir(dir)?, entry_name(name)?);
        match new {
            NewSiteNode::Dir(mode) => {
                rustix::fs::mkdirat(&*at, path, Mode::from_raw_mode(mode & 0o7777))?;
            }
            NewSiteNode::Link(target) => {
                rustix::fs::symlinkat(OsStr::from_bytes(&target), &*at, path)?;
            }
            NewSiteNode::Special(mode, rdev) => {
                let (kind, mode) =
                    (FileType::from_raw_mode(mode), Mode::from_raw_mode(mode & 0o7777));
                rustix::fs::mknodat(&*at, path, kind, mode, rdev as Dev)?;
            }
            NewSiteNode::Same(node) => {
                let (from, old, _) = self.find_node(&node)?;
                rustix::fs::linkat(&*from, &old, &*at, path, AtFlags::empty())?;
            }
        }
        self.look_up(dir, name)
    }

    fn set_attr(
        &mut self,
        node: &SiteNode,
        file: Option<u64>,
        set: &SiteAttrSet,
    ) -> Result<RemoteReply, Errno> {
        // An open file may have no name any more. Otherwise the inode is held meanwhile.
        let found = match file.and_then(|file| self.files.get(&file)) {
            Some(file) => rustix::io::fcntl_dupfd_cloexec(file, 0)?,
            None => self.open_node(node, OFlags::PATH)?,
        };
        let path = path_of_fd(&found);
        if let Some(size) = set.size {
            match file.and_then(|file| self.files.get(&file)) {
                // A file that is open for reading alone, or may not be written any more.
                Some(file) => match rustix::fs::ftruncate(file, size) {
                    Err(Errno::INVAL | Errno::BADF) => truncate_path(&path, size)?,
                    done => done?,
                },
                None => truncate_path(&path, size)?,
            }
        }
        if set.uid.is_some() || set.gid.is_some() {
            let (uid, gid) = (set.uid.map(Uid::from_raw), set.gid.map(Gid::from_raw));
            rustix::fs::chown(&path, uid, gid)?;
        }
        if let Some(mode) = set.mode {
            rustix::fs::chmod(&path, Mode::from_raw_mode(mode & 0o7777))?;
        }
        if set.accessed.is_some() || set.modified.is_some() {
            let (last_access, last_modification) = (time_of(set.accessed), time_of(set.modified));
            let times = Timestamps { last_access, last_modification };
            rustix::fs::utimensat(CWD, &path, &times, AtFlags::empty())?;
        }
        Ok(entry_of(attr_of_file(&found)?, None))
    }
}

fn truncate_path(path: &Path, size: u64) -> Result<(), Errno> {
    let flags = OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    rustix::fs::ftruncate(openat(CWD, path, flags, Mode::empty())?, size)
}
