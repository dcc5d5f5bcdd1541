//! Checks the table against a model that has the holders of every byte.

use proptest::prelude::*;
use tatami_tables::LockTable;
use tatami_wire::lock::{ByteRange, LockKind};

const BYTES: usize = 24;
const OWNERS: usize = 3;

type Byte = Option<(LockKind, u8)>;

#[derive(Clone, Debug)]
enum Step {
    Set(usize, ByteRange, LockKind, u8),
    Free(usize, ByteRange),
    Add(usize, ByteRange, LockKind, u8),
    /// Frees all locks with this tag.
    Drop(u8),
}

fn spans() -> impl Strategy<Value = ByteRange> {
    let last = BYTES as u64 - 1;
    (0..=last, 0..=last).prop_map(|(a, b)| ByteRange { start: a.min(b), end: a.max(b) })
}

fn kinds() -> impl Strategy<Value = LockKind> {
    prop_oneof![Just(LockKind::Shared), Just(LockKind::Exclusive)]
}

fn steps() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..OWNERS, spans(), kinds(), 0..2u8).prop_map(|(o, s, k, t)| Step::Set(o, s, k, t)),
        2 => (0..OWNERS, spans()).prop_map(|(o, s)| Step::Free(o, s)),
        2 => (0..OWNERS, spans(), kinds(), 0..2u8).prop_map(|(o, s, k, t)| Step::Add(o, s, k, t)),
        1 => (0..2u8).prop_map(Step::Drop),
    ]
}

fn in_the_way(
    model: &[[Byte; BYTES]; OWNERS],
    owner: usize,
    span: ByteRange,
    kind: LockKind,
) -> Option<u64> {
    (span.start..=span.end).find(|at| {
        model.iter().enumerate().any(|(other, bytes)| {
            other != owner
                && bytes[*at as usize].is_some_and(|(held, _)| {
                    held == LockKind::Exclusive || kind == LockKind::Exclusive
                })
        })
    })
}

/// Returns the runs of equal bytes.
fn runs(bytes: &[Byte; BYTES]) -> Vec<(ByteRange, LockKind, u8)> {
    let mut runs: Vec<(ByteRange, LockKind, u8)> = Vec::new();
    for (at, byte) in bytes.iter().enumerate() {
        let Some((kind, tag)) = *byte else { continue };
        let at = at as u64;
        match runs.last_mut() {
            Some((span, k, t)) if span.end + 1 == at && (*k, *t) == (kind, tag) => span.end = at,
            _ => runs.push((ByteRange { start: at, end: at }, kind, tag)),
        }
    }
    runs
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn the_table_is_what_every_byte_says(
        steps in prop::collection::vec(steps(), 1..40),
        questions in prop::collection::vec((0..OWNERS, spans(), kinds()), 8),
    ) {
        let mut table: LockTable<usize, u8> = LockTable::default();
        let mut model: [[Byte; BYTES]; OWNERS] = [[None; BYTES]; OWNERS];
        for step in steps {
            match step {
                Step::Set(owner, span, kind, tag) => {
                    let refused = table.first_conflict(owner, span, kind);
                    prop_assert_eq!(refused.is_some(), in_the_way(&model, owner, span, kind).is_some());
                    if refused.is_none() {
                        table.set_lock(owner, span, kind, tag);
                        (span.start..=span.end)
                            .for_each(|at| model[owner][at as usize] = Some((kind, tag)));
                    }
                }
                Step::Free(owner, span) => {
                    table.free_span(owner, span);
                    (span.start..=span.end).for_each(|at| model[owner][at as usize] = None);
                }
                Step::Add(owner, span, kind, tag) => {
                    if table.first_conflict(owner, span, kind).is_none() {
                        table.add_lock(owner, span, kind, tag);
                        for at in span.start..=span.end {
                            let byte = &mut model[owner][at as usize];
                            if kind == LockKind::Exclusive || byte.is_none() {
                                *byte = Some((kind, tag));
                            }
                        }
                    }
                }
                Step::Drop(tag) => {
                    table.retain(|held| held.tag != tag);
                    for byte in model.iter_mut().flatten() {
                        *byte = byte.filter(|(_, t)| *t != tag);
                    }
                }
            }
            let expected: Vec<_> = model
                .iter()
                .enumerate()
                .flat_map(|(owner, bytes)| runs(bytes).into_iter().map(move |run| (owner, run)))
                .collect();
            let found: Vec<_> =
                table.iter().map(|held| (held.owner, (held.span, held.kind, held.tag))).collect();
            prop_assert_eq!(&found, &expected);
            prop_assert_eq!(table.len(), expected.len());
            for (owner, span, kind) in &questions {
                let bytes = || (span.start..=span.end).map(|at| model[*owner][at as usize]);
                prop_assert_eq!(table.holds_any(*owner, *span), bytes().any(|byte| byte.is_some()));
                let all = bytes().all(|byte| byte.is_some_and(|(k, _)| k >= *kind));
                prop_assert_eq!(table.holds_all(*owner, *span, *kind), all);
                let first = table.first_conflict(*owner, *span, *kind);
                let expected = in_the_way(&model, *owner, *span, *kind);
                prop_assert_eq!(first.is_some(), expected.is_some());
                if let (Some(held), Some(at)) = (first, expected) {
                    prop_assert!(held.span.start.max(span.start) == at && held.span.overlaps(*span));
                }
            }
        }
    }
}

/// The last byte of the longest file is locked like any other.
#[test]
fn locks_reach_to_the_end() {
    let mut table: LockTable<u8, ()> = LockTable::default();
    table.set_lock(1, ByteRange::ALL, LockKind::Exclusive, ());
    table.free_span(1, ByteRange { start: 10, end: 19 });
    assert_eq!(table.len(), 2);
    let behind = ByteRange { start: 20, end: ByteRange::END };
    assert_eq!(
        table.first_conflict(2, behind, LockKind::Shared).map(|held| held.span),
        Some(behind)
    );
    table.set_lock(1, ByteRange { start: 10, end: 19 }, LockKind::Exclusive, ());
    assert!(table.len() == 1 && table.holds_all(1, ByteRange::ALL, LockKind::Exclusive));
    table.free_span(1, ByteRange::ALL);
    assert!(table.is_empty());
}
