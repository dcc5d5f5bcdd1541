//! `tatami cp` to and from another site: many files at once, data connections, and copies that are
//! continued.

use crate::hosts::start_bed;
use std::io::Read;
use std::process::{Child, Stdio};
use tatami_tests::command::sources;
use tatami_tests::testbed::{HostBed, TestHost};

/// Makes a tree of three thousand small files with what a copy must keep, and some large files.
const MAKE_TREE: &str = r#"
mkdir /srv/tree; cd /srv/tree
python3 - <<'EOF'
import os, random
random.seed(7)
for d in range(60):
    os.makedirs(f'd{d}/below')
    for f in range(50):
        size = random.choice([0, 1, 100, 4096, 20000])
        name = f'd{d}/f{f}'
        with open(name, 'wb') as file: file.write(random.randbytes(size))
        os.chmod(name, random.choice([0o600, 0o644, 0o755, 0o4711]))
        os.utime(name, ns=(10**18, 10**18 + d * 1000 + f))
    os.symlink(f'../d{d}/f1', f'd{d}/below/link')
    os.chmod(f'd{d}', 0o750 if d % 2 else 0o555)
for n in range(6):
    with open(f'large{n}', 'wb') as file: file.write(random.randbytes((n + 1) * 1234567))
with open('sparse', 'wb') as file:
    file.truncate(40 << 20)
    for at in (0, 3 << 20, 17 << 20): file.seek(at); file.write(random.randbytes(700000))
EOF
printf x > "$(printf 'odd\n\377')""#;

/// Prints names, kinds, modes, times, targets and checksums of a tree.
const SHOW_TREE: &str = r#"
find . -mindepth 1 \( -type l -printf '%p l %l\0' -o -printf '%p %y %m %T@\0' \) | sort -z | sha256sum
find . -type f -print0 | sort -z | xargs -0 sha256sum | sha256sum"#;

/// Bytes of the file that is interrupted.
const BIG: u64 = 200 << 20;
/// A rate with which a copy of it takes some seconds.
const SLOW: &str = "160mbit";

fn start_sites(names: &[&str]) -> Option<HostBed> {
    let bed = start_bed(names)?;
    bed.hosts().iter().for_each(|host| _ = host.run("mkdir -p /srv/data"));
    Some(bed)
}

/// No process is left on a host, and these names are all that is in its directory.
fn expect_left(host: &TestHost, names: &str) {
    host.run(
        "for i in $(seq 600); do pgrep -xf 'tatami (gateway|relay)' || exit 0; sleep 0.1; done; \
         exit 1",
    );
    let found = host.run("ls -A /srv/data").out;
    assert_eq!(found.lines().collect::<Vec<_>>().join(" "), names, "{}", host.name());
}

fn make_big(host: &TestHost, path: &str) {
    host.run(&format!("head -c {BIG} /dev/urandom > {path}"));
}

fn expect_same(bed: &HostBed, here: &str, there: &str) {
    bed.host(0).run(&format!("ssh siteb cat {there} | cmp - {here}"));
}

/// Returns the bytes that a host has sent and received.
fn count_moved(host: &TestHost) -> u64 {
    let line = "ip -s -j link show eth0 | jq '.[0].stats64 | .rx.bytes + .tx.bytes'";
    host.run(line).out.trim().parse().expect("a number")
}

/// Begins a command, and waits until `host` has this much data in a part file, or the whole file.
fn begin_copy(one: &TestHost, line: &str, host: &TestHost, part: &str, least: u64) -> Child {
    let mut job = one.command(&format!("exec {line} 2>&1"));
    let job = job.stdout(Stdio::piped()).spawn().expect("started");
    let whole = part.replace("/.big.tatami-part", "/big");
    host.run(&format!(
        "for i in $(seq 2400); do b=$(stat -c %b {part} 2>/dev/null || echo 0); \
         test $((b * 512)) -ge {least} && exit 0; test -e {whole} && exit 0; sleep 0.05; done; \
         exit 1"
    ));
    job
}

