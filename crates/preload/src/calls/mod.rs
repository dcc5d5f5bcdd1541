//! The functions of the C library that this library replaces. Each decides whether the call is
//! about the volume; all else goes on as it was.

mod attributes;
mod data;
mod descriptors;
mod directories;
mod mappings;
mod names;
mod opens;
mod processes;
mod stdio;
mod xattrs;

/// Called by the dynamic linker when the library is loaded.
#[cfg(not(test))]
pub(crate) extern "C" fn start_library() {
    crate::process::start_library(stdio::adopt_standard_stream);
}
