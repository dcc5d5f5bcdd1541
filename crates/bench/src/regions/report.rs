//! The report of the engine of regions.

use crate::stats::ratio_or_zero;
use crate::table::{ReportTable, format_percent};
use serde::{Deserialize, Serialize};
use tatami_bench_args::size;
use tatami_plot::format_number;

/// One kind of operation at one depth.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct RegionPhase {
    /// Its name.
    pub phase: String,
    /// Threads, each with one operation at a time.
    pub depth: usize,
    /// Operations.
    pub ops: u64,
    /// Operations per second until all are accepted; of writes, also synced.
    pub ops_per_sec: f64,
    /// Operations per second until all are in their regions, on the device. Only writes.
    pub stored_per_sec: Option<f64>,
    /// Requests per second of fio on the same device, with the same size and depth.
    pub fio_per_sec: Option<f64>,
    /// The rate against that of fio: `stored_per_sec`, or else `ops_per_sec`.
    pub ratio: Option<f64>,
    /// Bytes written to journal and device for an operation. Only writes.
    pub written_per_op: Option<f64>,
    /// CPU time for an operation, in microseconds: threads, write-back and the kernel.
    pub cpu_us_per_op: f64,
    /// Share of CPU time that the host gave to others, 0 to 1.
    pub stolen: f64,
}

impl RegionPhase {
    /// Adds the rate of fio, if there is one.
    pub fn with_fio(mut self, rate: Option<f64>) -> RegionPhase {
        let own = self.stored_per_sec.unwrap_or(self.ops_per_sec);
        self.fio_per_sec = rate;
        self.ratio = rate.map(|rate| ratio_or_zero(own, rate));
        self
    }
}

/// The report of `tatami bench regions`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RegionsReport {
    /// `regions`
    pub workload: String,
    /// The device, or the file.
    pub device: String,
    /// Objects of each depth.
    pub objects: u64,
    /// Bytes of an object.
    pub size: u64,
    /// Why there is no rate of fio; absent if there is one.
    pub without_fio: Option<String>,
    /// Bytes of regions that an object takes, with its head.
    pub bytes_per_object: f64,
    /// All phases.
    pub phases: Vec<RegionPhase>,
}

impl RegionsReport {
    /// Renders the report for people.
    pub fn render(&self) -> String {
        let mut table = ReportTable::new(&[
            "phase",
            "depth",
            "ops/s",
            "in regions/s",
            "fio/s",
            "ratio",
            "bytes/op",
            "CPU µs/op",
            "stolen",
        ]);
        let optional = |value: Option<f64>| value.map_or("–".into(), format_number);
        for row in &self.phases {
            table.add_row(vec![
                row.phase.clone(),
                row.depth.to_string(),
                format_number(row.ops_per_sec),
                optional(row.stored_per_sec),
                optional(row.fio_per_sec),
                row.ratio.map_or("–".into(), |ratio| format!("{ratio:.2}")),
                optional(row.written_per_op),
                format_number(row.cpu_us_per_op),
                format_percent(row.stolen),
            ]);
        }
        let mut text = format!(
            "regions on {}: {} objects of {} for each depth, {} bytes of regions for an object\n{}",
            self.device,
            format_number(self.objects as f64),
            size::format_size(self.size),
            format_number(self.bytes_per_object),
            table.render()
        );
        if let Some(reason) = &self.without_fio {
            text += &format!("no baseline: {reason}\n");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_counts_when_it_is_in_its_region() {
        let phase = |stored| RegionPhase {
            phase: "make".into(),
            depth: 4,
            ops_per_sec: 100.0,
            stored_per_sec: stored,
            ..RegionPhase::default()
        };
        assert_eq!(phase(Some(80.0)).with_fio(Some(160.0)).ratio, Some(0.5));
        assert_eq!(phase(None).with_fio(Some(200.0)).ratio, Some(0.5));
        let report = RegionsReport {
            workload: "regions".into(),
            device: "/dev/loop7".into(),
            objects: 1000,
            size: 4096,
            without_fio: Some("fio is not installed".into()),
            bytes_per_object: 4224.0,
            phases: vec![phase(Some(80.0)).with_fio(None)],
        };
        let text = report.render();
        assert!(text.contains("4,224 bytes") && text.contains("no baseline: fio is not"), "{text}");
        assert!(text.contains("make") && text.contains("–"), "{text}");
    }
}
