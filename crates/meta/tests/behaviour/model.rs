//! A namespace as simple as possible, to compare the real one with.
//!
//! Nodes lie in a list and are never reused; directories are maps. Link counts, parents and
//! ancestors are not stored but counted each time. Written from the manual pages, not from the
//! implementation. Access control lists are left out: they have tests of their own.

use std::collections::BTreeMap;
use tatami_wire::meta::RenameMode;
use tatami_wire::{Cred, Errno, InodeKind};

/// A node's place in the list.
pub type Id = usize;

#[derive(Clone, Debug)]
pub struct Node {
    pub kind: InodeKind,
    pub mode: u16,
    pub uid: u32,
    pub gid: u32,
    pub size: u64,
    pub atime: i64,
    pub mtime: i64,
    pub ctime: i64,
    pub entries: BTreeMap<String, Id>,
    pub xattrs: BTreeMap<String, Vec<u8>>,
    pub target: String,
    /// Has not been removed.
    pub alive: bool,
}

/// The properties of a node that a test compares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    pub kind: InodeKind,
    pub mode: u16,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub size: u64,
    pub times: (i64, i64, i64),
}

pub struct Model {
    pub nodes: Vec<Node>,
    pub now: i64,
    pub cred: Cred,
}

type Res<T> = Result<T, Errno>;

const R: u16 = 4;
const W: u16 = 2;
const X: u16 = 1;

impl Model {
    pub fn new(now: i64) -> Model {
        let mut model = Model { nodes: Vec::new(), now, cred: Cred::ROOT };
        model.push(InodeKind::Dir, 0o755, 0);
        model
    }

    fn push(&mut self, kind: InodeKind, mode: u16, gid: u32) -> Id {
        self.nodes.push(Node {
            kind,
            mode,
            uid: self.cred.uid,
            gid,
            size: 0,
            atime: self.now,
            mtime: self.now,
            ctime: self.now,
            entries: BTreeMap::new(),
            xattrs: BTreeMap::new(),
            target: String::new(),
            alive: true,
        });
        self.nodes.len() - 1
    }

    fn names_of(&self, id: Id) -> u32 {
        let names = |n: &Node| n.entries.values().filter(|e| **e == id).count() as u32;
        self.nodes.iter().filter(|n| n.alive).map(names).sum()
    }

    fn subdirs(&self, id: Id) -> u32 {
        let is_dir = |e: &&Id| self.nodes[**e].kind == InodeKind::Dir;
        self.nodes[id].entries.values().filter(is_dir).count() as u32
    }

    fn parent(&self, id: Id) -> Id {
        let holds =
            |p: &Id| self.nodes[*p].alive && self.nodes[*p].entries.values().any(|e| *e == id);
        (0..self.nodes.len()).find(holds).unwrap_or(0)
    }

    fn is_within(&self, mut dir: Id, ancestor: Id) -> bool {
        loop {
            if dir == ancestor {
                return true;
            }
            if dir == 0 {
                return false;
            }
            dir = self.parent(dir);
        }
    }

    pub fn view(&self, id: Id) -> View {
        let n = &self.nodes[id];
        let (nlink, size) = match n.kind {
            InodeKind::Dir => (2 + self.subdirs(id), n.entries.len() as u64),
            InodeKind::Symlink => (self.names_of(id), n.target.len() as u64),
            _ => (self.names_of(id), n.size),
        };
        let times = (n.atime, n.mtime, n.ctime);
        View { kind: n.kind, mode: n.mode, nlink, uid: n.uid, gid: n.gid, size, times }
    }

    fn may(&self, id: Id, want: u16) -> bool {
        let n = &self.nodes[id];
        let in_group = self.cred.gid == n.gid || self.cred.groups.contains(&n.gid);
        if self.cred.uid == 0 {
            return want & X == 0 || n.kind == InodeKind::Dir || n.mode & 0o111 != 0;
        }
        let class = match () {
            () if self.cred.uid == n.uid => n.mode >> 6,
            () if in_group => n.mode >> 3,
            () => n.mode,
        };
        class & want == want
    }

    fn owns(&self, id: Id) -> bool {
        self.cred.uid == 0 || self.cred.uid == self.nodes[id].uid
    }

    fn member(&self, gid: u32) -> bool {
        self.cred.uid == 0 || self.cred.gid == gid || self.cred.groups.contains(&gid)
    }

