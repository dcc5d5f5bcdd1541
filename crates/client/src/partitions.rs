//! Which partition of a directory has a name, as far as we have been told.
//!
//! Whoever is asked for a name that lies elsewhere says what he has, and the right one is asked.
//! A request that was not answered is sent to the same place again, below here: it may have
//! been done there.

use crate::Client;
use parking_lot::Mutex;
use std::collections::HashMap;
use tatami_wire::meta::{MetaOp, MetaReply};
use tatami_wire::partition::{Directories, Range, name_seed};
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

    fn locate(&self, op: &mut MetaOp) {
        self.told.lock().directories.locate(&self.ring, self.seed, op);
    }

    fn learn(&self, part: Ino, range: Range) {
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
        let mut forgotten = false;
        for _ in 0..CORRECTIONS {
            let mut sent = op.clone();
            self.partitions.locate(&mut sent);
            let is_part = sent != op;
            match self.meta_of_part(cred, sent) {
                Ok(MetaReply::Parted { part, range }) => self.partitions.learn(part, range),
                // The partition may be gone, or what else the operation needs.
                Err(Errno::ESTALE) if is_part && !forgotten => {
                    forgotten = true;
                    self.partitions.forget(&op);
                }
                answer => return answer,
            }
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
