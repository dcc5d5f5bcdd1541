//! Watches the ssh of a relay. If the network between the sites is gone, the input of a relay never
//! ends: sshd does not ask whether its client is still there. The ssh of the other side says
//! something at least every 15 seconds. So a relay whose ssh is silent for minutes ends itself.

use crate::ssh_silence::SshConnection;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, getpid, kill_process};
use std::io;
use std::os::fd::OwnedFd;
use std::thread;
use std::time::Duration;

/// How often the connection of ssh is looked at, in seconds.
const LOOK_EVERY: i64 = 15;
/// A silence after which the other side is gone. It gives its own end up a minute after that was
/// silent for a minute.
const SILENCE_MAX: Duration = Duration::from_secs(180);

/// Starts the thread that ends this process after a long silence. It ends with `input`.
///
/// # Errors
/// Those of starting a thread.
pub(crate) fn watch_silence(input: OwnedFd) -> io::Result<()> {
    let Some(ssh) = SshConnection::find() else { return Ok(()) };
    let body = move || {
        // Only its end counts, not the bytes that arrive.
        let mut events = [PollFd::new(&input, PollFlags::RDHUP)];
        let wait = Timespec { tv_sec: LOOK_EVERY, tv_nsec: 0 };
        loop {
            match poll(&mut events, Some(&wait)) {
                Err(rustix::io::Errno::INTR) => {}
                Ok(0) => {
                    let silence = ssh.measure_silence();
                    if silence.is_some_and(|silence| silence > SILENCE_MAX) {
                        // The call fails only for a process that does not exist.
                        let _ = kill_process(getpid(), Signal::TERM);
                    }
                }
                _ => return,
            }
        }
    };
    thread::Builder::new().name("ssh-watch".to_owned()).spawn(body).map(drop)
}
