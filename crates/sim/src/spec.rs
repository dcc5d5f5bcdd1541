//! The specification of a namespace that does one operation after the other: short enough to be
//! read and believed.
//!
//! Replies are checked rather than computed: the shard chooses the number of a new inode, as long
//! as it is new. The order in which errors are checked is Linux', see `meta::rename`.

use crate::client::hash;
use std::collections::BTreeMap;
use tatami_wire::meta::RenameMode;
use tatami_wire::{Errno, Ino};
use todc_utils::specifications::Specification;

/// A name.
pub(crate) type Name = u8;

/// An operation, as requested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Create {
        dir: Ino,
        name: Name,
        is_dir: bool,
    },
    Lookup {
        dir: Ino,
        name: Name,
    },
    GetAttr {
        ino: Ino,
    },
    Unlink {
        dir: Ino,
        name: Name,
    },
    Rmdir {
        dir: Ino,
        name: Name,
    },
    Rename {
        from: (Ino, Name),
        to: (Ino, Name),
        mode: RenameMode,
    },
    Link {
        ino: Ino,
        dir: Ino,
        name: Name,
    },
    /// Names with a hash above `after`, up to the bound in the reply.
    List {
        dir: Ino,
        after: u64,
    },
}

/// A reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// An inode, its link count, and whether it is a directory.
    Node {
        ino: Ino,
        links: u32,
        is_dir: bool,
    },
    /// The inode that lost a name, and whether it was the last one.
    Removed {
        ino: Option<Ino>,
        last: bool,
    },
    /// All names with a hash of at most `upto`; none follow at the `end`.
    Names {
        names: BTreeMap<Name, Ino>,
        upto: u64,
        end: bool,
    },
    Failed(Errno),
    /// The process died before the reply: the operation may have been done or not.
    Unknown,
}

/// One operation of a history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Operation {
    pub call: Call,
    pub answer: Answer,
}

type Id = u32;
const ROOT: Id = 0;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Node {
    /// `None` until a reply shows the number; the creator may have died before its reply.
    ino: Option<Ino>,
    names: u32,
    dir: Option<Dir>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Dir {
    parent: Id,
    entries: BTreeMap<Name, Id>,
}

/// A namespace.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Namespace {
    nodes: BTreeMap<Id, Node>,
    next: Id,
}

/// The effect of an operation on a namespace.
enum Outcome {
    Node(Id),
    Removed { id: Option<(Id, Option<Ino>)>, last: bool },
    Names(BTreeMap<Name, Id>),
}

impl Namespace {
    fn find(&self, ino: Ino) -> Result<Id, Errno> {
        let known = self.nodes.iter().find(|(_, node)| node.ino == Some(ino));
        known.map(|(id, _)| *id).ok_or(Errno::ESTALE)
    }

    fn dir(&self, ino: Ino) -> Result<Id, Errno> {
        let id = self.find(ino)?;
        if self.is_dir(id) { Ok(id) } else { Err(Errno::ENOTDIR) }
    }

    fn is_dir(&self, id: Id) -> bool {
        self.nodes.get(&id).is_some_and(|node| node.dir.is_some())
    }

    fn entries(&self, dir: Id) -> BTreeMap<Name, Id> {
        let dir = self.nodes.get(&dir).and_then(|node| node.dir.as_ref());
        dir.map(|dir| dir.entries.clone()).unwrap_or_default()
    }

    fn entry(&self, dir: Id, name: Name) -> Option<Id> {
        self.entries(dir).get(&name).copied()
    }

    fn links(&self, id: Id) -> u32 {
        let below = self.entries(id).values().filter(|child| self.is_dir(**child)).count() as u32;
        if self.is_dir(id) { 2 + below } else { self.nodes.get(&id).map_or(0, |node| node.names) }
    }

    fn put(&mut self, dir: Id, name: Name, child: Id) {
        if let Some(parent) = self.nodes.get_mut(&dir).and_then(|node| node.dir.as_mut()) {
            parent.entries.insert(name, child);
        }
        if let Some(node) = self.nodes.get_mut(&child) {
            node.names += 1;
            if let Some(below) = &mut node.dir {
                below.parent = dir;
            }
        }
    }

    fn take(&mut self, dir: Id, name: Name) -> Option<Id> {
        let parent = self.nodes.get_mut(&dir)?.dir.as_mut()?;
        let child = parent.entries.remove(&name)?;
        self.nodes.get_mut(&child)?.names -= 1;
        Some(child)
    }

    /// Removes a node that has no name left.
    fn drop_nameless(&mut self, id: Id) -> Outcome {
        let node = self.nodes.get(&id);
        let (ino, last) = node.map_or((None, true), |node| (node.ino, node.names == 0));
        if last {
            self.nodes.remove(&id);
        }
        Outcome::Removed { id: Some((id, ino)), last }
    }

