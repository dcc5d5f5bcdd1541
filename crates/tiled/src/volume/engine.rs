//! The engine of a volume's files: the operations of one rank of one open.

use super::begin::{Begun, begun};
use super::joined::{is_scattered, join};
use super::neighbors::Neighbors;
use super::roll::OwnRoll;
use super::session::{Held, Session};
use super::world::{Own, OwnSeat, World};
use super::{Told, Volume};
use crate::engine::Engine;
use crate::error::{Context, Error, Result};
use crate::flags::Flags;
use crate::hints::Hints;
use crate::journal;
use crate::machine;
use crate::marker::Name;
use crate::memory::Buffer;
use crate::piece::{Home, OwnPiece};
use crate::plan::{self, Planned};
use crate::reader::{Reader, Source};
use crate::token::Token;
use parking_lot::Mutex;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use tatami_client::JobMember;
use tatami_layout::{PieceTiles, View};
use tatami_wire::tiles::{Growth, PARTS_MAX, Part};
use tatami_wire::{Cred, Ino, Piece};

/// Bytes of encoded tiles after which a rank takes another piece: half of the shard's limit for
/// one.
const TILES_FULL: usize = 256 * 1024;
/// Bytes of a journal after which a rank takes another piece. Views are short here, so a journal
/// ends far below the limit of its readers.
const JOURNAL_FULL: u64 = tatami_layout::journal::BYTES_MAX as u64 / 2;
/// Tiles that surely fit into that; after as many more the encoding is measured again.
const TILES_STEP: usize = 2048;
/// A view whose encoding is longer, in bytes, is written block by block under the byte view.
const VIEW_MAX: usize = 64 * 1024;
/// Bytes of tiles that are published with one request.
const PUBLISH_BYTES: usize = 256 * 1024;

/// A file of a volume as one rank has it open.
pub struct Native {
    path: PathBuf,
    volume: Arc<Volume>,
    world: World,
    reader: Reader,
    writer: Option<Writer>,
    /// The stamp of the view epoch.
    epoch: u64,
    atomic: bool,
    delete: bool,
    /// All ranks run on one node.
    together: bool,
    ranks: u32,
    nodes: u32,
    first: u32,
    /// Rank 0: the last sealed piece of each rank.
    known: BTreeMap<u32, Known>,
}

/// The sealed piece of a rank.
struct Known {
    piece: u32,
    blocks: u64,
    changes: u64,
    tiles: Vec<u8>,
    published: bool,
    /// Whether the rank sealed it in the last round.
    current: bool,
}

struct Writer {
    /// The file is open for writing as long as it lives.
    _held: Held,
    number: u32,
    piece: OwnPiece,
    /// The roll of this node, from the rank's first write on: a rank that writes nothing asks its node for nothing.
    roll: OnceLock<Arc<OwnRoll>>,
    /// Where the roll is, and this rank in it.
    seat: OwnSeat,
    /// The other ranks of this node, one of which asks the node for all.
    neighbors: Option<Neighbors>,
    /// The files of a piece that has none yet, which came along with the roll.
    made: Mutex<Option<PieceFiles>>,
    name: Name,
    /// Number of tiles at which the length of their encoding is measured next.
    look_at: usize,
    /// The last view, and whether its encoding is too long for a piece.
    last_view: Option<(View, bool)>,
    /// The stamp that a continued run under the byte view may have.
    run: Option<u64>,
    /// File range written under the byte view.
    hull: Option<(u64, u64)>,
}

/// Bytes and journal of the piece of that number.
struct PieceFiles {
    number: u32,
    bytes: File,
    journal: File,
}

/// Objects of this node as the store of a piece.
struct OnNode<'a> {
    volume: &'a Volume,
    roll: &'a OwnRoll,
    made: &'a Mutex<Option<PieceFiles>>,
    number: u32,
}

impl Home for OnNode<'_> {
    fn make(&self, name: Name) -> Result<(File, journal::Writer)> {
        let path = &self.volume.path;
        let made = self.made.lock().take().filter(|made| made.number == self.number);
        let (bytes, journal) = match made {
            Some(made) => (made.bytes, made.journal),
            None => {
                let [bytes, journal] = self
                    .volume
                    .make([Piece::bytes_of(self.number), Piece::journal_of(self.number)])?;
                (bytes, journal)
            }
        };
        let journal = journal::Writer::new(journal, name.open, name.rank, true);
        Ok((bytes, journal.context("create a journal of", path)?))
    }

    fn changed(&self, _rank: u32, changes: u64) -> Result<()> {
        self.roll.set_changes(changes).context("write", &self.volume.path)
    }
}

