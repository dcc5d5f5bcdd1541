//! The state of the shards that one executor serves.

use crate::migration::moves::ShardMoves;
use crate::session::ReplySlots;
use crate::state::MetaState;
use crate::transaction::tables::Transactions;
use std::collections::BTreeSet;
use tatami_wire::{NodeId, VolumeKey};

/// The shards of the namespace that one executor serves. See the crate's page.
pub struct Meta<S> {
    pub(crate) state: MetaState<S>,
    pub(crate) key: VolumeKey,
    pub(crate) sessions: ReplySlots,
    /// Nodes on which objects may have become garbage since the last call.
    pub(crate) garbage: BTreeSet<NodeId>,
    pub(crate) trouble: Option<OperatorAlert>,
    pub(crate) tx: Transactions,
    pub(crate) moves: ShardMoves,
}

/// A message for the operator.
pub(crate) struct OperatorAlert {
    pub(crate) what: String,
    /// It is a full disk, and ends when there is room again.
    pub(crate) full: bool,
}
