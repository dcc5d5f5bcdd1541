//! The participant: operations that other executors coordinate.
//!
//! It locks records for them, prepares writes, and applies or drops them by the coordinator's
//! decision.

use crate::context::OperationContext;
use crate::error::{MetaOutcome, OperationFailure};
use crate::inode::Inode;
use crate::keys::{self, ParsedKey, RecordKey};
use crate::millis::add_millis;
use crate::namespace::Meta;
use crate::operation::Txn;
use crate::store::Store;
use crate::transaction::intervals::{ASK_AGAIN, ASK_SOON};
use crate::transaction::lock_set::LockReply;
use crate::transaction::locks::inode_of;
use crate::transaction::messages::{ChangedInode, OutgoingMessage};
use crate::transaction::participations::WaitingRequest;
use crate::transaction::peer_value::{hash_value, peer_value};
use crate::transaction::record::{LockRecord, ParticipantWrites};
use crate::transaction::split_plan::NO_CLIENT;
use std::collections::BTreeSet;
use tatami_wire::meta::Bytes;
use tatami_wire::transaction::{
    PeerMessage, RecordDigest, RecordItem, Refusal, TransactionAge, Txid,
};
use tatami_wire::{ClientId, Cred, Errno, ExecutorId, Ino};

/// The coordinator of a lock that is held for this long (in ms) is asked for the outcome.
const ASK_OUTCOME_MS: u64 = 500;
/// Most waiting requests of other executors. More are dropped, and are sent again by their
/// coordinators.
const WAITING_MAX: usize = 4096;
/// Most records in one message.
const KEYS_MAX: usize = 64 * 1024;

/// A record as a transaction leaves it. `more` is the change of the number of inodes; `before`:
/// whether there was such a record.
#[expect(clippy::large_enum_variant)] // most are inodes, and few exist at a time
enum RecordWrite {
    Inode { ino: Ino, inode: Option<Inode>, more: i64 },
    EmbeddedDir { key: RecordKey, value: Option<Vec<u8>>, before: bool },
    Other { key: RecordKey, value: Option<Vec<u8>> },
}

/// The fields of [`PeerMessage::Lock`].
pub(super) struct PeerLockRequest {
    pub txid: Txid,
    pub age: TransactionAge,
    pub client: ClientId,
    pub incarnation: Option<u64>,
    pub request: u32,
    pub may_wait: bool,
    pub reads: Vec<Bytes>,
    pub writes: Vec<Bytes>,
}

impl<S: Store> Meta<S> {
    /// Returns the values of records to a coordinator. Waits for those that are being written.
    pub(super) fn serve_fetch(
        &mut self,
        from: ExecutorId,
        request: Txid,
        age: TransactionAge,
        keys: Vec<Bytes>,
    ) -> MetaOutcome<()> {
        if keys.len() > KEYS_MAX {
            return Ok(());
        }
        // The coordinator has an old shard map. It starts afresh with the new one.
        if !keys.iter().all(|key| self.state.has_local_key(key)) {
            self.send_map(from);
            return Ok(());
        }
        // A locked record may be decided already, with its new value still under way. Neither value
        // is certain until the lock is gone.
        let locks = &self.state.locks;
        let on = keys.iter().filter_map(|key| {
            locks.read_blocker(key).or_else(|| locks.exclusive.record_blocker(key, None))
        });
        let on: Vec<_> = on.collect();
        if !on.is_empty() {
            self.queue_request(from, PeerMessage::FetchRecords { request, age, keys }, age, on);
            return Ok(());
        }
        let seen = keys.iter().filter_map(|key| inode_of(key)).collect();
        let mut values = Vec::with_capacity(keys.len());
        for key in keys {
            values.push(peer_value(&mut self.state, &key.into_vec())?.map(Bytes::from));
        }
        let incarnation = self.tx.incarnation;
        self.tx.send_with_inodes(
            from,
            PeerMessage::RecordsFetched { request, incarnation, values },
            seen,
        );
        Ok(())
    }

