//! Versions of objects against a model, with power cuts at any write and deaths of the process.

use std::collections::BTreeMap;
use std::path::PathBuf;
use tatami_region::power_cut::PowerCut;
use tatami_region::{
    ChangeError, RegionChange, RegionLimits, RegionOptions, RegionStore, open_regions,
};
use tatami_wire::version_rule::VersionRule;
use tatami_wire::{ClientId, Ino, Piece};

const DEVICE_LEN: u64 = 256 << 20;
const OBJECTS: u64 = 6;
const CLIENT: ClientId = ClientId([1; 16]);

fn open_device(machine: &PowerCut) -> Option<RegionStore> {
    open_limited(
        machine,
        RegionLimits { dirty: 128 << 10, cached: 64 << 10, journal_half: 512 << 10 },
    )
}

fn open_limited(machine: &PowerCut, limits: RegionLimits) -> Option<RegionStore> {
    open_regions(RegionOptions {
        device: machine.device(),
        path: PathBuf::from("device"),
        journal: machine.log(),
        journal_path: PathBuf::from("journal"),
        volume: 7,
        node: 1,
        expected: None,
        accept_loss: false,
        limits,
    })
    .ok()
}

fn open(machine: &PowerCut) -> RegionStore {
    open_device(machine).expect("opens")
}

fn keep(rule: &str) -> Piece {
    Piece::first_versioned(VersionRule::parse(rule).expect("a rule").code())
}

/// Objects with different rules, and one without.
fn key(ino: u64) -> (Ino, Piece) {
    let piece = match ino {
        0 => Piece::FIRST_REGION,
        1 => keep("1"),
        2 => keep("5,255d"),
        _ => keep("3"),
    };
    (Ino(ino), piece)
}

/// An object and its versions.
#[derive(Clone, Debug, Default, PartialEq)]
struct ObjectModel {
    bytes: Option<Vec<u8>>,
    versions: BTreeMap<u32, Vec<u8>>,
}

/// What is known of an object without a look at the store.
#[derive(Clone, Debug, Default)]
struct Known {
    state: ObjectModel,
    /// The next change keeps the bytes.
    is_sealed: bool,
    /// The bytes differ from those of the last version.
    has_changed: bool,
    last_number: u32,
}

impl Known {
    /// The step before a change: the bytes become a version.
    fn keep_state(&mut self, ino: u64, always: bool) {
        let count = VersionRule::of_object(key(ino).1).max_count();
        let bytes = self.state.bytes.clone().unwrap_or_default();
        let is_kept = count > 0 && !bytes.is_empty() && self.has_changed;
        if (self.is_sealed || always) && is_kept {
            self.last_number += 1;
            self.state.versions.insert(self.last_number, bytes);
            while self.state.versions.len() > count {
                self.state.versions.pop_first();
            }
            self.has_changed = false;
        }
        self.is_sealed = false;
    }

    fn change(&mut self, bytes: Vec<u8>) {
        self.state.bytes = Some(bytes);
        self.has_changed = true;
    }
}

/// What the objects may be after a power cut, the newest last. The first was synced.
struct Model {
    objects: BTreeMap<u64, Vec<Known>>,
    random: fastrand::Rng,
    kept: usize,
    restored: usize,
}

fn read_state(store: &RegionStore, ino: u64) -> ObjectModel {
    let key = key(ino);
    let bytes = store.state(key).map(|state| {
        let mut bytes = vec![0; state.size as usize + 10];
        let got = store.read_at(key, &mut bytes, 0).expect("read").expect("there");
        assert_eq!(got as u64, state.size);
        bytes.truncate(got);
        bytes
    });
    let read = |version: tatami_wire::object::ObjectVersion| {
        let mut bytes = vec![0; version.size as usize + 10];
        let got = store.read_version(key, version.number, &mut bytes, 0).expect("read");
        assert_eq!(got, Some(version.size as usize), "object {ino}: {version:?}");
        bytes.truncate(version.size as usize);
        (version.number, bytes)
    };
    ObjectModel { bytes, versions: store.list_versions(key).into_iter().map(read).collect() }
}

fn describe(state: &ObjectModel) -> String {
    let versions: Vec<_> = state.versions.iter().map(|(n, b)| (*n, b.len(), b.first())).collect();
    format!("{:?} with {versions:?}", state.bytes.as_ref().map(|b| (b.len(), b.first())))
}

