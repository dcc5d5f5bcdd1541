//! Several nodes that die at any moment, with a network between them that delays, loses, repeats
//! and reorders: from one seed, in one thread.

use std::collections::{BTreeMap, BTreeSet};
use tatami_meta::{
    Applied, FaultyStore, Meta, MetaConfig, MoveEvent, MoveRequest, OperationContext, SplitLimits,
    Ticket,
};
use tatami_wire::admin::ClusterMap;
use tatami_wire::frame::{self, FrameClass};
use tatami_wire::meta::{DirEntry, MetaOp, MetaReply, MetaResult};
use tatami_wire::partition::name_seed;
use tatami_wire::partition_map::PartitionMaps;
use tatami_wire::transaction::PeerMessage;
use tatami_wire::{
    ClientId, Cred, Errno, ExecutorId, Ino, Layout, NodeId, ShardId, ShardMap, Timestamp, VolumeId,
    VolumeKey,
};

pub use crate::words::{name, scaled};

pub const ROOT: Ino = Ino::ROOT;
pub const LAYOUT: Layout = Layout::whole(NodeId(1));

/// Returns the configuration of a node that has all shards.
pub fn config() -> MetaConfig {
    let (executor, volume) = (executor(0), VolumeId([7; 16]));
    MetaConfig {
        executor,
        map: ShardMap::with_one_shard(executor),
        volume,
        key: VolumeKey::new([9; 32]),
    }
}

/// Returns the executor at index `at` of the cluster: each node has two executors.
pub fn executor(at: usize) -> ExecutorId {
    ExecutorId { node: NodeId(at as u16 / 2), index: at as u8 % 2 }
}

/// Returns the index of an executor.
pub fn number_of(executor: ExecutorId) -> usize {
    usize::from(executor.node.0) * 2 + usize::from(executor.index)
}

/// Returns the seed of the name hashes.
pub fn seed() -> u64 {
    name_seed(config().volume)
}

/// Random numbers from a seed (xorshift64*).
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Rng {
        Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % n.max(1)
    }

    pub fn percent(&mut self, n: u64) -> bool {
        self.below(100) < n
    }
}

/// The rates of faults, in percent of messages, and of rounds of a node.
#[derive(Clone, Copy, Default)]
pub struct Faults {
    pub lost: u64,
    pub twice: u64,
    pub deaths: u64,
    /// Moves of shards that are started, in a thousand ms.
    pub moves: u64,
}

struct Letter {
    at: u64,
    from: ExecutorId,
    to: ExecutorId,
    message: PeerMessage,
}

enum Life {
    Up(Box<Meta<FaultyStore>>),
    Down(FaultyStore, u64),
}

/// A client with one operation in progress.
struct Asked {
    op: MetaOp,
    /// The operation as it was sent to a partition, until that has answered.
    sent: Option<MetaOp>,
    /// The client has dropped its partition map for it.
    forgotten: bool,
    /// Entries of a listing that comes in several parts, and the directory above.
    listed: Vec<DirEntry>,
    above: Option<Ino>,
    cred: Cred,
    seq: u64,
    now: Timestamp,
    waits: Option<(ExecutorId, Ticket)>,
    ask_at: u64,
    since: u64,
}

/// A simulated cluster; see the module.
pub struct Cluster {
    /// As of the last quiet moment.
    pub map: ShardMap,
    /// As of the start: restarted nodes know nothing newer, except from their stores.
    first: ShardMap,
    /// The shard maps of the clients.
    maps: BTreeMap<u8, ClusterMap>,
    /// Moves that have happened.
    pub moved: u32,
    lives: Vec<Option<Life>>,
    letters: Vec<Letter>,
    pub rng: Rng,
    pub faults: Faults,
    /// Milliseconds.
    pub now: u64,
    asked: BTreeMap<u8, Asked>,
    answers: BTreeMap<u8, MetaResult>,
    seq: u64,
    /// The longest time that an operation took, in ms.
    pub longest: u64,
    /// The partition maps of the clients.
    known: BTreeMap<u8, PartitionMaps>,
    /// Partitions with more entries are split.
    split_limits: Option<SplitLimits>,
    /// Number of requests to a wrong node or partition.
    pub corrected: u32,
    /// Messages between nodes.
    pub messages: u32,
    /// Bytes of the longest of them.
    pub largest: usize,
    /// Number of message groups: messages of one moment to one node go together.
    pub parcels: u32,
    /// Files that each client has open for reading, which it reports to restarted nodes.
    pub opens: BTreeMap<u8, BTreeSet<Ino>>,
    /// A node has died, and lost them.
    died: bool,
    /// Nodes sync once a second, and acknowledge durable parts only.
    sync: bool,
    /// The executor that has answered each client last.
    pub answered_by: BTreeMap<u8, ExecutorId>,
}

