//! The overlay: shows a directory of any file system, with its containers as ordinary files.
//!
//! Names and all files that are not containers pass through. A container is shown as one file.
//! [`tatami_tiled`] reads and writes it as a program of one process would, while jobs may also
//! write it.

mod bytes;
mod names;

use crate::error::MountError;
use crate::place;
use crate::serving;
use bytes::Handle;
use names::{Names, errno};
use parking_lot::RwLock;
use std::collections::HashMap;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tatami_fuse::abi::fopen;
use tatami_fuse::{
    Channel, Handler, Op, Opened, Reply, Request, Session, StatFs, Threads, Validity,
};

/// Number of threads that stay alive when idle, and most threads.
const THREADS: Threads = Threads { base: 2, max: 16 };
/// Most bytes of one read or write request.
const MAX_WRITE: u32 = 1 << 20;
/// A mounted overlay. Dropping it unmounts it.
pub struct Overlay {
    session: Arc<Session>,
}

impl Overlay {
    /// Mounts the contents of `dir` on `mountpoint`. The mount answers when this returns.
    ///
    /// # Errors
    /// [`MountError`].
    pub fn start(dir: &Path, mountpoint: &Path) -> Result<Overlay, MountError> {
        let path = place::check(mountpoint)?;
        let failed = |source| MountError::Mountpoint { path: dir.to_path_buf(), source };
        let root = dir.canonicalize().map_err(failed)?;
        if path.starts_with(&root) || !root.is_dir() {
            let why = "an overlay cannot show a file, nor be mounted below what it shows";
            return Err(failed(std::io::Error::new(std::io::ErrorKind::InvalidInput, why)));
        }
        let all = rustix::process::geteuid().is_root();
        let settings = place::settings(format!("tatami-overlay:{}", root.display()), false, all);
        let channel = Channel::mount(&path, &settings)?;
        let agreed = channel.initialize(&crate::mount::wanted(MAX_WRITE, 0, false))?;
        let shown = Arc::new(Shown {
            names: Names::new(root),
            handles: RwLock::new(HashMap::new()),
            next: AtomicU64::new(1),
            valid: Validity::default(),
        });
        let session = Session::start(channel, &agreed, shown, THREADS)
            .map_err(|source| MountError::Serve { path, source })?;
        Ok(Overlay { session: Arc::new(session) })
    }

    /// Serves until an unmount or SIGTERM or SIGINT.
    ///
    /// # Errors
    /// When the system is short of descriptors or threads.
    pub fn run(self) -> std::io::Result<()> {
        serving::until_end(&self.session).map(drop)
    }
}

/// An entry of a directory as of the open of the directory.
struct Listed {
    name: Vec<u8>,
    ino: u64,
    mode: u32,
}

enum Opening {
    File(Arc<Handle>),
    Dir(Arc<Vec<Listed>>),
}

struct Shown {
    names: Names,
    handles: RwLock<HashMap<u64, Opening>>,
    next: AtomicU64,
    valid: Validity,
}

type Answer<T> = Result<T, i32>;

impl Shown {
    fn keep(&self, opening: Opening) -> u64 {
        let handle = self.next.fetch_add(1, Ordering::Relaxed);
        self.handles.write().insert(handle, opening);
        handle
    }

    fn file(&self, handle: u64) -> Answer<Arc<Handle>> {
        match self.handles.read().get(&handle) {
            Some(Opening::File(file)) => Ok(file.clone()),
            _ => Err(libc::EBADF),
        }
    }

    fn open(&self, path: &Path, flags: i32) -> Answer<Opened> {
        let file = Handle::open(path, flags)?;
        // The kernel must not cache a container, because jobs write it without the kernel's
        // knowledge.
        let flags = if file.is_container() { fopen::DIRECT_IO } else { 0 };
        let handle = self.keep(Opening::File(Arc::new(file)));
        Ok(Opened { handle, flags, backing: 0 })
    }

