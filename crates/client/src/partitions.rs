//! The client's cache of partition maps: which partition of a split directory has a name (GIGA+).
//!
//! The cache may be old. A partition that is asked for a name of another one replies with its own
//! range, and the client corrects its cache and asks again. A request without a reply is sent to
//! the same place again, in the layers below: it may have taken effect there.
//!
//! A client with a delegation of each partition of a directory knows the directory's attributes. So
//! paths through a large directory cost no request, as long as no client changes it.

use crate::Client;
use crate::delegations;
use crate::partition_cache::AttrRequests;
use crate::uptime::{to_uptime, uptime};
use std::sync::Arc;
use std::time::Duration;
use tatami_wire::delegation::PartitionAttr;
use tatami_wire::meta::{MetaCall, MetaOp, MetaReply};
use tatami_wire::{Attr, Cred, Errno, Ino, InodeKind, READDIR_MAX, ShardId};

/// Corrections until a request fails with `ESTALE`. A partition map needs as many as a partition
/// has split times, and some more if it splits meanwhile.
const CORRECTIONS: u32 = 64;
/// Most directories whose parents are remembered.
const ABOVE_MAX: usize = 1024;
/// Requests for the attributes of a split directory, before the client asks all its partitions to
/// delegate themselves. Partitions in which names are looked up delegate themselves with the reply.
const ASKED_FIRST: u32 = 4;
/// Time for which a directory must not have changed, and time between two attempts.
const QUIET: Duration = Duration::from_secs(2);
/// Most partitions that are added up: beyond, it is cheaper to ask the directory's owner shard.
const PARTS_MAX: usize = 256;
/// Most directories whose requests are counted.
const ASKED_MAX: usize = 1024;

impl Client {
    /// Sends one request to the shard that it concerns. The request takes effect once, even if the
    /// daemon dies before it replies and is started again. Facts that the shard has delegated to
    /// this client need no request: see [`Client::hold_delegations`].
    ///
    /// # Errors
    /// The shard's; `EHOSTDOWN` when its daemon stays away for longer than
    /// [`Options::patience`](crate::Options::patience); `EPROTO` when it refuses this client.
    pub fn send_meta(&self, cred: &Cred, op: MetaOp) -> Result<MetaReply, Errno> {
        debug_assert!(!op.is_for_all_shards(), "{op:?} is for an executor");
        // Before an answer from the cache: it does not know what is held back.
        self.settle_before(&op);
        let located = self.partitions.locate(&op);
        let asked = located.as_ref().unwrap_or(&op);
        let (known, attr) = (|ino| self.delegation_caches(ino), |ino| self.cached_attr(ino));
        if let Some(result) = delegations::answer_from_cache(asked, known, attr) {
            return result;
        }
        let call = |op: MetaOp| MetaCall {
            shard: op.target_inode().owner_shard(),
            cred: cred.clone(),
            op,
        };
        let (mut located, whole) = (located.map(call), call(op));
        let mut forgotten = false;
        for _ in 0..CORRECTIONS {
            match self.send_to_owner(located.as_ref().unwrap_or(&whole)) {
                // The reply names the range of the partition that was asked: each correction
                // narrows the map, as GIGA+ does.
                Ok(MetaReply::WrongPartition { part, range }) => {
                    self.partitions.record_partition(part, range)
                }
                // The partition may be gone, or another inode that the operation needs. The map is
                // forgotten once, and the request goes to the directory itself; a second `ESTALE`
                // is the operation's own.
                Err(Errno::ESTALE) if located.is_some() && !forgotten => {
                    forgotten = true;
                    self.partitions.forget_partitions(&whole.op);
                }
                answer => {
                    if let Ok(reply) = &answer {
                        self.record_reply_names(
                            &whole.op,
                            located.as_ref().unwrap_or(&whole).shard,
                            reply,
                        );
                    }
                    if let (MetaOp::GetAttr { .. }, Ok(MetaReply::Attr(attr))) =
                        (&whole.op, &answer)
                        && self.should_fetch_partitions(attr)
                    {
                        self.fetch_partitions(attr.ino);
                    }
                    return answer;
                }
            }
            located = self.partitions.locate(&whole.op).map(call);
        }
        Err(Errno::ESTALE)
    }