impl Model {
    fn new(seed: u64) -> Model {
        let objects = (0..OBJECTS).map(|ino| (ino, vec![Known::default()])).collect();
        Model { objects, random: fastrand::Rng::with_seed(seed), kept: 0, restored: 0 }
    }

    fn now(&self, ino: u64) -> Known {
        self.objects[&ino].last().expect("never empty").clone()
    }

    fn note(&mut self, ino: u64, known: Known) {
        self.objects.get_mut(&ino).expect("there").push(known);
    }

    fn check(&self, store: &RegionStore) {
        for ino in self.objects.keys() {
            let (found, known) = (read_state(store, *ino), self.now(*ino).state);
            let said = (describe(&found), describe(&known));
            assert!(found == known, "object {ino}: {} is not {}", said.0, said.1);
        }
    }

    /// Checks what a power cut has left, which is durable from now on.
    fn check_after_cut(&mut self, store: &RegionStore) {
        for (ino, history) in &mut self.objects {
            let found = read_state(store, *ino);
            let known = history.iter().rev().find(|known| known.state == found).cloned();
            let mut known = known.unwrap_or_else(|| {
                let all: Vec<_> = history.iter().map(|h| describe(&h.state)).collect();
                panic!("object {ino}: {} is none of {all:#?}", describe(&found))
            });
            // What a writer had left counts as a state.
            known.is_sealed = true;
            *history = vec![known];
        }
    }

    fn restart(&mut self) {
        for history in self.objects.values_mut() {
            history.last_mut().expect("never empty").is_sealed = true;
        }
    }

    /// Makes one random step. Returns false when the machine has failed.
    fn step(&mut self, store: &RegionStore) -> bool {
        store.write_pending(self.random.u8(..) < 8);
        let ino = self.random.u64(0..OBJECTS);
        let mut known = self.now(ino);
        let old = known.state.bytes.clone().unwrap_or_default();
        let len = match self.random.u8(0..10) {
            0 => self.random.usize(1..100_000),
            _ => self.random.usize(1..9000),
        };
        let bytes: Vec<u8> = std::iter::repeat_with(|| self.random.u8(1..)).take(len).collect();
        match self.random.u8(0..20) {
            0..=4 => {
                store.seal(key(ino), CLIENT, self.random.bool());
                known.is_sealed = true;
                *self.objects.get_mut(&ino).expect("there").last_mut().expect("one") = known;
                true
            }
            5..=13 => {
                let offset =
                    if self.random.bool() { 0 } else { self.random.usize(0..old.len() + 3) };
                let size = self.random.usize(0..old.len() + 50);
                let (change, new) = match self.random.u8(0..3) {
                    0 if size != old.len() => {
                        let mut new = old.clone();
                        new.resize(size, 0);
                        (RegionChange::SetSize { size: size as u64 }, new)
                    }
                    1 => {
                        let new = [&old[..], &bytes].concat();
                        (RegionChange::Append { bytes: &bytes }, new)
                    }
                    _ => {
                        let mut new = old.clone();
                        new.resize(old.len().max(offset + len), 0);
                        new[offset..offset + len].copy_from_slice(&bytes);
                        (RegionChange::Write { offset: offset as u64, bytes: &bytes }, new)
                    }
                };
                if new == old || new.len() > 400_000 {
                    return true;
                }
                known.keep_state(ino, false);
                self.note(ino, known.clone());
                known.change(new);
                let made = store.change_for(Some(CLIENT), key(ino), true, change);
                if made.as_ref().err() == Some(&ChangeError::NoRoom) {
                    panic!("the device is not full");
                }
                self.kept += known.state.versions.len();
                self.note(ino, known);
                made.is_ok()
            }
            14..=15 => {
                let numbers: Vec<u32> = known.state.versions.keys().copied().collect();
                let Some(number) = self.random.choice(&numbers).copied() else { return true };
                let bytes = known.state.versions[&number].clone();
                if bytes == old {
                    return true;
                }
                known.keep_state(ino, true);
                self.note(ino, known.clone());
                known.change(bytes);
                known.is_sealed = true;
                let restored = store.restore_version(key(ino), number);
                if let Ok(restored) = &restored {
                    assert_eq!(restored.map(|state| state.exists), Some(true));
                }
                self.restored += 1;
                self.note(ino, known);
                restored.is_ok()
            }
            16 => {
                let was_there = known.state.bytes.is_some();
                let removed = store.remove(key(ino));
                if let Ok(removed) = removed {
                    assert_eq!(removed, was_there);
                }
                self.note(ino, Known::default());
                removed.is_ok()
            }
            _ => {
                let synced = store.sync_all();
                if synced.is_ok() {
                    for history in self.objects.values_mut() {
                        history.drain(..history.len() - 1);
                    }
                }
                synced.is_ok()
            }
        }
    }
}

