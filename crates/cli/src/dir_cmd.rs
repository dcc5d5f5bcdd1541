//! `tatami dir`: the partitions of a directory, their entries, and their nodes.

use crate::error::CommandResult;
use crate::json::{NameFields, serialize_wide};
use crate::session::{FoundPath, VolumeSessions};
use crate::term::{self, DIM, HEAD, TermOutput, TextTable};
use crate::volume_dir::{VolumeArgs, executor_name};
use crate::volume_path::AnyPath;
use anstyle::Style;
use serde::Serialize;
use std::io::Write;
use tatami_client::tree::VolumeTree;
use tatami_cluster::VolumeFile;
use tatami_wire::meta::{MetaOp, MetaReply, PartitionInfo};
use tatami_wire::{Errno, ExecutorId};

/// `tatami dir`
#[derive(Debug, clap::Args)]
pub struct DirArgs {
    #[command(flatten)]
    at: VolumeArgs,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Directories, on a mount, or in the volume with a colon in front
    #[arg(default_value = ":/")]
    paths: Vec<AnyPath>,
}

#[derive(Serialize)]
struct DirReport {
    #[serde(flatten)]
    path: NameFields,
    #[serde(serialize_with = "serialize_wide")]
    ino: u64,
    entries: u64,
    partitions: Vec<PartitionReport>,
}

#[derive(Serialize)]
struct PartitionReport {
    /// Lowest and highest hash of the names in the partition, 63 bits each.
    #[serde(serialize_with = "serialize_wide")]
    from: u64,
    #[serde(serialize_with = "serialize_wide")]
    last: u64,
    /// Number of leading bits of the hash that all its names share.
    bits: u8,
    shard: u16,
    node: Option<u16>,
    /// The executor of the node that serves the partition.
    executor: Option<u8>,
    name: String,
    /// The name of the server in the table.
    #[serde(skip)]
    server: String,
    entries: u64,
}

/// Prints the partitions of directories.
///
/// # Errors
/// A path that is neither in the volume nor on a mount, or is no directory.
pub fn run(args: &DirArgs) -> CommandResult {
    let mut out = TermOutput::new();
    let mut all = Vec::new();
    let mut sessions = VolumeSessions::new(&args.at);
    for any in &args.paths {
        let FoundPath { tree, volume, path } = sessions.find_path(any)?;
        let report = read_partitions(&tree, &volume, &path)
            .map_err(|e| any.operation_failure("cannot look at", e))?;
        if !args.json {
            if !all.is_empty() {
                writeln!(out)?;
            }
            print_partitions(&mut out, any, &report)?;
        }
        all.push(report);
    }
    if args.json {
        out.write_json(
            &serde_json::json!({ "volume": sessions.volume_name(), "directories": all }),
        )?;
    }
    out.flush()?;
    Ok(())
}

fn read_partitions(
    tree: &VolumeTree,
    volume: &VolumeFile,
    path: &[u8],
) -> Result<DirReport, Errno> {
    let ino = tree.stat(path, true)?.ino;
    let client = tree.client();
    let MetaReply::Partitions(parts) =
        client.send_meta(tree.cred(), MetaOp::ListPartitions { dir: ino })?
    else {
        return Err(Errno::EPROTO);
    };
    let map = client.map();
    let report = |part: &PartitionInfo| {
        let owner = map.owner(part.shard);
        let first = owner.map(|owner| ExecutorId::first_of_node(owner.node));
        let [name, server] = [first, owner].map(|executor| {
            executor.map(|executor| executor_name(volume, executor)).unwrap_or_default()
        });
        PartitionReport {
            from: part.range.from,
            last: part.range.last_hash(),
            bits: part.range.bits,
            shard: part.shard.0,
            node: owner.map(|owner| owner.node.0),
            executor: owner.map(|owner| owner.index),
            name,
            server,
            entries: part.entries,
        }
    };
    Ok(DirReport {
        path: NameFields::new("path", path),
        ino: ino.0,
        entries: parts.iter().map(|part| part.entries).sum(),
        partitions: parts.iter().map(report).collect(),
    })
}

fn print_partitions(out: &mut TermOutput, any: &AnyPath, report: &DirReport) -> CommandResult {
    let plain = Style::new();
    let title = out.paint_text(HEAD, &any.to_string());
    let (entries, parts) =
        (format_count(report.entries, "entry", "entries"), report.partitions.len() as u64);
    writeln!(out, "{title}: {entries} in {}", format_count(parts, "partition", "partitions"))?;
    let mut table = TextTable::new(&["HASHES", ">SHARD", "NODE", ">ENTRIES", "SHARE"]);
    for part in &report.partitions {
        let share = part.entries as f64 / report.entries.max(1) as f64;
        table.add_row([
            (format_hashes(part), DIM),
            (part.shard.to_string(), plain),
            (part.server.clone(), HEAD),
            (part.entries.to_string(), plain),
            (term::share_bar(share), DIM),
        ]);
    }
    out.write_table(&table)?;
    Ok(())
}

fn format_count(n: u64, one: &str, more: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { more })
}

/// Returns the hash range of a partition, as leading digits.
fn format_hashes(part: &PartitionReport) -> String {
    match part.bits {
        0 => "all".to_owned(),
        bits => {
            let digits = usize::from(bits.div_ceil(4));
            // The hash has 63 bits: one shift makes its leading bits the leading digits.
            let lead = |hash: u64| format!("{:016x}", hash << 1)[..digits].to_owned();
            let (from, last) = (lead(part.from), lead(part.last));
            if from == last { format!("{from}…") } else { format!("{from}… to {last}…") }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_the_hashes_reads_as_their_first_digits() {
        let part = |n: u64, bits: u8| PartitionReport {
            from: n << (63 - bits),
            last: ((n + 1) << (63 - bits)) - 1,
            bits,
            shard: 0,
            node: None,
            executor: None,
            name: String::new(),
            server: String::new(),
            entries: 0,
        };
        let all = PartitionReport { last: (1 << 63) - 1, ..part(0, 0) };
        assert_eq!(format_hashes(&all), "all");
        assert_eq!(format_hashes(&part(0, 4)), "0…");
        assert_eq!(format_hashes(&part(15, 4)), "f…");
        assert_eq!(format_hashes(&part(0xa5, 8)), "a5…");
        assert_eq!(format_hashes(&part(1, 1)), "8… to f…");
    }
}
