//! The participant: operations that other executors coordinate.
//!
//! It locks records for them, prepares writes, and applies or drops them by the coordinator's
//! decision.

use super::locking::Told;
use super::locks::inode_of;
use super::record::{Part, Prepared};
use super::{Waiting, digest, later, value_of};
use crate::error::{Failure, Outcome};
use crate::inode::Inode;
use crate::keys::{self, Key, Parsed};
use crate::shard::{Context, Meta};
use crate::store::Store;
use crate::txn::Txn;
use std::collections::BTreeSet;
use tatami_wire::meta::Bytes;
use tatami_wire::transaction::{Age, Digest, Item, PeerMessage, Refusal, Txid};
use tatami_wire::{ClientId, Cred, ExecutorId, Ino};

/// The coordinator of a lock that is held for this long (in ms) is asked for the outcome.
const ASK: u64 = 500;
/// A request that waits for a lock asks the lock's coordinator after this many ms: nearly all locks
/// are released earlier. Unless an executor has died or a message is lost, all waits end without
/// that, since a transaction that holds locks waits for younger ones only.
pub(super) const ASK_SOON: u64 = 3;
/// And again after this many ms.
pub(super) const ASK_AGAIN: u64 = 20;
/// Most waiting requests of other executors. More are dropped, and are sent again by their
/// coordinators.
const WAITING_MAX: usize = 4096;
/// Most records in one message.
const KEYS_MAX: usize = 64 * 1024;

/// A record as a transaction leaves it. `more` is the change of the number of inodes; `before`:
/// whether there was such a record.
enum Write {
    Inode { ino: Ino, inode: Option<Inode>, more: i64 },
    Young { key: Key, value: Option<Vec<u8>>, before: bool },
    Other { key: Key, value: Option<Vec<u8>> },
}

/// The fields of [`PeerMessage::Lock`].
pub(super) struct Wanted {
    pub txid: Txid,
    pub age: Age,
    pub life: Option<u64>,
    pub question: u32,
    pub waits: bool,
    pub reads: Vec<Bytes>,
    pub writes: Vec<Bytes>,
}

impl<S: Store> Meta<S> {
    /// Returns the values of records to a coordinator. Waits for those that are being written.
    pub(super) fn serve_fetch(
        &mut self,
        from: ExecutorId,
        request: Txid,
        age: Age,
        keys: Vec<Bytes>,
    ) -> Outcome<()> {
        if keys.len() > KEYS_MAX {
            return Ok(());
        }
        // The coordinator has an old shard map. It starts afresh with the new one.
        if !keys.iter().all(|key| self.state.has(key)) {
            self.tell_map(from);
            return Ok(());
        }
        // A locked record may be decided already, with its new value still under way. Neither value
        // is certain until the lock is gone.
        let on: Vec<_> = keys.iter().filter_map(|k| self.state.locks.against_reading(k)).collect();
        if !on.is_empty() {
            self.wait(from, PeerMessage::Fetch { request, age, keys }, age, on);
            return Ok(());
        }
        let seen = keys.iter().filter_map(|key| inode_of(key)).collect();
        let mut values = Vec::with_capacity(keys.len());
        for key in keys {
            values.push(value_of(&mut self.state, &key.into_vec())?.map(Bytes::from));
        }
        let life = self.tx.life;
        self.tx.tell(from, PeerMessage::Fetched { request, life, values }, seen);
        Ok(())
    }

