//! The mounts of this machine: the process that serves each, its node and its volume.
//!
//! A record lies in the volume's directory, where `down` and `status` look for it. A copy lies
//! below `/run/tatami`, or below the runtime directory of an ordinary user. With the copy, a path
//! alone is enough to find the volume.

use crate::error::{CommandFailure, CommandResult, FailureContext};
use crate::mountinfo::{self, FS_TYPE, MountEntry};
use crate::process::{ProcessRecord, RunningProcess};
use crate::replace_file::replace_file;
use crate::term;
use crate::users;
use rustix::fs::Mode;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tatami_cluster::mount_note::{note_dirs, seal_note, unseal_note};
use tatami_cluster::trusted::TrustedDir;
use tatami_mount::UnmountError;

/// Longest wait for a mount process to end after the unmount: it first sends the written data that
/// its node does not have yet.
const END_WAIT: Duration = Duration::from_secs(90);
/// The same for a forced unmount.
const FORCED_WAIT: Duration = Duration::from_secs(15);

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

/// Ends the mount on `path` of the volume in `dir`, and waits until its process has written all
/// data to its node. With `force` it is detached even while in use. Unused copies of it in other
/// mount namespaces end with it.
///
/// # Errors
/// It is busy, or no mount of Tatami, or the process does not end.
pub fn end_mount(dir: &Path, path: &Path, force: bool, how: &str) -> CommandResult {
    let record = MountRecord::find_record(dir, path);
    let running = record.as_ref().and_then(MountRecord::running_process);
    let mut copies = users::find_users(path);
    copies.retain(|user| user.has_copy_only);
    match mountinfo::mount_at(path) {
        Some(m) if m.fs_type == FS_TYPE => match tatami_mount::unmount_path(path, force) {
            Ok(()) | Err(UnmountError::NotMounted { .. }) => {}
            Err(UnmountError::Busy { .. }) => return Err(busy_failure(path, how)),
            Err(e) => {
                return Err(
                    CommandFailure::new(format!("cannot unmount {}", path.display())).because(e)
                );
            }
        },
        Some(m) => {
            let what =
                format!("{} is a mount of type {}, not of Tatami", path.display(), m.fs_type);
            return Err(CommandFailure::new(what).try_this(format!("umount {}", path.display())));
        }
        None if record.is_none() => {
            let what = format!("no volume is mounted on {}", path.display());
            return Err(CommandFailure::new(what).try_this("tatami status lists the mounts"));
        }
        None => {}
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
