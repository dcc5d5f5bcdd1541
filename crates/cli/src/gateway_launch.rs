//! An I/O process that a launcher of MPI starts. The launcher's own ways of input and output lose
//! bytes or end when there are many. So the I/O process gets the streams of the session themselves,
//! as descriptors (`SCM_RIGHTS`) over a socket in the abstract namespace of this machine.

use crate::error::{CommandFailure, CommandResult, FailureContext};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use tatami_gateway::{
    LAUNCHED, STREAMS, accept_own, connect_to, listen_as, receive_streams, send_streams,
};

fn name_of(number: &str) -> String {
    format!("tatami-gateway-{number}")
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
    let listener = listen_as(&name_of(&number)).context(named)?;
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
    let (input, output) = (std::io::stdin(), std::io::stdout());
    send_streams(&joined, b"s", [input.as_fd(), output.as_fd()]).context(named)?;
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
            if let Some(joined) = accept_own(listener)? {
                return Ok(Some(joined));
            }
        } else {
            return Ok(None);
        }
    }
}

/// Returns the input and output of the session. Its process has started the launcher.
///
/// # Errors
/// There is no such process of this user on this machine.
pub fn join_session(number: &str) -> CommandResult<[OwnedFd; STREAMS]> {
    let named =
        || "the session: the launcher must start its process on the same machine".to_owned();
    let socket = connect_to(&name_of(number)).context(named)?;
    receive_streams(&socket, &mut [0; 1]).map(|(_, streams)| streams).context(named)
}
