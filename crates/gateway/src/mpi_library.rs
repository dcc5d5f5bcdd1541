//! An MPI library of this machine, loaded when a file is kept through it and not before. A library
//! of ours, `libtatami_gateway_MPI.so`, lies between: it was compiled for that MPI library
//! (`mpi/gateway`).

// Calls of C functions through a table; each has its reason.
#![allow(unsafe_code)]

use crate::refusal::refuse;
use parking_lot::Mutex;
use rustix::io::Errno;
use std::ffi::{CStr, CString, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use tatami_remote::{RemoteFailure, SiteMpi};

/// The version of the table that this code knows.
const VERSION: u64 = 1;
/// The access of an open, as the table has it.
pub(crate) const READS: i64 = 1;
pub(crate) const WRITES: i64 = 2;

/// The table of `mpi/gateway/gateway.h`.
#[repr(C)]
struct MpiTable {
    version: u64,
    start: extern "C" fn() -> i64,
    finish: extern "C" fn() -> i64,
    open_file: unsafe extern "C" fn(*const c_char, i64, *mut *mut c_void) -> i64,
    close_file: unsafe extern "C" fn(*mut c_void) -> i64,
    write_ranges:
        unsafe extern "C" fn(*mut c_void, u64, *const u64, *const u64, *const c_void) -> i64,
    read_ranges: unsafe extern "C" fn(*mut c_void, u64, *const u64, *const u64, *mut c_void) -> i64,
    find_size: unsafe extern "C" fn(*mut c_void) -> i64,
    set_size: unsafe extern "C" fn(*mut c_void, u64) -> i64,
    sync_file: unsafe extern "C" fn(*mut c_void) -> i64,
    remove_file: unsafe extern "C" fn(*const c_char) -> i64,
    explain: extern "C" fn() -> *const c_char,
}

/// A failed call: the error number, and the words of the MPI library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MpiFailure {
    pub(crate) errno: Errno,
    pub(crate) what: String,
}

/// The MPI library of this process.
pub(crate) struct LoadedMpi {
    mpi: SiteMpi,
    table: &'static MpiTable,
    /// One call at a time: the result and its words belong together.
    turn: Mutex<()>,
}

/// A process can have one MPI library.
static LIBRARY: OnceLock<LoadedMpi> = OnceLock::new();
/// Held while it is loaded.
static LOADING: Mutex<()> = Mutex::new(());

fn library_name(mpi: SiteMpi) -> String {
    format!("libtatami_gateway_{}.so", mpi.word())
}

/// Returns the path of our library for `mpi`, as it was installed or built.
fn find_library(mpi: SiteMpi) -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    let folder = program.parent()?;
    let places = ["../lib/tatami", "mpi", "../mpi", "."].map(|place| folder.join(place));
    places.iter().map(|place| place.join(library_name(mpi))).find(|path| path.is_file())
}

/// Returns the MPI libraries for which ours is installed, of those that a program asks for.
pub(crate) fn installed_libraries(wanted: Option<SiteMpi>) -> Vec<SiteMpi> {
    let asked = SiteMpi::ALL.into_iter().filter(|mpi| wanted.is_none_or(|wanted| wanted == *mpi));
    asked.filter(|mpi| find_library(*mpi).is_some()).collect()
}

/// Returns the words of the dynamic linker for its last failure.
fn linker_words() -> String {
    // SAFETY: a text that stays until the next call of the linker by this thread, or NULL.
    let words = unsafe { libc::dlerror() };
    match words.is_null() {
        true => String::new(),
        // SAFETY: as above.
        false => unsafe { CStr::from_ptr(words) }.to_string_lossy().into_owned(),
    }
}