const COMES_BACK: u64 = 120;

impl Cluster {
    pub fn new(nodes: u16, shards: usize, seed: u64) -> Cluster {
        Cluster::with_shards_on(nodes, nodes, shards, seed)
    }

    /// As [`Cluster::new`], with all shards on the first few nodes.
    pub fn with_shards_on(serving: u16, nodes: u16, shards: usize, seed: u64) -> Cluster {
        let ids: Vec<_> = (0..usize::from(serving)).map(executor).collect();
        let map = ShardMap::with_even_blocks(1, shards, &ids).expect("a power of two");
        let mut cluster = Cluster {
            first: map.clone(),
            map,
            maps: BTreeMap::new(),
            moved: 0,
            lives: (0..nodes).map(|_| Some(Life::Down(FaultyStore::new(), 0))).collect(),
            letters: Vec::new(),
            rng: Rng::new(seed),
            faults: Faults::default(),
            now: 1_000_000,
            asked: BTreeMap::new(),
            answers: BTreeMap::new(),
            seq: 0,
            longest: 0,
            known: BTreeMap::new(),
            split_limits: None,
            corrected: 0,
            messages: 0,
            largest: 0,
            parcels: 0,
            opens: BTreeMap::new(),
            died: false,
            sync: false,
            answered_by: BTreeMap::new(),
        };
        (0..usize::from(nodes)).for_each(|node| cluster.up(node));
        cluster
    }

    pub fn time(&self) -> Timestamp {
        Timestamp { sec: (self.now / 1000) as i64, nsec: (self.now % 1000 * 1_000_000) as u32 }
    }

    fn up(&mut self, node: usize) {
        let now = self.time();
        let Some(Life::Down(store, _)) = self.lives[node].take() else { panic!("it is up") };
        let config = MetaConfig { executor: executor(node), map: self.first.clone(), ..config() };
        let mut meta = Meta::open(store, config, now).expect("opens");
        if let Some(limits) = self.split_limits {
            meta.set_split_limits(limits);
        }
        if self.sync {
            meta.acknowledge_after_sync();
        }
        self.lives[node] = Some(Life::Up(Box::new(meta)));
        self.tell_opens(node);
    }

    /// Reports the open files of the clients to a node that is new, or has got shards, before it
    /// serves requests.
    fn tell_opens(&mut self, node: usize) {
        let opens = self.opens.clone();
        let Some(meta) = self.meta(node) else { return };
        for (client, inos) in opens {
            meta.record_opens(ClientId([client; 16]), &inos.into_iter().collect::<Vec<_>>());
        }
    }

    /// Sets the number of entries above which partitions are split, however many clients change
    /// them.
    pub fn split_above(&mut self, entries: u64) {
        self.set_split_limits(SplitLimits::regardless_of_clients(entries));
    }

    /// Sets the numbers of entries above which partitions are split.
    pub fn set_split_limits(&mut self, limits: SplitLimits) {
        self.split_limits = Some(limits);
        for node in 0..self.lives.len() {
            if let Some(meta) = self.meta(node) {
                meta.set_split_limits(limits);
            }
        }
    }

    /// From now on nodes sync once a second, and acknowledge durable parts only.
    pub fn sync_by_themselves(&mut self) {
        self.sync = true;
        for node in 0..self.lives.len() {
            if let Some(meta) = self.meta(node) {
                meta.acknowledge_after_sync();
            }
        }
    }

