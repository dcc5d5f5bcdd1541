//! Volumes of batch jobs: under Slurm on the hosts of a test bed, and in jobs of PBS as far as
//! their variables show them. The point is the end: whatever ends a job leaves nothing on any host.

use crate::hosts::{start_bed, start_many};
use std::fs;
use std::path::Path;
use std::time::Duration;
use tatami_skip::skip_unavailable;
use tatami_tests::command::{Said, ask, program, run, sources};
use tatami_tests::schema::JsonSchema;
use tatami_tests::seed::{Rng, root_seed, scaled};
use tatami_tests::slurm::{find_slurm_obstacle, start_slurm, start_slurm_on};
use tatami_tests::testbed::{HostBed, TestHost};

/// Fails unless no process, mount or file of a job's volume is left, after a while.
const NOTHING_LEFT: &str = "\
left() { pgrep -l tatami; grep fuse.tatami /proc/self/mountinfo; ls -d /tmp/tatami* /srv/alice/tmp/*
  find /run/tatami /dev/shm -mindepth 1; true; }
for _ in $(seq 900); do found=$(left 2>/dev/null); test -n \"$found\" || exit 0; sleep 0.1; done
echo \"$found\"; exit 1";

/// Waits for the end of all processes: the first process of a host waits for them at its leisure.
const NO_PROCESS: &str = "while pgrep tatami; do sleep 0.1; done";

/// Copies files of `packaging/slurm` to where all hosts find them: `/usr/local/bin`.
fn install_packaging(bed: &HostBed, names: &[&str]) {
    let from = sources().join("../packaging/slurm");
    for name in names {
        run(program("cp").arg(from.join(name)).arg(bed.dir().join("bin")));
    }
}

/// Starts a test bed with Slurm, and further lines of its configuration; `None` where this machine
/// cannot have one.
fn start_cluster(names: &[&str], more: &str) -> Option<HostBed> {
    let bed = start_hosts_of_slurm(names)?;
    start_slurm(&bed, more);
    Some(bed)
}

/// Starts a test bed with Slurm and so many hosts; in the long form of the tests with 16.
fn start_cluster_of_many(few: usize) -> Option<HostBed> {
    if let Some(obstacle) = find_slurm_obstacle() {
        skip_unavailable(&obstacle);
        return None;
    }
    let (bed, _) = start_many(few)?;
    start_slurm(&bed, "");
    Some(bed)
}

/// The same, before Slurm is started on them.
fn start_hosts_of_slurm(names: &[&str]) -> Option<HostBed> {
    if let Some(obstacle) = find_slurm_obstacle() {
        skip_unavailable(&obstacle);
        return None;
    }
    start_bed(names)
}

/// Waits, for less than the longest time of a command, until no node runs on a host.
fn await_silence(host: &TestHost) {
    host.ask("for _ in $(seq 1100); do pgrep -x tatami-node || break; sleep 0.1; done");
}

fn expect_clean(host: &TestHost) {
    let said = host.ask(NOTHING_LEFT);
    assert_eq!(said.code, Some(0), "left on {}:\n{}", host.name(), said.out);
}

fn expect_all_clean(bed: &HostBed) {
    bed.hosts().iter().for_each(expect_clean);
}

fn run_as_user(host: &TestHost, line: &str) -> Said {
    run(&mut host.user_command(line))
}

/// Runs a command that must fail with this exit code. Its message has all of `words`.
fn expect_refusal(host: &TestHost, line: &str, code: i32, words: &[&str]) {
    let said = host.ask(line);
    assert_eq!(said.code, Some(code), "{line}: {said:?}");
    for word in words {
        assert!(said.err.contains(word), "{line}: no {word:?} in\n{}", said.err);
    }
}

/// Runs a batch script, which must end with this exit code. Returns its output.
fn run_batch(host: &TestHost, options: &str, script: &str, code: i32) -> String {
    let submit = format!(
        "cat > job.sh <<'END'\n#!/bin/bash\n{script}\nEND\n\
         code=0; sbatch -Q --wait -o job.out {options} job.sh || code=$?; echo $code > code; \
         cat job.out"
    );
    let said = run_as_user(host, &submit);
    let ended = run_as_user(host, "cat code").out;
    assert_eq!(ended.trim(), code.to_string(), "{said:?}");
    said.out
}

