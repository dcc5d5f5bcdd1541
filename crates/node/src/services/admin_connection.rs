//! A connection for requests and orders to the node itself.

use crate::context::NodeContext;
use crate::executor::handle::{ExecutorHandle, ExecutorOrder};
use crate::executor::start::accept_loss;
use crate::services::status::report_status;
use std::io::BufReader;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;
use tatami_net::{NetStream, PeerIdentity};
use tatami_object::ObjectListing;
use tatami_wire::admin::{AdminCall, AdminReply, AdminResult, ClusterMap};
use tatami_wire::frame::{self, FrameClass, FrameError};
use tatami_wire::{Errno, PATH_MAX};

/// Most mounts that one node lists. With the bounds on each mount's description, a status fits a
/// frame.
const MOUNTS_MAX: usize = 128;
/// How long an executor may take to carry out an order: it may be waiting for clients of the daemon
/// before.
const ORDER_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest reason of a mount for not using passthrough, in bytes.
const WHY_NOT_MAX: usize = 1024;

/// Serves one connection until it ends.
pub(crate) fn serve_admin(
    shared: &Arc<NodeContext>,
    stream: &Arc<NetStream>,
    peer: &PeerIdentity,
    connection: u64,
) {
    match handle_calls(shared, stream, peer, connection) {
        Ok(()) | Err(FrameError::Closed) => {}
        Err(FrameError::Io(e)) => tracing::debug!(%peer, error = %e, "admin connection broke"),
        Err(e) => tracing::warn!(%peer, "admin connection dropped: {e}"),
    }
    shared.connections.mounts.lock().remove(&connection);
}

fn handle_calls(
    shared: &Arc<NodeContext>,
    stream: &Arc<NetStream>,
    peer: &PeerIdentity,
    connection: u64,
) -> Result<(), FrameError> {
    let mut writer: &NetStream = stream;
    let mut reader = BufReader::new(&**stream);
    let (mut body, mut out) = (Vec::new(), Vec::new());
    loop {
        let header = frame::read_frame(&mut reader, &mut body)?;
        if header.class != FrameClass::Admin || header.payload_len != 0 {
            return Err(FrameError::Unexpected);
        }
        let call: AdminCall = frame::decode_body(&body)?;
        let ends = matches!(call, AdminCall::Shutdown);
        let result = match call.needs_trust() && !peer.is_trusted() {
            true => Err(Errno::EPERM),
            false => execute_call(shared, call, peer, connection),
        };
        let ends = ends && result.is_ok();
        out.clear();
        frame::encode_frame(&mut out, FrameClass::Admin, header.seq, &result, 0);
        frame::write_frame(&mut writer, &out, &[])?;
        if ends {
            tracing::info!(%peer, "asked to end");
            // Closed when all is done: the client that gave the order can wait for that.
            shared.connections.stop_requesters.lock().push(stream.clone());
            shared.stop.set();
            return Ok(());
        }
    }
}

