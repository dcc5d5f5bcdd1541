//! A request sent twice is executed once.

use crate::harness::*;
use tatami_meta::store::faulty::StoreFault;
use tatami_meta::{OperationContext, StoreError};
use tatami_wire::meta::{InodeTemplate, MetaOp};
use tatami_wire::{Cred, Errno};

fn create(n: &str) -> MetaOp {
    MetaOp::Create {
        parent: ROOT,
        name: name(n),
        node: InodeTemplate::Dir,
        mode: 0o755,
        umask: 0,
        exclusive: true,
        open: None,
    }
}

fn at(s: &Shard, slot: u32, seq: u64) -> OperationContext {
    OperationContext { slot, seq, ..s.context() }
}

#[test]
fn the_same_request_gets_the_same_answer() {
    let mut s = Shard::new();
    let ctx = at(&s, 3, 10);
    let first = s.meta.apply(&ctx, &Cred::ROOT, &create("d")).into_result();
    assert!(first.is_ok());
    let late = OperationContext { now: tatami_wire::Timestamp::from_sec(1 << 30), ..ctx };
    assert_eq!(s.meta.apply(&late, &Cred::ROOT, &create("d")).into_result(), first);
    s.meta.commit().expect("commit");
    let mut s = s.reopen();
    assert_eq!(
        s.meta.apply(&ctx, &Cred::ROOT, &create("d")).into_result(),
        first,
        "also after a crash"
    );
    assert_eq!(s.names(ROOT), ["d"]);
    s.assert_sound();
}

#[test]
fn slots_and_clients_count_on_their_own() {
    let mut s = Shard::new();
    let first = s.meta.apply(&at(&s, 0, 5), &Cred::ROOT, &create("d")).into_result();
    assert!(first.is_ok());
    let other_slot = at(&s, 1, 5);
    assert_eq!(
        s.meta.apply(&other_slot, &Cred::ROOT, &create("d")).into_result(),
        Err(Errno::EEXIST)
    );
    let other_client = OperationContext { client: B, ..at(&s, 0, 5) };
    assert_eq!(
        s.meta.apply(&other_client, &Cred::ROOT, &create("d")).into_result(),
        Err(Errno::EEXIST)
    );
}

#[test]
fn a_past_request_is_refused() {
    let mut s = Shard::new();
    s.meta.apply(&at(&s, 0, 5), &Cred::ROOT, &create("a")).into_result().expect("create");
    assert_eq!(
        s.meta.apply(&at(&s, 0, 4), &Cred::ROOT, &create("b")).into_result(),
        Err(Errno::EPROTO)
    );
    s.meta.commit().expect("commit");
    let mut s = s.reopen();
    assert_eq!(
        s.meta.apply(&at(&s, 0, 4), &Cred::ROOT, &create("b")).into_result(),
        Err(Errno::EPROTO)
    );
    assert!(s.meta.apply(&at(&s, 0, 6), &Cred::ROOT, &create("b")).into_result().is_ok());
}

#[test]
fn a_late_duplicate_of_a_failure_stays_a_failure() {
    let mut s = Shard::new();
    s.dir(ROOT, "d");
    let ctx = at(&s, 9, 1);
    assert_eq!(s.meta.apply(&ctx, &Cred::ROOT, &create("d")).into_result(), Err(Errno::EEXIST));
    s.rmdir(ROOT, "d", false).expect("rmdir");
    assert_eq!(s.meta.apply(&ctx, &Cred::ROOT, &create("d")).into_result(), Err(Errno::EEXIST));
    assert!(s.names(ROOT).is_empty());
}

#[test]
fn a_batch_that_is_lost_is_lost_with_its_answers() {
    let mut s = Shard::new();
    let ctx = at(&s, 0, 1);
    s.meta.apply(&ctx, &Cred::ROOT, &create("d")).into_result().expect("create");
    s.meta.store_mut().fail_commit(0, StoreFault::Full);
    let full = s.meta.commit().expect_err("full");
    assert!(matches!(full, StoreError::Full { .. }));
    assert_eq!(full.errno(), Errno::ENOSPC);
    assert_eq!(s.lookup(ROOT, "d"), Err(Errno::ENOENT));
    // The client got ENOSPC and may try again, with the next number or the same.
    assert!(s.meta.apply(&ctx, &Cred::ROOT, &create("d")).into_result().is_ok());
    s.meta.commit().expect("commit");
    assert_eq!(s.names(ROOT), ["d"]);
    s.assert_sound();
}

#[test]
fn a_failed_disk_stops_changes_and_not_reading() {
    let mut s = Shard::new();
    s.dir(ROOT, "before");
    s.meta.commit().expect("commit");
    assert_eq!(s.meta.operator_alert(), None);
    s.dir(ROOT, "lost");
    s.meta.store_mut().fail_commit(0, StoreFault::Io);
    assert_eq!(s.meta.commit().expect_err("fails").errno(), Errno::EIO);
    assert!(s.meta.is_poisoned());
    assert!(s.meta.operator_alert().is_some());
    assert_eq!(s.make(ROOT, "more", InodeTemplate::Dir, 0o755), Err(Errno::EIO));
    assert_eq!(s.names(ROOT), ["before"]);
    let mut s = s.reopen();
    assert!(s.make(ROOT, "more", InodeTemplate::Dir, 0o755).is_ok());
    s.assert_sound();
}

#[test]
fn a_failed_sync_stops_changes() {
    let mut s = Shard::new();
    s.dir(ROOT, "d");
    s.meta.store_mut().fail_sync();
    assert!(s.meta.sync().is_err());
    assert_eq!(s.make(ROOT, "more", InodeTemplate::Dir, 0o755), Err(Errno::EIO));
}

#[test]
fn an_expired_client_starts_afresh() {
    let mut s = Shard::new();
    let ctx = OperationContext { client: B, ..at(&s, 0, 7) };
    s.meta.apply(&ctx, &Cred::ROOT, &create("d")).into_result().expect("create");
    s.expire(B).expect("expire");
    s.meta.commit().expect("commit");
    assert_eq!(s.clients(), [A]);
    let next = OperationContext { seq: 8, ..ctx };
    assert!(s.meta.apply(&next, &Cred::ROOT, &create("e")).into_result().is_ok());
}
