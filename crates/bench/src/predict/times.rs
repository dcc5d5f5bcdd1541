//! The costs of operations as a report has them, and how the measurements yield them.

use serde::{Deserialize, Serialize};
use tatami_sim::scale::{OperationKind, ScaleCosts};

/// CPU time of the operations, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OperationTimes {
    /// Making an empty file.
    pub create: f64,
    /// Making a directory.
    pub mkdir: f64,
    /// Reading the attributes of a file by name.
    pub stat: f64,
    /// Removing a file.
    pub unlink: f64,
}

impl OperationTimes {
    /// Computes a number for each kind.
    pub fn from_kinds(mut number: impl FnMut(OperationKind) -> f64) -> OperationTimes {
        let [create, mkdir, stat, unlink] = OperationKind::ALL.map(&mut number);
        OperationTimes { create, mkdir, stat, unlink }
    }

    fn to_nanos(self) -> [u64; 4] {
        [self.create, self.mkdir, self.stat, self.unlink].map(micros_to_nanos)
    }
}

/// The input of the prediction: CPU time in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeasuredTimes {
    /// Of a server for a request, if the server never sleeps.
    pub request: OperationTimes,
    /// Of a server for a wake-up.
    pub wake: f64,
    /// Of a server to send a reply: a part of `request`.
    pub send: f64,
    /// Of a server for a message to another server, and for one from it.
    pub message: f64,
    /// Of a server for a record in a `Prepare` message to another server, and for one from it.
    pub record: f64,
    /// Of a client, from a reply to the next request.
    pub client: OperationTimes,
}

fn micros_to_nanos(micros: f64) -> u64 {
    (micros.max(0.0) * 1e3).round() as u64
}

impl MeasuredTimes {
    /// Converts the times for the simulator. A reply that redirects a client costs as much as one
    /// with attributes.
    pub fn to_costs(self) -> ScaleCosts {
        ScaleCosts {
            request: self.request.to_nanos(),
            send: micros_to_nanos(self.send),
            correction: micros_to_nanos(self.request.stat),
            wake: micros_to_nanos(self.wake),
            message: micros_to_nanos(self.message),
            record: micros_to_nanos(self.record),
            client: self.client.to_nanos(),
        }
    }
}

/// Returns the name of a kind of operation in reports.
pub fn kind_name(kind: OperationKind) -> &'static str {
    match kind {
        OperationKind::Create => "create",
        OperationKind::Mkdir => "mkdir",
        OperationKind::Stat => "stat",
        OperationKind::Unlink => "unlink",
    }
}

/// One measurement, per operation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeasuredPoint {
    /// Number of servers.
    pub servers: u16,
    /// Number of client processes.
    pub procs: usize,
    /// `create`, `mkdir`, `stat` or `unlink`
    pub operation: String,
    /// CPU time of all servers, in microseconds.
    pub server_us: f64,
    /// CPU time of the client, in microseconds.
    pub client_us: f64,
    /// Number of times that a server went to sleep.
    pub sleeps: f64,
    /// Operations per second of all processes together.
    pub rate: f64,
}

/// Computes the CPU time of a request if the server never sleeps, and that of a wake-up, by least
/// squares. All operations have the same cost of a wake-up; each has its own cost of a request.
/// `None` without a point.
pub fn fit_times(points: &[&MeasuredPoint]) -> Option<(OperationTimes, f64)> {
    let of = |kind: OperationKind| points.iter().filter(move |p| p.operation == kind_name(kind));
    let mean = |kind: OperationKind, number: fn(&MeasuredPoint) -> f64| {
        let (sum, count) = of(kind).fold((0.0, 0), |(s, n), p| (s + number(p), n + 1));
        (count > 0).then(|| sum / f64::from(count))
    };
    let (mut both, mut square) = (0.0, 0.0);
    let mut means = Vec::new();
    for kind in OperationKind::ALL {
        let (sleeps, takes) = (mean(kind, |p| p.sleeps)?, mean(kind, |p| p.server_us)?);
        for p in of(kind) {
            both += (p.sleeps - sleeps) * (p.server_us - takes);
            square += (p.sleeps - sleeps).powi(2);
        }
        means.push((sleeps, takes));
    }
    // If all points have the same number of sleeps, the two costs cannot be separated, and the
    // wake-up is a part of the request.
    let wake = if square > 1e-6 { (both / square).max(0.0) } else { 0.0 };
    let request = |kind: OperationKind| {
        let (sleeps, takes) = means[kind as usize];
        // A request takes some time, however noisy the measurement is.
        (takes - wake * sleeps).max(takes / 10.0)
    };
    Some((OperationTimes::from_kinds(request), wake))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fit_tells_requests_from_being_woken() {
        let point = |kind: OperationKind, sleeps: f64| MeasuredPoint {
            servers: 1,
            procs: 1,
            operation: kind_name(kind).into(),
            server_us: 10.0 + kind as usize as f64 + 5.0 * sleeps,
            client_us: 1.0,
            sleeps,
            rate: 1.0,
        };
        let points: Vec<_> = OperationKind::ALL
            .into_iter()
            .flat_map(|kind| [0.1, 0.5, 1.0].map(|sleeps| point(kind, sleeps)))
            .collect();
        let (request, wake) =
            fit_times(&points.iter().collect::<Vec<_>>()).expect("points of each");
        assert!((wake - 5.0).abs() < 1e-9, "{wake}");
        assert!((request.create - 10.0).abs() < 1e-9 && (request.unlink - 13.0).abs() < 1e-9);
        assert_eq!(fit_times(&[]), None);
        let same: Vec<_> = OperationKind::ALL.into_iter().map(|kind| point(kind, 1.0)).collect();
        let (request, wake) = fit_times(&same.iter().collect::<Vec<_>>()).expect("points of each");
        assert_eq!((request.create, wake), (15.0, 0.0));
    }

    #[test]
    fn times_survive_a_file() {
        let each = OperationTimes { create: 20.5, mkdir: 1.0, stat: 2.0, unlink: 3.0 };
        let times = MeasuredTimes {
            request: each,
            wake: 1.5,
            send: 0.25,
            message: 9.0,
            record: 1.0,
            client: each,
        };
        let text = serde_json::to_string(&times).expect("plain data");
        assert_eq!(serde_json::from_str::<MeasuredTimes>(&text).expect("what we wrote"), times);
        let costs = times.to_costs();
        assert_eq!((costs.request[0], costs.wake, costs.correction), (20_500, 1_500, 2_000));
    }
}
