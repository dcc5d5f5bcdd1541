//! The directories in which an archive is unpacked, by the names of its members.
//!
//! No symbolic link is followed, and each directory is used by its inode number. So no member gets
//! out of the directory of the archive, whatever the archive or another program puts in the way.

use std::collections::HashMap;
use tatami_client::Client;
use tatami_client::tree::VolumeTree;
use tatami_wire::meta::InodeTemplate;
use tatami_wire::{Errno, Ino, InodeKind, SetAttr};

/// Permission bits of a directory until all its entries are there.
const UNFINISHED_MODE: u16 = 0o700;
/// Permission bits of a directory that is no member itself, before the umask is applied.
const PARENT_MODE: u16 = 0o777;

/// Why there is no directory for a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MissingDir {
    /// This part of its name is a symbolic link.
    BehindLink(Vec<u8>),
    /// The directory with this name cannot be made or opened.
    Failed(Vec<u8>, Errno),
}

/// A directory.
struct UnpackDir {
    ino: Ino,
    /// Files up to this length have their bytes beside their inodes; `None` until it is known.
    inline_limit: Option<u64>,
    /// It was made by this command, and has no entry yet.
    is_fresh: bool,
    /// The attributes that it gets when all its entries are there.
    set: Option<SetAttr>,
}

/// The directories that were made or found so far.
pub struct UnpackDirs<'a> {
    tree: &'a VolumeTree,
    umask: u16,
    /// By their names, without a slash at the end: empty for the directory of the archive.
    dirs: HashMap<Vec<u8>, UnpackDir>,
    /// By the inode number, for the limits.
    names: HashMap<Ino, Vec<u8>>,
}

impl<'a> UnpackDirs<'a> {
    /// Begins with the directory of the archive.
    pub fn new(tree: &'a VolumeTree, root: Ino, umask: u16) -> UnpackDirs<'a> {
        let mut all = UnpackDirs { tree, umask, dirs: HashMap::new(), names: HashMap::new() };
        all.add_dir(Vec::new(), root, None, false);
        all
    }

    fn add_dir(&mut self, name: Vec<u8>, ino: Ino, inline_limit: Option<u64>, is_fresh: bool) {
        self.names.insert(ino, name.clone());
        self.dirs.insert(name, UnpackDir { ino, inline_limit, is_fresh, set: None });
    }

    /// Returns whether the next entry of a directory is its first one, and counts it.
    pub fn take_fresh(&mut self, dir: Ino) -> bool {
        let known = self.names.get(&dir).and_then(|name| self.dirs.get_mut(name));
        known.is_some_and(|known| std::mem::take(&mut known.is_fresh))
    }

    /// Returns the directory with this name. Makes it, and those above it.
    ///
    /// # Errors
    /// A part of the name is there, and is no directory.
    pub fn make_dir(&mut self, parts: &[&[u8]], is_member: bool) -> Result<Ino, MissingDir> {
        self.walk_parts(parts, Some(is_member))
    }

    /// Returns the directory with this name, if it is there.
    ///
    /// # Errors
    /// As [`UnpackDirs::make_dir`]; there is none.
    pub fn find_dir(&mut self, parts: &[&[u8]]) -> Result<Ino, MissingDir> {
        self.walk_parts(parts, None)
    }

    fn walk_parts(
        &mut self,
        parts: &[&[u8]],
        makes_member: Option<bool>,
    ) -> Result<Ino, MissingDir> {
        let client = self.tree.client().clone();
        let (mut at, mut limit) = (self.dirs[&b""[..]].ino, self.dirs[&b""[..]].inline_limit);
        let mut name = Vec::new();
        for (depth, part) in parts.iter().enumerate() {
            if depth > 0 {
                name.push(b'/');
            }
            name.extend_from_slice(part);
            if let Some(known) = self.dirs.get(&name) {
                (at, limit) = (known.ino, known.inline_limit);
                continue;
            }
            let made = match makes_member {
                Some(is_member) => {
                    let is_last = depth + 1 == parts.len();
                    self.make_part(&client, at, part, is_member && is_last)
                }
                None => Err(Errno::EEXIST),
            };
            let is_fresh = made.is_ok();
            if is_fresh {
                self.take_fresh(at);
            }
            // A new directory has the policies of the one in which it is made.
            (at, limit) = match made {
                Ok(ino) => (ino, limit),
                Err(Errno::EEXIST) => match client.lookup(self.tree.cred(), at, part) {
                    Ok(found) if found.kind == InodeKind::Dir => (found.ino, None),
                    Ok(found) if found.kind == InodeKind::Symlink => {
                        return Err(MissingDir::BehindLink(name));
                    }
                    Ok(_) => return Err(MissingDir::Failed(name, Errno::ENOTDIR)),
                    Err(e) => return Err(MissingDir::Failed(name, e)),
                },
                Err(e) => return Err(MissingDir::Failed(name, e)),
            };
            self.add_dir(name.clone(), at, limit, is_fresh);
        }
        Ok(at)
    }

    fn make_part(
        &self,
        client: &Client,
        parent: Ino,
        name: &[u8],
        is_member: bool,
    ) -> Result<Ino, Errno> {
        let (mode, umask) = match is_member {
            true => (UNFINISHED_MODE, 0),
            false => (PARENT_MODE, self.umask),
        };
        let cred = self.tree.cred();
        let made =
            client.create(cred, parent, name, InodeTemplate::Dir, mode, umask, true, None)?;
        Ok(made.attr.ino)
    }

    /// Records the attributes that a directory gets when all its entries are there. Its policies
    /// may have changed.
    pub fn record_attrs(&mut self, name: &[u8], set: SetAttr, has_policies: bool) {
        if let Some(dir) = self.dirs.get_mut(name) {
            dir.set = Some(set);
            if has_policies {
                dir.inline_limit = None;
            }
        }
    }

    /// Returns the length up to which files of a directory have their bytes beside their inodes.
    pub fn inline_limit(&mut self, dir: Ino) -> u64 {
        let Some(known) = self.names.get(&dir).and_then(|name| self.dirs.get_mut(name)) else {
            return 0;
        };
        *known.inline_limit.get_or_insert_with(|| {
            // Without an answer, the files are made as any others, which gives the right error.
            self.tree.client().find_inline_limit(self.tree.cred(), dir).unwrap_or(0)
        })
    }

    /// Returns the attributes that directories get now, with their names.
    pub fn take_attrs(&mut self) -> Vec<(Vec<u8>, Ino, SetAttr)> {
        let with_attrs = self.dirs.iter_mut().filter_map(|(name, dir)| {
            let set = dir.set.take()?;
            Some((name.clone(), dir.ino, set))
        });
        let mut all: Vec<_> = with_attrs.collect();
        all.sort_unstable_by(|one, other| one.0.cmp(&other.0));
        all
    }
}
