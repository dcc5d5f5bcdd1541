//! The guarantees of an object store, on a real disk and on one that fails.

use proptest::prelude::*;
use std::io::{Read, Write};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use tatami_object::fault::{DiskCall, FaultyDisk};
use tatami_object::{Disk, KernelDisk, OBJECTS_DIR, ObjectListing, ObjectStore};
use tatami_wire::object::{AllocMode, SeekTarget};
use tatami_wire::{Access, Errno, FILE_SIZE_MAX, Ino, Piece};

const P: Piece = Piece(0);

fn store() -> (tempfile::TempDir, ObjectStore) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let store = ObjectStore::open(dir.path()).expect("the store opens");
    (dir, store)
}

fn faulty() -> (tempfile::TempDir, ObjectStore, Arc<FaultyDisk>) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let disk = Arc::new(FaultyDisk::new());
    let store = ObjectStore::open_on(dir.path(), disk.clone()).expect("the store opens");
    (dir, store, disk)
}

fn content(store: &ObjectStore, ino: Ino) -> Vec<u8> {
    let size = store.stat(ino, P).expect("stat").size as usize;
    let mut buffer = vec![0; size + 10];
    let n = store.read_at(ino, P, &mut buffer, 0).expect("read");
    buffer.truncate(n);
    buffer
}

#[test]
fn an_absent_object_reads_as_empty_and_is_made_by_the_first_write() {
    let (dir, store) = store();
    let ino = Ino(0x1ff);
    assert_eq!(content(&store, ino), b"");
    assert!(!store.stat(ino, P).expect("stat").exists);
    assert_eq!(store.seek(ino, P, SeekTarget::Data, 0), Err(Errno::ENXIO));
    assert_eq!(store.sync(ino, P, false).expect("sync").size, 0);
    assert_eq!(store.open_fd(ino, P, Access::READ, false).map(drop), Err(Errno::ENOENT));
    let path = dir.path().join(OBJECTS_DIR).join("ff/00000000000001ff.00000000");
    assert!(!path.exists());
    store.write_at(ino, P, b"bytes", 3).expect("write");
    assert_eq!(content(&store, ino), b"\0\0\0bytes");
    let mode = |path: &std::path::Path| {
        use std::os::unix::fs::PermissionsExt;
        path.metadata().expect("there").permissions().mode() & 0o7777
    };
    assert_eq!(mode(&path), 0o600);
    assert_eq!(mode(path.parent().expect("a bucket")), 0o700);
}

#[test]
fn objects_are_there_again_after_a_restart() {
    let (dir, store) = store();
    store.write_at(Ino(7), P, b"kept", 0).expect("write");
    store.sync(Ino(7), P, true).expect("sync");
    drop(store);
    let store = ObjectStore::open(dir.path()).expect("the store opens again");
    assert_eq!(content(&store, Ino(7)), b"kept");
}

#[test]
fn appends_of_many_threads_and_of_a_handed_out_descriptor_do_not_mix() {
    let (_dir, store) = store();
    let ino = Ino(9);
    const EACH: usize = 200;
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            let store = &store;
            scope.spawn(move || {
                for _ in 0..EACH {
                    let record = [thread; 100];
                    let at = store.append(ino, P, &record).expect("append");
                    let mut back = [0xff; 100];
                    store.read_at(ino, P, &mut back, at).expect("read");
                    assert_eq!(back, record, "the offset told is where the bytes are");
                    // A seek for data moves the descriptor's position.
                    store.seek(ino, P, SeekTarget::Data, 0).expect("seek");
                }
            });
        }
        let store = &store;
        scope.spawn(move || {
            let fd = store.open_fd(ino, P, Access::WRITE, true).expect("a descriptor");
            let flags = rustix::fs::OFlags::APPEND;
            rustix::fs::fcntl_setfl(&fd, flags).expect("set O_APPEND");
            let mut file = std::fs::File::from(fd);
            for _ in 0..EACH {
                file.write_all(&[4; 100]).expect("append by descriptor");
            }
        });
    });
    let all = content(&store, ino);
    assert_eq!(all.len(), 5 * EACH * 100);
    for thread in 0..5u8 {
        let whole = all.chunks(100).filter(|record| record.iter().all(|b| *b == thread));
        assert_eq!(whole.count(), EACH);
    }
}

