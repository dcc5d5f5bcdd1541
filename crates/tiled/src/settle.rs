//! The end of an open: its journals are merged into the index and then removed. For an open that
//! closes, and for one whose job died.

use crate::container::Container;
use crate::error::{Context, Result};
use crate::journal;
use crate::marker::{self, Member, Name};
use crate::published::{Entry, Published};
use crate::roll::Roll;
use crate::world::open_journal;
use rustix::fs::OFlags;
use rustix::io::Errno;
use tatami_layout::journal::{Damage, Salvaged};
use tatami_layout::{PieceTiles, Tile};

/// The result for a dead open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settled {
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
    pub damaged: Vec<(Name, Damage)>,
}

/// The treatment of damaged journals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damaged {
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
pub fn take_journals(
    container: &Container,
    roll: &Roll,
    counted: bool,
    damaged: Damaged,
    index: &mut Published,
) -> Result<Settled> {
    let of = roll.of;
    let mut counts = vec![0; of.ranks as usize];
    roll.changes(&mut counts).context("read", container.path())?;
    let mut settled = Settled { open: of.open, ranks: of.ranks, ..Settled::default() };
    let places = index.places();
    let mut new: Vec<Entry> = Vec::new();
    for (rank, changes) in counts.into_iter().enumerate() {
        let name = Name { open: of.open, rank: rank as u32 };
        let known = places.get(&name).map(|at| &index.pieces[*at]);
        let known_changes = known.map_or(0, |entry| entry.changes);
        if counted && known_changes >= changes {
            continue;
        }
        let mut have = known.map(|entry| bytes(&entry.tiles));
        let len = container.piece_len(name)?;
        let told = match read_journal(container, roll, name) {
            Err(error) if error.errno == Errno::IO => {
                let salvaged = salvage(container, name, len)?;
                // What a power cut has taken of a journal was promised by no sync: that ends with an index on the disk.
                let is_torn =
                    salvaged.is_torn && container.is_before_start(&marker::journal(name))?;
                if damaged == Damaged::Refuse && !is_torn {
                    return Err(error);
                }
                settled.damaged.extend(salvaged.lost.iter().map(|lost| (name, *lost)));
                Some(match known {
                    Some(known) => salvaged.joined_with(&known.tiles),
                    None => salvaged.tiles,
                })
            }
            other => other?,
        };
        if let Some(told) = told {
            let (tiles, lost) = clamp(&told, len);
            let more = have.is_none_or(|known| bytes(&tiles) > known);
            settled.lost += lost;
            // The count is stored after the journal, so the journal may be ahead of it.
            if (changes > known_changes || more) && !tiles.tiles().is_empty() {
                have = Some(bytes(&tiles));
                new.push(Entry { name, changes: changes.max(known_changes + 1), tiles });
            }
        }
        if let Some(bytes) = have {
            settled.writers += 1;
            settled.bytes += bytes;
        }
    }
    index.put(new);
    Ok(settled)
}

/// Reads the tiles in the journal of a piece, if there is one.
fn read_journal(container: &Container, roll: &Roll, name: Name) -> Result<Option<PieceTiles>> {
    let Some(mut journal) = open_journal(container, name, roll.is_here(), false)? else {
        return Ok(None);
    };
    journal.update().context("read", &container.path().join(marker::journal(name)))?;
    Ok(Some(journal.piece()))
}

fn salvage(container: &Container, name: Name, len: u64) -> Result<Salvaged> {
    let file = marker::journal(name);
    let path = container.path().join(&file);
    let mut file = container.open_file(&file, OFlags::RDONLY).context("open", &path)?;
    journal::salvage(&mut file, name.rank, len).context("read", &path)
}

fn bytes(tiles: &PieceTiles) -> u64 {
    tiles.tiles().iter().fold(0, |sum: u64, tile| sum.saturating_add(tile.len))
}

/// Splits `tiles` at byte `len` of the piece: returns the tiles before it, and the number of bytes
/// beyond.
fn clamp(tiles: &PieceTiles, len: u64) -> (PieceTiles, u64) {
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
pub fn remove_journals(container: &Container, roll: &Roll) -> Result<()> {
    let of = roll.of;
    let mut counts = vec![0; of.ranks as usize];
    roll.changes(&mut counts).context("read", container.path())?;
    for (rank, _) in counts.iter().enumerate().filter(|(_, changes)| **changes > 0) {
        container.remove_file(&marker::journal(Name { open: of.open, rank: rank as u32 }))?;
    }
    container.remove_file(&marker::pointer(of.open))?;
    container.remove_file(&marker::roll(of.open))
}

/// Recovers all opens whose jobs died. Cheap where there are none. A failure does not keep the
/// others from being recovered.
///
/// # Errors
/// Those of the disk; `EIO` for a damaged index, and for a damaged rank table or journal that is to
/// be refused: that open stays as it was.
pub fn settle_dead(container: &Container, damaged: Damaged) -> Result<Vec<Settled>> {
    let rolls = |members: &[Member]| -> Vec<u64> {
        let open =
            |member: &Member| if let Member::Roll(open) = member { Some(*open) } else { None };
        members.iter().filter_map(open).collect()
    };
    let mut dead = Vec::new();
    let members = container.members()?;
    // Look without the lock first: most containers have no open.
    if rolls(&members).is_empty() {
        return Ok(Vec::new());
    }
    // List again under the lock: another process may have recovered some of them meanwhile.
    let guard = container.lock()?;
    let members = container.members()?;
    let mut refused = None;
    for open in rolls(&members) {
        let roll = match container.roll(open) {
            Err(error) if error.errno == Errno::IO => match damaged {
                Damaged::Accept => Some(container.damaged_roll(open, &members)?),
                Damaged::Refuse => {
                    refused = Some(error);
                    None
                }
            },
            other => other?,
        };
        if let Some(roll) = roll
            && roll.is_dead().context("lock", container.path())?
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
        match take_journals(container, roll, false, damaged, &mut new) {
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
        remove_strays(container, roll.of.open, &new)?;
    }
    // Readers that cached these opens must list them again, even if the index did not change.
    container.common().changed().context("write", container.path())?;
    refused.map_or(Ok(settled), Err)
}

/// Removes files that a dead open began and never recorded: pieces without a byte, journals without
/// a record.
fn remove_strays(container: &Container, open: u64, index: &Published) -> Result<()> {
    for member in container.members()? {
        match member {
            Member::Journal(name) if name.open == open => {
                container.remove_file(&marker::journal(name))?;
            }
            Member::Piece(name)
                if name.open == open && !index.pieces.iter().any(|entry| entry.name == name) =>
            {
                container.remove_file(&marker::piece(name))?;
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
pub fn tidy(
    container: &Container,
    except: Option<u64>,
    index: &mut Published,
) -> Result<Vec<Name>> {
    let mut live = Vec::new();
    for member in container.members()? {
        if let Member::Roll(open) = member
            && Some(open) != except
        {
            live.push(open);
        }
    }
    let (kept, rest) =
        index.pieces.drain(..).partition(|entry: &Entry| live.contains(&entry.name.open));
    index.pieces = rest;
    let gone = index.drop_emptied();
    let kept: Vec<Entry> = kept;
    index.pieces.extend(kept);
    // Journals of living opens may have tiles of any age, so all cuts stay while there are any.
    index.drop_cuts((!live.is_empty()).then_some(0));
    Ok(gone)
}
