//! Plots as SVG: lines over steps, with a legend. Just enough for the figures of this bench.

use crate::table::format_number;
use std::fmt::Write;

/// A line: a name, and a value for each step where there is one.
#[derive(Clone, Debug)]
pub struct PlotLine {
    /// The name in the legend.
    pub name: String,
    /// The values, in the order of the steps.
    pub values: Vec<Option<f64>>,
}

/// A plot.
#[derive(Clone, Debug)]
pub struct Plot {
    /// The text above the plot.
    pub title: String,
    /// The text below the horizontal axis.
    pub across: String,
    /// The text beside the vertical axis.
    pub up: String,
    /// The steps of the horizontal axis, at equal distances.
    pub steps: Vec<String>,
    /// Whether equal distances on the vertical axis are equal ratios.
    pub ratios: bool,
    /// The lines.
    pub lines: Vec<PlotLine>,
}

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 420.0;
/// Left, right, top, bottom: the space around the plot itself.
const MARGIN: [f64; 4] = [80.0, 190.0, 44.0, 56.0];
/// Distinct in print and for the colour-blind (Okabe and Ito).
const COLOURS: [&str; 7] =
    ["#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"];

/// The vertical axis.
struct AxisScale {
    low: f64,
    high: f64,
    ratios: bool,
}

impl AxisScale {
    fn from_plot(plot: &Plot) -> AxisScale {
        let values = || plot.lines.iter().flat_map(|l| l.values.iter().flatten().copied());
        let high = values().fold(0.0, f64::max).max(1e-9);
        if !plot.ratios {
            let step = mark_step(high);
            return AxisScale { low: 0.0, high: (high / step).ceil() * step, ratios: false };
        }
        let low = values().filter(|v| *v > 0.0).fold(high, f64::min);
        let (low, high) = (10f64.powf(low.log10().floor()), 10f64.powf(high.log10().ceil()));
        AxisScale { low, high: if high > low { high } else { low * 10.0 }, ratios: true }
    }

    /// Returns the position of a value: 0 at the lower end, 1 at the upper.
    fn axis_position(&self, value: f64) -> f64 {
        match self.ratios {
            true => (value.max(self.low) / self.low).ln() / (self.high / self.low).ln(),
            false => value / self.high,
        }
    }

    fn axis_marks(&self) -> Vec<f64> {
        let mut marks = Vec::new();
        let mut at = self.low;
        while at <= self.high * 1.000_001 {
            marks.push(at);
            at = if self.ratios { at * 10.0 } else { at + mark_step(self.high) };
        }
        marks
    }
}

/// Returns 1, 2 or 5 times a power of ten, such that `high` is 4 to 10 steps.
fn mark_step(high: f64) -> f64 {
    let power = 10f64.powf(high.log10().floor());
    match high / power {
        x if x < 2.0 => power / 5.0,
        x if x < 5.0 => power / 2.0,
        _ => power,
    }
}

