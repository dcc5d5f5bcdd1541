//! The table of spare files: which spare stands for which inode.
//!
//! A new file has no object until it has a byte. But the kernel, which reads and writes past the
//! mount, needs a file of the disk at the open. So a node gives the mount empty files that belong
//! to no object (*spares*). In memory that the mount shares with the node's daemon, it records the
//! inode that each of them stands for. A client that asks the daemon for a missing object gets the
//! spare that stands for it, and the spare becomes that object. A file that is closed without a
//! byte returns its spare. None of this costs a system call.
//!
//! **Writers.** A slot is free, or stands for an inode, or is taken (its file has become an
//! object). The mount makes free slots stand for inodes, and frees them. The daemon takes slots,
//! each by compare-and-exchange against the inode, and frees those to which it has given a new
//! file.
//!
//! **Races.** The daemon may make an object while the mount is about to use a spare for the same
//! inode. Both follow Dekker's flag protocol: each first publishes its own action, and then reads
//! the other's. The daemon counts a *claim* and then searches the slots; the mount fills the slot
//! and then reads the claims. So at least one of them notices the other, and a mount that notices
//! asks the daemon.
//!
//! The table is a file of the data directory, so it outlives both processes. A daemon that starts
//! makes objects of all spares that the daemon before has given out. After a power cut the table is
//! void, because it was never synced; the boot id in it shows that.

#[cfg(test)]
mod schedules;

use crate::table_word::TableWord;
use rustix::mm::{MapFlags, ProtFlags};
use std::io;
use std::ops::Deref;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;
use tatami_wire::Ino;

/// Number of spares in one table.
pub const SLOTS: usize = 64;
/// Length of a table's file, in bytes.
pub const TABLE_LEN: usize = 4096;

const MAGIC: u64 = u64::from_le_bytes(*b"TATAMI-S");
const FREE: u64 = 0;
/// Set beside the inode in a slot that is taken.
const TAKEN: u64 = Ino::MARK;

/// The words of a table, at the start of its file. Any bytes are valid.
///
/// The methods are the protocol between the mount and the daemon. They do not depend on the kind of
/// the word, so that a test can run them in every order (see the module `schedules`).
#[repr(C)]
pub struct SparePage<W = AtomicU64, const N: usize = SLOTS> {
    magic: W,
    boot: W,
    /// Not 0: this table gives out no more spares.
    ended: W,
    claims: W,
    slots: [W; N],
    /// The check of the inode of each slot: one flipped bit of the two words is found and repaired.
    checks: [W; N],
    /// The check of the boot: identifies the table's boot even if a bit of the first words has
    /// flipped.
    head: W,
}

/// Returns the check of a number, never 0. (The finalizer of SplitMix64: one changed bit changes
/// half of all bits.)
fn check_of(number: u64) -> u64 {
    let mut mixed = number ^ MAGIC;
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    (mixed ^ mixed >> 31).max(1)
}

/// Returns the inode of a slot by its check; one bit of the two may have flipped. `None` if they do
/// not belong together.
fn repair_word(slot: u64, check: u64) -> Option<u64> {
    // The mark of a taken slot is not part of the check: the daemon sets it with one exchange,
    // without the check.
    let fits = |slot: u64, check: u64| (check_of(slot & !TAKEN) == check).then_some(slot);
    let bits = || (0..64).map(|bit| 1u64 << bit);
    let by_slot = || bits().find_map(|bit| fits(slot ^ bit, check));
    let by_check = || bits().find_map(|bit| fits(slot, check ^ bit));
    fits(slot, check).or_else(by_slot).or_else(by_check)
}

const _: () = assert!(size_of::<SparePage>() <= TABLE_LEN);

/// A value of the claim counter, for [`SparePage::assign_slot`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClaimCount(u64);

/// A table that is mapped into memory; see the module.
pub struct SpareTable(NonNull<SparePage>);

// SAFETY: the mapping belongs to this value until it is dropped, and everything reached through it
// is atomic.
unsafe impl Send for SpareTable {}
// SAFETY: as above.
unsafe impl Sync for SpareTable {}

