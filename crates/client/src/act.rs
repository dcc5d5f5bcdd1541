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
use tatami_wire::act::{ACTS_BYTES_MAX, ACTS_MAX, Act, Acted};
use tatami_wire::meta::{Bytes, MetaCall, MetaOp, MetaReply, MetaResult, NewNode};
use tatami_wire::{Access, Attr, Cred, Errno, ExecutorId, Ino};

/// Most requests that one thread has in flight.
const WAVE_MAX: usize = 32;
/// After this many rounds without progress, the remaining operations are sent alone.
const IDLE_MAX: u32 = 16;

/// An entry to make, see [`Client::create_many`].
#[derive(Clone, Debug, PartialEq)]
pub struct New {
    /// Its name.
    pub name: Vec<u8>,
    /// The kind of inode.
    pub node: NewNode,
    /// Permission bits, before the umask (or a default ACL) is applied.
    pub mode: u16,
}

/// The operations of a batch, and their results.
struct Work {
    acts: Vec<Act>,
    results: Vec<Option<MetaResult>>,
    /// The operations that are still to be done, by number.
    todo: Vec<usize>,
    is_over: Vec<bool>,
}

/// The operations that a round has left undone, by number.
#[derive(Default)]
struct Undone {
    /// Operations that no executor can do in a batch.
    alone: Vec<usize>,
    /// Operations that meet a change in flight: when one of them is done, the others may succeed,
    /// too.
    stuck: Vec<usize>,
}

impl Work {
    fn new(acts: Vec<Act>) -> Work {
        let (results, todo) = (vec![None; acts.len()], (0..acts.len()).collect());
        let is_over = vec![false; acts.len()];
        Work { acts, results, todo, is_over }
    }

    fn end(&mut self, at: usize, result: MetaResult) {
        self.results[at] = Some(result);
        self.is_over[at] = true;
    }

    /// Drops the operations that have a result.
    fn sweep(&mut self) {
        self.todo.retain(|at| !self.is_over[*at]);
    }
}

/// One request with several operations.
struct Group {
    acts: Vec<Act>,
    /// The numbers of these operations in the batch.
    which: Vec<usize>,
    weight: usize,
    is_full: bool,
}

