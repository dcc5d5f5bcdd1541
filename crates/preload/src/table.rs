//! The open files of the volume, by descriptor.
//!
//! Each is a real descriptor of the kernel, so that it can be duplicated, inherited and polled.
//! There are two kinds. A *native* descriptor is the object's own file on this node: the kernel
//! reads and writes it. A *placeholder* is an empty, sealed memfd whose position is the file's
//! position. Its name states the inode, so that a program that inherits it recognizes it.

use crate::session::generation;
use parking_lot::{Mutex, RwLock};
use std::collections::{HashMap, HashSet};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicUsize, Ordering::Relaxed};
use tatami_client::DataFile;
use tatami_wire::{Access, Attr, Cap, Errno, Ino, InodeKind, Timestamp};

/// Most descriptor numbers.
pub(crate) const NUMBERS: usize = 1 << 16;

/// What a descriptor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DescriptorKind {
    /// None of the volume.
    Foreign,
    /// The library answers all calls.
    Placeholder,
    /// The kernel reads and writes.
    Native,
}

static KINDS: [AtomicU8; NUMBERS] = [const { AtomicU8::new(0) }; NUMBERS];

/// Returns what a descriptor is, without a lock.
pub(crate) fn kind_of(fd: RawFd) -> DescriptorKind {
    let place = usize::try_from(fd).ok().and_then(|fd| KINDS.get(fd));
    match place.map_or(0, |kind| kind.load(Relaxed)) {
        1 => DescriptorKind::Placeholder,
        2 => DescriptorKind::Native,
        _ => DescriptorKind::Foreign,
    }
}

fn set_kind(fd: RawFd, kind: DescriptorKind) {
    if let Some(place) = usize::try_from(fd).ok().and_then(|fd| KINDS.get(fd)) {
        let number = match kind {
            DescriptorKind::Foreign => 0,
            DescriptorKind::Placeholder => 1,
            DescriptorKind::Native => 2,
        };
        place.store(number, Relaxed);
    }
}

/// Size and times of an object, as they were reported last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReportMark {
    pub(crate) size: u64,
    pub(crate) mtime: Timestamp,
    pub(crate) changed: Timestamp,
}

/// The data of an open file: the client that has it open, by its number, and the bytes.
type OpenData = Option<(u32, Arc<DataFile>)>;

/// An open file of the volume.
pub(crate) struct ProgramFile {
    pub(crate) ino: Ino,
    pub(crate) kind: InodeKind,
    pub(crate) access: Access,
    /// Opened with `O_PATH`.
    pub(crate) is_path: bool,
    /// The path in the volume when it was opened, and the number of the prefix.
    pub(crate) path: Vec<u8>,
    pub(crate) prefix: usize,
    /// The attributes at the open, and the permission for the bytes.
    pub(crate) opened: Mutex<Option<(Attr, Cap)>>,
    pub(crate) data: Mutex<OpenData>,
    /// All its descriptors are native.
    pub(crate) is_native: AtomicBool,
    /// No further attempt to make it native.
    pub(crate) stays_virtual: AtomicBool,
    /// Bytes were written through the library since the last report, and the shard has not
    /// recorded that itself.
    pub(crate) wrote: AtomicBool,
    /// The client, by its number, that the shard knows as a writer; 0 for none.
    pub(crate) writer: AtomicU32,
    pub(crate) mark: Mutex<Option<ReportMark>>,
    /// How many numbers of this process refer to it.
    numbers: AtomicUsize,
    /// Held while the position is read and moved.
    pub(crate) position: Mutex<()>,
    /// A lock was taken through it.
    pub(crate) is_locked: AtomicBool,
}

impl ProgramFile {
    pub(crate) fn new(ino: Ino, kind: InodeKind, access: Access) -> ProgramFile {
        ProgramFile {
            ino,
            kind,
            access,
            is_path: false,
            path: Vec::new(),
            prefix: 0,
            opened: Mutex::new(None),
            data: Mutex::new(None),
            is_native: AtomicBool::new(false),
            stays_virtual: AtomicBool::new(kind != InodeKind::File),
            wrote: AtomicBool::new(false),
            writer: AtomicU32::new(0),
            mark: Mutex::new(None),
            numbers: AtomicUsize::new(0),
            position: Mutex::new(()),
            is_locked: AtomicBool::new(false),
        }
    }

    /// Returns whether the present client is registered as a writer.
    pub(crate) fn is_registered(&self) -> bool {
        self.writer.load(Relaxed) == generation()
    }

    /// Returns whether the shard has recorded size and times of all changes by this process.
    pub(crate) fn is_recorded(&self) -> bool {
        self.data.lock().as_ref().is_some_and(|(_, data)| data.records_changes())
    }

    /// Returns the kind of its descriptors.
    pub(crate) fn descriptor_kind(&self) -> DescriptorKind {
        match self.is_native.load(Relaxed) {
            true => DescriptorKind::Native,
            false => DescriptorKind::Placeholder,
        }
    }
}

impl Drop for ProgramFile {
    fn drop(&mut self) {
        // The bytes of a client of the parent process must not be flushed here.
        if let Some((number, data)) = self.data.get_mut().take()
            && number != generation()
        {
            std::mem::forget(data);
        }
    }
}

/// The open files of an inode in this process.
#[derive(Default)]
struct InodeUses {
    files: Vec<Arc<ProgramFile>>,
    /// The shard keeps the inode, which has no name any more, for this process.
    is_kept: bool,
}

#[derive(Default)]
struct Tables {
    by_number: HashMap<RawFd, Arc<ProgramFile>>,
    by_inode: HashMap<Ino, InodeUses>,
    /// Numbers of placeholders.
    placeholders: HashSet<RawFd>,
}

