//! Clients: each slot has one operation under way, and repeats it until there is a reply.

use crate::history::Process;
use crate::spec::{Answer, Call, Name};
use fastrand::Rng;
use tatami_wire::act::{Act, Acted};
use tatami_wire::meta::{Bytes, MetaOp, MetaReply, MetaResult, NewNode, RenameMode};
use tatami_wire::partition::{Directories, name_hash, name_seed};
use tatami_wire::{
    Attr, ClientId, Errno, ExecutorId, Ino, Kind, Layout, NodeId, READDIR_MAX, ShardMap, VolumeId,
};

/// The volume.
pub(crate) const VOLUME: VolumeId = VolumeId([1; 16]);

/// Names in a directory: few, so that clients conflict.
pub(crate) const NAMES: Name = 4;

/// A request of a client.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub process: Process,
    pub client: ClientId,
    pub slot: u32,
    pub seq: u64,
    /// The number of the process's connection, counted up.
    pub connection: u64,
    pub op: MetaOp,
}

impl Request {
    /// Returns the reply to this request.
    pub fn answered(&self, result: MetaResult) -> Reply {
        let Request { process, seq, connection, .. } = *self;
        Reply { process, seq, connection, result }
    }
}

/// The reply of a daemon.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    pub process: Process,
    pub seq: u64,
    pub connection: u64,
    pub result: MetaResult,
}

/// One slot of a client, which sends one request after the other.
#[derive(Debug)]
pub(crate) struct Slot {
    /// The partition maps that it has learned.
    pub directories: Directories,
    /// The request under way, as it was sent to a partition. A repetition goes to the same
    /// partition, because the operation may have been done there.
    pub sent: Option<MetaOp>,
    /// The partition map was dropped once for this operation.
    pub forgotten: bool,
    /// A batch did not do the operation, so it is sent alone.
    pub alone: bool,
    /// The continuation of the listing that it has begun.
    pub goes_on: Option<Call>,
    pub process: Process,
    pub client: ClientId,
    pub number: u32,
    /// Sequence number of the operation under way, or of the last one.
    pub seq: u64,
    /// Increases with every repeated request. The slot ignores replies over earlier connections.
    /// The reason: a daemon does not keep the reply to a failed request when it dies, so its next
    /// incarnation may answer the same request otherwise.
    pub connection: u64,
    pub pending: Option<Call>,
    /// Operations still to be done.
    pub left: u32,
    /// Whether the slot works on the island, see [`Known::island`].
    pub apart: bool,
}

impl Slot {
    /// Returns whether there is nothing left to do.
    pub fn is_done(&self) -> bool {
        self.left == 0 && self.pending.is_none()
    }

    /// Returns the request under way, to be sent for the first time or again.
    pub fn request(&mut self, map: &ShardMap) -> Option<Request> {
        let pending = self.pending.as_ref()?;
        let op = self.sent.get_or_insert_with(|| {
            let mut op = operation(pending);
            self.directories.locate(map, seed(), &mut op);
            // A batch operation must have the same effect, so half of the operations are sent as
            // one.
            if self.seq.is_multiple_of(2) && !self.alone { as_act(op) } else { op }
        });
        let op = op.clone();
        let Slot { process, client, number, seq, connection, .. } = *self;
        Some(Request { process, client, slot: number, seq, connection, op })
    }
}

/// Returns the seed of the hashes of names.
pub(crate) fn seed() -> u64 {
    name_seed(VOLUME)
}

/// Returns the hash of a name, its position in the directory.
pub(crate) fn hash(name: Name) -> u64 {
    name_hash(seed(), &bytes(name))
}

