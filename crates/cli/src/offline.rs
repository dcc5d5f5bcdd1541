//! A volume with stopped daemons, served to this process alone. All its nodes run in this process,
//! at addresses and sockets that no other process knows. The locks of the data directories keep
//! others from starting a daemon meanwhile.

use crate::daemon_files;
use crate::error::{CommandFailure, CommandResult, FailureContext};
use crate::keys::name;
use crate::ports;
use crate::volume_dir::VolumeDir;
use std::path::Path;
use std::sync::Arc;
use tatami_client::{Client, ClientOptions, Endpoint};
use tatami_cluster::{KeyFile, VolumeFile};
use tatami_node::{NodeDaemon, NodeOptions};
use tatami_wire::NodeId;
use tempfile::TempDir;

/// The nodes of a volume within this process. Dropping it stops them.
pub struct OfflineVolume {
    nodes: Vec<NodeDaemon>,
    /// The directory of their sockets, removed at the end.
    _sockets: TempDir,
}

impl OfflineVolume {
    /// Starts all nodes, and connects to them.
    ///
    /// # Errors
    /// A daemon of the volume runs, a data directory is not on this machine, or a node does not
    /// start.
    pub fn start_nodes(
        place: &VolumeDir,
        volume: &VolumeFile,
    ) -> CommandResult<(OfflineVolume, Arc<Client>)> {
        for entry in &volume.nodes {
            check_directory(
                place,
                &entry.name,
                &entry.dir,
                daemon_files::running_daemon(entry).is_some(),
            )?;
        }
        let key =
            KeyFile::load(&place.key_file()).map_err(|e| CommandFailure::new(e.to_string()))?;
        let sockets = tempfile::Builder::new().prefix("tatami-offline-").tempdir();
        let sockets = sockets.context(|| "cannot make a directory for sockets".to_owned())?;
        let socket_of = |node: u16| sockets.path().join(node.to_string());
        let mut map = volume.map();
        let count = u16::try_from(map.nodes.len()).unwrap_or(u16::MAX);
        for (node, port) in map.nodes.iter_mut().zip(ports::find_free_ports("127.0.0.1", count)?) {
            node.address = format!("127.0.0.1:{port}");
            node.socket = socket_of(node.id.0).display().to_string();
        }
        let mut nodes = Vec::with_capacity(volume.nodes.len());
        for entry in &volume.nodes {
            let mut options =
                NodeOptions::new(entry.dir.clone(), map.clone(), NodeId(entry.id), key.clone());
            options.lease = place.config.duration_value(name::NODE_LEASE);
            options.durability = volume.durability;
            options.version = env!("CARGO_PKG_VERSION").to_owned();
            nodes.push(NodeDaemon::start(options).map_err(|e| {
                CommandFailure::new(format!("{} can't be opened for the check", entry.name))
                    .because(e)
            })?);
        }
        let home = volume.nodes.first().map_or(0, |node| node.id);
        let options = ClientOptions {
            key: Some(key),
            volume: Some(volume.volume),
            patience: place.config.duration_value(name::CLIENT_PATIENCE),
            ..ClientOptions::new(Endpoint::Unix(socket_of(home)))
        };
        let client = Client::connect(options).map_err(|e| {
            CommandFailure::new("the volume can't be opened for the check").because(e)
        })?;
        Ok((OfflineVolume { nodes, _sockets: sockets }, Arc::new(client)))
    }
}

impl Drop for OfflineVolume {
    fn drop(&mut self) {
        // All at once: one may wait for another while it stops.
        self.nodes.iter().for_each(|node| node.stop_handle().stop());
    }
}

fn check_directory(place: &VolumeDir, node: &str, dir: &Path, is_running: bool) -> CommandResult {
    if is_running && !place.is_own() {
        return Err(place.owner_failure("not permitted: --offline needs stopped daemons"));
    }
    if is_running {
        return Err(CommandFailure::degraded(format!("{node} is running"))
            .because("--offline works only while all daemons are stopped")
            .try_this(format!(
                "omit --offline: tatami fsck{0}; or stop them: tatami down{0}",
                place.dir_flag()
            )));
    }
    if !dir.join("FORMAT").exists() {
        return Err(CommandFailure::degraded(format!("the data of {node} is not there"))
            .because(format!("{} is no data directory", dir.display()))
            .try_this(
                "run the check where the directories of all nodes are, or can be mounted; or \
                 start the daemons, and run it without --offline",
            ));
    }
    Ok(())
}