/// Waits for the end of a command, and returns what it said.
fn end_job(mut job: Child) -> (bool, String) {
    let mut said = String::new();
    job.stdout.take().expect("a pipe").read_to_string(&mut said).expect("text");
    (job.wait().expect("ended").success(), said)
}

#[test]
fn trees_of_small_and_large_files_are_equal_both_ways() {
    let Some(bed) = start_sites(&["sitea", "siteb"]) else { return };
    let (one, two) = (bed.host(0), bed.host(1));
    one.run(MAKE_TREE);
    let tree = one.run(&format!("cd /srv/tree; {SHOW_TREE}")).out;
    one.run("tatami cp -a /srv/tree siteb:/srv/data/");
    assert_eq!(two.run(&format!("cd /srv/data/tree; {SHOW_TREE}")).out, tree);
    two.run("test $(stat -c %b /srv/data/tree/sparse) -lt 6000");
    one.run("tatami cp -a siteb:/srv/data/tree /srv/back");
    assert_eq!(one.run(&format!("cd /srv/back; {SHOW_TREE}")).out, tree);
    one.run("test $(stat -c %b /srv/back/sparse) -lt 6000");
    // Over a tree that is there, only what differs is copied.
    two.run("cd /srv/data/tree; echo changed > d3/f3; rm d4/below/link large2");
    let said = one.run("tatami cp -auv /srv/tree/. siteb:/srv/data/tree").out;
    assert_eq!(said.lines().count(), 3, "{said}");
    assert_eq!(two.run(&format!("cd /srv/data/tree; {SHOW_TREE}")).out, tree);
    // Between two sites that are not this machine, as far as addresses tell.
    let other = format!("{}:/srv/data/tree", two.address());
    one.run(&format!("tatami cp -a {other} siteb:/srv/data/again"));
    assert_eq!(two.run(&format!("cd /srv/data/again; {SHOW_TREE}")).out, tree);
    // What cannot be copied is named, and all else is copied.
    two.run("cd /srv/data; rm -r again tree/d7/f7 tree/d8; mkdir tree/d7/f7; echo > tree/d8");
    let said = one.ask("tatami cp -r /srv/tree/. siteb:/srv/data/tree");
    assert_eq!(said.code, Some(1), "{said:?}");
    for word in ["siteb:/srv/data/tree/d7/f7", "siteb:/srv/data/tree/d8"] {
        assert!(said.err.contains(word), "{word} is missing in {}", said.err);
    }
    assert!(!said.err.contains("d8/f"), "entries of a directory that is not there: {}", said.err);
    two.run("cd /srv/data/tree; rm -r d7/f7 d8");
    one.run(
        "cd /srv; rm -r tree/d7/f7 tree/d8; chmod u+w back/d7 back/d8; rm -r back/d7/f7 back/d8",
    );
    let sums = "find . -type f -print0 | sort -z | xargs -0 sha256sum";
    let copied = two.run(&format!("cd /srv/data/tree; {sums}")).out;
    assert!(copied == one.run(&format!("cd /srv/tree; {sums}")).out, "files differ");
    // The same with a user that may not read all.
    two.run("useradd -m carol 2>/dev/null || true; chmod 600 /srv/data/tree/d1/f1");
    two.run("chmod 700 /srv/data/tree/d2; chmod -R o+rX /srv/data/tree/d5");
    let said = one.ask("tatami cp -r alice@siteb:/srv/data/tree /srv/third");
    assert_eq!(said.code, Some(1), "{said:?}");
    let word = "alice@siteb:/srv/data/tree/d2: permission denied";
    assert!(said.err.contains(word), "{word} is missing in {}", said.err);
    one.run("cmp /srv/third/large5 /srv/tree/large5; cmp /srv/third/d5/f4 /srv/tree/d5/f4");
    two.run("rm -r /srv/data/tree");
    expect_left(two, "");
}

