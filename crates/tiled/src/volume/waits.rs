//! Waits of this process for nodes that do not answer, as a program reports them: one sentence for
//! each outage of a node.

use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};
use tatami_client::{NodeWait, WaitObserver};

/// Takes a sentence about a wait that has just become long.
pub type WaitReporter = Arc<dyn Fn(&str) + Send + Sync>;

static REPORTER: Mutex<Option<WaitReporter>> = Mutex::new(None);

/// Sets the reporter of all sessions of this process; `None` reports nothing, which is the default.
/// The thread that waits calls it, once for each outage.
pub fn set_wait_reporter(reporter: Option<WaitReporter>) {
    *REPORTER.lock() = reporter;
}

/// Passes each outage on once.
#[derive(Debug, Default)]
struct OutageReports {
    /// Nodes whose outage was reported.
    reported: Mutex<BTreeSet<String>>,
}

impl WaitObserver for OutageReports {
    fn report_wait(&self, wait: &NodeWait<'_>) {
        if self.reported.lock().insert(wait.name.to_owned()) {
            // Called without the lock: it may take long to write to a terminal.
            let reporter = REPORTER.lock().clone();
            reporter.iter().for_each(|report| report(&wait.to_string()));
        }
    }

    fn report_end(&self, name: &str, _: bool) {
        self.reported.lock().remove(name);
    }
}

/// Returns the observer of the sessions of this process.
pub(super) fn wait_observer() -> Arc<dyn WaitObserver> {
    static OBSERVER: OnceLock<Arc<OutageReports>> = OnceLock::new();
    OBSERVER.get_or_init(Arc::default).clone()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tatami_client::WaitReason;

    #[test]
    fn an_outage_is_reported_once() {
        let told = Arc::new(Mutex::new(Vec::new()));
        let sink = told.clone();
        set_wait_reporter(Some(Arc::new(move |why: &str| sink.lock().push(why.to_owned()))));
        let observer = wait_observer();
        let wait = |seconds| {
            let (lasted, left) = (Duration::from_secs(seconds), Duration::from_secs(60 - seconds));
            let reason = WaitReason::Down;
            observer.report_wait(&NodeWait { node: None, name: "node1", reason, lasted, left });
        };
        wait(2);
        wait(3);
        observer.report_end("node1", true);
        wait(4);
        set_wait_reporter(None);
        observer.report_end("node1", false);
        wait(5);
        let said =
            |lasted, left| format!("waiting for node1 (down for {lasted} s; gives up in {left} s)");
        assert_eq!(*told.lock(), [said(2, 58), said(4, 56)]);
    }
}
