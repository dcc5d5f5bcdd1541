//! Ports for daemons, chosen when a node is made and kept for good.
//!
//! They lie below the range from which the system takes ports for outgoing connections. Such a
//! connection could otherwise occupy the port of a daemon that is stopped.

use crate::error::{CommandFailure, CommandResult};
use std::net::{TcpListener, UdpSocket};
use std::ops::Range;
use tatami_hosts::network::strip_brackets;

/// Lowest port that is chosen: many lower ones belong to well-known services.
const LOWEST_PORT: u16 = 16 * 1024;
/// Random ports tried for each wanted one, before the system chooses.
const ATTEMPTS: usize = 64;

/// Finds `count` ports of `host` that no process uses now. All are held until the last is found, so
/// that they differ.
///
/// # Errors
/// The host is not this machine, or has no port left.
pub(crate) fn find_free_ports(host: &str, count: u16) -> CommandResult<Vec<u16>> {
    let host = strip_brackets(host);
    let refused = |error: std::io::Error| {
        CommandFailure::new(format!("no free port on {host}")).because(error).try_this(
            "set node.listen (--node-listen) to an address of this machine; `ip address` lists \
            them",
        )
    };
    let range = LOWEST_PORT..first_outgoing_port();
    let mut held = Vec::new();
    for _ in 0..count {
        let one = (0..ATTEMPTS)
            .filter_map(|_| random_port(&range))
            .find_map(|port| TcpListener::bind((host, port)).ok());
        match one {
            Some(listener) => held.push(listener),
            None => held.push(TcpListener::bind((host, 0)).map_err(refused)?),
        }
    }
    held.iter().map(|l| l.local_addr().map(|a| a.port()).map_err(refused)).collect()
}

/// Returns the first port that outgoing connections may get.
fn first_outgoing_port() -> u16 {
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range");
    let first = range.ok().and_then(|text| text.split_whitespace().next()?.parse().ok());
    // The default of the kernel.
    first.unwrap_or(32768)
}

/// Returns a random port of the range; `None` if the range is empty.
fn random_port(range: &Range<u16>) -> Option<u16> {
    let mut random = [0; 4];
    getrandom::fill(&mut random).ok()?;
    let count = u32::from(range.end.checked_sub(range.start)?);
    Some(range.start + u32::from_ne_bytes(random).checked_rem(count)? as u16)
}

/// Returns the address of this machine from which it sends to `other`. Sends nothing.
pub fn own_address_towards(other: &str) -> Option<String> {
    let any = if other.contains(':') { "[::]:0" } else { "0.0.0.0:0" };
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect((other, 9)).ok()?;
    let ip = socket.local_addr().ok()?.ip();
    (!ip.is_loopback() && !ip.is_unspecified()).then(|| ip.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_free_and_differ_and_no_outgoing_connection_has_them() {
        let mut ports = find_free_ports("127.0.0.1", 8).expect("there are eight");
        let range = LOWEST_PORT..first_outgoing_port();
        // A system may use all ports for outgoing connections.
        assert!(range.is_empty() || ports.iter().all(|port| range.contains(port)), "{ports:?}");
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), 8);
    }

    #[test]
    fn a_host_that_is_elsewhere_is_refused_with_what_to_do() {
        // An address for documentation (RFC 5737), which no machine has.
        let report =
            find_free_ports("192.0.2.1", 1).expect_err("no address of this machine").report();
        assert!(report.contains("192.0.2.1") && report.contains("--node-listen"), "{report}");
    }

    #[test]
    fn a_range_without_ports_leaves_it_to_the_system() {
        let (low, high) = (5, 6);
        assert_eq!((random_port(&(low..low)), random_port(&(high..low))), (None, None));
        assert_eq!(random_port(&(5..6)), Some(5));
    }
}
