//! Watches the input of an I/O process or relay.
//!
//! While an I/O process waits for a lock it reads nothing, so it would not notice that the program
//! at the other site has ended. And if the network between the sites is gone, the input never ends:
//! sshd does not ask whether its client is still there. The ssh of the other side says something at
//! least every 15 seconds. So a process whose ssh is silent for minutes ends itself, with all that
//! it holds.

use crate::ssh_silence::SshConnection;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, getpid, kill_process};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// How often the connection of ssh is looked at, in seconds.
const LOOK_EVERY: i64 = 15;
/// A silence after which the other side is gone. It gives its own end up a minute after that was
/// silent for a minute.
const SILENCE_MAX: Duration = Duration::from_secs(180);

/// Whether this process waits for a lock, and whether its input has ended.
#[derive(Clone, Debug, Default)]
pub(crate) struct InputWatch {
    is_waiting: Arc<AtomicBool>,
    has_ended: Arc<AtomicBool>,
}

impl InputWatch {
    /// Starts the thread that watches `input`.
    ///
    /// # Errors
    /// Those of starting a thread.
    pub(crate) fn start(input: OwnedFd) -> io::Result<InputWatch> {
        let watch = InputWatch::default();
        let of_thread = watch.clone();
        let body = move || {
            // Only its end counts, not the bytes that arrive.
            let mut events = [PollFd::new(&input, PollFlags::RDHUP)];
            let ssh = SshConnection::find();
            let wait = ssh.as_ref().map(|_| Timespec { tv_sec: LOOK_EVERY, tv_nsec: 0 });
            loop {
                match poll(&mut events, wait.as_ref()) {
                    Err(rustix::io::Errno::INTR) => {}
                    Ok(0) => {
                        let silence = ssh.as_ref().and_then(SshConnection::measure_silence);
                        if silence.is_some_and(|silence| silence > SILENCE_MAX) {
                            end_this_process();
                        }
                    }
                    _ => break,
                }
            }
            of_thread.has_ended.store(true, Ordering::SeqCst);
            if of_thread.is_waiting.load(Ordering::SeqCst) {
                end_this_process();
            }
        };
        thread::Builder::new().name("lock-watch".to_owned()).spawn(body)?;
        Ok(watch)
    }

    /// Runs a wait for a lock. This process ends if its input ends meanwhile.
    pub(crate) fn run_wait<T>(&self, wait: impl FnOnce() -> T) -> T {
        self.is_waiting.store(true, Ordering::SeqCst);
        if self.has_ended.load(Ordering::SeqCst) {
            end_this_process();
        }
        let result = wait();
        self.is_waiting.store(false, Ordering::SeqCst);
        result
    }
}

fn end_this_process() {
    // The call fails only for a process that does not exist.
    let _ = kill_process(getpid(), Signal::TERM);
}
