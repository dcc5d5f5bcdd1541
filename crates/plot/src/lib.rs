//! Plots as SVG: lines over steps, with a legend.

mod legend;

use plotters::coord::Shift;
use plotters::coord::ranged1d::{AsRangedCoord, Ranged, ValueFormatter};
use plotters::prelude::*;
use std::path::{Path, PathBuf};

/// A plot that could not be written.
#[derive(Debug, thiserror::Error)]
#[error("{}: {problem}", path.display())]
pub struct PlotError {
    /// The file.
    pub path: PathBuf,
    /// The cause.
    pub problem: String,
}

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

const SIZE: (u32, u32) = (760, 440);
/// Space for the numbers of the vertical axis, in pixels.
const LABEL_WIDTH: u32 = 90;
/// Space around the plot, in pixels.
const MARGIN: u32 = 12;
/// Size of the points of the lines, in pixels.
const POINT_RADIUS: u32 = 4;
/// The font of the names in the legend.
const LEGEND_FONT: (&str, i32) = ("sans-serif", 12);
/// The font of the steps below the plot.
const STEP_FONT: (&str, i32) = ("sans-serif", 12);
/// Space in the legend for the colour of each line, and around it, in pixels.
const LEGEND_SPACE: (i32, i32) = (30, 10);
/// Distinct in print and for the colour-blind (Okabe and Ito).
const COLOURS: [RGBColor; 7] = [
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0xe6, 0x9f, 0x00),
    RGBColor(0x56, 0xb4, 0xe9),
    BLACK,
];

type PlotArea<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type PlotFault = DrawingAreaErrorKind<std::io::Error>;
type DrawResult = Result<(), PlotFault>;

impl Plot {
    /// Writes the plot to a file.
    ///
    /// # Errors
    /// Those of the disk.
    pub fn draw(&self, path: &Path) -> Result<(), PlotError> {
        let area = SVGBackend::new(path, SIZE).into_drawing_area();
        self.draw_on(&area).map_err(|e| PlotError { path: path.into(), problem: e.to_string() })
    }

    fn draw_on(&self, area: &PlotArea<'_>) -> DrawResult {
        let (low, high) = self.bounds();
        area.fill(&WHITE)?;
        match self.ratios {
            true => self.draw_lines(area, (low..high).log_scale())?,
            false => self.draw_lines(area, 0.0..high)?,
        }
        area.present()
    }

    /// Returns the bounds of the vertical axis: powers of ten for ratios.
    fn bounds(&self) -> (f64, f64) {
        let values = || self.lines.iter().flat_map(|l| l.values.iter().flatten().copied());
        let high = values().fold(0.0, f64::max).max(1e-9);
        if !self.ratios {
            return (0.0, high * 1.05);
        }
        let low = values().filter(|v| *v > 0.0).fold(high, f64::min);
        let (low, high) = (10f64.powf(low.log10().floor()), 10f64.powf(high.log10().ceil()));
        (low, if high > low { high } else { low * 10.0 })
    }

    /// Returns the width of the right margin: the last step is written below the right edge of the
    /// plot, and half of it beyond.
    fn right_margin(&self, area: &PlotArea<'_>) -> Result<u32, PlotFault> {
        let style = STEP_FONT.into_text_style(area);
        let last = self.steps.last().map_or("", String::as_str);
        let (width, _) = area.estimate_text_size(last, &style)?;
        Ok(width / 2 + MARGIN)
    }

    /// Returns the size of the legend.
    fn legend_size(&self, area: &PlotArea<'_>) -> Result<(i32, i32), PlotFault> {
        let style = LEGEND_FONT.into_text_style(area);
        let (mut width, mut height) = (0, 0);
        for line in &self.lines {
            let (w, h) = area.estimate_text_size(&line.name, &style)?;
            (width, height) = (width.max(w as i32), height + h as i32);
        }
        let (colours, margin) = LEGEND_SPACE;
        Ok((width + colours + 2 * margin, height + 2 * margin))
    }

