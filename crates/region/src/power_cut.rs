//! A simulated machine: a device and the file of a journal, with power cuts and damage. For tests.
//!
//! What is written to the device and not flushed may survive a power cut or not, sector by sector.
//! The same holds for the journal's file, page by page. The death of a process loses nothing that
//! was written.

use crate::aligned::AlignedBuffer;
use crate::block_device::{BlockDevice, DeviceWriter, LogFile, WritePart};
use crate::class::BLOCK;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

/// Bytes that a device writes as a whole.
const SECTOR: usize = 512;

/// Blocks of a disk: on it for good, and written since the last flush.
#[derive(Clone, Debug, Default)]
struct SimDisk {
    stable: BTreeMap<u64, Vec<u8>>,
    /// In order: offset of a block, and its new bytes.
    written: Vec<(u64, Vec<u8>)>,
    /// Blocks with what a read returns.
    now: BTreeMap<u64, Vec<u8>>,
    /// Blocks whose writes fail.
    bad: Vec<u64>,
}

#[derive(Debug)]
struct SimMachine {
    device: SimDisk,
    log: SimDisk,
    device_len: u64,
    /// Writes and flushes until the power is cut; `None`: never.
    left: Option<u64>,
    /// Number of writes and flushes so far.
    count: u64,
}

/// See the module. Clones are the same machine.
#[derive(Clone, Debug)]
pub struct PowerCut(Arc<Mutex<SimMachine>>);

impl SimDisk {
    fn read(&self, buf: &mut [u8], offset: u64) {
        for (n, chunk) in buf.chunks_mut(BLOCK).enumerate() {
            let at = offset + (n * BLOCK) as u64;
            match self.now.get(&at) {
                Some(block) => chunk.copy_from_slice(&block[..chunk.len()]),
                None => chunk.fill(0),
            }
        }
    }

    fn write_block(&mut self, at: u64, bytes: Vec<u8>) {
        self.now.insert(at, bytes.clone());
        self.written.push((at, bytes));
    }

    fn flush(&mut self) {
        for (at, bytes) in self.written.drain(..) {
            self.stable.insert(at, bytes);
        }
    }

    /// Ends what was not flushed: each unit of each write survives or not.
    fn cut_power(&mut self, unit: usize, random: &mut dyn FnMut() -> bool) {
        for (at, bytes) in std::mem::take(&mut self.written) {
            let block = self.stable.entry(at).or_insert_with(|| vec![0; BLOCK]);
            for (from, part) in bytes.chunks(unit).enumerate() {
                if random() {
                    block[from * unit..from * unit + part.len()].copy_from_slice(part);
                }
            }
        }
        self.now = self.stable.clone();
    }
}

impl SimMachine {
    /// Counts a write or flush; fails when there is no power any more.
    fn spend(&mut self) -> io::Result<()> {
        match &mut self.left {
            Some(0) => return Err(io::Error::from_raw_os_error(libc::EIO)),
            Some(left) => *left -= 1,
            None => {}
        }
        self.count += 1;
        Ok(())
    }
}

impl PowerCut {
    /// Makes a machine with an empty device of this length, in bytes.
    pub fn new(device_len: u64) -> PowerCut {
        let (device, log) = (SimDisk::default(), SimDisk::default());
        PowerCut(Arc::new(Mutex::new(SimMachine { device, log, device_len, left: None, count: 0 })))
    }

    /// Returns the device.
    pub fn device(&self) -> Arc<dyn BlockDevice> {
        Arc::new(SimDevice(self.clone()))
    }

    /// Returns the file of the journal.
    pub fn log(&self) -> Box<dyn LogFile> {
        Box::new(SimLog(self.clone()))
    }

    /// Returns the number of writes and flushes so far.
    pub fn count_writes(&self) -> u64 {
        self.0.lock().count
    }

    /// Lets the power fail after so many more writes and flushes.
    pub fn cut_after(&self, writes: u64) {
        self.0.lock().left = Some(writes);
    }

    /// Cuts the power, and starts the machine again.
    pub fn cut_power(&self, mut random: impl FnMut() -> bool) {
        let machine = &mut *self.0.lock();
        machine.device.cut_power(SECTOR, &mut random);
        machine.log.cut_power(BLOCK, &mut random);
        machine.left = None;
    }

    /// Lets the process die: all that it had written stays.
    pub fn kill_process(&self) {
        self.0.lock().left = None;
    }

