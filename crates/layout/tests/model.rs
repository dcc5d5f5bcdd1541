//! Shapes, views, pieces and the index against models that know every byte.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

use proptest::collection::vec;
use proptest::prelude::*;
use tatami_layout::*;

/// A datatype as MPI describes it.
#[derive(Clone, Debug)]
enum Type {
    Bytes(u64),
    Contiguous(u64, Box<Type>),
    Hvector(u64, u64, i64, Box<Type>),
    Hindexed(Vec<(u64, i64)>, Box<Type>),
    Struct(Vec<(u64, i64, Type)>),
    Resized(i64, i64, Box<Type>),
}

/// The MPI type map: the place of every byte, lower and upper bound.
#[derive(Clone, Debug, PartialEq)]
struct Flat {
    bytes: Vec<i64>,
    lb: i64,
    ub: i64,
}

impl Flat {
    fn of(blocks: impl IntoIterator<Item = (i64, Flat)>) -> Flat {
        let mut all: Option<Flat> = None;
        for (disp, block) in blocks {
            let all = all.get_or_insert(Flat { bytes: vec![], lb: i64::MAX, ub: i64::MIN });
            all.bytes.extend(block.bytes.iter().map(|b| b + disp));
            all.lb = all.lb.min(block.lb + disp);
            all.ub = all.ub.max(block.ub + disp);
        }
        all.unwrap_or(Flat { bytes: vec![], lb: 0, ub: 0 })
    }

    fn copies(&self, count: u64, stride: i64) -> Flat {
        Flat::of((0..count as i64).map(|i| (i * stride, self.clone())))
    }

    fn extent(&self) -> i64 {
        self.ub - self.lb
    }
}

impl Type {
    fn flat(&self) -> Flat {
        match self {
            Type::Bytes(n) => Flat { bytes: (0..*n as i64).collect(), lb: 0, ub: *n as i64 },
            Type::Contiguous(n, t) => {
                let t = t.flat();
                t.copies(*n, t.extent())
            }
            Type::Hvector(n, block, stride, t) => {
                let t = t.flat();
                t.copies(*block, t.extent()).copies(*n, *stride)
            }
            Type::Hindexed(blocks, t) => {
                let t = t.flat();
                Flat::of(
                    blocks
                        .iter()
                        .filter(|b| b.0 > 0)
                        .map(|&(n, disp)| (disp, t.copies(n, t.extent()))),
                )
            }
            Type::Struct(blocks) => {
                Flat::of(blocks.iter().filter(|b| b.0 > 0).map(|(n, disp, t)| {
                    let t = t.flat();
                    (*disp, t.copies(*n, t.extent()))
                }))
            }
            Type::Resized(lb, extent, t) => {
                Flat { bytes: t.flat().bytes, lb: *lb, ub: lb + extent }
            }
        }
    }

    fn shape(&self) -> Shape {
        match self {
            Type::Bytes(n) => Shape::bytes(*n),
            Type::Contiguous(n, t) => Shape::contiguous(*n, &t.shape()),
            Type::Hvector(n, block, stride, t) => Shape::hvector(*n, *block, *stride, &t.shape()),
            Type::Hindexed(blocks, t) => Shape::hindexed(blocks, &t.shape()),
            Type::Struct(blocks) => {
                let blocks: Vec<_> = blocks.iter().map(|(n, d, t)| (*n, *d, t.shape())).collect();
                Shape::structure(&blocks)
            }
            Type::Resized(lb, extent, t) => Shape::resized(*lb, *extent, &t.shape()),
        }
        .unwrap()
    }
}

fn types() -> impl Strategy<Value = Type> {
    let leaf = (0u64..5).prop_map(Type::Bytes);
    leaf.prop_recursive(4, 24, 5, |t| {
        let boxed = t.clone().prop_map(Box::new);
        prop_oneof![
            (0u64..5, boxed.clone()).prop_map(|(n, t)| Type::Contiguous(n, t)),
            (0u64..5, 0u64..3, -12i64..24, boxed.clone())
                .prop_map(|(n, b, s, t)| Type::Hvector(n, b, s, t)),
            (vec((0u64..3, -12i64..40), 0..8), boxed.clone())
                .prop_map(|(b, t)| Type::Hindexed(b, t)),
            vec((0u64..3, -12i64..40, t), 0..4).prop_map(Type::Struct),
            (-5i64..5, -3i64..40, boxed).prop_map(|(lb, e, t)| Type::Resized(lb, e, t)),
        ]
    })
}

