//! The keys of records in the store. `docs/FORMAT.md` draws them.
//!
//! A key starts with a byte for its kind. Numbers are big-endian, so that keys sort as the numbers
//! do.

use tatami_wire::transaction::Txid;
use tatami_wire::{ClientId, EXECUTORS_MAX, ExecutorId, Ino, NodeId, Piece, ShardId};

/// First byte of each kind of key.
pub(crate) mod tag {
    /// Stands for a part of an inode: no record lies under it.
    pub const ANCESTOR: u8 = b'A';
    pub const COMMITTED: u8 = b'C';
    pub const DROPPED: u8 = b'D';
    pub const ENTRY: u8 = b'E';
    pub const BROUGHT: u8 = b'F';
    pub const GARBAGE: u8 = b'G';
    pub const INODE: u8 = b'I';
    pub const JOB: u8 = b'J';
    pub const CLEARED: u8 = b'K';
    pub const LOCKED: u8 = b'L';
    pub const MAP: u8 = b'M';
    pub const LIFE: u8 = b'N';
    pub const ORPHAN: u8 = b'O';
    pub const PIECE: u8 = b'P';
    pub const REPLY: u8 = b'R';
    pub const SHARD: u8 = b'S';
    pub const TILED: u8 = b'T';
    pub const UNSETTLED: u8 = b'U';
    pub const WRITER: u8 = b'W';
    pub const XATTR: u8 = b'X';
    pub const YOUNG: u8 = b'Y';
    pub const GROWN: u8 = b'Z';
}

pub(crate) type Key = Vec<u8>;

fn key(tag: u8, parts: &[&[u8]]) -> Key {
    let mut key = Vec::with_capacity(1 + parts.iter().map(|p| p.len()).sum::<usize>());
    key.push(tag);
    parts.iter().for_each(|p| key.extend_from_slice(p));
    key
}

/// The record of the shard itself.
pub(crate) fn shard() -> Key {
    vec![tag::SHARD]
}

pub(crate) fn inode(ino: Ino) -> Key {
    key(tag::INODE, &[&ino.0.to_be_bytes()])
}

/// An embedded directory, beside its entry: nothing was made in it yet.
pub(crate) fn young(ino: Ino) -> Key {
    key(tag::YOUNG, &[&ino.0.to_be_bytes()])
}

/// The directory above a directory: a lock key without a record. It stands for the parent in the
/// inode's record, for transactions that read only that.
pub(crate) fn ancestor(ino: Ino) -> Key {
    key(tag::ANCESTOR, &[&ino.0.to_be_bytes()])
}

/// A transaction in which this executor is a participant.
pub(crate) fn locked(txid: Txid) -> Key {
    transaction(tag::LOCKED, txid)
}

/// A transaction that this executor has decided.
pub(crate) fn committed(txid: Txid) -> Key {
    transaction(tag::COMMITTED, txid)
}

fn transaction(tag: u8, Txid { executor: ExecutorId { node, index }, life, number }: Txid) -> Key {
    // Keys without it are those of the first executor of a node.
    let index: &[u8] = if index == 0 { &[] } else { &[index] };
    key(tag, &[&node.0.to_be_bytes(), &life.to_be_bytes(), &number.to_be_bytes(), index])
}

/// The number of times that the store was opened as one of several.
pub(crate) fn life() -> Key {
    vec![tag::LIFE]
}

/// A partition that is to be split.
pub(crate) fn grown(part: Ino) -> Key {
    key(tag::GROWN, &[&part.0.to_be_bytes()])
}

/// The shard map, where shards have moved.
pub(crate) fn map() -> Key {
    vec![tag::MAP]
}

/// Shards that another executor is moving to this one.
pub(crate) fn brought(txid: Txid) -> Key {
    transaction(tag::BROUGHT, txid)
}

/// Shards whose records here do not count any more.
pub(crate) fn cleared() -> Key {
    vec![tag::CLEARED]
}

