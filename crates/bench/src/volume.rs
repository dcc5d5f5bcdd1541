//! A volume for the time of a measurement. The `tatami` command starts and stops it, as a user
//! would.

use crate::clock::now_ns;
use crate::error::{BenchError, path_error};
use crate::missing_dirs::make_volume_dir;
use crate::volume_access::{VolumeAccess, own_cred};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use tatami_client::Client;
use tatami_client::tree::VolumeTree;
use tatami_wire::admin::{AdminCall, AdminReply, NodeStatus};
use tatami_wire::{Ino, NodeId};

/// A running volume with a mount for each node. Dropping it stops it.
pub struct BenchVolume {
    program: PathBuf,
    dir: PathBuf,
    client: Client,
    access: VolumeAccess,
    nodes: u16,
}

impl BenchVolume {
    /// Starts `nodes` daemons, each with a mount, below `dir`, with `program` as the `tatami`
    /// command. `shards` names the nodes that have names, as `volume.shards` does.
    ///
    /// # Errors
    /// The message of `tatami up`.
    pub fn start(
        program: &Path,
        dir: &Path,
        nodes: u16,
        shards: &str,
    ) -> Result<BenchVolume, BenchError> {
        BenchVolume::start_with_executors(program, dir, nodes, shards, 1)
    }

    /// Does the same as [`BenchVolume::start`], with TLS between the nodes.
    ///
    /// # Errors
    /// The message of `tatami up`.
    pub fn start_encrypted(
        program: &Path,
        dir: &Path,
        nodes: u16,
        shards: &str,
    ) -> Result<BenchVolume, BenchError> {
        BenchVolume::start_with(program, dir, nodes, shards, &["--encryption", "tls"], None)
    }

    /// Does the same as [`BenchVolume::start`], with names on all nodes, and a region device of
    /// `device_len` bytes for each node: a file with all its room.
    ///
    /// # Errors
    /// The message of `tatami up`, and a disk without that room.
    pub fn start_with_regions(
        program: &Path,
        dir: &Path,
        nodes: u16,
        device_len: u64,
    ) -> Result<BenchVolume, BenchError> {
        let device = dir.join("regions-{node}").display().to_string();
        let options = ["--node-region-device", &device];
        BenchVolume::start_with(program, dir, nodes, "all", &options, Some(device_len))
    }

    /// Does the same as [`BenchVolume::start`], with `executors` executors on each node that has
    /// names.
    ///
    /// # Errors
    /// The message of `tatami up`.
    pub fn start_with_executors(
        program: &Path,
        dir: &Path,
        nodes: u16,
        shards: &str,
        executors: u8,
    ) -> Result<BenchVolume, BenchError> {
        let executors = executors.to_string();
        BenchVolume::start_with(program, dir, nodes, shards, &["--executors", &executors], None)
    }

    fn start_with(
        program: &Path,
        dir: &Path,
        nodes: u16,
        shards: &str,
        options: &[&str],
        region_len: Option<u64>,
    ) -> Result<BenchVolume, BenchError> {
        crate::interrupt::check_interruption()?;
        std::fs::create_dir_all(dir).map_err(path_error("creating", dir))?;
        // Daemons of an interrupted run may still run, and their files would be taken for this
        // volume's.
        stop_volume(program, dir);
        std::fs::remove_dir_all(dir).map_err(path_error("removing", dir))?;
        std::fs::create_dir_all(dir).map_err(path_error("creating", dir))?;
        for node in 0..nodes {
            if let Some(len) = region_len {
                make_reserved_file(&region_path(dir, node), len)?;
            }
        }
        let (nodes_text, mounts) = (nodes.to_string(), dir.join("mnt").display().to_string());
        let more = ["--nodes", &nodes_text, "--mount", &mounts, "--volume-shards", shards];
        let more = [&more[..], options].concat();
        start_volume(program, dir, &more).inspect_err(|_| stop_volume(program, dir))?;
        let opened = VolumeAccess::from_dir(dir).and_then(|a| Ok((a.connect_client()?, a)));
        let (client, access) = opened.inspect_err(|_| stop_volume(program, dir))?;
        Ok(BenchVolume { program: program.into(), dir: dir.into(), client, access, nodes })
    }

    /// Returns the folder of the volume, for `--dir` of the command.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the number of nodes.
    pub fn nodes(&self) -> u16 {
        self.nodes
    }

    /// Returns the path of a node's mount.
    pub fn mount_path(&self, node: u16) -> PathBuf {
        self.dir.join("mnt").join(format!("node{node}"))
    }

    /// Returns the directory of a node's objects.
    pub fn objects_path(&self, node: u16) -> PathBuf {
        self.dir.join(format!("node{node}")).join("objects")
    }