#[test]
fn a_descriptor_allows_what_was_asked_for() {
    let (_dir, store) = store();
    let fd = store.open_fd(Ino(1), P, Access::BOTH, true).expect("made");
    assert!(store.stat(Ino(1), P).expect("stat").exists);
    std::fs::File::from(fd).write_all(b"direct").expect("writes");
    assert_eq!(content(&store, Ino(1)), b"direct");
    let fd = store.open_fd(Ino(1), P, Access::READ, false).expect("opens");
    let mut file = std::fs::File::from(fd);
    assert!(file.write_all(b"no").is_err());
    let mut text = String::new();
    file.read_to_string(&mut text).expect("reads");
    assert_eq!(text, "direct");
    let none = Access { read: false, write: false };
    assert_eq!(store.open_fd(Ino(1), P, none, false).map(drop), Err(Errno::EACCES));
}

#[test]
fn allocate_seek_and_truncate_do_what_the_system_calls_do() {
    let (_dir, store) = store();
    let ino = Ino(3);
    assert_eq!(store.allocate(ino, P, AllocMode::Keep, 0, 8192).expect("kept").size, 0);
    assert_eq!(store.allocate(ino, P, AllocMode::Extend, 0, 65536).expect("grown").size, 65536);
    store.write_at(ino, P, &[1; 65536], 0).expect("write");
    store.allocate(ino, P, AllocMode::Punch, 4096, 8192).expect("punched");
    assert_eq!(store.seek(ino, P, SeekTarget::Hole, 0), Ok(4096));
    assert_eq!(store.seek(ino, P, SeekTarget::Data, 4096), Ok(12288));
    assert_eq!(store.seek(ino, P, SeekTarget::Hole, 65536), Err(Errno::ENXIO));
    store.allocate(ino, P, AllocMode::ZeroKeep, 60000, 10000).expect("zeroed");
    let bytes = content(&store, ino);
    assert_eq!(bytes.len(), 65536);
    assert!(bytes[4096..12288].iter().chain(&bytes[60000..]).all(|b| *b == 0));
    assert!(bytes[12288..60000].iter().all(|b| *b == 1));
    assert_eq!(store.allocate(ino, P, AllocMode::Zero, 60000, 10000).expect("grown").size, 70000);
    assert_eq!(store.truncate(ino, P, 10).expect("cut").size, 10);
    assert_eq!(content(&store, ino), [1; 10]);
    assert_eq!(store.allocate(ino, P, AllocMode::Extend, 0, 0), Err(Errno::EINVAL));
}

#[test]
fn zeroing_works_where_the_file_system_cannot() {
    let (_dir, store, disk) = faulty();
    let ino = Ino(3);
    store.write_at(ino, P, &[1; 300_000], 0).expect("write");
    disk.plan_fault(DiskCall::Allocate, 0, u32::MAX, Errno::EOPNOTSUPP);
    store.allocate(ino, P, AllocMode::ZeroKeep, 10, 290_000).expect("zeroed");
    let bytes = content(&store, ino);
    assert!(bytes[..10].iter().chain(&bytes[290_010..]).all(|b| *b == 1));
    assert!(bytes[10..290_010].iter().all(|b| *b == 0));
    store.allocate(ino, P, AllocMode::ZeroKeep, 299_999, 500_000).expect("zeroed");
    assert_eq!(content(&store, ino).len(), 300_000);
    store.allocate(ino, P, AllocMode::Zero, 299_999, 500_000).expect("zeroed");
    assert_eq!(store.stat(ino, P).expect("stat").size, 799_999);
    let other = store.allocate(ino, P, AllocMode::Punch, 0, 10);
    assert_eq!(other, Err(Errno::EOPNOTSUPP));
}

#[test]
fn offsets_that_no_file_has_are_refused() {
    let (_dir, store) = store();
    let ino = Ino(5);
    assert_eq!(store.write_at(ino, P, b"x", FILE_SIZE_MAX + 1), Err(Errno::EINVAL));
    assert_eq!(store.write_at(ino, P, b"xy", FILE_SIZE_MAX - 1), Err(Errno::EFBIG));
    assert_eq!(store.truncate(ino, P, u64::MAX), Err(Errno::EFBIG));
    assert_eq!(store.read_at(ino, P, &mut [0; 4], u64::MAX), Err(Errno::EINVAL));
    assert_eq!(store.read_at(ino, P, &mut [0; 4], FILE_SIZE_MAX), Ok(0));
    assert_eq!(store.seek(ino, P, SeekTarget::Data, u64::MAX), Err(Errno::ENXIO));
    assert_eq!(store.allocate(ino, P, AllocMode::Extend, u64::MAX, 1), Err(Errno::EINVAL));
    assert_eq!(store.copy_range((ino, P), u64::MAX, (ino, P), 0, 1), Err(Errno::EINVAL));
    assert!(!store.stat(ino, P).expect("stat").exists, "nothing refused leaves a trace");
}

