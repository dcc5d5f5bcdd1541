//! Passes open files between the ranks of one machine: each process has a socket, and messages
//! carry descriptors (`SCM_RIGHTS`).
//!
//! The number of an inbox is random, and MPI sends it to the other ranks. The name of the socket
//! contains that number and lies in the abstract namespace, so nothing is left behind when the
//! process dies. Every process of the machine can list such names and connect. So both sides ask
//! the kernel for the user of the peer (`SO_PEERCRED`), and exchange nothing with another user. A
//! message also names its open by the random number that rank 0 has chosen.
//!
//! A message can be sent before the receiver accepts the connection, and it outlives the sender. So
//! no rank depends on another rank being inside a call of this library.

use super::claim_table::ClaimTable;
use super::mounts;
use crate::machine;
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

const MAGIC: u64 = u64::from_le_bytes(*b"TATAMIP1");
/// Bytes of a message: magic, number of the group or open, kind, rank.
const MESSAGE: usize = 24;
/// Connections that wait to be accepted: one for each rank of a large node. A rank that finds no
/// room requests its own descriptors.
const BACKLOG: i32 = 1024;
/// Connections that are kept open, in each direction.
const CONNECTIONS_MAX: usize = 256;
/// Claim tables that are kept; a new one replaces the oldest.
const TABLES_MAX: usize = 64;
/// Polls of the sockets after the caller's timeout has ended. Messages that have already arrived
/// are still received. The limit keeps a flood of connections from holding the caller.
const LAST_LOOKS: usize = 64;
/// Interval between two polls. Another thread of this process may receive the message that this
/// thread waits for, so the thread checks again.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

/// Descriptors of one rank: its piece, its journal, and the rank table of its node.
pub(super) const FILES: usize = 3;

/// The subject of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Subject {
    /// The claim table of a group of ranks.
    Table { group: u64 },
    /// The [`FILES`] of a rank of an open.
    Files { open: u64, rank: u32 },
    /// The rank that requested the descriptors of all ranks got none for this rank, which must send
    /// its own request.
    Refusal { open: u64, rank: u32 },
}

