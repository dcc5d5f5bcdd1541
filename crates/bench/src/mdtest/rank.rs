//! One process of mdtest.

use super::names::{MdtestOp, WorkDirectory, WorkloadPlace, object_name};
use crate::error::BenchError;
use crate::workload::{PhaseTotals, SLOW, Workload};
use serde::{Deserialize, Serialize};
use std::ffi::CString;
use std::time::{Duration, Instant};

/// The task of one process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MdtestPart {
    /// The directory that the starter has made.
    pub place: WorkloadPlace,
    /// The number of this process, from 0.
    pub rank: usize,
    /// Number of processes.
    pub procs: usize,
    /// Files (and directories) of each process.
    pub items: u64,
    /// Whether all processes work in one directory; otherwise each has its own.
    pub shared: bool,
    /// Stat the files of the process this many numbers further.
    pub shift: usize,
    /// Operations in one request, through the library.
    pub bulk: usize,
    /// Threads of the process, each with a part of its items.
    pub threads: usize,
}

impl MdtestPart {
    /// Returns the subdirectory in which process `rank` works.
    pub fn subdirectory(&self, rank: usize) -> String {
        if self.shared { "shared".into() } else { format!("private.{rank}") }
    }
}

/// A process that has found its directories.
pub struct MdtestRank {
    part: MdtestPart,
    own: WorkDirectory,
    /// The directory for stat, if that is another one.
    other: Option<WorkDirectory>,
    names: Vec<CString>,
}

impl MdtestRank {
    /// Opens the directories.
    ///
    /// # Errors
    /// When they are not there.
    pub fn new(part: MdtestPart) -> Result<MdtestRank, BenchError> {
        let own = WorkDirectory::open_dir(&part.place, &part.subdirectory(part.rank))?;
        let neighbour = (part.rank + part.shift) % part.procs.max(1);
        let other = (!part.shared && neighbour != part.rank)
            .then(|| WorkDirectory::open_dir(&part.place, &part.subdirectory(neighbour)))
            .transpose()?;
        Ok(MdtestRank { part, own, other, names: Vec::new() })
    }

    /// Returns the rank that owns the items of an operation.
    fn items_owner(&self, op: MdtestOp) -> usize {
        match op {
            MdtestOp::DirStat | MdtestOp::FileStat => {
                (self.part.rank + self.part.shift) % self.part.procs.max(1)
            }
            _ => self.part.rank,
        }
    }

    fn op_directory(&self, op: MdtestOp) -> &WorkDirectory {
        match &self.other {
            Some(other) if self.items_owner(op) != self.part.rank => other,
            _ => &self.own,
        }
    }
}

/// How long the operations of a thread took, one after the other.
struct ThreadTimes {
    last_end: Instant,
    slow: u64,
    slowest: Duration,
}

impl ThreadTimes {
    fn start() -> ThreadTimes {
        ThreadTimes { last_end: Instant::now(), slow: 0, slowest: Duration::ZERO }
    }

    /// Records that an operation has ended, which began at the end of the one before.
    fn record_end(&mut self) {
        let now = Instant::now();
        let time = now - self.last_end;
        self.slow += u64::from(time > SLOW);
        self.slowest = self.slowest.max(time);
        self.last_end = now;
    }

    fn merge(self, other: ThreadTimes) -> ThreadTimes {
        ThreadTimes {
            last_end: self.last_end.max(other.last_end),
            slow: self.slow + other.slow,
            slowest: self.slowest.max(other.slowest),
        }
    }
}

fn parse_op(phase: &str) -> Result<MdtestOp, BenchError> {
    MdtestOp::from_name(phase)
        .ok_or_else(|| BenchError::Usage(format!("mdtest has no phase '{phase}'")))
}

impl Workload for MdtestRank {
    fn prepare_phase(&mut self, phase: &str) -> Result<String, BenchError> {
        let op = parse_op(phase)?;
        let kind = if op.is_dir() { "dir" } else { "file" };
        let owner = self.items_owner(op);
        let names = self.op_directory(op);
        let name = |i| match self.part.place {
            WorkloadPlace::Objects { .. } => object_name(owner as u64 * self.part.items + i),
            _ => format!("{kind}.mdtest.{owner}.{i}"),
        };
        let list = (0..self.part.items).map(|i| names.prepare_name(&name(i))).collect();
        self.names = list;
        Ok(String::new())
    }

    fn run_phase(&mut self, phase: &str) -> Result<PhaseTotals, BenchError> {
        let op = parse_op(phase)?;
        let names = self.op_directory(op);
        let work = |items: &[CString]| -> Result<ThreadTimes, BenchError> {
            let mut times = ThreadTimes::start();
            for some in items.chunks(self.part.bulk.max(1)) {
                match some {
                    [name] => names.run_op(op, name)?,
                    some => names.run_many(op, some)?,
                }
                times.record_end();
            }
            Ok(times)
        };
        let threads = self.part.threads.max(1);
        let times = if threads == 1 {
            work(&self.names)?
        } else {
            let share = self.names.len().div_ceil(threads).max(1);
            std::thread::scope(|scope| {
                let shares = self.names.chunks(share);
                let running: Vec<_> =
                    shares.map(|items| scope.spawn(move || work(items))).collect();
                // All threads must have ended, whether or not the first one failed.
                let ended: Vec<_> = running.into_iter().map(|thread| thread.join()).collect();
                ended.into_iter().try_fold(ThreadTimes::start(), |all, done| {
                    let done = done.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                    Ok::<_, BenchError>(all.merge(done?))
                })
            })?
        };
        Ok(PhaseTotals {
            ops: self.names.len() as u64,
            bytes: 0,
            slow_ops: times.slow,
            slowest_ns: times.slowest.as_nanos() as u64,
            ..PhaseTotals::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shifted_process_stats_what_its_neighbour_made() {
        let base = tempfile::tempdir().expect("a temporary directory");
        for sub in ["private.0", "private.1"] {
            std::fs::create_dir(base.path().join(sub)).expect("a fresh directory");
        }
        let place = WorkloadPlace::Path { dir: base.path().into(), relative: true };
        let part = |rank| MdtestPart {
            place: place.clone(),
            rank,
            procs: 2,
            items: 3,
            shared: false,
            shift: 1,
            bulk: 1,
            threads: 2,
        };
        let mut ranks =
            [0, 1].map(|r| MdtestRank::new(part(r)).expect("its directories are there"));
        for op in MdtestOp::ALL {
            for rank in &mut ranks {
                rank.prepare_phase(op.name()).expect("a known phase");
                assert_eq!(
                    rank.run_phase(op.name()).expect("each phase fits the one before").ops,
                    3
                );
            }
            if op == MdtestOp::FileCreate {
                assert!(base.path().join("private.1/file.mdtest.1.2").exists());
                std::fs::remove_file(base.path().join("private.1/file.mdtest.1.2"))
                    .expect("it is there");
                ranks[0].prepare_phase("file stat").expect("a known phase");
                assert!(
                    ranks[0].run_phase("file stat").is_err(),
                    "it looks at the neighbour's files"
                );
                std::fs::write(base.path().join("private.1/file.mdtest.1.2"), "")
                    .expect("put it back");
            }
        }
        assert!(ranks[0].prepare_phase("file dance").is_err());
    }
}
