//! The names of backing files.

use tatami_wire::{Ino, Piece};

/// The directory of all objects, within the data directory.
pub const OBJECTS_DIR: &str = "objects";

/// Number of bucket directories. Inode numbers are handed out in sequence, so their low byte
/// spreads objects evenly and keeps directories small.
pub(crate) const BUCKETS: u16 = 256;

/// An object: an inode and a piece of it.
pub(crate) type ObjectKey = (Ino, Piece);

/// Returns the bucket of an inode; all its pieces share it.
pub(crate) fn bucket_of(ino: Ino) -> u16 {
    (ino.0 % u64::from(BUCKETS)) as u16
}

/// Returns the bucket's directory name.
pub(crate) fn bucket_name(bucket: u16) -> String {
    format!("{bucket:02x}")
}

/// Returns the backing file's name within its bucket.
pub(crate) fn file_name(key: ObjectKey) -> String {
    format!("{}.{:08x}", key.0, key.1.0)
}

/// Returns the backing file's path within the objects directory.
pub(crate) fn object_path(key: ObjectKey) -> String {
    format!("{}/{}", bucket_name(bucket_of(key.0)), file_name(key))
}

/// Returns the path of an object's backing file, in the data directory `dir`, whether or not the
/// file exists.
pub fn backing_path(dir: &std::path::Path, ino: Ino, piece: Piece) -> std::path::PathBuf {
    dir.join(OBJECTS_DIR).join(object_path((ino, piece)))
}

/// Decodes a name that [`file_name`] made; `None` for any other name.
pub(crate) fn parse_name(name: &[u8]) -> Option<ObjectKey> {
    let hex = |digits: &[u8]| {
        digits.iter().try_fold(0u64, |n, c| {
            let digit = match c {
                b'0'..=b'9' => c - b'0',
                b'a'..=b'f' => c - b'a' + 10,
                _ => return None,
            };
            Some(n << 4 | u64::from(digit))
        })
    };
    if name.len() != 25 || name[16] != b'.' {
        return None;
    }
    let piece = u32::try_from(hex(&name[17..])?).ok()?;
    Some((Ino(hex(&name[..16])?), Piece(piece)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_name_reads_back(ino in any::<u64>(), piece in any::<u32>()) {
            let key = (Ino(ino), Piece(piece));
            prop_assert_eq!(parse_name(file_name(key).as_bytes()), Some(key));
            let whole = object_path(key);
            let (bucket, name) = whole.split_once('/').expect("a path has a bucket");
            prop_assert_eq!(bucket, bucket_name(bucket_of(key.0)));
            prop_assert_eq!(name, file_name(key));
        }

        /// In a bucket with any files, only names that the store would write are objects.
        #[test]
        fn other_names_are_no_objects(name in prop::collection::vec(any::<u8>(), 0..40)) {
            if let Some(key) = parse_name(&name) {
                let ours = file_name(key);
                prop_assert_eq!(ours.as_bytes(), &name[..]);
            }
        }
    }

    #[test]
    fn upper_case_and_signs_are_refused() {
        assert_eq!(parse_name(b"000000000000000A.00000000"), None);
        assert_eq!(parse_name(b"+00000000000000a.00000000"), None);
        assert_eq!(parse_name(b"000000000000000a.00000000"), Some((Ino(10), Piece(0))));
    }
}
