//! The engine of tiled files: how one rank of one open writes and reads a container, or a file of
//! a volume. A *backing* has what differs between the two: where the files of a piece come from,
//! how a rank finds its peers, and how tiles and sizes are published.

use crate::engine::Engine;
use crate::error::{Result, TiledError};
use crate::file_state::FileState;
use crate::hints::Hints;
use crate::marker::PieceName;
use crate::memory::Buffer;
use crate::piece::{OwnPiece, OwnPieceState, PieceStore};
use crate::plan::{self, PlannedPart};
use crate::reader::StreamReader;
use crate::token::OpenToken;
use rustix::io::Errno;
use std::path::{Path, PathBuf};
use tatami_layout::View;

/// A file as one rank has it open, below the engine. The store of a piece records changes in the
/// rank table, so a handle for reading alone has none. Errors are those of the disk, the mount, the
/// nodes and the shard.
pub trait TiledBacking: PieceStore + Send {
    /// What a handle knows of the file.
    type State: FileState;

    /// The first offset that a file cannot have a byte at.
    const OFFSET_END: u64;

    /// The cached state of the file.
    fn state(&mut self) -> &mut Self::State;

    /// Reports whether this rank has the file open for writing.
    fn is_writer(&self) -> bool;

    /// Reports whether tiles may be stored under `view`. Under another one the blocks are written
    /// one by one under the byte view.
    fn may_store_view(&mut self, _view: &View) -> bool {
        true
    }

    /// Prepares an append under `view`. Returns true where `piece` was full and is a new one now,
    /// without a byte; then the write must be planned again.
    fn prepare_append(&mut self, piece: &mut OwnPiece, view: &View) -> Result<bool>;

    /// Reports whether a write to the range `from .. to` of the file may continue the run with
    /// the stamp `run`: no other rank has written there since. In doubt one has. This is called
    /// before each stamp, without a run where there is none.
    fn may_continue_run(&mut self, range: (u64, u64), run: Option<u64>) -> Result<bool>;

    /// Shows the other ranks the range of the file that this rank writes under the byte view.
    fn record_hull(&self, hull: (u64, u64)) -> Result<()>;

    /// Returns a stamp that is later than all that this rank may know of.
    fn next_stamp(&self) -> u64;

    /// Makes later stamps later than `stamp`, with which a view epoch begins.
    fn begin_epoch(&mut self, stamp: u64);

    /// Truncates the file, or extends it by zeros. `own` is this rank's piece.
    fn set_size(&mut self, size: u64, own: Option<OwnPieceState<'_>>) -> Result<()>;

    /// Seals the piece, as [`Engine::seal_piece`].
    fn seal_piece(&mut self, piece: &mut OwnPiece, durable: bool) -> Result<Vec<u8>> {
        piece.seal_tiles(durable)
    }

    /// Publishes the sealed pieces of all ranks, as [`Engine::publish_pieces`].
    fn publish_pieces(&mut self, sealed: &[&[u8]], durable: bool, closing: bool) -> Result<()>;
}

/// A tiled file as one rank has it open.
pub struct TiledEngine<B> {
    path: PathBuf,
    backing: B,
    reader: StreamReader,
    /// The piece of this rank; `None` for a reader.
    piece: Option<OwnPiece>,
    /// The stamp of the view epoch.
    epoch: u64,
    atomic: bool,
    /// The stamp that a continued run under the byte view may have.
    run: Option<u64>,
    /// File range written under the byte view.
    hull: Option<(u64, u64)>,
}

fn own_state(piece: &Option<OwnPiece>) -> Option<OwnPieceState<'_>> {
    piece.as_ref().and_then(OwnPiece::own_state)
}

impl<B: TiledBacking> TiledEngine<B> {
    /// The engine of rank `rank` over its backing, with nothing written yet.
    pub fn new(
        backing: B,
        path: &Path,
        hints: &Hints,
        rank: u32,
        token: &OpenToken,
    ) -> TiledEngine<B> {
        let name = PieceName { open: token.open, rank };
        TiledEngine {
            path: path.to_path_buf(),
            reader: StreamReader::new(hints),
            piece: backing.is_writer().then(|| OwnPiece::new(name, path.to_path_buf())),
            epoch: token.stamp,
            atomic: false,
            run: None,
            hull: None,
            backing,
        }
    }

    fn refresh_state(&mut self, to: u64) -> Result<()> {
        self.backing.state().refresh_state(own_state(&self.piece), to)
    }

    /// Returns the piece of a writer, with its backing.
    fn require_piece(&mut self) -> Result<(&mut OwnPiece, &mut B)> {
        match &mut self.piece {
            Some(piece) => Ok((piece, &mut self.backing)),
            None => Err(TiledError::new("write", &self.path, Errno::BADF)),
        }
    }

    /// Returns the stamp of new bytes.
    fn write_stamp(&mut self, view: &View, stream: u64, len: u64, by_epoch: bool) -> Result<u64> {
        // Under a view, all ranks of an epoch write with its stamp; the rank decides between equal
        // stamps.
        if by_epoch {
            return Ok(self.epoch);
        }
        let range = (view.offset_of(stream), view.offset_of(stream + len - 1).saturating_add(1));
        // A run reuses its stamp. In atomic mode another rank may have written the bytes in
        // between, so each write needs a later stamp.
        let run = self.run.filter(|_| !self.atomic);
        // A continued run keeps the stamp of its first write. That stamp must not lose against a
        // write that was made before this one and that this rank may know of, for example by a
        // message. A write that this rank cannot know of is concurrent, and MPI does not order the
        // two.
        let continues = self.backing.may_continue_run(range, run)?;
        let stamp = match run {
            Some(run) if continues => run,
            _ => self.backing.next_stamp(),
        };
        self.run = Some(stamp);
        let hull = self.hull.map_or(range, |(lo, hi)| (lo.min(range.0), hi.max(range.1)));
        // The hull is stored before the tiles: a rank that checks for overlap must find the hull
        // first.
        if self.hull != Some(hull) {
            self.backing.record_hull(hull)?;
            self.hull = Some(hull);
        }
        Ok(stamp)
    }

