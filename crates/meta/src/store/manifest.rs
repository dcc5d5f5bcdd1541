//! Checks the lists of tables against their checksums before fjall reads them.
//!
//! fjall has a checksum in front of each block of its tables, and verifies it at each read. The
//! list of a keyspace's tables (`v<id>`) has one, too, beside the list's number in `current`, but
//! fjall 3 does not verify it. A table that a damaged list does not name would be removed as
//! unfinished.
//!
//! ```text
//! current := id u64 │ xxh3 of the file v<id> u128 │ kind of checksum u8 = 0
//! ```
//!
//! Numbers are little-endian. (lsm-tree 3.1, `src/version/persist.rs`.)

use super::StoreError;
use std::io::ErrorKind;
use std::path::Path;
use xxhash_rust::xxh3::xxh3_128;

/// Bytes of `current`.
const CURRENT: usize = 25;

/// Checks the lists of all keyspaces of the database in `dir`.
///
/// # Errors
/// [`StoreError::Damaged`], and those of the disk.
pub(super) fn check_manifests(dir: &Path) -> Result<(), StoreError> {
    let keyspaces = dir.join("keyspaces");
    let entries = match std::fs::read_dir(&keyspaces) {
        Ok(entries) => entries,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(super::disk_error::io_error(&keyspaces, "list", e)),
    };
    for entry in entries {
        let entry = entry.map_err(|e| super::disk_error::io_error(&keyspaces, "list", e))?;
        check_keyspace(&entry.path())?;
    }
    Ok(())
}

fn check_keyspace(dir: &Path) -> Result<(), StoreError> {
    let current = dir.join("current");
    let bytes = match std::fs::read(&current) {
        Ok(bytes) => bytes,
        // The process died while it made the keyspace: fjall removes the rest.
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(());
        }
        Err(e) => return Err(super::disk_error::io_error(&current, "read", e)),
    };
    let damaged = |path: &Path, what: &str| StoreError::Damaged {
        path: path.display().to_string(),
        what: what.to_owned(),
    };
    let (Some(id), Some(sum)) = (bytes.first_chunk::<8>(), bytes.get(8..24)) else {
        return Err(damaged(&current, "it is too short"));
    };
    if bytes.len() != CURRENT || bytes[CURRENT - 1] != 0 {
        return Err(damaged(&current, "it has a checksum of an unknown kind"));
    }
    let list = dir.join(format!("v{}", u64::from_le_bytes(*id)));
    let bytes = match std::fs::read(&list) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == ErrorKind::NotFound => {
            return Err(damaged(&current, "the list of tables that it names is not there"));
        }
        Err(e) => return Err(super::disk_error::io_error(&list, "read", e)),
    };
    match xxh3_128(&bytes).to_le_bytes() == sum {
        true => Ok(()),
        false => Err(damaged(&list, "the list of tables does not match its checksum")),
    }
}
