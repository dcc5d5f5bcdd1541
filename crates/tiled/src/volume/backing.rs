//! Files of a volume below the engine: the backing of one rank of one open.

use super::begin::{BEGUN, BegunVolumeOpen};
use super::joined::{is_scattered, join_tiles};
use super::neighbors::Neighbors;
use super::open_file::OpenVolumeFile;
use super::rank_table::OwnRankTable;
use super::session::{VolumeSession, WriteHold};
use super::state::{OwnRankPosition, VolumeState};
use crate::error::{DaemonErrorContext, ErrorContext, Result, TiledError};
use crate::file_state::FileState;
use crate::flags::Flags;
use crate::journal;
use crate::machine;
use crate::marker::PieceName;
use crate::piece::{OwnPiece, OwnPieceState, PieceStore};
use crate::piece_file::{AwayFile, PieceFile};
use crate::tiled_engine::TiledBacking;
use crate::token::OpenToken;
use parking_lot::Mutex;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use tatami_client::JobMember;
use tatami_layout::{PieceTiles, View};
use tatami_wire::tiles::{PIECE_UPDATES_MAX, PieceGrowth, PieceUpdate};
use tatami_wire::{Cred, Ino, Piece};

/// Bytes of encoded tiles after which a rank takes another piece: half of the shard's limit for
/// one.
const TILES_FULL: usize = 256 * 1024;
/// Bytes of a journal after which a rank takes another piece. Views are short here, so a journal
/// ends far below the limit of its readers.
const JOURNAL_FULL: u64 = tatami_layout::journal::BYTES_MAX as u64 / 2;
/// Tiles that surely fit into that limit. After as many more tiles the encoding is measured again.
const TILES_STEP: usize = 2048;
/// A view whose encoding is longer, in bytes, is written block by block under the byte view.
const VIEW_MAX: usize = 64 * 1024;
/// Bytes of tiles that are published with one request.
const PUBLISH_BYTES: usize = 256 * 1024;

/// A file of a volume as one rank has it open.
pub struct VolumeBacking {
    volume: Arc<OpenVolumeFile>,
    state: VolumeState,
    writer: Option<VolumeWriter>,
    /// The stamp of the view epoch, which the clock of the node must be past.
    epoch: u64,
    delete: bool,
    /// All ranks run on one node.
    together: bool,
    ranks: u32,
    nodes: u32,
    first: u32,
    /// Rank 0: the last sealed piece of each rank.
    sealed: BTreeMap<u32, SealedPiece>,
}

/// The sealed piece of a rank.
struct SealedPiece {
    piece: u32,
    blocks: u64,
    changes: u64,
    tiles: Vec<u8>,
    published: bool,
    /// Whether the rank sealed it in the last round.
    current: bool,
}

struct VolumeWriter {
    /// The file is open for writing as long as it lives.
    _held: WriteHold,
    /// The rank table of this node, from the rank's first write on. A rank that writes nothing
    /// sends no request to its node.
    rank_table: OnceLock<Arc<OwnRankTable>>,
    /// The position of the rank table, and of this rank in it.
    position: OwnRankPosition,
    /// The other ranks of this node, one of which sends the node the request for all.
    neighbors: Option<Neighbors>,
    /// The files of a piece that has none yet, which the node sent together with the rank table.
    made: Mutex<Option<PieceFiles>>,
    /// The number of the open.
    open: u64,
    /// Number of tiles at which the length of their encoding is measured next.
    check_at: usize,
    /// The last view, and whether its encoding is too long for a piece.
    last_view: Option<(View, bool)>,
}

/// The bytes and the journal of the piece with that number.
struct PieceFiles {
    number: u32,
    bytes: File,
    journal: File,
}

