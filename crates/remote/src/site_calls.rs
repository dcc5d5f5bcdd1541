//! Calls on names and files of a site that no program has open: for commands that list, copy and
//! remove.

use crate::remote_message::{
    RemoteCall, RemoteReply, SiteAttr, SiteChange, SiteEntry, SiteRemoval,
};
use crate::remote_session::{KnownFile, RemoteError, RemoteSession};
use rustix::io::Errno;
use tatami_wire::meta::Bytes;

/// How often a listing is begun anew after a broken link.
const LISTINGS_MAX: usize = 4;
/// Most entries of one directory.
const ENTRIES_MAX: usize = 1 << 26;

fn bytes_of(path: &[u8]) -> Bytes {
    path.to_vec().into()
}

/// Whether a name can be that of an entry. One that could lead elsewhere is refused: a copy makes a
/// file of that name here.
fn is_entry_name(name: &[u8]) -> bool {
    !matches!(name, b"" | b"." | b"..") && !name.iter().any(|b| matches!(b, b'/' | 0))
}

impl RemoteSession {
    /// Returns the attributes of a path of any kind, with an empty name.
    ///
    /// # Errors
    /// As for stat(2), and those of the link.
    pub fn look_at(&self, path: &[u8], follow: bool) -> Result<SiteEntry, RemoteError> {
        match self.call(&RemoteCall::LookAt { path: bytes_of(path), follow })? {
            RemoteReply::Entry(entry) => Ok(entry),
            _ => Err(self.odd()),
        }
    }

    /// Returns the entries of a directory, in no order.
    ///
    /// # Errors
    /// As for opendir(3) and stat(2), and those of the link.
    pub fn list_dir(&self, path: &[u8]) -> Result<Vec<SiteEntry>, RemoteError> {
        for _ in 1..LISTINGS_MAX {
            match self.list_once(path) {
                Err(error) if error.errno == Errno::STALE => {}
                listed => return listed,
            }
        }
        self.list_once(path)
    }

    fn list_once(&self, path: &[u8]) -> Result<Vec<SiteEntry>, RemoteError> {
        let (listing, ticket) = self.begin_listing(path)?;
        self.read_pieces(path, listing, ticket)
    }

    /// Returns the entries of a directory whose listing has begun.
    ///
    /// # Errors
    /// As for [`RemoteSession::list_dir`].
    pub fn list_dir_begun(
        &self,
        path: &[u8],
        (listing, ticket): (u64, u64),
    ) -> Result<Vec<SiteEntry>, RemoteError> {
        match self.read_pieces(path, listing, ticket) {
            // The I/O process there keeps a bounded number of listings.
            Err(error) if error.errno == Errno::STALE => self.list_dir(path),
            listed => listed,
        }
    }

    fn read_pieces(
        &self,
        path: &[u8],
        listing: u64,
        first: u64,
    ) -> Result<Vec<SiteEntry>, RemoteError> {
        let (mut ticket, mut all) = (first, Vec::new());
        for piece in 1.. {
            match self.await_piece(ticket)? {
                RemoteReply::Entries { entries, is_last } => {
                    if entries.iter().any(|entry| !is_entry_name(&entry.name))
                        || all.len() + entries.len() > ENTRIES_MAX
                        || entries.is_empty() && !is_last
                    {
                        return Err(self.odd());
                    }
                    all.extend(entries);
                    if is_last {
                        break;
                    }
                }
                _ => return Err(self.odd()),
            }
            ticket = self.begin_piece(path, listing, piece)?;
        }
        Ok(all)
    }

    /// Makes a directory. With `is_exact` the umask there does not count.
    ///
    /// # Errors
    /// As for mkdir(2), and those of the link.
    pub fn make_dir(&self, path: &[u8], mode: u32, is_exact: bool) -> Result<(), RemoteError> {
        self.done(&RemoteCall::MakeDir { path: bytes_of(path), mode, is_exact })
    }

    /// Makes a symbolic link.
    ///
    /// # Errors
    /// As for symlink(2), and those of the link.
    pub fn make_link(&self, path: &[u8], target: &[u8]) -> Result<(), RemoteError> {
        self.done(&RemoteCall::MakeLink { path: bytes_of(path), target: bytes_of(target) })
    }

