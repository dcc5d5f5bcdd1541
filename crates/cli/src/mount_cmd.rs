//! `tatami mount` and `tatami umount`.

use crate::error::{CommandFailure, CommandResult, FailureContext};
use crate::keys::name;
use crate::mountinfo;
use crate::mountpoints::{self, MadeMountpoint};
use crate::mounts::{self, MountRecord, MountpointState};
use crate::process::{DaemonRole, ProcessRecord};
use crate::start_process::{self, ReadyPipe, StartingProcess};
use crate::term;
use crate::volume_dir::{VolumeArgs, VolumeDir};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use tatami_cluster::mount_note::note_dirs;
use tatami_cluster::trusted::{self, TrustedDir};
use tatami_cluster::{NodeEntry, VolumeFile};
use tatami_mount::overlay::Overlay;
use tatami_mount::{Mount, MountOptions, Passthrough};
use tatami_wire::NodeId;

/// Name of the directory for logs of mounts.
const LOGS: &str = "mount-logs";

/// What [`MountArgs::site_request`] returns.
pub type SiteRequest<'a> = (&'a OsStr, &'a Path, &'a [String], (bool, Option<i32>));

/// `tatami mount`
#[derive(Debug, clap::Args)]
#[command(allow_missing_positional = true)]
pub struct MountArgs {
    #[command(flatten)]
    at: VolumeArgs,
    /// Home node of the mount, by number or name. Its files need no network, and new files go there
    /// [default: the first node of this machine]
    #[arg(long, value_name = "NODE")]
    node: Option<String>,
    /// Options: ro, rw, allow_other, noallow_other, passthrough, nopassthrough, kernel_cache,
    /// nokernel_cache, io_uring, noio_uring, attr_timeout_ms=N, entry_timeout_ms=N,
    /// fsname=SOURCE, and nosuid, nodev, noexec and their opposites. For a volume of another user,
    /// nosuid and nodev are the default
    #[arg(short = 'o', value_name = "OPTIONS", value_delimiter = ',')]
    options: Vec<String>,
    /// Mount this directory of any file system instead of a volume; its containers appear as
    /// ordinary files
    #[arg(long, value_name = "DIR", conflicts_with_all = ["node", "options"])]
    overlay: Option<PathBuf>,
    /// Stay in the foreground until it is unmounted
    #[arg(long, short = 'f')]
    foreground: bool,
    /// Descriptor of a pipe for the report that the process is ready
    #[arg(long, value_name = "FD", hide = true)]
    ready_fd: Option<i32>,
    /// A directory of another site, which is mounted instead of a volume: [user@]host:path
    #[arg(value_name = "HOST:DIR", conflicts_with_all = ["node", "overlay"])]
    site: Option<OsString>,
    /// Mount point: an existing directory
    mountpoint: PathBuf,
}

impl MountArgs {
    /// Returns the directory of another site, the mount point, the options, and how it is mounted:
    /// in the foreground or not, and the descriptor for the report. `None` for a volume.
    pub fn site_request(&self) -> Option<SiteRequest<'_>> {
        let how = (self.foreground, self.ready_fd);
        self.site.as_ref().map(|site| (site.as_os_str(), &*self.mountpoint, &*self.options, how))
    }

    /// Returns the arguments for a line of `/etc/fstab`.
    pub fn for_volume(
        at: VolumeArgs,
        node: Option<String>,
        options: Vec<String>,
        mountpoint: PathBuf,
    ) -> MountArgs {
        let (overlay, foreground, ready_fd, site) = (None, false, None, None);
        MountArgs { at, node, options, overlay, foreground, ready_fd, site, mountpoint }
    }
}

/// `tatami umount`
#[derive(Debug, clap::Args)]
pub struct UmountArgs {
    #[command(flatten)]
    at: VolumeArgs,
    /// Detach mounts even while programs use them; these programs get errors from then on
    #[arg(long, visible_alias = "lazy")]
    force: bool,
    /// Mount points
    #[arg(required = true)]
    mountpoints: Vec<PathBuf>,
}

