//! The store on a real disk: it survives a kill, it refuses unknown formats, and a full disk does
//! not damage it.

use crate::harness::*;
use std::ops::ControlFlow;
use std::path::Path;
use tatami_meta::store::{Change, Store, StoreError};
use tatami_meta::{FjallStore, Meta, MetaOpenError, OperationContext, StoreOptions};
use tatami_skip::skip_test;
use tatami_wire::meta::{InodeTemplate, MetaOp, MetaReply};
use tatami_wire::{Cred, Errno, Timestamp, VolumeId};

/// The first log of a store.
const LOG: &str = "00000001.log";

fn open(path: &Path) -> FjallStore {
    FjallStore::open(path, StoreOptions::default()).expect("opens")
}

fn put(key: &str, value: &str) -> Change {
    (key.as_bytes().to_vec(), Some(value.as_bytes().to_vec()))
}

fn keys(store: &FjallStore, from: &str, prefix: &str) -> Vec<String> {
    let mut found = Vec::new();
    store
        .scan(from.as_bytes(), prefix.as_bytes(), &mut |k, _| {
            found.push(String::from_utf8_lossy(k).into_owned());
            ControlFlow::Continue(())
        })
        .expect("scan");
    found
}

#[test]
fn what_was_committed_is_there_again() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("deep/store");
    let mut store = open(&path);
    store.commit(&[put("a1", "x"), put("a2", "y"), put("b1", "z")]).expect("commit");
    store.commit(&[(b"a1".to_vec(), None), put("a3", "w")]).expect("commit");
    store.sync().expect("sync");
    assert!(store.has_room(), "the test needs some free disk");
    drop(store);
    let store = open(&path);
    assert_eq!(store.get(b"a2").expect("get"), Some(b"y".to_vec()));
    assert_eq!(store.get(b"a1").expect("get"), None);
    assert_eq!(keys(&store, "", "a"), ["a2", "a3"]);
    assert_eq!(keys(&store, "a3", "a"), ["a3"]);
    assert_eq!(keys(&store, "b", "a"), Vec::<String>::new());
}

/// A killed process leaves the content of the files, without a close of the store.
#[test]
fn a_copy_of_the_files_of_a_running_store_has_all_commits() {
    let dir = tempfile::tempdir().expect("directory");
    let live = dir.path().join("live");
    let copy = dir.path().join("copy");
    let mut store = open(&live);
    for i in 0..200 {
        store.commit(&[put(&format!("k{i:03}"), "v")]).expect("commit");
    }
    copy_tree(&live, &copy);
    let after = open(&copy);
    assert_eq!(keys(&after, "", "k").len(), 200);
}

#[test]
fn a_torn_batch_at_the_end_of_the_log_is_dropped_whole() {
    let dir = tempfile::tempdir().expect("directory");
    let live = dir.path().join("live");
    let mut store = open(&live);
    store.commit(&[put("first", "1")]).expect("commit");
    store.commit(&[put("log", "1")]).expect("commit");
    let marker = [b'm'; 3000];
    let pair = |n: u8| (vec![b's', n], Some(marker.to_vec()));
    store.commit(&[pair(1), pair(2)]).expect("commit");
    let log = std::fs::read(live.join(LOG)).expect("log");
    let last = log.windows(3000).rposition(|w| w == marker).expect("the batch is in the log");
    for cut in [last + 2999, last, last - 1500, last - 3000] {
        let copy = dir.path().join(format!("cut{cut}"));
        copy_tree(&live, &copy);
        let file = std::fs::OpenOptions::new().write(true).open(copy.join(LOG));
        file.expect("log").set_len(cut as u64).expect("cut");
        let mut after = open(&copy);
        assert_eq!(keys(&after, "", ""), ["first", "log"], "cut at {cut}");
        after.commit(&[put("next", "2")]).expect("commit");
        drop(after);
        assert_eq!(keys(&open(&copy), "", ""), ["first", "log", "next"]);
    }
}

