//! What executors tell each other, on one node or several: operations that touch records of several executors.
//!
//! One executor, the *coordinator*, runs the operation. What it needs of the others it asks for with the intent to change it: the
//! *participants* lock the records and tell what they are. When nothing is missing any more, the coordinator decides, in one write with
//! its own part and with what the participants are to write; then they write it. A split, which writes many records and reads hardly any,
//! has the new values prepared beside the locks instead.
//!
//! Messages may be lost, repeated and reordered. A frame carries [`PeerMessage`]s one way, with no answer at
//! this level.

use crate::admin::ClusterMap;
use crate::meta::Bytes;
use crate::{ClientId, Errno, ExecutorId, Ino, Timestamp};
use serde::{Deserialize, Serialize};

/// Names one attempt to run an operation over several executors, for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Txid {
    /// Its coordinator.
    pub executor: ExecutorId,
    /// Which life of the coordinator began it.
    pub life: u64,
    /// Counted in that life.
    pub number: u64,
}

/// Who goes first where two operations are in each other's way: the older, which is the lesser.
/// All attempts of an operation have one age.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Age {
    /// When it began, by its coordinator's clock.
    pub since: Timestamp,
    /// Its first attempt, to tell those of one moment apart.
    pub first: Txid,
}

/// A record that an operation has seen, and that must be the same when it takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Digest(pub [u8; 16]);

/// A record's key, and what it was or is to be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Item<T> {
    /// The key, as in the store.
    pub key: Bytes,
    /// `None`: there is no such record.
    pub value: Option<T>,
}

/// Why a participant does not prepare.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// Something is not as the coordinator saw it, or an older operation has it.
    Again,
    /// The disk has no room.
    Full,
}

/// A part of what an executor tells another that is to serve shards in its place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Cargo {
    /// These are the shards: the first one, and for each how many times it has moved before.
    Shards {
        /// The first.
        first: u16,
        /// All, in order.
        moves: Vec<u32>,
    },
    /// Some of their records: keys and values.
    Records(Vec<(Bytes, Bytes)>),
    /// Some of the files of which clients have noted that they have them open. No record tells of them.
    Opens(Vec<(Ino, ClientId)>),
    /// That was all.
    End {
        /// Inodes among them.
        inodes: u64,
        /// Numbers of inodes up to this one have been given out.
        reserved: u64,
        /// Who may hold locks of their files.
        lockers: Vec<ClientId>,
    },
}

/// From one executor to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // each message says what its fields mean
pub enum PeerMessage {
    /// What are these records, all at one moment? → `Fetched`
    Fetch { request: Txid, age: Age, keys: Vec<Bytes> },
    /// They are this, in the order of the question, told in this life of the executor.
    Fetched { request: Txid, life: u64, values: Vec<Option<Bytes>> },
    /// Lock these records for the transaction and say what they are: nobody else may write what is to be read, or see what is to
    /// be written. `life` is that in which the executor has locked others for it, if it has: in another, nobody remembers what became
    /// of the transaction. Who has locked nothing anywhere `waits` for whoever has the locks, be he older or not.
    /// → `Locked` or `Refused`
    Lock {
        txid: Txid,
        age: Age,
        life: Option<u64>,
        question: u32,
        waits: bool,
        reads: Vec<Bytes>,
        writes: Vec<Bytes>,
    },
    /// They are locked, which lasts, and are this: first those to be read, then those to be written. The first were locked in
    /// this life. Without `room` the disk takes no further records.
    Locked { txid: Txid, life: u64, question: u32, room: bool, values: Vec<Option<Bytes>> },
    /// Check that these records are what was seen, and lock them and those that are to be
    /// written. `life` is that of the participant in which it was asked what they are: in another, nobody
    /// remembers what became of the transaction. → `Prepared` or `Refused`
    Prepare { txid: Txid, age: Age, life: u64, reads: Vec<Item<Digest>>, writes: Vec<Item<Bytes>> },
    /// It is done, and lasts.
    Prepared { txid: Txid },
    /// It is not done, and nothing of it is kept.
    Refused { txid: Txid, why: Refusal },
    /// It was decided: write what was prepared, and this, if you have locked for it in this life, and give the locks back.
    /// Else it was done before. → `Finished`
    Finish { txid: Txid, life: u64, writes: Vec<Item<Bytes>> },
    /// It writes nothing there, or nothing more: give the locks back.
    Release { txid: Txid },
    /// They are done, and that lasts.
    Finished { txids: Vec<Txid> },
    /// How far is it? The coordinator gives it up for whoever is older. → `Finish` or `Release`; nothing while it is not decided
    Status { txid: Txid, abort: Option<Age> },
    /// Which nodes there are and which shards they serve, as far as it knows. With `ask`, who knows more shall say so.
    Map { map: Box<ClusterMap>, ask: bool },
    /// A part of a move, numbered from 0. Nothing of it counts until the sender, who owns the shards, has given
    /// them away by its map. → `Carried`
    Carry { txid: Txid, part: u32, cargo: Cargo },
    /// It is kept, and lasts (the last part: also when power is cut). Or the move must come to nothing.
    Carried { txid: Txid, part: u32, refused: Option<Errno> },
    /// What became of this move? → `Moving`
    Moved { txid: Txid },
    /// It is under way, or over: then it has happened if the map says so, and else never will.
    Moving { txid: Txid, under_way: bool, map: Box<ClusterMap> },
}
