//! Threads that let the nodes of the namespace delegate names to this mount.

use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use tatami_client::Client;

/// The threads, one a node. Dropped, they end, and nothing is delegated any more.
pub(crate) struct Recalls {
    stop: Arc<OwnedFd>,
    threads: Vec<JoinHandle<()>>,
}

impl Recalls {
    /// Starts them. A mount works without, only slower.
    ///
    /// # Errors
    /// When the system is short of descriptors.
    pub(crate) fn start(client: &Arc<Client>) -> std::io::Result<Recalls> {
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let serve = |node| {
            let (client, stop) = (client.clone(), stop.clone());
            let thread = std::thread::Builder::new().name("recalls".into());
            let run = move || {
                if let Err(error) = client.hold_delegations(node, stop.as_fd()) {
                    tracing::error!(%node, %error, "names are asked for each time");
                }
            };
            thread
                .spawn(run)
                .inspect_err(|error| tracing::warn!(%error, "names are asked for each time"))
                .ok()
        };
        let threads = client.name_nodes().into_iter().filter_map(serve).collect();
        Ok(Recalls { stop, threads })
    }
}

impl Drop for Recalls {
    fn drop(&mut self) {
        // Fails only when the counter is full, and then it is readable already.
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
        for thread in self.threads.drain(..) {
            // It does not panic, and its result is nothing.
            let _ = thread.join();
        }
    }
}