/// The disk had written a later page of the log and not an earlier one at the power cut.
#[test]
fn a_hole_in_the_log_ends_it() {
    let dir = tempfile::tempdir().expect("directory");
    let live = dir.path().join("live");
    let mut store = open(&live);
    for n in 0..50u8 {
        store.commit(&[(vec![n], Some(vec![n + 1; 3000]))]).expect("commit");
    }
    let mut bytes = std::fs::read(live.join(LOG)).expect("log");
    let used = bytes.iter().rposition(|b| *b != 0).expect("used");
    bytes.truncate(used + 8192);
    for page in (0..=used / 4096).step_by(9) {
        let copy = dir.path().join(format!("page{page}"));
        copy_tree(&live, &copy);
        let mut holed = bytes.clone();
        // The header of 36 bytes was synced before anything was written behind it.
        holed[(page * 4096).max(36)..][..4096].fill(0);
        std::fs::write(copy.join(LOG), &holed).expect("write");
        let mut after = open(&copy);
        assert!(after.cut_description().is_some() || page == used / 4096, "page {page}");
        let mut found = Vec::new();
        let mut visit = |k: &[u8], _: &[u8]| {
            found.extend_from_slice(k);
            ControlFlow::Continue(())
        };
        after.scan(&[], &[], &mut visit).expect("scan");
        assert!(found.iter().copied().eq(0..found.len() as u8), "a prefix");
        // The first batch went to a table; the others take 3,019 bytes each.
        let before = 1 + (page * 4096).saturating_sub(36) / 3019;
        assert!((before.saturating_sub(1)..=before).contains(&found.len()), "page {page}");
        after.commit(&[put("next", "2")]).expect("commit");
        drop(after);
        assert!(open(&copy).get(b"next").expect("get").is_some());
    }
}

/// The expected content of a store of logs and tables: numbers, each under its own key, which
/// change and go.
struct Numbers {
    store: FjallStore,
    now: std::collections::BTreeMap<Vec<u8>, Vec<u8>>,
}

impl Numbers {
    /// Commits changes that fill a log or more. Every fifth key is removed again, half of those at
    /// once; every seventh is rewritten in each call.
    fn fill(&mut self, round: u32, mut after_each: impl FnMut(&mut FjallStore)) {
        let mut change = |store: &mut FjallStore, key: String, value: Option<Vec<u8>>| {
            match &value {
                Some(value) => self.now.insert(key.clone().into_bytes(), value.clone()),
                None => self.now.remove(key.as_bytes()),
            };
            store.commit(&[(key.into_bytes(), value)]).expect("commit");
            after_each(store);
        };
        for n in 0..1200 {
            let value = || Some([&round.to_le_bytes()[..], &[n as u8; 60_000]].concat());
            change(&mut self.store, format!("r{round} {n}"), value());
            if n % 7 == 0 {
                change(&mut self.store, format!("often {n}"), Some(vec![round as u8; 9]));
            }
            if n % 10 == 0 {
                change(&mut self.store, format!("r{round} {n}"), None);
            } else if n % 5 == 0 && round > 0 {
                change(&mut self.store, format!("r{} {n}", round - 1), None);
            }
        }
    }

