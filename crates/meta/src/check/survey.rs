//! The records about a range of inodes: gathered first, judged later.

use crate::check::problem::{
    CheckProblem, LocalRepair, format_name, is_local_if_any, parse_inode_key, peek_inode,
};
use crate::check::side_records::SideRecords;
use crate::error::MetaOutcome;
use crate::inline;
use crate::inode::Inode;
use crate::keys::{self, ParsedKey, RecordKey, tag};
use crate::operation::Txn;
use crate::permission::{self, EntryName};
use crate::record::{EntryRecord, decode_reply};
use crate::store::Store;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use tatami_wire::partition::HashRange;
use tatami_wire::{Ino, InodeKind};

/// Entries taken from the store at a time.
const CHUNK: usize = 8192;

/// The number of sound entries, and of those that lead to directories.
#[derive(Clone, Copy, Default)]
pub(super) struct EntryCounts {
    pub entries: u64,
    pub subdirs: u32,
}

/// The records of a range of inodes; see the module.
#[derive(Default)]
pub(super) struct Survey {
    /// The range begins behind this one.
    after: Option<Ino>,
    /// The last inode of the range; `None`: it has no end.
    last: Option<Ino>,
    /// The inodes of the range; `None` for one that cannot be decoded.
    pub inodes: BTreeMap<Ino, Option<Inode>>,
    /// Sound entries that lead to inodes of the range.
    pub names: BTreeMap<Ino, u32>,
    /// The directory and key of each entry that leads to a directory of the range.
    pub places: BTreeMap<Ino, Vec<(Ino, RecordKey)>>,
    /// Sound entries in directories of the range.
    pub dirs: BTreeMap<Ino, EntryCounts>,
    /// Length of the listing, and of the values, of attributes.
    pub xattrs: BTreeMap<Ino, (u32, u32)>,
    /// Length of the bytes beside an inode; `None` for those that do not read.
    pub inline: BTreeMap<Ino, Option<usize>>,
    pub writers: BTreeMap<Ino, u32>,
    pub keepers: BTreeMap<Ino, u32>,
    pub unsettled: BTreeSet<Ino>,
    /// The records of tiled files beside their inodes.
    pub tiled: BTreeMap<Ino, SideRecords>,
    /// Problems of entries and side records.
    pub problems: Vec<CheckProblem>,
}

/// An entry in the range, or one that leads there.
struct SurveyedEntry {
    key: RecordKey,
    dir: Ino,
    hash: u64,
    name: Vec<u8>,
    entry: Option<EntryRecord>,
}

impl Survey {
    /// Gathers the records about up to `limit` inodes above `after`.
    pub fn gather_records<S: Store>(
        txn: &mut Txn<'_, S>,
        after: Ino,
        limit: usize,
    ) -> MetaOutcome<Survey> {
        let mut survey = Survey { after: Some(after), ..Survey::default() };
        let mut full = false;
        txn.scan_records(&keys::inode(after), &[tag::INODE], &mut |key, value| {
            let Some(ino) = parse_inode_key(key).filter(|ino| *ino > after) else {
                return Ok(ControlFlow::Continue(()));
            };
            if survey.inodes.len() >= limit {
                full = true;
                return Ok(ControlFlow::Break(()));
            }
            survey.inodes.insert(ino, Inode::decode(value).ok());
            Ok(ControlFlow::Continue(()))
        })?;
        if full {
            survey.last = survey.inodes.last_key_value().map(|(ino, _)| *ino);
        }
        survey.gather_entries(txn)?;
        survey.gather_xattrs(txn)?;
        survey.gather_inline(txn)?;
        survey.gather_marks(txn)?;
        survey.gather_garbage(txn)?;
        if survey.last.is_none() {
            survey.gather_unknown_keys(txn)?;
        }
        Ok(survey)
    }

    /// Returns the inode behind which the next step begins; `None` after the last.
    pub fn next_ino(&self) -> Option<Ino> {
        self.last
    }

    pub(super) fn covers_inode(&self, ino: Ino) -> bool {
        self.after.is_none_or(|after| ino > after) && self.last.is_none_or(|last| ino <= last)
    }

    pub(super) fn has_inode(&self, ino: Ino) -> bool {
        matches!(self.inodes.get(&ino), Some(Some(_)))
    }

    pub(super) fn add_problem(&mut self, ino: Ino, what: String, mend: LocalRepair) {
        self.problems.push(CheckProblem { ino, what, mend });
    }

