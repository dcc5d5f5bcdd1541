//! The two sides of a copy: the same operations on the volume, on this machine and on another site.

use crate::copy_stream::{CopySink, CopySource, is_standard_stream};
use crate::error::{CommandFailure, CommandResult};
use crate::mounts;
use crate::site_tree::{self, SiteReader, SiteWriter};
use crate::volume_dir::VolumeDir;
use crate::volume_path::{AnyPath, last_component, read_umask};
use rustix::process::{getegid, geteuid};
use std::collections::{BTreeSet, HashMap};
use std::fs::{File, Metadata};
use std::hash::{Hash, Hasher};
use std::io::Write;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use tatami_client::RemovalEvent;
use tatami_client::tree::{VolumeTree, join_path};
use tatami_remote::{SiteAttr, SiteChange, SiteFile, own_machine_id};
use tatami_wire::{Attr, Errno, Ino, InodeKind, SetAttr, Timestamp, XattrClass};

/// Symbolic links followed in one path before it counts as a loop, as in Linux.
const LINKS_MAX: usize = 40;
/// The permission bit with which the owner may write.
const OWNER_WRITES: u16 = 0o200;

/// The attributes of a file that a copy needs.
#[derive(Clone, Copy)]
pub struct FileFacts {
    pub kind: InodeKind,
    pub mode: u16,
    pub size: u64,
    pub mtime: Timestamp,
    /// Storage, in units of 512 bytes.
    pub blocks: u64,
    pub nlink: u64,
    pub uid: u32,
    pub gid: u32,
    /// It may have extended attributes, or an ACL.
    pub has_xattrs: bool,
    /// Equal for two paths of one file.
    pub identity: (u64, u64),
    /// Of a file of the volume: its bytes lie beside its inode.
    pub is_inline: bool,
}

impl FileFacts {
    /// Returns the attributes that `--preserve` copies.
    pub fn preserved_attrs(self) -> SetAttr {
        SetAttr {
            mode: Some(self.mode),
            mtime: Some(tatami_wire::SetTime::At(self.mtime)),
            ..SetAttr::default()
        }
    }

    /// Whether the file has holes: it takes less storage than its length needs.
    pub fn is_sparse(&self) -> bool {
        self.blocks.saturating_mul(512) < self.size
    }

    /// Whether a copy over this file must keep its inode: a new file in its place would lose
    /// another name, attributes, or the owner, or it is a device or a pipe.
    pub fn must_keep_inode(&self) -> bool {
        let is_ours =
            geteuid().is_root() || (self.uid, self.gid) == (geteuid().as_raw(), getegid().as_raw());
        self.kind != InodeKind::File || self.nlink > 1 || self.has_xattrs || !is_ours
    }
}

/// [`FileFacts::identity`] of standard input and output. No device has this number.
const STANDARD_STREAM: (u64, u64) = (u64::MAX - 1, 0);

/// The identity of an inode of the volume, for [`FileFacts::identity`].
pub fn volume_identity(ino: Ino) -> (u64, u64) {
    (u64::MAX, ino.0)
}

/// The same operations on the volume, on this machine and on another site.
pub struct CopyTrees<'a> {
    /// The tree of the volume, if a path of the command is in it.
    pub tree: Option<&'a VolumeTree>,
    pub umask: u16,
    /// The device numbers of the volume's mounts on this machine. There, an inode number of the
    /// kernel is one of the volume.
    pub mounts: BTreeSet<u64>,
    /// The identity of the volume's directory: it has the daemons' data.
    pub volume_dir: Option<(u64, u64)>,
}

impl<'a> CopyTrees<'a> {
    pub fn new(place: &VolumeDir, tree: &'a VolumeTree) -> CopyTrees<'a> {
        let volume_dir = place.dir.metadata().ok().map(|m| (m.dev(), m.ino()));
        let mounts = mounts::list_devices(&place.dir);
        CopyTrees { tree: Some(tree), umask: read_umask(), mounts, volume_dir }
    }

    /// For a copy between this machine and other sites.
    pub fn without_volume() -> CopyTrees<'a> {
        let (mounts, umask) = (BTreeSet::new(), read_umask());
        CopyTrees { tree: None, umask, mounts, volume_dir: None }
    }

