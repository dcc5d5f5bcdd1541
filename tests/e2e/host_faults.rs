//! Hosts of a volume lose their links, their power and the room on their disks, while programs work
//! on all of them. No operation fails that can wait, nothing acknowledged is lost, and the volume
//! is whole afterwards.

use crate::hosts::{start_bed, start_many};
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Stdio};
use tatami_tests::process::wait_ms;
use tatami_tests::seed::scaled;
use tatami_tests::testbed::{HostBed, TestHost};

/// Appends to a file of its own and works in a directory with all others, until the file
/// `/run/stop` exists on its host. Prints the number of each round that is on disk.
const WORK: &str = r#"
import os, sys
host, root = os.uname().nodename, "/srv/volume"
log = os.open(f"{root}/{host}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
round = 0
while not os.path.exists("/run/stop"):
    os.write(log, b"%08d\n" % round)
    path = f"{root}/shared/{host}-{round:08}"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    os.write(fd, b"x" * 100)
    os.fsync(fd)
    os.close(fd)
    os.fsync(log)
    if round % 2:
        os.rename(path, path + ".renamed")
    if round >= 20:
        old = f"{root}/shared/{host}-{round - 20:08}"
        os.unlink(old + (".renamed" if round % 2 else ""))
    round += 1
    print(round, flush=True)
"#;

/// A program that works on a host.
pub struct Worker {
    child: Child,
    out: BufReader<ChildStdout>,
    /// Rounds that it has reported.
    rounds: u64,
}

impl Worker {
    /// Starts it.
    pub fn start(host: &TestHost) -> Worker {
        host.run(&format!("rm -f /run/stop; cat > /run/work.py <<'END'\n{WORK}END"));
        let mut command = host.command("exec python3 /run/work.py");
        let mut child = command.stdout(Stdio::piped()).spawn().expect("a program");
        let out = BufReader::new(child.stdout.take().expect("stdout"));
        Worker { child, out, rounds: 0 }
    }

    /// Returns after so many more rounds.
    pub fn await_rounds(&mut self, more: u64) {
        let until = self.rounds + more;
        while self.rounds < until {
            assert!(self.read_round(), "the program has ended after {} rounds", self.rounds);
        }
    }

    fn read_round(&mut self) -> bool {
        let mut line = String::new();
        self.out.read_line(&mut line).expect("read");
        if let Ok(round) = line.trim().parse() {
            self.rounds = round;
        }
        !line.is_empty()
    }

    /// Returns the number of rounds that were on disk at the end of the program.
    fn await_end(mut self) -> (u64, bool) {
        while self.read_round() {}
        let ended = self.child.wait().expect("wait");
        (self.rounds, ended.success())
    }
}

fn start_volume(bed: &HostBed, list: &str, more: &str) {
    bed.host(0).run(&format!(
        "tatami up --hosts {list} --mount /srv/volume --client-patience-sec 1200 {more}"
    ));
    bed.host(0).run("mkdir /srv/volume/shared");
}

/// Returns the rounds of all workers, which must end well.
pub fn stop_workers(bed: &HostBed, workers: Vec<Worker>) -> Vec<u64> {
    bed.hosts().iter().for_each(|host| _ = host.run("touch /run/stop"));
    let ends = workers.into_iter().map(Worker::await_end);
    ends.map(|(rounds, ended_well)| {
        assert!(ended_well, "a program failed after {rounds} rounds");
        rounds
    })
    .collect()
}

/// Checks the files of all workers, as each host sees them, and the volume.
pub fn check_all(bed: &HostBed, rounds: &[u64]) {
    for seen_by in bed.hosts() {
        for (host, rounds) in bed.hosts().iter().zip(rounds) {
            let name = host.name();
            let lines = seen_by.run(&format!("cat /srv/volume/{name}.log")).out;
            let expected: String = (0..*rounds).map(|round| format!("{round:08}\n")).collect();
            assert!(lines == expected, "{name} as {} sees it: {lines}", seen_by.name());
            let files = seen_by.run(&format!("cd /srv/volume/shared; ls | grep -c ^{name}-")).out;
            assert_eq!(files.trim(), rounds.min(&20).to_string(), "{name}");
            seen_by.run(&format!(
                "cd /srv/volume/shared; for f in {name}-*; do test $(stat -c %s $f) = 100; done"
            ));
        }
    }
    bed.host(1).run("tatami status && tatami fsck");
}

#[test]
fn programs_go_on_after_links_were_down() {
    let Some((bed, list)) = start_many(3) else { return };
    start_volume(&bed, &list, "");
    let mut workers: Vec<Worker> = bed.hosts().iter().map(Worker::start).collect();
    workers.iter_mut().for_each(|worker| worker.await_rounds(5));
    // 10 s are longer than a lease, so that the others give up what the host holds.
    let down = [scaled(1_000).min(10_000), scaled(10_000).min(120_000)];
    for (host, down_ms) in [(2, down[0]), (0, down[0]), (1, down[1])] {
        bed.unplug(host);
        wait_ms(down_ms);
        bed.plug_in(host);
        workers.iter_mut().for_each(|worker| worker.await_rounds(5));
    }
    // The link between two hosts only: the third reaches both.
    let cut = |verb: &str| {
        bed.host(1).run(&format!("ip route {verb} blackhole {}/32", bed.host(2).address()));
    };
    cut("add");
    wait_ms(down[1]);
    workers[0].await_rounds(1);
    cut("del");
    workers.iter_mut().for_each(|worker| worker.await_rounds(5));
    let rounds = stop_workers(&bed, workers);
    check_all(&bed, &rounds);
    bed.host(0).run("tatami down");
}

#[test]
fn programs_go_on_after_the_power_cut_of_any_host() {
    let Some((mut bed, list)) = start_many(3) else { return };
    start_volume(&bed, &list, "");
    let mut lost = 0;
    for victim in 0..3 {
        let mut workers: Vec<Worker> = bed.hosts().iter().map(Worker::start).collect();
        workers.iter_mut().for_each(|worker| worker.await_rounds(5));
        bed.cut_power(victim);
        let (acknowledged, _) = workers.remove(victim).await_end();
        bed.boot(victim);
        bed.host(victim).run("tatami up --here");
        workers.iter_mut().for_each(|worker| worker.await_rounds(3));
        let name = bed.host(victim).name().to_owned();
        let lines = bed.host((victim + 1) % 3).run(&format!("wc -l < /srv/volume/{name}.log")).out;
        let lines: u64 = lines.trim().parse().expect("a number");
        assert!(lines >= acknowledged, "{name}: {acknowledged} rounds on disk, {lines} are left");
        lost += lines - acknowledged;
        assert!(lines <= acknowledged + 1, "{name}: {acknowledged}, {lines}");
        // The others have ended well, and all is as they left it.
        bed.hosts().iter().for_each(|host| _ = host.run("touch /run/stop"));
        for worker in workers {
            let (rounds, ended_well) = worker.await_end();
            assert!(ended_well, "a program failed after {rounds} rounds");
        }
        bed.host(victim).run("tatami status && tatami fsck");
        bed.host(0).run("rm -r /srv/volume/* && mkdir /srv/volume/shared");
    }
    println!("{lost} rounds were begun and not acknowledged");
    bed.host(0).run("tatami down");
}

#[test]
fn a_full_disk_of_one_host_stops_no_other() {
    // Not on many hosts: they reserve too little of their common disk.
    let Some(bed) = start_bed(&["n1", "n2", "n3"]) else { return };
    bed.host(1).run(
        "mkdir -m 755 /var/lib/tatami && \
         mount -t tmpfs -o size=600m,mode=755 tmpfs /var/lib/tatami",
    );
    start_volume(&bed, "n[1-3]", "");
    let mut workers: Vec<Worker> = bed.hosts().iter().map(Worker::start).collect();
    workers.iter_mut().for_each(|worker| worker.await_rounds(5));
    let two = bed.host(1);
    let said = two.ask("dd if=/dev/zero of=/srv/volume/large bs=1M count=1000 conv=fsync");
    assert_ne!(said.code, Some(0), "{said:?}");
    assert!(said.err.contains("No space left on device"), "{said:?}");
    // Names go on there, and so do all other hosts. A new file goes to a host with room.
    workers.iter_mut().for_each(|worker| worker.await_rounds(5));
    two.run("head -c 200M /dev/zero > /srv/volume/next");
    let place = two.run("tatami where --json /srv/volume/next | jq -r '.files[0].nodes[].name'");
    assert_ne!(place.out.trim(), "n2");
    let df = bed.host(0).run("tatami df");
    assert!(df.out.contains("n2"), "{df:?}");
    two.run("rm /srv/volume/large");
    workers.iter_mut().for_each(|worker| worker.await_rounds(5));
    two.run("head -c 100M /dev/zero > /srv/volume/again && sync /srv/volume/again");
    let rounds = stop_workers(&bed, workers);
    check_all(&bed, &rounds);
    bed.host(0).run("tatami down");
}
