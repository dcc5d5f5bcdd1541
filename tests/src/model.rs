//! The behaviour of a POSIX file system, in memory and in a few hundred lines: the reference for
//! the real one. Random operations use a small space of names, so that they conflict often.
//!
//! The order of checks, and so the error number that wins, is Linux' own (`fs/namei.c`): it is the
//! same for every file system below it.

use crate::seed::Rng;
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};

/// Names below the root of the tree: few, so that operations collide.
const NAMES: [&str; 4] = ["a", "b", "c", "d"];
/// Deepest path that operations name.
const DEPTH: usize = 3;
/// Most handles that are open at the same time.
pub const SLOTS: usize = 3;
/// Files stay below this size in bytes, except where a sparse one is made.
const SMALL: u64 = 40_000;
/// Longest chain of symbolic links that a walk follows, as in Linux.
const LINKS_MAX: u32 = 40;

/// A path relative to the root of the tree, such as `a/b`.
pub type Path = String;

/// Returns bytes that differ from place to place and from write to write.
pub fn pattern(fill: u8, offset: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| fill.wrapping_add(((offset + i) % 251) as u8)).collect()
}

/// An operation on a file system.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)] // the fields are those of the system calls
pub enum Op {
    Mkdir {
        path: Path,
    },
    Rmdir {
        path: Path,
    },
    /// open(O_CREAT | O_EXCL)
    Create {
        path: Path,
    },
    /// open(O_CREAT), pwrite, close
    Write {
        path: Path,
        offset: u64,
        len: usize,
        fill: u8,
    },
    /// open(O_APPEND), write, close
    Append {
        path: Path,
        len: usize,
        fill: u8,
    },
    /// open(O_TRUNC), close
    Empty {
        path: Path,
    },
    Truncate {
        path: Path,
        size: u64,
    },
    /// open, read to the end, close
    Read {
        path: Path,
    },
    Stat {
        path: Path,
    },
    List {
        path: Path,
    },
    Unlink {
        path: Path,
    },
    Rename {
        from: Path,
        to: Path,
        how: Renaming,
    },
    Link {
        from: Path,
        to: Path,
    },
    Symlink {
        target: String,
        path: Path,
    },
    Readlink {
        path: Path,
    },
    Chmod {
        path: Path,
        mode: u32,
    },
    SetXattr {
        path: Path,
        name: u8,
        value: Vec<u8>,
    },
    GetXattr {
        path: Path,
        name: u8,
    },
    RemoveXattr {
        path: Path,
        name: u8,
    },
    /// open(O_RDWR) into a slot; a file that was open there is closed
    Open {
        slot: usize,
        path: Path,
    },
    Close {
        slot: usize,
    },
    WriteAt {
        slot: usize,
        offset: u64,
        len: usize,
        fill: u8,
    },
    ReadAt {
        slot: usize,
        offset: u64,
        len: usize,
    },
    TruncateAt {
        slot: usize,
        size: u64,
    },
    StatAt {
        slot: usize,
    },
    Fsync {
        slot: usize,
    },
}

/// The flags of renameat2(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Renaming {
    Replace,
    NoReplace,
    Exchange,
}

/// The result of an [`Op`].
#[derive(Clone, PartialEq)]
#[allow(missing_docs)]
pub enum Outcome {
    Done,
    Bytes(Vec<u8>),
    Names(BTreeSet<String>),
    /// `size` is 0 for directories, because their size means nothing.
    Stat {
        kind: char,
        size: u64,
        links: u64,
        mode: u32,
    },
    /// Nothing is open in that slot.
    Nothing,
    Error(Errno),
}

impl std::fmt::Debug for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Outcome::Done => write!(f, "Done"),
            Outcome::Nothing => write!(f, "Nothing"),
            Outcome::Error(errno) => write!(f, "{errno:?}"),
            Outcome::Names(names) => write!(f, "{names:?}"),
            Outcome::Stat { kind, size, links, mode } => {
                write!(f, "{kind} size {size} links {links} mode {mode:o}")
            }
            Outcome::Bytes(bytes) => {
                write!(f, "{} bytes, crc of all {:08x}", bytes.len(), checksum(bytes))
            }
        }
    }
}

/// Distinguishes two contents in a message.
fn checksum(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |h, b| (h ^ u32::from(*b)).wrapping_mul(0x0100_0193))
}

