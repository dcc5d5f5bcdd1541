//! Directories that only this user and the superuser can have filled, and the files in them.
//!
//! If another user owns a directory, or can write to it or to one above it, that user can put links
//! there that lead a daemon of the superuser anywhere. So each component of a path is opened by
//! itself, from `/` on, without following links, and its owner and mode are checked (as sshd's
//! `StrictModes` does). Files in the directory are then opened below the descriptor, again without
//! following links.
//!
//! A component may belong to this user or to the superuser, and no other user may write to it.
//! Three exceptions are allowed. First, write permission for the private group of its owner (with
//! the number of its owner, as many systems make one for each user). Second, above the last
//! component, a directory that all may write to and in which no user can replace the files of
//! others (sticky, as `/tmp`). Third, a symbolic link that belongs to this user or the superuser
//! and lies in a directory to which no other user may write.

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

/// Most symbolic links on the way to one directory, as in the kernel.
const LINKS_MAX: usize = 40;
/// Write permission for the group and for others.
const WRITE_GROUP: u32 = 0o020;
const WRITE_OTHERS: u32 = 0o002;
const STICKY: u32 = 0o1000;

/// The reasons for which a directory, or a file in one, is not used.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// The system refuses the operation.
    #[error("{}: cannot {what} it: {source}", path.display())]
    Io {
        /// The path.
        path: PathBuf,
        /// The operation that failed.
        what: &'static str,
        /// The error.
        source: io::Error,
    },
    /// It belongs to another user.
    #[error(
        "{} belongs to user {owner}, who can put anything there: run this as that user, or choose \
         a path on which all directories belong to you or to the superuser", path.display()
    )]
    Owner {
        /// The path.
        path: PathBuf,
        /// Its owner.
        owner: u32,
    },
    /// Others can write to it.
    #[error(
        "others than its owner can write to {} (mode {mode:04o}), and so put anything there: choose \
         a path on which only you and the superuser can write to the directories", path.display()
    )]
    Writable {
        /// The path.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// A symbolic link where there must be none.
    #[error(
        "{} is a symbolic link, and this is no place for one: look who made it, and remove it",
        path.display()
    )]
    Link {
        /// The path.
        path: PathBuf,
    },
    /// Neither a directory nor a link to one.
    #[error("{} is not a directory", path.display())]
    NotADirectory {
        /// The path.
        path: PathBuf,
    },
    /// A device, a pipe or the like in the place of a file.
    #[error("{} is not an ordinary file: look who made it, and remove it", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
}

impl TrustError {
    fn io_error(path: &Path, what: &'static str) -> impl FnOnce(Errno) -> TrustError {
        let path = path.to_owned();
        move |errno| TrustError::Io { path, what, source: errno.into() }
    }

    /// Returns the kind of the system's error, if it is one.
    pub fn kind(&self) -> Option<io::ErrorKind> {
        match self {
            TrustError::Io { source, .. } => Some(source.kind()),
            _ => None,
        }
    }
}

impl From<TrustError> for io::Error {
    fn from(e: TrustError) -> io::Error {
        match e {
            TrustError::Io { source, .. } => source,
            other => io::Error::new(io::ErrorKind::PermissionDenied, other),
        }
    }
}

/// An open directory that has passed the checks.
#[derive(Debug)]
pub struct TrustedDir {
    fd: OwnedFd,
    /// The path by which it was opened.
    path: PathBuf,
}

impl TrustedDir {
    /// Opens an existing directory.
    ///
    /// # Errors
    /// [`TrustError`].
    pub fn open(path: &Path) -> Result<TrustedDir, TrustError> {
        open_path(path, None)
    }

    /// Opens a directory. It and the missing ones above it are made, with `mode`.
    ///
    /// # Errors
    /// [`TrustError`].
    pub fn open_or_create(path: &Path, mode: Mode) -> Result<TrustedDir, TrustError> {
        open_path(path, Some(mode))
    }

