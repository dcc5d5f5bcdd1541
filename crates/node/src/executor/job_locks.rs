//! Ranks that wait for the lock that their open shares ([`tatami_wire::job`]): their answers are
//! held until they have the lock.
//!
//! The shard's records name the holder of the lock. This table knows only the connections that
//! wait, so nothing is lost with it: a rank whose connection broke asks again.

use crate::executor::answer::RoundAnswer;
use std::time::{Duration, Instant};
use tatami_wire::job::{HOLD_MILLIS, JobOp, JobReply};
use tatami_wire::meta::{MetaCall, MetaOp, MetaReply};
use tatami_wire::{ClientId, Ino};

/// How long an answer is held at most.
const HOLD: Duration = Duration::from_millis(HOLD_MILLIS);
/// Most answers that are held. Beyond that, a rank is answered at once that it waits, and asks
/// again.
const HELD_MAX: usize = 64 * 1024;

/// A rank of an open.
#[derive(Clone, Copy, PartialEq, Eq)]
struct WaitingRank {
    ino: Ino,
    open: u64,
    client: ClientId,
    rank: u32,
}

/// An answer that is held.
struct HeldAnswer {
    whose: WaitingRank,
    to: usize,
    seq: u64,
    since: Instant,
}

/// See the module.
#[derive(Default)]
pub(crate) struct JobLocks {
    /// Oldest first.
    held: Vec<HeldAnswer>,
}

/// The shared locks that a request of a round may have freed.
enum FreedLock {
    OneOpen(Ino, u64),
    AllOpens,
}

impl JobLocks {
    /// Takes the answers to ranks that must wait out of a committed round, and adds answers to
    /// ranks whose wait is over. `holder` returns the present holder of an open's lock.
    pub(crate) fn process_round(
        &mut self,
        round: &mut Vec<RoundAnswer>,
        holder: impl Fn(Ino, u64) -> Option<(ClientId, u32)>,
    ) {
        // After the commit: the records name a holder only once its lock is in the log.
        let mut freed: Vec<FreedLock> = round.iter().filter_map(freed_lock).collect();
        let room = HELD_MAX.saturating_sub(self.held.len());
        let waits: Vec<HeldAnswer> = round
            .extract_if(.., |answer| waiting_rank(answer).is_some())
            .filter_map(|answer| {
                let (whose, since) = (waiting_rank(&answer)?, Instant::now());
                Some(HeldAnswer { whose, to: answer.to, seq: answer.seq, since })
            })
            .collect();
        for (n, held) in waits.into_iter().enumerate() {
            if n >= room {
                round.push(lock_answer(&held, JobReply::Waiting));
                continue;
            }
            // The rank may have got the lock meanwhile, on a connection that broke before the
            // answer left. So its own open is checked, too.
            freed.push(FreedLock::OneOpen(held.whose.ino, held.whose.open));
            // The rank's older connection waits in vain: only the newest is answered.
            self.held.retain(|old| old.whose != held.whose);
            self.held.push(held);
        }
        assert!(self.held.len() <= HELD_MAX, "more answers are held than their bound");
        debug_assert!(
            self.held.is_sorted_by_key(|held| held.since),
            "the oldest held answer is not the first"
        );
        if self.held.is_empty() {
            return;
        }
        for freed in freed {
            let opens = match freed {
                FreedLock::OneOpen(ino, open) => vec![(ino, open)],
                FreedLock::AllOpens => {
                    let mut all: Vec<_> =
                        self.held.iter().map(|held| (held.whose.ino, held.whose.open)).collect();
                    all.sort_unstable();
                    all.dedup();
                    all
                }
            };
            for (ino, open) in opens {
                let Some((client, rank)) = holder(ino, open) else { continue };
                let whose = WaitingRank { ino, open, client, rank };
                if let Some(at) = self.held.iter().position(|held| held.whose == whose) {
                    round.push(lock_answer(&self.held.remove(at), JobReply::Locked));
                }
            }
        }
    }

    /// Forgets the answers of a connection that has ended.
    pub(crate) fn drop_connection(&mut self, at: usize) {
        self.held.retain(|held| held.to != at);
    }

    /// Returns answers to the ranks that wait for locks of these shards (the first, and their
    /// number), which another executor serves now.
    pub(crate) fn forget_shards(
        &mut self,
        (first, count): (u16, u16),
        epoch: u64,
    ) -> Vec<RoundAnswer> {
        let gone = |held: &mut HeldAnswer| {
            let shard = held.whose.ino.owner_shard().0;
            shard >= first && shard - first < count
        };
        let elsewhere = || Ok(MetaReply::WrongShard { epoch });
        let gone = self.held.extract_if(.., gone);
        gone.map(|held| RoundAnswer::new(held.to, held.seq, elsewhere(), None)).collect()
    }

