//! `tatami relayout` in the background: a process of its own, and its progress notes for
//! `--status`.
//!
//! The notes lie beside those of mounts: below `/run/tatami`, or below the runtime directory of an
//! ordinary user. They name files, so only their user and the superuser can read them.

use crate::error::{CommandFailure, CommandResult, FailureContext};
use crate::json::{NameFields, wide_number};
use crate::process::ProcessRecord;
use crate::term::{self, BAD, HEAD, TermOutput};
use crate::user_name::describe_user;
use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags};
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};
use tatami_cluster::mount_note::note_dirs;
use tatami_cluster::trusted::{self, TrustedDir};

/// Shortest interval between two writes of the progress.
const WRITE_INTERVAL: Duration = Duration::from_millis(200);
/// How long a note is kept after its process has ended.
const KEEP_TIME: Duration = Duration::from_secs(24 * 3600);
/// Longest note that is read, in bytes.
const NOTE_MAX: u64 = 1 << 20;
/// Most failures in one note.
const FAILURES_MAX: usize = 100;

/// The state of one background process, as its note file stores it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RelayoutNote {
    /// The paths on its command line, as bytes.
    paths: Vec<Vec<u8>>,
    /// The file that it copies now, as bytes.
    file: Vec<u8>,
    /// Size of that file and the bytes copied so far.
    size: u64,
    copied: u64,
    /// Files that were re-laid out, and files that had the wanted layout already.
    changed: u64,
    same: u64,
    /// Files that stay where they are, for example because a program has them open.
    #[serde(default)]
    left: u64,
    /// The failures, one sentence each.
    failures: Vec<String>,
    /// The process has finished all its files.
    ended: bool,
    process: ProcessRecord,
}

/// A note file that this process keeps up to date.
#[derive(Debug)]
pub struct RelayoutNoteFile {
    path: PathBuf,
    state: Mutex<(RelayoutNote, Instant)>,
}

impl RelayoutNoteFile {
    /// Creates the note at `path` and detaches this process from the terminal. Then it writes the
    /// process id to standard output, where the starting command waits for it.
    ///
    /// # Errors
    /// The note cannot be written.
    pub fn create_detached(path: &Path, paths: Vec<Vec<u8>>) -> CommandResult<RelayoutNoteFile> {
        if let Err(error) = rustix::process::setsid() {
            tracing::debug!(%error, "it has a session of its own already");
        }
        let (file, failures, process) = (Vec::new(), Vec::new(), ProcessRecord::of_self());
        let (size, copied, changed, same, left) = (0, 0, 0, 0, 0);
        let ended = false;
        let note = RelayoutNote {
            paths,
            file,
            size,
            copied,
            changed,
            same,
            left,
            failures,
            ended,
            process,
        };
        let notes = RelayoutNoteFile {
            path: path.to_path_buf(),
            state: Mutex::new((note, Instant::now())),
        };
        notes.update_note(true, |_| {})?;
        // The command that waits for this line may have ended.
        let _ = writeln!(std::io::stdout(), "{}", notes.state.lock().0.process.pid);
        Ok(notes)
    }

    fn update_note(&self, now: bool, change: impl FnOnce(&mut RelayoutNote)) -> CommandResult {
        let mut state = self.state.lock();
        change(&mut state.0);
        if !now && state.1.elapsed() < WRITE_INTERVAL {
            return Ok(());
        }
        state.1 = Instant::now();
        let what = || format!("note {}", self.path.display());
        let text = toml::to_string(&state.0).context(what)?;
        let own = Mode::RUSR | Mode::WUSR;
        Ok(trusted::replace_file(&self.path, text.as_bytes(), own, false)?)
    }

    /// Updates the note and ignores failures: a stale note is no reason to stop the copy.
    fn try_update_note(&self, now: bool, change: impl FnOnce(&mut RelayoutNote)) {
        if let Err(failure) = self.update_note(now, change) {
            tracing::debug!("{}", failure.what);
        }
    }

    /// Records the start of a file of `size` bytes. A repeated attempt starts the file again.
    pub fn begin_file(&self, name: &[u8], size: u64) {
        self.try_update_note(true, |note| {
            (note.file, note.size, note.copied) = (name.to_owned(), size, 0);
        });
    }

    /// Adds `bytes` to the copied bytes of the current file.
    pub fn add_copied(&self, bytes: u64) {
        self.try_update_note(false, |note| note.copied += bytes);
    }

    /// Records a finished file.
    pub fn record_file(&self, changed: bool) {
        self.try_update_note(false, |note| {
            *(if changed { &mut note.changed } else { &mut note.same }) += 1;
        });
    }

