//! Who sits where: each process that shares a login has a *seat* of it. A seat is a lock on a byte
//! of one file, so the kernel gives it back when its process ends, in whatever way.
//!
//! Logins with the same key are numbered (*slots*). Each has as many seats as sshd allows sessions
//! of one login, and a byte for the process that makes the login: its *turn*. The file has no
//! content and is never removed, so no process locks a file that another one has replaced.

use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

/// Sessions of one login: what sshd allows by default (`MaxSessions`).
pub(crate) const SEATS: u64 = 10;
/// Most logins with one key.
const SLOTS: u64 = 256;
/// Bytes of a slot in the file.
const SLOT_BYTES: u64 = 16;
/// The byte of a slot for the turn.
const TURN: u64 = SLOT_BYTES - 1;
/// Bits of a key that count.
pub(crate) const KEY_BITS: u32 = 48;

/// A seat. It is given up when it is dropped.
#[derive(Debug)]
pub(crate) struct LoginSeat {
    file: Arc<File>,
    /// The byte that is locked.
    at: u64,
    /// The number of the login with this key.
    pub(crate) slot: u64,
}

/// The turn to make the login of a slot. It ends when it is dropped.
#[derive(Debug)]
pub(crate) struct LoginTurn {
    file: Arc<File>,
    at: u64,
    /// Another process had the turn before, and has had the time to make the login.
    pub(crate) has_waited: bool,
}

/// Takes the first free seat of the logins with this key. `None`: all seats are taken.
///
/// # Errors
/// The file cannot be opened, or its file system has no locks.
pub(crate) fn take_seat(path: &Path, key: u64) -> io::Result<Option<LoginSeat>> {
    // Locks are those of an open file. So each seat has its own.
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = Arc::new(File::from(rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)?));
    let start = (key & ((1 << KEY_BITS) - 1)) * (SLOTS * SLOT_BYTES);
    for slot in 0..SLOTS {
        for at in (0..SEATS).map(|seat| start + slot * SLOT_BYTES + seat) {
            if lock_byte(&file, at, false)? {
                return Ok(Some(LoginSeat { file, at, slot }));
            }
        }
    }
    Ok(None)
}

impl LoginSeat {
    /// Waits for the turn to make the login of this seat, at most so long.
    ///
    /// # Errors
    /// `TimedOut`: another process has the turn for too long.
    pub(crate) fn wait_for_turn(&self, limit: Duration) -> io::Result<LoginTurn> {
        let (file, at) = (self.file.clone(), self.at / SLOT_BYTES * SLOT_BYTES + TURN);
        if lock_byte(&file, at, false)? {
            return Ok(LoginTurn { file, at, has_waited: false });
        }
        // The kernel tells when the turn is free, but knows no limit for that.
        let (sender, receiver) = sync_channel(1);
        let wait = move || {
            let taken = lock_byte(&file, at, true);
            // Without a receiver, the turn ends here.
            let _ = sender.send(taken.map(|_| LoginTurn { file, at, has_waited: true }));
        };
        std::thread::Builder::new().name("login-turn".to_owned()).spawn(wait)?;
        receiver.recv_timeout(limit).unwrap_or_else(|why| {
            Err(match why {
                RecvTimeoutError::Timeout => io::ErrorKind::TimedOut.into(),
                RecvTimeoutError::Disconnected => io::Error::other("the thread has ended"),
            })
        })
    }
}

impl Drop for LoginSeat {
    fn drop(&mut self) {
        // A thread that waits may keep the file open.
        unlock_byte(&self.file, self.at);
    }
}

impl Drop for LoginTurn {
    fn drop(&mut self) {
        unlock_byte(&self.file, self.at);
    }
}

/// Locks a byte for this open file; `false`: another one has it, and this call need not wait.
fn lock_byte(file: &File, at: u64, wait: bool) -> io::Result<bool> {
    let command = if wait { libc::F_OFD_SETLKW } else { libc::F_OFD_SETLK };
    loop {
        let Err(error) = set_lock(file, command, libc::F_WRLCK, at) else { return Ok(true) };
        match error.raw_os_error() {
            Some(libc::EAGAIN | libc::EACCES) if !wait => return Ok(false),
            Some(libc::EINTR) => {}
            _ => return Err(error),
        }
    }
}

fn unlock_byte(file: &File, at: u64) {
    // It can only fail for a file that is closed, which has no locks.
    let _ = set_lock(file, libc::F_OFD_SETLK, libc::F_UNLCK, at);
}