impl Native {
    /// Opens a file that rank 0 has begun to open. `inboxes` are the numbers of the inboxes of all ranks; none where no
    /// rank is to get descriptors from another one.
    ///
    /// # Errors
    /// As for open(2); `ESTALE` where the path is another file by now, or the open has ended.
    pub fn open(
        path: &Path,
        flags: Flags,
        hints: &Hints,
        rank: u32,
        token: &Token,
        inboxes: &[u64],
    ) -> Result<Native> {
        let (volume, held) = match begun(token.open).filter(|_| rank == 0) {
            Some(Begun { volume, held }) => (volume, held),
            None => Native::join(path, flags, token)?,
        };
        let volume = Arc::new(volume);
        let mut world = World::new(volume.clone(), token, held.as_ref().map(|_| rank));
        let writer = held.map(|held| Writer::new(held, &volume, &mut world, rank, token, inboxes));
        Ok(Native {
            path: path.to_path_buf(),
            volume,
            world,
            reader: Reader::new(hints),
            writer: writer.transpose()?,
            epoch: token.stamp,
            atomic: false,
            delete: flags.has(Flags::DELETE_ON_CLOSE),
            together: token.nodes <= 1,
            ranks: token.ranks,
            nodes: token.nodes,
            first: token.first,
            known: BTreeMap::new(),
        })
    }

    /// Opens the file as another rank than the one that began the open, by the facts in the token.
    /// Rank 0 has checked that this user may open it. Costs no request.
    fn join(path: &Path, flags: Flags, token: &Token) -> Result<(Volume, Option<Held>)> {
        let opened = token.volume.as_ref().ok_or_else(|| {
            Error::because("open", path, Errno::INVAL, "the token is none of a volume's file")
        })?;
        let (session, ino) = (Session::at(path, opened.linked)?, Ino(token.id));
        let (mut cap, mut held) = (opened.cap, None);
        if flags.writes() {
            let joined = Held::join(&session, ino, opened.client, cap);
            let (kept, by) = joined.told("open", path)?;
            (cap, held) = (by, Some(kept));
        }
        Ok((Volume::unseen(session, ino, path, cap), held))
    }

    /// Returns this rank's member of the shared state of the open.
    pub fn member(&self, token: &Token, rank: u32) -> JobMember {
        let Volume { session, ino, .. } = &*self.volume;
        JobMember::new(session.client.clone(), *ino, token.open, rank)
    }

    fn look(&mut self, to: u64) -> Result<()> {
        // Another handle of this process may have changed the file without a sync of this one.
        if self.is_crowded() {
            self.world.doubt();
        }
        let own = self.writer.as_ref().and_then(Writer::own);
        self.world.look(own, to)
    }

    /// Reports whether another handle of this process has the file open for writing.
    fn is_crowded(&self) -> bool {
        self.volume.session.writers(self.volume.ino) > usize::from(self.writer.is_some())
    }

    fn writer(&mut self) -> Result<&mut Writer> {
        let path = &self.path;
        self.writer.as_mut().ok_or_else(|| Error::new("write", path, Errno::BADF))
    }

    /// Returns the rank table of this node; the first call requests it from the node.
    fn open_roll(&self) -> Result<Option<&OwnRoll>> {
        let Some(writer) = &self.writer else { return Ok(None) };
        writer.open_roll(&self.volume, self.epoch).map(Some)
    }

    /// Returns the stamp of new bytes. Under the byte view the later write wins, so a run continues
    /// only while no other rank can have written there.
    fn write_stamp(&mut self, view: &View, stream: u64, len: u64, by_epoch: bool) -> Result<u64> {
        if by_epoch {
            return Ok(self.epoch);
        }
        let path = self.path.clone();
        let range = (view.offset_of(stream), view.offset_of(stream + len - 1).saturating_add(1));
        let alone = self.together && !self.atomic && !self.is_crowded();
        let writer = self.writer()?;
        let roll = writer.roll.get().ok_or_else(|| Error::new("write", &path, Errno::IO))?;
        let may_go_on = alone && !roll.others_wrote(range.0, range.1).context("write", &path)?;
        let run = writer.run.filter(|_| may_go_on);
        let stamp = run.unwrap_or_else(|| roll.clock().stamp());
        writer.run = Some(stamp);
        // The hull is stored before the tiles: a rank that checks for overlap must find the hull
        // first.
        let hull = writer.hull.map_or(range, |(lo, hi)| (lo.min(range.0), hi.max(range.1)));
        if writer.hull != Some(hull) {
            roll.set_hull(hull).context("write", &path)?;
            writer.hull = Some(hull);
        }
        Ok(stamp)
    }

