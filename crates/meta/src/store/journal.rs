//! What a power cut leaves of fjall's journal, made readable again. Our own commits go to our own
//! log; versions before the log wrote them there.
//!
//! A disk may write the pages of a file in any order. After a power cut, the part
//! of the journal that was not synced can have holes: a batch with zeros in it, and whole ones
//! after it. fjall cuts off a batch that ends too early, but takes a wrong checksum for
//! damage and refuses to open. The promise is a prefix of the commits, so the
//! journal ends before the first batch that is not whole; what follows was never promised. It
//! is kept in a file beside the journal all the same, because a broken disk looks like that too.
//!
//! Only the newest journal is looked at: fjall syncs a journal before it begins the next.
//!
//! ```text
//! batch := 1 │ items u32 │ seqno u64, then items, then 3 │ xxh3 of the items u64 │ "FJL\x03"
//! item  := 2 │ type u8 │ 0 │ keyspace u64 │ key len u16 │ len u32 │ len on disk u32 │ key │ value
//!        | 4 │ keyspace u64
//! ```
//!
//! Numbers are little-endian. (fjall 3.1, `src/journal/entry.rs`.)

use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::Xxh3;

const START: u8 = 1;
const ITEM: u8 = 2;
const END: u8 = 3;
const CLEAR: u8 = 4;
const TRAILER: [u8; 4] = *b"FJL\x03";
const ITEM_HEAD: usize = 1 + 1 + 8 + 2 + 4 + 4;
/// Bytes read at a time.
const BUFFER: usize = 1 << 16;
/// Bytes hashed at a time.
const PIECE: usize = 4096;

/// What was cut off.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Cut {
    /// Where the journal ends now, in bytes.
    pub at: u64,
    /// Bytes that followed, up to the last that was not zero.
    pub bytes: u64,
    /// Where they are kept, if the disk had room for them: until the next cut of this journal.
    pub kept: Option<PathBuf>,
}

/// Cuts the journal at `path` after its last whole batch, if something that is
/// not zero follows. The caller holds the lock of the store.
///
/// # Errors
/// Those of the disk.
pub(super) fn mend(path: &Path) -> io::Result<Option<Cut>> {
    let mut file = OpenOptions::new().read(true).write(true).open(path)?;
    let len = file.metadata()?.len();
    let at = whole(&file, len)?;
    cut(&mut file, path, at)
}

/// Cuts `file` off at byte `at`, if something that is not zero follows.
///
/// # Errors
/// Those of the disk.
pub(super) fn cut(file: &mut File, path: &Path, at: u64) -> io::Result<Option<Cut>> {
    let end = last_nonzero(file, at)?;
    if end <= at {
        return Ok(None);
    }
    let mut name = path.as_os_str().to_owned();
    name.push(".cut");
    let kept = PathBuf::from(name);
    let kept = keep(file, at, end, &kept).ok().map(|()| kept);
    file.set_len(at)?;
    file.sync_all()?;
    Ok(Some(Cut { at, bytes: end - at, kept }))
}

fn keep(file: &mut File, at: u64, end: u64, to: &Path) -> io::Result<()> {
    file.seek(SeekFrom::Start(at))?;
    let mut copy = File::create(to)?;
    io::copy(&mut file.take(end - at), &mut copy)?;
    copy.sync_all()
}

/// Where the last whole batch ends that only whole ones precede.
fn whole(file: &File, len: u64) -> io::Result<u64> {
    let inner = BufReader::with_capacity(BUFFER, file);
    let mut reader = Reader { inner, piece: [0; PIECE], at: 0, len };
    let mut end = 0;
    loop {
        match reader.batch() {
            Ok(true) => end = reader.at,
            Ok(false) => return Ok(end),
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(end),
            Err(e) => return Err(e),
        }
    }
}

/// The end of what is not zero, from `from` on.
pub(super) fn last_nonzero(file: &mut File, from: u64) -> io::Result<u64> {
    file.seek(SeekFrom::Start(from))?;
    let mut buffer = vec![0; BUFFER];
    let (mut at, mut end) = (from, from);
    loop {
        let n = file.read(&mut buffer)?;
        if n == 0 {
            return Ok(end);
        }
        // Mostly zeros: this loop over words is the one that costs.
        let (words, rest) = buffer[..n].as_chunks::<8>();
        let zeros = words.iter().all(|w| *w == [0; 8]) && rest.iter().all(|b| *b == 0);
        if !zeros && let Some(last) = buffer[..n].iter().rposition(|b| *b != 0) {
            end = at + last as u64 + 1;
        }
        at += n as u64;
    }
}

struct Reader<R> {
    inner: R,
    piece: [u8; PIECE],
    at: u64,
    len: u64,
}

