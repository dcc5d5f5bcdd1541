//! Files that clients have open without writing.
//!
//! In memory only: who has a file open tells so again when the daemon is another one, before that serves
//! anybody, and takes the list along when shards move. (Those that write are noted lastingly, see `attr::grant`: what they
//! leave when they die must be looked at.)

use crate::transaction::locks::Block;
use std::collections::BTreeSet;
use tatami_wire::{ClientId, Ino, ShardId};

/// Most that is noted, 24 bytes each. What is opened beyond does not stay when its last name goes.
const OPENS_MAX: usize = 1 << 20;

/// See the module.
#[derive(Default)]
pub(crate) struct Opens(BTreeSet<(Ino, ClientId)>);

impl Opens {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// `client` has it open.
    pub fn add(&mut self, ino: Ino, client: ClientId) {
        if self.0.len() < OPENS_MAX {
            self.0.insert((ino, client));
        }
    }

    /// `client` has it open no longer.
    pub fn remove(&mut self, ino: Ino, client: ClientId) {
        self.0.remove(&(ino, client));
    }

    /// `client` is gone.
    pub fn forget(&mut self, client: ClientId) {
        self.0.retain(|(_, other)| *other != client);
    }

    /// Whether `client` has it open.
    pub fn has(&self, ino: Ino, client: ClientId) -> bool {
        self.0.contains(&(ino, client))
    }

    /// Who has it open.
    pub fn of(&self, ino: Ino) -> impl Iterator<Item = ClientId> {
        let all = (ino, ClientId([0; 16]))..=(ino, ClientId([0xff; 16]));
        self.0.range(all).map(|(_, client)| *client)
    }

    /// Who has anything open.
    pub fn clients(&self) -> BTreeSet<ClientId> {
        self.0.iter().map(|(_, client)| *client).collect()
    }

    /// Files of these shards, from the first after `after` on, at most `limit`.
    pub fn of_block(
        &self,
        block: Block,
        after: Option<(Ino, ClientId)>,
        limit: usize,
    ) -> Vec<(Ino, ClientId)> {
        use std::ops::Bound::{Excluded, Included, Unbounded};
        let first = Included((Ino::first_of(ShardId(block.first)), ClientId([0; 16])));
        let from = after.map_or(first, Excluded);
        let ours = |(ino, _): &&(Ino, ClientId)| block.has(ino.shard());
        self.0.range((from, Unbounded)).take_while(ours).take(limit).copied().collect()
    }

    /// Files of these shards are the matter of another executor.
    pub fn forget_block(&mut self, block: Block) {
        self.0.retain(|(ino, _)| !block.has(ino.shard()));
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
        let mut opens = Opens::default();
        for (shard, counter, client) in [(3, 1, A), (3, 1, B), (3, 2, A), (4, 1, B), (5, 9, A)] {
            opens.add(ino(shard, counter), client);
        }
        assert_eq!(opens.of(ino(3, 1)).collect::<Vec<_>>(), [A, B]);
        assert_eq!(opens.of(ino(3, 3)).count(), 0);
        opens.remove(ino(3, 1), A);
        assert!(!opens.has(ino(3, 1), A) && opens.has(ino(3, 1), B));
        assert_eq!(opens.clients(), BTreeSet::from([A, B]));
        opens.forget(A);
        assert_eq!(opens.clients(), BTreeSet::from([B]));
    }

    #[test]
    fn files_of_shards_are_found_in_portions() {
        let mut opens = Opens::default();
        for shard in 2..7 {
            for counter in 1..4 {
                opens.add(ino(shard, counter), A);
                opens.add(ino(shard, counter), B);
            }
        }
        let block = Block { first: 3, count: 2 };
        let (mut all, mut after) = (Vec::new(), None);
        loop {
            let some = opens.of_block(block, after, 5);
            let Some(last) = some.last() else { break };
            after = Some(*last);
            all.extend(some);
        }
        assert_eq!(all.len(), 2 * 3 * 2);
        assert!(all.iter().all(|(ino, _)| block.has(ino.shard())));
        opens.forget_block(block);
        assert_eq!(opens.of_block(block, None, 1), []);
        assert_eq!(opens.0.len(), 3 * 3 * 2);
    }
}
