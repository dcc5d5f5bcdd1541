//! The two sides of a copy: the same operations on the volume and on this machine.

use crate::error::{CommandFailure, CommandResult};
use crate::files::CHUNK;
use crate::term;
use crate::volume_path::{AnyPath, last_component};
use indicatif::ProgressBar;
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use tatami_client::tree::{FileHandle, VolumeTree, join_path};
use tatami_wire::{Errno, Ino, InodeKind, SetAttr, Timestamp};

/// The attributes of a file that a copy needs.
#[derive(Clone, Copy)]
pub struct FileFacts {
    pub kind: InodeKind,
    pub mode: u16,
    pub size: u64,
    pub mtime: Timestamp,
    /// Equal for two paths of one file.
    pub identity: (u64, u64),
}

impl FileFacts {
    /// Returns the attributes that `--preserve` copies.
    pub fn preserved_attrs(self) -> SetAttr {
        SetAttr {
            mode: Some(self.mode),
            mtime: Some(tatami_wire::SetTime::At(self.mtime)),
            ..SetAttr::default()
        }
    }
}

/// [`FileFacts::identity`] of standard input and output. No device has this number.
const STANDARD_STREAM: (u64, u64) = (u64::MAX - 1, 0);

/// The identity of an inode of the volume, for [`FileFacts::identity`].
pub fn volume_identity(ino: Ino) -> (u64, u64) {
    (u64::MAX, ino.0)
}

/// The path that names standard input as a source, and standard output as a destination.
pub fn is_standard_stream(path: &AnyPath) -> bool {
    matches!(path, AnyPath::Local(path) if path.as_os_str() == "-")
}

/// A file being written, in the volume or on this machine.
pub enum CopySink {
    Local(Box<dyn Write>),
    Volume(Box<FileHandle>),
}

/// The same operations on the volume and on this machine.
pub struct CopyTrees<'a> {
    pub tree: &'a VolumeTree,
    pub umask: u16,
    /// The device numbers of the volume's mounts on this machine. There, an inode number of the
    /// kernel is one of the volume.
    pub mounts: BTreeSet<u64>,
    /// The identity of the volume's directory: it has the daemons' data.
    pub volume_dir: Option<(u64, u64)>,
}

