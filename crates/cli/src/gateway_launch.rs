//! An I/O process that a launcher of MPI starts. The launcher's own ways of input and output lose
//! bytes or end when there are many. So the I/O process gets the streams of the session themselves,
//! as descriptors (`SCM_RIGHTS`) over a socket in the abstract namespace of this machine.

use crate::error::{CommandFailure, CommandResult, FailureContext};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use rustix::process::{Pid, PidfdFlags, geteuid, pidfd_open};
use std::fs::File;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use tatami_gateway::LAUNCHED;

/// The input and the output of a session.
const STREAMS: usize = 2;

fn address(number: &str) -> rustix::io::Result<SocketAddrUnix> {
    SocketAddrUnix::new_abstract_name(format!("tatami-gateway-{number}").as_bytes())
}

fn new_socket() -> rustix::io::Result<OwnedFd> {
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
}

/// Whether the peer belongs to this user. Every process of the machine can find the socket.
fn is_own_user(socket: &OwnedFd) -> bool {
    let peer = rustix::net::sockopt::socket_peercred(socket);
    peer.is_ok_and(|peer| peer.uid == geteuid())
}

/// Starts the I/O process by a launcher, gives it the streams of this process, and waits for its
/// end.
///
/// # Errors
/// The launcher does not start a process on this machine.
pub fn serve_by_launcher(launcher: &str, options: &[&str]) -> CommandResult {
    let named = || format!("the launcher {launcher}");
    let mut random = [0; 8];
    getrandom::fill(&mut random).context(named)?;
    let number = format!("{:016x}", u64::from_le_bytes(random));
    let listener = new_socket().context(named)?;
    rustix::net::bind(&listener, &address(&number).context(named)?).context(named)?;
    rustix::net::listen(&listener, 1).context(named)?;
    let own = std::env::current_exe().context(named)?;
    let mut command = Command::new(launcher);
    command.args(options).arg(own).args(["gateway", "--join", &number]).env(LAUNCHED, "1");
    let errors = std::io::stderr().as_fd().try_clone_to_owned().context(named)?;
    command.stdin(Stdio::null()).stdout(Stdio::from(errors));
    let mut child = command.spawn().context(named)?;
    let joined = await_process(&listener, &child).context(named)?;
    let Some(joined) = joined else {
        let status = child.wait().context(named)?;
        return Err(CommandFailure::new(format!(
            "{launcher} has started no I/O process on this machine ({status})"
        ))
        .try_this("TATAMI_GATEWAY_LAUNCHER must start one process, and on the same machine"));
    };
    // A launcher that starts several processes: the others are refused, and end.
    drop(listener);
    send_streams(&joined).context(named)?;
    let status = child.wait().context(named)?;
    match status.success() {
        true => Ok(()),
        false => Err(CommandFailure::new(format!("{launcher} has ended: {status}"))),
    }
}

/// Waits for the I/O process; `None` where the launcher ends without one.
fn await_process(listener: &OwnedFd, child: &Child) -> rustix::io::Result<Option<OwnedFd>> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH)?;
    let launcher = pidfd_open(pid, PidfdFlags::empty())?;
    loop {
        let mut events = [listener, &launcher].map(|fd| PollFd::new(fd, PollFlags::IN));
        match poll(&mut events, None) {
            Err(Errno::INTR) => continue,
            other => other?,
        };
        if !events[0].revents().is_empty() {
            let joined = rustix::net::accept_with(listener, SocketFlags::CLOEXEC)?;
            if is_own_user(&joined) {
                return Ok(Some(joined));
            }
        } else {
            return Ok(None);
        }
    }
}

fn send_streams(to: &OwnedFd) -> rustix::io::Result<()> {
    let (input, output) = (std::io::stdin(), std::io::stdout());
    let streams = [input.as_fd(), output.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(STREAMS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(&streams));
    let flags = SendFlags::NOSIGNAL;
    rustix::net::sendmsg(to, &[IoSlice::new(b"s")], &mut ancillary, flags).map(drop)
}

/// Returns the input and output of the session. Its process has started the launcher.
///
/// # Errors
/// There is no such process of this user on this machine.
pub fn join_session(number: &str) -> CommandResult<(File, File)> {
    let named =
        || "the session: the launcher must start its process on the same machine".to_owned();
    let socket = new_socket().context(named)?;
    rustix::net::connect(&socket, &address(number).context(named)?).context(named)?;
    if !is_own_user(&socket) {
        return Err(Errno::PERM).context(named);
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(STREAMS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let (mut byte, flags) = ([0; 1], RecvFlags::CMSG_CLOEXEC);
    rustix::net::recvmsg(&socket, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, flags)
        .context(named)?;
    let mut streams: Vec<File> = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            streams.extend(descriptors.map(File::from));
        }
    }
    match <[File; STREAMS]>::try_from(streams) {
        Ok([input, output]) => Ok((input, output)),
        Err(_) => Err(Errno::PROTO).context(named),
    }
}
