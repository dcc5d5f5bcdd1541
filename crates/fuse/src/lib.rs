//! The kernel's FUSE protocol, without any file-system rule. Requests from `/dev/fuse` become typed
//! values that borrow from the read buffer. A reply is one system call without a copy of file data.
//! The crate also has notifications, the negotiation at the start, backing files for passthrough,
//! and mounting.
//!
//! It supports protocol versions from 7.31 (Linux 5.4) to 7.45. The structures are those of
//! `include/uapi/linux/fuse.h`, which the kernel publishes for such use. The crate decodes and
//! encodes them field by field, and never trusts bytes from the kernel to have a type.
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
pub mod reply;
pub mod request;
pub mod session;
pub mod splice;

mod device_workers;
mod eio_log;
mod fields;
mod mount_identity;
mod ring;
mod ring_workers;
mod session_state;

pub use backing::BackingId;
pub use device::Device;
pub use eio_log::note_cause;
pub use encode::{CacheTimeouts, DirEntries, FuseAttr, FuseTime, OpenReply, StatFs};
pub use fields::ParseError;
pub use init::{NegotiatedFeatures, RequestedFeatures};
pub use mounting::{
    Channel, FuseMountError, MountSettings, Restrictions, UnmountError, unmount_path,
};
pub use notify::Notifier;
pub use reply::Reply;
pub use request::{FuseOp, FuseSetAttr, FuseSetTime, Request};
pub use ring::probe_ring;
pub use session::FuseSession;
pub use session_state::{Handler, ThreadLimits};
pub use splice::SplicedReply;