/// An ordinary user's batch job writes on each host and reads everywhere what the others wrote.
#[test]
fn a_batch_job_has_a_volume_on_its_hosts() {
    let Some(bed) = start_cluster_of_many(4) else { return };
    let one = bed.host(0);
    let count = bed.hosts().len();
    let script = "tatami job run --metrics -- sh -c '
  cd /; srun sh -c \"hostname > \\$TATAMI_MOUNT/\\$(hostname)\"
  srun sh -c \"cat \\$TATAMI_MOUNT/n*\" | sort | uniq -c
  srun -N1 -n1 -w n3 tatami where $TATAMI_MOUNT/n3
  test $(stat -c %a $TATAMI_DIR) = 700 && echo $TATAMI_DIR
  exit 7'";
    let said = run_batch(one, &format!("-N {count} --ntasks-per-node=1"), script, 7);
    for name in bed.hosts().iter().map(TestHost::name) {
        assert!(said.contains(&format!("{count} {name}\n")), "{said}");
        assert!(said.contains(&format!("\"name\": \"{name}\"")), "{said}");
    }
    assert!(said.contains("/tmp/tatami-job-") && said.contains("meta_requests"), "{said}");
    expect_all_clean(&bed);

    // Options of the script do not reach the steps of the volume. Another scratch directory.
    let script = "eval \"$(tatami job up --scratch /srv/alice/tmp --export)\" || exit 1
srun -n 2 sh -c 'echo $SLURM_PROCID > $TATAMI_MOUNT/$SLURM_PROCID'
cat $TATAMI_MOUNT/0 $TATAMI_MOUNT/1; echo $TATAMI_DIR";
    for host in bed.hosts() {
        run_as_user(host, "mkdir tmp");
    }
    let options = "-w n[2-3] -N 2 -n 8 --ntasks-per-node=4 --cpus-per-task=1";
    let two = bed.host(1);
    run_as_user(two, "mkdir -p ~");
    let said = run_batch(two, options, script, 0);
    assert!(said.contains("0\n1\n/srv/alice/tmp/tatami-job-"), "{said}");
    expect_all_clean(&bed);

    // The command is killed, and cannot be found.
    let killed = run_batch(one, "-N 1 -w n1", "tatami job run -- sh -c 'kill -TERM $$'", 143);
    assert_eq!(killed, "");
    let none = run_batch(one, "-N 1 -w n1", "tatami job run -- /none", 1);
    assert!(none.contains("cannot run /none"), "{none}");
    expect_all_clean(&bed);
}

