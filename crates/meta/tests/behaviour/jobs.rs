//! The shared state of the ranks of an open: a pointer that loses no step, and a lock that they get
//! in the order of their requests.

use crate::harness::*;
use tatami_meta::OperationContext;
use tatami_wire::job::{JobOp, JobReply, OPENS_MAX};
use tatami_wire::meta::{MetaOp, MetaReply};
use tatami_wire::{Access, ClientId, Cred, Errno, Ino};

const OPEN: u64 = 0x1234_5678_9abc_def0;

fn client(rank: u32) -> ClientId {
    ClientId([rank as u8 + 1; 16])
}

fn op(ino: Ino, (rank, joined): (u32, bool), op: JobOp) -> MetaOp {
    MetaOp::Job { ino, open: OPEN, rank, joined, op }
}

/// Returns the answer to a rank, which is a client of its own.
fn ask(s: &mut Shard, ino: Ino, rank: u32, what: JobOp) -> Result<JobReply, Errno> {
    s.as_client(client(rank));
    match s.apply(op(ino, (rank, false), what))? {
        MetaReply::Job { reply, .. } => Ok(reply),
        other => panic!("{other:?}"),
    }
}

fn locks(s: &mut Shard, ino: Ino, rank: u32) -> JobReply {
    ask(s, ino, rank, JobOp::Lock).expect("lock")
}

fn holder(s: &Shard, ino: Ino) -> Option<u32> {
    s.meta.job_holder(ino, OPEN).map(|(_, rank)| rank)
}

#[test]
fn the_pointer_counts_each_step_once() {
    let mut s = Shard::new();
    let f = s.file(ROOT, "f").ino;
    let before = s.getattr(f);
    for n in 0..4 {
        assert_eq!(ask(&mut s, f, 0, JobOp::Add { by: 5 }), Ok(JobReply::Pointer(5 * n)));
    }
    // The answer was lost: the same request comes again, here and after a crash.
    let again = s.context();
    s.meta.commit().expect("commit");
    let mut s = s.reopen();
    let add = op(f, (0, false), JobOp::Add { by: 5 });
    let reply = s.meta.apply(&again, &Cred::ROOT, &add).into_result();
    assert_eq!(reply, Ok(MetaReply::Job { first: false, reply: JobReply::Pointer(15) }));
    assert_eq!(ask(&mut s, f, 1, JobOp::Set { to: -3 }), Ok(JobReply::Pointer(20)));
    assert_eq!(ask(&mut s, f, 0, JobOp::Add { by: i64::MIN }), Err(Errno::EOVERFLOW));
    assert_eq!(ask(&mut s, f, 2, JobOp::Add { by: 0 }), Ok(JobReply::Pointer(-3)));
    assert_eq!(s.getattr(f), before, "the file itself does not change");
    s.assert_sound();
}

#[test]
fn ranks_get_the_lock_in_the_order_in_which_they_asked() {
    let mut s = Shard::new();
    let f = s.file(ROOT, "f").ino;
    assert_eq!(locks(&mut s, f, 3), JobReply::Locked);
    for rank in [1, 4, 2] {
        assert_eq!(locks(&mut s, f, rank), JobReply::Waiting);
    }
    // A repeated request keeps its place, and the holder keeps the lock.
    assert_eq!(locks(&mut s, f, 4), JobReply::Waiting);
    assert_eq!(locks(&mut s, f, 3), JobReply::Locked);
    s.meta.commit().expect("commit");
    let mut s = s.reopen();
    for (rank, next) in [(3, Some(1)), (1, Some(4)), (4, Some(2)), (2, None)] {
        assert_eq!(holder(&s, f), Some(rank));
        assert_eq!(ask(&mut s, f, rank, JobOp::Unlock), Ok(JobReply::Done));
        assert_eq!(holder(&s, f), next);
        assert_eq!(ask(&mut s, f, rank, JobOp::Unlock), Err(Errno::ENOLCK));
    }
    s.assert_sound();
}

#[test]
fn two_ranks_of_one_process_do_not_share_the_lock() {
    let mut s = Shard::new();
    let f = s.file(ROOT, "f").ino;
    let lock = |s: &mut Shard, rank| s.apply(op(f, (rank, false), JobOp::Lock));
    let reply = |first, reply| Ok(MetaReply::Job { first, reply });
    assert_eq!(lock(&mut s, 0), reply(true, JobReply::Locked));
    assert_eq!(lock(&mut s, 1), reply(false, JobReply::Waiting));
}