    /// Locks records for an operation of another executor, and returns their values.
    pub(super) fn serve_lock(
        &mut self,
        from: ExecutorId,
        wanted: PeerLockRequest,
    ) -> MetaOutcome<()> {
        let PeerLockRequest {
            txid,
            age,
            client,
            incarnation,
            request,
            may_wait: waits,
            reads,
            writes,
        } = wanted;
        let held = self.state.locks.held().get(&txid).map(|held| held.prepared.incarnation);
        // A coordinator with an old shard map gets the new one and restarts.
        let known = |key: &Bytes| self.state.has_local_key(key);
        if !reads.iter().chain(&writes).all(known) {
            self.send_map(from);
            self.tx.send_message(from, PeerMessage::Refused { txid, why: Refusal::Retry });
            return Ok(());
        }
        // Refuse messages that came late: the transaction is over, or its first locks were lost
        // with an earlier incarnation.
        if txid.executor != from
            || self.tx.ended.contains(&txid)
            || incarnation.is_some_and(|incarnation| held != Some(incarnation))
            || reads.len() + writes.len() > KEYS_MAX
        {
            self.tx.send_message(from, PeerMessage::Refused { txid, why: Refusal::Retry });
            return Ok(());
        }
        let readers = reads.iter().filter_map(|key| self.state.locks.read_blocker(key));
        let writers = writes.iter().flat_map(|key| self.state.locks.write_blockers(key));
        let exclusive = &self.state.locks.exclusive;
        let delegated = reads.iter().chain(&writes);
        let delegated = delegated.filter_map(|key| exclusive.record_blocker(key, Some(client)));
        let holders = readers.chain(writers).chain(delegated);
        let mut on: BTreeSet<Txid> = holders.filter(|holder| *holder != txid).collect();
        // A move waits for the transactions that hold locks in its shards. Those get their other
        // locks there, or both would wait for ever.
        if let Some((block, by)) = self.state.locks.closed_block()
            && self.state.locks.holds_locks_in(&txid, block)
        {
            on.remove(&by);
        }
        if !on.is_empty() {
            let on: Vec<_> = on.into_iter().collect();
            let message =
                PeerMessage::Lock { txid, age, client, incarnation, request, waits, reads, writes };
            // A transaction without other locks cannot be part of a cycle: it may wait for any. One
            // that holds locks waits for younger ones only (wait-die).
            match waits {
                true => self.queue_request(from, message, age, on),
                false => self.wait_or_refuse(from, txid, message, age, on),
            }
            return Ok(());
        }
        let mut values = Vec::with_capacity(reads.len() + writes.len());
        for key in reads.iter().chain(&writes) {
            values.push(peer_value(&mut self.state, &key.to_vec())?.map(Bytes::from));
        }
        let inodes =
            |keys: &[Bytes]| sort_and_dedup(keys.iter().filter_map(|k| inode_of(k)).collect());
        // The new values are not known yet, so a directory may change in all that it has.
        let locked = |ino| ChangedInode { recalls_own: true, ..ChangedInode::of_all(ino) };
        let changed = inodes(&writes).into_iter().map(locked).collect();
        let seen = inodes(&reads);
        // The lock record goes to the log before the reply leaves, so a restart does not lose the
        // lock.
        let incarnation = self.record_locks(txid, age, reads, writes)?;
        let room = self.state.has_room();
        let message = PeerMessage::Locked { txid, incarnation, request, room, values };
        self.tx.staged_messages.push(OutgoingMessage {
            changed,
            client: Some(client).filter(|client| *client != NO_CLIENT),
            seen,
            ..OutgoingMessage::new(from, message)
        });
        Ok(())
    }

