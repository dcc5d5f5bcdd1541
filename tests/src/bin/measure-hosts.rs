//! Measures a volume on several hosts: how long it takes to start and to stop, and what passes
//! between two of them. Beside each figure stands its baseline of the same run: ssh alone, or bare
//! TCP. `make bench-hosts` runs it, as root.

#![allow(clippy::print_stdout)] // a program for people

use serde_json::{Value, json};
use std::path::Path;
use std::time::Instant;
use tatami_tests::command::run;
use tatami_tests::testbed::{HostBed, TestHost};

/// Runs of each measurement; the median counts.
const RUNS: usize = 3;
/// Bytes that pass between two hosts, in MiB.
const MEBIBYTES: u32 = 512;
/// Files of the measurement of names.
const FILES: u32 = 2000;

/// Sends and receives bytes, and then single bytes to and fro, over bare TCP.
const TCP_SERVER: &str = r#"
import socket, sys
s = socket.create_server(("", 9999)); print("ready", flush=True)
c, _ = s.accept(); c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
part = bytes(1 << 20)
for _ in range(int(sys.argv[1])): c.sendall(part)
while c.recv(1): c.sendall(b"x")
"#;
const TCP_CLIENT: &str = r#"
import socket, sys, time
c = socket.create_connection((sys.argv[1], 9999)); c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
left, start, into = int(sys.argv[2]) << 20, time.time(), bytearray(1 << 20)
while left: left -= c.recv_into(into)
print(time.time() - start)
start = time.time()
for _ in range(5000): c.sendall(b"x"); c.recv(1)
print((time.time() - start) / 5000)
"#;

fn main() -> std::process::ExitCode {
    if let Some(obstacle) = HostBed::find_obstacle() {
        eprintln!("measure-hosts: {obstacle}");
        return std::process::ExitCode::FAILURE;
    }
    let mut starts = Vec::new();
    for count in [4, 16] {
        starts.push(measure_start(count));
    }
    let [four, sixteen] = [0, 1].map(|at| starts[at]["up"].as_f64().unwrap_or(f64::NAN));
    println!("16 hosts start in {:.2} times the time of 4", sixteen / four);
    let passing = ["none", "tls"].map(measure_passing);
    let place = Path::new("bench-results");
    let report = json!({ "start": starts, "between": passing });
    std::fs::create_dir_all(place).expect("bench-results can be made");
    std::fs::write(place.join("hosts.json"), format!("{report:#}\n")).expect("it can be written");
    std::process::ExitCode::SUCCESS
}

