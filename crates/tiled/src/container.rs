//! A container: the directory, its files, and the rules by which they change.
//!
//! A process that replaces the index or recovers a dead open holds the file `lock` (flock). Where a
//! flock may be known to one machine alone, it holds the file mutex `lock.turn`, too. Everything
//! else needs no lock: pieces and journals have one writer each, and the index is replaced by
//! rename.

use crate::error::{ErrorContext, Result, TiledError};
use crate::file_mutex::{FileMutex, FileMutexGuard};
use crate::journal::JournalError;
use crate::machine;
use crate::marker::{self, BadMarker, Found, Marker, Member, PieceName};
use crate::published::PublishedIndex;
use crate::rank_table::{RankTable, SharedClock};
use crate::sharing::{self, SharingScope};
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Attempts to read the index while other processes replace it.
const READS: usize = 100;

/// Advice about a damaged index that has a synced predecessor.
const RESTORE_INDEX: &str = "restore the file from a copy, or go back to what was synced of it: \
    tatami recover --accept-loss";
/// Advice about a damaged index that has none.
const NO_INDEX: &str =
    "without it nothing tells where the bytes of its pieces belong: restore the file from a copy";

/// An open container. Its files are found through the directory's descriptor, so another process
/// may rename the directory meanwhile.
#[derive(Debug)]
pub struct Container {
    dir: Arc<File>,
    path: PathBuf,
    id: u64,
    mode: Mode,
    clock: SharedClock,
    scope: SharingScope,
}

/// Identifies one version of the index file, to notice its replacement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IndexVersion {
    inode: u64,
    changed: (i64, u64),
}

/// Held while the index is replaced.
#[allow(dead_code)] // held, not looked at
pub struct IndexGuard(Option<FileMutexGuard>, File);

fn derive_modes(mode: u32) -> (Mode, Mode) {
    let files = mode & 0o666;
    // A user that may read or write a file must be able to enter its directory.
    let dirs = files | (files >> 2 & 0o111) | (files >> 1 & 0o111);
    (Mode::from_raw_mode(files), Mode::from_raw_mode(dirs))
}

fn hidden_sibling(path: &Path, what: &str, number: u64) -> PathBuf {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(".tatami-{what}.{number:016x}"));
    path.with_file_name(name)
}

/// Makes a container at `path`. An ordinary file there becomes its base without a copy.
///
/// # Errors
/// `EEXIST` where something else is there or appears meanwhile; those of mkdir(2), rename(2),
/// link(2).
pub fn create_container(path: &Path, mode: u32) -> Result<()> {
    let id = machine::draw_number().context("create", path)?;
    let (files, dirs) = derive_modes(mode);
    // The directory is filled under a hidden name and renamed at the end, so that no process sees
    // an incomplete container.
    let new = hidden_sibling(path, "new", id);
    let old = path.symlink_metadata().ok().filter(|meta| meta.is_file());
    rustix::fs::mkdir(&new, dirs).context("create", path)?;
    let made = fill_directory(&new, path, files, Marker { id }, old.is_some());
    let placed = made.and_then(|()| install_directory(&new, path, old.is_some()));
    // After an exchange the hidden name is the program's ordinary file. Remove it only while it is
    // the new directory.
    if placed.is_err() && new.exists() && new.is_dir() {
        let _ = remove_known(&new);
        let _ = std::fs::remove_dir(&new);
    }
    placed
}

fn fill_directory(dir: &Path, of: &Path, mode: Mode, marker: Marker, has_base: bool) -> Result<()> {
    let make = |name: &str, mode: Mode| -> Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let path = dir.join(name);
        rustix::fs::open(&path, flags, mode).map(File::from).context("create", &path)
    };
    let readable = mode & Mode::from_raw_mode(0o444);
    make(marker::MARKER, readable | Mode::RUSR | Mode::WUSR)?
        .write_all(marker.to_text().as_bytes())
        .context("create", of)?;
    SharedClock::create(&make(marker::SHARED, mode)?).context("create", of)?;
    // For programs that list directories, on file systems with extended attributes.
    let _ = rustix::fs::setxattr(dir, marker::XATTR, b"1", rustix::fs::XattrFlags::empty());
    if has_base {
        match rustix::fs::link(of, dir.join(marker::BASE)) {
            // No hard links here: the file itself is moved to the base at the end.
            Err(Errno::PERM | Errno::NOSYS | Errno::OPNOTSUPP) => {}
            // Other failures, such as a full disk, stop the conversion while the ordinary file is
            // still in its place.
            other => other.context("convert", of)?,
        }
    }
    Ok(())
}

