//! Spare files: empty files that are lent to mounts of this node. They become objects when they
//! have bytes, or at a request for the object; see `tatami_lend`.

use crate::name::{self, Key};
use crate::object::errno;
use parking_lot::Mutex;
use rustix::fs::{AtFlags, Dir, Mode, OFlags, RenameFlags};
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use tatami_lend::{SLOTS, Table};
use tatami_wire::{Errno, Ino, Piece};

/// The directory of spare files and their tables, within the data directory.
pub(crate) const LENT_DIR: &str = "lent";
/// The suffix of a file whose inode is not known any more.
const ASIDE: &str = ".lost";
/// Most tables at a time: one for each mount of the node.
const TABLES_MAX: usize = 64;
/// File systems that write a page of a file in place, so that memory shared through the file needs
/// no new room on the disk later: ext4, XFS, tmpfs.
const IN_PLACE: [i64; 3] = [0xef53, 0x5846_5342, 0x0102_1994];

/// All spare files.
pub(crate) struct Spares {
    dir: OwnedFd,
    /// Files are lent only where the file system suits.
    suits: bool,
    boot: u64,
    any: AtomicBool,
    /// Held from the search for a spare file until it has the object's name.
    tables: Mutex<BTreeMap<u64, Table>>,
}

impl Spares {
    /// Opens the directory of spare files in a data directory, beside `objects`. [`Spares::settle`]
    /// makes objects of files that were lent before.
    pub(crate) fn open(parent: BorrowedFd<'_>) -> rustix::io::Result<Spares> {
        match rustix::fs::mkdirat(parent, LENT_DIR, Mode::RWXU) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(e) => return Err(e),
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let dir = rustix::fs::openat(parent, LENT_DIR, flags, Mode::empty())?;
        let suits = rustix::fs::fstatfs(&dir).is_ok_and(|s| IN_PLACE.contains(&s.f_type));
        let any = AtomicBool::new(false);
        Ok(Spares { dir, suits, boot: boot(), any, tables: Mutex::default() })
    }

