//! Checks the journals of pieces that are not closed: their unpublished tiles are stored nowhere
//! else.
//!
//! A closed piece has no journal, so files that no job has left open cost nothing. Each other
//! journal is read once, record by record with its checksum. A journal is small beside the bytes
//! that it describes, and has at most [`tatami_layout::journal::BYTES_MAX`] bytes. One journal is
//! in memory at a time.
//!
//! The check repairs nothing here. A repair that kept the whole records would turn the bytes of the
//! others into zeros. Only the owner of the file knows whether a copy is better: `tatami recover
//! --accept-loss` asks for that decision.

use super::{FindingKind, Fsck, FsckError, FsckFinding};
use crate::Tiles;
use crate::pieces::find_journal_damage;
use std::time::Duration;
use tatami_layout::journal::Damage;
use tatami_wire::tiles::PieceGrowth;
use tatami_wire::{Access, Attr, Cap, Cred, Errno, NodeId, Piece};

/// Reads of a journal before it counts as damaged. A writer stores a record before the records that
/// follow, so a record that two reads find damaged stays so. The third read allows for a record
/// that was being copied at both.
const LOOKS: usize = 3;
/// Pause between two reads.
const REST: Duration = Duration::from_millis(50);

impl Fsck<'_> {
    /// Reads the journals of all pieces of a file that are not closed, and reports those that are
    /// damaged.
    pub(super) fn check_journals(&mut self, attr: &Attr, tiles: &Tiles) -> Result<(), FsckError> {
        let open = tiles.pieces.iter().filter(|(_, piece)| piece.growth != PieceGrowth::Closed);
        let open: Vec<_> = open.map(|(number, piece)| (*number, piece.node)).collect();
        if open.is_empty() {
            return Ok(());
        }
        let cap = match self.client.open(&Cred::ROOT, attr.ino, Access::READ) {
            Ok((_, cap)) => cap,
            // The file was removed meanwhile.
            Err(Errno::ENOENT | Errno::ESTALE) => return Ok(()),
            Err(errno) => {
                return Err(self.shard_error(attr.ino.owner_shard(), "open a file", errno));
            }
        };
        for (number, node) in open {
            let mut damage = self.look_at_journal(attr, cap, node, number)?;
            for _ in 1..LOOKS {
                let Some(first) = damage else { break };
                #[allow(clippy::disallowed_methods)] // a writer announces no next record
                std::thread::sleep(REST);
                let again = self.look_at_journal(attr, cap, node, number)?;
                damage = again.filter(|again| again.at == first.at);
                self.report.dispelled += u64::from(damage.is_none());
            }
            if let Some(damage) = damage {
                self.found_journal(attr, node, number, damage)?;
            }
        }
        Ok(())
    }

    fn look_at_journal(
        &self,
        attr: &Attr,
        cap: Cap,
        node: NodeId,
        number: u32,
    ) -> Result<Option<Damage>, FsckError> {
        match find_journal_damage(self.client, attr, cap, node, number) {
            Ok(damage) => Ok(damage),
            // The disk itself reports that it cannot read the journal.
            Err(Errno::EIO) => Ok(Some(Damage { at: 0, what: "the disk does not read it" })),
            Err(Errno::ENOENT | Errno::ESTALE) => Ok(None),
            Err(errno) => Err(FsckError::Node { node, what: "read a journal", errno }),
        }
    }

    /// Reports a damaged journal, unless its piece was closed or dropped meanwhile: then the
    /// journal is garbage.
    fn found_journal(
        &mut self,
        attr: &Attr,
        node: NodeId,
        number: u32,
        damage: Damage,
    ) -> Result<(), FsckError> {
        let ino = attr.ino;
        let now = self.read_tiles(self.read_attr(ino)?.as_ref())?;
        let is_open = |tiles: &Tiles| {
            tiles.pieces.get(&number).is_some_and(|piece| piece.growth != PieceGrowth::Closed)
        };
        if !now.as_ref().is_some_and(is_open) {
            self.report.dispelled += 1;
            return Ok(());
        }
        let object = Piece::of_journal(number);
        let what = format!(
            "the journal of piece {number} (object {:016x}.{:08x}) is {damage}; what it told beyond what was published \
             is not in the file",
            ino.0, object.0
        );
        self.record_finding(FsckFinding {
            wrong: FindingKind::Journal,
            ino,
            path: None,
            node: Some(node),
            lost: None,
            journal: Some(object),
            what,
            repaired: false,
        });
        Ok(())
    }
}
