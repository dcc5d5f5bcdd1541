//! Slurm on the hosts of a test bed: `munged` and `slurmd` on each, `slurmctld` on the first.

use crate::testbed::HostBed;
use std::path::Path;

/// Programs that it needs, and their Debian packages.
const NEEDED: [(&str, &str); 4] = [
    ("/usr/sbin/slurmctld", "slurmctld"),
    ("/usr/sbin/slurmd", "slurmd"),
    ("/usr/bin/srun", "slurm-client"),
    ("/usr/sbin/munged", "munge"),
];

/// Lines of `slurm.conf` that do not depend on the hosts. Without cgroups, a process that leaves
/// its process group outlives the job: the test bed is the worst case. A step has 30 s between
/// SIGTERM and SIGKILL, which is the default.
const CONFIG: &str = "\
ClusterName=bed
AuthType=auth/munge
SlurmUser=root
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SlurmdParameters=config_overrides
SwitchType=switch/none
MpiDefault=none
SchedulerType=sched/builtin
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
StateSaveLocation=/var/spool/slurmctld
SlurmdSpoolDir=/var/spool/slurmd
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile=/var/log/slurmctld.log
SlurmdLogFile=/var/log/slurmd.log
SlurmdTimeout=10
KillWait=30
ReturnToService=2
JobRequeue=0
";

/// Returns why no Slurm can run on this machine: it lacks a program.
pub fn find_slurm_obstacle() -> Option<String> {
    let missing = NEEDED.iter().find(|(path, _)| !Path::new(path).is_file());
    missing.map(|(path, package)| format!("{path} is not there: install {package}"))
}

/// Starts Slurm on all hosts. `more` has further lines of its configuration.
///
/// # Panics
/// If it does not start.
pub fn start_slurm(bed: &HostBed, more: &str) {
    let mut config = format!("{CONFIG}{more}SlurmctldHost={}\n", bed.host(0).name());
    for host in bed.hosts() {
        let (name, address) = (host.name(), host.address());
        config += &format!("NodeName={name} NodeAddr={address} CPUs=4\n");
    }
    config += "PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n";
    for host in bed.hosts() {
        host.run(&format!(
            "mkdir -p /etc/slurm /var/spool/slurmctld /var/spool/slurmd
             cat > /etc/slurm/slurm.conf <<'END'\n{config}END
             printf 'CgroupPlugin=cgroup/v1\\nCgroupMountpoint=/sys/fs/cgroup\\n' \
               > /etc/slurm/cgroup.conf
             mkdir -p -m 700 /etc/munge && chown 0:0 /etc/munge && rm -f /etc/munge/munge.key
             printf %s 'a key of the test bed, the same on each of its hosts' > /etc/munge/munge.key
             chmod 400 /etc/munge/munge.key"
        ));
    }
    (0..bed.hosts().len()).for_each(|at| start_slurm_on(bed, at));
    let count = bed.hosts().len();
    bed.host(0)
        .run(&format!("until test $(sinfo -h -N -t idle | wc -l) = {count}; do sleep 0.1; done"));
}

/// Starts the daemons of Slurm on one host, for example after its boot.
///
/// # Panics
/// If they do not start.
pub fn start_slurm_on(bed: &HostBed, at: usize) {
    let host = bed.host(at);
    host.run(
        "mkdir -p -m 755 /run/munge /var/log/munge /var/lib/munge
         chown 0:0 /var/log/munge /var/lib/munge
         munged --force --log-file /var/log/munge/munged.log >/dev/null 2>&1
         until munge -n >/dev/null 2>&1; do sleep 0.05; done",
    );
    if at == 0 {
        host.run("slurmctld >/dev/null 2>&1; until scontrol ping | grep -q UP; do sleep 0.1; done");
    }
    host.run("slurmd >/dev/null 2>&1");
}
