//! Starting, stopping and restarting volumes, and the output of these commands.

mod common;

use common::{Said, Volume, tatami};

const NOTHING: [&str; 0] = [];

#[test]
fn a_second_up_changes_nothing() {
    let volume = Volume::mounted(2);
    let (pids, address) = ([volume.pid(0), volume.pid(1)], volume.address(1));
    let said = volume.run("up", NOTHING);
    assert!(said.works().out.contains("ran already"), "{said:?}");
    assert_eq!([volume.pid(0), volume.pid(1)], pids);
    assert_eq!(volume.address(1), address);
    assert_eq!(volume.mounts().len(), 2);
}

#[test]
fn what_was_written_is_there_after_down_and_up() {
    let volume = Volume::mounted(1);
    let file = volume.path("mnt/dir/file");
    std::fs::create_dir(volume.path("mnt/dir")).expect("made");
    std::fs::write(&file, "kept").expect("written");
    let address = volume.address(0);
    volume.run("down", NOTHING).works();
    assert!(volume.mounts().is_empty() && volume.processes().is_empty());
    assert!(!file.exists());
    let said = volume.run("down", NOTHING);
    assert!(said.works().out.contains("did not run"), "{said:?}");
    // Only the first `up` got the mount point.
    volume.run("up", NOTHING).works();
    assert_eq!(std::fs::read(&file).expect("found again"), b"kept");
    assert_eq!(volume.address(0), address);
    assert_eq!(volume.run("cat", [":/dir/file"]).works().out, "kept");
    volume.run("fsck", NOTHING).works();
}

#[test]
fn up_starts_what_is_missing() {
    let volume = Volume::mounted(2);
    volume.run("node stop", ["1"]).works();
    let said = volume.run("status", ["--json"]);
    assert_eq!(said.code, Some(3), "{said:?}");
    let status = said.json();
    assert_eq!(status["healthy"], false);
    assert_eq!(status["nodes"][1]["up"], false);
    tatami(["umount".as_ref(), volume.path("mnt/node0").as_os_str()]).works();
    let kept = volume.pid(0);
    volume.run("up", NOTHING).works();
    assert_eq!(volume.pid(0), kept);
    assert_eq!(volume.mounts().len(), 2);
    // A restarted daemon learns of its mounts when they reconnect.
    volume.run("status", NOTHING).works();
}

#[test]
fn a_killed_daemon_and_a_killed_mount_are_replaced() {
    use rustix::process::{Pid, Signal, kill_process};
    let volume = Volume::mounted(1);
    let kill = |pid: i64| {
        let pid = Pid::from_raw(pid as i32).expect("a process number");
        kill_process(pid, Signal::KILL).expect("it runs");
    };
    std::fs::write(volume.path("mnt/f"), "kept").expect("written");
    let status = volume.run("status", ["--json"]).works().json();
    kill(status["mounts"][0]["pid"].as_i64().expect("a process"));
    kill(volume.pid(0).expect("it runs"));
    volume.run("up", NOTHING).works();
    assert_eq!(std::fs::read(volume.path("mnt/f")).expect("found again"), b"kept");
    volume.run("down", NOTHING).works();
    assert!(volume.processes().is_empty());
}

#[test]
fn a_daemon_that_hangs_is_told_and_can_be_forced() {
    use rustix::process::{Pid, Signal, kill_process};
    let volume = Volume::up(1);
    let pid = volume.pid(0).and_then(|pid| Pid::from_raw(pid as i32)).expect("it runs");
    kill_process(pid, Signal::STOP).expect("it runs");
    let said = volume.run("status", NOTHING);
    said.fails(3, &[]);
    assert!(said.out.contains("does not answer (silent for"), "{said:?}");
    volume.run("up", ["--no-mount"]).fails(3, &["does not answer", "node stop --force"]);
    volume.run("node stop", ["--force", "0"]).works();
    volume.run("up", ["--no-mount"]).works();
    volume.run("status", NOTHING).works();
}

#[test]
fn nodes_are_started_and_stopped_by_number_and_name() {
    let volume = Volume::up(2);
    volume.run("node stop", ["node1"]).works();
    assert!(volume.run("node stop", ["1"]).works().out.contains("did not run"));
    volume.run("node start", ["1"]).works();
    assert!(volume.run("node start", ["node1"]).works().out.contains("runs already"));
}

