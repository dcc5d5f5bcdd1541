//! The six operations of mdtest, on a path of this machine or through the
//! client library.

use crate::error::{BenchError, path_error, volume_error};
use crate::volume_access::{VolumeAccess, own_cred};
use rustix::fs::{AtFlags, Mode, OFlags};
use serde::{Deserialize, Serialize};
use std::ffi::{CStr, CString, OsStr};
use std::fs::{DirBuilder, File};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use tatami_client::{Client, CreateItem};
use tatami_wire::meta::InodeTemplate;
use tatami_wire::{Cred, Ino};

/// The directory of a workload.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum WorkloadPlace {
    /// In a directory, by system calls. With `relative`, the process opens the directory once and
    /// resolves names from there. Otherwise every call takes the whole path, as in the classic
    /// mdtest.
    Path {
        /// The directory.
        dir: PathBuf,
        /// Resolve names from the open directory.
        relative: bool,
    },
    /// In 256 directories below one, by system calls, with the names that a node gives to the
    /// objects of new files. This measures the disk's part of a create.
    Objects {
        /// The directory.
        dir: PathBuf,
    },
    /// In a directory of the volume, by library calls. The process looks the directory up once.
    Library {
        /// How to reach the volume.
        reach: VolumeAccess,
        /// The directory, as a path from the root of the volume.
        dir: String,
    },
}

impl WorkloadPlace {
    /// Returns the same place by another path of the directory that contains it, such as that of
    /// another mount. Places of a library stay as they are.
    pub fn through_mount(self, base: &Path) -> WorkloadPlace {
        let moved = |dir: PathBuf| dir.file_name().map(|name| base.join(name)).unwrap_or(dir);
        match self {
            WorkloadPlace::Path { dir, relative } => {
                WorkloadPlace::Path { dir: moved(dir), relative }
            }
            other => other,
        }
    }
}

/// One of the operations that mdtest counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MdtestOp {
    /// mkdir
    DirCreate,
    /// stat of a directory
    DirStat,
    /// rmdir
    DirRemove,
    /// open with `O_CREAT`, and close; through the library, a create that does not open
    FileCreate,
    /// stat of a file
    FileStat,
    /// unlink
    FileRemove,
    /// open with `O_CREAT`, one write of [`WRITE_BYTES`] bytes, and close; not one of mdtest's, and
    /// not through the library
    FileWrite,
    /// open, one read of [`WRITE_BYTES`] bytes, and close; not one of mdtest's, either
    FileRead,
}

impl MdtestOp {
    /// All operations of mdtest, in the order in which they can run.
    pub const ALL: [MdtestOp; 6] = [
        MdtestOp::DirCreate,
        MdtestOp::DirStat,
        MdtestOp::DirRemove,
        MdtestOp::FileCreate,
        MdtestOp::FileStat,
        MdtestOp::FileRemove,
    ];

    /// Returns the name of its phase.
    pub fn name(self) -> &'static str {
        match self {
            MdtestOp::DirCreate => "directory create",
            MdtestOp::DirStat => "directory stat",
            MdtestOp::DirRemove => "directory remove",
            MdtestOp::FileCreate => "file create",
            MdtestOp::FileStat => "file stat",
            MdtestOp::FileRemove => "file remove",
            MdtestOp::FileWrite => "file write",
            MdtestOp::FileRead => "file read",
        }
    }

    /// Returns the operation of the phase with this name.
    pub fn from_name(name: &str) -> Option<MdtestOp> {
        MdtestOp::ALL
            .into_iter()
            .chain([MdtestOp::FileWrite, MdtestOp::FileRead])
            .find(|op| op.name() == name)
    }

    /// Returns whether the operation works on directories.
    pub fn is_dir(self) -> bool {
        matches!(self, MdtestOp::DirCreate | MdtestOp::DirStat | MdtestOp::DirRemove)
    }
}

/// A directory in which operations run.
pub enum WorkDirectory {
    /// By system calls.
    Path {
        /// The directory, if names are resolved from it.
        fd: Option<OwnedFd>,
        /// Its path.
        dir: PathBuf,
    },
    /// By library calls.
    Library {
        /// The session.
        client: Box<Client>,
        /// The user of this process.
        cred: Cred,
        /// The directory.
        dir: Ino,
    },
}

/// Permission bits of new files, as mdtest has them.
const FILE_MODE: u16 = 0o664;
/// Permission bits of new directories.
const DIR_MODE: u16 = 0o755;
const UMASK: u16 = 0o022;
/// Bytes of a written file.
pub const WRITE_BYTES: usize = 4096;
static CONTENT: [u8; WRITE_BYTES] = [0x5a; WRITE_BYTES];

