//! Batch operations: each operation of a request has the result that it has alone.

use crate::harness::*;
use tatami_meta::store::faulty::StoreFault;
use tatami_wire::batch::{BATCH_OPS_MAX, BatchOp, BatchResult, DirTotals, RetainedEntry};
use tatami_wire::meta::{DataState, InodeTemplate, MetaOp, MetaReply};
use tatami_wire::{Access, Cred, Errno, Ino, InodeKind, SetAttr};

fn create(parent: Ino, n: &str, node: InodeTemplate) -> BatchOp {
    let (mode, umask) = (0o666, 0o022);
    BatchOp::Create { parent, name: name(n), node, mode, umask, exclusive: true, open: None }
}

fn file(parent: Ino, n: &str) -> BatchOp {
    create(parent, n, InodeTemplate::File(LAYOUT))
}

fn find(parent: Ino, n: &str) -> BatchOp {
    BatchOp::LookupEntry { parent, name: name(n) }
}

fn unlink(parent: Ino, n: &str) -> BatchOp {
    BatchOp::Unlink { parent, name: name(n), keep: false }
}

fn rmdir(parent: Ino, n: &str) -> BatchOp {
    BatchOp::Rmdir { parent, name: name(n), keep: false }
}

impl Shard {
    fn run_batch(&mut self, operations: Vec<BatchOp>) -> Vec<BatchResult> {
        match self.apply(MetaOp::Batch { operations }) {
            Ok(MetaReply::BatchResults(all)) => all,
            other => panic!("no batch: {other:?}"),
        }
    }

    fn clear(&mut self, dir: Ino, after: u64, limit: u32) -> (u32, Vec<RetainedEntry>, bool, u64) {
        match self.apply(MetaOp::ClearDir { dir, after, limit, with_names: false }) {
            Ok(MetaReply::DirCleared { removed, names, retained: left, end, upto }) => {
                assert!(names.is_empty());
                (removed, left, end, upto)
            }
            other => panic!("not cleared: {other:?}"),
        }
    }

    fn sum(&mut self, dir: Ino) -> Result<DirTotals, Errno> {
        match self.apply(MetaOp::SumDir { dir, after: 0, limit: 1000 })? {
            MetaReply::DirTotals { totals: sum, end: true, .. } => Ok(sum),
            other => panic!("no sum: {other:?}"),
        }
    }
}

fn inode_of(result: &BatchResult) -> Ino {
    match result {
        BatchResult::Created { attr, .. } | BatchResult::Attr(attr) => attr.ino,
        other => panic!("no inode: {other:?}"),
    }
}

fn errno_of(result: &BatchResult) -> Option<Errno> {
    match result {
        BatchResult::Failed(errno) => Some(*errno),
        _ => None,
    }
}

#[test]
fn each_act_does_what_the_operation_does() {
    let mut s = Shard::new();
    let d = s.dir(ROOT, "d").ino;
    let open = BatchOp::Create {
        parent: d,
        name: name("open"),
        node: InodeTemplate::File(LAYOUT),
        mode: 0o600,
        umask: 0,
        exclusive: false,
        open: Some(Access::BOTH),
    };
    let link = InodeTemplate::Symlink(name("target"));
    let made = s.run_batch(vec![
        file(d, "f"),
        create(d, "sub", InodeTemplate::Dir),
        create(d, "link", link),
        open.clone(),
        find(d, "f"),
    ]);
    assert_eq!(inode_of(&made[4]), inode_of(&made[0]), "an operation sees those before it");
    assert_eq!(s.names(d), ["f", "link", "open", "sub"]);
    let f = inode_of(&made[0]);
    let attr = s.lookup(d, "f").expect("lookup");
    assert_eq!((attr.ino, attr.mode, attr.nlink), (f, 0o644, 1));
    let dir = s.getattr(d).expect("directory");
    assert_eq!((dir.size, dir.nlink), (4, 3));
    let opened = inode_of(&made[3]);
    assert!(
        matches!(&made[3], BatchResult::Created { cap: Some(cap), created: true, .. } if cap.ino == opened)
    );
    assert!(matches!(
        &s.run_batch(vec![open])[0],
        BatchResult::Created { cap: Some(_), created: false, .. }
    ));
    let mtime = s.time();
    let state = Some(DataState { size: 9, blocks: 8, mtime, changed: mtime });
    let set = SetAttr { mode: Some(0o400), ..SetAttr::default() };
    let done = s.run_batch(vec![
        BatchOp::Commit { ino: opened, state, close: true },
        BatchOp::SetAttr { ino: f, set },
        BatchOp::GetAttr { ino: opened },
    ]);
    assert!(matches!(&done[0], BatchResult::Attr(attr) if attr.size == 9));
    assert!(matches!(&done[1], BatchResult::Attr(attr) if attr.mode == 0o400));
    assert!(matches!(&done[2], BatchResult::Attr(attr) if attr.blocks == 8));
    let gone =
        s.run_batch(vec![unlink(d, "f"), unlink(d, "link"), rmdir(d, "sub"), unlink(d, "open")]);
    assert!(gone.iter().all(|result| matches!(result, BatchResult::Removed { last: true, .. })));
    assert!(s.names(d).is_empty());
    assert_eq!(s.garbage(1), [opened], "it had bytes");
    assert_eq!(s.getattr(f), Err(Errno::ESTALE));
    s.assert_sound();
}

