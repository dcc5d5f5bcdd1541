//! One large file by each way: the back ends, without TLS, mounts, and the floor of all, which is
//! bare TCP with a write to the disk. Then compression on a slow network.

use crate::figures::run_program;
use crate::figures::{MIB, Measured, ROUNDS, SETTINGS, find, list_figures, median, quietly};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::Instant;
use tatami_tests::testbed::TestHost;

/// Mebibytes of the file without a limit of the network, and on the slow one.
const BULK: (u32, u32) = (256, 32);
/// The rate of the slow network, for tc(8).
pub const SLOW: &str = "200mbit";
/// Bytes of the file that is copied, which lies there already.
const COPIED: f64 = 64.0 * MIB;

/// Receives bytes and writes them to a file, or reads a file and sends it.
const FLOOR_SERVER: &str = r#"
import os, socket, sys
s = socket.create_server(("", 9998)); print("ready", flush=True)
c, _ = s.accept(); path, left = sys.argv[1], int(sys.argv[2])
part = bytearray(1 << 20); view = memoryview(part)
if sys.argv[3] == "write":
    f = open(path, "wb", buffering=0)
    while left:
        n = c.recv_into(part, min(left, len(part)), socket.MSG_WAITALL); f.write(view[:n]); left -= n
    c.sendall(b"x")
else:
    f = open(path, "rb", buffering=0)
    while left: n = f.readinto(part); c.sendall(view[:n]); left -= n
"#;
const FLOOR_CLIENT: &str = r#"
import socket, sys, time
c = socket.create_connection(("siteb", 9998)); left, part = int(sys.argv[1]), bytearray(1 << 20)
start = time.time()
if sys.argv[2] == "write":
    while left: c.sendall(part); left -= len(part)
    c.recv(1)
else:
    while left: left -= c.recv_into(part, min(left, len(part)), socket.MSG_WAITALL)
print(time.time() - start)
"#;

/// Returns the seconds that the processors of this machine have worked. All hosts share them.
fn cpu_time() -> f64 {
    let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let words = text.lines().next().unwrap_or_default().split_whitespace().skip(1);
    let ticks: Vec<f64> = words.flat_map(str::parse).collect();
    // Without idle time, waits for the disk, and what the host has taken.
    [0, 1, 2, 5, 6].iter().filter_map(|at| ticks.get(*at)).sum::<f64>() / 100.0
}

/// Returns the medians of wall time and CPU time of a piece of work, which returns its wall time.
fn measure_both(mut work: impl FnMut() -> f64) -> (f64, f64) {
    let rounds = (0..ROUNDS).map(|_| {
        let before = cpu_time();
        let seconds = work();
        (seconds, cpu_time() - before)
    });
    let (wall, cpu): (Vec<f64>, Vec<f64>) = rounds.unzip();
    (median(wall), median(cpu))
}

/// Measures bare TCP with a file at the far end; returns its wall time.
fn run_floor(here: &TestHost, there: &TestHost, how: &str) -> f64 {
    let bytes = f64::from(BULK.0) * MIB;
    if how == "write" {
        quietly(there, "rm -f /srv/floor");
    }
    let mut server = there
        .command(&format!("python3 -c '{FLOOR_SERVER}' /srv/floor {bytes:.0} {how}"))
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3");
    let mut line = String::new();
    let out = server.stdout.as_mut().expect("a pipe");
    BufReader::new(out).read_line(&mut line).expect("it listens");
    let said = quietly(here, &format!("python3 -c '{FLOOR_CLIENT}' {bytes:.0} {how}"));
    server.wait().expect("it ends with its client");
    said.trim().parse().expect("seconds")
}

fn print_way(name: &str, how: &str, bytes: f64, (wall, cpu): (f64, f64)) -> Value {
    let (rate, cost) = (bytes / MIB / wall, cpu * 1024.0 * MIB / bytes);
    println!("{name:28} {how:5} {rate:>7.0} MiB/s {cost:>6.2} CPU s/GiB");
    json!({ "way": name, "how": how, "mib_per_s": rate, "cpu_s_per_gib": cost })
}