fn escape_text(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

impl Plot {
    fn step_x(&self, step: usize) -> f64 {
        let wide = WIDTH - MARGIN[0] - MARGIN[1];
        match self.steps.len() {
            0 | 1 => MARGIN[0] + wide / 2.0,
            n => MARGIN[0] + wide * step as f64 / (n - 1) as f64,
        }
    }

    /// Returns the document.
    pub fn to_svg(&self) -> String {
        let mut out = String::new();
        let font = "font-family=\"sans-serif\" font-size=\"13\"";
        let _ = writeln!(
            out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" {font}>\n\
             <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
             <text x=\"{}\" y=\"24\" font-size=\"15\">{}</text>",
            MARGIN[0],
            escape_text(&self.title)
        );
        self.draw_axes(&mut out, &AxisScale::from_plot(self));
        for (i, line) in self.lines.iter().enumerate() {
            self.draw_line(&mut out, &AxisScale::from_plot(self), i, line);
        }
        out + "</svg>\n"
    }

    fn draw_axes(&self, out: &mut String, scale: &AxisScale) {
        let (left, right) = (MARGIN[0], WIDTH - MARGIN[1]);
        let (top, bottom) = (MARGIN[2], HEIGHT - MARGIN[3]);
        for mark in scale.axis_marks() {
            let y = bottom - (bottom - top) * scale.axis_position(mark);
            let _ = writeln!(
                out,
                "<path d=\"M{left} {y:.1}H{right}\" stroke=\"#ddd\"/>\
                 <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                left - 6.0,
                y + 4.0,
                if mark == 0.0 { "0".into() } else { format_number(mark) }
            );
        }
        for (i, step) in self.steps.iter().enumerate() {
            let _ = writeln!(
                out,
                "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                self.step_x(i),
                bottom + 18.0,
                escape_text(step)
            );
        }
        let (middle, centre) = ((top + bottom) / 2.0, (left + right) / 2.0);
        let _ = writeln!(
            out,
            "<path d=\"M{left} {top}V{bottom}H{right}\" stroke=\"black\" fill=\"none\"/>\n\
             <text x=\"{centre}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n\
             <text transform=\"translate(18 {middle}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
            HEIGHT - 14.0,
            escape_text(&self.across),
            escape_text(&self.up)
        );
    }

    fn draw_line(&self, out: &mut String, scale: &AxisScale, i: usize, line: &PlotLine) {
        let colour = COLOURS[i % COLOURS.len()];
        let (top, bottom) = (MARGIN[2], HEIGHT - MARGIN[3]);
        let points: Vec<(f64, f64)> = line
            .values
            .iter()
            .enumerate()
            .filter_map(|(step, value)| {
                let up = (bottom - top) * scale.axis_position((*value)?);
                Some((self.step_x(step), bottom - up))
            })
            .collect();
        let text: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let _ = writeln!(
            out,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
            text.join(" ")
        );
        for (x, y) in &points {
            let _ =
                writeln!(out, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\" fill=\"{colour}\"/>");
        }
        let (x, y) = (WIDTH - MARGIN[1] + 16.0, top + 12.0 + 20.0 * i as f64);
        let _ = writeln!(
            out,
            "<path d=\"M{x} {y}h18\" stroke=\"{colour}\" stroke-width=\"2\"/>\
             <text x=\"{}\" y=\"{}\" font-size=\"12\">{}</text>",
            x + 24.0,
            y + 4.0,
            escape_text(&line.name)
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot(ratios: bool) -> Plot {
        Plot {
            title: "a < b".into(),
            across: "ranks".into(),
            up: "MiB/s".into(),
            steps: vec!["1".into(), "2".into(), "4".into()],
            ratios,
            lines: vec![
                PlotLine { name: "one".into(), values: vec![Some(1.0), Some(10.0), Some(70.0)] },
                PlotLine { name: "two".into(), values: vec![None, Some(5.0), None] },
            ],
        }
    }

    #[test]
    fn every_value_is_a_point_and_every_line_has_a_name() {
        for ratios in [false, true] {
            let svg = plot(ratios).to_svg();
            assert_eq!(svg.matches("<circle").count(), 4);
            assert_eq!(svg.matches("<polyline").count(), 2);
            assert!(svg.contains(">one<") && svg.contains("a &lt; b") && !svg.contains("NaN"));
        }
    }

    #[test]
    fn axes_end_at_round_numbers() {
        let scale = AxisScale::from_plot(&plot(false));
        assert_eq!((scale.low, scale.high), (0.0, 70.0));
        assert_eq!(scale.axis_position(35.0), 0.5);
        let scale = AxisScale::from_plot(&plot(true));
        assert!((scale.low - 1.0).abs() < 1e-9 && (scale.high - 100.0).abs() < 1e-9);
        assert!((scale.axis_position(10.0) - 0.5).abs() < 1e-9);
        assert_eq!(scale.axis_marks().len(), 3);
    }
}