/// Returns the shard that a record belongs to; `None` for those of the store itself.
pub(crate) fn shard_of(key: &[u8]) -> Option<ShardId> {
    let first = |ino: &[u8]| ino.first_chunk().map(|b| Ino(u64::from_be_bytes(*b)));
    let (&tag, rest) = key.split_first()?;
    let ino = match tag {
        tag::YOUNG => return Some(first(rest)?.birth()),
        tag::ANCESTOR
        | tag::ENTRY
        | tag::GROWN
        | tag::INODE
        | tag::JOB
        | tag::PIECE
        | tag::TILED
        | tag::UNSETTLED
        | tag::WRITER
        | tag::XATTR => first(rest)?,
        tag::ORPHAN => first(rest.get(16..)?)?,
        tag::GARBAGE | tag::DROPPED => first(rest.get(2..)?)?,
        _ => return None,
    };
    Some(ino.shard())
}

pub(crate) fn entry(parent: Ino, hash: u64, name: &[u8]) -> Key {
    key(tag::ENTRY, &[&parent.0.to_be_bytes(), &hash.to_be_bytes(), name])
}

/// Returns the first key of entries of `parent` with a hash of at least `hash`.
pub(crate) fn entries_from(parent: Ino, hash: u64) -> Key {
    key(tag::ENTRY, &[&parent.0.to_be_bytes(), &hash.to_be_bytes()])
}

/// Returns the prefix of all keys of `tag` that belong to `ino`.
pub(crate) fn of_ino(tag: u8, ino: Ino) -> Key {
    key(tag, &[&ino.0.to_be_bytes()])
}

pub(crate) fn xattr(ino: Ino, name: &[u8]) -> Key {
    key(tag::XATTR, &[&ino.0.to_be_bytes(), name])
}

pub(crate) fn orphan(client: ClientId, ino: Ino) -> Key {
    key(tag::ORPHAN, &[&client.0, &ino.0.to_be_bytes()])
}

pub(crate) fn writer(ino: Ino, client: ClientId) -> Key {
    key(tag::WRITER, &[&ino.0.to_be_bytes(), &client.0])
}

pub(crate) fn garbage(node: NodeId, ino: Ino) -> Key {
    key(tag::GARBAGE, &[&node.0.to_be_bytes(), &ino.0.to_be_bytes()])
}

/// The record beside the inode of a file that has, or had, pieces.
pub(crate) fn tiled(ino: Ino) -> Key {
    key(tag::TILED, &[&ino.0.to_be_bytes()])
}

/// A piece of a tiled file.
pub(crate) fn piece(ino: Ino, number: u32) -> Key {
    key(tag::PIECE, &[&ino.0.to_be_bytes(), &number.to_be_bytes()])
}

/// The shared state of the ranks of an open of `ino`. Prefix of the keys of all that belongs to it.
pub(crate) fn job(ino: Ino, open: u64) -> Key {
    key(tag::JOB, &[&ino.0.to_be_bytes(), &open.to_be_bytes()])
}

/// A rank that takes part.
pub(crate) fn job_rank(ino: Ino, open: u64, client: ClientId, rank: u32) -> Key {
    let open = open.to_be_bytes();
    key(tag::JOB, &[&ino.0.to_be_bytes(), &open, b"R", &client.0, &rank.to_be_bytes()])
}

/// A place in the queue for the lock: the lowest number has the lock.
pub(crate) fn job_place(ino: Ino, open: u64, place: u64) -> Key {
    let mut key = job_places(ino, open);
    key.extend_from_slice(&place.to_be_bytes());
    key
}

/// Returns the prefix of the keys of all such places.
pub(crate) fn job_places(ino: Ino, open: u64) -> Key {
    key(tag::JOB, &[&ino.0.to_be_bytes(), &open.to_be_bytes(), b"P"])
}

/// An object that its inode does not need any more.
pub(crate) fn dropped(node: NodeId, ino: Ino, object: Piece) -> Key {
    key(tag::DROPPED, &[&node.0.to_be_bytes(), &ino.0.to_be_bytes(), &object.0.to_be_bytes()])
}

