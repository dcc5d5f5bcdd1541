//! Spare files that become objects.

use rustix::fs::OFlags;
use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::Path;
use tatami_object::ObjectStore;
use tatami_tables::{SLOTS, SpareTable};
use tatami_wire::{Access, Errno, Ino, Piece};

const INO: Ino = Ino(0x1234);
const PIECE: Piece = Piece(0);
const TABLE: u64 = 77;

/// A store, and a mount's part of it.
struct Loan {
    dir: tempfile::TempDir,
    store: ObjectStore,
    table: SpareTable,
}

impl Loan {
    fn new() -> Loan {
        let dir = tempfile::tempdir().expect("a directory");
        let store = ObjectStore::open(dir.path()).expect("opens");
        let table =
            SpareTable::map_file(store.create_spare_table(TABLE).expect("lent")).expect("mapped");
        Loan { dir, store, table }
    }

    /// Makes slot `slot` stand for `ino`, with these bytes.
    fn lend(&self, slot: usize, ino: Ino, bytes: &[u8]) -> File {
        let mut file = File::from(self.store.renew_spare(TABLE, slot).expect("a spare"));
        assert!(self.table.assign_slot(slot, ino, self.table.current_claims()));
        file.write_all(bytes).expect("written");
        file
    }

    fn restart(self) -> (tempfile::TempDir, ObjectStore) {
        let store = ObjectStore::open(self.dir.path()).expect("opens");
        assert!(self.table.is_ended());
        (self.dir, store)
    }
}

fn content(store: &ObjectStore, ino: Ino) -> Vec<u8> {
    let mut buf = vec![0; 100];
    let n = store.read_at(ino, PIECE, &mut buf, 0).expect("read");
    buf.truncate(n);
    buf
}

fn objects(store: &ObjectStore) -> Vec<Ino> {
    store.list_objects(None, 100).expect("listed").objects.into_iter().map(|o| o.0).collect()
}

fn left_behind(dir: &Path) -> usize {
    std::fs::read_dir(dir.join("lent")).expect("there").count()
}

#[test]
fn whoever_asks_for_the_object_gets_the_file_that_stands_for_it() {
    type Ask = fn(&ObjectStore) -> bool;
    let asks: [Ask; 6] = [
        |s| content(s, INO) == b"abc",
        |s| s.stat(INO, PIECE).expect("stat").size == 3,
        |s| s.append(INO, PIECE, b"d").expect("appended") == 3,
        |s| s.truncate(INO, PIECE, 1).expect("cut").size == 1,
        |s| s.sync(INO, PIECE, false).expect("synced").size == 3,
        |s| {
            let same = |fd: OwnedFd| rustix::fs::fstat(fd).expect("stat").st_size == 3;
            same(s.open_fd(INO, PIECE, Access::BOTH, true).expect("opened"))
                && same(s.open_fd(INO, PIECE, Access::READ, false).expect("opened"))
        },
    ];
    for (n, ask) in asks.iter().enumerate() {
        let loan = Loan::new();
        let mut file = loan.lend(5, INO, b"abc");
        assert!(ask(&loan.store), "ask {n}");
        assert!(!loan.table.return_slot(5, INO), "it is the object");
        assert_eq!(objects(&loan.store), [INO]);
        let size = loan.store.stat(INO, PIECE).expect("stat").size;
        rustix::fs::fcntl_setfl(&file, OFlags::APPEND).expect("set");
        file.write_all(b"xyz").expect("written");
        assert_eq!(loan.store.stat(INO, PIECE).expect("stat").size, size + 3, "ask {n}");
    }
}

/// A check must not take these bytes for lost ones, and a power cut voids the table.
#[test]
fn lists_and_syncs_make_objects_of_files_with_bytes() {
    type Act = fn(&ObjectStore);
    let acts: [Act; 2] = [|s| drop(objects(s)), |s| s.sync_all().expect("synced")];
    for act in acts {
        let loan = Loan::new();
        let (_, _) = (loan.lend(1, Ino(1), b"a"), loan.lend(2, Ino(2), b""));
        act(&loan.store);
        assert_eq!(objects(&loan.store), [Ino(1)]);
        assert!(!loan.table.return_slot(1, Ino(1)), "it is the object");
        assert!(loan.table.return_slot(2, Ino(2)), "it has no byte");
    }
}