impl Subject {
    fn encode(self) -> [u8; MESSAGE] {
        let (kind, number, rank) = match self {
            Subject::Table { group } => (1u32, group, 0),
            Subject::Files { open, rank } => (2, open, rank),
            Subject::Refusal { open, rank } => (3, open, rank),
        };
        let mut bytes = [0; MESSAGE];
        bytes[..8].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[8..16].copy_from_slice(&number.to_le_bytes());
        bytes[16..20].copy_from_slice(&kind.to_le_bytes());
        bytes[20..].copy_from_slice(&rank.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Subject> {
        let (magic, rest) = bytes.split_first_chunk::<8>()?;
        let (number, rest) = rest.split_first_chunk::<8>()?;
        let (kind, rest) = rest.split_first_chunk::<4>()?;
        let rank = u32::from_le_bytes(<[u8; 4]>::try_from(rest).ok()?);
        let number = u64::from_le_bytes(*number);
        if u64::from_le_bytes(*magic) != MAGIC {
            return None;
        }
        match u32::from_le_bytes(*kind) {
            1 => Some(Subject::Table { group: number }),
            2 => Some(Subject::Files { open: number, rank }),
            3 => Some(Subject::Refusal { open: number, rank }),
            _ => None,
        }
    }

    /// Returns the number of descriptors that the message carries.
    fn files(self) -> usize {
        match self {
            Subject::Table { .. } => 1,
            Subject::Files { .. } => FILES,
            Subject::Refusal { .. } => 0,
        }
    }
}

/// A rank of an open.
type InboxMember = (u64, u32);

/// The received messages and their connections.
#[derive(Debug, Default)]
struct Received {
    connections: Vec<Arc<OwnedFd>>,
    /// Handles of this process that may receive descriptors. Descriptors for any other rank are
    /// closed.
    expected: Vec<InboxMember>,
    /// Descriptors for those handles; `None` where they were refused.
    files: Vec<(InboxMember, Option<[OwnedFd; FILES]>)>,
    tables: Vec<(u64, Arc<ClaimTable>)>,
}

/// The result of a wait for descriptors.
#[derive(Debug)]
pub(super) enum Delivery {
    /// The descriptors.
    Files([OwnedFd; FILES]),
    /// The rank that requested for all ranks got no descriptors for this one.
    Refused,
    /// No message has arrived within the caller's timeout.
    Nothing,
}

/// The inbox of this process.
#[derive(Debug)]
pub(super) struct DescriptorInbox {
    process: u32,
    user: u32,
    number: u64,
    listener: OwnedFd,
    received: Mutex<Received>,
    /// Connections to the inboxes of other processes, by their numbers.
    sending: Mutex<Vec<(u64, OwnedFd)>>,
}

static OWN: Mutex<Option<Arc<DescriptorInbox>>> = Mutex::new(None);

/// Returns the number of this process's inbox, which the first call creates; 0 where the process
/// cannot have one.
pub fn inbox_number() -> u64 {
    // The previous call of an open, which found the mount, has asked the kernel for both. Its
    // answer saves two system calls.
    let (process, user) = match mounts::found_last() {
        Some(mount) => (mount.process, mount.user),
        None => (std::process::id(), rustix::process::geteuid().as_raw()),
    };
    let mut own = OWN.lock();
    // A forked child shares this memory and must not receive the messages of its parent. Peers
    // check the user, so another user needs another inbox, too.
    if let Some(inbox) = own.as_ref().filter(|inbox| (inbox.process, inbox.user) == (process, user))
    {
        return inbox.number;
    }
    *own = DescriptorInbox::new(process, user).ok().map(Arc::new);
    own.as_ref().map_or(0, |inbox| inbox.number)
}

/// Returns the inbox of this process, if it has that number.
pub(super) fn find_inbox(number: u64) -> Option<Arc<DescriptorInbox>> {
    OWN.lock().clone().filter(|inbox| inbox.number() == number)
}

fn address(number: u64) -> Result<SocketAddrUnix, Errno> {
    SocketAddrUnix::new_abstract_name(format!("tatami-inbox-{number:016x}").as_bytes())
}

impl DescriptorInbox {
    pub(super) fn new(process: u32, user: u32) -> Result<DescriptorInbox, Errno> {
        let number = machine::draw_number()?;
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let listener = rustix::net::socket_with(family, kind, FLAGS, None)?;
        rustix::net::bind(&listener, &address(number)?)?;
        rustix::net::listen(&listener, BACKLOG)?;
        let (received, sending) = (Mutex::default(), Mutex::default());
        Ok(DescriptorInbox { process, user, number, listener, received, sending })
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Reports whether the peer process belongs to this user. The kernel recorded the user when
    /// that process connected or listened.
    fn is_own_user(&self, socket: &OwnedFd) -> bool {
        let peer = rustix::net::sockopt::socket_peercred(socket);
        peer.is_ok_and(|peer| peer.uid.as_raw() == self.user)
    }

    /// Allows descriptors for this rank from now on.
    pub(super) fn expect(&self, member: InboxMember) {
        self.received.lock().expected.push(member);
    }

    /// Refuses descriptors for this rank from now on, and closes those that have arrived.
    pub(super) fn forget(&self, member: InboxMember) {
        // Both lists change under one lock. Otherwise another thread could store descriptors in
        // between and leak them.
        let mut received = self.received.lock();
        if let Some(at) = received.expected.iter().position(|known| *known == member) {
            received.expected.swap_remove(at);
        }
        received.files.retain(|(of, _)| *of != member);
    }

    /// Waits for the descriptors of a rank, at most for `patience`.
    pub(super) fn await_files(&self, member: InboxMember, patience: Duration) -> Delivery {
        let (began, mut last_looks) = (Instant::now(), 0);
        loop {
            {
                // Release the lock before the poll: other threads of the process must be able to
                // receive meanwhile, and may receive this rank's message.
                let files = &mut self.received.lock().files;
                if let Some(at) = files.iter().position(|(of, _)| *of == member) {
                    return match files.swap_remove(at).1 {
                        Some(files) => Delivery::Files(files),
                        None => Delivery::Refused,
                    };
                }
            }
            // The files are checked before the time: with a timeout of zero, descriptors that
            // another thread has received still count.
            let left = patience.saturating_sub(began.elapsed());
            let found = self.receive(left.min(LOOK_AGAIN));
            last_looks += usize::from(left.is_zero());
            let is_over = left.is_zero() && found == Ok(0);
            if is_over || last_looks > LAST_LOOKS || found.is_err() {
                return Delivery::Nothing;
            }
        }
    }

    /// Returns the claim table of a group, if it has arrived.
    pub(super) fn find_table(&self, group: u64) -> Option<Arc<ClaimTable>> {
        for _ in 0..LAST_LOOKS {
            let known = self.received.lock().table(group);
            // No wait: the lowest rank sent the table before any rank of the open could write.
            if known.is_some() || !self.receive(Duration::ZERO).is_ok_and(|count| count > 0) {
                return known;
            }
        }
        None
    }

    /// Stores the claim table that this process has created.
    pub(super) fn keep_table(&self, group: u64, table: Arc<ClaimTable>) {
        self.received.lock().keep_table(group, table);
    }

    /// Receives messages that have arrived, and returns the number of ready sockets. Waits at most
    /// `patience` for the first one.
    fn receive(&self, patience: Duration) -> Result<usize, Errno> {
        // Poll a copy of the list, without the lock: a wait under the lock would block `expect` and
        // `forget` of all other handles.
        let known = self.received.lock().connections.clone();
        let mut polled = vec![PollFd::new(&self.listener, PollFlags::IN)];
        polled.extend(known.iter().map(|socket| PollFd::new(&**socket, PollFlags::IN)));
        let timeout = Timespec::try_from(patience).map_err(|_| Errno::INVAL)?;
        match poll(&mut polled, Some(&timeout)) {
            Ok(0) | Err(Errno::INTR) => return Ok(0),
            other => other?,
        };
        let is_ready: Vec<bool> = polled.iter().map(|fd| !fd.revents().is_empty()).collect();
        let count = is_ready.iter().filter(|ready| **ready).count();
        let mut received = self.received.lock();
        for (socket, _) in known.iter().zip(&is_ready[1..]).filter(|(_, ready)| **ready) {
            received.read(socket);
        }
        if is_ready[0] {
            // Another thread may have accepted the connection after the same poll. The socket does
            // not block, so this call fails and the loop of the caller goes on.
            let socket = rustix::net::accept_with(&self.listener, FLAGS).map(Arc::new);
            if let Ok(socket) = socket
                && self.is_own_user(&socket)
            {
                if received.connections.len() >= CONNECTIONS_MAX {
                    // The sender on the oldest connection gets `EPIPE`, and connects again.
                    received.connections.remove(0);
                }
                received.connections.push(socket.clone());
                // Read at once: the sender usually sends before the receiver accepts, so a message
                // is already there.
                received.read(&socket);
            }
        }
        Ok(count)
    }

    /// Sends a message to the inbox with that number. Never waits.
    ///
    /// # Errors
    /// `EPERM` where the inbox is that of another user, `ECONNREFUSED` where there is none,
    /// `EAGAIN` where it is full, `ETOOMANYREFS` where this user has too many descriptors under
    /// way.
    pub(super) fn send(
        &self,
        to: u64,
        subject: Subject,
        files: &[BorrowedFd<'_>],
    ) -> Result<(), Errno> {
        // The lock spans the whole send: two threads of a process would otherwise open two
        // connections to the same inbox.
        let mut sending = self.sending.lock();
        if let Some(at) = sending.iter().position(|(number, _)| *number == to) {
            match send_message(&sending[at].1, subject, files) {
                // The peer has closed the connection, because it keeps a limited number. Connect
                // again below, once.
                Err(Errno::PIPE | Errno::CONNRESET) => drop(sending.swap_remove(at)),
                other => return other,
            }
        }
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let socket = rustix::net::socket_with(family, kind, FLAGS, None)?;
        rustix::net::connect(&socket, &address(to)?)?;
        // Check the user before the first message: descriptors that are on their way cannot be
        // called back.
        if !self.is_own_user(&socket) {
            return Err(Errno::PERM);
        }
        send_message(&socket, subject, files)?;
        if sending.len() >= CONNECTIONS_MAX {
            sending.remove(0);
        }
        sending.push((to, socket));
        Ok(())
    }
}

impl Received {
    fn table(&self, group: u64) -> Option<Arc<ClaimTable>> {
        self.tables.iter().find(|(of, _)| *of == group).map(|(_, table)| table.clone())
    }

    fn keep_table(&mut self, group: u64, table: Arc<ClaimTable>) {
        self.tables.retain(|(of, _)| *of != group);
        if self.tables.len() >= TABLES_MAX {
            self.tables.remove(0);
        }
        self.tables.push((group, table));
    }

    /// Receives one message of a connection. Drops a connection that has ended or that sends
    /// invalid bytes.
    fn read(&mut self, socket: &Arc<OwnedFd>) {
        match receive_message(socket) {
            Ok(Some((subject, files))) => self.sort(subject, files),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Ok(None) | Err(_) => self.connections.retain(|known| !Arc::ptr_eq(known, socket)),
        }
    }

    fn sort(&mut self, subject: Subject, mut files: Vec<OwnedFd>) {
        let (member, files) = match subject {
            Subject::Table { group } => {
                let table = files.pop().and_then(|file| ClaimTable::open(file).ok());
                if let Some(table) = table {
                    self.keep_table(group, Arc::new(table));
                }
                return;
            }
            // The kernel drops descriptors for which this process has no room. Such a message
            // counts as a refusal.
            Subject::Files { open, rank } => ((open, rank), files.try_into().ok()),
            Subject::Refusal { open, rank } => ((open, rank), None),
        };
        // Descriptors that no handle expects are closed here. An open descriptor would keep a
        // removed object on the disk.
        if self.expected.contains(&member) {
            self.files.push((member, files));
        }
    }
}

fn send_message(socket: &OwnedFd, subject: Subject, files: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let bytes = subject.encode();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(files)) {
        return Err(Errno::INVAL);
    }
    // `NOSIGNAL`: a closed peer must not kill the MPI program with SIGPIPE.
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::net::sendmsg(socket, &[IoSlice::new(&bytes)], &mut ancillary, flags).map(drop)
}

/// Returns the next message of a connection; `None` at its end, and for bytes that are no message.
fn receive_message(socket: &OwnedFd) -> Result<Option<(Subject, Vec<OwnedFd>)>, Errno> {
    let mut bytes = [0; MESSAGE];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let mut into = [IoSliceMut::new(&mut bytes)];
    let got = rustix::net::recvmsg(socket.as_fd(), &mut into, &mut ancillary, flags)?.bytes;
    let mut files = Vec::new();
    // Take over the descriptors before the message is checked, so that those of an invalid message
    // are closed, too.
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = message {
            files.extend(fds);
        }
    }
    let subject = Subject::decode(&bytes[..got]);
    Ok(subject.filter(|subject| files.len() <= subject.files()).map(|subject| (subject, files)))
}
