//! A data directory: its identity, and the lock that admits one daemon at a time.
//!
//! ```text
//! FORMAT, 36 bytes, little-endian
//! offset  0         8         12     14     16              32      36
//!         ┌─────────┬─────────┬──────┬──────┬───────────────┬───────┐
//!         │TATAMIDD │ format  │ node │ 0    │ volume id     │ crc32c│
//!         │ 8 bytes │ u32     │ u16  │ u16  │ 16 bytes      │ u32   │
//!         └─────────┴─────────┴──────┴──────┴───────────────┴───────┘
//! ```
//!
//! The checksum covers the 32 bytes before it. Magic and version are at the same offsets in every
//! version.

use crate::trusted::{TrustError, TrustedDir};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::process::{Pid, PidfdFlags};
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use tatami_wire::{NodeId, VolumeId};

/// The version of data directories that this program makes and reads.
pub const DATA_FORMAT: u32 = 1;

const MAGIC: [u8; 8] = *b"TATAMIDD";
const LENGTH: usize = 36;
const FORMAT_FILE: &str = "FORMAT";
const LOCK_FILE: &str = "lock";
/// More than the FORMAT file of any version has, in bytes.
const FORMAT_MAX: u64 = 4096;
/// Entries that show that the directory has data.
const DATA_DIRS: [&str; 2] = ["objects", "meta"];
/// All subdirectories.
const DIRECTORIES: [&str; 3] = ["objects", "meta", "lent"];
/// Its presence states that the directory began empty, in the place of one that was lost.
const LOST_FILE: &str = "LOST";
/// Longest wait for the end of a daemon that was killed, in seconds.
const DYING_WAIT_SEC: i64 = 30;
/// How often the lock is tried while its holder is dying.
const LOCK_TRIES: u32 = 4;
/// Entries that a directory may have before it becomes a data directory.
const HARMLESS_NAMES: [&str; 6] = [LOCK_FILE, LOST_FILE, "log", "socket", "pid", "lost+found"];

/// The reasons for which a data directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DataDirError {
    /// The directory could not be read or written.
    #[error("data directory {}: cannot {what}: {source}", path.display())]
    Io {
        /// The directory.
        path: PathBuf,
        /// The operation that failed.
        what: &'static str,
        /// The error.
        source: io::Error,
    },
    /// Others can change it, or have put a file there.
    #[error("data directory {0}")]
    Untrusted(TrustError),
    /// Another daemon has it.
    #[error(
        "data directory {}: {} uses it already: stop that one first, or give this node a \
         directory of its own", path.display(), describe_holder(*pid)
    )]
    InUse {
        /// The directory.
        path: PathBuf,
        /// The process that has it, if known.
        pid: Option<u32>,
    },
    /// It belongs to another volume.
    #[error(
        "data directory {}: it belongs to volume {found}, not to {wanted}: use the volume.toml \
         and the key of that volume, or another directory", path.display()
    )]
    OtherVolume {
        /// The directory.
        path: PathBuf,
        /// The volume that it belongs to.
        found: VolumeId,
        /// The volume that was expected.
        wanted: VolumeId,
    },
    /// It belongs to another node.
    #[error(
        "data directory {}: it belongs to node {found}, not to node {wanted}: start that node, \
         or use another directory", path.display()
    )]
    OtherNode {
        /// The directory.
        path: PathBuf,
        /// The node that it belongs to.
        found: NodeId,
        /// The node that was expected.
        wanted: NodeId,
    },
    /// It was made by a later version.
    #[error(
        "data directory {}: it has format {found}, this tatami knows up to {DATA_FORMAT}: it was \
         made by a newer tatami; upgrade this one", path.display()
    )]
    Newer {
        /// The directory.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
    /// Its FORMAT file is damaged.
    #[error(
        "data directory {}: its FORMAT file is damaged ({what}): restore that file from a \
         backup; the data beside it is untouched", path.display()
    )]
    Damaged {
        /// The directory.
        path: PathBuf,
        /// The kind of damage.
        what: &'static str,
    },
    /// It has files that are not Tatami's.
    #[error(
        "data directory {}: it is no data directory, and not empty (there is {found:?}): choose \
         an empty or a new directory", path.display()
    )]
    Foreign {
        /// The directory.
        path: PathBuf,
        /// One of these files.
        found: String,
    },
}

