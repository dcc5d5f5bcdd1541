//! The values of records as other executors see them.

use crate::error::{MetaOutcome, OperationFailure};
use crate::keys::{self, ParsedKey, RecordKey};
use crate::state::MetaState;
use crate::store::Store;
use tatami_wire::transaction::RecordDigest;

/// Returns a hash that identifies a value.
pub(crate) fn hash_value(value: &[u8]) -> RecordDigest {
    RecordDigest(xxhash_rust::xxh3::xxh3_128(value).to_be_bytes())
}

/// Returns the value that other executors see under a key: the record, or for a
/// [`ParsedKey::Ancestor`] the number of the directory above.
pub(crate) fn peer_value<S: Store>(
    state: &mut MetaState<S>,
    key: &RecordKey,
) -> MetaOutcome<Option<Vec<u8>>> {
    match keys::parse(key) {
        Some(ParsedKey::Ancestor(ino)) => {
            Ok(state.load_inode(ino)?.map(|inode| inode.parent.0.to_be_bytes().to_vec()))
        }
        Some(_) => Ok(state.get(key)?),
        None => Err(OperationFailure::Errno(tatami_wire::Errno::EINVAL)),
    }
}
