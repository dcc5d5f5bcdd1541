//! The files of a volume on its hosts, and the addresses of the hosts.

use crate::certificates;
use crate::error::{CommandFailure, CommandResult, FailureContext};
use crate::host_group::{self, HostFault, ORDER_WAIT};
use crate::hosts_down::{access_of, check_order};
use crate::ports;
use crate::ssh_session::{HostSession, SshAccess, is_this_machine};
use crate::term;
use crate::volume_dir::VolumeDir;
use crate::volume_layout;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, ToSocketAddrs};
use tatami_cluster::{NodeEntry, VolumeFile};
use tatami_hosts::host_protocol::{HostOrder, LayOutOrder, SecretText};
use tatami_hosts::machine::{MachineFile, MachineHost};

/// Returns what each machine knows about the others; without its own nodes.
pub fn describe_machines(access: &SshAccess, volume: &VolumeFile) -> MachineFile {
    let host = |entry: &NodeEntry| MachineHost { name: entry.name.clone(), node: entry.id };
    MachineFile {
        ssh_options: access.options.clone(),
        program: access.program.clone(),
        network: access.network.map(|network| network.to_string()),
        hosts: volume.nodes.iter().map(host).collect(),
        ..MachineFile::new(volume.volume, [])
    }
}

/// The files for the hosts.
pub struct HostFiles {
    volume: String,
    machines: BTreeMap<String, String>,
    /// The authorities of an encrypted volume.
    certificates: Option<SecretText>,
}

/// The files that a host gets once.
pub struct FirstFiles {
    key: SecretText,
    config: String,
    remembered: Vec<(String, String)>,
}

impl FirstFiles {
    /// Reads the key and the configuration of this machine.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn read(place: &VolumeDir, remembered: &[(String, String)]) -> CommandResult<FirstFiles> {
        let key = std::fs::read_to_string(place.key_file());
        Ok(FirstFiles {
            key: SecretText(key.context(|| "cannot read the key".to_owned())?),
            config: volume_layout::config_text(place)?,
            remembered: remembered.to_vec(),
        })
    }
}

impl HostFiles {
    /// Prepares the files for all hosts of `machine`.
    ///
    /// # Errors
    /// The volume or the hosts cannot be written so that they can be read again.
    pub fn prepare(
        place: &VolumeDir,
        volume: &VolumeFile,
        machine: &MachineFile,
    ) -> CommandResult<HostFiles> {
        let machines = machine.hosts.iter().map(|host| {
            let own = MachineFile { nodes: BTreeSet::from([host.node]), ..machine.clone() };
            let text = own.to_text().map_err(CommandFailure::new)?;
            Ok((host.name.clone(), text))
        });
        let certificates = certificates::authorities_text(place, volume)?;
        Ok(HostFiles {
            certificates: certificates.map(SecretText),
            volume: volume_layout::format_volume(place, volume)?,
            machines: machines.collect::<CommandResult<_>>()?,
        })
    }

    /// Returns the order that gives a host other authorities than this machine has.
    pub fn order_for_certificates(&self, host: &str, text: &str) -> HostOrder {
        match self.order_for(host, None, false) {
            HostOrder::LayOut(order) => HostOrder::LayOut(LayOutOrder {
                certificates: Some(SecretText(text.to_owned())),
                ..order
            }),
            other => other,
        }
    }

    /// Returns whether the volume is encrypted.
    pub fn has_certificates(&self) -> bool {
        self.certificates.is_some()
    }

    /// Returns the text of the volume file.
    pub fn volume_text(&self) -> &str {
        &self.volume
    }

    /// Returns the order for a host: with `first`, for a host without a volume. A host that has the
    /// directory of this process (`is_same`) has the key.
    pub fn order_for(&self, host: &str, first: Option<&FirstFiles>, is_same: bool) -> HostOrder {
        HostOrder::LayOut(LayOutOrder {
            volume: self.volume.clone(),
            machine: self.machines.get(host).cloned().unwrap_or_default(),
            certificates: self.certificates.clone().filter(|_| !is_same),
            key: first.filter(|_| !is_same).map(|first| first.key.clone()),
            config: first.map(|first| first.config.clone()),
            remembered: first.map(|first| first.remembered.clone()).unwrap_or_default(),
        })
    }
}

/// Writes the volume file of this machine to the other hosts. A host that cannot be reached gets it
/// at the next `tatami up`, which a note says.
pub fn spread_files(place: &VolumeDir) -> CommandResult {
    let Some(machine) = place.load_machine()?.filter(|machine| !machine.hosts.is_empty()) else {
        return Ok(());
    };
    let volume = place.load_volume()?;
    let files = HostFiles::prepare(place, &volume, &machine)?;
    let others = machine.hosts.iter().filter(|host| !machine.nodes.contains(&host.node));
    let hosts: Vec<String> = others.map(|host| host.name.clone()).collect();
    let (mut sessions, mut faults) = host_group::open_sessions(&access_of(&machine), &hosts);
    let check = |_: &HostSession| check_order(place, &volume, "none");
    faults.extend(host_group::order_all(&mut sessions, ORDER_WAIT, check).1);
    let lay_out = |session: &HostSession| files.order_for(&session.host, None, false);
    faults.extend(host_group::order_all(&mut sessions, ORDER_WAIT, lay_out).1);
    faults.extend(host_group::order_all(&mut sessions, ORDER_WAIT, |_| HostOrder::Keep).1);
    for HostFault { host, failure, .. } in faults {
        term::print_note(&format!(
            "{host} has the old list of nodes until the next tatami up{}: {}",
            place.dir_flag(),
            failure.what
        ));
    }
    Ok(())
}

