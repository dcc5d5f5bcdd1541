//! A volume gains and loses nodes while programs work in it. None of their operations fails, locks
//! stay locked, and open files stay open, even if daemons die. Afterwards `fsck` finds nothing.

use rustix::fs::{FlockOperation, flock};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tatami_tests::command::{Said, ask};
use tatami_tests::files::{get, names, open, put};
use tatami_tests::policies::skip_with_policies;
use tatami_tests::process::wait_ms;
use tatami_tests::seed::{Rng, scaled};
use tatami_tests::{Cluster, Setup};

/// Directories in which all workers work.
const DIRS: usize = 8;
/// Files of each worker, and its directories.
const FILES: usize = 12;
/// Number of daemons that die in one run.
const DEATHS: u64 = 6;
/// Longest time until every worker has done something.
const AT_WORK: Duration = Duration::from_secs(300);

fn dir(n: usize) -> String {
    format!("d{n}")
}

/// The files of one worker, which no other one touches: every operation must succeed.
struct Worker {
    root: PathBuf,
    name: String,
    /// The directory of each file.
    files: Vec<usize>,
    /// The directory of the worker's own directory.
    own: usize,
    rng: Rng,
}

impl Worker {
    fn new(root: PathBuf, name: String, seed: u64) -> Worker {
        let worker =
            Worker { root, name, files: vec![0; FILES], own: 0, rng: Rng::with_seed(seed) };
        (0..FILES).for_each(|n| put(worker.place(0).join(worker.file(n)), worker.file(n)));
        fs::create_dir(worker.place(0).join(worker.own())).expect("mkdir");
        worker
    }

    fn place(&self, at: usize) -> PathBuf {
        self.root.join(dir(at))
    }

    fn file(&self, n: usize) -> String {
        format!("{}-{n}", self.name)
    }

    fn own(&self) -> String {
        format!("{}-dir", self.name)
    }

    fn step(&mut self) -> std::io::Result<()> {
        let (n, to) = (self.rng.usize(..FILES), self.rng.usize(..DIRS));
        let path = self.place(self.files[n]).join(self.file(n));
        let own = self.place(self.own).join(self.own());
        match self.rng.u32(..100) {
            0..25 => {
                fs::rename(&path, self.place(to).join(self.file(n)))?;
                self.files[n] = to;
            }
            25..35 => {
                let link = self.place(to).join(format!("{}-link", self.name));
                fs::hard_link(&path, &link)?;
                assert_eq!(fs::read(&link)?, self.file(n).as_bytes());
                fs::remove_file(link)?;
            }
            35..50 => {
                fs::remove_file(&path)?;
                let path = self.place(to).join(self.file(n));
                File::create_new(&path)?.write_all(self.file(n).as_bytes())?;
                self.files[n] = to;
            }
            50..60 => {
                let new = self.place(to).join(self.own());
                fs::rename(&own, &new)?;
                self.own = to;
                fs::write(new.join("inside"), "x")?;
                fs::remove_file(new.join("inside"))?;
            }
            60..66 => {
                fs::remove_dir(&own)?;
                self.own = to;
                fs::create_dir(self.place(to).join(self.own()))?;
            }
            66..76 => {
                let listed = fs::read_dir(self.place(self.files[n]))?;
                let here = listed.filter_map(Result::ok).any(|e| *e.file_name() == *self.file(n));
                assert!(here, "{} is in its directory", path.display());
            }
            76..82 => File::open(&path)?.sync_all()?,
            _ => {
                assert_eq!(fs::metadata(&path)?.len(), self.file(n).len() as u64);
                assert_eq!(fs::read(&path)?, self.file(n).as_bytes());
            }
        }
        Ok(())
    }

    /// Checks that everything is in its place.
    fn settle(&self, root: &Path) {
        for (n, at) in self.files.iter().enumerate() {
            assert_eq!(get(root.join(dir(*at)).join(self.file(n))), self.file(n).as_bytes());
        }
        assert!(names(root.join(dir(self.own)).join(self.own())).is_empty());
    }
}

/// Adds one to a number in a file in which all mounts count, each under its lock.
fn count_up(path: &Path) {
    let mut file = File::options().read(true).write(true).open(path).expect("open");
    flock(&file, FlockOperation::LockExclusive).expect("LOCK_EX");
    let mut text = String::new();
    file.read_to_string(&mut text).expect("read");
    let count: u64 = text.trim().parse().unwrap_or_else(|e| panic!("{text:?}: {e}"));
    file.seek(SeekFrom::Start(0)).expect("seek");
    write!(file, "{:<20}", count + 1).expect("write");
    flock(&file, FlockOperation::Unlock).expect("LOCK_UN");
}

