//! The threads that a node cannot do without.

use crate::context::NodeContext;
use crate::options::StartError;
use std::sync::Arc;
use std::thread::JoinHandle;

/// Ends the node when a thread dies that the node cannot do without.
pub(crate) struct StopOnDeath(pub(crate) Arc<NodeContext>);

impl Drop for StopOnDeath {
    fn drop(&mut self) {
        self.0.stop.set();
    }
}

/// Starts a thread.
///
/// # Errors
/// [`StartError::System`].
pub(crate) fn spawn_thread<T: Send + 'static>(
    name: &'static str,
    run: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, StartError> {
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(run)
        .map_err(|source| StartError::System { what: "start a thread", source })
}
