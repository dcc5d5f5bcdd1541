//! The shards of one node: the interface that the daemon calls.

use crate::context::{MetaConfig, OperationContext};
use crate::error::{MetaOpenError, MetaOutcome, OperationFailure};
use crate::execute::execute_operation;
use crate::inode::Inode;
use crate::migration::moves::ShardMoves;
use crate::namespace::{Meta, OperatorAlert};
use crate::operation::Txn;
use crate::session::{ReplySlots, SlotAdmission};
use crate::state::MetaState;
use crate::store::{BackgroundTask, Store, StoreError, SyncWork};
use crate::transaction::messages::{Applied, ChangedInode, FinishedOperation, OutgoingMessage};
use crate::transaction::tables::Transactions;
use crate::{garbage, inline, job, keys};
use std::sync::Arc;
use tatami_wire::delegation::PartitionAttr;
use tatami_wire::meta::{MetaOp, MetaReply, MetaResult, SYNC_NAMES_MAX};
use tatami_wire::transaction::PeerMessage;
use tatami_wire::{
    Attr, ClientId, Cred, Errno, ExecutorId, Ino, InodeKind, NodeId, ShardId, Timestamp,
};

/// An unacknowledged outcome is sent again after this many ms, where participants acknowledge only
/// after a sync, which takes up to a second. A participant that did not get the outcome asks by
/// itself, and much sooner.
const RESEND_DECISION_MS: u64 = 2000;

