//! Requests of the kernel as typed values that borrow from the read buffer.

use crate::abi::{self, fattr, op};
use crate::encode::Time;
use crate::fields::Fields;

/// Bytes that are not a request. The kernel does not send such; a bug on
/// either side does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum ParseError {
    #[error("request ends before its fields do")]
    Short,
    #[error("request header says {claimed} bytes, {got} were read")]
    Length { claimed: u32, got: usize },
    #[error("a name in the request has no end")]
    Unterminated,
    #[error("a name in the request is empty")]
    EmptyName,
    #[error("the extensions of the request do not fit in it")]
    Extension,
}

/// What every request starts with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What is asked for.
    pub opcode: u32,
    /// Names the request in the reply.
    pub unique: u64,
    /// The inode that is meant.
    pub node: u64,
    /// User for whom the kernel asks.
    pub uid: u32,
    /// Group for which the kernel asks.
    pub gid: u32,
    /// Thread that asks, by our pid namespace; 0 for none that we can see.
    pub pid: u32,
    ext_len: usize,
}

impl Header {
    /// Reads the header at the start of `buffer`.
    ///
    /// # Errors
    /// [`ParseError::Short`], and [`ParseError::Length`] when the buffer is not
    /// as long as the header says.
    pub fn parse(buffer: &[u8]) -> Result<Header, ParseError> {
        let mut f = Fields(buffer);
        let len = f.u32()?;
        let header = Header {
            opcode: f.u32()?,
            unique: f.u64()?,
            node: f.u64()?,
            uid: f.u32()?,
            gid: f.u32()?,
            pid: f.u32()?,
            ext_len: usize::from(f.u16()?) * 8,
        };
        f.u16()?;
        if len as usize != buffer.len() {
            return Err(ParseError::Length { claimed: len, got: buffer.len() });
        }
        Ok(header)
    }

    /// Whether it only says what the kernel has forgotten: there is no reply to that.
    pub(crate) fn forgets(&self) -> bool {
        matches!(self.opcode, op::FORGET | op::BATCH_FORGET)
    }
}

/// One request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Request<'a> {
    /// Who asks, and about which inode.
    pub header: Header,
    /// What is asked for.
    pub op: Op<'a>,
    /// Supplementary groups that came with it: for something to be created,
    /// the group of its directory if the caller is in it.
    pub groups: Groups<'a>,
}

/// Group numbers as they lie in the request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Groups<'a>(&'a [u8]);

impl Groups<'_> {
    /// The numbers.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        self.0.chunks_exact(4).map(|c| u32::from_ne_bytes([c[0], c[1], c[2], c[3]]))
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// A time to be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The current time of whoever keeps the file.
    Now,
    /// This time.
    At(Time),
}

/// What SETATTR changes; `None` leaves it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// `st_mode`; the type bits are to be ignored.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Bytes.
    pub size: Option<u64>,
    /// Last access.
    pub atime: Option<SetTime>,
    /// Last change.
    pub mtime: Option<SetTime>,
    /// The open file through which the caller asks.
    pub handle: Option<u64>,
    /// Setuid and setgid are to be cleared too.
    pub kill_suidgid: bool,
}

/// A lock, as fcntl(2) describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileLock {
    /// The open file through which the caller asks.
    pub handle: u64,
    /// Whose the lock is: of a process, or of an open file for flock(2) and `F_OFD_SETLK`.
    pub owner: u64,
    /// The first byte.
    pub start: u64,
    /// The last byte.
    pub end: u64,
    /// `F_RDLCK`, `F_WRLCK` or `F_UNLCK`.
    pub kind: i32,
    /// The process, by our pid namespace.
    pub pid: u32,
    /// It is one of flock(2), of the whole file.
    pub whole: bool,
}

/// What the kernel asks for. Field names are those of the system calls.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Op<'a> {
    Lookup {
        name: &'a [u8],
    },
    /// No reply.
    Forget {
        lookups: u64,
    },
    /// No reply.
    BatchForget,
    GetAttr {
        handle: Option<u64>,
    },
    Statx {
        handle: Option<u64>,
    },
    SetAttr(SetAttr),
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
    /// The request's inode is the directory, `ino` what gets the name.
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
    /// `owner`: whose locks of fcntl(2) are to be freed.
    Flush {
        handle: u64,
        owner: u64,
    },
    /// What is in the way of a lock.
    GetLock(FileLock),
    /// With `wait`, until it can be had.
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
    /// `size` 0 asks for the length.
    GetXattr {
        name: &'a [u8],
        size: u32,
    },
    /// `size` 0 asks for the length.
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
    /// `wide`: the reply holds a 64-bit count.
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
    /// The request with this number is no longer wanted.
    Interrupt {
        unique: u64,
    },
    Destroy,
    /// Anything else.
    Unknown,
}

