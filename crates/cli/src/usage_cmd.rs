//! `tatami du`: disk usage below a path, summed by the servers.

use crate::error::{CommandResult, keep_first};
use crate::session::{FoundPath, VolumeSessions};
use crate::term::{self, TermOutput};
use crate::volume_dir::VolumeArgs;
use crate::volume_path::{AnyPath, volume_failure};
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
    /// Print sizes like 1.5 KiB, not in units of 1,024 bytes
    #[arg(short = 'h', long)]
    human_readable: bool,
    /// Sum the lengths of files, not their space on disk
    #[arg(long)]
    apparent_size: bool,
    /// Print one JSON object, in bytes
    #[arg(long)]
    json: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    /// Paths on a mount, or in the volume with a colon in front
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
    let mut sessions = VolumeSessions::new(&args.at);
    for any in &args.paths {
        let FoundPath { tree, path, .. } = sessions.find_path(any)?;
        let bar = term::new_spinner("scanning");
        let mut found = 0;
        let usage = tree.sum_usage(&path, &mut |more| {
            found += more;
            bar.set_message(format!("{found} names"));
        });
        bar.finish_and_clear();
        let usage = match usage {
            Ok(usage) => usage,
            Err(e) => {
                keep_first(&mut result, any.operation_failure("cannot look at", e));
                continue;
            }
        };
        for (path, errno) in &usage.failed {
            let what = format!("cannot look into :{}", term::escape_name(path));
            keep_first(&mut result, volume_failure(&what, *errno));
        }
        let skipped = if args.summarize { usage.paths.len().saturating_sub(1) } else { 0 };
        for (path, used) in &usage.paths[skipped..] {
            if args.json {
                json.push(serde_json::json!({
                    "path": String::from_utf8_lossy(path), "files": used.files,
                    "directories": used.dirs, "size": used.size, "used": used.blocks * BLOCK,
                }));
            } else {
                writeln!(out, "{}\t:{}", format_amount(args, used), term::escape_name(path))?;
            }
        }
    }
    if args.json {
        out.write_json(&serde_json::json!({ "volume": sessions.volume_name(), "paths": json }))?;
    }
    out.flush()?;
    result
}

fn format_amount(args: &DuArgs, used: &UsageSum) -> String {
    let bytes = if args.apparent_size { used.size } else { used.blocks.saturating_mul(BLOCK) };
    if args.human_readable { term::format_size(bytes) } else { bytes.div_ceil(1024).to_string() }
}
