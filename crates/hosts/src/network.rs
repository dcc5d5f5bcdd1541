//! Addresses of machines and the networks in which they lie.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// A network, in the form `10.1.0.0/16` or `fd00:1::/64`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpNetwork {
    address: IpAddr,
    /// The number of leading bits that all addresses of the network have.
    prefix: u8,
}

/// The text is no network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no network, such as 10.1.0.0/16 or fd00:1::/64")]
pub struct IpNetworkError(String);

impl IpNetwork {
    /// Returns whether an address lies in the network.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address) {
            (IpAddr::V4(network), IpAddr::V4(address)) => {
                let differing = (network.to_bits() ^ address.to_bits()).leading_zeros();
                differing >= u32::from(self.prefix)
            }
            (IpAddr::V6(network), IpAddr::V6(address)) => {
                let differing = (network.to_bits() ^ address.to_bits()).leading_zeros();
                differing >= u32::from(self.prefix)
            }
            _ => false,
        }
    }
}

impl FromStr for IpNetwork {
    type Err = IpNetworkError;

    fn from_str(text: &str) -> Result<IpNetwork, IpNetworkError> {
        let parse = || {
            let (address, prefix) = text.split_once('/')?;
            let address: IpAddr = address.parse().ok()?;
            // `parse` takes a plus sign, too.
            let is_number = !prefix.is_empty() && prefix.bytes().all(|b| b.is_ascii_digit());
            let prefix: u8 = is_number.then(|| prefix.parse().ok())??;
            let most = if address.is_ipv4() { 32 } else { 128 };
            (prefix <= most).then_some(IpNetwork { address, prefix })
        };
        parse().ok_or_else(|| IpNetworkError(text.to_owned()))
    }
}

impl fmt::Display for IpNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

/// Returns `host:port`; an IPv6 address gets brackets, `[fd00::1]:7400`.
pub fn join_address(host: &str, port: u16) -> String {
    let host = strip_brackets(host);
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// Checks that an IPv6 address before a port has brackets: otherwise its last group would count as
/// the port.
///
/// # Errors
/// It has none. The text says how to write it.
pub fn check_brackets(address: &str) -> Result<String, String> {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    match host.contains(':') && !(host.starts_with('[') && host.ends_with(']')) {
        true => Err("an IPv6 address has brackets before its port: [fd00::1]:7400".to_owned()),
        false => Ok(address.to_owned()),
    }
}

/// Returns the host of `host:port`, an IPv6 address without its brackets.
pub fn host_of_address(address: &str) -> &str {
    strip_brackets(address.rsplit_once(':').map_or(address, |(host, _)| host))
}

/// Returns a host without the brackets of an IPv6 address.
pub fn strip_brackets(host: &str) -> &str {
    host.strip_prefix('[').and_then(|inside| inside.strip_suffix(']')).unwrap_or(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lies_in(address: &str, network: &str) -> bool {
        let network: IpNetwork = network.parse().expect(network);
        network.contains(address.parse().expect(address))
    }

    #[test]
    fn an_address_lies_in_a_network_with_the_same_first_bits() {
        for (address, network) in [
            ("10.77.0.9", "10.77.0.0/24"),
            ("10.77.0.9", "10.77.0.9/32"),
            ("10.77.0.9", "10.0.0.1/8"),
            ("192.0.2.1", "0.0.0.0/0"),
            ("fd00:77::9", "fd00:77::/64"),
            ("fd00:77::9", "::/0"),
        ] {
            assert!(lies_in(address, network), "{address} in {network}");
        }
        for (address, network) in [
            ("10.78.0.9", "10.77.0.0/24"),
            ("10.77.0.128", "10.77.0.0/25"),
            ("fd00:78::9", "fd00:77::/64"),
            ("fd00:77::9", "0.0.0.0/0"),
            ("10.77.0.9", "::/0"),
        ] {
            assert!(!lies_in(address, network), "{address} in {network}");
        }
    }

    #[test]
    fn other_texts_are_no_networks() {
        for text in
            ["", "10.0.0.0", "10.0.0.0/33", "10.0.0.0/+8", "10.0.0.0/", "::/129", "n1/8", "/8"]
        {
            assert!(text.parse::<IpNetwork>().is_err(), "{text}");
        }
        let network: IpNetwork = "fd00::/8".parse().expect("a network");
        assert_eq!(network.to_string(), "fd00::/8");
    }

    #[test]
    fn an_ipv6_address_has_brackets_before_its_port() {
        assert_eq!(join_address("n1", 7400), "n1:7400");
        assert_eq!(join_address("fd00::1", 7400), "[fd00::1]:7400");
        assert_eq!(join_address("[fd00::1]", 7400), "[fd00::1]:7400");
        assert_eq!(host_of_address("[fd00::1]:7400"), "fd00::1");
        assert_eq!(host_of_address("10.0.0.1:7400"), "10.0.0.1");
        assert_eq!(host_of_address("n1"), "n1");
        for good in ["n1:7400", "10.0.0.1:7400", "[fd00::1]:7400"] {
            assert_eq!(check_brackets(good).as_deref(), Ok(good));
        }
        for wrong in ["fd00::1:7400", "fd00::1", "[fd00::1:7400"] {
            assert!(check_brackets(wrong).is_err(), "{wrong}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_a_network_or_an_error(text in "[0-9a-f:./+]{0,30}") {
            if let Ok(network) = text.parse::<IpNetwork>() {
                proptest::prop_assert_eq!(network.to_string().parse::<IpNetwork>(), Ok(network));
            }
        }
    }
}