    /// Returns the tree of the volume.
    ///
    /// # Errors
    /// The command has opened no volume, since none of its paths is in it.
    pub fn volume(&self) -> Result<&'a VolumeTree, Errno> {
        self.tree.ok_or(Errno::ENODEV)
    }

    /// As [`CopyTrees::volume`], for a whole command.
    ///
    /// # Errors
    /// As there.
    pub fn require_volume(&self) -> CommandResult<&'a VolumeTree> {
        self.tree.ok_or_else(|| CommandFailure::usage("none of the paths is in the volume"))
    }
}

impl CopyTrees<'_> {
    pub fn read_facts(&self, path: &AnyPath, follow: bool) -> Result<FileFacts, Errno> {
        match path {
            path if is_standard_stream(path) => Ok(FileFacts {
                kind: InodeKind::Fifo,
                mode: 0o666,
                size: 0,
                mtime: Timestamp::default(),
                blocks: 0,
                nlink: 1,
                uid: 0,
                gid: 0,
                has_xattrs: false,
                identity: STANDARD_STREAM,
                is_inline: false,
            }),
            AnyPath::Volume(path) => Ok(facts_of_attr(&self.volume()?.stat(path, follow)?)),
            AnyPath::Local(path) => {
                let m = if follow { path.metadata()? } else { path.symlink_metadata()? };
                self.facts_of_metadata(&m)
            }
            AnyPath::Site(file) => facts_of_site(file, &site_tree::look_at(file, follow)?.attr),
        }
    }

    fn facts_of_metadata(&self, m: &Metadata) -> Result<FileFacts, Errno> {
        Ok(FileFacts {
            kind: InodeKind::from_mode(m.mode()).ok_or(Errno::EINVAL)?,
            mode: (m.mode() & 0o7777) as u16,
            size: m.size(),
            mtime: Timestamp { sec: m.mtime(), nsec: m.mtime_nsec() as u32 },
            blocks: m.blocks(),
            nlink: m.nlink(),
            uid: m.uid(),
            gid: m.gid(),
            // Read where it matters: it would take a system call for each file.
            has_xattrs: false,
            identity: match self.mounts.contains(&m.dev()) {
                true => volume_identity(Ino(m.ino())),
                false => (m.dev(), m.ino()),
            },
            is_inline: false,
        })
    }

    /// Returns the attributes of all entries of a directory, by name. Links are not followed.
    pub fn list_facts(&self, path: &AnyPath) -> Result<HashMap<Vec<u8>, FileFacts>, Errno> {
        let mut found = HashMap::new();
        if let AnyPath::Volume(dir) = path {
            for entry in self.volume()?.read_dir(dir, true)? {
                let facts = match &entry.attr {
                    Some(attr) => facts_of_attr(attr),
                    None => match self.volume()?.stat(&join_path(dir, &entry.name), false) {
                        Ok(attr) => facts_of_attr(&attr),
                        Err(Errno::ENOENT) => continue,
                        Err(e) => return Err(e),
                    },
                };
                found.insert(entry.name.into_vec(), facts);
            }
            return Ok(found);
        }
        if let AnyPath::Site(dir) = path {
            for entry in site_tree::list_dir(dir)? {
                let facts = facts_of_site(dir, &entry.attr)?;
                found.insert(entry.name.into_vec(), facts);
            }
            return Ok(found);
        }
        for name in self.list_names(path)? {
            match self.read_facts(&append_name(path, &name), false) {
                Ok(facts) => drop(found.insert(name, facts)),
                Err(Errno::ENOENT) => {} // removed meanwhile
                Err(e) => return Err(e),
            }
        }
        Ok(found)
    }

    pub fn list_names(&self, path: &AnyPath) -> Result<Vec<Vec<u8>>, Errno> {
        match path {
            AnyPath::Volume(path) => {
                let entries = self.volume()?.read_dir(path, false)?;
                Ok(entries.into_iter().map(|e| e.name.into_vec()).collect())
            }
            AnyPath::Local(path) => {
                let mut names = Vec::new();
                for entry in std::fs::read_dir(path)? {
                    names.push(entry?.file_name().into_vec());
                }
                names.sort_unstable();
                Ok(names)
            }
            AnyPath::Site(dir) => {
                let entries = site_tree::list_dir(dir)?;
                Ok(entries.into_iter().map(|entry| entry.name.into_vec()).collect())
            }
        }
    }

    /// Returns whether `path`, which may not exist yet, lies in the directory `dir` or below it.
    pub fn lies_within(&self, path: &AnyPath, dir: (u64, u64)) -> bool {
        // The deepest directory of the path that exists.
        let mut at = path.clone();
        let mut facts = loop {
            match self.read_facts(&at, true) {
                Ok(facts) if facts.kind == InodeKind::Dir => break facts,
                _ => match parent_of(&at) {
                    Some(parent) => at = parent,
                    None => return false,
                },
            }
        };
        // Then upwards. The parent of the root is the root.
        loop {
            if facts.identity == dir {
                return true;
            }
            at = append_name(&at, b"..");
            match self.read_facts(&at, true) {
                Ok(above) if above.identity != facts.identity => facts = above,
                _ => return false,
            }
        }
    }

    /// Returns why an entry of a directory of this machine is not copied along with it: the volume
    /// would be copied into itself.
    pub fn why_left_out(&self, dir: &FileFacts, entry: &FileFacts) -> Option<&'static str> {
        if entry.kind != InodeKind::Dir {
            None
        } else if Some(entry.identity) == self.volume_dir {
            Some("it is the directory of this volume")
        } else if is_of_volume(entry) && !is_of_volume(dir) {
            Some("it is a mount of this volume")
        } else {
            None
        }
    }

    /// Opens a source. `facts` are its attributes, if they are known: a file of the volume is then
    /// opened by its number, which saves the requests for each name of the path.
    pub fn open_source(
        &self,
        path: &AnyPath,
        facts: Option<&FileFacts>,
    ) -> Result<CopySource, Errno> {
        Ok(match path {
            path if is_standard_stream(path) => CopySource::Stream(Box::new(std::io::stdin())),
            AnyPath::Volume(path) => {
                let known = facts.filter(|f| is_of_volume(f) && f.kind == InodeKind::File);
                let opened = match known {
                    Some(facts) => self.volume()?.open_inode(Ino(facts.identity.1)),
                    None => Err(Errno::ENOENT),
                };
                // Another file may have its name by now.
                let file = match opened {
                    Err(Errno::ENOENT | Errno::ESTALE) => self.volume()?.open(path),
                    opened => opened,
                };
                CopySource::Volume(Box::new(file?))
            }
            AnyPath::Local(path) => CopySource::Local(File::open(path)?),
            AnyPath::Site(file) => CopySource::Site(Box::new(SiteReader::open(file)?)),
        })
    }

    /// Returns the path of a destination behind links, and whether the file there keeps its inode.
    ///
    /// # Errors
    /// The file may not be written.
    pub fn find_sink_place(
        &self,
        path: &AnyPath,
        old: Option<&FileFacts>,
    ) -> Result<(AnyPath, bool), Errno> {
        let keeps_inode = match old {
            Some(old) if !old.must_keep_inode() => {
                let is_writable = geteuid().is_root() || old.mode & OWNER_WRITES != 0;
                if !is_writable {
                    return Err(Errno::EACCES);
                }
                self.has_local_xattrs(path)
            }
            Some(_) => true,
            None => false,
        };
        // A link at the end stays: the file that it leads to is replaced.
        let end = if old.is_some() { self.resolve_links(path)? } else { path.clone() };
        Ok((end, keeps_inode))
    }

    /// Creates the destination of a copy. `old` is what is there now, behind links.
    pub fn create_sink(
        &self,
        path: &AnyPath,
        mode: u16,
        old: Option<&FileFacts>,
    ) -> Result<CopySink, Errno> {
        if is_standard_stream(path) {
            return Ok(CopySink::Stream(Box::new(std::io::stdout())));
        }
        if let AnyPath::Site(file) = path {
            // The I/O process decides as below: it knows the user there.
            return Ok(CopySink::Site(SiteWriter::create(file, mode & 0o777)?));
        }
        let (end, keeps_inode) = self.find_sink_place(path, old)?;
        let mode = mode & 0o777;
        Ok(match (end, keeps_inode) {
            (AnyPath::Volume(path), false) => {
                let new = self.volume()?.create_unnamed(&path, mode, self.umask)?;
                CopySink::VolumeNew(Box::new(new))
            }
            (AnyPath::Volume(path), true) => {
                CopySink::VolumeOld(Box::new(self.volume()?.create(&path, mode, self.umask)?))
            }
            (AnyPath::Local(path), false) => CopySink::create_local(&path, u32::from(mode))?,
            (AnyPath::Local(path), true) => CopySink::LocalOld(
                std::fs::OpenOptions::new()
                    .write(true)
                    .create(true)
                    .truncate(true)
                    .mode(u32::from(mode))
                    .open(path)?,
            ),
            (AnyPath::Site(file), _) => CopySink::Site(SiteWriter::create(&file, mode)?),
        })
    }

    /// Completes a destination: sets its attributes, and gives a new file its name. The new file
    /// replaces `old`. It gets the mode and the time of `preserved`, the source.
    pub fn finish_sink(
        &self,
        sink: CopySink,
        old: Option<&FileFacts>,
        preserved: Option<&FileFacts>,
        may_replace: bool,
    ) -> Result<(), Errno> {
        let set = attrs_of_copy(old, preserved);
        match sink {
            CopySink::Stream(mut stream) => Ok(stream.flush()?),
            CopySink::Site(file) => file.finish(change_of(preserved), may_replace),
            CopySink::VolumeNew(file) => file.publish(set, may_replace),
            CopySink::VolumeOld(file) => {
                let ino = file.attr().ino;
                file.close()?;
                let tree = self.volume()?;
                let (client, cred) = (tree.client(), tree.cred());
                match preserved {
                    Some(facts) => client.setattr(cred, ino, facts.preserved_attrs()).map(drop),
                    None => Ok(()),
                }
            }
            CopySink::VolumePart(part) => {
                let mut set = set.unwrap_or_default();
                let mode = set.mode.unwrap_or(part.mode() & !self.umask);
                set.mode = Some(mode);
                part.finish(self.volume()?, set, may_replace)
            }
            CopySink::LocalPart(part) => {
                let mut set = set.unwrap_or_default();
                set.mode = set.mode.or(Some(part.mode));
                let set_attrs = |file: &File| set_local_attrs(file, &set, preserved);
                Ok(part.part.finish(may_replace, set_attrs)?)
            }
            CopySink::LocalNew(file, path) => {
                set_local_attrs(file.as_file(), &set.unwrap_or_default(), preserved)?;
                let named = match may_replace {
                    true => file.persist(path),
                    false => file.persist_noclobber(path),
                };
                named.map(drop).map_err(|e| e.error.into())
            }
            CopySink::LocalOld(file) => {
                if let Some(facts) = preserved {
                    let mode = std::fs::Permissions::from_mode(u32::from(facts.mode));
                    file.set_permissions(mode)?;
                    set_local_time(&file, facts.mtime)?;
                }
                Ok(())
            }
        }
    }

    /// Whether a file of this machine has extended attributes. Where they cannot be read, it counts
    /// as having some.
    fn has_local_xattrs(&self, path: &AnyPath) -> bool {
        match path {
            AnyPath::Volume(_) | AnyPath::Site(_) => false,
            AnyPath::Local(path) => {
                let mut none: [u8; 0] = [];
                match rustix::fs::listxattr(path, &mut none) {
                    Ok(length) => length > 0,
                    Err(rustix::io::Errno::OPNOTSUPP) => false,
                    Err(_) => true,
                }
            }
        }
    }

    /// Follows the links at the end of a path.
    fn resolve_links(&self, path: &AnyPath) -> Result<AnyPath, Errno> {
        let mut at = match path {
            AnyPath::Local(path) => return Ok(AnyPath::Local(path.canonicalize()?)),
            AnyPath::Volume(path) => path.clone(),
            AnyPath::Site(_) => return Ok(path.clone()),
        };
        for _ in 0..LINKS_MAX {
            if self.volume()?.stat(&at, false)?.kind != InodeKind::Symlink {
                return Ok(AnyPath::Volume(at));
            }
            let target = self.volume()?.read_link(&at)?;
            at = match parent_of(&AnyPath::Volume(at)) {
                Some(AnyPath::Volume(parent)) if !target.starts_with(b"/") => {
                    join_path(&parent, &target)
                }
                _ => target,
            };
        }
        Err(Errno::ELOOP)
    }

    /// Removes a path with everything below it.
    pub fn remove_path(&self, path: &AnyPath) -> Result<(), Errno> {
        match path {
            AnyPath::Volume(path) => {
                let mut first = None;
                self.volume()?.remove_all(path, false, &mut |event| {
                    if let RemovalEvent::Failed(_, errno) = event {
                        first.get_or_insert(errno);
                    }
                })?;
                first.map_or(Ok(()), Err)
            }
            AnyPath::Local(path) if path.symlink_metadata()?.is_dir() => {
                Ok(std::fs::remove_dir_all(path)?)
            }
            AnyPath::Local(path) => Ok(std::fs::remove_file(path)?),
            AnyPath::Site(file) => {
                let mut first = None;
                site_tree::remove_all(file, &mut |step| {
                    first = first.or(step.failed.first().map(|(_, errno)| Errno(*errno)));
                })?;
                first.map_or(Ok(()), Err)
            }
        }
    }

    /// Makes a directory. Returns false if it was there.
    pub fn mkdir(&self, path: &AnyPath, mode: u16) -> Result<bool, Errno> {
        // The copy must be able to fill it, regardless of the mode of the original.
        let mode = (mode & 0o777) | 0o700;
        let made = match path {
            AnyPath::Volume(path) => self.volume()?.mkdir(path, mode, self.umask).map(drop),
            AnyPath::Local(path) => std::os::unix::fs::DirBuilderExt::mode(
                &mut std::fs::DirBuilder::new(),
                u32::from(mode),
            )
            .create(path)
            .map_err(Errno::from),
            AnyPath::Site(file) => site_tree::make_dir(file, mode, false),
        };
        match made {
            Ok(()) => Ok(true),
            Err(Errno::EEXIST) if self.read_facts(path, true)?.kind == InodeKind::Dir => Ok(false),
            Err(e) => Err(e),
        }
    }

    pub fn read_link(&self, path: &AnyPath) -> Result<Vec<u8>, Errno> {
        Ok(match path {
            AnyPath::Volume(path) => self.volume()?.read_link(path)?,
            AnyPath::Local(path) => std::fs::read_link(path)?.into_os_string().into_vec(),
            AnyPath::Site(file) => {
                let target = site_tree::look_at(file, false)?.target;
                target.ok_or(Errno::EINVAL)?.into_vec()
            }
        })
    }

    pub fn make_link(&self, to: &AnyPath, target: &[u8]) -> Result<(), Errno> {
        match to {
            AnyPath::Volume(path) => self.volume()?.symlink(path, target).map(drop),
            AnyPath::Local(path) => {
                let target = std::ffi::OsStr::from_bytes(target);
                std::os::unix::fs::symlink(target, path).map_err(Errno::from)
            }
            AnyPath::Site(file) => site_tree::make_link(file, target),
        }
    }

    pub fn preserve_attrs(&self, path: &AnyPath, facts: &FileFacts) -> Result<(), Errno> {
        match path {
            AnyPath::Volume(path) => {
                self.volume()?.set_attrs(path, facts.preserved_attrs()).map(drop)
            }
            AnyPath::Local(path) => {
                let mode = std::fs::Permissions::from_mode(u32::from(facts.mode));
                std::fs::set_permissions(path, mode)?;
                let flags = rustix::fs::AtFlags::empty();
                rustix::fs::utimensat(rustix::fs::CWD, path, &times_of(facts.mtime), flags)
                    .map_err(|e| Errno(e.raw_os_error()))
            }
            AnyPath::Site(file) => site_tree::change_attrs(file, change_of(Some(facts))),
        }
    }
}

