//! The steps of copies from and to other sites that are under way.

use crate::copy_stream::{CopySink, CopySource};
use crate::copy_trees::FileFacts;
use crate::error::CommandFailure;
use crate::site_tree::{self, errno_of, session_of};
use crate::volume_path::AnyPath;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use tatami_remote::{RemoteError, RemoteSession, SiteEntry, SiteFile};
use tatami_wire::{Errno, Ino, InodeKind};

/// The command asks for the listings of at most so many directories ahead.
const LISTINGS_MAX: usize = 32;

/// A file or directory to copy.
#[derive(Clone)]
pub struct CopyItem {
    pub from: AnyPath,
    pub to: AnyPath,
    pub facts: FileFacts,
    /// What is at the destination, links not followed.
    pub old: Option<FileFacts>,
    /// The inode number of a directory that this copy has already made.
    pub made: Option<Ino>,
    /// The target of a symbolic link, if the listing had it.
    pub target: Option<Vec<u8>>,
    /// All bytes of a small file, if they were read together with those of others.
    pub content: Option<Vec<u8>>,
}

/// A failed step of one file.
pub struct StepFailure {
    pub failure: CommandFailure,
    /// The link broke while the file was under way: it is copied once more.
    pub is_broken: bool,
}

impl StepFailure {
    /// Returns a failure on `path`.
    pub fn new(path: &AnyPath, what: &str, errno: Errno) -> StepFailure {
        StepFailure { failure: path.operation_failure(what, errno), is_broken: false }
    }

    /// Returns the failure of a call for `path`.
    pub fn of_remote(path: &AnyPath, what: &str, error: RemoteError) -> StepFailure {
        let errno = errno_of(error);
        let is_broken = errno == Errno::ESTALE;
        StepFailure { failure: path.operation_failure(what, errno), is_broken }
    }
}

/// A file on its way.
pub struct QueuedCopy {
    pub item: CopyItem,
    /// What is at the destination, behind links.
    pub old: Option<FileFacts>,
    pub attempt: u32,
    /// Bytes that the progress bar has counted.
    pub counted: u64,
}

/// Where the bytes of a large file come from.
pub enum LargeSource {
    Here(CopySource),
    Site(Arc<RemoteSession>, u64),
}

/// Where the bytes of a large file go.
pub enum LargeSink {
    Here(CopySink),
    Site(Arc<RemoteSession>, u64),
}

/// A large file on its way.
pub struct LargeCopy {
    pub copy: QueuedCopy,
    pub source: LargeSource,
    pub sink: LargeSink,
    pub failure: Option<StepFailure>,
    /// Parts that were asked for and have not come.
    pub unread: usize,
}

/// A call to another site that has no reply yet.
pub enum QueuedStep {
    /// A whole file is sent.
    Put { copy: QueuedCopy, session: Arc<RemoteSession>, ticket: u64, bytes: usize },
    /// A whole file is asked for.
    Fetch { copy: QueuedCopy, session: Arc<RemoteSession>, ticket: u64, bytes: usize },
    /// A part of a large file is asked for.
    Part { id: u64, session: Arc<RemoteSession>, ticket: u64, offset: u64, bytes: usize },
    /// The end of a large file. `ticket`: it was sent.
    Finish { id: u64, ticket: Option<u64> },
    /// A directory or link is made, or times are set.
    Name { path: AnyPath, what: &'static str, session: Arc<RemoteSession>, ticket: u64 },
}

/// The steps under way.
#[derive(Default)]
pub struct CopyQueue {
    pub steps: VecDeque<QueuedStep>,
    pub large: BTreeMap<u64, LargeCopy>,
    pub last_id: u64,
    /// Files to be copied once more.
    pub again: Vec<QueuedCopy>,
    /// Listings that were asked for, with their numbers and tickets.
    listings: HashMap<SiteFile, (u64, u64)>,
    /// Directories that could not be made.
    pub unmade: Vec<AnyPath>,
}

impl CopyQueue {
    /// Returns the number of small files, directories and links under way.
    pub fn count_names(&self) -> usize {
        let is_name = |step: &&QueuedStep| {
            !matches!(step, QueuedStep::Part { .. } | QueuedStep::Finish { .. })
        };
        self.steps.iter().filter(is_name).count()
    }

    /// Returns the bytes of small files under way.
    pub fn count_small_bytes(&self) -> usize {
        let bytes = self.steps.iter().map(|step| match step {
            QueuedStep::Put { bytes, .. } | QueuedStep::Fetch { bytes, .. } => *bytes,
            _ => 0,
        });
        bytes.sum()
    }

    /// Returns the bytes of parts that were asked for.
    pub fn count_part_bytes(&self) -> usize {
        let bytes = self.steps.iter().map(|step| match step {
            QueuedStep::Part { bytes, .. } => *bytes,
            _ => 0,
        });
        bytes.sum()
    }

    /// Asks for the listings of directories that are copied soon.
    pub fn list_ahead<'a>(&mut self, soon: impl Iterator<Item = &'a CopyItem>) {
        for item in soon.filter(|item| item.facts.kind == InodeKind::Dir) {
            if self.listings.len() >= LISTINGS_MAX {
                return;
            }
            let AnyPath::Site(file) = &item.from else { continue };
            // Replies that nobody receives yet could stop the writes to the same site.
            if matches!(&item.to, AnyPath::Site(to) if to.site == file.site) {
                continue;
            }
            if self.listings.contains_key(file) {
                continue;
            }
            let begun =
                session_of(file).map(|session| session.begin_listing(site_tree::path_of(file)));
            // A failure is reported when the directory is copied.
            let Ok(Ok(begun)) = begun else { return };
            self.listings.insert(file.clone(), begun);
        }
    }

    /// Returns the entries of a directory of another site.
    ///
    /// # Errors
    /// Those of the listing.
    pub fn list_dir(&mut self, dir: &SiteFile) -> Result<Vec<SiteEntry>, Errno> {
        let session = session_of(dir)?;
        let path = site_tree::path_of(dir);
        let mut entries = match self.listings.remove(dir) {
            Some(begun) => session.list_dir_begun(path, begun),
            None => session.list_dir(path),
        }
        .map_err(errno_of)?;
        entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }
}
