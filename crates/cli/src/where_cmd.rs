//! `tatami where`: on which nodes the bytes of files lie.

use crate::container_cmd;
use crate::error::{Context, Failure, Outcome};
use crate::mountinfo::{self, FS_TYPE};
use crate::mounts::MountRecord;
use crate::place::{At, Place};
use crate::term::{self, DIM, HEAD, Out, Table};
use crate::volume_path::{AnyPath, tree};
use anstyle::Style;
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use tatami_client::tree::{Tree, join, whereabouts};
use tatami_cluster::VolumeFile;
use tatami_wire::{Attr, Errno, Kind, NodeId, Piece};

/// `tatami where`
#[derive(Debug, clap::Args)]
pub struct WhereArgs {
    #[command(flatten)]
    at: At,
    /// As one JSON object
    #[arg(long)]
    json: bool,
    /// On a mount, or in the volume with a colon in front. Of a directory, all
    /// files below it are summed up by node
    #[arg(required = true)]
    paths: Vec<AnyPath>,
}

/// What is told of a file, or of all files below a directory.
#[derive(Serialize)]
struct Told {
    path: String,
    kind: &'static str,
    ino: u64,
    size: u64,
    /// How many files: 1, or those below a directory.
    files: u64,
    extents: Vec<ExtentTold>,
    /// Bytes and files by node.
    nodes: Vec<NodeTold>,
}

#[derive(Serialize)]
struct ExtentTold {
    offset: u64,
    len: u64,
    node: u16,
    name: String,
    address: String,
    piece: u32,
    /// The backing file, on that node.
    object: String,
}

#[derive(Serialize)]
struct NodeTold {
    node: u16,
    name: String,
    files: u64,
    bytes: u64,
}

/// Tells where files lie.
///
/// # Errors
/// A path that is neither in the volume nor on a mount, or not there.
pub fn run(args: &WhereArgs) -> Outcome {
    let mut out = Out::new();
    let mut told = Vec::new();
    let mut session: Option<(Place, Tree, VolumeFile)> = None;
    let mut containers = Vec::new();
    for any in &args.paths {
        if let AnyPath::Local(path) = any
            && tatami_tiled::is_container(path)
        {
            containers.extend(container_cmd::locate(&mut out, path, args.json)?);
            continue;
        }
        let (dir, node, path) = locate(any)?;
        let fits = session
            .as_ref()
            .is_some_and(|(place, ..)| dir.is_none() || dir.as_ref() == Some(&place.dir));
        if !fits {
            let mut at = args.at.clone();
            if dir.is_some() {
                at.dir = dir;
            }
            let place = at.open()?;
            crate::log::start(&place.config, false)?;
            let volume = place.volume()?;
            // The node of the mount, if it can be reached; else any.
            let tree = node.and_then(|n| tree(&place, Some(n)).ok());
            let tree = match tree {
                Some(tree) => tree,
                None => crate::volume_path::tree(&place, None)?,
            };
            session = Some((place, tree, volume));
        }
        let (_, tree, volume) = session.as_ref().expect("made above");
        let one = look(tree, volume, any, &path)?;
        if !args.json {
            print(&mut out, &one, any, told.is_empty())?;
        }
        told.push(one);
    }
    if args.json {
        let volume = session.as_ref().map(|(.., volume)| volume.name.clone());
        let files = told.iter().map(serde_json::to_value).filter_map(Result::ok);
        let files: Vec<_> = files.chain(containers).collect();
        out.json(&serde_json::json!({ "volume": volume, "files": files }))?;
    }
    out.flush()?;
    Ok(())
}

type Located = (Option<std::path::PathBuf>, Option<NodeId>, Vec<u8>);

/// The volume's directory, the mount's node and the path within the volume.
fn locate(any: &AnyPath) -> Outcome<Located> {
    let local = match any {
        AnyPath::Volume(path) => return Ok((None, None, path.clone())),
        AnyPath::Local(path) => path,
    };
    let found = local.canonicalize().context(|| format!("cannot find {any}"))?;
    let mount =
        mountinfo::containing(&found).filter(|m| m.fs_type == FS_TYPE).ok_or_else(|| {
            Failure::usage(format!("{any} is not on a mount of Tatami")).try_this(
            "tatami status lists the mounts; a path in the volume begins with a colon: :/dir/file",
        )
        })?;
    // It may be a mount bound to another place: any with a record will do.
    let record = mountinfo::table()
        .iter()
        .filter(|m| m.device == mount.device)
        .find_map(|m| MountRecord::load(&m.path))
        .ok_or_else(|| {
            Failure::new(format!("which volume {} shows is not known", mount.path.display()))
                .try_this("name it: --dir DIR, and the path within it: :/dir/file")
        })?;
    let inside = |p: &Path| p.strip_prefix("/").unwrap_or(p).to_owned();
    let below = found.strip_prefix(&mount.path).unwrap_or(Path::new(""));
    let path = Path::new("/").join(inside(&mount.root)).join(below);
    Ok((Some(record.dir), Some(NodeId(record.node)), path.as_os_str().as_bytes().to_vec()))
}

