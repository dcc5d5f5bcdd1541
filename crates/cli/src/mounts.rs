//! The mounts of this machine: the process that serves each, its node and its volume.
//!
//! A record lies in the volume's directory, where `down` and `status` look for it. A copy lies
//! below `/run/tatami`, or below the runtime directory of an ordinary user. With the copy, a path
//! alone is enough to find the volume.

use crate::error::{CommandFailure, CommandResult, FailureContext};
use crate::mountinfo::{self, FS_TYPE, MountEntry, SITE_FS_TYPE};
use crate::process::{ProcessRecord, RunningProcess};
use crate::replace_file::replace_file;
use crate::term;
use crate::user_name::describe_user;
use crate::users;
use rustix::fs::Mode;
use rustix::process::{Signal, geteuid};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;
use tatami_cluster::mount_note::{note_dirs, seal_note, unseal_note};
use tatami_cluster::trusted::TrustedDir;
use tatami_mount::UnmountError;

/// Longest wait for a mount process to end after the unmount: it first sends the written data that
/// its node does not have yet.
const END_WAIT: Duration = Duration::from_secs(90);
/// The same for a forced unmount.
const FORCED_WAIT: Duration = Duration::from_secs(15);

/// Longest wait for the attributes of the root directory of a new mount.
const ROOT_WAIT: Duration = Duration::from_secs(2);

/// The record of one mount.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountRecord {
    /// The mount point.
    pub path: PathBuf,
    /// The directory of the volume.
    pub dir: PathBuf,
    /// The number of the home node of the mount.
    pub node: u16,
    /// The process that serves it.
    pub process: ProcessRecord,
}

/// Returns the directory for the records of a volume.
fn records_dir(dir: &Path) -> PathBuf {
    dir.join("mounts")
}

impl MountRecord {
    fn file_path(place: &Path, path: &Path) -> PathBuf {
        place.join(mountinfo::as_file_name(path))
    }

    /// Writes the record.
    ///
    /// # Errors
    /// It can be written in none of the directories.
    pub fn save(&self) -> CommandResult {
        let text = seal_note(&toml::to_string(self).context(|| "record of a mount".to_owned())?);
        let write = |place: &Path| {
            TrustedDir::open_or_create(place, Mode::from_raw_mode(0o755))?;
            remove_stale_records(place);
            replace_file(&Self::file_path(place, &self.path), &text)
        };
        // The directory of another user's volume is not writable for this user. One copy is
        // enough.
        let with_volume = write(&records_dir(&self.dir));
        let mut by_path = note_dirs().into_iter().map(|place| write(&place));
        let by_path = by_path.find(Result::is_ok);
        if by_path.is_some() { Ok(()) } else { with_volume }
    }

    /// Reads the record of the mount on `path`.
    pub fn load_by_path(path: &Path) -> Option<MountRecord> {
        note_dirs().iter().find_map(|place| Self::load_from(place, path))
    }

    fn load_from(place: &Path, path: &Path) -> Option<MountRecord> {
        Self::read_file(&Self::file_path(place, path)).filter(|record| record.path == path)
    }

    fn read_file(file: &Path) -> Option<MountRecord> {
        // A damaged record counts as missing: the copy in the other directory replaces it.
        let text = std::fs::read_to_string(file).ok()?;
        let record: MountRecord = toml::from_str(unseal_note(&text)?).ok()?;
        record.process.may_be_from(file).then_some(record)
    }

    /// Reads the record of the mount on `path` of the volume in `dir`.
    pub fn find_record(dir: &Path, path: &Path) -> Option<MountRecord> {
        Self::load_from(&records_dir(dir), path).or_else(|| Self::load_by_path(path))
    }

    /// Removes the record.
    pub fn remove(&self) {
        for place in note_dirs().into_iter().chain([records_dir(&self.dir)]) {
            // The file may be gone, or belong to another user.
            let _ = std::fs::remove_file(Self::file_path(&place, &self.path));
        }
    }