/// Works on all mounts while `changes` runs. `changes` gets a function that waits until every
/// worker has done something since.
fn storm(cluster: &Cluster, changes: impl FnOnce(&dyn Fn())) {
    let m = cluster.mount(0);
    (0..DIRS).for_each(|n| fs::create_dir(m.join(dir(n))).expect("mkdir"));
    put(m.join("counter"), format!("{:<20}", 0));
    put(m.join("held"), "x");
    put(m.join("gone"), "still here");
    let (gone, held) = (open(m.join("gone")), open(m.join("held")));
    fs::remove_file(m.join("gone")).expect("unlink");
    flock(&held, FlockOperation::NonBlockingLockExclusive).expect("LOCK_EX");
    let written = File::create_new(m.join("written")).expect("create");

    let mut rng = Rng::with_seed(cluster.seed());
    let (done, counted) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut workers = Vec::new();
    for node in 0..cluster.nodes() {
        for half in 0..2 {
            let name = format!("w{node}{half}");
            workers.push(Worker::new(cluster.mount(node), name, rng.u64(..)));
        }
    }
    let steps: Vec<AtomicU64> = (0..workers.len() * 2).map(|_| AtomicU64::new(0)).collect();
    let workers = std::thread::scope(|scope| {
        let mut at_work = Vec::new();
        for (at, mut worker) in workers.into_iter().enumerate() {
            let (done, steps) = (&done, &steps);
            at_work.push(scope.spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    worker.step().unwrap_or_else(|e| panic!("{}: {e}", worker.name));
                    steps[at].fetch_add(1, Ordering::Relaxed);
                }
                worker
            }));
        }
        let mut others = Vec::new();
        for node in 0..cluster.nodes() {
            let (path, held) =
                (cluster.mount(node).join("counter"), cluster.mount(node).join("held"));
            let (done, counted, steps) = (&done, &counted, &steps);
            let at = steps.len() / 2 + usize::from(node);
            others.push(scope.spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    count_up(&path);
                    counted.fetch_add(1, Ordering::Relaxed);
                    if node > 0 {
                        let other = open(&held);
                        let taken = flock(&other, FlockOperation::NonBlockingLockExclusive);
                        assert!(taken.is_err(), "a lock was granted twice");
                    }
                    steps[at].fetch_add(1, Ordering::Relaxed);
                }
            }));
        }
        let look = || steps.iter().map(|n| n.load(Ordering::Relaxed)).collect::<Vec<_>>();
        let everybody = steps.len() / 2 + usize::from(cluster.nodes());
        let all_got_on = || {
            let (start, before) = (Instant::now(), look());
            while !look().iter().zip(&before).take(everybody).all(|(now, then)| *now > then + 1) {
                let failed = at_work.iter().any(|worker| worker.is_finished())
                    || others.iter().any(|other| other.is_finished());
                if failed || start.elapsed() > AT_WORK {
                    done.store(true, Ordering::Relaxed);
                    panic!("somebody does not get on: {before:?}, {:?}", look());
                }
                wait_ms(5);
            }
        };
        let changed =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| changes(&all_got_on)));
        done.store(true, Ordering::Relaxed);
        let workers: Vec<Worker> =
            at_work.into_iter().map(|worker| worker.join().expect("it works")).collect();
        others.into_iter().for_each(|other| other.join().expect("it locks"));
        changed.unwrap_or_else(|e| std::panic::resume_unwind(e));
        workers
    });
    println!(
        "operations: {:?}",
        steps.iter().map(|n| n.load(Ordering::Relaxed)).collect::<Vec<_>>()
    );
    for node in 0..cluster.nodes() {
        workers.iter().for_each(|worker| worker.settle(&cluster.mount(node)));
        let text = get(cluster.mount(node).join("counter"));
        let count: u64 = String::from_utf8_lossy(&text).trim().parse().expect("a number");
        assert_eq!(count, counted.load(Ordering::Relaxed), "each under its lock");
    }
    let mut text = [0; 10];
    gone.read_exact_at(&mut text, 0).expect("what is open is there");
    assert_eq!(&text, b"still here");
    written.write_all_at(b"later", 1000).expect("what was open for writing is");
    drop(written);
    assert_eq!(get(cluster.mount(1).join("written")).len(), 1005);
    flock(&held, FlockOperation::Unlock).expect("LOCK_UN");
    let other = open(cluster.mount(1).join("held"));
    flock(&other, FlockOperation::LockExclusive).expect("it is free");
}

/// Returns a number of each node in `tatami status`.
fn of_nodes(cluster: &Cluster, what: &str) -> Vec<u64> {
    numbers(&cluster.status(), what)
}

