//! Comparison of the names and inodes of all executors.
//!
//! The reports of the executors are not from one moment. So each mismatch is checked again: an
//! inode, and all entries that lead to it, are read three times. If the results are the same, and
//! no transaction is about to write any of these records, the inode had these names, and no others,
//! at one moment.

use super::mend::{Doubt, Doubts, Fault, UNREACHABLE};
use super::{Finding, Fsck, FsckError, Wrong};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;
use tatami_wire::meta::{MetaOp, MetaReply, Naming, TIES_MAX, Tied};
use tatami_wire::{Cred, Errno, ExecutorId, Ino, Kind, ShardId};

const WHAT: &str = "tell names and inodes";
/// Most looks at an inode that does not stop changing.
const LOOKS: u32 = 100;
/// Time between two looks.
const REST: Duration = Duration::from_millis(10);
/// Deepest directory from which the walk upwards goes to the root.
const DEPTH_MAX: usize = 1 << 20;

/// All records of the executors about one inode.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Facts {
    /// Records of the inode, normally one.
    pub inodes: Vec<Tied>,
    names: Vec<Naming>,
}

pub(super) type Leads = [(ShardId, ExecutorId)];
type Told = BTreeMap<Ino, Facts>;

impl Fsck<'_> {
    /// Compares names and inodes of all executors; does nothing where one always had all of them.
    pub(super) fn ties(&mut self) -> Result<(), FsckError> {
        if !self.is_spread() {
            return Ok(());
        }
        let leads = self.client.map().leads();
        let mut above: HashMap<Ino, Ino> = HashMap::new();
        let mut after = Ino(0);
        // The shards of an executor are contiguous, so the executor that has the inodes is asked
        // first.
        let blocks = self.blocks();
        for (lead, last) in blocks {
            while after < last {
                let (told, upto) = self.told(&leads, lead, after, last)?;
                self.judge(&leads, told, &mut above)?;
                after = upto;
            }
        }
        self.rings(&leads, &above)
    }

    /// Returns, for each run of shards of one executor, the first shard of that executor and the
    /// last inode number of the run.
    fn blocks(&self) -> Vec<(ShardId, Ino)> {
        let map = self.client.map();
        let mut blocks: Vec<(ShardId, Ino)> = Vec::new();
        for (number, executor) in map.shards.iter().enumerate() {
            // No shard follows the last one.
            let last = match number + 1 < map.shards.len() {
                true => Ino::first_of(ShardId(number as u16 + 1)).0 - 1,
                false => u64::MAX,
            };
            let lead = map.leads().into_iter().find(|(_, id)| id == executor);
            let lead = lead.map_or(ShardId(0), |(shard, _)| shard);
            match blocks.last_mut() {
                Some((known, end)) if *known == lead => *end = Ino(last),
                _ => blocks.push((lead, Ino(last))),
            }
        }
        blocks
    }

    /// Collects the records of all executors about inodes above `after`. Returns also the last
    /// inode that is covered.
    fn told(
        &mut self,
        leads: &Leads,
        first: ShardId,
        after: Ino,
        mut last: Ino,
    ) -> Result<(Told, Ino), FsckError> {
        let mut all = Told::new();
        let mut leads = leads.to_vec();
        leads.sort_by_key(|(shard, _)| *shard != first);
        for (shard, executor) in leads {
            let failed = |errno| FsckError::Executor { executor, what: WHAT, errno };
            let op = MetaOp::Ties { shard, after, last, limit: TIES_MAX };
            let reply = self.client.meta_at(executor, &Cred::ROOT, op).map_err(failed)?;
            let MetaReply::Ties { inodes, names, upto } = reply else {
                return Err(failed(Errno::EPROTO));
            };
            last = last.min(upto.unwrap_or(last));
            if last <= after {
                // Without progress, the executor would be asked for ever.
                return Err(failed(Errno::EPROTO));
            }
            for tied in inodes {
                all.entry(tied.ino).or_default().inodes.push(tied);
            }
            for naming in names {
                all.entry(naming.ino).or_default().names.push(naming);
            }
        }
        all.retain(|ino, _| *ino <= last);
        Ok((all, last))
    }

    /// Checks mismatches again, and reports or repairs them.
    fn judge(
        &mut self,
        leads: &Leads,
        told: Told,
        above: &mut HashMap<Ino, Ino>,
    ) -> Result<(), FsckError> {
        let mut doubts = Doubts::default();
        for (ino, facts) in told {
            match facts.fault(ino) {
                Some(_) => drop(doubts.open.insert(ino, Doubt::default())),
                None => facts.note(ino, above),
            }
        }
        for look in 0..LOOKS {
            if doubts.open.is_empty() {
                return Ok(());
            }
            if look > 0 && !std::mem::take(&mut doubts.went_on) {
                #[allow(clippy::disallowed_methods)] // the end of a transaction sends no event
                std::thread::sleep(REST);
            }
            let wanted = doubts.open.keys().copied().collect();
            let mut faults = Vec::new();
            for (ino, facts) in self.look(leads, &wanted)? {
                match facts.fault(ino) {
                    Some(fault) => faults.push((ino, facts, fault)),
                    None => {
                        facts.note(ino, above);
                        let doubt = doubts.open.remove(&ino);
                        let was_mended = doubt.is_some_and(|doubt| doubt.mended);
                        self.report.dispelled += u64::from(!was_mended);
                    }
                }
            }
            if self.repair {
                self.mend(leads, faults, &mut doubts)?;
            } else {
                for (ino, _, fault) in faults {
                    doubts.open.remove(&ino);
                    self.found_names(ino, fault.to_string(), false);
                }
            }
        }
        // These do not stop changing.
        for (ino, doubt) in doubts.open {
            match doubt.last {
                Some(what) => self.found_names(ino, what, false),
                None => self.report.dispelled += u64::from(!doubt.mended),
            }
        }
        Ok(())
    }

    pub(super) fn found_names(&mut self, ino: Ino, what: String, repaired: bool) {
        let (wrong, node) = (Wrong::Names, None);
        self.found(Finding {
            wrong,
            ino,
            path: None,
            node,
            lost: None,
            journal: None,
            what,
            repaired,
        });
    }

    /// Returns the records of those of these inodes that did not change, as they were at one
    /// moment.
    pub(super) fn look(
        &mut self,
        leads: &Leads,
        wanted: &BTreeSet<Ino>,
    ) -> Result<Vec<(Ino, Facts)>, FsckError> {
        let (Some(first), Some(last)) = (wanted.first(), wanted.last()) else {
            return Ok(Vec::new());
        };
        let mut views = [Told::new(), Told::new(), Told::new()];
        for view in &mut views {
            let mut after = Ino(first.0 - 1);
            while after < *last {
                let (mut told, upto) = self.told(leads, leads[0].0, after, *last)?;
                told.retain(|ino, _| wanted.contains(ino));
                view.append(&mut told);
                after = upto;
            }
        }
        let mut seen = Vec::new();
        for ino in wanted {
            let [first, second, third] =
                views.each_mut().map(|view| view.remove(ino).unwrap_or_default());
            // An entry that a split or a migration moves from one executor to another is missed
            // once at most.
            if first.rests() && first == second && second == third {
                seen.push((*ino, third));
            }
        }
        Ok(seen)
    }

    /// Finds directories that cannot be reached from the root, though each lies in another one.
    fn rings(&mut self, leads: &Leads, above: &HashMap<Ino, Ino>) -> Result<(), FsckError> {
        let mut rooted: HashMap<Ino, bool> = HashMap::from([(Ino::ROOT, true)]);
        for start in above.keys() {
            let (mut path, mut at) = (Vec::new(), *start);
            let is_rooted = loop {
                if let Some(known) = rooted.get(&at) {
                    break *known;
                }
                // Until more is known: a walk that comes here again goes round in a ring.
                rooted.insert(at, false);
                path.push(at);
                match above.get(&at) {
                    Some(parent) => at = *parent,
                    // It is lost itself, and reported as that.
                    None => break true,
                }
            };
            rooted.extend(path.into_iter().map(|dir| (dir, is_rooted)));
        }
        let mut lost: Vec<_> = rooted.into_iter().filter(|(_, r)| !r).map(|(ino, _)| ino).collect();
        lost.sort_unstable();
        for ino in lost {
            let Some(ring) = self.ring(leads, ino)? else {
                self.report.dispelled += 1;
                continue;
            };
            if self.repair {
                self.open_ring(leads, ino, ring)?;
            } else {
                self.found_names(ino, UNREACHABLE.into(), false);
            }
        }
        Ok(())
    }

    /// Returns the ring that the walk upwards from a directory enters, if two walks find the same
    /// one.
    pub(super) fn ring(&mut self, leads: &Leads, ino: Ino) -> Result<Option<Vec<Ino>>, FsckError> {
        let mut ways = [Vec::new(), Vec::new()];
        let mut at = ino;
        for way in &mut ways {
            at = ino;
            while at != Ino::ROOT && !way.contains(&at) && way.len() < DEPTH_MAX {
                way.push(at);
                let (told, _) = self.told(leads, leads[0].0, Ino(at.0 - 1), at)?;
                match told.get(&at).and_then(|facts| facts.inodes.first()) {
                    Some(tied) if !tied.changing => at = tied.parent,
                    _ => return Ok(None),
                }
            }
            if at == Ino::ROOT {
                return Ok(None);
            }
        }
        let [mut way, again] = ways;
        let begin = way.iter().position(|dir| *dir == at).filter(|_| way == again);
        Ok(begin.map(|begin| way.split_off(begin)))
    }
}

