//! `tatami config`: the values in force and their origins.

use crate::error::Outcome;
use crate::keys::{KEYS, Value};
use crate::place::At;
use crate::term::{DIM, HEAD, Out, Table};
use crate::up::wrap;
use anstyle::Style;
use std::io::Write;

/// `tatami config`
#[derive(Debug, clap::Args)]
pub struct ConfigArgs {
    #[command(flatten)]
    at: At,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Print all keys with their meaning, range and default, as in docs/CONFIG.md
    #[arg(long, conflicts_with = "json")]
    defaults: bool,
}

/// Prints the configuration.
///
/// # Errors
/// A wrong configuration.
pub fn run(args: &ConfigArgs) -> Outcome {
    let mut out = Out::new();
    if args.defaults {
        out.write_all(reference().as_bytes())?;
        out.flush()?;
        return Ok(());
    }
    let place = args.at.open()?;
    if args.json {
        let keys: serde_json::Map<String, serde_json::Value> = place
            .config
            .all()
            .map(|(key, value, origin)| {
                let value = match value {
                    Value::Bool(b) => serde_json::json!(b),
                    Value::Int(n) => serde_json::json!(n),
                    Value::Text(s) => serde_json::json!(s),
                };
                let entry = serde_json::json!({
                    "value": value,
                    "origin": origin.to_string(),
                    "unit": key.unit,
                    "range": key.range.to_string(),
                    "flag": format!("--{}", key.flag),
                    "variable": key.env,
                });
                (key.name.to_owned(), entry)
            })
            .collect();
        let file = place.config.file.as_ref().map(|f| f.display().to_string());
        out.json(&serde_json::json!({
            "dir": place.dir.display().to_string(), "file": file, "keys": keys,
        }))?;
        return Ok(());
    }
    writeln!(out, "{} {}", out.paint(HEAD, "directory"), place.dir.display())?;
    match &place.config.file {
        Some(file) => writeln!(out, "{}      {}", out.paint(HEAD, "file"), file.display())?,
        None => writeln!(out, "{}      none", out.paint(HEAD, "file"))?,
    }
    writeln!(out)?;
    let mut table = Table::new(&["KEY", "VALUE", "FROM", "FLAG"]);
    for (key, value, origin) in place.config.all() {
        let plain = Style::new();
        table.row([
            (key.name.into(), plain),
            (value.to_string(), HEAD),
            (origin.to_string(), plain),
            (format!("--{}", key.flag), DIM),
        ]);
    }
    out.table(&table)?;
    out.flush()?;
    Ok(())
}

/// Returns the text of `docs/CONFIG.md`. A test compares the two.
pub fn reference() -> String {
    let mut text = String::from(
        "# Configuration\n\n\
         One TOML file, `DIR/tatami.toml` unless `--config FILE` or `TATAMI_CONFIG` names\n\
         another, configures daemons, mounts and commands of a volume. `tatami up` writes\n\
         one in which every key is explained and none is set. A key that does not exist is\n\
         an error that names the line.\n\n\
         Each key can be overridden by an environment variable, and that by a flag of any\n\
         command. `tatami config` shows the values in force and their origins. This page is the\n\
         output of `tatami config --defaults`.\n\n\
         `--dir DIR` (`TATAMI_DIR`) names the volume: by default `/var/lib/tatami` for the\n\
         superuser and `$XDG_DATA_HOME/tatami`, usually `~/.local/share/tatami`, for others.\n\
         Relative paths in the configuration start there.\n\n\
         | key | unit | default | range | variable | flag |\n|---|---|---|---|---|---|\n",
    );
    for key in &KEYS {
        let unit = if key.unit.is_empty() { "" } else { key.unit };
        text.push_str(&format!(
            "| `{}` | {unit} | {} | {} | `{}` | `--{}` |\n",
            key.name,
            key.default_text(),
            key.range,
            key.env,
            key.flag
        ));
    }
    for key in &KEYS {
        text.push_str(&format!("\n## {}\n\n{}\n", key.name, wrap(key.doc, 80).join("\n")));
    }
    text.push_str(
        "\n## Other variables\n\n\
         - `NO_COLOR`: when set, output has no colours, also on a terminal.\n\
         - `TATAMI_DIR`, `TATAMI_CONFIG`: as `--dir` and `--config`.\n\n\
         ## Files in the volume's directory\n\n\
         | file | is |\n|---|---|\n\
         | `tatami.toml` | the configuration; yours to edit |\n\
         | `volume.toml` | the nodes with their addresses, sockets and data directories; see \
         [FORMAT.md](FORMAT.md) |\n\
         | `key` | the secret of the volume, mode 0600: a process that has it may act as any \
         user |\n\
         | `last-up.toml` | settings of the last `tatami up`, and the data directories in use |\n\
         | `mounts/` | a record of each mount: its mount point, node and process |\n\
         | `mount-logs/` | a log of each mount |\n\
         | `node0/` … | the data directory of a node; in it `FORMAT`, `lock`, `meta/` and \
         `objects/` (see [FORMAT.md](FORMAT.md)), its `socket`, its `log` (renamed to `log.old` \
         at a start when it is over 16 MiB) and, while it runs, `pid` |\n",
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_and_the_table_agree() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/CONFIG.md");
        let page = std::fs::read_to_string(path).expect("docs/CONFIG.md is there");
        assert!(
            page == reference(),
            "docs/CONFIG.md is out of date: tatami config --defaults > docs/CONFIG.md"
        );
    }
}
