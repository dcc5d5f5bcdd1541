//! Mounts a directory of another site by FUSE: translates the kernel's requests to calls of an I/O
//! process there, which runs as the user who logged in.
//!
//! The rules of names, permissions and bytes are those of the file system there. This crate decides
//! what the kernel may keep, and for how long: see [`SiteMount`].

mod read_ahead;
mod site_attr;
mod site_dirs;
mod site_dispatch;
mod site_files;
mod site_mount;
mod site_nodes;
mod site_tree;
mod write_state;

pub use site_mount::{SiteMount, SiteMountError, SiteMountOptions};
