//! One split of a directory over two servers, to measure the cost of moving an entry.

use super::clients::build_request;
use super::costs::OperationKind;
use super::server::server_clock;
use super::store::HashStore;
use std::collections::VecDeque;
use tatami_meta::{Meta, MetaConfig, OperationContext, OutgoingMessage};
use tatami_wire::transaction::PeerMessage;
use tatami_wire::{ClientId, Cred, ExecutorId, Ino, NodeId, ShardMap, VolumeId, VolumeKey};

/// Number of entries with which a directory of two clients splits.
const ENTRIES: u64 = 1026;
/// Most messages between two servers that one split takes.
const MESSAGES_MAX: usize = 1000;

/// Two servers; the first is about to split a directory.
pub struct DirectorySplit {
    servers: Vec<Meta<HashStore>>,
}

impl DirectorySplit {
    /// Fills the directory.
    ///
    /// # Errors
    /// A server that does not start.
    pub fn prepare() -> Result<DirectorySplit, String> {
        let executors = [0, 1].map(|node| ExecutorId::first_of_node(NodeId(node)));
        let map = ShardMap::with_even_blocks(1, 4096, &executors).ok_or("there is no such map")?;
        let start = |executor| {
            let (volume, key) = (VolumeId([1; 16]), VolumeKey::new([1; 32]));
            let config = MetaConfig { executor, map: map.clone(), volume, key };
            Meta::open(HashStore::default(), config, server_clock(0)).map_err(|e| e.to_string())
        };
        let mut servers = executors.into_iter().map(start).collect::<Result<Vec<_>, _>>()?;
        for number in 0..ENTRIES {
            // The last file is made by another client.
            let client = ClientId([1 + u8::from(number + 1 == ENTRIES); 16]);
            let slot = 0;
            let context = OperationContext {
                now: server_clock(0),
                client,
                slot,
                seq: number + 1,
                trusted: true,
            };
            let op = build_request(OperationKind::Create, Ino::ROOT, 0, number);
            servers[0]
                .apply(&context, &Cred::ROOT, &op)
                .into_result()
                .map_err(|e| e.to_string())?;
            servers[0].commit().map_err(|e| e.to_string())?;
        }
        Ok(DirectorySplit { servers })
    }

    /// Splits the directory. Returns the number of records that the other server had to write.
    ///
    /// # Errors
    /// The directory does not split.
    pub fn run_split(mut self) -> Result<u64, String> {
        let mut records = 0;
        // The split is due half a second later.
        let now = server_clock(500_000_000);
        self.servers[0].tick(now);
        let mut messages: VecDeque<(usize, OutgoingMessage)> = VecDeque::new();
        let mut at = 0;
        for _ in 0..MESSAGES_MAX {
            let server = &mut self.servers[at];
            server.commit().map_err(|e| e.to_string())?;
            messages.extend(server.take_outbox().into_iter().map(|out| (at, out)));
            let Some((from, OutgoingMessage { to, message, .. })) = messages.pop_front() else {
                break;
            };
            if let PeerMessage::Prepare { writes, .. } = &message {
                records += writes.len() as u64;
            }
            at = usize::from(to.node.0);
            self.servers[at].receive_message(
                now,
                ExecutorId::first_of_node(NodeId(from as u16)),
                message,
            );
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
        let records =
            DirectorySplit::prepare().and_then(DirectorySplit::run_split).expect("it splits");
        assert!((ENTRIES / 4..ENTRIES * 3 / 4).contains(&records), "{records}");
    }
}
