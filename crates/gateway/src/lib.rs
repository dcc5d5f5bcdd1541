//! The I/O process for programs of another site (`tatami gateway`). One process there sends calls.
//! This one carries them out on ordinary files, one after the other. It runs as the user who logged
//! in, and can do no more than that user. It ends with its input, and then nothing of it is left.

mod copy_files;
mod gateway_files;
mod gateway_loop;
mod lock_watch;
mod path_calls;
mod refusal;
mod tree_removal;

pub use gateway_loop::{GatewayError, serve_gateway};
