//! Finds the volume of each path on the command line.

use crate::error::{CommandFailure, CommandResult, FailureContext};
use crate::mountinfo::{self, FS_TYPE};
use crate::mounts::MountRecord;
use crate::volume_dir::{VolumeArgs, VolumeDir};
use crate::volume_path::{AnyPath, connect_tree};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tatami_client::tree::VolumeTree;
use tatami_cluster::VolumeFile;
use tatami_wire::NodeId;

/// A path in a volume.
pub struct FoundPath {
    /// The tree of the volume, through the node of the mount if there is one.
    pub tree: VolumeTree,
    /// The nodes of the volume.
    pub volume: Arc<VolumeFile>,
    /// The path within the volume.
    pub path: Vec<u8>,
}

/// The volume that was used last: most often all paths of a command are in one volume.
pub struct VolumeSessions<'a> {
    at: &'a VolumeArgs,
    open: Option<(VolumeDir, VolumeTree, Arc<VolumeFile>)>,
}

impl<'a> VolumeSessions<'a> {
    /// `at` names the volume of paths with a colon.
    pub fn new(at: &'a VolumeArgs) -> VolumeSessions<'a> {
        VolumeSessions { at, open: None }
    }

    /// Returns the name of the volume that was used last.
    pub fn volume_name(&self) -> Option<String> {
        self.open.as_ref().map(|(.., volume)| volume.name.clone())
    }

    /// Returns the volume of a path, and the path within it.
    ///
    /// # Errors
    /// A path that is neither in a volume nor on a mount, and a volume that cannot be reached.
    pub fn find_path(&mut self, any: &AnyPath) -> CommandResult<FoundPath> {
        let LocatedPath { dir, node, path } = locate_path(any)?;
        let fits = |(place, ..): &(VolumeDir, VolumeTree, Arc<VolumeFile>)| {
            dir.is_none() || dir.as_ref() == Some(&place.dir)
        };
        let (_, tree, volume) = match self.open.take().filter(fits) {
            Some(open) => self.open.insert(open),
            None => self.open.insert(self.open_volume(dir, node)?),
        };
        Ok(FoundPath { tree: tree.clone(), volume: volume.clone(), path })
    }

    fn open_volume(
        &self,
        dir: Option<PathBuf>,
        node: Option<NodeId>,
    ) -> CommandResult<(VolumeDir, VolumeTree, Arc<VolumeFile>)> {
        let mut at = self.at.clone();
        at.dir = dir.or(at.dir);
        let place = at.open()?;
        crate::log::start_logging(&place.config, false)?;
        let volume = Arc::new(place.load_volume()?);
        // Prefers the node of the mount; if it cannot be reached, any node.
        let near = node.and_then(|node| connect_tree(&place, Some(node)).ok());
        let tree = match near {
            Some(tree) => tree,
            None => connect_tree(&place, None)?,
        };
        Ok((place, tree, volume))
    }
}

/// The volume and the path within it.
struct LocatedPath {
    /// The volume's directory, for a path on a mount.
    dir: Option<PathBuf>,
    /// The node of the mount.
    node: Option<NodeId>,
    path: Vec<u8>,
}

/// Whether the path is on a mount of Tatami.
pub fn is_on_mount(path: &Path) -> bool {
    let Ok(found) = path.canonicalize() else { return false };
    mountinfo::mount_containing(&found).is_some_and(|mount| mount.fs_type == FS_TYPE)
}

fn locate_path(any: &AnyPath) -> CommandResult<LocatedPath> {
    let local = match any {
        AnyPath::Volume(path) => {
            return Ok(LocatedPath { dir: None, node: None, path: path.clone() });
        }
        AnyPath::Local(path) => path,
        AnyPath::Site(_) => {
            any.require_volume()?;
            return Err(CommandFailure::usage(any.to_string()));
        }
    };
    let found = local.canonicalize().context(|| format!("cannot find {any}"))?;
    let mount =
        mountinfo::mount_containing(&found).filter(|m| m.fs_type == FS_TYPE).ok_or_else(|| {
            CommandFailure::usage(format!("{any} is not on a mount of Tatami")).try_this(
            "tatami status lists the mounts; a path in the volume begins with a colon: :/dir/file",
        )
        })?;
    // A bind mount has no record of its own. Any mount of the same device that has one will do.
    let record = mountinfo::mount_table()
        .iter()
        .filter(|m| m.device == mount.device)
        .find_map(|m| MountRecord::load_by_path(&m.path))
        .ok_or_else(|| {
            CommandFailure::new(format!(
                "the volume of the mount {} is unknown",
                mount.path.display()
            ))
            .try_this("name it: --dir DIR, and the path within it: :/dir/file")
        })?;
    let inside = |p: &Path| p.strip_prefix("/").unwrap_or(p).to_owned();
    let below = found.strip_prefix(&mount.path).unwrap_or(Path::new(""));
    let path = Path::new("/").join(inside(&mount.root)).join(below);
    let path = path.as_os_str().as_bytes().to_vec();
    Ok(LocatedPath { dir: Some(record.dir), node: Some(NodeId(record.node)), path })
}
