//! Mounting and unmounting: directly with permission, otherwise through the setuid program
//! `fusermount3`.

use crate::device::Device;
use crate::init::{self, InitError, NegotiatedFeatures, RequestedFeatures};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType,
};
use rustix::process::getuid;
use std::ffi::CString;
use std::io::IoSliceMut;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

const HELPER: &str = "fusermount3";

/// The settings of a mount.
#[derive(Clone, Debug)]
pub struct MountSettings {
    /// The source that `mount` and `df` show.
    pub source: String,
    /// The type that they show after `fuse.`.
    pub subtype: String,
    /// The mount is read-only.
    pub read_only: bool,
    /// All users have access, not only the mounting user.
    pub allow_other: bool,
    /// The kernel checks permission bits before it sends a request.
    pub default_permissions: bool,
    /// Things that the kernel must not do with files of the mount.
    pub restrictions: Restrictions,
}

/// Things that the kernel must not do with files of a mount, by the names of mount(8).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Restrictions {
    /// Ignore set-user-id and set-group-id bits, and capabilities of files.
    pub nosuid: bool,
    /// Open no devices.
    pub nodev: bool,
    /// Execute no programs.
    pub noexec: bool,
}

impl Restrictions {
    fn mount_flags(self) -> MountFlags {
        let mut flags = MountFlags::empty();
        flags.set(MountFlags::NOSUID, self.nosuid);
        flags.set(MountFlags::NODEV, self.nodev);
        flags.set(MountFlags::NOEXEC, self.noexec);
        flags
    }
}

/// The reason why a mount failed.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum FuseMountError {
    #[error("{path}: {source}")]
    Path { path: PathBuf, source: std::io::Error },
    #[error(
        "/dev/fuse: {0}: is the kernel module there (modprobe fuse), and may this user open it?"
    )]
    Device(Errno),
    #[error("mounting on {path}: {errno}")]
    MountCall { path: PathBuf, errno: Errno },
    #[error("{HELPER} does not run ({0}): install fuse3, or mount as root")]
    Helper(std::io::Error),
    #[error(
        "{HELPER} lets only the superuser mount for other users: /etc/fuse.conf does not have user_allow_other"
    )]
    AllowOther { path: PathBuf },
    #[error("{HELPER} could not mount on {path}: {said}")]
    Refused { path: PathBuf, said: String },
}

/// The reason why an unmount failed.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum UnmountError {
    #[error("{path} is busy: programs have files open or their working directory there")]
    Busy { path: PathBuf },
    #[error("nothing is mounted on {path}")]
    NotMounted { path: PathBuf },
    #[error("only the superuser and the user that mounted {path} may unmount it")]
    NotPermitted { path: PathBuf },
    #[error("unmounting {path}: {said}")]
    Failed { path: PathBuf, said: String },
}

/// A mounted file system: its device and its path. Dropping it unmounts.
#[derive(Debug)]
pub struct Channel {
    device: Arc<Device>,
    path: PathBuf,
}

impl Channel {
    /// Mounts a file system on `path`. Programs that access it wait until requests are answered.
    ///
    /// # Errors
    /// [`FuseMountError`].
    pub fn mount(path: &Path, settings: &MountSettings) -> Result<Channel, FuseMountError> {
        let path = path
            .canonicalize()
            .map_err(|source| FuseMountError::Path { path: path.to_owned(), source })?;
        match mount_directly(&path, settings) {
            Err(FuseMountError::MountCall { errno: Errno::PERM, .. })
            | Err(FuseMountError::Device(Errno::ACCESS | Errno::PERM)) => {
                mount_by_helper(&path, settings)
            }
            other => other,
        }
        .map(|device| Channel { device: Arc::new(device), path })
    }

    /// Answers the kernel's INIT request.
    ///
    /// # Errors
    /// [`InitError`].
    pub fn negotiate_features(
        &self,
        wanted: &RequestedFeatures,
    ) -> Result<NegotiatedFeatures, InitError> {
        init::negotiate_features(&self.device, wanted)
    }

    /// Returns the device.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Returns the mount point.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Checks whether the file system is still mounted. (The kernel sets POLLERR on the device
    /// after the unmount.)
    pub fn is_mounted(&self) -> bool {
        let mut fds = [rustix::event::PollFd::new(&*self.device, rustix::event::PollFlags::IN)];
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        match rustix::event::poll(&mut fds, Some(&now)) {
            Ok(_) => !fds[0].revents().contains(rustix::event::PollFlags::ERR),
            Err(_) => true,
        }
    }

