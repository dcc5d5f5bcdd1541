//! Requests of the kernel over io_uring: where the kernel offers it, mounts use it, say so, and
//! behave as with `/dev/fuse`. (Half of all other tests run over io_uring, too: see `Setup`.)

use parking_lot::Mutex;
use std::fs;
use std::os::unix::fs::{FileExt, symlink};
use std::process::{Child, Stdio};
use tatami_tests::absent::{Stopped, at_once, directory_of_each};
use tatami_tests::command::{ask, program, run, shell};
use tatami_tests::files::{create, get, names, open, put, stat};
use tatami_tests::process::{kill_hard, mounts_below, pause, signal};
use tatami_tests::{Cluster, Setup};

const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// One test at a time changes the switch.
static SWITCH_USE: Mutex<()> = Mutex::new(());

/// The kernel's switch in a position of the test's choice. Dropping it restores the old one.
struct SwitchedKernel {
    before: String,
    _alone: parking_lot::MutexGuard<'static, ()>,
}

impl SwitchedKernel {
    /// Returns `None` where the kernel has no such switch, or only root may use it.
    fn set(position: &str) -> Option<SwitchedKernel> {
        let alone = SWITCH_USE.lock();
        let before = fs::read_to_string(SWITCH).ok()?;
        fs::write(SWITCH, position).ok()?;
        Some(SwitchedKernel { before, _alone: alone })
    }
}

impl Drop for SwitchedKernel {
    fn drop(&mut self) {
        if let Err(error) = fs::write(SWITCH, &self.before) {
            eprintln!("{SWITCH} stays as it is: {error}");
        }
    }
}

/// Starts a cluster whose mounts use io_uring. `None` where the kernel cannot.
fn start_over_io_uring(setup: Setup) -> Option<Cluster> {
    let Some(_on) = SwitchedKernel::set("Y") else {
        tatami_skip::skip_unavailable("the kernel has no FUSE over io_uring (Linux 6.14)");
        return None;
    };
    let cluster = setup.with_io_uring().start();
    for mount in cluster.status()["mounts"].as_array().expect("mounts") {
        assert_eq!(mount["io_uring"], true, "{mount}");
        assert!(mount["why_no_io_uring"].is_null(), "{mount}");
    }
    Some(cluster)
}

/// Starts a program that holds or waits for the lock of a file, and has an end when `stop` says so.
fn start_locker(dir: &std::path::Path, script: &str) -> Child {
    let mut command = shell(dir, script);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it runs")
}

#[test]
fn a_mount_says_whether_it_uses_io_uring_and_why_not() {
    let Some(cluster) = start_over_io_uring(Setup::nodes(1)) else { return };
    let text = run(&mut cluster.command("status")).out;
    assert!(text.contains("IO_URING"), "{text}");
    let reason = |options: &str, switch: &str| {
        let _position = SwitchedKernel::set(switch).expect("it could be set before");
        let other = cluster.dir().join("other");
        fs::create_dir_all(&other).expect("mkdir");
        run(cluster.command("mount").args(["-o", options]).arg(&other));
        let status = cluster.status();
        let mounts = status["mounts"].as_array().expect("mounts");
        let ours = |m: &&serde_json::Value| m["path"] == other.display().to_string();
        let mount = mounts.iter().find(ours).expect("the new mount").clone();
        put(other.join("f"), "x");
        run(cluster.command("umount").arg(&other));
        assert_eq!(mount["io_uring"], false, "{mount}");
        mount["why_no_io_uring"].as_str().expect("a reason").to_owned()
    };
    assert_eq!(reason("noio_uring", "Y"), "switched off");
    let not_offered = reason("io_uring", "N");
    assert!(not_offered.contains(SWITCH), "{not_offered}");
    cluster.finish();
}

#[test]
fn requests_of_all_lengths_arrive_whole() {
    let setup = Setup::nodes(2).without_passthrough();
    let Some(cluster) = start_over_io_uring(setup) else { return };
    let (here, there) = (cluster.mount(0), cluster.mount(1));
    // Below and above the length up to which a request is copied, and of several requests.
    for len in [0, 1, 4000, (64 << 10) - 80, 64 << 10, 1 << 20, (3 << 20) + 17] {
        let bytes: Vec<u8> = (0..len).map(|i| (i / 7) as u8).collect();
        let name = format!("f{len}");
        let file = create(here.join(&name));
        file.write_all_at(&bytes, 0).expect("written");
        drop(file);
        assert!(get(here.join(&name)) == bytes, "{len} bytes, same mount");
        assert!(get(there.join(&name)) == bytes, "{len} bytes, other mount");
        let mut part = [0; 5];
        let read = open(there.join(&name)).read_at(&mut part, len as u64 / 2).expect("read");
        assert_eq!(part[..read], bytes[len / 2..][..read]);
    }
    let dir = here.join("many");
    fs::create_dir(&dir).expect("mkdir");
    let long = "n".repeat(240);
    for i in 0..700 {
        create(dir.join(format!("{long}{i}")));
    }
    assert_eq!(names(there.join("many")).len(), 700);
    let target = "t".repeat(4000);
    symlink(&target, here.join("link")).expect("symlink");
    assert_eq!(fs::read_link(there.join("link")).expect("readlink").as_os_str(), target.as_str());
    let value = "v".repeat(60_000);
    let set = "import os,sys; os.setxattr(sys.argv[1], 'user.x', sys.argv[2].encode()); \
               print(len(os.getxattr(sys.argv[1], 'user.x')))";
    let said = run(program("python3").args(["-c", set]).arg(here.join("f1")).arg(&value));
    assert_eq!(said.out.trim(), "60000");
    assert_eq!(stat(here.join("f0")).len(), 0);
    assert!(fs::metadata(here.join("absent")).is_err());
    cluster.finish();
}