/// Returns the operation as a batch, if that is possible.
fn as_act(op: MetaOp) -> MetaOp {
    let act = match op {
        MetaOp::Create { parent, name, node, mode, umask, exclusive, open } => {
            Act::Create { parent, name, node, mode, umask, exclusive, open }
        }
        MetaOp::Unlink { parent, name, keep } => Act::Unlink { parent, name, keep },
        MetaOp::Rmdir { parent, name, keep } => Act::Rmdir { parent, name, keep },
        MetaOp::GetAttr { ino } => Act::GetAttr { ino },
        op => return op,
    };
    // The second operation sees the effect of the first one.
    let entry = act.entry().map(|(parent, name)| Act::Find { parent, name: name.clone() });
    MetaOp::Acts { acts: [Some(act), entry].into_iter().flatten().collect() }
}

/// Returns the operation of a batch, or the operation itself.
fn alone(sent: &MetaOp) -> MetaOp {
    match sent {
        MetaOp::Acts { acts } => acts.first().cloned().map_or(MetaOp::Sync, MetaOp::from),
        op => op.clone(),
    }
}

/// Returns the reply to the single operation. `None` if the batch did not do it, since it must be
/// sent alone.
pub(crate) fn answer_alone(result: &MetaResult) -> Option<MetaResult> {
    match result {
        Ok(MetaReply::Acted(all)) => match all.first()?.clone() {
            Acted::Parted { part, range } => Some(Ok(MetaReply::Parted { part, range })),
            acted => acted.result(),
        },
        result => Some(result.clone()),
    }
}

/// Updates the partition map from a reply that redirects the client. Returns whether the operation
/// must be sent again.
pub(crate) fn is_corrected(
    (directories, forgotten): (&mut Directories, &mut bool),
    map: &ShardMap,
    (call, sent): (&Call, &MetaOp),
    result: &MetaResult,
) -> bool {
    match result {
        Ok(MetaReply::Parted { part, range }) => {
            directories.learn(map, *part, *range);
            true
        }
        // The partition may have gone, or the inode that the operation needs. Dropping the map once
        // distinguishes the two.
        Err(Errno::ESTALE) if !*forgotten && operation(call) != alone(sent) => {
            *forgotten = true;
            directories.forget(seed(), &operation(call));
            true
        }
        _ => false,
    }
}

fn bytes(name: Name) -> Bytes {
    Bytes::from(format!("n{name}").into_bytes())
}

pub(crate) fn operation(call: &Call) -> MetaOp {
    match call {
        Call::Create { dir, name, is_dir } => MetaOp::Create {
            parent: *dir,
            name: bytes(*name),
            node: match is_dir {
                true => NewNode::Dir,
                false => NewNode::File(Layout::Whole { node: NodeId(0) }),
            },
            mode: 0o755,
            umask: 0,
            exclusive: true,
            open: None,
        },
        Call::Lookup { dir, name } => MetaOp::Lookup { parent: *dir, name: bytes(*name) },
        Call::GetAttr { ino } => MetaOp::GetAttr { ino: *ino },
        Call::Unlink { dir, name } => {
            MetaOp::Unlink { parent: *dir, name: bytes(*name), keep: false }
        }
        Call::Rmdir { dir, name } => {
            MetaOp::Rmdir { parent: *dir, name: bytes(*name), keep: false }
        }
        Call::Rename { from, to, mode } => MetaOp::Rename {
            parent: from.0,
            name: bytes(from.1),
            new_parent: to.0,
            new_name: bytes(to.1),
            mode: *mode,
            keep: false,
        },
        Call::Link { ino, dir, name } => {
            MetaOp::Link { ino: *ino, parent: *dir, name: bytes(*name) }
        }
        Call::List { dir, after } => {
            MetaOp::ReadDir { dir: *dir, after: *after, limit: READDIR_MAX, plus: false }
        }
    }
}

