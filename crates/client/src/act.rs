//! Many operations at a time: grouped by executor, those of one executor in one request, several executors at once.
//!
//! What an executor cannot do by itself comes back undone and is asked alone, as every operation can be; so is what meets a
//! change that is under way. The caller hears of none of this.

use crate::Client;
use crate::delegations;
use crate::names::{Created, Removed};
use std::collections::BTreeMap;
use tatami_wire::act::{ACTS_BYTES_MAX, ACTS_MAX, Act, Acted};
use tatami_wire::meta::{Bytes, MetaCall, MetaOp, MetaReply, MetaResult, NewNode};
use tatami_wire::{Access, Attr, Cred, Errno, ExecutorId, Ino};

/// Most requests that one thread has under way.
const WAVE_MAX: usize = 32;
/// After so many rounds in which nothing could be done, what is left is asked alone.
const IDLE_MAX: u32 = 16;

/// What is to be made, see [`Client::create_many`].
#[derive(Clone, Debug, PartialEq)]
pub struct New {
    /// Its name.
    pub name: Vec<u8>,
    /// What it is to be.
    pub node: NewNode,
    /// Permission bits before the umask (or default ACL) is applied.
    pub mode: u16,
}

/// Acts that are to be done, and what became of them.
struct Work {
    acts: Vec<Act>,
    results: Vec<Option<MetaResult>>,
    /// Those that are to be done, by number.
    todo: Vec<usize>,
    is_over: Vec<bool>,
}

/// What a round has left, by number.
#[derive(Default)]
struct Undone {
    /// No executor can do these with others.
    alone: Vec<usize>,
    /// These meet something that is under way: when one of them is done, the others may be, too.
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

    /// Keeps what is not over.
    fn sweep(&mut self) {
        self.todo.retain(|at| !self.is_over[*at]);
    }
}

/// One request of several acts.
struct Group {
    acts: Vec<Act>,
    /// Which acts of the work these are.
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

/// The methods ask for each item what the operation of the same name asks for, each with a result of its own: those of
/// one directory that are on one executor in one request.
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
            // It was there, and its inode is on another executor than its name.
            let Act::Create { name, node, mode, .. } = act else { return Err(Errno::EPROTO) };
            self.create(cred, parent, &name, node, mode, umask, exclusive, open)
        });
        made.collect()
    }

    /// The attributes of entries of one directory, as [`Client::lookup`].
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
                // It was removed in between, and the name leads elsewhere or nowhere by now.
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

    /// Does many acts, of any directories and inodes, in no certain order; what becomes of each.
    pub fn act(&self, cred: &Cred, acts: Vec<Act>) -> Vec<MetaResult> {
        let mut work = Work::new(acts);
        self.work(cred, &mut work, true);
        work.results.into_iter().map(|result| result.unwrap_or(Err(Errno::EPROTO))).collect()
    }

    /// As [`Client::act`], but what an executor cannot do by itself is left: it has no result.
    pub(crate) fn try_act(&self, cred: &Cred, acts: Vec<Act>) -> Vec<Option<MetaResult>> {
        let mut work = Work::new(acts);
        self.work(cred, &mut work, false);
        work.results
    }

    fn work(&self, cred: &Cred, work: &mut Work, all: bool) {
        self.answer_known(work);
        // How many of those that are stuck are asked alone, and how often nothing could be done at all.
        let (mut few, mut idle) = (1, 0);
        while !work.todo.is_empty() {
            let before = work.todo.len();
            let Undone { mut alone, stuck } = self.do_groups(cred, work);
            if !all {
                alone.drain(..).for_each(|at| work.is_over[at] = true);
            }
            work.sweep();
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

    /// Answers what is delegated to us.
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

    /// One request to each executor that has something to do.
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
                // Of many, only some may be of shards that are no more.
                Err(Errno::ESTALE) => undone.stuck.extend(which),
                Err(e) => which.iter().for_each(|at| work.end(*at, Err(e))),
            }
        }
        undone
    }

    /// Puts together what one executor is to do.
    fn group(&self, work: &Work, undone: &mut Undone) -> BTreeMap<ExecutorId, Group> {
        let mut groups: BTreeMap<ExecutorId, Group> = BTreeMap::new();
        // Shards lie in blocks: there are about as many as executors.
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
            // The first entry of a directory takes it to its home; those after it are no matter of others.
            Acted::Alone if matches!(sent, Act::Create { .. }) => undone.stuck.push(at),
            Acted::Alone => undone.alone.push(at),
            // The partition may be gone, or what else it needs.
            Acted::Failed(Errno::ESTALE) if *sent != work.acts[at] => undone.alone.push(at),
            done => {
                if let Some(result) = done.result() {
                    work.end(at, result);
                }
            }
        }
    }

    /// Several requests, as [`Client::meta`] with each, at the same time.
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
            // All who begin several do so in this order.
            calls.sort_by_key(|(_, (executor, _))| *executor);
            let (which, calls): (Vec<_>, Vec<_>) = calls.into_iter().unzip();
            for (at, answer) in which.into_iter().zip(self.ask_several(&calls)) {
                results[at] = Some(match answer {
                    Ok(MetaReply::Parted { part, range }) => {
                        self.partitions.learn(part, range);
                        self.meta(cred, ops[at].clone())
                    }
                    // Nothing was done: it is asked as if for the first time.
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