    fn draw_lines<Y>(&self, area: &PlotArea<'_>, up: Y) -> DrawResult
    where
        Y: AsRangedCoord<Value = f64>,
        Y::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
    {
        let last = self.steps.len().saturating_sub(1).max(1);
        let mut chart = ChartBuilder::on(area)
            .caption(&self.title, ("sans-serif", 18))
            .margin(MARGIN)
            .margin_right(self.right_margin(area)?)
            .x_label_area_size(40)
            .y_label_area_size(LABEL_WIDTH)
            .build_cartesian_2d(0..last, up)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(TRANSPARENT)
            .x_desc(&self.across)
            .y_desc(&self.up)
            .x_labels(last + 1)
            .x_label_style(STEP_FONT)
            .x_label_formatter(&|step| self.steps.get(*step).cloned().unwrap_or_default())
            .y_label_formatter(&|value| format_number(*value))
            .draw()?;
        let mut drawn = Vec::new();
        let plotted = chart.plotting_area().strip_coord_spec();
        let (left, upper) = plotted.get_base_pixel();
        for (line, colour) in self.lines.iter().zip(COLOURS.into_iter().cycle()) {
            let points = line.values.iter().enumerate();
            let points: Vec<_> =
                points.filter_map(|(step, value)| Some((step, (*value)?))).collect();
            let pixels = points.iter().map(|point| chart.backend_coord(point));
            drawn.push(pixels.map(|(x, y)| (x - left, y - upper)).collect());
            let style = colour.stroke_width(2).filled();
            chart
                .draw_series(LineSeries::new(points, style).point_size(POINT_RADIUS))?
                .label(&line.name)
                .legend(move |(x, y)| {
                    PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2))
                });
        }
        let (width, height) = plotted.dim_in_pixel();
        let size = self.legend_size(area)?;
        let corner =
            legend::choose_corner((width as i32, height as i32), size, POINT_RADIUS as i32, &drawn);
        let labels = &mut chart.configure_series_labels();
        labels.position(corner).label_font(LEGEND_FONT);
        labels.legend_area_size(LEGEND_SPACE.0).margin(LEGEND_SPACE.1);
        labels.background_style(WHITE.mix(0.8)).border_style(BLACK.mix(0.2)).draw()
    }
}

/// Formats a number with about three significant digits.
pub fn format_number(x: f64) -> String {
    match x.abs() {
        a if a >= 100.0 => {
            let digits = format!("{:.0}", x.abs());
            let mut out = String::new();
            for (i, d) in digits.chars().enumerate() {
                if i > 0 && (digits.len() - i).is_multiple_of(3) {
                    out.push(',');
                }
                out.push(d);
            }
            if x < 0.0 { format!("-{out}") } else { out }
        }
        a if a >= 10.0 => format!("{x:.1}"),
        _ => format!("{x:.2}"),
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
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("plot.svg");
        for ratios in [false, true] {
            plot(ratios).draw(&path).expect("writable");
            let svg = std::fs::read_to_string(&path).expect("it was written");
            assert_eq!(svg.matches("<circle").count(), 4, "{svg}");
            for text in ["one\n", "two\n", "a &lt; b", "MiB/s", "ranks"] {
                assert!(svg.contains(text), "{text}: {svg}");
            }
            assert!(!svg.contains("NaN"));
        }
        assert!(plot(false).draw(&dir.path().join("none/plot.svg")).is_err());
    }

    /// Returns the value of an attribute in an element.
    fn attribute(element: &str, name: &str) -> f64 {
        let (_, rest) = element.split_once(&format!(" {name}=\"")).expect("it has the attribute");
        rest.split('"').next().and_then(|text| text.parse().ok()).expect("a number")
    }

    #[test]
    fn a_long_last_step_is_within_the_picture() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("plot.svg");
        let steps = vec!["1".into(), "2".into(), "a very long last step".into()];
        Plot { steps, ..plot(false) }.draw(&path).expect("writable");
        let svg = std::fs::read_to_string(&path).expect("it was written");
        let texts = || svg.split("<text").skip(1);
        let last = texts().find(|text| text.contains("a very long last step\n"));
        let middle = attribute(last.expect("the step is written"), "x");
        // About half of its width, at six pixels a letter.
        assert!(middle + 21.0 * 6.0 / 2.0 < f64::from(SIZE.0), "{middle}: {svg}");
    }

    #[test]
    fn the_legend_leaves_the_ends_of_the_lines_free() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("plot.svg");
        for rises in [false, true] {
            let values =
                [1.0, 30.0, 70.0].map(|value| Some(if rises { value } else { 71.0 - value }));
            let line = |name: &str| PlotLine { name: name.into(), values: values.to_vec() };
            let lines = vec![line("the first line"), line("the second line")];
            Plot { lines, ..plot(false) }.draw(&path).expect("writable");
            let svg = std::fs::read_to_string(&path).expect("it was written");
            // The last rectangle with a background is the legend.
            let legend = svg.split("<rect").filter(|rect| rect.contains("opacity=\"0.8\"")).last();
            let legend = legend.expect("there is a legend");
            let [x, y, width, height] =
                ["x", "y", "width", "height"].map(|name| attribute(legend, name));
            for circle in svg.split("<circle").skip(1) {
                let (cx, cy) = (attribute(circle, "cx"), attribute(circle, "cy"));
                let inside = cx > x && cx < x + width && cy > y && cy < y + height;
                assert!(!inside, "the legend covers ({cx}, {cy}): {svg}");
            }
        }
    }

    #[test]
    fn an_axis_of_ratios_ends_at_powers_of_ten() {
        let (low, high) = plot(true).bounds();
        assert!((low - 1.0).abs() < 1e-9 && (high - 100.0).abs() < 1e-9);
        assert_eq!(plot(false).bounds().0, 0.0);
    }
}