/// Converts the shard's reply into the terms of the specification. `None` for a reply that makes no
/// sense.
pub(crate) fn answer(result: &MetaResult) -> Option<Answer> {
    let node = |attr: &Attr| Answer::Node {
        ino: attr.ino,
        links: attr.nlink,
        is_dir: attr.kind == Kind::Dir,
    };
    Some(match result {
        Err(errno) => Answer::Failed(*errno),
        Ok(MetaReply::Attr(attr) | MetaReply::Created { attr, .. }) => node(attr),
        Ok(MetaReply::Removed { ino, last } | MetaReply::Renamed { ino, last, .. }) => {
            Answer::Removed { ino: *ino, last: *last }
        }
        Ok(MetaReply::Entries { entries, end, upto, .. }) => {
            let known = entries.iter().map(|entry| {
                let number = entry.name.strip_prefix(b"n")?;
                Some((std::str::from_utf8(number).ok()?.parse().ok()?, entry.ino))
            });
            Answer::Names { names: known.collect::<Option<_>>()?, upto: *upto, end: *end }
        }
        Ok(_) => return None,
    })
}

/// Inodes known to the clients. The clients share this knowledge, past the network.
#[derive(Debug)]
pub(crate) struct Known {
    dirs: Vec<Ino>,
    files: Vec<Ino>,
    /// The top directory: at the beginning it contains everything.
    first: Ino,
    /// Whether the clients create directories.
    grows: bool,
    /// Names in a directory.
    names: Name,
}

/// Returns whether the inode lies with this executor, has lain there, or may.
pub(crate) fn concerns(map: &ShardMap, executor: ExecutorId, ino: Ino) -> bool {
    [ino.shard(), ino.birth()].iter().any(|shard| map.owner(*shard) == Some(executor))
}

impl Known {
    pub fn new(names: Name) -> Known {
        Known { dirs: vec![Ino::ROOT], files: Vec::new(), first: Ino::ROOT, grows: true, names }
    }

    /// Returns a part of the tree for some clients only. They create no directories, because these
    /// could lie on any node, and no more files than a directory has that does not split.
    pub fn island(dirs: Vec<Ino>) -> Known {
        let first = dirs.first().copied().unwrap_or(Ino::ROOT);
        Known { dirs, files: Vec::new(), first, grows: false, names: NAMES }
    }

    /// Adds the inode of a reply.
    pub fn learn(&mut self, answer: &Answer) {
        if let Answer::Node { ino, is_dir, .. } = answer {
            let list = if *is_dir { &mut self.dirs } else { &mut self.files };
            if !list.contains(ino) {
                list.push(*ino);
            }
        }
    }

    /// Chooses an inode. Half of the time one of the newest, which are more likely to exist still.
    fn choose(&self, rng: &mut Rng, list: &[Ino]) -> Ino {
        let from = if rng.bool() { list.len().saturating_sub(4) } else { 0 };
        list.get(rng.usize(from..list.len().max(from + 1))).copied().unwrap_or(self.first)
    }

    fn dir(&self, rng: &mut Rng) -> Ino {
        if rng.u32(..3) == 0 { self.first } else { self.choose(rng, &self.dirs) }
    }

    /// Chooses the next call.
    pub fn call(&self, rng: &mut Rng) -> Call {
        let (dir, name) = (self.dir(rng), rng.u8(..self.names));
        match rng.u32(..100) {
            0..14 => Call::Create { dir, name, is_dir: false },
            14..34 => Call::Create { dir, name, is_dir: self.grows },
            34..40 => Call::Unlink { dir, name },
            40..46 => Call::Rmdir { dir, name },
            46..72 => {
                let to = (self.dir(rng), rng.u8(..self.names));
                let modes = [RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange];
                Call::Rename { from: (dir, name), to, mode: modes[rng.usize(..modes.len())] }
            }
            72..80 => {
                let all = if rng.u32(..8) == 0 { &self.dirs } else { &self.files };
                Call::Link { ino: self.choose(rng, all), dir, name }
            }
            80..88 => Call::Lookup { dir, name },
            88..93 => {
                let all = if rng.bool() { &self.dirs } else { &self.files };
                Call::GetAttr { ino: self.choose(rng, all) }
            }
            _ => Call::List { dir, after: 0 },
        }
    }
}
