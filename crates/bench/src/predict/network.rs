//! The networks of predictions, in the terms of the simulator.

use tatami_bench_args::{PredictNetwork, SERVERS_MAX};
use tatami_sim::scale::{self, NetworkDelay, OperationKind};

const _: () = assert!(SERVERS_MAX == scale::SERVERS_MAX, "the command line has the same bound");

/// Returns the name in reports.
pub fn network_name(network: PredictNetwork) -> &'static str {
    match network {
        PredictNetwork::Ethernet => "Ethernet",
        PredictNetwork::Infiniband => "InfiniBand",
        PredictNetwork::WideArea => "wide-area",
    }
}

/// Returns the delays in the simulator.
pub fn network_delay(network: PredictNetwork) -> NetworkDelay {
    match network {
        PredictNetwork::Ethernet => NetworkDelay::ETHERNET,
        PredictNetwork::Infiniband => NetworkDelay::INFINIBAND,
        PredictNetwork::WideArea => NetworkDelay::WIDE,
    }
}

/// Returns the predicted kinds of operations. A wide-area network needs many requests under
/// way, and so each kind takes long to simulate; it gets fewer kinds.
pub fn predicted_kinds(network: PredictNetwork) -> &'static [OperationKind] {
    match network {
        PredictNetwork::Ethernet | PredictNetwork::Infiniband => &OperationKind::ALL,
        PredictNetwork::WideArea => &OperationKind::ALL[..3],
    }
}

/// Returns the number of requests that a process has under way at the same time: enough to keep
/// its share of a server busy while they travel.
pub fn request_depth(network: PredictNetwork) -> u32 {
    match network {
        PredictNetwork::Ethernet | PredictNetwork::Infiniband => 1,
        PredictNetwork::WideArea => 32,
    }
}