    /// Opens a file in the directory; `flags` may make it, with `mode`. It must be an ordinary file
    /// of this user or the superuser.
    ///
    /// # Errors
    /// [`TrustError`].
    pub fn open_file(&self, name: &str, flags: OFlags, mode: Mode) -> Result<File, TrustError> {
        let path = self.path.join(name);
        // A pipe that another user has put there must not block the open.
        let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd = match rustix::fs::openat(&self.fd, name, flags, mode) {
            Ok(fd) => fd,
            Err(Errno::LOOP) => return Err(TrustError::Link { path }),
            // A pipe without a reader, a socket, a directory.
            Err(Errno::NXIO | Errno::ISDIR) => return Err(TrustError::NotAFile { path }),
            Err(e) => return Err(TrustError::io_error(&path, "open")(e)),
        };
        let stat = rustix::fs::fstat(&fd).map_err(TrustError::io_error(&path, "examine"))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(TrustError::NotAFile { path });
        }
        check_owner(&path, &stat)?;
        Ok(File::from(fd))
    }

    /// Checks that the entry of this name, if there is one, is a directory that passes the checks,
    /// too.
    ///
    /// # Errors
    /// [`TrustError`].
    pub fn check_dir(&self, name: &str) -> Result<(), TrustError> {
        let path = self.path.join(name);
        let stat = match rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => return Ok(()),
            Err(e) => return Err(TrustError::io_error(&path, "examine")(e)),
        };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => check_component(&path, &stat, true),
            FileType::Symlink => Err(TrustError::Link { path }),
            _ => Err(TrustError::NotADirectory { path }),
        }
    }

    /// Writes `content` to a file of this name, with `mode`. A crash leaves the old one or the new
    /// one. With `sync`, it survives a power cut when this returns.
    ///
    /// # Errors
    /// [`TrustError`]. The file is unchanged then.
    pub fn replace_file(
        &self,
        name: &str,
        content: &[u8],
        mode: Mode,
        sync: bool,
    ) -> Result<(), TrustError> {
        let temporary = format!("{name}.{}.tmp", std::process::id());
        let path = self.path.join(&temporary);
        let io = |what| TrustError::io_error(&path, what);
        // A leftover of an earlier process of this number, or of an attempt that failed.
        match rustix::fs::unlinkat(&self.fd, &temporary, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(e) => return Err(io("remove")(e)),
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let mut file = self.open_file(&temporary, flags, mode)?;
        let write = |file: &mut File| {
            // Independent of the umask of this process.
            rustix::fs::fchmod(&*file, mode)?;
            file.write_all(content)?;
            // The content is on disk before the rename: otherwise a power cut could leave the new
            // name with an empty file.
            if sync { file.sync_all() } else { Ok(()) }
        };
        let written = write(&mut file).map_err(|source| {
            let path = self.path.join(name);
            TrustError::Io { path, what: "write", source }
        });
        let renamed = written.and_then(|()| {
            rustix::fs::renameat(&self.fd, &temporary, &self.fd, name).map_err(io("rename"))
        });
        if renamed.is_err() {
            // If this directory cannot be written at all, this fails as well.
            let _ = rustix::fs::unlinkat(&self.fd, &temporary, AtFlags::empty());
        }
        renamed?;
        if sync {
            // The rename itself survives a power cut only after a sync of the directory.
            rustix::fs::fsync(&self.fd).map_err(TrustError::io_error(&self.path, "sync"))?;
        }
        Ok(())
    }

    /// Renames a file in the directory.
    ///
    /// # Errors
    /// [`TrustError::Io`].
    pub fn rename_file(&self, from: &str, to: &str) -> Result<(), TrustError> {
        rustix::fs::renameat(&self.fd, from, &self.fd, to)
            .map_err(TrustError::io_error(&self.path.join(from), "rename"))
    }

    /// Makes the names of the directory survive a power cut.
    ///
    /// # Errors
    /// [`TrustError::Io`].
    pub fn sync(&self) -> Result<(), TrustError> {
        rustix::fs::fsync(&self.fd).map_err(TrustError::io_error(&self.path, "sync"))
    }
}

