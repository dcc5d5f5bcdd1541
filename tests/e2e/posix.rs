//! Test suites and programs of others, unmodified, on the mount.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tatami_tests::command::{ask, program, run, shell, sources, tail, tool};
use tatami_tests::files::{create, put};
use tatami_tests::seed::{scale, scaled};
use tatami_tests::{Cluster, Setup};

/// Operations of one fsx run.
const FSX_OPS: u64 = 10_000;

/// pjdfstest as root: no failure, and nothing skipped but the tests that `e2e/pjdfstest.toml` lists
/// with their reasons.
#[test]
fn pjdfstest_passes() {
    let cluster = Cluster::start(1);
    let folder = |name: &str| {
        let path = cluster.dir().join(name);
        fs::create_dir(&path).expect("mkdir");
        path
    };
    let other = folder("other-file-system");
    run(program("mount -t tmpfs tmpfs").arg(&other));
    // mount(8) remounts a FUSE file system by starting its program again, which pjdfstest does not
    // want: -i calls the kernel itself.
    let bin = folder("bin");
    put(bin.join("mount"), "#!/bin/sh\nexec /bin/mount -i \"$@\"\n");
    run(program("chmod +x").arg(bin.join("mount")));
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").expect("PATH"));

    let config = fs::read_to_string(sources().join("e2e/pjdfstest.toml")).expect("its text");
    let remounting = cluster.dir().join("remounting.toml");
    fs::write(&remounting, config.replace("allow_remount = false", "allow_remount = true"))
        .expect("a second configuration");
    let suite = |config: &Path, only: &str| {
        let mut suite = program(tool("pjdfstest").to_str().expect("UTF-8"));
        suite.arg("-c").arg(config).arg("-p").arg(cluster.mount(0)).arg("-s").arg(&other);
        suite.args(only.split_whitespace()).env("PATH", &path).env("RUST_BACKTRACE", "0");
        let said = ask(&mut suite);
        let text = plain(&said.out);
        println!("{}", text.lines().last().unwrap_or_default());
        assert!(said.code == Some(0), "{}\n{}", text, said.err);
        for line in text.lines().filter(|l| l.trim_end().ends_with(" skipped")) {
            let name = line.split_whitespace().next().unwrap_or_default();
            let listed = config_lists(&fs::read_to_string(config).expect("its text"), name);
            assert!(listed, "{name} was skipped without a reason in pjdfstest.toml");
        }
    };
    suite(&sources().join("e2e/pjdfstest.toml"), "");
    suite(&remounting, "erofs");
    run(program("umount").arg(&other));
    cluster.finish();
}

/// Returns whether the comments at the top give a reason why `test` is skipped: by its name or by
/// the last part of it.
fn config_lists(config: &str, test: &str) -> bool {
    let short = test.rsplit("::").next().unwrap_or(test);
    let names = config.lines().filter_map(|l| l.strip_prefix("# - "));
    names.filter_map(|l| l.split(':').next()).any(|name| name == short)
}

/// Removes the escape sequences of colours.
fn plain(text: &str) -> String {
    let mut out = String::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c == '\u{1b}' {
            chars.by_ref().find(|c| *c == 'm');
        } else {
            out.push(c);
        }
    }
    out
}

/// Runs fsx on a file made through the mount of `creator`, used through the first.
fn fsx(cluster: &Cluster, creator: u16) {
    let name = format!("fsx-{creator}");
    drop(create(cluster.mount(creator).join(&name)));
    let artifacts = cluster.dir().join(format!("{name}-artifacts"));
    fs::create_dir(&artifacts).expect("mkdir");
    let said = ask(program(tool("fsx").to_str().expect("UTF-8"))
        .args(["-N", &scaled(FSX_OPS).to_string(), "-S", &(cluster.seed() >> 1).to_string()])
        .arg("-f")
        .arg(sources().join("e2e/fsx.toml"))
        .arg("-P")
        .arg(&artifacts)
        .arg(cluster.mount(0).join(&name)));
    assert!(said.code == Some(0), "fsx: {}\n{}", tail(&said.out), tail(&said.err));
}

#[test]
fn fsx_on_a_local_file() {
    let cluster = Cluster::start(1);
    fsx(&cluster, 0);
    cluster.finish();
}

