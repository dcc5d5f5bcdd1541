//! A check finds damage, and repairs it.

use crate::harness::*;
use tatami_meta::store::Store;
use tatami_wire::{Access, ClientId, Errno, Ino};

const E: u8 = b'E';
const I: u8 = b'I';

/// Returns a volume with records of all kinds, committed.
fn rich() -> Shard {
    let mut s = Shard::new();
    let d = s.dir(ROOT, "d").ino;
    let e = s.dir(d, "e").ino;
    s.dir(e, "deep");
    let f = s.create_open(d, "f", Access::WRITE).expect("create").0.ino;
    s.link(f, e, "g").expect("link");
    s.setxattr(f, "user.a", b"value").expect("setxattr");
    s.file(e, "h");
    let kept = s.create_open(ROOT, "kept", Access::BOTH).expect("create").0.ino;
    s.unlink(ROOT, "kept", true).expect("unlink");
    s.commit(kept, Some(1), true).expect("commit");
    s.create_open(ROOT, "gone", Access::BOTH).expect("create");
    s.unlink(ROOT, "gone", false).expect("unlink");
    s.as_client(B).create_open(ROOT, "dead", Access::WRITE).expect("create");
    s.as_client(A).expire(B).expect("expire");
    s.meta.commit().expect("commit");
    s.assert_sound();
    s
}

/// Returns the records whose keys start with `prefix`.
fn records(s: &mut Shard, prefix: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
    let pairs = s.meta.store_mut().visible().iter();
    pairs.filter(|(k, _)| k.starts_with(prefix)).map(|(k, v)| (k.to_vec(), v.to_vec())).collect()
}

fn inode_key(ino: Ino) -> Vec<u8> {
    [&[I][..], &ino.0.to_be_bytes()].concat()
}

fn entry_key(s: &mut Shard, dir: Ino, n: &str) -> Vec<u8> {
    let prefix = [&[E][..], &dir.0.to_be_bytes()].concat();
    let all = records(s, &prefix);
    all.into_iter().map(|(k, _)| k).find(|k| k[17..] == *n.as_bytes()).expect("entry")
}

fn patch(s: &mut Shard, key: &[u8], at: usize, bytes: &[u8]) {
    let mut value = s.meta.store_mut().get(key).expect("get").expect("there");
    value[at..at + bytes.len()].copy_from_slice(bytes);
    s.meta.store_mut().corrupt_pair(&(key.to_vec(), Some(value)));
}

/// Breaks a rich volume, and asserts that a check finds it, repairs it, and then finds nothing
/// more, with any number of inodes a step.
fn breaks(what: &str, damage: impl Fn(&mut Shard)) {
    for step in [1, 3, 1000] {
        let mut s = rich();
        damage(&mut s);
        let mut s = s.reopen();
        assert!(!s.check(step, false).is_empty(), "{what}: not seen by {step}");
        let seen = s.check(step, true);
        assert!(seen.iter().any(|f| f.repaired), "{what}: not mended: {seen:#?}");
        // A repair may reveal another problem, such as an inode that nothing holds any more.
        for _ in 0..5 {
            if s.check(step, true).is_empty() {
                break;
            }
        }
        s.meta.commit().expect("commit");
        let mut s = s.reopen();
        let left = s.check(step, false);
        assert!(left.is_empty(), "{what}: left after repair by {step}: {left:#?}");
    }
}

fn ino_of(s: &mut Shard, path: &[&str]) -> Ino {
    path.iter().fold(ROOT, |dir, n| s.lookup(dir, n).expect("there").ino)
}

#[test]
fn wrong_numbers_are_found_and_mended() {
    // Offsets as docs/reference/formats.md draws them.
    for (what, path, at) in [
        ("link count of a file", &["d", "f"][..], 4),
        ("link count of a directory", &["d", "e"], 4),
        ("size of a directory", &["d"], 24),
        ("parent of a directory", &["d", "e"], 48),
        ("number of keepers", &["d", "f"], 116),
        ("number of writers", &["d", "f"], 120),
        ("length of the attribute list", &["d", "f"], 124),
        ("length of the attributes", &["d", "f"], 128),
    ] {
        breaks(what, |s| {
            let key = inode_key(ino_of(s, path));
            patch(s, &key, at, &[77]);
        });
    }
    breaks("counts of the root", |s| patch(s, &inode_key(ROOT), 4, &[9, 0, 0, 0]));
    breaks("number of inodes", |s| patch(s, b"S", 46, &[99]));
}