    /// Adds these locks to those of the transaction. Returns the incarnation that granted the first
    /// of them.
    fn record_locks(
        &mut self,
        txid: Txid,
        age: TransactionAge,
        reads: Vec<Bytes>,
        writes: Vec<Bytes>,
    ) -> MetaOutcome<u64> {
        let before = self.state.locks.held().get(&txid).map(|held| &held.prepared);
        let mut prepared = before.cloned().unwrap_or(LockRecord {
            age,
            incarnation: self.tx.incarnation,
            reads: Vec::new(),
            intents: Vec::new(),
            writes: Vec::new(),
        });
        let intents: BTreeSet<Bytes> = prepared.intents.drain(..).chain(writes).collect();
        let seen: BTreeSet<Bytes> = prepared.reads.drain(..).chain(reads).collect();
        prepared.reads = seen.into_iter().filter(|key| !intents.contains(key)).collect();
        prepared.intents = intents.into_iter().collect();
        let incarnation = prepared.incarnation;
        // A repeated message changes nothing.
        if before != Some(&prepared) {
            self.state.put_record(keys::lock_record(txid), Some(prepared.encode()?));
            self.state.locks.remove(&txid);
            let ask_at = add_millis(self.tx.now, ASK_OUTCOME_MS);
            self.state.locks.insert(txid, prepared, ask_at);
        }
        let held = self.state.locks.held().get(&txid);
        assert!(
            held.is_some_and(|held| held.prepared.incarnation == incarnation),
            "a participant has voted without its locks"
        );
        Ok(incarnation)
    }

    /// Lets a request wait that holds locks elsewhere, unless an older transaction is in its way
    /// (wait-die).
    fn wait_or_refuse(
        &mut self,
        from: ExecutorId,
        txid: Txid,
        message: PeerMessage,
        age: TransactionAge,
        on: Vec<Txid>,
    ) {
        let older = |holder: &Txid| self.state.locks.age_of(holder).is_some_and(|held| held < age);
        if !on.iter().any(older) {
            return self.queue_request(from, message, age, on);
        }
        // The older one's coordinator may have died: its locks must not stay for ever.
        on.iter().for_each(|holder| self.request_outcome(*holder, None));
        // Remembered, so that a late copy of the request gets no lock after the refusal.
        self.tx.ended.record_end(txid);
        self.tx.send_message(from, PeerMessage::Refused { txid, why: Refusal::Retry });
    }

