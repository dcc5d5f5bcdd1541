//! The end of a round: its commit, and the sync that its answers wait for.

use crate::executor::answer::RoundAnswer;
use crate::executor::shards::ExecutorShards;
use tatami_meta::Store;

/// Commits the round. Afterwards every answer states the true outcome.
pub(crate) fn commit_round<S: Store>(shards: &mut ExecutorShards<S>, round: &mut [RoundAnswer]) {
    match shards.commit() {
        Ok(()) => assert!(!shards.is_dirty(), "an answer leaves before the commit of its round"),
        Err(_) => redo_requests(shards, round),
    }
}

/// After a commit that failed, no change of the round has happened, and the round's reads may have
/// seen such changes. Each request is applied again, with a commit of its own: on a full disk
/// removals may still succeed, and a repeated request gets its former answer again.
fn redo_requests<S: Store>(shards: &mut ExecutorShards<S>, round: &mut [RoundAnswer]) {
    for answer in round {
        let Some((ctx, call)) = &answer.request else { continue };
        let applied = shards.apply_request(ctx, call);
        // The inodes of the first attempt are void, too: delegations must follow the second.
        answer.touched = shards.touched_inodes(call, answer.touched.dir.is_some());
        answer.set_applied(applied);
        if let Err(e) = shards.commit() {
            answer.result = Err(e);
        }
    }
}

