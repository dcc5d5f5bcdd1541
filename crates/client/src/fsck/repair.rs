//! Repair of contradictions between names and inodes of several executors.
//!
//! A fault is repaired by one operation of the executor that has the record. That operation reads
//! all records of the fault once more, in a transaction; see [`tatami_wire::mend`]. Then the inode
//! is checked again as a whole, to find further faults. The same happens if the operation finds the
//! records changed.

use super::name_fault::{InodeFacts, LeadShards, NameFault, Suspicions, UNREACHABLE};
use super::{Fsck, FsckError};
use std::collections::{BTreeMap, BTreeSet};
use tatami_wire::meta::{InodeTemplate, MetaOp, MetaReply};
use tatami_wire::repair::{EntryLocation, LOCATED_ENTRIES_MAX, LocatedEntry, Repair};
use tatami_wire::{Cred, Errno, Ino, InodeKind};

const LOST: &[u8] = b"lost+found";
const WHAT: &str = "mend names";
/// Most attempts to break a ring of directories that does not stop changing.
const ATTEMPTS: usize = 20;
/// Most names that a finding shows, and bytes of each.
const SHOWN: usize = 4;
const SHOWN_BYTES: usize = 64;

/// The result of an attempt.
pub(super) enum RepairOutcome {
    /// It was repaired; with the action, in words.
    Repaired(String),
    /// The records were not as they were seen any more.
    Changed,
    /// It cannot be repaired; with the reason.
    Cannot(String),
}

impl RepairOutcome {
    /// Combines two results.
    fn combine_with(self, other: RepairOutcome) -> RepairOutcome {
        match (self, other) {
            (RepairOutcome::Cannot(why), _) | (_, RepairOutcome::Cannot(why)) => {
                RepairOutcome::Cannot(why)
            }
            (RepairOutcome::Repaired(what), _) | (_, RepairOutcome::Repaired(what)) => {
                RepairOutcome::Repaired(what)
            }
            _ => RepairOutcome::Changed,
        }
    }
}

