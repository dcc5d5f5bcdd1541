//! Extended attributes.

use crate::caller;
use crate::filesystem::FileSystem;
use tatami_fuse::Request;
use tatami_wire::meta::XattrMode;
use tatami_wire::{Cred, Errno, Ino};

const ACL_ACCESS: &[u8] = b"system.posix_acl_access";
const ACL_DEFAULT: &[u8] = b"system.posix_acl_default";
/// File capabilities, which a write takes away.
const CAPABILITY: &[u8] = b"security.capability";

fn is_acl(name: &[u8]) -> bool {
    name == ACL_ACCESS || name == ACL_DEFAULT
}

impl FileSystem {
    /// GETXATTR.
    ///
    /// # Errors
    /// `ENODATA`, and those of the shard.
    pub(crate) fn get_xattr(&self, request: &Request<'_>, name: &[u8]) -> Result<Vec<u8>, Errno> {
        let ino = Ino(request.header.node);
        if is_acl(name) && self.known.has_no_acl(ino) {
            return Err(Errno::ENODATA);
        }
        if name == CAPABILITY
            && self.open.find(ino).is_some_and(|inode| inode.state.lock().no_capability)
        {
            return Err(Errno::ENODATA);
        }
        caller::run(request, |cred| self.client.get_xattr(cred, ino, name))
    }

    /// SETXATTR.
    ///
    /// # Errors
    /// Those of the shard; `EINVAL` for contradictory flags.
    pub(crate) fn set_xattr(
        &self,
        request: &Request<'_>,
        name: &[u8],
        value: &[u8],
        flags: i32,
    ) -> Result<(), Errno> {
        let ino = Ino(request.header.node);
        let mode = match flags {
            0 => XattrMode::Set,
            libc::XATTR_CREATE => XattrMode::Create,
            libc::XATTR_REPLACE => XattrMode::Replace,
            _ => return Err(Errno::EINVAL),
        };
        self.known.forget(ino);
        if name == CAPABILITY
            && let Some(inode) = self.open.find(ino)
        {
            inode.state.lock().no_capability = false;
        }
        // An ACL may cost the file its setgid, depending on the caller's groups.
        let result = if is_acl(name) {
            let cred = caller::with_groups(request);
            self.client.set_xattr(&cred, ino, name, value, mode)
        } else {
            caller::run(request, |cred| self.client.set_xattr(cred, ino, name, value, mode))
        };
        self.known.forget(ino);
        self.known.changed();
        result
    }

    /// LISTXATTR.
    ///
    /// # Errors
    /// Those of the shard.
    pub(crate) fn list_xattr(&self, request: &Request<'_>) -> Result<Vec<u8>, Errno> {
        let ino = Ino(request.header.node);
        caller::run(request, |cred| self.client.list_xattr(cred, ino))
    }

    /// REMOVEXATTR.
    ///
    /// # Errors
    /// Those of the shard.
    pub(crate) fn remove_xattr(&self, request: &Request<'_>, name: &[u8]) -> Result<(), Errno> {
        let ino = Ino(request.header.node);
        self.known.forget(ino);
        let result = match caller::run(request, |cred| self.client.remove_xattr(cred, ino, name)) {
            // The kernel's doing, because of a write, whoever the writer is: it
            // lets nobody else through to here.
            Err(Errno::EPERM | Errno::EACCES) if name == CAPABILITY => {
                self.client.remove_xattr(&Cred::ROOT, ino, name)
            }
            other => other,
        };
        self.known.forget(ino);
        self.known.changed();
        result
    }
}
