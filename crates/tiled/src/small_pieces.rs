//! Many small pieces of an ordinary file in few system calls.
//!
//! A view of one column of an array has pieces of 8 bytes. One pwrite(2) for each costs 2 µs or
//! more, whatever its length. To read the stretch around the pieces and write all of it, as
//! ROMIO does (*data sieving*), would undo what other processes write between them meanwhile.
//!
//! Here the kernel copies the pieces into a shared mapping of the file, up to 1024 in one
//! process_vm_readv(2) of this very process. Nothing between the pieces is touched. A page that the
//! file system cannot give is an error of that call, where a store would be a signal. The piece is
//! then written by pwrite(2), which reports why.
//!
//! That costs 40 ns a piece, of which the kernel needs most. A process that guards its stores
//! (`store_guard.rs`) stores the pieces itself: 10 to 20 ns with the faults of new pages.

use crate::mapping::{Mapping, PLACES_MAX};
use crate::sharing;
use crate::store_guard::are_stores_guarded;
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Fewest pieces for which a mapping pays.
const FEWEST: usize = 16;
/// Largest mean distance of the starts of two pieces: more of them must share a page.
const DISTANCE_MAX: u64 = 1024;
/// Largest gap between two pieces that is read along, in bytes: it costs about as much as a call.
const GAP_MAX: u64 = 4096;
/// A mapping begins at a multiple of this, which is one of every size of a page.
const ALIGN: u64 = 64 << 10;
/// Least bytes of a mapping: to make one costs as much as to copy some hundred pieces.
const WINDOW: usize = 1 << 20;
/// Most pieces of one stretch that is read at once.
const STRETCH_PIECES: usize = 64 << 10;

/// Writes pieces of one file.
#[derive(Debug)]
pub struct PieceWriter {
    /// Whether the file can be mapped for copies.
    maps: bool,
    /// Whether pieces may be stored, where this process guards its stores.
    stores: bool,
}

/// A mapped range of the file, from a byte on.
struct MappedWindow {
    first: u64,
    mapping: Mapping,
}

impl MappedWindow {
    fn holds(&self, start: u64, end: u64) -> bool {
        self.first <= start && end <= self.first + self.mapping.len() as u64
    }
}

impl PieceWriter {
    /// Looks at a file, which is open for writing if it is written, and for reading if `can_read`.
    /// Only files of this machine's own file systems are mapped.
    pub fn new(file: &File, can_read: bool) -> PieceWriter {
        let maps = can_read && !sharing::detect_scope(file).remote;
        PieceWriter { maps, stores: true }
    }

    /// Writes `bytes` to the pieces: offsets and lengths, in the order of the bytes. Returns the
    /// number of bytes written, fewer where the pieces end before the bytes.
    ///
    /// # Errors
    /// Those of pwrite(2).
    pub fn write_pieces(
        &mut self,
        file: &File,
        pieces: impl Iterator<Item = (u64, u64)>,
        bytes: &[u8],
    ) -> io::Result<usize> {
        let (mut pieces, mut done) = (pieces, 0);
        let (mut group, mut window, mut stores) = (Vec::new(), None, None);
        loop {
            group.clear();
            group.extend(pieces.by_ref().take(PLACES_MAX));
            let len = group.iter().map(|(_, len)| *len as usize).sum::<usize>();
            if len == 0 {
                return Ok(done);
            }
            let part = bytes.get(done..done + len).ok_or(io::ErrorKind::InvalidInput)?;
            match self.maps && is_dense(&group) {
                true => {
                    let stores = *stores.get_or_insert_with(|| self.stores && are_stores_guarded());
                    self.copy_group(file, &group, part, &mut window, stores)?;
                }
                false => write_each(file, &group, part)?,
            }
            done += len;
        }
    }

