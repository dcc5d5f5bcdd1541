//! Moves files that are there to where the policies of their directories want them: `tatami set -r`
//! and `tatami relayout --to policy`.
//!
//! One thread lists the directories, and some move the files. Each file is whole in its old or in
//! its new place at any time. So an interrupted command is simply run again.

use crate::background::RelayoutNoteFile;
use crate::error::{CommandFailure, CommandResult};
use crate::json::{NameFields, serialize_wide};
use crate::move_pace::{MovePace, PaceArgs};
use crate::term::{self, HEAD, TermOutput};
use crate::volume_path::AnyPath;
use indicatif::ProgressBar;
use parking_lot::Mutex;
use serde::Serialize;
use std::collections::HashSet;
use std::io::Write;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;
use tatami_client::policy_move::{LeftReason, PolicyMove, move_to_policy};
use tatami_client::tree::{VolumeTree, join_path};
use tatami_wire::meta::DirEntry;
use tatami_wire::policy::{POLICIES, Policies};
use tatami_wire::{Attr, Errno, Ino, InodeKind, NodeId};

/// How long the command waits in the end for programs that had files open. A mount reports a close
/// a moment after it.
const CLOSE_WAIT: Duration = Duration::from_millis(500);
/// Files that wait for a thread.
const QUEUE: usize = 64;
/// Most files that a report names.
const NAMED_MAX: usize = 10_000;
/// Most files that are named on a terminal.
const SHOWN_MAX: usize = 100;

/// A file to move.
struct MoveJob {
    path: Vec<u8>,
    attr: Attr,
    policies: Policies,
}

/// A file that stays where it is.
#[derive(Serialize)]
struct LeftFile {
    #[serde(flatten)]
    path: NameFields,
    /// `open`, `in-pieces`, `no-device`, `device-full`, `versions` or `failed`.
    reason: &'static str,
    /// The reason as a sentence.
    why: String,
}

/// What a run has done. `--json` prints it.
#[derive(Default, Serialize)]
pub struct PolicyMoveReport {
    /// Nothing was moved: the counts are those of files that would be.
    dry_run: bool,
    /// Directories that were listed.
    directories: u64,
    moved: u64,
    /// Bytes of the files that moved.
    #[serde(serialize_with = "serialize_wide")]
    bytes: u64,
    /// Files that were there already.
    same: u64,
    /// Number of files that stay where they are, and the first of them.
    left: u64,
    left_files: Vec<LeftFile>,
    /// Number of files and directories that failed; they are among those that are named.
    failed: u64,
}

/// Called for each directory with its policies, before it is listed. Returns those that hold for
/// its files.
pub type EnterDir<'a> = dyn Fn(&AnyPath, Ino, Policies) -> Result<Policies, EnterFailure> + 'a;

/// Why a directory is left out, with all below it.
pub enum EnterFailure {
    /// A call failed.
    System(Errno),
    /// Its policies would contradict each other.
    Contradiction(CommandFailure),
}

impl From<Errno> for EnterFailure {
    fn from(errno: Errno) -> EnterFailure {
        EnterFailure::System(errno)
    }
}

/// A run over files of one volume.
pub struct PolicyMover<'a> {
    tree: VolumeTree,
    pace: &'a MovePace,
    patience: Duration,
    dry_run: bool,
    notes: Option<&'a RelayoutNoteFile>,
    bar: ProgressBar,
    report: Mutex<PolicyMoveReport>,
    /// Files that a program had open.
    open: Mutex<Vec<MoveJob>>,
    /// Files with several names that have been looked at.
    linked: Mutex<HashSet<Ino>>,
    /// The failure with the exit code of the command.
    failure: Mutex<Option<CommandFailure>>,
}

