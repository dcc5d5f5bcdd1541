//! The shards of one node: the interface that the daemon calls.

use crate::error::{Failure, OpenError, Outcome};
use crate::inode::Inode;
use crate::keys;
use crate::moving::Moves;
use crate::session::{Admission, Sessions};
use crate::state::State;
use crate::store::{Chore, Store, StoreError, SyncWork};
use crate::transaction::{Applied, Finished, Out, Transactions};
use crate::txn::Txn;
use crate::{act, attr, check, entry, job, orphan, rename, split, tiled, xattr};
use std::collections::BTreeSet;
use std::sync::Arc;
use tatami_wire::delegation::PartTold;
use tatami_wire::meta::{MetaOp, MetaReply, MetaResult, SYNCED_MAX};
use tatami_wire::transaction::PeerMessage;
use tatami_wire::{
    Attr, ClientId, Cred, Errno, ExecutorId, Ino, Kind, NodeId, ShardId, ShardMap, Timestamp,
    VolumeId, VolumeKey,
};

/// The configuration of an executor's namespace.
#[derive(Clone, Debug)]
pub struct Config {
    /// The executor that serves it.
    pub executor: ExecutorId,
    /// The assignment of all shards to executors.
    pub map: ShardMap,
    /// The volume it belongs to. The hash that orders names is seeded with it.
    pub volume: VolumeId,
    /// Signs capabilities.
    pub key: VolumeKey,
}

/// The circumstances of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Context {
    /// The time, by the daemon's clock.
    pub now: Timestamp,
    /// The requesting client.
    pub client: ClientId,
    /// The client's connection.
    pub slot: u32,
    /// Rises with every request on the slot.
    pub seq: u64,
    /// Whether the requesting process knows the volume's key or is the superuser on the daemon's
    /// machine. Only those may do housekeeping.
    pub trusted: bool,
}

/// The shards of the namespace that one executor serves. See the crate's page.
pub struct Meta<S> {
    pub(crate) state: State<S>,
    pub(crate) key: VolumeKey,
    pub(crate) sessions: Sessions,
    /// Nodes on which objects may have become garbage since the last call.
    pub(crate) garbage: BTreeSet<NodeId>,
    trouble: Option<Trouble>,
    pub(crate) tx: Transactions,
    pub(crate) moves: Moves,
}

/// An unacknowledged outcome is sent again after this many ms, where participants acknowledge only
/// after a sync, which takes up to a second. A participant that did not get the outcome asks by
/// itself, and much sooner.
const FINISH_AGAIN: u64 = 2000;

/// A message for the operator.
struct Trouble {
    what: String,
    /// It is a full disk, and ends when there is room again.
    full: bool,
}

impl<S: Store> Meta<S> {
    /// Opens the shards in `store`. In an empty store, the node of shard 0 makes the root
    /// directory, owned by the superuser, with mode 0755 and the time `now`.
    ///
    /// # Errors
    /// A store of another volume, node or newer format, a damaged one, and those of the disk.
    pub fn open(store: S, config: Config, now: Timestamp) -> Result<Meta<S>, OpenError> {
        let mut state = State::open(store, config.volume, config.executor, config.map)?;
        if state.lost() > 0 {
            // The objects of lost inodes still exist, so none of their numbers is allocated again.
            state.raise(state.reserved().saturating_add(state.lost()));
            state.commit()?;
            state.sync()?;
        }
        if state.owns(Ino::ROOT.shard()) {
            make_root(&mut state, now).map_err(|e| match e {
                Failure::Store(e) => OpenError::Store(*e),
                Failure::Damaged(e) => OpenError::Damaged(e.0),
                _ => OpenError::Damaged("root directory"),
            })?;
        }
        // The notifications of the last run may be lost, so all garbage is announced again.
        let garbage = orphan::garbage_nodes(&state).map_err(|e| match e {
            Failure::Store(e) => OpenError::Store(*e),
            _ => OpenError::Damaged("garbage record"),
        })?;
        let tx = Transactions::open(&mut state, now).map_err(|e| match e {
            Failure::Store(e) => OpenError::Store(*e),
            _ => OpenError::Damaged("transaction record"),
        })?;
        let sessions = Sessions::default();
        let moves = Moves::default();
        let mut meta = Meta { state, key: config.key, sessions, garbage, trouble: None, tx, moves };
        meta.open_moves().map_err(|e| match e {
            Failure::Store(e) => OpenError::Store(*e),
            _ => OpenError::Damaged("record of a move"),
        })?;
        Ok(meta)
    }