/// A thousand small files cost few round trips: the bytes pass a relay that lets one side speak at
/// a time, and counts how often.
#[test]
fn small_files_cost_few_round_trips() {
    let Some(bed) = start_sites(&["sitea", "siteb"]) else { return };
    let (one, two) = (bed.host(0), bed.host(1));
    bed.install_file(&sources().join("e2e/another_site_turns.py"));
    one.run(
        "mkdir /srv/bin /srv/tree; cd /srv/tree; for d in $(seq 20); do mkdir d$d; \
        for f in $(seq 50); do echo $d $f > d$d/f$f; done; done; ln -s d1/f1 link",
    );
    one.run(
        "printf '#!/bin/sh\\nexec python3 /usr/local/bin/another_site_turns.py \"$@\"\\n' \
        > /srv/bin/ssh; chmod 755 /srv/bin/ssh",
    );
    let count = |line: &str| -> u32 {
        one.run("rm -f /tmp/turns");
        one.run(&format!("PATH=/srv/bin:$PATH {line}"));
        let turns = one.run(
            "for i in $(seq 600); do test -e /tmp/turns && exec cat /tmp/turns; \
            sleep 0.1; done; exit 1",
        );
        turns.out.trim().parse().expect("a number")
    };
    let there = count("tatami cp -a /srv/tree siteb:/srv/data/tree");
    let back = count("tatami cp -a siteb:/srv/data/tree /srv/back");
    one.run("diff -r --no-dereference /srv/tree /srv/back");
    eprintln!("round trips of 1,000 files in 20 directories: {there} there, {back} back");
    assert!((5..100).contains(&there), "{there} round trips there");
    assert!((5..100).contains(&back), "{back} round trips back");
    two.run("rm -r /srv/data/tree");
    expect_left(two, "");
}

/// Large files go over data connections both ways, or through ssh where no port is open.
#[test]
fn large_files_use_data_connections() {
    let Some(bed) = start_sites(&["sitea", "siteb"]) else { return };
    let (one, two) = (bed.host(0), bed.host(1));
    make_big(one, "/srv/big");
    let count = "ss -Htn state established '( sport != :22 and dport != :22 )' | wc -l";
    // While the command runs, its connections are counted until so many are there.
    let watch = |variables: &str, line: &str, wanted: u32| {
        let mut job =
            one.command(&format!("exec env {variables} {line}")).spawn().expect("started");
        two.run(&format!(
            "for i in $(seq 1200); do test \"$({count})\" = {wanted} && pgrep -xf 'tatami gateway' \
             && exit 0; sleep 0.05; done; exit 1"
        ));
        assert!(job.wait().expect("ended").success(), "{variables} {line}");
    };
    bed.limit_rate(0, Some("800mbit"));
    for (variables, streams) in
        [("TATAMI_STREAMS=2", 2), ("TATAMI_STREAMS=4 TATAMI_ENCRYPTION=off", 4), ("T=", 1)]
    {
        watch(variables, "tatami cp /srv/big siteb:/srv/data/big", streams);
        expect_same(&bed, "/srv/big", "/srv/data/big");
        watch(variables, "tatami cp siteb:/srv/data/big /srv/back", streams);
        one.run("cmp /srv/big /srv/back; rm /srv/back");
        watch(variables, "sh -c 'tatami cat siteb:/srv/data/big > /srv/back'", streams);
        one.run("cmp /srv/big /srv/back; rm /srv/back");
        two.run("rm /srv/data/big");
    }
    bed.limit_rate(0, None);
    // Connections that are cut are made again.
    bed.limit_rate(0, Some("400mbit"));
    for line in
        ["tatami cp /srv/big siteb:/srv/data/big", "tatami cp siteb:/srv/data/big /srv/back"]
    {
        let mut job = one.command(&format!("exec env TATAMI_STREAMS=2 {line}")).spawn();
        two.run(&format!(
            "for i in $(seq 1200); do test \"$({count})\" = 2 && exec ss -K '( sport != :22 )'; \
             sleep 0.05; done; exit 1"
        ));
        assert!(job.as_mut().expect("started").wait().expect("ended").success(), "{line}");
    }
    bed.limit_rate(0, None);
    expect_same(&bed, "/srv/big", "/srv/data/big");
    one.run("cmp /srv/big /srv/back; rm /srv/back");
    // A firewall that lets ssh pass alone.
    two.run("rm /srv/data/big; ip rule add pref 10 ipproto tcp sport 1024-65534 blackhole");
    one.run("tatami cp /srv/big siteb:/srv/data/big; tatami cp siteb:/srv/data/big /srv/back");
    one.run("cmp /srv/big /srv/back");
    expect_same(&bed, "/srv/big", "/srv/data/big");
    two.run("ip rule del pref 10; rm /srv/data/big");
    expect_left(two, "");
}

