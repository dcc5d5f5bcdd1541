//! Copies of bytes that lie beside an inode. The shard sends the bytes with the reply to an open,
//! so that open, read and close of a small file cost one request.
//!
//! A copy is used only while the inode's attributes are delegated to this client and have the same
//! time of the last change as the copy. Each write advances that time, and the shard recalls the
//! delegation before the writer gets its reply. So a reader never gets older bytes than by a
//! request.

use quick_cache::Weighter;
use quick_cache::sync::Cache;
use tatami_wire::meta::Bytes;
use tatami_wire::{Attr, Ino, Timestamp};

/// Most bytes of all copies of a client.
const BYTES_MAX: u64 = 16 << 20;
/// For the first size of the cache's table.
const FILES_EXPECTED: usize = 1024;

#[derive(Clone)]
struct InlineCopy {
    /// The time of the last change of the inode, in which it had these bytes.
    ctime: Timestamp,
    bytes: std::sync::Arc<[u8]>,
}

#[derive(Clone)]
struct CopyWeighter;

impl Weighter<Ino, InlineCopy> for CopyWeighter {
    fn weight(&self, _: &Ino, copy: &InlineCopy) -> u64 {
        // With the entry itself.
        copy.bytes.len() as u64 + 64
    }
}

/// See the module.
pub(crate) struct InlineCache(Cache<Ino, InlineCopy, CopyWeighter>);

impl Default for InlineCache {
    fn default() -> InlineCache {
        InlineCache(Cache::with_weighter(FILES_EXPECTED, BYTES_MAX, CopyWeighter))
    }
}

impl InlineCache {
    /// Keeps a copy of all bytes of the file with these attributes.
    pub(crate) fn store_copy(&self, attr: &Attr, bytes: Bytes) {
        if bytes.len() as u64 == attr.size {
            let bytes = bytes.into_vec().into();
            self.0.insert(attr.ino, InlineCopy { ctime: attr.ctime, bytes });
        }
    }

    /// Reads from the copy, if it has the bytes of the file with these attributes, which are
    /// current. Returns the number of bytes, fewer than `buf` has only at the end of the file.
    pub(crate) fn read_copy(&self, attr: &Attr, buf: &mut [u8], offset: u64) -> Option<usize> {
        let copy = self.0.get(&attr.ino)?;
        if copy.ctime != attr.ctime || copy.bytes.len() as u64 != attr.size {
            return None;
        }
        let from = usize::try_from(offset).map_or(copy.bytes.len(), |at| at.min(copy.bytes.len()));
        let found = &copy.bytes[from..];
        let len = found.len().min(buf.len());
        buf[..len].copy_from_slice(&found[..len]);
        Some(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tatami_wire::InodeKind;

    fn attr(ino: u64, size: u64, ctime: i64) -> Attr {
        let ctime = Timestamp::from_sec(ctime);
        Attr { size, ctime, ..Attr::with_defaults(Ino(ino), InodeKind::File) }
    }

    #[test]
    fn a_copy_counts_for_the_same_state_of_the_file_alone() {
        let cache = InlineCache::default();
        cache.store_copy(&attr(5, 4, 1), b"abcd".to_vec().into());
        let read = |attr: &Attr, len: usize, offset| {
            let mut buf = vec![0; len];
            cache.read_copy(attr, &mut buf, offset).map(|got| buf[..got].to_vec())
        };
        assert_eq!(read(&attr(5, 4, 1), 9, 1).as_deref(), Some(&b"bcd"[..]));
        assert_eq!(read(&attr(5, 4, 1), 2, 0).as_deref(), Some(&b"ab"[..]));
        assert_eq!(read(&attr(5, 4, 1), 2, 4).as_deref(), Some(&b""[..]));
        assert_eq!(read(&attr(5, 4, 1), 2, u64::MAX).as_deref(), Some(&b""[..]));
        assert_eq!(read(&attr(5, 4, 2), 2, 0), None, "changed since");
        assert_eq!(read(&attr(5, 3, 1), 2, 0), None, "cut since");
        assert_eq!(read(&attr(6, 4, 1), 2, 0), None);
        cache.store_copy(&attr(6, 4, 1), b"abc".to_vec().into());
        assert_eq!(read(&attr(6, 4, 1), 2, 0), None, "not all bytes");
    }

    #[test]
    fn all_copies_together_stay_within_their_bound() {
        let cache = InlineCache::default();
        for ino in 0..2000 {
            cache.store_copy(&attr(ino, 65536, 1), vec![7; 65536].into());
        }
        assert!(cache.0.weight() <= BYTES_MAX);
        assert!(cache.0.len() > 100, "{} copies", cache.0.len());
    }
}
