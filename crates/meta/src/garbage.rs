//! The nodes that have objects to remove.

use crate::error::MetaOutcome;
use crate::keys::{self, ParsedKey, tag};
use crate::state::MetaState;
use crate::store::{Store, prefix_end};
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use tatami_wire::NodeId;

/// Returns the nodes that have garbage.
pub(crate) fn garbage_nodes<S: Store>(state: &MetaState<S>) -> MetaOutcome<BTreeSet<NodeId>> {
    let mut nodes = garbage_nodes_of(state, tag::GARBAGE)?;
    nodes.extend(garbage_nodes_of(state, tag::DROPPED)?);
    Ok(nodes)
}

/// Returns the nodes that have garbage of one kind.
pub(crate) fn garbage_nodes_of<S: Store>(
    state: &MetaState<S>,
    tag: u8,
) -> MetaOutcome<BTreeSet<NodeId>> {
    let mut nodes = BTreeSet::new();
    let mut from = Some(vec![tag]);
    while let Some(start) = from.take() {
        state.scan_records(&start, &[tag], &mut |key, _| {
            let (Some(ParsedKey::Garbage { node, .. }) | Some(ParsedKey::Dropped { node, .. })) =
                keys::parse(key)
            else {
                return Ok(ControlFlow::Continue(()));
            };
            nodes.insert(node);
            from = prefix_end(&keys::node_prefix(tag, node));
            Ok(ControlFlow::Break(()))
        })?;
    }
    Ok(nodes)
}
