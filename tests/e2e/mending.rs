//! A volume of several nodes with damaged records: `fsck` reports the damage, `fsck --repair`
//! repairs it, and intact records stay as they are, also while programs work on the volume.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tatami_meta::{FjallStore, Store};
use tatami_tests::Cluster;
use tatami_tests::command::{Said, ask, wide_number};
use tatami_tests::files::{get, names, pick_mount, put};
use tatami_tests::process::wait_ms;
use tatami_tests::seed::{Rng, scaled};
use tatami_wire::{ExecutorId, Ino, NodeId, SHARDS_MAX, ShardMap};

/// Directories in which programs work, and files that they move.
const DIRS: u32 = 6;
const TOKENS: u32 = 16;
/// Operations of all programs during which checks must find nothing.
const BETWEEN: u64 = 2000;
/// Number of interrupted repairs.
const BROKEN_OFF: u64 = 6;
/// Exit codes of fsck(8).
const CLEAN: Option<i32> = Some(0);
const MENDED: Option<i32> = Some(1);
const LEFT: Option<i32> = Some(4);
// Offsets in the record of an inode, and the kind of a directory in an entry.
const NLINK: usize = 4;
const PARENT: usize = 48;
const DIR: u8 = 2;

/// The records of all nodes, while no daemon runs. Keys and values are as docs/reference/formats.md
/// draws them.
struct Records {
    stores: Vec<FjallStore>,
}

impl Records {
    fn open(cluster: &Cluster) -> Records {
        let path = |node| cluster.dir().join(format!("node{node}/meta/0000"));
        let open = |node| {
            FjallStore::open(&path(node), tatami_meta::StoreOptions::default())
                .expect("the store opens")
        };
        Records { stores: (0..cluster.nodes()).map(open).collect() }
    }

    /// Returns the node that has a record.
    fn holder(&self, key: &[u8]) -> Option<usize> {
        self.stores.iter().position(|store| store.get(key).expect("reads").is_some())
    }

    fn put(&mut self, node: usize, key: &[u8], value: Option<Vec<u8>>) {
        let store = &mut self.stores[node];
        store.commit(&[(key.to_vec(), value)]).expect("it is written");
        store.sync().expect("it is written");
    }

    fn remove(&mut self, key: &[u8]) {
        let node = self.holder(key).expect("it is there");
        self.put(node, key, None);
    }

    fn patch(&mut self, key: &[u8], at: usize, bytes: &[u8]) {
        let node = self.holder(key).expect("it is there");
        let mut value = self.stores[node].get(key).expect("reads").expect("it is there");
        value[at..at + bytes.len()].copy_from_slice(bytes);
        self.put(node, key, Some(value));
    }

    /// Returns the numbers of the partitions with entries of a directory.
    fn parts(&self, dir: u64) -> BTreeSet<u64> {
        let mut parts = BTreeSet::new();
        for store in &self.stores {
            let mut visit = |key: &[u8], _: &[u8]| {
                let part = u64::from_be_bytes(*key[1..].first_chunk().expect("a number"));
                // A partition has its directory's number on another shard.
                if Ino(part).allocating_shard() == Ino(dir).allocating_shard()
                    && Ino(part).counter() == Ino(dir).counter()
                {
                    parts.insert(part);
                }
                ControlFlow::Continue(())
            };
            store.scan(b"E", b"E", &mut visit).expect("reads");
        }
        parts
    }

    /// Returns the key of a directory's entry, and the node that has it.
    fn entry(&self, dir: u64, name: &str) -> (usize, Vec<u8>) {
        let prefix = [&b"E"[..], &dir.to_be_bytes()].concat();
        for (node, store) in self.stores.iter().enumerate() {
            let mut found = None;
            let mut visit = |key: &[u8], _: &[u8]| match &key[17..] == name.as_bytes() {
                true => {
                    found = Some(key.to_vec());
                    ControlFlow::Break(())
                }
                false => ControlFlow::Continue(()),
            };
            store.scan(&prefix, &prefix, &mut visit).expect("reads");
            if let Some(key) = found {
                return (node, key);
            }
        }
        panic!("directory {dir} has no {name}")
    }
}

fn inode(ino: u64) -> Vec<u8> {
    [&b"I"[..], &ino.to_be_bytes()].concat()
}

fn number(path: impl AsRef<Path>) -> u64 {
    fs::symlink_metadata(path).expect("it is there").ino()
}