impl<'a> PolicyMover<'a> {
    /// Returns a run that moves nothing yet. While another program has a file open, waits for
    /// `patience`.
    pub fn new(
        tree: &VolumeTree,
        pace: &'a MovePace,
        args: &PaceArgs,
        patience: Duration,
        notes: Option<&'a RelayoutNoteFile>,
    ) -> PolicyMover<'a> {
        let dry_run = args.dry_run;
        PolicyMover {
            tree: tree.clone(),
            pace,
            patience,
            dry_run,
            notes,
            bar: term::new_spinner("moving files"),
            report: Mutex::new(PolicyMoveReport { dry_run, ..PolicyMoveReport::default() }),
            open: Mutex::default(),
            linked: Mutex::default(),
            failure: Mutex::default(),
        }
    }

    /// Moves a file to where the policies of its directory want it.
    ///
    /// # Errors
    /// The directory cannot be read. Failures of the file are in the report.
    pub fn move_file(&self, path: &[u8], attr: &Attr) -> CommandResult {
        let end = path.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
        let dir = AnyPath::Volume(path[..end.max(1)].to_vec());
        let found = self.tree.stat(&path[..end.max(1)], true);
        let found = found.map_err(|e| dir.operation_failure("cannot look at", e))?;
        let policies = read_policies(&self.tree, found.ino);
        let policies =
            policies.map_err(|e| dir.operation_failure("cannot read the policies of", e))?;
        self.run_job(MoveJob { path: path.to_vec(), attr: attr.clone(), policies }, self.patience);
        Ok(())
    }

    /// Moves all files below a directory.
    pub fn move_tree(&self, path: &[u8], enter: &EnterDir<'_>) {
        let (sender, receiver) = sync_channel(QUEUE);
        let receiver = Mutex::new(receiver);
        std::thread::scope(|scope| {
            for _ in 0..self.pace.threads {
                scope.spawn(|| self.run_jobs(&receiver));
            }
            self.list_tree(path, enter, sender);
        });
        // Programs may have closed what they had open. The list is unlocked before the loop.
        let open = std::mem::take(&mut *self.open.lock());
        for job in open {
            match self.tree.client().getattr(self.tree.cred(), job.attr.ino) {
                Ok(attr) => self.run_job(MoveJob { attr, ..job }, CLOSE_WAIT),
                Err(errno) => self.record_error("cannot move", &job.path, errno),
            }
        }
    }

    fn list_tree(&self, path: &[u8], enter: &EnterDir<'_>, jobs: SyncSender<MoveJob>) {
        let mut todo = vec![path.to_vec()];
        while let Some(path) = todo.pop() {
            // The policies come first: what is made in the directory after that has them, and what
            // was made before is listed.
            let (policies, entries) = match self.enter_dir(&path, enter) {
                Ok(listed) => listed,
                Err(EnterFailure::System(errno)) => {
                    self.record_error("cannot set or list", &path, errno);
                    continue;
                }
                Err(EnterFailure::Contradiction(failure)) => {
                    let why = failure.what.clone();
                    self.record_failure(&path, failure, why);
                    continue;
                }
            };
            self.report.lock().directories += 1;
            for entry in entries {
                let path = join_path(&path, &entry.name);
                match (entry.kind, entry.attr) {
                    (InodeKind::Dir, _) => todo.push(path),
                    (InodeKind::File, Some(attr)) => {
                        // The directory that is listed first decides about a file in several.
                        if attr.nlink > 1 && !self.linked.lock().insert(attr.ino) {
                            continue;
                        }
                        if jobs.send(MoveJob { path, attr, policies }).is_err() {
                            return;
                        }
                    }
                    _ => {}
                }
            }
        }
    }

    fn run_jobs(&self, jobs: &Mutex<Receiver<MoveJob>>) {
        loop {
            let job = jobs.lock().recv();
            let Ok(job) = job else { return };
            self.run_job(job, Duration::ZERO);
        }
    }

    /// Moves one file. One that is open is tried again later if `patience` is zero.
    fn run_job(&self, job: MoveJob, patience: Duration) {
        let (client, cred) = (self.tree.client(), self.tree.cred());
        self.pace.wait_for_turn();
        let moved = move_to_policy(client, cred, &job.attr, job.policies, patience, self.dry_run);
        match moved {
            Ok(PolicyMove::Moved(_)) => {
                if !self.dry_run {
                    self.pace.record_file(job.attr.size);
                }
                let mut report = self.report.lock();
                report.moved += 1;
                report.bytes += job.attr.size;
                self.notes.iter().for_each(|notes| notes.record_file(true));
            }
            Ok(PolicyMove::Same) => {
                self.report.lock().same += 1;
                self.notes.iter().for_each(|notes| notes.record_file(false));
            }
            Ok(PolicyMove::Left(LeftReason::Open))
                if patience.is_zero() && self.open.lock().len() < NAMED_MAX =>
            {
                self.open.lock().push(job);
            }
            Ok(PolicyMove::Left(reason)) => self.record_left(&job.path, reason),
            Err(errno) => self.record_error("cannot move", &job.path, errno),
        }
        let waiting = self.open.lock().len() as u64;
        let report = self.report.lock();
        let moved = count_files(report.moved);
        let left = report.left + waiting;
        self.bar.set_message(format!("{moved} moved, {} there already, {left} left", report.same));
    }

    fn record_left(&self, path: &[u8], reason: LeftReason) {
        let node = |id: NodeId| {
            let map = self.tree.client().map();
            map.find_member(id).map_or_else(|| format!("node {}", id.0), |node| node.name.clone())
        };
        let (word, why) = match reason {
            LeftReason::Open => ("open", "a program has it open".to_owned()),
            LeftReason::InPieces => ("in-pieces", "it lies in pieces on several nodes".to_owned()),
            LeftReason::NoDevice(id) => {
                ("no-device", format!("{} has no region device that it can use", node(id)))
            }
            LeftReason::DeviceFull(id) => {
                ("device-full", format!("the region device of {} is full", node(id)))
            }
            LeftReason::HasVersions => {
                ("versions", "it has earlier versions, which would end there".to_owned())
            }
        };
        let mut report = self.report.lock();
        report.left += 1;
        self.notes.iter().for_each(|notes| notes.record_left());
        report.name_file(path, word, why);
    }

    /// Returns the policies of a directory, as they are from now on, and its entries.
    fn enter_dir(
        &self,
        path: &[u8],
        enter: &EnterDir<'_>,
    ) -> Result<(Policies, Vec<DirEntry>), EnterFailure> {
        let attr = self.tree.stat(path, true)?;
        let before = read_policies(&self.tree, attr.ino)?;
        let policies = enter(&AnyPath::Volume(path.to_vec()), attr.ino, before)?;
        Ok((policies, self.tree.read_dir(path, true)?))
    }

    fn record_error(&self, what: &str, path: &[u8], errno: Errno) {
        // Removed meanwhile.
        if matches!(errno, Errno::ENOENT | Errno::ESTALE) {
            return;
        }
        let failure = AnyPath::Volume(path.to_vec()).operation_failure(what, errno);
        let failure = match errno {
            Errno::ENOSPC => failure.because("there is no room for the copy; it is unchanged"),
            _ => failure,
        };
        self.record_failure(path, failure, errno.to_string());
    }

    fn record_failure(&self, path: &[u8], failure: CommandFailure, why: String) {
        self.notes.iter().for_each(|notes| notes.record_failure(&failure));
        let mut report = self.report.lock();
        report.failed += 1;
        report.name_file(path, "failed", why);
        self.failure.lock().get_or_insert(failure);
    }

    /// Makes the new places survive a power cut, and returns what was done. The failure is the
    /// first one, with the exit code.
    ///
    /// # Errors
    /// The changes cannot be synced.
    pub fn finish(self) -> CommandResult<(PolicyMoveReport, Option<CommandFailure>)> {
        self.bar.finish_and_clear();
        let report = self.report.into_inner();
        if report.moved > 0 && !report.dry_run {
            let synced = self.tree.client().sync();
            synced.map_err(|e| CommandFailure::new(format!("cannot sync the volume: {e}")))?;
        }
        Ok((report, self.failure.into_inner()))
    }
}

