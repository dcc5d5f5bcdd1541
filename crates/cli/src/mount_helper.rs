//! The helpers of mount(8) and umount(8), so that a line of `/etc/fstab` mounts a volume:
//!
//! ```text
//! scratch  /mnt/tatami  tatami  defaults,_netdev  0  0
//! ```
//!
//! mount(8) calls `/sbin/mount.tatami`, and for a mount that exists `/sbin/mount.fuse.tatami`;
//! umount(8) calls `/sbin/umount.fuse.tatami`. All of them are links to `tatami`.

use crate::error::{CommandFailure, CommandResult, ExitStatus};
use crate::mount_cmd::{self, MountArgs, UmountArgs};
use crate::mountinfo::{self, FS_TYPE};
use crate::mounts::MountRecord;
use crate::site_mounts;
use crate::term;
use crate::volume_dir::VolumeArgs;
use clap::{CommandFactory, Parser};
use rustix::mount::MountFlags;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tatami_cluster::SYSTEM_DIR;
use tatami_remote::SiteFile;

/// Exit codes of mount(8): a wrong call, and a mount that failed.
const WRONG_CALL: u8 = 1;
const MOUNT_FAILED: u8 = 32;

/// The helper as which this program was called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HelperRole {
    /// That of mount(8).
    Mount,
    /// That of umount(8).
    Unmount,
}

impl HelperRole {
    /// Returns the role for the name by which this program was called; `None` for other names.
    pub fn of_this_process() -> Option<HelperRole> {
        HelperRole::from_path(Path::new(&std::env::args_os().next()?))
    }

    fn from_path(path: &Path) -> Option<HelperRole> {
        match path.file_name()?.to_str()? {
            "mount.tatami" | "mount.fuse.tatami" => Some(HelperRole::Mount),
            "umount.tatami" | "umount.fuse.tatami" => Some(HelperRole::Unmount),
            _ => None,
        }
    }
}

/// Mount a Tatami volume, for mount(8)
#[derive(Debug, clap::Parser)]
#[command(
    name = "mount.tatami",
    version,
    after_help = "\
In /etc/fstab:
  scratch       /mnt/tatami  tatami  defaults,_netdev        0  0
  /srv/volume   /mnt/volume  tatami  ro,nosuid,node=node03   0  0
  siteb:/data   /mnt/siteb   tatami  noauto,user,_netdev     0  0

It returns when the volume is mounted; a process in the background serves it."
)]
struct MountHelperArgs {
    /// Name of the volume in /etc/tatami, or its directory; or a directory of another site
    volume: PathBuf,
    /// Mount point: an existing directory
    mountpoint: PathBuf,
    /// Options of tatami mount, node=NODE, and remount
    #[arg(short = 'o', value_delimiter = ',')]
    options: Vec<String>,
    /// Do not mount
    #[arg(short = 'f')]
    fake: bool,
    /// Write no /etc/mtab
    #[arg(short = 'n')]
    no_mtab: bool,
    /// Ignore unknown options
    #[arg(short = 's')]
    sloppy: bool,
    /// Say more
    #[arg(short = 'v')]
    verbose: bool,
    /// Type of the file system
    #[arg(short = 't')]
    fs_type: Option<String>,
}

/// Unmount a Tatami volume, for umount(8)
#[derive(Debug, clap::Parser)]
#[command(name = "umount.tatami", version)]
struct UnmountHelperArgs {
    /// Mount point
    mountpoint: PathBuf,
    /// Unmount even while programs use it
    #[arg(short = 'f')]
    force: bool,
    /// As -f
    #[arg(short = 'l')]
    lazy: bool,
    /// Write no /etc/mtab
    #[arg(short = 'n')]
    no_mtab: bool,
    /// Mount it read-only if it cannot be unmounted
    #[arg(short = 'r')]
    read_only: bool,
    /// Say more
    #[arg(short = 'v')]
    verbose: bool,
    /// Type of the file system
    #[arg(short = 't')]
    fs_type: Option<String>,
}

/// Returns the command lines of the helpers, for their manual pages.
pub fn describe_helpers() -> [clap::Command; 2] {
    [MountHelperArgs::command(), UnmountHelperArgs::command()]
}

