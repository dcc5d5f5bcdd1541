//! Records of the namespace: a store is opened whose records are damaged or invented, and then
//! examined.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tatami_meta::{MemoryStore, Meta, MetaConfig, OperationContext, Store};
use tatami_wire::meta::MetaOp;
use tatami_wire::{
    ClientId, Cred, ExecutorId, Ino, NodeId, ShardMap, Timestamp, VolumeId, VolumeKey,
};

const HERE: ExecutorId = ExecutorId { node: NodeId(0), index: 0 };
const NOW: Timestamp = Timestamp { sec: 9, nsec: 0 };

fn open_store(store: MemoryStore) -> Option<Meta<MemoryStore>> {
    let config = MetaConfig {
        executor: HERE,
        map: ShardMap::with_one_shard(HERE),
        volume: VolumeId([1; 16]),
        key: VolumeKey::new([1; 32]),
    };
    Meta::open(store, config, NOW).ok()
}

/// Splits the input into pairs of key and value: a byte for each length goes before them.
fn read_pairs(mut bytes: &[u8]) -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
    let mut pairs = std::collections::BTreeMap::new();
    while let [key_len, value_len, rest @ ..] = bytes {
        let Some((key, rest)) = rest.split_at_checked(usize::from(*key_len)) else { break };
        let Some((value, rest)) = rest.split_at_checked(usize::from(*value_len)) else { break };
        pairs.insert(key.to_vec(), Some(value.to_vec()));
        bytes = rest;
    }
    pairs.into_iter().collect()
}

fuzz_target!(|bytes: &[u8]| {
    let mut store = MemoryStore::new();
    if store.commit(&read_pairs(bytes)).is_err() {
        return;
    }
    let Some(mut meta) = open_store(store) else { return };
    let operations = [
        MetaOp::GetAttr { ino: Ino::ROOT },
        MetaOp::ReadDir { dir: Ino::ROOT, after: 0, limit: 100, plus: true },
        MetaOp::ListClients,
        MetaOp::ListGarbage { node: NodeId(0), limit: 100 },
        MetaOp::ListPendingRecovery { limit: 100 },
        MetaOp::ScanInodes { after: Ino(0), limit: 100 },
        MetaOp::Check { after: Ino(0), limit: 100, repair: false },
        MetaOp::Check { after: Ino(0), limit: 100, repair: true },
        MetaOp::ExpireClient { client: ClientId([1; 16]) },
    ];
    for (seq, op) in operations.iter().enumerate() {
        let client = ClientId([1; 16]);
        let ctx =
            OperationContext { now: NOW, client, slot: 0, seq: seq as u64 + 1, trusted: true };
        let _ = meta.apply(&ctx, &Cred::ROOT, op);
        let _ = meta.commit();
    }
});