impl PieceStore for VolumeBacking {
    fn create_files(&self, name: PieceName) -> Result<(PieceFile, journal::JournalWriter)> {
        let (path, number) = (&self.volume.path, self.state.own_piece()?);
        let node = self.state.own_piece_node()?;
        if node != self.volume.session.node {
            let away = |piece| self.volume.open_object(node, piece).map(AwayFile::new);
            let (bytes, journal) = (Piece::of_bytes(number), Piece::of_journal(number));
            let (bytes, journal) = (away(bytes)?, away(journal)?);
            let journal = journal::JournalWriter::new_away(journal, name.open, name.rank);
            let journal = journal.context("create a journal of", path)?;
            return Ok((PieceFile::Away(bytes), journal));
        }
        let made = self.require_writer()?.made.lock().take();
        let [bytes, journal] = match made.filter(|made| made.number == number) {
            Some(made) => [made.bytes, made.journal],
            None => {
                self.volume.create_objects([Piece::of_bytes(number), Piece::of_journal(number)])?
            }
        };
        let journal = journal::JournalWriter::new(journal, name.open, name.rank, true);
        Ok((PieceFile::Local(bytes), journal.context("create a journal of", path)?))
    }

    fn record_changes(&self, _rank: u32, changes: u64) -> Result<()> {
        self.require_rank_table()?.set_changes(changes).context("write", &self.volume.path)
    }
}

impl VolumeBacking {
    /// Opens a file that rank 0 has begun to open. `inboxes` are the inbox numbers of all ranks. It
    /// is empty where no rank gets descriptors from another one.
    ///
    /// # Errors
    /// As for open(2); `ESTALE` where the path is another file by now, or the open has ended.
    pub fn open(
        path: &Path,
        flags: Flags,
        rank: u32,
        token: &OpenToken,
        inboxes: &[u64],
    ) -> Result<VolumeBacking> {
        let (volume, held) = match BEGUN.take_open(token.open).filter(|_| rank == 0) {
            Some(BegunVolumeOpen { volume, held }) => (volume, held),
            None => VolumeBacking::join_open(path, flags, token)?,
        };
        let volume = Arc::new(volume);
        let mut state = VolumeState::new(volume.clone(), token, held.as_ref().map(|_| rank));
        let writer = match held {
            None => None,
            Some(held) => {
                let position = state.locate_ranks(token)?;
                let local = state.ranks_of(position.roll);
                Some(VolumeWriter {
                    _held: held,
                    rank_table: OnceLock::new(),
                    position,
                    neighbors: Neighbors::meet(token.open, rank, local, inboxes),
                    made: Mutex::new(None),
                    open: token.open,
                    check_at: TILES_STEP,
                    last_view: None,
                })
            }
        };
        Ok(VolumeBacking {
            volume,
            state,
            writer,
            epoch: token.stamp,
            delete: flags.contains(Flags::DELETE_ON_CLOSE),
            together: token.nodes <= 1,
            ranks: token.ranks,
            nodes: token.nodes,
            first: token.first,
            sealed: BTreeMap::new(),
        })
    }

    /// Opens the file as a rank other than the one that began the open, by the facts in the token.
    /// Rank 0 has checked that this user may open it. Sends no request.
    fn join_open(
        path: &Path,
        flags: Flags,
        token: &OpenToken,
    ) -> Result<(OpenVolumeFile, Option<WriteHold>)> {
        let why = "the token is none of a volume's file";
        let other = || TiledError::with_detail("open", path, Errno::INVAL, why);
        let opened = token.volume.as_ref().ok_or_else(other)?;
        let (session, ino) = (VolumeSession::for_path(path, opened.linked)?, Ino(token.id));
        let (mut cap, mut held) = (opened.cap, None);
        if flags.can_write() {
            let joined = WriteHold::join_client(&session, ino, opened.client, cap);
            let (kept, by) = joined.daemon_context("open", path)?;
            (cap, held) = (by, Some(kept));
        }
        Ok((OpenVolumeFile::without_lookup(session, ino, path, cap), held))
    }

    /// Returns this rank's member of the shared state of the open.
    pub fn job_member(&self, token: &OpenToken, rank: u32) -> JobMember {
        let OpenVolumeFile { session, ino, .. } = &*self.volume;
        JobMember::new(session.client.clone(), *ino, token.open, rank)
    }

