//! Conversion of the daemons' error numbers for the kernel.

use tatami_wire::Errno;

/// Converts an error for the program.
///
/// `ENOSYS` must never reach the kernel, because the kernel would disable the operation for this
/// mount for ever. `EINTR` must not either, because it would report a signal that nobody sent. The
/// exception is an operation that was given up because of a signal of the program.
pub(crate) fn to_kernel_errno(errno: Errno) -> i32 {
    if errno == Errno::EHOSTDOWN && tatami_client::is_asker_ending() {
        return libc::EINTR;
    }
    let number = map_errno(errno);
    if number == libc::EIO {
        tatami_fuse::note_cause(tatami_client::take_cause().unwrap_or_else(|| errno.to_string()));
    }
    number
}

fn map_errno(errno: Errno) -> i32 {
    match errno {
        Errno::EKEYREJECTED | Errno::EKEYEXPIRED => libc::EACCES,
        Errno::ENOSYS => libc::EOPNOTSUPP,
        Errno::EINTR | Errno::EPROTO => libc::EIO,
        Errno::ECONNREFUSED => libc::EHOSTDOWN,
        // The limit is that of this process, not of the program.
        Errno(libc::EMFILE) => libc::ENFILE,
        Errno(n) if (1..=133).contains(&n) => n,
        Errno(_) => libc::EIO,
    }
}

/// Like [`to_kernel_errno`], for an operation on an inode that the kernel knows. If the inode is
/// gone, another mount has removed it. On `ESTALE` the kernel looks the path up once more, and the
/// program gets the right error.
pub(crate) fn inode_errno(errno: Errno) -> i32 {
    match errno {
        Errno::ENOENT => libc::ESTALE,
        other => to_kernel_errno(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_would_mislead_the_kernel_comes_through() {
        assert_eq!(to_kernel_errno(Errno::ENOSYS), libc::EOPNOTSUPP);
        assert_eq!(to_kernel_errno(Errno::EINTR), libc::EIO);
        assert_eq!(to_kernel_errno(Errno(0)), libc::EIO);
        assert_eq!(to_kernel_errno(Errno(-5)), libc::EIO);
        assert_eq!(to_kernel_errno(Errno(100_000)), libc::EIO);
        assert_eq!(to_kernel_errno(Errno::ENOENT), libc::ENOENT);
        assert_eq!(inode_errno(Errno::ENOENT), libc::ESTALE);
        assert_eq!(to_kernel_errno(Errno::EKEYREJECTED), libc::EACCES);
    }
}
