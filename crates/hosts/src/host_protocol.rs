//! The protocol between a `tatami` that starts a volume on several hosts, and the `tatami` that it
//! runs on each by ssh. They exchange lines over standard input and output: first a greeting of the
//! far side, then an order and its reply, one after the other. Each line is one JSON value.
//!
//! The greeting is `tatami-host`, the version of the protocol, and a [`HostHello`]. Lines before it
//! come from the login shell and are skipped. Both sides must have the same version.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::io::{self, BufRead};
use std::net::IpAddr;

/// The version of the protocol.
pub const HOST_PROTOCOL: u32 = 1;
/// The first word of the greeting.
const GREETING: &str = "tatami-host";
/// Longest line with an order, in bytes: it may have a `volume.toml`.
pub const ORDER_MAX: usize = 32 << 20;
/// Longest line with a greeting or a reply, in bytes. A reply may have a `volume.toml`, too.
pub const REPLY_MAX: usize = 32 << 20;
/// Most bytes that are skipped before the greeting.
pub const NOISE_MAX: usize = 64 << 10;

/// Why a line is not understood.
#[derive(Debug, thiserror::Error)]
pub enum HostProtocolError {
    /// The pipe failed.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// A line is too long.
    #[error("a line has more than {0} bytes")]
    TooLong(usize),
    /// The far side has another version of the protocol.
    #[error("it speaks version {0} of the protocol between hosts, and this tatami {HOST_PROTOCOL}")]
    Version(String),
    /// A line is no message of the protocol.
    #[error("not a message of the protocol between hosts: {0}")]
    Invalid(#[from] serde_json::Error),
}

/// The greeting of the far side: its machine and its program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostHello {
    /// The version of `tatami`.
    pub version: String,
    /// The newest version of the protocol between daemons.
    pub wire: u32,
    /// The oldest one. A program that speaks one version only does not state it.
    #[serde(default)]
    pub oldest_wire: Option<u32>,
    /// The name that the machine gives itself.
    pub name: String,
    /// Its machine id, or an empty text.
    pub machine: String,
    /// The address at which ssh reached it; `None` without ssh.
    pub address: Option<String>,
    /// Its addresses that other machines may reach.
    #[serde(default)]
    pub addresses: Vec<IpAddr>,
    /// Its clock, in milliseconds since 1970.
    pub clock_ms: u64,
    /// The user that the far side runs as.
    pub user: u32,
}

/// A secret that no log shows.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SecretText(pub String);

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretText")
    }
}

/// An order to the far side. All orders of a connection are about one volume, that of the first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HostOrder {
    /// Opens the directory of the volume and checks the machine. → `Checked`
    Check(CheckOrder),
    /// Finds a free port at an address of the machine. → `Port`
    FindPort {
        /// The address.
        address: String,
    },
    /// Writes the files of the volume. → `Done`
    LayOut(LayOutOrder),
    /// Starts the daemons of this machine that do not run. → `Changed`: how many
    StartNodes {
        /// The nodes; without any, all of this machine.
        nodes: Vec<u16>,
    },
    /// Mounts the nodes of this machine that are not mounted. → `Mounted`
    Mount,
    /// Checks that no program uses the mounts of this machine. → `Done`
    CheckIdle,
    /// Ends the mounts of this machine. → `Changed`: how many
    Unmount {
        /// Also those that programs use.
        force: bool,
    },
    /// Stops daemons of this machine. → `Changed`: how many
    StopNodes {
        /// The nodes; without any, all of this machine.
        nodes: Vec<u16>,
        /// Kills a daemon that does not end by itself.
        force: bool,
    },
    /// Removes the files of a stopped node that was taken out of the volume, and those of the
    /// volume. → `Done`
    Erase {
        /// The node.
        node: u16,
    },
    /// Keeps what the orders of this connection have made. Without this order, its end undoes it.
    /// → `Done`
    Keep,
    /// Keeps what the orders of this connection have made as long as the connection lives: the
    /// volume of a batch job. From now on a side that is silent too long counts as gone. → `Done`
    Hold {
        /// The name of the machine that holds the connections.
        keeper: String,
    },
    /// A sign of life. → `Done`
    Beat,
    /// Ends the mounts that the orders of this connection have made. A mount ends at once while all
    /// daemons run. → `Done`
    UndoMounts,
    /// Undoes the rest that the orders of this connection have made. → `Done`
    Undo,
}

