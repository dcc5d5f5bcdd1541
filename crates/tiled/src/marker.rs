//! The marker that makes a directory a container, and the names within it.
//!
//! The marker is a line of text, so that it explains the directory to a person: `tatami-container 1
//! <id> <checksum>`.

use crate::error::{ErrorContext, Result, TiledError};
use crate::file_mutex;
use rustix::io::Errno;
use std::io::Read;
use std::path::Path;

/// The marker's name.
pub const MARKER: &str = ".tatami-container";
/// The ordinary file from which a container may have been made: piece 0.
pub const BASE: &str = "base";
/// The published tiles.
pub const INDEX: &str = "index";
/// The last index that reached the disk, while `index` has not.
pub const INDEX_SYNCED: &str = "index.synced";
/// An index that is being written.
pub const INDEX_NEW: &str = "index.new";
/// Words that all opens share.
pub const SHARED: &str = "shared";
/// Held while the index is replaced (flock).
pub const LOCK: &str = "lock";
/// Held around an access in atomic mode (flock).
pub const ATOMIC: &str = "atomic";
/// The extended attribute of a container, for programs that only list.
pub const XATTR: &str = "user.tatami.container";

const VERSION: u32 = 1;
const LONGEST: u64 = 4096;
/// A marker that is being written in the place of a damaged one.
pub const MARKER_NEW: &str = ".tatami-container.new";
/// Advice about a damaged or missing marker. The bytes of the file do not depend on the marker.
pub const RESTORE: &str = "restore this file from a copy, or have a new one written, which loses no byte of the file, \
    when no program has it open: tatami recover --accept-loss";
const EXPLANATION: &str = "This directory is one file, written by many processes at once; its bytes are in the files\n\
    beside this one. `tatami mount --overlay` shows it as a file, `tatami relayout` turns it into one.\n";

/// The reason for which a text is no marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadMarker {
    /// Not UTF-8.
    #[error("the marker is no text")]
    Text,
    /// A text, and no marker.
    #[error("the marker is no marker")]
    Kind,
    /// The checksum is not that of the line.
    #[error("the marker's checksum is wrong")]
    Sum,
    /// A whole marker of another version of the program: no damage.
    #[error("the container is of another version: use the version of Tatami that wrote it")]
    Version,
}

/// The content of a marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marker {
    /// A random number of the container, drawn at its creation.
    pub id: u64,
}

impl Marker {
    /// The text of the marker.
    pub fn to_text(self) -> String {
        let line = format!("tatami-container {VERSION} {:016x}", self.id);
        format!("{line} {:08x}\n{EXPLANATION}", crc32c::crc32c(line.as_bytes()))
    }

    /// Reads a marker's text.
    ///
    /// # Errors
    /// [`BadMarker`].
    pub fn parse(text: &[u8]) -> std::result::Result<Marker, BadMarker> {
        let line = text.split(|b| *b == b'\n').next().unwrap_or_default();
        let line = std::str::from_utf8(line).map_err(|_| BadMarker::Text)?;
        let (front, sum) = line.rsplit_once(' ').ok_or(BadMarker::Kind)?;
        let mut words = front.split(' ');
        if words.next() != Some("tatami-container") {
            return Err(BadMarker::Kind);
        }
        if u32::from_str_radix(sum, 16) != Ok(crc32c::crc32c(front.as_bytes())) {
            return Err(BadMarker::Sum);
        }
        match words.next().map(str::parse) {
            Some(Ok(VERSION)) => {}
            Some(Ok(_)) => return Err(BadMarker::Version),
            _ => return Err(BadMarker::Kind),
        }
        let id = words.next().and_then(|id| u64::from_str_radix(id, 16).ok());
        id.map(|id| Marker { id }).ok_or(BadMarker::Kind)
    }
}

const NOENT: i32 = Errno::NOENT.raw_os_error();
const NOTDIR: i32 = Errno::NOTDIR.raw_os_error();

/// The marker of a directory, as found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// No marker.
    Nothing,
    /// A whole marker.
    Whole(Marker),
    /// A marker that cannot be read.
    Bad(BadMarker),
}

/// Reads the marker of the directory `dir`, and classifies it.
///
/// # Errors
/// A file that cannot be read.
pub fn look(dir: &Path) -> Result<Found> {
    let path = dir.join(MARKER);
    let file = match std::fs::File::open(&path) {
        Ok(file) => file,
        Err(e) => {
            let none = matches!(e.raw_os_error(), Some(NOENT | NOTDIR));
            return if none { Ok(Found::Nothing) } else { Err(e).context("open", &path) };
        }
    };
    let mut text = Vec::new();
    file.take(LONGEST).read_to_end(&mut text).context("read", &path)?;
    Ok(Marker::parse(&text).map_or_else(Found::Bad, Found::Whole))
}

/// Returns the marker of the directory `dir`; `None` where it has none.
///
/// # Errors
/// A marker that is damaged, or cannot be read.
pub fn read_marker(dir: &Path) -> Result<Option<Marker>> {
    let path = dir.join(MARKER);
    match look(dir)? {
        Found::Nothing => Ok(None),
        Found::Whole(marker) => Ok(Some(marker)),
        Found::Bad(bad @ BadMarker::Version) => {
            Err(TiledError::from_damage(&path, bad.to_string()))
        }
        Found::Bad(bad) => Err(TiledError::from_damage(&path, format!("{bad}; {RESTORE}"))),
    }
}