/// In an interactive allocation the volume is started and removed by hand, once and again.
#[test]
fn a_volume_is_started_and_removed_in_an_allocation() {
    let Some(bed) = start_cluster(&["n1", "n2", "n3"], "") else { return };
    let one = bed.host(0);
    let script = "set -e
eval \"$(tatami job up --export)\"
srun -N 3 sh -c 'echo x > $TATAMI_MOUNT/$(hostname)'
test \"$(cd $TATAMI_MOUNT && echo *)\" = 'n1 n2 n3'
tatami status; tatami fsck
tatami job up | grep 'ran already on 3 hosts'
test $(tatami job up --json | jq -c '[.new, .hosts, .mount]') = \
  \"[false,[\\\"n1\\\",\\\"n2\\\",\\\"n3\\\"],\\\"$TATAMI_MOUNT\\\"]\"
srun -N 1 -n 1 -w n2 tatami job up | grep 'ran already'
! srun -N 1 -n 1 -w n2 tatami job down 2> err; grep 'kept by another host, n1' err
! tatami down 2> err; grep 'tatami job down' err
! tatami up 2> err; grep 'volume of the batch job' err
! tatami node add n3 2> err; grep 'volume of the batch job' err
tatami job run -- sh -c 'test -e $TATAMI_MOUNT/n2'
cd $TATAMI_MOUNT; tatami job down | grep removed; cd ~
test ! -e $TATAMI_DIR; srun -N 3 sh -c 'while pgrep tatami; do sleep 0.1; done'
tatami job down | grep 'has no volume'
tatami job up --json > new.json; jq -e .new new.json; tatami job down";
    run_as_user(one, &format!("cat > script <<'END'\n{script}\nEND\nsalloc -N 3 bash script"));
    let schema = fs::read_to_string(sources().join("../docs/reference/json.schema.json"));
    let schema = JsonSchema::parse(&schema.expect("the schema is there"));
    let report = serde_json::from_str(&run_as_user(one, "cat new.json").out).expect("it is JSON");
    assert_eq!(schema.check_value("job-up", &report), Ok(()));
    expect_all_clean(&bed);
    // The end of the allocation is that of the volume.
    run_as_user(one, "salloc -N 3 sh -c 'tatami job up && pgrep tatami-node'");
    expect_all_clean(&bed);
    run_as_user(one, "salloc -N 3 sh -c 'tatami job up --launcher ssh && pgrep tatami-node'");
    expect_all_clean(&bed);
    // From a machine that is not in the job.
    run_as_user(one, "salloc -N 2 -w n[2-3] sh -c 'tatami job up && test -d /tmp/tatami-job-*'");
    expect_all_clean(&bed);
}

/// A job that is cancelled leaves nothing, at whatever moment.
#[test]
fn a_cancelled_job_leaves_nothing() {
    let Some(bed) = start_cluster_of_many(3) else { return };
    let count = bed.hosts().len();
    let mut rng = Rng::with_seed(root_seed());
    let one = bed.host(0);
    let busy = "srun sh -c 'while :; do date > $TATAMI_MOUNT/f.$SLURM_PROCID; done'";
    for round in 0..scaled(5).min(50) {
        let script = match round % 2 {
            0 => format!("tatami job run -- {busy}"),
            _ => format!("eval \"$(tatami job up --export)\"; {busy}"),
        };
        one.run(&format!("cat > job.sh <<'END'\n#!/bin/bash\n{script}\nEND\n"));
        let id =
            one.run(&format!("sbatch --parsable -N {count} --ntasks-per-node=1 -o job.out job.sh"));
        let id = id.out.trim();
        #[allow(clippy::disallowed_methods)] // the moment is random
        std::thread::sleep(Duration::from_millis(rng.u64(0..5000)));
        one.run(&format!(
            "scancel {id}; until test -z \"$(squeue -h -j {id})\"; do sleep 0.1; done"
        ));
        expect_all_clean(&bed);
    }
}

/// A job on a machine that loses its power ends, and the others are cleaned. The tests with Slurm
/// and with PBS wait most of their time, so they run side by side.
#[test]
fn a_job_that_loses_a_host_leaves_nothing_on_the_others() {
    let (slurm, pbs) = (start_cluster(&["n1", "n2", "n3"], ""), start_bed(&["n1", "n2", "n3"]));
    let (Some(slurm), Some(pbs)) = (slurm, pbs) else { return };
    std::thread::scope(|scope| {
        scope.spawn(|| lose_a_host_under_slurm(slurm));
        scope.spawn(|| lose_the_first_host_of_pbs(pbs));
    });
}

/// The host that holds the volume is gone. The others hear nothing of its end, and wait as long as
/// a machine may be silent.
fn lose_the_first_host_of_pbs(mut bed: HostBed) {
    run_as_user(bed.host(0), &start_pbs_job());
    bed.unplug(0);
    bed.cut_power(0);
    for at in [1, 2] {
        bed.host(at).run("pgrep -x tatami-node");
    }
    for at in [1, 2] {
        await_silence(bed.host(at));
        expect_clean(bed.host(at));
    }
}

