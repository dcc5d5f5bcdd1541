//! One figure: a value, its baseline, and the share of CPU time that was stolen meanwhile.

use crate::stats::{median, ratio_or_zero};
use crate::table::{ReportTable, format_percent};
use serde::{Deserialize, Serialize};
use tatami_plot::format_number;

/// The direction in which a ratio is good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GoalDirection {
    /// The ratio should be at least the goal.
    Higher,
    /// The ratio should be at most the goal.
    Lower,
}

/// A figure: one object of the summary.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// The subject, in a few words. Unique within a summary.
    pub name: String,
    /// The value of Tatami: the median of the runs.
    pub value: f64,
    /// The unit of `value` and `baseline`.
    pub unit: String,
    /// The value of the baseline: the median of the runs.
    pub baseline: f64,
    /// The name of the baseline.
    pub against: String,
    /// `value / baseline`.
    pub ratio: f64,
    /// The goal of the ratio, if there is one.
    pub goal: Option<f64>,
    /// Whether the ratio should be above or below the goal.
    pub better: GoalDirection,
    /// Whether the ratio meets the goal, if there is one.
    pub met: Option<bool>,
    /// Number of runs, each of both sides, alternating. 0 if the figure was not measured; `note`
    /// says why.
    pub runs: usize,
    /// Share of CPU time that the host gave to others while it ran, 0 to 1.
    pub stolen: f64,
    /// An explanation that the reader needs; empty if none.
    pub note: String,
}

/// The runs of one figure.
#[derive(Clone, Debug, Default)]
pub struct FigureRuns {
    /// Of Tatami.
    pub ours: Vec<f64>,
    /// Of the baseline.
    pub baseline: Vec<f64>,
    /// Share of stolen time over all runs.
    pub stolen: f64,
}

impl Figure {
    /// Computes a figure from at least one run on each side.
    pub fn new(
        name: impl Into<String>,
        unit: &str,
        against: &str,
        (better, goal): (GoalDirection, Option<f64>),
        runs: &FigureRuns,
    ) -> Figure {
        let (value, baseline) = (median(&runs.ours), median(&runs.baseline));
        let ratio = ratio_or_zero(value, baseline);
        // Two digits are significant and printed. The verdict uses the printed value, so that the
        // table cannot contradict itself.
        let shown = (ratio * 100.0).round() / 100.0;
        let met = goal.map(|goal| match better {
            GoalDirection::Higher => shown >= goal,
            GoalDirection::Lower => shown <= goal,
        });
        Figure {
            name: name.into(),
            value,
            unit: unit.into(),
            baseline,
            against: against.into(),
            ratio,
            goal,
            better,
            met,
            runs: runs.ours.len(),
            stolen: runs.stolen,
            note: String::new(),
        }
    }

    /// Returns a figure that cannot be measured here, with the reason.
    pub fn not_measured(
        name: impl Into<String>,
        unit: impl Into<String>,
        against: impl Into<String>,
        (better, goal): (GoalDirection, Option<f64>),
        reason: impl Into<String>,
    ) -> Figure {
        Figure {
            name: name.into(),
            value: 0.0,
            unit: unit.into(),
            baseline: 0.0,
            against: against.into(),
            ratio: 0.0,
            goal,
            better,
            met: None,
            runs: 0,
            stolen: 0.0,
            note: reason.into(),
        }
    }

    /// Returns whether the figure was measured.
    pub fn is_measured(&self) -> bool {
        self.runs > 0
    }

    /// Adds an explanation.
    pub fn with_note(mut self, note: impl Into<String>) -> Figure {
        self.note = note.into();
        self
    }

    fn goal_text(&self) -> String {
        match (self.goal, self.better) {
            (None, _) => "–".into(),
            (Some(goal), GoalDirection::Higher) => format!("≥ {goal:.2}"),
            (Some(goal), GoalDirection::Lower) => format!("≤ {goal:.2}"),
        }
    }
}

/// Puts all figures into a table.
pub fn build_table(figures: &[Figure]) -> ReportTable {
    let headings =
        ["figure", "Tatami", "baseline", "unit", "ratio", "goal", "met", "runs", "stolen"];
    let mut table = ReportTable::new(&headings);
    for f in figures {
        let measured = |text: String| if f.is_measured() { text } else { "–".into() };
        table.add_row(vec![
            f.name.clone(),
            measured(format_number(f.value)),
            measured(format_number(f.baseline)),
            f.unit.clone(),
            measured(format!("{:.2}", f.ratio)),
            f.goal_text(),
            f.met.map_or("–", |met| if met { "yes" } else { "no" }).into(),
            f.runs.to_string(),
            measured(format_percent(f.stolen)),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs() -> FigureRuns {
        FigureRuns {
            ours: vec![90.0, 95.0, 10.0],
            baseline: vec![100.0, 100.0, 120.0],
            stolen: 0.25,
        }
    }

    #[test]
    fn a_figure_is_the_ratio_of_medians_held_against_its_goal() {
        let f =
            Figure::new("read", "MiB/s", "the disk", (GoalDirection::Higher, Some(0.9)), &runs());
        assert_eq!(
            (f.value, f.baseline, f.ratio, f.met, f.runs),
            (90.0, 100.0, 0.9, Some(true), 3)
        );
        let f =
            Figure::new("read", "MiB/s", "the disk", (GoalDirection::Higher, Some(0.95)), &runs());
        assert_eq!(f.met, Some(false));
        let f = Figure::new("cpu", "µs", "the floor", (GoalDirection::Lower, Some(1.0)), &runs());
        assert_eq!(f.met, Some(true));
        let f = Figure::new("cpu", "µs", "the floor", (GoalDirection::Lower, None), &runs());
        assert_eq!(f.met, None);
    }

    #[test]
    fn the_summary_has_the_promised_fields_and_reads_back() {
        let f =
            Figure::new("read", "MiB/s", "the disk", (GoalDirection::Higher, Some(0.9)), &runs())
                .with_note("warm");
        let json = serde_json::to_value(&f).expect("plain data");
        for field in ["name", "value", "unit", "baseline", "ratio", "goal", "runs", "stolen"] {
            assert!(json.get(field).is_some(), "{field}");
        }
        assert_eq!(serde_json::from_value::<Figure>(json).expect("what we wrote"), f);
    }

    #[test]
    fn a_figure_that_was_not_measured_shows_no_numbers() {
        let better = (GoalDirection::Lower, Some(4.0));
        let f = Figure::not_measured("x", "s", "y", better, "z is not installed");
        let text = build_table(&[f]).render();
        assert!(text.contains('–') && text.contains("≤ 4.00") && !text.contains("0.00"), "{text}");
    }

    #[test]
    fn the_table_shows_ratio_goal_and_steal() {
        let f =
            Figure::new("read", "MiB/s", "the disk", (GoalDirection::Higher, Some(0.95)), &runs());
        let text = build_table(&[f]).render();
        assert!(text.contains("0.90") && text.contains("≥ 0.95") && text.contains("no"), "{text}");
        assert!(text.contains("25 %"), "{text}");
    }
}