fn describe_holder(pid: Option<u32>) -> String {
    pid.map_or("another process".to_owned(), |pid| format!("a daemon (process {pid})"))
}

const LOST_TEXT: &[u8] =
    b"The directory that this node had before was lost, and this one began empty.\n\
    To settle that: tatami node forget --lost NODE\n";

/// A node's data directory, held by this process until it is dropped.
#[derive(Debug)]
pub struct DataDir {
    path: PathBuf,
    /// Whether this opening made it.
    fresh: bool,
    /// Holds the lock as long as it is open.
    _lock: File,
}

impl DataDir {
    /// Opens the directory for `node` of `volume`, and makes it if it is not there.
    ///
    /// # Errors
    /// [`DataDirError`]. Nothing was changed then, except that an empty directory may have been
    /// made.
    pub fn open_or_create(
        path: &Path,
        volume: VolumeId,
        node: NodeId,
    ) -> Result<DataDir, DataDirError> {
        Self::open_or_replace(path, volume, node, false)
    }

    /// Opens the directory as [`DataDir::open_or_create`] does. If the node had a directory before
    /// (`had_one`), a new one records that the old one was lost, until [`LossMark::remove`].
    ///
    /// # Errors
    /// As [`DataDir::open_or_create`].
    pub fn open_or_replace(
        path: &Path,
        volume: VolumeId,
        node: NodeId,
        had_one: bool,
    ) -> Result<DataDir, DataDirError> {
        let failed = |what| {
            let path = path.to_owned();
            move |source| DataDirError::Io { path, what, source }
        };
        // Other users may pass through to the socket, which may lie in here. The directories of
        // objects and names are closed to them.
        let dir = TrustedDir::open_or_create(path, Mode::from_raw_mode(0o711))
            .map_err(DataDirError::Untrusted)?;
        for below in DIRECTORIES {
            dir.check_dir(below).map_err(DataDirError::Untrusted)?;
        }
        // The lock before the first read: the FORMAT file must not change between its check and its
        // use.
        let lock = lock_dir(path, &dir)?;
        let fresh = match dir.open_file(FORMAT_FILE, OFlags::RDONLY, Mode::empty()) {
            Ok(file) => {
                let mut bytes = Vec::new();
                file.take(FORMAT_MAX)
                    .read_to_end(&mut bytes)
                    .map_err(failed("read its FORMAT file"))?;
                check_format(path, &bytes, volume, node)?;
                false
            }
            Err(e) if e.kind() == Some(io::ErrorKind::NotFound) => {
                refuse_foreign(path)?;
                if had_one {
                    // Before the FORMAT file: with that, a crash in between would make this
                    // directory pass for the lost one.
                    dir.replace_file(LOST_FILE, LOST_TEXT, Mode::from_raw_mode(0o644), true)
                        .map_err(DataDirError::Untrusted)?;
                }
                let content = encode(volume, node);
                let mode = Mode::from_raw_mode(0o644);
                dir.replace_file(FORMAT_FILE, &content, mode, true)
                    .map_err(DataDirError::Untrusted)?;
                // The new directory's own entry must survive a power cut, too.
                let parent = path.parent().filter(|p| !p.as_os_str().is_empty());
                let parent = File::open(parent.unwrap_or(Path::new(".")));
                parent.and_then(|dir| dir.sync_all()).map_err(failed("sync what it is in"))?;
                true
            }
            Err(e) => return Err(DataDirError::Untrusted(e)),
        };
        Ok(DataDir { path: path.to_owned(), fresh, _lock: lock })
    }

    /// Returns the path of the directory. Objects lie below it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the directory of the shards' stores.
    pub fn meta_dir(&self) -> PathBuf {
        self.path.join("meta")
    }

