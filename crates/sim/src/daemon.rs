//! A daemon around its shards, which works as the executor of `crates/node`: rounds of requests and
//! messages of other daemons, one commit for all of them, then the replies and messages. It can die
//! at any step.

use crate::client::{Reply, Request, VOLUME};
use fastrand::Rng;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use tatami_meta::store::faulty::Fault;
use tatami_meta::{Applied, Config, Context, FaultyStore, Finished, Meta, Out, Store, Ticket};
use tatami_wire::meta::{MetaOp, MetaReply};
use tatami_wire::transaction::PeerMessage;
use tatami_wire::{ClientId, Cred, ExecutorId, Ino, ShardMap, Timestamp, VolumeKey};

/// The promise of an acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// The operation survives the death of the process. There are no power cuts then.
    Process,
    /// The operation survives a power cut, too.
    Sync,
}

/// A mistake, built in so that the checks find it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// Replies leave before the round is committed.
    AnswersEarly,
    /// The daemon runs a repeated request again.
    ForgetsAnswers,
    /// Commits count as synced.
    NeverSyncs,
    /// Clients accept replies over connections that they have given up.
    HearsTheDead,
    /// Messages to other daemons leave before the round is committed.
    MessagesEarly,
    /// A participant releases locks as soon as it has returned the locked records.
    ForgetsLocks,
    /// A coordinator takes a refusal for a vote to commit.
    TakesNoForYes,
    /// A participant takes exclusive locks as shared ones.
    SharesLocks,
}

/// The step of a round at which a daemon dies.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Death {
    BeforeApplying,
    Applied,
    /// The disk fails, with half of the batch written.
    Torn,
    /// The disk fails after the whole batch is written.
    Written,
    Committed,
    /// Some replies and messages have left.
    Answering,
    /// The round is committed, but not synced although a sync should follow.
    Unsynced,
}

impl Death {
    pub const ALL: [Death; 7] = [
        Death::BeforeApplying,
        Death::Applied,
        Death::Torn,
        Death::Written,
        Death::Committed,
        Death::Answering,
        Death::Unsynced,
    ];
}

/// An input of a daemon.
#[derive(Clone, Debug)]
pub(crate) enum Input {
    Request(Request),
    /// From another daemon.
    Message(ExecutorId, PeerMessage),
}

/// A key and its value.
pub(crate) type Record = (Vec<u8>, Vec<u8>);

/// An output of a daemon.
#[derive(Clone, Debug)]
pub(crate) enum Output {
    Reply(Reply),
    /// To another daemon.
    Message(ExecutorId, PeerMessage),
}

enum Life {
    Up(Box<Meta<FaultyStore>>),
    Down(FaultyStore),
}

/// The daemon.
pub(crate) struct Daemon {
    executor: ExecutorId,
    map: ShardMap,
    /// `None` only during a change between the two states.
    life: Option<Life>,
    /// Increases with every start: connections to an earlier incarnation are dead.
    pub incarnation: u32,
    inbox: Vec<Input>,
    /// Requests that are answered later.
    waiting: BTreeMap<Ticket, Vec<Request>>,
    durability: Durability,
    defect: Option<Defect>,
    split_above: Option<u64>,
    /// The last slot number that no client has, for [`Defect::ForgetsAnswers`].
    strange: u32,
}

impl Daemon {
    /// Starts a daemon with an empty store.
    ///
    /// # Errors
    /// The error that keeps the shards from opening.
    pub fn start(
        executor: ExecutorId,
        map: ShardMap,
        durability: Durability,
        split_above: Option<u64>,
        defect: Option<Defect>,
    ) -> Result<Daemon, String> {
        let mut daemon = Daemon {
            executor,
            map,
            life: Some(Life::Down(FaultyStore::new())),
            incarnation: 0,
            inbox: Vec::new(),
            waiting: BTreeMap::new(),
            durability,
            defect,
            split_above,
            strange: 1 << 20,
        };
        daemon.up(Timestamp::from_sec(0))?;
        Ok(daemon)
    }

    /// Queues an input. Returns whether a round must be planned for it.
    pub fn receive(&mut self, input: Input) -> bool {
        if let Some(Life::Up(_)) = self.life {
            self.inbox.push(input);
        }
        self.inbox.len() == 1
    }

