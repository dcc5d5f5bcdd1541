//! A mounted file system in service, until it is unmounted. Its threads take requests from the
//! device, or from rings where the kernel offers io_uring.

use crate::abi::{self, init};
use crate::device::Device;
use crate::device_workers::spawn_device_worker;
use crate::init::NegotiatedFeatures;
use crate::mount_identity::MountIdentity;
use crate::mounting::Channel;
use crate::notify::Notifier;
use crate::ring_workers;
use crate::session_state::{Handler, SessionShared, ThreadLimits};
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::Duration;

/// A mounted file system in service.
pub struct FuseSession {
    channel: Channel,
    waiting: Arc<dyn SessionEnd>,
}

trait SessionEnd: Send + Sync {
    fn wait_until_end(&self, timeout: Option<Duration>) -> bool;
    fn device(&self) -> &Arc<Device>;
}

impl<H: Handler> SessionEnd for SessionShared<H> {
    fn wait_until_end(&self, timeout: Option<Duration>) -> bool {
        let mut ended = self.ended.lock();
        match timeout {
            None => self.end.wait_while(&mut ended, |ended| !*ended),
            Some(timeout) => {
                self.end.wait_while_for(&mut ended, |ended| !*ended, timeout);
            }
        }
        *ended
    }

    fn device(&self) -> &Arc<Device> {
        &self.device
    }
}

impl FuseSession {
    /// Starts to serve the file system.
    ///
    /// # Errors
    /// No thread or no ring can be made. Then the file system is unmounted.
    pub fn start<H: Handler>(
        channel: Channel,
        agreed: &NegotiatedFeatures,
        handler: Arc<H>,
        threads: ThreadLimits,
    ) -> std::io::Result<FuseSession> {
        let base = threads.base.max(1);
        let queues = match agreed.has_flags(init::OVER_IO_URING) {
            true => ring_workers::make_queues()?,
            false => Vec::new(),
        };
        let shared = Arc::new(SessionShared {
            handler,
            device: channel.device().clone(),
            threads: ThreadLimits { base, max: threads.max.max(base) },
            buffer_len: agreed.max_write as usize + abi::REQUEST_OVERHEAD,
            queues,
            payload_len: agreed.max_write as usize,
            mount: MountIdentity::from_path(channel.path()),
            idle: AtomicUsize::new(0),
            total: AtomicUsize::new(0),
            requests: AtomicUsize::new(0),
            least_idle: AtomicUsize::new(usize::MAX),
            refused_interrupt: AtomicBool::new(false),
            ended: Mutex::new(false),
            end: Condvar::new(),
        });
        if shared.queues.is_empty() {
            for _ in 0..base {
                spawn_device_worker(&shared)?;
            }
        } else {
            ring_workers::start_ring_workers(&shared)?;
            // FORGET and INTERRUPT still come by the device.
            spawn_device_worker(&shared)?;
        }
        Ok(FuseSession { channel, waiting: shared })
    }

    /// Waits at most `timeout` until the file system is unmounted and all requests are answered.
    /// Returns whether both are so.
    pub fn wait_until_unmounted(&self, timeout: Option<Duration>) -> bool {
        self.waiting.wait_until_end(timeout)
    }

    /// Returns the mount, with the means to unmount it.
    pub fn channel(&self) -> &Channel {
        &self.channel
    }

    /// Returns a sender for notifications to the kernel.
    pub fn notifier(&self) -> Notifier {
        Notifier::new(self.waiting.device().clone())
    }
}
