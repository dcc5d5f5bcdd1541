//! Batches of operations: grouped by executor, one request for each executor, several executors at
//! once.
//!
//! An operation that one executor cannot do by itself comes back undone, and is sent alone, as
//! every operation can be. So is one that meets a change in flight. The caller does not see any of
//! this.

use crate::Client;
use crate::delegations;
use crate::names::{Created, Removed};
use std::collections::BTreeMap;
use tatami_wire::batch::{BATCH_BYTES_MAX, BATCH_OPS_MAX, BatchOp, BatchResult};
use tatami_wire::meta::{Bytes, InodeTemplate, MetaCall, MetaOp, MetaReply, MetaResult};
use tatami_wire::{Access, Attr, Cred, Errno, ExecutorId, Ino};

/// Most requests that one thread has in flight.
const WAVE_MAX: usize = 32;
/// After this many rounds without progress, the remaining operations are sent alone.
const IDLE_MAX: u32 = 16;

/// An entry to make, see [`Client::create_many`].
#[derive(Clone, Debug, PartialEq)]
pub struct CreateItem {
    /// Its name.
    pub name: Vec<u8>,
    /// The kind of inode.
    pub node: InodeTemplate,
    /// Permission bits, before the umask (or a default ACL) is applied.
    pub mode: u16,
}

/// The operations of a batch, and their results.
struct BatchWork {
    operations: Vec<BatchOp>,
    results: Vec<Option<MetaResult>>,
    /// The operations that are still to be done, by number.
    todo: Vec<usize>,
    is_over: Vec<bool>,
}

/// The operations that a round has left undone, by number.
#[derive(Default)]
struct BatchRest {
    /// Operations that no executor can do in a batch.
    alone: Vec<usize>,
    /// Operations that meet a change in flight: when one of them is done, the others may succeed,
    /// too.
    stuck: Vec<usize>,
}

impl BatchWork {
    fn new(operations: Vec<BatchOp>) -> BatchWork {
        let (results, todo) = (vec![None; operations.len()], (0..operations.len()).collect());
        let is_over = vec![false; operations.len()];
        BatchWork { operations, results, todo, is_over }
    }

    fn record_result(&mut self, at: usize, result: MetaResult) {
        self.results[at] = Some(result);
        self.is_over[at] = true;
    }

    /// Drops the operations that have a result.
    fn drop_finished(&mut self) {
        self.todo.retain(|at| !self.is_over[*at]);
    }
}

/// One request with several operations.
struct BatchGroup {
    operations: Vec<BatchOp>,
    /// The numbers of these operations in the batch.
    which: Vec<usize>,
    weight: usize,
    is_full: bool,
}

impl BatchGroup {
    fn add_operation(&mut self, at: usize, operation: BatchOp) {
        let weight = self.weight + operation.encoded_bound();
        self.is_full |= self.operations.len() >= BATCH_OPS_MAX || weight > BATCH_BYTES_MAX;
        if !self.is_full {
            self.weight = weight;
            self.operations.push(operation);
            self.which.push(at);
        }
    }
}

/// Each method does for each item the operation of the same name, and returns a result for each.
/// Items of one directory that are on one executor share a request.
impl Client {
    /// Makes entries with their inodes in one directory, as [`Client::create`].
    pub fn create_many(
        &self,
        cred: &Cred,
        parent: Ino,
        new: Vec<CreateItem>,
        umask: u16,
        exclusive: bool,
        open: Option<Access>,
    ) -> Vec<Result<Created, Errno>> {
        let operations = new.into_iter().map(|CreateItem { name, node, mode }| {
            let name = name.into();
            BatchOp::Create { parent, name, node, mode, umask, exclusive, open }
        });
        let operations: Vec<_> = operations.collect();
        let made = self.run_batch(cred, operations.clone());
        let made = made.into_iter().zip(operations).map(|(made, operation)| {
            let MetaReply::Created { attr, cap, created } = made? else {
                return Err(Errno::EPROTO);
            };
            let made = Created { attr, cap, created };
            if made.is_complete(open) {
                return Ok(made);
            }
            // The file was there, and its inode is on another executor than its name.
            let BatchOp::Create { name, node, mode, .. } = operation else {
                return Err(Errno::EPROTO);
            };
            self.create(cred, parent, &name, node, mode, umask, exclusive, open)
        });
        made.collect()
    }

