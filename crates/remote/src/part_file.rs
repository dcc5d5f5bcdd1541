//! Part files on a disk of this machine, for both sides of a copy: `.NAME.tatami-part` beside the
//! destination, with mode 0600. It gets the name of the destination when it is complete.

use crate::part_record::{
    BLOCK, BlockSum, PART_RECORD, PartRecord, PartStart, name_part, sum_block,
};
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, SeekFrom, fstat, linkat, openat, renameat, seek, statat,
    unlinkat,
};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;

/// A part file that is being written. It stays when this value ends.
#[derive(Debug)]
pub struct PartFile {
    dir: OwnedFd,
    name: OsString,
    part: OsString,
    file: File,
    size: u64,
}

fn from_io(e: io::Error) -> Errno {
    Errno::from_io_error(&e).unwrap_or(Errno::IO)
}

impl PartFile {
    /// Opens the part file of the file `name` in `dir`, if it belongs to the source of `record`.
    /// Another one is removed, and an empty one is made.
    ///
    /// # Errors
    /// As for open(2) and write(2).
    pub fn open(
        dir: OwnedFd,
        name: &OsStr,
        record: &PartRecord,
    ) -> Result<(PartFile, PartStart), Errno> {
        let (part, size) = (name_part(name), record.size);
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let quiet = OFlags::NONBLOCK | OFlags::NOCTTY;
        let found = match openat(&dir, &part, flags | quiet, Mode::empty()) {
            Ok(file) => Some(File::from(file)),
            Err(Errno::NOENT) => None,
            // A link, a device or a file of another user is in its place.
            Err(e) => return Err(e),
        };
        let was_there = found.is_some();
        if let Some(file) = found.filter(|file| is_part_of(file, record)) {
            let name = name.to_owned();
            return Ok((PartFile { dir, name, part, file, size }, PartStart::Continued));
        }
        if was_there {
            // Not cut: a copy that still writes it must not write into this one.
            unlinkat(&dir, &part, AtFlags::empty())?;
        }
        let only_new = OFlags::CREATE | OFlags::EXCL;
        let file = openat(&dir, &part, flags | only_new, Mode::from_raw_mode(0o600))?;
        let file = File::from(file);
        file.write_all_at(&record.encode(), size).map_err(from_io)?;
        let start = if was_there { PartStart::Replaced } else { PartStart::Fresh };
        Ok((PartFile { dir, name: name.to_owned(), part, file, size }, start))
    }

    /// Returns the file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Cuts the record off, lets `set_attrs` give the file its attributes, and then gives it its
    /// name.
    ///
    /// # Errors
    /// As for rename(2). `EEXIST`: there is a file of that name, and it may not be replaced.
    /// `ESTALE`: another copy has taken the part file away.
    pub fn finish(
        &self,
        may_replace: bool,
        set_attrs: impl FnOnce(&File) -> io::Result<()>,
    ) -> io::Result<()> {
        let own = fstat(&self.file)?;
        match statat(&self.dir, &self.part, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) if (found.st_dev, found.st_ino) == (own.st_dev, own.st_ino) => {}
            Ok(_) | Err(Errno::NOENT) => return Err(Errno::STALE.into()),
            Err(e) => return Err(e.into()),
        }
        self.file.set_len(self.size)?;
        // After the cut, which changes the time.
        set_attrs(&self.file)?;
        if may_replace {
            return Ok(renameat(&self.dir, &self.part, &self.dir, &self.name)?);
        }
        let linked = linkat(&self.dir, &self.part, &self.dir, &self.name, AtFlags::empty());
        unlinkat(&self.dir, &self.part, AtFlags::empty())?;
        Ok(linked?)
    }
}

fn is_part_of(file: &File, record: &PartRecord) -> bool {
    let Ok(found) = fstat(file) else { return false };
    let is_ours = FileType::from_raw_mode(found.st_mode) == FileType::RegularFile
        && found.st_nlink == 1
        && found.st_uid == rustix::process::geteuid().as_raw();
    let mut bytes = [0; PART_RECORD];
    is_ours
        && found.st_size as u64 == record.size + PART_RECORD as u64
        && file.read_exact_at(&mut bytes, record.size).is_ok()
        && PartRecord::decode(&bytes) == Ok(*record)
}