    /// Lets a node sync on behalf of a client, for these inodes. Returns the other executors that
    /// have a part in their names.
    pub fn sync_names(&mut self, node: usize, inos: &[Ino]) -> Vec<ExecutorId> {
        self.seq += 1;
        let (now, seq) = (self.time(), self.seq);
        let meta = self.meta(node).expect("it is up");
        let ctx = OperationContext { now, client: ClientId([99; 16]), slot: 0, seq, trusted: true };
        let op = MetaOp::SyncNames { inos: inos.to_vec() };
        let answer = meta.apply(&ctx, &Cred::ROOT, &op).into_result();
        meta.sync().expect("memory does not fail");
        match answer {
            Ok(MetaReply::NamesSynced { unsynced: also, .. }) => also,
            other => panic!("not synced: {other:?}"),
        }
    }

    /// Kills the process; it restarts after a while.
    pub fn kill(&mut self, node: usize, back_after: u64) {
        if self.meta(node).is_some()
            && let Some(Life::Up(meta)) = self.lives[node].take()
        {
            let mut store = meta.into_store();
            store.kill_process();
            self.died = true;
            self.lives[node] = Some(Life::Down(store, self.now.saturating_add(back_after)));
            for asked in self.asked.values_mut() {
                if asked.waits.is_some_and(|(at, _)| number_of(at) == node) {
                    asked.waits = None;
                }
            }
        }
    }

    /// Cuts the power of a node: some of the unsynced changes survive.
    pub fn cut_power(&mut self, node: usize) {
        let kept = self.rng.below(20) as usize;
        self.kill(node, 30);
        if let Some(Life::Down(store, _)) = self.lives[node].as_mut() {
            store.power_cut(kept);
        }
    }

    /// Drops all unsynced changes of a node that is down.
    pub fn lose_unsynced(&mut self, node: usize) {
        if let Some(Life::Down(store, _)) = self.lives[node].as_mut() {
            store.power_cut(0);
        }
    }

    pub fn meta(&mut self, node: usize) -> Option<&mut Meta<FaultyStore>> {
        match self.lives[node].as_mut() {
            Some(Life::Up(meta)) => Some(meta),
            _ => None,
        }
    }

    /// Starts the next operation of a client (a number). It has none in progress.
    pub fn ask(&mut self, client: u8, cred: &Cred, op: MetaOp) {
        self.seq += 1;
        let now = self.time();
        let (seq, since) = (self.seq, self.now);
        let cred = cred.clone();
        if let MetaOp::ReportClosed { read, .. } = &op {
            let opens = self.opens.entry(client).or_default();
            read.iter().for_each(|ino| _ = opens.remove(ino));
        }
        let asked = Asked {
            op,
            sent: None,
            forgotten: false,
            listed: Vec::new(),
            above: None,
            cred,
            seq,
            now,
            waits: None,
            ask_at: since,
            since,
        };
        assert!(self.asked.insert(client, asked).is_none(), "one at a time");
    }

    pub fn is_busy(&self, client: u8) -> bool {
        self.asked.contains_key(&client)
    }

    pub fn answer(&mut self, client: u8) -> Option<MetaResult> {
        self.answers.remove(&client)
    }

    /// Sends a client's request, for the first time or again.
    fn send(&mut self, client: u8) {
        let asked = self.asked.get_mut(&client).expect("it asks");
        let known = self.known.entry(client).or_default();
        // A request without an answer is sent again to the same node: it may have been executed
        // there.
        let op = asked.sent.get_or_insert_with(|| {
            let mut op = asked.op.clone();
            known.locate_op(&self.map, seed(), &mut op);
            op
        });
        let map = self.maps.entry(client).or_insert_with(|| cluster_map(&self.first));
        let node = map.owner(op.target_inode().owner_shard()).expect("there is such a shard");
        let (op, cred, now, seq) = (op.clone(), asked.cred.clone(), asked.now, asked.seq);
        self.asked.get_mut(&client).expect("it asks").ask_at = self.now + 300;
        let at = number_of(node);
        let dies = self.dies();
        let Some(meta) = self.meta(at) else { return };
        let ctx =
            OperationContext { now, client: ClientId([client; 16]), slot: 0, seq, trusted: true };
        let applied = meta.apply(&ctx, &cred, &op);
        if !self.commit(at, dies) {
            return;
        }
        match applied {
            Applied::Done(result) => self.answered(client, node, result),
            Applied::Pending(ticket) => {
                if let Some(asked) = self.asked.get_mut(&client) {
                    asked.waits = Some((node, ticket));
                }
                self.collect(at);
            }
        }
    }

