//! Small objects in regions of a raw device: the engine `region`.
//!
//! A file of the disk costs a name, an inode and a journal entry of its file system. An object here
//! costs a record in a journal, and later a part of a large write. Objects have up to 4 MiB; larger
//! ones are for the engine `file`.
//!
//! ```text
//! change ──▶ journal (a file) ──▶ image in memory ──▶ reply
//!              fsync: sync of the journal  │
//!                                          ▼ many at a time, by one thread
//!                                 region: bytes and head ──▶ flush ──▶ the older region is free
//! ```
//!
//! - An object is written as a whole, always to a free region. So a power cut leaves the older or
//!   the newer object, never a part of each.
//! - The device keeps no table. A number gives size and address of a region ([`class`]), and each
//!   region in use has a head that names its object. The store reads all heads when it opens.
//! - All bytes have checksums, and every read is checked.
//! - Memory: about 250 bytes for each object, and two bounds for bytes ([`RegionLimits`]).
//!
//! The idea is that of PPOSS, the storage server of PPMDS, with its regions of a sparse device.

pub mod aligned;
mod allocator;
pub mod block_device;
pub mod class;
mod error;
mod generation;
mod journal;
pub mod journal_record;
mod kernel_device;
mod node_regions;
mod opening;
pub mod power_cut;
pub mod region_head;
mod region_store;
mod signal;
mod store_parts;
mod stored_object;
mod version_table;
mod versions;
mod writeback;

pub use error::RegionOpenError;
pub use kernel_device::KernelDevice;
pub use node_regions::{
    NodeRegions, REGIONS_DIR, had_region_device, open_node_regions, recorded_device,
};
pub use opening::{RegionOptions, open_regions};
pub use region_store::{ChangeError, MadeChange, RegionChange, RegionSpace, RegionStore};
pub use store_parts::RegionLimits;
