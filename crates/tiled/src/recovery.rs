//! The end of an open: its journals are merged into the index and then removed. For an open that
//! closes, and for one whose job died.

use crate::container::Container;
use crate::container_state::open_journal;
use crate::error::{ErrorContext, Result};
use crate::journal;
use crate::marker::{self, Member, PieceName};
use crate::published::{PublishedIndex, PublishedPiece};
use crate::rank_table::RankTable;
use rustix::fs::OFlags;
use rustix::io::Errno;
use tatami_layout::journal::{Damage, RecoveredTiles};
use tatami_layout::{PieceTiles, Tile};

/// The result for a dead open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecoveredOpen {
    /// Its number.
    pub open: u64,
    /// How many processes it had.
    pub ranks: u32,
    /// How many of them had written.
    pub writers: u32,
    /// Bytes in their pieces that the index names now.
    pub bytes: u64,
    /// Bytes that journals name and pieces do not have: lost in a power cut.
    pub lost: u64,
    /// Damaged journals, and where; their tiles there are lost.
    pub damaged: Vec<(PieceName, Damage)>,
}

/// The treatment of damaged journals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DamagePolicy {
    /// Report the damage and leave the open as it is.
    Refuse,
    /// Take the whole records, and accept the loss of the others.
    Accept,
}

/// Merges into `index` the tiles that the journals of an open have beyond it. Bytes that a piece
/// does not have are left out. `counted`: all changes have been counted, as by living ranks; a dead
/// rank may have missed the last one.
///
/// # Errors
/// Those of the disk; `EIO` for a damaged journal that is to be refused.
pub fn merge_journals(
    container: &Container,
    roll: &RankTable,
    counted: bool,
    damaged: DamagePolicy,
    index: &mut PublishedIndex,
) -> Result<RecoveredOpen> {
    let of = roll.header;
    let mut counts = vec![0; of.ranks as usize];
    roll.load_changes(&mut counts).context("read", container.path())?;
    let mut settled = RecoveredOpen { open: of.open, ranks: of.ranks, ..RecoveredOpen::default() };
    let places = index.entry_positions();
    let mut new: Vec<PublishedPiece> = Vec::new();
    for (rank, changes) in counts.into_iter().enumerate() {
        let name = PieceName { open: of.open, rank: rank as u32 };
        let known = places.get(&name).map(|at| &index.pieces[*at]);
        let known_changes = known.map_or(0, |entry| entry.changes);
        if counted && known_changes >= changes {
            continue;
        }
        let mut have = known.map(|entry| tile_bytes(&entry.tiles));
        let len = container.piece_len(name)?;
        let reported = match read_journal(container, roll, name) {
            Err(error) if error.errno == Errno::IO => {
                let recovered = recover_piece_journal(container, name, len)?;
                // What a power cut has taken of a journal was promised by no sync: that ends with
                // an index on the disk.
                let is_torn =
                    recovered.is_torn && container.is_before_start(&marker::journal_name(name))?;
                if damaged == DamagePolicy::Refuse && !is_torn {
                    return Err(error);
                }
                settled.damaged.extend(recovered.lost.iter().map(|lost| (name, *lost)));
                Some(match known {
                    Some(known) => recovered.join_published(&known.tiles),
                    None => recovered.tiles,
                })
            }
            other => other?,
        };
        if let Some(reported) = reported {
            let (tiles, lost) = clamp_tiles(&reported, len);
            let more = have.is_none_or(|known| tile_bytes(&tiles) > known);
            settled.lost += lost;
            // The count is stored after the journal, so the journal may be ahead of it.
            if (changes > known_changes || more) && !tiles.tiles().is_empty() {
                have = Some(tile_bytes(&tiles));
                new.push(PublishedPiece { name, changes: changes.max(known_changes + 1), tiles });
            }
        }
        if let Some(bytes) = have {
            settled.writers += 1;
            settled.bytes += bytes;
        }
    }
    index.put_entries(new);
    Ok(settled)
}

/// Reads the tiles in the journal of a piece, if there is one.
fn read_journal(
    container: &Container,
    roll: &RankTable,
    name: PieceName,
) -> Result<Option<PieceTiles>> {
    let Some(mut journal) = open_journal(container, name, roll.is_local(), false)? else {
        return Ok(None);
    };
    journal
        .read_new_records()
        .context("read", &container.path().join(marker::journal_name(name)))?;
    Ok(Some(journal.to_piece_tiles()))
}

fn recover_piece_journal(
    container: &Container,
    name: PieceName,
    len: u64,
) -> Result<RecoveredTiles> {
    let file = marker::journal_name(name);
    let path = container.path().join(&file);
    let mut file = container.open_file(&file, OFlags::RDONLY).context("open", &path)?;
    journal::recover_journal(&mut file, name.rank, len).context("read", &path)
}

fn tile_bytes(tiles: &PieceTiles) -> u64 {
    tiles.tiles().iter().fold(0, |sum: u64, tile| sum.saturating_add(tile.len))
}

