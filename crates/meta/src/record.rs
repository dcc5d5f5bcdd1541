//! The small records of the store, and the reader that all records share. `docs/FORMAT.md` draws
//! them byte by byte. Numbers in values are little-endian.
//!
//! Each record starts with the version of its format. A record that cannot be decoded, is too short
//! or too long, or has a number out of range is [`Damaged`]. No length in a record leads to an
//! allocation larger than the record.

use tatami_wire::{ExecutorId, Ino, Kind, NodeId, Timestamp, VolumeId};

/// A record that this program cannot have written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Damaged(pub &'static str);

/// Reads a record from front to back.
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
    what: &'static str,
}

impl<'a> Reader<'a> {
    /// Starts with the version byte, which must be `version`.
    pub fn new(bytes: &'a [u8], version: u8, what: &'static str) -> Result<Reader<'a>, Damaged> {
        let mut reader = Reader { rest: bytes, what };
        if reader.u8()? != version { Err(Damaged(what)) } else { Ok(reader) }
    }

    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Damaged> {
        let (head, rest) = self.rest.split_first_chunk().ok_or(Damaged(self.what))?;
        self.rest = rest;
        Ok(*head)
    }

    pub fn bytes(&mut self, len: usize) -> Result<&'a [u8], Damaged> {
        let (head, rest) = self.rest.split_at_checked(len).ok_or(Damaged(self.what))?;
        self.rest = rest;
        Ok(head)
    }

    pub fn u8(&mut self) -> Result<u8, Damaged> {
        Ok(self.array::<1>()?[0])
    }

    pub fn u16(&mut self) -> Result<u16, Damaged> {
        self.array().map(u16::from_le_bytes)
    }

    pub fn u32(&mut self) -> Result<u32, Damaged> {
        self.array().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Result<u64, Damaged> {
        self.array().map(u64::from_le_bytes)
    }

    pub fn ino(&mut self) -> Result<Ino, Damaged> {
        self.u64().map(Ino)
    }

    pub fn time(&mut self) -> Result<Timestamp, Damaged> {
        let time = Timestamp { sec: self.u64()? as i64, nsec: self.u32()? };
        if time.is_valid() { Ok(time) } else { Err(Damaged(self.what)) }
    }

    pub fn kind(&mut self) -> Result<Kind, Damaged> {
        kind_from_byte(self.u8()?).ok_or(Damaged(self.what))
    }

    /// Checks that the record ends here.
    pub fn end(self) -> Result<(), Damaged> {
        if self.rest.is_empty() { Ok(()) } else { Err(Damaged(self.what)) }
    }

    /// Returns the rest of the record.
    pub fn rest(self) -> &'a [u8] {
        self.rest
    }
}

/// Appends a point in time, 12 bytes.
pub(crate) fn put_time(out: &mut Vec<u8>, time: Timestamp) {
    out.extend_from_slice(&time.sec.to_le_bytes());
    out.extend_from_slice(&time.nsec.to_le_bytes());
}

const KINDS: [Kind; 7] =
    [Kind::File, Kind::Dir, Kind::Symlink, Kind::Fifo, Kind::Socket, Kind::CharDev, Kind::BlockDev];

/// Returns the number that stands for a kind on disk: its place in the list above, from 1.
pub(crate) fn kind_byte(kind: Kind) -> u8 {
    match kind {
        Kind::File => 1,
        Kind::Dir => 2,
        Kind::Symlink => 3,
        Kind::Fifo => 4,
        Kind::Socket => 5,
        Kind::CharDev => 6,
        Kind::BlockDev => 7,
    }
}

fn kind_from_byte(byte: u8) -> Option<Kind> {
    KINDS.get(usize::from(byte).checked_sub(1)?).copied()
}

/// The target of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub ino: Ino,
    pub kind: Kind,
}

const ENTRY_VERSION: u8 = 1;

impl Entry {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(10);
        out.extend_from_slice(&[ENTRY_VERSION, kind_byte(self.kind)]);
        out.extend_from_slice(&self.ino.0.to_le_bytes());
        out
    }

    pub fn decode(bytes: &[u8]) -> Result<Entry, Damaged> {
        let mut r = Reader::new(bytes, ENTRY_VERSION, "entry")?;
        let entry = Entry { kind: r.kind()?, ino: r.ino()? };
        r.end()?;
        Ok(entry)
    }

    /// Returns whether it states that it leads to a directory.
    pub fn is_dir(&self) -> bool {
        self.kind == Kind::Dir
    }
}

