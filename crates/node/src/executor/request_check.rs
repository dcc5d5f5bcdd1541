//! The checks that a request passes before its shard sees it: map, trust, known nodes.

use crate::clock::current_time;
use crate::connections::clients::ClientTable;
use crate::executor::answer::RoundAnswer;
use crate::executor::handle::ConnectionKind;
use crate::executor::meta_connection::MetaConnection;
use crate::executor::shards::ExecutorShards;
use tatami_meta::{FjallStore, OperationContext};
use tatami_wire::admin::ClusterMap;
use tatami_wire::batch::BatchOp;
use tatami_wire::meta::{InodeTemplate, MetaCall, MetaOp};
use tatami_wire::moves::MoveTarget;
use tatami_wire::policy::POLICY_PREFIX;
use tatami_wire::{Errno, Layout, NodeId, ProtocolRange};

/// The first version of the protocol with policies.
const POLICIES_SINCE: u32 = 4;

/// Checks the permission to send the request, and applies it.
pub(crate) fn check_and_apply(
    clients: &ClientTable,
    map: &ClusterMap,
    shards: &mut ExecutorShards<FjallStore>,
    connection: &MetaConnection,
    to: usize,
    seq: u64,
    mut call: MetaCall,
) -> RoundAnswer {
    let trusted = connection.peer.is_trusted();
    if let Err(e) = check_request(clients, map, trusted, &call) {
        return RoundAnswer::new(to, seq, Err(e), None);
    }
    if let Some(cred) = connection.peer.bound_user() {
        call.cred.clone_from(cred);
    }
    let client = connection.client();
    let ConnectionKind::Requests { slot } = connection.kind else {
        return RoundAnswer::new(to, seq, Err(Errno::EPROTO), None);
    };
    let ctx = OperationContext { now: current_time(), client, slot, seq, trusted };
    let applied = shards.apply_request(&ctx, &call);
    RoundAnswer::from_applied(to, seq, applied, (ctx, call))
}

/// Checks whether the connection may put the request to the shard at all. The shard checks the
/// permissions of the user.
fn check_request(
    clients: &ClientTable,
    map: &ClusterMap,
    trusted: bool,
    call: &MetaCall,
) -> Result<(), Errno> {
    if map.owner(call.shard).is_none() {
        return Err(Errno::ESTALE);
    }
    if !call.op.is_for_users() && !trusted {
        return Err(Errno::EPERM);
    }
    let known = |node: NodeId| map.is_serving(node);
    let is_known = |layout: &Layout| layout.all_objects().all(|(node, _)| known(node));
    match &call.op {
        MetaOp::Create { node: InodeTemplate::File(layout), .. }
        | MetaOp::CreateFilled { layout, .. }
        | MetaOp::CreateNumbered { layout, .. }
        | MetaOp::Tmpfile { layout, .. }
            if !is_known(layout) =>
        {
            return Err(Errno::EINVAL);
        }
        MetaOp::Batch { operations } => {
            let unknown = |op: &BatchOp| {
                matches!(op, BatchOp::Create { node: InodeTemplate::File(layout), .. }
                    | BatchOp::CreateFilled { layout, .. }
                    | BatchOp::Tmpfile { layout, .. } if !is_known(layout))
            };
            if operations.iter().any(unknown) {
                return Err(Errno::EINVAL);
            }
        }
        // A release before version 4 of the protocol cannot read the inodes of such a directory.
        // The volume is being upgraded, and keeps the way back.
        MetaOp::SetXattr { name, .. }
            if name.starts_with(POLICY_PREFIX.as_bytes())
                && ProtocolRange::of_process().newest() < POLICIES_SINCE =>
        {
            return Err(Errno::EOPNOTSUPP);
        }
        MetaOp::AddPieces { nodes, .. } if !nodes.iter().all(|(node, _)| known(*node)) => {
            return Err(Errno::EINVAL);
        }
        MetaOp::Reserve { nodes, .. } if !nodes.iter().all(|node| known(*node)) => {
            return Err(Errno::EINVAL);
        }
        MetaOp::BeginMove { to: MoveTarget::Object { node, .. }, .. } if !known(*node) => {
            return Err(Errno::EINVAL);
        }
        // The client came back: its session stays.
        MetaOp::ExpireClient { client } if clients.is_connected(*client) => {
            return Err(Errno::EBUSY);
        }
        _ => {}
    }
    Ok(())
}
