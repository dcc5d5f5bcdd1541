//! `tatami mount host:/dir PATH`: a directory of another site as ordinary files, with ordinary
//! programs. No volume is there, on either side.

use crate::hosts::start_bed;
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use tatami_tests::command::{sources, tool};
use tatami_tests::process::wait_ms;
use tatami_tests::seed::{root_seed, scaled};
use tatami_tests::testbed::{HostBed, TestHost};

/// Operations of one run of fsx.
const FSX_OPERATIONS: u64 = 4000;

/// Two sites, and a directory of the second one mounted on the first.
fn start_mounted() -> Option<HostBed> {
    let bed = start_bed(&["sitea", "siteb"])?;
    bed.host(1).run("mkdir /srv/data");
    bed.host(0).run("mkdir /srv/m && tatami mount siteb:/srv/data /srv/m");
    Some(bed)
}

/// Unmounts, and waits until no process is left on either side.
fn end_mount(bed: &HostBed) {
    let (one, two) = (bed.host(0), bed.host(1));
    one.run("tatami umount /srv/m && ! pgrep -f '[t]atami-mount mount' && ! mountpoint -q /srv/m");
    expect_no_process(two);
}

fn expect_no_process(two: &TestHost) {
    two.run(
        "for i in $(seq 600); do pgrep -xf 'tatami gateway' || exit 0; sleep 0.1; done; exit 1",
    );
}

