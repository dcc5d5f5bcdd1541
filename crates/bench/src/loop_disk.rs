//! File systems on loop devices, to compare with: each has a file of the disk that is measured.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A kind of file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskKind {
    /// ext4.
    Ext4,
    /// XFS.
    Xfs,
}

impl DiskKind {
    /// Returns its name.
    pub fn name(self) -> &'static str {
        match self {
            DiskKind::Ext4 => "ext4",
            DiskKind::Xfs => "XFS",
        }
    }

    /// Returns the command that makes such a file system. It leaves the room of the file as it is,
    /// and leaves no work for later.
    fn make_command(self) -> &'static [&'static str] {
        match self {
            DiskKind::Ext4 => {
                &["mkfs.ext4", "-q", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0"]
            }
            DiskKind::Xfs => &["mkfs.xfs", "-q", "-K"],
        }
    }
}

/// A mounted file system on a loop device. A drop unmounts it, and removes device and file.
pub struct LoopDisk {
    file: PathBuf,
    device: Option<PathBuf>,
    /// The mount, once there is one.
    mount: Option<PathBuf>,
}

impl LoopDisk {
    /// Makes one of `len` bytes below `dir`.
    ///
    /// # Errors
    /// A sentence with the reason why there is none.
    pub fn make(dir: &Path, kind: DiskKind, len: u64) -> Result<LoopDisk, String> {
        let mut disk = LoopDisk { file: dir.join(kind.name()), device: None, mount: None };
        let name = kind.name();
        // An early return drops the value, which takes back what was done.
        disk.make_all(kind, len).map_err(|problem| format!("no {name} here: {problem}"))?;
        Ok(disk)
    }

    fn make_all(&mut self, kind: DiskKind, len: u64) -> Result<(), String> {
        let at = self.file.with_extension("mount");
        let make = || -> io::Result<()> {
            fs::create_dir_all(&at)?;
            let file = File::create(&self.file)?;
            Ok(rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, len)?)
        };
        make().map_err(|e| format!("{}: {e}", self.file.display()))?;
        let mut attach = Command::new("losetup");
        attach.args(["--find", "--show", "--direct-io=on"]).arg(&self.file);
        let device = PathBuf::from(run_command(attach)?.trim());
        self.device = Some(device.clone());
        let [program, options @ ..] = kind.make_command() else { return Ok(()) };
        let mut format = Command::new(program);
        format.args(options).arg(&device);
        run_command(format)?;
        let mut mount = Command::new("mount");
        mount.arg(&device).arg(&at);
        run_command(mount)?;
        self.mount = Some(at);
        Ok(())
    }

    /// Returns the directory where it is mounted.
    pub fn path(&self) -> &Path {
        self.mount.as_deref().unwrap_or(&self.file)
    }
}

impl Drop for LoopDisk {
    fn drop(&mut self) {
        if let Some(mount) = &self.mount {
            let flags = rustix::mount::UnmountFlags::empty();
            // A process that still ends may have it open. The mount then goes when that has ended.
            if rustix::mount::unmount(mount, flags).is_err() {
                let _ = rustix::mount::unmount(mount, rustix::mount::UnmountFlags::DETACH);
            }
            let _ = fs::remove_dir(mount);
        }
        if let Some(device) = &self.device {
            let mut detach = Command::new("losetup");
            detach.arg("--detach").arg(device);
            let _ = run_command(detach);
        }
        let _ = fs::remove_file(&self.file);
    }
}

/// Runs a command, and returns its output, or a sentence with the reason why it failed.
fn run_command(mut command: Command) -> Result<String, String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let said = command.stdin(Stdio::null()).output();
    let said = said.map_err(|e| format!("'{program}' does not start ({e})"))?;
    match said.status.success() {
        true => Ok(String::from_utf8_lossy(&said.stdout).into_owned()),
        false => {
            let text = String::from_utf8_lossy(&said.stderr);
            Err(format!("'{program}' fails: {}", text.trim()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_made_or_says_why_not_and_goes_either_way() {
        let dir = tempfile::tempdir().expect("a directory");
        match LoopDisk::make(dir.path(), DiskKind::Ext4, 32 << 20) {
            Ok(disk) => {
                fs::write(disk.path().join("file"), "bytes").expect("writable");
                assert!(disk.path().join("lost+found").exists());
            }
            Err(reason) => assert!(reason.starts_with("no ext4 here: "), "{reason}"),
        }
        let left = fs::read_dir(dir.path()).expect("listed").flatten();
        let left: Vec<_> = left.filter(|entry| entry.path().is_file()).collect();
        assert!(left.is_empty(), "{left:?}");
    }
}
