//! The small records of the store, and the reader that all records share.
//! `docs/reference/formats.md` draws them byte by byte. Numbers in values are little-endian.
//!
//! Each record starts with the version of its format. A record that cannot be decoded, is too short
//! or too long, or has a number out of range is [`DamagedRecord`]. No length in a record leads to
//! an allocation larger than the record.

use tatami_wire::{ExecutorId, Ino, InodeKind, NodeId, Timestamp, VolumeId};

/// A record that this program cannot have written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DamagedRecord(pub &'static str);

/// Reads a record from front to back.
pub(crate) struct RecordReader<'a> {
    rest: &'a [u8],
    what: &'static str,
}

impl<'a> RecordReader<'a> {
    /// Starts with the version byte, which must be `version`.
    pub fn new(
        bytes: &'a [u8],
        version: u8,
        what: &'static str,
    ) -> Result<RecordReader<'a>, DamagedRecord> {
        let mut reader = RecordReader { rest: bytes, what };
        if reader.read_u8()? != version { Err(DamagedRecord(what)) } else { Ok(reader) }
    }

    pub fn read_array<const N: usize>(&mut self) -> Result<[u8; N], DamagedRecord> {
        let (head, rest) = self.rest.split_first_chunk().ok_or(DamagedRecord(self.what))?;
        self.rest = rest;
        Ok(*head)
    }

    pub fn read_bytes(&mut self, len: usize) -> Result<&'a [u8], DamagedRecord> {
        let (head, rest) = self.rest.split_at_checked(len).ok_or(DamagedRecord(self.what))?;
        self.rest = rest;
        Ok(head)
    }

    pub fn read_u8(&mut self) -> Result<u8, DamagedRecord> {
        Ok(self.read_array::<1>()?[0])
    }

    pub fn read_u16(&mut self) -> Result<u16, DamagedRecord> {
        self.read_array().map(u16::from_le_bytes)
    }

    pub fn read_u32(&mut self) -> Result<u32, DamagedRecord> {
        self.read_array().map(u32::from_le_bytes)
    }

    pub fn read_u64(&mut self) -> Result<u64, DamagedRecord> {
        self.read_array().map(u64::from_le_bytes)
    }

    pub fn read_ino(&mut self) -> Result<Ino, DamagedRecord> {
        self.read_u64().map(Ino)
    }

    pub fn read_time(&mut self) -> Result<Timestamp, DamagedRecord> {
        let time = Timestamp { sec: self.read_u64()? as i64, nsec: self.read_u32()? };
        if time.is_valid() { Ok(time) } else { Err(DamagedRecord(self.what)) }
    }

    pub fn read_kind(&mut self) -> Result<InodeKind, DamagedRecord> {
        kind_from_byte(self.read_u8()?).ok_or(DamagedRecord(self.what))
    }

    /// Checks that the record ends here.
    pub fn expect_end(self) -> Result<(), DamagedRecord> {
        if self.rest.is_empty() { Ok(()) } else { Err(DamagedRecord(self.what)) }
    }

    /// Returns the rest of the record.
    pub fn remaining_bytes(self) -> &'a [u8] {
        self.rest
    }
}

/// Appends a point in time, 12 bytes.
pub(crate) fn put_time(out: &mut Vec<u8>, time: Timestamp) {
    out.extend_from_slice(&time.sec.to_le_bytes());
    out.extend_from_slice(&time.nsec.to_le_bytes());
}

const KINDS: [InodeKind; 7] = [
    InodeKind::File,
    InodeKind::Dir,
    InodeKind::Symlink,
    InodeKind::Fifo,
    InodeKind::Socket,
    InodeKind::CharDev,
    InodeKind::BlockDev,
];

/// Returns the number that stands for a kind on disk: its place in the list above, from 1.
pub(crate) fn kind_byte(kind: InodeKind) -> u8 {
    match kind {
        InodeKind::File => 1,
        InodeKind::Dir => 2,
        InodeKind::Symlink => 3,
        InodeKind::Fifo => 4,
        InodeKind::Socket => 5,
        InodeKind::CharDev => 6,
        InodeKind::BlockDev => 7,
    }
}

fn kind_from_byte(byte: u8) -> Option<InodeKind> {
    KINDS.get(usize::from(byte).checked_sub(1)?).copied()
}

/// The target of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EntryRecord {
    pub ino: Ino,
    pub kind: InodeKind,
}

const ENTRY_VERSION: u8 = 1;

impl EntryRecord {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(10);
        out.extend_from_slice(&[ENTRY_VERSION, kind_byte(self.kind)]);
        out.extend_from_slice(&self.ino.0.to_le_bytes());
        out
    }

    pub fn decode(bytes: &[u8]) -> Result<EntryRecord, DamagedRecord> {
        let mut r = RecordReader::new(bytes, ENTRY_VERSION, "entry")?;
        let entry = EntryRecord { kind: r.read_kind()?, ino: r.read_ino()? };
        r.expect_end()?;
        Ok(entry)
    }

    /// Returns whether it states that it leads to a directory.
    pub fn is_dir(&self) -> bool {
        self.kind == InodeKind::Dir
    }
}

/// The version of the whole set of records. A store with a higher one was written by a newer
/// program.
pub(crate) const FORMAT_VERSION: u32 = 1;
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
    Damaged(DamagedRecord),
}

