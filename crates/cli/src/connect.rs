//! Opens sessions with the volume. Where no node answers, the failure names cause and remedy.

use crate::absence::Absence;
use crate::error::{CommandFailure, CommandResult};
use crate::keys::name;
use crate::volume_dir::{HEALTH_TIMEOUT, VolumeDir};
use std::sync::Arc;
use tatami_client::Client;
use tatami_cluster::NodeEntry;
use tatami_wire::NodeId;

impl VolumeDir {
    /// Opens a session with the volume, with `node` as its home node. Without `node`, the first
    /// node that answers becomes the home node; those of this machine come first.
    ///
    /// # Errors
    /// No daemon answers.
    pub fn connect_client(&self, node: Option<NodeId>) -> CommandResult<Arc<Client>> {
        let volume = self.load_volume()?;
        let mut said: Vec<String> = Vec::new();
        let mut remedies: Vec<String> = Vec::new();
        let meant = |entry: &&NodeEntry| node.is_none_or(|n| n.0 == entry.id);
        // Nodes that do not reply are retried with the full timeout only when no other answers.
        let mut silent: Vec<&NodeEntry> = Vec::new();
        let mut candidates: Vec<&NodeEntry> = volume.nodes.iter().filter(meant).collect();
        // The files of a node of this machine need no network.
        candidates.sort_by_key(|entry| !self.is_here(entry));
        for entry in candidates {
            let options = self.client_options(&volume, entry)?;
            match Client::connect_within(options.patience.min(HEALTH_TIMEOUT), options) {
                Ok(client) => return Ok(Arc::new(client)),
                Err(e) if e.is_timeout() => silent.push(entry),
                Err(tatami_client::ClientError::Connect(e)) => {
                    let Absence { why, remedy, .. } = Absence::from_connect_error(self, entry, &e);
                    said.push(format!("{}: {why}", entry.name));
                    if !remedies.contains(&remedy) {
                        remedies.push(remedy);
                    }
                }
                Err(e) => said.push(format!("{}: {e}", entry.name)),
            }
        }
        for entry in silent {
            match Client::connect(self.client_options(&volume, entry)?) {
                Ok(client) => return Ok(Arc::new(client)),
                Err(_) => {
                    let Absence { why, remedy, .. } = Absence::from_timeout(
                        self,
                        entry,
                        self.config.duration_value(name::CLIENT_PATIENCE),
                    );
                    said.push(format!("{}: {why}", entry.name));
                    remedies.push(remedy);
                }
            }
        }
        remedies.push(format!("see also: tatami status{}", self.dir_flag()));
        Err(CommandFailure::degraded(match node {
            Some(_) => "the node cannot be reached".to_owned(),
            None => format!("no node of volume {} can be reached", volume.name),
        })
        .because(said.join("\n"))
        .try_this(remedies.join("\n")))
    }
}