    fn check(&self, store: &FjallStore) {
        let mut found = std::collections::BTreeMap::new();
        let mut visit = |k: &[u8], v: &[u8]| {
            found.insert(k.to_vec(), v.to_vec());
            ControlFlow::Continue(())
        };
        store.scan(&[], &[], &mut visit).expect("scan");
        assert!(found == self.now, "a scan shows all and nothing else");
        for n in (0..1200).step_by(13) {
            let key = format!("r0 {n}").into_bytes();
            assert!(store.get(&key).expect("get").as_ref() == self.now.get(&key), "get");
        }
    }
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the caller is the test")]
fn what_leaves_the_log_for_a_table_stays_what_it_was() {
    let dir = tempfile::tempdir().expect("directory");
    let live = dir.path().join("live");
    let store = open(&live);
    let mut numbers = Numbers { store, now: std::collections::BTreeMap::new() };
    let mut threads = Vec::new();
    for round in 0..5 {
        numbers.fill(round, |store| match (round, store.take_background_task()) {
            // A thread took the task and did not run it: it is made again.
            (1, chore) => drop(chore),
            (2, Some(chore)) => threads.push(std::thread::spawn(chore)),
            (_, chore) => chore.into_iter().for_each(|chore| chore()),
        });
        numbers.check(&numbers.store);
        let Numbers { store, now } = numbers;
        // Closing writes nothing: a reopen reads the content that a kill leaves.
        drop(store);
        numbers = Numbers { store: open(&live), now };
        numbers.check(&numbers.store);
    }
    assert!(!live.join(LOG).exists(), "the first log is in a table");
    threads.into_iter().for_each(|thread| thread.join().expect("the chore"));
}

#[test]
fn a_store_that_waits_for_nobody_does_its_chores_itself() {
    let dir = tempfile::tempdir().expect("directory");
    let mut numbers = Numbers { store: open(dir.path()), now: std::collections::BTreeMap::new() };
    for round in 0..3 {
        numbers.fill(round, |_| {});
    }
    numbers.check(&numbers.store);
    let logs = std::fs::read_dir(dir.path()).expect("list");
    let logs =
        logs.filter(|f| f.as_ref().is_ok_and(|f| f.path().extension().is_some_and(|e| e == "log")));
    assert!(logs.count() <= 2, "logs go");
    let Numbers { store, now } = numbers;
    drop(store);
    let numbers = Numbers { store: open(dir.path()), now };
    numbers.check(&numbers.store);
}

/// A log that ends before the offset in its successor's header has lost synced records.
#[test]
fn a_log_that_misses_its_end_is_told() {
    let dir = tempfile::tempdir().expect("directory");
    let mut store = open(dir.path());
    for n in 0..1200u32 {
        store.commit(&[(n.to_be_bytes().to_vec(), Some(vec![1; 60_000]))]).expect("commit");
    }
    assert!(dir.path().join("00000002.log").exists(), "a second log has begun");
    drop(store.take_background_task());
    drop(store);
    let file = std::fs::OpenOptions::new().write(true).open(dir.path().join(LOG)).expect("log");
    file.set_len(1 << 20).expect("cut");
    match FjallStore::open(dir.path(), StoreOptions::default()).map(|_| ()) {
        Err(StoreError::Lost { .. }) => {}
        other => panic!("not refused: {other:?}"),
    }
    // The rest of it and all later batches are there when the loss is accepted.
    let store = accepting(dir.path());
    let keys = (0..1200u32).filter(|n| store.get(&n.to_be_bytes()).expect("get").is_some());
    let keys: Vec<u32> = keys.collect();
    assert!(keys.len() > 50 && keys.first() == Some(&0) && keys.last() == Some(&1199), "{keys:?}");
}

fn accepting(path: &Path) -> FjallStore {
    let opening = StoreOptions { accept_loss: true, ..StoreOptions::default() };
    FjallStore::open(path, opening).expect("opens with what is left")
}

fn flip(file: &Path, byte: usize, bit: u8) {
    let mut bytes = std::fs::read(file).expect("read");
    bytes[byte] ^= 1 << bit;
    std::fs::write(file, bytes).expect("write");
}

/// Makes a store with a table and a log of 50 batches, the last ones not synced; it was closed, or
/// its process died.
fn damageable(path: &Path, closed: bool) -> std::collections::BTreeMap<Vec<u8>, Vec<u8>> {
    let mut store = open(path);
    let record = |n: u32| (n.to_be_bytes().to_vec(), vec![n as u8 | 1; 20 + n as usize % 100]);
    let mut expected: std::collections::BTreeMap<_, _> = (0..2000).map(record).collect();
    let first: Vec<Change> = expected.iter().map(|(k, v)| (k.clone(), Some(v.clone()))).collect();
    store.commit(&first).expect("commit");
    for n in 1950..2000u32 {
        let value = vec![9; 300];
        store.commit(&[(n.to_be_bytes().to_vec(), Some(value.clone()))]).expect("commit");
        expected.insert(n.to_be_bytes().to_vec(), value);
        if n % 10 == 7 {
            store.sync().expect("sync");
        }
    }
    if closed {
        store.close().expect("close");
    }
    expected
}

#[test]
fn a_flipped_bit_in_the_middle_of_a_closed_log_is_told_and_can_be_accepted() {
    let dir = tempfile::tempdir().expect("directory");
    let mut expected = damageable(dir.path(), true);
    drop(open(dir.path()));
    // A batch takes 24 + 6 + 4 + 300 bytes, behind the header of 36.
    let (batch, log) = (20, dir.path().join(LOG));
    flip(&log, 36 + batch * 334 + 100, 3);
    let refused =
        FjallStore::open(dir.path(), StoreOptions::default()).map(|_| ()).expect_err("refused");
    let StoreError::Lost { at, .. } = &refused else { panic!("{refused}") };
    assert_eq!(*at as usize, 36 + batch * 334);
    let message = refused.to_string();
    assert!(message.contains(LOG) && message.contains("--accept-loss"), "{message}");
    assert!(!log.with_extension("log.cut").exists(), "nothing is done before somebody decides");
    let mut store = accepting(dir.path());
    assert!(
        store.lost_bound() > 0
            && store.cut_description().is_some_and(|cut| cut.contains("00000001.log.cut"))
    );
    assert!(log.with_extension("log.cut").exists());
    // One batch is lost, and none behind it.
    expected.insert(1970u32.to_be_bytes().to_vec(), vec![1970u32 as u8 | 1; 20 + 1970 % 100]);
    assert_eq!(all_of(&store).expect("scan"), expected);
    store.commit(&[put("next", "1")]).expect("commit");
    drop(store);
    assert!(
        open(dir.path()).lost_bound() > 0,
        "until it is closed, what was counted may not have been raised"
    );
    open(dir.path()).close().expect("close");
    let store = open(dir.path());
    assert_eq!((store.lost_bound(), store.cut_description()), (0, None));
    assert_eq!(store.get(b"next").expect("get"), Some(b"1".to_vec()));
}

/// The slow part of a sync may run in another thread, while batches follow that it does not cover.
#[test]
fn what_another_thread_synced_is_missed_as_well_and_no_more() {
    let dir = tempfile::tempdir().expect("directory");
    let batch = |n: u8| [(vec![n], Some(vec![n; 300]))];
    let live = dir.path().join("live");
    let mut store = open(&live);
    for n in 1..=5 {
        store.commit(&batch(n)).expect("commit");
    }
    let work = store.begin_sync().expect("begins").expect("another thread does it");
    store.commit(&batch(6)).expect("commit");
    store.commit(&batch(7)).expect("commit");
    let synced = work();
    store.end_sync(synced).expect("ends");
    drop(store);
    // The first batch went to a table; the others take 24 + 6 + 1 + 300 bytes each, behind the
    // header of 36.
    for (bad, is_lost) in [(2, true), (5, true), (6, false), (7, false)] {
        let copy = dir.path().join(format!("bad-{bad}"));
        copy_tree(&live, &copy);
        flip(&copy.join(LOG), 36 + (bad - 2) * 331 + 100, 1);
        let opened = FjallStore::open(&copy, StoreOptions { boot: 5, ..StoreOptions::default() });
        assert_eq!(matches!(opened, Err(StoreError::Lost { .. })), is_lost, "batch {bad}");
        assert_eq!(opened.is_ok(), !is_lost, "batch {bad}");
    }
}

#[test]
fn a_log_that_is_shorter_than_what_was_synced_or_gone_is_told() {
    let dir = tempfile::tempdir().expect("directory");
    for closed in [true, false] {
        let live = dir.path().join(format!("closed-{closed}"));
        let expected = damageable(&live, closed);
        let used = 36 + 50 * 334;
        for length in [0, 20, 36, 37, used / 2, used - 334 * 3, used - 1, used] {
            let copy = dir.path().join(format!("{closed}-{length}"));
            copy_tree(&live, &copy);
            let file = std::fs::OpenOptions::new().write(true).open(copy.join(LOG)).expect("log");
            file.set_len(length as u64).expect("cut");
            let opened =
                FjallStore::open(&copy, StoreOptions { boot: 5, ..StoreOptions::default() });
            // In the case without a close, the last two batches were not synced.
            let may_be_lost = if closed { 0 } else { 2 };
            match opened {
                Ok(store) => {
                    assert!(length >= used - may_be_lost * 334, "{length} of {used} is no error");
                    let found = all_of(&store).expect("scan");
                    assert_eq!(found.len(), expected.len());
                    assert_eq!(found == expected, length == used);
                }
                Err(StoreError::Lost { .. }) => assert!(length < used - may_be_lost * 334),
                Err(e) => panic!("{e}"),
            }
        }
        for gone in [LOG, "mark"] {
            let copy = dir.path().join(format!("{closed}-{gone}"));
            copy_tree(&live, &copy);
            std::fs::remove_file(copy.join(gone)).expect("remove");
            let refused = FjallStore::open(&copy, StoreOptions::default()).map(|_| ());
            assert!(matches!(refused, Err(StoreError::Lost { .. })), "{gone}: {refused:?}");
            let left = all_of(&accepting(&copy)).expect("scan");
            assert_eq!(left == expected, gone == "mark", "what is there is taken over");
        }
    }
}

fn all_of(store: &FjallStore) -> Result<std::collections::BTreeMap<Vec<u8>, Vec<u8>>, StoreError> {
    let mut found = std::collections::BTreeMap::new();
    store.scan(&[], &[], &mut |k, v| {
        found.insert(k.to_vec(), v.to_vec());
        ControlFlow::Continue(())
    })?;
    Ok(found)
}

/// Returns all files below a directory.
fn files(dir: &Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).expect("list") {
        let entry = entry.expect("entry");
        match entry.file_type().expect("type").is_dir() {
            true => found.extend(files(&entry.path())),
            false => found.push(entry.path()),
        }
    }
    found.sort();
    found
}

