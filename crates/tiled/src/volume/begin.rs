//! The beginning of an open of a volume's file, by rank 0.

use super::session::{Held, Session};
use super::{Found, Told, Volume};
use crate::error::{Context, Error, Result};
use crate::file::Begin;
use crate::flags::Flags;
use crate::machine;
use crate::token::{Kind, Opened, Token};
use parking_lot::Mutex;
use rustix::fs::{FileType, Mode};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::path::Path;
use tatami_wire::{Access, Cred, NodeId};

/// Files that this process has begun to open and not opened yet: their pieces are open as long as it holds them.
static BEGUN: Mutex<Vec<(u64, Begun)>> = Mutex::new(Vec::new());
/// Begun opens that are remembered; the oldest was surely given up.
const BEGUN_MAX: usize = 64;

/// What rank 0 has of an open that it has begun.
pub(super) struct Begun {
    pub(super) volume: Volume,
    /// For writing.
    pub(super) held: Option<Held>,
}

/// Makes the file where that is asked for, checks that it may be opened, and gives each rank a piece on its node.
///
/// # Errors
/// As for open(2); `EXDEV` for a rank without a mount of the volume.
pub fn begin(open: &Begin<'_>, real: &Path, linked: bool, number: u64) -> Result<Token> {
    // A file that is new is open to its maker, whatever its mode says: as with open(2).
    let is_new = make(real, open.flags, open.mode)?;
    let found = Found::at(real, if is_new { Flags::default() } else { open.flags })?;
    let (ino, session) = (found.ino, found.session.clone());
    let mut token = Token {
        kind: Kind::Volume,
        open: number,
        stamp: machine::now(),
        ranks: open.ranks,
        machine: open.machine,
        id: ino.0,
        first: 0,
        nodes: 0,
        volume: None,
    };
    let (held, cap, homes) = if open.flags.writes() {
        let wanted = pieces(open, &session, real)?;
        let homes = wanted.iter().take(open.ranks as usize).map(|(node, _)| *node).collect();
        token.nodes = wanted.len() as u32 - open.ranks;
        let (held, cap) = Held::new(&session, ino).told("open", real)?;
        let made = session.client.add_pieces(&Cred::ROOT, ino, wanted);
        let (first, stamp) = made.told("open", real)?;
        (token.first, token.stamp) = (first, token.stamp.max(stamp.saturating_add(1)));
        (Some(held), cap, homes)
    } else {
        let opened = session.client.open(&Cred::ROOT, ino, Access::READ);
        (None, opened.told("open", real)?.1, Vec::new())
    };
    token.volume = Some(Opened { cap, client: session.client.id(), linked, homes });
    let mut begun = BEGUN.lock();
    if begun.len() >= BEGUN_MAX {
        begun.remove(0);
    }
    begun.push((number, Begun { volume: Volume::new(found, real, cap), held }));
    Ok(token)
}

/// What [`begin`] has of an open.
pub(super) fn begun(open: u64) -> Option<Begun> {
    let mut begun = BEGUN.lock();
    let at = begun.iter().position(|(number, _)| *number == open)?;
    Some(begun.remove(at).1)
}

/// A piece for each rank on its node, then one for each node, which is its roll.
fn pieces(open: &Begin<'_>, session: &Session, path: &Path) -> Result<Vec<(NodeId, u32)>> {
    let known = session.client.map().nodes.len();
    let mut wanted = Vec::with_capacity(open.ranks as usize);
    for rank in 0..open.ranks as usize {
        // Without a list there is one process, or all are where this one is.
        let own = u32::from(session.node.0) + 1;
        let node = open.nodes.get(rank).copied().unwrap_or(own);
        if node == 0 || node as usize > known {
            let why = format!("rank {rank} has no mount of the volume at this path");
            return Err(Error::because("open", path, Errno::XDEV, why));
        }
        wanted.push((NodeId((node - 1) as u16), 1));
    }
    for node in distinct(wanted.iter().map(|(node, _)| *node)) {
        wanted.push((node, 1));
    }
    Ok(wanted)
}

/// The nodes in the order in which they come first.
pub(super) fn distinct(nodes: impl Iterator<Item = NodeId>) -> Vec<NodeId> {
    let mut seen = std::collections::HashSet::new();
    nodes.filter(|node| seen.insert(*node)).collect()
}

/// Makes the file if that is asked for, and tells whether it did. It is not opened: what is opened may get an object of its own.
fn make(path: &Path, flags: Flags, mode: u32) -> Result<bool> {
    if !flags.has(Flags::CREATE) {
        return Ok(false);
    }
    let mode = Mode::from_raw_mode(mode);
    match rustix::fs::mknodat(rustix::fs::CWD, path, FileType::RegularFile, mode, 0) {
        Err(Errno::EXIST) if !flags.has(Flags::EXCL) => Ok(false),
        other => other.context("create", path).map(|()| true),
    }
}

/// Asks by open(2) whether the file may be opened for all that the program wants. Not for reading and writing at once, which the mount refuses
/// while somebody has the file open since before it had tiles: nothing is read or written by this descriptor.
pub(super) fn open(path: &Path, flags: Flags) -> Result<()> {
    let read = match flags.reads() || !flags.writes() {
        true => Some(File::open(path).context("open", path)?),
        false => None,
    };
    match (flags.writes(), read) {
        (false, Some(_)) => Ok(()),
        _ => OpenOptions::new().write(true).open(path).context("open", path).map(drop),
    }
}
