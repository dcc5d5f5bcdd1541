//! Inodes and objects that outlive their name or writer.

use crate::harness::*;
use tatami_meta::OperationContext;
use tatami_wire::meta::{InodeTemplate, MetaOp, MetaReply, RenameMode};
use tatami_wire::{Access, Cred, Errno, Ino, NodeId};

#[test]
fn a_file_kept_open_lives_until_its_release() {
    let mut s = Shard::new();
    let f = s.create_open(ROOT, "f", Access::BOTH).expect("create").0.ino;
    s.unlink(ROOT, "f", true).expect("unlink");
    assert_eq!(s.lookup(ROOT, "f"), Err(Errno::ENOENT));
    assert_eq!(s.getattr(f).map(|a| a.nlink), Ok(0));
    assert!(s.commit(f, Some(10), true).is_ok());
    assert_eq!(s.link(f, ROOT, "g"), Err(Errno::ENOENT), "what was unlinked stays so");
    s.meta.commit().expect("commit");
    let mut s = s.reopen();
    s.assert_sound();
    assert!(s.garbage(1).is_empty());
    s.as_client(B).release(f).expect("somebody else's release does nothing");
    assert!(s.getattr(f).is_ok());
    s.as_client(A).release(f).expect("release");
    assert_eq!(s.getattr(f), Err(Errno::ESTALE));
    assert_eq!(s.release(f), Ok(()), "a late release does no harm");
    assert_eq!(s.garbage(1), [f]);
    s.assert_sound();
}

/// B has it open when A removes its last name.
#[test]
fn a_file_that_others_have_open_stays_until_they_have_closed_it() {
    let closed = |write: &[Ino], read: &[Ino]| MetaOp::ReportClosed {
        inos: write.to_vec(),
        empty: vec![],
        read: read.to_vec(),
    };
    for (reads, writes, replaced) in
        [(true, false, false), (false, true, true), (true, true, false), (true, true, true)]
    {
        let mut s = Shard::new();
        let f = s.file(ROOT, "f").ino;
        s.as_client(B);
        if reads {
            s.open_noted(f, Access::READ).expect("open");
        }
        if writes {
            s.open_noted(f, Access::BOTH).expect("open");
        }
        s.as_client(A);
        if replaced {
            s.file(ROOT, "g");
            s.rename((ROOT, "g"), (ROOT, "f"), RenameMode::Replace).expect("rename");
        } else {
            assert_eq!(s.unlink(ROOT, "f", false), Ok((Some(f), true)));
        }
        assert_eq!(s.getattr(f).map(|a| a.nlink), Ok(0));
        s.assert_sound();
        s.meta.commit().expect("commit");
        let mut s = s.reopen();
        if reads {
            s.meta.record_opens(B, &[f]);
        }
        s.as_client(A).apply(closed(&[f], &[f])).expect("closed");
        s.as_client(B);
        if reads && writes {
            s.commit(f, Some(5), true).expect("commit");
            assert!(s.getattr(f).is_ok(), "it is read still");
            s.open_noted(f, Access::WRITE).expect("open");
            s.apply(closed(&[], &[f])).expect("closed");
            assert!(s.getattr(f).is_ok(), "it is written still");
        }
        s.assert_sound();
        match writes {
            true => drop(s.commit(f, Some(7), true).expect("the last word")),
            false => drop(s.apply(closed(&[], &[f])).expect("closed")),
        }
        assert_eq!(s.getattr(f), Err(Errno::ESTALE));
        assert_eq!(s.apply(closed(&[f], &[f])), Ok(MetaReply::Done), "a late one does no harm");
        s.assert_sound();
    }
}

#[test]
fn who_has_removed_it_may_have_closed_it_before_others() {
    let mut s = Shard::new();
    let f = s.create_open(ROOT, "f", Access::BOTH).expect("create").0.ino;
    s.as_client(B).open_noted(f, Access::READ).expect("open");
    s.as_client(A).unlink(ROOT, "f", true).expect("unlink");
    s.release(f).expect("release");
    assert!(s.getattr(f).is_ok(), "B reads it");
    s.assert_sound();
    s.as_client(B)
        .apply(MetaOp::ReportClosed { inos: vec![], empty: vec![], read: vec![f] })
        .expect("closed");
    assert_eq!(s.getattr(f), Err(Errno::ESTALE));
    s.assert_sound();
}

