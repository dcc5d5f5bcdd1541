//! Names on many nodes: moves, links and removals that touch several of them, by programs on all
//! mounts at once, while daemons and mounts die. Afterwards each file is in one place, and `fsck`
//! finds nothing.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tatami_tests::files::{get, names, put, refused};
use tatami_tests::process::wait_ms;
use tatami_tests::seed::{Rng, scaled};
use tatami_tests::{Cluster, Setup};

/// Directories, on any nodes.
const DIRS: usize = 8;
/// Files that are moved from one to the other.
const TOKENS: usize = 24;
/// Number of daemons, or mounts, that die in one run.
const DEATHS: u64 = 5;
/// Least number of operations of all workers together between two deaths.
const BETWEEN: u64 = 30;
/// Longest time for these operations.
const AT_WORK: Duration = Duration::from_secs(300);

fn dir(n: usize) -> String {
    format!("d{n}")
}

fn token(n: usize) -> String {
    format!("token{n}")
}

fn prepare(cluster: &Cluster) {
    let m = cluster.mount(0);
    (0..DIRS).for_each(|n| fs::create_dir(m.join(dir(n))).expect("mkdir"));
    for n in 0..TOKENS {
        put(m.join(dir(n % DIRS)).join(token(n)), token(n));
    }
}

/// Returns whether an operation failed only because another worker was faster.
fn is_lost_race(error: &std::io::Error) -> bool {
    let lost =
        [libc::ENOENT, libc::EEXIST, libc::ENOTEMPTY, libc::ESTALE, libc::EINVAL, libc::ELOOP];
    error.raw_os_error().is_some_and(|errno| lost.contains(&errno))
}

/// Does one random operation on names that other workers use, too.
fn step(root: &Path, worker: usize, rng: &mut Rng) -> std::io::Result<()> {
    let place = |rng: &mut Rng| root.join(dir(rng.usize(..DIRS)));
    let (from, to) = (place(rng), place(rng));
    let name = token(rng.usize(..TOKENS));
    let (own, sub) = (format!("link-{worker}"), format!("sub{}", rng.u32(..3)));
    match rng.u32(..100) {
        0..50 => fs::rename(from.join(&name), to.join(&name)),
        50..60 => {
            let link = to.join(own);
            fs::hard_link(from.join(&name), &link)?;
            fs::remove_file(link)
        }
        60..70 => fs::create_dir(from.join(sub)),
        70..80 => fs::remove_dir(from.join(sub)),
        // The entries of a moved directory move with it, and prevent its removal.
        80..88 => fs::rename(from.join(&sub), to.join(&sub)),
        88..93 => fs::write(from.join(&sub).join(&own), &own),
        93..97 => fs::remove_file(from.join(&sub).join(&own)),
        _ => fs::metadata(from.join(&name)).map(drop),
    }
}

/// Returns the place of each file; panics if one is missing, in two places, or changed.
fn settle(root: &Path) -> BTreeMap<String, PathBuf> {
    let mut found = BTreeMap::new();
    for n in 0..DIRS {
        for name in names(root.join(dir(n))) {
            if name.starts_with("token") {
                let path = root.join(dir(n)).join(&name);
                assert_eq!(get(&path), name.as_bytes(), "{}", path.display());
                let twice = found.insert(name, path);
                assert_eq!(twice, None, "a file in two places");
            }
        }
    }
    assert_eq!(found.len(), TOKENS, "files are lost");
    found
}

/// Runs workers on the mounts that `works_on` names; calls `kill` now and then.
fn storm(
    cluster: &Cluster,
    works_on: impl Fn(u16) -> bool,
    may_die: impl Fn(u16) -> bool + Sync,
    mut kill: impl FnMut(u64, &mut Rng),
) {
    let mut rng = Rng::with_seed(cluster.seed());
    let (done, steps) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let mut at_work = Vec::new();
        for node in (0..cluster.nodes()).filter(|node| works_on(*node)) {
            for half in 0..2 {
                let (root, worker) = (cluster.mount(node), usize::from(node * 2 + half));
                let mut rng = Rng::with_seed(rng.u64(..));
                let (done, steps, may_die) = (&done, &steps, &may_die);
                at_work.push(scope.spawn(move || {
                    while !done.load(Ordering::Relaxed) {
                        match step(&root, worker, &mut rng) {
                            Ok(()) => drop(steps.fetch_add(1, Ordering::Relaxed)),
                            Err(e) if is_lost_race(&e) => {}
                            // The mount of the worker is dead.
                            Err(_) if may_die(node) => wait_ms(5),
                            Err(e) => panic!("worker {worker} on node {node}: {e}"),
                        }
                    }
                }));
            }
        }
        for round in 0..scaled(DEATHS) {
            let (start, enough) = (Instant::now(), (round + 1) * BETWEEN);
            while steps.load(Ordering::Relaxed) < enough
                && !at_work.iter().any(|worker| worker.is_finished())
            {
                if start.elapsed() > AT_WORK {
                    done.store(true, Ordering::Relaxed);
                    panic!("the workers do not get on");
                }
                wait_ms(5);
            }
            wait_ms(rng.u64(..300));
            kill(round, &mut rng);
        }
        wait_ms(200);
        done.store(true, Ordering::Relaxed);
    });
    println!("{} operations", steps.into_inner());
}

