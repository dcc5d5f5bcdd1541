//! The keys of records in the store. `docs/reference/formats.md` draws them.
//!
//! A key starts with a byte for its kind. Numbers are big-endian, so that keys sort as the numbers
//! do.

use tatami_wire::transaction::Txid;
use tatami_wire::{
    ClientId, EXECUTORS_MAX, ExecutorId, Ino, NAME_MAX, NodeId, Piece, ShardId, XATTR_NAME_MAX,
};

/// First byte of each kind of key.
pub(crate) mod tag {
    /// Stands for a part of an inode: no record lies under it.
    pub const ANCESTOR: u8 = b'A';
    pub const INLINE: u8 = b'B';
    pub const COMMITTED: u8 = b'C';
    pub const DROPPED: u8 = b'D';
    pub const ENTRY: u8 = b'E';
    pub const INCOMING_BLOCK: u8 = b'F';
    pub const GARBAGE: u8 = b'G';
    pub const INODE: u8 = b'I';
    pub const JOB: u8 = b'J';
    pub const PENDING_DELETIONS: u8 = b'K';
    pub const LOCKED: u8 = b'L';
    pub const MAP: u8 = b'M';
    pub const INCARNATION: u8 = b'N';
    pub const ORPHAN: u8 = b'O';
    pub const PIECE: u8 = b'P';
    pub const REPLY: u8 = b'R';
    pub const SHARD: u8 = b'S';
    pub const TILED: u8 = b'T';
    pub const PENDING_RECOVERY: u8 = b'U';
    pub const WRITER: u8 = b'W';
    pub const XATTR: u8 = b'X';
    pub const EMBEDDED_DIR: u8 = b'Y';
    pub const PLANNED_SPLIT: u8 = b'Z';
}

pub(crate) type RecordKey = Vec<u8>;

fn build_key(tag: u8, parts: &[&[u8]]) -> RecordKey {
    let mut key = Vec::with_capacity(1 + parts.iter().map(|p| p.len()).sum::<usize>());
    key.push(tag);
    parts.iter().for_each(|p| key.extend_from_slice(p));
    key
}

/// The record of the shard itself.
pub(crate) fn shard() -> RecordKey {
    vec![tag::SHARD]
}

pub(crate) fn inode(ino: Ino) -> RecordKey {
    build_key(tag::INODE, &[&ino.0.to_be_bytes()])
}

/// An embedded directory, beside its entry: nothing was made in it yet.
pub(crate) fn embedded_dir(ino: Ino) -> RecordKey {
    build_key(tag::EMBEDDED_DIR, &[&ino.0.to_be_bytes()])
}

/// The directory above a directory: a lock key without a record. It stands for the parent in the
/// inode's record, for transactions that read only that.
pub(crate) fn ancestor(ino: Ino) -> RecordKey {
    build_key(tag::ANCESTOR, &[&ino.0.to_be_bytes()])
}

/// A transaction in which this executor is a participant.
pub(crate) fn lock_record(txid: Txid) -> RecordKey {
    transaction_key(tag::LOCKED, txid)
}

/// A transaction that this executor has decided.
pub(crate) fn decision_record(txid: Txid) -> RecordKey {
    transaction_key(tag::COMMITTED, txid)
}

fn transaction_key(
    tag: u8,
    Txid { executor: ExecutorId { node, index }, incarnation: life, number }: Txid,
) -> RecordKey {
    // Keys without it are those of the first executor of a node.
    let index: &[u8] = if index == 0 { &[] } else { &[index] };
    build_key(tag, &[&node.0.to_be_bytes(), &life.to_be_bytes(), &number.to_be_bytes(), index])
}

/// The number of times that the store was opened as one of several.
pub(crate) fn incarnation() -> RecordKey {
    vec![tag::INCARNATION]
}

/// A partition that is to be split.
pub(crate) fn planned_split(part: Ino) -> RecordKey {
    build_key(tag::PLANNED_SPLIT, &[&part.0.to_be_bytes()])
}

/// The shard map, where shards have moved.
pub(crate) fn shard_map() -> RecordKey {
    vec![tag::MAP]
}