    fn is_within(&self, mut dir: Id, ancestor: Id) -> bool {
        // The loop is bounded by the number of directories, so that a cycle ends it.
        for _ in 0..=self.nodes.len() {
            if dir == ancestor {
                return true;
            }
            match self.nodes.get(&dir).and_then(|node| node.dir.as_ref()) {
                Some(node) if dir != ROOT => dir = node.parent,
                _ => return false,
            }
        }
        true
    }

    fn execute(&mut self, call: &Call) -> Result<Outcome, Errno> {
        match call {
            Call::Create { dir, name, is_dir } => {
                let dir = self.dir(*dir)?;
                if self.entry(dir, *name).is_some() {
                    return Err(Errno::EEXIST);
                }
                let id = self.next;
                self.next += 1;
                let below = is_dir.then(|| Dir { parent: dir, entries: BTreeMap::new() });
                self.nodes.insert(id, Node { ino: None, names: 0, dir: below });
                self.put(dir, *name, id);
                Ok(Outcome::Node(id))
            }
            Call::Lookup { dir, name } => {
                let dir = self.dir(*dir)?;
                self.entry(dir, *name).map(Outcome::Node).ok_or(Errno::ENOENT)
            }
            Call::GetAttr { ino } => self.find(*ino).map(Outcome::Node),
            Call::Unlink { dir, name } => {
                let dir = self.dir(*dir)?;
                let child = self.entry(dir, *name).ok_or(Errno::ENOENT)?;
                if self.is_dir(child) {
                    return Err(Errno::EISDIR);
                }
                self.take(dir, *name);
                Ok(self.drop_nameless(child))
            }
            Call::Rmdir { dir, name } => {
                let dir = self.dir(*dir)?;
                let child = self.entry(dir, *name).ok_or(Errno::ENOENT)?;
                if !self.is_dir(child) {
                    return Err(Errno::ENOTDIR);
                }
                if !self.entries(child).is_empty() {
                    return Err(Errno::ENOTEMPTY);
                }
                self.take(dir, *name);
                Ok(self.drop_nameless(child))
            }
            Call::Rename { from, to, mode } => self.rename(*from, *to, *mode),
            Call::Link { ino, dir, name } => {
                let dir = self.dir(*dir)?;
                if self.entry(dir, *name).is_some() {
                    return Err(Errno::EEXIST);
                }
                let id = self.find(*ino)?;
                if self.is_dir(id) {
                    return Err(Errno::EPERM);
                }
                self.put(dir, *name, id);
                Ok(Outcome::Node(id))
            }
            Call::List { dir, after } => {
                let dir = self.dir(*dir)?;
                let mut entries = self.entries(dir);
                entries.retain(|name, _| hash(*name) > *after);
                Ok(Outcome::Names(entries))
            }
        }
    }

    fn rename(
        &mut self,
        (from, name): (Ino, Name),
        (to, new_name): (Ino, Name),
        mode: RenameMode,
    ) -> Result<Outcome, Errno> {
        let nothing = Outcome::Removed { id: None, last: false };
        let (from, to) = (self.dir(from)?, self.dir(to)?);
        let (source, target) = (self.entry(from, name), self.entry(to, new_name));
        let source = source.ok_or(Errno::ENOENT)?;
        match (mode, target) {
            (RenameMode::NoReplace, Some(_)) => return Err(Errno::EEXIST),
            (RenameMode::Exchange, None) => return Err(Errno::ENOENT),
            _ => {}
        }
        let exchange = mode == RenameMode::Exchange;
        if from != to && self.is_dir(source) && self.is_within(to, source) {
            return Err(Errno::EINVAL);
        }
        if from != to && target.is_some_and(|t| self.is_dir(t) && self.is_within(from, t)) {
            return Err(if exchange { Errno::EINVAL } else { Errno::ENOTEMPTY });
        }
        let Some(target) = target else {
            self.take(from, name);
            self.put(to, new_name, source);
            return Ok(nothing);
        };
        if target == source {
            return Ok(nothing);
        }
        if exchange {
            self.take(from, name);
            self.take(to, new_name);
            self.put(to, new_name, source);
            self.put(from, name, target);
            return Ok(nothing);
        }
        match (self.is_dir(source), self.is_dir(target)) {
            (true, false) => return Err(Errno::ENOTDIR),
            (false, true) => return Err(Errno::EISDIR),
            (true, true) if !self.entries(target).is_empty() => return Err(Errno::ENOTEMPTY),
            _ => {}
        }
        self.take(to, new_name);
        self.take(from, name);
        self.put(to, new_name, source);
        Ok(self.drop_nameless(target))
    }

