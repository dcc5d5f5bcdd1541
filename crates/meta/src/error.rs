//! Failures: precise inside, an error number to the caller of an operation, a sentence to the
//! operator.

use crate::keys::Key;
use crate::record::{Damaged, ShardError};
use crate::store::StoreError;
use tatami_wire::partition::Range;
use tatami_wire::transaction::Txid;
use tatami_wire::{Errno, ExecutorId, Ino, VolumeId};

/// The reason why a shard cannot be opened.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the texts state it
pub enum OpenError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("the metadata belongs to volume {found}, not {wanted}: check the data directory")]
    Volume { found: VolumeId, wanted: VolumeId },
    #[error("the metadata is of executor {found}, not {wanted}: check the data directory")]
    Executor { found: ExecutorId, wanted: ExecutorId },
    #[error(
        "the metadata has format {found}, this version of tatami knows formats up to {known}: \
         use the version that wrote it"
    )]
    Newer { found: u32, known: u32 },
    #[error("the metadata is damaged ({0} does not read): restore it from a copy")]
    Damaged(&'static str),
}

impl OpenError {
    /// Returns whether the disk has other content than was written. The operator fixes all other
    /// errors by another configuration.
    pub fn is_damage(&self) -> bool {
        match self {
            OpenError::Damaged(_) => true,
            OpenError::Store(StoreError::Damaged { .. } | StoreError::Lost { .. }) => true,
            OpenError::Store(StoreError::Io { source, .. }) => {
                source.raw_os_error() == Some(libc::EIO)
            }
            _ => false,
        }
    }
}

impl From<ShardError> for OpenError {
    fn from(e: ShardError) -> OpenError {
        match e {
            ShardError::Newer(found) => {
                OpenError::Newer { found, known: crate::record::FORMAT_VERSION }
            }
            ShardError::Damaged(Damaged(what)) => OpenError::Damaged(what),
        }
    }
}

/// The reason why an operation failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// It is not allowed, or something that it needs does not exist: an error of the caller.
    Errno(Errno),
    /// The store failed.
    Store(Box<StoreError>),
    /// A record cannot be decoded.
    Damaged(Damaged),
    /// These records of other executors are needed.
    Missing(Vec<(ExecutorId, Key)>),
    /// A record is locked by these transactions.
    Locked(Vec<Txid>),
    /// The name is not in this partition, which has the names of this range only.
    Parted(Ino, Range),
}

impl Failure {
    /// Returns the error number for the caller.
    pub fn errno(&self) -> Errno {
        match self {
            Failure::Errno(e) => *e,
            Failure::Store(e) => e.errno(),
            Failure::Damaged(_) => Errno::EIO,
            Failure::Missing(_) | Failure::Locked(_) => Errno::EAGAIN,
            Failure::Parted(..) => Errno::ESTALE,
        }
    }

    /// Returns whether it is a full disk, which may have room again later.
    pub fn is_full(&self) -> bool {
        matches!(self, Failure::Store(e) if matches!(**e, StoreError::Full { .. }))
    }

    /// Returns the message for the operator, if the failure concerns the operator.
    pub fn trouble(&self) -> Option<String> {
        match self {
            Failure::Errno(_) | Failure::Missing(_) | Failure::Locked(_) | Failure::Parted(..) => {
                None
            }
            Failure::Store(e) => Some(e.to_string()),
            Failure::Damaged(Damaged(what)) => {
                Some(format!("a metadata record ({what}) is damaged: run `tatami fsck`"))
            }
        }
    }
}

impl From<Errno> for Failure {
    fn from(e: Errno) -> Failure {
        Failure::Errno(e)
    }
}

impl From<StoreError> for Failure {
    fn from(e: StoreError) -> Failure {
        Failure::Store(Box::new(e))
    }
}

impl From<Damaged> for Failure {
    fn from(e: Damaged) -> Failure {
        Failure::Damaged(e)
    }
}

/// The result of an operation inside this crate.
pub(crate) type Outcome<T> = Result<T, Failure>;