/// Returns the prefix of the keys of all objects on `node` that `ino` does not need any more.
pub(crate) fn dropped_of(node: NodeId, ino: Ino) -> Key {
    key(tag::DROPPED, &[&node.0.to_be_bytes(), &ino.0.to_be_bytes()])
}

pub(crate) fn unsettled(ino: Ino) -> Key {
    key(tag::UNSETTLED, &[&ino.0.to_be_bytes()])
}

pub(crate) fn reply(client: ClientId, slot: u32) -> Key {
    key(tag::REPLY, &[&client.0, &slot.to_be_bytes()])
}

/// Returns the prefix of all keys of `tag` that belong to `client`.
pub(crate) fn of_client(tag: u8, client: ClientId) -> Key {
    key(tag, &[&client.0])
}

/// Returns the prefix of all keys of `tag` that belong to `node`.
pub(crate) fn of_node(tag: u8, node: NodeId) -> Key {
    key(tag, &[&node.0.to_be_bytes()])
}

/// A decoded key.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Parsed<'a> {
    Shard,
    Inode(Ino),
    Entry { parent: Ino, hash: u64, name: &'a [u8] },
    Xattr { ino: Ino, name: &'a [u8] },
    Orphan { client: ClientId, ino: Ino },
    Writer { ino: Ino, client: ClientId },
    Garbage { node: NodeId, ino: Ino },
    Unsettled(Ino),
    Tiled(Ino),
    Piece { ino: Ino, number: u32 },
    Dropped { node: NodeId, ino: Ino, object: Piece },
    Job { ino: Ino, open: u64 },
    JobRank { ino: Ino, open: u64, client: ClientId, rank: u32 },
    JobPlace { ino: Ino, open: u64, place: u64 },
    Reply { client: ClientId, slot: u32 },
    Young(Ino),
    Ancestor(Ino),
    Grown(Ino),
    Locked(Txid),
    Committed(Txid),
    Life,
    Map,
    Brought(Txid),
    Cleared,
}

/// Decodes a key; `None` where it is invalid.
pub(crate) fn parse(key: &[u8]) -> Option<Parsed<'_>> {
    let (&tag, rest) = key.split_first()?;
    Some(match (tag, rest.len()) {
        (tag::SHARD, 0) => Parsed::Shard,
        (tag::INODE, 8) => Parsed::Inode(ino(rest)?),
        (tag::ENTRY, 17..) => {
            let (_, tail) = rest.split_at_checked(8)?;
            let (hash, name) = tail.split_first_chunk()?;
            Parsed::Entry { parent: ino(rest)?, hash: u64::from_be_bytes(*hash), name }
        }
        (tag::XATTR, 9..) => Parsed::Xattr { ino: ino(rest)?, name: rest.get(8..)? },
        (tag::ORPHAN, 24) => Parsed::Orphan { client: client(rest)?, ino: ino(rest.get(16..)?)? },
        (tag::WRITER, 24) => Parsed::Writer { ino: ino(rest)?, client: client(rest.get(8..)?)? },
        (tag::GARBAGE, 10) => {
            let (node, tail) = rest.split_first_chunk()?;
            Parsed::Garbage { node: NodeId(u16::from_be_bytes(*node)), ino: ino(tail)? }
        }
        (tag::UNSETTLED, 8) => Parsed::Unsettled(ino(rest)?),
        (tag::TILED, 8) => Parsed::Tiled(ino(rest)?),
        (tag::PIECE, 12) => Parsed::Piece { ino: ino(rest)?, number: number(rest.get(8..)?)? },
        (tag::DROPPED, 14) => {
            let (node, tail) = rest.split_first_chunk()?;
            let object = Piece(number(tail.get(8..)?)?);
            Parsed::Dropped { node: NodeId(u16::from_be_bytes(*node)), ino: ino(tail)?, object }
        }
        (tag::JOB, 16) => Parsed::Job { ino: ino(rest)?, open: long(rest.get(8..)?)? },
        (tag::JOB, 37) if rest.get(16) == Some(&b'R') => Parsed::JobRank {
            ino: ino(rest)?,
            open: long(rest.get(8..)?)?,
            client: client(rest.get(17..)?)?,
            rank: number(rest.get(33..)?)?,
        },
        (tag::JOB, 25) if rest.get(16) == Some(&b'P') => Parsed::JobPlace {
            ino: ino(rest)?,
            open: long(rest.get(8..)?)?,
            place: long(rest.get(17..)?)?,
        },
        (tag::REPLY, 20) => Parsed::Reply { client: client(rest)?, slot: number(rest.get(16..)?)? },
        (tag::YOUNG, 8) => Parsed::Young(ino(rest)?),
        (tag::ANCESTOR, 8) => Parsed::Ancestor(ino(rest)?),
        (tag::GROWN, 8) => Parsed::Grown(ino(rest)?),
        (tag::LOCKED, 18 | 19) => Parsed::Locked(txid(rest)?),
        (tag::COMMITTED, 18 | 19) => Parsed::Committed(txid(rest)?),
        (tag::LIFE, 0) => Parsed::Life,
        (tag::MAP, 0) => Parsed::Map,
        (tag::BROUGHT, 18 | 19) => Parsed::Brought(txid(rest)?),
        (tag::CLEARED, 0) => Parsed::Cleared,
        _ => return None,
    })
}