    fn answered(&mut self, client: u8, node: ExecutorId, result: MetaResult) {
        if result == Err(Errno::EAGAIN) {
            self.asked.get_mut(&client).expect("it asked").waits = None;
            return;
        }
        if matches!(result, Ok(MetaReply::WrongShard { .. })) {
            return self.corrected_by(client, node);
        }
        let Some(result) = self.heard(client, result) else { return };
        if let Ok(MetaReply::Opened { attr, .. }) = &result {
            self.opens.entry(client).or_default().insert(attr.ino);
        }
        let asked = self.asked.remove(&client).expect("it asked");
        self.longest = self.longest.max(self.now - asked.since);
        self.answered_by.insert(client, node);
        self.answers.insert(client, result);
    }

    /// Handles a request to the wrong node: the client asks that node for the map.
    fn corrected_by(&mut self, client: u8, node: ExecutorId) {
        self.seq += 1;
        let (seq, again) = (self.seq, self.now + 2);
        let map = self.meta(number_of(node)).map(|meta| meta.cluster_map().clone());
        let known = self.maps.get_mut(&client).expect("it has asked");
        if let Some(map) = map {
            known.merge_newer(&map);
        }
        let asked = self.asked.get_mut(&client).expect("it asks");
        (asked.seq, asked.waits, asked.ask_at) = (seq, None, again);
    }

    /// Starts a move of shards.
    fn order_move(&mut self) {
        let from = self.rng.below(self.lives.len() as u64) as usize;
        let to = executor(self.rng.below(self.lives.len() as u64) as usize);
        let (pick, count, now) = (self.rng.below(1 << 20) as usize, self.rng.below(5), self.time());
        let Some(meta) = self.meta(from) else { return };
        let ours: Vec<_> = (0..meta.cluster_map().shards.len() as u16)
            .filter(|s| meta.serves_shard(ShardId(*s)))
            .collect();
        if ours.is_empty() {
            return;
        }
        let first = ours[pick % ours.len()];
        let run = (first..).take_while(|shard| ours.contains(shard)).count() as u16;
        let _ = meta.begin_move(now, first, run.min(1 + count as u16), to);
    }

    /// Moves shards to a node, and waits for the end of the move.
    pub fn move_to(&mut self, shards: std::ops::Range<u16>, to: u16) {
        for shard in shards {
            for _ in 0..60_000 {
                let known: Vec<_> = (0..self.lives.len())
                    .filter_map(|n| self.meta(n).map(|m| m.serves_shard(ShardId(shard))))
                    .collect();
                let Some(owner) = known.iter().position(|serves| *serves) else {
                    self.step();
                    continue;
                };
                if owner == usize::from(to) {
                    break;
                }
                let now = self.time();
                if let Some(meta) = self.meta(owner) {
                    let _ = meta.begin_move(now, shard, 1, executor(usize::from(to)));
                }
                self.step();
            }
            let owner =
                self.meta(usize::from(to)).is_some_and(|meta| meta.serves_shard(ShardId(shard)));
            assert!(owner, "shard {shard} has moved");
        }
    }

