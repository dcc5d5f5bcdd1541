//! MooseFS, if it is installed, as a peer to compare with: a master, a chunk server, and several
//! mounts, all of this machine.
//!
//! A chunk server refuses to reach its master by an address of the loopback range. So all processes
//! of MooseFS run in one network namespace, and its loopback device gets another address. Nothing
//! outside can reach their ports. The mounts are visible outside.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The address in the namespace; one of those for documentation.
const ADDRESS: &str = "192.0.2.1";
/// The programs that are needed. The first three come with MooseFS.
const PROGRAMS: [&str; 6] = ["mfsmaster", "mfschunkserver", "mfsmount", "unshare", "nsenter", "ip"];
/// Content of the metadata of an empty volume.
const EMPTY_METADATA: &str = "MFSM NEW";
/// The line of the master's log that says that it serves clients.
const MASTER_READY: &str = "initialized properly";
/// Longest wait for one process.
const START_WAIT: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(20);

/// A running MooseFS. Dropping it ends all its processes; the directory stays.
pub struct MooseVolume {
    dir: PathBuf,
    processes: Vec<Child>,
    mounts: Vec<PathBuf>,
}

impl MooseVolume {
    /// Starts a volume with `mounts` mounts below `dir`.
    ///
    /// # Errors
    /// A sentence with the reason why there is none.
    pub fn start(dir: &Path, mounts: usize) -> Result<MooseVolume, String> {
        let missing = PROGRAMS.into_iter().filter(|program| !is_installed(program));
        let missing: Vec<&str> = missing.collect();
        if !missing.is_empty() {
            return Err(format!(
                "not installed: {} (scripts/packages.sh peers)",
                missing.join(", ")
            ));
        }
        let mut volume = MooseVolume { dir: dir.into(), processes: Vec::new(), mounts: Vec::new() };
        // An early return drops the value, which ends the processes that were started.
        volume.start_all(mounts).map_err(|error| format!("MooseFS does not start: {error}"))?;
        Ok(volume)
    }

    fn start_all(&mut self, mounts: usize) -> io::Result<()> {
        for sub in ["master", "chunk", "disk"] {
            fs::create_dir_all(self.dir.join(sub))?;
        }
        fs::write(self.dir.join("master/metadata.mfs"), EMPTY_METADATA)?;
        fs::write(self.dir.join("exports"), "* / rw,alldirs,maproot=0:0\n")?;
        fs::write(self.dir.join("topology"), "")?;
        fs::write(self.dir.join("disks"), format!("{}\n", self.dir.join("disk").display()))?;
        let user = "WORKING_USER = root\nWORKING_GROUP = root\n";
        let path = |name: &str| self.dir.join(name).display().to_string();
        let master = format!(
            "{user}DATA_PATH = {}\nEXPORTS_FILENAME = {}\nTOPOLOGY_FILENAME = {}\n",
            path("master"),
            path("exports"),
            path("topology")
        );
        let chunk = format!(
            "{user}DATA_PATH = {}\nHDD_CONF_FILENAME = {}\nMASTER_HOST = {ADDRESS}\n",
            path("chunk"),
            path("disks")
        );
        let (master_conf, chunk_conf) = (path("master.cfg"), path("chunk.cfg"));
        fs::write(&master_conf, master)?;
        fs::write(&chunk_conf, chunk)?;

        let mut command = Command::new("unshare");
        let script = "ip link set lo up && ip address add \"$0\" dev lo && exec mfsmaster -f -c \"$1\" start";
        command.args(["--net", "sh", "-c", script, ADDRESS, &master_conf]);
        self.start_process("master", command)?;
        self.wait_until("the master serves clients", |volume| {
            let log = fs::read_to_string(volume.dir.join("master.log")).unwrap_or_default();
            log.contains(MASTER_READY)
        })?;
        let mut command = self.enter_namespace("mfschunkserver");
        command.args(["-f", "-c", &chunk_conf, "start"]);
        self.start_process("chunk", command)?;
        let parent = fs::metadata(&self.dir)?.dev();
        for number in 0..mounts {
            let name = format!("mount{number}");
            let at = self.dir.join(&name);
            fs::create_dir_all(&at)?;
            let mut command = self.enter_namespace("mfsmount");
            command.args(["-f", "-H", ADDRESS]).arg(&at);
            // Before the start: a mount that fails half-way is removed, too.
            self.mounts.push(at.clone());
            self.start_process(&name, command)?;
            self.wait_until("it is mounted and its disk has room", |_| {
                let mounted = fs::metadata(&at).is_ok_and(|found| found.dev() != parent);
                mounted && rustix::fs::statvfs(&at).is_ok_and(|space| space.f_bavail > 0)
            })?;
        }
        // Files that are removed keep their room for a day otherwise.
        let first = self.mounts.first().cloned().unwrap_or_default();
        let mut command = self.enter_namespace("mfssettrashtime");
        let said = command.args(["-r", "0"]).arg(first).stdin(Stdio::null()).output()?;
        match said.status.success() {
            true => Ok(()),
            false => Err(io::Error::other(String::from_utf8_lossy(&said.stderr).into_owned())),
        }
    }

    /// Returns a command that runs `program` in the namespace of the master.
    fn enter_namespace(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", self.processes[0].id())).arg(program);
        command
    }

    fn start_process(&mut self, name: &str, mut command: Command) -> io::Result<()> {
        let log = File::create(self.dir.join(format!("{name}.log")))?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        self.processes.push(command.spawn()?);
        Ok(())
    }

    /// Waits until something is so, at most [`START_WAIT`], and not after the end of a process.
    fn wait_until(&mut self, event: &str, is_so: impl Fn(&MooseVolume) -> bool) -> io::Result<()> {
        let start = Instant::now();
        while !is_so(self) {
            let ended =
                self.processes.iter_mut().any(|child| !matches!(child.try_wait(), Ok(None)));
            if ended || start.elapsed() > START_WAIT {
                return Err(io::Error::other(format!("in vain: {event}")));
            }
            #[expect(clippy::disallowed_methods, reason = "the programs send no event")]
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// Returns the paths of the mounts.
    pub fn mount_paths(&self) -> &[PathBuf] {
        &self.mounts
    }

    /// Returns the process numbers of servers and mounts.
    pub fn process_ids(&self) -> Vec<u32> {
        self.processes.iter().map(Child::id).collect()
    }
}

impl Drop for MooseVolume {
    fn drop(&mut self) {
        for path in &self.mounts {
            let _ = rustix::mount::unmount(path, rustix::mount::UnmountFlags::DETACH);
        }
        // The mounts first, and the master, which holds the namespace, last. Nothing of the volume
        // is needed again.
        for child in self.processes.iter_mut().rev() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Returns whether the search path has a program of this name.
fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_in_the_search_path() {
        assert!(is_installed("sh"));
        assert!(!is_installed("no such program"));
    }
}