    /// Records the names in a reply of the executor that serves `shard`, which may not be durable
    /// yet.
    fn record_reply_names(&self, op: &MetaOp, shard: ShardId, reply: &MetaReply) {
        if let Some(here) = self.owner(shard) {
            self.unsynced_names.record_reply(
                op,
                reply,
                here,
                |ino| self.owner(ino.owner_shard()),
                uptime(),
            );
        }
    }

    /// Returns all partitions of a directory, if they are in the cache; the first one is the
    /// directory's own.
    fn cached_partitions(&self, dir: Ino) -> Option<Vec<Arc<PartitionAttr>>> {
        self.collect_partitions(dir, |part, _| self.cached_partition(part))
    }

    fn cached_partition(&self, part: Ino) -> Option<Arc<PartitionAttr>> {
        self.delegation_caches(part)
            .into_iter()
            .flatten()
            .find_map(|known| known.cached_partition(part))
    }

    /// Returns all partitions of a directory, if they are few and `tell` returns each, by its
    /// number and the start of its range.
    fn collect_partitions(
        &self,
        dir: Ino,
        tell: impl Fn(Ino, u64) -> Option<Arc<PartitionAttr>>,
    ) -> Option<Vec<Arc<PartitionAttr>>> {
        let ring = &self.partitions.shard_map;
        let first = tell(dir, 0).filter(|first| first.range.from == 0)?;
        // Each range implies the partitions that have split off from it: so the walk finds all of
        // them, and a gap means that one is not known.
        let mut next = ring.split_off_ranges(first.range);
        let mut all = vec![first];
        while let Some(range) = next.pop() {
            if all.len() >= PARTS_MAX {
                return None;
            }
            let one = tell(ring.partition_number(dir, range.from), range.from)?;
            next.extend(ring.split_off_ranges(one.range));
            all.push(one);
        }
        Some(all)
    }

    /// Returns whether the partitions of a directory, whose attributes just came, should be asked
    /// to delegate themselves: the directory is asked for often and changes rarely.
    fn should_fetch_partitions(&self, attr: &Attr) -> bool {
        if attr.kind != InodeKind::Dir {
            return false;
        }
        // Whether the directory is split does not matter: a client that has met no partition but
        // the first does not know.
        if !self.has_delegations() {
            return false;
        }
        let mut reported = self.partitions.table.lock();
        let now = uptime();
        if reported.asked.len() >= ASKED_MAX {
            reported.asked.clear();
        }
        let asked = reported.asked.entry(attr.ino).or_default();
        asked.times += 1;
        if asked.times < ASKED_FIRST
            || now < asked.not_before
            || now < to_uptime(attr.ctime) + QUIET
        {
            return false;
        }
        *asked = AttrRequests { times: 0, not_before: now + QUIET };
        true
    }

    /// Asks the partitions of a directory that are not in the cache for one entry each: they
    /// delegate themselves with the reply.
    fn fetch_partitions(&self, dir: Ino) {
        self.collect_partitions(dir, |part, from| {
            self.cached_partition(part).or_else(|| {
                let after = from.saturating_sub(1);
                let op = MetaOp::ReadDir { dir: part, after, limit: 1, plus: true };
                let call = MetaCall { shard: part.owner_shard(), cred: Cred::ROOT, op };
                self.send_to_owner(&call).ok()?;
                self.cached_partition(part)
            })
        });
    }

