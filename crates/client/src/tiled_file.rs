//! The bytes of a tiled file: each is in the piece of the tile that wins it, and in the base where
//! no tile covers it. Writes go in place, so a file that is written through here gets no new tiles.

use crate::file_bytes::FileBytes;
use crate::lost::ShortObject;
use crate::object_handle::FileAccess;
use crate::tiled_files::{SharedTiles, Tiles};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use tatami_layout::FoundExtent;
use tatami_wire::frame::PAYLOAD_MAX;
use tatami_wire::object::{AllocMode, ObjectState, SeekTarget};
use tatami_wire::{Errno, Layout, NodeId, Piece};

/// How often a read is repeated because the file was re-laid out meanwhile.
const ATTEMPTS: usize = 8;
/// Most pieces that one handle keeps open.
const OPEN_MAX: usize = 64;
/// Longest stretch of a piece, in bytes, that is read in one request for many small tiles.
const GATHER_MAX: u64 = PAYLOAD_MAX as u64;

/// One open tiled file: a file of objects. All of them use the capability of its open.
pub(crate) struct TiledFile {
    access: Arc<FileAccess>,
    base: Mutex<OpenBase>,
    shared: Arc<SharedTiles>,
    pieces: Mutex<HashMap<Piece, OpenPiece>>,
}

/// The base, as the last request knew it.
struct OpenBase {
    at: (NodeId, Piece),
    data: Arc<dyn FileBytes>,
}

/// One open piece.
struct OpenPiece {
    data: Arc<dyn FileBytes>,
    written: bool,
    used: u64,
}

/// Bytes of a request that are contiguous in one piece, or nearly so.
struct PieceRun {
    piece: Piece,
    /// First byte in the piece, and the end.
    at: u64,
    end: u64,
    parts: Vec<FoundExtent>,
}

/// Missing bytes that a read has met.
#[derive(Default)]
struct ReadShortfall {
    /// The base had fewer bytes than the read wanted, which may be right.
    short: bool,
    /// A piece had fewer bytes than its tiles refer to.
    lost: Option<ShortObject>,
}

impl TiledFile {
    pub(crate) fn new(access: &Arc<FileAccess>, layout: Layout) -> Result<TiledFile, Errno> {
        let (access, at) = (access.clone(), (layout.node(), layout.base()));
        let data = access.client.open_object_bytes(&access, at.0, at.1)?;
        let base = Mutex::new(OpenBase { at, data });
        let shared = access.client.tiled.get_shared(access.ino);
        Ok(TiledFile { access, base, shared, pieces: Mutex::default() })
    }

    /// Returns the base of the file in its present layout.
    fn current_base(&self, tiles: &Tiles) -> Result<Arc<dyn FileBytes>, Errno> {
        let mut base = self.base.lock();
        if base.at != tiles.base {
            let (node, piece) = tiles.base;
            let data = self.access.client.open_object_bytes(&self.access, node, piece)?;
            *base = OpenBase { at: tiles.base, data };
        }
        Ok(base.data.clone())
    }

    fn last_base(&self) -> Arc<dyn FileBytes> {
        self.base.lock().data.clone()
    }

    fn current_tiles(&self) -> Result<Arc<Tiles>, Errno> {
        self.shared.current_tiles(&self.access.client, self.access.ino)
    }

    /// Opens the bytes of one piece.
    fn open_piece(
        &self,
        tiles: &Tiles,
        piece: Piece,
        write: bool,
    ) -> Result<Arc<dyn FileBytes>, Errno> {
        let mut open = self.pieces.lock();
        let used = open.values().map(|p| p.used).max().unwrap_or(0) + 1;
        if let Some(known) = open.get_mut(&piece) {
            known.used = used;
            known.written |= write;
            return Ok(known.data.clone());
        }
        let place = tiles.pieces.get(&piece.number()).ok_or(Errno::EIO)?;
        if open.len() >= OPEN_MAX {
            // Written pieces stay open: their state counts when the file is closed.
            let oldest = open.iter().filter(|(_, p)| !p.written).min_by_key(|(_, p)| p.used);
            if let Some(oldest) = oldest.map(|(piece, _)| *piece) {
                open.remove(&oldest);
            }
        }
        let data = self.access.client.open_object_bytes(&self.access, place.node, piece)?;
        open.insert(piece, OpenPiece { data: data.clone(), written: write, used });
        Ok(data)
    }

    fn written_pieces(&self) -> Vec<Arc<dyn FileBytes>> {
        let open = self.pieces.lock();
        open.values().filter(|p| p.written).map(|p| p.data.clone()).collect()
    }

    /// Returns whether the base lacks bytes of this range that it must have by the shard's record;
    /// see [`crate::lost`].
    fn is_base_lost(&self, offset: u64, len: u64) -> Result<bool, Errno> {
        self.access.client.is_lost(self.access.ino, |_| {
            let tiles = self.current_tiles()?;
            let ((node, piece), least) = (tiles.base, tiles.base_size);
            let (_, beneath) =
                split_by_object(&tiles, offset, len.min(least.saturating_sub(offset)));
            let Some(end) = beneath.last().map(|(from, len)| from + len) else { return Ok(None) };
            let now = self.current_base(&tiles)?.stat()?;
            let has = now.exists.then_some(now.size);
            Ok((now.size < end).then_some(ShortObject { node, piece, least, has }))
        })
    }

