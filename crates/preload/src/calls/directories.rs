//! opendir(3), readdir(3), scandir(3) and their relatives.

use super::descriptors::close;
use super::opens::open_at;
use crate::export::c_functions;
use crate::inside::{Outcome, route, routes_calls};
use crate::raw::{self, next, store};
use crate::streams::{DirReader, DirStream, entry_type};
use crate::table::{DescriptorKind, file_of, kind_of};
use libc::{AT_FDCWD, DIR, dirent};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_long, c_void};
use std::ptr::null_mut;
use tatami_wire::{Errno, InodeKind};

const OPEN_FLAGS: c_int = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;

/// Makes a stream of a descriptor; the C library's own one of a foreign descriptor.
fn stream_of(fd: c_int) -> *mut DIR {
    let pass = || next!(fdopendir(fd => c_int) -> *mut DIR, null_mut());
    if kind_of(fd) == DescriptorKind::Foreign {
        return pass();
    }
    route(
        || match file_of(fd) {
            Some(file) if file.kind == InodeKind::Dir && !file.is_path => {
                Ok(Outcome::Done(DirStream::open(fd, &file).cast()))
            }
            Some(_) => Err(Errno::ENOTDIR),
            None => Ok(Outcome::Pass),
        },
        |_| pass(),
    )
}

fn open_stream(dirfd: c_int, path: *const c_char) -> *mut DIR {
    let fd = open_at(dirfd, path, OPEN_FLAGS, 0);
    if fd < 0 {
        return null_mut();
    }
    let stream = stream_of(fd);
    if stream.is_null() {
        let error = raw::errno();
        // SAFETY: the descriptor was opened above.
        unsafe { close(fd) };
        raw::set_errno(error);
    }
    stream
}

fn read_stream(stream: &mut DirStream) -> *mut dirent {
    route(|| stream.read().map(Outcome::Done), |_| null_mut())
}

c_functions! {
    fn opendir(path: *const c_char) -> *mut DIR {
        if !routes_calls() {
            return next!(opendir(path => *const c_char) -> *mut DIR, null_mut());
        }
        open_stream(AT_FDCWD, path)
    }
    fn fdopendir(fd: c_int) -> *mut DIR { stream_of(fd) }
    fn readdir(stream: *mut DIR) -> *mut dirent {
        match DirStream::find(stream) {
            Some(own) => read_stream(own),
            None => next!(readdir(stream => *mut DIR) -> *mut dirent, null_mut()),
        }
    }
    fn readdir64(stream: *mut DIR) -> *mut dirent {
        match DirStream::find(stream) {
            Some(own) => read_stream(own),
            None => next!(readdir64(stream => *mut DIR) -> *mut dirent, null_mut()),
        }
    }
    fn readdir_r(stream: *mut DIR, entry: *mut dirent, result: *mut *mut dirent) -> c_int {
        match DirStream::find(stream) {
            Some(own) => read_into(own, entry, result),
            None => next!(readdir_r(
                stream => *mut DIR, entry => *mut dirent, result => *mut *mut dirent
            ) -> c_int, libc::ENOSYS),
        }
    }
    fn readdir64_r(stream: *mut DIR, entry: *mut dirent, result: *mut *mut dirent) -> c_int {
        match DirStream::find(stream) {
            Some(own) => read_into(own, entry, result),
            None => next!(readdir64_r(
                stream => *mut DIR, entry => *mut dirent, result => *mut *mut dirent
            ) -> c_int, libc::ENOSYS),
        }
    }
    fn closedir(stream: *mut DIR) -> c_int {
        match DirStream::find(stream) {
            // SAFETY: the stream owns its descriptor.
            Some(own) => unsafe { close(own.close()) },
            None => next!(closedir(stream => *mut DIR) -> c_int, -1),
        }
    }
    fn rewinddir(stream: *mut DIR) {
        match DirStream::find(stream) {
            Some(own) => own.reader().continue_after(0),
            None => next!(rewinddir(stream => *mut DIR) -> (), ()),
        }
    }
    fn telldir(stream: *mut DIR) -> c_long {
        match DirStream::find(stream) {
            Some(own) => own.reader().position() as c_long,
            None => next!(telldir(stream => *mut DIR) -> c_long, -1),
        }
    }
    fn seekdir(stream: *mut DIR, position: c_long) {
        match DirStream::find(stream) {
            Some(own) => own.reader().continue_after(position.unsigned_abs()),
            None => next!(seekdir(stream => *mut DIR, position => c_long) -> (), ()),
        }
    }
    fn dirfd(stream: *mut DIR) -> c_int {
        match DirStream::find(stream) {
            Some(own) => own.fd,
            None => next!(dirfd(stream => *mut DIR) -> c_int, -1),
        }
    }
}

/// Reads an entry into room of the program; the result is the error.
fn read_into(stream: &mut DirStream, entry: *mut dirent, result: *mut *mut dirent) -> c_int {
    raw::set_errno(0);
    let found = read_stream(stream);
    if found.is_null() {
        store(result, null_mut());
        return raw::errno();
    }
    // SAFETY: the entry is in memory of the stream, and the program passes room for one.
    unsafe { store(entry, found.read()) };
    store(result, entry);
    0
}

type DirFilter = Option<unsafe extern "C" fn(*const dirent) -> c_int>;
type DirOrder = Option<unsafe extern "C" fn(*mut *const dirent, *mut *const dirent) -> c_int>;

