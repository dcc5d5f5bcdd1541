//! Which partition of a directory has a name, as far as we have been told.
//!
//! Whoever is asked for a name that lies elsewhere says what he has, and the right one is asked.
//! A request that was not answered is sent to the same place again, below here: it may have
//! been done there.

use crate::Client;
use crate::delegations;
use parking_lot::Mutex;
use std::collections::HashMap;
use tatami_wire::act::Act;
use tatami_wire::meta::{MetaCall, MetaOp, MetaReply};
use tatami_wire::partition::{Directories, Range, name_hash, name_seed};
use tatami_wire::{Cred, Errno, Ino, ShardMap, VolumeId};

/// Corrections until a request fails with `ESTALE`. There are as many as a partition has split times, and some more if
/// it splits meanwhile.
const CORRECTIONS: u32 = 64;
/// Directories above others that are remembered.
const ABOVE_MAX: usize = 1024;

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
        if let Some(result) = delegations::answer(asked, |ino| self.delegations(ino)) {
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
                answer => return answer,
            }
            located = self.partitions.locate(&whole.op).map(call);
        }
        Err(Errno::ESTALE)
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
