//! The protocol of a table, run in every order in which the mount and the daemon can take its
//! steps.
//!
//! `shuttle` runs each closure once for each schedule: it decides at each access of a word which
//! thread goes on. The last test shows that the explorer finds a daemon that breaks the protocol.

use super::{ClaimCount, SparePage};
use crate::table_word::TableWord;
use shuttle::scheduler::DfsScheduler;
use shuttle::sync::atomic::{AtomicU64, Ordering::SeqCst};
use shuttle::{Config, Runner};
use std::panic::catch_unwind;
use std::sync::Arc;
use tatami_wire::Ino;

const INO: Ino = Ino(7);
const SLOT: usize = 1;

#[derive(Default)]
struct ScheduledWord(AtomicU64);

impl TableWord for ScheduledWord {
    fn read(&self) -> u64 {
        self.0.load(SeqCst)
    }

    fn write(&self, value: u64) {
        self.0.store(value, SeqCst);
    }

    fn exchange(&self, old: u64, new: u64) -> bool {
        self.0.compare_exchange(old, new, SeqCst, SeqCst).is_ok()
    }

    fn increment(&self) {
        self.0.fetch_add(1, SeqCst);
    }
}

/// Two slots: the daemon searches all, and each more multiplies the schedules.
type ScheduledPage = SparePage<ScheduledWord, 2>;

fn new_page() -> Arc<ScheduledPage> {
    let words = || std::array::from_fn(|_| ScheduledWord::default());
    Arc::new(SparePage {
        magic: ScheduledWord::default(),
        boot: ScheduledWord::default(),
        ended: ScheduledWord::default(),
        claims: ScheduledWord::default(),
        slots: words(),
        checks: words(),
        head: ScheduledWord::default(),
    })
}

/// Runs both sides in every order, and checks what they return. With `is_assigned`, the
/// slot stands for the inode when they begin.
fn explore<M: Send + 'static, D: Send + 'static>(
    is_assigned: bool,
    mount: fn(&ScheduledPage) -> M,
    daemon: fn(&ScheduledPage) -> D,
    check: fn(M, D),
) {
    let run = move || {
        let page = new_page();
        if is_assigned {
            assert!(page.assign_slot(SLOT, INO, page.current_claims()));
        }
        let (for_mount, for_daemon) = (page.clone(), page);
        let mount = shuttle::thread::spawn(move || mount(&for_mount));
        let daemon = shuttle::thread::spawn(move || daemon(&for_daemon));
        check(mount.join().expect("the mount"), daemon.join().expect("the daemon"));
    };
    let every = DfsScheduler::new(None, false);
    let schedules = Runner::new(every, Config::default()).run(run);
    assert!(schedules > 1, "{schedules} schedules");
}

/// The mount read the claims before it made the inode, so before any claim for it.
fn assign(page: &ScheduledPage) -> bool {
    page.assign_slot(SLOT, INO, ClaimCount(0))
}

#[test]
fn a_daemon_that_makes_an_object_and_the_mount_that_uses_a_spare_notice_each_other() {
    explore(
        false,
        assign,
        |page| {
            page.count_claim();
            page.take_slot(INO)
        },
        |assigned, taken| assert!(taken.is_some() || !assigned, "both used their own file"),
    );
}

#[test]
fn a_spare_is_returned_or_becomes_an_object_but_not_both() {
    explore(
        true,
        |page| page.return_slot(SLOT, INO),
        |page| page.take_slot(INO),
        |returned, taken| assert_ne!(returned, taken.is_some()),
    );
}

#[test]
fn a_daemon_that_ends_a_table_sees_each_slot_that_the_mount_uses() {
    let end = |page: &ScheduledPage| {
        page.mark_ended();
        page.assigned_inode(SLOT)
    };
    explore(false, assign, end, |assigned, seen| assert!(seen == Some(INO) || !assigned));
    explore(
        true,
        |page| page.return_slot(SLOT, INO),
        end,
        |returned, seen| assert!(seen.is_none() || !returned, "the mount would use its file again"),
    );
}

#[test]
fn a_slot_that_is_used_again_stands_for_its_new_inode_only() {
    const NEXT: Ino = Ino(9);
    explore(
        true,
        |page| {
            // The daemon refills a slot that it took; the mount polls nothing, so it tries once.
            let is_free = page.return_slot(SLOT, INO);
            is_free && page.assign_slot(SLOT, NEXT, page.current_claims())
        },
        |page| {
            page.count_claim();
            (page.take_slot(INO), page.take_slot(NEXT))
        },
        |assigned, (old, new)| {
            assert!(old.is_none() || new.is_none());
            assert!(!assigned || old.is_none(), "a taken slot was assigned again");
        },
    );
}

#[test]
fn the_explorer_finds_a_daemon_that_searches_before_it_counts() {
    let broken = || {
        explore(
            false,
            assign,
            |page| {
                let taken = page.take_slot(INO);
                page.count_claim();
                taken
            },
            |assigned, taken| assert!(taken.is_some() || !assigned),
        );
    };
    assert!(catch_unwind(broken).is_err(), "no schedule shows the defect");
}
