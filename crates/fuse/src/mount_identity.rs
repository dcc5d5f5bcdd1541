//! The way of this process to its own mount: a request that shows whether the kernel's requests are
//! served.

use crate::mounting::find_mount;
use std::io;
use std::path::{Path, PathBuf};

/// A mount of this process.
#[derive(Clone, Debug)]
pub(crate) struct MountIdentity {
    path: PathBuf,
    /// The device number of the file system, as ustat(2) takes it.
    device: Option<u32>,
}

impl MountIdentity {
    /// Returns the identity of what is mounted at `path`.
    pub(crate) fn from_path(path: &Path) -> MountIdentity {
        let entry = find_mount(path).ok().flatten();
        let device = entry.and_then(|entry| parse_device(&entry.device));
        MountIdentity { path: path.to_owned(), device }
    }

    /// Makes the kernel send a STATFS request.
    ///
    /// # Errors
    /// Those of ustat(2) and statfs(2); the file system may have been unmounted.
    pub(crate) fn request_statistics(&self) -> io::Result<()> {
        match self.device {
            // By the number: a path would use the mount, and an unmount would find it busy.
            #[cfg(target_arch = "x86_64")]
            Some(device) => {
                // `struct ustat` has 32 bytes.
                let mut statistics = [0u64; 4];
                // SAFETY: the call writes 32 bytes, which live past it.
                let result =
                    unsafe { libc::syscall(libc::SYS_ustat, device, statistics.as_mut_ptr()) };
                if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
            }
            // Other processors have no such call.
            _ => rustix::fs::statfs(&self.path).map(drop).map_err(io::Error::from),
        }
    }
}

/// Encodes `major:minor` as the kernel does for system calls.
fn parse_device(text: &str) -> Option<u32> {
    let (major, minor) = text.split_once(':')?;
    let (major, minor): (u32, u32) = (major.parse().ok()?, minor.parse().ok()?);
    Some((minor & 0xff) | (major & 0xfff) << 8 | (minor & !0xff) << 12)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_are_those_of_the_kernel() {
        for (major, minor) in [(0, 53), (8, 1), (259, 4), (0, 300), (4095, 70_000)] {
            let encoded = parse_device(&format!("{major}:{minor}")).expect("a number");
            assert_eq!(u64::from(encoded), libc::makedev(major, minor));
        }
        for bad in ["", "1", "x:1", "1:x", "1:-1"] {
            assert_eq!(parse_device(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_mounted_file_system_is_asked() {
        let proc = MountIdentity::from_path(Path::new("/proc"));
        proc.request_statistics().expect("/proc is mounted");
        let nothing = MountIdentity { path: "/nonexistent".into(), device: Some(u32::MAX) };
        assert!(nothing.request_statistics().is_err());
    }
}
