//! The overlay: shows a directory of any file system, with its containers as ordinary files.
//!
//! Names and all files that are not containers pass through. A container is shown as one file.
//! [`tatami_tiled`] reads and writes it as a program of one process would, while jobs may also
//! write it.

mod bytes;
mod error;
mod names;

use crate::error::MountError;
use crate::mountpoint;
use crate::serving;
use bytes::OverlayFile;
use error::{OverlayResult, io_errno};
use names::PathTable;
use parking_lot::RwLock;
use std::collections::HashMap;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tatami_fuse::abi::fopen;
use tatami_fuse::{
    CacheTimeouts, Channel, FuseOp, FuseSession, Handler, OpenReply, Reply, Request, StatFs,
    ThreadLimits,
};

/// Number of threads that stay alive when idle, and most threads.
const THREADS: ThreadLimits = ThreadLimits { base: 2, max: 16 };
/// Most bytes of one read or write request.
const MAX_WRITE: u32 = 1 << 20;
/// A mounted overlay. Dropping it unmounts it.
pub struct Overlay {
    session: Arc<FuseSession>,
}

impl Overlay {
    /// Mounts the contents of `dir` on `mountpoint`. The mount answers when this returns.
    ///
    /// # Errors
    /// [`MountError`].
    pub fn start(dir: &Path, mountpoint: &Path) -> Result<Overlay, MountError> {
        let path = mountpoint::check_mountpoint(mountpoint)?;
        let failed = |source| MountError::Mountpoint { path: dir.to_path_buf(), source };
        let root = dir.canonicalize().map_err(failed)?;
        if path.starts_with(&root) || !root.is_dir() {
            let why = "an overlay cannot show a file, nor be mounted below what it shows";
            return Err(failed(std::io::Error::new(std::io::ErrorKind::InvalidInput, why)));
        }
        let all = rustix::process::geteuid().is_root();
        let settings =
            mountpoint::mount_settings(format!("tatami-overlay:{}", root.display()), false, all);
        let channel = Channel::mount(&path, &settings)?;
        let agreed =
            channel.negotiate_features(&crate::mount::requested_features(MAX_WRITE, 0, false))?;
        let shown = Arc::new(OverlayFileSystem {
            names: PathTable::new(root),
            handles: RwLock::new(HashMap::new()),
            next: AtomicU64::new(1),
            valid: CacheTimeouts::default(),
        });
        let session = FuseSession::start(channel, &agreed, shown, THREADS)
            .map_err(|source| MountError::Serve { path, source })?;
        Ok(Overlay { session: Arc::new(session) })
    }

    /// Serves until an unmount or SIGTERM or SIGINT.
    ///
    /// # Errors
    /// When the system is short of descriptors or threads.
    pub fn run(self) -> std::io::Result<()> {
        serving::serve_until_end(&self.session).map(drop)
    }
}

/// An entry of a directory as of the open of the directory.
struct OverlayEntry {
    name: Vec<u8>,
    ino: u64,
    mode: u32,
}

enum OverlayHandle {
    File(Arc<OverlayFile>),
    Dir(Arc<Vec<OverlayEntry>>),
}

struct OverlayFileSystem {
    names: PathTable,
    handles: RwLock<HashMap<u64, OverlayHandle>>,
    next: AtomicU64,
    valid: CacheTimeouts,
}

impl OverlayFileSystem {
    fn insert_handle(&self, opening: OverlayHandle) -> u64 {
        let handle = self.next.fetch_add(1, Ordering::Relaxed);
        self.handles.write().insert(handle, opening);
        handle
    }

    fn get_file(&self, handle: u64) -> OverlayResult<Arc<OverlayFile>> {
        match self.handles.read().get(&handle) {
            Some(OverlayHandle::File(file)) => Ok(file.clone()),
            _ => Err(libc::EBADF),
        }
    }

    fn open_file(&self, path: &Path, flags: i32) -> OverlayResult<OpenReply> {
        OverlayFile::open_path(path, flags).map(|file| self.insert_file(file))
    }

    fn insert_file(&self, file: OverlayFile) -> OpenReply {
        // The kernel must not cache a container, because jobs write it without the kernel's
        // knowledge.
        let flags = if file.is_container() { fopen::DIRECT_IO } else { 0 };
        let handle = self.insert_handle(OverlayHandle::File(Arc::new(file)));
        OpenReply { handle, flags, backing: 0 }
    }

