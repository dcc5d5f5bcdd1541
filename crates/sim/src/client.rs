//! Clients: each slot has one operation under way, and repeats it until it is answered.

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

/// Names in a directory: few, so that clients meet.
pub(crate) const NAMES: Name = 4;

/// What a client sends.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub process: Process,
    pub client: ClientId,
    pub slot: u32,
    pub seq: u64,
    /// Over which of the process's connections, one after the other.
    pub connection: u64,
    pub op: MetaOp,
}

impl Request {
    /// What is sent back.
    pub fn answered(&self, result: MetaResult) -> Reply {
        let Request { process, seq, connection, .. } = *self;
        Reply { process, seq, connection, result }
    }
}

/// What the daemon sends back.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    pub process: Process,
    pub seq: u64,
    pub connection: u64,
    pub result: MetaResult,
}

/// One slot of a client: somebody who asks one thing after the other.
#[derive(Debug)]
pub(crate) struct Slot {
    /// What it has been told of partitions.
    pub directories: Directories,
    /// The request under way, as it was sent to a partition. What is sent again goes to the same place: it
    /// may have been done there.
    pub sent: Option<MetaOp>,
    /// What was known of partitions was forgotten for it.
    pub forgotten: bool,
    /// It was not done as one of many, and is asked alone.
    pub alone: bool,
    /// How the listing that it has begun goes on.
    pub goes_on: Option<Call>,
    pub process: Process,
    pub client: ClientId,
    pub number: u32,
    /// Of the operation under way, or the last one.
    pub seq: u64,
    /// Goes up with every request that is sent again. What comes over an earlier connection is not
    /// heard: the answer to a request that failed is not kept when the daemon dies, so that the same
    /// request may be answered otherwise by the next one.
    pub connection: u64,
    pub pending: Option<Call>,
    /// Operations still to be done.
    pub left: u32,
    /// It works on the island, see [`Known::island`].
    pub apart: bool,
}

impl Slot {
    /// Whether there is nothing left to do.
    pub fn is_done(&self) -> bool {
        self.left == 0 && self.pending.is_none()
    }

    /// The request under way, to be sent for the first time or again.
    pub fn request(&mut self, map: &ShardMap) -> Option<Request> {
        let pending = self.pending.as_ref()?;
        let op = self.sent.get_or_insert_with(|| {
            let mut op = operation(pending);
            self.directories.locate(map, seed(), &mut op);
            // Nobody can tell but by the answer.
            if self.seq.is_multiple_of(2) && !self.alone { as_act(op) } else { op }
        });
        let op = op.clone();
        let Slot { process, client, number, seq, connection, .. } = *self;
        Some(Request { process, client, slot: number, seq, connection, op })
    }
}

/// What the hashes of names are seeded with.
pub(crate) fn seed() -> u64 {
    name_seed(VOLUME)
}

/// The place of a name in its directory.
pub(crate) fn hash(name: Name) -> u64 {
    name_hash(seed(), &bytes(name))
}

/// The operation as one of many, if it can be.
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
    // The other one finds what the first one has left.
    let entry = act.entry().map(|(parent, name)| Act::Find { parent, name: name.clone() });
    MetaOp::Acts { acts: [Some(act), entry].into_iter().flatten().collect() }
}

/// The operation that was sent.
fn alone(sent: &MetaOp) -> MetaOp {
    match sent {
        MetaOp::Acts { acts } => acts.first().cloned().map_or(MetaOp::Sync, MetaOp::from),
        op => op.clone(),
    }
}

/// The answer to the operation that was sent; nothing where it was not done, since it must be asked alone.
pub(crate) fn answer_alone(result: &MetaResult) -> Option<MetaResult> {
    match result {
        Ok(MetaReply::Acted(all)) => match all.first()?.clone() {
            Acted::Parted { part, range } => Some(Ok(MetaReply::Parted { part, range })),
            acted => acted.result(),
        },
        result => Some(result.clone()),
    }
}

/// Learns from an answer that says that something is elsewhere. Whether it is to be asked for there.
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
        // The partition may be gone, or what else the operation needs.
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

/// The shard's answer in the words of the specification; nothing for one that makes no sense.
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

/// Inodes of which somebody has heard. Clients tell each other, past the network.
#[derive(Debug)]
pub(crate) struct Known {
    dirs: Vec<Ino>,
    files: Vec<Ino>,
    /// Where all is that is not in one of the directories that are known by then.
    first: Ino,
    /// Whether directories are made.
    grows: bool,
    /// Names in a directory.
    names: Name,
}

/// Whether the inode lies with this executor, has lain there, or may.
pub(crate) fn concerns(map: &ShardMap, executor: ExecutorId, ino: Ino) -> bool {
    [ino.shard(), ino.birth()].iter().any(|shard| map.owner(*shard) == Some(executor))
}

impl Known {
    pub fn new(names: Name) -> Known {
        Known { dirs: vec![Ino::ROOT], files: Vec::new(), first: Ino::ROOT, grows: true, names }
    }

    /// A part of the tree for some clients only. They make no directories, because these could lie
    /// on any node, and no more files than a directory has that does not split.
    pub fn island(dirs: Vec<Ino>) -> Known {
        let first = dirs.first().copied().unwrap_or(Ino::ROOT);
        Known { dirs, files: Vec::new(), first, grows: false, names: NAMES }
    }

    /// Notes what an answer tells.
    pub fn learn(&mut self, answer: &Answer) {
        if let Answer::Node { ino, is_dir, .. } = answer {
            let list = if *is_dir { &mut self.dirs } else { &mut self.files };
            if !list.contains(ino) {
                list.push(*ino);
            }
        }
    }

    /// Half of the time one of the newest, which are more likely to be there still.
    fn choose(&self, rng: &mut Rng, list: &[Ino]) -> Ino {
        let from = if rng.bool() { list.len().saturating_sub(4) } else { 0 };
        list.get(rng.usize(from..list.len().max(from + 1))).copied().unwrap_or(self.first)
    }

    fn dir(&self, rng: &mut Rng) -> Ino {
        if rng.u32(..3) == 0 { self.first } else { self.choose(rng, &self.dirs) }
    }

    /// Something to do.
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