#[test]
fn lost_inodes_leave_no_entries() {
    for path in [&["d", "f"][..], &["d", "e", "h"], &["d", "e", "deep"], &["d"]] {
        breaks("an inode is missing", |s| {
            let key = inode_key(ino_of(s, path));
            s.meta.store_mut().corrupt_pair(&(key, None));
        });
        breaks("an inode does not read", |s| {
            let key = inode_key(ino_of(s, path));
            patch(s, &key, 0, &[0xff]);
        });
    }
}

#[test]
fn inodes_that_lost_their_name_get_another() {
    let mut s = rich();
    let d = ino_of(&mut s, &["d"]);
    let e = ino_of(&mut s, &["d", "e"]);
    let h = ino_of(&mut s, &["d", "e", "h"]);
    for key in [entry_key(&mut s, d, "e"), entry_key(&mut s, e, "h")] {
        s.meta.store_mut().corrupt_pair(&(key, None));
    }
    let mut s = s.reopen();
    s.check(1000, true);
    s.assert_sound();
    let lost = ino_of(&mut s, &["lost+found"]);
    assert_eq!(s.names(lost), [format!("#{e}"), format!("#{h}")]);
    assert_eq!(s.lookup(e, "..").map(|a| a.ino), Ok(lost));
    assert_eq!(s.getattr(h).map(|a| a.nlink), Ok(1));
    breaks("an entry is missing", |s| {
        let d = ino_of(s, &["d"]);
        let key = entry_key(s, d, "e");
        s.meta.store_mut().corrupt_pair(&(key, None));
    });
}

#[test]
fn broken_entries_are_found_and_mended() {
    breaks("an entry does not read", |s| {
        let d = ino_of(s, &["d"]);
        let key = entry_key(s, d, "f");
        patch(s, &key, 0, &[9]);
    });
    breaks("an entry says another kind", |s| {
        let d = ino_of(s, &["d"]);
        let key = entry_key(s, d, "f");
        patch(s, &key, 1, &[4]);
    });
    breaks("an entry leads elsewhere", |s| {
        let d = ino_of(s, &["d"]);
        let key = entry_key(s, d, "f");
        patch(s, &key, 2, &500u64.to_le_bytes());
    });
    breaks("an entry lies under a wrong hash", |s| {
        let d = ino_of(s, &["d"]);
        let mut key = entry_key(s, d, "f");
        let value = s.meta.store_mut().get(&key).expect("get");
        s.meta.store_mut().corrupt_pair(&(key.clone(), None));
        key[10] ^= 1;
        s.meta.store_mut().corrupt_pair(&(key, value));
    });
    breaks("an entry lies in a file", |s| {
        let f = ino_of(s, &["d", "f"]);
        let d = ino_of(s, &["d"]);
        let mut key = entry_key(s, d, "f");
        let value = s.meta.store_mut().get(&key).expect("get");
        key[1..9].copy_from_slice(&f.0.to_be_bytes());
        s.meta.store_mut().corrupt_pair(&(key, value));
    });
}

#[test]
fn a_directory_with_two_names_loses_one() {
    breaks("two names", |s| {
        let e = ino_of(s, &["d", "e"]);
        let d = ino_of(s, &["d"]);
        let key = entry_key(s, d, "e");
        let value = s.meta.store_mut().get(&key).expect("get");
        // The same name in another directory lies under the same hash.
        let mut second = key;
        second[1..9].copy_from_slice(&ROOT.0.to_be_bytes());
        s.meta.store_mut().corrupt_pair(&(second, value));
        assert_eq!(ino_of(s, &["e"]), e);
    });
}

