//! Error numbers of the overlay.

/// A result with the error number for the kernel.
pub(super) type OverlayResult<T> = Result<T, i32>;

/// Returns the error number of a system error.
pub(super) fn io_errno(error: std::io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}
