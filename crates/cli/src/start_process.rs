//! Starts background processes and waits until they are ready. A process reports that it is ready,
//! or why it failed, with one line over an inherited pipe. So the parent never polls.

use crate::error::{CommandFailure, CommandResult, ExitStatus, FailureContext};
use crate::process::DaemonRole;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tatami_cluster::trusted;

/// Longest wait for a process to be ready. A store that recovers from its log takes seconds.
const READY_TIMEOUT: Duration = Duration::from_secs(300);
/// Longest report, in bytes.
const REPLY_MAX: u64 = 64 << 10;
/// At its start, a process renames a log longer than this, in bytes.
const LOG_MAX: u64 = 16 << 20;
/// Lines of a log that a message shows.
const LOG_LINES_SHOWN: usize = 12;

#[derive(Serialize, Deserialize)]
enum StartReply {
    Ready,
    Failed { code: u8, what: String, causes: Vec<String>, remedy: Option<String> },
}

/// The child's end of the pipe. A process that the user starts directly has none.
#[derive(Debug, Default)]
pub struct ReadyPipe {
    pipe: Option<File>,
    /// Other inherited descriptors.
    inherited: Vec<OwnedFd>,
}

impl ReadyPipe {
    /// Takes over the descriptor that `--ready-fd` names, and detaches from the session of the
    /// terminal.
    ///
    /// # Errors
    /// A number that is no open descriptor.
    pub fn from_descriptor(fd: Option<i32>) -> CommandResult<ReadyPipe> {
        let Some(fd) = fd else { return Ok(ReadyPipe::default()) };
        if fd < 3 {
            return Err(CommandFailure::usage(format!("--ready-fd {fd}: it must be above 2")));
        }
        // SAFETY: nothing else in this process owns the descriptor. It was inherited for this
        // purpose, and the command line is read once. If the number is wrong, the first use fails
        // with EBADF.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        if fcntl_setfd(&fd, FdFlags::CLOEXEC).is_err() {
            std::mem::forget(fd);
            return Err(CommandFailure::usage("--ready-fd: no such descriptor"));
        }
        if let Err(error) = rustix::process::setsid() {
            tracing::debug!(%error, "it has a session of its own already");
        }
        let strangers = take_inherited(fd.as_raw_fd());
        Ok(ReadyPipe { pipe: Some(File::from(fd)), inherited: strangers })
    }

    /// Reports that the process is ready.
    pub fn report_ready(&mut self) {
        // A process with a pipe is a child of a command, which may be a service itself. Only a
        // process that systemd has started by itself is the service.
        if self.pipe.is_none()
            && let Err(error) = sd_notify::notify(&[sd_notify::NotifyState::Ready])
        {
            tracing::warn!(%error, "systemd did not receive that this process is ready");
        }
        self.send_reply(&StartReply::Ready);
        let strangers = std::mem::take(&mut self.inherited);
        if !strangers.is_empty() {
            // The inherited files would keep mounts busy as long as this process lives. Closing a
            // file of a mount waits for its daemon, which may be this process. So they are closed
            // only after the report, and on a thread of their own.
            let closer = std::thread::Builder::new().name("closer".into());
            if let Err(error) = closer.spawn(move || drop(strangers)) {
                tracing::warn!(%error, "inherited files stay open");
            }
        }
    }

    /// Reports why the process is not ready. Returns the failure for the log.
    pub fn report_failure(&mut self, failure: CommandFailure) -> CommandFailure {
        let (what, remedy) = (failure.what.clone(), failure.remedy.clone());
        let (code, causes) = (failure.exit.code(), failure.list_causes());
        self.send_reply(&StartReply::Failed { code, what, causes, remedy });
        failure
    }

    fn send_reply(&mut self, answer: &StartReply) {
        let Some(mut pipe) = self.pipe.take() else { return };
        let line = serde_json::to_string(answer).expect("answers are plain data");
        // The parent process may have ended; then no process waits.
        if let Err(error) = writeln!(pipe, "{line}") {
            tracing::debug!(%error, "no process waits for the report");
        }
    }
}

/// Returns the open files that the parent has passed on by accident: all above standard error but
/// `known`.
fn take_inherited(known: i32) -> Vec<OwnedFd> {
    let Ok(listing) = std::fs::read_dir("/proc/self/fd") else { return Vec::new() };
    let numbers = listing.flatten().filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok());
    // Collected before any is used: the listing itself has a descriptor, which is then closed.
    let numbers: Vec<i32> = numbers.filter(|n| *n > 2 && *n != known).collect();
    let is_open = |n: &i32| Path::new(&format!("/proc/self/fd/{n}")).symlink_metadata().is_ok();
    let open = numbers.into_iter().filter(is_open);
    // SAFETY: this runs before the process has opened any file, so nothing else owns these
    // descriptors.
    open.map(|n| unsafe { OwnedFd::from_raw_fd(n) }).collect()
}

/// A started process that has not reported yet. Dropping it kills the process.
#[derive(Debug)]
pub struct StartingProcess {
    name: String,
    child: Option<Child>,
    pipe: File,
    /// Its log, and the offset in it at which this process began.
    log: Option<(PathBuf, u64)>,
}

