//! The log of `EIO` replies. Each has a line with its cause, because the number alone does not help
//! a user.

use crate::abi::op;
use crate::request::RequestHeader;
use parking_lot::Mutex;
use std::cell::RefCell;
use std::time::{Duration, Instant};

/// Most lines within [`LOG_SPAN`]. Further ones are counted, and the next line has their number.
const LOG_LINES_MAX: u32 = 20;
const LOG_SPAN: Duration = Duration::from_secs(10);

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
pub(crate) struct RequestSummary {
    opcode: u32,
    node: u64,
    pid: u32,
}

impl From<&RequestHeader> for RequestSummary {
    fn from(header: &RequestHeader) -> RequestSummary {
        RequestSummary { opcode: header.opcode, node: header.node, pid: header.pid }
    }
}

impl RequestSummary {
    /// Writes the log line.
    pub(crate) fn log_eio(self) {
        static LIMIT: Mutex<Option<LogLimit>> = Mutex::new(None);
        let now = Instant::now();
        let Some(untold) = LIMIT.lock().get_or_insert_with(|| LogLimit::new(now)).admit_line(now)
        else {
            return;
        };
        let cause = CAUSE.with_borrow_mut(Option::take);
        let cause = cause.as_deref().unwrap_or("the request was given up");
        let RequestSummary { opcode, node, pid } = self;
        let operation = operation_name(opcode);
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
struct LogLimit {
    since: Instant,
    lines: u32,
    suppressed: u64,
}

impl LogLimit {
    fn new(now: Instant) -> LogLimit {
        LogLimit { since: now, lines: 0, suppressed: 0 }
    }

    /// Returns the number of suppressed lines since the last one, or `None` to suppress this one.
    fn admit_line(&mut self, now: Instant) -> Option<u64> {
        if now.saturating_duration_since(self.since) >= LOG_SPAN {
            (self.since, self.lines) = (now, 0);
        }
        if self.lines >= LOG_LINES_MAX {
            self.suppressed += 1;
            return None;
        }
        self.lines += 1;
        Some(std::mem::take(&mut self.suppressed))
    }
}

/// Returns the name of an operation, as in `linux/fuse.h`.
fn operation_name(opcode: u32) -> &'static str {
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
        let mut limit = LogLimit::new(start);
        for _ in 0..LOG_LINES_MAX {
            assert_eq!(limit.admit_line(start), Some(0));
        }
        for _ in 0..7 {
            assert_eq!(limit.admit_line(start + LOG_SPAN / 2), None);
        }
        assert_eq!(limit.admit_line(start + LOG_SPAN), Some(7));
        assert_eq!(limit.admit_line(start + LOG_SPAN), Some(0));
    }
}