/// A bit flips in each kind of file of a store, at its ends and in between: a read returns the
/// written value, or an error.
#[test]
fn a_flipped_bit_in_any_file_of_a_store_is_told_or_does_no_harm() {
    let dir = tempfile::tempdir().expect("directory");
    let live = dir.path().join("live");
    let expected = damageable(&live, true);
    // Reserved blocks need not be copied each time.
    let log = std::fs::OpenOptions::new().write(true).open(live.join(LOG)).expect("log");
    log.set_len(36 + 50 * 334).expect("cut");
    let (mut counts, mut kinds) = (std::collections::BTreeMap::new(), 0);
    for file in files(&live) {
        let name = file.strip_prefix(&live).expect("below").to_owned();
        let bytes = std::fs::read(&file).expect("read");
        let used = bytes.iter().rposition(|b| *b != 0).map_or(0, |last| last + 1);
        if used == 0 {
            continue;
        }
        kinds += 1;
        let ends = [0, 5, 9, used.saturating_sub(10), used.saturating_sub(4), used - 1];
        let between = (1..6).map(|n| used * n / 6);
        let places = ends.into_iter().chain(between).map(|at| at.min(used - 1));
        let places: std::collections::BTreeSet<usize> = places.collect();
        for at in places {
            let copy = dir.path().join("copy");
            copy_tree(&live, &copy);
            flip(&copy.join(&name), at, (at % 8) as u8);
            let what = format!("{} at {at} of {used}", name.display());
            let read = std::panic::catch_unwind(|| {
                let store =
                    FjallStore::open(&copy, StoreOptions { boot: 5, ..StoreOptions::default() })?;
                let all = all_of(&store)?;
                // Filters and indexes are used for single keys.
                for key in expected.keys() {
                    assert_eq!(store.get(key)?.as_ref(), expected.get(key), "{what}");
                }
                Ok::<_, StoreError>(all)
            });
            match read {
                Ok(Ok(found)) => assert!(found == expected, "{what}: it is read as something else"),
                Ok(Err(e)) => {
                    assert!(e.to_string().contains("copy"), "{what}: no path: {e}");
                    *counts.entry(name.clone()).or_insert(0) += 1;
                }
                Err(_) => panic!("{what}: a panic"),
            }
            std::fs::remove_dir_all(&copy).expect("remove");
        }
    }
    assert!(kinds >= 8, "there are {kinds} files");
    for part in [LOG, "keyspaces/1/tables/0", "keyspaces/1/current", "version"] {
        assert!(counts.contains_key(Path::new(part)), "nothing told of {part}: {counts:?}");
    }
}