/// A file that is written before it has a name, as `tatami cp` does.
#[test]
fn files_without_a_name_are_made_committed_and_linked() {
    let mut s = Shard::new();
    let d = s.dir(ROOT, "d").ino;
    let unnamed = |n: &str| BatchOp::Tmpfile {
        parent: d,
        name: name(n),
        layout: LAYOUT,
        mode: 0o666,
        umask: 0o022,
        open: Access::WRITE,
    };
    let made = s.as_client(A).run_batch(vec![unnamed("a"), unnamed("b"), unnamed("lost")]);
    let [a, b, lost] = [0, 1, 2].map(|at| inode_of(&made[at]));
    assert!(s.names(d).is_empty());
    assert!(matches!(&made[0], BatchResult::Created { cap: Some(_), attr, .. }
        if (attr.nlink, attr.mode) == (0, 0o644)));
    let mtime = s.time();
    let state = Some(DataState { size: 9, blocks: 8, mtime, changed: mtime });
    let link = |ino, n: &str| BatchOp::Link { ino, parent: d, name: name(n) };
    let done = s.run_batch(vec![
        BatchOp::Commit { ino: a, state, close: true },
        link(a, "a"),
        link(b, "a"),
        link(b, "b"),
    ]);
    assert!(matches!(&done[1], BatchResult::Attr(attr) if (attr.size, attr.nlink) == (9, 1)));
    assert_eq!(errno_of(&done[2]), Some(Errno::EEXIST));
    assert!(matches!(&done[3], BatchResult::Attr(_)));
    s.assert_sound();
    // The name keeps the file, and nothing else does: it goes with the name.
    s.unlink(d, "a", false).expect("unlink");
    assert_eq!(s.getattr(a), Err(Errno::ESTALE));
    // Its writer still has the other one open.
    s.as_client(B).unlink(d, "b", false).expect("unlink");
    assert_eq!(s.getattr(b).map(|attr| attr.nlink), Ok(0));
    // The end of a client removes what got no name.
    s.apply(MetaOp::ExpireClient { client: A }).expect("expired");
    assert_eq!([b, lost].map(|ino| s.getattr(ino)), [Err(Errno::ESTALE), Err(Errno::ESTALE)]);
    s.assert_sound();
}

#[test]
fn each_act_fails_by_itself() {
    let mut s = Shard::new();
    let d = s.dir(ROOT, "d").ino;
    s.dir(d, "sub");
    let sub = s.lookup(d, "sub").expect("lookup").ino;
    let below = s.file(sub, "below").ino;
    let replies = s.run_batch(vec![
        file(d, "a"),
        file(d, "a"),
        unlink(d, "nothing"),
        unlink(d, "sub"),
        rmdir(d, "sub"),
        rmdir(d, "a"),
        file(below, "x"),
        find(Ino(999), "x"),
        file(d, &"n".repeat(300)),
        find(d, "nothing"),
        file(d, "b"),
    ]);
    let errors: Vec<_> = replies.iter().map(errno_of).collect();
    let expected = [
        None,
        Some(Errno::EEXIST),
        Some(Errno::ENOENT),
        Some(Errno::EISDIR),
        Some(Errno::ENOTEMPTY),
        Some(Errno::ENOTDIR),
        Some(Errno::ENOTDIR),
        Some(Errno::ESTALE),
        Some(Errno::ENAMETOOLONG),
        Some(Errno::ENOENT),
        None,
    ];
    assert_eq!(errors, expected);
    assert_eq!(s.names(d), ["a", "b", "sub"]);
    s.assert_sound();
}