/// Opens the directory of a path. Returns it with the name in it.
///
/// # Errors
/// [`TrustError`].
pub fn open_parent(path: &Path) -> Result<(TrustedDir, &str), TrustError> {
    let invalid = |path: &Path| TrustError::io_error(path, "open")(Errno::INVAL);
    let name = path.file_name().and_then(OsStr::to_str).ok_or_else(|| invalid(path))?;
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Ok((TrustedDir::open(parent)?, name))
}

/// Opens an ordinary file in a directory that passes the checks.
///
/// # Errors
/// [`TrustError`].
pub fn open_file(path: &Path, flags: OFlags, mode: Mode) -> Result<File, TrustError> {
    let (parent, name) = open_parent(path)?;
    parent.open_file(name, flags, mode)
}

/// Replaces a file, as [`TrustedDir::replace_file`] does, by its path.
///
/// # Errors
/// [`TrustError`].
pub fn replace_file(path: &Path, content: &[u8], mode: Mode, sync: bool) -> Result<(), TrustError> {
    let (parent, name) = open_parent(path)?;
    parent.replace_file(name, content, mode, sync)
}

/// Opens component after component. Missing ones are made with mode `make`.
fn open_path(path: &Path, make: Option<Mode>) -> Result<TrustedDir, TrustError> {
    let absolute = std::path::absolute(path).map_err(|source| TrustError::Io {
        path: path.to_owned(),
        what: "find",
        source,
    })?;
    let mut left: VecDeque<OsString> = VecDeque::new();
    let put = |left: &mut VecDeque<OsString>, path: &Path| {
        for part in path.components().rev() {
            match part {
                Component::Normal(name) => left.push_front(name.to_owned()),
                Component::ParentDir => left.push_front("..".into()),
                Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
            }
        }
    };
    put(&mut left, &absolute);
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let root = Path::new("/");
    let open_root =
        || rustix::fs::open(root, flags, Mode::empty()).map_err(TrustError::io_error(root, "open"));
    let (mut fd, mut here) = (open_root()?, root.to_owned());
    let stat = rustix::fs::fstat(&fd).map_err(TrustError::io_error(root, "examine"))?;
    check_component(root, &stat, left.is_empty())?;
    let mut is_shared = is_writable(&stat);
    let mut links = 0;
    while let Some(name) = left.pop_front() {
        let path = here.join(&name);
        let io = |what| TrustError::io_error(&path, what);
        // `O_PATH` and `O_NOFOLLOW`: the component is examined before it is used, and through the
        // same descriptor, so that it cannot be exchanged in between.
        let next = match (rustix::fs::openat(&fd, &name, flags, Mode::empty()), make) {
            (Err(Errno::NOENT), Some(mode)) => {
                match rustix::fs::mkdirat(&fd, &name, mode) {
                    // Another process was faster: its directory is checked like any other.
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(e) => return Err(io("make")(e)),
                }
                rustix::fs::openat(&fd, &name, flags, Mode::empty()).map_err(io("open"))?
            }
            (opened, _) => opened.map_err(io("open"))?,
        };
        let stat = rustix::fs::fstat(&next).map_err(io("examine"))?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                check_component(&path, &stat, left.is_empty())?;
                is_shared = is_writable(&stat);
                (fd, here) = (next, path);
            }
            FileType::Symlink => {
                check_owner(&path, &stat)?;
                links += 1;
                if is_shared || links > LINKS_MAX {
                    return Err(TrustError::Link { path });
                }
                let target = rustix::fs::readlinkat(&next, "", Vec::new()).map_err(io("read"))?;
                let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
                if target.is_absolute() {
                    (fd, here, is_shared) = (open_root()?, root.to_owned(), false);
                }
                put(&mut left, &target);
                if left.is_empty() {
                    // A link to the root, or to its own directory: that is checked as the last
                    // component.
                    left.push_front(".".into());
                }
            }
            _ => return Err(TrustError::NotADirectory { path }),
        }
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let fd = rustix::fs::openat(&fd, ".", flags, Mode::empty())
        .map_err(TrustError::io_error(&absolute, "open"))?;
    Ok(TrustedDir { fd, path: absolute })
}

