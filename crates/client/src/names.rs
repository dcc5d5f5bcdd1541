//! Operations on names and inodes, one method each, as requests to the shard.

use crate::Client;
use crate::delegations::uptime;
use crate::peer::Retry;
use crate::ways::Owed;
use std::collections::BTreeSet;
use tatami_wire::meta::{
    Bytes, DataState, DirEntry, MetaCall, MetaOp, MetaReply, NewNode, RenameMode, XattrMode,
};
use tatami_wire::{Access, Attr, Cap, Cred, Errno, ExecutorId, Ino, Kind, SetAttr};

/// How often a name is looked at again because what it led to was removed meanwhile.
const ATTEMPTS: usize = 16;

/// A new, or found, inode.
#[derive(Clone, Debug, PartialEq)]
pub struct Created {
    /// Its attributes.
    pub attr: Attr,
    /// Access to its bytes, if it was opened.
    pub cap: Option<Cap>,
    /// False where it was there already.
    pub created: bool,
}

impl Created {
    /// Whether it is open, if it was to be.
    pub(crate) fn is_whole(&self, open: Option<Access>) -> bool {
        open.is_none() || self.cap.is_some() || self.created || self.attr.kind != Kind::File
    }
}

/// What a removal did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Removed {
    /// The inode that lost a name, if there was one.
    pub ino: Option<Ino>,
    /// That was its last name.
    pub last: bool,
}

/// Part of a directory.
#[derive(Clone, Debug, PartialEq)]
pub struct Listing {
    /// In cookie order.
    pub entries: Vec<DirEntry>,
    /// Nothing follows.
    pub end: bool,
    /// The directory's parent.
    pub parent: Ino,
}

/// Takes the one variant that answers a request; any other means that the
/// daemon is broken.
macro_rules! expect {
    ($reply:expr, $pattern:pat => $value:expr) => {
        match $reply? {
            $pattern => Ok($value),
            _ => Err(Errno::EPROTO),
        }
    };
}

fn bytes(b: &[u8]) -> Bytes {
    Bytes::from(b)
}

/// Each method sends one request. All fail with the error of the same system
/// call (see the operation in [`MetaOp`]), with `EHOSTDOWN` when the daemon
/// stays away, and with `EPROTO` when it makes no sense.
#[allow(clippy::missing_errors_doc)] // said once, above
impl Client {
    /// The attributes of entry `name` of `parent`.
    pub fn lookup(&self, cred: &Cred, parent: Ino, name: &[u8]) -> Result<Attr, Errno> {
        for _ in 0..ATTEMPTS {
            match self.meta(cred, MetaOp::Find { parent, name: bytes(name) })? {
                MetaReply::Attr(attr) => return Ok(attr),
                MetaReply::Leads(ino) => match self.getattr(cred, ino) {
                    // It was removed in between, and the name leads elsewhere or nowhere by now.
                    Err(Errno::ENOENT | Errno::ESTALE) => {}
                    found => return found,
                },
                _ => return Err(Errno::EPROTO),
            }
        }
        tracing::error!(dir = %parent, "a name leads to an inode that is not there: tatami fsck");
        Err(Errno::EIO)
    }

    /// The attributes of an inode.
    pub fn getattr(&self, cred: &Cred, ino: Ino) -> Result<Attr, Errno> {
        expect!(self.meta(cred, MetaOp::GetAttr { ino }), MetaReply::Attr(attr) => attr)
    }

    /// Changes attributes. A new size must have been given to the objects
    /// before, by [`crate::DataFile::truncate`].
    pub fn setattr(&self, cred: &Cred, ino: Ino, set: SetAttr) -> Result<Attr, Errno> {
        let cuts = set.size.is_some();
        let answer = self.meta(cred, MetaOp::SetAttr { ino, set });
        if cuts && answer.is_ok() {
            self.losses.end_cut(ino);
        }
        expect!(answer, MetaReply::Attr(attr) => attr)
    }