/// Mounts a volume or an overlay: in the background, or in this process with `--foreground`.
///
/// # Errors
/// It cannot be mounted.
pub fn mount_volume(args: &MountArgs) -> CommandResult {
    if let Some(dir) = &args.overlay {
        return mount_overlay(args, dir);
    }
    if args.foreground {
        return serve_mount(args);
    }
    let place = args.at.open()?;
    crate::log::start_logging(&place.config, false)?;
    let volume = place.load_volume()?;
    let entry = home_node(&place, &volume, args)?;
    // Wrong options are reported here: the background process would report them in a log.
    check_options(&args.options)?;
    let path = resolve_path(&args.mountpoint)?;
    // A mount point of `up` went away with its mount.
    let made = match mountpoints::is_made(&place, &path) {
        true => mountpoints::make_mountpoint(&place, &path)?,
        false => None,
    };
    start_mount(&place, entry, &path, &args.options)?.wait_ready()?;
    if let Some(made) = made {
        made.close_below();
    }
    mounts::load_root(&path);
    Ok(())
}

/// Mounts an overlay, in the background unless `--foreground` is set.
fn mount_overlay(args: &MountArgs, dir: &Path) -> CommandResult {
    let path = resolve_path(&args.mountpoint)?;
    let dir = dir.canonicalize().context(|| format!("cannot find {}", dir.display()))?;
    if !args.foreground {
        let mut arguments: Vec<OsString> =
            ["mount", "--foreground", "--overlay"].map(Into::into).into();
        arguments.extend([dir.into_os_string(), path.clone().into()]);
        let name = format!("mount {}", path.display());
        // An overlay belongs to no volume, so there is no directory for a log.
        return start_process::start_background(DaemonRole::Mount, &name, &arguments, None)?
            .wait_ready();
    }
    let mut ready = ReadyPipe::from_descriptor(args.ready_fd)?;
    DaemonRole::Mount.name_this_process();
    let overlay = Overlay::start(&dir, &path);
    let overlay = overlay.map_err(|e| ready.report_failure(mount_failure(&path, e)))?;
    ready.report_ready();
    overlay.run().context(|| format!("mount {}", path.display()))
}

fn home_node<'a>(
    place: &VolumeDir,
    volume: &'a VolumeFile,
    args: &MountArgs,
) -> CommandResult<&'a NodeEntry> {
    match &args.node {
        Some(node) => place.find_node(volume, node),
        // A machine without a node of its own can mount the volume, too.
        None => {
            let first = place.nodes_here(volume).first().copied().or(volume.nodes.first());
            first.ok_or_else(|| CommandFailure::new("the volume has no nodes"))
        }
    }
}

/// Returns the path in the form in which the kernel lists it in its mount table, if it exists.
pub fn resolve_path(path: &Path) -> CommandResult<PathBuf> {
    let absolute = std::path::absolute(path).context(|| path.display().to_string())?;
    // Resolves only the parent: the last component may be a dead mount, where a lookup fails.
    let (Some(parent), Some(last)) = (absolute.parent(), absolute.file_name()) else {
        return Ok(absolute);
    };
    let joined = parent.canonicalize().map(|p| p.join(last)).unwrap_or(absolute);
    if joined.is_symlink() {
        return joined.canonicalize().context(|| path.display().to_string());
    }
    Ok(joined)
}

/// Starts the process of a mount in the background.
///
/// # Errors
/// Those of the system.
pub fn start_mount(
    place: &VolumeDir,
    entry: &NodeEntry,
    path: &Path,
    options: &[String],
) -> CommandResult<StartingProcess> {
    let mut arguments: Vec<OsString> = ["mount", "--foreground", "--dir"].map(Into::into).into();
    arguments.push(place.dir.clone().into());
    arguments.extend(["--node".into(), OsString::from(&entry.name)]);
    arguments.extend(place.at.to_arguments());
    for option in options {
        arguments.extend(["-o".into(), option.into()]);
    }
    arguments.push(path.into());
    let log = make_log_dir(place)?.join(format!("{}.log", mountinfo::as_file_name(path)));
    let name = format!("mount {}", path.display());
    start_process::start_background(DaemonRole::Mount, &name, &arguments, Some(&log))
}

/// Returns the directory for logs of mounts: in the volume's directory, or, for a volume of another
/// user, beside this user's records of mounts.
fn make_log_dir(place: &VolumeDir) -> CommandResult<PathBuf> {
    let make = |dir: PathBuf| {
        TrustedDir::open_or_create(&dir, rustix::fs::Mode::from_raw_mode(0o755)).map(|_| dir)
    };
    if place.is_own() {
        return Ok(make(place.dir.join(LOGS))?);
    }
    let mut tried = note_dirs().into_iter().map(|place| place.join(LOGS)).map(make);
    let nowhere = || CommandFailure::new("there is no directory for the log of a mount");
    match tried.find(|made| made.as_ref().is_ok_and(|dir| trusted::is_own(dir))) {
        Some(made) => Ok(made?),
        None => Err(nowhere().try_this("stay in the foreground: tatami mount --foreground")),
    }
}

