//! The files of a volume's directory, and the kernel's table of mounts.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::path::PathBuf;
use tatami_cluster::{CertificateFile, KeyFile, VolumeFile, mountinfo};

/// Writes the bytes where the loaders find them: a file in memory, which only this process sees.
fn write_file(name: &str, bytes: &[u8]) -> PathBuf {
    let path = std::env::temp_dir().join(format!("tatami-fuzz-{}-{name}", std::process::id()));
    std::fs::write(&path, bytes).expect("a file of this process");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&path, mode).expect("a file of this process");
    path
}

fuzz_target!(|bytes: &[u8]| {
    let Some((kind, body)) = bytes.split_first() else { return };
    match kind % 4 {
        0 => drop(mountinfo::parse(body)),
        1 => {
            let path = write_file("volume.toml", body);
            let _ = VolumeFile::load(&path);
            let _ = std::fs::remove_file(path);
        }
        2 => {
            // What another machine sends, and what is on the disk.
            if let Ok(text) = std::str::from_utf8(body) {
                let sum = format!("# checksum of all above: {:08x}\n", crc32c::crc32c(body));
                if let Ok(file) = CertificateFile::parse(&format!("{text}{sum}")) {
                    assert!(file.to_text().is_ok(), "a file that is read can be written");
                }
            }
        }
        _ => {
            let path = write_file("key", body);
            let _ = KeyFile::load(&path);
            let _ = std::fs::remove_file(path);
        }
    }
});