impl WorkDirectory {
    /// Opens or looks up subdirectory `sub` (empty: the directory itself) of `place`.
    ///
    /// # Errors
    /// A directory that does not exist, a volume that can't be reached.
    pub fn open_dir(place: &WorkloadPlace, sub: &str) -> Result<WorkDirectory, BenchError> {
        match place {
            WorkloadPlace::Path { dir, relative } => {
                let dir = if sub.is_empty() { dir.clone() } else { dir.join(sub) };
                let open =
                    || rustix::fs::open(&dir, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
                let fd = relative.then(open).transpose();
                Ok(WorkDirectory::Path {
                    fd: fd.map_err(|e| path_error("opening", &dir)(e.into()))?,
                    dir,
                })
            }
            WorkloadPlace::Objects { dir } => WorkDirectory::open_dir(
                &WorkloadPlace::Path { dir: dir.clone(), relative: true },
                sub,
            ),
            WorkloadPlace::Library { reach, dir } => {
                let client = reach.connect_client()?;
                let cred = own_cred();
                let mut ino = Ino::ROOT;
                for name in dir.split('/').chain(sub.split('/')).filter(|n| !n.is_empty()) {
                    let found = client.lookup(&cred, ino, name.as_bytes());
                    ino = found.map_err(volume_error("looking up", name.as_bytes()))?.ino;
                }
                Ok(WorkDirectory::Library { client: Box::new(client), cred, dir: ino })
            }
        }
    }

    /// Converts a name to the form that [`WorkDirectory::run_op`] takes. The caller does this
    /// before the clock starts.
    pub fn prepare_name(&self, name: &str) -> CString {
        let bytes = match self {
            WorkDirectory::Path { fd: None, dir } => dir.join(name).as_os_str().as_bytes().to_vec(),
            _ => name.as_bytes().to_vec(),
        };
        CString::new(bytes)
            .expect("names are made here, and paths came from the command line: no zero byte")
    }

    /// Runs one operation.
    ///
    /// # Errors
    /// That of the operation.
    pub fn run_op(&self, op: MdtestOp, name: &CStr) -> Result<(), BenchError> {
        match self {
            WorkDirectory::Path { fd, .. } => {
                let done = match fd {
                    Some(fd) => run_at(fd, op, name).map_err(std::io::Error::from),
                    None => run_path(op, Path::new(OsStr::from_bytes(name.to_bytes()))),
                };
                done.map_err(|e| path_error(op.name(), Path::new(&*name.to_string_lossy()))(e))
            }
            WorkDirectory::Library { client, cred, dir } => {
                run_library(client, cred, *dir, op, name.to_bytes())
            }
        }
    }

    /// Runs the same operation on many names, in one request.
    ///
    /// # Errors
    /// That of the first operation that fails; system calls have no such request.
    pub fn run_many(&self, op: MdtestOp, names: &[CString]) -> Result<(), BenchError> {
        let WorkDirectory::Library { client, cred, dir } = self else {
            let sentence = "several operations in one request are there through the library only";
            return Err(BenchError::Usage(sentence.into()));
        };
        run_bulk(client, cred, *dir, op, names)
    }
}

/// Runs an operation by a whole path, with the calls of the C library: a library may be loaded that
/// takes their place (`tatami run`).
fn run_path(op: MdtestOp, path: &Path) -> std::io::Result<()> {
    let made = || {
        let mut options = File::options();
        options.read(true).write(true).create(true).mode(FILE_MODE.into());
        options.open(path)
    };
    match op {
        MdtestOp::DirCreate => DirBuilder::new().mode(DIR_MODE.into()).create(path),
        MdtestOp::DirRemove => std::fs::remove_dir(path),
        MdtestOp::FileRemove => std::fs::remove_file(path),
        MdtestOp::DirStat | MdtestOp::FileStat => std::fs::symlink_metadata(path).map(drop),
        // Dropping the file closes it.
        MdtestOp::FileCreate => made().map(drop),
        MdtestOp::FileWrite => made()?.write_all(&CONTENT),
        MdtestOp::FileRead => File::open(path)?.read_exact(&mut [0; WRITE_BYTES]),
    }
}

fn run_at(dir: impl std::os::fd::AsFd, op: MdtestOp, name: &CStr) -> rustix::io::Result<()> {
    match op {
        MdtestOp::DirCreate => rustix::fs::mkdirat(dir, name, Mode::from_raw_mode(DIR_MODE.into())),
        MdtestOp::DirRemove => rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR),
        MdtestOp::FileRemove => rustix::fs::unlinkat(dir, name, AtFlags::empty()),
        MdtestOp::DirStat | MdtestOp::FileStat => {
            rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).map(drop)
        }
        MdtestOp::FileCreate => {
            let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC;
            // Dropping the descriptor closes it.
            rustix::fs::openat(dir, name, flags, Mode::from_raw_mode(FILE_MODE.into())).map(drop)
        }
        MdtestOp::FileWrite => {
            let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC;
            let mode = Mode::from_raw_mode(FILE_MODE.into());
            let file = rustix::fs::openat(dir, name, flags, mode)?;
            match rustix::io::write(&file, &CONTENT)? {
                WRITE_BYTES => Ok(()),
                _ => Err(rustix::io::Errno::IO),
            }
        }
        MdtestOp::FileRead => {
            let flags = OFlags::RDONLY | OFlags::CLOEXEC;
            let file = rustix::fs::openat(dir, name, flags, Mode::empty())?;
            let mut bytes = [0; WRITE_BYTES];
            match rustix::io::read(&file, &mut bytes)? {
                WRITE_BYTES => Ok(()),
                _ => Err(rustix::io::Errno::IO),
            }
        }
    }
}

