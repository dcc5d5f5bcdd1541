//! Changing attributes, opening and closing files.

use crate::harness::*;
use tatami_wire::meta::{DataState, InodeTemplate, MetaOp, MetaReply, REPORT_CLOSED_MAX};
use tatami_wire::{Access, Attr, ClientId, Errno, Ino, SetAttr, SetTime, Timestamp};

fn owned_by(s: &mut Shard, n: &str, uid: u32, gid: u32, mode: u16) -> Ino {
    s.as_root();
    let ino = s.file(ROOT, n).ino;
    s.chown(ino, Some(uid), Some(gid)).expect("chown");
    s.chmod(ino, mode).expect("chmod");
    ino
}

fn size(size: u64) -> SetAttr {
    SetAttr { size: Some(size), ..SetAttr::default() }
}

fn times(atime: Option<SetTime>, mtime: Option<SetTime>) -> SetAttr {
    SetAttr { atime, mtime, ..SetAttr::default() }
}

#[test]
fn only_the_owner_and_root_change_the_mode() {
    let mut s = Shard::new();
    let f = owned_by(&mut s, "f", 10, 20, 0o644);
    assert_eq!(s.as_user(user(11)).chmod(f, 0o666), Err(Errno::EPERM));
    let changed = s.as_user(user(10)).chmod(f, 0o4711).expect("owner");
    assert_eq!((changed.mode, changed.ctime), (0o4711, s.time()));
    assert_eq!(s.as_root().chmod(f, 0o600).map(|a| a.mode), Ok(0o600));
    assert_eq!(s.chmod(f, 0o10000), Err(Errno::EINVAL));
}

#[test]
fn setgid_is_for_members_of_the_group() {
    let mut s = Shard::new();
    let f = owned_by(&mut s, "f", 10, 20, 0o644);
    assert_eq!(s.as_user(user(10)).chmod(f, 0o2755).map(|a| a.mode), Ok(0o755));
    assert_eq!(s.as_user(member(10, &[20])).chmod(f, 0o2755).map(|a| a.mode), Ok(0o2755));
}

#[test]
fn the_owner_gives_a_file_to_his_groups_only() {
    let mut s = Shard::new();
    let f = owned_by(&mut s, "f", 10, 20, 0o644);
    s.as_user(member(10, &[21]));
    assert_eq!(s.chown(f, Some(11), None), Err(Errno::EPERM), "not to another user");
    assert_eq!(s.chown(f, Some(10), None).map(|a| a.uid), Ok(10), "to himself");
    assert_eq!(s.chown(f, None, Some(22)), Err(Errno::EPERM));
    assert_eq!(s.chown(f, None, Some(21)).map(|a| a.gid), Ok(21));
    assert_eq!(s.as_user(member(12, &[20])).chown(f, None, Some(20)), Err(Errno::EPERM));
    assert_eq!(
        s.as_user(user(12)).chown(f, Some(10), None),
        Err(Errno::EPERM),
        "not even no change"
    );
    assert_eq!(s.as_root().chown(f, Some(1), Some(2)).map(|a| (a.uid, a.gid)), Ok((1, 2)));
}

#[test]
fn a_new_owner_does_not_get_the_old_ones_privileges() {
    let mut s = Shard::new();
    let f = owned_by(&mut s, "f", 10, 10, 0o6755);
    assert_eq!(s.as_user(member(10, &[21])).chown(f, None, Some(21)).map(|a| a.mode), Ok(0o755));
    let g = owned_by(&mut s, "g", 10, 10, 0o6745);
    assert_eq!(s.chown(g, Some(11), None).map(|a| a.mode), Ok(0o2745), "root keeps locking bit");
    s.as_root();
    let d = s.dir(ROOT, "d").ino;
    s.chmod(d, 0o6755).expect("chmod");
    assert_eq!(s.chown(d, Some(1), Some(1)).map(|a| a.mode), Ok(0o6755), "directories keep theirs");
}

