//! Detects that the requesting program is being killed, exits, or shall end.
//!
//! FUSE_INTERRUPT reports a signal, but not all relevant ends. The kernel closes the files of an
//! exiting process with FLUSH requests of a thread that takes no signals any more. `/proc` shows
//! both. The mount looks there only while a node does not answer.
//!
//! The mount reads only `/proc/TID/status`. The kernel locks most other files of that directory
//! (`stat`, `ns`, `exe`) against `execve` of the same process. But `execve` closes files and so may
//! wait for the reply to a FLUSH, while the mount would wait for that lock: a deadlock.

use parking_lot::Mutex;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use tatami_fuse::{FuseOp, Request};

/// Longest wait of an exiting program for the orderly close of one of its files.
const CLOSE_WAIT: Duration = Duration::from_secs(1);

/// Shortest wait for a silent node that ends with `EINTR` when the program has a handler for the
/// signal. A busy node stays silent for less. So a program that finishes its work after SIGTERM
/// gets the errors of a local disk, which are no `EINTR`.
const HANDLER_WAIT: Duration = Duration::from_secs(2);

/// A program that was released once is released at once for its further files. This bounds the time
/// and the number of remembered programs.
const RELEASED_FOR: Duration = Duration::from_secs(60);
const RELEASED_MAX: usize = 256;

/// SIGKILL in a thread's mask of pending signals. The kernel turns any signal that kills a process
/// at once into this one.
const KILL: u64 = signal_mask(&[libc::SIGKILL]);

/// Signals that end a process by default. The kernel keeps the process's pending signals in the
/// mask while the process ends.
const ENDING: u64 = signal_mask(&[
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGPIPE,
    libc::SIGALRM,
    libc::SIGTERM,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGVTALRM,
    libc::SIGPROF,
    libc::SIGIO,
]) | DUMPING;

/// Signals that end a process with a core dump. The kernel leaves them pending until the program
/// runs again.
const DUMPING: u64 = signal_mask(&[
    libc::SIGQUIT,
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGABRT,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGSEGV,
    libc::SIGXCPU,
    libc::SIGXFSZ,
    libc::SIGSYS,
]);

/// Signals by which somebody asks a program to end.
const ASKING: u64 = signal_mask(&[libc::SIGINT, libc::SIGQUIT, libc::SIGTERM]);

const fn signal_mask(signals: &[i32]) -> u64 {
    match signals {
        [first, more @ ..] => 1 << (*first - 1) | signal_mask(more),
        [] => 0,
    }
}

/// Begins a client operation for the requesting program.
pub(crate) fn begin_operation(request: &Request<'_>) -> tatami_client::OperationScope {
    let ends = if can_repeat(&request.op) { is_ending_or_interrupted } else { is_ending };
    tatami_client::OperationScope::begin(request.header.pid, ends)
}

/// Reports whether a program may repeat the operation after `EINTR` without harm. A write that was
/// given up may still arrive, after later ones.
fn can_repeat(op: &FuseOp<'_>) -> bool {
    match op {
        FuseOp::Open { flags, .. } => flags & libc::O_TRUNC == 0,
        FuseOp::Lookup { .. }
        | FuseOp::GetAttr { .. }
        | FuseOp::Statx { .. }
        | FuseOp::Readlink
        | FuseOp::Read { .. }
        | FuseOp::ReadDir { .. }
        | FuseOp::Lseek { .. }
        | FuseOp::Statfs
        | FuseOp::GetXattr { .. }
        | FuseOp::ListXattr { .. }
        | FuseOp::GetLock(_) => true,
        _ => false,
    }
}

/// Threads of exiting processes that were released. Otherwise each further file would wait for
/// [`CLOSE_WAIT`] again.
static RELEASED: Mutex<VecDeque<(u32, Instant)>> = Mutex::new(VecDeque::new());

fn was_released(thread: u32) -> bool {
    RELEASED.lock().iter().any(|(known, since)| *known == thread && since.elapsed() < RELEASED_FOR)
}

fn record_released(thread: u32) {
    let mut released = RELEASED.lock();
    released.retain(|(known, since)| *known != thread && since.elapsed() < RELEASED_FOR);
    if released.len() == RELEASED_MAX {
        released.pop_front();
    }
    released.push_back((thread, Instant::now()));
}

fn is_ending(thread: u32, waited: Duration) -> bool {
    has_process_ended(thread, waited, false)
}

fn is_ending_or_interrupted(thread: u32, waited: Duration) -> bool {
    has_process_ended(thread, waited, waited >= HANDLER_WAIT)
}

fn has_process_ended(thread: u32, waited: Duration, is_interruptible: bool) -> bool {
    // Pid 0 is the kernel itself, or a program outside of this PID namespace.
    if thread == 0 {
        return false;
    }
    let Ok(text) = std::fs::read(format!("/proc/{thread}/status")) else {
        // A /proc that hides the processes of other users (hidepid) also has no file for a live
        // process.
        return is_gone(thread);
    };
    match ProcessEnd::parse(&text) {
        ProcessEnd::Killed => true,
        ProcessEnd::Interrupted => is_interruptible,
        ProcessEnd::Exiting if waited >= CLOSE_WAIT || was_released(thread) => {
            record_released(thread);
            true
        }
        ProcessEnd::Exiting | ProcessEnd::Alive => false,
    }
}