    /// Returns the attributes of entries of one directory, as [`Client::lookup`].
    pub fn stat_many(&self, cred: &Cred, parent: Ino, names: &[&[u8]]) -> Vec<Result<Attr, Errno>> {
        let finds =
            names.iter().map(|name| BatchOp::LookupEntry { parent, name: Bytes::from(*name) });
        let found = self.run_batch(cred, finds.collect());
        let mut results: Vec<Result<Attr, Errno>> = Vec::with_capacity(found.len());
        let (mut leads, mut which) = (Vec::new(), Vec::new());
        for (at, reply) in found.into_iter().enumerate() {
            results.push(match reply {
                Ok(MetaReply::Attr(attr)) => Ok(attr),
                Ok(MetaReply::Referral(ino)) => {
                    leads.push(BatchOp::GetAttr { ino });
                    which.push(at);
                    Err(Errno::EPROTO)
                }
                Ok(_) => Err(Errno::EPROTO),
                Err(e) => Err(e),
            });
        }
        for (at, reply) in which.into_iter().zip(self.run_batch(cred, leads)) {
            results[at] = match reply {
                Ok(MetaReply::Attr(attr)) => Ok(attr),
                // The inode was removed in between. The name now leads to another inode or to none.
                Err(Errno::ENOENT | Errno::ESTALE) => self.lookup(cred, parent, names[at]),
                Ok(_) => Err(Errno::EPROTO),
                Err(e) => Err(e),
            };
        }
        results
    }

    /// Removes entries of one directory, as [`Client::unlink`], or [`Client::rmdir`] with `dirs`.
    pub fn remove_many(
        &self,
        cred: &Cred,
        parent: Ino,
        names: &[&[u8]],
        dirs: bool,
    ) -> Vec<Result<Removed, Errno>> {
        let operation = |name: &&[u8]| {
            let (name, keep) = (Bytes::from(*name), false);
            match dirs {
                true => BatchOp::Rmdir { parent, name, keep },
                false => BatchOp::Unlink { parent, name, keep },
            }
        };
        let removed = self.run_batch(cred, names.iter().map(operation).collect());
        let removed = removed.into_iter().map(|reply| match reply? {
            MetaReply::Removed { ino, last } => Ok(Removed { ino, last }),
            _ => Err(Errno::EPROTO),
        });
        removed.collect()
    }

    /// Does many operations, on any directories and inodes, in no certain order. Returns the result
    /// of each.
    pub fn run_batch(&self, cred: &Cred, operations: Vec<BatchOp>) -> Vec<MetaResult> {
        let mut work = BatchWork::new(operations);
        self.run_rounds(cred, &mut work, true);
        work.results.into_iter().map(|result| result.unwrap_or(Err(Errno::EPROTO))).collect()
    }

    /// As [`Client::run_batch`], but leaves operations that one executor cannot do by itself: they
    /// have no result.
    pub(crate) fn try_batch(
        &self,
        cred: &Cred,
        operations: Vec<BatchOp>,
    ) -> Vec<Option<MetaResult>> {
        let mut work = BatchWork::new(operations);
        self.run_rounds(cred, &mut work, false);
        work.results
    }

    fn run_rounds(&self, cred: &Cred, work: &mut BatchWork, all: bool) {
        self.answer_cached(work);
        // How many of the stuck operations are sent alone, and for how many rounds nothing was
        // done.
        let (mut few, mut idle) = (1, 0);
        while !work.todo.is_empty() {
            let before = work.todo.len();
            let BatchRest { mut alone, stuck } = self.send_groups(cred, work);
            if !all {
                alone.drain(..).for_each(|at| work.is_over[at] = true);
            }
            work.drop_finished();
            // Without progress, twice as many stuck operations are sent alone in each round: mostly
            // one is enough to clear the way.
            if work.todo.len() < before {
                (few, idle) = (1, 0);
            } else {
                (few, idle) = (few * 2, idle + 1);
            }
            alone.extend(stuck.into_iter().take(few));
            if idle > IDLE_MAX {
                alone.clone_from(&work.todo);
            }
            let ops = alone.iter().map(|at| work.operations[*at].clone().into()).collect();
            for (at, result) in alone.into_iter().zip(self.send_meta_several(cred, ops)) {
                work.record_result(at, result);
            }
            work.drop_finished();
        }
    }

    /// Answers operations from the delegation caches.
    fn answer_cached(&self, work: &mut BatchWork) {
        if !self.has_delegations() {
            return;
        }
        for at in 0..work.operations.len() {
            if work.operations[at].is_mutation() {
                continue;
            }
            let op = MetaOp::from(work.operations[at].clone());
            if let Some(known) = delegations::answer_from_cache(
                &op,
                |ino| self.delegation_caches(ino),
                |ino| self.cached_attr(ino),
            ) {
                work.record_result(at, known);
            }
        }
        work.drop_finished();
    }