    /// Plans which parts of a write overwrite current bytes of the file in this rank's piece.
    fn plan_write(
        &mut self,
        view: &View,
        stream: u64,
        len: u64,
        by_epoch: bool,
    ) -> Result<Vec<PlannedPart>> {
        let epoch = by_epoch.then_some(self.epoch);
        let (piece, _) = self.require_piece()?;
        if !piece.may_contain(view, stream, len) {
            return Ok(vec![(stream, len, None)]);
        }
        if let Some(parts) = plan::plan_by_piece(piece, view, stream, len, epoch) {
            return Ok(parts);
        }
        let name = piece.name();
        self.refresh_state(0)?;
        let state = self.backing.state();
        let is_own = |piece| state.is_own_piece(piece, name);
        Ok(plan::plan_by_index(state.index(), view, stream, len, is_own))
    }

    /// Writes the data from `skip` on as stream bytes of a view.
    fn write_view(
        &mut self,
        view: &View,
        stream: u64,
        len: u64,
        data: &Buffer<'_>,
        skip: u64,
        by_epoch: bool,
    ) -> Result<()> {
        let end = stream + len;
        for (at, len, place) in self.plan_write(view, stream, len, by_epoch)? {
            let from = skip + (at - stream);
            let (piece, backing) = self.require_piece()?;
            if let Some(place) = place {
                piece.rewrite_bytes(place, data, from, len)?;
                continue;
            }
            if backing.prepare_append(piece, view)? {
                // Later bytes need a stamp not below that of the old piece; of equal stamps the
                // later piece wins.
                self.run = None;
                // The plan was made for the old piece, so plan the rest again.
                return self.write_view(view, at, end - at, data, from, by_epoch);
            }
            let stamp = self.write_stamp(view, at, len, by_epoch)?;
            let (piece, backing) = self.require_piece()?;
            piece.append(backing, view, stamp, at, len, data, from)?;
        }
        Ok(())
    }
}

impl<B: TiledBacking> Engine for TiledEngine<B> {
    fn write(&mut self, view: &View, stream: u64, data: &Buffer<'_>) -> Result<()> {
        // Under a view of its own the program orders writes of several ranks by epochs, so no
        // other rank's journal matters.
        let (by_epoch, epoch) = (!view.is_default() && !self.atomic, self.epoch);
        let (piece, backing) = self.require_piece()?;
        if by_epoch && piece.continue_write(backing, view, epoch, stream, data)? {
            return Ok(());
        }
        if view.offset_of(stream + data.len() - 1) >= B::OFFSET_END {
            return Err(TiledError::new("write", &self.path, Errno::FBIG));
        }
        if view.is_default() || backing.may_store_view(view) {
            return self.write_view(view, stream, data.len(), data, 0, by_epoch);
        }
        let (bytes, mut done) = (View::all_bytes(), 0);
        for (offset, len) in view.extents(stream, data.len()) {
            self.write_view(&bytes, offset, len, data, done, by_epoch)?;
            done += len;
        }
        Ok(())
    }

    fn read(&mut self, view: &View, stream: u64, into: &mut Buffer<'_>) -> Result<u64> {
        if into.is_empty() {
            return Ok(0);
        }
        let end = view.offset_of(stream.saturating_add(into.len() - 1)).saturating_add(1);
        self.refresh_state(end)?;
        self.reader.read(self.backing.state(), view, stream, into)
    }

    fn file_size(&mut self) -> Result<u64> {
        self.backing.state().current_size(own_state(&self.piece))
    }

    fn set_size(&mut self, size: u64) -> Result<()> {
        self.backing.set_size(size, own_state(&self.piece))
    }

    fn preallocate(&mut self, size: u64) -> Result<()> {
        match self.file_size()? < size {
            true => self.set_size(size),
            false => Ok(()),
        }
    }

    fn next_stamp(&self) -> u64 {
        self.backing.next_stamp()
    }

    fn begin_epoch(&mut self, stamp: u64) -> Result<()> {
        self.epoch = stamp;
        // A run must not cross an epoch: bytes of the new epoch need a later stamp than all of the
        // old one.
        self.run = None;
        self.backing.begin_epoch(stamp);
        Ok(())
    }

    fn set_atomic(&mut self, on: bool) {
        self.atomic = on;
        self.run = None;
    }

    fn seal_piece(&mut self, durable: bool) -> Result<Vec<u8>> {
        match &mut self.piece {
            Some(piece) => self.backing.seal_piece(piece, durable),
            None => Ok(Vec::new()),
        }
    }

    fn publish_pieces(&mut self, sealed: &[&[u8]], durable: bool, closing: bool) -> Result<()> {
        self.backing.publish_pieces(sealed, durable, closing)
    }

    fn mark_published(&mut self) {
        if let Some(piece) = &mut self.piece {
            piece.mark_published();
        }
    }
}
