//! Many small files by one call.

// Each function's pointers come from the caller, as the header says; see the crate's documentation.
#![allow(clippy::missing_safety_doc, non_camel_case_types)]

use crate::guard::{CallFailure, run_counted};
use crate::text;
use std::ffi::{CStr, c_char, c_void};
use tatami_tiled::TiledError;
use tatami_tiled::file_lists::{NewContent, read_files, write_files};

/// `tio_content`: a file to write or to read.
#[repr(C)]
pub struct tio_content {
    name: *const c_char,
    bytes: *mut c_void,
    length: u64,
    result: i64,
}

/// Converts the array of files.
///
/// # Safety
/// NULL, or an array of `count` items.
unsafe fn contents_argument<'a>(
    files: *mut tio_content,
    count: usize,
) -> Result<&'a mut [tio_content], CallFailure> {
    if count == 0 {
        return Ok(&mut []);
    }
    if files.is_null() {
        return Err(CallFailure::Argument("there are no files"));
    }
    // SAFETY: the caller's.
    let files = unsafe { std::slice::from_raw_parts_mut(files, count) };
    let lacks = |file: &tio_content| file.name.is_null() || file.bytes.is_null() && file.length > 0;
    match files.iter().any(lacks) {
        true => Err(CallFailure::Argument("a file has no name, or no bytes")),
        false => Ok(files),
    }
}

/// Stores the result of each file, and returns the number of failures.
fn store_results<T>(
    files: &mut [tio_content],
    results: Vec<Result<T, TiledError>>,
    mut finish: impl FnMut(&mut tio_content, T) -> i64,
) -> i64 {
    let mut failed = 0;
    for (file, result) in files.iter_mut().zip(results) {
        file.result = match result {
            Ok(value) => finish(file, value),
            Err(error) => {
                failed += 1;
                -i64::from(error.errno.raw_os_error())
            }
        };
    }
    failed
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tio_write_files(
    dir: *const c_char,
    files: *mut tio_content,
    count: usize,
    mode: u32,
) -> i64 {
    run_counted(|| {
        // SAFETY: the caller's.
        let (dir, files) = unsafe { (text::path_argument(dir)?, contents_argument(files, count)?) };
        let new: Vec<NewContent<'_>> = files
            .iter()
            .map(|file| NewContent {
                // SAFETY: the name is a string, as `contents_argument` and the header say.
                name: unsafe { CStr::from_ptr(file.name) }.to_bytes(),
                bytes: match file.length {
                    0 => &[],
                    // SAFETY: the caller has so many bytes there.
                    length => unsafe {
                        std::slice::from_raw_parts(file.bytes.cast::<u8>(), length as usize)
                    },
                },
            })
            .collect();
        let results = write_files(dir, &new, (mode & 0o7777) as u16)?;
        Ok(store_results(files, results, |file, ()| file.length as i64))
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tio_read_files(
    dir: *const c_char,
    files: *mut tio_content,
    count: usize,
) -> i64 {
    run_counted(|| {
        // SAFETY: the caller's.
        let (dir, files) = unsafe { (text::path_argument(dir)?, contents_argument(files, count)?) };
        // SAFETY: the names are strings, as `contents_argument` and the header say.
        let names = files.iter().map(|file| unsafe { CStr::from_ptr(file.name) }.to_bytes());
        let results = read_files(dir, &names.collect::<Vec<_>>())?;
        Ok(store_results(files, results, |file, bytes: Vec<u8>| {
            let room = usize::try_from(file.length).unwrap_or(usize::MAX).min(bytes.len());
            if room > 0 {
                // SAFETY: the caller has room for `length` bytes there.
                unsafe {
                    std::ptr::copy_nonoverlapping(bytes.as_ptr(), file.bytes.cast::<u8>(), room);
                }
            }
            bytes.len() as i64
        }))
    })
}