    /// Flips a bit of the device, at a byte offset. Returns whether the byte was ever written.
    pub fn flip_bit(&self, offset: u64, bit: u8) -> bool {
        let machine = &mut *self.0.lock();
        let (block, at) = (offset / BLOCK as u64 * BLOCK as u64, offset as usize % BLOCK);
        let disk = &mut machine.device;
        for blocks in [&mut disk.stable, &mut disk.now] {
            match blocks.get_mut(&block) {
                Some(bytes) => bytes[at] ^= 1 << (bit % 8),
                None => return false,
            }
        }
        true
    }

    /// Returns the offsets of all blocks of the device that were written.
    pub fn written_blocks(&self) -> Vec<u64> {
        self.0.lock().device.now.keys().copied().collect()
    }

    /// Makes every write to these blocks of the device fail.
    pub fn break_blocks(&self, blocks: Vec<u64>) {
        self.0.lock().device.bad = blocks;
    }

    /// Empties blocks of the device for good.
    pub fn erase_block(&self, offset: u64) {
        let machine = &mut *self.0.lock();
        machine.device.stable.remove(&offset);
        machine.device.now.remove(&offset);
    }
}

struct SimDevice(PowerCut);

impl BlockDevice for SimDevice {
    fn len(&self) -> u64 {
        self.0.0.lock().device_len
    }

    fn read_at(&self, buffer: &mut AlignedBuffer, len: usize, offset: u64) -> io::Result<()> {
        let machine = self.0.0.lock();
        if offset + len as u64 > machine.device_len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        machine.device.read(&mut buffer.bytes_mut()[..len], offset);
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        let machine = &mut *self.0.0.lock();
        machine.spend()?;
        machine.device.flush();
        Ok(())
    }

    fn discard_range(&self, offset: u64, len: u64) {
        let machine = &mut *self.0.0.lock();
        if machine.left == Some(0) {
            return;
        }
        let gone: Vec<u64> =
            machine.device.now.range(offset..offset + len).map(|(at, _)| *at).collect();
        for at in gone {
            machine.device.write_block(at, vec![0; BLOCK]);
        }
    }

    fn make_writer(&self, len: usize) -> io::Result<Box<dyn DeviceWriter>> {
        Ok(Box::new(SimWriter { machine: self.0.clone(), memory: vec![0; len] }))
    }
}

struct SimWriter {
    machine: PowerCut,
    memory: Vec<u8>,
}

impl DeviceWriter for SimWriter {
    fn memory_mut(&mut self) -> &mut [u8] {
        &mut self.memory
    }

    fn write_parts(&mut self, parts: &[WritePart]) -> Vec<io::Result<()>> {
        let machine = &mut *self.machine.0.lock();
        let mut write = |part: &WritePart| {
            for at in (0..part.len).step_by(BLOCK) {
                machine.spend()?;
                let to = part.to + at as u64;
                if machine.device.bad.contains(&to) {
                    return Err(io::Error::from_raw_os_error(libc::EIO));
                }
                let bytes = self.memory[part.from + at..part.from + at + BLOCK].to_vec();
                machine.device.write_block(to, bytes);
            }
            Ok(())
        };
        parts.iter().map(&mut write).collect()
    }

    fn read_parts(&mut self, parts: &[WritePart]) -> Vec<io::Result<()>> {
        let machine = self.machine.0.lock();
        let mut read = |part: &WritePart| {
            machine.device.read(&mut self.memory[part.from..part.from + part.len], part.to);
            Ok(())
        };
        parts.iter().map(&mut read).collect()
    }
}

struct SimLog(PowerCut);

impl LogFile for SimLog {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let machine = self.0.0.lock();
        machine.log.read(buf, offset);
        Ok(buf.len())
    }

    fn write_at(&self, parts: [&[u8]; 2], offset: u64) -> io::Result<()> {
        let machine = &mut *self.0.0.lock();
        machine.spend()?;
        let bytes = parts.concat();
        let mut done = 0;
        while done < bytes.len() {
            let at = offset + done as u64;
            let (block, from) = (at / BLOCK as u64 * BLOCK as u64, at as usize % BLOCK);
            let n = (BLOCK - from).min(bytes.len() - done);
            let mut new = vec![0; BLOCK];
            machine.log.read(&mut new, block);
            new[from..from + n].copy_from_slice(&bytes[done..done + n]);
            machine.log.write_block(block, new);
            done += n;
        }
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let machine = &mut *self.0.0.lock();
        machine.spend()?;
        machine.log.flush();
        Ok(())
    }
}