    /// Makes an entry and its inode; see [`MetaOp::Create`]. A file that was to be opened is noted as by
    /// [`Client::open_noted`].
    #[allow(clippy::too_many_arguments)] // open(2) has as many
    pub fn create(
        &self,
        cred: &Cred,
        parent: Ino,
        name: &[u8],
        node: NewNode,
        mode: u16,
        umask: u16,
        exclusive: bool,
        open: Option<Access>,
    ) -> Result<Created, Errno> {
        for _ in 0..ATTEMPTS {
            let (name, node) = (bytes(name), node.clone());
            let op = MetaOp::Create { parent, name, node, mode, umask, exclusive, open };
            let made = expect!(self.meta(cred, op),
                MetaReply::Created { attr, cap, created } => Created { attr, cap, created })?;
            let Some(access) = open.filter(|_| !made.is_whole(open)) else { return Ok(made) };
            // The inode is on another executor than the name.
            match self.open_noted(cred, made.attr.ino, access) {
                Ok((attr, cap)) => return Ok(Created { attr, cap: Some(cap), created: false }),
                // It was removed in between.
                Err(Errno::ENOENT | Errno::ESTALE) => {}
                Err(e) => return Err(e),
            }
        }
        Err(Errno::EIO)
    }

    /// Makes a file without a name, open.
    pub fn tmpfile(
        &self,
        cred: &Cred,
        parent: Ino,
        mode: u16,
        umask: u16,
        open: Access,
    ) -> Result<Created, Errno> {
        let op = MetaOp::Tmpfile { parent, layout: self.new_layout(), mode, umask, open };
        expect!(self.meta(cred, op),
            MetaReply::Created { attr, cap, created } => Created { attr, cap, created })
    }

    /// Checks permission and opens. For reading only, the file is gone when it has lost its last name.
    pub fn open(&self, cred: &Cred, ino: Ino, access: Access) -> Result<(Attr, Cap), Errno> {
        self.opening(cred, ino, access, false)
    }

    /// The same; the file stays until we have told by [`Client::closed`] that it is not open any more.
    pub fn open_noted(&self, cred: &Cred, ino: Ino, access: Access) -> Result<(Attr, Cap), Errno> {
        self.opening(cred, ino, access, true)
    }

    fn opening(
        &self,
        cred: &Cred,
        ino: Ino,
        access: Access,
        noted: bool,
    ) -> Result<(Attr, Cap), Errno> {
        let op = MetaOp::Open { ino, access, noted };
        expect!(self.meta(cred, op), MetaReply::Opened { attr, cap } => (attr, cap))
    }

    /// Tells what the bytes are now; with `close`, that no handle of ours can
    /// change them any more.
    pub fn commit(
        &self,
        cred: &Cred,
        ino: Ino,
        state: Option<DataState>,
        close: bool,
    ) -> Result<Attr, Errno> {
        let op = MetaOp::Commit { ino, state, close };
        let answer = self.meta(cred, op);
        if state.is_some() && answer.is_ok() {
            self.losses.forget_cuts(ino);
        }
        expect!(answer, MetaReply::Attr(attr) => attr)
    }

    /// Tells that no handle of ours can change these files any more, at most
    /// [`CLOSED_MAX`](tatami_wire::meta::CLOSED_MAX), best of one executor, and that we have nothing
    /// to tell of their bytes. Those in `empty` had no object when we closed them. On those in `read` we have no handle
    /// that only reads.
    pub fn closed(&self, inos: Vec<Ino>, empty: Vec<Ino>, read: Vec<Ino>) -> Result<(), Errno> {
        let mut left = [inos, empty, read];
        let mut retry = None;
        while let Some(first) = left.iter().find_map(|inos| inos.first()) {
            let map = self.map();
            let executor = map.owner(first.shard()).ok_or(Errno::ESTALE)?;
            let here = |ino: &mut Ino| map.owner(ino.shard()) == Some(executor);
            let told = left.each_mut().map(|inos| inos.extract_if(.., here).collect::<Vec<_>>());
            let [inos, empty, read] = told.clone();
            let op = MetaOp::Closed { inos, empty, read };
            let call = MetaCall { shard: op.target().shard(), cred: Cred::ROOT, op };
            match self.ask(executor, &call)? {
                MetaReply::Done => {}
                MetaReply::Elsewhere { .. } => {
                    left.iter_mut().zip(told).for_each(|(left, told)| left.extend(told));
                    self.learn_map_of(executor.node);
                    let retry = retry.get_or_insert_with(|| Retry::new(self.patience()));
                    if self.map().epoch == map.epoch && !retry.pause() {
                        return Err(Errno::EHOSTDOWN);
                    }
                }
                _ => return Err(Errno::EPROTO),
            }
        }
        Ok(())
    }

