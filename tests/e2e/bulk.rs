//! Many names at a time: commands copy them into the volume, and the servers add them up and remove
//! them. Programs on mounts see the result, and work beside the commands.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use tatami_tests::command::{Said, as_user, ask, run, shell, tatami_bin, wide_number};
use tatami_tests::files::{fill_directory, get, names, pick_mount, put};
use tatami_tests::{Cluster, Setup};

const ANNA: u32 = 20001;

/// Makes a tree: files of several sizes, links, a directory with many names, and an empty one.
fn plant(root: &Path, many: usize) {
    fs::create_dir_all(root.join("a/b/c")).expect("mkdir");
    fs::create_dir(root.join("empty")).expect("mkdir");
    fs::create_dir(root.join("many")).expect("mkdir");
    for (n, len) in [0, 1, 511, 4096, 70_000, 3_000_000].into_iter().enumerate() {
        put(root.join(format!("a/size{n}")), vec![n as u8; len]);
        put(root.join(format!("a/b/c/size{n}")), vec![b'x'; len / 2]);
    }
    (0..many).for_each(|n| put(root.join(format!("many/file{n}")), format!("{n}")));
    symlink("size1", root.join("a/link")).expect("symlink");
    symlink("nowhere", root.join("a/b/dangling")).expect("symlink");
    fs::set_permissions(root.join("a/size1"), fs::Permissions::from_mode(0o640)).expect("chmod");
}

