//! This process's session with a volume, found by a file on one of its mounts.

use super::mounts::{self, Mount};
use crate::error::{Error, Result};
use parking_lot::Mutex;
use rustix::fs::{Access, AtFlags, StatxFlags, makedev};
use rustix::io::Errno;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use tatami_client::{Client, Endpoint, Options, Presence};
use tatami_wire::{Access as Use, Cap, ClientId, Cred, Ino, NodeId, VolumeId};

/// A client of a volume, at home on the node of a mount.
pub struct Session {
    pub(super) client: Arc<Client>,
    /// The node of the mount.
    pub(super) node: NodeId,
    /// Handles of this process that have a file open for writing.
    open: Mutex<HashMap<Ino, Holds>>,
    /// By which clients of other processes are kept alive at a node, the last ones.
    presences: Mutex<Vec<(ClientId, NodeId, Arc<Presence>)>>,
}

/// Presences that are kept for the next files: of a job, mostly one rank opens all. One that is no longer needed delays
/// no more than the end of what that client, had it died, would have left open.
const PRESENCES: usize = 16;

/// How many handles have a file open for writing.
#[derive(Clone, Copy, Debug, Default)]
struct Holds {
    all: usize,
    /// Of these, those in the name of our own client.
    own: usize,
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
    volume: VolumeId,
    node: NodeId,
    has_key: bool,
}

static SESSIONS: Mutex<Vec<(Place, Arc<Session>)>> = Mutex::new(Vec::new());

/// Can this process use the objects of a file on `device`, which is at `path` where it `exists`?
pub fn is_on_volume(device: u64, path: &Path, exists: bool) -> bool {
    let Some(mount) = mounts::find(device) else { return false };
    // Journals are a part of the file, so who may write it only cannot write it in this way.
    !matches!(mount.key, Ok(None))
        || !exists
        || rustix::fs::access(path, Access::READ_OK) != Err(Errno::ACCESS)
}

/// A number of the node at which the mount of `path` is at home, from 1; nothing where `path` is on no such mount. Unless
/// it is `linked`, that is the mount of its directory: of the file itself, which rank 0 is to make or to find,
/// each mount would have to ask the shard.
pub fn node_of(path: &Path, linked: bool) -> Option<u32> {
    mounts::find(device_for(path, linked)?).map(|mount| u32::from(mount.node.0) + 1)
}

/// The number of the file system of what is at `path`. It stays as long as the file system is there, so that a mount is
/// asked for no more than the names of which it does not know.
pub(crate) fn device_of(path: &Path) -> Option<u64> {
    let known = AtFlags::STATX_DONT_SYNC;
    let found = rustix::fs::statx(rustix::fs::CWD, path, known, StatxFlags::INO).ok()?;
    Some(makedev(found.stx_dev_major, found.stx_dev_minor))
}

/// That of the file at `path` where it is `linked`, of its directory otherwise.
fn device_for(path: &Path, linked: bool) -> Option<u64> {
    let itself = if linked { device_of(path) } else { None };
    itself.or_else(|| device_of(parent(path)))
}

