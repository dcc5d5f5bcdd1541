//! Holds the create of a small file back until its first byte: both are one request then.
//!
//! A client does so in a directory that it has exclusively ([`MetaOp::HoldDirectory`]): the shard
//! lets no other client read or change the directory before this one has returned it. The number of
//! the file comes from a block that the shard has allocated. The file is made by
//! [`MetaOp::CreateNumbered`] with the first write (with an object, if there are too many bytes to
//! lie beside an inode), with the close of a file without a byte, before
//! any other operation of this client that concerns it or needs its directory, and before the
//! directory is returned. So no program sees that the create was held back, except for an error of
//! the create, which the write or the close then reports. A client that dies before has made no
//! file, and a file is never seen without the bytes that were written first.

use crate::Client;
use crate::held_table::{ExclusiveDirectory, HeldFile, HeldOutcome};
use crate::names::Created;
use parking_lot::Mutex;
use std::sync::Arc;
use tatami_wire::inline::FirstBytes;
use tatami_wire::meta::{Bytes, InodeTemplate, MetaOp, MetaReply};
use tatami_wire::{Access, Attr, Cap, Cred, Errno, Ino, InodeKind, Layout, Timestamp};

/// Numbers for which the client asks at a time.
const NUMBERS: u32 = 64;
/// Permission bits of a create that is never held back: their effect depends on groups.
const SPECIAL_BITS: u16 = 0o7000;
/// Permission to write and to search, as a class of users.
const WRITE_AND_SEARCH: u16 = 0o3;

/// A file that was held back and exists now.
pub(crate) struct MadeFile {
    pub(crate) cap: Cap,
    /// Its attributes, if it was made as the caller wants it: with the first bytes beside its
    /// inode, or with an object for them.
    pub(crate) as_wanted: Option<Attr>,
}

impl Client {
    /// Makes and opens a file, as [`Client::create`], for a front end that holds delegations. The
    /// create may be held back: until [`DataFile`](crate::DataFile) has got the first byte, or its
    /// `flush` is called, or an operation of any client needs the file.
    ///
    /// # Errors
    /// As [`Client::create`]. Those of a create that is held back come from the file later.
    #[allow(clippy::too_many_arguments)] // open(2) has as many
    pub fn create_open(
        &self,
        cred: &Cred,
        parent: Ino,
        name: &[u8],
        mode: u16,
        umask: u16,
        exclusive: bool,
        access: Access,
    ) -> Result<Created, Errno> {
        if let Some(held) = self.hold_create(cred, parent, name, mode, umask, access) {
            let cap = Cap::without_signature(held.attr.ino, access);
            return Ok(Created { attr: held.attr.clone(), cap: Some(cap), created: true });
        }
        let node = InodeTemplate::File(self.new_layout());
        let made = self.create(cred, parent, name, node, mode, umask, exclusive, Some(access))?;
        if made.created && access.write && made.attr.layout.is_inline() {
            self.ask_for_directory(cred, parent);
        }
        Ok(made)
    }

    fn hold_create(
        &self,
        cred: &Cred,
        dir: Ino,
        name: &[u8],
        mode: u16,
        umask: u16,
        access: Access,
    ) -> Option<Arc<HeldFile>> {
        if self.held.is_unused() || !access.write || mode & SPECIAL_BITS != 0 {
            return None;
        }
        let layout = Layout::inline(self.new_layout().node());
        self.held.add_file(dir, |ino, have| {
            // A name that only the shard knows, or that this client is changing, is not held back.
            let mut caches = self.delegation_caches(dir).into_iter().flatten();
            let is_absent = caches.any(|known| known.knows_absent(dir, name));
            if !is_absent || !may_insert(have, cred) {
                return None;
            }
            let now = current_time();
            let attr = Attr {
                mode: mode & !umask & 0o777,
                uid: cred.uid,
                gid: cred.gid,
                atime: now,
                mtime: now,
                // As at the shard: the name is a change after the birth.
                ctime: now.advanced_to(now),
                btime: now,
                layout,
                ..Attr::with_defaults(ino, InodeKind::File)
            };
            Some(HeldFile {
                dir,
                name: Bytes::from(name),
                attr,
                cred: cred.clone(),
                mode,
                umask,
                access,
                inline_limit: have.inline_limit,
                outcome: Mutex::new(HeldOutcome::Waiting),
            })
        })
    }