impl CopyTrees<'_> {
    pub fn read_facts(&self, path: &AnyPath, follow: bool) -> Result<FileFacts, Errno> {
        match path {
            path if is_standard_stream(path) => Ok(FileFacts {
                kind: InodeKind::Fifo,
                mode: 0o666,
                size: 0,
                mtime: Timestamp::default(),
                identity: STANDARD_STREAM,
            }),
            AnyPath::Volume(path) => {
                let a = self.tree.stat(path, follow)?;
                let identity = volume_identity(a.ino);
                Ok(FileFacts { kind: a.kind, mode: a.mode, size: a.size, mtime: a.mtime, identity })
            }
            AnyPath::Local(path) => {
                let m = if follow { path.metadata()? } else { path.symlink_metadata()? };
                Ok(FileFacts {
                    kind: InodeKind::from_mode(m.mode()).ok_or(Errno::EINVAL)?,
                    mode: (m.mode() & 0o7777) as u16,
                    size: m.size(),
                    mtime: Timestamp { sec: m.mtime(), nsec: m.mtime_nsec() as u32 },
                    identity: match self.mounts.contains(&m.dev()) {
                        true => volume_identity(Ino(m.ino())),
                        false => (m.dev(), m.ino()),
                    },
                })
            }
        }
    }

    pub fn list_names(&self, path: &AnyPath) -> Result<Vec<Vec<u8>>, Errno> {
        match path {
            AnyPath::Volume(path) => {
                let entries = self.tree.read_dir(path, false)?;
                Ok(entries.into_iter().map(|e| e.name.into_vec()).collect())
            }
            AnyPath::Local(path) => {
                let mut names = Vec::new();
                for entry in std::fs::read_dir(path)? {
                    names.push(entry?.file_name().into_vec());
                }
                names.sort_unstable();
                Ok(names)
            }
        }
    }

    /// Returns whether `path`, which may not exist yet, lies in the directory `dir` or below it.
    pub fn lies_within(&self, path: &AnyPath, dir: (u64, u64)) -> bool {
        // The deepest directory of the path that exists.
        let mut at = path.clone();
        let mut facts = loop {
            match self.read_facts(&at, true) {
                Ok(facts) if facts.kind == InodeKind::Dir => break facts,
                _ => match parent_of(&at) {
                    Some(parent) => at = parent,
                    None => return false,
                },
            }
        };
        // Then upwards. The parent of the root is the root.
        loop {
            if facts.identity == dir {
                return true;
            }
            at = append_name(&at, b"..");
            match self.read_facts(&at, true) {
                Ok(above) if above.identity != facts.identity => facts = above,
                _ => return false,
            }
        }
    }

    /// Returns why an entry of a directory of this machine is not copied along with it: the volume
    /// would be copied into itself.
    pub fn why_left_out(&self, dir: &FileFacts, entry: &FileFacts) -> Option<&'static str> {
        if entry.kind != InodeKind::Dir {
            None
        } else if Some(entry.identity) == self.volume_dir {
            Some("it is the directory of this volume")
        } else if is_of_volume(entry) && !is_of_volume(dir) {
            Some("it is a mount of this volume")
        } else {
            None
        }
    }

    pub fn open_source(&self, path: &AnyPath) -> Result<Box<dyn Read>, Errno> {
        Ok(match path {
            path if is_standard_stream(path) => Box::new(std::io::stdin()),
            AnyPath::Volume(path) => Box::new(self.tree.open(path)?),
            AnyPath::Local(path) => Box::new(std::fs::File::open(path)?),
        })
    }

    pub fn create_sink(&self, path: &AnyPath, mode: u16) -> Result<CopySink, Errno> {
        Ok(match path {
            path if is_standard_stream(path) => CopySink::Local(Box::new(std::io::stdout())),
            AnyPath::Volume(path) => {
                CopySink::Volume(Box::new(self.tree.create(path, mode & 0o777, self.umask)?))
            }
            AnyPath::Local(path) => CopySink::Local(Box::new(
                std::fs::OpenOptions::new()
                    .write(true)
                    .create(true)
                    .truncate(true)
                    .mode(u32::from(mode & 0o777))
                    .open(path)?,
            )),
        })
    }

    pub fn mkdir(&self, path: &AnyPath, mode: u16) -> Result<(), Errno> {
        // The copy must be able to fill it, regardless of the mode of the original.
        let mode = (mode & 0o777) | 0o700;
        let made = match path {
            AnyPath::Volume(path) => self.tree.mkdir(path, mode, self.umask).map(drop),
            AnyPath::Local(path) => std::os::unix::fs::DirBuilderExt::mode(
                &mut std::fs::DirBuilder::new(),
                u32::from(mode),
            )
            .create(path)
            .map_err(Errno::from),
        };
        match made {
            Err(Errno::EEXIST) if self.read_facts(path, true)?.kind == InodeKind::Dir => Ok(()),
            other => other,
        }
    }

    pub fn copy_link(&self, from: &AnyPath, to: &AnyPath) -> Result<(), Errno> {
        let target = match from {
            AnyPath::Volume(path) => self.tree.read_link(path)?,
            AnyPath::Local(path) => std::fs::read_link(path)?.into_os_string().into_vec(),
        };
        match to {
            AnyPath::Volume(path) => self.tree.symlink(path, &target).map(drop),
            AnyPath::Local(path) => {
                let target = std::ffi::OsStr::from_bytes(&target);
                std::os::unix::fs::symlink(target, path).map_err(Errno::from)
            }
        }
    }

    pub fn preserve_attrs(&self, path: &AnyPath, facts: &FileFacts) -> Result<(), Errno> {
        match path {
            AnyPath::Volume(path) => self.tree.set_attrs(path, facts.preserved_attrs()).map(drop),
            AnyPath::Local(path) => {
                let mode = std::fs::Permissions::from_mode(u32::from(facts.mode));
                std::fs::set_permissions(path, mode)?;
                let time = rustix::fs::Timespec {
                    tv_sec: facts.mtime.sec,
                    tv_nsec: i64::from(facts.mtime.nsec),
                };
                let omit = rustix::fs::Timespec { tv_sec: 0, tv_nsec: libc::UTIME_OMIT };
                let times = rustix::fs::Timestamps { last_access: omit, last_modification: time };
                let flags = rustix::fs::AtFlags::empty();
                rustix::fs::utimensat(rustix::fs::CWD, path, &times, flags)
                    .map_err(|e| Errno(e.raw_os_error()))
            }
        }
    }
}