    /// Returns the time of the next due work, if nothing arrives before.
    pub fn deadline(&self) -> Option<Timestamp> {
        match &self.life {
            Some(Life::Up(meta)) => meta.deadline(),
            _ => None,
        }
    }

    /// Returns the number of unfinished transactions.
    pub fn under_way(&self) -> usize {
        match &self.life {
            Some(Life::Up(meta)) => meta.under_way(),
            _ => 0,
        }
    }

    /// Runs one round and returns its outputs. With `death` the process ends afterwards.
    pub fn round(&mut self, rng: &mut Rng, now: Timestamp, death: Option<Death>) -> Vec<Output> {
        let mut meta = match self.life.take() {
            Some(Life::Up(meta)) => meta,
            other => {
                self.life = other;
                return Vec::new();
            }
        };
        let inputs = std::mem::take(&mut self.inbox);
        let mut replies = Vec::new();
        if !matches!(death, Some(Death::BeforeApplying)) {
            for input in inputs {
                replies.extend(self.take_in(&mut meta, now, input));
            }
            if meta.deadline().is_some_and(|due| due <= now) {
                meta.tick(now);
            }
        }
        // This defect needs a commit that sends its messages and loses its batch.
        if self.defect == Some(Defect::MessagesEarly)
            && matches!(death, Some(Death::Applied | Death::Torn))
        {
            return self.messages_leave_early(meta);
        }
        let syncs = self.durability == Durability::Sync && self.defect != Some(Defect::NeverSyncs);
        let stays = match death {
            Some(Death::BeforeApplying | Death::Applied) => false,
            Some(Death::Torn) => fails(&mut meta, Fault::Torn),
            Some(Death::Written) => fails(&mut meta, Fault::IoAfterWrite),
            Some(Death::Unsynced) => meta.commit().is_ok(),
            Some(Death::Committed | Death::Answering) | None => {
                meta.commit().is_ok() && (!syncs || meta.sync().is_ok())
            }
        };
        if stays {
            for Finished { ticket, result, .. } in meta.finished() {
                let asked = self.waiting.remove(&ticket).unwrap_or_default();
                replies.extend(asked.iter().map(|request| request.answered(result.clone())));
            }
        }
        let mut outputs: Vec<_> = replies.into_iter().map(Output::Reply).collect();
        if stays {
            outputs.extend(meta.outbox().into_iter().map(sent));
        }
        // Any of the outputs may be the ones that leave before the death.
        if !self.map.is_alone() && death.is_some() {
            rng.shuffle(&mut outputs);
        }
        let some = rng.usize(..=outputs.len());
        let leaving = match death {
            _ if self.defect == Some(Defect::AnswersEarly) => outputs.len(),
            None if stays => outputs.len(),
            Some(Death::Answering) if stays => some,
            _ => 0,
        };
        outputs.truncate(leaving);
        self.life = Some(Life::Up(meta));
        if death.is_some() || !stays {
            self.die();
        }
        outputs
    }

    /// Handles an input. Returns the reply, if there is one at once.
    fn take_in(
        &mut self,
        meta: &mut Meta<FaultyStore>,
        now: Timestamp,
        input: Input,
    ) -> Option<Reply> {
        let request = match input {
            Input::Request(request) => request,
            Input::Message(from, message) => {
                let locked = match message {
                    PeerMessage::Lock { txid, .. } => Some(txid),
                    _ => None,
                };
                meta.receive(now, from, self.misheard(message));
                if let (Some(Defect::ForgetsLocks), Some(txid)) = (self.defect, locked) {
                    meta.receive(now, from, PeerMessage::Release { txid });
                }
                return None;
            }
        };
        let mut slot = request.slot;
        if self.defect == Some(Defect::ForgetsAnswers) {
            // A new slot number hides the kept reply from the shard.
            self.strange += 1;
            slot = self.strange;
        }
        let Request { client, seq, .. } = request;
        let context = Context { now, client, slot, seq, trusted: true };
        match meta.apply(&context, &Cred::ROOT, &request.op) {
            Applied::Done(result) => Some(request.answered(result)),
            Applied::Waits(ticket) => {
                self.waiting.entry(ticket).or_default().push(request);
                None
            }
        }
    }