    /// Asks for the directory, if this client has made several small files in it.
    fn ask_for_directory(&self, cred: &Cred, dir: Ino) {
        if !self.has_delegations() || !self.held.count_create(dir) {
            return;
        }
        let mark = self.held.mark_request();
        let Some(executor) = self.owner(dir.owner_shard()) else { return };
        match self.send_meta(cred, MetaOp::HoldDirectory { dir, count: NUMBERS }) {
            Ok(MetaReply::DirectoryHeld { first, count, inline_limit, mode, uid, gid }) => {
                let end = first.saturating_add(count.into()).min(Ino::COUNTER_MAX);
                let counters = first..end;
                let grant = ExclusiveDirectory { executor, counters, inline_limit, mode, uid, gid };
                self.held.store_grant(dir, grant, mark);
            }
            refused => {
                let waits = matches!(refused, Err(Errno::EBUSY) | Ok(MetaReply::TryLater));
                self.held.record_refusal(dir, !waits);
            }
        }
    }

    /// Returns the attributes of a file that is held back.
    pub(crate) fn held_attr(&self, ino: Ino) -> Option<Attr> {
        Some(self.held.find_file(ino)?.attr.clone())
    }

    /// Returns the attributes of a directory with the files in it that are held back. `None`: the
    /// shard does not delegate the attributes to this client, so they may change meanwhile.
    pub(crate) fn fetch_attr_with_held(&self, cred: &Cred, dir: Ino) -> Option<Attr> {
        self.cached_attr_with_held(dir).or_else(|| {
            // The reply puts the attributes into the cache. Not while the files are locked: the
            // shard may first recall the directory, and that makes the files.
            self.send_meta(cred, MetaOp::GetAttr { ino: dir }).ok()?;
            self.cached_attr_with_held(dir)
        })
    }

    fn cached_attr_with_held(&self, dir: Ino) -> Option<Attr> {
        let mut files = self.held.list_files(dir);
        // In one order, so that two threads do not wait for each other.
        files.sort_unstable_by_key(|held| held.attr.ino);
        // None of them is made until the attributes are complete.
        let outcomes: Vec<_> = files.iter().map(|held| held.outcome.lock()).collect();
        let mut attr = self.cached_attr(dir)?;
        for (held, outcome) in files.iter().zip(&outcomes) {
            if **outcome == HeldOutcome::Waiting {
                attr.add_new_file(held.attr.btime);
            }
        }
        Some(attr)
    }

    /// Whether creates in the directory are held back.
    pub(crate) fn has_held_files(&self, dir: Ino) -> bool {
        !self.held.is_unused() && !self.held.list_files(dir).is_empty()
    }

    /// Makes a file that is held back, with `first` if that can go along. Waits for another thread
    /// that is making it.
    ///
    /// # Errors
    /// Those of the create.
    pub(crate) fn make_held(&self, held: &HeldFile, first: FirstBytes) -> Result<MadeFile, Errno> {
        let mut outcome = held.outcome.lock();
        match *outcome {
            HeldOutcome::Made(cap) => return Ok(MadeFile { cap, as_wanted: None }),
            HeldOutcome::Failed(errno) => return Err(errno),
            HeldOutcome::Waiting => {}
        }
        let has_first = first != FirstBytes::None;
        let made = match self.send_held(held, first) {
            // The policy of the directory has changed since.
            Err(Errno::EXDEV) if has_first => self
                .send_held(held, FirstBytes::None)
                .map(|(cap, _)| MadeFile { cap, as_wanted: None }),
            made => made.map(|(cap, attr)| MadeFile { cap, as_wanted: has_first.then_some(attr) }),
        };
        *outcome = match &made {
            Ok(made) => HeldOutcome::Made(made.cap),
            Err(errno) => HeldOutcome::Failed(*errno),
        };
        self.held.remove_file(held);
        made
    }