/// Loads our library for `mpi`, and the MPI library with it.
fn load_table(mpi: SiteMpi) -> Result<&'static MpiTable, String> {
    let name = library_name(mpi);
    let path = find_library(mpi).ok_or_else(|| format!("{name} is not installed there"))?;
    let path = CString::new(path.as_os_str().as_bytes()).map_err(|e| e.to_string())?;
    // The parts of Open MPI find its functions in the global scope.
    // SAFETY: a C string. The library is ours, and is never unloaded.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
    if library.is_null() {
        return Err(linker_words());
    }
    // SAFETY: a library that was loaded, and a C string.
    let table = unsafe { libc::dlsym(library, c"tatami_gateway".as_ptr()) };
    if table.is_null() {
        return Err(linker_words());
    }
    // SAFETY: the symbol is a table that begins with its version, and stays as long as the process.
    let version = unsafe { table.cast::<u64>().read() };
    match version == VERSION {
        // SAFETY: a table of this version has this form.
        true => Ok(unsafe { &*table.cast::<MpiTable>() }),
        false => Err(format!("{name} is of another version of Tatami")),
    }
}

fn describe_failure(table: &MpiTable, result: i64) -> MpiFailure {
    // SAFETY: a text in the library.
    let what = unsafe { CStr::from_ptr((table.explain)()) }.to_string_lossy().trim().to_owned();
    let errno = i32::try_from(-result).map_or(Errno::IO, Errno::from_raw_os_error);
    MpiFailure { errno, what }
}

impl LoadedMpi {
    /// Returns the MPI library of this process. The first call loads it and makes this process an
    /// MPI process.
    ///
    /// # Errors
    /// `ENODEV` where it is not there or cannot be used, or this process has another one.
    pub(crate) fn load(mpi: SiteMpi) -> Result<&'static LoadedMpi, RemoteFailure> {
        let refused = |why: String| refuse(Errno::NODEV, &format!("tatami_backend: {why}"));
        let _loading = LOADING.lock();
        if let Some(library) = LIBRARY.get() {
            return match library.mpi == mpi {
                true => Ok(library),
                false => {
                    let (is, asked) = (library.mpi.word(), mpi.word());
                    let why = format!("this process has {is} already, and {asked} is asked for");
                    Err(refused(why))
                }
            };
        }
        let table = load_table(mpi).map_err(refused)?;
        let started = (table.start)();
        if started < 0 {
            return Err(refused(describe_failure(table, started).what));
        }
        Ok(LIBRARY.get_or_init(|| LoadedMpi { mpi, table, turn: Mutex::new(()) }))
    }

    /// Ends the use of the MPI library, as the last thing that the process does.
    pub(crate) fn finish_use() {
        if let Some(library) = LIBRARY.get() {
            // The process ends in any case.
            let _ = (library.table.finish)();
        }
    }

    /// Opens an existing file, for [`READS`], [`WRITES`] or both.
    pub(crate) fn open_file(
        &'static self,
        path: &Path,
        access: i64,
    ) -> Result<MpiFile, MpiFailure> {
        let name = self.c_path(path)?;
        let mut handle = std::ptr::null_mut();
        let _turn = self.turn.lock();
        // SAFETY: a C string, and room for the handle.
        let opened = unsafe { (self.table.open_file)(name.as_ptr(), access, &raw mut handle) };
        self.check(opened)?;
        Ok(MpiFile { library: self, handle })
    }

    /// Removes a file.
    pub(crate) fn remove_file(&self, path: &Path) -> Result<(), MpiFailure> {
        let name = self.c_path(path)?;
        let _turn = self.turn.lock();
        // SAFETY: a C string.
        self.check(unsafe { (self.table.remove_file)(name.as_ptr()) }).map(drop)
    }

    fn c_path(&self, path: &Path) -> Result<CString, MpiFailure> {
        let name = CString::new(path.as_os_str().as_bytes());
        name.map_err(|e| MpiFailure { errno: Errno::INVAL, what: e.to_string() })
    }

    fn check(&self, result: i64) -> Result<u64, MpiFailure> {
        u64::try_from(result).map_err(|_| describe_failure(self.table, result))
    }
}

/// Ranges of a file: offsets and lengths, in the order of offsets and without overlap.
#[derive(Debug, Default)]
pub(crate) struct FileRanges {
    offsets: Vec<u64>,
    lengths: Vec<u64>,
}

