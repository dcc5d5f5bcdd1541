//! read(2), write(2), lseek(2), fsync(2) and their relatives.

use crate::closes;
use crate::export::c_functions;
use crate::files::{data_of, make_native, report_state, set_size};
use crate::inside::{Outcome, route};
use crate::raw::{self, program_buffer, program_bytes, program_vector};
use crate::session::session;
use crate::table::{DescriptorKind, file_of, kind_of};
use crate::transfer::on_virtual;
use std::ffi::{c_int, c_void};
use tatami_wire::object::AllocMode;
use tatami_wire::{Errno, InodeKind};

/// Runs a call on a descriptor. Most are none of the volume, which costs one look at a table.
fn route_fd<T: crate::inside::FailedResult>(
    fd: c_int,
    work: impl FnOnce() -> Result<Outcome<T>, Errno>,
    pass: impl FnOnce() -> T,
) -> T {
    match kind_of(fd) {
        DescriptorKind::Placeholder => route(work, |_| pass()),
        _ => pass(),
    }
}

fn offset_of(offset: i64) -> Result<u64, Errno> {
    u64::try_from(offset).map_err(|_| Errno::EINVAL)
}

fn read_fd(fd: c_int, place: *mut c_void, len: usize) -> isize {
    let work = || on_virtual(fd, |file| file.read(&mut [program_buffer(place, len)]));
    let count = || work().map(to_count);
    route_fd(fd, count, || raw::call(libc::SYS_read, &[fd as usize, place as usize, len]) as isize)
}

fn write_fd(fd: c_int, bytes: *const c_void, len: usize) -> isize {
    let work = || on_virtual(fd, |file| file.write(&[program_bytes(bytes, len)]));
    let count = || work().map(to_count);
    route_fd(fd, count, || raw::call(libc::SYS_write, &[fd as usize, bytes as usize, len]) as isize)
}

fn to_count(done: Outcome<usize>) -> Outcome<isize> {
    match done {
        Outcome::Done(n) => Outcome::Done(n as isize),
        Outcome::Pass => Outcome::Pass,
        Outcome::PassAt(path) => Outcome::PassAt(path),
    }
}

fn read_fd_at(fd: c_int, place: *mut c_void, len: usize, offset: i64) -> isize {
    let work = || {
        on_virtual(fd, |file| file.read_at(&mut [program_buffer(place, len)], offset_of(offset)?))
    };
    route_fd(
        fd,
        || work().map(to_count),
        || {
            let args = [fd as usize, place as usize, len, offset as usize];
            raw::call(libc::SYS_pread64, &args) as isize
        },
    )
}

fn write_fd_at(fd: c_int, bytes: *const c_void, len: usize, offset: i64) -> isize {
    let work =
        || on_virtual(fd, |file| file.write_at(&[program_bytes(bytes, len)], offset_of(offset)?));
    route_fd(
        fd,
        || work().map(to_count),
        || {
            let args = [fd as usize, bytes as usize, len, offset as usize];
            raw::call(libc::SYS_pwrite64, &args) as isize
        },
    )
}

/// Reads into a vector; an offset of -1 is the position.
fn read_vector(
    fd: c_int,
    vector: *const libc::iovec,
    count: c_int,
    offset: i64,
    pass: impl FnOnce() -> isize,
) -> isize {
    let work = || {
        on_virtual(fd, |file| {
            let parts = program_vector(vector, count);
            let mut parts: Vec<_> =
                parts.iter().map(|part| program_buffer(part.iov_base, part.iov_len)).collect();
            if offset == -1 {
                file.read(&mut parts)
            } else {
                file.read_at(&mut parts, offset_of(offset)?)
            }
        })
    };
    route_fd(fd, || work().map(to_count), pass)
}

/// Writes a vector; an offset of -1 is the position.
fn write_vector(
    fd: c_int,
    vector: *const libc::iovec,
    count: c_int,
    offset: i64,
    pass: impl FnOnce() -> isize,
) -> isize {
    let work = || {
        on_virtual(fd, |file| {
            let parts = program_vector(vector, count);
            let parts: Vec<_> =
                parts.iter().map(|part| program_bytes(part.iov_base, part.iov_len)).collect();
            if offset == -1 {
                file.write(&parts)
            } else {
                file.write_at(&parts, offset_of(offset)?)
            }
        })
    };
    route_fd(fd, || work().map(to_count), pass)
}

