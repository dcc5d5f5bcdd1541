//! What can be wrong with an archive. Each error has the byte at which it was found.

use std::io;

/// A failure of [`ArchiveReader`](crate::ArchiveReader). After it, nothing more can be read.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// The input cannot be read.
    #[error("cannot read the archive")]
    Io(#[source] io::Error),
    /// The input ends before the archive does.
    #[error("the archive is cut off: it ends at byte {at}")]
    CutOff {
        /// The length of the input.
        at: u64,
    },
    /// The input is compressed.
    #[error("the archive is compressed with {tool}")]
    Compressed {
        /// The program that decompresses it.
        tool: &'static str,
    },
    /// A header has a wrong checksum, or is none.
    #[error("the header at byte {at} is damaged: its checksum is wrong")]
    Checksum {
        /// Where the header begins.
        at: u64,
    },
    /// A field is no number, or a number out of range.
    #[error("the header at byte {at} is damaged: its {field} is no number in range")]
    Number {
        /// Where the header begins.
        at: u64,
        /// The name of the field.
        field: &'static str,
    },
    /// A pax record is malformed.
    #[error("the extended header at byte {at} is malformed")]
    Record {
        /// Where the header begins.
        at: u64,
    },
    /// A name, a link or an extended header is too long.
    #[error("the header at byte {at} announces {length} bytes, and at most {most} are allowed")]
    TooLong {
        /// Where the header begins.
        at: u64,
        /// Its length, in bytes.
        length: u64,
        /// The limit, in bytes.
        most: u64,
    },
    /// The map of a sparse file contradicts itself or the size.
    #[error("the map of holes of the member at byte {at} is malformed")]
    Sparse {
        /// Where the header begins.
        at: u64,
    },
    /// A member of a kind that this crate does not know.
    #[error("the member at byte {at} is of the unknown kind {:?}", char::from(*kind))]
    Kind {
        /// Where the header begins.
        at: u64,
        /// The type flag.
        kind: u8,
    },
}
