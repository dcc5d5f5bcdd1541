//! Open files that a program inherits from the one that started it.
//!
//! A placeholder says by its name what it stands for. A native descriptor is recognized by the
//! number of the file behind it: the starting program lists these in an environment variable. Both
//! are input from outside, and are checked.

use crate::files::{PLACEHOLDER_NAME, native_state};
use crate::raw;
use crate::session::session;
use crate::settings::{FILES_VARIABLE, read_variable};
use crate::table::{self, ProgramFile, ReportMark, add_number};
use std::fmt::Write as _;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use tatami_wire::{Access, Ino, InodeKind};

/// Most native files in the variable.
const FILES_MAX: usize = 256;

/// A native file that a program hands on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HandedFile {
    /// The file of the machine: device and inode.
    pub(crate) device: u64,
    pub(crate) inode: u64,
    /// The file of the volume.
    pub(crate) ino: Ino,
    pub(crate) access: Access,
    /// The program that ran before in this process had it open for writing.
    pub(crate) takes_over: bool,
}

fn access_text(access: Access) -> &'static str {
    match access {
        Access { read: true, write: true } => "rw",
        Access { write: true, .. } => "w",
        _ => "r",
    }
}

fn parse_access(text: &str) -> Option<Access> {
    match text {
        "rw" => Some(Access::BOTH),
        "w" => Some(Access::WRITE),
        "r" => Some(Access::READ),
        _ => None,
    }
}

/// Returns the text of files for the variable.
pub(crate) fn encode_files(files: &[HandedFile]) -> String {
    let mut text = String::new();
    for file in files.iter().take(FILES_MAX) {
        let HandedFile { device, inode, ino, access, takes_over } = file;
        let (access, end) = (access_text(*access), if *takes_over { "!" } else { "" });
        // Writing to a string does not fail.
        let _ = write!(text, "{device:x}-{inode:x}-{:x}-{access}{end},", ino.0);
    }
    text
}

/// Reads the text of the variable. Parts that make no sense are left out.
pub(crate) fn parse_files(text: &[u8]) -> Vec<HandedFile> {
    let Ok(text) = std::str::from_utf8(text) else { return Vec::new() };
    text.split(',').filter_map(parse_file).take(FILES_MAX).collect()
}

fn parse_file(text: &str) -> Option<HandedFile> {
    let mut parts = text.split('-');
    let mut number = || u64::from_str_radix(parts.next()?, 16).ok();
    let (device, inode, ino) = (number()?, number()?, Ino(number()?));
    let access = parts.next()?;
    if parts.next().is_some() {
        return None;
    }
    let takes_over = access.ends_with('!');
    let access = parse_access(access.trim_end_matches('!'))?;
    Some(HandedFile { device, inode, ino, access, takes_over })
}

/// Reads the name of a placeholder, as `/proc/self/fd` shows it. Returns the open file.
pub(crate) fn parse_placeholder(link: &[u8]) -> Option<ProgramFile> {
    let link = std::str::from_utf8(link).ok()?;
    let name = link.strip_prefix("/memfd:")?.strip_prefix(PLACEHOLDER_NAME)?;
    let (ino, rest) = name.split_once(':')?;
    let ino = Ino(u64::from_str_radix(ino, 16).ok()?);
    let access = rest.strip_suffix(" (deleted)").unwrap_or(rest);
    match access {
        "d" => Some(ProgramFile::new(ino, InodeKind::Dir, Access::NONE)),
        "p" => {
            let mut file = ProgramFile::new(ino, InodeKind::File, Access::NONE);
            (file.is_path, file.stays_virtual) = (true, AtomicBool::new(true));
            Some(file)
        }
        _ => Some(ProgramFile::new(ino, InodeKind::File, parse_access(access)?)),
    }
}

/// Returns device and inode of the file behind a descriptor.
fn identity(fd: RawFd) -> Option<(u64, u64)> {
    // SAFETY: all fields are numbers, for which zero is a value.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    let place = std::ptr::from_mut(&mut stat) as usize;
    let done = raw::call(libc::SYS_fstat, &[fd as usize, place]);
    (done == 0).then_some((stat.st_dev, stat.st_ino))
}

/// Returns the native files that another program may inherit; `takes_over` if it runs in this
/// process.
pub(crate) fn list_handed(takes_over: bool) -> Vec<HandedFile> {
    let files = table::list_files();
    let native = files.iter().filter(|(_, file)| file.is_native.load(Relaxed));
    native
        .filter_map(|(fd, file)| {
            let (device, inode) = identity(*fd)?;
            let takes_over = takes_over && file.access.write;
            Some(HandedFile { device, inode, ino: file.ino, access: file.access, takes_over })
        })
        .collect()
}

