//! A connection to `tatami host serve` on another host, over the user's own `ssh`, or over the
//! launcher of a batch job.

use crate::clock_offset::measure_offset;
use crate::error::{CommandFailure, CommandResult, ExitStatus, FailureContext};
use crate::interrupt::is_interrupted;
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant, SystemTime};
use tatami_hosts::batch_job::{is_left_out_for_srun, pbs_line, srun_words};
use tatami_hosts::host_protocol::{
    HostHello, HostOrder, HostReply, NOISE_MAX, REPLY_MAX, format_message, parse_greeting,
    parse_reply,
};
use tatami_hosts::machine::check_program;
use tatami_hosts::network::IpNetwork;
use tatami_wire::ProtocolRange;

/// Longest wait for the greeting, in which ssh connects and logs in.
const GREETING_WAIT: Duration = Duration::from_secs(60);
/// Longest wait for the end of the far side after its input is closed: it may undo its work.
const END_WAIT: Duration = Duration::from_secs(60);
/// Longest wait for the end of standard error after that.
const ERRORS_WAIT: Duration = Duration::from_millis(500);
/// A silent host is left this long after an interruption at the latest.
const INTERRUPT_PAUSE: Duration = Duration::from_millis(200);
/// Bytes of the end of ssh's standard error that are kept.
const ERRORS_KEPT: usize = 8 << 10;
/// Lines of it that a message shows.
const ERROR_LINES: usize = 3;
/// Exit codes of ssh itself, and of a shell that cannot run the program.
const EXIT_SSH: i32 = 255;
const EXIT_NO_PROGRAM: [i32; 2] = [126, 127];

/// The program that starts the far side on a host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum HostLauncher {
    /// `ssh`.
    #[default]
    Ssh,
    /// `ssh`, for as long as a batch job lasts.
    HeldSsh,
    /// The same in the PBS job with this id.
    PbsSsh(String),
    /// `srun`, in the Slurm job with this id.
    Srun(String),
}

/// How hosts are reached.
#[derive(Clone, Debug, Default)]
pub struct SshAccess {
    /// By which program.
    pub launcher: HostLauncher,
    /// Options in the form of ssh_config(5).
    pub options: Vec<String>,
    /// The path of `tatami` on the hosts; `None`: the path of this one, or its name.
    pub program: Option<String>,
    /// The network in which their nodes get addresses; `None`: that at which ssh reaches them.
    pub network: Option<IpNetwork>,
}

/// A conversation with the far side on one host. Dropping the session ends it. Then the far side
/// undoes its work, unless it has got the order to keep it.
pub struct HostSession {
    /// The name by which the user knows the host.
    pub host: String,
    /// The greeting of the far side.
    pub hello: HostHello,
    /// How far the host's clock is ahead, at least.
    pub clock_ahead_ms: i64,
    process: FarProcess,
}

struct FarProcess {
    /// The name of the program that started it.
    launcher: &'static str,
    child: Child,
    input: Option<ChildStdin>,
    output: ChildStdout,
    received: Vec<u8>,
    errors: Arc<Mutex<Vec<u8>>>,
    /// Is closed when standard error has ended.
    errors_end: mpsc::Receiver<()>,
}

/// Why no reply came.
enum SilenceCause {
    /// The connection ended.
    Ended,
    /// Nothing came in time.
    Timeout(Duration),
    /// A reply is not understood.
    Garbled(String),
    /// The user has interrupted this command.
    Interrupted,
}