    fn require_writer(&self) -> Result<&VolumeWriter> {
        let path = &self.volume.path;
        self.writer.as_ref().ok_or_else(|| TiledError::new("write", path, Errno::BADF))
    }

    /// Returns the rank table of this node, which a rank has from its first write on.
    fn require_rank_table(&self) -> Result<&OwnRankTable> {
        let table = self.require_writer()?.rank_table.get().map(|roll| &**roll);
        table.ok_or_else(|| TiledError::new("write", &self.volume.path, Errno::IO))
    }

    /// Returns the rank table of this node, whose clock is past the epoch; `None` for a reader. The
    /// first call requests it from the node, together with the piece. This rank sends the request,
    /// or another one does so for all ranks of the node.
    fn open_rank_table(&self) -> Result<Option<&OwnRankTable>> {
        let (Some(writer), volume) = (&self.writer, &self.volume) else { return Ok(None) };
        if let Some(roll) = writer.rank_table.get() {
            return Ok(Some(roll));
        }
        let (number, seat) = (self.state.own_piece()?, writer.position);
        if self.state.own_piece_node()? != volume.session.node {
            let [roll] = volume.create_objects([Piece::of_bytes(seat.roll)])?;
            return self.use_rank_table(writer, roll).map(Some);
        }
        let passed = writer.neighbors.as_ref().and_then(|all| all.obtain(volume, self.first, seat));
        let [bytes, journal, roll] = match passed {
            Some(files) => files,
            None => volume.create_objects([
                Piece::of_bytes(number),
                Piece::of_journal(number),
                Piece::of_bytes(seat.roll),
            ])?,
        };
        // Store the files before the rank table becomes visible: a write that finds the table takes
        // them without another request.
        *writer.made.lock() = Some(PieceFiles { number, bytes, journal });
        self.use_rank_table(writer, roll).map(Some)
    }

