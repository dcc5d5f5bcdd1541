//! A volume whose daemons are upgraded one by one while programs use it, and taken back.
//!
//! The older release is the program that `TATAMI_PREVIOUS` names (`scripts/test-upgrade.sh` builds
//! one). Without it, the older side is this build, limited to the protocol of the release before.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use tatami_tests::command::{ask, run, tatami_bin};
use tatami_tests::policies::skip_with_policies;
use tatami_tests::process::wait_ms;
use tatami_tests::seed::{Rng, scaled};
use tatami_tests::worker::Worker;
use tatami_tests::{Cluster, Setup};
use tatami_wire::{OLDEST_PROTOCOL, PROTOCOL_VERSION};

/// Nodes of the volume, each with a mount.
const NODES: u16 = 3;
/// Operations of all workers between two steps of the upgrade.
const BETWEEN: u64 = 60;
/// Longest time for them.
const AT_WORK: Duration = Duration::from_secs(300);

/// A release of Tatami.
struct Release {
    program: PathBuf,
    /// The configuration of the volume.
    config: String,
    /// The newest version of the protocol that its daemons speak.
    protocol: u32,
}

impl Release {
    /// The release before this one.
    fn older() -> Release {
        match std::env::var_os("TATAMI_PREVIOUS") {
            Some(program) => Release {
                program: program.into(),
                config: String::new(),
                protocol: OLDEST_PROTOCOL,
            },
            None => Release::limited(),
        }
    }

    /// This one, by an administrator who keeps the way back.
    fn limited() -> Release {
        let config = format!("[node]\nprotocol = {OLDEST_PROTOCOL}\n");
        Release { program: tatami_bin(), config, protocol: OLDEST_PROTOCOL }
    }

    fn newer() -> Release {
        Release { program: tatami_bin(), config: String::new(), protocol: PROTOCOL_VERSION }
    }

    fn start(&self) -> Cluster {
        Setup::nodes(NODES).config(&self.config).with_program(&self.program).start()
    }

    /// Restarts a daemon as one of this release.
    fn take_over(&self, cluster: &mut Cluster, node: u16) {
        cluster.tatami("node stop", &[&node.to_string()]);
        fs::write(cluster.dir().join("tatami.toml"), &self.config).expect("written");
        cluster.set_program(&self.program);
        cluster.start_node(node);
        let status = cluster.status();
        let spoken = status["nodes"][usize::from(node)]["protocol"].as_u64();
        assert_eq!(spoken, Some(u64::from(self.protocol)), "{status}");
    }
}

fn protocols(cluster: &Cluster) -> Vec<u64> {
    let status = cluster.status();
    let nodes = status["nodes"].as_array().expect("a list");
    nodes.iter().filter_map(|node| node["protocol"].as_u64()).collect()
}

/// All daemons go to the newer release and back and to the newer again, one by one, while workers
/// on all mounts change names and bytes. No operation fails, and each has the result that a model
/// predicts. Then the mounts follow.
#[test]
fn daemons_are_upgraded_one_by_one_while_programs_run() {
    if skip_with_policies("its nodes speak an older protocol, which has no policies") {
        return;
    }
    let older = Release::older();
    let mut cluster = older.start();
    assert_eq!(protocols(&cluster), vec![u64::from(OLDEST_PROTOCOL); 3]);
    let mut rng = Rng::with_seed(cluster.seed());
    let mut workers: Vec<(u16, PathBuf, Worker)> = Vec::new();
    for node in 0..NODES {
        for kind in ["closed", "held"] {
            let name = PathBuf::from(format!("{kind}-{node}"));
            let folder = cluster.mount(node).join(&name);
            workers.push((node, name, Worker::new(folder, rng.u64(..), kind == "held")));
        }
    }
    let (done, steps) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let at_work: Vec<_> = workers
            .iter_mut()
            .map(|(_, _, worker)| {
                scope.spawn(|| {
                    while !done.load(Ordering::Relaxed) {
                        worker.step()?;
                        steps.fetch_add(1, Ordering::Relaxed);
                    }
                    Ok::<(), String>(())
                })
            })
            .collect();
        let await_steps = || {
            let (enough, start) = (steps.load(Ordering::Relaxed) + BETWEEN, Instant::now());
            while steps.load(Ordering::Relaxed) < enough
                && !at_work.iter().any(|worker| worker.is_finished())
            {
                if start.elapsed() > AT_WORK {
                    done.store(true, Ordering::Relaxed);
                    panic!("the workers do not get on");
                }
                wait_ms(5);
            }
        };
        for release in [Release::limited(), Release::older(), Release::newer()] {
            for node in 0..NODES {
                await_steps();
                println!("node {node} becomes {}", release.program.display());
                release.take_over(&mut cluster, node);
            }
        }
        for _ in 0..scaled(2) {
            await_steps();
        }
        done.store(true, Ordering::Relaxed);
        for worker in at_work {
            worker.join().expect("a worker does not panic").unwrap_or_else(|e| panic!("{e}"));
        }
    });
    for (node, name, worker) in &workers {
        let folder = cluster.mount((node + 1) % NODES).join(name);
        let held = name.to_string_lossy().starts_with("held");
        let folder = if held { cluster.mount(*node).join(name) } else { folder };
        worker.compare(&folder).unwrap_or_else(|e| panic!("{}: {e}", name.display()));
    }
    assert_eq!(protocols(&cluster), vec![u64::from(PROTOCOL_VERSION); 3]);
    drop(workers);
    // The mounts are still those of the older release: each is upgraded when no program uses it.
    for node in 0..NODES {
        let mount = cluster.mount(node);
        run(Command::new(tatami_bin()).arg("umount").arg(&mount));
        cluster.up();
        fs::write(mount.join(format!("after-{node}")), "new").expect("a new mount works");
    }
    assert_eq!(fs::read(cluster.mount(0).join("after-2")).expect("readable"), b"new");
    cluster.finish();
}

/// In the middle of an upgrade, `status` names the nodes that are behind.
#[test]
fn status_names_the_nodes_that_are_behind() {
    if skip_with_policies("its nodes speak an older protocol, which has no policies") {
        return;
    }
    let mut cluster = Release::older().start();
    Release::newer().take_over(&mut cluster, 1);
    let said = ask(&mut cluster.command("status"));
    let text = format!("{}{}", said.out, said.err);
    let named = "node0, node2 speak an older protocol than the other nodes, which speak 4";
    assert!(said.code == Some(0) && text.contains(named), "{said:?}");
    for node in [0, 2] {
        Release::newer().take_over(&mut cluster, node);
    }
    assert_eq!(cluster.status()["warnings"], serde_json::json!([]));
    cluster.finish();
}
