//! Shapes, views, pieces and the index against models that know every byte.

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

/// What MPI says of it: the place of every byte, lower and upper bound.
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
        1 => Just(View::bytes()),
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

    #[test]
    fn views_accept_what_mpi_allows(t in types(), disp in 0u64..20) {
        let flat = t.flat();
        let places = places(&flat, 3 * flat.bytes.len());
        match View::new(disp, 1, t.shape()) {
            // Blocks that touch are joined, and then may hide an order of bytes
            // that was no order of blocks; never the other way round.
            Ok(view) => {
                prop_assert!(places.iter().all(|&p| p >= 0));
                let got: Vec<i64> = view
                    .extents(0, places.len() as u64)
                    .flat_map(|(o, n)| o as i64..(o + n) as i64)
                    .map(|o| o - disp as i64)
                    .collect();
                prop_assert_eq!(got, places.clone());
                prop_assert_eq!(view.overlaps(), places.windows(2).any(|w| w[1] <= w[0]));
            }
            Err(_) => prop_assert!(
                places.windows(2).any(|w| w[1] <= w[0]) || places[0] < 0 || flat.extent() <= 0
            ),
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

/// What a process does to the file.
#[derive(Clone, Debug)]
enum Step {
    /// Sets one of the views.
    View(usize),
    /// Writes a few blocks at equal distances in the stream.
    Write { stream: u64, block: u64, gap: u64, count: u64 },
    /// Everybody begins a new epoch, the file cut to this size where there is one.
    Epoch(Option<u64>),
}

fn steps() -> impl Strategy<Value = Vec<(usize, Step)>> {
    let step = prop_oneof![
        2 => (0usize..4).prop_map(Step::View),
        8 => (0u64..150, 1u64..9, 0u64..20, 1u64..7)
            .prop_map(|(stream, block, gap, count)| Step::Write { stream, block, gap, count }),
        1 => prop::option::of(0u64..300).prop_map(Step::Epoch),
    ];
    vec((0usize..8, step), 1..40)
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Owner {
    stamp: u64,
    piece: u32,
    at: u64,
}

/// Plays steps and knows for each byte of the file who has it.
struct Play {
    stamp: u64,
    pieces: Vec<PieceTiles>,
    ends: Vec<u64>,
    views: Vec<View>,
    file: Vec<Option<Owner>>,
    base: u64,
    cuts: Vec<Cut>,
    size: u64,
}

impl Play {
    fn new(ranks: usize, view: &View, base: u64) -> Play {
        Play {
            stamp: 1,
            pieces: (0..ranks).map(|r| PieceTiles::new(r as u32)).collect(),
            ends: vec![0; ranks],
            views: vec![view.clone(); ranks],
            file: vec![None; 20_000],
            base,
            cuts: vec![],
            size: base,
        }
    }

    fn write(&mut self, rank: usize, stream: u64, len: u64) {
        let view = self.views[rank].clone();
        let number = self.pieces[rank].add_view(&view).unwrap();
        for own in self.pieces[rank].covered(&view, stream, len) {
            let at = match own.at {
                // A tile of an earlier epoch may not be the winner any more.
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
        self.cuts.push(Cut { stamp: self.stamp, size });
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

    fn index(&self, base: u64) -> Index {
        let pieces = self.pieces.iter().zip(1..).map(|(tiles, piece)| {
            let back = PieceTiles::decode(&tiles.encode()).unwrap();
            (Piece(piece), back)
        });
        Index::new(pieces.collect(), self.cuts.clone(), base)
    }
}

/// The owner of each byte that `found` tells, in order.
fn owners(found: &[Found]) -> Vec<Option<(PieceId, u64)>> {
    let one = |f: &Found| {
        let f = *f;
        (0..f.len).map(move |k| f.piece.map(|p| (p, f.at + k)))
    };
    found.iter().flat_map(one).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn the_index_knows_every_byte(
        ranks in 1usize..9,
        views in vec(views(), 1..5),
        steps in steps(),
        base in prop_oneof![Just(0u64), 0u64..400],
        reader in views(),
        probe in (0u64..300, 0u64..200),
    ) {
        let mut play = Play::new(ranks, &views[0], base);
        play.run(&views, &steps);
        let index = play.index(base);
        prop_assert_eq!(index.size(), play.size);
        let all = index.lookup(0, u64::MAX);
        let want: Vec<_> = (0..play.size).map(|o| play.owner(o)).collect();
        prop_assert_eq!(owners(&all), want.clone());
        let mut at = 0;
        for found in &all {
            prop_assert_eq!(found.file_offset, at);
            at += found.len;
        }
        // A part of it.
        let end = (probe.0 + probe.1).min(play.size);
        let part = index.lookup(probe.0, probe.1);
        prop_assert_eq!(owners(&part), want[probe.0.min(end) as usize..end as usize].to_vec());
        // Through views.
        for view in views.iter().chain([&reader]) {
            let found = index.lookup_view(view, probe.0, probe.1);
            let offsets: Vec<u64> = (probe.0..probe.0 + probe.1)
                .map(|s| view.offset_of(s))
                .filter(|&o| o < play.size)
                .collect();
            let want: Vec<_> = offsets.iter().map(|&o| play.owner(o)).collect();
            prop_assert_eq!(owners(&found), want);
            let mut at = 0;
            for f in &found {
                prop_assert_eq!(f.file_offset, offsets[at]);
                at += f.len as usize;
            }
        }
    }
}