/// Returns the sums of the blocks from `from` to `end`. `None`: a hole.
///
/// # Errors
/// As for read(2) and lseek(2).
pub fn sum_file(file: &File, from: u64, end: u64) -> Result<Vec<Option<BlockSum>>, Errno> {
    let (mut sums, mut bytes, mut at) = (Vec::new(), Vec::new(), from);
    while at < end {
        let len = BLOCK.min(end - at);
        sums.push(match starts_before(file, at, at + len)? {
            false => None,
            true => {
                bytes.resize(len as usize, 0);
                let mut done = 0;
                while done < bytes.len() {
                    match file.read_at(&mut bytes[done..], at + done as u64) {
                        Ok(0) => break,
                        Ok(n) => done += n,
                        Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                        Err(e) => return Err(from_io(e)),
                    }
                }
                Some(sum_block(&bytes[..done]))
            }
        });
        at += len;
    }
    Ok(sums)
}

/// Whether data lie between two offsets. The position of the file is changed.
fn starts_before(file: impl AsFd, from: u64, end: u64) -> Result<bool, Errno> {
    match seek(file, SeekFrom::Data(from)) {
        Ok(start) => Ok(start < end),
        Err(Errno::NXIO) => Ok(false),
        // The file system knows no holes.
        Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(true),
        Err(e) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    fn open_in(dir: &std::path::Path, record: &PartRecord) -> (PartFile, PartStart) {
        let dir = OwnedFd::from(File::open(dir).expect("a directory"));
        PartFile::open(dir, OsStr::new("f"), record).expect("a part file")
    }

    fn finish(part: &PartFile, may_replace: bool) -> Result<(), Errno> {
        part.finish(may_replace, |_| Ok(())).map_err(from_io)
    }

    #[test]
    fn a_part_is_continued_for_the_same_source_alone() {
        let dir = tempfile::tempdir().expect("a directory");
        let record = PartRecord { size: 3 << 20, modified: (1, 2), ino: 3 };
        let (part, start) = open_in(dir.path(), &record);
        assert_eq!(start, PartStart::Fresh);
        part.file().write_all_at(b"there", BLOCK).expect("written");
        let there = dir.path().join(".f.tatami-part");
        let found = there.metadata().expect("it has its name");
        assert_eq!(found.permissions().mode() & 0o7777, 0o600);
        let (part, start) = open_in(dir.path(), &record);
        assert_eq!(start, PartStart::Continued);
        let sums = sum_file(part.file(), 0, record.size).expect("sums");
        let mut block = vec![0; BLOCK as usize];
        block[..5].copy_from_slice(b"there");
        assert_eq!(sums[1], Some(sum_block(&block)));
        assert!(sums.len() == 3 && sums[0].is_none(), "the first block is a hole");
        for other in [
            PartRecord { size: record.size + 1, ..record },
            PartRecord { modified: (1, 3), ..record },
            PartRecord { ino: 4, ..record },
        ] {
            let old = open_in(dir.path(), &record).0;
            assert_eq!(open_in(dir.path(), &other).1, PartStart::Replaced);
            // A copy that still writes the removed one cannot finish.
            assert_eq!(finish(&old, true), Err(Errno::STALE));
        }
    }

    #[test]
    fn a_complete_part_gets_its_name_and_its_size() {
        let dir = tempfile::tempdir().expect("a directory");
        let record = PartRecord { size: 100, modified: (1, 2), ino: 3 };
        finish(&open_in(dir.path(), &record).0, false).expect("a free name");
        let there = dir.path().join("f");
        assert_eq!(there.metadata().expect("it has its name").size(), 100);
        let again = open_in(dir.path(), &record).0;
        assert_eq!(finish(&again, false), Err(Errno::EXIST));
        let again = open_in(dir.path(), &record).0;
        finish(&again, true).expect("it replaces the file");
        assert_eq!(std::fs::read_dir(dir.path()).expect("listed").count(), 1);
    }
}
