//! Parts of files in fewer bytes: how a part is compressed for a data connection, and expanded.
//!
//! A part is compressed as a whole, by zstd, as it is or in planes of bytes (`byte_planes.rs`). A
//! sample of it says in advance which form is better, and whether any is worth its time.

use crate::byte_planes::{join_planes, split_planes};
use crate::compression_form::CompressionForm;
use crate::remote_message::BYTES_MAX;
use std::fmt;
use std::time::Instant;
use zstd::bulk::{Compressor, Decompressor};

/// The level of zstd: the fastest one that still has a table of the frequencies of bytes. Faster
/// ones find nothing in numbers.
const LEVEL: i32 = 1;
/// Bytes of a sample, which is taken from two places of a part.
const SAMPLE: usize = 8 << 10;
/// Bytes after which the form is chosen anew.
const CHOICE: usize = 1 << 20;
/// A part is compressed if at most so many of each 1024 bytes are left of it.
const WORTH: u32 = 896;
/// Parts below this size are not compressed, in bytes.
const PART_MIN: usize = 4 << 10;

/// What compression a sample gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompressionSample {
    /// The better form; `Plain`: none is worth its time.
    pub form: CompressionForm,
    /// Bytes that are left of 1024.
    pub left: u32,
    /// Nanoseconds that compression 1024 bytes took.
    pub nanos: u32,
}

/// Why a compressed part is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExpandError {
    /// It claims to be longer than any part, or than the room for it.
    #[error("a compressed part of {0} bytes is too long")]
    TooLong(usize),
    /// The bytes are damaged, or are those of another length.
    #[error("a compressed part is damaged")]
    Damaged,
    /// There is no memory for the tables of zstd.
    #[error("no memory to expand a part")]
    NoMemory,
}

/// Compresses parts.
pub struct PartCompressor {
    zstd: Option<Compressor<'static>>,
    planes: Vec<u8>,
    out: Vec<u8>,
    /// The form in use, and the bytes until it is chosen anew.
    chosen: (CompressionForm, usize),
}

impl fmt::Debug for PartCompressor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PartCompressor({:?})", self.chosen)
    }
}

impl Default for PartCompressor {
    fn default() -> PartCompressor {
        let (planes, out, chosen) = (Vec::new(), Vec::new(), (CompressionForm::Plain, 0));
        PartCompressor { zstd: None, planes, out, chosen }
    }
}

impl PartCompressor {
    /// Compresses a sample of a part in each form.
    pub fn take_sample(&mut self, part: &[u8]) -> CompressionSample {
        let none = CompressionSample { form: CompressionForm::Plain, left: 1024, nanos: 0 };
        if part.len() < PART_MIN {
            return none;
        }
        let mut sample = [0; SAMPLE];
        let sample = gather_sample(part, &mut sample);
        let forms = [CompressionForm::Zstd, CompressionForm::Planes].map(|form| {
            let start = Instant::now();
            let left = self
                .compress_as(form, sample)
                .map_or(1024, |compressed| per_1024(compressed, sample));
            let nanos = start.elapsed().as_nanos() * 1024 / sample.len() as u128;
            CompressionSample { form, left, nanos: nanos.min(u128::from(u32::MAX)) as u32 }
        });
        // The same bytes at less cost come first.
        let [zstd, planes] = forms;
        let better = if planes.left * 9 < zstd.left * 8 { planes } else { zstd };
        if better.left <= WORTH { better } else { none }
    }

    /// Compresses a part if that is worth it. Returns its form and its compressed bytes; `None`: it
    /// stays plain.
    pub fn compress_part(&mut self, part: &[u8]) -> Option<(CompressionForm, &[u8])> {
        if self.chosen.1 < part.len() {
            self.chosen = (self.take_sample(part).form, CHOICE.max(part.len()));
        }
        self.chosen.1 -= part.len();
        if self.chosen.0 == CompressionForm::Plain || part.len() < PART_MIN {
            return None;
        }
        let form = self.chosen.0;
        match self.compress_as(form, part) {
            Some(len) => Some((form, &self.out[..len])),
            None => {
                // The sample was misleading. Most likely the next part has other bytes, too.
                self.chosen.1 = 0;
                None
            }
        }
    }

    /// Returns the number of compressed bytes, which are in `out` then; `None`: too many.
    fn compress_as(&mut self, form: CompressionForm, part: &[u8]) -> Option<usize> {
        if self.zstd.is_none() {
            self.zstd = Some(Compressor::new(LEVEL).ok()?);
        }
        let zstd = self.zstd.as_mut()?;
        let most = part.len() * WORTH as usize / 1024;
        if self.out.len() < most {
            self.out.resize(most, 0);
        }
        let bytes = match form {
            CompressionForm::Plain => return None,
            CompressionForm::Zstd => part,
            CompressionForm::Planes => {
                self.planes.resize(part.len(), 0);
                split_planes(part, &mut self.planes);
                &self.planes
            }
        };
        // It stops where the room ends.
        zstd.compress_to_buffer(bytes, &mut self.out[..most]).ok()
    }
}

