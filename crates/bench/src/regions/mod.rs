//! The engine of regions alone: objects made, changed and read by several threads, beside fio on
//! the same device.
//!
//! The engine has the front half of the device, and fio the other one, so both run in turn, depth
//! by depth. A change is written twice, to the journal and later to its region. So the rate of
//! writes that stands against fio ends when all objects are in their regions. All objects are
//! compared at the end.

mod fio;
mod report;

use crate::clock::{Steal, now_ns, own_cpu_ns};
use crate::error::{BenchError, path_error};
use crate::pattern::{expected_byte, fill_pattern, find_mismatch};
use crate::progress::print_progress;
use crate::stats::ratio_or_zero;
use crate::work_dir::WorkDir;
use fio::{FioRun, FioWork, is_fio_installed};
use report::{RegionPhase, RegionsReport};
use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tatami_bench_args::RegionsArgs;
use tatami_region::{NodeRegions, RegionChange, RegionStore, open_node_regions};
use tatami_wire::{Errno, Ino, Piece};

/// The volume that the device says it belongs to, while the benchmark runs.
const VOLUME: u128 = 0x7461_7461_6d69_2d62_656e_6368;
const PIECE: Piece = Piece(0);
/// Bytes of objects that the engine keeps in memory. A set of a quarter is warm after one read.
const WARM_BYTES: u64 = 16 << 20;
/// One of so many objects is written with a sync.
const SYNCED_SHARE: u64 = 16;
/// Bytes of a write that makes the device's room.
const FILL: usize = 1 << 20;

/// The state of a run.
struct RegionsRun<'a> {
    args: &'a RegionsArgs,
    /// Where the journal is.
    dir: PathBuf,
    device: PathBuf,
    /// Half of the device's length, in bytes.
    half: u64,
    has_fio: bool,
}

/// An operation of a phase.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RegionOperation {
    /// Writes the object as a whole, as its version of this number.
    Write(u64),
    /// Does so and syncs.
    SyncedWrite(u64),
    /// Reads the object. It must have the bytes of the change with this number.
    Read(u64),
}

/// Returns the seed of the bytes of an object.
fn bytes_seed(object: u64, version: u64) -> u64 {
    object.wrapping_add(1).wrapping_mul(0x9e37_79b9) ^ version << 48
}

fn engine_error(what: &'static str, object: u64) -> impl FnOnce(Errno) -> BenchError {
    move |errno| BenchError::Volume { what, name: format!("object {object}"), errno }
}

/// Runs the benchmark and removes its files.
///
/// # Errors
/// A device that is not empty, a failure of the engine or of fio, and bytes with a wrong value.
pub fn run(args: &RegionsArgs) -> Result<RegionsReport, BenchError> {
    let work = WorkDir::make(&args.work, "tatami-regions")?;
    let device = match &args.device {
        Some(path) => path.canonicalize().map_err(path_error("finding", path))?,
        None => work.path.join("device"),
    };
    let needed = engine_len(args);
    let half = match &args.device {
        Some(_) => measure_device(&device)? / 2 / (1 << 20) * (1 << 20),
        None => needed,
    };
    if half < needed {
        return Err(BenchError::Usage(format!(
            "{} has {} MiB, and {} objects at each of {} depths need {}: give fewer with -n",
            device.display(),
            (2 * half) >> 20,
            args.objects,
            args.depth.len(),
            (2 * needed) >> 20
        )));
    }
    if args.device.is_none() {
        print_progress(&format!("writing a file of {} MiB", (2 * half) >> 20));
        File::create_new(&device).map_err(path_error("creating", &device))?;
        fill_device(&device, 2 * half)?;
    }
    let (dir, has_fio) = (work.path.clone(), is_fio_installed());
    let measured = RegionsRun { args, dir, device: device.clone(), half, has_fio }.measure_all();
    // A device that was refused is not the benchmark's, and has kept its bytes.
    if args.device.is_some() && measured.is_ok() {
        empty_device(&device)?;
    }
    let report = measured?;
    work.remove()?;
    Ok(report)
}

/// Returns the bytes that the engine needs: each depth has objects of its own, and a change needs
/// another region before it frees the old one.
fn engine_len(args: &RegionsArgs) -> u64 {
    let each = args.size.next_power_of_two().max(4096) + 256;
    let objects = args.objects * (args.depth.len() as u64 + 1);
    (objects * each + (128 << 20)).next_multiple_of(1 << 20)
}

