//! Counts the metadata requests that a piece of work costs, at the daemons.

use crate::Cluster;
use std::time::{Duration, Instant};

/// Longest time for work that is repeated until it costs as few requests as expected.
const DEADLINE: Duration = Duration::from_secs(120);

/// Returns the number of metadata requests that the daemons have served so far.
pub fn count_requests(cluster: &Cluster) -> u64 {
    let status = cluster.status();
    let nodes = status["nodes"].as_array().expect("nodes");
    nodes.iter().map(|node| node["meta_requests"].as_u64().expect("a number")).sum()
}

/// Calls `work` with 0, 1 and so on, until it has cost at most `most` requests. Background work and
/// recalls have some of their own.
pub fn expect_requests(cluster: &Cluster, what: &str, most: u64, mut work: impl FnMut(u32)) {
    let deadline = Instant::now() + DEADLINE;
    for round in 0.. {
        let before = count_requests(cluster);
        work(round);
        let now = count_requests(cluster) - before;
        if now <= most {
            eprintln!("{what}: {now} requests, at most {most}");
            return;
        }
        assert!(Instant::now() < deadline, "{what}: {now} requests, more than {most}");
    }
}
