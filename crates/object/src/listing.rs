//! Ordered lists of the existing objects, for checks.
//!
//! The order of buckets is not the order of inode numbers, so a listing must read all buckets. To
//! do that rarely, one pass collects the next [`WINDOW`] objects, and later calls that continue the
//! listing are served from them. An object that is made or removed meanwhile may or may not be
//! listed.

use crate::name::{self, ObjectKey};
use rustix::fs::{Dir, Mode, OFlags};
use std::collections::BinaryHeap;
use std::os::fd::BorrowedFd;
use tatami_wire::Ino;

/// Most objects that one pass over the buckets collects.
const WINDOW: usize = 64 * 1024;

/// The objects that one pass collected.
#[derive(Debug, Default)]
pub(crate) struct ListingWindow {
    /// In order; those already listed are at the front.
    keys: Vec<ObjectKey>,
    listed: usize,
    /// No object follows the last of `keys`.
    end: bool,
}

impl ListingWindow {
    /// Returns at most `limit` keys above `after`, and whether none follows.
    pub(crate) fn next(
        &mut self,
        objects: BorrowedFd<'_>,
        after: Option<ObjectKey>,
        limit: usize,
    ) -> rustix::io::Result<(Vec<ObjectKey>, bool)> {
        self.next_within(objects, after, limit, WINDOW)
    }

    fn next_within(
        &mut self,
        objects: BorrowedFd<'_>,
        after: Option<ObjectKey>,
        limit: usize,
        window: usize,
    ) -> rustix::io::Result<(Vec<ObjectKey>, bool)> {
        let last = self.listed.checked_sub(1).map(|at| self.keys[at]);
        let continues = after.is_some() && after == last;
        if !continues || (self.listed == self.keys.len() && !self.end) {
            (self.keys, self.end) = collect_keys(objects, after, window)?;
            self.listed = 0;
        }
        let upto = self.keys.len().min(self.listed + limit);
        let keys = self.keys[self.listed..upto].to_vec();
        self.listed = upto;
        let end = self.end && upto == self.keys.len();
        if end {
            *self = ListingWindow::default();
        }
        Ok((keys, end))
    }
}

/// Returns the smallest `most` keys above `after`, and whether these are all.
fn collect_keys(
    objects: BorrowedFd<'_>,
    after: Option<ObjectKey>,
    most: usize,
) -> rustix::io::Result<(Vec<ObjectKey>, bool)> {
    let mut heap = BinaryHeap::new();
    let mut all = true;
    for bucket in 0..name::BUCKETS {
        let Some(dir) = open_bucket(objects, bucket)? else { continue };
        for entry in dir {
            let Some(key) = name::parse_name(entry?.file_name().to_bytes()) else { continue };
            if name::bucket_of(key.0) != bucket || after.is_some_and(|after| key <= after) {
                continue;
            }
            heap.push(key);
            if heap.len() > most {
                heap.pop();
                all = false;
            }
        }
    }
    Ok((heap.into_sorted_vec(), all))
}

/// Returns the objects of one inode.
pub(crate) fn list_inode(objects: BorrowedFd<'_>, ino: Ino) -> rustix::io::Result<Vec<ObjectKey>> {
    let Some(dir) = open_bucket(objects, name::bucket_of(ino))? else { return Ok(Vec::new()) };
    let mut found = Vec::new();
    for entry in dir {
        found.extend(name::parse_name(entry?.file_name().to_bytes()).filter(|key| key.0 == ino));
    }
    Ok(found)
}

/// Returns the directory of a bucket, if it exists.
fn open_bucket(objects: BorrowedFd<'_>, bucket: u16) -> rustix::io::Result<Option<Dir>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    match rustix::fs::openat(objects, name::bucket_name(bucket), flags, Mode::empty()) {
        Ok(fd) => Dir::new(fd).map(Some),
        Err(rustix::io::Errno::NOENT) => Ok(None),
        Err(e) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use tatami_wire::Piece;

    #[test]
    fn a_listing_is_in_order_and_complete_whatever_the_window() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let mut expected = Vec::new();
        for ino in [1u64, 2, 255, 256, 257, 511, 70_000, 1 << 48] {
            for piece in [0, 3] {
                let path = dir.path().join(name::object_path((Ino(ino), Piece(piece))));
                std::fs::create_dir_all(path.parent().expect("in a bucket")).expect("made");
                std::fs::write(path, b"").expect("written");
                expected.push((Ino(ino), Piece(piece)));
            }
        }
        std::fs::write(dir.path().join("00/stranger"), b"").expect("written");
        let fd = std::fs::File::open(dir.path()).expect("opens");
        for window in [1, 3, 16, 17, 100] {
            for limit in [1, 2, 16, 1000] {
                let mut listing = ListingWindow::default();
                let (mut found, mut after) = (Vec::new(), None);
                loop {
                    let (keys, end) =
                        listing.next_within(fd.as_fd(), after, limit, window).expect("listed");
                    assert!(keys.len() <= limit);
                    found.extend_from_slice(&keys);
                    after = found.last().copied();
                    if end {
                        break;
                    }
                }
                assert_eq!(found, expected, "window {window}, limit {limit}");
            }
        }
    }
}
