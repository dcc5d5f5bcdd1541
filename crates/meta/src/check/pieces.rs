//! The records of tiled files, and their problems.

use crate::check::problem::{CheckProblem, LocalRepair};
use crate::check::survey::Survey;
use crate::error::MetaOutcome;
use crate::inode::Inode;
use crate::keys::{self, ParsedKey, RecordKey, tag};
use crate::operation::Txn;
use crate::store::Store;
use crate::tiled::record::TiledRecord;
use std::ops::ControlFlow;
use tatami_wire::Ino;

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