    /// Executes one operation. Its effect is visible to the next one at once, and survives the
    /// process after [`Meta::commit`]; until then its answer must not leave the daemon. An
    /// operation that fails has no effect. `MetaOp::Sync` changes nothing here: the daemon calls
    /// [`Meta::sync`] before it sends the answer, once for all requests.
    ///
    /// # Errors
    /// Those of POSIX for the operation. Besides: `ESTALE` for an inode that is gone or of no
    /// shard, `EPERM` for housekeeping by untrusted clients, `EPROTO` for a sequence number that is
    /// past, `ENOSPC` when the disk is (nearly) full, `EIO` when the store fails or has failed (see
    /// [`Meta::trouble`]).
    pub fn apply(&mut self, ctx: &Context, cred: &Cred, op: &MetaOp) -> Applied {
        self.meet_nothing();
        if !cred.is_valid() {
            return Applied::Done(Err(Errno::EINVAL));
        }
        if op.is_housekeeping() && !ctx.trusted {
            return Applied::Done(Err(Errno::EPERM));
        }
        if self.state.is_spread() {
            self.tx.now = self.tx.now.max(ctx.now);
            // A repeated request must not start its operation a second time.
            if let Some(applied) = self.waits(ctx) {
                return applied;
            }
        }
        let result = match op.is_mutation() {
            true => self.mutate(ctx, cred, op),
            false => self.look(ctx, cred, op),
        };
        if !self.state.grown.is_empty() {
            self.plan_splits();
        }
        match result {
            Ok(result) => Applied::Done(result),
            Err(Failure::Missing(_) | Failure::Locked(_)) => {
                // The local run had no effect. It becomes a transaction, whose first run starts
                // afresh.
                self.meet_nothing();
                self.begin(ctx, cred, op)
            }
            Err(Failure::Parted(part, range)) => {
                Applied::Done(Ok(MetaReply::Parted { part, range }))
            }
            Err(e) => {
                let errno = self.note(&e);
                // A failed mutation is remembered: its repetition gets the same error, and is not
                // run again.
                if op.is_mutation() && errno != Errno::EPROTO {
                    self.sessions.failed(ctx, errno);
                }
                Applied::Done(Err(errno))
            }
        }
    }

    fn look(&mut self, ctx: &Context, cred: &Cred, op: &MetaOp) -> Outcome<MetaResult> {
        if let Some(elsewhere) = self.is_elsewhere(op)? {
            return Ok(Ok(elsewhere));
        }
        if let MetaOp::SyncNames { inos } = op {
            return Ok(self.sync_names(inos));
        }
        if let MetaOp::Acts { acts } = op {
            return self.act_all(ctx, cred, acts).map(|(reply, _)| Ok(reply));
        }
        let mut txn = Txn::new(&mut self.state, ctx, cred);
        let result = execute(&mut txn, &self.key, op);
        debug_assert!(!txn.wrote(), "a reading operation wrote");
        drop(txn);
        result.map(Ok)
    }

    /// Answers a request to sync names. As for [`MetaOp::Sync`], the daemon syncs before the answer
    /// leaves. A participant of a transaction has written a lock record for it, so its sync covers
    /// its part.
    fn sync_names(&self, inos: &[Ino]) -> MetaResult {
        if inos.len() > SYNCED_MAX {
            return Err(Errno::EINVAL);
        }
        let (epoch, also) = (self.state.epoch(), self.parts_in_names(inos));
        Ok(MetaReply::NamesSynced { epoch, also })
    }

