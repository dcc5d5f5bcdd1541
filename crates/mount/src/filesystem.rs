//! The state of a mounted volume.

use crate::attr_cache::AttrCache;
use crate::deferred_close::DeferredCloses;
use crate::handles::HandleTable;
use crate::lock_waits::LockWaits;
use crate::open::OpenInodes;
use crate::open_dir::OpenDir;
use crate::open_file::OpenFile;
use crate::page_validity::PageValidity;
use crate::removed_dirs::RemovedDirs;
use crate::spare_pool::SparePool;
use crate::walk_cache::WalkCache;
use parking_lot::Mutex;
use std::sync::Arc;
use tatami_client::Client;
use tatami_fuse::{CacheTimeouts, Device};
use tatami_wire::Attr;

/// A mounted volume.
pub(crate) struct FileSystem {
    pub(crate) client: Arc<Client>,
    pub(crate) device: Arc<Device>,
    /// The kernel may read and write local files itself.
    pub(crate) passthrough: bool,
    pub(crate) timeouts: CacheTimeouts,
    /// The kernel may cache names and attributes that are delegated to this mount.
    pub(crate) kernel_cache: bool,
    pub(crate) open_inodes: OpenInodes,
    pub(crate) files: HandleTable<OpenFile>,
    pub(crate) dirs: HandleTable<OpenDir>,
    pub(crate) attr_cache: AttrCache,
    pub(crate) walk_cache: WalkCache,
    pub(crate) removed_dirs: RemovedDirs,
    pub(crate) page_validity: PageValidity,
    pub(crate) deferred_closes: DeferredCloses,
    pub(crate) spare_pool: SparePool,
    pub(crate) lock_waits: LockWaits,
    /// The last known attributes of the root directory.
    pub(crate) root_attr: Mutex<Option<Attr>>,
}

impl FileSystem {
    pub(crate) fn new(
        client: Arc<Client>,
        device: Arc<Device>,
        passthrough: bool,
        valid: CacheTimeouts,
        keeps: bool,
    ) -> FileSystem {
        FileSystem {
            deferred_closes: DeferredCloses::new(client.clone()),
            client,
            spare_pool: SparePool::new(device.clone()),
            device,
            passthrough,
            timeouts: valid,
            kernel_cache: keeps,
            open_inodes: OpenInodes::new(),
            files: HandleTable::new(),
            dirs: HandleTable::new(),
            attr_cache: AttrCache::new(),
            walk_cache: WalkCache::new(),
            removed_dirs: RemovedDirs::default(),
            page_validity: PageValidity::default(),
            lock_waits: LockWaits::default(),
            root_attr: Mutex::default(),
        }
    }
}