/// After a loss, no number of a lost inode is allocated again: its object may exist.
#[test]
fn numbers_of_inodes_that_were_lost_are_not_given_out_again() {
    let dir = tempfile::tempdir().expect("directory");
    let now = Timestamp::from_sec(1);
    let make = |meta: &mut Meta<FjallStore>, n: u64| {
        let ctx = OperationContext { now, client: A, slot: 0, seq: n, trusted: true };
        let op = MetaOp::Create {
            parent: ROOT,
            name: name(&format!("f{n}")),
            node: InodeTemplate::File(LAYOUT),
            mode: 0o644,
            umask: 0,
            exclusive: true,
            open: None,
        };
        let applied = meta.apply(&ctx, &Cred::ROOT, &op);
        let tatami_meta::Applied::Done(Ok(MetaReply::Created { attr, .. })) = applied else {
            panic!("{applied:?}")
        };
        meta.sync().expect("sync");
        attr.ino
    };
    let mut meta = Meta::open(open(dir.path()), config(), now).expect("opens");
    let before: Vec<_> = (1..200).map(|n| make(&mut meta, n)).collect();
    drop(meta);
    // All but the header is gone, and with it the batch that recorded the allocated numbers.
    let file = std::fs::OpenOptions::new().write(true).open(dir.path().join(LOG)).expect("log");
    file.set_len(36).expect("cut");
    assert!(FjallStore::open(dir.path(), StoreOptions::default()).is_err());
    for _ in 0..2 {
        let mut meta = Meta::open(accepting(dir.path()), config(), now).expect("opens");
        let ino = make(&mut meta, 1000);
        assert!(before.iter().all(|old| old.0 < ino.0), "{ino} was given out before");
        drop(meta);
    }
}