fn run_library(
    client: &Client,
    cred: &Cred,
    dir: Ino,
    op: MdtestOp,
    name: &[u8],
) -> Result<(), BenchError> {
    let done = match op {
        MdtestOp::FileWrite | MdtestOp::FileRead => {
            let sentence = "files are written and read through a mount, not through the library";
            return Err(BenchError::Usage(sentence.into()));
        }
        MdtestOp::DirCreate => client
            .create(cred, dir, name, InodeTemplate::Dir, DIR_MODE, UMASK, true, None)
            .map(drop),
        MdtestOp::FileCreate => client
            .create(
                cred,
                dir,
                name,
                InodeTemplate::File(client.new_layout()),
                FILE_MODE,
                UMASK,
                false,
                None,
            )
            .map(drop),
        MdtestOp::DirStat | MdtestOp::FileStat => client.lookup(cred, dir, name).map(drop),
        MdtestOp::DirRemove => client.rmdir(cred, dir, name, false).map(drop),
        MdtestOp::FileRemove => client.unlink(cred, dir, name, false).map(drop),
    };
    done.map_err(volume_error(op.name(), name))
}

fn run_bulk(
    client: &Client,
    cred: &Cred,
    dir: Ino,
    op: MdtestOp,
    names: &[CString],
) -> Result<(), BenchError> {
    let bytes: Vec<&[u8]> = names.iter().map(|name| name.to_bytes()).collect();
    let create = |node: InodeTemplate, mode, exclusive| {
        let new = |name: &&[u8]| CreateItem { name: name.to_vec(), node: node.clone(), mode };
        let new = bytes.iter().map(new).collect();
        let made = client.create_many(cred, dir, new, UMASK, exclusive, None);
        made.into_iter().map(|made| made.map(drop)).collect::<Vec<_>>()
    };
    let remove = |dirs| {
        let removed = client.remove_many(cred, dir, &bytes, dirs);
        removed.into_iter().map(|removed| removed.map(drop)).collect()
    };
    let done = match op {
        MdtestOp::FileWrite | MdtestOp::FileRead => return run_library(client, cred, dir, op, b""),
        MdtestOp::DirCreate => create(InodeTemplate::Dir, DIR_MODE, true),
        MdtestOp::FileCreate => create(InodeTemplate::File(client.new_layout()), FILE_MODE, false),
        MdtestOp::DirStat | MdtestOp::FileStat => {
            let found = client.stat_many(cred, dir, &bytes);
            found.into_iter().map(|found| found.map(drop)).collect()
        }
        MdtestOp::DirRemove => remove(true),
        MdtestOp::FileRemove => remove(false),
    };
    let mut done = done.into_iter().zip(&bytes);
    done.try_for_each(|(done, name)| done.map_err(volume_error(op.name(), name)))
}

/// Number of directories over which a node spreads its objects.
const BUCKETS: u64 = 256;

/// Returns their names.
pub(super) fn bucket_names() -> impl Iterator<Item = String> {
    (0..BUCKETS).map(|bucket| format!("{bucket:02x}"))
}

/// Returns the path of the object of inode `number`: its bucket, the inode, and piece 0.
pub(super) fn object_name(number: u64) -> String {
    format!("{:02x}/{number:016x}.{:08x}", number % BUCKETS, 0)
}
