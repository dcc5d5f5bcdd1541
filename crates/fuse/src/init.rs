//! The negotiation with the kernel at the start.

use crate::abi::{self, init, op};
use crate::device::Device;
use crate::encode::FixedReply;
use crate::fields::{FieldReader, ParseError};
use crate::request::RequestHeader;
use rustix::io::Errno;
use std::io::IoSlice;

/// The requested features and limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestedFeatures {
    /// Flags of [`crate::abi::init`]. Flags that the kernel does not offer are dropped.
    pub flags: u64,
    /// Longest WRITE and READ in bytes.
    pub max_write: u32,
    /// Longest read-ahead of the kernel, in bytes.
    pub max_readahead: u32,
    /// Most concurrent background requests: those without a waiting caller.
    pub max_background: u16,
    /// With `PASSTHROUGH`: the number of file systems below the FUSE mount, 1 or 2. With 1, backing
    /// files must be on a plain disk, and an overlayfs may be on top of the mount. With 2, backing
    /// files may be on an overlayfs, but no overlayfs may be on top.
    pub max_stack_depth: u32,
}

impl Default for RequestedFeatures {
    /// Requests of 1 MiB, and the features that suit every file system.
    fn default() -> RequestedFeatures {
        RequestedFeatures {
            flags: init::ASYNC_READ
                | init::BIG_WRITES
                | init::MAX_PAGES
                | init::PARALLEL_DIROPS
                | init::ASYNC_DIO
                | init::NO_EXPORT_SUPPORT,
            max_write: 1 << 20,
            max_readahead: 1 << 20,
            max_background: 64,
            max_stack_depth: 1,
        }
    }
}

/// The result of the negotiation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NegotiatedFeatures {
    /// Minor number of the protocol: the lower one of both sides.
    pub minor: u32,
    /// The flags that were both requested and offered.
    pub flags: u64,
    /// Longest WRITE and READ in bytes.
    pub max_write: u32,
}

impl NegotiatedFeatures {
    /// Checks whether all of `flags` were agreed.
    pub fn has_flags(&self, flags: u64) -> bool {
        self.flags & flags == flags
    }
}

/// The reason why the negotiation failed.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum InitError {
    #[error("/dev/fuse: {0}")]
    Device(Errno),
    #[error("the kernel's first request is none: {0}")]
    Parse(#[from] ParseError),
    #[error("the kernel's first request is number {0}, not INIT")]
    NotInit(u32),
    #[error(
        "the kernel speaks FUSE protocol {0}.{1}, at least 7.31 is needed: \
         use Linux 5.4 or newer (6.9 for passthrough)"
    )]
    TooOld(u32, u32),
}

/// The kernel's offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct KernelOffer {
    major: u32,
    minor: u32,
    max_readahead: u32,
    flags: u64,
}

impl KernelOffer {
    fn parse(mut f: FieldReader<'_>) -> Result<KernelOffer, ParseError> {
        let (major, minor) = (f.read_u32()?, f.read_u32()?);
        if major > abi::VERSION.0 {
            return Ok(KernelOffer { major, minor, max_readahead: 0, flags: 0 });
        }
        let (max_readahead, low) = (f.read_u32()?, u64::from(f.read_u32()?));
        let high = if low & init::INIT_EXT != 0 { u64::from(f.read_u32()?) } else { 0 };
        Ok(KernelOffer { major, minor, max_readahead, flags: low | high << 32 })
    }
}

fn choose_features(offer: &KernelOffer, wanted: &RequestedFeatures) -> NegotiatedFeatures {
    let flags = offer.flags & (wanted.flags | init::INIT_EXT);
    let pages = flags & init::MAX_PAGES != 0;
    NegotiatedFeatures {
        minor: offer.minor.min(abi::VERSION.1),
        flags,
        // Without MAX_PAGES the kernel's limit is 32 pages.
        max_write: wanted.max_write.max(4096).min(if pages { 16 << 20 } else { 128 << 10 }),
    }
}

fn encode_reply(
    offer: &KernelOffer,
    wanted: &RequestedFeatures,
    agreed: &NegotiatedFeatures,
) -> FixedReply<64> {
    const PAGE: u32 = 4096;
    let depth = if agreed.has_flags(init::PASSTHROUGH) { wanted.max_stack_depth } else { 0 };
    FixedReply::new()
        .put_u32(abi::VERSION.0)
        .put_u32(agreed.minor)
        .put_u32(wanted.max_readahead.min(offer.max_readahead))
        .put_u32(agreed.flags as u32)
        .put_u16(wanted.max_background)
        .put_u16(wanted.max_background / 4 * 3)
        .put_u32(agreed.max_write)
        .put_u32(1) // nanoseconds in times
        .put_u16(agreed.max_write.div_ceil(PAGE).min(u32::from(u16::MAX)) as u16)
        .put_u16(0)
        .put_u32((agreed.flags >> 32) as u32)
        .put_u32(depth)
        .put_zeros(24)
}

