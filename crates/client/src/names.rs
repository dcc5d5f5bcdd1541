//! Operations on names and inodes, one method each, as requests to the shard.

use crate::Client;
use crate::lent_names::KernelName;
use crate::retry::Retry;
use crate::unsynced::SyncTargets;
use crate::uptime::uptime;
use std::collections::BTreeSet;
use tatami_wire::meta::{
    Bytes, DataState, DirEntry, InodeTemplate, MetaCall, MetaOp, MetaReply, RenameMode, XattrMode,
};
use tatami_wire::{Access, Attr, Cap, Cred, Errno, ExecutorId, Ino, InodeKind, SetAttr};

/// How often a name is looked up again because its inode was removed meanwhile.
const ATTEMPTS: usize = 16;

/// A new inode, or one that was there already.
#[derive(Clone, Debug, PartialEq)]
pub struct Created {
    /// Its attributes.
    pub attr: Attr,
    /// Access to its bytes, if it was opened.
    pub cap: Option<Cap>,
    /// False where the inode was there already.
    pub created: bool,
}

impl Created {
    /// Returns whether the inode is open, if the caller wanted it open.
    pub(crate) fn is_complete(&self, open: Option<Access>) -> bool {
        open.is_none() || self.cap.is_some() || self.created || self.attr.kind != InodeKind::File
    }
}

/// The effect of a removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Removed {
    /// The inode that lost a name, if there was one.
    pub ino: Option<Ino>,
    /// Whether that was its last name.
    pub last: bool,
}

/// A part of a directory.
#[derive(Clone, Debug, PartialEq)]
pub struct DirListing {
    /// In cookie order.
    pub entries: Vec<DirEntry>,
    /// Whether this is the last part.
    pub end: bool,
    /// The directory's parent.
    pub parent: Ino,
}

/// Takes the one variant that answers a request; any other means that the daemon is broken.
macro_rules! expect {
    ($reply:expr, $pattern:pat => $value:expr) => {
        match $reply? {
            $pattern => Ok($value),
            _ => Err(Errno::EPROTO),
        }
    };
}

fn to_bytes(b: &[u8]) -> Bytes {
    Bytes::from(b)
}

/// Each method sends one request. All fail with the error of the same system call (see the
/// operation in [`MetaOp`]), with `EHOSTDOWN` when the daemon stays away, and with `EPROTO` when
/// its reply makes no sense.
#[allow(clippy::missing_errors_doc)] // said once, above
impl Client {
    /// Returns the attributes of entry `name` of `parent`.
    pub fn lookup(&self, cred: &Cred, parent: Ino, name: &[u8]) -> Result<Attr, Errno> {
        for _ in 0..ATTEMPTS {
            match self.send_meta(cred, MetaOp::LookupEntry { parent, name: to_bytes(name) }) {
                // Its size and times change with creates that are held back.
                Ok(MetaReply::Attr(attr)) if self.has_held_files(attr.ino) => {
                    return self.getattr(cred, attr.ino);
                }
                Ok(MetaReply::Attr(attr)) => return Ok(attr),
                Ok(MetaReply::Referral(ino)) => match self.getattr(cred, ino) {
                    // The inode was removed in between. The name now leads to another inode or to
                    // none.
                    Err(Errno::ENOENT | Errno::ESTALE) => {}
                    found => return found,
                },
                Ok(_) => return Err(Errno::EPROTO),
                Err(error) => {
                    if error == Errno::ENOENT {
                        self.fetch_names_if_useful(self.partitions.partition_of_name(parent, name));
                    }
                    return Err(error);
                }
            }
        }
        tracing::error!(dir = %parent, "a name leads to an inode that is not there: tatami fsck");
        Err(Errno::EIO)
    }

