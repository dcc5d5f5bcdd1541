//! Commands on files of another site: `tatami ls`, `cat`, `stat`, `mkdir`, `rm`, `cp` and `du` with
//! a path `host:/path`. No volume is there, on either side.

use crate::hosts::start_bed;
use std::io::Read;
use std::process::Stdio;
use tatami_tests::testbed::{HostBed, TestHost};

/// A tree with all that a copy must keep.
const MAKE_TREE: &str = r#"
mkdir -p /srv/tree/'a b'/deep /srv/tree/empty-dir; cd /srv/tree
printf 'one' > 'a b/with space'; printf 'two' > "$(printf 'new\nline')"
printf 'three' > "$(printf 'odd-\377\376')"; printf 'four' > ./-rf; printf 'five' > 'a:b'
: > empty; ln -s 'a b/with space' link; ln -s nowhere dangling
dd if=/dev/urandom of=hole bs=1M count=1 seek=3 status=none; truncate -s 8M hole
dd if=/dev/urandom of='a b/deep/random' bs=1000 count=700 status=none
chmod 640 empty; chmod 1751 'a b'; chmod 4755 ./-rf; chmod 500 empty-dir
touch -d '2001-02-03 04:05:06.123456789' empty 'a b/deep/random' 'a b/deep' 'a b'
"#;

/// Prints names, kinds, modes, times, targets and checksums of a tree.
const SHOW_TREE: &str = r#"
find . -mindepth 1 \( -type l -printf '%p l %l\0' -o -printf '%p %y %m %T@\0' \) | sort -z | sha256sum
find . -type f -print0 | sort -z | xargs -0 sha256sum | sha256sum"#;

/// Nothing is left on the other site but these names: no process, and no temporary file.
fn expect_nothing_left(two: &TestHost, names: &str) {
    two.run(
        "for i in $(seq 600); do pgrep -xf 'tatami gateway' || exit 0; sleep 0.1; done; exit 1",
    );
    let found = two.run("cd /srv && find . -name '.*' ! -name . | sort; ls -A data | sort");
    let found = found.out.lines().filter(|line| !line.contains("/alice/"));
    assert_eq!(found.collect::<Vec<_>>().join(" "), names);
}

fn start_sites() -> Option<HostBed> {
    let bed = start_bed(&["sitea", "siteb"])?;
    bed.host(1).run("mkdir /srv/data");
    Some(bed)
}