impl Op {
    /// Draws a random operation. With `handles`, some operations use open files.
    pub fn random(rng: &mut Rng, handles: bool) -> Op {
        let path = |rng: &mut Rng| {
            let depth = rng.usize(1..=DEPTH);
            (0..depth).map(|_| NAMES[rng.usize(..NAMES.len())]).collect::<Vec<_>>().join("/")
        };
        let offset = |rng: &mut Rng| match rng.u8(..8) {
            0..3 => 0,
            3..7 => rng.u64(..SMALL),
            _ => rng.u64(..1 << 21), // a sparse file
        };
        let len = |rng: &mut Rng| match rng.u8(..4) {
            0 => rng.usize(..64),
            1 => 4096,
            _ => rng.usize(..20_000),
        };
        let slot = rng.usize(..SLOTS);
        let fill = rng.u8(..);
        let name = rng.u8(..2);
        if handles && rng.u8(..4) == 0 {
            return match rng.u8(..9) {
                0 | 1 => Op::Open { slot, path: path(rng) },
                2 => Op::Close { slot },
                3 | 4 => Op::WriteAt { slot, offset: offset(rng), len: len(rng), fill },
                5 => Op::ReadAt { slot, offset: rng.u64(..SMALL), len: len(rng) },
                6 => Op::TruncateAt { slot, size: offset(rng) },
                7 => Op::StatAt { slot },
                _ => Op::Fsync { slot },
            };
        }
        match rng.u8(..40) {
            0..5 => Op::Mkdir { path: path(rng) },
            5 | 6 => Op::Rmdir { path: path(rng) },
            7 | 8 => Op::Create { path: path(rng) },
            9..13 => Op::Write { path: path(rng), offset: offset(rng), len: len(rng), fill },
            13 | 14 => Op::Append { path: path(rng), len: len(rng), fill },
            15 => Op::Empty { path: path(rng) },
            16 => Op::Truncate { path: path(rng), size: offset(rng) },
            17..20 => Op::Read { path: path(rng) },
            20 | 21 => Op::Stat { path: path(rng) },
            22 | 23 => Op::List { path: path(rng) },
            24 | 25 => Op::Unlink { path: path(rng) },
            26..30 => {
                let how = match rng.u8(..4) {
                    0 => Renaming::NoReplace,
                    1 => Renaming::Exchange,
                    _ => Renaming::Replace,
                };
                Op::Rename { from: path(rng), to: path(rng), how }
            }
            30 | 31 => Op::Link { from: path(rng), to: path(rng) },
            32 => {
                Op::Symlink { target: NAMES[rng.usize(..NAMES.len())].to_owned(), path: path(rng) }
            }
            33 => Op::Readlink { path: path(rng) },
            34 => Op::Chmod { path: path(rng), mode: rng.u32(..0o1000) },
            35 | 36 => Op::SetXattr { path: path(rng), name, value: vec![fill; rng.usize(..300)] },
            37 | 38 => Op::GetXattr { path: path(rng), name },
            _ => Op::RemoveXattr { path: path(rng), name },
        }
    }
}

#[derive(Clone, Debug)]
enum Body {
    File(Vec<u8>),
    Dir(BTreeMap<String, usize>),
    Symlink(String),
}

#[derive(Clone, Debug)]
struct Inode {
    body: Body,
    links: u64,
    mode: u32,
    xattrs: BTreeMap<u8, Vec<u8>>,
    /// Of directories: the target of `..`.
    parent: usize,
}

/// The file system in memory. All operations run as the superuser, with umask 022.
#[derive(Clone, Debug)]
pub struct Model {
    inodes: Vec<Inode>,
    slots: [Option<usize>; SLOTS],
}

type Result<T> = std::result::Result<T, Errno>;
const ROOT: usize = 0;

impl Default for Model {
    fn default() -> Model {
        let mut model = Model { inodes: Vec::new(), slots: [None; SLOTS] };
        model.add(Body::Dir(BTreeMap::new()), 0o755, ROOT);
        model
    }
}

impl Model {
    /// Applies `op` and returns the answer that a file system has to give.
    pub fn apply(&mut self, op: &Op) -> Outcome {
        self.attempt(op).unwrap_or_else(Outcome::Error)
    }