    /// Returns the answer to an operation that another node must run, or `None`.
    pub(crate) fn is_elsewhere(&self, op: &MetaOp) -> Outcome<Option<MetaReply>> {
        if !self.state.is_spread() || op.is_for_all_shards() {
            return Ok(None);
        }
        let known = |ino: &Ino| self.state.is_shard(ino.shard());
        let ours = |ino: &Ino| self.state.owns(ino.shard());
        let (all_known, all_ours) = match op {
            MetaOp::Closed { inos, empty, read } => {
                let mut all = inos.iter().chain(empty).chain(read);
                (all.clone().all(known), all.all(ours))
            }
            MetaOp::InFlux { inos, .. } => (inos.iter().all(known), inos.iter().all(ours)),
            // The operations of a batch are checked one by one.
            MetaOp::Acts { .. } => return Ok(None),
            _ => (known(&op.target()), ours(&op.target())),
        };
        self.told_elsewhere(all_known, all_ours)
    }

    /// Returns the answer to an operation on a shard of another node, or `None`.
    pub(crate) fn shard_elsewhere(&self, shard: ShardId) -> Outcome<Option<MetaReply>> {
        self.told_elsewhere(self.state.is_shard(shard), self.state.owns(shard))
    }

    fn told_elsewhere(&self, all_known: bool, all_ours: bool) -> Outcome<Option<MetaReply>> {
        if !all_known {
            return Err(Errno::ESTALE.into());
        }
        Ok((!all_ours).then_some(MetaReply::Elsewhere { epoch: self.state.epoch() }))
    }

    fn mutate(&mut self, ctx: &Context, cred: &Cred, op: &MetaOp) -> Outcome<MetaResult> {
        // Before anything else: a repeated request is answered from the record of its first run
        // (exactly once).
        if let Admission::Replay(answer) = self.sessions.admit(&self.state, ctx)? {
            return Ok(answer);
        }
        // After the replay: answers that were committed before the failure are still given.
        if self.state.is_poisoned() {
            return Err(Errno::EIO.into());
        }
        if let Some(elsewhere) = self.is_elsewhere(op)? {
            return Ok(Ok(elsewhere));
        }
        let (reply, wrote) = self.change(ctx, cred, op)?;
        if let MetaOp::ExpireClient { client } = op {
            self.sessions.forget(*client);
        }
        self.sessions.done(ctx, wrote);
        Ok(Ok(reply))
    }

    /// Returns the inodes that the last [`Meta::apply`] has read, maybe more than once: its answer
    /// depends on nothing else that can be delegated. Empty for a replayed answer.
    pub fn seen(&self) -> &[Ino] {
        &self.state.seen
    }

    /// Returns the inodes that the last [`Meta::apply`] has changed: their attributes or (of
    /// directories) their entries.
    pub fn changed(&self) -> &[Ino] {
        &self.state.changed
    }

    /// Empties [`Meta::seen`] and [`Meta::changed`], for an answer that was given without
    /// [`Meta::apply`].
    pub fn meet_nothing(&mut self) {
        self.state.meet_nothing();
    }

    /// Handles a message of another executor, whose node is authenticated. Messages may be lost,
    /// and may come twice.
    pub fn receive(&mut self, now: Timestamp, from: ExecutorId, message: PeerMessage) {
        self.tx.now = self.tx.now.max(now);
        // The content of the disk is unknown then, so no other executor may act on it.
        if !self.state.is_poisoned() {
            self.hear(from, message);
            self.free();
            self.plan_splits();
            self.meet_nothing();
        }
    }

    /// Handles all that is due by now. Must be called when [`Meta::deadline`] is over.
    pub fn tick(&mut self, now: Timestamp) {
        self.tx.now = self.tx.now.max(now);
        if !self.state.is_poisoned() {
            self.begin_splits();
            self.tick_jobs();
            self.tick_moves();
            self.ask_about_locks();
            self.tx.tell_done();
            // The steps above may have released locks: their waiters continue in this batch.
            self.free();
            self.plan_splits();
            self.meet_nothing();
        }
    }