/// Reports whether the directory `dir` is a container. An unreadable directory is none.
///
/// # Errors
/// A marker that is damaged.
pub fn is_container(dir: &Path) -> Result<bool> {
    match read_marker(dir) {
        Ok(found) => Ok(found.is_some()),
        Err(error) if error.errno == Errno::ACCESS => Ok(false),
        Err(error) => Err(error),
    }
}

/// Names a piece within its container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PieceName {
    /// The number of the open in which it was written.
    pub open: u64,
    /// The rank that wrote it.
    pub rank: u32,
}

/// The role of a file within a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Member {
    /// The marker, the index and such: one of each.
    Fixed,
    /// Bytes that a rank of an open wrote.
    Piece(PieceName),
    /// The journal of such a piece.
    Journal(PieceName),
    /// The rank table of an open.
    RankTable(u64),
    /// The shared pointer of an open.
    Pointer(u64),
    /// A leftover of the file system: a removed file that a process still has open.
    Leftover,
    /// Not a file of a container.
    Unknown,
}

/// Classifies the file of this name.
pub fn classify_name(name: &str) -> Member {
    let turns = [file_mutex::SUFFIX, file_mutex::BREAK, file_mutex::NEXT];
    if let Some(of) = turns.iter().find_map(|suffix| name.strip_suffix(suffix)) {
        return if classify_name(of) == Member::Unknown { Member::Unknown } else { Member::Fixed };
    }
    let fixed = [MARKER, MARKER_NEW, BASE, INDEX, INDEX_SYNCED, INDEX_NEW, SHARED, LOCK, ATOMIC];
    if fixed.contains(&name) {
        return Member::Fixed;
    }
    if name.starts_with(".nfs") || name.starts_with(".fuse_hidden") {
        return Member::Leftover;
    }
    let mut parts = name.split('.');
    let kind = parts.next();
    let open = parts.next().filter(|open| open.len() == 16);
    let Some(open) = open.and_then(|open| u64::from_str_radix(open, 16).ok()) else {
        return Member::Unknown;
    };
    let rank = parts.next().map(str::parse::<u32>);
    match (kind, rank, parts.next()) {
        (Some("p"), Some(Ok(rank)), None) => Member::Piece(PieceName { open, rank }),
        (Some("j"), Some(Ok(rank)), None) => Member::Journal(PieceName { open, rank }),
        (Some("o"), None, None) => Member::RankTable(open),
        (Some("s"), None, None) => Member::Pointer(open),
        _ => Member::Unknown,
    }
}

/// The name of a piece.
pub fn piece_name(of: PieceName) -> String {
    format!("p.{:016x}.{}", of.open, of.rank)
}

/// The name of a journal.
pub fn journal_name(of: PieceName) -> String {
    format!("j.{:016x}.{}", of.open, of.rank)
}

/// The name of the rank table of an open.
pub fn rank_table_name(open: u64) -> String {
    format!("o.{open:016x}")
}

/// The name of an open's shared pointer.
pub fn pointer_name(open: u64) -> String {
    format!("s.{open:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_marker_is_read_as_written_and_no_other_text_is_one() {
        let marker = Marker { id: 0x1234_5678_9abc_def0 };
        let text = marker.to_text();
        assert_eq!(Marker::parse(text.as_bytes()), Ok(marker));
        let line = text.find('\n').unwrap();
        for at in 0..line {
            for bit in 0..8 {
                let mut bytes = text.clone().into_bytes();
                bytes[at] ^= 1 << bit;
                // Digits of the checksum may be capital letters.
                let parsed = Marker::parse(&bytes);
                assert!(parsed.is_err() || parsed == Ok(marker), "byte {at} bit {bit}");
            }
            assert!(Marker::parse(&text.as_bytes()[..at]).is_err());
        }
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_a_marker_or_none(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..100)) {
            let _ = Marker::parse(&bytes);
            let _ = classify_name(&String::from_utf8_lossy(&bytes));
            // A line whose checksum is right, and nothing else.
            let line = format!("tatami-container {}", String::from_utf8_lossy(&bytes));
            let _ = Marker::parse(format!("{line} {:08x}\n", crc32c::crc32c(line.as_bytes())).as_bytes());
        }
    }

    #[test]
    fn names_tell_what_they_are() {
        let (one, other) = (PieceName { open: 7, rank: 3 }, PieceName { open: u64::MAX, rank: 0 });
        assert_eq!(classify_name(&piece_name(one)), Member::Piece(one));
        assert_eq!(classify_name(&journal_name(other)), Member::Journal(other));
        assert_eq!(classify_name(&rank_table_name(1)), Member::RankTable(1));
        assert_eq!(classify_name(&pointer_name(1)), Member::Pointer(1));
        assert_eq!(classify_name(INDEX), Member::Fixed);
        assert_eq!(classify_name("lock.turn"), Member::Fixed);
        assert_eq!(classify_name(&format!("{}.turn.next", pointer_name(1))), Member::Fixed);
        for name in
            ["p.7.3", "p.0000000000000007.3.4", "notes", "notes.turn", "o.0000000000000007.1", ""]
        {
            assert_eq!(classify_name(name), Member::Unknown, "{name}");
        }
    }
}
