//! Random operations, interrupted at random: all that was acknowledged is there.

use crate::harness::*;
use proptest::prelude::*;
use tatami_meta::MemoryStore;
use tatami_meta::store::faulty::StoreFault;
use tatami_wire::meta::{InodeTemplate, RenameMode};
use tatami_wire::{Access, Ino};

#[derive(Clone, Debug)]
enum Step {
    Make(u8, u8, bool),
    Open(u8),
    Unlink(u8, u8, bool),
    Rmdir(u8, u8),
    Rename(u8, u8, u8, u8, u8),
    Link(u8, u8, u8),
    Chmod(u8, u16),
    Xattr(u8, u8),
    Release(u8),
    Commit,
    Sync,
    PowerCut(u8),
    Kill,
    Full,
    Broken(u8),
}

fn step() -> impl Strategy<Value = Step> {
    use Step::*;
    prop_oneof![
        8 => (any::<u8>(), any::<u8>(), any::<bool>()).prop_map(|(a, b, c)| Make(a, b, c)),
        2 => any::<u8>().prop_map(Open),
        4 => (any::<u8>(), any::<u8>(), any::<bool>()).prop_map(|(a, b, c)| Unlink(a, b, c)),
        2 => (any::<u8>(), any::<u8>()).prop_map(|(a, b)| Rmdir(a, b)),
        4 => any::<(u8, u8, u8, u8, u8)>().prop_map(|(a, b, c, d, e)| Rename(a, b, c, d, e)),
        2 => any::<(u8, u8, u8)>().prop_map(|(a, b, c)| Link(a, b, c)),
        1 => (any::<u8>(), 0u16..0o10000).prop_map(|(a, b)| Chmod(a, b)),
        1 => any::<(u8, u8)>().prop_map(|(a, b)| Xattr(a, b)),
        1 => any::<u8>().prop_map(Release),
        6 => Just(Commit),
        2 => Just(Sync),
        1 => any::<u8>().prop_map(PowerCut),
        1 => Just(Kill),
        1 => Just(Full),
        1 => any::<u8>().prop_map(Broken),
    ]
}

/// A shard, all inodes that it ever had, and the content of the store after each commit.
struct Run {
    shard: Option<Shard>,
    inos: Vec<Ino>,
    dirs: Vec<Ino>,
    /// The content of the store after each commit since the last sync, and at that sync.
    states: Vec<MemoryStore>,
}

impl Run {
    fn new() -> Run {
        let mut shard = Shard::new();
        let states = vec![shard.meta.store_mut().visible().clone()];
        Run { shard: Some(shard), inos: vec![ROOT], dirs: vec![ROOT], states }
    }

    fn s(&mut self) -> &mut Shard {
        self.shard.as_mut().expect("there between steps")
    }

    fn ino(&self, n: u8) -> Ino {
        self.inos[usize::from(n) % self.inos.len()]
    }

    fn dir(&self, n: u8) -> Ino {
        self.dirs[usize::from(n) % self.dirs.len()]
    }

    /// Records the content of the store, if anything was committed. After a failure, readers may
    /// see other content than a reopened store has.
    fn note(&mut self) {
        if !self.s().meta.is_poisoned() {
            self.note_anyway();
        }
    }

    fn note_anyway(&mut self) {
        let now = self.s().meta.store_mut().visible().clone();
        if !now.iter().eq(self.states.last().expect("never empty").iter()) {
            self.states.push(now);
        }
    }

    fn synced(&mut self) {
        self.note();
        self.states.drain(..self.states.len() - 1);
    }