/// Datatypes that may be filetypes: blocks in order and apart.
fn filetypes() -> impl Strategy<Value = Type> {
    let leaf = (1u64..6).prop_map(Type::Bytes);
    let inner = leaf.prop_recursive(3, 16, 4, |t| {
        prop_oneof![
            (1u64..5, 0i64..9, t.clone()).prop_map(|(n, gap, t)| {
                let stride = t.flat().bytes.last().map_or(0, |b| b + 1) + gap;
                Type::Hvector(n, 1, stride, Box::new(t))
            }),
            vec((0i64..9, t), 1..5).prop_map(|parts| {
                let mut at = 0;
                Type::Struct(
                    parts
                        .into_iter()
                        .map(|(gap, t)| {
                            let disp = at + gap;
                            at = disp + t.flat().bytes.last().map_or(0, |b| b + 1);
                            (1, disp, t)
                        })
                        .collect(),
                )
            }),
        ]
    });
    (inner, 0i64..9, any::<bool>()).prop_map(|(t, gap, resize)| {
        let flat = t.flat();
        let end = flat.bytes.last().map_or(0, |b| b + 1);
        if resize { Type::Resized(0, end + gap, Box::new(t)) } else { t }
    })
}

fn views() -> impl Strategy<Value = View> {
    prop_oneof![
        1 => Just(View::all_bytes()),
        4 => (0u64..40, filetypes())
            .prop_map(|(disp, t)| View::new(disp, 1, t.shape()).unwrap()),
    ]
}