impl SshAccess {
    /// Returns the command that runs the far side on a host.
    fn far_command(&self, host: &str) -> Command {
        if let HostLauncher::Srun(job) = &self.launcher {
            // Also for this machine: Slurm then sends the signals of the job to the far side.
            let mut command = Command::new("srun");
            command.args(srun_words(job, host, &self.far_line()));
            for (name, _) in std::env::vars_os() {
                if is_left_out_for_srun(&name.to_string_lossy()) {
                    command.env_remove(name);
                }
            }
            return command;
        }
        if is_this_machine(host) {
            let mut command = Command::new("/proc/self/exe");
            command.args(["host", "serve"]);
            command.env_remove("SSH_CONNECTION");
            // The orders bring the settings, as to all hosts.
            for (name, _) in std::env::vars_os() {
                if name.to_string_lossy().starts_with("TATAMI_") {
                    command.env_remove(name);
                }
            }
            return command;
        }
        let mut command = Command::new("ssh");
        // Of several values of an option, ssh takes the first: all but BatchMode can be changed.
        command.args(["-T", "-x", "-o", "BatchMode=yes"]);
        for option in &self.options {
            command.args(["-o", option]);
        }
        // The volume of a job is removed when a connection ends, so this one is patient.
        let alive_max = match self.launcher {
            HostLauncher::Ssh => "ServerAliveCountMax=3",
            HostLauncher::HeldSsh | HostLauncher::PbsSsh(_) | HostLauncher::Srun(_) => {
                "ServerAliveCountMax=18"
            }
        };
        for option in ["ConnectTimeout=10", "ServerAliveInterval=5", alive_max] {
            command.args(["-o", option]);
        }
        command.args(["--", host, &self.far_line()]);
        command
    }

    /// Returns the line for the login shell of a host, whichever that is. It has no word of a user
    /// but the path of the program, which has only plain characters.
    fn far_line(&self) -> String {
        let run = |program: &str| match &self.launcher {
            HostLauncher::PbsSsh(job) => pbs_line(job, program, "host serve"),
            HostLauncher::Ssh | HostLauncher::HeldSsh | HostLauncher::Srun(_) => {
                format!("exec {program} host serve")
            }
        };
        let own = std::env::current_exe().ok().and_then(|path| path.to_str().map(str::to_owned));
        let find = match (&self.program, own.filter(|path| check_program(path).is_ok())) {
            (Some(program), _) => format!("p={program}; "),
            (None, Some(path)) => format!("p={path}; test -x \"$p\" || p=tatami; "),
            (None, None) => "p=tatami; ".to_owned(),
        };
        format!("exec sh -c '{find}{}'", run("\"$p\""))
    }

    /// Returns the name of the program that starts the far side.
    fn launcher_name(&self) -> &'static str {
        match self.launcher {
            HostLauncher::Ssh | HostLauncher::HeldSsh | HostLauncher::PbsSsh(_) => "ssh",
            HostLauncher::Srun(_) => "srun",
        }
    }

    /// Starts the far side on a host and waits for its greeting.
    ///
    /// # Errors
    /// ssh cannot log in, or the program there is missing or of another version.
    pub fn open_session(&self, host: &str) -> CommandResult<HostSession> {
        let mut process = FarProcess::spawn_piped(self.far_command(host), self.launcher_name())?;
        let before = SystemTime::now();
        let hello = process.await_greeting().map_err(|cause| process.explain_end(host, &cause))?;
        let after = SystemTime::now();
        check_version(&hello)?;
        let clock_ahead_ms = measure_offset(hello.clock_ms, before, after);
        Ok(HostSession { host: host.to_owned(), hello, clock_ahead_ms, process })
    }
}

/// Whether `host` is the name of this machine, with its domain or without.
pub fn is_this_machine(host: &str) -> bool {
    let own = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let short = |name: &str| name.split('.').next().unwrap_or_default().to_owned();
    let may_be_short = !host.contains('.') || !own.contains('.');
    host == own || (may_be_short && short(host) == short(&own))
}

/// Checks that both sides have a version of the protocol in common, as daemons do.
fn check_version(hello: &HostHello) -> CommandResult {
    let ours = ProtocolRange::of_process();
    // Hosts of version 3 do not state the oldest one.
    let oldest = hello.oldest_wire.unwrap_or(hello.wire);
    if ours.includes(hello.wire) || (oldest..=hello.wire).contains(&ours.newest()) {
        return Ok(());
    }
    Err(CommandFailure::new(format!(
        "tatami there is version {} with protocol {}, and here {} with protocol {ours}",
        hello.version,
        hello.wire,
        env!("CARGO_PKG_VERSION"),
    ))
    .try_this("install the same version on all hosts; or name its path there: --program PATH"))
}