impl PolicyMoveReport {
    fn name_file(&mut self, path: &[u8], reason: &'static str, why: String) {
        if self.left_files.len() < NAMED_MAX {
            let path = NameFields::new("path", AnyPath::Volume(path.to_vec()).to_bytes());
            self.left_files.push(LeftFile { path, reason, why });
        }
    }

    /// Adds what another run has done.
    pub fn add(&mut self, other: PolicyMoveReport) {
        self.dry_run |= other.dry_run;
        self.directories += other.directories;
        self.moved += other.moved;
        self.bytes += other.bytes;
        self.same += other.same;
        self.left += other.left;
        self.failed += other.failed;
        let room = NAMED_MAX - self.left_files.len().min(NAMED_MAX);
        self.left_files.extend(other.left_files.into_iter().take(room));
    }

    /// Prints the report.
    ///
    /// # Errors
    /// Those of writing.
    pub fn print(&self, out: &mut TermOutput, json: bool) -> CommandResult {
        if json {
            out.write_json(self)?;
            return Ok(());
        }
        for file in self.left_files.iter().take(SHOWN_MAX) {
            let name = out.paint_text(HEAD, &term::escape_name(file.path.bytes()));
            writeln!(out, "{name}: stays where it is: {}", file.why)?;
        }
        let named = self.left_files.len().min(SHOWN_MAX) as u64;
        if self.left + self.failed > named {
            writeln!(out, "… and {} more", self.left + self.failed - named)?;
        }
        let verb = if self.dry_run { "would move" } else { "moved" };
        let size = term::format_size(self.bytes);
        write!(out, "{} {verb} ({size}), ", count_files(self.moved))?;
        writeln!(out, "{} there already, {} left, {} failed", self.same, self.left, self.failed)?;
        Ok(())
    }
}

fn count_files(count: u64) -> String {
    match count {
        1 => "1 file".to_owned(),
        _ => format!("{count} files"),
    }
}

/// Reads the policies of a directory.
///
/// # Errors
/// Those of getxattr(2).
pub fn read_policies(tree: &VolumeTree, dir: Ino) -> Result<Policies, Errno> {
    let mut policies = Policies::default();
    for row in &POLICIES {
        match tree.client().get_xattr(tree.cred(), dir, row.attribute().as_bytes()) {
            Ok(value) => {
                let value = String::from_utf8(value).ok().and_then(|text| (row.parse)(&text));
                policies.set_value(row.kind, value);
            }
            Err(Errno::ENODATA) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(policies)
}