    /// Returns the attributes of an inode. Size and times of a directory, unless it is small, may
    /// be up to a second old, and its link count 1, if others change it and this client asks for
    /// them often: each walk through it would take a request, and several if it is split.
    pub fn getattr(&self, cred: &Cred, ino: Ino) -> Result<Attr, Errno> {
        if let Some(attr) = self.held_attr(ino) {
            return Ok(attr);
        }
        if self.has_held_files(ino) {
            if let Some(attr) = self.fetch_attr_with_held(cred, ino) {
                return Ok(attr);
            }
            self.settle_inode(ino);
        }
        if let Some(attr) = self.cached_attr(ino) {
            if attr.kind == InodeKind::Dir {
                self.partitions.forget_sum(ino);
            }
            return Ok(attr);
        }
        let sent = uptime();
        if let Some(sum) = self.partitions.recent_sum(ino, sent) {
            // Mode, owner and the existence of the directory are never old.
            if let Some(own) = self.cached_busy_path(ino) {
                return Ok(own.with_counts_of(&sum));
            }
            return match self.send_meta(cred, MetaOp::GetOwnAttr { ino })? {
                MetaReply::Attr(attr) => Ok(attr),
                MetaReply::FirstPartition(own) => Ok(own.with_counts_of(&sum)),
                _ => Err(Errno::EPROTO),
            };
        }
        let attr =
            expect!(self.send_meta(cred, MetaOp::GetAttr { ino }), MetaReply::Attr(attr) => attr)?;
        // A directory that is delegated now is asked for because of changes by this client.
        if attr.kind == InodeKind::Dir && self.cached_attr(ino).is_none() {
            self.partitions.record_sum(&attr, sent);
        }
        Ok(attr)
    }

    /// Changes attributes. Before a new size, the caller must have resized the objects, with
    /// [`crate::DataFile::truncate`].
    pub fn setattr(&self, cred: &Cred, ino: Ino, set: SetAttr) -> Result<Attr, Errno> {
        let (cuts, commits) = (set.size.is_some(), set.written.is_some());
        let answer = self.send_meta(cred, MetaOp::SetAttr { ino, set });
        if commits && answer.is_ok() {
            self.loss_tracker.forget_cuts(ino);
        }
        // Only a change that took effect ends the truncation: after an error the shard may still
        // have the old size.
        if cuts && answer.is_ok() {
            self.loss_tracker.end_cut(ino);
        }
        expect!(answer, MetaReply::Attr(attr) => attr)
    }

    /// Makes an entry and its inode; see [`MetaOp::Create`]. A file that is to be open is noted as
    /// by [`Client::open_noted`].
    #[allow(clippy::too_many_arguments)] // open(2) has as many
    pub fn create(
        &self,
        cred: &Cred,
        parent: Ino,
        name: &[u8],
        node: InodeTemplate,
        mode: u16,
        umask: u16,
        exclusive: bool,
        open: Option<Access>,
    ) -> Result<Created, Errno> {
        for _ in 0..ATTEMPTS {
            let (name, node) = (to_bytes(name), node.clone());
            let op = MetaOp::Create { parent, name, node, mode, umask, exclusive, open };
            let made = expect!(self.send_meta(cred, op),
                MetaReply::Created { attr, cap, created } => Created { attr, cap, created })?;
            let Some(access) = open.filter(|_| !made.is_complete(open)) else { return Ok(made) };
            // The inode is on another executor than the name, so it is opened by a second request.
            match self.open_noted(cred, made.attr.ino, access) {
                Ok((attr, cap)) => return Ok(Created { attr, cap: Some(cap), created: false }),
                // It was removed in between.
                Err(Errno::ENOENT | Errno::ESTALE) => {}
                Err(e) => return Err(e),
            }
        }
        Err(Errno::EIO)
    }

    /// Makes an open file without a name.
    pub fn tmpfile(
        &self,
        cred: &Cred,
        parent: Ino,
        mode: u16,
        umask: u16,
        open: Access,
    ) -> Result<Created, Errno> {
        let op = MetaOp::Tmpfile { parent, layout: self.new_layout(), mode, umask, open };
        expect!(self.send_meta(cred, op),
            MetaReply::Created { attr, cap, created } => Created { attr, cap, created })
    }

    /// Checks permission and opens. A file that is open for reading only is removed when it loses
    /// its last name.
    pub fn open(&self, cred: &Cred, ino: Ino, access: Access) -> Result<(Attr, Cap), Errno> {
        self.open_inode(cred, ino, access, false)
    }

