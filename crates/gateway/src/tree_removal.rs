//! The removal of a tree, some entries at a time. Each name is opened and removed relative to its
//! open directory, and no link is followed. So a link that somebody plants meanwhile is removed
//! itself, and nothing outside of the tree.

use crate::path_calls::{failed, open_dir};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, openat, statat, unlinkat};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use tatami_remote::{RemoteFailure, SiteRemoval};

/// Most entries of one step.
const STEP_ENTRIES: usize = 1000;
/// About the most bytes of the names of one step.
const STEP_BYTES: usize = 256 << 10;
/// Deepest level: each takes a descriptor.
const DEPTH_MAX: usize = 500;

/// A directory that is being emptied.
struct OpenLevel {
    name: OsString,
    fd: OwnedFd,
    dir: Dir,
    /// An entry could not be removed, so the directory cannot be, either.
    is_kept: bool,
    /// It was read once more, because it had entries after its end.
    is_reread: bool,
}

/// A removal at work.
pub(crate) struct SiteTreeRemoval {
    number: u64,
    /// The directory of the top.
    parent: OwnedFd,
    /// The path of the top as it was given.
    top: Vec<u8>,
    name: OsString,
    levels: Vec<OpenLevel>,
    step: SiteRemoval,
    bytes: usize,
    has_begun: bool,
}

/// Returns the directory of a path, and the last name in it.
pub(crate) fn split_path(path: &Path) -> Result<(&Path, &OsStr), Errno> {
    let bytes = path.as_os_str().as_bytes();
    let end = bytes.iter().rposition(|b| *b != b'/').map_or(0, |at| at + 1);
    let start = bytes[..end].iter().rposition(|b| *b == b'/').map_or(0, |at| at + 1);
    let (dir, name) = (&bytes[..start], &bytes[start..end]);
    if matches!(name, b"" | b"." | b"..") {
        return Err(Errno::INVAL);
    }
    let dir = if dir.is_empty() { b"." } else { dir };
    Ok((Path::new(OsStr::from_bytes(dir)), OsStr::from_bytes(name)))
}

impl SiteTreeRemoval {
    /// Looks at the path. Nothing is removed yet.
    ///
    /// # Errors
    /// It does not exist, or has no name.
    pub(crate) fn begin(path: &Path, number: u64) -> Result<SiteTreeRemoval, RemoteFailure> {
        let (dir, name) = split_path(path).map_err(failed)?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let parent = openat(CWD, dir, flags, Mode::empty()).map_err(failed)?;
        statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW).map_err(failed)?;
        let mut top = path.as_os_str().as_bytes().to_vec();
        while top.last() == Some(&b'/') {
            top.pop();
        }
        let (name, step) = (name.to_owned(), SiteRemoval::default());
        let levels = Vec::new();
        Ok(SiteTreeRemoval { number, parent, top, name, levels, step, bytes: 0, has_begun: false })
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Removes some entries.
    pub(crate) fn remove_some(&mut self) -> SiteRemoval {
        self.bytes = 0;
        if !self.has_begun {
            self.has_begun = true;
            let name = self.name.clone();
            self.remove_entry(name, None);
        }
        while !self.levels.is_empty() && !self.is_full() {
            self.remove_next();
        }
        let is_last = self.levels.is_empty();
        SiteRemoval { is_last, ..std::mem::take(&mut self.step) }
    }

    fn is_full(&self) -> bool {
        self.step.removed.len() + self.step.failed.len() >= STEP_ENTRIES || self.bytes >= STEP_BYTES
    }

    /// Removes the next entry of the innermost directory, or the directory itself after its last.
    fn remove_next(&mut self) {
        let Some(level) = self.levels.last_mut() else { return };
        match level.dir.read() {
            Some(Ok(entry)) if matches!(entry.file_name().to_bytes(), b"." | b"..") => {}
            Some(Ok(entry)) => {
                let name = OsString::from_vec(entry.file_name().to_bytes().to_vec());
                let kind = entry.file_type();
                self.remove_entry(name, Some(kind));
            }
            Some(Err(e)) => {
                level.is_kept = true;
                // Without this the same error comes for ever.
                self.record_failure(None, e);
                self.leave_level();
            }
            None => self.leave_level(),
        }
    }

    fn leave_level(&mut self) {
        let Some(mut level) = self.levels.pop() else { return };
        if !level.is_kept {
            let at = self.levels.last().map_or(&self.parent, |above| &above.fd);
            match unlinkat(at, &level.name, AtFlags::REMOVEDIR) {
                Ok(()) => return self.record_removal(&level.name),
                Err(Errno::NOTEMPTY | Errno::EXIST) if !level.is_reread => {
                    level.dir.rewind();
                    level.is_reread = true;
                    self.levels.push(level);
                    return;
                }
                Err(e) => self.record_failure(Some(&level.name), e),
            }
        }
        self.keep_above();
    }

