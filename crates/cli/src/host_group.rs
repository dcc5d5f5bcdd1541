//! Orders to several hosts at the same time.

use crate::clock_offset::describe_offset;
use crate::error::{CommandFailure, CommandResult, ExitStatus};
use crate::ssh_session::{HostSession, SshAccess};
use crate::term;
use std::time::Duration;
use tatami_hosts::host_protocol::{HostOrder, HostReply};

/// Most logins at the same time.
const LOGINS_MAX: usize = 64;
/// Longest wait for the reply to an order that changes files only.
pub const ORDER_WAIT: Duration = Duration::from_secs(60);
/// Longest wait for daemons and mounts to start or end.
pub const PROCESS_WAIT: Duration = Duration::from_secs(330);
/// A host that failed, and how.
pub struct HostFault {
    /// The name of the host.
    pub host: String,
    /// The failure.
    pub failure: CommandFailure,
    /// The session in which it refused an order. Its end undoes what the host has made.
    session: Option<HostSession>,
}

impl HostFault {
    /// Returns a failure outside of a session.
    pub fn new(host: &str, failure: CommandFailure) -> HostFault {
        HostFault { host: host.to_owned(), failure, session: None }
    }

    /// Returns the session in which the host refused an order.
    pub fn take_session(&mut self) -> Option<HostSession> {
        self.session.take()
    }
}

/// Undoes what hosts have made: first all mounts, because a mount ends at once while all daemons
/// run. The sessions that had no fault go on.
pub fn undo_all(sessions: &mut Vec<HostSession>, faults: &mut Vec<HostFault>) {
    let mut failed: Vec<HostSession> =
        faults.iter_mut().filter_map(HostFault::take_session).collect();
    let count = sessions.len();
    sessions.append(&mut failed);
    // A host that does not answer undoes its part by itself.
    try_all(sessions, PROCESS_WAIT, |_| HostOrder::UndoMounts);
    let undone = try_all(sessions, PROCESS_WAIT, |_| HostOrder::Undo);
    let mut good = Vec::new();
    for (at, (session, reply)) in sessions.drain(..).zip(undone).enumerate() {
        match reply {
            Ok(_) if at < count => good.push(session),
            Err(failure) if at < count => faults.push(HostFault::new(&session.host, failure)),
            // The connection of a host with a fault may be lost.
            Ok(_) | Err(_) => {}
        }
    }
    *sessions = good;
}

/// Opens a session with each host, many at the same time.
pub fn open_sessions(access: &SshAccess, hosts: &[String]) -> (Vec<HostSession>, Vec<HostFault>) {
    let (mut sessions, mut faults) = (Vec::new(), Vec::new());
    for some in hosts.chunks(LOGINS_MAX) {
        let opened: Vec<CommandResult<HostSession>> = std::thread::scope(|scope| {
            let open = |host: &String| {
                let host = host.clone();
                scope.spawn(move || access.open_session(&host))
            };
            let threads: Vec<_> = some.iter().map(open).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|_| fail_request()))
                .collect()
        });
        for (host, session) in some.iter().zip(opened) {
            match session {
                Ok(session) => sessions.push(session),
                Err(failure) => faults.push(HostFault::new(host, failure)),
            }
        }
    }
    (sessions, faults)
}

fn fail_request<T>() -> CommandResult<T> {
    Err(CommandFailure::new("the request to it failed"))
}

/// Sends an order to each host at the same time. Returns the replies of those that succeed, in the
/// order of the hosts, and the faults of the others, which keep their sessions.
pub fn order_all(
    sessions: &mut Vec<HostSession>,
    within: Duration,
    order: impl Fn(&HostSession) -> HostOrder + Sync,
) -> (Vec<HostReply>, Vec<HostFault>) {
    let replies = try_all(sessions, within, order);
    let (mut kept, mut good, mut faults) = (Vec::new(), Vec::new(), Vec::new());
    for (session, reply) in sessions.drain(..).zip(replies) {
        match reply {
            Ok(reply) => {
                good.push(reply);
                kept.push(session);
            }
            Err(failure) => {
                let host = session.host.clone();
                faults.push(HostFault { host, failure, session: Some(session) });
            }
        }
    }
    *sessions = kept;
    (good, faults)
}

/// Sends an order to each host at the same time, and returns all replies.
pub fn try_all(
    sessions: &mut [HostSession],
    within: Duration,
    order: impl Fn(&HostSession) -> HostOrder + Sync,
) -> Vec<CommandResult<HostReply>> {
    let order = &order;
    std::thread::scope(|scope| {
        let send = |session: &'_ mut HostSession| {
            let order = order(session);
            session.order(&order, within)
        };
        let threads: Vec<_> =
            sessions.iter_mut().map(|session| scope.spawn(move || send(session))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| fail_request())).collect()
    })
}

/// Ends all sessions at the same time. A host without an order to keep its work undoes it.
pub fn end_sessions(mut sessions: Vec<HostSession>) {
    sessions.iter_mut().for_each(HostSession::close_input);
    drop(sessions);
}

/// Prints a note for each host with a clock that differs from this machine's.
pub fn note_clocks(sessions: &[HostSession]) {
    let warning = |session: &HostSession| describe_offset(&session.host, session.clock_ahead_ms);
    sessions.iter().filter_map(warning).for_each(|warning| term::print_note(&warning));
}

/// Returns one failure for all faults, with the exit code of the first of `hosts` that has failed.
/// `headline` gets the number of hosts, as `1 of 4 hosts`.
pub fn join_faults(
    faults: &[HostFault],
    hosts: &[String],
    headline: impl Fn(&str) -> String,
) -> CommandFailure {
    let (mut causes, mut remedies) = (Vec::new(), Vec::<String>::new());
    for HostFault { host, failure, .. } in faults {
        let mut text = format!("{host}: {}", failure.what);
        let cause = failure.cause.as_ref().map(|cause| cause.to_string());
        if let Some(cause) = cause.filter(|cause| !failure.what.contains(cause.as_str())) {
            let lines = cause.lines().collect::<Vec<_>>().join("; ");
            text.push_str(&format!(": {lines}"));
        }
        causes.push(text);
        let remedy = failure.remedy.clone();
        remedies.extend(remedy.filter(|remedy| !remedies.contains(remedy)));
    }
    // Faults are in the order in which they were found.
    let place_of = |fault: &&HostFault| hosts.iter().position(|host| *host == fault.host);
    let first = faults.iter().min_by_key(|fault| place_of(fault).unwrap_or(hosts.len()));
    let exit = first.map_or(ExitStatus::Failure, |fault| fault.failure.exit);
    let count = match hosts.len() {
        1 => "the only host".to_owned(),
        total => format!("{} of {total} hosts", faults.len()),
    };
    let failure = CommandFailure { exit, ..CommandFailure::new(headline(&count)) };
    let failure = failure.because(causes.join("\n"));
    match remedies.is_empty() {
        true => failure,
        false => failure.try_this(remedies.join("\n")),
    }
}