/// Mounts and serves in this process.
fn serve_mount(args: &MountArgs) -> CommandResult {
    let mut ready = ReadyPipe::from_descriptor(args.ready_fd)?;
    DaemonRole::Mount.name_this_process();
    let (mount, record) = begin_mount(args).map_err(|e| ready.report_failure(e))?;
    ready.report_ready();
    let ended = mount.run();
    // Another process may have mounted there meanwhile. Its record must stay.
    let of_record = MountRecord::find_record(&record.dir, &record.path);
    if of_record.is_none_or(|r| r.process == record.process) {
        record.remove();
    }
    let path = &record.path;
    let ended = ended.context(|| format!("mount {}", path.display()))?;
    tracing::info!(?ended, path = %path.display(), "mount ended");
    Ok(())
}

fn begin_mount(args: &MountArgs) -> CommandResult<(Mount, MountRecord)> {
    let place = args.at.open()?;
    crate::log::start_logging(&place.config, true)?;
    let volume = place.load_volume()?;
    let entry = home_node(&place, &volume, args)?;
    let path = resolve_path(&args.mountpoint)?;
    let mut options = MountOptions::new(&path);
    let config = &place.config;
    options.attr_timeout = config.duration_value(name::MOUNT_ATTR_TIMEOUT);
    options.entry_timeout = config.duration_value(name::MOUNT_ENTRY_TIMEOUT);
    options.kernel_cache = config.bool_value(name::MOUNT_KERNEL_CACHE);
    options.io_uring = config.bool_value(name::MOUNT_IO_URING);
    options.allow_other = config.bool_value(name::MOUNT_ALLOW_OTHER);
    // The casts are safe: the ranges of the keys bound both values.
    options.threads = config.int_value(name::MOUNT_THREADS) as usize;
    options.threads_max = (config.int_value(name::MOUNT_THREADS_MAX) as usize).max(options.threads);
    if !config.bool_value(name::MOUNT_PASSTHROUGH) {
        options.passthrough = Passthrough::Off;
    }
    // The owner of the volume can store any file in it, including setuid programs and devices.
    let is_own = place.is_own();
    (options.restrictions.nosuid, options.restrictions.nodev) = (!is_own, !is_own);
    for option in &args.options {
        set_option(&mut options, option)?;
    }
    let client = place.connect_client(Some(NodeId(entry.id)))?;
    let mount = Mount::start(client, &options).map_err(|e| mount_failure(&path, e))?;
    let dir = place.dir.clone();
    let record =
        MountRecord { path: path.clone(), dir, node: entry.id, process: ProcessRecord::of_self() };
    record.save()?;
    Ok((mount, record))
}

/// Returns a failure with a remedy for the reason.
pub fn mount_failure(path: &Path, error: tatami_mount::MountError) -> CommandFailure {
    use tatami_mount::MountError::*;
    let shown = path.display();
    let remedy = match &error {
        NoMountpoint { .. } => format!("mkdir -p {shown}"),
        AlreadyMounted { .. } | Dead { .. } => format!("tatami umount {shown}"),
        Occupied { .. } | NotADirectory { .. } => "choose another directory".to_owned(),
        Mount(tatami_mount::FuseMountError::AllowOther { .. }) => {
            "mount for yourself alone: -o noallow_other, or mount.allow_other = false \
             (--mount-allow-other false); or have the administrator put the line user_allow_other \
             into /etc/fuse.conf"
                .to_owned()
        }
        Mount(_) => {
            "is fuse3 installed, and may this user open /dev/fuse? Everything but the mount \
                     works without it: tatami up --no-mount, then tatami ls :/"
                .to_owned()
        }
        _ => "tatami status".to_owned(),
    };
    CommandFailure::new(format!("cannot mount on {shown}")).because(error).try_this(remedy)
}

/// Checks the options of a mount.
///
/// # Errors
/// The first that is unknown or has a wrong value.
pub fn check_options(options: &[String]) -> CommandResult {
    let mut scratch = MountOptions::new("/");
    options.iter().try_for_each(|option| set_option(&mut scratch, option))
}

