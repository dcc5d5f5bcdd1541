//! Tests that cannot run on every machine, mostly because they need root.
//!
//! Such a test says that it is skipped. `make test` sets [`MUST_RUN`], because it runs as root on a
//! machine with FUSE. There a skipped test is a failed one.

use std::io::Write;

/// If this variable is `1`, no test may be skipped.
pub const MUST_RUN: &str = "TATAMI_TEST_MUST_RUN";

/// Prints that the calling test, or a part of it, is skipped. The caller returns from it.
///
/// # Panics
/// If [`MUST_RUN`] is `1`.
pub fn skip_test(reason: &str) {
    let must_run = std::env::var_os(MUST_RUN).is_some_and(|value| value == "1");
    assert!(!must_run, "this test must run, and cannot: {reason} ({MUST_RUN} is 1)");
    skip_unavailable(reason);
}

/// As [`skip_test`], also where tests must run: what the test needs could not be fetched from
/// elsewhere, which no setting of this machine mends.
pub fn skip_unavailable(reason: &str) {
    let thread = std::thread::current();
    // libtest names the thread after the test.
    let test = thread.name().unwrap_or("a test");
    // libtest hides the prints of a passed test, but not bytes that are written to the stream. All
    // are written at once, because other tests write, too.
    drop(std::io::stderr().write_all(format_line(test, reason).as_bytes()));
}

/// `scripts/test.sh` counts these lines.
fn format_line(test: &str, reason: &str) -> String {
    format!("skipped: {test}: {reason}\n")
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_skipped_test_is_named_with_its_reason() {
        assert_eq!(super::format_line("t", "it needs root"), "skipped: t: it needs root\n");
    }
}