    /// Locks records for an operation of another executor, and returns their values.
    pub(super) fn lock(&mut self, from: ExecutorId, wanted: Wanted) -> Outcome<()> {
        let Wanted { txid, age, life, question, waits, reads, writes } = wanted;
        let held = self.state.locks.held().get(&txid).map(|held| held.prepared.life);
        // A coordinator with an old shard map gets the new one and restarts.
        let known = |key: &Bytes| self.state.has(key);
        if !reads.iter().chain(&writes).all(known) {
            self.tell_map(from);
            self.tx.send(from, PeerMessage::Refused { txid, why: Refusal::Again });
            return Ok(());
        }
        // Refuse messages that came late: the transaction is over, or its first locks were lost
        // with an earlier incarnation.
        if txid.executor != from
            || self.tx.over.has(&txid)
            || life.is_some_and(|life| held != Some(life))
            || reads.len() + writes.len() > KEYS_MAX
        {
            self.tx.send(from, PeerMessage::Refused { txid, why: Refusal::Again });
            return Ok(());
        }
        let readers = reads.iter().filter_map(|key| self.state.locks.against_reading(key));
        let writers = writes.iter().flat_map(|key| self.state.locks.against_writing(key));
        let mut on: BTreeSet<Txid> =
            readers.chain(writers).filter(|holder| *holder != txid).collect();
        // A move waits for the transactions that hold locks in its shards. Those get their other
        // locks there, or both would wait for ever.
        if let Some((block, by)) = self.state.locks.closed()
            && self.state.locks.has_some(&txid, block)
        {
            on.remove(&by);
        }
        if !on.is_empty() {
            let on: Vec<_> = on.into_iter().collect();
            let message = PeerMessage::Lock { txid, age, life, question, waits, reads, writes };
            // A transaction without other locks cannot be part of a cycle: it may wait for any. One
            // that holds locks waits for younger ones only (wait-die).
            match waits {
                true => self.wait(from, message, age, on),
                false => self.wait_or_refuse(from, txid, message, age, on),
            }
            return Ok(());
        }
        let mut values = Vec::with_capacity(reads.len() + writes.len());
        for key in reads.iter().chain(&writes) {
            values.push(value_of(&mut self.state, &key.to_vec())?.map(Bytes::from));
        }
        let inodes = |keys: &[Bytes]| each_once(keys.iter().filter_map(|k| inode_of(k)).collect());
        let (changed, seen) = (inodes(&writes), inodes(&reads));
        // The lock record goes to the log before the reply leaves, so a restart does not lose the
        // lock.
        let life = self.hold(txid, age, reads, writes)?;
        let room = self.state.has_room();
        let message = PeerMessage::Locked { txid, life, question, room, values };
        self.tx.outs.push(super::Out { to: from, message, changed, seen });
        Ok(())
    }

    /// Adds these locks to those of the transaction. Returns the incarnation that granted the first
    /// of them.
    fn hold(
        &mut self,
        txid: Txid,
        age: Age,
        reads: Vec<Bytes>,
        writes: Vec<Bytes>,
    ) -> Outcome<u64> {
        let before = self.state.locks.held().get(&txid).map(|held| &held.prepared);
        let mut prepared = before.cloned().unwrap_or(Prepared {
            age,
            life: self.tx.life,
            reads: Vec::new(),
            intents: Vec::new(),
            writes: Vec::new(),
        });
        let intents: BTreeSet<Bytes> = prepared.intents.drain(..).chain(writes).collect();
        let seen: BTreeSet<Bytes> = prepared.reads.drain(..).chain(reads).collect();
        prepared.reads = seen.into_iter().filter(|key| !intents.contains(key)).collect();
        prepared.intents = intents.into_iter().collect();
        let life = prepared.life;
        // A repeated message changes nothing.
        if before != Some(&prepared) {
            self.state.put(keys::locked(txid), Some(prepared.encode()?));
            self.state.locks.remove(&txid);
            let ask_at = later(self.tx.now, ASK);
            self.state.locks.add(txid, prepared, ask_at);
        }
        Ok(life)
    }

    /// Lets a request wait that holds locks elsewhere, unless an older transaction is in its way
    /// (wait-die).
    fn wait_or_refuse(
        &mut self,
        from: ExecutorId,
        txid: Txid,
        message: PeerMessage,
        age: Age,
        on: Vec<Txid>,
    ) {
        let older = |holder: &Txid| self.state.locks.age(holder).is_some_and(|held| held < age);
        if !on.iter().any(older) {
            return self.wait(from, message, age, on);
        }
        // The older one's coordinator may have died: its locks must not stay for ever.
        on.iter().for_each(|holder| self.ask(*holder, None));
        // Remembered, so that a late copy of the request gets no lock after the refusal.
        self.tx.over.add(txid);
        self.tx.send(from, PeerMessage::Refused { txid, why: Refusal::Again });
    }

