//! The shards of one node: what the daemon calls.

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

/// What the namespace of an executor must know of itself.
#[derive(Clone, Debug)]
pub struct Config {
    /// The executor that serves it.
    pub executor: ExecutorId,
    /// Which shards are its own, and whose the others are.
    pub map: ShardMap,
    /// The volume it is a part of. The hash that orders names is seeded with it.
    pub volume: VolumeId,
    /// Signs capabilities.
    pub key: VolumeKey,
}

/// Under which circumstances an operation is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Context {
    /// The moment, by the daemon's clock.
    pub now: Timestamp,
    /// Who asks.
    pub client: ClientId,
    /// On which of its connections.
    pub slot: u32,
    /// Goes up with every request on the slot.
    pub seq: u64,
    /// Whether the asking process knows the volume's key or is the superuser on
    /// the daemon's machine. Housekeeping is for those only.
    pub trusted: bool,
}

/// The shards of the namespace that one executor serves. See the crate's page.
pub struct Meta<S> {
    pub(crate) state: State<S>,
    pub(crate) key: VolumeKey,
    pub(crate) sessions: Sessions,
    /// Nodes on which objects may have become garbage since the last question.
    pub(crate) garbage: BTreeSet<NodeId>,
    trouble: Option<Trouble>,
    pub(crate) tx: Transactions,
    pub(crate) moves: Moves,
}

/// What a participant has not acknowledged is told again after so many ms, where it acknowledges what lasts: that takes a second.
/// A participant to which the outcome did not get asks by itself, and much sooner.
const FINISH_AGAIN: u64 = 2000;

/// What the operator should know.
struct Trouble {
    what: String,
    /// It is a full disk, and over when there is room again.
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
            // The objects of inodes that were lost are there: none of their numbers is given out again.
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