/// Returns `path` with `name` appended, in the volume or on this machine.
pub fn append_name(path: &AnyPath, name: &[u8]) -> AnyPath {
    match path {
        AnyPath::Volume(path) => AnyPath::Volume(join_path(path, name)),
        AnyPath::Local(path) => AnyPath::Local(path.join(std::ffi::OsStr::from_bytes(name))),
    }
}

/// Returns the path without its last name, or `None` where it has none to take away.
fn parent_of(path: &AnyPath) -> Option<AnyPath> {
    match path {
        AnyPath::Volume(path) => {
            let name = last_component(path);
            let end = path.iter().rposition(|b| *b != b'/')? + 1 - name.len();
            Some(AnyPath::Volume(path[..end].to_vec()))
        }
        AnyPath::Local(path) => {
            let parent = path.parent()?;
            match parent.as_os_str().is_empty() {
                false => Some(AnyPath::Local(parent.to_owned())),
                // A relative path begins in the working directory.
                true => (path.as_os_str() != ".").then(|| AnyPath::Local(".".into())),
            }
        }
    }
}

fn is_of_volume(facts: &FileFacts) -> bool {
    facts.identity.0 == volume_identity(Ino::ROOT).0
}

/// Returns the last name of the path. It is empty for the root.
pub fn last_name(path: &AnyPath) -> Vec<u8> {
    match path {
        AnyPath::Volume(path) => last_component(path).to_vec(),
        AnyPath::Local(path) => last_component(path.as_os_str().as_bytes()).to_vec(),
    }
}

/// Copies the bytes of one file. `size` is its expected size and bounds the buffer.
///
/// # Errors
/// Those of reading and writing.
pub fn copy_bytes(
    (from, to): (&AnyPath, &AnyPath),
    size: u64,
    source: &mut dyn Read,
    sink: &mut dyn Write,
    bar: &ProgressBar,
) -> CommandResult {
    bar.set_message(term::escape_name(&last_name(from)));
    let mut buffer = vec![0; CHUNK.min(size.max(64 << 10) as usize)];
    loop {
        let n = match source.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(n) => n,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(from.operation_failure("cannot read", Errno::from(e))),
        };
        sink.write_all(&buffer[..n]).map_err(|e| write_failure(to, e))?;
        bar.inc(n as u64);
    }
}

/// Returns the failure of a write to `to`. A reader of standard output that has gone is reported to
/// nobody, as after `SIGPIPE`.
pub fn write_failure(to: &AnyPath, error: std::io::Error) -> CommandFailure {
    match is_standard_stream(to) {
        true => error.into(),
        false => to.operation_failure("cannot write", Errno::from(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_put_below_either_side() {
        let volume = AnyPath::Volume(b"/a".to_vec());
        assert_eq!(append_name(&volume, b"b"), AnyPath::Volume(b"/a/b".to_vec()));
        assert_eq!(last_name(&volume), b"a");
        let local = AnyPath::Local("/x".into());
        assert_eq!(append_name(&local, b"b"), AnyPath::Local("/x/b".into()));
        assert_eq!(last_name(&AnyPath::Local("x/.".into())), b".");
    }

    #[test]
    fn names_are_taken_away_on_either_side() {
        let parents = |path: AnyPath| {
            let all = std::iter::successors(Some(path), parent_of).skip(1);
            all.map(|path| path.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(parents(AnyPath::Volume(b"/a/b/".to_vec())), [":/a/", ":/"]);
        assert_eq!(parents(AnyPath::Volume(b"/".to_vec())), [""; 0]);
        assert_eq!(parents(AnyPath::Local("/x/y".into())), ["/x", "/"]);
        assert_eq!(parents(AnyPath::Local("x/y".into())), ["x", "."]);
    }
}
