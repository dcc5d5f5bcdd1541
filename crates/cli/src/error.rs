//! The one error that a user sees: what happened, why, and what to do next.

use std::error::Error;
use std::fmt;
use std::io;
use tatami_cluster::trusted::TrustError;

/// How a command ends, for scripts. The man page lists these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Something failed.
    Failure,
    /// The command line or the configuration is wrong.
    Usage,
    /// A daemon or the volume cannot be reached, or is not in good health.
    Degraded,
    /// A number that the command defines itself, such as those of fsck(8).
    Code(u8),
    /// Whoever read our output has gone. Nothing to say, as after `SIGPIPE`.
    Quiet,
}

impl Exit {
    /// The number given to the shell.
    pub fn code(self) -> u8 {
        match self {
            Exit::Failure => 1,
            Exit::Usage => 2,
            Exit::Degraded => 3,
            Exit::Code(code) => code,
            Exit::Quiet => 128 + 13,
        }
    }
}

/// What went wrong, why, and what to do about it.
#[derive(Debug)]
pub struct Failure {
    /// The exit code.
    pub exit: Exit,
    /// What did not work, with the path, node or address concerned.
    pub what: String,
    /// Why not.
    pub cause: Option<Box<dyn Error + Send + Sync>>,
    /// What the user can do.
    pub remedy: Option<String>,
}

/// What commands return.
pub type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    /// A failure without a known cause.
    pub fn new(what: impl Into<String>) -> Failure {
        Failure { exit: Exit::Failure, what: what.into(), cause: None, remedy: None }
    }

    /// The command line or the configuration is wrong.
    pub fn usage(what: impl Into<String>) -> Failure {
        Failure { exit: Exit::Usage, ..Failure::new(what) }
    }

    /// Somebody is not there.
    pub fn degraded(what: impl Into<String>) -> Failure {
        Failure { exit: Exit::Degraded, ..Failure::new(what) }
    }

    /// With its cause.
    pub fn because(mut self, cause: impl Into<Box<dyn Error + Send + Sync>>) -> Failure {
        self.cause = Some(cause.into());
        self
    }

    /// With what to do next.
    pub fn try_this(mut self, remedy: impl Into<String>) -> Failure {
        self.remedy = Some(remedy.into());
        self
    }

    /// The whole message, several lines.
    pub fn report(&self) -> String {
        let mut text = format!("tatami: {}", self.what);
        let mut cause = self.cause.as_deref().map(|e| e as &dyn Error);
        // The same sentence twice helps nobody: many errors repeat their source.
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

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.report())
    }
}

/// Errors without a better text come from writing to standard output.
impl From<io::Error> for Failure {
    fn from(e: io::Error) -> Failure {
        if e.kind() == io::ErrorKind::BrokenPipe {
            return Failure { exit: Exit::Quiet, ..Failure::new("") };
        }
        Failure::new("cannot write the output").because(e)
    }
}

/// A directory in which others can have put what they like is never used.
impl From<TrustError> for Failure {
    fn from(e: TrustError) -> Failure {
        let remedy = match &e {
            TrustError::Io { .. } => None,
            TrustError::Owner { owner, .. } => Some(format!(
                "name a directory of your own: --dir DIR; or run this as the user that it belongs to: \
                 sudo -u '#{owner}' tatami ..."
            )),
            _ => Some("name another directory: --dir DIR".to_owned()),
        };
        let failure = match e {
            TrustError::Io { path, what, source } => {
                Failure::new(format!("cannot {what} {}", path.display())).because(source)
            }
            other => Failure::new(other.to_string()),
        };
        Failure { remedy, ..failure }
    }
}

/// Adds what was tried to an error.
pub trait Context<T> {
    /// `what` becomes the headline, the error its cause.
    fn context(self, what: impl FnOnce() -> String) -> Outcome<T>;
}

impl<T, E: Into<Box<dyn Error + Send + Sync>>> Context<T> for Result<T, E> {
    fn context(self, what: impl FnOnce() -> String) -> Outcome<T> {
        self.map_err(|e| Failure::new(what()).because(e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_has_what_why_and_what_to_do() {
        let e = Failure::degraded("node 0 is not there")
            .because(io::Error::from_raw_os_error(111))
            .try_this("tatami up");
        assert_eq!(e.exit.code(), 3);
        let text = e.report();
        assert!(text.starts_with("tatami: node 0 is not there\n  cause: Connection refused"));
        assert!(text.ends_with("\n  try:   tatami up"), "{text}");
    }

    #[test]
    fn a_cause_that_repeats_the_headline_is_left_out() {
        let e = Failure::new("open /x: gone").because("gone");
        assert_eq!(e.report(), "tatami: open /x: gone");
    }
}
