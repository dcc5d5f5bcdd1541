//! The table that says which lent file stands for which inode.
//!
//! A new file has no object until it has a byte, but the kernel, which reads and writes past
//! the mount, wants to be told at the open which file of the disk it is to use. So a
//! node lends its mount empty files that are no object's (*spares*). The mount notes here, in memory that
//! it shares with the node's daemon, which inode each of them stands for; whoever
//! asks the daemon for an object that is not there gets the spare that stands for it, which thereby
//! becomes that object. A file that is closed without a byte gives its spare back, and
//! nothing of all that has cost a system call.
//!
//! **Who writes what.** A slot is free, or stands for an inode, or is taken (its file has become an
//! object). The mount makes free slots stand for inodes and frees them; the daemon takes slots,
//! each by compare-and-exchange against the inode, and frees those to which it has given a new file.
//!
//! **Two at a time.** The daemon may make an object while the mount is about to lend a
//! spare to the same inode. Each first says what it does and then looks at what the other
//! said (Dekker): the daemon counts a *claim* and then looks through the slots, the mount
//! fills the slot and then looks at the claims. So at least one of them notices, and a
//! mount that notices asks the daemon.
//!
//! The table is a file of the data directory, so that it outlives both: a daemon that
//! starts makes objects of all that its predecessor had lent. After a power cut it says nothing, since
//! nobody has synced it; the boot id in it tells.

use rustix::mm::{MapFlags, ProtFlags};
use std::io;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
use tatami_wire::Ino;

/// Spares in one table.
pub const SLOTS: usize = 64;
/// Length of a table's file, in bytes.
pub const TABLE_LEN: usize = 4096;

const MAGIC: u64 = u64::from_le_bytes(*b"TATAMI-S");
const FREE: u64 = 0;
/// Set beside the inode in a slot that is taken.
const TAKEN: u64 = Ino::MARK;

/// The start of the file. Any bytes are a valid one.
#[repr(C)]
struct Page {
    magic: AtomicU64,
    boot: AtomicU64,
    /// Not 0: nothing is lent by this table any more.
    ended: AtomicU64,
    claims: AtomicU64,
    slots: [AtomicU64; SLOTS],
    /// Of the inode that each slot stands for: one flipped bit of the two words is found and mended.
    checks: [AtomicU64; SLOTS],
    /// Of the boot: the table is of that boot, whatever the words say that tell it.
    head: AtomicU64,
}

/// The check of a number, never 0. (The finalizer of SplitMix64: one bit changes half of all.)
fn check_of(number: u64) -> u64 {
    let mut mixed = number ^ MAGIC;
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    (mixed ^ mixed >> 31).max(1)
}

/// The inode of a slot and its check, one bit of which may have been flipped. Nothing where they do not belong together.
fn mended(slot: u64, check: u64) -> Option<u64> {
    let fits = |slot: u64, check: u64| (check_of(slot & !TAKEN) == check).then_some(slot);
    let bits = || (0..64).map(|bit| 1u64 << bit);
    let by_slot = || bits().find_map(|bit| fits(slot ^ bit, check));
    let by_check = || bits().find_map(|bit| fits(slot, check ^ bit));
    fits(slot, check).or_else(by_slot).or_else(by_check)
}

const _: () = assert!(size_of::<Page>() <= TABLE_LEN);

/// A moment, for [`Table::lend`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment(u64);

/// See the crate.
pub struct Table(NonNull<Page>);

// SAFETY: the mapping belongs to this value until it is dropped, and all that is reached
// through it are atomics.
unsafe impl Send for Table {}
// SAFETY: as above.
unsafe impl Sync for Table {}

