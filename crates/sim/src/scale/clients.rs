//! Clients: processes with their partition maps, each with one or more requests under way.

use super::costs::Kind;
use tatami_wire::meta::{Bytes, MetaOp, MetaReply, MetaResult, NewNode};
use tatami_wire::partition::{Directories, Range};
use tatami_wire::{ClientId, Errno, Ino, Layout, NodeId};

/// The meaning of a reply.
#[derive(Clone, Copy, Debug)]
pub(super) enum Heard {
    /// The operation is done; with its inode, if the reply has one.
    Done(Option<Ino>),
    /// The partition has these names only.
    Parted(Ino, Range),
    /// The name leads to an inode of another server.
    Leads(Ino),
    /// Try again later.
    Later,
    Failed(Errno),
}

impl Heard {
    pub fn of(result: &MetaResult) -> Heard {
        match result {
            Ok(MetaReply::Parted { part, range }) => Heard::Parted(*part, *range),
            Ok(MetaReply::Leads(ino)) => Heard::Leads(*ino),
            Ok(MetaReply::Later) | Err(Errno::EAGAIN) => Heard::Later,
            Ok(MetaReply::Attr(attr) | MetaReply::Created { attr, .. }) => {
                Heard::Done(Some(attr.ino))
            }
            Ok(MetaReply::Elsewhere { .. }) => Heard::Failed(Errno::EPROTO),
            Ok(_) => Heard::Done(None),
            Err(errno) => Heard::Failed(*errno),
        }
    }
}

/// A slot of a process, which sends one request after the other.
pub(super) struct Slot {
    pub process: u32,
    pub client: ClientId,
    /// The number in its process.
    pub number: u32,
    pub seq: u64,
    /// The kind of the operation, and the number of its name.
    pub kind: Kind,
    pub name: u64,
    /// The request as sent; `None` while there is nothing to do.
    pub op: Option<MetaOp>,
    /// Whether the request is the second one, for the inode to which the name leads.
    pub second: bool,
    /// The partition map was dropped once for this operation.
    pub forgotten: bool,
    /// The reply that has arrived.
    pub heard: Option<Heard>,
}

/// A client process. Its slots share its partition maps.
pub(super) struct Process {
    /// The directory in which it works.
    pub dir: Ino,
    /// Its partition maps; `None` while it has the common ones.
    pub known: Option<Box<Directories>>,
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
pub(super) enum Names {
    /// Those made since the directory has spread, at random or from the newest down.
    New,
    /// Those made before.
    Old,
    /// This many, one after the other.
    Each(u64),
}

impl Process {
    pub fn new() -> Process {
        let dir = Ino::ROOT;
        Process { dir, known: None, since: [0; 2], next: [0; 2], removed: 0, cursor: 0 }
    }

    /// Returns the number of the next name of a phase, if there is one.
    pub fn pick(
        &mut self,
        kind: Kind,
        names: Names,
        draw: &mut impl FnMut(u64) -> u64,
    ) -> Option<u64> {
        if let Names::Each(count) = names {
            self.cursor += 1;
            if self.cursor > count {
                return None;
            }
        }
        let at = usize::from(kind == Kind::Mkdir);
        let (since, next) = (self.since[at], self.next[at]);
        match (kind, names) {
            (Kind::Create | Kind::Mkdir, _) => {
                self.next[at] += 1;
                Some(next)
            }
            (_, Names::Each(count)) => Some(next.checked_sub(count)? + self.cursor - 1),
            (Kind::Stat, Names::New) => (since < next).then(|| since + draw(next - since)),
            (Kind::Stat, Names::Old) => (0 < since).then(|| draw(since)),
            (Kind::Unlink, Names::New) => {
                self.next[at] = next.checked_sub(1).filter(|last| *last >= since)?;
                Some(self.next[at])
            }
            (Kind::Unlink, Names::Old) => {
                self.removed += 1;
                (self.removed <= since).then(|| self.removed - 1)
            }
        }
    }
}

/// Returns the name of a file or directory of a process.
fn name(kind: Kind, process: u32, number: u64) -> Bytes {
    let what = if kind == Kind::Mkdir { "dir" } else { "file" };
    Bytes::from(format!("{what}.mdtest.{process}.{number}").into_bytes())
}

/// Returns the request for a name, addressed to the directory itself.
pub(super) fn operation(kind: Kind, dir: Ino, process: u32, number: u64) -> MetaOp {
    let (parent, name) = (dir, name(kind, process, number));
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
        Kind::Create => new(NewNode::File(Layout::Whole { node: NodeId(0) })),
        Kind::Mkdir => new(NewNode::Dir),
        Kind::Stat => MetaOp::Find { parent, name },
        Kind::Unlink => MetaOp::Unlink { parent, name, keep: false },
    }
}