#[test]
fn json_is_json_everywhere() {
    let volume = Volume::mounted(2);
    std::fs::write(volume.path("mnt/node1/f"), "12345").expect("written");
    let status = volume.run("status", ["--json"]).works().json();
    assert_eq!(status["healthy"], true);
    assert_eq!(status["nodes"].as_array().map(Vec::len), Some(2));
    assert_eq!(status["mounts"].as_array().map(Vec::len), Some(2));
    assert!(status["mounts"][0]["passthrough"].is_boolean());
    assert!(status["space"]["total"].as_str().is_some_and(|total| total != "0"));
    let config = volume.run("config", ["--json"]).works().json();
    assert_eq!(config["keys"]["node.lease_sec"]["value"], 60);
    let listed = volume.run("ls", ["--json"]).works().json();
    assert_eq!(listed["entries"][0]["path"], "/f");
    let stat = volume.run("stat", ["--json", ":/f"]).works().json();
    assert_eq!(stat["files"][0]["size"], "5");
    let df = volume.run("df", ["--json"]).works().json();
    assert_eq!(df["nodes"].as_array().map(Vec::len), Some(2));
    let fsck = volume.run("fsck", ["--json"]).works().json();
    assert_eq!(fsck["clean"], true);
    let report = volume.run("where", ["--json", ":/f"]).works().json();
    let extent = &report["files"][0]["extents"][0];
    assert_eq!((&extent["node"], &extent["len"]), (&1.into(), &"5".into()));
    let object = extent["object"].as_str().expect("a path");
    assert_eq!(std::fs::read(object).expect("the backing file"), b"12345");
}

#[test]
fn a_workload_reaches_the_volume_through_the_library() {
    let volume = Volume::up(1);
    let said = volume.run("bench", ["mdtest", "--library", "--json", "-n", "5", "/"]);
    assert!(said.works().json().is_object(), "{said:?}");
    volume.run("fsck", NOTHING).works();
}

#[test]
fn where_finds_the_volume_of_a_mount_by_itself() {
    let volume = Volume::mounted(2);
    let path = volume.path("mnt/node1/f");
    std::fs::write(&path, "12345").expect("written");
    let said = tatami(["where".as_ref(), path.as_os_str()]);
    assert!(said.works().out.contains("node1"), "{said:?}");
    tatami(["where", "/etc/passwd"]).fails(2, &["not on a mount of Tatami"]);
}

#[test]
fn exec_shows_a_node_at_the_common_path() {
    let volume = Volume::mounted(2);
    let mnt = volume.path("mnt");
    let file = mnt.join("from-rank");
    let script = format!("echo here > {}", file.display());
    let mut command = volume.command("exec", ["--node", "rank", "--", "sh", "-c", &script]);
    // Started from a directory that the new mount covers.
    let command = command.current_dir(&mnt).env("OMPI_COMM_WORLD_RANK", "3");
    Said::from(command.output().expect("tatami can be run")).works();
    assert!(!file.exists(), "only the program saw it there");
    assert_eq!(std::fs::read(mnt.join("node0/from-rank")).expect("in the volume"), b"here\n");
    let report = volume.run("where", ["--json", ":/from-rank"]).works().json();
    assert_eq!(report["files"][0]["extents"][0]["node"], 1);
    let said = volume.run("exec", ["--node", "1", "--", "sh", "-c", "exit 7"]);
    assert_eq!(said.code, Some(7), "{said:?}");
    volume.run("exec", ["--node", "rank", "--", "true"]).fails(2, &["OMPI_COMM_WORLD_RANK"]);
    volume.run("exec", ["--", "/nonexistent"]).fails(1, &["/nonexistent"]);
}

#[test]
fn a_program_that_exec_started_keeps_its_mount_busy() {
    let volume = Volume::mounted(2);
    let mut command = volume.command("exec", ["--node", "1", "--", "sh", "-c", "echo up; read x"]);
    let mut child = command
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut line = [0; 3];
    std::io::Read::read_exact(&mut child.stdout.take().expect("piped"), &mut line).expect("up");
    let said = volume.run("down", NOTHING);
    drop(child.stdin.take());
    child.wait().expect("it ends");
    said.fails(1, &["in use", &format!("(process {})", child.id()), "namespace"]);
    volume.run("down", NOTHING).works();
}