/// The version of the whole set of records. A store with a higher one was written by a newer
/// program.
///
/// Version 1 had no log before the tables; versions 1 and 2 had no tiled files; 1 to 3 no files
/// that were re-laid out; 1 to 4 one shard only; 1 to 6 no transactions whose new values come with
/// the decision, no answers to batch operations, and no moved shards; 1 to 8 no shared state of the
/// ranks of an open; 1 to 9 no journals whose records have seeds, which older programs would take
/// for none.
pub(crate) const FORMAT_VERSION: u32 = 10;
/// The format since which a store belongs to one executor of several.
const INDEX_SINCE: u32 = 8;
const SHARD_MAGIC: [u8; 8] = *b"TATAMI-M";

/// The record of the store itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shard {
    pub volume: VolumeId,
    /// The executor whose shards it has.
    pub executor: ExecutorId,
    /// Seed of the hash that orders names.
    pub seed: u64,
    /// Inode numbers with counters below this may have been allocated on any shard that is, or was,
    /// here; synced before any of them is used.
    pub reserved: u64,
    /// Inodes in use.
    pub inodes: u64,
}

/// The reason why a shard record cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ShardError {
    Newer(u32),
    Damaged(Damaged),
}

impl From<Damaged> for ShardError {
    fn from(e: Damaged) -> ShardError {
        ShardError::Damaged(e)
    }
}

impl Shard {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(55);
        out.extend_from_slice(&SHARD_MAGIC);
        out.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
        out.extend_from_slice(&self.volume.0);
        out.extend_from_slice(&self.executor.node.0.to_le_bytes());
        out.extend_from_slice(&self.seed.to_le_bytes());
        out.extend_from_slice(&self.reserved.to_le_bytes());
        out.extend_from_slice(&self.inodes.to_le_bytes());
        out.push(self.executor.index);
        out
    }

    pub fn decode(bytes: &[u8]) -> Result<Shard, ShardError> {
        let mut r = Reader { rest: bytes, what: "shard record" };
        if r.array()? != SHARD_MAGIC {
            return Err(Damaged("shard record").into());
        }
        let format = match r.u32()? {
            known @ 1..=FORMAT_VERSION => known,
            newer if newer > FORMAT_VERSION => return Err(ShardError::Newer(newer)),
            _ => return Err(Damaged("shard record").into()),
        };
        let mut shard = Shard {
            volume: VolumeId(r.array()?),
            executor: ExecutorId::first(NodeId(r.u16()?)),
            seed: r.u64()?,
            reserved: r.u64()?,
            inodes: r.u64()?,
        };
        if format >= INDEX_SINCE {
            shard.executor.index = r.u8()?;
        }
        r.end()?;
        Ok(shard)
    }
}

const REPLY_VERSION: u8 = 1;
const REPLY_HEAD: usize = 9;

/// Encodes the last answer on a slot: a sequence number and the encoded reply.
pub(crate) fn encode_reply(
    seq: u64,
    reply: &tatami_wire::meta::MetaReply,
) -> Result<Vec<u8>, Damaged> {
    let mut out = Vec::with_capacity(192);
    out.push(REPLY_VERSION);
    out.extend_from_slice(&seq.to_le_bytes());
    debug_assert_eq!(out.len(), REPLY_HEAD);
    postcard::to_extend(reply, out).map_err(|_| Damaged("reply"))
}

/// Decodes the sequence number of a slot record, without the reply.
pub(crate) fn decode_reply_seq(bytes: &[u8]) -> Result<u64, Damaged> {
    Reader::new(bytes, REPLY_VERSION, "reply")?.u64()
}