/// Makes everything committed survive a power cut. If that fails, the `Sync` requests of the round
/// get the error, and with `all` also every request that changed something. Returns whether the
/// sync succeeded.
pub(crate) fn sync_round<S: Store>(
    shards: &mut ExecutorShards<S>,
    round: &mut [RoundAnswer],
    all: bool,
) -> bool {
    let Err(e) = shards.sync() else { return true };
    for answer in round {
        let concerned = answer.waits_for_sync() || (all && answer.is_mutation());
        if concerned && answer.result.is_ok() {
            answer.result = Err(e);
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use tatami_meta::OperationContext;
    use tatami_meta::store::faulty::StoreFault;
    use tatami_meta::{FaultyStore, Meta, MetaConfig};
    use tatami_wire::meta::{InodeTemplate, MetaCall, MetaOp, MetaReply};
    use tatami_wire::{
        ClientId, Cred, Errno, ExecutorId, Ino, NodeId, ShardId, ShardMap, Timestamp, VolumeId,
        VolumeKey,
    };

    const SHARD: ShardId = ShardId(0);
    const HERE: ExecutorId = ExecutorId { node: NodeId(0), index: 0 };

    fn shards() -> ExecutorShards<FaultyStore> {
        let config = MetaConfig {
            executor: HERE,
            map: ShardMap::with_one_shard(HERE),
            volume: VolumeId([1; 16]),
            key: VolumeKey::new([1; 32]),
        };
        let meta = Meta::open(FaultyStore::new(), config, Timestamp::from_sec(1)).expect("opens");
        let mut shards = ExecutorShards::from_meta(Some(meta));
        // The shard reserves inode numbers with a commit of its own, which must not be the one that
        // fails.
        let mut first = vec![put(&mut shards, 0, 1, mkdir("first"))];
        commit_round(&mut shards, &mut first);
        shards
    }

    fn put(
        shards: &mut ExecutorShards<FaultyStore>,
        slot: u32,
        seq: u64,
        op: MetaOp,
    ) -> RoundAnswer {
        let call = MetaCall { shard: SHARD, cred: Cred::ROOT, op };
        let now = Timestamp::from_sec(2);
        let ctx = OperationContext { now, client: ClientId([1; 16]), slot, seq, trusted: true };
        let applied = shards.apply_request(&ctx, &call);
        RoundAnswer::from_applied(0, seq, applied, (ctx, call))
    }

    fn mkdir(name: &str) -> MetaOp {
        MetaOp::Create {
            parent: Ino::ROOT,
            name: name.as_bytes().to_vec().into(),
            node: InodeTemplate::Dir,
            mode: 0o755,
            umask: 0,
            exclusive: true,
            open: None,
        }
    }

    fn lookup(name: &str) -> MetaOp {
        MetaOp::Lookup { parent: Ino::ROOT, name: name.as_bytes().to_vec().into() }
    }

    #[test]
    fn a_round_that_meets_a_full_disk_is_done_again_one_by_one() {
        let mut shards = shards();
        let mut round = vec![
            put(&mut shards, 1, 1, mkdir("a")),
            put(&mut shards, 2, 1, lookup("a")),
            // A repetition: its answer was given before and must not change.
            put(&mut shards, 0, 1, mkdir("first")),
            put(&mut shards, 3, 1, mkdir("b")),
        ];
        assert!(round.iter().all(|answer| answer.result.is_ok()));
        // The round fails, and so does "a" alone; then there is room for "b".
        shards.meta().store_mut().fail_commit(0, StoreFault::Full);
        shards.meta().store_mut().fail_commit(1, StoreFault::Full);
        commit_round(&mut shards, &mut round);
        assert_eq!(round[0].result, Err(Errno::ENOSPC));
        assert_eq!(round[1].result, Err(Errno::ENOENT), "what was undone is not seen");
        assert!(matches!(round[2].result, Ok(MetaReply::Created { .. })));
        assert!(matches!(round[3].result, Ok(MetaReply::Created { .. })));
        assert_eq!(put(&mut shards, 2, 2, lookup("a")).result, Err(Errno::ENOENT));
        assert!(put(&mut shards, 2, 3, lookup("b")).result.is_ok());
        // Repeating the failed request with its old number does not apply it either.
        assert!(put(&mut shards, 1, 2, mkdir("a")).result.is_ok());
    }

    #[test]
    fn after_a_broken_commit_reads_go_on_and_changes_do_not() {
        let mut shards = shards();
        let mut round = vec![
            put(&mut shards, 1, 1, mkdir("a")),
            put(&mut shards, 2, 1, lookup("first")),
            put(&mut shards, 0, 1, mkdir("first")),
        ];
        shards.meta().store_mut().fail_commit(0, StoreFault::Io);
        commit_round(&mut shards, &mut round);
        assert_eq!(round[0].result, Err(Errno::EIO));
        assert!(round[1].result.is_ok());
        assert!(matches!(round[2].result, Ok(MetaReply::Created { .. })));
        let trouble = parking_lot::Mutex::default();
        shards.publish_trouble(&trouble);
        assert!(trouble.lock().is_some());
    }

    #[test]
    fn a_full_disk_is_trouble_until_there_is_room() {
        let mut shards = shards();
        let mut round = vec![put(&mut shards, 1, 1, mkdir("a"))];
        for n in 0..2 {
            shards.meta().store_mut().fail_commit(n, StoreFault::Full);
        }
        commit_round(&mut shards, &mut round);
        assert_eq!(round[0].result, Err(Errno::ENOSPC));
        let trouble = parking_lot::Mutex::default();
        shards.publish_trouble(&trouble);
        assert!(shards.is_full() && trouble.lock().is_some());
        shards.meta().store_mut().set_full(true);
        shards.check_for_room();
        shards.publish_trouble(&trouble);
        assert!(shards.is_full() && trouble.lock().is_some(), "it is full still");
        // No request comes; the disk has room.
        shards.meta().store_mut().set_full(false);
        shards.check_for_room();
        shards.publish_trouble(&trouble);
        assert!(!shards.is_full() && trouble.lock().is_none());
    }

    #[test]
    fn a_failed_sync_is_told_to_those_whom_it_concerns() {
        for all in [false, true] {
            let mut shards = shards();
            let mut round = vec![
                put(&mut shards, 1, 1, mkdir("a")),
                put(&mut shards, 2, 1, lookup("a")),
                put(&mut shards, 3, 1, MetaOp::Sync),
            ];
            commit_round(&mut shards, &mut round);
            shards.meta().store_mut().fail_sync();
            sync_round(&mut shards, &mut round, all);
            assert_eq!(round[0].result.is_ok(), !all);
            assert!(round[1].result.is_ok());
            assert_eq!(round[2].result, Err(Errno::EIO));
        }
    }

    #[test]
    fn what_was_synced_survives_a_power_cut() {
        let mut shards = shards();
        let mut round =
            vec![put(&mut shards, 1, 1, mkdir("a")), put(&mut shards, 3, 1, MetaOp::Sync)];
        commit_round(&mut shards, &mut round);
        sync_round(&mut shards, &mut round, false);
        assert!(round.iter().all(|answer| answer.result.is_ok()));
        assert_eq!(shards.meta().store_mut().unsynced_commits(), 0);
    }
}
