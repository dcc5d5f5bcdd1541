//! `tatami where`: the nodes that have the bytes of files.

use crate::container_cmd;
use crate::error::{CommandFailure, CommandResult};
use crate::json::{NameFields, serialize_wide};
use crate::lost_files;
use crate::session::{FoundPath, VolumeSessions};
use crate::term::{self, DIM, HEAD, TermOutput, TextTable};
use crate::volume_dir::VolumeArgs;
use crate::volume_path::AnyPath;
use anstyle::Style;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::PathBuf;
use tatami_client::tree::{VolumeTree, join_path};
use tatami_client::{DataPattern, find_locations};
use tatami_cluster::VolumeFile;
use tatami_wire::{Attr, Errno, InodeKind, NodeId, Piece};

/// `tatami where`
#[derive(Debug, clap::Args)]
pub struct WhereArgs {
    #[command(flatten)]
    at: VolumeArgs,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Paths on a mount, or in the volume with a colon in front. For a directory, all files below
    /// it are summed by node
    #[arg(required_unless_present = "lost")]
    paths: Vec<AnyPath>,
    /// Only what needs a node that does not answer: below the paths, or in the whole volume
    #[arg(long)]
    lost: bool,
}

/// The report on a file, or on all files below a directory.
#[derive(Serialize)]
struct WhereReport {
    #[serde(flatten)]
    path: NameFields,
    kind: &'static str,
    #[serde(serialize_with = "serialize_wide")]
    ino: u64,
    #[serde(serialize_with = "serialize_wide")]
    size: u64,
    /// Number of files: 1, or those below a directory.
    files: u64,
    extents: Vec<ExtentReport>,
    /// Bytes and files by node.
    nodes: Vec<NodeBytes>,
    /// The bytes lie beside the inode, on the node that has it.
    inline: bool,
    /// What keeps the bytes of a file: `inline`, `region` or `file`; null for a directory.
    engine: Option<&'static str>,
}

#[derive(Serialize)]
struct ExtentReport {
    #[serde(serialize_with = "serialize_wide")]
    offset: u64,
    /// Total bytes.
    #[serde(serialize_with = "serialize_wide")]
    len: u64,
    /// `count` blocks of `block` bytes; their starts are `stride` bytes apart. The last one may be
    /// shorter. 0 blocks: many, at irregular distances.
    count: u64,
    #[serde(serialize_with = "serialize_wide")]
    block: u64,
    #[serde(serialize_with = "serialize_wide")]
    stride: u64,
    node: u16,
    name: String,
    address: String,
    piece: u32,
    /// Offset of the first byte in the object.
    #[serde(serialize_with = "serialize_wide")]
    at: u64,
    /// The backing file, on that node.
    object: String,
}

#[derive(Serialize)]
struct NodeBytes {
    node: u16,
    name: String,
    files: u64,
    #[serde(serialize_with = "serialize_wide")]
    bytes: u64,
}

/// Prints the data locations of files.
///
/// # Errors
/// A path that is neither in the volume nor on a mount, or does not exist.
pub fn run(args: &WhereArgs) -> CommandResult {
    if args.lost {
        return lost_files::list_affected(&args.at, &args.paths, args.json);
    }
    let mut out = TermOutput::new();
    let mut reports = Vec::new();
    let mut sessions = VolumeSessions::new(&args.at);
    let mut containers = Vec::new();
    for any in &args.paths {
        if let AnyPath::Local(path) = any
            && tatami_tiled::is_container(path)
        {
            containers.extend(container_cmd::locate_container(&mut out, path, args.json)?);
            continue;
        }
        let FoundPath { tree, volume, path, .. } = sessions.find_path(any)?;
        let one = build_report(&tree, &volume, any, &path)?;
        if !args.json {
            print_report(&mut out, &one, any, reports.is_empty())?;
        }
        reports.push(one);
    }
    if args.json {
        let volume = sessions.volume_name();
        let files = reports.iter().map(serde_json::to_value).filter_map(Result::ok);
        let files: Vec<_> = files.chain(containers).collect();
        out.write_json(&serde_json::json!({ "volume": volume, "files": files }))?;
    }
    out.flush()?;
    Ok(())
}

