//! What of our delegations a kernel keeps for itself, so that it need not ask us.
//!
//! A front end that is mounted may let the kernel keep attributes and names that are delegated to us. When they are
//! given back, the kernel must have forgotten them before. Attributes it forgets when it is told
//! ([`KernelCache::forget_attr`]). To forget a name it would have to wait for whoever works in the directory, who may
//! wait for us; so names are lent for a short time, which is waited out.

use crate::delegations::uptime;
use std::collections::HashMap;
use std::time::Duration;
use tatami_wire::{Ino, hash};

/// A name is kept for this part of the time for which nobody else has changed its directory, one in so many: waiting
/// that out makes others slower by no more.
const NAME_PART: u32 = 10;
/// No name is kept for longer.
const NAME_LONGEST: Duration = Duration::from_millis(100);
/// Nor for so short a time: it would not pay.
const NAME_SHORTEST: Duration = Duration::from_millis(10);
/// After the end of that time others wait for so much longer: the kernel counts it from when the thread that asked
/// has run again.
const NAME_GRACE: Duration = Duration::from_millis(100);
/// Most inodes of which the kernel keeps something, in each part of the table.
const LENT_MAX: usize = 16 * 1024;

/// A kernel that keeps attributes.
pub trait KernelCache: Send + Sync {
    /// When this returns, the kernel does not use the attributes of `ino` any more which it was given, the last time so
    /// long ago.
    fn forget_attr(&self, ino: Ino, ago: Duration);
}

/// What the kernel keeps of one inode.
#[derive(Clone, Copy, Default)]
struct Kept {
    /// Its attributes: when it was given them last, and until when it keeps them at most. Of a partition: those of
    /// this directory.
    attr: Option<(Ino, Duration, Duration)>,
    /// Names of a directory, until when.
    names: Duration,
}

/// What the kernel keeps, of some inodes.
#[derive(Default)]
pub(crate) struct Lent(HashMap<Ino, Kept, hash::Build>);

/// What is to be forgotten, or waited for.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Owed {
    /// Of these the kernel keeps attributes, which it was given then.
    pub(crate) attrs: Vec<(Ino, Duration)>,
    /// Until then it keeps names.
    pub(crate) names: Duration,
}

/// For how long the kernel may keep a name of a directory that nobody else has changed for so long.
pub(crate) fn name_time(quiet: Duration) -> Option<Duration> {
    let time = (quiet / NAME_PART).min(NAME_LONGEST);
    (time >= NAME_SHORTEST).then_some(time)
}

impl Lent {
    /// The kernel is about to be given the attributes of `shown`, which is the inode itself or the directory of which it is a
    /// partition, until `end`. Whether it may be.
    pub(crate) fn lend_attr(&mut self, ino: Ino, shown: Ino, now: Duration, end: Duration) -> bool {
        let Some(kept) = self.enter(ino, now) else { return false };
        kept.attr = Some((shown, now, end));
        true
    }

    /// The kernel is about to be given a name of directory `dir`, for `time`. Whether it may be.
    pub(crate) fn lend_name(&mut self, dir: Ino, now: Duration, time: Duration) -> bool {
        let Some(kept) = self.enter(dir, now) else { return false };
        kept.names = kept.names.max(now + time + NAME_GRACE);
        true
    }

    fn enter(&mut self, ino: Ino, now: Duration) -> Option<&mut Kept> {
        if self.0.len() >= LENT_MAX && !self.0.contains_key(&ino) {
            self.0.retain(|_, kept| {
                kept.names > now || kept.attr.is_some_and(|(_, _, end)| end > now)
            });
            if self.0.len() >= LENT_MAX {
                return None;
            }
        }
        Some(self.0.entry(ino).or_default())
    }

    /// The attributes are not lent any more. Whose they were, and when they were last given.
    pub(crate) fn take_attr(&mut self, ino: Ino) -> Option<(Ino, Duration)> {
        let (shown, given, _) = self.0.get_mut(&ino)?.attr.take()?;
        Some((shown, given))
    }

    /// Nothing of the inode is lent any more.
    pub(crate) fn take(&mut self, ino: Ino, owed: &mut Owed) {
        if let Some(kept) = self.0.remove(&ino) {
            owed.add(kept);
        }
    }

    /// Nothing is lent any more.
    pub(crate) fn take_all(&mut self, owed: &mut Owed) {
        self.0.drain().for_each(|(_, kept)| owed.add(kept));
    }
}

impl Owed {
    fn add(&mut self, kept: Kept) {
        self.attrs.extend(kept.attr.map(|(shown, given, _)| (shown, given)));
        self.names = self.names.max(kept.names);
    }

    /// Has the attributes forgotten. Returns how long names are to be waited for.
    pub(crate) fn settle(self, kernel: Option<&dyn KernelCache>) -> Duration {
        if let Some(kernel) = kernel {
            for (ino, given) in self.attrs {
                kernel.forget_attr(ino, uptime().saturating_sub(given));
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
        let mut lent = Lent::default();
        assert!(lent.lend_attr(Ino(5), Ino(5), NOW, NOW + TIME));
        assert!(lent.lend_attr(Ino(5), Ino(5), NOW + TIME, NOW + 9 * TIME));
        assert!(lent.lend_name(Ino(5), NOW, TIME) && lent.lend_name(Ino(7), NOW, 2 * TIME));
        let mut owed = Owed::default();
        lent.take(Ino(5), &mut owed);
        let names = NOW + TIME + NAME_GRACE;
        assert_eq!(owed, Owed { attrs: vec![(Ino(5), NOW + TIME)], names });
        lent.take(Ino(5), &mut owed);
        assert_eq!(owed.attrs.len(), 1);
        lent.take_all(&mut owed);
        assert_eq!(owed, Owed { attrs: vec![(Ino(5), NOW + TIME)], names: names + TIME });
        assert!(lent.lend_attr(Ino(8), Ino(8), NOW, NOW + TIME));
        assert_eq!((lent.take_attr(Ino(8)), lent.take_attr(Ino(8))), (Some((Ino(8), NOW)), None));
        // Of a partition, the directory.
        assert!(lent.lend_attr(Ino(9), Ino(1), NOW, NOW + TIME));
        assert_eq!(lent.take_attr(Ino(9)), Some((Ino(1), NOW)));
    }

    #[test]
    fn what_is_over_makes_room() {
        let mut lent = Lent::default();
        for n in 0..LENT_MAX as u64 {
            assert!(lent.lend_attr(Ino(n), Ino(n), NOW, NOW + TIME));
        }
        assert!(!lent.lend_attr(Ino(LENT_MAX as u64), Ino(LENT_MAX as u64), NOW, NOW + TIME));
        assert!(lent.lend_attr(Ino(3), Ino(3), NOW, NOW + TIME), "it is there");
        assert!(lent.lend_attr(
            Ino(LENT_MAX as u64),
            Ino(LENT_MAX as u64),
            NOW + TIME,
            NOW + 2 * TIME
        ));
        assert_eq!(lent.0.len(), 1);
    }

    #[test]
    fn names_are_lent_for_a_part_of_the_quiet_time() {
        assert_eq!(name_time(Duration::from_millis(99)), None);
        assert_eq!(name_time(Duration::from_millis(300)), Some(Duration::from_millis(30)));
        assert_eq!(name_time(Duration::from_secs(300)), Some(NAME_LONGEST));
    }
}
