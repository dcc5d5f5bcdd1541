//! The place of the legend: the corner of the plot in which it covers the least of the lines.

use plotters::prelude::SeriesLabelPosition;

/// Distance of the legend from the edges of the plot, as plotters leaves it, in pixels.
const GAP: i32 = 5;
/// Samples of the way from one point of a line to the next.
const SAMPLES: i32 = 64;
/// A covered point counts as much as all samples of several covered ways: a value is what a reader
/// looks for.
const POINT_WEIGHT: usize = 1000;

/// A place in pixels, from the upper left corner of the plot.
pub(crate) type Pixel = (i32, i32);

/// The corners. The first ones are preferred.
const CORNERS: [SeriesLabelPosition; 4] = [
    SeriesLabelPosition::UpperRight,
    SeriesLabelPosition::UpperLeft,
    SeriesLabelPosition::LowerRight,
    SeriesLabelPosition::LowerLeft,
];

/// Returns the corner of a plot of the size `area` in which a legend of the size `legend` covers
/// the fewest points of the lines; of these, the one in which it covers the least of the ways
/// between points. Points have a size of `radius`. One between the legend and the edge counts as
/// covered.
pub(crate) fn choose_corner(
    area: (i32, i32),
    legend: (i32, i32),
    radius: i32,
    lines: &[Vec<Pixel>],
) -> SeriesLabelPosition {
    let covered = |corner: &SeriesLabelPosition| {
        let (left, upper) = legend_origin(corner, area, legend);
        let around = GAP + radius;
        let covers = |(x, y): Pixel| {
            x >= left - around
                && x <= left + legend.0 + around
                && y >= upper - around
                && y <= upper + legend.1 + around
        };
        let points = lines.iter().flatten().filter(|point| covers(**point)).count();
        let ways = lines.iter().flat_map(|line| line.windows(2)).flat_map(samples_between);
        points * POINT_WEIGHT + ways.filter(|place| covers(*place)).count()
    };
    CORNERS.into_iter().min_by_key(covered).unwrap_or(SeriesLabelPosition::UpperRight)
}

/// Returns the upper left corner of the legend.
fn legend_origin(corner: &SeriesLabelPosition, area: (i32, i32), legend: (i32, i32)) -> Pixel {
    use SeriesLabelPosition::{LowerLeft, LowerRight, UpperLeft};
    let x = if matches!(corner, UpperLeft | LowerLeft) { GAP } else { area.0 - legend.0 - GAP };
    let y = if matches!(corner, LowerLeft | LowerRight) { area.1 - legend.1 - GAP } else { GAP };
    (x, y)
}

fn samples_between(ends: &[Pixel]) -> impl Iterator<Item = Pixel> + use<> {
    let (from, to) = match ends {
        [from, to] => (*from, *to),
        _ => ((0, 0), (0, 0)),
    };
    let between = |a: i32, b: i32, step: i32| a + (b - a) * step / SAMPLES;
    (1..SAMPLES).map(move |step| (between(from.0, to.0, step), between(from.1, to.1, step)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use SeriesLabelPosition::{LowerLeft, LowerRight, UpperLeft, UpperRight};

    fn choose(lines: &[Vec<Pixel>]) -> SeriesLabelPosition {
        choose_corner((600, 300), (150, 60), 4, lines)
    }

    #[test]
    fn the_legend_is_where_no_line_ends() {
        let (rises, falls) = (vec![(0, 280), (600, 20)], vec![(0, 20), (600, 280)]);
        assert_eq!(choose(&[]), UpperRight);
        assert_eq!(choose(std::slice::from_ref(&falls)), UpperRight);
        assert_eq!(choose(std::slice::from_ref(&rises)), UpperLeft);
        let low = vec![(0, 290), (300, 290), (560, 290)];
        let above = [vec![(590, 10)], vec![(10, 10)]];
        assert_eq!(choose(&[&above[..], &[rises, falls.clone()]].concat()), LowerRight);
        assert_eq!(choose(&[falls, above[0].clone()]), LowerLeft);
        assert_eq!(choose(&[low]), UpperRight);
    }

    #[test]
    fn a_line_that_passes_counts_less_than_a_point() {
        // One line passes through the upper right, and one has a point in each other corner.
        let passes = vec![(300, 30), (600, 30)];
        let points = [(10, 10), (10, 290), (590, 290)].map(|point| vec![point]);
        let passes_by = vec![(300, 30), (700, 30)];
        assert_eq!(choose(&[&points[..], &[passes_by]].concat()), UpperRight);
        // Its end is a point: now all corners have one, and the others have no way.
        assert_eq!(choose(&[&points[..], &[passes]].concat()), UpperLeft);
    }

    #[test]
    fn a_point_at_the_edge_of_the_legend_is_covered() {
        // The legend begins at 600 - 150 - 5, and a point reaches it from 4 + 5 before.
        assert_eq!(choose(&[vec![(436, 30)]]), UpperLeft);
        assert_eq!(choose(&[vec![(435, 30)]]), UpperRight);
        assert_eq!(choose(&[vec![(600, 0)]]), UpperLeft);
    }
}