    /// Returns when [`Meta::tick`] must be called, if nothing happens before.
    pub fn deadline(&self) -> Option<Timestamp> {
        if self.state.is_poisoned() {
            return None;
        }
        let jobs = self.tx.jobs.values().map(|job| job.due());
        let decided = (!self.tx.decided.is_empty()).then_some(self.tx.finish_at);
        let waiting = self.tx.waiting.iter().map(|waiting| waiting.ask_at);
        let held = self.state.locks.held().values().map(|held| held.ask_at);
        let freed = self.tx.freed.first().map(|_| self.tx.now);
        let splits = self.tx.splits.due();
        let acks = self.tx.acks.due();
        let moves = self.moves.due(self.tx.now);
        let due = jobs.chain(decided).chain(waiting).chain(held).chain(freed).chain(splits);
        due.chain(acks).chain(moves).min()
    }

    /// Takes the messages to other nodes. They appear only after a [`Meta::commit`] (and a
    /// [`Meta::sync`], where answers wait for one), and may leave at once except for
    /// [`Out::changed`](crate::Out).
    pub fn outbox(&mut self) -> Vec<Out> {
        self.tx.take_outs()
    }

    /// Takes the answers to operations that had to wait, likewise.
    pub fn finished(&mut self) -> Vec<Finished> {
        std::mem::take(&mut self.tx.ready_finished)
    }

    /// Records that a returning client has these files open: as after [`MetaOp::Open`] with
    /// `noted`. Skips those of other executors.
    pub fn note_opens(&mut self, client: ClientId, inos: &[Ino]) {
        for ino in inos {
            if self.state.owns(ino.shard()) {
                self.state.opens.add(*ino, client);
            }
        }
    }

    /// Returns whether the inode must not be delegated: a transaction is about to change it or (of
    /// a directory) its entries, or it is a directory and this node has only a part of it.
    pub fn is_locked(&mut self, ino: Ino) -> bool {
        let parted = |inode: Arc<Inode>| inode.is_parted();
        self.state.locks.concern(ino)
            || self.tx.splits.concern(ino)
            || self.state.is_spread() && self.state.inode(ino).ok().flatten().is_some_and(parted)
    }

    /// Returns the number of transactions in progress here: as coordinator, or with locks.
    pub fn under_way(&self) -> usize {
        let planned = self.tx.jobs.len() + self.tx.splits.planned();
        let moves = self.moves.under_way();
        planned + moves + self.tx.decided.len() + self.state.locks.held().len()
    }

    /// Returns one of several partitions of a directory; `None` where `ino` is not a partition, its
    /// record cannot be decoded, or a transaction is about to change it.
    pub fn part(&mut self, ino: Ino) -> Option<PartTold> {
        if !self.state.is_spread() || self.state.locks.concern(ino) || self.tx.splits.concern(ino) {
            return None;
        }
        let part = self.state.inode(ino).ok().flatten().filter(|inode| inode.is_parted())?;
        Some(PartTold { attr: part.attr(ino), range: part.range })
    }

    /// Returns the current attributes of an inode; `None` where there is none, its record cannot be
    /// decoded, or a transaction is about to change it.
    pub fn attr(&mut self, ino: Ino) -> Option<Attr> {
        if self.is_locked(ino) {
            return None;
        }
        if let Some(inode) = self.state.inode(ino).ok().flatten() {
            return (!inode.is_parted()).then(|| inode.attr(ino));
        }
        if !self.state.is_spread() || !self.state.owns(ino.birth()) {
            return None;
        }
        let record = self.state.get(&keys::young(ino)).ok().flatten()?;
        Inode::decode(&record).ok().map(|inode| inode.attr(ino))
    }

    /// Returns the holder of the lock that the ranks of an open of `ino` share: a client, and its
    /// rank of the open. `None` also where the store fails.
    pub fn job_holder(&self, ino: Ino, open: u64) -> Option<(ClientId, u32)> {
        job::holder(&self.state, ino, open).ok().flatten()
    }