    /// Plans which parts of a write go over bytes of this rank's piece that are the file's now.
    fn plan(&mut self, view: &View, stream: u64, len: u64, by_epoch: bool) -> Result<Vec<Planned>> {
        let epoch = by_epoch.then_some(self.epoch);
        let piece = &self.writer()?.piece;
        if !piece.may_have(view, stream, len) {
            return Ok(vec![(stream, len, None)]);
        }
        if let Some(parts) = plan::by_piece(piece, view, stream, len, epoch) {
            return Ok(parts);
        }
        self.look(0)?;
        let number = self.writer()?.number;
        let is_own = |piece| World::number(piece) == Some(number);
        Ok(plan::by_index(self.world.index(), view, stream, len, is_own))
    }

    /// Writes the data from `skip` on as stream bytes of a view.
    fn put(
        &mut self,
        view: &View,
        stream: u64,
        len: u64,
        data: &Buffer<'_>,
        skip: u64,
        by_epoch: bool,
    ) -> Result<()> {
        let end = stream + len;
        for (at, len, place) in self.plan(view, stream, len, by_epoch)? {
            let from = skip + (at - stream);
            if let Some(place) = place {
                self.writer()?.piece.rewrite(place, data, from, len)?;
                continue;
            }
            if self.make_room(view)? {
                // The plan was for the old piece.
                return self.put(view, at, end - at, data, from, by_epoch);
            }
            self.open_roll()?;
            let stamp = self.write_stamp(view, at, len, by_epoch)?;
            let volume = self.volume.clone();
            let Writer { piece, roll, made, number, .. } = self.writer()?;
            let roll = roll.get().ok_or_else(|| Error::new("write", &volume.path, Errno::IO))?;
            let home = OnNode { volume: &volume, roll, made, number: *number };
            piece.append(&home, view, stamp, at, len, data, from)?;
        }
        Ok(())
    }

    /// Appends data that continues the last write, if it does.
    fn go_on(&mut self, view: &View, stream: u64, data: &Buffer<'_>) -> Result<bool> {
        let Some(Writer { piece, roll, made, number, .. }) = &mut self.writer else {
            return Ok(false);
        };
        let Some(roll) = roll.get() else { return Ok(false) };
        let home = OnNode { volume: &self.volume, roll, made, number: *number };
        piece.go_on(&home, view, self.epoch, stream, data)
    }

    /// Takes another piece when this one has too many tiles for the shard, or a journal too long
    /// for its later readers. The tiles of the old piece are published; it is an older part of the
    /// file from now on. Returns whether it did so.
    fn make_room(&mut self, view: &View) -> Result<bool> {
        let writer = self.writer()?;
        let tiles = writer.piece.tiles();
        let is_new = !tiles.views().contains(view);
        let is_long = writer.piece.journal_len() >= JOURNAL_FULL;
        if tiles.tiles().is_empty() || (!is_new && !is_long && tiles.tiles().len() < writer.look_at)
        {
            return Ok(false);
        }
        let encoded = tiles.encode();
        let mut more = Vec::new();
        if is_new {
            view.encode(&mut more);
        }
        if encoded.len() + more.len() < TILES_FULL && !is_long {
            writer.look_at = tiles.tiles().len() + TILES_STEP;
            return Ok(false);
        }
        let (ino, path) = (self.volume.ino, self.path.clone());
        let session = self.volume.session.clone();
        let blocks = self.own_blocks()?;
        let writer = self.writer()?;
        // The new piece first: if the shard refuses it, the old one stays in use.
        let made = session.client.add_pieces(&Cred::ROOT, ino, vec![(session.node, 1)]);
        let (number, _) = made.told("write", &path)?;
        let part = Part { piece: writer.number, tiles: encoded.into(), blocks, close: true };
        publish_part(&session, ino, &path, vec![part])?;
        writer.piece = OwnPiece::new(writer.name, path.clone());
        (writer.number, writer.look_at) = (number, TILES_STEP);
        let roll = writer.roll.get().ok_or_else(|| Error::new("write", &path, Errno::IO))?;
        // Other ranks follow the rank table, so they see the new piece only after the old one was
        // published.
        roll.set_piece(number).context("write", &path)?;
        // Later bytes need a stamp not below that of the old piece; of equal stamps the later piece
        // wins.
        writer.run = None;
        self.world.doubt();
        Ok(true)
    }

