//! The mathematics of shared files, as it lies on disks and comes from clients: shapes, views,
//! tiles, journals.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tatami_layout::{PieceTiles, Shape, View, journal};

fuzz_target!(|bytes: &[u8]| {
    let Some((kind, mut body)) = bytes.split_first() else { return };
    match kind % 4 {
        0 => drop(Shape::decode(&mut body)),
        1 => drop(View::decode(&mut body)),
        2 => {
            if let Ok(tiles) = PieceTiles::decode(body) {
                let again = PieceTiles::decode(&tiles.encode());
                assert!(again.is_ok(), "tiles that were read cannot be read again");
            }
        }
        _ => drop(journal::decode(body)),
    }
});
