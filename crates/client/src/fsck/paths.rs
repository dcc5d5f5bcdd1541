//! Paths of the inodes that were found: an inode does not know its names.

use super::FsckFinding;
use crate::Client;
use std::collections::HashMap;
use tatami_wire::{Cred, Errno, Ino, InodeKind, READDIR_MAX};

/// Most directories that wait for their walk; beyond, subdirectories are not walked.
const PENDING_MAX: usize = 1_000_000;

/// Walks the whole tree for a path of each inode that still has a fault. Directories that cannot be
/// read are passed over.
pub(super) fn add_paths(client: &Client, findings: &mut [FsckFinding]) {
    let open = findings.iter_mut().filter(|finding| !finding.repaired);
    let mut wanted: HashMap<Ino, Vec<&mut FsckFinding>> = HashMap::new();
    for finding in open {
        wanted.entry(finding.ino).or_default().push(finding);
    }
    set_path(&mut wanted, Ino::ROOT, b"/");
    let mut pending = vec![(Ino::ROOT, Vec::new())];
    while let Some((dir, path)) = pending.pop()
        && !wanted.is_empty()
    {
        if let Err(error) = walk_directory(client, (dir, &path), &mut wanted, &mut pending) {
            tracing::debug!(%dir, %error, "a directory was passed over in the search for paths");
        }
    }
}

fn walk_directory(
    client: &Client,
    (dir, path): (Ino, &[u8]),
    wanted: &mut HashMap<Ino, Vec<&mut FsckFinding>>,
    pending: &mut Vec<(Ino, Vec<u8>)>,
) -> Result<(), Errno> {
    let mut after = 0;
    loop {
        let part = client.read_dir(&Cred::ROOT, dir, after, READDIR_MAX, false)?;
        let before = after;
        after = part.entries.last().map_or(after, |entry| entry.cookie);
        for entry in part.entries {
            let is_dir = entry.kind == InodeKind::Dir && pending.len() < PENDING_MAX;
            if !is_dir && !wanted.contains_key(&entry.ino) {
                continue;
            }
            let path = [path, b"/", &entry.name[..]].concat();
            set_path(wanted, entry.ino, &path);
            if is_dir {
                pending.push((entry.ino, path));
            }
        }
        // The cookie must advance: otherwise a broken directory would be asked for ever.
        if part.end || after <= before {
            return Ok(());
        }
    }
}

fn set_path(wanted: &mut HashMap<Ino, Vec<&mut FsckFinding>>, ino: Ino, path: &[u8]) {
    for finding in wanted.remove(&ino).into_iter().flatten() {
        finding.path = Some(path.to_vec());
    }
}
