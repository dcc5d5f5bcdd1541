//! Clients: processes with their partition maps, each with one or more requests under way.

use super::costs::OperationKind;
use tatami_wire::meta::{Bytes, InodeTemplate, MetaOp, MetaReply, MetaResult};
use tatami_wire::partition::HashRange;
use tatami_wire::partition_map::PartitionMaps;
use tatami_wire::{ClientId, Errno, Ino, Layout, NodeId};

/// The meaning of a reply.
#[derive(Clone, Copy, Debug)]
pub(super) enum ReceivedAnswer {
    /// The operation is done; with its inode, if the reply has one.
    Done(Option<Ino>),
    /// The partition has these names only.
    WrongPartition(Ino, HashRange),
    /// The name leads to an inode of another server.
    Referral(Ino),
    /// Try again later.
    TryLater,
    Failed(Errno),
}

impl ReceivedAnswer {
    pub fn from_result(result: &MetaResult) -> ReceivedAnswer {
        match result {
            Ok(MetaReply::WrongPartition { part, range }) => {
                ReceivedAnswer::WrongPartition(*part, *range)
            }
            Ok(MetaReply::Referral(ino)) => ReceivedAnswer::Referral(*ino),
            Ok(MetaReply::TryLater) | Err(Errno::EAGAIN) => ReceivedAnswer::TryLater,
            Ok(MetaReply::Attr(attr) | MetaReply::Created { attr, .. }) => {
                ReceivedAnswer::Done(Some(attr.ino))
            }
            Ok(MetaReply::WrongShard { .. }) => ReceivedAnswer::Failed(Errno::EPROTO),
            Ok(_) => ReceivedAnswer::Done(None),
            Err(errno) => ReceivedAnswer::Failed(*errno),
        }
    }
}

/// A slot of a process, which sends one request after the other.
pub(super) struct ScaleSlot {
    pub process: u32,
    pub client: ClientId,
    /// The number in its process.
    pub number: u32,
    pub seq: u64,
    /// The kind of the operation, and the number of its name.
    pub kind: OperationKind,
    pub name: u64,
    /// The request as sent; `None` while there is nothing to do.
    pub op: Option<MetaOp>,
    /// Whether the request is the second one, for the inode to which the name leads.
    pub second: bool,
    /// The partition map was dropped once for this operation.
    pub forgotten: bool,
    /// The reply that has arrived.
    pub heard: Option<ReceivedAnswer>,
}

/// A client process. Its slots share its partition maps.
pub(super) struct ScaleProcess {
    /// The directory in which it works.
    pub dir: Ino,
    /// Its partition maps; `None` while it has the common ones.
    pub known: Option<Box<PartitionMaps>>,
    /// Names from here on were made after the directory had spread; inodes of earlier ones may be
    /// displaced.
    pub since: [u64; 2],
    /// The next name of a file, and of a directory.
    pub next: [u64; 2],
    /// Names below this one are removed.
    pub removed: u64,
    /// Number of names used in this phase.
    pub cursor: u64,
}

/// The names of a phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PhaseNames {
    /// Those made since the directory has spread, at random or from the newest down.
    New,
    /// Those made before.
    Old,
    /// This many, one after the other.
    Each(u64),
}

impl ScaleProcess {
    pub fn new() -> ScaleProcess {
        let dir = Ino::ROOT;
        ScaleProcess { dir, known: None, since: [0; 2], next: [0; 2], removed: 0, cursor: 0 }
    }

    /// Returns the number of the next name of a phase, if there is one.
    pub fn pick_name(
        &mut self,
        kind: OperationKind,
        names: PhaseNames,
        draw: &mut impl FnMut(u64) -> u64,
    ) -> Option<u64> {
        if let PhaseNames::Each(count) = names {
            self.cursor += 1;
            if self.cursor > count {
                return None;
            }
        }
        let at = usize::from(kind == OperationKind::Mkdir);
        let (since, next) = (self.since[at], self.next[at]);
        match (kind, names) {
            (OperationKind::Create | OperationKind::Mkdir, _) => {
                self.next[at] += 1;
                Some(next)
            }
            (_, PhaseNames::Each(count)) => Some(next.checked_sub(count)? + self.cursor - 1),
            (OperationKind::Stat, PhaseNames::New) => {
                (since < next).then(|| since + draw(next - since))
            }
            (OperationKind::Stat, PhaseNames::Old) => (0 < since).then(|| draw(since)),
            (OperationKind::Unlink, PhaseNames::New) => {
                self.next[at] = next.checked_sub(1).filter(|last| *last >= since)?;
                Some(self.next[at])
            }
            (OperationKind::Unlink, PhaseNames::Old) => {
                self.removed += 1;
                (self.removed <= since).then(|| self.removed - 1)
            }
        }
    }
}

/// Returns the name of a file or directory of a process.
fn entry_name(kind: OperationKind, process: u32, number: u64) -> Bytes {
    let what = if kind == OperationKind::Mkdir { "dir" } else { "file" };
    Bytes::from(format!("{what}.mdtest.{process}.{number}").into_bytes())
}

/// Returns the request for a name, addressed to the directory itself.
pub(super) fn build_request(kind: OperationKind, dir: Ino, process: u32, number: u64) -> MetaOp {
    let (parent, name) = (dir, entry_name(kind, process, number));
    let new = |node| MetaOp::Create {
        parent,
        name: name.clone(),
        node,
        mode: 0o755,
        umask: 0o022,
        exclusive: true,
        open: None,
    };
    match kind {
        OperationKind::Create => new(InodeTemplate::File(Layout::whole(NodeId(0)))),
        OperationKind::Mkdir => new(InodeTemplate::Dir),
        OperationKind::Stat => MetaOp::LookupEntry { parent, name },
        OperationKind::Unlink => MetaOp::Unlink { parent, name, keep: false },
    }
}
