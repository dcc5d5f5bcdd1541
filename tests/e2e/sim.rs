//! The namespace under simulated faults: the same seeds each time, and more of them the larger the
//! scale.

use std::sync::atomic::{AtomicU64, Ordering};
use tatami_sim::{SimOptions, run};
use tatami_tests::seed::scaled;

/// Runs the worlds with the numbers below `count`, on all processors.
fn pass(count: u64, world: impl Fn(u64) -> SimOptions + Sync) {
    let next = AtomicU64::new(0);
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= count {
                return;
            }
            if let Err(what) = run(world(seed)) {
                panic!("{what}");
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
}

#[test]
fn small_worlds_keep_what_a_namespace_promises() {
    pass(scaled(2000), SimOptions::new);
}

/// The same for longer, with as many clients at the same time as the checker can follow.
#[test]
fn long_lives_keep_what_a_namespace_promises() {
    let world = |seed| SimOptions {
        clients: 4,
        slots: 1,
        operations: 30,
        ..SimOptions::new(1 << 32 | seed)
    };
    pass(scaled(400), world);
}

/// Several daemons share the namespace.
#[test]
fn worlds_of_several_daemons_keep_what_a_namespace_promises() {
    pass(scaled(1500), SimOptions::several_daemons);
}

/// Files have their bytes beside the inode: one daemon and several, in turn.
#[test]
fn worlds_with_small_files_keep_what_a_file_promises() {
    let world = |seed: u64| match seed.is_multiple_of(2) {
        true => SimOptions::new(seed / 2).with_small_files(),
        false => SimOptions::several_daemons(seed / 2).with_small_files(),
    };
    pass(scaled(500), world);
}