/// The lost machine is cleaned when it is back, too.
fn lose_a_host_under_slurm(mut bed: HostBed) {
    let script = "tatami job run -- sh -c 'touch $TATAMI_MOUNT/ready; sleep 1000'";
    let one = bed.host(0);
    one.run(&format!("printf '#!/bin/sh\n%s\n' \"{}\" > job.sh", script.replace('$', "\\$")));
    one.run("sbatch -N 3 -o job.out job.sh");
    one.run("until test -e /tmp/tatami-job-*/mnt/ready; do sleep 0.1; done");
    bed.unplug(2);
    bed.cut_power(2);
    for at in [0, 1] {
        await_silence(bed.host(at));
        expect_clean(bed.host(at));
    }
    bed.boot(2);
    let three = bed.host(2);
    three.run("test -d /tmp/tatami-job-*/node2 && tatami host clean /tmp");
    expect_clean(three);
    // The job may be started anew under its id.
    start_slurm_on(&bed, 2);
    let one = bed.host(0);
    one.run("until test $(sinfo -h -N -t idle | wc -l) = 3; do sleep 0.1; done");
    one.run("salloc -N 3 tatami job run -- true");
    expect_all_clean(&bed);
}

/// Bad input has a message and leaves nothing.
#[test]
fn a_job_that_cannot_have_a_volume_is_told_so() {
    let Some(bed) = start_cluster(&["n1", "n2"], "") else { return };
    let (one, two) = (bed.host(0), bed.host(1));
    for verb in ["up", "down", "run -- true"] {
        let words = ["this is no batch job", "SLURM_JOB_ID", "tatami up --hosts"];
        expect_refusal(one, &format!("tatami job {verb}"), 2, &words);
    }
    let bad = "SLURM_JOB_ID=../x SLURM_JOB_NODELIST=n1 tatami job up";
    expect_refusal(one, bad, 2, &["\"../x\" is no id of a job"]);
    let bad = "SLURM_JOB_ID=1 tatami job up";
    expect_refusal(one, bad, 2, &["SLURM_JOB_NODELIST is not set"]);
    let bad = "SLURM_JOB_ID=1 SLURM_JOB_NODELIST='n[2-1]' tatami job up";
    expect_refusal(one, bad, 2, &["SLURM_JOB_NODELIST: "]);
    let bad = "PBS_JOBID=1 PBS_NODEFILE=/none tatami job up";
    expect_refusal(one, bad, 2, &["cannot read /none"]);
    // A job that has ended.
    let bad = "SLURM_JOB_ID=77 SLURM_JOB_NODELIST='n[1-2]' tatami job up";
    let words = ["2 of 2 hosts failed; nothing was started", "Invalid job id"];
    expect_refusal(one, bad, 1, &words);
    expect_all_clean(&bed);
    one.run("mkdir /mnt/local");
    let in_job = |line: &str| format!("salloc -Q -N 2 {line}");
    let bad = in_job("tatami job up --scratch /mnt/local");
    expect_refusal(one, &bad, 1, &["1 of 2 hosts failed", "n2: cannot make /mnt/local/tatami-job"]);
    let bad = in_job("tatami job up --scratch /mnt/none");
    expect_refusal(one, &bad, 1, &["cannot make /mnt/none", "--scratch DIR"]);
    let bad = in_job("tatami job up --program /mnt/none");
    expect_refusal(one, &bad, 1, &["tatami is not found there"]);
    // Another user was there before.
    let next = one.run("salloc -Q -N 1 printenv SLURM_JOB_ID").out.trim().parse::<u32>();
    let next = next.expect("the id of a job") + 1;
    run_as_user(two, &format!("mkdir /tmp/tatami-job-{next}"));
    expect_refusal(one, &in_job("tatami job up"), 1, &["n2: ", "is there already"]);
    run_as_user(two, &format!("rmdir /tmp/tatami-job-{next}"));
    two.run("mount --bind /dev/null /dev/fuse");
    expect_refusal(one, &in_job("tatami job up"), 1, &["n2: FUSE cannot be used"]);
    two.run("umount /dev/fuse");
    expect_all_clean(&bed);
    assert_eq!(one.run("ls -A /mnt/local").out, "");
}

