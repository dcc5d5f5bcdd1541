//! A node that is stopped and answers no request: programs that wait for it can be killed, and
//! requests to all nodes are answered.

use rustix::process::{Resource, Rlimit, Signal, setrlimit};
use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use tatami_client::TICK;
use tatami_tests::absent::{Stopped, at_once, directory_of_each};
use tatami_tests::command::{ask, program};
use tatami_tests::files::{get, put};
use tatami_tests::policies::skip_with_policies;
use tatami_tests::process::wait_ms;
use tatami_tests::{Setup, process};

const NODES: u16 = 3;
/// The operation timeout is longer than any test.
const PATIENT: &str = "[client]\npatience_sec = 3600\n";

/// Returns when the process runs `name` and waits for a reply of the mount, or has not begun to for
/// long. Before its exec, /proc/PID/wchan may not be read: the kernel locks it during execve, which
/// may itself wait for the mount.
fn await_waiting(pid: u32, name: &str) {
    let read = |file: &str| fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
    let runs = format!("Name:\t{name}\n");
    for _ in 0..200 {
        if read("status").starts_with(&runs) {
            let place = read("wchan");
            if place.contains("request_wait") || place.contains("fuse") {
                return;
            }
        }
        process::pause();
    }
}

/// Starts a program that opens a file, reports, and does `then` with the descriptor `fd` when its
/// standard input is closed. The test does not hold a file of the mount itself: every program that
/// other tests start meanwhile would close a copy of it.
fn hold_open(file: &Path, then: &str) -> Child {
    let program = format!(
        "import os, sys\n\
         fd = os.open(sys.argv[1], os.O_WRONLY | os.O_CLOEXEC)\n\
         os.write(fd, b'first')\n\
         print('ready', flush=True)\n\
         sys.stdin.read()\n\
         {then}\n"
    );
    let mut child = Command::new("python3")
        .args(["-c", &program])
        .arg(file)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3");
    let mut ready = [0; 6];
    child.stdout.as_mut().expect("stdout").read_exact(&mut ready).expect("the program is ready");
    child
}

#[test]
fn a_program_that_waits_for_a_node_that_says_nothing_can_be_killed() {
    if skip_with_policies("its bytes must be on another node than their inode") {
        return;
    }
    // SIGABRT must leave no core file.
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    setrlimit(Resource::Core, none).expect("setrlimit");
    let cluster = Setup::nodes(NODES).config(PATIENT).start();
    let names = directory_of_each(&cluster, NODES);
    let at = |mount: u16, node: u16, name: &str| {
        cluster.mount(mount).join(&names[usize::from(node)]).join(name)
    };
    // The name is on node 0, the bytes are on node 1.
    put(at(1, 0, "far"), "far");
    put(at(1, 1, "there"), "there");
    let far = at(0, 0, "far");
    let mut other = hold_open(&far, "os.write(fd, b'second'); os.fsync(fd)");
    let show = |path: &Path| path.display().to_string();
    let programs = [
        format!("cat {}", show(&at(0, 1, "there"))),
        format!("stat {}", show(&at(0, 1, "none"))),
        format!("touch {}", show(&at(0, 1, "new"))),
        format!("cat {}", show(&far)),
        // More bytes than are sent without waiting for a reply. Opened files are closed when the
        // program ends.
        format!("dd if=/dev/zero of={} bs=1M count=64 conv=notrunc status=none", show(&far)),
        // Waits for another waiting program.
        format!("dd if=/dev/zero of={} bs=1M count=64 conv=notrunc status=none", show(&far)),
    ];
    for signal in [Signal::KILL, Signal::TERM, Signal::ABORT] {
        {
            let _stopped = Stopped::new(cluster.node_pid(1));
            let started: Vec<_> = programs
                .iter()
                .map(|line| (line, program(line).spawn().unwrap_or_else(|e| panic!("{line}: {e}"))))
                .collect();
            // All at once: in the kernel, one may wait for a lock of another.
            for (line, child) in &started {
                await_waiting(child.id(), line.split(' ').next().expect("a name"));
                process::signal(child.id() as i32, signal);
            }
            for (line, mut child) in started {
                at_once(&format!("{line}, {signal:?}"), move || {
                    let ended = child.wait().expect("wait");
                    assert!(!ended.success(), "{ended}");
                });
            }
        }
    }
    // All other programs are unharmed.
    drop(other.stdin.take());
    assert!(other.wait().expect("wait").success());
    assert_eq!(&get(&far)[5..11], b"second");
    assert_eq!(get(at(0, 1, "there")), b"there");
    cluster.finish();
}