    /// Records a file that stays where it is.
    pub fn record_left(&self) {
        self.try_update_note(false, |note| note.left += 1);
    }

    /// Records a failure.
    pub fn record_failure(&self, failure: &CommandFailure) {
        self.try_update_note(true, |note| {
            if note.failures.len() < FAILURES_MAX {
                note.failures.push(failure.report());
            }
        });
    }

    /// Records that all files are finished.
    pub fn mark_ended(&self) {
        self.try_update_note(true, |note| note.ended = true);
    }
}

fn relayout_dir(place: &Path) -> PathBuf {
    place.join("relayout")
}

/// Returns a path for a new note, in the first directory that this user can write to.
fn new_note_path() -> CommandResult<PathBuf> {
    let mut last = None;
    for place in note_dirs() {
        let place = relayout_dir(&place);
        match TrustedDir::open_or_create(&place, Mode::RWXU) {
            Ok(_) if rustix::fs::access(&place, rustix::fs::Access::WRITE_OK).is_ok() => {
                // Release 0.1.0 made it readable for all.
                let own = std::fs::Permissions::from_mode(0o700);
                std::fs::set_permissions(&place, own)
                    .context(|| format!("directory {}", place.display()))?;
                remove_old_notes(&place);
                let id = std::process::id();
                let since = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_millis();
                return Ok(place.join(format!("{since}.{id}.toml")));
            }
            Ok(_) => {}
            Err(error) => last = Some(error),
        }
    }
    let failure =
        CommandFailure::new("there is no directory for the progress of background processes");
    Err(match last {
        Some(error) => failure.because(error),
        None => failure,
    })
}