    /// Reads the bytes from the objects that these tiles name.
    fn read_parts(
        &self,
        tiles: &Tiles,
        buf: &mut [u8],
        offset: u64,
        seen: &mut ReadShortfall,
    ) -> Result<usize, Errno> {
        let (mut found, beneath) = split_by_object(tiles, offset, buf.len() as u64);
        for (from, len) in beneath {
            let part = buffer_slice(buf, offset, from, len);
            let got = self.current_base(tiles)?.read_at(part, from)?;
            seen.short |= got < part.len();
            part[got..].fill(0);
            if got < part.len() && from + len > tiles.index.size() {
                // The base ends here, and the last tile ends before.
                let end = tiles.index.size().max(from + got as u64);
                let len = end.saturating_sub(offset) as usize;
                let found = self.read_tiles(tiles, &mut found, &mut buf[..len], offset, seen);
                return found.map(|()| len);
            }
        }
        self.read_tiles(tiles, &mut found, buf, offset, seen)?;
        Ok(buf.len())
    }

    fn read_tiles(
        &self,
        tiles: &Tiles,
        found: &mut [FoundExtent],
        buf: &mut [u8],
        offset: u64,
        seen: &mut ReadShortfall,
    ) -> Result<(), Errno> {
        let mut room = Vec::new();
        for group in group_runs(found, false) {
            let data = self.open_piece(tiles, group.piece, false)?;
            let mut read = |part: &mut [u8], at| {
                let got = data.read_at(part, at)?;
                if got == part.len() {
                    return Ok(());
                }
                // The bytes of a tile were written before the tile was published: they are lost,
                // unless the tile belongs to an older layout.
                let piece = group.piece;
                let node = tiles.pieces.get(&piece.number()).ok_or(Errno::EIO)?.node;
                let (least, has) = (at + part.len() as u64, Some(at + got as u64));
                seen.lost = Some(ShortObject { node, piece, least, has });
                Err(Errno::EIO)
            };
            if let [one] = &group.parts[..] {
                read(buffer_slice(buf, offset, one.file_offset, one.len), one.at)?;
                continue;
            }
            room.resize((group.end - group.at) as usize, 0);
            read(&mut room, group.at)?;
            for part in &group.parts {
                let from = (part.at - group.at) as usize;
                let bytes = &room[from..from + part.len as usize];
                buffer_slice(buf, offset, part.file_offset, part.len).copy_from_slice(bytes);
            }
        }
        Ok(())
    }
}

impl FileBytes for TiledFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize, Errno> {
        for _ in 0..ATTEMPTS {
            let tiles = self.current_tiles()?;
            let mut seen = ReadShortfall::default();
            let result = self.read_parts(&tiles, buf, offset, &mut seen);
            if !seen.short && result.is_ok() {
                return result;
            }
            // Removed objects read as empty. If the file still has them, the missing bytes are
            // real.
            if self.current_tiles()?.version == tiles.version {
                if let Some(lost) = &seen.lost {
                    self.access.client.report_lost(self.access.ino, lost);
                    return Err(Errno::EIO);
                }
                let is_in_base = offset < tiles.base_size;
                return if is_in_base && self.is_base_lost(offset, buf.len() as u64)? {
                    Err(Errno::EIO)
                } else {
                    result
                };
            }
        }
        Err(Errno::EBUSY)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<usize, Errno> {
        let tiles = self.current_tiles()?;
        let (mut found, beneath) = split_by_object(&tiles, offset, data.len() as u64);
        for (from, len) in beneath {
            let start = (from - offset) as usize;
            let part = &data[start..start + len as usize];
            if self.current_base(&tiles)?.write_at(part, from)? < part.len() {
                return Err(Errno::ENOSPC);
            }
        }
        let mut room = Vec::new();
        for group in group_runs(&mut found, true) {
            room.clear();
            for part in &group.parts {
                let start = (part.file_offset - offset) as usize;
                room.extend_from_slice(&data[start..start + part.len as usize]);
            }
            let piece = self.open_piece(&tiles, group.piece, true)?;
            if piece.write_at(&room, group.at)? < room.len() {
                return Err(Errno::ENOSPC);
            }
        }
        Ok(data.len())
    }

    /// Appends to the base, which is first made as long as the file.
    fn append(&self, data: &[u8]) -> Result<usize, Errno> {
        let tiles = self.current_tiles()?;
        let (base, end) = (self.current_base(&tiles)?, tiles.index.size());
        if end > 0 && base.stat()?.size < end {
            // Extends and never cuts: another append may have been faster.
            base.allocate(AllocMode::Extend, end - 1, 1)?;
        }
        base.append(data)
    }

