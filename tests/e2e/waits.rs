//! Waits for a node that is down or silent: commands say so on a terminal, mounts and jobs in their
//! logs.

use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use tatami_tests::absent::{Stopped, directory_of_each};
use tatami_tests::command::{as_user, ask, program, run, target_dir, tatami_bin};
use tatami_tests::files::put;
use tatami_tests::mpi::{MPIS, ONE_AT_A_TIME, compiled, on_this_machine};
use tatami_tests::policies::skip_with_policies;
use tatami_tests::process::{kill_hard, pause};
use tatami_tests::{Cluster, Setup};

const NODES: u16 = 2;
/// An ordinary user.
const ANNA: u32 = 4001;
/// Longest wait for words that must come.
const SOON: Duration = Duration::from_secs(120);
/// The operation timeout is longer than the test.
const PATIENT: &str = "[client]\npatience_sec = 3600\n";

/// A program with its output so far.
struct RunningProgram {
    child: Child,
    output: Receiver<Vec<u8>>,
    text: String,
}

impl RunningProgram {
    /// Starts a program whose standard output is read.
    fn start(command: &mut Command) -> RunningProgram {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("it runs");
        let mut stream = child.stdout.take().expect("piped");
        let (sender, output) = channel();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(n @ 1..) = stream.read(&mut bytes) {
                // The test may have ended.
                let _ = sender.send(bytes[..n].to_vec());
            }
        });
        RunningProgram { child, output, text: String::new() }
    }

    /// Waits until the output has these words.
    fn await_words(&mut self, words: &str) {
        while !self.text.contains(words) {
            let more = self.output.recv_timeout(SOON);
            let more = more.unwrap_or_else(|e| panic!("no {words:?}: {e}: {}", self.text));
            self.text.push_str(&String::from_utf8_lossy(&more));
        }
    }

    /// Waits for the end. Returns the whole output and the exit code.
    fn finish(mut self) -> (String, Option<i32>) {
        let code = self.child.wait().expect("wait").code();
        while let Ok(more) = self.output.recv() {
            self.text.push_str(&String::from_utf8_lossy(&more));
        }
        (self.text, code)
    }
}

/// Returns the command that runs a command of the cluster on a terminal of its own, as this user.
fn on_terminal(cluster: &Cluster, uid: u32, verb: &str, arguments: &str) -> Command {
    let (tatami, dir) = (tatami_bin(), cluster.dir());
    let line = format!("{} {verb} --dir {} {arguments}", tatami.display(), dir.display());
    let mut command = if uid == 0 { program("script") } else { as_user(uid, "script") };
    command.args(["-qec", &line, "/dev/null"]).env("TERM", "xterm").env_remove("NO_COLOR");
    command
}

fn logs_of_mounts(cluster: &Cluster) -> Vec<String> {
    let logs = std::fs::read_dir(cluster.dir().join("mount-logs")).expect("logs").flatten();
    logs.map(|log| std::fs::read_to_string(log.path()).expect("text")).collect()
}

#[test]
fn a_command_that_waits_says_for_which_node() {
    if skip_with_policies("its bytes must be on another node than their inode") {
        return;
    }
    let cluster = Cluster::start(NODES);
    let names = directory_of_each(&cluster, NODES);
    let away = names[1].display().to_string();
    // The bytes of files are on the node of the mount that made them.
    put(cluster.mount(1).join(&names[0]).join("far"), "bytes of node1\n");
    put(cluster.mount(1).join(&names[1]).join("other"), "other\n");
    let near = names[0].display();
    let commands = [
        (0, "cat", format!(":/{near}/far"), "bytes of node1"),
        (ANNA, "cat", format!(":/{near}/far"), "bytes of node1"),
        (0, "ls", format!(":/{away}"), "other"),
        (ANNA, "stat", format!(":/{away}/other"), "other"),
        (0, "du", format!("-s :/{away}"), &away),
        (0, "cp", format!("-r :/{near} :/copy"), ""),
        (0, "rm", format!("-r :/{away}/other"), ""),
    ];
    for stopped in [false, true] {
        for (uid, verb, arguments, expected) in &commands {
            let guard = stopped.then(|| Stopped::new(cluster.node_pid(1)));
            if !stopped {
                cluster.kill_node(1);
            }
            let begun = Instant::now();
            let mut command =
                RunningProgram::start(&mut on_terminal(&cluster, *uid, verb, arguments));
            command.await_words("waiting for node");
            command.await_words("; gives up in ");
            assert!(begun.elapsed() >= Duration::from_secs(2), "{verb}: it may be busy");
            drop(guard);
            if !stopped {
                cluster.start_node(1);
            }
            let (text, code) = command.finish();
            assert_eq!(code, Some(0), "{verb} {arguments}: {text}");
            // The line is removed before the output continues.
            let rest = text.rsplit("gives up in").next().expect("text");
            assert!(rest.contains("\u{1b}[2K") && rest.contains(expected), "{verb}: {text:?}");
            let state = if stopped { "(silent for " } else { "(down for " };
            // The relay of an ordinary user is a daemon that answers, and needs the other.
            assert!(*uid != 0 || text.contains(state) || text.contains("needs"), "{verb}: {text}");
        }
        put(cluster.mount(1).join(&names[1]).join("other"), "other\n");
        run(&mut program(&format!("rm -r {}", cluster.mount(0).join("copy").display())));
    }
    cluster.finish();
}

