//! The engine of containers: the operations of one rank of one open.

use crate::container::{self, Container};
use crate::engine::Engine;
use crate::error::{Context, Error, Result};
use crate::flags::Flags;
use crate::heart;
use crate::hints::Hints;
use crate::journal;
use crate::marker::{self, Name};
use crate::memory::Buffer;
use crate::piece::{Home, OwnPiece, decode_sealed};
use crate::plan::{self, Planned};
use crate::published::Entry;
use crate::reader::Reader;
use crate::roll::{Alive, Open, RANKS_MAX, Roll};
use crate::settle;
use crate::token::Token;
use crate::world::World;
use parking_lot::Mutex;
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tatami_layout::{Cut, View};

/// A container as one rank has it open.
pub struct Tiled {
    container: Arc<Container>,
    path: PathBuf,
    world: World,
    reader: Reader,
    writer: Option<Writer>,
    /// The stamp of the view epoch.
    epoch: u64,
    atomic: bool,
    /// Whether the machines that mount the file system share no memory.
    remote: bool,
    delete: bool,
}

struct Writer {
    roll: Roll,
    /// The heartbeat of this rank for other machines, until it is dropped.
    _alive: Option<Arc<Alive>>,
    rank: u32,
    piece: OwnPiece,
    /// The stamp that a continued run under the byte view may have, and the generation at which it
    /// was issued.
    run: Option<(u64, u64)>,
    /// File range written under the byte view.
    hull: Option<(u64, u64)>,
}

/// A container as the store of a piece.
struct InContainer<'a> {
    container: &'a Container,
    roll: &'a Roll,
}

impl Home for InContainer<'_> {
    fn make(&self, name: Name) -> Result<(File, journal::Writer)> {
        let (container, path) = (self.container, self.container.path());
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        let create =
            |name: String| container.open_file(&name, flags).context("create", &path.join(&name));
        let piece = create(marker::piece(name))?;
        let journal = create(marker::journal(name)).and_then(|file| {
            journal::Writer::new(file, name.open, name.rank, self.roll.is_here())
                .context("create", &path.join(marker::journal(name)))
        });
        if journal.is_err() {
            // Without a journal nothing can be written, so remove both files.
            let _ = container.remove_file(&marker::journal(name));
            let _ = container.remove_file(&marker::piece(name));
        }
        Ok((piece, journal?))
    }

    fn changed(&self, rank: u32, changes: u64) -> Result<()> {
        self.roll.set_changes(rank, changes).context("write", self.container.path())
    }
}

impl Writer {
    fn name(&self) -> Name {
        Name { open: self.roll.of.open, rank: self.rank }
    }
}

/// Rank tables of opens that this process has begun and not opened yet. They hold the lock that
/// marks the open as alive.
static BEGUN: Mutex<Vec<Roll>> = Mutex::new(Vec::new());
/// Most begun opens that are kept; the oldest was surely abandoned.
const BEGUN_MAX: usize = 64;

/// Begins an open, for rank 0: creates the container, recovers dead opens, creates the rank table.
///
/// # Errors
/// As for open(2).
pub fn begin(path: &Path, exists: bool, flags: Flags, mode: u32, open: Open) -> Result<(u64, u64)> {
    if open.ranks > RANKS_MAX {
        return Err(Error::because("open", path, Errno::INVAL, "too many ranks"));
    }
    if exists && flags.has(Flags::CREATE) && flags.has(Flags::EXCL) {
        return Err(Error::new("open", path, Errno::EXIST));
    }
    if !exists {
        let plain = path.symlink_metadata().is_ok();
        if !plain && !flags.has(Flags::CREATE) {
            return Err(Error::new("open", path, Errno::NOENT));
        }
        match container::create(path, mode) {
            // Another process was faster.
            Err(e) if e.errno == Errno::EXIST && !flags.has(Flags::EXCL) => {}
            other => other?,
        }
    }
    let container = Container::open(path)?;
    if flags.writes() {
        settle::settle_dead(&container, settle::Damaged::Refuse)?;
        // While this lock is held no process converts the container to an ordinary file.
        let held = container.lock();
        // The container may have been converted or removed before the lock was acquired.
        if !container.is_in_place() {
            let why = "it was replaced meanwhile";
            return Err(Error::because("open", path, Errno::STALE, why));
        }
        let _held = held?;
        let name = marker::roll(open.open);
        let new = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        let at = container.path().join(&name);
        let file = container.open_file(&name, new).context("create", &at)?;
        let roll = Roll::create(file, open, container.reach());
        // Join under the index lock. Recovery takes that lock, too, so it never finds the new table
        // without the lock of a living member.
        let roll = roll.and_then(|roll| roll.join().and(roll.alive(0)).map(|_| roll));
        let roll =
            roll.inspect_err(|_| drop(container.remove_file(&name))).context("create", &at)?;
        let mut begun = BEGUN.lock();
        if begun.len() >= BEGUN_MAX {
            begun.remove(0);
        }
        begun.push(roll);
        container.common().changed().context("open", path)?;
    }
    Ok((container.id(), container.common().stamp()))
}

