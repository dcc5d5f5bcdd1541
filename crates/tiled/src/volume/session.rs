//! The session of this process with a volume, found by a file on one of its mounts.

use super::mounts::{self, ReachableMount};
use super::waits::wait_observer;
use crate::error::{Result, TiledError};
use parking_lot::Mutex;
use rustix::fs::{Access, AtFlags, StatxFlags, makedev};
use rustix::io::Errno;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use tatami_client::{Client, ClientOptions, Endpoint, Presence};
use tatami_wire::{Access as Use, Cap, ClientId, Cred, Ino, NodeId, VolumeId};

/// A client of a volume, on the node of a mount.
pub struct VolumeSession {
    pub(crate) client: Arc<Client>,
    /// The node of the mount.
    pub(super) node: NodeId,
    /// Handles of this process that have a file open for writing.
    open: Mutex<HashMap<Ino, WriterCounts>>,
    /// The last connections that keep clients of other processes alive at a node.
    presences: Mutex<Vec<(ClientId, NodeId, Arc<Presence>)>>,
}

/// Presences that are kept for later files: in most jobs one rank opens all of them. If that client
/// is dead, an unused presence delays only the closing of its open files.
const PRESENCES: usize = 16;

/// How many handles have a file open for writing.
#[derive(Clone, Copy, Debug, Default)]
struct WriterCounts {
    all: usize,
    /// Those in the name of our own client.
    own: usize,
}

impl std::fmt::Debug for VolumeSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("node", &self.node).finish_non_exhaustive()
    }
}

/// The key of a session: a child process has its own sessions, and so has another user.
#[derive(PartialEq, Eq)]
struct SessionKey {
    process: u32,
    user: u32,
    volume: VolumeId,
    node: NodeId,
    has_key: bool,
}

static SESSIONS: Mutex<Vec<(SessionKey, Arc<VolumeSession>)>> = Mutex::new(Vec::new());

/// Reports whether this process can use the objects of a file on `device`, at `path` where it
/// `exists`.
pub fn is_on_volume(device: u64, path: &Path, exists: bool) -> bool {
    let Some(mount) = mounts::find_mount(device) else { return false };
    // Journals are a part of the file: a user with write access only cannot read them.
    !matches!(mount.secrets, Ok((None, _)))
        || !exists
        || rustix::fs::access(path, Access::READ_OK) != Err(Errno::ACCESS)
}

/// A number of the node at which the mount of `path` is at home, from 1; nothing where `path` is on
/// no such mount. Unless it is `linked`, that is the mount of its directory: of the file itself,
/// which rank 0 is to make or to find, each mount would have to ask the shard.
///
/// `has_claimed`: the call of this thread before was that which claimed the path.
pub fn node_of(path: &Path, linked: bool, has_claimed: bool) -> Option<u32> {
    let mount = match mounts::found_last().filter(|_| has_claimed) {
        Some(mount) => mount,
        None => {
            let found = mounts::find_mount(device_for(path, linked)?)?;
            mounts::note_place(path, linked);
            found
        }
    };
    Some(u32::from(mount.node.0) + 1)
}

/// Returns the number of the file system at `path`. It is constant while the file system is
/// mounted, so the mount needs requests only for names that it does not know.
pub(crate) fn device_of(path: &Path) -> Option<u64> {
    let known = AtFlags::STATX_DONT_SYNC;
    let found = rustix::fs::statx(rustix::fs::CWD, path, known, StatxFlags::INO).ok()?;
    Some(makedev(found.stx_dev_major, found.stx_dev_minor))
}

/// The file system of the file at `path` where it is `linked`, and of its directory otherwise.
fn device_for(path: &Path, linked: bool) -> Option<u64> {
    let itself = if linked { device_of(path) } else { None };
    itself.or_else(|| device_of(parent_dir(path)))
}

