//! Mounts a volume by FUSE: translates the kernel's requests to calls of the client library.
//!
//! [`Mount::start`] mounts and serves. [`Mount::run`] waits for the end. The metadata service has
//! the rules of names, and the client has those of bytes. This crate decides what the kernel may do
//! by itself:
//!
//! - The kernel asks for names and attributes each time (unless timeouts are set or they are
//!   delegated), so every mount sees a change at once.
//! - The kernel reads, writes and maps files with bytes on this node directly on the disk
//!   (passthrough), where the system permits.
//! - The kernel caches bytes of other nodes for readers, across opens. Writers write through to the
//!   client.
//!
//! [`mount_handler`] and [`serve_handler`] mount file systems that are no volume.

mod announce;
mod attr;
mod attr_cache;
mod backing;
mod caller;
mod deferred_close;
mod directory;
mod dispatch;
mod errno;
mod error;
mod file;
mod filesystem;
mod handler_mount;
mod handles;
mod kernel_cache;
mod lock_waits;
mod locks;
mod mount;
mod mountpoint;
mod names;
mod open;
mod open_dir;
mod open_file;
mod options;
pub mod overlay;
mod page_validity;
mod passthrough;
mod process_end;
mod recalls;
mod removed_dirs;
mod serving;
mod signals;
mod size;
mod spare_pool;
mod walk_cache;
mod xattr;

pub use error::MountError;
pub use handler_mount::{HandlerSettings, mount_handler, serve_handler};
pub use mount::Mount;
pub use options::{MountOptions, Passthrough};
pub use serving::{MountEnd, serve_until_end};
pub use tatami_fuse::FuseMountError;
pub use tatami_fuse::{Restrictions, UnmountError, unmount_path};
