//! The forms of compressed parts.

use serde::{Deserialize, Serialize};

/// How the bytes of a part were compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CompressionForm {
    /// They are as they are in the file.
    Plain,
    /// zstd.
    Zstd,
    /// zstd over the bytes of each significance side by side.
    Planes,
}