#[test]
fn files_are_copied_both_ways() {
    let volume = Volume::up(2);
    let (from, to) = (volume.path("from"), volume.path("to"));
    std::fs::create_dir_all(from.join("a/empty")).expect("made");
    let large: Vec<u8> = (0..9_000_000u32).map(|i| (i * 7) as u8).collect();
    std::fs::write(from.join("a/large"), &large).expect("written");
    std::fs::write(from.join("small"), "s").expect("written");
    std::os::unix::fs::symlink("a/large", from.join("link")).expect("linked");
    let text = |p: &std::path::Path| p.to_str().expect("UTF-8").to_owned();
    volume.run("cp", ["-rp", &text(&from), ":/"]).works();
    volume.run("cp", ["-r", ":/from", ":/again"]).works();
    volume.run("cp", ["-rp", ":/again", &text(&to)]).works();
    assert_eq!(std::fs::read(to.join("a/large")).expect("copied"), large);
    assert_eq!(
        std::fs::read_link(to.join("link")).expect("a link"),
        std::path::Path::new("a/large")
    );
    assert!(to.join("a/empty").is_dir());
    let listed = volume.run("ls", ["-R", ":/from"]);
    assert_eq!(
        listed.works().out,
        ":/from:\na\nlink\nsmall\n\n:/from/a:\nempty\nlarge\n\n:/from/a/empty:\n"
    );
    let wrong = volume.run("cp", [&text(&from.join("small")), ":/none/x"]);
    wrong.fails(1, &[":/none/x", "no such file or directory"]);
    volume.run("cp", [":/from", "/tmp/"]).fails(1, &["is a directory", "cp -r"]);
    volume.run("cp", [":/from/small", ":/from/small"]).fails(1, &["same file"]);
    volume.run("cp", ["/etc/passwd", "/tmp/x"]).fails(2, &["colon"]);
    volume.run("rm", [":/from"]).fails(1, &["rm -r"]);
    volume.run("rm", ["-r", ":/from", ":/again"]).works();
    assert_eq!(volume.run("ls", NOTHING).works().out, "");
    volume.run("rm", ["-r", ":/"]).fails(2, &["will not remove"]);
    volume.run("fsck", NOTHING).works();
}

#[test]
fn fsck_finds_and_mends() {
    let volume = Volume::up(2);
    let write = |name: &str, bytes: &[u8]| {
        let path = volume.path(name);
        std::fs::write(&path, bytes).expect("written");
        volume.run("cp", [path.to_str().expect("UTF-8"), ":/"]).works();
        let report = volume.run("where", ["--json", &format!(":/{name}")]).works().json();
        report["files"][0]["extents"][0]["object"].as_str().expect("an object").to_owned()
    };
    let (lost, grown, good) =
        (write("lost", b"12345"), write("grown", b"12345"), write("good", b"x"));
    volume.run("fsck", NOTHING).works();
    volume.run("down", NOTHING).works();
    std::fs::remove_file(&lost).expect("there");
    std::fs::write(&grown, "123456789").expect("written");
    let stray = good.replace("0000000000", "00000ff000");
    std::fs::create_dir_all(std::path::Path::new(&stray).parent().expect("below")).expect("made");
    std::fs::write(&stray, "nobody's").expect("written");
    let misplaced = good.replace("/node0/", "/node1/");
    std::fs::create_dir_all(std::path::Path::new(&misplaced).parent().expect("below"))
        .expect("made");
    std::fs::write(&misplaced, "elsewhere").expect("written");
    volume.run("up", ["--no-mount"]).works();
    let kinds = |said: &Said| {
        let found = said.json()["findings"].as_array().expect("a list").clone();
        let mut kinds: Vec<String> =
            found.iter().map(|f| f["kind"].as_str().expect("a kind").to_owned()).collect();
        kinds.sort_unstable();
        kinds
    };
    let all = ["inode-without-object", "misplaced-object", "object-without-inode", "size"];
    let said = volume.run("fsck", ["--json"]);
    assert_eq!((said.code, &kinds(&said)[..]), (Some(4), &all.map(String::from)[..]), "{said:?}");
    let said = volume.run("fsck", NOTHING);
    said.fails(4, &[]);
    assert!(said.out.contains("4 left") && said.out.contains("--repair"), "{said:?}");
    let said = volume.run("fsck", ["--repair", "--json"]);
    assert_eq!((said.code, &kinds(&said)[..]), (Some(4), &all.map(String::from)[..]), "{said:?}");
    let said = volume.run("fsck", NOTHING);
    assert!(said.code == Some(4) && said.out.contains("/lost on node0"), "{said:?}");
    // Lost bytes stay lost until the file is written again.
    volume.run("cat", [":/lost"]).fails(1, &["cannot read :/lost"]);
    let anew = volume.path("good");
    volume.run("cp", [anew.to_str().expect("UTF-8"), ":/lost"]).works();
    volume.run("fsck", NOTHING).works();
    assert!(!std::path::Path::new(&stray).exists() && !std::path::Path::new(&misplaced).exists());
    assert_eq!(volume.run("cat", [":/grown"]).works().out, "123456789");
    assert_eq!(volume.run("cat", [":/lost"]).works().out, "x");
    assert_eq!(volume.run("cat", [":/good"]).works().out, "x");
}

