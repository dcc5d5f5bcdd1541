//! Options that the subcommands of `tatami job` share: the batch job, the directory of its volume,
//! and how its hosts are reached.

use crate::config::ConfigOverrides;
use crate::error::{CommandFailure, CommandResult, FailureContext};
use crate::host_args::{parse_option, parse_program};
use crate::job_remains::MOUNT_DIR;
use crate::keys::{find_key, name};
use crate::ssh_session::{HostLauncher, SshAccess};
use crate::volume_dir::{VolumeArgs, VolumeDir};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use tatami_hosts::batch_job::{BatchJob, BatchJobError, BatchSystem};
use tatami_hosts::host_list::HOSTFILE_MAX;
use tatami_hosts::network::IpNetwork;

/// The program that reaches the hosts of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum LauncherName {
    /// A step of the Slurm job on each host
    Srun,
    /// Your own ssh
    Ssh,
}

/// How the volume of the job is made.
#[derive(Clone, Debug, clap::Args)]
pub struct JobOptions {
    /// Local directory of each host, in which the volume gets one of its own [default: TMPDIR, or
    /// else /tmp]
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    scratch: Option<PathBuf>,
    /// How the hosts are reached [default: srun in a Slurm job that has it, or else ssh]
    #[arg(long, value_name = "PROGRAM")]
    launcher: Option<LauncherName>,
    /// Network of the nodes' addresses, for hosts that have several, for example 10.1.0.0/16
    #[arg(long, value_name = "CIDR")]
    network: Option<IpNetwork>,
    /// An option for ssh, as in ssh_config(5), for example Port=2222. Can be repeated
    #[arg(long, value_name = "OPTION", value_parser = parse_option)]
    ssh_option: Vec<String>,
    /// Path of tatami on the hosts [default: the path of this one, or else the PATH there]
    #[arg(long, value_name = "PATH", value_parser = parse_program)]
    program: Option<String>,
    #[command(flatten)]
    overrides: ConfigOverrides,
}

impl JobOptions {
    /// Returns the same options as arguments, for another process.
    pub fn to_arguments(&self) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = Vec::new();
        let mut add = |flag: &str, value: OsString| arguments.extend([flag.into(), value]);
        self.scratch.iter().for_each(|dir| add("--scratch", dir.into()));
        match self.launcher {
            Some(LauncherName::Srun) => add("--launcher", "srun".into()),
            Some(LauncherName::Ssh) => add("--launcher", "ssh".into()),
            None => {}
        }
        self.network.iter().for_each(|network| add("--network", network.to_string().into()));
        self.ssh_option.iter().for_each(|option| add("--ssh-option", option.into()));
        self.program.iter().for_each(|program| add("--program", program.into()));
        arguments.extend(self.overrides.to_arguments().map(OsString::from));
        arguments
    }

    /// Returns the directory in which the volume gets one of its own.
    ///
    /// # Errors
    /// The path is not UTF-8.
    pub fn find_scratch(&self) -> CommandResult<PathBuf> {
        find_scratch(self.scratch.as_deref())
    }

    /// Returns how the hosts of a job are reached.
    pub fn access_hosts(&self, job: &BatchJob) -> SshAccess {
        let is_srun = match self.launcher {
            Some(name) => name == LauncherName::Srun,
            None => job.system == BatchSystem::Slurm && is_in_path("srun"),
        };
        let launcher = match job.system {
            _ if is_srun => HostLauncher::Srun(job.id.clone()),
            BatchSystem::Pbs => HostLauncher::PbsSsh(job.id.clone()),
            BatchSystem::Slurm => HostLauncher::HeldSsh,
        };
        let (options, program) = (self.ssh_option.clone(), self.program.clone());
        SshAccess { launcher, options, program, network: self.network }
    }

    /// Opens the directory of the volume with its configuration. Writes nothing.
    ///
    /// # Errors
    /// Those of the configuration.
    pub fn open_dir(&self, dir: &Path) -> CommandResult<VolumeDir> {
        let mut overrides = self.overrides.clone();
        let key = find_key(name::MOUNT_PATH).expect("a key of the table");
        overrides.0.push((key, mount_path(dir).display().to_string()));
        VolumeArgs { dir: Some(dir.to_owned()), config: None, overrides }.open()
    }
}

/// Returns the directory in which a job's volume gets one of its own: `named`, or `TMPDIR`, or
/// `/tmp`.
///
/// # Errors
/// The path is not UTF-8.
pub fn find_scratch(named: Option<&Path>) -> CommandResult<PathBuf> {
    let of_job = || std::env::var_os("TMPDIR").filter(|dir| !dir.is_empty()).map(PathBuf::from);
    let scratch = named.map(Path::to_owned).or_else(of_job).unwrap_or_else(|| "/tmp".into());
    let scratch = std::path::absolute(&scratch).context(|| scratch.display().to_string())?;
    match scratch.to_str() {
        Some(_) => Ok(scratch),
        None => Err(CommandFailure::usage(format!("{} is not UTF-8", scratch.display()))
            .try_this("name another directory: --scratch DIR")),
    }
}

/// Returns the mount point of a job's volume, the same on each host.
pub fn mount_path(dir: &Path) -> PathBuf {
    dir.join(MOUNT_DIR)
}

/// Returns the batch job in which this process runs.
///
/// # Errors
/// There is none, or its hosts are not known.
pub fn find_job() -> CommandResult<BatchJob> {
    let read = |path: &str| {
        use std::io::Read;
        let mut text = String::new();
        let read = std::fs::File::open(path)
            .and_then(|file| file.take(HOSTFILE_MAX).read_to_string(&mut text));
        read.map(|_| text).map_err(|e| e.to_string())
    };
    BatchJob::find_in(|name| std::env::var(name).ok(), read).map_err(|error| match error {
        BatchJobError::Absent => {
            CommandFailure::usage("this is no batch job").because(error).try_this(
                "call it in a job of Slurm (sbatch, salloc) or PBS (qsub); or start a volume \
                 outside of jobs: tatami up --hosts LIST",
            )
        }
        _ => CommandFailure::usage("the hosts of the batch job are not known").because(error),
    })
}

fn is_in_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}
