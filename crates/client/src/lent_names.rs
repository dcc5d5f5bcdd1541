//! The names of directories that a kernel caches for itself.
//!
//! A program that works in a directory resolves the names above it again and again. So the kernel
//! may cache the name of a directory that it has asked for several times, while the directory
//! itself is delegated to this client: another client that renames or removes it recalls it. Names
//! of files, and names that are absent, are never lent. The kernel asks for them, and the mount
//! answers from its own cache.
//!
//! Before the client returns the delegation, the kernel must have dropped the name. The kernel does
//! so on request, but two cases are left to time:
//!
//! - A thread that revalidates a name gets our answer, and sets the time of the name when it runs
//!   again. That may be after the request to drop it. So a name counts as dropped [`NAME_GRACE`]
//!   after the last answer at the earliest.
//! - A rename by this mount takes the cached name along, so the kernel has it in another place.
//!
//! While a program of this machine renames or removes a directory, its kernel holds the locks that
//! it would need to drop the name. And the change itself may recall the directory from this client.
//! So such a recall is answered at once: until the operation ends, the program itself sees the old
//! name anyway. After the end the kernel is asked to drop the name ([`LentNames::end_change`]).

use std::collections::HashMap;
use std::time::Duration;
use tatami_wire::{Ino, hash};

/// The kernel gets a name to cache when it asks for it for the `HOT_LOOKUPS`th time. A name that is
/// looked at once would cost a recall more than it saves.
const HOT_LOOKUPS: u8 = 3;
/// The first of them must be this long ago, so that many threads at one time count as one.
const QUIET: Duration = Duration::from_millis(500);
/// After a recall, no name is lent for this long. Where other clients work, their changes would
/// wait for the grace now and then.
const QUIET_AFTER_RECALL: Duration = Duration::from_secs(10);
/// Longest time for a name. After that the kernel asks once more, which costs some microseconds.
/// Two mounts that remove neighbouring directories can wait for each other's kernel for so long.
const NAME_TIME: Duration = Duration::from_millis(200);
/// Shortest time for a name: less would not pay.
const NAME_TIME_MIN: Duration = Duration::from_millis(10);
/// How long a thread of the kernel may take from our answer until it runs.
pub(crate) const NAME_GRACE: Duration = Duration::from_millis(100);
/// Most directories that are counted.
const DIRS_MAX: usize = 4096;

/// A name in a directory, as the kernel knows it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KernelName {
    /// The directory.
    pub dir: Ino,
    /// The name.
    pub name: Box<[u8]>,
}

/// A name that the kernel may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LentName {
    pub(crate) name: KernelName,
    /// When the kernel got the name last.
    pub(crate) given: Duration,
    /// Until when it uses the name at most.
    pub(crate) end: Duration,
    /// A rename may have moved the entry, so the kernel cannot drop it by this name.
    pub(crate) moved: bool,
}

/// A directory that the kernel has looked up by its name.
struct AskedDir {
    lookups: u8,
    /// From when on the name may be lent.
    lend_from: Duration,
    lent: Option<LentName>,
}

/// The names that the kernel caches, by the directories that they lead to. All times are of
/// [`crate::uptime::uptime`].
#[derive(Default)]
pub(crate) struct LentNames {
    dirs: HashMap<Ino, AskedDir, hash::HashBuilder>,
    by_name: HashMap<KernelName, Ino, hash::HashBuilder>,
    /// Directories that this mount is renaming or removing, and parents of such a change, with the
    /// number of operations.
    busy: HashMap<Ino, u32, hash::HashBuilder>,
    /// The names of busy directories that were recalled.
    overdue: Vec<(Ino, KernelName)>,
}

impl LentNames {
    /// Records that the kernel is about to get the name of directory `ino`, which is delegated
    /// until `term_end`. Returns for how long it may cache the name.
    pub(crate) fn lend_name(
        &mut self,
        ino: Ino,
        name: KernelName,
        now: Duration,
        term_end: Duration,
    ) -> Option<Duration> {
        if self.dirs.len() >= DIRS_MAX && !self.dirs.contains_key(&ino) {
            self.dirs.retain(|_, asked| asked.lent.as_ref().is_some_and(|lent| lent.end > now));
            self.by_name.retain(|_, ino| self.dirs.contains_key(ino));
            if self.dirs.len() >= DIRS_MAX {
                // A name that is not recorded could never be revoked.
                return None;
            }
        }
        let asked = self.dirs.entry(ino).or_insert(AskedDir {
            lookups: 0,
            lend_from: now + QUIET,
            lent: None,
        });
        asked.lookups = asked.lookups.saturating_add(1);
        let time = term_end.saturating_sub(now).saturating_sub(NAME_GRACE).min(NAME_TIME);
        let is_hot = asked.lookups >= HOT_LOOKUPS && now >= asked.lend_from;
        if !is_hot || time < NAME_TIME_MIN || self.busy.contains_key(&ino) {
            return None;
        }
        if let Some(lent) = &mut asked.lent {
            if lent.name != name && lent.end > now {
                // The kernel may have the directory under both names.
                return None;
            }
            if lent.name == name && lent.moved && lent.end > now {
                return None;
            }
            // The former name may lead to another directory by now.
            if self.by_name.get(&lent.name) == Some(&ino) {
                self.by_name.remove(&lent.name);
            }
        }
        self.by_name.insert(name.clone(), ino);
        let end = now + time + NAME_GRACE;
        asked.lent = Some(LentName { name, given: now, end, moved: false });
        Some(time)
    }