/// Returns what `--preserve` changes on another site.
pub fn change_of(preserved: Option<&FileFacts>) -> SiteChange {
    SiteChange {
        mode: preserved.map(|facts| facts.mode.into()),
        modified: preserved.map(|facts| (facts.mtime.sec, facts.mtime.nsec)),
    }
}

pub fn facts_of_site(file: &SiteFile, found: &SiteAttr) -> Result<FileFacts, Errno> {
    let attr = site_tree::attr_of(found)?;
    // Two addresses may lead to one machine, or to this one.
    let machine = site_tree::session_of(file)?.machine();
    if !machine.is_empty() && machine == own_machine_id() {
        return Ok(FileFacts { identity: (found.dev, found.ino), ..facts_of_attr(&attr) });
    }
    let site = Some(&file.site).filter(|_| machine.is_empty());
    // No device number of this machine has the highest bit.
    let mut hasher = std::hash::DefaultHasher::new();
    (site, machine, found.dev).hash(&mut hasher);
    let device = (hasher.finish() | 1 << 63) & !2;
    Ok(FileFacts { identity: (device, found.ino), ..facts_of_attr(&attr) })
}

/// Returns the attributes that a new file gets: those of the source, if it is `preserved`, and
/// otherwise those of the file `old` that it replaces, as if that had been written.
pub fn attrs_of_copy(old: Option<&FileFacts>, preserved: Option<&FileFacts>) -> Option<SetAttr> {
    let mut set = preserved.map(|facts| facts.preserved_attrs());
    if let Some(old) = old {
        let set = set.get_or_insert_default();
        set.mode = set.mode.or(Some(old.mode));
        if geteuid().is_root() {
            (set.uid, set.gid) = (Some(old.uid), Some(old.gid));
        }
    }
    set
}

