//! Measures files on another site: PnetCDF and plain MPI-IO through ssh and the I/O process there.
//! Beside them stand bare TCP, `scp`, and the MPI library's own MPI-IO on sshfs, in the same run.
//! Hosts of namespaces are the sites. `make bench-remote` runs it, as root. Words select parts:
//! `networks` or the name of one, `ways`, `compression`. Without any, all are measured.

#![allow(clippy::print_stdout)] // a program for people

#[path = "../measure_remote/figures.rs"]
mod figures;
#[path = "../measure_remote/remote_plots.rs"]
mod remote_plots;
#[path = "../measure_remote/ways.rs"]
mod ways;

use figures::{
    LARGE, MIB, Measured, ROUNDS, RoundTimes, SETTINGS, find, list_figures, median, median_of,
    quietly, run_program, time_command,
};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;
use tatami_tests::command::{sources, tatami_bin};
use tatami_tests::testbed::{HostBed, TestHost};

/// The layer and the program, beside `tatami`.
const FILES: [&str; 5] = [
    "libtatami_io.so",
    "mpi/libtatami_mpi.so",
    "mpi/libtatami_mpi_openmpi.so",
    "mpi/libtatami_gateway_openmpi.so",
    "remote_bench",
];

/// Receives as many bytes as the client sends and answers once, and then single bytes.
const TCP_SERVER: &str = r#"
import socket, sys
s = socket.create_server(("", 9999)); print("ready", flush=True)
c, _ = s.accept(); c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
left, into = int(sys.argv[1]), bytearray(1 << 20)
while left: left -= c.recv_into(into)
c.sendall(b"x")
while c.recv(1): c.sendall(b"x")
"#;
const TCP_CLIENT: &str = r#"
import socket, sys, time
c = socket.create_connection(("siteb", int(sys.argv[1])))
c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
part, start = bytes(1 << 20), time.time()
for _ in range(int(sys.argv[2]) >> 20): c.sendall(part)
c.recv(1); print(time.time() - start)
start = time.time()
for _ in range(50): c.sendall(b"x"); c.recv(1)
print((time.time() - start) / 50)
"#;

/// A network between the sites.
struct Network {
    name: &'static str,
    /// A rate for tc(8).
    rate: Option<&'static str>,
    /// The round trip that a proxy adds, in ms.
    delay_ms: u16,
    /// Whether sshfs is measured, too.
    with_sshfs: bool,
}

const NETWORKS: [Network; 4] = [
    Network { name: "no limit", rate: None, delay_ms: 0, with_sshfs: true },
    Network { name: "1 Gbit/s", rate: Some("1gbit"), delay_ms: 0, with_sshfs: true },
    Network { name: "1 Gbit/s, 1 ms", rate: Some("1gbit"), delay_ms: 1, with_sshfs: false },
    Network { name: "1 Gbit/s, 10 ms", rate: Some("1gbit"), delay_ms: 10, with_sshfs: true },
];