impl SpareTable {
    /// Makes a new table in an empty file, for the boot `boot` of the machine.
    ///
    /// # Errors
    /// Those of write(2) and mmap(2).
    pub fn create(file: impl AsFd, boot: u64) -> io::Result<SpareTable> {
        // Written, not only extended: a store into a page for which the disk has no block would
        // raise SIGBUS.
        let mut page = [0; TABLE_LEN];
        page[..8].copy_from_slice(&MAGIC.to_ne_bytes());
        page[8..16].copy_from_slice(&boot.to_ne_bytes());
        let head = std::mem::offset_of!(SparePage, head);
        page[head..head + 8].copy_from_slice(&check_of(boot).to_ne_bytes());
        if rustix::io::pwrite(&file, &page, 0)? < TABLE_LEN {
            return Err(io::ErrorKind::StorageFull.into());
        }
        SpareTable::map_file(file)
    }

    /// Maps the table in a file.
    ///
    /// # Errors
    /// `InvalidData` if there is none; those of fstat(2) and mmap(2).
    pub fn map_file(file: impl AsFd) -> io::Result<SpareTable> {
        let table = SpareTable::map_unchecked(file)?;
        match table.magic.read() == MAGIC {
            true => Ok(table),
            false => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// Maps the table in a file, if it belongs to this boot of the machine. One bit of the words
    /// that identify it may have flipped.
    ///
    /// # Errors
    /// Those of fstat(2) and mmap(2); `InvalidData` if the file has another length.
    pub fn map_of_boot(file: impl AsFd, boot: u64) -> io::Result<Option<SpareTable>> {
        let table = SpareTable::map_unchecked(file)?;
        let says = table.magic.read() == MAGIC && table.boot.read() == boot;
        let is_of = says || table.head.read() == check_of(boot);
        Ok(is_of.then_some(table))
    }

    fn map_unchecked(file: impl AsFd) -> io::Result<SpareTable> {
        // A shorter file would raise SIGBUS at the first access beyond its end.
        if rustix::fs::fstat(&file)?.st_size != TABLE_LEN as i64 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let (read_write, shared) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping, at an address of the kernel's choice.
        let at = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), TABLE_LEN, read_write, shared, &file, 0)?
        };
        Ok(SpareTable(NonNull::new(at.cast()).ok_or(io::ErrorKind::OutOfMemory)?))
    }

    /// Returns the boot of the machine that the table belongs to.
    pub fn boot(&self) -> u64 {
        self.boot.read()
    }
}

impl Deref for SpareTable {
    type Target = SparePage;

    fn deref(&self) -> &SparePage {
        // SAFETY: it points to a mapping of TABLE_LEN bytes, aligned to a page, which lives as long
        // as `self`. No process makes the file shorter. Any bytes are a valid `SparePage`.
        unsafe { self.0.as_ref() }
    }
}

impl<W: TableWord, const N: usize> SparePage<W, N> {
    /// Whether the table gives out no more spares. All spares that it gave out are objects, or will
    /// be before a client can ask for them.
    pub fn is_ended(&self) -> bool {
        self.ended.read() != 0
    }

    /// The mount: reads the claim counter, before it makes an inode.
    pub fn current_claims(&self) -> ClaimCount {
        // Before the inode exists: any claim for it therefore comes later and changes the counter.
        ClaimCount(self.claims.read())
    }

    /// The mount: makes a free slot stand for `ino`, which did not exist at `since`. Returns false
    /// if the daemon may have made an object for it meanwhile: then the mount must ask the daemon.
    pub fn assign_slot(&self, slot: usize, ino: Ino, since: ClaimCount) -> bool {
        if ino.0 & TAKEN != 0 {
            return false;
        }
        // The check goes first: a slot that stands for an inode must have its check, whenever the
        // mount dies.
        self.checks[slot].write(check_of(ino.0));
        // The mount's half of Dekker's protocol: the store of the slot, then the load of the
        // claims. Only sequential consistency keeps a load from passing an earlier store to another
        // word.
        self.slots[slot].write(ino.0);
        self.current_claims() == since && !self.is_ended()
    }

    /// The mount: frees the slot that stands for `ino`. Returns false if its file has become the
    /// object of `ino`, or the table gives out no more spares.
    pub fn return_slot(&self, slot: usize, ino: Ino) -> bool {
        let slot = &self.slots[slot];
        // The daemon may take the slot at the same moment: exactly one of the two exchanges
        // succeeds. The end is read afterwards: from then on the daemon treats the slots as its
        // own.
        slot.exchange(ino.0, FREE) && !self.is_ended()
    }