    /// Returns the mark of a directory that began empty in the place of one that was lost.
    pub fn loss_mark(&self) -> LossMark {
        LossMark { dir: self.path.clone() }
    }

    /// Whether this opening made it.
    pub fn is_fresh(&self) -> bool {
        self.fresh
    }
}

/// The mark of a data directory that began empty in the place of one that was lost. Unlike
/// [`DataDir`] it holds no lock: an owner that outlives the daemon does not block the next one.
#[derive(Debug, Clone)]
pub struct LossMark {
    dir: PathBuf,
}

impl LossMark {
    /// Returns the time since which the directory replaces one that was lost. `None` if none was
    /// lost, or if the administrator has settled it ([`LossMark::remove`]).
    pub fn lost_since(&self) -> Option<SystemTime> {
        std::fs::metadata(self.dir.join(LOST_FILE)).and_then(|meta| meta.modified()).ok()
    }

    /// Removes the mark of a loss. Returns whether there was one.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn remove(&self) -> io::Result<bool> {
        match std::fs::remove_file(self.dir.join(LOST_FILE)) {
            Ok(()) => File::open(&self.dir)?.sync_all().map(|()| true),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(e) => Err(e),
        }
    }
}

fn encode(volume: VolumeId, node: NodeId) -> [u8; LENGTH] {
    let mut b = [0; LENGTH];
    b[..8].copy_from_slice(&MAGIC);
    b[8..12].copy_from_slice(&DATA_FORMAT.to_le_bytes());
    b[12..14].copy_from_slice(&node.0.to_le_bytes());
    b[16..32].copy_from_slice(&volume.0);
    let crc = crc32c::crc32c(&b[..32]);
    b[32..].copy_from_slice(&crc.to_le_bytes());
    b
}

enum FormatFault {
    Newer(u32),
    Damaged(&'static str),
}

fn decode(bytes: &[u8]) -> Result<(VolumeId, NodeId), FormatFault> {
    let u32_at = |at: usize| {
        let b: Option<[u8; 4]> = bytes.get(at..at + 4).and_then(|b| b.try_into().ok());
        b.map(u32::from_le_bytes).ok_or(FormatFault::Damaged("it is too short"))
    };
    // Magic and version first: a later version may have another length and no such checksum.
    if bytes.get(..8) != Some(&MAGIC) {
        return Err(FormatFault::Damaged("it does not begin with TATAMIDD"));
    }
    match u32_at(8)? {
        DATA_FORMAT => {}
        0 => return Err(FormatFault::Damaged("there is no format 0")),
        newer => return Err(FormatFault::Newer(newer)),
    }
    let bytes: &[u8; LENGTH] =
        bytes.try_into().map_err(|_| FormatFault::Damaged("its length is wrong"))?;
    if crc32c::crc32c(&bytes[..32]) != u32_at(32)? {
        return Err(FormatFault::Damaged("its checksum is wrong"));
    }
    let mut volume = [0; 16];
    volume.copy_from_slice(&bytes[16..32]);
    Ok((VolumeId(volume), NodeId(u16::from_le_bytes([bytes[12], bytes[13]]))))
}

fn check_format(
    path: &Path,
    bytes: &[u8],
    volume: VolumeId,
    node: NodeId,
) -> Result<(), DataDirError> {
    let path = path.to_owned();
    let (found_volume, found_node) = match decode(bytes) {
        Ok(found) => found,
        Err(FormatFault::Newer(found)) => return Err(DataDirError::Newer { path, found }),
        Err(FormatFault::Damaged(what)) => return Err(DataDirError::Damaged { path, what }),
    };
    if found_volume != volume {
        return Err(DataDirError::OtherVolume { path, found: found_volume, wanted: volume });
    }
    if found_node != node {
        return Err(DataDirError::OtherNode { path, found: found_node, wanted: node });
    }
    Ok(())
}

/// Refuses a directory without a FORMAT file that holds data or foreign files.
fn refuse_foreign(path: &Path) -> Result<(), DataDirError> {
    let failed = |source| DataDirError::Io { path: path.to_owned(), what: "list it", source };
    for entry in std::fs::read_dir(path).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        if DATA_DIRS.iter().any(|own| name == *own) {
            let what = "it is missing, yet there is data";
            return Err(DataDirError::Damaged { path: path.to_owned(), what });
        }
        let found = name.to_string_lossy().into_owned();
        // A crash before the rename left it.
        let is_unfinished = [FORMAT_FILE, LOST_FILE].iter().any(|of| found.starts_with(of))
            && found.ends_with(".tmp");
        if !is_unfinished && !HARMLESS_NAMES.iter().any(|harmless| name == *harmless) {
            return Err(DataDirError::Foreign { path: path.to_owned(), found });
        }
    }
    Ok(())
}