#[test]
fn names_are_listed_made_and_removed() {
    let Some(bed) = start_sites() else { return };
    let (one, two) = (bed.host(0), bed.host(1));
    one.run("tatami mkdir -p siteb:/srv/data/x/y && tatami mkdir -m 2750 siteb:/srv/data/z");
    two.run("test \"$(stat -c %a /srv/data/z)\" = 2750 && test -d /srv/data/x/y");
    two.run("cd /srv/data/x; printf 'hello' > 'f g'; ln -s /etc/hostname l; touch .hidden");
    assert_eq!(one.run("tatami ls siteb:/srv/data/x").out, "f g\nl\ny\n");
    assert_eq!(one.run("tatami ls -A tatami://root@siteb/srv/data/x").out, ".hidden\nf g\nl\ny\n");
    let long = one.run("tatami ls -lR siteb:/srv/data").out;
    assert!(long.contains("l -> /etc/hostname") && long.contains("siteb:/srv/data/x/y:"), "{long}");
    let json = one.run("tatami ls --json -d siteb:/srv/data/x | jq -r '.entries[0].site'").out;
    assert_eq!(json, "siteb\n");
    assert_eq!(one.run("tatami cat 'siteb:/srv/data/x/f g'").out, "hello");
    let stat = one.run("tatami stat siteb:/srv/data/x/l").out;
    assert!(stat.starts_with("siteb:/srv/data/x/l -> /etc/hostname\n  kind    symlink"), "{stat}");
    // Relative to the home directory.
    two.run("echo home > ~/note");
    assert_eq!(one.run("tatami cat siteb:note && rm -f note").out, "home\n");
    // A link in the place of a directory is removed itself.
    two.run("mkdir -p /srv/keep && echo kept > /srv/keep/f && ln -s /srv/keep /srv/data/x/y/away");
    two.run("cd /srv/data/x && mkdir -p many/deep && cd many && seq 3000 | xargs touch");
    let said = one.ask("tatami rm siteb:/srv/data/x");
    assert!(
        said.code == Some(1) && said.err.contains("tatami rm -r siteb:/srv/data/x"),
        "{said:?}"
    );
    let said = one.run("tatami rm -rv siteb:/srv/data/x | sort");
    assert_eq!(said.out.lines().count(), 3008, "{}", said.out);
    assert!(said.out.contains("removed siteb:/srv/data/x/y/away\n"), "{}", said.out);
    two.run("test -f /srv/keep/f && rm -r /srv/keep");
    one.run("tatami rm -d siteb:/srv/data/z && tatami rm -f siteb:/srv/data/none");
    expect_nothing_left(two, "");
    // Each cause is named, with the site and the path.
    let expect = |line: &str, code: i32, words: &[&str]| {
        let said = one.ask(line);
        assert_eq!(said.code, Some(code), "{line}: {said:?}");
        for word in words {
            assert!(said.err.contains(word), "{line}: {word:?} is missing in {}", said.err);
        }
    };
    expect("tatami cat siteb:/srv/none", 1, &["siteb:/srv/none: no such file"]);
    expect("tatami ls alice@siteb:/root", 1, &["alice@siteb:/root: permission denied"]);
    expect("tatami rm -r alice@siteb:/srv/data", 1, &["alice@siteb:/srv/data: permission denied"]);
    expect("tatami cat siteb:/srv", 1, &["siteb:/srv: is a directory"]);
    expect("tatami ls nobody.invalid:/x", 3, &["nobody.invalid:/x", "Could not resolve hostname"]);
    expect("tatami ls -- -oProxyCommand=x:/y", 2, &["is no [user@]host", "./-oProxyCommand=x:/y"]);
    expect("tatami where siteb:/x", 2, &["siteb:/x is on another site"]);
    expect("tatami sync siteb:/x :/y", 2, &["siteb:/x is on another site"]);
    expect_nothing_left(two, "");
}

#[test]
fn files_are_copied_both_ways() {
    let Some(bed) = start_sites() else { return };
    let (one, two) = (bed.host(0), bed.host(1));
    one.run(MAKE_TREE);
    let tree = one.run(&format!("cd /srv/tree; {SHOW_TREE}")).out;
    one.run("tatami cp -a /srv/tree siteb:/srv/data/");
    assert_eq!(two.run(&format!("cd /srv/data/tree; {SHOW_TREE}")).out, tree);
    two.run("test $(stat -c %b /srv/data/tree/hole) -lt 5000");
    one.run("tatami cp -a siteb:/srv/data/tree /srv/back");
    assert_eq!(one.run(&format!("cd /srv/back; {SHOW_TREE}")).out, tree);
    one.run("test $(stat -c %b /srv/back/hole) -lt 5000");
    let sums =
        "tatami du --json -s siteb:/srv/data/tree | jq -c '.paths[] | [.files, .directories]'";
    assert_eq!(one.run(sums).out, "[10,4]\n");
    let used = one.run("tatami du -sb siteb:/srv/data/tree").out;
    assert!(used.ends_with("\tsiteb:/srv/data/tree\n"), "{used}");
    // What is there is left alone, and a changed file is replaced.
    two.run("echo changed > /srv/data/tree/empty");
    let said = one.run("tatami cp -auv /srv/tree/. siteb:/srv/data/tree").out;
    assert_eq!(said, "/srv/tree/./empty -> siteb:/srv/data/tree/empty\n");
    one.run("tatami cp -r siteb:/srv/data/tree siteb:/srv/data/again && tatami rm -r siteb:/srv/data/again");
    // A file that has two names is written in place, and a link at the end stays.
    two.run("cd /srv/data; echo old > f; ln f g; ln -s h l; echo old > h");
    one.run("echo new > /srv/new; for n in f l; do tatami cp /srv/new siteb:/srv/data/$n; done");
    two.run("cd /srv/data; test -L l; cat f g h | uniq -c | grep -q '3 new'");
    // By another address of that machine a copy over itself would empty the file.
    let said = one.ask(&format!("tatami cp siteb:/srv/data/f {}:/srv/data/g", two.address()));
    assert!(said.code == Some(1) && said.err.contains("are the same file"), "{said:?}");
    two.run("grep -q new /srv/data/g");
    one.run(
        "echo piped | tatami cp - siteb:/srv/data/p; tatami cp siteb:/srv/data/p - | grep -q piped",
    );
    // A large file, and nothing where the disk is full.
    one.run("dd if=/dev/urandom of=/srv/big bs=1M count=64 status=none");
    one.run("tatami cp /srv/big siteb:/srv/data/big; tatami cp siteb:/srv/data/big /srv/big2");
    one.run("cmp /srv/big /srv/big2");
    one.run("ssh siteb cat /srv/data/big | cmp - /srv/big");
    two.run("mount -t tmpfs -o size=8m tmpfs /mnt");
    let said = one.ask("tatami cp /srv/big siteb:/mnt/big");
    assert!(said.code == Some(1) && said.err.contains("siteb:/mnt/big: no space left"), "{said:?}");
    two.run("test -z \"$(ls -A /mnt)\"");
    two.unmount("/mnt");
    let said = one.ask("tatami cp /srv/big alice@siteb:/srv/data/x");
    assert!(said.err.contains("alice@siteb:/srv/data/x: permission denied"), "{said:?}");
    let said = one.ask("tatami cp siteb:/srv/data siteb:/srv/data/f /srv/none/");
    assert!(said.code == Some(1) && said.err.contains("is not a directory"), "{said:?}");
    two.run("cd /srv/data && rm -r tree f g h l p big");
    expect_nothing_left(two, "");
}

