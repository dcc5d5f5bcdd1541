//! The records of a tiled file. `docs/reference/formats.md` draws them.

use crate::record::{DamagedRecord, RecordReader};
use tatami_wire::tiles::{CUTS_MAX, Cut, TILES_MAX};
use tatami_wire::{ClientId, Errno, NodeId};

const TILED_VERSION: u8 = 1;
const PIECE_VERSION: u8 = 1;
/// Stands for no writer of a piece.
const NO_WRITER: ClientId = ClientId([0; 16]);

/// The sums over all pieces, and the base.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TiledRecord {
    /// Number of the next piece. None is used twice, as late garbage has old ones.
    pub next: u32,
    /// Number of pieces.
    pub pieces: u32,
    /// Number of pieces that a client may add to.
    pub open: u32,
    /// The latest stamp that was allocated or published.
    pub stamp: u64,
    /// Rises with every change of pieces, tiles and cuts.
    pub version: u64,
    /// End of all tiles, as far as cuts left them.
    pub end: u64,
    /// Storage of all pieces, in units of 512 bytes.
    pub blocks: u64,
    /// Of the base.
    pub base_size: u64,
    /// Of the base.
    pub base_blocks: u64,
    /// Stamps and sizes both rise.
    pub cuts: Vec<Cut>,
}

impl Default for TiledRecord {
    fn default() -> TiledRecord {
        TiledRecord {
            next: 1,
            pieces: 0,
            open: 0,
            stamp: 0,
            version: 0,
            end: 0,
            blocks: 0,
            base_size: 0,
            base_blocks: 0,
            cuts: Vec::new(),
        }
    }
}

impl TiledRecord {
    /// Returns the same record, for a file that was whole until now.
    pub fn with_base(self, base_size: u64, base_blocks: u64) -> TiledRecord {
        TiledRecord { base_size, base_blocks, ..self }
    }

    /// Returns the size of the file, in bytes.
    pub fn file_size(&self) -> u64 {
        let left = self.cuts.last().map_or(0, |cut| cut.size);
        self.base_size.max(self.end).max(left)
    }

    /// Returns the storage of the file, in units of 512 bytes.
    pub fn storage_blocks(&self) -> u64 {
        self.base_blocks.saturating_add(self.blocks)
    }

    /// Adds a cut. Drops cuts that leave more bytes and are not later than another.
    ///
    /// # Errors
    /// `ENOSPC` for one more than [`CUTS_MAX`].
    pub fn add_cut(&mut self, new: Cut) -> Result<(), Errno> {
        let says_more = |cut: &Cut, than: &Cut| cut.size < than.size || cut.stamp > than.stamp;
        if self.cuts.iter().all(|old| says_more(&new, old)) {
            self.cuts.retain(|old| says_more(old, &new));
            let at = self.cuts.partition_point(|old| old.stamp < new.stamp);
            self.cuts.insert(at, new);
        }
        if self.cuts.len() > CUTS_MAX { Err(Errno::ENOSPC) } else { Ok(()) }
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(65 + 16 * self.cuts.len());
        out.push(TILED_VERSION);
        for n in [self.next, self.pieces, self.open] {
            out.extend_from_slice(&n.to_le_bytes());
        }
        let sums = [self.stamp, self.version, self.end, self.blocks];
        for n in sums.into_iter().chain([self.base_size, self.base_blocks]) {
            out.extend_from_slice(&n.to_le_bytes());
        }
        out.extend_from_slice(&(self.cuts.len() as u32).to_le_bytes());
        for cut in &self.cuts {
            out.extend_from_slice(&cut.stamp.to_le_bytes());
            out.extend_from_slice(&cut.size.to_le_bytes());
        }
        out
    }

    pub fn decode(bytes: &[u8]) -> Result<TiledRecord, DamagedRecord> {
        let bad = DamagedRecord("tiled file");
        let mut r = RecordReader::new(bytes, TILED_VERSION, "tiled file")?;
        let (next, pieces, open) = (r.read_u32()?, r.read_u32()?, r.read_u32()?);
        let (stamp, version, end, blocks) =
            (r.read_u64()?, r.read_u64()?, r.read_u64()?, r.read_u64()?);
        let (base_size, base_blocks) = (r.read_u64()?, r.read_u64()?);
        let count = r.read_u32()? as usize;
        if next == 0 || stamp >= 1 << 63 || count > CUTS_MAX {
            return Err(bad);
        }
        let mut cuts: Vec<Cut> = Vec::new();
        for _ in 0..count {
            let cut = Cut { stamp: r.read_u64()?, size: r.read_u64()? };
            if cuts.last().is_some_and(|last| last.stamp >= cut.stamp || last.size >= cut.size) {
                return Err(bad);
            }
            cuts.push(cut);
        }
        r.expect_end()?;
        Ok(TiledRecord {
            next,
            pieces,
            open,
            stamp,
            version,
            end,
            blocks,
            base_size,
            base_blocks,
            cuts,
        })
    }
}