#[test]
fn power_cuts_leave_versions_of_an_acknowledged_state() {
    let (mut cuts, mut steps, mut kept, mut restored) = (0, 0, 0, 0);
    for seed in 0..25 {
        let machine = PowerCut::new(DEVICE_LEN);
        let mut model = Model::new(seed);
        let mut random = fastrand::Rng::with_seed(seed + 1000);
        let mut store = open(&machine);
        for _ in 0..12 {
            machine.cut_after(random.u64(1..600));
            while model.step(&store) {
                steps += 1;
            }
            drop(store);
            let survives = random.u8(..);
            machine.cut_power(|| random.u8(..) <= survives);
            cuts += 1;
            // The power may fail again while the store opens.
            if random.bool() {
                machine.cut_after(random.u64(0..100));
                drop(open_device(&machine));
                machine.cut_power(|| random.bool());
            }
            store = open(&machine);
            model.check_after_cut(&store);
            for _ in 0..random.usize(0..30) {
                assert!(model.step(&store), "no step fails with power");
            }
            model.check(&store);
        }
        kept += model.kept;
        restored += model.restored;
    }
    let enough = steps > 3_000 && kept > 3_000 && restored > 200;
    assert!(
        cuts == 300 && enough,
        "{cuts} cuts in {steps} steps, {kept} kept, {restored} restored"
    );
}

#[test]
fn the_death_of_the_process_loses_no_version() {
    for seed in 0..20 {
        let machine = PowerCut::new(DEVICE_LEN);
        let mut model = Model::new(seed);
        for _ in 0..10 {
            let store = open(&machine);
            model.check(&store);
            model.restart();
            for _ in 0..model.random.usize(0..150) {
                assert!(model.step(&store));
            }
            model.check(&store);
            drop(store);
            machine.kill_process();
        }
    }
}

fn write_all(store: &RegionStore, key: (Ino, Piece), bytes: &[u8]) -> Result<(), ChangeError> {
    store.seal(key, CLIENT, true);
    store.change(key, true, RegionChange::SetSize { size: 0 })?;
    store.write_pending(false);
    store.change(key, true, RegionChange::Write { offset: 0, bytes }).map(drop)
}

/// The last change of all stays whole, and versions go before it, the oldest first.
/// Makes an object with its bytes, without a write to the device.
fn write_whole(store: &RegionStore, key: (Ino, Piece), bytes: &[u8]) -> Result<(), ChangeError> {
    store.change(key, true, RegionChange::Replace { bytes }).map(drop)
}

fn fill_device(store: &RegionStore) {
    let bytes = |n: u64| vec![n as u8 | 1; 200_000];
    let key = |n: u64| (Ino(n), keep("3"));
    for n in 0..20 {
        for round in 0..4 {
            write_all(store, key(n), &bytes(n + round)).expect("written");
            store.write_pending(false);
        }
    }
    assert_eq!(store.count_versions(), 60);
    let mut made = 20;
    while store.count_versions() > 0 {
        assert!(made < 2000, "{:?}", store.space());
        write_all(store, key(made), &bytes(made)).expect("versions make room");
        store.write_pending(false);
        made += 1;
    }
    assert_eq!(store.space().versions, 0);
    for n in 0..made {
        let expected = if n < 20 { bytes(n + 3) } else { bytes(n) };
        assert_eq!(read_state(store, 0).bytes, None);
        let mut read = vec![0; expected.len()];
        assert_eq!(store.read_at(key(n), &mut read, 0), Ok(Some(expected.len())));
        assert!(read == expected, "object {n}");
    }
}

#[test]
fn new_bytes_beat_versions_on_a_full_device() {
    let machine = PowerCut::new(64 << 20);
    let store = open(&machine);
    fill_device(&store);
    let full = loop {
        store.write_pending(false);
        let next = (Ino(5000 + store.count_objects() as u64), keep("3"));
        if let Err(error) = write_all(&store, next, &[5; 200_000]) {
            break error;
        }
    };
    assert_eq!(full, ChangeError::NoRoom);
}

