//! Open directories: their entries come from the other side in pieces, with all attributes.

use parking_lot::Mutex;
use rustix::io::Errno;
use std::collections::HashSet;
use tatami_remote::{MountCall, MountSession, RemoteReply, SiteDir, SiteEntry};

/// How often a listing is begun anew after a broken link.
const LISTINGS_MAX: usize = 4;
/// Most entries of one directory.
const ENTRIES_MAX: usize = 1 << 26;

/// An open directory.
#[derive(Default)]
pub(crate) struct OpenSiteDir {
    state: Mutex<DirState>,
}

#[derive(Default)]
struct DirState {
    /// The number of the listing there; 0: none.
    listing: u64,
    piece: u32,
    entries: Vec<SiteEntry>,
    is_complete: bool,
}

/// Whether a name can be that of an entry.
fn is_entry_name(name: &[u8]) -> bool {
    !matches!(name, b"" | b"." | b"..") && !name.iter().any(|b| matches!(b, b'/' | 0))
}

impl OpenSiteDir {
    /// Begins anew: a program has gone back to the start of the directory.
    pub(crate) fn rewind(&self) {
        *self.state.lock() = DirState::default();
    }

    /// Gives the entries from `index` on to `push`, until it has no room. `choose_number` gives
    /// numbers for listings.
    ///
    /// # Errors
    /// Those of the calls.
    pub(crate) fn list_entries(
        &self,
        session: &MountSession,
        unique: u64,
        dir: &SiteDir,
        index: usize,
        choose_number: &dyn Fn() -> u64,
        push: &mut dyn FnMut(usize, &SiteEntry) -> bool,
    ) -> Result<(), Errno> {
        let mut state = self.state.lock();
        let (mut at, mut has_some) = (index, false);
        loop {
            while let Some(entry) = state.entries.get(at) {
                if !push(at, entry) {
                    return Ok(());
                }
                (at, has_some) = (at + 1, true);
            }
            // The entries that are there are of use to the kernel at once.
            if state.is_complete || has_some {
                return Ok(());
            }
            state.fetch_piece(session, unique, dir, choose_number)?;
        }
    }

    /// Returns the listing that must be ended there.
    pub(crate) fn listing_to_end(&self) -> Option<u64> {
        let state = self.state.lock();
        (state.listing != 0 && !state.is_complete).then_some(state.listing)
    }
}

impl DirState {
    fn fetch_piece(
        &mut self,
        session: &MountSession,
        unique: u64,
        dir: &SiteDir,
        choose_number: &dyn Fn() -> u64,
    ) -> Result<(), Errno> {
        for attempt in 0.. {
            if self.listing == 0 {
                (self.listing, self.piece) = (choose_number(), 0);
            }
            let (listing, piece) = (self.listing, self.piece);
            let call = MountCall::List { dir: dir.clone(), listing, piece };
            match session.call(unique, call) {
                Ok((RemoteReply::Entries { entries, is_last }, _)) => {
                    return self.add_piece(entries, is_last, attempt > 0);
                }
                Ok(_) => return Err(Errno::PROTO),
                // A new I/O process does not know the listing. Entries that are known are left out.
                Err(Errno::STALE) if piece > 0 && attempt < LISTINGS_MAX => self.listing = 0,
                Err(errno) => return Err(errno),
            }
        }
        Err(Errno::STALE)
    }

    fn add_piece(
        &mut self,
        mut entries: Vec<SiteEntry>,
        is_last: bool,
        is_repeated: bool,
    ) -> Result<(), Errno> {
        let is_odd = entries.iter().any(|entry| !is_entry_name(&entry.name));
        if is_odd || self.entries.len() + entries.len() > ENTRIES_MAX {
            return Err(Errno::PROTO);
        }
        if is_repeated || self.piece > 0 {
            let known: HashSet<&[u8]> = self.entries.iter().map(|e| e.name.as_slice()).collect();
            entries.retain(|entry| !known.contains(entry.name.as_slice()));
        }
        self.entries.extend(entries);
        self.piece += 1;
        self.is_complete = is_last;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &[u8]) -> SiteEntry {
        let name = name.to_vec().into();
        SiteEntry { name, attr: Default::default(), target: None }
    }

    #[test]
    fn no_entry_comes_twice_and_no_name_leads_elsewhere() {
        let mut state = DirState::default();
        assert_eq!(state.add_piece(vec![entry(b"a"), entry(b"b")], false, false), Ok(()));
        assert_eq!(state.add_piece(vec![entry(b"b"), entry(b"c")], true, true), Ok(()));
        let names: Vec<&[u8]> = state.entries.iter().map(|e| e.name.as_slice()).collect();
        assert_eq!(names, [b"a", b"b", b"c"]);
        for name in [b"".as_slice(), b"..", b"a/b", b"a\0"] {
            assert_eq!(state.add_piece(vec![entry(name)], false, false), Err(Errno::PROTO));
        }
    }
}