/// The first order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckOrder {
    /// The directory of the volume.
    pub dir: String,
    /// A text in a file of that directory, if it is the directory of the side that orders.
    pub token: String,
    /// The id of the volume; `None` for a new one.
    pub volume: Option<String>,
    /// Whether the machine is to mount the volume.
    pub mounts: bool,
    /// Settings: names of keys and their values, as flags.
    pub settings: Vec<(String, String)>,
    /// The batch job to which a new volume belongs. Its directory, which has the name of the job,
    /// is made anew and removed at the end.
    #[serde(default)]
    pub job: Option<String>,
}

/// The files of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayOutOrder {
    /// `volume.toml`.
    pub volume: String,
    /// `machine.toml`.
    pub machine: String,
    /// The content of the key file; `None` if the machine has it.
    pub key: Option<SecretText>,
    /// The authorities of an encrypted volume, with their private keys: the machine makes its own
    /// certificate. `None` if it has the file, or the volume is not encrypted.
    #[serde(default)]
    pub certificates: Option<SecretText>,
    /// `tatami.toml`, for a machine that has none.
    pub config: Option<String>,
    /// Settings for later calls of `up`.
    pub remembered: Vec<(String, String)>,
}

/// The reply to an order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HostReply {
    /// It is done.
    Done,
    /// The machine is fit.
    Checked(CheckedHost),
    /// A free port.
    Port(u16),
    /// So many were started or stopped.
    Changed(u32),
    /// The mount points of the volume on this machine, and how many are new.
    Mounted {
        /// All of them.
        paths: Vec<String>,
        /// Those that this order has mounted.
        new: u32,
    },
    /// It failed.
    Failed(HostFailure),
}

/// The result of the check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckedHost {
    /// The directory is that of the side that orders.
    pub is_same: bool,
    /// The `volume.toml` in it, if there is one.
    pub volume: Option<String>,
    /// Space for the user on its disk, in bytes.
    pub available: u64,
}

/// A failure, in the parts of a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostFailure {
    /// What failed.
    pub what: String,
    /// The causes, the nearest first.
    pub causes: Vec<String>,
    /// The remedy.
    pub remedy: Option<String>,
    /// The exit code that the same failure has on the machine of the user.
    #[serde(default = "plain_failure")]
    pub exit: u8,
}

/// The exit code of a failure without another one.
fn plain_failure() -> u8 {
    1
}

/// Returns the greeting with its newline.
pub fn format_greeting(hello: &HostHello) -> String {
    let hello = serde_json::to_string(hello).expect("a greeting is plain data");
    format!("{GREETING} {HOST_PROTOCOL} {hello}\n")
}

/// Parses a line that may be the greeting; `None` if it is another one.
///
/// # Errors
/// [`HostProtocolError::Version`], [`HostProtocolError::Invalid`].
pub fn parse_greeting(line: &[u8]) -> Result<Option<HostHello>, HostProtocolError> {
    let Some(rest) = line.strip_prefix(GREETING.as_bytes()) else { return Ok(None) };
    let Some(rest) = rest.strip_prefix(b" ") else { return Ok(None) };
    let end = rest.iter().position(|b| *b == b' ').unwrap_or(rest.len());
    if rest[..end] != *HOST_PROTOCOL.to_string().as_bytes() {
        let shown = String::from_utf8_lossy(&rest[..end.min(16)]).into_owned();
        return Err(HostProtocolError::Version(shown));
    }
    Ok(Some(serde_json::from_slice(&rest[end..])?))
}

/// Returns a message with its newline.
pub fn format_message(message: &impl Serialize) -> String {
    let text = serde_json::to_string(message).expect("a message is plain data");
    format!("{text}\n")
}

/// Parses an order.
///
/// # Errors
/// [`HostProtocolError::Invalid`].
pub fn parse_order(line: &[u8]) -> Result<HostOrder, HostProtocolError> {
    Ok(serde_json::from_slice(line)?)
}

