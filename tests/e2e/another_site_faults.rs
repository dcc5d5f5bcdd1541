//! Faults of the link to another site and of the other site, under programs on several hosts:
//! breaks of any length, slow and lossy links, processes that die on either side, and full disks.
//! Waits of over a minute belong to the long form of the tests.

use crate::hosts::start_bed;
use crate::two_sites::{BlockPhase, DISK, LoginWay, SiteBed, VOLUME};
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::{Duration, Instant};
use tatami_tests::command::ask;
use tatami_tests::mpi::{ONE_AT_A_TIME, compiled};
use tatami_tests::process::wait_ms;
use tatami_tests::seed::{Rng, root_seed, scale};

/// Compute hosts of each site, and so ranks of a job.
const RANKS: usize = 2;

fn start_sites() -> Option<SiteBed> {
    SiteBed::start(RANKS, 1)
}

/// The number of the host that is named in jobs.
const IO_HOST: usize = RANKS + 2;

/// A link that is down for a second, and for ten, costs this time and nothing else.
#[test]
fn short_breaks_of_the_link_cost_no_byte() {
    let Some(mut sites) = start_sites() else { return };
    let _turn = ONE_AT_A_TIME.lock();
    let variables = sites.open_way(LoginWay::Both);
    sites.run_blocks(DISK, &format!("TATAMI_STREAMS=2 {variables}"), |sites, phase| match phase {
        BlockPhase::Writing | BlockPhase::Reading => sites.bed.unplug(IO_HOST),
        _ => {
            wait_ms(if phase == BlockPhase::WritingOn { 1000 } else { 10_000 });
            sites.bed.plug_in(IO_HOST);
        }
    });
    sites.expect_nothing_left(DISK, "bulk");
}

/// Slow links, lost packets, and connections that stand still while others go on: every access
/// gives the same bytes, over data connections and over ssh.
#[test]
fn slow_and_lossy_links_change_no_byte() {
    let Some(mut sites) = start_sites() else { return };
    let _turn = ONE_AT_A_TIME.lock();
    let (mpi, seed) = ("openmpi", root_seed() % 1_000_000_000);
    sites.bed.install_file(&compiled("random_calls", mpi));
    let calls = format!("/usr/local/bin/random_calls.{mpi}");
    let reference = format!("/srv/disk/reference.dat {seed} 6 /srv/disk/reference simple");
    sites.run_alone(mpi, &format!("{calls} {reference}"));
    let links = [
        "delay=0.01 rate=12500000 stall=4",
        "delay=0.05",
        "delay=0.005 rate=12500000",
        "delay=0.02 loss=0.01",
        "delay=0.05 rate=12500000 loss=0.003 stall=2",
    ];
    let count = if scale() > 1 { links.len() } else { 1 };
    for options in &links[..count] {
        sites.start_bad_link(&format!("{options} seed={seed}"));
        sites.run_blocks(DISK, "TATAMI_STREAMS=4", |_, _| {});
        let job = format!("{calls} /site/ours.dat {seed} 6 /srv/disk/ours");
        sites.run_job(mpi, DISK, "TATAMI_STREAMS=2", &job);
        sites.expect_same(&format!("{DISK}/ours.dat"), "/srv/disk/reference.dat");
        sites.first().run("cmp /srv/disk/reference.0 /srv/disk/ours.0");
        sites.expect_nothing_left(DISK, "bulk\nours.dat");
        sites.io_host().run(&format!("rm {DISK}/*"));
    }
}