fn vector_args(fd: c_int, vector: *const libc::iovec, count: c_int, offset: i64) -> [usize; 5] {
    // The kernel takes the offset in two halves, the upper one of which is 0 here.
    [fd as usize, vector as usize, count as usize, offset as usize, 0]
}

c_functions! {
    fn read(fd: c_int, place: *mut c_void, len: usize) -> isize { read_fd(fd, place, len) }
    fn __read_chk(fd: c_int, place: *mut c_void, len: usize, _limit: usize) -> isize {
        read_fd(fd, place, len)
    }
    fn write(fd: c_int, bytes: *const c_void, len: usize) -> isize { write_fd(fd, bytes, len) }
    fn pread(fd: c_int, place: *mut c_void, len: usize, offset: i64) -> isize {
        read_fd_at(fd, place, len, offset)
    }
    fn pread64(fd: c_int, place: *mut c_void, len: usize, offset: i64) -> isize {
        read_fd_at(fd, place, len, offset)
    }
    fn __pread_chk(
        fd: c_int,
        place: *mut c_void,
        len: usize,
        offset: i64,
        _limit: usize,
    ) -> isize {
        read_fd_at(fd, place, len, offset)
    }
    fn __pread64_chk(
        fd: c_int,
        place: *mut c_void,
        len: usize,
        offset: i64,
        _limit: usize,
    ) -> isize {
        read_fd_at(fd, place, len, offset)
    }
    fn pwrite(fd: c_int, bytes: *const c_void, len: usize, offset: i64) -> isize {
        write_fd_at(fd, bytes, len, offset)
    }
    fn pwrite64(fd: c_int, bytes: *const c_void, len: usize, offset: i64) -> isize {
        write_fd_at(fd, bytes, len, offset)
    }
    fn readv(fd: c_int, vector: *const libc::iovec, count: c_int) -> isize {
        read_vector(fd, vector, count, -1, || {
            raw::call(libc::SYS_readv, &[fd as usize, vector as usize, count as usize]) as isize
        })
    }
    fn writev(fd: c_int, vector: *const libc::iovec, count: c_int) -> isize {
        write_vector(fd, vector, count, -1, || {
            raw::call(libc::SYS_writev, &[fd as usize, vector as usize, count as usize]) as isize
        })
    }
    fn preadv(fd: c_int, vector: *const libc::iovec, count: c_int, offset: i64) -> isize {
        read_vector(fd, vector, count, offset.max(-2), || {
            raw::call(libc::SYS_preadv, &vector_args(fd, vector, count, offset)) as isize
        })
    }
    fn preadv64(fd: c_int, vector: *const libc::iovec, count: c_int, offset: i64) -> isize {
        read_vector(fd, vector, count, offset.max(-2), || {
            raw::call(libc::SYS_preadv, &vector_args(fd, vector, count, offset)) as isize
        })
    }
    fn pwritev(fd: c_int, vector: *const libc::iovec, count: c_int, offset: i64) -> isize {
        write_vector(fd, vector, count, offset.max(-2), || {
            raw::call(libc::SYS_pwritev, &vector_args(fd, vector, count, offset)) as isize
        })
    }
    fn pwritev64(fd: c_int, vector: *const libc::iovec, count: c_int, offset: i64) -> isize {
        write_vector(fd, vector, count, offset.max(-2), || {
            raw::call(libc::SYS_pwritev, &vector_args(fd, vector, count, offset)) as isize
        })
    }
    fn preadv2(
        fd: c_int,
        vector: *const libc::iovec,
        count: c_int,
        offset: i64,
        flags: c_int,
    ) -> isize {
        read_vector(fd, vector, count, offset, || {
            let [fd, vector, count, offset, high] = vector_args(fd, vector, count, offset);
            let args = [fd, vector, count, offset, high, flags as usize];
            raw::call(libc::SYS_preadv2, &args) as isize
        })
    }
    fn preadv64v2(
        fd: c_int,
        vector: *const libc::iovec,
        count: c_int,
        offset: i64,
        flags: c_int,
    ) -> isize {
        // SAFETY: the same function under another name.
        unsafe { preadv2(fd, vector, count, offset, flags) }
    }
    fn pwritev2(
        fd: c_int,
        vector: *const libc::iovec,
        count: c_int,
        offset: i64,
        flags: c_int,
    ) -> isize {
        if flags != 0 && kind_of(fd) == DescriptorKind::Placeholder {
            raw::set_errno(libc::EOPNOTSUPP);
            return -1;
        }
        write_vector(fd, vector, count, offset, || {
            let [fd, vector, count, offset, high] = vector_args(fd, vector, count, offset);
            let args = [fd, vector, count, offset, high, flags as usize];
            raw::call(libc::SYS_pwritev2, &args) as isize
        })
    }
    fn pwritev64v2(
        fd: c_int,
        vector: *const libc::iovec,
        count: c_int,
        offset: i64,
        flags: c_int,
    ) -> isize {
        // SAFETY: the same function under another name.
        unsafe { pwritev2(fd, vector, count, offset, flags) }
    }
    fn lseek(fd: c_int, offset: i64, whence: c_int) -> i64 { seek_fd(fd, offset, whence) }
    fn lseek64(fd: c_int, offset: i64, whence: c_int) -> i64 { seek_fd(fd, offset, whence) }
}

