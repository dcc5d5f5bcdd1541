//! Requests of the kernel as typed values that borrow from the read buffer.

use crate::abi::{self, fattr, op};
use crate::encode::FuseTime;
use crate::fields::{FieldReader, ParseError};

/// The header of every request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestHeader {
    /// The operation.
    pub opcode: u32,
    /// Number of the request, repeated in the reply.
    pub unique: u64,
    /// The inode.
    pub node: u64,
    /// User id of the caller.
    pub uid: u32,
    /// Group id of the caller.
    pub gid: u32,
    /// Thread id of the caller, in this process's pid namespace; 0 if it is not visible there.
    pub pid: u32,
    ext_len: usize,
}

impl RequestHeader {
    /// Decodes the header at the start of `buffer`.
    ///
    /// # Errors
    /// [`ParseError::Short`], and [`ParseError::Length`] if the buffer does not have the length in
    /// the header.
    pub fn parse(buffer: &[u8]) -> Result<RequestHeader, ParseError> {
        let mut f = FieldReader(buffer);
        let len = f.read_u32()?;
        let header = RequestHeader {
            opcode: f.read_u32()?,
            unique: f.read_u64()?,
            node: f.read_u64()?,
            uid: f.read_u32()?,
            gid: f.read_u32()?,
            pid: f.read_u32()?,
            ext_len: usize::from(f.read_u16()?) * 8,
        };
        f.read_u16()?;
        if len as usize != buffer.len() {
            return Err(ParseError::Length { claimed: len, got: buffer.len() });
        }
        Ok(header)
    }

    /// Checks whether the request only reports forgotten inodes. Such requests have no reply.
    pub(crate) fn is_forget(&self) -> bool {
        matches!(self.opcode, op::FORGET | op::BATCH_FORGET)
    }
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Request<'a> {
    /// The caller and the inode.
    pub header: RequestHeader,
    /// The operation.
    pub op: FuseOp<'a>,
    /// Supplementary groups in the request. For a new inode: the group of its directory, if the
    /// caller is in that group.
    pub groups: RequestGroups<'a>,
}

/// Group numbers, encoded as in the request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestGroups<'a>(&'a [u8]);

impl RequestGroups<'_> {
    /// Returns the numbers.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        self.0.chunks_exact(4).map(|c| u32::from_ne_bytes([c[0], c[1], c[2], c[3]]))
    }

    /// Checks that there is no group.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Inodes that the kernel has forgotten, encoded as in the request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ForgottenInodes<'a>(&'a [u8]);

impl ForgottenInodes<'_> {
    /// Returns the number of each inode, and the number of its lookups that are forgotten.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        let word = |c: &[u8]| c.try_into().map(u64::from_ne_bytes).unwrap_or_default();
        self.0.chunks_exact(16).map(move |c| (word(&c[..8]), word(&c[8..])))
    }
}

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FuseSetTime {
    /// The current time of the server.
    Now,
    /// The given time.
    At(FuseTime),
}

/// The changes of a SETATTR; `None` leaves an attribute unchanged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FuseSetAttr {
    /// `st_mode`; the type bits must be ignored.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size in bytes.
    pub size: Option<u64>,
    /// Last access.
    pub atime: Option<FuseSetTime>,
    /// Last change.
    pub mtime: Option<FuseSetTime>,
    /// The caller's open file.
    pub handle: Option<u64>,
    /// Also clear setuid and setgid.
    pub kill_suidgid: bool,
}

/// A lock, as in fcntl(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileLock {
    /// The caller's open file.
    pub handle: u64,
    /// The owner of the lock: a process, or an open file for flock(2) and `F_OFD_SETLK`.
    pub owner: u64,
    /// The first byte.
    pub start: u64,
    /// The last byte.
    pub end: u64,
    /// `F_RDLCK`, `F_WRLCK` or `F_UNLCK`.
    pub kind: i32,
    /// Process id, in this process's pid namespace.
    pub pid: u32,
    /// A lock of flock(2), of the whole file.
    pub whole: bool,
}

