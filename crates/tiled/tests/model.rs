//! Random sequences of calls by several ranks on one container, against a model that keeps for each
//! byte its value, its writer and its time.
#![allow(clippy::unwrap_used)] // helpers of tests, too

use std::cell::Cell;
use std::path::Path;
use tatami_layout::{ProgramView, Shape, View};
use tatami_tiled::{
    Buffer, CollectiveOpen, Environment, Flags, Hints, RankFile, begin_open, machine, stat,
};

const SPAN: u64 = 600;

/// A possible state of a byte.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Byte {
    value: u8,
    /// Upper bound: a run of writes keeps the stamp of its first one.
    stamp: u64,
    rank: u32,
    /// Open and rank that wrote it.
    owner: Option<(u32, u32)>,
}

impl Byte {
    const HOLE: Byte = Byte { value: 0, stamp: 0, rank: 0, owner: None };

    /// The possible states after a write of `new`.
    ///
    /// Ranks of one open are ordered by epochs, then by rank. Of two opens the later epoch wins,
    /// too. Where one of them wrote under the byte view, its stamp may be older than the moment of
    /// the write, and MPI promises nothing.
    fn after(self, new: Byte) -> Vec<Byte> {
        let same_open = self.owner.map(|owner| owner.0) == new.owner.map(|owner| owner.0);
        if self.owner == new.owner {
            vec![Byte { value: new.value, ..self }]
        } else if new.stamp > self.stamp || (new.stamp == self.stamp && new.rank <= self.rank) {
            vec![new]
        } else if same_open {
            vec![self]
        } else {
            vec![self, new]
        }
    }
}

/// For each byte all possible states.
#[derive(Default)]
struct Model {
    bytes: Vec<Vec<Byte>>,
}

struct Write {
    stamp: u64,
    owner: (u32, u32),
}

impl Model {
    fn resize(&mut self, size: usize) {
        self.bytes.resize(size, vec![Byte::HOLE]);
    }

    fn write(&mut self, view: &ProgramView, stream: u64, data: &[u8], write: &Write) {
        for (i, value) in data.iter().enumerate() {
            let at = view.offset_of(stream + i as u64) as usize;
            if self.bytes.len() <= at {
                self.resize(at + 1);
            }
            let Write { stamp, owner } = *write;
            let new = Byte { value: *value, stamp, rank: owner.1, owner: Some(owner) };
            let mut after: Vec<Byte> =
                self.bytes[at].iter().flat_map(|byte| byte.after(new)).collect();
            after.dedup();
            self.bytes[at] = after;
        }
    }

    /// Number of readable bytes of a stretch.
    fn readable(&self, view: &ProgramView, stream: u64, len: u64) -> u64 {
        let is_in = |i: &u64| (view.offset_of(stream + i) as usize) < self.bytes.len();
        (0..len).take_while(is_in).count() as u64
    }

    /// Each byte that was read must be possible, and stays so: no later reader finds another one.
    fn observe(&mut self, view: &ProgramView, stream: u64, data: &[u8]) {
        for (i, value) in data.iter().enumerate() {
            let at = view.offset_of(stream + i as u64) as usize;
            let possible = self.bytes[at].clone();
            self.bytes[at].retain(|byte| byte.value == *value);
            assert!(
                !self.bytes[at].is_empty(),
                "byte {at} of {view:?} is {value}, and can be {possible:?}"
            );
        }
    }
}

struct Rank {
    file: RankFile,
    view: ProgramView,
    /// Where its last write ended in the stream.
    end: Cell<u64>,
}

struct Job {
    number: u32,
    ranks: Vec<Rank>,
    stamp: u64,
}

fn open(path: &Path, number: u32, ranks: u32) -> Job {
    let flags = Flags::RDWR | Flags::CREATE;
    let hints = Hints::new([("tatami_container", "true")]);
    let environment = Environment::default();
    let machine = machine::machine_id();
    let token = begin_open(&CollectiveOpen {
        path,
        flags,
        mode: 0o644,
        hints: &hints,
        environment: &environment,
        ranks,
        machine,
        nodes: &[],
    })
    .unwrap();
    let stamp = token.stamp;
    let file = |rank| RankFile::open(path, flags, &hints, rank, token.clone()).unwrap();
    let rank = |rank| Rank { file: file(rank), view: View::all_bytes().into(), end: Cell::new(0) };
    Job { number, ranks: (0..ranks).map(rank).collect(), stamp }
}

impl Job {
    fn epoch(&mut self) {
        self.stamp = self.ranks[0].file.next_stamp();
        for rank in &self.ranks {
            rank.file.begin_epoch(self.stamp).unwrap();
        }
    }

