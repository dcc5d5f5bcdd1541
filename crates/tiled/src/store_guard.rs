//! Stores into mappings of files, in a process that is all ours.
//!
//! A store into a page that the file system cannot give (behind the end of a file that became
//! shorter, or on a full disk) is a signal, `SIGBUS`. Its handler here puts an empty page in that
//! place, as journald of systemd does. The store then ends, and the thread sees that it went
//! nowhere. Only an I/O process installs the handler: a library must not touch the signals of a
//! program.

use std::cell::Cell;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering, compiler_fence};

/// The size of a page; zero: the handler was never installed.
static PAGE: AtomicUsize = AtomicUsize::new(0);

/// A range of memory in which a thread stores.
#[derive(Clone, Copy)]
struct GuardedRange {
    start: usize,
    end: usize,
    /// A page of it could not be had.
    is_hit: bool,
}

thread_local! {
    // Constant and without a destructor, so a signal handler may use it.
    static RANGE: Cell<GuardedRange> =
        const { Cell::new(GuardedRange { start: 0, end: 0, is_hit: false }) };
}

/// Installs the handler of this process.
///
/// # Errors
/// Those of sigaction(2).
pub fn guard_stores() -> io::Result<()> {
    // SAFETY: only asks for a number.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    PAGE.store(usize::try_from(page).map_err(io::Error::other)?, Ordering::Relaxed);
    // SAFETY: the handler calls functions alone that a handler may call.
    let installed = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = own_handler();
        action.sa_flags = libc::SA_SIGINFO;
        libc::sigemptyset(&raw mut action.sa_mask);
        libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut())
    };
    if installed == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn own_handler() -> usize {
    let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = on_bus_error;
    handler as usize
}

/// Whether the handler is in force: a library that was loaded later may have replaced it.
pub fn are_stores_guarded() -> bool {
    if PAGE.load(Ordering::Relaxed) == 0 {
        return false;
    }
    // SAFETY: only asks; an empty action is valid.
    unsafe {
        let mut now: libc::sigaction = std::mem::zeroed();
        libc::sigaction(libc::SIGBUS, std::ptr::null(), &raw mut now) == 0
            && now.sa_sigaction == own_handler()
    }
}

extern "C" fn on_bus_error(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes the facts of the signal.
    let at = unsafe { (*info).si_addr() } as usize;
    let range = RANGE.get();
    let page = PAGE.load(Ordering::Relaxed);
    if (range.start..range.end).contains(&at) {
        let place = (at - at % page) as *mut libc::c_void;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        // SAFETY: the page lies in the mapping of the thread that was stopped, which uses that
        // mapping for nothing but these stores.
        let mapped = unsafe { libc::mmap(place, page, protection, flags, -1, 0) };
        if mapped != libc::MAP_FAILED {
            RANGE.set(GuardedRange { is_hit: true, ..range });
            return;
        }
    }
    // SAFETY: the signal comes once more, and ends the process as it would without a handler.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = libc::SIG_DFL;
        libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut());
    }
}

/// The stores of this thread in one range, which is a mapping.
pub(crate) struct StoreGuard(());

impl StoreGuard {
    /// Begins them; `None`: this process has no handler, or the thread is within other stores.
    pub(crate) fn enter(start: usize, len: usize) -> Option<StoreGuard> {
        let is_free = PAGE.load(Ordering::Relaxed) != 0 && RANGE.get().start == 0;
        is_free.then(|| {
            RANGE.set(GuardedRange { start, end: start + len, is_hit: false });
            compiler_fence(Ordering::SeqCst);
            StoreGuard(())
        })
    }

    /// Ends them; returns whether all pages could be had.
    pub(crate) fn leave(self) -> bool {
        compiler_fence(Ordering::SeqCst);
        !RANGE.get().is_hit
    }
}

impl Drop for StoreGuard {
    fn drop(&mut self) {
        RANGE.set(GuardedRange { start: 0, end: 0, is_hit: false });
    }
}