    /// Records a recall of the directory. Returns the name that the kernel may still use, and that
    /// the recall must wait for.
    pub(crate) fn take_name(&mut self, ino: Ino, now: Duration) -> Option<LentName> {
        let asked = self.dirs.get_mut(&ino)?;
        (asked.lookups, asked.lend_from) = (0, now + QUIET_AFTER_RECALL);
        let lent = asked.lent.take()?;
        if self.by_name.get(&lent.name) == Some(&ino) {
            self.by_name.remove(&lent.name);
        }
        if self.busy.contains_key(&ino) {
            self.overdue.push((ino, lent.name));
            return None;
        }
        (lent.end > now).then_some(lent)
    }

    /// Records that an operation of this mount begins to rename or remove the directories `names`,
    /// if there are any, or moves an entry between the directories `parents`. Returns the
    /// directories that are busy until [`LentNames::end_change`].
    pub(crate) fn begin_change(&mut self, parents: &[Ino], names: &[KernelName]) -> Vec<Ino> {
        let children = names.iter().filter_map(|name| self.by_name.get(name)).copied();
        let lent = |ino: &Ino| self.dirs.get(ino).is_some_and(|asked| asked.lent.is_some());
        let parents = parents.iter().copied().filter(lent);
        let busy: Vec<Ino> = children.chain(parents).collect();
        busy.iter().for_each(|ino| *self.busy.entry(*ino).or_default() += 1);
        busy
    }

    /// Records the end of an operation. Returns the names that were recalled meanwhile: the kernel
    /// must drop them.
    pub(crate) fn end_change(&mut self, busy: &[Ino]) -> Vec<KernelName> {
        for ino in busy {
            if let Some(count) = self.busy.get_mut(ino) {
                *count -= 1;
                if *count == 0 {
                    self.busy.remove(ino);
                }
            }
        }
        let is_over = |(ino, _): &mut (Ino, _)| !self.busy.contains_key(ino);
        self.overdue.extract_if(.., is_over).map(|(_, name)| name).collect()
    }

    /// Ends all records. Returns the names that the kernel may still use.
    pub(crate) fn take_all_names(&mut self, now: Duration) -> Vec<LentName> {
        self.by_name.clear();
        let lent = self.dirs.drain().filter_map(|(_, asked)| asked.lent);
        lent.filter(|lent| lent.end > now).collect()
    }

