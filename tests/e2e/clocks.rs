//! One host of a volume has a clock that is 30 s ahead, or behind. Nothing is lost, nothing is
//! stale, and times are those that `docs/reference/semantics.md` promises.

use crate::host_faults::{Worker, check_all, stop_workers};
use crate::hosts::start_bed;
use std::collections::BTreeSet;
use tatami_skip::skip_unavailable;
use tatami_tests::command::{sources, target_dir};
use tatami_tests::mpi::ONE_AT_A_TIME;
use tatami_tests::testbed::{HostBed, TestHost};

/// Directories whose times are compared.
const DIRS: u64 = 40;

/// Runs all on hosts of which the second has a clock that is so many seconds ahead.
fn work_with_a_wrong_clock(ahead: i64, encryption: &str) {
    if cfg!(not(target_arch = "x86_64")) {
        return skip_unavailable("the clock of one host is set on x86-64 only");
    }
    let Some(bed) = start_bed(&["n1", "n2", "n3"]) else { return };
    let (one, two) = (bed.host(0), bed.host(1));
    two.set_clock(&bed, ahead);
    let said = one.run(&format!(
        "export TATAMI_VOLUME_ENCRYPTION={encryption}; tatami up --hosts n[1-3] \
         --mount /srv/volume --node-lease-sec 2 --client-patience-sec 1200; tatami status"
    ));
    assert!(said.out.contains("the clock of n2 is "), "{said:?}");
    one.run("mkdir /srv/volume/shared");
    nothing_is_stale(&bed);
    times_are_as_promised(&bed, ahead);
    locks_hold(&bed);
    delegations_end(&bed);
    daemons_recover(&bed, ahead);
    ranks_share_a_file(&bed);
    one.run("tatami fsck && tatami down");
}

/// What one host has written and closed, the others read at once, over and over.
fn nothing_is_stale(bed: &HostBed) {
    for round in 0..4 {
        for writer in bed.hosts() {
            let name = writer.name();
            let text = format!("{round} of {name}");
            let line = format!(
                "cd /srv/volume; echo {text} > same; echo {text} >> all; mv same now; \
                 mkdir -p d; rm -f d/*; echo {text} > d/{name}-{round}"
            );
            writer.run(&line);
            for reader in bed.hosts() {
                let said = reader.run("cd /srv/volume; cat now; tail -n 1 all; cat d/*; ls d");
                let expected = format!("{text}\n{text}\n{text}\n{name}-{round}\n");
                assert_eq!(said.out, expected, "{name} wrote, {} read", reader.name());
            }
        }
    }
    assert_eq!(bed.host(0).run("wc -l < /srv/volume/all").out.trim(), "12");
}

fn read_clock(host: &TestHost) -> i64 {
    host.run("date +%s").out.trim().parse().expect("a number")
}

/// Names have the time of the node of their shard, and all hosts see the same. Within a directory
/// the times are those of one clock.
fn times_are_as_promised(bed: &HostBed, ahead: i64) {
    let (one, two) = (bed.host(0), bed.host(1));
    let before = read_clock(one);
    one.run(&format!("cd /srv/volume; for i in $(seq {DIRS}); do mkdir t$i; touch t$i/f; done"));
    for host in bed.hosts() {
        host.run("cd /srv/volume; echo x > written-$(hostname)");
    }
    let after = read_clock(one);
    let times =
        |host: &TestHost| host.run("cd /srv/volume; stat -c '%n %Y %Z' t* t*/f written-*").out;
    let all = times(one);
    let mut offsets = BTreeSet::new();
    for line in all.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        for word in &words[1..] {
            let time: i64 = word.parse().expect("a number");
            let of_clock = |offset: i64| (before + offset..=after + offset).contains(&time);
            assert!(of_clock(0) || of_clock(ahead), "{line}: of neither clock, {before}");
            offsets.insert(if of_clock(ahead) { ahead } else { 0 });
        }
    }
    assert_eq!(offsets.len(), 2, "both clocks: {all}");
    for host in bed.hosts() {
        assert_eq!(times(host), all, "as {} sees it", host.name());
    }
    // One after the other in one directory, by hosts with different clocks.
    let mut last = 0;
    for round in 0..3 {
        for host in [one, two, bed.host(2)] {
            let line = format!("cd /srv/volume/t1; n={round}-$(hostname); mkdir $n; stat -c %Z .");
            let time: i64 = host.run(&line).out.trim().parse().expect("a number");
            assert!(time >= last, "{} went back from {last} to {time}", host.name());
            last = time;
        }
    }
}

