//! The output of every `--json` command, held against docs/reference/json.schema.json.

use serde_json::Value;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::process::Command;
use tatami_tests::Cluster;
use tatami_tests::command::{
    as_user, ask, copy_program, run, shell, sources, tatami_bin, wide_number,
};
use tatami_tests::files::put;
use tatami_tests::process::pause;
use tatami_tests::schema::{JsonSchema, decode_base64};

/// An ordinary user.
const USER: u32 = 4013;
/// A name that is Latin-1, not UTF-8.
const LATIN: &[u8] = b"caf\xe9";
/// Commands whose `--json` is a file of results with a form of its own, as docs/reference/json.md
/// says.
const RESULT_FILES: [&str; 2] = ["bench predict", "bench mpi"];
/// Commands that need a batch job: `tests/e2e/jobs_slurm.rs` holds them against the schema.
const IN_JOBS: [&str; 1] = ["job up"];

fn read_schema() -> JsonSchema {
    let path = sources().join("../docs/reference/json.schema.json");
    JsonSchema::parse(&fs::read_to_string(path).expect("the schema is there"))
}

/// A cluster, the schema, and the definitions that outputs were held against.
struct JsonRun {
    cluster: Cluster,
    schema: JsonSchema,
    seen: BTreeSet<String>,
}

impl JsonRun {
    fn start(nodes: u16) -> JsonRun {
        let cluster = Cluster::start(nodes);
        JsonRun { cluster, schema: read_schema(), seen: BTreeSet::new() }
    }

    /// Runs a command with `--json`, and checks its output against the definition `name`.
    fn check_command(&mut self, name: &str, command: &mut Command) -> Value {
        let said = ask(command);
        assert_eq!(said.code, Some(0), "{command:?}: {said:?}");
        let value: Value = serde_json::from_str(&said.out)
            .unwrap_or_else(|e| panic!("{command:?}: {e}: {said:?}"));
        if let Err(why) = self.schema.check_value(name, &value) {
            panic!("{command:?}: {why}\n{value:#}");
        }
        self.seen.insert(name.to_owned());
        value
    }

    fn check_line<S: AsRef<OsStr>>(&mut self, verb: &str, args: &[S]) -> Value {
        let mut command = self.cluster.command(verb);
        self.check_command(&verb.replace(' ', "-"), command.arg("--json").args(args))
    }
}

/// Returns the commands with `--json`, as their help says.
fn json_commands() -> BTreeSet<String> {
    let page = run(Command::new(tatami_bin()).args(["man", "--markdown"])).out;
    let blocks = page.split("\n## tatami ").skip(1).filter_map(|block| block.split_once('\n'));
    let with_json = blocks.filter(|(_, help)| help.contains(" --json "));
    with_json.map(|(command, _)| command.to_owned()).collect()
}

/// Checks that a path in the output can be brought back, byte for byte.
fn assert_recoverable(object: &Value, end: &[u8]) {
    assert!(object["path"].as_str().is_some_and(|text| text.contains('\u{fffd}')), "{object}");
    let bytes = object["path_bytes"].as_str().and_then(decode_base64);
    assert!(bytes.is_some_and(|bytes| bytes.ends_with(end)), "{object}");
}

