//! The records of transactions. `docs/FORMAT.md` draws them. Values are in postcard's format, after
//! a version byte.

use crate::record::Damaged;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use tatami_wire::ExecutorId;
use tatami_wire::meta::Bytes;
use tatami_wire::transaction::{Age, Item};

/// Version of the record that counts incarnations.
const VERSION: u8 = 1;
/// Version of the others. Version 1 had no incarnations, and no locks whose new values come with
/// the decision.
const TRANSACTION_VERSION: u8 = 2;

/// A participant's lock record: the locks and prepared writes of a transaction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Prepared {
    pub age: Age,
    /// The incarnation of this executor that granted the first of its locks; 0 if the record does
    /// not have it.
    pub life: u64,
    /// Keys that are only read.
    pub reads: Vec<Bytes>,
    /// Keys that the coordinator may have written: the values come with its decision.
    pub intents: Vec<Bytes>,
    pub writes: Vec<Item<Bytes>>,
}

/// The part of one participant in a committed transaction.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Part {
    /// The incarnation that granted the locks of its writes.
    pub life: u64,
    /// The writes besides the prepared ones.
    pub writes: Vec<Item<Bytes>>,
}

/// A coordinator's decision: the participants that have not acknowledged it yet, and their writes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Committed {
    pub participants: BTreeMap<ExecutorId, Part>,
}

impl Prepared {
    pub fn encode(&self) -> Result<Vec<u8>, Damaged> {
        encode_as(TRANSACTION_VERSION, self)
    }

    pub fn decode(bytes: &[u8]) -> Result<Prepared, Damaged> {
        // Records of version 1 may lie in a store that was not opened since the upgrade.
        if bytes.first() != Some(&VERSION) {
            return decode_as(TRANSACTION_VERSION, bytes);
        }
        let (age, reads, writes) = decode(bytes)?;
        Ok(Prepared { age, life: 0, reads, intents: Vec::new(), writes })
    }
}

impl Committed {
    pub fn encode(&self) -> Result<Vec<u8>, Damaged> {
        encode_as(TRANSACTION_VERSION, self)
    }

    pub fn decode(bytes: &[u8]) -> Result<Committed, Damaged> {
        if bytes.first() != Some(&VERSION) {
            return decode_as(TRANSACTION_VERSION, bytes);
        }
        let participants: BTreeSet<ExecutorId> = decode(bytes)?;
        let participants =
            participants.into_iter().map(|executor| (executor, Part::default())).collect();
        Ok(Committed { participants })
    }
}

pub(crate) fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>, Damaged> {
    encode_as(VERSION, value)
}

pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Damaged> {
    decode_as(VERSION, bytes)
}

fn encode_as<T: Serialize>(version: u8, value: &T) -> Result<Vec<u8>, Damaged> {
    postcard::to_extend(value, vec![version]).map_err(|_| Damaged("transaction"))
}

fn decode_as<T: DeserializeOwned>(expected: u8, bytes: &[u8]) -> Result<T, Damaged> {
    let bad = Damaged("transaction");
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
        let first = Txid { executor: ExecutorId { node: NodeId(3), index: 1 }, life: 2, number: 9 };
        let age = Age { since: Timestamp::from_sec(7), first };
        let reads = vec![Bytes::from(vec![1])];
        let writes = vec![Item { key: Bytes::from(vec![2]), value: None }];
        let old = encode(&(age, reads.clone(), writes.clone())).expect("encodes");
        let prepared = Prepared { age, life: 0, reads, intents: Vec::new(), writes };
        assert_eq!(Prepared::decode(&old), Ok(prepared.clone()));
        let new = prepared.encode().expect("encodes");
        assert_eq!(Prepared::decode(&new), Ok(prepared));
        let old = encode(&BTreeSet::from([NodeId(1)])).expect("encodes");
        let one = ExecutorId::first(NodeId(1));
        let committed = Committed { participants: [(one, Part::default())].into() };
        assert_eq!(Committed::decode(&old), Ok(committed.clone()));
        assert_eq!(Committed::decode(&committed.encode().expect("encodes")), Ok(committed));
        assert!(Committed::decode(&[9, 0]).is_err());
    }
}