    /// Prepares a part of a split: validates its reads, locks its records and stores its writes
    /// (first phase).
    pub(super) fn serve_prepare(
        &mut self,
        from: ExecutorId,
        txid: Txid,
        age: TransactionAge,
        incarnation: u64,
        reads: Vec<RecordItem<RecordDigest>>,
        writes: Vec<RecordItem<Bytes>>,
    ) -> MetaOutcome<()> {
        // The coordinator repeats a prepare whose reply was lost.
        if self.state.locks.held().contains_key(&txid) {
            let (changed, seen) = (list_written(&writes), read_inodes(&reads));
            let message = PeerMessage::Prepared { txid };
            self.tx.staged_messages.push(OutgoingMessage {
                changed,
                seen,
                ..OutgoingMessage::new(from, message)
            });
            return Ok(());
        }
        let refused = |why| PeerMessage::Refused { txid, why };
        let known = |key: &[u8]| self.state.has_local_key(key);
        let reads_known = reads.iter().all(|item| known(&item.key));
        if !reads_known || !writes.iter().all(|item| known(&item.key)) {
            self.send_map(from);
            self.tx.send_message(from, refused(Refusal::Retry));
            return Ok(());
        }
        // Refuse a prepare for an earlier incarnation, whose list of ended transactions is lost,
        // and one of a transaction that is over.
        if txid.executor != from
            || incarnation != self.tx.incarnation
            || self.tx.ended.contains(&txid)
            || reads.len() + writes.len() > KEYS_MAX
        {
            self.tx.send_message(from, refused(Refusal::Retry));
            return Ok(());
        }
        let mut on: Vec<Txid> =
            reads.iter().filter_map(|item| self.state.locks.read_blocker(&item.key)).collect();
        for item in &writes {
            on.extend(self.state.locks.write_blockers(&item.key));
        }
        let touched = reads.iter().map(|item| &item.key).chain(writes.iter().map(|item| &item.key));
        let exclusive = &self.state.locks.exclusive;
        on.extend(touched.filter_map(|key| exclusive.record_blocker(key, None)));
        if !on.is_empty() {
            on.sort_unstable();
            on.dedup();
            let message = PeerMessage::Prepare { txid, age, incarnation, reads, writes };
            self.wait_or_refuse(from, txid, message, age, on);
            return Ok(());
        }
        // Read validation: the split was computed from these values.
        for item in &reads {
            let now = peer_value(&mut self.state, &item.key.to_vec())?;
            if now.as_deref().map(hash_value) != item.value {
                self.tx.ended.record_end(txid);
                self.tx.send_message(from, refused(Refusal::Retry));
                return Ok(());
            }
        }
        // Removed records free space, so removals are always accepted.
        if !self.state.has_room() && self.adds_records(&writes)? {
            self.tx.ended.record_end(txid);
            self.tx.send_message(from, refused(Refusal::DiskFull));
            return Ok(());
        }
        let (changed, seen) = (list_written(&writes), read_inodes(&reads));
        let only_read =
            |item: &RecordItem<RecordDigest>| !writes.iter().any(|write| write.key == item.key);
        let reads = reads.into_iter().filter(only_read).map(|item| item.key).collect();
        let prepared = LockRecord { age, incarnation, reads, intents: Vec::new(), writes };
        // It is part of a split: see `Meta::commit_operation`.
        self.moves.wants_sync = true;
        // The vote binds this executor: it must keep the writes until the coordinator decides.
        self.state.put_record(keys::lock_record(txid), Some(prepared.encode()?));
        let ask_at = add_millis(self.tx.now, ASK_OUTCOME_MS);
        self.state.locks.insert(txid, prepared, ask_at);
        let held = self.state.locks.held().get(&txid);
        assert!(
            held.is_some_and(|held| held.prepared.incarnation == incarnation),
            "a participant has voted without its locks"
        );
        let message = PeerMessage::Prepared { txid };
        self.tx.staged_messages.push(OutgoingMessage {
            changed,
            seen,
            ..OutgoingMessage::new(from, message)
        });
        Ok(())
    }