impl Group {
    fn add(&mut self, at: usize, act: Act) {
        let weight = self.weight + act.weight();
        self.is_full |= self.acts.len() >= ACTS_MAX || weight > ACTS_BYTES_MAX;
        if !self.is_full {
            self.weight = weight;
            self.acts.push(act);
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
        new: Vec<New>,
        umask: u16,
        exclusive: bool,
        open: Option<Access>,
    ) -> Vec<Result<Created, Errno>> {
        let acts = new.into_iter().map(|New { name, node, mode }| {
            let name = name.into();
            Act::Create { parent, name, node, mode, umask, exclusive, open }
        });
        let acts: Vec<_> = acts.collect();
        let made = self.act(cred, acts.clone());
        let made = made.into_iter().zip(acts).map(|(made, act)| {
            let MetaReply::Created { attr, cap, created } = made? else {
                return Err(Errno::EPROTO);
            };
            let made = Created { attr, cap, created };
            if made.is_whole(open) {
                return Ok(made);
            }
            // The file was there, and its inode is on another executor than its name.
            let Act::Create { name, node, mode, .. } = act else { return Err(Errno::EPROTO) };
            self.create(cred, parent, &name, node, mode, umask, exclusive, open)
        });
        made.collect()
    }

    /// Returns the attributes of entries of one directory, as [`Client::lookup`].
    pub fn stat_many(&self, cred: &Cred, parent: Ino, names: &[&[u8]]) -> Vec<Result<Attr, Errno>> {
        let finds = names.iter().map(|name| Act::Find { parent, name: Bytes::from(*name) });
        let found = self.act(cred, finds.collect());
        let mut results: Vec<Result<Attr, Errno>> = Vec::with_capacity(found.len());
        let (mut leads, mut which) = (Vec::new(), Vec::new());
        for (at, reply) in found.into_iter().enumerate() {
            results.push(match reply {
                Ok(MetaReply::Attr(attr)) => Ok(attr),
                Ok(MetaReply::Leads(ino)) => {
                    leads.push(Act::GetAttr { ino });
                    which.push(at);
                    Err(Errno::EPROTO)
                }
                Ok(_) => Err(Errno::EPROTO),
                Err(e) => Err(e),
            });
        }
        for (at, reply) in which.into_iter().zip(self.act(cred, leads)) {
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
        let act = |name: &&[u8]| {
            let (name, keep) = (Bytes::from(*name), false);
            match dirs {
                true => Act::Rmdir { parent, name, keep },
                false => Act::Unlink { parent, name, keep },
            }
        };
        let removed = self.act(cred, names.iter().map(act).collect());
        let removed = removed.into_iter().map(|reply| match reply? {
            MetaReply::Removed { ino, last } => Ok(Removed { ino, last }),
            _ => Err(Errno::EPROTO),
        });
        removed.collect()
    }

    /// Does many operations, on any directories and inodes, in no certain order. Returns the result
    /// of each.
    pub fn act(&self, cred: &Cred, acts: Vec<Act>) -> Vec<MetaResult> {
        let mut work = Work::new(acts);
        self.work(cred, &mut work, true);
        work.results.into_iter().map(|result| result.unwrap_or(Err(Errno::EPROTO))).collect()
    }

    /// As [`Client::act`], but leaves operations that one executor cannot do by itself: they have
    /// no result.
    pub(crate) fn try_act(&self, cred: &Cred, acts: Vec<Act>) -> Vec<Option<MetaResult>> {
        let mut work = Work::new(acts);
        self.work(cred, &mut work, false);
        work.results
    }

    fn work(&self, cred: &Cred, work: &mut Work, all: bool) {
        self.answer_known(work);
        // How many of the stuck operations are sent alone, and for how many rounds nothing was
        // done.
        let (mut few, mut idle) = (1, 0);
        while !work.todo.is_empty() {
            let before = work.todo.len();
            let Undone { mut alone, stuck } = self.do_groups(cred, work);
            if !all {
                alone.drain(..).for_each(|at| work.is_over[at] = true);
            }
            work.sweep();
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
            let ops = alone.iter().map(|at| work.acts[*at].clone().into()).collect();
            for (at, result) in alone.into_iter().zip(self.meta_several(cred, ops)) {
                work.end(at, result);
            }
            work.sweep();
        }
    }

    /// Answers operations from the delegation caches.
    fn answer_known(&self, work: &mut Work) {
        if !self.is_delegated_anything() {
            return;
        }
        for at in 0..work.acts.len() {
            if work.acts[at].is_mutation() {
                continue;
            }
            let op = MetaOp::from(work.acts[at].clone());
            if let Some(known) =
                delegations::answer(&op, |ino| self.delegations(ino), |ino| self.known_attr(ino))
            {
                work.end(at, known);
            }
        }
        work.sweep();
    }

    /// Sends one request to each executor that has operations to do.
    fn do_groups(&self, cred: &Cred, work: &mut Work) -> Undone {
        let mut undone = Undone::default();
        let groups = self.group(work, &mut undone);
        let (mut calls, mut which) = (Vec::new(), Vec::new());
        for (executor, group) in groups {
            let op = MetaOp::Acts { acts: group.acts };
            calls.push((executor, MetaCall { shard: op.target().shard(), cred: cred.clone(), op }));
            which.push(group.which);
        }
        let answers = self.ask_several(&calls);
        for (((_, call), which), answer) in calls.into_iter().zip(which).zip(answers) {
            let MetaOp::Acts { acts } = call.op else { continue };
            match answer {
                Ok(MetaReply::Acted(all)) if all.len() == which.len() => {
                    for ((acted, sent), at) in all.into_iter().zip(acts).zip(which) {
                        self.take(work, &mut undone, at, &sent, acted);
                    }
                }
                Ok(_) => which.iter().for_each(|at| work.end(*at, Err(Errno::EPROTO))),
                // Only some of many operations may concern shards that do not exist any more.
                Err(Errno::ESTALE) => undone.stuck.extend(which),
                Err(e) => which.iter().for_each(|at| work.end(*at, Err(e))),
            }
        }
        undone
    }

    /// Groups the operations by executor.
    fn group(&self, work: &Work, undone: &mut Undone) -> BTreeMap<ExecutorId, Group> {
        let mut groups: BTreeMap<ExecutorId, Group> = BTreeMap::new();
        // The shards of an executor lie in blocks, so there are about as many blocks as executors.
        let most = ACTS_MAX * self.map().shards.chunk_by(|a, b| a == b).count();
        for at in work.todo.iter().take(most) {
            let act = self.partitions.locate_act(&work.acts[*at]);
            let Some(executor) = self.owner(act.target().shard()) else {
                undone.alone.push(*at);
                continue;
            };
            let (acts, which, weight, is_full) = (Vec::new(), Vec::new(), 0, false);
            let group = groups.entry(executor).or_insert(Group { acts, which, weight, is_full });
            group.add(*at, act);
        }
        groups
    }

    fn take(&self, work: &mut Work, undone: &mut Undone, at: usize, sent: &Act, acted: Acted) {
        match acted {
            Acted::Parted { part, range } => self.partitions.learn(part, range),
            Acted::Elsewhere | Acted::Later => undone.stuck.push(at),
            // The first entry of a directory moves it to its owner shard; later entries concern one
            // executor only, so they can be batched again.
            Acted::Alone if matches!(sent, Act::Create { .. }) => undone.stuck.push(at),
            Acted::Alone => undone.alone.push(at),
            // The partition may be gone, or another inode that the operation needs.
            Acted::Failed(Errno::ESTALE) if *sent != work.acts[at] => undone.alone.push(at),
            done => {
                if let Some(result) = done.result() {
                    work.end(at, result);
                }
            }
        }
    }

    /// Sends several requests at the same time, each as [`Client::meta`] does.
    pub(crate) fn meta_several(&self, cred: &Cred, ops: Vec<MetaOp>) -> Vec<MetaResult> {
        if let [_] = ops[..] {
            return ops.into_iter().map(|op| self.meta(cred, op)).collect();
        }
        let mut results: Vec<Option<MetaResult>> = vec![None; ops.len()];
        let mut left: Vec<usize> = (0..ops.len()).collect();
        while !left.is_empty() {
            let wave: Vec<_> = left.drain(..left.len().min(WAVE_MAX)).collect();
            let mut calls = Vec::new();
            for at in wave {
                let op = self.partitions.locate(&ops[at]).unwrap_or_else(|| ops[at].clone());
                let call = MetaCall { shard: op.target().shard(), cred: cred.clone(), op };
                match self.owner(call.shard) {
                    Some(executor) => calls.push((at, (executor, call))),
                    None => results[at] = Some(Err(Errno::ESTALE)),
                }
            }
            // All threads begin several requests in this order. Each request holds a slot of its
            // executor, so another order could deadlock.
            calls.sort_by_key(|(_, (executor, _))| *executor);
            let (which, calls): (Vec<_>, Vec<_>) = calls.into_iter().unzip();
            for (at, answer) in which.into_iter().zip(self.ask_several(&calls)) {
                results[at] = Some(match answer {
                    Ok(MetaReply::Parted { part, range }) => {
                        self.partitions.learn(part, range);
                        self.meta(cred, ops[at].clone())
                    }
                    // Nothing was done, so the operation is sent like a new one.
                    Ok(MetaReply::Elsewhere { .. }) | Err(Errno::ESTALE) => {
                        self.meta(cred, ops[at].clone())
                    }
                    answer => answer,
                });
            }
        }
        results.into_iter().map(|result| result.unwrap_or(Err(Errno::EPROTO))).collect()
    }
}