    /// Lists a directory, or a partition of one, if this client has often asked it for names that
    /// are not there: from then on the client knows which are. This is for programs that create
    /// many files, since the kernel looks up each name first.
    pub(crate) fn fetch_names_if_useful(&self, part: Ino) {
        let caches = self.delegation_caches(part);
        let Some(cache) = caches.into_iter().flatten().find(|known| known.should_list(part)) else {
            return;
        };
        let last = self.cached_partition(part).map_or(u64::MAX, |known| known.range.last_hash());
        let mut after = self.cached_partition(part).map_or(0, |known| known.range.from);
        after = after.saturating_sub(1);
        loop {
            let op = MetaOp::ReadDir { dir: part, after, limit: READDIR_MAX, plus: true };
            let call = MetaCall { shard: part.owner_shard(), cred: Cred::ROOT, op };
            let Ok(MetaReply::Entries { end, upto, .. }) = self.send_to_owner(&call) else {
                return;
            };
            if end || upto >= last {
                break;
            }
            if upto <= after {
                return;
            }
            after = upto;
        }
        // All names came under one delegation, or their number does not fit.
        cache.detect_complete_directory(part, usize::MAX);
    }

    /// Returns the attributes of a directory, if all its partitions are in the cache.
    pub(crate) fn sum_partition_attrs(&self, dir: Ino) -> Option<Attr> {
        let all = self.cached_partitions(dir)?;
        // A second look at the same records proves that all were valid at one moment: none was
        // recalled in between (a double collect).
        let again = self.cached_partitions(dir)?;
        let same = |(a, b): (&Arc<PartitionAttr>, &Arc<PartitionAttr>)| Arc::ptr_eq(a, b);
        let is_same = all.len() == again.len() && all.iter().zip(&again).all(same);
        is_same.then(|| sum_attrs(&all))
    }

    /// Returns for how long the kernel may cache the attributes of a directory, if they are the sum
    /// of its cached partitions.
    pub(crate) fn grant_split_timeout(&self, attr: &Attr) -> Option<Duration> {
        if attr.kind != InodeKind::Dir {
            return None;
        }
        let all = self.cached_partitions(attr.ino)?;
        if sum_attrs(&all) != *attr {
            return None;
        }
        let lend = |part: &Arc<PartitionAttr>| {
            let known = self.delegation_caches(part.attr.ino).into_iter().flatten();
            known.filter_map(|known| known.grant_partition_timeout(part, attr.ino)).next()
        };
        // Each partition records the copy, so that a recall of any of them revokes the kernel's
        // copy.
        all.iter().map(lend).try_fold(Duration::MAX, |least, time| Some(least.min(time?)))
    }

    /// Returns for how long the kernel may cache the attributes of a directory that others are
    /// changing: see [`Client::getattr`].
    pub(crate) fn grant_busy_timeout(&self, attr: &Attr) -> Option<Duration> {
        if attr.kind != InodeKind::Dir {
            return None;
        }
        let sum_end = self.partitions.recent_sum_end(attr.ino)?;
        let caches = self.delegation_caches(attr.ino).into_iter().flatten();
        let time = caches.filter_map(|known| known.grant_path_timeout(attr, sum_end)).next()?;
        // Once more after the record: an fsync forgets the counts, and then makes the kernel forget
        // what is recorded.
        if self.partitions.recent_sum_end(attr.ino) != Some(sum_end) {
            self.revoke_attr_timeout(attr.ino);
            return None;
        }
        Some(time)
    }

    /// Returns the parent of a directory. `told` is the parent in a part of its listing; only the
    /// first partition states it.
    pub(crate) fn resolve_parent_inode(&self, dir: Ino, reported: Ino) -> Ino {
        let mut known = self.partitions.table.lock();
        if reported == dir && dir != Ino::ROOT {
            return known.above.get(&dir).copied().unwrap_or(dir);
        }
        if known.above.len() >= ABOVE_MAX {
            known.above.clear();
        }
        known.above.insert(dir, reported);
        reported
    }
}

/// Returns the attributes of the directory with these partitions.
fn sum_attrs(parts: &[Arc<PartitionAttr>]) -> Attr {
    let (first, others) = parts.split_first().expect("a directory has a partition");
    let mut attr = first.attr.clone();
    others.iter().for_each(|part| attr.add_partition(&part.attr));
    attr
}