/// Shards that another executor is moving to this one.
pub(crate) fn incoming_block(txid: Txid) -> RecordKey {
    transaction_key(tag::INCOMING_BLOCK, txid)
}

/// Shards whose records here do not count any more.
pub(crate) fn pending_deletions() -> RecordKey {
    vec![tag::PENDING_DELETIONS]
}

/// Returns the shard that a record belongs to; `None` for those of the store itself.
pub(crate) fn shard_of(key: &[u8]) -> Option<ShardId> {
    let first = |ino: &[u8]| ino.first_chunk().map(|b| Ino(u64::from_be_bytes(*b)));
    let (&tag, rest) = key.split_first()?;
    let ino = match tag {
        tag::EMBEDDED_DIR => return Some(first(rest)?.allocating_shard()),
        tag::ANCESTOR
        | tag::ENTRY
        | tag::INLINE
        | tag::PLANNED_SPLIT
        | tag::INODE
        | tag::JOB
        | tag::PIECE
        | tag::TILED
        | tag::PENDING_RECOVERY
        | tag::WRITER
        | tag::XATTR => first(rest)?,
        tag::ORPHAN => first(rest.get(16..)?)?,
        tag::GARBAGE | tag::DROPPED => first(rest.get(2..)?)?,
        _ => return None,
    };
    Some(ino.owner_shard())
}

pub(crate) fn entry(parent: Ino, hash: u64, name: &[u8]) -> RecordKey {
    build_key(tag::ENTRY, &[&parent.0.to_be_bytes(), &hash.to_be_bytes(), name])
}

/// Returns the first key of entries of `parent` with a hash of at least `hash`.
pub(crate) fn entries_from(parent: Ino, hash: u64) -> RecordKey {
    build_key(tag::ENTRY, &[&parent.0.to_be_bytes(), &hash.to_be_bytes()])
}

/// Returns the prefix of all keys of `tag` that belong to `ino`.
pub(crate) fn inode_prefix(tag: u8, ino: Ino) -> RecordKey {
    build_key(tag, &[&ino.0.to_be_bytes()])
}

pub(crate) fn xattr(ino: Ino, name: &[u8]) -> RecordKey {
    build_key(tag::XATTR, &[&ino.0.to_be_bytes(), name])
}

pub(crate) fn orphan(client: ClientId, ino: Ino) -> RecordKey {
    build_key(tag::ORPHAN, &[&client.0, &ino.0.to_be_bytes()])
}

pub(crate) fn writer(ino: Ino, client: ClientId) -> RecordKey {
    build_key(tag::WRITER, &[&ino.0.to_be_bytes(), &client.0])
}

pub(crate) fn garbage_inode(node: NodeId, ino: Ino) -> RecordKey {
    build_key(tag::GARBAGE, &[&node.0.to_be_bytes(), &ino.0.to_be_bytes()])
}

/// The record beside the inode of a file that has, or had, pieces.
pub(crate) fn tiled(ino: Ino) -> RecordKey {
    build_key(tag::TILED, &[&ino.0.to_be_bytes()])
}

/// The bytes of a file that lie beside its inode.
pub(crate) fn inline_bytes(ino: Ino) -> RecordKey {
    build_key(tag::INLINE, &[&ino.0.to_be_bytes()])
}

/// A piece of a tiled file.
pub(crate) fn piece(ino: Ino, number: u32) -> RecordKey {
    build_key(tag::PIECE, &[&ino.0.to_be_bytes(), &number.to_be_bytes()])
}

/// The shared state of the ranks of an open of `ino`. Prefix of the keys of all that belongs to it.
pub(crate) fn job(ino: Ino, open: u64) -> RecordKey {
    build_key(tag::JOB, &[&ino.0.to_be_bytes(), &open.to_be_bytes()])
}

/// A rank that takes part.
pub(crate) fn job_rank(ino: Ino, open: u64, client: ClientId, rank: u32) -> RecordKey {
    let open = open.to_be_bytes();
    build_key(tag::JOB, &[&ino.0.to_be_bytes(), &open, b"R", &client.0, &rank.to_be_bytes()])
}

