//! `tatami job`: a volume on the hosts of a batch job, which lives as long as the job.

use crate::error::{CommandFailure, CommandResult, ExitStatus, FailureContext};
use crate::interrupt::SignalPipe;
use crate::job_keeper::{self, JobKeepArgs};
use crate::job_options::{self, JobOptions};
use crate::job_remains;
use crate::keeper_note::KeeperNote;
use crate::keys::name;
use crate::process::{DaemonRole, RunningProcess};
use crate::ssh_session::HostLauncher;
use crate::start_process;
use crate::term::{self, HEAD, TermOutput};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};
use serde::Serialize;
use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tatami_hosts::batch_job::BatchJob;

/// Longest wait for the end of a volume.
const END_WAIT: Duration = Duration::from_secs(180);
/// Pause between two looks for signals and for the end of the command.
const COMMAND_PAUSE: Duration = Duration::from_secs(60);
/// The signals that `job run` passes on to its command.
const PASSED_ON: [libc::c_int; 6] =
    [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT, libc::SIGUSR1, libc::SIGUSR2];
/// Those that a terminal sends to the command, too.
const OF_TERMINAL: [libc::c_int; 2] = [libc::SIGINT, libc::SIGQUIT];

/// Processes of Slurm, one for each allocation or step.
const OF_SLURM: [&str; 2] = ["salloc", "slurmstepd"];

/// `tatami job`
#[derive(Debug, clap::Subcommand)]
pub enum JobCommand {
    /// Start a volume on the hosts of this batch job, which ends with the job
    #[command(after_help = "\
Examples:
  tatami job up
  tatami job up --scratch /local
  eval \"$(tatami job up --export)\"     and then: cd $TATAMI_MOUNT

Each host of the job has one node, in a directory with the name of the job below --scratch,
and a mount at DIR/mnt. The volume is ready when this returns. When the job ends, in
whatever way, all of it is removed: copy results to a lasting place before.
Called again in the same job, it prints the same paths.")]
    Up(JobUpArgs),
    /// Remove the volume of this batch job, with all its files
    #[command(after_help = "\
Examples:
  tatami job down
  tatami job down --scratch /local

Programs that still use it get errors. Without this command, the end of the job does the same.")]
    Down(JobDownArgs),
    /// Run a command with a volume on the hosts of this batch job
    #[command(after_help = "\
Examples:
  tatami job run -- srun ./simulation
  tatami job run --metrics -- sh -c 'cd $TATAMI_MOUNT && mpirun ./simulation && cp out ~'

The command finds the volume at $TATAMI_MOUNT. Signals are passed on to it, and the exit
code is that of the command: 128 and the number of the signal that killed it. When it
ends, the volume is removed with all its files.")]
    Run(JobRunArgs),
    /// Keep the volume of a job
    #[command(hide = true)]
    Keep(JobKeepArgs),
}

/// `tatami job up`
#[derive(Debug, clap::Args)]
pub struct JobUpArgs {
    #[command(flatten)]
    options: JobOptions,
    /// Print one JSON object
    #[arg(long, conflicts_with = "export")]
    json: bool,
    /// Print a line for the shell: export TATAMI_DIR=… TATAMI_MOUNT=…
    #[arg(long)]
    export: bool,
}

/// `tatami job down`
#[derive(Debug, clap::Args)]
pub struct JobDownArgs {
    /// The --scratch of `tatami job up` [default: where TATAMI_DIR is, or else TMPDIR, or /tmp]
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    scratch: Option<PathBuf>,
}

