//! The shards that an executor serves, with their store.

use crate::clock::current_time;
use crate::executor::touched::TouchedInodes;
use crate::options::StartError;
use parking_lot::Mutex;
use rustix::fs::Mode;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use tatami_meta::{
    Applied, BackgroundTask, FinishedOperation, FjallStore, Meta, MetaConfig, MetaOpenError,
    OperationContext, OutgoingMessage, Store, StoreOptions, SyncWork,
};
use tatami_wire::admin::{ClusterMap, Durability};
use tatami_wire::handshake::ServerIdentity;
use tatami_wire::meta::{MetaCall, MetaOp, MetaReply, MetaResult};
use tatami_wire::transaction::PeerMessage;
use tatami_wire::{ClientId, Errno, ExecutorId, Ino, NodeId, ShardId, Timestamp};

/// The settings of the node that the stores of its shards need.
pub(crate) struct ShardSettings<'a> {
    /// The node and its volume.
    pub(crate) identity: &'a ServerIdentity,
    /// Bytes of the disk that are kept for all stores of the node.
    pub(crate) reserve: u64,
    /// The failures that an acknowledged change survives.
    pub(crate) durability: Durability,
}

/// See the module.
pub(crate) struct ExecutorShards<S> {
    /// `None` for an executor that never had shards.
    meta: Option<Meta<S>>,
    /// Makes the store of such an executor.
    maker: Option<StoreOpener>,
    /// Nodes that may have garbage. A store that merges logs must step over everything that was
    /// removed before it can answer "none", and nodes ask often.
    garbage: BTreeSet<NodeId>,
    /// The same for single objects whose inodes may still exist.
    dropped: BTreeSet<NodeId>,
}

/// The arguments with which the store is opened.
struct StoreOpener {
    path: PathBuf,
    /// Bytes of the disk that are kept for the store: its part of the node's reserve.
    reserve: u64,
    config: MetaConfig,
    durability: Durability,
    opening: StoreOptions,
}

impl StoreOpener {
    fn open_store(&self) -> Result<Meta<FjallStore>, StartError> {
        let path = self.path.clone();
        let mut meta = FjallStore::open(&path, self.opening)
            .and_then(|store| store.with_reserve(self.reserve))
            .map_err(MetaOpenError::from)
            .inspect(|store| {
                store.cut_description().inspect(|cut| tracing::warn!("{cut}"));
            })
            .and_then(|store| Meta::open(store, self.config.clone(), current_time()))
            .map_err(|source| StartError::Meta { path, source })?;
        if self.durability == Durability::Log {
            meta.acknowledge_after_sync();
        }
        Ok(meta)
    }
}

/// Returns the directory of an executor's store, below that of the namespace.
fn store_dir(dir: &Path, index: u8) -> PathBuf {
    dir.join(format!("{index:04}"))
}

impl ExecutorShards<FjallStore> {
    /// Whether the executor of that number has had shards here.
    pub(crate) fn has_store(dir: &Path, index: u8) -> bool {
        store_dir(dir, index).exists()
    }

