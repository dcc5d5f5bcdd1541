//! The volume of a batch job on one host, from its directory to its end. A process of its own, the
//! cleaner, removes it: daemons, mounts, files. The cleaner has left the session of the processes
//! that it waits for, so that it outlives their end by any signal.

use crate::error::{CommandFailure, CommandResult, FailureContext};
use crate::interrupt;
use crate::mountinfo::{self, FS_TYPE};
use crate::mountpoints;
use crate::mounts;
use crate::process::{DaemonRole, ProcessRecord, RunningProcess};
use crate::replace_file::replace_file;
use crate::volume_dir::VolumeArgs;
use crate::volume_layout;
use rustix::fs::Mode;
use rustix::process::{Signal, geteuid};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tatami_hosts::batch_job::{is_job_dir_name, job_dir_name};

/// The directory in it on which the volume is mounted.
pub const MOUNT_DIR: &str = "mnt";
/// The file with the process that removes the directory.
const CLEANER_FILE: &str = "cleaner.toml";
/// Longest time of all attempts to remove the volume.
const REMOVAL_MAX: Duration = Duration::from_secs(300);
/// Pause between two attempts.
const PAUSE: Duration = Duration::from_millis(100);
/// Longest wait for one process to end after SIGKILL.
const KILL_WAIT: Duration = Duration::from_secs(10);
/// Longest wait for the keeper of a volume, or a cleaner, to end by itself.
const END_WAIT: Duration = Duration::from_secs(20);
/// Longest time in which a new directory has no record of its cleaner yet.
const UNRECORDED_MAX: Duration = Duration::from_secs(600);
/// What the cleaner says when signals no longer end it.
const READY: &str = "ready";

/// The process that removes the volume of a job from this host, once this process is gone. Dropping
/// the value lets it begin, and waits for its end.
pub struct JobCleaner {
    child: Child,
}

impl JobCleaner {
    /// Starts the cleaner of a directory.
    ///
    /// # Errors
    /// The directory has no name of a job, or the process cannot be started.
    pub fn start(dir: &Path) -> CommandResult<JobCleaner> {
        check_dir_name(dir)?;
        let what = || "cannot start the cleaner".to_owned();
        let mut child = Command::new("/proc/self/exe")
            .args(["host", "clean", "--wait", "--dir"])
            .arg(dir)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context(what)?;
        let mut line = String::new();
        if let Some(output) = child.stdout.take() {
            BufReader::new(output).read_line(&mut line).context(what)?;
        }
        let cleaner = JobCleaner { child };
        if line.trim_end() != READY {
            return Err(CommandFailure::new(what()));
        }
        let pid = i32::try_from(cleaner.child.id()).unwrap_or_default();
        CleanerNote { host: host_name(), process: ProcessRecord::of_process(pid) }.save(dir)?;
        Ok(cleaner)
    }
}

impl Drop for JobCleaner {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        // It fails only if the process has been waited for.
        let _ = self.child.wait();
    }
}

/// The process that removes the directory in which this note is.
#[derive(Serialize, Deserialize)]
struct CleanerNote {
    /// The name of its machine. Another machine cannot tell whether it lives.
    host: String,
    process: ProcessRecord,
}

impl CleanerNote {
    fn save(&self, dir: &Path) -> CommandResult {
        let text = toml::to_string(self).context(|| CLEANER_FILE.to_owned())?;
        replace_file(&dir.join(CLEANER_FILE), &text)
    }

    fn load(dir: &Path) -> Option<CleanerNote> {
        toml::from_str(&std::fs::read_to_string(dir.join(CLEANER_FILE)).ok()?).ok()
    }
}

fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Makes the directory of a job's volume, for its user alone. What an earlier job of this id has
/// left there is removed before: it was started again after the crash of this machine.
///
/// # Errors
/// There is one already, or it cannot be made.
pub fn make_job_dir(dir: &Path) -> CommandResult {
    check_dir_name(dir)?;
    if is_stale(dir) {
        remove_remains(dir, &[]);
    }
    let shown = dir.display();
    let failure = match rustix::fs::mkdir(dir, Mode::RWXU) {
        // Checks that no other user can exchange a part of the path.
        Ok(()) => return volume_layout::make_dir(dir),
        Err(rustix::io::Errno::EXIST) => CommandFailure::new(format!("{shown} is there already"))
            .because(
                "another host has the same directory, or it belongs to another user or to another \
                 job of this id",
            ),
        Err(error) => CommandFailure::new(format!("cannot make {shown}")).because(error),
    };
    Err(failure.try_this("name a directory on a local disk of each host: --scratch DIR"))
}

fn check_dir_name(dir: &Path) -> CommandResult {
    let name = dir.file_name().unwrap_or_default().to_string_lossy();
    match dir.is_absolute() && is_job_dir_name(&name) {
        true => Ok(()),
        false => Err(CommandFailure::usage(format!("{} is no job's directory", dir.display()))),
    }
}

/// Returns whether a directory is this user's, and its cleaner has ended.
fn is_stale(dir: &Path) -> bool {
    let is_old = || {
        let changed = dir.metadata().and_then(|meta| meta.modified());
        changed.is_ok_and(|time| time.elapsed().is_ok_and(|age| age > UNRECORDED_MAX))
    };
    is_own_dir(dir)
        && match CleanerNote::load(dir) {
            // On a shared file system it may belong to another host.
            Some(note) => note.host == host_name() && note.process.find_running().is_none(),
            None => is_old(),
        }
}

fn is_own_dir(dir: &Path) -> bool {
    // Not through a link: another user could point it anywhere.
    dir.symlink_metadata().is_ok_and(|meta| meta.is_dir() && meta.uid() == geteuid().as_raw())
}

/// Waits until standard input ends, and then removes the volume in a directory.
///
/// # Errors
/// A part is left.
pub fn await_and_remove(dir: &Path) -> CommandResult {
    check_dir_name(dir)?;
    if let Err(error) = rustix::process::setsid() {
        tracing::debug!(%error, "it has a session of its own already");
    }
    interrupt::ignore_end_signals();
    DaemonRole::Cleaner.name_this_process();
    println!("{READY}");
    std::io::stdout().flush().context(|| "cannot report".to_owned())?;
    let mut input = std::io::stdin().lock();
    // The other side writes nothing. A failed read is its end, too.
    while matches!(input.read(&mut [0; 64]), Ok(1..)) {}
    report_removal(dir, remove_remains(dir, &[]))
}

/// Removes the volume of the job with this id from this host, for the epilog of a batch system.
/// It looks for directories in `places`, and where daemons, mounts and keepers of the job run.
/// Without an id it takes directories in `places`, and only those without a running process.
///
/// # Errors
/// A part is left.
pub fn remove_job(id: Option<&str>, places: &[PathBuf]) -> CommandResult {
    let wanted = id.map(job_dir_name);
    let mut found = BTreeSet::new();
    for place in places.iter().filter(|place| place.is_absolute()) {
        let entries = std::fs::read_dir(place).into_iter().flatten().flatten();
        let named = entries.map(|entry| entry.path());
        found.extend(named.filter(|path| {
            is_own_dir(path)
                && match &wanted {
                    Some(name) => path.file_name() == Some(name.as_ref()),
                    None => is_job_dir(path) && is_stale(path),
                }
        }));
    }
    if let Some(name) = &wanted {
        let of_job = |path: &Path| {
            let ancestor = path.ancestors().find(|path| path.file_name() == Some(name.as_ref()));
            ancestor.filter(|path| path.is_absolute()).map(Path::to_owned)
        };
        found.extend(own_mounts().iter().filter_map(|path| of_job(path)));
        for process in list_processes() {
            found.extend(process.words.iter().filter_map(|word| of_job(word)));
        }
    }
    let mut result = Ok(());
    for dir in found {
        // They end by themselves when the job ends. After that, this process does their work.
        for process in list_processes() {
            let ends = process.is_about(&dir) && !process.is_served();
            if ends
                && process.pid != own_pid()
                && let Some(running) = process.find_running()
            {
                running.send_signal(Signal::TERM);
                running.wait_for_end(END_WAIT);
            }
        }
        result = result.and(report_removal(&dir, remove_remains(&dir, &["job", "host"])));
    }
    result
}