/// Renames the new directory to its final path.
fn install_directory(new: &Path, path: &Path, exchange: bool) -> Result<()> {
    let cwd = rustix::fs::CWD;
    if exchange {
        match rustix::fs::renameat_with(cwd, new, cwd, path, RenameFlags::EXCHANGE) {
            Err(Errno::INVAL | Errno::NOSYS) => return install_in_steps(new, path),
            other => other.context("convert", path)?,
        }
        // The new name now has the ordinary file, which is also the base.
        let base = path.join(marker::BASE);
        return match base.exists() {
            true => std::fs::remove_file(new).context("convert", path),
            false => rustix::fs::rename(new, &base).context("convert", path),
        };
    }
    match rustix::fs::renameat_with(cwd, new, cwd, path, RenameFlags::NOREPLACE) {
        // Not every file system supports NOREPLACE; then rename(2) replaces an empty directory of
        // that name.
        Err(Errno::INVAL | Errno::NOSYS) => match rustix::fs::rename(new, path) {
            Err(Errno::NOTEMPTY | Errno::NOTDIR) => Err(Errno::EXIST).context("create", path),
            other => other.context("create", path),
        },
        other => other.context("create", path),
    }
}

/// Installs the directory where a file system cannot exchange two names. For a moment nothing has
/// the path; a file that appears there meanwhile is not replaced.
fn install_in_steps(new: &Path, path: &Path) -> Result<()> {
    let base = new.join(marker::BASE);
    let linked = base.exists();
    let aside = hidden_sibling(path, "gone", machine::draw_number().context("convert", path)?);
    let away = if linked { &aside } else { &base };
    // The old file leaves the path first, so that the second rename cannot replace it.
    rustix::fs::rename(path, away).context("convert", path)?;
    if let Err(errno) = rustix::fs::rename(new, path) {
        // Put the old file back, so that a failure leaves the path as it was.
        let _ = rustix::fs::rename(away, path);
        return Err(errno).context("convert", path);
    }
    if linked {
        std::fs::remove_file(&aside).context("convert", path)?;
    }
    Ok(())
}

/// Removes all files of the directory that belong to a container.
fn remove_known(dir: &Path) -> Result<()> {
    for entry in std::fs::read_dir(dir).context("list", dir)? {
        let entry = entry.context("list", dir)?;
        let name = entry.file_name();
        if !matches!(
            marker::classify_name(&name.to_string_lossy()),
            Member::Unknown | Member::Leftover
        ) {
            std::fs::remove_file(entry.path()).context("remove", &entry.path())?;
        }
    }
    Ok(())
}

/// Removes a container. Its name disappears at once.
///
/// # Errors
/// `ENOTEMPTY` where the directory has files that are not the container's; those of rename(2).
pub fn remove_container(path: &Path) -> Result<()> {
    for entry in std::fs::read_dir(path).context("list", path)? {
        let name = entry.context("list", path)?.file_name();
        if marker::classify_name(&name.to_string_lossy()) == Member::Unknown {
            let why = format!("it contains {}, which is no part of it", name.to_string_lossy());
            return Err(TiledError::with_detail("remove", path, Errno::NOTEMPTY, why));
        }
    }
    // The rename comes first: the path is free at once, and a crash leaves only a hidden directory.
    let number = machine::draw_number().context("remove", path)?;
    let gone = hidden_sibling(path, "gone", number);
    rustix::fs::rename(path, &gone).context("remove", path)?;
    remove_known(&gone)?;
    std::fs::remove_dir(&gone).context("remove", &gone)
}