    /// Opens the shards of an executor of this node below `dir`, making their store if it is not
    /// there yet. Also returns `map` with the newer entries of the store's own map.
    pub(crate) fn open(
        dir: &Path,
        settings: &ShardSettings<'_>,
        index: u8,
        mut map: ClusterMap,
        accept_loss: bool,
    ) -> Result<(ExecutorShards<FjallStore>, ClusterMap), StartError> {
        let shard_map = map.shard_map().ok_or(StartError::ShardMap(map.shards.len()))?;
        match rustix::fs::mkdir(dir, Mode::RWXU) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(e) => {
                let what = "make the directory of the namespace";
                return Err(StartError::System { what, source: e.into() });
            }
        }
        let ServerIdentity { node, volume, ref key } = *settings.identity;
        let executor = ExecutorId { node, index };
        // The executors of a node share its disk, so each gets an equal part of the reserve.
        let others = map.shards.iter().filter(|other| other.node == node && other.index != index);
        let executors = 1 + others.collect::<BTreeSet<_>>().len() as u64;
        let config = MetaConfig { executor, map: shard_map, volume, key: key.clone() };
        let (reserve, durability) = (settings.reserve / executors, settings.durability);
        let opening = StoreOptions { boot: tatami_object::boot_number(), accept_loss };
        let maker =
            StoreOpener { path: store_dir(dir, index), reserve, config, durability, opening };
        let mut shards = ExecutorShards::from_meta(None);
        if map.shards.contains(&executor) || maker.path.exists() {
            let mut meta = maker.open_store()?;
            meta.merge_map(current_time(), &map);
            map.merge_newer(meta.cluster_map());
            shards.meta = Some(meta);
        }
        shards.maker = Some(maker);
        Ok((shards, map))
    }

    /// Returns a description of the bytes that were cut off the log, or lost from it, when the
    /// store was opened.
    pub(crate) fn log_cut(&mut self) -> Option<String> {
        self.meta.as_mut()?.store_mut().cut_description().map(str::to_owned)
    }

    /// Takes over the newer entries of a map.
    pub(crate) fn merge_map(&mut self, map: &ClusterMap) {
        if let Some(meta) = &mut self.meta {
            meta.merge_map(current_time(), map);
        }
    }

    /// Makes the store of an executor that has none, because shards are to move to it.
    pub(crate) fn create_store(&mut self, map: &ClusterMap) {
        let (None, Some(maker)) = (&self.meta, &mut self.maker) else { return };
        let Some(shard_map) = map.shard_map() else { return };
        maker.config.map = shard_map;
        match maker.open_store() {
            Ok(mut meta) => {
                meta.merge_map(current_time(), map);
                self.meta = Some(meta);
            }
            // The source of the shards asks again, and gives up in the end.
            Err(error) => tracing::error!(%error, "no shards can be taken"),
        }
    }
}

impl<S: Store> ExecutorShards<S> {
    /// See [`Meta::record_opens`].
    pub(crate) fn record_opens(&mut self, client: ClientId, inos: &[Ino]) {
        if let Some(meta) = &mut self.meta {
            meta.record_opens(client, inos);
        }
    }

    pub(crate) fn from_meta(meta: Option<Meta<S>>) -> ExecutorShards<S> {
        let (garbage, dropped) = (BTreeSet::new(), BTreeSet::new());
        ExecutorShards { meta, maker: None, garbage, dropped }
    }

    #[cfg(test)]
    pub(crate) fn meta(&mut self) -> &mut Meta<S> {
        self.meta.as_mut().expect("the test has it")
    }

    /// Returns the namespace, for the migration of shards.
    pub(crate) fn meta_mut(&mut self) -> Option<&mut Meta<S>> {
        self.meta.as_mut()
    }

    /// Returns the map as the shards know it.
    pub(crate) fn map(&self) -> Option<&ClusterMap> {
        // After a failed commit the map may hold entries that are not on disk. Others must not
        // learn them.
        Some(self.meta.as_ref().filter(|meta| !meta.is_poisoned())?.cluster_map())
    }

    /// Whether this executor serves the shard.
    pub(crate) fn serves_shard(&self, shard: ShardId) -> bool {
        self.meta.as_ref().is_some_and(|meta| meta.serves_shard(shard))
    }

    /// Whether a migration keeps the shard closed.
    pub(crate) fn is_closed(&self, shard: ShardId) -> bool {
        self.meta.as_ref().is_some_and(|meta| meta.is_closed(shard))
    }

    /// Whether no answer may leave before all changes survive a power cut.
    pub(crate) fn needs_sync(&self) -> bool {
        self.meta.as_ref().is_some_and(Meta::needs_sync)
    }

    /// Whether a change waits for a commit.
    pub(crate) fn is_dirty(&self) -> bool {
        self.meta.as_ref().is_some_and(Meta::is_dirty)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.meta.is_none()
    }

    /// Whether operations may need other executors.
    pub(crate) fn are_spread(&self) -> bool {
        self.meta.as_ref().is_some_and(Meta::is_spread)
    }

    /// Receives a message of another executor.
    pub(crate) fn receive_message(
        &mut self,
        now: Timestamp,
        from: ExecutorId,
        message: PeerMessage,
    ) {
        if let Some(meta) = &mut self.meta {
            meta.receive_message(now, from, message);
        }
    }

    /// Does the work that is due by now.
    pub(crate) fn run_due_work(&mut self, now: Timestamp) {
        if let Some(meta) = &mut self.meta {
            meta.tick(now);
        }
    }

