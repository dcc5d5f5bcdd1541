//! A cache of mounted file systems: the volume of each, and the node of its mount.
//!
//! A process reads the mount table, the note of the process that mounted, and the volume's key once
//! for each mount. It reads them again when the kernel reports a change of the mount table: another
//! file system may have the number (`st_dev`) by then.

use parking_lot::Mutex;
use rustix::fs::Access;
use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tatami_client::TlsTrust;
use tatami_cluster::mount_note::MountNote;
use tatami_cluster::mountinfo::MountChanges;
use tatami_cluster::{KeyError, KeyFile, VolumeFile};
use tatami_wire::{NodeId, VolumeId, VolumeKey};

/// A mount of a volume that this process can reach: by the volume's key, or with the rights of its
/// user through the daemon of the mount's node.
#[derive(Debug)]
pub(super) struct ReachableMount {
    /// The process and the user that found it.
    pub(super) process: u32,
    pub(super) user: u32,
    pub(super) volume: VolumeId,
    pub(super) node: NodeId,
    pub(super) socket: PathBuf,
    /// `None` where this process may not read it; the fault of a damaged one.
    pub(super) secrets: Result<(Option<VolumeKey>, Option<Arc<TlsTrust>>), String>,
}

/// The cache of one process and one user.
struct MountCache {
    process: u32,
    user: u32,
    changes: MountChanges,
    /// By number of the file system; `None` where it is no mount of a volume.
    mounts: Vec<(u64, Option<Arc<ReachableMount>>)>,
}

static KNOWN_MOUNTS: Mutex<Option<MountCache>> = Mutex::new(None);
/// Most file systems in the cache.
const KNOWN_MAX: usize = 64;

/// The last mount that a thread has found. An open consists of several calls of one thread (claim,
/// node, begin, open). Only the first call needs to ask the kernel for changes of the mount table.
struct Last {
    device: u64,
    mount: Arc<ReachableMount>,
    /// The path whose device was looked up, and whether that path is `linked` as for
    /// [`node_of`](super::session::node_of).
    place: Option<(PathBuf, bool)>,
}

thread_local! {
    static LAST: RefCell<Option<Last>> = const { RefCell::new(None) };
}

/// Returns the mount whose files have `device` as `st_dev`. Costs three system calls and no request
/// if the cache has it.
pub(super) fn find_mount(device: u64) -> Option<Arc<ReachableMount>> {
    let found = ask(device);
    LAST.set(found.clone().map(|mount| Last { device, mount, place: None }));
    found
}

/// Returns the mount as [`find_mount`], for the last call of an open. The result of an earlier call
/// of this thread counts, once.
pub(super) fn find_again(device: u64) -> Option<Arc<ReachableMount>> {
    // The entry is taken, and not copied: the next open must look for changes of the mount table
    // again.
    match LAST.take() {
        Some(last) if last.device == device => Some(last.mount),
        _ => ask(device),
    }
}

/// Returns the mount that an earlier call of the same open by this thread has found.
pub(super) fn found_last() -> Option<Arc<ReachableMount>> {
    LAST.with_borrow(|last| last.as_ref().map(|last| last.mount.clone()))
}

/// Records that the last found mount contains a path.
pub(super) fn note_place(path: &Path, linked: bool) {
    LAST.with_borrow_mut(|last| {
        if let Some(last) = last {
            last.place = Some((path.to_owned(), linked));
        }
    });
}

/// Returns the number of the file system that the previous call found for that path.
pub(super) fn noted_device(path: &Path, linked: bool) -> Option<u64> {
    LAST.with_borrow(|last| {
        let last = last.as_ref()?;
        let (noted, as_linked) = last.place.as_ref()?;
        (noted == path && *as_linked == linked).then_some(last.device)
    })
}

fn ask(device: u64) -> Option<Arc<ReachableMount>> {
    let (process, user) = (std::process::id(), rustix::process::geteuid().as_raw());
    let mut held = KNOWN_MOUNTS.lock();
    // A child process shares the file descriptor that reports changes with its parent, and the
    // kernel reports each change to one of them only. So a child builds its own cache.
    let mut known = match held.take().filter(|k| (k.process, k.user) == (process, user)) {
        Some(known) => known,
        // Watch for changes before the table is read, so that no change is missed.
        None => {
            MountCache { process, user, changes: MountChanges::new().ok()?, mounts: Vec::new() }
        }
    };
    if known.changes.has_changed() || known.mounts.len() >= KNOWN_MAX {
        known.mounts.clear();
    }
    let found = match known.mounts.iter().find(|(of, _)| *of == device) {
        Some((_, mount)) => mount.clone(),
        None => {
            let is_ours = MountNote::for_device(device);
            let mount = is_ours.clone().flatten().and_then(|home| read_mount(home, process, user));
            let mount = mount.map(Arc::new);
            // A mount of a volume may get its note, or become reachable, at any time: do not cache
            // its absence.
            if is_ours.is_none() || mount.is_some() {
                known.mounts.push((device, mount.clone()));
            }
            mount
        }
    };
    // Store the cache only now: a failure above leaves an empty one, which is filled again.
    *held = Some(known);
    found
}

fn read_mount(home: MountNote, process: u32, user: u32) -> Option<ReachableMount> {
    let file = VolumeFile::load(&home.dir.join("volume.toml")).ok()?;
    let node = NodeId(home.node);
    let socket = file.node(node)?.socket.clone();
    let secrets = match KeyFile::load(&home.dir.join("key")) {
        Ok(key) => {
            let tls = TlsTrust::open(&home.dir, &file).map_err(|e| e.to_string());
            tls.map(|tls| (Some(key), tls))
        }
        // Report a damaged key file of its owner, rather than work without it.
        Err(e @ (KeyError::Damaged { .. } | KeyError::Changed { .. })) => Err(e.to_string()),
        Err(_) => Ok((None, None)),
    };
    let reachable =
        !matches!(secrets, Ok((None, _))) || rustix::fs::access(&socket, Access::WRITE_OK).is_ok();
    reachable.then_some(ReachableMount {
        process,
        user,
        volume: file.volume,
        node,
        socket,
        secrets,
    })
}
