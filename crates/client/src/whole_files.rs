//! Many small files by one request: made with all their bytes, or read.
//!
//! It works for files whose bytes lie beside their inodes
//! ([`Layout::is_inline`](tatami_layout::Layout::is_inline)). The caller handles any other file by
//! itself: the result says which ones these are.

use crate::Client;
use tatami_wire::batch::{BATCH_BYTES_MAX, BATCH_OPS_MAX, BatchOp};
use tatami_wire::inline::InlineReply;
use tatami_wire::meta::MetaReply;
use tatami_wire::policy::{POLICIES, PolicyKind, PolicyRow};
use tatami_wire::{Attr, Cred, Errno, Ino, SetAttr};

/// A file to make, see [`Client::create_filled_many`].
#[derive(Clone, Debug)]
pub struct FilledFile {
    /// Its name.
    pub name: Vec<u8>,
    /// Permission bits, before the umask (or a default ACL) is applied.
    pub mode: u16,
    /// All its bytes.
    pub bytes: Vec<u8>,
    /// Further attributes that it gets.
    pub set: Option<SetAttr>,
}

impl Client {
    /// Returns the length up to which new files of a directory have their bytes beside their
    /// inodes, in bytes. 0: none has.
    ///
    /// # Errors
    /// Those of getxattr(2).
    pub fn find_inline_limit(&self, cred: &Cred, dir: Ino) -> Result<u64, Errno> {
        let row: Option<&PolicyRow> = POLICIES.iter().find(|row| row.kind == PolicyKind::Inline);
        let Some(row) = row else { return Ok(0) };
        match self.get_xattr(cred, dir, row.attribute().as_bytes()) {
            Ok(value) => {
                let text = String::from_utf8(value).ok();
                Ok(text.and_then(|text| (row.parse)(&text)).unwrap_or(0))
            }
            Err(Errno::ENODATA) => Ok(0),
            Err(e) => Err(e),
        }
    }

    /// Makes files in one directory with all their bytes. Each has its name and its bytes at once,
    /// or does not exist. Files on one executor share a request, up to 1,024 files and 512 KiB.
    ///
    /// # Errors
    /// For each file those of open(2) with `O_EXCL`. `EXDEV` if its bytes would not lie beside its
    /// inode: then the caller must make and write it.
    pub fn create_filled_many(
        &self,
        cred: &Cred,
        parent: Ino,
        new: Vec<FilledFile>,
        umask: u16,
    ) -> Vec<Result<Attr, Errno>> {
        let layout = self.new_layout();
        let operations = new.into_iter().map(|FilledFile { name, mode, bytes, set }| {
            let (name, bytes) = (name.into(), bytes.into());
            BatchOp::CreateFilled { parent, name, layout, mode, umask, bytes, set }
        });
        let made = self.run_batch(cred, operations.collect());
        let made = made.into_iter().map(|made| match made? {
            MetaReply::Created { attr, .. } => Ok(attr),
            _ => Err(Errno::EPROTO),
        });
        made.collect()
    }

    /// Reads all bytes of each file. Files on one executor share a request, up to 1,024 files and
    /// about 512 KiB. `sizes` are their lengths as known, in bytes, to bound the replies.
    ///
    /// # Errors
    /// For each file those of open(2) and read(2). `EXDEV` if its bytes do not lie beside its
    /// inode: then the caller must open and read it.
    pub fn read_inline_many(
        &self,
        cred: &Cred,
        files: &[(Ino, u64)],
    ) -> Vec<Result<Vec<u8>, Errno>> {
        let mut results = Vec::with_capacity(files.len());
        let mut left = files;
        while !left.is_empty() {
            let mut sum = 0;
            let fits = |(_, size): &&(Ino, u64)| {
                sum += size;
                sum <= BATCH_BYTES_MAX as u64
            };
            let count = left.iter().take(BATCH_OPS_MAX).take_while(fits).count().max(1);
            let (some, rest) = left.split_at(count);
            left = rest;
            let operations = some.iter().map(|(ino, _)| BatchOp::ReadInline { ino: *ino });
            let read = self.run_batch(cred, operations.collect());
            results.extend(read.into_iter().map(|read| match read? {
                MetaReply::Inline(InlineReply::Done { bytes, .. }) => Ok(bytes.into_vec()),
                MetaReply::Inline(_) => Err(Errno::EXDEV),
                _ => Err(Errno::EPROTO),
            }));
        }
        results
    }
}