fn per_1024(compressed: usize, of: &[u8]) -> u32 {
    (compressed * 1024).div_ceil(of.len()) as u32
}

/// Returns a sample of a part: its bytes from two places, or all of it.
fn gather_sample<'a>(part: &'a [u8], room: &'a mut [u8; SAMPLE]) -> &'a [u8] {
    if part.len() <= SAMPLE {
        return part;
    }
    let half = SAMPLE / 2;
    for (at, into) in [1, 3].into_iter().zip(room.chunks_exact_mut(half)) {
        let from = (part.len() * at / 4).min(part.len() - half);
        // Words stay in step.
        let from = from - from % 8;
        into.copy_from_slice(&part[from..from + half]);
    }
    room
}

/// Expands parts.
#[derive(Default)]
pub struct PartExpander {
    zstd: Option<Decompressor<'static>>,
    planes: Vec<u8>,
}

impl fmt::Debug for PartExpander {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PartExpander")
    }
}

impl PartExpander {
    /// Expands a part to `into`, which has the length that was declared.
    ///
    /// # Errors
    /// [`ExpandError`]: `into` may have any bytes then.
    pub fn expand(
        &mut self,
        form: CompressionForm,
        compressed: &[u8],
        into: &mut [u8],
    ) -> Result<(), ExpandError> {
        if into.len() > BYTES_MAX {
            return Err(ExpandError::TooLong(into.len()));
        }
        if self.zstd.is_none() {
            self.zstd = Some(Decompressor::new().map_err(|_| ExpandError::NoMemory)?);
        }
        let zstd = self.zstd.as_mut().ok_or(ExpandError::NoMemory)?;
        let target: &mut [u8] = match form {
            CompressionForm::Plain if compressed.len() == into.len() => {
                into.copy_from_slice(compressed);
                return Ok(());
            }
            CompressionForm::Plain => return Err(ExpandError::Damaged),
            CompressionForm::Zstd => into,
            CompressionForm::Planes => {
                self.planes.resize(into.len(), 0);
                &mut self.planes
            }
        };
        // zstd fails where the bytes do not fit, and writes nothing behind them.
        let len = zstd.decompress_to_buffer(compressed, target);
        if len.ok() != Some(target.len()) {
            return Err(ExpandError::Damaged);
        }
        if form == CompressionForm::Planes {
            join_planes(&self.planes, into);
        }
        Ok(())
    }