/// Does the work of a helper, and returns its exit code.
pub fn run_as(role: HelperRole) -> ExitCode {
    let result = match role {
        HelperRole::Mount => MountHelperArgs::try_parse().map(|args| mount_for_system(&args)),
        HelperRole::Unmount => UnmountHelperArgs::try_parse().map(|args| unmount_for_system(&args)),
    };
    match result {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(failure)) => {
            term::print_error(&failure.report());
            let is_wrong = failure.exit == ExitStatus::Usage;
            ExitCode::from(if is_wrong { WRONG_CALL } else { MOUNT_FAILED })
        }
        Err(error) => {
            // Clap returns help and version as "errors" that go to standard output.
            let code = if error.use_stderr() { WRONG_CALL } else { 0 };
            let _ = error.print();
            ExitCode::from(code)
        }
    }
}

fn mount_for_system(args: &MountHelperArgs) -> CommandResult {
    let mut options = args.options.clone();
    options.retain(|option| !option.is_empty());
    if let Some(at) = options.iter().position(|option| option == "remount") {
        options.remove(at);
        return if args.fake { Ok(()) } else { remount_path(&args.mountpoint, &options) };
    }
    let mut node = None;
    options.retain(|option| match option.strip_prefix("node=") {
        Some(of) => {
            node = Some(of.to_owned());
            false
        }
        None => !is_for_fstab_only(option),
    });
    if args.sloppy {
        options.retain(|option| mount_cmd::check_options(std::slice::from_ref(option)).is_ok());
    }
    mount_cmd::check_options(&options)?;
    let is_site = SiteFile::parse_place(args.volume.as_os_str().as_bytes()).is_some();
    let dir = if is_site { PathBuf::new() } else { find_volume(&args.volume)? };
    if args.fake {
        return Ok(());
    }
    // `mount -a` finds in the mount table by this text that the line is mounted.
    let source = args.volume.display().to_string();
    if !source.contains(',') {
        options.push(format!("fsname={source}"));
    }
    let mountpoint = args.mountpoint.clone();
    if is_site {
        let site = args.volume.as_os_str();
        return site_mounts::mount_site(site, &mountpoint, &options, (false, None));
    }
    let at = VolumeArgs { dir: Some(dir), ..VolumeArgs::default() };
    mount_cmd::mount_volume(&MountArgs::for_volume(at, node, options, mountpoint))
}

/// Whether mount(8) alone evaluates this option of fstab(5).
fn is_for_fstab_only(option: &str) -> bool {
    let name = option.split('=').next().unwrap_or_default();
    ["user", "users", "nouser", "owner", "noowner", "group", "nogroup"].contains(&name)
}

/// Returns the directory of the volume that the first field of a line names.
fn find_volume(volume: &Path) -> CommandResult<PathBuf> {
    if volume.is_absolute() {
        return Ok(volume.to_owned());
    }
    let is_name = volume.components().count() == 1 && !volume.starts_with("..");
    let dir = Path::new(SYSTEM_DIR).join(volume);
    if is_name && dir.is_dir() {
        return Ok(dir);
    }
    let what = format!("there is no volume {} in {SYSTEM_DIR}", volume.display());
    Err(CommandFailure::usage(what).try_this(format!(
        "name the directory of the volume, or make a link to it: ln -s DIR {SYSTEM_DIR}/{}",
        volume.display()
    )))
}

/// Changes the options of a mount that the kernel keeps. Those of Tatami stay as they were.
fn remount_path(mountpoint: &Path, options: &[String]) -> CommandResult {
    let path = mount_cmd::resolve_path(mountpoint)?;
    if mountinfo::mount_at(&path).is_none_or(|mount| mount.fs_type != FS_TYPE) {
        let what = format!("no volume is mounted on {}", path.display());
        return Err(CommandFailure::new(what).try_this("tatami status lists the mounts"));
    }
    // The table of the kernel names these, and mount(8) repeats them.
    const OF_KERNEL: [&str; 6] =
        ["user_id", "group_id", "rootmode", "default_permissions", "blksize", "max_read"];
    let known = |option: &&String| {
        let name = option.split('=').next().unwrap_or_default();
        !OF_KERNEL.contains(&name) && name != "node" && !is_for_fstab_only(option)
    };
    let ours: Vec<String> = options.iter().filter(known).cloned().collect();
    mount_cmd::check_options(&ours)?;
    rustix::mount::mount_remount(&path, remount_flags(options), "").map_err(|e| {
        let what = format!("cannot remount {}", path.display());
        CommandFailure::new(what).because(std::io::Error::from(e))
    })
}

