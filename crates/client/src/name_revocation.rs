//! The wait until a kernel has dropped names: the client returns their delegation after that.
//!
//! The kernel drops a name only when no thread works in its directory. Such a thread may wait for
//! another client, which waits for this delegation. So the kernel is asked in the background, and
//! the time for which the names were lent is the bound of the wait.

use crate::kernel_table::KernelCache;
use crate::lent_names::{LentName, NAME_GRACE};
use crate::uptime::uptime;
use parking_lot::Mutex;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

/// Names that the kernel is dropping.
pub(crate) struct NameRevocation {
    /// When the names are surely not used any more, by [`uptime`]: the end of their times, until
    /// the kernel has dropped them.
    end: Mutex<Duration>,
}

impl NameRevocation {
    /// Asks the kernel to drop these names. Makes `wake`, an eventfd, readable when it has.
    pub(crate) fn start_revocation(
        names: Vec<LentName>,
        kernel: Option<&dyn KernelCache>,
        wake: &Arc<OwnedFd>,
    ) -> Arc<NameRevocation> {
        let bound = names.iter().map(|lent| lent.end).max().unwrap_or_default();
        let revocation = Arc::new(NameRevocation { end: Mutex::new(bound) });
        let Some(kernel) = kernel.filter(|_| bound > uptime()) else { return revocation };
        // The kernel cannot find an entry that was moved, so its time must pass.
        let (moved, found): (Vec<_>, Vec<_>) = names.into_iter().partition(|lent| lent.moved);
        let moved_end = moved.iter().map(|lent| lent.end).max().unwrap_or_default();
        let asked = found.iter().map(|lent| lent.name.clone()).collect();
        let (done, wake) = (revocation.clone(), wake.clone());
        kernel.expire_names(
            asked,
            Box::new(move |expired| {
                let ends = found.iter().enumerate().map(|(n, lent)| match expired.get(n) {
                    Some(true) => lent.given + NAME_GRACE,
                    _ => lent.end,
                });
                *done.end.lock() = ends.fold(moved_end, Duration::max);
                // The write fails only if the counter is full. Then the descriptor is readable
                // anyway.
                let _ = rustix::io::write(&*wake, &1u64.to_ne_bytes());
            }),
        );
        revocation
    }

    /// Returns when the names are not used any more, as far as known now, by [`uptime`].
    pub(crate) fn end_time(&self) -> Duration {
        *self.end.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel_table::NamesExpired;
    use crate::lent_names::KernelName;
    use rustix::event::{EventfdFlags, eventfd};
    use tatami_wire::Ino;

    /// A kernel that keeps the requests, to answer them when the test wants.
    #[derive(Default)]
    struct SlowKernel(Mutex<Vec<(Vec<KernelName>, NamesExpired)>>);

    impl KernelCache for SlowKernel {
        fn invalidate_attr(&self, _: Ino, _: Duration) {}
        fn can_expire_names(&self) -> bool {
            true
        }
        fn expire_names(&self, names: Vec<KernelName>, done: NamesExpired) {
            self.0.lock().push((names, done));
        }
    }

    fn lent(name: &str, given: Duration, moved: bool) -> LentName {
        let name = KernelName { dir: Ino(1), name: name.as_bytes().into() };
        LentName { name, given, end: uptime() + Duration::from_secs(600), moved }
    }

    fn revoke(names: Vec<LentName>, expired: Vec<bool>) -> (Vec<KernelName>, Duration) {
        let kernel = SlowKernel::default();
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd"));
        let revocation = NameRevocation::start_revocation(names, Some(&kernel), &wake);
        assert!(
            revocation.end_time() > uptime(),
            "nothing is known before the kernel has answered"
        );
        let (asked, done) = kernel.0.lock().pop().expect("it is asked");
        done(expired);
        let mut count = [0; 8];
        rustix::io::read(&*wake, &mut count).expect("it is woken");
        (asked, revocation.end_time())
    }

    #[test]
    fn names_that_the_kernel_drops_need_no_time() {
        let given = uptime().saturating_sub(Duration::from_secs(1));
        let names = vec![lent("a", given, false), lent("b", given, false)];
        let (asked, end) = revoke(names, vec![true, true]);
        assert_eq!(asked.len(), 2);
        assert_eq!(end, given + NAME_GRACE);
    }

    #[test]
    fn a_name_that_the_kernel_cannot_find_has_its_time() {
        let given = uptime().saturating_sub(Duration::from_secs(1));
        for (moved, expired) in
            [(false, vec![true, false]), (false, vec![true]), (true, vec![true])]
        {
            let late = lent("b", given, moved);
            let until = late.end;
            let (asked, end) = revoke(vec![lent("a", given, false), late], expired);
            assert_eq!((asked.len(), end), (2 - usize::from(moved), until));
        }
    }

    #[test]
    fn without_names_nothing_is_waited_for() {
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd"));
        let kernel = SlowKernel::default();
        assert_eq!(
            NameRevocation::start_revocation(Vec::new(), Some(&kernel), &wake).end_time(),
            Duration::ZERO
        );
        assert!(kernel.0.lock().is_empty());
    }
}