/// Measures one large file by each way, without a limit of the network.
pub fn measure_ways(here: &TestHost, there: &TestHost) -> Value {
    let mut all = Vec::new();
    println!("\n== ways of {} MiB, 1 rank, no limit of the network", BULK.0);
    let bytes = f64::from(BULK.0) * MIB;
    for how in ["write", "read"] {
        let floor = measure_both(|| run_floor(here, there, how));
        all.push(print_way("bare TCP and a file", how, bytes, floor));
    }
    quietly(there, "rm -f /srv/floor; tatami up --hosts siteb,sitec --mount /srv/volume");
    for (name, dir, variables) in [
        ("posix", "/srv/data", "TATAMI_BACKEND=posix"),
        ("posix, no TLS", "/srv/data", "TATAMI_BACKEND=posix TATAMI_ENCRYPTION=off"),
        ("volume of two nodes", "/srv/volume", "TATAMI_BACKEND=volume"),
        ("mpi:openmpi", "/srv/data", "TATAMI_BACKEND=mpi:openmpi"),
    ] {
        for (what, compression) in [("noise", "auto"), ("numbers", "off"), ("numbers", "auto")] {
            if what != "noise" && name != "posix" {
                continue;
            }
            let line = format!(
                "{SETTINGS} export {variables} TATAMI_COMPRESSION={compression}; tatami mpirun -n 1 \
                 remote_bench tatami://siteb{dir} {ROUNDS} bulk {}",
                BULK.0
            );
            let Some(measured) = run_program(here, &line) else { continue };
            for how in ["write", "read"] {
                let Some(times) = find(&measured, what, "mpi", how) else { continue };
                let title = format!("{name}, {what}, {compression}");
                all.push(print_way(&title, how, bytes, (times.total, times.cpu)));
            }
        }
    }
    quietly(there, "tatami down");
    quietly(here, "scp -q large siteb:/srv/data/large");
    for (name, mount, unmount) in [
        ("tatami mount, cp", "tatami mount siteb:/srv/data", "tatami umount"),
        ("sshfs, cp", "sshfs siteb:/srv/data", "fusermount3 -u"),
    ] {
        quietly(here, "mkdir -p /srv/site");
        for (how, copy) in [
            ("write", "cp large /srv/site/copy && sync /srv/site/copy"),
            ("read", "cp /srv/site/large /dev/shm/large"),
        ] {
            // A new mount each time: the kernel keeps pages of the one before.
            let both = measure_both(|| {
                quietly(here, &format!("{mount} /srv/site >/dev/null"));
                let start = Instant::now();
                quietly(here, copy);
                let seconds = start.elapsed().as_secs_f64();
                quietly(here, &format!("{unmount} /srv/site; rm -f /dev/shm/large"));
                quietly(there, "rm -f /srv/data/copy");
                seconds
            });
            all.push(print_way(name, how, COPIED, both));
        }
    }
    all.into()
}

/// Measures compression on a slow network.
pub fn measure_compression(here: &TestHost) -> Value {
    let mut all = Vec::new();
    println!("\n== compression, {} MiB, 1 rank, {SLOW}", BULK.1);
    for wish in ["off", "auto", "on"] {
        let line = format!(
            "{SETTINGS} export TATAMI_COMPRESSION={wish}; tatami mpirun -n 1 remote_bench \
             tatami://siteb/srv/data 1 bulk {}",
            BULK.1
        );
        let Some(measured) = run_program(here, &line) else { continue };
        print_wish(wish, &measured);
        all.push(json!({ "compression": wish, "figures": list_figures(&measured) }));
    }
    all.into()
}

fn print_wish(wish: &str, measured: &Measured) {
    let bytes = f64::from(BULK.1) * MIB;
    for what in ["noise", "numbers"] {
        for how in ["write", "read"] {
            let Some(times) = find(measured, what, "mpi", how) else { continue };
            print_way(&format!("{what}, {wish}"), how, bytes, (times.total, times.cpu));
        }
    }
}