impl HostSession {
    /// Sends an order and waits for its reply.
    ///
    /// # Errors
    /// The far side reports a failure, or the connection is lost.
    pub fn order(&mut self, order: &HostOrder, within: Duration) -> CommandResult<HostReply> {
        let host = self.host.clone();
        let sent = self.process.send(format_message(order).as_bytes());
        let reply = sent.and_then(|()| self.process.await_reply(within));
        match reply.map_err(|cause| self.process.explain_end(&host, &cause))? {
            HostReply::Failed(failure) => {
                let report = CommandFailure::new(failure.what).because_all(&failure.causes);
                let exit = ExitStatus::from_code(failure.exit);
                Err(CommandFailure { exit, remedy: failure.remedy, ..report })
            }
            reply => Ok(reply),
        }
    }
}

impl HostSession {
    /// Closes the input of the far side. Without an order to keep its work, the far side begins to
    /// undo it.
    pub fn close_input(&mut self) {
        self.process.input = None;
    }

    /// Returns the output of the far side. Outside of an order it can be read only once the far
    /// side has ended.
    pub fn output(&self) -> BorrowedFd<'_> {
        self.process.output.as_fd()
    }

    /// Ends the connection without waiting for the far side, which may be gone.
    pub fn abandon(mut self) {
        // It fails only if the process has just ended.
        let _ = self.process.child.kill();
    }
}

impl FarProcess {
    fn spawn_piped(mut command: Command, launcher: &'static str) -> CommandResult<FarProcess> {
        let name = command.get_program().to_string_lossy().into_owned();
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // Ctrl-C at the terminal is for this process alone: the far side must live to undo its
        // part.
        command.process_group(0);
        let mut child = command.spawn().context(|| format!("cannot start {name}"))?;
        let no_pipe = || CommandFailure::new("a pipe is missing");
        let (input, output) = (child.stdin.take(), child.stdout.take().ok_or_else(no_pipe)?);
        let stderr = child.stderr.take().ok_or_else(no_pipe)?;
        let errors = Arc::new(Mutex::new(Vec::new()));
        let kept = errors.clone();
        let (at_end, errors_end) = mpsc::channel();
        std::thread::spawn(move || {
            keep_end(stderr, &kept);
            drop(at_end);
        });
        Ok(FarProcess { launcher, child, input, output, received: Vec::new(), errors, errors_end })
    }

    fn send(&mut self, bytes: &[u8]) -> Result<(), SilenceCause> {
        let input = self.input.as_mut().ok_or(SilenceCause::Ended)?;
        // It fails when the far side has ended: its last words say why.
        input.write_all(bytes).map_err(|_| SilenceCause::Ended)
    }

    fn await_greeting(&mut self) -> Result<HostHello, SilenceCause> {
        let deadline = Instant::now() + GREETING_WAIT;
        let mut skipped = 0;
        while skipped < NOISE_MAX {
            let line = self.receive_line(deadline, GREETING_WAIT)?;
            skipped += line.len() + 1;
            match parse_greeting(&line) {
                Ok(Some(hello)) => return Ok(hello),
                Ok(None) => {}
                Err(e) => return Err(SilenceCause::Garbled(e.to_string())),
            }
        }
        Err(SilenceCause::Garbled("its shell prints without end".to_owned()))
    }

    fn await_reply(&mut self, within: Duration) -> Result<HostReply, SilenceCause> {
        let line = self.receive_line(Instant::now() + within, within)?;
        parse_reply(&line).map_err(|e| SilenceCause::Garbled(e.to_string()))
    }

    fn receive_line(
        &mut self,
        deadline: Instant,
        limit: Duration,
    ) -> Result<Vec<u8>, SilenceCause> {
        loop {
            if let Some(end) = self.received.iter().position(|b| *b == b'\n') {
                let mut line: Vec<u8> = self.received.drain(..=end).collect();
                line.pop();
                return Ok(line);
            }
            if self.received.len() > REPLY_MAX {
                return Err(SilenceCause::Garbled("its reply has no end".to_owned()));
            }
            if is_interrupted() {
                return Err(SilenceCause::Interrupted);
            }
            let now = Instant::now();
            if now >= deadline {
                return Err(SilenceCause::Timeout(limit));
            }
            if matches!(self.receive_more(deadline.min(now + INTERRUPT_PAUSE)), Ok(false)) {
                return Err(SilenceCause::Ended);
            }
        }
    }

