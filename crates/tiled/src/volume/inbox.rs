//! How a rank gets open files from another rank of its machine: a socket of this process, and
//! messages that bring descriptors along (`SCM_RIGHTS`).
//!
//! The number of an inbox is drawn, and MPI tells it to the other ranks. The name of the socket is
//! made of that number and lies in the abstract namespace, so nothing is left behind when the
//! process dies. Everybody on the machine can list such names and connect. So both sides ask the
//! kernel for the user of the other (`SO_PEERCRED`), and neither gives nor takes anything where
//! that is another user. A message also names its open by the number that rank 0 has drawn for it.
//!
//! A message can be sent before the receiver has accepted the connection, and stays there when the
//! sender is gone. So no rank has to be in a call of this library for another one to get on.

use super::mounts;
use super::neighbors::ClaimTable;
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
/// room asks by itself.
const BACKLOG: i32 = 1024;
/// Connections that are kept open, in each direction.
const CONNECTIONS_MAX: usize = 256;
/// Claim tables that are kept; the oldest goes.
const TABLES_MAX: usize = 64;
/// Looks at the sockets after a caller's patience has ended: what is there already is still taken,
/// and whoever connects without end keeps nobody.
const LAST_LOOKS: usize = 64;
/// Another thread of this process may read what this one waits for, so a thread looks again after
/// so long.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

/// Descriptors of one rank: its piece, its journal, the roll of its node.
pub(super) const FILES: usize = 3;

/// What a message is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Subject {
    /// The claim table of a group of ranks.
    Table { group: u64 },
    /// The [`FILES`] of a rank of an open.
    Files { open: u64, rank: u32 },
    /// The rank that asked for all ranks got none for this one, which has to ask by itself.
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

    /// Descriptors that come along.
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

/// What has come in.
#[derive(Debug, Default)]
struct Received {
    connections: Vec<Arc<OwnedFd>>,
    /// Handles of this process that may take descriptors. What comes for any other rank is closed.
    expected: Vec<InboxMember>,
    /// For those: descriptors, or none where they were refused.
    files: Vec<(InboxMember, Option<[OwnedFd; FILES]>)>,
    tables: Vec<(u64, Arc<ClaimTable>)>,
}

/// What waiting for descriptors has led to.
#[derive(Debug)]
pub(super) enum Delivery {
    /// The descriptors.
    Files([OwnedFd; FILES]),
    /// The rank that asked for all got none for this one.
    Refused,
    /// Nothing has come for as long as the caller waits.
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

/// The number of this process's inbox, which the first call makes; 0 where it cannot have one.
pub fn inbox_number() -> u64 {
    // Finding the mount, the call before in an open, has asked the kernel for both.
    let (process, user) = match mounts::found_last() {
        Some(mount) => (mount.process, mount.user),
        None => (std::process::id(), rustix::process::geteuid().as_raw()),
    };
    let mut own = OWN.lock();
    // A child of the process has an inbox of its own, and so has another user.
    if let Some(inbox) = own.as_ref().filter(|inbox| (inbox.process, inbox.user) == (process, user))
    {
        return inbox.number;
    }
    *own = DescriptorInbox::new(process, user).ok().map(Arc::new);
    own.as_ref().map_or(0, |inbox| inbox.number)
}

/// The inbox of this process, if that is its number.
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

    /// Is the process at the other end one of this user? The kernel noted it when that process
    /// connected or listened.
    fn is_own_user(&self, socket: &OwnedFd) -> bool {
        let peer = rustix::net::sockopt::socket_peercred(socket);
        peer.is_ok_and(|peer| peer.uid.as_raw() == self.user)
    }

    /// From now on a rank may be sent descriptors.
    pub(super) fn expect(&self, member: InboxMember) {
        self.received.lock().expected.push(member);
    }

    /// A rank takes none any more; those that have come are closed.
    pub(super) fn forget(&self, member: InboxMember) {
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
                let files = &mut self.received.lock().files;
                if let Some(at) = files.iter().position(|(of, _)| *of == member) {
                    return match files.swap_remove(at).1 {
                        Some(files) => Delivery::Files(files),
                        None => Delivery::Refused,
                    };
                }
            }
            let left = patience.saturating_sub(began.elapsed());
            let found = self.receive(left.min(LOOK_AGAIN));
            last_looks += usize::from(left.is_zero());
            let is_over = left.is_zero() && found == Ok(0);
            if is_over || last_looks > LAST_LOOKS || found.is_err() {
                return Delivery::Nothing;
            }
        }
    }

    /// The claim table of a group, if it has come.
    pub(super) fn find_table(&self, group: u64) -> Option<Arc<ClaimTable>> {
        for _ in 0..LAST_LOOKS {
            let known = self.received.lock().table(group);
            // Without waiting: it was sent before any rank of the open could write.
            if known.is_some() || !self.receive(Duration::ZERO).is_ok_and(|count| count > 0) {
                return known;
            }
        }
        None
    }

    /// Keeps the claim table that this process has made.
    pub(super) fn keep_table(&self, group: u64, table: Arc<ClaimTable>) {
        self.received.lock().keep_table(group, table);
    }

    /// Takes what has come, and tells of how many sockets; waits for the first at most for
    /// `patience`.
    fn receive(&self, patience: Duration) -> Result<usize, Errno> {
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
            // Another thread may have taken it.
            let socket = rustix::net::accept_with(&self.listener, FLAGS).map(Arc::new);
            if let Ok(socket) = socket
                && self.is_own_user(&socket)
            {
                if received.connections.len() >= CONNECTIONS_MAX {
                    // Whoever sends by the oldest finds it closed, and connects again.
                    received.connections.remove(0);
                }
                received.connections.push(socket.clone());
                received.read(&socket);
            }
        }
        Ok(count)
    }

    /// Sends a message to the inbox of that number. Never waits.
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
        let mut sending = self.sending.lock();
        if let Some(at) = sending.iter().position(|(number, _)| *number == to) {
            match send_message(&sending[at].1, subject, files) {
                // The other side has closed it: it keeps only so many.
                Err(Errno::PIPE | Errno::CONNRESET) => drop(sending.swap_remove(at)),
                other => return other,
            }
        }
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let socket = rustix::net::socket_with(family, kind, FLAGS, None)?;
        rustix::net::connect(&socket, &address(to)?)?;
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

    /// Takes one message of a connection; forgets one that has ended, or that says what is no
    /// message.
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
            // The kernel takes away those for which this process has no room: then it is as if they
            // were refused.
            Subject::Files { open, rank } => ((open, rank), files.try_into().ok()),
            Subject::Refusal { open, rank } => ((open, rank), None),
        };
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
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::net::sendmsg(socket, &[IoSlice::new(&bytes)], &mut ancillary, flags).map(drop)
}

/// The next message of a connection; nothing at its end, and for bytes that are no message.
fn receive_message(socket: &OwnedFd) -> Result<Option<(Subject, Vec<OwnedFd>)>, Errno> {
    let mut bytes = [0; MESSAGE];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let mut into = [IoSliceMut::new(&mut bytes)];
    let got = rustix::net::recvmsg(socket.as_fd(), &mut into, &mut ancillary, flags)?.bytes;
    let mut files = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = message {
            files.extend(fds);
        }
    }
    let subject = Subject::decode(&bytes[..got]);
    Ok(subject.filter(|subject| files.len() <= subject.files()).map(|subject| (subject, files)))
}
