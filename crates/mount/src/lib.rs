//! A volume as a file system of the kernel: FUSE requests to client calls.
//!
//! [`Mount::start`] mounts and serves, [`Mount::run`] waits for the end. The
//! rules of names live in the metadata service and those of bytes in the
//! client; what is decided here is what the kernel may do by itself:
//!
//! - Names and attributes are asked for each time (unless timeouts are set),
//!   so every mount sees a change at once.
//! - Files whose bytes lie on this node are read, written and mapped by the
//!   kernel straight on the disk (passthrough), where the system permits.
//! - Bytes of other nodes are cached by the kernel for readers, from open to
//!   open, and written through to the client by writers.
//!
//! [`null`] is a file system of names alone: the floor for what any request
//! through a mount costs. [`bare`] is one file by passthrough: the floor for
//! the bytes of a local file.

mod announce;
mod attr;
pub mod bare;
mod caller;
mod closings;
mod directory;
mod ending;
mod errno;
mod error;
mod file;
mod filesystem;
mod gone;
mod handles;
mod keeping;
mod known;
mod locks;
mod mount;
mod names;
pub mod null;
mod open;
mod options;
pub mod overlay;
mod passthrough;
mod place;
mod recalls;
mod serving;
mod signals;
mod size;
mod spares;
mod stamps;
mod walks;
mod xattr;

pub use error::MountError;
pub use mount::Mount;
pub use options::{MountOptions, Passthrough};
pub use serving::Ended;
pub use tatami_fuse::MountError as FuseMountError;
pub use tatami_fuse::{Restrictions, UnmountError, unmount};
