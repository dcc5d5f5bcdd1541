//! Which volume, and which of its nodes, a mounted file system shows, as this process has found out.
//!
//! The mount table, the note of the process that mounted and the volume's key are read once for each mount. They are
//! read again when the kernel says that the mount table has changed: a number of a file system (`st_dev`) may be
//! another one's by then.

use parking_lot::Mutex;
use rustix::fs::Access;
use std::path::PathBuf;
use std::sync::Arc;
use tatami_cluster::mounted::Home;
use tatami_cluster::mountinfo::Changes;
use tatami_cluster::{KeyError, KeyFile, VolumeFile};
use tatami_wire::{NodeId, VolumeId, VolumeKey};

/// A mount of a volume that this process can reach: by its key, or as the user that it is, by way of the daemon at
/// whose node the mount is at home.
#[derive(Debug)]
pub(super) struct Mount {
    /// The process and the user that have found it.
    pub(super) process: u32,
    pub(super) user: u32,
    pub(super) volume: VolumeId,
    pub(super) node: NodeId,
    pub(super) socket: PathBuf,
    /// Nothing where this process may not read it; what is wrong with one that is damaged.
    pub(super) key: Result<Option<VolumeKey>, String>,
}

/// What one process has found out as one user.
struct Known {
    process: u32,
    user: u32,
    changes: Changes,
    /// By number of the file system; nothing for one that is no mount of ours.
    mounts: Vec<(u64, Option<Arc<Mount>>)>,
}

static KNOWN: Mutex<Option<Known>> = Mutex::new(None);
/// File systems that are remembered, at most.
const KNOWN_MAX: usize = 64;

/// The mount whose files have `device` as `st_dev`. Costs three system calls and no request where it is known.
pub(super) fn find(device: u64) -> Option<Arc<Mount>> {
    let (process, user) = (std::process::id(), rustix::process::geteuid().as_raw());
    let mut held = KNOWN.lock();
    // A child of the process has its parent's file of changes, of which either is told once.
    let mut known = match held.take().filter(|k| (k.process, k.user) == (process, user)) {
        Some(known) => known,
        // Changes are counted from before the table is read.
        None => Known { process, user, changes: Changes::new().ok()?, mounts: Vec::new() },
    };
    if known.changes.came() || known.mounts.len() >= KNOWN_MAX {
        known.mounts.clear();
    }
    let found = match known.mounts.iter().find(|(of, _)| *of == device) {
        Some((_, mount)) => mount.clone(),
        None => {
            let is_ours = Home::of(device);
            let mount = is_ours.clone().flatten().and_then(|home| look(home, process, user));
            let mount = mount.map(Arc::new);
            // One of ours may be noted, or become reachable, at any time.
            if is_ours.is_none() || mount.is_some() {
                known.mounts.push((device, mount.clone()));
            }
            mount
        }
    };
    *held = Some(known);
    found
}

fn look(home: Home, process: u32, user: u32) -> Option<Mount> {
    let file = VolumeFile::load(&home.dir.join("volume.toml")).ok()?;
    let node = NodeId(home.node);
    let socket = file.node(node)?.socket.clone();
    let key = match KeyFile::load(&home.dir.join("key")) {
        Ok(key) => Ok(Some(key)),
        // One that was written by its owner and does not read any more is told, rather than done without.
        Err(e @ (KeyError::Damaged { .. } | KeyError::Changed { .. })) => Err(e.to_string()),
        Err(_) => Ok(None),
    };
    let reachable =
        !matches!(key, Ok(None)) || rustix::fs::access(&socket, Access::WRITE_OK).is_ok();
    reachable.then_some(Mount { process, user, volume: file.volume, node, socket, key })
}