    fn alive(&self, id: Id) -> Res<()> {
        if self.nodes[id].alive { Ok(()) } else { Err(Errno::ESTALE) }
    }

    /// Checks a name, the directory, and that it can be searched.
    fn walk(&self, dir: Id, name: &str) -> Res<()> {
        if name.is_empty() {
            return Err(Errno::ENOENT);
        }
        if name.len() > 255 {
            return Err(Errno::ENAMETOOLONG);
        }
        if name.contains('/') {
            return Err(Errno::EINVAL);
        }
        self.alive(dir)?;
        if self.nodes[dir].kind != InodeKind::Dir {
            return Err(Errno::ENOTDIR);
        }
        if self.may(dir, X) { Ok(()) } else { Err(Errno::EACCES) }
    }

    fn may_write(&self, dir: Id) -> Res<()> {
        if self.may(dir, W | X) { Ok(()) } else { Err(Errno::EACCES) }
    }

    fn may_remove(&self, dir: Id, victim: Id) -> Res<()> {
        self.may_write(dir)?;
        let sticky = self.nodes[dir].mode & 0o1000 != 0;
        if sticky && !self.owns(dir) && !self.owns(victim) { Err(Errno::EPERM) } else { Ok(()) }
    }

    fn touch_dir(&mut self, dir: Id) {
        self.nodes[dir].mtime = self.now;
        self.nodes[dir].ctime = self.now;
    }

    fn add(&mut self, dir: Id, name: &str, id: Id) {
        self.nodes[dir].entries.insert(name.to_owned(), id);
        self.nodes[id].ctime = self.now;
        self.touch_dir(dir);
    }

    fn take(&mut self, dir: Id, name: &str) -> Id {
        let id = self.nodes[dir].entries.remove(name).expect("there");
        self.nodes[id].ctime = self.now;
        self.touch_dir(dir);
        id
    }

    fn bury(&mut self, id: Id) -> bool {
        let last = self.nodes[id].kind == InodeKind::Dir || self.names_of(id) == 0;
        self.nodes[id].alive &= !last;
        last
    }

    pub fn lookup(&self, dir: Id, name: &str) -> Res<Id> {
        self.walk(dir, name)?;
        match name {
            "." => Ok(dir),
            ".." => Ok(self.parent(dir)),
            _ => self.nodes[dir].entries.get(name).copied().ok_or(Errno::ENOENT),
        }
    }

    pub fn getattr(&self, id: Id) -> Res<Id> {
        self.alive(id)?;
        Ok(id)
    }

    pub fn make(&mut self, dir: Id, name: &str, kind: InodeKind, mode: u16, umask: u16) -> Res<Id> {
        self.walk(dir, name)?;
        if matches!(name, "." | "..") || self.nodes[dir].entries.contains_key(name) {
            return Err(Errno::EEXIST);
        }
        self.may_write(dir)?;
        if kind == InodeKind::BlockDev && self.cred.uid != 0 {
            return Err(Errno::EPERM);
        }
        let mut gid = self.cred.gid;
        let mut mode = mode;
        if self.nodes[dir].mode & 0o2000 != 0 {
            gid = self.nodes[dir].gid;
            if kind == InodeKind::Dir {
                mode |= 0o2000;
            } else if mode & 0o2010 == 0o2010 && !self.member(gid) {
                mode &= !0o2000;
            }
        }
        let mode = if kind == InodeKind::Symlink { 0o777 } else { mode & !umask };
        let id = self.push(kind, mode, gid);
        if kind == InodeKind::Symlink {
            self.nodes[id].target = "target".to_owned();
        }
        self.add(dir, name, id);
        Ok(id)
    }

    pub fn link(&mut self, id: Id, dir: Id, name: &str) -> Res<Id> {
        self.walk(dir, name)?;
        if matches!(name, "." | "..") || self.nodes[dir].entries.contains_key(name) {
            return Err(Errno::EEXIST);
        }
        self.may_write(dir)?;
        self.alive(id)?;
        if self.nodes[id].kind == InodeKind::Dir {
            return Err(Errno::EPERM);
        }
        self.add(dir, name, id);
        Ok(id)
    }

    pub fn unlink(&mut self, dir: Id, name: &str) -> Res<(Id, bool)> {
        self.walk(dir, name)?;
        if matches!(name, "." | "..") {
            return Err(Errno::EISDIR);
        }
        let id = self.lookup(dir, name)?;
        self.may_remove(dir, id)?;
        if self.nodes[id].kind == InodeKind::Dir {
            return Err(Errno::EISDIR);
        }
        self.take(dir, name);
        Ok((id, self.bury(id)))
    }

