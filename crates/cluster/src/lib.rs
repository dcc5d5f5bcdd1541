//! The members of a volume and their property: the cluster map as a file, the volume's key, its
//! certificates, and the identity of data directories.
//!
//! Everything is checked before it is used. Each file has its format version. A file that is
//! damaged, comes from a newer Tatami, or belongs to another volume or node is refused, with a
//! sentence on how to correct it.

pub mod atomic;
mod certificate_file;
mod data_dir;
mod default_dir;
mod key_file;
pub mod mount_note;
pub mod mountinfo;
pub mod trusted;
mod volume;

pub use certificate_file::{
    AUTHORITIES_MAX, CertificateEntry, CertificateFile, CertificateFileError, PrivateKeyText,
};
pub use data_dir::{DATA_FORMAT, DataDir, DataDirError, LossMark};
pub use default_dir::{DEFAULT_NAME, SYSTEM_DIR, default_volume_dir, resolve_system_name};
pub use key_file::{KeyError, KeyFile};
pub use volume::{
    Encryption, NODES_MAX, NodeEntry, SOCKET_PATH_MAX, VOLUME_FORMAT, VolumeError, VolumeFile,
};