    /// Returns the time when [`ExecutorShards::run_due_work`] has work; `None` if it has none.
    pub(crate) fn next_deadline(&self) -> Option<Timestamp> {
        self.meta.as_ref().filter(|meta| meta.is_spread())?.deadline()
    }

    /// Returns what may leave after the last commit: messages to other executors, and answers that
    /// waited.
    pub(crate) fn take_ready(&mut self) -> (Vec<OutgoingMessage>, Vec<FinishedOperation>) {
        match &mut self.meta {
            Some(meta) if meta.is_spread() => (meta.take_outbox(), meta.take_finished()),
            _ => (Vec::new(), Vec::new()),
        }
    }

    /// Applies one request; its answer may leave after the next commit.
    pub(crate) fn apply_request(&mut self, ctx: &OperationContext, call: &MetaCall) -> Applied {
        let Some(meta) = &mut self.meta else {
            return Applied::Done(reply_without_shards(&call.op));
        };
        let (may_have, node, none) = match call.op {
            MetaOp::ListGarbage { node, .. } => {
                (&mut self.garbage, node, MetaReply::Garbage(Vec::new()))
            }
            MetaOp::ListGarbagePieces { node, .. } => {
                (&mut self.dropped, node, MetaReply::GarbagePieces(Vec::new()))
            }
            _ => return meta.apply(ctx, &call.cred, &call.op),
        };
        // Answers "none" without a scan of the store, which would be a long walk over removed
        // records.
        if ctx.trusted && !may_have.contains(&node) {
            meta.clear_touched_inodes();
            return Applied::Done(Ok(none));
        }
        let applied = meta.apply(ctx, &call.cred, &call.op);
        // A full scan has found none, so the node is taken off until new garbage is recorded.
        if matches!(&applied, Applied::Done(Ok(reply)) if *reply == none) {
            may_have.remove(&node);
        }
        applied
    }

    /// Returns the inodes that the last applied operation, `call`, has read and changed. The
    /// directory is part of it only if it may be delegated.
    pub(crate) fn touched_inodes(&mut self, call: &MetaCall, delegates: bool) -> TouchedInodes {
        let Some(meta) = &mut self.meta else { return TouchedInodes::default() };
        let (seen, changed) = (meta.seen_inodes().to_vec(), meta.changed_inodes().to_vec());
        let dir =
            call.op.delegable_dir().filter(|_| delegates).and_then(|dir| meta.current_attr(dir));
        let dir = dir.map(Box::new);
        let shown = call.op.delegable_dir().filter(|_| delegates && dir.is_none());
        let part = shown.and_then(|part| meta.partition_info(part)).map(Box::new);
        TouchedInodes { seen, changed, dir, part }
    }

    /// See [`Meta::inline_bytes`].
    pub(crate) fn inline_bytes(&mut self, ino: Ino) -> Option<Vec<u8>> {
        self.meta.as_mut()?.inline_bytes(ino)
    }

    /// See [`Meta::exclusive_holder`].
    pub(crate) fn exclusive_holder(&self, dir: Ino) -> Option<ClientId> {
        self.meta.as_ref()?.exclusive_holder(dir)
    }

    /// See [`Meta::take_wanted_directories`].
    pub(crate) fn take_wanted_directories(&mut self) -> Vec<(Ino, ClientId)> {
        self.meta.as_mut().map(Meta::take_wanted_directories).unwrap_or_default()
    }

    /// See [`Meta::list_exclusive`].
    pub(crate) fn list_exclusive(&self, first: u16, count: u16) -> Vec<(Ino, ClientId)> {
        let meta = self.meta.as_ref();
        meta.map(|meta| meta.list_exclusive(first, count)).unwrap_or_default()
    }

    /// See [`Meta::end_exclusive`].
    pub(crate) fn end_exclusive(&mut self, dir: Ino, client: ClientId) {
        if let Some(meta) = &mut self.meta {
            meta.end_exclusive(dir, client);
        }
    }

    /// See [`Meta::end_exclusive_of`].
    pub(crate) fn end_exclusive_of(&mut self, client: ClientId) {
        if let Some(meta) = &mut self.meta {
            meta.end_exclusive_of(client);
        }
    }

    /// See [`Meta::job_holder`].
    pub(crate) fn job_holder(&self, ino: Ino, open: u64) -> Option<(ClientId, u32)> {
        self.meta.as_ref()?.job_holder(ino, open)
    }