    /// As [`PartExpander::expand`], to a vector, which gets `len` bytes.
    ///
    /// # Errors
    /// [`ExpandError`]. The length is checked before memory is taken.
    pub fn expand_part(
        &mut self,
        form: CompressionForm,
        compressed: &[u8],
        len: u32,
        into: &mut Vec<u8>,
    ) -> Result<(), ExpandError> {
        let len = len as usize;
        if len > BYTES_MAX {
            return Err(ExpandError::TooLong(len));
        }
        into.resize(len, 0);
        self.expand(form, compressed, into)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_doubles(value: impl Fn(usize) -> f64) -> Vec<u8> {
        (0..BYTES_MAX / 8).flat_map(|at| value(at).to_le_bytes()).collect()
    }

    fn random_bytes(len: usize) -> Vec<u8> {
        let mut random = fastrand::Rng::with_seed(3);
        (0..len).map(|_| random.u8(..)).collect()
    }

    fn field() -> Vec<u8> {
        of_doubles(|at| {
            let (x, y, z) = (at % 64, at / 64 % 64, at / 4096);
            (x as f64 / 10.0).sin() * (y as f64 / 10.0).cos() + z as f64
        })
    }

    fn round_trip(part: &[u8]) -> (CompressionForm, usize) {
        let mut compressor = PartCompressor::default();
        let Some((form, compressed)) = compressor.compress_part(part) else {
            return (CompressionForm::Plain, part.len());
        };
        let mut back = Vec::new();
        let mut expander = PartExpander::default();
        let expanded = expander.expand_part(form, compressed, part.len() as u32, &mut back);
        assert_eq!(expanded, Ok(()));
        assert!(back == part);
        (form, compressed.len())
    }

    #[test]
    fn each_kind_of_bytes_gets_its_form_and_comes_back() {
        let text: Vec<u8> = include_bytes!("part_compressor.rs").repeat(40);
        let ints: Vec<u8> = (0..200_000_u32).flat_map(u32::to_le_bytes).collect();
        for (what, part, form, share) in [
            ("zeros", vec![0; BYTES_MAX], CompressionForm::Zstd, 100),
            ("text", text[..300_000].to_vec(), CompressionForm::Zstd, 3),
            ("doubles in order", of_doubles(|at| at as f64), CompressionForm::Planes, 20),
            ("a smooth field", field(), CompressionForm::Planes, 1),
            ("integers in order", ints, CompressionForm::Planes, 20),
            ("an odd length", field()[3..900_000].to_vec(), CompressionForm::Planes, 1),
        ] {
            let (found, len) = round_trip(&part);
            assert_eq!(found, form, "{what}: {len} of {}", part.len());
            assert!(len * share < part.len(), "{what}: {len} of {}", part.len());
        }
    }

    #[test]
    fn bytes_that_do_not_shrink_stay_plain() {
        assert_eq!(round_trip(&random_bytes(BYTES_MAX)).0, CompressionForm::Plain);
        assert_eq!(round_trip(&random_bytes(PART_MIN)).0, CompressionForm::Plain);
        assert_eq!(round_trip(&[0; PART_MIN - 1]).0, CompressionForm::Plain);
        assert_eq!(round_trip(&[]).0, CompressionForm::Plain);
        // The sample misleads: its places alone are zeros.
        let mut part = random_bytes(BYTES_MAX);
        for at in [1, 3] {
            part[BYTES_MAX * at / 4..][..SAMPLE / 2].fill(0);
        }
        assert_ne!(PartCompressor::default().take_sample(&part).form, CompressionForm::Plain);
        assert_eq!(round_trip(&part).0, CompressionForm::Plain);
    }

    #[test]
    fn the_form_follows_the_bytes() {
        let (mut compressor, noise, zeros) =
            (PartCompressor::default(), random_bytes(BYTES_MAX), vec![0; BYTES_MAX]);
        for _ in 0..2 {
            assert!(compressor.compress_part(&noise).is_none());
            assert!(compressor.compress_part(&zeros).is_some());
            assert!(compressor.compress_part(&field()).is_some());
        }
    }

    #[test]
    fn damaged_and_hostile_parts_are_errors() {
        let part = field();
        let mut compressor = PartCompressor::default();
        let (form, compressed) = compressor.compress_part(&part).expect("it shrinks");
        let mut expander = PartExpander::default();
        let mut random = fastrand::Rng::with_seed(4);
        let mut back = Vec::new();
        let len = part.len() as u32;
        for _ in 0..200 {
            let mut bytes = compressed.to_vec();
            let at = random.usize(..bytes.len());
            bytes[at] ^= random.u8(1..);
            // A changed byte that zstd takes is left to the checksum of the part.
            let expanded = expander.expand_part(form, &bytes, len, &mut back);
            assert!(expanded.is_err() || back.len() == part.len());
        }
        for cut in [0, 1, 4, compressed.len() / 2, compressed.len() - 1] {
            let expanded = expander.expand_part(form, &compressed[..cut], len, &mut back);
            assert_eq!(expanded, Err(ExpandError::Damaged), "{cut}");
        }
        for wrong in [0, len - 1, len - 8, len / 2] {
            let expanded = expander.expand_part(form, compressed, wrong, &mut back);
            assert_eq!(expanded, Err(ExpandError::Damaged), "{wrong}");
        }
        let noise = random_bytes(5000);
        for form in [CompressionForm::Plain, CompressionForm::Zstd, CompressionForm::Planes] {
            let expanded = expander.expand_part(form, &noise, 70_000, &mut back);
            assert_eq!(expanded, Err(ExpandError::Damaged));
        }
        assert_eq!(expander.expand(form, compressed, &mut back[..0]), Err(ExpandError::Damaged));
    }

    /// A few bytes that stand for very many never take more memory than a part.
    #[test]
    fn a_bomb_takes_no_more_room_than_a_part() {
        let bomb = zstd::bulk::compress(&vec![0; 64 * BYTES_MAX], LEVEL).expect("zeros");
        assert!(bomb.len() < BYTES_MAX / 100);
        let mut expander = PartExpander::default();
        for form in [CompressionForm::Zstd, CompressionForm::Planes] {
            let mut into = Vec::new();
            let most = BYTES_MAX as u32;
            let expanded = expander.expand_part(form, &bomb, most, &mut into);
            assert_eq!(expanded, Err(ExpandError::Damaged));
            assert!(into.capacity() <= BYTES_MAX);
            for claimed in [most + 1, u32::MAX] {
                let mut into = Vec::new();
                let expanded = expander.expand_part(form, &bomb, claimed, &mut into);
                assert_eq!(expanded, Err(ExpandError::TooLong(claimed as usize)));
                assert_eq!(into.capacity(), 0);
            }
        }
        let mut long = vec![0; BYTES_MAX + 1];
        let expanded = expander.expand(CompressionForm::Zstd, &bomb, &mut long);
        assert_eq!(expanded, Err(ExpandError::TooLong(BYTES_MAX + 1)));
    }
}