/// Puts the ordinary file `new` in the place of the container at `path`, and removes the container.
///
/// # Errors
/// As for rename(2); then the container stays in its place.
pub fn replace_container(path: &Path, new: &Path) -> Result<()> {
    let cwd = rustix::fs::CWD;
    let old = match rustix::fs::renameat_with(cwd, new, cwd, path, RenameFlags::EXCHANGE) {
        Ok(()) => new.to_path_buf(),
        Err(Errno::INVAL | Errno::NOSYS) => {
            let old =
                hidden_sibling(path, "gone", machine::draw_number().context("replace", path)?);
            rustix::fs::rename(path, &old).context("replace", path)?;
            if let Err(errno) = rustix::fs::rename(new, path) {
                let _ = rustix::fs::rename(&old, path);
                return Err(errno).context("replace", path);
            }
            old
        }
        Err(errno) => return Err(errno).context("replace", path),
    };
    if let Some(parent) = path.parent() {
        // This brings the names to the disk, too. An error here appears again at their next sync.
        let _ = File::open(parent).and_then(|dir| dir.sync_all());
    }
    // Remove the old files only after this sync. Otherwise a power cut could lose the old file and
    // the new name.
    remove_known(&old)?;
    std::fs::remove_dir(&old).context("remove", &old)
}

/// Writes a new marker for the container at `path`, if its marker is damaged or missing. A marker
/// contains only the container's number, and only ranks that are opening the file compare numbers.
/// So a new number is valid as long as no program has the file open.
///
/// # Errors
/// As for [`crate::restore_marker`].
pub fn restore_marker(path: &Path) -> Result<bool> {
    let found = marker::look(path)?;
    if matches!(found, Found::Whole(_)) || !path.is_dir() {
        return Ok(false);
    }
    if let Found::Bad(bad @ BadMarker::Version) = found {
        return Err(TiledError::from_damage(&path.join(marker::MARKER), bad.to_string()));
    }
    let id = machine::draw_number().context("write", path)?;
    let container = Container::open_as(path, id)?;
    // An ordinary directory stays one, even with a file of the marker's name in it.
    if !container.has_remains()? {
        return match found {
            Found::Bad(bad) => {
                let why = format!(
                    "{bad}; nothing else in the directory shows that it is a container: remove this file if it is none"
                );
                Err(TiledError::from_damage(&path.join(marker::MARKER), why))
            }
            _ => Ok(false),
        };
    }
    // The lock keeps recoveries of dead opens away while the opens are checked and the marker is
    // written.
    let _guard = container.lock_index()?;
    container.refuse_writers()?;
    container.write_marker(Marker { id })?;
    Ok(true)
}

impl Container {
    /// Opens the container at `path`.
    ///
    /// # Errors
    /// `EISDIR` or `ENOTDIR` for a path that is no container, `EIO` for a damaged or missing
    /// marker; as for open(2).
    pub fn open(path: &Path) -> Result<Container> {
        if let Some(Marker { id }) = marker::read_marker(path)? {
            return Container::open_as(path, id);
        }
        let meta = std::fs::metadata(path).context("open", path)?;
        if !meta.is_dir() {
            return Err(TiledError::with_detail("open", path, Errno::NOTDIR, "it is no container"));
        }
        if Container::open_as(path, 0).and_then(|remains| remains.has_remains()).unwrap_or(false) {
            let why = format!(
                "the marker is missing, and what else a container has is there; {}",
                marker::RESTORE
            );
            return Err(TiledError::from_damage(&path.join(marker::MARKER), why));
        }
        Err(TiledError::with_detail("open", path, Errno::ISDIR, "it is no container"))
    }

    /// Opens the directory at `path` as the container with the number `id`, without its marker.
    fn open_as(path: &Path, id: u64) -> Result<Container> {
        let dir = Arc::new(File::open(path).context("open", path)?);
        let found = rustix::fs::fstat(&dir).context("open", path)?;
        let (mode, _) = derive_modes(found.st_mode & 0o777);
        let mut container = Container {
            scope: sharing::detect_scope(&dir),
            dir,
            path: path.to_path_buf(),
            id,
            mode,
            clock: SharedClock::new(None, false).context("open", path)?,
        };
        // The clock comes last, because it needs the directory and the scope: it is mapped only
        // where all processes share memory.
        container.clock = container.open_clock().context("open", path)?;
        Ok(container)
    }

