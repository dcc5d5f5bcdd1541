//! Clients: each slot has one operation under way, and repeats it until there is a reply.

use crate::entry_names::{NAMES, NameNumber, hash_seed, name_bytes};
use crate::file_client::{
    FileMove, choose_bytes, choose_file_call, lacks_bytes, to_file_answer, to_file_op,
    to_other_read,
};
use crate::history::ProcessNumber;
use crate::spec::{SpecAnswer, SpecCall};
use fastrand::Rng;
use tatami_wire::batch::{BatchOp, BatchResult};
use tatami_wire::meta::{InodeTemplate, MetaOp, MetaReply, MetaResult, RenameMode};
use tatami_wire::partition_map::PartitionMaps;
use tatami_wire::{
    Attr, ClientId, Errno, ExecutorId, Ino, InodeKind, Layout, NodeId, READDIR_MAX, ShardMap,
};

/// A request of a client.
#[derive(Clone, Debug)]
pub(crate) struct ClientRequest {
    pub process: ProcessNumber,
    pub client: ClientId,
    pub slot: u32,
    pub seq: u64,
    /// The number of the process's connection, counted up.
    pub connection: u64,
    pub op: MetaOp,
}

impl ClientRequest {
    /// Returns the reply to this request.
    pub fn to_reply(&self, result: MetaResult) -> ClientReply {
        let ClientRequest { process, seq, connection, .. } = *self;
        ClientReply { process, seq, connection, result }
    }
}

/// The reply of a daemon.
#[derive(Clone, Debug)]
pub(crate) struct ClientReply {
    pub process: ProcessNumber,
    pub seq: u64,
    pub connection: u64,
    pub result: MetaResult,
}

/// One slot of a client, which sends one request after the other.
#[derive(Debug)]
pub(crate) struct ClientSlot {
    /// The partition maps that it has learned.
    pub directories: PartitionMaps,
    /// The request under way, as it was sent to a partition. A repetition goes to the same
    /// partition, because the operation may have been done there.
    pub sent: Option<MetaOp>,
    /// The partition map was dropped once for this operation.
    pub forgotten: bool,
    /// A batch did not do the operation, so it is sent alone.
    pub alone: bool,
    /// The continuation of the listing, or of the move of a file, that it has begun.
    pub next_call: Option<SpecCall>,
    /// The move of a file that is under way.
    pub file_move: Option<FileMove>,
    pub process: ProcessNumber,
    pub client: ClientId,
    pub number: u32,
    /// Sequence number of the operation under way, or of the last one.
    pub seq: u64,
    /// Increases with every repeated request. The slot ignores replies over earlier connections.
    /// The reason: a daemon does not keep the reply to a failed request when it dies, so its next
    /// incarnation may answer the same request otherwise.
    pub connection: u64,
    pub pending: Option<SpecCall>,
    /// Operations still to be done.
    pub left: u32,
    /// Whether the slot works on the island, see [`KnownInodes::from_island`].
    pub on_island: bool,
}

impl ClientSlot {
    /// Returns whether there is nothing left to do.
    pub fn is_done(&self) -> bool {
        self.left == 0 && self.pending.is_none()
    }

    /// Returns the request under way, to be sent for the first time or again.
    pub fn next_request(&mut self, map: &ShardMap) -> Option<ClientRequest> {
        let pending = self.pending.as_ref()?;
        let op = self.sent.get_or_insert_with(|| {
            let mut op = to_meta_op(pending);
            self.directories.locate_op(map, hash_seed(), &mut op);
            // A batch operation must have the same effect, so half of the operations are sent as
            // one.
            match self.alone {
                true => op,
                false if self.seq.is_multiple_of(2) => to_batch(op),
                false => to_other_read(op, self.seq / 2),
            }
        });
        let op = op.clone();
        let ClientSlot { process, client, number, seq, connection, .. } = *self;
        Some(ClientRequest { process, client, slot: number, seq, connection, op })
    }
}

/// Returns the operation as a batch, if that is possible.
fn to_batch(op: MetaOp) -> MetaOp {
    let operation = match op {
        MetaOp::Create { parent, name, node, mode, umask, exclusive, open } => {
            BatchOp::Create { parent, name, node, mode, umask, exclusive, open }
        }
        MetaOp::Unlink { parent, name, keep } => BatchOp::Unlink { parent, name, keep },
        MetaOp::Rmdir { parent, name, keep } => BatchOp::Rmdir { parent, name, keep },
        MetaOp::GetAttr { ino } => BatchOp::GetAttr { ino },
        MetaOp::Link { ino, parent, name } => BatchOp::Link { ino, parent, name },
        MetaOp::CreateFilled { parent, name, layout, mode, umask, bytes, set } => {
            BatchOp::CreateFilled { parent, name, layout, mode, umask, bytes, set }
        }
        MetaOp::ReadInline { ino } => BatchOp::ReadInline { ino },
        op => return op,
    };
    // The second operation sees the effect of the first one.
    let entry = operation
        .named_entry()
        .map(|(parent, name)| BatchOp::LookupEntry { parent, name: name.clone() });
    MetaOp::Batch { operations: [Some(operation), entry].into_iter().flatten().collect() }
}