    /// Returns whether the writes add records.
    fn adds_records(&self, writes: &[RecordItem<Bytes>]) -> MetaOutcome<bool> {
        for item in writes.iter().filter(|item| item.value.is_some()) {
            if self.state.get(&item.key)?.is_none() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Applies the decision (second phase): the new values take effect, or none without a `part`.
    /// They do not if they took effect in an earlier incarnation, and the locks are those of a late
    /// message.
    pub(super) fn apply_decision(
        &mut self,
        txid: Txid,
        part: Option<ParticipantWrites>,
    ) -> MetaOutcome<()> {
        // A request of this transaction that still waits must not get a lock after the end.
        self.tx.waiting.retain(|waiting| match waiting.message {
            PeerMessage::Prepare { txid: waits, .. } | PeerMessage::Lock { txid: waits, .. } => {
                waits != txid
            }
            _ => true,
        });
        // A late prepare or lock message must not revive it.
        self.tx.ended.record_end(txid);
        let happened = part.is_some();
        if let Some(held) = self.state.locks.held().get(&txid) {
            // All that may fail comes before the first change.
            let writes = match part {
                Some(part) if part.incarnation == held.prepared.incarnation => {
                    let prepared = held.prepared.writes.clone();
                    self.plan_writes(prepared.into_iter().chain(part.writes))?
                }
                _ => Vec::new(),
            };
            self.state.locks.remove(&txid);
            // The lock record and the new values change in one batch. A restart finds both or
            // neither.
            self.state.put_record(keys::lock_record(txid), None);
            let buried: Vec<_> =
                writes.into_iter().filter_map(|write| self.apply_write(write)).collect();
            for ino in buried {
                self.remove_dead_inode(ino)?;
            }
        }
        // Also where no lock was held: a request may wait for locks that a full disk refused.
        self.resume_waiters(txid)?;
        // Its own requests are gone from the waiting ones, and late ones are refused.
        assert!(
            !self.state.locks.held().contains_key(&txid),
            "a transaction that has ended holds locks"
        );
        if happened {
            // The acknowledgement leaves after the commit of this batch. Then the coordinator
            // forgets the decision.
            self.tx.acks.record_finished(txid, self.tx.now);
        }
        Ok(())
    }

    /// Returns the writes of the transaction here, in the form that the state takes.
    fn plan_writes(
        &mut self,
        items: impl Iterator<Item = RecordItem<Bytes>>,
    ) -> MetaOutcome<Vec<RecordWrite>> {
        let mut writes = Vec::new();
        for RecordItem { key, value } in items {
            let (key, value) = (key.into_vec(), value.map(Bytes::into_vec));
            let before = self.state.get(&key)?;
            match keys::parse(&key) {
                // This key stands for the parent in an inode's record, which is written by its own
                // key.
                Some(ParsedKey::Ancestor(_)) => {}
                Some(ParsedKey::Inode(ino)) => {
                    let inode = value.as_deref().map(Inode::decode).transpose()?;
                    let before = before.as_deref().map(Inode::decode).transpose()?;
                    // Partitions are not counted.
                    let count = |inode: Option<&Inode>| {
                        i64::from(inode.is_some_and(|i| !i.is_later_partition()))
                    };
                    let more = count(inode.as_ref()) - count(before.as_ref());
                    writes.push(RecordWrite::Inode { ino, inode, more });
                }
                Some(ParsedKey::EmbeddedDir(_)) => {
                    let before = before.is_some();
                    writes.push(RecordWrite::EmbeddedDir { key, value, before });
                }
                Some(_) => writes.push(RecordWrite::Other { key, value }),
                // A key that no record has, from an executor that is broken.
                None => return Err(OperationFailure::Errno(Errno::EINVAL)),
            }
        }
        Ok(writes)
    }

    /// Writes the record. Returns the inode if nothing holds it any more.
    fn apply_write(&mut self, write: RecordWrite) -> Option<Ino> {
        match write {
            RecordWrite::Inode { ino, inode: Some(inode), more } => {
                let dead = inode.is_unreferenced();
                self.state.count_inodes(more);
                self.state.put_inode(ino, inode);
                return dead.then_some(ino);
            }
            RecordWrite::Inode { ino, inode: None, more } => {
                self.state.count_inodes(more);
                self.state.delete_inode(ino);
            }
            RecordWrite::EmbeddedDir { key, value, before } => {
                self.state.count_inodes(i64::from(value.is_some()) - i64::from(before));
                self.state.put_record(key, value);
            }
            RecordWrite::Other { key, value } => self.state.put_record(key, value),
        }
        None
    }

    /// Removes an inode that lost its last name by a transaction, with all records that belong to
    /// it.
    fn remove_dead_inode(&mut self, ino: Ino) -> MetaOutcome<()> {
        // A move may have closed the inode's shard. It waits for this transaction, so no record of
        // the shard is under way yet.
        let closed = self.state.locks.closed_block();
        self.state.locks.set_closed_block(None);
        let buried = self.remove_inode(ino);
        self.state.locks.set_closed_block(closed);
        buried
    }

    fn remove_inode(&mut self, ino: Ino) -> MetaOutcome<()> {
        let ctx = OperationContext {
            now: self.tx.now,
            client: ClientId([0; 16]),
            slot: 0,
            seq: 0,
            trusted: true,
        };
        let cred = Cred::ROOT;
        let mut txn = Txn::new(&mut self.state, &ctx, &cred);
        txn.remove_inode(ino)?;
        self.garbage.extend(txn.apply_locally()?);
        Ok(())
    }

    /// Lets a request of another executor wait until a lock is released.
    fn queue_request(
        &mut self,
        from: ExecutorId,
        message: PeerMessage,
        age: TransactionAge,
        on: Vec<Txid>,
    ) {
        assert!(!on.is_empty(), "a conflict of locks has no holder");
        let again = self.tx.waiting.iter().any(|w| w.from == from && w.message == message);
        // A dropped request is not lost: its coordinator sends it again.
        if again || self.tx.waiting.len() >= WAITING_MAX {
            return;
        }
        let ask_at = add_millis(self.tx.now, ASK_SOON);
        self.tx.waiting.push(WaitingRequest { from, message, age, blockers: on, ask_at });
        assert!(self.tx.waiting.len() <= WAITING_MAX, "more requests wait than their bound");
    }

    /// Asks the coordinator for the outcome of a transaction that holds locks here. Transactions of
    /// this executor hold locks here for moments only, and wake the waiters at their end.
    pub(super) fn request_outcome(&mut self, txid: Txid, abort: Option<TransactionAge>) {
        if txid.executor == self.tx.here {
            return;
        }
        self.tx.send_message(txid.executor, PeerMessage::QueryOutcome { txid, abort });
    }

    /// Resumes all requests that waited for these locks, the oldest first.
    pub(super) fn resume_waiters(&mut self, txid: Txid) -> MetaOutcome<()> {
        let mut free: Vec<WaitingRequest> =
            self.tx.waiting.extract_if(.., |waiting| waiting.blockers.contains(&txid)).collect();
        free.sort_by_key(|waiting| waiting.age);
        self.resume_blocked(txid);
        for WaitingRequest { from, message, .. } in free {
            self.dispatch_message(from, message)?;
        }
        Ok(())
    }

    /// Asks for the outcome of locks that are held for long, and of those that others wait for.
    pub(crate) fn request_late_outcomes(&mut self) {
        let now = self.tx.now;
        let mut asked = Vec::new();
        for (txid, held) in self.state.locks.held() {
            if held.ask_at <= now {
                asked.push(*txid);
            }
        }
        for txid in asked {
            // The next request is scheduled before this one is sent, so it cannot repeat within
            // one tick.
            if let Some(held) = self.state.locks.held_mut(&txid) {
                held.ask_at = add_millis(now, ASK_OUTCOME_MS);
            }
            self.request_outcome(txid, None);
        }
        let mut asked = Vec::new();
        for waiting in self.tx.waiting.iter_mut().filter(|waiting| waiting.ask_at <= now) {
            waiting.ask_at = add_millis(now, ASK_AGAIN);
            asked.extend(waiting.blockers.iter().map(|txid| (*txid, waiting.age)));
        }
        asked.into_iter().for_each(|(txid, age)| self.request_outcome(txid, Some(age)));
    }

    /// Handles a message of another executor.
    pub(super) fn dispatch_message(
        &mut self,
        from: ExecutorId,
        message: PeerMessage,
    ) -> MetaOutcome<()> {
        match message {
            PeerMessage::FetchRecords { request, age, keys } => {
                self.serve_fetch(from, request, age, keys)
            }
            PeerMessage::Prepare { txid, age, incarnation, reads, writes } => {
                self.serve_prepare(from, txid, age, incarnation, reads, writes)
            }
            PeerMessage::Lock { txid, age, client, incarnation, request, waits, reads, writes } => {
                self.serve_lock(
                    from,
                    PeerLockRequest {
                        txid,
                        age,
                        client,
                        incarnation,
                        request,
                        may_wait: waits,
                        reads,
                        writes,
                    },
                )
            }
            PeerMessage::Finish { txid, incarnation, writes } if txid.executor == from => {
                self.apply_decision(txid, Some(ParticipantWrites { incarnation, writes }))
            }
            PeerMessage::Release { txid } if txid.executor == from => {
                self.apply_decision(txid, None)
            }
            // Only the coordinator may decide.
            PeerMessage::Finish { .. } | PeerMessage::Release { .. } => Ok(()),
            PeerMessage::RecordsFetched { request, incarnation, values } => {
                self.receive_fetched(from, request, incarnation, values)
            }
            PeerMessage::Locked { txid, incarnation, request, room, values } => self.receive_locks(
                from,
                txid,
                request,
                LockReply { incarnation, has_room: room, values },
            ),
            PeerMessage::Prepared { txid } => self.receive_prepared(from, txid),
            PeerMessage::Refused { txid, why } => self.receive_refusal(from, txid, why),
            PeerMessage::Finished { txids } => {
                txids.into_iter().try_for_each(|txid| self.receive_acknowledgement(from, txid))
            }
            PeerMessage::QueryOutcome { txid, abort } => self.report_outcome(from, txid, abort),
            message => self.handle_move_message(from, message),
        }
    }

    /// As [`Meta::dispatch_message`], where a failure concerns this executor alone: the message
    /// counts as lost.
    pub(crate) fn handle_message(&mut self, from: ExecutorId, message: PeerMessage) {
        if let Err(failure) = self.dispatch_message(from, message) {
            debug_assert!(!matches!(
                failure,
                OperationFailure::Missing(_) | OperationFailure::Locked(_)
            ));
            self.record_failure(&failure);
        }
    }
}

/// Returns the inodes that these records change.
fn list_written(writes: &[RecordItem<Bytes>]) -> Vec<ChangedInode> {
    let inos = sort_and_dedup(writes.iter().filter_map(|item| inode_of(&item.key)).collect());
    inos.into_iter().map(ChangedInode::of_all).collect()
}

/// Returns the inodes that these records describe.
fn read_inodes(reads: &[RecordItem<RecordDigest>]) -> Vec<Ino> {
    sort_and_dedup(reads.iter().filter_map(|item| inode_of(&item.key)).collect())
}

fn sort_and_dedup(mut inos: Vec<Ino>) -> Vec<Ino> {
    inos.sort_unstable();
    inos.dedup();
    inos
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::MetaConfig;
    use crate::store::MemoryStore;
    use tatami_wire::{InodeKind, NodeId, ShardMap, Timestamp, VolumeId, VolumeKey};

    const HERE: ExecutorId = ExecutorId { node: NodeId(1), index: 0 };
    const COORDINATOR: ExecutorId = ExecutorId { node: NodeId(0), index: 0 };
    const NOW: Timestamp = Timestamp { sec: 9, nsec: 0 };

    /// An executor with one inode that others may read, and the message that prepares a change of
    /// it.
    struct Participant {
        meta: Meta<MemoryStore>,
        key: RecordKey,
        number: u64,
    }

    fn config() -> MetaConfig {
        let map = ShardMap::with_even_blocks(1, 16, &[COORDINATOR, HERE]).expect("16 shards");
        let key = VolumeKey::new([1; 32]);
        MetaConfig { executor: HERE, map, volume: VolumeId([1; 16]), key }
    }

    impl Participant {
        fn new() -> Participant {
            let config = config();
            let shard = config.map.shards_of(HERE).next().expect("half of them");
            let mut meta = Meta::open(MemoryStore::new(), config, NOW).expect("opens");
            let ino = Ino::first_in_shard(shard);
            meta.state.put_inode(ino, Inode::new(InodeKind::Dir, 0o755, 0, 0, NOW));
            meta.commit().expect("commits");
            Participant { meta, key: keys::inode(ino), number: 0 }
        }

        fn value(&mut self) -> Option<RecordDigest> {
            let value = peer_value(&mut self.meta.state, &self.key).expect("a record");
            value.as_deref().map(hash_value)
        }

        fn next_txid(&mut self) -> Txid {
            self.number += 1;
            Txid { executor: COORDINATOR, incarnation: 1, number: self.number }
        }

        /// Sends a prepare, and returns the only reply.
        fn prepare(
            &mut self,
            txid: Txid,
            incarnation: u64,
            value: Option<RecordDigest>,
        ) -> PeerMessage {
            let reads = vec![RecordItem { key: Bytes::from(self.key.clone()), value }];
            let writes = vec![RecordItem { key: Bytes::from(self.key.clone()), value: None }];
            let age = TransactionAge { since: NOW, first_attempt: txid };
            let message = PeerMessage::Prepare { txid, age, incarnation, reads, writes };
            self.meta.receive_message(NOW, COORDINATOR, message);
            self.meta.commit().expect("commits");
            let mut replies = self.meta.take_outbox();
            assert_eq!(replies.len(), 1, "{replies:?}");
            replies.remove(0).message
        }

        /// Sends prepares of one transaction, each with an incarnation and a value. Each is
        /// refused, and nothing is locked.
        fn assert_refusals(&mut self, txid: Txid, prepares: &[(u64, Option<RecordDigest>)]) {
            for (incarnation, value) in prepares {
                let refused = PeerMessage::Refused { txid, why: Refusal::Retry };
                assert_eq!(self.prepare(txid, *incarnation, *value), refused);
            }
            assert!(!self.is_locked());
        }

        fn is_locked(&self) -> bool {
            !self.meta.state.locks.held().is_empty()
        }
    }

    #[test]
    fn locks_of_a_damaged_disk_that_contradict_each_other_are_refused() {
        for contradict in [false, true] {
            let mut participant = Participant::new();
            for key in [participant.key.clone(), keys::ancestor(Ino::ROOT)] {
                let txid = participant.next_txid();
                let age = TransactionAge { since: NOW, first_attempt: txid };
                let key = if contradict { participant.key.clone() } else { key };
                let (intents, writes) = (vec![Bytes::from(key)], Vec::new());
                let locks = LockRecord { age, incarnation: 1, reads: Vec::new(), intents, writes };
                let record = locks.encode().expect("encodes");
                participant.meta.state.put_record(keys::lock_record(txid), Some(record));
            }
            participant.meta.commit().expect("commits");
            let opened = Meta::open(participant.meta.into_store(), config(), NOW);
            assert_eq!(opened.is_err(), contradict);
        }
    }

    #[test]
    fn a_prepare_of_this_incarnation_with_current_values_is_accepted() {
        let mut participant = Participant::new();
        let (incarnation, value) = (participant.meta.tx.incarnation, participant.value());
        let txid = participant.next_txid();
        for _ in 0..2 {
            let reply = participant.prepare(txid, incarnation, value);
            assert_eq!(reply, PeerMessage::Prepared { txid }, "also when it is repeated");
        }
        assert!(participant.is_locked());
    }

    #[test]
    fn a_prepare_for_another_incarnation_is_refused() {
        let mut participant = Participant::new();
        let (incarnation, value) = (participant.meta.tx.incarnation, participant.value());
        for other in [incarnation + 1, incarnation - 1] {
            let txid = participant.next_txid();
            participant.assert_refusals(txid, &[(other, value)]);
        }
    }

    #[test]
    fn a_prepare_that_read_another_value_is_refused_for_good() {
        let mut participant = Participant::new();
        let (incarnation, value) = (participant.meta.tx.incarnation, participant.value());
        for other in [None, Some(hash_value(b"an earlier value"))] {
            let txid = participant.next_txid();
            // After the first it is over: a late message must not prepare it again.
            participant.assert_refusals(txid, &[(incarnation, other), (incarnation, value)]);
        }
    }

    #[test]
    fn a_prepare_of_another_coordinators_transaction_is_refused() {
        let mut participant = Participant::new();
        let (incarnation, value) = (participant.meta.tx.incarnation, participant.value());
        let txid = Txid { executor: HERE, ..participant.next_txid() };
        participant.assert_refusals(txid, &[(incarnation, value)]);
    }
}