/// `tatami job run`
#[derive(Debug, clap::Args)]
pub struct JobRunArgs {
    #[command(flatten)]
    options: JobOptions,
    /// Print the state and the counters of all nodes when the command has ended, as `tatami status
    /// --json` does
    #[arg(long)]
    metrics: bool,
    /// The command and its arguments
    #[arg(required = true, last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// The result of `tatami job up`. `--json` prints it.
#[derive(Serialize)]
struct JobReport {
    job: String,
    dir: String,
    mount: Option<String>,
    hosts: Vec<String>,
    /// Whether this call has started it.
    new: bool,
}

/// Runs a subcommand.
///
/// # Errors
/// This is no batch job, or a host fails.
pub fn run(command: &JobCommand) -> CommandResult {
    match command {
        JobCommand::Up(args) => start_for_job(args),
        JobCommand::Down(args) => end_for_job(args),
        JobCommand::Run(args) => run_in_job(args),
        JobCommand::Keep(args) => job_keeper::run(args),
    }
}

fn start_for_job(args: &JobUpArgs) -> CommandResult {
    let job = job_options::find_job()?;
    let report = ensure_volume(&job, &args.options, false)?;
    let mut out = TermOutput::new();
    if args.json {
        let text = serde_json::to_string_pretty(&report).context(|| "--json".to_owned())?;
        writeln!(out, "{text}")?;
    } else if args.export {
        let mount = report.mount.as_ref();
        let mount = mount.map(|path| format!(" TATAMI_MOUNT={}", quote_for_shell(path)));
        let dir = quote_for_shell(&report.dir);
        writeln!(out, "export TATAMI_DIR={dir}{}", mount.unwrap_or_default())?;
    } else {
        let did = if report.new { "runs" } else { "ran already" };
        let hosts = report.hosts.len();
        let plural = if hosts == 1 { "" } else { "s" };
        let head = format!("The volume of job {} {did} on {hosts} host{plural}.", report.job);
        writeln!(out, "{}", out.paint_text(HEAD, &head))?;
        writeln!(out, "  directory  {}, on each host", report.dir)?;
        match &report.mount {
            Some(path) => writeln!(out, "  mounted at {path}, on each host")?,
            None => writeln!(out, "  not mounted")?,
        }
        writeln!(out, "  it is removed at the end of the job, or by: tatami job down")?;
    }
    out.flush()?;
    Ok(())
}

/// Starts the volume of the job, unless it runs. If `until_end`, it ends with this process.
fn ensure_volume(
    job: &BatchJob,
    options: &JobOptions,
    until_end: bool,
) -> CommandResult<JobReport> {
    let dir = options.find_scratch()?.join(job.dir_name());
    let place = options.open_dir(&dir)?;
    crate::log::start_logging(&place.config, false)?;
    let is_new = !KeeperNote::load(&dir).is_some_and(|note| note.job == job.id && note.is_kept());
    if is_new {
        let own = std::process::id().to_string();
        let mut arguments: Vec<OsString> = ["job", "keep", "--dir"].map(Into::into).into();
        arguments.extend([dir.clone().into(), "--parent".into(), OsString::from(&own)]);
        if until_end {
            arguments.extend(["--until".into(), own.into()]);
        } else if !matches!(options.access_hosts(job).launcher, HostLauncher::Srun(_)) {
            // Without a step of the job, other processes show its end.
            for pid in list_signs_of_end() {
                arguments.extend(["--until".into(), pid.to_string().into()]);
            }
        }
        arguments.extend(options.to_arguments());
        let name = format!("the volume of job {}", job.id);
        let spinner = term::new_spinner("starting the volume of the job");
        let keeper = start_process::start_background(DaemonRole::Keeper, &name, &arguments, None)?;
        let result = keeper.wait_ready();
        spinner.finish_and_clear();
        result?;
    }
    let is_mounted = place.config.bool_value(name::MOUNT_ENABLED);
    Ok(JobReport {
        job: job.id.clone(),
        mount: is_mounted.then(|| job_options::mount_path(&dir).display().to_string()),
        dir: dir.display().to_string(),
        hosts: job.hosts.clone(),
        new: is_new,
    })
}

/// Returns processes that end with the job: the leader of this process's session, such as the shell
/// of a PBS job, and the processes of Slurm that started this one.
fn list_signs_of_end() -> Vec<i32> {
    // SAFETY: getsid(2) with zero only returns the session of this process.
    let leader = unsafe { libc::getsid(0) };
    let own = i32::try_from(std::process::id()).unwrap_or_default();
    let mut found = Vec::from_iter((leader > 0 && leader != own).then_some(leader));
    let mut pid = own;
    while let Some(parent) = find_parent(pid) {
        let name = std::fs::read_to_string(format!("/proc/{parent}/comm")).unwrap_or_default();
        if OF_SLURM.contains(&name.trim_end()) {
            found.push(parent);
        }
        pid = parent;
    }
    found
}

/// Returns the parent of a process; `None` for the first one.
fn find_parent(pid: i32) -> Option<i32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
    line.trim().parse().ok().filter(|parent| *parent > 0)
}