    /// As [`Client::open`]; the file stays until this client reports with [`Client::report_closed`]
    /// that it is not open any more.
    pub fn open_noted(&self, cred: &Cred, ino: Ino, access: Access) -> Result<(Attr, Cap), Errno> {
        self.open_inode(cred, ino, access, true)
    }

    fn open_inode(
        &self,
        cred: &Cred,
        ino: Ino,
        access: Access,
        noted: bool,
    ) -> Result<(Attr, Cap), Errno> {
        let op = MetaOp::Open { ino, access, registered: noted };
        match self.send_meta(cred, op)? {
            MetaReply::Opened { attr, cap } => Ok((attr, cap)),
            MetaReply::OpenedInline { attr, cap, bytes } => {
                self.inline_cache.store_copy(&attr, bytes);
                Ok((*attr, cap))
            }
            _ => Err(Errno::EPROTO),
        }
    }

    /// Reports the present state of the bytes. With `close`, also that no handle of this client can
    /// change them any more.
    pub fn commit(
        &self,
        cred: &Cred,
        ino: Ino,
        state: Option<DataState>,
        close: bool,
    ) -> Result<Attr, Errno> {
        let op = MetaOp::Commit { ino, state, close };
        let answer = self.send_meta(cred, op);
        if state.is_some() && answer.is_ok() {
            self.loss_tracker.forget_cuts(ino);
        }
        expect!(answer, MetaReply::Attr(attr) => attr)
    }

    /// Reports that no handle of this client can change these files any more, and that the client
    /// has no new state of their bytes. At most
    /// [`CLOSED_MAX`](tatami_wire::meta::REPORT_CLOSED_MAX) files, best of one executor. Those in
    /// `empty` had no object when the client closed them. On those in `read` the client has no
    /// read-only handle.
    pub fn report_closed(
        &self,
        inos: Vec<Ino>,
        empty: Vec<Ino>,
        read: Vec<Ino>,
    ) -> Result<(), Errno> {
        let mut left = [inos, empty, read];
        let mut retry = None;
        while let Some(first) = left.iter().find_map(|inos| inos.first()) {
            let map = self.map();
            let executor = map.owner(first.owner_shard()).ok_or(Errno::ESTALE)?;
            let here = |ino: &mut Ino| map.owner(ino.owner_shard()) == Some(executor);
            let sent = left.each_mut().map(|inos| inos.extract_if(.., here).collect::<Vec<_>>());
            let [inos, empty, read] = sent.clone();
            let op = MetaOp::ReportClosed { inos, empty, read };
            let call = MetaCall { shard: op.target_inode().owner_shard(), cred: Cred::ROOT, op };
            match self.send_to_executor(executor, &call)? {
                MetaReply::Done => {}
                MetaReply::WrongShard { .. } => {
                    // The executor has done nothing: its shards differ from those in the map of
                    // this client. The files stay in the list, and a newer map sorts them again.
                    left.iter_mut().zip(sent).for_each(|(left, sent)| left.extend(sent));
                    self.fetch_map_from(executor.node);
                    let retry = retry.get_or_insert_with(|| Retry::new(self.operation_timeout()));
                    if self.map().epoch == map.epoch && !retry.pause() {
                        return Err(Errno::EHOSTDOWN);
                    }
                }
                _ => return Err(Errno::EPROTO),
            }
        }
        Ok(())
    }

    /// Makes all acknowledged changes of names survive a power cut, on all executors.
    pub fn sync(&self) -> Result<(), Errno> {
        self.sync_names(|| self.target_all_executors())
    }

    /// Makes an inode survive a power cut, with the names by which the client knows it and the
    /// directories above. Only executors that may still have to write something are asked.
    pub fn sync_inode(&self, ino: Ino) -> Result<(), Errno> {
        // Before the requests: names that change later are not covered by this sync.
        let since = uptime();
        let mut inos = Vec::new();
        self.sync_names(|| {
            let Some(mut owed) = self.unsynced_names.sync_targets(ino) else {
                return self.target_all_executors();
            };
            owed.executors.extend(self.owner(ino.owner_shard()));
            inos.clone_from(&owed.inos);
            owed
        })?;
        self.unsynced_names.record_synced(&inos, since);
        Ok(())
    }

