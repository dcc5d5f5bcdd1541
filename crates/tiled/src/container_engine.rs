//! The engine of containers: the operations of one rank of one open.

use crate::begun::BegunOpens;
use crate::container::{self, Container};
use crate::container_state::ContainerState;
use crate::engine::Engine;
use crate::error::{ErrorContext, Result, TiledError};
use crate::file_state::FileState;
use crate::flags::Flags;
use crate::heartbeat;
use crate::hints::Hints;
use crate::journal;
use crate::marker::{self, PieceName};
use crate::memory::Buffer;
use crate::piece::{OwnPiece, PieceStore, decode_sealed};
use crate::plan::{self, PlannedPart};
use crate::published::PublishedPiece;
use crate::rank_table::{OpenHeader, RANKS_MAX, RankHeartbeat, RankTable};
use crate::reader::StreamReader;
use crate::recovery;
use crate::token::OpenToken;
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tatami_layout::{TileCut, View};

/// A container as one rank has it open.
pub struct ContainerEngine {
    container: Arc<Container>,
    path: PathBuf,
    world: ContainerState,
    reader: StreamReader,
    writer: Option<ContainerWriter>,
    /// The stamp of the view epoch.
    epoch: u64,
    atomic: bool,
    /// Whether the machines that mount the file system share no memory.
    remote: bool,
    delete: bool,
}

struct ContainerWriter {
    roll: RankTable,
    /// The heartbeat of this rank for other machines, until it is dropped.
    _alive: Option<Arc<RankHeartbeat>>,
    rank: u32,
    piece: OwnPiece,
    /// The stamp that a continued run under the byte view may have, and the generation at which it
    /// was issued.
    run: Option<(u64, u64)>,
    /// File range written under the byte view.
    hull: Option<(u64, u64)>,
}

/// A container as the store of a piece.
struct ContainerPieceStore<'a> {
    container: &'a Container,
    roll: &'a RankTable,
}

impl PieceStore for ContainerPieceStore<'_> {
    fn create_files(&self, name: PieceName) -> Result<(File, journal::JournalWriter)> {
        let (container, path) = (self.container, self.container.path());
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        let create =
            |name: String| container.open_file(&name, flags).context("create", &path.join(&name));
        let piece = create(marker::piece_name(name))?;
        let journal = create(marker::journal_name(name)).and_then(|file| {
            journal::JournalWriter::new(file, name.open, name.rank, self.roll.is_local())
                .context("create", &path.join(marker::journal_name(name)))
        });
        if journal.is_err() {
            // Without a journal nothing can be written, so remove both files.
            let _ = container.remove_file(&marker::journal_name(name));
            let _ = container.remove_file(&marker::piece_name(name));
        }
        Ok((piece, journal?))
    }

    fn record_changes(&self, rank: u32, changes: u64) -> Result<()> {
        self.roll.set_changes(rank, changes).context("write", self.container.path())
    }
}

impl ContainerWriter {
    fn piece_name(&self) -> PieceName {
        PieceName { open: self.roll.header.open, rank: self.rank }
    }
}

/// Rank tables of opens that this process has begun and not opened yet. They hold the lock that
/// marks the open as alive.
static BEGUN: BegunOpens<RankTable> = BegunOpens::new();

