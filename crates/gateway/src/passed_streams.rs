//! Words with the streams of a session as descriptors (`SCM_RIGHTS`), between processes of one
//! user of this machine. Their sockets are in the abstract namespace: they need no directory, and
//! nothing of them is left after a kill. The kernel names the user of the other end.

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use rustix::process::geteuid;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

/// The input and the output of a session.
pub const STREAMS: usize = 2;
/// Most calls that wait to be accepted.
const BACKLOG: i32 = 16;

fn new_socket() -> rustix::io::Result<OwnedFd> {
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
}

fn address_of(name: &str) -> rustix::io::Result<SocketAddrUnix> {
    SocketAddrUnix::new_abstract_name(name.as_bytes())
}

/// Returns a socket that listens by this name.
///
/// # Errors
/// Those of bind(2) and listen(2).
pub fn listen_as(name: &str) -> rustix::io::Result<OwnedFd> {
    let listener = new_socket()?;
    rustix::net::bind(&listener, &address_of(name)?)?;
    rustix::net::listen(&listener, BACKLOG)?;
    Ok(listener)
}

/// Returns a socket that is connected to the one which listens by this name.
///
/// # Errors
/// Those of connect(2); `EPERM`: it belongs to another user.
pub fn connect_to(name: &str) -> rustix::io::Result<OwnedFd> {
    let socket = new_socket()?;
    rustix::net::connect(&socket, &address_of(name)?)?;
    match is_of_this_user(&socket) {
        true => Ok(socket),
        false => Err(Errno::PERM),
    }
}

/// Accepts a call. `None`: the caller belongs to another user, as every process of the machine can
/// find the socket.
///
/// # Errors
/// Those of accept(2).
pub fn accept_own(listener: &OwnedFd) -> rustix::io::Result<Option<OwnedFd>> {
    let socket = rustix::net::accept_with(listener, SocketFlags::CLOEXEC)?;
    Ok(is_of_this_user(&socket).then_some(socket))
}

fn is_of_this_user(socket: &OwnedFd) -> bool {
    let peer = rustix::net::sockopt::socket_peercred(socket);
    peer.is_ok_and(|peer| peer.uid == geteuid())
}

/// Sends words, and with them input and output of a session.
///
/// # Errors
/// Those of sendmsg(2).
pub fn send_streams(
    to: &OwnedFd,
    words: &[u8],
    streams: [BorrowedFd<'_>; STREAMS],
) -> rustix::io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(STREAMS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(&streams));
    let flags = SendFlags::NOSIGNAL;
    rustix::net::sendmsg(to, &[IoSlice::new(words)], &mut ancillary, flags).map(drop)
}

/// Receives words and the streams with them. Returns the number of bytes of the words.
///
/// # Errors
/// Those of recvmsg(2); `EPROTO`: there are no streams.
pub fn receive_streams(
    from: &OwnedFd,
    words: &mut [u8],
) -> rustix::io::Result<(usize, [OwnedFd; STREAMS])> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(STREAMS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    let got = rustix::net::recvmsg(from, &mut [IoSliceMut::new(words)], &mut ancillary, flags)?;
    let mut streams: Vec<OwnedFd> = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            streams.extend(descriptors);
        }
    }
    let streams = streams.try_into().map_err(|_| Errno::PROTO)?;
    Ok((got.bytes, streams))
}