impl<'a> Request<'a> {
    /// Reads the request that fills `buffer`.
    ///
    /// # Errors
    /// [`ParseError`]; the header may still be good ([`Header::parse`]), so
    /// that the kernel can be answered.
    pub fn parse(buffer: &'a [u8]) -> Result<Request<'a>, ParseError> {
        let header = Header::parse(buffer)?;
        let body = &buffer[abi::IN_HEADER_LEN..];
        let args_len = body.len().checked_sub(header.ext_len).ok_or(ParseError::Extension)?;
        let (args, extensions) = body.split_at(args_len);
        let op = Op::parse(header.opcode, Fields(args))?;
        Ok(Request { header, op, groups: groups(extensions)? })
    }
}

fn groups(mut extensions: &[u8]) -> Result<Groups<'_>, ParseError> {
    let mut found = Groups::default();
    while !extensions.is_empty() {
        let mut f = Fields(extensions);
        let (size, kind) = (f.u32()? as usize, f.u32()?);
        if size < 8 || size > extensions.len() {
            return Err(ParseError::Extension);
        }
        let (this, rest) = extensions.split_at(size);
        if kind == abi::EXT_GROUPS {
            let mut f = Fields(&this[8..]);
            let count = f.u32()? as usize;
            found = Groups(f.bytes(count.checked_mul(4).ok_or(ParseError::Extension)?)?);
        }
        extensions = rest;
    }
    Ok(found)
}