impl Facts {
    /// Returns whether no transaction is about to change a record.
    fn rests(&self) -> bool {
        !self.inodes.iter().any(|tied| tied.changing) && !self.names.iter().any(|n| n.changing)
    }

    /// Records the parent of a directory.
    fn note(&self, ino: Ino, above: &mut HashMap<Ino, Ino>) {
        if let [Tied { kind: Some(Kind::Dir), nlink: 1.., parent, .. }] = self.inodes[..] {
            above.insert(ino, parent);
        }
    }

    /// Returns the fault, if there is one.
    fn fault(&self, ino: Ino) -> Option<Fault> {
        let count: u32 = self.names.iter().map(|naming| naming.count).sum();
        let place = self.names.iter().find(|naming| naming.count > 0);
        let tied = match (&self.inodes[..], place) {
            ([], None) => return None,
            ([], Some(place)) => return Some(Fault::NoInode { count, dir: place.dir }),
            ([tied], _) => tied,
            _ => return Some(Fault::Twins),
        };
        // A record that cannot be decoded is reported by its executor.
        let kind = tied.kind?;
        if let Some(other) = self.names.iter().find(|n| n.count > 0 && n.kind != kind) {
            return Some(Fault::OtherKind { dir: other.dir, kind });
        }
        let (nlink, version) = (tied.nlink, tied.version);
        match (kind, place) {
            (Kind::Dir, _) if ino == Ino::ROOT => match (count, tied.parent) {
                (0, Ino::ROOT) => None,
                (0, _) => Some(Fault::RootLies),
                _ => Some(Fault::RootNamed { count }),
            },
            (_, None) if nlink == 0 && tied.kept => None,
            (_, None) if nlink == 0 => Some(Fault::Unkept { version }),
            (_, None) => {
                let kept = tied.kept && kind != Kind::Dir;
                Some(Fault::Nameless { version, kept })
            }
            (Kind::Dir, Some(_)) if count > 1 => Some(Fault::Names { count, parent: tied.parent }),
            (Kind::Dir, Some(place)) if place.dir != tied.parent => {
                Some(Fault::Lies { dir: place.dir, says: tied.parent })
            }
            (Kind::Dir, Some(place)) if nlink == 0 => {
                Some(Fault::Removed { dir: place.dir, version })
            }
            (Kind::Dir, Some(_)) => None,
            _ if count != nlink => Some(Fault::Links { count, nlink, version }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INO: Ino = Ino(77);

    fn inode(kind: Kind, nlink: u32) -> Tied {
        let parent = if kind == Kind::Dir { Ino(5) } else { Ino(0) };
        let kind = Some(kind);
        Tied { ino: INO, kind, nlink, kept: false, parent, version: 1, changing: false }
    }

    fn name(kind: Kind, dir: Ino, count: u32) -> Naming {
        Naming { ino: INO, kind, dir, count, changing: false }
    }

    fn is_wrong(inodes: &[&Tied], names: &[&Naming]) -> bool {
        let inodes = inodes.iter().map(|tied| (*tied).clone()).collect();
        let names = names.iter().map(|naming| (*naming).clone()).collect();
        Facts { inodes, names }.fault(INO).is_some()
    }

    #[test]
    fn names_and_inodes_fit_or_not() {
        let (file, dir) = (inode(Kind::File, 2), inode(Kind::Dir, 4));
        let (a, b) = (name(Kind::File, Ino(5), 1), name(Kind::File, Ino(6), 1));
        let (here, there) = (name(Kind::Dir, Ino(5), 1), name(Kind::Dir, Ino(6), 1));
        assert!(!is_wrong(&[], &[]), "gone");
        assert!(!is_wrong(&[&file], &[&a, &b]));
        assert!(is_wrong(&[&file], &[&a]), "a name too few");
        assert!(is_wrong(&[&file], &[]), "no name");
        assert!(is_wrong(&[], &[&a]), "no inode");
        assert!(is_wrong(&[&file, &file], &[&a, &b]), "two inodes");
        assert!(is_wrong(&[&file], &[&a, &here]), "two kinds");
        let gone = inode(Kind::File, 0);
        assert!(is_wrong(&[&gone], &[]), "nobody keeps it");
        let kept = Tied { kept: true, ..gone.clone() };
        assert!(!is_wrong(&[&kept], &[]));
        assert!(!is_wrong(&[&dir], &[&here]));
        assert!(is_wrong(&[&dir], &[&there]), "it lies elsewhere");
        assert!(is_wrong(&[&dir], &[&here, &there]), "two names");
        let removed = inode(Kind::Dir, 0);
        assert!(is_wrong(&[&removed], &[&here]), "removed, and named");
    }
}
