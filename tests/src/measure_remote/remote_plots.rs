//! Plots of rates over the size of the array: the whole time from the open to the close, and that
//! of the calls which move bytes.

use crate::figures::MIB;
use serde_json::Value;
use std::path::Path;
use tatami_plot::{Plot, PlotLine};

/// The arrays of a type, and their bytes.
type PlottedArrays = [(&'static str, f64); 3];

const TYPES: [(&str, PlottedArrays); 2] = [
    ("int", [("16x16x16", 16384.0), ("64x64x64", 1048576.0), ("256x256x256", 67108864.0)]),
    ("double", [("16x16x8", 16384.0), ("64x64x32", 1048576.0), ("256x256x128", 67108864.0)]),
];

/// Draws a plot for each network, number of ranks, type and direction to a directory.
pub fn draw_plots(report: &[Value], into: &Path) {
    for network in report {
        let name = network["network"].as_str().unwrap_or_default();
        for job in network["jobs"].as_array().into_iter().flatten() {
            for (kind, arrays) in TYPES {
                for how in ["write", "read"] {
                    let plot = make_plot(name, job, (kind, arrays), how);
                    let word = |text: &str| text.replace(|c: char| !c.is_alphanumeric(), "-");
                    let file = format!("{}-{}-ranks-{kind}-{how}.svg", word(name), job["ranks"]);
                    plot.draw(&into.join(file.to_lowercase())).expect("it can be written");
                }
            }
        }
    }
}

fn make_plot(network: &str, job: &Value, (kind, arrays): (&str, PlottedArrays), how: &str) -> Plot {
    let lines = [
        ("PnetCDF, total", "tatami", "pnetcdf", "total"),
        ("PnetCDF, pure I/O", "tatami", "pnetcdf", "pure"),
        ("MPI-IO, total", "tatami", "mpi", "total"),
        ("MPI-IO, pure I/O", "tatami", "mpi", "pure"),
        ("MPI-IO on sshfs, total", "sshfs", "mpi", "total"),
    ];
    let lines = lines.map(|(name, way, library, time)| {
        let values = arrays.iter().map(|(array, bytes)| {
            let key = format!("{kind} {array}, {library}, {how}");
            let seconds = job[way][&key][time].as_f64().filter(|seconds| *seconds > 0.0)?;
            Some(bytes / MIB / seconds)
        });
        PlotLine { name: name.to_owned(), values: values.collect() }
    });
    let is_measured = |line: &PlotLine| line.values.iter().any(Option::is_some);
    Plot {
        title: format!("{how} of {kind} arrays, {} ranks, {network}", job["ranks"]),
        across: "size of the array".to_owned(),
        up: "MiB/s".to_owned(),
        steps: arrays.iter().map(|(array, _)| (*array).to_owned()).collect(),
        ratios: true,
        lines: lines.into_iter().filter(is_measured).collect(),
    }
}