#[test]
fn what_is_given_back_was_never_an_object() {
    let loan = Loan::new();
    for ino in 1..100 {
        if ino == 1 {
            loan.lend(0, Ino(ino), b"");
        } else {
            assert!(loan.table.assign_slot(0, Ino(ino), loan.table.current_claims()));
        }
        assert!(loan.table.return_slot(0, Ino(ino)));
        assert_eq!(content(&loan.store, Ino(ino)), b"");
    }
    assert_eq!(objects(&loan.store), []);
}

#[test]
fn a_slot_gets_a_new_file_when_its_file_has_become_an_object() {
    let loan = Loan::new();
    for ino in 1..=3 {
        loan.lend(0, Ino(ino), &[ino as u8]);
    }
    loan.store.renew_spare(TABLE, 0).expect("a spare");
    assert_eq!(objects(&loan.store), [Ino(1), Ino(2), Ino(3)]);
    assert!((1..=3).all(|ino| content(&loan.store, Ino(ino)) == [ino as u8]));
    assert_eq!(loan.store.renew_spare(TABLE + 1, 0).err(), Some(Errno::ENOENT));
    assert_eq!(loan.store.renew_spare(TABLE, SLOTS).err(), Some(Errno::EINVAL));
    assert_eq!(loan.store.create_spare_table(TABLE).err(), Some(Errno::EBUSY));
}

#[test]
fn the_end_makes_objects_of_all_that_is_lent() {
    let loan = Loan::new();
    // A writer may still have the second file open: its bytes must go to the object.
    let (_, mut late) = (loan.lend(0, Ino(1), b"a"), loan.lend(1, Ino(2), b""));
    loan.store.renew_spare(TABLE, 2).expect("a spare");
    loan.store.end_spare_table(TABLE).expect("ended");
    assert!(!loan.table.assign_slot(2, Ino(3), loan.table.current_claims()));
    late.write_all(b"b").expect("written");
    assert_eq!(
        (content(&loan.store, Ino(1)), content(&loan.store, Ino(2))),
        (vec![b'a'], vec![b'b'])
    );
    assert_eq!(objects(&loan.store), [Ino(1), Ino(2)]);
    assert_eq!(left_behind(loan.dir.path()), 0);
    loan.store.end_spare_table(TABLE).expect("it has ended before");
}

#[test]
fn a_daemon_that_starts_makes_objects_of_what_its_predecessor_lent() {
    let loan = Loan::new();
    let (_, mut late) = (loan.lend(0, Ino(1), b"a"), loan.lend(1, Ino(2), b""));
    loan.lend(2, Ino(3), b"c");
    loan.store.renew_spare(TABLE, 3).expect("a spare");
    // The daemon died just before it gave this file its name, after it had given the name to
    // another.
    loan.table.take_slot(Ino(1)).expect("taken");
    assert_eq!(content(&loan.store, Ino(3)), b"c");
    let (dir, store) = loan.restart();
    late.write_all(b"b").expect("written");
    for (ino, byte) in [(1, b'a'), (2, b'b'), (3, b'c')] {
        assert_eq!(content(&store, Ino(ino)), [byte]);
    }
    assert_eq!(objects(&store), [Ino(1), Ino(2), Ino(3)]);
    assert_eq!(left_behind(dir.path()), 0);
}

