//! Tiled files: written piece by piece through the client, used as ordinary files on mounts.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::{Duration, Instant};
use tatami_tests::Cluster;
use tatami_tests::files::{bytes_of, get, open, put, stat};
use tatami_tests::job::{Job, NODES, SIZE, tiled_file};
use tatami_tests::model::pattern;
use tatami_wire::Ino;

/// Returns the content of the file after all ranks have written.
fn whole(seed: u8) -> Vec<u8> {
    pattern(seed, 0, SIZE)
}

fn tiled(cluster: &Cluster, name: &str, seed: u8) {
    tiled_file(cluster, name, &whole(seed));
}

#[test]
fn a_tiled_file_is_an_ordinary_file() {
    let cluster = Cluster::start(NODES);
    let mounts: Vec<_> = (0..NODES).map(|node| cluster.mount(node)).collect();
    tiled(&cluster, "f", 1);
    let mut bytes = whole(1);
    for mount in &mounts {
        assert_eq!(stat(mount.join("f")).len(), SIZE as u64);
        assert!(get(mount.join("f")) == bytes, "read on {}", mount.display());
    }
    // Writes in place, across blocks of several ranks, and past the end.
    for (i, mount) in mounts.iter().enumerate() {
        let file = OpenOptions::new().read(true).write(true).open(mount.join("f")).expect("open");
        let new = pattern(10 + i as u8, 0, 5555);
        let at = 7777 * (i + 1);
        file.write_all_at(&new, at as u64).expect("write");
        bytes[at..at + new.len()].copy_from_slice(&new);
        assert!(bytes_of(&file) == bytes, "the writer's own view");
        let end = bytes.len();
        file.write_all_at(&new, end as u64 + 100).expect("write past the end");
        bytes.resize(end + 100, 0);
        bytes.extend(&new);
        assert_eq!(file.metadata().expect("fstat").len(), bytes.len() as u64);
        drop(file);
        for other in &mounts {
            assert!(get(other.join("f")) == bytes, "what {i} wrote, on {}", other.display());
        }
    }
    append(&mounts[1].join("f"), b"the end");
    bytes.extend(b"the end");
    append(&mounts[2].join("f"), b", really");
    bytes.extend(b", really");
    assert!(get(mounts[3].join("f")) == bytes);
    // Zeros in place.
    let file = OpenOptions::new().read(true).write(true).open(mounts[0].join("f")).expect("open");
    let flags = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&file, flags, 12_345, 20_000).expect("punched");
    bytes[12_345..32_345].fill(0);
    file.sync_all().expect("fsync");
    drop(file);
    fs::copy(mounts[2].join("f"), mounts[2].join("copy")).expect("copy");
    for name in ["f", "copy"] {
        assert!(get(mounts[1].join(name)) == bytes, "{name}");
    }
    fs::rename(mounts[3].join("f"), mounts[3].join("g")).expect("rename");
    assert!(get(mounts[0].join("g")) == bytes);
    put(mounts[2].join("over"), "new");
    fs::rename(mounts[2].join("over"), mounts[2].join("g")).expect("rename over it");
    assert_eq!(get(mounts[1].join("g")), b"new");
    gone(&cluster);
    cluster.finish();
}

fn append(path: &Path, bytes: &[u8]) {
    use std::io::Write;
    let mut file = OpenOptions::new().append(true).open(path).expect("open");
    file.write_all(bytes).expect("append");
}

#[allow(clippy::disallowed_methods)] // background work ends without an event
fn pause() {
    std::thread::sleep(Duration::from_millis(50));
}

/// Waits until no node has an object with a number other than 0.
fn gone(cluster: &Cluster) {
    let start = Instant::now();
    loop {
        let mut left = Vec::new();
        for node in 0..NODES {
            let objects = cluster.dir().join(format!("node{node}/objects"));
            for bucket in fs::read_dir(&objects).expect("buckets") {
                let bucket = bucket.expect("a bucket").path();
                let names = fs::read_dir(&bucket).expect("objects");
                left.extend(
                    names
                        .map(|n| n.expect("an object").file_name())
                        .filter(|n| !n.to_string_lossy().ends_with(".00000000")),
                );
            }
        }
        if left.is_empty() {
            return;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "left: {left:?}");
        pause();
    }
}

#[test]
fn a_cut_is_seen_on_all_mounts_and_frees_space() {
    let cluster = Cluster::start(NODES);
    let mounts: Vec<_> = (0..NODES).map(|node| cluster.mount(node)).collect();
    tiled(&cluster, "f", 2);
    let readers: Vec<_> = mounts.iter().map(|mount| open(mount.join("f"))).collect();
    let mut bytes = whole(2);
    for (i, size) in [150_001, 160_000, 1234, 70_000].into_iter().enumerate() {
        let file = OpenOptions::new().write(true).open(mounts[i].join("f")).expect("open");
        file.set_len(size).expect("ftruncate");
        bytes.resize(size as usize, 0);
        for (mount, reader) in mounts.iter().zip(&readers) {
            assert_eq!(reader.metadata().expect("fstat").len(), size, "on {}", mount.display());
            assert!(get(mount.join("f")) == bytes, "cut to {size}, on {}", mount.display());
        }
    }
    // More tiles follow the truncations.
    let job = Job::open(&cluster, Ino(stat(mounts[0].join("f")).ino()));
    let parts = job.write(&whole(3));
    job.publish(parts);
    job.close();
    assert!(get(mounts[2].join("f")) == whole(3));
    cluster.fsck();
    put(mounts[1].join("f"), "short");
    assert_eq!(get(mounts[2].join("f")), b"short");
    gone(&cluster);
    drop(readers);
    cluster.finish();
}

#[test]
fn published_tiles_survive_the_death_of_all_daemons() {
    let cluster = Cluster::start(NODES);
    let mount = cluster.mount(1);
    tiled(&cluster, "f", 4);
    for node in 0..NODES {
        cluster.kill_node(node);
    }
    for node in 0..NODES {
        cluster.start_node(node);
    }
    assert!(get(mount.join("f")) == whole(4));
    fs::remove_file(mount.join("f")).expect("unlink");
    cluster.kill_node(2);
    cluster.start_node(2);
    gone(&cluster);
    cluster.finish();
}

#[test]
fn the_journal_of_a_dead_writer_is_read() {
    let cluster = Cluster::start(NODES);
    let job = Job::create(&cluster, "f");
    let bytes = whole(5);
    job.write_unpublished(&bytes);
    // The job ends without a publication.
    job.close();
    let start = Instant::now();
    let path = cluster.mount(2).join("f");
    while stat(&path).len() < SIZE as u64 {
        assert!(start.elapsed() < Duration::from_secs(60), "{} bytes", stat(&path).len());
        pause();
    }
    assert!(get(&path) == bytes);
    cluster.finish();
}
