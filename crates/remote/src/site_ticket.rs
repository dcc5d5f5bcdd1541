//! The facts by which the ranks of an open find the file that rank 0 has begun to open there.

use crate::site_address::{SiteAddress, SiteFile};
use crate::site_backend::SiteBackend;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

/// A file of another site, and the token of its open there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SiteTicket {
    /// The file.
    pub file: SiteFile,
    /// The token of the I/O process of rank 0.
    pub token: Vec<u8>,
    /// The back end that it has chosen.
    pub backend: SiteBackend,
}

#[derive(Serialize, Deserialize)]
struct TicketFields {
    site: SiteAddress,
    path: Vec<u8>,
    token: Vec<u8>,
    backend: SiteBackend,
}

impl SiteTicket {
    /// Returns its bytes.
    pub fn encode(&self) -> Vec<u8> {
        let path = self.file.path.as_os_str().as_bytes().to_vec();
        let (site, token) = (self.file.site.clone(), self.token.clone());
        let fields = TicketFields { site, path, token, backend: self.backend.clone() };
        postcard::to_stdvec(&fields).unwrap_or_default()
    }

    /// Reads a ticket; `None` for other bytes.
    pub fn decode(bytes: &[u8]) -> Option<SiteTicket> {
        let (fields, rest) = postcard::take_from_bytes::<TicketFields>(bytes).ok()?;
        let path = PathBuf::from(OsString::from_vec(fields.path.clone()));
        let file = SiteFile { site: fields.site.clone(), path };
        let TicketFields { token, backend, .. } = fields;
        (rest.is_empty() && file.site.is_valid()).then_some(SiteTicket { file, token, backend })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn a_ticket_is_read_as_written_and_cut_ones_are_none() {
        let site = SiteAddress::parse("me@siteb:22").expect("an address");
        let file = SiteFile { site, path: Path::new("/scratch/x").to_owned() };
        let ticket = SiteTicket { file, token: vec![1, 2, 3], backend: SiteBackend::Volume };
        let bytes = ticket.encode();
        assert_eq!(SiteTicket::decode(&bytes), Some(ticket));
        for at in 0..bytes.len() {
            assert_eq!(SiteTicket::decode(&bytes[..at]), None);
        }
    }
}