#[test]
fn ordinary_programs_work_on_another_site() {
    let Some(bed) = start_mounted() else { return };
    let (one, two) = (bed.host(0), bed.host(1));
    one.run("grep -q 'siteb:/srv/data /srv/m fuse.tatami-site rw,nosuid,nodev' /proc/mounts");
    // As an editor saves: a new file, its bytes to the disk, and the name last.
    one.run(
        "cd /srv/m; echo old > note; python3 -c '
import os
f = os.open(\".note.swp\", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o640)
os.write(f, b\"new\\n\"); os.fsync(f); os.close(f)
os.rename(\".note.swp\", \"note\")
d = os.open(\".\", os.O_RDONLY); os.fsync(d)'",
    );
    two.run("cd /srv/data; test \"$(cat note)\" = new && test $(stat -c %a note) = 640");
    two.run("test \"$(ls -A /srv/data)\" = note");
    // Names, links, modes, times, holes, and a file without a name.
    one.run(
        "cd /srv/m; mkdir -p d/e; ln -s ../note d/l; ln note d/hard; chmod 751 d; mkfifo d/pipe; \
         touch -d '2001-02-03 04:05:06.123456789' d/e; truncate -s 3M d/hole; \
         printf x | dd of=d/hole bs=1 seek=2000000 conv=notrunc status=none; \
         test \"$(cat d/l)\" = new; test \"$(readlink d/l)\" = ../note; \
         test $(stat -c %h note) = 2; mv -n note d/hard && test -e note; \
         (umask 027; : > d/masked); cp d/hole d/copy; cmp d/hole d/copy; test -w d && ! test -x note",
    );
    two.run(
        "cd /srv/data; test $(stat -c %a d) = 751; test $(stat -c %a d/masked) = 640; test -p d/pipe; \
         test \"$(stat -c %y d/e)\" = '2001-02-03 04:05:06.123456789 +0000'; \
         test $(stat -c %s d/hole) = 3145728; test $(stat -c %b d/hole) -lt 100",
    );
    one.run(
        "cd /srv/m; python3 -c '
import os, mmap, ctypes, errno
f = os.open(\"gone\", os.O_CREAT | os.O_RDWR); os.unlink(\"gone\")
os.write(f, b\"a\" * 100000); assert os.pread(f, 5, 99998) == b\"aa\"
os.fchmod(f, 0o600); assert os.fstat(f).st_nlink == 0 and os.fstat(f).st_size == 100000
m = mmap.mmap(f, 100000); m[5:8] = b\"xyz\"; m.flush(); assert os.pread(f, 3, 5) == b\"xyz\"
a = os.open(\"log\", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
b = os.open(\"log\", os.O_WRONLY | os.O_APPEND)
for i in range(50): os.write(a, b\"one\\n\"); os.write(b, b\"two\\n\")
os.close(a); os.close(b); assert os.stat(\"log\").st_size == 400
os.setxattr(\"log\", \"user.k\", b\"v\"); assert os.getxattr(\"log\", \"user.k\") == b\"v\"
assert os.listxattr(\"log\") == [\"user.k\"]; os.removexattr(\"log\", \"user.k\")
libc = ctypes.CDLL(None, use_errno=True)
def rename(old, new, flags):
    return ctypes.get_errno() if libc.renameat2(-100, old, -100, new, flags) else 0
assert rename(b\"log\", b\"d/copy\", 1) == errno.EEXIST
assert rename(b\"log\", b\"d/copy\", 2) == errno.EINVAL and os.stat(\"log\").st_size == 400
assert os.statvfs(\".\").f_blocks > 0'",
    );
    one.run("cd /srv/m; rm -r d note log; test -z \"$(ls -A)\"");
    // git, tar, rsync, cp, sqlite.
    one.run(
        "mkdir /srv/src && cd /srv/src && for d in a b c; do mkdir $d; for f in $(seq 40); do \
         head -c $((f * 700)) /dev/urandom > $d/$f; done; done; ln -s a/1 link",
    );
    one.run(
        "export HOME=/root GIT_CONFIG_NOSYSTEM=1; cd /srv/m; git init -q repo; cp -a /srv/src/. repo/; \
         cd repo; git add -A; git -c user.name=n -c user.email=e commit -qm one; \
         git status --porcelain | wc -l | grep -qx 0; git clone -q . ../clone; git fsck --strict; \
         cd ../clone && diff -r --exclude=.git . /srv/src",
    );
    one.run(
        "cd /srv/m; rsync -a /srv/src/ synced/; rsync -ai /srv/src/ synced/ | wc -l | grep -qx 0; \
         tar -C /srv/src -cf t.tar .; mkdir out; tar -C out -xpf t.tar; diff -r out /srv/src; \
         cp -a synced again; diff -r again /srv/src; rsync -a again/ /srv/back/; \
         diff -r /srv/back /srv/src",
    );
    two.run("cd /srv/data; diff -r again synced && diff -r out synced");
    one.run(
        "cd /srv/m; sqlite3 db 'create table t (n integer primary key, s text); \
         with recursive c(x) as (select 1 union all select x + 1 from c where x < 2000) \
         insert into t select x, hex(randomblob(20)) from c; delete from t where n % 3 = 0;'; \
         test \"$(sqlite3 db 'pragma integrity_check; select count(*) from t;' | tr '\\n' ' ')\" \
         = 'ok 1334 '",
    );
    // A directory of many pieces.
    one.run(
        "mkdir /srv/m/many; cd /srv/m/many; seq 5000 | xargs touch; ls | wc -l | grep -qx 5000",
    );
    one.run("cd /srv/m; ls -l many | wc -l | grep -qx 5001; rm -r many repo clone out again");
    end_mount(&bed);
}

/// Random reads, writes, truncations and mappings leave a file as the same ones in memory.
#[test]
fn fsx_on_another_site() {
    let Some(bed) = start_mounted() else { return };
    let one = bed.host(0);
    bed.install_file(&tool("fsx"));
    bed.install_file(&sources().join("e2e/fsx.toml"));
    one.run(&format!(
        "cd /srv; mkdir kept; touch /srv/m/x; fsx -N {} -S {} -f /usr/local/bin/fsx.toml -P kept /srv/m/x",
        scaled(FSX_OPERATIONS),
        root_seed() >> 1,
    ));
    end_mount(&bed);
}

/// What one side writes, the other reads: after a close, an open.
#[test]
fn changes_of_the_other_side_are_seen() {
    let Some(bed) = start_mounted() else { return };
    let (one, two) = (bed.host(0), bed.host(1));
    for round in 0..scaled(5) {
        one.run(&format!("echo near {round} > /srv/m/f; cat /srv/m/f > /dev/null"));
        two.run(&format!("grep -qx 'near {round}' /srv/data/f; echo far {round} > /srv/data/f"));
        one.run(&format!("grep -qx 'far {round}' /srv/m/f"));
        // Another file under that name, within the time for which the name is trusted.
        two.run(&format!("cd /srv/data; echo new {round} > g; mv g f"));
        one.run(&format!("grep -qx 'new {round}' /srv/m/f"));
        // The same size, and a time that the program chooses.
        two.run(&format!("cd /srv/data; echo own {round} > f; touch -d 2001-01-01 f"));
        one.run(&format!("grep -qx 'own {round}' /srv/m/f"));
    }
    // A directory that the other side renames stays where a program is in it.
    two.run("mkdir /srv/data/d; echo inside > /srv/data/d/f");
    one.run("cd /srv/m/d; ssh siteb mv /srv/data/d /srv/data/e; grep -qx inside f; test -e ../e/f");
    // A name that appears or goes is seen within a second.
    one.run(
        "! test -e /srv/m/late; ssh siteb touch /srv/data/late; sleep 1.1; test -e /srv/m/late",
    );
    one.run("ssh siteb rm /srv/data/late; sleep 1.1; ! test -e /srv/m/late");
    // A link that leads out of the directory leads to a path here.
    two.run("ln -s /etc/hostname /srv/data/out");
    one.run("test \"$(cat /srv/m/out)\" = sitea");
    end_mount(&bed);
}

/// Many readers at once, of one large file and of many small ones.
#[test]
fn readers_in_parallel_get_every_byte() {
    let Some(bed) = start_mounted() else { return };
    let (one, two) = (bed.host(0), bed.host(1));
    two.run("cd /srv/data; head -c 48M /dev/urandom > big; sha256sum < big > sum");
    one.run(
        "cd /srv/m; p=; for i in 1 2 3 4; do (sha256sum < big | cmp - sum) & p=\"$p $!\"; done; \
         for i in $p; do wait $i; done",
    );
    one.run("cd /srv/m; dd if=big bs=1M iflag=direct status=none | sha256sum | cmp - sum");
    // Bytes that this side writes into what it has read ahead.
    one.run(
        "cd /srv/m; python3 -c '
f = open(\"big\", \"r+b\", buffering=0)
for at in range(0, 24 << 20, 64 << 10):
    f.read(64 << 10)
    f.seek(at + (3 << 20)); f.write(b\"mark\"); f.seek(at + (64 << 10))
g = open(\"big\", \"rb\")
for at in range(0, 24 << 20, 64 << 10):
    g.seek(at + (3 << 20)); assert g.read(4) == b\"mark\", at'",
    );
    one.run(
        "sha256sum < /srv/m/big > /srv/sum; ssh siteb sha256sum '<' /srv/data/big | cmp - /srv/sum",
    );
    end_mount(&bed);
}

/// A full disk and a refusal there are errors of the call here, and no file is short in silence.
#[test]
fn refusals_of_the_other_side_are_errors_here() {
    let Some(bed) = start_mounted() else { return };
    let (one, two) = (bed.host(0), bed.host(1));
    two.run("mount -t tmpfs -o size=8m tmpfs /mnt; mkdir /mnt/d");
    one.run("mkdir /srv/full; tatami mount siteb:/mnt /srv/full");
    one.run("head -c 20M /dev/urandom > /srv/big");
    let said = one.ask("cp /srv/big /srv/full/d/big");
    assert!(said.code != Some(0) && said.err.contains("No space left"), "{said:?}");
    let said = one.ask("dd if=/srv/big of=/srv/full/d/big bs=64k conv=fsync");
    assert!(said.code != Some(0) && said.err.contains("No space left"), "{said:?}");
    // One write that is sent behind: its error comes with the close, or with the sync.
    one.run(
        "cd /srv/full/d; rm big; head -c 8100000 /srv/big > most; python3 -c '
import os, errno
for call in (os.close, os.fsync):
    f = os.open(\"x\", os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
    try:
        assert os.write(f, b\"x\" * 900000) == 900000; call(f)
    except OSError as e: assert e.errno == errno.ENOSPC, e
    else: assert False, \"no error\"'",
    );
    one.run("rm -r /srv/full/d; tatami umount /srv/full");
    // Another user there can do no more than that user.
    two.run("echo secret > /srv/data/secret; chmod 600 /srv/data/secret; umount /mnt");
    one.run("mkdir /srv/other; tatami mount alice@siteb:/srv/data /srv/other");
    for line in ["cat /srv/other/secret", "echo x > /srv/other/x", "rm -f /srv/other/secret"] {
        let said = one.ask(line);
        assert!(said.code != Some(0) && said.err.contains("ermission denied"), "{line}: {said:?}");
    }
    one.run("! test -w /srv/other && ! test -r /srv/other/secret; tatami umount /srv/other");
    // What cannot be mounted is named.
    let expect = |line: &str, code: i32, words: &[&str]| {
        let said = one.ask(line);
        assert_eq!(said.code, Some(code), "{line}: {said:?}");
        for word in words {
            assert!(said.err.contains(word), "{line}: {word:?} is missing in {}", said.err);
        }
    };
    expect("tatami mount siteb:/none /srv/other", 1, &["siteb:/none", "No such file"]);
    expect("tatami mount nobody.invalid:/x /srv/other", 3, &["Could not resolve hostname"]);
    expect("tatami mount /srv/data /srv/other", 2, &["is no directory of another site"]);
    expect("tatami mount siteb:/srv/data /srv/none", 1, &["mkdir -p /srv/none"]);
    expect("tatami mount siteb:/srv/data /srv/m", 1, &["/srv/m"]);
    end_mount(&bed);
}

/// The link breaks while a program writes and reads. It goes on, and every byte is there.
#[test]
fn a_broken_link_is_made_again() {
    let Some(bed) = start_mounted() else { return };
    let (one, two) = (bed.host(0), bed.host(1));
    let program = "import os, sys
f = open(\"/srv/m/steady\", \"w+b\", buffering=0)
gone = open(\"/srv/m/gone\", \"w+b\", buffering=0); os.unlink(\"/srv/m/gone\")
for step in range(60):
    f.seek(step * 100000); f.write(bytes([step]) * 100000)
    os.mkdir(f\"/srv/m/d{step}\"); os.rename(f\"/srv/m/d{step}\", f\"/srv/m/e{step}\")
    f.seek((step // 2) * 100000); assert f.read(1000) == bytes([step // 2]) * 1000
    if step % 10 == 9: os.fsync(f.fileno())
    print(f\"step {step}\", flush=True)
f.close()
try: gone.read(1)
except OSError as e: print(e, flush=True)";
    let mut job = one.command(&format!("python3 -c '{program}'"));
    let mut job = job.stdout(Stdio::piped()).spawn().expect("started");
    let lines = BufReader::new(job.stdout.take().expect("a pipe")).lines();
    let mut said = Vec::new();
    for line in lines.map_while(Result::ok) {
        match line.as_str() {
            "step 10" | "step 20" | "step 40" => {
                // The one that has been killed before may not have been replaced yet.
                two.run("until pkill -KILL -xf 'tatami gateway'; do sleep 0.05; done");
            }
            "step 30" => {
                bed.unplug(1);
                wait_ms(2000);
                bed.plug_in(1);
            }
            _ => {}
        }
        said.push(line);
    }
    assert!(job.wait().expect("ended").success(), "{said:?}");
    // A file without a name ended with the I/O process.
    assert!(said.last().is_some_and(|line| line.contains("Stale file handle")), "{said:?}");
    two.run(
        "cd /srv/data; test $(ls -d e* | wc -l) = 60; test -z \"$(ls -d d* 2>/dev/null)\"; \
         python3 -c 'b = open(\"steady\", \"rb\").read(); \
         assert b == b\"\".join(bytes([n]) * 100000 for n in range(60))'",
    );
    end_mount(&bed);
}

/// While the link is down, Ctrl-C ends a program that waits for it.
#[test]
fn a_signal_ends_a_wait_for_a_broken_link() {
    let Some(bed) = start_mounted() else { return };
    let (one, two) = (bed.host(0), bed.host(1));
    two.run("mount --bind /mnt /usr/local/bin && pkill -KILL -xf 'tatami gateway'");
    one.run("code=0; timeout -s INT --foreground 3 ls /srv/m/x || code=$?; test $code = 124");
    two.run("umount /usr/local/bin");
    one.run("for i in $(seq 600); do touch /srv/m/back && exit 0; sleep 0.1; done; exit 1");
    two.run("test -e /srv/data/back");
    // A mount process that is killed leaves no process there.
    one.run("pkill -KILL -f '[t]atami-mount mount'; tatami umount --force /srv/m");
    expect_no_process(two);
}

/// A user without rights mounts by the helper, and sees the files of the user there as own ones.
#[test]
fn an_ordinary_user_mounts() {
    let Some(bed) = start_mounted() else { return };
    let one = bed.host(0);
    let line = "mkdir -p ~/there && tatami mount siteb: ~/there && echo hers > ~/there/note && \
                test -O ~/there/note && ssh siteb cat note | grep -qx hers && \
                tatami umount ~/there && ! mountpoint -q ~/there";
    let said = one.user_command(line).output().expect("it runs");
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    end_mount(&bed);
}
