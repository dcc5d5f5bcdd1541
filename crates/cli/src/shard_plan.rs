//! Plans which shards move to which executor, so that each has its part and few shards move.

use crate::error::{CommandFailure, CommandResult};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use tatami_cluster::VolumeFile;
use tatami_wire::{EXECUTORS_MAX, ExecutorId, NodeId};

/// Returns the nodes that have shards.
pub(crate) fn shard_holders(shards: &[ExecutorId]) -> BTreeSet<NodeId> {
    shards.iter().map(|owner| owner.node).collect()
}

/// Returns how many executors of each node have shards.
pub(crate) fn executors_by_node(shards: &[ExecutorId]) -> BTreeMap<NodeId, usize> {
    let owners: BTreeSet<ExecutorId> = shards.iter().copied().collect();
    count_by_key(owners.into_iter().map(|owner| owner.node))
}

/// Returns the largest number of executors with shards on one node.
pub(crate) fn most_executors(shards: &[ExecutorId]) -> usize {
    executors_by_node(shards).into_values().max().unwrap_or(1)
}

/// Counts the occurrences of each key.
pub(crate) fn count_by_key<T: Ord>(all: impl Iterator<Item = T>) -> BTreeMap<T, usize> {
    let mut counts = BTreeMap::new();
    all.for_each(|one| *counts.entry(one).or_default() += 1);
    counts
}

/// Checks that each executor can have a shard, with `wanted` executors on each of `nodes` nodes.
pub(crate) fn check_executors(
    volume: &VolumeFile,
    nodes: usize,
    wanted: Option<u8>,
) -> CommandResult {
    let (shards, wanted) = (volume.shards.len(), usize::from(wanted.unwrap_or(1)));
    if wanted > 1 && nodes * wanted > shards {
        return Err(CommandFailure::usage(format!(
            "--executors: {nodes} nodes with {wanted} executors each are more than the {shards} \
            shards of the volume"
        ))
        .try_this(format!("at most --executors {}", (shards / nodes).max(1))));
    }
    Ok(())
}

/// Returns the executors that are to have shards: on each of `nodes` as many as wanted. By default
/// as many as the node with most executors has now.
pub(crate) fn target_executors(
    volume: &VolumeFile,
    nodes: &BTreeSet<NodeId>,
    wanted: Option<u8>,
) -> BTreeSet<ExecutorId> {
    let most = || most_executors(&volume.shards).min(volume.shards.len() / nodes.len().max(1));
    let each = wanted.map_or_else(most, usize::from).max(1);
    let of = |node: &NodeId| {
        let node = *node;
        (0..EXECUTORS_MAX).take(each).map(move |index| ExecutorId { node, index })
    };
    nodes.iter().flat_map(of).collect()
}

/// Consecutive shards that one executor hands over to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MigrationStep {
    /// The first of them.
    pub(crate) first: u16,
    /// Their number.
    pub(crate) count: u16,
    /// The executor that has them.
    pub(crate) from: ExecutorId,
    /// The executor that gets them.
    pub(crate) to: ExecutorId,
}

/// The planned number of shards of each executor.
pub(crate) type ShardQuotas = BTreeMap<ExecutorId, usize>;

/// Divides `count` evenly. The remainder goes to the members that have most now, so that fewer
/// shards move.
fn divide_evenly<T: Copy + Ord>(count: usize, mut have: Vec<(T, usize)>) -> Vec<(T, usize)> {
    have.sort_by_key(|(who, have)| (std::cmp::Reverse(*have), *who));
    let (each, more) = (count / have.len().max(1), count % have.len().max(1));
    have.iter().enumerate().map(|(at, (who, _))| (*who, each + usize::from(at < more))).collect()
}

/// Returns the planned number of shards for each of `targets`: equal between nodes, then equal
/// between the executors of a node.
pub(crate) fn compute_quotas(shards: &[ExecutorId], targets: &BTreeSet<ExecutorId>) -> ShardQuotas {
    let (have, nodes_have) =
        (count_by_key(shards.iter().copied()), count_by_key(shards.iter().map(|owner| owner.node)));
    let had = |executor: &ExecutorId| (*executor, have.get(executor).copied().unwrap_or(0));
    let nodes: BTreeSet<NodeId> = targets.iter().map(|target| target.node).collect();
    let nodes = nodes.iter().map(|node| (*node, nodes_have.get(node).copied().unwrap_or(0)));
    let of_node = |(node, count): (NodeId, usize)| {
        divide_evenly(count, targets.range(executors_of(node)).map(had).collect())
    };
    divide_evenly(shards.len(), nodes.collect()).into_iter().flat_map(of_node).collect()
}

/// Returns the range of all executors that a node can have.
fn executors_of(node: NodeId) -> RangeInclusive<ExecutorId> {
    ExecutorId::first_of_node(node)..=ExecutorId { node, index: u8::MAX }
}

