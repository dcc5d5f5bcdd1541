//! The policy `placement`: which node gets the bytes of a new file.

use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use tatami_tests::command::ask;
use tatami_tests::files::{get, put};
use tatami_tests::model::pattern;
use tatami_tests::{Cluster, Setup};

const FILES: usize = 60;

/// Returns how many files of `dir` have their bytes on each node, and checks all bytes on the first
/// mounts.
fn count_on_nodes(
    cluster: &Cluster,
    mounts: u16,
    dir: &str,
    size: usize,
) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for n in 0..FILES {
        let path = format!("{dir}/{n}");
        let said = cluster.tatami("where", &["--json", &format!(":/{path}")]).out;
        let said: Value = serde_json::from_str(&said).expect("JSON");
        let nodes = said["files"][0]["nodes"].as_array().expect("a list");
        assert_eq!(nodes.len(), 1, "{said}");
        *counts.entry(nodes[0]["name"].as_str().expect("a name").to_owned()).or_insert(0) += 1;
        for node in 0..mounts {
            assert!(get(cluster.mount(node).join(&path)) == pattern(n as u8, 0, size), "{path}");
        }
    }
    counts
}

fn make_files(cluster: &Cluster, node: u16, dir: &str, size: usize) {
    for n in 0..FILES {
        put(cluster.mount(node).join(dir).join(n.to_string()), pattern(n as u8, 0, size));
    }
}

/// One node makes files for all: with the policy they lie on all nodes, in files of the disks and
/// in regions. A change of the policy concerns new files only.
#[test]
fn new_files_go_to_all_nodes_or_to_the_one_that_makes_them() {
    let cluster = Setup::nodes(3).with_regions().start();
    cluster.tatami("set", &["--unset", "inline", "--unset", "engine", ":/"]);
    for (dir, engine) in [("far", "file"), ("wide", "region")] {
        fs::create_dir_all(cluster.mount(0).join(dir).join("below")).expect("mkdir");
        let path = format!(":/{dir}");
        cluster.tatami("set", &["--engine", engine, "--spread", &path]);
        let below = format!("{dir}/new");
        fs::create_dir(cluster.mount(2).join(&below)).expect("mkdir");
        make_files(&cluster, 1, &below, 9000);
        let spread = count_on_nodes(&cluster, 3, &below, 9000);
        assert!(spread.len() == 3 && spread.values().all(|count| *count >= 8), "{spread:?}");
        let old = format!("{dir}/below");
        make_files(&cluster, 1, &old, 9000);
        assert_eq!(count_on_nodes(&cluster, 3, &old, 9000), [("node1".into(), FILES)].into());
        cluster.tatami("set", &["--local-first", &format!(":/{below}")]);
        for n in 0..FILES {
            fs::remove_file(cluster.mount(0).join(&below).join(n.to_string())).expect("removed");
        }
        make_files(&cluster, 2, &below, 9000);
        assert_eq!(count_on_nodes(&cluster, 3, &below, 9000), [("node2".into(), FILES)].into());
        let said = cluster.tatami("get", &["--json", &path, &format!(":/{below}")]).out;
        let said: Value = serde_json::from_str(&said).expect("JSON");
        let shown = [0, 1].map(|at| said["directories"][at]["policies"]["placement"].clone());
        assert_eq!(shown, ["spread", "local-first"]);
    }
    let said = ask(cluster.command("set").args(["--spread", "--local-first", ":/far"]));
    assert_eq!(said.code, Some(2), "{said:?}");
    cluster.fsck();
    cluster.finish();
}

/// The removal of a node has begun: it gets no new files, also by the policy.
#[test]
fn a_node_that_is_removed_gets_no_files() {
    let cluster = Setup::nodes(3).start();
    cluster.tatami("set", &["--unset", "inline", "--unset", "engine", ":/"]);
    fs::create_dir(cluster.mount(0).join("d")).expect("mkdir");
    cluster.tatami("set", &["--spread", ":/d"]);
    make_files(&cluster, 0, "d", 100);
    cluster.tatami("node drain", &["node2"]);
    // Its mount ends, and it gets no new files from here on.
    let said = ask(cluster.command("node remove").arg("node2"));
    assert!(said.err.contains("node2 still has"), "{said:?}");
    for n in 0..FILES {
        fs::remove_file(cluster.mount(0).join("d").join(n.to_string())).expect("removed");
    }
    make_files(&cluster, 0, "d", 100);
    let spread = count_on_nodes(&cluster, 2, "d", 100);
    assert!(spread.len() == 2 && !spread.contains_key("node2"), "{spread:?}");
    cluster.finish();
}