fn seek_fd(fd: c_int, offset: i64, whence: c_int) -> i64 {
    let pass =
        || raw::call(libc::SYS_lseek, &[fd as usize, offset as usize, whence as usize]) as i64;
    // A position is kept by the kernel: only the size needs the volume. A placeholder becomes
    // native at its first transfer.
    if matches!(whence, libc::SEEK_SET | libc::SEEK_CUR) {
        return pass();
    }
    let work = || {
        Ok(match on_virtual(fd, |file| file.move_position(offset, whence))? {
            Outcome::Done(at) => Outcome::Done(at as i64),
            Outcome::Pass => Outcome::Pass,
            Outcome::PassAt(path) => Outcome::PassAt(path),
        })
    };
    route_fd(fd, work, pass)
}

/// Makes a file durable.
fn sync_fd(fd: c_int, data_only: bool) -> Result<Outcome<c_int>, Errno> {
    let Some(file) = file_of(fd) else { return Ok(Outcome::Pass) };
    let session = session()?;
    if file.kind == InodeKind::Dir {
        session.client.sync_directory(file.ino)?;
        return Ok(Outcome::Done(0));
    }
    closes::send_closes();
    // First the bytes, then their size: a power cut must not leave a size without its bytes.
    data_of(&session, &file)?.sync(data_only)?;
    report_state(fd, &file, false)?;
    session.client.sync_inode(file.ino)?;
    Ok(Outcome::Done(0))
}

fn route_sync(fd: c_int, data_only: bool, number: libc::c_long) -> c_int {
    let pass = || raw::call_int(number, &[fd as usize]);
    match kind_of(fd) {
        DescriptorKind::Foreign => pass(),
        _ => route(|| sync_fd(fd, data_only), |_| pass()),
    }
}

fn cut_fd(fd: c_int, size: i64) -> c_int {
    let pass = || raw::call_int(libc::SYS_ftruncate, &[fd as usize, size as usize]);
    if kind_of(fd) == DescriptorKind::Foreign {
        return pass();
    }
    route(
        || {
            let Some(file) = file_of(fd) else { return Ok(Outcome::Pass) };
            if file.kind == InodeKind::Dir || file.is_path {
                return Err(Errno::EINVAL);
            }
            set_size(&*session()?, &file, offset_of(size)?)?;
            Ok(Outcome::Done(0))
        },
        |_| pass(),
    )
}

fn allocate_fd(fd: c_int, mode: c_int, offset: i64, len: i64) -> c_int {
    let work = || {
        on_virtual(fd, |file| {
            if !file.file.access.write {
                return Err(Errno::EBADF);
            }
            let mode = match mode {
                0 => AllocMode::Extend,
                libc::FALLOC_FL_KEEP_SIZE => AllocMode::Keep,
                m if m == libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE => {
                    AllocMode::Punch
                }
                libc::FALLOC_FL_ZERO_RANGE => AllocMode::Zero,
                m if m == libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE => {
                    AllocMode::ZeroKeep
                }
                _ => return Err(Errno::EOPNOTSUPP),
            };
            let data = data_of(&file.session, &file.file)?;
            file.file.wrote.store(true, std::sync::atomic::Ordering::Relaxed);
            data.allocate(mode, offset_of(offset)?, offset_of(len)?)?;
            Ok(0)
        })
    };
    route_fd(fd, work, || {
        let args = [fd as usize, mode as usize, offset as usize, len as usize];
        raw::call_int(libc::SYS_fallocate, &args)
    })
}

