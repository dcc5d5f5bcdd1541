//! A volume on several machines: hosts of a test bed, which share nothing but a network.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};
use tatami_skip::{skip_test, skip_unavailable};
use tatami_tests::command::program;
use tatami_tests::process::{kill_hard, pause};
use tatami_tests::testbed::HostBed;

/// Starts a test bed with these hosts; `None` where this machine cannot have one.
fn start_bed(names: &[&str]) -> Option<HostBed> {
    if !rustix::process::geteuid().is_root() {
        skip_test("only root makes hosts of namespaces");
        return None;
    }
    if let Some(obstacle) = HostBed::find_obstacle() {
        skip_unavailable(&obstacle);
        return None;
    }
    Some(HostBed::start(names))
}

/// The hosts are as good as machines: a volume that works between them needs no common directory,
/// process, socket or memory.
#[test]
fn hosts_share_nothing_but_a_network() {
    let Some(mut bed) = start_bed(&["n1", "n2"]) else { return };
    let (one, two) = (bed.host(0), bed.host(1));
    for place in ["/run", "/tmp", "/var/lib", "/var/tmp", "/mnt", "/srv", "/dev/shm", "$HOME"] {
        one.run(&format!("echo mine > {place}/mark"));
        two.run(&format!("test ! -e {place}/mark && test -w {place}"));
    }
    // Nothing else can be written to, so nothing else can be shared.
    one.run("! touch /usr/mark 2>/dev/null && ! touch /usr/local/bin/mark 2>/dev/null");
    one.run("setsid sleep 1234 </dev/null >/dev/null 2>&1 &");
    one.run("pgrep -xf 'sleep 1234'");
    two.run("! pgrep -xf 'sleep 1234'");
    one.run("ipcmk -M 4096");
    assert_eq!(two.run("ipcs -m | grep -c '^0x' || true").out.trim(), "0");
    let abstract_socket = "import socket
s = socket.socket(socket.AF_UNIX); s.bind(chr(0) + 'mark'); s.listen(); s.accept()";
    one.run(&format!("setsid python3 -c \"{abstract_socket}\" </dev/null >/dev/null 2>&1 &"));
    one.run("until grep -q @mark /proc/net/unix; do sleep 0.01; done");
    two.run("! grep -q @mark /proc/net/unix");
    for of in ["hostname", "cat /etc/machine-id", "cat /etc/hostname"] {
        assert_ne!(one.run(of).out, two.run(of).out, "{of}");
    }
    let said = one.run("ssh -o BatchMode=yes n2 hostname");
    assert_eq!(said.out, "n2\n");
    two.run("test $(ssh -o BatchMode=yes n1 cat /tmp/mark) = mine");

    bed.unplug(1);
    bed.host(0).run("! ssh -o BatchMode=yes -o ConnectTimeout=1 n2 true 2>/dev/null");
    bed.plug_in(1);
    bed.host(0).run("ssh -o BatchMode=yes n2 true");
    bed.cut_power(0);
    bed.host(1).run("! ssh -o BatchMode=yes -o ConnectTimeout=1 n1 true 2>/dev/null");
    bed.boot(0);
    bed.host(0).run("test $(cat /var/lib/mark) = mine && test ! -e /run/mark");
    bed.host(0).run("! pgrep -xf 'sleep 1234'");
    bed.host(1).run("ssh -o BatchMode=yes n1 true");

    let dir = bed.dir().to_owned();
    drop(bed);
    assert!(!dir.exists(), "{} is left", dir.display());
}

/// The machine of the tests loses nothing when the process of a test is killed: the hosts and the
/// directory of their disks go with it.
#[test]
fn a_killed_test_leaves_no_host() {
    const BED_OF_CHILD: &str = "TATAMI_TEST_BED_OF_CHILD";
    if std::env::var_os(BED_OF_CHILD).is_some() {
        let bed = HostBed::start(&["n1"]);
        println!("{}", bed.dir().display());
        bed.host(0).run("sleep 60");
    }
    let Some(bed) = start_bed(&["n1"]) else { return };
    let test = std::env::current_exe().expect("a running program has a path");
    let mut child = program("env");
    child.env(BED_OF_CHILD, "1").arg(test).args(["--exact", "--nocapture"]);
    child.arg("hosts::a_killed_test_leaves_no_host").stdout(Stdio::piped());
    let mut child = child.spawn().expect("the test runs");
    let mut lines = BufReader::new(child.stdout.take().expect("it is a pipe")).lines();
    let is_dir = |line: &String| line.starts_with('/');
    let dir = lines.find_map(|line| line.ok().filter(is_dir)).expect("the path of the test bed");
    assert_ne!(dir, bed.dir().display().to_string(), "two test beds at once");
    bed.host(0).run("test $(hostname) = n1");
    kill_hard(child.id() as i32);
    let _ = child.wait();
    let start = Instant::now();
    while Path::new(&dir).exists() || !processes_with(&dir).is_empty() {
        let left = processes_with(&dir);
        assert!(start.elapsed() < Duration::from_secs(60), "{dir} is left, and {left:?}");
        pause();
    }
    bed.host(0).run("test $(hostname) = n1");
}

/// Returns the processes with this text in their command lines.
fn processes_with(text: &str) -> Vec<String> {
    let line = |entry: std::fs::DirEntry| fs::read_to_string(entry.path().join("cmdline")).ok();
    let entries = fs::read_dir("/proc").expect("there is /proc").flatten();
    entries.filter_map(line).filter(|line| line.contains(text)).collect()
}