    /// Makes all operations applied so far survive the death of the process, with one write (group
    /// commit).
    ///
    /// # Errors
    /// All operations applied since the last commit are undone, and reads have read undone changes:
    /// none of their answers may be sent; callers get [`StoreError::errno`]. After
    /// [`StoreError::Full`] the shard goes on; after any other error it refuses all changes with
    /// `EIO`.
    pub fn commit(&mut self) -> Result<(), StoreError> {
        // Read before the commit, which resets it.
        let room = self.state.knows_room();
        let result = self.state.commit();
        match &result {
            // Messages and answers may leave only from here on.
            Ok(()) => self.tx.committed(),
            Err(e) => {
                let errno = e.errno();
                if let Err(failure) = self.undo(errno) {
                    self.note(&failure);
                }
            }
        }
        match &result {
            Ok(()) if room => drop(self.trouble.take_if(|trouble| trouble.full)),
            Ok(()) => {}
            Err(e) => {
                // The replies in memory belong to operations that were undone.
                self.sessions.clear();
                self.note_store(e);
            }
        }
        result
    }

    fn undo(&mut self, errno: Errno) -> Outcome<()> {
        self.tx.undone(&mut self.state, errno)?;
        self.reload_moves()
    }

    /// Returns whether something waits for a [`Meta::commit`].
    pub fn is_dirty(&self) -> bool {
        self.state.is_dirty() || self.tx.is_staged()
    }

    /// Commits, and makes everything survive a power cut.
    ///
    /// # Errors
    /// As [`Meta::commit`]. After a failed fsync the shard refuses all changes.
    pub fn sync(&mut self) -> Result<(), StoreError> {
        // First: a sync covers committed batches only.
        self.commit()?;
        self.moves.wants_sync = false;
        self.tx.acks.begin_sync();
        let result = self.state.sync();
        match &result {
            Ok(()) => self.tx.acks.synced(),
            Err(e) => self.note_store(e),
        }
        result
    }

    /// Begins a sync of all commits so far. Another thread does its slow part, if there is one. Its
    /// result goes to [`Meta::end_sync`], before the next one begins.
    ///
    /// # Errors
    /// As [`Meta::sync`].
    pub fn begin_sync(&mut self) -> Result<Option<SyncWork>, StoreError> {
        // In this order: acknowledgements committed after the store's sync began must wait for the
        // next one.
        self.tx.acks.begin_sync();
        let begun = self.state.begin_sync();
        match &begun {
            Ok(Some(_)) => {}
            Ok(None) => self.tx.acks.synced(),
            Err(e) => self.note_store(e),
        }
        begun
    }

    /// Takes the result of a sync that was begun.
    ///
    /// # Errors
    /// Its failure: as of [`Meta::sync`].
    pub fn end_sync(&mut self, result: std::io::Result<()>) -> Result<(), StoreError> {
        let result = self.state.end_sync(result);
        match &result {
            Ok(()) => self.tx.acks.synced(),
            Err(e) => self.note_store(e),
        }
        result
    }

    /// Delays acknowledgements until they are durable: a coordinator remembers its decision until
    /// the participant's part survives a power cut, not only the process. For executors that do not
    /// sync each commit.
    pub fn acknowledge_once_lasting(&mut self) {
        self.tx.acks.wait_for_sync = true;
        self.tx.finish_again = FINISH_AGAIN;
    }

    /// Returns when the oldest transaction was decided here that is not known to be applied durably
    /// everywhere.
    pub fn undone_since(&self) -> Option<Timestamp> {
        self.tx.decided.values().map(|decided| decided.since).min()
    }

    /// As [`Meta::sync`], for the last time: the store records that nothing follows.
    ///
    /// # Errors
    /// As [`Meta::sync`].
    pub fn close(&mut self) -> Result<(), StoreError> {
        self.sync()?;
        self.state.store.close()
    }

    /// Returns the number of inodes in use.
    pub fn inodes(&self) -> u64 {
        self.state.inodes()
    }

    /// Returns the shard's problem, for `status`: the failure of the store, a damaged record, or a
    /// full disk until there is room again. `None` while all is well.
    pub fn trouble(&self) -> Option<&str> {
        self.trouble.as_ref().map(|trouble| trouble.what.as_str())
    }

    /// Returns whether the problem is a full disk.
    pub fn is_full(&self) -> bool {
        self.trouble.as_ref().is_some_and(|trouble| trouble.full)
    }

    /// Checks whether a disk that was full has room again, and clears that problem then. A commit
    /// does so, too, but there may be no change to commit.
    pub fn look_for_room(&mut self) {
        if self.is_full() && self.state.store.recover() {
            self.trouble = None;
        }
    }