impl Fsck<'_> {
    /// Repairs these faults, as far as the records still are as they were seen.
    pub(super) fn repair_names(
        &mut self,
        leads: &LeadShards,
        faults: Vec<(Ino, InodeFacts, NameFault)>,
        doubts: &mut Suspicions,
    ) -> Result<(), FsckError> {
        let wanted = faults.iter().filter(|(_, _, fault)| fault.needs_names());
        let names = self.fetch_names(leads, wanted.map(|(ino, ..)| *ino).collect())?;
        for (ino, facts, fault) in faults {
            let names = names.get(&ino).map_or(&[][..], Vec::as_slice);
            let Some(doubt) = doubts.open.get_mut(&ino) else { continue };
            let what = fault.to_string();
            match self.repair_fault(ino, &facts, fault, names)? {
                RepairOutcome::Repaired(how) => {
                    (doubt.mended, doubt.last) = (true, None);
                    doubts.went_on = true;
                    self.record_name_finding(ino, format!("{what}: {how}"), true);
                }
                RepairOutcome::Changed => doubt.last = Some(what),
                RepairOutcome::Cannot(why) => {
                    doubts.open.remove(&ino);
                    self.record_name_finding(ino, format!("{what}; {why}"), false);
                }
            }
        }
        Ok(())
    }

    fn repair_fault(
        &mut self,
        ino: Ino,
        facts: &InodeFacts,
        fault: NameFault,
        names: &[LocatedEntry],
    ) -> Result<RepairOutcome, FsckError> {
        match fault {
            NameFault::NoInode { .. } => self.repair_entries(ino, names, "removed"),
            NameFault::OtherKind { kind, .. } => {
                let wrong: Vec<_> = names.iter().filter(|n| n.kind != kind).cloned().collect();
                self.repair_entries(ino, &wrong, "set right")
            }
            NameFault::DuplicateRecord => {
                self.send_repair(ino, Repair::RemoveDuplicateRecord, "the older record was removed")
            }
            NameFault::RootMisplaced => self.send_repair(ino, Repair::FixRoot, "set right"),
            NameFault::RootNamed { .. } => self.remove_entries(ino, names, None),
            NameFault::SeveralNames { parent, .. } => {
                let lies = |named: &&LocatedEntry| {
                    self.directory_of(named.location.partition) == Some(parent)
                };
                match names.iter().find(lies).or(names.first()) {
                    Some(stays) => self.remove_entries(ino, names, Some(&stays.location)),
                    None => Ok(RepairOutcome::Changed),
                }
            }
            NameFault::WrongParent { .. } => match names.first() {
                Some(named) => self.send_repair(
                    ino,
                    Repair::SetBackPointer(named.location.clone()),
                    "set right",
                ),
                None => Ok(RepairOutcome::Changed),
            },
            NameFault::Unreferenced { version } => {
                self.send_repair(ino, Repair::RemoveInode { version }, "removed")
            }
            NameFault::Removed { version, .. } => {
                self.send_repair(ino, Repair::SetLinkCount { version, nlink: 2 }, "set right")
            }
            NameFault::Links { version, count, .. } => {
                self.send_repair(ino, Repair::SetLinkCount { version, nlink: count }, "set right")
            }
            // The client that keeps it open has it until the close.
            NameFault::Nameless { version, kept: true } => {
                self.send_repair(ino, Repair::SetLinkCount { version, nlink: 0 }, "set right")
            }
            NameFault::Nameless { version, .. } => {
                debug_assert!(facts.inodes.len() == 1);
                self.move_to_lost_found(ino, version, None)
            }
        }
    }

    /// Returns the directory of a partition.
    fn directory_of(&self, part: Ino) -> Option<Ino> {
        Some(self.client.map().shard_map()?.directory_of(part))
    }

    /// Removes, or corrects, entries that contradict the inode.
    fn repair_entries(
        &self,
        ino: Ino,
        names: &[LocatedEntry],
        how: &str,
    ) -> Result<RepairOutcome, FsckError> {
        let (mut did, mut done) = (RepairOutcome::Changed, Vec::new());
        for LocatedEntry { location: place, .. } in names {
            let one = self.send_repair(ino, Repair::FixEntry(place.clone()), "")?;
            if matches!(one, RepairOutcome::Repaired(_)) {
                done.push(place);
            }
            did = did.combine_with(one);
        }
        Ok(match did {
            RepairOutcome::Repaired(_) => {
                RepairOutcome::Repaired(format!("{} {how}", self.format_places(&done)))
            }
            other => other,
        })
    }

    /// Removes entries of a directory, except the one that `stays`.
    fn remove_entries(
        &self,
        ino: Ino,
        names: &[LocatedEntry],
        stays: Option<&EntryLocation>,
    ) -> Result<RepairOutcome, FsckError> {
        let (mut did, mut done) = (RepairOutcome::Changed, Vec::new());
        for LocatedEntry { location: place, .. } in
            names.iter().filter(|named| Some(&named.location) != stays)
        {
            let stays = stays.unwrap_or(place).clone();
            let one = self.send_repair(
                ino,
                Repair::RemoveDuplicateEntry { place: place.clone(), stays },
                "",
            )?;
            if matches!(one, RepairOutcome::Repaired(_)) {
                done.push(place);
            }
            did = did.combine_with(one);
        }
        Ok(match did {
            RepairOutcome::Repaired(_) => {
                RepairOutcome::Repaired(format!("{} removed", self.format_places(&done)))
            }
            other => other,
        })
    }

    /// Formats names in directories as a finding shows them.
    fn format_places(&self, places: &[&EntryLocation]) -> String {
        let show = |EntryLocation { partition: part, name }: &EntryLocation| {
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
    fn move_to_lost_found(
        &mut self,
        ino: Ino,
        version: u64,
        from: Option<EntryLocation>,
    ) -> Result<RepairOutcome, FsckError> {
        let lost = match self.lost {
            Some(lost) => lost,
            None => match self.find_lost_found()? {
                Ok(lost) => *self.lost.insert(lost),
                Err(why) => return Ok(RepairOutcome::Cannot(why)),
            },
        };
        let how = format!("it is /lost+found/{} now", Repair::lost_name(ino));
        let did = self.send_repair(ino, Repair::MoveToLostFound { version, lost, from }, &how)?;
        if !matches!(did, RepairOutcome::Repaired(_)) {
            // Another client may have removed the directory.
            self.lost = None;
        }
        Ok(did)
    }

    /// Returns the directory `lost+found`, which is made if need be; or why there is none.
    fn find_lost_found(&self) -> Result<Result<Ino, String>, FsckError> {
        let cred = Cred::ROOT;
        let found = match self.client.lookup(&cred, Ino::ROOT, LOST) {
            Err(Errno::ENOENT) => {
                let made = self.client.create(
                    &cred,
                    Ino::ROOT,
                    LOST,
                    InodeTemplate::Dir,
                    0o700,
                    0,
                    false,
                    None,
                );
                match made {
                    // Another client was faster.
                    Err(Errno::EEXIST) => self.client.lookup(&cred, Ino::ROOT, LOST),
                    made => made.map(|made| made.attr),
                }
            }
            found => found,
        };
        match found {
            Ok(attr) if attr.kind == InodeKind::Dir => Ok(Ok(attr.ino)),
            Ok(_) => Ok(Err("/lost+found is no directory: rename it, and repair again".to_owned())),
            Err(errno) if is_fatal(errno) => Err(self.repair_error(Ino::ROOT, errno)),
            Err(errno) => Ok(Err(format!("/lost+found cannot be had: {errno}"))),
        }
    }

    /// Takes one directory out of the ring that the walk upwards from `ino` enters.
    pub(super) fn break_ring(
        &mut self,
        leads: &LeadShards,
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
            let seen = self.observe_stable(leads, &BTreeSet::from([first]))?;
            let names = self.fetch_names(leads, vec![first])?.remove(&first).unwrap_or_default();
            if let [(_, facts)] = &seen[..]
                && let [tied] = &facts.inodes[..]
                && let Some(named) = names
                    .iter()
                    .find(|n| self.directory_of(n.location.partition) == Some(tied.parent))
            {
                match self.move_to_lost_found(first, tied.version, Some(named.location.clone()))? {
                    RepairOutcome::Repaired(how) => {
                        self.record_name_finding(first, format!("{UNREACHABLE}: {how}"), true);
                        return Ok(());
                    }
                    RepairOutcome::Changed => {}
                    RepairOutcome::Cannot(why) => {
                        self.record_name_finding(ino, format!("{UNREACHABLE}; {why}"), false);
                        return Ok(());
                    }
                }
            }
            ring = self.trace_ring(leads, ino)?;
        }
        self.record_name_finding(ino, UNREACHABLE.into(), false);
        Ok(())
    }

    /// Returns the entries that lead to these inodes; if there are very many, some.
    fn fetch_names(
        &self,
        leads: &LeadShards,
        inos: Vec<Ino>,
    ) -> Result<BTreeMap<Ino, Vec<LocatedEntry>>, FsckError> {
        let mut all: BTreeMap<Ino, Vec<LocatedEntry>> = BTreeMap::new();
        for inos in inos.chunks(LOCATED_ENTRIES_MAX) {
            for (shard, executor) in leads {
                let failed = |errno| FsckError::Executor { executor: *executor, what: WHAT, errno };
                let op = MetaOp::ListEntriesOf { shard: *shard, inos: inos.to_vec() };
                let reply =
                    self.client.request_executor(*executor, &Cred::ROOT, op).map_err(failed)?;
                let MetaReply::LocatedEntries { names, .. } = reply else {
                    return Err(failed(Errno::EPROTO));
                };
                names.into_iter().for_each(|named| all.entry(named.ino).or_default().push(named));
            }
        }
        Ok(all)
    }

    /// Sends one repair; `how` describes it.
    pub(super) fn send_repair(
        &self,
        ino: Ino,
        mend: Repair,
        how: &str,
    ) -> Result<RepairOutcome, FsckError> {
        match self.client.send_meta(&Cred::ROOT, MetaOp::Repair { ino, repair: mend }) {
            Ok(MetaReply::Repaired(true)) => Ok(RepairOutcome::Repaired(how.to_owned())),
            // The record to be changed may be gone, or the directory that should get the entry.
            Ok(MetaReply::Repaired(false)) | Err(Errno::ESTALE) => Ok(RepairOutcome::Changed),
            Ok(_) => Err(self.repair_error(ino, Errno::EPROTO)),
            Err(errno) if is_fatal(errno) => Err(self.repair_error(ino, errno)),
            Err(Errno::ENOTEMPTY) => Ok(RepairOutcome::Cannot(
                "not removed, since other partitions of it are there: repair once more".into(),
            )),
            Err(Errno::EEXIST) => Ok(RepairOutcome::Cannot(format!(
                "/lost+found/{} is something else: rename that, and repair again",
                Repair::lost_name(ino)
            ))),
            Err(errno) => Ok(RepairOutcome::Cannot(format!("cannot mend it: {errno}"))),
        }
    }

    fn repair_error(&self, ino: Ino, errno: Errno) -> FsckError {
        self.shard_error(ino.owner_shard(), WHAT, errno)
    }
}

/// Returns whether every other repair would fail as well.
fn is_fatal(errno: Errno) -> bool {
    matches!(errno, Errno::EHOSTDOWN | Errno::EPROTO | Errno::EPERM | Errno::EACCES)
}
