//! The relays on the login hosts of a way (`tatami relay`), for data connections through them.
//!
//! ```text
//! session ── TCP ──▶ near relay ══▶ far relay ══▶ I/O process
//!            proof 1 ▲      proof 2 ▲  TLS, proof 3 ▲
//! ```
//!
//! The far relay connects to the place of the I/O process, and offers one of its own. The near
//! relay connects to that. So each place is made before the connection that goes to it.

use crate::data_stream::{connect_to_any, prove_to_relay};
use crate::remote_message::{DataOffer, RemoteCall, RemoteReply};
use crate::site_address::SiteAddress;
use crate::site_hops::SiteHops;
use crate::ssh_link::SshLink;
use std::io;
use std::os::fd::OwnedFd;

/// The relays of a session. They run as long as it uses the same login hosts.
#[derive(Debug, Default)]
pub(crate) struct RelayChain {
    hops: SiteHops,
    /// From the I/O process to this side.
    links: Vec<SshLink>,
}

impl RelayChain {
    /// Returns a connection through relays on these hosts to the place of an offer.
    ///
    /// # Errors
    /// A relay cannot be started, or one of its connections cannot be made.
    pub(crate) fn reach_place(
        &mut self,
        site: &SiteAddress,
        hops: &SiteHops,
        offer: &DataOffer,
    ) -> io::Result<OwnedFd> {
        let is_new = self.hops != *hops || self.links.is_empty();
        match self.try_reach(site, hops, offer) {
            // A relay may have ended since it was used last.
            Err(_) if !is_new => self.try_reach(site, hops, offer),
            reached => reached,
        }
    }

    fn try_reach(
        &mut self,
        site: &SiteAddress,
        hops: &SiteHops,
        offer: &DataOffer,
    ) -> io::Result<OwnedFd> {
        let mut links = std::mem::take(&mut self.links);
        if self.hops != *hops || links.is_empty() {
            links = open_relays(site, hops).map_err(io::Error::other)?;
            self.hops = hops.clone();
        }
        let mut addresses = offer.addresses.clone();
        addresses.push(site.host.clone());
        let (mut port, mut places) = (offer.port, Vec::new());
        for (link, router) in links.iter_mut().zip(hops.in_order().iter().rev()) {
            let place = match link.call(&RemoteCall::OpenRelay { addresses, port })? {
                RemoteReply::Offer(place) => place,
                RemoteReply::Failed(failure) => {
                    return Err(io::Error::other(format!("router {router}: {}", failure.what)));
                }
                _ => return Err(io::ErrorKind::InvalidData.into()),
            };
            addresses = place.addresses.clone();
            addresses.push(router.host.clone());
            port = place.port;
            places.push(place);
        }
        let mut socket = connect_to_any(&addresses, port)?;
        // Each relay passes on what follows its own proof.
        for place in places.iter().rev() {
            socket = prove_to_relay(socket, place).map_err(io::Error::other)?;
        }
        self.links = links;
        Ok(socket)
    }
}

/// Starts a relay on each host of the way, the far one first.
fn open_relays(site: &SiteAddress, hops: &SiteHops) -> Result<Vec<SshLink>, String> {
    let mut links = Vec::new();
    if let Some(far) = &hops.far {
        // The program lies there where it lies on the other hosts of that site.
        let host = SiteAddress { program: site.program.clone(), ..SiteAddress::of_router(far) };
        let before = SiteHops { near: hops.near.clone(), far: None };
        links.push(SshLink::open_relay(&host, &before)?);
    }
    if let Some(near) = &hops.near {
        links.push(SshLink::open_relay(&SiteAddress::of_router(near), &SiteHops::default())?);
    }
    Ok(links)
}