fn main() -> std::process::ExitCode {
    if let Some(obstacle) = HostBed::find_obstacle() {
        eprintln!("measure-remote: {obstacle}");
        return std::process::ExitCode::FAILURE;
    }
    let bed = HostBed::start(&["sitea", "siteb", "sitec"]);
    FILES.iter().for_each(|name| bed.install_file(&tatami_bin().with_file_name(name)));
    bed.install_file(&sources().join("src/testbed/delay.py"));
    let (here, there) = (bed.host(0), bed.host(1));
    quietly(there, "mkdir /srv/data");
    quietly(
        there,
        "setsid delay.py 2201 22 0.0005 9901 9999 0.0005 2210 22 0.005 9910 9999 0.005 \
         </dev/null >/dev/null 2>&1 &",
    );
    for port in [2201, 9901, 2210, 9910] {
        let listens = format!("until (exec 3<>/dev/tcp/127.0.0.1/{port}) 2>/dev/null");
        // A connection of 99xx finds no server yet, which the proxy must survive.
        quietly(there, &format!("{listens}; do sleep 0.02; done"));
    }
    quietly(here, "head -c 64M /dev/urandom > large; head -c 16K /dev/urandom > small");
    let words: Vec<String> = std::env::args().skip(1).collect();
    let wants = |part: &str| words.is_empty() || words.iter().any(|word| word == part);
    let mut report = Vec::new();
    for network in NETWORKS.iter().filter(|one| wants("networks") || wants(one.name)) {
        [0, 1].iter().for_each(|at| bed.limit_rate(*at, network.rate));
        report.push(measure_network(here, there, network));
    }
    if !report.is_empty() {
        print_round_trips(&report);
        print_goals(&report);
    }
    // From here on the names lead to the host itself.
    quietly(here, "rm -f ~/.ssh/config");
    [0, 1].iter().for_each(|at| bed.limit_rate(*at, None));
    let ways = wants("ways").then(|| ways::measure_ways(here, there));
    [0, 1].iter().for_each(|at| bed.limit_rate(*at, Some(ways::SLOW)));
    let compression = wants("compression").then(|| ways::measure_compression(here));
    let place = Path::new("bench-results");
    let plots = place.join("remote");
    std::fs::create_dir_all(&plots).expect("bench-results can be made");
    remote_plots::draw_plots(&report, &plots);
    let all = json!({ "networks": report, "ways": ways, "compression": compression });
    std::fs::write(place.join("remote.json"), format!("{all:#}\n")).expect("it can be written");
    std::process::ExitCode::SUCCESS
}

/// Measures everything on one network. Returns the figures for the report.
fn measure_network(here: &TestHost, there: &TestHost, network: &Network) -> Value {
    // All logins take the way through the proxy: those of scp and sshfs, too.
    let port =
        |near: u16, far: u16| if network.delay_ms == 0 { near } else { far + network.delay_ms };
    let config = format!("Host siteb\\n Port {}\\n HostKeyAlias siteb\\n", port(22, 2200));
    quietly(here, &format!("printf '{config}' > ~/.ssh/config"));
    let (mut streams, mut trips) = (vec![], vec![]);
    for _ in 0..ROUNDS {
        let (stream, trip) = measure_tcp(here, there, port(9999, 9900));
        streams.push(stream);
        trips.push(trip);
    }
    let (tcp, trip) = (median(streams), median(trips));
    let login = median_of(|_| time_command(here, "ssh siteb true"));
    let scp =
        |file: &str| median_of(|_| time_command(here, &format!("scp -q {file} siteb:/srv/scp")));
    let (large, small) = (scp("large"), scp("small"));
    println!(
        "\n== {}: bare TCP {:.0} MiB/s, round trip {:.2} ms; ssh login {:.2} s; scp of 64 MiB {:.0} \
         MiB/s, of 16 KiB {small:.2} s",
        network.name,
        LARGE / MIB / tcp,
        trip * 1e3,
        login,
        LARGE / MIB / large,
    );
    let mut jobs = Vec::new();
    for ranks in [1, 4] {
        // The arrays shrink to nothing, and the baselines move all bytes.
        let launch = format!("{SETTINGS} export TATAMI_COMPRESSION=off; tatami mpirun -n {ranks}");
        let ours =
            run_program(here, &format!("{launch} remote_bench tatami://siteb/srv/data {ROUNDS}"));
        let ours = ours.expect("the program runs");
        let sshfs = network.with_sshfs.then(|| run_on_sshfs(here, ranks)).flatten();
        print_table(ranks, &ours, sshfs.as_ref(), tcp, large);
        let sshfs = sshfs.map(|measured| list_figures(&measured));
        let goals = rate_goals(&ours, tcp);
        let ours = list_figures(&ours);
        jobs.push(json!({ "ranks": ranks, "tatami": ours, "sshfs": sshfs, "goals": goals }));
    }
    json!({
        "network": network.name, "delay_ms": network.delay_ms, "jobs": jobs,
        "tcp_64_mib": tcp, "round_trip": trip, "login": login, "scp_64_mib": large, "scp_16_kib": small,
    })
}

