//! Objects on a local disk: the bytes of files, named by inode number and
//! piece, with no idea of file names, owners or permissions.
//!
//! The engine is called `file`: one backing file an object, made at its first
//! write, so that creating a file in the namespace costs the disk nothing and a
//! client on this node can be handed the open backing file.
//!
//! ```text
//! DIR/objects/<low byte of ino, 2 hex>/<ino, 16 hex>.<piece, 8 hex>
//! ```
//!
//! An object that does not exist reads as empty. A mount of this node may hold a file in
//! `DIR/lent` that becomes an object when somebody asks for it; see `tatami_lend`. Every call may be made from
//! any thread.

mod cache;
mod disk;
pub mod fault;
mod listing;
mod name;
mod object;
mod spares;
mod store;

pub use disk::{Disk, Kernel};
pub use name::backing_path;
pub use object::Object;
pub use spares::boot;
pub use store::{Listing, OBJECTS_DIR, ObjectStore, OpenError};
