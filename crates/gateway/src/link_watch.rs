//! Watches the link of a session: for its end, for silence, and for the ssh that replaces it.
//!
//! A program that ends says so, and its I/O process ends with it. If a link ends without that, the
//! I/O process waits for the next link, with all files, locks and replies. How long, depends on
//! what the end looks like:
//!
//! | input | output | TCP of ssh | what happened | wait |
//! |---|---|---|---|---|
//! | ended | works | open | the program was killed, its ssh was not | none |
//! | ended | broken | open | the session of ssh was cut, or the job was killed | 20 s |
//! | ended | | ended there | a break, or the job was killed with its ssh | 90 s |
//! | ended | | ended here after a silence, or unknown | sshd gave up | 180 s |
//! | silent | | open | the network is gone | 180 s |
//!
//! A session that has had no call yet waits for 5 s at most.
//!
//! sshd itself does not ask whether its client is still there. The ssh of the other side says
//! something at least every 15 seconds.

use crate::passed_streams::listen_as;
use crate::session_handover::receive_handover;
use crate::session_link::{CurrentLink, SessionLink};
use crate::ssh_silence::{SshConnection, TcpState};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// How often the connection of ssh is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(15);
/// A silence after which the other side is gone. It gives its own end up a minute after that was
/// silent for a minute.
const SILENCE_MAX: Duration = Duration::from_secs(180);
/// More than the pause between two signs of life of the other ssh.
const HEARD_LATELY: Duration = Duration::from_secs(20);
/// How long the output is watched after the end of the input. sshd that ends closes both.
const OUTPUT_WAIT: Duration = Duration::from_secs(1);
/// The waits for the next link. The other side tries for a minute.
const NEW_WAIT: Duration = Duration::from_secs(5);
const CUT_WAIT: Duration = Duration::from_secs(20);
const CLOSED_WAIT: Duration = Duration::from_secs(90);
const LOST_WAIT: Duration = Duration::from_secs(180);

/// Returns how long the next link is awaited after an input that has ended; `None`: the program has
/// ended. `tcp` is `None` where the kernel does not know it.
fn choose_wait(is_output_broken: bool, tcp: Option<TcpState>) -> Option<Duration> {
    match (tcp, is_output_broken) {
        (Some(TcpState::EndedThere), _) => Some(CLOSED_WAIT),
        (Some(TcpState::EndedHere), _) => Some(LOST_WAIT),
        (Some(TcpState::Open) | None, false) => None,
        (Some(TcpState::Open), true) => Some(CUT_WAIT),
        (None, true) => Some(LOST_WAIT),
    }
}

/// The connection of the ssh of a link.
struct WatchedSsh {
    connection: Option<SshConnection>,
    /// The kernel knew it at the start of the link. If not, it lies in another network namespace.
    is_known: bool,
}

impl WatchedSsh {
    /// `is_known`: the kernel knew that of an earlier link.
    fn new(words: &str, is_known: bool) -> WatchedSsh {
        let connection = SshConnection::parse(words);
        let is_known = is_known || connection.is_some_and(|ssh| ssh.find_state().is_some());
        WatchedSsh { connection, is_known }
    }

    fn find_state(&self) -> Option<TcpState> {
        let connection = self.connection.filter(|_| self.is_known)?;
        // One that is gone was reset, or closed by both sides.
        Some(connection.find_state().unwrap_or(TcpState::EndedThere))
    }

    /// Whether the other side is still there, so that sshd has not given it up. A connection that
    /// it has closed, too, has no such figure.
    fn was_heard_lately(&self) -> bool {
        let silence = self.connection.and_then(|ssh| ssh.measure_silence());
        silence.is_none_or(|silence| silence < HEARD_LATELY)
    }

    fn is_silent(&self) -> bool {
        let silence = self.connection.and_then(|ssh| ssh.measure_silence());
        silence.is_some_and(|silence| silence > SILENCE_MAX)
    }
}

/// Starts the thread that watches the link.
///
/// # Errors
/// Those of a socket, and of starting a thread.
pub(crate) fn watch_link(link: Arc<SessionLink>) -> io::Result<()> {
    let listener = listen_as(&link.key().socket_name())?;
    let body = move || LinkWatch::new(&link, &listener).run();
    thread::Builder::new().name("link-watch".to_owned()).spawn(body).map(drop)
}

struct LinkWatch<'a> {
    link: &'a SessionLink,
    listener: &'a OwnedFd,
    ssh: WatchedSsh,
    /// The link, until it has broken.
    watched: Option<CurrentLink>,
    /// When the session ends without another link.
    deadline: Option<Instant>,
}

