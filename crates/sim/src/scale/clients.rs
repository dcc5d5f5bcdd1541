//! Clients: processes with what they know of partitions, each of which has one or more requests under way.

use super::costs::Kind;
use tatami_wire::meta::{Bytes, MetaOp, MetaReply, MetaResult, NewNode};
use tatami_wire::partition::{Directories, Range};
use tatami_wire::{ClientId, Errno, Ino, Layout, NodeId};

/// What an answer says.
#[derive(Clone, Copy, Debug)]
pub(super) enum Heard {
    /// It is done; the inode that it was about, if the answer tells.
    Done(Option<Ino>),
    /// The partition has these names only.
    Parted(Ino, Range),
    /// The name leads to an inode of another server.
    Leads(Ino),
    /// Ask again.
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

/// One that asks for one thing after the other.
pub(super) struct Slot {
    pub process: u32,
    pub client: ClientId,
    /// In its process.
    pub number: u32,
    pub seq: u64,
    /// What is to be done, and with the name of which number.
    pub kind: Kind,
    pub name: u64,
    /// The request, as it was sent; nothing while there is nothing to do.
    pub op: Option<MetaOp>,
    /// It asks for the inode to which the name leads.
    pub second: bool,
    /// What was known of partitions was forgotten for it.
    pub forgotten: bool,
    /// The answer that has come.
    pub heard: Option<Heard>,
}

/// A client process. Slots of one process share what it knows.
pub(super) struct Process {
    /// Where it works.
    pub dir: Ino,
    /// What it has been told of partitions; what all know, where there is nothing of its own.
    pub known: Option<Box<Directories>>,
    /// Names from here on are made in the directories as they are now, those before may be displaced.
    pub since: [u64; 2],
    /// The next name of a file, and of a directory.
    pub next: [u64; 2],
    /// Names below this one are removed.
    pub removed: u64,
    /// Where the phase has come to.
    pub cursor: u64,
}

/// Which names a phase is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Names {
    /// Those that were made since the directory has spread, at random or from the newest down.
    New,
    /// Those that were made before.
    Old,
    /// So many, one after the other.
    Each(u64),
}

impl Process {
    pub fn new() -> Process {
        let dir = Ino::ROOT;
        Process { dir, known: None, since: [0; 2], next: [0; 2], removed: 0, cursor: 0 }
    }

    /// The number of the name that is next in a phase, if there is one more.
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

/// What all clients call a file or directory of a process.
fn name(kind: Kind, process: u32, number: u64) -> Bytes {
    let what = if kind == Kind::Mkdir { "dir" } else { "file" };
    Bytes::from(format!("{what}.mdtest.{process}.{number}").into_bytes())
}

/// The request for it, put to the directory itself.
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
