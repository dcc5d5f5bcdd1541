//! Waits for a node that does not answer, as the front end reports them to its user.
//!
//! The client prints nothing. A thread that waits for a node tells an observer each time it wakes
//! up, and a command shows that on the terminal. Each outage is one line in the log of a daemon or
//! a mount, however many operations wait.

use crate::waiting::{Silence, read_coarse_clock};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tatami_wire::NodeId;

/// Shorter waits are not reported: a busy node answers after them.
pub const REPORTED_WAIT: Duration = Duration::from_secs(2);

/// Why a thread waits for a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitReason {
    /// The daemon cannot be reached.
    Down,
    /// The daemon has accepted the connection and does not reply.
    Silent,
    /// The daemon replies that it waits for other nodes itself.
    NeedsOthers,
}

/// One wait for a node.
#[derive(Clone, Copy, Debug)]
pub struct NodeWait<'a> {
    /// The node; `None` for the first daemon of a client, which has not introduced itself yet.
    pub node: Option<NodeId>,
    /// The name of the node, or the address of the first daemon.
    pub name: &'a str,
    /// Why the thread waits.
    pub reason: WaitReason,
    /// How long no reply has come from the node.
    pub lasted: Duration,
    /// How much longer this thread waits.
    pub left: Duration,
}

/// A sentence without its end: `waiting for node1 (down for 12 s; gives up in 48 s)`.
impl fmt::Display for NodeWait<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NodeWait { name, lasted, left, .. } = self;
        match self.reason {
            WaitReason::Down => write!(f, "waiting for {name} (down")?,
            WaitReason::Silent => write!(f, "waiting for {name} (silent")?,
            WaitReason::NeedsOthers => write!(f, "waiting for nodes that {name} needs (away")?,
        }
        write!(f, " for {} s; gives up in {} s)", lasted.as_secs(), left.as_secs())
    }
}

