//! Finds out why a node cannot be reached, as far as this machine can see, and names a remedy. Each
//! case looks like a stopped daemon. For most of them `tatami up` does not help.

use crate::daemon_files;
use crate::volume_dir::VolumeDir;
use std::io::ErrorKind;
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::fs::MetadataExt;
use std::time::Duration;
use tatami_client::connection::ConnectError;
use tatami_cluster::NodeEntry;

/// Longest wait for a port to answer.
const PORT_TIMEOUT: Duration = Duration::from_secs(1);

/// The cause and the remedy of a node that cannot be reached; see the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Absence {
    /// The cause, as a part of a sentence.
    pub why: String,
    /// The remedy.
    pub remedy: String,
    /// The daemon accepted the request and did not reply in time. It may be busy.
    pub is_silence: bool,
}

impl Absence {
    /// Returns an absence with a known cause, which is not mere silence.
    pub fn new(why: String, remedy: String) -> Absence {
        Absence { why, remedy, is_silence: false }
    }

    /// Finds the cause of a failed connection to the node.
    pub fn from_connect_error(
        place: &VolumeDir,
        entry: &NodeEntry,
        error: &ConnectError,
    ) -> Absence {
        let flag = place.dir_flag();
        let socket_failed = match error {
            ConnectError::Unreachable { endpoint, source } => {
                endpoint.local_socket().map(|_| source.kind())
            }
            ConnectError::Handshake { .. } => None,
        };
        if !error.is_transient() {
            return Absence::new(
                error.to_string(),
                format!("see its log, {}", daemon_files::log_file(&entry.dir).display()),
            );
        }
        if socket_failed == Some(ErrorKind::PermissionDenied) {
            let owner = [&entry.socket, &entry.dir, &place.dir];
            let owner = owner.iter().find_map(|path| path.metadata().ok()).map(|m| m.uid());
            let owner = owner.map_or("another user".to_owned(), |uid| format!("user {uid}"));
            return Absence::new(
                format!("the volume belongs to {owner} and is not open to others: {error}"),
                format!(
                    "ask that user to set mount.allow_other = true in {} and to restart the volume \
                     (tatami down, then tatami up); or make a volume of your own: tatami up \
                     --dir DIR",
                    place.dir.join("tatami.toml").display()
                ),
            );
        }
        let process = daemon_files::running_daemon(entry);
        let no_socket = [Some(ErrorKind::NotFound), Some(ErrorKind::ConnectionRefused)];
        if no_socket.contains(&socket_failed)
            && place.is_here(entry)
            && (process.is_some() || port_answers(&entry.address))
        {
            return Absence::new(
                format!(
                    "its socket {} is missing, although its port {} answers",
                    entry.socket.display(),
                    entry.address
                ),
                format!(
                    "restart it: tatami node stop --force{flag} {}, then tatami up{flag}",
                    entry.name
                ),
            );
        }
        if let Some(process) = process {
            return Absence::new(
                format!("its daemon (process {}) runs and does not answer ({error})", process.pid),
                format!(
                    "see its log, {}; to end it: tatami node stop --force{flag} {}",
                    daemon_files::log_file(&entry.dir).display(),
                    entry.name
                ),
            );
        }
        if !place.is_here(entry) {
            return Absence::new(
                format!("down, or unreachable from here ({error})"),
                advise_elsewhere(place, entry),
            );
        }
        Absence::new(format!("down ({error})"), format!("to start stopped nodes: tatami up{flag}"))
    }

    /// Returns the absence of a node that accepted the request and did not reply within `timeout`.
    pub fn from_timeout(place: &VolumeDir, entry: &NodeEntry, timeout: Duration) -> Absence {
        let silent = format!("silent for {} s", timeout.as_secs());
        let why = match daemon_files::running_daemon(entry) {
            Some(process) => {
                format!("its daemon (process {}) runs and does not answer ({silent})", process.pid)
            }
            None => silent,
        };
        let remedy = match place.is_here(entry) {
            true => format!(
                "see its log, {}; to end it: tatami node stop --force{} {}",
                daemon_files::log_file(&entry.dir).display(),
                place.dir_flag(),
                entry.name
            ),
            false => advise_elsewhere(place, entry),
        };
        Absence { why, remedy, is_silence: true }
    }
}

/// Returns the remedy for a node of another machine: from here, if that is reached by ssh.
fn advise_elsewhere(place: &VolumeDir, entry: &NodeEntry) -> String {
    let flag = place.dir_flag();
    let machine = place.load_machine().ok().flatten();
    match machine.as_ref().and_then(|machine| machine.host_of(entry.id)) {
        Some(host) => format!(
            "{0} is on the host {1}: is it up, and does ssh reach it? If its daemon is down: \
            tatami node start{flag} {0}",
            entry.name, host.name
        ),
        None => format!(
            "{0} is on another machine, {1}; run there: tatami status{flag}; if it is down: \
            tatami node start{flag} {0}",
            entry.name, entry.address
        ),
    }
}

/// Whether a process accepts connections at this address.
fn port_answers(address: &str) -> bool {
    let Ok(addresses) = address.to_socket_addrs() else { return false };
    addresses.into_iter().any(|at| TcpStream::connect_timeout(&at, PORT_TIMEOUT).is_ok())
}