/// The first `n` places that a shape's endless repetition visits.
fn places(flat: &Flat, n: usize) -> Vec<i64> {
    if flat.bytes.is_empty() {
        return vec![];
    }
    let len = flat.bytes.len();
    (0..n).map(|i| flat.bytes[i % len] + (i / len) as i64 * flat.extent()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn a_shape_is_what_mpi_says(t in types(), from in 0usize..200, len in 0usize..200) {
        let (flat, shape) = (t.flat(), t.shape());
        prop_assert_eq!(shape.size(), flat.bytes.len() as u64);
        prop_assert_eq!((shape.lb(), shape.extent()), (flat.lb, flat.extent()));
        if let (Some(low), Some(high)) = (flat.bytes.iter().min(), flat.bytes.iter().max()) {
            prop_assert_eq!((shape.true_lb(), shape.true_extent()), (*low, high + 1 - low));
        }
        let all = places(&flat, from + len);
        let want = &all[from.min(all.len())..];
        let blocks: Vec<_> = shape.blocks(from as u64, len as u64).collect();
        let got: Vec<i64> = blocks.iter().flat_map(|&(d, n)| d..d + n as i64).collect();
        prop_assert_eq!(&got[..], want);
        prop_assert!(blocks.windows(2).all(|w| w[0].0 + w[0].1 as i64 != w[1].0), "not joined");
        let got: Vec<i64> = shape
            .runs(from as u64, len as u64)
            .flat_map(|r| (0..r.count as i64).flat_map(move |i| {
                let at = r.disp + i * r.stride;
                at..at + r.block as i64
            }))
            .collect();
        prop_assert_eq!(&got[..], want);
        let contiguous = places(&flat, 50) == (0..50).collect::<Vec<i64>>() || flat.bytes.is_empty();
        prop_assert_eq!(shape.is_contiguous(), contiguous);
    }

    #[test]
    fn a_shape_comes_back(t in types()) {
        let shape = t.shape();
        let mut out = Vec::new();
        shape.encode(&mut out);
        let mut rest = &out[..];
        prop_assert_eq!(Shape::decode(&mut rest), Ok(shape));
        prop_assert!(rest.is_empty());
    }

    /// Views that a program may set: with extents of zero, below zero and shorter than the data,
    /// lower bounds anywhere, and data before displacement 0. The model has the place of each byte,
    /// and file order.
    #[test]
    fn a_program_s_view_is_what_mpi_says(
        t in types(),
        resize in prop::option::of((-20i64..20, -9i64..20)),
        disp in 0u64..60,
        stream in 0u64..150,
        len in 1u64..150,
        end in 0u64..300,
    ) {
        let t = match resize {
            Some((lb, extent)) => Type::Resized(lb, extent, Box::new(t)),
            None => t,
        };
        let flat = t.flat();
        let one = places(&flat, flat.bytes.len());
        let view = match ProgramView::new(disp, 1, t.shape()) {
            // Blocks that touch are joined, which may hide that their bytes were out of order; the
            // reverse cannot happen.
            Ok(view) => view,
            Err(error) => {
                let outside = one.iter().any(|&p| p + (disp as i64) < 0);
                let decreasing = one.windows(2).any(|w| w[1] < w[0]);
                prop_assert!(outside || decreasing, "{}", error);
                return Ok(());
            }
        };
        prop_assert!(one.iter().all(|&p| p + disp as i64 >= 0));
        let all: Vec<i64> = match one.len() {
            0 => vec![],
            _ => places(&flat, 300).iter().map(|p| p + disp as i64).collect(),
        };
        for (s, &place) in (0..).zip(&all) {
            prop_assert_eq!(view.offset_of(s), u64::try_from(place).unwrap_or(u64::MAX));
        }
        // Bytes before `end`: of copies that advance through the file, all have been seen by then.
        if flat.extent() > 0 || one.is_empty() {
            let seen = places(&flat, one.len() * 500);
            let before = seen.iter().rposition(|p| p + (disp as i64) < end as i64);
            prop_assert_eq!(view.stream_before(end), before.map_or(0, |s| s as u64 + 1));
        }
        let wanted: Vec<i64> =
            all.iter().copied().skip(stream as usize).take(len as usize).collect();
        match view.direct_view(stream, len) {
            Some(view) => {
                let got = view.extents(stream, wanted.len() as u64);
                let got: Vec<i64> = got.flat_map(|(o, n)| o as i64..(o + n) as i64).collect();
                prop_assert_eq!(&got, &wanted);
                prop_assert!(got.windows(2).all(|w| w[0] < w[1]));
            }
            None => {
                let inside = wanted.iter().take_while(|p| **p < end as i64);
                let inside: Vec<i64> = inside.copied().collect();
                let stretch = view.in_file_order(stream, wanted.len() as u64, end);
                if inside.iter().any(|p| *p < 0) {
                    prop_assert_eq!(stretch.err(), Some(ViewError::Outside));
                    return Ok(());
                }
                let stretch = stretch.unwrap();
                prop_assert_eq!(stretch.stream_len(), inside.len() as u64);
                // Each byte of the stream has its number as its value.
                let numbers: Vec<u8> = (0..inside.len()).map(|k| k as u8).collect();
                let mut file = vec![0xff; stretch.size() as usize];
                stretch.sort_into_file_order(&numbers, &mut file);
                let got: Vec<u64> = stretch
                    .view()
                    .extents(0, stretch.size())
                    .flat_map(|(o, n)| o..o + n)
                    .collect();
                let mut last = std::collections::BTreeMap::<u64, u8>::new();
                last.extend(inside.iter().map(|p| *p as u64).zip(numbers));
                prop_assert_eq!(got, last.keys().copied().collect::<Vec<u64>>());
                prop_assert_eq!(&file, &last.values().copied().collect::<Vec<u8>>());
                let mut back = vec![0xff; inside.len()];
                let sorted = stretch.sort_into_stream_order(&file, &mut back);
                prop_assert_eq!(sorted, inside.len());
                let want: Vec<u8> = inside.iter().map(|p| last[&(*p as u64)]).collect();
                prop_assert_eq!(back, want);
                // Where the file was truncated meanwhile, the stream ends with the first removed
                // byte.
                let half = file.len() / 2;
                let mut back = vec![0xff; inside.len()];
                let sorted = stretch.sort_into_stream_order(&file[..half], &mut back);
                let there: Vec<u64> = last.keys().copied().take(half).collect();
                let want = inside.iter().take_while(|p| there.contains(&(**p as u64))).count();
                prop_assert_eq!(sorted, want);
            }
        }
    }

    #[test]
    fn a_view_leads_there_and_back(view in views(), from in 0u64..300, len in 0u64..100) {
        let offsets: Vec<u64> = (0..500).map(|s| view.offset_of(s)).collect();
        prop_assert!(offsets.windows(2).all(|w| w[0] < w[1]));
        for offset in 0..offsets[499] {
            let before = offsets.partition_point(|&o| o < offset);
            let visible = offsets[before] == offset;
            prop_assert_eq!(view.stream_before(offset), (before as u64, visible));
        }
        let got: Vec<u64> = view.extents(from, len).flat_map(|(o, n)| o..o + n).collect();
        prop_assert_eq!(&got[..], &offsets[from as usize..(from + len) as usize]);
    }

    #[test]
    fn a_view_comes_back(view in views()) {
        let mut out = Vec::new();
        view.encode(&mut out);
        let mut rest = &out[..];
        let back = View::decode(&mut rest).unwrap();
        prop_assert!(rest.is_empty());
        prop_assert_eq!(&back, &view);
        prop_assert_eq!(
            (back.disp(), back.etype_size(), back.filetype()),
            (view.disp(), view.etype_size(), view.filetype())
        );
    }
}

/// A step of a process.
#[derive(Clone, Debug)]
enum Step {
    /// Sets one of the views.
    View(usize),
    /// Writes a few blocks at equal distances in the stream.
    Write { stream: u64, block: u64, gap: u64, count: u64 },
    /// All ranks begin a new epoch; the file is truncated to this size where there is one.
    Epoch(Option<u64>),
}

fn steps(count: std::ops::Range<usize>) -> impl Strategy<Value = Vec<(usize, Step)>> {
    let step = prop_oneof![
        2 => (0usize..4).prop_map(Step::View),
        8 => (0u64..150, 1u64..9, 0u64..20, 1u64..7)
            .prop_map(|(stream, block, gap, count)| Step::Write { stream, block, gap, count }),
        1 => prop::option::of(0u64..300).prop_map(Step::Epoch),
    ];
    vec((0usize..8, step), count)
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Owner {
    stamp: u64,
    piece: u32,
    at: u64,
}

/// Plays steps and records the owner of each byte of the file.
struct Play {
    stamp: u64,
    pieces: Vec<PieceTiles>,
    ends: Vec<u64>,
    views: Vec<View>,
    file: Vec<Option<Owner>>,
    base: u64,
    cuts: Vec<TileCut>,
    size: u64,
}

impl Play {
    fn new(ranks: usize, view: &View, base: u64) -> Play {
        Play {
            stamp: 1,
            pieces: (0..ranks).map(|r| PieceTiles::new(r as u32)).collect(),
            ends: vec![0; ranks],
            views: vec![view.clone(); ranks],
            file: vec![None; 40_000],
            base,
            cuts: vec![],
            size: base,
        }
    }

    fn write(&mut self, rank: usize, stream: u64, len: u64) {
        let view = self.views[rank].clone();
        let number = self.pieces[rank].add_view(&view).unwrap();
        for own in self.pieces[rank].own_extents(&view, stream, len) {
            let at = match own.at {
                // A tile of an earlier epoch may no longer be the winner.
                Some((at, stamp)) if stamp == self.stamp => at,
                _ => {
                    let at = self.ends[rank];
                    self.pieces[rank].append(self.stamp, number, own.stream, own.len, at).unwrap();
                    self.ends[rank] += own.len;
                    at
                }
            };
            for k in 0..own.len {
                let offset = view.offset_of(own.stream + k);
                self.size = self.size.max(offset + 1);
                let new = Owner { stamp: self.stamp, piece: rank as u32 + 1, at: at + k };
                let old = &mut self.file[offset as usize];
                match old {
                    Some(old) if old.stamp == new.stamp && old.piece < new.piece => {}
                    _ => *old = Some(new),
                }
            }
        }
    }

    fn cut(&mut self, size: u64) {
        self.cuts.push(TileCut { stamp: self.stamp, size });
        self.file[size as usize..].fill(None);
        self.base = self.base.min(size);
        self.size = size;
    }

    fn run(&mut self, views: &[View], steps: &[(usize, Step)]) {
        for (rank, step) in steps {
            let rank = rank % self.pieces.len();
            match *step {
                Step::View(n) => self.views[rank] = views[n % views.len()].clone(),
                Step::Write { stream, block, gap, count } => {
                    for i in 0..count {
                        self.write(rank, stream + i * (block + gap), block);
                    }
                }
                Step::Epoch(size) => {
                    if let Some(size) = size {
                        self.cut(size);
                    }
                    self.stamp += 10;
                }
            }
        }
    }

    fn owner(&self, offset: u64) -> Option<(PieceId, u64)> {
        match self.file[offset as usize] {
            Some(owner) => Some((Piece(owner.piece), owner.at)),
            None if offset < self.base => Some((BASE, offset)),
            None => None,
        }
    }

    fn index(&self, base: u64) -> TileIndex {
        let pieces = self.pieces.iter().zip(1..).map(|(tiles, piece)| {
            let back = PieceTiles::decode(&tiles.encode()).unwrap();
            (Piece(piece), back)
        });
        TileIndex::new(pieces.collect(), self.cuts.clone(), base)
    }
}

/// The owner of each byte in `found`, in order.
fn owners(found: &[FoundExtent]) -> Vec<Option<(PieceId, u64)>> {
    let one = |f: &FoundExtent| {
        let f = *f;
        (0..f.len).map(move |k| f.piece.map(|p| (p, f.at + k)))
    };
    found.iter().flat_map(one).collect()
}

/// The owner of each of `len` bytes in `found`, each byte once.
fn scattered(found: &[FoundRun], len: usize) -> Vec<Option<(PieceId, u64)>> {
    let mut all = vec![None; len];
    for f in found {
        for i in 0..f.count {
            for k in 0..f.block {
                let old = &mut all[(f.to + i * f.to_stride + k) as usize];
                assert!(old.is_none(), "told twice");
                *old = Some(f.piece.map(|p| (p, f.at + i * f.at_stride + k)));
            }
        }
    }
    all.into_iter().map(|one| one.expect("not told")).collect()
}

/// Compares all results of an index with the owners in the model.
fn check(
    index: &TileIndex,
    owner: impl Fn(u64) -> Option<(PieceId, u64)>,
    views: &[View],
    probe: (u64, u64),
) -> Result<(), TestCaseError> {
    let size = index.size();
    let all = index.lookup(0, u64::MAX);
    let want: Vec<_> = (0..size).map(&owner).collect();
    prop_assert_eq!(owners(&all), want.clone());
    let mut at = 0;
    for found in &all {
        prop_assert_eq!(found.file_offset, at);
        at += found.len;
    }
    let end = (probe.0 + probe.1).min(size);
    let part = index.lookup(probe.0, probe.1);
    prop_assert_eq!(owners(&part), want[probe.0.min(end) as usize..end as usize].to_vec());
    for from in 0..size {
        for len in [1, 2, 1 + probe.1 % 16] {
            let to = from + len;
            let found = index.lookup_run(from, to);
            prop_assert!(found.is_none() || to <= size);
            if let Some(found) = found {
                prop_assert_eq!((found.file_offset, found.len), (from, len));
                prop_assert_eq!(owners(&[found]), want[from as usize..to as usize].to_vec());
            }
        }
    }
    for view in views {
        for (stream, len) in [probe, (0, size)] {
            let found = index.lookup_view(view, stream, len);
            let offsets: Vec<u64> =
                (stream..stream + len).map(|s| view.offset_of(s)).filter(|&o| o < size).collect();
            let want: Vec<_> = offsets.iter().map(|&o| owner(o)).collect();
            let runs = index.lookup_runs(view, stream, len);
            prop_assert_eq!(scattered(&runs, want.len()), want.clone());
            prop_assert_eq!(owners(&found), want);
            let mut at = 0;
            for f in &found {
                prop_assert_eq!(f.file_offset, offsets[at]);
                at += f.len as usize;
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn the_index_knows_every_byte(
        ranks in 1usize..9,
        views in vec(views(), 1..5),
        steps in steps(1..40),
        base in prop_oneof![Just(0u64), 0u64..400],
        reader in views(),
        probe in (0u64..300, 0u64..200),
    ) {
        let mut play = Play::new(ranks, &views[0], base);
        play.run(&views, &steps);
        let index = play.index(base);
        prop_assert_eq!(index.size(), play.size);
        let all: Vec<View> = views.iter().cloned().chain([reader, View::all_bytes()]).collect();
        check(&index, |o| play.owner(o), &all, probe)?;
    }
}

/// An array in a file, cut into a grid of blocks, one for each rank. Innermost dimension last.
#[derive(Clone, Debug)]
struct Grid {
    disp: u64,
    element: u64,
    /// Elements of a rank's block, and ranks, in each dimension.
    dims: Vec<(u64, u64)>,
    /// Elements by which each block overlaps the next ones.
    ghost: u64,
    /// Bytes a write, in elements; 0 for all at once.
    chunk: u64,
    /// How often the whole array is written, one after the other in the file.
    times: u64,
}

fn grids() -> impl Strategy<Value = Grid> {
    let dims = prop::collection::vec((1u64..5, 1u64..4), 1..4);
    let ghost = prop_oneof![4 => Just(0u64), 1 => 1u64..2];
    (0u64..20, 1u64..4, dims, ghost, 0u64..6, 1u64..4).prop_map(
        |(disp, element, dims, ghost, chunk, times)| Grid {
            disp,
            element,
            dims,
            ghost,
            chunk,
            times,
        },
    )
}

impl Grid {
    fn ranks(&self) -> u64 {
        self.dims.iter().map(|d| d.1).product()
    }

    fn view(&self, mut rank: u64) -> View {
        let mut shape = Shape::bytes(self.element).unwrap();
        let mut extent = self.element;
        let mut at = 0;
        for &(block, ranks) in self.dims.iter().rev() {
            let mine = rank % ranks;
            rank /= ranks;
            let len = (block + self.ghost).min((ranks - mine) * block);
            shape = Shape::hvector(len, 1, extent as i64, &shape).unwrap();
            at += mine * block * extent;
            extent *= block * ranks;
        }
        let shape = Shape::hindexed(&[(1, at as i64)], &shape).unwrap();
        let shape = Shape::resized(0, extent as i64, &shape).unwrap();
        View::new(self.disp, self.element, shape).unwrap()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// So many tiles that the writer looks its own tiles up in indexes.
    #[test]
    fn the_index_knows_many_tiles(
        ranks in 1usize..3,
        views in vec(views(), 1..4),
        steps in steps(300..500),
        probe in (0u64..300, 0u64..200),
    ) {
        let mut play = Play::new(ranks, &views[0], 50);
        play.run(&views, &steps);
        check(&play.index(50), |o| play.owner(o), &views, probe)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// Blocks of arrays, for which the index has its tree; read by other grids of the same array,
    /// too.
    #[test]
    fn the_index_knows_arrays(
        grid in grids(),
        others in vec(1u64..4, 3),
        base in prop_oneof![Just(0u64), 0u64..400],
        cut in prop::option::of(0u64..300),
        probe in (0u64..300, 0u64..200),
        reader in views(),
    ) {
        let ranks = grid.ranks();
        let views: Vec<View> = (0..ranks).map(|r| grid.view(r)).collect();
        let mut play = Play::new(ranks as usize, &views[0], base);
        for time in 0..grid.times {
            for (rank, view) in views.iter().enumerate() {
                play.views[rank] = view.clone();
                let len = view.filetype_size();
                let chunk = if grid.chunk == 0 { len } else { grid.chunk * grid.element };
                for at in (0..len).step_by(chunk as usize) {
                    play.write(rank, time * len + at, chunk.min(len - at));
                }
            }
            if let (Some(size), 0) = (cut, time) {
                play.cut(size);
                play.stamp += 10;
            }
        }
        let index = play.index(base);
        prop_assert_eq!(index.size(), play.size);
        if cut.is_none() && grid.ghost == 0 {
            // Proved to be alone, a whole array through the view of its writer is one run.
            for (rank, view) in views.iter().enumerate() {
                let found = index.lookup_view(view, 0, view.filetype_size() * grid.times);
                prop_assert_eq!(found.len(), 1, "rank {}", rank);
            }
        }
        let mut readers = vec![reader, View::all_bytes(), views[0].clone(), views[views.len() - 1].clone()];
        let dims = grid.dims.iter().zip(others).map(|(d, ranks)| (d.0 * d.1, ranks));
        if dims.clone().all(|(len, ranks)| len % ranks == 0) {
            let dims: Vec<_> = dims.map(|(len, ranks)| (len / ranks, ranks)).collect();
            let other = Grid { dims, ghost: 0, ..grid };
            readers.extend((0..other.ranks()).map(|r| other.view(r)));
        }
        check(&index, |o| play.owner(o), &readers, probe)?;
    }

    /// A journal that records each [`Appended`] is read back as it was.
    #[test]
    fn a_journal_of_tiles_is_read_back(
        views in vec(views(), 1..3),
        writes in vec((0usize..3, 0u64..400, 1u64..9, 0u64..20, 1u64..7), 1..60),
    ) {
        let mut piece = PieceTiles::new(0);
        let mut journal: Vec<Tile> = Vec::new();
        // Where each tile of the piece has its latest record.
        let mut latest: Vec<usize> = Vec::new();
        let mut at = 0;
        for (view, stream, block, gap, count) in writes {
            let number = piece.add_view(&views[view % views.len()]).unwrap();
            for i in 0..count {
                let stream = stream + i * (block + gap);
                match piece.append(7, number, stream, block, at).unwrap() {
                    Appended::Grown => {
                        let last = piece.tiles().len() - 1;
                        journal[latest[last]].len = piece.tiles()[last].len;
                    }
                    Appended::Changed(first) => {
                        latest.truncate(first);
                        for tile in &piece.tiles()[first..] {
                            latest.push(journal.len());
                            journal.push(*tile);
                        }
                    }
                }
                at += block;
                let mut back = PieceTiles::new(0);
                for view in piece.views() {
                    back.add_view(view).unwrap();
                }
                for tile in &journal {
                    back.push(*tile).unwrap();
                }
                prop_assert_eq!(&back, &piece);
                prop_assert_eq!(piece.tiles().iter().map(|t| t.len).sum::<u64>(), at);
            }
        }
        let back = PieceTiles::decode(&piece.encode()).unwrap();
        prop_assert_eq!(back.encode(), piece.encode());
        let index = |piece| TileIndex::new(vec![(Piece(1), piece)], vec![], 0).lookup(0, u64::MAX);
        prop_assert_eq!(index(back), index(piece));
    }

    /// Rows of planes of blocks, written at explicit offsets one by one, need a few dozen bytes,
    /// and are found where they were written.
    #[test]
    fn nested_patterns_of_offsets_are_found(
        disp in 0u64..100,
        block in 1u64..6,
        levels in vec((1u64..6, 1u64..9), 1..5),
    ) {
        let mut offsets = vec![0];
        let mut span = block;
        // The gaps differ from level to level: equal ones make another pattern.
        for ((count, gap), level) in levels.into_iter().zip(0..) {
            let stride = span + gap + 10 * level;
            offsets = (0..count)
                .flat_map(|i| offsets.iter().map(move |o| o + i * stride).collect::<Vec<u64>>())
                .collect();
            span += (count - 1) * stride;
        }
        let mut play = Play::new(1, &View::all_bytes(), 0);
        for offset in offsets {
            play.write(0, disp + offset, block);
        }
        prop_assert!(play.pieces[0].encode().len() <= 100);
        check(&play.index(0), |o| play.owner(o), &[View::all_bytes()], (5, 50))?;
    }

    /// Damaged bytes are refused, or are a piece that can be used.
    #[test]
    fn damaged_pieces_do_no_harm(
        views in vec(views(), 1..3),
        writes in vec((0usize..3, 0u64..400, 1u64..9), 1..20),
        damage in vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut piece = PieceTiles::new(3);
        let mut at = 0;
        for (view, stream, len) in writes {
            let number = piece.add_view(&views[view % views.len()]).unwrap();
            piece.append(at / 50, number, stream, len, at).unwrap();
            at += len;
        }
        let whole = piece.encode();
        prop_assert!(PieceTiles::decode(&whole[..cut.index(whole.len())]).is_err());
        let mut bytes = whole.clone();
        for (place, byte) in damage {
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        use_piece(&bytes);
        bytes.push(0);
        use_piece(&bytes);
    }

    #[test]
    fn any_bytes_do_no_harm(bytes in vec(any::<u8>(), 0..200)) {
        use_piece(&bytes);
        use_piece(&[&[1, 0, 1], &bytes[..]].concat());
        let _ = View::decode(&mut &bytes[..]);
    }
}

fn use_piece(bytes: &[u8]) {
    let Ok(piece) = PieceTiles::decode(bytes) else { return };
    let again = PieceTiles::decode(&piece.encode()).expect("what was encoded");
    assert_eq!(again.encode(), piece.encode());
    let view = View::all_bytes();
    piece.own_extents(&view, 100, 100);
    for view in piece.views() {
        for offset in [0, 1, 1 << 20, u64::MAX] {
            view.stream_before(offset);
            view.offset_of(offset);
            view.extents(offset, 1 << 40).take(10).count();
        }
    }
    let index = TileIndex::new(vec![(Piece(1), piece)], vec![], 5);
    for offset in [0, 1, 1 << 20, u64::MAX] {
        index.lookup(offset, 100);
        index.lookup_view(&view, offset, 100);
        index.lookup_runs(&view, offset, 100);
    }
}

/// Lists of equal lists of equal lists: few bytes, and more blocks than a test could visit.
#[test]
fn deep_lists_are_not_walked() {
    let build = || {
        let mut shape = Shape::bytes(1).unwrap();
        for _ in 0..24 {
            let end = shape.extent();
            let blocks = [(1, 0), (1, end + 1), (1, 4 * end + 3)];
            shape = Shape::hindexed(&blocks, &shape).unwrap();
        }
        View::new(0, 1, shape).unwrap()
    };
    let view = build();
    assert_eq!(view.filetype_size(), 3u64.pow(24));
    let mut bytes = Vec::new();
    view.encode(&mut bytes);
    assert!(bytes.len() < 1000);
    let back = View::decode(&mut &bytes[..]).unwrap();
    assert_eq!(back, view);
    assert_eq!(build(), view);
    let last = view.filetype_size() - 1;
    assert_eq!(view.stream_before(view.offset_of(last)), (last, true));
    let mut piece = PieceTiles::new(0);
    let number = piece.add_view(&view).unwrap();
    piece.append(1, number, 0, last, 0).unwrap();
    let index = TileIndex::new(vec![(Piece(1), piece)], vec![], 0);
    assert_eq!(index.lookup_view(&build(), 0, last).len(), 1);
}

/// A type of HDF5 and PnetCDF with Open MPI: an extent that is shorter than the data, and a lower
/// bound above some of it. One copy is one tile, under the same view however often it is set; a
/// second one is put into file order.
#[test]
fn a_copy_of_a_short_extent_is_one_tile() {
    let header = Shape::bytes(512).unwrap();
    let variable = Shape::resized(0, 40, &Shape::bytes(40).unwrap()).unwrap();
    let both = Shape::structure(&[(1, 0, header), (1, 512, variable)]).unwrap();
    let set = || ProgramView::new(0, 1, Shape::resized(512, 40, &both).unwrap()).unwrap();
    let view = set();
    assert_eq!(view.direct_view(0, 552), set().direct_view(0, 552));
    let mut piece = PieceTiles::new(0);
    let number = piece.add_view(view.direct_view(0, 552).unwrap()).unwrap();
    piece.append(1, number, 0, 300, 0).unwrap();
    piece.append(1, number, 300, 252, 300).unwrap();
    assert_eq!(piece.tiles().len(), 1);
    assert!(!piece.views()[0].is_default());
    assert!(view.direct_view(0, 553).is_none());
    let stretch = view.in_file_order(0, 2 * 552, u64::MAX).unwrap();
    assert_eq!((stretch.stream_len(), stretch.size()), (1104, 592));
}

/// An access is cut into stretches of bounded size, however many blocks it has and however long
/// they are.
#[test]
fn stretches_are_bounded() {
    let view = |shape: &Shape, extent| {
        ProgramView::new(7, 1, Shape::resized(0, extent, shape).unwrap()).unwrap()
    };
    // Columns of a matrix of bytes: the next copy lies between the blocks of this one.
    let column = Shape::hvector(100_000, 1, 10, &Shape::bytes(1).unwrap()).unwrap();
    let columns = view(&column, 1);
    assert!(columns.direct_view(0, 100_000).is_some());
    let stretch = columns.in_file_order(0, 1_000_000, u64::MAX).unwrap();
    assert_eq!((stretch.stream_len(), stretch.size()), (4096, 4096));
    let long = view(&Shape::bytes(1 << 40).unwrap(), 1 << 20);
    let stretch = long.in_file_order(5, 1 << 50, u64::MAX).unwrap();
    assert_eq!((stretch.stream_len(), stretch.view().offset_of(0)), (4 << 20, 12));
    // Copies at the same place, and copies that go back until they leave the file.
    let still = view(&Shape::bytes(4).unwrap(), 0);
    let stretch = still.in_file_order(2, 40, u64::MAX).unwrap();
    assert_eq!((stretch.stream_len(), stretch.size()), (40, 4));
    assert_eq!(still.stream_before(9), 2);
    let back = view(&Shape::bytes(4).unwrap(), -4);
    assert_eq!((back.offset_of(4), back.offset_of(8)), (3, u64::MAX));
    assert_eq!(back.in_file_order(0, 8, u64::MAX).unwrap().view().offset_of(0), 3);
    assert_eq!(back.in_file_order(0, 9, u64::MAX).unwrap_err(), ViewError::Outside);
    // The end of all files.
    let far = view(&Shape::bytes(8).unwrap(), i64::MAX / 2);
    assert_eq!(far.in_file_order(0, 64, u64::MAX).map(|s| s.stream_len()), Ok(16));
    assert_eq!(far.offset_of(1 << 40), u64::MAX);
}
