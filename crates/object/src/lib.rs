//! Objects on a local disk: the bytes of files, named by inode number and piece, without file
//! names, owners or permissions.
//!
//! The engine is called `file`: each object has one backing file, made at its first write. So a new
//! file in the namespace costs the disk nothing, and a client on this node can get the open backing
//! file.
//!
//! ```text
//! DIR/objects/<low byte of ino, 2 hex>/<ino, 16 hex>.<piece, 8 hex>
//! ```
//!
//! An object that does not exist reads as empty. A mount of this node may hold a spare file in
//! `DIR/lent`, which becomes an object at the first request for that object; see
//! `tatami_tables::SpareTable`. Every call may be made from any thread.

mod cache;
mod data_ranges;
mod disk;
pub mod fault;
mod listing;
mod name;
mod node_objects;
mod object;
mod spares;
mod store;

pub use disk::{Disk, KernelDisk};
pub use name::{OBJECTS_DIR, backing_path};
pub use node_objects::{NodeObjects, NodeObjectsError};
pub use object::Object;
pub use spares::boot_number;
pub use store::{ObjectListing, ObjectOpenError, ObjectStore};
pub use tatami_region::{NodeRegions, recorded_device};
