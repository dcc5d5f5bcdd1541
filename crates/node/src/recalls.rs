//! Which answers of a round may leave at once, which wait for recalls, and what
//! is delegated along with them.
//!
//! A round is gone through in the order in which it was applied, so that what an
//! answer delegates is recalled by a change that comes after it.

use crate::delegations::{Delegations, Recall};
use crate::holders::HoldersFile;
use crate::round::Answer;
use std::io;
use std::time::{Duration, Instant};
use tatami_wire::delegation::Granted;
use tatami_wire::meta::{MetaCall, MetaOp, MetaReply, MetaResult};
use tatami_wire::{Attr, ClientId, Errno, Ino};

/// What an operation has met, as far as delegations care.
#[derive(Debug, Default)]
pub(crate) struct Met {
    /// Inodes on which the answer depends.
    pub(crate) seen: Vec<Ino>,
    /// Inodes that it has changed.
    pub(crate) changed: Vec<Ino>,
    /// The directory in which it has looked up or changed an entry, after that, if
    /// it may be delegated to who asked.
    pub(crate) dir: Option<Attr>,
}

/// See the module.
pub(crate) struct Recalls {
    delegations: Delegations,
    file: HoldersFile,
    /// Answers that wait.
    held: Vec<Answer>,
}

impl Recalls {
    /// At the start of a daemon.
    pub(crate) fn new(term: Duration, file: HoldersFile) -> Recalls {
        let delegations = Delegations::new(term, file.read(), Instant::now());
        Recalls { delegations, file, held: Vec::new() }
    }

    /// Whether the executor must note what operations meet.
    pub(crate) fn are_used(&self) -> bool {
        self.delegations.any_client()
    }

    /// See [`Delegations::term`].
    pub(crate) fn term(&self) -> Duration {
        self.delegations.term()
    }

    /// See [`Delegations::closed_until`].
    pub(crate) fn closed_until(&mut self) -> Option<Instant> {
        // Every round asks, and nearly always there is nothing to compare a moment with.
        if self.delegations.are_open() {
            None
        } else {
            self.delegations.closed_until(Instant::now())
        }
    }

    /// Whether anything may be delegated to the client.
    pub(crate) fn may_delegate(&self, client: ClientId) -> bool {
        self.delegations.has(client)
    }

    /// The client's recall connection.
    pub(crate) fn connection(&self, client: ClientId) -> Option<usize> {
        self.delegations.connection(client)
    }

    /// A client has opened recall connection `at`. Returns the one that it had before.
    ///
    /// # Errors
    /// Those of the disk: then nothing may be delegated to the client.
    pub(crate) fn opened(&mut self, client: ClientId, at: usize) -> io::Result<Option<usize>> {
        let old = self.delegations.open(client, at, Instant::now());
        let written = self.file.write(&self.delegations.clients());
        if written.is_err() {
            self.delegations.close(client, at);
        }
        written.map(|()| old)
    }

    /// A connection has ended; `recalls` of a client, if it was for these.
    pub(crate) fn closed(&mut self, at: usize, recalls: Option<ClientId>) {
        self.held.retain(|answer| answer.to != at);
        let Some(client) = recalls.filter(|client| self.delegations.has(*client)) else { return };
        self.delegations.close(client, at);
        if !self.delegations.has(client)
            && let Err(error) = self.file.write(&self.delegations.clients())
        {
            // The daemon after us will wait for a client that does not come, no longer than a term.
            tracing::warn!(path = %self.file.path().display(), %error, "the list of clients is old");
        }
    }

    /// See [`Delegations::alive`].
    pub(crate) fn alive(&mut self, client: ClientId) {
        self.delegations.alive(client, Instant::now());
    }

    /// See [`Delegations::returned`].
    pub(crate) fn returned(&mut self, client: ClientId, id: u64) {
        self.delegations.returned(client, id);
    }

