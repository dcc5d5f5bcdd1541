//! The piece that a rank writes: bytes at its end, tiles in memory and in the journal.

use crate::error::{ErrorContext, Result, TiledError};
use crate::journal;
use crate::marker::PieceName;
use crate::memory::Buffer;
use crate::piece_file::PieceFile;
use crate::ranges::RangeSet;
use rustix::io::Errno;
use std::path::PathBuf;
use std::sync::Arc;
use tatami_layout::{Appended, MAX_OFFSET, PieceTiles, View};

/// Bytes of scattered memory that are packed and written at a time.
const PACK: usize = 512 << 10;

/// Writes of this size and more are split into parts of [`PACK`]. Whole, they would fill page-cache
/// folios of 2 MiB, the size in which a virtual machine with free page reporting returns memory to
/// its host. Getting that memory back is slow: the same 256 MiB took 0.1 s of CPU time by calls of
/// 512 KiB, and up to 1 s by calls of 8 MiB.
const LARGE: usize = 2 << 20;

/// The state of this rank's own piece, which needs no journal.
#[derive(Clone, Copy, Debug)]
pub struct OwnPieceState<'a> {
    /// The piece.
    pub name: PieceName,
    /// How often it has changed.
    pub changes: u64,
    /// Its tiles.
    pub tiles: &'a PieceTiles,
}

/// Creates the files of a piece, and publishes its number of changes.
pub trait PieceStore {
    /// Creates the files of a piece that has none yet.
    ///
    /// # Errors
    /// `ENOSPC`, and others of the disk; then no file is left.
    fn create_files(&self, name: PieceName) -> Result<(PieceFile, journal::JournalWriter)>;

    /// Publishes the number of changes of a rank's piece.
    ///
    /// # Errors
    /// Those of the disk.
    fn record_changes(&self, rank: u32, changes: u64) -> Result<()>;
}

/// The files, once something has been written.
#[derive(Debug)]
struct OwnPieceFiles {
    piece: Arc<PieceFile>,
    journal: journal::JournalWriter,
}

/// The last write, which the next one may continue without a lookup: it lengthens the last tile,
/// which has no gaps, and none of the bytes that it could write is in the piece.
#[derive(Debug)]
struct LastWrite {
    view: View,
    stamp: u64,
    /// Where it ended in the stream.
    end: u64,
    /// Stream bytes that the file has room for.
    limit: u64,
}

/// A rank's piece.
#[derive(Debug)]
pub struct OwnPiece {
    name: PieceName,
    path: PathBuf,
    files: Option<OwnPieceFiles>,
    tiles: PieceTiles,
    /// The stream bytes that were written under each view.
    written: Vec<RangeSet>,
    last: Option<LastWrite>,
    end: u64,
    changes: u64,
    /// Whether there are bytes or tiles that no sync has brought to the disk.
    dirty: bool,
    sealed: u64,
    published: u64,
    scratch: Vec<u8>,
}

impl OwnPiece {
    /// The piece `name` of a container at `path`, with nothing in it and no file yet.
    pub fn new(name: PieceName, path: PathBuf) -> OwnPiece {
        OwnPiece {
            name,
            path,
            files: None,
            tiles: PieceTiles::new(name.rank),
            written: Vec::new(),
            last: None,
            end: 0,
            changes: 0,
            dirty: false,
            sealed: 0,
            published: 0,
            scratch: Vec::new(),
        }
    }

