//! What a container and the processes of a job contain: markers, indexes, sealed pieces, tokens.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::path::Path;
use tatami_tiled::OpenToken;
use tatami_tiled::marker::Marker;
use tatami_tiled::piece::decode_sealed;
use tatami_tiled::published::PublishedIndex;

fuzz_target!(|bytes: &[u8]| {
    let Some((kind, body)) = bytes.split_first() else { return };
    match kind % 4 {
        0 => drop(Marker::parse(body)),
        1 => drop(PublishedIndex::decode(body)),
        2 => drop(decode_sealed(body)),
        _ => drop(OpenToken::decode(body, Path::new("file"))),
    }
});
