//! The directory of shared logins of this user on this machine. It has the sockets of the ssh that
//! others share, and the file of seats. Nobody else may enter it: a socket there is a login.

use rustix::process::geteuid;
use std::fs::{DirBuilder, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Longest path of the directory, in bytes. A path of a socket has at most 107 (sun_path). ssh
/// first makes a socket with 17 more, and the name in the directory has at most 18.
const PATH_MAX: usize = 107 - 17 - 18;
/// Modes that let others in.
const OTHERS: u32 = 0o077;

/// Why a directory is not used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoginDirError {
    /// It cannot be made or read.
    #[error("{path}: {cause}")]
    Io { path: PathBuf, cause: io::Error },
    /// Another user has made it, or may enter it.
    #[error("{0} is no directory of this user alone: remove it, or set its mode to 0700")]
    NotPrivate(PathBuf),
}

/// Finds or makes the directory of this user.
///
/// # Errors
/// It cannot be made, or is not private.
pub(crate) fn open_login_dir() -> Result<PathBuf, LoginDirError> {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let dir = choose_place(runtime.as_deref());
    make_private(&dir)?;
    Ok(dir)
}

/// Returns the place in the directory that the system has made for this user, and otherwise one in
/// `/tmp`.
fn choose_place(runtime: Option<&Path>) -> PathBuf {
    let uid = geteuid().as_raw();
    // A user that has become another one may still have the variable of the first.
    let is_own = |dir: &&Path| dir.symlink_metadata().is_ok_and(|m| m.is_dir() && m.uid() == uid);
    let place = runtime.filter(is_own).map(|dir| dir.join("tatami-logins"));
    place
        .filter(|dir| is_usable(dir))
        .unwrap_or_else(|| PathBuf::from(format!("/tmp/tatami-logins-{uid}")))
}

/// Whether a path can be a word of an option of ssh, which a shell may read, and whether it is
/// short enough.
fn is_usable(dir: &Path) -> bool {
    let bytes = dir.as_os_str().as_bytes();
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"/._-".contains(byte);
    bytes.first() == Some(&b'/') && bytes.len() <= PATH_MAX && bytes.iter().all(plain)
}

fn make_private(dir: &Path) -> Result<(), LoginDirError> {
    let failed = |cause| LoginDirError::Io { path: dir.to_owned(), cause };
    match DirBuilder::new().mode(0o700).create(dir) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(failed(e)),
        _ => {}
    }
    let found = dir.symlink_metadata().map_err(failed)?;
    match is_private(&found) {
        true => Ok(()),
        false => Err(LoginDirError::NotPrivate(dir.to_owned())),
    }
}

fn is_private(found: &Metadata) -> bool {
    found.is_dir() && found.uid() == geteuid().as_raw() && found.mode() & OTHERS == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn a_directory_that_others_may_enter_is_not_used() {
        let outer = tempfile::tempdir().expect("a directory");
        let dir = outer.path().join("d");
        make_private(&dir).expect("a new directory");
        assert_eq!(fs::metadata(&dir).expect("it is there").mode() & 0o777, 0o700);
        make_private(&dir).expect("the same directory");
        for mode in [0o750, 0o701, 0o777] {
            fs::set_permissions(&dir, Permissions::from_mode(mode)).expect("it is ours");
            let refused = make_private(&dir).expect_err("others may enter");
            assert!(refused.to_string().contains(&dir.display().to_string()), "{refused}");
        }
        fs::set_permissions(&dir, Permissions::from_mode(0o700)).expect("it is ours");
        let link = outer.path().join("l");
        symlink(&dir, &link).expect("a link");
        assert!(matches!(make_private(&link), Err(LoginDirError::NotPrivate(_))));
        let file = outer.path().join("f");
        fs::write(&file, "").expect("a file");
        assert!(matches!(make_private(&file), Err(LoginDirError::NotPrivate(_))));
        let lost = make_private(&outer.path().join("x/y")).expect_err("no such directory");
        assert!(matches!(lost, LoginDirError::Io { .. }));
    }

    #[test]
    fn the_place_is_short_and_has_plain_characters() {
        let of_tmp = PathBuf::from(format!("/tmp/tatami-logins-{}", geteuid().as_raw()));
        assert_eq!(choose_place(None), of_tmp);
        assert_eq!(choose_place(Some(Path::new("/no/such/directory"))), of_tmp);
        assert!(is_usable(&of_tmp) && is_usable(Path::new("/run/user/1000/tatami-logins")));
        for bad in ["run/x", "/run/a b", "/run/%d", "/run/'x", ""] {
            assert!(!is_usable(Path::new(bad)), "{bad}");
        }
        assert!(!is_usable(Path::new(&format!("/{}", "x".repeat(PATH_MAX)))));
    }
}
