//! The atomic word of which a table is made.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;

/// A word that several processes change. All accesses are sequentially consistent: in Dekker's flag
/// protocol each side stores one word and then loads another, which no weaker order keeps apart.
pub trait TableWord {
    /// Returns the value.
    fn read(&self) -> u64;
    /// Stores a value.
    fn write(&self, value: u64);
    /// Stores `new` if the value is `old`; returns whether it did.
    fn exchange(&self, old: u64, new: u64) -> bool;
    /// Adds one.
    fn increment(&self);
}

impl TableWord for AtomicU64 {
    fn read(&self) -> u64 {
        AtomicU64::load(self, SeqCst)
    }

    fn write(&self, value: u64) {
        AtomicU64::store(self, value, SeqCst);
    }

    fn exchange(&self, old: u64, new: u64) -> bool {
        self.compare_exchange(old, new, SeqCst, SeqCst).is_ok()
    }

    fn increment(&self) {
        self.fetch_add(1, SeqCst);
    }
}