#[test]
fn cutting_needs_write_permission_or_a_handle() {
    let mut s = Shard::new();
    let f = owned_by(&mut s, "f", 10, 10, 0o644);
    assert_eq!(s.as_user(user(11)).setattr(f, size(0)), Err(Errno::EACCES));
    let by_handle = SetAttr { by_handle: true, blocks: Some(3), ..size(5) };
    let cut = s.setattr(f, by_handle).expect("has a handle");
    assert_eq!((cut.size, cut.blocks, cut.mtime, cut.ctime), (5, 3, s.time(), s.time()));
    s.as_user(user(10));
    assert_eq!(s.setattr(f, size(u64::MAX)), Err(Errno::EFBIG));
    assert_eq!(s.setattr(f, size(i64::MAX as u64)).map(|a| a.size), Ok(i64::MAX as u64));
    s.as_root();
    assert_eq!(s.setattr(ROOT, size(0)), Err(Errno::EISDIR));
    let fifo = s.make(ROOT, "p", InodeTemplate::Fifo, 0o666).expect("fifo").ino;
    assert_eq!(s.setattr(fifo, size(0)), Err(Errno::EINVAL));
}

#[test]
fn cutting_to_the_same_size_is_a_change() {
    let mut s = Shard::new();
    let f = s.file(ROOT, "f");
    let cut = s.setattr(f.ino, size(0)).expect("cut");
    assert_eq!((cut.mtime, cut.ctime), (s.time(), s.time()));
    assert!(cut.version > f.version);
}

#[test]
fn cutting_takes_privileges_away_unless_root_does_it() {
    let mut s = Shard::new();
    let f = owned_by(&mut s, "f", 10, 10, 0o6777);
    assert_eq!(s.as_root().setattr(f, size(1)).map(|a| a.mode), Ok(0o6777));
    assert_eq!(s.as_user(user(11)).setattr(f, size(2)).map(|a| a.mode), Ok(0o777));
}

#[test]
fn times_are_the_owners_but_now_is_for_writers() {
    let mut s = Shard::new();
    let f = owned_by(&mut s, "f", 10, 10, 0o666);
    let at = Some(SetTime::At(Timestamp { sec: 5, nsec: 6 }));
    let now = Some(SetTime::Now);
    s.as_user(user(11));
    assert_eq!(s.setattr(f, times(at, at)), Err(Errno::EPERM));
    assert_eq!(s.setattr(f, times(now, at)), Err(Errno::EPERM));
    assert_eq!(s.setattr(f, times(now, None)), Err(Errno::EPERM));
    let touched = s.setattr(f, times(now, now)).expect("may write");
    assert_eq!((touched.atime, touched.mtime), (s.time(), s.time()));
    s.as_root().chmod(f, 0o644).expect("chmod");
    assert_eq!(s.as_user(user(11)).setattr(f, times(now, now)), Err(Errno::EACCES));
    let set = s.as_user(user(10)).setattr(f, times(at, now)).expect("owner");
    assert_eq!((set.atime, set.mtime), (Timestamp { sec: 5, nsec: 6 }, s.time()));
    let bad = Some(SetTime::At(Timestamp { sec: 5, nsec: 1_000_000_000 }));
    assert_eq!(s.setattr(f, times(bad, None)), Err(Errno::EINVAL));
}

#[test]
fn no_change_changes_nothing() {
    let mut s = Shard::new();
    let f = s.file(ROOT, "f");
    assert_eq!(s.setattr(f.ino, SetAttr::default()), Ok(f.clone()));
    assert_eq!(s.getattr(f.ino), Ok(f));
}

#[test]
fn opening_is_allowed_by_the_mode() {
    let mut s = Shard::new();
    let f = owned_by(&mut s, "f", 10, 10, 0o640);
    assert!(s.as_user(user(10)).open(f, Access::BOTH).is_ok());
    assert!(s.as_user(member(11, &[10])).open(f, Access::READ).is_ok());
    assert_eq!(s.open(f, Access::WRITE).map(|_| ()), Err(Errno::EACCES));
    assert_eq!(s.as_user(user(12)).open(f, Access::READ).map(|_| ()), Err(Errno::EACCES));
    s.as_root();
    assert_eq!(s.open(ROOT, Access::READ).map(|_| ()), Err(Errno::EISDIR));
    let link = s.make(ROOT, "l", InodeTemplate::Symlink(name("f")), 0o777).expect("link").ino;
    assert_eq!(s.open(link, Access::READ).map(|_| ()), Err(Errno::ELOOP));
}

