//! Random changes against a model of bytes, with power cuts at any write, deaths of the process,
//! flipped bits and blocks that cannot be written.

use std::collections::BTreeMap;
use std::path::PathBuf;
use tatami_region::class::{BLOCK, EXTENTS_AT, Geometry, REGION_MAX, RegionNumber, SizeClass};
use tatami_region::power_cut::PowerCut;
use tatami_region::{
    ChangeError, RegionChange, RegionLimits, RegionOpenError, RegionOptions, RegionStore,
    open_regions,
};
use tatami_wire::object::{AllocMode, SeekTarget};
use tatami_wire::{Errno, Ino, Piece};

const DEVICE_LEN: u64 = 256 << 20;
const PIECE: Piece = Piece(Piece::FIRST_REGION.0 + 2);

fn limits() -> RegionLimits {
    RegionLimits { dirty: 128 << 10, cached: 64 << 10, journal_half: 512 << 10 }
}

fn options(machine: &PowerCut) -> RegionOptions {
    RegionOptions {
        device: machine.device(),
        path: PathBuf::from("device"),
        journal: machine.log(),
        journal_path: PathBuf::from("journal"),
        volume: 7,
        node: 1,
        expected: None,
        accept_loss: false,
        limits: limits(),
    }
}

fn open(machine: &PowerCut) -> RegionStore {
    open_regions(options(machine)).expect("opens")
}

fn key(ino: u64) -> (Ino, Piece) {
    (Ino(ino), PIECE)
}

fn content(store: &RegionStore, ino: u64) -> Option<Vec<u8>> {
    let size = store.state(key(ino))?.size as usize;
    let mut bytes = vec![0; size + 10];
    let got = store.read_at(key(ino), &mut bytes, 0).expect("read").expect("there");
    assert_eq!(got, size);
    bytes.truncate(size);
    Some(bytes)
}

/// What an object may be after a power cut, the newest last. The first was synced.
type History = Vec<Option<Vec<u8>>>;

struct Model {
    objects: BTreeMap<u64, History>,
    random: fastrand::Rng,
}

enum Step<'a> {
    Change(RegionChange<'a>),
    Remove,
    Sync,
}

impl Model {
    fn new(seed: u64) -> Model {
        let objects = (0..10).map(|ino| (ino, vec![None])).collect();
        Model { objects, random: fastrand::Rng::with_seed(seed) }
    }

    fn now(&self, ino: u64) -> &Option<Vec<u8>> {
        self.objects[&ino].last().expect("never empty")
    }

    fn note(&mut self, ino: u64, state: Option<Vec<u8>>) {
        self.objects.get_mut(&ino).expect("there").push(state);
    }

    /// Checks what a power cut has left, which is durable from now on.
    fn check_after_cut(&mut self, store: &RegionStore) {
        for (ino, history) in &mut self.objects {
            let found = content(store, *ino);
            let lens: Vec<_> = history.iter().map(|h| h.as_ref().map(Vec::len)).collect();
            let found_len = found.as_ref().map(Vec::len);
            assert!(history.contains(&found), "{ino}: {found_len:?} is none of {lens:?}");
            *history = vec![found];
        }
    }

    fn check(&self, store: &RegionStore) {
        for ino in self.objects.keys() {
            let (found, known) = (content(store, *ino), self.now(*ino));
            let lens = [&found, known].map(|bytes| bytes.as_ref().map(Vec::len));
            assert!(found == *known, "object {ino}: {lens:?}");
        }
    }

