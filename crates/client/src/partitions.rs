//! Which partition of a directory has a name, as far as we have been told.
//!
//! Whoever is asked for a name that lies elsewhere says what he has, and the right one is asked.
//! A request that was not answered is sent to the same place again, below here: it may have
//! been done there.
//!
//! Who has been told of all partitions of a directory, and holds a delegation of each, knows its attributes: so the way
//! through a large directory costs no request, as long as nobody changes anything in it.

use crate::Client;
use crate::delegations::{self, at, uptime};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tatami_wire::act::Act;
use tatami_wire::delegation::PartTold;
use tatami_wire::meta::{MetaCall, MetaOp, MetaReply};
use tatami_wire::partition::{Directories, Range, name_hash, name_seed};
use tatami_wire::{Attr, Cred, Errno, Ino, Kind, ShardId, ShardMap, VolumeId};

/// Corrections until a request fails with `ESTALE`. There are as many as a partition has split times, and some more if
/// it splits meanwhile.
const CORRECTIONS: u32 = 64;
/// Directories above others that are remembered.
const ABOVE_MAX: usize = 1024;
/// So many times the attributes of a directory in several partitions are asked for before all of these are asked
/// to delegate themselves. Those in which names are looked up do so with that.
const ASKED_FIRST: u32 = 4;
/// So long a directory must have been quiet, and so long lie between two attempts.
const QUIET: Duration = Duration::from_secs(2);
/// Most partitions that are added up: beyond, it is cheaper to ask the directory's home.
const PARTS_MAX: usize = 256;
/// Directories whose questions are counted.
const ASKED_MAX: usize = 1024;

/// What we have been told.
pub(crate) struct Partitions {
    seed: u64,
    /// For the number of shards, which stays what it is.
    ring: ShardMap,
    told: Mutex<Told>,
}

#[derive(Default)]
struct Told {
    directories: Directories,
    /// The directory above a directory that has been listed: only its first partition tells.
    above: HashMap<Ino, Ino>,
    /// Directories whose attributes were asked for.
    asked: HashMap<Ino, Asked>,
}

/// How a directory was asked for.
#[derive(Default)]
struct Asked {
    /// How many times since its partitions were.
    times: u32,
    /// These are not asked again before, by [`uptime`].
    not_before: Duration,
}

impl Partitions {
    pub(crate) fn new(volume: VolumeId, ring: ShardMap) -> Partitions {
        Partitions { seed: name_seed(volume), ring, told: Mutex::default() }
    }

    /// The operation with partitions in the place of directories; nothing where it is the same.
    pub(crate) fn locate(&self, op: &MetaOp) -> Option<MetaOp> {
        let told = self.told.lock();
        if told.directories.is_empty() {
            return None;
        }
        let mut located = op.clone();
        told.directories.locate(&self.ring, self.seed, &mut located);
        (located != *op).then_some(located)
    }

    /// The partition in which a name of the directory is, as far as we know.
    pub(crate) fn of_name(&self, dir: Ino, name: &[u8]) -> Ino {
        self.told.lock().directories.find(&self.ring, dir, name_hash(self.seed, name))
    }

    /// The act with a partition in the place of its directory.
    pub(crate) fn locate_act(&self, act: &Act) -> Act {
        let (mut act, told) = (act.clone(), self.told.lock());
        told.directories.locate_act(&self.ring, self.seed, &mut act);
        act
    }

    pub(crate) fn learn(&self, part: Ino, range: Range) {
        self.told.lock().directories.learn(&self.ring, part, range);
    }

    fn forget(&self, op: &MetaOp) {
        self.told.lock().directories.forget(self.seed, op);
    }
}

impl Client {
    /// One request to the shard that it concerns. It takes effect once, even
    /// if the daemon dies before it answers and is started again. No request is
    /// needed for what the shard has delegated to us: see [`Client::hold_delegations`].
    ///
    /// # Errors
    /// The shard's, or `EHOSTDOWN` when its daemon stays away for longer than
    /// [`Options::patience`](crate::Options::patience), or `EPROTO` when it refuses us.
    pub fn meta(&self, cred: &Cred, op: MetaOp) -> Result<MetaReply, Errno> {
        debug_assert!(!op.is_for_all_shards(), "{op:?} is for an executor");
        let located = self.partitions.locate(&op);
        let asked = located.as_ref().unwrap_or(&op);
        let (known, attr) = (|ino| self.delegations(ino), |ino| self.known_attr(ino));
        if let Some(result) = delegations::answer(asked, known, attr) {
            return result;
        }
        let call = |op: MetaOp| MetaCall { shard: op.target().shard(), cred: cred.clone(), op };
        let (mut located, whole) = (located.map(call), call(op));
        let mut forgotten = false;
        for _ in 0..CORRECTIONS {
            match self.ask_owner(located.as_ref().unwrap_or(&whole)) {
                Ok(MetaReply::Parted { part, range }) => self.partitions.learn(part, range),
                // The partition may be gone, or what else the operation needs.
                Err(Errno::ESTALE) if located.is_some() && !forgotten => {
                    forgotten = true;
                    self.partitions.forget(&whole.op);
                }
                answer => {
                    if let Ok(reply) = &answer {
                        self.learn_way(&whole.op, located.as_ref().unwrap_or(&whole).shard, reply);
                    }
                    if let (MetaOp::GetAttr { .. }, Ok(MetaReply::Attr(attr))) =
                        (&whole.op, &answer)
                        && self.are_parts_wanted(attr)
                    {
                        self.ask_parts(attr.ino);
                    }
                    return answer;
                }
            }
            located = self.partitions.locate(&whole.op).map(call);
        }
        Err(Errno::ESTALE)
    }