fn facts_of_attr(a: &Attr) -> FileFacts {
    FileFacts {
        kind: a.kind,
        mode: a.mode,
        size: a.size,
        mtime: a.mtime,
        blocks: a.blocks,
        nlink: a.nlink.into(),
        uid: a.uid,
        gid: a.gid,
        has_xattrs: a.xattr_class != XattrClass::NoXattr,
        identity: volume_identity(a.ino),
        is_inline: a.kind == InodeKind::File && a.layout.is_inline(),
    }
}

fn times_of(mtime: Timestamp) -> rustix::fs::Timestamps {
    let time = rustix::fs::Timespec { tv_sec: mtime.sec, tv_nsec: i64::from(mtime.nsec) };
    let omit = rustix::fs::Timespec { tv_sec: 0, tv_nsec: libc::UTIME_OMIT };
    rustix::fs::Timestamps { last_access: omit, last_modification: time }
}

/// Gives a new file of this machine its owner, its mode and its time.
fn set_local_attrs(
    file: &File,
    set: &SetAttr,
    preserved: Option<&FileFacts>,
) -> std::io::Result<()> {
    if let (Some(uid), Some(gid)) = (set.uid, set.gid) {
        std::os::unix::fs::fchown(file, Some(uid), Some(gid))?;
    }
    if let Some(mode) = set.mode {
        file.set_permissions(std::fs::Permissions::from_mode(u32::from(mode)))?;
    }
    match preserved {
        Some(facts) => Ok(rustix::fs::futimens(file, &times_of(facts.mtime))?),
        None => Ok(()),
    }
}

