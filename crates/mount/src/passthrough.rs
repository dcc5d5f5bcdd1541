//! Checks whether passthrough of local files works here.

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::path::Path;
use tatami_fuse::abi::init;
use tatami_fuse::{Device, NegotiatedFeatures};

const OVERLAYFS_MAGIC: i64 = 0x794c_7630;

/// Returns the number of stacked file systems below this mount. A plain disk needs 1. An overlayfs,
/// as in containers, needs 2, but then no overlayfs can be mounted on top of this mount.
pub(crate) fn stack_depth(data_dir: Option<&Path>) -> u32 {
    match data_dir.map(rustix::fs::statfs) {
        Some(Ok(s)) if s.f_type == OVERLAYFS_MAGIC => 2,
        _ => 1,
    }
}

/// Tries to register a file in the node's data directory.
///
/// # Errors
/// The reason of the failure, in words for the user.
pub(crate) fn probe_passthrough(
    device: &Device,
    agreed: &NegotiatedFeatures,
    data_dir: Option<&Path>,
) -> Result<(), String> {
    let Some(dir) = data_dir else {
        return Err("no node of the volume runs on this machine".into());
    };
    if !agreed.has_flags(init::PASSTHROUGH) {
        return Err("the kernel has no FUSE passthrough (Linux 6.9 and newer have it)".into());
    }
    let mode = Mode::RUSR | Mode::WUSR;
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let file = rustix::fs::open(dir, flags, mode)
        .or_else(|_| rustix::fs::memfd_create("probe", rustix::fs::MemfdFlags::CLOEXEC))
        .map_err(|e| format!("no file to try it with in {}: {e}", dir.display()))?;
    match device.open_backing(&file) {
        Ok(id) => {
            // The trial may leak its registration. The end of the mount removes it.
            let _ = device.close_backing(id);
            Ok(())
        }
        Err(Errno::PERM) => Err("it takes root (CAP_SYS_ADMIN)".into()),
        Err(Errno::LOOP) => Err(format!(
            "{} lies on a stacked file system (overlay), too deep for the kernel",
            dir.display()
        )),
        Err(e) => Err(format!("the kernel refused a file of {}: {e}", dir.display())),
    }
}