#[test]
fn readers_that_are_gone_keep_nothing() {
    let mut s = Shard::new();
    let f = s.file(ROOT, "f").ino;
    s.as_client(B).open_noted(f, Access::READ).expect("open");
    assert!(s.clients().contains(&B), "it is looked after");
    s.as_client(A).unlink(ROOT, "f", false).expect("unlink");
    assert!(s.getattr(f).is_ok());
    s.expire(B).expect("expire");
    assert_eq!(s.getattr(f), Err(Errno::ESTALE));
    let g = s.file(ROOT, "g").ino;
    s.as_client(B).open(g, Access::READ).expect("open");
    s.as_client(A).unlink(ROOT, "g", false).expect("unlink");
    assert_eq!(s.getattr(g), Err(Errno::ESTALE), "who does not tell of its closes keeps nothing");
    let h = s.file(ROOT, "h").ino;
    let stranger = OperationContext { client: B, seq: s.seq + 1, trusted: false, ..s.context() };
    let open = MetaOp::Open { ino: h, access: Access::READ, registered: true };
    assert!(s.meta.apply(&stranger, &Cred::ROOT, &open).into_result().is_ok());
    s.as_client(A).unlink(ROOT, "h", false).expect("unlink");
    assert_eq!(s.getattr(h), Err(Errno::ESTALE), "who is not trusted takes no room");
    s.assert_sound();
}

#[test]
fn a_file_with_another_name_is_not_kept() {
    let mut s = Shard::new();
    let f = s.file(ROOT, "f").ino;
    s.link(f, ROOT, "g").expect("link");
    assert_eq!(s.unlink(ROOT, "f", true), Ok((Some(f), false)));
    assert_eq!(s.unlink(ROOT, "g", false), Ok((Some(f), true)));
    assert_eq!(s.getattr(f), Err(Errno::ESTALE));
    s.assert_sound();
}

#[test]
fn a_removed_directory_can_be_kept_and_nothing_is_made_in_it() {
    let mut s = Shard::new();
    let d = s.dir(ROOT, "d").ino;
    s.rmdir(ROOT, "d", true).expect("rmdir");
    assert_eq!(s.getattr(d).map(|a| a.nlink), Ok(0));
    assert_eq!(s.make(d, "x", InodeTemplate::Dir, 0o755), Err(Errno::ENOENT));
    assert_eq!(s.lookup(d, "x"), Err(Errno::ENOENT));
    assert_eq!(s.tmpfile(d), Err(Errno::ENOENT));
    let (entries, end, _) = s.page(d, 0, 10, false).expect("listing");
    assert!(entries.is_empty() && end);
    s.assert_sound();
    s.release(d).expect("release");
    assert_eq!(s.getattr(d), Err(Errno::ESTALE));
    s.assert_sound();
}

#[test]
fn a_file_made_without_a_name_gets_one_or_goes() {
    let mut s = Shard::new();
    let t = s.tmpfile(ROOT).expect("tmpfile");
    assert_eq!((t.nlink, t.mode), (0, 0o600));
    assert_eq!(s.as_client(B).link(t.ino, ROOT, "x"), Err(Errno::ENOENT), "not who has it open");
    assert_eq!(s.as_client(A).link(t.ino, ROOT, "x").map(|a| a.nlink), Ok(1));
    s.assert_sound();
    s.release(t.ino).expect("release");
    assert_eq!(s.lookup(ROOT, "x").map(|a| a.ino), Ok(t.ino));
    let gone = s.tmpfile(ROOT).expect("tmpfile").ino;
    s.release(gone).expect("release");
    assert_eq!(s.getattr(gone), Err(Errno::ESTALE));
    s.assert_sound();
}

#[test]
fn garbage_is_listed_per_node_until_done() {
    let mut s = Shard::new();
    assert!(s.meta.take_garbage_nodes().is_empty());
    let f = s.create_open(ROOT, "f", Access::WRITE).expect("create").0.ino;
    let never_opened = s.file(ROOT, "g").ino;
    s.unlink(ROOT, "f", false).expect("unlink");
    s.unlink(ROOT, "g", false).expect("unlink");
    assert_eq!(s.meta.take_garbage_nodes(), [NodeId(1)]);
    assert!(s.meta.take_garbage_nodes().is_empty(), "told once");
    assert_eq!(s.garbage(1), [f], "{never_opened} can have no object");
    assert!(s.garbage(0).is_empty());
    s.meta.commit().expect("commit");
    let mut s = s.reopen();
    assert_eq!(s.meta.take_garbage_nodes(), [NodeId(1)], "told again after a start");
    s.garbage_done(1, vec![f]).expect("done");
    assert!(s.garbage(1).is_empty());
    s.assert_sound();
}