/// A copy whose I/O process is killed goes on, and one that is interrupted leaves nothing.
#[test]
fn no_half_file_is_left() {
    let Some(bed) = start_sites() else { return };
    let (one, two) = (bed.host(0), bed.host(1));
    // The rest of the file comes after the event.
    one.run("mkfifo /srv/pipe; dd if=/dev/urandom of=/srv/big bs=1M count=48 status=none");
    let begin = |line: &str| {
        let mut job = one.command(&format!("{line} 2>&1"));
        let job = job.stdout(Stdio::piped()).spawn().expect("started");
        // All that comes before the event has arrived there.
        two.run(
            "for i in $(seq 600); do for f in $(pgrep -xf 'tatami gateway'); do \
             if stat -Lc %s /proc/$f/fd/* 2>/dev/null | awk '$1 >= 41943040 { found = 1 } \
             END { exit !found }'; then exit 0; fi; done; sleep 0.1; done; exit 1",
        );
        job
    };
    let feed = "(head -c 40M /srv/big; cat /srv/pipe) | tatami cp - siteb:/srv/data/f";
    // A stream cannot be read again: the copy fails, and no part of it has the name.
    let mut job = begin(feed);
    two.run("pkill -KILL -xf 'tatami gateway'");
    one.run("cat /srv/big > /srv/pipe || true");
    let mut said = String::new();
    let _ = job.stdout.take().expect("a pipe").read_to_string(&mut said);
    assert!(!job.wait().expect("ended").success() && said.contains("siteb:/srv/data/f"), "{said}");
    expect_nothing_left(two, "");
    // The same with Ctrl-C.
    let mut job = begin(feed);
    one.run("pkill -INT -xf 'tatami cp - siteb:/srv/data/f'; echo > /srv/pipe");
    assert!(!job.wait().expect("ended").success());
    expect_nothing_left(two, "");
    // And with SIGKILL.
    let mut job = begin(feed);
    one.run("pkill -KILL -xf 'tatami cp - siteb:/srv/data/f'; echo > /srv/pipe");
    assert!(!job.wait().expect("ended").success());
    expect_nothing_left(two, "");
    // A file is copied once more.
    let killer =
        "for i in $(seq 3); do while ! pkill -KILL -xf 'tatami gateway'; do sleep 0.01; done; done";
    let mut kills = two.command(killer).spawn().expect("started");
    one.run("for i in 1 2 3 4; do tatami cp /srv/big siteb:/srv/data/f$i; done");
    // Further logins, until all kills have been made.
    while kills.try_wait().expect("a state").is_none() {
        let _ = one.ask("tatami ls siteb:/srv/data");
    }
    for at in 1..=4 {
        one.run(&format!("ssh siteb cat /srv/data/f{at} | cmp - /srv/big"));
    }
    expect_nothing_left(two, "f1 f2 f3 f4");
}
