//! A mount of another site from its start to its end.

use crate::site_attr::UserMap;
use crate::site_tree::SiteTree;
use rustix::io::Errno;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tatami_fuse::abi::init;
use tatami_fuse::{CacheTimeouts, FuseSession, RequestedFeatures, Restrictions, ThreadLimits};
use tatami_mount::{HandlerSettings, MountEnd, MountError, serve_handler, serve_until_end};
use tatami_remote::{MountSession, RemoteError, RemoteReply, SiteFile};

/// The type that `mount` and `df` show after `fuse.`.
const SUBTYPE: &str = "tatami-site";
/// Threads that stay alive when idle.
const THREADS: usize = 2;
/// Most threads: requests that wait for the other side at once.
const THREADS_MAX: usize = 64;

/// How a directory of another site is mounted.
#[derive(Clone, Debug)]
pub struct SiteMountOptions {
    /// The directory there.
    pub site: SiteFile,
    /// The source that `mount` and `df` show; without it, the address.
    pub source: Option<String>,
    /// The directory here.
    pub mountpoint: PathBuf,
    /// The mount is read-only.
    pub read_only: bool,
    /// All users here have access, as the user there. The kernel then checks permission bits.
    pub allow_other: bool,
    /// Things that the kernel must not do with files of the mount.
    pub restrictions: Restrictions,
    /// How long the kernel trusts names and attributes.
    pub trust: Duration,
}

/// Why a directory of another site could not be mounted.
#[derive(Debug, thiserror::Error)]
pub enum SiteMountError {
    /// The other side cannot be reached, or refuses.
    #[error(transparent)]
    Site(#[from] RemoteError),
    /// The mount here failed.
    #[error(transparent)]
    Mount(#[from] MountError),
}

/// A mounted directory of another site. Dropping it unmounts it.
///
/// An open asks the other side, and what the kernel has kept of the bytes is dropped if anything
/// shows a change. Names and attributes are trusted for [`SiteMountOptions::trust`]. Writes are
/// sent before the close or sync returns, which reports their errors.
pub struct SiteMount {
    session: Arc<FuseSession>,
    link: Arc<MountSession>,
}

impl SiteMount {
    /// Logs in, and mounts. The mount answers when this returns.
    ///
    /// # Errors
    /// [`SiteMountError`].
    pub fn start(options: &SiteMountOptions) -> Result<SiteMount, SiteMountError> {
        let site = &options.site;
        let (link, root) = MountSession::start(&site.site, site.path.as_os_str().as_bytes())?;
        let RemoteReply::Mounted { attr, uid, gid } = root else {
            let what = format!("{site}: an odd reply");
            return Err(RemoteError { errno: Errno::PROTO, what }.into());
        };
        let trust = CacheTimeouts { entry: options.trust, attr: options.trust };
        let users = UserMap::for_this_process(uid, gid);
        let tree = SiteTree::new(link.clone(), &attr, users, trust);
        let common = RequestedFeatures::default();
        let flags = init::AUTO_INVAL_DATA | init::DO_READDIRPLUS | init::HANDLE_KILLPRIV_V2;
        let settings = HandlerSettings {
            path: options.mountpoint.clone(),
            // A comma would end the name in the options of the helper.
            source: options.source.clone().unwrap_or_else(|| site.to_string().replace(',', "_")),
            subtype: SUBTYPE.to_owned(),
            read_only: options.read_only,
            allow_other: options.allow_other,
            // The other side checks permissions, but it knows one user alone.
            default_permissions: options.allow_other,
            restrictions: options.restrictions,
            features: RequestedFeatures { flags: common.flags | flags, ..common },
            threads: ThreadLimits { base: THREADS, max: THREADS_MAX },
        };
        let session = serve_handler(&settings, Arc::new(tree))?;
        Ok(SiteMount { session: Arc::new(session), link })
    }

    /// Serves until an unmount, or SIGTERM or SIGINT.
    ///
    /// # Errors
    /// When the system is short of descriptors.
    pub fn run(self) -> std::io::Result<MountEnd> {
        serve_until_end(&self.session)
    }
}

impl Drop for SiteMount {
    fn drop(&mut self) {
        self.link.end_session();
    }
}