fn look(tree: &Tree, volume: &VolumeFile, any: &AnyPath, path: &[u8]) -> Outcome<Told> {
    let failed = |e| any.failed("cannot look at", e);
    let attr = tree.stat(path, true).map_err(failed)?;
    let mut by_node = BTreeMap::new();
    let mut told = Told {
        path: String::from_utf8_lossy(path).into_owned(),
        kind: "file",
        ino: attr.ino.0,
        size: attr.size,
        files: 1,
        extents: Vec::new(),
        nodes: Vec::new(),
    };
    match attr.kind {
        Kind::File => {
            told.extents = extents(volume, &attr);
            count(&mut by_node, &attr);
        }
        Kind::Dir => {
            told.kind = "directory";
            (told.size, told.files) = sum(tree, path, &mut by_node).map_err(failed)?;
        }
        _ => {
            let what = format!("{any} is a special file: it has no bytes");
            return Err(Failure::new(what));
        }
    }
    told.nodes = by_node
        .into_iter()
        .map(|(node, (files, bytes))| NodeTold {
            node: node.0,
            name: name(volume, node),
            files,
            bytes,
        })
        .collect();
    Ok(told)
}

fn name(volume: &VolumeFile, node: NodeId) -> String {
    volume.node(node).map_or_else(|| format!("node {node}"), |n| n.name.clone())
}

type ByNode = BTreeMap<NodeId, (u64, u64)>;

fn count(by_node: &mut ByNode, attr: &Attr) {
    for (node, _) in attr.layout.pieces() {
        by_node.entry(node).or_default().0 += 1;
    }
    for run in whereabouts(attr) {
        by_node.entry(run.node).or_default().1 += run.len;
    }
}

/// Sums up all files below a directory: their bytes and their number.
fn sum(tree: &Tree, path: &[u8], by_node: &mut ByNode) -> Result<(u64, u64), Errno> {
    let mut todo = vec![path.to_vec()];
    let (mut bytes, mut files) = (0, 0);
    while let Some(path) = todo.pop() {
        let entries = match tree.read_dir(&path, true) {
            Ok(entries) => entries,
            Err(Errno::ENOENT) => continue, // removed meanwhile
            Err(e) => return Err(e),
        };
        for entry in entries {
            match (entry.kind, entry.attr) {
                (Kind::Dir, _) => todo.push(join(&path, &entry.name)),
                (Kind::File, Some(attr)) => {
                    count(by_node, &attr);
                    bytes += attr.size;
                    files += 1;
                }
                _ => {}
            }
        }
    }
    Ok((bytes, files))
}

fn extents(volume: &VolumeFile, attr: &Attr) -> Vec<ExtentTold> {
    whereabouts(attr)
        .into_iter()
        .map(|run| {
            let node = volume.node(run.node);
            let object =
                node.map(|n| tatami_node::backing_path(&n.dir, attr.ino, Piece(run.piece)));
            ExtentTold {
                offset: run.offset,
                len: run.len,
                node: run.node.0,
                name: name(volume, run.node),
                address: node.map(|n| n.address.clone()).unwrap_or_default(),
                piece: run.piece,
                object: object.map(|o| o.display().to_string()).unwrap_or_default(),
            }
        })
        .collect()
}

fn print(out: &mut Out, told: &Told, any: &AnyPath, first: bool) -> Outcome {
    let plain = Style::new();
    if !first {
        writeln!(out)?;
    }
    let title = out.paint(HEAD, &any.to_string());
    if told.kind == "directory" {
        let files = if told.files == 1 { "file" } else { "files" };
        writeln!(out, "{title}: {} {files}, {}", told.files, term::size(told.size))?;
        let mut table = Table::new(&["NODE", ">FILES", ">BYTES", "SHARE"]);
        for node in &told.nodes {
            let share = node.bytes as f64 / told.size.max(1) as f64;
            table.row([
                (node.name.clone(), plain),
                (node.files.to_string(), plain),
                (term::size(node.bytes), plain),
                (bar(share), DIM),
            ]);
        }
        if !told.nodes.is_empty() {
            out.table(&table)?;
        }
        return Ok(());
    }
    writeln!(out, "{title}: {} bytes ({})", told.size, term::size(told.size))?;
    if told.extents.is_empty() {
        let names: Vec<&str> = told.nodes.iter().map(|n| n.name.as_str()).collect();
        writeln!(out, "no bytes yet; they will lie on {}", names.join(", "))?;
        return Ok(());
    }
    let mut table = Table::new(&[">OFFSET", ">LENGTH", "NODE", "ADDRESS", "OBJECT"]);
    for extent in &told.extents {
        table.row([
            (extent.offset.to_string(), plain),
            (extent.len.to_string(), plain),
            (extent.name.clone(), HEAD),
            (extent.address.clone(), plain),
            (extent.object.clone(), DIM),
        ]);
    }
    out.table(&table)?;
    Ok(())
}

/// A share as a bar of up to 20 blocks.
fn bar(share: f64) -> String {
    format!(
        "{:3.0}% {}",
        share * 100.0,
        "█".repeat((share * 20.0).round().clamp(0.0, 20.0) as usize)
    )
}