fn execute_call(
    shared: &Arc<NodeContext>,
    call: AdminCall,
    peer: &PeerIdentity,
    connection: u64,
) -> AdminResult {
    Ok(match call {
        AdminCall::Ping => AdminReply::Pong,
        AdminCall::Status => {
            let mut status = report_status(shared);
            if !peer.is_trusted() {
                // A client id is a secret: it lets its owner act as that client.
                status.clients.clear();
            }
            AdminReply::Status(Box::new(status))
        }
        AdminCall::Map => AdminReply::Map(ClusterMap::clone(&shared.map.current())),
        AdminCall::MergeMap(map) => {
            run_order(shared, ExecutorOrder::MergeMap(Box::new(map)))?;
            AdminReply::Map(ClusterMap::clone(&shared.map.current()))
        }
        AdminCall::CountedMap => {
            AdminReply::CountedMap(ClusterMap::clone(&shared.map.current()).into())
        }
        AdminCall::MergeCountedMap(map) => {
            run_order(shared, ExecutorOrder::MergeMap(Box::new(map.into())))?;
            AdminReply::CountedMap(ClusterMap::clone(&shared.map.current()).into())
        }
        AdminCall::MigrateShards { first, count, to } => {
            run_order(shared, ExecutorOrder::MoveShards { first, count, to })?;
            AdminReply::Done
        }
        AdminCall::Shutdown => AdminReply::Done,
        AdminCall::AcceptLoss => {
            let mut report = accept_loss(shared);
            report.extend(shared.disk.objects.accept_region_loss());
            AdminReply::Report(report)
        }
        AdminCall::Space => AdminReply::Space(shared.disk_space()?),
        AdminCall::RegionRoom => AdminReply::RegionRoom(shared.disk.objects.region_room()),
        AdminCall::Announce(info) => {
            let why_not = info.why_not.as_deref().unwrap_or_default();
            let why_no_ring = info.why_no_io_uring.as_deref().unwrap_or_default();
            if info.path.len() > PATH_MAX || why_not.len().max(why_no_ring.len()) > WHY_NOT_MAX {
                return Err(Errno::EINVAL);
            }
            let mut mounts = shared.connections.mounts.lock();
            if mounts.len() >= MOUNTS_MAX && !mounts.contains_key(&connection) {
                return Err(Errno::ENOSPC);
            }
            mounts.insert(connection, info);
            AdminReply::Done
        }
        AdminCall::ListObjects { after, limit } => {
            let ObjectListing { objects, end } =
                shared.disk.objects.list_objects(after, limit as usize)?;
            let row = |(ino, piece, state): (_, _, tatami_wire::object::ObjectState)| {
                (ino, piece, state.size, state.blocks)
            };
            AdminReply::Objects { objects: objects.into_iter().map(row).collect(), end }
        }
        AdminCall::RemoveObjects { ino } => {
            shared.disk.objects.remove_all(ino)?;
            AdminReply::Done
        }
        AdminCall::RemoveObject { ino, piece } => {
            shared.disk.objects.remove_object(ino, piece)?;
            AdminReply::Done
        }
        AdminCall::DismissLoss => {
            let was_lost = shared.disk.loss_mark.remove()?;
            tracing::info!(%peer, was_lost, "the loss of the data directory is settled");
            AdminReply::Done
        }
        AdminCall::UseCertificates(text) => {
            let tls = shared.settings.tls.as_ref().ok_or(Errno::EINVAL)?;
            tls.use_text(&text.0).map_err(|e| {
                tracing::error!(%peer, "the certificates of an order are not used: {e}");
                Errno::EINVAL
            })?;
            AdminReply::Done
        }
        AdminCall::StatObject { ino, piece } => {
            AdminReply::Object(shared.disk.objects.stat(ino, piece)?)
        }
    })
}

/// Gives an order to the executors concerned, and waits for their answers.
fn run_order(shared: &NodeContext, order: ExecutorOrder) -> Result<(), Errno> {
    let obeying = executors_for(shared, &order);
    if obeying.is_empty() {
        return Err(Errno::ESTALE);
    }
    for executor in obeying {
        let (sender, receiver) = channel();
        executor.send_order(order.clone(), sender);
        receiver.recv_timeout(ORDER_TIMEOUT).map_err(|_| Errno::EAGAIN)??;
    }
    Ok(())
}

/// Returns the executors that must carry an order out; none if no executor here can.
fn executors_for(shared: &NodeContext, order: &ExecutorOrder) -> Vec<ExecutorHandle> {
    match order {
        ExecutorOrder::MergeMap(_) => shared.executors.all_handles(),
        ExecutorOrder::MoveShards { first, .. } => {
            let owner = shared.map.current().owner(tatami_wire::ShardId(*first));
            let owner = owner.filter(|owner| owner.node == shared.settings.node());
            owner.and_then(|owner| shared.executors.get(owner.index)).into_iter().collect()
        }
    }
}
