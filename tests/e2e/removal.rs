//! A node is taken out of the volume for good, while programs use the volume; and the files that
//! need a node which is down are listed.

use serde_json::Value;
use std::fs;
use std::io::Write;
use tatami_tests::Cluster;
use tatami_tests::cluster_hosts::skip_on_hosts;
use tatami_tests::command::{ask, run};
use tatami_tests::files::{get, open, put};
use tatami_tests::policies::skip_with_policies;

/// Runs a command that must fail, and checks that its message has these words.
fn expect_refusal(cluster: &Cluster, verb: &str, args: &[&str], words: &[&str]) {
    let said = ask(cluster.command(verb).args(args));
    assert_ne!(said.code, Some(0), "{verb} {args:?}: {said:?}");
    for word in words {
        assert!(said.err.contains(word), "{verb} {args:?}: no {word:?} in\n{}", said.err);
    }
}

fn parse_json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

#[test]
fn a_node_leaves_when_nothing_is_on_it_any_more() {
    if skip_with_policies("bytes beside inodes leave a node with its names") {
        return;
    }
    if skip_on_hosts("a host has one node; see hosts::a_host_is_taken_out_of_a_volume_in_use") {
        return;
    }
    let cluster = Cluster::start(2);
    run(&mut cluster.command("node add"));
    let mount = cluster.dir().join("third");
    fs::create_dir(&mount).expect("made");
    run(cluster.command("mount").args(["--node", "node2"]).arg(&mount));
    put(mount.join("file"), "bytes");
    put(mount.join("empty"), "");
    put(mount.join("unlinked"), "bytes");
    expect_refusal(
        &cluster,
        "node remove",
        &["node2"],
        &["node2 serves a part of the namespace", "tatami node drain"],
    );
    run(cluster.command("node drain").arg("node2"));
    // The names are gone; the files are not. The node has no mount from here on.
    let wanted = ["node2 still has 3 files", "tatami relayout", "-r --from node2 :/"];
    expect_refusal(&cluster, "node remove", &["node2"], &wanted);
    assert!(fs::read_dir(&mount).expect("listed").next().is_none(), "its mount is ended");
    let status = parse_json(&cluster.tatami("status", &["--json"]).out);
    assert_eq!(status["nodes"][2]["leaving"], true, "{status:#}");
    put(cluster.mount(0).join("other"), "bytes");
    expect_refusal(&cluster, "relayout", &["--on", "node2", ":/other"], &["cannot relayout"]);

    let held = open(cluster.mount(0).join("unlinked"));
    fs::remove_file(cluster.mount(1).join("unlinked")).expect("unlinked");
    run(cluster.command("relayout").args(["-r", "--from", "node2", ":/"]));
    expect_refusal(&cluster, "node remove", &["node2"], &["files without a name"]);
    drop(held);
    let dir = cluster.dir().join("node2");
    assert!(dir.exists());
    let start = std::time::Instant::now();
    // The mount closes the file a moment later.
    while ask(cluster.command("node remove").arg("node2")).code != Some(0) {
        assert!(start.elapsed().as_secs() < 120, "{:?}", cluster.tatami("status", &[]));
        tatami_tests::process::pause();
    }
    assert!(!dir.exists());
    let status = parse_json(&cluster.tatami("status", &["--json"]).out);
    assert_eq!(status["nodes"].as_array().map(Vec::len), Some(2), "{status:#}");
    assert_eq!(status["healthy"], true, "{status:#}");
    for node in 0..2 {
        let m = cluster.mount(node);
        assert_eq!(get(m.join("file")), b"bytes");
        let mut file = fs::File::options().append(true).open(m.join("empty")).expect("opened");
        file.write_all(b"more").expect("written");
    }
    assert_eq!(get(cluster.mount(0).join("empty")), b"moremore");
    expect_refusal(&cluster, "node remove", &["node2"], &["there is no node"]);
    expect_refusal(&cluster, "node remove", &["node1"], &["serves a part"]);

    // A new node gets a new number, and a daemon that starts again knows who has left.
    run(&mut cluster.command("node add"));
    let list = parse_json(&cluster.tatami("node list", &["--json"]).out);
    assert_eq!(list["nodes"][2]["name"], "node3", "{list:#}");
    for node in ["node3", "node1"] {
        run(cluster.command("node stop").arg(node));
        run(cluster.command("node start").arg(node));
    }
    let check = run(&mut cluster.command("fsck"));
    assert_eq!(check.code, Some(0), "{check:?}");
    assert_eq!(get(cluster.mount(1).join("file")), b"bytes");
    run(cluster.command("node stop").arg("node3"));
    run(cluster.command("node start").arg("node3"));
    run(cluster.command("node drain").arg("node3"));
    run(cluster.command("node remove").arg("node3"));
    cluster.finish();
}

#[test]
fn what_needs_a_node_that_is_down_is_listed_at_once() {
    let cluster = Cluster::start(3);
    let said = run(cluster.command("where").arg("--lost"));
    assert!(said.out.contains("All nodes answer"), "{said:?}");
    for node in 0..3 {
        let m = cluster.mount(node);
        fs::create_dir(m.join(format!("d{node}"))).expect("made");
        for file in 0..20 {
            put(m.join(format!("d{node}/f{file}")), "bytes");
        }
        put(m.join(format!("d{node}/empty")), "");
    }
    run(cluster.command("node stop").arg("node1"));
    let start = std::time::Instant::now();
    let said = run(cluster.command("where").args(["--lost", "--json"]));
    // The operation timeout is 60 s, and a wait for each file would be 20 times that.
    assert!(start.elapsed().as_secs() < 60, "{:?}", start.elapsed());
    let report = parse_json(&said.out);
    assert_eq!(report["away"], serde_json::json!(["node1"]));
    let affected = report["affected"].as_array().expect("a list");
    let lost = |path: &str| affected.iter().find(|one| one["path"] == path).map(|one| &one["lost"]);
    for file in 0..20 {
        // A directory whose inode is on the node hides its files.
        let path = format!("/d1/f{file}");
        assert!(lost(&path).is_some() || lost("/d1").is_some(), "{path}: {report:#}");
    }
    for one in affected {
        let path = one["path"].as_str().expect("a path");
        let own = one["lost"] != "bytes" || path.starts_with("/d1/f");
        assert!(own, "{path} has no bytes there: {report:#}");
    }
    let words = run(cluster.command("where").args(["--lost", ":/"])).out;
    assert!(words.contains("nodes that do not answer: node1"), "{words}");
    run(cluster.command("node start").arg("node1"));
    let said = run(cluster.command("where").arg("--lost"));
    assert!(said.out.contains("All nodes answer"), "{said:?}");
    cluster.finish();
}
