//! The hosts on a command line, and how they are reached.

use crate::error::{CommandFailure, CommandResult};
use std::io::Read;
use std::path::{Path, PathBuf};
use tatami_hosts::host_list::{HOSTFILE_MAX, HostListError, parse_host_list, parse_hostfile};
use tatami_hosts::machine::{check_program, check_ssh_option};
use tatami_hosts::network::IpNetwork;

/// Hosts, and how they are reached.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct HostsArgs {
    /// Hosts of the volume, when it is created: one node on each, started over your ssh. For
    /// example node[01-16],other
    #[arg(long, value_name = "LIST", conflicts_with_all = ["nodes", "hostfile"])]
    pub hosts: Option<String>,
    /// The same, from a file in the form of Open MPI, MPICH, PBS or Slurm
    #[arg(long, value_name = "FILE", conflicts_with = "nodes", value_hint = clap::ValueHint::FilePath)]
    pub hostfile: Option<PathBuf>,
    /// Network of the nodes' addresses, for hosts that have several, for example 10.1.0.0/16
    /// [default: the address at which ssh reaches each host]
    #[arg(long, value_name = "CIDR", conflicts_with = "nodes")]
    pub network: Option<IpNetwork>,
    /// Go on if at most N hosts fail
    #[arg(long, value_name = "N")]
    pub allow_missing: Option<usize>,
    /// An option for ssh, as in ssh_config(5), for example Port=2222. Can be repeated. It wins over
    /// ConnectTimeout=10, ServerAliveInterval=5 and ServerAliveCountMax=3, which tatami gives
    #[arg(long, value_name = "OPTION", value_parser = parse_option)]
    pub ssh_option: Vec<String>,
    /// Path of tatami on the hosts [default: the path of this one, or else the PATH there]
    #[arg(long, value_name = "PATH", value_parser = parse_program)]
    pub program: Option<String>,
}

/// Parses an option for ssh.
///
/// # Errors
/// The fault, as a sentence.
pub fn parse_option(text: &str) -> Result<String, String> {
    check_ssh_option(text).map(|()| text.to_owned())
}

/// Parses the path of the program on the hosts.
///
/// # Errors
/// The fault, as a sentence.
pub fn parse_program(text: &str) -> Result<String, String> {
    check_program(text).map(|()| text.to_owned())
}

impl HostsArgs {
    /// Returns the hosts that the user names; `None` if none are named.
    ///
    /// # Errors
    /// The list or the file is wrong.
    pub fn list_hosts(&self) -> CommandResult<Option<Vec<String>>> {
        let wrong = |from: String| {
            move |e: HostListError| {
                CommandFailure::usage(format!("{from}: {e}"))
                    .try_this("name hosts as node[01-16],other")
            }
        };
        match (&self.hosts, &self.hostfile) {
            (Some(list), _) => parse_host_list(list).map(Some).map_err(wrong("--hosts".to_owned())),
            (None, Some(file)) => {
                let text = read_bounded(file)?;
                parse_hostfile(&text).map(Some).map_err(wrong(file.display().to_string()))
            }
            (None, None) => Ok(None),
        }
    }
}

fn read_bounded(path: &Path) -> CommandResult<String> {
    let failed = |e: std::io::Error| {
        CommandFailure::usage(format!("cannot read {}", path.display())).because(e)
    };
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(failed)?;
    file.take(HOSTFILE_MAX + 1).read_to_string(&mut text).map_err(failed)?;
    if text.len() as u64 > HOSTFILE_MAX {
        return Err(CommandFailure::usage(format!("{} is too long", path.display())));
    }
    Ok(text)
}
