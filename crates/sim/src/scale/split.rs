//! One split of a directory over two servers, to measure the cost of moving an entry.

use super::clients::operation;
use super::costs::Kind;
use super::server::clock;
use super::store::Thin;
use std::collections::VecDeque;
use tatami_meta::{Config, Context, Meta, Out};
use tatami_wire::transaction::PeerMessage;
use tatami_wire::{ClientId, Cred, ExecutorId, Ino, NodeId, ShardMap, VolumeId, VolumeKey};

/// Number of entries with which a directory splits.
const ENTRIES: u64 = 1025;
/// Most messages between two servers that one split takes.
const MESSAGES_MAX: usize = 1000;

/// Two servers; the first is about to split a directory.
pub struct Split {
    servers: Vec<Meta<Thin>>,
}

impl Split {
    /// Fills the directory.
    ///
    /// # Errors
    /// A server that does not start.
    pub fn prepare() -> Result<Split, String> {
        let executors = [0, 1].map(|node| ExecutorId::first(NodeId(node)));
        let map = ShardMap::even(1, 4096, &executors).ok_or("there is no such map")?;
        let start = |executor| {
            let (volume, key) = (VolumeId([1; 16]), VolumeKey::new([1; 32]));
            let config = Config { executor, map: map.clone(), volume, key };
            Meta::open(Thin::default(), config, clock(0)).map_err(|e| e.to_string())
        };
        let mut servers = executors.into_iter().map(start).collect::<Result<Vec<_>, _>>()?;
        for number in 0..ENTRIES {
            let (client, slot) = (ClientId([1; 16]), 0);
            let context = Context { now: clock(0), client, slot, seq: number + 1, trusted: true };
            let op = operation(Kind::Create, Ino::ROOT, 0, number);
            servers[0].apply(&context, &Cred::ROOT, &op).at_once().map_err(|e| e.to_string())?;
            servers[0].commit().map_err(|e| e.to_string())?;
        }
        Ok(Split { servers })
    }

    /// Splits the directory. Returns the number of records that the other server had to write.
    ///
    /// # Errors
    /// The directory does not split.
    pub fn run(mut self) -> Result<u64, String> {
        let mut records = 0;
        // The split is due half a second later.
        let now = clock(500_000_000);
        self.servers[0].tick(now);
        let mut messages: VecDeque<(usize, Out)> = VecDeque::new();
        let mut at = 0;
        for _ in 0..MESSAGES_MAX {
            let server = &mut self.servers[at];
            server.commit().map_err(|e| e.to_string())?;
            messages.extend(server.outbox().into_iter().map(|out| (at, out)));
            let Some((from, Out { to, message, .. })) = messages.pop_front() else { break };
            if let PeerMessage::Prepare { writes, .. } = &message {
                records += writes.len() as u64;
            }
            at = usize::from(to.node.0);
            self.servers[at].receive(now, ExecutorId::first(NodeId(from as u16)), message);
        }
        match records {
            0 => Err("the directory did not split".into()),
            records => Ok(records),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn about_half_of_the_entries_move() {
        let records = Split::prepare().and_then(Split::run).expect("it splits");
        assert!((ENTRIES / 4..ENTRIES * 3 / 4).contains(&records), "{records}");
    }
}
