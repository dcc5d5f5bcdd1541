//! The beginning of an open of a volume's file, by rank 0.

use super::session::{Held, Session};
use super::{Told, Volume};
use crate::error::{Context, Error, Result};
use crate::file::Begin;
use crate::flags::Flags;
use crate::machine;
use crate::token::{Kind, Token};
use parking_lot::Mutex;
use rustix::fs::{FileType, Mode};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use tatami_wire::{Cred, Ino, NodeId};

/// Files that this process has begun to open and not opened yet: their pieces are open as long as it holds them.
static BEGUN: Mutex<Vec<(u64, Held)>> = Mutex::new(Vec::new());
/// Begun opens that are remembered; the oldest was surely given up.
const BEGUN_MAX: usize = 64;

/// Makes the file where that is asked for, checks that it may be opened, and gives each rank a piece on its node.
///
/// # Errors
/// As for open(2); `EXDEV` for a rank without a mount of the volume.
pub fn begin(open: &Begin<'_>, real: &Path, number: u64) -> Result<Token> {
    let file = make(real, open.flags, open.mode)?;
    let found = file.metadata().context("stat", real)?;
    if !found.is_file() {
        return Err(Error::because("open", real, Errno::INVAL, "it is no ordinary file"));
    }
    // The shard is to hear of its end before it hears of pieces.
    drop(file);
    let ino = Ino(found.ino());
    let token = Token {
        kind: Kind::Volume,
        open: number,
        stamp: machine::now(),
        ranks: open.ranks,
        machine: open.machine,
        id: ino.0,
        first: 0,
        nodes: 0,
    };
    if !open.flags.writes() {
        return Ok(token);
    }
    let session = Session::of(real)?;
    let wanted = pieces(open, &session, real)?;
    let nodes = wanted.len() as u32 - open.ranks;
    let held = Held::new(&session, ino).told("open", real)?;
    // Is it still what the path names?
    Volume::new(session.clone(), real, ino, held.cap)?;
    let made = session.client.add_pieces(&Cred::ROOT, ino, wanted);
    let (first, stamp) = made.told("open", real)?;
    let mut begun = BEGUN.lock();
    if begun.len() >= BEGUN_MAX {
        begun.remove(0);
    }
    begun.push((number, held));
    Ok(Token { stamp: token.stamp.max(stamp.saturating_add(1)), first, nodes, ..token })
}

/// What [`begin`] held for an open.
pub(super) fn begun(open: u64) -> Option<Held> {
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

/// The file, made if that is asked for, opened as the program wants to use it.
fn make(path: &Path, flags: Flags, mode: u32) -> Result<File> {
    if flags.has(Flags::CREATE) {
        // It is made without being opened: what is opened may get an object of its own.
        let mode = Mode::from_raw_mode(mode);
        match rustix::fs::mknodat(rustix::fs::CWD, path, FileType::RegularFile, mode, 0) {
            Err(Errno::EXIST) if !flags.has(Flags::EXCL) => {}
            other => other.context("create", path)?,
        }
    }
    open(path, flags)
}

/// Opens the file for all that the program wants. Not for reading and writing at once, which the mount refuses
/// while somebody has the file open since before it had tiles: nothing is read or written by this descriptor.
pub(super) fn open(path: &Path, flags: Flags) -> Result<File> {
    let read = match flags.reads() || !flags.writes() {
        true => Some(File::open(path).context("open", path)?),
        false => None,
    };
    match (flags.writes(), read) {
        (false, Some(read)) => Ok(read),
        _ => OpenOptions::new().write(true).open(path).context("open", path),
    }
}
