//! Plots: a figure over the values of one parameter of the workload.

use super::comparison::ComparedSide;
use super::launch::MpiSample;
use super::place::{MpiPlace, MpiWorkload};
use super::session::MpiSession;
use crate::error::BenchError;
use crate::progress::print_progress;
use tatami_bench_args::size::format_size;
use tatami_plot::{Plot, PlotLine};

/// A plot, and the name of its file.
pub type NamedPlot = (String, Plot);

/// One of the lines: a name, a place, the additional arguments.
type SweepLine<'a> = (&'a str, &'a MpiPlace, &'a str);

fn sweep_lines(s: &MpiSession) -> [SweepLine<'_>; 4] {
    [
        ("Tatami's layer", &s.places.layer, ""),
        ("plain, independent", &s.places.disk, ""),
        ("plain, collective", &s.places.disk, "--collective"),
        ("file per process", &s.places.each, ""),
    ]
}

/// Measures every step of every line.
fn measure_lines(
    s: &MpiSession,
    ways: &[SweepLine<'_>],
    steps: &[(String, MpiWorkload, u32)],
    value: impl Fn(&MpiSample) -> f64 + Copy,
) -> Result<Vec<PlotLine>, BenchError> {
    let mut lines: Vec<PlotLine> =
        ways.iter().map(|way| PlotLine { name: way.0.into(), values: Vec::new() }).collect();
    for (step, workload, ranks) in steps {
        print_progress(&format!("  {step}:"));
        let sides: Vec<ComparedSide> = ways
            .iter()
            .map(|(_, place, more)| ComparedSide {
                place: (*place).clone(),
                workload: workload.with_args(more),
                ranks: *ranks,
            })
            .collect();
        let outcome = s.compare_sides(&sides)?;
        for (i, line) in lines.iter_mut().enumerate() {
            line.values.push(Some(outcome.side_median(i, value)));
        }
    }
    Ok(lines)
}

fn empty_plot(title: String, across: &str, up: &str, steps: &[(String, MpiWorkload, u32)]) -> Plot {
    Plot {
        title,
        across: across.into(),
        up: up.into(),
        steps: steps.iter().map(|(name, ..)| name.clone()).collect(),
        ratios: false,
        lines: Vec::new(),
    }
}

/// Plots the bandwidth of strided writes over the number of processes.
pub fn plot_ranks(s: &MpiSession) -> Result<Vec<NamedPlot>, BenchError> {
    let segments = if s.quick { 16 } else { 256 };
    let line = format!("--view --write-only --block 64k --transfer 64k --segments {segments}");
    let steps: Vec<_> = [1, 2, 4, 8]
        .map(|ranks| (ranks.to_string(), MpiWorkload::new("ior", &line), ranks))
        .to_vec();
    let name = s.mpi.name();
    let title = format!("Strided writes of 64 KiB, {name}");
    let lines = measure_lines(s, &sweep_lines(s), &steps, MpiSample::write_rate)?;
    let plot = Plot { lines, ..empty_plot(title, "processes", "MiB/s", &steps) };
    Ok(vec![(format!("mpi-ranks-{name}"), plot)])
}

/// Plots HPIO nc-nc over the size of a region, with the same bytes, and over the spacing.
pub fn plot_regions(s: &MpiSession) -> Result<Vec<NamedPlot>, BenchError> {
    let bytes: u64 = if s.quick { 64 << 10 } else { 1 << 20 };
    let hpio = |size: u64, spacing: u64| {
        let count = bytes / size;
        let line = format!(
            "--pattern nc-nc --write-only --count {count} --size {size} --spacing {spacing}"
        );
        MpiWorkload::new("hpio", &line)
    };
    let name = s.mpi.name();
    let sizes: Vec<_> = [8u64, 64, 512, 4096, 32768]
        .map(|size| (format_size(size), hpio(size, 128), s.ranks))
        .to_vec();
    let title = format!("HPIO nc-nc writes, spacing 128 B, {name}");
    let lines = measure_lines(s, &sweep_lines(s), &sizes, MpiSample::write_rate)?;
    let over_size =
        Plot { lines, ratios: true, ..empty_plot(title, "region size, bytes", "MiB/s", &sizes) };
    let spacings: Vec<_> = [8u64, 64, 512, 4096]
        .map(|spacing| (format_size(spacing), hpio(8, spacing), s.ranks))
        .to_vec();
    let title = format!("HPIO nc-nc writes, regions of 8 B, {name}");
    let lines = measure_lines(s, &sweep_lines(s), &spacings, MpiSample::write_rate)?;
    let over_spacing = Plot {
        lines,
        ratios: true,
        ..empty_plot(title, "region spacing, bytes", "MiB/s", &spacings)
    };
    Ok(vec![
        (format!("mpi-region-size-{name}"), over_size),
        (format!("mpi-region-spacing-{name}"), over_spacing),
    ])
}

/// Plots the seconds of BT-IO's writes over the number of processes.
pub fn plot_btio(s: &MpiSession) -> Result<Vec<NamedPlot>, BenchError> {
    let (class, dumps) = if s.quick { ("S", 2) } else { ("A", 10) };
    let line = format!("--class {class} --dumps {dumps} --write-only");
    let work = MpiWorkload::new("btio", &line);
    let steps: Vec<_> = [1, 4, 9].map(|ranks| (ranks.to_string(), work.clone(), ranks)).to_vec();
    let name = s.mpi.name();
    let ways = [
        ("Tatami's layer, full", &s.places.layer, "--mode full"),
        ("plain, full", &s.places.disk, "--mode full"),
        ("plain, simple", &s.places.disk, "--mode simple"),
        ("file per process", &s.places.each, ""),
    ];
    let lines = measure_lines(s, &ways, &steps, MpiSample::write_seconds)?;
    let title = format!("BT-IO class {class}, {dumps} dumps, {name}");
    let plot = Plot {
        lines,
        ratios: true,
        ..empty_plot(title, "processes", "seconds of writing", &steps)
    };
    Ok(vec![(format!("mpi-btio-{name}"), plot)])
}
