//! Checks whether the records of several daemons agree with each other: a walk through the whole
//! tree, and a scan of all records in the stores.

use crate::cluster::SimCluster;
use crate::spec::{SpecAnswer, SpecCall};
use std::collections::{BTreeMap, BTreeSet};
use tatami_wire::partition::HashRange;
use tatami_wire::{ExecutorId, Ino, ShardMap};

/// The findings of a walk.
#[derive(Debug, Default)]
pub(crate) struct NamespaceWalk {
    /// Directories that are still to be visited.
    left: Vec<Ino>,
    dirs: BTreeSet<Ino>,
    /// Files with the number of their names.
    files: BTreeMap<Ino, u32>,
    /// Number of subdirectories of each directory.
    below: BTreeMap<Ino, u32>,
    findings: Vec<String>,
}

impl NamespaceWalk {
    /// Walks through the tree with the replies of `ask`, as a client would.
    ///
    /// # Errors
    /// There is no reply.
    pub fn walk_tree(
        ask: &mut impl FnMut(SpecCall) -> Result<SpecAnswer, String>,
    ) -> Result<NamespaceWalk, String> {
        let mut walk = NamespaceWalk { left: vec![Ino::ROOT], ..NamespaceWalk::default() };
        walk.dirs.insert(Ino::ROOT);
        while let Some(dir) = walk.left.pop() {
            let mut after = Some(0);
            while let Some(from) = after {
                let SpecAnswer::Names { names, upto, end } =
                    ask(SpecCall::List { dir, after: from })?
                else {
                    walk.findings.push(format!("directory {dir} cannot be listed"));
                    break;
                };
                for (name, ino) in names {
                    let found = ask(SpecCall::Lookup { dir, name })?;
                    walk.record_entry(dir, ino, found);
                }
                after = (!end && upto > from).then_some(upto);
            }
        }
        walk.check_links(ask)?;
        Ok(walk)
    }

    fn record_entry(&mut self, dir: Ino, ino: Ino, found: SpecAnswer) {
        match found {
            SpecAnswer::Node { ino: found, is_dir, .. } if found == ino => match is_dir {
                true if self.dirs.insert(ino) => {
                    *self.below.entry(dir).or_default() += 1;
                    self.left.push(ino);
                }
                true => self.findings.push(format!("directory {ino} has two names")),
                false => *self.files.entry(ino).or_default() += 1,
            },
            other => self.findings.push(format!("an entry of {dir} for {ino} leads to {other:?}")),
        }
    }

    /// Compares link counts with the names.
    fn check_links(
        &mut self,
        ask: &mut impl FnMut(SpecCall) -> Result<SpecAnswer, String>,
    ) -> Result<(), String> {
        let below = |dir: &Ino| 2 + self.below.get(dir).copied().unwrap_or(0);
        let dirs = self.dirs.iter().map(|dir| (*dir, below(dir)));
        let wanted: Vec<_> = dirs.chain(self.files.iter().map(|(i, n)| (*i, *n))).collect();
        for (ino, names) in wanted {
            match ask(SpecCall::GetAttr { ino })? {
                SpecAnswer::Node { links, .. } if links == names => {}
                other => self.findings.push(format!("{ino} has {names} links and says {other:?}")),
            }
        }
        Ok(())
    }