#[test]
fn copies_go_as_far_as_the_source_does() {
    for by_hand in [false, true] {
        let (_dir, store, disk) = faulty();
        if by_hand {
            disk.plan_fault(DiskCall::CopyRange, 0, u32::MAX, Errno::EXDEV);
        }
        let (a, b) = ((Ino(1), P), (Ino(2), P));
        let bytes: Vec<u8> = (0..500_000u32).map(|i| (i % 251) as u8).collect();
        assert_eq!(store.copy_range(a, 0, b, 0, 100), Ok(0));
        store.write_at(a.0, P, &bytes, 0).expect("write");
        assert_eq!(store.copy_range(a, 100_000, b, 7, u64::MAX / 2), Ok(400_000));
        assert_eq!(&content(&store, b.0)[7..], &bytes[100_000..]);
        assert_eq!(store.copy_range(a, 0, a, 10, 100), Err(Errno::EINVAL));
        assert_eq!(store.copy_range(a, 0, a, 500_000, 100), Ok(100));
        assert_eq!(store.copy_range(a, 700_000, b, 0, 100), Ok(0));
    }
}

#[test]
fn removal_takes_all_pieces_and_refuses_what_comes_late() {
    let (_dir, store) = store();
    let ino = Ino(11);
    for piece in 0..3 {
        store.write_at(ino, Piece(piece), b"gone", 0).expect("write");
    }
    store.write_at(Ino(12), P, b"stays", 0).expect("write");
    let fd = store.open_fd(ino, P, Access::READ, false).expect("opens");
    store.remove_all(ino).expect("removed");
    store.remove_all(ino).expect("removed twice is removed");
    let ObjectListing { objects, end } = store.list_objects(None, 100).expect("listed");
    assert!(end);
    assert_eq!(objects.iter().map(|o| o.0).collect::<Vec<_>>(), [Ino(12)]);
    assert_eq!(store.write_at(ino, P, b"late", 0), Err(Errno::ESTALE));
    assert_eq!(store.read_at(ino, P, &mut [0; 4], 0), Err(Errno::ESTALE), "gone is not empty");
    assert_eq!(store.open_fd(ino, P, Access::READ, false).map(drop), Err(Errno::ESTALE));
    assert_eq!(store.open_fd(ino, P, Access::BOTH, true).map(drop), Err(Errno::ESTALE));
    assert_eq!(store.seek(ino, P, SeekTarget::Data, 0), Err(Errno::ESTALE));
    assert!(!store.stat(ino, P).expect("stat").exists);
    let mut text = String::new();
    std::fs::File::from(fd).read_to_string(&mut text).expect("reads");
    assert_eq!(text, "gone", "an open descriptor outlives the name");
}

#[test]
fn a_full_disk_tells_and_damages_nothing() {
    let (_dir, store, disk) = faulty();
    let ino = Ino(21);
    store.write_at(ino, P, &[1; 1000], 0).expect("write");
    disk.set_room(Some(500));
    assert_eq!(store.write_at(ino, P, &[2; 1000], 1000), Err(Errno::ENOSPC));
    assert_eq!(store.append(ino, P, &[3; 1]), Err(Errno::ENOSPC));
    assert_eq!(store.copy_range((ino, P), 0, (Ino(22), P), 0, 10), Err(Errno::ENOSPC));
    assert_eq!(content(&store, ino)[..1000], [1; 1000]);
    store.sync(ino, P, false).expect("what was written can be synced");
    assert!(store.describe_trouble().is_empty());
    disk.set_room(None);
    store.write_at(ino, P, &[2; 1000], 1000).expect("there is room again");
    assert_eq!(content(&store, ino)[1000..], [2; 1000]);
}

#[test]
fn an_append_that_does_not_fit_tells() {
    let (_dir, store, disk) = faulty();
    let ino = Ino(23);
    assert_eq!(store.append(ino, P, &[1; 100]), Ok(0));
    disk.set_room(Some(50));
    assert_eq!(store.append(ino, P, &[2; 100]), Err(Errno::ENOSPC));
    disk.set_room(None);
    assert_eq!(store.append(ino, P, &[3; 100]), Ok(150));
    assert_eq!(content(&store, ino)[..100], [1; 100]);
}