    /// Advances a move, as the daemon does.
    fn further_move(&mut self, node: usize) {
        let late = self.rng.percent(80);
        let Some(meta) = self.meta(node) else { return };
        let gone = |event: &MoveEvent| matches!(event, MoveEvent::MovedAway(..));
        let events = meta.take_move_events();
        let come = events.iter().any(|event| matches!(event, MoveEvent::Arrived(..)));
        let gone = events.iter().filter(|event| gone(event)).count();
        match meta.pending_move_request() {
            Some(MoveRequest::Recall(..)) if !late => meta.recalls_done(),
            Some(MoveRequest::ListLockers(..)) => meta.provide_lockers(Vec::new()),
            _ => {}
        }
        self.moved += gone as u32;
        // Living nodes pass the open files along with a move.
        if come && self.died {
            self.tell_opens(node);
        }
    }

    /// Handles an answer. Returns the one that ends the operation.
    fn heard(&mut self, client: u8, result: MetaResult) -> Option<MetaResult> {
        self.seq += 1;
        let seq = self.seq;
        let asked = self.asked.get_mut(&client).expect("it asked");
        let known = self.known.entry(client).or_default();
        let sent = asked.sent.take().expect("it was sent");
        match result {
            Ok(MetaReply::WrongPartition { part, range }) => {
                known.record_partition(&self.map, part, range);
                self.corrected += 1;
            }
            Err(Errno::ESTALE) if sent != asked.op && !asked.forgotten => {
                asked.forgotten = true;
                known.forget_directories(seed(), &asked.op);
            }
            Ok(MetaReply::Entries { mut entries, end, parent, upto }) => {
                asked.listed.append(&mut entries);
                let above = *asked.above.get_or_insert(parent);
                let MetaOp::ReadDir { after, .. } = &mut asked.op else { panic!("no listing") };
                assert!(end || upto > *after, "it goes on");
                *after = upto;
                if end {
                    let entries = std::mem::take(&mut asked.listed);
                    return Some(Ok(MetaReply::Entries { entries, end, parent: above, upto }));
                }
            }
            other => return Some(other),
        }
        (asked.seq, asked.waits, asked.ask_at) = (seq, None, self.now);
        None
    }

    fn dies(&mut self) -> bool {
        self.rng.below(1000) < self.faults.deaths
    }

    /// Ends a node's round. With `dies` it is killed before or after its commit, and sends nothing.
    fn commit(&mut self, node: usize, dies: bool) -> bool {
        let before = self.rng.percent(50);
        let Some(meta) = self.meta(node) else { return false };
        if !(dies && before) {
            meta.commit().expect("memory does not fail");
            if meta.needs_sync() {
                meta.sync().expect("memory does not fail");
            }
        }
        if dies {
            let back = self.rng.below(2 * COMES_BACK);
            self.kill(node, back);
        }
        !dies
    }

    /// Takes the messages that a node has to send.
    fn collect(&mut self, node: usize) {
        let Some(meta) = self.meta(node) else { return };
        let (outs, finished) = (meta.take_outbox(), meta.take_finished());
        self.parcels += outs.iter().map(|out| out.to).collect::<BTreeSet<_>>().len() as u32;
        for out in outs {
            self.messages += 1;
            let mut frame = Vec::new();
            assert!(frame::encode_frame_if_fits(&mut frame, FrameClass::Peer, 0, &out.message, 0));
            self.largest = self.largest.max(frame.len());
            let copies = 1 + u64::from(self.rng.percent(self.faults.twice));
            for _ in 0..copies {
                if self.rng.percent(self.faults.lost) {
                    continue;
                }
                let slow = if self.rng.percent(10) { 200 } else { 5 };
                let at =
                    self.now + 1 + self.rng.below(if self.faults.twice > 0 { slow } else { 2 });
                let (from, to) = (executor(node), out.to);
                self.letters.push(Letter { at, from, to, message: out.message.clone() });
            }
        }
        for finished in finished {
            let here = Some((executor(node), finished.ticket));
            let asked = self.asked.iter().find(|(_, asked)| asked.waits == here);
            if let Some(client) = asked.map(|(client, _)| *client) {
                if self.rng.percent(self.faults.lost) {
                    self.asked.get_mut(&client).expect("it asks").waits = None;
                } else {
                    self.answered(client, executor(node), finished.result);
                }
            }
        }
    }