fn remove_old_notes(place: &Path) {
    for StoredNote { path, is_running, .. } in read_notes(place) {
        let age = path.metadata().and_then(|meta| meta.modified()).ok();
        let old = age.and_then(|at| at.elapsed().ok()).is_some_and(|age| age > KEEP_TIME);
        if old && !is_running {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// A note and its file.
struct StoredNote {
    path: PathBuf,
    /// The user of the process.
    owner: u32,
    note: RelayoutNote,
    /// The process lived when the note was read.
    is_running: bool,
}

impl StoredNote {
    /// Reads a note that belongs to this user; the superuser reads those of all.
    fn read(path: PathBuf) -> Option<StoredNote> {
        let (owner, note) = StoredNote::read_file(&path)?;
        let is_running = note.process.find_running().is_some();
        // The process may have written its last note after this one was read, and ended then.
        let (owner, note) = match is_running {
            true => (owner, note),
            false => StoredNote::read_file(&path)?,
        };
        Some(StoredNote { path, owner, note, is_running })
    }

    fn read_file(path: &Path) -> Option<(u32, RelayoutNote)> {
        // Another user may have put anything there, such as a pipe without a writer.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = std::fs::File::from(rustix::fs::open(path, flags, Mode::empty()).ok()?);
        let meta = file.metadata().ok()?;
        let (owner, me) = (meta.uid(), geteuid());
        if !meta.is_file() || !(me.is_root() || owner == me.as_raw()) {
            return None;
        }
        let mut text = String::new();
        file.take(NOTE_MAX).read_to_string(&mut text).ok()?;
        Some((owner, toml::from_str(&text).ok()?))
    }

    /// Returns the state in one word.
    fn state_name(&self) -> &'static str {
        match (self.note.ended, self.note.failures.is_empty()) {
            (true, true) => "done",
            (true, false) => "failed",
            (false, _) if self.is_running => "running",
            (false, _) => "died",
        }
    }
}

fn read_notes(place: &Path) -> Vec<StoredNote> {
    let Ok(entries) = std::fs::read_dir(place) else { return Vec::new() };
    entries.flatten().filter_map(|entry| StoredNote::read(entry.path())).collect()
}

/// Returns the directories of notes: those of this user; for the superuser, those of all users.
fn list_note_places() -> Vec<PathBuf> {
    let mut places = note_dirs();
    if geteuid().is_root() {
        let below = |dir: &str| std::fs::read_dir(dir).into_iter().flatten().flatten();
        let is_of_user =
            |name: &std::ffi::OsStr| name.to_str().is_some_and(|n| n.starts_with("tatami-"));
        places.extend(below("/run/user").map(|user| user.path().join("tatami")));
        places
            .extend(below("/tmp").filter(|e| is_of_user(&e.file_name())).map(|entry| entry.path()));
    }
    places.sort();
    places.dedup();
    places.iter().map(|place| relayout_dir(place)).collect()
}

/// Starts this command again in the background, with `--report` in place of `--background`. Returns
/// its process id.
///
/// # Errors
/// Those of the system; `--background` behind the first file; a note that cannot be written.
pub fn start_background() -> CommandResult<i32> {
    let note = new_note_path()?;
    let mut report = OsString::from("--report=");
    report.push(&note);
    let mut arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    match arguments.iter().position(|argument| argument == "--background" || argument == "--") {
        Some(at) if arguments[at] == "--background" => arguments[at] = report,
        _ => return Err(CommandFailure::usage("--background must come before the files")),
    }
    let what = || "cannot start a background process".to_owned();
    let program = std::env::current_exe().context(what)?;
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().context(what)?;
    let mut line = String::new();
    if let Some(out) = child.stdout.take() {
        BufReader::new(out).read_line(&mut line).context(what)?;
    }
    line.trim().parse().map_err(|_| {
        CommandFailure::new(what()).because(format!("it could not write {}", note.display()))
    })
}

/// As [`start_background`], and says so.
///
/// # Errors
/// As [`start_background`].
pub fn continue_in_background() -> CommandResult {
    let process = start_background()?;
    let mut out = TermOutput::new();
    writeln!(
        out,
        "process {process} continues in the background; its progress: tatami relayout --status"
    )?;
    out.flush()?;
    Ok(())
}

/// Prints the progress and the results of the background processes of this user, or, for the
/// superuser, of all users.
///
/// # Errors
/// Those of writing.
pub fn print_status(json: bool) -> CommandResult {
    let mut all: Vec<_> = list_note_places().iter().flat_map(|place| read_notes(place)).collect();
    // The name of a note begins with its time.
    all.sort_by(|a, b| a.path.file_name().cmp(&b.path.file_name()));
    let mut out = TermOutput::new();
    if json {
        let reported = |stored: &StoredNote| {
            let StoredNote { owner, note, .. } = stored;
            let named = |path: &Vec<u8>| NameFields::new("path", &path[..]);
            let mut value = serde_json::json!({
                "user": owner,
                "pid": note.process.pid,
                "state": stored.state_name(),
                "paths": note.paths.iter().map(named).collect::<Vec<_>>(),
                "size": wide_number(note.size),
                "copied": wide_number(note.copied),
                "changed": note.changed,
                "same": note.same,
                "left": note.left,
                "failures": note.failures,
            });
            NameFields::new("file", &note.file[..]).add_to(&mut value);
            value
        };
        out.write_json(
            &serde_json::json!({ "relayouts": all.iter().map(reported).collect::<Vec<_>>() }),
        )?;
    } else if all.is_empty() {
        writeln!(out, "No relayout runs in the background, and none ended in the last 24 hours.")?;
    }
    for stored in all.iter().filter(|_| !json) {
        stored.note.print_note(stored.owner, stored.state_name(), &mut out)?;
    }
    out.flush()?;
    Ok(())
}

impl RelayoutNote {
    fn print_note(&self, owner: u32, state: &str, out: &mut TermOutput) -> CommandResult {
        let of_user = match owner == geteuid().as_raw() {
            true => String::new(),
            false => format!(" of {}", describe_user(owner)),
        };
        let paths: Vec<_> = self.paths.iter().map(|path| term::escape_name(path)).collect();
        let title = format!("process {}{of_user}, {}", self.process.pid, paths.join(" "));
        let title = out.paint_text(HEAD, &title);
        let files = |count: u64, what: &str| match count {
            1 => format!("1 file {what}"),
            _ => format!("{count} files {what}"),
        };
        let mut parts = vec![match state {
            "running" if self.size > 0 => {
                let percent = self.copied.min(self.size).saturating_mul(100) / self.size;
                let (file, size) = (term::escape_name(&self.file), term::format_size(self.size));
                format!("at {file}, {percent} % of {size}")
            }
            "died" if self.file.is_empty() => "died; each file is whole".to_owned(),
            "died" => format!("died; {} is unchanged", term::escape_name(&self.file)),
            state => state.to_owned(),
        }];
        parts.push(files(self.changed, "changed"));
        if self.same > 0 {
            parts.push(format!("{} had this layout already", self.same));
        }
        if self.left > 0 {
            parts.push(format!("{} left where they are", self.left));
        }
        writeln!(out, "{title}: {}", parts.join("; "))?;
        for failure in &self.failures {
            let text = out.paint_text(BAD, &term::escape_name(failure.as_bytes()));
            writeln!(out, "  {text}")?;
        }
        Ok(())
    }
}
