//! What a node reports of itself.

use crate::clock::{self, current_time};
use crate::context::NodeContext;
use crate::panics;
use std::time::Duration;
use tatami_wire::ProtocolRange;
use tatami_wire::admin::NodeStatus;

/// The status warns of the end of certificates this long before.
const CERTIFICATES_WARNING: Duration = Duration::from_secs(30 * 86_400);

/// Returns the condition of this node. Any client may see it.
pub(crate) fn report_status(shared: &NodeContext) -> NodeStatus {
    let NodeContext { settings, map, disk, connections, executors, counters, .. } = shared;
    NodeStatus {
        id: settings.node(),
        name: settings.info.name.clone(),
        version: settings.version.clone(),
        protocol: ProtocolRange::of_process().newest(),
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

/// Warns of certificates that end soon: then no new connection is possible.
fn describe_end(ends: u64) -> Option<String> {
    let now = u64::try_from(current_time().sec).unwrap_or(0);
    let remedy = "make new ones: tatami volume rotate-certificates";
    match ends.saturating_sub(now) {
        0 => Some(format!("its certificates have expired: {remedy}")),
        left if left <= CERTIFICATES_WARNING.as_secs() => {
            Some(format!("its certificates expire in {} days: {remedy}", left / 86_400))
        }
        _ => None,
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
    trouble.extend(settings.tls.as_ref().and_then(|tls| describe_end(tls.expiry_time())));
    trouble.extend(panics::death_report());
    trouble
}
