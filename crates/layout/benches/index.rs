//! Costs of an index: `cargo bench -p tatami-layout`.
//!
//! Prints encoded bytes per rank, time and memory to open the index of a file that 10,000 ranks
//! wrote, and times of lookups. The allocator counts the memory.

// A bench reads the clock; the crate does not.
#![allow(clippy::disallowed_methods)]

use std::alloc::{GlobalAlloc, Layout as Memory, System};
use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use tatami_layout::{Piece, PieceTiles, Shape, TileIndex, View};

struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed to the system's allocator unchanged; only sizes are counted.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, memory: Memory) -> *mut u8 {
        LIVE.fetch_add(memory.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(memory) }
    }

    unsafe fn dealloc(&self, at: *mut u8, memory: Memory) {
        LIVE.fetch_sub(memory.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(at, memory) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Nanoseconds of one call, of `n` calls with the numbers from 0 on. Returns the least of several
/// rounds: other programs on the machine can only add to it.
fn least<T>(n: u64, mut call: impl FnMut(u64) -> T) -> f64 {
    let times = (0..15).map(|_| {
        let start = Instant::now();
        for i in 0..n {
            black_box(call(i));
        }
        start.elapsed().as_nanos() as f64 / n as f64
    });
    times.fold(f64::INFINITY, f64::min)
}

/// A number that looks random, always the same for the same `i`.
fn mixed(i: u64) -> u64 {
    let i = (i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (i ^ (i >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 7
}

const STAMP: u64 = 1_790_000_000_000_000;

/// One rank of a job, its bytes written in one view by several writes.
fn written(rank: u64, view: &View, len: u64, writes: u64) -> PieceTiles {
    let mut tiles = PieceTiles::new(rank as u32);
    let number = tiles.add_view(view).expect("a view of a bench");
    for i in 0..writes {
        let at = i * (len / writes);
        tiles.append(STAMP, number, at, len / writes, at).expect("a write of a bench");
    }
    tiles
}

/// Each rank has one of `ranks` successive blocks of 8 bytes, 1,048,576 of them.
fn strided(rank: u64, ranks: u64) -> (View, u64) {
    let block = Shape::bytes(8).expect("small");
    let filetype = Shape::resized(0, (8 * ranks) as i64, &block).expect("small");
    (View::new(8 * rank, 8, filetype).expect("valid"), 8 << 20)
}

/// Each rank has a block of a three-dimensional array of 8-byte numbers.
fn subarray(rank: u64, (x, y, z): (u64, u64, u64)) -> (View, u64) {
    const EDGE: u64 = 48;
    let (i, j, k) = (rank % x, rank / x % y, rank / x / y);
    let row = (8 * EDGE * x) as i64;
    let plane = row * (EDGE * y) as i64;
    let line = Shape::bytes(8 * EDGE).expect("small");
    let sheet = Shape::hvector(EDGE, 1, row, &line).expect("small");
    let block = Shape::hvector(EDGE, 1, plane, &sheet).expect("small");
    let at = (k * EDGE) as i64 * plane + (j * EDGE) as i64 * row + (i * EDGE * 8) as i64;
    let block = Shape::hindexed(&[(1, at)], &block).expect("small");
    let filetype = Shape::resized(0, plane * (EDGE * z) as i64, &block).expect("small");
    (View::new(512, 8, filetype).expect("valid"), 8 * EDGE * EDGE * EDGE)
}

/// Each rank writes 64 segments of 4 transfers at explicit offsets, as IOR does.
fn explicit(rank: u64, ranks: u64) -> (PieceTiles, u64) {
    const TRANSFER: u64 = 256 << 10;
    let mut tiles = PieceTiles::new(rank as u32);
    let number = tiles.add_view(&View::all_bytes()).expect("a view of a bench");
    let mut at = 0;
    for segment in 0..64 {
        for transfer in 0..4 {
            let offset = ((segment * ranks + rank) * 4 + transfer) * TRANSFER;
            tiles.append(STAMP, number, offset, TRANSFER, at).expect("a write of a bench");
            at += TRANSFER;
        }
    }
    (tiles, at)
}

fn job(name: &str, ranks: u64, of: impl Fn(u64) -> (View, PieceTiles, u64)) {
    let encoded: Vec<Vec<u8>> = (0..ranks).map(|r| of(r).1.encode()).collect();
    let bytes = encoded.iter().map(Vec::len).sum::<usize>() as f64 / ranks as f64;
    let most = encoded.iter().map(Vec::len).max().unwrap_or(0);
    let open = || {
        let pieces = encoded.iter().zip(1..).map(|(bytes, piece)| {
            (Piece(piece), PieceTiles::decode(bytes).expect("what was encoded"))
        });
        TileIndex::new(pieces.collect(), vec![], 0)
    };
    let opened = least(1, |_| open()) / 1e6;
    let before = LIVE.load(Ordering::Relaxed);
    let index = open();
    let memory = (LIVE.load(Ordering::Relaxed) - before) as f64 / f64::from(1 << 20);
    let size = index.size();
    let byte = least(1000, |i| index.lookup(mixed(i) % size, 1));
    let page = least(200, |i| index.lookup(mixed(i) % size, 4096));
    let pieces = index.lookup(size / 3, 4096).len();
    let same: Vec<(View, u64)> =
        (0..100).map(|i| mixed(i) % ranks).map(|r| (of(r).0, of(r).2)).collect();
    let whole = least(100, |i| {
        let (view, len) = &same[i as usize];
        index.lookup_view(view, 0, *len)
    });
    let runs = same.iter().map(|(v, len)| index.lookup_view(v, 0, *len).len()).max().unwrap_or(0);
    // Another view: every second KiB.
    let kib = Shape::bytes(1024).expect("small");
    let filetype = Shape::resized(0, 2048, &kib).expect("small");
    let view = View::new(1024, 1, filetype).expect("valid");
    let blocks: usize =
        (0..20).map(|i| index.lookup_view(&view, mixed(i) % (size / 4), 65536).len()).sum();
    let other = least(20, |i| index.lookup_view(&view, mixed(i) % (size / 4), 65536));
    let runs_of = |i: u64| index.lookup_runs(&view, mixed(i) % (size / 4), 1 << 20);
    let strided: usize = (0..20).map(|i| runs_of(i).len()).sum();
    let as_runs = least(20, runs_of);
    println!("{name}, {ranks} ranks, file of {:.1} GiB", size as f64 / f64::from(1 << 30));
    println!("  encoded             {bytes:10.1} bytes a rank, at most {most}");
    println!("  decode and new      {opened:10.2} ms");
    println!("  memory              {memory:10.2} MiB");
    println!("  lookup of a byte    {:10.3} us", byte / 1e3);
    println!("  lookup of 4 KiB     {:10.3} us ({pieces} pieces)", page / 1e3);
    println!("  same view, whole    {:10.3} us ({runs} pieces)", whole / 1e3);
    println!("  other view, 64 KiB  {:10.3} us ({} pieces)", other / 1e3, blocks / 20);
    println!("  the same, runs, 1 MiB {:8.3} us ({} runs)", as_runs / 1e3, strided / 20);
}

fn views() {
    let (view, _) = strided(3, 8);
    let at = least(1000, |i| view.offset_of(mixed(i) % (8 << 20)));
    let back = least(1000, |i| view.stream_before(mixed(i) % (64 << 20)));
    println!("view, 1,048,576 blocks of 8 bytes: offset_of {at:.1} ns, stream_before {back:.1} ns");
    let (view, len) = subarray(77, (16, 16, 16));
    let end = view.offset_of(len - 1);
    let at = least(1000, |i| view.offset_of(mixed(i) % len));
    let back = least(1000, |i| view.stream_before(mixed(i) % end));
    println!("view, 3-d block: offset_of {at:.1} ns, stream_before {back:.1} ns");
    let blocks: Vec<(u64, i64)> =
        (0..1 << 20).map(|i| (8, (i * 64 + mixed(i) % 56) as i64)).collect();
    let irregular = Shape::hindexed(&blocks, &Shape::bytes(1).expect("small")).expect("small");
    let view = View::new(0, 1, irregular).expect("valid");
    let at = least(1000, |i| view.offset_of(mixed(i) % (8 << 20)));
    let back = least(1000, |i| view.stream_before(mixed(i) % (64 << 20)));
    println!("view, 1,048,576 irregular blocks: offset_of {at:.1} ns, stream_before {back:.1} ns");
    let (view, len) = strided(3, 8);
    let walk = least(1, |_| view.extents(0, len).map(|e| e.0).sum::<u64>());
    println!("walking a view: {:.1} ns a block", walk / f64::from(1 << 20));
}

/// The work of a writer for each of many small writes.
fn writer() {
    let (view, _) = strided(3, 8);
    let mut tiles = PieceTiles::new(3);
    let number = tiles.add_view(&view).expect("a view of a bench");
    let mut at = 0;
    let call = least(10_000, |_| {
        black_box(tiles.own_extents(&view, at, 4096));
        tiles.append(STAMP, number, at, 4096, at).expect("a write of a bench");
        at += 4096;
    });
    println!("covered and append, one view: {call:.1} ns a write, {} tiles", tiles.tiles().len());
    let mut tiles = PieceTiles::new(3);
    let number = tiles.add_view(&View::all_bytes()).expect("a view of a bench");
    let (mut n, mut at) = (0, 0);
    let call = least(10_000, |_| {
        let offset = mixed(n) % (1 << 40);
        black_box(tiles.own_extents(&View::all_bytes(), offset, 4096));
        tiles.append(STAMP, number, offset, 4096, at).expect("a write of a bench");
        (n, at) = (n + 1, at + 4096);
    });
    println!("covered and append, anywhere: {call:.1} ns a write, {} tiles", tiles.tiles().len());
}

fn main() {
    views();
    writer();
    for ranks in [8, 10_000] {
        job("strided view, 8-byte blocks", ranks, |r| {
            let (view, len) = strided(r, ranks);
            let tiles = written(r, &view, len, 64);
            (view, tiles, len)
        });
    }
    for (x, y, z) in [(2, 2, 2), (25, 20, 20)] {
        job("3-d subarray view", x * y * z, |r| {
            let (view, len) = subarray(r, (x, y, z));
            let tiles = written(r, &view, len, 16);
            (view, tiles, len)
        });
    }
    for ranks in [8, 10_000] {
        job("explicit offsets, 64 segments of 4 x 256 KiB", ranks, |r| {
            let (tiles, len) = explicit(r, ranks);
            (View::all_bytes(), tiles, len)
        });
    }
}