/// Hears of waits for nodes. Each waiting thread calls it several times a second, so it must return
/// quickly.
pub trait WaitObserver: Send + Sync + fmt::Debug {
    /// A thread waits for a node, and has done so for [`REPORTED_WAIT`] at least.
    fn report_wait(&self, wait: &NodeWait<'_>);

    /// A reported wait is over: the node of this name has `answered`, or was given up.
    fn report_end(&self, name: &str, answered: bool);
}

/// A node, as the threads that wait for it know it.
#[derive(Debug)]
pub struct AwaitedNode {
    node: Option<NodeId>,
    name: String,
    observer: Option<Arc<dyn WaitObserver>>,
    /// When the silence began, in milliseconds of the coarse clock; 0 while the node answers.
    since: AtomicU64,
    /// When the last silence ended, on the same clock. A thread that still waits then began to wait
    /// in that one.
    ended: AtomicU64,
    /// The silence was reported.
    is_reported: AtomicBool,
}

fn as_millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl AwaitedNode {
    /// Returns a node that answers, as far as is known.
    pub fn new(
        node: Option<NodeId>,
        name: String,
        observer: Option<Arc<dyn WaitObserver>>,
    ) -> AwaitedNode {
        let (since, ended, is_reported) = Default::default();
        AwaitedNode { node, name, observer, since, ended, is_reported }
    }

    /// Records that a thread has waited for the node during `silence`, and waits for `patience` in
    /// all.
    pub(crate) fn record_wait(&self, reason: WaitReason, silence: &Silence, patience: Duration) {
        let now = read_coarse_clock();
        // Relaxed, here and below: a thread that reads an old value reports the next time.
        let ended = self.ended.load(Relaxed).max(1);
        let own = as_millis(now.saturating_sub(silence.elapsed())).max(ended);
        // Threads that began to wait at different times report one outage: the first one sets its
        // begin.
        let since = match self.since.compare_exchange(0, own, Relaxed, Relaxed) {
            Ok(_) => own,
            Err(before) => before.min(own),
        };
        let lasted = Duration::from_millis(as_millis(now).saturating_sub(since));
        let left = silence.time_left(patience);
        // At the deadline the error follows at once, so that a line about a wait of no time would
        // only flicker.
        if lasted < REPORTED_WAIT || left.is_zero() {
            return;
        }
        let wait = NodeWait { node: self.node, name: &self.name, reason, lasted, left };
        if !self.is_reported.swap(true, Relaxed) {
            tracing::warn!("{wait}");
        }
        if let Some(observer) = &self.observer {
            observer.report_wait(&wait);
        }
    }

    /// Records that the node has answered.
    pub(crate) fn record_answer(&self) {
        // All threads read this with each request, so that only the first one writes it.
        if self.since.load(Relaxed) != 0 {
            self.end_silence(true);
        }
    }

    /// Records that a thread has given up.
    pub fn record_timeout(&self) {
        self.end_silence(false);
    }

    fn end_silence(&self, answered: bool) {
        // Before the silence ends: a thread that begins the next one must find it.
        self.ended.store(as_millis(read_coarse_clock()), Relaxed);
        let since = self.since.swap(0, Relaxed);
        if !self.is_reported.swap(false, Relaxed) {
            return;
        }
        // After a timeout, the log has the error of the operation already.
        if answered {
            let seconds = as_millis(read_coarse_clock()).saturating_sub(since) / 1000;
            tracing::info!(node = &self.name, seconds, "it answers again");
        }
        if let Some(observer) = &self.observer {
            observer.report_end(&self.name, answered);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;

    const PATIENCE: Duration = Duration::from_secs(60);

    #[derive(Debug, Default)]
    struct WaitTrace(Mutex<Vec<String>>);

    impl WaitObserver for WaitTrace {
        fn report_wait(&self, wait: &NodeWait<'_>) {
            let NodeWait { name, reason, lasted, left, .. } = wait;
            let (lasted, left) = (lasted.as_secs(), left.as_secs_f64().round());
            self.0.lock().push(format!("{name} {reason:?} {lasted} {left}"));
        }

        fn report_end(&self, name: &str, answered: bool) {
            self.0.lock().push(format!("{name} {answered}"));
        }
    }

    fn seconds(lasted: u64) -> Silence {
        Silence::new(Duration::from_secs(lasted))
    }

    #[test]
    fn a_wait_is_told_with_its_end() {
        let told = |reason| {
            let (lasted, left) = (Duration::from_millis(12_900), Duration::from_millis(48_100));
            NodeWait { node: None, name: "node1", reason, lasted, left }.to_string()
        };
        let down = "waiting for node1 (down for 12 s; gives up in 48 s)";
        assert_eq!(told(WaitReason::Down), down);
        assert_eq!(told(WaitReason::Silent), down.replace("down", "silent"));
        let others = "waiting for nodes that node1 needs (away for 12 s; gives up in 48 s)";
        assert_eq!(told(WaitReason::NeedsOthers), others);
    }

    #[test]
    fn a_wait_is_reported_after_a_while_and_until_an_answer() {
        let trace = Arc::new(WaitTrace::default());
        let node = AwaitedNode::new(Some(NodeId(1)), "node1".into(), Some(trace.clone()));
        node.record_wait(WaitReason::Silent, &seconds(5), PATIENCE);
        // Another thread began to wait later.
        node.record_wait(WaitReason::Down, &seconds(3), PATIENCE);
        node.record_answer();
        node.record_answer();
        // A thread that has not woken up since is no new outage.
        node.record_wait(WaitReason::Down, &seconds(4), PATIENCE);
        node.record_answer();
        let busy = AwaitedNode::new(None, "busy".into(), Some(trace.clone()));
        busy.record_wait(WaitReason::Down, &seconds(1), PATIENCE);
        busy.record_answer();
        let gone = AwaitedNode::new(None, "gone".into(), Some(trace.clone()));
        gone.record_wait(WaitReason::Down, &seconds(4), PATIENCE);
        gone.record_timeout();
        assert_eq!(
            *trace.0.lock(),
            ["node1 Silent 5 55", "node1 Down 5 57", "node1 true", "gone Down 4 56", "gone false"]
        );
    }
}