/// The record of one piece.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PieceRecord {
    /// The node that has its objects.
    pub node: NodeId,
    /// The client that made it, while it may be added to.
    pub writer: Option<ClientId>,
    /// Storage of its bytes, in units of 512 bytes.
    pub blocks: u64,
    /// As `tatami_layout::PieceTiles` encodes them; empty until they are published.
    pub tiles: Vec<u8>,
}

impl PieceRecord {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(27 + self.tiles.len());
        out.push(PIECE_VERSION);
        out.extend_from_slice(&self.node.0.to_le_bytes());
        out.extend_from_slice(&self.writer.unwrap_or(NO_WRITER).0);
        out.extend_from_slice(&self.blocks.to_le_bytes());
        out.extend_from_slice(&self.tiles);
        out
    }

    pub fn decode(bytes: &[u8]) -> Result<PieceRecord, DamagedRecord> {
        let mut r = RecordReader::new(bytes, PIECE_VERSION, "piece")?;
        let node = NodeId(r.read_u16()?);
        let writer = Some(ClientId(r.read_array()?)).filter(|client| *client != NO_WRITER);
        let blocks = r.read_u64()?;
        let tiles = r.remaining_bytes().to_vec();
        if tiles.len() > TILES_MAX {
            return Err(DamagedRecord("piece"));
        }
        Ok(PieceRecord { node, writer, blocks, tiles })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn tiled() -> TiledRecord {
        TiledRecord {
            next: 2,
            pieces: 3,
            open: 4,
            stamp: 5,
            version: 6,
            end: 7,
            blocks: 8,
            base_size: 9,
            base_blocks: 10,
            cuts: vec![Cut { stamp: 11, size: 12 }, Cut { stamp: 13, size: 14 }],
        }
    }

    fn piece() -> PieceRecord {
        let writer = Some(ClientId([7; 16]));
        PieceRecord { node: NodeId(0x0102), writer, blocks: 3, tiles: vec![4, 5] }
    }

    #[test]
    fn records_read_as_they_were_written() {
        let closed = PieceRecord { writer: None, tiles: Vec::new(), ..piece() };
        for record in [piece(), closed] {
            assert_eq!(PieceRecord::decode(&record.encode()), Ok(record));
        }
        for record in [tiled(), TiledRecord::default()] {
            assert_eq!(TiledRecord::decode(&record.encode()), Ok(record));
        }
    }

    /// The bytes of docs/reference/formats.md. If this fails, the format has changed: raise its
    /// version and keep reading the old one.
    #[test]
    fn the_format_is_the_one_written_down() {
        let mut expected = vec![1];
        [2u32, 3, 4].iter().for_each(|n| expected.extend(n.to_le_bytes()));
        [5u64, 6, 7, 8, 9, 10].iter().for_each(|n| expected.extend(n.to_le_bytes()));
        expected.extend(2u32.to_le_bytes());
        [11u64, 12, 13, 14].iter().for_each(|n| expected.extend(n.to_le_bytes()));
        assert_eq!(tiled().encode(), expected);
        let mut expected = vec![1, 2, 1];
        expected.extend([7; 16]);
        expected.extend([3, 0, 0, 0, 0, 0, 0, 0, 4, 5]);
        assert_eq!(piece().encode(), expected);
    }

    proptest! {
        /// For any cuts, each stamp is cut as all of them together cut it.
        #[test]
        fn cuts_that_say_nothing_are_left_out(
            list in proptest::collection::vec((0u64..20, 0u64..20), 0..20),
            probe in 0u64..20,
        ) {
            let mut tiled = TiledRecord::default();
            for (stamp, size) in &list {
                let added = tiled.add_cut(Cut { stamp: *stamp, size: *size });
                prop_assert_eq!(added, Ok(()));
            }
            let of = |cuts: &[Cut]| {
                cuts.iter().filter(|c| c.stamp >= probe).map(|c| c.size).min()
            };
            let all: Vec<Cut> =
                list.iter().map(|(stamp, size)| Cut { stamp: *stamp, size: *size }).collect();
            prop_assert_eq!(of(&tiled.cuts), of(&all));
            prop_assert_eq!(TiledRecord::decode(&tiled.encode()), Ok(tiled));
        }

        #[test]
        fn any_bytes_decode_or_do_not(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = TiledRecord::decode(&bytes);
            let _ = PieceRecord::decode(&bytes);
        }

        #[test]
        fn mutated_records_decode_or_do_not(at: proptest::sample::Index, to: u8, cut in 0usize..9) {
            for mut bytes in [tiled().encode(), piece().encode()] {
                let n = bytes.len();
                bytes[at.index(n)] = to;
                bytes.truncate(n - cut);
                let _ = PieceRecord::decode(&bytes);
                if let Ok(record) = TiledRecord::decode(&bytes) {
                    prop_assert_eq!(TiledRecord::decode(&record.encode()), Ok(record));
                }
            }
        }
    }
}
