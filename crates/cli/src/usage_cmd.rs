//! `tatami du`: disk usage below a path, summed by the servers.

use crate::error::{CommandResult, keep_first};
use crate::json::{NameFields, wide_number};
use crate::session::{FoundPath, VolumeSessions};
use crate::site_tree;
use crate::site_usage;
use crate::term::{self, TermOutput};
use crate::volume_dir::VolumeArgs;
use crate::volume_path::AnyPath;
use std::io::Write;
use tatami_client::UsageSum;

/// Bytes of a unit of storage.
const BLOCK: u64 = 512;

/// `tatami du`
#[derive(Debug, clap::Args)]
pub struct DuArgs {
    #[command(flatten)]
    at: VolumeArgs,
    /// Only the given paths, not the directories below
    #[arg(short, long)]
    summarize: bool,
    /// Print sizes like 1.5K, not in units of 1,024 bytes
    #[arg(short = 'h', long)]
    human_readable: bool,
    /// Sum the lengths of files, and print bytes
    #[arg(short, long)]
    bytes: bool,
    /// Also print the sum of all paths
    #[arg(short = 'c', long)]
    total: bool,
    /// Print directories down to this many levels below each path
    #[arg(short = 'd', long, value_name = "N", conflicts_with = "summarize")]
    max_depth: Option<usize>,
    /// Sum the lengths of files, not their space on disk
    #[arg(long)]
    apparent_size: bool,
    /// Print one JSON object, in bytes
    #[arg(long)]
    json: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    /// Paths on a mount, in the volume with a colon in front, or on another site: host:/path
    #[arg(default_value = ":/")]
    paths: Vec<AnyPath>,
}

/// Sums the disk usage below paths.
///
/// # Errors
/// Paths that cannot be read; the rest is counted.
pub fn run(args: &DuArgs) -> CommandResult {
    let mut out = TermOutput::new();
    let mut result = Ok(());
    let mut json = Vec::new();
    let mut total = UsageSum::default();
    let mut sessions = VolumeSessions::new(&args.at);
    for any in &args.paths {
        let bar = term::new_spinner("scanning");
        let mut found = 0;
        let mut count = |more| {
            found += more;
            bar.set_message(format!("{found} names"));
        };
        let usage = match any {
            AnyPath::Site(file) => site_usage::sum_usage(file, &mut count),
            _ => {
                let FoundPath { tree, path, .. } = sessions.find_path(any)?;
                tree.sum_usage(&path, &mut count)
            }
        };
        let place = |path: &[u8]| match any {
            AnyPath::Site(file) => AnyPath::Site(site_tree::with_path(file, path)),
            _ => AnyPath::Volume(path.to_vec()),
        };
        bar.finish_and_clear();
        let usage = match usage {
            Ok(usage) => usage,
            Err(e) => {
                keep_first(&mut result, any.operation_failure("cannot look at", e));
                continue;
            }
        };
        for (path, errno) in &usage.failed {
            keep_first(&mut result, place(path).operation_failure("cannot look into", *errno));
        }
        let Some((top, whole)) = usage.paths.last() else { continue };
        total.size = total.size.saturating_add(whole.size);
        total.blocks = total.blocks.saturating_add(whole.blocks);
        let depth = if args.summarize { Some(0) } else { args.max_depth };
        for (path, used) in &usage.paths {
            if depth.is_some_and(|depth| levels_below(top, path) > depth) {
                continue;
            }
            if args.json {
                let mut one = serde_json::json!({
                    "files": used.files, "directories": used.dirs,
                    "size": wide_number(used.size), "used": wide_number(used.blocks * BLOCK),
                });
                if let AnyPath::Site(file) = any {
                    one["site"] = serde_json::json!(file.site.to_string());
                }
                NameFields::new("path", &path[..]).add_to(&mut one);
                json.push(one);
            } else {
                writeln!(out, "{}\t{}", format_amount(args, used), place(path))?;
            }
        }
    }
    if args.total && !args.json {
        writeln!(out, "{}\ttotal", format_amount(args, &total))?;
    }
    if args.json {
        out.write_json(&serde_json::json!({ "volume": sessions.volume_name(), "paths": json }))?;
    }
    out.flush()?;
    result
}

fn format_amount(args: &DuArgs, used: &UsageSum) -> String {
    let bytes = match args.apparent_size || args.bytes {
        true => used.size,
        false => used.blocks.saturating_mul(BLOCK),
    };
    match (args.human_readable, args.bytes) {
        (true, _) => term::format_short_size(bytes),
        (_, true) => bytes.to_string(),
        _ => bytes.div_ceil(1024).to_string(),
    }
}

/// Returns how many names `path` has below `top`.
fn levels_below(top: &[u8], path: &[u8]) -> usize {
    let names = |path: &[u8]| path.split(|b| *b == b'/').filter(|name| !name.is_empty()).count();
    names(path).saturating_sub(names(top))
}
