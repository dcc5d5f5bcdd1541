//! A daemon around its shards, which works as the executor of `crates/node`: rounds of requests and
//! messages of other daemons, one commit for all of them, then the replies and messages. It can die
//! at any step.

use crate::client::{ClientReply, ClientRequest};
use crate::entry_names::{VOLUME, volume_key};
use crate::file_client::to_file_op;
use crate::file_spec::FileCall;
use fastrand::Rng;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use tatami_meta::store::faulty::StoreFault;
use tatami_meta::{
    Applied, FaultyStore, FinishedOperation, Meta, MetaConfig, OperationContext, OutgoingMessage,
    SplitLimits, Store, Ticket,
};
use tatami_wire::meta::{InodeTemplate, MetaOp, MetaReply, MetaResult};
use tatami_wire::transaction::PeerMessage;
use tatami_wire::{ClientId, Cred, ExecutorId, Ino, ShardMap, Timestamp};

/// The promise of an acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SimDurability {
    /// The operation survives the death of the process. There are no power cuts then.
    Process,
    /// The operation survives a power cut, too.
    Sync,
}

/// A mistake, built in so that the checks find it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SimDefect {
    /// Replies leave before the round is committed.
    AnswersEarly,
    /// The daemon runs a repeated request again.
    ForgetsReplies,
    /// Commits count as synced.
    NeverSyncs,
    /// Clients accept replies over connections that they have given up.
    AcceptsDeadReplies,
    /// Messages to other daemons leave before the round is committed.
    MessagesEarly,
    /// A participant releases locks as soon as it has returned the locked records.
    ForgetsLocks,
    /// A coordinator takes a refusal for a vote to commit.
    TakesRefusalForVote,
    /// A participant takes exclusive locks as shared ones.
    SharesLocks,
    /// A file that is made with its bytes is made first, and gets the bytes in the next commit.
    FillsInTwoSteps,
    /// The bytes that come with an open are those of the first open of the file.
    KeepsOldBytes,
    /// A client that moves a file to an object copies the bytes before it reserves the object.
    CopiesBeforeReserving,
}

/// The step of a round at which a daemon dies.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CrashPoint {
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

impl CrashPoint {
    pub const ALL: [CrashPoint; 7] = [
        CrashPoint::BeforeApplying,
        CrashPoint::Applied,
        CrashPoint::Torn,
        CrashPoint::Written,
        CrashPoint::Committed,
        CrashPoint::Answering,
        CrashPoint::Unsynced,
    ];
}

/// An input of a daemon.
#[derive(Clone, Debug)]
pub(crate) enum DaemonInput {
    Request(ClientRequest),
    /// From another daemon.
    Message(ExecutorId, PeerMessage),
}

/// A key and its value.
pub(crate) type StoredRecord = (Vec<u8>, Vec<u8>);

/// An output of a daemon.
#[derive(Clone, Debug)]
pub(crate) enum DaemonOutput {
    Reply(ClientReply),
    /// To another daemon.
    Message(ExecutorId, PeerMessage),
}

enum DaemonState {
    Up(Box<Meta<FaultyStore>>),
    Down(FaultyStore),
}

/// The daemon.
pub(crate) struct Daemon {
    executor: ExecutorId,
    map: ShardMap,
    /// `None` only during a change between the two states.
    state: Option<DaemonState>,
    /// Increases with every start: connections to an earlier incarnation are dead.
    pub incarnation: u32,
    inbox: Vec<DaemonInput>,
    /// Requests that are answered later.
    waiting: BTreeMap<Ticket, Vec<ClientRequest>>,
    durability: SimDurability,
    defect: Option<SimDefect>,
    split_above: Option<u64>,
    /// The last slot number that no client has, for [`SimDefect::ForgetsReplies`].
    unused_slot: u32,
    /// The replies to first opens, for [`SimDefect::KeepsOldBytes`].
    first_opens: BTreeMap<Ino, MetaReply>,
}