fn is_job_dir(path: &Path) -> bool {
    path.file_name().and_then(|name| name.to_str()).is_some_and(is_job_dir_name)
}

fn report_removal(dir: &Path, is_gone: bool) -> CommandResult {
    match is_gone {
        true => Ok(()),
        false => Err(CommandFailure::new(format!("{} is left", dir.display()))),
    }
}

/// Removes the volume in a directory: kills daemons and mounts, unmounts, and removes the files. It
/// also kills processes of the commands `also`. It repeats this until nothing is left, or for
/// [`REMOVAL_MAX`]. Returns whether all is gone.
fn remove_remains(dir: &Path, also: &[&str]) -> bool {
    let deadline = Instant::now() + REMOVAL_MAX;
    loop {
        let recorded = mounts::list_recorded_paths(dir);
        let killed = kill_processes(dir, also);
        let is_unmounted = unmount_all(dir, &recorded);
        // A mount point that a command has made is closed to all users without its mount.
        if let Ok(place) = (VolumeArgs { dir: Some(dir.to_owned()), ..Default::default() }).open() {
            recorded.iter().for_each(|path| mountpoints::remove_made(&place, path));
        }
        mounts::remove_records_of(dir);
        // The files below another mount belong to another file system.
        if is_unmounted && is_own_dir(dir) {
            let _ = std::fs::remove_dir(dir.join(MOUNT_DIR));
            // What is left is removed by the next attempt.
            let _ = std::fs::remove_dir_all(dir);
        }
        let is_gone = is_unmounted && !is_own_dir(dir);
        // A process that was being started at the last look is found by the next one.
        if is_gone && killed == 0 || Instant::now() >= deadline {
            return is_gone;
        }
        #[allow(clippy::disallowed_methods)] // nothing tells of a process that is being started
        std::thread::sleep(PAUSE);
    }
}

fn kill_processes(dir: &Path, also: &[&str]) -> usize {
    let ends = |process: &TatamiProcess| {
        process.is_about(dir)
            && process.pid != own_pid()
            && (process.is_served() || also.iter().any(|word| process.has_command(word)))
    };
    let killed: Vec<RunningProcess> = list_processes()
        .into_iter()
        .filter(ends)
        .filter_map(|process| process.find_running())
        .inspect(|running| running.send_signal(Signal::KILL))
        .collect();
    // A process that hangs in the kernel ends when its mount does.
    killed.iter().for_each(|running| _ = running.wait_for_end(KILL_WAIT));
    killed.len()
}

/// Detaches the mounts of this user below a directory, and at the recorded paths. Returns whether
/// none is left below the directory.
fn unmount_all(dir: &Path, recorded: &BTreeSet<PathBuf>) -> bool {
    let mut paths = own_mounts();
    paths.retain(|path| path.starts_with(dir) || recorded.contains(path));
    paths.sort();
    for path in paths.iter().rev() {
        if let Err(error) = tatami_mount::unmount_path(path, true) {
            tracing::warn!(%error, "a mount is left");
        }
    }
    mountinfo::mount_table().iter().all(|mount| !mount.path.starts_with(dir))
}

fn own_mounts() -> Vec<PathBuf> {
    let me = geteuid();
    let table = mountinfo::mount_table().into_iter();
    let own = table.filter(|mount| mount.fs_type == FS_TYPE && mount.owner == Some(me.as_raw()));
    own.map(|mount| mount.path).collect()
}