    fn attempt(&mut self, op: &Op) -> Result<Outcome> {
        match op {
            Op::Mkdir { path } => {
                let (dir, name) = self.place(path)?;
                self.absent(dir, &name)?;
                let new = self.add(Body::Dir(BTreeMap::new()), 0o755, dir);
                self.inodes[dir].links += 1;
                self.entries(dir).insert(name, new);
            }
            Op::Rmdir { path } => {
                let (dir, name) = self.place(path)?;
                let ino = self.child(dir, &name)?;
                let Body::Dir(entries) = &self.inodes[ino].body else {
                    return Err(Errno::NOTDIR);
                };
                if !entries.is_empty() {
                    return Err(Errno::NOTEMPTY);
                }
                self.entries(dir).remove(&name);
                self.inodes[dir].links -= 1;
            }
            Op::Create { path } => {
                let (dir, name) = self.place(path)?;
                self.absent(dir, &name)?;
                let new = self.add(Body::File(Vec::new()), 0o644, dir);
                self.entries(dir).insert(name, new);
            }
            Op::Write { path, offset, len, fill } => {
                let ino = self.open(path, true)?;
                self.write(ino, *offset, &pattern(*fill, *offset, *len))?;
            }
            Op::Append { path, len, fill } => {
                let ino = self.open(path, false)?;
                let end = self.data(ino)?.len() as u64;
                self.write(ino, end, &pattern(*fill, 0, *len))?;
            }
            Op::Empty { path } => {
                let ino = self.open(path, false)?;
                self.data(ino)?.clear();
            }
            Op::Truncate { path, size } => {
                let ino = self.open(path, false)?;
                self.data(ino)?.resize(*size as usize, 0);
            }
            Op::Read { path } => {
                let ino = self.follow(path)?;
                return Ok(Outcome::Bytes(self.data(ino)?.clone()));
            }
            Op::Stat { path } => {
                let (dir, name) = self.place(path)?;
                let ino = self.child(dir, &name)?;
                return Ok(self.stat(ino));
            }
            Op::List { path } => {
                let ino = self.follow(path)?;
                let Body::Dir(entries) = &self.inodes[ino].body else {
                    return Err(Errno::NOTDIR);
                };
                return Ok(Outcome::Names(entries.keys().cloned().collect()));
            }
            Op::Unlink { path } => {
                let (dir, name) = self.place(path)?;
                let ino = self.child(dir, &name)?;
                if self.is_dir(ino) {
                    return Err(Errno::ISDIR);
                }
                self.entries(dir).remove(&name);
                self.inodes[ino].links -= 1;
            }
            Op::Rename { from, to, how } => self.rename(from, to, *how)?,
            Op::Link { from, to } => {
                let (dir, name) = self.place(from)?;
                let ino = self.child(dir, &name)?;
                let (to_dir, to_name) = self.place(to)?;
                self.absent(to_dir, &to_name)?;
                if self.is_dir(ino) {
                    return Err(Errno::PERM);
                }
                self.entries(to_dir).insert(to_name, ino);
                self.inodes[ino].links += 1;
            }
            Op::Symlink { target, path } => {
                let (dir, name) = self.place(path)?;
                self.absent(dir, &name)?;
                let new = self.add(Body::Symlink(target.clone()), 0o777, dir);
                self.entries(dir).insert(name, new);
            }
            Op::Readlink { path } => {
                let (dir, name) = self.place(path)?;
                let ino = self.child(dir, &name)?;
                let Body::Symlink(target) = &self.inodes[ino].body else {
                    return Err(Errno::INVAL);
                };
                return Ok(Outcome::Bytes(target.clone().into_bytes()));
            }
            Op::Chmod { path, mode } => {
                let ino = self.follow(path)?;
                self.inodes[ino].mode = *mode;
            }
            Op::SetXattr { path, name, value } => {
                let ino = self.follow(path)?;
                self.inodes[ino].xattrs.insert(*name, value.clone());
            }
            Op::GetXattr { path, name } => {
                let ino = self.follow(path)?;
                let value = self.inodes[ino].xattrs.get(name).ok_or(Errno::NODATA)?;
                return Ok(Outcome::Bytes(value.clone()));
            }
            Op::RemoveXattr { path, name } => {
                let ino = self.follow(path)?;
                self.inodes[ino].xattrs.remove(name).ok_or(Errno::NODATA)?;
            }
            Op::Open { slot, path } => {
                self.slots[*slot] = None;
                self.slots[*slot] = Some(self.open(path, false)?);
            }
            Op::Close { slot } => self.slots[*slot] = None,
            Op::WriteAt { slot, offset, len, fill } => {
                let Some(ino) = self.slots[*slot] else { return Ok(Outcome::Nothing) };
                self.write(ino, *offset, &pattern(*fill, *offset, *len))?;
            }
            Op::ReadAt { slot, offset, len } => {
                let Some(ino) = self.slots[*slot] else { return Ok(Outcome::Nothing) };
                let data = self.data(ino)?;
                let start = (*offset as usize).min(data.len());
                let end = (start + len).min(data.len());
                return Ok(Outcome::Bytes(data[start..end].to_vec()));
            }
            Op::TruncateAt { slot, size } => {
                let Some(ino) = self.slots[*slot] else { return Ok(Outcome::Nothing) };
                self.data(ino)?.resize(*size as usize, 0);
            }
            Op::StatAt { slot } => {
                let Some(ino) = self.slots[*slot] else { return Ok(Outcome::Nothing) };
                return Ok(self.stat(ino));
            }
            Op::Fsync { slot } => {
                if self.slots[*slot].is_none() {
                    return Ok(Outcome::Nothing);
                }
            }
        }
        Ok(Outcome::Done)
    }

