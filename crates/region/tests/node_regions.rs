//! A device of the kernel, with its journal in a data directory.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use tatami_region::{
    NodeRegions, RegionChange, RegionOpenError, RegionStore, had_region_device, open_node_regions,
};
use tatami_wire::{Ino, Piece};

const PIECE: Piece = Piece(7);

fn make_device(dir: &Path, name: &str) -> NodeRegions {
    let device = dir.join(name);
    File::create(&device).expect("made").set_len(96 << 20).expect("extended");
    NodeRegions { device, volume: 3, node: 0, accept_loss: false }
}

fn write_objects(store: &RegionStore, count: u64) {
    for ino in 0..count {
        let bytes = content_of(ino);
        let change = RegionChange::Write { offset: 0, bytes: &bytes };
        store.change((Ino(ino), PIECE), true, change).expect("written");
    }
}

fn content_of(ino: u64) -> Vec<u8> {
    vec![ino as u8; (ino * 37 % 9000) as usize + 1]
}

fn check_objects(store: &RegionStore, count: u64) {
    assert_eq!(store.count_objects() as u64, count);
    for ino in 0..count {
        let (expected, mut bytes) = (content_of(ino), vec![0; 10_000]);
        let got = store.read_at((Ino(ino), PIECE), &mut bytes, 0).expect("read");
        assert_eq!(got, Some(expected.len()));
        assert!(bytes[..expected.len()] == expected, "object {ino}");
    }
}

#[test]
fn objects_are_there_after_a_close_and_after_the_loss_of_memory() {
    let dir = tempfile::tempdir().expect("a directory");
    let regions = make_device(dir.path(), "device");
    assert!(!had_region_device(dir.path()));
    let store = open_node_regions(dir.path(), &regions).expect("opens");
    assert!(had_region_device(dir.path()));
    let mode = |name: &str| std::fs::metadata(dir.path().join(name)).expect("there").mode() & 0o777;
    let private = ["device", "regions/device", "regions/journal"].map(mode);
    assert_eq!((private, mode("regions")), ([0o600; 3], 0o700));
    write_objects(&store, 2000);
    check_objects(&store, 2000);
    drop(store);
    let store = open_node_regions(dir.path(), &regions).expect("opens");
    check_objects(&store, 2000);
    write_objects(&store, 3000);
    store.sync_all().expect("synced");
    let in_use = open_node_regions(dir.path(), &regions).err().expect("refused");
    assert!(matches!(in_use, RegionOpenError::InUse { .. }), "{in_use}");
    // Another data directory gets a copy of what a killed daemon would leave.
    let copy = tempfile::tempdir().expect("a directory");
    std::fs::create_dir(copy.path().join("regions")).expect("made");
    for name in ["device", "regions/device", "regions/journal"] {
        std::fs::copy(dir.path().join(name), copy.path().join(name)).expect("copied");
    }
    let device = copy.path().join("device");
    let killed = NodeRegions { device, ..regions.clone() };
    check_objects(&open_node_regions(copy.path(), &killed).expect("opens"), 3000);
}

#[test]
fn the_device_of_a_node_is_not_taken_for_another() {
    let dir = tempfile::tempdir().expect("a directory");
    let first = make_device(dir.path(), "first");
    drop(open_node_regions(dir.path(), &first).expect("opens"));
    let second = make_device(dir.path(), "second");
    let empty = open_node_regions(dir.path(), &second).err().expect("refused");
    assert!(matches!(empty, RegionOpenError::Emptied { .. }), "{empty}");
    let accepted = NodeRegions { accept_loss: true, ..second.clone() };
    drop(open_node_regions(dir.path(), &accepted).expect("opens"));
    drop(open_node_regions(dir.path(), &second).expect("is this node's now"));
    let replaced = open_node_regions(dir.path(), &first).err().expect("refused");
    assert!(matches!(replaced, RegionOpenError::Replaced { .. }), "{replaced}");
    let missing = NodeRegions { device: dir.path().join("none"), ..first.clone() };
    let missing = open_node_regions(dir.path(), &missing).err().expect("refused");
    assert!(missing.to_string().contains("cannot open it"), "{missing}");
    let directory = NodeRegions { device: dir.path().to_owned(), ..first };
    let directory = open_node_regions(dir.path(), &directory).err().expect("refused");
    assert!(matches!(directory, RegionOpenError::NotADevice { .. }), "{directory}");
}
