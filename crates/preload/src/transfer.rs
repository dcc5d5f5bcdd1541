//! Reads and writes through placeholders. The position is that of the placeholder, in the kernel,
//! so that processes which share a descriptor share the position.

use crate::closes;
use crate::files::{data_of, make_native};
use crate::inside::Outcome;
use crate::raw;
use crate::session::{Session, session};
use crate::table::{DescriptorKind, ProgramFile, file_of, kind_of};
use std::ffi::c_int;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use tatami_client::DataFile;
use tatami_wire::frame::PAYLOAD_MAX;
use tatami_wire::object::SeekTarget;
use tatami_wire::{Cred, Errno, InodeKind, SetAttr};

/// A placeholder that stays one, for a call on its bytes.
pub(crate) struct VirtualFile {
    pub(crate) fd: RawFd,
    pub(crate) session: Arc<Session>,
    pub(crate) file: Arc<ProgramFile>,
}

/// Returns the open file of a placeholder. `None` for all other descriptors, and for one that is
/// native from now on: the kernel answers the call.
///
/// # Errors
/// `EISDIR` for a directory, `EBADF` for a descriptor without access to the bytes.
pub(crate) fn virtual_file(fd: RawFd) -> Result<Option<VirtualFile>, Errno> {
    if kind_of(fd) != DescriptorKind::Placeholder {
        return Ok(None);
    }
    let Some(file) = file_of(fd) else { return Ok(None) };
    if file.is_path {
        return Err(Errno::EBADF);
    }
    if file.kind == InodeKind::Dir {
        return Err(Errno::EISDIR);
    }
    let session = session()?;
    closes::send_old_closes(&session);
    make_native(&session, &file)?;
    if file.is_native.load(Relaxed) {
        return Ok(None);
    }
    Ok(Some(VirtualFile { fd, session, file }))
}

impl VirtualFile {
    fn data(&self) -> Result<Arc<DataFile>, Errno> {
        data_of(&self.session, &self.file)
    }

    fn position(&self) -> Result<u64, Errno> {
        let at = raw::call(libc::SYS_lseek, &[self.fd as usize, 0, libc::SEEK_CUR as usize]);
        u64::try_from(at).map_err(|_| Errno(raw::errno()))
    }

    fn set_position(&self, to: u64) -> Result<u64, Errno> {
        let to = i64::try_from(to).map_err(|_| Errno::EINVAL)?;
        let at =
            raw::call(libc::SYS_lseek, &[self.fd as usize, to as usize, libc::SEEK_SET as usize]);
        u64::try_from(at).map_err(|_| Errno(raw::errno()))
    }

    fn appends(&self) -> bool {
        let flags = raw::call_int(libc::SYS_fcntl, &[self.fd as usize, libc::F_GETFL as usize]);
        flags & libc::O_APPEND != 0
    }

    fn check_read(&self) -> Result<(), Errno> {
        if self.file.access.read { Ok(()) } else { Err(Errno::EBADF) }
    }

    fn check_write(&self) -> Result<(), Errno> {
        if self.file.access.write { Ok(()) } else { Err(Errno::EBADF) }
    }

    /// Reads from an offset into the buffers, in their order.
    ///
    /// # Errors
    /// Those of pread(2).
    pub(crate) fn read_at(&self, buffers: &mut [&mut [u8]], offset: u64) -> Result<usize, Errno> {
        self.check_read()?;
        let data = self.data()?;
        let mut done = 0;
        for buffer in buffers {
            let got = match data.read_at(buffer, offset.saturating_add(done as u64)) {
                Ok(got) => got,
                Err(_) if done > 0 => break,
                Err(e) => return Err(e),
            };
            done += got;
            if got < buffer.len() {
                break;
            }
        }
        Ok(done)
    }

    /// Reads from the position, and moves it.
    ///
    /// # Errors
    /// Those of read(2).
    pub(crate) fn read(&self, buffers: &mut [&mut [u8]]) -> Result<usize, Errno> {
        let _position = self.file.position.lock();
        let at = self.position()?;
        let got = self.read_at(buffers, at)?;
        self.set_position(at + got as u64)?;
        Ok(got)
    }

    /// Writes to an offset; with `O_APPEND`, to the end, as Linux does.
    ///
    /// # Errors
    /// Those of pwrite(2).
    pub(crate) fn write_at(&self, buffers: &[&[u8]], offset: u64) -> Result<usize, Errno> {
        self.check_write()?;
        let data = self.data()?;
        self.clear_suid()?;
        let appends = self.appends();
        let mut done = 0;
        for buffer in buffers {
            for part in buffer.chunks(PAYLOAD_MAX) {
                let written = match appends {
                    true => data.append(part),
                    false => data.write_at(part, offset.saturating_add(done as u64)),
                };
                // Also after a failure, because a part may have been written.
                if !data.records_changes() {
                    self.file.wrote.store(true, Relaxed);
                }
                match written {
                    Ok(n) => done += n,
                    Err(_) if done > 0 => return Ok(done),
                    Err(e) => return Err(e),
                }
            }
        }
        Ok(done)
    }