/// A place in the queue for the lock: the lowest number has the lock.
pub(crate) fn job_place(ino: Ino, open: u64, place: u64) -> RecordKey {
    let mut key = job_places_prefix(ino, open);
    key.extend_from_slice(&place.to_be_bytes());
    key
}

/// Returns the prefix of the keys of all such places.
pub(crate) fn job_places_prefix(ino: Ino, open: u64) -> RecordKey {
    build_key(tag::JOB, &[&ino.0.to_be_bytes(), &open.to_be_bytes(), b"P"])
}

/// An object that its inode does not need any more.
pub(crate) fn dropped_object(node: NodeId, ino: Ino, object: Piece) -> RecordKey {
    build_key(tag::DROPPED, &[&node.0.to_be_bytes(), &ino.0.to_be_bytes(), &object.0.to_be_bytes()])
}

/// Returns the prefix of the keys of all objects on `node` that `ino` does not need any more.
pub(crate) fn dropped_prefix(node: NodeId, ino: Ino) -> RecordKey {
    build_key(tag::DROPPED, &[&node.0.to_be_bytes(), &ino.0.to_be_bytes()])
}

pub(crate) fn pending_recovery(ino: Ino) -> RecordKey {
    build_key(tag::PENDING_RECOVERY, &[&ino.0.to_be_bytes()])
}

pub(crate) fn reply(client: ClientId, slot: u32) -> RecordKey {
    build_key(tag::REPLY, &[&client.0, &slot.to_be_bytes()])
}

/// Returns the prefix of all keys of `tag` that belong to `client`.
pub(crate) fn client_prefix(tag: u8, client: ClientId) -> RecordKey {
    build_key(tag, &[&client.0])
}

/// Returns the prefix of all keys of `tag` that belong to `node`.
pub(crate) fn node_prefix(tag: u8, node: NodeId) -> RecordKey {
    build_key(tag, &[&node.0.to_be_bytes()])
}

