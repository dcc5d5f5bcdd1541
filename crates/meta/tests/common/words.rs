//! Short functions that many tests use.

use tatami_wire::meta::Bytes;

pub fn name(n: &(impl AsRef<[u8]> + ?Sized)) -> Bytes {
    Bytes::from(n.as_ref().to_vec())
}

/// Returns this number of random cases, times `TATAMI_TEST_SCALE`, which `make soak` sets.
#[expect(clippy::disallowed_methods, reason = "a test is told from outside how much to do")]
pub fn scaled(cases: u32) -> proptest::test_runner::Config {
    let scale = std::env::var("TATAMI_TEST_SCALE").ok().and_then(|s| s.parse().ok()).unwrap_or(1);
    proptest::test_runner::Config::with_cases(cases.saturating_mul(scale))
}