    /// Returns when the oldest answer must be given anyhow.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.held.first().map(|held| held.since + HOLD)
    }

    /// Returns answers to the ranks that have waited for as long as an answer is held.
    pub(crate) fn take_overdue(&mut self, now: Instant) -> Vec<RoundAnswer> {
        let late = self.held.extract_if(.., |held| held.since + HOLD <= now);
        late.map(|held| lock_answer(&held, JobReply::Waiting)).collect()
    }
}

fn lock_answer(held: &HeldAnswer, reply: JobReply) -> RoundAnswer {
    RoundAnswer::new(held.to, held.seq, Ok(MetaReply::Job { first: false, reply }), None)
}

/// Returns the rank that must wait, if the answer says so.
fn waiting_rank(answer: &RoundAnswer) -> Option<WaitingRank> {
    let (ctx, MetaCall { op, .. }) = answer.request.as_ref()?;
    match (op, &answer.result) {
        (
            MetaOp::Job { ino, open, rank, .. },
            Ok(MetaReply::Job { reply: JobReply::Waiting, .. }),
        ) => Some(WaitingRank { ino: *ino, open: *open, client: ctx.client, rank: *rank }),
        _ => None,
    }
}

fn freed_lock(answer: &RoundAnswer) -> Option<FreedLock> {
    match &answer.request.as_ref()?.1.op {
        MetaOp::Job { ino, open, op: JobOp::Unlock, .. } => Some(FreedLock::OneOpen(*ino, *open)),
        MetaOp::ExpireClient { .. } => Some(FreedLock::AllOpens),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tatami_meta::OperationContext;
    use tatami_wire::{Cred, ShardId, Timestamp};

    const FILE: Ino = Ino(7);

    fn answer(to: usize, rank: u32, op: JobOp, reply: JobReply) -> RoundAnswer {
        let client = ClientId([rank as u8; 16]);
        let (now, slot, seq) = (Timestamp::from_sec(1), 0, u64::from(rank));
        let ctx = OperationContext { now, client, slot, seq, trusted: true };
        let op = MetaOp::Job { ino: FILE, open: 5, rank, joined: true, op };
        let call = MetaCall { shard: ShardId(0), cred: Cred::ROOT, op };
        RoundAnswer::new(to, seq, Ok(MetaReply::Job { first: false, reply }), Some((ctx, call)))
    }

    fn waits(to: usize, rank: u32) -> RoundAnswer {
        answer(to, rank, JobOp::Lock, JobReply::Waiting)
    }

    fn is_locked(answer: &RoundAnswer) -> bool {
        matches!(answer.result, Ok(MetaReply::Job { reply: JobReply::Locked, .. }))
    }

    fn holds(rank: u32) -> impl Fn(Ino, u64) -> Option<(ClientId, u32)> {
        move |ino, open| (ino == FILE && open == 5).then_some((ClientId([rank as u8; 16]), rank))
    }

    #[test]
    fn a_rank_hears_when_the_lock_is_its_own_and_not_before() {
        let mut locks = JobLocks::default();
        let mut round = vec![waits(1, 1), waits(2, 2)];
        locks.process_round(&mut round, holds(0));
        assert!(round.is_empty());
        // Rank 1 was the next; it has broken off and asked again, on another connection.
        locks.drop_connection(1);
        let mut round = vec![answer(9, 0, JobOp::Unlock, JobReply::Done)];
        locks.process_round(&mut round, holds(1));
        assert_eq!(round.len(), 1, "the answer to whoever freed it");
        let mut round = vec![waits(3, 1)];
        locks.process_round(&mut round, holds(1));
        assert!(round.len() == 1 && round[0].to == 3 && is_locked(&round[0]));
        let mut round = vec![answer(3, 1, JobOp::Unlock, JobReply::Done)];
        locks.process_round(&mut round, holds(2));
        assert!(round.len() == 2 && round[1].to == 2 && is_locked(&round[1]));
        assert!(locks.next_deadline().is_none());
    }

    #[test]
    fn a_rank_that_waits_for_long_asks_again() {
        let mut locks = JobLocks::default();
        locks.process_round(&mut vec![waits(1, 1), waits(2, 2)], holds(0));
        let due = locks.next_deadline().expect("two wait");
        assert!(locks.take_overdue(due - HOLD).is_empty());
        let late = locks.take_overdue(due + HOLD);
        assert!(late.len() == 2 && !late.iter().any(is_locked));
        locks.process_round(&mut vec![waits(1, 1)], holds(0));
        let elsewhere = locks.forget_shards((0, u16::MAX), 3);
        assert!(matches!(
            elsewhere[..],
            [RoundAnswer { result: Ok(MetaReply::WrongShard { .. }), .. }]
        ));
    }
}
