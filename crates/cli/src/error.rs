//! The one error type that a user sees: the failure, its cause, and the next step.

use crate::term;
use crate::user_name::describe_user;
use rustix::process::geteuid;
use std::error::Error;
use std::fmt;
use std::io;
use tatami_cluster::trusted::TrustError;

/// How a command ends, for scripts. The man page lists these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitStatus {
    /// Something failed.
    Failure,
    /// The command line or the configuration is wrong.
    Usage,
    /// A daemon or the volume cannot be reached, or is not healthy.
    Degraded,
    /// A number that the command defines itself, such as those of fsck(8).
    Code(u8),
    /// The reader of the output has gone. The command prints no message, as after `SIGPIPE`.
    Quiet,
    /// The user has interrupted the command.
    Interrupted,
}

impl ExitStatus {
    /// Returns the exit code for the shell.
    pub fn code(self) -> u8 {
        match self {
            ExitStatus::Failure => 1,
            ExitStatus::Usage => 2,
            ExitStatus::Degraded => 3,
            ExitStatus::Code(code) => code,
            ExitStatus::Quiet => 128 + 13,
            ExitStatus::Interrupted => 128 + 2,
        }
    }

    /// Returns the status with this exit code, for the failure of another process. It always has a
    /// message, and is never a success.
    pub fn from_code(code: u8) -> ExitStatus {
        let known = [ExitStatus::Usage, ExitStatus::Degraded, ExitStatus::Interrupted];
        let other = if code > 1 { ExitStatus::Code(code) } else { ExitStatus::Failure };
        known.into_iter().find(|status| status.code() == code).unwrap_or(other)
    }
}

/// A failure, its cause and a remedy.
#[derive(Debug)]
pub struct CommandFailure {
    /// The exit code.
    pub exit: ExitStatus,
    /// The failed operation, with the path, node or address concerned.
    pub what: String,
    /// The cause.
    pub cause: Option<Box<dyn Error + Send + Sync>>,
    /// The remedy.
    pub remedy: Option<String>,
}

/// The result of a command.
pub type CommandResult<T = ()> = Result<T, CommandFailure>;

impl CommandFailure {
    /// Returns a failure without a known cause.
    pub fn new(what: impl Into<String>) -> CommandFailure {
        CommandFailure { exit: ExitStatus::Failure, what: what.into(), cause: None, remedy: None }
    }

    /// The command line or the configuration is wrong.
    pub fn usage(what: impl Into<String>) -> CommandFailure {
        CommandFailure { exit: ExitStatus::Usage, ..CommandFailure::new(what) }
    }

    /// Returns a failure because a node or the volume is not reachable or not healthy.
    pub fn degraded(what: impl Into<String>) -> CommandFailure {
        CommandFailure { exit: ExitStatus::Degraded, ..CommandFailure::new(what) }
    }

    /// Adds the cause.
    pub fn because(mut self, cause: impl Into<Box<dyn Error + Send + Sync>>) -> CommandFailure {
        self.cause = Some(cause.into());
        self
    }

    /// Adds the remedy.
    pub fn try_this(mut self, remedy: impl Into<String>) -> CommandFailure {
        self.remedy = Some(remedy.into());
        self
    }

    /// Returns the texts of the cause and of its own causes, for another process.
    pub fn list_causes(&self) -> Vec<String> {
        let mut causes = Vec::new();
        let mut next = self.cause.as_deref().map(|e| e as &dyn Error);
        while let Some(e) = next {
            causes.push(e.to_string());
            next = e.source();
        }
        causes
    }

    /// Sets the cause to texts from another process, if there are any.
    pub fn because_all(mut self, causes: &[String]) -> CommandFailure {
        if !causes.is_empty() {
            self.cause = Some(causes.join("\n").into());
        }
        self
    }