    /// Sets a policy of a directory of the volume, which is made if it is missing. Without options
    /// the directory has none.
    ///
    /// # Errors
    /// The message of `tatami set`.
    pub fn set_policy(&self, dir: &str, options: &[&str]) -> Result<(), BenchError> {
        let tree = VolumeTree::new(Arc::new(self.access.connect_client()?), own_cred());
        make_volume_dir(&tree, dir)?;
        if options.is_empty() {
            return Ok(());
        }
        let mut set = Command::new(&self.program);
        set.arg("set").arg("--dir").arg(&self.dir).args(options).arg(format!(":{dir}"));
        let said = set.stdin(Stdio::null()).output();
        let said = said.map_err(path_error("starting", &self.program))?;
        if said.status.success() {
            return Ok(());
        }
        let text = String::from_utf8_lossy(&said.stderr);
        let problem = format!("sets no policy: {}", text.trim());
        Err(BenchError::Program { program: "tatami set".into(), problem })
    }

    /// Kills the daemon of node 0 and starts it again. Returns the seconds until it answers
    /// requests for names.
    ///
    /// # Errors
    /// The message of `tatami up`, and a volume that does not answer.
    pub fn restart_daemon(&self) -> Result<f64, BenchError> {
        let pid = self.node_status(0)?.pid;
        kill_process(pid)
            .map_err(|e| path_error("killing", Path::new(&format!("/proc/{pid}")))(e.into()))?;
        let start = now_ns();
        start_volume(&self.program, &self.dir, &[])?;
        let found = self.client.getattr(&own_cred(), Ino::ROOT);
        found.map_err(crate::error::volume_error("looking at", b"/"))?;
        Ok((now_ns() - start) as f64 / 1e9)
    }

    /// Returns the way to the volume from node 0.
    pub fn access(&self) -> VolumeAccess {
        self.access.clone()
    }

    /// Returns the way to the volume from a machine that is none of its nodes.
    pub fn tcp_access(&self) -> VolumeAccess {
        self.access().with_address(&self.client.map().nodes[0].address)
    }

    /// Returns the session with the volume, from node 0.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Returns the status of a node.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn node_status(&self, node: u16) -> Result<NodeStatus, BenchError> {
        match self.client.send_admin(NodeId(node), AdminCall::Status) {
            Ok(AdminReply::Status(status)) => Ok(*status),
            Ok(_) => Err(tatami_wire::Errno::EPROTO),
            Err(e) => Err(e),
        }
        .map_err(crate::error::volume_error(
            "asking for the status of",
            format!("node{node}").as_bytes(),
        ))
    }

    /// Returns the process numbers of all daemons.
    ///
    /// # Errors
    /// When one does not answer.
    pub fn daemon_pids(&self) -> Result<Vec<u32>, BenchError> {
        (0..self.nodes).map(|n| Ok(self.node_status(n)?.pid)).collect()
    }

    /// Returns the process numbers of all daemons and mounts.
    ///
    /// # Errors
    /// When a daemon does not answer.
    pub fn server_pids(&self) -> Result<Vec<u32>, BenchError> {
        let mut pids = self.daemon_pids()?;
        for node in 0..self.nodes {
            pids.extend(self.node_status(node)?.mounts.iter().map(|mount| mount.pid));
        }
        Ok(pids)
    }
}

impl Drop for BenchVolume {
    fn drop(&mut self) {
        stop_volume(&self.program, &self.dir);
    }
}

/// Returns the path of the region device of a node, as the option of `tatami up` names it.
fn region_path(dir: &Path, node: u16) -> PathBuf {
    dir.join(format!("regions-node{node}"))
}

/// Makes a file that has all its room on the disk.
fn make_reserved_file(path: &Path, len: u64) -> Result<(), BenchError> {
    let make = || -> std::io::Result<()> {
        let file = std::fs::File::create_new(path)?;
        Ok(rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, len)?)
    };
    make().map_err(path_error("making", path))
}

fn start_volume(program: &Path, dir: &Path, more: &[&str]) -> Result<(), BenchError> {
    let mut up = Command::new(program);
    up.arg("up").arg("--dir").arg(dir).args(more);
    let said = up.stdin(Stdio::null()).output().map_err(path_error("starting", program))?;
    if said.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&said.stderr);
    let problem = format!("does not start a volume: {}", text.trim());
    Err(BenchError::Program { program: "tatami up".into(), problem })
}

/// Kills a process and waits until it has ended.
fn kill_process(pid: u32) -> rustix::io::Result<()> {
    use rustix::event::{PollFd, PollFlags, poll};
    use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(rustix::io::Errno::SRCH)?;
    let process = pidfd_open(pid, PidfdFlags::empty())?;
    pidfd_send_signal(&process, Signal::KILL)?;
    poll(&mut [PollFd::new(&process, PollFlags::IN)], None).map(drop)
}

/// Stops the volume, as far as it runs. The second attempt uses force: the volume is the suite's
/// own, so a process that happens to look into the mount must not keep it.
fn stop_volume(program: &Path, dir: &Path) {
    for more in [&[][..], &["--force"]] {
        let mut down = Command::new(program);
        down.arg("down").arg("--dir").arg(dir).args(more).stdin(Stdio::null());
        let ended = down.stdout(Stdio::null()).stderr(Stdio::null()).status();
        if ended.is_ok_and(|status| status.success()) {
            return;
        }
    }
}
