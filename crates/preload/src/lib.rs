//! `libtatami_preload.so`: a volume inside a program, without a mount.
//!
//! `tatami run` loads this library before the C library (`LD_PRELOAD`). Its functions take the
//! place of those of the C library. A call on a path of the volume goes to the client library
//! inside the process. All other calls go to the kernel, or to the C library, as they were.
//!
//! - [`calls`] has the functions. Each decides through [`inside`] and [`start`] whether a call is
//!   about the volume.
//! - [`table`] knows the open files by descriptor, and [`files`] opens and closes them.
//! - [`process`] keeps all of it right over fork(2) and execve(2).
//!
//! See docs/internals/preload.md.

#![cfg_attr(test, allow(dead_code))]

mod attributes;
mod calls;
mod closes;
mod export;
mod files;
mod inherit;
mod inside;
mod lock_ends;
mod locking;
mod names;
mod own_descriptors;
mod place;
mod process;
mod raw;
mod session;
mod settings;
mod start;
mod streams;
mod table;
mod transfer;
mod umask;
mod walk;

/// Runs when the library is loaded, before the program.
#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = calls::start_library;
