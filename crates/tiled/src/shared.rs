//! Words of a file that several processes read and write: through a shared mapping on one machine,
//! by read and write calls between machines.

use crate::mapping::Mapping;
use rustix::fs::{FallocateFlags, FlockOperation};
use rustix::io::Errno;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;

/// A file of words of 8 bytes, little-endian.
#[derive(Debug)]
pub struct SharedWords {
    file: File,
    map: Option<Mapping>,
}

fn to_errno(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

impl SharedWords {
    /// The words of `file`, mapped if `mapped` and if the file system can. The caller reserves
    /// writable words before ([`reserve_blocks`]).
    ///
    /// # Errors
    /// Those of fstat(2). A file system without mappings is no error.
    pub fn new(file: File, mapped: bool, writable: bool) -> Result<SharedWords, Errno> {
        let map = if mapped { map_all(&file, writable)? } else { None };
        Ok(SharedWords { file, map })
    }

    /// As [`SharedWords::new`], of the first `len` bytes, which are there: nothing is asked of the
    /// file.
    pub fn of_len(file: File, mapped: bool, len: u64) -> SharedWords {
        let len = usize::try_from(len).ok().filter(|_| mapped);
        let map = len.and_then(|len| Mapping::new(&file, len, true).ok());
        SharedWords { file, map }
    }

    /// Gives the file back.
    pub fn into_file(self) -> File {
        self.file
    }

    /// Bytes that can be loaded.
    ///
    /// # Errors
    /// Those of fstat(2).
    pub fn readable_len(&self) -> Result<u64, Errno> {
        match &self.map {
            Some(map) => Ok(map.len() as u64),
            None => Ok(self.file.metadata().map_err(to_errno)?.len()),
        }
    }

    /// The file itself.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Whether other processes of this machine see stores without a system call.
    pub fn is_mapped(&self) -> bool {
        self.map.is_some()
    }

    /// One word; 0 past the end.
    ///
    /// # Errors
    /// Those of pread(2).
    pub fn load(&self, offset: u64) -> Result<u64, Errno> {
        if let Some(map) = &self.map {
            let word = usize::try_from(offset).ok().and_then(|at| map.word_at(at));
            // Acquire pairs with the release in `store`: all words stored before this one are
            // visible, too.
            return Ok(word.map_or(0, |w| u64::from_le(w.load(Ordering::Acquire))));
        }
        let mut word = [0];
        self.load_words(offset, &mut word)?;
        Ok(word[0])
    }

    /// Fills `words` from `offset` on; zeros past the end.
    ///
    /// # Errors
    /// Those of pread(2).
    pub fn load_words(&self, offset: u64, words: &mut [u64]) -> Result<(), Errno> {
        if self.map.is_some() {
            for (word, at) in words.iter_mut().zip((offset..).step_by(8)) {
                *word = self.load(at)?;
            }
            return Ok(());
        }
        let mut bytes = vec![0u8; words.len() * 8];
        let mut done = 0;
        while done < bytes.len() {
            match self.file.read_at(&mut bytes[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => return Err(to_errno(e)),
            }
        }
        for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            let mut word_bytes = [0; 8];
            word_bytes.copy_from_slice(bytes);
            *word = u64::from_le_bytes(word_bytes);
        }
        Ok(())
    }

    /// Stores one word, after all earlier stores (release order).
    ///
    /// # Errors
    /// Those of pwrite(2); `ENOSPC` for a word of a mapping that was not reserved.
    pub fn store(&self, offset: u64, value: u64) -> Result<(), Errno> {
        let Some(map) = &self.map else { return self.write_bytes(offset, &value.to_le_bytes()) };
        let word = usize::try_from(offset).ok().and_then(|at| map.word_at(at));
        let word = word.filter(|_| map.is_writable()).ok_or(Errno::NOSPC)?;
        // Release: a reader that loads this word (acquire) also sees all words stored before.
        word.store(value.to_le(), Ordering::Release);
        Ok(())
    }

    /// Stores a record so that no reader sees its first word before the others.
    ///
    /// # Errors
    /// As [`SharedWords::store`].
    pub fn store_record(&self, offset: u64, record: &[u64]) -> Result<(), Errno> {
        if self.map.is_none() {
            let bytes: Vec<u8> = record.iter().flat_map(|w| w.to_le_bytes()).collect();
            return self.write_bytes(offset, &bytes);
        }
        // The first word comes last: it makes the record valid.
        for (at, word) in (offset..).step_by(8).zip(record).skip(1) {
            self.store(at, *word)?;
        }
        record.first().map_or(Ok(()), |first| self.store(offset, *first))
    }

    fn write_bytes(&self, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
        self.file.write_all_at(bytes, offset).map_err(to_errno)
    }

    /// Replaces one word by `change(word)` in one step among all processes, and returns the old
    /// value. Without a mapping this takes the file's lock (flock), so the caller must not hold it.
    ///
    /// # Errors
    /// Those of flock(2), pread(2), pwrite(2).
    pub fn update_word(&self, offset: u64, change: impl Fn(u64) -> u64) -> Result<u64, Errno> {
        if let Some(map) = &self.map {
            let word = usize::try_from(offset).ok().and_then(|at| map.word_at(at));
            let word = word.filter(|_| map.is_writable()).ok_or(Errno::NOSPC)?;
            let step = |old: u64| Some(change(u64::from_le(old)).to_le());
            let old = word.fetch_update(Ordering::AcqRel, Ordering::Acquire, step);
            return Ok(u64::from_le(old.unwrap_or_else(|old| old)));
        }
        rustix::fs::flock(&self.file, FlockOperation::LockExclusive)?;
        let changed = self.load(offset).and_then(|old| {
            self.store(offset, change(old))?;
            Ok(old)
        });
        let unlocked = rustix::fs::flock(&self.file, FlockOperation::Unlock);
        changed.and_then(|old| unlocked.map(|()| old))
    }

    /// Extends the file to `len` bytes with all blocks, and maps it again if it was mapped.
    ///
    /// # Errors
    /// `ENOSPC` where the disk is full.
    pub fn grow_to(&mut self, len: u64) -> Result<(), Errno> {
        // Blocks first: a store into a mapped hole on a full disk would be a signal.
        reserve_blocks(&self.file, len)?;
        if self.map.is_some() {
            self.map = map_all(&self.file, true)?;
        }
        Ok(())
    }

    /// Maps the file again if the mapping is shorter than `len` bytes, to see bytes that others
    /// added.
    ///
    /// # Errors
    /// Those of fstat(2).
    pub fn ensure_mapped(&mut self, len: u64) -> Result<(), Errno> {
        if let Some(map) = &self.map
            && (map.len() as u64) < len
        {
            let writable = map.is_writable();
            self.map = map_all(&self.file, writable)?;
        }
        Ok(())
    }

    /// Brings all of it to the disk.
    ///
    /// # Errors
    /// Those of msync(2), fdatasync(2).
    pub fn flush(&self) -> Result<(), Errno> {
        if let Some(map) = &self.map {
            map.flush()?;
        }
        rustix::fs::fdatasync(&self.file)
    }
}

fn map_all(file: &File, writable: bool) -> Result<Option<Mapping>, Errno> {
    let len = file.metadata().map_err(to_errno)?.len();
    let len = usize::try_from(len).map_err(|_| Errno::FBIG)?;
    Ok(if len == 0 { None } else { Mapping::new(file, len, writable).ok() })
}

/// Makes `file` at least `len` bytes long with blocks for all of them, so that a full disk is an
/// error now and no signal later. New bytes are 0.
///
/// # Errors
/// `ENOSPC`, and those of fallocate(2), pwrite(2).
pub fn reserve_blocks(file: &File, len: u64) -> Result<(), Errno> {
    match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, len) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
        other => return other,
    }
    let mut at = file.metadata().map_err(to_errno)?.len();
    let zeros = [0u8; 4096];
    while at < len {
        let part = (len - at).min(zeros.len() as u64);
        file.write_all_at(&zeros[..part as usize], at).map_err(to_errno)?;
        at += part;
    }
    Ok(())
}
