//! Checks of the mount point before the mount, so that a refusal has a clear reason.

use crate::error::MountError;
use std::path::{Path, PathBuf};
use tatami_fuse::mounting::find_mount;
use tatami_fuse::{MountSettings, Restrictions};

/// The type that `mount` and `df` show after `fuse.`.
pub(crate) const SUBTYPE: &str = "tatami";

/// Returns the canonical path of the directory, if a mount there is possible.
///
/// # Errors
/// [`MountError`], with a remedy.
pub(crate) fn check_mountpoint(path: &Path) -> Result<PathBuf, MountError> {
    let failed = |source: std::io::Error| {
        let path = path.to_owned();
        match source.raw_os_error() {
            Some(libc::ENOENT) => MountError::NoMountpoint { path },
            Some(libc::ENOTCONN | libc::ECONNABORTED) => MountError::Dead { path },
            _ => MountError::Mountpoint { path, source },
        }
    };
    let meta = std::fs::metadata(path).map_err(failed)?;
    if !meta.is_dir() {
        return Err(MountError::NotADirectory { path: path.to_owned() });
    }
    let path = path.canonicalize().map_err(failed)?;
    match find_mount(&path).map_err(failed)?.map(|m| m.kind) {
        None => Ok(path),
        Some(kind) if kind == format!("fuse.{SUBTYPE}") => Err(MountError::AlreadyMounted { path }),
        Some(kind) => Err(MountError::Occupied { path, kind }),
    }
}

/// Sets a longer read-ahead than the kernel's default of 128 KiB, for remote files. Only root may
/// do this. Otherwise the reads are smaller.
pub(crate) fn set_read_ahead(path: &Path, kib: u32) {
    let device = match find_mount(path) {
        Ok(Some(mounted)) => mounted.device,
        Ok(None) | Err(_) => return,
    };
    let knob = format!("/sys/class/bdi/{device}/read_ahead_kb");
    if let Err(error) = std::fs::write(&knob, kib.to_string()) {
        tracing::debug!(%knob, %error, "the kernel's own read-ahead stays");
    }
}

/// Returns the settings of the mount.
pub(crate) fn mount_settings(source: String, read_only: bool, allow_other: bool) -> MountSettings {
    MountSettings {
        source,
        subtype: SUBTYPE.into(),
        read_only,
        allow_other,
        default_permissions: true,
        restrictions: Restrictions::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_place_is_refused_with_what_to_do() {
        let dir = tempfile::tempdir().expect("a directory for the test");
        let missing = dir.path().join("missing");
        let text = check_mountpoint(&missing).expect_err("not there").to_string();
        assert!(text.contains("mkdir -p"), "{text}");
        let file = dir.path().join("file");
        std::fs::write(&file, b"x").expect("a file for the test");
        assert!(matches!(check_mountpoint(&file), Err(MountError::NotADirectory { .. })));
        assert!(matches!(check_mountpoint(Path::new("/proc")), Err(MountError::Occupied { .. })));
        assert_eq!(check_mountpoint(dir.path()).ok(), dir.path().canonicalize().ok());
    }
}
