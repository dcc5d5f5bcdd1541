//! `tatami config`: the values in force and their origins.

use crate::error::CommandResult;
use crate::json::NameFields;
use crate::keys::{KEYS, KeyValue};
use crate::term::{DIM, HEAD, TermOutput, TextTable};
use crate::volume_dir::VolumeArgs;
use crate::volume_layout::wrap_words;
use anstyle::Style;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;

/// `tatami config`
#[derive(Debug, clap::Args)]
pub struct ConfigArgs {
    #[command(flatten)]
    at: VolumeArgs,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Print all keys with their meaning, range and default, as in docs/reference/configuration.md
    #[arg(long, conflicts_with = "json")]
    defaults: bool,
}

/// Prints the configuration.
///
/// # Errors
/// A wrong configuration.
pub fn run(args: &ConfigArgs) -> CommandResult {
    let mut out = TermOutput::new();
    if args.defaults {
        out.write_all(render_reference().as_bytes())?;
        out.flush()?;
        return Ok(());
    }
    let place = args.at.open()?;
    if args.json {
        let keys: serde_json::Map<String, serde_json::Value> = place
            .config
            .iter_keys()
            .map(|(key, value, origin)| {
                let value = match value {
                    KeyValue::Bool(b) => serde_json::json!(b),
                    KeyValue::Int(n) => serde_json::json!(n),
                    KeyValue::Text(s) => serde_json::json!(s),
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
        let mut value = serde_json::json!({ "file": file, "keys": keys });
        NameFields::new("dir", place.dir.as_os_str().as_bytes()).add_to(&mut value);
        out.write_json(&value)?;
        return Ok(());
    }
    writeln!(out, "{} {}", out.paint_text(HEAD, "directory"), place.dir.display())?;
    match &place.config.file {
        Some(file) => writeln!(out, "{}      {}", out.paint_text(HEAD, "file"), file.display())?,
        None => writeln!(out, "{}      none", out.paint_text(HEAD, "file"))?,
    }
    writeln!(out)?;
    let mut table = TextTable::new(&["KEY", "VALUE", "FROM", "FLAG"]);
    for (key, value, origin) in place.config.iter_keys() {
        let plain = Style::new();
        table.add_row([
            (key.name.into(), plain),
            (value.to_string(), HEAD),
            (origin.to_string(), plain),
            (format!("--{}", key.flag), DIM),
        ]);
    }
    out.write_table(&table)?;
    out.flush()?;
    Ok(())
}

/// Returns the text of `docs/reference/configuration.md`. A test compares the two.
pub fn render_reference() -> String {
    let mut text = String::from(
        "# Configuration\n\n\
         One TOML file, `DIR/tatami.toml` unless `--config FILE` or `TATAMI_CONFIG` names\n\
         another, configures daemons, mounts and commands of a volume. `tatami up` writes\n\
         one in which every key is explained and none is set. A key that does not exist is\n\
         an error that names the line.\n\n\
         Each key can be overridden by an environment variable, and that by a flag of any\n\
         command. Settings for all volumes of a machine are in `/etc/tatami/tatami.toml`, which\n\
         the volume's own file and settings of `tatami up` override. `tatami config`\n\
         shows the values in force and their origins. This page is the output of `tatami config\n\
         --defaults`.\n\n\
         `--dir DIR` (`TATAMI_DIR`) names the volume: by default `/etc/tatami/default`, a link to\n\
         its directory, if the administrator has made one; else `/var/lib/tatami` for the\n\
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
        text.push_str(&format!("\n## {}\n\n{}\n", key.name, wrap_words(key.doc, 80).join("\n")));
    }
    text.push_str(
        "\n## Other variables\n\n\
         - `NO_COLOR`: when set, output has no colours, also on a terminal.\n\
         - `TATAMI_DIR`, `TATAMI_CONFIG`: as `--dir` and `--config`.\n\n\
         ## Files in the volume's directory\n\n\
         | file | is |\n|---|---|\n\
         | `tatami.toml` | the configuration; yours to edit |\n\
         | `volume.toml` | the nodes with their addresses, sockets and data directories; see \
         [formats](formats.md) |\n\
         | `key` | the secret of the volume, mode 0600: a process that has it may act as any \
         user |\n\
         | `last-up.toml` | settings of the last `tatami up`, and the data directories in use |\n\
         | `mounts/` | a record of each mount: its mount point, node and process |\n\
         | `mount-logs/` | a log of each mount |\n\
         | `node0/` … | the data directory of a node; in it `FORMAT`, `lock`, `meta/` and \
         `objects/` (see [formats](formats.md)), its `socket`, its `log` (renamed to `log.old` \
         at a start when it is over 16 MiB) and, while it runs, `pid` |\n",
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_and_the_table_agree() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/configuration.md");
        let page = std::fs::read_to_string(path).expect("docs/reference/configuration.md is there");
        assert!(
            page == render_reference(),
            "docs/reference/configuration.md is out of date: tatami config --defaults > docs/reference/configuration.md"
        );
    }
}