    fn flush(&self) -> Result<(), Errno> {
        let mut result = self.last_base().flush();
        for piece in self.written_pieces() {
            result = result.and(piece.flush());
        }
        result
    }

    fn wait_for_writes(&self) {
        self.last_base().wait_for_writes();
        self.written_pieces().iter().for_each(|piece| piece.wait_for_writes());
    }

    fn sync(&self, data_only: bool) -> Result<ObjectState, Errno> {
        self.last_base().sync(data_only)?;
        for piece in self.written_pieces() {
            piece.sync(data_only)?;
        }
        self.stat()
    }

    /// Cuts the base. The shard cuts the tiles when it learns the new size.
    fn truncate(&self, size: u64) -> Result<ObjectState, Errno> {
        self.flush()?;
        self.current_base(&*self.current_tiles()?)?.truncate(size)?;
        Ok(ObjectState { size, ..self.stat()? })
    }

    fn allocate(&self, mode: AllocMode, offset: u64, len: u64) -> Result<ObjectState, Errno> {
        self.flush()?;
        let tiles = self.current_tiles()?;
        self.current_base(&tiles)?.allocate(mode, offset, len)?;
        let in_place = match mode {
            AllocMode::Punch => Some(AllocMode::Punch),
            AllocMode::Zero | AllocMode::ZeroKeep => Some(AllocMode::ZeroKeep),
            AllocMode::Extend | AllocMode::Keep => None,
        };
        if let Some(mode) = in_place {
            let (mut found, _) = split_by_object(&tiles, offset, len);
            for group in group_runs(&mut found, true) {
                let piece = self.open_piece(&tiles, group.piece, true)?;
                piece.allocate(mode, group.at, group.end - group.at)?;
            }
        }
        self.stat()
    }

    /// Returns the next data or hole: a tiled file is all data up to its end.
    fn seek(&self, what: SeekTarget, offset: u64) -> Result<u64, Errno> {
        self.flush()?;
        let tiles = self.current_tiles()?;
        let size = tiles.size(self.current_base(&tiles)?.stat()?.size);
        match what {
            _ if offset >= size => Err(Errno::ENXIO),
            SeekTarget::Data => Ok(offset),
            SeekTarget::Hole => Ok(size),
        }
    }

    /// Returns size, times and storage of the file; the storage of its pieces is the one that the
    /// shard knows.
    fn stat(&self) -> Result<ObjectState, Errno> {
        let tiles = self.current_tiles()?;
        let base = self.current_base(&tiles)?.stat()?;
        let mut state = ObjectState { exists: true, size: tiles.size(base.size), ..base };
        for piece in self.written_pieces() {
            state.mtime = state.mtime.max(piece.stat()?.mtime);
        }
        state.blocks = base.blocks.saturating_add(tiles.blocks);
        Ok(state)
    }

    fn has_lost_bytes(&self) -> Result<bool, Errno> {
        let least = self.current_tiles()?.base_size;
        Ok(least > 0 && self.is_base_lost(0, least)?)
    }

    fn shows_all_writes(&self) -> bool {
        // The state of one object does not show the writes of other clients to the pieces.
        false
    }
}

/// Returns the tiles of a request, and the ranges in the base as file offsets and lengths.
fn split_by_object(tiles: &Tiles, offset: u64, len: u64) -> (Vec<FoundExtent>, Vec<(u64, u64)>) {
    let end = offset.saturating_add(len);
    let (mut found, mut beneath) = (Vec::new(), Vec::new());
    let mut at = offset;
    for part in tiles.index.lookup(offset, len) {
        at = part.file_offset + part.len;
        match part.piece {
            Some(piece) if piece != Piece::BASE => found.push(part),
            _ => beneath.push((part.file_offset, part.len)),
        }
    }
    if at < end {
        beneath.push((at, end - at));
    }
    (found, beneath)
}

/// Groups the parts that one request can read, or (`exactly`) write.
fn group_runs(found: &mut [FoundExtent], exactly: bool) -> Vec<PieceRun> {
    found.sort_by_key(|part| (part.piece, part.at));
    let mut all: Vec<PieceRun> = Vec::new();
    for part in found {
        let (Some(piece), end) = (part.piece, part.at + part.len) else { continue };
        if let Some(last) = all.last_mut().filter(|last| last.piece == piece) {
            let gap = part.at.saturating_sub(last.end);
            let near = if exactly { part.at == last.end } else { gap <= part.len };
            if near && end.max(last.end) - last.at <= GATHER_MAX {
                last.end = last.end.max(end);
                last.parts.push(*part);
                continue;
            }
        }
        all.push(PieceRun { piece, at: part.at, end, parts: vec![*part] });
    }
    all
}

/// Returns the part of `buf`, whose first byte is byte `offset` of the file, for `len` bytes from
/// `from`.
fn buffer_slice(buf: &mut [u8], offset: u64, from: u64, len: u64) -> &mut [u8] {
    let start = ((from - offset) as usize).min(buf.len());
    let end = start.saturating_add(len as usize).min(buf.len());
    &mut buf[start..end]
}
