//! The end of the I/O process that a session had before its link broke. It may still have calls in
//! its input: a write that it carried out after the repetition would undo a later one.

use crate::refusal::refuse;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::os::fd::OwnedFd;
use tatami_remote::{RemoteFailure, SiteProcess, find_process_start};

/// How long it may take to end by itself, as it does where sshd has noticed the end: seconds.
const OWN_END_WAIT: i64 = 2;
/// Longest wait for its end after a signal, in seconds. A process in a call of a disk ends behind
/// it.
const END_WAIT: i64 = 20;

/// Ends a process of this machine, and waits until it is gone. A number that belongs to another
/// process by now is left alone.
///
/// # Errors
/// It does not end, or belongs to another user.
pub(crate) fn end_earlier_process(process: SiteProcess) -> Result<(), RemoteFailure> {
    let name = format!("I/O process {} of the broken connection", process.pid);
    let failed = |errno: Errno| refuse(errno, &format!("{name} cannot be ended: {errno}"));
    let pid = i32::try_from(process.pid).ok().and_then(Pid::from_raw);
    let pid = pid.filter(|_| process.pid != std::process::id());
    let pid = pid.ok_or_else(|| failed(Errno::INVAL))?;
    let open = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(open) => open,
        Err(Errno::SRCH) => return Ok(()),
        Err(errno) => return Err(failed(errno)),
    };
    // The descriptor is that of one process, so it cannot become another one behind this check.
    if find_process_start(process.pid) != Some(process.started) {
        return Ok(());
    }
    if has_ended(&open, OWN_END_WAIT).map_err(failed)? {
        return Ok(());
    }
    match pidfd_send_signal(&open, Signal::KILL) {
        Ok(()) | Err(Errno::SRCH) => {}
        Err(errno) => return Err(failed(errno)),
    }
    match has_ended(&open, END_WAIT).map_err(failed)? {
        true => Ok(()),
        false => Err(failed(Errno::TIMEDOUT)),
    }
}

/// Waits some seconds for the end of a process.
fn has_ended(open: &OwnedFd, seconds: i64) -> Result<bool, Errno> {
    let wait = Timespec { tv_sec: seconds, tv_nsec: 0 };
    let mut events = [PollFd::new(open, PollFlags::IN)];
    loop {
        match poll(&mut events, Some(&wait)) {
            Err(Errno::INTR) => {}
            waited => return waited.map(|count| count > 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn one_process_is_ended_and_no_other() {
        let mut child = Command::new("sleep").arg("1000").stdin(Stdio::null()).spawn().expect("it");
        let pid = child.id();
        let started = find_process_start(pid).expect("it runs");
        // Another process that got the number later.
        end_earlier_process(SiteProcess { pid, started: started + 1 }).expect("left alone");
        assert!(child.try_wait().expect("a child").is_none());
        // Its stop does not keep it.
        let stop = Pid::from_child(&child);
        rustix::process::kill_process(stop, Signal::STOP).expect("a child");
        end_earlier_process(SiteProcess { pid, started }).expect("ended");
        assert!(child.wait().expect("a child").code().is_none(), "killed");
        end_earlier_process(SiteProcess { pid, started }).expect("gone already");
        let own = std::process::id();
        let started = find_process_start(own).expect("it runs");
        assert!(end_earlier_process(SiteProcess { pid: own, started }).is_err());
    }
}