    /// Takes over the tables of an earlier daemon, in the same boot of the machine, and removes the
    /// rest.
    pub(crate) fn settle(&self, objects: BorrowedFd<'_>) -> rustix::io::Result<()> {
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.dir)? {
            names.extend(entry?.file_name().to_str().map(str::to_owned));
        }
        names.retain(|name| !name.starts_with('.') && !name.ends_with(ASIDE));
        for (name, id) in names.clone().iter().filter_map(|name| Some((name, parse_table(name)?))) {
            let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
            let file = rustix::fs::openat(&self.dir, name, flags, Mode::empty())?;
            // After a power cut it may contain anything.
            let table = Table::map_of(file, self.boot).ok().flatten();
            if let Some(table) = table
                && self.finish(objects, id, &table).is_err()
            {
                // The disk may be full. The table goes on as if the daemon had not ended.
                names.retain(|other| !other.starts_with(name));
                self.tables.lock().insert(id, table);
                self.any.store(true, Ordering::SeqCst);
            }
        }
        names.iter().for_each(|name| self.remove(name));
        Ok(())
    }

    /// Makes a new table.
    pub(crate) fn begin(&self, id: u64) -> Result<OwnedFd, Errno> {
        let mut tables = self.tables.lock();
        if !self.suits {
            return Err(Errno::EOPNOTSUPP);
        }
        if tables.len() >= TABLES_MAX || tables.contains_key(&id) {
            return Err(Errno::EBUSY);
        }
        let name = table_name(id);
        let file = self.make(&name)?;
        let table = Table::create(&file, self.boot).inspect_err(|_| self.remove(&name))?;
        tables.insert(id, table);
        self.any.store(true, Ordering::SeqCst);
        Ok(file)
    }

    /// Makes objects of all files that a table has lent, and removes the rest.
    pub(crate) fn end(&self, objects: BorrowedFd<'_>, id: u64) -> Result<(), Errno> {
        let mut tables = self.tables.lock();
        let Some(table) = tables.remove(&id) else { return Ok(()) };
        let finished = self.finish(objects, id, &table);
        if finished.is_err() {
            // The table stays, so that its files are found; the next start handles them again.
            tables.insert(id, table);
        } else {
            self.remove(&table_name(id));
        }
        self.any.store(!tables.is_empty(), Ordering::SeqCst);
        finished.map_err(errno)
    }

    fn finish(&self, objects: BorrowedFd<'_>, id: u64, table: &Table) -> rustix::io::Result<()> {
        // First: the mount must not assign a slot after the loop has passed it.
        table.end();
        for slot in 0..SLOTS {
            let name = spare_name(id, slot);
            let size = self.size_of(&name);
            if size.is_some_and(|size| !table.mend(slot, size > 0)) {
                self.set_aside(&name, size)?;
                continue;
            }
            if let Some(ino) = table.stands_for(slot) {
                table.take(ino);
            }
            // The file of a slot that was taken before is an object already, unless the daemon died
            // in between.
            if let Some(ino) = table.was_taken_for(slot)
                && self.size_of(&name).is_some()
            {
                self.give_name(objects, table, (id, slot), ino)?;
            }
            self.remove(&name);
        }
        Ok(())
    }

    /// Keeps the bytes of a file whose inode is not known any more.
    fn set_aside(&self, name: &str, size: Option<i64>) -> rustix::io::Result<()> {
        if size == Some(0) {
            self.remove(name);
            return Ok(());
        }
        let aside = format!("{name}{ASIDE}");
        rustix::fs::renameat(&self.dir, name, &self.dir, &aside)?;
        tracing::error!(
            file = format!("{LENT_DIR}/{aside}"),
            "the table that says of which file these bytes are is damaged: a file that was written lately lacks them. \
             Copy them to where they belong, and remove this file"
        );
        Ok(())
    }

    /// Makes a new file for a slot. The file that the slot had before must be an object already.
    pub(crate) fn renew(&self, id: u64, slot: usize) -> Result<OwnedFd, Errno> {
        let tables = self.tables.lock();
        let table = tables.get(&id).ok_or(Errno::ENOENT)?;
        if slot >= SLOTS {
            return Err(Errno::EINVAL);
        }
        if table.stands_for(slot).is_some() {
            return Err(Errno::EBUSY);
        }
        // Before the new file exists: it must not be taken for the slot's old file.
        table.renew(slot);
        let name = spare_name(id, slot);
        match self.make(&name) {
            Err(Errno::EEXIST) => {
                self.remove(&name);
                self.make(&name)
            }
            other => other,
        }
    }

    /// Returns the inode that a slot of a table stands for.
    pub(crate) fn stands_for(&self, id: u64, slot: usize) -> Result<Option<Ino>, Errno> {
        Ok(self.tables.lock().get(&id).ok_or(Errno::ENOENT)?.stands_for(slot))
    }

    /// Returns whether any table exists. Without one, an object without a backing file does not
    /// exist.
    pub(crate) fn are_lent(&self) -> bool {
        self.any.load(Ordering::SeqCst)
    }

    /// Makes an object of the spare file that stands for it, if there is one. The caller must look
    /// for the object by name after this: it may have become one a moment before. A caller that
    /// will make the object itself must set `make`.
    pub(crate) fn become_object(
        &self,
        objects: BorrowedFd<'_>,
        key: Key,
        make: bool,
    ) -> rustix::io::Result<()> {
        let tables = self.tables.lock();
        // Dekker's flag protocol with the mount: this side raises its claim and then reads the
        // slots, the mount fills its slot and then reads the claims. So at least one of them sees
        // the other.
        if make {
            tables.values().for_each(Table::claim);
        }
        // A mount writes only the first piece by itself.
        let lent = tables.iter().filter(|_| key.1 == Piece(0));
        for (id, table) in lent {
            if let Some(slot) = table.take(key.0) {
                return self.give_name(objects, table, (*id, slot), key.0);
            }
        }
        Ok(())
    }

    /// Removes the spare file of an inode that was removed.
    pub(crate) fn discard(&self, ino: Ino) {
        for (id, table) in self.tables.lock().iter() {
            if let Some(slot) = table.take(ino) {
                self.remove(&spare_name(*id, slot));
            }
        }
    }

    /// Gives the file of a taken slot the object's name.
    fn give_name(
        &self,
        objects: BorrowedFd<'_>,
        table: &Table,
        (id, slot): (u64, usize),
        ino: Ino,
    ) -> rustix::io::Result<()> {
        let from = spare_name(id, slot);
        match self.rename(&from, objects, ino) {
            // The mount died just after it had noticed the object: see `tatami_lend`.
            Err(rustix::io::Errno::EXIST) if self.size_of(&from) == Some(0) => Ok(()),
            Err(e) => {
                table.untake(slot, ino);
                Err(e)
            }
            Ok(()) => Ok(()),
        }
    }

    fn rename(&self, from: &str, objects: BorrowedFd<'_>, ino: Ino) -> rustix::io::Result<()> {
        let to = name::path((ino, Piece(0)));
        let rename =
            // Never over an existing object: its bytes would be lost.
            || rustix::fs::renameat_with(&self.dir, from, objects, &to, RenameFlags::NOREPLACE);
        match rename() {
            Err(rustix::io::Errno::NOENT) => {
                let bucket = name::bucket_name(name::bucket_of(ino));
                match rustix::fs::mkdirat(objects, bucket, Mode::RWXU) {
                    // The bucket must be durable before a name in it can be.
                    Ok(()) => rustix::fs::fsync(objects)?,
                    Err(rustix::io::Errno::EXIST) => {}
                    Err(e) => return Err(e),
                }
                rename()
            }
            other => other,
        }
    }

    fn size_of(&self, name: &str) -> Option<i64> {
        let stat = rustix::fs::statat(&self.dir, name, AtFlags::SYMLINK_NOFOLLOW);
        stat.ok().map(|stat| stat.st_size)
    }

    fn make(&self, name: &str) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        rustix::fs::openat(&self.dir, name, flags, Mode::RUSR | Mode::WUSR).map_err(errno)
    }

    fn remove(&self, name: &str) {
        // The next start removes a file that is left behind.
        let _ = rustix::fs::unlinkat(&self.dir, name, AtFlags::empty());
    }
}

fn table_name(id: u64) -> String {
    format!("{id:016x}")
}

fn parse_table(name: &str) -> Option<u64> {
    if name.len() != 16 {
        return None;
    }
    u64::from_str_radix(name, 16).ok()
}

fn spare_name(id: u64, slot: usize) -> String {
    format!("{id:016x}.{slot:02x}")
}

/// Returns a number that distinguishes two boots of a machine.
pub fn boot() -> u64 {
    let boot = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let mut hasher = DefaultHasher::new();
    boot.hash(&mut hasher);
    hasher.finish()
}
