//! The keeper of a job's volume: a process on the machine on which `tatami job up` was called. It
//! holds a connection to each host of the job. A host removes its part of the volume when its
//! connection ends. So the volume ends with the keeper, and the keeper with the job.

use crate::error::CommandResult;
use crate::host_group;
use crate::hosts_up::{self, HostsPlan};
use crate::interrupt::{self, END_SIGNALS, SignalPipe};
use crate::job_options::{self, JobOptions};
use crate::job_remains::{self, JobCleaner};
use crate::keeper_note::KeeperNote;
use crate::keys::name;
use crate::leased_input::{BEAT_INTERVAL, LEASE};
use crate::process::{DaemonRole, ProcessRecord, RunningProcess};
use crate::ssh_session::HostSession;
use crate::start_process::ReadyPipe;
use crate::volume_dir::VolumeDir;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tatami_hosts::host_protocol::HostOrder;

/// How often the keeper looks whether the command that started it still waits for it.
const PARENT_PAUSE: Duration = Duration::from_secs(1);

/// `tatami job keep`
#[derive(Debug, clap::Args)]
pub struct JobKeepArgs {
    #[command(flatten)]
    options: JobOptions,
    /// The directory of the volume
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// The process that waits for the volume
    #[arg(long, value_name = "PID")]
    parent: i32,
    /// The volume ends with this process
    #[arg(long, value_name = "PID")]
    until: Vec<i32>,
    #[arg(long, hide = true)]
    ready_fd: Option<i32>,
}

/// Makes the volume and keeps it until the job, or one of the processes of `--until`, ends.
///
/// # Errors
/// A host fails.
pub fn run(args: &JobKeepArgs) -> CommandResult {
    let mut ready = ReadyPipe::from_descriptor(args.ready_fd)?;
    DaemonRole::Keeper.name_this_process();
    let signals = SignalPipe::install(&END_SIGNALS)?;
    let find = |pid: &i32| ProcessRecord::of_process(*pid).find_running();
    let until: Vec<RunningProcess> = args.until.iter().filter_map(find).collect();
    let parent = find(&args.parent);
    let is_ready = Arc::new(AtomicBool::new(false));
    watch_parent(parent, is_ready.clone());
    let cleaner = job_remains::make_job_dir(&args.dir).and_then(|()| JobCleaner::start(&args.dir));
    let cleaner = cleaner.map_err(|failure| ready.report_failure(failure))?;
    let sessions = match create_volume(args) {
        Ok(sessions) => sessions,
        Err(failure) => {
            // The command that waits returns when all is gone.
            drop(cleaner);
            return Err(ready.report_failure(failure));
        }
    };
    is_ready.store(true, Ordering::Relaxed);
    ready.report_ready();
    let sessions = hold_sessions(sessions, &signals, &until);
    end_sessions(sessions);
    drop(cleaner);
    Ok(())
}

/// Interrupts the start of the volume when the command that waits for it has ended.
fn watch_parent(parent: Option<RunningProcess>, is_ready: Arc<AtomicBool>) {
    std::thread::spawn(move || {
        let ends = |parent: &RunningProcess| parent.wait_for_end(PARENT_PAUSE);
        while !parent.as_ref().is_none_or(ends) {
            if is_ready.load(Ordering::Relaxed) {
                return;
            }
        }
        if !is_ready.load(Ordering::Relaxed) {
            interrupt::request_interrupt();
        }
    });
}

fn create_volume(args: &JobKeepArgs) -> CommandResult<Vec<HostSession>> {
    let job = job_options::find_job()?;
    let place: VolumeDir = args.options.open_dir(&args.dir)?;
    let mount = job_options::mount_path(&args.dir).display().to_string();
    let plan = HostsPlan {
        place: &place,
        hosts: job.hosts.clone(),
        access: args.options.access_hosts(&job),
        allow_missing: 0,
        mounts: place.config.bool_value(name::MOUNT_ENABLED),
        for_all_users: false,
        remembered: vec![(name::MOUNT_PATH.to_owned(), mount)],
        job: Some(job.id.clone()),
    };
    let (_, sessions) = hosts_up::create_held_volume(&plan)?;
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let note = KeeperNote { job: job.id, host, process: Some(ProcessRecord::of_self()) };
    match note.save(&args.dir) {
        Ok(()) => Ok(sessions),
        Err(failure) => {
            end_sessions(sessions);
            Err(failure)
        }
    }
}

/// Gives signs of life to all hosts, until the job ends: a signal, the end of a process of `until`,
/// or the end of all connections. Returns those that are left.
fn hold_sessions(
    mut sessions: Vec<HostSession>,
    signals: &SignalPipe,
    until: &[RunningProcess],
) -> Vec<HostSession> {
    let mut next = Instant::now() + BEAT_INTERVAL;
    while !sessions.is_empty() {
        let mut watched: Vec<BorrowedFd> = until.iter().map(RunningProcess::descriptor).collect();
        watched.extend(sessions.iter().map(HostSession::output));
        let left = next.saturating_duration_since(Instant::now());
        let (has_signal, ready) = signals.wait_beside(&watched, left);
        let (ended, closed) = ready.split_at(until.len());
        if has_signal || interrupt::is_interrupted() || ended.contains(&true) {
            break;
        }
        // Nothing was ordered, so this is the end of the far side. The others go on: the job may
        // do without a host.
        let mut closed = closed.iter();
        let (lost, kept) =
            sessions.into_iter().partition(|_| closed.next().copied().unwrap_or_default());
        end_sessions(lost);
        sessions = kept;
        if Instant::now() >= next {
            let (_, faults) = host_group::order_all(&mut sessions, LEASE, |_| HostOrder::Beat);
            for session in faults.into_iter().filter_map(|mut fault| fault.take_session()) {
                if interrupt::is_interrupted() {
                    sessions.push(session);
                } else {
                    session.abandon();
                }
            }
            next = Instant::now() + BEAT_INTERVAL;
        }
    }
    sessions
}

/// Ends all sessions side by side, and waits until the hosts have removed their parts.
fn end_sessions(mut sessions: Vec<HostSession>) {
    sessions.iter_mut().for_each(HostSession::close_input);
    std::thread::scope(|scope| {
        for session in sessions {
            scope.spawn(move || drop(session));
        }
    });
}
