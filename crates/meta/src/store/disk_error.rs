//! Errors of the store on disk: fjall's, the log's and those of system calls, as the store's own.

use super::StoreError;
use super::log::ReadError;
use std::path::Path;

/// Reports whether the disk, or the user's quota, is full.
pub(super) fn no_space(e: &std::io::Error) -> bool {
    matches!(e.kind(), std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded)
}

/// Reports whether a full disk is the cause of an error of fjall, at any depth.
pub(super) fn is_full(e: &fjall::Error) -> bool {
    match e {
        fjall::Error::Io(e) => no_space(e),
        fjall::Error::Storage(e) => {
            let mut cause: Option<&dyn std::error::Error> = Some(e);
            while let Some(e) = cause {
                if e.downcast_ref::<std::io::Error>().is_some_and(no_space) {
                    return true;
                }
                cause = e.source();
            }
            false
        }
        _ => false,
    }
}

/// Converts an error of fjall at operation `op`.
pub(super) fn store_error(path: &Path, op: &'static str, e: fjall::Error) -> StoreError {
    if is_full(&e) {
        return StoreError::Full { path: path_text(path) };
    }
    match e {
        fjall::Error::Io(source) => io_error(path, op, source),
        fjall::Error::Locked => StoreError::Locked { path: path_text(path) },
        fjall::Error::InvalidVersion(v) => {
            let what = match v {
                Some(v) => format!("fjall format {v}"),
                None => "no fjall format known to it".into(),
            };
            StoreError::Format { path: path_text(path), what }
        }
        fjall::Error::Poisoned => StoreError::Poisoned { path: path_text(path), op },
        e => StoreError::Damaged { path: path_text(path), what: format!("{op}: {e}") },
    }
}

/// Makes an error of a system call at operation `op`.
pub(super) fn io_error(path: &Path, op: &'static str, source: std::io::Error) -> StoreError {
    StoreError::Io { path: path_text(path), op, source }
}

/// Returns a path as text for messages.
pub(super) fn path_text(path: &Path) -> String {
    path.display().to_string()
}

/// Accepts a full disk, where the store can go on without the file.
pub(super) fn accept_full_disk(e: std::io::Error) -> std::io::Result<()> {
    if no_space(&e) { Ok(()) } else { Err(e) }
}

/// Converts an error of reading a log.
pub(super) fn read_error(path: &Path, e: ReadError) -> StoreError {
    match e {
        ReadError::Io(e) => io_error(path, "read", e),
        ReadError::Format(format) => {
            StoreError::Format { path: path_text(path), what: format!("a log of format {format}") }
        }
        ReadError::Damaged(what) => StoreError::Lost { path: path_text(path), at: 0, what },
    }
}