/// A new command with `--json`, and a new field, fail this test until the schema has them.
#[test]
fn the_output_of_every_command_fits_the_schema() {
    let mut run_of = JsonRun::start(2);
    let m = run_of.cluster.mount(1);
    let local = tempfile::tempdir().expect("a directory");
    let latin = m.join(OsStr::from_bytes(LATIN));
    put(m.join("f"), "bytes");
    fs::create_dir(&latin).expect("made");
    put(latin.join("inside"), "more bytes");
    std::os::unix::fs::symlink(OsStr::from_bytes(b"to\xff"), m.join("link")).expect("linked");
    let sparse = fs::File::create(m.join("sparse")).expect("made");
    sparse.set_len(1 << 43).expect("cut");
    drop(sparse);
    let in_volume = [b":/".as_slice(), LATIN].concat();
    let in_volume = OsStr::from_bytes(&in_volume);
    let inside = [b":/".as_slice(), LATIN, b"/inside"].concat();
    let inside = OsStr::from_bytes(&inside);

    let listed = run_of.check_line("ls", &["-R"]);
    let entries = listed["entries"].as_array().expect("entries").clone();
    let path_of = |path: &str| entries.iter().find(|e| e["path"] == path).expect("it is listed");
    assert_eq!(wide_number(&path_of("/sparse")["size"]), 1 << 43);
    assert_eq!(path_of("/f").get("path_bytes"), None);
    let target = path_of("/link")["target_bytes"].as_str().and_then(decode_base64);
    assert_eq!(target.as_deref(), Some(b"to\xff".as_slice()));
    let odd: Vec<_> = entries.iter().filter(|e| e.get("path_bytes").is_some()).collect();
    assert_eq!(odd.len(), 2, "{listed:#}");
    assert_recoverable(odd.iter().max_by_key(|e| e["path"].as_str()).expect("two"), b"/inside");

    let stat = run_of.check_line("stat", &[OsStr::new(":/f"), inside]);
    for (file, path) in [(0, m.join("f")), (1, latin.join("inside"))] {
        let ino = wide_number(&stat["files"][file]["ino"]);
        assert_eq!(ino, fs::metadata(&path).expect("stat").ino());
        assert!(stat["files"][file]["ino"].is_string());
    }
    assert_recoverable(&stat["files"][1], b"caf\xe9/inside");
    let du = run_of.check_line("du", &["-s"]);
    assert!(du["paths"][0]["size"].is_string());
    assert_recoverable(&run_of.check_line("du", &[in_volume])["paths"][0], LATIN);
    for line in ["df", "status", "fsck", "config"] {
        run_of.check_line(line, &[""; 0]);
    }
    let found = run_of.check_line("where", &[OsStr::new(":/f"), OsStr::new(":/"), inside]);
    assert_recoverable(&found["files"][2], b"/inside");
    assert_recoverable(&run_of.check_line("get", &[in_volume])["directories"][0], LATIN);
    assert_recoverable(&run_of.check_line("dir", &[in_volume])["directories"][0], LATIN);
    fs::create_dir(m.join("kept")).expect("made");
    let kept = ["--inline", "0", "--engine", "region", "--versions", "3", ":/kept"];
    run_of.cluster.tatami("set", &kept);
    put(m.join("kept/f"), "bytes");
    run_of.check_line("versions", &[":/kept/f"]);
    fs::remove_dir_all(m.join("kept")).expect("removed");
    assert_recoverable(&run_of.check_line("recover", &[inside])["files"][0], b"/inside");
    assert_recoverable(&run_of.check_line("relayout", &[inside])["files"][0], b"/inside");

    let archive = local.path().join("archive.tar");
    run(&mut shell(local.path(), "echo bytes > f && tar cf archive.tar f"));
    run_of.check_line("untar", &[archive.as_os_str(), OsStr::new(":/unpacked")]);
    run_of.check_line("set", &["-r", "--inline", "1k", ":/"]);
    let args = ["--json", "--to", "policy", "-r", ":/"];
    let mut command = run_of.cluster.command("relayout");
    run_of.check_command("policy-moves", command.args(args));

    // A container, and a relayout in the background.
    let container = local.path().join("container");
    put(&container, "bytes in a container");
    let as_container = ["--to", "container", container.to_str().expect("UTF-8")];
    run_of.check_line("relayout", &as_container);
    for verb in ["where", "recover"] {
        let said = run_of.check_line(verb, &[&container]);
        assert!(said["files"][0]["size"].is_string(), "{said}");
    }
    let background = run(run_of.cluster.command("relayout").arg("--background").arg(inside)).out;
    let pid = background.split_whitespace().nth(1).and_then(|pid| pid.parse::<u64>().ok());
    let pid = pid.expect("a process");
    let note = loop {
        let mut command = run_of.cluster.command("relayout");
        let said = run_of.check_command("relayout-status", command.args(["--status", "--json"]));
        let all = said["relayouts"].as_array().expect("a list").clone();
        let ours = all.into_iter().find(|one| one["pid"] == pid).expect("a note");
        if ours["state"] != "running" {
            break ours;
        }
        pause();
    };
    assert_recoverable(&note["paths"][0], b"/inside");

    let nodes = run_of.check_line("node list", &[""; 0]);
    assert!(nodes.to_string().len() < 2000, "it lists runs of shards, not each one: {nodes}");
    let shards = |said: &Value| -> u64 {
        let all = said["nodes"].as_array().expect("nodes");
        all.iter().map(|node| node["shards"].as_u64().expect("a number")).sum()
    };
    let ranges = nodes["nodes"].as_array().expect("nodes").iter().flat_map(|node| {
        node["shard_ranges"].as_array().expect("ranges").iter().map(|range| {
            let end = |i: usize| range[i].as_u64().expect("a number");
            end(1) - end(0) + 1
        })
    });
    assert_eq!(ranges.sum::<u64>(), shards(&nodes), "{nodes}");
    run_of.check_line("node add", &[""; 0]);
    run_of.check_line("node drain", &["2"]);
    run_of.check_line("node rebalance", &["2"]);
    let mut command = run_of.cluster.command("where");
    run_of.check_command("where-lost", command.args(["--lost", "--json"]));
    run_of.check_line("node list", &[""; 0]);
    run_of.check_line("node drain", &["2"]);
    run_of.check_line("node remove", &["2"]);
    let work = run_of.cluster.dir().join("regions-work");
    for line in [
        "bench mdtest -n 5",
        "bench ior -t 4k -b 8k",
        "bench wire -n 50 -i 1",
        "bench smallfiles -n 20 --directories 3 -p 2",
        "bench regions -n 64 --depth 1,4",
    ] {
        let mut command = Command::new(tatami_bin());
        command.args(line.split(' ')).arg("--json");
        if line.contains("regions") {
            command.arg("--work").arg(&work);
        } else if !line.contains("wire") {
            // mdtest and smallfiles work in a directory, and ior on a file.
            command.arg(m.join("bench").join(line.split(' ').nth(1).expect("a workload")));
        }
        let name: Vec<&str> = line.split(' ').take(2).collect();
        run_of.check_command(&name.join("-"), &mut command);
    }

    let seen: BTreeSet<String> = run_of.seen.iter().map(|name| name.replace('-', " ")).collect();
    let missing: Vec<_> = json_commands()
        .into_iter()
        .filter(|name| !seen.contains(name) && !RESULT_FILES.contains(&name.as_str()))
        .filter(|name| !IN_JOBS.contains(&name.as_str()))
        .collect();
    assert!(missing.is_empty(), "the schema has no output of {missing:?}");
    run_of.cluster.finish();
}