/// A lock excludes the other hosts for as long as it is held, and no longer.
fn locks_hold(bed: &HostBed) {
    for (holder, other) in [(0, 1), (1, 0), (1, 2)] {
        let (holder, other) = (bed.host(holder), bed.host(other));
        holder.run("setsid flock /srv/volume/lock sh -c 'touch /run/held; sleep 5' </dev/null >/dev/null 2>&1 &");
        holder.run("until test -e /run/held; do sleep 0.01; done; rm /run/held");
        // Some leases long.
        for _ in 0..3 {
            other.run("! flock -n /srv/volume/lock true; sleep 0.5");
        }
        holder.run("pgrep -xf 'sleep 5'");
        other.run("flock -w 100 /srv/volume/lock true");
    }
    // The wait of a host whose clock is right, and of the one whose is not, for a dead mount.
    for (dead, other) in [(1, 0), (0, 1)] {
        let (dead, other) = (bed.host(dead), bed.host(other));
        dead.run("setsid flock /srv/volume/lock sh -c 'touch /run/held; sleep 1000' </dev/null >/dev/null 2>&1 &");
        dead.run("until test -e /run/held; do sleep 0.01; done; rm /run/held");
        dead.run("pkill -KILL -x tatami-mount");
        other.run("flock -w 100 /srv/volume/lock true");
        dead.run("pkill -x sleep || true; umount -l /srv/volume; tatami up --here");
    }
}

/// A host that has a directory or a file delegated and falls silent holds the others up for a
/// lease.
fn delegations_end(bed: &HostBed) {
    for (holder, other) in [(1, 0), (0, 1)] {
        let (holder, other) = (bed.host(holder), bed.host(other));
        let dir = format!("/srv/volume/of-{}", holder.name());
        holder.run(&format!("mkdir {dir}; for i in $(seq 50); do echo $i > {dir}/$i; done"));
        holder.run(&format!("for i in $(seq 50); do stat {dir}/$i; cat {dir}/$i; done >/dev/null"));
        holder.run("pkill -STOP -x tatami-mount");
        other.run(&format!("cd {dir}; rm 1; mv 2 two; echo new > 3; touch new"));
        holder.run("pkill -CONT -x tatami-mount");
        let seen =
            holder.run(&format!("cd {dir}; cat 3 two; test ! -e 1; test -e new; ls | wc -l"));
        assert_eq!(seen.out, "new\n2\n50\n", "{}", holder.name());
    }
}

/// Daemons die while programs on all hosts make, rename and remove files, and come back with other
/// clocks.
fn daemons_recover(bed: &HostBed, ahead: i64) {
    let mut workers: Vec<Worker> = bed.hosts().iter().map(Worker::start).collect();
    workers.iter_mut().for_each(|worker| worker.await_rounds(5));
    // The clock jumps from ahead to behind, or back, and then it is right for a while.
    for (host, clock) in [(1, -ahead), (0, 0), (1, 0), (2, 0), (1, ahead)] {
        let victim = bed.host(host);
        let name = victim.name();
        victim.run("pkill -KILL -x tatami-node; while pgrep -x tatami-node; do sleep 0.01; done");
        if host == 1 {
            victim.set_clock(bed, clock);
        }
        victim.run(&format!("tatami node start {name}"));
        workers.iter_mut().for_each(|worker| worker.await_rounds(5));
    }
    let rounds = stop_workers(bed, workers);
    check_all(bed, &rounds);
}

/// A rank on each host: separate parts, the shared pointer, and sync. Each reads what the others
/// wrote.
fn ranks_share_a_file(bed: &HostBed) {
    let _turn = ONE_AT_A_TIME.lock();
    for name in ["libtatami_mpi.so", "libtatami_mpi_openmpi.so", "libtatami_io.so"] {
        bed.install_file(&target_dir().join("mpi").join(name));
    }
    bed.install_file(&sources().join("e2e/mpi_programs/mpi4py_shared.py"));
    let job = "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
         OMPI_MCA_btl_tcp_if_include=eth0 OMPI_MCA_oob_tcp_if_include=eth0 \
         OMPI_MCA_rmaps_base_oversubscribe=1 TATAMI_MPI_LIBRARY=/usr/local/bin/libtatami_mpi.so; \
         tatami mpirun --launcher mpirun.openmpi --host n1,n2,n3 -n 3 \
         /usr/bin/python3 /usr/local/bin/mpi4py_shared.py /srv/volume/shared.dat";
    for host in bed.hosts() {
        let said = host.run(job);
        assert!(said.out.contains("all values right"), "{said:?}");
    }
    let sums: BTreeSet<_> =
        bed.hosts().iter().map(|host| host.run("cksum < /srv/volume/shared.dat").out).collect();
    assert_eq!(sums.len(), 1, "{sums:?}");
}

#[test]
fn a_host_whose_clock_is_ahead_does_no_harm() {
    work_with_a_wrong_clock(30, "none");
}

#[test]
fn a_host_whose_clock_is_behind_does_no_harm() {
    work_with_a_wrong_clock(-30, "tls");
}