/// Starts this program again in the background. `role` names the process, and `name` is for
/// messages. `log` receives its standard error; `None` discards it.
///
/// # Errors
/// Those of the system.
pub fn start_background(
    role: DaemonRole,
    name: &str,
    arguments: &[OsString],
    log: Option<&Path>,
) -> CommandResult<StartingProcess> {
    let what = || format!("cannot start {name}");
    let log = match log {
        Some(path) => {
            let (mut file, from) = open_log(path)?;
            writeln!(file).context(what)?;
            Some((file, path.to_owned(), from))
        }
        None => None,
    };
    let (stderr, log) = match log {
        Some((file, path, from)) => (Stdio::from(file), Some((path, from))),
        None => (Stdio::null(), None),
    };
    let (reader, writer) =
        rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).context(what)?;
    // Only this child inherits the descriptor: the parent closes its end before it starts another
    // one.
    fcntl_setfd(&writer, fcntl_getfd(&writer).context(what)? - FdFlags::CLOEXEC).context(what)?;
    let child = Command::new("/proc/self/exe")
        .arg0(role.process_name())
        .args(arguments)
        .args(["--ready-fd", &writer.as_raw_fd().to_string()])
        // The process must not keep a directory busy.
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(stderr)
        .spawn()
        .context(what)?;
    drop(writer);
    Ok(StartingProcess { name: name.to_owned(), child: Some(child), pipe: File::from(reader), log })
}

impl StartingProcess {
    /// Its process number.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().map_or(0, Child::id)
    }

    /// Waits until the process is ready.
    ///
    /// # Errors
    /// The failure that the process reports. If it ended or stays silent, the end of its log.
    pub fn wait_ready(mut self) -> CommandResult {
        let text = match read_reply(&mut self.pipe) {
            Ok(text) => text,
            Err(why) => return Err(self.silence_failure(&why)),
        };
        match serde_json::from_str(&text) {
            Ok(StartReply::Ready) => {
                // The process now runs on its own; when this one ends, init inherits it.
                self.child = None;
                Ok(())
            }
            Ok(StartReply::Failed { code, what, causes, remedy }) => {
                let exit = match code {
                    2 => ExitStatus::Usage,
                    3 => ExitStatus::Degraded,
                    _ => ExitStatus::Failure,
                };
                let what = format!("{} does not start: {what}", self.name);
                let failure = CommandFailure::new(what).because_all(&causes);
                Err(CommandFailure { exit, remedy, ..failure })
            }
            Err(_) => Err(self.silence_failure("it ended before it was ready")),
        }
    }

    fn silence_failure(&self, why: &str) -> CommandFailure {
        let failure = CommandFailure::new(format!("{} does not start", self.name));
        let Some((log, from)) = &self.log else { return failure.because(why) };
        let last = last_lines(log, *from);
        let cause =
            if last.is_empty() { why.to_owned() } else { format!("{why}; its log ends:\n{last}") };
        failure.because(cause).try_this(format!("read {}", log.display()))
    }
}

impl Drop for StartingProcess {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // Both fail only if the process has already ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn read_reply(pipe: &mut File) -> Result<String, String> {
    let timeout = Timespec::try_from(READY_TIMEOUT).expect("five minutes fit");
    loop {
        match poll(&mut [PollFd::new(pipe, PollFlags::IN)], Some(&timeout)) {
            Ok(0) => return Err(format!("it is not ready after {} s", READY_TIMEOUT.as_secs())),
            Ok(_) => break,
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(format!("cannot wait for it: {e}")),
        }
    }
    // The child writes the line at once and then closes the pipe.
    let mut text = String::new();
    pipe.take(REPLY_MAX).read_to_string(&mut text).map_err(|e| e.to_string())?;
    Ok(text)
}

/// Opens a log and returns its length.
fn open_log(path: &Path) -> CommandResult<(File, u64)> {
    let what = || format!("log {}", path.display());
    let (dir, name) = trusted::open_parent(path)?;
    let open = || {
        let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE;
        // It names files of its user.
        dir.open_file(name, flags, Mode::RUSR | Mode::WUSR)
    };
    let mut file = open()?;
    if file.metadata().context(what)?.len() > LOG_MAX {
        dir.rename_file(name, &format!("{name}.old"))?;
        file = open()?;
    }
    let length = file.metadata().context(what)?.len();
    Ok((file, length))
}

/// Returns the last lines of a log, starting at offset `from` at the earliest.
fn last_lines(path: &Path, from: u64) -> String {
    let read = || -> std::io::Result<String> {
        let mut file = File::open(path)?;
        let start = from.max(file.metadata()?.len().saturating_sub(REPLY_MAX));
        file.seek(SeekFrom::Start(start))?;
        let mut bytes = Vec::new();
        file.take(REPLY_MAX).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    let text = read().unwrap_or_default();
    let lines: Vec<&str> = text.lines().filter(|line| !line.is_empty()).collect();
    lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_log_is_what_was_written_since() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("log");
        std::fs::write(&path, "old\n").expect("written");
        let (mut file, from) = open_log(&path).expect("opened");
        for n in 0..20 {
            writeln!(file, "line {n}").expect("written");
        }
        let text = last_lines(&path, from);
        assert_eq!(text.lines().count(), LOG_LINES_SHOWN);
        assert!(text.ends_with("line 19") && !text.contains("old"));
        assert_eq!(last_lines(&dir.path().join("absent"), 0), "");
    }
}
