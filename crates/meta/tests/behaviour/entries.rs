//! Looking up, making, linking, removing and listing entries.

use crate::harness::*;
use tatami_meta::store::Store;
use tatami_wire::meta::{InodeTemplate, MetaOp};
use tatami_wire::{Access, Cap, Errno, Ino, InodeKind, ShardId, VolumeKey};

#[test]
fn a_new_volume_has_a_root() {
    let mut s = Shard::new();
    let root = s.getattr(ROOT).expect("root");
    assert_eq!((root.kind, root.mode, root.nlink, root.uid), (InodeKind::Dir, 0o755, 2, 0));
    assert_eq!(s.names(ROOT), Vec::<String>::new());
    assert_eq!(s.meta.inode_count(), 1);
    s.assert_sound();
}

#[test]
fn a_file_is_found_after_it_is_made() {
    let mut s = Shard::new();
    let file = s.file(ROOT, "f");
    assert_eq!((file.kind, file.mode, file.nlink, file.size), (InodeKind::File, 0o644, 1, 0));
    assert_eq!(s.lookup(ROOT, "f"), Ok(file.clone()));
    assert_eq!(s.getattr(file.ino), Ok(file.clone()));
    assert_eq!(s.lookup(ROOT, "g"), Err(Errno::ENOENT));
    assert_eq!(s.make(ROOT, "f", InodeTemplate::Dir, 0o755), Err(Errno::EEXIST));
    s.meta.commit().expect("commit");
    assert_eq!(s.lookup(ROOT, "f"), Ok(file));
    s.assert_sound();
}

#[test]
fn all_kinds_can_be_made() {
    let mut s = Shard::new();
    for (n, node, kind) in [
        ("fifo", InodeTemplate::Fifo, InodeKind::Fifo),
        ("sock", InodeTemplate::Socket, InodeKind::Socket),
        ("char", InodeTemplate::CharDev(0x103), InodeKind::CharDev),
        ("block", InodeTemplate::BlockDev(0x801), InodeKind::BlockDev),
        ("link", InodeTemplate::Symlink(name("target")), InodeKind::Symlink),
    ] {
        assert_eq!(s.make(ROOT, n, node, 0o644).expect(n).kind, kind);
    }
    assert_eq!(s.lookup(ROOT, "char").expect("char").rdev, 0x103);
    let link = s.lookup(ROOT, "link").expect("link");
    assert_eq!((link.mode, link.size), (0o777, 6));
    assert_eq!(s.readlink(link.ino), Ok(b"target".to_vec()));
    assert_eq!(s.readlink(ROOT), Err(Errno::EINVAL));
    s.as_user(user(5));
    s.as_root().chmod(ROOT, 0o777).expect("chmod");
    s.as_user(user(5));
    assert_eq!(s.make(ROOT, "c2", InodeTemplate::CharDev(1), 0o644), Err(Errno::EPERM));
    assert!(s.make(ROOT, "f2", InodeTemplate::Fifo, 0o644).is_ok());
    s.assert_sound();
}

#[test]
fn link_targets_have_their_bounds() {
    let mut s = Shard::new();
    let mut link =
        |target: Vec<u8>| s.make(ROOT, "l", InodeTemplate::Symlink(target.into()), 0o777);
    assert_eq!(link(vec![]), Err(Errno::ENOENT));
    assert_eq!(link(vec![b'x'; 4097]), Err(Errno::ENAMETOOLONG));
    assert_eq!(link(vec![0]), Err(Errno::EINVAL));
    assert_eq!(link(vec![b'x'; 4096]).map(|a| a.size), Ok(4096));
}

