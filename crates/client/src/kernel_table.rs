//! The delegated facts that a kernel caches for itself, so that it need not ask the client (kernel
//! attribute cache).
//!
//! A mounted front end may let the kernel cache attributes and names that are delegated to this
//! client. Before the client returns a delegation, the kernel must have dropped them. The kernel
//! drops attributes on request ([`KernelCache::invalidate_attr`]). To drop a name, the kernel would
//! wait for the threads that work in the directory, and these may wait for this client. So names
//! are cached for a short time only, and the client waits until it has passed.

use crate::uptime::uptime;
use std::collections::HashMap;
use std::time::Duration;
use tatami_wire::{Ino, hash};

/// The kernel caches a name for one part in `NAME_PART` of the time for which no other client has
/// changed the directory. So waiting out that time makes other clients slower by no more than that
/// share.
const NAME_PART: u32 = 10;
/// Longest time for a name.
const NAME_LONGEST: Duration = Duration::from_millis(100);
/// Shortest time for a name: less would not pay.
const NAME_SHORTEST: Duration = Duration::from_millis(10);
/// Other clients wait for this much longer after the end of that time: the kernel counts the time
/// from when the thread that asked runs again.
const NAME_GRACE: Duration = Duration::from_millis(100);
/// Most inodes with facts in the kernel, in each part of the table.
const KERNEL_ENTRIES_MAX: usize = 16 * 1024;

/// A kernel that caches attributes.
pub trait KernelCache: Send + Sync {
    /// Makes the kernel drop the attributes of `ino`, which it last got `ago` before now. When this
    /// returns, the kernel does not use them any more.
    fn invalidate_attr(&self, ino: Ino, ago: Duration);
}

/// The facts of one inode that the kernel caches.
#[derive(Clone, Copy, Default)]
struct KernelEntry {
    /// Its attributes: the inode under which the kernel shows them (for a partition, the
    /// directory), when the kernel got them last, and until when it uses them at most.
    attr: Option<(Ino, Duration, Duration)>,
    /// Until when the kernel uses names of this directory.
    names: Duration,
}

/// The facts that the kernel caches, of some inodes.
#[derive(Default)]
pub(crate) struct KernelTable(HashMap<Ino, KernelEntry, hash::HashBuilder>);

/// Facts that the kernel must drop, or whose time must pass.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct KernelRevocation {
    /// The kernel caches attributes of these inodes, since that time.
    pub(crate) attrs: Vec<(Ino, Duration)>,
    /// The kernel uses names until this time.
    pub(crate) names: Duration,
}

/// Returns for how long the kernel may cache a name of a directory that no other client has changed
/// for `quiet`.
pub(crate) fn entry_timeout_after(quiet: Duration) -> Option<Duration> {
    let time = (quiet / NAME_PART).min(NAME_LONGEST);
    (time >= NAME_SHORTEST).then_some(time)
}

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
        let Some(kept) = self.enter_inode(ino, now) else { return false };
        kept.attr = Some((shown, now, end));
        true
    }

    /// Records that the kernel is about to get a name of directory `dir`, for `time`. Returns
    /// whether it may.
    pub(crate) fn record_entry(&mut self, dir: Ino, now: Duration, time: Duration) -> bool {
        let Some(kept) = self.enter_inode(dir, now) else { return false };
        kept.names = kept.names.max(now + time + NAME_GRACE);
        true
    }

    fn enter_inode(&mut self, ino: Ino, now: Duration) -> Option<&mut KernelEntry> {
        if self.0.len() >= KERNEL_ENTRIES_MAX && !self.0.contains_key(&ino) {
            self.0.retain(|_, kept| {
                kept.names > now || kept.attr.is_some_and(|(_, _, end)| end > now)
            });
            if self.0.len() >= KERNEL_ENTRIES_MAX {
                // An unrecorded fact could never be revoked, so the kernel gets none when the table
                // is full.
                return None;
            }
        }
        Some(self.0.entry(ino).or_default())
    }

    /// Ends the record of attributes. Returns the inode under which the kernel shows them, and when
    /// it got them last.
    pub(crate) fn take_attr(&mut self, ino: Ino) -> Option<(Ino, Duration)> {
        let (shown, given, _) = self.0.get_mut(&ino)?.attr.take()?;
        Some((shown, given))
    }

    /// Ends all records of the inode.
    pub(crate) fn take_inode(&mut self, ino: Ino, owed: &mut KernelRevocation) {
        if let Some(kept) = self.0.remove(&ino) {
            owed.add_entry(kept);
        }
    }

    /// Ends all records.
    pub(crate) fn take_all(&mut self, owed: &mut KernelRevocation) {
        self.0.drain().for_each(|(_, kept)| owed.add_entry(kept));
    }
}