fn txid(bytes: &[u8]) -> Option<Txid> {
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
        life: u64::from_be_bytes(*life),
        number: u64::from_be_bytes(*number),
    })
}

fn ino(bytes: &[u8]) -> Option<Ino> {
    bytes.first_chunk().map(|b| Ino(u64::from_be_bytes(*b)))
}

fn long(bytes: &[u8]) -> Option<u64> {
    bytes.first_chunk().map(|b| u64::from_be_bytes(*b))
}

fn number(bytes: &[u8]) -> Option<u32> {
    bytes.first_chunk().map(|b| u32::from_be_bytes(*b))
}

fn client(bytes: &[u8]) -> Option<ClientId> {
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
        let txid = |index| Txid { executor: ExecutorId { node, index }, life: 7, number: 8 };
        for (key, parsed) in [
            (shard(), Parsed::Shard),
            (inode(ino), Parsed::Inode(ino)),
            (entry(ino, 5, name), Parsed::Entry { parent: ino, hash: 5, name }),
            (xattr(ino, name), Parsed::Xattr { ino, name }),
            (orphan(client, ino), Parsed::Orphan { client, ino }),
            (writer(ino, client), Parsed::Writer { ino, client }),
            (garbage(node, ino), Parsed::Garbage { node, ino }),
            (unsettled(ino), Parsed::Unsettled(ino)),
            (tiled(ino), Parsed::Tiled(ino)),
            (piece(ino, 6), Parsed::Piece { ino, number: 6 }),
            (dropped(node, ino, Piece(9)), Parsed::Dropped { node, ino, object: Piece(9) }),
            (job(ino, 4), Parsed::Job { ino, open: 4 }),
            (job_rank(ino, 4, client, 5), Parsed::JobRank { ino, open: 4, client, rank: 5 }),
            (job_place(ino, 4, 6), Parsed::JobPlace { ino, open: 4, place: 6 }),
            (reply(client, 7), Parsed::Reply { client, slot: 7 }),
            (young(ino), Parsed::Young(ino)),
            (ancestor(ino), Parsed::Ancestor(ino)),
            (grown(ino), Parsed::Grown(ino)),
            (locked(txid(0)), Parsed::Locked(txid(0))),
            (committed(txid(1)), Parsed::Committed(txid(1))),
            (life(), Parsed::Life),
            (map(), Parsed::Map),
            (brought(txid(9)), Parsed::Brought(txid(9))),
            (cleared(), Parsed::Cleared),
        ] {
            assert_eq!(parse(&key), Some(parsed));
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