    /// The state that readers of this handle use instead of the journal; `None` while the piece is
    /// empty.
    pub fn own_state(&self) -> Option<OwnPieceState<'_>> {
        let (name, changes) = (self.name, self.changes);
        self.files.as_ref().map(|_| OwnPieceState { name, changes, tiles: &self.tiles })
    }

    /// Its name.
    pub fn name(&self) -> PieceName {
        self.name
    }

    /// How often it has changed.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Its tiles.
    pub fn tiles(&self) -> &PieceTiles {
        &self.tiles
    }

    /// Creates the files, unless they exist.
    fn ensure_files(&mut self, home: &dyn PieceStore) -> Result<&mut OwnPieceFiles> {
        if self.files.is_none() {
            let (piece, journal) = home.create_files(self.name)?;
            self.files = Some(OwnPieceFiles { piece: Arc::new(piece), journal });
        }
        let gone = || TiledError::new("write", &self.path, Errno::IO);
        self.files.as_mut().ok_or_else(gone)
    }

    /// Bytes of its journal.
    pub fn journal_len(&self) -> u64 {
        self.files.as_ref().map_or(0, |files| files.journal.used_bytes())
    }

    /// Returns its blocks on the disk, of 512 bytes; 0 while it is empty.
    ///
    /// # Errors
    /// Those of the disk, or of its node.
    pub fn count_blocks(&self) -> Result<u64> {
        let blocks = self.files.as_ref().map_or(Ok(0), |files| files.piece.count_blocks());
        blocks.context("stat", &self.path)
    }

    /// Whether there are bytes or tiles that no sync has brought to the disk.
    pub fn is_dirty(&self) -> bool {
        self.dirty
    }

    /// Reports whether some of the stream bytes may be in the piece already. A "no" is certain.
    pub fn may_contain(&self, view: &View, stream: u64, len: u64) -> bool {
        let reach =
            |view: &View, from: u64, to: u64| (view.offset_of(from), view.offset_of(to - 1));
        self.tiles.views().iter().zip(&self.written).any(|(known, written)| {
            if known == view {
                return written.overlaps_range(stream, stream + len);
            }
            // Under another view only the hulls in the file are compared; they may overlap in vain.
            written.hull().is_some_and(|(from, to)| {
                let (known, asked) = (reach(known, from, to), reach(view, stream, stream + len));
                known.0 <= asked.1 && asked.0 <= known.1
            })
        })
    }

    /// Appends data that continues the last write under this very view, with its stamp. Returns
    /// `false`, and does nothing, where it does not continue it, or where one call would not write
    /// it.
    ///
    /// # Errors
    /// `ENOSPC` and others of the disk; then no tile is recorded, unless the journal is not mapped
    /// and fails.
    pub fn continue_write(
        &mut self,
        home: &dyn PieceStore,
        view: &View,
        stamp: u64,
        stream: u64,
        data: &Buffer<'_>,
    ) -> Result<bool> {
        let (Some(last), Some(files)) = (&mut self.last, &mut self.files) else {
            return Ok(false);
        };
        let len = data.len();
        let fits = len < LARGE as u64 && stream < last.limit && len <= last.limit - stream;
        if last.end != stream || last.stamp != stamp || !fits || !last.view.is_same(view) {
            return Ok(false);
        }
        let Some(bytes) = data.dense_slice(0, len as usize) else { return Ok(false) };
        // The bytes first, then the tile in the journal, then the count: a reader that finds the
        // count finds the tile, and a tile never names bytes that a kill could have prevented.
        files.piece.write_all_at(bytes, self.end).context("write", &self.path)?;
        last.end += len;
        self.end += len;
        self.dirty = true;
        self.changes += 1;
        self.written[0].insert_range(stream, last.end);
        self.tiles.extend_last_tile(len);
        let reported = files.journal.record_change(Appended::Grown, &self.tiles);
        reported.context("write the journal of", &self.path)?;
        home.record_changes(self.name.rank, self.changes)?;
        Ok(true)
    }

    /// Remembers whether the next write may continue one that ended at `end`.
    fn remember_last_write(&mut self, view: &View, stamp: u64, end: u64) {
        let ends_here = self.tiles.tiles().last().is_some_and(|tile| {
            tile.block == tile.stride && tile.stamp == stamp && tile.end() == end
        });
        // With one view, and no byte beyond the end, the next bytes cannot be in the piece.
        let alone = self.written.len() == 1 && self.written[0].hull().is_some_and(|h| h.1 == end);
        self.last = (ends_here && alone).then(|| LastWrite {
            view: view.clone(),
            stamp,
            end,
            limit: view.stream_before(MAX_OFFSET).0,
        });
    }

    /// Appends the stream bytes `stream .. stream + len`, which are the data from `from` on, with
    /// the stamp `stamp`.
    ///
    /// # Errors
    /// `ENOSPC` and others of the disk; `EFBIG`. Tiles of the written part are recorded.
    #[allow(clippy::too_many_arguments)] // one write is that many things
    pub fn append(
        &mut self,
        home: &dyn PieceStore,
        view: &View,
        stamp: u64,
        stream: u64,
        len: u64,
        data: &Buffer<'_>,
        from: u64,
    ) -> Result<()> {
        let number = self.tiles.add_view(view);
        let number = number.map_err(|e| self.write_error(Errno::INVAL, e))?;
        if self.written.len() < self.tiles.views().len() {
            self.written.resize_with(self.tiles.views().len(), RangeSet::default);
        }
        // If this write fails half-way, the next one must not continue it.
        self.last = None;
        let mut done = 0;
        while done < len {
            // Reserve room in the journal first: bytes without a tile would be lost.
            let files = self.ensure_files(home)?;
            let (piece, room) = (files.piece.clone(), files.journal.reserve_room(view));
            room.context("write the journal of", &self.path)?;
            let part = self.write_part(&piece, self.end, data, from + done, len - done)?;
            let reported = self.tiles.append(stamp, number, stream + done, part, self.end);
            let reported = reported.map_err(|e| self.write_error(Errno::FBIG, e))?;
            self.end += part;
            self.dirty = true;
            self.written[number as usize].insert_range(stream + done, stream + done + part);
            self.changes += 1;
            let changes = self.changes;
            if let Some(files) = &mut self.files {
                files
                    .journal
                    .record_change(reported, &self.tiles)
                    .context("write the journal of", &self.path)?;
            }
            home.record_changes(self.name.rank, changes)?;
            done += part;
        }
        self.remember_last_write(view, stamp, stream + len);
        Ok(())
    }

    fn write_error(&self, errno: Errno, why: impl std::fmt::Display) -> TiledError {
        TiledError::with_detail("write", &self.path, errno, why.to_string())
    }

    /// Writes data from `from` on at `at`, as much as one call takes; returns the bytes written.
    fn write_part(
        &mut self,
        piece: &PieceFile,
        at: u64,
        data: &Buffer<'_>,
        from: u64,
        len: u64,
    ) -> Result<u64> {
        let whole = usize::try_from(len).unwrap_or(usize::MAX);
        let packed = whole.min(PACK);
        let direct = if whole < LARGE { whole } else { PACK };
        let bytes = match data.dense_slice(from, direct) {
            Some(bytes) => bytes,
            None => {
                if self.scratch.len() < packed {
                    self.scratch.resize(packed, 0);
                }
                data.gather(from, &mut self.scratch[..packed]);
                &self.scratch[..packed]
            }
        };
        piece.write_all_at(bytes, at).context("write", &self.path)?;
        Ok(bytes.len() as u64)
    }

    /// Overwrites bytes of the piece at `at` with the data from `from` on.
    ///
    /// # Errors
    /// Those of the disk.
    pub fn rewrite_bytes(&mut self, at: u64, data: &Buffer<'_>, from: u64, len: u64) -> Result<()> {
        let Some(files) = &self.files else {
            return Err(TiledError::new("write", &self.path, Errno::IO));
        };
        let piece = files.piece.clone();
        self.dirty = true;
        let mut done = 0;
        while done < len {
            done += self.write_part(&piece, at + done, data, from + done, len - done)?;
        }
        Ok(())
    }

    /// Returns the tiles that rank 0 must publish; empty where it has them. See [`decode_sealed`].
    ///
    /// # Errors
    /// Those of the disk.
    pub fn seal_tiles(&mut self, durable: bool) -> Result<Vec<u8>> {
        if let Some(files) = &self.files
            && durable
            && self.dirty
        {
            // The bytes first: a tile on the disk must not name bytes that a power cut could take.
            files.piece.sync_bytes().context("sync", &self.path)?;
            files.journal.flush().context("sync the journal of", &self.path)?;
            self.dirty = false;
        }
        // The publication covers the changes so far, and not those of later writes.
        self.sealed = self.changes;
        if self.changes == self.published {
            return Ok(Vec::new());
        }
        let mut out = self.changes.to_le_bytes().to_vec();
        out.extend(self.tiles.encode());
        Ok(out)
    }

    /// Records that the sealed tiles have been published.
    pub fn mark_published(&mut self) {
        self.published = self.sealed;
    }
}

/// Decodes the bytes that a rank sealed: changes of its journal, and tiles. `None` for empty bytes.
///
/// # Errors
/// Bytes that [`OwnPiece::seal_tiles`] did not make, as a sentence.
pub fn decode_sealed(bytes: &[u8]) -> std::result::Result<Option<(u64, PieceTiles)>, String> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let (changes, tiles) = bytes.split_first_chunk::<8>().ok_or("it is too short")?;
    let tiles = PieceTiles::decode(tiles).map_err(|e| e.to_string())?;
    Ok(Some((u64::from_le_bytes(*changes), tiles)))
}
