//! Strings of bytes in messages.

/// Name of an entry or attribute, value of an attribute, or target of a link: bytes, as in POSIX,
/// not text.
pub type Bytes = serde_bytes::ByteBuf;