fn set_lock(file: &File, command: i32, kind: i32, at: u64) -> io::Result<()> {
    let start = i64::try_from(at).map_err(io::Error::other)?;
    let lock = libc::flock64 {
        l_type: kind as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: start,
        l_len: 1,
        l_pid: 0,
    };
    // SAFETY: the descriptor is open, and the record lives during the call.
    match unsafe { libc::fcntl(file.as_raw_fd(), command, &raw const lock) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::os::unix::fs::MetadataExt;
    use std::process::{Command, Stdio};
    use std::time::Instant;

    const LIMIT: Duration = Duration::from_secs(100);

    fn take(path: &Path, key: u64) -> LoginSeat {
        take_seat(path, key).expect("a lock").expect("a free seat")
    }

    #[test]
    fn each_process_has_a_seat_of_its_own() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("seats");
        let seats: Vec<LoginSeat> = (0..2 * SEATS + 1).map(|_| take(&path, 7)).collect();
        let slots: Vec<u64> = seats.iter().map(|seat| seat.slot).collect();
        let in_order: Vec<u64> = (0..2 * SEATS + 1).map(|seat| seat / SEATS).collect();
        assert_eq!(slots, in_order);
        // Other keys have other seats, also the greatest one.
        assert_eq!((take(&path, 8).slot, take(&path, u64::MAX).slot), (0, 0));
        // A seat that is given up is the next one.
        let mut seats = seats;
        seats.remove(3);
        assert_eq!(take(&path, 7).slot, 0);
        drop(seats);
        assert_eq!(take(&path, 7).slot, 0);
        assert_eq!(std::fs::metadata(&path).expect("it is there").len(), 0);
    }

    #[test]
    fn all_seats_are_taken_in_the_end() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("seats");
        let all = Arc::new(File::create(&path).expect("a file"));
        for at in 0..SLOTS * SLOT_BYTES {
            assert!(lock_byte(&all, at, false).expect("a lock"));
        }
        assert!(take_seat(&path, 0).expect("no fault").is_none());
        assert_eq!(take(&path, 1).slot, 0);
    }

    /// Waits until a process waits for a lock on this file.
    fn await_waiting(path: &Path) {
        let inode = format!(":{} ", std::fs::metadata(path).expect("it is there").ino());
        let is_waiting = |line: &str| line.contains("->") && line.contains(&inode);
        let start = Instant::now();
        while !std::fs::read_to_string("/proc/locks").expect("a list").lines().any(is_waiting) {
            assert!(start.elapsed() < LIMIT, "no process waits");
            std::thread::yield_now();
        }
    }

    #[test]
    fn one_process_has_the_turn_and_the_others_wait() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("seats");
        let (one, two) = (take(&path, 7), take(&path, 7));
        let turn = one.wait_for_turn(LIMIT).expect("a turn");
        assert!(!turn.has_waited);
        // The turn of another slot is free.
        let others: Vec<LoginSeat> = (2..=SEATS).map(|_| take(&path, 7)).collect();
        let last = others.last().expect("one");
        assert_eq!((last.slot, last.wait_for_turn(LIMIT).expect("a turn").has_waited), (1, false));
        let waiting = std::thread::spawn(move || {
            let has_waited = two.wait_for_turn(LIMIT).map(|turn| turn.has_waited);
            (has_waited, two)
        });
        await_waiting(&path);
        drop(turn);
        let (has_waited, two) = waiting.join().expect("no panic");
        assert!(has_waited.expect("a turn"));
        // It has given the turn up. A wait has an end.
        let turn = one.wait_for_turn(LIMIT).expect("a turn");
        let late = two.wait_for_turn(Duration::from_millis(10)).expect_err("it is taken");
        assert_eq!(late.kind(), io::ErrorKind::TimedOut);
        // A seat of a process that still waits is free, when it is given up.
        drop(two);
        assert_eq!(take(&path, 7).slot, 0);
        drop(turn);
    }

    /// The kernel frees the seat of a process that is killed.
    #[test]
    fn a_killed_process_has_no_seat() {
        const FILE: &str = "TATAMI_TEST_SEATS";
        if let Some(path) = std::env::var_os(FILE) {
            let seat = take(Path::new(&path), 7);
            println!("sits in {}", seat.slot);
            // Until it is killed.
            let _ = io::stdin().read_line(&mut String::new());
            return;
        }
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("seats");
        let own: Vec<LoginSeat> = (1..SEATS).map(|_| take(&path, 7)).collect();
        let test = std::env::current_exe().expect("a running program has a path");
        let mut child = Command::new(test);
        child.args(["--exact", "--nocapture", "login_seats::tests::a_killed_process_has_no_seat"]);
        child.env(FILE, &path).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = child.spawn().expect("it runs");
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        assert!(lines.any(|line| line.is_ok_and(|line| line.contains("sits in 0"))));
        assert_eq!(take(&path, 7).slot, 1);
        child.kill().expect("a child");
        child.wait().expect("a child");
        assert_eq!(take(&path, 7).slot, 0);
        drop(own);
    }
}