    /// Changes the attributes of a path.
    ///
    /// # Errors
    /// As for chmod(2) and utimensat(2), and those of the link.
    pub fn change_attrs(&self, path: &[u8], change: SiteChange) -> Result<(), RemoteError> {
        self.done(&RemoteCall::Change { path: bytes_of(path), change })
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// As for rmdir(2), and those of the link.
    pub fn remove_dir(&self, path: &[u8]) -> Result<(), RemoteError> {
        self.done(&RemoteCall::RemoveDir { path: bytes_of(path) })
    }

    /// Removes a path with everything below it, and reports each step. Entries that cannot be
    /// removed are reported, too, and are no error of the call.
    ///
    /// # Errors
    /// As for unlink(2) of the path itself, and those of the link.
    pub fn remove_tree(
        &self,
        path: &[u8],
        on_step: &mut dyn FnMut(SiteRemoval) -> bool,
    ) -> Result<(), RemoteError> {
        let removal = self.choose_number();
        let call = RemoteCall::RemoveTree { path: bytes_of(path), removal };
        let mut is_first = true;
        loop {
            match self.call(&call) {
                Ok(RemoteReply::Removed(step)) => {
                    let is_last = step.is_last;
                    if !on_step(step) || is_last {
                        return Ok(());
                    }
                }
                // Removed by a call whose reply was lost.
                Ok(RemoteReply::Done) => return Ok(()),
                Ok(_) => return Err(self.odd()),
                Err(error) if error.errno == Errno::NOENT && !is_first => return Ok(()),
                Err(error) => return Err(error),
            }
            is_first = false;
        }
    }

    /// Opens a regular file for [`RemoteSession::read`]. Returns its number and its attributes.
    ///
    /// # Errors
    /// As for open(2); `EINVAL` for a special file; those of the link.
    pub fn open_source(&self, path: &[u8]) -> Result<(u64, SiteAttr), RemoteError> {
        let file = self.choose_number();
        let call = RemoteCall::OpenSource { file, path: bytes_of(path), same: None };
        let opened = self.call_aside(&call);
        let RemoteReply::Entry(SiteEntry { attr, .. }) = opened? else { return Err(self.odd()) };
        // After a broken link it must be the same file: its bytes are those of one file.
        let same = Some((attr.dev, attr.ino));
        let call = RemoteCall::OpenSource { file, path: bytes_of(path), same };
        self.with_state(|state| state.files.insert(file, KnownFile::new(call)));
        Ok((file, attr))
    }

    /// Returns the next range of data at or after `from`. `None`: only a hole is left.
    ///
    /// # Errors
    /// As for lseek(2), and those of the link.
    pub fn find_data(&self, file: u64, from: u64) -> Result<Option<(u64, u64)>, RemoteError> {
        match self.call(&RemoteCall::FindData { file, from })? {
            RemoteReply::Data(range) => {
                Ok(range.filter(|(start, end)| from <= *start && start < end))
            }
            _ => Err(self.odd()),
        }
    }

    /// Opens a file for [`RemoteSession::write_behind`] and does not wait. It has its name only
    /// after [`RemoteSession::finish_sink`], and before that nothing of it is seen. `ESTALE` of a
    /// later call: the link broke, and the file must be written once more.
    ///
    /// # Errors
    /// Those of the link.
    pub fn open_sink(&self, path: &[u8], mode: u32) -> Result<u64, RemoteError> {
        let file = self.choose_number();
        let call = RemoteCall::OpenSink { file, path: bytes_of(path), mode };
        self.with_state(|state| {
            state.files.insert(file, KnownFile::new(call.clone()));
            self.post(state, &call, &[])
        })
        .inspect_err(|_| self.close(file))?;
        Ok(file)
    }

    /// Completes a file that [`RemoteSession::open_sink`] has opened, and closes it.
    ///
    /// # Errors
    /// The first error of the calls for the file.
    pub fn finish_sink(
        &self,
        file: u64,
        change: SiteChange,
        may_replace: bool,
    ) -> Result<(), RemoteError> {
        // The other side gives no name to a file with a failed write, so nothing is awaited before.
        let finished = self.done(&RemoteCall::FinishSink { file, change, may_replace });
        let known = self.with_state(|state| state.files.remove(&file));
        known.and_then(|known| known.error).map_or(finished, Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_leads_elsewhere_is_refused() {
        for good in [b"a".as_slice(), b"...", b"-", b"\xff\n"] {
            assert!(is_entry_name(good), "{good:?}");
        }
        for bad in [b"".as_slice(), b".", b"..", b"a/b", b"/", b"a\0"] {
            assert!(!is_entry_name(bad), "{bad:?}");
        }
    }
}