/// An I/O process that is killed in the middle costs no byte, and Ctrl-C leaves nothing.
#[test]
fn broken_copies_are_made_once_more_or_leave_nothing() {
    let Some(bed) = start_sites(&["sitea", "siteb"]) else { return };
    let (one, two) = (bed.host(0), bed.host(1));
    one.run(MAKE_TREE);
    make_big(one, "/srv/tree/big");
    one.run("cp /srv/tree/big /srv/tree/big2");
    let tree = one.run(&format!("cd /srv/tree; {SHOW_TREE}")).out;
    let kill_both = |line: &str| {
        let mut job = one.command(&format!("exec {line}")).spawn().expect("started");
        // Once among large files, and once among small ones. Each gets a new I/O process.
        for _ in 0..2 {
            two.run(
                "for i in $(seq 1200); do pgrep -xf 'tatami gateway' && break; sleep 0.05; done; \
                 sleep 0.7; pkill -KILL -xf 'tatami gateway' || true",
            );
        }
        assert!(job.wait().expect("ended").success(), "{line}");
    };
    bed.limit_rate(0, Some("800mbit"));
    kill_both("tatami cp -a /srv/tree siteb:/srv/data/");
    assert_eq!(two.run(&format!("cd /srv/data/tree; {SHOW_TREE}")).out, tree);
    kill_both("tatami cp -a siteb:/srv/data/tree /srv/back");
    assert_eq!(one.run(&format!("cd /srv/back; {SHOW_TREE}")).out, tree);
    two.run("rm -r /srv/data/tree");
    // Ctrl-C in the middle of a large file, and SIGKILL.
    bed.limit_rate(0, Some(SLOW));
    let written = "$(ls -d /proc/$(pgrep -oxf 'tatami gateway')/fd/* | while read f; do \
        test $(stat -Lc %b $f) -gt 40000 && echo $f && break; done)";
    for signal in ["INT", "KILL"] {
        let line = "tatami cp /srv/tree/big siteb:/srv/data/big";
        let mut job = one.command(&format!("exec {line}")).spawn().expect("started");
        two.run(&format!(
            "for i in $(seq 1200); do test -n \"{written}\" && exit 0; sleep 0.05; done; exit 1"
        ));
        one.run(&format!("pkill -{signal} -xf '{line}'"));
        assert!(!job.wait().expect("ended").success());
        expect_left(two, "");
    }
    two.run("head -c 200M /dev/urandom > /srv/far");
    let line = "tatami cp siteb:/srv/far /srv/data/far";
    let job = begin_copy(one, line, one, "/srv/data/.far.*", 20 << 20);
    one.run(&format!("pkill -INT -xf '{line}'"));
    assert!(!end_job(job).0);
    expect_left(one, "");
    expect_left(two, "");
}