#[test]
fn calls_cut_short_are_carried_on() {
    let (_dir, store, disk) = faulty();
    let ino = Ino(24);
    disk.set_chunk(Some(7));
    let bytes: Vec<u8> = (0..100).collect();
    store.write_at(ino, P, &bytes, 0).expect("write");
    assert_eq!(store.append(ino, P, &bytes), Ok(100));
    assert_eq!(store.copy_range((ino, P), 0, (Ino(25), P), 0, 1000), Ok(200));
    assert_eq!(content(&store, Ino(25)), [&bytes[..], &bytes[..]].concat());
    disk.plan_fault(DiskCall::Read, 0, 1, Errno::EINTR);
    disk.plan_fault(DiskCall::Write, 0, 1, Errno::EINTR);
    store.write_at(ino, P, b"!", 0).expect("interrupted, then done");
    assert_eq!(content(&store, ino)[0], b'!');
}

#[test]
fn after_a_failed_sync_an_object_takes_no_changes() {
    let (_dir, store, disk) = faulty();
    let ino = Ino(31);
    store.write_at(ino, P, b"perhaps lost", 0).expect("write");
    disk.plan_fault(DiskCall::Sync, 0, 1, Errno::EIO);
    assert_eq!(store.sync(ino, P, true), Err(Errno::EIO));
    // The kernel reports the loss once. A second sync must not seem to succeed.
    assert_eq!(store.sync(ino, P, true), Err(Errno::EIO));
    assert_eq!(store.write_at(ino, P, b"more", 0), Err(Errno::EIO));
    assert_eq!(store.append(ino, P, b"more"), Err(Errno::EIO));
    assert_eq!(store.truncate(ino, P, 0), Err(Errno::EIO));
    assert_eq!(store.open_fd(ino, P, Access::BOTH, false).map(drop), Err(Errno::EIO));
    assert_eq!(content(&store, ino), b"perhaps lost");
    assert!(store.open_fd(ino, P, Access::READ, false).is_ok());
    assert!(
        store.describe_trouble()[0].contains("000000000000001f"),
        "{:?}",
        store.describe_trouble()
    );
    store.write_at(Ino(32), P, b"others go on", 0).expect("write");
    store.sync(Ino(32), P, true).expect("sync");
    store.remove_all(ino).expect("removed");
    assert!(store.describe_trouble().is_empty());
}

/// A disk that records the backing files that are synced, by their inode numbers.
#[derive(Default)]
struct NotingDisk(parking_lot::Mutex<Vec<u64>>);

impl Disk for NotingDisk {
    fn sync(&self, fd: BorrowedFd<'_>, data_only: bool) -> std::io::Result<()> {
        self.0.lock().push(rustix::fs::fstat(fd)?.st_ino);
        KernelDisk.sync(fd, data_only)
    }
}

#[test]
fn the_first_sync_of_an_object_makes_its_name_lasting_too() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let disk = Arc::new(NotingDisk::default());
    let store = ObjectStore::open_on(dir.path(), disk.clone()).expect("the store opens");
    let inode = |path: &str| {
        use std::os::unix::fs::MetadataExt;
        dir.path().join(OBJECTS_DIR).join(path).metadata().expect("there").ino()
    };
    let synced = || std::mem::take(&mut *disk.0.lock());
    store.write_at(Ino(0x21), P, b"bytes", 0).expect("write");
    assert_eq!(synced(), [inode("")], "a new bucket is lasting at once");
    store.sync(Ino(0x21), P, true).expect("sync");
    assert_eq!(synced(), [inode("21/0000000000000021.00000000"), inode("21")]);
    store.sync(Ino(0x21), P, true).expect("sync");
    assert_eq!(synced(), [inode("21/0000000000000021.00000000")]);
    // A second object in the same bucket has a name of its own to be synced.
    store.write_at(Ino(0x121), P, b"bytes", 0).expect("write");
    assert_eq!(synced(), [0; 0]);
    store.sync(Ino(0x121), P, true).expect("sync");
    assert_eq!(synced(), [inode("21/0000000000000121.00000000"), inode("21")]);
}