impl FileRanges {
    /// Adds a range behind the others.
    pub(crate) fn push(&mut self, offset: u64, len: u64) {
        match (self.offsets.last(), self.lengths.last_mut()) {
            (Some(last), Some(known)) if last + *known == offset => *known += len,
            _ => {
                self.offsets.push(offset);
                self.lengths.push(len);
            }
        }
    }

    /// The end of the last range; saturates.
    pub(crate) fn end(&self) -> u64 {
        let (offset, len) = (self.offsets.last(), self.lengths.last());
        offset.copied().unwrap_or(0).saturating_add(len.copied().unwrap_or(0))
    }

    fn total(&self) -> u64 {
        self.lengths.iter().sum()
    }
}

/// A file that is open in the MPI library.
pub(crate) struct MpiFile {
    library: &'static LoadedMpi,
    handle: *mut c_void,
}

// SAFETY: the handle is a pointer of the library, which any thread may use while it has the turn.
unsafe impl Send for MpiFile {}

impl MpiFile {
    /// Writes the bytes to the ranges.
    pub(crate) fn write_ranges(&self, to: &FileRanges, bytes: &[u8]) -> Result<(), MpiFailure> {
        assert_eq!(to.total(), bytes.len() as u64, "the ranges have another length");
        let (count, table) = (to.offsets.len() as u64, self.library.table);
        let (offsets, lengths) = (to.offsets.as_ptr(), to.lengths.as_ptr());
        let _turn = self.library.turn.lock();
        // SAFETY: an open handle, `count` numbers each, and as many bytes as the ranges have.
        let written = unsafe {
            (table.write_ranges)(self.handle, count, offsets, lengths, bytes.as_ptr().cast())
        };
        self.library.check(written).map(drop)
    }

    /// Reads the bytes of the ranges; returns how many there are before the end of the file.
    pub(crate) fn read_ranges(
        &self,
        from: &FileRanges,
        bytes: &mut [u8],
    ) -> Result<usize, MpiFailure> {
        assert_eq!(from.total(), bytes.len() as u64, "the ranges have another length");
        let (count, table) = (from.offsets.len() as u64, self.library.table);
        let (offsets, lengths) = (from.offsets.as_ptr(), from.lengths.as_ptr());
        let _turn = self.library.turn.lock();
        // SAFETY: as in `write_ranges`.
        let read = unsafe {
            (table.read_ranges)(self.handle, count, offsets, lengths, bytes.as_mut_ptr().cast())
        };
        Ok(self.library.check(read)?.min(bytes.len() as u64) as usize)
    }

    /// Returns the size of the file.
    pub(crate) fn find_size(&self) -> Result<u64, MpiFailure> {
        let _turn = self.library.turn.lock();
        // SAFETY: an open handle.
        self.library.check(unsafe { (self.library.table.find_size)(self.handle) })
    }

    /// Sets the size of the file.
    pub(crate) fn set_size(&self, size: u64) -> Result<(), MpiFailure> {
        let _turn = self.library.turn.lock();
        // SAFETY: an open handle.
        self.library.check(unsafe { (self.library.table.set_size)(self.handle, size) }).map(drop)
    }

    /// Brings the bytes to the disk.
    pub(crate) fn sync_bytes(&self) -> Result<(), MpiFailure> {
        let _turn = self.library.turn.lock();
        // SAFETY: an open handle.
        self.library.check(unsafe { (self.library.table.sync_file)(self.handle) }).map(drop)
    }

    /// The library that has it open.
    pub(crate) fn library(&self) -> &'static LoadedMpi {
        self.library
    }
}

impl Drop for MpiFile {
    fn drop(&mut self) {
        let _turn = self.library.turn.lock();
        // SAFETY: an open handle, which nothing uses any more. All writes have returned.
        let _ = unsafe { (self.library.table.close_file)(self.handle) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_follow_one_another_are_one() {
        let mut ranges = FileRanges::default();
        for (offset, len) in [(5, 3), (8, 2), (20, 1)] {
            ranges.push(offset, len);
        }
        assert_eq!(
            (ranges.offsets.as_slice(), ranges.lengths.as_slice()),
            (&[5, 20][..], &[5, 1][..])
        );
        assert_eq!(ranges.total(), 6);
    }
}
