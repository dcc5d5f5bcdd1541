//! Data connections beside ssh for files of another site, what happens when they fail, and routers
//! for hosts that have no route to the other site.

use crate::hosts::start_bed;
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use tatami_tests::command::{sources, target_dir};
use tatami_tests::mpi::ONE_AT_A_TIME;
use tatami_tests::testbed::{HostBed, TestHost};

/// Variables of all jobs, as in `another_site.rs`.
const SETTINGS: &str = "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
    OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_mpi_yield_when_idle=1 \
    TATAMI_MPI_LIBRARY=/usr/local/bin/libtatami_mpi.so;";
/// Steps of a job, and the one before which it waits.
const STEPS: (u32, u32) = (6, 3);
/// Ranks of a job.
const RANKS: u32 = 2;

/// Starts the hosts. The first has the programs; the other site is the host `siteb`.
fn start_sites(names: &[&str]) -> Option<HostBed> {
    let bed = start_bed(names)?;
    let libraries = ["libtatami_mpi.so", "libtatami_io.so", "libtatami_mpi_openmpi.so"];
    for name in libraries {
        bed.install_file(&target_dir().join("mpi").join(name));
    }
    for name in ["bulk_blocks.py", "compressed_blocks.py"] {
        bed.install_file(&sources().join("e2e/mpi_programs").join(name));
    }
    find_site(&bed).run("mkdir /srv/data");
    Some(bed)
}

fn find_site(bed: &HostBed) -> &TestHost {
    bed.hosts().iter().find(|host| host.name() == "siteb").expect("it was started")
}

/// Runs a job with these variables. Calls `work` when it waits in its writes and in its reads.
/// Every byte must be right, here and there.
fn run_job(bed: &HostBed, variables: &str, mut work: impl FnMut(&str)) {
    let (one, two) = (bed.host(0), find_site(bed));
    one.run("rm -f /srv/go-*");
    let line = format!(
        "{SETTINGS} export T= {variables}; tatami mpirun --launcher mpirun.openmpi -n {RANKS} \
         /usr/bin/python3 /usr/local/bin/bulk_blocks.py tatami://siteb/srv/data/bulk {} {}",
        STEPS.0, STEPS.1
    );
    let mut job = one.command(&line);
    let mut job = job.stdout(Stdio::piped()).spawn().expect("started");
    let mut lines = BufReader::new(job.stdout.take().expect("a pipe")).lines();
    let mut said = String::new();
    while let Some(Ok(line)) = lines.next() {
        if line == "writing" || line == "reading" {
            work(&line);
            one.run(&format!("touch /srv/go-{line}"));
        }
        said += &format!("{line}\n");
    }
    let ended = job.wait().expect("it ends");
    assert!(ended.success() && said.contains("all values right"), "{variables}: {said}");
    let blocks = STEPS.0 * RANKS;
    two.run(&format!("python3 /usr/local/bin/bulk_blocks.py check /srv/data/bulk {blocks}"));
    expect_nothing_left(bed);
    two.run("rm /srv/data/bulk");
}

/// No process of a job is left on any host, and nothing listens but sshd.
fn expect_nothing_left(bed: &HostBed) {
    for host in bed.hosts() {
        host.run(
            "for i in $(seq 600); do \
             pgrep -xf 'tatami (gateway|relay)' || exit 0; sleep 0.1; done; exit 1",
        );
        let listening = "ss -Hltn '( sport != :22 )'";
        assert_eq!(host.run(listening).out, "", "{} listens", host.name());
    }
}

/// Returns the number of data connections at a host.
fn count_connections(host: &TestHost) -> usize {
    host.run("ss -Htn state established '( sport != :22 and dport != :22 )'").out.lines().count()
}

/// All ways give the same bytes, and each uses the connections that were asked for.
#[test]
fn bytes_are_the_same_by_every_way() {
    let Some(bed) = start_sites(&["sitea", "siteb"]) else { return };
    let _turn = ONE_AT_A_TIME.lock();
    let two = find_site(&bed);
    let ranks = RANKS as usize;
    for (variables, each) in [
        ("TATAMI_STREAMS=0", 0..=0),
        ("TATAMI_STREAMS=1", 1..=1),
        ("TATAMI_STREAMS=4", 4..=4),
        ("TATAMI_STREAMS=4 TATAMI_ENCRYPTION=off", 4..=4),
        ("", 1..=4),
    ] {
        run_job(&bed, variables, |_| {
            let found = count_connections(two);
            let wanted = each.start() * ranks..=each.end() * ranks;
            assert!(wanted.contains(&found), "{variables}: {found} and not {wanted:?}");
            // Each place takes one connection, and then no port is open.
            assert_eq!(two.run("ss -Hltn '( sport != :22 )'").out, "");
        });
    }
    // The administrator there may have opened some ports alone.
    two.run("echo export TATAMI_DATA_PORTS=5000-5007 > ~/.bashrc");
    run_job(&bed, "TATAMI_STREAMS=2", |_| {
        let found = two.run("ss -Htn state established '( sport >= :5000 and sport <= :5007 )'");
        assert_eq!(found.out.lines().count(), 2 * ranks, "{}", found.out);
    });
    two.run("rm ~/.bashrc");
}

