//! Running programs on hosts, and the medians of what they say.

use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::time::Instant;
use tatami_tests::command::{ask, run};
use tatami_tests::testbed::TestHost;

/// Rounds of each measurement; the median counts.
pub const ROUNDS: usize = 3;
/// Bytes of the large arrays, and of the baselines.
pub const LARGE: f64 = 64.0 * 1048576.0;
/// Bytes of a mebibyte.
pub const MIB: f64 = 1048576.0;
/// Variables of all MPI programs: they run as root, with more ranks than processors.
pub const SETTINGS: &str = "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
    OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_mpi_yield_when_idle=1 \
    TATAMI_MPI_LIBRARY=/usr/local/bin/libtatami_mpi.so;";

/// The seconds of a measurement, medians of all rounds.
#[derive(Clone, Copy, Debug)]
pub struct RoundTimes {
    /// The open.
    pub open: f64,
    /// The calls that move bytes.
    pub pure: f64,
    /// The close.
    pub close: f64,
    /// From the open to the end of the close.
    pub total: f64,
    /// CPU time of the whole machine meanwhile.
    pub cpu: f64,
}

impl RoundTimes {
    /// Nothing was measured.
    pub const NONE: RoundTimes = RoundTimes {
        open: f64::NAN,
        pure: f64::NAN,
        close: f64::NAN,
        total: f64::NAN,
        cpu: f64::NAN,
    };
}

/// The measurements of one program: by what was measured, the library and the direction.
pub type Measured = BTreeMap<(String, String, String), RoundTimes>;

/// Runs a command line on a host, which must be a success, and returns what it says.
pub fn quietly(host: &TestHost, line: &str) -> String {
    run(&mut host.command(line)).out
}

/// Returns the median; NaN of nothing.
pub fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Returns the seconds that a command line takes on a host.
pub fn time_command(host: &TestHost, line: &str) -> f64 {
    let start = Instant::now();
    quietly(host, line);
    start.elapsed().as_secs_f64()
}

/// Returns the median of all rounds.
pub fn median_of(work: impl FnMut(usize) -> f64) -> f64 {
    median((0..ROUNDS).map(work).collect())
}

/// Runs the program and returns the medians of its rounds; `None` if it fails.
pub fn run_program(host: &TestHost, line: &str) -> Option<Measured> {
    let said = ask(&mut host.command(line));
    if said.code != Some(0) {
        eprintln!("{line}: {:?}\n{}", said.code, said.err);
        return None;
    }
    let mut rounds: BTreeMap<_, Vec<Value>> = BTreeMap::new();
    for line in said.out.lines() {
        let value: Value = serde_json::from_str(line).expect("a line of JSON");
        let word = |key: &str| value[key].as_str().unwrap_or_default().to_owned();
        rounds.entry((word("what"), word("library"), word("how"))).or_default().push(value);
    }
    let of = |values: &[Value], key: &str| {
        median(values.iter().filter_map(|value| value[key].as_f64()).collect())
    };
    let times = |values: Vec<Value>| {
        let [open, pure, close, total, cpu] =
            ["open", "pure", "close", "total", "cpu"].map(|key| of(&values, key));
        RoundTimes { open, pure, close, total, cpu }
    };
    Some(rounds.into_iter().map(|(key, values)| (key, times(values))).collect())
}

/// Returns the figures for the report.
pub fn list_figures(measured: &Measured) -> Value {
    let mut all = Map::new();
    for ((what, library, how), times) in measured {
        let RoundTimes { open, pure, close, total, cpu } = times;
        let figures =
            json!({ "open": open, "pure": pure, "close": close, "total": total, "cpu": cpu });
        all.insert(format!("{what}, {library}, {how}"), figures);
    }
    all.into()
}

/// Returns one measurement.
pub fn find(measured: &Measured, what: &str, library: &str, how: &str) -> Option<RoundTimes> {
    measured.get(&(what.to_owned(), library.to_owned(), how.to_owned())).copied()
}
