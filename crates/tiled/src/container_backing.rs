//! Containers below the engine: the backing of one rank of one open, and how an open begins.

use crate::begun::BegunOpens;
use crate::container::{self, Container};
use crate::container_state::ContainerState;
use crate::error::{ErrorContext, Result, TiledError};
use crate::file_state::FileState;
use crate::flags::Flags;
use crate::heartbeat;
use crate::journal;
use crate::marker::{self, PieceName};
use crate::piece::{OwnPiece, OwnPieceState, PieceStore, decode_sealed};
use crate::piece_file::PieceFile;
use crate::published::PublishedPiece;
use crate::rank_table::{OpenHeader, RANKS_MAX, RankHeartbeat, RankTable};
use crate::recovery;
use crate::tiled_engine::TiledBacking;
use crate::token::OpenToken;
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::path::Path;
use std::sync::Arc;
use tatami_layout::{TileCut, View};

/// A container as one rank has it open.
pub struct ContainerBacking {
    container: Arc<Container>,
    state: ContainerState,
    own: Option<OwnContainerSlot>,
    /// The generation at which the last stamp under the byte view was needed.
    run_generation: Option<u64>,
    delete: bool,
}

/// The place of a writing rank in its rank table.
struct OwnContainerSlot {
    roll: RankTable,
    rank: u32,
    /// The heartbeat of this rank for other machines, until it is dropped.
    _alive: Option<Arc<RankHeartbeat>>,
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

impl ContainerBacking {
    /// Opens a container after rank 0 has begun the open.
    ///
    /// # Errors
    /// As for open(2); `ESTALE` where the path is another container by now, or the open has ended.
    pub fn open(
        path: &Path,
        flags: Flags,
        rank: u32,
        token: &OpenToken,
    ) -> Result<ContainerBacking> {
        let container = Arc::new(Container::open(path)?);
        let stale = |why: &str| TiledError::with_detail("open", path, Errno::STALE, why);
        if container.id() != token.id {
            return Err(stale("another file has this path by now"));
        }
        let own = match flags.can_write() {
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
                let alive = roll.start_heartbeat(rank).context("open", path)?.map(Arc::new);
                alive.iter().for_each(heartbeat::register_heartbeat);
                Some(OwnContainerSlot { roll, rank, _alive: alive })
            }
        };
        // Stamps of this rank must not be older than its first epoch.
        container.clock().observe_stamp(token.stamp);
        let delete = flags.contains(Flags::DELETE_ON_CLOSE);
        let state = ContainerState::new(container.clone());
        Ok(ContainerBacking { container, state, own, run_generation: None, delete })
    }

    fn require_slot(&self) -> Result<&OwnContainerSlot> {
        let path = self.container.path();
        self.own.as_ref().ok_or_else(|| TiledError::new("write", path, Errno::BADF))
    }
}

impl PieceStore for ContainerBacking {
    fn create_files(&self, name: PieceName) -> Result<(PieceFile, journal::JournalWriter)> {
        let (container, path) = (&self.container, self.container.path());
        let is_local = self.require_slot()?.roll.is_local();
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        let create =
            |name: String| container.open_file(&name, flags).context("create", &path.join(&name));
        let piece = create(marker::piece_name(name))?;
        let journal = create(marker::journal_name(name)).and_then(|file| {
            journal::JournalWriter::new(file, name.open, name.rank, is_local)
                .context("create", &path.join(marker::journal_name(name)))
        });
        if journal.is_err() {
            // Without a journal nothing can be written, so remove both files.
            let _ = container.remove_file(&marker::journal_name(name));
            let _ = container.remove_file(&marker::piece_name(name));
        }
        Ok((PieceFile::Local(piece), journal?))
    }

    fn record_changes(&self, rank: u32, changes: u64) -> Result<()> {
        self.require_slot()?.roll.set_changes(rank, changes).context("write", self.container.path())
    }
}

impl TiledBacking for ContainerBacking {
    type State = ContainerState;

    const OFFSET_END: u64 = u64::MAX;

    fn state(&mut self) -> &mut ContainerState {
        &mut self.state
    }

    fn is_writer(&self) -> bool {
        self.own.is_some()
    }

    fn prepare_append(&mut self, _piece: &mut OwnPiece, _view: &View) -> Result<bool> {
        // The index of a container is a file, which takes a piece of any size.
        Ok(false)
    }

    fn may_continue_run(&mut self, range: (u64, u64), run: Option<u64>) -> Result<bool> {
        let own = self.require_slot()?;
        let own = PieceName { open: own.roll.header.open, rank: own.rank };
        let generation = self.container.clock().generation();
        let generation = generation.context("write", self.container.path())?;
        self.state.discover_opens(generation)?;
        // A new generation may stand for an open that has ended, with tiles of which no journal
        // tells any more.
        let is_same = self.run_generation.replace(generation) == Some(generation);
        match run.filter(|_| is_same) {
            Some(since) => Ok(!self.state.is_overtaken(own, range, since)?),
            None => Ok(false),
        }
    }

    fn record_hull(&self, hull: (u64, u64)) -> Result<()> {
        let own = self.require_slot()?;
        own.roll.set_hull(own.rank, hull).context("write", self.container.path())
    }

    fn next_stamp(&self) -> u64 {
        self.container.clock().next_stamp()
    }

    fn begin_epoch(&mut self, stamp: u64) {
        self.container.clock().observe_stamp(stamp);
        if self.container.sharing_scope().remote {
            // Without shared memory the generation may be stale, so an epoch, which follows a
            // synchronization of the ranks, drops the cached state.
            self.state.invalidate_cache();
        }
    }

    fn set_size(&mut self, size: u64, own: Option<OwnPieceState<'_>>) -> Result<()> {
        let guard = self.container.lock_index()?;
        // Compare with the current size, not with a cached one.
        self.state.invalidate_cache();
        if self.state.current_size(own)? == size {
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

    fn publish_pieces(&mut self, sealed: &[&[u8]], durable: bool, closing: bool) -> Result<()> {
        if closing && self.delete {
            return container::remove_container(self.container.path());
        }
        let Some(OwnContainerSlot { roll, .. }) = &self.own else { return Ok(()) };
        let open = roll.header.open;
        let guard = self.container.lock_index()?;
        let old = self.container.read_index()?;
        let mut new = old.clone();
        let mut entries = Vec::new();
        for (rank, bytes) in sealed.iter().enumerate() {
            let bad =
                |why| TiledError::with_detail("publish", self.container.path(), Errno::INVAL, why);
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
            self.container.clock().bump_generation().context("close", self.container.path())?;
        }
        Ok(())
    }
}