/// Versions that gave way to new bytes are on the device again after the death of the process. The
/// new bytes win once more.
#[test]
fn a_start_on_a_full_device_has_room_for_the_journal() {
    let machine = PowerCut::new(64 << 20);
    let mut random = fastrand::Rng::with_seed(5);
    // Much can wait in the journal, and nothing is written until it must be.
    let open = || {
        let limits = RegionLimits { dirty: 64 << 20, cached: 64 << 10, journal_half: 32 << 20 };
        open_limited(&machine, limits).expect("opens")
    };
    let mut store = open();
    let bytes = |n: u64| vec![n as u8 | 1; 200_000];
    let key = |n: u64| (Ino(n), keep("9"));
    for n in 0..25 {
        for round in 0..8 {
            write_all(&store, key(n), &bytes(n + round)).expect("written");
            store.write_pending(false);
        }
    }
    let (mut made, mut starts) = (25, 0);
    loop {
        if random.u8(..8) == 0 {
            store.write_pending(false);
        }
        match write_whole(&store, key(made), &bytes(made)) {
            Ok(()) => made += 1,
            Err(error) => {
                assert_eq!((error, store.count_versions()), (ChangeError::NoRoom, 0));
                break;
            }
        }
        if random.u8(..4) > 0 {
            continue;
        }
        machine.kill_process();
        drop(store);
        store = open();
        starts += 1;
        for n in 0..made {
            let expected = bytes(if n < 25 { n + 7 } else { n });
            let mut read = vec![0; expected.len()];
            assert_eq!(store.read_at(key(n), &mut read, 0), Ok(Some(expected.len())));
            assert!(read == expected, "object {n} after {starts} starts");
        }
    }
    assert!(starts > 10 && made > 100, "{starts} starts, {made} objects");
}

#[test]
fn a_change_waits_for_the_room_of_versions() {
    let machine = PowerCut::new(64 << 20);
    let store = open(&machine);
    store.start_thread().expect("a thread");
    fill_device(&store);
}

#[test]
fn a_state_is_kept_once_its_writers_have_ended() {
    let machine = PowerCut::new(DEVICE_LEN);
    let store = open(&machine);
    let (a, b, key) = (ClientId([1; 16]), ClientId([2; 16]), (Ino(9), keep("10")));
    let write = |by: ClientId, bytes: &[u8]| {
        let change = RegionChange::Append { bytes };
        store.change_for(Some(by), key, true, change).expect("written");
    };
    let sizes = || store.list_versions(key).iter().map(|v| (v.number, v.size)).collect::<Vec<_>>();
    write(a, b"one");
    write(b, b"two");
    store.seal(key, a, false);
    write(a, b"three");
    assert_eq!(sizes(), []);
    store.seal(key, a, false);
    store.seal(key, b, false);
    write(b, b"four");
    write(b, b"five");
    assert_eq!(sizes(), [(1, 11)]);
    // A program that cuts the file to nothing does not wait for another one.
    store.seal(key, a, true);
    store.change_for(Some(a), key, false, RegionChange::SetSize { size: 0 }).expect("cut");
    // An empty state is none.
    store.seal(key, a, true);
    write(a, b"six");
    assert_eq!(sizes(), [(1, 11), (2, 19)]);
    let restored = store.restore_version(key, 1).expect("restored").expect("there");
    assert_eq!(restored.size, 11);
    assert_eq!(sizes(), [(1, 11), (2, 19), (3, 3)]);
    assert!(matches!(store.restore_version(key, 7), Ok(None)));
    assert_eq!(store.read_version(key, 7, &mut [0; 5], 0), Ok(None));
    // A file of the disk keeps what it had, until it is removed.
    let moved = store.move_out(key, |bytes, _| {
        assert_eq!(bytes, b"onetwothree");
        Ok(())
    });
    assert_eq!((moved, sizes().len()), (Ok(true), 4));
    assert_eq!(store.restore_version(key, 1).err(), Some(ChangeError::Absent));
    drop(store);
    let store = open(&machine);
    assert_eq!((store.has_object(key), store.list_versions(key).len()), (false, 4));
    assert_eq!(store.remove(key), Ok(false));
    assert_eq!((store.list_versions(key), store.find_versioned(Ino(9))), (Vec::new(), None));
    store.write_pending(true);
    assert_eq!(store.space().used, 0);
    drop(store);
    assert_eq!(open(&machine).count_versions(), 0);
}