    /// Returns the findings, including those of the records in the stores.
    pub fn check_stores(mut self, cluster: &mut SimCluster) -> Vec<String> {
        let (mut lying, mut counted) = (BTreeSet::new(), 0);
        let mut with_bytes = BTreeSet::new();
        let mut ranges: BTreeMap<Ino, Vec<HashRange>> = BTreeMap::new();
        let map = cluster.map.clone();
        for daemon in &mut cluster.daemons {
            let (records, inodes) = daemon.read_records();
            counted += inodes;
            for (key, value) in records {
                let ino = || key.get(1..9)?.try_into().ok().map(|b| Ino(u64::from_be_bytes(b)));
                let ino = ino();
                if let (Some(b'I'), Some(part), Some(range)) =
                    (key.first(), ino, partition_range(&value))
                {
                    let dir = map.directory_of_range(part, range.from);
                    ranges.entry(dir).or_default().push(range);
                    // A partition has an inode of its own, which is not an inode of the tree.
                    if part != dir {
                        continue;
                    }
                }
                let ino = match key.first() {
                    Some(b'E') => ino.map(|part| map.directory_of(part)),
                    _ => ino,
                };
                match (key.first(), ino) {
                    (Some(b'I' | b'Y'), Some(ino)) if !lying.insert(ino) => {
                        self.findings.push(format!("inode {ino} has two records"));
                    }
                    (Some(b'E'), Some(dir)) if !self.dirs.contains(&dir) => {
                        self.findings.push(format!("there are entries of {dir}, which is gone"));
                    }
                    (Some(b'B'), Some(ino)) => {
                        with_bytes.insert(ino);
                    }
                    (Some(b'W'), Some(ino)) => {
                        self.findings.push(format!("a client has {ino} open for writing"));
                    }
                    (Some(b'L' | b'C'), _) => {
                        self.findings.push(format!("a transaction is left: {key:x?}"));
                    }
                    _ => {}
                }
            }
        }
        for (dir, mut ranges) in ranges {
            ranges.sort_unstable();
            let covered = ranges[0].from == 0
                && ranges.windows(2).all(|pair| pair[0].last_hash() + 1 == pair[1].from)
                && ranges.last().is_some_and(|range| range.is_last());
            if !covered || !self.dirs.contains(&dir) {
                self.findings.push(format!("directory {dir} has the partitions {ranges:x?}"));
            }
        }
        let met: BTreeSet<_> = self.dirs.iter().chain(self.files.keys()).copied().collect();
        let orphans = lying.difference(&met).map(|ino| format!("no name leads to inode {ino}"));
        self.findings.extend(orphans);
        let leftovers = with_bytes.difference(&lying);
        let leftovers = leftovers.map(|ino| format!("the bytes of inode {ino} outlive it"));
        self.findings.extend(leftovers);
        if counted != lying.len() as u64 {
            self.findings.push(format!("{counted} inodes are counted and {} there", lying.len()));
        }
        self.findings
    }
}

/// Returns the range of a partition of a split directory, from its record, as
/// docs/reference/formats.md draws it.
fn partition_range(inode: &[u8]) -> Option<HashRange> {
    let flags = inode.get(132)?;
    let is_parted = flags & 64 != 0;
    // The directories of these worlds have at most one policy: a count, a number and a value.
    let policies = if flags & 128 != 0 { 1 + 1 + 8 } else { 0 };
    let (rest, _) = inode.split_at_checked(inode.len().checked_sub(policies)?)?;
    let (rest, bits) = rest.split_at_checked(rest.len().checked_sub(1)?)?;
    let from = u64::from_le_bytes(*rest.last_chunk()?);
    is_parted.then_some(HashRange { from, bits: *bits.first()? })
}

/// Creates directories in the root that do not concern the executor `absent`. Working in them does
/// not need the root.
///
/// # Errors
/// There is no reply, or the directories cannot be created.
pub(crate) fn make_island(
    map: &ShardMap,
    absent: ExecutorId,
    ask: &mut impl FnMut(SpecCall) -> Result<SpecAnswer, String>,
) -> Result<Vec<Ino>, String> {
    /// Names that no other client uses.
    const FIRST: u8 = 100;
    const DIRS: usize = 4;
    let mut island: Vec<Ino> = Vec::new();
    for name in FIRST.. {
        match ask(SpecCall::Create { dir: Ino::ROOT, name, is_dir: true })? {
            SpecAnswer::Node { ino, .. } if !crate::client::concerns_executor(map, absent, ino) => {
                island.push(ino);
            }
            SpecAnswer::Node { .. } => {}
            other => return Err(format!("there is no island: {other:?}")),
        }
        if island.len() == DIRS {
            break;
        }
    }
    Ok(island)
}