/// Reads and answers the kernel's INIT request.
///
/// # Errors
/// [`InitError`].
pub fn negotiate_features(
    device: &Device,
    wanted: &RequestedFeatures,
) -> Result<NegotiatedFeatures, InitError> {
    let mut buffer = vec![0; wanted.max_write.max(1 << 20) as usize + abi::REQUEST_OVERHEAD];
    loop {
        let len = match device.read(&mut buffer) {
            Ok(len) => len,
            Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => continue,
            Err(e) => return Err(InitError::Device(e)),
        };
        let header = RequestHeader::parse(&buffer[..len])?;
        if header.opcode != op::INIT {
            return Err(InitError::NotInit(header.opcode));
        }
        let offer = KernelOffer::parse(FieldReader(&buffer[abi::IN_HEADER_LEN..len]))?;
        if offer.major < abi::VERSION.0
            || offer.major == abi::VERSION.0 && offer.minor < abi::OLDEST_MINOR
        {
            send_reply(device, header.unique, -libc::EPROTO, &[])?;
            return Err(InitError::TooOld(offer.major, offer.minor));
        }
        let agreed = choose_features(&offer, wanted);
        send_reply(device, header.unique, 0, encode_reply(&offer, wanted, &agreed).as_bytes())?;
        // After a newer major number, the kernel reads ours and repeats the request with that.
        if offer.major == abi::VERSION.0 {
            return Ok(agreed);
        }
    }
}

fn send_reply(device: &Device, unique: u64, error: i32, body: &[u8]) -> Result<(), InitError> {
    let head = FixedReply::<16>::new()
        .put_u32((abi::OUT_HEADER_LEN + body.len()) as u32)
        .put_u32(error as u32)
        .put_u64(unique);
    device.write(&[IoSlice::new(head.as_bytes()), IoSlice::new(body)]).map_err(InitError::Device)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(flags: u64) -> KernelOffer {
        KernelOffer { major: 7, minor: 40, max_readahead: 128 << 10, flags }
    }

    #[test]
    fn what_one_side_lacks_is_dropped() {
        let wanted = RequestedFeatures {
            flags: init::PASSTHROUGH | init::POSIX_ACL,
            ..RequestedFeatures::default()
        };
        let agreed = choose_features(&offer(init::POSIX_ACL | init::AUTO_INVAL_DATA), &wanted);
        assert!(agreed.has_flags(init::POSIX_ACL));
        assert!(!agreed.has_flags(init::PASSTHROUGH));
        assert!(!agreed.has_flags(init::AUTO_INVAL_DATA));
        assert_eq!(agreed.minor, 40);
        assert_eq!(agreed.max_write, 128 << 10);
    }

    #[test]
    fn the_answer_has_its_fields_in_place() {
        let wanted = RequestedFeatures {
            flags: init::PASSTHROUGH | init::MAX_PAGES,
            ..RequestedFeatures::default()
        };
        let offer = offer(u64::MAX);
        let agreed = choose_features(&offer, &wanted);
        let answer = encode_reply(&offer, &wanted, &agreed);
        let word =
            |i: usize| u32::from_ne_bytes(answer.as_bytes()[4 * i..][..4].try_into().expect("4"));
        assert_eq!(answer.as_bytes().len(), 64);
        assert_eq!((word(0), word(1)), (7, 40));
        assert_eq!(word(5), 1 << 20);
        assert_eq!(word(7) & 0xffff, 256);
        assert_eq!(word(8), (init::PASSTHROUGH >> 32) as u32);
        assert_eq!(word(9), 1);
    }

    #[test]
    fn an_offer_is_read_with_and_without_its_second_half() {
        let words = |w: &[u32]| w.iter().flat_map(|w| w.to_ne_bytes()).collect::<Vec<_>>();
        let short = words(&[7, 31, 4096, 1]);
        assert_eq!(KernelOffer::parse(FieldReader(&short)).map(|o| o.flags), Ok(1));
        let long = words(&[7, 40, 4096, init::INIT_EXT as u32, 32]);
        let flags = init::INIT_EXT | init::PASSTHROUGH;
        assert_eq!(KernelOffer::parse(FieldReader(&long)).map(|o| o.flags), Ok(flags));
        assert_eq!(KernelOffer::parse(FieldReader(&long[..16])), Err(ParseError::Short));
    }
}
