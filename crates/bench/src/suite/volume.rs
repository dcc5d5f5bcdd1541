//! A volume for the time of the suite, started and stopped by the `tatami`
//! command as a user would.

use crate::error::{BenchError, at};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tatami_client::{Client, Endpoint, Options};
use tatami_wire::admin::{AdminCall, AdminReply, NodeStatus};
use tatami_wire::{NodeId, VolumeKey};

/// A running volume with a mount for each node. Dropping it stops it.
pub struct Volume {
    program: PathBuf,
    dir: PathBuf,
    client: Client,
    nodes: u16,
}

impl Volume {
    /// Starts `nodes` daemons, each with a mount, below `dir`, with `program` as the `tatami` command.
    ///
    /// # Errors
    /// What `tatami up` says.
    pub fn start(program: &Path, dir: &Path, nodes: u16) -> Result<Volume, BenchError> {
        std::fs::create_dir_all(dir).map_err(at("creating", dir))?;
        // What an interrupted run left runs still, or would be taken for ours.
        stop(program, dir);
        std::fs::remove_dir_all(dir).map_err(at("removing", dir))?;
        std::fs::create_dir_all(dir).map_err(at("creating", dir))?;
        let mut up = Command::new(program);
        up.arg("up").arg("--dir").arg(dir).args(["--nodes", &nodes.to_string()]);
        up.arg("--mount").arg(dir.join("mnt"));
        let said = up.stdin(Stdio::null()).output().map_err(at("starting", program))?;
        if !said.status.success() {
            stop(program, dir);
            let text = String::from_utf8_lossy(&said.stderr);
            let problem = format!("does not start a volume: {}", text.trim());
            return Err(BenchError::Program { program: "tatami up".into(), problem });
        }
        match options(dir).and_then(|o| Ok(Client::connect(o)?)) {
            Ok(client) => Ok(Volume { program: program.into(), dir: dir.into(), client, nodes }),
            Err(e) => {
                stop(program, dir);
                Err(e)
            }
        }
    }

    /// The folder of the volume, for `--dir` of the command.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Where the mount of a node is.
    pub fn mount(&self, node: u16) -> PathBuf {
        self.dir.join("mnt").join(format!("node{node}"))
    }

    /// Where a node keeps its objects.
    pub fn objects(&self, node: u16) -> PathBuf {
        self.dir.join(format!("node{node}")).join("objects")
    }

    /// How to reach the volume from node 0.
    ///
    /// # Errors
    /// A key that can't be read.
    pub fn options(&self) -> Result<Options, BenchError> {
        options(&self.dir)
    }

    /// A session with the volume, from node 0.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The condition of a node.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn status(&self, node: u16) -> Result<NodeStatus, BenchError> {
        match self.client.admin(NodeId(node), AdminCall::Status) {
            Ok(AdminReply::Status(status)) => Ok(*status),
            Ok(_) => Err(tatami_wire::Errno::EPROTO),
            Err(e) => Err(e),
        }
        .map_err(crate::error::on("asking for the status of", format!("node{node}").as_bytes()))
    }

    /// Process numbers of all daemons.
    ///
    /// # Errors
    /// When one does not answer.
    pub fn daemons(&self) -> Result<Vec<u32>, BenchError> {
        (0..self.nodes).map(|n| Ok(self.status(n)?.pid)).collect()
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        stop(&self.program, &self.dir);
    }
}

fn options(dir: &Path) -> Result<Options, BenchError> {
    let mut options = Options::new(Endpoint::Unix(dir.join("node0/socket")));
    let path = dir.join("key");
    let key = std::fs::read_to_string(&path).map_err(at("reading", &path))?;
    let key = VolumeKey::from_hex(&key).map_err(|e| BenchError::Usage(e.to_string()))?;
    options.key = Some(key);
    Ok(options)
}

/// Best effort: where nothing runs there is nothing to stop.
fn stop(program: &Path, dir: &Path) {
    let mut down = Command::new(program);
    down.arg("down").arg("--dir").arg(dir).stdin(Stdio::null());
    let _ = down.stdout(Stdio::null()).stderr(Stdio::null()).status();
}
