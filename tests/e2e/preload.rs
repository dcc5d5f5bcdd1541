//! `tatami run`: programs that see a volume without a mount. Most tests run a script twice, on a
//! local directory and on the volume, and compare what it prints.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use tatami_tests::Cluster;
use tatami_tests::command::{Said, ask, run, shell, sources};
use tatami_tests::mpi::{MPIS, ONE_AT_A_TIME, on_this_machine};
use tatami_tests::policies::skip_with_policies;

/// The path at which programs see the volume. Nothing is mounted there.
const AT: &str = "/tatami-preload-test";

/// Returns a command that runs a program with the volume at [`AT`], at home on a node.
fn preload_command(cluster: &Cluster, node: u16) -> Command {
    let mut command = cluster.command("run");
    command.arg("--node").arg(node.to_string()).arg("--at").arg(AT).arg("--");
    command
}

/// Runs a script on the volume; `$D` is its root.
fn on_volume(cluster: &Cluster, node: u16, script: &str) -> Said {
    let mut command = preload_command(cluster, node);
    let script = format!("exec 2>&1\nD={AT}\n{script}");
    run(command.args(["bash", "-c", &script]))
}

/// Runs a script on a local directory and on the volume, and compares their output.
fn compare(cluster: &Cluster, node: u16, name: &str, script: &str) {
    let local = tempfile::tempdir().expect("a directory for the test");
    let dir = local.path().to_str().expect("its path is text");
    let script = format!("set +e -u\nmkdir -p $D/{name} && cd $D/{name}\n{script}");
    let wanted = run(&mut shell(local.path(), &format!("exec 2>&1\nD={dir}\n{script}")));
    let got = on_volume(cluster, node, &script);
    let (got, wanted) = (got.out.replace(AT, "D"), wanted.out.replace(dir, "D"));
    for (n, (got, wanted)) in got.lines().zip(wanted.lines()).enumerate() {
        assert_eq!(got, wanted, "line {n} of {name} on node {node}");
    }
    assert_eq!(got.lines().count(), wanted.lines().count(), "{name} on node {node}: {got}");
}

