//! The forms of compressed parts, and what a sample says of them.

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

/// What compression a sample gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompressionSample {
    /// The better form; `Plain`: none is worth its time.
    pub form: CompressionForm,
    /// Bytes that are left of 1024.
    pub left: u32,
    /// Nanoseconds that compression 1024 bytes took.
    pub nanos: u32,
}
