//! A hash function for tables in memory. It is the same in every run, and fast for numbers and
//! short keys.

use std::hash::{BuildHasherDefault, Hasher};
use xxhash_rust::xxh3::xxh3_64;

/// The type parameter for hash tables.
pub type HashBuilder = BuildHasherDefault<FastHasher>;

/// The hash function of this module. Not for keys that an attacker can choose freely and in masses.
#[derive(Clone, Copy, Debug, Default)]
pub struct FastHasher(u64);

impl FastHasher {
    /// Combines both halves of a product, as wyhash does.
    fn mix_word(&mut self, n: u64) {
        const ADD: u64 = 0x9e37_79b9_7f4a_7c15;
        const TIMES: u64 = 0xa076_1d64_78bd_642f;
        let product = u128::from(self.0.wrapping_add(ADD) ^ n) * u128::from(TIMES);
        self.0 = (product >> 64) as u64 ^ product as u64;
    }
}

impl Hasher for FastHasher {
    fn write(&mut self, bytes: &[u8]) {
        match <[u8; 16]>::try_from(bytes) {
            // A client id. Every request looks some up.
            Ok(id) => {
                let id = u128::from_le_bytes(id);
                self.mix_word(id as u64);
                self.mix_word((id >> 64) as u64);
            }
            Err(_) => self.mix_word(xxh3_64(bytes)),
        }
    }

    fn write_u32(&mut self, n: u32) {
        self.mix_word(n.into());
    }

    fn write_u64(&mut self, n: u64) {
        self.mix_word(n);
    }

    fn write_usize(&mut self, n: usize) {
        self.mix_word(n as u64);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::hash::Hash;

    fn hash(value: impl Hash) -> u64 {
        let mut quick = FastHasher::default();
        value.hash(&mut quick);
        quick.finish()
    }

    #[test]
    fn neighbours_differ_above_and_below() {
        let hashes: Vec<u64> = (0u64..4096).map(hash).collect();
        for shift in [0, 57] {
            let ends: BTreeSet<u64> = hashes.iter().map(|h| h >> shift & 0x7f).collect();
            assert_eq!(ends.len(), 128, "all ends occur");
        }
        let places: BTreeSet<u64> = hashes.iter().map(|h| h % 65_536).collect();
        assert!(places.len() > 3900, "{} places of 4096", places.len());
        assert_ne!(hash((1u64, 2u32)), hash((2u64, 1u32)));
        assert_ne!(hash(b"a".to_vec()), hash(b"b".to_vec()));
        let ids: BTreeSet<u64> = (0..128).map(|bit| hash((1u128 << bit).to_le_bytes())).collect();
        assert_eq!(ids.len(), 128, "each bit of an id counts");
    }
}
