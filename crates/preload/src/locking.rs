//! Locks of flock(2) and fcntl(2), which hold on all nodes.

use crate::lock_ends::{file_owner, process_owner, record_range_lock};
use crate::session::{Session, session};
use crate::table::ProgramFile;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tatami_client::Unbuffered;
use tatami_wire::lock::{ByteRange, Lock, LockKind, LockSort};
use tatami_wire::{Errno, InodeKind};

/// A lock is waited for in steps of this time.
const WAIT: Duration = Duration::from_secs(3600);

static WAITS: AtomicU64 = AtomicU64::new(1);

fn set_lock(session: &Session, file: &ProgramFile, lock: &Lock, wait: bool) -> Result<(), Errno> {
    let client = &session.client;
    if !wait {
        return client.set_lock(file.ino, lock, 0, None, &Unbuffered).map(drop);
    }
    loop {
        let number = WAITS.fetch_add(1, Relaxed);
        match client.wait_for_lock(file.ino, lock, number, WAIT, &Unbuffered) {
            Err(Errno::EAGAIN) => {}
            done => return done,
        }
    }
}

/// flock(2).
///
/// # Errors
/// Those of flock(2).
pub(crate) fn lock_whole(file: &Arc<ProgramFile>, operation: c_int) -> Result<c_int, Errno> {
    let session = session()?;
    let owner = file_owner(file);
    let kind = match operation & !libc::LOCK_NB {
        libc::LOCK_UN => {
            let owner = (LockSort::Whole, owner);
            session.client.free_lock(file.ino, owner, ByteRange::ALL, &Unbuffered)?;
            return Ok(0);
        }
        libc::LOCK_SH => LockKind::Shared,
        libc::LOCK_EX => LockKind::Exclusive,
        _ => return Err(Errno::EINVAL),
    };
    file.is_locked.store(true, Relaxed);
    let (sort, pid, span) = (LockSort::Whole, std::process::id(), ByteRange::ALL);
    let lock = Lock { sort, owner, pid, span, kind };
    set_lock(&session, file, &lock, operation & libc::LOCK_NB == 0)?;
    Ok(0)
}

/// Returns the bytes of a lock; `base` is where its start counts from.
fn span_of(asked: &libc::flock, base: u64) -> Result<ByteRange, Errno> {
    let start = base.checked_add_signed(asked.l_start).ok_or(Errno::EINVAL)?;
    let span = match asked.l_len {
        0 => ByteRange { start, end: ByteRange::END },
        len if len > 0 => {
            let end = start.checked_add(len as u64 - 1).ok_or(Errno::EOVERFLOW)?;
            ByteRange { start, end }
        }
        len => {
            let first = start.checked_add_signed(len).ok_or(Errno::EINVAL)?;
            ByteRange { start: first, end: start.checked_sub(1).ok_or(Errno::EINVAL)? }
        }
    };
    if span.is_valid() { Ok(span) } else { Err(Errno::EOVERFLOW) }
}

/// The locks of fcntl(2); `base` is the position that the lock counts from.
///
/// # Errors
/// Those of fcntl(2).
pub(crate) fn lock_range(
    file: &Arc<ProgramFile>,
    command: c_int,
    asked: &mut libc::flock,
    base: u64,
) -> Result<c_int, Errno> {
    if file.kind != InodeKind::File {
        return Err(Errno::EINVAL);
    }
    let session = session()?;
    let by_file = matches!(command, libc::F_OFD_SETLK | libc::F_OFD_SETLKW | libc::F_OFD_GETLK);
    let owner = if by_file { file_owner(file) } else { process_owner() };
    let span = span_of(asked, base)?;
    let (sort, pid) = (LockSort::Range, std::process::id());
    let kind = match c_int::from(asked.l_type) {
        libc::F_RDLCK => LockKind::Shared,
        libc::F_WRLCK => LockKind::Exclusive,
        libc::F_UNLCK if !matches!(command, libc::F_GETLK | libc::F_OFD_GETLK) => {
            session.client.free_lock(file.ino, (sort, owner), span, &Unbuffered)?;
            return Ok(0);
        }
        _ => return Err(Errno::EINVAL),
    };
    let lock = Lock { sort, owner, pid, span, kind };
    if matches!(command, libc::F_GETLK | libc::F_OFD_GETLK) {
        match session.client.test_lock(file.ino, &lock, &Unbuffered)? {
            None => asked.l_type = libc::F_UNLCK as _,
            Some(held) => {
                asked.l_type = match held.kind {
                    LockKind::Shared => libc::F_RDLCK as _,
                    LockKind::Exclusive => libc::F_WRLCK as _,
                };
                asked.l_whence = libc::SEEK_SET as _;
                asked.l_start = held.span.start as i64;
                asked.l_len = match held.span.end {
                    ByteRange::END => 0,
                    end => (end - held.span.start + 1) as i64,
                };
                asked.l_pid = held.pid as i32;
            }
        }
        return Ok(0);
    }
    let may = match kind {
        LockKind::Shared => file.access.read,
        LockKind::Exclusive => file.access.write,
    };
    if !may {
        return Err(Errno::EBADF);
    }
    if by_file {
        file.is_locked.store(true, Relaxed);
    } else {
        record_range_lock();
    }
    set_lock(&session, file, &lock, matches!(command, libc::F_SETLKW | libc::F_OFD_SETLKW))?;
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(start: i64, len: i64, base: u64) -> Result<(u64, u64), Errno> {
        // SAFETY: all fields are numbers, for which zero is a value.
        let mut asked: libc::flock = unsafe { std::mem::zeroed() };
        (asked.l_start, asked.l_len) = (start, len);
        span_of(&asked, base).map(|span| (span.start, span.end))
    }

    #[test]
    fn a_length_of_zero_reaches_to_the_end_and_a_negative_one_goes_back() {
        assert_eq!(span(5, 0, 10), Ok((15, ByteRange::END)));
        assert_eq!(span(5, 10, 0), Ok((5, 14)));
        assert_eq!(span(0, -3, 10), Ok((7, 9)));
        assert_eq!(span(-1, 1, 0), Err(Errno::EINVAL));
        assert_eq!(span(0, -1, 0), Err(Errno::EINVAL));
    }
}
