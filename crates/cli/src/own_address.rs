//! The new address of a node: its machine no longer has the address in the file of the volume.
//!
//! The daemon finds it at its start, listens there, and tells all other nodes, which tell the
//! mounts. The count of a node's addresses says which one is the newest.

use crate::interfaces;
use crate::ports;
use crate::volume_dir::VolumeDir;
use std::net::IpAddr;
use std::time::Duration;
use tatami_client::connection::{Caller, Connection, Endpoint};
use tatami_cluster::{NodeEntry, VolumeFile};
use tatami_hosts::network::{IpNetwork, host_of_address, join_address};
use tatami_wire::NodeId;
use tatami_wire::admin::{AdminCall, AdminReply, ClusterMap};

/// Longest wait for another node.
const NODE_WAIT: Duration = Duration::from_secs(10);
/// Time between two attempts to reach the nodes that have not answered.
const ROUND: Duration = Duration::from_secs(5);

/// A new address, for the nodes that do not know it yet.
pub struct AddressNews {
    map: ClusterMap,
    others: Vec<NodeEntry>,
    caller: Caller,
}

/// Returns the address of a node of this machine, if the volume has one that the machine no longer
/// has. A name and an address of the loopback never count as such.
pub fn find_new_address(
    place: &VolumeDir,
    volume: &VolumeFile,
    entry: &NodeEntry,
) -> Option<String> {
    let before: IpAddr = host_of_address(&entry.address).parse().ok()?;
    let addresses = interfaces::list_addresses();
    let is_of_all = before.is_loopback() || before.is_unspecified();
    if is_of_all || addresses.is_empty() || addresses.contains(&before) {
        return None;
    }
    let machine = place.load_machine().ok().flatten();
    let network = machine.and_then(|machine| machine.network.as_ref()?.parse::<IpNetwork>().ok());
    let now = match network {
        Some(network) => addresses.iter().find(|at| network.contains(**at)).map(IpAddr::to_string),
        None => {
            let others = volume.nodes.iter().filter(|other| other.id != entry.id);
            let hosts = others.map(|other| host_of_address(&other.address));
            let towards = |host: &str| ports::own_address_towards(host);
            hosts.filter_map(towards).next()
        }
    };
    let port = entry.address.rsplit_once(':')?.1.parse().ok()?;
    now.map(|now| join_address(&now, port))
}

/// Gives a node of this machine its new address, if it has one, in `volume` and in the file of this
/// machine. Returns the news for the other nodes.
pub fn follow_address(
    place: &VolumeDir,
    volume: &mut VolumeFile,
    id: u16,
    caller: Caller,
) -> Option<AddressNews> {
    let entry = volume.node(NodeId(id))?.clone();
    let now = find_new_address(place, volume, &entry)?;
    let others: Vec<NodeEntry> =
        volume.nodes.iter().filter(|other| other.id != id).cloned().collect();
    // They know how many addresses the node has had, if it could not write the file here.
    for other in &others {
        if let Ok(AdminReply::Map(map)) = call_node(&caller, other, &AdminCall::Map) {
            volume.merge_map(&map);
        }
    }
    let known = volume.nodes.iter_mut().find(|known| known.id == id)?;
    if known.address != now {
        tracing::warn!(before = known.address, now, "this node has a new address");
        known.address = now;
        known.moved += 1;
        volume.epoch += 1;
    }
    // A system service may not write the file: it finds its address anew at each start.
    if let Err(error) = volume.save(&place.volume_file()) {
        tracing::info!("the new address is not in the file of the volume: {error}");
    }
    Some(AddressNews { map: volume.map(), others, caller })
}

impl AddressNews {
    /// Tells each other node once. Tries again those that do not answer, for as long as this
    /// process lives.
    pub fn tell_others(mut self) {
        std::thread::spawn(move || {
            loop {
                let call = AdminCall::MergeMap(self.map.clone());
                self.others.retain(|other| call_node(&self.caller, other, &call).is_err());
                if self.others.is_empty() {
                    return tracing::info!("all nodes know the new address of this one");
                }
                // Nothing tells when another machine is there again.
                #[allow(clippy::disallowed_methods)]
                std::thread::sleep(ROUND);
            }
        });
    }
}

/// Sends one request to another node.
fn call_node(caller: &Caller, node: &NodeEntry, call: &AdminCall) -> Result<AdminReply, String> {
    let endpoint = Endpoint::from_address(&node.address);
    let mut connection =
        Connection::open_admin(&endpoint, caller, NODE_WAIT).map_err(|e| e.to_string())?;
    let reply = connection.call_admin(call);
    reply.map_err(|e| e.to_string())?.map_err(|e| e.to_string())
}