#[test]
fn fsx_on_a_remote_file() {
    let cluster = Cluster::start(2);
    fsx(&cluster, 1);
    cluster.finish();
}

#[test]
fn fsx_without_passthrough() {
    let cluster = Setup::nodes(1).without_passthrough().start();
    fsx(&cluster, 0);
    cluster.finish();
}

/// fio writes checksummed blocks and verifies them, local and remote, through
/// write(2), asynchronous direct I/O and mmap.
#[test]
fn fio_verifies_what_it_wrote() {
    let cluster = Cluster::start(2);
    let size = format!("{}m", scaled(16).min(1024));
    for creator in 0..2 {
        for (engine, direct, pattern) in [
            ("psync", 0, "randrw"),
            ("libaio", 1, "randwrite"),
            ("mmap", 0, "randwrite"),
            ("psync", 0, "write"),
        ] {
            let name = format!("fio-{creator}-{engine}-{direct}-{pattern}");
            drop(create(cluster.mount(creator).join(&name)));
            let job = format!(
                "fio --name={name} --filename={name} --size={size} --bsrange=4k-128k --blockalign=4k \
                 --rw={pattern} --ioengine={engine} --direct={direct} --iodepth=4 --verify=crc32c \
                 --do_verify=1 --verify_fatal=1 --fallocate=none --end_fsync=1 --randseed={}",
                cluster.seed() >> 1
            );
            run(program(&job).current_dir(cluster.mount(0)));
        }
    }
    cluster.finish();
}

/// File system stressors of stress-ng, six kinds at a time for two seconds. Left out of its class
/// "filesystem": the stressors of /proc, devices or block devices (binderfs, bind-mount, dev,
/// eventfd, procfs, ioprio, io, verity, fiemap, file-ioctl, inode-flags, chattr, handle: ioctls and
/// features of one disk format), and inotify, fanotify and dnotify, which report events of one
/// kernel only.
#[test]
fn stress_ng_finds_no_fault() {
    let stressors = [
        ["access", "chdir", "chmod", "chown", "copy-file", "dentry"],
        ["dir", "dirdeep", "dirmany", "dup", "fallocate", "fcntl"],
        ["filename", "flock", "fpunch", "fsize", "fstat", "getdent"],
        ["hdd", "iomix", "lease", "link", "locka", "lockf"],
        ["lockofd", "mknod", "open", "rename", "seek", "symlink"],
        ["sync-file", "touch", "utime", "xattr", "sendfile", "splice"],
    ];
    let cluster = Cluster::start(2);
    let folder = cluster.mount(0).join("stress");
    fs::create_dir(&folder).expect("mkdir");
    for group in stressors {
        let mut stress = program(
            "stress-ng --verify --hdd-bytes 8m --iomix-bytes 8m --fallocate-bytes 8m \
             --sync-file-bytes 8m --copy-file-bytes 128m --sendfile-size 1m --timeout",
        );
        stress.arg(format!("{}s", scaled(2)));
        for stressor in group {
            stress.args([&format!("--{stressor}"), "1"]);
        }
        // Wrong data and unexpected errors count as failures.
        let said = ask(stress.arg("--temp-path").arg(&folder).current_dir(cluster.mount(1)));
        let text = format!("{}{}", said.out, said.err);
        let good = said.code == Some(0) && !text.contains("fail:");
        assert!(good, "{group:?}: {:?}\n{}", said.code, tail(&text));
    }
    cluster.finish();
}

/// A repository made on one mount, cloned and changed on the other.
#[test]
fn git_repositories_are_sound() {
    let cluster = Cluster::start(2);
    let (a, b) = (cluster.mount(0), cluster.mount(1));
    let config = "export HOME=$PWD GIT_CONFIG_NOSYSTEM=1 GIT_AUTHOR_NAME=T GIT_AUTHOR_EMAIL=t@example.org \
                  GIT_COMMITTER_NAME=T GIT_COMMITTER_EMAIL=t@example.org; \
                  git config --global --add safe.directory '*'; git config --global init.defaultBranch main;";
    run(&mut shell(
        &a,
        &format!(
            "{config} git init -q work; cd work
             for i in $(seq 200); do mkdir -p d$((i % 10)); seq $i $((i * 20)) > d$((i % 10))/f$i; done
             git add -A; git commit -qm one
             for i in $(seq 20); do echo $i >> d1/f1; git commit -qam change-$i; done
             git gc -q; git fsck --full --strict"
        ),
    ));
    run(&mut shell(
        &b,
        &format!(
            "{config} git clone -q --no-local work copy; cd copy; git fsck --full --strict
             git checkout -qb topic HEAD~5; git rm -qr d3; git mv d4 d4-moved; git commit -qm topic
             git push -q origin topic; test -z \"$(git status --porcelain)\""
        ),
    ));
    let log = format!(
        "{config} cd work; git fsck --full --strict; git merge -q topic; git log --oneline | wc -l"
    );
    assert_eq!(run(&mut shell(&a, &log)).out.trim(), "23");
    let same = format!("{config} cd copy; git fetch -q; git diff --quiet origin/topic topic");
    run(&mut shell(&a, &same));
    cluster.finish();
}