impl<'a> Op<'a> {
    fn parse(opcode: u32, mut f: Fields<'a>) -> Result<Op<'a>, ParseError> {
        Ok(match opcode {
            op::LOOKUP => Op::Lookup { name: f.name()? },
            op::FORGET => Op::Forget { lookups: f.u64()? },
            op::BATCH_FORGET => Op::BatchForget,
            op::GETATTR | op::STATX => {
                let flags = f.u32()?;
                f.skip(4)?;
                let handle = Some(f.u64()?).filter(|_| flags & abi::GETATTR_FH != 0);
                match opcode {
                    op::STATX => Op::Statx { handle },
                    _ => Op::GetAttr { handle },
                }
            }
            op::SETATTR => Op::SetAttr(set_attr(f)?),
            op::READLINK => Op::Readlink,
            op::SYMLINK => Op::Symlink { name: f.name()?, target: f.text()? },
            op::MKNOD => {
                let (mode, rdev, umask) = (f.u32()?, f.u32()?, f.u32()?);
                f.skip(4)?;
                Op::Mknod { name: f.name()?, mode, umask, rdev }
            }
            op::MKDIR => {
                let (mode, umask) = (f.u32()?, f.u32()?);
                Op::Mkdir { name: f.name()?, mode, umask }
            }
            op::UNLINK => Op::Unlink { name: f.name()? },
            op::RMDIR => Op::Rmdir { name: f.name()? },
            op::RENAME => {
                let new_parent = f.u64()?;
                Op::Rename { new_parent, name: f.name()?, new_name: f.name()?, flags: 0 }
            }
            op::RENAME2 => {
                let (new_parent, flags) = (f.u64()?, f.u32()?);
                f.skip(4)?;
                Op::Rename { new_parent, name: f.name()?, new_name: f.name()?, flags }
            }
            op::LINK => Op::Link { ino: f.u64()?, name: f.name()? },
            op::OPEN => Op::Open {
                flags: f.u32()? as i32,
                kill_suidgid: f.u32()? & abi::OPEN_KILL_SUIDGID != 0,
            },
            op::OPENDIR => Op::OpenDir { flags: f.u32()? as i32 },
            op::CREATE | op::TMPFILE => {
                let (flags, mode, umask) = (f.u32()? as i32, f.u32()?, f.u32()?);
                f.skip(4)?;
                match opcode {
                    op::TMPFILE => Op::Tmpfile { flags, mode, umask },
                    _ => Op::Create { name: f.name()?, flags, mode, umask },
                }
            }
            op::READ | op::READDIR | op::READDIRPLUS => {
                let (handle, offset, size) = (f.u64()?, f.u64()?, f.u32()?);
                f.skip(4 + 8)?;
                let flags = f.u32()? as i32;
                match opcode {
                    op::READ => Op::Read { handle, offset, size, flags },
                    _ => Op::ReadDir { handle, offset, size, plus: opcode == op::READDIRPLUS },
                }
            }
            op::WRITE => {
                let (handle, offset, size, how) = (f.u64()?, f.u64()?, f.u32()?, f.u32()?);
                f.skip(8)?;
                let flags = f.u32()? as i32;
                f.skip(4)?;
                Op::Write {
                    handle,
                    offset,
                    flags,
                    from_cache: how & abi::WRITE_CACHE != 0,
                    kill_suidgid: how & abi::WRITE_KILL_SUIDGID != 0,
                    data: f.bytes(size as usize)?,
                }
            }
            op::STATFS => Op::Statfs,
            op::RELEASE => Op::Release { handle: f.u64()?, flags: f.u32()? as i32 },
            op::RELEASEDIR => Op::ReleaseDir { handle: f.u64()? },
            op::FSYNC | op::FSYNCDIR => {
                let (handle, how) = (f.u64()?, f.u32()?);
                let data_only = how & abi::FSYNC_FDATASYNC != 0;
                match opcode {
                    op::FSYNC => Op::Fsync { handle, data_only },
                    _ => Op::FsyncDir { handle, data_only },
                }
            }
            op::SETXATTR => {
                // The long form of the arguments is not negotiated.
                let (size, flags) = (f.u32()?, f.u32()? as i32);
                Op::SetXattr { name: f.name()?, value: f.bytes(size as usize)?, flags }
            }
            op::GETXATTR => {
                let size = f.u32()?;
                f.skip(4)?;
                Op::GetXattr { name: f.name()?, size }
            }
            op::LISTXATTR => Op::ListXattr { size: f.u32()? },
            op::REMOVEXATTR => Op::RemoveXattr { name: f.name()? },
            op::FLUSH => {
                let handle = f.u64()?;
                f.skip(8)?;
                Op::Flush { handle, owner: f.u64()? }
            }
            op::GETLK => Op::GetLock(file_lock(f)?),
            op::SETLK | op::SETLKW => {
                Op::SetLock { lock: file_lock(f)?, wait: opcode == op::SETLKW }
            }
            op::ACCESS => Op::Access { mask: f.u32()? },
            op::INTERRUPT => Op::Interrupt { unique: f.u64()? },
            op::DESTROY => Op::Destroy,
            op::FALLOCATE => Op::Fallocate {
                handle: f.u64()?,
                offset: f.u64()?,
                len: f.u64()?,
                mode: f.u32()? as i32,
            },
            op::LSEEK => Op::Lseek { handle: f.u64()?, offset: f.i64()?, whence: f.u32()? as i32 },
            op::COPY_FILE_RANGE | op::COPY_FILE_RANGE_64 => Op::CopyFileRange {
                handle: f.u64()?,
                offset: f.u64()?,
                to_node: f.u64()?,
                to_handle: f.u64()?,
                to_offset: f.u64()?,
                len: f.u64()?,
                wide: opcode == op::COPY_FILE_RANGE_64,
            },
            op::SYNCFS => Op::SyncFs,
            _ => Op::Unknown,
        })
    }
}

fn file_lock(mut f: Fields<'_>) -> Result<FileLock, ParseError> {
    let (handle, owner, start, end) = (f.u64()?, f.u64()?, f.u64()?, f.u64()?);
    let (kind, pid, how) = (f.u32()? as i32, f.u32()?, f.u32()?);
    let whole = how & abi::LK_FLOCK != 0;
    Ok(FileLock { handle, owner, start, end, kind, pid, whole })
}

fn set_attr(mut f: Fields<'_>) -> Result<SetAttr, ParseError> {
    let valid = f.u32()?;
    f.skip(4)?;
    let (handle, size) = (f.u64()?, f.u64()?);
    f.skip(8)?;
    let (atime, mtime, _ctime) = (f.i64()?, f.i64()?, f.i64()?);
    let (atime_nsec, mtime_nsec, _) = (f.u32()?, f.u32()?, f.u32()?);
    let mode = f.u32()?;
    f.skip(4)?;
    let (uid, gid) = (f.u32()?, f.u32()?);
    let has = |bit: u32| valid & bit != 0;
    let time = |bit, now, sec, nsec| {
        has(bit).then_some(if has(now) { SetTime::Now } else { SetTime::At(Time { sec, nsec }) })
    };
    Ok(SetAttr {
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
