//! Directories that a program reads with readdir(3).

use crate::session::{cred, session};
use crate::table::ProgramFile;
use std::os::fd::RawFd;
use std::sync::Arc;
use tatami_wire::meta::DirEntry;
use tatami_wire::{Errno, Ino, InodeKind, READDIR_MAX};

/// Marks a stream of this library. A stream of the C library has sizes in this place.
const MARK: [u64; 3] = [0x7461_7461_6d69_2d64, 0x6972_2d73_7472_6561, 0x6d2d_7631_9e37_79b9];
/// Positions of `.` and `..`; the cookies of the volume are larger numbers.
const DOT: u64 = 1;
const DOT_DOT: u64 = 2;

/// A directory that is being read. It begins as the C library's own one does: with the descriptor.
#[repr(C)]
pub(crate) struct DirStream {
    pub(crate) fd: RawFd,
    _room: i32,
    mark: [u64; 3],
    reader: DirReader,
    entry: libc::dirent,
}

/// The position in a directory, and the entries that were read ahead.
pub(crate) struct DirReader {
    dir: Ino,
    /// 0 at the start, the position of `.` or `..`, or the cookie of the last entry.
    after: u64,
    parent: Ino,
    ahead: Vec<DirEntry>,
    next: usize,
    is_end: bool,
}

/// An entry for the program.
pub(crate) struct ListedEntry<'a> {
    pub(crate) ino: Ino,
    pub(crate) kind: InodeKind,
    pub(crate) cookie: u64,
    pub(crate) name: &'a [u8],
}

impl DirReader {
    pub(crate) fn new(dir: Ino) -> DirReader {
        DirReader { dir, after: 0, parent: dir, ahead: Vec::new(), next: 0, is_end: false }
    }

    /// Goes on after a position.
    pub(crate) fn continue_after(&mut self, after: u64) {
        (self.after, self.is_end, self.next) = (after, false, 0);
        self.ahead.clear();
    }

    pub(crate) fn position(&self) -> u64 {
        self.after
    }

    fn fill(&mut self) -> Result<(), Errno> {
        let session = session()?;
        let after = if self.after <= DOT_DOT { 0 } else { self.after };
        let listing = session.client.read_dir(&cred(), self.dir, after, READDIR_MAX, false)?;
        self.is_end = listing.end;
        self.parent = listing.parent;
        (self.ahead, self.next) = (listing.entries, 0);
        Ok(())
    }

    /// Returns the next entry.
    ///
    /// # Errors
    /// Those of the shard.
    pub(crate) fn next_entry(&mut self) -> Result<Option<ListedEntry<'_>>, Errno> {
        if self.next >= self.ahead.len() && !self.is_end {
            self.fill()?;
        }
        let (dir, parent) = (self.dir, self.parent);
        if self.after < DOT_DOT {
            let (cookie, ino, name) = match self.after {
                0 => (DOT, dir, &b"."[..]),
                _ => (DOT_DOT, parent, &b".."[..]),
            };
            self.after = cookie;
            return Ok(Some(ListedEntry { ino, kind: InodeKind::Dir, cookie, name }));
        }
        let Some(entry) = self.ahead.get(self.next) else { return Ok(None) };
        self.next += 1;
        self.after = entry.cookie;
        let (ino, kind, cookie, name) = (entry.ino, entry.kind, entry.cookie, &entry.name[..]);
        Ok(Some(ListedEntry { ino, kind, cookie, name }))
    }
}

/// Returns the type of an entry in readdir(3).
pub(crate) fn entry_type(kind: InodeKind) -> u8 {
    match kind {
        InodeKind::File => libc::DT_REG,
        InodeKind::Dir => libc::DT_DIR,
        InodeKind::Symlink => libc::DT_LNK,
        InodeKind::Fifo => libc::DT_FIFO,
        InodeKind::Socket => libc::DT_SOCK,
        InodeKind::CharDev => libc::DT_CHR,
        InodeKind::BlockDev => libc::DT_BLK,
    }
}

impl DirStream {
    /// Makes a stream of an open directory, which owns the descriptor.
    pub(crate) fn open(fd: RawFd, file: &Arc<ProgramFile>) -> *mut DirStream {
        // SAFETY: all fields are numbers, for which zero is a value.
        let entry: libc::dirent = unsafe { std::mem::zeroed() };
        let reader = DirReader::new(file.ino);
        Box::into_raw(Box::new(DirStream { fd, _room: 0, mark: MARK, reader, entry }))
    }

    /// Returns the stream behind the program's pointer, if it is one of this library.
    pub(crate) fn find<'a>(stream: *mut libc::DIR) -> Option<&'a mut DirStream> {
        if stream.is_null() {
            return None;
        }
        let stream = stream.cast::<DirStream>();
        // SAFETY: a stream of the C library is longer than the part that is read here; one of this
        // library lives until closedir(3), and the program uses it in one thread at a time.
        unsafe { ((*stream).mark == MARK).then(|| &mut *stream) }
    }

    /// Frees the stream; returns its descriptor.
    pub(crate) fn close(&mut self) -> RawFd {
        let fd = self.fd;
        self.mark = [0; 3];
        // SAFETY: it was made by `open`, and the program does not use it after closedir(3).
        drop(unsafe { Box::from_raw(std::ptr::from_mut(self)) });
        fd
    }

    pub(crate) fn reader(&mut self) -> &mut DirReader {
        &mut self.reader
    }

    /// Returns the next entry in memory of the stream; a null pointer at the end.
    ///
    /// # Errors
    /// Those of the shard.
    pub(crate) fn read(&mut self) -> Result<*mut libc::dirent, Errno> {
        let Some(found) = self.reader.next_entry()? else { return Ok(std::ptr::null_mut()) };
        let entry = &mut self.entry;
        entry.d_ino = found.ino.0;
        entry.d_off = found.cookie as i64;
        entry.d_type = entry_type(found.kind);
        let len = found.name.len().min(entry.d_name.len() - 1);
        for (place, byte) in entry.d_name.iter_mut().zip(&found.name[..len]) {
            *place = *byte as _;
        }
        entry.d_name[len] = 0;
        let head = std::mem::offset_of!(libc::dirent, d_name);
        entry.d_reclen = (head + len + 1).next_multiple_of(8) as u16;
        Ok(std::ptr::from_mut(entry))
    }
}