fn quote_for_shell(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

fn end_for_job(args: &JobDownArgs) -> CommandResult {
    let job = job_options::find_job()?;
    let name = job.dir_name();
    let exported = std::env::var_os("TATAMI_DIR").map(PathBuf::from);
    let exported = exported.filter(|dir| args.scratch.is_none() && dir.ends_with(&name));
    let dir = match exported {
        Some(dir) => dir,
        None => job_options::find_scratch(args.scratch.as_deref())?.join(&name),
    };
    let is_gone = remove_volume(&job, &dir)?;
    let mut out = TermOutput::new();
    match is_gone {
        true => writeln!(out, "The volume of job {} is removed.", job.id)?,
        false => writeln!(out, "Job {} has no volume in {}.", job.id, dir.display())?,
    }
    out.flush()?;
    Ok(())
}

/// Ends the keeper of a volume, and waits until all of the volume is gone. Returns false if there
/// was none.
fn remove_volume(job: &BatchJob, dir: &Path) -> CommandResult<bool> {
    if dir.symlink_metadata().is_err() {
        return Ok(false);
    }
    let note = KeeperNote::load(dir);
    if let Some(KeeperNote { host, process: None, .. }) = &note {
        return Err(CommandFailure::degraded(format!(
            "the volume of job {} is kept by another host, {host}",
            job.id
        ))
        .try_this(format!("run there: tatami job down; for example: ssh {host} …")));
    }
    if let Some(keeper) = note.and_then(|note| note.find_running()) {
        end_keeper(job, &keeper)?;
    }
    // The keeper may have been killed.
    let scratch = dir.parent().unwrap_or(Path::new("/")).to_owned();
    job_remains::remove_job(Some(&job.id), &[scratch])?;
    Ok(true)
}

fn end_keeper(job: &BatchJob, keeper: &RunningProcess) -> CommandResult {
    let spinner = term::new_spinner("removing the volume of the job");
    keeper.send_signal(Signal::TERM);
    let has_ended = keeper.wait_for_end(END_WAIT);
    spinner.finish_and_clear();
    match has_ended {
        true => Ok(()),
        false => Err(CommandFailure::degraded(format!(
            "the volume of job {} is not gone after {} s",
            job.id,
            END_WAIT.as_secs()
        ))
        .because(format!("its keeper, process {}, still waits for a host", keeper.pid))),
    }
}

fn run_in_job(args: &JobRunArgs) -> CommandResult {
    let job = job_options::find_job()?;
    let report = ensure_volume(&job, &args.options, true)?;
    let dir = PathBuf::from(&report.dir);
    let result = run_command(args, &report);
    if args.metrics {
        print_metrics(&dir);
    }
    // A volume of `tatami job up` stays.
    if report.new
        && let Err(failure) = remove_volume(&job, &dir)
    {
        term::print_error(&failure.report());
    }
    match result? {
        0 => Ok(()),
        // The command has printed its own messages.
        code => Err(CommandFailure {
            exit: ExitStatus::Code(u8::try_from(code).unwrap_or(ExitStatus::Failure.code())),
            ..CommandFailure::new("")
        }),
    }
}

/// Runs the command and passes signals on to it. Returns its exit code as a shell does.
fn run_command(args: &JobRunArgs, report: &JobReport) -> CommandResult<i32> {
    let (program, arguments) = args.command.split_first().expect("clap asks for one");
    let signals = SignalPipe::install(&PASSED_ON)?;
    let mut command = Command::new(program);
    command.args(arguments).env("TATAMI_DIR", &report.dir);
    if let Some(mount) = &report.mount {
        command.env("TATAMI_MOUNT", mount);
    }
    let failed = || format!("cannot run {}", program.display());
    let mut child = command.spawn().context(failed)?;
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| CommandFailure::new(failed()))?;
    let process = pidfd_open(pid, PidfdFlags::empty()).context(failed)?;
    let by_terminal = std::io::stdin().is_terminal();
    loop {
        let (has_signal, ready) = signals.wait_beside(&[process.as_fd()], COMMAND_PAUSE);
        if has_signal {
            for signal in signals.take_signals() {
                // A terminal sends it to the command, too; twice is more than once for srun.
                if by_terminal && OF_TERMINAL.contains(&signal) {
                    continue;
                }
                // SAFETY: the child has not been waited for, so the number is its own. It fails
                // only if the child has ended.
                unsafe { libc::kill(pid.as_raw_nonzero().get(), signal) };
            }
        }
        if ready[0] {
            break;
        }
    }
    let status = child.wait().context(failed)?;
    let by_signal = || status.signal().map_or(ExitStatus::Failure.code().into(), |s| 128 + s);
    Ok(status.code().unwrap_or_else(by_signal))
}

fn print_metrics(dir: &Path) {
    let mut status = Command::new("/proc/self/exe");
    status.args(["status", "--json", "--dir"]).arg(dir);
    if let Err(error) = status.status() {
        term::print_note(&format!("the counters of the nodes cannot be read: {error}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_one_word_for_a_shell() {
        for path in ["/tmp/a b", "/tmp/it's", "/tmp/$(true)"] {
            let line = format!("printf %s {}", quote_for_shell(path));
            let said = Command::new("sh").args(["-c", &line]).output().expect("a shell");
            assert_eq!(String::from_utf8_lossy(&said.stdout), path);
        }
    }
}