    /// Notes what the executor that serves `shard` has told of names.
    fn learn_way(&self, op: &MetaOp, shard: ShardId, reply: &MetaReply) {
        if let Some(here) = self.owner(shard) {
            self.ways.learn(op, reply, here, |ino| self.owner(ino.shard()), uptime());
        }
    }

    /// All partitions of a directory, if they are known: the first one is the directory's own.
    fn known_parts(&self, dir: Ino) -> Option<Vec<Arc<PartTold>>> {
        self.parts(dir, |part, _| self.known_part(part))
    }

    fn known_part(&self, part: Ino) -> Option<Arc<PartTold>> {
        self.delegations(part).into_iter().flatten().find_map(|known| known.part(part))
    }

    /// All partitions of a directory, if they are few, of which `tell` knows each, by its number and where its hashes begin.
    fn parts(
        &self,
        dir: Ino,
        tell: impl Fn(Ino, u64) -> Option<Arc<PartTold>>,
    ) -> Option<Vec<Arc<PartTold>>> {
        let ring = &self.partitions.ring;
        let first = tell(dir, 0).filter(|first| first.range.from == 0)?;
        let mut next = ring.split_off(first.range);
        let mut all = vec![first];
        while let Some(range) = next.pop() {
            if all.len() >= PARTS_MAX {
                return None;
            }
            let one = tell(ring.partition(dir, range.from), range.from)?;
            next.extend(ring.split_off(one.range));
            all.push(one);
        }
        Some(all)
    }

    /// Whether a directory, of which these attributes were just told, is asked for often, and so seldom changed that
    /// its partitions will delegate themselves.
    fn are_parts_wanted(&self, attr: &Attr) -> bool {
        if attr.kind != Kind::Dir {
            return false;
        }
        // Whether the directory is split is not asked: a client that has met no partition but the first does not know it.
        if !self.is_delegated_anything() {
            return false;
        }
        let mut told = self.partitions.told.lock();
        let now = uptime();
        if told.asked.len() >= ASKED_MAX {
            told.asked.clear();
        }
        let asked = told.asked.entry(attr.ino).or_default();
        asked.times += 1;
        if asked.times < ASKED_FIRST || now < asked.not_before || now < at(attr.ctime) + QUIET {
            return false;
        }
        *asked = Asked { times: 0, not_before: now + QUIET };
        true
    }

    /// Asks the partitions of a directory, which are not known, for an entry each: they delegate themselves with it.
    fn ask_parts(&self, dir: Ino) {
        self.parts(dir, |part, from| {
            self.known_part(part).or_else(|| {
                let after = from.saturating_sub(1);
                let op = MetaOp::ReadDir { dir: part, after, limit: 1, plus: true };
                let call = MetaCall { shard: part.shard(), cred: Cred::ROOT, op };
                self.ask_owner(&call).ok()?;
                self.known_part(part)
            })
        });
    }

    /// The attributes of a directory of which all partitions are known.
    pub(crate) fn split_attr(&self, dir: Ino) -> Option<Attr> {
        let all = self.known_parts(dir)?;
        // They were all true at one moment, if none of them was taken back in between.
        let again = self.known_parts(dir)?;
        let same = |(a, b): (&Arc<PartTold>, &Arc<PartTold>)| Arc::ptr_eq(a, b);
        let is_same = all.len() == again.len() && all.iter().zip(&again).all(same);
        is_same.then(|| sum(&all))
    }

    /// For how long the kernel may keep the attributes of a directory, if they are what its partitions add up to.
    pub(crate) fn lend_split(&self, attr: &Attr) -> Option<Duration> {
        if attr.kind != Kind::Dir {
            return None;
        }
        let all = self.known_parts(attr.ino)?;
        if sum(&all) != *attr {
            return None;
        }
        let lend = |part: &Arc<PartTold>| {
            let known = self.delegations(part.attr.ino).into_iter().flatten();
            known.filter_map(|known| known.lend_part(part, attr.ino)).next()
        };
        all.iter().map(lend).try_fold(Duration::MAX, |least, time| Some(least.min(time?)))
    }

    /// What is above a directory, of which a part of the listing says that it is `told`.
    pub(crate) fn above(&self, dir: Ino, told: Ino) -> Ino {
        let mut known = self.partitions.told.lock();
        if told == dir && dir != Ino::ROOT {
            return known.above.get(&dir).copied().unwrap_or(dir);
        }
        if known.above.len() >= ABOVE_MAX {
            known.above.clear();
        }
        known.above.insert(dir, told);
        told
    }
}

/// The attributes of the directory with these partitions.
fn sum(parts: &[Arc<PartTold>]) -> Attr {
    let (first, others) = parts.split_first().expect("a directory has a partition");
    let mut attr = first.attr.clone();
    others.iter().for_each(|part| attr.add_part(&part.attr));
    attr
}