    /// Reports whether the directory has something that only a container has, besides its marker:
    /// the attribute, an index, or files of an open.
    fn has_remains(&self) -> Result<bool> {
        let mut value = [0; 1];
        if rustix::fs::fgetxattr(&self.dir, marker::XATTR, &mut value).is_ok() {
            return Ok(true);
        }
        let is_of_open = |member: &Member| {
            matches!(member, Member::Piece(_) | Member::Journal(_) | Member::RankTable(_))
        };
        if self.list_members()?.iter().any(is_of_open) {
            return Ok(true);
        }
        let is_index = |name| matches!(self.read_index_file(name), Ok(Some(_)));
        Ok(is_index(marker::INDEX) || is_index(marker::INDEX_SYNCED))
    }

    /// Fails with `EBUSY` while a program has the file open for writing.
    fn refuse_writers(&self) -> Result<()> {
        for open in self.list_opens()? {
            let roll = match self.open_rank_table(open) {
                // The header is damaged, but the lock of the table still shows living writers.
                Err(error) if error.errno == Errno::IO => Some(self.open_damaged_rank_table(open)?),
                other => other?,
            };
            if let Some(roll) = roll
                && !roll.is_job_dead().context("lock", &self.path)?
            {
                let why = "a program has it open for writing";
                return Err(TiledError::with_detail("recover", &self.path, Errno::BUSY, why));
            }
        }
        Ok(())
    }

    /// Replaces the marker by rename. A crash leaves the old marker or the new one, and readers
    /// recognize both.
    fn write_marker(&self, marker: Marker) -> Result<()> {
        let path = self.path.join(marker::MARKER_NEW);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC;
        let mut file = self.open_file(marker::MARKER_NEW, flags).context("create", &path)?;
        let readable = self.mode & Mode::from_raw_mode(0o444);
        rustix::fs::fchmod(&file, readable | Mode::RUSR | Mode::WUSR).context("create", &path)?;
        file.write_all(marker.to_text().as_bytes()).context("write", &path)?;
        // Sync before the rename: a power cut must not leave an empty marker in the place of the
        // damaged one.
        file.sync_all().context("sync", &path)?;
        let dir = self.dir.as_fd();
        rustix::fs::renameat(dir, marker::MARKER_NEW, dir, marker::MARKER)
            .context("rename", &path)?;
        self.sync_directory()
    }

    fn open_clock(&self) -> std::result::Result<SharedClock, Errno> {
        let mapped = !self.scope.remote;
        match self.open_file(marker::SHARED, OFlags::RDWR) {
            Ok(file) => SharedClock::new(Some((file, true)), mapped),
            Err(Errno::ACCESS | Errno::ROFS | Errno::PERM) => {
                let file = self.open_file(marker::SHARED, OFlags::RDONLY).ok();
                SharedClock::new(file.map(|file| (file, false)), mapped)
            }
            Err(Errno::NOENT) => SharedClock::new(None, mapped),
            Err(errno) => Err(errno),
        }
    }

    /// Returns the path by which it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the permissions of its files.
    pub fn file_mode(&self) -> u32 {
        self.mode.as_raw_mode()
    }

    /// Returns an unused name beside the container.
    ///
    /// # Errors
    /// `EIO` where the system's generator fails.
    pub fn unused_sibling(&self) -> Result<PathBuf> {
        let number = machine::draw_number().context("create", &self.path)?;
        Ok(hidden_sibling(&self.path, "new", number))
    }

    /// Reports whether its path still names this container.
    pub fn is_in_place(&self) -> bool {
        let here = rustix::fs::fstat(&self.dir).map(|stat| (stat.st_dev, stat.st_ino));
        let there = rustix::fs::stat(&self.path).map(|stat| (stat.st_dev, stat.st_ino));
        here.is_ok() && here == there
    }

    /// Returns its number.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Returns the clock and the generation.
    pub fn clock(&self) -> &SharedClock {
        &self.clock
    }

    /// Opens one of its files; a new one gets the container's permissions.
    ///
    /// # Errors
    /// As for open(2).
    pub fn open_file(&self, name: &str, flags: OFlags) -> std::result::Result<File, Errno> {
        rustix::fs::openat(&self.dir, name, flags | OFlags::CLOEXEC, self.mode).map(File::from)
    }

