//! All connections that have a thread, so that the node can end them.

use parking_lot::{Condvar, Mutex};
use rustix::net::Shutdown;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tatami_net::NetStream;

/// See the module.
#[derive(Default)]
pub(crate) struct ConnectionRegistry {
    inner: Mutex<ConnectionRegistryState>,
    emptied: Condvar,
}

#[derive(Default)]
struct ConnectionRegistryState {
    next: u64,
    streams: HashMap<u64, Arc<NetStream>>,
    closing: bool,
}

/// An entry in the registry, removed when dropped.
pub(crate) struct RegisteredConnection<'a> {
    registry: &'a ConnectionRegistry,
    /// The connection's number, never used twice.
    pub(crate) id: u64,
}

impl ConnectionRegistry {
    /// Registers a connection; `None` when the node is ending.
    pub(crate) fn register_connection(
        &self,
        stream: &Arc<NetStream>,
    ) -> Option<RegisteredConnection<'_>> {
        let mut inner = self.inner.lock();
        if inner.closing {
            return None;
        }
        inner.next += 1;
        let id = inner.next;
        inner.streams.insert(id, stream.clone());
        Some(RegisteredConnection { registry: self, id })
    }

    /// Lets every connection finish its current request, and waits for that at most `patience`.
    /// Then breaks the rest off and waits as long again. Returns the number of connections that are
    /// left.
    pub(crate) fn close_all(&self, patience: Duration) -> usize {
        let mut inner = self.inner.lock();
        // Set under the lock: no connection can register after this loop has seen them all.
        inner.closing = true;
        // Closing the reading side first: a connection still sends its answer, and then finds no
        // next request.
        for how in [Shutdown::Read, Shutdown::Both] {
            inner.streams.values().for_each(|stream| stream.shutdown(how));
            let deadline = Instant::now() + patience;
            while !inner.streams.is_empty() {
                if self.emptied.wait_until(&mut inner, deadline).timed_out() {
                    break;
                }
            }
        }
        inner.streams.len()
    }
}

impl Drop for RegisteredConnection<'_> {
    fn drop(&mut self) {
        let mut inner = self.registry.inner.lock();
        inner.streams.remove(&self.id);
        if inner.streams.is_empty() {
            self.registry.emptied.notify_all();
        }
    }
}