/// Where a firewall lets nothing but ssh pass, everything goes through ssh.
#[test]
fn a_closed_port_costs_nothing_but_speed() {
    let Some(bed) = start_sites(&["sitea", "siteb"]) else { return };
    let _turn = ONE_AT_A_TIME.lock();
    let two = find_site(&bed);
    let there = format!("dport 1024-65534 to {}", two.address());
    // A refusal that the program sees at once, and one that it never hears of.
    for (host, rule) in
        [(bed.host(0), format!("{there} prohibit")), (two, "sport 1024-65534 blackhole".to_owned())]
    {
        host.run(&format!("ip rule add pref 10 ipproto tcp {rule}"));
        run_job(&bed, "TATAMI_STREAMS=2", |_| assert_eq!(count_connections(two), 0));
        host.run("ip rule del pref 10");
    }
}

/// Connections that are cut, and I/O processes that are killed, cost no byte, and none is written
/// twice in another order.
#[test]
fn cut_connections_and_killed_io_processes_are_replaced() {
    let Some(bed) = start_sites(&["sitea", "siteb"]) else { return };
    let _turn = ONE_AT_A_TIME.lock();
    let two = find_site(&bed);
    for (streams, faults) in [
        ("TATAMI_STREAMS=1", ["ss -K '( sport != :22 )'"; 2]),
        ("TATAMI_STREAMS=4", ["ss -K '( sport != :22 )'", "pkill -KILL -xf 'tatami gateway'"]),
        ("TATAMI_STREAMS=2", ["pkill -KILL -xf 'tatami gateway'", "ss -K '( sport != :22 )'"]),
    ] {
        let mut faults = faults.iter();
        run_job(&bed, streams, |_| {
            assert!(count_connections(two) > 0);
            two.run(faults.next().expect("a job waits twice"));
        });
        assert!(faults.next().is_none());
    }
}

/// A compute host without a route to the other site uses a login host. Ranks share two of them, and
/// a relay that is killed is replaced.
#[test]
fn hosts_without_a_route_use_routers() {
    let Some(bed) = start_sites(&["compute", "login1", "login2", "siteb"]) else { return };
    let _turn = ONE_AT_A_TIME.lock();
    let (one, two) = (bed.host(0), find_site(&bed));
    one.run(&format!("ip route add blackhole {}/32", two.address()));
    assert!(one.ask("ssh -o BatchMode=yes siteb true").code != Some(0), "there is a route");
    let logins = [bed.host(1), bed.host(2)];
    let count = |host: &TestHost| host.ask("pgrep -cxf 'tatami relay'").out.trim().to_owned();
    run_job(&bed, "TATAMI_STREAMS=2 TATAMI_ROUTER=login1,root@login2:22", |_| {
        for login in logins {
            assert_eq!(count(login), "1", "the ranks do not share the routers");
            // Two connections of one rank, each with an end on both sides.
            assert_eq!(count_connections(login), 4);
        }
        assert_eq!(count_connections(two), 2 * RANKS as usize);
    });
    run_job(&bed, "TATAMI_STREAMS=1 TATAMI_ROUTER=login1", |_| {
        assert_eq!(count(logins[0]), RANKS.to_string());
        logins[0].run("pkill -KILL -xf 'tatami relay'");
    });
    // A router that is down is left out.
    bed.unplug(1);
    run_job(&bed, "TATAMI_STREAMS=1 TATAMI_ROUTER=login1,login2", |_| {
        assert_eq!(count(logins[1]), RANKS.to_string());
    });
    bed.plug_in(1);
    // A word that is no host becomes no option of ssh.
    let said = one.ask(&format!(
        "{SETTINGS} export TATAMI_ROUTER=-oProxyCommand=x TATAMI_MPI_VERBOSE=1; tatami mpirun \
         --launcher mpirun.openmpi -n 1 /usr/bin/python3 /usr/local/bin/bulk_blocks.py \
         tatami://siteb/srv/data/bulk 1 1"
    ));
    assert!(said.code != Some(0) && said.err.contains("router: "), "{said:?}");
    expect_nothing_left(&bed);
}