static TABLES: RwLock<Option<Tables>> = RwLock::new(None);

fn with_tables<R>(work: impl FnOnce(&mut Tables) -> R) -> R {
    work(TABLES.write().get_or_insert_default())
}

/// Returns the open file of a descriptor.
pub(crate) fn file_of(fd: RawFd) -> Option<Arc<ProgramFile>> {
    if kind_of(fd) == DescriptorKind::Foreign {
        return None;
    }
    TABLES.read().as_ref()?.by_number.get(&fd).cloned()
}

/// Adds a number of an open file.
///
/// # Errors
/// `EMFILE` for a number that is too high.
pub(crate) fn add_number(fd: RawFd, file: &Arc<ProgramFile>) -> Result<(), Errno> {
    if usize::try_from(fd).map_or(true, |fd| fd >= NUMBERS) {
        return Err(Errno(libc::EMFILE));
    }
    with_tables(|tables| {
        if file.numbers.fetch_add(1, Relaxed) == 0 {
            tables.by_inode.entry(file.ino).or_default().files.push(file.clone());
        }
        tables.by_number.insert(fd, file.clone());
        if file.descriptor_kind() == DescriptorKind::Placeholder {
            tables.placeholders.insert(fd);
        }
    });
    set_kind(fd, file.descriptor_kind());
    Ok(())
}

/// The last number of an open file was removed.
pub(crate) struct LastNumber {
    /// No other open file of this process may change the bytes.
    pub(crate) is_last_writer: bool,
    /// The shard keeps the inode for this process, which has no other use of it.
    pub(crate) is_kept: bool,
}

/// Removes a number. Returns its open file, and `LastNumber` if it had no other number.
pub(crate) fn remove_number(fd: RawFd) -> Option<(Arc<ProgramFile>, Option<LastNumber>)> {
    if kind_of(fd) == DescriptorKind::Foreign {
        return None;
    }
    with_tables(|tables| {
        let file = tables.by_number.remove(&fd)?;
        tables.placeholders.remove(&fd);
        set_kind(fd, DescriptorKind::Foreign);
        if file.numbers.fetch_sub(1, Relaxed) > 1 {
            return Some((file, None));
        }
        let mut last = LastNumber { is_last_writer: true, is_kept: false };
        if let Some(uses) = tables.by_inode.get_mut(&file.ino) {
            uses.files.retain(|other| !Arc::ptr_eq(other, &file));
            last.is_last_writer = !uses.files.iter().any(|other| other.access.write);
            if uses.files.is_empty() {
                last.is_kept = uses.is_kept;
                tables.by_inode.remove(&file.ino);
            }
        }
        Some((file, Some(last)))
    })
}

/// Returns the numbers of an open file.
pub(crate) fn numbers_of(file: &Arc<ProgramFile>) -> Vec<RawFd> {
    let tables = TABLES.read();
    let numbers = tables.as_ref().into_iter().flat_map(|tables| &tables.by_number);
    numbers.filter(|(_, other)| Arc::ptr_eq(other, file)).map(|(fd, _)| *fd).collect()
}

/// Records that all descriptors of a file are native now.
pub(crate) fn mark_native(file: &Arc<ProgramFile>, numbers: &[RawFd]) {
    with_tables(|tables| {
        file.is_native.store(true, Relaxed);
        for fd in numbers {
            tables.placeholders.remove(fd);
            set_kind(*fd, DescriptorKind::Native);
        }
    });
}

/// Returns all open files with one number of each, lowest numbers first.
pub(crate) fn list_files() -> Vec<(RawFd, Arc<ProgramFile>)> {
    let tables = TABLES.read();
    let Some(tables) = &*tables else { return Vec::new() };
    let mut all: Vec<_> = tables.by_number.iter().map(|(fd, file)| (*fd, file.clone())).collect();
    all.sort_by_key(|(fd, _)| *fd);
    let mut found: Vec<(RawFd, Arc<ProgramFile>)> = Vec::new();
    for (fd, file) in all {
        if !found.iter().any(|(_, other)| Arc::ptr_eq(other, &file)) {
            found.push((fd, file));
        }
    }
    found
}

/// Returns the numbers of the volume's descriptors in a range, both ends included.
pub(crate) fn numbers_between(first: u32, last: u32) -> Vec<RawFd> {
    let tables = TABLES.read();
    let numbers = tables.as_ref().into_iter().flat_map(|tables| tables.by_number.keys());
    numbers.copied().filter(|fd| (first..=last).contains(&fd.unsigned_abs())).collect()
}

/// Returns whether any descriptor is a placeholder: then a removal must keep the inode.
pub(crate) fn has_placeholders() -> bool {
    TABLES.read().as_ref().is_some_and(|tables| !tables.placeholders.is_empty())
}

/// Records that the shard keeps an inode for this process. Returns false if it is not open here.
pub(crate) fn mark_kept(ino: Ino) -> bool {
    with_tables(|tables| match tables.by_inode.get_mut(&ino) {
        Some(uses) => {
            uses.is_kept = true;
            true
        }
        None => false,
    })
}

/// Returns an open file of the inode that this process may have written, and one of its numbers.
pub(crate) fn writer_of(ino: Ino) -> Option<(RawFd, Arc<ProgramFile>)> {
    let file = {
        let tables = TABLES.read();
        let uses = tables.as_ref()?.by_inode.get(&ino)?;
        uses.files.iter().find(|file| file.access.write)?.clone()
    };
    let number = numbers_of(&file).into_iter().next()?;
    Some((number, file))
}

/// Keeps the lock of the tables during a fork.
pub(crate) fn hold_for_fork() -> impl Sized {
    TABLES.write()
}