    /// Uses the object in `file` as the rank table of this node.
    fn use_rank_table<'a>(&self, writer: &'a VolumeWriter, file: File) -> Result<&'a OwnRankTable> {
        let (seat, volume) = (writer.position, &self.volume);
        let roll = OwnRankTable::new(file, writer.open, seat.slot, seat.slots);
        let roll = Arc::new(roll.context("open", &volume.path)?);
        // Advance the clock before the first stamp is drawn: a stamp before the epoch would lose
        // against older bytes.
        roll.clock().observe_stamp(self.epoch);
        let _ = volume.roll.set(roll.clone());
        Ok(writer.rank_table.get_or_init(|| roll))
    }

    /// Takes a new piece when this one has too many tiles for the shard, or too long a journal for
    /// later readers. Publishes the tiles of the old piece, which is an older part of the file from
    /// now on. Returns whether it took one.
    fn replace_full_piece(&mut self, piece: &mut OwnPiece, view: &View) -> Result<bool> {
        let (old, volume) = (self.state.own_piece()?, self.volume.clone());
        let Some(writer) = &mut self.writer else { return Ok(false) };
        let tiles = piece.tiles();
        let is_new = !tiles.views().contains(view);
        let is_long = piece.journal_len() >= JOURNAL_FULL;
        if tiles.tiles().is_empty()
            || (!is_new && !is_long && tiles.tiles().len() < writer.check_at)
        {
            return Ok(false);
        }
        let encoded = tiles.encode();
        let mut more = Vec::new();
        if is_new {
            view.encode(&mut more);
        }
        if encoded.len() + more.len() < TILES_FULL && !is_long {
            writer.check_at = tiles.tiles().len() + TILES_STEP;
            return Ok(false);
        }
        let (ino, path, session) = (volume.ino, &volume.path, &volume.session);
        let (blocks, node) = (piece.count_blocks()?, self.state.own_piece_node()?);
        // The new piece first: if the shard refuses it, the old one stays in use.
        let made = session.client.add_pieces(&Cred::ROOT, ino, vec![(node, 1)]);
        let (number, _) = made.daemon_context("write", path)?;
        let part = PieceUpdate { piece: old, tiles: encoded.into(), blocks, close: true };
        publish_part(session, ino, path, vec![part])?;
        *piece = OwnPiece::new(piece.name(), path.clone());
        writer.check_at = TILES_STEP;
        self.state.replace_own_piece(number, node);
        // Other ranks follow the rank table, so they see the new piece only after the old one was
        // published.
        self.require_rank_table()?.set_piece(number).context("write", path)?;
        Ok(true)
    }

    /// Returns the parts of the pieces of all ranks that the shard must get.
    fn parts_to_publish(&mut self, closing: bool) -> Vec<PieceUpdate> {
        let part = |known: &SealedPiece| PieceUpdate {
            piece: known.piece,
            tiles: known.tiles.clone().into(),
            blocks: known.blocks,
            close: closing,
        };
        if !closing {
            return self.sealed.values().filter(|known| !known.published).map(part).collect();
        }
        let empty = |piece: u32, rank: u32| PieceUpdate {
            piece,
            tiles: PieceTiles::new(rank).encode().into(),
            blocks: 0,
            close: true,
        };
        let mut parts = Vec::new();
        // A piece that a rank did not seal stays open, and its journal is read when this open has
        // ended.
        self.sealed.retain(|_, known| known.current);
        if self.sealed.len() == self.ranks as usize {
            self.join_sealed();
        }
        parts.extend(self.sealed.values().map(part));
        let rolls = self.first + self.ranks..self.first + self.ranks + self.nodes;
        parts.extend(rolls.map(|piece| empty(piece, 0)));
        parts
    }

    /// Joins writes of ranks of several nodes to runs, where that changes no byte.
    fn join_sealed(&mut self) {
        let decoded = |known: &SealedPiece| {
            let tiles = PieceTiles::decode(&known.tiles).ok()?;
            Some((known.piece, tiles))
        };
        let all: Option<Vec<_>> = match self.together {
            true => None,
            false => self.sealed.values().map(decoded).collect(),
        };
        let Some(mut pieces) = all.filter(|all| all.iter().any(|(_, t)| is_scattered(t))) else {
            return;
        };
        // Another living writer, or one that has closed since, may have written in between.
        let Ok(Some((others, cuts))) = self.state.closed_pieces() else { return };
        join_tiles(&mut pieces, &others, &cuts);
        for (known, (_, tiles)) in self.sealed.values_mut().zip(&pieces) {
            known.tiles = tiles.encode();
        }
    }

    fn take_sealed(&mut self, sealed: &[&[u8]]) -> Result<()> {
        self.sealed.values_mut().for_each(|known| known.current = false);
        for (rank, bytes) in (0..).zip(sealed).filter(|(_, bytes)| !bytes.is_empty()) {
            let mut reported = SealedPiece::decode(bytes, rank).map_err(|why| {
                TiledError::with_detail("publish", &self.volume.path, Errno::INVAL, why)
            })?;
            if !reported.tiles.is_empty() {
                self.sealed.insert(rank, reported);
                continue;
            }
            match self.sealed.get_mut(&rank) {
                Some(known) => {
                    known.current =
                        (known.piece, known.changes) == (reported.piece, reported.changes);
                }
                None if reported.changes == 0 => {
                    // The piece has no tiles to publish until the file is closed.
                    reported.tiles = PieceTiles::new(rank).encode();
                    reported.published = true;
                    self.sealed.insert(rank, reported);
                }
                None => {}
            }
        }
        Ok(())
    }
}

fn publish_part(
    session: &VolumeSession,
    ino: Ino,
    path: &Path,
    parts: Vec<PieceUpdate>,
) -> Result<()> {
    let done = session.client.publish_tiles(&Cred::ROOT, ino, parts, Vec::new(), None);
    done.daemon_context("publish", path).map(drop)
}

