//! The caller of a request.
//!
//! The kernel reports the user and the group of a caller, but not the supplementary groups (except
//! the relevant one for a new inode). The mount reads them from `/proc` when they may matter: after
//! a refusal, or before an operation whose result depends on them.

use tatami_fuse::Request;
use tatami_wire::{Cred, Errno, GROUPS_MAX};

/// Returns the caller's credentials with only those supplementary groups that came with the
/// request.
pub(crate) fn base_credentials(request: &Request<'_>) -> Cred {
    Cred {
        uid: request.header.uid,
        gid: request.header.gid,
        groups: request.groups.iter().take(GROUPS_MAX).collect(),
    }
}

/// Returns the caller's credentials with all supplementary groups, as far as `/proc` shows them.
pub(crate) fn full_credentials(request: &Request<'_>) -> Cred {
    let mut cred = base_credentials(request);
    if cred.uid != 0 {
        add_groups(&mut cred, request.header.pid);
    }
    cred
}

/// Runs `attempt` as the caller. If it is refused, runs it once more with the caller's
/// supplementary groups.
///
/// # Errors
/// Those of the last attempt.
pub(crate) fn run_as_caller<R>(
    request: &Request<'_>,
    attempt: impl FnMut(&Cred) -> Result<R, Errno>,
) -> Result<R, Errno> {
    run_with_groups(&mut base_credentials(request), request.header.pid, attempt)
}

/// Like [`run_as_caller`], for known credentials. Groups from `/proc` are added to `cred`.
///
/// # Errors
/// Those of the last attempt.
pub(crate) fn run_with_groups<R>(
    cred: &mut Cred,
    pid: u32,
    mut attempt: impl FnMut(&Cred) -> Result<R, Errno>,
) -> Result<R, Errno> {
    match attempt(cred) {
        Err(Errno::EACCES | Errno::EPERM) if cred.uid != 0 && add_groups(cred, pid) => {
            attempt(cred)
        }
        result => result,
    }
}

/// Adds the groups from `/proc`. Returns whether there are more groups than before.
fn add_groups(cred: &mut Cred, pid: u32) -> bool {
    if pid == 0 {
        return false;
    }
    let Ok(status) = std::fs::read(format!("/proc/{pid}/status")) else {
        return false;
    };
    let before = cred.groups.len();
    for group in parse_groups(&status) {
        if !cred.groups.contains(&group) && cred.groups.len() < GROUPS_MAX {
            cred.groups.push(group);
        }
    }
    cred.groups.len() > before
}

fn parse_groups(status: &[u8]) -> impl Iterator<Item = u32> {
    status
        .split(|b| *b == b'\n')
        .find_map(|line| line.strip_prefix(b"Groups:"))
        .into_iter()
        .flat_map(|line| line.split(|b| b.is_ascii_whitespace()))
        .filter_map(|word| std::str::from_utf8(word).ok()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_read_from_the_status_of_a_process() {
        let status = b"Name:\tcat\nUid:\t1\t1\t1\t1\nGroups:\t4 24 1000 \nNgid:\t0\n";
        assert_eq!(parse_groups(status).collect::<Vec<_>>(), vec![4, 24, 1000]);
        assert_eq!(parse_groups(b"Name:\tx\nGroups:\t\n").count(), 0);
        assert_eq!(parse_groups(b"").count(), 0);
    }

    #[test]
    fn a_refusal_is_tried_again_only_with_more_groups() {
        let mut cred = Cred { uid: 1, gid: 1, groups: vec![] };
        let mut attempts = 0;
        let result: Result<(), Errno> = run_with_groups(&mut cred, 0, |_| {
            attempts += 1;
            Err(Errno::EACCES)
        });
        assert_eq!((result, attempts), (Err(Errno::EACCES), 1));
    }
}
