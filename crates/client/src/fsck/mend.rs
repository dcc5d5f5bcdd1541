//! Repair of contradictions between names and inodes of several executors.
//!
//! A fault is repaired by one operation of the executor that has the record. That operation reads
//! all records of the fault once more, in a transaction; see [`tatami_wire::mend`]. Then the inode
//! is checked again as a whole, to find further faults. The same happens if the operation finds the
//! records changed.

use super::names::{Facts, Leads};
use super::{Fsck, FsckError};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use tatami_wire::mend::{Mend, NAMED_MAX, Named, Place};
use tatami_wire::meta::{MetaOp, MetaReply, NewNode};
use tatami_wire::{Cred, Errno, Ino, Kind};

/// The fault of directories that lie in each other.
pub(super) const UNREACHABLE: &str = "it cannot be reached from the root";
const LOST: &[u8] = b"lost+found";
const WHAT: &str = "mend names";
/// Most attempts to break a ring of directories that does not stop changing.
const ATTEMPTS: usize = 20;
/// Most names that a finding shows, and bytes of each.
const SHOWN: usize = 4;
const SHOWN_BYTES: usize = 64;

/// A fault of an inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// Entries lead to it, and it does not exist.
    NoInode { count: u32, dir: Ino },
    /// It has a record at its owner shard and another one at its allocating shard.
    Twins,
    /// Entries say that it is of another kind.
    OtherKind { dir: Ino, kind: Kind },
    /// The root's back-pointer names another directory.
    RootLies,
    /// Entries lead to the root.
    RootNamed { count: u32 },
    /// It has no name and a link count of 0, and no client keeps it open.
    Unkept { version: u64 },
    /// It has no name, but a link count above 0.
    Nameless { version: u64, kept: bool },
    /// A directory with several names.
    Names { count: u32, parent: Ino },
    /// A directory whose entry is in another directory than its back-pointer says.
    Lies { dir: Ino, says: Ino },
    /// A directory that has a name and is marked as removed.
    Removed { dir: Ino, version: u64 },
    /// It has more or fewer names than its link count.
    Links { count: u32, nlink: u32, version: u64 },
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::NoInode { count, dir } => {
                write!(f, "{count} entries lead to it, one in {dir}, and it is not there")
            }
            Fault::Twins => write!(f, "two executors have a record of it"),
            Fault::OtherKind { dir, .. } => {
                write!(f, "an entry in {dir} says that it is of another kind")
            }
            Fault::RootLies => write!(f, "the root lies in another directory"),
            Fault::RootNamed { count } => write!(f, "{count} entries lead to the root"),
            Fault::Unkept { .. } => write!(f, "it has no name and nobody keeps it"),
            Fault::Nameless { .. } => write!(f, "no entry leads to it"),
            Fault::Names { count, .. } => write!(f, "a directory with {count} names"),
            Fault::Lies { dir, says } => write!(f, "it lies in directory {dir}, it says {says}"),
            Fault::Removed { dir, .. } => {
                write!(f, "it says that it was removed, and lies in directory {dir}")
            }
            Fault::Links { count, nlink, .. } => {
                write!(f, "it has {count} names, it says {nlink}")
            }
        }
    }
}

impl Fault {
    /// Returns whether the repair needs the names.
    fn needs_names(&self) -> bool {
        match self {
            Fault::NoInode { .. }
            | Fault::OtherKind { .. }
            | Fault::RootNamed { .. }
            | Fault::Names { .. }
            | Fault::Lies { .. } => true,
            Fault::Twins
            | Fault::RootLies
            | Fault::Unkept { .. }
            | Fault::Nameless { .. }
            | Fault::Removed { .. }
            | Fault::Links { .. } => false,
        }
    }
}

/// Inodes that seem to have a fault.
#[derive(Default)]
pub(super) struct Doubts {
    pub open: BTreeMap<Ino, Doubt>,
    /// A fault was repaired, so the next look can follow at once.
    pub went_on: bool,
}

