//! How clients use small files: the requests, and the steps by which a file that outgrows its limit
//! moves to an object.

use crate::entry_names::volume_key;
use crate::file_spec::{FileAnswer, FileCall, INLINE_LIMIT, OpenerNumber};
use fastrand::Rng;
use tatami_wire::inline::{InlineOp, InlineReply};
use tatami_wire::meta::{Bytes, DataState, MetaOp, MetaReply, XattrMode};
use tatami_wire::policy::POLICY_PREFIX;
use tatami_wire::{Access, Cap, Ino, NodeId, Timestamp};

/// The node of all objects. No node has them: only their numbers matter here.
const OBJECT_NODE: NodeId = NodeId(0);

/// Returns the operation that makes the files of a directory, and of those below, small files.
pub(crate) fn inline_policy(dir: Ino) -> MetaOp {
    let value = INLINE_LIMIT.to_string().into_bytes();
    let name = format!("{POLICY_PREFIX}inline").into_bytes();
    MetaOp::SetXattr { ino: dir, name: name.into(), value: value.into(), mode: XattrMode::Set }
}

/// Chooses a few bytes that are hardly written twice.
pub(crate) fn choose_bytes(rng: &mut Rng) -> Vec<u8> {
    (0..rng.usize(1..=3)).map(|_| rng.u8(1..)).collect()
}

/// Chooses an operation on a file.
pub(crate) fn choose_file_call(rng: &mut Rng, opener: OpenerNumber) -> FileCall {
    match rng.u32(..100) {
        0..35 => FileCall::Append { bytes: choose_bytes(rng) },
        35..45 => FileCall::Overwrite { offset: rng.u64(..INLINE_LIMIT), bytes: choose_bytes(rng) },
        45..53 => FileCall::Cut { size: rng.u64(..=INLINE_LIMIT + 1) },
        53..85 => FileCall::Read,
        _ => FileCall::Open { opener },
    }
}

fn sign_capability(ino: Ino) -> Cap {
    // It is valid for longer than a run takes.
    Cap::sign(&volume_key(), ino, Access::BOTH, Timestamp::from_sec(1_000_000))
}

/// Returns the request for an operation on a file.
pub(crate) fn to_file_op(ino: Ino, call: &FileCall) -> MetaOp {
    let inline = |op| MetaOp::Inline { ino, cap: sign_capability(ino), op };
    let bytes = |bytes: &Vec<u8>| Bytes::from(bytes.clone());
    match call {
        FileCall::Append { bytes: all } => inline(InlineOp::Append { bytes: bytes(all) }),
        FileCall::Overwrite { offset, bytes: all } => {
            inline(InlineOp::Write { offset: *offset, bytes: bytes(all) })
        }
        FileCall::Cut { size } => inline(InlineOp::SetSize { size: *size }),
        FileCall::Read => MetaOp::ReadInline { ino },
        FileCall::Open { .. } => MetaOp::Open { ino, access: Access::WRITE, registered: false },
        FileCall::Reserve { .. } => MetaOp::Reserve { ino, nodes: vec![OBJECT_NODE] },
        FileCall::Move { object, copy, .. } => {
            let (mtime, changed) = (Timestamp::default(), Timestamp::default());
            let state = DataState { size: copy.len() as u64, blocks: 1, mtime, changed };
            MetaOp::Relayout { ino, pieces: Vec::new(), base: (OBJECT_NODE, *object), state }
        }
        FileCall::Close { .. } => {
            MetaOp::ReportClosed { inos: vec![ino], empty: Vec::new(), read: Vec::new() }
        }
    }
}

/// Returns the other requests that read a file as [`to_file_op`] does: an open, which has the bytes
/// in its reply, and a read of an open file.
pub(crate) fn to_other_read(op: MetaOp, number: u64) -> MetaOp {
    match op {
        MetaOp::ReadInline { ino } if number.is_multiple_of(2) => {
            MetaOp::Open { ino, access: Access::READ, registered: false }
        }
        MetaOp::ReadInline { ino } => {
            let op = InlineOp::Read { offset: 0, len: 2 * INLINE_LIMIT as u32 };
            MetaOp::Inline { ino, cap: sign_capability(ino), op }
        }
        op => op,
    }
}

/// Returns whether the reply to a read is an open without the bytes: they must be read, too.
pub(crate) fn lacks_bytes(call: &FileCall, reply: &MetaReply) -> bool {
    matches!((call, reply), (FileCall::Read, MetaReply::Opened { attr, .. })
        if attr.layout.is_inline() && attr.size > 0)
}

/// Converts a reply without attributes. `None` for any other, and one that makes no sense.
pub(crate) fn to_file_answer(call: &FileCall, reply: &MetaReply) -> Option<FileAnswer> {
    let whole = |size: u64, bytes: &Bytes| {
        (size == bytes.len() as u64).then(|| FileAnswer::Bytes(bytes.to_vec()))
    };
    match (call, reply) {
        (_, MetaReply::Inline(InlineReply::TooLarge)) => Some(FileAnswer::TooLarge),
        (_, MetaReply::Inline(InlineReply::Moved { .. })) => Some(FileAnswer::Moved),
        (FileCall::Read, MetaReply::Inline(InlineReply::Done { state, bytes })) => {
            whole(state.size, bytes)
        }
        (_, MetaReply::Inline(InlineReply::Done { state, .. })) => {
            Some(FileAnswer::Changed { size: state.size })
        }
        (FileCall::Read, MetaReply::OpenedInline { attr, bytes, .. }) => whole(attr.size, bytes),
        (FileCall::Read, MetaReply::Opened { attr, .. }) => Some(match attr.layout.is_inline() {
            true => FileAnswer::Bytes(Vec::new()),
            false => FileAnswer::Moved,
        }),
        (_, MetaReply::Pieces { first, .. }) => Some(FileAnswer::Reserved { object: *first }),
        (FileCall::Close { .. }, MetaReply::Done) => Some(FileAnswer::Closed),
        _ => None,
    }
}

/// The steps of a client that moves a file to an object.
#[derive(Clone, Debug)]
pub(crate) struct FileMove {
    opener: OpenerNumber,
    object: Option<u32>,
    copy: Option<Vec<u8>>,
    /// The client makes the mistake to copy the bytes before it reserves an object.
    copies_first: bool,
}

impl FileMove {
    /// Begins a move by an open file.
    pub fn new(opener: OpenerNumber, copies_first: bool) -> FileMove {
        FileMove { opener, object: None, copy: None, copies_first }
    }

    /// Returns the step after a step with this reply; `None` at the end. A step that failed is
    /// followed by the close.
    pub fn next_step(&mut self, step: &FileCall, answer: Option<&FileAnswer>) -> Option<FileCall> {
        let opener = self.opener;
        match (step, answer) {
            (FileCall::Close { .. }, _) => return None,
            (FileCall::Open { .. }, _) => {}
            (_, Some(FileAnswer::Reserved { object })) => self.object = Some(*object),
            (_, Some(FileAnswer::Bytes(bytes))) => self.copy = Some(bytes.clone()),
            _ => return Some(FileCall::Close { opener }),
        }
        Some(match (self.object, &self.copy) {
            (None, None) if self.copies_first => FileCall::Read,
            (None, _) => FileCall::Reserve { opener },
            (Some(_), None) => FileCall::Read,
            (Some(object), Some(copy)) => FileCall::Move { opener, object, copy: copy.clone() },
        })
    }
}
