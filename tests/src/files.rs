//! Small operations on files that many tests use. All of them panic, with the path, when the file
//! system refuses.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// Writes a whole file: open(O_CREAT | O_TRUNC), write, close.
pub fn put(path: impl AsRef<Path>, bytes: impl AsRef<[u8]>) {
    let path = path.as_ref();
    fs::write(path, bytes).unwrap_or_else(|e| panic!("write {}: {e}", path.display()));
}

/// Reads a whole file: open, read to the end, close.
pub fn get(path: impl AsRef<Path>) -> Vec<u8> {
    let path = path.as_ref();
    fs::read(path).unwrap_or_else(|e| panic!("read {}: {e}", path.display()))
}

/// Opens an existing file for reading and writing.
pub fn open(path: impl AsRef<Path>) -> File {
    open_with(path, 0)
}

/// Opens for reading and writing, with more flags, such as `libc::O_APPEND`.
pub fn open_with(path: impl AsRef<Path>, flags: i32) -> File {
    let path = path.as_ref();
    OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(flags)
        .open(path)
        .unwrap_or_else(|e| panic!("open {} with {flags:#x}: {e}", path.display()))
}

/// Creates or truncates a file, open for reading and writing.
pub fn create(path: impl AsRef<Path>) -> File {
    let path = path.as_ref();
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(path)
        .unwrap_or_else(|e| panic!("create {}: {e}", path.display()))
}

/// Returns the mount through which a test makes entry `n` of a directory with `entries` of them:
/// the second one for some of the last. A directory with more than 1,024 entries splits when a
/// second client changes it.
pub fn pick_mount(mounts: [&Path; 2], n: usize, entries: usize) -> &Path {
    const LAST: usize = 16;
    mounts[usize::from(n + LAST >= entries && n % 2 == 1)]
}

/// Makes a directory with so many empty files, named by numbers: see [`pick_mount`].
pub fn fill_directory(mounts: [&Path; 2], dir: &str, files: usize) {
    let path = mounts[0].join(dir);
    fs::create_dir(&path).unwrap_or_else(|e| panic!("mkdir {}: {e}", path.display()));
    for n in 0..files {
        put(pick_mount(mounts, n, files).join(dir).join(n.to_string()), "");
    }
}

/// Returns all bytes of an open file, by pread.
pub fn bytes_of(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; file.metadata().expect("fstat of an open file").len() as usize];
    file.read_exact_at(&mut bytes, 0).expect("as many bytes as fstat told");
    bytes
}

/// Calls lstat(2).
pub fn stat(path: impl AsRef<Path>) -> fs::Metadata {
    let path = path.as_ref();
    fs::symlink_metadata(path).unwrap_or_else(|e| panic!("lstat {}: {e}", path.display()))
}

/// Returns the names in a directory, sorted.
pub fn names(path: impl AsRef<Path>) -> Vec<String> {
    let path = path.as_ref();
    let list = fs::read_dir(path).unwrap_or_else(|e| panic!("readdir {}: {e}", path.display()));
    let mut names: Vec<String> = list
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// Returns the error number of an operation that must fail.
pub fn refused<T>(result: std::io::Result<T>) -> i32 {
    match result {
        Ok(_) => panic!("this should have failed"),
        Err(error) => error.raw_os_error().unwrap_or_else(|| panic!("no errno: {error}")),
    }
}
