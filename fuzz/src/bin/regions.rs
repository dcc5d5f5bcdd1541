//! A region device and its journal, damaged or invented: they are opened, read and changed.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::path::PathBuf;
use tatami_region::class::{RegionNumber, SizeClass};
use tatami_region::journal_record::{JournalRecord, decode_half_head};
use tatami_region::power_cut::PowerCut;
use tatami_region::region_head::{ExtentHead, RegionHead, Superblock};
use tatami_region::{RegionChange, RegionLimits, RegionOptions, RegionStore, open_regions};
use tatami_wire::{ClientId, Ino, Piece};

const DEVICE_LEN: u64 = 64 << 20;
const KEY: (Ino, Piece) = (Ino(7), Piece::FIRST_REGION);
const CLIENT: ClientId = ClientId([0; 16]);

/// An object with at most three versions.
fn versioned_key(ino: u64) -> (Ino, Piece) {
    (Ino(ino), Piece::first_versioned(3 << 10))
}

fn open_machine(machine: &PowerCut, accept_loss: bool) -> Option<RegionStore> {
    open_regions(RegionOptions {
        device: machine.device(),
        path: PathBuf::new(),
        journal: machine.log(),
        journal_path: PathBuf::new(),
        volume: 1,
        node: 0,
        expected: None,
        accept_loss,
        limits: RegionLimits { dirty: 64 << 10, cached: 64 << 10, journal_half: 64 << 10 },
    })
    .ok()
}

fn use_store(store: &RegionStore) {
    for key in store.list_objects(None, 100) {
        let mut bytes = vec![0; 8192];
        let _ = store.read_at(key, &mut bytes, 0);
    }
    let _ = store.change(KEY, true, RegionChange::Write { offset: 3, bytes: b"new" });
    for ino in 4..6 {
        let key = versioned_key(ino);
        for version in store.list_versions(key) {
            let mut bytes = vec![0; 8192];
            let _ = store.read_version(key, version.number, &mut bytes, 0);
            let _ = store.restore_version(key, version.number);
        }
        store.seal(key, CLIENT, true);
        let _ = store.change(key, true, RegionChange::Write { offset: 3, bytes: b"new" });
    }
    let _ = store.remove(versioned_key(5));
    let _ = store.remove(KEY);
    store.write_pending(true);
    let _ = store.describe_trouble();
}

fuzz_target!(|bytes: &[u8]| {
    let _ = Superblock::decode(bytes);
    let _ = ExtentHead::decode(bytes);
    let _ = decode_half_head(bytes);
    let _ = JournalRecord::decode(bytes, 1, 4096);
    if let Some(class) = SizeClass::with_number(bytes.first().map_or(0, |byte| byte % 11)) {
        let _ = RegionHead::decode(bytes, class, RegionNumber { extent: 0, slot: 0 });
    }
    // Each patch: whether it is of the journal, three bytes of offset, a length, and bytes.
    let machine = PowerCut::new(DEVICE_LEN);
    if let Some(store) = open_machine(&machine, false) {
        for ino in 0..4 {
            let change = RegionChange::Append { bytes: &[ino as u8; 5000] };
            let _ = store.change((Ino(ino), Piece::FIRST_REGION), true, change);
        }
        for round in 0..6u8 {
            let key = versioned_key(4 + u64::from(round % 2));
            store.seal(key, CLIENT, true);
            let change = RegionChange::Append { bytes: &[round; 3000] };
            let _ = store.change(key, true, change);
        }
        store.write_pending(bytes.len() % 2 == 0);
    }
    let (log, mut rest) = (machine.log(), bytes);
    while let [which, a, b, c, len, more @ ..] = rest {
        let Some((patch, more)) = more.split_at_checked(usize::from(*len)) else { break };
        let offset = u64::from_le_bytes([*a, *b, *c, 0, 0, 0, 0, 0]);
        match which % 2 {
            0 => _ = log.write_at([patch, &[]], offset % (128 << 10)),
            _ => {
                for (n, byte) in patch.iter().enumerate() {
                    machine.flip_bit(offset + n as u64, *byte);
                }
            }
        }
        rest = more;
    }
    for accept_loss in [false, true] {
        if let Some(store) = open_machine(&machine, accept_loss) {
            use_store(&store);
        }
    }
});