    fn step(&mut self, step: Step) {
        let n = |n: u8| format!("n{}", n % 6);
        match step {
            Step::Make(d, name, is_dir) => {
                let dir = self.dir(d);
                let node = if is_dir { InodeTemplate::Dir } else { InodeTemplate::File(LAYOUT) };
                if let Ok(made) = self.s().make(dir, &n(name), node, 0o777) {
                    self.inos.push(made.ino);
                    if is_dir {
                        self.dirs.push(made.ino);
                    }
                }
            }
            Step::Open(i) => {
                let ino = self.ino(i);
                let _ = self.s().open(ino, Access::WRITE);
            }
            Step::Unlink(d, name, keep) => {
                let dir = self.dir(d);
                let _ = self.s().unlink(dir, &n(name), keep);
            }
            Step::Rmdir(d, name) => {
                let dir = self.dir(d);
                let _ = self.s().rmdir(dir, &n(name), false);
            }
            Step::Rename(d, a, e, b, mode) => {
                let (from, to) = (self.dir(d), self.dir(e));
                let mode = match mode % 3 {
                    0 => RenameMode::Exchange,
                    1 => RenameMode::NoReplace,
                    _ => RenameMode::Replace,
                };
                let _ = self.s().rename((from, &n(a)), (to, &n(b)), mode);
            }
            Step::Link(i, d, name) => {
                let (ino, dir) = (self.ino(i), self.dir(d));
                let _ = self.s().link(ino, dir, &n(name));
            }
            Step::Chmod(i, mode) => {
                let ino = self.ino(i);
                let _ = self.s().chmod(ino, mode);
            }
            Step::Xattr(i, name) => {
                let ino = self.ino(i);
                let _ = self.s().setxattr(ino, &format!("user.{}", name % 3), &[name]);
            }
            Step::Release(i) => {
                let ino = self.ino(i);
                let _ = self.s().release(ino);
            }
            Step::Commit => {
                let _ = self.s().meta.commit();
                self.note();
            }
            Step::Sync => {
                if self.s().meta.sync().is_ok() {
                    self.synced();
                }
            }
            Step::Full => {
                let before = self.s().meta.store_mut().visible().clone();
                if self.s().meta.is_dirty() && !self.s().meta.is_poisoned() {
                    self.s().meta.store_mut().fail_commit(0, StoreFault::Full);
                    assert!(self.s().meta.commit().is_err());
                    let after = self.s().meta.store_mut().visible().clone();
                    assert!(before.iter().eq(after.iter()), "a refused commit changed something");
                }
            }
            Step::Broken(how) => {
                if self.s().meta.is_dirty() && !self.s().meta.is_poisoned() {
                    let fault = match how % 3 {
                        0 => StoreFault::Io,
                        1 => StoreFault::IoAfterWrite,
                        _ => StoreFault::Torn,
                    };
                    self.s().meta.store_mut().fail_commit(0, fault);
                    assert!(self.s().meta.commit().is_err());
                    if fault == StoreFault::IoAfterWrite {
                        self.note_anyway();
                    }
                }
            }
            Step::Kill => {
                let mut shard = self.shard.take().expect("there between steps").reopen();
                let after = shard.meta.store_mut().visible();
                // Opening reserves no inode numbers before one is needed.
                let last = self.states.last().expect("never empty");
                assert!(last.iter().eq(after.iter()), "what was committed is there, no more");
                self.shard = Some(shard);
                self.s().assert_sound();
            }
            Step::PowerCut(kept) => {
                let shard = self.shard.take().expect("there between steps");
                let mut store = shard.meta.into_store();
                store.power_cut(usize::from(kept) % (store.unsynced_commits() + 1));
                let left = store.visible().clone();
                let known = self.states.iter().any(|state| state.iter().eq(left.iter()));
                assert!(known, "what is left is a state that was committed after the last sync");
                self.states = vec![left];
                let (now, seq) = (shard.now, shard.seq);
                let mut shard = Shard::over(store);
                // Client A does not know of the power cut; its numbers go on.
                shard.now = now;
                shard.seq = seq;
                self.shard = Some(shard);
                self.s().assert_sound();
            }
        }
        // The store may have been synced in between, to reserve inode numbers.
        if self.s().meta.is_poisoned() {
            return;
        }
        if self.s().meta.store_mut().unsynced_commits() == 0 {
            self.synced();
        } else {
            self.note();
        }
    }
}

proptest! {
    #![proptest_config(scaled(1024))]

    #[test]
    fn a_crash_at_any_point_leaves_a_sound_prefix(steps in proptest::collection::vec(step(), 1..80)) {
        let mut run = Run::new();
        for step in steps {
            run.step(step);
        }
        if !run.s().meta.is_poisoned() {
            run.s().assert_sound();
        }
        run.step(Step::PowerCut(0));
    }
}