fn fsck(cluster: &Cluster, options: &[&str]) -> (Said, Vec<Value>) {
    let said = ask(cluster.command("fsck").args(["--json"]).args(options));
    let report: Value = serde_json::from_str(&said.out).unwrap_or_else(|e| panic!("{e}: {said:?}"));
    let findings = report["findings"].as_array().expect("a list").clone();
    (said, findings)
}

/// Returns the node with the record of an inode.
fn home(map: &ShardMap, path: &Path) -> NodeId {
    map.owner(Ino(number(path)).owner_shard()).expect("there is such a shard").node
}

/// Makes a directory with its record on a node that `is_right` accepts. The file in it makes the
/// directory move there.
fn dir_on(map: &ShardMap, parent: &Path, name: &str, is_right: impl Fn(NodeId) -> bool) -> PathBuf {
    for n in 0.. {
        let path = parent.join(format!("{name}{n}"));
        fs::create_dir(&path).expect("mkdir");
        if is_right(home(map, &path)) {
            put(path.join("inside"), "inside");
            return path;
        }
        fs::remove_dir(&path).expect("rmdir");
    }
    unreachable!("there is no end of numbers")
}

/// Undamaged files and their contents.
type Files = BTreeMap<PathBuf, Vec<u8>>;

fn furnish(root: &Path) -> Files {
    let mut files = BTreeMap::new();
    for n in 0..8 {
        let dir = root.join(format!("sound{n}"));
        fs::create_dir(&dir).expect("mkdir");
        for k in 0..8 {
            let (path, bytes) = (dir.join(format!("f{k}")), format!("{k} of {n}").repeat(5000));
            put(&path, &bytes);
            files.insert(path, bytes.into_bytes());
        }
    }
    files
}

fn assert_untouched(files: &Files) {
    for (path, bytes) in files {
        assert_eq!(&get(path), bytes, "{}", path.display());
    }
}

/// The damaged inodes, by path before the damage.
struct Broken {
    /// A directory without a record.
    gone: PathBuf,
    /// A file with a link count of seven.
    counted: PathBuf,
    /// A file without a name.
    nameless: PathBuf,
    /// A file with an entry of the kind of a directory.
    kind: PathBuf,
    /// A directory with a parent pointer that leads elsewhere.
    adrift: PathBuf,
    /// A directory, and its second name.
    twice: (PathBuf, PathBuf),
    /// A directory that lies in its own subdirectory.
    ring: PathBuf,
    /// The inode numbers of all of them, and of their parents.
    numbers: BTreeMap<PathBuf, u64>,
}

/// Makes inodes and damages them, one of each kind, where name and inode are on different nodes.
/// The volume is down meanwhile.
fn damage(cluster: &Cluster) -> Broken {
    let root = cluster.mount(0);
    let nodes: Vec<_> = (0..cluster.nodes()).map(NodeId).map(ExecutorId::first_of_node).collect();
    let map = ShardMap::with_even_blocks(1, SHARDS_MAX, &nodes).expect("as the volume is made");
    let elsewhere = |node: NodeId| node != home(&map, &root);
    let far = dir_on(&map, &root, "far", elsewhere);
    let not_far = |node: NodeId| node != home(&map, &far);
    let near = dir_on(&map, &root, "near", not_far);
    let carried = |name: &str| {
        let (from, to) = (near.join(name), far.join(name));
        put(&from, name.repeat(1000));
        fs::rename(&from, &to).expect("rename");
        to
    };
    let gone = dir_on(&map, &root, "gone", elsewhere);
    fs::remove_file(gone.join("inside")).expect("removed");
    let ring = dir_on(&map, &far, "ring", not_far);
    let inner = dir_on(&map, &ring, "inner", |_| true);
    // Entries to be changed: other names of a file.
    let round = inner.join("round");
    fs::hard_link(near.join("inside"), &round).expect("link");
    let twice = (dir_on(&map, &near, "twice", |_| true), far.join("twice"));
    fs::hard_link(near.join("inside"), &twice.1).expect("link");
    let mut broken = Broken {
        gone,
        counted: carried("counted"),
        nameless: carried("nameless"),
        kind: carried("kind"),
        adrift: dir_on(&map, &far, "adrift", not_far),
        twice,
        ring,
        numbers: BTreeMap::new(),
    };
    let Broken { gone, counted, nameless, kind, adrift, twice, ring, .. } = &broken;
    let all = [gone, counted, nameless, kind, adrift, &twice.0, ring, &inner, &near, &far, &root];
    let shared = near.join("inside");
    let numbers: BTreeMap<PathBuf, u64> =
        all.into_iter().chain([&shared]).map(|path| (path.clone(), number(path))).collect();
    cluster.down();
    let mut records = Records::open(cluster);
    let ino = |path: &PathBuf| numbers[path];
    let entry = |records: &Records, path: &Path| {
        let dir = numbers[path.parent().expect("it lies somewhere")];
        records.entry(dir, path.file_name().and_then(|name| name.to_str()).expect("text"))
    };
    records.remove(&inode(ino(gone)));
    records.patch(&inode(ino(counted)), NLINK, &[7]);
    let (_, key) = entry(&records, nameless);
    records.remove(&key);
    let (_, key) = entry(&records, kind);
    records.patch(&key, 1, &[DIR]);
    records.patch(&inode(ino(adrift)), PARENT, &ino(&near).to_le_bytes());
    let leads_to = |ino: u64| Some([&[1, DIR][..], &ino.to_le_bytes()].concat());
    let (node, key) = entry(&records, &twice.1);
    records.put(node, &key, leads_to(ino(&twice.0)));
    let (node, key) = entry(&records, &round);
    records.put(node, &key, leads_to(ino(ring)));
    let (_, key) = entry(&records, ring);
    records.remove(&key);
    records.patch(&inode(ino(ring)), PARENT, &ino(&inner).to_le_bytes());
    drop(records);
    cluster.up();
    broken.numbers = numbers;
    broken
}

