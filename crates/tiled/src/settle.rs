//! The end of an open: what its journals tell goes into the index, and then
//! they go. For an open that closes, and for one whose job died.

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

/// What was found of a dead open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settled {
    /// Its number.
    pub open: u64,
    /// How many processes it had.
    pub ranks: u32,
    /// How many of them had written.
    pub writers: u32,
    /// Bytes in their pieces that the index knows now.
    pub bytes: u64,
    /// Bytes that journals tell of and pieces do not have: lost with the power.
    pub lost: u64,
    /// Journals of which a part did not read, and where. What they told there is lost.
    pub damaged: Vec<(Name, Damage)>,
}

/// What to do with journals that are damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damaged {
    /// Nothing, but to say so: the open is not settled.
    Refuse,
    /// Take what is whole, and let the rest go.
    Accept,
}

/// Puts into `index` what the journals of an open have beyond it. Bytes that a
/// piece does not have are left out. Ranks that live have counted all their
/// changes (`counted`); one that died may not have.
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
            Err(error) if error.errno == Errno::IO && damaged == Damaged::Accept => {
                let salvaged = salvage(container, name, len)?;
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
            // The slot is stored after the journal, so the journal may be ahead of it.
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

/// What the journal of a piece tells, if there is one.
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

/// What of `tiles` lies in the first `len` bytes of the piece, and how much does not.
fn clamp(tiles: &PieceTiles, len: u64) -> (PieceTiles, u64) {
    let mut out = PieceTiles::new(tiles.rank());
    let mut lost = 0;
    for view in tiles.views() {
        // It was one of these tiles' views, so it can be again.
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

/// Removes the files that only an open that is not over has: the roll last, by
/// which the rest is found.
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

/// Settles all opens whose jobs died. Cheap where there is none. One that cannot be settled keeps no other from it.
///
/// # Errors
/// Those of the disk; `EIO` for a damaged index, and for a damaged roll or journal that is to be refused: that
/// open is as it was.
pub fn settle_dead(container: &Container, damaged: Damaged) -> Result<Vec<Settled>> {
    let rolls = |members: &[Member]| -> Vec<u64> {
        let open =
            |member: &Member| if let Member::Roll(open) = member { Some(*open) } else { None };
        members.iter().filter_map(open).collect()
    };
    let mut dead = Vec::new();
    let members = container.members()?;
    if rolls(&members).is_empty() {
        return Ok(Vec::new());
    }
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
    if !over.is_empty() {
        container.write_index(&guard, &old, &mut new, true)?;
    }
    for roll in over {
        remove_journals(container, roll)?;
        remove_strays(container, roll.of.open, &new)?;
    }
    container.common().changed().context("write", container.path())?;
    refused.map_or(Ok(settled), Err)
}

/// Removes what a dead open began and never told of: pieces without a byte,
/// journals without a record.
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

/// Drops pieces that a truncation has emptied and cuts that have no effect any
/// more, and removes the files. Pieces of opens that are not over stay: their
/// writers go on.
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
    index.drop_cuts((!live.is_empty()).then_some(0));
    Ok(gone)
}
