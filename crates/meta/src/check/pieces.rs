//! The records of tiled files, and their problems.

use super::survey::Survey;
use super::{CheckProblem, LocalRepair};
use crate::error::MetaOutcome;
use crate::inode::Inode;
use crate::keys::{self, ParsedKey, RecordKey, tag};
use crate::operation::Txn;
use crate::store::Store;
use crate::tiled::{PieceRecord, TiledRecord, encoded_tiles_end};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use tatami_wire::{Ino, NodeId, Piece};

/// The records that lie beside one inode.
#[derive(Default)]
pub(super) struct SideRecords {
    /// The `T` record; `None` inside for one that cannot be decoded.
    tiled: Option<Option<TiledRecord>>,
    /// Pieces that can be decoded, and those of them that are open.
    pieces: u32,
    open: u32,
    blocks: u64,
    end: u64,
    /// Highest number that a piece has, or had.
    highest: u32,
    /// Keys of pieces that cannot be decoded.
    damaged: Vec<(u32, RecordKey)>,
    /// Numbers of pieces, and whether each is open.
    numbers: BTreeMap<u32, bool>,
    /// Objects that are to be removed, and the keys of these records.
    dropped: Vec<(NodeId, Piece, RecordKey)>,
}

/// Gathers the records of the range, and reports those of missing inodes.
pub(super) fn gather_pieces<S: Store>(survey: &mut Survey, txn: &Txn<'_, S>) -> MetaOutcome<()> {
    let mut lost: Vec<(Ino, &'static str, RecordKey)> = Vec::new();
    txn.scan_records(&[tag::TILED], &[tag::TILED], &mut |key, value| {
        let Some(ParsedKey::Tiled(ino)) = keys::parse(key) else {
            return Ok(ControlFlow::Continue(()));
        };
        if survey.has_inode(ino) {
            let beside = survey.tiled.entry(ino).or_default();
            beside.tiled = Some(TiledRecord::decode(value).ok());
        } else if survey.covers_inode(ino) {
            lost.push((ino, "record of pieces", key.to_vec()));
        }
        Ok(ControlFlow::Continue(()))
    })?;
    txn.scan_records(&[tag::PIECE], &[tag::PIECE], &mut |key, value| {
        let Some(ParsedKey::Piece { ino, number }) = keys::parse(key) else {
            return Ok(ControlFlow::Continue(()));
        };
        if survey.has_inode(ino) {
            survey.tiled.entry(ino).or_default().add_piece(number, key, value);
        } else if survey.covers_inode(ino) {
            lost.push((ino, "piece", key.to_vec()));
        }
        Ok(ControlFlow::Continue(()))
    })?;
    for (ino, what, key) in lost {
        let what = format!("{what} of an inode that is not there");
        survey.add_problem(ino, what, LocalRepair::Write(vec![(key, None)]));
    }
    gather_dropped(survey, txn)
}

/// Reports objects that are to be removed although a piece needs them.
fn gather_dropped<S: Store>(survey: &mut Survey, txn: &Txn<'_, S>) -> MetaOutcome<()> {
    let mut wrong: Vec<(Ino, u32, RecordKey)> = Vec::new();
    txn.scan_records(&[tag::DROPPED], &[tag::DROPPED], &mut |key, _| {
        if let Some(ParsedKey::Dropped { node, ino, object }) = keys::parse(key)
            && let Some(beside) = survey.tiled.get_mut(&ino)
        {
            beside.dropped.push((node, object, key.to_vec()));
            let number = object.number();
            beside.highest = beside.highest.max(number);
            let needed = match beside.numbers.get(&number) {
                Some(open) => *open || !object.is_journal(),
                None => false,
            };
            if needed {
                wrong.push((ino, number, key.to_vec()));
            }
        }
        Ok(ControlFlow::Continue(()))
    })?;
    for (ino, number, key) in wrong {
        let what =
            format!("an object of piece {number} is marked as garbage although it is in use");
        survey.add_problem(ino, what, LocalRepair::Write(vec![(key, None)]));
    }
    Ok(())
}

impl SideRecords {
    fn add_piece(&mut self, number: u32, key: &[u8], value: &[u8]) {
        self.highest = self.highest.max(number);
        let cuts = self.tiled.iter().flatten().flat_map(|tiled| tiled.cuts.clone());
        let cuts: Vec<_> = cuts.collect();
        let read = PieceRecord::decode(value).and_then(|record| {
            let end = encoded_tiles_end(&record.tiles, &cuts)?;
            Ok((record, end))
        });
        let Ok((record, end)) = read else {
            self.damaged.push((number, key.to_vec()));
            return;
        };
        self.pieces += 1;
        self.open += u32::from(record.writer.is_some());
        self.blocks = self.blocks.saturating_add(record.blocks);
        self.end = self.end.max(end);
        self.numbers.insert(number, record.writer.is_some());
    }

    /// Returns the `T` record as it should be.
    fn expected_record(&self, inode: &Inode) -> TiledRecord {
        let known = self.tiled.clone().flatten();
        let was_known = known.is_some();
        let mut tiled =
            known.unwrap_or_else(|| TiledRecord::default().with_base(inode.size, inode.blocks));
        let highest = self.highest.max(inode.layout.base().number());
        tiled.next = tiled.next.max(highest.saturating_add(1));
        (tiled.pieces, tiled.open, tiled.blocks) = (self.pieces, self.open, self.blocks);
        // The size of the last cut counts as an end, too.
        let least = tiled.cuts.last().map_or(0, |cut| cut.size);
        if !was_known || tiled.end.max(least) < self.end || !self.damaged.is_empty() {
            tiled.end = self.end;
        }
        tiled
    }
}

/// Checks one existing inode.
pub(super) fn judge_pieces(
    survey: &Survey,
    ino: Ino,
    inode: &Inode,
    problems: &mut Vec<CheckProblem>,
) {
    let mut problem = |what: String, mend| problems.push(CheckProblem { ino, what, mend });
    let Some(beside) = survey.tiled.get(&ino) else {
        if inode.pieces || inode.layout.is_tiled() {
            let layout = inode.layout.with_tiles(false);
            let what = "the record of its pieces is not there".to_owned();
            let set = move |inode: &mut Inode| (inode.pieces, inode.layout) = (false, layout);
            problem(what, LocalRepair::Correct(Box::new(set)));
        }
        return;
    };
    for (number, key) in &beside.damaged {
        let what = format!("the tiles of its piece {number} do not read");
        problem(what, LocalRepair::Write(vec![(key.clone(), None)]));
    }
    let base = (inode.layout.node(), inode.layout.base());
    for (.., key) in beside.dropped.iter().filter(|(node, object, _)| (*node, *object) == base) {
        let what = "its base is marked as garbage although it is in use".to_owned();
        problem(what, LocalRepair::Write(vec![(key.clone(), None)]));
    }
    let right = beside.expected_record(inode);
    if beside.tiled.as_ref().and_then(|tiled| tiled.as_ref()) != Some(&right) {
        let what = format!(
            "the record of its pieces should tell of {}, {} of them open",
            right.pieces, right.open
        );
        problem(what, LocalRepair::Write(vec![(keys::tiled(ino), Some(right.encode()))]));
    }
    let tiled = right.pieces > 0 || inode.layout.is_tiled();
    if !inode.pieces || inode.layout.is_tiled() != tiled {
        let what = "it has pieces and does not say so".to_owned();
        let layout = inode.layout.with_tiles(true);
        let set = move |inode: &mut Inode| {
            inode.pieces = true;
            if tiled {
                inode.layout = layout;
            }
        };
        problem(what, LocalRepair::Correct(Box::new(set)));
    }
    if tiled && inode.size != right.file_size() {
        let size = right.file_size();
        let what = format!("with its tiles it has {size} bytes, it says {}", inode.size);
        problem(what, LocalRepair::Correct(Box::new(move |inode: &mut Inode| inode.size = size)));
    }
}