/// Splits `tiles` at byte `len` of the piece: returns the tiles before it, and the number of bytes
/// beyond.
fn clamp_tiles(tiles: &PieceTiles, len: u64) -> (PieceTiles, u64) {
    let mut out = PieceTiles::new(tiles.rank());
    let mut lost = 0;
    for view in tiles.views() {
        // It was a view of these tiles, so it is valid again.
        let _ = out.add_view(view);
    }
    for tile in tiles.tiles() {
        let there = tile.len.min(len.saturating_sub(tile.at));
        lost += tile.len - there;
        if there > 0 {
            let _ = out.push(Tile { len: there, ..*tile });
        }
    }
    (out, lost)
}

/// Removes the files of an open that ends. The rank table comes last, because the others are found
/// by it.
///
/// # Errors
/// Those of the disk.
pub fn remove_journals(container: &Container, roll: &RankTable) -> Result<()> {
    let of = roll.header;
    let mut counts = vec![0; of.ranks as usize];
    roll.load_changes(&mut counts).context("read", container.path())?;
    for (rank, _) in counts.iter().enumerate().filter(|(_, changes)| **changes > 0) {
        container
            .remove_file(&marker::journal_name(PieceName { open: of.open, rank: rank as u32 }))?;
    }
    container.remove_file(&marker::pointer_name(of.open))?;
    container.remove_file(&marker::rank_table_name(of.open))
}

/// Recovers all opens whose jobs died. Cheap where there are none. A failure does not keep the
/// others from being recovered.
///
/// # Errors
/// Those of the disk; `EIO` for a damaged index, and for a damaged rank table or journal that is to
/// be refused: that open stays as it was.
pub fn recover_dead_opens(
    container: &Container,
    damaged: DamagePolicy,
) -> Result<Vec<RecoveredOpen>> {
    let mut dead = Vec::new();
    // Look without the lock first: most containers have no open.
    if container.list_opens()?.is_empty() {
        return Ok(Vec::new());
    }
    // List again under the lock: another process may have recovered some of them meanwhile.
    let guard = container.lock_index()?;
    let mut refused = None;
    for open in container.list_opens()? {
        let roll = match container.open_rank_table(open) {
            Err(error) if error.errno == Errno::IO => match damaged {
                DamagePolicy::Accept => Some(container.open_damaged_rank_table(open)?),
                DamagePolicy::Refuse => {
                    refused = Some(error);
                    None
                }
            },
            other => other?,
        };
        if let Some(roll) = roll
            && roll.is_job_dead().context("lock", container.path())?
        {
            dead.push(roll);
        }
    }
    if dead.is_empty() {
        return refused.map_or(Ok(Vec::new()), Err);
    }
    let old = container.read_index()?;
    let mut new = old.clone();
    let mut settled = Vec::new();
    let mut over = Vec::new();
    for roll in &dead {
        match merge_journals(container, roll, false, damaged, &mut new) {
            Ok(one) => {
                settled.push(one);
                over.push(roll);
            }
            Err(error) if error.errno == Errno::IO => refused = Some(error),
            Err(error) => return Err(error),
        }
    }
    // The index is on the disk before the journals go: at each moment one of the two has the tiles.
    if !over.is_empty() {
        container.write_index(&guard, &old, &mut new, true)?;
    }
    for roll in over {
        remove_journals(container, roll)?;
        remove_unrecorded_files(container, roll.header.open, &new)?;
    }
    // Readers that cached these opens must list them again, even if the index did not change.
    container.clock().bump_generation().context("write", container.path())?;
    refused.map_or(Ok(settled), Err)
}

/// Removes files that a dead open began and never recorded: pieces without a byte, journals without
/// a record.
fn remove_unrecorded_files(container: &Container, open: u64, index: &PublishedIndex) -> Result<()> {
    for member in container.list_members()? {
        match member {
            Member::Journal(name) if name.open == open => {
                container.remove_file(&marker::journal_name(name))?;
            }
            Member::Piece(name)
                if name.open == open && !index.pieces.iter().any(|entry| entry.name == name) =>
            {
                container.remove_file(&marker::piece_name(name))?;
            }
            _ => {}
        }
    }
    Ok(())
}

/// Drops pieces that a truncation has emptied and cuts without effect, and returns the names of the
/// pieces, so that the caller removes their files. Pieces of other living opens stay: their writers
/// continue.
///
/// # Errors
/// Those of the disk.
pub fn drop_dead_pieces(
    container: &Container,
    except: Option<u64>,
    index: &mut PublishedIndex,
) -> Result<Vec<PieceName>> {
    let mut live = container.list_opens()?;
    live.retain(|open| Some(*open) != except);
    let (kept, rest) =
        index.pieces.drain(..).partition(|entry: &PublishedPiece| live.contains(&entry.name.open));
    index.pieces = rest;
    let gone = index.drop_emptied();
    let kept: Vec<PublishedPiece> = kept;
    index.pieces.extend(kept);
    // Journals of living opens may have tiles of any age, so all cuts stay while there are any.
    index.drop_stale_cuts((!live.is_empty()).then_some(0));
    Ok(gone)
}