#[test]
fn the_lock_of_a_client_that_is_gone_is_the_next_ones() {
    let mut s = Shard::new();
    let f = s.file(ROOT, "f").ino;
    ask(&mut s, f, 0, JobOp::Add { by: 7 }).expect("add");
    for rank in 0..4 {
        locks(&mut s, f, rank);
    }
    // A waiting rank goes, and then the holder.
    for (gone, holds) in [(1, Some(0)), (0, Some(2))] {
        s.as_client(A).expire(client(gone)).expect("expire");
        assert_eq!(holder(&s, f), holds);
    }
    assert_eq!(ask(&mut s, f, 3, JobOp::Add { by: 1 }), Ok(JobReply::Pointer(7)), "it stays");
    // A rank that believes to take part learns that it was removed.
    s.as_client(client(0));
    assert_eq!(s.apply(op(f, (0, true), JobOp::Add { by: 1 })), Err(Errno::ESTALE));
    for gone in [2, 3] {
        s.as_client(A).expire(client(gone)).expect("expire");
    }
    // With the last of its ranks the open is removed.
    assert_eq!(ask(&mut s, f, 5, JobOp::Add { by: 1 }), Ok(JobReply::Pointer(0)));
    s.assert_sound();
}

#[test]
fn an_open_that_is_over_leaves_nothing() {
    let mut s = Shard::new();
    let f = s.file(ROOT, "f").ino;
    let first = |s: &mut Shard, rank: u32| {
        let reply = s.as_client(client(rank)).apply(op(f, (rank, false), JobOp::Add { by: 1 }));
        matches!(reply, Ok(MetaReply::Job { first: true, .. }))
    };
    assert!(first(&mut s, 0) && !first(&mut s, 1));
    locks(&mut s, f, 0);
    locks(&mut s, f, 1);
    s.meta.commit().expect("commit");
    // The file may be gone by then.
    s.unlink(ROOT, "f", false).expect("unlink");
    assert_eq!(ask(&mut s, f, 1, JobOp::Add { by: 1 }), Err(Errno::ESTALE));
    assert_eq!(ask(&mut s, f, 0, JobOp::End), Ok(JobReply::Done));
    assert_eq!(holder(&s, f), None);
    s.assert_sound();
}

#[test]
fn only_who_may_reach_the_bytes_takes_part() {
    let mut s = Shard::new();
    let f = s.file(ROOT, "f").ino;
    let d = s.dir(ROOT, "d").ino;
    let set = |s: &mut Shard, ino| ask(s, ino, 0, JobOp::Set { to: 1 });
    assert_eq!(set(&mut s, d), Err(Errno::EINVAL));
    s.chmod(f, 0o600).expect("chmod");
    s.as_user(user(7));
    assert_eq!(set(&mut s, f), Err(Errno::EACCES));
    for mode in [0o604, 0o602] {
        s.as_root().chmod(f, mode).expect("chmod");
        s.as_user(user(7));
        assert_eq!(set(&mut s, f).map(drop), Ok(()));
    }
    // A client that has it open for writing may go on after the permission is taken away.
    s.as_root().as_client(client(0)).open(f, Access::BOTH).expect("open");
    s.chmod(f, 0o600).expect("chmod");
    s.as_user(user(7));
    assert_eq!(set(&mut s, f).map(drop), Ok(()));
}

#[test]
fn opens_of_one_file_are_bounded() {
    let mut s = Shard::new();
    let f = s.file(ROOT, "f").ino;
    let add = |s: &mut Shard, open: u64| {
        let op = JobOp::Add { by: 1 };
        s.apply(MetaOp::Job { ino: f, open, rank: 0, joined: false, op })
    };
    for open in 0..OPENS_MAX as u64 {
        add(&mut s, open).expect("there is room");
    }
    assert_eq!(add(&mut s, u64::MAX), Err(Errno::ENOLCK));
    assert!(add(&mut s, 3).is_ok(), "those that are there go on");
    let end = MetaOp::Job { ino: f, open: 4, rank: 0, joined: true, op: JobOp::End };
    s.apply(end).expect("end");
    assert!(add(&mut s, u64::MAX).is_ok());
    let untrusted = OperationContext { trusted: false, ..s.context() };
    let expire = MetaOp::ExpireClient { client: A };
    let refused = s.meta.apply(&untrusted, &Cred::ROOT, &expire).into_result();
    assert_eq!(refused, Err(Errno::EPERM));
}