    fn own_blocks(&self) -> Result<u64> {
        let file = self.writer.as_ref().and_then(|writer| writer.piece.file());
        file.map_or(Ok(0), |file| file.metadata().map(|meta| meta.blocks()))
            .context("stat", &self.path)
    }

    /// Returns the parts that the shard must get of the pieces of all ranks.
    fn parts(&mut self, closing: bool) -> Vec<Part> {
        let part = |known: &Known| Part {
            piece: known.piece,
            tiles: known.tiles.clone().into(),
            blocks: known.blocks,
            close: closing,
        };
        if !closing {
            return self.known.values().filter(|known| !known.published).map(part).collect();
        }
        let empty = |piece: u32, rank: u32| Part {
            piece,
            tiles: PieceTiles::new(rank).encode().into(),
            blocks: 0,
            close: true,
        };
        let mut parts = Vec::new();
        // A piece that a rank did not seal stays open, and its journal is read when this open has
        // ended.
        self.known.retain(|_, known| known.current);
        if self.known.len() == self.ranks as usize {
            self.join_known();
        }
        parts.extend(self.known.values().map(part));
        let rolls = self.first + self.ranks..self.first + self.ranks + self.nodes;
        parts.extend(rolls.map(|piece| empty(piece, 0)));
        parts
    }

    /// Joins writes of ranks of several nodes to runs, where that changes no byte.
    fn join_known(&mut self) {
        let decoded = |known: &Known| {
            let tiles = PieceTiles::decode(&known.tiles).ok()?;
            Some((known.piece, tiles))
        };
        let all: Option<Vec<_>> = match self.together {
            true => None,
            false => self.known.values().map(decoded).collect(),
        };
        let Some(mut pieces) = all.filter(|all| all.iter().any(|(_, t)| is_scattered(t))) else {
            return;
        };
        // Another living writer, or one that has closed since, may have written in between.
        let Ok(Some((others, cuts))) = self.world.closed_besides() else { return };
        join(&mut pieces, &others, &cuts);
        for (known, (_, tiles)) in self.known.values_mut().zip(&pieces) {
            known.tiles = tiles.encode();
        }
    }

    fn take_sealed(&mut self, sealed: &[&[u8]]) -> Result<()> {
        self.known.values_mut().for_each(|known| known.current = false);
        for (rank, bytes) in (0..).zip(sealed).filter(|(_, bytes)| !bytes.is_empty()) {
            let mut told = Known::decode(bytes, rank)
                .map_err(|why| Error::because("publish", &self.path, Errno::INVAL, why))?;
            if !told.tiles.is_empty() {
                self.known.insert(rank, told);
                continue;
            }
            match self.known.get_mut(&rank) {
                Some(known) => {
                    known.current = (known.piece, known.changes) == (told.piece, told.changes);
                }
                None if told.changes == 0 => {
                    // It has no tiles to publish until the file is closed.
                    told.tiles = PieceTiles::new(rank).encode();
                    told.published = true;
                    self.known.insert(rank, told);
                }
                None => {}
            }
        }
        Ok(())
    }
}

fn publish_part(session: &Session, ino: Ino, path: &Path, parts: Vec<Part>) -> Result<()> {
    let done = session.client.publish(&Cred::ROOT, ino, parts, Vec::new(), None);
    done.told("publish", path).map(drop)
}

impl Known {
    /// Decodes the bytes that [`Native::seal`] made: piece, storage, changes, and the tiles where
    /// they are new.
    fn decode(bytes: &[u8], rank: u32) -> std::result::Result<Known, String> {
        let (head, tiles) = bytes.split_first_chunk::<24>().ok_or("it is too short")?;
        let word = |at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&head[at..at + 8]);
            u64::from_le_bytes(bytes)
        };
        let piece = u32::try_from(word(0)).map_err(|_| "there is no such piece")?;
        if !tiles.is_empty() {
            let tiles = PieceTiles::decode(tiles).map_err(|e| e.to_string())?;
            debug_assert!(tiles.rank() == rank, "a rank seals its own piece");
        }
        let (blocks, changes, tiles) = (word(8), word(16), tiles.to_vec());
        Ok(Known { piece, blocks, changes, tiles, published: false, current: true })
    }
}