    /// Executes one operation. Its effect is visible to the next one at once,
    /// and lasting after [`Meta::commit`]; until then its answer must not leave the daemon.
    /// An operation that fails has no effect. `MetaOp::Sync` changes nothing here: the daemon
    /// calls [`Meta::sync`] before it sends the answer, once for all that asked.
    ///
    /// # Errors
    /// Those of POSIX for the operation. Besides: `ESTALE` for an inode that is
    /// gone or of no shard, `EPERM` for housekeeping by strangers, `EPROTO` for a sequence
    /// number that is past, `ENOSPC` when the disk is (nearly) full, `EIO` when the
    /// store fails or has failed (see [`Meta::trouble`]).
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
                self.meet_nothing();
                self.begin(ctx, cred, op)
            }
            Err(Failure::Parted(part, range)) => {
                Applied::Done(Ok(MetaReply::Parted { part, range }))
            }
            Err(e) => {
                let errno = self.note(&e);
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

    /// As of [`MetaOp::Sync`], the daemon syncs before the answer leaves. Whoever has a part in a transaction has locked for it, and so
    /// has something of it to sync.
    fn sync_names(&self, inos: &[Ino]) -> MetaResult {
        if inos.len() > SYNCED_MAX {
            return Err(Errno::EINVAL);
        }
        let (epoch, also) = (self.state.epoch(), self.parts_in_names(inos));
        Ok(MetaReply::NamesSynced { epoch, also })
    }

    /// The answer to an operation that another node must run.
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
            // Each by itself.
            MetaOp::Acts { .. } => return Ok(None),
            _ => (known(&op.target()), ours(&op.target())),
        };
        self.told_elsewhere(all_known, all_ours)
    }

    /// The answer to what another node must do, since the shard is its.
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
        if let Admission::Replay(answer) = self.sessions.admit(&self.state, ctx)? {
            return Ok(answer);
        }
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

    /// The inodes that the last [`Meta::apply`] has looked at, maybe more than
    /// once: its answer depends on nothing else that can be delegated. Empty for
    /// one whose answer was given before.
    pub fn seen(&self) -> &[Ino] {
        &self.state.seen
    }

    /// The inodes that the last [`Meta::apply`] has changed, themselves or
    /// (directories) their entries.
    pub fn changed(&self) -> &[Ino] {
        &self.state.changed
    }

    /// Empties [`Meta::seen`] and [`Meta::changed`], for an answer that was
    /// given without [`Meta::apply`].
    pub fn meet_nothing(&mut self) {
        self.state.meet_nothing();
    }

    /// A message of another executor, whose node has proved to be that. It may have been lost before, and
    /// may come again.
    pub fn receive(&mut self, now: Timestamp, from: ExecutorId, message: PeerMessage) {
        self.tx.now = self.tx.now.max(now);
        // What the disk holds is not known then, so nobody must be told of it.
        if !self.state.is_poisoned() {
            self.hear(from, message);
            self.free();
            self.plan_splits();
            self.meet_nothing();
        }
    }

    /// Does what is due by now. To be called when [`Meta::deadline`] is over.
    pub fn tick(&mut self, now: Timestamp) {
        self.tx.now = self.tx.now.max(now);
        if !self.state.is_poisoned() {
            self.begin_splits();
            self.tick_jobs();
            self.tick_moves();
            self.ask_about_locks();
            self.tx.tell_done();
            self.free();
            self.plan_splits();
            self.meet_nothing();
        }
    }

    /// When [`Meta::tick`] has something to do, if nothing happens before.
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

    /// What is to be sent to other nodes. It is there after a [`Meta::commit`] (and a [`Meta::sync`],
    /// where answers wait for one) only, and may leave at once but for [`Out::changed`](crate::Out).
    pub fn outbox(&mut self) -> Vec<Out> {
        self.tx.take_outs()
    }

    /// Answers to operations that had to wait, likewise.
    pub fn finished(&mut self) -> Vec<Finished> {
        std::mem::take(&mut self.tx.ready_finished)
    }

    /// A client that has come back has these files open: as after [`MetaOp::Open`] with `noted`. Those of
    /// other executors are passed over.
    pub fn note_opens(&mut self, client: ClientId, inos: &[Ino]) {
        for ino in inos {
            if self.state.owns(ino.shard()) {
                self.state.opens.add(*ino, client);
            }
        }
    }

    /// Whether a transaction is about to change the inode, or (a directory) its entries, or it is a directory of
    /// which this node has only a part: then it must not be delegated.
    pub fn is_locked(&mut self, ino: Ino) -> bool {
        let parted = |inode: Arc<Inode>| inode.is_parted();
        self.state.locks.concern(ino)
            || self.tx.splits.concern(ino)
            || self.state.is_spread() && self.state.inode(ino).ok().flatten().is_some_and(parted)
    }

    /// Number of transactions that are under way here: as coordinator, or with locks.
    pub fn under_way(&self) -> usize {
        let planned = self.tx.jobs.len() + self.tx.splits.planned();
        let moves = self.moves.under_way();
        planned + moves + self.tx.decided.len() + self.state.locks.held().len()
    }

    /// One of several partitions of a directory now; `None` where `ino` is no such, it does not read, or
    /// somebody is about to change it.
    pub fn part(&mut self, ino: Ino) -> Option<PartTold> {
        if !self.state.is_spread() || self.state.locks.concern(ino) || self.tx.splits.concern(ino) {
            return None;
        }
        let part = self.state.inode(ino).ok().flatten().filter(|inode| inode.is_parted())?;
        Some(PartTold { attr: part.attr(ino), range: part.range })
    }

    /// The attributes of an inode now; `None` where there is none, it does not read, or
    /// somebody is about to change it.
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

    /// Who has the lock that the ranks of an open of `ino` share: a client, and which rank of the open. `None` also
    /// where the store does not tell.
    pub fn job_holder(&self, ino: Ino, open: u64) -> Option<(ClientId, u32)> {
        job::holder(&self.state, ino, open).ok().flatten()
    }

    /// Makes all operations applied so far survive the death of the process,
    /// with one write.
    ///
    /// # Errors
    /// All operations applied since the last commit are undone, those that read have read what is
    /// undone: none of their answers may be sent; tell the callers
    /// [`StoreError::errno`]. After [`StoreError::Full`] the shard goes on; after any other
    /// error it refuses all changes with `EIO`.
    pub fn commit(&mut self) -> Result<(), StoreError> {
        let room = self.state.knows_room();
        let result = self.state.commit();
        match &result {
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

    /// Whether something waits for a [`Meta::commit`].
    pub fn is_dirty(&self) -> bool {
        self.state.is_dirty() || self.tx.is_staged()
    }

    /// Commits, and makes everything survive a power cut.
    ///
    /// # Errors
    /// As [`Meta::commit`]. After a failed fsync the shard refuses all changes.
    pub fn sync(&mut self) -> Result<(), StoreError> {
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

    /// Begins a sync of everything committed so far, of which another thread does the slow part, if there is one. Its
    /// result goes to [`Meta::end_sync`], before the next one begins.
    ///
    /// # Errors
    /// As [`Meta::sync`].
    pub fn begin_sync(&mut self) -> Result<Option<SyncWork>, StoreError> {
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

    /// Coordinators hear that a transaction is done here once that survives a power cut, not as soon as it is committed, and
    /// until then remember it. For executors that do not sync each commit.
    pub fn acknowledge_once_lasting(&mut self) {
        self.tx.acks.wait_for_sync = true;
        self.tx.finish_again = FINISH_AGAIN;
    }

    /// When the oldest of the transactions was decided here that are not known to be done, and to last, everywhere.
    pub fn undone_since(&self) -> Option<Timestamp> {
        self.tx.decided.values().map(|decided| decided.since).min()
    }

    /// As [`Meta::sync`], for the last time: the store notes that nothing follows.
    ///
    /// # Errors
    /// As [`Meta::sync`].
    pub fn close(&mut self) -> Result<(), StoreError> {
        self.sync()?;
        self.state.store.close()
    }

    /// Number of inodes in use.
    pub fn inodes(&self) -> u64 {
        self.state.inodes()
    }

    /// What is wrong with the shard, for `status`: the failure of the store, a
    /// damaged record, or a full disk until there is room again. `None` while all is well.
    pub fn trouble(&self) -> Option<&str> {
        self.trouble.as_ref().map(|trouble| trouble.what.as_str())
    }

    /// Whether the trouble is a full disk.
    pub fn is_full(&self) -> bool {
        self.trouble.as_ref().is_some_and(|trouble| trouble.full)
    }

    /// Looks whether a disk that was full has room again, and ends that trouble then. A commit does so, too, but nobody may
    /// want to change anything.
    pub fn look_for_room(&mut self) {
        if self.is_full() && self.state.store.recover() {
            self.trouble = None;
        }
    }

    /// Whether a failure of the store made the shard refuse changes for good.
    pub fn is_poisoned(&self) -> bool {
        self.state.is_poisoned()
    }

    /// Whether the disk has room for more, as of the last look.
    pub fn has_room(&mut self) -> bool {
        self.state.has_room()
    }

    /// The nodes on which objects may have become garbage since the last call (after
    /// opening: on which there is garbage). Their housekeeping is worth a nudge after the next
    /// commit.
    pub fn take_garbage_nodes(&mut self) -> Vec<NodeId> {
        if self.garbage.is_empty() {
            return Vec::new();
        }
        std::mem::take(&mut self.garbage).into_iter().collect()
    }

    /// Work of the store that waits, if there is some; any thread may do it. To be asked for after
    /// commits.
    pub fn take_chore(&mut self) -> Option<Chore> {
        self.state.store.take_chore()
    }

    /// Closes the shard, without a commit, and hands the store back.
    pub fn into_store(self) -> S {
        self.state.store
    }

    /// The store, to look at or to make fail in a test.
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
        // The first failure is the cause, later ones say that there was one.
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
        // The daemon syncs once for all that ask; the answer is the same.
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
        // Of acts, each is run; what is to be synced is looked up before. Locks are the node's own matter, and do not come here.
        MetaOp::Acts { .. } | MetaOp::SyncNames { .. } | MetaOp::Locks { .. } => {
            Err(Errno::EINVAL.into())
        }
    }
}
