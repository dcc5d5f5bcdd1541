//! The state of a running check.

use super::report::FsckReport;
use crate::Client;
use std::sync::Arc;
use tatami_wire::Ino;

/// A running check.
pub(super) struct Fsck<'a> {
    pub(super) client: &'a Arc<Client>,
    pub(super) repair: bool,
    pub(super) report: FsckReport,
    pub(super) progress: &'a mut dyn FnMut(u64, u64),
    /// The directory `lost+found`, once it was needed.
    pub(super) lost: Option<Ino>,
}