/// A C program of fifty files, built in parallel, its objects by one mount and
/// its link by the other.
#[test]
fn make_builds_a_program_from_two_mounts() {
    let cluster = Cluster::start(2);
    let (a, b) = (cluster.mount(0), cluster.mount(1));
    run(&mut shell(
        &a,
        "mkdir build; cd build
         for i in $(seq 50); do echo \"int f$i(int x) { return x + $i; }\" > f$i.c; done
         { for i in $(seq 50); do echo \"int f$i(int);\"; done
           echo '#include <stdio.h>'; echo 'int main(void) { int x = 0;'
           for i in $(seq 50); do echo \"x = f$i(x);\"; done
           echo 'printf(\"%d\\n\", x); return 0; }'; } > main.c",
    ));
    put(
        a.join("build/Makefile"),
        "O := $(patsubst %.c,%.o,$(wildcard *.c))\n\
         program: $O\n\t$(CC) -o $@ $^\n\
         clean:\n\trm -f $O program\n",
    );
    let halves = ["$(seq -f f%g.o 1 25)", "main.o $(seq -f f%g.o 26 50)"];
    std::thread::scope(|scope| {
        for (mount, half) in [&a, &b].into_iter().zip(halves) {
            scope.spawn(move || {
                run(&mut shell(&mount.join("build"), &format!("make -s -j4 {half}")))
            });
        }
    });
    // Nothing is compiled again: times agree on both mounts.
    let said = run(&mut shell(&b.join("build"), "make -j4"));
    assert!(!said.out.contains(" -c "), "compiled again:\n{}", said.out);
    assert_eq!(run(&mut shell(&a.join("build"), "./program")).out, "1275\n");
    run(&mut shell(&a.join("build"), "make -s clean; make -s -j4; ./program"));
    cluster.finish();
}

/// SQLite survives its writer: killed in the middle, again and again, every acknowledged
/// transaction is there, and the file is sound.
#[test]
fn sqlite_is_sound_after_its_writer_was_killed() {
    let cluster = Cluster::start(2);
    let mut rng = tatami_tests::seed::Rng::with_seed(cluster.seed());
    // One database lies on this node, one on the other.
    for creator in 0..2 {
        for journal in ["delete", "wal"] {
            let name = format!("{journal}-{creator}.db");
            drop(create(cluster.mount(creator).join(&name)));
            let folder = cluster.mount(0);
            run(&mut shell(
                &folder,
                &format!(
                    "sqlite3 {name} 'PRAGMA journal_mode={journal}; CREATE TABLE t(i INTEGER, x BLOB);'"
                ),
            ));
            let mut acknowledged = 0;
            for _ in 0..scaled(3) {
                acknowledged = kill_a_writer(&folder, &name, acknowledged, rng.u64(50..400));
                let check = format!(
                    "sqlite3 {name} 'PRAGMA integrity_check; SELECT count(*), max(i) FROM t;'"
                );
                let said = run(&mut shell(&folder, &check)).out;
                let mut lines = said.lines();
                assert_eq!(lines.next(), Some("ok"), "{name}: {said}");
                let counts = lines.next().unwrap_or_default();
                let (count, last) = counts.split_once('|').expect("two numbers");
                let (count, last): (u64, u64) =
                    (count.parse().expect("a count"), last.parse().unwrap_or(0));
                assert_eq!(count, last, "{name}: rows are missing");
                assert!(
                    count >= acknowledged,
                    "{name}: {acknowledged} were acknowledged, {count} are there"
                );
                acknowledged = count;
            }
        }
    }
    cluster.finish();
}