fn build_report(
    tree: &VolumeTree,
    volume: &VolumeFile,
    any: &AnyPath,
    path: &[u8],
) -> CommandResult<WhereReport> {
    let failed = |e| any.operation_failure("cannot look at", e);
    let attr = tree.stat(path, true).map_err(failed)?;
    let mut by_node = BTreeMap::new();
    let mut report = WhereReport {
        path: NameFields::new("path", path),
        kind: "file",
        ino: attr.ino.0,
        size: attr.size,
        files: 1,
        extents: Vec::new(),
        nodes: Vec::new(),
        inline: attr.kind == InodeKind::File && attr.layout.is_inline(),
        engine: (attr.kind == InodeKind::File).then(|| find_engine(tree, &attr)),
    };
    match attr.kind {
        InodeKind::File => {
            let runs = find_locations(tree.client(), &attr).map_err(failed)?;
            count_runs(&mut by_node, &attr, &runs);
            let in_region = report.engine == Some("region");
            report.extents = build_extents(volume, &attr, in_region, runs);
        }
        InodeKind::Dir => {
            report.kind = "directory";
            (report.size, report.files) = sum_tree(tree, path, &mut by_node).map_err(failed)?;
        }
        _ => {
            let what = format!("{any} is a special file: it has no bytes");
            return Err(CommandFailure::new(what));
        }
    }
    report.nodes = by_node
        .into_iter()
        .map(|(node, (files, bytes))| NodeBytes {
            node: node.0,
            name: volume.node_name(node),
            files,
            bytes,
        })
        .collect();
    Ok(report)
}

type BytesByNode = BTreeMap<NodeId, (u64, u64)>;

fn count_runs(by_node: &mut BytesByNode, attr: &Attr, runs: &[DataPattern]) {
    let nodes: BTreeSet<NodeId> = match runs {
        [] => attr.layout.all_objects().map(|(node, _)| node).collect(),
        runs => runs.iter().map(|run| run.node).collect(),
    };
    for node in nodes {
        by_node.entry(node).or_default().0 += 1;
    }
    for run in runs {
        by_node.entry(run.node).or_default().1 += run.len;
    }
}

/// Sums all files below a directory: their bytes and their number.
fn sum_tree(
    tree: &VolumeTree,
    path: &[u8],
    by_node: &mut BytesByNode,
) -> Result<(u64, u64), Errno> {
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
                (InodeKind::Dir, _) => todo.push(join_path(&path, &entry.name)),
                (InodeKind::File, Some(attr)) => {
                    match find_locations(tree.client(), &attr) {
                        Ok(runs) => count_runs(by_node, &attr, &runs),
                        Err(Errno::ENOENT | Errno::ESTALE) => continue, // removed meanwhile
                        Err(e) => return Err(e),
                    }
                    bytes += attr.size;
                    files += 1;
                }
                _ => {}
            }
        }
    }
    Ok((bytes, files))
}

/// Returns what keeps the bytes of a file.
fn find_engine(tree: &VolumeTree, attr: &Attr) -> &'static str {
    match attr.layout {
        layout if layout.is_inline() => "inline",
        layout if layout.is_tiled() || !layout.base().is_in_region() => "file",
        // Its node knows: an object that was too large for a region is a file of the disk.
        _ => match tree.client().find_engine(attr) {
            Ok(engine) if !engine.in_region && attr.size > 0 => "file",
            _ => "region",
        },
    }
}

