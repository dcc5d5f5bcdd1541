//! The kernel's FUSE protocol, without any file-system rule: requests read
//! from `/dev/fuse` as typed values that borrow from the read buffer, replies
//! written with one system call and no copy of file data, notifications,
//! start-up negotiation, backing files for passthrough, mounting.
//!
//! Protocol 7.31 (Linux 5.4) is the oldest that is spoken, 7.45 the newest.
//! The structures are those of `include/uapi/linux/fuse.h`, which the kernel
//! publishes for such use; they are read and written field by field, so that
//! no bytes from the kernel are ever trusted to have a type.
//!
//! ```text
//! mount() ─▶ Channel ─initialize()─▶ Negotiated      (backing files may be tried here)
//!               └──────── Session::start(handler) ─▶ worker threads: read, handle, reply
//! ```

pub mod abi;
pub mod backing;
pub mod device;
pub mod encode;
pub mod init;
pub mod mounting;
pub mod notify;
pub mod passage;
pub mod reply;
pub mod request;
pub mod session;

mod fields;
mod trouble;

pub use backing::BackingId;
pub use device::Device;
pub use encode::{Attr, DirEntries, Opened, StatFs, Time, Validity};
pub use init::{Negotiated, Wanted};
pub use mounting::{Channel, MountError, MountSettings, Restrictions, UnmountError, unmount};
pub use notify::Notifier;
pub use passage::Passage;
pub use reply::Reply;
pub use request::{Op, ParseError, Request};
pub use session::{Handler, Session, Threads};
pub use trouble::note_cause;