impl SealedPiece {
    /// Decodes the bytes that [`VolumeBacking::seal_piece`] made: piece, storage, changes, and the
    /// tiles where they are new.
    fn decode(bytes: &[u8], rank: u32) -> std::result::Result<SealedPiece, String> {
        let (head, tiles) = bytes.split_first_chunk::<24>().ok_or("it is too short")?;
        let word = |at: usize| u64::from_le_bytes(head.as_chunks::<8>().0[at]);
        let piece = u32::try_from(word(0)).map_err(|_| "there is no such piece")?;
        if !tiles.is_empty() {
            let tiles = PieceTiles::decode(tiles).map_err(|e| e.to_string())?;
            // The bytes may come from another site.
            if tiles.rank() != rank {
                return Err("a rank has sealed the piece of another one".to_owned());
            }
        }
        let (blocks, changes, tiles) = (word(1), word(2), tiles.to_vec());
        Ok(SealedPiece { piece, blocks, changes, tiles, published: false, current: true })
    }
}

impl VolumeWriter {
    /// Whether the view is too long to be stored with the tiles of one piece.
    fn is_wide(&mut self, view: &View) -> bool {
        if let Some((last, wide)) = &self.last_view
            && last == view
        {
            return *wide;
        }
        let mut bytes = Vec::new();
        view.encode(&mut bytes);
        let wide = bytes.len() > VIEW_MAX;
        self.last_view = Some((view.clone(), wide));
        wide
    }
}

impl TiledBacking for VolumeBacking {
    type State = VolumeState;

    const OFFSET_END: u64 = tatami_wire::FILE_SIZE_MAX;

    fn state(&mut self) -> &mut VolumeState {
        &mut self.state
    }

    fn is_writer(&self) -> bool {
        self.writer.is_some()
    }

    /// A long view would fill the shard's record of the piece.
    fn may_store_view(&mut self, view: &View) -> bool {
        self.writer.as_mut().is_none_or(|writer| !writer.is_wide(view))
    }

    fn prepare_append(&mut self, piece: &mut OwnPiece, view: &View) -> Result<bool> {
        if self.replace_full_piece(piece, view)? {
            return Ok(true);
        }
        self.open_rank_table().map(|_| false)
    }

    fn may_continue_run(&mut self, range: (u64, u64), run: Option<u64>) -> Result<bool> {
        // The hulls of ranks on other nodes would cost a request to each of them. So a run
        // continues only where all ranks are on this node, and where no hull meets the range.
        if run.is_none() || !self.together || self.state.has_other_writers() {
            return Ok(false);
        }
        let met = self.require_rank_table()?.others_wrote(range.0, range.1);
        met.context("write", &self.volume.path).map(|met| !met)
    }

    fn record_hull(&self, hull: (u64, u64)) -> Result<()> {
        self.require_rank_table()?.set_hull(hull).context("write", &self.volume.path)
    }

    fn next_stamp(&self) -> u64 {
        // The stamp must be later than all writes of the node's ranks, so it comes from the node's
        // clock, even for a rank that has not written.
        match self.open_rank_table() {
            Ok(Some(roll)) => roll.clock().next_stamp(),
            Ok(None) | Err(_) => machine::now().max(self.epoch + 1),
        }
    }

    fn begin_epoch(&mut self, stamp: u64) {
        self.epoch = stamp;
        if let Some(roll) = self.writer.as_ref().and_then(|writer| writer.rank_table.get()) {
            roll.clock().observe_stamp(stamp);
        }
        self.state.invalidate_cache();
    }

    fn set_size(&mut self, size: u64, own: Option<OwnPieceState<'_>>) -> Result<()> {
        self.state.invalidate_cache();
        if self.state.current_size(own)? == size {
            return Ok(());
        }
        // The mount truncates the base, and the shard the published tiles; there are no others.
        let path = &self.volume.path;
        self.volume.reopen_mounted(true)?.set_len(size).context("truncate", path)?;
        self.state.invalidate_cache();
        self.state.refresh_state(own, 0)?;
        let cut = self.state.last_cut();
        // New writes need stamps after the cut, or the cut would remove them.
        if let Some(roll) = self.open_rank_table()? {
            roll.clock().observe_stamp(cut);
        }
        Ok(())
    }