/// What an ordinary user gets has the same form, and common tools read it without a loss.
#[test]
fn tools_of_an_ordinary_user_read_numbers_and_names() {
    let mut run_of = JsonRun::start(1);
    let m = run_of.cluster.mount(0);
    put(m.join(OsStr::from_bytes(LATIN)), "bytes");
    let line = |verb: &str| {
        let dir = run_of.cluster.dir().display();
        format!("{} {verb} --dir {dir} --json", run_of.cluster.dir().join("tatami").display())
    };
    copy_program(tatami_bin(), run_of.cluster.dir().join("tatami"));
    let (ls, status) = (line("ls"), line("status"));
    run_of.check_command("ls", &mut as_user(USER, &ls));
    run_of.check_command("status", &mut as_user(USER, &status));
    let script = "$0 | jq -r '.entries[0] | .ino, .path_bytes' > out
        head -1 out; tail -1 out | base64 -d";
    let mut command = shell(run_of.cluster.dir(), script);
    let said = command.arg(ls).output().expect("it runs");
    assert!(said.status.success(), "{said:?}");
    let ino = fs::metadata(m.join(OsStr::from_bytes(LATIN))).expect("stat").ino();
    let wanted = [ino.to_string().as_bytes(), b"\n/", LATIN].concat();
    assert_eq!(said.stdout, wanted, "{said:?}");
    run_of.cluster.finish();
}