/// Returns a script as a job of PBS on three hosts. A job is a session of its own.
fn write_pbs_job(script: &str) -> String {
    format!(
        "printf 'n1\\nn1\\nn2\\nn3\\n' > nodes
export PBS_JOBID='17[2].server' PBS_NODEFILE=$HOME/nodes
setsid --wait bash -c '{script}'"
    )
}

/// Returns the command line that starts a job of PBS with a volume and goes on when it is mounted.
fn start_pbs_job() -> String {
    let held = write_pbs_job("tatami job up >&2 && sleep 1000");
    // The log of the round before would say that this one is ready.
    format!(
        "rm -f up.log; ({held}) >/dev/null 2>up.log & \
         until grep -q mounted up.log; do sleep 0.1; done"
    )
}

/// A job of PBS, as far as its variables show it: the hosts are reached by ssh, and the volume ends
/// with the shell of the job, however that ends.
#[test]
fn a_pbs_job_has_a_volume_until_its_shell_ends() {
    let Some(bed) = start_bed(&["n1", "n2", "n3"]) else { return };
    let one = bed.host(0);
    let in_job = write_pbs_job;
    let check = "set -e; eval \"$(tatami job up --export)\"; tatami status
for h in n1 n2 n3; do ssh $h test -d $TATAMI_MOUNT; done; echo x > $TATAMI_MOUNT/x
test $(ssh n3 cat $TATAMI_MOUNT/x) = x; echo $TATAMI_DIR";
    let said = run_as_user(one, &in_job(&format!("{check}; tatami job down; {NO_PROCESS}")));
    assert!(said.out.contains("/tmp/tatami-job-17_2_.server\n"), "{said:?}");
    expect_all_clean(&bed);
    run_as_user(one, &in_job(check));
    expect_all_clean(&bed);
    let code = ask(&mut one.user_command(&in_job("tatami job run -- sh -c \"exit 3\""))).code;
    assert_eq!(code, Some(3));
    expect_all_clean(&bed);

    // The batch system attaches the processes of ssh to its job, where it can.
    let attach = "printf '#!/bin/sh\\necho \"$2\" > /mnt/id\\nshift 2\\nexec \"$@\"\\n'";
    let two = bed.host(1);
    two.run(&format!("chmod 777 /mnt; {attach} > /mnt/pbs_attach; chmod +x /mnt/pbs_attach"));
    two.run("cp /usr/local/bin/tatami /mnt; mount --bind /mnt /usr/local/bin");
    run_as_user(one, &in_job("tatami job run -- true"));
    two.run("test $(cat /mnt/id) = '17[2].server'; umount /usr/local/bin; rm /mnt/*");
    expect_all_clean(&bed);

    // All processes of the job are killed, and then those of the volume.
    let start = start_pbs_job();
    for end in ["pkill -KILL sleep", "pkill -KILL tatami-keeper", "pkill -KILL -x tatami"] {
        run_as_user(one, &start);
        one.run(end);
        one.run("while pgrep -x tatami-keeper; do pkill -KILL sleep || true; sleep 0.1; done");
        expect_all_clean(&bed);
        one.run("pkill sleep || true");
    }
}

