//! Reads tar archives: the members one after the other, from a stream that cannot seek. It knows
//! the formats of POSIX (ustar and pax), of GNU tar and of the first tar, with long names, extended
//! attributes, times in nanoseconds and sparse files.
//!
//! An archive may come from anybody. So each number and each length in it is checked, memory is
//! bounded, and an archive that ends early is an error. [`split_member_name`] refuses names that
//! lead out of the directory in which an archive is unpacked. See GNU tar's manual, "Basic Tar
//! Format", and pax(1) of POSIX.

mod archive_error;
mod archive_reader;
mod member_name;
mod pax_records;
mod sparse_map;
mod tar_header;

pub use archive_error::ArchiveError;
pub use archive_reader::{ArchiveMember, ArchiveMemberKind, ArchiveReader};
pub use member_name::{MemberNameFault, split_member_name};
pub use pax_records::MemberTime;
