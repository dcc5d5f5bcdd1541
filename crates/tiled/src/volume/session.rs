//! This process's session with a volume, found by a path on one of its mounts.

use crate::error::{Error, Result};
use crate::place;
use parking_lot::Mutex;
use rustix::fs::Access;
use rustix::io::Errno;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tatami_client::{Client, Endpoint, Options};
use tatami_cluster::mounted::Home;
use tatami_cluster::{KeyError, KeyFile, VolumeFile};
use tatami_wire::{Access as Use, Cap, Cred, Ino, NodeId, VolumeKey};

/// `f_type` of FUSE in statfs(2).
const FUSE: u64 = 0x6573_5546;

/// A client of a volume, at home on the node of a mount.
pub struct Session {
    pub(super) client: Arc<Client>,
    /// The node of the mount.
    pub(super) node: NodeId,
    /// How many handles of this process have a file open for writing.
    open: Mutex<HashMap<Ino, usize>>,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("node", &self.node).finish_non_exhaustive()
    }
}

/// Where a session belongs: a child of the process has sessions of its own, and so has another user.
#[derive(PartialEq, Eq)]
struct Place {
    process: u32,
    user: u32,
    dir: PathBuf,
    node: u16,
}

static SESSIONS: Mutex<Vec<(Place, Arc<Session>)>> = Mutex::new(Vec::new());

/// The mount that has `path`, or would have it, if it is one of a volume that this process can reach: by its
/// key, or as the user that it is, by way of the daemon at whose node the mount is at home.
fn home_of(path: &Path) -> Option<(Home, std::result::Result<Option<VolumeKey>, KeyError>)> {
    let parent = || path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let found = rustix::fs::statfs(path).or_else(|_| rustix::fs::statfs(parent())).ok()?;
    if found.f_type as u64 & 0xffff_ffff != FUSE {
        return None;
    }
    let home = Home::of(&place::real(path).ok()?)?;
    let key = match KeyFile::load(&home.dir.join("key")) {
        Ok(key) => Ok(Some(key)),
        // One that was written by its owner and does not read any more is told, rather than done without.
        Err(e @ (KeyError::Damaged { .. } | KeyError::Changed { .. })) => Err(e),
        Err(_) => Ok(None),
    };
    (!matches!(key, Ok(None)) || may_connect(&home)).then_some((home, key))
}

/// May this process speak to the daemon of the mount's node?
fn may_connect(home: &Home) -> bool {
    let Ok(volume) = VolumeFile::load(&home.dir.join("volume.toml")) else { return false };
    let entry = volume.node(NodeId(home.node));
    entry.is_some_and(|entry| rustix::fs::access(&entry.socket, Access::WRITE_OK).is_ok())
}

/// Can this process use the objects of a file at `path`? One look (statfs) where it is on no FUSE
/// file system.
pub fn is_on_volume(path: &Path) -> bool {
    let Some((_, key)) = home_of(path) else { return false };
    // Journals are a part of the file, so who may write it only cannot write it in this way.
    !matches!(key, Ok(None)) || rustix::fs::access(path, Access::READ_OK) != Err(Errno::ACCESS)
}

/// A number of the node at which the mount of `path` is at home, from 1; nothing where `path` is on no such mount.
pub fn node_of(path: &Path) -> Option<u32> {
    home_of(path).map(|(home, _)| u32::from(home.node) + 1)
}

impl Session {
    /// The session for a path on a mount.
    ///
    /// # Errors
    /// `ENODEV` where it is on no such mount, `EHOSTDOWN` where the node's daemon does not answer.
    pub fn of(path: &Path) -> Result<Arc<Session>> {
        let (home, key) = home_of(path).ok_or_else(|| {
            let why = "it is on no mount of a volume that can be reached";
            Error::because("open", path, Errno::NODEV, why)
        })?;
        let user = rustix::process::geteuid().as_raw();
        let at = Place { process: std::process::id(), user, dir: home.dir, node: home.node };
        let mut sessions = SESSIONS.lock();
        if let Some((_, session)) = sessions.iter().find(|(place, _)| *place == at) {
            return Ok(session.clone());
        }
        let failed = |errno: Errno, why: String| Error::because("open", path, errno, why);
        let key = key.map_err(|e| failed(Errno::KEYREJECTED, e.to_string()))?;
        let volume = VolumeFile::load(&at.dir.join("volume.toml"))
            .map_err(|e| failed(Errno::NODEV, e.to_string()))?;
        let node = NodeId(at.node);
        let entry = volume.node(node);
        let entry = entry.ok_or_else(|| failed(Errno::NODEV, "its node is gone".into()))?;
        let endpoint = Endpoint::Unix(entry.socket.clone());
        let options = Options { key, volume: Some(volume.volume), ..Options::new(endpoint) };
        let client =
            Client::connect(options).map_err(|e| failed(Errno::HOSTDOWN, e.to_string()))?;
        let session = Arc::new(Session { client: Arc::new(client), node, open: Mutex::default() });
        sessions.push((at, session.clone()));
        Ok(session)
    }

    /// Handles of this process that have the file open for writing.
    pub(super) fn writers(&self, ino: Ino) -> usize {
        self.open.lock().get(&ino).copied().unwrap_or(0)
    }
}

/// Keeps a file open for writing, for one handle.
#[derive(Debug)]
pub(super) struct Held {
    session: Arc<Session>,
    ino: Ino,
    pub(super) cap: Cap,
}

impl Held {
    /// Permission has been checked by the mount.
    ///
    /// # Errors
    /// Those of the shard.
    pub(super) fn new(
        session: &Arc<Session>,
        ino: Ino,
    ) -> std::result::Result<Held, tatami_wire::Errno> {
        // Held on to meanwhile, so that no other thread closes in between.
        let mut open = session.open.lock();
        let (_, cap) = session.client.open(&Cred::ROOT, ino, Use::BOTH)?;
        *open.entry(ino).or_default() += 1;
        Ok(Held { session: session.clone(), ino, cap })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut open = self.session.open.lock();
        let left = open.get_mut(&self.ino).map_or(0, |count| {
            *count = count.saturating_sub(1);
            *count
        });
        if left == 0 {
            open.remove(&self.ino);
            // A daemon that does not hear of it finds out when this process ends.
            let _ = self.session.client.closed(vec![self.ino], Vec::new(), Vec::new());
        }
    }
}