/// Takes the lock, which the kernel releases however the process ends.
fn lock_dir(path: &Path, dir: &TrustedDir) -> Result<File, DataDirError> {
    let failed =
        |source| DataDirError::Io { path: path.to_owned(), what: "lock its lock file", source };
    let flags = OFlags::RDWR | OFlags::CREATE;
    let file = dir.open_file(LOCK_FILE, flags, Mode::from_raw_mode(0o644));
    let mut file = file.map_err(DataDirError::Untrusted)?;
    let mut tries = 0;
    loop {
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => break,
            Err(rustix::io::Errno::WOULDBLOCK) => {}
            Err(e) => return Err(failed(e.into())),
        }
        let pid = read_holder(&mut file);
        tries += 1;
        // A daemon that was killed holds the lock until its disk has answered. After its end the
        // lock is free, or another process has it.
        let over = |pid| is_dying(pid) && wait_for_end(pid);
        if tries >= LOCK_TRIES || !pid.is_some_and(over) {
            return Err(DataDirError::InUse { path: path.to_owned(), pid });
        }
    }
    // Only error messages use the number, so a full disk must not keep the daemon from starting.
    // Overwriting without truncating first needs no space.
    let number = format!("{}\n", std::process::id());
    let _ = file.rewind().and_then(|()| file.write_all(number.as_bytes()));
    let _ = file.set_len(number.len() as u64);
    Ok(file)
}

