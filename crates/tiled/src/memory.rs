//! The caller's memory: gathered into dense bytes and scattered from them, by
//! loops that are made for small blocks.
//!
//! A buffer is an address and a shape, as MPI passes it: no check of the memory is possible. So
//! this module is `unsafe`, and the only one that follows such an address.

use rustix::io::Errno;
use tatami_layout::{Shape, StridedRun};

/// `count` elements of a shape at an address.
#[derive(Clone, Copy, Debug)]
pub struct Buffer<'a> {
    at: *mut u8,
    shape: &'a Shape,
    len: u64,
}

impl<'a> Buffer<'a> {
    /// Describes memory with `count` elements of `shape`, to which the caller has access. A write
    /// to a file only reads it.
    ///
    /// # Errors
    /// `EINVAL` for more bytes than fit into 63 bits, `EFAULT` for data without an address.
    ///
    /// # Safety
    /// As long as the result lives: all bytes of the elements lie in memory that may be read, and
    /// written if it is given to [`Buffer::scatter`] or [`Buffer::dense_slice_mut`], and no other
    /// thread writes them meanwhile.
    pub unsafe fn new(
        at: *mut u8,
        count: u64,
        shape: &'a Shape,
    ) -> std::result::Result<Buffer<'a>, Errno> {
        let len = shape.size().checked_mul(count).filter(|len| i64::try_from(*len).is_ok());
        let len = len.ok_or(Errno::INVAL)?;
        // Address 0 with displacements from there is MPI_BOTTOM.
        if at.is_null() && len > 0 && shape.true_lb() == 0 {
            return Err(Errno::FAULT);
        }
        Ok(Buffer { at, shape, len })
    }

    /// A slice as a buffer of elements of `shape`, which must be contiguous:
    /// of another shape it is empty.
    pub fn from_slice(bytes: &'a mut [u8], shape: &'a Shape) -> Buffer<'a> {
        let len = if shape.is_contiguous() && shape.size() > 0 { bytes.len() as u64 } else { 0 };
        Buffer { at: bytes.as_mut_ptr(), shape, len }
    }

    /// Bytes of data.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has no data.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the address of `len` bytes of data from `from` on, if they are one run.
    fn dense_at(&self, from: u64, len: usize) -> Option<*mut u8> {
        if self.shape.is_contiguous() {
            return Some(self.at.wrapping_offset(from as isize));
        }
        let mut runs = self.shape.runs(from, len as u64);
        let run = runs.next()?;
        (run.count == 1 && run.block == len as u64)
            .then(|| self.at.wrapping_offset(run.disp as isize))
    }

    /// Returns the data bytes `from .. from + len`, if they are contiguous.
    pub fn dense_slice(&self, from: u64, len: usize) -> Option<&'a [u8]> {
        if len == 0 || from.checked_add(len as u64)? > self.len {
            return None;
        }
        let at = self.dense_at(from, len)?;
        // SAFETY: the caller of `new` promised these bytes.
        Some(unsafe { std::slice::from_raw_parts(at, len) })
    }

    /// The same, for writing.
    pub fn dense_slice_mut(&mut self, from: u64, len: usize) -> Option<&mut [u8]> {
        if len == 0 || from.checked_add(len as u64)? > self.len {
            return None;
        }
        let at = self.dense_at(from, len)?;
        // SAFETY: the caller of `new` promised these bytes; &mut self keeps it to one slice at a
        // time.
        Some(unsafe { std::slice::from_raw_parts_mut(at, len) })
    }

    /// Copies the data bytes from `from` on to `dense`, until either ends; returns their number.
    pub fn gather(&self, from: u64, dense: &mut [u8]) -> usize {
        let len = (dense.len() as u64).min(self.len.saturating_sub(from));
        let mut at = dense.as_mut_ptr();
        for run in self.shape.runs(from, len) {
            // SAFETY: the runs of `len` bytes of data fill `len` bytes of `dense`; the rest was
            // promised to `new`.
            at = unsafe { copy_run::<false>(self.at, run, at) };
        }
        len as usize
    }

    /// Copies `dense` to the data bytes from `from` on, until either ends; returns their number.
    pub fn scatter(&mut self, from: u64, dense: &[u8]) -> usize {
        let len = (dense.len() as u64).min(self.len.saturating_sub(from));
        let mut at = dense.as_ptr().cast_mut();
        for run in self.shape.runs(from, len) {
            // SAFETY: as in `gather`; `dense` is only read.
            at = unsafe { copy_run::<true>(self.at, run, at) };
        }
        len as usize
    }
}

