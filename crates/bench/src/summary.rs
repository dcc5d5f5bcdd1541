//! The summary of a run: its figures as JSON, as a Markdown table, and as text for people.

use crate::error::{BenchError, path_error};
use crate::figure::{self, Figure};
use crate::machine::Machine;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// One object of the summary: a figure, the command and the machine.
#[derive(Debug, Serialize, Deserialize)]
pub struct SummaryEntry {
    /// The figure.
    #[serde(flatten)]
    pub figure: Figure,
    /// The command line.
    pub command: String,
    /// The machine.
    pub machine: Machine,
}

/// Makes the directory of `out`, and checks that a summary can be written there: before a run of
/// many minutes, and not after it.
///
/// # Errors
/// `out` is a directory, or no file can be written there.
pub fn check_summary_path(out: &Path) -> Result<(), BenchError> {
    if let Some(parent) = out.parent().filter(|p| !p.as_os_str().is_empty()) {
        std::fs::create_dir_all(parent).map_err(path_error("creating", parent))?;
    }
    // A file of an earlier run stays as it is, and a new one is not left behind empty.
    let is_new = !out.exists();
    let open = std::fs::OpenOptions::new().append(true).create(true).open(out);
    open.map_err(path_error("writing", out))?;
    match is_new {
        true => std::fs::remove_file(out).map_err(path_error("removing", out)),
        false => Ok(()),
    }
}

/// Writes a summary: an array of figures, each with the command and the machine, as JSON to `out`,
/// and the table as Markdown beside it. The directory must be there: see [`check_summary_path`].
///
/// # Errors
/// When the file can't be written.
pub fn write_summary(out: &Path, figures: &[Figure], machine: &Machine) -> Result<(), BenchError> {
    let mut words: Vec<String> = std::env::args().collect();
    if let Some(program) = words.first_mut() {
        "tatami bench".clone_into(program);
    }
    let command = words.join(" ");
    let entry = |figure: &Figure| SummaryEntry {
        figure: figure.clone(),
        command: command.clone(),
        machine: machine.clone(),
    };
    let entries: Vec<SummaryEntry> = figures.iter().map(entry).collect();
    let text = serde_json::to_string_pretty(&entries).expect("a summary is plain data");
    std::fs::write(out, text + "\n").map_err(path_error("writing", out))?;
    let page = out.with_extension("md");
    let table = format!("{command}\n\n{}\n\n", machine.summary_line())
        + &figure::build_table(figures).render_markdown();
    std::fs::write(&page, table).map_err(path_error("writing", &page))
}

/// Renders the table with its notes for people.
pub fn render_summary(out: &Path, figures: &[Figure]) -> String {
    let mut text = figure::build_table(figures).render();
    text.push('\n');
    for f in figures {
        text += &format!("{}: against {}", f.name, f.against);
        text += &if f.note.is_empty() { "\n".into() } else { format!("; {}\n", f.note) };
    }
    let missed = figures.iter().filter(|f| f.met == Some(false)).count();
    let held = figures.iter().filter(|f| f.met.is_some()).count();
    text + &format!("{} of {held} goals met; written to {}\n", held - missed, out.display())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figure::{FigureRuns, GoalDirection};

    #[test]
    fn the_summary_is_an_array_of_figures_with_command_and_machine() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let out = dir.path().join("results/summary.json");
        let runs = FigureRuns { ours: vec![1.0], baseline: vec![2.0], stolen: 0.5 };
        let figure = Figure::new("x", "op/s", "y", (GoalDirection::Higher, Some(0.6)), &runs);
        check_summary_path(&out).expect("writable");
        assert!(!out.exists());
        assert!(check_summary_path(dir.path()).is_err(), "a directory");
        write_summary(&out, &[figure], &Machine::from_dir(dir.path())).expect("writable");
        let text = std::fs::read_to_string(&out).expect("it was written");
        check_summary_path(&out).expect("writable");
        assert_eq!(std::fs::read_to_string(&out).expect("it stays"), text);
        let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let table = std::fs::read_to_string(out.with_extension("md")).expect("it was written");
        assert!(table.contains("| x | 1.00 |"), "{table}");
        let first = &json.as_array().expect("an array")[0];
        assert_eq!(first["ratio"], 0.5);
        assert_eq!(first["stolen"], 0.5);
        assert_eq!(first["met"], false);
        assert!(first["command"].as_str().is_some_and(|c| c.starts_with("tatami")));
        assert!(first["machine"]["kernel"].is_string());
    }
}
