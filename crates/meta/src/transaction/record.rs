//! The records of transactions. `docs/reference/formats.md` draws them. Values are in postcard's
//! format, after a version byte.

use crate::record::DamagedRecord;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use tatami_wire::ExecutorId;
use tatami_wire::meta::Bytes;
use tatami_wire::transaction::{RecordItem, TransactionAge};

/// Version of the record that counts incarnations.
const VERSION: u8 = 1;
/// Version of the others. Version 1 had no incarnations, and no locks whose new values come with
/// the decision.
const TRANSACTION_VERSION: u8 = 2;

/// A participant's lock record: the locks and prepared writes of a transaction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LockRecord {
    pub age: TransactionAge,
    /// The incarnation of this executor that granted the first of its locks; 0 if the record does
    /// not have it.
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
        encode_as(TRANSACTION_VERSION, self)
    }

    pub fn decode(bytes: &[u8]) -> Result<LockRecord, DamagedRecord> {
        // Records of version 1 may lie in a store that was not opened since the upgrade.
        if bytes.first() != Some(&VERSION) {
            return decode_as(TRANSACTION_VERSION, bytes);
        }
        let (age, reads, writes) = decode_value(bytes)?;
        Ok(LockRecord { age, incarnation: 0, reads, intents: Vec::new(), writes })
    }
}

impl DecisionRecord {
    pub fn encode(&self) -> Result<Vec<u8>, DamagedRecord> {
        encode_as(TRANSACTION_VERSION, self)
    }

    pub fn decode(bytes: &[u8]) -> Result<DecisionRecord, DamagedRecord> {
        if bytes.first() != Some(&VERSION) {
            return decode_as(TRANSACTION_VERSION, bytes);
        }
        let participants: BTreeSet<ExecutorId> = decode_value(bytes)?;
        let participants = participants
            .into_iter()
            .map(|executor| (executor, ParticipantWrites::default()))
            .collect();
        Ok(DecisionRecord { participants })
    }
}

pub(crate) fn encode_value<T: Serialize>(value: &T) -> Result<Vec<u8>, DamagedRecord> {
    encode_as(VERSION, value)
}

pub(crate) fn decode_value<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, DamagedRecord> {
    decode_as(VERSION, bytes)
}

fn encode_as<T: Serialize>(version: u8, value: &T) -> Result<Vec<u8>, DamagedRecord> {
    postcard::to_extend(value, vec![version]).map_err(|_| DamagedRecord("transaction"))
}

fn decode_as<T: DeserializeOwned>(expected: u8, bytes: &[u8]) -> Result<T, DamagedRecord> {
    let bad = DamagedRecord("transaction");
    let (&version, rest) = bytes.split_first().ok_or(bad.clone())?;
    let (value, rest) = postcard::take_from_bytes(rest).map_err(|_| bad.clone())?;
    if version == expected && rest.is_empty() { Ok(value) } else { Err(bad) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tatami_wire::transaction::Txid;
    use tatami_wire::{NodeId, Timestamp};

    #[test]
    fn records_of_version_1_are_read() {
        let first =
            Txid { executor: ExecutorId { node: NodeId(3), index: 1 }, incarnation: 2, number: 9 };
        let age = TransactionAge { since: Timestamp::from_sec(7), first_attempt: first };
        let reads = vec![Bytes::from(vec![1])];
        let writes = vec![RecordItem { key: Bytes::from(vec![2]), value: None }];
        let old = encode_value(&(age, reads.clone(), writes.clone())).expect("encodes");
        let prepared = LockRecord { age, incarnation: 0, reads, intents: Vec::new(), writes };
        assert_eq!(LockRecord::decode(&old), Ok(prepared.clone()));
        let new = prepared.encode().expect("encodes");
        assert_eq!(LockRecord::decode(&new), Ok(prepared));
        let old = encode_value(&BTreeSet::from([NodeId(1)])).expect("encodes");
        let one = ExecutorId::first_of_node(NodeId(1));
        let committed =
            DecisionRecord { participants: [(one, ParticipantWrites::default())].into() };
        assert_eq!(DecisionRecord::decode(&old), Ok(committed.clone()));
        assert_eq!(DecisionRecord::decode(&committed.encode().expect("encodes")), Ok(committed));
        assert!(DecisionRecord::decode(&[9, 0]).is_err());
    }
}