impl Broken {
    /// Checks that the findings are those of the damage, and no others.
    fn assert_are_these(&self, findings: &[Value]) {
        let known: BTreeSet<u64> = self.numbers.values().copied().collect();
        for finding in findings {
            let ino = wide_number(&finding["ino"]);
            assert!(known.contains(&ino), "that was right: {finding}");
        }
    }

    fn assert_all_found(&self, findings: &[Value]) {
        let found: BTreeSet<u64> = findings.iter().map(|f| wide_number(&f["ino"])).collect();
        let Broken { gone, counted, nameless, kind, adrift, twice, .. } = self;
        for path in [gone, counted, nameless, kind, adrift, &twice.0] {
            assert!(found.contains(&self.numbers[path]), "{}: {findings:#?}", path.display());
        }
    }

    fn assert_mended(&self, root: &Path) {
        assert!(fs::symlink_metadata(&self.gone).is_err(), "a name of nothing");
        assert_eq!(fs::metadata(&self.counted).expect("stat").nlink(), 1);
        for path in [&self.counted, &self.kind] {
            let name = path.file_name().and_then(|name| name.to_str()).expect("text");
            assert_eq!(get(path), name.repeat(1000).into_bytes(), "{name}");
        }
        let lost = root.join("lost+found");
        let rescued = |path: &PathBuf| lost.join(format!("#{}", Ino(self.numbers[path])));
        assert_eq!(get(rescued(&self.nameless)), "nameless".repeat(1000).into_bytes());
        assert!(!self.nameless.exists());
        let far = self.adrift.parent().expect("it lies somewhere");
        assert_eq!(number(self.adrift.join("..")), number(far));
        assert!(self.twice.0.exists() && !self.twice.1.exists(), "one name");
        assert_eq!(get(self.twice.0.join("inside")), b"inside");
        // One of the two directories of the loop is in lost+found, and the other one in it.
        let found = names(&lost);
        assert_eq!(found.len(), 2, "{found:?}");
        let inner = self.numbers.keys().find(|path| path.parent() == Some(&self.ring));
        let inner = inner.expect("it was noted");
        let inside = match rescued(&self.ring).exists() {
            true => rescued(&self.ring).join("inside"),
            false => rescued(inner).join("round").join("inside"),
        };
        assert_eq!(get(inside), b"inside");
    }
}

