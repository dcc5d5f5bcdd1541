//! The region device of a node: the device itself, and what belongs to it in the node's data
//! directory.
//!
//! ```text
//! DIR/regions/device    two lines: the random number of the device, so that another one is
//!                       noticed, and its path, for a start without it
//! DIR/regions/journal   the journal
//! ```

use crate::class::DEVICE_MIN;
use crate::error::RegionOpenError;
use crate::kernel_device::KernelDevice;
use crate::opening::{RegionOptions, open_regions};
use crate::region_store::RegionStore;
use crate::store_parts::RegionLimits;
use rustix::fs::{FallocateFlags, Mode, OFlags};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The directory of a region device, within the data directory.
pub const REGIONS_DIR: &str = "regions";
const DEVICE_FILE: &str = "device";
const JOURNAL_FILE: &str = "journal";

/// The region device of a node.
#[derive(Clone, Debug)]
pub struct NodeRegions {
    /// The partition, loop device or file.
    pub device: PathBuf,
    /// The volume.
    pub volume: u128,
    /// The node.
    pub node: u16,
    /// Go on without what is lost.
    pub accept_loss: bool,
}

/// Whether a node with this data directory has had a region device.
pub fn had_region_device(dir: &Path) -> bool {
    dir.join(REGIONS_DIR).join(DEVICE_FILE).exists()
}

/// Returns the path of the device that a node with this data directory has had.
pub fn recorded_device(dir: &Path) -> Option<PathBuf> {
    let (_, path) = read_device_file(&dir.join(REGIONS_DIR).join(DEVICE_FILE)).ok()??;
    Some(path)
}

/// Opens the region device of a node and starts the thread that writes it.
///
/// # Errors
/// See [`RegionOpenError`].
pub fn open_node_regions(
    dir: &Path,
    regions: &NodeRegions,
) -> Result<RegionStore, RegionOpenError> {
    let device = open_device(&regions.device)?;
    let own = dir.join(REGIONS_DIR);
    let failed = |what| {
        let path = own.clone();
        move |source: io::Error| RegionOpenError::Io { path, what, source }
    };
    make_private_dir(&own).map_err(failed("make the directory"))?;
    let (device_file, journal_path) = (own.join(DEVICE_FILE), own.join(JOURNAL_FILE));
    let recorded = read_device_file(&device_file).map_err(failed("read the device's number"))?;
    let expected = recorded.as_ref().map(|(id, _)| *id);
    let limits = RegionLimits::default();
    let journal =
        open_journal(&journal_path, 2 * limits.journal_half).map_err(failed("make the journal"))?;
    let store = open_regions(RegionOptions {
        device: Arc::new(device),
        path: regions.device.clone(),
        journal: Box::new(journal),
        journal_path,
        volume: regions.volume,
        node: regions.node,
        expected,
        accept_loss: regions.accept_loss,
        limits,
    })?;
    let found = (store.device_id(), std::path::absolute(&regions.device).unwrap_or_default());
    if recorded.as_ref() != Some(&found) {
        write_device_file(&own, &device_file, &found)
            .map_err(failed("write the device's number"))?;
    }
    store.start_thread().map_err(failed("start a thread"))?;
    Ok(store)
}

fn open_device(path: &Path) -> Result<KernelDevice, RegionOpenError> {
    let path = path.to_owned();
    KernelDevice::open(&path).map_err(|source| match source.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::ResourceBusy => RegionOpenError::InUse { path },
        io::ErrorKind::InvalidInput => {
            RegionOpenError::NotADevice { path, least: DEVICE_MIN >> 20 }
        }
        _ => RegionOpenError::Io { path, what: "open it", source },
    })
}

fn make_private_dir(path: &Path) -> io::Result<()> {
    match rustix::fs::mkdir(path, Mode::RWXU) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

fn open_private(path: &Path, flags: OFlags) -> io::Result<File> {
    let flags = flags | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    Ok(File::from(rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)?))
}

/// Opens the file of the journal, with all its room: a change that was accepted must not find the
/// disk full.
fn open_journal(path: &Path, len: u64) -> io::Result<File> {
    let file = open_private(path, OFlags::RDWR)?;
    match rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, len) {
        Ok(()) => {}
        // A file system without it reserves nothing. A write that fails is then an error.
        Err(rustix::io::Errno::OPNOTSUPP) => file.set_len(len)?,
        Err(e) => return Err(e.into()),
    }
    file.sync_all()?;
    Ok(file)
}

fn read_device_file(path: &Path) -> io::Result<Option<(u128, PathBuf)>> {
    let bytes = match std::fs::read(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other?,
    };
    let damaged = || io::Error::new(io::ErrorKind::InvalidData, "it is damaged");
    let end = bytes.iter().position(|b| *b == b'\n').ok_or_else(damaged)?;
    let id = std::str::from_utf8(&bytes[..end]).ok().and_then(|t| u128::from_str_radix(t, 16).ok());
    let device = bytes[end + 1..].strip_suffix(b"\n").ok_or_else(damaged)?;
    Ok(Some((id.ok_or_else(damaged)?, PathBuf::from(OsStr::from_bytes(device)))))
}

fn write_device_file(dir: &Path, path: &Path, (id, device): &(u128, PathBuf)) -> io::Result<()> {
    let new = dir.join(".device");
    let mut file = open_private(&new, OFlags::WRONLY | OFlags::TRUNC)?;
    let line = format!("{id:032x}\n");
    file.write_all(&[line.as_bytes(), device.as_os_str().as_bytes(), b"\n"].concat())?;
    file.sync_all()?;
    std::fs::rename(&new, path)?;
    File::open(dir)?.sync_all()
}