/// The directory of a path.
pub(crate) fn parent_dir(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

impl VolumeSession {
    /// The session for a file at `path` that rank 0 has opened; `linked` as for [`node_of`].
    ///
    /// # Errors
    /// As for [`VolumeSession::acquire_session`].
    pub(super) fn for_path(path: &Path, linked: bool) -> Result<Arc<VolumeSession>> {
        let stale =
            || TiledError::with_detail("open", path, Errno::NODEV, "its directory is not there");
        let device = mounts::noted_device(path, linked).or_else(|| device_for(path, linked));
        VolumeSession::for_device(device.ok_or_else(stale)?, path)
    }

    /// The session for a file of the file system `device`.
    ///
    /// # Errors
    /// `ENODEV` where it is on no such mount, `EHOSTDOWN` where the node's daemon does not answer.
    pub(crate) fn for_device(device: u64, path: &Path) -> Result<Arc<VolumeSession>> {
        let mount = mounts::find_again(device).ok_or_else(|| {
            let why = "it is on no mount of a volume that can be reached";
            TiledError::with_detail("open", path, Errno::NODEV, why)
        })?;
        let ReachableMount { process, user, volume, node, socket, secrets } = &*mount;
        let damaged =
            |why: &String| TiledError::with_detail("open", path, Errno::KEYREJECTED, why.clone());
        let (key, tls) = secrets.as_ref().map_err(damaged)?;
        let at = SessionKey {
            process: *process,
            user: *user,
            volume: *volume,
            node: *node,
            has_key: key.is_some(),
        };
        // The lock is held while connecting, so that two threads do not open two sessions.
        let mut sessions = SESSIONS.lock();
        if let Some((_, session)) = sessions.iter().find(|(place, _)| *place == at) {
            return Ok(session.clone());
        }
        let endpoint = Endpoint::Unix(socket.clone());
        let options = ClientOptions {
            key: key.clone(),
            tls: tls.clone(),
            volume: Some(*volume),
            observer: Some(wait_observer()),
            ..ClientOptions::new(endpoint)
        };
        let client = Client::connect(options)
            .map_err(|e| TiledError::with_detail("open", path, Errno::HOSTDOWN, e.to_string()))?;
        let session = Arc::new(VolumeSession {
            client: Arc::new(client),
            node: *node,
            open: Mutex::default(),
            presences: Mutex::default(),
        });
        sessions.push((at, session.clone()));
        Ok(session)
    }

    /// Counts the handles of this process that have the file open for writing.
    pub(super) fn count_writers(&self, ino: Ino) -> usize {
        self.open.lock().get(&ino).map_or(0, |holds| holds.all)
    }

    /// Keeps `client`, of another process of this user, alive at the node of the shard that owns
    /// `ino`.
    fn keep_client_alive(&self, client: ClientId, ino: Ino) -> Option<Arc<Presence>> {
        let node = self.client.map().owner(ino.owner_shard())?.node;
        let mut presences = self.presences.lock();
        let known = presences.iter().position(|(of, at, _)| (*of, *at) == (client, node));
        if let Some(at) = known {
            // A lost connection keeps no client alive: replace it.
            if presences[at].2.is_connected() {
                return Some(presences[at].2.clone());
            }
            presences.remove(at);
        }
        let presence = Arc::new(self.client.keep_client_alive(client, ino).ok()?);
        if presences.len() >= PRESENCES {
            presences.remove(0);
        }
        presences.push((client, node, presence.clone()));
        Some(presence)
    }
}

/// Keeps a file open for writing, for one handle.
#[derive(Debug)]
pub(super) struct WriteHold {
    session: Arc<VolumeSession>,
    ino: Ino,
    /// Keeps the client of another process alive, which has the file open; `None` where our own
    /// client has it open.
    _presence: Option<Arc<Presence>>,
    is_own: bool,
}

impl WriteHold {
    /// Opens the file by our own client, with one request. The mount has checked the permission.
    ///
    /// # Errors
    /// Those of the shard.
    pub(super) fn new(
        session: &Arc<VolumeSession>,
        ino: Ino,
    ) -> std::result::Result<(WriteHold, Cap), tatami_wire::Errno> {
        // The lock is held during the request, so that no other thread closes the file in between.
        let mut open = session.open.lock();
        let (_, cap) = session.client.open(&Cred::ROOT, ino, Use::BOTH)?;
        let holds = open.entry(ino).or_default();
        (holds.all, holds.own) = (holds.all + 1, holds.own + 1);
        Ok((WriteHold { session: session.clone(), ino, _presence: None, is_own: true }, cap))
    }

    /// Uses the file as `client` has it open, of this process or another one, with the capability
    /// `cap`. No request.
    ///
    /// # Errors
    /// As for [`WriteHold::new`], which is the fallback where that client cannot be kept alive.
    pub(super) fn join_client(
        session: &Arc<VolumeSession>,
        ino: Ino,
        client: ClientId,
        cap: Cap,
    ) -> std::result::Result<(WriteHold, Cap), tatami_wire::Errno> {
        let is_own = client == session.client.id();
        let presence = if is_own { None } else { session.keep_client_alive(client, ino) };
        {
            let mut open = session.open.lock();
            let own = open.get(&ino).map_or(0, |holds| holds.own);
            // Our own client has the file open only while another handle of this process does.
            if presence.is_some() || (is_own && own > 0) {
                let holds = open.entry(ino).or_default();
                holds.all += 1;
                holds.own += usize::from(is_own);
                return Ok((
                    WriteHold { session: session.clone(), ino, _presence: presence, is_own },
                    cap,
                ));
            }
        }
        WriteHold::new(session, ino)
    }
}

impl Drop for WriteHold {
    fn drop(&mut self) {
        let mut open = self.session.open.lock();
        let Some(holds) = open.get_mut(&self.ino) else { return };
        holds.all = holds.all.saturating_sub(1);
        holds.own = holds.own.saturating_sub(usize::from(self.is_own));
        let WriterCounts { all, own } = *holds;
        if all == 0 {
            open.remove(&self.ino);
        }
        if self.is_own && own == 0 {
            // If this request is lost, the daemon closes the file when this process ends.
            let _ = self.session.client.report_closed(vec![self.ino], Vec::new(), Vec::new());
        }
    }
}