    fn rename(&mut self, from: &str, to: &str, how: Renaming) -> Result<()> {
        let (dir, name) = self.place(from)?;
        let (to_dir, to_name) = self.place(to)?;
        let source = self.child(dir, &name)?;
        let target = self.child(to_dir, &to_name).ok();
        match (how, target) {
            (Renaming::NoReplace, Some(_)) => return Err(Errno::EXIST),
            (Renaming::Exchange, None) => return Err(Errno::NOENT),
            _ => {}
        }
        if self.is_above(source, to_dir) {
            return Err(Errno::INVAL);
        }
        if target.is_some_and(|t| self.is_above(t, dir)) {
            return Err(match how {
                Renaming::Exchange => Errno::INVAL,
                _ => Errno::NOTEMPTY,
            });
        }
        if target == Some(source) {
            return Ok(());
        }
        if let Some(target) = target
            && how != Renaming::Exchange
        {
            match (self.is_dir(source), &self.inodes[target].body) {
                (true, Body::Dir(entries)) if !entries.is_empty() => {
                    return Err(Errno::NOTEMPTY);
                }
                (true, Body::Dir(_)) => self.inodes[to_dir].links -= 1,
                (true, _) => return Err(Errno::NOTDIR),
                (false, Body::Dir(_)) => return Err(Errno::ISDIR),
                (false, _) => self.inodes[target].links -= 1,
            }
        }
        self.entries(dir).remove(&name);
        self.entries(to_dir).insert(to_name, source);
        self.moved(source, dir, to_dir);
        if let (Renaming::Exchange, Some(target)) = (how, target) {
            self.entries(dir).insert(name, target);
            self.moved(target, to_dir, dir);
        }
        Ok(())
    }

    /// Updates `..` and the link counts of the parents of a moved inode.
    fn moved(&mut self, ino: usize, from: usize, to: usize) {
        if self.is_dir(ino) {
            self.inodes[from].links -= 1;
            self.inodes[to].links += 1;
            self.inodes[ino].parent = to;
        }
    }

    fn add(&mut self, body: Body, mode: u32, parent: usize) -> usize {
        let links = if matches!(body, Body::Dir(_)) { 2 } else { 1 };
        self.inodes.push(Inode { body, links, mode, xattrs: BTreeMap::new(), parent });
        self.inodes.len() - 1
    }

    fn is_dir(&self, ino: usize) -> bool {
        matches!(self.inodes[ino].body, Body::Dir(_))
    }

    /// Returns whether `ino` is `below` or one of the directories above it.
    fn is_above(&self, ino: usize, below: usize) -> bool {
        let mut at = below;
        loop {
            if at == ino {
                return true;
            }
            if at == ROOT {
                return false;
            }
            at = self.inodes[at].parent;
        }
    }

    fn entries(&mut self, dir: usize) -> &mut BTreeMap<String, usize> {
        match &mut self.inodes[dir].body {
            Body::Dir(entries) => entries,
            _ => unreachable!("place() answers directories only"),
        }
    }

