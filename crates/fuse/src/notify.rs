//! Notifications to the kernel.

use crate::abi::{self, notify};
use crate::device::Device;
use crate::encode::FixedReply;
use rustix::io::Errno;
use std::io::IoSlice;
use std::sync::Arc;

/// Invalidates the kernel's caches. Must not be used by a thread that handles a request on the same
/// inode or directory, because the kernel may wait for that request first. An invalidation of
/// attributes without pages never waits.
#[derive(Clone, Debug)]
pub struct Notifier(Arc<Device>);

impl Notifier {
    /// Returns a sender for notifications through `device`.
    pub fn new(device: Arc<Device>) -> Notifier {
        Notifier(device)
    }

    /// Invalidates the attributes of an inode, and its pages from `offset` on (`len` 0: to the
    /// end). A negative `offset` keeps the pages.
    ///
    /// # Errors
    /// `ENOENT` if the kernel does not know the inode; nothing is to be done.
    pub fn inval_inode(&self, ino: u64, offset: i64, len: i64) -> Result<(), Errno> {
        let body = FixedReply::<24>::new().put_u64(ino).put_u64(offset as u64).put_u64(len as u64);
        self.send_notification(notify::INVAL_INODE, body.as_bytes())
    }

    /// Makes the kernel ask again for a name of directory `dir` when it is used next. Waits for the
    /// operations of this mount that change the directory or look up new names in it. Needs
    /// [`crate::abi::init::HAS_EXPIRE_ONLY`].
    ///
    /// # Errors
    /// `ENOENT` if the kernel does not know the directory, or no such name in it.
    pub fn expire_entry(&self, dir: u64, name: &[u8]) -> Result<(), Errno> {
        let body = FixedReply::<16>::new()
            .put_u64(dir)
            .put_u32(name.len() as u32)
            .put_u32(notify::EXPIRE_ONLY);
        let mut bytes = body.as_bytes().to_vec();
        bytes.extend_from_slice(name);
        bytes.push(0);
        self.send_notification(notify::INVAL_ENTRY, &bytes)
    }

    fn send_notification(&self, code: i32, body: &[u8]) -> Result<(), Errno> {
        let len = abi::OUT_HEADER_LEN + body.len();
        // Request number 0 marks a notification. Its code takes the place of the error.
        let head = FixedReply::<16>::new().put_u32(len as u32).put_u32(code as u32).put_u64(0);
        self.0.write(&[IoSlice::new(head.as_bytes()), IoSlice::new(body)])
    }
}
