//! `tatami where --lost`: the files that need a node which does not answer.
//!
//! The command waits for no such node. A file or directory whose inode is there is listed without
//! a look at it, and so is a directory with names there.

use crate::error::CommandResult;
use crate::json::{NameFields, serialize_wide};
use crate::keys::{find_key, name};
use crate::session::{FoundPath, VolumeSessions};
use crate::status;
use crate::term::{self, HEAD, TermOutput};
use crate::volume_dir::VolumeArgs;
use crate::volume_path::AnyPath;
use serde::Serialize;
use std::io::Write;
use tatami_client::tree::{VolumeTree, join_path};
use tatami_cluster::VolumeFile;
use tatami_wire::meta::DirEntry;
use tatami_wire::{Attr, Errno, Ino, InodeKind, NodeId, READDIR_MAX};

/// Longest wait for a node that stops answering during the search, in seconds.
const SILENCE_SEC: &str = "2";

/// What of a file or directory cannot be reached.
#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum LostPart {
    /// Bytes of the file.
    Bytes,
    /// The inode: its attributes, and where the bytes are.
    Inode,
    /// Names in the directory.
    Names,
}

#[derive(Serialize)]
struct AffectedFile {
    #[serde(flatten)]
    path: NameFields,
    lost: LostPart,
    #[serde(serialize_with = "serialize_wide")]
    size: u64,
}

/// The result. `--json` prints it.
#[derive(Serialize)]
struct AffectedReport {
    volume: String,
    /// The nodes that do not answer.
    away: Vec<String>,
    affected: Vec<AffectedFile>,
}

/// Lists the files below `paths` that need a node which does not answer; without paths, those of
/// the whole volume.
///
/// # Errors
/// No node answers, or a path does not exist.
pub fn list_affected(at: &VolumeArgs, paths: &[AnyPath], json: bool) -> CommandResult {
    let mut at = at.clone();
    if let Some(key) = find_key(name::CLIENT_PATIENCE) {
        at.overrides.0.push((key, SILENCE_SEC.to_owned()));
    }
    let place = at.open()?;
    let all = [AnyPath::Volume(b"/".to_vec())];
    let paths = if paths.is_empty() { &all[..] } else { paths };
    let mut sessions = VolumeSessions::new(&at);
    let mut out = TermOutput::new();
    let mut report = None;
    for any in paths {
        let FoundPath { tree, volume, path } = sessions.find_path(any)?;
        let away = find_away(&place, &volume);
        let names = away.iter().map(|node| volume.node_name(*node)).collect();
        let (volume, affected) = (volume.name.clone(), Vec::new());
        let report = report.get_or_insert(AffectedReport { volume, away: names, affected });
        let mut search = AffectedSearch { tree, away, found: Vec::new() };
        if !search.away.is_empty() {
            search.visit_path(any, &path)?;
        }
        report.affected.append(&mut search.found);
    }
    let Some(report) = report else { return Ok(()) };
    if json {
        out.write_json(&report)?;
    } else {
        print_affected(&mut out, &report)?;
    }
    out.flush()?;
    Ok(())
}

fn find_away(place: &crate::volume_dir::VolumeDir, volume: &VolumeFile) -> Vec<NodeId> {
    let answers = status::ask_all_nodes(place, volume);
    let nodes = volume.nodes.iter().zip(answers).filter(|(_, answer)| answer.is_err());
    nodes.map(|(entry, _)| NodeId(entry.id)).collect()
}

struct AffectedSearch {
    tree: VolumeTree,
    away: Vec<NodeId>,
    found: Vec<AffectedFile>,
}

impl AffectedSearch {
    fn visit_path(&mut self, any: &AnyPath, path: &[u8]) -> CommandResult {
        let attr = self.tree.stat(path, true);
        let attr = attr.map_err(|e| any.operation_failure("cannot look at", e))?;
        if attr.kind != InodeKind::Dir {
            self.visit_file(path, &attr);
            return Ok(());
        }
        let mut todo = vec![(path.to_vec(), attr.ino)];
        while let Some((path, ino)) = todo.pop() {
            if self.is_inode_away(ino) {
                self.record_path(&path, LostPart::Names, 0);
                continue;
            }
            for entry in self.list_dir(&path, ino) {
                let path = join_path(&path, &entry.name);
                match entry.kind {
                    InodeKind::Dir => todo.push((path, entry.ino)),
                    InodeKind::File => self.visit_entry(&path, &entry),
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// Returns the entries of a directory. Where a part of its names is away, the rest.
    fn list_dir(&mut self, path: &[u8], ino: Ino) -> Vec<DirEntry> {
        let (mut all, mut after) = (Vec::new(), 0);
        loop {
            let client = self.tree.client();
            let part = client.read_dir(self.tree.cred(), ino, after, READDIR_MAX, true);
            match part {
                Ok(part) => {
                    after = part.entries.last().map_or(after, |entry| entry.cookie);
                    all.extend(part.entries);
                    if part.end {
                        return all;
                    }
                }
                // It was removed meanwhile.
                Err(Errno::ENOENT) => return all,
                Err(_) => {
                    self.record_path(path, LostPart::Names, 0);
                    return all;
                }
            }
        }
    }

    fn visit_entry(&mut self, path: &[u8], entry: &DirEntry) {
        if let Some(attr) = &entry.attr {
            return self.visit_file(path, attr);
        }
        if self.is_inode_away(entry.ino) {
            return self.record_path(path, LostPart::Inode, 0);
        }
        match self.tree.client().getattr(self.tree.cred(), entry.ino) {
            Ok(attr) => self.visit_file(path, &attr),
            Err(Errno::ENOENT | Errno::ESTALE) => {}
            Err(_) => self.record_path(path, LostPart::Inode, 0),
        }
    }

    fn visit_file(&mut self, path: &[u8], attr: &Attr) {
        if attr.kind != InodeKind::File || attr.size == 0 {
            return;
        }
        match self.tree.client().has_object_on(attr, &self.away) {
            Ok(false) | Err(Errno::ENOENT | Errno::ESTALE) => {}
            Ok(true) => self.record_path(path, LostPart::Bytes, attr.size),
            Err(_) => self.record_path(path, LostPart::Inode, attr.size),
        }
    }

    fn is_inode_away(&self, ino: Ino) -> bool {
        let owner = self.tree.client().map().owner(ino.owner_shard());
        owner.is_some_and(|executor| self.away.contains(&executor.node))
    }

    fn record_path(&mut self, path: &[u8], lost: LostPart, size: u64) {
        self.found.push(AffectedFile { path: NameFields::new("path", path), lost, size });
    }
}

fn print_affected(out: &mut TermOutput, report: &AffectedReport) -> CommandResult {
    if report.away.is_empty() {
        writeln!(out, "All nodes answer: no file is affected.")?;
        return Ok(());
    }
    for file in &report.affected {
        let path = AnyPath::Volume(file.path.bytes().to_vec()).to_string();
        let path = out.paint_text(HEAD, &path);
        match file.lost {
            LostPart::Bytes => writeln!(out, "{path}: bytes, of {}", term::format_size(file.size)),
            LostPart::Inode => writeln!(out, "{path}: its inode"),
            LostPart::Names => writeln!(out, "{path}: names in it"),
        }?;
    }
    let count = match report.affected.len() {
        0 => "No file or directory needs".to_owned(),
        1 => "1 file or directory needs".to_owned(),
        count => format!("{count} files and directories need"),
    };
    writeln!(out, "{count} nodes that do not answer: {}", report.away.join(", "))?;
    Ok(())
}