#[test]
fn fsck_lets_a_file_that_is_being_written_be() {
    use std::io::Write;
    let volume = Volume::mounted(2);
    let mut file = std::fs::File::create(volume.path("mnt/node1/f")).expect("created");
    file.write_all(&[1; 100_000]).expect("written");
    let said = volume.run("fsck", ["--repair", "--json"]);
    assert_eq!(said.works().json()["clean"], true, "{said:?}");
    drop(file);
    volume.run("fsck", NOTHING).works();
}

#[test]
fn fsck_finds_nothing_wrong_while_files_come_and_go() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let volume = Volume::mounted(2);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for node in 0..2 {
            let (own, other) = (format!("mnt/node{node}"), format!("mnt/node{}", 1 - node));
            let (own, other) = (volume.path(&own), volume.path(&other));
            let done = &done;
            scope.spawn(move || {
                let mut round = 0u64;
                while !done.load(Ordering::Relaxed) {
                    round += 1;
                    let name = format!("f{node}-{}", round % 7);
                    let size = round * 7919 % 100_000;
                    std::fs::write(own.join(&name), vec![1; size as usize]).expect("written");
                    let file = std::fs::File::options().write(true).open(other.join(&name));
                    file.expect("there").set_len(size / 2).expect("cut");
                    std::fs::rename(own.join(&name), own.join(format!("{name}x"))).expect("moved");
                    std::fs::remove_file(other.join(format!("{name}x"))).expect("removed");
                }
            });
        }
        let looks: Vec<Said> = (0..10).map(|_| volume.run("fsck", NOTHING)).collect();
        done.store(true, Ordering::Relaxed);
        for said in &looks {
            said.works();
        }
    });
}

#[test]
fn daemons_do_not_keep_the_files_of_whoever_starts_them() {
    let volume = Volume::mounted(1);
    let script = "exec 7>\"$0/mnt/f\"; echo kept >&7; \"$1\" node stop --dir \"$0\" 0 && \
                  \"$1\" node start --dir \"$0\" 0";
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", script]).arg(volume.dir()).arg(env!("CARGO_BIN_EXE_tatami"));
    Said::from(shell.output().expect("sh runs")).works();
    // The daemon closes inherited files a moment after it is ready.
    let busy = || volume.run("down", NOTHING).code != Some(0);
    let start = std::time::Instant::now();
    while busy() {
        assert!(start.elapsed().as_secs() < 60, "the daemon keeps the file open");
    }
    volume.run("up", NOTHING).works();
    assert_eq!(std::fs::read(volume.path("mnt/f")).expect("there"), b"kept\n");
}