fn set_local_time(file: &File, mtime: Timestamp) -> Result<(), Errno> {
    rustix::fs::futimens(file, &times_of(mtime)).map_err(|e| Errno(e.raw_os_error()))
}

/// Returns `path` with `name` appended.
pub fn append_name(path: &AnyPath, name: &[u8]) -> AnyPath {
    path.join(name)
}

/// Returns the path without its last name, or `None` where it has none to take away.
fn parent_of(path: &AnyPath) -> Option<AnyPath> {
    match path {
        AnyPath::Volume(path) => {
            let name = last_component(path);
            let end = path.iter().rposition(|b| *b != b'/')? + 1 - name.len();
            Some(AnyPath::Volume(path[..end].to_vec()))
        }
        AnyPath::Local(path) => {
            let parent = path.parent()?;
            match parent.as_os_str().is_empty() {
                false => Some(AnyPath::Local(parent.to_owned())),
                // A relative path begins in the working directory.
                true => (path.as_os_str() != ".").then(|| AnyPath::Local(".".into())),
            }
        }
        AnyPath::Site(file) => {
            let AnyPath::Local(path) = parent_of(&AnyPath::Local(file.path.clone()))? else {
                return None;
            };
            Some(AnyPath::Site(SiteFile { site: file.site.clone(), path }))
        }
    }
}

fn is_of_volume(facts: &FileFacts) -> bool {
    facts.identity.0 == volume_identity(Ino::ROOT).0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_put_below_either_side() {
        let volume = AnyPath::Volume(b"/a".to_vec());
        assert_eq!(append_name(&volume, b"b"), AnyPath::Volume(b"/a/b".to_vec()));
        let local = AnyPath::Local("/x".into());
        assert_eq!(append_name(&local, b"b"), AnyPath::Local("/x/b".into()));
    }

    #[test]
    fn names_are_taken_away_on_either_side() {
        let parents = |path: AnyPath| {
            let all = std::iter::successors(Some(path), parent_of).skip(1);
            all.map(|path| path.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(parents(AnyPath::Volume(b"/a/b/".to_vec())), [":/a/", ":/"]);
        assert_eq!(parents(AnyPath::Volume(b"/".to_vec())), [""; 0]);
        assert_eq!(parents(AnyPath::Local("/x/y".into())), ["/x", "/"]);
        assert_eq!(parents(AnyPath::Local("x/y".into())), ["x", "."]);
    }
}