/// The ssh of a program is killed while its I/O process there is stopped, with calls in its
/// input. The next I/O process ends that one before it repeats the calls, so no old write follows a
/// new one.
#[test]
fn an_earlier_io_process_writes_nothing_any_more() {
    let Some(mut sites) = start_sites() else { return };
    let _turn = ONE_AT_A_TIME.lock();
    let variables = sites.open_way(LoginWay::Near);
    let mut stopped = String::new();
    sites.run_blocks(DISK, &format!("TATAMI_STREAMS=0 {variables}"), |sites, phase| match phase {
        BlockPhase::Writing | BlockPhase::Reading => {
            stopped = sites.io_host().run("pgrep -xf 'tatami gateway'").out;
            sites.io_host().run("pkill -STOP -xf 'tatami gateway'");
        }
        BlockPhase::WritingOn | BlockPhase::ReadingOn => {
            // Calls are on their way now.
            wait_ms(500);
            for host in sites.compute_hosts() {
                host.run("pkill -KILL -f '^ssh .*[g]ateway'");
            }
            for pid in stopped.split_whitespace() {
                sites.io_host().run(&format!(
                    "for i in $(seq 600); do [ -e /proc/{pid} ] || exit 0; sleep 0.1; done; exit 1"
                ));
            }
        }
    });
    sites.expect_nothing_left(DISK, "bulk");
}

/// A full disk is an error of every rank that writes over data connections, with the name of the
/// site.
#[test]
fn a_full_disk_under_data_connections_is_an_error() {
    let Some(sites) = start_sites() else { return };
    let _turn = ONE_AT_A_TIME.lock();
    let variables = sites.open_way(LoginWay::Both);
    sites.io_host().run("mount -t tmpfs -o size=8m tmpfs /mnt");
    let line = sites.blocks_line("/mnt", &format!("TATAMI_STREAMS=2 {variables}"), 6, 6);
    let said = ask(&mut sites.first().command(&line));
    assert!(!said.out.contains("all values right"), "{said:?}");
    let named = |line: &&str| line.contains("b1: ") && line.contains("No space left on device");
    assert!(said.err.lines().any(|line| named(&line)), "{said:?}");
    sites.expect_nothing_left("/mnt", "bulk");
}

/// A job that is killed at any moment leaves no process on any host, and no file but its own.
#[test]
fn a_job_that_is_killed_at_any_moment_leaves_nothing() {
    let Some(sites) = start_sites() else { return };
    let _turn = ONE_AT_A_TIME.lock();
    let names: Vec<&str> = sites.site_hosts().iter().map(|host| host.name()).collect();
    let volume = format!("tatami up --hosts {} --mount {VOLUME}", names.join(","));
    sites.io_host().run(&volume);
    let variables = sites.open_way(LoginWay::Both);
    let mut rng = Rng::with_seed(root_seed());
    let rounds = if scale() > 1 { 20 } else { 3 };
    for round in 0..rounds {
        let (dir, backend) = [(DISK, "posix"), (VOLUME, "volume"), (DISK, "mpi:mpich")][round % 3];
        let variables = format!("TATAMI_STREAMS=2 TATAMI_BACKEND={backend} {variables}");
        let line = sites.blocks_line(dir, &variables, 60, 60);
        let mut job = sites.first().command(&line);
        let mut job = job.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("started");
        wait_ms(rng.u64(0..8000));
        while job.try_wait().expect("a child").is_none() {
            for host in sites.compute_hosts() {
                host.ask("pkill -KILL -f '[b]ulk_blocks.py|[m]pirun|[o]rted'");
            }
        }
        let files = sites.io_host().run(&format!("ls -A {dir}")).out;
        assert!(["", "bulk"].contains(&files.trim()), "{backend}: {files}");
        sites.expect_nothing_left(dir, files.trim());
        sites.io_host().run(&format!("rm -f {dir}/bulk"));
    }
    sites.io_host().run("tatami fsck");
}