    fn publish(&mut self, durable: bool, closing: bool) {
        let sealed: Vec<Vec<u8>> =
            self.ranks.iter().map(|rank| rank.file.seal_piece(durable).unwrap()).collect();
        let sealed: Vec<&[u8]> = sealed.iter().map(Vec::as_slice).collect();
        self.ranks[0].file.publish_pieces(&sealed, durable, closing).unwrap();
        self.ranks.iter().for_each(|rank| rank.file.mark_published());
    }
}

fn random_view(random: &mut fastrand::Rng, rank: u64, ranks: u64) -> ProgramView {
    match random.u8(0..9) {
        0..6 => ordered_view(random, rank, ranks).into(),
        _ => {
            // Copies that overlap, lie between each other's blocks, or go back.
            let mut at = random.i64(-9..9);
            let lowest = at;
            let mut blocks = Vec::new();
            let overlaps = random.u8(0..4) == 0;
            for _ in 0..random.usize(1..5) {
                let len = random.u64(1..9);
                blocks.push((len, at));
                at += if overlaps { random.i64(0..8) } else { len as i64 + random.i64(0..12) };
            }
            let shape = Shape::hindexed(&blocks, &Shape::bytes(1).unwrap()).unwrap();
            let extent = random.i64(-3..=(at - lowest));
            let shape = Shape::resized(random.i64(-30..30), extent, &shape).unwrap();
            ProgramView::new(random.u64(10..60), 1, shape).unwrap()
        }
    }
}

fn ordered_view(random: &mut fastrand::Rng, rank: u64, ranks: u64) -> View {
    let disp = random.u64(0..40);
    match random.u8(0..6) {
        0 => View::all_bytes(),
        1 => View::new(disp, 1, Shape::bytes(random.u64(1..9)).unwrap()).unwrap(),
        2 => {
            // Blocks in turn, as most programs do it.
            let block = random.u64(1..17);
            let shape = Shape::resized(0, (block * ranks) as i64, &Shape::bytes(block).unwrap());
            View::new(block * rank, 1, shape.unwrap()).unwrap()
        }
        3 => {
            let inner =
                Shape::hvector(random.u64(1..4), random.u64(1..4), 7, &Shape::bytes(2).unwrap())
                    .unwrap();
            let outer =
                Shape::hvector(random.u64(1..4), 1, inner.extent() + random.i64(0..20), &inner)
                    .unwrap();
            let outer = Shape::resized(0, outer.extent() + random.i64(0..9), &outer).unwrap();
            View::new(disp, 1, outer).unwrap()
        }
        _ => {
            let mut at = 0;
            let mut blocks = Vec::new();
            for _ in 0..random.usize(1..5) {
                at += random.i64(0..12);
                let len = random.u64(1..9);
                blocks.push((len, at));
                at += len as i64;
            }
            let shape = Shape::hindexed(&blocks, &Shape::bytes(1).unwrap()).unwrap();
            let shape = Shape::resized(0, at + random.i64(0..8), &shape).unwrap();
            View::new(disp, 1, shape).unwrap()
        }
    }
}

/// Number of the `len` stream bytes from `from` on that lie within the file's first `SPAN` bytes.
fn within(view: &ProgramView, from: u64, len: u64) -> u64 {
    (from..from + len).take_while(|&at| view.offset_of(at) < SPAN).count() as u64
}

/// A stretch of a view within the file's first `SPAN` bytes.
fn stretch(random: &mut fastrand::Rng, view: &ProgramView) -> (u64, u64) {
    let from = random.u64(0..view.stream_before(SPAN).max(1));
    let len = random.u64(0..=120);
    (from, within(view, from, len))
}

fn buffer_shape(random: &mut fastrand::Rng, len: u64) -> (Shape, u64) {
    if len > 0 && len.is_multiple_of(4) && random.bool() {
        let shape = Shape::hvector(2, 1, 5, &Shape::bytes(2).unwrap()).unwrap();
        (Shape::resized(0, 9, &shape).unwrap(), len / 4)
    } else {
        (Shape::bytes(1).unwrap(), len)
    }
}

