//! Measures the CPU time of each operation, with the store's commit shared by a batch.
//!
//! `cargo run --release -p tatami-meta --example costs [FILES]`
//!
//! It prints the CPU time of the shard's thread, which a busy machine disturbs less than wall time.
//! The last column has the rest of the process (the store's flushes and compactions), shared by all
//! operations.

use rustix::time::ClockId;
use std::path::Path;
use tatami_meta::{FjallStore, MemoryStore, Meta, MetaConfig, OperationContext, Store};
use tatami_wire::meta::{Bytes, InodeTemplate, MetaOp, MetaReply};
use tatami_wire::{
    Access, ClientId, Cred, ExecutorId, Ino, Layout, NodeId, ShardMap, Timestamp, VolumeId,
    VolumeKey,
};

fn nanoseconds(clock: ClockId) -> u64 {
    let t = rustix::time::clock_gettime(clock);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

struct CostRun<S> {
    meta: Meta<S>,
    seq: u64,
    batch: u64,
}

impl<S: Store> CostRun<S> {
    fn apply(&mut self, op: &MetaOp) -> MetaReply {
        self.seq += 1;
        let ctx = OperationContext {
            now: Timestamp::from_sec(1_700_000_000),
            client: ClientId([1; 16]),
            slot: (self.seq % 4) as u32,
            seq: self.seq,
            trusted: true,
        };
        let reply = self.meta.apply(&ctx, &Cred::ROOT, op).into_result().expect("operation");
        if self.seq.is_multiple_of(self.batch) {
            self.meta.commit().expect("commit");
        }
        reply
    }

    /// Returns the CPU microseconds of each of `n` operations.
    fn time(&mut self, n: u64, op: impl Fn(u64) -> MetaOp) -> f64 {
        let start = nanoseconds(ClockId::ThreadCPUTime);
        for i in 0..n {
            self.apply(&op(i));
        }
        self.meta.commit().expect("commit");
        (nanoseconds(ClockId::ThreadCPUTime) - start) as f64 / n as f64 / 1000.0
    }
}

fn name(i: u64) -> Bytes {
    Bytes::from(format!("file.mdtest.{i}").into_bytes())
}

fn run<S: Store>(what: &str, store: S, n: u64, batch: u64) -> S {
    let config = MetaConfig {
        executor: ExecutorId::first_of_node(NodeId(0)),
        map: ShardMap::with_one_shard(ExecutorId::first_of_node(NodeId(0))),
        volume: VolumeId([1; 16]),
        key: VolumeKey::new([2; 32]),
    };
    let meta = Meta::open(store, config, Timestamp::from_sec(1)).expect("opens");
    let mut run = CostRun { meta, seq: 0, batch };
    let create = |open| {
        move |i| MetaOp::Create {
            parent: Ino::ROOT,
            name: name(i),
            node: InodeTemplate::File(Layout::whole(NodeId(0))),
            mode: 0o644,
            umask: 0o022,
            exclusive: true,
            open,
        }
    };
    let lookup = |i| MetaOp::Lookup { parent: Ino::ROOT, name: name(i) };
    let unlink = |i| MetaOp::Unlink { parent: Ino::ROOT, name: name(i), keep: false };
    let background = || nanoseconds(ClockId::ProcessCPUTime) - nanoseconds(ClockId::ThreadCPUTime);
    let before = background();
    let made = run.time(n, create(None));
    let found = run.time(n, lookup);
    let MetaReply::Attr(first) = run.apply(&lookup(0)) else { panic!("not found") };
    let stated = run.time(n, |i| MetaOp::GetAttr { ino: Ino(first.ino.0 + i) });
    let removed = run.time(n, unlink);
    let opened = run.time(n, create(Some(Access::BOTH)));
    let removed_opened = run.time(n, unlink);
    let behind = (background() - before) as f64 / (6 * n) as f64 / 1000.0;
    println!(
        "{what:<8} {batch:>5} {made:>8.2} {found:>8.2} {stated:>8.2} {removed:>8.2} \
         {opened:>12.2} {removed_opened:>14.2} {behind:>11.2}"
    );
    for i in 0..n {
        run.apply(&create(None)(i));
    }
    run.meta.commit().expect("commit");
    run.meta.into_store()
}

fn main() {
    let n = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(100_000);
    println!("CPU µs an operation, {n} files in one directory");
    println!(
        "{:<8} {:>5} {:>8} {:>8} {:>8} {:>8} {:>12} {:>14} {:>11}",
        "store",
        "batch",
        "create",
        "lookup",
        "getattr",
        "unlink",
        "create+open",
        "unlink opened",
        "background"
    );
    let base = tempfile::tempdir().expect("directory");
    for batch in [1, 8, 64] {
        run("memory", MemoryStore::new(), n, batch);
        let path = base.path().join(batch.to_string());
        drop(run("fjall", open(&path), n, batch));
        let start = nanoseconds(ClockId::Monotonic);
        drop(open(&path));
        let ms = (nanoseconds(ClockId::Monotonic) - start) / 1_000_000;
        println!("         opening it again, with {n} files: {ms} ms");
    }
}

fn open(path: &Path) -> FjallStore {
    FjallStore::open(path, tatami_meta::StoreOptions::default()).expect("opens")
}