/// After a flip of any bit of the table, a daemon that starts makes of each file the object that it
/// stood for.
#[test]
fn a_flipped_bit_of_a_table_changes_nothing() {
    for at in 0..1100 {
        let loan = Loan::new();
        loan.lend(0, Ino(2), b"a");
        loan.lend(1, Ino(0x0120_0345), b"bc");
        loan.store.renew_spare(TABLE, 2).expect("a spare");
        let path = loan.dir.path().join("lent").join(format!("{TABLE:016x}"));
        let mut bytes = std::fs::read(&path).expect("read");
        bytes[at] ^= 1 << (at * 5 % 8);
        let Loan { dir, store, table } = loan;
        drop((store, table));
        std::fs::write(&path, bytes).expect("written");
        let store = ObjectStore::open(dir.path()).expect("opens");
        assert_eq!(objects(&store), [Ino(2), Ino(0x0120_0345)], "byte {at}");
        assert_eq!(content(&store, Ino(2)), b"a", "byte {at}");
        assert_eq!(content(&store, Ino(0x0120_0345)), b"bc", "byte {at}");
        assert_eq!(left_behind(dir.path()), 0, "byte {at}");
    }
}

/// Bytes whose inode cannot be determined any more become no object, and are kept.
#[test]
fn bytes_without_an_owner_are_kept_aside() {
    let loan = Loan::new();
    loan.lend(0, INO, b"abc");
    let path = loan.dir.path().join("lent").join(format!("{TABLE:016x}"));
    let mut bytes = std::fs::read(&path).expect("read");
    bytes[32..40].fill(0x7f);
    let Loan { dir, store, table } = loan;
    drop((store, table));
    std::fs::write(&path, bytes).expect("written");
    for _ in 0..2 {
        let store = ObjectStore::open(dir.path()).expect("opens");
        assert_eq!(objects(&store), []);
        let aside = dir.path().join(format!("lent/{TABLE:016x}.00.lost"));
        assert_eq!(std::fs::read(aside).expect("kept"), b"abc");
        assert_eq!(left_behind(dir.path()), 1);
    }
}

#[test]
fn after_a_power_cut_a_table_says_nothing() {
    let loan = Loan::new();
    loan.lend(0, Ino(1), b"a");
    let path = loan.dir.path().join("lent").join(format!("{TABLE:016x}"));
    let mut bytes = std::fs::read(&path).expect("read");
    // Another boot, and its check.
    bytes[8] ^= 1;
    bytes[1056] ^= 1;
    std::fs::write(&path, bytes).expect("written");
    let Loan { dir, store, table } = loan;
    drop((store, table));
    let store = ObjectStore::open(dir.path()).expect("opens");
    assert_eq!(objects(&store), []);
    assert_eq!(left_behind(dir.path()), 0);
}

#[test]
fn what_is_lent_for_a_removed_inode_goes() {
    let loan = Loan::new();
    loan.lend(0, INO, b"a");
    assert_eq!(loan.store.remove_all(INO), Ok(()));
    assert!(!loan.table.return_slot(0, INO));
    // The file was lent a moment too late.
    loan.lend(1, INO, b"b");
    assert_eq!(loan.store.renew_spare(TABLE, 1).map(|_| ()), Ok(()));
    assert_eq!(objects(&loan.store), []);
    assert_eq!(loan.store.read_at(INO, PIECE, &mut [0], 0), Err(Errno::ESTALE));
}

/// A mount lends a file while another client writes to the same new inode: the bytes of both are in
/// one object.
#[test]
fn a_loan_and_a_first_write_at_the_same_time_make_one_object() {
    let loan = Loan::new();
    let mut spare = None;
    for n in 0..300 {
        let ino = Ino(1 + n);
        let file: OwnedFd =
            spare.take().unwrap_or_else(|| loan.store.renew_spare(TABLE, 0).expect("a spare"));
        std::thread::scope(|scope| {
            let since = loan.table.current_claims();
            scope.spawn(|| loan.store.append(ino, PIECE, b"theirs").expect("appended"));
            let lent = loan.table.assign_slot(0, ino, since);
            let own = match lent {
                true => rustix::io::dup(&file).expect("a duplicate"),
                false => loan.store.open_fd(ino, PIECE, Access::BOTH, true).expect("opened"),
            };
            rustix::fs::fcntl_setfl(&own, OFlags::APPEND).expect("set");
            rustix::io::write(&own, b"mine").expect("written");
            if !lent && loan.table.return_slot(0, ino) {
                spare = Some(file);
            }
        });
        let all = content(&loan.store, ino);
        assert!(all == b"minetheirs" || all == b"theirsmine", "{n}: {all:?}");
    }
}
