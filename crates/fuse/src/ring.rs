//! FUSE over io_uring: requests and replies in memory that the kernel and a thread share.
//!
//! The kernel has a queue for each CPU and puts a request into the queue of the CPU on which the
//! program runs. A thread that is bound to this CPU takes it, so no other CPU is woken. The reply
//! and the wait for the next request are one system call. Linux 6.14 brought it. It must be
//! switched on: `/sys/module/fuse/parameters/enable_uring`.
//!
//! Here each thread has a ring of its own, with one *entry*: the memory of one request. So a thread
//! that waits for a node holds up no other request.
//!
//! Source of the protocol: `include/uapi/linux/fuse.h` and `Documentation/filesystems/fuse/
//! fuse-io-uring.rst` of Linux.

use crate::abi;
use crate::device::Device;
use crate::encode::FixedReply;
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use rustix::mm::{MapFlags, ProtFlags};
use std::io;
use std::os::fd::AsFd;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;

/// `FUSE_IO_URING_CMD_REGISTER`: offers an entry, and waits for its first request.
const REGISTER: u32 = 1;
/// `FUSE_IO_URING_CMD_COMMIT_AND_FETCH`: replies, and waits for the next request.
const COMMIT_AND_FETCH: u32 = 2;

/// `struct fuse_uring_req_header`: 128 bytes for the header of the request or of the reply, 128
/// bytes for the arguments of the operation, and `struct fuse_uring_ent_in_out`.
const HEADER_LEN: usize = 288;
const ARGUMENTS_AT: usize = 128;
const ARGUMENTS_MAX: usize = 128;
/// Offset of `commit_id` in the header.
const COMMIT_ID_AT: usize = 256 + 8;
/// Offset of `payload_sz` in the header.
const PAYLOAD_LEN_AT: usize = 256 + 16;

/// The header takes the first page. The payload starts at the third one, so that a request can be
/// put together before it.
const PAGE: usize = 4096;
const PAYLOAD_AT: usize = 2 * PAGE;

/// Requests up to this length are copied, so that the reply can use their memory. Only WRITE and
/// SETXATTR exceed it, and their replies are short.
pub(crate) const COPIED_MAX: usize = 64 << 10;

/// Offset of `len` in `struct io_uring_sqe`.
const SQE_LEN_AT: usize = 24;
/// The number of memory areas of an entry: its header and its payload.
const AREAS: u32 = 2;

type Ring = IoUring<squeue::Entry128, cqueue::Entry>;

/// The ring of a thread.
pub(crate) struct RequestRing {
    /// Dropped first, so that the kernel does not write to `memory` any more.
    ring: Ring,
    memory: EntryMemory,
    queue: u16,
}

/// Memory of one entry, mapped until the ring has ended.
struct EntryMemory {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the value owns its mapping, and gives out references by the usual rules.
unsafe impl Send for EntryMemory {}

impl EntryMemory {
    fn new(payload_len: usize) -> io::Result<EntryMemory> {
        let len = PAYLOAD_AT + payload_len.next_multiple_of(PAGE);
        // SAFETY: a new private mapping at an address of the kernel's choice.
        let start = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(EntryMemory { start, len })
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping has this length and is initialized. The kernel writes to it only
        // while `RequestRing::wait_for_request` has the exclusive reference.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }

    fn read_u32(&self, at: usize) -> u32 {
        let mut bytes = [0; 4];
        bytes.copy_from_slice(&self.bytes()[at..at + 4]);
        u32::from_ne_bytes(bytes)
    }

    fn read_u64(&self, at: usize) -> u64 {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&self.bytes()[at..at + 8]);
        u64::from_ne_bytes(bytes)
    }
}

impl Drop for EntryMemory {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's, and its ring has ended.
        if let Err(errno) = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len) } {
            tracing::debug!(%errno, "unmapping an entry");
        }
    }
}

/// Where a request is.
pub(crate) enum RequestPlace {
    /// In the buffer of the caller, with this length. The memory of the entry is free for the
    /// reply.
    Copied(usize),
    /// In the memory of the entry.
    InEntry { from: usize, to: usize },
}

impl RequestRing {
    /// Makes a ring for payloads of `payload_len` bytes. The thread that calls this must be the one
    /// that uses it.
    ///
    /// # Errors
    /// `EPERM` if the system forbids io_uring (`kernel.io_uring_disabled`, a seccomp filter);
    /// `ENOSYS`, `ENOMEM`.
    pub(crate) fn new(queue: u16, payload_len: usize) -> io::Result<RequestRing> {
        let ring =
            Ring::builder().setup_single_issuer().setup_defer_taskrun().dontfork().build(2)?;
        Ok(RequestRing { ring, memory: EntryMemory::new(payload_len)?, queue })
    }

