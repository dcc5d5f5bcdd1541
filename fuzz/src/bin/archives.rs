//! Tar archives, which may come from anybody.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tatami_archive::{ArchiveReader, split_member_name};

/// Returns the archive with right checksums in the blocks that look like headers: otherwise few
/// inputs come further than the first one.
fn repair_checksums(bytes: &[u8]) -> Vec<u8> {
    let mut archive = bytes.to_vec();
    for block in archive.chunks_exact_mut(512).filter(|block| block[148] == b'?') {
        block[148..156].fill(b' ');
        let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    }
    archive
}

fuzz_target!(|bytes: &[u8]| {
    let archive = repair_checksums(bytes);
    let mut reader = ArchiveReader::new(&archive[..]);
    let (mut buffer, mut sum) = ([0; 100], 0);
    while let Ok(Some(member)) = reader.next_member() {
        if let Ok(parts) = split_member_name(&member.name) {
            let leads_out = |part: &&[u8]| {
                part.is_empty() || matches!(*part, b"." | b"..") || part.contains(&b'/')
            };
            assert!(!parts.iter().any(leads_out), "{parts:?}");
        }
        assert!(member.mtime.nsec < 1_000_000_000 && member.mode <= 0o7777, "{member:?}");
        let mut end = 0;
        while let Ok(Some((offset, got))) = reader.read_chunk(&mut buffer) {
            assert!(offset >= end && got > 0, "{offset} after {end}");
            end = offset + got as u64;
            assert!(end <= member.size, "{end} of {}", member.size);
            sum += got;
        }
        assert!(sum <= archive.len(), "more bytes than there are");
    }
});