    fn seal_piece(&mut self, piece: &mut OwnPiece, durable: bool) -> Result<Vec<u8>> {
        let (number, path) = (self.state.own_piece()?, &self.volume.path);
        if durable && piece.is_dirty() {
            let node = self.state.own_piece_node()?;
            // This also brings the names of the objects to the disk, which the daemon has created.
            for object in [Piece::of_bytes(number), Piece::of_journal(number)] {
                let object = self.volume.open_object(node, object)?;
                object.sync(false).daemon_context("sync", path)?;
            }
        }
        let sealed = piece.seal_tiles(durable)?;
        // A piece without new tiles is sealed, too: rank 0 must know that it has all of them.
        let mut out = u64::from(number).to_le_bytes().to_vec();
        if sealed.is_empty() {
            out.extend(0u64.to_le_bytes());
            out.extend(piece.changes().to_le_bytes());
            return Ok(out);
        }
        out.extend(piece.count_blocks()?.to_le_bytes());
        out.extend(sealed);
        Ok(out)
    }

    fn publish_pieces(&mut self, sealed: &[&[u8]], durable: bool, closing: bool) -> Result<()> {
        if closing && self.delete {
            // The pieces are removed with the file.
            self.volume.remove_name()?;
        }
        if self.writer.is_none() {
            return Ok(());
        }
        self.take_sealed(sealed)?;
        let mut parts = self.parts_to_publish(closing);
        // The shard takes parts in the order of piece numbers only.
        parts.sort_by_key(|part| part.piece);
        let (session, ino, path) = (&self.volume.session, self.volume.ino, &self.volume.path);
        // The parts are kept for a second attempt without the pieces that were closed meanwhile.
        let mut result = publish_all(session, ino, path, parts.clone());
        if closing && result.as_ref().is_err_and(|e| e.errno == Errno::STALE) {
            // Another client has closed some of them: by a truncation to 0, or by the end of the
            // file.
            result = match session.client.fetch_raw_tiles(ino) {
                Ok(page) => {
                    let is_open = |part: &PieceUpdate| {
                        let of = page.pieces.iter().find(|info| info.piece == part.piece);
                        of.is_some_and(|info| info.growth != PieceGrowth::Closed)
                    };
                    parts.retain(is_open);
                    publish_all(session, ino, path, parts)
                }
                Err(tatami_wire::Errno::ENOENT | tatami_wire::Errno::ESTALE) => Ok(()),
                Err(errno) => Err(errno).daemon_context("publish", path),
            };
        }
        match result {
            // The file was removed, so there is nothing to publish.
            Err(error) if closing && error.errno == Errno::NOENT => return Ok(()),
            other => other?,
        }
        // The shard has the tiles now; the sync brings them to its disk.
        if durable {
            session.client.sync().daemon_context("sync", path)?;
        }
        // Mark only after the shard has replied: after an error the next call publishes the parts
        // again.
        self.sealed.values_mut().for_each(|known| known.published = true);
        Ok(())
    }
}

/// Publishes parts, as many in one request as fit.
fn publish_all(
    session: &VolumeSession,
    ino: Ino,
    path: &Path,
    parts: Vec<PieceUpdate>,
) -> Result<()> {
    let (mut step, mut bytes) = (Vec::new(), 0);
    for part in parts {
        if bytes + part.tiles.len() > PUBLISH_BYTES || step.len() >= PIECE_UPDATES_MAX {
            if !step.is_empty() {
                publish_part(session, ino, path, std::mem::take(&mut step))?;
            }
            bytes = 0;
        }
        bytes += part.tiles.len();
        step.push(part);
    }
    match step.is_empty() {
        true => Ok(()),
        false => publish_part(session, ino, path, step),
    }
}
