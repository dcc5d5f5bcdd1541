//! Who is in a volume, and what is whose: the cluster map as a file, the
//! volume's key, and the identity of data directories.
//!
//! Everything here is checked before it is believed: each file carries its
//! format version, and what belongs to another volume or node, comes from a
//! newer Tatami or is damaged is refused with a sentence on what to do.

pub mod atomic;
mod data_dir;
mod key_file;
pub mod mounted;
pub mod mountinfo;
pub mod trusted;
mod volume;

pub use data_dir::{DATA_FORMAT, DataDir, DataDirError, LossMark};
pub use key_file::{KeyError, KeyFile};
pub use volume::{NODES_MAX, NodeEntry, SOCKET_PATH_MAX, VOLUME_FORMAT, VolumeError, VolumeFile};