impl Table {
    /// A new table in an empty file, of the boot of the machine that `boot` tells.
    ///
    /// # Errors
    /// Those of write(2) and mmap(2).
    pub fn create(file: impl AsFd, boot: u64) -> io::Result<Table> {
        // Written, not only made longer: a store into a page for which the disk has no room
        // would be a signal.
        let mut page = [0; TABLE_LEN];
        page[..8].copy_from_slice(&MAGIC.to_ne_bytes());
        page[8..16].copy_from_slice(&boot.to_ne_bytes());
        let head = std::mem::offset_of!(Page, head);
        page[head..head + 8].copy_from_slice(&check_of(boot).to_ne_bytes());
        if rustix::io::pwrite(&file, &page, 0)? < TABLE_LEN {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Table::map(file)
    }

    /// The table in a file.
    ///
    /// # Errors
    /// `InvalidData` where there is none; those of fstat(2) and mmap(2).
    pub fn map(file: impl AsFd) -> io::Result<Table> {
        let table = Table::map_any(file)?;
        match table.page().magic.load(SeqCst) == MAGIC {
            true => Ok(table),
            false => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// The table in a file, if it is one of this boot of the machine: of the words that tell so one bit may be flipped.
    ///
    /// # Errors
    /// Those of fstat(2) and mmap(2); `InvalidData` where it has another length.
    pub fn map_of(file: impl AsFd, boot: u64) -> io::Result<Option<Table>> {
        let table = Table::map_any(file)?;
        let page = table.page();
        let says = page.magic.load(SeqCst) == MAGIC && page.boot.load(SeqCst) == boot;
        let is_of = says || page.head.load(SeqCst) == check_of(boot);
        Ok(is_of.then_some(table))
    }

    fn map_any(file: impl AsFd) -> io::Result<Table> {
        if rustix::fs::fstat(&file)?.st_size != TABLE_LEN as i64 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let (read_write, shared) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping, at a place of the kernel's choice.
        let at = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), TABLE_LEN, read_write, shared, &file, 0)?
        };
        Ok(Table(NonNull::new(at.cast()).ok_or(io::ErrorKind::OutOfMemory)?))
    }

    fn page(&self) -> &Page {
        // SAFETY: it points to a mapping of TABLE_LEN bytes, aligned to a page, which lives as long
        // as `self`; nobody makes the file shorter; any bytes are a valid `Page`.
        unsafe { self.0.as_ref() }
    }

    /// Of which boot of the machine it is.
    pub fn boot(&self) -> u64 {
        self.page().boot.load(SeqCst)
    }

    /// Nothing is lent any more, and all that was lent is an object, or will be before anybody
    /// asks for it.
    pub fn is_ended(&self) -> bool {
        self.page().ended.load(SeqCst) != 0
    }

    /// The mount: now, before an inode is made.
    pub fn now(&self) -> Moment {
        Moment(self.page().claims.load(SeqCst))
    }

    /// The mount: a free slot stands for `ino`, which did not exist at `since`. False where
    /// the daemon may have made an object for it meanwhile: then it must be asked.
    pub fn lend(&self, slot: usize, ino: Ino, since: Moment) -> bool {
        if ino.0 & TAKEN != 0 {
            return false;
        }
        // First, so that a slot that stands for an inode has its check, whenever the mount dies.
        self.page().checks[slot].store(check_of(ino.0), SeqCst);
        self.page().slots[slot].store(ino.0, SeqCst);
        self.now() == since && !self.is_ended()
    }

    /// The mount: the slot need not stand for `ino` any more, and is free again. False where its
    /// file has become the object of `ino`, or nothing is lent by this table any more.
    pub fn give_back(&self, slot: usize, ino: Ino) -> bool {
        let slot = &self.page().slots[slot];
        slot.compare_exchange(ino.0, FREE, SeqCst, SeqCst).is_ok() && !self.is_ended()
    }

    /// The daemon: an object may be made from now on.
    pub fn claim(&self) {
        self.page().claims.fetch_add(1, SeqCst);
    }