/// Begins an open, for rank 0: creates the container, recovers dead opens, creates the rank table.
///
/// # Errors
/// As for open(2).
pub fn begin_container_open(
    path: &Path,
    exists: bool,
    flags: Flags,
    mode: u32,
    open: OpenHeader,
) -> Result<(u64, u64)> {
    if open.ranks > RANKS_MAX {
        return Err(TiledError::with_detail("open", path, Errno::INVAL, "too many ranks"));
    }
    if exists && flags.contains(Flags::CREATE) && flags.contains(Flags::EXCL) {
        return Err(TiledError::new("open", path, Errno::EXIST));
    }
    if !exists {
        let plain = path.symlink_metadata().is_ok();
        if !plain && !flags.contains(Flags::CREATE) {
            return Err(TiledError::new("open", path, Errno::NOENT));
        }
        match container::create_container(path, mode) {
            // Another process was faster.
            Err(e) if e.errno == Errno::EXIST && !flags.contains(Flags::EXCL) => {}
            other => other?,
        }
    }
    let container = Container::open(path)?;
    if flags.can_write() {
        recovery::recover_dead_opens(&container, recovery::DamagePolicy::Refuse)?;
        // While this lock is held no process converts the container to an ordinary file.
        let held = container.lock_index();
        // The container may have been converted or removed before the lock was acquired.
        if !container.is_in_place() {
            let why = "it was replaced meanwhile";
            return Err(TiledError::with_detail("open", path, Errno::STALE, why));
        }
        let _held = held?;
        let name = marker::rank_table_name(open.open);
        let new = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        let at = container.path().join(&name);
        let file = container.open_file(&name, new).context("create", &at)?;
        let roll = RankTable::create(file, open, container.sharing_scope());
        // Join under the index lock. Recovery takes that lock, too, so it never finds the new table
        // without the lock of a living member.
        let roll =
            roll.and_then(|roll| roll.join_open().and(roll.start_heartbeat(0)).map(|_| roll));
        let roll =
            roll.inspect_err(|_| drop(container.remove_file(&name))).context("create", &at)?;
        BEGUN.keep_open(open.open, roll);
        container.clock().bump_generation().context("open", path)?;
    }
    Ok((container.id(), container.clock().next_stamp()))
}

impl ContainerEngine {
    /// Opens a container after rank 0 has begun the open.
    ///
    /// # Errors
    /// As for open(2); `ESTALE` where the path is another container by now, or the open has ended.
    pub fn open(
        path: &Path,
        flags: Flags,
        hints: &Hints,
        rank: u32,
        token: &OpenToken,
    ) -> Result<ContainerEngine> {
        let container = Arc::new(Container::open(path)?);
        let stale = |why: &str| TiledError::with_detail("open", path, Errno::STALE, why);
        if container.id() != token.id {
            return Err(stale("another file has this path by now"));
        }
        let writer = match flags.can_write() {
            false => None,
            true => {
                let roll = match BEGUN.take_open(token.open).filter(|_| rank == 0) {
                    Some(roll) => roll,
                    None => {
                        let roll = container.open_rank_table(token.open)?;
                        let roll = roll.ok_or_else(|| stale("the open is over"))?;
                        roll.join_open().context("open", path)?;
                        roll
                    }
                };
                let name = PieceName { open: token.open, rank };
                let piece = OwnPiece::new(name, path.to_path_buf());
                let alive = roll.start_heartbeat(rank).context("open", path)?.map(Arc::new);
                alive.iter().for_each(heartbeat::register_heartbeat);
                Some(ContainerWriter { roll, _alive: alive, rank, piece, run: None, hull: None })
            }
        };
        // Stamps of this rank must not be older than its first epoch.
        container.clock().observe_stamp(token.stamp);
        Ok(ContainerEngine {
            path: path.to_path_buf(),
            world: ContainerState::new(container.clone()),
            reader: StreamReader::new(hints),
            writer,
            epoch: token.stamp,
            atomic: false,
            remote: container.sharing_scope().remote,
            delete: flags.contains(Flags::DELETE_ON_CLOSE),
            container,
        })
    }

    fn refresh_state(&mut self) -> Result<()> {
        let own = self.writer.as_ref().and_then(|writer| writer.piece.own_state());
        self.world.refresh_state(own, 0)
    }

    fn require_writer(&mut self) -> Result<&mut ContainerWriter> {
        let path = &self.path;
        self.writer.as_mut().ok_or_else(|| TiledError::new("write", path, Errno::BADF))
    }