#[test]
fn what_is_broken_between_nodes_is_told_and_mended() {
    let cluster = Cluster::start(3);
    let files = furnish(&cluster.mount(0));
    let broken = damage(&cluster);
    let (said, findings) = fsck(&cluster, &[]);
    assert_eq!(said.code, LEFT, "{findings:#?}");
    broken.assert_are_these(&findings);
    broken.assert_all_found(&findings);
    assert!(findings.iter().all(|finding| finding["repaired"] == false));
    let (said, findings) = fsck(&cluster, &["--repair"]);
    assert_eq!(said.code, MENDED, "{findings:#?}");
    broken.assert_are_these(&findings);
    broken.assert_all_found(&findings);
    let removed = findings.iter().any(|f| {
        let what = f["what"].as_str().unwrap_or_default();
        wide_number(&f["ino"]) == broken.numbers[&broken.gone] && what.contains("entry \"gone")
    });
    assert!(removed, "it tells which entry was removed: {findings:#?}");
    let (said, findings) = fsck(&cluster, &[]);
    assert_eq!((said.code, &findings[..]), (CLEAN, &[][..]));
    for node in 0..cluster.nodes() {
        let there = |path: &PathBuf| {
            let below = path.strip_prefix(cluster.mount(0)).expect("below the mount");
            cluster.mount(node).join(below)
        };
        assert_untouched(&files.iter().map(|(path, bytes)| (there(path), bytes.clone())).collect());
    }
    broken.assert_mended(&cluster.mount(0));
    cluster.finish();
}

/// A repair may be interrupted, and daemons may die meanwhile: the next repair does the rest.
#[test]
fn a_repair_that_is_broken_off_does_no_harm() {
    let cluster = Cluster::start(3);
    let root = cluster.mount(0);
    let files = furnish(&root);
    let broken = damage(&cluster);
    let mut rng = Rng::with_seed(cluster.seed());
    for round in 0..scaled(BROKEN_OFF) {
        let mut fsck = cluster.command("fsck");
        fsck.arg("--repair").stdout(Stdio::null()).stderr(Stdio::null());
        let mut repair = fsck.spawn().expect("it starts");
        wait_ms(rng.u64(..300));
        if round % 2 == 0 {
            let victim = rng.u16(..cluster.nodes());
            cluster.kill_node(victim);
            cluster.start_node(victim);
            // The repair waits for absent nodes; its result is checked below.
            repair.wait().expect("it ends");
        } else {
            repair.kill().expect("it is ours");
            repair.wait().expect("it has ended");
        }
    }
    let (said, findings) = fsck(&cluster, &["--repair"]);
    assert!([CLEAN, MENDED].contains(&said.code), "{said:?}");
    broken.assert_are_these(&findings);
    let (said, findings) = fsck(&cluster, &[]);
    assert_eq!((said.code, &findings[..]), (CLEAN, &[][..]));
    assert_untouched(&files);
    broken.assert_mended(&root);
    cluster.finish();
}

/// Split directories lose their records, or one of a partition: the repair brings all names back.
#[test]
fn directories_that_have_split_are_put_together_again() {
    const FILES: usize = 1500;
    let cluster = Cluster::start(3);
    let (root, other) = (cluster.mount(0), cluster.mount(1));
    let dirs = [root.join("headless"), root.join("torn")];
    for dir in &dirs {
        fs::create_dir(dir).expect("mkdir");
        for n in 0..FILES {
            let mount = pick_mount([&root, &other], n, FILES);
            let dir = mount.join(dir.strip_prefix(&root).expect("it is on this mount"));
            put(dir.join(format!("file{n}")), format!("{n}"));
        }
    }
    let numbers = dirs.each_ref().map(number);
    cluster.fsck();
    cluster.down();
    let mut records = Records::open(&cluster);
    let parts = numbers.map(|ino| records.parts(ino));
    assert!(parts.iter().all(|parts| parts.len() > 1), "both have split: {parts:?}");
    records.remove(&inode(numbers[0]));
    let part = parts[1].iter().find(|part| **part != numbers[1]).expect("there are others");
    records.remove(&inode(*part));
    drop(records);
    cluster.up();
    let (said, findings) = fsck(&cluster, &[]);
    assert_eq!(said.code, LEFT, "{findings:#?}");
    let (said, findings) = fsck(&cluster, &["--repair"]);
    assert_eq!(said.code, MENDED, "{findings:#?}");
    assert!(findings.len() < 10, "nothing else is touched: {findings:#?}");
    let all: BTreeSet<_> = (0..FILES).map(|n| format!("file{n}")).collect();
    for dir in &dirs {
        assert_eq!(names(dir).into_iter().collect::<BTreeSet<_>>(), all);
        for n in 0..FILES {
            assert_eq!(get(dir.join(format!("file{n}"))), format!("{n}").into_bytes());
        }
        assert_eq!(number(dir.join("..")), number(&root));
        fs::remove_dir_all(dir).expect("all of it is removed");
    }
    assert_eq!(names(&root), [""; 0]);
    cluster.finish();
}