    /// The daemon: announces that it may make an object.
    pub fn count_claim(&self) {
        // The daemon's half of Dekker's protocol: the claim is counted before
        // [`SparePage::take_slot`] searches the slots. Sequential consistency orders it against the
        // mount's store and load.
        self.claims.increment();
    }

    /// The daemon: takes the slot that stands for `ino`, if there is one.
    pub fn take_slot(&self, ino: Ino) -> Option<usize> {
        let taken = |slot: &W| {
            // The plain load skips the other slots without taking their cache line for writing. The
            // exchange decides against a mount that frees the slot now.
            slot.read() == ino.0 && slot.exchange(ino.0, ino.0 | TAKEN)
        };
        self.slots.iter().position(taken)
    }

    /// The daemon: restores a slot that [`SparePage::take_slot`] took, if its file could not
    /// become an object.
    pub fn restore_slot(&self, slot: usize, ino: Ino) {
        // No exchange is needed: the mount never changes a slot that is taken.
        self.slots[slot].write(ino.0);
    }

    /// Returns the inode that a slot stands for.
    pub fn assigned_inode(&self, slot: usize) -> Option<Ino> {
        let ino = self.slots.get(slot)?.read();
        (ino != FREE && ino & TAKEN == 0).then_some(Ino(ino))
    }

    /// Returns the inode whose object the file of a taken slot was to become. A daemon that died
    /// may not have got that far.
    pub fn taken_inode(&self, slot: usize) -> Option<Ino> {
        let ino = self.slots.get(slot)?.read();
        (ino & TAKEN != 0).then_some(Ino(ino & !TAKEN))
    }

    /// The daemon: frees a taken slot that has a new file.
    pub fn free_slot(&self, slot: usize) {
        // The last step: the mount may use the slot from here on, so its new file must be in place.
        self.slots[slot].write(FREE);
    }

    /// The daemon, for the last time: restores the inode of a slot if the disk returned it with one
    /// flipped bit. Returns false if the inode cannot be found: then the owner of the file's bytes
    /// is unknown, if it `has_bytes`.
    pub fn repair_slot(&self, slot: usize, has_bytes: bool) -> bool {
        let (at, check) = (&self.slots[slot], self.checks[slot].read());
        let found = at.read();
        // A file without bytes may have been returned.
        if found == FREE && !has_bytes {
            return true;
        }
        match repair_word(found, check) {
            Some(right) => {
                at.write(right);
                true
            }
            None => false,
        }
    }

    /// The daemon: gives out no more spares from this table.
    pub fn mark_ended(&self) {
        // The daemon looks through the slots only after this store. A mount that fills or frees a
        // slot later reads the flag afterwards, and then asks the daemon.
        self.ended.write(1);
    }
}

impl Drop for SpareTable {
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
    use std::sync::atomic::Ordering::SeqCst;

    const INO: Ino = Ino(7);

    fn both() -> (SpareTable, SpareTable) {
        let file: File = tempfile::tempfile().expect("a file");
        let daemon = SpareTable::create(&file, 5).expect("made");
        let mount = SpareTable::map_file(&file).expect("mapped");
        assert_eq!(mount.boot(), 5);
        (daemon, mount)
    }

    #[test]
    fn an_assigned_slot_is_returned_or_taken() {
        let (daemon, mount) = both();
        assert!(mount.assign_slot(3, INO, mount.current_claims()));
        assert_eq!(daemon.assigned_inode(3), Some(INO));
        assert_eq!(daemon.take_slot(Ino(8)), None);
        assert!(mount.return_slot(3, INO));
        assert_eq!((daemon.take_slot(INO), daemon.assigned_inode(3)), (None, None));
        assert!(mount.assign_slot(3, INO, mount.current_claims()));
        assert_eq!((daemon.take_slot(INO), daemon.take_slot(INO)), (Some(3), None));
        assert_eq!((daemon.assigned_inode(3), daemon.taken_inode(3)), (None, Some(INO)));
        assert!(!mount.return_slot(3, INO), "it is an object");
        daemon.free_slot(3);
        assert!(mount.assign_slot(3, Ino(9), mount.current_claims()));
        assert_eq!(daemon.assigned_inode(SLOTS), None);
    }

