//! The last words of the sessions of a process: without them, an I/O process cannot know at once
//! whether its program has ended or its link has broken.

use std::sync::OnceLock;

/// What is run at the end, and the process in which it was set.
static AT_EXIT: OnceLock<(u32, fn())> = OnceLock::new();

/// Runs `work` when this process ends by itself, as its last act. The first call counts. `work`
/// must not use variables of threads, which have ended by then.
pub(crate) fn end_at_exit(work: fn()) {
    if AT_EXIT.set((std::process::id(), work)).is_ok() {
        // SAFETY: a function without arguments, in a library that is never unloaded: the sessions
        // of the process live in it. If it fails, the I/O processes find the end themselves.
        let _ = unsafe { libc::atexit(run_at_exit) };
    }
}

extern "C" fn run_at_exit() {
    // A child of this process has the same streams, and must not end them.
    if let Some((process, work)) = AT_EXIT.get()
        && *process == std::process::id()
    {
        work();
    }
}