    fn send_held(&self, held: &HeldFile, first: FirstBytes) -> Result<(Cap, Attr), Errno> {
        let op = MetaOp::CreateNumbered {
            parent: held.dir,
            name: held.name.clone(),
            ino: held.attr.ino,
            layout: self.new_layout(),
            mode: held.mode,
            umask: held.umask,
            first,
            open: held.access,
            time: held.attr.btime,
        };
        match self.send_meta(&held.cred, op)? {
            MetaReply::Created { attr, cap: Some(cap), .. } if attr.ino == held.attr.ino => {
                Ok((cap, attr))
            }
            _ => Err(Errno::EPROTO),
        }
    }

    /// Makes these files. Their handles report errors.
    pub(crate) fn make_all_held(&self, files: Vec<Arc<HeldFile>>) {
        for held in files {
            if let Err(error) = self.make_held(&held, FirstBytes::None) {
                tracing::warn!(dir = %held.dir, %error, "a file could not be made");
            }
        }
    }

    /// Makes the files that are held back and that an operation of this client can meet.
    pub(crate) fn settle_before(&self, op: &MetaOp) {
        if self.held.is_unused() {
            return;
        }
        match op {
            MetaOp::CreateNumbered { .. }
            | MetaOp::HoldDirectory { .. }
            | MetaOp::Inline { .. }
            | MetaOp::ReportClosed { .. } => {}
            MetaOp::Lookup { parent, name }
            | MetaOp::LookupEntry { parent, name }
            | MetaOp::Create { parent, name, .. }
            | MetaOp::CreateFilled { parent, name, .. }
            | MetaOp::Unlink { parent, name, .. } => {
                self.make_all_held(self.held.find_named(*parent, name).into_iter().collect());
            }
            // For a directory, `getattr` adds the files that are held back.
            MetaOp::GetAttr { ino } => {
                self.make_all_held(self.held.find_file(*ino).into_iter().collect());
            }
            MetaOp::GetOwnAttr { ino }
            | MetaOp::Open { ino, .. }
            | MetaOp::Commit { ino, .. }
            | MetaOp::GetXattr { ino, .. }
            | MetaOp::ListXattr { ino }
            | MetaOp::ReadInline { ino }
            | MetaOp::Readlink { ino } => self.settle_inode(*ino),
            MetaOp::ReadDir { dir, .. } | MetaOp::SumDir { dir, .. } => self.settle_inode(*dir),
            // Permissions and policies of the directory may change.
            MetaOp::SetAttr { ino, .. }
            | MetaOp::SetXattr { ino, .. }
            | MetaOp::RemoveXattr { ino, .. } => {
                self.settle_inode(*ino);
                self.make_all_held(self.held.end_directory(*ino));
            }
            // A rename or a removal may concern any directory, and a sync all names.
            _ => self.make_all_held(self.held.list_all()),
        }
    }

    /// Makes the file with that number, or the files of that directory, that are held back.
    pub(crate) fn settle_inode(&self, ino: Ino) {
        if self.held.is_unused() {
            return;
        }
        self.make_all_held(self.held.find_file(ino).into_iter().collect());
        self.make_all_held(self.held.list_files(ino));
    }
}

/// Whether the user may make entries in the directory, which has no ACL. Where group membership
/// decides that is not known here, the shard decides.
fn may_insert(dir: &ExclusiveDirectory, cred: &Cred) -> bool {
    let shift = match () {
        () if cred.is_root() => return true,
        () if cred.uid == dir.uid => 6,
        () if cred.in_group(dir.gid) => 3,
        () => 0,
    };
    dir.mode >> shift & WRITE_AND_SEARCH == WRITE_AND_SEARCH
}

fn current_time() -> Timestamp {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let since = since.unwrap_or_default();
    Timestamp { sec: since.as_secs() as i64, nsec: since.subsec_nanos() }
}