    /// As [`Client::sync_inode`], for a directory and all names that this client has made, seen or
    /// removed in it.
    pub fn sync_directory(&self, dir: Ino) -> Result<(), Errno> {
        // An fsync of a busy directory ends the use of old counts of it.
        self.partitions.forget_sum(dir);
        self.revoke_attr_timeout(dir);
        let since = uptime();
        let mut inos = Vec::new();
        self.sync_names(|| {
            let Some(mut owed) = self.unsynced_names.directory_sync_targets(dir) else {
                return self.target_all_executors();
            };
            owed.executors.extend(self.owner(dir.owner_shard()));
            inos.clone_from(&owed.inos);
            owed
        })?;
        self.unsynced_names.record_synced(&inos, since);
        self.unsynced_names.record_contents_synced(dir, since);
        Ok(())
    }

    /// Returns all executors that serve shards, for no inode in particular.
    fn target_all_executors(&self) -> SyncTargets {
        let executors =
            self.map().first_shards().into_iter().map(|(_, executor)| executor).collect();
        SyncTargets { inos: Vec::new(), executors }
    }

    /// Makes executors sync, and those that they name in turn; `owed` returns the first ones by the
    /// map of this client.
    pub(crate) fn sync_names(&self, mut owed: impl FnMut() -> SyncTargets) -> Result<(), Errno> {
        let mut retry = None;
        loop {
            let ours = self.map().epoch;
            let SyncTargets { inos, executors: mut left } = owed();
            // Each executor is asked once: transactions that involve several name each other.
            let (mut asked, mut newer) = (BTreeSet::<ExecutorId>::new(), None);
            while !left.is_empty() {
                asked.extend(&left);
                let op = MetaOp::SyncNames { inos: inos.clone() };
                for (executor, reply) in self.request_executors(std::mem::take(&mut left), &op)? {
                    let MetaReply::NamesSynced { epoch, unsynced: also } = reply else {
                        return Err(Errno::EPROTO);
                    };
                    // Shards have moved since, perhaps to an executor that was not asked. Then
                    // everything is asked again by the newer map.
                    newer = (epoch > ours).then_some(executor.node).or(newer);
                    left.extend(also.into_iter().filter(|other| !asked.contains(other)));
                }
            }
            match newer {
                None => return Ok(()),
                Some(node) => self.fetch_map_from(node),
            }
            // The node knows of the new map, but does not give it out before it is on its disk.
            if self.map().epoch == ours
                && !retry.get_or_insert_with(|| Retry::new(self.operation_timeout())).pause()
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
        let op = MetaOp::Unlink { parent, name: to_bytes(name), keep };
        self.remove_entry(cred, op)
    }

    /// Removes an empty directory.
    pub fn rmdir(
        &self,
        cred: &Cred,
        parent: Ino,
        name: &[u8],
        keep: bool,
    ) -> Result<Removed, Errno> {
        let removed = [KernelName { dir: parent, name: name.into() }];
        let op = MetaOp::Rmdir { parent, name: to_bytes(name), keep };
        self.run_change(&removed, || self.remove_entry(cred, op))
    }

    fn remove_entry(&self, cred: &Cred, op: MetaOp) -> Result<Removed, Errno> {
        expect!(self.send_meta(cred, op), MetaReply::Removed { ino, last } => Removed { ino, last })
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
        let places = [(parent, name), (new_parent, new_name)];
        let places = places.map(|(dir, name)| KernelName { dir, name: name.into() });
        let (name, new_name) = (to_bytes(name), to_bytes(new_name));
        let op = MetaOp::Rename { parent, name, new_parent, new_name, mode, keep };
        let mark = || places.iter().for_each(|place| self.mark_moved(place));
        // Before the kernel moves its own entries. The second time for names that it was lent while
        // the request was under way.
        mark();
        let renamed = self.run_change(&places, || self.send_meta(cred, op));
        mark();
        expect!(renamed, MetaReply::Renamed { ino, last, .. } => Removed { ino, last })
    }

    /// Gives an inode one more name.
    pub fn link(&self, cred: &Cred, ino: Ino, parent: Ino, name: &[u8]) -> Result<Attr, Errno> {
        let op = MetaOp::Link { ino, parent, name: to_bytes(name) };
        expect!(self.send_meta(cred, op), MetaReply::Attr(attr) => attr)
    }

    /// Returns the target of a symbolic link.
    pub fn readlink(&self, cred: &Cred, ino: Ino) -> Result<Vec<u8>, Errno> {
        expect!(self.send_meta(cred, MetaOp::Readlink { ino }), MetaReply::Bytes(b) => b.into_vec())
    }

    /// Returns entries of a directory, those with a cookie above `after`. With `plus` they have
    /// attributes, except those whose inode is on another executor: these need a lookup.
    pub fn read_dir(
        &self,
        cred: &Cred,
        dir: Ino,
        after: u64,
        limit: u32,
        plus: bool,
    ) -> Result<DirListing, Errno> {
        let (mut listing, mut after) = self.read_page(cred, dir, after, limit, plus)?;
        // The next entries may be in another partition.
        while !listing.end && listing.entries.len() < limit as usize {
            let left = limit - listing.entries.len() as u32;
            let (more, upto) = self.read_page(cred, dir, after, left, plus)?;
            listing.entries.extend(more.entries);
            (listing.end, after) = (more.end, upto);
        }
        Ok(listing)
    }

    /// Returns the entries of one partition, and the cookie to go on from.
    fn read_page(
        &self,
        cred: &Cred,
        dir: Ino,
        after: u64,
        limit: u32,
        plus: bool,
    ) -> Result<(DirListing, u64), Errno> {
        let op = MetaOp::ReadDir { dir, after, limit, plus };
        let MetaReply::Entries { mut entries, end, parent, upto } = self.send_meta(cred, op)?
        else {
            return Err(Errno::EPROTO);
        };
        for entry in &mut entries {
            if entry.attr.is_some() && self.has_held_files(entry.ino) {
                entry.attr = self.getattr(cred, entry.ino).ok();
            }
        }
        // The cookie must advance: otherwise a broken shard would be asked for ever.
        if !end && upto <= after {
            return Err(Errno::EPROTO);
        }
        let parent = self.resolve_parent_inode(dir, parent);
        Ok((DirListing { entries, end, parent }, upto))
    }

    /// Returns the value of an extended attribute.
    pub fn get_xattr(&self, cred: &Cred, ino: Ino, name: &[u8]) -> Result<Vec<u8>, Errno> {
        let op = MetaOp::GetXattr { ino, name: to_bytes(name) };
        expect!(self.send_meta(cred, op), MetaReply::Bytes(b) => b.into_vec())
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
        let op = MetaOp::SetXattr { ino, name: to_bytes(name), value: to_bytes(value), mode };
        expect!(self.send_meta(cred, op), MetaReply::Done => ())
    }

    /// Returns the names of all extended attributes, each followed by a zero byte.
    pub fn list_xattr(&self, cred: &Cred, ino: Ino) -> Result<Vec<u8>, Errno> {
        expect!(self.send_meta(cred, MetaOp::ListXattr { ino }), MetaReply::Bytes(b) => b.into_vec())
    }

    /// Removes an extended attribute.
    pub fn remove_xattr(&self, cred: &Cred, ino: Ino, name: &[u8]) -> Result<(), Errno> {
        let op = MetaOp::RemoveXattr { ino, name: to_bytes(name) };
        expect!(self.send_meta(cred, op), MetaReply::Done => ())
    }

    /// Reports that this client has no handle left on an open-unlinked inode.
    pub fn release_inode(&self, ino: Ino) -> Result<(), Errno> {
        expect!(self.send_meta(&Cred::ROOT, MetaOp::Release { ino }), MetaReply::Done => ())
    }
}