/// Returns the seconds that a command line takes on a host.
fn time_command(host: &TestHost, line: &str) -> f64 {
    let start = Instant::now();
    run(&mut host.command(line));
    start.elapsed().as_secs_f64()
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

/// Measures the start and the stop of a volume on `count` hosts, and ssh to all of them.
fn measure_start(count: usize) -> Value {
    let names: Vec<String> = (1..=count).map(|at| format!("n{at:02}")).collect();
    let bed = HostBed::start(&names.iter().map(String::as_str).collect::<Vec<_>>());
    let one = bed.host(0);
    let list = format!("n[01-{count:02}]");
    let ssh = format!("for h in {}; do ssh $h true & done; wait", names.join(" "));
    let erase =
        format!("for h in {}; do ssh $h rm -rf /var/lib/tatami & done; wait", names.join(" "));
    let (mut logins, mut ups, mut agains, mut downs) = (vec![], vec![], vec![], vec![]);
    for _ in 0..RUNS {
        logins.push(time_command(one, &ssh));
        ups.push(time_command(one, &format!("tatami up --hosts {list} --mount /srv/volume")));
        downs.push(time_command(one, "tatami down"));
        agains.push(time_command(one, "tatami up"));
        downs.push(time_command(one, "tatami down"));
        run(&mut one.command(&erase));
    }
    let [ssh, up, again, down] = [logins, ups, agains, downs].map(median);
    println!(
        "{count} hosts, seconds: a new volume {up:.2}, start again {again:.2}, stop {down:.2}; ssh to all {ssh:.2}"
    );
    json!({ "hosts": count, "up": up, "again": again, "down": down, "ssh": ssh })
}

/// Measures what passes between two hosts: bytes and names, beside bare TCP. `encryption` is that
/// of the volume.
fn measure_passing(encryption: &str) -> Value {
    let bed = HostBed::start(&["n1", "n2"]);
    let (one, two) = (bed.host(0), bed.host(1));
    one.run(&format!("tatami up --hosts n1,n2 --mount /srv/volume --encryption {encryption}"));
    // All names are on the other host, too.
    one.run("tatami node drain n1");
    let (mut tcp, mut trips, mut reads, mut writes) = (vec![], vec![], vec![], vec![]);
    let (mut creates, mut stats) = (vec![], vec![]);
    let size = f64::from(MEBIBYTES);
    for _ in 0..RUNS {
        let (bytes, trip) = measure_tcp(one, two);
        tcp.push(size / bytes);
        trips.push(1.0 / trip);
        two.run(&format!(
            "head -c {MEBIBYTES}M /dev/zero > /srv/volume/large; sync /srv/volume/large"
        ));
        reads.push(size / time_command(one, "cat /srv/volume/large > /dev/null"));
        writes.push(
            size / time_command(
                one,
                &format!(
                    "dd if=/dev/zero of=/srv/volume/large bs=1M count={MEBIBYTES} conv=notrunc \
                     status=none"
                ),
            ),
        );
        let create = format!(
            "mkdir /srv/volume/d; cd /srv/volume/d; \
             python3 -c 'import os\nfor n in range({FILES}): os.close(os.open(str(n), os.O_CREAT))'"
        );
        creates.push(f64::from(FILES) / time_command(one, &create));
        // Names that the other host has made, and this one has not seen.
        two.run(&format!(
            "mkdir /srv/volume/e; cd /srv/volume/e; \
             python3 -c 'import os\nfor n in range({FILES}): os.close(os.open(str(n), os.O_CREAT))'"
        ));
        let stat = format!(
            "cd /srv/volume/e; python3 -c 'import os\nfor n in range({FILES}): os.stat(str(n))'"
        );
        stats.push(f64::from(FILES) / time_command(one, &stat));
        one.run("rm -r /srv/volume/d /srv/volume/e /srv/volume/large");
    }
    one.run("tatami down");
    let [tcp, trips, read, write] = [tcp, trips, reads, writes].map(median);
    let [create, stat] = [creates, stats].map(median);
    println!(
        "between two hosts, encryption {encryption}: read {read:.0} MiB/s, write {write:.0} MiB/s, bare TCP {tcp:.0} MiB/s \
         ({:.2}, {:.2})",
        read / tcp,
        write / tcp
    );
    println!(
        "names on the other host, encryption {encryption}: {create:.0} creates and {stat:.0} stats \
         a second, TCP round trips {trips:.0} ({:.2}, {:.2})",
        create / trips,
        stat / trips
    );
    json!({
        "encryption": encryption, "read": read, "write": write, "tcp": tcp, "create": create,
        "stat": stat, "round_trips": trips,
    })
}

/// Returns the seconds for the bytes, and for a round trip.
fn measure_tcp(one: &TestHost, two: &TestHost) -> (f64, f64) {
    use std::io::{BufRead, BufReader};
    let mut server = two.command(&format!("python3 -c '{TCP_SERVER}' {MEBIBYTES}"));
    let mut server = server.stdout(std::process::Stdio::piped()).spawn().expect("python3");
    let mut line = String::new();
    let out = server.stdout.as_mut().expect("a pipe");
    BufReader::new(out).read_line(&mut line).expect("it listens");
    let said = run(&mut one.command(&format!("python3 -c '{TCP_CLIENT}' n2 {MEBIBYTES}"))).out;
    server.wait().expect("it ends with its client");
    let mut seconds = said.lines().map(|line| line.parse().expect("seconds"));
    (seconds.next().expect("a line"), seconds.next().expect("a line"))
}
