//! The shards that this node serves, with their store.

use crate::options::StartError;
use crate::recalls::Met;
use crate::shared::now;
use parking_lot::Mutex;
use rustix::fs::Mode;
use std::collections::BTreeSet;
use std::path::Path;
use tatami_meta::{
    Applied, Chore, Config, Context, Finished, FjallStore, Meta, OpenError, Out, Store,
};
use tatami_wire::handshake::Identity;
use tatami_wire::meta::{MetaCall, MetaOp, MetaReply};
use tatami_wire::transaction::PeerMessage;
use tatami_wire::{Attr, Errno, NodeId, ShardId, ShardMap, Timestamp};

/// See the module.
pub(crate) struct Shards<S> {
    /// `None` on a node without shards.
    meta: Option<Meta<S>>,
    served: BTreeSet<ShardId>,
    /// Other nodes serve shards, too.
    is_spread: bool,
    /// Of which nodes there may be garbage. A store that merges logs
    /// steps over all that was removed before it finds nothing, and nodes ask often.
    garbage: BTreeSet<NodeId>,
    /// The same, of single objects whose inodes may be there.
    dropped: BTreeSet<NodeId>,
}

/// The directory of the store, below that of the namespace.
const STORE: &str = "0000";

impl Shards<FjallStore> {
    /// Opens the shards of this node below `dir`, making their store if it is not there yet.
    pub(crate) fn open(
        dir: &Path,
        identity: &Identity,
        map: &ShardMap,
    ) -> Result<Shards<FjallStore>, StartError> {
        let served: BTreeSet<_> = map.shards_of(identity.node).collect();
        if served.is_empty() {
            return Ok(Shards::of(served, !map.is_alone(), None));
        }
        match rustix::fs::mkdir(dir, Mode::RWXU) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(e) => {
                let what = "make the directory of the namespace";
                return Err(StartError::System { what, source: e.into() });
            }
        }
        let path = dir.join(STORE);
        let Identity { node, volume, ref key } = *identity;
        let config = Config { node, map: map.clone(), volume, key: key.clone() };
        let meta = FjallStore::open(&path)
            .map_err(OpenError::from)
            .and_then(|store| Meta::open(store, config, now()))
            .map_err(|source| StartError::Meta { path, source })?;
        Ok(Shards::of(served, !map.is_alone(), Some(meta)))
    }
}

impl<S: Store> Shards<S> {
    pub(crate) fn of(
        served: BTreeSet<ShardId>,
        is_spread: bool,
        meta: Option<Meta<S>>,
    ) -> Shards<S> {
        let (garbage, dropped) = (BTreeSet::new(), BTreeSet::new());
        Shards { meta, served, is_spread, garbage, dropped }
    }

    #[cfg(test)]
    pub(crate) fn meta(&mut self) -> &mut Meta<S> {
        self.meta.as_mut().expect("the test has it")
    }

    /// All shards, by number.
    pub(crate) fn served(&self) -> Vec<ShardId> {
        self.served.iter().copied().collect()
    }

    /// Whether a shard is ours.
    pub(crate) fn serves(&self, shard: ShardId) -> bool {
        self.served.contains(&shard)
    }

    /// Whether something waits for a commit.
    pub(crate) fn is_dirty(&self) -> bool {
        self.meta.as_ref().is_some_and(Meta::is_dirty)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.meta.is_none()
    }

    /// Whether operations may need other nodes.
    pub(crate) fn are_spread(&self) -> bool {
        self.is_spread
    }

    /// Takes a message of another node.
    pub(crate) fn receive(&mut self, now: Timestamp, from: NodeId, message: PeerMessage) {
        if let Some(meta) = &mut self.meta {
            meta.receive(now, from, message);
        }
    }

    /// Does what is due by now.
    pub(crate) fn tick(&mut self, now: Timestamp) {
        if let Some(meta) = &mut self.meta {
            meta.tick(now);
        }
    }

    /// When [`Shards::tick`] has something to do.
    pub(crate) fn deadline(&self) -> Option<Timestamp> {
        self.meta.as_ref().filter(|_| self.is_spread)?.deadline()
    }

    /// What may leave after the last commit: messages to other nodes, and answers that had to wait.
    pub(crate) fn take_ready(&mut self) -> (Vec<Out>, Vec<Finished>) {
        match &mut self.meta {
            Some(meta) if self.is_spread => (meta.outbox(), meta.finished()),
            _ => (Vec::new(), Vec::new()),
        }
    }

    /// Applies one request; its answer may leave after the next commit.
    pub(crate) fn apply(&mut self, ctx: &Context, call: &MetaCall) -> Applied {
        let Some(meta) = &mut self.meta else { return Applied::Done(Err(Errno::ESTALE)) };
        let (may_have, node, none) = match call.op {
            MetaOp::Garbage { node, .. } => {
                (&mut self.garbage, node, MetaReply::Garbage(Vec::new()))
            }
            MetaOp::GarbagePieces { node, .. } => {
                (&mut self.dropped, node, MetaReply::GarbagePieces(Vec::new()))
            }
            _ => return meta.apply(ctx, &call.cred, &call.op),
        };
        if ctx.trusted && !may_have.contains(&node) {
            meta.meet_nothing();
            return Applied::Done(Ok(none));
        }
        let applied = meta.apply(ctx, &call.cred, &call.op);
        if matches!(&applied, Applied::Done(Ok(reply)) if *reply == none) {
            may_have.remove(&node);
        }
        applied
    }

    /// What the operation that was applied last, `call`, has met; the directory only if it
    /// may be delegated.
    pub(crate) fn met(&mut self, call: &MetaCall, delegates: bool) -> Met {
        let Some(meta) = &mut self.meta else { return Met::default() };
        let (seen, changed) = (meta.seen().to_vec(), meta.changed().to_vec());
        let dir = call.op.entry().filter(|_| delegates).and_then(|(dir, _)| meta.attr(dir));
        let dir = dir.map(Box::new);
        Met { seen, changed, dir }
    }

    /// Whether attributes are those of the inode now.
    pub(crate) fn is_current(&mut self, attr: &Attr) -> bool {
        let now = self.meta.as_mut().and_then(|meta| meta.attr(attr.ino));
        now.is_some_and(|now| now.version == attr.version)
    }

    /// Commits what was changed, if anything was.
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

    /// Work of a store that waits, if there is some; any thread may do it.
    pub(crate) fn take_chore(&mut self) -> Option<Chore> {
        self.meta.as_mut().and_then(Meta::take_chore)
    }

    /// Number of inodes on all shards.
    pub(crate) fn inodes(&self) -> u64 {
        self.meta.as_ref().map_or(0, Meta::inodes)
    }

    /// Puts what is wrong with the shards into `trouble`.
    pub(crate) fn tell_trouble(&self, trouble: &Mutex<Option<String>>) {
        if let Some(text) = self.meta.as_ref().and_then(Meta::trouble) {
            let mut trouble = trouble.lock();
            if trouble.as_deref() != Some(text) {
                *trouble = Some(text.to_owned());
            }
        }
    }

    /// Nodes on which objects may have become garbage since the last call. To be
    /// called after every round, and once after opening.
    pub(crate) fn note_garbage(&mut self) -> Vec<NodeId> {
        let nodes = self.meta.as_mut().map(Meta::take_garbage_nodes).unwrap_or_default();
        self.garbage.extend(&nodes);
        self.dropped.extend(&nodes);
        nodes
    }
}