fn measure_device(path: &Path) -> Result<u64, BenchError> {
    let length = || File::open(path)?.seek(SeekFrom::End(0));
    length().map_err(path_error("measuring", path))
}

/// Writes zeros to all of a file, so that later writes find its room on the disk, as on a device.
fn fill_device(path: &Path, len: u64) -> Result<(), BenchError> {
    let fill = || {
        let mut file = File::options().write(true).open(path)?;
        let zeros = vec![0; FILL];
        for _ in 0..len / FILL as u64 {
            file.write_all(&zeros)?;
        }
        file.sync_all()
    };
    fill().map_err(path_error("writing zeros to", path))
}

/// Makes a device as empty as it was.
fn empty_device(path: &Path) -> Result<(), BenchError> {
    let found = std::fs::metadata(path).map_err(path_error("looking at", path))?;
    if !found.file_type().is_block_device() {
        return fill_device(path, found.len());
    }
    let mut discard = Command::new("blkdiscard");
    discard.arg("--zeroout").arg("--force").arg(path).stdin(Stdio::null());
    let failed = |problem| BenchError::Program { program: "blkdiscard".into(), problem };
    let said = discard.output().map_err(|e| failed(format!("does not start: {e}")))?;
    match said.status.success() {
        true => Ok(()),
        false => Err(failed(format!(
            "does not empty {}: {}",
            path.display(),
            String::from_utf8_lossy(&said.stderr).trim()
        ))),
    }
}

/// Returns the bytes that this process has written to disks so far, or has left to the kernel to
/// write.
fn written_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/io").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("write_bytes:"));
    line.and_then(|number| number.trim().parse().ok()).unwrap_or(0)
}