fn tell(s: &mut Shard, ino: Ino, state: DataState, close: bool) -> Result<Attr, Errno> {
    match s.apply(MetaOp::Commit { ino, state: Some(state), close })? {
        MetaReply::Attr(attr) => Ok(attr),
        other => panic!("not attributes: {other:?}"),
    }
}

#[test]
fn a_writer_tells_size_and_time_at_close() {
    let mut s = Shard::new();
    let (f, ..) = s.create_open(ROOT, "f", Access::WRITE).expect("create");
    let mtime = s.time();
    let committed =
        tell(&mut s, f.ino, DataState { size: 7, blocks: 8, mtime, changed: mtime }, false)
            .expect("commit");
    assert_eq!((committed.size, committed.blocks, committed.mtime), (7, 8, mtime));
    assert_eq!(committed.ctime, f.ctime.advanced_to(mtime), "two changes have two times");
    // The same report again changes nothing.
    let again = tell(&mut s, f.ino, DataState { size: 7, blocks: 8, mtime, changed: mtime }, true)
        .expect("commit");
    assert_eq!((again.mtime, again.ctime, again.size), (mtime, committed.ctime, 7));
    let too_big = DataState { size: u64::MAX, blocks: 0, mtime, changed: mtime };
    assert_eq!(tell(&mut s, f.ino, too_big, false), Err(Errno::EFBIG));
    assert_eq!(s.commit(ROOT, Some(1), true), Err(Errno::EINVAL));
    s.assert_sound();
}

#[test]
fn a_change_carries_the_bytes_that_were_written_before_it() {
    let mut s = Shard::new();
    let (f, ..) = s.create_open(ROOT, "f", Access::WRITE).expect("create");
    let mtime = s.time().plus_sec(5);
    let state = DataState { size: 7, blocks: 8, mtime, changed: mtime };
    let (written, old) = (Some(state), Timestamp::from_sec(5));
    let set = SetAttr { written, ..times(None, Some(SetTime::At(old))) };
    assert_eq!(s.setattr(f.ino, SetAttr { written, ..size(1) }), Err(Errno::EINVAL));
    let refused = s.as_user(user(11)).setattr(f.ino, set.clone());
    assert_eq!((refused, s.getattr(f.ino)), (Err(Errno::EPERM), Ok(f.clone())));
    let changed = s.as_root().setattr(f.ino, set).expect("utimens");
    assert_eq!((changed.size, changed.blocks, changed.mtime), (7, 8, old));
    assert!(changed.ctime >= mtime, "after the bytes");
    // A late report of the same bytes does not bring their time back.
    let again = tell(&mut s, f.ino, state, true).expect("commit");
    assert_eq!((again.size, again.mtime), (7, old));
    s.assert_sound();
}

#[test]
fn a_touch_moves_the_time_of_the_last_change_only() {
    let mut s = Shard::new();
    let f = owned_by(&mut s, "f", 10, 10, 0o644);
    let before = s.getattr(f).expect("attributes");
    let touch = SetAttr { touch: true, ..SetAttr::default() };
    assert_eq!(s.as_user(user(11)).setattr(f, touch.clone()), Err(Errno::EPERM));
    let after = s.as_user(user(10)).setattr(f, touch).expect("owner");
    assert!(after.ctime > before.ctime);
    assert_eq!(after, Attr { ctime: after.ctime, version: after.version, ..before });
}

#[test]
fn a_copied_time_survives_the_close() {
    let mut s = Shard::new();
    let (f, ..) = s.create_open(ROOT, "f", Access::WRITE).expect("create");
    let old = Timestamp::from_sec(5);
    let set = s.setattr(f.ino, times(None, Some(SetTime::At(old)))).expect("utimens");
    let committed =
        tell(&mut s, f.ino, DataState { size: 7, blocks: 8, mtime: old, changed: set.ctime }, true)
            .expect("commit");
    assert_eq!(
        (committed.mtime, committed.ctime),
        (old, set.ctime.advanced_to(old)),
        "ctime never goes back"
    );
    // Another mount has set the time since; the object still has the time that this one had set.
    let future = Timestamp::from_sec(1 << 40);
    let state = DataState { size: 9, blocks: 8, mtime: future, changed: s.time().plus_sec(5) };
    let again = tell(&mut s, f.ino, state, true).expect("commit");
    assert_eq!((again.size, again.mtime), (9, old));
    assert_eq!(again.ctime, committed.ctime.advanced_to(old));
}

