//! The mount table, as the kernel reports it in `/proc/self/mountinfo`.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// The file system type of Tatami's mounts.
pub const FS_TYPE: &str = "fuse.tatami";
/// The file system type of a mounted directory of another site.
pub const SITE_FS_TYPE: &str = "fuse.tatami-site";

/// One line of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountEntry {
    /// `major:minor` of the file system: the same for all its mounts.
    pub device: String,
    /// The part of the file system that is mounted; `/` is all of it.
    pub root: PathBuf,
    /// The mount point.
    pub path: PathBuf,
    /// `ext4`, `fuse.tatami`, …
    pub fs_type: String,
    /// Mounting and unmounting elsewhere propagates to it (it is shared, or a slave).
    pub propagates: bool,
    /// The user that mounted it, for a FUSE file system.
    pub owner: Option<u32>,
}

/// Returns all mounts that this process sees, in mount order.
pub fn mount_table() -> Vec<MountEntry> {
    // Without /proc no mount is known.
    parse(&std::fs::read("/proc/self/mountinfo").unwrap_or_default())
}

/// Reports changes of the table: the kernel signals them to poll(2), which costs one system call.
#[derive(Debug)]
pub struct MountChanges(std::fs::File);

impl MountChanges {
    /// Starts watching. A table that is read later is no older than this call.
    ///
    /// # Errors
    /// Those of open(2), as without /proc.
    pub fn new() -> std::io::Result<MountChanges> {
        std::fs::File::open("/proc/self/mountinfo").map(MountChanges)
    }

    /// Returns whether the table has changed since the last call.
    pub fn has_changed(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let mut asked = [PollFd::new(&self.0, PollFlags::PRI)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        // If poll fails, the table counts as changed.
        match poll(&mut asked, Some(&now)) {
            Ok(_) => asked[0].revents().intersects(PollFlags::PRI | PollFlags::ERR),
            Err(_) => true,
        }
    }
}

/// Parses such a table.
pub fn parse(text: &[u8]) -> Vec<MountEntry> {
    text.split(|b| *b == b'\n').filter_map(parse_line).collect()
}

/// Returns the mount that covers `path`: the last one that was put there.
pub fn mount_at(path: &Path) -> Option<MountEntry> {
    mount_table().into_iter().rev().find(|m| m.path == path)
}

/// Returns the mount on which `path`, an absolute path without links, lies.
pub fn mount_containing(path: &Path) -> Option<MountEntry> {
    let depth = |m: &MountEntry| m.path.components().count();
    // Of two mounts at the same place the later one covers the other: `max_by_key` takes the last.
    mount_table().into_iter().filter(|m| path.starts_with(&m.path)).max_by_key(depth)
}

/// Returns the mount on which `path` lies, or would lie if it existed. `path` may have links and
/// need not exist.
pub fn mount_above(path: &Path) -> Option<MountEntry> {
    let existing = path.ancestors().find_map(|above| above.canonicalize().ok())?;
    mount_containing(&existing)
}

fn parse_line(line: &[u8]) -> Option<MountEntry> {
    // proc_pid_mountinfo(5): 36 35 98:0 /root /path options optional… - type source super
    let mut fields = line.split(|b| *b == b' ');
    let device = fields.nth(2)?;
    let root = fields.next()?;
    let path = fields.next()?;
    let mut options = fields.by_ref().take_while(|f| *f != b"-");
    let propagates =
        options.by_ref().any(|f| f.starts_with(b"shared:") || f.starts_with(b"master:"));
    options.for_each(drop);
    let fs_type = fields.next()?;
    let settings = fields.nth(1).unwrap_or_default();
    let owner = settings.split(|b| *b == b',').find_map(|o| o.strip_prefix(b"user_id="));
    Some(MountEntry {
        device: String::from_utf8_lossy(device).into_owned(),
        root: unescape_path(root),
        path: unescape_path(path),
        fs_type: String::from_utf8_lossy(fs_type).into_owned(),
        propagates,
        owner: owner.and_then(|uid| str::from_utf8(uid).ok()?.parse().ok()),
    })
}

/// Decodes blank, tab, newline and backslash, which are written as three octal digits.
fn unescape_path(text: &[u8]) -> PathBuf {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, tail)) = rest.split_first() {
        let digits = tail.get(..3).filter(|_| byte == b'\\');
        let value = digits.and_then(|d| u8::from_str_radix(std::str::from_utf8(d).ok()?, 8).ok());
        match value {
            Some(value) => {
                out.push(value);
                rest = &tail[3..];
            }
            None => {
                out.push(byte);
                rest = tail;
            }
        }
    }
    OsString::from_vec(out).into()
}

/// Returns a path as a file name, different for different paths: for records about mounts.
pub fn as_file_name(path: &Path) -> String {
    let mut name = String::new();
    for byte in path.as_os_str().as_bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'_' => name.push(*byte as char),
            other => name.push_str(&format!("-{other:02x}")),
        }
    }
    // The end of a path says more than its start. The hash distinguishes the rest.
    if name.len() > 200 {
        let sum = path.as_os_str().as_bytes().iter().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| {
            (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3) // FNV-1a
        });
        name = format!("{sum:016x}{}", &name[name.len() - 180..]);
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_with_its_escapes() {
        let text = br"29 1 0:25 / /mnt/a\040b\134c rw,nosuid shared:7 master:1 - fuse.tatami t rw,user_id=5";
        let mounted = parse_line(text).expect("a good line");
        assert_eq!(mounted.path, Path::new("/mnt/a b\\c"));
        assert_eq!((mounted.device.as_str(), mounted.fs_type.as_str()), ("0:25", FS_TYPE));
        assert!(mounted.propagates);
        assert_eq!(mounted.owner, Some(5));
        assert!(parse_line(b"1 2 0:3 / /x rw - ext4 d rw").is_some_and(|m| !m.propagates));
        assert_eq!(parse_line(b""), None);
        assert_eq!(parse_line(b"1 2 3"), None);
        assert_eq!(unescape_path(br"x\9"), Path::new(r"x\9"));
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_a_table_of_some_length(
            bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..300),
            text in "([0-9:/a-z\\\\ -]{0,80}\n){0,4}",
        ) {
            parse(&bytes);
            parse(text.as_bytes());
            proptest::prop_assert!(unescape_path(&bytes).as_os_str().len() <= bytes.len());
            let name = as_file_name(&unescape_path(&bytes));
            proptest::prop_assert!(name.len() < 255 && !name.contains('/'));
        }
    }

    #[test]
    fn the_table_of_this_machine_has_a_root() {
        assert!(mount_table().iter().any(|m| m.path == Path::new("/")));
        assert_eq!(
            mount_containing(Path::new("/proc/self")).map(|m| m.fs_type),
            Some("proc".into())
        );
    }

    #[test]
    fn file_names_differ_and_are_short() {
        assert_ne!(as_file_name(Path::new("/a/b")), as_file_name(Path::new("/a-b")));
        let long = format!("/{}", "x/".repeat(1000));
        assert!(as_file_name(Path::new(&long)).len() < 255);
    }
}