/// Decodes the whole slot record.
pub(crate) fn decode_reply(bytes: &[u8]) -> Result<(u64, tatami_wire::meta::MetaReply), Damaged> {
    let mut r = Reader::new(bytes, REPLY_VERSION, "reply")?;
    let seq = r.u64()?;
    let (reply, rest) = postcard::take_from_bytes(r.rest()).map_err(|_| Damaged("reply"))?;
    if rest.is_empty() { Ok((seq, reply)) } else { Err(Damaged("reply")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tatami_wire::meta::MetaReply;

    fn shard_record() -> Shard {
        Shard {
            volume: VolumeId([3; 16]),
            executor: ExecutorId { node: NodeId(2), index: 3 },
            seed: 77,
            reserved: 1 << 20,
            inodes: 12,
        }
    }

    #[test]
    fn kinds_have_distinct_bytes() {
        for kind in KINDS {
            assert_eq!(kind_from_byte(kind_byte(kind)), Some(kind));
        }
        assert_eq!(kind_from_byte(0), None);
        assert_eq!(kind_from_byte(8), None);
    }

    #[test]
    fn records_read_as_they_were_written() {
        let entry = Entry { ino: Ino(99), kind: Kind::Symlink };
        assert_eq!(Entry::decode(&entry.encode()), Ok(entry));
        let shard = shard_record();
        assert_eq!(Shard::decode(&shard.encode()), Ok(shard));
        let reply = MetaReply::Removed { ino: Some(Ino(5)), last: true };
        let bytes = encode_reply(41, &reply).expect("encodes");
        assert_eq!(decode_reply_seq(&bytes), Ok(41));
        assert_eq!(decode_reply(&bytes), Ok((41, reply)));
    }

    /// The bytes of docs/FORMAT.md. If this fails, the format has changed: raise its version and
    /// keep reading the old one.
    #[test]
    fn the_format_is_the_one_written_down() {
        let entry = Entry { ino: Ino(0x0102), kind: Kind::BlockDev };
        assert_eq!(entry.encode(), [1, 7, 2, 1, 0, 0, 0, 0, 0, 0]);
        let mut shard = b"TATAMI-M\x0a\0\0\0".to_vec();
        shard.extend([3; 16]);
        shard.extend([2, 0, 77, 0, 0, 0, 0, 0, 0, 0]);
        shard.extend([0, 0, 16, 0, 0, 0, 0, 0, 12, 0, 0, 0, 0, 0, 0, 0]);
        let mut before = shard.clone();
        shard.push(3);
        assert_eq!(shard_record().encode(), shard);
        before[8] = INDEX_SINCE as u8 - 1;
        let first = Shard { executor: ExecutorId::first(NodeId(2)), ..shard_record() };
        assert_eq!(Shard::decode(&before), Ok(first));
        let reply = encode_reply(5, &MetaReply::Removed { ino: Some(Ino(300)), last: true });
        // Variant 3, Some, 300 as a varint, true.
        assert_eq!(reply, Ok(vec![1, 5, 0, 0, 0, 0, 0, 0, 0, 3, 1, 0xac, 2, 1]));
    }

    #[test]
    fn a_newer_format_is_told_apart_from_damage() {
        let mut bytes = shard_record().encode();
        bytes[8] = 11;
        assert_eq!(Shard::decode(&bytes), Err(ShardError::Newer(11)));
        bytes[0] = b'X';
        assert!(matches!(Shard::decode(&bytes), Err(ShardError::Damaged(_))));
    }

    proptest! {
        #[test]
        fn any_bytes_decode_or_do_not(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Entry::decode(&bytes);
            let _ = Shard::decode(&bytes);
            let _ = decode_reply_seq(&bytes);
            let _ = decode_reply(&bytes);
        }

        #[test]
        fn mutated_records_decode_or_do_not(at in 0usize..64, to: u8, cut in 0usize..64) {
            let reply = MetaReply::Bytes(vec![1; 40].into());
            for mut bytes in [
                Entry { ino: Ino(1), kind: Kind::Dir }.encode(),
                shard_record().encode(),
                encode_reply(3, &reply).expect("encodes"),
            ] {
                let n = bytes.len();
                bytes[at % n] = to;
                bytes.truncate(n.saturating_sub(cut % 8));
                let _ = Entry::decode(&bytes);
                let _ = Shard::decode(&bytes);
                let _ = decode_reply(&bytes);
            }
        }
    }
}
