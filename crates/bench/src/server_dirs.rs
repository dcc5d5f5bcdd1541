//! Directories on different servers, for renames between them.

use crate::error::{BenchError, volume_error};
use std::collections::BTreeMap;
use tatami_client::Client;
use tatami_wire::meta::InodeTemplate;
use tatami_wire::{Cred, Errno, ExecutorId, Ino};

/// Most directories that are made to find two on different servers.
const DIRS_MAX: usize = 64;

/// Two directories on one server, each with a file in it, and one more on another server.
pub struct ServerDirs {
    /// Two on one server.
    pub here: [Ino; 2],
    /// One on another.
    pub there: Ino,
}

/// Creates directories until there are three such ones.
///
/// # Errors
/// A directory or file that cannot be made, and a volume that has all directories on one server.
pub fn find_server_dirs(client: &Client, cred: &Cred) -> Result<ServerDirs, BenchError> {
    let found = make_server_dirs(client, cred).map_err(volume_error("creating", b"dir"))?;
    found.ok_or_else(|| {
        let problem = format!("has all of {DIRS_MAX} directories on one server");
        BenchError::Program { program: "tatami up".into(), problem }
    })
}

fn make_server_dirs(client: &Client, cred: &Cred) -> Result<Option<ServerDirs>, Errno> {
    let map = client.map();
    let mut found: BTreeMap<ExecutorId, Vec<Ino>> = BTreeMap::new();
    for i in 0..DIRS_MAX {
        let name = format!("dir.{i}");
        let new = |dir, name: &str, node| {
            client.create(cred, dir, name.as_bytes(), node, 0o755, 0, true, None)
        };
        let dir = new(Ino::ROOT, &name, InodeTemplate::Dir)?.attr.ino;
        new(dir, "one", InodeTemplate::File(client.new_layout()))?;
        let Some(server) = map.owner(dir.owner_shard()) else { continue };
        found.entry(server).or_default().push(dir);
        let here = found
            .iter()
            .find_map(|(server, dirs)| Some((*server, [*dirs.first()?, *dirs.get(1)?])));
        let Some((server, here)) = here else { continue };
        if let Some(there) =
            found.iter().find(|(other, _)| **other != server).and_then(|(_, dirs)| dirs.first())
        {
            return Ok(Some(ServerDirs { here, there: *there }));
        }
    }
    Ok(None)
}