/// An operation with its arguments. Field names are those of the system calls.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum FuseOp<'a> {
    Lookup {
        name: &'a [u8],
    },
    /// No reply.
    Forget {
        lookups: u64,
    },
    /// No reply.
    BatchForget(ForgottenInodes<'a>),
    GetAttr {
        handle: Option<u64>,
    },
    Statx {
        handle: Option<u64>,
    },
    SetAttr(FuseSetAttr),
    Readlink,
    Symlink {
        name: &'a [u8],
        target: &'a [u8],
    },
    Mknod {
        name: &'a [u8],
        mode: u32,
        umask: u32,
        rdev: u32,
    },
    Mkdir {
        name: &'a [u8],
        mode: u32,
        umask: u32,
    },
    Unlink {
        name: &'a [u8],
    },
    Rmdir {
        name: &'a [u8],
    },
    /// RENAME and RENAME2. `flags` are those of renameat2(2).
    Rename {
        name: &'a [u8],
        new_parent: u64,
        new_name: &'a [u8],
        flags: u32,
    },
    /// The request's inode is the directory. `ino` gets the name.
    Link {
        ino: u64,
        name: &'a [u8],
    },
    Open {
        flags: i32,
        kill_suidgid: bool,
    },
    Create {
        name: &'a [u8],
        flags: i32,
        mode: u32,
        umask: u32,
    },
    Tmpfile {
        flags: i32,
        mode: u32,
        umask: u32,
    },
    Read {
        handle: u64,
        offset: u64,
        size: u32,
        flags: i32,
    },
    Write {
        handle: u64,
        offset: u64,
        data: &'a [u8],
        flags: i32,
        from_cache: bool,
        kill_suidgid: bool,
    },
    /// `owner`: the owner of the locks of fcntl(2) that must be freed.
    Flush {
        handle: u64,
        owner: u64,
    },
    /// Requests a conflicting lock.
    GetLock(FileLock),
    /// With `wait`, waits until the lock is free.
    SetLock {
        lock: FileLock,
        wait: bool,
    },
    Release {
        handle: u64,
        flags: i32,
    },
    Fsync {
        handle: u64,
        data_only: bool,
    },
    Statfs,
    SetXattr {
        name: &'a [u8],
        value: &'a [u8],
        flags: i32,
    },
    /// `size` 0 requests the length.
    GetXattr {
        name: &'a [u8],
        size: u32,
    },
    /// `size` 0 requests the length.
    ListXattr {
        size: u32,
    },
    RemoveXattr {
        name: &'a [u8],
    },
    OpenDir {
        flags: i32,
    },
    ReadDir {
        handle: u64,
        offset: u64,
        size: u32,
        plus: bool,
    },
    ReleaseDir {
        handle: u64,
    },
    FsyncDir {
        handle: u64,
        data_only: bool,
    },
    Access {
        mask: u32,
    },
    Fallocate {
        handle: u64,
        offset: u64,
        len: u64,
        mode: i32,
    },
    Lseek {
        handle: u64,
        offset: i64,
        whence: i32,
    },
    /// `wide`: the reply has a 64-bit count.
    CopyFileRange {
        handle: u64,
        offset: u64,
        to_node: u64,
        to_handle: u64,
        to_offset: u64,
        len: u64,
        wide: bool,
    },
    SyncFs,
    /// The caller of this request got a signal.
    Interrupt {
        unique: u64,
    },
    Destroy,
    /// Any other operation.
    Unknown,
}

impl<'a> Request<'a> {
    /// Decodes the request that fills `buffer`.
    ///
    /// # Errors
    /// [`ParseError`]. The header may still be good ([`RequestHeader::parse`]), so that the kernel
    /// can get a reply.
    pub fn parse(buffer: &'a [u8]) -> Result<Request<'a>, ParseError> {
        let header = RequestHeader::parse(buffer)?;
        let body = &buffer[abi::IN_HEADER_LEN..];
        let args_len = body.len().checked_sub(header.ext_len).ok_or(ParseError::Extension)?;
        let (args, extensions) = body.split_at(args_len);
        let op = FuseOp::parse(header.opcode, FieldReader(args))?;
        Ok(Request { header, op, groups: parse_groups(extensions)? })
    }
}

fn parse_groups(mut extensions: &[u8]) -> Result<RequestGroups<'_>, ParseError> {
    let mut found = RequestGroups::default();
    while !extensions.is_empty() {
        let mut f = FieldReader(extensions);
        let (size, kind) = (f.read_u32()? as usize, f.read_u32()?);
        if size < 8 || size > extensions.len() {
            return Err(ParseError::Extension);
        }
        let (this, rest) = extensions.split_at(size);
        if kind == abi::EXT_GROUPS {
            let mut f = FieldReader(&this[8..]);
            let count = f.read_u32()? as usize;
            found =
                RequestGroups(f.read_bytes(count.checked_mul(4).ok_or(ParseError::Extension)?)?);
        }
        extensions = rest;
    }
    Ok(found)
}

