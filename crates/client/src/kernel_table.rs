//! The delegated attributes that a kernel caches for itself, so that it need not ask the client
//! (kernel attribute cache).
//!
//! A mounted front end may let the kernel cache attributes that are delegated to this client, and
//! names of directories (`lent_names`). Before the client returns a delegation, the kernel must
//! have dropped them. The kernel drops attributes at once, on request
//! ([`KernelCache::invalidate_attr`]).

use crate::lent_names::KernelName;
use crate::uptime::uptime;
use std::collections::HashMap;
use std::time::Duration;
use tatami_wire::{Ino, hash};

/// Most inodes with facts in the kernel, in each part of the table.
const KERNEL_ENTRIES_MAX: usize = 16 * 1024;

/// Called when the kernel has dropped names, with a bit for each: whether it is sure that the
/// kernel does not use the name any more.
pub type NamesExpired = Box<dyn FnOnce(Vec<bool>) + Send>;

/// A kernel that caches attributes, and names of directories.
pub trait KernelCache: Send + Sync {
    /// Makes the kernel drop the attributes of `ino`, which it last got `ago` before now. When this
    /// returns, the kernel does not use them any more.
    fn invalidate_attr(&self, ino: Ino, ago: Duration);

    /// Whether the kernel can drop names on request. Otherwise it gets none.
    fn can_expire_names(&self) -> bool;

    /// Makes the kernel ask again for these names when it uses them next. Returns at once and calls
    /// `done` in the end, possibly before it returns: the kernel first waits for the operations in
    /// the directories of the names.
    fn expire_names(&self, names: Vec<KernelName>, done: NamesExpired);
}

/// The attributes of one inode that the kernel caches.
#[derive(Clone, Copy)]
struct KernelEntry {
    /// The inode under which the kernel shows them: for a partition, the directory.
    shown: Ino,
    /// When the kernel got them last.
    given: Duration,
    /// Until when it uses them at most.
    end: Duration,
}

/// The attributes that the kernel caches, of some inodes.
#[derive(Default)]
pub(crate) struct KernelTable(HashMap<Ino, KernelEntry, hash::HashBuilder>);

impl KernelTable {
    /// Records that the kernel is about to get the attributes of `shown` until `end`. `shown` is
    /// the inode itself, or the directory of which it is a partition. Returns whether the kernel
    /// may get them.
    pub(crate) fn record_attr(
        &mut self,
        ino: Ino,
        shown: Ino,
        now: Duration,
        end: Duration,
    ) -> bool {
        if self.0.len() >= KERNEL_ENTRIES_MAX && !self.0.contains_key(&ino) {
            self.0.retain(|_, kept| kept.end > now);
            if self.0.len() >= KERNEL_ENTRIES_MAX {
                // An unrecorded fact could never be revoked, so the kernel gets none when the table
                // is full.
                return false;
            }
        }
        self.0.insert(ino, KernelEntry { shown, given: now, end });
        true
    }

    /// Ends the record of attributes. Returns the inode under which the kernel shows them, and when
    /// it got them last.
    pub(crate) fn take_attr(&mut self, ino: Ino) -> Option<(Ino, Duration)> {
        let KernelEntry { shown, given, .. } = self.0.remove(&ino)?;
        Some((shown, given))
    }

    /// Ends all records. Returns what [`KernelTable::take_attr`] returns, for each.
    pub(crate) fn take_all(&mut self) -> impl Iterator<Item = (Ino, Duration)> + '_ {
        self.0.drain().map(|(_, kept)| (kept.shown, kept.given))
    }
}

/// Makes the kernel drop these attributes, which it got at that time.
pub(crate) fn revoke_attrs(attrs: Vec<(Ino, Duration)>, kernel: Option<&dyn KernelCache>) {
    if let Some(kernel) = kernel {
        for (ino, given) in attrs {
            kernel.invalidate_attr(ino, uptime().saturating_sub(given));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(1000);
    const TIME: Duration = Duration::from_millis(50);

    #[test]
    fn all_that_was_lent_is_owed_once() {
        let mut lent = KernelTable::default();
        assert!(lent.record_attr(Ino(5), Ino(5), NOW, NOW + TIME));
        assert!(lent.record_attr(Ino(5), Ino(5), NOW + TIME, NOW + 9 * TIME));
        assert_eq!(lent.take_attr(Ino(5)), Some((Ino(5), NOW + TIME)));
        assert_eq!(lent.take_attr(Ino(5)), None);
        // For a partition, the directory.
        assert!(lent.record_attr(Ino(9), Ino(1), NOW, NOW + TIME));
        assert!(lent.record_attr(Ino(8), Ino(8), NOW, NOW + TIME));
        let mut all: Vec<_> = lent.take_all().collect();
        all.sort();
        assert_eq!(all, [(Ino(1), NOW), (Ino(8), NOW)]);
        assert_eq!(lent.take_attr(Ino(9)), None);
    }

    #[test]
    fn what_is_over_makes_room() {
        let (mut lent, next) = (KernelTable::default(), Ino(KERNEL_ENTRIES_MAX as u64));
        for n in 0..KERNEL_ENTRIES_MAX as u64 {
            assert!(lent.record_attr(Ino(n), Ino(n), NOW, NOW + TIME));
        }
        assert!(!lent.record_attr(next, next, NOW, NOW + TIME));
        assert!(lent.record_attr(Ino(3), Ino(3), NOW, NOW + TIME), "it is there");
        assert!(lent.record_attr(next, next, NOW + TIME, NOW + 2 * TIME));
        assert_eq!(lent.0.len(), 1);
    }
}