/// scandir(3), with the functions of this file.
fn scan(
    dirfd: c_int,
    path: *const c_char,
    list: *mut *mut *mut dirent,
    filter: DirFilter,
    order: DirOrder,
) -> c_int {
    let stream = open_stream(dirfd, path);
    if stream.is_null() {
        return -1;
    }
    let mut found: Vec<*mut dirent> = Vec::new();
    let end = loop {
        raw::set_errno(0);
        // SAFETY: the stream is open.
        let entry = unsafe { readdir64(stream) };
        if entry.is_null() {
            break raw::errno();
        }
        // SAFETY: the program's function takes an entry.
        if filter.is_some_and(|filter| unsafe { filter(entry) } == 0) {
            continue;
        }
        // SAFETY: an entry is as long as it says; the program frees the copies.
        unsafe {
            let len = usize::from((*entry).d_reclen);
            let copy = libc::malloc(len.max(size_of::<u64>())).cast::<dirent>();
            if copy.is_null() {
                break libc::ENOMEM;
            }
            std::ptr::copy_nonoverlapping(entry.cast::<u8>(), copy.cast::<u8>(), len);
            found.push(copy);
        }
    };
    // SAFETY: the stream is open.
    unsafe { closedir(stream) };
    // SAFETY: it allocates memory for the program.
    let array = unsafe { libc::malloc((found.len() + 1) * size_of::<usize>()) };
    let array = array.cast::<*mut dirent>();
    if end != 0 || array.is_null() {
        for entry in found {
            // SAFETY: it was allocated above.
            unsafe { libc::free(entry.cast()) };
        }
        raw::set_errno(if end == 0 { libc::ENOMEM } else { end });
        return -1;
    }
    for (n, entry) in found.iter().enumerate() {
        // SAFETY: the array has room for all.
        unsafe { array.add(n).write(*entry) };
    }
    if let Some(order) = order {
        // SAFETY: the program's function compares two places of the array.
        unsafe {
            let order: unsafe extern "C" fn(*const c_void, *const c_void) -> c_int =
                std::mem::transmute(order);
            libc::qsort(array.cast(), found.len(), size_of::<usize>(), Some(order));
        }
    }
    store(list, array);
    found.len() as c_int
}

c_functions! {
    fn scandir(
        path: *const c_char,
        list: *mut *mut *mut dirent,
        filter: DirFilter,
        order: DirOrder,
    ) -> c_int {
        scan(AT_FDCWD, path, list, filter, order)
    }
    fn scandir64(
        path: *const c_char,
        list: *mut *mut *mut dirent,
        filter: DirFilter,
        order: DirOrder,
    ) -> c_int {
        scan(AT_FDCWD, path, list, filter, order)
    }
    fn scandirat(
        dirfd: c_int,
        path: *const c_char,
        list: *mut *mut *mut dirent,
        filter: DirFilter,
        order: DirOrder,
    ) -> c_int {
        scan(dirfd, path, list, filter, order)
    }
    fn scandirat64(
        dirfd: c_int,
        path: *const c_char,
        list: *mut *mut *mut dirent,
        filter: DirFilter,
        order: DirOrder,
    ) -> c_int {
        scan(dirfd, path, list, filter, order)
    }
    fn getdents64(fd: c_int, place: *mut c_void, len: usize) -> isize {
        let pass = || {
            raw::call(libc::SYS_getdents64, &[fd as usize, place as usize, len]) as isize
        };
        if kind_of(fd) == DescriptorKind::Foreign {
            return pass();
        }
        route(
            || match file_of(fd) {
                Some(file) if file.kind == InodeKind::Dir => {
                    let room = raw::program_buffer(place, len);
                    fill_records(fd, file.ino, room).map(|n| Outcome::Done(n as isize))
                }
                Some(_) => Err(Errno::ENOTDIR),
                None => Ok(Outcome::Pass),
            },
            |_| pass(),
        )
    }
}

/// Readers of getdents64(2), by descriptor: they save that each call lists a part again.
static READERS: Mutex<Option<HashMap<c_int, (tatami_wire::Ino, DirReader)>>> = Mutex::new(None);

/// Bytes of a record before its name: inode, position, length and type.
const RECORD_HEAD: usize = 19;

/// Fills the room with records, from the position of the placeholder on.
fn fill_records(fd: c_int, dir: tatami_wire::Ino, room: &mut [u8]) -> Result<usize, Errno> {
    let at = raw::call(libc::SYS_lseek, &[fd as usize, 0, libc::SEEK_CUR as usize]) as u64;
    let mut readers = READERS.lock();
    let readers = readers.get_or_insert_default();
    let (known, reader) = readers.entry(fd).or_insert_with(|| (dir, DirReader::new(dir)));
    if *known != dir || reader.position() != at {
        (*known, *reader) = (dir, DirReader::new(dir));
        reader.continue_after(at);
    }
    let (mut used, mut after) = (0, at);
    while let Some(entry) = reader.next_entry()? {
        let len = (RECORD_HEAD + entry.name.len() + 1).next_multiple_of(8);
        let Some(record) = room.get_mut(used..used + len) else {
            reader.continue_after(after);
            if used == 0 {
                return Err(Errno::EINVAL);
            }
            break;
        };
        record.fill(0);
        record[..8].copy_from_slice(&entry.ino.0.to_ne_bytes());
        record[8..16].copy_from_slice(&entry.cookie.to_ne_bytes());
        record[16..18].copy_from_slice(&(len as u16).to_ne_bytes());
        record[18] = entry_type(entry.kind);
        record[RECORD_HEAD..RECORD_HEAD + entry.name.len()].copy_from_slice(entry.name);
        (used, after) = (used + len, entry.cookie);
    }
    if used == 0 {
        readers.remove(&fd);
    }
    raw::call(libc::SYS_lseek, &[fd as usize, after as usize, libc::SEEK_SET as usize]);
    Ok(used)
}