/// Sets an option.
///
/// # Errors
/// It is unknown or has a wrong value.
pub fn set_option(options: &mut MountOptions, option: &str) -> CommandResult {
    let (key, value) = option.split_once('=').map_or((option, None), |(k, v)| (k, Some(v)));
    let wrong = || {
        CommandFailure::usage(format!("unknown mount option {option:?}"))
            .try_this("tatami mount --help lists them")
    };
    let timeout = |key: &str| {
        let known = crate::keys::find_key(key).expect("a key of the table");
        let parsed = known.parse(value.unwrap_or_default());
        parsed.map_err(|why| CommandFailure::usage(format!("mount option {option:?}: {why}")))
    };
    let milliseconds = |value| match value {
        crate::keys::KeyValue::Int(n) => std::time::Duration::from_millis(n),
        _ => std::time::Duration::ZERO,
    };
    match (key, value) {
        ("ro", None) => options.read_only = true,
        ("rw", None) => options.read_only = false,
        ("allow_other", None) => options.allow_other = true,
        ("noallow_other", None) => options.allow_other = false,
        ("passthrough", None) => options.passthrough = Passthrough::Auto,
        ("nopassthrough", None) => options.passthrough = Passthrough::Off,
        ("kernel_cache", None) => options.kernel_cache = true,
        ("nokernel_cache", None) => options.kernel_cache = false,
        ("io_uring", None) => options.io_uring = true,
        ("noio_uring", None) => options.io_uring = false,
        ("nosuid", None) => options.restrictions.nosuid = true,
        ("suid", None) => options.restrictions.nosuid = false,
        ("nodev", None) => options.restrictions.nodev = true,
        ("dev", None) => options.restrictions.nodev = false,
        ("noexec", None) => options.restrictions.noexec = true,
        ("exec", None) => options.restrictions.noexec = false,
        ("attr_timeout_ms", Some(_)) => {
            options.attr_timeout = milliseconds(timeout(name::MOUNT_ATTR_TIMEOUT)?);
        }
        ("entry_timeout_ms", Some(_)) => {
            options.entry_timeout = milliseconds(timeout(name::MOUNT_ENTRY_TIMEOUT)?);
        }
        ("fsname", Some(source)) if !source.is_empty() => options.source = Some(source.to_owned()),
        // mount(8) and fstab pass these options along; they have no effect here.
        ("defaults" | "auto" | "noauto" | "_netdev" | "nofail", None) => {}
        // A mount never records the times of accesses.
        ("noatime" | "nodiratime" | "relatime", None) => {}
        // Comments for other programs, such as systemd.
        _ if key.starts_with("x-") || key == "comment" => {}
        _ => return Err(wrong()),
    }
    Ok(())
}

impl UmountArgs {
    /// Returns the arguments for one mount.
    pub fn for_path(at: VolumeArgs, force: bool, mountpoint: PathBuf) -> UmountArgs {
        UmountArgs { at, force, mountpoints: vec![mountpoint] }
    }
}

/// Unmounts mounts.
///
/// # Errors
/// One is busy, or is no mount of Tatami. The others are unmounted.
pub fn unmount_paths(args: &UmountArgs) -> CommandResult {
    let place = args.at.open()?;
    crate::log::start_logging(&place.config, false)?;
    let mut result = Ok(());
    for path in &args.mountpoints {
        let ended = resolve_path(path).and_then(|path| {
            let how = format!("tatami umount --force {}", path.display());
            mounts::end_mount(&place.dir, &path, args.force, &how)?;
            mountpoints::remove_made(&place, &path);
            Ok(())
        });
        if let Err(e) = ended {
            if result.is_err() {
                crate::term::print_error(&e.report());
            } else {
                result = Err(e);
            }
        }
    }
    result
}

/// Mounts a node at the path that `up` has chosen, unless it is already mounted there. Returns
/// `None` if it was. The second value is the mount point, if `up` has made it.
///
/// # Errors
/// Another mount is on this path, or the mount process cannot start.
pub fn ensure_mounted(
    place: &VolumeDir,
    entry: &NodeEntry,
    path: &Path,
) -> CommandResult<Option<(StartingProcess, Option<MadeMountpoint>)>> {
    match mounts::inspect_mountpoint(&place.dir, path) {
        MountpointState::Served(record) if record.dir == place.dir && record.node == entry.id => {
            return Ok(None);
        }
        MountpointState::Served(record) => {
            let what = format!("{} is a mount of another volume", path.display());
            return Err(CommandFailure::new(what)
                .because(format!("of node {} of {}", record.node, record.dir.display()))
                .try_this("choose another path: tatami up --mount PATH"));
        }
        MountpointState::OtherType(fs_type) => {
            let what = format!("{} has a {fs_type} file system mounted on it", path.display());
            return Err(
                CommandFailure::new(what).try_this("choose another path: tatami up --mount PATH")
            );
        }
        // A mount process that was killed leaves its mount behind.
        MountpointState::Dead => {
            tatami_mount::unmount_path(path, true)
                .context(|| format!("cannot remove the dead mount on {}", path.display()))?;
        }
        MountpointState::NotMounted => {}
    }
    if let Some(above) = find_mount_above(place, path) {
        let (node, above) = (&entry.name, above.display());
        term::print_note(&format!(
            "{node} is not mounted: {above} is a mount of this volume itself. To mount each node \
             below it: tatami umount {above}; tatami up{}",
            place.dir_flag()
        ));
        return Ok(None);
    }
    let made = mountpoints::make_mountpoint(place, path)?;
    if std::fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_some()) {
        let what = path.display();
        term::print_note(&format!("{what} is not empty: the mount hides its entries"));
    }
    let starting = start_mount(place, entry, &resolve_path(path)?, &[])?;
    Ok(Some((starting, made)))
}