fn begun(open: u64) -> Option<Roll> {
    let mut begun = BEGUN.lock();
    let at = begun.iter().position(|roll| roll.of.open == open)?;
    Some(begun.remove(at))
}

impl Tiled {
    /// Opens a container after rank 0 has begun the open.
    ///
    /// # Errors
    /// As for open(2); `ESTALE` where the path is another container by now, or the open has ended.
    pub fn open(
        path: &Path,
        flags: Flags,
        hints: &Hints,
        rank: u32,
        token: &Token,
    ) -> Result<Tiled> {
        let container = Arc::new(Container::open(path)?);
        let stale = |why: &str| Error::because("open", path, Errno::STALE, why);
        if container.id() != token.id {
            return Err(stale("another file has this path by now"));
        }
        let writer = match flags.writes() {
            false => None,
            true => {
                let roll = match begun(token.open).filter(|_| rank == 0) {
                    Some(roll) => roll,
                    None => {
                        let roll = container.roll(token.open)?;
                        let roll = roll.ok_or_else(|| stale("the open is over"))?;
                        roll.join().context("open", path)?;
                        roll
                    }
                };
                let name = Name { open: token.open, rank };
                let piece = OwnPiece::new(name, path.to_path_buf());
                let alive = roll.alive(rank).context("open", path)?.map(Arc::new);
                alive.iter().for_each(heart::keep);
                Some(Writer { roll, _alive: alive, rank, piece, run: None, hull: None })
            }
        };
        // Stamps of this rank must not be older than its first epoch.
        container.common().observe(token.stamp);
        Ok(Tiled {
            path: path.to_path_buf(),
            world: World::new(container.clone()),
            reader: Reader::new(hints),
            writer,
            epoch: token.stamp,
            atomic: false,
            remote: container.reach().remote,
            delete: flags.has(Flags::DELETE_ON_CLOSE),
            container,
        })
    }

    fn look(&mut self) -> Result<()> {
        let own = self.writer.as_ref().and_then(|writer| writer.piece.own());
        self.world.look(own)
    }

