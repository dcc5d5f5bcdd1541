//! Failures: precise inside, an error number to the caller of an operation, a sentence to the
//! operator.

use crate::keys::RecordKey;
use crate::record::{DamagedRecord, ShardError};
use crate::store::StoreError;
use tatami_wire::partition::HashRange;
use tatami_wire::transaction::Txid;
use tatami_wire::{Errno, ExecutorId, Ino, VolumeId};

/// The reason why a shard cannot be opened.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the texts state it
pub enum MetaOpenError {
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

impl MetaOpenError {
    /// Returns whether the disk has other content than was written. The operator fixes all other
    /// errors by another configuration.
    pub fn is_damage(&self) -> bool {
        match self {
            MetaOpenError::Damaged(_) => true,
            MetaOpenError::Store(StoreError::Damaged { .. } | StoreError::Lost { .. }) => true,
            MetaOpenError::Store(StoreError::Io { source, .. }) => {
                source.raw_os_error() == Some(libc::EIO)
            }
            _ => false,
        }
    }
}

impl From<ShardError> for MetaOpenError {
    fn from(e: ShardError) -> MetaOpenError {
        match e {
            ShardError::Newer(found) => {
                MetaOpenError::Newer { found, known: crate::record::FORMAT_VERSION }
            }
            ShardError::Damaged(DamagedRecord(what)) => MetaOpenError::Damaged(what),
        }
    }
}

/// The reason why an operation failed.
#[derive(Debug)]
pub(crate) enum OperationFailure {
    /// It is not allowed, or something that it needs does not exist: an error of the caller.
    Errno(Errno),
    /// The store failed.
    Store(Box<StoreError>),
    /// A record cannot be decoded.
    Damaged(DamagedRecord),
    /// These records of other executors are needed.
    Missing(Vec<(ExecutorId, RecordKey)>),
    /// A record is locked by these transactions.
    Locked(Vec<Txid>),
    /// The name is not in this partition, which has the names of this range only.
    WrongPartition(Ino, HashRange),
}

impl OperationFailure {
    /// Returns the error number for the caller.
    pub fn errno(&self) -> Errno {
        match self {
            OperationFailure::Errno(e) => *e,
            OperationFailure::Store(e) => e.errno(),
            OperationFailure::Damaged(_) => Errno::EIO,
            OperationFailure::Missing(_) | OperationFailure::Locked(_) => Errno::EAGAIN,
            OperationFailure::WrongPartition(..) => Errno::ESTALE,
        }
    }

    /// Returns whether it is a full disk, which may have room again later.
    pub fn is_full(&self) -> bool {
        matches!(self, OperationFailure::Store(e) if matches!(**e, StoreError::Full { .. }))
    }

    /// Returns the message for the operator, if the failure concerns the operator.
    pub fn operator_message(&self) -> Option<String> {
        match self {
            OperationFailure::Errno(_)
            | OperationFailure::Missing(_)
            | OperationFailure::Locked(_)
            | OperationFailure::WrongPartition(..) => None,
            OperationFailure::Store(e) => Some(e.to_string()),
            OperationFailure::Damaged(DamagedRecord(what)) => {
                Some(format!("a metadata record ({what}) is damaged: run `tatami fsck`"))
            }
        }
    }
}

impl From<Errno> for OperationFailure {
    fn from(e: Errno) -> OperationFailure {
        OperationFailure::Errno(e)
    }
}

impl From<StoreError> for OperationFailure {
    fn from(e: StoreError) -> OperationFailure {
        OperationFailure::Store(Box::new(e))
    }
}

impl From<DamagedRecord> for OperationFailure {
    fn from(e: DamagedRecord) -> OperationFailure {
        OperationFailure::Damaged(e)
    }
}

/// The result of an operation inside this crate.
pub(crate) type MetaOutcome<T> = Result<T, OperationFailure>;