#[test]
fn each_act_needs_permission() {
    let mut s = Shard::new();
    let (own, other, sticky) =
        (s.dir(ROOT, "own").ino, s.dir(ROOT, "other").ino, s.dir(ROOT, "t").ino);
    s.chown(own, Some(7), Some(7)).expect("chown");
    s.chmod(other, 0o755).expect("chmod");
    s.chmod(sticky, 0o1777).expect("chmod");
    s.file(sticky, "root's");
    s.file(other, "seen");
    let closed = s.dir(ROOT, "closed").ino;
    s.chmod(closed, 0o744).expect("chmod");
    s.file(closed, "hidden");
    s.as_user(user(7));
    let replies = s.run_batch(vec![
        file(own, "f"),
        file(other, "f"),
        unlink(other, "seen"),
        find(other, "seen"),
        unlink(sticky, "root's"),
        file(sticky, "mine"),
        unlink(sticky, "mine"),
        find(closed, "hidden"),
    ]);
    let errors: Vec<_> = replies.iter().map(errno_of).collect();
    let (no, ok) = (Some(Errno::EACCES), None);
    assert_eq!(errors, [ok, no, no, ok, Some(Errno::EPERM), ok, ok, no]);
    // A client that may list the directory may clear it, as far as it may remove the entries.
    assert_eq!(s.clear(own, 0, 100).0, 1);
    let (removed, left, end, _) = s.clear(sticky, 0, 100);
    assert_eq!((removed, end), (0, true));
    assert_eq!(left[0].reason, Some(Errno::EPERM));
    assert_eq!(s.clear(closed, 0, 100).1[0].reason, no);
    assert_eq!(s.sum(closed), Err(Errno::EACCES));
    s.as_root().chmod(own, 0o300).expect("chmod");
    s.as_user(user(7));
    let clear = MetaOp::ClearDir { dir: own, after: 0, limit: 9, with_names: false };
    assert_eq!(s.apply(clear), Err(Errno::EACCES));
    assert_eq!(s.sum(own), Err(Errno::EACCES));
    s.assert_sound();
}

#[test]
fn a_repeated_request_gets_the_first_answers() {
    let mut s = Shard::new();
    let d = s.dir(ROOT, "d").ino;
    s.file(d, "old");
    s.meta.commit().expect("commit");
    let op = MetaOp::Batch { operations: vec![file(d, "new"), unlink(d, "old"), find(d, "old")] };
    s.seq += 1;
    let ctx = s.context();
    let first = s.meta.apply(&ctx, &Cred::ROOT, &op).into_result().expect("done");
    assert_eq!(s.meta.apply(&ctx, &Cred::ROOT, &op).into_result(), Ok(first.clone()));
    s.meta.commit().expect("commit");
    let mut s = s.reopen();
    assert_eq!(s.meta.apply(&ctx, &Cred::ROOT, &op).into_result(), Ok(first), "also after a crash");
    assert_eq!(s.names(d), ["new"]);
    let clear = MetaOp::ClearDir { dir: d, after: 0, limit: 10, with_names: true };
    s.seq += 1;
    let ctx = s.context();
    let first = s.meta.apply(&ctx, &Cred::ROOT, &clear).into_result().expect("cleared");
    assert!(
        matches!(&first, MetaReply::DirCleared { removed: 1, names, .. } if names == &[name("new")])
    );
    assert_eq!(s.meta.apply(&ctx, &Cred::ROOT, &clear).into_result(), Ok(first));
    s.assert_sound();
}