    /// Simulates one millisecond.
    pub fn step(&mut self) {
        self.now += 1;
        let time = self.time();
        for node in 0..self.lives.len() {
            if matches!(&self.lives[node], Some(Life::Down(_, until)) if *until <= self.now) {
                self.up(node);
            }
        }
        let due: Vec<_> =
            self.asked.iter().filter(|(_, a)| a.waits.is_none() && a.ask_at <= self.now).collect();
        let due: Vec<_> = due.into_iter().map(|(client, _)| *client).collect();
        due.into_iter().for_each(|client| self.send(client));
        let mut letters: Vec<_> =
            self.letters.extract_if(.., |letter| letter.at <= self.now).collect();
        while !letters.is_empty() {
            let letter = letters.swap_remove(self.rng.below(letters.len() as u64) as usize);
            let at = number_of(letter.to);
            let dies = self.dies();
            let Some(meta) = self.meta(at) else { continue };
            meta.receive_message(time, letter.from, letter.message);
            if self.commit(at, dies) {
                self.collect(at);
            }
        }
        if self.rng.below(1000) < self.faults.moves {
            self.order_move();
        }
        for node in 0..self.lives.len() {
            if self.sync && self.now % 1000 == node as u64 * 10 {
                self.sync(node);
            }
            self.further_move(node);
            let Some(meta) = self.meta(node) else { continue };
            if meta.deadline().is_some_and(|deadline| deadline <= time) {
                meta.tick(time);
                if self.commit(node, false) {
                    self.collect(node);
                }
            }
        }
    }

    /// A node syncs its log.
    fn sync(&mut self, node: usize) {
        if let Some(meta) = self.meta(node) {
            let work = meta.begin_sync().expect("memory does not fail");
            assert!(work.is_none(), "memory syncs at once");
        }
    }

    /// Runs one operation to its end.
    pub fn call(&mut self, client: u8, cred: &Cred, op: MetaOp) -> MetaResult {
        self.ask(client, cred, op);
        for _ in 0..60_000 {
            self.step();
            if let Some(result) = self.answer(client) {
                return result;
            }
        }
        panic!("an operation does not come to its end");
    }

    /// Runs without faults, until nothing is in progress.
    pub fn quiet(&mut self) {
        self.faults = Faults::default();
        for _ in 0..60_000 {
            self.step();
            let mut busy = !self.asked.is_empty() || !self.letters.is_empty();
            for node in 0..self.lives.len() {
                busy |= self.meta(node).is_none_or(|meta| meta.count_in_progress() > 0);
            }
            if !busy {
                return self.learn_map();
            }
        }
        let left: Vec<_> = (0..self.lives.len())
            .map(|node| self.meta(node).map(|meta| meta.count_in_progress()))
            .collect();
        panic!("something is left: {left:?}, {} clients wait", self.asked.len());
    }

    /// Checks that all nodes agree on the shard map, and takes it.
    fn learn_map(&mut self) {
        let mut map = cluster_map(&self.first);
        for node in 0..self.lives.len() {
            if let Some(meta) = self.meta(node) {
                map.merge_newer(meta.cluster_map());
            }
        }
        for (shard, owner) in map.shards.iter().enumerate() {
            for node in 0..self.lives.len() {
                let serves =
                    self.meta(node).is_some_and(|meta| meta.serves_shard(ShardId(shard as u16)));
                assert_eq!(serves, number_of(*owner) == node, "shard {shard} at node {node}");
            }
        }
        self.map = map.shard_map().expect("as many shards");
    }

    /// Returns the number of nodes.
    pub fn nodes(&self) -> usize {
        self.lives.len()
    }
}

fn cluster_map(map: &ShardMap) -> ClusterMap {
    let (shards, moves) = map.owners_and_moves();
    ClusterMap {
        volume: config().volume,
        name: String::new(),
        epoch: map.epoch(),
        nodes: Vec::new(),
        shards: shards.to_vec(),
        moves: moves.to_vec(),
    }
}