    /// Goes through a round. What must wait is kept; what stays in `round` may leave.
    pub(crate) fn settle(&mut self, round: &mut Vec<Answer>) {
        if !self.delegations.any_client() {
            return;
        }
        let mut moment = None;
        // Most rounds touch nothing that is delegated, and need not know the time.
        let mut now = || *moment.get_or_insert_with(Instant::now);
        let delegations = &mut self.delegations;
        self.held.extend(round.extract_if(.., |answer| {
            let Some((ctx, call)) = &answer.request else { return false };
            for ino in &answer.met.changed {
                if delegations.is_delegated(*ino) {
                    delegations.changed(ctx.client, *ino, now());
                }
            }
            if !must_wait(delegations, answer, call) {
                if delegations.has(ctx.client) {
                    answer.grant(delegations, now(), |_| true);
                }
                return false;
            }
            true
        }));
    }

    /// See [`Delegations::take_recalls`].
    pub(crate) fn take_recalls(&mut self) -> Vec<Recall> {
        self.delegations.take_recalls()
    }

    /// Answers that need not wait any more. What they tell is delegated if it is
    /// still so: `is_current` says whether attributes are those of this moment.
    pub(crate) fn released(&mut self, mut is_current: impl FnMut(&Attr) -> bool) -> Vec<Answer> {
        if self.held.is_empty() {
            return Vec::new();
        }
        let (delegations, now) = (&mut self.delegations, Instant::now());
        let free = |answer: &mut Answer| match &answer.request {
            Some((_, call)) if must_wait(delegations, answer, call) => false,
            _ => {
                answer.grant(delegations, now, &mut is_current);
                true
            }
        };
        self.held.extract_if(.., free).collect()
    }

    /// See [`Delegations::deadline`].
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.delegations.deadline()
    }

    /// See [`Delegations::expire`].
    pub(crate) fn expire(&mut self) -> Vec<usize> {
        self.delegations.expire(Instant::now())
    }
}

fn must_wait(delegations: &Delegations, answer: &Answer, call: &MetaCall) -> bool {
    // A repeated request is answered as before; what it changed then may still be being recalled.
    let again = answer.met.seen.is_empty() && call.op.is_mutation() && answer.result.is_ok();
    delegations.is_recalled(&answer.met.seen) || again && delegations.any_recalled()
}

impl Answer {
    /// Delegates what the answer tells to the client that it goes to, as far as
    /// that may be and the attributes that it tells are current.
    fn grant(
        &mut self,
        delegations: &mut Delegations,
        now: Instant,
        mut is_current: impl FnMut(&Attr) -> bool,
    ) {
        let Some((ctx, call)) = &self.request else { return };
        // Told of no change at all, a client forgets everything.
        if !delegations.has(ctx.client) || self.met.changed.len() > Granted::CHANGED_MAX {
            return;
        }
        let mut granted = Granted { changed: self.met.changed.clone(), ..Granted::default() };
        let [dir, told] = tells(&call.op, &self.result, self.met.dir.as_ref());
        for (ino, attr) in [dir, told].into_iter().flatten() {
            if is_current(attr) && delegations.give(ctx.client, ino, now) {
                granted.delegated.push(ino);
            }
        }
        granted.dir = self.met.dir.clone().filter(|dir| granted.delegated.contains(&dir.ino));
        self.granted = Some(granted);
    }
}

/// The inodes that may be delegated with an answer, with the attributes by which it
/// is seen whether they are as they were: the directory of whose entry it tells,
/// and the inode whose attributes it tells.
fn tells<'a>(
    op: &MetaOp,
    result: &'a MetaResult,
    dir: Option<&'a Attr>,
) -> [Option<(Ino, &'a Attr)>; 2] {
    let told = match result {
        Ok(
            MetaReply::Attr(attr)
            | MetaReply::Created { attr, .. }
            | MetaReply::Opened { attr, .. },
        ) => Some((attr.ino, attr)),
        Ok(MetaReply::Removed { .. }) | Err(Errno::ENOENT) => None,
        _ => return [None, None],
    };
    let dir = op.entry().and(dir).map(|attr| (attr.ino, attr));
    [dir, told]
}