/// Returns the bytes that a host has received from the others, and those that it has sent.
fn count_bytes(host: &TestHost) -> [u64; 2] {
    let said = host.run("cat /proc/net/dev").out;
    let lines = said.lines().filter_map(|line| line.split_once(':'));
    let counts = lines.filter(|(name, _)| name.trim() != "lo").map(|(_, rest)| {
        let words: Vec<u64> = rest.split_whitespace().flat_map(str::parse).collect();
        [words[0], words[8]]
    });
    counts.fold([0; 2], |sum, one| [sum[0] + one[0], sum[1] + one[1]])
}

/// Writes and reads `mib` MiB of each rank. Every byte must be right, here and there. Returns the
/// shares of the bytes that came over the network: of those written, and of those read.
fn measure_shares(
    bed: &HostBed,
    variables: &str,
    (kind, mib): (&str, u64),
    (wish, found): (&str, &str),
) -> [f64; 2] {
    let (one, two) = (bed.host(0), find_site(bed));
    one.run("rm -f /srv/go-on");
    let line = format!(
        "{SETTINGS} export T= {variables}; tatami mpirun --launcher mpirun.openmpi -n {RANKS} \
         /usr/bin/python3 /usr/local/bin/compressed_blocks.py /srv/data/compressed {kind} \
         {mib} {wish}"
    );
    let start = count_bytes(two);
    let mut job = one.command(&line).stdout(Stdio::piped()).spawn().expect("started");
    let mut lines = BufReader::new(job.stdout.take().expect("a pipe")).lines();
    let (mut said, mut middle) = (String::new(), start);
    while let Some(Ok(line)) = lines.next() {
        if line == "written" {
            middle = count_bytes(two);
            one.run("touch /srv/go-on");
        }
        said += &format!("{line}\n");
    }
    let ended = job.wait().expect("it ends");
    let end = count_bytes(two);
    assert!(ended.success() && said.contains("all values right"), "{variables}: {said}");
    assert!(said.contains(&format!("compression={found}\n")), "{variables} {wish}: {said}");
    two.run(&format!(
        "python3 /usr/local/bin/compressed_blocks.py check /srv/data/compressed {kind} {mib} {RANKS}"
    ));
    two.run("rm /srv/data/compressed");
    let all = ((u64::from(RANKS) * mib) << 20) as f64;
    let shares = [(middle[0] - start[0]) as f64 / all, (end[1] - middle[1]) as f64 / all];
    println!("{kind}, {wish}, {variables}: {shares:.3?}");
    shares
}

/// Compression changes no byte, moves far fewer where they shrink, and no more where they do not.
#[test]
fn compression_moves_fewer_bytes_and_changes_none() {
    let Some(bed) = start_sites(&["sitea", "login1", "siteb"]) else { return };
    let _turn = ONE_AT_A_TIME.lock();
    let (numbers, noise) = (("numbers", 16), ("noise", 16));
    let small = |shares: [f64; 2]| shares.iter().all(|share| *share < 0.5);
    let whole = |shares: [f64; 2]| shares.iter().all(|share| (0.95..1.08).contains(share));
    for variables in ["TATAMI_STREAMS=1", "TATAMI_STREAMS=2 TATAMI_ROUTER=login1"] {
        assert!(small(measure_shares(&bed, variables, numbers, ("on", "on"))), "{variables}");
        assert!(whole(measure_shares(&bed, variables, noise, ("on", "on"))), "{variables}");
        assert!(whole(measure_shares(&bed, variables, numbers, ("off", "off"))), "{variables}");
    }
    // A hint wins over the environment, and ssh carries bytes as they are.
    let variables = "TATAMI_COMPRESSION=on TATAMI_ENCRYPTION=off";
    assert!(small(measure_shares(&bed, variables, numbers, ("-", "on"))));
    assert!(whole(measure_shares(&bed, variables, numbers, ("off", "off"))));
    let variables = "TATAMI_COMPRESSION=on TATAMI_STREAMS=0";
    assert!(whole(measure_shares(&bed, variables, ("numbers", 4), ("-", "off"))));
    // By itself, on a way that is slow, after some parts that are measured.
    [0, 2].iter().for_each(|at| bed.limit_rate(*at, Some("200mbit")));
    let shares = measure_shares(&bed, "TATAMI_STREAMS=1", ("numbers", 48), ("-", "auto"));
    assert!(shares.iter().all(|share| *share < 0.7), "{shares:?}");
    assert!(whole(measure_shares(&bed, "TATAMI_STREAMS=1", noise, ("auto", "auto"))));
    expect_nothing_left(&bed);
}