    pub fn rmdir(&mut self, dir: Id, name: &str) -> Res<(Id, bool)> {
        match name {
            "." => return Err(Errno::EINVAL),
            ".." => return Err(Errno::ENOTEMPTY),
            _ => {}
        }
        let id = self.lookup(dir, name)?;
        self.may_remove(dir, id)?;
        if self.nodes[id].kind != InodeKind::Dir {
            return Err(Errno::ENOTDIR);
        }
        if !self.nodes[id].entries.is_empty() {
            return Err(Errno::ENOTEMPTY);
        }
        self.take(dir, name);
        Ok((id, self.bury(id)))
    }

    pub fn rename(
        &mut self,
        from: (Id, &str),
        to: (Id, &str),
        mode: RenameMode,
    ) -> Res<Option<(Id, bool)>> {
        for (dir, name) in [from, to] {
            self.walk(dir, name)?;
            if matches!(name, "." | "..") {
                return Err(Errno::EBUSY);
            }
        }
        let source = self.lookup(from.0, from.1)?;
        let target = self.lookup(to.0, to.1).ok();
        let exchange = mode == RenameMode::Exchange;
        match (mode, target) {
            (RenameMode::NoReplace, Some(_)) => return Err(Errno::EEXIST),
            (RenameMode::Exchange, None) => return Err(Errno::ENOENT),
            _ => {}
        }
        let is_dir = |m: &Model, id: Id| m.nodes[id].kind == InodeKind::Dir;
        if is_dir(self, source) && self.is_within(to.0, source) {
            return Err(Errno::EINVAL);
        }
        if let Some(target) = target
            && is_dir(self, target)
            && self.is_within(from.0, target)
        {
            return Err(if exchange { Errno::EINVAL } else { Errno::ENOTEMPTY });
        }
        if target == Some(source) {
            return Ok(None);
        }
        self.may_remove(from.0, source)?;
        match target {
            None => self.may_write(to.0)?,
            Some(target) => {
                self.may_remove(to.0, target)?;
                match (is_dir(self, source), is_dir(self, target)) {
                    (true, false) if !exchange => return Err(Errno::ENOTDIR),
                    (false, true) if !exchange => return Err(Errno::EISDIR),
                    _ => {}
                }
            }
        }
        if from.0 != to.0 {
            let moving = [Some(source), target.filter(|_| exchange)];
            for id in moving.into_iter().flatten() {
                if is_dir(self, id) && !self.may(id, W) {
                    return Err(Errno::EACCES);
                }
            }
        }
        match target {
            Some(target) if exchange => {
                self.take(from.0, from.1);
                self.take(to.0, to.1);
                self.add(to.0, to.1, source);
                self.add(from.0, from.1, target);
                Ok(None)
            }
            Some(target) => {
                if !self.nodes[target].entries.is_empty() {
                    return Err(Errno::ENOTEMPTY);
                }
                self.take(to.0, to.1);
                self.take(from.0, from.1);
                self.add(to.0, to.1, source);
                Ok(Some((target, self.bury(target))))
            }
            None => {
                self.take(from.0, from.1);
                self.add(to.0, to.1, source);
                Ok(None)
            }
        }
    }

    pub fn chmod(&mut self, id: Id, mode: u16) -> Res<Id> {
        self.alive(id)?;
        if self.nodes[id].kind == InodeKind::Symlink {
            return Err(Errno::EOPNOTSUPP);
        }
        if !self.owns(id) {
            return Err(Errno::EPERM);
        }
        let keep = if self.member(self.nodes[id].gid) { 0o7777 } else { 0o5777 };
        self.nodes[id].mode = mode & keep;
        self.nodes[id].ctime = self.now;
        Ok(id)
    }

    /// Removes the mode bits that chown(2) and a write by another user than root remove.
    fn strip(&mut self, id: Id, gid: u32) {
        let foreign = !self.member(gid);
        let mode = &mut self.nodes[id].mode;
        if foreign || *mode & 0o10 != 0 {
            *mode &= !0o2000;
        }
        *mode &= !0o4000;
    }