impl Daemon {
    /// Starts a daemon with an empty store.
    ///
    /// # Errors
    /// The error that keeps the shards from opening.
    pub fn start(
        executor: ExecutorId,
        map: ShardMap,
        durability: SimDurability,
        split_above: Option<u64>,
        defect: Option<SimDefect>,
    ) -> Result<Daemon, String> {
        let mut daemon = Daemon {
            executor,
            map,
            state: Some(DaemonState::Down(FaultyStore::new())),
            incarnation: 0,
            inbox: Vec::new(),
            waiting: BTreeMap::new(),
            durability,
            defect,
            split_above,
            unused_slot: 1 << 20,
            first_opens: BTreeMap::new(),
        };
        daemon.open_meta(Timestamp::from_sec(0))?;
        Ok(daemon)
    }

    /// Queues an input. Returns whether a round must be planned for it.
    pub fn receive_input(&mut self, input: DaemonInput) -> bool {
        if let Some(DaemonState::Up(_)) = self.state {
            self.inbox.push(input);
        }
        self.inbox.len() == 1
    }

    /// Returns the time of the next due work, if nothing arrives before.
    pub fn deadline(&self) -> Option<Timestamp> {
        match &self.state {
            Some(DaemonState::Up(meta)) => meta.deadline(),
            _ => None,
        }
    }

    /// Returns the number of unfinished transactions.
    pub fn under_way(&self) -> usize {
        match &self.state {
            Some(DaemonState::Up(meta)) => meta.count_in_progress(),
            _ => 0,
        }
    }

    /// Runs one round and returns its outputs. With `death` the process ends afterwards.
    pub fn run_round(
        &mut self,
        rng: &mut Rng,
        now: Timestamp,
        death: Option<CrashPoint>,
    ) -> Vec<DaemonOutput> {
        let mut meta = match self.state.take() {
            Some(DaemonState::Up(meta)) => meta,
            other => {
                self.state = other;
                return Vec::new();
            }
        };
        let inputs = std::mem::take(&mut self.inbox);
        let mut replies = Vec::new();
        if !matches!(death, Some(CrashPoint::BeforeApplying)) {
            for input in inputs {
                replies.extend(self.handle_input(&mut meta, now, input));
            }
            if meta.deadline().is_some_and(|due| due <= now) {
                meta.tick(now);
            }
        }
        // This defect needs a commit that sends its messages and loses its batch.
        if self.defect == Some(SimDefect::MessagesEarly)
            && matches!(death, Some(CrashPoint::Applied | CrashPoint::Torn))
        {
            return self.send_messages_early(meta);
        }
        let syncs =
            self.durability == SimDurability::Sync && self.defect != Some(SimDefect::NeverSyncs);
        let stays = match death {
            Some(CrashPoint::BeforeApplying | CrashPoint::Applied) => false,
            Some(CrashPoint::Torn) => fail_commit(&mut meta, StoreFault::Torn),
            Some(CrashPoint::Written) => fail_commit(&mut meta, StoreFault::IoAfterWrite),
            Some(CrashPoint::Unsynced) => meta.commit().is_ok(),
            Some(CrashPoint::Committed | CrashPoint::Answering) | None => {
                meta.commit().is_ok() && (!syncs || meta.sync().is_ok())
            }
        };
        if stays {
            for FinishedOperation { ticket, result, .. } in meta.take_finished() {
                let asked = self.waiting.remove(&ticket).unwrap_or_default();
                replies.extend(asked.iter().map(|request| request.to_reply(result.clone())));
            }
        }
        let mut outputs: Vec<_> = replies.into_iter().map(DaemonOutput::Reply).collect();
        if stays {
            outputs.extend(meta.take_outbox().into_iter().map(to_output));
        }
        // Any of the outputs may be the ones that leave before the death.
        if !self.map.has_one_executor() && death.is_some() {
            rng.shuffle(&mut outputs);
        }
        let some = rng.usize(..=outputs.len());
        let leaving = match death {
            _ if self.defect == Some(SimDefect::AnswersEarly) => outputs.len(),
            None if stays => outputs.len(),
            Some(CrashPoint::Answering) if stays => some,
            _ => 0,
        };
        outputs.truncate(leaving);
        self.state = Some(DaemonState::Up(meta));
        if death.is_some() || !stays {
            self.kill();
        }
        outputs
    }

