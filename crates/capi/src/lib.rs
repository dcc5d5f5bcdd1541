//! The C interface of tiled files, as `include/tatami_io.h` describes it.
//!
//! This crate translates: pointers to values, errors to negative numbers and a sentence, panics to
//! `-EIO`. It has no rules of its own.
//!
//! Every function is `unsafe` for the same reason: its pointers come from the caller. Each must be
//! NULL where the header allows that, or valid as the header says, for the length of the call.

mod file_lists;
mod guard;
mod handle;
mod shapes;
mod text;

pub use file_lists::*;
pub use handle::*;
pub use shapes::*;