    /// Removes one of its files. A file that is already gone is no error.
    ///
    /// # Errors
    /// As for unlink(2).
    pub fn remove_file(&self, name: &str) -> Result<()> {
        match rustix::fs::unlinkat(&self.dir, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno).context("remove", &self.path.join(name)),
        }
    }

    /// Classifies its files.
    ///
    /// # Errors
    /// As for getdents(2).
    pub fn list_members(&self) -> Result<Vec<Member>> {
        let list = rustix::fs::Dir::read_from(&self.dir).context("list", &self.path)?;
        let mut members = Vec::new();
        for entry in list {
            let entry = entry.context("list", &self.path)?;
            members.push(marker::classify_name(&entry.file_name().to_string_lossy()));
        }
        Ok(members)
    }

    /// Returns the numbers of the opens that have not ended.
    ///
    /// # Errors
    /// As for getdents(2).
    pub fn list_opens(&self) -> Result<Vec<u64>> {
        let open = |member| if let Member::RankTable(open) = member { Some(open) } else { None };
        Ok(self.list_members()?.into_iter().filter_map(open).collect())
    }

    /// Locks the index: waits until no other process replaces it.
    ///
    /// # Errors
    /// As for open(2) and flock(2).
    pub fn lock_index(&self) -> Result<IndexGuard> {
        let path = self.path.join(marker::LOCK);
        let file =
            self.open_file(marker::LOCK, OFlags::RDWR | OFlags::CREATE).context("lock", &path)?;
        let locked = loop {
            match rustix::fs::flock(&file, FlockOperation::LockExclusive) {
                Err(Errno::INTR) => {}
                Err(errno) if self.scope.remote && sharing::has_no_locks(errno) => break Ok(()),
                other => break other,
            }
        };
        locked.context("lock", &path)?;
        // The flock comes first, so that processes of one machine queue in the kernel and only one
        // of them competes for the file mutex.
        let turn = match self.scope.remote {
            true => Some(
                FileMutex::new(self.dir.clone(), marker::LOCK)
                    .acquire_mutex()
                    .context("lock", &path)?,
            ),
            false => None,
        };
        Ok(IndexGuard(turn, file))
    }

    /// Opens the rank table of an open; `None` where the table is gone.
    ///
    /// # Errors
    /// As for open(2).
    pub fn open_rank_table(&self, open: u64) -> Result<Option<RankTable>> {
        let name = marker::rank_table_name(open);
        let path = self.path.join(&name);
        let (file, writable) = match self.open_file(&name, OFlags::RDWR) {
            Err(Errno::ACCESS | Errno::ROFS | Errno::PERM) => {
                (self.open_file(&name, OFlags::RDONLY), false)
            }
            other => (other, true),
        };
        match file {
            Ok(file) => match RankTable::open(file, open, writable, self.scope) {
                Err(JournalError::Disk(errno)) if sharing::is_gone(errno) => Ok(None),
                other => other.context("open", &path),
            },
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno).context("open", &path),
        }
    }

    /// Reconstructs the rank table of an open whose header is damaged, as far as the other files
    /// show it.
    ///
    /// # Errors
    /// As for open(2).
    pub fn open_damaged_rank_table(&self, open: u64) -> Result<RankTable> {
        let rank = |member: &Member| match member {
            Member::Piece(name) | Member::Journal(name) if name.open == open => Some(name.rank),
            _ => None,
        };
        // Names of pieces and journals contain the rank, so their number needs no header.
        let ranks = self
            .list_members()?
            .iter()
            .filter_map(rank)
            .max()
            .map_or(0, |rank| rank.saturating_add(1));
        let path = self.path.join(marker::rank_table_name(open));
        let file =
            self.open_file(&marker::rank_table_name(open), OFlags::RDWR).context("open", &path)?;
        RankTable::without_header(file, open, ranks, self.scope).context("open", &path)
    }

    /// Returns how far shared memory and locks reach on its file system.
    pub fn sharing_scope(&self) -> SharingScope {
        self.scope
    }

    /// Returns the size of the base, 0 without one.
    ///
    /// # Errors
    /// As for stat(2).
    pub fn base_size(&self) -> Result<u64> {
        match rustix::fs::statat(&self.dir, marker::BASE, AtFlags::empty()) {
            Ok(stat) => Ok(u64::try_from(stat.st_size).unwrap_or(0)),
            Err(Errno::NOENT) => Ok(0),
            Err(errno) => Err(errno).context("stat", &self.path.join(marker::BASE)),
        }
    }

    /// Returns the version of the index that is in place.
    ///
    /// # Errors
    /// As for stat(2).
    pub fn index_version(&self) -> Result<IndexVersion> {
        match rustix::fs::statat(&self.dir, marker::INDEX, AtFlags::empty()) {
            Ok(stat) => Ok(IndexVersion {
                inode: stat.st_ino,
                changed: (stat.st_mtime, stat.st_mtime_nsec),
            }),
            Err(Errno::NOENT) => Ok(IndexVersion::default()),
            Err(errno) => Err(errno).context("stat", &self.path.join(marker::INDEX)),
        }
    }

    /// Reads the index. Where a power cut has damaged it, returns the last index that was synced.
    ///
    /// # Errors
    /// `EIO` for a damaged index, unless a power cut may explain the damage: it was written before
    /// this machine was started, and not synced.
    pub fn read_index(&self) -> Result<PublishedIndex> {
        let first = self.read_index_file(marker::INDEX);
        if let Ok(Some(index)) = first {
            return Ok(index);
        }
        match (first, self.read_index_file(marker::INDEX_SYNCED)?) {
            (Ok(_), Some(index)) => Ok(index),
            // A power cut may tear an index that was never synced. A newer index was damaged by the
            // disk: falling back would silently lose published bytes.
            (Err(_), Some(index)) if self.may_have_lost_power()? => Ok(index),
            (Ok(_), None) => Ok(PublishedIndex::default()),
            (Err(error), Some(_)) => {
                let why = format!("{}; {RESTORE_INDEX}", error.detail);
                Err(TiledError { detail: why, ..error })
            }
            (Err(error), None) => {
                let why = format!("{}; {NO_INDEX}", error.detail);
                Err(TiledError { detail: why, ..error })
            }
        }
    }

    /// Reports whether a power cut may have damaged the index. Restarts of other machines are
    /// unknown, so a remote index may always be damaged.
    fn may_have_lost_power(&self) -> Result<bool> {
        Ok(self.scope.remote || self.index_version()?.changed.0 < machine::boot_time())
    }

    /// Reports whether the file was last changed before this machine was started. Then a power cut
    /// may have removed unsynced bytes of it. False on shared file systems, where the restarts of
    /// other machines are unknown.
    ///
    /// # Errors
    /// As for stat(2).
    pub fn is_before_start(&self, name: &str) -> Result<bool> {
        let stat = rustix::fs::statat(&self.dir, name, AtFlags::empty());
        let stat = stat.context("stat", &self.path.join(name))?;
        Ok(!self.scope.remote && stat.st_mtime < machine::boot_time())
    }

    /// Replaces a damaged index by the last index that was synced. False where the index is whole,
    /// or no synced one exists.
    ///
    /// # Errors
    /// As for link(2) and rename(2).
    pub fn restore_synced_index(&self) -> Result<bool> {
        // Lock before the reads: another process may replace the index, or restore it, at this
        // moment.
        let _guard = self.lock_index()?;
        let is_bad = self.read_index_file(marker::INDEX).is_err_and(|e| e.errno == Errno::IO);
        if !is_bad || self.read_index_file(marker::INDEX_SYNCED)?.is_none() {
            return Ok(false);
        }
        let (dir, path) = (self.dir.as_fd(), self.path.join(marker::INDEX));
        rustix::fs::renameat(dir, marker::INDEX_SYNCED, dir, marker::INDEX)
            .context("rename", &path)?;
        // Sync before the generation changes: readers that follow the change then find an index
        // that survives a power cut.
        self.sync_directory()?;
        self.clock.bump_generation().context("write", &self.path.join(marker::SHARED))?;
        Ok(true)
    }

    fn read_index_file(&self, name: &str) -> Result<Option<PublishedIndex>> {
        let path = self.path.join(name);
        let mut bytes = Vec::new();
        for tries_left in (0..READS).rev() {
            let read = match self.open_file(name, OFlags::RDONLY) {
                Ok(mut file) => file.read_to_end(&mut bytes).context("read", &path),
                Err(Errno::NOENT) => return Ok(None),
                Err(errno) => return Err(errno).context("open", &path),
            };
            match read {
                Ok(_) => break,
                // Another process replaced the file, and the file system does not keep it for its
                // readers.
                Err(error) if sharing::is_gone(error.errno) && tries_left > 0 => bytes.clear(),
                Err(error) => return Err(error),
            }
        }
        PublishedIndex::decode(&bytes)
            .map(Some)
            .map_err(|bad| TiledError::from_damage(&path, bad.to_string()))
    }

    /// Replaces the index `old` by `new`, atomically for all readers. With `durable` the new index
    /// is on the disk when this returns. Without, the last index that is on the disk stays beside
    /// it.
    ///
    /// # Errors
    /// `ENOSPC` and others of the disk; then the old one stays in place.
    pub fn write_index(
        &self,
        _held: &IndexGuard,
        old: &PublishedIndex,
        new: &mut PublishedIndex,
        durable: bool,
    ) -> Result<()> {
        new.durable = durable;
        new.generation = old.generation + 1;
        let path = self.path.join(marker::INDEX_NEW);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC;
        let mut file = self.open_file(marker::INDEX_NEW, flags).context("create", &path)?;
        let written = file.write_all(&new.encode()).context("write", &path);
        if let Err(error) = written {
            let _ = self.remove_file(marker::INDEX_NEW);
            return Err(error);
        }
        let dir = self.dir.as_fd();
        // The bytes must be on the disk before the rename, or a power cut could leave an empty
        // index under the name.
        if durable {
            rustix::fs::fdatasync(&file).context("sync", &path)?;
        } else if old.durable {
            // Keep the durable predecessor under another name: it is the fallback until the next
            // durable index.
            self.remove_file(marker::INDEX_SYNCED)?;
            // A file system without links has the new index only.
            let _ =
                rustix::fs::linkat(dir, marker::INDEX, dir, marker::INDEX_SYNCED, AtFlags::empty());
        }
        rustix::fs::renameat(dir, marker::INDEX_NEW, dir, marker::INDEX)
            .context("rename", &path)?;
        if durable {
            // Only now is the new name on the disk, so only now the fallback may go.
            self.sync_directory()?;
            self.remove_file(marker::INDEX_SYNCED)?;
        }
        // Readers compare the generation before each read; they see the change from here on.
        self.clock.bump_generation().context("write", &self.path.join(marker::SHARED))
    }

    /// Brings the names of its files to the disk.
    ///
    /// # Errors
    /// As for fsync(2).
    pub fn sync_directory(&self) -> Result<()> {
        match rustix::fs::fsync(&self.dir) {
            // Some file systems have no fsync of directories.
            Err(Errno::INVAL) => Ok(()),
            other => other.context("sync", &self.path),
        }
    }

    /// Truncates the base, which has no stamps of its own.
    ///
    /// # Errors
    /// As for truncate(2).
    pub fn truncate_base(&self, size: u64) -> Result<()> {
        // An extension needs no change of the base: bytes beyond it are a hole.
        if self.base_size()? <= size {
            return Ok(());
        }
        let path = self.path.join(marker::BASE);
        let file = self.open_file(marker::BASE, OFlags::RDWR).context("open", &path)?;
        file.set_len(size).context("truncate", &path)
    }

    /// Returns the length of a piece in bytes; 0 where there is none.
    ///
    /// # Errors
    /// As for stat(2).
    pub fn piece_len(&self, name: PieceName) -> Result<u64> {
        match rustix::fs::statat(&self.dir, marker::piece_name(name), AtFlags::empty()) {
            Ok(stat) => Ok(u64::try_from(stat.st_size).unwrap_or(0)),
            Err(Errno::NOENT) => Ok(0),
            Err(errno) => Err(errno).context("stat", &self.path.join(marker::piece_name(name))),
        }
    }
}
