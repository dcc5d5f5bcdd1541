//! The cause of an operation's failure when its error number says little: `EIO` and the like.
//!
//! The number passes through many layers, and a program gets no more than it. So the place that
//! knows the node and the reason leaves a note for this thread, and a front end writes the note to
//! its log.

use std::cell::RefCell;
use tatami_wire::Errno;

thread_local! {
    static NOTE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Clears the note, before an operation begins.
pub fn clear_cause() {
    NOTE.with_borrow_mut(|note| *note = None);
}

/// Takes the note that this thread has left since [`clear_cause`].
pub fn take_cause() -> Option<String> {
    NOTE.with_borrow_mut(Option::take)
}

/// Notes why the operation fails with `errno`, unless the number explains it.
pub fn record_cause(errno: Errno, why: impl FnOnce() -> String) {
    if matches!(errno, Errno::EIO | Errno::EPROTO | Errno::EINTR) || errno.name().is_none() {
        NOTE.with_borrow_mut(|note| *note = Some(why()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_says_little_is_explained() {
        clear_cause();
        record_cause(Errno::ENOENT, || unreachable!("it tells enough"));
        assert_eq!(take_cause(), None);
        record_cause(Errno::EIO, || "the disk".into());
        record_cause(Errno::EPROTO, || "node 1".into());
        assert_eq!(take_cause().as_deref(), Some("node 1"));
        assert_eq!(take_cause(), None);
        record_cause(Errno(7777), || "node 2".into());
        clear_cause();
        assert_eq!(take_cause(), None);
    }
}