    /// Receives some bytes. Returns false at the end of the output, and fails at the deadline.
    fn receive_more(&mut self, deadline: Instant) -> Result<bool, ()> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let timeout = Timespec::try_from(left).ok();
            match poll(&mut [PollFd::new(&self.output, PollFlags::IN)], timeout.as_ref()) {
                Ok(0) => return Err(()),
                Ok(_) => break,
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => return Ok(false),
            }
        }
        let mut bytes = vec![0; 64 << 10];
        let count = self.output.read(&mut bytes).unwrap_or(0);
        self.received.extend_from_slice(&bytes[..count]);
        Ok(count > 0)
    }

    /// Closes the input of the far side, and waits until it has ended. Returns its exit code.
    fn end_process(&mut self) -> Option<i32> {
        self.input = None;
        let deadline = Instant::now() + END_WAIT;
        while matches!(self.receive_more(deadline), Ok(true)) {
            self.received.clear();
        }
        if Instant::now() >= deadline {
            // It fails only if the process has just ended.
            let _ = self.child.kill();
        }
        let code = self.child.wait().ok().and_then(|status| status.code());
        // A process that ssh leaves behind for later connections keeps standard error open.
        let _ = self.errors_end.recv_timeout(ERRORS_WAIT);
        code
    }

    /// Returns the reason for which no reply came.
    fn explain_end(&mut self, host: &str, cause: &SilenceCause) -> CommandFailure {
        match cause {
            SilenceCause::Garbled(what) => {
                return CommandFailure::new("its tatami is not understood")
                    .because(what.clone())
                    .try_this(format!("install the same version there; look: ssh {host} true"));
            }
            SilenceCause::Timeout(limit) => {
                return CommandFailure::new(format!("no answer within {} s", limit.as_secs()));
            }
            SilenceCause::Interrupted => {
                let exit = ExitStatus::Interrupted;
                return CommandFailure { exit, ..CommandFailure::new("interrupted") };
            }
            SilenceCause::Ended => {}
        }
        let code = self.end_process();
        let said = String::from_utf8_lossy(&self.errors.lock()).into_owned();
        describe_end(self.launcher, host, code, &said)
    }
}

impl Drop for FarProcess {
    fn drop(&mut self) {
        self.end_process();
    }
}

/// Keeps the end of what arrives.
fn keep_end(mut from: impl Read, kept: &Mutex<Vec<u8>>) {
    let mut bytes = [0; 1024];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        let mut kept = kept.lock();
        kept.extend_from_slice(&bytes[..count]);
        let more = kept.len().saturating_sub(ERRORS_KEPT);
        kept.drain(..more);
    }
}

