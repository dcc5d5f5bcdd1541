//! System calls past the functions of this library, and the C library's own functions behind them.

use std::ffi::{CStr, c_char, c_int, c_long, c_void};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Makes a system call. The result is that of syscall(2): -1 with `errno` set on failure.
pub(crate) fn call(number: c_long, args: &[usize]) -> c_long {
    let arg = |n: usize| args.get(n).copied().unwrap_or(0);
    // SAFETY: the arguments are those of the program for the same call, or point to values that
    // outlive it.
    unsafe { libc::syscall(number, arg(0), arg(1), arg(2), arg(3), arg(4), arg(5)) }
}

/// As [`call`], for calls that return a small number.
pub(crate) fn call_int(number: c_long, args: &[usize]) -> c_int {
    call(number, args) as c_int
}

/// Returns the thread's `errno`.
pub(crate) fn errno() -> c_int {
    // SAFETY: the location is valid for the calling thread.
    unsafe { *libc::__errno_location() }
}

/// Sets the thread's `errno`.
pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: the location is valid for the calling thread.
    unsafe { *libc::__errno_location() = errno }
}

/// The address of a function of the C library, found once.
pub(crate) struct NextFunction {
    name: &'static CStr,
    found: AtomicUsize,
}

impl NextFunction {
    pub(crate) const fn new(name: &'static CStr) -> NextFunction {
        NextFunction { name, found: AtomicUsize::new(0) }
    }

    /// Returns the address, or 0 where the C library has no such function.
    pub(crate) fn find_address(&self) -> usize {
        let known = self.found.load(Relaxed);
        if known != 0 {
            return known;
        }
        // SAFETY: the name ends with a zero byte.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) } as usize;
        self.found.store(found, Relaxed);
        found
    }
}

/// Calls the C library's function of this name, which the function of this library hides.
/// `missing` is the result where there is none.
macro_rules! next {
    ($name:ident($($arg:expr => $type:ty),* $(,)?) -> $result:ty, $missing:expr) => {{
        static NEXT: $crate::raw::NextFunction = $crate::raw::NextFunction::new(
            match std::ffi::CStr::from_bytes_with_nul(
                concat!(stringify!($name), "\0").as_bytes(),
            ) {
                Ok(name) => name,
                Err(_) => c"",
            },
        );
        match NEXT.find_address() {
            0 => {
                $crate::raw::set_errno(libc::ENOSYS);
                $missing
            }
            address => {
                let function =
                    // SAFETY: the C library declares the function with this type.
                    unsafe {
                        std::mem::transmute::<usize, unsafe extern "C" fn($($type),*) -> $result>(
                            address,
                        )
                    };
                // SAFETY: the arguments are those of the program for the same function.
                unsafe { function($($arg),*) }
            }
        }
    }};
}
pub(crate) use next;

/// A path of the program, or any other text that ends with a zero byte.
#[derive(Clone, Copy)]
pub(crate) struct ProgramText(pub(crate) *const c_char);

impl ProgramText {
    /// Returns the bytes; `None` for a null pointer.
    pub(crate) fn bytes(&self) -> Option<&[u8]> {
        // SAFETY: the program passes a text that ends with a zero byte, for the time of the call.
        (!self.0.is_null()).then(|| unsafe { CStr::from_ptr(self.0) }.to_bytes())
    }

    /// Returns the text as an argument of a system call.
    pub(crate) fn argument(&self) -> usize {
        self.0 as usize
    }

    /// Returns the path for a system call: `host`, where the walk has left the volume, or else the
    /// text as the program gave it.
    pub(crate) fn path_argument(&self, host: Option<&CStr>) -> usize {
        host.map_or(self.argument(), |path| path.as_ptr() as usize)
    }
}

/// Returns the program's memory of this length, to be read.
pub(crate) fn program_bytes<'a>(address: *const c_void, len: usize) -> &'a [u8] {
    if address.is_null() || len == 0 {
        return &[];
    }
    // SAFETY: the program passes memory of this length, for the time of the call.
    unsafe { std::slice::from_raw_parts(address.cast(), len.min(isize::MAX as usize)) }
}

/// Returns the program's memory of this length, to be written.
pub(crate) fn program_buffer<'a>(address: *mut c_void, len: usize) -> &'a mut [u8] {
    if address.is_null() || len == 0 {
        return &mut [];
    }
    // SAFETY: as in `program_bytes`; the program lets nobody else use it meanwhile.
    unsafe { std::slice::from_raw_parts_mut(address.cast(), len.min(isize::MAX as usize)) }
}

/// Returns the program's vector of buffers.
pub(crate) fn program_vector<'a>(vector: *const libc::iovec, count: c_int) -> &'a [libc::iovec] {
    let count = usize::try_from(count).unwrap_or(0);
    if vector.is_null() || count == 0 {
        return &[];
    }
    // SAFETY: the program passes a vector of this length, for the time of the call.
    unsafe { std::slice::from_raw_parts(vector, count) }
}

/// Stores a value where the program wants it.
pub(crate) fn store<T>(place: *mut T, value: T) {
    if !place.is_null() {
        // SAFETY: the program passes room for one such value.
        unsafe { place.write(value) }
    }
}

/// Reads a value of the program.
pub(crate) fn load<T: Copy>(place: *const T) -> Option<T> {
    // SAFETY: the program passes a pointer to such a value, or null.
    (!place.is_null()).then(|| unsafe { place.read_unaligned() })
}