    /// Returns the whole message, several lines.
    pub fn report(&self) -> String {
        let mut text = format!("tatami: {}", self.what);
        let mut cause = self.cause.as_deref().map(|e| e as &dyn Error);
        // Many errors repeat the text of their source; a repeated sentence is left out.
        let mut said = self.what.clone();
        while let Some(e) = cause {
            let line = e.to_string();
            if !said.contains(&line) {
                text.push_str("\n  cause: ");
                text.push_str(&line.replace('\n', "\n         "));
                said.push_str(&line);
            }
            cause = e.source();
        }
        if let Some(remedy) = &self.remedy {
            text.push_str("\n  try:   ");
            text.push_str(&remedy.replace('\n', "\n         "));
        }
        text
    }
}

impl fmt::Display for CommandFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.report())
    }
}

/// Keeps the first failure for the exit code and prints the others at once.
pub fn keep_first(result: &mut CommandResult, failure: CommandFailure) {
    match result {
        Ok(()) => *result = Err(failure),
        Err(_) => term::print_error(&failure.report()),
    }
}

/// I/O errors without a better text come from writing to standard output.
impl From<io::Error> for CommandFailure {
    fn from(e: io::Error) -> CommandFailure {
        if e.kind() == io::ErrorKind::BrokenPipe {
            return CommandFailure { exit: ExitStatus::Quiet, ..CommandFailure::new("") };
        }
        CommandFailure::new("cannot write the output").because(e)
    }
}

/// A command never uses a directory that other users could have filled.
impl From<TrustError> for CommandFailure {
    fn from(e: TrustError) -> CommandFailure {
        let remedy = match &e {
            TrustError::Io { .. } => None,
            TrustError::Owner { owner, .. } if geteuid().is_root() => Some(format!(
                "name a directory of your own: --dir DIR; or run this as the owner of this one: \
                 sudo -u '#{owner}' tatami ..."
            )),
            TrustError::Owner { owner, .. } => Some(format!(
                "name a directory of your own: --dir DIR; or ask {}, the owner of this one",
                describe_user(*owner)
            )),
            _ => Some("name another directory: --dir DIR".to_owned()),
        };
        let failure = match e {
            TrustError::Io { path, what, source } => {
                CommandFailure::new(format!("cannot {what} {}", path.display())).because(source)
            }
            other => CommandFailure::new(other.to_string()),
        };
        CommandFailure { remedy, ..failure }
    }
}

/// Adds the attempted operation to an error.
pub trait FailureContext<T> {
    /// Turns the error into the cause of a failure with the headline `what`.
    fn context(self, what: impl FnOnce() -> String) -> CommandResult<T>;
}

impl<T, E: Into<Box<dyn Error + Send + Sync>>> FailureContext<T> for Result<T, E> {
    fn context(self, what: impl FnOnce() -> String) -> CommandResult<T> {
        self.map_err(|e| CommandFailure::new(what()).because(e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_has_what_why_and_what_to_do() {
        let e = CommandFailure::degraded("node 0 is not there")
            .because(io::Error::from_raw_os_error(111))
            .try_this("tatami up");
        assert_eq!(e.exit.code(), 3);
        let text = e.report();
        assert!(text.starts_with("tatami: node 0 is not there\n  cause: Connection refused"));
        assert!(text.ends_with("\n  try:   tatami up"), "{text}");
    }

    #[test]
    fn the_exit_code_of_another_process_is_kept() {
        for status in [ExitStatus::Failure, ExitStatus::Usage, ExitStatus::Degraded] {
            assert_eq!(ExitStatus::from_code(status.code()), status);
        }
        assert_eq!(ExitStatus::from_code(4), ExitStatus::Code(4));
        assert_eq!(ExitStatus::from_code(0), ExitStatus::Failure);
        assert_eq!(ExitStatus::from_code(130), ExitStatus::Interrupted);
    }

    #[test]
    fn a_cause_that_repeats_the_headline_is_left_out() {
        let e = CommandFailure::new("open /x: gone").because("gone");
        assert_eq!(e.report(), "tatami: open /x: gone");
    }
}
