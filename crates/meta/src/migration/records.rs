//! All records of a block of shards, in portions.

use crate::error::MetaOutcome;
use crate::keys::{self, RecordKey, tag};
use crate::state::MetaState;
use crate::store::Store;
use crate::transaction::locks::ShardBlock;
use std::ops::ControlFlow;
use tatami_wire::{Ino, ShardId};

/// Under these tags, the records of the inodes of one shard are one range.
const RANGES: [u8; 10] = [
    tag::INLINE,
    tag::ENTRY,
    tag::PLANNED_SPLIT,
    tag::INODE,
    tag::JOB,
    tag::PIECE,
    tag::TILED,
    tag::PENDING_RECOVERY,
    tag::WRITER,
    tag::XATTR,
];
/// Under these tags they are scattered.
const SCATTERED: [u8; 4] = [tag::DROPPED, tag::GARBAGE, tag::ORPHAN, tag::EMBEDDED_DIR];
/// Most records that are scanned at a time.
const LOOKS_MAX: usize = 64 * 1024;

/// The progress of a scan of a block's records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct BlockCursor {
    /// Index of the tag.
    tag: usize,
    /// The key under that tag where the scan goes on.
    from: Option<RecordKey>,
}

impl BlockCursor {
    /// Returns whether all records have been scanned.
    pub fn is_at_end(&self) -> bool {
        self.tag >= RANGES.len() + SCATTERED.len()
    }
}

impl<S: Store> MetaState<S> {
    /// Returns some records of the block from `cursor` on: at most `keys_max`, and about
    /// `bytes_max` bytes. There may be none, though more follow.
    pub(super) fn block_records(
        &self,
        block: ShardBlock,
        cursor: &mut BlockCursor,
        keys_max: usize,
        bytes_max: usize,
    ) -> MetaOutcome<Vec<(RecordKey, Vec<u8>)>> {
        let (mut found, mut bytes, mut looks) = (Vec::new(), 0, 0);
        while !cursor.is_at_end() {
            let (tag, ranges) = match RANGES.get(cursor.tag) {
                Some(tag) => (*tag, true),
                None => (SCATTERED[cursor.tag - RANGES.len()], false),
            };
            let start = match cursor.from.take() {
                Some(from) => from,
                None if ranges => {
                    keys::inode_prefix(tag, Ino::first_in_shard(ShardId(block.first)))
                }
                None => vec![tag],
            };
            let mut goes_on = None;
            self.scan_records(&start, &[tag], &mut |key, value| {
                let ours = block.contains_key(key);
                if ranges && !ours {
                    return Ok(ControlFlow::Break(()));
                }
                // Also bounded by scanned keys: under a scattered tag few may belong to the block,
                // and the scan must not block the executor.
                if found.len() >= keys_max || bytes >= bytes_max || looks >= LOOKS_MAX {
                    goes_on = Some(key.to_vec());
                    return Ok(ControlFlow::Break(()));
                }
                looks += 1;
                if ours {
                    bytes += key.len() + value.len();
                    found.push((key.to_vec(), value.to_vec()));
                }
                Ok(ControlFlow::Continue(()))
            })?;
            if goes_on.is_some() {
                cursor.from = goes_on;
                break;
            }
            cursor.tag += 1;
        }
        assert!(found.len() <= keys_max, "a portion has more records than its bound");
        assert!(
            cursor.is_at_end() || cursor.from.is_some(),
            "a scan of records stops before its end, at no key"
        );
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::MemoryStore;
    use tatami_wire::{ClientId, ExecutorId, NodeId, Piece, ShardMap, VolumeId};

    const HERE: ExecutorId = ExecutorId { node: NodeId(0), index: 2 };

    /// Records of all tags, of shards 3 to 9.
    fn state() -> MetaState<MemoryStore> {
        let map = ShardMap::with_even_blocks(1, 16, &[HERE]).expect("a power of two");
        let mut state =
            MetaState::open(MemoryStore::new(), VolumeId([1; 16]), HERE, map).expect("opens");
        for shard in 3..10 {
            let shard = ShardId(shard);
            let ino = Ino::new(shard, shard, 7);
            let client = ClientId([5; 16]);
            for key in [
                keys::inode(ino),
                keys::entry(ino, 9, b"name"),
                keys::xattr(ino, b"user.x"),
                keys::orphan(client, ino),
                keys::writer(ino, client),
                keys::garbage_inode(NodeId(2), ino),
                keys::pending_recovery(ino),
                keys::planned_split(ino),
                keys::tiled(ino),
                keys::piece(ino, 1),
                keys::job(ino, 4),
                keys::job_rank(ino, 4, client, 5),
                keys::job_place(ino, 4, 6),
                keys::dropped_object(NodeId(2), ino, Piece(3)),
                // Lies in another shard.
                keys::embedded_dir(Ino::new(ShardId(15), shard, 8)),
            ] {
                state.put_record(key, Some(vec![1; 10]));
            }
        }
        state.put_record(keys::reply(ClientId([5; 16]), 1), Some(vec![1]));
        state
    }

    #[test]
    fn all_records_of_a_block_are_found_whatever_the_portions() {
        let state = state();
        let block = ShardBlock { first: 4, count: 3 };
        for keys_max in [1, 2, 5, 1000] {
            let (mut cursor, mut all, mut rounds) = (BlockCursor::default(), Vec::new(), 0);
            while !cursor.is_at_end() {
                let some =
                    state.block_records(block, &mut cursor, keys_max, 1 << 20).expect("reads");
                assert!(some.len() <= keys_max);
                all.extend(some);
                rounds += 1;
            }
            assert_eq!(all.len(), 3 * 15);
            assert!(all.iter().all(|(key, _)| block.contains_key(key)));
            all.sort();
            all.dedup();
            assert_eq!(all.len(), 3 * 15);
            assert!(keys_max > 1 || rounds >= 45);
        }
    }

    #[test]
    fn every_tag_belongs_to_a_shard_or_to_the_store() {
        let of_shards: Vec<u8> = RANGES.into_iter().chain(SCATTERED).collect();
        let ino = Ino::new(ShardId(3), ShardId(5), 1);
        for tag in 0..=u8::MAX {
            let mut key = vec![tag];
            key.extend([0; 16]);
            key.extend(ino.0.to_be_bytes());
            let known = keys::shard_of(&key).is_some();
            assert_eq!(known, of_shards.contains(&tag) || tag == tag::ANCESTOR, "{tag}");
        }
    }
}