impl Writer {
    fn new(
        held: Held,
        volume: &Volume,
        world: &mut World,
        rank: u32,
        token: &Token,
        inboxes: &[u64],
    ) -> Result<Writer> {
        let seat = world.take_seats(token)?;
        let name = Name { open: token.open, rank };
        let neighbors = Neighbors::meet(token.open, rank, world.ranks_of(seat.roll), inboxes);
        Ok(Writer {
            _held: held,
            number: token.first + rank,
            piece: OwnPiece::new(name, volume.path.clone()),
            roll: OnceLock::new(),
            seat,
            neighbors,
            made: Mutex::new(None),
            name,
            look_at: TILES_STEP,
            last_view: None,
            run: None,
            hull: None,
        })
    }

    /// The roll of the node, whose clock is past `epoch`. The first time, the node is asked for it, and with the same
    /// request for the piece; by this rank, or by another one for all ranks of the node.
    fn open_roll(&self, volume: &Volume, epoch: u64) -> Result<&OwnRoll> {
        if let Some(roll) = self.roll.get() {
            return Ok(roll);
        }
        let (number, seat) = (self.number, self.seat);
        let first = number - self.name.rank;
        let passed = self.neighbors.as_ref().and_then(|all| all.obtain(volume, first, seat));
        let [bytes, journal, roll] = match passed {
            Some(files) => files,
            None => volume.make([
                Piece::bytes_of(number),
                Piece::journal_of(number),
                Piece::bytes_of(seat.roll),
            ])?,
        };
        let roll = OwnRoll::new(roll, self.name.open, seat.slot, seat.slots);
        let roll = Arc::new(roll.context("open", &volume.path)?);
        roll.clock().observe(epoch);
        *self.made.lock() = Some(PieceFiles { number, bytes, journal });
        let _ = volume.roll.set(roll.clone());
        Ok(self.roll.get_or_init(|| roll))
    }

    fn own(&self) -> Option<Own<'_>> {
        let own = self.piece.own()?;
        Some(Own { piece: self.number, changes: own.changes, tiles: own.tiles })
    }

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

impl Engine for Native {
    fn write(&mut self, view: &View, stream: u64, data: &Buffer<'_>) -> Result<()> {
        let by_epoch = !view.is_default() && !self.atomic;
        if by_epoch && self.go_on(view, stream, data)? {
            return Ok(());
        }
        if view.offset_of(stream + data.len() - 1) >= tatami_wire::FILE_SIZE_MAX {
            return Err(Error::new("write", &self.path, Errno::FBIG));
        }
        // A long view would fill the shard's record of the piece, so its blocks are written one by
        // one under the byte view.
        if view.is_default() || !self.writer()?.is_wide(view) {
            return self.put(view, stream, data.len(), data, 0, by_epoch);
        }
        let (bytes, mut done) = (View::bytes(), 0);
        for (offset, len) in view.extents(stream, data.len()) {
            self.put(&bytes, offset, len, data, done, by_epoch)?;
            done += len;
        }
        Ok(())
    }

    fn read(&mut self, view: &View, stream: u64, into: &mut Buffer<'_>) -> Result<u64> {
        let end = view.offset_of(stream.saturating_add(into.len() - 1)).saturating_add(1);
        self.look(end)?;
        self.reader.read(&mut self.world, view, stream, into)
    }

    fn size(&mut self) -> Result<u64> {
        self.look(u64::MAX)?;
        Ok(self.world.index().size())
    }

    fn set_size(&mut self, size: u64) -> Result<()> {
        self.world.doubt();
        if self.size()? == size {
            return Ok(());
        }
        // The mount truncates the base, and the shard the published tiles; there are no others.
        self.volume.reopen(true)?.set_len(size).context("truncate", &self.path)?;
        self.world.doubt();
        self.look(0)?;
        let cut = self.world.last_cut();
        // New writes need stamps after the cut, or the cut would remove them.
        if let Some(roll) = self.open_roll()? {
            roll.clock().observe(cut);
        }
        Ok(())
    }