/// Copies one run between memory at `base` and dense bytes at `dense`; returns the end of the dense
/// bytes. `OUT`: from dense to memory.
///
/// # Safety
/// Both sides exist and do not overlap.
unsafe fn copy_run<const OUT: bool>(base: *mut u8, run: StridedRun, dense: *mut u8) -> *mut u8 {
    let first = base.wrapping_offset(run.disp as isize);
    // SAFETY: all of it is the caller's.
    unsafe {
        match run.block {
            1 => copy_words::<u8, OUT>(first, run, dense),
            2 => copy_words::<u16, OUT>(first, run, dense),
            4 => copy_words::<u32, OUT>(first, run, dense),
            8 => copy_words::<u64, OUT>(first, run, dense),
            16 => copy_words::<u128, OUT>(first, run, dense),
            len if len < 128 && run.count > 1 => copy_small_blocks::<OUT>(first, run, dense),
            _ => copy_large_blocks::<OUT>(first, run, dense),
        }
        dense.add((run.block * run.count) as usize)
    }
}

/// Blocks of one machine word: a load and a store each.
///
/// # Safety
/// As [`copy_run`], and a block is a `W`.
unsafe fn copy_words<W: Copy, const OUT: bool>(first: *mut u8, run: StridedRun, dense: *mut u8) {
    let mut memory = first;
    let dense = dense.cast::<W>();
    for i in 0..run.count as usize {
        // SAFETY: the caller's; nothing is taken to be aligned.
        unsafe {
            let (from, to) = match OUT {
                true => (dense.add(i), memory.cast::<W>()),
                false => (memory.cast::<W>(), dense.add(i)),
            };
            to.write_unaligned(from.read_unaligned());
        }
        memory = memory.wrapping_offset(run.stride as isize);
    }
}

/// Blocks of some words: copied by 8 bytes at a time; the last copy may overlap the one before.
///
/// # Safety
/// As [`copy_run`].
unsafe fn copy_small_blocks<const OUT: bool>(first: *mut u8, run: StridedRun, dense: *mut u8) {
    let (mut memory, mut dense) = (first, dense);
    let len = run.block as usize;
    for _ in 0..run.count {
        let (from, to) = if OUT { (dense, memory) } else { (memory, dense) };
        // SAFETY: the caller's; every access lies within the block.
        unsafe {
            if len < 8 {
                for i in 0..len {
                    *to.add(i) = *from.add(i);
                }
            } else {
                let mut at = 0;
                while at + 8 <= len {
                    let word = from.add(at).cast::<u64>().read_unaligned();
                    to.add(at).cast::<u64>().write_unaligned(word);
                    at += 8;
                }
                let word = from.add(len - 8).cast::<u64>().read_unaligned();
                to.add(len - 8).cast::<u64>().write_unaligned(word);
            }
            dense = dense.add(len);
        }
        memory = memory.wrapping_offset(run.stride as isize);
    }
}

/// Blocks that are worth a call each.
///
/// # Safety
/// As [`copy_run`].
unsafe fn copy_large_blocks<const OUT: bool>(first: *mut u8, run: StridedRun, dense: *mut u8) {
    let (mut memory, mut dense) = (first, dense);
    for _ in 0..run.count {
        let (from, to) = if OUT { (dense, memory) } else { (memory, dense) };
        // SAFETY: the caller's.
        unsafe {
            std::ptr::copy_nonoverlapping(from, to, run.block as usize);
            dense = dense.add(run.block as usize);
        }
        memory = memory.wrapping_offset(run.stride as isize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_gathered_is_what_the_blocks_say_and_comes_back() {
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..500 {
            let block = random.u64(1..40) * random.u64(1..8);
            let inner = Shape::hvector(
                random.u64(1..6),
                1,
                (block + random.u64(0..9)) as i64,
                &Shape::bytes(block).unwrap(),
            )
            .unwrap();
            let shape = Shape::resized(0, inner.extent() + random.i64(0..64), &inner).unwrap();
            let count = random.u64(1..5);
            let span = (shape.extent() as u64 * count) as usize;
            let mut memory: Vec<u8> = (0..span).map(|_| random.u8(..)).collect();
            let before = memory.clone();
            // SAFETY: the elements lie in `memory`.
            let mut buffer = unsafe { Buffer::new(memory.as_mut_ptr(), count, &shape) }.unwrap();
            let from = random.u64(0..buffer.len());
            let mut dense = vec![0; random.usize(0..=(buffer.len() - from) as usize)];
            assert_eq!(buffer.gather(from, &mut dense), dense.len());
            let expected: Vec<u8> = shape
                .blocks(from, dense.len() as u64)
                .flat_map(|(disp, len)| before[disp as usize..][..len as usize].to_vec())
                .collect();
            assert_eq!(dense, expected);
            let new: Vec<u8> = dense.iter().map(|b| !b).collect();
            assert_eq!(buffer.scatter(from, &new), new.len());
            let mut back = vec![0; new.len()];
            buffer.gather(from, &mut back);
            assert_eq!(back, new);
            buffer.scatter(from, &dense);
            assert_eq!(memory, before);
        }
    }
}
