//! The batch job in which a command runs: its id and its hosts, as Slurm and PBS describe them in
//! the environment; and the command lines by which their launchers reach a host.

use crate::host_list::{HostListError, parse_host_list, parse_hostfile};

/// Longest id of a job, in bytes.
const ID_MAX: usize = 128;
/// How the name of the directory of a job's volume begins.
const DIR_PREFIX: &str = "tatami-job-";

/// A batch system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchSystem {
    /// Slurm.
    Slurm,
    /// OpenPBS, PBS Pro or Torque.
    Pbs,
}

/// A batch job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchJob {
    /// The batch system that runs it.
    pub system: BatchSystem,
    /// Its id, as the batch system writes it.
    pub id: String,
    /// The names of its hosts, each once.
    pub hosts: Vec<String>,
}

/// Why no batch job is found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BatchJobError {
    /// No variable of a batch system is set.
    #[error("neither SLURM_JOB_ID nor PBS_JOBID is set")]
    Absent,
    /// An id that no job has.
    #[error("{0:?} is no id of a job")]
    Id(String),
    /// The job is named, and its hosts are not.
    #[error("{0} is not set")]
    NoHosts(&'static str),
    /// The file of the hosts cannot be read.
    #[error("cannot read {0}: {1}")]
    Unreadable(String, String),
    /// The list of hosts is wrong.
    #[error("{0}: {1}")]
    Hosts(String, HostListError),
}

impl BatchJob {
    /// Finds the job by environment variables. `read_file` reads the file of its hosts.
    ///
    /// # Errors
    /// [`BatchJobError`].
    pub fn find_in(
        variable: impl Fn(&str) -> Option<String>,
        read_file: impl Fn(&str) -> Result<String, String>,
    ) -> Result<BatchJob, BatchJobError> {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        if let Some(id) = set("SLURM_JOB_ID") {
            let id = check_id(id)?;
            let name = "SLURM_JOB_NODELIST";
            let list = set(name).ok_or(BatchJobError::NoHosts(name))?;
            let hosts = parse_host_list(&list);
            let hosts = hosts.map_err(|e| BatchJobError::Hosts(name.to_owned(), e))?;
            return Ok(BatchJob { system: BatchSystem::Slurm, id, hosts });
        }
        let id = check_id(set("PBS_JOBID").ok_or(BatchJobError::Absent)?)?;
        let name = "PBS_NODEFILE";
        let path = set(name).ok_or(BatchJobError::NoHosts(name))?;
        let text = read_file(&path).map_err(|e| BatchJobError::Unreadable(path.clone(), e))?;
        let hosts = parse_hostfile(&text).map_err(|e| BatchJobError::Hosts(path, e))?;
        Ok(BatchJob { system: BatchSystem::Pbs, id, hosts })
    }

    /// Returns the name of the directory of the job's volume.
    pub fn dir_name(&self) -> String {
        job_dir_name(&self.id)
    }
}

/// Returns the name of the directory of a job's volume: the id with plain characters only.
pub fn job_dir_name(id: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' };
    let id: String = id.chars().map(plain).collect();
    format!("{DIR_PREFIX}{id}")
}

/// Whether this is the name of the directory of a job's volume.
pub fn is_job_dir_name(name: &str) -> bool {
    name.strip_prefix(DIR_PREFIX).is_some_and(|id| !id.is_empty() && job_dir_name(id) == name)
}

/// Checks an id: Slurm has `123`, PBS `123.server` and `123[4].server`.
fn check_id(id: String) -> Result<String, BatchJobError> {
    let good = |b: u8| b.is_ascii_alphanumeric() || b"._-[]".contains(&b);
    let starts = id.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric());
    match starts && id.len() <= ID_MAX && id.bytes().all(good) {
        true => Ok(id),
        false => Err(BatchJobError::Id(id.chars().take(ID_MAX).collect())),
    }
}

/// Returns the command line of `srun` for one process on one host of a job, which runs the line of
/// a shell. The step shares the resources of the job with all other steps (`--overlap`), and no
/// `#SBATCH` option of the job changes it.
pub fn srun_words(job: &str, host: &str, line: &str) -> Vec<String> {
    let fixed = ["--overlap", "--nodes=1", "--ntasks=1", "--ntasks-per-node=1", "--cpu-bind=none"];
    let mut words = vec![format!("--jobid={job}"), format!("--nodelist={host}")];
    words.extend(fixed.map(str::to_owned));
    // The working directory of the job need not be on each host.
    words.extend(["--mpi=none", "--gres=none", "--chdir=/", "sh", "-c", line].map(str::to_owned));
    words
}