    fn open_dir(&self, node: u64) -> OverlayResult<OpenReply> {
        let dir = self.names.path_of(node)?;
        if tatami_tiled::is_container(&dir) {
            return Err(libc::ENOTDIR);
        }
        let above = self.names.parent_number(node)?;
        let mut listed = vec![
            OverlayEntry { name: b".".to_vec(), ino: node, mode: libc::S_IFDIR },
            OverlayEntry { name: b"..".to_vec(), ino: above, mode: libc::S_IFDIR },
        ];
        for entry in std::fs::read_dir(&dir).map_err(io_errno)? {
            let entry = entry.map_err(io_errno)?;
            let name = entry.file_name();
            let Ok(attr) = self.names.lookup(node, name.as_bytes()) else { continue };
            listed.push(OverlayEntry {
                name: name.as_bytes().to_vec(),
                ino: attr.ino,
                mode: attr.mode,
            });
        }
        let handle = self.insert_handle(OverlayHandle::Dir(Arc::new(listed)));
        Ok(OpenReply { handle, flags: 0, backing: 0 })
    }

    fn get_listing(&self, handle: u64) -> OverlayResult<Arc<Vec<OverlayEntry>>> {
        match self.handles.read().get(&handle) {
            Some(OverlayHandle::Dir(listed)) => Ok(listed.clone()),
            _ => Err(libc::EBADF),
        }
    }

    fn statfs(&self) -> OverlayResult<StatFs> {
        let root = self.names.path_of(tatami_fuse::abi::ROOT_ID)?;
        let found = rustix::fs::statvfs(&root).map_err(|e| e.raw_os_error())?;
        Ok(StatFs {
            blocks: found.f_blocks,
            free: found.f_bfree,
            available: found.f_bavail,
            files: found.f_files,
            files_free: found.f_ffree,
            block_size: u32::try_from(found.f_frsize).unwrap_or(4096),
            name_max: u32::try_from(found.f_namemax).unwrap_or(255),
        })
    }

    fn get_xattr(&self, node: u64, name: &[u8]) -> OverlayResult<Vec<u8>> {
        let path = self.names.path_of(node)?;
        if name.starts_with(b"user.tatami.") {
            return Err(libc::ENODATA);
        }
        let name = CString::new(name).map_err(|_| libc::EINVAL)?;
        let mut value = vec![0; 65_536];
        let len = rustix::fs::lgetxattr(&path, &name, &mut value[..]);
        value.truncate(len.map_err(|e| e.raw_os_error())?);
        Ok(value)
    }

    fn list_xattrs(&self, node: u64) -> OverlayResult<Vec<u8>> {
        let path = self.names.path_of(node)?;
        let mut names = vec![0; 65_536];
        let len = rustix::fs::llistxattr(&path, &mut names[..]).map_err(|e| e.raw_os_error())?;
        names.truncate(len);
        let kept = names.split_inclusive(|b| *b == 0).filter(|n| !n.starts_with(b"user.tatami."));
        Ok(kept.flatten().copied().collect())
    }
}

fn reply_sized(reply: Reply<'_>, size: u32, answer: OverlayResult<Vec<u8>>) -> bool {
    match answer {
        Err(errno) => reply.send_error(errno),
        Ok(value) if size == 0 => reply.send_xattr_len(value.len() as u32),
        Ok(value) if value.len() > size as usize => reply.send_error(libc::ERANGE),
        Ok(value) => reply.send_data(&value),
    }
}

