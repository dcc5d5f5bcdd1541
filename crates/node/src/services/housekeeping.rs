//! The background work of a node. It removes objects whose inode is gone. On nodes that serve
//! shards it expires absent clients and recovers the size of files whose writer died.
//!
//! It calls shards and nodes as a trusted client does, over connections of its own, so that a shard
//! on this node is no special case.

mod journals;

use crate::context::NodeContext;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant};
use tatami_client::connection::{Caller, Connection};
use tatami_net::{Endpoint, make_random_id};
use tatami_wire::admin::{AdminCall, AdminReply, AdminResult};
use tatami_wire::frame::FrameClass;
use tatami_wire::handshake::Role;
use tatami_wire::meta::{DataState, MetaCall, MetaOp, MetaReply, MetaResult};
use tatami_wire::object::ObjectState;
use tatami_wire::{Attr, ClientId, Cred, Errno, ExecutorId, Ino, NodeId, Piece, ShardId};

/// Pause between two checks for garbage on shards of other nodes.
const REMOTE_CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// Pause after a wake-up, in which further garbage gathers.
const GATHER_PAUSE: Duration = Duration::from_millis(100);
/// Housekeeping rests for this multiple of the time that it has worked.
const REST_FACTOR: u32 = 4;
/// Pause between two checks for garbage on the node's own shards, without a wake-up.
const LOCAL_CHECK_INTERVAL: Duration = Duration::from_secs(10);
/// Number of checks of clients in a lease, but not more often than every `LOOK_ELSEWHERE` and not
/// less often than every `LOOK_HERE`.
const CLIENT_CHECKS_PER_LEASE: u32 = 4;
/// Pause after a node did not answer.
const RETRY_PAUSE: Duration = Duration::from_secs(2);
/// Most inodes that are requested at a time. A store that merges logs steps over removed records
/// before it finds the present ones, so few large requests are cheaper.
const BATCH: u32 = 8192;
/// Most inodes that are reported at a time: few enough that requests of clients don't wait long.
const DONE_BATCH: usize = 1024;
/// Most passes of releasing a client's state, until the next check.
const EXPIRE_ROUNDS: usize = 64;
/// Longest wait for an answer.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// Pause before housekeeping begins again after a panic.
const RESTART_PAUSE: Duration = Duration::from_secs(1);

/// Runs until the node ends. After a panic it begins again: it keeps no state but connections, and
/// objects that are never removed would fill the disk.
pub(crate) fn run_housekeeping(shared: &NodeContext) {
    restart_on_panic(|| run_housekeeper(shared), || shared.stop.wait(RESTART_PAUSE));
}

/// Calls `work` until it returns without a panic. After each panic it calls `pause`, which returns
/// whether to stop.
fn restart_on_panic(work: impl Fn(), pause: impl Fn() -> bool) {
    while std::panic::catch_unwind(AssertUnwindSafe(&work)).is_err() {
        tracing::error!("housekeeping died; it begins again");
        if pause() {
            break;
        }
    }
}

fn run_housekeeper(shared: &NodeContext) {
    let id = match make_random_id() {
        Ok(id) => id,
        Err(e) => {
            tracing::error!(error = %e, "no random bytes: housekeeping does not run");
            return;
        }
    };
    Housekeeper {
        shared,
        caller: Caller {
            client: ClientId(id),
            volume: Some(shared.settings.identity.volume),
            key: Some(shared.settings.identity.key.clone()),
            tls: shared.settings.tls.clone(),
        },
        meta_connections: BTreeMap::new(),
        admin_connections: BTreeMap::new(),
        seq: 0,
        retry_after: BTreeMap::new(),
        logged_damage: BTreeSet::new(),
    }
    .run();
}

struct Housekeeper<'a> {
    shared: &'a NodeContext,
    caller: Caller,
    meta_connections: BTreeMap<ExecutorId, Connection>,
    admin_connections: BTreeMap<NodeId, Connection>,
    seq: u64,
    /// Nodes that did not answer, and when they may be called again.
    retry_after: BTreeMap<NodeId, Instant>,
    /// Pieces whose damaged journals have been logged.
    logged_damage: BTreeSet<(Ino, u32)>,
}

/// A node did not answer; it is called again later.
struct NodeAway;

/// A shard of an executor, through which all shards of that executor are asked.
type ShardAddress = (ShardId, ExecutorId);