/// Returns the mount of this volume in which `path` lies, such as the mount of the only node before
/// others were added. A mount point there would be a directory of the volume.
fn find_mount_above(place: &VolumeDir, path: &Path) -> Option<PathBuf> {
    let mounted = MountRecord::list_volume(&place.dir);
    let above = path.ancestors().skip(1).find(|dir| mounted.iter().any(|m| m.path == **dir));
    above.map(Path::to_owned)
}

/// Returns the nodes of this machine, and the path at which `up` mounts each.
pub fn planned_mounts<'a>(
    place: &VolumeDir,
    volume: &'a VolumeFile,
) -> Vec<(&'a NodeEntry, PathBuf)> {
    let root = PathBuf::from(place.config.text_value(name::MOUNT_PATH));
    match place.nodes_here(volume)[..] {
        [only] => vec![(only, root)],
        ref nodes => nodes.iter().map(|n| (*n, root.join(&n.name))).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::{KeyValue, find_key};
    use tatami_mount::Restrictions;

    #[test]
    fn defaults_are_those_of_the_library() {
        let options = MountOptions::new("/");
        let default = |name| find_key(name).expect("a key").default_value(Path::new("/"));
        for (name, value) in [
            (name::MOUNT_THREADS, options.threads as u128),
            (name::MOUNT_THREADS_MAX, options.threads_max as u128),
            (name::MOUNT_ATTR_TIMEOUT, options.attr_timeout.as_millis()),
            (name::MOUNT_ENTRY_TIMEOUT, options.entry_timeout.as_millis()),
        ] {
            assert_eq!(default(name).to_string(), value.to_string(), "{name}");
        }
        assert_eq!(default(name::MOUNT_ALLOW_OTHER), KeyValue::Bool(options.allow_other));
        assert_eq!(default(name::MOUNT_KERNEL_CACHE), KeyValue::Bool(options.kernel_cache));
        assert_eq!(default(name::MOUNT_IO_URING), KeyValue::Bool(options.io_uring));
        assert_eq!(options.passthrough, Passthrough::Auto);
    }

    #[test]
    fn options_are_those_of_the_help() {
        let mut options = MountOptions::new("/");
        for option in [
            "ro",
            "noallow_other",
            "nopassthrough",
            "nokernel_cache",
            "noio_uring",
            "attr_timeout_ms=5",
        ] {
            set_option(&mut options, option).unwrap_or_else(|e| panic!("{e}"));
        }
        assert!(options.read_only && !options.allow_other && !options.kernel_cache);
        assert!(!options.io_uring);
        assert_eq!(options.passthrough, Passthrough::Off);
        assert_eq!(options.attr_timeout.as_millis(), 5);
        for option in ["nosuid", "nodev", "noexec", "nodev", "exec"] {
            set_option(&mut options, option).unwrap_or_else(|e| panic!("{e}"));
        }
        for option in ["fsname=scratch", "nofail", "x-systemd.requires=tatami-node@scratch.service"]
        {
            set_option(&mut options, option).unwrap_or_else(|e| panic!("{e}"));
        }
        assert_eq!(options.source.as_deref(), Some("scratch"));
        let restricted = Restrictions { nosuid: true, nodev: true, noexec: false };
        assert_eq!(options.restrictions, restricted, "the last word counts");
        for wrong in ["rx", "ro=1", "attr_timeout_ms", "attr_timeout_ms=-1", "fsname=", ""] {
            assert!(check_options(&[wrong.to_owned()]).is_err(), "{wrong}");
        }
    }
}