    /// Returns all records of mounts of the volume in `dir`, sorted by path.
    pub fn list_volume(dir: &Path) -> Vec<MountRecord> {
        let mut found: Vec<MountRecord> = Vec::new();
        for place in note_dirs().into_iter().chain([records_dir(dir)]) {
            let Ok(entries) = std::fs::read_dir(place) else { continue };
            found.extend(entries.flatten().filter_map(|e| Self::read_file(&e.path())));
        }
        found.retain(|record| record.dir == dir && record.is_alive());
        found.sort_by(|a, b| a.path.cmp(&b.path));
        found.dedup_by(|a, b| a.path == b.path);
        found
    }

    /// Returns whether the record is still valid: it is mounted, or its process lives. A killed
    /// process leaves its mount behind. The process of a detached mount lives on for a while.
    fn is_alive(&self) -> bool {
        self.running_process().is_some()
            || mountinfo::mount_at(&self.path).is_some_and(|m| m.fs_type == FS_TYPE)
    }

    /// Returns the process that serves the mount, if it lives.
    pub fn running_process(&self) -> Option<RunningProcess> {
        self.process.find_running()
    }
}

/// Returns the device numbers of the mounts of the volume in `dir`.
pub fn list_devices(dir: &Path) -> BTreeSet<u64> {
    let table = mountinfo::mount_table();
    let records = MountRecord::list_volume(dir);
    let devices = records.iter().filter_map(|record| {
        let mount = table.iter().rev().find(|m| m.path == record.path)?;
        let (major, minor) = mount.device.split_once(':')?;
        Some(rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?))
    });
    devices.collect()
}

/// Removes the records of mounts that ended without removing them.
fn remove_stale_records(place: &Path) {
    let Ok(entries) = std::fs::read_dir(place) else { return };
    for file in entries.flatten().map(|e| e.path()) {
        if MountRecord::read_file(&file).is_some_and(|record| !record.is_alive()) {
            // The removal fails for the record of another user, or for one that is gone already.
            let _ = std::fs::remove_file(file);
        }
    }
}

/// Returns the paths of all records of mounts of the volume in `dir`, also of ended ones.
pub fn list_recorded_paths(dir: &Path) -> BTreeSet<PathBuf> {
    let places = note_dirs().into_iter().chain([records_dir(dir)]);
    let files = places.filter_map(|place| std::fs::read_dir(place).ok()).flatten().flatten();
    let records = files.filter_map(|entry| MountRecord::read_file(&entry.path()));
    records.filter(|record| record.dir == dir).map(|record| record.path).collect()
}

/// Removes all records of mounts of the volume in `dir`, and the directory of this user's records
/// if it is empty then.
pub fn remove_records_of(dir: &Path) {
    for place in note_dirs() {
        let Ok(entries) = std::fs::read_dir(&place) else { continue };
        for file in entries.flatten().map(|e| e.path()) {
            if MountRecord::read_file(&file).is_some_and(|record| record.dir == dir) {
                // It may be gone already, or belong to another user.
                let _ = std::fs::remove_file(file);
            }
        }
        // It stays if it has other entries.
        let _ = std::fs::remove_dir(place);
    }
}

/// Lets the kernel get the attributes of the root directory of a new mount. It begins with the
/// superuser as the owner, and drops a reply during which the directory is invalidated. So the
/// first create of an ordinary user could be refused while other mounts change the directory.
pub fn load_root(path: &Path) {
    let (path, (done, wait)) = (path.to_owned(), mpsc::channel());
    std::thread::spawn(move || {
        // Of a mount that has just ended, or of another user's, nothing is needed.
        let _ = path.metadata();
        let _ = done.send(());
    });
    // The node that has the directory may be down.
    let _ = wait.recv_timeout(ROOT_WAIT);
}