/// Lets SQLite insert rows from `from + 1` on, one transaction each, kills it after some
/// milliseconds, and returns the last row that it acknowledged.
fn kill_a_writer(folder: &Path, name: &str, from: u64, ms: u64) -> u64 {
    let script: String = (from + 1..from + 5000)
        .map(|i| format!("INSERT INTO t VALUES({i}, randomblob(3000)); SELECT {i};\n"))
        .collect();
    let input = folder.join("input.sql");
    put(&input, script);
    let output = folder.join("output.txt");
    let mut writer = program("stdbuf -oL sqlite3")
        .arg(name)
        .current_dir(folder)
        .stdin(fs::File::open(&input).expect("the script"))
        .stdout(create(&output))
        .stderr(Stdio::null())
        .spawn()
        .expect("sqlite3");
    let report = || {
        let text = fs::read_to_string(&output).unwrap_or_default();
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        whole.lines().last().and_then(|l| l.parse().ok()).unwrap_or(from)
    };
    // It is in the middle of its work once it has acknowledged a row.
    while report() == from && writer.try_wait().expect("its state").is_none() {
        wait(Duration::from_millis(5));
    }
    wait(Duration::from_millis(ms));
    writer.kill().expect("kill -9");
    writer.wait().expect("its end");
    report()
}

#[allow(clippy::disallowed_methods)] // the moment of the kill is a matter of time
fn wait(time: Duration) {
    std::thread::sleep(time);
}

/// A copy of a tree, by cp, rsync's rename habit and tar, is the tree.
#[test]
fn copies_of_a_tree_are_equal() {
    let cluster = Cluster::start(2);
    let (a, b) = (cluster.mount(0), cluster.mount(1));
    let source = if Path::new("/usr/share/perl").exists() { "/usr/share/perl" } else { "/etc" };
    run(&mut shell(&a, &format!("cp -a {source} tree")));
    run(&mut shell(&b, "tar cf - tree | (mkdir again; cd again; tar xf -)"));
    run(&mut shell(&a, &format!("diff -r --no-dereference {source} again/tree")));
    run(&mut shell(&b, "rm -r tree again; test -z \"$(ls -A)\""));
    cluster.finish();
}

/// Least number of whole files that the reader of a replaced file gets.
const READS: u64 = 10;

/// Readers on one mount, writers on the other, whole files replaced by rename: a reader sees the
/// old bytes or the new ones, never a mixture and never a part. When the old file is removed while
/// it is read, the reader may get an error.
#[test]
fn a_file_replaced_by_rename_is_old_or_new_never_mixed() {
    let cluster = Cluster::start(2);
    let (a, b): (PathBuf, PathBuf) = (cluster.mount(0), cluster.mount(1));
    put(a.join("f"), vec![0; 100_000]);
    let done = AtomicBool::new(false);
    let seen = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let (mut whole, mut stale) = (0, 0);
            while !done.load(Ordering::Relaxed) {
                let mut bytes = vec![0; 100_000];
                match fs::File::open(b.join("f")).map_err(|e| e.raw_os_error().ok_or(e)) {
                    Ok(file) => {
                        file.read_exact_at(&mut bytes, 0).expect("what is open stays");
                        let one = bytes.iter().all(|x| *x == bytes[0]);
                        assert!(one, "old and new bytes in one file");
                        whole += 1;
                        seen.store(whole, Ordering::Relaxed);
                    }
                    Err(Ok(libc::ESTALE)) => stale += 1,
                    other => panic!("after {whole} whole files: {other:?}"),
                }
            }
            (whole, stale)
        });
        // Goes on until the reader has had its turns, which a busy machine may give it late.
        let (rounds, most) = (100 * scale(), 100_000 * scale());
        let enough = |round| round >= rounds && seen.load(Ordering::Relaxed) >= READS;
        for round in (0..most).take_while(|round| !enough(*round) && !reader.is_finished()) {
            put(a.join("new"), vec![round as u8; 100_000]);
            fs::rename(a.join("new"), a.join("f")).expect("rename");
        }
        done.store(true, Ordering::Relaxed);
        let (whole, stale) = reader.join().expect("the reader");
        println!("{whole} whole files, {stale} times the old one was gone");
        assert!(whole >= READS);
    });
    cluster.finish();
}
