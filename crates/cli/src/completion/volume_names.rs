//! Names of a volume for completion: asked with a bound, since the user waits for the cursor.

use super::cursor::NamedVolume;
use crate::volume_dir::{VolumeArgs, VolumeDir};
use crate::volume_path::connect_tree;
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::{Duration, Instant};
use tatami_client::tree::VolumeTree;
use tatami_wire::{InodeKind, READDIR_MAX};

/// Longest time from the question to the candidates. A daemon that is down, stopped or busy costs
/// no more.
const ANSWER_TIME: Duration = Duration::from_millis(450);
/// Time after which no more entries of a directory are asked for, so that those read are offered.
const READ_TIME: Duration = Duration::from_millis(300);
/// Most candidates.
const CANDIDATES_MAX: usize = 2000;

impl NamedVolume {
    fn open_dir(&self) -> Option<VolumeDir> {
        let variable = |name: &str| std::env::var_os(name).map(PathBuf::from);
        let at = VolumeArgs {
            dir: self.dir.clone().or_else(|| variable("TATAMI_DIR")),
            config: self.config.clone().or_else(|| variable("TATAMI_CONFIG")),
            ..VolumeArgs::default()
        };
        at.open().ok()
    }
}

/// Returns the names of the volume's nodes; none if this user may not read them.
pub fn node_names(volume: &NamedVolume) -> Vec<String> {
    let place = volume.open_dir();
    let file = place.and_then(|place| place.load_volume().ok());
    file.map(|file| file.nodes.into_iter().map(|node| node.name).collect()).unwrap_or_default()
}

/// Returns the paths in the volume that begin with `typed`, spelled as that; directories end in a
/// slash. Returns none if the volume does not answer in time.
pub fn matching_paths(volume: &NamedVolume, typed: &[u8]) -> Vec<Vec<u8>> {
    let Some(place) = volume.open_dir() else { return Vec::new() };
    let typed = typed.to_vec();
    let (sender, receiver) = mpsc::channel();
    let ask = move || {
        let found = find_paths(&place, &typed).unwrap_or_default();
        // The user may have waited long enough.
        let _ = sender.send(found);
    };
    // The end of this process ends the thread, wherever it waits.
    match std::thread::Builder::new().name("names".into()).spawn(ask) {
        Ok(_) => receiver.recv_timeout(ANSWER_TIME).unwrap_or_default(),
        Err(_) => Vec::new(),
    }
}

fn find_paths(place: &VolumeDir, typed: &[u8]) -> Option<Vec<Vec<u8>>> {
    let begin = Instant::now();
    let colon = typed.iter().position(|byte| *byte == b':')? + 1;
    let head = typed.iter().rposition(|byte| *byte == b'/').map_or(colon, |slash| slash + 1);
    let (head, begun) = typed.split_at(head.max(colon));
    let dir = [b"/", &head[colon..]].concat();
    let tree = connect_tree(place, None).ok()?;
    let mut found = Vec::new();
    let complete = read_names(&tree, &dir, begin, &mut |name, is_dir| {
        let hidden = name.starts_with(b".") && !begun.starts_with(b".");
        if !name.starts_with(begun) || hidden {
            return true;
        }
        let end: &[u8] = if is_dir { b"/" } else { b"" };
        found.push([head, name, end].concat());
        found.len() < CANDIDATES_MAX
    })?;
    found.sort();
    if !complete {
        // The shell inserts what all candidates begin with. Those that are missing may go on in
        // another way, so this one goes on in no way that others do.
        found.push([typed, "…".as_bytes()].concat());
    }
    Some(found)
}

/// Passes the entries of a directory to `take`, until it returns false or the time is up. Returns
/// whether that were all.
fn read_names(
    tree: &VolumeTree,
    dir: &[u8],
    begin: Instant,
    take: &mut dyn FnMut(&[u8], bool) -> bool,
) -> Option<bool> {
    let dir = tree.stat(dir, true).ok()?;
    let mut after = 0;
    loop {
        let part = tree.client().read_dir(tree.cred(), dir.ino, after, READDIR_MAX, false).ok()?;
        for entry in &part.entries {
            if !take(&entry.name, entry.kind == InodeKind::Dir) {
                return Some(false);
            }
        }
        let next = part.entries.last().map_or(after, |entry| entry.cookie);
        if part.end || next <= after {
            return Some(true);
        }
        after = next;
        if begin.elapsed() > READ_TIME {
            return Some(false);
        }
    }
}
