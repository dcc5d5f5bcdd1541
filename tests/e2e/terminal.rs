//! What a person at a terminal sees of Tatami: names of processes, tables that fit, and workloads
//! that run in a new directory.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use tatami_tests::Cluster;
use tatami_tests::command::{as_user, ask, copy_program, program, run, shell, tatami_bin};
use tatami_tests::files::names;

/// An ordinary user.
const USER: u32 = 4012;

/// Returns the name of a process, and the first word of its command line.
fn shown_names(pid: i32) -> (String, String) {
    let read = |file: &str| fs::read_to_string(format!("/proc/{pid}/{file}")).expect("it runs");
    let line = read("cmdline");
    (read("comm").trim().to_owned(), line.split('\0').next().unwrap_or_default().to_owned())
}

fn pair_of(name: &str) -> (String, String) {
    (name.to_owned(), name.to_owned())
}

#[test]
fn daemons_and_mounts_have_names_of_their_own() {
    let cluster = Cluster::start(2);
    assert_eq!(shown_names(cluster.node_pid(1)), pair_of("tatami-node"));
    assert_eq!(shown_names(cluster.mount_pid(1)), pair_of("tatami-mount"));
    let listed = run(&mut program("ps -C tatami-node -o pid=")).out;
    let pid = cluster.node_pid(0).to_string();
    assert!(listed.split_whitespace().any(|word| word == pid), "{pid} is not in {listed}");
    // A process that the user keeps in the foreground has the name, too.
    cluster.tatami("node stop", &["1"]);
    let mut command = std::process::Command::new(tatami_bin());
    let daemon = command.args(["node", "run", "--dir"]).arg(cluster.dir().join("node1"));
    let mut daemon = daemon.spawn().expect("it starts");
    while cluster.status()["nodes"][1]["up"] != true {
        assert!(daemon.try_wait().expect("a child").is_none(), "the daemon ended");
        tatami_tests::process::pause();
    }
    assert_eq!(shown_names(daemon.id() as i32).0, "tatami-node");
    cluster.tatami("node stop", &["1"]);
    assert!(daemon.wait().expect("it ends").success());
    cluster.start_node(1);
    cluster.finish();
}

#[test]
fn daemons_of_an_ordinary_user_have_names_of_their_own() {
    let dir = tempfile::Builder::new().prefix("ttt").tempdir_in("/tmp").expect("a directory");
    let (home, program) = (dir.path().join("home"), dir.path().join("tatami"));
    fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).expect("set");
    fs::create_dir(&home).expect("made");
    copy_program(tatami_bin(), &program);
    chown(&home, Some(USER), Some(USER)).expect("given");
    let tatami = |line: &str| {
        let line = format!("{} {line} --dir {}", program.display(), home.join("v").display());
        run(as_user(USER, &line).env("HOME", &home)).out
    };
    tatami("up --no-mount");
    let listed: serde_json::Value =
        serde_json::from_str(&tatami("node list --json")).expect("JSON");
    let pid = listed["nodes"][0]["pid"].as_i64().expect("it runs");
    assert_eq!(shown_names(pid as i32), pair_of("tatami-node"));
    tatami("down");
}

#[test]
fn tables_fit_the_terminal_and_are_whole_in_a_pipe() {
    let cluster = Cluster::start(2);
    let line = format!("{} node list --dir {}", tatami_bin().display(), cluster.dir().display());
    let on_terminal = |columns: u16| {
        let script = format!("stty cols {columns}; {line}");
        let said = run(shell(cluster.dir(), "script -qec \"$0\" /dev/null").arg(script));
        said.out.replace("\r\n", "\n")
    };
    let whole = cluster.dir().join("node1").display().to_string();
    let wide = on_terminal(200);
    assert!(wide.contains(&whole) && !wide.contains('…'), "{wide}");
    let narrow = on_terminal(70);
    let plain = strip_colours(&narrow);
    let longest = plain.lines().map(|line| line.chars().count()).max().unwrap_or(0);
    assert!(longest <= 70 && plain.contains('…'), "{longest} columns:\n{plain}");
    // The end of the path tells the nodes apart; addresses and process numbers are whole.
    let pid = cluster.node_pid(1).to_string();
    for part in ["/node1", "127.0.0.1:", pid.as_str()] {
        assert!(plain.contains(part), "no {part} in\n{plain}");
    }
    let piped = cluster.tatami("node list", &[]).out;
    assert!(piped.contains(&whole) && !piped.contains('…'), "{piped}");
    cluster.finish();
}

/// Returns the text without the escape sequences of colours.
fn strip_colours(text: &str) -> String {
    let mut parts = text.split("\u{1b}[");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |all, part| all + part.split_once('m').map_or("", |(_, rest)| rest))
}

#[test]
fn workloads_make_their_directory() {
    let cluster = Cluster::start(1);
    let m = cluster.mount(0);
    let bench = |line: &str| {
        let mut command = std::process::Command::new(tatami_bin());
        command.args(line.split(' ')).env("TATAMI_DIR", cluster.dir()).current_dir(&m);
        ask(&mut command)
    };
    let here = m.display();
    for line in [
        format!("bench mdtest -n 5 {here}/one/deep"),
        "bench mdtest -n 5 two".to_owned(),
        "bench mdtest -n 5 --library /three/deep".to_owned(),
        format!("bench ior -t 4k -b 8k -k {here}/four/deep/file"),
        "bench ior -t 4k -b 8k -k bare".to_owned(),
        "bench ior -t 4k -b 8k -k --library /five/file".to_owned(),
    ] {
        let said = bench(&line);
        assert_eq!(said.code, Some(0), "{line}: {said:?}");
    }
    assert_eq!(names(m.join("one/deep")), [""; 0]);
    for file in ["four/deep/file", "bare", "five/file"] {
        assert_eq!(fs::metadata(m.join(file)).expect(file).len(), 8192, "{file}");
    }
    cluster.finish();
}
