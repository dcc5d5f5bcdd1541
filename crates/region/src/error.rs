//! Why a device does not open.

use std::io;
use std::path::PathBuf;

/// Why a device does not open. Each message says how to correct it.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the messages say it
pub enum RegionOpenError {
    #[error("region device {}: cannot {what}: {source}", path.display())]
    Io { path: PathBuf, what: &'static str, source: io::Error },
    #[error("region device {}: it is in use: by another daemon, or mounted", path.display())]
    InUse { path: PathBuf },
    #[error(
        "region device {}: it is neither a block device nor a file: name a partition, a loop \
         device or a file of at least {least} MiB", path.display()
    )]
    NotADevice { path: PathBuf, least: u64 },
    #[error("region device {}: it has {has} MiB, and needs at least {least}", path.display())]
    TooShort { path: PathBuf, has: u64, least: u64 },
    #[error(
        "region device {}: it has data of something else: if nobody needs that, run `wipefs -a` \
         and `blkdiscard -z` on a partition, or make the file anew", path.display()
    )]
    Foreign { path: PathBuf },
    #[error(
        "region device {}: it is one of volume {volume:032x}, node {node}: give each node its own \
         device; if that volume is gone, run `blkdiscard -z` on it, or make the file anew",
        path.display()
    )]
    OtherNode { path: PathBuf, volume: u128, node: u16 },
    #[error(
        "region device {}: it is not the one that this node had: attach that one, or start with \
         --accept-loss without the files that were on it", path.display()
    )]
    Replaced { path: PathBuf },
    #[error(
        "region device {}: it is empty, and this node had files on one: attach that device, or \
         start with --accept-loss without these files", path.display()
    )]
    Emptied { path: PathBuf },
    #[error(
        "region device {}: it is shorter than it was by {missing} MiB: give the partition or file \
         its former length", path.display()
    )]
    Cut { path: PathBuf, missing: u64 },
    #[error(
        "region device {}: its format is {version}, of another release: start that release",
        path.display()
    )]
    OtherVersion { path: PathBuf, version: u32 },
    #[error(
        "journal {}: it is missing or damaged: check the disk; --accept-loss goes on without what \
         only the journal had", path.display()
    )]
    JournalDamaged { path: PathBuf },
}