    /// Returns whether a failure of the store made the shard refuse changes for good.
    pub fn is_poisoned(&self) -> bool {
        self.state.is_poisoned()
    }

    /// Returns whether the disk has room for more, as of the last check.
    pub fn has_room(&mut self) -> bool {
        self.state.has_room()
    }

    /// Takes the nodes on which objects may have become garbage since the last call (after opening:
    /// on which there is garbage). Their housekeeping should be woken after the next commit.
    pub fn take_garbage_nodes(&mut self) -> Vec<NodeId> {
        if self.garbage.is_empty() {
            return Vec::new();
        }
        std::mem::take(&mut self.garbage).into_iter().collect()
    }

    /// Takes a waiting background task of the store, if there is one; any thread may run it.
    /// Callers ask after commits.
    pub fn take_chore(&mut self) -> Option<Chore> {
        self.state.store.take_chore()
    }

    /// Closes the shard, without a commit, and returns the store.
    pub fn into_store(self) -> S {
        self.state.store
    }

    /// Returns the store, for a test that inspects it or makes it fail.
    pub fn store_mut(&mut self) -> &mut S {
        &mut self.state.store
    }

    pub(crate) fn note(&mut self, failure: &Failure) -> Errno {
        if let Some(what) = failure.trouble() {
            self.trouble = Some(Trouble { what, full: failure.is_full() });
        }
        failure.errno()
    }

    fn note_store(&mut self, e: &StoreError) {
        // The first failure is the cause; later ones only report that there was one.
        let later = matches!(e, StoreError::Poisoned { .. });
        if !later || self.trouble.as_ref().is_none_or(|trouble| trouble.full) {
            let full = matches!(e, StoreError::Full { .. });
            self.trouble = Some(Trouble { what: e.to_string(), full });
        }
    }
}

fn make_root<S: Store>(state: &mut State<S>, now: Timestamp) -> Outcome<()> {
    if state.inode(Ino::ROOT)?.is_some() {
        return Ok(());
    }
    if state.inodes() > 0 {
        return Err(Errno::EIO.into());
    }
    let mut root = Inode::new(Kind::Dir, 0o755, 0, 0, now);
    root.nlink = 2;
    root.parent = Ino::ROOT;
    state.put_inode(Ino::ROOT, root);
    state.count_inodes(1);
    state.commit()?;
    state.sync()?;
    Ok(())
}

pub(crate) fn execute<S: Store>(
    txn: &mut Txn<'_, S>,
    key: &VolumeKey,
    op: &MetaOp,
) -> Outcome<MetaReply> {
    let mut reply = run(txn, key, op)?;
    attr::for_client(txn, &mut reply)?;
    Ok(reply)
}