/// The directory of a path.
pub(crate) fn parent(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

impl Session {
    /// The session for a file at `path` that rank 0 has opened, `linked` as for [`node_of`].
    ///
    /// # Errors
    /// As for [`Session::of`].
    pub(super) fn at(path: &Path, linked: bool) -> Result<Arc<Session>> {
        let stale = || Error::because("open", path, Errno::NODEV, "its directory is not there");
        Session::of(device_for(path, linked).ok_or_else(stale)?, path)
    }

    /// The session for a file of the file system `device`.
    ///
    /// # Errors
    /// `ENODEV` where it is on no such mount, `EHOSTDOWN` where the node's daemon does not answer.
    pub(super) fn of(device: u64, path: &Path) -> Result<Arc<Session>> {
        let mount = mounts::find(device).ok_or_else(|| {
            let why = "it is on no mount of a volume that can be reached";
            Error::because("open", path, Errno::NODEV, why)
        })?;
        let Mount { process, user, volume, node, socket, key } = &*mount;
        let damaged = |why: &String| Error::because("open", path, Errno::KEYREJECTED, why.clone());
        let key = key.as_ref().map_err(damaged)?;
        let at = Place {
            process: *process,
            user: *user,
            volume: *volume,
            node: *node,
            has_key: key.is_some(),
        };
        let mut sessions = SESSIONS.lock();
        if let Some((_, session)) = sessions.iter().find(|(place, _)| *place == at) {
            return Ok(session.clone());
        }
        let endpoint = Endpoint::Unix(socket.clone());
        let options = Options { key: key.clone(), volume: Some(*volume), ..Options::new(endpoint) };
        let client = Client::connect(options)
            .map_err(|e| Error::because("open", path, Errno::HOSTDOWN, e.to_string()))?;
        let session = Arc::new(Session {
            client: Arc::new(client),
            node: *node,
            open: Mutex::default(),
            presences: Mutex::default(),
        });
        sessions.push((at, session.clone()));
        Ok(session)
    }

    /// Handles of this process that have the file open for writing.
    pub(super) fn writers(&self, ino: Ino) -> usize {
        self.open.lock().get(&ino).map_or(0, |holds| holds.all)
    }

    /// Keeps `client`, of another process of this user, alive at the node of the shard that has `ino`.
    fn stand_in(&self, client: ClientId, ino: Ino) -> Option<Arc<Presence>> {
        let node = self.client.map().owner(ino.shard())?.node;
        let mut presences = self.presences.lock();
        let known = presences.iter().position(|(of, at, _)| (*of, *at) == (client, node));
        if let Some(at) = known {
            if presences[at].2.is_there() {
                return Some(presences[at].2.clone());
            }
            presences.remove(at);
        }
        let presence = Arc::new(self.client.stand_in(client, ino).ok()?);
        if presences.len() >= PRESENCES {
            presences.remove(0);
        }
        presences.push((client, node, presence.clone()));
        Some(presence)
    }
}

/// Keeps a file open for writing, for one handle.
#[derive(Debug)]
pub(super) struct Held {
    session: Arc<Session>,
    ino: Ino,
    /// By which the client of another process, which has it open, is kept alive; nothing where our own has it open.
    _presence: Option<Arc<Presence>>,
    is_own: bool,
}

impl Held {
    /// Has it opened by our own client, which is one request. Permission has been checked by the mount.
    ///
    /// # Errors
    /// Those of the shard.
    pub(super) fn new(
        session: &Arc<Session>,
        ino: Ino,
    ) -> std::result::Result<(Held, Cap), tatami_wire::Errno> {
        // Held on to meanwhile, so that no other thread closes in between.
        let mut open = session.open.lock();
        let (_, cap) = session.client.open(&Cred::ROOT, ino, Use::BOTH)?;
        let holds = open.entry(ino).or_default();
        (holds.all, holds.own) = (holds.all + 1, holds.own + 1);
        Ok((Held { session: session.clone(), ino, _presence: None, is_own: true }, cap))
    }

    /// Keeps it as `client` has it open, of this process or another one, with the capability `cap`. No request.
    ///
    /// # Errors
    /// As for [`Held::new`], which is the way where that client cannot be kept alive.
    pub(super) fn join(
        session: &Arc<Session>,
        ino: Ino,
        client: ClientId,
        cap: Cap,
    ) -> std::result::Result<(Held, Cap), tatami_wire::Errno> {
        let is_own = client == session.client.id();
        let presence = if is_own { None } else { session.stand_in(client, ino) };
        {
            let mut open = session.open.lock();
            let own = open.get(&ino).map_or(0, |holds| holds.own);
            if presence.is_some() || (is_own && own > 0) {
                let holds = open.entry(ino).or_default();
                holds.all += 1;
                holds.own += usize::from(is_own);
                return Ok((
                    Held { session: session.clone(), ino, _presence: presence, is_own },
                    cap,
                ));
            }
        }
        Held::new(session, ino)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut open = self.session.open.lock();
        let Some(holds) = open.get_mut(&self.ino) else { return };
        holds.all = holds.all.saturating_sub(1);
        holds.own = holds.own.saturating_sub(usize::from(self.is_own));
        let Holds { all, own } = *holds;
        if all == 0 {
            open.remove(&self.ino);
        }
        if self.is_own && own == 0 {
            // A daemon that does not hear of it finds out when this process ends.
            let _ = self.session.client.closed(vec![self.ino], Vec::new(), Vec::new());
        }
    }
}