/// Makes a folder beside the volume.
fn local(cluster: &Cluster, name: &str) -> PathBuf {
    let dir = cluster.dir().join(name);
    fs::create_dir(&dir).expect("mkdir");
    dir
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

fn same(a: &Path, b: &Path) {
    run(shell(Path::new("/"), "diff -r --no-dereference \"$0\" \"$1\"").arg(a).arg(b));
}

#[test]
fn what_is_copied_in_bulk_is_seen_at_once() {
    // One client makes the copy, which splits above 8,192 entries.
    const MANY: usize = 8500;
    let cluster = Cluster::start(2);
    let source = local(&cluster, "source");
    plant(&source, MANY);
    let (m0, m1) = (cluster.mount(0), cluster.mount(1));
    // Both mounts have cached the absence, and the first has cached the whole directory that it has
    // made.
    fs::create_dir(m0.join("d")).expect("mkdir");
    for m in [&m0, &m1] {
        assert!(!m.join("d/source").exists() && names(m.join("d")).is_empty());
    }
    cluster.tatami("cp", &["-r", "-p", text(&source), ":/d"]);
    for m in [&m0, &m1] {
        assert_eq!(names(m.join("d/source/many")).len(), MANY);
        same(&source, &m.join("d/source"));
        let mode = fs::metadata(m.join("d/source/a/size1")).expect("stat").permissions().mode();
        assert_eq!(mode & 0o777, 0o640);
        let times =
            |root: &Path| fs::metadata(root.join("a/size4")).and_then(|m| m.modified()).ok();
        assert_eq!(times(&source), times(&m.join("d/source")));
    }
    // Over existing files, and through a link.
    put(source.join("a/size4"), "less");
    fs::remove_file(m1.join("d/source/a/size5")).expect("removed");
    put(m1.join("target"), "to be written over");
    symlink("../../../target", m1.join("d/source/a/size5")).expect("symlink");
    // Links are replaced.
    fs::remove_file(m0.join("d/source/a/link")).expect("removed");
    symlink("elsewhere", m0.join("d/source/a/link")).expect("symlink");
    cluster.tatami("cp", &["-r", text(&source), ":/d"]);
    assert_eq!(get(m0.join("target")).len(), 3_000_000);
    same(&source.join("a/b"), &m0.join("d/source/a/b"));
    cluster.tatami("rm", &["-r", ":/d"]);
    assert!(!m0.join("d").exists() && !m1.join("d").exists());
    assert!(!names(&m0).contains(&"d".to_owned()) && !names(&m1).contains(&"d".to_owned()));
    cluster.finish();
}

#[test]
fn daemons_may_die_during_bulk_work() {
    let cluster = Cluster::start(3);
    let source = local(&cluster, "source");
    plant(&source, 3000);
    for round in 0..3 {
        let to = format!(":/copy{round}");
        let mut copy =
            cluster.command("cp").args(["-r", text(&source), &to]).spawn().expect("it runs");
        for node in 0..3 {
            cluster.kill_node(node);
            cluster.start_node(node);
        }
        assert!(copy.wait().expect("it ends").success());
        same(&source, &cluster.mount(round).join(format!("copy{round}")));
    }
    for round in 0..3 {
        let path = format!(":/copy{round}");
        let mut removal = cluster.command("rm").args(["-r", &path]).spawn().expect("it runs");
        let node = round % 3;
        cluster.kill_node(node);
        cluster.start_node(node);
        assert!(removal.wait().expect("it ends").success());
    }
    assert!(names(cluster.mount(0)).is_empty());
    cluster.finish();
}

/// Makes two mounts change a directory, so that it splits if it has more than 1,024 entries.
fn split_directory(cluster: &Cluster, dir: &str) {
    for n in 0..16 {
        put(cluster.mount(n % 2).join(dir).join(format!("splits{n}")), "");
    }
}

/// Returns the output of `du -k`, by path below a root.
fn lines(said: &Said, root: &str) -> BTreeSet<(String, String)> {
    let line = |line: &str| {
        let (amount, path) = line.split_once('\t').expect("two columns");
        let path = path.strip_prefix(root).expect("below the root");
        (path.to_owned(), amount.to_owned())
    };
    said.out.lines().map(line).collect()
}

#[test]
fn du_says_what_du_says() {
    let cluster = Cluster::start(3);
    let m = cluster.mount(1);
    plant(&m.join("tree"), 1300);
    split_directory(&cluster, "tree/many");
    for n in 0..5 {
        fs::hard_link(m.join("tree/a/size5"), m.join(format!("tree/a/again{n}"))).expect("link");
    }
    // The inodes and their names are on different nodes.
    fs::create_dir(m.join("tree/moved")).expect("mkdir");
    for n in 0..200 {
        let name = format!("file{n}");
        fs::rename(m.join("tree/many").join(&name), m.join("tree/moved").join(&name))
            .expect("rename");
    }
    let sparse = fs::File::create(m.join("tree/sparse")).expect("made");
    sparse.set_len(1 << 30).expect("cut");
    drop(sparse);
    // On a mount that has not written the files.
    let m = cluster.mount(2);
    let report = lines(&run(&mut shell(&m, "du -k tree")), "");
    let ours = lines(&cluster.tatami("du", &[":/tree"]), ":/");
    assert_eq!(ours, report);
    let report = lines(&run(&mut shell(&m, "du -k -s --apparent-size tree/a tree/many")), "");
    let ours = cluster.tatami("du", &["-s", "--apparent-size", ":/tree/a", ":/tree/many"]);
    // du on the mount counts directories, too, as long as they have names.
    let ours = lines(&ours, ":/");
    assert_eq!(ours.iter().map(|(path, _)| path).collect::<Vec<_>>(), ["tree/a", "tree/many"]);
    assert_eq!(report.len(), 2);
    let json = cluster.tatami("du", &["-s", "--json", text(&m.join("tree"))]);
    let json: serde_json::Value = serde_json::from_str(&json.out).expect("JSON");
    let find = |kind: &str| {
        let script = format!("find tree {kind} -printf '%i\\n' | sort -u | wc -l");
        run(&mut shell(&m, &script)).out.trim().parse::<u64>().expect("a number")
    };
    assert_eq!(json["paths"][0]["files"], find("! -type d"));
    assert_eq!(json["paths"][0]["directories"], find("-type d"));
    assert!(wide_number(&json["paths"][0]["size"]) > 1 << 30);
    let human = cluster.tatami("du", &["-sh", ":/tree/empty"]);
    assert_eq!(human.out, "0\t:/tree/empty\n");
    cluster.finish();
}

fn as_anna(cluster: &Cluster, verb: &str, args: &[&str]) -> Said {
    let mut command = as_user(ANNA, text(&tatami_bin()));
    command.args([verb, "--dir"]).arg(cluster.dir()).args(args);
    ask(&mut command)
}

/// Makes two trees of the same kind, for an ordinary user without some permissions in them.
fn plant_for_anna(cluster: &Cluster, name: &str) {
    let (m, other) = (cluster.mount(0), cluster.mount(1));
    let top = m.join(name);
    let own = |path: &Path| chown(path, Some(ANNA), Some(ANNA)).expect("chown");
    for dir in ["hers/below", "roots", "roots/below", "closed", "sticky"] {
        fs::create_dir_all(top.join(dir)).expect("mkdir");
        (0..30).for_each(|n| put(top.join(dir).join(format!("file{n}")), "x"));
    }
    for n in 0..1200 {
        let mount = pick_mount([&m, &other], n, 1200);
        put(mount.join(name).join(format!("hers/many{n}")), "");
    }
    put(top.join("sticky/hers"), "x");
    for path in ["", "hers", "hers/below", "roots/below", "closed", "sticky/hers"] {
        own(&top.join(path));
    }
    let mode = |path: &str, bits| {
        fs::set_permissions(top.join(path), fs::Permissions::from_mode(bits)).expect("chmod");
    };
    mode("closed", 0o300);
    mode("sticky", 0o1777);
}

/// Returns all paths below a directory.
fn below(m: &Path, name: &str) -> String {
    run(shell(&m.join(name), "find . | sort").env("LC_ALL", "C")).out
}

#[test]
fn rm_does_what_rm_does() {
    let cluster = Cluster::start(2);
    let m = cluster.mount(0);
    plant_for_anna(&cluster, "one");
    plant_for_anna(&cluster, "two");
    let du = as_anna(&cluster, "du", &["-s", ":/two"]);
    assert!(du.code == Some(1) && du.err.contains(":/two/closed"), "{du:?}");
    let ours = as_anna(&cluster, "rm", &["-r", ":/two"]);
    let mut rm = as_user(ANNA, "rm -rf one");
    let theirs = ask(rm.current_dir(&m));
    assert_eq!((ours.code, theirs.code), (Some(1), Some(1)), "{} {}", ours.err, theirs.err);
    assert!(ours.err.to_lowercase().contains("permission denied"), "{}", ours.err);
    assert!(ours.err.contains(":/two/roots/file7") && ours.err.contains(":/two/closed"));
    let left = below(&m, "two");
    assert_eq!(left, below(&m, "one"));
    assert!(left.contains("./roots/file0") && !left.contains("hers"), "{left}");
    // The superuser may.
    let said = cluster.tatami("rm", &["-r", "-v", ":/two", ":/one"]);
    assert!(
        said.out.contains("removed :/two/closed/file3\n") && said.out.ends_with("removed :/one\n")
    );
    assert!(names(&m).is_empty());
    let again = ask(cluster.command("rm").args(["-r", ":/two"]));
    assert!(again.code == Some(1), "{again:?}");
    cluster.tatami("rm", &["-r", "-f", ":/two"]);
    cluster.finish();
}

#[test]
fn dir_tells_where_names_are() {
    const FILES: usize = 1500;
    let cluster = Cluster::start(3);
    let m = cluster.mount(2);
    fill_directory([&m, &cluster.mount(0)], "large", FILES);
    let report = |path: &str| -> serde_json::Value {
        let said = cluster.tatami("dir", &["--json", path]);
        let mut report: serde_json::Value = serde_json::from_str(&said.out).expect("JSON");
        report["directories"][0].take()
    };
    let root = report(":/");
    assert_eq!(
        (&root["entries"], root["partitions"].as_array().map(Vec::len)),
        (&1.into(), Some(1))
    );
    // The directory splits soon after it has grown; with an absent node, after a while.
    let mut large = report(text(&m.join("large")));
    while large["partitions"].as_array().is_none_or(|parts| parts.len() < 16) {
        put(m.join("large/0"), "");
        large = report(":/large");
    }
    assert_eq!(large["entries"], FILES);
    let parts = large["partitions"].as_array().expect("a list");
    let nodes: BTreeSet<_> = parts.iter().map(|part| part["node"].as_u64()).collect();
    assert_eq!(nodes, BTreeSet::from([Some(0), Some(1), Some(2)]));
    let table = cluster.tatami("dir", &[":/", ":/large"]).out;
    assert!(table.contains("1500 entries in 16 partitions") && table.contains("node1"), "{table}");
    let file = ask(cluster.command("dir").arg(":/large/0"));
    assert!(
        file.code == Some(1) && file.err.to_lowercase().contains("not a directory"),
        "{file:?}"
    );
    cluster.finish();
}

/// A volume of one node behaves the same.
#[test]
fn one_node_does_the_same() {
    let cluster = Setup::nodes(1).start();
    let source = local(&cluster, "source");
    plant(&source, 1100);
    cluster.tatami("cp", &["-r", text(&source), ":/copy"]);
    same(&source, &cluster.mount(0).join("copy"));
    let report = run(&mut shell(&cluster.mount(0), "du -ks copy")).out;
    assert_eq!(cluster.tatami("du", &["-s", ":/copy"]).out, report.replace("\tcopy", "\t:/copy"));
    let said = cluster.tatami("bench", &["mdtest", "--library", "--bulk", "64", "-n", "200", "/"]);
    assert!(said.out.contains("64 in a request"), "{}", said.out);
    cluster.tatami("rm", &["-r", ":/copy"]);
    assert!(names(cluster.mount(0)).is_empty());
    cluster.finish();
}