/// A link that stays down: after the stated minute every rank gets one error that names the host
/// and the cause. The other side ends what it has, though nobody tells it.
#[test]
fn a_link_that_stays_down_is_a_clear_error_of_every_rank() {
    let Some(sites) = start_sites() else { return };
    if scale() == 1 {
        // It waits for minutes.
        return;
    }
    let _turn = ONE_AT_A_TIME.lock();
    for way in [LoginWay::Near, LoginWay::Both] {
        let variables = sites.open_way(way);
        let line = sites.blocks_line(DISK, &format!("TATAMI_STREAMS=2 {variables}"), 20, 3);
        let line = format!("{line} together");
        let mut job = sites.first().command(&line);
        let job = job.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut job = job.spawn().expect("started");
        let mut lines = BufReader::new(job.stdout.take().expect("a pipe")).lines();
        while !matches!(lines.next(), Some(Ok(line)) if line == "writing") {}
        sites.bed.unplug(IO_HOST);
        for host in sites.compute_hosts() {
            host.run("touch /srv/go-writing");
        }
        let start = Instant::now();
        let said = job.wait_with_output().expect("it ends");
        let took = start.elapsed();
        let errors = String::from_utf8_lossy(&said.stderr).into_owned();
        println!("{way:?}: {} s: {errors}", took.as_secs());
        assert!(took > Duration::from_secs(55), "{took:?}: {errors}");
        assert!(took < Duration::from_secs(400), "{took:?}: {errors}");
        for rank in 0..RANKS {
            let of_rank = |line: &&str| line.starts_with(&format!("rank {rank}: "));
            assert_eq!(errors.lines().filter(of_rank).count(), 1, "{errors}");
        }
        let named = errors.lines().filter(|line| line.contains("b1: ")).count();
        assert!(named >= RANKS, "{errors}");
        // The near side has ended. The far side hears of nothing, and ends its processes.
        sites.io_host().run(
            "for i in $(seq 300); do pgrep -xf 'tatami gateway' >/dev/null || exit 0; sleep 1; \
             done; exit 1",
        );
        sites.bed.plug_in(IO_HOST);
        sites.expect_nothing_left(DISK, "bulk");
        sites.io_host().run(&format!("rm {DISK}/bulk"));
    }
}

/// Calls on a mount fail with `EHOSTDOWN` after a minute without the link. They work again when the
/// link is there, also on a file that was open all the time.
#[test]
fn a_mount_comes_back_after_minutes_without_the_link() {
    if scale() == 1 {
        // It waits for minutes.
        return;
    }
    let Some(bed) = start_bed(&["sitea", "siteb"]) else { return };
    let (one, two) = (bed.host(0), bed.host(1));
    two.run("mkdir /srv/data; echo there > /srv/data/f");
    one.run("mkdir /srv/m && tatami mount siteb:/srv/data /srv/m");
    let program = "import os, sys, time, errno
f = os.open(\"/srv/m/f\", os.O_RDONLY)
print(\"open\", flush=True)
sys.stdin.readline()
start = time.monotonic()
try: os.stat(\"/srv/m/other\")
except OSError as e: print(e.errno == errno.EHOSTDOWN, e, time.monotonic() - start, flush=True)
start = time.monotonic()
try: os.listdir(\"/srv/m\")
except OSError as e: print(e.errno == errno.EHOSTDOWN, time.monotonic() - start < 5, flush=True)
sys.stdin.readline()
while True:
    try: names = os.listdir(\"/srv/m\")
    except OSError as e: assert e.errno == errno.EHOSTDOWN, e; time.sleep(0.5)
    else: break
print(names, os.pread(f, 100, 0), flush=True)";
    let mut job = one.command(&format!("python3 -c '{program}'"));
    let mut job = job.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("started");
    let mut input = job.stdin.take().expect("a pipe");
    let mut lines = BufReader::new(job.stdout.take().expect("a pipe")).lines();
    let mut next = || lines.next().expect("a line").expect("a line");
    let go = |input: &mut std::process::ChildStdin| {
        use std::io::Write;
        writeln!(input, "go").expect("it reads");
    };
    assert_eq!(next(), "open");
    bed.unplug(1);
    go(&mut input);
    let said = next();
    println!("{said}");
    assert!(said.starts_with("True [Errno 112] Host is down"), "{said}");
    assert_eq!(next(), "True True");
    bed.plug_in(1);
    go(&mut input);
    assert_eq!(next(), "['f'] b'there\\n'");
    assert!(job.wait().expect("it ends").success());
    one.run("tatami umount /srv/m");
    two.run(
        "for i in $(seq 600); do pgrep -xf 'tatami gateway' || exit 0; sleep 0.1; done; exit 1",
    );
}