/// Returns the seconds for the large bytes, and for a round trip.
fn measure_tcp(here: &TestHost, there: &TestHost, port: u16) -> (f64, f64) {
    let mut server = there.command(&format!("python3 -c '{TCP_SERVER}' {LARGE:.0}"));
    let mut server = server.stdout(Stdio::piped()).spawn().expect("python3");
    let mut line = String::new();
    let out = server.stdout.as_mut().expect("a pipe");
    BufReader::new(out).read_line(&mut line).expect("it listens");
    let said = quietly(here, &format!("python3 -c '{TCP_CLIENT}' {port} {LARGE:.0}"));
    server.wait().expect("it ends with its client");
    let mut seconds = said.lines().map(|line| line.parse().expect("seconds"));
    (seconds.next().expect("a line"), seconds.next().expect("a line"))
}

/// Runs the program by the MPI library's own MPI-IO on a mount of the other site; `None` if it
/// fails or needs too long.
fn run_on_sshfs(here: &TestHost, ranks: u32) -> Option<Measured> {
    quietly(here, "mkdir -p /srv/mount; sshfs siteb:/srv/data /srv/mount");
    let line = format!("{SETTINGS} mpirun -n {ranks} remote_bench /srv/mount {ROUNDS} arrays");
    let measured = run_program(here, &line);
    quietly(here, "fusermount3 -u -z /srv/mount");
    if measured.is_none() {
        println!("   sshfs, {ranks} ranks: failed, or took more than two minutes");
    }
    measured
}

/// Prints the figures of one job, in ms, and the ratios to the baselines of the same run.
fn print_table(ranks: u32, ours: &Measured, sshfs: Option<&Measured>, tcp: f64, scp: f64) {
    let first = find(ours, "first open", "mpi", "open").map_or(f64::NAN, |times| times.open);
    println!(
        "-- {ranks} ranks, times in ms; the first open logs in and takes {:.0} ms",
        first * 1e3
    );
    println!(
        "{:20} {:5} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}  {:>9} {:>7} {:>7} {:>7}",
        "",
        "",
        "PnetCDF",
        "pure",
        "MPI-IO",
        "pure",
        "sshfs",
        "pure",
        "pure N/M",
        "N/TCP",
        "M/TCP",
        "M/scp"
    );
    for how in ["write", "read"] {
        for array in [
            "int 16x16x16",
            "double 16x16x8",
            "int 64x64x64",
            "double 64x64x32",
            "int 256x256x256",
            "double 256x256x128",
        ] {
            let none = RoundTimes::NONE;
            let netcdf = find(ours, array, "pnetcdf", how).unwrap_or(none);
            let plain = find(ours, array, "mpi", how).unwrap_or(none);
            let other = sshfs.and_then(|all| find(all, array, "mpi", how)).unwrap_or(none);
            print!("{array:20} {how:5}");
            for seconds in
                [netcdf.total, netcdf.pure, plain.total, plain.pure, other.total, other.pure]
            {
                print!(" {:>9.2}", seconds * 1e3);
            }
            print!("  {:>9.2}", netcdf.pure / plain.pure);
            if array.contains("256") {
                let [netcdf, plain] = [netcdf, plain].map(|times| tcp / times.total);
                print!(" {netcdf:>7.2} {plain:>7.2} {:>7.2}", plain * scp / tcp);
            }
            println!();
        }
        let regions = find(ours, "regions", "mpi", how);
        if let Some((dense, regions)) = find(ours, "contiguous", "mpi", how).zip(regions) {
            println!(
                "8-byte regions, 4 MiB {how}: {:.1} ms, contiguous {:.1} ms: {:.2} of its rate",
                regions.total * 1e3,
                dense.total * 1e3,
                dense.total / regions.total
            );
        }
    }
    for (title, measured) in [("", Some(ours)), ("sshfs: ", sshfs)] {
        if let Some(opens) = measured.and_then(|all| find(all, "opens", "mpi", "open")) {
            println!(
                "{title}100 files in a row: open {:.2} ms, close {:.2} ms each",
                opens.open * 1e3,
                opens.close * 1e3
            );
        }
    }
}