/// A copy that was killed is continued: only the rest is moved. Not if the source has changed, and
/// not with bytes that were damaged.
#[test]
fn an_interrupted_copy_is_continued() {
    let Some(bed) = start_sites(&["sitea", "siteb"]) else { return };
    let (one, two) = (bed.host(0), bed.host(1));
    make_big(one, "/srv/big");
    two.run("mkdir /srv/far");
    make_big(two, "/srv/far/big");
    let there = "/srv/data/.big.tatami-part";
    for (from, to, host) in
        [("/srv/big", "siteb:/srv/data/big", two), ("siteb:/srv/far/big", "/srv/data/big", one)]
    {
        let line = format!("tatami cp --resume -v {from} {to}");
        let expect_equal = || match from {
            "/srv/big" => expect_same(&bed, "/srv/big", "/srv/data/big"),
            _ => expect_same(&bed, "/srv/data/big", "/srv/far/big"),
        };
        let interrupt = |signal: &str| {
            // On a busy machine a copy may be complete before the signal comes: once more then.
            for attempt in 1.. {
                bed.limit_rate(0, Some(SLOW));
                let job = begin_copy(one, &line, host, there, 48 << 20);
                one.ask(&format!("pkill -{signal} -xf '{line}'"));
                let (is_done, said) = end_job(job);
                bed.limit_rate(0, None);
                if !is_done {
                    break;
                }
                assert!(attempt < 5, "{said}");
                host.run("rm /srv/data/big");
            }
            expect_left(host, ".big.tatami-part");
            assert_eq!(host.run(&format!("stat -c %a {there}")).out, "600\n");
        };
        interrupt("KILL");
        let before = count_moved(one);
        let said = one.run(&line);
        let moved = count_moved(one) - before;
        eprintln!("{line}: {moved} bytes for the rest of {BIG}; {}", said.out);
        assert!(said.out.contains("of 200.0 MiB were there"), "{said:?}");
        assert!(moved < BIG - (40 << 20), "{moved} bytes were moved");
        expect_equal();
        expect_left(host, "big");
        assert_eq!(host.run("stat -c %a /srv/data/big").out, "644\n");
        // What is complete is left alone.
        assert_eq!(one.run(&line).out, "");
        host.run("rm /srv/data/big");
        // Ctrl-C. Then a byte of the part is damaged, of those that were written first.
        interrupt("INT");
        host.run(&format!(
            "python3 -c \"f = open('{there}', 'r+b'); f.seek(5 << 20); b = f.read(1); \
             f.seek(5 << 20); f.write(bytes([b[0] ^ 1]))\""
        ));
        one.run(&line);
        expect_equal();
        host.run("rm /srv/data/big");
        // Another state of the source, of the same size.
        interrupt("KILL");
        match from {
            "/srv/big" => make_big(one, "/srv/big"),
            _ => make_big(two, "/srv/far/big"),
        }
        let said = one.run(&line);
        assert!(said.err.contains("begun anew"), "{said:?}");
        expect_equal();
        expect_left(host, "big");
        host.run("rm /srv/data/big");
        // The record itself is damaged.
        interrupt("KILL");
        host.run(&format!(
            "printf xx | dd of={there} bs=1 seek={} conv=notrunc status=none",
            BIG + 9
        ));
        let said = one.run(&line);
        assert!(said.err.contains("begun anew"), "{said:?}");
        expect_equal();
        host.run("rm /srv/data/big");
    }
    // A full disk there keeps the part, and with more room the copy goes on.
    two.run("mount -t tmpfs -o size=120m tmpfs /mnt");
    let said = one.ask("tatami cp --resume /srv/big siteb:/mnt/big");
    assert!(said.code == Some(1) && said.err.contains("siteb:/mnt/big: no space left"), "{said:?}");
    two.run("test \"$(ls -A /mnt)\" = .big.tatami-part && mount -o remount,size=300m /mnt");
    let before = count_moved(one);
    one.run("tatami cp --resume /srv/big siteb:/mnt/big");
    assert!(count_moved(one) - before < BIG - (60 << 20));
    two.run("cp /mnt/big /srv/data/big");
    two.unmount("/mnt");
    expect_same(&bed, "/srv/big", "/srv/data/big");
    // Without the option nothing is kept.
    two.run("rm /srv/data/big; mount -t tmpfs -o size=120m tmpfs /mnt");
    assert_eq!(one.ask("tatami cp /srv/big siteb:/mnt/big").code, Some(1));
    two.run("test -z \"$(ls -A /mnt)\"");
    two.unmount("/mnt");
    expect_left(two, "");
}