    /// Prepares a part of a split: validates its reads, locks its records and stores its writes
    /// (first phase).
    pub(super) fn prepare(
        &mut self,
        from: ExecutorId,
        txid: Txid,
        age: Age,
        life: u64,
        reads: Vec<Item<Digest>>,
        writes: Vec<Item<Bytes>>,
    ) -> Outcome<()> {
        // The coordinator repeats a prepare whose reply was lost.
        if self.state.locks.held().contains_key(&txid) {
            let (changed, seen) = (written(&writes), of_reads(&reads));
            let message = PeerMessage::Prepared { txid };
            self.tx.outs.push(super::Out { to: from, message, changed, seen });
            return Ok(());
        }
        let refused = |why| PeerMessage::Refused { txid, why };
        let known = |key: &[u8]| self.state.has(key);
        let reads_known = reads.iter().all(|item| known(&item.key));
        if !reads_known || !writes.iter().all(|item| known(&item.key)) {
            self.tell_map(from);
            self.tx.send(from, refused(Refusal::Again));
            return Ok(());
        }
        // Refuse a prepare for an earlier incarnation, whose list of ended transactions is lost,
        // and one of a transaction that is over.
        if txid.executor != from
            || life != self.tx.life
            || self.tx.over.has(&txid)
            || reads.len() + writes.len() > KEYS_MAX
        {
            self.tx.send(from, refused(Refusal::Again));
            return Ok(());
        }
        let mut on: Vec<Txid> =
            reads.iter().filter_map(|item| self.state.locks.against_reading(&item.key)).collect();
        for item in &writes {
            on.extend(self.state.locks.against_writing(&item.key));
        }
        if !on.is_empty() {
            on.sort_unstable();
            on.dedup();
            let message = PeerMessage::Prepare { txid, age, life, reads, writes };
            self.wait_or_refuse(from, txid, message, age, on);
            return Ok(());
        }
        // Read validation: the split was computed from these values.
        for item in &reads {
            let now = value_of(&mut self.state, &item.key.to_vec())?;
            if now.as_deref().map(digest) != item.value {
                self.tx.over.add(txid);
                self.tx.send(from, refused(Refusal::Again));
                return Ok(());
            }
        }
        // Removed records free space, so removals are always accepted.
        if !self.state.has_room() && self.adds(&writes)? {
            self.tx.over.add(txid);
            self.tx.send(from, refused(Refusal::Full));
            return Ok(());
        }
        let (changed, seen) = (written(&writes), of_reads(&reads));
        let only_read = |item: &Item<Digest>| !writes.iter().any(|write| write.key == item.key);
        let reads = reads.into_iter().filter(only_read).map(|item| item.key).collect();
        let prepared = Prepared { age, life, reads, intents: Vec::new(), writes };
        // It is part of a split: see `Meta::take_effect`.
        self.moves.wants_sync = true;
        // The vote binds this executor: it must keep the writes until the coordinator decides.
        self.state.put(keys::locked(txid), Some(prepared.encode()?));
        let ask_at = later(self.tx.now, ASK);
        self.state.locks.add(txid, prepared, ask_at);
        let message = PeerMessage::Prepared { txid };
        self.tx.outs.push(super::Out { to: from, message, changed, seen });
        Ok(())
    }