    /// Makes all that was acknowledged of names survive a power cut, on all executors.
    pub fn sync(&self) -> Result<(), Errno> {
        self.sync_names(|| self.everywhere())
    }

    /// Makes an inode, with the names by which we know it and the directories on the way to it, survive a power cut. Only those
    /// executors are asked that may have to write something out for that.
    pub fn sync_inode(&self, ino: Ino) -> Result<(), Errno> {
        let since = uptime();
        let mut inos = Vec::new();
        self.sync_names(|| {
            let Some(mut owed) = self.ways.owed(ino) else { return self.everywhere() };
            owed.executors.extend(self.owner(ino.shard()));
            inos.clone_from(&owed.inos);
            owed
        })?;
        self.ways.synced(&inos, since);
        Ok(())
    }

    /// As [`Client::sync_inode`], of a directory and all names that were made, seen or removed in it through this client.
    pub fn sync_directory(&self, dir: Ino) -> Result<(), Errno> {
        let since = uptime();
        let mut inos = Vec::new();
        self.sync_names(|| {
            let Some(mut owed) = self.ways.owed_in(dir) else { return self.everywhere() };
            owed.executors.extend(self.owner(dir.shard()));
            inos.clone_from(&owed.inos);
            owed
        })?;
        self.ways.synced(&inos, since);
        self.ways.contents_synced(dir, since);
        Ok(())
    }

    /// All that serve shards, for no inode in particular.
    fn everywhere(&self) -> Owed {
        let executors = self.map().leads().into_iter().map(|(_, executor)| executor).collect();
        Owed { inos: Vec::new(), executors }
    }

    /// Has executors sync, and those that these name; `owed` tells by the map that we have.
    fn sync_names(&self, mut owed: impl FnMut() -> Owed) -> Result<(), Errno> {
        let mut retry = None;
        loop {
            let ours = self.map().epoch;
            let Owed { inos, executors: mut left } = owed();
            let (mut asked, mut newer) = (BTreeSet::<ExecutorId>::new(), None);
            while !left.is_empty() {
                asked.extend(&left);
                let op = MetaOp::SyncNames { inos: inos.clone() };
                for (executor, reply) in self.meta_of(std::mem::take(&mut left), &op)? {
                    let MetaReply::NamesSynced { epoch, also } = reply else {
                        return Err(Errno::EPROTO);
                    };
                    // Shards have moved, maybe to an executor that was not asked.
                    newer = (epoch > ours).then_some(executor.node).or(newer);
                    left.extend(also.into_iter().filter(|other| !asked.contains(other)));
                }
            }
            match newer {
                None => return Ok(()),
                Some(node) => self.learn_map_of(node),
            }
            // What it knows is not on its disk yet.
            if self.map().epoch == ours
                && !retry.get_or_insert_with(|| Retry::new(self.patience())).pause()
            {
                return Err(Errno::EHOSTDOWN);
            }
        }
    }

    /// Removes an entry that is not a directory.
    pub fn unlink(
        &self,
        cred: &Cred,
        parent: Ino,
        name: &[u8],
        keep: bool,
    ) -> Result<Removed, Errno> {
        let op = MetaOp::Unlink { parent, name: bytes(name), keep };
        self.removal(cred, op)
    }

    /// Removes an empty directory.
    pub fn rmdir(
        &self,
        cred: &Cred,
        parent: Ino,
        name: &[u8],
        keep: bool,
    ) -> Result<Removed, Errno> {
        let op = MetaOp::Rmdir { parent, name: bytes(name), keep };
        self.removal(cred, op)
    }

    fn removal(&self, cred: &Cred, op: MetaOp) -> Result<Removed, Errno> {
        expect!(self.meta(cred, op), MetaReply::Removed { ino, last } => Removed { ino, last })
    }