/// A decoded key.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ParsedKey<'a> {
    Shard,
    Inode(Ino),
    Entry { parent: Ino, hash: u64, name: &'a [u8] },
    Xattr { ino: Ino, name: &'a [u8] },
    Orphan { client: ClientId, ino: Ino },
    Writer { ino: Ino, client: ClientId },
    Garbage { node: NodeId, ino: Ino },
    PendingRecovery(Ino),
    Tiled(Ino),
    Inline(Ino),
    Piece { ino: Ino, number: u32 },
    Dropped { node: NodeId, ino: Ino, object: Piece },
    Job { ino: Ino, open: u64 },
    JobRank { ino: Ino, open: u64, client: ClientId, rank: u32 },
    JobPlace { ino: Ino, open: u64, place: u64 },
    Reply { client: ClientId, slot: u32 },
    EmbeddedDir(Ino),
    Ancestor(Ino),
    PlannedSplit(Ino),
    LockRecord(Txid),
    Decision(Txid),
    Incarnation,
    Map,
    IncomingBlock(Txid),
    PendingDeletions,
}

/// Most bytes behind the tag of an entry, and of an extended attribute.
const ENTRY_MAX: usize = 8 + 8 + NAME_MAX;
const XATTR_MAX: usize = 8 + XATTR_NAME_MAX;

/// Decodes a key; `None` where it is invalid.
pub(crate) fn parse(key: &[u8]) -> Option<ParsedKey<'_>> {
    let (&tag, rest) = key.split_first()?;
    Some(match (tag, rest.len()) {
        (tag::SHARD, 0) => ParsedKey::Shard,
        (tag::INODE, 8) => ParsedKey::Inode(read_ino(rest)?),
        (tag::ENTRY, 17..=ENTRY_MAX) => {
            let (_, tail) = rest.split_at_checked(8)?;
            let (hash, name) = tail.split_first_chunk()?;
            ParsedKey::Entry { parent: read_ino(rest)?, hash: u64::from_be_bytes(*hash), name }
        }
        (tag::XATTR, 9..=XATTR_MAX) => {
            ParsedKey::Xattr { ino: read_ino(rest)?, name: rest.get(8..)? }
        }
        (tag::ORPHAN, 24) => {
            ParsedKey::Orphan { client: read_client(rest)?, ino: read_ino(rest.get(16..)?)? }
        }
        (tag::WRITER, 24) => {
            ParsedKey::Writer { ino: read_ino(rest)?, client: read_client(rest.get(8..)?)? }
        }
        (tag::GARBAGE, 10) => {
            let (node, tail) = rest.split_first_chunk()?;
            ParsedKey::Garbage { node: NodeId(u16::from_be_bytes(*node)), ino: read_ino(tail)? }
        }
        (tag::PENDING_RECOVERY, 8) => ParsedKey::PendingRecovery(read_ino(rest)?),
        (tag::TILED, 8) => ParsedKey::Tiled(read_ino(rest)?),
        (tag::INLINE, 8) => ParsedKey::Inline(read_ino(rest)?),
        (tag::PIECE, 12) => {
            ParsedKey::Piece { ino: read_ino(rest)?, number: read_u32(rest.get(8..)?)? }
        }
        (tag::DROPPED, 14) => {
            let (node, tail) = rest.split_first_chunk()?;
            let object = Piece(read_u32(tail.get(8..)?)?);
            ParsedKey::Dropped {
                node: NodeId(u16::from_be_bytes(*node)),
                ino: read_ino(tail)?,
                object,
            }
        }
        (tag::JOB, 16) => ParsedKey::Job { ino: read_ino(rest)?, open: read_u64(rest.get(8..)?)? },
        (tag::JOB, 37) if rest.get(16) == Some(&b'R') => ParsedKey::JobRank {
            ino: read_ino(rest)?,
            open: read_u64(rest.get(8..)?)?,
            client: read_client(rest.get(17..)?)?,
            rank: read_u32(rest.get(33..)?)?,
        },
        (tag::JOB, 25) if rest.get(16) == Some(&b'P') => ParsedKey::JobPlace {
            ino: read_ino(rest)?,
            open: read_u64(rest.get(8..)?)?,
            place: read_u64(rest.get(17..)?)?,
        },
        (tag::REPLY, 20) => {
            ParsedKey::Reply { client: read_client(rest)?, slot: read_u32(rest.get(16..)?)? }
        }
        (tag::EMBEDDED_DIR, 8) => ParsedKey::EmbeddedDir(read_ino(rest)?),
        (tag::ANCESTOR, 8) => ParsedKey::Ancestor(read_ino(rest)?),
        (tag::PLANNED_SPLIT, 8) => ParsedKey::PlannedSplit(read_ino(rest)?),
        (tag::LOCKED, 18 | 19) => ParsedKey::LockRecord(read_txid(rest)?),
        (tag::COMMITTED, 18 | 19) => ParsedKey::Decision(read_txid(rest)?),
        (tag::INCARNATION, 0) => ParsedKey::Incarnation,
        (tag::MAP, 0) => ParsedKey::Map,
        (tag::INCOMING_BLOCK, 18 | 19) => ParsedKey::IncomingBlock(read_txid(rest)?),
        (tag::PENDING_DELETIONS, 0) => ParsedKey::PendingDeletions,
        _ => return None,
    })
}

fn read_txid(bytes: &[u8]) -> Option<Txid> {
    let (node, rest) = bytes.split_first_chunk()?;
    let (life, number) = rest.split_first_chunk()?;
    let (number, index) = number.split_first_chunk()?;
    let index = match index {
        [] => 0,
        [index @ 1..EXECUTORS_MAX] => *index,
        _ => return None,
    };
    Some(Txid {
        executor: ExecutorId { node: NodeId(u16::from_be_bytes(*node)), index },
        incarnation: u64::from_be_bytes(*life),
        number: u64::from_be_bytes(*number),
    })
}

fn read_ino(bytes: &[u8]) -> Option<Ino> {
    bytes.first_chunk().map(|b| Ino(u64::from_be_bytes(*b)))
}