fn run<S: Store>(txn: &mut Txn<'_, S>, key: &VolumeKey, op: &MetaOp) -> Outcome<MetaReply> {
    match op {
        MetaOp::Lookup { parent, name } => entry::lookup(txn, *parent, name),
        MetaOp::Find { parent, name } => entry::find(txn, *parent, name),
        MetaOp::GetAttr { ino } => attr::get(txn, *ino),
        MetaOp::SetAttr { ino, set } => attr::set(txn, *ino, set),
        MetaOp::Create { parent, name, node, mode, umask, exclusive, open } => {
            let new = entry::New { node, mode: *mode, umask: *umask };
            entry::create(txn, key, *parent, name, &new, *exclusive, *open)
        }
        MetaOp::Tmpfile { parent, layout, mode, umask, open } => {
            entry::tmpfile(txn, key, *parent, *layout, *mode, *umask, *open)
        }
        MetaOp::Open { ino, access, noted } => attr::open(txn, key, *ino, *access, *noted),
        MetaOp::Commit { ino, state, close } => attr::commit(txn, *ino, state.as_ref(), *close),
        MetaOp::Closed { inos, empty, read } => attr::closed(txn, inos, empty, read),
        // The daemon syncs once for all requests; the answer is the same.
        MetaOp::Sync => Ok(MetaReply::Synced { epoch: txn.state.epoch() }),
        MetaOp::Unlink { parent, name, keep } => entry::unlink(txn, *parent, name, *keep),
        MetaOp::Rmdir { parent, name, keep } => entry::rmdir(txn, *parent, name, *keep),
        MetaOp::Rename { parent, name, new_parent, new_name, mode, keep } => {
            let from = rename::Place { dir: *parent, name };
            let to = rename::Place { dir: *new_parent, name: new_name };
            rename::rename(txn, from, to, *mode, *keep)
        }
        MetaOp::Link { ino, parent, name } => entry::link(txn, *ino, *parent, name),
        MetaOp::Readlink { ino } => attr::readlink(txn, *ino),
        MetaOp::ReadDir { dir, after, limit, plus } => {
            entry::read_dir(txn, *dir, *after, *limit, *plus)
        }
        MetaOp::GetXattr { ino, name } => xattr::get(txn, *ino, name),
        MetaOp::SetXattr { ino, name, value, mode } => xattr::set(txn, *ino, name, value, *mode),
        MetaOp::ListXattr { ino } => xattr::list(txn, *ino),
        MetaOp::RemoveXattr { ino, name } => xattr::remove(txn, *ino, name),
        MetaOp::Release { ino } => orphan::release(txn, *ino),
        MetaOp::StatVolume => Ok(MetaReply::Volume { inodes: txn.state.inodes() }),
        MetaOp::Garbage { node, limit } => orphan::garbage(txn, *node, *limit),
        MetaOp::GarbageDone { node, inos } => orphan::garbage_done(txn, *node, inos),
        MetaOp::ExpireClient { client } => orphan::expire(txn, *client),
        MetaOp::Clients => orphan::clients(txn),
        MetaOp::Unsettled { limit } => orphan::unsettled(txn, *limit),
        MetaOp::Settle { ino, state } => orphan::settle(txn, *ino, state.as_ref()),
        MetaOp::ScanInodes { after, limit } => attr::scan(txn, *after, *limit),
        MetaOp::Check { after, limit, repair } => check::check(txn, *after, *limit, *repair),
        MetaOp::Partitions { dir } => split::partitions(txn, *dir),
        MetaOp::Split { part, above } => split::split(txn, *part, *above),
        MetaOp::Ties { after, last, limit, .. } => check::ties(txn, *after, *last, *limit),
        MetaOp::NamesOf { inos, .. } => check::names_of(txn, inos),
        MetaOp::Parts { after, .. } => check::parts(txn, *after),
        MetaOp::Mend { ino, mend } => check::mend(txn, *ino, mend),
        MetaOp::InFlux { node, inos } => orphan::in_flux(txn, *node, inos),
        MetaOp::AddPieces { ino, nodes } => tiled::add_pieces(txn, *ino, nodes),
        MetaOp::Publish { ino, parts, cuts, base } => {
            tiled::publish(txn, *ino, parts, cuts, base.as_ref())
        }
        MetaOp::Reserve { ino, nodes } => tiled::reserve(txn, *ino, nodes),
        MetaOp::Relayout { ino, pieces, base, state } => {
            tiled::relayout(txn, *ino, pieces, *base, state)
        }
        MetaOp::Tiles { ino, after, limit } => tiled::tiles(txn, *ino, *after, *limit),
        MetaOp::GarbagePieces { node, limit } => orphan::dropped(txn, *node, *limit),
        MetaOp::GarbagePiecesDone { node, pieces } => orphan::dropped_done(txn, *node, pieces),
        MetaOp::Job { ino, open, rank, joined, op } => {
            let who = job::JobRank { ino: *ino, open: *open, rank: *rank };
            job::run(txn, who, *joined, *op)
        }
        MetaOp::Clear { dir, after, limit, .. } => act::clear_nothing(txn, *dir, *after, *limit),
        MetaOp::Sum { dir, after, limit } => act::sum(txn, *dir, *after, *limit),
        // The operations of a batch are run one by one; names to sync are looked up before. Locks
        // are handled by the node, and do not come here.
        MetaOp::Acts { .. } | MetaOp::SyncNames { .. } | MetaOp::Locks { .. } => {
            Err(Errno::EINVAL.into())
        }
    }
}
