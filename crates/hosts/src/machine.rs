//! What a machine knows about itself in a volume: which nodes are its own, and how the other
//! machines are reached. The file `machine.toml` lies beside `volume.toml`. Each machine has its
//! own.

use crate::host_list::{HOSTS_MAX, is_host_name};
use crate::network::IpNetwork;

use rustix::fs::Mode;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use tatami_cluster::{NODES_MAX, atomic};
use tatami_wire::VolumeId;

/// The version of the file that this program writes and reads.
pub const MACHINE_FORMAT: u32 = 1;
/// Longest file that is read, in bytes.
const LENGTH_MAX: u64 = 1 << 20;
/// Most options for ssh.
const OPTIONS_MAX: usize = 64;
/// Longest option for ssh, and longest path of the program, in bytes.
const TEXT_MAX: usize = 4096;

const HEADER: &str = "\
# The nodes of a Tatami volume that are on this machine, and how `tatami` reaches the others.
# Each machine of the volume has its own.

";

/// The faults of a `machine.toml`.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    /// The file could not be read or written.
    #[error("{}: cannot {what} it: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The operation that failed.
        what: &'static str,
        /// The error.
        source: io::Error,
    },
    /// Its content is not valid.
    #[error("{}: {what}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// The fault.
        what: String,
    },
}

/// A machine that is reached by ssh, and its node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MachineHost {
    /// Its name for ssh.
    pub name: String,
    /// The number of its node.
    pub node: u16,
}

/// The content of `machine.toml`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MachineFile {
    /// [`MACHINE_FORMAT`].
    pub format: u32,
    /// The id of the volume.
    pub volume: String,
    /// The numbers of the nodes on this machine. Empty on one that only started the volume.
    pub nodes: BTreeSet<u16>,
    /// Options for ssh, each in the form of ssh_config(5): `Name=value`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ssh_options: Vec<String>,
    /// The network in which the nodes have their addresses; without it, they have those at which
    /// ssh reached the hosts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
    /// The path of `tatami` on the hosts; without it, it is found there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<String>,
    /// The batch job whose end is that of the volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
    /// All machines of a volume that was started with hosts.
    #[serde(default, skip_serializing_if = "Vec::is_empty", rename = "host")]
    pub hosts: Vec<MachineHost>,
}

impl MachineFile {
    /// Returns the file of a machine with these nodes of a volume, and no known hosts.
    pub fn new(volume: VolumeId, nodes: impl IntoIterator<Item = u16>) -> MachineFile {
        MachineFile {
            format: MACHINE_FORMAT,
            volume: volume.to_string(),
            nodes: nodes.into_iter().collect(),
            ssh_options: Vec::new(),
            network: None,
            program: None,
            job: None,
            hosts: Vec::new(),
        }
    }

    /// Reads and checks the file at `path`; `None` if there is none.
    ///
    /// # Errors
    /// [`MachineError`].
    pub fn load(path: &Path) -> Result<Option<MachineFile>, MachineError> {
        let failed = |what| move |source| MachineError::Io { path: path.to_owned(), what, source };
        let file = match std::fs::File::open(path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(failed("open"))?,
        };
        let mut text = String::new();
        file.take(LENGTH_MAX).read_to_string(&mut text).map_err(failed("read"))?;
        let parsed = MachineFile::parse(&text);
        parsed.map(Some).map_err(|what| MachineError::Invalid { path: path.to_owned(), what })
    }

    /// Parses and checks the text of the file.
    ///
    /// # Errors
    /// The fault, as a sentence.
    pub fn parse(text: &str) -> Result<MachineFile, String> {
        let file: MachineFile = toml::from_str(text).map_err(|e| e.to_string())?;
        file.check_contents().map(|()| file)
    }

    /// Returns the text of the file.
    ///
    /// # Errors
    /// The fault of a file that could not be parsed again.
    pub fn to_text(&self) -> Result<String, String> {
        self.check_contents()?;
        let text = toml::to_string(self).map_err(|e| e.to_string())?;
        Ok(format!("{HEADER}{text}"))
    }

    /// Writes the file, so that a crash leaves the old one or the new one.
    ///
    /// # Errors
    /// [`MachineError`].
    pub fn save(&self, path: &Path) -> Result<(), MachineError> {
        let text = self.to_text();
        let text = text.map_err(|what| MachineError::Invalid { path: path.to_owned(), what })?;
        atomic::write_atomically(path, text.as_bytes(), Mode::from_raw_mode(0o644))
            .map_err(|source| MachineError::Io { path: path.to_owned(), what: "write", source })
    }

    /// Returns the host of a node.
    pub fn host_of(&self, node: u16) -> Option<&MachineHost> {
        self.hosts.iter().find(|host| host.node == node)
    }