    /// Returns the stamp of new bytes.
    fn write_stamp(&mut self, view: &View, stream: u64, len: u64) -> Result<u64> {
        // Under a view, all ranks of an epoch write with its stamp; the rank decides between equal
        // stamps.
        if !view.is_default() && !self.atomic {
            return Ok(self.epoch);
        }
        let range = (view.offset_of(stream), view.offset_of(stream + len - 1).saturating_add(1));
        let path = &self.path;
        let generation = self.container.clock().generation().context("write", path)?;
        self.world.discover_opens(generation)?;
        let writer = self.writer.as_mut();
        let writer = writer.ok_or_else(|| TiledError::new("write", path, Errno::BADF))?;
        let known = writer.run.filter(|(_, at)| *at == generation && !self.atomic);
        // A continued run keeps the stamp of its first write. That stamp must not lose against a
        // write that was made before this one and that this rank may know of, for example by a
        // message. A write that this rank cannot know of is concurrent, and MPI does not order the
        // two.
        let run = match known {
            Some(run) if !self.world.is_overtaken(writer.piece_name(), range, run.0)? => run,
            _ => (self.container.clock().next_stamp(), generation),
        };
        writer.run = Some(run);
        let hull = writer.hull.map_or(range, |(lo, hi)| (lo.min(range.0), hi.max(range.1)));
        // The hull is stored before the tiles: a rank that checks for overlap must find the hull
        // first.
        if writer.hull != Some(hull) {
            writer.roll.set_hull(writer.rank, hull).context("write", path)?;
            writer.hull = Some(hull);
        }
        Ok(run.0)
    }

    /// Plans which parts of a write are rewritten in place.
    fn plan_write(&mut self, view: &View, stream: u64, len: u64) -> Result<Vec<PlannedPart>> {
        let epoch = (!view.is_default() && !self.atomic).then_some(self.epoch);
        if let Some(parts) =
            plan::plan_by_piece(&self.require_writer()?.piece, view, stream, len, epoch)
        {
            return Ok(parts);
        }
        self.refresh_state()?;
        let name = self.require_writer()?.piece_name();
        let is_own = |piece| self.world.piece_name(piece) == Some(name);
        Ok(plan::plan_by_index(self.world.index(), view, stream, len, is_own))
    }

    /// Writes new bytes, which are the data from `from` on.
    fn append_bytes(
        &mut self,
        view: &View,
        stream: u64,
        len: u64,
        data: &Buffer<'_>,
        from: u64,
    ) -> Result<()> {
        let stamp = self.write_stamp(view, stream, len)?;
        let Some(writer) = &mut self.writer else {
            return Err(TiledError::new("write", &self.path, Errno::BADF));
        };
        let home = ContainerPieceStore { container: &self.container, roll: &writer.roll };
        writer.piece.append(&home, view, stamp, stream, len, data, from)
    }

    /// Appends data that continues the last write, if it does. Under a view of its own the program
    /// orders writes of several ranks by epochs, so no other rank's journal matters.
    fn continue_write(&mut self, view: &View, stream: u64, data: &Buffer<'_>) -> Result<bool> {
        let Some(writer) = &mut self.writer else { return Ok(false) };
        let home = ContainerPieceStore { container: &self.container, roll: &writer.roll };
        writer.piece.continue_write(&home, view, self.epoch, stream, data)
    }

    fn own_rank_table(&self) -> Option<&RankTable> {
        self.writer.as_ref().map(|writer| &writer.roll)
    }
}

impl Engine for ContainerEngine {
    fn write(&mut self, view: &View, stream: u64, data: &Buffer<'_>) -> Result<()> {
        if !self.atomic && !view.is_default() && self.continue_write(view, stream, data)? {
            return Ok(());
        }
        if view.offset_of(stream + data.len() - 1) == u64::MAX {
            return Err(TiledError::new("write", &self.path, Errno::FBIG));
        }
        if !self.require_writer()?.piece.may_contain(view, stream, data.len()) {
            return self.append_bytes(view, stream, data.len(), data, 0);
        }
        for (at, len, place) in self.plan_write(view, stream, data.len())? {
            let from = at - stream;
            match place {
                Some(place) => {
                    self.require_writer()?.piece.rewrite_bytes(place, data, from, len)?
                }
                None => self.append_bytes(view, at, len, data, from)?,
            }
        }
        Ok(())
    }

    fn read(&mut self, view: &View, stream: u64, into: &mut Buffer<'_>) -> Result<u64> {
        self.refresh_state()?;
        self.reader.read(&mut self.world, view, stream, into)
    }