/// Parses a reply.
///
/// # Errors
/// [`HostProtocolError::Invalid`].
pub fn parse_reply(line: &[u8]) -> Result<HostReply, HostProtocolError> {
    Ok(serde_json::from_slice(line)?)
}

/// Reads a line of at most `most` bytes, without its newline; `None` at the end of the input.
///
/// # Errors
/// [`HostProtocolError::Io`], [`HostProtocolError::TooLong`].
pub fn read_line(
    input: &mut impl BufRead,
    most: usize,
) -> Result<Option<Vec<u8>>, HostProtocolError> {
    let mut line = Vec::new();
    loop {
        let part = match input.fill_buf() {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            part => part?,
        };
        if part.is_empty() {
            // A line that the end cuts off is no message.
            return Ok(None);
        }
        let end = part.iter().position(|b| *b == b'\n');
        let taken = end.unwrap_or(part.len());
        if line.len() + taken > most {
            return Err(HostProtocolError::TooLong(most));
        }
        line.extend_from_slice(&part[..taken]);
        input.consume(taken + usize::from(end.is_some()));
        if end.is_some() {
            return Ok(Some(line));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hello() -> HostHello {
        HostHello {
            version: "0.1.0".into(),
            wire: 2,
            oldest_wire: None,
            name: "n1".into(),
            machine: "00".into(),
            address: Some("10.0.0.1".into()),
            addresses: vec![IpAddr::from([10, 0, 0, 1])],
            clock_ms: 1,
            user: 0,
        }
    }

    #[test]
    fn a_greeting_is_found_and_its_version_is_checked() {
        let line = format_greeting(&hello());
        let parsed = parse_greeting(line.trim_end().as_bytes()).expect("good");
        assert_eq!(parsed, Some(hello()));
        for noise in ["Welcome to n1!", "tatami-hosts 1 {}", "", "tatami-host"] {
            assert!(parse_greeting(noise.as_bytes()).expect("another line").is_none(), "{noise}");
        }
        let later = parse_greeting(b"tatami-host 2 {\"anything\":1}").expect_err("another version");
        assert!(matches!(&later, HostProtocolError::Version(v) if v == "2"), "{later}");
        let cut = &line.as_bytes()[..line.len() / 2];
        assert!(matches!(parse_greeting(cut), Err(HostProtocolError::Invalid(_))));
    }

    #[test]
    fn lines_are_bounded_and_a_line_that_is_cut_off_is_none() {
        let mut input = io::BufReader::with_capacity(3, &b"four\n\nhalf"[..]);
        assert_eq!(read_line(&mut input, 4).expect("read"), Some(b"four".to_vec()));
        assert_eq!(read_line(&mut input, 4).expect("read"), Some(Vec::new()));
        assert_eq!(read_line(&mut input, 4).expect("the end"), None);
        let long = read_line(&mut &b"fiver\n"[..], 4);
        assert!(matches!(long, Err(HostProtocolError::TooLong(4))), "{long:?}");
    }

    #[test]
    fn a_key_is_in_no_log() {
        let order = HostOrder::LayOut(LayOutOrder {
            volume: String::new(),
            machine: String::new(),
            key: Some(SecretText("5a5a".into())),
            certificates: Some(SecretText("5a5a".into())),
            config: None,
            remembered: Vec::new(),
        });
        assert!(!format!("{order:?}").contains("5a5a"));
        assert_eq!(parse_order(format_message(&order).as_bytes()).expect("parsed"), order);
    }

    #[test]
    fn a_failure_without_an_exit_code_has_that_of_most() {
        let reply = br#"{"Failed":{"what":"w","causes":[],"remedy":null}}"#;
        let exit_of = |line: &[u8]| match parse_reply(line) {
            Ok(HostReply::Failed(failure)) => failure.exit,
            other => panic!("{other:?}"),
        };
        assert_eq!(exit_of(reply), 1);
        assert_eq!(exit_of(br#"{"Failed":{"what":"w","causes":[],"remedy":null,"exit":3}}"#), 3);
    }

    proptest! {
        #[test]
        fn any_line_is_a_message_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse_greeting(&bytes);
            let _ = parse_greeting(&[b"tatami-host 1 ", &bytes[..]].concat());
            let _ = (parse_order(&bytes), parse_reply(&bytes));
        }
    }
}
