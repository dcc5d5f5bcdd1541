//! A volume on several machines: hosts of a test bed, which share nothing but a network.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};
use tatami_skip::{skip_test, skip_unavailable};
use tatami_tests::Setup;
use tatami_tests::command::{program, run};
use tatami_tests::files::put;
use tatami_tests::job::client;
use tatami_tests::process::{kill_hard, pause};
use tatami_tests::seed::scale;
use tatami_tests::testbed::{HostBed, TestHost};
use tatami_wire::{Cred, Ino, PROTOCOL_VERSION};

/// Hosts of a test in its long form.
const MANY: usize = 16;

/// Starts so many hosts, named `n1` and so on; in the long form of the tests [`MANY`]. Returns them
/// with the list of their names for `--hosts`; `None` where this machine cannot have a test bed.
pub fn start_many(few: usize) -> Option<(HostBed, String)> {
    let count = if scale() > 1 { MANY } else { few };
    let names: Vec<String> = (1..=count).map(|at| format!("n{at}")).collect();
    let bed = start_bed(&names.iter().map(String::as_str).collect::<Vec<_>>())?;
    if count == MANY {
        // All have one disk, on which each reserves space.
        let settings =
            "mkdir -p /etc/tatami; printf '[node]\\nreserve_mib = 16\\n' > /etc/tatami/tatami.toml";
        bed.hosts().iter().for_each(|host| _ = host.run(settings));
    }
    Some((bed, format!("n[1-{count}]")))
}

/// Starts a test bed with these hosts; `None` where this machine cannot have one.
pub fn start_bed(names: &[&str]) -> Option<HostBed> {
    can_have_hosts().then(|| HostBed::start(names))
}