#[test]
fn what_is_lost_is_lost_as_a_whole() {
    let mut s = Shard::new();
    let d = s.dir(ROOT, "d").ino;
    s.meta.commit().expect("commit");
    let op = MetaOp::Batch { operations: (0..100).map(|n| file(d, &n.to_string())).collect() };
    s.seq += 1;
    let ctx = s.context();
    assert!(s.meta.apply(&ctx, &Cred::ROOT, &op).into_result().is_ok());
    s.meta.store_mut().fail_commit(0, StoreFault::Full);
    assert!(s.meta.commit().is_err());
    assert!(s.names(d).is_empty());
    assert!(s.meta.apply(&ctx, &Cred::ROOT, &op).into_result().is_ok(), "it is done anew");
    assert_eq!(s.names(d).len(), 100);
    // Killed before the commit: neither the names nor the answer are there.
    let mut s = s.reopen();
    assert!(s.names(d).is_empty());
    assert!(s.meta.apply(&ctx, &Cred::ROOT, &op).into_result().is_ok());
    assert_eq!(s.names(d).len(), 100);
    s.assert_sound();
}

#[test]
fn there_are_not_too_many() {
    let mut s = Shard::new();
    let d = s.dir(ROOT, "d").ino;
    let operations =
        |n: usize| MetaOp::Batch { operations: (0..n).map(|n| file(d, &n.to_string())).collect() };
    assert_eq!(s.apply(operations(BATCH_OPS_MAX + 1)), Err(Errno::EINVAL));
    assert!(s.names(d).is_empty());
    assert!(s.apply(operations(BATCH_OPS_MAX)).is_ok());
    assert_eq!(s.getattr(d).expect("directory").size, BATCH_OPS_MAX as u64);
    assert_eq!(s.run_batch(Vec::new()), []);
}

#[test]
fn a_directory_is_cleared_stretch_by_stretch() {
    let mut s = Shard::new();
    let d = s.dir(ROOT, "d").ino;
    for n in 0..25 {
        s.file(d, &format!("f{n}"));
    }
    let sub = s.dir(d, "sub").ino;
    let linked = s.file(d, "linked").ino;
    s.link(linked, ROOT, "kept").expect("link");
    let (mut after, mut removed, mut left) = (0, 0, Vec::new());
    for _ in 0..3 {
        let (more, some, end, upto) = s.clear(d, after, 10);
        removed += more;
        left.extend(some);
        assert_eq!(end, upto == i64::MAX as u64);
        after = upto;
    }
    assert_eq!(removed, 26);
    assert_eq!(
        left,
        [RetainedEntry { name: name("sub"), ino: sub, kind: InodeKind::Dir, reason: None }]
    );
    assert_eq!(s.names(d), ["sub"]);
    assert_eq!(s.lookup(ROOT, "kept").expect("lookup").nlink, 1);
    let clear = MetaOp::ClearDir { dir: linked, after: 0, limit: 10, with_names: false };
    assert_eq!(s.apply(clear), Err(Errno::ENOTDIR));
    s.assert_sound();
}

#[test]
fn a_directory_is_added_up() {
    let mut s = Shard::new();
    let d = s.dir(ROOT, "d").ino;
    for n in 0..3 {
        let ino = s.file(d, &format!("f{n}")).ino;
        s.open(ino, Access::WRITE).expect("open");
        s.commit(ino, Some(1000), true).expect("commit");
    }
    let twice = s.lookup(d, "f0").expect("lookup").ino;
    s.link(twice, d, "again").expect("link");
    let (empty, full) = (s.dir(d, "empty").ino, s.dir(d, "full").ino);
    s.file(full, "below");
    let sum = s.sum(d).expect("a sum");
    assert_eq!((sum.files, sum.size, sum.blocks), (2, 2000, 4));
    assert_eq!(sum.linked, [(twice, 1000, 2), (twice, 1000, 2)]);
    assert!(sum.remote.is_empty());
    let mut dirs = sum.dirs;
    dirs.sort_unstable();
    assert_eq!(dirs, [(name("empty"), empty, true), (name("full"), full, false)]);
    s.chmod(empty, 0o300).expect("chmod");
    s.chmod(d, 0o755).expect("chmod");
    let replies = s.as_user(user(7)).sum(d).expect("a sum").dirs;
    assert!(replies.iter().all(|(_, _, is_empty)| !is_empty), "who may not look is not told");
}
