//! fio, if it is installed, as the baseline of the engine: the same requests on the bare device.

use crate::error::BenchError;
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Stdio};

const PROGRAM: &str = "fio";

/// What fio does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FioWork {
    /// Reads in random order.
    Read,
    /// Writes in random order.
    Write,
    /// Writes in random order, each with fdatasync(2).
    SyncedWrite,
}

/// A run of fio.
#[derive(Clone, Copy, Debug)]
pub struct FioRun<'a> {
    /// The partition, loop device or file.
    pub device: &'a Path,
    /// Where the range begins that it uses, in bytes.
    pub offset: u64,
    /// Length of this range, in bytes.
    pub len: u64,
    /// Bytes of a request.
    pub size: u64,
    /// Requests under way at a time.
    pub depth: usize,
    /// Number of requests, at least `depth`.
    pub requests: u64,
}

/// Whether fio can be started.
pub fn is_fio_installed() -> bool {
    let mut version = Command::new(PROGRAM);
    version.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    version.status().is_ok_and(|status| status.success())
}

impl FioRun<'_> {
    /// Returns the arguments of fio.
    fn arguments(&self, work: FioWork) -> Vec<String> {
        // A process waits for its fdatasync(2), so a depth of such writes takes as many processes.
        let is_synced = work == FioWork::SyncedWrite;
        let (jobs, depth) = if is_synced { (self.depth, 1) } else { (1, self.depth) };
        let kind = if work == FioWork::Read { "randread" } else { "randwrite" };
        let mut all = vec![
            "--name=regions".to_owned(),
            format!("--filename={}", self.device.display()),
            format!("--rw={kind}"),
            format!("--bs={}", self.size),
            format!("--offset={}", self.offset),
            format!("--size={}", self.len),
            format!("--number_ios={}", self.requests / jobs as u64),
            format!("--numjobs={jobs}"),
            format!("--iodepth={depth}"),
        ];
        let fixed = ["--direct=1", "--ioengine=io_uring", "--thread", "--group_reporting"];
        all.extend(fixed.into_iter().chain(["--output-format=json"]).map(str::to_owned));
        if is_synced {
            all.push("--fdatasync=1".into());
        }
        all
    }

    /// Runs fio, and returns requests a second.
    ///
    /// # Errors
    /// The message of fio.
    pub fn measure_rate(&self, work: FioWork) -> Result<f64, BenchError> {
        let failed = |problem| BenchError::Program { program: PROGRAM.into(), problem };
        let mut command = Command::new(PROGRAM);
        let said = command.args(self.arguments(work)).stdin(Stdio::null()).output();
        let said = said.map_err(|e| failed(format!("does not start: {e}")))?;
        if !said.status.success() {
            let text = String::from_utf8_lossy(&said.stderr);
            return Err(failed(format!("fails: {}", text.trim())));
        }
        let text = String::from_utf8_lossy(&said.stdout);
        let rate = parse_rate(&text, work);
        rate.ok_or_else(|| failed("reports no rate: is it version 3?".into()))
    }
}

/// Returns requests a second of a report.
fn parse_rate(report: &str, work: FioWork) -> Option<f64> {
    // Some versions write a warning in front.
    let report: Value = serde_json::from_str(&report[report.find('{')?..]).ok()?;
    let side = if work == FioWork::Read { "read" } else { "write" };
    report["jobs"][0][side]["iops"].as_f64().filter(|rate| *rate > 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn synced_writes_have_a_process_each() {
        let device = Path::new("/dev/loop7");
        let run = FioRun { device, offset: 4096, len: 1 << 20, size: 4096, depth: 4, requests: 64 };
        let has = |work, argument: &str| run.arguments(work).iter().any(|a| a == argument);
        for argument in ["--iodepth=4", "--numjobs=1", "--number_ios=64", "--rw=randread"] {
            assert!(has(FioWork::Read, argument), "{argument}");
        }
        for argument in ["--iodepth=1", "--numjobs=4", "--number_ios=16", "--fdatasync=1"] {
            assert!(has(FioWork::SyncedWrite, argument), "{argument}");
        }
        assert!(!has(FioWork::Write, "--fdatasync=1") && has(FioWork::Write, "--rw=randwrite"));
    }

    #[test]
    fn the_rate_is_that_of_the_direction() {
        let report = r#"note: x
            {"jobs": [{"read": {"iops": 0.0}, "write": {"iops": 1234.5}}]}"#;
        assert_eq!(parse_rate(report, FioWork::Write), Some(1234.5));
        assert_eq!(parse_rate(report, FioWork::Read), None);
        assert_eq!(parse_rate("", FioWork::Read), None);
    }
}
