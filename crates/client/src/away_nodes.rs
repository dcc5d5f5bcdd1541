//! The nodes that did not answer a short while ago.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::time::{Duration, Instant};
use tatami_wire::NodeId;

/// A node that did not answer is not asked again for this long. Meanwhile the last state that the
/// shard knows counts, and the node's space does not.
const AWAY: Duration = Duration::from_secs(5);

/// Nodes that did not answer, and when.
#[derive(Default)]
pub(crate) struct AwayNodes(Mutex<HashMap<NodeId, Instant>>);

impl AwayNodes {
    pub(crate) fn is_away(&self, node: NodeId) -> bool {
        self.0.lock().get(&node).is_some_and(|since| since.elapsed() < AWAY)
    }

    pub(crate) fn record_away(&self, node: NodeId) {
        self.0.lock().insert(node, Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_is_away_is_not_asked_for_a_while() {
        let away = AwayNodes::default();
        assert!(!away.is_away(NodeId(1)));
        away.record_away(NodeId(1));
        assert!(away.is_away(NodeId(1)) && !away.is_away(NodeId(2)));
    }
}