fn is_gone(thread: u32) -> bool {
    // The call needs no permission, and also takes thread ids.
    rustix::process::Pid::from_raw(thread as i32)
        .is_none_or(|thread| rustix::process::getpgid(Some(thread)) == Err(Errno::SRCH))
}

/// The state of a thread's process by `/proc/TID/status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProcessEnd {
    /// The process lives.
    Alive,
    /// The process has called exit(2), and closes its files.
    Exiting,
    /// A signal ends the process, or has ended it.
    Killed,
    /// The program lives, and has a handler for a signal of [`ASKING`] that waits for it.
    Interrupted,
}

impl ProcessEnd {
    /// Parses the file. On unexpected text, assumes that the process lives.
    fn parse(status: &[u8]) -> ProcessEnd {
        let line = |name: &str| {
            status.split(|b| *b == b'\n').find_map(|line| line.strip_prefix(name.as_bytes()))
        };
        let text = |name| std::str::from_utf8(line(name)?).ok().map(str::trim);
        let signals = |name| u64::from_str_radix(text(name)?, 16).ok();
        let (Some(own), Some(shared)) = (signals("SigPnd:"), signals("ShdPnd:")) else {
            return ProcessEnd::Alive;
        };
        let masks = ["SigBlk:", "SigIgn:", "SigCgt:"].map(signals);
        let [Some(blocked), Some(ignored), Some(caught)] = masks else {
            return ProcessEnd::Alive;
        };
        let kept = blocked | ignored | caught;
        let pending = own | shared;
        if pending & KILL != 0 || pending & DUMPING & !kept != 0 {
            return ProcessEnd::Killed;
        }
        // An exiting process frees its memory before it closes its files. Threads of the kernel
        // have no memory.
        let is_kernel = text("Kthread:") == Some("1") || text("PPid:") == Some("2");
        if line("VmSize:").is_some() || is_kernel {
            return match pending & ASKING & caught & !blocked {
                0 => ProcessEnd::Alive,
                _ => ProcessEnd::Interrupted,
            };
        }
        if pending & ENDING & !kept != 0 { ProcessEnd::Killed } else { ProcessEnd::Exiting }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(memory: &str, own: u64, shared: u64, caught: u64) -> Vec<u8> {
        format!(
            "Name:\tx\nState:\tD\nPPid:\t77\n{memory}SigPnd:\t{own:016x}\nShdPnd:\t{shared:016x}\nSigBlk:\t0\n\
             SigIgn:\t0\nSigCgt:\t{caught:016x}\n"
        )
        .into_bytes()
    }

    const ALIVE: &str = "VmPeak:\t9 kB\nVmSize:\t9 kB\n";

    #[test]
    fn signals_that_end_a_process_are_told_from_others() {
        let (kill, quit, user, term) = (KILL, 1 << 2, 1 << 9, 1 << 14);
        for (memory, own, shared, caught, expected) in [
            (ALIVE, 0, 0, 0, ProcessEnd::Alive),
            (ALIVE, kill, 0, 0, ProcessEnd::Killed),
            (ALIVE, 0, kill, u64::MAX, ProcessEnd::Killed),
            (ALIVE, 0, quit, 0, ProcessEnd::Killed),
            (ALIVE, 0, quit, quit, ProcessEnd::Interrupted),
            (ALIVE, term, 0, term, ProcessEnd::Interrupted),
            (ALIVE, 0, user, user, ProcessEnd::Alive),
            // A signal without a core dump has become SIGKILL for each thread, if it kills the
            // process.
            (ALIVE, 0, term, 0, ProcessEnd::Alive),
            ("", 0, 0, 0, ProcessEnd::Exiting),
            ("", 0, term, 0, ProcessEnd::Killed),
            ("", 0, term, term, ProcessEnd::Exiting),
            ("Kthread:\t1\n", 0, 0, 0, ProcessEnd::Alive),
            ("Kthread:\t0\n", 0, 0, 0, ProcessEnd::Exiting),
        ] {
            let reported = ProcessEnd::parse(&status(memory, own, shared, caught));
            assert_eq!(reported, expected, "{memory:?} {own:x} {shared:x} {caught:x}");
        }
    }

    #[test]
    fn what_cannot_be_read_lives() {
        for text in ["", "SigPnd:\tx\nShdPnd:\t0\n", "SigPnd:\t0\n", "\u{0}"] {
            assert_eq!(ProcessEnd::parse(text.as_bytes()), ProcessEnd::Alive, "{text:?}");
        }
        let kernel = std::fs::read("/proc/2/status").unwrap_or_default();
        assert_eq!(ProcessEnd::parse(&kernel), ProcessEnd::Alive, "kthreadd");
    }

    #[test]
    fn a_thread_that_lives_is_not_ending_and_one_that_is_not_there_is() {
        let this = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        assert!(!is_ending(this, CLOSE_WAIT) && !is_ending(0, CLOSE_WAIT));
        let gone = std::thread::spawn(rustix::thread::gettid).join().expect("no panic");
        assert!(is_ending(gone.as_raw_nonzero().get().unsigned_abs(), CLOSE_WAIT));
    }

    #[test]
    fn who_was_let_go_once_is_let_go_at_once() {
        let thread = u32::MAX;
        assert!(!was_released(thread));
        record_released(thread);
        assert!(was_released(thread));
        for other in 0..RELEASED_MAX as u32 {
            record_released(other);
        }
        assert!(!was_released(thread), "the list has a bound");
    }
}