impl RegionsRun<'_> {
    fn open_store(&self) -> Result<RegionStore, BenchError> {
        let device = self.device.clone();
        let regions = NodeRegions { device, volume: VOLUME, node: 0, accept_loss: false };
        open_node_regions(&self.dir, &regions).map_err(|e| BenchError::Usage(e.to_string()))
    }

    fn measure_all(&self) -> Result<RegionsReport, BenchError> {
        let mut phases = Vec::new();
        // Before fio: a device with other data is refused, and keeps them.
        let mut store = self.open_store()?;
        let used = store.space().used;
        let depths: Vec<(usize, u64)> = self.args.depth.iter().copied().zip(0..).collect();
        for &(depth, set) in &depths {
            let objects = self.objects_of(set, false);
            let made = self.measure_writes("make", store, depth, &objects, 0)?;
            phases.push(made.with_fio(self.run_fio(depth, FioWork::Write)?));
            store = self.open_store()?;
        }
        let objects = self.args.objects * depths.len() as u64;
        let used = store.space().used.saturating_sub(used) as f64;
        let bytes_per_object = ratio_or_zero(used, objects as f64) + 128.0;
        for &(depth, set) in &depths {
            let objects = self.objects_of(set, true);
            let changed = self.measure_writes("change", store, depth, &objects, 1)?;
            phases.push(changed.with_fio(self.run_fio(depth, FioWork::Write)?));
            store = self.open_store()?;
        }
        for &(depth, set) in &depths {
            let objects = self.objects_of(set, true);
            // The store has just been opened, or has read objects of other sets alone.
            let read = RegionOperation::Read(1);
            let read = self.measure_phase("read", &store, depth, &objects, read)?;
            phases.push(read.with_fio(self.run_fio(depth, FioWork::Read)?));
        }
        for &(depth, set) in &depths {
            let few = (WARM_BYTES / self.args.size).clamp(1, self.args.objects) as usize;
            let mut objects = self.objects_of(set, true);
            objects.truncate(few);
            let read = RegionOperation::Read(1);
            self.measure_phase("read to memory", &store, depth, &objects, read)?;
            let many = self.args.objects as usize;
            let objects: Vec<u64> = objects.iter().copied().cycle().take(many).collect();
            phases.push(self.measure_phase("read again", &store, depth, &objects, read)?);
        }
        for &(depth, set) in &depths {
            let mut objects = self.objects_of(set, true);
            objects.truncate((self.args.objects / SYNCED_SHARE).max(depth as u64) as usize);
            // The same bytes as before, so that the check at the end finds them.
            let write = RegionOperation::SyncedWrite(1);
            let synced = self.measure_phase("change and sync", &store, depth, &objects, write)?;
            phases.push(synced.with_fio(self.run_fio(depth, FioWork::SyncedWrite)?));
        }
        self.check_objects(&store, objects)?;
        Ok(RegionsReport {
            workload: "regions".into(),
            device: match self.args.device {
                Some(_) => self.device.display().to_string(),
                None => format!("a file in {}", self.args.work.display()),
            },
            objects: self.args.objects,
            size: self.args.size,
            without_fio: (!self.has_fio)
                .then(|| "fio is not installed (scripts/packages.sh bench)".into()),
            bytes_per_object,
            phases,
        })
    }

    /// Returns the objects of a depth: those of no other.
    fn objects_of(&self, set: u64, shuffled: bool) -> Vec<u64> {
        let count = self.args.objects;
        let mut objects: Vec<u64> = (set * count..(set + 1) * count).collect();
        if shuffled {
            fastrand::Rng::with_seed(self.args.seed ^ set).shuffle(&mut objects);
        }
        objects
    }

    fn run_fio(&self, depth: usize, work: FioWork) -> Result<Option<f64>, BenchError> {
        if !self.has_fio {
            return Ok(None);
        }
        let RegionsArgs { size, objects, .. } = *self.args;
        let few = (objects / SYNCED_SHARE).max(depth as u64);
        let requests = if work == FioWork::SyncedWrite { few } else { objects };
        // Requests past the page cache are whole blocks. The end of the device has a superblock.
        let size = size.next_multiple_of(4096);
        let len = (self.half - (1 << 20)) / size * size;
        let (device, offset) = (self.device.as_path(), self.half);
        FioRun { device, offset, len, size, depth, requests }.measure_rate(work).map(Some)
    }

    /// Writes objects until all of them are in their regions, and closes the store.
    fn measure_writes(
        &self,
        name: &str,
        store: RegionStore,
        depth: usize,
        objects: &[u64],
        version: u64,
    ) -> Result<RegionPhase, BenchError> {
        let (start, cpu, written) = (now_ns(), own_cpu_ns(), written_bytes());
        let write = RegionOperation::Write(version);
        let mut phase = self.measure_phase(name, &store, depth, objects, write)?;
        store.close();
        let seconds = (now_ns() - start) as f64 / 1e9;
        let ops = objects.len() as f64;
        phase.stored_per_sec = Some(ratio_or_zero(ops, seconds));
        phase.written_per_op = Some((written_bytes() - written) as f64 / ops);
        phase.cpu_us_per_op = (own_cpu_ns() - cpu) as f64 / 1e3 / ops;
        Ok(phase)
    }

    /// Runs one operation on all objects, by `depth` threads. Writes end with a sync.
    fn measure_phase(
        &self,
        name: &str,
        store: &RegionStore,
        depth: usize,
        objects: &[u64],
        operation: RegionOperation,
    ) -> Result<RegionPhase, BenchError> {
        let (steal, start, cpu) = (Steal::now(), now_ns(), own_cpu_ns());
        let size = self.args.size as usize;
        let shares = objects.chunks(objects.len().div_ceil(depth).max(1));
        std::thread::scope(|scope| {
            let start_share = |share| scope.spawn(move || run_share(store, share, operation, size));
            let running: Vec<_> = shares.map(start_share).collect();
            // All threads must have ended, whether or not the first one failed.
            let ended: Vec<_> = running.into_iter().map(|thread| thread.join()).collect();
            ended
                .into_iter()
                .try_for_each(|done| done.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        })?;
        if let RegionOperation::Write(_) = operation {
            store.sync_all().map_err(engine_error("syncing", 0))?;
        }
        let (seconds, ops) = ((now_ns() - start) as f64 / 1e9, objects.len() as u64);
        let phase = RegionPhase {
            phase: name.into(),
            depth,
            ops,
            ops_per_sec: ratio_or_zero(ops as f64, seconds),
            cpu_us_per_op: (own_cpu_ns() - cpu) as f64 / 1e3 / ops as f64,
            stolen: steal.stolen_share(),
            ..RegionPhase::default()
        };
        let rate = phase.ops_per_sec;
        print_progress(&format!("{name}, depth {depth}: {rate:.0}/s"));
        Ok(phase)
    }

    /// Compares all bytes of all objects.
    fn check_objects(&self, store: &RegionStore, objects: u64) -> Result<(), BenchError> {
        let mut buffer = vec![0; self.args.size as usize + 1];
        for object in 0..objects {
            let bytes = read_object(store, object, &mut buffer, self.args.size as usize)?;
            if let Some(wrong) = find_mismatch(bytes_seed(object, 1), 0, bytes) {
                return Err(wrong_byte(object, wrong.offset, wrong.expected, wrong.found));
            }
        }
        Ok(())
    }
}

