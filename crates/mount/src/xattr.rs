//! Extended attributes.

use crate::caller;
use crate::filesystem::FileSystem;
use tatami_fuse::Request;
use tatami_wire::meta::XattrMode;
use tatami_wire::{Cred, Errno, Ino, XattrClass};

const ACL_ACCESS: &[u8] = b"system.posix_acl_access";
const ACL_DEFAULT: &[u8] = b"system.posix_acl_default";
/// File capabilities, which every write removes.
const CAPABILITY: &[u8] = b"security.capability";

const SELINUX: &[u8] = b"security.selinux";
/// Namespaces in which all names are optional.
const OPTIONAL_NAMESPACES: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];

fn is_acl(name: &[u8]) -> bool {
    name == ACL_ACCESS || name == ACL_DEFAULT
}

impl FileSystem {
    /// Checks whether the delegated attributes show that no attribute of this name exists. (The
    /// kernel has checked the caller's permission.)
    fn has_no_xattr(&self, ino: Ino, name: &[u8]) -> bool {
        let attached = || self.client.cached_attr(ino).map(|attr| attr.xattr_class);
        match name {
            ACL_ACCESS | ACL_DEFAULT => {
                attached().is_some_and(|attached| attached != XattrClass::Acl)
            }
            _ if OPTIONAL_NAMESPACES.iter().any(|space| name.starts_with(space)) => {
                attached() == Some(XattrClass::NoXattr)
            }
            _ => false,
        }
    }

    /// GETXATTR. A request for the SELinux label of a file without one gets `EOPNOTSUPP`, as with
    /// NFS. After that, ls does not ask for the labels of further files.
    ///
    /// # Errors
    /// `ENODATA`, `EOPNOTSUPP` for an SELinux label, and those of the shard.
    pub(crate) fn get_xattr(&self, request: &Request<'_>, name: &[u8]) -> Result<Vec<u8>, Errno> {
        let ino = Ino(request.header.node);
        match self.find_xattr(request, ino, name) {
            Err(Errno::ENODATA) if name == SELINUX => Err(Errno::EOPNOTSUPP),
            found => found,
        }
    }

    fn find_xattr(&self, request: &Request<'_>, ino: Ino, name: &[u8]) -> Result<Vec<u8>, Errno> {
        if is_acl(name) && self.attr_cache.has_no_acl(ino) || self.has_no_xattr(ino, name) {
            return Err(Errno::ENODATA);
        }
        if name == CAPABILITY
            && self.open_inodes.get(ino).is_some_and(|inode| inode.state.lock().no_capability)
        {
            return Err(Errno::ENODATA);
        }
        caller::run_as_caller(request, |cred| self.client.get_xattr(cred, ino, name))
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
        self.attr_cache.forget_inode(ino);
        if name == CAPABILITY
            && let Some(inode) = self.open_inodes.get(ino)
        {
            inode.state.lock().no_capability = false;
        }
        // With an ACL, the caller's groups decide whether the file loses its setgid.
        let result = if is_acl(name) {
            let cred = caller::full_credentials(request);
            self.client.set_xattr(&cred, ino, name, value, mode)
        } else {
            caller::run_as_caller(request, |cred| {
                self.client.set_xattr(cred, ino, name, value, mode)
            })
        };
        self.attr_cache.forget_inode(ino);
        self.attr_cache.count_change();
        result
    }

    /// LISTXATTR.
    ///
    /// # Errors
    /// Those of the shard.
    pub(crate) fn list_xattr(&self, request: &Request<'_>) -> Result<Vec<u8>, Errno> {
        let ino = Ino(request.header.node);
        if self.client.cached_attr(ino).is_some_and(|attr| attr.xattr_class == XattrClass::NoXattr)
        {
            return Ok(Vec::new());
        }
        caller::run_as_caller(request, |cred| self.client.list_xattr(cred, ino))
    }

    /// REMOVEXATTR.
    ///
    /// # Errors
    /// Those of the shard.
    pub(crate) fn remove_xattr(&self, request: &Request<'_>, name: &[u8]) -> Result<(), Errno> {
        let ino = Ino(request.header.node);
        self.attr_cache.forget_inode(ino);
        let result = match caller::run_as_caller(request, |cred| {
            self.client.remove_xattr(cred, ino, name)
        }) {
            // The kernel removes the capabilities because of a write, whichever user writes. It
            // lets no other user's request through to here.
            Err(Errno::EPERM | Errno::EACCES) if name == CAPABILITY => {
                self.client.remove_xattr(&Cred::ROOT, ino, name)
            }
            other => other,
        };
        self.attr_cache.forget_inode(ino);
        self.attr_cache.count_change();
        result
    }
}