impl From<DamagedRecord> for ShardError {
    fn from(e: DamagedRecord) -> ShardError {
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
        let mut r = RecordReader { rest: bytes, what: "shard record" };
        if r.read_array()? != SHARD_MAGIC {
            return Err(DamagedRecord("shard record").into());
        }
        match r.read_u32()? {
            FORMAT_VERSION => {}
            0 => return Err(DamagedRecord("shard record").into()),
            newer => return Err(ShardError::Newer(newer)),
        }
        let mut shard = Shard {
            volume: VolumeId(r.read_array()?),
            executor: ExecutorId::first_of_node(NodeId(r.read_u16()?)),
            seed: r.read_u64()?,
            reserved: r.read_u64()?,
            inodes: r.read_u64()?,
        };
        shard.executor.index = r.read_u8()?;
        r.expect_end()?;
        Ok(shard)
    }
}

const REPLY_VERSION: u8 = 1;
const REPLY_HEAD: usize = 9;

/// Encodes the last answer on a slot: a sequence number and the encoded reply.
pub(crate) fn encode_reply(
    seq: u64,
    reply: &tatami_wire::meta::MetaReply,
) -> Result<Vec<u8>, DamagedRecord> {
    let mut out = Vec::with_capacity(192);
    out.push(REPLY_VERSION);
    out.extend_from_slice(&seq.to_le_bytes());
    debug_assert_eq!(out.len(), REPLY_HEAD);
    postcard::to_extend(reply, out).map_err(|_| DamagedRecord("reply"))
}

/// Decodes the sequence number of a slot record, without the reply.
pub(crate) fn decode_reply_seq(bytes: &[u8]) -> Result<u64, DamagedRecord> {
    RecordReader::new(bytes, REPLY_VERSION, "reply")?.read_u64()
}

/// Decodes the whole slot record.
pub(crate) fn decode_reply(
    bytes: &[u8],
) -> Result<(u64, tatami_wire::meta::MetaReply), DamagedRecord> {
    let mut r = RecordReader::new(bytes, REPLY_VERSION, "reply")?;
    let seq = r.read_u64()?;
    let (reply, rest) =
        postcard::take_from_bytes(r.remaining_bytes()).map_err(|_| DamagedRecord("reply"))?;
    if rest.is_empty() { Ok((seq, reply)) } else { Err(DamagedRecord("reply")) }
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
        let entry = EntryRecord { ino: Ino(99), kind: InodeKind::Symlink };
        assert_eq!(EntryRecord::decode(&entry.encode()), Ok(entry));
        let shard = shard_record();
        assert_eq!(Shard::decode(&shard.encode()), Ok(shard));
        let reply = MetaReply::Removed { ino: Some(Ino(5)), last: true };
        let bytes = encode_reply(41, &reply).expect("encodes");
        assert_eq!(decode_reply_seq(&bytes), Ok(41));
        assert_eq!(decode_reply(&bytes), Ok((41, reply)));
    }

    /// The bytes of docs/reference/formats.md. If this fails, the format has changed: raise its
    /// version and keep reading the old one.
    #[test]
    fn the_format_is_the_one_written_down() {
        let entry = EntryRecord { ino: Ino(0x0102), kind: InodeKind::BlockDev };
        assert_eq!(entry.encode(), [1, 7, 2, 1, 0, 0, 0, 0, 0, 0]);
        let mut shard = b"TATAMI-M\x01\0\0\0".to_vec();
        shard.extend([3; 16]);
        shard.extend([2, 0, 77, 0, 0, 0, 0, 0, 0, 0]);
        shard.extend([0, 0, 16, 0, 0, 0, 0, 0, 12, 0, 0, 0, 0, 0, 0, 0]);
        shard.push(3);
        assert_eq!(shard_record().encode(), shard);
        let reply = encode_reply(5, &MetaReply::Removed { ino: Some(Ino(300)), last: true });
        // Variant 3, Some, 300 as a varint, true.
        assert_eq!(reply, Ok(vec![1, 5, 0, 0, 0, 0, 0, 0, 0, 3, 1, 0xac, 2, 1]));
    }

    #[test]
    fn a_newer_format_is_told_apart_from_damage() {
        let mut bytes = shard_record().encode();
        bytes[8] = 2;
        assert_eq!(Shard::decode(&bytes), Err(ShardError::Newer(2)));
        bytes[8] = 0;
        assert!(matches!(Shard::decode(&bytes), Err(ShardError::Damaged(_))));
        bytes[8] = 2;
        bytes[0] = b'X';
        assert!(matches!(Shard::decode(&bytes), Err(ShardError::Damaged(_))));
    }

    proptest! {
        #[test]
        fn any_bytes_decode_or_do_not(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = EntryRecord::decode(&bytes);
            let _ = Shard::decode(&bytes);
            let _ = decode_reply_seq(&bytes);
            let _ = decode_reply(&bytes);
        }

        #[test]
        fn mutated_records_decode_or_do_not(at in 0usize..64, to: u8, cut in 0usize..64) {
            let reply = MetaReply::Bytes(vec![1; 40].into());
            for mut bytes in [
                EntryRecord { ino: Ino(1), kind: InodeKind::Dir }.encode(),
                shard_record().encode(),
                encode_reply(3, &reply).expect("encodes"),
            ] {
                let n = bytes.len();
                bytes[at % n] = to;
                bytes.truncate(n.saturating_sub(cut % 8));
                let _ = EntryRecord::decode(&bytes);
                let _ = Shard::decode(&bytes);
                let _ = decode_reply(&bytes);
            }
        }
    }
}