#[test]
fn daemons_may_die_while_names_move_between_nodes() {
    let cluster = Cluster::start(4);
    prepare(&cluster);
    storm(
        &cluster,
        |_| true,
        |_| false,
        |round, rng| {
            let victim = rng.u16(..cluster.nodes());
            println!("round {round}: node {victim} dies");
            cluster.kill_node(victim);
            wait_ms(rng.u64(0..300));
            cluster.start_node(victim);
        },
    );
    let places = settle(&cluster.mount(0));
    for node in 1..cluster.nodes() {
        let there = settle(&cluster.mount(node));
        let below = |path: &Path, node| path.strip_prefix(cluster.mount(node)).map(Path::to_owned);
        for (name, path) in &places {
            assert_eq!(below(path, 0), below(&there[name], node), "{name}");
        }
    }
    cluster.finish();
}

#[test]
fn all_daemons_may_die_together_while_names_move() {
    let cluster = Cluster::start(3);
    prepare(&cluster);
    storm(
        &cluster,
        |_| true,
        |_| false,
        |round, rng| {
            println!("round {round}");
            (0..3).for_each(|node| cluster.kill_node(node));
            let mut order = [0, 1, 2];
            rng.shuffle(&mut order);
            order.into_iter().for_each(|node| cluster.start_node(node));
        },
    );
    settle(&cluster.mount(1));
    cluster.finish();
}

#[test]
fn mounts_may_die_half_way_through_a_move() {
    let cluster = Setup::nodes(3).config("[node]\nlease_sec = 2\n").start();
    prepare(&cluster);
    // Node 0 has no mount that dies.
    storm(
        &cluster,
        |_| true,
        |node| node > 0,
        |round, rng| {
            let victim = rng.u16(1..cluster.nodes());
            println!("round {round}: the mount of node {victim} dies");
            cluster.kill_mount(victim);
            wait_ms(rng.u64(0..300));
            cluster.start_mount(victim);
        },
    );
    settle(&cluster.mount(0));
    settle(&cluster.mount(1));
    cluster.finish();
}

/// Shards can be left to some of the nodes. The directory gets more entries than one node is given.
#[test]
fn a_directory_that_all_mounts_fill_is_one_directory() {
    const FILES: usize = 1200;
    let cluster = Cluster::start(3);
    let dir = |node| cluster.mount(node).join("large");
    fs::create_dir(dir(0)).expect("mkdir");
    let name = |node: u16, n: usize| format!("file-{node}-{n}");
    std::thread::scope(|scope| {
        for node in 0..3 {
            scope.spawn(move || (0..FILES).for_each(|n| put(dir(node).join(name(node, n)), "")));
        }
    });
    for node in 0..3 {
        assert_eq!(names(dir(node)).len(), 3 * FILES, "through mount {node}");
        // Until then the size may be a second old.
        File::open(dir(node)).expect("open").sync_all().expect("fsync");
        assert_eq!(fs::metadata(dir(node)).expect("stat").len(), 3 * FILES as u64);
        for n in (0..FILES).step_by(10) {
            for maker in 0..3 {
                assert!(fs::metadata(dir(node).join(name(maker, n))).is_ok());
            }
        }
        assert!(!dir(node).join("nothing").exists());
    }
    for n in 0..20 {
        let (from, to) = (dir(0).join(name(1, n)), dir(0).join(format!("moved{n}")));
        fs::rename(from, to).expect("rename");
        assert!(dir(2).join(format!("moved{n}")).exists() && !dir(1).join(name(1, n)).exists());
    }
    cluster.fsck();
    fs::remove_dir_all(dir(1)).expect("all of it is removed");
    assert!(!dir(0).exists() && !dir(2).exists());
    cluster.fsck();
}

#[test]
fn shards_are_where_the_configuration_says() {
    let shards = |cluster: &Cluster| -> Vec<u64> {
        let status = cluster.status();
        let nodes = status["nodes"].as_array().expect("nodes");
        nodes.iter().map(|node| node["shards"].as_u64().expect("a number")).collect()
    };
    let cluster = Cluster::start(2);
    assert_eq!(shards(&cluster), [2048, 2048]);
    cluster.finish();
    let cluster = Setup::nodes(3).config("[volume]\nshards = \"1-2\"\n").start();
    assert_eq!(shards(&cluster), [0, 2048, 2048]);
    let (a, b) = (cluster.mount(0), cluster.mount(2));
    for n in 0..20 {
        let dir = a.join(dir(n));
        fs::create_dir(&dir).expect("mkdir");
        put(dir.join("f"), "x");
        fs::rename(dir.join("f"), a.join(format!("f{n}"))).expect("rename");
        assert_eq!(names(b.join(format!("d{n}"))), [""; 0]);
    }
    assert_eq!(refused(fs::remove_dir(&b)), libc::EBUSY);
    let missing = fs::metadata(b.join("none")).expect_err("no such name");
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    cluster.finish();
}

/// The inodes of a deep tree may lie on any node; the whole tree is seen, moved and removed as one.
#[test]
fn a_deep_tree_on_all_nodes_is_one_tree() {
    let cluster = Cluster::start(4);
    let (a, b) = (cluster.mount(0), cluster.mount(3));
    let mut path = PathBuf::from("top");
    for n in 0..12 {
        fs::create_dir(a.join(&path)).expect("mkdir");
        put(a.join(&path).join("file"), n.to_string());
        path.push(n.to_string());
    }
    fs::rename(b.join("top/0/1"), b.join("moved")).expect("rename");
    assert_eq!(get(a.join("moved/2/3/file")), b"4");
    let inside = fs::rename(b.join("moved"), b.join("moved/2/3/x"));
    assert_eq!(refused(inside), libc::EINVAL);
    fs::rename(a.join("moved"), a.join("top/back")).expect("rename");
    assert_eq!(get(b.join("top/back/2/3/4/file")), b"5");
    fs::remove_dir_all(b.join("top")).expect("rm -r");
    assert_eq!(names(&a), [""; 0]);
    cluster.finish();
}