    /// The daemon: takes the slot that stands for `ino`, if there is one.
    pub fn take(&self, ino: Ino) -> Option<usize> {
        let taken = |slot: &AtomicU64| {
            slot.load(SeqCst) == ino.0
                && slot.compare_exchange(ino.0, ino.0 | TAKEN, SeqCst, SeqCst).is_ok()
        };
        self.page().slots.iter().position(taken)
    }

    /// The daemon: puts back what [`Table::take`] took and could not be made an object.
    pub fn untake(&self, slot: usize, ino: Ino) {
        self.page().slots[slot].store(ino.0, SeqCst);
    }

    /// The inode that a slot stands for.
    pub fn stands_for(&self, slot: usize) -> Option<Ino> {
        let ino = self.page().slots.get(slot)?.load(SeqCst);
        (ino != FREE && ino & TAKEN == 0).then_some(Ino(ino))
    }

    /// The inode whose object the file of a taken slot was to become. A daemon that died may
    /// not have come to it.
    pub fn was_taken_for(&self, slot: usize) -> Option<Ino> {
        let ino = self.page().slots.get(slot)?.load(SeqCst);
        (ino & TAKEN != 0).then_some(Ino(ino & !TAKEN))
    }

    /// The daemon: a taken slot has a new file.
    pub fn renew(&self, slot: usize) {
        self.page().slots[slot].store(FREE, SeqCst);
    }

    /// The daemon, for the last time: makes a slot stand for what it was lent for, where the disk gave one bit of it back
    /// changed. False where that cannot be found: then nobody knows whose the bytes of its file are, if it `has_bytes`.
    pub fn mend(&self, slot: usize, has_bytes: bool) -> bool {
        let (at, check) = (&self.page().slots[slot], self.page().checks[slot].load(SeqCst));
        let found = at.load(SeqCst);
        // A daemon of an earlier version made tables without checks. A file without bytes was perhaps given back.
        if self.page().head.load(SeqCst) == 0 || found == FREE && !has_bytes {
            return true;
        }
        match mended(found, check) {
            Some(right) => {
                at.store(right, SeqCst);
                true
            }
            None => false,
        }
    }