/// Between a volume and another site.
#[test]
fn copies_of_a_volume_are_continued() {
    let Some(bed) = start_sites(&["sitea", "siteb"]) else { return };
    let (one, two) = (bed.host(0), bed.host(1));
    one.run("tatami up --hosts sitea --mount /srv/volume");
    two.run("mkdir /srv/far");
    make_big(two, "/srv/far/big");
    let line = "tatami cp --resume -v siteb:/srv/far/big :/big";
    bed.limit_rate(0, Some(SLOW));
    let part = "/srv/volume/.big.tatami-part";
    let job = begin_copy(one, line, one, part, 60 << 20);
    one.run(&format!("pkill -KILL -xf '{line}'"));
    assert!(!end_job(job).0);
    bed.limit_rate(0, None);
    let before = count_moved(one);
    let said = one.run(line);
    let moved = count_moved(one) - before;
    eprintln!("{line}: {moved} bytes for the rest of {BIG}; {}", said.out);
    assert!(moved < BIG - (30 << 20), "{moved} bytes were moved");
    expect_same(&bed, "/srv/volume/big", "/srv/far/big");
    one.run("test ! -e /srv/volume/.big.tatami-part; test $(stat -c %a /srv/volume/big) = 644");
    let line = "tatami cp --resume -v :/big siteb:/srv/data/big";
    bed.limit_rate(0, Some(SLOW));
    let job = begin_copy(one, line, two, "/srv/data/.big.tatami-part", 60 << 20);
    one.run(&format!("pkill -KILL -xf '{line}'"));
    assert!(!end_job(job).0);
    bed.limit_rate(0, None);
    let before = count_moved(one);
    one.run(line);
    assert!(count_moved(one) - before < BIG - (40 << 20));
    expect_same(&bed, "/srv/volume/big", "/srv/data/big");
    expect_left(two, "big");
    // Trees pass as well.
    one.run(MAKE_TREE);
    let tree = one.run(&format!("cd /srv/tree; {SHOW_TREE}")).out;
    one.run("tatami cp -a /srv/tree :/ && tatami cp -a :/tree siteb:/srv/data/");
    assert_eq!(two.run(&format!("cd /srv/data/tree; {SHOW_TREE}")).out, tree);
    one.run("tatami cp -a siteb:/srv/data/tree :/back");
    assert_eq!(one.run(&format!("cd /srv/volume/back; {SHOW_TREE}")).out, tree);
}

/// A host without a route copies through a login host.
#[test]
fn copies_pass_a_router() {
    let Some(bed) = start_sites(&["compute", "login1", "siteb"]) else { return };
    let (one, two) = (bed.host(0), bed.host(2));
    one.run(&format!("ip route add blackhole {}/32", two.address()));
    one.run(MAKE_TREE);
    make_big(one, "/srv/tree/big");
    let tree = one.run(&format!("cd /srv/tree; {SHOW_TREE}")).out;
    let setting = "export TATAMI_ROUTER=login1";
    bed.limit_rate(0, Some("800mbit"));
    let line = format!("{setting}; exec tatami cp -a /srv/tree siteb:/srv/data/");
    let mut job = one.command(&line).spawn().expect("started");
    bed.host(1).run(
        "for i in $(seq 1200); do pgrep -xf 'tatami relay' && exit 0; sleep 0.05; done; exit 1",
    );
    assert!(job.wait().expect("ended").success());
    assert_eq!(two.run(&format!("cd /srv/data/tree; {SHOW_TREE}")).out, tree);
    one.run(&format!("{setting}; tatami cp -a siteb:/srv/data/tree /srv/back"));
    assert_eq!(one.run(&format!("cd /srv/back; {SHOW_TREE}")).out, tree);
    two.run("rm -r /srv/data/tree");
    expect_left(two, "");
    expect_left(bed.host(1), "");
}
