//! The shards that this node serves, with their stores.

use crate::options::StartError;
use crate::recalls::Met;
use crate::shared::now;
use parking_lot::Mutex;
use rustix::fs::Mode;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use tatami_meta::{Chore, Config, Context, FjallStore, Meta, OpenError, Store};
use tatami_wire::handshake::Identity;
use tatami_wire::meta::{MetaCall, MetaOp, MetaReply, MetaResult};
use tatami_wire::{Attr, Errno, NodeId, ShardId};

/// See the module.
pub(crate) struct Shards<S> {
    metas: BTreeMap<ShardId, Meta<S>>,
    /// Which shards may have garbage of which nodes. A store that merges logs
    /// steps over all that was removed before it finds nothing, and nodes ask often.
    garbage: BTreeSet<(ShardId, NodeId)>,
    /// The same, of single objects whose inodes may be there.
    dropped: BTreeSet<(ShardId, NodeId)>,
}

impl Shards<FjallStore> {
    /// Opens `shards` below `dir`, making those that are not there yet.
    pub(crate) fn open(
        dir: &Path,
        identity: &Identity,
        shards: &[ShardId],
    ) -> Result<Shards<FjallStore>, StartError> {
        let mut metas = BTreeMap::new();
        if !shards.is_empty() {
            match rustix::fs::mkdir(dir, Mode::RWXU) {
                Ok(()) | Err(rustix::io::Errno::EXIST) => {}
                Err(e) => {
                    let what = "make the directory of the namespace";
                    return Err(StartError::System { what, source: e.into() });
                }
            }
        }
        for &shard in shards {
            let path = dir.join(format!("{:04x}", shard.0));
            let config = Config { shard, volume: identity.volume, key: identity.key.clone() };
            let meta = FjallStore::open(&path)
                .map_err(OpenError::from)
                .and_then(|store| Meta::open(store, config, now()))
                .map_err(|source| StartError::Meta { path, source })?;
            metas.insert(shard, meta);
        }
        Ok(Shards { metas, garbage: BTreeSet::new(), dropped: BTreeSet::new() })
    }
}

impl<S: Store> Shards<S> {
    /// Shards over other stores.
    #[cfg(test)]
    pub(crate) fn of(metas: impl IntoIterator<Item = (ShardId, Meta<S>)>) -> Shards<S> {
        let metas = metas.into_iter().collect();
        Shards { metas, garbage: BTreeSet::new(), dropped: BTreeSet::new() }
    }

    #[cfg(test)]
    pub(crate) fn meta(&mut self, shard: ShardId) -> &mut Meta<S> {
        self.metas.get_mut(&shard).expect("the test has it")
    }

    /// Whether something waits for a commit.
    pub(crate) fn is_dirty(&self) -> bool {
        self.metas.values().any(Meta::is_dirty)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.metas.is_empty()
    }

    pub(crate) fn serves(&self, shard: ShardId) -> bool {
        self.metas.contains_key(&shard)
    }

    /// Applies one request; its answer may leave after the next commit.
    pub(crate) fn apply(&mut self, ctx: &Context, call: &MetaCall) -> MetaResult {
        let Some(meta) = self.metas.get_mut(&call.shard) else { return Err(Errno::ESTALE) };
        let (may_have, node, none) = match call.op {
            MetaOp::Garbage { node, .. } => {
                (&mut self.garbage, node, MetaReply::Garbage(Vec::new()))
            }
            MetaOp::GarbagePieces { node, .. } => {
                (&mut self.dropped, node, MetaReply::GarbagePieces(Vec::new()))
            }
            _ => return meta.apply(ctx, &call.cred, &call.op),
        };
        if ctx.trusted && !may_have.contains(&(call.shard, node)) {
            meta.meet_nothing();
            return Ok(none);
        }
        let result = meta.apply(ctx, &call.cred, &call.op);
        if result.as_ref() == Ok(&none) {
            may_have.remove(&(call.shard, node));
        }
        result
    }

    /// What the operation that was applied last, `call`, has met; the directory only if it
    /// may be delegated.
    pub(crate) fn met(&mut self, call: &MetaCall, delegates: bool) -> Met {
        let Some(meta) = self.metas.get_mut(&call.shard) else { return Met::default() };
        let (seen, changed) = (meta.seen().to_vec(), meta.changed().to_vec());
        let dir = call.op.entry().filter(|_| delegates).and_then(|(dir, _)| meta.attr(dir));
        Met { seen, changed, dir }
    }

    /// Whether attributes are those of the inode now.
    pub(crate) fn is_current(&mut self, attr: &Attr) -> bool {
        let meta = self.metas.get_mut(&attr.ino.shard());
        meta.and_then(|meta| meta.attr(attr.ino)).is_some_and(|now| now.version == attr.version)
    }

    /// Commits all shards and returns those that could not.
    pub(crate) fn commit(&mut self) -> Vec<ShardId> {
        let mut failed = Vec::new();
        for (&shard, meta) in &mut self.metas {
            if meta.is_dirty()
                && let Err(e) = meta.commit()
            {
                tracing::error!(shard = shard.0, error = %e, "commit failed");
                failed.push(shard);
            }
        }
        failed
    }

    /// Commits one shard.
    pub(crate) fn commit_one(&mut self, shard: ShardId) -> Result<(), Errno> {
        match self.metas.get_mut(&shard) {
            Some(meta) => meta.commit().map_err(|e| e.errno()),
            None => Ok(()),
        }
    }

    /// Makes everything committed on all shards survive a power cut.
    pub(crate) fn sync(&mut self) -> BTreeMap<ShardId, Result<(), Errno>> {
        let sync = |(&shard, meta): (&ShardId, &mut Meta<S>)| {
            let result = meta.sync().map_err(|e| {
                tracing::error!(shard = shard.0, error = %e, "sync failed");
                e.errno()
            });
            (shard, result)
        };
        self.metas.iter_mut().map(sync).collect()
    }

    /// Work of a store that waits, if there is some; any thread may do it.
    pub(crate) fn take_chore(&mut self) -> Option<Chore> {
        self.metas.values_mut().find_map(Meta::take_chore)
    }

    /// Number of inodes on all shards.
    pub(crate) fn inodes(&self) -> u64 {
        self.metas.values().map(Meta::inodes).sum()
    }

    /// Puts what is wrong with the shards into `trouble`.
    pub(crate) fn tell_trouble(&self, trouble: &Mutex<BTreeMap<ShardId, String>>) {
        for (shard, meta) in &self.metas {
            if let Some(text) = meta.trouble() {
                let mut trouble = trouble.lock();
                if trouble.get(shard).is_none_or(|known| known != text) {
                    trouble.insert(*shard, text.to_owned());
                }
            }
        }
    }

    /// Nodes on which objects may have become garbage since the last call. To be
    /// called after every round, and once after opening.
    pub(crate) fn note_garbage(&mut self) -> Vec<NodeId> {
        let mut nodes = Vec::new();
        for (&shard, meta) in &mut self.metas {
            for node in meta.take_garbage_nodes() {
                self.garbage.insert((shard, node));
                self.dropped.insert((shard, node));
                nodes.push(node);
            }
        }
        nodes
    }
}