/// Plans the moves after which each executor has its quota and no other executor has shards. The
/// plan moves few blocks, from the ends of the existing ones, and keeps as many as possible on
/// their node.
pub(crate) fn plan_steps(shards: &[ExecutorId], quotas: &ShardQuotas) -> Vec<MigrationStep> {
    let have = count_by_key(shards.iter().copied());
    let less = |(executor, count): (&ExecutorId, &usize), than: &ShardQuotas| {
        let count = count.saturating_sub(than.get(executor).copied().unwrap_or(0));
        (count > 0).then_some((*executor, count))
    };
    let mut surplus: ShardQuotas = have.iter().filter_map(|had| less(had, quotas)).collect();
    let mut lack: ShardQuotas = quotas.iter().filter_map(|quota| less(quota, &have)).collect();
    let (mut now, mut steps) = (shards.to_vec(), Vec::<MigrationStep>::new());
    for stays in [true, false] {
        for (first, owner) in now.iter_mut().enumerate().rev() {
            let (from, Some(left)) = (*owner, surplus.get_mut(owner)) else { continue };
            // Takes the first executor that lacks shards, not the one that lacks most. So a
            // repeated plan picks the same destination after a part has moved.
            let taker = match stays {
                true => lack.range(executors_of(from.node)).next(),
                false => lack.iter().next(),
            };
            let Some((to, missing)) = taker.map(|(to, missing)| (*to, *missing)) else { continue };
            *left -= 1;
            if *left == 0 {
                surplus.remove(&from);
            }
            if missing == 1 {
                lack.remove(&to);
            } else {
                lack.insert(to, missing - 1);
            }
            *owner = to;
            // The cast is safe: there are at most 4,096 shards.
            let first = first as u16;
            match steps.last_mut() {
                Some(last) if (last.first, last.from, last.to) == (first + 1, from, to) => {
                    (last.first, last.count) = (first, last.count + 1);
                }
                _ => steps.push(MigrationStep { first, count: 1, from, to }),
            }
        }
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Builds a shard map from (node, executor, number of shards).
    fn blocks(of: &[(u16, u8, usize)]) -> Vec<ExecutorId> {
        let block = |(node, index, count): &(u16, u8, usize)| {
            std::iter::repeat_n(ExecutorId { node: NodeId(*node), index: *index }, *count)
        };
        of.iter().flat_map(block).collect()
    }

    fn nodes(of: &[(u16, usize)]) -> Vec<ExecutorId> {
        blocks(&of.iter().map(|(node, count)| (*node, 0, *count)).collect::<Vec<_>>())
    }

    /// Returns the first `executors` executors of each of these nodes.
    fn set(of: &[u16], executors: u8) -> BTreeSet<ExecutorId> {
        let node = |node: &u16| {
            let node = NodeId(*node);
            (0..executors).map(move |index| ExecutorId { node, index })
        };
        of.iter().flat_map(node).collect()
    }

    fn steps(shards: &[ExecutorId], targets: &BTreeSet<ExecutorId>) -> Vec<MigrationStep> {
        plan_steps(shards, &compute_quotas(shards, targets))
    }

    fn after(mut shards: Vec<ExecutorId>, steps: &[MigrationStep]) -> Vec<ExecutorId> {
        for step in steps {
            for shard in step.first..step.first + step.count {
                assert_eq!(shards[usize::from(shard)], step.from);
                shards[usize::from(shard)] = step.to;
            }
        }
        shards
    }

    fn moved(steps: &[MigrationStep]) -> usize {
        steps.iter().map(|step| usize::from(step.count)).sum()
    }

    /// Returns the shards of each target. No other executor may have any.
    fn dealt(shards: &[ExecutorId], targets: &BTreeSet<ExecutorId>) -> Vec<usize> {
        let have = count_by_key(shards.iter().copied());
        assert!(have.keys().all(|owner| targets.contains(owner)), "{have:?}");
        targets.iter().map(|target| have.get(target).copied().unwrap_or(0)).collect()
    }

    #[test]
    fn two_nodes_become_four_with_two_moves() {
        let shards = nodes(&[(0, 8), (1, 8)]);
        let steps = steps(&shards, &set(&[0, 1, 2, 3], 1));
        assert_eq!(steps.len(), 2, "{steps:?}");
        assert_eq!(after(shards, &steps), nodes(&[(0, 4), (3, 4), (1, 4), (2, 4)]));
    }

    #[test]
    fn everybody_gets_as_many_and_few_move() {
        for (before, targets, moves) in [
            (nodes(&[(0, 16)]), set(&[0, 1], 1), 8),
            (nodes(&[(0, 16)]), set(&[0, 1, 2], 1), 10),
            (nodes(&[(0, 4), (3, 4), (1, 4), (2, 4)]), set(&[0, 1], 1), 8),
            (nodes(&[(0, 4), (3, 4), (1, 4), (2, 4)]), set(&[3], 1), 12),
            (nodes(&[(0, 5), (1, 6), (2, 5)]), set(&[0, 1, 2], 1), 0),
            (nodes(&[(0, 16)]), set(&[5], 1), 16),
            (nodes(&[(0, 16)]), set(&[0], 4), 12),
            (nodes(&[(0, 16)]), set(&[0, 1], 2), 12),
            (nodes(&[(0, 6), (1, 5), (2, 5)]), set(&[0, 1, 2], 2), 7),
            (blocks(&[(0, 0, 4), (0, 1, 4), (1, 0, 4), (1, 1, 4)]), set(&[0, 1, 2, 3], 2), 8),
            (blocks(&[(0, 0, 4), (0, 1, 4), (1, 0, 4), (1, 1, 4)]), set(&[1], 2), 8),
            (blocks(&[(0, 0, 4), (0, 5, 4), (1, 0, 4), (1, 1, 4)]), set(&[0, 1], 2), 4),
        ] {
            let steps = steps(&before, &targets);
            assert_eq!(moved(&steps), moves, "{before:?}");
            let now = after(before, &steps);
            let counts = dealt(&now, &targets);
            assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1);
            assert!(
                super::plan_steps(&now, &compute_quotas(&now, &targets)).is_empty(),
                "nothing is left to do"
            );
        }
    }

    #[test]
    fn nodes_get_more_executors_and_lose_them_with_few_moves() {
        let before = nodes(&[(0, 2048), (1, 2048)]);
        let three = set(&[0, 1], 3);
        let there = steps(&before, &three);
        assert_eq!((there.len(), moved(&there)), (4, 2 * (683 + 682)), "{there:?}");
        assert!(there.iter().all(|step| step.from.node == step.to.node), "{there:?}");
        let now = after(before.clone(), &there);
        assert_eq!(dealt(&now, &three), [683, 683, 682, 683, 683, 682]);
        let one = set(&[0, 1], 1);
        let back = steps(&now, &one);
        assert_eq!((back.len(), moved(&back)), (4, moved(&there)), "{back:?}");
        assert_eq!(after(now.clone(), &back), before);
        // A new node gets its share from executors of both nodes, and those stay even.
        let more = set(&[0, 1, 2], 3);
        let come = steps(&now, &more);
        assert!(come.len() <= 8 && come.iter().all(|step| step.to.node == NodeId(2)), "{come:?}");
        let counts = dealt(&after(now, &come), &more);
        assert_eq!(counts, [456, 455, 455, 455, 455, 455, 455, 455, 455]);
    }

    #[test]
    fn what_has_moved_in_part_goes_on_to_the_same_executor() {
        let before = nodes(&[(0, 32), (1, 32)]);
        let quotas = compute_quotas(&before, &set(&[0, 1, 2], 2));
        let (mut shards, mut takers) = (before, Vec::new());
        while let Some(step) = plan_steps(&shards, &quotas).first().copied() {
            takers.push((step.from, step.to));
            shards = after(shards, &[MigrationStep { count: step.count.min(3), ..step }]);
        }
        let parts = takers.len();
        takers.dedup();
        assert!(parts > 10 && takers.len() <= 6, "{takers:?}");
        assert_eq!(count_by_key(shards.into_iter()), quotas);
    }

    #[test]
    fn as_many_executors_as_the_node_with_most_has() {
        let mut volume = VolumeFile {
            volume: tatami_wire::VolumeId([1; 16]),
            name: "v".into(),
            durability: tatami_wire::admin::Durability::default(),
            encryption: tatami_cluster::Encryption::default(),
            epoch: 1,
            moves: vec![0; 8],
            shards: blocks(&[(0, 0, 2), (0, 1, 2), (1, 0, 4)]),
            nodes: Vec::new(),
            removed: BTreeSet::new(),
        };
        assert_eq!(most_executors(&volume.shards), 2);
        let two = shard_holders(&volume.shards);
        assert_eq!(two, [0, 1].map(NodeId).into());
        assert_eq!(target_executors(&volume, &two, None), set(&[0, 1], 2));
        assert_eq!(target_executors(&volume, &two, Some(3)), set(&[0, 1], 3));
        let more = [0, 1, 2, 3, 4].map(NodeId).into();
        assert_eq!(
            target_executors(&volume, &more, None),
            set(&[0, 1, 2, 3, 4], 1),
            "there are 8 shards"
        );
        assert!(check_executors(&volume, 2, Some(4)).is_ok());
        let said = check_executors(&volume, 2, Some(5)).expect_err("too many").report();
        assert!(said.contains("8 shards") && said.contains("--executors 4"), "{said}");
        volume.shards = nodes(&[(3, 1)]);
        assert!(
            check_executors(&volume, 5, None).is_ok()
                && check_executors(&volume, 5, Some(1)).is_ok()
        );
    }
}
