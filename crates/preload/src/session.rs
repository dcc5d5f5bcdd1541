//! The client of this process, connected at the first use of the volume.
//!
//! A child process must not use the connections of its parent, so it forgets the client and makes
//! its own one at its first use.

use crate::inside::warn_once;
use crate::own_descriptors::{forget_own, list_own, move_up};
use crate::raw;
use crate::settings::{Settings, settings};
use parking_lot::{Mutex, RwLock, RwLockUpgradableReadGuard};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tatami_client::{Client, ClientOptions, Endpoint, TlsTrust};
use tatami_cluster::{KeyFile, NodeEntry, VolumeFile};
use tatami_wire::{Cred, Errno};

/// For this time after a failed attempt the volume counts as unreachable.
const PAUSE: Duration = Duration::from_secs(1);

/// A client of this process.
pub(crate) struct Session {
    pub(crate) client: Arc<Client>,
    /// The number of the client: another one after each fork.
    pub(crate) generation: u32,
    /// The device number of the volume's files.
    pub(crate) device: u64,
}

static SESSION: RwLock<Option<Arc<Session>>> = RwLock::new(None);
static GENERATION: AtomicU32 = AtomicU32::new(1);
static FAILED: Mutex<Option<Instant>> = Mutex::new(None);
/// The user of this process, as of its last request.
static USER: RwLock<Option<Cred>> = RwLock::new(None);

/// Returns the number of the present client.
pub(crate) fn generation() -> u32 {
    GENERATION.load(Relaxed)
}

/// Returns the client, and connects at the first use.
///
/// # Errors
/// `EHOSTDOWN`, with one message on standard error.
pub(crate) fn session() -> Result<Arc<Session>, Errno> {
    if let Some(session) = &*SESSION.read() {
        return Ok(session.clone());
    }
    // The lock is held while connecting, so that two threads do not make two clients.
    let known = SESSION.upgradable_read();
    if let Some(session) = &*known {
        return Ok(session.clone());
    }
    if FAILED.lock().is_some_and(|at| at.elapsed() < PAUSE) {
        return Err(Errno::EHOSTDOWN);
    }
    let settings = settings().ok_or(Errno::EHOSTDOWN)?;
    let connected = connect(settings).map_err(|why| {
        *FAILED.lock() = Some(Instant::now());
        static SAID: AtomicBool = AtomicBool::new(false);
        let dir = settings.dir.display();
        warn_once(&SAID, &format!("the volume in {dir} cannot be reached: {why}"));
        Errno::EHOSTDOWN
    })?;
    let session = Arc::new(connected);
    *RwLockUpgradableReadGuard::upgrade(known) = Some(session.clone());
    Ok(session)
}

fn connect(settings: &Settings) -> Result<Session, String> {
    tatami_net::dial::place_sockets(move_up);
    let volume = VolumeFile::load(&settings.dir.join("volume.toml")).map_err(|e| e.to_string())?;
    let key = match KeyFile::load(&settings.dir.join("key")) {
        Ok(key) => Some(key),
        // A daemon asks other users of its machine for no key.
        Err(e) if e.is_foreign() => None,
        Err(e) => return Err(e.to_string()),
    };
    let tls = match key {
        Some(_) => TlsTrust::open(&settings.dir, &volume).map_err(|e| e.to_string())?,
        None => None,
    };
    let home = settings.node.and_then(|node| volume.nodes.iter().find(|n| n.id == node));
    let others = volume.nodes.iter().filter(|n| home.is_none_or(|home| home.id != n.id));
    // The nodes of this machine first.
    let (here, away): (Vec<_>, Vec<_>) = others.partition(|n| n.dir.exists());
    let mut said = String::from("it has no nodes");
    for node in home.into_iter().chain(here).chain(away) {
        let options = ClientOptions {
            key: key.clone(),
            tls: tls.clone(),
            volume: Some(volume.volume),
            patience: settings.patience,
            ..ClientOptions::new(node_endpoint(node, key.is_some()))
        };
        match Client::connect(options) {
            Ok(client) => {
                let id = client.volume().0;
                let minor = u32::from_le_bytes([id[0], id[1], id[2], 0]) >> 4;
                return Ok(Session {
                    client: Arc::new(client),
                    generation: generation(),
                    // No major number of a real device: those of anonymous ones are 0.
                    device: libc::makedev(0x7a7, minor | 1),
                });
            }
            Err(e) => said = e.to_string(),
        }
    }
    Err(said)
}

fn node_endpoint(node: &NodeEntry, with_key: bool) -> Endpoint {
    if with_key && !node.dir.exists() {
        return Endpoint::from_address(&node.address);
    }
    Endpoint::Unix(node.socket.clone())
}

/// Returns the user of this process. The groups are read again when user or group have changed.
pub(crate) fn cred() -> Cred {
    let uid = rustix::process::geteuid().as_raw();
    let gid = rustix::process::getegid().as_raw();
    if let Some(user) = &*USER.read()
        && (user.uid, user.gid) == (uid, gid)
    {
        return user.clone();
    }
    let groups = rustix::process::getgroups().unwrap_or_default();
    let groups = groups.into_iter().map(|group| group.as_raw()).collect();
    let user = Cred { uid, gid, groups };
    *USER.write() = Some(user.clone());
    user
}

/// Keeps the locks of this file during a fork, so that the child finds them free.
pub(crate) struct SessionForkGuard {
    session: Option<parking_lot::RwLockWriteGuard<'static, Option<Arc<Session>>>>,
    _failed: parking_lot::MutexGuard<'static, Option<Instant>>,
    _user: parking_lot::RwLockWriteGuard<'static, Option<Cred>>,
}

impl SessionForkGuard {
    pub(crate) fn acquire() -> SessionForkGuard {
        SessionForkGuard {
            session: Some(SESSION.write()),
            _failed: FAILED.lock(),
            _user: USER.write(),
        }
    }

    /// Forgets the client in the child process, and closes its connections there.
    pub(crate) fn forget_client(&mut self) {
        if let Some(session) = &mut self.session {
            // Its destructor would end streams that are the parent's.
            std::mem::forget(session.take());
        }
        for fd in list_own() {
            raw::call(libc::SYS_close, &[fd as usize]);
            forget_own(fd);
        }
        GENERATION.fetch_add(1, Relaxed);
    }
}
