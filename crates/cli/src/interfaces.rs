//! The addresses of this machine.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Returns the addresses of the network interfaces of this machine, without those that no other
/// machine reaches: of the loopback and of one link alone. Empty if the system lists none.
pub fn list_addresses() -> Vec<IpAddr> {
    let mut list: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: the call writes a list to `list`, or fails and leaves it as it is.
    if unsafe { libc::getifaddrs(&mut list) } != 0 {
        return Vec::new();
    }
    let mut found = Vec::new();
    let mut next = list;
    // SAFETY: `next` is null at the end of the list, and otherwise an element of it; the list lives
    // until `freeifaddrs`.
    while let Some(element) = unsafe { next.as_ref() } {
        // SAFETY: the pointer is null for an interface without an address, and otherwise that of an
        // address of the list.
        found.extend(unsafe { read_address(element.ifa_addr) });
        next = element.ifa_next;
    }
    // SAFETY: the list came from `getifaddrs`, and nothing refers to it any more.
    unsafe { libc::freeifaddrs(list) };
    found.retain(|address| match address {
        IpAddr::V4(address) => !address.is_loopback() && !address.is_link_local(),
        IpAddr::V6(address) => !address.is_loopback() && !address.is_unicast_link_local(),
    });
    found
}

/// Returns the address at this pointer, if it is one of IP.
///
/// # Safety
/// The pointer is null, or that of a whole socket address of the family that it names.
unsafe fn read_address(address: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: as the caller promises.
    let family = unsafe { address.as_ref() }?.sa_family;
    match i32::from(family) {
        libc::AF_INET => {
            // SAFETY: the family says that the address has this type.
            let address = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let address = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(Ipv6Addr::from(address.sin6_addr.s6_addr).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_those_that_this_machine_can_listen_on() {
        for address in list_addresses() {
            assert!(!address.is_loopback(), "{address}");
            std::net::TcpListener::bind((address, 0)).unwrap_or_else(|e| panic!("{address}: {e}"));
        }
    }
}