/// Returns the flags of the words of mount(8); of opposites the last counts.
fn remount_flags(options: &[String]) -> MountFlags {
    // A mount of Tatami never records the times of accesses.
    let mut flags = MountFlags::NOATIME;
    for option in options {
        let (flag, is_set) = match option.as_str() {
            "ro" => (MountFlags::RDONLY, true),
            "rw" => (MountFlags::RDONLY, false),
            "nosuid" => (MountFlags::NOSUID, true),
            "suid" => (MountFlags::NOSUID, false),
            "nodev" => (MountFlags::NODEV, true),
            "dev" => (MountFlags::NODEV, false),
            "noexec" => (MountFlags::NOEXEC, true),
            "exec" => (MountFlags::NOEXEC, false),
            _ => continue,
        };
        flags.set(flag, is_set);
    }
    flags
}

/// Unmounts, and returns when all written data have reached the nodes.
fn unmount_for_system(args: &UnmountHelperArgs) -> CommandResult {
    let path = mount_cmd::resolve_path(&args.mountpoint)?;
    let dir = MountRecord::load_by_path(&path).map(|record| record.dir);
    let at = VolumeArgs { dir, ..VolumeArgs::default() };
    mount_cmd::unmount_paths(&UmountArgs::for_path(at, args.force || args.lazy, path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_helpers_are_helpers() {
        let role = |path: &str| HelperRole::from_path(Path::new(path));
        assert_eq!(role("/sbin/mount.tatami"), Some(HelperRole::Mount));
        assert_eq!(role("mount.fuse.tatami"), Some(HelperRole::Mount));
        assert_eq!(role("/usr/sbin/umount.fuse.tatami"), Some(HelperRole::Unmount));
        for other in ["/usr/bin/tatami", "tatami-mount", "tatami-node", "/sbin/mount", ""] {
            assert_eq!(role(other), None, "{other}");
        }
    }

    #[test]
    fn helpers_are_called_as_mount_and_umount_call_them() {
        MountHelperArgs::command().debug_assert();
        UnmountHelperArgs::command().debug_assert();
        let line = "mount.tatami scratch /mnt -s -n -v -o rw,nodev,x-a.b=c -t fuse.tatami";
        let args = MountHelperArgs::try_parse_from(line.split(' ')).expect("as mount(8) calls it");
        assert_eq!(args.options, ["rw", "nodev", "x-a.b=c"]);
        let line = "umount.fuse.tatami /mnt -f -l -n -r -v -t fuse.tatami";
        UnmountHelperArgs::try_parse_from(line.split(' ')).expect("as umount(8) calls it");
        // Another namespace would be ignored in silence.
        let line = "mount.tatami scratch /mnt -N /proc/1/ns/mnt";
        assert!(MountHelperArgs::try_parse_from(line.split(' ')).is_err());
    }

    #[test]
    fn a_remount_changes_what_the_kernel_keeps() {
        let flags =
            |words: &[&str]| remount_flags(&words.iter().map(|w| (*w).into()).collect::<Vec<_>>());
        assert_eq!(flags(&["rw"]), MountFlags::NOATIME);
        assert_eq!(flags(&["rw", "ro"]), MountFlags::NOATIME | MountFlags::RDONLY);
        let closed = MountFlags::NOATIME | MountFlags::NOSUID | MountFlags::NODEV;
        assert_eq!(flags(&["nosuid", "nodev", "noexec", "exec", "nopassthrough"]), closed);
    }

    #[test]
    fn a_volume_is_a_name_or_a_directory() {
        assert_eq!(find_volume(Path::new("/scratch")).ok(), Some(PathBuf::from("/scratch")));
        for wrong in ["no-such-volume", "a/b", "..", "../x"] {
            let failure = find_volume(Path::new(wrong)).expect_err(wrong);
            assert_eq!(failure.exit, ExitStatus::Usage);
        }
    }
}