fn open_numbers() -> Vec<RawFd> {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else { return Vec::new() };
    let number = |entry: std::fs::DirEntry| entry.file_name().to_str()?.parse().ok();
    entries.flatten().filter_map(number).collect()
}

/// Recognizes the descriptors that this program has inherited.
pub(crate) fn adopt_descriptors() {
    let handed = read_variable(FILES_VARIABLE).map(|text| parse_files(&text)).unwrap_or_default();
    let mut native: Vec<Option<Arc<ProgramFile>>> = vec![None; handed.len()];
    for fd in open_numbers() {
        let link = std::fs::read_link(format!("/proc/self/fd/{fd}")).unwrap_or_default();
        let link = link.as_os_str().as_encoded_bytes();
        if let Some(file) = parse_placeholder(link) {
            // A number beyond the table is of no use to the program.
            let _ = add_number(fd, &Arc::new(file));
            continue;
        }
        if handed.is_empty() || !link.starts_with(b"/") {
            continue;
        }
        let Some(id) = identity(fd) else { continue };
        let Some(at) = handed.iter().position(|h| (h.device, h.inode) == id) else { continue };
        let file = native[at].get_or_insert_with(|| {
            let mut file = ProgramFile::new(handed[at].ino, InodeKind::File, handed[at].access);
            file.is_native = AtomicBool::new(true);
            Arc::new(file)
        });
        let _ = add_number(fd, file);
    }
    record_marks();
    for (file, handed) in native.iter().zip(&handed) {
        let Some(file) = file.as_ref().filter(|_| handed.takes_over) else { continue };
        let Ok(session) = session() else { return };
        // The program before had it open. Without permission for a new open, only the state is
        // reported at the end.
        if let Ok(opened) = session.client.open(&crate::session::cred(), handed.ino, handed.access)
        {
            file.writer.store(session.generation, Relaxed);
            *file.opened.lock() = Some(opened);
        }
    }
}

/// Records the state of files that other processes have written until now: this one reports only
/// what changes from here on.
pub(crate) fn record_marks() {
    for (fd, file) in table::list_files() {
        if file.access.write
            && file.is_native.load(Relaxed)
            && let Ok(state) = native_state(fd)
        {
            let (size, mtime, changed) = (state.size, state.mtime, state.changed);
            *file.mark.lock() = Some(ReportMark { size, mtime, changed });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handed_files_survive_the_variable() {
        let files = [
            HandedFile {
                device: 0x801,
                inode: u64::MAX,
                ino: Ino(7),
                access: Access::BOTH,
                takes_over: true,
            },
            HandedFile {
                device: 1,
                inode: 2,
                ino: Ino(3),
                access: Access::READ,
                takes_over: false,
            },
        ];
        assert_eq!(parse_files(encode_files(&files).as_bytes()), files);
    }

    #[test]
    fn damaged_parts_are_left_out() {
        assert!(parse_files(b"1-2-3").is_empty());
        assert!(parse_files(b"1-2-3-x,,-,1-2-3-r-4,zz-1-1-r").is_empty());
        assert!(parse_files(b"\xff").is_empty());
        assert_eq!(parse_files(b"1-2-3-w,bad").len(), 1);
        let many = "1-2-3-r,".repeat(FILES_MAX + 9);
        assert_eq!(parse_files(many.as_bytes()).len(), FILES_MAX);
    }

    #[test]
    fn placeholders_are_recognized_by_their_names() {
        let read = |name: &str| {
            parse_placeholder(name.as_bytes()).map(|f| (f.ino.0, f.kind, f.access, f.is_path))
        };
        let file = InodeKind::File;
        assert_eq!(read("/memfd:tatami:1f:rw (deleted)"), Some((31, file, Access::BOTH, false)));
        assert_eq!(
            read("/memfd:tatami:2:d (deleted)"),
            Some((2, InodeKind::Dir, Access::NONE, false))
        );
        assert_eq!(read("/memfd:tatami:2:p (deleted)"), Some((2, file, Access::NONE, true)));
        assert_eq!(read("/memfd:other:2:r (deleted)"), None);
        assert_eq!(read("/memfd:tatami:x:r (deleted)"), None);
        assert_eq!(read("/memfd:tatami:2:q"), None);
        assert_eq!(read("/tmp/tatami:2:r"), None);
    }
}