/// A program with handlers, as each Python program has one for SIGINT. Reads give up, and changes
/// go on: a program that repeats a write of which it knows nothing would write twice.
#[test]
fn a_handler_of_a_program_runs_while_it_reads_from_a_node_that_says_nothing() {
    if skip_with_policies("its bytes must be on another node than their inode") {
        return;
    }
    let cluster = Setup::nodes(NODES).config(PATIENT).start();
    let names = directory_of_each(&cluster, NODES);
    let far = cluster.mount(0).join(&names[0]).join("far");
    put(cluster.mount(1).join(&names[0]).join("far"), "far");
    // Python runs a handler behind the call in which the signal came. So `then` waits in one call.
    let start = |before: &str, then: &str| {
        let text = format!(
            "import os, signal, sys\n\
             def handler(*_):\n    raise SystemExit(7)\n\
             signal.signal(signal.SIGTERM, handler)\n\
             {before}\n\
             print('ready', flush=True)\n\
             {then}\n"
        );
        let mut child = Command::new("python3")
            .args(["-c", &text])
            .arg(&far)
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3");
        let mut ready = [0; 6];
        child.stdout.as_mut().expect("stdout").read_exact(&mut ready).expect("the program starts");
        await_waiting(child.id(), "python3");
        process::signal(child.id() as i32, Signal::TERM);
        child
    };
    let stopped = Stopped::new(cluster.node_pid(1));
    let mut reader = start("", "open(sys.argv[1], 'rb').read()");
    let ended = at_once("a reader", move || reader.wait().expect("wait"));
    assert_eq!(ended.code(), Some(7), "the handler has run");
    let open = "f = os.open(sys.argv[1], os.O_WRONLY | os.O_DSYNC)";
    let mut writer = start(open, "os.pwrite(f, b'FAR', 0)");
    // Longer than a wait that a handler may end.
    wait_ms(30 * TICK.as_millis() as u64);
    assert!(writer.try_wait().expect("wait").is_none(), "a change is not given up");
    drop(stopped);
    at_once("a writer", move || writer.wait().expect("wait"));
    cluster.finish();
}

/// The kernel closes files in the middle of execve, and locks most of the process's directory in
/// /proc meanwhile.
#[test]
fn a_program_that_starts_another_one_can_be_killed_or_goes_on_when_the_node_is_back() {
    if skip_with_policies("its bytes must be on another node than their inode") {
        return;
    }
    let cluster = Setup::nodes(NODES).config(PATIENT).start();
    let names = directory_of_each(&cluster, NODES);
    let dir = &names[0];
    for killed in [false, true] {
        let file = format!("passed on {killed}");
        put(cluster.mount(1).join(dir).join(&file), "");
        let then = "os.write(fd, b'second'); os.execv('/bin/true', ['true'])";
        let mut child = hold_open(&cluster.mount(0).join(dir).join(&file), then);
        let stopped = Stopped::new(cluster.node_pid(1));
        drop(child.stdin.take());
        // Until the program closes the file, and the mount has checked for the program.
        wait_ms(10 * TICK.as_millis() as u64);
        assert!(child.try_wait().expect("wait").is_none(), "it does not wait for the node");
        if killed {
            process::signal(child.id() as i32, Signal::KILL);
            at_once("a killed program", move || assert!(!child.wait().expect("wait").success()));
            drop(stopped);
        } else {
            drop(stopped);
            at_once("a program", move || assert!(child.wait().expect("wait").success()));
            assert_eq!(get(cluster.mount(1).join(dir).join(&file)), b"firstsecond");
        }
    }
    cluster.finish();
}

#[test]
fn the_state_of_a_volume_is_told_at_once_whatever_is_down() {
    let cluster = Setup::nodes(NODES).config(PATIENT).start();
    let all: u64 =
        parse_json(&cluster.tatami("df", &["--json"]).out)["inodes"].as_u64().expect("inodes");
    assert_eq!(all, 1);
    // Each mount has read its root before.
    (0..NODES).for_each(|mount| _ = fs::metadata(cluster.mount(mount)).expect("stat"));
    for away in 0..NODES {
        {
            let _stopped = Stopped::new(cluster.node_pid(away));
            std::thread::scope(|threads| {
                for verb in ["df", "status"] {
                    let cluster = &cluster;
                    threads.spawn(move || {
                        let mut command = cluster.command(verb);
                        let said = at_once(verb, move || ask(command.arg("--json")));
                        let report = parse_json(&said.out);
                        let nodes = report["nodes"].as_array().expect("nodes");
                        let up: Vec<_> = nodes.iter().map(|n| n["up"].as_bool()).collect();
                        let expected: Vec<_> = (0..NODES).map(|n| Some(n != away)).collect();
                        assert_eq!(up, expected, "{verb}");
                    });
                }
                threads.spawn(|| {
                    let mut command = cluster.command("fsck");
                    let said = at_once("fsck", move || ask(&mut command));
                    assert_eq!(said.code, Some(8), "{}", said.err);
                    let node = format!("node{away}: ");
                    assert!(said.err.contains(&node) && said.err.contains("nothing was checked"));
                });
                for mount in 0..NODES {
                    let path = cluster.mount(mount);
                    threads.spawn(move || {
                        let root = path.clone();
                        at_once("stat", move || fs::metadata(&root).expect("stat of the root"));
                        at_once("statfs", move || rustix::fs::statfs(&path).expect("statfs"));
                    });
                }
            });
        }
    }
    cluster.finish();
}

fn parse_json(json: &str) -> serde_json::Value {
    serde_json::from_str(json).unwrap_or_else(|e| panic!("{e}: {json}"))
}