impl<'a> LinkWatch<'a> {
    fn new(link: &'a SessionLink, listener: &'a OwnedFd) -> LinkWatch<'a> {
        let ssh = WatchedSsh::new(&SshConnection::words(), false);
        LinkWatch { link, listener, ssh, watched: link.current(), deadline: None }
    }

    /// Watches until the session ends.
    fn run(mut self) {
        while !self.link.has_ended() {
            // The loop noticed the break of a link before this thread had seen that link.
            if self.watched.is_none() && self.deadline.is_none() {
                self.judge_break();
            }
            match self.await_event() {
                LinkEvent::Call => self.answer_call(),
                LinkEvent::Broken => self.judge_break(),
                LinkEvent::Late if self.watched.is_some() => {
                    if self.ssh.is_silent() {
                        self.link.end_session();
                    }
                }
                LinkEvent::Late => self.link.end_session(),
                LinkEvent::Nothing => {}
            }
        }
    }

    fn await_event(&self) -> LinkEvent {
        let mut events = vec![
            PollFd::new(self.listener, PollFlags::IN),
            PollFd::new(self.link.wake(), PollFlags::IN),
        ];
        let input = self.watched.as_ref().map(|link| link.streams.input());
        // Only its end counts, not the bytes that arrive.
        events.extend(input.map(|input| PollFd::from_borrowed_fd(input, PollFlags::RDHUP)));
        let looks = self.watched.is_some().then_some(LOOK_EVERY);
        let left = self.deadline.map(|at| at.saturating_duration_since(Instant::now()));
        match poll(&mut events, left.or(looks).map(timespec_of).as_ref()) {
            Err(Errno::INTR) => return LinkEvent::Nothing,
            Ok(0) => return LinkEvent::Late,
            _ => {}
        }
        if !events[1].revents().is_empty() {
            let _ = rustix::io::read(self.link.wake(), &mut [0; 8]);
            // The loop has noticed the break first.
            let is_broken = self.watched.is_some() && self.link.current().is_none();
            return if is_broken { LinkEvent::Broken } else { LinkEvent::Nothing };
        }
        if !events[0].revents().is_empty() {
            return LinkEvent::Call;
        }
        LinkEvent::Broken
    }

    /// Answers the process of a later ssh.
    fn answer_call(&mut self) {
        if let Some(words) = receive_handover(self.link, self.listener) {
            self.ssh = WatchedSsh::new(&words, self.ssh.is_known);
            (self.watched, self.deadline) = (self.link.current(), None);
        }
    }

    /// Decides how long the next link is awaited.
    fn judge_break(&mut self) {
        let broken = self.watched.take();
        // The state at the end of the input counts: an ssh without a program ends its connection
        // soon after that.
        let mut tcp = self.ssh.find_state();
        // Before the wait: a connection that both sides have closed tells nothing any more.
        let was_heard = self.ssh.was_heard_lately();
        let is_broken = |link: CurrentLink| self.is_output_broken(&link);
        let mut is_output_broken =
            tcp != Some(TcpState::EndedThere) && broken.is_none_or(is_broken);
        if is_output_broken && self.ssh.find_state() == Some(TcpState::EndedHere) {
            tcp = Some(TcpState::EndedHere);
        }
        // The ssh of a job that was killed says that it ends, and sshd closes first.
        if tcp == Some(TcpState::EndedHere) && was_heard {
            (tcp, is_output_broken) = (Some(TcpState::Open), true);
        }
        match choose_wait(is_output_broken, tcp) {
            Some(wait) => {
                // Without a call there is little to lose: mostly, a login broke before its end.
                let wait = if self.link.is_new() { NEW_WAIT } else { wait };
                self.deadline = Some(Instant::now() + wait);
            }
            None => {
                self.link.end_with_input();
                // It may still read calls. No other link comes.
                self.deadline = Some(Instant::now() + LOST_WAIT);
            }
        }
    }

    /// Waits a moment for the end of the output. A call for a handover says the same.
    fn is_output_broken(&self, broken: &CurrentLink) -> bool {
        let mut events = [
            PollFd::from_borrowed_fd(broken.streams.output(), PollFlags::empty()),
            PollFd::new(self.listener, PollFlags::IN),
        ];
        loop {
            match poll(&mut events, Some(&timespec_of(OUTPUT_WAIT))) {
                Err(Errno::INTR) => {}
                found => return found.is_ok_and(|count| count > 0),
            }
        }
    }
}

/// What the watch has seen.
enum LinkEvent {
    /// The process of a later ssh calls.
    Call,
    /// The input has ended, or the output has broken.
    Broken,
    /// Nothing has happened for the longest time.
    Late,
    Nothing,
}

fn timespec_of(duration: Duration) -> Timespec {
    Timespec { tv_sec: duration.as_secs() as i64, tv_nsec: i64::from(duration.subsec_nanos()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_program_is_told_from_a_break() {
        use TcpState::{EndedHere, EndedThere, Open};
        for (is_output_broken, tcp, wait) in [
            (false, Some(Open), None),
            (false, None, None),
            (true, Some(Open), Some(CUT_WAIT)),
            (true, None, Some(LOST_WAIT)),
            (false, Some(EndedThere), Some(CLOSED_WAIT)),
            (true, Some(EndedThere), Some(CLOSED_WAIT)),
            (true, Some(EndedHere), Some(LOST_WAIT)),
        ] {
            assert_eq!(choose_wait(is_output_broken, tcp), wait, "{is_output_broken} {tcp:?}");
        }
    }
}