/// Takes out the sessions of hosts that have no address in the network of the nodes. Returns their
/// faults.
pub fn remove_strangers(access: &SshAccess, sessions: &mut Vec<HostSession>) -> Vec<HostFault> {
    let Some(network) = access.network else { return Vec::new() };
    let mut faults = Vec::new();
    sessions.retain(|session| {
        let addresses = &session.hello.addresses;
        let is_there = addresses.iter().any(|address| network.contains(*address));
        if !is_there {
            let list: Vec<String> = addresses.iter().map(IpAddr::to_string).collect();
            let has = if list.is_empty() { "none".to_owned() } else { list.join(", ") };
            let failure = CommandFailure::new(format!("it has no address in {network}"))
                .because(format!("its addresses are: {has}"))
                .try_this("name the network of all hosts: --network CIDR; `ip address` lists them");
            faults.push(HostFault::new(&session.host, failure));
        }
        is_there
    });
    faults
}

/// Returns the address at which other machines reach each host: the one in the network of the
/// nodes, or else the one at which `ssh` reached it.
pub fn find_addresses(access: &SshAccess, sessions: &[HostSession]) -> BTreeMap<String, String> {
    let in_network = |session: &HostSession| {
        let network = access.network?;
        let mut addresses = session.hello.addresses.iter();
        addresses.find(|address| network.contains(**address)).map(IpAddr::to_string)
    };
    let reached = |session: &HostSession| match session.hello.address.as_deref() {
        None if is_this_machine(&session.host) => ReachedAddress::Local,
        // A launcher of a batch job does not tell.
        None => ReachedAddress::Limited,
        Some(text) => ReachedAddress::classify(text),
    };
    // This machine: its address on the network of another host, or else of its default route.
    let other = sessions.iter().find_map(|session| match reached(session) {
        ReachedAddress::Common(address) => Some(address),
        ReachedAddress::Local | ReachedAddress::Limited => None,
    });
    let own = match other.as_deref() {
        Some(other) => ports::own_address_towards(other),
        // A machine may have one kind of addresses alone. These are for documentation (RFC 5737 and
        // RFC 3849): nothing is sent there.
        None => ["192.0.2.1", "2001:db8::1"].into_iter().find_map(ports::own_address_towards),
    };
    let address = |session: &HostSession| {
        let address = in_network(session).unwrap_or_else(|| match reached(session) {
            ReachedAddress::Common(address) => address,
            ReachedAddress::Local => own.clone().unwrap_or_else(|| "127.0.0.1".to_owned()),
            ReachedAddress::Limited => resolve_host(&session.host),
        });
        (session.host.clone(), address)
    };
    sessions.iter().map(address).collect()
}

/// An address at which `ssh` reached a host.
#[derive(Debug, PartialEq, Eq)]
enum ReachedAddress {
    /// Other machines reach it there, too.
    Common(String),
    /// It is this machine.
    Local,
    /// Only neighbours on one link reach it there.
    Limited,
}

impl ReachedAddress {
    fn classify(text: &str) -> ReachedAddress {
        match text.parse::<IpAddr>() {
            Ok(ip) if ip.is_loopback() => ReachedAddress::Local,
            Ok(IpAddr::V6(ip)) if ip.is_unicast_link_local() => ReachedAddress::Limited,
            Ok(_) => ReachedAddress::Common(text.to_owned()),
            // An address with the name of a link behind it.
            Err(_) => ReachedAddress::Limited,
        }
    }
}

/// Returns the address that this machine knows for the name of a host, or else the name.
fn resolve_host(host: &str) -> String {
    let addresses = (host, 0).to_socket_addrs().into_iter().flatten();
    let mut common = addresses
        .map(|at| at.ip().to_string())
        .filter(|text| matches!(ReachedAddress::classify(text), ReachedAddress::Common(_)));
    common.next().unwrap_or_else(|| host.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_of_one_link_is_not_for_all_machines() {
        let classify = ReachedAddress::classify;
        for common in ["10.0.0.1", "2001:db8::1"] {
            assert_eq!(classify(common), ReachedAddress::Common(common.to_owned()));
        }
        for local in ["127.0.1.1", "::1"] {
            assert_eq!(classify(local), ReachedAddress::Local);
        }
        for limited in ["fe80::1", "fe80::1%eth0", "UNKNOWN"] {
            assert_eq!(classify(limited), ReachedAddress::Limited);
        }
    }
}
