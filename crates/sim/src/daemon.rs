//! A daemon around a shard, as the executor of `node` works: rounds of requests, one commit for all
//! of them, then the answers. It can die at any step.

use crate::client::{Reply, Request};
use fastrand::Rng;
use tatami_meta::store::faulty::Fault;
use tatami_meta::{Config, Context, FaultyStore, Meta};
use tatami_wire::meta::{MetaOp, MetaReply};
use tatami_wire::{ClientId, Cred, Ino, NodeId, ShardMap, Timestamp, VolumeId, VolumeKey};

/// What an acknowledgement promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// It survives the death of the process. There are no power cuts then.
    Process,
    /// It survives a power cut, too.
    Sync,
}

/// A mistake, built in to be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// Answers leave before the round is committed.
    AnswersEarly,
    /// A request that comes again is run again.
    ForgetsAnswers,
    /// Commits are taken for synced.
    NeverSyncs,
    /// Clients hear what comes over connections that they have given up.
    HearsTheDead,
}

/// Where in a round a daemon dies.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Death {
    BeforeApplying,
    Applied,
    /// The disk fails, with half of the batch written.
    Torn,
    /// The disk fails when all of it was written.
    Written,
    Committed,
    /// Some answers have left.
    Answering,
}

impl Death {
    pub const ALL: [Death; 6] = [
        Death::BeforeApplying,
        Death::Applied,
        Death::Torn,
        Death::Written,
        Death::Committed,
        Death::Answering,
    ];
}

enum Life {
    Up(Box<Meta<FaultyStore>>),
    Down(FaultyStore),
}

/// The daemon.
pub(crate) struct Daemon {
    /// Nothing only while it changes from one to the other.
    life: Option<Life>,
    /// Goes up with every start: connections to an earlier life are dead.
    pub incarnation: u32,
    inbox: Vec<Request>,
    durability: Durability,
    defect: Option<Defect>,
    /// Slots that no client has, for [`Defect::ForgetsAnswers`].
    strange: u32,
}

impl Daemon {
    /// One with an empty store.
    ///
    /// # Errors
    /// What keeps the shard from opening.
    pub fn start(durability: Durability, defect: Option<Defect>) -> Result<Daemon, String> {
        let life = Some(Life::Down(FaultyStore::new()));
        let mut daemon = Daemon {
            life,
            incarnation: 0,
            inbox: Vec::new(),
            durability,
            defect,
            strange: 1 << 20,
        };
        daemon.up(Timestamp::from_sec(0))?;
        Ok(daemon)
    }

    /// Takes a request; whether a round must be planned for it.
    pub fn receive(&mut self, request: Request) -> bool {
        if let Some(Life::Up(_)) = self.life {
            self.inbox.push(request);
        }
        self.inbox.len() == 1
    }

    /// One round; the answers that leave. With `death` the process is gone afterwards.
    pub fn round(&mut self, rng: &mut Rng, now: Timestamp, death: Option<Death>) -> Vec<Reply> {
        let requests = std::mem::take(&mut self.inbox);
        let mut replies = Vec::new();
        let syncs = self.durability == Durability::Sync && self.defect != Some(Defect::NeverSyncs);
        if let Some(Life::Up(meta)) = &mut self.life {
            if !matches!(death, Some(Death::BeforeApplying)) {
                for request in requests {
                    let mut slot = request.slot;
                    if self.defect == Some(Defect::ForgetsAnswers) {
                        self.strange += 1;
                        slot = self.strange;
                    }
                    let Request { process, client, seq, connection, .. } = request;
                    let context = Context { now, client, slot, seq, trusted: true };
                    let result = meta.apply(&context, &Cred::ROOT, &request.op).at_once();
                    replies.push(Reply { process, seq, connection, result });
                }
            }
            let stays = match death {
                Some(Death::BeforeApplying | Death::Applied) => false,
                Some(Death::Torn) => fails(meta, Fault::Torn),
                Some(Death::Written) => fails(meta, Fault::IoAfterWrite),
                Some(Death::Committed | Death::Answering) | None => {
                    meta.commit().is_ok() && (!syncs || meta.sync().is_ok())
                }
            };
            let some = rng.usize(..=replies.len());
            let leaving = match death {
                _ if self.defect == Some(Defect::AnswersEarly) => replies.len(),
                None if stays => replies.len(),
                Some(Death::Answering) if stays => some,
                _ => 0,
            };
            replies.truncate(leaving);
            if death.is_some() || !stays {
                self.die();
            }
        }
        replies
    }

    /// The process is killed: what was not committed is gone.
    pub fn die(&mut self) {
        self.inbox.clear();
        self.life = match self.life.take() {
            Some(Life::Up(meta)) => Some(Life::Down(meta.into_store())),
            other => other,
        };
    }

    /// It starts again, if it was down; after a power cut where that is promised to do no harm.
    ///
    /// # Errors
    /// What keeps the shard from opening.
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
            node: NodeId(0),
            map: ShardMap::single(NodeId(0)),
            volume: VolumeId([1; 16]),
            key: VolumeKey::new([1; 32]),
        };
        if let Some(Life::Down(store)) = self.life.take() {
            let meta = Meta::open(store, config, now).map_err(|e| e.to_string())?;
            self.life = Some(Life::Up(Box::new(meta)));
            self.incarnation += 1;
        }
        Ok(())
    }

    /// What a check of all records finds; nothing while the daemon is down.
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
}

/// The disk fails during the commit. A round that changes nothing does not notice.
fn fails(meta: &mut Meta<FaultyStore>, how: Fault) -> bool {
    meta.store_mut().fail_commit(0, how);
    meta.commit().is_ok()
}
