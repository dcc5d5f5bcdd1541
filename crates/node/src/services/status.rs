//! What a node reports of itself.

use crate::clock;
use crate::context::NodeContext;
use crate::panics;
use tatami_wire::PROTOCOL_VERSION;
use tatami_wire::admin::NodeStatus;

/// Returns the condition of this node. Any client may see it.
pub(crate) fn report_status(shared: &NodeContext) -> NodeStatus {
    let NodeContext { settings, map, disk, connections, executors, counters, .. } = shared;
    NodeStatus {
        id: settings.node(),
        name: settings.info.name.clone(),
        version: settings.version.clone(),
        protocol: PROTOCOL_VERSION,
        pid: std::process::id(),
        uptime_sec: shared.started.elapsed().as_secs(),
        clock_ms: clock::read_milliseconds(),
        trouble: node_troubles(shared),
        refused: executors.refusal_reasons(),
        space: shared.disk_space().unwrap_or_default(),
        shards: map.shard_count(settings.node()) as u32,
        executors: executors.running_count() as u32,
        durability: settings.durability,
        inodes: executors.inode_count(),
        connections: connections.slots.used_count(),
        meta_requests: counters.meta_requests.get(),
        peer_messages: counters.peer_messages.get(),
        object_requests: counters.object_requests.get(),
        bytes_read: counters.bytes_read.get(),
        bytes_written: counters.bytes_written.get(),
        mounts: connections.mounts.lock().values().cloned().collect(),
        clients: connections.clients.alive_clients(settings.lease),
        turned_away: connections.refusals.report(),
        lost_since: disk.lost_since(),
    }
}

fn node_troubles(shared: &NodeContext) -> Vec<String> {
    let NodeContext { settings, map, disk, .. } = shared;
    let mut trouble = shared.executors.shard_troubles();
    if disk.lost_since().is_some() {
        let names = match map.shard_count(settings.node()) {
            0 => String::new(),
            shards => format!(", and the names in its {shards} shards"),
        };
        trouble.push(format!(
            "it began empty: its data directory was lost, and with it the bytes of all files that lay \
             here{names}; tatami fsck --lost tells which files; when that is settled: tatami node forget --lost {}",
            settings.info.name
        ));
    }
    trouble.extend(disk.describe_trouble());
    trouble.extend(panics::death_report());
    trouble
}
