//! Logging to standard error. For a background process that is its log file.

use crate::config::{ValueOrigin, VolumeConfig};
use crate::error::{CommandFailure, CommandResult};
use crate::keys::name;
use parking_lot::Mutex;
use std::io::{self, IsTerminal, Write};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

/// Starts logging with the filter of the configuration. Commands log only if `log` is set, daemons
/// always.
///
/// # Errors
/// A `log` value that is no filter.
pub fn start_logging(config: &VolumeConfig, daemon: bool) -> CommandResult {
    let (value, origin) = config.get(name::LOG);
    if !daemon && *origin == ValueOrigin::Default {
        return Ok(());
    }
    let filter = EnvFilter::try_new(value.to_string()).map_err(|e| {
        CommandFailure::usage(format!("{origin}: `log` is not a filter: {value}"))
            .because(e)
            .try_this("for example info, debug, or info,tatami_node=debug")
    })?;
    let terminal = std::io::stderr().is_terminal();
    let started = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(LossyLog::new(std::io::stderr()))
        // The subscriber would report failed writes on standard error, and panic if that fails too.
        // On a full disk, each thread that logs would panic.
        .log_internal_errors(false)
        .with_ansi(terminal && std::env::var_os("NO_COLOR").is_none())
        .try_init();
    if started.is_err() {
        tracing::debug!("logging had been started already");
    }
    Ok(())
}

/// Writes lines to a log that may refuse them, for example on a full disk. A line that cannot be
/// written is dropped, and the next written line is preceded by the number of dropped ones.
struct LossyLog<W>(Mutex<LossyLogState<W>>);

struct LossyLogState<W> {
    to: W,
    /// Lines dropped since the last written one.
    dropped: u64,
    /// The log ends in the middle of a line.
    torn: bool,
}

impl<W: Write> LossyLog<W> {
    fn new(to: W) -> LossyLog<W> {
        LossyLog(Mutex::new(LossyLogState { to, dropped: 0, torn: false }))
    }
}

impl<W: Write> LossyLogState<W> {
    fn write_line(&mut self, line: &[u8]) {
        let mut notice = Vec::new();
        if self.torn {
            notice.push(b'\n');
        }
        if self.dropped > 0 {
            let n = self.dropped;
            notice
                .extend(format!("{n} lines of this log could not be written here\n").into_bytes());
        }
        let mut rest = &[&notice, line].concat()[..];
        while !rest.is_empty() {
            match self.to.write(rest) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Ok(0) | Err(_) => {
                    self.dropped += 1;
                    return;
                }
                Ok(n) => {
                    self.torn = rest[n - 1] != b'\n';
                    rest = &rest[n..];
                }
            }
        }
        self.dropped = 0;
    }
}

/// The writer of one line.
struct LogLineWriter<'a, W>(&'a Mutex<LossyLogState<W>>);

impl<W: Write> Write for LogLineWriter<'_, W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.lock().write_line(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a, W: Write + 'a> MakeWriter<'a> for LossyLog<W> {
    type Writer = LogLineWriter<'a, W>;

    fn make_writer(&'a self) -> LogLineWriter<'a, W> {
        LogLineWriter(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk with `room` free bytes.
    struct Disk {
        room: usize,
        bytes: Vec<u8>,
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let n = bytes.len().min(self.room);
            if n == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.room -= n;
            self.bytes.extend_from_slice(&bytes[..n]);
            Ok(n)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_that_a_full_disk_does_not_take_are_counted_and_the_next_begins_a_line() {
        let log = LossyLog::new(Disk { room: 9, bytes: Vec::new() });
        let say = |line: &str| log.make_writer().write_all(line.as_bytes()).expect("never fails");
        say("first\n");
        say("second\n");
        say("third\n");
        log.0.lock().to.room = 1000;
        say("fourth\n");
        say("fifth\n");
        let note = String::from_utf8(log.0.lock().to.bytes.clone()).expect("text");
        let expected = "first\nsec\n2 lines of this log could not be written here\nfourth\nfifth\n";
        assert_eq!(note, expected);
    }
}
