//! Comparing names and inodes of all nodes.
//!
//! What the nodes tell is not from one moment. So whatever does not fit is looked at again: an inode that
//! is the same before and after all entries that lead to it have been asked for, while no
//! transaction is about to write any of this, has these names and no others.

use super::{Finding, Fsck, FsckError, Wrong};
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;
use tatami_wire::meta::{MetaOp, MetaReply, Naming, TIES_MAX, Tied};
use tatami_wire::{Cred, Errno, Ino, Kind, NodeId, ShardId};

const WHAT: &str = "tell names and inodes";
/// So often, at most, an inode is looked at that does not stop changing.
const LOOKS: u32 = 100;
/// Time between two looks.
const REST: Duration = Duration::from_millis(10);
/// Deepest directory that is followed up to the root.
const DEPTH_MAX: usize = 1 << 20;

/// All that the nodes say of one inode.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Facts {
    /// Records of the inode, one normally.
    inodes: Vec<Tied>,
    names: Vec<Naming>,
}

type Leads = [(ShardId, NodeId)];
type Told = BTreeMap<Ino, Facts>;

impl Fsck<'_> {
    /// Compares names and inodes of all nodes; nothing where one node has all of them.
    pub(super) fn ties(&mut self) -> Result<(), FsckError> {
        let leads = self.client.map().leads();
        if leads.len() < 2 {
            return Ok(());
        }
        let mut above: HashMap<Ino, Ino> = HashMap::new();
        let mut after = Ino(0);
        // The shards of a node lie side by side, so its inodes are asked for first.
        let blocks = self.blocks();
        for (lead, last) in blocks {
            while after < last {
                let (told, upto) = self.told(&leads, lead, after, last)?;
                for (ino, facts) in told {
                    self.judge(&leads, ino, facts, &mut above)?;
                }
                after = upto;
            }
        }
        self.rings(&leads, &above)
    }

    /// For each run of shards of one node, the first shard of that node and the last number.
    fn blocks(&self) -> Vec<(ShardId, Ino)> {
        let map = self.client.map();
        let mut blocks: Vec<(ShardId, Ino)> = Vec::new();
        for (number, node) in map.shards.iter().enumerate() {
            // There is no shard behind the very last one.
            let last = match number + 1 < map.shards.len() {
                true => Ino::first_of(ShardId(number as u16 + 1)).0 - 1,
                false => u64::MAX,
            };
            let lead = map.leads().iter().find(|(_, n)| n == node).map_or(ShardId(0), |(s, _)| *s);
            match blocks.last_mut() {
                Some((known, end)) if *known == lead => *end = Ino(last),
                _ => blocks.push((lead, Ino(last))),
            }
        }
        blocks
    }

    /// What all nodes say of inodes above `after`; and up to which one.
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
        for (shard, node) in leads {
            let failed = |errno| FsckError::Node { node, what: WHAT, errno };
            let op = MetaOp::Ties { shard, after, last, limit: TIES_MAX };
            let reply = self.client.meta_at(node, &Cred::ROOT, op).map_err(failed)?;
            let MetaReply::Ties { inodes, names, upto } = reply else {
                return Err(failed(Errno::EPROTO));
            };
            last = last.min(upto.unwrap_or(last));
            if last <= after {
                // It would be asked for ever.
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

    fn judge(
        &mut self,
        leads: &Leads,
        ino: Ino,
        mut facts: Facts,
        above: &mut HashMap<Ino, Ino>,
    ) -> Result<(), FsckError> {
        if facts.wrong(ino).is_some() {
            let Some(again) = self.look(leads, ino)? else {
                self.report.dispelled += 1;
                return Ok(());
            };
            facts = again;
            match facts.wrong(ino) {
                Some(what) => {
                    let (wrong, node, repaired) = (Wrong::Names, None, false);
                    self.found(Finding { wrong, ino, node, what, repaired });
                }
                None => self.report.dispelled += 1,
            }
        }
        if let [Tied { kind: Some(Kind::Dir), nlink: 1.., parent, .. }] = facts.inodes[..] {
            above.insert(ino, parent);
        }
        Ok(())
    }

    /// What is true of an inode at one moment; `None` where it does not stop changing.
    fn look(&mut self, leads: &Leads, ino: Ino) -> Result<Option<Facts>, FsckError> {
        for look in 0..LOOKS {
            if look > 0 {
                #[allow(clippy::disallowed_methods)] // nobody tells when a transaction is over
                std::thread::sleep(REST);
            }
            let mut views = Vec::with_capacity(3);
            for _ in 0..3 {
                let (mut told, _) = self.told(leads, leads[0].0, Ino(ino.0 - 1), ino)?;
                views.push(told.remove(&ino).unwrap_or_default());
            }
            let rests = views.iter().all(Facts::rests) && views[0].inodes == views[2].inodes;
            if rests {
                return Ok(Some(views.swap_remove(1)));
            }
        }
        Ok(None)
    }

    /// Directories that cannot be reached from the root, though each lies in another one.
    fn rings(&mut self, leads: &Leads, above: &HashMap<Ino, Ino>) -> Result<(), FsckError> {
        let mut rooted: HashMap<Ino, bool> = HashMap::from([(Ino::ROOT, true)]);
        for start in above.keys() {
            let (mut path, mut at) = (Vec::new(), *start);
            let is_rooted = loop {
                if let Some(known) = rooted.get(&at) {
                    break *known;
                }
                // Until it is known better: who comes by here again goes round in a ring.
                rooted.insert(at, false);
                path.push(at);
                match above.get(&at) {
                    Some(parent) => at = *parent,
                    // It is lost itself, and found as that.
                    None => break true,
                }
            };
            rooted.extend(path.into_iter().map(|dir| (dir, is_rooted)));
        }
        let mut lost: Vec<_> = rooted.into_iter().filter(|(_, r)| !r).map(|(ino, _)| ino).collect();
        lost.sort_unstable();
        for ino in lost {
            if self.is_in_a_ring(leads, ino)? {
                let what = "it cannot be reached from the root".to_owned();
                let (wrong, node, repaired) = (Wrong::Names, None, false);
                self.found(Finding { wrong, ino, node, what, repaired });
            } else {
                self.report.dispelled += 1;
            }
        }
        Ok(())
    }

    /// Whether going up from a directory leads round in a ring, twice the same way.
    fn is_in_a_ring(&mut self, leads: &Leads, ino: Ino) -> Result<bool, FsckError> {
        let mut ways = [Vec::new(), Vec::new()];
        for way in &mut ways {
            let mut at = ino;
            while at != Ino::ROOT && !way.contains(&at) && way.len() < DEPTH_MAX {
                way.push(at);
                let (told, _) = self.told(leads, leads[0].0, Ino(at.0 - 1), at)?;
                match told.get(&at).and_then(|facts| facts.inodes.first()) {
                    Some(tied) if !tied.changing => at = tied.parent,
                    _ => return Ok(false),
                }
            }
            if at == Ino::ROOT {
                return Ok(false);
            }
        }
        Ok(ways[0] == ways[1])
    }
}

impl Facts {
    /// Whether no transaction is about to change something of it.
    fn rests(&self) -> bool {
        !self.inodes.iter().any(|tied| tied.changing) && !self.names.iter().any(|n| n.changing)
    }

    /// What is wrong, if something is.
    fn wrong(&self, ino: Ino) -> Option<String> {
        let count: u32 = self.names.iter().map(|naming| naming.count).sum();
        let place = self.names.iter().find(|naming| naming.count > 0);
        let tied = match (&self.inodes[..], place) {
            ([], None) => return None,
            ([], Some(place)) => {
                let dir = place.dir;
                return Some(format!(
                    "{count} entries lead to it, one in {dir}, and it is not there"
                ));
            }
            ([tied], _) => tied,
            _ => return Some("two nodes have a record of it".into()),
        };
        // One that does not read is told by its node.
        let kind = tied.kind?;
        if let Some(other) = self.names.iter().find(|n| n.count > 0 && n.kind != kind) {
            return Some(format!("an entry in {} says that it is of another kind", other.dir));
        }
        let (nlink, kept) = (tied.nlink, tied.kept);
        match (kind, place) {
            (Kind::Dir, _) if ino == Ino::ROOT => match (count, tied.parent) {
                (0, Ino::ROOT) => None,
                (0, _) => Some("the root lies in another directory".into()),
                _ => Some(format!("{count} entries lead to the root")),
            },
            (_, None) if nlink == 0 && kept => None,
            (_, None) if nlink == 0 => Some("it has no name and nobody keeps it".into()),
            (_, None) => Some("no entry leads to it".into()),
            (Kind::Dir, Some(_)) if count > 1 => Some(format!("a directory with {count} names")),
            (Kind::Dir, Some(place)) if place.dir != tied.parent => {
                Some(format!("it lies in directory {}, it says {}", place.dir, tied.parent))
            }
            (Kind::Dir, Some(_)) => None,
            _ if count != nlink => Some(format!("it has {count} names, it says {nlink}")),
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
        Facts { inodes, names }.wrong(INO).is_some()
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
    }
}
