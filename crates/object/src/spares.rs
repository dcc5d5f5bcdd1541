//! Spare files: empty files that are lent to mounts of this node. They become objects when they
//! have bytes, or at a request for the object; see `tatami_tables::SpareTable`.

use crate::name::{self, ObjectKey};
use crate::object::to_errno;
use parking_lot::Mutex;
use rustix::fs::{AtFlags, Dir, Mode, OFlags, RenameFlags};
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use tatami_tables::{SLOTS, SpareTable};
use tatami_wire::{Errno, Ino, Piece};

/// The directory of spare files and their tables, within the data directory.
pub(crate) const SPARES_DIR: &str = "lent";
/// The suffix of a file whose inode is not known any more.
const ASIDE: &str = ".lost";
/// Most tables at a time: one for each mount of the node.
const TABLES_MAX: usize = 64;
/// File systems that write a page of a file in place, so that memory shared through the file needs
/// no new room on the disk later: ext4, XFS, tmpfs.
const IN_PLACE: [i64; 3] = [0xef53, 0x5846_5342, 0x0102_1994];

/// All spare files.
pub(crate) struct SpareStore {
    dir: OwnedFd,
    /// Files are lent only where the file system suits.
    suits: bool,
    boot: u64,
    has_any: AtomicBool,
    /// Held from the search for a spare file until it has the object's name.
    tables: Mutex<BTreeMap<u64, SpareTable>>,
}

impl SpareStore {
    /// Opens the directory of spare files in a data directory, beside `objects`.
    /// [`SpareStore::take_over_tables`] makes objects of files that were lent before.
    pub(crate) fn open(parent: BorrowedFd<'_>) -> rustix::io::Result<SpareStore> {
        match rustix::fs::mkdirat(parent, SPARES_DIR, Mode::RWXU) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(e) => return Err(e),
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let dir = rustix::fs::openat(parent, SPARES_DIR, flags, Mode::empty())?;
        let suits = rustix::fs::fstatfs(&dir).is_ok_and(|s| IN_PLACE.contains(&s.f_type));
        let any = AtomicBool::new(false);
        Ok(SpareStore { dir, suits, boot: boot_number(), has_any: any, tables: Mutex::default() })
    }