/// Whether any user other than its owner, and its owner's private group, may write to it.
fn is_writable(stat: &Stat) -> bool {
    let by_group = stat.st_mode & WRITE_GROUP != 0 && stat.st_gid != stat.st_uid;
    by_group || stat.st_mode & WRITE_OTHERS != 0
}

fn check_component(path: &Path, stat: &Stat, is_last: bool) -> Result<(), TrustError> {
    check_owner(path, stat)?;
    let is_sticky = stat.st_mode & STICKY != 0;
    if is_writable(stat) && (is_last || !is_sticky) {
        return Err(TrustError::Writable { path: path.to_owned(), mode: stat.st_mode & 0o7777 });
    }
    Ok(())
}

fn check_owner(path: &Path, stat: &Stat) -> Result<(), TrustError> {
    let owner = stat.st_uid;
    let me = rustix::process::geteuid().as_raw();
    if owner == me || owner == 0 || is_unmapped(owner) {
        return Ok(());
    }
    Err(TrustError::Owner { path: path.to_owned(), owner })
}

/// Whether the kernel shows this owner because the real one has no number in our user namespace. In
/// a namespace of an ordinary user, the machine's superuser is among these, and `/` has such an
/// owner, too. From there no process can do more than this user may.
fn is_unmapped(owner: u32) -> bool {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let overflow = read("/proc/sys/kernel/overflowuid").trim().parse() == Ok(owner);
    let all = u32::MAX.to_string();
    overflow && !read("/proc/self/uid_map").split_ascii_whitespace().eq(["0", "0", all.as_str()])
}