    /// Makes one random step. Returns false when the machine has failed.
    fn step(&mut self, store: &RegionStore) -> bool {
        store.write_pending(self.random.u8(..) < 8);
        let ino = self.random.u64(0..10);
        let old = self.now(ino).clone();
        let len = match self.random.u8(0..10) {
            0 => self.random.usize(1..150_000),
            1..=3 => self.random.usize(1..20_000),
            _ => self.random.usize(1..4100),
        };
        let bytes: Vec<u8> = std::iter::repeat_with(|| self.random.u8(1..)).take(len).collect();
        let size = old.as_ref().map_or(0, Vec::len);
        let offset = if self.random.bool() { 0 } else { self.random.usize(0..size + 3000) };
        let to = self.random.usize(0..2 * size + 100);
        let modes = [AllocMode::Extend, AllocMode::Keep, AllocMode::Punch, AllocMode::Zero];
        let mode = modes[self.random.usize(0..4)];
        let step = match self.random.u8(0..20) {
            0..=8 => Step::Change(RegionChange::Write { offset: offset as u64, bytes: &bytes }),
            9..=12 => Step::Change(RegionChange::Append { bytes: &bytes }),
            13 | 14 => Step::Change(RegionChange::SetSize { size: to as u64 }),
            15 => Step::Change(RegionChange::Allocate {
                mode,
                offset: offset as u64,
                len: len as u64,
            }),
            16 | 17 => Step::Remove,
            _ => Step::Sync,
        };
        match step {
            Step::Change(change) => {
                let mut image = old.clone().unwrap_or_default();
                apply(&mut image, change);
                if image.len() as u64 > REGION_MAX {
                    return true;
                }
                let made = store.change(key(ino), true, change);
                if made.as_ref().err() == Some(&ChangeError::NoRoom) {
                    return true;
                }
                if let (Err(_), RegionChange::Allocate { mode: AllocMode::Zero, .. }) =
                    (&made, change)
                {
                    // One record of two may be there.
                    let mut half = old.clone().unwrap_or_default();
                    let end = half.len();
                    apply(&mut half, change);
                    half.truncate(end);
                    self.note(ino, Some(half));
                }
                self.note(ino, Some(image));
                made.is_ok()
            }
            Step::Remove => {
                let removed = store.remove(key(ino));
                if let Ok(was_there) = removed {
                    assert_eq!(was_there, old.is_some());
                }
                self.note(ino, None);
                removed.is_ok()
            }
            Step::Sync => {
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

fn apply(image: &mut Vec<u8>, change: RegionChange<'_>) {
    let size = image.len();
    match change {
        RegionChange::Write { offset, bytes } => {
            let end = offset as usize + bytes.len();
            image.resize(size.max(end), 0);
            image[offset as usize..end].copy_from_slice(bytes);
        }
        RegionChange::Append { bytes } => image.extend_from_slice(bytes),
        RegionChange::SetSize { size } => image.resize(size as usize, 0),
        RegionChange::Replace { bytes } => *image = bytes.to_vec(),
        RegionChange::Allocate { mode, offset, len } => {
            let end = (offset + len) as usize;
            if matches!(mode, AllocMode::Punch | AllocMode::Zero) && (offset as usize) < size {
                image[offset as usize..end.min(size)].fill(0);
            }
            if matches!(mode, AllocMode::Extend | AllocMode::Zero) {
                image.resize(size.max(end), 0);
            }
        }
    }
}

#[test]
fn power_cuts_at_any_write_leave_an_acknowledged_state() {
    let (mut cuts, mut steps) = (0, 0);
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
                drop(open_regions(options(&machine)));
                machine.cut_power(|| random.bool());
            }
            store = open(&machine);
            model.check_after_cut(&store);
            for _ in 0..random.usize(0..30) {
                assert!(model.step(&store), "no step fails with power");
            }
            model.check(&store);
        }
    }
    assert!(cuts == 300 && steps > 3_000, "{cuts} cuts in {steps} steps");
}

#[test]
fn the_death_of_the_process_loses_nothing() {
    for seed in 0..20 {
        let machine = PowerCut::new(DEVICE_LEN);
        let mut model = Model::new(seed);
        for _ in 0..10 {
            let store = open(&machine);
            model.check(&store);
            for _ in 0..model.random.usize(0..150) {
                assert!(model.step(&store));
            }
            drop(store);
            machine.kill_process();
        }
    }
}

#[test]
fn a_flipped_bit_is_an_error_and_never_other_bytes() {
    let (mut noticed, mut harmless) = (0, 0);
    for seed in 0..60 {
        let machine = PowerCut::new(DEVICE_LEN);
        let mut model = Model::new(seed);
        let store = open(&machine);
        for _ in 0..60 {
            assert!(model.step(&store));
        }
        drop(store);
        // From here on the journal is empty, so regions alone have the objects.
        drop(open(&machine));
        let mut random = fastrand::Rng::with_seed(seed);
        let blocks = machine.written_blocks();
        let block = blocks[random.usize(0..blocks.len())];
        machine.flip_bit(block + random.u64(0..BLOCK as u64), random.u8(0..8));
        let Ok(store) = open_regions(options(&machine)) else {
            noticed += 1;
            continue;
        };
        for ino in 0..10 {
            let size = store.state(key(ino)).map_or(0, |state| state.size as usize);
            let mut bytes = vec![0; size];
            match store.read_at(key(ino), &mut bytes, 0) {
                // The journal has the object still, or its head is the damaged one: the shard's
                // size of the file shows that bytes are missing.
                Ok(None) => noticed += usize::from(model.now(ino).is_some()),
                Ok(Some(_)) => {
                    let known = model.objects[&ino].contains(&Some(bytes));
                    assert!(known, "seed {seed}: object {ino} has bytes that it never had");
                    harmless += 1;
                }
                Err(errno) => {
                    assert_eq!(errno, Errno::EIO);
                    assert!(!store.describe_trouble().is_empty());
                    noticed += 1;
                }
            }
        }
    }
    assert!(noticed > 10 && harmless > 100, "{noticed} noticed, {harmless} harmless");
}

#[test]
fn regions_that_cannot_be_written_are_left_out() {
    let machine = PowerCut::new(DEVICE_LEN);
    let store = open(&machine);
    let write = |store: &RegionStore, ino, byte| {
        let bytes = vec![byte; 5000];
        store.change(key(ino), true, RegionChange::Write { offset: 0, bytes: &bytes })
    };
    write(&store, 1, 1).expect("written");
    store.write_pending(true);
    let blocks = machine.written_blocks();
    // The last ones are the second superblock and the second head of the extent.
    let first = blocks[blocks.len() - 3];
    // The next blocks of bytes behind the first object, which has two.
    machine.break_blocks((1..3).map(|n| first + n * BLOCK as u64).collect());
    write(&store, 2, 2).expect("written");
    store.write_pending(true);
    store.write_pending(true);
    assert!(store.describe_trouble()[0].contains("cannot be written"));
    drop(store);
    let store = open(&machine);
    assert_eq!(content(&store, 1), Some(vec![1; 5000]));
    assert_eq!(content(&store, 2), Some(vec![2; 5000]));
}

/// The journal is the only place of these bytes until a region has them.
#[test]
fn a_device_that_cannot_be_written_while_it_opens_loses_nothing() {
    let machine = PowerCut::new(DEVICE_LEN);
    let store = open(&machine);
    let bytes = vec![5; 5000];
    store.change(key(1), true, RegionChange::Write { offset: 0, bytes: &bytes }).expect("written");
    drop(store);
    machine.kill_process();
    machine.break_blocks((EXTENTS_AT..DEVICE_LEN).step_by(BLOCK).collect());
    let error = open_regions(options(&machine)).err().expect("nothing can be written");
    assert!(error.to_string().contains("write what the journal has"), "{error}");
    // The first regions cannot be written, more of them than there are passes at least.
    let geometry = Geometry::for_device(DEVICE_LEN).expect("long enough");
    let class = SizeClass::for_size(5000).expect("fits");
    let place = |slot| geometry.region_offset(class, RegionNumber { extent: 0, slot });
    machine.break_blocks((0..5).map(place).collect());
    drop(open(&machine));
    machine.kill_process();
    machine.break_blocks(Vec::new());
    assert_eq!(content(&open(&machine), 1), Some(bytes));
}

#[test]
fn a_full_device_says_so_and_keeps_what_it_has() {
    let machine = PowerCut::new(64 << 20);
    let store = open(&machine);
    let bytes = vec![9; REGION_MAX as usize / 8];
    let mut made = 0;
    let full = loop {
        store.write_pending(false);
        match store.change(key(made), true, RegionChange::Append { bytes: &bytes[..200_000] }) {
            Ok(_) => made += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(full, ChangeError::NoRoom);
    assert!(!store.has_object(key(made)), "an object without bytes is left");
    assert!(store.space().used * 10 > store.space().total * 8, "{:?}", store.space());
    assert!((0..made).all(|ino| content(&store, ino) == Some(vec![9; 200_000])));
    for ino in 0..made / 2 {
        assert!(store.remove(key(ino)).expect("removed"));
    }
    store.write_pending(true);
    store.write_pending(true);
    let again = store.change(key(999), true, RegionChange::Append { bytes: &bytes[..200_000] });
    assert!(again.is_ok());
    store.write_pending(true);
    // A change that no region can hold leaves the object as it was.
    let far = RegionChange::Write { offset: REGION_MAX, bytes: &[1] };
    assert_eq!(store.change(key(999), false, far).err(), Some(ChangeError::NoRoom));
    assert_eq!(content(&store, 999), Some(vec![9; 200_000]));
    assert_eq!(store.change(key(12_345), false, far).err(), Some(ChangeError::Absent));
}

#[test]
fn a_device_without_superblock_gets_it_from_its_extents() {
    let machine = PowerCut::new(DEVICE_LEN);
    let store = open(&machine);
    let id = store.device_id();
    store.change(key(5), true, RegionChange::Append { bytes: b"kept" }).expect("written");
    store.write_pending(true);
    drop(store);
    machine.erase_block(0);
    machine.erase_block(DEVICE_LEN - BLOCK as u64);
    let store = open(&machine);
    assert_eq!((store.device_id(), content(&store, 5)), (id, Some(b"kept".to_vec())));
}

#[test]
fn other_devices_are_refused() {
    let refused = |machine: &PowerCut, change: fn(&mut RegionOptions)| {
        let mut options = options(machine);
        change(&mut options);
        open_regions(options).err().expect("refused")
    };
    let machine = PowerCut::new(DEVICE_LEN);
    let lost = refused(&machine, |o| o.expected = Some(5));
    assert!(matches!(lost, RegionOpenError::Emptied { .. }), "{lost}");
    drop(open(&machine));
    let other = refused(&machine, |o| o.node = 2);
    assert!(matches!(other, RegionOpenError::OtherNode { volume: 7, node: 1, .. }), "{other}");
    let replaced = refused(&machine, |o| o.expected = Some(5));
    assert!(matches!(replaced, RegionOpenError::Replaced { .. }), "{replaced}");
    let short = refused(&PowerCut::new(1 << 20), |_| {});
    assert!(matches!(short, RegionOpenError::TooShort { has: 1, .. }), "{short}");
    let foreign = PowerCut::new(DEVICE_LEN);
    let mut writer = foreign.device().make_writer(BLOCK).expect("a writer");
    writer.memory_mut()[100] = 1;
    let part = tatami_region::block_device::WritePart { from: 0, len: BLOCK, to: 0 };
    writer.write_parts(&[part]).pop().expect("one").expect("written");
    let foreign = refused(&foreign, |_| {});
    assert!(matches!(foreign, RegionOpenError::Foreign { .. }), "{foreign}");
}

#[test]
fn a_journal_that_is_missing_or_damaged_is_an_error() {
    let machine = PowerCut::new(DEVICE_LEN);
    let store = open(&machine);
    store.change(key(1), true, RegionChange::Append { bytes: b"in a region" }).expect("written");
    store.write_pending(true);
    store.change(key(2), true, RegionChange::Append { bytes: b"in the journal" }).expect("written");
    store.change(key(3), true, RegionChange::Append { bytes: b"behind it" }).expect("written");
    store.sync_all().expect("synced");
    store.change(key(4), true, RegionChange::Append { bytes: b"and last" }).expect("written");
    drop(store);
    let log = machine.log();
    // The head of a half, and a record that a later one says was synced.
    for (offset, what) in [(20, "head"), (BLOCK as u64 + 70, "record")] {
        let mut byte = [0];
        log.read_at(&mut byte, offset).expect("read");
        log.write_at([&[byte[0] ^ 4], &[]], offset).expect("written");
        let refused = open_regions(options(&machine)).err().expect(what);
        assert!(matches!(refused, RegionOpenError::JournalDamaged { .. }), "{what}: {refused}");
        log.write_at([&byte, &[]], offset).expect("written");
    }
    let without = RegionOptions { journal: PowerCut::new(DEVICE_LEN).log(), ..options(&machine) };
    let refused = open_regions(without).err().expect("refused");
    assert!(matches!(refused, RegionOpenError::JournalDamaged { .. }), "{refused}");
    let journal = PowerCut::new(DEVICE_LEN).log();
    let accepted = RegionOptions { journal, accept_loss: true, ..options(&machine) };
    let store = open_regions(accepted).expect("opens");
    assert_eq!(content(&store, 1), Some(b"in a region".to_vec()));
    assert_eq!(content(&store, 2), None);
}

#[test]
fn a_thread_writes_while_callers_go_on() {
    let machine = PowerCut::new(DEVICE_LEN);
    let store = open(&machine);
    store.start_thread().expect("a thread");
    std::thread::scope(|scope| {
        for caller in 0..4u64 {
            let store = &store;
            scope.spawn(move || {
                for turn in 0..300u64 {
                    let ino = caller * 1000 + turn % 20;
                    let bytes = vec![turn as u8; 3000 + 10 * turn as usize];
                    let change = RegionChange::Write { offset: 0, bytes: &bytes };
                    store.change(key(ino), true, change).expect("written");
                    let mut back = vec![0; bytes.len()];
                    store.read_at(key(ino), &mut back, 0).expect("read");
                    assert_eq!(back, bytes);
                    if turn % 7 == 0 {
                        store.remove(key(ino)).expect("removed");
                    }
                }
            });
        }
    });
    let there: Vec<_> = store.list_objects(None, 1000);
    store.close();
    drop(store);
    let store = open(&machine);
    assert_eq!(store.list_objects(None, 1000), there);
    let (some, rest) = (store.list_objects(None, 3), store.list_objects(Some(there[2]), 1000));
    assert_eq!([some, rest].concat(), there);
    let state = store.state(there[0]).expect("there");
    assert_eq!(store.seek(there[0], SeekTarget::Hole, 0), Ok(Some(state.size)));
    assert_eq!(store.seek(there[0], SeekTarget::Data, state.size), Err(Errno::ENXIO));
}

#[test]
fn an_object_that_moves_out_is_kept_elsewhere_first() {
    let machine = PowerCut::new(DEVICE_LEN);
    let store = open(&machine);
    store.change(key(1), true, RegionChange::Append { bytes: b"bytes" }).expect("written");
    let refused = store.move_out(key(1), |_, _| Err(Errno::ENOSPC));
    assert_eq!((refused, content(&store, 1)), (Err(Errno::ENOSPC), Some(b"bytes".to_vec())));
    let mut kept = Vec::new();
    let moved = store.move_out(key(1), |bytes, state| {
        assert_eq!(state.size, 5);
        kept.extend_from_slice(bytes);
        Ok(())
    });
    assert_eq!((moved, &kept[..], content(&store, 1)), (Ok(true), &b"bytes"[..], None));
    assert_eq!(store.move_out(key(1), |_, _| Ok(())), Ok(false));
}