    fn child(&self, dir: usize, name: &str) -> Result<usize> {
        match &self.inodes[dir].body {
            Body::Dir(entries) => entries.get(name).copied().ok_or(Errno::NOENT),
            _ => Err(Errno::NOTDIR),
        }
    }

    fn absent(&self, dir: usize, name: &str) -> Result<()> {
        match self.child(dir, name) {
            Ok(_) => Err(Errno::EXIST),
            Err(Errno::NOENT) => Ok(()),
            Err(other) => Err(other),
        }
    }

    /// Returns the directory and the last name of a path; links on the way are followed.
    fn place(&self, path: &str) -> Result<(usize, String)> {
        let (dirs, name) = path.rsplit_once('/').unwrap_or(("", path));
        let mut at = ROOT;
        let mut links = 0;
        for part in dirs.split('/').filter(|p| !p.is_empty()) {
            let child = self.child(at, part)?;
            at = self.resolve(at, child, &mut links)?;
        }
        if !self.is_dir(at) {
            return Err(Errno::NOTDIR);
        }
        Ok((at, name.to_owned()))
    }

    /// Returns the inode to which `ino`, an entry of `dir`, leads after following links.
    fn resolve(&self, dir: usize, ino: usize, links: &mut u32) -> Result<usize> {
        let Body::Symlink(target) = &self.inodes[ino].body else { return Ok(ino) };
        *links += 1;
        if *links > LINKS_MAX {
            return Err(Errno::LOOP);
        }
        let next = self.child(dir, target)?;
        self.resolve(dir, next, links)
    }

    fn follow(&self, path: &str) -> Result<usize> {
        let (dir, name) = self.place(path)?;
        let ino = self.child(dir, &name)?;
        self.resolve(dir, ino, &mut 0)
    }

    /// open(2) for writing.
    fn open(&mut self, path: &str, create: bool) -> Result<usize> {
        let (dir, mut name) = self.place(path)?;
        for _ in 0..=LINKS_MAX {
            let ino = match self.child(dir, &name) {
                Err(Errno::NOENT) if create => {
                    let new = self.add(Body::File(Vec::new()), 0o644, dir);
                    self.entries(dir).insert(name, new);
                    return Ok(new);
                }
                other => other?,
            };
            match &self.inodes[ino].body {
                Body::File(_) => return Ok(ino),
                Body::Dir(_) => return Err(Errno::ISDIR),
                Body::Symlink(target) => name = target.clone(),
            }
        }
        Err(Errno::LOOP)
    }

    fn data(&mut self, ino: usize) -> Result<&mut Vec<u8>> {
        match &mut self.inodes[ino].body {
            Body::File(data) => Ok(data),
            Body::Dir(_) => Err(Errno::ISDIR),
            Body::Symlink(_) => unreachable!("links have been followed"),
        }
    }

    fn write(&mut self, ino: usize, offset: u64, bytes: &[u8]) -> Result<()> {
        let data = self.data(ino)?;
        if bytes.is_empty() {
            return Ok(());
        }
        let offset = offset as usize;
        if data.len() < offset + bytes.len() {
            data.resize(offset + bytes.len(), 0);
        }
        data[offset..offset + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn stat(&self, ino: usize) -> Outcome {
        let inode = &self.inodes[ino];
        let (kind, size) = match &inode.body {
            Body::File(data) => ('f', data.len() as u64),
            Body::Dir(_) => ('d', 0),
            Body::Symlink(target) => ('l', target.len() as u64),
        };
        Outcome::Stat { kind, size, links: inode.links, mode: inode.mode }
    }

    /// Replaces the content of a file, for the one write with an unknown result. Does nothing
    /// where there is no such file.
    pub fn replace(&mut self, path: &str, bytes: Vec<u8>) {
        if let Ok(ino) = self.follow(path)
            && let Body::File(data) = &mut self.inodes[ino].body
        {
            *data = bytes;
        }
    }

    /// Returns all paths, for comparing whole trees. Links are not followed.
    pub fn paths(&self) -> Vec<Path> {
        let mut found = Vec::new();
        let mut todo = vec![(ROOT, String::new())];
        while let Some((dir, prefix)) = todo.pop() {
            let Body::Dir(entries) = &self.inodes[dir].body else { continue };
            for (name, ino) in entries {
                let path = format!("{prefix}{name}");
                if self.is_dir(*ino) {
                    todo.push((*ino, format!("{path}/")));
                }
                found.push(path);
            }
        }
        found
    }
}