impl<R: Read> Reader<R> {
    fn array<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.inner.read_exact(&mut bytes)?;
        self.at += N as u64;
        Ok(bytes)
    }

    /// Reads `n` bytes into the hash, a piece at a time. A length that the file does not
    /// back ends the journal.
    fn hash(&mut self, mut n: u64, hash: &mut Xxh3) -> io::Result<()> {
        if n > self.len.saturating_sub(self.at) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        while n > 0 {
            let part = &mut self.piece[..n.min(PIECE as u64) as usize];
            self.inner.read_exact(part)?;
            hash.update(part);
            self.at += part.len() as u64;
            n -= part.len() as u64;
        }
        Ok(())
    }

    /// Reads one batch; whether it is whole.
    fn batch(&mut self) -> io::Result<bool> {
        if self.array()? != [START] {
            return Ok(false);
        }
        let items = u32::from_le_bytes(self.array()?);
        let _seqno: [u8; 8] = self.array()?;
        let mut hash = Xxh3::new();
        for _ in 0..items {
            if !self.item(&mut hash)? {
                return Ok(false);
            }
        }
        if self.array()? != [END] {
            return Ok(false);
        }
        let checksum = u64::from_le_bytes(self.array()?);
        Ok(self.array()? == TRAILER && checksum == hash.digest())
    }

    fn item(&mut self, hash: &mut Xxh3) -> io::Result<bool> {
        let tag: [u8; 1] = self.array()?;
        hash.update(&tag);
        match tag[0] {
            CLEAR => hash.update(&self.array::<8>()?),
            ITEM => {
                let head: [u8; ITEM_HEAD] = self.array()?;
                hash.update(&head);
                let key = u16::from_le_bytes([head[10], head[11]]);
                let value = u32::from_le_bytes([head[16], head[17], head[18], head[19]]);
                self.hash(u64::from(key) + u64::from(value), hash)?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn batch(n: u8, items: &[(&[u8], &[u8])]) -> Vec<u8> {
        let mut body = Vec::new();
        for (key, value) in items {
            body.extend([ITEM, 0, 0]);
            body.extend(1u64.to_le_bytes());
            body.extend((key.len() as u16).to_le_bytes());
            body.extend((value.len() as u32).to_le_bytes());
            body.extend((value.len() as u32).to_le_bytes());
            body.extend_from_slice(key);
            body.extend_from_slice(value);
        }
        let mut out = vec![START];
        out.extend((items.len() as u32).to_le_bytes());
        out.extend(u64::from(n).to_le_bytes());
        out.extend_from_slice(&body);
        out.push(END);
        out.extend(xxhash_rust::xxh3::xxh3_64(&body).to_le_bytes());
        out.extend(TRAILER);
        out
    }

    fn mended(journal: &[u8]) -> (Option<Cut>, Vec<u8>) {
        let dir = tempfile::tempdir().expect("directory");
        let path = dir.path().join("0.jnl");
        std::fs::write(&path, journal).expect("write");
        let cut = mend(&path).expect("disk");
        if let Some(kept) = cut.as_ref().and_then(|cut| cut.kept.as_ref()) {
            let kept = std::fs::read(kept).expect("kept");
            assert_eq!(Some(kept.len() as u64), cut.as_ref().map(|cut| cut.bytes));
        }
        (cut, std::fs::read(&path).expect("read"))
    }

    #[test]
    fn whole_batches_stay_and_zeros_too() {
        let mut journal = [batch(1, &[(b"k", b"v")]), batch(2, &[])].concat();
        journal.extend([0; 5000]);
        assert_eq!(mended(&journal), (None, journal));
        assert_eq!(mended(&[]), (None, vec![]));
    }

    #[test]
    fn a_hole_ends_the_journal_whatever_follows() {
        let first = batch(1, &[(b"k", b"v")]);
        let mut holed = batch(2, &[(b"key", &[7; 9000])]);
        holed[4096..8192].fill(0);
        let journal = [first.clone(), holed, batch(3, &[(b"k", b"w")]), vec![0; 100]].concat();
        let (cut, left) = mended(&journal);
        let cut = cut.expect("cut");
        assert_eq!((cut.at, cut.bytes), (first.len() as u64, journal.len() as u64 - 100 - cut.at));
        assert!(cut.kept.is_some());
        assert_eq!(left, first);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Whatever a byte is changed to, what is left is a prefix of whole batches that
        /// contains all those before the change.
        #[test]
        fn any_damage_leaves_a_prefix(at: proptest::sample::Index, to: u8, cut: proptest::sample::Index) {
            let batches: Vec<_> = (0..5).map(|n| batch(n, &[(&[n], &[n; 300]), (b"z", b"")])).collect();
            let whole = batches.concat();
            let mut journal = whole.clone();
            let at = at.index(journal.len());
            journal[at] = to;
            journal.truncate(cut.index(whole.len() + 1));
            let (cut, left) = mended(&journal);
            let ends: Vec<usize> =
                (0..=5).map(|n| batches[..n].iter().map(Vec::len).sum()).collect();
            let damage = if whole[at] == to { journal.len() } else { at.min(journal.len()) };
            let promised = ends.iter().rfind(|e| **e <= damage).copied().expect("0 is one");
            prop_assert!(left.len() >= promised);
            prop_assert!(cut.is_none() || ends.contains(&left.len()));
            prop_assert_eq!(&left[..promised], &whole[..promised]);
        }
    }
}
