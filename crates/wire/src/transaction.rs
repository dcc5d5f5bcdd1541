//! Messages between executors, of one node or of several, for operations on records of several
//! executors.
//!
//! The *coordinator* is the executor that runs the operation. The *participants* lock the records
//! that the operation needs, and return their values. When the coordinator has all values, it
//! decides: one log write has its own changes and those of the participants. Then the participants
//! write theirs (two-phase commit). A split writes many records and reads few. So its participants
//! prepare the new values beside their locks before the decision.
//!
//! Messages may be lost, repeated and reordered. A frame has [`PeerMessage`]s in one direction and
//! no reply at this level.

use crate::admin::ClusterMap;
use crate::meta::Bytes;
use crate::{ClientId, Errno, ExecutorId, Ino, Timestamp};
use serde::{Deserialize, Serialize};

/// Id of one attempt to run an operation on several executors. It is never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Txid {
    /// The coordinator.
    pub executor: ExecutorId,
    /// The incarnation of the coordinator that began the attempt.
    pub incarnation: u64,
    /// A counter within that incarnation.
    pub number: u64,
}

/// Age of an operation, for wound-wait and wait-die. The older of two conflicting operations goes
/// first; it is the lesser one. All attempts of an operation have one age.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TransactionAge {
    /// The start of the operation, by the coordinator's clock.
    pub since: Timestamp,
    /// The first attempt. Orders operations that start at the same time.
    pub first_attempt: Txid,
}

/// Digest of a record that an operation has read. The record must be unchanged at the commit (read
/// validation).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordDigest(pub [u8; 16]);

/// A record's key with its old or new value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordItem<T> {
    /// The key in the store.
    pub key: Bytes,
    /// The value; `None` if the record does not exist.
    pub value: Option<T>,
}

/// The reason why a participant refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// A record has changed since the coordinator read it, or an older operation has the lock.
    Retry,
    /// The disk is full.
    DiskFull,
}

/// A chunk of a shard migration, sent from the source to the destination executor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MigrationChunk {
    /// The shards, each with its number of earlier migrations.
    Shards {
        /// The first shard.
        first: u16,
        /// The number of earlier migrations of each shard, in order.
        moves: Vec<u32>,
    },
    /// Some of the shards' records: keys and values.
    Records(Vec<(Bytes, Bytes)>),
    /// Some of the registered opens of clients. They are not in the records.
    Opens(Vec<(Ino, ClientId)>),
    /// The last chunk.
    Last {
        /// Number of inodes in the shards.
        inodes: u64,
        /// Inode numbers up to this one have been given out.
        reserved: u64,
        /// Clients that may have locks of files in the shards.
        lockers: Vec<ClientId>,
    },
}

/// A message from one executor to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // each message documents its fields
pub enum PeerMessage {
    /// Requests a consistent snapshot of these records. → `Fetched`
    FetchRecords { request: Txid, age: TransactionAge, keys: Vec<Bytes> },
    /// Returns the values in the order of the request. `life` is the executor's incarnation.
    RecordsFetched { request: Txid, incarnation: u64, values: Vec<Option<Bytes>> },
    /// Locks these records for the transaction and returns their values. Records to read are locked
    /// against writes, and records to write against reads, too. `life` is the incarnation in which
    /// the executor granted the transaction's first locks, if it did. The executor refuses unless
    /// it still has these locks, because a restart forgets the transactions that have ended. A
    /// transaction without locks anywhere sets `waits`: it may wait for older and for younger ones
    /// without risk of a deadlock. → `Locked` or `Refused`
    Lock {
        txid: Txid,
        age: TransactionAge,
        /// The client of the operation: a change that it makes itself is no sign that several
        /// clients work on an inode.
        client: ClientId,
        incarnation: Option<u64>,
        request: u32,
        waits: bool,
        reads: Vec<Bytes>,
        writes: Vec<Bytes>,
    },
    /// The records are locked, durably. Returns the values of the reads, then of the writes. The
    /// first locks were granted in `incarnation`. Without `room`, the disk takes no further
    /// records.
    Locked { txid: Txid, incarnation: u64, request: u32, room: bool, values: Vec<Option<Bytes>> },
    /// Prepares the transaction: checks that the read records are unchanged, and locks them and the
    /// records to write. `life` is the incarnation that returned the values. Another incarnation
    /// refuses, because a restart forgets the transactions that have ended. → `Prepared` or
    /// `Refused`
    Prepare {
        txid: Txid,
        age: TransactionAge,
        incarnation: u64,
        reads: Vec<RecordItem<RecordDigest>>,
        writes: Vec<RecordItem<Bytes>>,
    },
    /// The transaction is prepared, durably.
    Prepared { txid: Txid },
    /// The participant has not prepared, and keeps nothing of the transaction.
    Refused { txid: Txid, why: Refusal },
    /// The transaction is committed. Write the prepared values and these ones, and release the
    /// locks, if they were granted in `incarnation`. Otherwise this was done before. →
    /// `Finished`
    Finish { txid: Txid, incarnation: u64, writes: Vec<RecordItem<Bytes>> },
    /// The transaction writes nothing here, or nothing more. Release the locks.
    Release { txid: Txid },
    /// These transactions are finished, durably.
    Finished { txids: Vec<Txid> },
    /// Requests the outcome. With `abort`, an older operation waits for the locks, so the
    /// coordinator aborts (wound). → `Finish` or `Release`; no reply while undecided
    QueryOutcome { txid: Txid, abort: Option<TransactionAge> },
    /// The sender's nodes and shard map. With `ask`, a receiver with a newer map must reply with
    /// it.
    Map { map: Box<ClusterMap>, ask: bool },
    /// A chunk of a shard migration, numbered from 0. It takes effect only when the source, which
    /// owns the shards, gives them away in its map. → `Carried`
    CopyChunk { txid: Txid, number: u32, chunk: MigrationChunk },
    /// The chunk is stored, durably; the last chunk also survives a power cut. With `refused`, the
    /// migration must fail.
    ChunkCopied { txid: Txid, number: u32, refused: Option<Errno> },
    /// Requests the outcome of a migration. → `Moving`
    QueryMigration { txid: Txid },
    /// The migration is under way, or over. If it is over and not in this map, it has failed for
    /// ever.
    MigrationStatus { txid: Txid, under_way: bool, map: Box<ClusterMap> },
}
