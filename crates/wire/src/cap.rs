//! Capabilities. With them, the node that has a file's bytes checks a client's permission without
//! asking the node that has the name.
//!
//! The metadata service checks permissions at open and signs the result. The object service checks
//! the signature. (NASD, Gobioff et al. 1999; as in Lustre and Ceph.)

use crate::{Ino, Timestamp, VolumeKey};
use serde::{Deserialize, Serialize};

/// The access that an open file, or a capability, allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Access {
    /// Read bytes.
    pub read: bool,
    /// Write bytes, truncate the file, reserve or free space.
    pub write: bool,
}

impl Access {
    /// Neither: enough to get the length of a file.
    pub const NONE: Access = Access { read: false, write: false };
    /// Reading only.
    pub const READ: Access = Access { read: true, write: false };
    /// Writing only.
    pub const WRITE: Access = Access { read: false, write: true };
    /// Both.
    pub const BOTH: Access = Access { read: true, write: true };

    /// Checks whether everything in `wanted` is allowed.
    pub fn allows(self, wanted: Access) -> bool {
        (self.read || !wanted.read) && (self.write || !wanted.write)
    }

    /// Converts the access mode bits of open(2) flags.
    pub fn from_open_flags(flags: i32) -> Access {
        match flags & libc::O_ACCMODE {
            libc::O_WRONLY => Access::WRITE,
            libc::O_RDWR => Access::BOTH,
            _ => Access::READ,
        }
    }
}

/// Lifetime of a capability, in seconds. A client that has a file open for longer opens the file
/// again at `EKEYEXPIRED`.
pub const CAP_LIFETIME_SEC: i64 = 24 * 3600;

/// A signed permission to access the objects of one inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cap {
    /// The inode of the objects.
    pub ino: Ino,
    /// The allowed access.
    pub access: Access,
    /// The expiry in seconds since 1970, by the clock of the checking node.
    pub expires: i64,
    mac: [u8; 16],
}

impl Cap {
    /// Returns a capability that no node accepts, for a file that its shard does not know yet.
    pub fn without_signature(ino: Ino, access: Access) -> Cap {
        Cap { ino, access, expires: 0, mac: [0; 16] }
    }

    /// Whether it is not such a capability.
    pub fn has_signature(&self) -> bool {
        self.mac != [0; 16]
    }
}

const MAC_PURPOSE: &str = "cap";

/// Length of an encoded capability: inode, time, access, signature.
pub const CAP_LEN: usize = 8 + 8 + 1 + 16;

impl Cap {
    /// Signs a capability that is valid for [`CAP_LIFETIME_SEC`] from `now`.
    pub fn sign(key: &VolumeKey, ino: Ino, access: Access, now: Timestamp) -> Cap {
        let expires = now.sec.saturating_add(CAP_LIFETIME_SEC);
        let mac = key.compute_mac(MAC_PURPOSE, &Self::encode_message(ino, access, expires));
        Cap { ino, access, expires, mac }
    }

    /// Checks that the capability is genuine and not expired, and allows `wanted` on `ino`.
    ///
    /// # Errors
    /// `EKEYREJECTED` for another inode or a wrong signature, `EKEYEXPIRED` after the expiry,
    /// `EACCES` if the capability does not allow `wanted`.
    pub fn check_access(
        &self,
        key: &VolumeKey,
        ino: Ino,
        wanted: Access,
        now: Timestamp,
    ) -> Result<(), crate::Errno> {
        let message = Self::encode_message(self.ino, self.access, self.expires);
        // First the signature: without it, no other field can be trusted.
        if self.ino != ino || !key.verify_mac(MAC_PURPOSE, &message, &self.mac) {
            return Err(crate::Errno::EKEYREJECTED);
        }
        if now.sec > self.expires {
            return Err(crate::Errno::EKEYEXPIRED);
        }
        if !self.access.allows(wanted) {
            return Err(crate::Errno::EACCES);
        }
        Ok(())
    }

    /// Encodes the capability. The holder may pass it to processes that work for the same user.
    pub fn to_bytes(&self) -> [u8; CAP_LEN] {
        let mut bytes = [0; CAP_LEN];
        bytes[..17].copy_from_slice(&Self::encode_message(self.ino, self.access, self.expires));
        bytes[17..].copy_from_slice(&self.mac);
        bytes
    }

    /// Decodes a capability, without a check. The node that uses it checks it.
    pub fn from_bytes(bytes: &[u8; CAP_LEN]) -> Cap {
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            word
        };
        let mut mac = [0; 16];
        mac.copy_from_slice(&bytes[17..]);
        let access = Access { read: bytes[16] & 1 != 0, write: bytes[16] & 2 != 0 };
        Cap {
            ino: Ino(u64::from_le_bytes(word(0))),
            access,
            expires: i64::from_le_bytes(word(8)),
            mac,
        }
    }

    fn encode_message(ino: Ino, access: Access, expires: i64) -> [u8; 17] {
        let mut m = [0; 17];
        m[..8].copy_from_slice(&ino.0.to_le_bytes());
        m[8..16].copy_from_slice(&expires.to_le_bytes());
        m[16] = u8::from(access.read) | u8::from(access.write) << 1;
        m
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Errno;

    #[test]
    fn a_capability_opens_one_inode_for_one_use_for_a_time() {
        let key = VolumeKey::new([7; 32]);
        let now = Timestamp::from_sec(1_000_000);
        let cap = Cap::sign(&key, Ino(5), Access::READ, now);
        assert_eq!(cap.check_access(&key, Ino(5), Access::READ, now), Ok(()));
        assert_eq!(cap.check_access(&key, Ino(6), Access::READ, now), Err(Errno::EKEYREJECTED));
        assert_eq!(cap.check_access(&key, Ino(5), Access::WRITE, now), Err(Errno::EACCES));
        let late = now.plus_sec(CAP_LIFETIME_SEC + 1);
        assert_eq!(cap.check_access(&key, Ino(5), Access::READ, late), Err(Errno::EKEYEXPIRED));
        assert_eq!(Cap::from_bytes(&cap.to_bytes()), cap);
        let other = VolumeKey::new([8; 32]);
        assert_eq!(cap.check_access(&other, Ino(5), Access::READ, now), Err(Errno::EKEYREJECTED));
        let forged = Cap { access: Access::BOTH, ..cap };
        assert_eq!(forged.check_access(&key, Ino(5), Access::WRITE, now), Err(Errno::EKEYREJECTED));
    }
}
