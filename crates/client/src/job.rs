//! What the ranks of a collective open of a file share, as one of them uses it: each operation is one request to
//! the shard that has the inode.

use crate::Client;
use crate::delegations::uptime;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;
use tatami_wire::job::{HOLD_MILLIS, JobOp, JobTold};
use tatami_wire::meta::{MetaOp, MetaReply};
use tatami_wire::{Cred, Errno, Ino};

/// A rank is told after [`HOLD_MILLIS`] that it waits. When it is told sooner, the daemon has no room to let it wait,
/// and it asks again after this.
const PAUSE: Duration = Duration::from_millis(50);

/// A rank of an open. When the one that was the first to share something is dropped, which is after all have closed
/// the file, the shard forgets the open.
pub struct JobMember {
    client: Arc<Client>,
    ino: Ino,
    open: u64,
    rank: u32,
    joined: AtomicBool,
    first: AtomicBool,
}

impl std::fmt::Debug for JobMember {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let JobMember { ino, open, rank, .. } = self;
        write!(f, "JobMember({ino}, {open:016x}, rank {rank})")
    }
}

impl JobMember {
    /// Rank `rank` of the open of that number, which only its ranks know. Asks nobody.
    pub fn new(client: Arc<Client>, ino: Ino, open: u64, rank: u32) -> JobMember {
        let (joined, first) = (AtomicBool::new(false), AtomicBool::new(false));
        JobMember { client, ino, open, rank, joined, first }
    }

    fn ask(&self, op: JobOp) -> Result<JobTold, Errno> {
        let JobMember { ino, open, rank, .. } = *self;
        let joined = self.joined.load(SeqCst);
        match self.client.meta(&Cred::ROOT, MetaOp::Job { ino, open, rank, joined, op })? {
            MetaReply::Job { first, told } => {
                self.joined.store(true, SeqCst);
                self.first.fetch_or(first, SeqCst);
                Ok(told)
            }
            _ => Err(Errno::EPROTO),
        }
    }

    fn move_pointer(&self, op: JobOp) -> Result<i64, Errno> {
        match self.ask(op)? {
            JobTold::Pointer(was) => Ok(was),
            _ => Err(Errno::EPROTO),
        }
    }

    /// Adds to the shared file pointer; what it was before.
    ///
    /// # Errors
    /// `EOVERFLOW`; `ESTALE` where this process was away for longer than its lease, and the pointer may be lost;
    /// `EACCES` for a user who may neither read nor write the file; `ENOLCK` for too many ranks or opens;
    /// `EHOSTDOWN`.
    pub fn add(&self, by: i64) -> Result<i64, Errno> {
        self.move_pointer(JobOp::Add { by })
    }

    /// Sets the shared file pointer; what it was before.
    ///
    /// # Errors
    /// As for [`JobMember::add`].
    pub fn set(&self, to: i64) -> Result<i64, Errno> {
        self.move_pointer(JobOp::Set { to })
    }

    /// Takes the lock that the ranks share, after all that asked before.
    ///
    /// # Errors
    /// As for [`JobMember::add`].
    pub fn lock(&self) -> Result<(), Errno> {
        loop {
            let asked = uptime();
            match self.ask(JobOp::Lock)? {
                JobTold::Locked => return Ok(()),
                JobTold::Waits => {}
                _ => return Err(Errno::EPROTO),
            }
            if uptime().saturating_sub(asked) < Duration::from_millis(HOLD_MILLIS) / 2 {
                #[allow(clippy::disallowed_methods)]
                // a daemon that has no room for us tells nothing
                std::thread::sleep(PAUSE);
            }
        }
    }

    /// Gives the lock to the next.
    ///
    /// # Errors
    /// `ENOLCK` where this rank has not got it; as for [`JobMember::add`].
    pub fn unlock(&self) -> Result<(), Errno> {
        match self.ask(JobOp::Unlock)? {
            JobTold::Done => Ok(()),
            _ => Err(Errno::EPROTO),
        }
    }
}

impl Drop for JobMember {
    fn drop(&mut self) {
        if self.first.load(SeqCst)
            && let Err(error) = self.ask(JobOp::End)
        {
            // It is forgotten when the last of the ranks has gone.
            tracing::debug!(ino = %self.ino, %error, "what the ranks shared is kept");
        }
    }
}