/// Returns whether this machine can have a test bed. If not, skips the test.
pub fn can_have_hosts() -> bool {
    if !rustix::process::geteuid().is_root() {
        skip_test("only root makes hosts of namespaces");
        return false;
    }
    match HostBed::find_obstacle() {
        Some(obstacle) => skip_unavailable(&obstacle),
        None => return true,
    }
    false
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
    one.run("until pgrep -xf 'sleep 1234'; do sleep 0.01; done");
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

/// Fails unless no process, mount or file of a volume is left on a host.
fn expect_nothing_left(host: &TestHost) {
    let said = host.ask(
        "pgrep -l tatami; grep fuse.tatami /proc/self/mountinfo; ls -A /mnt/tatami /var/lib/tatami; \
         true",
    );
    assert_eq!(said.out, "", "{} is not as before", host.name());
}

#[test]
fn one_command_starts_and_stops_a_volume_on_all_hosts() {
    let Some(mut bed) = start_bed(&["n1", "n2", "n3"]) else { return };
    let up = bed.host(0).run("tatami up --hosts n[1-3]");
    assert!(up.out.contains("is created and runs on 3 hosts"), "{up:?}");
    // Every host uses the volume at the same path, and its files are on its own disk.
    for host in bed.hosts() {
        host.run("mountpoint -q /mnt/tatami && echo $(hostname) > /mnt/tatami/$(hostname)");
        host.run("tatami status && tatami fsck");
        let place = host.run("tatami where /mnt/tatami/$(hostname) | grep -v /mnt/tatami");
        assert!(place.out.contains(host.name()), "{place:?}");
        host.run("test $(stat -c %a /var/lib/tatami/key) = 600");
    }
    for host in bed.hosts() {
        assert_eq!(host.run("cd /mnt/tatami && cat n1 n2 n3").out, "n1\nn2\nn3\n");
        host.run("mkdir -p /mnt/own && tatami mount /mnt/own && test $(cat /mnt/own/n1) = n1");
        // A mount without --node is that of the host's own node.
        host.run("mountpoint -q /mnt/own && echo x > /mnt/own/x && tatami where :/x > place");
        host.run("grep $(hostname) place && rm /mnt/own/x && tatami umount /mnt/own");
    }
    let again = bed.host(2).run("tatami up");
    assert!(again.out.contains("ran already on 3 hosts"), "{again:?}");

    let down = bed.host(1).run("tatami down");
    assert!(down.out.contains("3 mounts and 3 daemons stopped"), "{down:?}");
    for host in bed.hosts() {
        host.run("! pgrep tatami && ! grep fuse.tatami /proc/self/mountinfo");
    }
    let down = bed.host(1).run("tatami down");
    assert!(down.out.contains("did not run"), "{down:?}");
    bed.host(1).run("tatami up");
    bed.host(0).run("test $(cat /mnt/tatami/n3) = n3");
    bed.cut_power(2);
    bed.boot(2);
    bed.host(0).run("tatami up");
    bed.host(2).run("test $(cat /mnt/tatami/n3) = n3");
    bed.host(2).run("tatami down");
}

/// Runs a command on a host that must fail. Returns its message, which has all of `words`.
pub fn expect_refusal(host: &TestHost, line: &str, words: &[&str]) -> String {
    let said = host.ask(line);
    assert_ne!(said.code, Some(0), "{line}: {said:?}");
    for word in words {
        assert!(said.err.contains(word), "{line}: no {word:?} in\n{}", said.err);
    }
    said.err
}

/// Each host that is unfit is named with its reason, and no host is changed.
#[test]
fn a_host_that_is_unfit_is_named_and_nothing_is_left() {
    let Some(mut bed) = start_bed(&["n1", "n2", "n3"]) else { return };
    bed.cut_power(2);
    let all_clean = |bed: &HostBed| [0, 1].map(|at| expect_nothing_left(bed.host(at)));
    let one = bed.host(0);
    let up = "tatami up --hosts n1,n2";
    let away = "tatami up --hosts n[1-3] --ssh-option ConnectTimeout=1";
    expect_refusal(
        one,
        away,
        &["1 of 3 hosts failed; nothing was started", "n3: ssh does not reach"],
    );
    expect_refusal(
        one,
        "tatami up --hosts n1,nowhere",
        &["nowhere: ssh does not reach", "resolve"],
    );
    expect_refusal(one, "tatami up --hosts n1,n2,n1", &["n1 is named twice"]);
    expect_refusal(
        one,
        "tatami up --hosts n2,10.77.0.2",
        &["n2 and 10.77.0.2 are the same machine"],
    );
    expect_refusal(one, "tatami up --hosts 'n1,n2;true'", &["no name of a host"]);
    all_clean(&bed);

    let (one, two) = (bed.host(0), bed.host(1));
    one.run("cd ~/.ssh && cp known_hosts good");
    one.run("cd ~/.ssh && k=$(awk '/^n1/ { print $2, $3 }' good) && echo \"n2 $k\" > known_hosts");
    expect_refusal(one, up, &["n2: ssh does not trust the key of this host", "ssh-keygen -R n2"]);
    one.run("cd ~/.ssh && cp good known_hosts");
    two.run("mv ~/.ssh/authorized_keys ~/.ssh/none");
    expect_refusal(one, up, &["n2: ssh cannot log in without a password", "ssh-copy-id n2"]);
    two.run("mv ~/.ssh/none ~/.ssh/authorized_keys");
    all_clean(&bed);

    two.run("mount --bind /mnt /usr/local/bin");
    expect_refusal(one, up, &["n2: tatami is not found there", "--program PATH"]);
    let other =
        r#"printf '#!/bin/sh\necho Welcome\necho tatami-host 1 %s\ncat >/dev/null\n' "'$HELLO'""#;
    let hello = r#"HELLO='{"version":"9.9.9","wire":99,"name":"n2","machine":"","clock_ms":0,"user":0,"address":null}'"#;
    two.run(&format!("{hello}; {other} > /mnt/tatami && chmod +x /mnt/tatami"));
    expect_refusal(one, up, &["n2: tatami there is version 9.9.9 with protocol 99"]);
    // A clock of 1970, in the greeting of a program that then ends.
    let version = one.run("tatami --version").out.trim().replace("tatami ", "");
    let hello = hello.replace("9.9.9", &version).replace("99", &PROTOCOL_VERSION.to_string());
    two.run(&format!("{hello}; {other} | sed s/^cat.*// > /mnt/tatami"));
    expect_refusal(one, up, &["the clock of n2 is", "s behind", "n2: tatami there ended"]);
    two.run("printf '#!/bin/sh\\necho tatami-host 7 whatever\\n' > /mnt/tatami");
    expect_refusal(one, up, &["n2: its tatami is not understood", "version 7"]);
    two.run("umount /usr/local/bin && rm /mnt/tatami");
    all_clean(&bed);

    two.run("mount --bind /dev/null /dev/fuse");
    expect_refusal(one, up, &["n2: FUSE cannot be used", "--no-mount", "--allow-missing 1"]);
    all_clean(&bed);
    let said = one.run("tatami up --hosts n1,n2 --allow-missing 1");
    assert!(said.out.contains("runs on 1 hosts") && said.out.contains("without n2"), "{said:?}");
    expect_nothing_left(two);
    one.run("tatami status && tatami down && rm -r /var/lib/tatami");
    two.run("umount /dev/fuse");

    two.run("mkdir /var/lib/tatami && mount -t tmpfs -o size=16m,mode=755 tmpfs /var/lib/tatami");
    expect_refusal(one, up, &["n2: its disk is full", "16.0 MiB"]);
    two.run("umount /var/lib/tatami && rmdir /var/lib/tatami");
    // A fault that shows late: the daemons run by then.
    two.run("mkdir /mnt/tatami && mount -t tmpfs tmpfs /mnt/tatami");
    expect_refusal(one, up, &["n2: /mnt/tatami has a tmpfs file system mounted on it"]);
    two.run("umount /mnt/tatami && rmdir /mnt/tatami");
    all_clean(&bed);

    one.run(up);
    let twice = ["n1: there is a volume in /var/lib/tatami already", "nothing was started"];
    expect_refusal(two, "mv /var/lib/tatami /var/lib/hidden; tatami up --hosts n1", &twice);
    two.run("mv /var/lib/hidden /var/lib/tatami; tatami down");
    expect_refusal(one, "tatami up --hosts n1", &["has the hosts n1,n2", "tatami node add"]);
}

/// A failure on another host has the exit code that it has on this one. Of several hosts, the first
/// counts.
#[test]
fn the_exit_code_of_a_far_failure_is_kept() {
    let Some(bed) = start_bed(&["n1", "n2", "n3"]) else { return };
    let (one, two, three) = (bed.host(0), bed.host(1), bed.host(2));
    one.run("tatami up --hosts n[1-3] --no-mount && tatami down");
    let expect_codes = |line: &str, codes: [i32; 2]| {
        let found = [one, two].map(|host| host.ask(line).code);
        assert_eq!(found, codes.map(Some), "{line}");
    };
    two.run("cd /var/lib/tatami && cp tatami.toml good && echo '[bad' >> tatami.toml");
    expect_codes("tatami node start n2", [2, 2]);
    three.run("mv /var/lib/tatami /var/lib/hidden && mkdir -m 755 /var/lib/tatami");
    expect_codes("tatami up --no-mount", [2, 2]);
    expect_codes("tatami down", [2, 2]);
    two.run("cd /var/lib/tatami && mv good tatami.toml");
    expect_codes("tatami up --no-mount", [3, 3]);
    expect_codes("tatami node start n3", [3, 3]);
    expect_codes("tatami down", [3, 3]);
    three.run("rmdir /var/lib/tatami && mv /var/lib/hidden /var/lib/tatami");
    expect_codes("tatami up --no-mount", [0, 0]);
    expect_codes("tatami down", [0, 0]);
}

/// The far side on a host trusts no input, and recognizes a directory that another host has, too.
#[test]
fn the_far_side_refuses_what_makes_no_volume() {
    let Some(bed) = start_bed(&["n1"]) else { return };
    let one = bed.host(0);
    let said = one.ask("echo '{\"Mount\":{' | tatami host serve");
    assert!(said.code == Some(1) && said.err.contains("an order from another machine"), "{said:?}");
    one.run("echo '\"Mount\"' | tatami host serve | grep -q Failed");
    let order = |dir: &str| {
        let settings = "\"mounts\":false,\"settings\":[]";
        format!("'{{\"Check\":{{\"dir\":\"{dir}\",\"token\":\"t\",\"volume\":null,{settings}}}}}'")
    };
    one.run(&format!("echo {} | tatami host serve | grep -q Failed", order("relative")));
    // The first one keeps its input open, and so its lock.
    let check = order("/srv/volume");
    let holds = format!("(echo {check}; sleep 60) | tatami host serve");
    one.run(&format!("{{ {holds}; }} >/dev/null 2>&1 &"));
    one.run("until test -s /srv/volume/.lock; do sleep 0.01; done");
    let second = one.run(&format!("echo {check} | tatami host serve"));
    assert!(second.out.contains("is also the directory of n1"), "{second:?}");
    one.run("pkill -x sleep; while pgrep -x tatami; do sleep 0.01; done; test ! -e /srv/volume");
}

/// Daemons need no root, and the user's own login on the hosts is enough.
#[test]
fn an_ordinary_user_starts_a_volume_from_a_machine_that_has_no_node() {
    let Some(bed) = start_bed(&["n1", "n2", "login"]) else { return };
    let login = bed.host(2);
    let ask = |line: &str| run(&mut login.user_command(line));
    ask("printf 'n1 slots=4\\nn2 slots=4\\n' > hosts");
    ask("tatami up --hostfile hosts --no-mount --dir ~/volume");
    ask("echo text | tatami cp - --dir ~/volume :/file && tatami status --dir ~/volume");
    for host in [bed.host(0), bed.host(1)] {
        host.run("test \"$(ps -o user= -C tatami-node)\" = alice");
        let said = run(&mut host.user_command("tatami cat --dir ~/volume :/file"));
        assert_eq!(said.out, "text\n");
    }
    // No argument of a process has the key, and no other user can read it.
    bed.host(0).run("cd /srv/alice/volume && test $(stat -c %a key) = 600");
    for host in bed.hosts() {
        let key = "<(head -c 32 /srv/alice/volume/key)";
        host.run(&format!("! cat /proc/*/cmdline /proc/*/environ 2>/dev/null | grep -qaf {key}"));
    }
    ask("! pgrep tatami-node && test $(stat -c %a volume/key) = 600");
    ask("tatami down --dir ~/volume && tatami up --dir ~/volume --no-mount");
    ask("test $(tatami cat --dir ~/volume :/file) = text && tatami down --dir ~/volume");
    for host in bed.hosts() {
        host.run("! pgrep tatami");
    }
}

/// The death of the command that starts a volume leaves no daemon.
#[test]
fn a_killed_up_is_undone_on_all_hosts() {
    let Some(bed) = start_bed(&["n1", "n2"]) else { return };
    let (one, two) = (bed.host(0), bed.host(1));
    // The replies of the second host are late, as those of one with a slow disk.
    two.run("cp /usr/local/bin/tatami /mnt/real && mount --bind /mnt /usr/local/bin");
    let slow =
        "#!/bin/bash\\n/mnt/real \"$@\" | while read -r l; do sleep 0.5; echo \"$l\"; done\\n";
    two.run(&format!("printf '{slow}' > /mnt/tatami && chmod +x /mnt/tatami"));
    one.run("setsid tatami up --hosts n1,n2 --mount /srv/point >/tmp/up.log 2>&1 &");
    one.run("until pgrep -x tatami-node; do sleep 0.01; done");
    one.run("pkill -KILL -xf 'tatami up --hosts n1,n2 --mount /srv/point'");
    for host in [one, two] {
        host.run("while pgrep -x 'tatami|tatami-node|tatami-mount'; do sleep 0.02; done");
        expect_nothing_left(host);
    }
    // The same if it is interrupted.
    one.run("(setsid tatami up --hosts n1,n2 || true) >/tmp/up.log 2>&1 &");
    one.run("until pgrep -x tatami-node; do sleep 0.01; done; pkill -xf 'tatami up --hosts n1,n2'");
    one.run("while pgrep -xf 'tatami up --hosts n1,n2'; do sleep 0.02; done");
    one.run("grep -q 'tatami: interrupted' /tmp/up.log");
    expect_nothing_left(one);
    expect_nothing_left(two);
    two.run("umount /usr/local/bin");
}

/// A machine without a node keeps files of a killed command until the next one there.
#[test]
fn what_a_killed_up_has_left_on_a_login_node_goes_with_the_next_command() {
    let Some(bed) = start_bed(&["n1", "n2", "login"]) else { return };
    let (one, two, login) = (bed.host(0), bed.host(1), bed.host(2));
    // The replies of the second host are late.
    two.run("cp /usr/local/bin/tatami /mnt/real && mount --bind /mnt /usr/local/bin");
    let slow =
        "#!/bin/bash\\n/mnt/real \"$@\" | while read -r l; do sleep 0.5; echo \"$l\"; done\\n";
    two.run(&format!("printf '{slow}' > /mnt/tatami && chmod +x /mnt/tatami"));
    let leave_files = || {
        login.run("setsid tatami up --hosts n1,n2 --name lost >/tmp/up.log 2>&1 &");
        one.run("until pgrep -x tatami-node; do sleep 0.01; done");
        login.run("pkill -KILL -xf 'tatami up --hosts n1,n2 --name lost'");
        for host in [one, two] {
            host.run("while pgrep -x 'tatami|tatami-node|tatami-mount'; do sleep 0.02; done");
            expect_nothing_left(host);
        }
        login.run("test -e /var/lib/tatami/volume.toml && test -e /var/lib/tatami/key");
    };
    leave_files();
    let said = login.run("tatami down");
    assert!(said.err.contains("removed the files of a tatami up that was killed"), "{said:?}");
    expect_nothing_left(login);
    leave_files();
    two.run("umount /usr/local/bin && rm /mnt/tatami /mnt/real");
    let said = login.run("tatami up --hosts n1,n2");
    assert!(said.out.contains("Volume tatami is created"), "nothing of the first one: {said:?}");
    assert!(said.err.contains("removed the files"), "{said:?}");
    login.run("tatami status && tatami down && tatami up && tatami down");
}

/// A volume grows by a host and loses one for a while, by commands on any of the hosts.
#[test]
fn nodes_of_other_hosts_are_added_stopped_and_started_from_any_host() {
    let Some(mut bed) = start_bed(&["n1", "n2", "n3"]) else { return };
    // The option is for all later commands, too.
    bed.host(0).run("tatami up --hosts n[1-2] --mount /srv/volume --ssh-option ConnectTimeout=1");
    bed.host(0).run("echo text > /srv/volume/file");
    expect_refusal(bed.host(0), "tatami node add n2", &["has a node on n2 already"]);
    expect_refusal(bed.host(0), "tatami node add", &["tatami node add HOST"]);
    expect_refusal(
        bed.host(0),
        "tatami node add nowhere",
        &["nowhere: ssh does not reach this host"],
    );
    let added = bed.host(1).run("tatami node add n3");
    assert!(added.out.contains("n3 is added and runs"), "{added:?}");
    bed.host(2).run("test $(cat /srv/volume/file) = text && echo more > /srv/volume/more");
    for host in bed.hosts() {
        host.run("tatami status && cmp /var/lib/tatami/volume.toml <(ssh n1 cat /var/lib/tatami/volume.toml)");
        let list =
            host.run("tatami node list --json | jq -c '[.nodes[] | select(.pid != null) | .name]'");
        assert_eq!(list.out.trim(), r#"["n1","n2","n3"]"#);
    }

    bed.host(0).run("tatami node stop n3");
    bed.host(2).run("! pgrep tatami-node");
    expect_refusal(
        bed.host(1),
        "tatami status >&2",
        &["n3 is on the host n3", "tatami node start n3"],
    );
    let started = bed.host(1).run("tatami node start n3 n2");
    assert!(
        started.out.contains("n3 runs\n") && started.out.contains("n2 runs already"),
        "{started:?}"
    );
    bed.host(0).run("tatami node drain n3 && tatami status");
    bed.host(2).run("cmp /var/lib/tatami/volume.toml <(ssh n1 cat /var/lib/tatami/volume.toml)");

    // On one host alone: the others go on.
    bed.host(2)
        .run("tatami down --here && ! pgrep tatami && tatami up --here && pgrep tatami-mount");
    bed.host(0).run("test $(cat /srv/volume/more) = more");

    // A host that is off is named, and the rest is stopped or started without it.
    bed.cut_power(2);
    let (one, two) = (bed.host(0), bed.host(1));
    expect_refusal(
        two,
        "tatami down",
        &["1 of 3 hosts could not be stopped", "n3: ssh does not reach"],
    );
    one.run("! pgrep tatami && ! grep fuse.tatami /proc/self/mountinfo");
    expect_refusal(two, "tatami up", &["n3: ssh does not reach", "--allow-missing 1"]);
    one.run("! pgrep tatami");
    let up = two.run("tatami up --allow-missing 1");
    assert!(up.out.contains("runs on 2 hosts") && up.out.contains("without n3"), "{up:?}");
    one.run("test $(cat /srv/volume/file) = text");
    bed.boot(2);
    bed.host(2).run("tatami up && test $(cat /srv/volume/more) = more && tatami down");
}

/// A host leaves the volume for good, with nothing left on it, and may come back as a new node.
#[test]
fn a_host_is_taken_out_of_a_volume_in_use() {
    let Some(bed) = start_bed(&["n1", "n2", "n3"]) else { return };
    let (one, two, three) = (bed.host(0), bed.host(1), bed.host(2));
    one.run("tatami up --hosts n[1-3] --mount /srv/volume");
    three.run("cd /srv/volume && echo text > file && touch empty && mkdir dir && echo in > dir/f");
    one.run("echo own > /srv/volume/own");
    expect_refusal(three, "tatami node remove n3", &["is the node of this host"]);
    expect_refusal(
        one,
        "tatami node remove n3",
        &["n3 serves a part of the namespace", "tatami node drain n3"],
    );
    one.run("tatami node drain n3");
    let busy = format!("sh -c 'cd /srv/volume; echo; exec sleep {}'", 86_400);
    let mut user = three.command(&busy).stdout(Stdio::piped()).spawn().expect("a program");
    let mut line = String::new();
    BufReader::new(user.stdout.as_mut().expect("stdout")).read_line(&mut line).expect("a line");
    expect_refusal(two, "tatami node remove n3", &["in use"]);
    three.run("pkill -x sleep");
    user.wait().expect("it ends");
    expect_refusal(
        two,
        "tatami node remove n3",
        &["n3 still has 3 files", "tatami relayout -r --from n3 :/"],
    );
    one.run("test $(tatami status --json | jq -c '[.nodes[] | .leaving]') = '[false,false,true]'");
    one.run("tatami relayout -r --from n3 :/");
    let removed = one.run("tatami node remove n3");
    assert!(removed.out.contains("n3 is removed; 2 nodes are left"), "{removed:?}");
    three.run("! pgrep tatami && ! grep fuse.tatami /proc/self/mountinfo");
    let left = three.run("ls -A /var/lib/tatami").out;
    assert!(!left.contains("key") && !left.contains("volume") && !left.contains("node"), "{left}");
    for host in [one, two] {
        host.run("tatami status && tatami fsck && test $(cat /srv/volume/dir/f) = in");
        let list = host.run("tatami node list --json | jq -c '[.nodes[] | [.node, .name]]'");
        assert_eq!(list.out.trim(), r#"[[0,"n1"],[1,"n2"]]"#);
    }
    two.run(
        "cd /srv/volume && echo more > empty && test $(cat file empty | tr -d '\\n') = textmore",
    );
    one.run("tatami node add n3");
    three.run("test $(cat /srv/volume/empty) = more && echo new > /srv/volume/new");
    let list = two.run("tatami node list --json | jq -c '[.nodes[] | [.node, .name]]'");
    assert_eq!(list.out.trim(), r#"[[0,"n1"],[1,"n2"],[3,"n3"]]"#, "numbers are not used twice");
    two.run("tatami down");
    three.run("tatami up && test $(cat /srv/volume/new) = new && tatami fsck && tatami down");
}

/// Damaged metadata of one host are reported by the command that starts all, and accepted by it.
#[test]
fn damage_on_one_host_is_told_on_the_host_that_starts_all() {
    let Some(bed) = start_bed(&["n1", "n2"]) else { return };
    let (one, two) = (bed.host(0), bed.host(1));
    one.run(
        "tatami up --hosts n1,n2 --no-mount && tatami mkdir -p :/a/b :/c/d :/e/f && tatami down",
    );
    // Both slots of the mark of the logs.
    let spoil =
        "printf damage | dd of=/var/lib/tatami/node1/meta/0000/mark conv=notrunc bs=1 seek=";
    two.run(&format!("{spoil}16 status=none; {spoil}528 status=none"));
    expect_refusal(one, "tatami up --no-mount", &["a part of the namespace is damaged", "n2: "]);
    one.run("tatami up --no-mount --accept-loss && tatami status && tatami down");
}

/// A machine that was joined by hand starts and stops its own node only.
#[test]
fn a_machine_that_was_joined_by_hand_leaves_the_nodes_of_others_alone() {
    let Some(bed) = start_bed(&["n1", "n2"]) else { return };
    let (one, two) = (bed.host(0), bed.host(1));
    one.run("tatami up --no-mount --node-listen 10.77.0.1");
    one.run("tatami node add --address 10.77.0.2:7400 --node-dir /var/lib/tatami/node1");
    two.run("mkdir -m 755 /var/lib/tatami && cd /var/lib/tatami");
    two.run(
        "ssh n1 tar c -C /var/lib/tatami volume.toml tatami.toml key | tar x -C /var/lib/tatami",
    );
    expect_refusal(two, "tatami node start node0", &["node0 is on another machine", "run there"]);
    two.run("tatami node start node1");
    one.run("tatami node rebalance node1");
    for (host, other) in [(one, two), (two, one)] {
        let up = host.run("tatami up");
        assert!(up.out.contains("2 nodes, 1 of them on this machine"), "{up:?}");
        host.run("tatami status && mountpoint /mnt/tatami");
        let down = host.run("tatami down");
        assert!(down.out.contains("is down on this machine"), "{down:?}");
        assert!(down.out.contains("1 node on other machines"), "{down:?}");
        host.run("! pgrep tatami");
        other.run("pgrep tatami-node");
        expect_refusal(other, "tatami status >&2", &["is on another machine", "tatami node start"]);
        host.run("tatami up");
    }
    two.run("test ! -e /var/lib/tatami/node0");
    one.run("test ! -e /var/lib/tatami/node1");
}

/// All hosts start at once, each sees what every other has written, and all stop.
#[test]
fn many_hosts_start_share_and_stop() {
    let Some((bed, list)) = start_many(4) else { return };
    let count = bed.hosts().len();
    let up = bed.host(0).run(&format!("tatami up --hosts {list} --mount /srv/volume"));
    assert!(up.out.contains(&format!("runs on {count} hosts")), "{up:?}");
    for host in bed.hosts() {
        host.run("cd /srv/volume; hostname > $(hostname); mkdir of-$(hostname)");
    }
    let names: String = bed.hosts().iter().map(|host| host.name().to_owned() + "\n").collect();
    let sorted = "cd /srv/volume; cat $(ls | grep -v of- | sort -V); ls -d of-* | wc -l";
    for host in bed.hosts() {
        assert_eq!(host.run(sorted).out, format!("{names}{count}\n"), "{}", host.name());
    }
    bed.host(count - 1).run("tatami status && tatami fsck && tatami down");
    for host in bed.hosts() {
        host.run("! pgrep tatami");
    }
}

/// A program reaches the node of its machine although neither is in the PID namespace of the other:
/// containers have such programs.
#[test]
fn a_program_in_a_container_of_its_own_uses_the_socket_of_the_node() {
    if !can_have_hosts() {
        return;
    }
    let cluster = Setup::nodes(2).on_hosts().start();
    put(cluster.mount(1).join("file"), "text");
    for node in 0..2 {
        let client = client(&cluster, node);
        let attr = client.lookup(&Cred::ROOT, Ino::ROOT, b"file").expect("lookup");
        assert_eq!(attr.size, 4);
    }
    cluster.finish();
}
