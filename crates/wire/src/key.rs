//! The secret that all nodes and trusted clients of one volume share.

use crate::ids::{InvalidId, parse_hex};
use std::fmt;

/// The volume's secret, 32 random bytes. A process with the key may act for any user. The key is in
/// a file with mode 0600. It never stands on a command line and is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct VolumeKey([u8; 32]);

impl VolumeKey {
    /// Makes a key from 32 random bytes.
    pub fn new(bytes: [u8; 32]) -> VolumeKey {
        VolumeKey(bytes)
    }

    /// Parses the hexadecimal form that [`VolumeKey::to_hex`] returns.
    pub fn from_hex(text: &str) -> Result<VolumeKey, InvalidId> {
        parse_hex(text.trim()).map(VolumeKey)
    }

    /// Returns the form in which the key file has the key.
    pub fn to_hex(&self) -> String {
        self.0.iter().map(|b| format!("{b:02x}")).collect()
    }

    /// Returns the MAC of `message` for one `purpose`. A MAC for one purpose is invalid for
    /// another. (BLAKE3, keyed mode.)
    pub fn compute_mac(&self, purpose: &str, message: &[u8]) -> [u8; 16] {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(&[purpose.len() as u8]);
        hasher.update(purpose.as_bytes());
        hasher.update(message);
        let mut out = [0; 16];
        out.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        out
    }

    /// Checks `mac`. The time does not depend on the position of the first wrong byte, so an
    /// attacker cannot learn a part of the MAC by timing.
    pub fn verify_mac(&self, purpose: &str, message: &[u8], mac: &[u8; 16]) -> bool {
        let ours = self.compute_mac(purpose, message);
        ours.iter().zip(mac).fold(0, |diff, (a, b)| diff | (a ^ b)) == 0
    }
}

impl fmt::Debug for VolumeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("VolumeKey(secret)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mac_fits_its_key_purpose_and_message_only() {
        let key = VolumeKey::new([1; 32]);
        let mac = key.compute_mac("cap", b"message");
        assert!(key.verify_mac("cap", b"message", &mac));
        assert!(!key.verify_mac("hello", b"message", &mac));
        assert!(!key.verify_mac("cap", b"massage", &mac));
        assert!(!VolumeKey::new([2; 32]).verify_mac("cap", b"message", &mac));
        // "ab" + "c" must not equal "a" + "bc".
        assert_ne!(key.compute_mac("ab", b"c"), key.compute_mac("a", b"bc"));
    }

    #[test]
    fn a_key_is_kept_as_hex_and_never_prints() {
        let key = VolumeKey::new([0x5a; 32]);
        assert_eq!(VolumeKey::from_hex(&format!("{}\n", key.to_hex())), Ok(key.clone()));
        assert!(!format!("{key:?}").contains("5a"));
        assert!(VolumeKey::from_hex("short").is_err());
    }
}