fn numbers(said: &serde_json::Value, what: &str) -> Vec<u64> {
    let nodes = said["nodes"].as_array().expect("nodes");
    nodes.iter().map(|node| node[what].as_u64().expect("a number")).collect()
}

fn shards(cluster: &Cluster) -> Vec<u64> {
    of_nodes(cluster, "shards")
}

/// Starts a volume of nodes with `executors` executors each.
fn with_executors(nodes: u16, executors: u8) -> Cluster {
    Setup::nodes(nodes).config(&format!("[volume]\nexecutors = {executors}\n")).start()
}

/// Returns the names in the directories in which all workers work.
fn listing(root: &Path) -> Vec<Vec<String>> {
    (0..DIRS).map(|n| names(root.join(dir(n)))).collect()
}

fn parse_report(said: &Said) -> serde_json::Value {
    serde_json::from_str(&said.out).unwrap_or_else(|e| panic!("{e}: {}\n{}", said.out, said.err))
}

#[test]
fn a_volume_grows_and_shrinks_while_all_work() {
    let cluster = Cluster::start(2);
    storm(&cluster, |all_got_on| {
        all_got_on();
        let said = parse_report(&cluster.tatami("node add", &["--nodes", "2", "--json"]));
        assert_eq!(said["moved"], 2048, "{said}");
        assert_eq!(shards(&cluster), [1024; 4]);
        all_got_on();
        cluster.fsck();
        let said = parse_report(&cluster.tatami("node drain", &["--json", "1", "node2"]));
        assert_eq!(said["moved"], 2048, "{said}");
        assert_eq!(shards(&cluster), [2048, 0, 0, 2048]);
        all_got_on();
        cluster.tatami("node drain", &["node3"]);
        assert_eq!(shards(&cluster), [4096, 0, 0, 0]);
        all_got_on();
        cluster.tatami("node rebalance", &["node1"]);
        assert_eq!(shards(&cluster), [2048, 2048, 0, 0]);
        all_got_on();
    });
    cluster.finish();
}

#[test]
fn one_node_becomes_two() {
    if skip_with_policies("bytes beside inodes leave a node with its names") {
        return;
    }
    let cluster = Cluster::start(1);
    let m = cluster.mount(0);
    for n in 0..20 {
        let dir = m.join(dir(n));
        fs::create_dir(&dir).expect("mkdir");
        put(dir.join("f"), n.to_string());
    }
    let said = cluster.tatami("node add", &[]);
    assert!(
        said.out.contains("node1 is added") && said.out.contains("2048 shards"),
        "{}",
        said.out
    );
    for n in 0..20 {
        assert_eq!(get(m.join(dir(n)).join("f")), n.to_string().as_bytes());
        fs::rename(m.join(dir(n)).join("f"), m.join(dir((n + 1) % 20)).join("g")).expect("rename");
    }
    cluster.fsck();
    // All daemons restart, with their own state and volume.toml.
    (0..2).for_each(|node| cluster.kill_node(node));
    (0..2).for_each(|node| cluster.start_node(node));
    assert_eq!(shards(&cluster), [2048, 2048]);
    assert_eq!(get(m.join(dir(0)).join("g")), b"19");
    let said = cluster.tatami("node drain", &["node0"]);
    assert!(said.out.contains("node0 has no names left, but"), "{}", said.out);
    fs::remove_dir_all(m.join(dir(3))).expect("rm -r");
    assert_eq!(names(&m).len(), 19);
    let said = ask(cluster.command("node drain").args(["node0", "node1"]));
    assert!(said.code != Some(0) && said.err.contains("no node is left"), "{}", said.err);
    cluster.finish();
}

/// Sets a flag on drop, so that its waiters go on when the test has failed, too.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Kills daemons while `moves` is called again and again, and all workers work.
fn deaths(cluster: &Cluster, moves: impl Fn() + Sync) {
    storm(cluster, |all_got_on| {
        let mut rng = Rng::with_seed(!cluster.seed());
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let mover = scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    moves();
                }
            });
            let ends = SetOnDrop(&over);
            for round in 0..scaled(DEATHS) {
                wait_ms(rng.u64(..1500));
                let victim = rng.u16(..cluster.nodes());
                println!("round {round}: node {victim} dies");
                cluster.kill_node(victim);
                wait_ms(rng.u64(..300));
                cluster.start_node(victim);
                all_got_on();
            }
            drop(ends);
            mover.join().expect("the commands go on where they were broken off");
        });
        assert_eq!(shards(cluster).iter().sum::<u64>(), 4096);
    });
}

#[test]
fn daemons_may_die_while_shards_move() {
    let cluster = Setup::nodes(3).start();
    deaths(&cluster, || {
        cluster.tatami("node drain", &["node2"]);
        cluster.tatami("node rebalance", &["node2"]);
    });
    cluster.finish();
}