/// A process of this user that is a `tatami`.
struct TatamiProcess {
    pid: i32,
    record: ProcessRecord,
    /// Its command line.
    words: Vec<PathBuf>,
}

impl TatamiProcess {
    fn is_about(&self, dir: &Path) -> bool {
        self.words.iter().any(|word| word.starts_with(dir))
    }

    fn has_command(&self, command: &str) -> bool {
        self.words.get(1).is_some_and(|word| word.as_os_str() == command)
    }

    /// Whether it serves a node or a mount.
    fn is_served(&self) -> bool {
        self.has_command("node") || self.has_command("mount")
    }

    fn find_running(&self) -> Option<RunningProcess> {
        self.record.find_running()
    }
}

fn own_pid() -> i32 {
    rustix::process::getpid().as_raw_nonzero().get()
}

/// Returns the processes of this user whose command line may be that of a `tatami`.
fn list_processes() -> Vec<TatamiProcess> {
    let me = geteuid().as_raw();
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let read = |entry: std::fs::DirEntry| {
        let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
        // Read before the command line: a process that takes over the number is another one.
        let record = ProcessRecord::of_process(pid);
        if entry.metadata().ok()?.uid() != me {
            return None;
        }
        let name = std::fs::read_to_string(entry.path().join("comm")).ok()?;
        // A daemon that is being started still has the name of its program.
        if !name.starts_with("tatami") && name.trim_end() != "exe" {
            return None;
        }
        let line = std::fs::read(entry.path().join("cmdline")).ok()?;
        let words = line.split(|byte| *byte == 0);
        let words = words.map(|word| PathBuf::from(std::ffi::OsStr::from_bytes(word))).collect();
        Some(TatamiProcess { pid, record, words })
    };
    entries.filter_map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_directories_with_the_name_of_a_job_are_removed() {
        let root = tempfile::tempdir().expect("a temporary directory");
        for name in ["volume", "tatami-job-", "tatami-job-a b"] {
            assert!(make_job_dir(&root.path().join(name)).is_err(), "{name}");
            assert!(await_and_remove(&root.path().join(name)).is_err(), "{name}");
        }
        assert!(make_job_dir(Path::new("tatami-job-17")).is_err());
        assert_eq!(std::fs::read_dir(root.path()).expect("there").count(), 0);
    }

    #[test]
    fn remains_of_an_earlier_start_are_replaced_and_links_are_not_followed() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let dir = root.path().join("tatami-job-17");
        std::fs::create_dir_all(dir.join("node0")).expect("made");
        // It may be that of a job that starts now, or of another host.
        assert!(make_job_dir(&dir).is_err() && dir.exists());
        let dead = ProcessRecord { start: 1, ..ProcessRecord::of_self() };
        CleanerNote { host: "elsewhere".to_owned(), process: dead.clone() }.save(&dir).expect("ok");
        assert!(make_job_dir(&dir).is_err() && dir.exists());
        CleanerNote { host: host_name(), process: dead }.save(&dir).expect("written");
        make_job_dir(&dir).expect("nothing of it lives");
        assert!(!dir.join("node0").exists());
        assert_eq!(dir.metadata().expect("there").mode() & 0o7777, 0o700);
        // Its cleaner lives.
        let process = ProcessRecord::of_self();
        CleanerNote { host: host_name(), process }.save(&dir).expect("written");
        assert!(make_job_dir(&dir).is_err() && dir.exists());

        let other = root.path().join("other");
        std::fs::create_dir(&other).expect("made");
        std::fs::write(other.join("file"), "kept").expect("written");
        std::os::unix::fs::symlink(&other, root.path().join("tatami-job-18")).expect("made");
        std::os::unix::fs::symlink(&other, dir.join("link")).expect("made");
        for id in ["18", "17"] {
            remove_job(Some(id), &[root.path().to_owned()]).expect("removed, or nothing there");
        }
        assert!(other.join("file").exists() && !dir.exists());
        assert!(root.path().join("tatami-job-18").symlink_metadata().is_ok());
    }
}