    pub fn chown(&mut self, id: Id, uid: Option<u32>, gid: Option<u32>) -> Res<Id> {
        self.alive(id)?;
        if uid.is_none() && gid.is_none() {
            return Ok(id);
        }
        let n = &self.nodes[id];
        if self.cred.uid != 0 {
            let own_uid = uid.is_none_or(|u| u == n.uid);
            let own_gid = gid.is_none_or(|g| g == n.gid || self.member(g));
            if self.cred.uid != n.uid || !own_uid || !own_gid {
                return Err(Errno::EPERM);
            }
        }
        let old_gid = n.gid;
        if n.kind != InodeKind::Dir {
            self.strip(id, old_gid);
        }
        let n = &mut self.nodes[id];
        n.uid = uid.unwrap_or(n.uid);
        n.gid = gid.unwrap_or(n.gid);
        n.ctime = self.now;
        Ok(id)
    }

    pub fn truncate(&mut self, id: Id, size: u64) -> Res<Id> {
        self.alive(id)?;
        match self.nodes[id].kind {
            InodeKind::File => {}
            InodeKind::Dir => return Err(Errno::EISDIR),
            _ => return Err(Errno::EINVAL),
        }
        if !self.may(id, W) {
            return Err(Errno::EACCES);
        }
        if self.cred.uid != 0 {
            let gid = self.nodes[id].gid;
            self.strip(id, gid);
        }
        let now = self.now;
        let n = &mut self.nodes[id];
        (n.size, n.mtime, n.ctime) = (size, now, now);
        Ok(id)
    }

    /// Sets the times; `None` is "now" for both.
    pub fn utimens(&mut self, id: Id, time: Option<i64>) -> Res<Id> {
        self.alive(id)?;
        if !self.owns(id) {
            match time {
                Some(_) => return Err(Errno::EPERM),
                None if !self.may(id, W) => return Err(Errno::EACCES),
                None => {}
            }
        }
        let now = self.now;
        let n = &mut self.nodes[id];
        (n.atime, n.mtime, n.ctime) = (time.unwrap_or(now), time.unwrap_or(now), now);
        Ok(id)
    }

    pub fn open(&self, id: Id, read: bool, write: bool) -> Res<Id> {
        self.alive(id)?;
        match self.nodes[id].kind {
            InodeKind::File => {}
            InodeKind::Dir => return Err(Errno::EISDIR),
            InodeKind::Symlink => return Err(Errno::ELOOP),
            _ => return Err(Errno::EINVAL),
        }
        let want = if read { R } else { 0 } | if write { W } else { 0 };
        if self.may(id, want) { Ok(id) } else { Err(Errno::EACCES) }
    }

    pub fn list(&self, dir: Id) -> Res<Vec<String>> {
        self.alive(dir)?;
        if self.nodes[dir].kind != InodeKind::Dir {
            return Err(Errno::ENOTDIR);
        }
        if !self.may(dir, R) {
            return Err(Errno::EACCES);
        }
        Ok(self.nodes[dir].entries.keys().cloned().collect())
    }

    fn has_user_xattrs(&self, id: Id) -> bool {
        matches!(self.nodes[id].kind, InodeKind::File | InodeKind::Dir)
    }

    fn may_set_xattr(&self, id: Id) -> Res<()> {
        self.alive(id)?;
        let n = &self.nodes[id];
        let sticky_dir = n.kind == InodeKind::Dir && n.mode & 0o1000 != 0;
        if !self.has_user_xattrs(id) || sticky_dir && !self.owns(id) {
            return Err(Errno::EPERM);
        }
        if self.may(id, W) { Ok(()) } else { Err(Errno::EACCES) }
    }

    pub fn setxattr(&mut self, id: Id, name: &str, value: &[u8]) -> Res<()> {
        self.may_set_xattr(id)?;
        self.nodes[id].xattrs.insert(name.to_owned(), value.to_vec());
        self.nodes[id].ctime = self.now;
        Ok(())
    }

    pub fn removexattr(&mut self, id: Id, name: &str) -> Res<()> {
        self.may_set_xattr(id)?;
        self.nodes[id].xattrs.remove(name).ok_or(Errno::ENODATA)?;
        self.nodes[id].ctime = self.now;
        Ok(())
    }

    pub fn getxattr(&self, id: Id, name: &str) -> Res<Vec<u8>> {
        self.alive(id)?;
        if !self.has_user_xattrs(id) {
            return Err(Errno::ENODATA);
        }
        if !self.may(id, R) {
            return Err(Errno::EACCES);
        }
        self.nodes[id].xattrs.get(name).cloned().ok_or(Errno::ENODATA)
    }
}
