//! The findings of a check, and why it could not be finished.

use tatami_wire::{Errno, ExecutorId, Ino, NodeId, Piece, ShardId};

/// Most findings that are kept; more are only counted.
pub const FINDINGS_MAX: usize = 100_000;

/// The kind of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FindingKind {
    /// The records of a shard contradict each other: link counts, entries without inodes, inodes
    /// without names.
    Names,
    /// An object whose inode does not exist.
    NoInode,
    /// An object on a node, or with a number, where its file has none.
    Misplaced,
    /// A file with bytes whose object is missing, in whole or in part.
    NoObject,
    /// A file whose object is longer than the inode says.
    Size,
    /// A damaged journal of a piece that its writer has not closed.
    Journal,
}

/// One fault, repaired or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FsckFinding {
    /// Its kind.
    pub wrong: FindingKind,
    /// The inode concerned.
    pub ino: Ino,
    /// A path of the inode from the root, where one leads to it. Only of faults that were not
    /// repaired.
    pub path: Option<Vec<u8>>,
    /// The node whose disk is concerned; `None` for names.
    pub node: Option<NodeId>,
    /// The lost part of an object.
    pub lost: Option<LostBytes>,
    /// The object with the journal that is damaged. Only a decision of the file's owner settles
    /// that ([`crate::accept_loss`]): a repair leaves it as it is.
    pub journal: Option<Piece>,
    /// What is wrong, in a sentence.
    pub what: String,
    /// Whether it was repaired.
    pub repaired: bool,
}

impl FsckFinding {
    /// Whether bytes are lost that no repair brings back.
    pub fn is_loss(&self) -> bool {
        self.lost.is_some() || self.journal.is_some()
    }
}

/// Bytes that a file has and its object has not. A repair leaves them as they are: reading them
/// fails, until the file is written anew, or cut to what is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LostBytes {
    /// Which object of the file.
    pub piece: Piece,
    /// Bytes that it should have at least.
    pub least: u64,
    /// Bytes that it has.
    pub has: u64,
}

/// The result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FsckReport {
    /// Inodes checked.
    pub inodes: u64,
    /// Objects checked.
    pub objects: u64,
    /// The faults, at most [`FINDINGS_MAX`].
    pub findings: Vec<FsckFinding>,
    /// The number of further faults.
    pub more: u64,
    /// Suspicions that a second look dispelled.
    pub dispelled: u64,
}

/// Why a check could not be finished.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the texts say it
pub enum FsckError {
    #[error("shard {} on executor {executor}: cannot {what}: {errno}", shard.0)]
    Shard { shard: ShardId, executor: ExecutorId, what: &'static str, errno: Errno },
    #[error("executor {executor}: cannot {what}: {errno}")]
    Executor { executor: ExecutorId, what: &'static str, errno: Errno },
    #[error("node {node}: cannot {what}: {errno}")]
    Node { node: NodeId, what: &'static str, errno: Errno },
}

impl FsckError {
    /// Returns the error number.
    pub fn errno(&self) -> Errno {
        match self {
            FsckError::Shard { errno, .. }
            | FsckError::Executor { errno, .. }
            | FsckError::Node { errno, .. } => *errno,
        }
    }
}
