//! The file that holds the volume's key.

use crate::atomic;
use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use tatami_wire::VolumeKey;

/// More than a key file holds, in bytes.
const LENGTH_MAX: u64 = 1024;

/// Why there is no key.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file could not be read or written.
    #[error("key file {}: cannot {what} it: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// There is one already, which must not be lost.
    #[error(
        "key file {}: there is one already; without it a volume cannot be used, \
         so remove it yourself if you are sure", path.display()
    )]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// Somebody else may read or change it.
    #[error(
        "key file {}: other users can read or change it (mode {mode:04o}), and whoever has the \
         key may act as any user: run `chmod 600 {}`", path.display(), path.display()
    )]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// It belongs to somebody else.
    #[error(
        "key file {}: it belongs to user {owner}: run `chown {me} {}`", path.display(),
        path.display()
    )]
    Owner {
        /// The file.
        path: PathBuf,
        /// Whose it is.
        owner: u32,
        /// Who we are.
        me: u32,
    },
    /// It holds something else than a key.
    #[error(
        "key file {}: it does not hold 64 hexadecimal digits: copy the file again from \
         another node of the volume", path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
    },
}

/// Makes and reads key files: one line of 64 hexadecimal digits, mode 0600.
#[derive(Debug)]
pub struct KeyFile;

impl KeyFile {
    /// Draws a key at random and keeps it at `path`, where there must not be a file yet.
    ///
    /// # Errors
    /// [`KeyError::Exists`], [`KeyError::Io`].
    pub fn create(path: &Path) -> Result<VolumeKey, KeyError> {
        let io = |what| move |source| KeyError::Io { path: path.to_owned(), what, source };
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes)
            .map_err(|e| io("draw random bytes for")(io::Error::other(e.to_string())))?;
        let key = VolumeKey::new(bytes);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let fd = match rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR) {
            Ok(fd) => fd,
            Err(rustix::io::Errno::EXIST) => {
                return Err(KeyError::Exists { path: path.to_owned() });
            }
            Err(e) => return Err(io("make")(e.into())),
        };
        let mut file = File::from(fd);
        file.write_all(format!("{}\n", key.to_hex()).as_bytes()).map_err(io("write"))?;
        file.sync_all().map_err(io("write"))?;
        atomic::sync_parent(path).map_err(io("sync the directory of"))?;
        Ok(key)
    }

    /// Reads the key at `path`.
    ///
    /// # Errors
    /// All but [`KeyError::Exists`].
    pub fn load(path: &Path) -> Result<VolumeKey, KeyError> {
        let io = |what| move |source| KeyError::Io { path: path.to_owned(), what, source };
        let file = File::open(path).map_err(io("open"))?;
        let metadata = file.metadata().map_err(io("examine"))?;
        let mode = metadata.mode() & 0o7777;
        if mode & 0o077 != 0 {
            return Err(KeyError::Exposed { path: path.to_owned(), mode });
        }
        let (owner, me) = (metadata.uid(), rustix::process::geteuid().as_raw());
        if owner != me && owner != 0 {
            return Err(KeyError::Owner { path: path.to_owned(), owner, me });
        }
        let mut text = Vec::new();
        file.take(LENGTH_MAX).read_to_end(&mut text).map_err(io("read"))?;
        parse(&text).ok_or_else(|| KeyError::Damaged { path: path.to_owned() })
    }
}

fn parse(text: &[u8]) -> Option<VolumeKey> {
    VolumeKey::from_hex(std::str::from_utf8(text).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_key_is_kept_for_its_owner_alone_and_never_overwritten() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("key");
        let key = KeyFile::create(&path).expect("made");
        assert_eq!(path.metadata().expect("there").mode() & 0o7777, 0o600);
        assert!(KeyFile::load(&path).expect("loads") == key);
        assert!(matches!(KeyFile::create(&path), Err(KeyError::Exists { .. })));
        let other = KeyFile::create(&dir.path().join("other")).expect("made");
        assert!(other != key, "keys are drawn at random");
    }

    #[test]
    fn a_key_that_others_can_read_is_refused_with_the_command_to_run() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("key");
        KeyFile::create(&path).expect("made");
        for mode in [0o640, 0o604, 0o660, 0o620] {
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).expect("set");
            let error = KeyFile::load(&path).expect_err("exposed").to_string();
            assert!(error.contains(&format!("chmod 600 {}", path.display())), "{error}");
        }
    }

    #[test]
    fn a_missing_or_damaged_key_says_so() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("key");
        assert!(matches!(KeyFile::load(&path), Err(KeyError::Io { what: "open", .. })));
        atomic::write(&path, b"12345\n", Mode::RUSR).expect("written");
        assert!(matches!(KeyFile::load(&path), Err(KeyError::Damaged { .. })));
    }

    proptest! {
        #[test]
        fn any_text_is_a_key_or_an_error(text in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&text);
        }

        #[test]
        fn a_changed_digit_never_reads_as_the_same_key(at in 0usize..64, with in any::<u8>()) {
            let key = VolumeKey::new([0x5a; 32]);
            let mut text = key.to_hex().into_bytes();
            prop_assume!(!text[at].eq_ignore_ascii_case(&with));
            text[at] = with;
            prop_assert!(parse(&text) != Some(key));
        }
    }
}