/// Returns the operation of a batch, or the operation itself.
fn single_op(sent: &MetaOp) -> MetaOp {
    match sent {
        MetaOp::Batch { operations } => {
            operations.first().cloned().map_or(MetaOp::Sync, MetaOp::from)
        }
        op => op.clone(),
    }
}

/// Returns the reply to the single operation. `None` if the operation must be sent alone: the batch
/// did not do it, or an open did not come with the bytes.
pub(crate) fn single_result(call: &SpecCall, result: &MetaResult) -> Option<MetaResult> {
    match result {
        Ok(reply) if matches!(call, SpecCall::File { call, .. } if lacks_bytes(call, reply)) => {
            None
        }
        Ok(MetaReply::BatchResults(all)) => match all.first()?.clone() {
            BatchResult::WrongPartition { part, range } => {
                Some(Ok(MetaReply::WrongPartition { part, range }))
            }
            result => result.into_result(),
        },
        result => Some(result.clone()),
    }
}

/// Updates the partition map from a reply that redirects the client. Returns whether the operation
/// must be sent again.
pub(crate) fn apply_correction(
    (directories, forgotten): (&mut PartitionMaps, &mut bool),
    map: &ShardMap,
    (call, sent): (&SpecCall, &MetaOp),
    result: &MetaResult,
) -> bool {
    match result {
        Ok(MetaReply::WrongPartition { part, range }) => {
            directories.record_partition(map, *part, *range);
            true
        }
        // The partition may have gone, or the inode that the operation needs. Dropping the map once
        // distinguishes the two.
        Err(Errno::ESTALE) if !*forgotten && to_meta_op(call) != single_op(sent) => {
            *forgotten = true;
            directories.forget_directories(hash_seed(), &to_meta_op(call));
            true
        }
        _ => false,
    }
}

pub(crate) fn to_meta_op(call: &SpecCall) -> MetaOp {
    match call {
        SpecCall::Create { dir, name, is_dir } => MetaOp::Create {
            parent: *dir,
            name: name_bytes(*name),
            node: match is_dir {
                true => InodeTemplate::Dir,
                false => InodeTemplate::File(Layout::whole(NodeId(0))),
            },
            mode: 0o755,
            umask: 0,
            exclusive: true,
            open: None,
        },
        SpecCall::Fill { dir, name, bytes } => MetaOp::CreateFilled {
            parent: *dir,
            name: name_bytes(*name),
            layout: Layout::whole(NodeId(0)),
            mode: 0o755,
            umask: 0,
            bytes: bytes.clone().into(),
            set: None,
        },
        SpecCall::File { ino, call } => to_file_op(*ino, call),
        SpecCall::Lookup { dir, name } => MetaOp::Lookup { parent: *dir, name: name_bytes(*name) },
        SpecCall::GetAttr { ino } => MetaOp::GetAttr { ino: *ino },
        SpecCall::Unlink { dir, name } => {
            MetaOp::Unlink { parent: *dir, name: name_bytes(*name), keep: false }
        }
        SpecCall::Rmdir { dir, name } => {
            MetaOp::Rmdir { parent: *dir, name: name_bytes(*name), keep: false }
        }
        SpecCall::Rename { from, to, mode } => MetaOp::Rename {
            parent: from.0,
            name: name_bytes(from.1),
            new_parent: to.0,
            new_name: name_bytes(to.1),
            mode: *mode,
            keep: false,
        },
        SpecCall::Link { ino, dir, name } => {
            MetaOp::Link { ino: *ino, parent: *dir, name: name_bytes(*name) }
        }
        SpecCall::List { dir, after } => {
            MetaOp::ReadDir { dir: *dir, after: *after, limit: READDIR_MAX, plus: false }
        }
    }
}

/// Converts the shard's reply into the terms of the specification. `None` for a reply that makes no
/// sense.
pub(crate) fn to_answer(call: &SpecCall, result: &MetaResult) -> Option<SpecAnswer> {
    let node = |attr: &Attr| SpecAnswer::Node {
        ino: attr.ino,
        links: attr.nlink,
        is_dir: attr.kind == InodeKind::Dir,
        size: if attr.kind == InodeKind::Dir { 0 } else { attr.size },
    };
    if let (SpecCall::File { call, .. }, Ok(reply)) = (call, result)
        && let Some(answer) = to_file_answer(call, reply)
    {
        return Some(SpecAnswer::File(answer));
    }
    Some(match result {
        Err(errno) => SpecAnswer::Failed(*errno),
        Ok(
            MetaReply::Attr(attr)
            | MetaReply::Created { attr, .. }
            | MetaReply::Opened { attr, .. },
        ) => node(attr),
        Ok(MetaReply::Removed { ino, last } | MetaReply::Renamed { ino, last, .. }) => {
            SpecAnswer::Removed { ino: *ino, last: *last }
        }
        Ok(MetaReply::Entries { entries, end, upto, .. }) => {
            let known = entries.iter().map(|entry| {
                let number = entry.name.strip_prefix(b"n")?;
                Some((std::str::from_utf8(number).ok()?.parse().ok()?, entry.ino))
            });
            SpecAnswer::Names { names: known.collect::<Option<_>>()?, upto: *upto, end: *end }
        }
        Ok(_) => return None,
    })
}

