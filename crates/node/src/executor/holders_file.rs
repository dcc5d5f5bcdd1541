//! The list on disk of the clients that may have delegations. A daemon that starts must wait until
//! these clients have come back, or a term is over, before it shows a change to any client.
//!
//! ```text
//! "TATHOLD1" · number of clients u32 · 16 bytes each · crc32c u32 of all before
//! ```

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use tatami_cluster::atomic;
use tatami_wire::ClientId;

const MAGIC: &[u8; 8] = b"TATHOLD1";
/// Stands for the unknown clients of a list that cannot be read. No client has this id.
const UNKNOWN_CLIENT: ClientId = ClientId([0; 16]);

/// The file of the list. It is written when a client comes or goes, which is rare.
#[derive(Debug)]
pub(crate) struct HoldersFile {
    path: PathBuf,
}

impl HoldersFile {
    pub(crate) fn at_path(path: PathBuf) -> HoldersFile {
        HoldersFile { path }
    }

    /// Returns the clients that had delegations or locks when the daemon before this one ended. If
    /// the list can't be read, it returns an unknown client that never comes back.
    pub(crate) fn read(&self) -> HashSet<ClientId> {
        match std::fs::read(&self.path) {
            Ok(bytes) => decode(&bytes).unwrap_or_else(|| {
                tracing::warn!(path = %self.path.display(),
                    "the list of clients is damaged; waiting until what they held has run out");
                HashSet::from([UNKNOWN_CLIENT])
            }),
            Err(e) if e.kind() == io::ErrorKind::NotFound => HashSet::new(),
            Err(error) => {
                tracing::warn!(path = %self.path.display(), %error,
                    "the list of clients can't be read; waiting until what they held has run out");
                HashSet::from([UNKNOWN_CLIENT])
            }
        }
    }

    /// Replaces the list, and syncs it.
    ///
    /// # Errors
    /// Those of the disk. The old list is still there then.
    pub(crate) fn write(&self, clients: &[ClientId]) -> io::Result<()> {
        atomic::write_atomically(
            &self.path,
            &encode(clients),
            rustix::fs::Mode::from_raw_mode(0o600),
        )
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

fn encode(clients: &[ClientId]) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend((clients.len() as u32).to_le_bytes());
    clients.iter().for_each(|client| bytes.extend(client.0));
    bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
    bytes
}

fn decode(bytes: &[u8]) -> Option<HashSet<ClientId>> {
    let (content, crc) = bytes.split_last_chunk::<4>()?;
    if crc32c::crc32c(content) != u32::from_le_bytes(*crc) {
        return None;
    }
    let (count, ids) = content.strip_prefix(MAGIC)?.split_first_chunk::<4>()?;
    let (ids, rest) = ids.as_chunks::<16>();
    let complete = rest.is_empty() && ids.len() == u32::from_le_bytes(*count) as usize;
    complete.then(|| ids.iter().map(|id| ClientId(*id)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_was_written_is_read_and_damage_is_somebody_unknown() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = HoldersFile::at_path(dir.path().join("holders"));
        assert_eq!(file.read(), HashSet::new(), "nobody, before the first");
        let clients = [ClientId([1; 16]), ClientId([2; 16])];
        file.write(&clients).expect("written");
        assert_eq!(file.read(), HashSet::from(clients));
        std::fs::write(file.path(), b"TATHOLD1 and something else").expect("written");
        assert_eq!(file.read(), HashSet::from([UNKNOWN_CLIENT]));
    }

    #[test]
    fn a_flipped_bit_of_the_list_is_somebody_unknown() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = HoldersFile::at_path(dir.path().join("holders"));
        file.write(&[ClientId([1; 16]), ClientId([2; 16])]).expect("written");
        let good = std::fs::read(file.path()).expect("read");
        for bit in 0..good.len() * 8 {
            let mut bytes = good.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            std::fs::write(file.path(), bytes).expect("written");
            assert_eq!(file.read(), HashSet::from([UNKNOWN_CLIENT]), "bit {bit}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            decode(&bytes);
        }

        #[test]
        fn no_changed_byte_goes_unnoticed(n in 0..5usize, at in 0..100usize, by in 1..=255u8) {
            let clients: Vec<_> = (1..=n).map(|i| ClientId([i as u8; 16])).collect();
            let mut bytes = encode(&clients);
            prop_assert_eq!(decode(&bytes), Some(clients.into_iter().collect()));
            let at = at % bytes.len();
            bytes[at] ^= by;
            prop_assert_eq!(decode(&bytes), None);
        }
    }
}