/// As [`allocate_fd`]; the result is the error.
fn allocate_posix(fd: c_int, offset: i64, len: i64) -> c_int {
    if offset < 0 || len <= 0 {
        return libc::EINVAL;
    }
    if kind_of(fd) == DescriptorKind::Foreign {
        return raw::next!(
            posix_fallocate64(fd => c_int, offset => i64, len => i64) -> c_int,
            libc::ENOSYS
        );
    }
    let before = raw::errno();
    let done = allocate_fd(fd, 0, offset, len);
    let error = if done == 0 { 0 } else { raw::errno() };
    raw::set_errno(before);
    error
}

/// Makes both descriptors native where they can be. Returns whether the kernel can copy.
fn can_kernel_copy(from: c_int, to: c_int) -> Result<bool, Errno> {
    for fd in [from, to] {
        if kind_of(fd) != DescriptorKind::Placeholder {
            continue;
        }
        let Some(file) = file_of(fd) else { continue };
        make_native(&*session()?, &file)?;
        if kind_of(fd) == DescriptorKind::Placeholder {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Copies in the kernel; the program must read and write where this fails with `refused`.
fn copy_in_kernel(from: c_int, to: c_int, refused: Errno, pass: impl FnOnce() -> isize) -> isize {
    let is_foreign = |fd| kind_of(fd) == DescriptorKind::Foreign;
    if is_foreign(from) && is_foreign(to) {
        return pass();
    }
    route(
        || match can_kernel_copy(from, to)? {
            true => Ok(Outcome::Pass),
            false => Err(refused),
        },
        |_| pass(),
    )
}

c_functions! {
    fn fsync(fd: c_int) -> c_int { route_sync(fd, false, libc::SYS_fsync) }
    fn fdatasync(fd: c_int) -> c_int { route_sync(fd, true, libc::SYS_fdatasync) }
    fn syncfs(fd: c_int) -> c_int { route_sync(fd, false, libc::SYS_syncfs) }
    fn ftruncate(fd: c_int, size: i64) -> c_int { cut_fd(fd, size) }
    fn ftruncate64(fd: c_int, size: i64) -> c_int { cut_fd(fd, size) }
    fn fallocate(fd: c_int, mode: c_int, offset: i64, len: i64) -> c_int {
        allocate_fd(fd, mode, offset, len)
    }
    fn fallocate64(fd: c_int, mode: c_int, offset: i64, len: i64) -> c_int {
        allocate_fd(fd, mode, offset, len)
    }
    fn posix_fallocate(fd: c_int, offset: i64, len: i64) -> c_int {
        allocate_posix(fd, offset, len)
    }
    fn posix_fallocate64(fd: c_int, offset: i64, len: i64) -> c_int {
        allocate_posix(fd, offset, len)
    }
    fn copy_file_range(
        from: c_int,
        from_at: *mut i64,
        to: c_int,
        to_at: *mut i64,
        len: usize,
        flags: u32,
    ) -> isize {
        copy_in_kernel(from, to, Errno::EXDEV, || {
            let (from_at, to_at) = (from_at as usize, to_at as usize);
            let args = [from as usize, from_at, to as usize, to_at, len, flags as usize];
            raw::call(libc::SYS_copy_file_range, &args) as isize
        })
    }
    fn sendfile(to: c_int, from: c_int, offset: *mut i64, count: usize) -> isize {
        copy_in_kernel(from, to, Errno::EINVAL, || {
            let args = [to as usize, from as usize, offset as usize, count];
            raw::call(libc::SYS_sendfile, &args) as isize
        })
    }
    fn sendfile64(to: c_int, from: c_int, offset: *mut i64, count: usize) -> isize {
        copy_in_kernel(from, to, Errno::EINVAL, || {
            let args = [to as usize, from as usize, offset as usize, count];
            raw::call(libc::SYS_sendfile, &args) as isize
        })
    }
    fn splice(
        from: c_int,
        from_at: *mut i64,
        to: c_int,
        to_at: *mut i64,
        len: usize,
        flags: u32,
    ) -> isize {
        copy_in_kernel(from, to, Errno::EINVAL, || {
            let (from_at, to_at) = (from_at as usize, to_at as usize);
            let args = [from as usize, from_at, to as usize, to_at, len, flags as usize];
            raw::call(libc::SYS_splice, &args) as isize
        })
    }
}