#[test]
fn the_last_change_is_never_before_the_last_modification() {
    // The clock of the disk is ahead of the shard's, by a tick on one machine, or behind.
    for ahead in [true, false] {
        let mut s = Shard::new();
        let (f, ..) = s.create_open(ROOT, "f", Access::WRITE).expect("create");
        let mut before = f.clone();
        for step in 1..6 {
            let at = s.time().plus_sec(if ahead { 5 } else { -5 });
            let at = Timestamp { nsec: step, ..at };
            let state = DataState { size: 7, blocks: 8, mtime: at, changed: at };
            let committed = tell(&mut s, f.ino, state, false).expect("commit");
            let mut shown = before.clone();
            shown.apply_object_state(&state);
            let told_times = |attr: &Attr| (attr.mtime, attr.ctime);
            assert_eq!(told_times(&committed), told_times(&shown), "as a client has shown it");
            assert!(committed.ctime >= committed.mtime, "{committed:?}");
            assert!(
                committed.mtime > before.mtime && committed.ctime > before.ctime,
                "{committed:?} {before:?}"
            );
            let again = tell(&mut s, f.ino, state, false).expect("commit");
            assert_eq!(
                (again.mtime, again.ctime),
                (committed.mtime, committed.ctime),
                "one change, one time"
            );
            let moded = s.chmod(f.ino, 0o600 + step as u16 % 8).expect("chmod");
            assert!(moded.ctime > committed.ctime && moded.mtime == committed.mtime);
            let now = s.setattr(f.ino, times(None, Some(SetTime::Now))).expect("touch");
            assert!(now.mtime > committed.mtime && now.mtime == now.ctime, "{now:?}");
            before = now;
        }
        s.assert_sound();
    }
}

#[test]
fn a_later_state_of_the_bytes_is_not_undone_by_an_earlier_one() {
    // Two writers read the object one after the other, and report in the opposite order.
    let mut s = Shard::new();
    let (f, ..) = s.create_open(ROOT, "f", Access::WRITE).expect("create");
    let at = |sec: i64| Timestamp::from_sec(1000 + sec);
    let seen = |size, sec| DataState { size, blocks: 8, mtime: at(sec), changed: at(sec) };
    assert_eq!(tell(&mut s, f.ino, seen(200, 2), false).expect("commit").size, 200);
    let late = tell(&mut s, f.ino, seen(100, 1), true).expect("commit");
    assert_eq!((late.size, late.mtime), (200, at(2)));
    // One of them read while the other was still writing: the time is that of the write already,
    // the size is not.
    assert_eq!(tell(&mut s, f.ino, seen(150, 2), false).expect("commit").size, 200);
    assert_eq!(tell(&mut s, f.ino, seen(250, 2), false).expect("commit").size, 250);
    // A cut is ordered among them in the same way.
    let cut =
        |size, sec| SetAttr { size: Some(size), changed: Some(at(sec)), ..SetAttr::default() };
    assert_eq!(s.setattr(f.ino, cut(0, 1)).expect("late").size, 250);
    assert_eq!(s.setattr(f.ino, cut(0, 3)).expect("in time").size, 0);
    s.assert_sound();
}

#[test]
fn only_writers_tell_what_the_bytes_are() {
    let mut s = Shard::new();
    let f = owned_by(&mut s, "f", 10, 10, 0o644);
    s.as_user(user(11)).as_client(B);
    assert_eq!(s.commit(f, Some(100), true), Err(Errno::EACCES));
    assert!(s.commit(f, None, true).is_ok(), "nothing told, nothing open: nothing happens");
    s.as_user(user(10)).open(f, Access::WRITE).expect("open");
    // The mark belongs to the client, independent of the process.
    assert_eq!(s.as_user(user(11)).commit(f, Some(100), false).map(|a| a.size), Ok(100));
    assert!(s.commit(f, None, true).is_ok());
    assert_eq!(s.commit(f, Some(100), true), Err(Errno::EACCES), "closed");
    s.as_root().unlink(ROOT, "f", false).expect("unlink");
    assert_eq!(s.commit(f, Some(100), true), Err(Errno::ESTALE));
    s.assert_sound();
}