    /// Offers the entry to the kernel, for requests of the ring's queue.
    ///
    /// # Errors
    /// Those of io_uring_enter(2). `ECONNABORTED` and `ENOTCONN` after the unmount.
    pub(crate) fn register(&mut self, device: &Device) -> io::Result<()> {
        self.ring.submitter().register_files(&[device.as_fd().as_raw_fd()])?;
        let start = self.memory.start.as_ptr();
        let areas = [
            libc::iovec { iov_base: start.cast(), iov_len: HEADER_LEN },
            libc::iovec {
                // SAFETY: the mapping is longer than this offset.
                iov_base: unsafe { start.add(PAYLOAD_AT) }.cast(),
                iov_len: self.memory.len - PAYLOAD_AT,
            },
        ];
        // The kernel reads `areas` during this call only.
        self.push_command(REGISTER, 0, areas.as_ptr() as u64)?;
        self.ring.submit()?;
        // A refusal is there at once; a request is not.
        match self.ring.completion().next() {
            Some(refused) if refused.result() < 0 => {
                Err(io::Error::from_raw_os_error(-refused.result()))
            }
            Some(_) => Err(io::ErrorKind::InvalidData.into()),
            None => Ok(()),
        }
    }

    fn push_command(&mut self, command: u32, commit_id: u64, areas: u64) -> io::Result<()> {
        // `struct fuse_uring_cmd_req`: flags, commit_id, qid.
        let mut body = [0; 80];
        body[8..16].copy_from_slice(&commit_id.to_ne_bytes());
        body[16..18].copy_from_slice(&self.queue.to_ne_bytes());
        let mut entry = opcode::UringCmd80::new(types::Fixed(0), command)
            .cmd(body)
            .addr((areas != 0).then_some(areas))
            .build();
        if areas != 0 {
            // The crate has no setter for the number of areas.
            // SAFETY: `Entry128` is a `struct io_uring_sqe`, in which these bytes are plain data.
            unsafe {
                let len = (&raw mut entry).cast::<u8>().add(SQE_LEN_AT).cast::<u32>();
                len.write_unaligned(AREAS);
            }
        }
        // SAFETY: the descriptor is registered, and the memory lives as long as the ring.
        unsafe { self.ring.submission().push(&entry) }
            .map_err(|full| io::Error::new(io::ErrorKind::OutOfMemory, full))
    }