#[test]
fn names_have_their_bounds() {
    let mut s = Shard::new();
    let long = "x".repeat(256);
    for (n, error) in [
        (long.as_str(), Errno::ENAMETOOLONG),
        ("", Errno::ENOENT),
        ("a/b", Errno::EINVAL),
        ("a\0b", Errno::EINVAL),
    ] {
        assert_eq!(s.make(ROOT, n, InodeTemplate::Dir, 0o755), Err(error));
        assert_eq!(s.lookup(ROOT, n), Err(error));
        assert_eq!(s.unlink(ROOT, n, false), Err(error));
    }
    for n in [".", ".."] {
        assert_eq!(s.make(ROOT, n, InodeTemplate::Dir, 0o755), Err(Errno::EEXIST));
        assert_eq!(s.unlink(ROOT, n, false), Err(Errno::EISDIR));
        assert_eq!(s.lookup(ROOT, n).map(|a| a.ino), Ok(ROOT));
    }
    assert_eq!(s.rmdir(ROOT, ".", false), Err(Errno::EINVAL));
    assert_eq!(s.rmdir(ROOT, "..", false), Err(Errno::ENOTEMPTY));
    let ok = "x".repeat(255);
    assert_eq!(s.file(ROOT, &ok), s.lookup(ROOT, &ok).expect("there"));
}

#[test]
fn dot_and_dotdot_lead_to_the_directory_and_its_parent() {
    let mut s = Shard::new();
    let a = s.dir(ROOT, "a").ino;
    let b = s.dir(a, "b").ino;
    assert_eq!(s.lookup(b, "..").map(|x| x.ino), Ok(a));
    assert_eq!(s.lookup(b, ".").map(|x| x.ino), Ok(b));
    assert_eq!(s.page(b, 0, 10, false).expect("listing").2, a);
}

#[test]
fn creating_without_exclusive_opens_what_is_there() {
    let mut s = Shard::new();
    let (made, cap, created) = s.create_open(ROOT, "f", Access::BOTH).expect("create");
    assert!(created);
    let key = VolumeKey::new([9; 32]);
    let check =
        |cap: Option<Cap>, want, now| cap.expect("cap").check_access(&key, made.ino, want, now);
    assert_eq!(check(cap, Access::BOTH, s.time()), Ok(()));
    let (found, cap, created) = s.create_open(ROOT, "f", Access::READ).expect("open");
    assert!(!created);
    assert_eq!(found.ino, made.ino);
    assert_eq!(check(cap, Access::WRITE, s.time()), Err(Errno::EACCES));
    s.dir(ROOT, "d");
    assert_eq!(s.create_open(ROOT, "d", Access::READ).map(|_| ()), Err(Errno::EEXIST));
    s.as_root().chmod(made.ino, 0o600).expect("chmod");
    s.as_user(user(5));
    assert_eq!(s.create_open(ROOT, "f", Access::READ).map(|_| ()), Err(Errno::EACCES));
}

#[test]
fn directories_count_their_subdirectories_and_keep_time() {
    let mut s = Shard::new();
    let a = s.dir(ROOT, "a");
    let root = s.getattr(ROOT).expect("root");
    assert_eq!((root.nlink, root.size), (3, 1));
    assert_eq!((root.mtime, root.ctime), (a.btime, a.btime));
    s.file(a.ino, "f");
    assert_eq!(s.rmdir(ROOT, "a", false), Err(Errno::ENOTEMPTY));
    assert_eq!(s.unlink(ROOT, "a", false), Err(Errno::EISDIR));
    assert_eq!(s.rmdir(a.ino, "f", false), Err(Errno::ENOTDIR));
    assert_eq!(s.unlink(a.ino, "f", false).map(|r| r.1), Ok(true));
    assert_eq!(s.rmdir(ROOT, "a", false), Ok((Some(a.ino), true)));
    let root = s.getattr(ROOT).expect("root");
    assert_eq!((root.nlink, root.size, root.mtime), (2, 0, Timestamp(s.now - 1)));
    assert_eq!(s.getattr(a.ino), Err(Errno::ESTALE));
    assert_eq!(s.lookup(a.ino, "f"), Err(Errno::ESTALE));
    s.assert_sound();
}