    /// Writes pieces by a mapping, which is kept in `window` for the next ones.
    fn copy_group(
        &mut self,
        file: &File,
        group: &[(u64, u64)],
        bytes: &[u8],
        window: &mut Option<MappedWindow>,
        stores: bool,
    ) -> io::Result<()> {
        let [(start, _), .., (last, last_len)] = *group else {
            return write_each(file, group, bytes);
        };
        // The file gets its length first: a page behind its end cannot be had.
        let at = bytes.len() - last_len as usize;
        file.write_all_at(&bytes[at..], last)?;
        let end = last + last_len;
        if !window.as_ref().is_some_and(|window| window.holds(start, end)) {
            // The old one goes before the new one comes.
            *window = None;
            let first = start - start % ALIGN;
            // What lies behind the file is mapped as well, and not touched before it exists.
            let len = ((end - first) as usize).max(WINDOW);
            match Mapping::for_copies(file, first, len) {
                Ok(mapping) => *window = Some(MappedWindow { first, mapping }),
                Err(_) => {
                    self.maps = false;
                    return write_each(file, group, bytes);
                }
            }
        }
        let Some(MappedWindow { first, mapping }) = window else {
            return write_each(file, group, bytes);
        };
        let places: Vec<(usize, usize)> =
            group.iter().map(|(at, len)| ((at - *first) as usize, *len as usize)).collect();
        if stores {
            if mapping.store_into_places(&places, bytes) == Ok(true) {
                return Ok(());
            }
            // A page could not be had: pwrite(2) tells why, or finds it there again.
            *window = None;
            return write_each(file, group, bytes);
        }
        let (mut from, mut done) = (0, 0);
        while from < group.len() {
            let copied = match mapping.copy_into_places(&places[from..], &bytes[done..]) {
                Ok(copied) => copied,
                Err(Errno::FAULT) => 0,
                Err(_) => {
                    self.maps = false;
                    return write_each(file, &group[from..], &bytes[done..]);
                }
            };
            let whole = done + copied;
            while from < group.len() && done + places[from].1 <= whole {
                done += places[from].1;
                from += 1;
            }
            if let Some((offset, len)) = group.get(from) {
                // The page of this piece could not be had. This tells why, or finds it there again.
                file.write_all_at(&bytes[done..done + *len as usize], *offset)?;
                done += *len as usize;
                from += 1;
            }
        }
        Ok(())
    }
}

/// Whether the pieces are so many and so close that a mapping pays.
fn is_dense(group: &[(u64, u64)]) -> bool {
    let [(start, _), .., (last, _)] = *group else { return false };
    let rises = group.windows(2).all(|two| two[0].0 + two[0].1 <= two[1].0);
    group.len() >= FEWEST && rises && (last - start) / (group.len() as u64) <= DISTANCE_MAX
}

fn write_each(file: &File, group: &[(u64, u64)], bytes: &[u8]) -> io::Result<()> {
    let mut done = 0;
    for (offset, len) in group {
        file.write_all_at(&bytes[done..done + *len as usize], *offset)?;
        done += *len as usize;
    }
    Ok(())
}