    /// Handles an input. Returns the reply, if there is one at once.
    fn handle_input(
        &mut self,
        meta: &mut Meta<FaultyStore>,
        now: Timestamp,
        input: DaemonInput,
    ) -> Option<ClientReply> {
        let request = match input {
            DaemonInput::Request(request) => request,
            DaemonInput::Message(from, message) => {
                let locked = match message {
                    PeerMessage::Lock { txid, .. } => Some(txid),
                    _ => None,
                };
                meta.receive_message(now, from, self.distort_message(message));
                if let (Some(SimDefect::ForgetsLocks), Some(txid)) = (self.defect, locked) {
                    meta.receive_message(now, from, PeerMessage::Release { txid });
                }
                return None;
            }
        };
        let mut slot = request.slot;
        if self.defect == Some(SimDefect::ForgetsReplies) {
            // A new slot number hides the kept reply from the shard.
            self.unused_slot += 1;
            slot = self.unused_slot;
        }
        let ClientRequest { client, seq, .. } = request;
        let context = OperationContext { now, client, slot, seq, trusted: true };
        if self.defect == Some(SimDefect::FillsInTwoSteps)
            && let Some((create, bytes)) = split_fill(&request.op)
        {
            let made = meta.apply(&context, &Cred::ROOT, &create).into_result();
            if let Ok(MetaReply::Created { attr, .. }) = &made
                && meta.commit().is_ok()
            {
                self.unused_slot += 1;
                let apart = OperationContext { slot: self.unused_slot, ..context };
                // Its reply is that of the whole request.
                let _ = meta.apply(&apart, &Cred::ROOT, &to_file_op(attr.ino, &bytes));
            }
            return Some(request.to_reply(made));
        }
        match meta.apply(&context, &Cred::ROOT, &request.op) {
            Applied::Done(result) => {
                let result = self.attach_bytes(meta, &request.op, result);
                Some(request.to_reply(result))
            }
            Applied::Pending(ticket) => {
                self.waiting.entry(ticket).or_default().push(request);
                None
            }
        }
    }

    /// Adds the bytes beside the inode to the reply to an open for reading, as the daemon of
    /// `crates/node` does.
    fn attach_bytes(
        &mut self,
        meta: &mut Meta<FaultyStore>,
        op: &MetaOp,
        result: MetaResult,
    ) -> MetaResult {
        if let (MetaOp::Open { access, .. }, Ok(MetaReply::Opened { attr, cap })) = (op, &result)
            && access.read
            && attr.layout.is_inline()
            && let Some(bytes) = meta.inline_bytes(attr.ino)
        {
            let ino = attr.ino;
            let (attr, bytes) = (Box::new(attr.clone()), bytes.into());
            let reply = MetaReply::OpenedInline { attr, cap: *cap, bytes };
            return Ok(match self.defect {
                Some(SimDefect::KeepsOldBytes) => {
                    self.first_opens.entry(ino).or_insert(reply).clone()
                }
                _ => reply,
            });
        }
        result
    }

    /// Changes a message the way the built-in mistake understands it.
    fn distort_message(&self, message: PeerMessage) -> PeerMessage {
        match (self.defect, message) {
            (Some(SimDefect::TakesRefusalForVote), PeerMessage::Refused { txid, .. }) => {
                PeerMessage::Prepared { txid }
            }
            (
                Some(SimDefect::SharesLocks),
                PeerMessage::Lock {
                    txid,
                    age,
                    client,
                    incarnation: life,
                    request: question,
                    waits,
                    reads,
                    writes,
                },
            ) => {
                let (reads, writes) = ([reads, writes].concat(), Vec::new());
                PeerMessage::Lock {
                    txid,
                    age,
                    client,
                    incarnation: life,
                    request: question,
                    waits,
                    reads,
                    writes,
                }
            }
            (_, message) => message,
        }
    }

    /// Sends the messages of a batch that is lost with the process.
    fn send_messages_early(&mut self, mut meta: Box<Meta<FaultyStore>>) -> Vec<DaemonOutput> {
        let before = meta.store_mut().clone();
        let messages = match meta.commit() {
            Ok(()) => meta.take_outbox(),
            Err(_) => Vec::new(),
        };
        self.state = Some(DaemonState::Down(before));
        self.kill();
        messages.into_iter().map(to_output).collect()
    }