    /// Takes over the tables of an earlier daemon, in the same boot of the machine, and removes the
    /// rest.
    pub(crate) fn take_over_tables(&self, objects: BorrowedFd<'_>) -> rustix::io::Result<()> {
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.dir)? {
            names.extend(entry?.file_name().to_str().map(str::to_owned));
        }
        names.retain(|name| !name.starts_with('.') && !name.ends_with(ASIDE));
        for (name, id) in names.clone().iter().filter_map(|name| Some((name, parse_table(name)?))) {
            let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
            let file = rustix::fs::openat(&self.dir, name, flags, Mode::empty())?;
            // After a power cut it may contain anything.
            let table = SpareTable::map_of_boot(file, self.boot).ok().flatten();
            if let Some(table) = table
                && self.finish_table(objects, id, &table).is_err()
            {
                // The disk may be full. The table goes on as if the daemon had not ended.
                names.retain(|other| !other.starts_with(name));
                self.tables.lock().insert(id, table);
                self.has_any.store(true, Ordering::SeqCst);
            }
        }
        names.iter().for_each(|name| self.remove_file(name));
        Ok(())
    }

    /// Makes a new table.
    pub(crate) fn create_table(&self, id: u64) -> Result<OwnedFd, Errno> {
        let mut tables = self.tables.lock();
        if !self.suits {
            return Err(Errno::EOPNOTSUPP);
        }
        if tables.len() >= TABLES_MAX || tables.contains_key(&id) {
            return Err(Errno::EBUSY);
        }
        let name = table_name(id);
        let file = self.create_file(&name)?;
        let table =
            SpareTable::create(&file, self.boot).inspect_err(|_| self.remove_file(&name))?;
        tables.insert(id, table);
        self.has_any.store(true, Ordering::SeqCst);
        Ok(file)
    }

    /// Makes objects of all files that a table has lent, and removes the rest.
    pub(crate) fn end_table(&self, objects: BorrowedFd<'_>, id: u64) -> Result<(), Errno> {
        let mut tables = self.tables.lock();
        let Some(table) = tables.remove(&id) else { return Ok(()) };
        let finished = self.finish_table(objects, id, &table);
        if finished.is_err() {
            // The table stays, so that its files are found; the next start handles them again.
            tables.insert(id, table);
        } else {
            self.remove_file(&table_name(id));
        }
        self.has_any.store(!tables.is_empty(), Ordering::SeqCst);
        finished.map_err(to_errno)
    }

    fn finish_table(
        &self,
        objects: BorrowedFd<'_>,
        id: u64,
        table: &SpareTable,
    ) -> rustix::io::Result<()> {
        // First: the mount must not assign a slot after the loop has passed it.
        table.mark_ended();
        for slot in 0..SLOTS {
            let name = spare_name(id, slot);
            let size = self.file_size(&name);
            if size.is_some_and(|size| !table.repair_slot(slot, size > 0)) {
                self.set_aside(&name, size)?;
                continue;
            }
            if let Some(ino) = table.assigned_inode(slot) {
                table.take_slot(ino);
            }
            // The file of a slot that was taken before is an object already, unless the daemon died
            // in between.
            if let Some(ino) = table.taken_inode(slot)
                && self.file_size(&name).is_some()
            {
                self.give_name(objects, table, (id, slot), ino)?;
            }
            self.remove_file(&name);
        }
        Ok(())
    }

    /// Keeps the bytes of a file whose inode is not known any more.
    fn set_aside(&self, name: &str, size: Option<i64>) -> rustix::io::Result<()> {
        if size == Some(0) {
            self.remove_file(name);
            return Ok(());
        }
        let aside = format!("{name}{ASIDE}");
        rustix::fs::renameat(&self.dir, name, &self.dir, &aside)?;
        tracing::error!(
            file = format!("{SPARES_DIR}/{aside}"),
            "the table that says of which file these bytes are is damaged: a file that was written lately lacks them. \
             Copy them to where they belong, and remove this file"
        );
        Ok(())
    }

    /// Makes a new file for a slot. The file that the slot had before must be an object already.
    pub(crate) fn renew_slot(&self, id: u64, slot: usize) -> Result<OwnedFd, Errno> {
        let tables = self.tables.lock();
        let table = tables.get(&id).ok_or(Errno::ENOENT)?;
        if slot >= SLOTS {
            return Err(Errno::EINVAL);
        }
        if table.assigned_inode(slot).is_some() {
            return Err(Errno::EBUSY);
        }
        // Before the new file exists: it must not be taken for the slot's old file.
        table.free_slot(slot);
        let name = spare_name(id, slot);
        match self.create_file(&name) {
            Err(Errno::EEXIST) => {
                self.remove_file(&name);
                self.create_file(&name)
            }
            other => other,
        }
    }

    /// Returns the inode that a slot of a table stands for.
    pub(crate) fn inode_of_slot(&self, id: u64, slot: usize) -> Result<Option<Ino>, Errno> {
        Ok(self.tables.lock().get(&id).ok_or(Errno::ENOENT)?.assigned_inode(slot))
    }

    /// Returns the inodes whose bytes are in spare files.
    pub(crate) fn list_written(&self) -> Vec<Ino> {
        let tables = self.tables.lock();
        let slots = tables.iter().flat_map(|(id, table)| (0..SLOTS).map(move |s| (*id, table, s)));
        let written = slots.filter_map(|(id, table, slot)| {
            let ino = table.assigned_inode(slot)?;
            self.file_size(&spare_name(id, slot)).is_some_and(|size| size > 0).then_some(ino)
        });
        written.collect()
    }

    /// Returns whether any table exists. Without one, an object without a backing file does not
    /// exist.
    pub(crate) fn has_tables(&self) -> bool {
        self.has_any.load(Ordering::SeqCst)
    }

    /// Makes an object of the spare file that stands for it, if there is one. The caller must look
    /// for the object by name after this: it may have become one a moment before. A caller that
    /// will make the object itself must set `make`.
    pub(crate) fn materialize_spare(
        &self,
        objects: BorrowedFd<'_>,
        key: ObjectKey,
        make: bool,
    ) -> rustix::io::Result<()> {
        let tables = self.tables.lock();
        // Dekker's flag protocol with the mount: this side raises its claim and then reads the
        // slots, the mount fills its slot and then reads the claims. So at least one of them sees
        // the other.
        if make {
            tables.values().for_each(|table| table.count_claim());
        }
        // A mount writes only the first piece by itself.
        let lent = tables.iter().filter(|_| key.1 == Piece(0));
        for (id, table) in lent {
            if let Some(slot) = table.take_slot(key.0) {
                return self.give_name(objects, table, (*id, slot), key.0);
            }
        }
        Ok(())
    }

    /// Removes the spare file of an inode that was removed.
    pub(crate) fn discard_spare(&self, ino: Ino) {
        for (id, table) in self.tables.lock().iter() {
            if let Some(slot) = table.take_slot(ino) {
                self.remove_file(&spare_name(*id, slot));
            }
        }
    }

    /// Gives the file of a taken slot the object's name.
    fn give_name(
        &self,
        objects: BorrowedFd<'_>,
        table: &SpareTable,
        (id, slot): (u64, usize),
        ino: Ino,
    ) -> rustix::io::Result<()> {
        let from = spare_name(id, slot);
        match self.rename_to_object(&from, objects, ino) {
            // The mount died just after it had noticed the object: see `tatami_tables::SpareTable`.
            Err(rustix::io::Errno::EXIST) if self.file_size(&from) == Some(0) => Ok(()),
            Err(e) => {
                table.restore_slot(slot, ino);
                Err(e)
            }
            Ok(()) => Ok(()),
        }
    }

    fn rename_to_object(
        &self,
        from: &str,
        objects: BorrowedFd<'_>,
        ino: Ino,
    ) -> rustix::io::Result<()> {
        let to = name::object_path((ino, Piece(0)));
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

    fn file_size(&self, name: &str) -> Option<i64> {
        let stat = rustix::fs::statat(&self.dir, name, AtFlags::SYMLINK_NOFOLLOW);
        stat.ok().map(|stat| stat.st_size)
    }

    fn create_file(&self, name: &str) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        rustix::fs::openat(&self.dir, name, flags, Mode::RUSR | Mode::WUSR).map_err(to_errno)
    }

    fn remove_file(&self, name: &str) {
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
pub fn boot_number() -> u64 {
    let boot = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let mut hasher = DefaultHasher::new();
    boot.hash(&mut hasher);
    hasher.finish()
}