/// The history of one of them.
#[derive(Default)]
pub(super) struct Doubt {
    pub mended: bool,
    /// The last fault that had changed before its repair.
    pub last: Option<String>,
}

/// The result of an attempt.
pub(super) enum Did {
    /// It was repaired; with the action, in words.
    Mended(String),
    /// The records were not as they were seen any more.
    Changed,
    /// It cannot be repaired; with the reason.
    Cannot(String),
}

impl Did {
    /// Combines two results.
    fn and(self, other: Did) -> Did {
        match (self, other) {
            (Did::Cannot(why), _) | (_, Did::Cannot(why)) => Did::Cannot(why),
            (Did::Mended(what), _) | (_, Did::Mended(what)) => Did::Mended(what),
            _ => Did::Changed,
        }
    }
}

impl Fsck<'_> {
    /// Repairs these faults, as far as the records still are as they were seen.
    pub(super) fn mend(
        &mut self,
        leads: &Leads,
        faults: Vec<(Ino, Facts, Fault)>,
        doubts: &mut Doubts,
    ) -> Result<(), FsckError> {
        let wanted = faults.iter().filter(|(_, _, fault)| fault.needs_names());
        let names = self.names_of(leads, wanted.map(|(ino, ..)| *ino).collect())?;
        for (ino, facts, fault) in faults {
            let names = names.get(&ino).map_or(&[][..], Vec::as_slice);
            let Some(doubt) = doubts.open.get_mut(&ino) else { continue };
            let what = fault.to_string();
            match self.mend_one(ino, &facts, fault, names)? {
                Did::Mended(how) => {
                    (doubt.mended, doubt.last) = (true, None);
                    doubts.went_on = true;
                    self.found_names(ino, format!("{what}: {how}"), true);
                }
                Did::Changed => doubt.last = Some(what),
                Did::Cannot(why) => {
                    doubts.open.remove(&ino);
                    self.found_names(ino, format!("{what}; {why}"), false);
                }
            }
        }
        Ok(())
    }

    fn mend_one(
        &mut self,
        ino: Ino,
        facts: &Facts,
        fault: Fault,
        names: &[Named],
    ) -> Result<Did, FsckError> {
        match fault {
            Fault::NoInode { .. } => self.each_entry(ino, names, "removed"),
            Fault::OtherKind { kind, .. } => {
                let wrong: Vec<_> = names.iter().filter(|n| n.kind != kind).cloned().collect();
                self.each_entry(ino, &wrong, "set right")
            }
            Fault::Twins => self.put(ino, Mend::Twin, "the older record was removed"),
            Fault::RootLies => self.put(ino, Mend::Root, "set right"),
            Fault::RootNamed { .. } => self.unname(ino, names, None),
            Fault::Names { parent, .. } => {
                let lies = |named: &&Named| self.directory_of(named.place.part) == Some(parent);
                match names.iter().find(lies).or(names.first()) {
                    Some(stays) => self.unname(ino, names, Some(&stays.place)),
                    None => Ok(Did::Changed),
                }
            }
            Fault::Lies { .. } => match names.first() {
                Some(named) => self.put(ino, Mend::Lies(named.place.clone()), "set right"),
                None => Ok(Did::Changed),
            },
            Fault::Unkept { version } => self.put(ino, Mend::Remove { version }, "removed"),
            Fault::Removed { version, .. } => {
                self.put(ino, Mend::Links { version, nlink: 2 }, "set right")
            }
            Fault::Links { version, count, .. } => {
                self.put(ino, Mend::Links { version, nlink: count }, "set right")
            }
            // The client that keeps it open has it until the close.
            Fault::Nameless { version, kept: true } => {
                self.put(ino, Mend::Links { version, nlink: 0 }, "set right")
            }
            Fault::Nameless { version, .. } => {
                debug_assert!(facts.inodes.len() == 1);
                self.rescue(ino, version, None)
            }
        }
    }

    /// Returns the directory of a partition.
    fn directory_of(&self, part: Ino) -> Option<Ino> {
        Some(self.client.map().shard_map()?.directory_of(part))
    }

    /// Removes, or corrects, entries that contradict the inode.
    fn each_entry(&self, ino: Ino, names: &[Named], how: &str) -> Result<Did, FsckError> {
        let (mut did, mut done) = (Did::Changed, Vec::new());
        for Named { place, .. } in names {
            let one = self.put(ino, Mend::Entry(place.clone()), "")?;
            if matches!(one, Did::Mended(_)) {
                done.push(place);
            }
            did = did.and(one);
        }
        Ok(match did {
            Did::Mended(_) => Did::Mended(format!("{} {how}", self.show(&done))),
            other => other,
        })
    }

    /// Removes entries of a directory, except the one that `stays`.
    fn unname(&self, ino: Ino, names: &[Named], stays: Option<&Place>) -> Result<Did, FsckError> {
        let (mut did, mut done) = (Did::Changed, Vec::new());
        for Named { place, .. } in names.iter().filter(|named| Some(&named.place) != stays) {
            let stays = stays.unwrap_or(place).clone();
            let one = self.put(ino, Mend::Unname { place: place.clone(), stays }, "")?;
            if matches!(one, Did::Mended(_)) {
                done.push(place);
            }
            did = did.and(one);
        }
        Ok(match did {
            Did::Mended(_) => Did::Mended(format!("{} removed", self.show(&done))),
            other => other,
        })
    }

    /// Formats names in directories as a finding shows them.
    fn show(&self, places: &[&Place]) -> String {
        let show = |Place { part, name }: &Place| {
            let shown = &name[..name.len().min(SHOWN_BYTES)];
            let dots = if shown.len() < name.len() { "…" } else { "" };
            let dir = self.directory_of(*part).unwrap_or(*part);
            format!("entry \"{}{dots}\" of directory {dir}", shown.escape_ascii())
        };
        let shown: Vec<_> = places.iter().take(SHOWN).map(|place| show(place)).collect();
        match places.len().saturating_sub(SHOWN) {
            0 => shown.join(", "),
            more => format!("{} and {more} more", shown.join(", ")),
        }
    }

    /// Gives an inode a name in `lost+found`.
    fn rescue(&mut self, ino: Ino, version: u64, from: Option<Place>) -> Result<Did, FsckError> {
        let lost = match self.lost {
            Some(lost) => lost,
            None => match self.lost_and_found()? {
                Ok(lost) => *self.lost.insert(lost),
                Err(why) => return Ok(Did::Cannot(why)),
            },
        };
        let how = format!("it is /lost+found/{} now", Mend::lost_name(ino));
        let did = self.put(ino, Mend::Rescue { version, lost, from }, &how)?;
        if !matches!(did, Did::Mended(_)) {
            // Another client may have removed the directory.
            self.lost = None;
        }
        Ok(did)
    }

    /// Returns the directory `lost+found`, which is made if need be; or why there is none.
    fn lost_and_found(&self) -> Result<Result<Ino, String>, FsckError> {
        let cred = Cred::ROOT;
        let found = match self.client.lookup(&cred, Ino::ROOT, LOST) {
            Err(Errno::ENOENT) => {
                let made =
                    self.client.create(&cred, Ino::ROOT, LOST, NewNode::Dir, 0o700, 0, false, None);
                match made {
                    // Another client was faster.
                    Err(Errno::EEXIST) => self.client.lookup(&cred, Ino::ROOT, LOST),
                    made => made.map(|made| made.attr),
                }
            }
            found => found,
        };
        match found {
            Ok(attr) if attr.kind == Kind::Dir => Ok(Ok(attr.ino)),
            Ok(_) => Ok(Err("/lost+found is no directory: rename it, and repair again".to_owned())),
            Err(errno) if is_for_all(errno) => Err(self.failed(Ino::ROOT, errno)),
            Err(errno) => Ok(Err(format!("/lost+found cannot be had: {errno}"))),
        }
    }

    /// Takes one directory out of the ring that the walk upwards from `ino` enters.
    pub(super) fn open_ring(
        &mut self,
        leads: &Leads,
        ino: Ino,
        ring: Vec<Ino>,
    ) -> Result<(), FsckError> {
        let mut ring = Some(ring);
        for _ in 0..ATTEMPTS {
            let Some(dirs) = ring.take() else {
                self.report.dispelled += 1;
                return Ok(());
            };
            // The lowest number, so that every attempt picks the same directory of the same ring.
            let Some(first) = dirs.into_iter().min() else { break };
            let seen = self.look(leads, &BTreeSet::from([first]))?;
            let names = self.names_of(leads, vec![first])?.remove(&first).unwrap_or_default();
            if let [(_, facts)] = &seen[..]
                && let [tied] = &facts.inodes[..]
                && let Some(named) =
                    names.iter().find(|n| self.directory_of(n.place.part) == Some(tied.parent))
            {
                match self.rescue(first, tied.version, Some(named.place.clone()))? {
                    Did::Mended(how) => {
                        self.found_names(first, format!("{UNREACHABLE}: {how}"), true);
                        return Ok(());
                    }
                    Did::Changed => {}
                    Did::Cannot(why) => {
                        self.found_names(ino, format!("{UNREACHABLE}; {why}"), false);
                        return Ok(());
                    }
                }
            }
            ring = self.ring(leads, ino)?;
        }
        self.found_names(ino, UNREACHABLE.into(), false);
        Ok(())
    }

    /// Returns the entries that lead to these inodes; if there are very many, some.
    fn names_of(
        &self,
        leads: &Leads,
        inos: Vec<Ino>,
    ) -> Result<BTreeMap<Ino, Vec<Named>>, FsckError> {
        let mut all: BTreeMap<Ino, Vec<Named>> = BTreeMap::new();
        for inos in inos.chunks(NAMED_MAX) {
            for (shard, executor) in leads {
                let failed = |errno| FsckError::Executor { executor: *executor, what: WHAT, errno };
                let op = MetaOp::NamesOf { shard: *shard, inos: inos.to_vec() };
                let reply = self.client.meta_at(*executor, &Cred::ROOT, op).map_err(failed)?;
                let MetaReply::Named { names, .. } = reply else {
                    return Err(failed(Errno::EPROTO));
                };
                names.into_iter().for_each(|named| all.entry(named.ino).or_default().push(named));
            }
        }
        Ok(all)
    }

    /// Sends one repair; `how` describes it.
    pub(super) fn put(&self, ino: Ino, mend: Mend, how: &str) -> Result<Did, FsckError> {
        match self.client.meta(&Cred::ROOT, MetaOp::Mend { ino, mend }) {
            Ok(MetaReply::Mended(true)) => Ok(Did::Mended(how.to_owned())),
            // The record to be changed may be gone, or the directory that should get the entry.
            Ok(MetaReply::Mended(false)) | Err(Errno::ESTALE) => Ok(Did::Changed),
            Ok(_) => Err(self.failed(ino, Errno::EPROTO)),
            Err(errno) if is_for_all(errno) => Err(self.failed(ino, errno)),
            Err(Errno::ENOTEMPTY) => Ok(Did::Cannot(
                "not removed, since other partitions of it are there: repair once more".into(),
            )),
            Err(Errno::EEXIST) => Ok(Did::Cannot(format!(
                "/lost+found/{} is something else: rename that, and repair again",
                Mend::lost_name(ino)
            ))),
            Err(errno) => Ok(Did::Cannot(format!("cannot mend it: {errno}"))),
        }
    }

    fn failed(&self, ino: Ino, errno: Errno) -> FsckError {
        self.failed_at(ino.shard(), WHAT, errno)
    }
}

/// Returns whether every other repair would fail as well.
fn is_for_all(errno: Errno) -> bool {
    matches!(errno, Errno::EHOSTDOWN | Errno::EPROTO | Errno::EPERM | Errno::EACCES)
}