#[test]
fn many_programs_wait_for_a_lock_and_others_go_on() {
    let Some(cluster) = start_over_io_uring(Setup::nodes(1)) else { return };
    let m = cluster.mount(0);
    put(m.join("lock"), "");
    let mut holder = start_locker(&m, "exec 9<lock; flock -x 9 && echo held && read end");
    let mut held = [0; 5];
    std::io::Read::read_exact(holder.stdout.as_mut().expect("piped"), &mut held).expect("held");
    // More than the threads that a queue starts with, on both CPUs.
    let waiting = "exec 9<lock; echo asks; flock -x 9 && echo got >> got";
    let mut waiters: Vec<Child> = (0..24).map(|_| start_locker(&m, waiting)).collect();
    for waiter in &mut waiters {
        let mut asks = [0; 5];
        std::io::Read::read_exact(waiter.stdout.as_mut().expect("piped"), &mut asks).expect("asks");
    }
    // A signal ends a wait.
    let mut ended = waiters.remove(0);
    signal(ended.id() as i32, rustix::process::Signal::TERM);
    assert!(!ended.wait().expect("ended").success());
    for i in 0..50 {
        put(m.join(format!("beside{i}")), "x");
        assert_eq!(get(m.join(format!("beside{i}"))), b"x");
    }
    drop(holder.stdin.take());
    assert!(holder.wait().expect("ended").code().is_some());
    for waiter in &mut waiters {
        assert!(waiter.wait().expect("ended").success());
    }
    assert_eq!(get(m.join("got")).len(), 4 * 23);
    cluster.finish();
}

#[test]
fn programs_that_wait_for_a_node_hold_up_no_other_on_their_cpu() {
    let setup = Setup::nodes(2).config("[client]\npatience_sec = 3600\n");
    let Some(cluster) = start_over_io_uring(setup) else { return };
    let m = cluster.mount(0);
    let dirs = directory_of_each(&cluster, 2);
    let absent = m.join(&dirs[1]);
    let stopped = Stopped::new(cluster.node_pid(1));
    // All on one CPU, and so in one queue; more than the threads that it starts with.
    let mut waiting: Vec<Child> = (0..12)
        .map(|i| {
            let mut make = program("taskset -c 0 touch");
            make.arg(absent.join(format!("f{i}"))).spawn().expect("it runs")
        })
        .collect();
    let present = m.join(&dirs[0]);
    at_once("work on the other node", move || {
        for i in 0..30 {
            run(program("taskset -c 0 touch").arg(present.join(format!("g{i}"))));
        }
        assert_eq!(names(&present).len(), 31);
    });
    assert!(waiting.iter_mut().all(|one| one.try_wait().expect("try").is_none()), "they wait");
    drop(stopped);
    for one in &mut waiting {
        assert!(one.wait().expect("ended").success());
    }
    assert_eq!(names(m.join(&dirs[1])).len(), 13);
    cluster.finish();
}

#[test]
fn a_killed_mount_ends_its_requests_and_can_be_mounted_again() {
    let setup = Setup::nodes(2).config("[client]\npatience_sec = 3600\n");
    let Some(cluster) = start_over_io_uring(setup) else { return };
    let m = cluster.mount(0);
    let dirs = directory_of_each(&cluster, 2);
    put(m.join("kept"), "kept");
    let stopped = Stopped::new(cluster.node_pid(1));
    let waiting = program("touch").arg(m.join(&dirs[1]).join("f")).spawn().expect("it runs");
    let pid = cluster.mount_pid(0);
    // The request is on its way when the mount has it in its hands; any moment is one to die.
    pause();
    kill_hard(pid);
    let waited = waiting.wait_with_output().expect("ended");
    assert!(!waited.status.success());
    let refused = ask(program("cat").arg(m.join("kept")));
    assert_eq!(refused.code, Some(1), "{}", refused.err);
    drop(stopped);
    cluster.start_mount(0);
    assert_eq!(get(m.join("kept")), b"kept");
    assert_eq!(mounts_below(&m).len(), 1);
    cluster.finish();
}
