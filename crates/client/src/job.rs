//! The state that the ranks of a collective open of a file share, from the side of one rank. Each
//! operation is one request to the shard that has the inode.

use crate::Client;
use crate::uptime::uptime;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;
use tatami_wire::job::{HOLD_MILLIS, JobOp, JobReply};
use tatami_wire::meta::{MetaOp, MetaReply};
use tatami_wire::{Cred, Errno, Ino};

/// After [`HOLD_MILLIS`] the daemon replies to a rank that it must go on waiting. A sooner reply
/// means that the daemon has no room to let it wait: then the rank asks again after this pause.
const PAUSE: Duration = Duration::from_millis(50);

/// A rank of an open. One rank was the first to share something. When its value is dropped, which
/// is after all have closed the file, the shard forgets the open.
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
    /// Returns rank `rank` of the open with that number, which only its ranks know. Sends no
    /// request.
    pub fn new(client: Arc<Client>, ino: Ino, open: u64, rank: u32) -> JobMember {
        let (joined, first) = (AtomicBool::new(false), AtomicBool::new(false));
        JobMember { client, ino, open, rank, joined, first }
    }

    fn send_job_op(&self, op: JobOp) -> Result<JobReply, Errno> {
        let JobMember { ino, open, rank, .. } = *self;
        let joined = self.joined.load(SeqCst);
        match self.client.send_meta(&Cred::ROOT, MetaOp::Job { ino, open, rank, joined, op })? {
            MetaReply::Job { first, reply } => {
                self.joined.store(true, SeqCst);
                self.first.fetch_or(first, SeqCst);
                Ok(reply)
            }
            _ => Err(Errno::EPROTO),
        }
    }

    fn move_pointer(&self, op: JobOp) -> Result<i64, Errno> {
        match self.send_job_op(op)? {
            JobReply::Pointer(was) => Ok(was),
            _ => Err(Errno::EPROTO),
        }
    }

    /// Adds to the shared file pointer; returns its value before.
    ///
    /// # Errors
    /// `EOVERFLOW`; `ESTALE` where this process was away for longer than its lease, and the pointer
    /// may be lost; `EACCES` for a user that may neither read nor write the file; `ENOLCK` for too
    /// many ranks or opens; `EHOSTDOWN`.
    pub fn add_to_pointer(&self, by: i64) -> Result<i64, Errno> {
        self.move_pointer(JobOp::Add { by })
    }

    /// Sets the shared file pointer; returns its value before.
    ///
    /// # Errors
    /// As for [`JobMember::add_to_pointer`].
    pub fn set_pointer(&self, to: i64) -> Result<i64, Errno> {
        self.move_pointer(JobOp::Set { to })
    }

    /// Takes the lock that the ranks share, after all ranks that asked before.
    ///
    /// # Errors
    /// As for [`JobMember::add_to_pointer`].
    pub fn lock(&self) -> Result<(), Errno> {
        loop {
            let asked = uptime();
            match self.send_job_op(JobOp::Lock)? {
                JobReply::Locked => return Ok(()),
                JobReply::Waiting => {}
                _ => return Err(Errno::EPROTO),
            }
            if uptime().saturating_sub(asked) < Duration::from_millis(HOLD_MILLIS) / 2 {
                #[allow(clippy::disallowed_methods)]
                // a daemon without room for this rank sends no event
                std::thread::sleep(PAUSE);
            }
        }
    }

    /// Passes the lock to the next rank.
    ///
    /// # Errors
    /// `ENOLCK` where this rank does not have it; as for [`JobMember::add_to_pointer`].
    pub fn unlock(&self) -> Result<(), Errno> {
        match self.send_job_op(JobOp::Unlock)? {
            JobReply::Done => Ok(()),
            _ => Err(Errno::EPROTO),
        }
    }
}

impl Drop for JobMember {
    fn drop(&mut self) {
        if self.first.load(SeqCst)
            && let Err(error) = self.send_job_op(JobOp::End)
        {
            // The shard forgets the open when the last of the ranks has gone.
            tracing::debug!(ino = %self.ino, %error, "what the ranks shared is kept");
        }
    }
}