    /// Kills the process: uncommitted changes are lost.
    pub fn kill(&mut self) {
        self.inbox.clear();
        self.waiting.clear();
        self.state = match self.state.take() {
            Some(DaemonState::Up(meta)) => Some(DaemonState::Down(meta.into_store())),
            other => other,
        };
    }

    /// Starts the daemon again, if it was down; after a power cut if the durability covers one.
    ///
    /// # Errors
    /// The error that keeps the shards from opening.
    pub fn restart(&mut self, rng: &mut Rng, now: Timestamp) -> Result<(), String> {
        if let Some(DaemonState::Down(store)) = &mut self.state {
            if self.durability == SimDurability::Sync && rng.bool() {
                store.power_cut(rng.usize(..=store.unsynced_commits()));
            } else {
                store.kill_process();
            }
            self.open_meta(now)?;
        }
        Ok(())
    }

    fn open_meta(&mut self, now: Timestamp) -> Result<(), String> {
        let config = MetaConfig {
            executor: self.executor,
            map: self.map.clone(),
            volume: VOLUME,
            key: volume_key(),
        };
        if let Some(DaemonState::Down(store)) = self.state.take() {
            let mut meta = Meta::open(store, config, now).map_err(|e| e.to_string())?;
            let limits = self.split_above.map(SplitLimits::regardless_of_clients);
            limits.into_iter().for_each(|limits| meta.set_split_limits(limits));
            self.state = Some(DaemonState::Up(Box::new(meta)));
            self.incarnation += 1;
        }
        Ok(())
    }

    /// Returns the findings of a check of all records; none while the daemon is down.
    pub fn check_records(&mut self) -> Vec<String> {
        let Some(DaemonState::Up(meta)) = &mut self.state else { return Vec::new() };
        let client = ClientId([0xff; 16]);
        let now = Timestamp::from_sec(0);
        let context = OperationContext { now, client, slot: 0, seq: 1, trusted: true };
        let check = MetaOp::Check { after: Ino(0), limit: u32::MAX, repair: false };
        match meta.apply(&context, &Cred::ROOT, &check).into_result() {
            Ok(MetaReply::Checked { findings, .. }) => {
                findings.into_iter().map(|f| format!("inode {}: {}", f.ino, f.what)).collect()
            }
            other => vec![format!("the check ended with {other:?}")],
        }
    }

    /// Returns the records in the store, as `docs/reference/formats.md` draws them, and the counted
    /// number of inodes.
    pub fn read_records(&mut self) -> (Vec<StoredRecord>, u64) {
        let mut records = Vec::new();
        let Some(DaemonState::Up(meta)) = &mut self.state else { return (records, 0) };
        let scanned = meta.store_mut().scan(&[], &[], &mut |key, value| {
            records.push((key.to_vec(), value.to_vec()));
            ControlFlow::Continue(())
        });
        // The store is in memory, so a read succeeds while the daemon is up.
        debug_assert!(scanned.is_ok());
        (records, meta.inode_count())
    }
}

/// Returns the two steps that make a file without bytes and then write them. `None` for any other
/// operation.
fn split_fill(op: &MetaOp) -> Option<(MetaOp, FileCall)> {
    let MetaOp::CreateFilled { parent, name, layout, mode, umask, bytes, .. } = op else {
        return None;
    };
    let create = MetaOp::Create {
        parent: *parent,
        name: name.clone(),
        node: InodeTemplate::File(*layout),
        mode: *mode,
        umask: *umask,
        exclusive: true,
        open: None,
    };
    Some((create, FileCall::Append { bytes: bytes.to_vec() }))
}

fn to_output(OutgoingMessage { to, message, .. }: OutgoingMessage) -> DaemonOutput {
    DaemonOutput::Message(to, message)
}

/// Makes the disk fail during the commit. Returns whether the commit succeeded nevertheless: a
/// round without changes writes nothing.
fn fail_commit(meta: &mut Meta<FaultyStore>, how: StoreFault) -> bool {
    meta.store_mut().fail_commit(0, how);
    meta.commit().is_ok()
}
