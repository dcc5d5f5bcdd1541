//! The file of a log as mapped memory: a batch is copied into the page cache without a system call.
//! Like a write, that survives the death of the process and not a power cut.
//!
//! A write through mapped memory cannot return an error: the kernel sends SIGBUS. Two measures turn
//! that into errors:
//!
//! 1. A part of the file is *prepared* before it is written through memory. It is filled with zeros
//!    by write(2), which reports a full disk, and made present and writable by madvise(2).
//! 2. A later failure (a broken disk, a truncated file) is caught: the handler maps anonymous
//!    memory in the place of the file's, and sets a flag.

use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst, compiler_fence};

/// Bytes prepared at a time, a multiple of any page: the kernel caches them in large pages where it
/// can.
const PREPARED_BYTES: usize = 128 << 10;
/// Most files that are mapped at a time. The others are written with system calls.
const MAPPINGS: usize = 64;

static ZEROS: [u8; PREPARED_BYTES] = [0; PREPARED_BYTES];

/// A mapping as the signal handler sees it.
struct MappingSlot {
    taken: AtomicBool,
    /// 0 when there is none.
    start: AtomicUsize,
    len: AtomicUsize,
    /// The memory does not belong to the file any more.
    lost: AtomicBool,
}

static PLACES: [MappingSlot; MAPPINGS] = [const {
    MappingSlot {
        taken: AtomicBool::new(false),
        start: AtomicUsize::new(0),
        len: AtomicUsize::new(0),
        lost: AtomicBool::new(false),
    }
}; MAPPINGS];

/// A mapped log file; see the module.
pub(super) struct MappedLog {
    start: NonNull<u8>,
    len: usize,
    /// Bytes before this are prepared, from where the log was resumed.
    ready: usize,
    place: &'static MappingSlot,
}

// SAFETY: the memory belongs to this value alone and is of no thread.
unsafe impl Send for MappedLog {}

impl MappedLog {
    /// Maps the first `len` bytes of `file`, which has blocks for them, to be written from `end`
    /// on: only zeros follow there. `None` where that fails.
    pub fn new(file: &File, len: u64, end: u64) -> Option<MappedLog> {
        let len = usize::try_from(len).ok().filter(|len| *len > 0)?;
        if file.metadata().ok()?.len() < len as u64 || !ensure_handler() {
            return None;
        }
        // Atomic swap: threads of several executors take places at the same time.
        let place = PLACES.iter().find(|place| !place.taken.swap(true, SeqCst))?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at a place of the kernel's choice touches no memory of ours.
        let start = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), len, access, MapFlags::SHARED, file, 0)
        };
        let Some(start) = start.ok().and_then(|start| NonNull::new(start.cast::<u8>())) else {
            place.taken.store(false, SeqCst);
            return None;
        };
        // The start is stored last and cleared first: the handler ignores a place whose start is 0.
        place.lost.store(false, SeqCst);
        place.len.store(len, SeqCst);
        place.start.store(start.as_ptr() as usize, SeqCst);
        Some(MappedLog { start, len, ready: end as usize, place })
    }

    /// Copies `bytes` to `at`, behind all earlier ones. Returns false when that must be done with a
    /// system call: there is no room, or the part cannot be prepared.
    ///
    /// # Errors
    /// The file cannot be written through memory any more; its content at `at` is unknown.
    pub fn write_bytes(&mut self, file: &File, bytes: &[u8], at: u64) -> io::Result<bool> {
        let at = at as usize;
        let Some(end) = at.checked_add(bytes.len()).filter(|end| *end <= self.len) else {
            return Ok(false);
        };
        while self.ready < end {
            if !self.prepare_next(file) {
                return Ok(false);
            }
        }
        // SAFETY: at + bytes.len() is within the mapping, which nothing else refers to; where the
        // file's memory is gone, the handler has mapped other memory there.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.start.as_ptr().add(at), bytes.len());
        }
        // The handler runs during the copy, in this thread: the fence keeps the load of the flag
        // behind the copy.
        compiler_fence(SeqCst);
        if self.place.lost.load(SeqCst) {
            return Err(io::Error::other("the disk does not take what is written to the log"));
        }
        Ok(true)
    }

    /// Prepares up to the next multiple of [`PREPARED_BYTES`]. Returns whether that succeeded.
    fn prepare_next(&mut self, file: &File) -> bool {
        let end = (self.ready / PREPARED_BYTES + 1) * PREPARED_BYTES;
        let end = end.min(self.len);
        assert!(self.ready < end, "a step prepares nothing of the log");
        // write(2) first: it allocates the blocks and reports a full disk, which a page fault
        // cannot.
        if file.write_all_at(&ZEROS[..end - self.ready], self.ready as u64).is_err() {
            return false;
        }
        // Whole pages: PIECE and the start of the mapping are multiples of them.
        let from = self.ready / PREPARED_BYTES * PREPARED_BYTES;
        // SAFETY: from..end lies within the mapping; this advice changes no bytes.
        let present = unsafe {
            let start = self.start.as_ptr().add(from).cast::<c_void>();
            rustix::mm::madvise(start, end - from, Advice::LinuxPopulateWrite)
        };
        if present.is_ok() {
            self.ready = end;
        }
        present.is_ok()
    }
}

impl Drop for MappedLog {
    fn drop(&mut self) {
        // Cleared before the unmap: the address may belong to another mapping right after it.
        self.place.start.store(0, SeqCst);
        // SAFETY: the mapping is ours, and no reference into it is left.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len) };
        self.place.taken.store(false, SeqCst);
    }
}

