//! The C interface of tiled files, as `include/tatami_io.h` describes it.
//!
//! This crate translates: pointers to values, errors to negative numbers and a
//! sentence, panics to `-EIO`. It holds no rule of its own.
//!
//! Every function is `unsafe` for the same reason: its pointers are the
//! caller's. Each must be NULL where the header allows it, or point to what the
//! header says, for the length of the call.

mod guard;
mod handle;
mod shapes;
mod text;

pub use handle::*;
pub use shapes::*;
