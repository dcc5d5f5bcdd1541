//! A crowd of logins: the processes of a job log in at once, and sshd turns some of so many away
//! (`MaxStartups`). They come again, each at another moment.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::time::{Duration, Instant};

/// How long a login that sshd turned away for want of room is repeated.
const CROWD_WAIT: Duration = Duration::from_secs(30);
/// The first pause before that, on average. It doubles each time.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The longest pause, on average.
const LONGEST_PAUSE: Duration = Duration::from_secs(4);
/// What ssh prints where the other end says nothing: sshd that drops a connection, or the ssh
/// before it on the way that has ended.
pub(crate) const ECHO: &str = "kex_exchange_identification";
/// What ssh prints where sshd drops a connection because too many logins are under way.
const CROWDED: [&str; 3] = [ECHO, "Connection reset by", "Connection closed by"];
/// What another ssh of the way has said before, if it failed for another reason.
const OTHER_CAUSES: [&str; 8] = [
    "connect to host",
    "open failed",
    "forwarding request failed",
    "Permission denied",
    "verification failed",
    "Could not resolve",
    "Too many authentication",
    "timed out",
];

/// Whether a login may succeed when it is repeated.
pub(crate) fn is_crowd(why: &str) -> bool {
    let says = |words: &&str| why.contains(*words);
    CROWDED.iter().any(says) && !OTHER_CAUSES.iter().any(says)
}

/// The pauses of a process between its logins.
#[derive(Debug)]
pub(crate) struct CrowdPauses {
    start: Instant,
    next: Duration,
}

impl CrowdPauses {
    /// Begins with the first login.
    pub(crate) fn new() -> CrowdPauses {
        CrowdPauses { start: Instant::now(), next: FIRST_PAUSE }
    }

    /// Whether the time for repetitions is over.
    pub(crate) fn is_over(&self) -> bool {
        self.start.elapsed() >= CROWD_WAIT
    }

    /// Returns the next pause: half of the average to one and a half, at random. Processes that
    /// were turned away at one moment would meet again otherwise.
    pub(crate) fn choose_pause(&mut self) -> Duration {
        let mean = self.next;
        self.next = (mean * 2).min(LONGEST_PAUSE);
        // Each such state has keys of its own, from the random numbers of the system.
        let random = RandomState::new().build_hasher().finish();
        mean / 2 + mean.mul_f64(random as f64 / u64::MAX as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_a_limit_and_differ() {
        let make = || {
            let mut pauses = CrowdPauses::new();
            let all: Vec<Duration> = (0..12).map(|_| pauses.choose_pause()).collect();
            assert!(!pauses.is_over());
            all
        };
        let one = make();
        let mut mean = FIRST_PAUSE;
        for pause in &one {
            assert!(*pause >= mean / 2 && *pause <= mean * 3 / 2, "{pause:?}");
            mean = (mean * 2).min(LONGEST_PAUSE);
        }
        assert_ne!(one, make());
    }

    #[test]
    fn a_login_is_repeated_if_only_room_was_missing() {
        let echo = "kex_exchange_identification: Connection closed by remote host";
        assert!(is_crowd(echo) && is_crowd("Connection reset by 10.0.0.1 port 22"));
        for cause in [
            "ssh: connect to host l1 port 22: Connection refused",
            "channel 0: open failed: connect failed: No route to host",
            "root@l1: Permission denied (publickey).",
            "Host key verification failed.",
        ] {
            assert!(!is_crowd(&format!("{cause}; {echo}")), "{cause}");
        }
    }
}