impl<S: Store> Meta<S> {
    /// Opens the shards in `store`. In an empty store, the node of shard 0 makes the root
    /// directory, owned by the superuser, with mode 0755 and the time `now`.
    ///
    /// # Errors
    /// A store of another volume, node or newer format, a damaged one, and those of the disk.
    pub fn open(store: S, config: MetaConfig, now: Timestamp) -> Result<Meta<S>, MetaOpenError> {
        let mut state = MetaState::open(store, config.volume, config.executor, config.map)?;
        if state.lost_bound() > 0 {
            // The objects of lost inodes still exist, so none of their numbers is allocated again.
            state.raise_reserved(state.reserved().saturating_add(state.lost_bound()));
            state.commit()?;
            state.sync()?;
        }
        if state.owns_shard(Ino::ROOT.owner_shard()) {
            make_root(&mut state, now).map_err(|e| match e {
                OperationFailure::Store(e) => MetaOpenError::Store(*e),
                OperationFailure::Damaged(e) => MetaOpenError::Damaged(e.0),
                _ => MetaOpenError::Damaged("root directory"),
            })?;
        }
        // The notifications of the last run may be lost, so all garbage is announced again.
        let garbage = garbage::garbage_nodes(&state).map_err(|e| match e {
            OperationFailure::Store(e) => MetaOpenError::Store(*e),
            _ => MetaOpenError::Damaged("garbage record"),
        })?;
        let tx = Transactions::open(&mut state, now).map_err(|e| match e {
            OperationFailure::Store(e) => MetaOpenError::Store(*e),
            _ => MetaOpenError::Damaged("transaction record"),
        })?;
        let sessions = ReplySlots::default();
        let moves = ShardMoves::default();
        let mut meta = Meta { state, key: config.key, sessions, garbage, trouble: None, tx, moves };
        meta.open_moves().map_err(|e| match e {
            OperationFailure::Store(e) => MetaOpenError::Store(*e),
            _ => MetaOpenError::Damaged("record of a move"),
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
    /// [`Meta::operator_alert`]).
    pub fn apply(&mut self, ctx: &OperationContext, cred: &Cred, op: &MetaOp) -> Applied {
        self.clear_touched_inodes();
        if !cred.is_valid() {
            return Applied::Done(Err(Errno::EINVAL));
        }
        if !op.is_for_users() && !ctx.trusted {
            return Applied::Done(Err(Errno::EPERM));
        }
        if self.state.is_spread() {
            self.tx.now = self.tx.now.max(ctx.now);
            // A repeated request must not start its operation a second time.
            if let Some(applied) = self.waiting_reply(ctx) {
                return applied;
            }
        }
        let result = match op.is_mutation() {
            true => self.apply_mutation(ctx, cred, op),
            false => self.run_read(ctx, cred, op),
        };
        if !self.state.large_changes.is_empty() {
            self.plan_splits();
        }
        match result {
            Ok(result) => Applied::Done(result),
            Err(OperationFailure::Missing(_) | OperationFailure::Locked(_)) => {
                // The local run had no effect. It becomes a transaction, whose first run starts
                // afresh.
                self.clear_touched_inodes();
                self.begin_operation(ctx, cred, op)
            }
            Err(OperationFailure::WrongPartition(part, range)) => {
                Applied::Done(Ok(MetaReply::WrongPartition { part, range }))
            }
            Err(e) => {
                let errno = self.record_failure(&e);
                // A failed mutation is remembered: its repetition gets the same error, and is not
                // run again.
                if op.is_mutation() && errno != Errno::EPROTO {
                    self.sessions.record_failure(ctx, errno);
                }
                Applied::Done(Err(errno))
            }
        }
    }

    fn run_read(
        &mut self,
        ctx: &OperationContext,
        cred: &Cred,
        op: &MetaOp,
    ) -> MetaOutcome<MetaResult> {
        if let Some(elsewhere) = self.check_op_owner(op)? {
            return Ok(Ok(elsewhere));
        }
        if let MetaOp::SyncNames { inos } = op {
            return Ok(self.sync_names(inos));
        }
        if let MetaOp::Batch { operations } = op {
            return self.run_batch(ctx, cred, operations).map(|(reply, _)| Ok(reply));
        }
        let mut txn = Txn::new(&mut self.state, ctx, cred);
        let result = execute_operation(&mut txn, &self.key, op);
        debug_assert!(!txn.has_writes(), "a reading operation wrote");
        drop(txn);
        result.map(Ok)
    }

    /// Answers a request to sync names. As for [`MetaOp::Sync`], the daemon syncs before the answer
    /// leaves. A participant of a transaction has written a lock record for it, so its sync covers
    /// its part.
    fn sync_names(&self, inos: &[Ino]) -> MetaResult {
        if inos.len() > SYNC_NAMES_MAX {
            return Err(Errno::EINVAL);
        }
        let (epoch, also) = (self.state.epoch(), self.unsynced_participants(inos));
        Ok(MetaReply::NamesSynced { epoch, unsynced: also })
    }

    /// Returns the answer to an operation that another node must run, or `None`.
    pub(crate) fn check_op_owner(&self, op: &MetaOp) -> MetaOutcome<Option<MetaReply>> {
        if !self.state.is_spread() || op.is_for_all_shards() {
            return Ok(None);
        }
        let known = |ino: &Ino| self.state.is_shard(ino.owner_shard());
        let ours = |ino: &Ino| self.state.owns_shard(ino.owner_shard());
        let (all_known, all_ours) = match op {
            MetaOp::ReportClosed { inos, empty, read } => {
                let mut all = inos.iter().chain(empty).chain(read);
                (all.clone().all(known), all.all(ours))
            }
            MetaOp::ListInFlight { inos, .. } => (inos.iter().all(known), inos.iter().all(ours)),
            // The operations of a batch are checked one by one.
            MetaOp::Batch { .. } => return Ok(None),
            _ => (known(&op.target_inode()), ours(&op.target_inode())),
        };
        self.wrong_shard_reply(all_known, all_ours)
    }

    /// Returns the answer to an operation on a shard of another node, or `None`.
    pub(crate) fn check_shard_owner(&self, shard: ShardId) -> MetaOutcome<Option<MetaReply>> {
        self.wrong_shard_reply(self.state.is_shard(shard), self.state.owns_shard(shard))
    }

    fn wrong_shard_reply(&self, all_known: bool, all_ours: bool) -> MetaOutcome<Option<MetaReply>> {
        if !all_known {
            return Err(Errno::ESTALE.into());
        }
        Ok((!all_ours).then_some(MetaReply::WrongShard { epoch: self.state.epoch() }))
    }

    fn apply_mutation(
        &mut self,
        ctx: &OperationContext,
        cred: &Cred,
        op: &MetaOp,
    ) -> MetaOutcome<MetaResult> {
        // Before anything else: a repeated request is answered from the record of its first run
        // (exactly once).
        if let SlotAdmission::Replay(answer) = self.sessions.admit_request(&self.state, ctx)? {
            return Ok(answer);
        }
        // After the replay: answers that were committed before the failure are still given.
        if self.state.is_poisoned() {
            return Err(Errno::EIO.into());
        }
        if let Some(elsewhere) = self.check_op_owner(op)? {
            return Ok(Ok(elsewhere));
        }
        let (reply, wrote) = self.run_mutation(ctx, cred, op)?;
        if let MetaOp::ExpireClient { client } = op {
            self.sessions.forget_client(*client);
        }
        self.sessions.record_success(ctx, wrote);
        Ok(Ok(reply))
    }

    /// Returns the inodes that the last [`Meta::apply`] has read, maybe more than once: its answer
    /// depends on nothing else that can be delegated. Empty for a replayed answer.
    pub fn seen_inodes(&self) -> &[Ino] {
        &self.state.seen
    }

    /// Returns the inodes that the last [`Meta::apply`] has changed: their attributes or (of
    /// directories) their entries.
    pub fn changed_inodes(&self) -> &[ChangedInode] {
        &self.state.changed
    }

    /// Empties [`Meta::seen_inodes`] and [`Meta::changed_inodes`], for an answer that was given
    /// without [`Meta::apply`].
    pub fn clear_touched_inodes(&mut self) {
        self.state.clear_touched_inodes();
    }

    /// Handles a message of another executor, whose node is authenticated. Messages may be lost,
    /// and may come twice.
    pub fn receive_message(&mut self, now: Timestamp, from: ExecutorId, message: PeerMessage) {
        // The handshake refuses an executor that takes this one's name.
        assert_ne!(from, self.tx.here, "an executor sends itself a message");
        self.tx.now = self.tx.now.max(now);
        // The content of the disk is unknown then, so no other executor may act on it.
        if !self.state.is_poisoned() {
            self.handle_message(from, message);
            self.resume_freed();
            self.plan_splits();
            self.clear_touched_inodes();
        }
    }

    /// Handles all that is due by now. Must be called when [`Meta::deadline`] is over.
    pub fn tick(&mut self, now: Timestamp) {
        self.tx.now = self.tx.now.max(now);
        if !self.state.is_poisoned() {
            self.begin_splits();
            self.tick_jobs();
            self.tick_moves();
            self.request_late_outcomes();
            self.tx.send_due_acks();
            // The steps above may have released locks: their waiters continue in this batch.
            self.resume_freed();
            self.plan_splits();
            self.clear_touched_inodes();
        }
    }

    /// Returns when [`Meta::tick`] must be called, if nothing happens before.
    pub fn deadline(&self) -> Option<Timestamp> {
        if self.state.is_poisoned() {
            return None;
        }
        let jobs = self.tx.jobs.values().map(|job| job.next_due());
        let decided = (!self.tx.decided.is_empty()).then_some(self.tx.finish_at);
        let waiting = self.tx.waiting.iter().map(|waiting| waiting.ask_at);
        let held = self.state.locks.held().values().map(|held| held.ask_at);
        let freed = self.tx.released.first().map(|_| self.tx.now);
        let splits = self.tx.splits.next_due();
        let acks = self.tx.acks.next_due();
        let moves = self.moves.next_due(self.tx.now);
        let due = jobs.chain(decided).chain(waiting).chain(held).chain(freed).chain(splits);
        due.chain(acks).chain(moves).min()
    }

    /// Takes the messages to other nodes. They appear only after a [`Meta::commit`] (and a
    /// [`Meta::sync`], where answers wait for one), and may leave at once except for
    /// [`OutgoingMessage::changed`](crate::Out).
    pub fn take_outbox(&mut self) -> Vec<OutgoingMessage> {
        self.tx.take_messages()
    }

    /// Takes the answers to operations that had to wait, likewise.
    pub fn take_finished(&mut self) -> Vec<FinishedOperation> {
        std::mem::take(&mut self.tx.ready_finished)
    }

    /// Records that a returning client has these files open: as after [`MetaOp::Open`] with
    /// `noted`. Skips those of other executors.
    pub fn record_opens(&mut self, client: ClientId, inos: &[Ino]) {
        for ino in inos {
            if self.state.owns_shard(ino.owner_shard()) {
                self.state.opens.record_open(*ino, client);
            }
        }
    }

    /// Returns whether the inode must not be delegated: a transaction is about to change it or (of
    /// a directory) its entries, or it is a directory and this node has only a part of it.
    pub fn is_locked(&mut self, ino: Ino) -> bool {
        let parted = |inode: Arc<Inode>| inode.is_partitioned();
        self.state.locks.is_changing(ino)
            || self.tx.splits.is_locked(ino)
            || self.state.is_spread()
                && self.state.load_inode(ino).ok().flatten().is_some_and(parted)
    }

    /// Returns the number of transactions in progress here: as coordinator, or with locks.
    pub fn count_in_progress(&self) -> usize {
        let planned = self.tx.jobs.len() + self.tx.splits.count_planned();
        let moves = self.moves.count_active();
        planned + moves + self.tx.decided.len() + self.state.locks.held().len()
    }

    /// Returns one of several partitions of a directory; `None` where `ino` is not a partition, its
    /// record cannot be decoded, or a transaction is about to change it.
    pub fn partition_info(&mut self, ino: Ino) -> Option<PartitionAttr> {
        if !self.state.is_spread()
            || self.state.locks.is_changing(ino)
            || self.tx.splits.is_locked(ino)
        {
            return None;
        }
        let part =
            self.state.load_inode(ino).ok().flatten().filter(|inode| inode.is_partitioned())?;
        Some(PartitionAttr { attr: part.to_attr(ino), range: part.range })
    }

    /// Returns the current attributes of an inode; `None` where there is none, its record cannot be
    /// decoded, or a transaction is about to change it.
    pub fn current_attr(&mut self, ino: Ino) -> Option<Attr> {
        if self.is_locked(ino) {
            return None;
        }
        if let Some(inode) = self.state.load_inode(ino).ok().flatten() {
            return (!inode.is_partitioned()).then(|| inode.to_attr(ino));
        }
        if !self.state.is_spread() || !self.state.owns_shard(ino.allocating_shard()) {
            return None;
        }
        let record = self.state.get(&keys::embedded_dir(ino)).ok().flatten()?;
        Inode::decode(&record).ok().map(|inode| inode.to_attr(ino))
    }

    /// Returns the attributes of an inode, or of its first partition if it is a split directory.
    /// `None` as for [`Meta::current_attr`].
    pub fn own_attr(&mut self, ino: Ino) -> Option<Attr> {
        self.current_attr(ino).or_else(|| self.partition_info(ino).map(|part| part.attr))
    }

    /// Returns all bytes of a file that lie beside its inode; `None` for any other inode, and as
    /// for [`Meta::current_attr`].
    pub fn inline_bytes(&mut self, ino: Ino) -> Option<Vec<u8>> {
        if self.is_locked(ino) {
            return None;
        }
        inline::load_all_bytes(&mut self.state, ino)
    }

    /// Returns the holder of the lock that the ranks of an open of `ino` share: a client, and its
    /// rank of the open. `None` also where the store fails.
    pub fn job_holder(&self, ino: Ino, open: u64) -> Option<(ClientId, u32)> {
        job::lock_holder(&self.state, ino, open).ok().flatten()
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
        let room = self.state.has_known_room();
        let result = self.state.commit();
        match &result {
            // Messages and answers may leave only from here on.
            Ok(()) => {
                self.tx.mark_committed();
                assert!(!self.is_dirty(), "a commit leaves a change behind");
            }
            Err(e) => {
                let errno = e.errno();
                if let Err(failure) = self.undo_uncommitted(errno) {
                    self.record_failure(&failure);
                }
            }
        }
        match &result {
            Ok(()) if room => drop(self.trouble.take_if(|trouble| trouble.full)),
            Ok(()) => {}
            Err(e) => {
                // The replies in memory belong to operations that were undone.
                self.sessions.clear();
                self.record_store_error(e);
            }
        }
        result
    }

    fn undo_uncommitted(&mut self, errno: Errno) -> MetaOutcome<()> {
        self.tx.undo_uncommitted(&mut self.state, errno)?;
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
            Ok(()) => self.tx.acks.end_sync(),
            Err(e) => self.record_store_error(e),
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
            Ok(None) => self.tx.acks.end_sync(),
            Err(e) => self.record_store_error(e),
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
            Ok(()) => self.tx.acks.end_sync(),
            Err(e) => self.record_store_error(e),
        }
        result
    }

    /// Delays acknowledgements until they are durable: a coordinator remembers its decision until
    /// the participant's part survives a power cut, not only the process. For executors that do not
    /// sync each commit.
    pub fn acknowledge_after_sync(&mut self) {
        self.tx.acks.wait_for_sync = true;
        self.tx.finish_again = RESEND_DECISION_MS;
    }

    /// Returns when the oldest transaction was decided here that is not known to be applied durably
    /// everywhere.
    pub fn oldest_unfinished(&self) -> Option<Timestamp> {
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
    pub fn inode_count(&self) -> u64 {
        self.state.inode_count()
    }

    /// Returns the shard's problem, for `status`: the failure of the store, a damaged record, or a
    /// full disk until there is room again. `None` while all is well.
    pub fn operator_alert(&self) -> Option<&str> {
        self.trouble.as_ref().map(|trouble| trouble.what.as_str())
    }

    /// Returns whether the problem is a full disk.
    pub fn is_full(&self) -> bool {
        self.trouble.as_ref().is_some_and(|trouble| trouble.full)
    }

    /// Checks whether a disk that was full has room again, and clears that problem then. A commit
    /// does so, too, but there may be no change to commit.
    pub fn recheck_room(&mut self) {
        if self.is_full() && self.state.store.retry_after_full() {
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
    pub fn take_background_task(&mut self) -> Option<BackgroundTask> {
        self.state.store.take_background_task()
    }

    /// Closes the shard, without a commit, and returns the store.
    pub fn into_store(self) -> S {
        self.state.store
    }

    /// Returns the store, for a test that inspects it or makes it fail.
    pub fn store_mut(&mut self) -> &mut S {
        &mut self.state.store
    }

    pub(crate) fn record_failure(&mut self, failure: &OperationFailure) -> Errno {
        if let Some(what) = failure.operator_message() {
            self.trouble = Some(OperatorAlert { what, full: failure.is_full() });
        }
        failure.errno()
    }

    fn record_store_error(&mut self, e: &StoreError) {
        // The first failure is the cause; later ones only report that there was one.
        let later = matches!(e, StoreError::Poisoned { .. });
        if !later || self.trouble.as_ref().is_none_or(|trouble| trouble.full) {
            let full = matches!(e, StoreError::Full { .. });
            self.trouble = Some(OperatorAlert { what: e.to_string(), full });
        }
    }
}

fn make_root<S: Store>(state: &mut MetaState<S>, now: Timestamp) -> MetaOutcome<()> {
    if state.load_inode(Ino::ROOT)?.is_some() {
        return Ok(());
    }
    if state.inode_count() > 0 {
        return Err(Errno::EIO.into());
    }
    let mut root = Inode::new(InodeKind::Dir, 0o755, 0, 0, now);
    root.nlink = 2;
    root.parent = Ino::ROOT;
    state.put_inode(Ino::ROOT, root);
    state.count_inodes(1);
    state.commit()?;
    state.sync()?;
    Ok(())
}