    fn gather_entries<S: Store>(&mut self, txn: &mut Txn<'_, S>) -> MetaOutcome<()> {
        let mut from = vec![tag::ENTRY];
        let mut parent: Option<(Ino, Option<HashRange>)> = None;
        loop {
            let mut chunk = Vec::new();
            txn.scan_records(&from, &[tag::ENTRY], &mut |key, value| {
                let Some(ParsedKey::Entry { parent: dir, hash, name }) = keys::parse(key) else {
                    return Ok(ControlFlow::Continue(()));
                };
                let entry = EntryRecord::decode(value).ok();
                if self.covers_inode(dir) || entry.is_some_and(|e| self.covers_inode(e.ino)) {
                    let key = key.to_vec();
                    chunk.push(SurveyedEntry { key, dir, hash, name: name.to_vec(), entry });
                }
                let go_on = chunk.len() < CHUNK;
                Ok(if go_on { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
            })?;
            let Some(last) = chunk.last() else { return Ok(()) };
            from.clone_from(&last.key);
            // The smallest key after the last one.
            from.push(0);
            let done = chunk.len() < CHUNK;
            for found in chunk {
                // Entries of one directory follow each other, so its inode is loaded once.
                let range = match parent {
                    Some((dir, range)) if dir == found.dir => range,
                    _ => peek_inode(txn, found.dir)?.filter(|d| d.is_dir()).map(|d| d.range),
                };
                parent = Some((found.dir, range));
                self.gather_entry(txn, found, range)?;
            }
            if done {
                return Ok(());
            }
        }
    }

    fn gather_entry<S: Store>(
        &mut self,
        txn: &mut Txn<'_, S>,
        found: SurveyedEntry,
        range: Option<HashRange>,
    ) -> MetaOutcome<()> {
        let SurveyedEntry { key, dir, hash, name, entry } = found;
        let ours = self.covers_inode(dir);
        let report = |survey: &mut Survey, what: String, mend| {
            if ours {
                survey.add_problem(dir, what, mend);
            }
        };
        let shown = format_name(&name);
        let delete = || LocalRepair::Write(vec![(key.clone(), None)]);
        let Some(range) = range else {
            let what = format!("entry {shown} lies in an inode that is no directory");
            report(self, what, delete());
            return Ok(());
        };
        let Some(entry) = entry else {
            report(self, format!("entry {shown} does not read"), delete());
            return Ok(());
        };
        let plain = matches!(permission::parse_name(&name), Ok(EntryName::Plain(_)));
        if !plain || hash != keys::name_hash(txn.state.seed(), &name) || !range.contains(hash) {
            report(self, format!("entry {shown} lies in a wrong place"), delete());
            return Ok(());
        }
        let target = peek_inode(txn, entry.ino)?.map(|target| target.kind);
        // An inode on another node cannot be checked here: the entry's kind is taken as right.
        let elsewhere = || (!is_local_if_any(txn, entry.ino)).then_some(entry.kind);
        let Some(kind) = target.or_else(elsewhere) else {
            let what = format!("entry {shown} leads to inode {}, which is not there", entry.ino);
            report(self, what, delete());
            return Ok(());
        };
        if kind != entry.kind {
            let right = EntryRecord { ino: entry.ino, kind };
            let what = format!("entry {shown} says that inode {} is of another kind", entry.ino);
            report(self, what, LocalRepair::Write(vec![(key.clone(), Some(right.encode()))]));
        }
        if ours {
            let counts = self.dirs.entry(dir).or_default();
            counts.entries += 1;
            counts.subdirs += u32::from(kind == InodeKind::Dir);
        }
        if self.covers_inode(entry.ino) {
            *self.names.entry(entry.ino).or_default() += 1;
            if kind == InodeKind::Dir {
                self.places.entry(entry.ino).or_default().push((dir, key));
            }
        }
        Ok(())
    }

    fn gather_xattrs<S: Store>(&mut self, txn: &mut Txn<'_, S>) -> MetaOutcome<()> {
        let mut lost = Vec::new();
        let start = self.after.map_or(vec![tag::XATTR], |a| keys::inode_prefix(tag::XATTR, a));
        txn.scan_records(&start, &[tag::XATTR], &mut |key, value| {
            let Some(ParsedKey::Xattr { ino, name }) = keys::parse(key) else {
                return Ok(ControlFlow::Continue(()));
            };
            if self.last.is_some_and(|last| ino > last) {
                return Ok(ControlFlow::Break(()));
            }
            if self.has_inode(ino) {
                let sums = self.xattrs.entry(ino).or_default();
                sums.0 = sums.0.saturating_add(name.len() as u32 + 1);
                sums.1 = sums.1.saturating_add(value.len() as u32);
            } else if self.covers_inode(ino) {
                lost.push((ino, format_name(name), key.to_vec()));
            }
            Ok(ControlFlow::Continue(()))
        })?;
        for (ino, name, key) in lost {
            let what = format!("attribute {name} of an inode that is not there");
            self.add_problem(ino, what, LocalRepair::Write(vec![(key, None)]));
        }
        Ok(())
    }

    /// Gathers the lengths of the bytes that lie beside inodes.
    fn gather_inline<S: Store>(&mut self, txn: &mut Txn<'_, S>) -> MetaOutcome<()> {
        let mut lost = Vec::new();
        let start = self.after.map_or(vec![tag::INLINE], |a| keys::inode_prefix(tag::INLINE, a));
        txn.scan_records(&start, &[tag::INLINE], &mut |key, value| {
            let Some(ParsedKey::Inline(ino)) = keys::parse(key) else {
                return Ok(ControlFlow::Continue(()));
            };
            if self.last.is_some_and(|last| ino > last) {
                return Ok(ControlFlow::Break(()));
            }
            if self.has_inode(ino) {
                let len = inline::decode_bytes(value).ok().map(<[u8]>::len);
                self.inline.insert(ino, len);
            } else if self.covers_inode(ino) {
                lost.push((ino, key.to_vec()));
            }
            Ok(ControlFlow::Continue(()))
        })?;
        for (ino, key) in lost {
            let what = "bytes beside an inode that is not there".to_owned();
            self.add_problem(ino, what, LocalRepair::Write(vec![(key, None)]));
        }
        Ok(())
    }

    /// Gathers writers, keepers and inodes with a pending size recovery.
    fn gather_marks<S: Store>(&mut self, txn: &mut Txn<'_, S>) -> MetaOutcome<()> {
        let mut lost = Vec::new();
        for tag in [tag::WRITER, tag::ORPHAN, tag::PENDING_RECOVERY] {
            txn.scan_records(&[tag], &[tag], &mut |key, _| {
                let (ino, what) = match keys::parse(key) {
                    Some(ParsedKey::Writer { ino, .. }) => (ino, "writer"),
                    Some(ParsedKey::Orphan { ino, .. }) => (ino, "keeper"),
                    Some(ParsedKey::PendingRecovery(ino)) => (ino, "lost writer"),
                    _ => return Ok(ControlFlow::Continue(())),
                };
                if !self.covers_inode(ino) {
                    return Ok(ControlFlow::Continue(()));
                }
                if !self.has_inode(ino) {
                    lost.push((ino, what, key.to_vec()));
                } else if tag == tag::WRITER {
                    *self.writers.entry(ino).or_default() += 1;
                } else if tag == tag::ORPHAN {
                    *self.keepers.entry(ino).or_default() += 1;
                } else {
                    self.unsettled.insert(ino);
                }
                Ok(ControlFlow::Continue(()))
            })?;
        }
        for (ino, what, key) in lost {
            let what = format!("{what} of an inode that is not there");
            self.add_problem(ino, what, LocalRepair::Write(vec![(key, None)]));
        }
        Ok(())
    }

    fn gather_garbage<S: Store>(&mut self, txn: &mut Txn<'_, S>) -> MetaOutcome<()> {
        let mut wrong = Vec::new();
        txn.scan_records(&[], &[tag::GARBAGE], &mut |key, _| {
            if let Some(ParsedKey::Garbage { ino, .. }) = keys::parse(key)
                && self.has_inode(ino)
            {
                wrong.push((ino, key.to_vec()));
            }
            Ok(ControlFlow::Continue(()))
        })?;
        for (ino, key) in wrong {
            let what = "its objects are marked as garbage although it is in use".to_owned();
            self.add_problem(ino, what, LocalRepair::Write(vec![(key, None)]));
        }
        Ok(())
    }

    /// Reports replies and embedded directories that cannot be decoded, and unknown keys: once, in
    /// the last step.
    fn gather_unknown_keys<S: Store>(&mut self, txn: &mut Txn<'_, S>) -> MetaOutcome<()> {
        let mut wrong = Vec::new();
        txn.scan_records(&[], &[], &mut |key, value| {
            match keys::parse(key) {
                None => wrong.push(("a record has an unknown key", key.to_vec())),
                Some(ParsedKey::Reply { .. }) if decode_reply(value).is_err() => {
                    wrong.push(("the answer on a client's slot does not read", key.to_vec()));
                }
                Some(ParsedKey::EmbeddedDir(_)) if Inode::decode(value).is_err() => {
                    wrong.push(("a directory's record does not read", key.to_vec()));
                }
                Some(_) => {}
            }
            Ok(ControlFlow::Continue(()))
        })?;
        for (what, key) in wrong {
            self.add_problem(Ino::ROOT, what.to_owned(), LocalRepair::Write(vec![(key, None)]));
        }
        Ok(())
    }
}