    fn file_size(&mut self) -> Result<u64> {
        self.refresh_state()?;
        Ok(self.world.index().size())
    }

    fn set_size(&mut self, size: u64) -> Result<()> {
        let guard = self.container.lock_index()?;
        // Compare with the current size, not with a cached one.
        self.world.invalidate_cache();
        self.refresh_state()?;
        if self.world.index().size() == size {
            return Ok(());
        }
        let old = self.container.read_index()?;
        let mut new = old.clone();
        let stamp = self.container.clock().next_stamp();
        new.cuts.push(TileCut { stamp, size });
        // Truncate the base before the index is replaced: a crash between the two loses bytes
        // beyond the new size only.
        self.container.truncate_base(size)?;
        let gone = recovery::drop_dead_pieces(&self.container, None, &mut new)?;
        self.container.write_index(&guard, &old, &mut new, false)?;
        for name in gone {
            // Remove emptied pieces last: until the new index is in place, the old one refers to
            // them.
            self.container.remove_file(&marker::piece_name(name))?;
        }
        Ok(())
    }

    fn preallocate(&mut self, size: u64) -> Result<()> {
        match self.file_size()? < size {
            true => self.set_size(size),
            false => Ok(()),
        }
    }

    fn next_stamp(&self) -> u64 {
        self.container.clock().next_stamp()
    }

    fn begin_epoch(&mut self, stamp: u64) -> Result<()> {
        self.container.clock().observe_stamp(stamp);
        self.epoch = stamp;
        if let Some(writer) = &mut self.writer {
            writer.run = None;
        }
        if self.remote {
            // Without shared memory the generation may be stale, so an epoch, which follows a
            // synchronization of the ranks, drops the cached state.
            self.world.invalidate_cache();
        }
        Ok(())
    }

    fn set_atomic(&mut self, on: bool) {
        self.atomic = on;
        if let Some(writer) = &mut self.writer {
            writer.run = None;
        }
    }

    fn seal_piece(&mut self, durable: bool) -> Result<Vec<u8>> {
        match &mut self.writer {
            Some(writer) => writer.piece.seal_tiles(durable),
            None => Ok(Vec::new()),
        }
    }

    fn publish_pieces(&mut self, sealed: &[&[u8]], durable: bool, closing: bool) -> Result<()> {
        if closing && self.delete {
            return container::remove_container(&self.path);
        }
        let Some(roll) = self.own_rank_table() else { return Ok(()) };
        let open = roll.header.open;
        let guard = self.container.lock_index()?;
        let old = self.container.read_index()?;
        let mut new = old.clone();
        let mut entries = Vec::new();
        for (rank, bytes) in sealed.iter().enumerate() {
            let bad = |why| TiledError::with_detail("publish", &self.path, Errno::INVAL, why);
            if let Some((changes, tiles)) = decode_sealed(bytes).map_err(bad)? {
                let name = PieceName { open, rank: rank as u32 };
                entries.push(PublishedPiece { name, changes, tiles });
            }
        }
        new.put_entries(entries);
        let mut gone = Vec::new();
        if closing {
            // Tiles that a rank could not seal.
            recovery::merge_journals(
                &self.container,
                roll,
                true,
                recovery::DamagePolicy::Refuse,
                &mut new,
            )?;
            gone = recovery::drop_dead_pieces(&self.container, Some(open), &mut new)?;
        }
        let same = old.pieces == new.pieces && old.cuts == new.cuts;
        if !same || (durable && !old.durable) {
            // Publish before the journals are removed: at each moment the tiles are in one of the
            // two.
            self.container.write_index(&guard, &old, &mut new, durable)?;
        }
        if closing {
            recovery::remove_journals(&self.container, roll)?;
            for name in gone {
                self.container.remove_file(&marker::piece_name(name))?;
            }
            // Readers drop the ended open from their caches.
            self.container.clock().bump_generation().context("close", &self.path)?;
        }
        Ok(())
    }

    fn mark_published(&mut self) {
        if let Some(writer) = &mut self.writer {
            writer.piece.mark_published();
        }
    }
}