/// No recovery follows for an object that its only writer has reported as never made.
#[test]
fn a_file_that_never_had_an_object_leaves_no_garbage() {
    let mut s = Shard::new();
    let empty = |s: &mut Shard, f| {
        s.as_client(A)
            .apply(MetaOp::ReportClosed { inos: vec![], empty: vec![f], read: vec![] })
            .expect("closed");
        s.unlink(ROOT, "f", false).expect("unlink");
        let closed = MetaOp::ReportClosed { inos: vec![f], empty: vec![], read: vec![] };
        s.as_client(B).apply(closed).expect("closed");
        let found = s.garbage(1);
        s.as_client(A).garbage_done(1, found.clone()).expect("done");
        s.assert_sound();
        !found.is_empty()
    };
    let make =
        |s: &mut Shard| s.as_client(A).create_open(ROOT, "f", Access::BOTH).expect("create").0.ino;
    let f = make(&mut s);
    s.open(f, Access::WRITE).expect("it is the same client");
    s.meta.commit().expect("commit");
    let mut s = s.reopen();
    assert!(!empty(&mut s, f), "also after a start");

    let f = make(&mut s);
    s.as_client(B).open(f, Access::WRITE).expect("open");
    assert!(empty(&mut s, f), "another one may still make it");

    let f = make(&mut s);
    s.as_client(B).open(f, Access::WRITE).expect("open");
    s.commit(f, None, true).expect("without a word of its bytes");
    assert!(empty(&mut s, f), "another one may have made it");

    let f = make(&mut s);
    s.apply(MetaOp::ReportClosed { inos: vec![f], empty: vec![], read: vec![] }).expect("closed");
    s.open(f, Access::WRITE).expect("open");
    assert!(empty(&mut s, f), "it may be from the first time");

    let f = make(&mut s);
    s.apply(MetaOp::ReportClosed { inos: vec![], empty: vec![f], read: vec![] }).expect("closed");
    s.as_client(B).open(f, Access::WRITE).expect("open");
    assert!(empty(&mut s, f), "who has closed it knows nothing of what comes later");

    let f = make(&mut s);
    s.commit(f, Some(10), false).expect("commit");
    assert!(empty(&mut s, f), "it has bytes");

    let f = make(&mut s);
    s.as_client(B).expire(A).expect("expire");
    assert!(empty(&mut s, f), "who was taken for dead is not believed");
}

#[test]
fn a_client_that_is_gone_holds_nothing() {
    let mut s = Shard::new();
    let kept = s.create_open(ROOT, "kept", Access::BOTH).expect("create").0.ino;
    let written = s.create_open(ROOT, "written", Access::WRITE).expect("create").0.ino;
    let d = s.dir(ROOT, "d").ino;
    s.unlink(ROOT, "kept", true).expect("unlink");
    s.rmdir(ROOT, "d", true).expect("rmdir");
    s.as_client(B);
    s.open(written, Access::WRITE).expect("open");
    s.meta.commit().expect("commit");
    assert_eq!(s.clients(), [A, B]);
    s.expire(A).expect("expire");
    assert_eq!(s.clients(), [B]);
    assert_eq!(s.getattr(kept), Err(Errno::ESTALE));
    assert_eq!(s.getattr(d), Err(Errno::ESTALE));
    assert_eq!(s.garbage(1), [kept]);
    assert_eq!(s.unsettled(), [written], "its size is not sure");
    s.assert_sound();
    s.settle(written, 4096).expect("settle");
    assert!(s.unsettled().is_empty());
    let attr = s.getattr(written).expect("attr");
    assert_eq!((attr.size, attr.blocks), (4096, 8));
    s.settle(written, 9999).expect("again");
    assert_eq!(s.getattr(written).map(|a| a.size), Ok(4096), "settled once");
    s.assert_sound();
}

#[test]
fn a_client_with_much_is_released_in_steps() {
    let mut s = Shard::new();
    for i in 0..5000 {
        let n = format!("f{i}");
        s.create_open(ROOT, &n, Access::WRITE).expect("create");
        if i % 5 == 0 {
            s.unlink(ROOT, &n, true).expect("unlink");
        }
    }
    s.as_client(B);
    let mut steps = 0;
    while s.clients().contains(&A) {
        s.expire(A).expect("expire");
        s.meta.commit().expect("commit");
        steps += 1;
        assert!(steps < 10, "it ends");
    }
    assert!(steps > 1, "more than one step's worth");
    assert_eq!(s.meta.inode_count(), 1 + 4000);
    s.assert_sound();
}

#[test]
fn a_settled_size_is_no_smaller_than_what_was_told() {
    let mut s = Shard::new();
    let f = s.create_open(ROOT, "f", Access::WRITE).expect("create").0.ino;
    s.commit(f, Some(100), false).expect("commit");
    s.as_client(B).expire(A).expect("expire");
    s.settle(f, 50).expect("settle");
    assert_eq!(s.getattr(f).map(|a| a.size), Ok(100));
    s.assert_sound();
}

#[test]
fn an_unsettled_file_that_is_removed_is_settled() {
    let mut s = Shard::new();
    let f = s.create_open(ROOT, "f", Access::WRITE).expect("create").0.ino;
    s.as_client(B).expire(A).expect("expire");
    s.unlink(ROOT, "f", false).expect("unlink");
    assert!(s.unsettled().is_empty());
    assert_eq!(s.settle(f, 1), Ok(()));
    s.assert_sound();
}
