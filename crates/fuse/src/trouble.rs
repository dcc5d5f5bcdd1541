//! The log of `EIO` replies. Each has a line with its cause, because the number alone does not help
//! a user.

use crate::abi::op;
use crate::request::Header;
use parking_lot::Mutex;
use std::cell::RefCell;
use std::time::{Duration, Instant};

/// Most lines within [`SPAN`]. Further ones are counted, and the next line has their number.
const LINES: u32 = 20;
const SPAN: Duration = Duration::from_secs(10);

thread_local! {
    static CAUSE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Records the cause of an `EIO` for the request that this thread handles.
pub fn note_cause(cause: String) {
    CAUSE.with_borrow_mut(|noted| *noted = Some(cause));
}

/// Clears the cause, before the next request.
pub(crate) fn forget_cause() {
    CAUSE.with_borrow_mut(|noted| *noted = None);
}

/// The request of a reply.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Asked {
    opcode: u32,
    node: u64,
    pid: u32,
}

impl From<&Header> for Asked {
    fn from(header: &Header) -> Asked {
        Asked { opcode: header.opcode, node: header.node, pid: header.pid }
    }
}

impl Asked {
    /// Writes the log line.
    pub(crate) fn log_eio(self) {
        static LIMIT: Mutex<Option<Limit>> = Mutex::new(None);
        let now = Instant::now();
        let Some(untold) = LIMIT.lock().get_or_insert_with(|| Limit::new(now)).admit(now) else {
            return;
        };
        let cause = CAUSE.with_borrow_mut(Option::take);
        let cause = cause.as_deref().unwrap_or("the request was given up");
        let Asked { opcode, node, pid } = self;
        let operation = name(opcode);
        tracing::error!(
            operation,
            ino = format_args!("{node:016x}"),
            pid,
            cause,
            untold,
            "a program was answered EIO"
        );
    }
}

/// A rate limit of log lines.
struct Limit {
    since: Instant,
    lines: u32,
    untold: u64,
}

impl Limit {
    fn new(now: Instant) -> Limit {
        Limit { since: now, lines: 0, untold: 0 }
    }

    /// Returns the number of suppressed lines since the last one, or `None` to suppress this one.
    fn admit(&mut self, now: Instant) -> Option<u64> {
        if now.saturating_duration_since(self.since) >= SPAN {
            (self.since, self.lines) = (now, 0);
        }
        if self.lines >= LINES {
            self.untold += 1;
            return None;
        }
        self.lines += 1;
        Some(std::mem::take(&mut self.untold))
    }
}

/// Returns the name of an operation, as in `linux/fuse.h`.
fn name(opcode: u32) -> &'static str {
    match opcode {
        op::LOOKUP => "LOOKUP",
        op::GETATTR => "GETATTR",
        op::SETATTR => "SETATTR",
        op::READLINK => "READLINK",
        op::SYMLINK => "SYMLINK",
        op::MKNOD => "MKNOD",
        op::MKDIR => "MKDIR",
        op::UNLINK => "UNLINK",
        op::RMDIR => "RMDIR",
        op::RENAME | op::RENAME2 => "RENAME",
        op::LINK => "LINK",
        op::OPEN => "OPEN",
        op::READ => "READ",
        op::WRITE => "WRITE",
        op::STATFS => "STATFS",
        op::FSYNC => "FSYNC",
        op::SETXATTR => "SETXATTR",
        op::GETXATTR => "GETXATTR",
        op::LISTXATTR => "LISTXATTR",
        op::REMOVEXATTR => "REMOVEXATTR",
        op::FLUSH => "FLUSH",
        op::OPENDIR => "OPENDIR",
        op::READDIR | op::READDIRPLUS => "READDIR",
        op::FSYNCDIR => "FSYNCDIR",
        op::GETLK => "GETLK",
        op::SETLK | op::SETLKW => "SETLK",
        op::CREATE => "CREATE",
        op::FALLOCATE => "FALLOCATE",
        op::STATX => "STATX",
        op::TMPFILE => "TMPFILE",
        _ => "another",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_limited_and_none_is_forgotten() {
        let start = Instant::now();
        let mut limit = Limit::new(start);
        for _ in 0..LINES {
            assert_eq!(limit.admit(start), Some(0));
        }
        for _ in 0..7 {
            assert_eq!(limit.admit(start + SPAN / 2), None);
        }
        assert_eq!(limit.admit(start + SPAN), Some(7));
        assert_eq!(limit.admit(start + SPAN), Some(0));
    }
}