fn copy_tree(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("directory");
    for entry in std::fs::read_dir(from).expect("list") {
        let entry = entry.expect("entry");
        let target = to.join(entry.file_name());
        if entry.file_type().expect("type").is_dir() {
            copy_tree(&entry.path(), &target);
        } else {
            // A journal is long and mostly holes.
            let bytes = std::fs::read(entry.path()).expect("read");
            let used = bytes.iter().rposition(|b| *b != 0).map_or(0, |last| last + 1);
            std::fs::write(&target, &bytes[..used]).expect("write");
            let file = std::fs::OpenOptions::new().write(true).open(&target).expect("open");
            file.set_len(bytes.len() as u64).expect("length");
        }
    }
}

#[test]
fn one_process_at_a_time() {
    let dir = tempfile::tempdir().expect("directory");
    let _store = open(dir.path());
    match FjallStore::open(dir.path(), StoreOptions::default()).map(|_| ()) {
        Err(e @ StoreError::Locked { .. }) => assert!(e.to_string().contains("another process")),
        other => panic!("not locked: {other:?}"),
    }
}

#[test]
fn a_store_of_a_newer_format_is_refused_with_a_reason() {
    let dir = tempfile::tempdir().expect("directory");
    drop(open(dir.path()));
    std::fs::write(dir.path().join("version"), b"FJL\x09").expect("write");
    match FjallStore::open(dir.path(), StoreOptions::default()).map(|_| ()) {
        Err(e @ StoreError::Format { .. }) => {
            assert!(e.to_string().contains("use the version that wrote it"));
        }
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn metadata_of_a_newer_format_or_another_volume_is_refused_with_a_reason() {
    let dir = tempfile::tempdir().expect("directory");
    let now = Timestamp::from_sec(1);
    drop(Meta::open(open(dir.path()), config(), now).expect("opens"));
    let other = tatami_meta::MetaConfig { volume: VolumeId([8; 16]), ..config() };
    let refused = Meta::open(open(dir.path()), other, now).map(|_| ()).expect_err("refused");
    assert!(matches!(refused, MetaOpenError::Volume { .. }));
    let mut store = open(dir.path());
    let mut shard = store.get(b"S").expect("get").expect("the root's commit wrote it");
    shard[8] = 2;
    store.commit(&[(b"S".to_vec(), Some(shard))]).expect("commit");
    let refused = Meta::open(store, config(), now).map(|_| ()).expect_err("refused");
    assert!(matches!(refused, MetaOpenError::Newer { found: 2, known: 1 }), "{refused}");
}

#[test]
fn a_store_whose_making_was_cut_short_is_made_again() {
    for files in [&["0.jnl"][..], &["lock", "0.jnl"], &["version", "0.jnl"], &["keyspaces/"]] {
        let dir = tempfile::tempdir().expect("directory");
        for file in files {
            let path = dir.path().join(file);
            match file.strip_suffix('/') {
                Some(_) => std::fs::create_dir(path).expect("directory"),
                None => std::fs::write(path, b"").expect("file"),
            }
        }
        let mut store = open(dir.path());
        store.commit(&[put("k", "v")]).expect("commit");
        drop(store);
        assert_eq!(keys(&open(dir.path()), "", ""), ["k"]);
    }
    let dir = tempfile::tempdir().expect("directory");
    drop(open(dir.path()));
    std::fs::remove_file(dir.path().join("version")).expect("remove");
    let refused =
        FjallStore::open(dir.path(), StoreOptions::default()).map(|_| ()).expect_err("refused");
    assert!(matches!(refused, StoreError::Damaged { .. }), "never deletes a finished store");
}

/// A shard over a real store is used a little, killed by copying its files, and inspected.
#[test]
fn a_shard_on_disk_survives_a_kill() {
    let dir = tempfile::tempdir().expect("directory");
    let live = dir.path().join("live");
    let now = Timestamp::from_sec(1);
    let mut meta = Meta::open(open(&live), config(), now).expect("opens");
    let ctx = |seq| OperationContext { now, client: A, slot: 0, seq, trusted: true };
    let make = |n: u64| MetaOp::Create {
        parent: ROOT,
        name: name(&format!("f{n}")),
        node: InodeTemplate::File(LAYOUT),
        mode: 0o644,
        umask: 0,
        exclusive: true,
        open: None,
    };
    let mut last = None;
    for n in 1..=300 {
        last = Some(meta.apply(&ctx(n), &Cred::ROOT, &make(n)).into_result().expect("create"));
        if n % 10 == 0 {
            meta.commit().expect("commit");
        }
    }
    meta.apply(&ctx(301), &Cred::ROOT, &make(301)).into_result().expect("create");
    let copy = dir.path().join("copy");
    copy_tree(&live, &copy);
    let mut meta = Meta::open(open(&copy), config(), now).expect("opens");
    assert_eq!(
        meta.inode_count(),
        301,
        "the root and 300 files: what was not committed is not there"
    );
    assert_eq!(
        meta.apply(&ctx(300), &Cred::ROOT, &make(300)).into_result().ok(),
        last,
        "the answer is kept too"
    );
    let check = MetaOp::Check { after: tatami_wire::Ino(0), limit: 1000, repair: false };
    match meta.apply(&ctx(400), &Cred::ROOT, &check).into_result() {
        Ok(MetaReply::Checked { findings, examined: 301, next: None }) => {
            assert!(findings.is_empty(), "{findings:#?}");
        }
        other => panic!("{other:?}"),
    }
}

/// Runs `test` on a disk of `megabytes`. Needs root and tmpfs; elsewhere it is skipped.
fn on_small_disk(megabytes: u32, test: impl Fn(&Path) + std::panic::RefUnwindSafe) {
    let dir = tempfile::tempdir().expect("directory");
    let mounted = std::process::Command::new("mount")
        .args(["-t", "tmpfs", "-o", &format!("size={megabytes}m"), "tatami-test"])
        .arg(dir.path())
        .output()
        .is_ok_and(|o| o.status.success());
    if !mounted {
        return skip_test("mounting a small tmpfs needs root");
    }
    let result = std::panic::catch_unwind(|| test(dir.path()));
    let unmounted = std::process::Command::new("umount").arg(dir.path()).status();
    assert!(unmounted.is_ok_and(|s| s.success()), "umount");
    if let Err(panic) = result {
        std::panic::resume_unwind(panic);
    }
}

#[test]
fn a_full_disk_does_no_harm_and_lets_remove() {
    // Large enough to reserve the journal.
    on_small_disk(300, |disk| fill(disk, true));
}

#[test]
fn a_full_small_disk_does_no_harm() {
    // Too small to reserve anything: commits do meet ENOSPC.
    on_small_disk(100, |disk| fill(disk, false));
}

fn fill(disk: &Path, can_remove: bool) {
    let now = Timestamp::from_sec(1);
    let mut meta = Meta::open(open(&disk.join("store")), config(), now).expect("opens");
    let mut seq = 0;
    let mut apply = |meta: &mut Meta<FjallStore>, op: MetaOp| {
        seq += 1;
        let ctx = OperationContext { now, client: A, slot: 0, seq, trusted: true };
        let reply = meta.apply(&ctx, &Cred::ROOT, &op).into_result()?;
        meta.commit().map_err(|e| e.errno())?;
        Ok::<_, Errno>(reply)
    };
    let make = |n: &str| MetaOp::Create {
        parent: ROOT,
        name: name(n),
        node: InodeTemplate::File(LAYOUT),
        mode: 0o644,
        umask: 0,
        exclusive: true,
        open: None,
    };
    let remove = |n: &str| MetaOp::Unlink { parent: ROOT, name: name(n), keep: false };
    for n in 0..500 {
        apply(&mut meta, make(&format!("before{n}"))).expect("create");
    }
    // A user fills the rest of the disk.
    use std::io::Write;
    let ballast = disk.join("ballast");
    let mut file = std::fs::File::create(&ballast).expect("file");
    let block = vec![1; 1 << 16];
    while file.write_all(&block).is_ok() {}
    while file.write_all(&[1; 512]).is_ok() {}
    assert_eq!(apply(&mut meta, make("no room")).err(), Some(Errno::ENOSPC));
    let mut removed = 0;
    let attempts = if can_remove { 500 } else { 20 };
    for n in 0..attempts {
        match apply(&mut meta, remove(&format!("before{n}"))) {
            Ok(_) => removed += 1,
            Err(e) if !can_remove => assert_eq!(e, Errno::ENOSPC),
            Err(e) => panic!("removal on a full disk: {e}"),
        }
    }
    assert_eq!(removed == 500, can_remove, "the journal is reserved or it is not");
    assert_eq!(meta.inode_count(), 501 - removed);
    assert_eq!(apply(&mut meta, make("no room")).err(), Some(Errno::ENOSPC));
    assert!(!meta.is_poisoned());
    // Cut before it is removed: a child that another test is starting may have it open still.
    file.set_len(0).expect("cut");
    drop(file);
    std::fs::remove_file(&ballast).expect("remove");
    apply(&mut meta, make("after")).expect("there is room again");
    drop(meta);
    let mut meta = Meta::open(open(&disk.join("store")), config(), now).expect("opens");
    assert_eq!(meta.inode_count(), 502 - removed);
    let lookup = MetaOp::Lookup { parent: ROOT, name: name("after") };
    assert!(apply(&mut meta, lookup).is_ok());
}
