//! The records of transactions. `docs/reference/formats.md` draws them. Values are in postcard's
//! format, after a version byte.

use crate::record::DamagedRecord;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use tatami_wire::ExecutorId;
use tatami_wire::meta::Bytes;
use tatami_wire::transaction::{RecordItem, TransactionAge};

const VERSION: u8 = 1;

/// A participant's lock record: the locks and prepared writes of a transaction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LockRecord {
    pub age: TransactionAge,
    /// The incarnation of this executor that granted the first of its locks; 0 for the lock of a
    /// split, which is never stored.
    pub incarnation: u64,
    /// Keys that are only read.
    pub reads: Vec<Bytes>,
    /// Keys that the coordinator may have written: the values come with its decision.
    pub intents: Vec<Bytes>,
    pub writes: Vec<RecordItem<Bytes>>,
}

/// The part of one participant in a committed transaction.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ParticipantWrites {
    /// The incarnation that granted the locks of its writes.
    pub incarnation: u64,
    /// The writes besides the prepared ones.
    pub writes: Vec<RecordItem<Bytes>>,
}

/// A coordinator's decision: the participants that have not acknowledged it yet, and their writes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DecisionRecord {
    pub participants: BTreeMap<ExecutorId, ParticipantWrites>,
}

impl LockRecord {
    pub fn encode(&self) -> Result<Vec<u8>, DamagedRecord> {
        let bytes = encode_value(self)?;
        debug_assert_eq!(
            LockRecord::decode(&bytes).as_ref(),
            Ok(self),
            "a record reads otherwise than it was written"
        );
        Ok(bytes)
    }

    pub fn decode(bytes: &[u8]) -> Result<LockRecord, DamagedRecord> {
        decode_value(bytes)
    }
}

impl DecisionRecord {
    pub fn encode(&self) -> Result<Vec<u8>, DamagedRecord> {
        assert!(!self.participants.is_empty(), "a decision has no participants");
        let bytes = encode_value(self)?;
        debug_assert_eq!(
            DecisionRecord::decode(&bytes).as_ref(),
            Ok(self),
            "a record reads otherwise than it was written"
        );
        Ok(bytes)
    }

    pub fn decode(bytes: &[u8]) -> Result<DecisionRecord, DamagedRecord> {
        decode_value(bytes)
    }
}

pub(crate) fn encode_value<T: Serialize>(value: &T) -> Result<Vec<u8>, DamagedRecord> {
    postcard::to_extend(value, vec![VERSION]).map_err(|_| DamagedRecord("transaction"))
}

pub(crate) fn decode_value<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, DamagedRecord> {
    let bad = DamagedRecord("transaction");
    let (&version, rest) = bytes.split_first().ok_or(bad.clone())?;
    let (value, rest) = postcard::take_from_bytes(rest).map_err(|_| bad.clone())?;
    if version == VERSION && rest.is_empty() { Ok(value) } else { Err(bad) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tatami_wire::transaction::Txid;
    use tatami_wire::{NodeId, Timestamp};

    /// The bytes of docs/reference/formats.md. If this fails, the format has changed: raise its
    /// version and keep reading the old one.
    #[test]
    fn the_format_is_the_one_written_down() {
        let first =
            Txid { executor: ExecutorId { node: NodeId(3), index: 1 }, incarnation: 2, number: 9 };
        let age = TransactionAge { since: Timestamp::from_sec(7), first_attempt: first };
        let reads = vec![Bytes::from(vec![1])];
        let intents = vec![Bytes::from(vec![3])];
        let writes = vec![RecordItem { key: Bytes::from(vec![2]), value: None }];
        let part = ParticipantWrites { incarnation: 5, writes: writes.clone() };
        let prepared = LockRecord { age, incarnation: 4, reads, intents, writes };
        let bytes = prepared.encode().expect("encodes");
        // The age: 7 s as a signed varint, no nanoseconds, executor 3 + 1 × 65,536, incarnation and
        // number. Then the incarnation and the three lists.
        let age = [14, 0, 0x83, 0x80, 4, 2, 9];
        assert_eq!(bytes, [&[1], &age[..], &[4, 1, 1, 1, 1, 1, 3, 1, 1, 2, 0]].concat());
        assert_eq!(LockRecord::decode(&bytes), Ok(prepared));
        let one = ExecutorId::first_of_node(NodeId(1));
        let committed = DecisionRecord { participants: [(one, part)].into() };
        let bytes = committed.encode().expect("encodes");
        assert_eq!(bytes, [1, 1, 1, 5, 1, 1, 2, 0]);
        assert_eq!(DecisionRecord::decode(&bytes), Ok(committed));
        for other in [0, 2] {
            assert!(DecisionRecord::decode(&[other, 0]).is_err(), "version {other}");
        }
    }
}