/// The SIGBUS handler before ours.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// Installs the handler, once. Returns whether it is installed.
fn ensure_handler() -> bool {
    static INSTALLED: OnceLock<bool> = OnceLock::new();
    *INSTALLED.get_or_init(|| {
        // SAFETY: all zero is a valid sigaction, and the second call passes no new one.
        let (got, before) = unsafe {
            let mut before: libc::sigaction = std::mem::zeroed();
            (libc::sigaction(libc::SIGBUS, std::ptr::null(), &mut before), before)
        };
        let handler = on_bus_error as extern "C" fn(i32, *mut libc::siginfo_t, *mut c_void);
        // The handler may run as soon as it is installed, and needs `BEFORE` then.
        got == 0 && BEFORE.set(before).is_ok() && {
            // SAFETY: all zero is a valid sigaction; the handler does only what may be done in one
            // and lives for ever.
            unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = handler as libc::sighandler_t;
                action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
                libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut()) == 0
            }
        }
    })
}

extern "C" fn on_bus_error(signal: i32, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel hands a handler of SIGBUS a siginfo that has an address.
    let at = unsafe { (*info).si_addr() } as usize;
    for place in &PLACES {
        let (start, len) = (place.start.load(SeqCst), place.len.load(SeqCst));
        if start == 0 || !(start..start + len).contains(&at) {
            continue;
        }
        place.lost.store(true, SeqCst);
        let flags = MapFlags::PRIVATE | MapFlags::FIXED;
        // SAFETY: the range is a mapping of ours that only `Mapped` knows; mmap(2) may be called in
        // a handler.
        let replaced = unsafe {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            rustix::mm::mmap_anonymous(start as *mut c_void, len, access, flags)
        };
        if replaced.is_ok() {
            return;
        }
    }
    forward_signal(signal, info, context);
}

/// Passes a SIGBUS that is not ours to the earlier handler, as if ours did not exist.
fn forward_signal(signal: i32, info: *mut libc::siginfo_t, context: *mut c_void) {
    let Some(before) = BEFORE.get() else { return };
    let handler = before.sa_sigaction;
    if handler == libc::SIG_DFL || handler == libc::SIG_IGN {
        // SAFETY: the earlier action is restored. The failed instruction fails once more, under
        // that action.
        unsafe { libc::sigaction(signal, before, std::ptr::null_mut()) };
    } else if before.sa_flags & libc::SA_SIGINFO != 0 {
        // SAFETY: with this flag the address is that of such a function.
        let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut c_void) =
            unsafe { std::mem::transmute(handler) };
        handler(signal, info, context);
    } else {
        // SAFETY: without that flag the address is that of such a function.
        let handler: extern "C" fn(i32) = unsafe { std::mem::transmute(handler) };
        handler(signal);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: u64 = 3 * PREPARED_BYTES as u64 + 100;

    fn file(dir: &tempfile::TempDir) -> File {
        let path = dir.path().join("log");
        let file = File::options().read(true).write(true).create_new(true).open(path);
        let file = file.expect("a file");
        file.set_len(LEN).expect("as long as it is to be");
        file
    }

    fn read(file: &File) -> Vec<u8> {
        let mut bytes = vec![0; LEN as usize];
        file.read_exact_at(&mut bytes, 0).expect("reads");
        bytes
    }

    #[test]
    fn what_is_put_is_in_the_file_at_once() {
        let dir = tempfile::tempdir().expect("directory");
        let file = file(&dir);
        file.write_all_at(b"before", 0).expect("writes");
        let mut mapped = MappedLog::new(&file, LEN, 6).expect("is mapped");
        let mut expected = b"before".to_vec();
        for n in 0..9u8 {
            let bytes = vec![n + 1; 40_000];
            assert!(mapped.write_bytes(&file, &bytes, expected.len() as u64).expect("is put"));
            expected.extend(bytes);
        }
        assert!(
            !mapped
                .write_bytes(&file, &[7; 40_000], expected.len() as u64)
                .expect("no room is no error")
        );
        let left = LEN as usize - expected.len();
        assert!(
            mapped
                .write_bytes(&file, &vec![8; left], expected.len() as u64)
                .expect("up to the last")
        );
        expected.extend(vec![8; left]);
        assert_eq!(read(&file), expected);
        drop(mapped);
        assert_eq!(read(&file), expected);
    }

    #[test]
    fn a_file_that_was_cut_off_is_an_error_and_no_end_of_the_process() {
        let dir = tempfile::tempdir().expect("directory");
        let file = file(&dir);
        let mut mapped = MappedLog::new(&file, LEN, 0).expect("is mapped");
        assert!(mapped.write_bytes(&file, &[1; 10], 0).expect("is put"));
        file.set_len(0).expect("cut");
        assert!(mapped.write_bytes(&file, &[1; 10], 10).is_err());
        assert!(mapped.write_bytes(&file, &[1; 10], 20).is_err(), "and it stays one");
        drop(mapped);
        file.set_len(LEN).expect("long again");
        let mut mapped = MappedLog::new(&file, LEN, 0).expect("another one");
        assert!(mapped.write_bytes(&file, &[2; 10], 0).expect("is put"));
        assert_eq!(read(&file)[..10], [2; 10]);
    }

    #[test]
    fn more_files_than_places_are_told() {
        let dir = tempfile::tempdir().expect("directory");
        let file = file(&dir);
        let all: Vec<_> = (0..=MAPPINGS).map(|_| MappedLog::new(&file, LEN, 0)).collect();
        assert!(all.iter().any(Option::is_none));
        assert!(all.iter().any(Option::is_some));
    }
}