#[test]
fn an_ordinary_user_can_have_a_volume() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    const NOBODY: u32 = 65_534;
    let dir = tempfile::Builder::new().prefix("ttm").tempdir_in("/tmp").expect("a directory");
    let program = dir.path().join("tatami");
    common::copy_program(common::TATAMI.as_ref(), &program);
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).expect("set");
    let home = dir.path().join("home");
    std::fs::create_dir(&home).expect("made");
    std::os::unix::fs::chown(&home, Some(NOBODY), Some(NOBODY)).expect("given");
    let run = |args: &[&str]| -> Said {
        let mut command = std::process::Command::new(&program);
        command.args(args).env_clear().env("HOME", &home).uid(NOBODY).gid(NOBODY);
        command.current_dir("/").output().expect("it runs").into()
    };
    run(&["up", "--no-mount"]).works();
    let done = std::panic::catch_unwind(|| {
        run(&["cp", "/etc/hostname", ":/f"]).works();
        run(&["status"]).works();
        run(&["fsck"]).works();
        let stat = run(&["stat", "--json", ":/"]).works().json();
        assert_eq!(stat["files"][0]["uid"], NOBODY);
        assert!(home.join(".local/share/tatami/node0/FORMAT").exists());
    });
    run(&["down", "--force"]).works();
    done.expect("all of it works");
}

#[test]
fn executors_are_chosen_with_the_volume_and_told() {
    let volume = Volume::new();
    volume.run("up", ["--no-mount", "--nodes", "2"]).works();
    let text = std::fs::read_to_string(volume.path("volume.toml")).expect("the volume's file");
    assert!(text.contains("shards = [[2048, 0, 0, 0], [2048, 1, 0, 0]]"), "{text}");
    assert!(!volume.run("status", NOTHING).works().out.contains("EXECUTORS"));
    assert_eq!(volume.run("status", ["--json"]).works().json()["nodes"][1]["executors"], 1);
    let said = volume.run("node rebalance", ["--executors", "2"]);
    assert!(said.works().out.contains("node1      2048 shards on 2 executors"), "{said:?}");
    let volume = Volume::new();
    volume.run("up", ["--no-mount", "--executors", "2"]).works();
    let text = std::fs::read_to_string(volume.path("volume.toml")).expect("the volume's file");
    assert!(text.contains("shards = [[2048, 0, 0, 0], [2048, 0, 1, 0]]"), "{text}");
    assert!(volume.run("status", NOTHING).works().out.contains("EXECUTORS"));
    let status = volume.run("status", ["--json"]).works().json();
    assert_eq!(
        (&status["nodes"][0]["shards"], &status["nodes"][0]["executors"]),
        (&4096.into(), &2.into())
    );
    volume.run("fsck", NOTHING).works();
}

#[test]
fn durability_is_chosen_with_the_volume_and_told() {
    for (durability, promise) in
        [("log", "survives the death of a daemon"), ("sync", "survives a power cut")]
    {
        let volume = Volume::new();
        volume.run("up", ["--no-mount", "--volume-durability", durability]).works();
        let said = volume.run("status", NOTHING);
        let said = &said.works().out;
        assert!(
            said.contains(&format!("Durability {durability}: ")) && said.contains(promise),
            "{said}"
        );
        assert_eq!(volume.run("status", ["--json"]).works().json()["durability"], durability);
        // From then on the volume keeps its durability, regardless of flags.
        volume.run("down", NOTHING).works();
        volume.run("up", ["--no-mount", "--volume-durability", "log"]).works();
        assert_eq!(volume.run("status", ["--json"]).works().json()["durability"], durability);
        // After an edit of the file, status names the daemons that still use the old value.
        let (file, other) =
            (volume.path("volume.toml"), if durability == "log" { "sync" } else { "log" });
        let text = std::fs::read_to_string(&file).expect("the volume's file");
        let (text, _) = text.split_once("# checksum").expect("its last line");
        let line = |name: &str| format!("durability = \"{name}\"");
        std::fs::write(&file, text.replace(&line(durability), &line(other))).expect("written");
        let hint = format!("still runs with durability {durability}");
        volume.run("status", NOTHING).fails(3, &[]);
        assert!(volume.run("status", NOTHING).out.contains(&hint));
        volume.run("down", NOTHING).works();
    }
    let volume = Volume::new();
    volume.run("up", ["--no-mount", "--volume-durability", "never"]).fails(2, &["log", "sync"]);
}
