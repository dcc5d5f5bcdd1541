//! The file with the volume's key.

use crate::trusted::{self, TrustError};
use rustix::fs::{Mode, OFlags};
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use tatami_wire::VolumeKey;

/// More than the length of a key file, in bytes.
const LENGTH_MAX: u64 = 1024;
/// Permissions of others than the owner, which a key file must not grant.
const EXPOSED: u32 = 0o077;
/// The permission of the group to read. On a file with an access control list, this bit is the mask
/// of the list.
const GROUP_READS: u32 = 0o040;

/// The reasons for which there is no key.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file could not be read or written.
    #[error("key file {}: cannot {what} it: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The operation that failed.
        what: &'static str,
        /// The error.
        source: io::Error,
    },
    /// A key exists already, and must not be lost.
    #[error(
        "key file {}: there is one already; without it a volume cannot be used, \
         so remove it yourself if you are sure", path.display()
    )]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// Another user may have changed it.
    #[error(
        "key file {}: other users can write to it (mode {mode:04o}), and whoever knows the key may \
         act as any user: remove it, and copy it again from another node of the volume", path.display()
    )]
    Writable {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// Another user may read it.
    #[error(
        "key file {}: other users can read it (mode {mode:04o}), and whoever has the \
         key may act as any user: run `chmod 600 {}`", path.display(), path.display()
    )]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// It belongs to another user.
    #[error(
        "key file {}: it belongs to user {owner}, who may have put it there. If the volume is that \
         user's, run this as that user; if not, copy the key yourself from another node of the volume",
        path.display()
    )]
    Owner {
        /// The file.
        path: PathBuf,
        /// Its owner.
        owner: u32,
    },
    /// Others can replace it.
    #[error("key file {}: {source}", path.display())]
    Untrusted {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: TrustError,
    },
    /// Its content is not a key.
    #[error(
        "key file {}: it does not hold 64 hexadecimal digits and their checksum: copy the file again from \
         another node of the volume", path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
    },
    /// Its content is a key, but not the one that was written.
    #[error(
        "key file {}: the key does not match its checksum: the disk gives other bytes back than were written, or \
         somebody changed it; copy the file again from another node of the volume", path.display()
    )]
    Changed {
        /// The file.
        path: PathBuf,
    },
}

impl KeyError {
    fn from_trust_error(path: &Path, what: &'static str, e: TrustError) -> KeyError {
        let path = path.to_owned();
        match e {
            TrustError::Io { path: file, source, .. } if file == path => {
                KeyError::Io { path, what, source }
            }
            source => KeyError::Untrusted { path, source },
        }
    }

    /// Whether the key belongs to another user: then this user has none.
    pub fn is_foreign(&self) -> bool {
        match self {
            KeyError::Owner { .. } => true,
            KeyError::Io { source, .. } => source.kind() == io::ErrorKind::PermissionDenied,
            KeyError::Untrusted { source: TrustError::Owner { .. }, .. } => true,
            KeyError::Untrusted { source, .. } => {
                source.kind() == Some(io::ErrorKind::PermissionDenied)
            }
            _ => false,
        }
    }
}

/// Makes and reads key files, mode 0600: one line of 64 hexadecimal digits, a blank, and their
/// CRC-32C as 8 digits.
#[derive(Debug)]
pub struct KeyFile;

impl KeyFile {
    /// Draws a random key and writes it to `path`, where there must not be a file yet.
    ///
    /// # Errors
    /// [`KeyError::Exists`], [`KeyError::Io`].
    pub fn create(path: &Path) -> Result<VolumeKey, KeyError> {
        let io = |what| move |source| KeyError::Io { path: path.to_owned(), what, source };
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes)
            .map_err(|e| io("draw random bytes for")(io::Error::other(e.to_string())))?;
        let key = VolumeKey::new(bytes);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let untrusted = |e| KeyError::from_trust_error(path, "make", e);
        let (dir, name) = trusted::open_parent(path).map_err(untrusted)?;
        let mut file = match dir.open_file(name, flags, Mode::RUSR | Mode::WUSR) {
            Err(e) if e.kind() == Some(io::ErrorKind::AlreadyExists) => {
                return Err(KeyError::Exists { path: path.to_owned() });
            }
            opened => opened.map_err(untrusted)?,
        };
        // The file and then its directory are synced: a volume whose key is lost cannot be used.
        file.write_all(key_line(&key).as_bytes()).map_err(io("write"))?;
        file.sync_all().map_err(io("write"))?;
        dir.sync().map_err(untrusted)?;
        Ok(key)
    }

    /// Reads the key at `path`.
    ///
    /// # Errors
    /// All but [`KeyError::Exists`].
    pub fn load(path: &Path) -> Result<VolumeKey, KeyError> {
        let text = read_secret_file(path, LENGTH_MAX)?;
        let path = path.to_owned();
        match parse(&text) {
            KeyFileContent::Key(key) => Ok(key),
            KeyFileContent::Changed => Err(KeyError::Changed { path }),
            KeyFileContent::Other => Err(KeyError::Damaged { path }),
        }
    }
}