#[test]
fn nodes_get_executors_and_lose_them_while_all_work() {
    let cluster = with_executors(2, 2);
    assert_eq!(of_nodes(&cluster, "executors"), [2, 2]);
    let rebalance = |executors: &str| {
        let said = cluster.tatami("node rebalance", &["--json", "--executors", executors]);
        let said = parse_report(&said);
        assert_eq!(numbers(&said, "shards"), [2048, 2048], "{said}");
        let all = u64::from(executors.parse::<u8>().expect("a number"));
        assert_eq!(numbers(&said, "executors"), [all; 2], "{said}");
        said["moved"].as_u64().expect("a number")
    };
    storm(&cluster, |all_got_on| {
        all_got_on();
        assert_eq!(rebalance("3"), 2 * 682);
        let listed = parse_report(&cluster.tatami("node list", &["--json"]));
        assert_eq!(numbers(&listed, "executors"), [3, 3], "{listed}");
        assert_eq!(of_nodes(&cluster, "executors"), [3, 3]);
        all_got_on();
        cluster.fsck();
        assert_eq!(rebalance("1"), 2 * (683 + 682));
        assert_eq!(shards(&cluster), [2048, 2048]);
        all_got_on();
        cluster.fsck();
        assert_eq!(rebalance("2"), 2 * 1024);
        all_got_on();
    });
    let m = cluster.mount(0);
    let there = listing(&m);
    cluster.down();
    cluster.up();
    assert_eq!(shards(&cluster), [2048, 2048]);
    assert!(of_nodes(&cluster, "executors").iter().all(|running| *running >= 2));
    assert_eq!(rebalance("2"), 0, "everybody knows where everything is");
    assert_eq!((listing(&m), listing(&cluster.mount(1))), (there.clone(), there));
    cluster.finish();
}

#[test]
fn executors_may_change_while_daemons_die() {
    let cluster = with_executors(2, 2);
    deaths(&cluster, || {
        cluster.tatami("node rebalance", &["--executors", "1"]);
        cluster.tatami("node rebalance", &["--executors", "3"]);
    });
    cluster.finish();
}

#[test]
fn a_node_that_comes_gets_as_many_executors_as_the_others() {
    let cluster = with_executors(1, 2);
    let m = cluster.mount(0);
    for n in 0..DIRS {
        fs::create_dir(m.join(dir(n))).expect("mkdir");
        put(m.join(dir(n)).join("f"), n.to_string());
    }
    let said = parse_report(&cluster.tatami("node add", &["--json"]));
    assert_eq!((&said["moved"], numbers(&said, "executors")), (&2048.into(), vec![2, 2]));
    let said = parse_report(&cluster.tatami("node drain", &["node0", "--json"]));
    assert_eq!(
        (numbers(&said, "shards"), numbers(&said, "executors")),
        (vec![0, 4096], vec![0, 2])
    );
    let said = ask(cluster.command("node rebalance").args(["--executors", "65"]));
    assert_eq!(said.code, Some(2), "{said:?}");
    for n in 0..DIRS {
        let next = m.join(dir((n + 1) % DIRS)).join("g");
        fs::rename(m.join(dir(n)).join("f"), &next).expect("rename");
        assert_eq!(get(next), n.to_string().as_bytes());
    }
    cluster.finish();
}

#[test]
fn a_large_directory_is_on_all_executors_of_a_node() {
    // One client changes it, so it splits late.
    const FILES: usize = 8500;
    let cluster = with_executors(1, 3);
    let large = cluster.mount(0).join("large");
    fs::create_dir(&large).expect("mkdir");
    (0..FILES).for_each(|n| put(large.join(format!("file{n}")), ""));
    assert_eq!(names(&large).len(), FILES);
    let start = Instant::now();
    loop {
        let said = parse_report(&cluster.tatami("dir", &["--json", ":/large"]));
        let parts = said["directories"][0]["partitions"].as_array().expect("partitions");
        let executors: BTreeSet<_> = parts.iter().map(|part| part["executor"].as_u64()).collect();
        assert!(parts.iter().all(|part| part["node"] == 0 && part["name"] == "node0"), "{said}");
        if executors == BTreeSet::from([Some(0), Some(1), Some(2)]) {
            break;
        }
        // Executors split a directory beside their other work.
        assert!(start.elapsed() < Duration::from_secs(120), "{said}");
        wait_ms(50);
    }
    let said = cluster.tatami("dir", &[":/large"]);
    assert!(said.out.contains("node0, executor 2"), "{}", said.out);
    fs::remove_dir_all(&large).expect("rm -r");
    cluster.finish();
}