    fn writer(&mut self) -> Result<&mut Writer> {
        let path = &self.path;
        self.writer.as_mut().ok_or_else(|| Error::new("write", path, Errno::BADF))
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
        let generation = self.container.common().generation().context("write", path)?;
        self.world.see_opens(generation)?;
        let writer = self.writer.as_mut();
        let writer = writer.ok_or_else(|| Error::new("write", path, Errno::BADF))?;
        let known = writer.run.filter(|(_, at)| *at == generation && !self.atomic);
        // A continued run keeps the stamp of its first write. That stamp must not lose against a
        // write that was made before this one and that this rank may know of, for example by a
        // message. A write that this rank cannot know of is concurrent, and MPI does not order the
        // two.
        let run = match known {
            Some(run) if !self.world.is_overtaken(writer.name(), range, run.0)? => run,
            _ => (self.container.common().stamp(), generation),
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
    fn plan(&mut self, view: &View, stream: u64, len: u64) -> Result<Vec<Planned>> {
        let epoch = (!view.is_default() && !self.atomic).then_some(self.epoch);
        if let Some(parts) = plan::by_piece(&self.writer()?.piece, view, stream, len, epoch) {
            return Ok(parts);
        }
        self.look()?;
        let name = self.writer()?.name();
        let is_own = |piece| self.world.name(piece) == Some(name);
        Ok(plan::by_index(self.world.index(), view, stream, len, is_own))
    }

    /// Writes new bytes, which are the data from `from` on.
    fn append(
        &mut self,
        view: &View,
        stream: u64,
        len: u64,
        data: &Buffer<'_>,
        from: u64,
    ) -> Result<()> {
        let stamp = self.write_stamp(view, stream, len)?;
        let Some(writer) = &mut self.writer else {
            return Err(Error::new("write", &self.path, Errno::BADF));
        };
        let home = InContainer { container: &self.container, roll: &writer.roll };
        writer.piece.append(&home, view, stamp, stream, len, data, from)
    }

    /// Appends data that continues the last write, if it does. Under a view of its own the program
    /// orders writes of several ranks by epochs, so no other rank's journal matters.
    fn go_on(&mut self, view: &View, stream: u64, data: &Buffer<'_>) -> Result<bool> {
        let Some(writer) = &mut self.writer else { return Ok(false) };
        let home = InContainer { container: &self.container, roll: &writer.roll };
        writer.piece.go_on(&home, view, self.epoch, stream, data)
    }

    fn live(&self) -> Option<&Roll> {
        self.writer.as_ref().map(|writer| &writer.roll)
    }
}

impl Engine for Tiled {
    fn write(&mut self, view: &View, stream: u64, data: &Buffer<'_>) -> Result<()> {
        if !self.atomic && !view.is_default() && self.go_on(view, stream, data)? {
            return Ok(());
        }
        if view.offset_of(stream + data.len() - 1) == u64::MAX {
            return Err(Error::new("write", &self.path, Errno::FBIG));
        }
        if !self.writer()?.piece.may_have(view, stream, data.len()) {
            return self.append(view, stream, data.len(), data, 0);
        }
        for (at, len, place) in self.plan(view, stream, data.len())? {
            let from = at - stream;
            match place {
                Some(place) => self.writer()?.piece.rewrite(place, data, from, len)?,
                None => self.append(view, at, len, data, from)?,
            }
        }
        Ok(())
    }

    fn read(&mut self, view: &View, stream: u64, into: &mut Buffer<'_>) -> Result<u64> {
        self.look()?;
        self.reader.read(&mut self.world, view, stream, into)
    }

    fn size(&mut self) -> Result<u64> {
        self.look()?;
        Ok(self.world.index().size())
    }

    fn set_size(&mut self, size: u64) -> Result<()> {
        let guard = self.container.lock()?;
        // Compare with the current size, not with a cached one.
        self.world.doubt();
        self.look()?;
        if self.world.index().size() == size {
            return Ok(());
        }
        let old = self.container.read_index()?;
        let mut new = old.clone();
        let stamp = self.container.common().stamp();
        new.cuts.push(Cut { stamp, size });
        // Truncate the base before the index is replaced: a crash between the two loses bytes
        // beyond the new size only.
        self.container.cut_base(size)?;
        let gone = settle::tidy(&self.container, None, &mut new)?;
        self.container.write_index(&guard, &old, &mut new, false)?;
        for name in gone {
            // Remove emptied pieces last: until the new index is in place, the old one refers to
            // them.
            self.container.remove_file(&marker::piece(name))?;
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
        self.container.common().stamp()
    }

    fn epoch(&mut self, stamp: u64) -> Result<()> {
        self.container.common().observe(stamp);
        self.epoch = stamp;
        if let Some(writer) = &mut self.writer {
            writer.run = None;
        }
        if self.remote {
            // Without shared memory the generation may be stale, so an epoch, which follows a
            // synchronization of the ranks, drops the cached state.
            self.world.doubt();
        }
        Ok(())
    }

    fn set_atomic(&mut self, on: bool) {
        self.atomic = on;
        if let Some(writer) = &mut self.writer {
            writer.run = None;
        }
    }

    fn seal(&mut self, durable: bool) -> Result<Vec<u8>> {
        match &mut self.writer {
            Some(writer) => writer.piece.seal(durable),
            None => Ok(Vec::new()),
        }
    }

    fn publish(&mut self, sealed: &[&[u8]], durable: bool, closing: bool) -> Result<()> {
        if closing && self.delete {
            return container::remove(&self.path);
        }
        let Some(roll) = self.live() else { return Ok(()) };
        let open = roll.of.open;
        let guard = self.container.lock()?;
        let old = self.container.read_index()?;
        let mut new = old.clone();
        let mut entries = Vec::new();
        for (rank, bytes) in sealed.iter().enumerate() {
            let bad = |why| Error::because("publish", &self.path, Errno::INVAL, why);
            if let Some((changes, tiles)) = decode_sealed(bytes).map_err(bad)? {
                let name = Name { open, rank: rank as u32 };
                entries.push(Entry { name, changes, tiles });
            }
        }
        new.put(entries);
        let mut gone = Vec::new();
        if closing {
            // Tiles that a rank could not seal.
            settle::take_journals(&self.container, roll, true, settle::Damaged::Refuse, &mut new)?;
            gone = settle::tidy(&self.container, Some(open), &mut new)?;
        }
        let same = old.pieces == new.pieces && old.cuts == new.cuts;
        if !same || (durable && !old.durable) {
            // Publish before the journals are removed: at each moment the tiles are in one of the
            // two.
            self.container.write_index(&guard, &old, &mut new, durable)?;
        }
        if closing {
            settle::remove_journals(&self.container, roll)?;
            for name in gone {
                self.container.remove_file(&marker::piece(name))?;
            }
            // Readers drop the ended open from their caches.
            self.container.common().changed().context("close", &self.path)?;
        }
        Ok(())
    }

    fn published(&mut self) {
        if let Some(writer) = &mut self.writer {
            writer.piece.published();
        }
    }
}
