//! Progress of a measurement, on standard error.

use std::io::Write;

/// Reports progress. A closed standard error does not stop the measurement.
pub fn print_progress(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}