#[test]
fn a_read_error_is_told() {
    let (_dir, store, disk) = faulty();
    store.write_at(Ino(41), P, b"bytes", 0).expect("write");
    disk.plan_fault(DiskCall::Read, 0, 1, Errno::EIO);
    assert_eq!(store.read_at(Ino(41), P, &mut [0; 5], 0), Err(Errno::EIO));
    assert_eq!(content(&store, Ino(41)), b"bytes");
}

#[test]
fn more_objects_than_descriptors_are_all_served() {
    let (_dir, store) = store();
    for round in 0..2u8 {
        for ino in 1..=1500u64 {
            store.write_at(Ino(ino), P, &[round, ino as u8], 0).expect("write");
        }
    }
    for ino in 1..=1500u64 {
        assert_eq!(content(&store, Ino(ino)), [1, ino as u8]);
    }
    let mut after = None;
    let mut seen = 0;
    loop {
        let ObjectListing { objects, end } = store.list_objects(after, 100).expect("listed");
        seen += objects.len();
        after = objects.last().map(|o| (o.0, o.1)).or(after);
        if end {
            break;
        }
    }
    assert_eq!(seen, 1500);
}

#[derive(Clone, Debug)]
enum Op {
    Write(u64, Vec<u8>),
    Append(Vec<u8>),
    Truncate(u64),
    Punch(u64, u64),
    Zero(u64, u64),
    Copy(u64, u64, u64),
    Remake,
}

fn op() -> impl Strategy<Value = Op> {
    let offset = || 0u64..20_000;
    let data = || prop::collection::vec(any::<u8>(), 1..5000);
    prop_oneof![
        4 => (offset(), data()).prop_map(|(o, d)| Op::Write(o, d)),
        3 => data().prop_map(Op::Append),
        2 => offset().prop_map(Op::Truncate),
        1 => (offset(), 1u64..9000).prop_map(|(o, l)| Op::Punch(o, l)),
        1 => (offset(), 1u64..9000).prop_map(|(o, l)| Op::Zero(o, l)),
        1 => (offset(), 20_000u64..40_000, 1u64..9000).prop_map(|(s, o, l)| Op::Copy(s, o, l)),
        1 => Just(Op::Remake),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// An object has the same bytes as a vector would, also across restarts.
    #[test]
    fn an_object_is_a_vector_of_bytes(ops in prop::collection::vec(op(), 1..25)) {
        let (dir, mut store) = store();
        let mut model: Vec<u8> = Vec::new();
        let ino = Ino(77);
        let grow = |model: &mut Vec<u8>, to: u64| {
            if model.len() < to as usize {
                model.resize(to as usize, 0);
            }
        };
        for op in ops {
            match op {
                Op::Write(offset, data) => {
                    store.write_at(ino, P, &data, offset).expect("write");
                    grow(&mut model, offset + data.len() as u64);
                    model[offset as usize..][..data.len()].copy_from_slice(&data);
                }
                Op::Append(data) => {
                    prop_assert_eq!(store.append(ino, P, &data), Ok(model.len() as u64));
                    model.extend_from_slice(&data);
                }
                Op::Truncate(size) => {
                    store.truncate(ino, P, size).expect("truncate");
                    model.resize(size as usize, 0);
                }
                Op::Punch(offset, len) => {
                    store.allocate(ino, P, AllocMode::Punch, offset, len).expect("punch");
                    let end = model.len().min((offset + len) as usize);
                    if (offset as usize) < end {
                        model[offset as usize..end].fill(0);
                    }
                }
                Op::Zero(offset, len) => {
                    store.allocate(ino, P, AllocMode::Zero, offset, len).expect("zero");
                    grow(&mut model, offset + len);
                    model[offset as usize..(offset + len) as usize].fill(0);
                }
                Op::Copy(source, offset, len) => {
                    let n = len.min((model.len() as u64).saturating_sub(source));
                    let overlap = n > 0 && source < offset + n && offset < source + n;
                    let copied = store.copy_range((ino, P), source, (ino, P), offset, len);
                    if overlap {
                        prop_assert_eq!(copied, Err(Errno::EINVAL));
                    } else {
                        prop_assert_eq!(copied, Ok(n));
                        if n > 0 {
                            grow(&mut model, offset + n);
                            model.copy_within(source as usize..(source + n) as usize, offset as usize);
                        }
                    }
                }
                Op::Remake => {
                    drop(store);
                    store = ObjectStore::open(dir.path()).expect("opens again");
                }
            }
            prop_assert_eq!(store.stat(ino, P).expect("stat").size, model.len() as u64);
        }
        prop_assert_eq!(content(&store, ino), model);
    }
}