    /// Writes to the position, and moves it.
    ///
    /// # Errors
    /// Those of write(2).
    pub(crate) fn write(&self, buffers: &[&[u8]]) -> Result<usize, Errno> {
        let _position = self.file.position.lock();
        let at = self.position()?;
        let n = self.write_at(buffers, at)?;
        let end = match self.appends() {
            true => self.data()?.stat()?.size,
            false => at + n as u64,
        };
        self.set_position(end)?;
        Ok(n)
    }

    /// Removes setuid and setgid from a file that is written.
    fn clear_suid(&self) -> Result<(), Errno> {
        let mut opened = self.file.opened.lock();
        let Some((attr, _)) = &mut *opened else { return Ok(()) };
        let sgid = if attr.mode & 0o010 != 0 { 0o2000 } else { 0 };
        let without = attr.mode & !(0o4000 | sgid);
        if without == attr.mode || crate::session::cred().is_root() {
            return Ok(());
        }
        let set = SetAttr { mode: Some(without), ..SetAttr::default() };
        self.session.client.setattr(&Cred::ROOT, self.file.ino, set)?;
        attr.mode = without;
        Ok(())
    }

    /// Moves the position.
    ///
    /// # Errors
    /// Those of lseek(2).
    pub(crate) fn move_position(&self, offset: i64, whence: c_int) -> Result<u64, Errno> {
        let _position = self.file.position.lock();
        let base = match whence {
            libc::SEEK_SET => 0,
            libc::SEEK_CUR => self.position()?,
            libc::SEEK_END => self.size()?,
            libc::SEEK_DATA | libc::SEEK_HOLE => {
                let from = u64::try_from(offset).map_err(|_| Errno::ENXIO)?;
                if from >= self.size()? {
                    return Err(Errno::ENXIO);
                }
                let what = match whence {
                    libc::SEEK_DATA => SeekTarget::Data,
                    _ => SeekTarget::Hole,
                };
                return self.set_position(self.data()?.seek(what, from)?);
            }
            _ => return Err(Errno::EINVAL),
        };
        self.set_position(base.checked_add_signed(offset).ok_or(Errno::EINVAL)?)
    }

    /// Returns the present size.
    ///
    /// # Errors
    /// Those of the object's node.
    pub(crate) fn size(&self) -> Result<u64, Errno> {
        let attr = crate::attributes::attr_of_file(&self.session, self.fd, &self.file)?;
        Ok(attr.size)
    }

    /// Returns a copy of a range of the file in anonymous memory, as a private mapping has it.
    ///
    /// # Errors
    /// Those of mmap(2).
    pub(crate) fn map_copy(
        &self,
        address: usize,
        len: usize,
        prot: c_int,
        flags: c_int,
        offset: i64,
    ) -> Result<usize, Errno> {
        let offset = u64::try_from(offset).map_err(|_| Errno::EINVAL)?;
        let kind = libc::MAP_SHARED | libc::MAP_PRIVATE | libc::MAP_SHARED_VALIDATE;
        let flags = flags & !kind | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let open = (libc::PROT_READ | libc::PROT_WRITE) as usize;
        let none = usize::MAX;
        let mapped = raw::call(libc::SYS_mmap, &[address, len, open, flags as usize, none, 0]);
        if mapped == -1 {
            return Err(Errno(raw::errno()));
        }
        let mapped = mapped as usize;
        let room = raw::program_buffer(mapped as *mut _, len);
        if let Err(e) = self.read_at(&mut [room], offset) {
            raw::call(libc::SYS_munmap, &[mapped, len]);
            return Err(e);
        }
        raw::call(libc::SYS_mprotect, &[mapped, len, prot as usize]);
        Ok(mapped)
    }
}

/// Runs `work` on a placeholder; all other descriptors pass.
///
/// # Errors
/// Those of `work`.
pub(crate) fn on_virtual<T>(
    fd: RawFd,
    work: impl FnOnce(&VirtualFile) -> Result<T, Errno>,
) -> Result<Outcome<T>, Errno> {
    match virtual_file(fd)? {
        Some(file) => work(&file).map(Outcome::Done),
        None => Ok(Outcome::Pass),
    }
}