#[test]
fn a_ring_of_directories_is_opened() {
    breaks("a ring", |s| {
        // d/e is moved into its own child e/deep.
        let d = ino_of(s, &["d"]);
        let e = ino_of(s, &["d", "e"]);
        let deep = ino_of(s, &["d", "e", "deep"]);
        let key = entry_key(s, d, "e");
        let value = s.meta.store_mut().get(&key).expect("get");
        s.meta.store_mut().corrupt_pair(&(key.clone(), None));
        let mut inside = key;
        inside[1..9].copy_from_slice(&deep.0.to_be_bytes());
        s.meta.store_mut().corrupt_pair(&(inside, value));
        patch(s, &inode_key(e), 48, &deep.0.to_le_bytes());
    });
}

#[test]
fn side_records_without_inode_go() {
    for tag in [b'X', b'W', b'O', b'U'] {
        breaks("a side record of nobody", |s| {
            let nobody = 4711u64.to_be_bytes();
            let key = match tag {
                b'X' => [&[tag][..], &nobody, b"user.x"].concat(),
                b'W' => [&[tag][..], &nobody, &A.0].concat(),
                b'O' => [&[tag][..], &A.0, &nobody].concat(),
                _ => [&[tag][..], &nobody].concat(),
            };
            s.meta.store_mut().corrupt_pair(&(key, Some(vec![1])));
        });
        breaks("a side record is missing", |s| {
            let all = records(s, &[tag]);
            assert!(!all.is_empty(), "the volume has something of everything");
            s.meta.store_mut().corrupt_pair(&(all[0].0.clone(), None));
        });
    }
    breaks("an answer does not read", |s| {
        let key = [&b"R"[..], &B.0, &[0, 0, 0, 9]].concat();
        s.meta.store_mut().corrupt_pair(&(key, Some(vec![1, 2, 3])));
    });
    breaks("a key that means nothing", |s| {
        s.meta.store_mut().corrupt_pair(&(b"Z".to_vec(), Some(vec![1, 2, 3])));
    });
    breaks("garbage that is in use", |s| {
        let f = ino_of(s, &["d", "f"]);
        let key = [&b"G\0\x01"[..], &f.0.to_be_bytes()].concat();
        s.meta.store_mut().corrupt_pair(&(key, Some(vec![1])));
    });
}

#[test]
fn a_damaged_record_is_an_error_and_told() {
    let mut s = rich();
    let f = ino_of(&mut s, &["d", "f"]);
    let d = ino_of(&mut s, &["d"]);
    patch(&mut s, &inode_key(f), 0, &[0xff]);
    let mut s = s.reopen();
    assert_eq!(s.getattr(f), Err(Errno::EIO));
    assert_eq!(s.lookup(d, "f"), Err(Errno::EIO));
    assert!(s.meta.operator_alert().expect("told").contains("damaged"));
}

mod random {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(scaled(512))]

        /// With any damage, neither operations nor checks panic, and repair ends in a sound volume,
        /// as long as the root and the shard record can be read.
        #[test]
        fn any_damage_is_mended(
            damage in proptest::collection::vec(
                (any::<proptest::sample::Index>(), any::<proptest::sample::Index>(), any::<u8>(), any::<bool>()),
                1..6,
            ),
            step in 1u32..20,
        ) {
            let mut s = rich();
            for (record, at, to, drop) in damage {
                let all: Vec<_> = records(&mut s, b"")
                    .into_iter()
                    .filter(|(k, _)| *k != inode_key(ROOT) && k[0] != b'S')
                    .collect();
                let (key, mut value) = all[record.index(all.len())].clone();
                if drop {
                    s.meta.store_mut().corrupt_pair(&(key, None));
                } else {
                    let at = at.index(value.len());
                    value[at] = to;
                    s.meta.store_mut().corrupt_pair(&(key, Some(value)));
                }
            }
            let mut s = s.reopen();
            // The checking client is new: its slot cannot be damaged.
            s.as_client(ClientId([0xc; 16]));
            s.check(step, false);
            for ino in 1..20 {
                let _ = s.getattr(Ino(ino));
                let _ = s.page(Ino(ino), 0, 10, true);
                let _ = s.listxattr(Ino(ino));
            }
            let mut rounds = 0;
            while !s.check(step, true).is_empty() {
                rounds += 1;
                prop_assert!(rounds < 10, "repair does not end");
            }
            s.meta.commit().expect("commit");
            let mut s = s.reopen();
            let left = s.check(1000, false);
            prop_assert!(left.is_empty(), "{:#?}", left);
        }
    }
}