/// Redirections, pipes, subshells and the usual tools.
const TOOLS: &str = "
    mkdir -p src/a/b; for i in $(seq 30); do seq $i > src/a/f$i; done
    ln -s f1 src/a/link; ln -s /nowhere src/dangling; ln src/a/f2 src/a/b/hard
    chmod 600 src/a/f3; touch -d '2021-02-03 04:05' src/a/f4
    cp -r src copy; cp -a src exact; diff -r --no-dereference src exact && echo same
    tar cf t.tar src; mkdir x; tar xf t.tar -C x; diff -r --no-dereference src x/src && echo tar
    tar c src | (mkdir y; cd y; tar x); diff -r --no-dereference src y/src && echo pipe
    find . | sort; find src -type f -newer src/a/f4 | wc -l
    ls -l src/a | grep -v ^d | awk '{print $1, $2, $3, $4, $5, $9, $10, $11}' | tail -n +2
    stat -c '%n %s %a %h %F' src/a/f3 src/a/f2 src/a/link; stat -c '%n %a %h %F' src/a/b
    (echo one; echo two) > out; cat out; wc -l < out; sort -r < out > out2; cat out2
    for i in 1 2 3; do echo $i; done >> out; tail -1 out; cat out | tee out3 | wc -c
    { echo a; /bin/echo b; sh -c 'echo c'; echo d; } > mixed; cat mixed
    exec 5> held; echo first >&5; /bin/echo second >&5; exec 5>&-; cat held
    read line < out; echo $line; cat <<< here; cat < out > /dev/null
    mv src moved; ls moved; rm -rf copy; ls
    cd moved/..; pwd; cd a 2> /dev/null || echo none; cd moved/a; pwd; pwd -P; cd ../..; pwd
    cat moved/../out $D/tools/../*/out | md5sum
    printf '#!/bin/sh\\necho script $1 $0\\n' > s.sh; chmod +x s.sh; ./s.sh hello; sh s.sh again
    cp /bin/echo program; ./program from the volume; PATH=$PWD:$PATH; program by name
    env -i ./program without variables; env -i /bin/ls moved/a/b
    grep -rl 29 moved | sort; dd if=/dev/zero of=z bs=64k count=10 2> /dev/null; stat -c %s z
    truncate -s 100 z; stat -c %s z; test -f z -a -d moved && echo tested
    head -c 3 out; od -c out | tail -1; split -b 10 out part; ls part*
    cat part* | cmp - out && echo whole
    mkdir empty; rmdir empty; rmdir moved; rm none; cat none; ls none; cp none other
    : > nothing; cat nothing; test -s nothing || echo empty; wc -c < nothing
    (umask 027; : > masked; mkdir masked.d); stat -c %a masked masked.d
";

#[test]
fn tools_and_shells_work_as_on_a_local_disk() {
    let cluster = Cluster::start(1);
    compare(&cluster, 0, "tools", TOOLS);
    // The mount shows the same files.
    let mount = cluster.mount(0);
    let there = fs::read_to_string(mount.join("tools/mixed")).expect("a file of the script");
    assert_eq!(there, "a\nb\nc\nd\n");
    assert_eq!(fs::metadata(mount.join("tools/z")).expect("another one").len(), 100);
    cluster.finish();
}

#[test]
fn python_works_as_on_a_local_disk() {
    if skip_with_policies("it maps a file for shared writes, which must be one of the disk") {
        return;
    }
    let cluster = Cluster::start(1);
    let script = sources().join("e2e/preload/python.py");
    let script = script.display();
    compare(&cluster, 0, "python", &format!("cd /; python3 {script} $D/python/here"));
    cluster.finish();
}

#[test]
fn git_works_as_on_a_local_disk() {
    let cluster = Cluster::start(1);
    let script = "
        export HOME=$PWD GIT_AUTHOR_DATE=2020-01-01T00:00:00Z GIT_CONFIG_NOSYSTEM=1
        export GIT_COMMITTER_DATE=$GIT_AUTHOR_DATE
        git config --global user.name n; git config --global user.email n@example.org
        git config --global init.defaultBranch main; git config --global gc.auto 0
        git init -q g; cd g; for i in $(seq 20); do echo $i > f$i; done
        git add .; git commit -qm one; git log --oneline; echo x >> f1; git diff | tail -1
        git commit -qam two; git log --oneline --stat; git checkout -q HEAD~1 2> /dev/null; cat f1
        git status --short | wc -l; git gc -q; git fsck; git clone -q . ../h; ls ../h | wc -l";
    compare(&cluster, 0, "git", script);
    cluster.finish();
}

#[test]
fn files_of_another_node_work_too() {
    let cluster = Cluster::start(2);
    let mount = cluster.mount(1);
    let numbers: String = (1..=20_000).map(|n| format!("{n}\n")).collect();
    fs::write(mount.join("far"), &numbers).expect("a file of node 1");
    fs::write(mount.join("written"), "x\n").expect("another file of node 1");
    let said = on_volume(
        &cluster,
        0,
        "
        cd $D; wc -l < far; sort -n < far | cmp - far && echo sorted; (read a; read b; echo $b) < far
        tail -1 far; grep -c 77 far; cp far copy; cmp far copy && echo copied; sed -n 5p far
        awk '{s += $1} END {print s}' < far; python3 -c 'print(len(open(\"far\").read()))'
        echo append >> written; cat written; for i in 1 2 3; do echo $i; done > written; cat written
        (seq 5; echo mid; seq 3) > written; wc -l written; cp far written; cmp far written && echo back
        printf hello > written; stat -c %s written; exec 7<> written; head -c 2 <&7; echo; exec 7<&-
        python3 -c '
import mmap
with open(\"far\", \"rb\") as f: print(mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)[:4])
with open(\"written\", \"r+b\") as f:
    try: mmap.mmap(f.fileno(), 0)
    except OSError as e: print(e.errno)
'",
    );
    let wanted = "20000\nsorted\n2\n20000\n560\ncopied\n5\n200010000\n108894\nx\nappend\n1\n2\n3\n\
                  9 written\nback\n5\nhe\nb'1\\n2\\n'\n\
                  tatami-preload: a file that is not on this node's disk cannot be mapped for shared \
                  writes\n19\n";
    assert_eq!(said.out, wanted);
    assert_eq!(fs::read_to_string(mount.join("written")).expect("it is there"), "hello");
    // Scripts with files that the other node has made.
    compare(&cluster, 1, "tools", TOOLS);
    cluster.finish();
}

#[test]
fn links_lead_into_the_volume_and_out_of_it() {
    let cluster = Cluster::start(1);
    let outside = tempfile::tempdir().expect("a directory of the machine");
    fs::write(outside.path().join("host"), "outside\n").expect("a file of the machine");
    let outside = outside.path().display();
    let script = format!(
        "cd $D; mkdir d; echo inside > d/f; ln -s {outside} out; ln -s $D/d in; ln -s ../d/f d/rel
         cat out/host in/f d/rel; echo new > out/made; cat {outside}/made; ls out; rm out/made
         cd out; pwd -P; cd $D/in; pwd -P; cat ../d/f; cat $D/../{outside}/host; cd ..; cd ../; pwd
         cat ..{AT}/d/f; mv $D/d/f {outside}/moved; cat {outside}/moved; mv {outside}/moved $D/back
         cat $D/back; ln $D/back {outside}/hard 2> /dev/null || echo another file system
         readlink $D/in | sed s,$D,D,; realpath $D/in $D/out | sed s,$D,D,"
    );
    let said = on_volume(&cluster, 0, &script);
    let wanted = format!(
        "outside\ninside\ninside\nnew\nhost\nmade\n{outside}\n{AT}/d\ninside\noutside\n/\n\
         inside\ninside\ninside\nanother file system\nD/d\nD/d\n{outside}\n"
    );
    assert_eq!(said.out, wanted);
    cluster.finish();
}

#[test]
fn sizes_are_reported_when_descriptors_close() {
    let cluster = Cluster::start(1);
    let mount = cluster.mount(0);
    // The program that writes has inherited the descriptor, and ends without closing it.
    on_volume(
        &cluster,
        0,
        "/bin/echo from a child > $D/child; (exec /bin/echo replaced) > $D/exec",
    );
    assert_eq!(fs::metadata(mount.join("child")).expect("it is there").len(), 13);
    assert_eq!(fs::metadata(mount.join("exec")).expect("it is there").len(), 9);
    on_volume(
        &cluster,
        0,
        "python3 -c 'import os; os.write(os.open(\"'$D'/left\", 65), b\"12345\"); os._exit(0)'",
    );
    assert_eq!(fs::metadata(mount.join("left")).expect("it is there").len(), 5);
    // Both see each other's writes at once.
    let script = format!(
        "exec 6> $D/open; echo 12 >&6; stat -c %s {0}/open; echo 34 >> {0}/open; stat -c %s $D/open",
        mount.display()
    );
    assert_eq!(on_volume(&cluster, 0, &script).out, "3\n6\n");
    cluster.finish();
}

#[test]
fn programs_without_the_library_are_refused() {
    let cluster = Cluster::start(1);
    let dir = tempfile::tempdir().expect("a directory for the test");
    let source = dir.path().join("p.c");
    fs::write(&source, "int main(void) { return 0; }\n").expect("a small program");
    let program = dir.path().join("p");
    run(Command::new("gcc").arg("-static").arg("-o").arg(&program).arg(&source));
    let said = ask(preload_command(&cluster, 0).arg(&program));
    assert_ne!(said.code, Some(0));
    assert!(said.err.contains("is linked statically"), "{}", said.err);
    let said = ask(cluster.command("run").args(["--at", "/", "--", "true"]));
    assert!(said.err.contains("cannot take the place"), "{}", said.err);
    // Without a volume, calls on its paths fail, and others do not.
    cluster.down();
    let script = format!("test -e /etc/passwd && echo other; cat {AT}/f; echo x > {AT}/g");
    let said = ask(preload_command(&cluster, 0).args(["sh", "-c", &script]));
    assert_eq!(said.out, "other\n");
    assert!(said.err.contains("cannot be reached"), "{}", said.err);
    cluster.up();
    cluster.finish();
}

#[test]
fn an_ordinary_user_has_its_own_rights() {
    let cluster = tatami_tests::Setup::nodes(1).config("[mount]\nallow_other = true\n").start();
    on_volume(
        &cluster,
        0,
        "cd $D; mkdir -m 777 open; mkdir -m 700 closed; echo s > secret; chmod 600 secret
         setpriv --reuid 4011 --regid 4011 --clear-groups sh -c '
            echo mine > open/f; id -u; stat -c %u open/f; cat secret; echo no > closed/f; cat open/f'
         true",
    );
    let file = fs::metadata(cluster.mount(0).join("open/f")).expect("the user has made it");
    assert_eq!((file.uid(), file.len(), file.permissions().mode() & 0o777), (4011, 5, 0o644));
    assert!(!cluster.mount(0).join("closed/f").exists());
    cluster.finish();
}

/// Plain calls of each rank on a shared file and on files of its own.
const MPI_PROGRAM: &str = r#"
#include <fcntl.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int main(int argc, char **argv) {
  int rank, size;
  char name[300], text[64] = {0};
  struct stat st;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  snprintf(name, sizeof name, "%s/rank.%d", argv[1], rank);
  FILE *own = fopen(name, "w");
  if (!own || fprintf(own, "rank %d\n", rank) < 0 || fclose(own)) return 1;
  snprintf(name, sizeof name, "%s/shared", argv[1]);
  int fd = open(name, O_CREAT | O_RDWR, 0644);
  if (fd < 0) return 2;
  snprintf(text, sizeof text, "from rank %02d\n", rank);
  if (pwrite(fd, text, 13, rank * 13) != 13 || fsync(fd)) return 3;
  MPI_Barrier(MPI_COMM_WORLD);
  int next = (rank + 1) % size;
  if (pread(fd, text, 13, next * 13) != 13 || atoi(text + 10) != next) return 4;
  snprintf(name, sizeof name, "%s/rank.%d", argv[1], next);
  if (stat(name, &st) || st.st_size != 7) return 5;
  if (close(fd)) return 6;
  MPI_Finalize();
  return 0;
}
"#;

#[test]
fn mpi_programs_use_plain_calls() {
    let _one = ONE_AT_A_TIME.lock();
    let cluster = Cluster::start(2);
    let dir = tempfile::tempdir().expect("a directory for the test");
    let source = dir.path().join("plain.c");
    fs::write(&source, MPI_PROGRAM).expect("the program");
    for mpi in MPIS {
        let program = dir.path().join(mpi);
        run(Command::new(format!("mpicc.{mpi}")).arg("-o").arg(&program).arg(&source));
        let place = cluster.mount(0).join(mpi);
        fs::create_dir(&place).expect("a directory for the job");
        run_job(&cluster, mpi, &program);
        let shared = fs::read_to_string(place.join("shared")).expect("the ranks wrote it");
        let wanted: String = (0..4).map(|n| format!("from rank {n:02}\n")).collect();
        assert_eq!(shared, wanted, "{mpi}");
    }
    cluster.finish();
}

fn run_job(cluster: &Cluster, mpi: &str, program: &Path) {
    let tatami = cluster.command("run");
    let mut job = Command::new(format!("mpirun.{mpi}"));
    job.args(["-n", "4"]).arg(tatami.get_program()).args(tatami.get_args());
    job.args(["--node", "rank", "--at", AT, "--"]).arg(program).arg(format!("{AT}/{mpi}"));
    run(on_this_machine(&mut job));
}
