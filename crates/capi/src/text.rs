//! C strings and arrays of them.

use crate::guard::CallFailure;
use std::ffi::{CStr, OsStr, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use tatami_tiled::Hints;

/// Most pairs of hints that are read; more are ignored.
const HINTS_MAX: usize = 4096;

/// Converts a path argument.
///
/// # Safety
/// NULL, or a string that ends in NUL and lives as long as the result is used.
pub unsafe fn path_argument<'a>(text: *const c_char) -> Result<&'a Path, CallFailure> {
    if text.is_null() {
        return Err(CallFailure::Argument("no path was given"));
    }
    // SAFETY: the caller's.
    let bytes = unsafe { CStr::from_ptr(text) }.to_bytes();
    match bytes.is_empty() {
        true => Err(CallFailure::Argument("the path is empty")),
        false => Ok(Path::new(OsStr::from_bytes(bytes))),
    }
}

/// Converts a NULL-terminated array of keys and values.
///
/// # Safety
/// NULL, or an array as the header describes it.
pub unsafe fn hints_argument(array: *const *const c_char) -> Hints {
    let mut pairs = Vec::new();
    if !array.is_null() {
        for i in 0..HINTS_MAX {
            // SAFETY: the array goes on until its first NULL.
            let key = unsafe { *array.add(2 * i) };
            if key.is_null() {
                break;
            }
            // SAFETY: a key is followed by a value.
            let value = unsafe { *array.add(2 * i + 1) };
            if value.is_null() {
                break;
            }
            // SAFETY: both are strings.
            let (key, value) = unsafe { (CStr::from_ptr(key), CStr::from_ptr(value)) };
            pairs.push((key.to_string_lossy(), value.to_string_lossy()));
        }
    }
    Hints::new(pairs.iter().map(|(key, value)| (&**key, &**value)))
}