    fn list(&self, node: u64) -> Answer<Opened> {
        let dir = self.names.path(node)?;
        if tatami_tiled::is_container(&dir) {
            return Err(libc::ENOTDIR);
        }
        let mut listed = vec![
            Listed { name: b".".to_vec(), ino: node, mode: libc::S_IFDIR },
            Listed { name: b"..".to_vec(), ino: node, mode: libc::S_IFDIR },
        ];
        for entry in std::fs::read_dir(&dir).map_err(errno)? {
            let entry = entry.map_err(errno)?;
            let name = entry.file_name();
            let Ok(attr) = self.names.lookup(node, name.as_bytes()) else { continue };
            listed.push(Listed { name: name.as_bytes().to_vec(), ino: attr.ino, mode: attr.mode });
        }
        let handle = self.keep(Opening::Dir(Arc::new(listed)));
        Ok(Opened { handle, flags: 0, backing: 0 })
    }

    fn listed(&self, handle: u64) -> Answer<Arc<Vec<Listed>>> {
        match self.handles.read().get(&handle) {
            Some(Opening::Dir(listed)) => Ok(listed.clone()),
            _ => Err(libc::EBADF),
        }
    }

    fn statfs(&self) -> Answer<StatFs> {
        let root = self.names.path(tatami_fuse::abi::ROOT_ID)?;
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

    fn xattr(&self, node: u64, name: &[u8]) -> Answer<Vec<u8>> {
        let path = self.names.path(node)?;
        if name.starts_with(b"user.tatami.") {
            return Err(libc::ENODATA);
        }
        let name = CString::new(name).map_err(|_| libc::EINVAL)?;
        let mut value = vec![0; 65_536];
        let len = rustix::fs::lgetxattr(&path, &name, &mut value[..]);
        value.truncate(len.map_err(|e| e.raw_os_error())?);
        Ok(value)
    }

    fn xattrs(&self, node: u64) -> Answer<Vec<u8>> {
        let path = self.names.path(node)?;
        let mut names = vec![0; 65_536];
        let len = rustix::fs::llistxattr(&path, &mut names[..]).map_err(|e| e.raw_os_error())?;
        names.truncate(len);
        let kept = names.split_inclusive(|b| *b == 0).filter(|n| !n.starts_with(b"user.tatami."));
        Ok(kept.flatten().copied().collect())
    }
}

fn sized(reply: Reply<'_>, size: u32, answer: Answer<Vec<u8>>) -> bool {
    match answer {
        Err(errno) => reply.error(errno),
        Ok(value) if size == 0 => reply.xattr_len(value.len() as u32),
        Ok(value) if value.len() > size as usize => reply.error(libc::ERANGE),
        Ok(value) => reply.data(&value),
    }
}

impl Handler for Shown {
    fn handle(self: &Arc<Self>, request: Request<'_>, reply: Reply<'_>) {
        let node = request.header.node;
        let owner = (request.header.uid, request.header.gid);
        let names = &self.names;
        let entry = |reply: Reply<'_>, attr: Answer<tatami_fuse::Attr>| match attr {
            Ok(attr) => reply.entry(&attr, &self.valid),
            Err(errno) => reply.error(errno),
        };
        let done = |reply: Reply<'_>, result: Answer<()>| match result {
            Ok(()) => reply.done(),
            Err(errno) => reply.error(errno),
        };
        match request.op {
            Op::Lookup { name } => entry(reply, names.lookup(node, name)),
            Op::GetAttr { handle } => {
                let open = handle.and_then(|handle| self.file(handle).ok());
                match names.attr(node, open.as_deref()) {
                    Ok(attr) => reply.attr(&attr, self.valid.attr),
                    Err(errno) => reply.error(errno),
                }
            }
            Op::SetAttr(set) => {
                let open = set.handle.and_then(|handle| self.file(handle).ok());
                match names.set_attr(node, &set, open.as_deref()) {
                    Ok(attr) => reply.attr(&attr, self.valid.attr),
                    Err(errno) => reply.error(errno),
                }
            }
            Op::Readlink => {
                match names.path(node).and_then(|p| std::fs::read_link(p).map_err(errno)) {
                    Ok(target) => reply.data(target.as_os_str().as_bytes()),
                    Err(errno) => reply.error(errno),
                }
            }
            Op::Symlink { name, target } => entry(reply, names.symlink(node, name, target, owner)),
            Op::Mknod { name, mode, umask, rdev } => {
                entry(reply, names.mknod(node, name, mode & !umask, rdev, owner))
            }
            Op::Mkdir { name, mode, umask } => {
                entry(reply, names.mkdir(node, name, mode & !umask, owner))
            }
            Op::Unlink { name } => done(reply, names.unlink(node, name)),
            Op::Rmdir { name } => done(reply, names.rmdir(node, name)),
            Op::Rename { name, new_parent, new_name, flags } => {
                done(reply, names.rename((node, name), (new_parent, new_name), flags))
            }
            Op::Link { ino, name } => entry(reply, names.link(ino, node, name)),
            Op::Create { name, flags, mode, umask } => {
                let made =
                    names.mknod(node, name, libc::S_IFREG | mode & 0o7777 & !umask, 0, owner);
                let made = match made {
                    Err(libc::EEXIST) if flags & libc::O_EXCL == 0 => names.lookup(node, name),
                    other => other,
                };
                let opened = made.and_then(|attr| {
                    let opened = self.open(&names.path(attr.ino)?, flags & !libc::O_TRUNC)?;
                    Ok((attr, opened))
                });
                match opened {
                    Ok((attr, opened)) => reply.created(&attr, &self.valid, &opened),
                    Err(errno) => reply.error(errno),
                }
            }
            Op::Open { flags, .. } => {
                match names.path(node).and_then(|path| self.open(&path, flags)) {
                    Ok(opened) => reply.opened(&opened),
                    Err(errno) => reply.error(errno),
                }
            }
            Op::Read { handle, offset, size, .. } => match self.file(handle) {
                Ok(file) => reply.fill(size as usize, |bytes| file.read(offset, bytes)),
                Err(errno) => reply.error(errno),
            },
            Op::Write { handle, offset, data, .. } => {
                match self.file(handle).and_then(|file| file.write(offset, data)) {
                    Ok(()) => reply.written(data.len() as u32),
                    Err(errno) => reply.error(errno),
                }
            }
            Op::Fsync { handle, .. } => done(reply, self.file(handle).and_then(|f| f.sync())),
            Op::Release { handle, .. } => {
                let file = self.file(handle);
                self.handles.write().remove(&handle);
                done(reply, file.and_then(|file| file.close()))
            }
            Op::Flush { handle, .. } => done(reply, self.file(handle).and_then(|file| file.tell())),
            Op::Fallocate { handle, offset, len, mode } => {
                done(reply, self.file(handle).and_then(|f| f.allocate(offset, len, mode)))
            }
            Op::Statfs => match self.statfs() {
                Ok(found) => reply.statfs(&found),
                Err(errno) => reply.error(errno),
            },
            Op::OpenDir { .. } => match self.list(node) {
                Ok(opened) => reply.opened(&opened),
                Err(errno) => reply.error(errno),
            },
            Op::ReadDir { handle, offset, size, .. } => {
                let listed = self.listed(handle);
                reply.directory(size as usize, |out| {
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
            Op::ReleaseDir { handle } => {
                self.handles.write().remove(&handle);
                reply.done()
            }
            Op::FsyncDir { .. } => reply.done(),
            Op::GetXattr { name, size } => sized(reply, size, self.xattr(node, name)),
            Op::ListXattr { size } => sized(reply, size, self.xattrs(node)),
            Op::Forget { .. } | Op::BatchForget | Op::Destroy => {
                reply.none();
                false
            }
            _ => reply.error(libc::ENOSYS),
        };
    }
}