    /// Moves an entry.
    #[allow(clippy::too_many_arguments)] // renameat2(2) has as many
    pub fn rename(
        &self,
        cred: &Cred,
        parent: Ino,
        name: &[u8],
        new_parent: Ino,
        new_name: &[u8],
        mode: RenameMode,
        keep: bool,
    ) -> Result<Removed, Errno> {
        let (name, new_name) = (bytes(name), bytes(new_name));
        let op = MetaOp::Rename { parent, name, new_parent, new_name, mode, keep };
        expect!(self.meta(cred, op), MetaReply::Renamed { ino, last, .. } => Removed { ino, last })
    }

    /// Gives an inode one more name.
    pub fn link(&self, cred: &Cred, ino: Ino, parent: Ino, name: &[u8]) -> Result<Attr, Errno> {
        let op = MetaOp::Link { ino, parent, name: bytes(name) };
        expect!(self.meta(cred, op), MetaReply::Attr(attr) => attr)
    }

    /// The target of a symbolic link.
    pub fn readlink(&self, cred: &Cred, ino: Ino) -> Result<Vec<u8>, Errno> {
        expect!(self.meta(cred, MetaOp::Readlink { ino }), MetaReply::Bytes(b) => b.into_vec())
    }

    /// Entries of a directory, those with a cookie above `after`. With `plus` they have attributes, but for
    /// those whose inode is on another executor: look them up.
    pub fn read_dir(
        &self,
        cred: &Cred,
        dir: Ino,
        after: u64,
        limit: u32,
        plus: bool,
    ) -> Result<Listing, Errno> {
        let (mut listing, mut after) = self.page(cred, dir, after, limit, plus)?;
        // What follows may lie in another partition.
        while !listing.end && listing.entries.len() < limit as usize {
            let left = limit - listing.entries.len() as u32;
            let (more, upto) = self.page(cred, dir, after, left, plus)?;
            listing.entries.extend(more.entries);
            (listing.end, after) = (more.end, upto);
        }
        Ok(listing)
    }

    /// What one partition tells, and where to go on.
    fn page(
        &self,
        cred: &Cred,
        dir: Ino,
        after: u64,
        limit: u32,
        plus: bool,
    ) -> Result<(Listing, u64), Errno> {
        let op = MetaOp::ReadDir { dir, after, limit, plus };
        let MetaReply::Entries { entries, end, parent, upto } = self.meta(cred, op)? else {
            return Err(Errno::EPROTO);
        };
        // Forward, or a broken shard would be asked for ever.
        if !end && upto <= after {
            return Err(Errno::EPROTO);
        }
        let parent = self.above(dir, parent);
        Ok((Listing { entries, end, parent }, upto))
    }

    /// The value of an extended attribute.
    pub fn get_xattr(&self, cred: &Cred, ino: Ino, name: &[u8]) -> Result<Vec<u8>, Errno> {
        let op = MetaOp::GetXattr { ino, name: bytes(name) };
        expect!(self.meta(cred, op), MetaReply::Bytes(b) => b.into_vec())
    }

    /// Sets an extended attribute.
    pub fn set_xattr(
        &self,
        cred: &Cred,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<(), Errno> {
        let op = MetaOp::SetXattr { ino, name: bytes(name), value: bytes(value), mode };
        expect!(self.meta(cred, op), MetaReply::Done => ())
    }

    /// Names of all extended attributes, each followed by a zero byte.
    pub fn list_xattr(&self, cred: &Cred, ino: Ino) -> Result<Vec<u8>, Errno> {
        expect!(self.meta(cred, MetaOp::ListXattr { ino }), MetaReply::Bytes(b) => b.into_vec())
    }

    /// Removes an extended attribute.
    pub fn remove_xattr(&self, cred: &Cred, ino: Ino, name: &[u8]) -> Result<(), Errno> {
        let op = MetaOp::RemoveXattr { ino, name: bytes(name) };
        expect!(self.meta(cred, op), MetaReply::Done => ())
    }

    /// We have no handle left on an inode that was kept for us.
    pub fn release(&self, ino: Ino) -> Result<(), Errno> {
        expect!(self.meta(&Cred::ROOT, MetaOp::Release { ino }), MetaReply::Done => ())
    }
}