/// Reads at most `most` bytes of a file that only its owner can read, and that only this user or
/// the superuser can have put there.
pub(crate) fn read_secret_file(path: &Path, most: u64) -> Result<Vec<u8>, KeyError> {
    let io = |what| move |source| KeyError::Io { path: path.to_owned(), what, source };
    let file = match trusted::open_file(path, OFlags::RDONLY, Mode::empty()) {
        Err(TrustError::Owner { path: whose, owner }) if whose == path => {
            return Err(KeyError::Owner { path: whose, owner });
        }
        opened => opened.map_err(|e| KeyError::from_trust_error(path, "open", e))?,
    };
    let mode = file.metadata().map_err(io("examine"))?.mode() & 0o7777;
    // The mode of the open file, not of its path: the path could be replaced in between.
    if mode & 0o022 != 0 {
        return Err(KeyError::Writable { path: path.to_owned(), mode });
    }
    let exposed = if is_credential(path) { EXPOSED & !GROUP_READS } else { EXPOSED };
    if mode & exposed != 0 {
        return Err(KeyError::Exposed { path: path.to_owned(), mode });
    }
    let mut text = Vec::new();
    file.take(most).read_to_end(&mut text).map_err(io("read"))?;
    Ok(text)
}

/// Whether systemd has put the file there for this service (`LoadCredential=`). It gives the file
/// to the superuser and lets the user of the service read it by an access control list, or gives it
/// to that user. The directory is closed to all others.
fn is_credential(path: &Path) -> bool {
    let dir = std::env::var_os("CREDENTIALS_DIRECTORY").map(PathBuf::from);
    dir.is_some_and(|dir| dir.is_absolute() && path.parent() == Some(&dir))
}

/// Returns the content of a key file.
fn key_line(key: &VolumeKey) -> String {
    let digits = key.to_hex();
    format!("{digits} {:08x}\n", crc32c::crc32c(digits.as_bytes()))
}

/// The result of parsing.
#[derive(PartialEq, Eq)]
enum KeyFileContent {
    Key(VolumeKey),
    /// A key with the checksum of another key.
    Changed,
    /// Not a key.
    Other,
}

fn parse(text: &[u8]) -> KeyFileContent {
    let Ok(text) = std::str::from_utf8(text) else { return KeyFileContent::Other };
    let mut words = text.split_ascii_whitespace();
    let (Some(digits), Some(sum), None) = (words.next(), words.next(), words.next()) else {
        return KeyFileContent::Other;
    };
    let is_sum = sum.len() == 8 && sum.bytes().all(|b| b.is_ascii_hexdigit());
    let (Ok(key), true) = (VolumeKey::from_hex(digits), is_sum) else {
        return KeyFileContent::Other;
    };
    // The checksum covers the lower-case digits: a user that copies a key by hand may have used
    // capitals.
    match u32::from_str_radix(sum, 16) == Ok(crc32c::crc32c(key.to_hex().as_bytes())) {
        true => KeyFileContent::Key(key),
        false => KeyFileContent::Changed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::os::unix::fs::PermissionsExt;
    use tatami_skip::skip_test;

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
        for mode in [0o640, 0o604] {
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).expect("set");
            let error = KeyFile::load(&path).expect_err("exposed").to_string();
            assert!(error.contains(&format!("chmod 600 {}", path.display())), "{error}");
        }
    }

    #[test]
    fn nobody_is_advised_to_use_a_key_that_others_may_have_put_there() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("key");
        KeyFile::create(&path).expect("made");
        let refused = || {
            let error = KeyFile::load(&path).expect_err("planted").to_string();
            let advice = ["chmod", "chown"].iter().find(|word| error.contains(**word));
            assert!(error.contains("copy") && advice.is_none(), "{error}");
        };
        for mode in [0o660, 0o620, 0o602, 0o666] {
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).expect("set");
            refused();
        }
        if rustix::process::geteuid().is_root() {
            for mode in [0o600, 0o644, 0o666] {
                std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).expect("set");
                std::os::unix::fs::chown(&path, Some(12345), None).expect("given away");
                refused();
            }
        } else {
            skip_test("only root can give files away");
        }
    }

    #[test]
    fn a_missing_or_damaged_key_says_so() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("key");
        assert!(matches!(KeyFile::load(&path), Err(KeyError::Io { what: "open", .. })));
        crate::atomic::write_atomically(&path, b"12345\n", Mode::RUSR).expect("written");
        assert!(matches!(KeyFile::load(&path), Err(KeyError::Damaged { .. })));
    }

    #[test]
    fn a_flipped_bit_of_a_key_is_told() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("key");
        let key = KeyFile::create(&path).expect("made");
        let good = std::fs::read(&path).expect("read");
        for bit in 0..good.len() * 8 {
            let mut bytes = good.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            std::fs::write(&path, &bytes).expect("written");
            match KeyFile::load(&path) {
                Ok(read) => assert!(read == key, "bit {bit}"),
                Err(error) => {
                    let text = error.to_string();
                    let has_remedy =
                        text.contains("copy the file again") && text.contains("key file");
                    assert!(
                        has_remedy && text.contains(&*path.to_string_lossy()),
                        "bit {bit}: {text}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_key_without_a_checksum_is_refused_with_the_remedy() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("key");
        let text = format!("{}\n", VolumeKey::new([0x5a; 32]).to_hex());
        crate::atomic::write_atomically(&path, text.as_bytes(), Mode::RUSR).expect("written");
        let error = KeyFile::load(&path).expect_err("refused").to_string();
        assert!(error.contains("checksum: copy the file again from another node"), "{error}");
    }

    proptest! {
        #[test]
        fn any_text_is_a_key_or_an_error(text in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&text);
        }

        #[test]
        fn a_changed_digit_never_reads_as_a_key(at in 0usize..64, with in any::<u8>()) {
            let mut text = key_line(&VolumeKey::new([0x5a; 32])).into_bytes();
            prop_assume!(!text[at].eq_ignore_ascii_case(&with));
            text[at] = with;
            prop_assert!(!matches!(parse(&text), KeyFileContent::Key(_)));
        }
    }
}