/// The kind of file system that is mounted on a path.
pub enum MountpointState {
    /// Nothing is mounted.
    NotMounted,
    /// A mount of Tatami with a live process.
    Served(MountRecord),
    /// A mount of Tatami without its process.
    Dead,
    /// A file system of this other type.
    OtherType(String),
}

/// Looks up the mount on `path`, before the volume in `dir` is mounted there.
pub fn inspect_mountpoint(dir: &Path, path: &Path) -> MountpointState {
    match mountinfo::mount_at(path) {
        None => MountpointState::NotMounted,
        Some(MountEntry { fs_type, .. }) if fs_type != FS_TYPE => {
            MountpointState::OtherType(fs_type)
        }
        Some(_) => match MountRecord::find_record(dir, path) {
            Some(record) if record.running_process().is_some() => MountpointState::Served(record),
            _ => MountpointState::Dead,
        },
    }
}

/// Returns a failure that names the processes that keep a mount busy.
pub fn busy_failure(path: &Path, how: &str) -> CommandFailure {
    let users = users::find_affected_users(path);
    let cause = if users.is_empty() {
        "a user of it is invisible to this user, for example another mount below it".to_owned()
    } else {
        users::describe_users(&users)
    };
    CommandFailure::new(format!("{} is busy", path.display())).because(cause).try_this(format!(
        "end these programs or let them leave the directory; or detach the mount in use: {how}"
    ))
}

/// A mount of another user.
pub struct ForeignMount {
    /// The mount point.
    pub path: PathBuf,
    /// The user that mounted it.
    pub owner: u32,
}

/// Returns the mounts of the volume in `dir` that belong to other users. Their records may be in
/// directories that this user cannot read, so the processes that serve them tell.
pub fn list_foreign(dir: &Path) -> Vec<ForeignMount> {
    let me = geteuid().as_raw();
    let of_tatami = mountinfo::mount_table().into_iter().filter(|m| m.fs_type == FS_TYPE);
    let foreign = of_tatami.filter_map(|m| {
        let owner = m.owner.filter(|owner| *owner != me)?;
        find_server(&m.path, owner, Some(dir))?;
        Some(ForeignMount { path: m.path, owner })
    });
    foreign.collect()
}

/// Finds the process of user `owner` that serves the mount on `path`, by its command line. With
/// `dir`, only a mount of the volume in that directory.
fn find_server(path: &Path, owner: u32, dir: Option<&Path>) -> Option<RunningProcess> {
    let serves = |line: &[u8]| {
        let words: Vec<&[u8]> = line.split(|b| *b == 0).collect();
        let is_dir = |pair: &[&[u8]]| match pair {
            [b"--dir", of] => dir.is_some_and(|dir| dir.as_os_str().as_bytes() == *of),
            _ => false,
        };
        let is_mount =
            words.get(1) == Some(&&b"mount"[..]) && words.contains(&path.as_os_str().as_bytes());
        // A mount of another site has no volume.
        is_mount
            && match dir {
                Some(_) => words.windows(2).any(is_dir),
                None => words.contains(&&b"--foreground"[..]),
            }
    };
    let processes = std::fs::read_dir("/proc").ok()?.flatten();
    let found = processes.filter_map(|entry| {
        let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
        // Read before the command line: a process that takes over the number is another one.
        let record = ProcessRecord::of_process(pid);
        let line = std::fs::read(entry.path().join("cmdline")).ok()?;
        let running = serves(&line).then(|| record.find_running())??;
        (running.owner() == Some(owner)).then_some(running)
    });
    found.into_iter().next()
}

/// Whether a mount is one of a volume or of another site.
fn is_ours(mount: &MountEntry) -> bool {
    mount.fs_type == FS_TYPE || mount.fs_type == SITE_FS_TYPE
}

fn foreign_failure(path: &Path, owner: u32) -> CommandFailure {
    let (shown, user) = (path.display(), describe_user(owner));
    CommandFailure::new(format!("not permitted: {shown} is a mount of {user}"))
        .because("only the superuser and the user that mounted it may unmount it")
        .try_this(format!(
            "ask {user} for this: tatami umount {shown}; or: sudo tatami umount {shown}"
        ))
}