    /// The daemon: no more is lent.
    pub fn end(&self) {
        self.page().ended.store(1, SeqCst);
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        // SAFETY: the mapping of `map`, to which nothing else refers.
        let unmapped = unsafe { rustix::mm::munmap(self.0.as_ptr().cast(), TABLE_LEN) };
        debug_assert!(unmapped.is_ok());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    const INO: Ino = Ino(7);

    fn both() -> (Table, Table) {
        let file: File = tempfile::tempfile().expect("a file");
        let daemon = Table::create(&file, 5).expect("made");
        let mount = Table::map(&file).expect("mapped");
        assert_eq!(mount.boot(), 5);
        (daemon, mount)
    }

    #[test]
    fn what_is_lent_is_given_back_or_taken() {
        let (daemon, mount) = both();
        assert!(mount.lend(3, INO, mount.now()));
        assert_eq!(daemon.stands_for(3), Some(INO));
        assert_eq!(daemon.take(Ino(8)), None);
        assert!(mount.give_back(3, INO));
        assert_eq!((daemon.take(INO), daemon.stands_for(3)), (None, None));
        assert!(mount.lend(3, INO, mount.now()));
        assert_eq!((daemon.take(INO), daemon.take(INO)), (Some(3), None));
        assert_eq!((daemon.stands_for(3), daemon.was_taken_for(3)), (None, Some(INO)));
        assert!(!mount.give_back(3, INO), "it is an object");
        daemon.renew(3);
        assert!(mount.lend(3, Ino(9), mount.now()));
        assert_eq!(daemon.stands_for(SLOTS), None);
    }

    #[test]
    fn inodes_of_all_shards_can_be_lent_to() {
        let (daemon, mount) = both();
        for shard in [0, 1, 2047, 2048, 4095].map(tatami_wire::ShardId) {
            let ino = Ino::new(shard, shard, Ino::COUNTER_MAX);
            assert!(mount.lend(0, ino, mount.now()), "{ino}");
            assert_eq!((daemon.take(ino), daemon.was_taken_for(0)), (Some(0), Some(ino)));
            daemon.renew(0);
        }
    }

    #[test]
    fn one_of_the_two_notices_the_other() {
        let (daemon, mount) = both();
        let before = mount.now();
        daemon.claim();
        assert!(!mount.lend(0, INO, before), "the daemon may have looked before");
        assert!(mount.lend(1, Ino(8), mount.now()));
        daemon.claim();
        assert_eq!(daemon.take(Ino(8)), Some(1), "the daemon looks after it");
        daemon.untake(1, Ino(8));
        assert_eq!(daemon.stands_for(1), Some(Ino(8)));
    }

    #[test]
    fn a_claim_and_a_loan_at_the_same_time_do_not_miss_each_other() {
        for _ in 0..200 {
            let (daemon, mount) = both();
            let before = mount.now();
            let (found, lent) = std::thread::scope(|scope| {
                let found = scope.spawn(|| {
                    daemon.claim();
                    daemon.take(INO).is_some()
                });
                let lent = scope.spawn(|| mount.lend(0, INO, before));
                (found.join().expect("no panic"), lent.join().expect("no panic"))
            });
            assert!(found || !lent);
        }
    }

    #[test]
    fn after_the_end_nothing_is_lent_nor_used_again() {
        let (daemon, mount) = both();
        let now = mount.now();
        assert!(mount.lend(0, INO, now));
        daemon.end();
        assert!(!mount.lend(1, Ino(8), now));
        assert!(!mount.give_back(0, INO));
        assert!(mount.is_ended());
    }

    #[test]
    fn one_flipped_bit_of_a_slot_is_mended() {
        for ino in [INO, Ino(2), Ino(0x0123_0450_6789_abcd)] {
            for bit in 0..64 {
                let (daemon, mount) = both();
                assert!(mount.lend(3, ino, mount.now()));
                daemon.page().slots[3].fetch_xor(1 << bit, SeqCst);
                assert!(daemon.mend(3, true), "{ino}, bit {bit}");
                assert_eq!(daemon.stands_for(3).or(daemon.was_taken_for(3)), Some(ino));
                daemon.page().checks[3].fetch_xor(1 << bit, SeqCst);
                assert!(daemon.mend(3, true), "{ino}, bit {bit} of the check");
                assert_eq!(daemon.stands_for(3).or(daemon.was_taken_for(3)), Some(ino));
            }
            let (daemon, mount) = both();
            assert!(mount.lend(3, ino, mount.now()));
            daemon.page().slots[3].fetch_xor(0b1010, SeqCst);
            assert!(!daemon.mend(3, true), "two bits");
        }
    }

    #[test]
    fn a_table_of_this_boot_is_known_with_a_flipped_bit() {
        for word in [0, 8, std::mem::offset_of!(Page, head)] {
            for bit in 0..64 {
                let file = tempfile::tempfile().expect("a file");
                let table = Table::create(&file, 5).expect("made");
                let mut bytes = [0; 8];
                rustix::io::pread(&file, &mut bytes, word as u64).expect("read");
                bytes[bit / 8] ^= 1 << (bit % 8);
                rustix::io::pwrite(&file, &bytes, word as u64).expect("written");
                drop(table);
                assert!(Table::map_of(&file, 5).expect("mapped").is_some(), "{word}, {bit}");
                assert!(Table::map_of(&file, 6).expect("mapped").is_none(), "{word}, {bit}");
            }
        }
    }

    #[test]
    fn what_is_no_table_is_refused() {
        let file = tempfile::tempfile().expect("a file");
        assert!(Table::map(&file).is_err());
        file.set_len(TABLE_LEN as u64).expect("cut");
        assert!(Table::map(&file).is_err());
    }
}