fn build_extents(
    volume: &VolumeFile,
    attr: &Attr,
    in_region: bool,
    runs: Vec<DataPattern>,
) -> Vec<ExtentReport> {
    runs.into_iter()
        .map(|run| {
            let node = volume.node(run.node);
            let piece = Piece(run.piece);
            let object = node.map(|n| match piece.is_in_region() && in_region {
                true => PathBuf::from("a region of the node's device"),
                false => tatami_node::backing_path(&n.dir, attr.ino, piece),
            });
            ExtentReport {
                offset: run.offset,
                len: run.len,
                count: run.count,
                block: run.block,
                stride: run.stride,
                node: run.node.0,
                name: volume.node_name(run.node),
                address: node.map(|n| n.address.clone()).unwrap_or_default(),
                piece: run.piece,
                at: run.at,
                object: object.map(|o| o.display().to_string()).unwrap_or_default(),
            }
        })
        .collect()
}

fn print_report(
    out: &mut TermOutput,
    report: &WhereReport,
    any: &AnyPath,
    first: bool,
) -> CommandResult {
    let plain = Style::new();
    if !first {
        writeln!(out)?;
    }
    let title = out.paint_text(HEAD, &any.to_string());
    if report.kind == "directory" {
        let files = if report.files == 1 { "file" } else { "files" };
        writeln!(out, "{title}: {} {files}, {}", report.files, term::format_size(report.size))?;
        let mut table = TextTable::new(&["NODE", ">FILES", ">BYTES", "SHARE"]);
        for node in &report.nodes {
            table.add_row([
                (node.name.clone(), plain),
                (node.files.to_string(), plain),
                (term::format_size(node.bytes), plain),
                (term::share_bar(node_share(node, report)), DIM),
            ]);
        }
        if !report.nodes.is_empty() {
            out.write_table(&table)?;
        }
        return Ok(());
    }
    writeln!(out, "{title}: {} bytes ({})", report.size, term::format_size(report.size))?;
    if report.inline {
        writeln!(out, "beside the inode, in the metadata: no node has an object of it")?;
        return Ok(());
    }
    if report.extents.is_empty() {
        let names: Vec<&str> = report.nodes.iter().map(|n| n.name.as_str()).collect();
        writeln!(out, "no bytes yet; they will be on {}", names.join(", "))?;
        return Ok(());
    }
    if report.nodes.len() > 1 {
        let mut table = TextTable::new(&["NODE", ">BYTES", "SHARE"]);
        for node in &report.nodes {
            let bytes = term::format_size(node.bytes);
            table.add_row([
                (node.name.clone(), HEAD),
                (bytes, plain),
                (term::share_bar(node_share(node, report)), DIM),
            ]);
        }
        out.write_table(&table)?;
        writeln!(out)?;
    }
    print_extents(out, &report.extents)?;
    Ok(())
}

/// Prints one line per pattern, with a column for blocks if a pattern has several.
fn print_extents(out: &mut TermOutput, extents: &[ExtentReport]) -> CommandResult {
    let plain = Style::new();
    let simple = extents.iter().all(|extent| extent.count == 1);
    let heads: &[&str] = match simple {
        true => &[">OFFSET", ">LENGTH", "NODE", "ADDRESS", "OBJECT"],
        false => &[">OFFSET", ">LENGTH", "BLOCKS", "NODE", "ADDRESS", "OBJECT"],
    };
    let mut table = TextTable::new(heads);
    for extent in extents {
        let (offset, len) = (extent.offset.to_string(), extent.len.to_string());
        let (node, address) = (extent.name.clone(), extent.address.clone());
        let object = extent.object.clone();
        let rest = [(node, HEAD), (address, plain), (object, DIM)];
        let [node, address, object] = rest;
        match simple {
            true => table.add_row([(offset, plain), (len, plain), node, address, object]),
            false => {
                let blocks = (format_blocks(extent), plain);
                table.add_row([(offset, plain), (len, plain), blocks, node, address, object]);
            }
        }
    }
    out.write_table(&table)?;
    Ok(())
}

fn format_blocks(extent: &ExtentReport) -> String {
    match extent.count {
        0 => "scattered".to_owned(),
        1 => "1".to_owned(),
        count => format!("{count} of {}, every {}", extent.block, extent.stride),
    }
}

fn node_share(node: &NodeBytes, report: &WhereReport) -> f64 {
    node.bytes as f64 / report.size.max(1) as f64
}