impl Handler for OverlayFileSystem {
    fn handle_request(self: &Arc<Self>, request: Request<'_>, reply: Reply<'_>) {
        let node = request.header.node;
        let owner = (request.header.uid, request.header.gid);
        let names = &self.names;
        let entry = |reply: Reply<'_>, attr: OverlayResult<tatami_fuse::FuseAttr>| match attr {
            Ok(attr) => reply.send_entry(&attr, &self.valid),
            Err(errno) => reply.send_error(errno),
        };
        let done = |reply: Reply<'_>, result: OverlayResult<()>| match result {
            Ok(()) => reply.send_success(),
            Err(errno) => reply.send_error(errno),
        };
        match request.op {
            FuseOp::Lookup { name } => entry(reply, names.lookup(node, name)),
            FuseOp::GetAttr { handle } => {
                let open = handle.and_then(|handle| self.get_file(handle).ok());
                match names.get_attr(node, open.as_deref()) {
                    Ok(attr) => reply.send_attr(&attr, self.valid.attr),
                    Err(errno) => reply.send_error(errno),
                }
            }
            FuseOp::SetAttr(set) => {
                let open = set.handle.and_then(|handle| self.get_file(handle).ok());
                match names.set_attr(node, &set, open.as_deref()) {
                    Ok(attr) => reply.send_attr(&attr, self.valid.attr),
                    Err(errno) => reply.send_error(errno),
                }
            }
            FuseOp::Readlink => {
                match names.path_of(node).and_then(|p| std::fs::read_link(p).map_err(io_errno)) {
                    Ok(target) => reply.send_data(target.as_os_str().as_bytes()),
                    Err(errno) => reply.send_error(errno),
                }
            }
            FuseOp::Symlink { name, target } => {
                entry(reply, names.symlink(node, name, target, owner))
            }
            FuseOp::Mknod { name, mode, umask, rdev } => {
                entry(reply, names.mknod(node, name, mode & !umask, rdev, owner))
            }
            FuseOp::Mkdir { name, mode, umask } => {
                entry(reply, names.mkdir(node, name, mode & !umask, owner))
            }
            FuseOp::Unlink { name } => done(reply, names.unlink(node, name)),
            FuseOp::Rmdir { name } => done(reply, names.rmdir(node, name)),
            FuseOp::Rename { name, new_parent, new_name, flags } => {
                done(reply, names.rename((node, name), (new_parent, new_name), flags))
            }
            FuseOp::Link { ino, name } => entry(reply, names.link(ino, node, name)),
            FuseOp::Create { name, flags, mode, umask } => {
                let created = names.create(node, name, (mode & !umask, flags), owner);
                let opened = created.map(|(attr, file)| (attr, self.insert_file(file)));
                match opened {
                    Ok((attr, opened)) => reply.send_created(&attr, &self.valid, &opened),
                    Err(errno) => reply.send_error(errno),
                }
            }
            FuseOp::Open { flags, .. } => {
                match names.path_of(node).and_then(|path| self.open_file(&path, flags)) {
                    Ok(opened) => reply.send_open(&opened),
                    Err(errno) => reply.send_error(errno),
                }
            }
            FuseOp::Read { handle, offset, size, .. } => match self.get_file(handle) {
                Ok(file) => reply.send_filled(size as usize, |bytes| file.read(offset, bytes)),
                Err(errno) => reply.send_error(errno),
            },
            FuseOp::Write { handle, offset, data, .. } => {
                match self.get_file(handle).and_then(|file| file.write(offset, data)) {
                    Ok(()) => reply.send_written(data.len() as u32),
                    Err(errno) => reply.send_error(errno),
                }
            }
            FuseOp::Fsync { handle, .. } => {
                done(reply, self.get_file(handle).and_then(|f| f.sync_file()))
            }
            FuseOp::Release { handle, .. } => {
                let file = self.get_file(handle);
                self.handles.write().remove(&handle);
                done(reply, file.and_then(|file| file.close_file()))
            }
            FuseOp::Flush { handle, .. } => {
                done(reply, self.get_file(handle).and_then(|file| file.publish_pending()))
            }
            FuseOp::Fallocate { handle, offset, len, mode } => {
                done(reply, self.get_file(handle).and_then(|f| f.allocate_range(offset, len, mode)))
            }
            FuseOp::Statfs => match self.statfs() {
                Ok(found) => reply.send_statfs(&found),
                Err(errno) => reply.send_error(errno),
            },
            FuseOp::OpenDir { .. } => match self.open_dir(node) {
                Ok(opened) => reply.send_open(&opened),
                Err(errno) => reply.send_error(errno),
            },
            FuseOp::ReadDir { handle, offset, size, .. } => {
                let listed = self.get_listing(handle);
                reply.send_directory(size as usize, |out| {
                    let listed = listed?;
                    let from = usize::try_from(offset).unwrap_or(usize::MAX).min(listed.len());
                    for (i, one) in listed.iter().enumerate().skip(from) {
                        if !out.push(one.ino, i as u64 + 1, one.mode, &one.name) {
                            break;
                        }
                    }
                    Ok(())
                })
            }
            FuseOp::ReleaseDir { handle } => {
                self.handles.write().remove(&handle);
                reply.send_success()
            }
            FuseOp::FsyncDir { .. } => reply.send_success(),
            FuseOp::GetXattr { name, size } => reply_sized(reply, size, self.get_xattr(node, name)),
            FuseOp::ListXattr { size } => reply_sized(reply, size, self.list_xattrs(node)),
            FuseOp::Forget { .. } | FuseOp::BatchForget(_) | FuseOp::Destroy => {
                reply.send_nothing();
                false
            }
            _ => reply.send_error(libc::ENOSYS),
        };
    }
}
