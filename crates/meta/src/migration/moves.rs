//! The shard moves that an executor takes part in.

use crate::error::OperationFailure;
use crate::migration::records::BlockCursor;
use crate::transaction::locks::ShardBlock;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use tatami_wire::transaction::{MigrationChunk, Txid};
use tatami_wire::{ClientId, Errno, ExecutorId, Ino, Timestamp};

/// A request of the source to its daemon, which must be met before the move goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveRequest {
    /// Recall all delegations of inodes of these shards (the first, and how many), and grant no
    /// more of them. Then call [`Meta::recalls_done`].
    Recall(u16, u16),
    /// Report with [`Meta::provide_lockers`] the clients that may hold locks of files of these
    /// shards. No such lock is granted from now on, until the move is over.
    ListLockers(u16, u16),
}

/// A change of the served shards, which the daemon must know before it handles anything else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MoveEvent {
    /// These shards (the first, and how many) belong to another executor now.
    MovedAway(u16, u16),
    /// A move from this executor has failed.
    MoveFailed,
    /// These clients may hold locks of files of shards that may soon belong to this executor.
    LockersAnnounced(Vec<ClientId>),
    /// Now the shards belong to this executor.
    Arrived(Vec<ClientId>),
}

/// The destination's record of a move: the shards it receives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct IncomingBlock {
    pub(crate) first: u16,
    /// Of each shard, the number of moves before this one.
    pub(crate) moves: Vec<u32>,
    /// All records have arrived.
    pub(crate) whole: Option<BlockSummary>,
}

/// The properties of a block as a whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BlockSummary {
    pub(crate) inodes: u64,
    pub(crate) reserved: u64,
    pub(crate) lockers: Vec<ClientId>,
}

/// All moves that this executor takes part in.
#[derive(Default)]
pub(crate) struct ShardMoves {
    pub(crate) source: Option<MoveSource>,
    pub(crate) destinations: BTreeMap<Txid, MoveDestination>,
    /// Blocks whose records are to be deleted, and the progress of that.
    pub(crate) clearing: Vec<ShardBlock>,
    pub(crate) cleared_to: BlockCursor,
    pub(crate) events: Vec<MoveEvent>,
    /// The reason why the last move from here failed.
    pub(crate) failure: Option<Errno>,
    /// Nothing may leave before all changes survive a power cut.
    pub wants_sync: bool,
}

impl ShardMoves {
    /// Returns when a move must be handled next.
    pub fn next_due(&self, now: Timestamp) -> Option<Timestamp> {
        let giving = self.source.as_ref().map(MoveSource::next_due);
        let taking = self.destinations.values().map(|taking| taking.ask_at);
        let clearing = (!self.clearing.is_empty()).then_some(now);
        giving.into_iter().chain(taking).chain(clearing).min()
    }

    /// Returns the number of moves, and of blocks to be deleted.
    pub fn count_active(&self) -> usize {
        usize::from(self.source.is_some()) + self.destinations.len() + self.clearing.len()
    }
}

impl IncomingBlock {
    pub(crate) fn shard_block(&self) -> ShardBlock {
        ShardBlock { first: self.first, count: self.moves.len() as u16 }
    }
}

/// Returns the errno of a failure that concerns the move alone.
pub(crate) fn refusal_errno(failure: &OperationFailure) -> Errno {
    failure.errno()
}

/// Most keys, and most bytes, that are deleted or sent at a time.
pub(crate) const KEYS_MAX: usize = 4096;

pub(crate) const BYTES_MAX: usize = 256 << 10;

/// The steps of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MovePhase {
    /// The destination has not yet accepted the shards.
    Offering,
    /// Delegations of the shards are being recalled.
    Recalling,
    /// Transactions that hold locks in the shards must end.
    Closing,
    /// The records are being sent.
    Sending,
    /// The daemon lists the clients that may hold locks.
    ListingLockers,
    /// The destination must have everything durably.
    Ending,
}

/// A move from here; see the module.
pub(crate) struct MoveSource {
    pub txid: Txid,
    pub(crate) block: ShardBlock,
    pub(crate) destination: ExecutorId,
    pub(crate) phase: MovePhase,
    /// The number of the last chunk, and its content until it is acknowledged.
    pub(crate) chunk_number: u32,
    pub(crate) chunk: Option<MigrationChunk>,
    pub(crate) again_at: Timestamp,
    pub(crate) gives_up: Timestamp,
    pub(crate) cursor: BlockCursor,
    pub(crate) inodes: u64,
    /// The open files up to this one were sent.
    pub(crate) opens: Option<(Ino, ClientId)>,
}

impl MoveSource {
    /// Returns when the move must be handled next.
    pub fn next_due(&self) -> Timestamp {
        match (&self.chunk, self.phase) {
            (Some(_), _) | (None, MovePhase::Closing) => self.again_at.min(self.gives_up),
            _ => self.gives_up,
        }
    }
}

/// A move to here in progress.
pub(crate) struct MoveDestination {
    pub brought: IncomingBlock,
    /// The number of the next chunk.
    pub next: u32,
    /// When the source is asked.
    pub ask_at: Timestamp,
    /// The open files and their clients.
    pub opens: Vec<(Ino, ClientId)>,
}

impl IncomingBlock {
    /// Returns whether it was begun before the other one; `None` where they have no shard in
    /// common.
    pub(crate) fn began_before(
        &self,
        txid: Txid,
        other: &IncomingBlock,
        other_txid: Txid,
    ) -> Option<bool> {
        let (block, theirs): (ShardBlock, ShardBlock) = (self.shard_block(), other.shard_block());
        let common = block.iter_shards().find(|shard| theirs.contains_shard(*shard))?;
        let moves = |of: &IncomingBlock| of.moves[usize::from(common.0 - of.first)];
        Some((moves(self), txid) < (moves(other), other_txid))
    }
}