/// Prints how many round trips an open and a close take: the time that a longer way costs.
fn print_round_trips(report: &[Value]) {
    println!("\n== round trips of an open and a close: what the longer way costs");
    let [near, far] = ["1 Gbit/s", "1 Gbit/s, 10 ms"]
        .map(|name| report.iter().find(|network| network["network"] == name));
    let Some((near, far)) = near.zip(far) else { return };
    let added = far["round_trip"].as_f64().zip(near["round_trip"].as_f64()).map(|(f, n)| f - n);
    for at in 0..2 {
        let seconds = |network: &Value, key: &str| {
            network["jobs"][at]["tatami"]["opens, mpi, open"][key].as_f64().unwrap_or(f64::NAN)
        };
        let trips =
            |key: &str| (seconds(far, key) - seconds(near, key)) / added.unwrap_or(f64::NAN);
        println!(
            "{} ranks: open {:.1}, close {:.1}",
            near["jobs"][at]["ranks"],
            trips("open"),
            trips("close")
        );
    }
}

/// Returns the worst ratios of a job, for the goals.
fn rate_goals(ours: &Measured, tcp: f64) -> Value {
    let ratios = |arrays: [&str; 2], ratio: &dyn Fn(RoundTimes, RoundTimes) -> f64| -> Vec<f64> {
        let cases = arrays.iter().flat_map(|array| ["write", "read"].map(|how| (*array, how)));
        let both = cases.filter_map(|(array, how)| {
            find(ours, array, "pnetcdf", how).zip(find(ours, array, "mpi", how))
        });
        both.map(|(netcdf, plain)| ratio(netcdf, plain)).collect()
    };
    let small = ["int 16x16x16", "double 16x16x8"];
    let large = ["int 256x256x256", "double 256x256x128"];
    let netcdf = ratios(small, &|netcdf, plain| netcdf.pure / plain.pure);
    let stream = ratios(large, &|_, plain| tcp / plain.total);
    let regions = ["write", "read"].map(|how| {
        let pair = find(ours, "contiguous", "mpi", how).zip(find(ours, "regions", "mpi", how));
        pair.map_or(f64::NAN, |(dense, regions)| dense.total / regions.total)
    });
    json!({
        "netcdf_to_mpi_at_16_kib": netcdf.into_iter().fold(0.0, f64::max),
        "share_of_tcp_at_64_mib": stream.into_iter().fold(f64::INFINITY, f64::min),
        "share_of_contiguous": regions.into_iter().fold(f64::INFINITY, f64::min),
    })
}

/// Prints the worst ratio of each job beside its goal.
fn print_goals(report: &[Value]) {
    println!("\n== worst ratios, and their goals");
    for network in report {
        for job in network["jobs"].as_array().into_iter().flatten() {
            let ratio = |key: &str| job["goals"][key].as_f64().unwrap_or(f64::NAN);
            println!(
                "{}, {} ranks: PnetCDF to MPI-IO at 16 KiB {:.2} (at most 1.2), MPI-IO to bare TCP \
                 at 64 MiB {:.2} (at least 0.9), regions to contiguous {:.2} (at least 0.8)",
                network["network"].as_str().unwrap_or_default(),
                job["ranks"],
                ratio("netcdf_to_mpi_at_16_kib"),
                ratio("share_of_tcp_at_64_mib"),
                ratio("share_of_contiguous"),
            );
        }
    }
}
