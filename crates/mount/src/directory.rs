//! Directories: open, list, close.
//!
//! An entry's offset is its cookie plus 2; 1 and 2 follow "." and "..". The shard returns many
//! entries at a time. The handle keeps those that did not fit in the kernel's buffer, up to one
//! reply of the shard.

use crate::filesystem::FileSystem;
use crate::open::{OpenInode, Sort};
use crate::{attr, caller};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use tatami_client::lock_patiently;
use tatami_fuse::{DirEntries, Opened, Request};
use tatami_wire::meta::DirEntry;
use tatami_wire::{Cred, Errno, Ino, READDIR_MAX};

/// Offsets after "." and "..".
const DOT: u64 = 1;
const DOT_DOT: u64 = 2;

/// An open directory.
pub(crate) struct OpenDir {
    inode: Arc<OpenInode>,
    /// The thread that opened the directory. Its groups are read from `/proc`.
    pid: u32,
    state: Mutex<Progress>,
}

struct Progress {
    cred: Cred,
    parent: Option<Ino>,
    /// Entries after offset `at`, in order.
    ahead: VecDeque<DirEntry>,
    at: u64,
    /// `ahead` is the end of the listing.
    end: bool,
    /// `ahead` was requested with attributes.
    plus: bool,
}

fn offset_of(cookie: u64) -> u64 {
    cookie.saturating_add(DOT_DOT).min(i64::MAX as u64)
}

impl FileSystem {
    /// OPENDIR. The request to the shard follows with the first read.
    pub(crate) fn open_dir(&self, request: &Request<'_>) -> Opened {
        self.open.announce(Sort::Dir);
        let inode = self.open.enter(Ino(request.header.node), false);
        let state = Mutex::new(Progress {
            cred: caller::plain(request),
            parent: None,
            ahead: VecDeque::new(),
            at: u64::MAX,
            end: false,
            plus: false,
        });
        let dir = OpenDir { inode, pid: request.header.pid, state };
        Opened { handle: self.dirs.insert(Arc::new(dir)), flags: 0, backing: 0 }
    }

    /// RELEASEDIR.
    pub(crate) fn release_dir(&self, handle: u64) {
        if let Some(dir) = self.dirs.remove(handle) {
            self.close_dir(&dir);
        }
    }

    /// Closes an open directory that is not in the table any more.
    pub(crate) fn close_dir(&self, dir: &OpenDir) {
        if let Some(last) = self.open.leave(&dir.inode, Sort::Dir, None)
            && last.kept
            && let Err(error) = self.client.release(dir.inode.ino)
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
        let mut p = lock_patiently(&dir.state)?;
        // A start from the beginning, another position or missing attributes: the buffered entries
        // do not fit.
        if offset == 0 || offset != p.at || plus && !p.plus {
            p.ahead.clear();
            p.end = false;
            p.at = offset.max(DOT_DOT);
            self.fetch(&dir, &mut p, plus)?;
        }
        let dots = [(0, DOT, ino, &b"."[..]), (DOT, DOT_DOT, p.parent.unwrap_or(ino), b"..")];
        for (after, next, ino, name) in dots {
            if offset <= after && !push_bare(out, plus, ino.0, next, libc::S_IFDIR, name) {
                p.at = after;
                return Ok(());
            }
        }
        loop {
            while let Some(entry) = p.ahead.front() {
                let next = offset_of(entry.cookie);
                let pushed = match (&entry.attr, plus) {
                    (Some(a), true) => {
                        let amended = self.amended(&Cred::ROOT, a.clone());
                        let a = amended.as_ref().unwrap_or(a);
                        let times = self.times(ino, &entry.name, a);
                        out.push_plus(&attr::to_kernel(a), &times, next, &entry.name)
                    }
                    _ => {
                        let kind = entry.kind.mode_bits();
                        push_bare(out, plus, entry.ino.0, next, kind, &entry.name)
                    }
                };
                if !pushed {
                    return Ok(());
                }
                p.at = next;
                p.ahead.pop_front();
            }
            if p.end {
                return Ok(());
            }
            self.fetch(&dir, &mut p, plus)?;
        }
    }

    /// Fetches the entries after `p.at`. After a lookup in the directory, also fetches attributes,
    /// because the caller probably looks at each entry. The kernel does not always detect that.
    fn fetch(&self, dir: &OpenDir, p: &mut Progress, plus: bool) -> Result<(), Errno> {
        let after = p.at.saturating_sub(DOT_DOT);
        let plus = plus || dir.inode.was_looked_up();
        p.plus = plus;
        let listing = caller::run_as(&mut p.cred, dir.pid, |cred| {
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
        p.ahead = listing.entries.into();
        Ok(())
    }
}

fn push_bare(
    out: &mut DirEntries<'_>,
    plus: bool,
    ino: u64,
    next: u64,
    kind: u32,
    name: &[u8],
) -> bool {
    if plus { out.push_bare(ino, next, kind, name) } else { out.push(ino, next, kind, name) }
}
