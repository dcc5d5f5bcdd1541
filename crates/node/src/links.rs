//! Connections over which an executor speaks to others, of this node and of others: one to each, made
//! when there is something to say. Each goes one way.
//!
//! What cannot be said is dropped: transactions say it again until it is answered.

use crate::executor::ExecutorHandle;
use crate::relay::{self, NotPassed};
use crate::shared::Shared;
use crate::stream::Stream;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tatami_wire::handshake::{Hello, Role};
use tatami_wire::transaction::PeerMessage;
use tatami_wire::{ClientId, ExecutorId};

/// First and longest pause before an executor that did not let us in is called again.
const PAUSE: Duration = Duration::from_millis(10);
const PAUSE_LONGEST: Duration = Duration::from_secs(1);
/// Most messages that wait for a connection to be made.
const WAITING_MAX: usize = 1024;

enum Link {
    /// There is none, and none is made before that moment.
    Down { not_before: Instant, pause: Duration },
    /// A thread makes one.
    Dialing { pause: Duration, waiting: Vec<PeerMessage> },
    /// The executor's number of the connection.
    Up(usize),
}

/// See the module.
pub(crate) struct Links {
    shared: Arc<Shared>,
    here: ExecutorId,
    executor: ExecutorHandle,
    links: BTreeMap<ExecutorId, Link>,
}

impl Links {
    pub(crate) fn new(shared: Arc<Shared>, here: ExecutorId, executor: ExecutorHandle) -> Links {
        Links { shared, here, executor, links: BTreeMap::new() }
    }

    /// Over which connection the message is to be sent now; `None` where it waits for one, or
    /// is dropped.
    pub(crate) fn take(
        &mut self,
        to: ExecutorId,
        message: PeerMessage,
    ) -> Option<(usize, PeerMessage)> {
        let never = Link::Down { not_before: Instant::now(), pause: PAUSE };
        let link = self.links.entry(to).or_insert(never);
        match link {
            Link::Up(at) => return Some((*at, message)),
            Link::Dialing { waiting, .. } if waiting.len() < WAITING_MAX => waiting.push(message),
            Link::Dialing { .. } => {}
            Link::Down { not_before, pause } if *not_before <= Instant::now() => {
                let pause = *pause;
                *link = match dial(&self.shared, self.here, &self.executor, to) {
                    true => Link::Dialing { pause, waiting: vec![message] },
                    false => down(pause),
                };
            }
            Link::Down { .. } => {}
        }
        None
    }

    /// There is a connection. Returns what is to be sent over it first.
    pub(crate) fn made(&mut self, to: ExecutorId, at: usize) -> Vec<PeerMessage> {
        match self.links.insert(to, Link::Up(at)) {
            Some(Link::Dialing { waiting, .. }) => waiting,
            _ => Vec::new(),
        }
    }

    /// There is no connection for now.
    pub(crate) fn failed(&mut self, to: ExecutorId) {
        if let Some(link @ Link::Dialing { .. }) = self.links.get_mut(&to)
            && let Link::Dialing { pause, .. } = *link
        {
            *link = down(pause);
        }
    }

    /// A connection has ended.
    pub(crate) fn lost(&mut self, to: ExecutorId, at: usize) {
        if let Some(link) = self.links.get_mut(&to)
            && matches!(link, Link::Up(up) if *up == at)
        {
            *link = Link::Down { not_before: Instant::now(), pause: PAUSE };
        }
    }
}

fn down(pause: Duration) -> Link {
    let longer = (pause * 2).min(PAUSE_LONGEST);
    Link::Down { not_before: Instant::now() + pause, pause: longer }
}

/// Calls another executor on a thread of its own, which tells the executor what came of it. Whether there is one.
fn dial(shared: &Arc<Shared>, here: ExecutorId, executor: &ExecutorHandle, to: ExecutorId) -> bool {
    let (shared, executor) = (shared.clone(), executor.clone());
    let call = move || {
        let link = match connect(&shared, here, to) {
            Ok(stream) => Some(Arc::new(stream)),
            Err(NotPassed::Away(why)) => {
                tracing::debug!(executor = %to, "no word to it now: {why}");
                None
            }
            Err(NotPassed::Refused(why)) => {
                tracing::warn!(executor = %to, "it does not listen to this one: {why}");
                None
            }
        };
        executor.link(to, link);
    };
    let spawned = std::thread::Builder::new().name("link".to_owned()).spawn(call);
    if let Err(e) = &spawned {
        tracing::error!(error = %e, "cannot start a thread for a connection to another node");
    }
    spawned.is_ok()
}

fn connect(shared: &Shared, here: ExecutorId, to: ExecutorId) -> Result<Stream, NotPassed> {
    let away = |e: &dyn std::fmt::Display| NotPassed::Away(e.to_string());
    let mut id = [0; 16];
    getrandom::fill(&mut id).map_err(|e| away(&e))?;
    let hello = Hello {
        role: Role::Peer,
        client: ClientId(id),
        slot: here.into(),
        volume: Some(shared.identity.volume),
        node: None,
        executor: to.index,
        user: None,
    };
    let stream = relay::reach_node(shared, &hello, to.node)?;
    stream.set_nonblocking().map_err(|e| away(&e))?;
    Ok(stream)
}
