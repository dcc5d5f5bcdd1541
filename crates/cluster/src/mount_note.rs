//! Finds the volume and the node of the mount on which a file lies.
//!
//! A mount process writes a note below `/run/tatami` (an ordinary user: below its runtime
//! directory), in a file named after the mount's path. So a path alone is enough to find the
//! volume.

use crate::mountinfo::{self, FS_TYPE};
use serde::Deserialize;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Begins the last line of a note, which ends with the CRC-32C of all bytes before it in
/// hexadecimal digits.
const CHECKSUM: &str = "# checksum of all above: ";

/// Returns the text of a note with its checksum.
pub fn seal_note(text: &str) -> String {
    format!("{text}{CHECKSUM}{:08x}\n", crc32c::crc32c(text.as_bytes()))
}

/// Returns the text of a note; `None` if it has no checksum, or does not match it.
pub fn unseal_note(note: &str) -> Option<&str> {
    let (text, sum) = note.rsplit_once(CHECKSUM)?;
    (sum.trim_end() == format!("{:08x}", crc32c::crc32c(text.as_bytes()))).then_some(text)
}

/// Returns the directories of notes: the superuser's, and those of this user.
pub fn note_dirs() -> Vec<PathBuf> {
    let uid = rustix::process::geteuid();
    let own = PathBuf::from(format!("/tmp/tatami-{}", uid.as_raw()));
    let mut places = vec![PathBuf::from("/run/tatami"), own];
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    if let Some(dir) = runtime.filter(|d| d.is_absolute() && !uid.is_root()) {
        places.insert(1, dir.join("tatami"));
    }
    // In a directory that others can write to, any user can make one of that name.
    places.retain(|place| {
        place.symlink_metadata().map_or(true, |m| {
            m.is_dir() && (m.uid() == uid.as_raw() || m.uid() == 0) && m.mode() & 0o022 == 0
        })
    });
    places
}

/// The content of a note on a mount, apart from the process that serves it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct MountNote {
    /// The path of the mount.
    path: PathBuf,
    /// The directory of the volume.
    pub dir: PathBuf,
    /// The number of the node that the mount uses first.
    pub node: u16,
}

impl MountNote {
    /// Finds the file system of that number (`st_dev` of any of its files), if it is a mount of
    /// Tatami. The inner `None` means that no mount process has written a note on it (yet).
    pub fn for_device(device: u64) -> Option<Option<MountNote>> {
        let device = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
        let table = mountinfo::mount_table();
        // It may be mounted at several places, and bound to some: any with a note will do.
        let mut same =
            table.iter().filter(|m| m.device == device && m.fs_type == FS_TYPE).peekable();
        same.peek()?;
        let places = note_dirs();
        let noted = same.flat_map(|m| places.iter().map(move |place| (place, &m.path)));
        Some(noted.into_iter().find_map(|(place, path)| MountNote::read_note(place, path)))
    }

    fn read_note(place: &Path, path: &Path) -> Option<MountNote> {
        let text = std::fs::read_to_string(place.join(mountinfo::as_file_name(path))).ok()?;
        let home: MountNote = toml::from_str(unseal_note(&text)?).ok()?;
        (home.path == path).then_some(home)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flipped_bit_of_a_note_makes_none_of_it() {
        let place = tempfile::tempdir().unwrap();
        let path = Path::new("/mnt/a b");
        let text = seal_note("path = \"/mnt/a b\"\ndir = \"/vol\"\nnode = 3\n");
        let home = MountNote { path: path.into(), dir: "/vol".into(), node: 3 };
        let file = place.path().join(mountinfo::as_file_name(path));
        for bit in 0..text.len() * 8 {
            let mut bytes = text.clone().into_bytes();
            bytes[bit / 8] ^= 1 << (bit % 8);
            std::fs::write(&file, bytes).unwrap();
            let read = MountNote::read_note(place.path(), path);
            assert!(read.is_none() || read.as_ref() == Some(&home), "bit {bit}: {read:?}");
        }
        std::fs::write(&file, &text).unwrap();
        assert_eq!(MountNote::read_note(place.path(), path), Some(home));
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_a_note_or_none(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..200)) {
            let _ = unseal_note(&String::from_utf8_lossy(&bytes));
        }
    }

    #[test]
    fn a_note_is_read_by_its_path() {
        let place = tempfile::tempdir().unwrap();
        let (path, other) = (Path::new("/mnt/a b"), Path::new("/mnt/other"));
        let text = "path = \"/mnt/a b\"\ndir = \"/vol\"\nnode = 3\n[process]\npid = 1\nstart = 2\nboot = \"b\"\n";
        let write = |text: &str| {
            for at in [path, other] {
                std::fs::write(place.path().join(mountinfo::as_file_name(at)), text).unwrap();
            }
        };
        write(text);
        assert_eq!(MountNote::read_note(place.path(), path), None, "it has no checksum");
        write(&seal_note(text));
        let home = MountNote { path: path.into(), dir: "/vol".into(), node: 3 };
        assert_eq!(MountNote::read_note(place.path(), path), Some(home));
        assert_eq!(MountNote::read_note(place.path(), other), None);
        assert_eq!(MountNote::for_device(Path::new("/proc/self").metadata().unwrap().dev()), None);
    }
}