/// Returns a failure because `path` is no mount point.
fn not_mounted_failure(path: &Path) -> CommandFailure {
    let shown = path.display();
    let failure = CommandFailure::new(format!("no volume is mounted on {shown}"));
    match mountinfo::mount_containing(path).filter(|m| m.fs_type == FS_TYPE) {
        Some(above) => {
            let above = above.path.display();
            failure
                .because(format!("{shown} lies in the mount {above}"))
                .try_this(format!("tatami umount {above}"))
        }
        None => failure.try_this("tatami status lists the mounts"),
    }
}

/// Ends the mount on `path` of the volume in `dir`, and waits until its process has written all
/// data to its node. With `force` it is detached even while in use. Unused copies of it in other
/// mount namespaces end with it.
///
/// # Errors
/// It is busy, or no mount of Tatami, or one of another user; or the process does not end.
pub fn end_mount(dir: &Path, path: &Path, force: bool, how: &str) -> CommandResult {
    let record = MountRecord::find_record(dir, path);
    let recorded = record.as_ref().and_then(MountRecord::running_process);
    // The superuser has no record of other users' mounts.
    let running = recorded.or_else(|| {
        let foreign = mountinfo::mount_at(path).filter(is_ours)?;
        find_server(path, foreign.owner?, None)
    });
    let mut copies = users::find_users(path);
    copies.retain(|user| user.has_copy_only);
    match mountinfo::mount_at(path) {
        Some(m) if is_ours(&m) => match tatami_mount::unmount_path(path, force) {
            Ok(()) | Err(UnmountError::NotMounted { .. }) => {}
            Err(UnmountError::Busy { .. }) => return Err(busy_failure(path, how)),
            Err(UnmountError::NotPermitted { .. }) => {
                return Err(foreign_failure(path, m.owner.unwrap_or_default()));
            }
            Err(e) => {
                return Err(
                    CommandFailure::new(format!("cannot unmount {}", path.display())).because(e)
                );
            }
        },
        Some(m) => {
            let what =
                format!("{} is a mount of type {}, not of Tatami", path.display(), m.fs_type);
            return Err(CommandFailure::new(what).try_this("tatami status lists the mounts"));
        }
        None if record.is_none() => return Err(not_mounted_failure(path)),
        None => {}
    }
    // This user can neither end the process of another one nor hurry it.
    let me = geteuid();
    if let Some(process) = &running
        && let Some(owner) = process.owner()
        && owner != me.as_raw()
        && !me.is_root()
    {
        let what = format!("{} is unmounted already", path.display());
        return Err(CommandFailure::new(what).because(format!(
            "its process {}, of {}, sends the rest of the data",
            process.pid,
            describe_user(owner)
        )));
    }
    if let Some(process) = running {
        if !copies.is_empty() {
            term::print_note(&format!(
                "{} was copied into mount namespaces of other processes, where nothing used it; \
                the copies no longer work: {}",
                path.display(),
                users::describe_users(&copies)
            ));
            // The process does not end by itself as long as a copy of the mount exists.
            process.send_signal(Signal::TERM);
        }
        let mut ended = if force {
            process.send_signal(Signal::TERM);
            process.wait_for_end(FORCED_WAIT)
        } else {
            process.wait_for_end(END_WAIT)
        };
        if !ended && force {
            process.send_signal(Signal::KILL);
            ended = process.wait_for_end(FORCED_WAIT);
        }
        if !ended {
            return Err(CommandFailure::new(format!(
                "{} is unmounted, but its process {} still runs",
                path.display(),
                process.pid
            ))
            .because(
                "it has data for a node that does not accept them, or a program sees the mount \
                 in a namespace of its own (tatami exec, a container)",
            )
            .try_this(format!("tatami status; to force it: {how}")));
        }
    }
    if let Some(record) = record {
        record.remove();
    }
    Ok(())
}