fn wrong_byte(object: u64, offset: u64, expected: u8, found: u8) -> BenchError {
    BenchError::Verify { path: format!("object {object}"), offset, expected, found }
}

/// Reads an object that must have `size` bytes.
fn read_object<'a>(
    store: &RegionStore,
    object: u64,
    buffer: &'a mut [u8],
    size: usize,
) -> Result<&'a [u8], BenchError> {
    let got = store.read_at((Ino(object + 1), PIECE), buffer, 0);
    match got.map_err(engine_error("reading", object))?.unwrap_or(0) {
        got if got == size => Ok(&buffer[..size]),
        got => {
            let path = format!("object {object}");
            Err(BenchError::Short { path, offset: 0, wanted: size, got })
        }
    }
}

/// Runs an operation on the objects of one thread.
fn run_share(
    store: &RegionStore,
    objects: &[u64],
    operation: RegionOperation,
    size: usize,
) -> Result<(), BenchError> {
    let mut buffer = vec![0; size + 1];
    for &object in objects {
        match operation {
            RegionOperation::Write(version) | RegionOperation::SyncedWrite(version) => {
                fill_pattern(bytes_seed(object, version), 0, &mut buffer[..size]);
                let change = RegionChange::Write { offset: 0, bytes: &buffer[..size] };
                let key = (Ino(object + 1), PIECE);
                store.change(key, true, change).map_err(|e| {
                    BenchError::Usage(format!("object {object} cannot be written: {e:?}"))
                })?;
                if operation == RegionOperation::SyncedWrite(version) {
                    store.sync(key).map_err(engine_error("syncing", object))?;
                }
            }
            RegionOperation::Read(version) => {
                let bytes = read_object(store, object, &mut buffer, size)?;
                // The first and the last byte, since fio compares none: all are compared at the
                // end.
                for at in [0, size - 1] {
                    let expected = expected_byte(bytes_seed(object, version), at as u64);
                    if bytes[at] != expected {
                        return Err(wrong_byte(object, at as u64, expected, bytes[at]));
                    }
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(objects: u64, depth: &[usize]) -> RegionsArgs {
        RegionsArgs {
            device: None,
            work: "/nowhere".into(),
            objects,
            size: 4096,
            depth: depth.to_vec(),
            seed: 1,
            json: false,
        }
    }

    #[test]
    fn the_engine_has_room_for_all_objects_and_their_changes() {
        let len = engine_len(&args(1000, &[1, 4]));
        assert!(len >= (3000 * 4224) + (64 << 20) && len.is_multiple_of(1 << 20), "{len}");
    }

    #[test]
    fn depths_have_objects_of_their_own() {
        let args = args(100, &[1, 4]);
        let (dir, device) = (PathBuf::new(), PathBuf::new());
        let run = RegionsRun { args: &args, dir, device, half: 0, has_fio: false };
        let first = run.objects_of(0, true);
        assert!(first.iter().all(|n| *n < 100) && !first.is_sorted());
        assert!(run.objects_of(1, false).into_iter().eq(100..200));
    }

    #[test]
    fn a_wrong_byte_is_found() {
        let dir = tempfile::tempdir().expect("a directory");
        let device = dir.path().join("device");
        File::create(&device).expect("made").set_len(64 << 20).expect("extended");
        let args = args(64, &[2]);
        let own = dir.path().to_owned();
        let run = RegionsRun { args: &args, dir: own, device, half: 0, has_fio: false };
        let store = run.open_store().expect("opens");
        run_share(&store, &[0, 1, 2], RegionOperation::Write(1), 4096).expect("written");
        run.check_objects(&store, 3).expect("all is right");
        run_share(&store, &[1], RegionOperation::Read(1), 4096).expect("right");
        let change = RegionChange::Write { offset: 77, bytes: &[0xff; 8] };
        store.change((Ino(2), PIECE), false, change).expect("written");
        let error = run.check_objects(&store, 3).expect_err("a byte is wrong").to_string();
        assert!(error.contains("object 1") && error.contains("byte 7"), "{error}");
        assert!(run_share(&store, &[0], RegionOperation::Read(0), 4096).is_err());
    }
}
