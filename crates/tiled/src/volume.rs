//! Files on a mount of a Tatami volume. The pieces are objects of the file, on the disks of the
//! nodes on which its ranks run; the shard has the index; every mount shows one ordinary file.
//!
//! A rank gets descriptors of its own node's objects from the daemon there and uses them directly:
//! a write is one pwrite(2) and a store into the mapped journal. Names, permissions, the base,
//! truncation and locks go through the mount by which the program named the file.

mod backing;
mod begin;
mod claim_table;
mod inbox;
mod joined;
mod mounts;
mod neighbors;
mod open_file;
mod rank_table;
mod session;
mod state;
mod waits;

pub use backing::VolumeBacking;
pub use begin::begin_volume_open;
pub use inbox::inbox_number;
pub use session::{VolumeSession, is_on_volume, node_of};
pub(crate) use session::{device_of, parent_dir};
pub use waits::{WaitReporter, set_wait_reporter};
