//! Files that clients have open without writing.
//!
//! In memory only: a client reports its open files again to a new daemon, before that serves any
//! client, and the list moves along with shards. (Writers are recorded durably, see
//! `attr::sign_capability`: the objects of a dead writer must be checked.)

use crate::transaction::locks::ShardBlock;
use std::collections::BTreeSet;
use tatami_wire::{ClientId, Ino, ShardId};

/// Most records, 24 bytes each. Files opened beyond that are not kept when their last name goes.
const OPENS_MAX: usize = 1 << 20;

/// The open files; see the module.
#[derive(Default)]
pub(crate) struct ClientOpens(BTreeSet<(Ino, ClientId)>);

impl ClientOpens {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Records that `client` has it open.
    pub fn record_open(&mut self, ino: Ino, client: ClientId) {
        if self.0.len() < OPENS_MAX {
            self.0.insert((ino, client));
        }
    }

    /// Records that `client` has it open no longer.
    pub fn record_close(&mut self, ino: Ino, client: ClientId) {
        self.0.remove(&(ino, client));
    }

    /// Removes all records of `client`.
    pub fn forget_client(&mut self, client: ClientId) {
        self.0.retain(|(_, other)| *other != client);
    }

    /// Returns whether `client` has it open.
    pub fn is_open_by(&self, ino: Ino, client: ClientId) -> bool {
        self.0.contains(&(ino, client))
    }

    /// Returns the clients that have it open.
    pub fn clients_of(&self, ino: Ino) -> impl Iterator<Item = ClientId> {
        let all = (ino, ClientId([0; 16]))..=(ino, ClientId([0xff; 16]));
        self.0.range(all).map(|(_, client)| *client)
    }

    /// Returns the clients that have any file open.
    pub fn all_clients(&self) -> BTreeSet<ClientId> {
        self.0.iter().map(|(_, client)| *client).collect()
    }

    /// Returns files of these shards, from the first after `after` on, at most `limit`.
    pub fn files_in_block(
        &self,
        block: ShardBlock,
        after: Option<(Ino, ClientId)>,
        limit: usize,
    ) -> Vec<(Ino, ClientId)> {
        use std::ops::Bound::{Excluded, Included, Unbounded};
        let first = Included((Ino::first_in_shard(ShardId(block.first)), ClientId([0; 16])));
        let from = after.map_or(first, Excluded);
        let ours = |(ino, _): &&(Ino, ClientId)| block.contains_shard(ino.owner_shard());
        self.0.range((from, Unbounded)).take_while(ours).take(limit).copied().collect()
    }

    /// Removes the files of these shards, which another executor serves now.
    pub fn forget_block(&mut self, block: ShardBlock) {
        self.0.retain(|(ino, _)| !block.contains_shard(ino.owner_shard()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ClientId = ClientId([1; 16]);
    const B: ClientId = ClientId([0xff; 16]);

    fn ino(shard: u16, counter: u64) -> Ino {
        Ino::new(ShardId(shard), ShardId(shard), counter)
    }

    #[test]
    fn it_is_known_who_has_what_open() {
        let mut opens = ClientOpens::default();
        for (shard, counter, client) in [(3, 1, A), (3, 1, B), (3, 2, A), (4, 1, B), (5, 9, A)] {
            opens.record_open(ino(shard, counter), client);
        }
        assert_eq!(opens.clients_of(ino(3, 1)).collect::<Vec<_>>(), [A, B]);
        assert_eq!(opens.clients_of(ino(3, 3)).count(), 0);
        opens.record_close(ino(3, 1), A);
        assert!(!opens.is_open_by(ino(3, 1), A) && opens.is_open_by(ino(3, 1), B));
        assert_eq!(opens.all_clients(), BTreeSet::from([A, B]));
        opens.forget_client(A);
        assert_eq!(opens.all_clients(), BTreeSet::from([B]));
    }

    #[test]
    fn files_of_shards_are_found_in_portions() {
        let mut opens = ClientOpens::default();
        for shard in 2..7 {
            for counter in 1..4 {
                opens.record_open(ino(shard, counter), A);
                opens.record_open(ino(shard, counter), B);
            }
        }
        let block = ShardBlock { first: 3, count: 2 };
        let (mut all, mut after) = (Vec::new(), None);
        loop {
            let some = opens.files_in_block(block, after, 5);
            let Some(last) = some.last() else { break };
            after = Some(*last);
            all.extend(some);
        }
        assert_eq!(all.len(), 2 * 3 * 2);
        assert!(all.iter().all(|(ino, _)| block.contains_shard(ino.owner_shard())));
        opens.forget_block(block);
        assert_eq!(opens.files_in_block(block, None, 1), []);
        assert_eq!(opens.0.len(), 3 * 3 * 2);
    }
}