    /// Sends the reply that was queued, if any, and waits for the next request. A short request is
    /// copied into `buffer`.
    ///
    /// # Errors
    /// `ENOTCONN` and `ECONNABORTED` after the unmount.
    pub(crate) fn wait_for_request(&mut self, buffer: &mut Vec<u8>) -> io::Result<RequestPlace> {
        loop {
            let done = self.ring.completion().next().map(|done| done.result());
            match done {
                Some(error) if error < 0 => return Err(io::Error::from_raw_os_error(-error)),
                Some(_) => return self.assemble_request(buffer),
                None => {}
            }
            match self.ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Puts the three parts of a request together, as `/dev/fuse` delivers them.
    fn assemble_request(&mut self, buffer: &mut Vec<u8>) -> io::Result<RequestPlace> {
        let payload = self.memory.read_u32(PAYLOAD_LEN_AT) as usize;
        let whole = self.memory.read_u32(0) as usize;
        let arguments = whole
            .checked_sub(abi::IN_HEADER_LEN + payload)
            .filter(|len| *len <= ARGUMENTS_MAX && payload <= self.memory.len - PAYLOAD_AT)
            .ok_or_else(|| io::Error::other("a request of the kernel has impossible lengths"))?;
        let bytes = self.memory.bytes_mut();
        let head = abi::IN_HEADER_LEN;
        if whole <= COPIED_MAX {
            buffer.clear();
            buffer.extend_from_slice(&bytes[..head]);
            buffer.extend_from_slice(&bytes[ARGUMENTS_AT..ARGUMENTS_AT + arguments]);
            buffer.extend_from_slice(&bytes[PAYLOAD_AT..PAYLOAD_AT + payload]);
            return Ok(RequestPlace::Copied(whole));
        }
        let from = PAYLOAD_AT - arguments - head;
        bytes.copy_within(..head, from);
        bytes.copy_within(ARGUMENTS_AT..ARGUMENTS_AT + arguments, from + head);
        Ok(RequestPlace::InEntry { from, to: PAYLOAD_AT + payload })
    }

    /// Returns bytes of the entry, by the range of [`RequestPlace::InEntry`].
    pub(crate) fn entry_bytes(&self, from: usize, to: usize) -> &[u8] {
        &self.memory.bytes()[from..to]
    }

    /// Returns the memory for a reply.
    pub(crate) fn payload_mut(&mut self) -> &mut [u8] {
        &mut self.memory.bytes_mut()[PAYLOAD_AT..]
    }

    /// Queues the reply to request `unique`: an error (negative, or 0) and the first `len` bytes of
    /// the payload. The next [`RequestRing::wait_for_request`] sends it.
    ///
    /// # Errors
    /// The ring is full, which one entry cannot do.
    pub(crate) fn queue_reply(&mut self, unique: u64, error: i32, len: usize) -> io::Result<()> {
        let commit_id = self.memory.read_u64(COMMIT_ID_AT);
        let head = FixedReply::<16>::new()
            .put_u32((abi::OUT_HEADER_LEN + len) as u32)
            .put_u32(error as u32)
            .put_u64(unique);
        let bytes = self.memory.bytes_mut();
        bytes[..abi::OUT_HEADER_LEN].copy_from_slice(head.as_bytes());
        bytes[PAYLOAD_LEN_AT..PAYLOAD_LEN_AT + 4].copy_from_slice(&(len as u32).to_ne_bytes());
        self.push_command(COMMIT_AND_FETCH, commit_id, 0)
    }
}

/// Checks whether this process can take requests from rings.
///
/// # Errors
/// The reason, in words: the system forbids io_uring, or does not say how many CPUs it may have.
pub fn probe_ring() -> Result<(), String> {
    possible_cpus().map_err(|error| error.to_string())?;
    RequestRing::new(0, PAGE).map(drop).map_err(|error| match error.raw_os_error() {
        Some(libc::EPERM) => "the system forbids io_uring (kernel.io_uring_disabled)".to_owned(),
        _ => format!("io_uring: {error}"),
    })
}

/// Returns the number of CPUs that the system may have, which is the kernel's number of queues.
///
/// # Errors
/// `/sys` is not there or has unexpected text.
pub(crate) fn possible_cpus() -> io::Result<u16> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/possible")?;
    parse_cpu_count(&text)
        .ok_or_else(|| io::Error::other("/sys/devices/system/cpu/possible has no list of CPUs"))
}

/// Counts the CPUs of a list such as `0-3,8`.
fn parse_cpu_count(list: &str) -> Option<u16> {
    let mut count = 0u16;
    for part in list.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u16, u16) = (first.parse().ok()?, last.parse().ok()?);
        count = count.checked_add(last.checked_sub(first)?.checked_add(1)?)?;
    }
    Some(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus_are_counted() {
        for (list, count) in [("0\n", 1), ("0-1\n", 2), ("0-3,8,10-11", 7)] {
            assert_eq!(parse_cpu_count(list), Some(count), "{list}");
        }
        for bad in ["", "x", "3-1", "0-99999"] {
            assert_eq!(parse_cpu_count(bad), None, "{bad}");
        }
    }

    /// A ring with a request of the kernel in its memory.
    fn ring_with_request(arguments: &[u8], payload: &[u8], claimed: usize) -> RequestRing {
        let mut ring = RequestRing::new(0, 1 << 20).expect("io_uring");
        let bytes = ring.memory.bytes_mut();
        bytes[..abi::IN_HEADER_LEN].fill(7);
        bytes[..4].copy_from_slice(&(claimed as u32).to_ne_bytes());
        bytes[ARGUMENTS_AT..ARGUMENTS_AT + arguments.len()].copy_from_slice(arguments);
        bytes[PAYLOAD_AT..PAYLOAD_AT + payload.len()].copy_from_slice(payload);
        bytes[PAYLOAD_LEN_AT..PAYLOAD_LEN_AT + 4]
            .copy_from_slice(&(payload.len() as u32).to_ne_bytes());
        ring
    }

    #[test]
    fn the_parts_of_a_request_are_put_together() {
        if let Err(why) = probe_ring() {
            return tatami_skip::skip_unavailable(&why);
        }
        let mut buffer = Vec::new();
        for payload_len in [0, 5, COPIED_MAX, 1 << 20] {
            let (arguments, payload) = ([1u8, 2, 3], vec![9u8; payload_len]);
            let whole = abi::IN_HEADER_LEN + arguments.len() + payload_len;
            let mut ring = ring_with_request(&arguments, &payload, whole);
            let place = ring.assemble_request(&mut buffer).expect("a request");
            let request = match place {
                RequestPlace::Copied(len) => &buffer[..len],
                RequestPlace::InEntry { from, to } => ring.entry_bytes(from, to),
            };
            assert_eq!(request.len(), whole);
            assert_eq!(request[4..abi::IN_HEADER_LEN], [7; 36]);
            assert_eq!(request[abi::IN_HEADER_LEN..][..3], arguments);
            assert_eq!(request[abi::IN_HEADER_LEN + 3..], payload);
        }
    }

    #[test]
    fn impossible_lengths_are_refused() {
        if let Err(why) = probe_ring() {
            return tatami_skip::skip_unavailable(&why);
        }
        for claimed in [0, 39, 44, abi::IN_HEADER_LEN + 5 + ARGUMENTS_MAX + 1] {
            let mut ring = ring_with_request(&[], &[1; 5], claimed);
            assert!(ring.assemble_request(&mut Vec::new()).is_err(), "{claimed}");
        }
    }
}
