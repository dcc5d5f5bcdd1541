//! Random choices that can be replayed, and the scale of the tests.

/// The generator of a test's random choices.
pub use fastrand::Rng;

/// Returns the seed of all random choices of one test: `TATAMI_SEED` if it is set (to replay a
/// failure), otherwise new each time. Prints it, so that the output of a failed run has it.
pub fn root_seed() -> u64 {
    let seed = match std::env::var("TATAMI_SEED") {
        Ok(text) => text.parse().expect("TATAMI_SEED is a number"),
        Err(_) => fastrand::u64(..),
    };
    println!("TATAMI_SEED={seed} replays this");
    seed
}

/// Returns the factor of the amount of work: `TATAMI_TEST_SCALE`, 1 by default. `make soak` runs
/// the same tests with a large one.
pub fn scale() -> u64 {
    match std::env::var("TATAMI_TEST_SCALE") {
        Ok(text) => text.parse::<u64>().expect("TATAMI_TEST_SCALE is a number").clamp(1, 100_000),
        Err(_) => 1,
    }
}

/// Returns `base` times [`scale`].
pub fn scaled(base: u64) -> u64 {
    base * scale()
}