fn read_u64(bytes: &[u8]) -> Option<u64> {
    bytes.first_chunk().map(|b| u64::from_be_bytes(*b))
}

fn read_u32(bytes: &[u8]) -> Option<u32> {
    bytes.first_chunk().map(|b| u32::from_be_bytes(*b))
}

fn read_client(bytes: &[u8]) -> Option<ClientId> {
    bytes.first_chunk().map(|b| ClientId(*b))
}

pub(crate) use tatami_wire::partition::name_hash;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_key_reads_as_what_it_was_made_from() {
        let (ino, client, node) = (Ino(0x0102_0304), ClientId([9; 16]), NodeId(3));
        let name = b"name";
        let txid = |index| Txid { executor: ExecutorId { node, index }, incarnation: 7, number: 8 };
        for (key, parsed) in [
            (shard(), ParsedKey::Shard),
            (inode(ino), ParsedKey::Inode(ino)),
            (entry(ino, 5, name), ParsedKey::Entry { parent: ino, hash: 5, name }),
            (xattr(ino, name), ParsedKey::Xattr { ino, name }),
            (orphan(client, ino), ParsedKey::Orphan { client, ino }),
            (writer(ino, client), ParsedKey::Writer { ino, client }),
            (garbage_inode(node, ino), ParsedKey::Garbage { node, ino }),
            (pending_recovery(ino), ParsedKey::PendingRecovery(ino)),
            (tiled(ino), ParsedKey::Tiled(ino)),
            (inline_bytes(ino), ParsedKey::Inline(ino)),
            (piece(ino, 6), ParsedKey::Piece { ino, number: 6 }),
            (
                dropped_object(node, ino, Piece(9)),
                ParsedKey::Dropped { node, ino, object: Piece(9) },
            ),
            (job(ino, 4), ParsedKey::Job { ino, open: 4 }),
            (job_rank(ino, 4, client, 5), ParsedKey::JobRank { ino, open: 4, client, rank: 5 }),
            (job_place(ino, 4, 6), ParsedKey::JobPlace { ino, open: 4, place: 6 }),
            (reply(client, 7), ParsedKey::Reply { client, slot: 7 }),
            (embedded_dir(ino), ParsedKey::EmbeddedDir(ino)),
            (ancestor(ino), ParsedKey::Ancestor(ino)),
            (planned_split(ino), ParsedKey::PlannedSplit(ino)),
            (lock_record(txid(0)), ParsedKey::LockRecord(txid(0))),
            (decision_record(txid(1)), ParsedKey::Decision(txid(1))),
            (incarnation(), ParsedKey::Incarnation),
            (shard_map(), ParsedKey::Map),
            (incoming_block(txid(9)), ParsedKey::IncomingBlock(txid(9))),
            (pending_deletions(), ParsedKey::PendingDeletions),
        ] {
            assert_eq!(parse(&key), Some(parsed));
        }
    }

    #[test]
    fn a_key_with_a_name_beyond_its_bound_is_none() {
        for (key, more) in [(entry(Ino(7), 5, b""), NAME_MAX), (xattr(Ino(7), b""), XATTR_NAME_MAX)]
        {
            let longest = [key, vec![b'n'; more]].concat();
            assert!(parse(&longest).is_some());
            assert_eq!(parse(&[longest, vec![b'n']].concat()), None);
        }
    }

    proptest! {
        #[test]
        fn any_bytes_parse_or_do_not(key in proptest::collection::vec(any::<u8>(), 0..40)) {
            let _ = parse(&key);
        }

        #[test]
        fn inode_keys_sort_as_numbers(a: u64, b: u64) {
            prop_assert_eq!(inode(Ino(a)).cmp(&inode(Ino(b))), a.cmp(&b));
        }

        #[test]
        fn a_name_hash_is_a_cookie(seed: u64, name in proptest::collection::vec(any::<u8>(), 0..64)) {
            let hash = name_hash(seed, &name);
            prop_assert!(hash > 0 && hash < 1 << 63);
        }
    }
}
