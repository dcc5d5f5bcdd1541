//! The names that the clients give to entries, and the hashes of them.

use tatami_wire::meta::Bytes;
use tatami_wire::partition::{name_hash, name_seed};
use tatami_wire::{VolumeId, VolumeKey};

/// The volume.
pub(crate) const VOLUME: VolumeId = VolumeId([1; 16]);

/// Returns the key of the volume.
pub(crate) fn volume_key() -> VolumeKey {
    VolumeKey::new([1; 32])
}

/// A name.
pub(crate) type NameNumber = u8;

/// Names in a directory: few, so that clients conflict.
pub(crate) const NAMES: NameNumber = 4;

pub(crate) fn name_bytes(name: NameNumber) -> Bytes {
    Bytes::from(format!("n{name}").into_bytes())
}

/// Returns the seed of the hashes of names.
pub(crate) fn hash_seed() -> u64 {
    name_seed(VOLUME)
}

/// Returns the hash of a name, its position in the directory.
pub(crate) fn hash_name(name: NameNumber) -> u64 {
    name_hash(hash_seed(), &name_bytes(name))
}