/// Returns the process that wrote its number into the lock file. A process that is about to write
/// it stays unknown.
fn read_holder(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    file.rewind().ok()?;
    file.take(32).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

/// Whether a process has been killed and is not gone yet: its first thread has ended, or SIGKILL is
/// pending.
fn is_dying(pid: u32) -> bool {
    const KILL: u64 = 1 << (9 - 1);
    let Ok(status) = std::fs::read_to_string(format!("/proc/{pid}/status")) else {
        // The process ended before its status could be read.
        return true;
    };
    status.lines().any(|line| match line.split_once(':') {
        Some(("State", state)) => state.trim_start().starts_with(['Z', 'X']),
        Some(("SigPnd" | "ShdPnd", set)) => {
            u64::from_str_radix(set.trim(), 16).is_ok_and(|set| set & KILL != 0)
        }
        _ => false,
    })
}

/// Waits for the end of a process. Returns false if the time was over first.
fn wait_for_end(pid: u32) -> bool {
    let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return false };
    let Ok(process) = rustix::process::pidfd_open(pid, PidfdFlags::empty()) else {
        // The process is gone already.
        return true;
    };
    let timeout = Timespec { tv_sec: DYING_WAIT_SEC, tv_nsec: 0 };
    let mut fds = [PollFd::new(&process, PollFlags::IN)];
    !matches!(poll(&mut fds, Some(&timeout)), Ok(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const VOLUME: VolumeId = VolumeId([7; 16]);
    const NODE: NodeId = NodeId(3);

    fn dir() -> tempfile::TempDir {
        tempfile::tempdir().expect("a temporary directory")
    }

    fn open(path: &Path) -> Result<DataDir, DataDirError> {
        DataDir::open_or_create(path, VOLUME, NODE)
    }

    #[test]
    fn a_directory_is_made_once_and_then_found() {
        let dir = dir();
        let path = dir.path().join("deep/node3");
        assert!(open(&path).expect("made").is_fresh());
        assert!(!open(&path).expect("found").is_fresh());
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(path.metadata().expect("there").permissions().mode() & 0o777, 0o711);
    }

    #[test]
    fn a_directory_in_the_place_of_a_lost_one_says_so_until_that_is_settled() {
        let dir = dir();
        let open = || DataDir::open_or_replace(dir.path(), VOLUME, NODE, true).expect("opened");
        let mark = open().loss_mark();
        assert!(mark.lost_since().is_some());
        assert!(!open().is_fresh() && mark.lost_since().is_some(), "a start does not settle it");
        assert!(mark.remove().expect("forgotten"));
        assert!(!mark.remove().expect("nothing left"));
        assert_eq!(open().loss_mark().lost_since(), None, "it is there");
    }

    #[test]
    fn two_daemons_on_one_directory_are_told_apart() {
        let dir = dir();
        let first = open(dir.path()).expect("made");
        let error = open(dir.path()).expect_err("in use").to_string();
        assert!(error.contains(&format!("process {}", std::process::id())), "{error}");
        drop(first);
        open(dir.path()).expect("free again");
    }

    #[test]
    fn what_belongs_to_others_is_refused_and_named() {
        let dir = dir();
        drop(open(dir.path()).expect("made"));
        let other = DataDir::open_or_create(dir.path(), VolumeId([8; 16]), NODE);
        let error = other.expect_err("another volume").to_string();
        assert!(error.contains(&VOLUME.to_string()), "{error}");
        assert!(error.contains(&VolumeId([8; 16]).to_string()), "{error}");
        let error = DataDir::open_or_create(dir.path(), VOLUME, NodeId(4)).expect_err("other node");
        assert!(error.to_string().contains("node 3, not to node 4"), "{error}");
    }

    #[test]
    fn a_newer_format_asks_for_an_upgrade() {
        let dir = dir();
        let mut bytes = encode(VOLUME, NODE).to_vec();
        bytes[8] = 2;
        bytes.extend_from_slice(b"whatever comes later");
        std::fs::write(dir.path().join(FORMAT_FILE), bytes).expect("written");
        let error = open(dir.path()).expect_err("newer").to_string();
        assert!(error.contains("made by a newer tatami; upgrade"), "{error}");
    }

    #[test]
    fn damage_is_found() {
        let dir = dir();
        let file = dir.path().join(FORMAT_FILE);
        for bytes in [&b""[..], b"TATAMIDD", b"something else entirely"] {
            std::fs::write(&file, bytes).expect("written");
            assert!(matches!(open(dir.path()), Err(DataDirError::Damaged { .. })));
        }
        std::fs::remove_file(&file).expect("removed");
        std::fs::create_dir(dir.path().join("objects")).expect("made");
        let error = open(dir.path()).expect_err("data without FORMAT");
        assert!(matches!(error, DataDirError::Damaged { .. }), "{error}");
    }

    #[test]
    fn a_directory_with_other_files_is_left_alone() {
        let dir = dir();
        std::fs::write(dir.path().join("log"), b"").expect("written");
        open(dir.path()).expect("a log does no harm");
        let dir = self::dir();
        std::fs::write(dir.path().join("thesis.tex"), b"").expect("written");
        let error = open(dir.path()).expect_err("not ours").to_string();
        assert!(error.contains("thesis.tex"), "{error}");
        assert!(!dir.path().join(FORMAT_FILE).exists());
    }

    proptest! {
        /// Any change of a FORMAT file is found.
        #[test]
        fn mutated_bytes_are_refused(at in 0usize..LENGTH, flip in 1u8.., cut in 0usize..LENGTH) {
            let good = encode(VOLUME, NODE);
            let mut bad = good;
            bad[at] ^= flip;
            prop_assert!(decode(&bad).is_err());
            prop_assert!(decode(&good[..cut]).is_err());
            prop_assert!(decode(&good).is_ok());
        }

        #[test]
        fn any_bytes_are_an_error_not_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            prop_assert!(decode(&bytes).is_err());
        }
    }
}