/// Returns a failure for the end of the far side: its exit code, and its last words.
fn describe_end(launcher: &str, host: &str, code: Option<i32>, said: &str) -> CommandFailure {
    let lines: Vec<&str> = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let last = lines[lines.len().saturating_sub(ERROR_LINES)..].join("\n");
    let because = |failure: CommandFailure| match last.is_empty() {
        true => failure,
        false => failure.because(last.clone()),
    };
    let is_ssh = launcher == "ssh";
    let by_hand = match is_ssh {
        true => format!("try it by hand: ssh -o BatchMode=yes {host} true"),
        false => format!("try it by hand: srun --overlap -N 1 -n 1 -w {host} true"),
    };
    match code {
        Some(EXIT_SSH) if is_ssh => {
            let (what, remedy) = if said.contains("verification failed")
                || said.contains("IDENTIFICATION HAS CHANGED")
            {
                (
                    "ssh does not trust the key of this host",
                    format!(
                        "compare the key, and then record it: ssh-keygen -R {host}; ssh {host} true"
                    ),
                )
            } else if said.contains("Permission denied") {
                (
                    "ssh cannot log in without a password",
                    format!("give it a key: ssh-copy-id {host}; or start ssh-agent"),
                )
            } else {
                ("ssh does not reach this host", by_hand)
            };
            because(CommandFailure::new(what)).try_this(remedy)
        }
        Some(code) if EXIT_NO_PROGRAM.contains(&code) => because(CommandFailure::new(
            "tatami is not found there",
        ))
        .try_this("install the same version on all hosts; or name its path there: --program PATH"),
        _ if said.contains("unrecognized subcommand") => {
            CommandFailure::new("tatami there is of an earlier version")
                .try_this("install the same version on all hosts; or name its path: --program PATH")
        }
        Some(_) if said.contains("srun: error: ") => {
            because(CommandFailure::new("srun does not reach this host")).try_this(by_hand)
        }
        Some(code) => {
            because(CommandFailure::new(format!("tatami there ended with exit code {code}")))
                .try_this(by_hand)
        }
        None => because(CommandFailure::new(format!("{launcher} was killed"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tatami_wire::{OLDEST_PROTOCOL, PROTOCOL_VERSION};

    #[test]
    fn hosts_work_together_if_their_versions_overlap() {
        let says = |oldest: Option<u32>, newest: u32| {
            let hello = format!(
                r#"{{"version":"x","wire":{newest},"oldest_wire":{},"name":"","machine":"",
                "clock_ms":0,"user":0,"address":null}}"#,
                oldest.map_or("null".to_owned(), |oldest| oldest.to_string())
            );
            check_version(&serde_json::from_str(&hello).expect("a greeting")).is_ok()
        };
        assert!(says(Some(OLDEST_PROTOCOL), PROTOCOL_VERSION) && says(None, OLDEST_PROTOCOL));
        assert!(says(Some(PROTOCOL_VERSION), PROTOCOL_VERSION + 1));
        assert!(!says(Some(PROTOCOL_VERSION + 1), PROTOCOL_VERSION + 2));
        assert!(!says(None, PROTOCOL_VERSION + 1) && !says(None, OLDEST_PROTOCOL - 1));
    }

    #[test]
    fn ends_of_ssh_are_explained() {
        let said = |code, text: &str| describe_end("ssh", "n1", Some(code), text).report();
        let key = said(255, "@@@\nHost key verification failed.\n");
        assert!(
            key.contains("does not trust the key") && key.contains("ssh-keygen -R n1"),
            "{key}"
        );
        let login = said(255, "root@n1: Permission denied (publickey).\r\n");
        assert!(
            login.contains("without a password") && login.contains("ssh-copy-id n1"),
            "{login}"
        );
        let away = said(255, "ssh: connect to host n1 port 22: No route to host\n");
        assert!(away.contains("does not reach") && away.contains("No route to host"), "{away}");
        assert!(said(127, "sh: 1: exec: tatami: not found").contains("--program PATH"));
        assert!(said(2, "error: unrecognized subcommand 'host'").contains("earlier version"));
        assert!(said(9, "").contains("exit code 9"));
        let srun = describe_end("srun", "n1", Some(1), "srun: error: Invalid job id specified\n");
        let srun = srun.report();
        assert!(srun.contains("srun does not reach") && srun.contains("Invalid job id"), "{srun}");
    }

    #[test]
    fn options_of_the_user_come_before_those_of_tatami() {
        let options = vec!["ConnectTimeout=77".to_owned()];
        let command = SshAccess { options, ..SshAccess::default() }.far_command("elsewhere.test");
        let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy()).collect();
        let place = |text: &str| words.iter().position(|word| word == text).expect("an option");
        assert!(place("ConnectTimeout=77") < place("ConnectTimeout=10"), "{words:?}");
    }

    #[test]
    fn the_line_for_a_shell_has_no_words_of_others() {
        let access = SshAccess { program: Some("/opt/tatami".to_owned()), ..SshAccess::default() };
        assert_eq!(access.far_line(), "exec sh -c 'p=/opt/tatami; exec \"$p\" host serve'");
        assert_eq!(SshAccess::default().far_line().matches('\'').count(), 2);
        let launcher = HostLauncher::PbsSsh("17".to_owned());
        let line = SshAccess { launcher, ..access }.far_line();
        assert!(line.contains("pbs_attach") && line.matches('\'').count() == 2, "{line}");
    }
}
