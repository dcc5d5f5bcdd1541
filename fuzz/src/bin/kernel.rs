//! Requests of the kernel to a mount.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tatami_fuse::request::Request;

fuzz_target!(|bytes: &[u8]| {
    let _ = Request::parse(bytes);
});