    /// Returns whether the writes add records.
    fn adds(&self, writes: &[Item<Bytes>]) -> Outcome<bool> {
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
    pub(super) fn finish(&mut self, txid: Txid, part: Option<Part>) -> Outcome<()> {
        // A request of this transaction that still waits must not get a lock after the end.
        self.tx.waiting.retain(|waiting| match waiting.message {
            PeerMessage::Prepare { txid: waits, .. } | PeerMessage::Lock { txid: waits, .. } => {
                waits != txid
            }
            _ => true,
        });
        // A late prepare or lock message must not revive it.
        self.tx.over.add(txid);
        let happened = part.is_some();
        if let Some(held) = self.state.locks.held().get(&txid) {
            // All that may fail comes before the first change.
            let writes = match part {
                Some(part) if part.life == held.prepared.life => {
                    let prepared = held.prepared.writes.clone();
                    self.writes(prepared.into_iter().chain(part.writes))?
                }
                _ => Vec::new(),
            };
            self.state.locks.remove(&txid);
            // The lock record and the new values change in one batch. A restart finds both or
            // neither.
            self.state.put(keys::locked(txid), None);
            let buried: Vec<_> = writes.into_iter().filter_map(|write| self.write(write)).collect();
            for ino in buried {
                self.bury(ino)?;
            }
        }
        // Also where no lock was held: a request may wait for locks that a full disk refused.
        self.released(txid)?;
        if happened {
            // The acknowledgement leaves after the commit of this batch. Then the coordinator
            // forgets the decision.
            self.tx.acks.add(txid, self.tx.now);
        }
        Ok(())
    }

    /// Returns the writes of the transaction here, in the form that the state takes.
    fn writes(&mut self, items: impl Iterator<Item = Item<Bytes>>) -> Outcome<Vec<Write>> {
        let mut writes = Vec::new();
        for Item { key, value } in items {
            let (key, value) = (key.into_vec(), value.map(Bytes::into_vec));
            let before = self.state.get(&key)?;
            match keys::parse(&key) {
                // This key stands for the parent in an inode's record, which is written by its own
                // key.
                Some(Parsed::Ancestor(_)) => {}
                Some(Parsed::Inode(ino)) => {
                    let inode = value.as_deref().map(Inode::decode).transpose()?;
                    let before = before.as_deref().map(Inode::decode).transpose()?;
                    // Partitions are not counted.
                    let count =
                        |inode: Option<&Inode>| i64::from(inode.is_some_and(|i| !i.is_part()));
                    let more = count(inode.as_ref()) - count(before.as_ref());
                    writes.push(Write::Inode { ino, inode, more });
                }
                Some(Parsed::Young(_)) => {
                    let before = before.is_some();
                    writes.push(Write::Young { key, value, before });
                }
                _ => writes.push(Write::Other { key, value }),
            }
        }
        Ok(writes)
    }

    /// Writes the record. Returns the inode if nothing holds it any more.
    fn write(&mut self, write: Write) -> Option<Ino> {
        match write {
            Write::Inode { ino, inode: Some(inode), more } => {
                let dead = inode.is_dead();
                self.state.count_inodes(more);
                self.state.put_inode(ino, inode);
                return dead.then_some(ino);
            }
            Write::Inode { ino, inode: None, more } => {
                self.state.count_inodes(more);
                self.state.delete_inode(ino);
            }
            Write::Young { key, value, before } => {
                self.state.count_inodes(i64::from(value.is_some()) - i64::from(before));
                self.state.put(key, value);
            }
            Write::Other { key, value } => self.state.put(key, value),
        }
        None
    }

    /// Removes an inode that lost its last name by a transaction, with all records that belong to
    /// it.
    fn bury(&mut self, ino: Ino) -> Outcome<()> {
        // A move may have closed the inode's shard. It waits for this transaction, so no record of
        // the shard is under way yet.
        let closed = self.state.locks.closed();
        self.state.locks.close(None);
        let buried = self.kill(ino);
        self.state.locks.close(closed);
        buried
    }

    fn kill(&mut self, ino: Ino) -> Outcome<()> {
        let ctx =
            Context { now: self.tx.now, client: ClientId([0; 16]), slot: 0, seq: 0, trusted: true };
        let cred = Cred::ROOT;
        let mut txn = Txn::new(&mut self.state, &ctx, &cred);
        txn.kill(ino)?;
        self.garbage.extend(txn.finish()?);
        Ok(())
    }

    /// Lets a request of another executor wait until a lock is released.
    fn wait(&mut self, from: ExecutorId, message: PeerMessage, age: Age, on: Vec<Txid>) {
        let again = self.tx.waiting.iter().any(|w| w.from == from && w.message == message);
        // A dropped request is not lost: its coordinator sends it again.
        if again || self.tx.waiting.len() >= WAITING_MAX {
            return;
        }
        let ask_at = later(self.tx.now, ASK_SOON);
        self.tx.waiting.push(Waiting { from, message, age, on, ask_at });
    }

    /// Asks the coordinator for the outcome of a transaction that holds locks here. Transactions of
    /// this executor hold locks here for moments only, and wake the waiters at their end.
    pub(super) fn ask(&mut self, txid: Txid, abort: Option<Age>) {
        if txid.executor == self.tx.here {
            return;
        }
        self.tx.send(txid.executor, PeerMessage::Status { txid, abort });
    }

    /// Resumes all requests that waited for these locks, the oldest first.
    pub(super) fn released(&mut self, txid: Txid) -> Outcome<()> {
        let mut free: Vec<Waiting> =
            self.tx.waiting.extract_if(.., |waiting| waiting.on.contains(&txid)).collect();
        free.sort_by_key(|waiting| waiting.age);
        self.unblock(txid);
        for Waiting { from, message, .. } in free {
            self.heed(from, message)?;
        }
        Ok(())
    }

    /// Asks for the outcome of locks that are held for long, and of those that others wait for.
    pub(crate) fn ask_about_locks(&mut self) {
        let now = self.tx.now;
        let mut asked = Vec::new();
        for (txid, held) in self.state.locks.held() {
            if held.ask_at <= now {
                asked.push(*txid);
            }
        }
        for txid in asked {
            // The next question is scheduled before this one is sent, so it cannot repeat within
            // one tick.
            if let Some(held) = self.state.locks.held_mut(&txid) {
                held.ask_at = later(now, ASK);
            }
            self.ask(txid, None);
        }
        let mut asked = Vec::new();
        for waiting in self.tx.waiting.iter_mut().filter(|waiting| waiting.ask_at <= now) {
            waiting.ask_at = later(now, ASK_AGAIN);
            asked.extend(waiting.on.iter().map(|txid| (*txid, waiting.age)));
        }
        asked.into_iter().for_each(|(txid, age)| self.ask(txid, Some(age)));
    }

    /// Handles a message of another executor.
    pub(super) fn heed(&mut self, from: ExecutorId, message: PeerMessage) -> Outcome<()> {
        match message {
            PeerMessage::Fetch { request, age, keys } => self.serve_fetch(from, request, age, keys),
            PeerMessage::Prepare { txid, age, life, reads, writes } => {
                self.prepare(from, txid, age, life, reads, writes)
            }
            PeerMessage::Lock { txid, age, life, question, waits, reads, writes } => {
                self.lock(from, Wanted { txid, age, life, question, waits, reads, writes })
            }
            PeerMessage::Finish { txid, life, writes } if txid.executor == from => {
                self.finish(txid, Some(Part { life, writes }))
            }
            PeerMessage::Release { txid } if txid.executor == from => self.finish(txid, None),
            // Only the coordinator may decide.
            PeerMessage::Finish { .. } | PeerMessage::Release { .. } => Ok(()),
            PeerMessage::Fetched { request, life, values } => {
                self.fetched(from, request, life, values)
            }
            PeerMessage::Locked { txid, life, question, room, values } => {
                self.locked(from, txid, question, Told { life, room, values })
            }
            PeerMessage::Prepared { txid } => self.prepared(from, txid),
            PeerMessage::Refused { txid, why } => self.refused(from, txid, why),
            PeerMessage::Finished { txids } => {
                txids.into_iter().try_for_each(|txid| self.participant_finished(from, txid))
            }
            PeerMessage::Status { txid, abort } => self.tell_fate(from, txid, abort),
            message => self.heed_move(from, message),
        }
    }

    /// As [`Meta::heed`], where a failure concerns this executor alone: the message counts as lost.
    pub(crate) fn hear(&mut self, from: ExecutorId, message: PeerMessage) {
        if let Err(failure) = self.heed(from, message) {
            debug_assert!(!matches!(failure, Failure::Missing(_) | Failure::Locked(_)));
            self.note(&failure);
        }
    }
}

/// Returns the inodes that these records change.
fn written(writes: &[Item<Bytes>]) -> Vec<Ino> {
    each_once(writes.iter().filter_map(|item| inode_of(&item.key)).collect())
}

/// Returns the inodes that these records describe.
fn of_reads(reads: &[Item<Digest>]) -> Vec<Ino> {
    each_once(reads.iter().filter_map(|item| inode_of(&item.key)).collect())
}

fn each_once(mut inos: Vec<Ino>) -> Vec<Ino> {
    inos.sort_unstable();
    inos.dedup();
    inos
}