/// Returns the line of a shell that runs `program ARGUMENTS` on a host of a PBS job, to which `ssh`
/// has logged in. PBS then counts the process as one of the job and ends it with the job, if its
/// `pbs_attach` is there. (`pbsdsh` passes no standard input on, and so cannot carry orders.)
pub fn pbs_line(job: &str, program: &str, arguments: &str) -> String {
    format!(
        "a=$(command -v pbs_attach) && exec \"$a\" -j \"{job}\" {program} {arguments}; \
         exec {program} {arguments}"
    )
}

/// Whether a launcher of Slurm must not find this variable: it would change the step, or say that
/// the process runs on another machine.
pub fn is_left_out_for_srun(name: &str) -> bool {
    let kept = ["SLURM_CONF", "SLURM_JWT", "SLURM_CLUSTER_NAME"];
    let changes = ["SLURM_", "SLURMD_", "SRUN_", "SBATCH_", "SALLOC_", "TATAMI_"];
    name == "SSH_CONNECTION"
        || !kept.contains(&name) && changes.iter().any(|prefix| name.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(set: &[(&str, &str)]) -> Result<BatchJob, BatchJobError> {
        let variable = |name: &str| {
            set.iter().find(|(other, _)| *other == name).map(|(_, value)| (*value).to_owned())
        };
        let read = |path: &str| match path {
            "/nodes" => Ok("n1\nn1\nn2\n".to_owned()),
            "/bad" => Ok("n1\nn2;true\n".to_owned()),
            _ => Err("no such file".to_owned()),
        };
        BatchJob::find_in(variable, read)
    }

    #[test]
    fn jobs_of_both_systems_are_found() {
        let slurm = [("SLURM_JOB_ID", "17"), ("SLURM_JOB_NODELIST", "n[1-2],m")];
        let job = find(&slurm).expect("a job");
        assert_eq!((job.system, job.id.as_str()), (BatchSystem::Slurm, "17"));
        assert_eq!(
            (job.hosts.join(" ").as_str(), job.dir_name().as_str()),
            ("n1 n2 m", "tatami-job-17")
        );
        let pbs = [("PBS_JOBID", "17[3].server"), ("PBS_NODEFILE", "/nodes")];
        let job = find(&pbs).expect("a job");
        assert_eq!((job.system, job.hosts.join(" ").as_str()), (BatchSystem::Pbs, "n1 n2"));
        assert_eq!(job.dir_name(), "tatami-job-17_3_.server");
    }

    #[test]
    fn what_is_no_job_is_named() {
        assert_eq!(find(&[]), Err(BatchJobError::Absent));
        assert_eq!(find(&[("SLURM_JOB_ID", "")]), Err(BatchJobError::Absent));
        for id in ["../17", "17 18", "-17", "$(true)", ".."] {
            assert!(matches!(find(&[("SLURM_JOB_ID", id)]), Err(BatchJobError::Id(_))), "{id}");
        }
        let no_hosts = BatchJobError::NoHosts("SLURM_JOB_NODELIST");
        assert_eq!(find(&[("SLURM_JOB_ID", "17")]), Err(no_hosts));
        assert_eq!(find(&[("PBS_JOBID", "17")]), Err(BatchJobError::NoHosts("PBS_NODEFILE")));
        let file = |path| find(&[("PBS_JOBID", "17"), ("PBS_NODEFILE", path)]);
        assert!(matches!(file("/none"), Err(BatchJobError::Unreadable(..))));
        assert!(matches!(file("/bad"), Err(BatchJobError::Hosts(..))));
    }

    #[test]
    fn only_names_of_jobs_are_names_of_their_directories() {
        assert!(is_job_dir_name(&job_dir_name("17[3].server")));
        for name in ["tatami-job-", "tatami-job-a/b", "tatami-job-..\n", "tatami", ""] {
            assert!(!is_job_dir_name(name), "{name}");
        }
    }

    #[test]
    fn srun_starts_one_process_on_the_host_that_is_named() {
        let words = srun_words("17", "n2", "exec tatami host serve").join(" ");
        assert!(words.starts_with("--jobid=17 --nodelist=n2 --overlap --nodes=1 --ntasks=1 "));
        assert!(words.ends_with(" sh -c exec tatami host serve"), "{words}");
        for name in ["SLURM_NTASKS", "SLURM_JOB_ID", "SRUN_DEBUG", "TATAMI_DIR", "SSH_CONNECTION"] {
            assert!(is_left_out_for_srun(name), "{name}");
        }
        assert!(!is_left_out_for_srun("SLURM_CONF") && !is_left_out_for_srun("PATH"));
    }

    #[test]
    fn a_process_of_ssh_is_attached_to_its_pbs_job() {
        let line = pbs_line("17.server", "tatami", "host serve");
        assert_eq!(
            line,
            "a=$(command -v pbs_attach) && exec \"$a\" -j \"17.server\" tatami host serve; \
             exec tatami host serve"
        );
    }
}