fn write(random: &mut fastrand::Rng, job: &Job, model: &mut Model) {
    let number = random.usize(0..job.ranks.len());
    let rank = &job.ranks[number];
    let (mut stream, mut len) = stretch(random, &rank.view);
    if random.bool() && rank.end.get() < rank.view.stream_before(SPAN) {
        // As most programs do it.
        stream = rank.end.get();
        len = within(&rank.view, stream, len);
    }
    let data: Vec<u8> = (0..len).map(|_| random.u8(1..)).collect();
    let (shape, count) = buffer_shape(random, len);
    let mut memory = vec![0u8; (shape.extent() as u64 * count.max(1)) as usize];
    // SAFETY: the elements lie in `memory`.
    let mut buffer = unsafe { Buffer::new(memory.as_mut_ptr(), count, &shape) }.unwrap();
    buffer.scatter(0, &data);
    let is_default = rank.view.direct_view(0, u64::MAX).is_some_and(View::is_default);
    let stamp = if is_default { rank.file.next_stamp() } else { job.stamp };
    assert_eq!(rank.file.write(stream, &buffer).unwrap(), len);
    rank.end.set(stream + len);
    model.write(&rank.view, stream, &data, &Write { stamp, owner: (job.number, number as u32) });
}

fn check(random: &mut fastrand::Rng, rank: &Rank, model: &mut Model) {
    let (stream, len) = stretch(random, &rank.view);
    let (shape, count) = buffer_shape(random, len);
    let mut memory = vec![0u8; (shape.extent() as u64 * count.max(1)) as usize];
    // SAFETY: the elements lie in `memory`.
    let mut buffer = unsafe { Buffer::new(memory.as_mut_ptr(), count, &shape) }.unwrap();
    let expected = model.readable(&rank.view, stream, len);
    assert_eq!(rank.file.read(stream, &mut buffer).unwrap(), expected);
    let mut dense = vec![0; expected as usize];
    buffer.gather(0, &mut dense);
    model.observe(&rank.view, stream, &dense);
}

fn check_all(path: &Path, rank: &Rank, model: &Model) {
    assert_eq!(rank.file.file_size().unwrap(), model.bytes.len() as u64);
    assert_eq!(stat::stat_file(path).unwrap().size, model.bytes.len() as u64);
}

fn run(seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    let mut model = Model::default();
    let mut opens = 0;
    for _ in 0..random.usize(1..4) {
        opens += 1;
        let mut job = open(&path, opens, random.u32(1..7));
        let mut second: Option<Job> = None;
        for _ in 0..random.usize(0..60) {
            match random.u8(0..20) {
                0..8 => write(&mut random, &job, &mut model),
                8..13 => {
                    let at = random.usize(0..job.ranks.len());
                    check(&mut random, &job.ranks[at], &mut model);
                }
                13 => job.epoch(),
                14 => {
                    job.publish(random.bool(), false);
                    job.epoch();
                }
                15 => {
                    let ranks = job.ranks.len() as u64;
                    for (number, rank) in job.ranks.iter_mut().enumerate() {
                        rank.view = random_view(&mut random, number as u64, ranks);
                        rank.file.set_view(rank.view.clone());
                    }
                    job.epoch();
                }
                16 => {
                    job.publish(false, false);
                    let size = random.u64(0..SPAN);
                    job.ranks[0].file.set_size(size).unwrap();
                    model.resize(size as usize);
                    job.epoch();
                }
                17 => check_all(&path, &job.ranks[0], &model),
                18 => match second.take() {
                    None => {
                        opens += 1;
                        second = Some(open(&path, opens, 1));
                    }
                    Some(mut over) => over.publish(false, true),
                },
                _ => {
                    if let Some(second) = &second {
                        write(&mut random, second, &mut model);
                        check(&mut random, &second.ranks[0], &mut model);
                    }
                }
            }
        }
        if let Some(mut second) = second {
            second.publish(false, true);
        }
        // A job that ends without closing is a dead one.
        if random.bool() {
            job.publish(random.bool(), true);
        }
    }
    let mut last = open(&path, opens + 1, 2);
    for rank in &last.ranks {
        for _ in 0..5 {
            check(&mut random, rank, &mut model);
        }
        check_all(&path, rank, &model);
    }
    last.publish(true, true);
    drop(last);
    assert_eq!(stat::stat_file(&path).unwrap().size, model.bytes.len() as u64);
    stat::delete_file(&path).unwrap();
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

/// Bytes are those of the model after any sequence of calls, whatever the views,
/// the number of ranks, the syncs, truncations, second opens and deaths.
#[test]
fn a_container_is_the_file_that_the_calls_describe() {
    let cases = std::env::var("TATAMI_TILED_CASES").ok().and_then(|n| n.parse().ok());
    let first = std::env::var("TATAMI_TILED_SEED").ok().and_then(|n| n.parse().ok());
    let first = first.unwrap_or(0u64);
    for seed in first..first + cases.unwrap_or(80u64) {
        if let Err(panic) = std::panic::catch_unwind(|| run(seed)) {
            eprintln!("TATAMI_TILED_SEED={seed}");
            std::panic::resume_unwind(panic);
        }
    }
}