    /// Unmounts the file system; with `lazily`, when no program uses it any more.
    ///
    /// # Errors
    /// [`UnmountError`].
    pub fn unmount(&self, lazily: bool) -> Result<(), UnmountError> {
        // By now another file system may be mounted on the path.
        if !self.is_mounted() {
            return Ok(());
        }
        unmount_path(&self.path, lazily)
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        if let Err(error) = self.unmount(true) {
            tracing::warn!(%error, "left mounted");
        }
    }
}

/// Unmounts the file system on `path`; with `lazily`, when no program uses it any more.
///
/// # Errors
/// [`UnmountError`].
pub fn unmount_path(path: &Path, lazily: bool) -> Result<(), UnmountError> {
    let flags = if lazily { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    match rustix::mount::unmount(path, flags | UnmountFlags::NOFOLLOW) {
        Ok(()) => Ok(()),
        Err(Errno::BUSY) => Err(UnmountError::Busy { path: path.to_owned() }),
        Err(Errno::INVAL | Errno::NOENT) => Err(UnmountError::NotMounted { path: path.to_owned() }),
        Err(Errno::PERM) => match find_mount(path) {
            // The helper reports another user's mount as one that does not exist.
            Ok(Some(found)) if found.owner.is_some_and(|uid| uid != getuid().as_raw()) => {
                Err(UnmountError::NotPermitted { path: path.to_owned() })
            }
            _ => unmount_by_helper(path, lazily),
        },
        Err(errno) => Err(UnmountError::Failed { path: path.to_owned(), said: errno.to_string() }),
    }
}

fn mount_directly(path: &Path, settings: &MountSettings) -> Result<Device, FuseMountError> {
    let device = Device::open().map_err(FuseMountError::Device)?;
    let mut data = format!(
        "fd={},rootmode=40000,user_id={},group_id={}",
        device.raw_descriptor(),
        getuid().as_raw(),
        rustix::process::getgid().as_raw(),
    );
    for (wanted, option) in [
        (settings.allow_other, ",allow_other"),
        (settings.default_permissions, ",default_permissions"),
    ] {
        if wanted {
            data.push_str(option);
        }
    }
    let mut flags = MountFlags::NOATIME | settings.restrictions.mount_flags();
    flags.set(MountFlags::RDONLY, settings.read_only);
    let data = CString::new(data).expect("made of numbers and words");
    let kind = format!("fuse.{}", settings.subtype);
    rustix::mount::mount(settings.source.as_str(), path, kind.as_str(), flags, Some(&*data))
        .map_err(|errno| FuseMountError::MountCall { path: path.to_owned(), errno })?;
    Ok(device)
}

/// Mounts through the helper. The helper sends the descriptor over a socket, whose number it finds
/// in its environment.
fn mount_by_helper(path: &Path, settings: &MountSettings) -> Result<Device, FuseMountError> {
    let helper = |errno: Errno| FuseMountError::Helper(errno.into());
    // The helper inherits its end, which so must not close on exec.
    let (ours, theirs) = rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::empty(),
        None,
    )
    .map_err(helper)?;
    rustix::io::fcntl_setfd(&ours, rustix::io::FdFlags::CLOEXEC).map_err(helper)?;
    let mut options = format!("fsname={},subtype={}", settings.source, settings.subtype);
    for (wanted, option) in [
        (settings.allow_other, ",allow_other"),
        (settings.default_permissions, ",default_permissions"),
        (settings.read_only, ",ro"),
        (settings.restrictions.nosuid, ",nosuid"),
        (settings.restrictions.nodev, ",nodev"),
        (settings.restrictions.noexec, ",noexec"),
    ] {
        if wanted {
            options.push_str(option);
        }
    }
    let child = Command::new(HELPER)
        .args(["-o", &options, "--"])
        .arg(path)
        .env("_FUSE_COMMFD", theirs.as_raw_fd().to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(FuseMountError::Helper)?;
    // Otherwise the receive below would wait for ever if the helper fails.
    drop(theirs);
    let received = receive_descriptor(&ours);
    let output = child.wait_with_output().map_err(FuseMountError::Helper)?;
    match received {
        Some(fd) => Ok(Device::from_descriptor(fd)),
        None => {
            let (path, said) = (path.to_owned(), String::from_utf8_lossy(&output.stderr));
            Err(match said.contains("user_allow_other") {
                true => FuseMountError::AllowOther { path },
                false => FuseMountError::Refused { path, said: said.trim().to_owned() },
            })
        }
    }
}

fn receive_descriptor(socket: &OwnedFd) -> Option<OwnedFd> {
    let mut byte = [0; 1];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    rustix::io::retry_on_intr(|| {
        rustix::net::recvmsg(
            socket,
            &mut [IoSliceMut::new(&mut byte)],
            &mut ancillary,
            RecvFlags::CMSG_CLOEXEC,
        )
    })
    .ok()?;
    ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    })
}

