//! The records of pieces that lie beside one inode.

use crate::inode::Inode;
use crate::keys::RecordKey;
use crate::tiled::pieces::encoded_tiles_end;
use crate::tiled::record::{PieceRecord, TiledRecord};
use std::collections::BTreeMap;
use tatami_wire::{NodeId, Piece};

/// The records that lie beside one inode.
#[derive(Default)]
pub(crate) struct SideRecords {
    /// The `T` record; `None` inside for one that cannot be decoded.
    pub(crate) tiled: Option<Option<TiledRecord>>,
    /// Pieces that can be decoded, and those of them that are open.
    pub(crate) pieces: u32,
    pub(crate) open: u32,
    pub(crate) blocks: u64,
    pub(crate) end: u64,
    /// Highest number that a piece has, or had.
    pub(crate) highest: u32,
    /// Keys of pieces that cannot be decoded.
    pub(crate) damaged: Vec<(u32, RecordKey)>,
    /// Numbers of pieces, and whether each is open.
    pub(crate) numbers: BTreeMap<u32, bool>,
    /// Objects that are to be removed, and the keys of these records.
    pub(crate) dropped: Vec<(NodeId, Piece, RecordKey)>,
}

impl SideRecords {
    pub(crate) fn add_piece(&mut self, number: u32, key: &[u8], value: &[u8]) {
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
    pub(crate) fn expected_record(&self, inode: &Inode) -> TiledRecord {
        let known = self.tiled.clone().flatten();
        let was_known = known.is_some();
        let mut tiled =
            known.unwrap_or_else(|| TiledRecord::default().with_base(inode.size, inode.blocks));
        let base = match inode.layout.is_inline() {
            true => 0,
            false => inode.layout.base().number(),
        };
        let highest = self.highest.max(base);
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