/// Where the processes of a job are killed all at once, so that none can clean up, the epilog does;
/// and the prolog removes the rest of jobs that ended with their host. Neither follows a link.
#[test]
fn prolog_and_epilog_remove_what_killed_processes_left() {
    let scripts = "/usr/local/bin";
    let lines = format!("Prolog={scripts}/prolog.sh\nEpilog={scripts}/epilog.sh\n");
    let Some(bed) = start_cluster(&["n1", "n2"], &lines) else { return };
    install_packaging(&bed, &["prolog.sh", "epilog.sh", "tatami-common.sh"]);
    let one = bed.host(0);
    let up = "printf '#!/bin/sh\ntatami job up && sleep 1000\n' > job.sh
sbatch --parsable -N 2 -o job.out job.sh; until grep -q mounted job.out; do sleep 0.1; done";
    let id = run_as_user(one, up).out;
    // No cleaner is left to see the end of its host's part.
    for host in bed.hosts() {
        host.run("pkill -KILL tatami-cleaner");
    }
    for host in bed.hosts() {
        host.run("pkill -KILL -x 'tatami|tatami-keeper' || true");
    }
    for host in bed.hosts() {
        host.run("while pgrep -x tatami; do sleep 0.1; done");
        host.run("pgrep tatami-node && ls /tmp/tatami-job-*/volume.toml");
    }
    one.run(&format!("scancel {}", id.trim()));
    expect_all_clean(&bed);

    // A user's links, where root is about to remove files.
    let two = bed.host(1);
    two.run("mkdir -p /mnt/tatami-job-77 && touch /mnt/tatami-job-77/file /mnt/kept");
    let next = id.trim().parse::<u32>().expect("the id of a job") + 1;
    for name in [next, next + 1, 999] {
        run_as_user(two, &format!("ln -s /mnt /tmp/tatami-job-{name}"));
    }
    run_as_user(one, "srun -N 2 true");
    one.run("srun -N 2 true; until test -z \"$(squeue -h)\"; do sleep 0.1; done");
    two.run("test -e /mnt/kept && test -e /mnt/tatami-job-77/file && rm /tmp/tatami-job-*");
    // A crash of the host has left this.
    let note = "host = \"n2\"\n[process]\npid = 1\nstart = 1\nboot = \"another\"\n";
    let dir = "/tmp/tatami-job-998";
    run_as_user(two, &format!("mkdir -p {dir}/node1 && printf '{note}' > {dir}/cleaner.toml"));
    one.run("srun -N 2 true");
    expect_all_clean(&bed);
}

/// `sbatch --tatami` starts the volume before the script, by the SPANK plugin.
#[test]
fn an_option_of_sbatch_starts_the_volume() {
    let header = Path::new("/usr/include/slurm/spank.h");
    if !header.is_file() {
        return skip_unavailable("slurm/spank.h is not there: install libslurm-dev");
    }
    let Some(bed) = start_hosts_of_slurm(&["n1", "n2"]) else { return };
    let make = sources().join("../packaging/slurm");
    let out = bed.dir().join("bin");
    run(program("make --silent -C").arg(make).arg(format!("OUT={}", out.display())));
    for host in bed.hosts() {
        let plugin = "required /usr/local/bin/spank_tatami.so /usr/local/bin/tatami";
        host.run(&format!("mkdir -p /etc/slurm && echo '{plugin}' > /etc/slurm/plugstack.conf"));
        run_as_user(host, "mkdir tmp");
    }
    start_slurm(&bed, "");
    let one = bed.host(0);
    let script = "srun sh -c 'echo x > $TATAMI_MOUNT/$(hostname)'
cd $TATAMI_MOUNT && echo * && echo $TATAMI_DIR";
    let said = run_batch(one, "-N 2 --ntasks-per-node=1 --tatami", script, 0);
    assert!(said.contains("n1 n2\n/tmp/tatami-job-"), "{said}");
    expect_all_clean(&bed);
    let said = run_batch(one, "-N 2 --tatami=scratch=/srv/alice/tmp", "echo $TATAMI_DIR", 0);
    assert!(said.contains("/srv/alice/tmp/tatami-job-"), "{said}");
    expect_all_clean(&bed);
    let said = run_batch(one, "-N 2", "echo mount: $TATAMI_MOUNT", 0);
    assert!(said.contains("mount: \n") || said.ends_with("mount:\n"), "{said}");
    for (options, word) in [("nothing", "NAME=VALUE"), ("scratch=/none", "cannot make /none")] {
        let submit =
            format!("sbatch --wait -o job.out -N 2 --tatami={options} job.sh; cat job.out");
        let said = ask(&mut one.user_command(&format!("set +e; {submit}")));
        assert!(said.out.contains(word) && !said.out.contains("mount:"), "{said:?}");
        expect_all_clean(&bed);
    }
}