#[allow(non_snake_case)]
fn Timestamp(sec: i64) -> tatami_wire::Timestamp {
    tatami_wire::Timestamp::from_sec(sec)
}

#[test]
fn hard_links_share_an_inode() {
    let mut s = Shard::new();
    let f = s.file(ROOT, "f").ino;
    let d = s.dir(ROOT, "d").ino;
    assert_eq!(s.link(f, d, "g").map(|a| a.nlink), Ok(2));
    assert_eq!(s.link(f, d, "g"), Err(Errno::EEXIST));
    assert_eq!(s.link(f, d, "."), Err(Errno::EEXIST));
    assert_eq!(s.link(d, ROOT, "e"), Err(Errno::EPERM), "no links to directories");
    assert_eq!(s.link(Ino(999), ROOT, "e"), Err(Errno::ESTALE));
    assert_eq!(s.unlink(ROOT, "f", false), Ok((Some(f), false)));
    assert_eq!(s.getattr(f).map(|a| a.nlink), Ok(1));
    assert_eq!(s.unlink(d, "g", false), Ok((Some(f), true)));
    assert_eq!(s.getattr(f), Err(Errno::ESTALE));
    s.assert_sound();
}

#[test]
fn the_link_count_has_a_bound() {
    let mut s = Shard::new();
    let f = s.file(ROOT, "f").ino;
    s.meta.commit().expect("commit");
    // The count lies at byte 4 of the record.
    let key = [b"I".as_slice(), &f.0.to_be_bytes()].concat();
    let mut record = s.meta.store_mut().get(&key).expect("get").expect("there");
    record[4..8].copy_from_slice(&(i32::MAX as u32).to_le_bytes());
    s.meta.store_mut().corrupt_pair(&(key, Some(record)));
    let mut s = s.reopen();
    assert_eq!(s.link(f, ROOT, "g"), Err(Errno::EMLINK));
    assert_eq!(s.lookup(ROOT, "g"), Err(Errno::ENOENT));
}

#[test]
fn a_listing_goes_on_where_it_stopped_whatever_changes() {
    let mut s = Shard::new();
    let d = s.dir(ROOT, "d").ino;
    let stay: Vec<String> = (0..50).map(|i| format!("stay{i:02}")).collect();
    for n in &stay {
        s.file(d, n);
        s.file(d, &format!("go-{n}"));
    }
    let mut seen = Vec::new();
    let mut after = 0;
    for round in 0.. {
        let (entries, end, _) = s.page(d, after, 5, false).expect("listing");
        assert!(entries.windows(2).all(|w| w[0].cookie < w[1].cookie));
        assert!(entries.iter().all(|e| e.cookie > after && e.cookie < 1 << 63));
        after = entries.last().map_or(after, |e| e.cookie);
        seen.extend(entries.iter().map(|e| String::from_utf8_lossy(&e.name).into_owned()));
        if end {
            break;
        }
        if round < 50 {
            s.unlink(d, &format!("go-stay{round:02}"), false).expect("unlink");
            s.file(d, &format!("new{round}"));
        }
        if round % 3 == 0 {
            s.meta.commit().expect("commit");
        }
    }
    let mut stayed: Vec<_> = seen.iter().filter(|n| n.starts_with("stay")).cloned().collect();
    stayed.sort();
    assert_eq!(stayed, stay, "each exactly once");
    s.assert_sound();
}