/// The writer records of a shard are no change for other clients.
#[test]
fn files_closed_without_news_are_not_noted_any_more() {
    let mut s = Shard::new();
    let client = s.context().client;
    let (f, ..) = s.create_open(ROOT, "f", Access::WRITE).expect("create");
    let (g, ..) = s.create_open(ROOT, "g", Access::BOTH).expect("create");
    assert_eq!(s.open(f.ino, Access::WRITE).expect("once more").0.version, f.version);
    s.unlink(ROOT, "g", false).expect("unlink");
    let gone = Ino(1 << 40);
    let closed =
        MetaOp::ReportClosed { inos: vec![f.ino, g.ino, gone], empty: vec![], read: vec![] };
    assert_eq!(s.apply(closed.clone()), Ok(MetaReply::Done));
    assert_eq!(s.getattr(f.ino), Ok(f.clone()));
    // A client that dies leaves no pending size recovery of files that it had closed.
    s.expire(client).expect("expire");
    assert_eq!(s.unsettled(), []);
    s.as_client(ClientId([7; 16])).open(f.ino, Access::WRITE).expect("open");
    s.as_client(client).apply(closed).expect("it is told of its own files only");
    s.expire(ClientId([7; 16])).expect("expire");
    assert_eq!(s.unsettled(), [f.ino]);
    let many = MetaOp::ReportClosed {
        inos: vec![f.ino; REPORT_CLOSED_MAX],
        empty: vec![f.ino],
        read: vec![],
    };
    assert_eq!(s.apply(many), Err(Errno::EINVAL));
    s.assert_sound();
}

/// The only writer knows the attributes itself; others must ask for them, and get a notice before
/// their copy can be wrong.
#[test]
fn attributes_tell_whether_others_write() {
    const C: ClientId = ClientId([0xc; 16]);
    let mut s = Shard::new();
    let f = s.create_open(ROOT, "f", Access::BOTH).expect("create").0;
    assert!(!f.maybe_written_elsewhere, "it is the client's own");
    let maybe_written = |s: &mut Shard, client: ClientId| {
        s.as_client(client);
        let all = [
            s.getattr(f.ino).expect("attr").maybe_written_elsewhere,
            s.lookup(ROOT, "f").expect("attr").maybe_written_elsewhere,
            s.open(f.ino, Access::READ).expect("open").0.maybe_written_elsewhere,
            s.page(ROOT, 0, 10, true).expect("listing").0[0]
                .attr
                .as_ref()
                .expect("attr")
                .maybe_written_elsewhere,
        ];
        assert!(all.iter().all(|one| *one == all[0]), "{all:?}");
        all[0]
    };
    assert_eq!((maybe_written(&mut s, A), maybe_written(&mut s, B)), (false, true));
    let before = s.getattr(f.ino).expect("attr").version;
    assert!(s.as_client(B).open(f.ino, Access::WRITE).expect("open").0.maybe_written_elsewhere);
    let changed = |s: &Shard| s.meta.changed_inodes().iter().any(|changed| changed.ino == f.ino);
    assert!(changed(&s), "A must hear that it is not alone any more");
    assert_ne!(s.getattr(f.ino).expect("attr").version, before);
    assert_eq!(
        (maybe_written(&mut s, A), maybe_written(&mut s, B), maybe_written(&mut s, C)),
        (true, true, true)
    );
    s.as_client(B).open(f.ino, Access::WRITE).expect("open");
    assert!(s.meta.changed_inodes().is_empty(), "once more is no news");
    s.as_client(A).commit(f.ino, Some(3), true).expect("commit");
    assert_eq!((maybe_written(&mut s, A), maybe_written(&mut s, B)), (true, false));
    s.as_client(B).commit(f.ino, None, true).expect("commit");
    assert_eq!(
        (maybe_written(&mut s, A), maybe_written(&mut s, B), maybe_written(&mut s, C)),
        (false, false, false)
    );
}
