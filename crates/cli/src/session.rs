//! Finds the volume of each path on the command line.

use crate::error::{Context, Failure, Outcome};
use crate::mountinfo::{self, FS_TYPE};
use crate::mounts::MountRecord;
use crate::place::{At, Place};
use crate::volume_path::{AnyPath, tree};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tatami_client::tree::Tree;
use tatami_cluster::VolumeFile;
use tatami_wire::NodeId;

/// A path in a volume.
pub struct Found {
    /// The tree of the volume, through the node of the mount if there is one.
    pub tree: Tree,
    /// The nodes of the volume.
    pub volume: Arc<VolumeFile>,
    /// The path within the volume.
    pub path: Vec<u8>,
}

/// The volume that was used last: most often all paths of a command are in one volume.
pub struct Sessions<'a> {
    at: &'a At,
    open: Option<(Place, Tree, Arc<VolumeFile>)>,
}

impl<'a> Sessions<'a> {
    /// `at` names the volume of paths with a colon.
    pub fn new(at: &'a At) -> Sessions<'a> {
        Sessions { at, open: None }
    }

    /// Returns the name of the volume that was used last.
    pub fn volume(&self) -> Option<String> {
        self.open.as_ref().map(|(.., volume)| volume.name.clone())
    }

    /// Returns the volume of a path, and the path within it.
    ///
    /// # Errors
    /// A path that is neither in a volume nor on a mount, and a volume that cannot be reached.
    pub fn find(&mut self, any: &AnyPath) -> Outcome<Found> {
        let Located { dir, node, path } = locate(any)?;
        let fits = |(place, ..): &(Place, Tree, Arc<VolumeFile>)| {
            dir.is_none() || dir.as_ref() == Some(&place.dir)
        };
        let (_, tree, volume) = match self.open.take().filter(fits) {
            Some(open) => self.open.insert(open),
            None => self.open.insert(self.start(dir, node)?),
        };
        Ok(Found { tree: tree.clone(), volume: volume.clone(), path })
    }

    fn start(
        &self,
        dir: Option<PathBuf>,
        node: Option<NodeId>,
    ) -> Outcome<(Place, Tree, Arc<VolumeFile>)> {
        let mut at = self.at.clone();
        at.dir = dir.or(at.dir);
        let place = at.open()?;
        crate::log::start(&place.config, false)?;
        let volume = Arc::new(place.volume()?);
        // Prefers the node of the mount; if it cannot be reached, any node.
        let near = node.and_then(|node| tree(&place, Some(node)).ok());
        let tree = match near {
            Some(tree) => tree,
            None => tree(&place, None)?,
        };
        Ok((place, tree, volume))
    }
}

/// The volume and the path within it.
struct Located {
    /// The volume's directory, for a path on a mount.
    dir: Option<PathBuf>,
    /// The node of the mount.
    node: Option<NodeId>,
    path: Vec<u8>,
}

/// Whether the path is on a mount of Tatami.
pub fn is_on_mount(path: &Path) -> bool {
    let Ok(found) = path.canonicalize() else { return false };
    mountinfo::containing(&found).is_some_and(|mount| mount.fs_type == FS_TYPE)
}

fn locate(any: &AnyPath) -> Outcome<Located> {
    let local = match any {
        AnyPath::Volume(path) => return Ok(Located { dir: None, node: None, path: path.clone() }),
        AnyPath::Local(path) => path,
    };
    let found = local.canonicalize().context(|| format!("cannot find {any}"))?;
    let mount =
        mountinfo::containing(&found).filter(|m| m.fs_type == FS_TYPE).ok_or_else(|| {
            Failure::usage(format!("{any} is not on a mount of Tatami")).try_this(
            "tatami status lists the mounts; a path in the volume begins with a colon: :/dir/file",
        )
        })?;
    // A bind mount has no record of its own. Any mount of the same device that has one will do.
    let record = mountinfo::table()
        .iter()
        .filter(|m| m.device == mount.device)
        .find_map(|m| MountRecord::load(&m.path))
        .ok_or_else(|| {
            Failure::new(format!("the volume of the mount {} is unknown", mount.path.display()))
                .try_this("name it: --dir DIR, and the path within it: :/dir/file")
        })?;
    let inside = |p: &Path| p.strip_prefix("/").unwrap_or(p).to_owned();
    let below = found.strip_prefix(&mount.path).unwrap_or(Path::new(""));
    let path = Path::new("/").join(inside(&mount.root)).join(below);
    let path = path.as_os_str().as_bytes().to_vec();
    Ok(Located { dir: Some(record.dir), node: Some(NodeId(record.node)), path })
}