/// Calls `read` for each stretch of a file that is read at once: its start, and the pieces in it.
/// A stretch has several pieces if the gaps are small, or at most three quarters of it, and if it
/// is at most `longest` bytes long.
///
/// # Errors
/// Those of `read`.
pub fn for_each_stretch(
    pieces: impl Iterator<Item = (u64, u64)>,
    longest: usize,
    mut read: impl FnMut(u64, &[(u64, u64)]) -> io::Result<()>,
) -> io::Result<()> {
    let mut stretch: Vec<(u64, u64)> = Vec::new();
    let (mut end, mut data) = (0, 0);
    for (offset, len) in pieces {
        if let Some((first, _)) = stretch.first() {
            let span = (offset + len).saturating_sub(*first);
            let joins = offset >= end
                && span <= longest as u64
                && stretch.len() < STRETCH_PIECES
                && (offset - end <= GAP_MAX || span <= 4 * (data + len));
            if !joins {
                read(*first, &stretch)?;
                stretch.clear();
                data = 0;
            }
        }
        stretch.push((offset, len));
        (end, data) = (offset + len, data + len);
    }
    match stretch.first() {
        Some((first, _)) => read(*first, &stretch),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// Pieces in rising order, some of them close together.
    fn random_pieces(random: &mut fastrand::Rng) -> Vec<(u64, u64)> {
        let (len_max, gap_max) = (random.u64(1..200), random.u64(1..1500));
        let mut at = random.u64(0..10_000);
        (0..random.usize(1..4000))
            .map(|_| {
                let len = random.u64(1..=len_max);
                let piece = (at, len);
                at += len + random.u64(0..gap_max);
                piece
            })
            .collect()
    }

    fn random_bytes(random: &mut fastrand::Rng, pieces: &[(u64, u64)]) -> Vec<u8> {
        let len = pieces.iter().map(|(_, len)| len).sum::<u64>();
        (0..len).map(|_| random.u8(1..)).collect()
    }

    fn open_new(path: &std::path::Path) -> File {
        File::options().read(true).write(true).create_new(true).open(path).unwrap()
    }

    /// Runs a test with copies of the kernel, and with stores.
    fn run_both_ways(test: impl Fn(&dyn Fn(&File) -> PieceWriter)) {
        crate::store_guard::guard_stores().unwrap();
        for stores in [false, true] {
            test(&|file| {
                let writer = PieceWriter::new(file, true);
                PieceWriter { stores, ..writer }
            });
        }
        assert!(are_stores_guarded());
    }

    #[test]
    fn pieces_by_a_mapping_leave_what_single_writes_leave() {
        run_both_ways(|new| compare_with_single_writes(new));
    }

    fn compare_with_single_writes(new: &dyn Fn(&File) -> PieceWriter) {
        let dir = tempfile::tempdir().unwrap();
        let mut random = fastrand::Rng::with_seed(3);
        let (mut dense, mut writer) = (0, None);
        for round in 0..40 {
            let (ours, reference) = (dir.path().join("ours"), dir.path().join("reference"));
            let files = (open_new(&ours), open_new(&reference));
            let writer = writer.get_or_insert_with(|| new(&files.0));
            for _ in 0..2 {
                let pieces = random_pieces(&mut random);
                let bytes = random_bytes(&mut random, &pieces);
                dense += usize::from(is_dense(&pieces[..pieces.len().min(PLACES_MAX)]));
                let written = writer.write_pieces(&files.0, pieces.iter().copied(), &bytes);
                assert_eq!(written.unwrap(), bytes.len());
                write_each(&files.1, &pieces, &bytes).unwrap();
            }
            assert!(writer.maps, "round {round}: this machine copies into mappings");
            assert!(std::fs::read(&ours).unwrap() == std::fs::read(&reference).unwrap());
            std::fs::remove_file(ours).unwrap();
            std::fs::remove_file(reference).unwrap();
        }
        assert!(dense > 20);
    }

    /// Two writers of neighbouring pieces keep each other's bytes.
    #[test]
    fn bytes_between_the_pieces_are_not_touched() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        drop(open_new(&path));
        let write = |rank: u8| {
            let path = path.clone();
            std::thread::spawn(move || {
                let file = File::options().read(true).write(true).open(path).unwrap();
                let mut writer = PieceWriter::new(&file, true);
                let bytes = vec![rank; 16 * 20_000];
                let pieces = (0..20_000).map(|i| (i * 64 + 16 * u64::from(rank), 16));
                writer.write_pieces(&file, pieces, &bytes).unwrap();
            })
        };
        (0..4).map(write).collect::<Vec<_>>().into_iter().for_each(|t| t.join().unwrap());
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(bytes.len(), 64 * 20_000);
        assert!(bytes.iter().enumerate().all(|(at, b)| usize::from(*b) == at % 64 / 16));
    }

    /// Another process makes the file shorter again and again. No signal ends this one, and every
    /// write is made.
    #[test]
    fn a_file_that_becomes_shorter_meanwhile_is_no_signal() {
        run_both_ways(|new| write_while_it_becomes_shorter(new));
    }

    fn write_while_it_becomes_shorter(new: &dyn Fn(&File) -> PieceWriter) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let file = open_new(&path);
        let script = "for i in $(seq 400); do truncate -s 0 \"$1\"; done";
        let mut other = Command::new("sh").args(["-c", script, "sh"]).arg(&path).spawn().unwrap();
        let mut writer = new(&file);
        let bytes = vec![7; 8 * 30_000];
        while other.try_wait().unwrap().is_none() {
            let written = writer.write_pieces(&file, (0..30_000).map(|i| (i * 32, 8)), &bytes);
            assert_eq!(written.unwrap(), bytes.len());
        }
        assert!(writer.maps);
        let written = writer.write_pieces(&file, (0..30_000).map(|i| (i * 32, 8)), &bytes);
        assert_eq!(written.unwrap(), bytes.len());
        assert_eq!(std::fs::read(&path).unwrap().iter().filter(|b| **b == 7).count(), bytes.len());
    }

    #[test]
    fn a_full_disk_is_an_error_and_no_signal() {
        if !rustix::process::geteuid().is_root() {
            return tatami_skip::skip_test("only root can mount a small disk");
        }
        run_both_ways(|new| write_to_a_full_disk(new));
    }

    fn write_to_a_full_disk(new: &dyn Fn(&File) -> PieceWriter) {
        let dir = tempfile::tempdir().unwrap();
        let mount =
            |words: &[&str]| Command::new(words[0]).args(&words[1..]).arg(dir.path()).status();
        assert!(mount(&["mount", "-t", "tmpfs", "-o", "size=1m", "none"]).unwrap().success());
        let file = open_new(&dir.path().join("f"));
        let mut writer = new(&file);
        let bytes = vec![7; 8 * 100_000];
        let written = writer.write_pieces(&file, (0..100_000).map(|i| (i * 64, 8)), &bytes);
        let maps = writer.maps;
        drop(file);
        assert!(mount(&["umount"]).unwrap().success());
        assert_eq!(written.map_err(|e| e.raw_os_error()), Err(Some(libc::ENOSPC)));
        assert!(maps);
    }

    #[test]
    fn stretches_have_all_pieces_and_no_large_gap() {
        let mut random = fastrand::Rng::with_seed(5);
        for _ in 0..200 {
            let pieces = random_pieces(&mut random);
            let longest = random.usize(0..100_000);
            let (mut seen, mut stretches) = (Vec::new(), 0);
            for_each_stretch(pieces.iter().copied(), longest, |first, some| {
                let (last, len) = some[some.len() - 1];
                assert_eq!(first, some[0].0);
                assert!(some.len() == 1 || last + len - first <= longest as u64);
                seen.extend_from_slice(some);
                stretches += 1;
                Ok(())
            })
            .unwrap();
            assert_eq!(seen, pieces);
            assert!(longest > 0 || stretches == pieces.len());
        }
    }
}