    /// Sends one request to each executor that has operations to do.
    fn send_groups(&self, cred: &Cred, work: &mut BatchWork) -> BatchRest {
        let mut undone = BatchRest::default();
        let groups = self.group_by_executor(work, &mut undone);
        let (mut calls, mut which) = (Vec::new(), Vec::new());
        for (executor, group) in groups {
            let op = MetaOp::Batch { operations: group.operations };
            calls.push((
                executor,
                MetaCall { shard: op.target_inode().owner_shard(), cred: cred.clone(), op },
            ));
            which.push(group.which);
        }
        let answers = self.send_to_executors(&calls);
        for (((_, call), which), answer) in calls.into_iter().zip(which).zip(answers) {
            let MetaOp::Batch { operations } = call.op else { continue };
            match answer {
                Ok(MetaReply::BatchResults(all)) if all.len() == which.len() => {
                    for ((result, sent), at) in all.into_iter().zip(operations).zip(which) {
                        self.handle_batch_result(work, &mut undone, at, &sent, result);
                    }
                }
                Ok(_) => which.iter().for_each(|at| work.record_result(*at, Err(Errno::EPROTO))),
                // Only some of many operations may concern shards that do not exist any more.
                Err(Errno::ESTALE) => undone.stuck.extend(which),
                Err(e) => which.iter().for_each(|at| work.record_result(*at, Err(e))),
            }
        }
        undone
    }

    /// Groups the operations by executor.
    fn group_by_executor(
        &self,
        work: &BatchWork,
        undone: &mut BatchRest,
    ) -> BTreeMap<ExecutorId, BatchGroup> {
        let mut groups: BTreeMap<ExecutorId, BatchGroup> = BTreeMap::new();
        // The shards of an executor lie in blocks, so there are about as many blocks as executors.
        let most = BATCH_OPS_MAX * self.map().shards.chunk_by(|a, b| a == b).count();
        for at in work.todo.iter().take(most) {
            let operation = self.partitions.locate_batch_op(&work.operations[*at]);
            let Some(executor) = self.owner(operation.target_inode().owner_shard()) else {
                undone.alone.push(*at);
                continue;
            };
            let (operations, which, weight, is_full) = (Vec::new(), Vec::new(), 0, false);
            let group =
                groups.entry(executor).or_insert(BatchGroup { operations, which, weight, is_full });
            group.add_operation(*at, operation);
        }
        groups
    }

    fn handle_batch_result(
        &self,
        work: &mut BatchWork,
        undone: &mut BatchRest,
        at: usize,
        sent: &BatchOp,
        result: BatchResult,
    ) {
        match result {
            BatchResult::WrongPartition { part, range } => {
                self.partitions.record_partition(part, range)
            }
            BatchResult::WrongShard | BatchResult::Busy => undone.stuck.push(at),
            // The first entry of a directory moves it to its owner shard; later entries concern one
            // executor only, so they can be batched again.
            BatchResult::NeedsOtherNodes
                if matches!(
                    sent,
                    BatchOp::Create { .. } | BatchOp::CreateFilled { .. } | BatchOp::Link { .. }
                ) =>
            {
                undone.stuck.push(at)
            }
            BatchResult::NeedsOtherNodes => undone.alone.push(at),
            // The partition may be gone, or another inode that the operation needs.
            BatchResult::Failed(Errno::ESTALE) if *sent != work.operations[at] => {
                undone.alone.push(at)
            }
            done => {
                if let Some(result) = done.into_result() {
                    work.record_result(at, result);
                }
            }
        }
    }

    /// Sends several requests at the same time, each as [`Client::send_meta`] does.
    pub(crate) fn send_meta_several(&self, cred: &Cred, ops: Vec<MetaOp>) -> Vec<MetaResult> {
        if let [_] = ops[..] {
            return ops.into_iter().map(|op| self.send_meta(cred, op)).collect();
        }
        let mut results: Vec<Option<MetaResult>> = vec![None; ops.len()];
        let mut left: Vec<usize> = (0..ops.len()).collect();
        while !left.is_empty() {
            let wave: Vec<_> = left.drain(..left.len().min(WAVE_MAX)).collect();
            let mut calls = Vec::new();
            for at in wave {
                let op = self.partitions.locate(&ops[at]).unwrap_or_else(|| ops[at].clone());
                let call =
                    MetaCall { shard: op.target_inode().owner_shard(), cred: cred.clone(), op };
                match self.owner(call.shard) {
                    Some(executor) => calls.push((at, (executor, call))),
                    None => results[at] = Some(Err(Errno::ESTALE)),
                }
            }
            // All threads begin several requests in this order. Each request holds a slot of its
            // executor, so another order could deadlock.
            calls.sort_by_key(|(_, (executor, _))| *executor);
            let (which, calls): (Vec<_>, Vec<_>) = calls.into_iter().unzip();
            for (at, answer) in which.into_iter().zip(self.send_to_executors(&calls)) {
                results[at] = Some(match answer {
                    Ok(MetaReply::WrongPartition { part, range }) => {
                        self.partitions.record_partition(part, range);
                        self.send_meta(cred, ops[at].clone())
                    }
                    // Nothing was done, so the operation is sent like a new one.
                    Ok(MetaReply::WrongShard { .. }) | Err(Errno::ESTALE) => {
                        self.send_meta(cred, ops[at].clone())
                    }
                    answer => answer,
                });
            }
        }
        results.into_iter().map(|result| result.unwrap_or(Err(Errno::EPROTO))).collect()
    }
}
