//! Threads that died of a panic, which is an error in the program. A thread that the node needs
//! ends the node ([`crate::node::Alarm`]). Housekeeping begins again. The client of a broken
//! connection makes a new one. In each case `status` reports it.

use parking_lot::Mutex;
use std::sync::Once;

/// Longest text of a panic that is kept, in characters.
const TEXT_MAX: usize = 300;

#[derive(Default)]
struct ThreadDeaths {
    count: u64,
    last: String,
}

static DEATHS: Mutex<ThreadDeaths> = Mutex::new(ThreadDeaths { count: 0, last: String::new() });

/// Records the threads of this process that die from now on.
pub fn record_panics() {
    static NOTED: Once = Once::new();
    NOTED.call_once(|| {
        // The hook of the program before stays in effect: it prints the panic.
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let thread = std::thread::current();
            DEATHS
                .lock()
                .record_death(thread.name().unwrap_or("one without a name"), &info.to_string());
            before(info);
        }));
    });
}

/// Returns the message for `status`, if a thread died.
pub(crate) fn death_report() -> Option<String> {
    DEATHS.lock().report()
}

impl ThreadDeaths {
    fn record_death(&mut self, thread: &str, text: &str) {
        self.count += 1;
        let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
        self.last = format!("{thread}: {line}").chars().take(TEXT_MAX).collect();
    }

    fn report(&self) -> Option<String> {
        let ThreadDeaths { count, last } = self;
        (*count > 0).then(|| {
            format!(
                "{count} of its threads died since it was started, the last one {last}: this is a mistake in tatami, \
                 please report it; what they did goes on, and a restart of the node takes this message away"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_thread_that_died_is_told_in_one_line() {
        let mut deaths = ThreadDeaths::default();
        assert_eq!(deaths.report(), None);
        deaths.record_death("first", "why");
        deaths.record_death("second", &format!("on purpose\n{}", "x".repeat(10_000)));
        let reported = deaths.report().expect("trouble");
        assert!(
            reported.starts_with("2 of its threads") && reported.contains("second: on purpose x")
        );
        assert!(!reported.contains('\n') && reported.len() < 2 * TEXT_MAX, "{reported}");
    }

    #[test]
    fn a_thread_that_dies_is_noted() {
        record_panics();
        let died = std::thread::Builder::new().name("the test's".into()).spawn(|| {
            panic!("on purpose");
        });
        assert!(died.expect("a thread").join().is_err());
        // Other tests have threads that die, too.
        assert!(death_report().is_some_and(|reported| reported.contains("on purpose")));
    }
}