    /// Binds `ino` to the node `id`, if that is possible. Returns whether the node has that number
    /// now.
    fn meet(&mut self, id: Id, ino: Ino) -> bool {
        let taken = self.nodes.iter().any(|(other, node)| *other != id && node.ino == Some(ino));
        match self.nodes.get_mut(&id) {
            Some(node) if node.ino.is_none() && !taken => {
                node.ino = Some(ino);
                true
            }
            Some(node) => node.ino == Some(ino),
            None => false,
        }
    }

    /// Returns whether the reply is possible for this outcome.
    fn fits(&mut self, outcome: &Outcome, answer: &Answer) -> bool {
        match (outcome, answer) {
            (_, Answer::Unknown) => true,
            (Outcome::Node(id), Answer::Node { ino, links, is_dir }) => {
                self.meet(*id, *ino) && self.links(*id) == *links && self.is_dir(*id) == *is_dir
            }
            (Outcome::Removed { id: None, last }, Answer::Removed { ino: None, last: told }) => {
                last == told
            }
            (
                Outcome::Removed { id: Some((id, known)), last },
                Answer::Removed { ino: Some(ino), last: told },
            ) => {
                let same = match known {
                    Some(known) => known == ino,
                    None if *last => self.nodes.values().all(|node| node.ino != Some(*ino)),
                    None => self.meet(*id, *ino),
                };
                same && last == told
            }
            (Outcome::Names(entries), Answer::Names { names, upto, end }) => {
                let told: BTreeMap<_, _> =
                    entries.iter().filter(|(name, _)| *end || hash(**name) <= *upto).collect();
                told.len() == names.len()
                    && told
                        .into_iter()
                        .all(|(name, id)| names.get(name).is_some_and(|ino| self.meet(*id, *ino)))
            }
            _ => false,
        }
    }
}

/// The [`Specification`] of a namespace that begins with its root.
pub(crate) struct Spec;

impl Specification for Spec {
    type State = Namespace;
    type Operation = Operation;

    fn init() -> Namespace {
        let dir = Some(Dir { parent: ROOT, entries: BTreeMap::new() });
        let root = Node { ino: Some(Ino::ROOT), names: 1, dir };
        Namespace { nodes: BTreeMap::from([(ROOT, root)]), next: ROOT + 1 }
    }

    fn apply(operation: &Operation, before: &Namespace) -> (bool, Namespace) {
        let mut after = before.clone();
        let fits = match after.execute(&operation.call) {
            Ok(outcome) => after.fits(&outcome, &operation.answer),
            Err(errno) => match operation.answer {
                Answer::Failed(told) => told == errno,
                Answer::Unknown => true,
                _ => false,
            },
        };
        (fits, after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all_fit(operations: Vec<(Call, Answer)>) -> bool {
        let mut state = Spec::init();
        operations.into_iter().all(|(call, answer)| {
            let (fits, after) = Spec::apply(&Operation { call, answer }, &state);
            state = after;
            fits
        })
    }

    const A: Ino = Ino(100);
    const B: Ino = Ino(101);

    fn mkdir(dir: Ino, name: Name, ino: Ino) -> (Call, Answer) {
        let answer = Answer::Node { ino, links: 2, is_dir: true };
        (Call::Create { dir, name, is_dir: true }, answer)
    }

    fn rename(from: (Ino, Name), to: (Ino, Name), answer: Answer) -> (Call, Answer) {
        (Call::Rename { from, to, mode: RenameMode::Replace }, answer)
    }

    #[test]
    fn a_directory_does_not_go_into_itself() {
        let into_itself = rename((Ino::ROOT, 0), (B, 7), Answer::Failed(Errno::EINVAL));
        assert!(all_fit(vec![mkdir(Ino::ROOT, 0, A), mkdir(A, 1, B), into_itself.clone()]));
        let done = rename((Ino::ROOT, 0), (B, 7), Answer::Removed { ino: None, last: false });
        assert!(!all_fit(vec![mkdir(Ino::ROOT, 0, A), mkdir(A, 1, B), done]));
    }

    #[test]
    fn a_new_inode_has_a_new_number() {
        assert!(all_fit(vec![mkdir(Ino::ROOT, 0, A), mkdir(Ino::ROOT, 1, B)]));
        assert!(!all_fit(vec![mkdir(Ino::ROOT, 0, A), mkdir(Ino::ROOT, 1, A)]));
    }

    #[test]
    fn what_a_dead_client_made_is_met_later() {
        let made = (Call::Create { dir: Ino::ROOT, name: 0, is_dir: true }, Answer::Unknown);
        let seen = |ino| {
            let answer = Answer::Node { ino, links: 2, is_dir: true };
            (Call::Lookup { dir: Ino::ROOT, name: 0 }, answer)
        };
        assert!(all_fit(vec![made.clone(), seen(A), seen(A), mkdir(A, 1, B)]));
        assert!(!all_fit(vec![made, seen(A), seen(B)]));
    }
}