fn unmount_by_helper(path: &Path, lazily: bool) -> Result<(), UnmountError> {
    let failed = |said: String| UnmountError::Failed { path: path.to_owned(), said };
    let output = Command::new(HELPER)
        .args(if lazily { &["-u", "-z", "--"][..] } else { &["-u", "--"] })
        .arg(path)
        .stdin(Stdio::null())
        .output()
        .map_err(|e| failed(format!("{HELPER}: {e}")))?;
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    match output.status.success() {
        true => Ok(()),
        false if said.contains("busy") => Err(UnmountError::Busy { path: path.to_owned() }),
        false if said.contains("not found") => {
            Err(UnmountError::NotMounted { path: path.to_owned() })
        }
        false => Err(failed(said)),
    }
}

/// An entry of the kernel's mount table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountTableEntry {
    /// Type of the file system, such as `ext4` or `fuse.sshfs`.
    pub kind: String,
    /// Device number, as `major:minor`.
    pub device: String,
    /// The user that mounted it, for a FUSE file system.
    pub owner: Option<u32>,
}

/// Returns the file system that is mounted exactly on `path`, by the kernel's table. `None` if
/// there is none. Sends no request to the file system itself.
///
/// # Errors
/// Those of reading `/proc/self/mountinfo`.
pub fn find_mount(path: &Path) -> std::io::Result<Option<MountTableEntry>> {
    let table = std::fs::read("/proc/self/mountinfo")?;
    Ok(find_in_table(&table, path.as_os_str().as_bytes()))
}

/// Finds the last line of `table` for `path`, which is the topmost mount.
fn find_in_table(table: &[u8], path: &[u8]) -> Option<MountTableEntry> {
    let text = |field: &[u8]| String::from_utf8_lossy(field).into_owned();
    table.split(|b| *b == b'\n').rev().find_map(|line| {
        let mut fields = line.split(|b| *b == b' ');
        let device = fields.nth(2)?;
        let target = unescape_field(fields.nth(1)?);
        let mut fields = fields.skip_while(|f| *f != b"-").skip(1);
        let kind = fields.next()?;
        let options = fields.nth(1).unwrap_or_default();
        let owner = options.split(|b| *b == b',').find_map(|o| o.strip_prefix(b"user_id="));
        let owner = owner.and_then(|uid| str::from_utf8(uid).ok()?.parse().ok());
        (target == path).then(|| MountTableEntry { kind: text(kind), device: text(device), owner })
    })
}

/// Decodes `\040` and the like in the kernel's table, which stand for spaces and such.
fn unescape_field(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&b, tail)) = rest.split_first() {
        let octal = |b: u8| (b'0'..=b'7').contains(&b).then(|| u32::from(b - b'0'));
        match (b, tail) {
            (b'\\', [x, y, z, after @ ..]) => match (octal(*x), octal(*y), octal(*z)) {
                (Some(x), Some(y), Some(z)) => {
                    out.push((x << 6 | y << 3 | z) as u8);
                    rest = after;
                }
                _ => {
                    out.push(b);
                    rest = tail;
                }
            },
            _ => {
                out.push(b);
                rest = tail;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_is_found_by_its_exact_path() {
        let table = b"29 1 254:0 / / rw - ext4 /dev/vda rw\n\
            40 29 0:50 / /mnt/with\\040space rw shared:1 - fuse.tatami tatami rw,user_id=7\n\
            41 29 0:51 / /mnt/two rw - tmpfs tmpfs rw\n\
            42 41 0:52 / /mnt/two rw - fuse.tatami tatami rw\n";
        let found = |path: &[u8]| find_in_table(table, path).map(|m| (m.kind, m.device, m.owner));
        let tatami =
            |device: &str, owner| Some(("fuse.tatami".to_owned(), device.to_owned(), owner));
        assert_eq!(found(b"/mnt/with space"), tatami("0:50", Some(7)));
        assert_eq!(found(b"/mnt/two"), tatami("0:52", None));
        assert_eq!(find_in_table(table, b"/mnt"), None);
        assert_eq!(find_in_table(b"", b"/mnt"), None);
    }

    #[test]
    fn a_path_that_is_not_there_is_named() {
        let settings = MountSettings {
            source: "test".into(),
            subtype: "test".into(),
            read_only: false,
            allow_other: false,
            default_permissions: true,
            restrictions: Restrictions::default(),
        };
        let error = Channel::mount(Path::new("/does/not/exist"), &settings).expect_err("no path");
        assert!(error.to_string().contains("/does/not/exist"), "{error}");
    }
}