    /// Commits the pending changes, if there are any.
    pub(crate) fn commit(&mut self) -> Result<(), Errno> {
        let Some(meta) = self.meta.as_mut().filter(|meta| meta.is_dirty()) else { return Ok(()) };
        meta.commit().map_err(|e| {
            tracing::error!(error = %e, "commit failed");
            e.errno()
        })
    }

    /// Makes everything committed survive a power cut.
    pub(crate) fn sync(&mut self) -> Result<(), Errno> {
        let Some(meta) = &mut self.meta else { return Ok(()) };
        meta.sync().map_err(|e| {
            tracing::error!(error = %e, "sync failed");
            e.errno()
        })
    }

    /// Begins a sync of everything committed; see [`Meta::begin_sync`].
    pub(crate) fn begin_sync(&mut self) -> Result<Option<SyncWork>, Errno> {
        let Some(meta) = &mut self.meta else { return Ok(None) };
        meta.begin_sync().map_err(|e| {
            tracing::error!(error = %e, "sync failed");
            e.errno()
        })
    }

    /// Makes everything survive a power cut, for the last time. From then on the next start counts
    /// any missing record as lost.
    pub(crate) fn close(&mut self) -> Result<(), Errno> {
        let Some(meta) = &mut self.meta else { return Ok(()) };
        meta.close().map_err(|e| {
            tracing::error!(error = %e, "the store does not close well");
            e.errno()
        })
    }

    /// Takes the result of a sync that was begun. Returns whether it succeeded.
    pub(crate) fn end_sync(&mut self, result: std::io::Result<()>) -> bool {
        let Some(meta) = &mut self.meta else { return true };
        let ended = meta.end_sync(result);
        ended.inspect_err(|e| tracing::error!(error = %e, "sync failed")).is_ok()
    }

    /// See [`Meta::oldest_unfinished`].
    pub(crate) fn unsynced_since(&self) -> Option<Timestamp> {
        self.meta.as_ref().and_then(Meta::oldest_unfinished)
    }

    /// Returns a background task of the store that waits, if there is one. Any thread may run it.
    pub(crate) fn take_background_task(&mut self) -> Option<BackgroundTask> {
        self.meta.as_mut().and_then(Meta::take_background_task)
    }

    /// Number of inodes on all shards.
    pub(crate) fn inode_count(&self) -> u64 {
        self.meta.as_ref().map_or(0, Meta::inode_count)
    }

    /// Writes the shards' trouble into `trouble`, or clears it.
    pub(crate) fn publish_trouble(&self, trouble: &Mutex<Option<String>>) {
        let now = self.meta.as_ref().and_then(Meta::operator_alert);
        let mut trouble = trouble.lock();
        // Compared first: this runs after every round, and the text hardly ever changes.
        if trouble.as_deref() != now {
            *trouble = now.map(str::to_owned);
        }
    }

    /// Whether the disk was full at the last check.
    pub(crate) fn is_full(&self) -> bool {
        self.meta.as_ref().is_some_and(Meta::is_full)
    }

    /// Checks whether a full disk has room again.
    pub(crate) fn check_for_room(&mut self) {
        if let Some(meta) = &mut self.meta {
            meta.recheck_room();
        }
    }

    /// Returns the nodes on which objects may have become garbage since the last call. Must be
    /// called after every round, and once after opening.
    pub(crate) fn take_garbage_nodes(&mut self) -> Vec<NodeId> {
        let nodes = self.meta.as_mut().map(Meta::take_garbage_nodes).unwrap_or_default();
        self.garbage.extend(&nodes);
        self.dropped.extend(&nodes);
        nodes
    }
}

/// The reply of an executor that never had shards.
fn reply_without_shards(op: &MetaOp) -> MetaResult {
    match op {
        MetaOp::Sync => Ok(MetaReply::Synced { epoch: 0 }),
        MetaOp::SyncNames { .. } => Ok(MetaReply::NamesSynced { epoch: 0, unsynced: Vec::new() }),
        MetaOp::StatVolume => Ok(MetaReply::Volume { inodes: 0 }),
        op if op.is_for_all_shards() => Err(Errno::ESTALE),
        _ => Ok(MetaReply::WrongShard { epoch: 0 }),
    }
}