    fn check_contents(&self) -> Result<(), String> {
        if self.format != MACHINE_FORMAT {
            return Err(format!(
                "it has format {}, and this tatami knows {MACHINE_FORMAT}",
                self.format
            ));
        }
        if self.volume.parse::<VolumeId>().is_err() {
            return Err(format!("{:?} is no id of a volume", self.volume));
        }
        if self.nodes.len() > NODES_MAX || self.hosts.len() > HOSTS_MAX {
            return Err(format!("it lists more than {NODES_MAX} nodes or {HOSTS_MAX} hosts"));
        }
        // The names and options become arguments of ssh.
        if let Some(host) = self.hosts.iter().find(|host| !is_host_name(&host.name)) {
            return Err(format!("{:?} is no name of a host", host.name));
        }
        if self.ssh_options.len() > OPTIONS_MAX {
            return Err(format!("it has more than {OPTIONS_MAX} options for ssh"));
        }
        if let Some(network) = &self.network {
            network.parse::<IpNetwork>().map_err(|e| e.to_string())?;
        }
        self.ssh_options.iter().try_for_each(|option| check_ssh_option(option))?;
        self.program.iter().try_for_each(|program| check_program(program))
    }
}

/// Checks an option for ssh, which has the form `Name=value`.
///
/// # Errors
/// The fault, as a sentence.
pub fn check_ssh_option(option: &str) -> Result<(), String> {
    let name = option.split(['=', ' ']).next().unwrap_or_default();
    let is_name = !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric());
    if is_name
        && name.len() < option.len()
        && option.len() <= TEXT_MAX
        && !option.contains(char::is_control)
    {
        return Ok(());
    }
    Err(format!("{option:?} is no option of ssh_config(5), such as Port=2222"))
}

/// Checks the path of the program on the hosts: a shell reads it there.
///
/// # Errors
/// The fault, as a sentence.
pub fn check_program(program: &str) -> Result<(), String> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"/._-+@%,:".contains(&b);
    let is_path = program.starts_with('/') || !program.contains('/');
    match program.len() <= TEXT_MAX
        && is_path
        && !program.starts_with('-')
        && !program.is_empty()
        && program.bytes().all(plain)
    {
        true => Ok(()),
        false => Err(format!("{program:?} is no absolute path of letters, digits and /._-+@%,:")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> MachineFile {
        let mut file = MachineFile::new(VolumeId([7; 16]), [1]);
        file.ssh_options = vec!["Port=2222".to_owned(), "ProxyJump=login".to_owned()];
        file.program = Some("/opt/tatami/bin/tatami".to_owned());
        file.network = Some("10.1.0.0/16".to_owned());
        let host = |(node, name): (u16, &str)| MachineHost { name: name.to_owned(), node };
        file.hosts = [(0, "n1"), (1, "n2")].map(host).to_vec();
        file
    }

    #[test]
    fn a_machine_reads_what_it_wrote() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("machine.toml");
        assert_eq!(MachineFile::load(&path).expect("no file is no fault"), None);
        sample().save(&path).expect("written");
        assert_eq!(MachineFile::load(&path).expect("read"), Some(sample()));
        assert_eq!(sample().host_of(1).map(|host| host.name.as_str()), Some("n2"));
    }

    #[test]
    fn no_text_of_the_file_becomes_an_option_or_a_command() {
        type Change = fn(&mut MachineFile);
        let changes: [Change; 8] = [
            |file| file.hosts[0].name = "-oProxyCommand=true".to_owned(),
            |file| file.hosts[0].name = "a b".to_owned(),
            |file| file.ssh_options = vec!["-F".to_owned()],
            |file| file.ssh_options = vec!["Port".to_owned()],
            |file| file.ssh_options = vec!["Port=1\nProxyCommand=x".to_owned()],
            |file| file.program = Some("tatami; true".to_owned()),
            |file| file.network = Some("10.1.0.0".to_owned()),
            |file| file.format = 2,
        ];
        for (at, change) in changes.iter().enumerate() {
            let mut file = sample();
            change(&mut file);
            assert!(file.to_text().is_err(), "change {at}");
        }
        for program in ["tatami", "/usr/bin/tatami", "/opt/tatami-0.1.0/bin/tatami"] {
            assert_eq!(check_program(program), Ok(()));
        }
        for program in ["", "-x", "bin/tatami", "$HOME/tatami", "/a'b", "~/tatami", "/a b"] {
            assert!(check_program(program).is_err(), "{program}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_a_machine_or_an_error(text in ".{0,200}") {
            let _ = MachineFile::parse(&text);
        }
    }
}