    #[test]
    fn slots_can_stand_for_inodes_of_all_shards() {
        let (daemon, mount) = both();
        for shard in [0, 1, 2047, 2048, 4095].map(tatami_wire::ShardId) {
            let ino = Ino::new(shard, shard, Ino::COUNTER_MAX);
            assert!(mount.assign_slot(0, ino, mount.current_claims()), "{ino}");
            assert_eq!((daemon.take_slot(ino), daemon.taken_inode(0)), (Some(0), Some(ino)));
            daemon.free_slot(0);
        }
    }

    #[test]
    fn one_of_the_two_notices_the_other() {
        let (daemon, mount) = both();
        let before = mount.current_claims();
        daemon.count_claim();
        assert!(!mount.assign_slot(0, INO, before), "the daemon may have looked before");
        assert!(mount.assign_slot(1, Ino(8), mount.current_claims()));
        daemon.count_claim();
        assert_eq!(daemon.take_slot(Ino(8)), Some(1), "the daemon looks after it");
        daemon.restore_slot(1, Ino(8));
        assert_eq!(daemon.assigned_inode(1), Some(Ino(8)));
    }

    #[test]
    fn a_claim_and_an_assignment_at_the_same_time_do_not_miss_each_other() {
        for _ in 0..200 {
            let (daemon, mount) = both();
            let before = mount.current_claims();
            let (found, assigned) = std::thread::scope(|scope| {
                let found = scope.spawn(|| {
                    daemon.count_claim();
                    daemon.take_slot(INO).is_some()
                });
                let assigned = scope.spawn(|| mount.assign_slot(0, INO, before));
                (found.join().expect("no panic"), assigned.join().expect("no panic"))
            });
            assert!(found || !assigned);
        }
    }

    #[test]
    fn after_the_end_no_slot_is_assigned_or_returned() {
        let (daemon, mount) = both();
        let now = mount.current_claims();
        assert!(mount.assign_slot(0, INO, now));
        daemon.mark_ended();
        assert!(!mount.assign_slot(1, Ino(8), now));
        assert!(!mount.return_slot(0, INO));
        assert!(mount.is_ended());
    }

    #[test]
    fn one_flipped_bit_of_a_slot_is_repaired() {
        for ino in [INO, Ino(2), Ino(0x0123_0450_6789_abcd)] {
            for bit in 0..64 {
                let (daemon, mount) = both();
                assert!(mount.assign_slot(3, ino, mount.current_claims()));
                daemon.slots[3].fetch_xor(1 << bit, SeqCst);
                assert!(daemon.repair_slot(3, true), "{ino}, bit {bit}");
                assert_eq!(daemon.assigned_inode(3).or(daemon.taken_inode(3)), Some(ino));
                daemon.checks[3].fetch_xor(1 << bit, SeqCst);
                assert!(daemon.repair_slot(3, true), "{ino}, bit {bit} of the check");
                assert_eq!(daemon.assigned_inode(3).or(daemon.taken_inode(3)), Some(ino));
            }
            let (daemon, mount) = both();
            assert!(mount.assign_slot(3, ino, mount.current_claims()));
            daemon.slots[3].fetch_xor(0b1010, SeqCst);
            assert!(!daemon.repair_slot(3, true), "two bits");
        }
    }

    #[test]
    fn a_table_of_this_boot_is_known_with_a_flipped_bit() {
        for word in [0, 8, std::mem::offset_of!(SparePage, head)] {
            for bit in 0..64 {
                let file = tempfile::tempfile().expect("a file");
                let table = SpareTable::create(&file, 5).expect("made");
                let mut bytes = [0; 8];
                rustix::io::pread(&file, &mut bytes, word as u64).expect("read");
                bytes[bit / 8] ^= 1 << (bit % 8);
                rustix::io::pwrite(&file, &bytes, word as u64).expect("written");
                drop(table);
                assert!(
                    SpareTable::map_of_boot(&file, 5).expect("mapped").is_some(),
                    "{word}, {bit}"
                );
                assert!(
                    SpareTable::map_of_boot(&file, 6).expect("mapped").is_none(),
                    "{word}, {bit}"
                );
            }
        }
    }

    #[test]
    fn a_file_that_is_no_table_is_refused() {
        let file = tempfile::tempfile().expect("a file");
        assert!(SpareTable::map_file(&file).is_err());
        file.set_len(TABLE_LEN as u64).expect("cut");
        assert!(SpareTable::map_file(&file).is_err());
    }
}
