//! The mode in which all volumes of the end-to-end tests have policies:
//! `TATAMI_TEST_POLICIES="--engine region --inline 4k"`, with `TATAMI_TEST_REGIONS=1`.

/// Returns whether files are made beside their inodes or in regions, and not on a disk.
pub fn are_policies_wanted() -> bool {
    std::env::var_os("TATAMI_TEST_POLICIES").is_some()
}

/// Skips the calling test in that mode: the reason says what it needs of files on a disk. Other
/// than [`skip_test`](tatami_skip::skip_test), this never fails: the test runs without the mode.
pub fn skip_with_policies(reason: &str) -> bool {
    if are_policies_wanted() {
        tatami_skip::skip_unavailable(&format!("with policies: {reason}"));
    }
    are_policies_wanted()
}