impl Housekeeper<'_> {
    fn run(&mut self) {
        let here = self.shared.settings.node();
        let for_clients = (self.shared.settings.lease / CLIENT_CHECKS_PER_LEASE)
            .clamp(REMOTE_CHECK_INTERVAL, LOCAL_CHECK_INTERVAL);
        let mut looked_at_clients: Option<Instant> = None;
        let (mut looked_here, mut nudged): (Option<Instant>, _) = (None, true);
        while !self.shared.stop.is_set() {
            let began = Instant::now();
            // An executor answers for all of its shards at once.
            let shards = self.shared.map.current().first_shards();
            let pause = match shards.iter().any(|(_, at)| at.node != here) {
                true => REMOTE_CHECK_INTERVAL,
                false => LOCAL_CHECK_INTERVAL,
            };
            let serves = shards.iter().any(|(_, at)| at.node == here);
            let wait = if serves { pause.min(for_clients) } else { pause };
            // The node's own shards wake housekeeping when there is garbage.
            let here_too =
                nudged || looked_here.is_none_or(|at| at.elapsed() >= LOCAL_CHECK_INTERVAL);
            if here_too {
                looked_here = Some(began);
            }
            for &at in shards.iter().filter(|(_, at)| here_too || at.node != here) {
                let _ = self.remove_garbage(at);
                let _ = self.remove_dropped(at);
            }
            if serves && looked_at_clients.is_none_or(|at| at.elapsed() >= for_clients) {
                for &at in shards.iter().filter(|(_, at)| at.node == here) {
                    let _ = self.expire_clients(at);
                    let _ = self.recover_sizes(at);
                }
                looked_at_clients = Some(Instant::now());
            }
            self.shared.disk.objects.expire_versions();
            // Rests longer the longer it has worked: housekeeping takes at most a fifth of the
            // time.
            let rest = (began.elapsed() * REST_FACTOR).max(GATHER_PAUSE);
            nudged = self.shared.housekeeping_wake.wait_for_wake(wait.max(rest));
            if nudged {
                // More removals follow the first one: they are cheaper together.
                self.shared.stop.wait(rest);
            }
        }
    }

    /// Removes the objects on this node of inodes that a shard has dropped.
    fn remove_garbage(&mut self, at: ShardAddress) -> Result<(), NodeAway> {
        let here = self.shared.settings.node();
        while !self.shared.stop.is_set() {
            let op = MetaOp::ListGarbage { node: here, limit: BATCH };
            let Ok(MetaReply::Garbage(inos)) = self.call_shard(at, op)? else { break };
            if inos.is_empty() {
                break;
            }
            // Before any byte is removed: the removal of the names must survive a power cut.
            if !self.sync_names()? {
                break;
            }
            let full = inos.len() >= BATCH as usize;
            let mut done = Vec::with_capacity(inos.len());
            for ino in inos {
                // Objects first, report second: a crash in between only repeats a removal that
                // finds nothing.
                match self.shared.disk.objects.remove_base(ino) {
                    Ok(()) => done.push(ino),
                    Err(e) => {
                        tracing::error!(%ino, error = %e, "cannot remove the objects of an inode");
                    }
                }
            }
            let progress = !done.is_empty();
            if progress {
                tracing::debug!(count = done.len(), "objects of gone inodes removed");
                for inos in done.chunks(DONE_BATCH) {
                    let op = MetaOp::ReportGarbageRemoved { node: here, inos: inos.to_vec() };
                    if self.call_shard(at, op)?.is_err() {
                        return Ok(());
                    }
                }
            }
            if !full || !progress {
                break;
            }
        }
        Ok(())
    }

    /// Syncs the names of all executors. Returns whether all changes survive a power cut. Otherwise
    /// a power cut could bring a name back whose bytes are gone. The name may lie on another node
    /// than the inode.
    fn sync_names(&mut self) -> Result<bool, NodeAway> {
        for at in self.shared.map.current().first_shards() {
            let answer = self.call_shard(at, MetaOp::Sync)?;
            // Shards may have moved to a node that was not asked.
            let current = |epoch| epoch <= self.shared.map.current().epoch;
            if !matches!(answer, Ok(MetaReply::Synced { epoch }) if current(epoch)) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Removes single objects on this node that a shard has dropped.
    fn remove_dropped(&mut self, at: ShardAddress) -> Result<(), NodeAway> {
        let here = self.shared.settings.node();
        while !self.shared.stop.is_set() {
            let op = MetaOp::ListGarbagePieces { node: here, limit: BATCH };
            let listed = self.call_shard(at, op)?;
            let Ok(MetaReply::GarbagePieces(objects)) = listed else { break };
            if objects.is_empty() || !self.sync_names()? {
                break;
            }
            let full = objects.len() >= BATCH as usize;
            let mut done = Vec::with_capacity(objects.len());
            for (ino, piece) in objects {
                match self.shared.disk.objects.remove_object(ino, piece) {
                    Ok(()) => done.push((ino, piece)),
                    Err(e) => {
                        tracing::error!(%ino, piece = piece.0, error = %e, "cannot remove an object");
                    }
                }
            }
            for pieces in done.chunks(DONE_BATCH) {
                let op = MetaOp::ReportPiecesRemoved { node: here, pieces: pieces.to_vec() };
                if self.call_shard(at, op)?.is_err() {
                    return Ok(());
                }
            }
            if !full || done.is_empty() {
                break;
            }
        }
        Ok(())
    }

    /// Releases the state of clients that have been away for a lease.
    fn expire_clients(&mut self, at: ShardAddress) -> Result<(), NodeAway> {
        let mut elsewhere = None;
        // One order releases part of it; a client is listed until nothing is left.
        for _ in 0..EXPIRE_ROUNDS {
            let listed = self.call_shard(at, MetaOp::ListClients)?;
            let Ok(MetaReply::Clients(clients)) = listed else { return Ok(()) };
            let mut released = false;
            for client in clients {
                if !self.shared.connections.clients.is_expired(client, self.shared.settings.lease) {
                    continue;
                }
                // The client may have locks on a shard that has moved here, and not yet know of the
                // move.
                if elsewhere.get_or_insert_with(|| self.connected_elsewhere()).contains(&client) {
                    continue;
                }
                match self.call_shard(at, MetaOp::ExpireClient { client })? {
                    Ok(MetaReply::TryLater) => {}
                    Ok(_) => {
                        tracing::info!(%client, "client stayed away: releasing what it held");
                        released = true;
                    }
                    // The client came back at this moment.
                    Err(Errno::EBUSY) => {}
                    Err(e) => tracing::error!(%client, error = %e, "cannot expire a client"),
                }
            }
            if !released || self.shared.stop.is_set() {
                break;
            }
        }
        Ok(())
    }

    /// Returns the clients that are connected to other nodes. A node that does not answer counts as
    /// having none.
    fn connected_elsewhere(&mut self) -> BTreeSet<ClientId> {
        let here = self.shared.settings.node();
        let mut all = BTreeSet::new();
        for node in
            self.shared.map.current().members().map(|info| info.id).filter(|node| *node != here)
        {
            let Ok(mut connection) = self.take_admin_connection(node) else { continue };
            self.seq += 1;
            let call = AdminCall::Status;
            match connection.call::<_, AdminResult>(FrameClass::Admin, self.seq, &call) {
                Ok(Ok(AdminReply::Status(status))) => {
                    all.extend(status.clients);
                    self.admin_connections.insert(node, connection);
                }
                Ok(_) | Err(_) => drop(self.mark_away(node)),
            }
        }
        all
    }

    /// Recovers, from their objects, the sizes of files whose writer died.
    fn recover_sizes(&mut self, at: ShardAddress) -> Result<(), NodeAway> {
        let mut tried = BTreeSet::new();
        loop {
            let op = MetaOp::ListPendingRecovery { limit: BATCH };
            let Ok(MetaReply::PendingRecovery(files)) = self.call_shard(at, op)? else { break };
            let mut settled = false;
            for attr in files {
                // A file whose node is away stays on the list, and is not tried twice in one pass.
                if !tried.insert(attr.ino) {
                    continue;
                }
                // The journals first: the size of a tiled file follows from its published tiles.
                if attr.layout.is_tiled() && self.read_journals(at, &attr).is_err() {
                    continue;
                }
                let Ok(state) = self.read_data_state(&attr) else { continue };
                let op = MetaOp::SetRecoveredSize { ino: attr.ino, state };
                match self.call_shard(at, op)? {
                    Ok(MetaReply::TryLater) => {}
                    Ok(_) => settled = true,
                    Err(e) => tracing::error!(ino = %attr.ino, error = %e, "cannot settle a file"),
                }
            }
            if !settled {
                break;
            }
        }
        Ok(())
    }

    /// Returns the state of a file by its objects; `None` when there is no object.
    fn read_data_state(&mut self, attr: &Attr) -> Result<Option<DataState>, NodeAway> {
        let base = self.stat_object(attr.layout.node(), attr.ino, attr.layout.base())?;
        Ok(base.exists.then(|| DataState::from(base)))
    }

    fn stat_object(
        &mut self,
        node: NodeId,
        ino: Ino,
        piece: Piece,
    ) -> Result<ObjectState, NodeAway> {
        if node == self.shared.settings.node() {
            return self.shared.disk.objects.stat(ino, piece).map_err(|_| NodeAway);
        }
        let call = AdminCall::StatObject { ino, piece };
        let mut connection = self.take_admin_connection(node)?;
        self.seq += 1;
        match connection.call::<_, AdminResult>(FrameClass::Admin, self.seq, &call) {
            Ok(Ok(AdminReply::Object(state))) => {
                self.admin_connections.insert(node, connection);
                Ok(state)
            }
            Ok(_) | Err(_) => Err(self.mark_away(node)),
        }
    }

    fn call_shard(
        &mut self,
        (shard, executor): ShardAddress,
        op: MetaOp,
    ) -> Result<MetaResult, NodeAway> {
        let call = MetaCall { shard, cred: Cred::ROOT, op };
        let idle = self.meta_connections.remove(&executor);
        let mut connection = self.reuse_or_connect(idle, executor, Role::Meta)?;
        self.seq += 1;
        match connection.call::<_, MetaResult>(FrameClass::Meta, self.seq, &call) {
            Ok(result) => {
                self.meta_connections.insert(executor, connection);
                Ok(result)
            }
            // All these requests are idempotent, so a lost answer is no problem.
            Err(e) => {
                tracing::debug!(%executor, error = %e, "shard did not answer");
                Err(self.mark_away(executor.node))
            }
        }
    }

    /// Takes the admin connection to a node. The caller puts it back after a good answer.
    fn take_admin_connection(&mut self, node: NodeId) -> Result<Connection, NodeAway> {
        let idle = self.admin_connections.remove(&node);
        self.reuse_or_connect(idle, ExecutorId::first_of_node(node), Role::Admin)
    }

    /// Returns the idle connection, if it is still usable, or a new one.
    fn reuse_or_connect(
        &mut self,
        idle: Option<Connection>,
        executor: ExecutorId,
        role: Role,
    ) -> Result<Connection, NodeAway> {
        if let Some(connection) = idle.filter(|connection| !connection.is_stale()) {
            return Ok(connection);
        }
        let ExecutorId { node, index } = executor;
        if self.retry_after.get(&node).is_some_and(|at| Instant::now() < *at) {
            return Err(NodeAway);
        }
        let map = self.shared.map.current();
        let Some(info) = map.find_member(node) else {
            return Err(NodeAway);
        };
        let endpoint = match node == self.shared.settings.node() {
            true => Endpoint::Unix(self.shared.settings.socket_path()),
            false => Endpoint::from_address(&info.address),
        };
        match Connection::open_to(&endpoint, index, &self.caller, role, 0, CALL_TIMEOUT) {
            Ok(connection) => {
                self.retry_after.remove(&node);
                Ok(connection)
            }
            Err(e) => {
                tracing::debug!(%node, error = %e, "node is away");
                Err(self.mark_away(node))
            }
        }
    }

    fn mark_away(&mut self, node: NodeId) -> NodeAway {
        self.retry_after.insert(node, Instant::now() + RETRY_PAUSE);
        NodeAway
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn housekeeping_that_dies_begins_again_until_the_node_ends() {
        let (begun, paused) = (Cell::new(0), Cell::new(0));
        let work = || {
            begun.set(begun.get() + 1);
            assert!(begun.get() > 3, "on purpose");
        };
        let pause = |ends_at: u32| {
            paused.set(paused.get() + 1);
            paused.get() == ends_at
        };
        restart_on_panic(work, || pause(u32::MAX));
        assert_eq!((begun.get(), paused.get()), (4, 3));
        begun.set(0);
        paused.set(0);
        restart_on_panic(work, || pause(2));
        assert_eq!((begun.get(), paused.get()), (2, 2));
    }
}
