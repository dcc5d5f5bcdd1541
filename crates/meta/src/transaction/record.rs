//! The records of transactions. `docs/FORMAT.md` draws them. Values are in postcard's format, after a
//! version byte.

use crate::record::Damaged;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use tatami_wire::NodeId;
use tatami_wire::meta::Bytes;
use tatami_wire::transaction::{Age, Item};

const VERSION: u8 = 1;

/// What a participant has locked for a transaction, and is to write.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Prepared {
    pub age: Age,
    /// Keys that are seen only.
    pub reads: Vec<Bytes>,
    pub writes: Vec<Item<Bytes>>,
}

/// What a coordinator has decided: who has not written it yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Committed {
    pub participants: BTreeSet<NodeId>,
}

pub(crate) fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>, Damaged> {
    postcard::to_extend(value, vec![VERSION]).map_err(|_| Damaged("transaction"))
}

pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Damaged> {
    let bad = Damaged("transaction");
    let (&version, rest) = bytes.split_first().ok_or(bad.clone())?;
    let (value, rest) = postcard::take_from_bytes(rest).map_err(|_| bad.clone())?;
    if version == VERSION && rest.is_empty() { Ok(value) } else { Err(bad) }
}