    /// Changes a message the way the built-in mistake understands it.
    fn misheard(&self, message: PeerMessage) -> PeerMessage {
        match (self.defect, message) {
            (Some(Defect::TakesNoForYes), PeerMessage::Refused { txid, .. }) => {
                PeerMessage::Prepared { txid }
            }
            (
                Some(Defect::SharesLocks),
                PeerMessage::Lock { txid, age, life, question, waits, reads, writes },
            ) => {
                let (reads, writes) = ([reads, writes].concat(), Vec::new());
                PeerMessage::Lock { txid, age, life, question, waits, reads, writes }
            }
            (_, message) => message,
        }
    }

    /// Sends the messages of a batch that is lost with the process.
    fn messages_leave_early(&mut self, mut meta: Box<Meta<FaultyStore>>) -> Vec<Output> {
        let before = meta.store_mut().clone();
        let messages = match meta.commit() {
            Ok(()) => meta.outbox(),
            Err(_) => Vec::new(),
        };
        self.life = Some(Life::Down(before));
        self.die();
        messages.into_iter().map(sent).collect()
    }

    /// Kills the process: uncommitted changes are lost.
    pub fn die(&mut self) {
        self.inbox.clear();
        self.waiting.clear();
        self.life = match self.life.take() {
            Some(Life::Up(meta)) => Some(Life::Down(meta.into_store())),
            other => other,
        };
    }

    /// Starts the daemon again, if it was down; after a power cut if the durability covers one.
    ///
    /// # Errors
    /// The error that keeps the shards from opening.
    pub fn restart(&mut self, rng: &mut Rng, now: Timestamp) -> Result<(), String> {
        if let Some(Life::Down(store)) = &mut self.life {
            if self.durability == Durability::Sync && rng.bool() {
                store.power_cut(rng.usize(..=store.unsynced()));
            } else {
                store.kill();
            }
            self.up(now)?;
        }
        Ok(())
    }

    fn up(&mut self, now: Timestamp) -> Result<(), String> {
        let config = Config {
            executor: self.executor,
            map: self.map.clone(),
            volume: VOLUME,
            key: VolumeKey::new([1; 32]),
        };
        if let Some(Life::Down(store)) = self.life.take() {
            let mut meta = Meta::open(store, config, now).map_err(|e| e.to_string())?;
            self.split_above.into_iter().for_each(|entries| meta.split_above(entries));
            self.life = Some(Life::Up(Box::new(meta)));
            self.incarnation += 1;
        }
        Ok(())
    }

    /// Returns the findings of a check of all records; none while the daemon is down.
    pub fn findings(&mut self) -> Vec<String> {
        let Some(Life::Up(meta)) = &mut self.life else { return Vec::new() };
        let client = ClientId([0xff; 16]);
        let now = Timestamp::from_sec(0);
        let context = Context { now, client, slot: 0, seq: 1, trusted: true };
        let check = MetaOp::Check { after: Ino(0), limit: u32::MAX, repair: false };
        match meta.apply(&context, &Cred::ROOT, &check).at_once() {
            Ok(MetaReply::Checked { findings, .. }) => {
                findings.into_iter().map(|f| format!("inode {}: {}", f.ino, f.what)).collect()
            }
            other => vec![format!("the check ended with {other:?}")],
        }
    }

    /// Returns the records in the store, as `docs/FORMAT.md` draws them, and the counted number of
    /// inodes.
    pub fn records(&mut self) -> (Vec<Record>, u64) {
        let mut records = Vec::new();
        let Some(Life::Up(meta)) = &mut self.life else { return (records, 0) };
        let scanned = meta.store_mut().scan(&[], &[], &mut |key, value| {
            records.push((key.to_vec(), value.to_vec()));
            ControlFlow::Continue(())
        });
        // The store is in memory, so a read succeeds while the daemon is up.
        debug_assert!(scanned.is_ok());
        (records, meta.inodes())
    }
}

fn sent(Out { to, message, .. }: Out) -> Output {
    Output::Message(to, message)
}

/// Makes the disk fail during the commit. Returns whether the commit succeeded nevertheless: a
/// round without changes writes nothing.
fn fails(meta: &mut Meta<FaultyStore>, how: Fault) -> bool {
    meta.store_mut().fail_commit(0, how);
    meta.commit().is_ok()
}
