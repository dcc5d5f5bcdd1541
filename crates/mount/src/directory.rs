//! Directories: open, list, close.
//!
//! An entry's offset is its cookie plus 2; 1 and 2 follow "." and "..". The shard returns many
//! entries at a time. The handle keeps those that did not fit in the kernel's buffer, up to one
//! reply of the shard.

use crate::filesystem::FileSystem;
use crate::open::OpenKind;
use crate::open_dir::{ListingState, OpenDir};
use crate::{attr, caller};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use tatami_client::lock_interruptibly;
use tatami_fuse::{CacheTimeouts, DirEntries, OpenReply, Request};
use tatami_wire::{Cred, Errno, Ino, READDIR_MAX};

/// Offsets after "." and "..".
const DOT: u64 = 1;
const DOT_DOT: u64 = 2;

fn offset_of_cookie(cookie: u64) -> u64 {
    cookie.saturating_add(DOT_DOT).min(i64::MAX as u64)
}

impl FileSystem {
    /// OPENDIR. The request to the shard follows with the first read.
    pub(crate) fn open_dir(&self, request: &Request<'_>) -> OpenReply {
        self.open_inodes.announce_open(OpenKind::Dir);
        let inode = self.open_inodes.add_user(Ino(request.header.node), false);
        let state = Mutex::new(ListingState {
            cred: caller::base_credentials(request),
            parent: None,
            buffered: VecDeque::new(),
            position: u64::MAX,
            end: false,
            plus: false,
        });
        let dir = OpenDir { inode, pid: request.header.pid, state };
        OpenReply { handle: self.dirs.insert(Arc::new(dir)), flags: 0, backing: 0 }
    }

    /// RELEASEDIR.
    pub(crate) fn release_dir(&self, handle: u64) {
        if let Some(dir) = self.dirs.remove(handle) {
            self.close_dir(&dir);
        }
    }

    /// Closes an open directory that is not in the table any more.
    pub(crate) fn close_dir(&self, dir: &OpenDir) {
        if let Some(last) = self.open_inodes.remove_user(&dir.inode, OpenKind::Dir, None)
            && last.is_kept
            && let Err(error) = self.client.release_inode(dir.inode.ino)
        {
            tracing::warn!(ino = %dir.inode.ino, %error, "the shard keeps a removed directory");
        }
    }

    /// READDIR and READDIRPLUS: fills `out` with the entries after `offset`.
    ///
    /// # Errors
    /// Those of the shard.
    pub(crate) fn read_dir(
        &self,
        handle: u64,
        offset: u64,
        plus: bool,
        out: &mut DirEntries<'_>,
    ) -> Result<(), Errno> {
        let dir = self.dirs.get(handle).ok_or(Errno::EBADF)?;
        let ino = dir.inode.ino;
        let mut p = lock_interruptibly(&dir.state)?;
        // A start from the beginning, another position or missing attributes: the buffered entries
        // do not fit.
        if offset == 0 || offset != p.position || plus && !p.plus {
            p.buffered.clear();
            p.end = false;
            p.position = offset.max(DOT_DOT);
            self.fetch_entries(&dir, &mut p, plus)?;
        }
        let dots = [(0, DOT, ino, &b"."[..]), (DOT, DOT_DOT, p.parent.unwrap_or(ino), b"..")];
        for (after, next, ino, name) in dots {
            if offset <= after && !push_entry(out, plus, ino.0, next, libc::S_IFDIR, name) {
                p.position = after;
                return Ok(());
            }
        }
        loop {
            while let Some(entry) = p.buffered.front() {
                let next = offset_of_cookie(entry.cookie);
                // With a name that the kernel must look up again, attributes have no use: the
                // answer to the lookup has them, too. They would cost the kernel an inode.
                let lent = entry.attr.as_ref().filter(|_| plus).and_then(|a| {
                    let time = self.entry_timeout(ino, &entry.name, a);
                    (!time.is_zero()).then_some((a, time))
                });
                let pushed = match lent {
                    Some((a, entry_time)) => {
                        let amended = self.with_local_state(&Cred::ROOT, a.clone());
                        let a = amended.as_ref().unwrap_or(a);
                        let times = CacheTimeouts { entry: entry_time, attr: self.attr_timeout(a) };
                        out.push_with_attr(&attr::to_fuse_attr(a), &times, next, &entry.name)
                    }
                    None => {
                        let kind = entry.kind.mode_bits();
                        push_entry(out, plus, entry.ino.0, next, kind, &entry.name)
                    }
                };
                if !pushed {
                    return Ok(());
                }
                p.position = next;
                p.buffered.pop_front();
            }
            if p.end {
                return Ok(());
            }
            self.fetch_entries(&dir, &mut p, plus)?;
        }
    }

    /// Fetches the entries after `p.at`. After a lookup in the directory, also fetches attributes,
    /// because the caller probably looks at each entry. The kernel does not always detect that.
    fn fetch_entries(&self, dir: &OpenDir, p: &mut ListingState, plus: bool) -> Result<(), Errno> {
        let after = p.position.saturating_sub(DOT_DOT);
        let plus = plus || dir.inode.was_looked_up();
        p.plus = plus;
        let listing = caller::run_with_groups(&mut p.cred, dir.pid, |cred| {
            self.client.read_dir(cred, dir.inode.ino, after, READDIR_MAX, plus)
        });
        let listing = match listing {
            // The directory was removed while it was open, so it is empty.
            Err(Errno::ENOENT | Errno::ESTALE) => {
                p.end = true;
                return Ok(());
            }
            other => other?,
        };
        p.end = listing.end || listing.entries.is_empty();
        p.parent = Some(listing.parent);
        p.buffered = listing.entries.into();
        Ok(())
    }
}

fn push_entry(
    out: &mut DirEntries<'_>,
    plus: bool,
    ino: u64,
    next: u64,
    kind: u32,
    name: &[u8],
) -> bool {
    if plus {
        out.push_without_attr(ino, next, kind, name)
    } else {
        out.push(ino, next, kind, name)
    }
}
