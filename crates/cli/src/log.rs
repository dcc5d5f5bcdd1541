//! Logging: to standard error, which of a process in the background is its log file.

use crate::config::{Config, Origin};
use crate::error::{Failure, Outcome};
use crate::keys::name;
use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;

/// Starts logging as the configuration says. Commands log only if somebody
/// asked for it; daemons always.
///
/// # Errors
/// A `log` value that is no filter.
pub fn start(config: &Config, daemon: bool) -> Outcome {
    let (value, origin) = config.get(name::LOG);
    if !daemon && *origin == Origin::Default {
        return Ok(());
    }
    let filter = EnvFilter::try_new(value.to_string()).map_err(|e| {
        Failure::usage(format!("{origin}: `log` is not a filter: {value}"))
            .because(e)
            .try_this("for example info, debug, or info,tatami_node=debug")
    })?;
    let terminal = std::io::stderr().is_terminal();
    let started = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(terminal && std::env::var_os("NO_COLOR").is_none())
        .try_init();
    if started.is_err() {
        tracing::debug!("logging had been started already");
    }
    Ok(())
}