impl KernelRevocation {
    fn add_entry(&mut self, kept: KernelEntry) {
        self.attrs.extend(kept.attr.map(|(shown, given, _)| (shown, given)));
        self.names = self.names.max(kept.names);
    }

    /// Makes the kernel drop the attributes. Returns how long the caller must wait until the names
    /// have expired.
    pub(crate) fn revoke_from_kernel(self, kernel: Option<&dyn KernelCache>) -> Duration {
        if let Some(kernel) = kernel {
            for (ino, given) in self.attrs {
                kernel.invalidate_attr(ino, uptime().saturating_sub(given));
            }
        }
        match self.names {
            Duration::ZERO => Duration::ZERO,
            until => until.saturating_sub(uptime()),
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
        assert!(lent.record_entry(Ino(5), NOW, TIME) && lent.record_entry(Ino(7), NOW, 2 * TIME));
        let mut owed = KernelRevocation::default();
        lent.take_inode(Ino(5), &mut owed);
        let names = NOW + TIME + NAME_GRACE;
        assert_eq!(owed, KernelRevocation { attrs: vec![(Ino(5), NOW + TIME)], names });
        lent.take_inode(Ino(5), &mut owed);
        assert_eq!(owed.attrs.len(), 1);
        lent.take_all(&mut owed);
        assert_eq!(
            owed,
            KernelRevocation { attrs: vec![(Ino(5), NOW + TIME)], names: names + TIME }
        );
        assert!(lent.record_attr(Ino(8), Ino(8), NOW, NOW + TIME));
        assert_eq!((lent.take_attr(Ino(8)), lent.take_attr(Ino(8))), (Some((Ino(8), NOW)), None));
        // For a partition, the directory.
        assert!(lent.record_attr(Ino(9), Ino(1), NOW, NOW + TIME));
        assert_eq!(lent.take_attr(Ino(9)), Some((Ino(1), NOW)));
    }

    #[test]
    fn what_is_over_makes_room() {
        let mut lent = KernelTable::default();
        for n in 0..KERNEL_ENTRIES_MAX as u64 {
            assert!(lent.record_attr(Ino(n), Ino(n), NOW, NOW + TIME));
        }
        assert!(!lent.record_attr(
            Ino(KERNEL_ENTRIES_MAX as u64),
            Ino(KERNEL_ENTRIES_MAX as u64),
            NOW,
            NOW + TIME
        ));
        assert!(lent.record_attr(Ino(3), Ino(3), NOW, NOW + TIME), "it is there");
        assert!(lent.record_attr(
            Ino(KERNEL_ENTRIES_MAX as u64),
            Ino(KERNEL_ENTRIES_MAX as u64),
            NOW + TIME,
            NOW + 2 * TIME
        ));
        assert_eq!(lent.0.len(), 1);
    }

    #[test]
    fn names_are_lent_for_a_part_of_the_quiet_time() {
        assert_eq!(entry_timeout_after(Duration::from_millis(99)), None);
        assert_eq!(
            entry_timeout_after(Duration::from_millis(300)),
            Some(Duration::from_millis(30))
        );
        assert_eq!(entry_timeout_after(Duration::from_secs(300)), Some(NAME_LONGEST));
    }
}