impl<'a> FuseOp<'a> {
    fn parse(opcode: u32, mut f: FieldReader<'a>) -> Result<FuseOp<'a>, ParseError> {
        Ok(match opcode {
            op::LOOKUP => FuseOp::Lookup { name: f.read_name()? },
            op::FORGET => FuseOp::Forget { lookups: f.read_u64()? },
            op::BATCH_FORGET => {
                let count = f.read_u32()? as usize;
                f.skip_bytes(4)?;
                let len = count.checked_mul(16).ok_or(ParseError::Short)?;
                FuseOp::BatchForget(ForgottenInodes(f.read_bytes(len)?))
            }
            op::GETATTR | op::STATX => {
                let flags = f.read_u32()?;
                f.skip_bytes(4)?;
                let handle = Some(f.read_u64()?).filter(|_| flags & abi::GETATTR_FH != 0);
                match opcode {
                    op::STATX => FuseOp::Statx { handle },
                    _ => FuseOp::GetAttr { handle },
                }
            }
            op::SETATTR => FuseOp::SetAttr(parse_set_attr(f)?),
            op::READLINK => FuseOp::Readlink,
            op::SYMLINK => FuseOp::Symlink { name: f.read_name()?, target: f.read_text()? },
            op::MKNOD => {
                let (mode, rdev, umask) = (f.read_u32()?, f.read_u32()?, f.read_u32()?);
                f.skip_bytes(4)?;
                FuseOp::Mknod { name: f.read_name()?, mode, umask, rdev }
            }
            op::MKDIR => {
                let (mode, umask) = (f.read_u32()?, f.read_u32()?);
                FuseOp::Mkdir { name: f.read_name()?, mode, umask }
            }
            op::UNLINK => FuseOp::Unlink { name: f.read_name()? },
            op::RMDIR => FuseOp::Rmdir { name: f.read_name()? },
            op::RENAME => {
                let new_parent = f.read_u64()?;
                FuseOp::Rename {
                    new_parent,
                    name: f.read_name()?,
                    new_name: f.read_name()?,
                    flags: 0,
                }
            }
            op::RENAME2 => {
                let (new_parent, flags) = (f.read_u64()?, f.read_u32()?);
                f.skip_bytes(4)?;
                FuseOp::Rename { new_parent, name: f.read_name()?, new_name: f.read_name()?, flags }
            }
            op::LINK => FuseOp::Link { ino: f.read_u64()?, name: f.read_name()? },
            op::OPEN => FuseOp::Open {
                flags: f.read_u32()? as i32,
                kill_suidgid: f.read_u32()? & abi::OPEN_KILL_SUIDGID != 0,
            },
            op::OPENDIR => FuseOp::OpenDir { flags: f.read_u32()? as i32 },
            op::CREATE | op::TMPFILE => {
                let (flags, mode, umask) = (f.read_u32()? as i32, f.read_u32()?, f.read_u32()?);
                f.skip_bytes(4)?;
                match opcode {
                    op::TMPFILE => FuseOp::Tmpfile { flags, mode, umask },
                    _ => FuseOp::Create { name: f.read_name()?, flags, mode, umask },
                }
            }
            op::READ | op::READDIR | op::READDIRPLUS => {
                let (handle, offset, size) = (f.read_u64()?, f.read_u64()?, f.read_u32()?);
                f.skip_bytes(4 + 8)?;
                let flags = f.read_u32()? as i32;
                match opcode {
                    op::READ => FuseOp::Read { handle, offset, size, flags },
                    _ => FuseOp::ReadDir { handle, offset, size, plus: opcode == op::READDIRPLUS },
                }
            }
            op::WRITE => {
                let (handle, offset, size, how) =
                    (f.read_u64()?, f.read_u64()?, f.read_u32()?, f.read_u32()?);
                f.skip_bytes(8)?;
                let flags = f.read_u32()? as i32;
                f.skip_bytes(4)?;
                FuseOp::Write {
                    handle,
                    offset,
                    flags,
                    from_cache: how & abi::WRITE_CACHE != 0,
                    kill_suidgid: how & abi::WRITE_KILL_SUIDGID != 0,
                    data: f.read_bytes(size as usize)?,
                }
            }
            op::STATFS => FuseOp::Statfs,
            op::RELEASE => FuseOp::Release { handle: f.read_u64()?, flags: f.read_u32()? as i32 },
            op::RELEASEDIR => FuseOp::ReleaseDir { handle: f.read_u64()? },
            op::FSYNC | op::FSYNCDIR => {
                let (handle, how) = (f.read_u64()?, f.read_u32()?);
                let data_only = how & abi::FSYNC_FDATASYNC != 0;
                match opcode {
                    op::FSYNC => FuseOp::Fsync { handle, data_only },
                    _ => FuseOp::FsyncDir { handle, data_only },
                }
            }
            op::SETXATTR => {
                // The long form of the arguments was not negotiated.
                let (size, flags) = (f.read_u32()?, f.read_u32()? as i32);
                FuseOp::SetXattr {
                    name: f.read_name()?,
                    value: f.read_bytes(size as usize)?,
                    flags,
                }
            }
            op::GETXATTR => {
                let size = f.read_u32()?;
                f.skip_bytes(4)?;
                FuseOp::GetXattr { name: f.read_name()?, size }
            }
            op::LISTXATTR => FuseOp::ListXattr { size: f.read_u32()? },
            op::REMOVEXATTR => FuseOp::RemoveXattr { name: f.read_name()? },
            op::FLUSH => {
                let handle = f.read_u64()?;
                f.skip_bytes(8)?;
                FuseOp::Flush { handle, owner: f.read_u64()? }
            }
            op::GETLK => FuseOp::GetLock(parse_file_lock(f)?),
            op::SETLK | op::SETLKW => {
                FuseOp::SetLock { lock: parse_file_lock(f)?, wait: opcode == op::SETLKW }
            }
            op::ACCESS => FuseOp::Access { mask: f.read_u32()? },
            op::INTERRUPT => FuseOp::Interrupt { unique: f.read_u64()? },
            op::DESTROY => FuseOp::Destroy,
            op::FALLOCATE => FuseOp::Fallocate {
                handle: f.read_u64()?,
                offset: f.read_u64()?,
                len: f.read_u64()?,
                mode: f.read_u32()? as i32,
            },
            op::LSEEK => FuseOp::Lseek {
                handle: f.read_u64()?,
                offset: f.read_i64()?,
                whence: f.read_u32()? as i32,
            },
            op::COPY_FILE_RANGE | op::COPY_FILE_RANGE_64 => FuseOp::CopyFileRange {
                handle: f.read_u64()?,
                offset: f.read_u64()?,
                to_node: f.read_u64()?,
                to_handle: f.read_u64()?,
                to_offset: f.read_u64()?,
                len: f.read_u64()?,
                wide: opcode == op::COPY_FILE_RANGE_64,
            },
            op::SYNCFS => FuseOp::SyncFs,
            _ => FuseOp::Unknown,
        })
    }
}

fn parse_file_lock(mut f: FieldReader<'_>) -> Result<FileLock, ParseError> {
    let (handle, owner, start, end) = (f.read_u64()?, f.read_u64()?, f.read_u64()?, f.read_u64()?);
    let (kind, pid, how) = (f.read_u32()? as i32, f.read_u32()?, f.read_u32()?);
    let whole = how & abi::LK_FLOCK != 0;
    Ok(FileLock { handle, owner, start, end, kind, pid, whole })
}

fn parse_set_attr(mut f: FieldReader<'_>) -> Result<FuseSetAttr, ParseError> {
    let valid = f.read_u32()?;
    f.skip_bytes(4)?;
    let (handle, size) = (f.read_u64()?, f.read_u64()?);
    f.skip_bytes(8)?;
    let (atime, mtime, _ctime) = (f.read_i64()?, f.read_i64()?, f.read_i64()?);
    let (atime_nsec, mtime_nsec, _) = (f.read_u32()?, f.read_u32()?, f.read_u32()?);
    let mode = f.read_u32()?;
    f.skip_bytes(4)?;
    let (uid, gid) = (f.read_u32()?, f.read_u32()?);
    let has = |bit: u32| valid & bit != 0;
    let time = |bit, now, sec, nsec| {
        has(bit).then_some(if has(now) {
            FuseSetTime::Now
        } else {
            FuseSetTime::At(FuseTime { sec, nsec })
        })
    };
    Ok(FuseSetAttr {
        mode: Some(mode).filter(|_| has(fattr::MODE)),
        uid: Some(uid).filter(|_| has(fattr::UID)),
        gid: Some(gid).filter(|_| has(fattr::GID)),
        size: Some(size).filter(|_| has(fattr::SIZE)),
        atime: time(fattr::ATIME, fattr::ATIME_NOW, atime, atime_nsec),
        mtime: time(fattr::MTIME, fattr::MTIME_NOW, mtime, mtime_nsec),
        handle: Some(handle).filter(|_| has(fattr::FH)),
        kill_suidgid: has(fattr::KILL_SUIDGID),
    })
}

#[cfg(test)]
mod tests;