#[test]
fn nothing_is_said_without_a_terminal() {
    let cluster = Setup::nodes(NODES).config("[client]\npatience_sec = 4\n").start();
    let name = &directory_of_each(&cluster, NODES)[1];
    let stopped = Stopped::new(cluster.node_pid(1));
    let said = ask(cluster.command("ls").arg(format!(":/{}", name.display())));
    drop(stopped);
    assert_eq!(said.code, Some(3), "{said:?}");
    assert!(!said.err.contains("waiting for"), "{said:?}");
    // On a terminal, the error stands in the place of the wait.
    let stopped = Stopped::new(cluster.node_pid(1));
    let arguments = format!(":/{}", name.display());
    let (text, code) =
        RunningProgram::start(&mut on_terminal(&cluster, 0, "ls", &arguments)).finish();
    drop(stopped);
    assert_eq!(code, Some(3), "{text}");
    let (_, rest) = text.rsplit_once("gives up in").expect("a wait");
    assert!(rest.contains("\u{1b}[2K") && rest.contains("node is down"), "{text:?}");
    cluster.finish();
}

#[test]
fn a_mount_logs_an_outage_once() {
    let cluster = Setup::nodes(NODES).config(PATIENT).start();
    let name = &directory_of_each(&cluster, NODES)[1];
    let waits = |log: &String| log.matches("waiting for node1 (down").count();
    let ends = |log: &String| log.matches("it answers again").count();
    for round in 1..=2 {
        cluster.kill_node(1);
        // What the mount has cached would need no answer.
        let programs: Vec<Child> = (0..4)
            .map(|n| cluster.mount(0).join(name).join(format!("new{round}.{n}")))
            .map(|path| program(&format!("mkdir {}", path.display())).spawn().expect("mkdir"))
            .collect();
        let begun = Instant::now();
        while logs_of_mounts(&cluster).iter().all(|log| waits(log) < round) {
            assert!(begun.elapsed() < SOON, "{:?}", logs_of_mounts(&cluster));
            pause();
        }
        cluster.start_node(1);
        for mut program in programs {
            assert_eq!(program.wait().expect("wait").code(), Some(0));
        }
        // The other mount may have something to report meanwhile, and waits as well.
        let logs = logs_of_mounts(&cluster);
        let most = logs.iter().map(waits).max();
        assert_eq!(most, Some(round), "{logs:?}");
        assert!(logs.iter().all(|log| ends(log) <= round), "{logs:?}");
        assert!(logs.iter().any(|log| ends(log) == round), "{logs:?}");
    }
    cluster.finish();
}

/// Starts a job of one rank that writes to a file of the volume. After every ten blocks it syncs,
/// which tells the shard that owns the file. Its standard error goes to its standard output.
fn start_job(mpi: &str, file: &Path, log: &Path) -> RunningProgram {
    let mut command = Command::new("sh");
    command.args(["-c", "exec \"$@\" 2>&1", "sh"]).arg(tatami_bin());
    command.args(["mpirun", "--launcher", &format!("mpirun.{mpi}"), "-n", "1"]);
    command.arg(compiled("endless", mpi)).arg(file).arg(log).args(["2000000000", "bytes", "10"]);
    command.env("TATAMI_MPI_LIBRARY", target_dir().join("mpi/libtatami_mpi.so"));
    RunningProgram::start(on_this_machine(&mut command).stdin(Stdio::null()))
}

#[test]
fn a_job_that_waits_says_so_in_its_log() {
    let _turn = ONE_AT_A_TIME.lock();
    let cluster = Setup::nodes(NODES).config(PATIENT).start();
    let place = cluster.mount(0).join(&directory_of_each(&cluster, NODES)[1]);
    let logs = tempfile::tempdir().expect("a directory");
    let log = logs.path().join("log");
    let counter = log.with_extension("0");
    // The process number of the rank, and the number of its blocks.
    let read_words = || -> Option<[u64; 2]> {
        let bytes = std::fs::read(&counter).ok()?;
        let words = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
        words.collect::<Vec<_>>().try_into().ok()
    };
    let await_blocks = |least: u64| {
        let begun = Instant::now();
        loop {
            match read_words() {
                Some([process, blocks]) if blocks >= least => return (process, blocks),
                words => assert!(begun.elapsed() < SOON, "{words:?}"),
            }
            pause();
        }
    };
    for mpi in MPIS {
        drop(std::fs::remove_file(&counter));
        let mut job = start_job(mpi, &place.join(mpi), &log);
        await_blocks(10);
        let stopped = Stopped::new(cluster.node_pid(1));
        job.await_words("tatami: waiting for node1 (silent for 2 s; gives up in ");
        drop(stopped);
        // The job goes on.
        let (_, written) = await_blocks(10);
        let (process, _) = await_blocks(written + 10);
        kill_hard(i32::try_from(process).expect("a process number"));
        let (text, _) = job.finish();
        assert_eq!(text.matches("waiting for node1").count(), 1, "{text}");
    }
    cluster.finish();
}