/// Inodes known to the clients. The clients share this knowledge, past the network.
#[derive(Debug)]
pub(crate) struct KnownInodes {
    dirs: Vec<Ino>,
    files: Vec<Ino>,
    /// The top directory: at the beginning it contains everything.
    first: Ino,
    /// Whether the clients create directories.
    grows: bool,
    /// Names in a directory.
    names: NameNumber,
    /// Whether the clients use the bytes of files, which are small ones.
    small_files: bool,
}

/// Returns whether the inode lies with this executor, has lain there, or may.
pub(crate) fn concerns_executor(map: &ShardMap, executor: ExecutorId, ino: Ino) -> bool {
    [ino.owner_shard(), ino.allocating_shard()]
        .iter()
        .any(|shard| map.owner(*shard) == Some(executor))
}

impl KnownInodes {
    pub fn new(names: NameNumber, small_files: bool) -> KnownInodes {
        KnownInodes {
            dirs: vec![Ino::ROOT],
            files: Vec::new(),
            first: Ino::ROOT,
            grows: true,
            names,
            small_files,
        }
    }

    /// Returns a part of the tree for some clients only. They create no directories, because these
    /// could lie on any node, and no more files than a directory has that does not split.
    pub fn from_island(dirs: Vec<Ino>, small_files: bool) -> KnownInodes {
        let first = dirs.first().copied().unwrap_or(Ino::ROOT);
        KnownInodes { dirs, files: Vec::new(), first, grows: false, names: NAMES, small_files }
    }

    /// Adds the inode of a reply.
    pub fn add_answer(&mut self, answer: &SpecAnswer) {
        if let SpecAnswer::Node { ino, is_dir, .. } = answer {
            let list = if *is_dir { &mut self.dirs } else { &mut self.files };
            if !list.contains(ino) {
                list.push(*ino);
            }
        }
    }

    /// Chooses an inode. Half of the time one of the newest, which are more likely to exist still.
    fn choose_inode(&self, rng: &mut Rng, list: &[Ino]) -> Ino {
        let from = if rng.bool() { list.len().saturating_sub(4) } else { 0 };
        list.get(rng.usize(from..list.len().max(from + 1))).copied().unwrap_or(self.first)
    }

    fn choose_dir(&self, rng: &mut Rng) -> Ino {
        if rng.u32(..3) == 0 { self.first } else { self.choose_inode(rng, &self.dirs) }
    }

    /// Returns the files that were seen, also those that are gone.
    pub fn all_files(&self) -> &[Ino] {
        &self.files
    }

    /// Chooses the next call of a process.
    pub fn choose_call(&self, rng: &mut Rng, process: ProcessNumber) -> SpecCall {
        if self.small_files && rng.u32(..100) < 60 {
            if self.files.is_empty() || rng.u32(..4) == 0 {
                let (dir, name) = (self.choose_dir(rng), rng.u8(..self.names));
                return SpecCall::Fill { dir, name, bytes: choose_bytes(rng) };
            }
            let ino = self.choose_inode(rng, &self.files);
            return SpecCall::File { ino, call: choose_file_call(rng, process) };
        }
        let (dir, name) = (self.choose_dir(rng), rng.u8(..self.names));
        match rng.u32(..100) {
            0..14 => SpecCall::Create { dir, name, is_dir: false },
            14..34 => SpecCall::Create { dir, name, is_dir: self.grows },
            34..40 => SpecCall::Unlink { dir, name },
            40..46 => SpecCall::Rmdir { dir, name },
            46..72 => {
                let to = (self.choose_dir(rng), rng.u8(..self.names));
                let modes = [RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange];
                SpecCall::Rename { from: (dir, name), to, mode: modes[rng.usize(..modes.len())] }
            }
            72..80 => {
                let all = if rng.u32(..8) == 0 { &self.dirs } else { &self.files };
                SpecCall::Link { ino: self.choose_inode(rng, all), dir, name }
            }
            80..88 => SpecCall::Lookup { dir, name },
            88..93 => {
                let all = if rng.bool() { &self.dirs } else { &self.files };
                SpecCall::GetAttr { ino: self.choose_inode(rng, all) }
            }
            _ => SpecCall::List { dir, after: 0 },
        }
    }
}