    fn remove_entry(&mut self, name: OsString, kind: Option<FileType>) {
        let at = self.levels.last().map_or(&self.parent, |level| &level.fd);
        // A directory is tried first where it is one: unlinkat(2) of it costs a call for nothing.
        let removed = match kind {
            Some(FileType::Directory) => Err(Errno::ISDIR),
            _ => unlinkat(at, &name, AtFlags::empty()),
        };
        match removed {
            Ok(()) => self.record_removal(&name),
            Err(Errno::NOENT) if kind.is_some() => {}
            Err(first @ (Errno::ISDIR | Errno::PERM)) => {
                match open_dir(at, Path::new(&name), false) {
                    Ok(_) if self.levels.len() >= DEPTH_MAX => {
                        self.record_failure(Some(&name), Errno::MFILE);
                        self.keep_above();
                    }
                    Ok((fd, dir)) => {
                        self.levels.push(OpenLevel {
                            name,
                            fd,
                            dir,
                            is_kept: false,
                            is_reread: false,
                        });
                    }
                    // No directory: a file that may not be removed, or a link in the place of one.
                    Err(Errno::NOTDIR | Errno::LOOP) => {
                        match (first, unlinkat(at, &name, AtFlags::empty())) {
                            (_, Ok(())) => self.record_removal(&name),
                            (_, Err(e)) => {
                                self.record_failure(Some(&name), e);
                                self.keep_above();
                            }
                        }
                    }
                    Err(Errno::NOENT) if kind.is_some() => {}
                    // A directory that may not be read can be empty.
                    Err(e) => match unlinkat(at, &name, AtFlags::REMOVEDIR) {
                        Ok(()) => self.record_removal(&name),
                        Err(_) => {
                            self.record_failure(Some(&name), e);
                            self.keep_above();
                        }
                    },
                }
            }
            Err(e) => {
                self.record_failure(Some(&name), e);
                self.keep_above();
            }
        }
    }

    fn keep_above(&mut self) {
        if let Some(above) = self.levels.last_mut() {
            above.is_kept = true;
        }
    }

    /// Returns the path of an entry of the innermost directory, or of that directory.
    fn path_of(&self, name: Option<&OsStr>) -> Vec<u8> {
        let mut path = self.top.clone();
        // The first level is the top itself.
        let below = self.levels.iter().skip(1).map(|level| level.name.as_os_str());
        let name = name.filter(|_| !self.levels.is_empty());
        for part in below.chain(name) {
            path.push(b'/');
            path.extend_from_slice(part.as_bytes());
        }
        path
    }

    fn record_removal(&mut self, name: &OsStr) {
        let path = self.path_of(Some(name));
        self.bytes += path.len();
        self.step.removed.push(path.into());
    }

    fn record_failure(&mut self, name: Option<&OsStr>, errno: Errno) {
        let path = self.path_of(name);
        self.bytes += path.len();
        self.step.failed.push((path.into(), errno.raw_os_error()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    fn remove_all(path: &Path) -> SiteRemoval {
        let mut work = SiteTreeRemoval::begin(path, 1).expect("it is there");
        let mut all = SiteRemoval::default();
        while !all.is_last {
            let step = work.remove_some();
            all.removed.extend(step.removed);
            all.failed.extend(step.failed);
            all.is_last = step.is_last;
        }
        all
    }

    #[test]
    fn a_tree_goes_in_steps_and_links_are_not_followed() {
        let dir = tempfile::tempdir().expect("made");
        let (top, kept) = (dir.path().join("top"), dir.path().join("kept"));
        fs::create_dir_all(top.join("a/b")).expect("made");
        fs::create_dir(&kept).expect("made");
        fs::write(kept.join("f"), "kept").expect("written");
        symlink(&kept, top.join("a/link")).expect("made");
        symlink(&kept, dir.path().join("other")).expect("made");
        for n in 0..STEP_ENTRIES * 2 {
            fs::write(top.join("a/b").join(n.to_string()), "").expect("written");
        }
        let removed = remove_all(&top);
        assert_eq!((removed.removed.len(), removed.failed.len()), (STEP_ENTRIES * 2 + 4, 0));
        assert_eq!(
            removed.removed.last().map(|path| path.to_vec()),
            Some(top.into_os_string().into_vec())
        );
        assert_eq!(remove_all(&dir.path().join("other/")).removed.len(), 1);
        assert!(kept.join("f").exists());
    }

    /// A directory is replaced by a link to another one between two steps.
    #[test]
    fn a_link_that_is_planted_meanwhile_is_removed_itself() {
        let dir = tempfile::tempdir().expect("made");
        let (top, kept) = (dir.path().join("top"), dir.path().join("kept"));
        fs::create_dir_all(&kept).expect("made");
        fs::write(kept.join("f"), "kept").expect("written");
        fs::create_dir_all(top.join("a")).expect("made");
        let mut work = SiteTreeRemoval::begin(&top, 1).expect("it is there");
        work.remove_entry("top".into(), Some(FileType::Directory));
        work.has_begun = true;
        fs::rename(top.join("a"), top.join("b")).expect("renamed");
        symlink(&kept, top.join("a")).expect("made");
        // As if the listing had shown a directory of this name before.
        work.remove_entry("a".into(), Some(FileType::Directory));
        assert_eq!(work.levels.len(), 1, "the link was not entered");
        while !work.remove_some().is_last {}
        assert!(kept.join("f").exists() && !top.exists());
    }
}