    fn preallocate(&mut self, size: u64) -> Result<()> {
        match self.size()? < size {
            true => self.set_size(size),
            false => Ok(()),
        }
    }

    fn stamp(&self) -> u64 {
        // The stamp must be later than all writes of the node's ranks, so it comes from the node's
        // clock, even for a rank that has not written.
        match self.open_roll() {
            Ok(Some(roll)) => roll.clock().stamp(),
            Ok(None) | Err(_) => machine::now().max(self.epoch + 1),
        }
    }

    fn epoch(&mut self, stamp: u64) -> Result<()> {
        self.epoch = stamp;
        if let Some(writer) = &mut self.writer {
            if let Some(roll) = writer.roll.get() {
                roll.clock().observe(stamp);
            }
            writer.run = None;
        }
        self.world.doubt();
        Ok(())
    }

    fn set_atomic(&mut self, on: bool) {
        self.atomic = on;
        if let Some(writer) = &mut self.writer {
            writer.run = None;
        }
    }

    fn seal(&mut self, durable: bool) -> Result<Vec<u8>> {
        let Some(writer) = &mut self.writer else { return Ok(Vec::new()) };
        if durable && writer.piece.is_dirty() {
            // This also brings the names of the objects to the disk, which the daemon has created.
            for object in [Piece::bytes_of(writer.number), Piece::journal_of(writer.number)] {
                let object = self.volume.object(self.volume.session.node, object)?;
                object.sync(false).told("sync", &self.path)?;
            }
        }
        let sealed = writer.piece.seal(durable)?;
        // A piece without new tiles is sealed, too: rank 0 must know that it has all of them.
        let mut out = u64::from(writer.number).to_le_bytes().to_vec();
        if sealed.is_empty() {
            out.extend(0u64.to_le_bytes());
            out.extend(writer.piece.changes().to_le_bytes());
            return Ok(out);
        }
        out.extend(self.own_blocks()?.to_le_bytes());
        out.extend(sealed);
        Ok(out)
    }

    fn publish(&mut self, sealed: &[&[u8]], durable: bool, closing: bool) -> Result<()> {
        if closing && self.delete {
            // The pieces are removed with the file.
            self.volume.remove()?;
        }
        if self.writer.is_none() {
            return Ok(());
        }
        self.take_sealed(sealed)?;
        let mut parts = self.parts(closing);
        // The shard takes parts in the order of piece numbers only.
        parts.sort_by_key(|part| part.piece);
        let (session, ino, path) = (&self.volume.session, self.volume.ino, &self.path);
        // The parts are kept for a second attempt without the pieces that were closed meanwhile.
        let mut result = publish_all(session, ino, path, parts.clone());
        if closing && result.as_ref().is_err_and(|e| e.errno == Errno::STALE) {
            // Another client has closed some of them: by a truncation to 0, or by the end of the
            // file.
            result = match session.client.raw_tiles(ino) {
                Ok(page) => {
                    let is_open = |part: &Part| {
                        let of = page.pieces.iter().find(|info| info.piece == part.piece);
                        of.is_some_and(|info| info.growth != Growth::Closed)
                    };
                    parts.retain(is_open);
                    publish_all(session, ino, path, parts)
                }
                Err(tatami_wire::Errno::ENOENT | tatami_wire::Errno::ESTALE) => Ok(()),
                Err(errno) => Err(errno).told("publish", path),
            };
        }
        match result {
            // The file was removed, so there is nothing to publish.
            Err(error) if closing && error.errno == Errno::NOENT => return Ok(()),
            other => other?,
        }
        // The shard has the tiles now; the sync brings them to its disk.
        if durable {
            session.client.sync().told("sync", path)?;
        }
        self.known.values_mut().for_each(|known| known.published = true);
        Ok(())
    }

    fn published(&mut self) {
        if let Some(writer) = &mut self.writer {
            writer.piece.published();
        }
    }
}

/// Publishes parts, as many with one request as fit into it.
fn publish_all(session: &Session, ino: Ino, path: &Path, parts: Vec<Part>) -> Result<()> {
    let (mut step, mut bytes) = (Vec::new(), 0);
    for part in parts {
        if bytes + part.tiles.len() > PUBLISH_BYTES || step.len() >= PARTS_MAX {
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