/// Whether the directory passes the checks, and belongs to this user.
pub fn is_own(path: &Path) -> bool {
    let stat = TrustedDir::open(path).map(|dir| rustix::fs::fstat(&dir.fd));
    matches!(stat, Ok(Ok(stat)) if stat.st_uid == rustix::process::geteuid().as_raw())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
    use tatami_skip::skip_test;

    fn dir() -> tempfile::TempDir {
        tempfile::tempdir().expect("a temporary directory")
    }

    fn set_mode(path: &Path, mode: u32) {
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).expect("set");
    }

    fn give(path: &Path, uid: u32) {
        std::os::unix::fs::lchown(path, Some(uid), Some(uid)).expect("given away");
    }

    fn is_root() -> bool {
        let is_root = rustix::process::geteuid().is_root();
        if !is_root {
            skip_test("only root can give files away");
        }
        is_root
    }

    #[test]
    fn what_is_missing_is_made_and_then_found() {
        let dir = dir();
        let path = dir.path().join("a/b");
        assert!(TrustedDir::open(&path).is_err_and(|e| e.kind() == Some(io::ErrorKind::NotFound)));
        TrustedDir::open_or_create(&path, Mode::from_raw_mode(0o711)).expect("made");
        assert_eq!(path.metadata().expect("there").mode() & 0o777, 0o711);
        let found = TrustedDir::open(&dir.path().join("a/../a/./b")).expect("found");
        found.replace_file("f", b"1", Mode::RUSR, true).expect("written");
        found.replace_file("f", b"2", Mode::RUSR | Mode::WUSR, false).expect("written");
        assert_eq!(std::fs::read(path.join("f")).expect("there"), b"2");
        assert_eq!(std::fs::read_dir(&path).expect("listed").count(), 1, "nothing is left over");
    }

    #[test]
    fn directories_to_which_others_can_write_are_refused() {
        let dir = dir();
        let (above, below) = (dir.path().join("above"), dir.path().join("above/below"));
        std::fs::create_dir_all(&below).expect("made");
        set_mode(&above, 0o777);
        assert!(matches!(TrustedDir::open(&above), Err(TrustError::Writable { .. })));
        assert!(matches!(TrustedDir::open(&below), Err(TrustError::Writable { .. })));
        set_mode(&above, 0o1777);
        assert!(matches!(TrustedDir::open(&above), Err(TrustError::Writable { .. })));
        TrustedDir::open(&below).expect("nobody can replace it");
        set_mode(&above, 0o775);
        let private = above.metadata().expect("there");
        assert_eq!(TrustedDir::open(&below).is_ok(), private.uid() == private.gid());
    }

    #[test]
    fn directories_and_links_of_others_are_refused() {
        if !is_root() {
            return;
        }
        let dir = dir();
        let (theirs, link) = (dir.path().join("theirs"), dir.path().join("link"));
        std::fs::create_dir_all(theirs.join("below")).expect("made");
        symlink("theirs", &link).expect("linked");
        TrustedDir::open(&link).expect("our link to our directory");
        give(&theirs, 12345);
        for path in [&theirs, &theirs.join("below"), &link, &link.join("below/deep")] {
            for result in [TrustedDir::open(path), TrustedDir::open_or_create(path, Mode::RWXU)] {
                let error = result.expect_err("another user's").to_string();
                assert!(error.contains("belongs to user 12345"), "{error}");
                assert!(!error.contains("chown") && !error.contains("chmod"), "{error}");
            }
        }
        give(&theirs, 0);
        give(&link, 12345);
        assert!(matches!(TrustedDir::open(&link), Err(TrustError::Owner { .. })));
    }

    #[test]
    fn links_in_shared_directories_are_not_followed() {
        let dir = dir();
        let shared = dir.path().join("shared");
        std::fs::create_dir(&shared).expect("made");
        std::fs::create_dir(dir.path().join("ours")).expect("made");
        symlink("../ours", shared.join("link")).expect("linked");
        TrustedDir::open(&shared.join("link")).expect("nobody else can make one here");
        set_mode(&shared, 0o1777);
        let error = TrustedDir::open(&shared.join("link")).expect_err("a link where all can write");
        assert!(matches!(error, TrustError::Link { .. }), "{error}");
    }

    #[test]
    fn planted_files_are_not_opened() {
        let dir = dir();
        let victim = dir.path().join("victim");
        std::fs::write(&victim, "kept").expect("written");
        let ours = TrustedDir::open_or_create(&dir.path().join("ours"), Mode::RWXU).expect("made");
        let at = |name: &str| dir.path().join("ours").join(name);
        symlink(&victim, at("link")).expect("linked");
        symlink("/nowhere", at("dangling")).expect("linked");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            at("pipe"),
            FileType::Fifo,
            Mode::RUSR | Mode::WUSR,
            0,
        )
        .expect("made");
        let append = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE;
        for name in ["link", "dangling"] {
            let error = ours.open_file(name, append, Mode::RUSR).expect_err("a link");
            assert!(matches!(error, TrustError::Link { .. }), "{error}");
        }
        for flags in [append, OFlags::RDONLY] {
            let error = ours.open_file("pipe", flags, Mode::RUSR).expect_err("a pipe");
            assert!(matches!(error, TrustError::NotAFile { .. }), "{error}");
        }
        // A link in the place of the file itself is replaced, and its target stays.
        ours.replace_file("link", b"new", Mode::RUSR, false).expect("replaced");
        assert_eq!(std::fs::read(&victim).expect("there"), b"kept");
        assert!(!at("dangling").exists() && !at("link").is_symlink());
        symlink(dir.path(), at("objects")).expect("linked");
        assert!(matches!(ours.check_dir("objects"), Err(TrustError::Link { .. })));
        ours.check_dir("meta").expect("what is not there will be made");
        if is_root() {
            std::fs::write(at("theirs"), "").expect("written");
            give(&at("theirs"), 12345);
            let error = ours.open_file("theirs", append, Mode::RUSR).expect_err("another user's");
            assert!(matches!(error, TrustError::Owner { owner: 12345, .. }), "{error}");
            assert!(is_own(&dir.path().join("ours")) && !is_own(Path::new("/tmp")));
        }
    }

    #[test]
    fn a_link_to_itself_ends() {
        let dir = dir();
        symlink("loop", dir.path().join("loop")).expect("linked");
        assert!(TrustedDir::open(&dir.path().join("loop/x")).is_err());
        symlink("/", dir.path().join("root")).expect("linked");
        let root = TrustedDir::open(&dir.path().join("root"));
        assert_eq!(root.is_ok(), TrustedDir::open(Path::new("/")).is_ok());
    }
}