/// Does one random operation of a program on names that other workers use, too.
fn step(root: &Path, worker: u16, rng: &mut Rng) -> std::io::Result<()> {
    let place = |rng: &mut Rng| root.join(format!("work{}", rng.u32(..DIRS)));
    let (from, to) = (place(rng), place(rng));
    let name = format!("token{}", rng.u32(..TOKENS));
    let (own, sub) = (format!("link{worker}"), format!("sub{}", rng.u32(..3)));
    match rng.u32(..100) {
        0..40 => fs::rename(from.join(&name), to.join(&name)),
        40..50 => {
            fs::hard_link(from.join(&name), to.join(&own))?;
            fs::remove_file(to.join(own))
        }
        50..60 => fs::create_dir(from.join(sub)),
        60..70 => fs::remove_dir(from.join(sub)),
        70..80 => fs::rename(from.join(&sub), to.join(&sub)),
        80..85 => fs::write(from.join(&sub).join(&own), &own),
        85..90 => fs::remove_file(from.join(&sub).join(&own)),
        // Into a directory that splits meanwhile.
        _ => fs::write(root.join("grows").join(format!("{worker}-{}", rng.u32(..))), "grown"),
    }
}

/// Runs random operations of programs on all mounts while `body` runs.
fn at_work(cluster: &Cluster, body: impl FnOnce(&AtomicU64)) {
    let (done, steps) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut rng = Rng::with_seed(cluster.seed());
    std::thread::scope(|scope| {
        for worker in 0..2 * cluster.nodes() {
            let root = cluster.mount(worker % cluster.nodes());
            let mut rng = Rng::with_seed(rng.u64(..));
            let (done, steps) = (&done, &steps);
            scope.spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    // The operation fails if another worker is faster.
                    let _ = step(&root, worker, &mut rng);
                    steps.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        // Workers end even if `body` panics.
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| body(&steps)));
        done.store(true, Ordering::Relaxed);
        if let Err(panic) = ended {
            std::panic::resume_unwind(panic);
        }
    });
    println!("{} operations", steps.into_inner());
}

/// Checks again and again, while so much happens that a check without a second look would find
/// faults.
fn assert_finds_nothing(cluster: &Cluster, steps: &AtomicU64) {
    let enough = steps.load(Ordering::Relaxed) + BETWEEN;
    let mut dispelled = 0;
    for look in 0.. {
        let (said, findings) = fsck(cluster, &["--repair"]);
        assert_eq!(said.code, CLEAN, "all is right: {findings:#?}");
        let report: Value = serde_json::from_str(&said.out).expect("JSON");
        dispelled += report["dispelled"].as_u64().expect("a number");
        if look >= 2 && steps.load(Ordering::Relaxed) >= enough {
            return println!("{} checks, {dispelled} doubts were dispelled", look + 1);
        }
    }
}

#[test]
fn a_volume_in_use_is_mended_and_what_is_right_is_let_be() {
    let cluster = Cluster::start(3);
    let root = cluster.mount(0);
    let files = furnish(&root);
    // The directory splits during the checks.
    fs::create_dir(root.join("grows")).expect("mkdir");
    (0..1000).for_each(|n| put(root.join("grows").join(format!("old{n}")), "grown"));
    for n in 0..DIRS {
        fs::create_dir(root.join(format!("work{n}"))).expect("mkdir");
    }
    for n in 0..TOKENS {
        put(root.join(format!("work{}/token{n}", n % DIRS)), format!("token{n}"));
    }
    at_work(&cluster, |steps| {
        assert_finds_nothing(&cluster, steps);
    });
    let broken = damage(&cluster);
    at_work(&cluster, |steps| {
        let (said, findings) = fsck(&cluster, &["--repair"]);
        assert_eq!(said.code, MENDED, "{findings:#?}");
        broken.assert_are_these(&findings);
        broken.assert_all_found(&findings);
        assert_finds_nothing(&cluster, steps);
    });
    cluster.fsck();
    assert_untouched(&files);
    broken.assert_mended(&root);
    let mut tokens = BTreeSet::new();
    for n in 0..DIRS {
        let dir = root.join(format!("work{n}"));
        for name in names(&dir).into_iter().filter(|name| name.starts_with("token")) {
            assert_eq!(get(dir.join(&name)), name.as_bytes());
            assert!(tokens.insert(name), "a file in two places");
        }
    }
    assert_eq!(tokens.len(), TOKENS as usize, "files are lost");
    for name in names(root.join("grows")) {
        assert_eq!(get(root.join("grows").join(&name)), b"grown", "{name}");
    }
    println!("{} files in a directory that grows", names(root.join("grows")).len());
    cluster.finish();
}