    /// Records that a rename by this mount may move the entry with that name, or has moved it.
    pub(crate) fn mark_moved(&mut self, name: &KernelName) {
        if let Some(ino) = self.by_name.get(name)
            && let Some(AskedDir { lent: Some(lent), .. }) = self.dirs.get_mut(ino)
        {
            lent.moved = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(1000);
    const TERM_END: Duration = Duration::from_secs(1004);

    fn named(dir: u64, name: &str) -> KernelName {
        KernelName { dir: Ino(dir), name: name.as_bytes().into() }
    }

    /// Asks for the name as often and for as long as it takes.
    fn lend(names: &mut LentNames, ino: u64, name: &KernelName) -> Option<Duration> {
        let early = NOW - QUIET;
        for _ in 0..HOT_LOOKUPS {
            assert_eq!(names.lend_name(Ino(ino), name.clone(), early, TERM_END), None);
        }
        names.lend_name(Ino(ino), name.clone(), NOW, TERM_END)
    }

    #[test]
    fn a_name_that_is_often_asked_for_is_lent_until_it_is_taken() {
        let (mut names, sub) = (LentNames::default(), named(1, "sub"));
        assert_eq!(lend(&mut names, 5, &sub), Some(NAME_TIME));
        let end = NOW + NAME_TIME + NAME_GRACE;
        let lent = LentName { name: sub.clone(), given: NOW, end, moved: false };
        assert_eq!(names.take_name(Ino(5), NOW), Some(lent));
        assert_eq!(names.take_name(Ino(5), NOW), None);
        assert!(names.by_name.is_empty());
        // After a recall it must be quiet for longer.
        let again = NOW + QUIET_AFTER_RECALL;
        let term_end = again + NAME_TIME * 2;
        for at in [again - QUIET; 5] {
            assert_eq!(names.lend_name(Ino(5), sub.clone(), at, term_end), None);
        }
        assert!(names.lend_name(Ino(5), sub, again, term_end).is_some());
        let end = again + NAME_TIME + NAME_GRACE;
        assert_eq!(names.take_name(Ino(5), end), None, "the kernel's time is over");
    }

    #[test]
    fn a_name_that_is_looked_at_now_and_then_is_not_lent() {
        let (mut names, sub) = (LentNames::default(), named(1, "sub"));
        assert_eq!(names.lend_name(Ino(5), sub.clone(), NOW - QUIET, TERM_END), None);
        assert_eq!(names.lend_name(Ino(5), sub, NOW, TERM_END), None);
        assert_eq!(names.take_name(Ino(5), NOW), None);
    }

    #[test]
    fn a_name_is_not_lent_beyond_the_term() {
        let (mut names, sub) = (LentNames::default(), named(1, "sub"));
        assert!(lend(&mut names, 5, &sub).is_some());
        for left in [0, 50, 100, 109] {
            let term_end = NOW + Duration::from_millis(left);
            assert_eq!(names.lend_name(Ino(5), sub.clone(), NOW, term_end), None);
        }
        let term_end = NOW + Duration::from_millis(130);
        let time = names.lend_name(Ino(5), sub, NOW, term_end);
        assert_eq!(time, Some(Duration::from_millis(30)));
    }

    #[test]
    fn a_directory_is_lent_under_one_name_at_a_time() {
        let (mut names, old, new) = (LentNames::default(), named(1, "old"), named(2, "new"));
        assert!(lend(&mut names, 5, &old).is_some());
        names.mark_moved(&named(1, "other"));
        names.mark_moved(&old);
        assert_eq!(names.lend_name(Ino(5), new.clone(), NOW, TERM_END), None);
        assert_eq!(names.lend_name(Ino(5), old, NOW, TERM_END), None, "who knows where it is");
        let later = NOW + NAME_TIME + NAME_GRACE;
        assert!(names.lend_name(Ino(5), new.clone(), later, later + NAME_TIME).is_some());
        let lent = names.take_name(Ino(5), later).expect("it is lent");
        assert!(lent.name == new && !lent.moved);
    }

    #[test]
    fn a_recall_does_not_wait_for_an_operation_of_this_mount() {
        let (mut names, sub, parent) = (LentNames::default(), named(5, "sub"), named(1, "parent"));
        assert!(lend(&mut names, 6, &sub).is_some() && lend(&mut names, 5, &parent).is_some());
        assert_eq!(names.begin_change(&[Ino(9)], &[named(5, "none")]), []);
        let removal = names.begin_change(&[], std::slice::from_ref(&sub));
        let rename = names.begin_change(&[Ino(5), Ino(9)], std::slice::from_ref(&sub));
        assert_eq!((&*removal, &*rename), (&[Ino(6)][..], &[Ino(6), Ino(5)][..]));
        assert_eq!(names.take_name(Ino(6), NOW), None);
        assert_eq!(names.take_name(Ino(5), NOW), None);
        let later = NOW + QUIET_AFTER_RECALL;
        for _ in 0..HOT_LOOKUPS {
            let term_end = later + NAME_TIME * 2;
            assert_eq!(names.lend_name(Ino(6), sub.clone(), later, term_end), None);
        }
        assert_eq!(names.end_change(&removal), []);
        assert_eq!(names.end_change(&rename), [sub, parent]);
        assert!(names.busy.is_empty() && names.overdue.is_empty());
    }

    #[test]
    fn another_directory_may_get_the_name() {
        let (mut names, sub) = (LentNames::default(), named(1, "sub"));
        assert!(lend(&mut names, 5, &sub).is_some());
        assert!(lend(&mut names, 6, &sub).is_some());
        assert!(names.take_name(Ino(5), NOW).is_some());
        names.mark_moved(&sub);
        assert!(names.take_name(Ino(6), NOW).is_some_and(|lent| lent.moved));
        // The directory that had the name before gets a new one.
        let (mut names, new) = (LentNames::default(), named(1, "new"));
        assert!(lend(&mut names, 5, &sub).is_some() && lend(&mut names, 6, &sub).is_some());
        let later = NOW + NAME_TIME + NAME_GRACE;
        assert!(names.lend_name(Ino(5), new, later, later + NAME_TIME).is_some());
        assert_eq!(names.by_name.get(&sub), Some(&Ino(6)));
    }

    #[test]
    fn what_is_over_makes_room() {
        let mut names = LentNames::default();
        for ino in 0..DIRS_MAX as u64 {
            lend(&mut names, ino, &named(1, &ino.to_string()));
        }
        assert_eq!(names.lend_name(Ino(1 << 20), named(1, "x"), NOW, TERM_END), None);
        assert_eq!(names.dirs.len(), DIRS_MAX);
        assert_eq!(names.take_all_names(NOW).len(), DIRS_MAX);
        for ino in 0..DIRS_MAX as u64 {
            lend(&mut names, ino, &named(1, &ino.to_string()));
        }
        let later = NOW + NAME_TIME + NAME_GRACE;
        assert_eq!(names.lend_name(Ino(1 << 20), named(1, "x"), later, later + NAME_TIME), None);
        assert_eq!((names.dirs.len(), names.by_name.len()), (1, 0), "all times are over");
        names = LentNames::default();
        assert!(lend(&mut names, 1 << 20, &named(1, "x")).is_some());
    }
}