#[test]
fn listings_carry_attributes_for_those_who_may_look() {
    let mut s = Shard::new();
    let d = s.dir(ROOT, "d").ino;
    let f = s.file(d, "f");
    let (entries, end, parent) = s.page(d, 0, 10, true).expect("listing");
    assert_eq!((entries.len(), end, parent), (1, true, ROOT));
    assert_eq!(entries[0].attr, Some(f));
    s.chmod(d, 0o744).expect("chmod");
    s.as_user(user(5));
    assert_eq!(s.page(d, 0, 10, true).expect("may read").0[0].attr, None, "but not search");
    s.as_root().chmod(d, 0o711).expect("chmod");
    assert_eq!(s.as_user(user(5)).page(d, 0, 10, true).map(|_| ()), Err(Errno::EACCES));
    assert_eq!(s.as_root().page(entries[0].ino, 0, 10, true).map(|_| ()), Err(Errno::ENOTDIR));
}

#[test]
fn a_name_in_something_that_is_no_directory() {
    let mut s = Shard::new();
    let f = s.file(ROOT, "f").ino;
    assert_eq!(s.lookup(f, "x"), Err(Errno::ENOTDIR));
    assert_eq!(s.make(f, "x", InodeTemplate::Dir, 0o755), Err(Errno::ENOTDIR));
    assert_eq!(s.unlink(f, "x", false), Err(Errno::ENOTDIR));
    assert_eq!(s.link(f, f, "x"), Err(Errno::ENOTDIR));
    assert_eq!(s.tmpfile(f), Err(Errno::ENOTDIR));
}

#[test]
fn inodes_of_other_shards_are_not_here() {
    let mut s = Shard::new();
    let foreign = Ino::new(ShardId(3), ShardId(3), 1);
    assert_eq!(s.getattr(foreign), Err(Errno::ESTALE));
    assert_eq!(s.lookup(foreign, "x"), Err(Errno::ESTALE));
    assert_eq!(s.make(foreign, "x", InodeTemplate::Dir, 0o755), Err(Errno::ESTALE));
}

#[test]
fn inodes_are_counted_and_scanned() {
    let mut s = Shard::new();
    for i in 0..10 {
        s.file(ROOT, &format!("f{i}"));
    }
    assert_eq!(s.meta.inode_count(), 11);
    s.unlink(ROOT, "f3", false).expect("unlink");
    s.meta.commit().expect("commit");
    let mut s = s.reopen();
    assert_eq!(s.meta.inode_count(), 10);
    let mut found = Vec::new();
    let mut after = Ino(0);
    loop {
        let reply = s.apply(MetaOp::ScanInodes { after, limit: 3 }).expect("scan");
        let tatami_wire::meta::MetaReply::Inodes { attrs, end } = reply else { panic!() };
        after = attrs.last().map_or(after, |a| a.ino);
        found.extend(attrs.iter().map(|a| a.ino));
        if end {
            break;
        }
    }
    assert_eq!(found.len(), 10);
    assert!(found.is_sorted());
}

#[test]
fn a_full_disk_refuses_growth_and_allows_removal() {
    let mut s = Shard::new();
    let f = s.file(ROOT, "f").ino;
    let d = s.dir(ROOT, "d").ino;
    s.meta.commit().expect("commit");
    s.meta.store_mut().set_full(true);
    assert_eq!(s.make(ROOT, "g", InodeTemplate::Dir, 0o755), Err(Errno::ENOSPC));
    assert_eq!(s.link(f, ROOT, "g"), Err(Errno::ENOSPC));
    assert_eq!(s.setxattr(f, "user.x", b"1"), Err(Errno::ENOSPC));
    assert_eq!(s.tmpfile(d), Err(Errno::ENOSPC));
    assert!(s.create_open(ROOT, "f", Access::BOTH).is_ok(), "what is there can be opened");
    assert!(s.unlink(ROOT, "f", false).is_ok());
    s.meta.commit().expect("commit");
    assert!(s.meta.operator_alert().expect("told").contains("full"));
    s.meta.store_mut().set_full(false);
    assert!(s.make(ROOT, "g", InodeTemplate::Dir, 0o755).is_ok());
    s.meta.commit().expect("commit");
    assert_eq!(s.meta.operator_alert(), None, "it is over");
    s.assert_sound();
}
