//! The specification of a namespace that does one operation after the other: short enough to be
//! read and believed.
//!
//! Replies are checked rather than computed: the shard chooses the number of a new inode, as long
//! as it is new. The order in which errors are checked is Linux', see `meta::rename`.

use crate::entry_names::{NameNumber, hash_name};
use crate::file_spec::{FileAnswer, FileCall, FileOutcome, SpecFile};
use std::collections::BTreeMap;
use tatami_wire::meta::RenameMode;
use tatami_wire::{Errno, Ino};
use todc_utils::specifications::Specification;

/// An operation, as requested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SpecCall {
    Create {
        dir: Ino,
        name: NameNumber,
        is_dir: bool,
    },
    /// Creates a file with its bytes.
    Fill {
        dir: Ino,
        name: NameNumber,
        bytes: Vec<u8>,
    },
    Lookup {
        dir: Ino,
        name: NameNumber,
    },
    GetAttr {
        ino: Ino,
    },
    Unlink {
        dir: Ino,
        name: NameNumber,
    },
    Rmdir {
        dir: Ino,
        name: NameNumber,
    },
    Rename {
        from: (Ino, NameNumber),
        to: (Ino, NameNumber),
        mode: RenameMode,
    },
    Link {
        ino: Ino,
        dir: Ino,
        name: NameNumber,
    },
    /// Names with a hash above `after`, up to the bound in the reply.
    List {
        dir: Ino,
        after: u64,
    },
    /// An operation on the bytes of a small file.
    File {
        ino: Ino,
        call: FileCall,
    },
}

/// A reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SpecAnswer {
    /// An inode, its link count, and whether it is a directory. `size` is that of a file, and 0 for
    /// a directory.
    Node {
        ino: Ino,
        links: u32,
        is_dir: bool,
        size: u64,
    },
    /// The inode that lost a name, and whether it was the last one.
    Removed {
        ino: Option<Ino>,
        last: bool,
    },
    /// All names with a hash of at most `upto`; none follow at the `end`.
    Names {
        names: BTreeMap<NameNumber, Ino>,
        upto: u64,
        end: bool,
    },
    File(FileAnswer),
    Failed(Errno),
    /// The process died before the reply: the operation may have been done or not.
    Unknown,
}

/// One operation of a history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SpecOperation {
    pub call: SpecCall,
    pub answer: SpecAnswer,
}

type NodeNumber = u32;
const ROOT: NodeNumber = 0;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct SpecNode {
    /// `None` until a reply shows the number; the creator may have died before its reply.
    ino: Option<Ino>,
    names: u32,
    dir: Option<SpecDir>,
    /// The content of a file.
    file: SpecFile,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct SpecDir {
    parent: NodeNumber,
    entries: BTreeMap<NameNumber, NodeNumber>,
}

/// A namespace.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SpecNamespace {
    nodes: BTreeMap<NodeNumber, SpecNode>,
    next: NodeNumber,
}

/// The effect of an operation on a namespace.
enum SpecOutcome {
    Node(NodeNumber),
    Removed {
        id: Option<(NodeNumber, Option<Ino>)>,
        last: bool,
    },
    Names(BTreeMap<NameNumber, NodeNumber>),
    File(FileAnswer),
    /// The reply names an object of a file.
    AnyObject,
}

impl SpecNamespace {
    fn find_node(&self, ino: Ino) -> Result<NodeNumber, Errno> {
        let known = self.nodes.iter().find(|(_, node)| node.ino == Some(ino));
        known.map(|(id, _)| *id).ok_or(Errno::ESTALE)
    }

    fn find_dir(&self, ino: Ino) -> Result<NodeNumber, Errno> {
        let id = self.find_node(ino)?;
        if self.is_dir(id) { Ok(id) } else { Err(Errno::ENOTDIR) }
    }

    fn is_dir(&self, id: NodeNumber) -> bool {
        self.nodes.get(&id).is_some_and(|node| node.dir.is_some())
    }

    fn dir_entries(&self, dir: NodeNumber) -> BTreeMap<NameNumber, NodeNumber> {
        let dir = self.nodes.get(&dir).and_then(|node| node.dir.as_ref());
        dir.map(|dir| dir.entries.clone()).unwrap_or_default()
    }

    fn find_entry(&self, dir: NodeNumber, name: NameNumber) -> Option<NodeNumber> {
        self.dir_entries(dir).get(&name).copied()
    }

    fn count_links(&self, id: NodeNumber) -> u32 {
        let below =
            self.dir_entries(id).values().filter(|child| self.is_dir(**child)).count() as u32;
        if self.is_dir(id) { 2 + below } else { self.nodes.get(&id).map_or(0, |node| node.names) }
    }

    fn insert_entry(&mut self, dir: NodeNumber, name: NameNumber, child: NodeNumber) {
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

    fn remove_entry(&mut self, dir: NodeNumber, name: NameNumber) -> Option<NodeNumber> {
        let parent = self.nodes.get_mut(&dir)?.dir.as_mut()?;
        let child = parent.entries.remove(&name)?;
        self.nodes.get_mut(&child)?.names -= 1;
        Some(child)
    }

    /// Removes a node that has no name left, unless a process has it open.
    fn drop_nameless(&mut self, id: NodeNumber) -> SpecOutcome {
        let node = self.nodes.get(&id);
        let (ino, last) = node.map_or((None, true), |node| (node.ino, node.names == 0));
        if last && node.is_none_or(|node| !node.file.is_open()) {
            self.nodes.remove(&id);
        }
        SpecOutcome::Removed { id: Some((id, ino)), last }
    }

    /// Creates an entry that leads to a new node.
    fn create_node(
        &mut self,
        (dir, name): (Ino, NameNumber),
        is_dir: bool,
        file: SpecFile,
    ) -> Result<SpecOutcome, Errno> {
        let dir = self.find_dir(dir)?;
        if self.find_entry(dir, name).is_some() {
            return Err(Errno::EEXIST);
        }
        let id = self.next;
        self.next += 1;
        let below = is_dir.then(|| SpecDir { parent: dir, entries: BTreeMap::new() });
        self.nodes.insert(id, SpecNode { ino: None, names: 0, dir: below, file });
        self.insert_entry(dir, name, id);
        Ok(SpecOutcome::Node(id))
    }

    fn run_file_call(&mut self, ino: Ino, call: &FileCall) -> Result<SpecOutcome, Errno> {
        let id = match (self.find_node(ino), call) {
            // A late close of a file that is gone does no harm.
            (Err(_), FileCall::Close { .. }) => return Ok(SpecOutcome::File(FileAnswer::Closed)),
            (found, _) => found?,
        };
        let node = self.nodes.get_mut(&id).ok_or(Errno::ESTALE)?;
        let outcome = match node.file.run_call(call)? {
            FileOutcome::Attributes => SpecOutcome::Node(id),
            FileOutcome::Answer(answer) => SpecOutcome::File(answer),
            FileOutcome::AnyObject => SpecOutcome::AnyObject,
        };
        if node.names == 0 {
            self.drop_nameless(id);
        }
        Ok(outcome)
    }

    /// Returns the size of a file, and 0 for a directory.
    fn file_size(&self, id: NodeNumber) -> u64 {
        self.nodes.get(&id).map_or(0, |node| node.file.bytes.len() as u64)
    }

    fn is_within(&self, mut dir: NodeNumber, ancestor: NodeNumber) -> bool {
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

    fn execute_call(&mut self, call: &SpecCall) -> Result<SpecOutcome, Errno> {
        match call {
            SpecCall::Create { dir, name, is_dir } => {
                self.create_node((*dir, *name), *is_dir, SpecFile::default())
            }
            SpecCall::Fill { dir, name, bytes } => {
                self.create_node((*dir, *name), false, SpecFile::new(bytes))
            }
            SpecCall::File { ino, call } => self.run_file_call(*ino, call),
            SpecCall::Lookup { dir, name } => {
                let dir = self.find_dir(*dir)?;
                self.find_entry(dir, *name).map(SpecOutcome::Node).ok_or(Errno::ENOENT)
            }
            SpecCall::GetAttr { ino } => self.find_node(*ino).map(SpecOutcome::Node),
            SpecCall::Unlink { dir, name } => {
                let dir = self.find_dir(*dir)?;
                let child = self.find_entry(dir, *name).ok_or(Errno::ENOENT)?;
                if self.is_dir(child) {
                    return Err(Errno::EISDIR);
                }
                self.remove_entry(dir, *name);
                Ok(self.drop_nameless(child))
            }
            SpecCall::Rmdir { dir, name } => {
                let dir = self.find_dir(*dir)?;
                let child = self.find_entry(dir, *name).ok_or(Errno::ENOENT)?;
                if !self.is_dir(child) {
                    return Err(Errno::ENOTDIR);
                }
                if !self.dir_entries(child).is_empty() {
                    return Err(Errno::ENOTEMPTY);
                }
                self.remove_entry(dir, *name);
                Ok(self.drop_nameless(child))
            }
            SpecCall::Rename { from, to, mode } => self.rename(*from, *to, *mode),
            SpecCall::Link { ino, dir, name } => {
                let dir = self.find_dir(*dir)?;
                if self.find_entry(dir, *name).is_some() {
                    return Err(Errno::EEXIST);
                }
                let id = self.find_node(*ino)?;
                if self.is_dir(id) {
                    return Err(Errno::EPERM);
                }
                // It is open, and stays unlinked.
                if self.count_links(id) == 0 {
                    return Err(Errno::ENOENT);
                }
                self.insert_entry(dir, *name, id);
                Ok(SpecOutcome::Node(id))
            }
            SpecCall::List { dir, after } => {
                let dir = self.find_dir(*dir)?;
                let mut entries = self.dir_entries(dir);
                entries.retain(|name, _| hash_name(*name) > *after);
                Ok(SpecOutcome::Names(entries))
            }
        }
    }

    fn rename(
        &mut self,
        (from, name): (Ino, NameNumber),
        (to, new_name): (Ino, NameNumber),
        mode: RenameMode,
    ) -> Result<SpecOutcome, Errno> {
        let nothing = SpecOutcome::Removed { id: None, last: false };
        let (from, to) = (self.find_dir(from)?, self.find_dir(to)?);
        let (source, target) = (self.find_entry(from, name), self.find_entry(to, new_name));
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
            self.remove_entry(from, name);
            self.insert_entry(to, new_name, source);
            return Ok(nothing);
        };
        if target == source {
            return Ok(nothing);
        }
        if exchange {
            self.remove_entry(from, name);
            self.remove_entry(to, new_name);
            self.insert_entry(to, new_name, source);
            self.insert_entry(from, name, target);
            return Ok(nothing);
        }
        match (self.is_dir(source), self.is_dir(target)) {
            (true, false) => return Err(Errno::ENOTDIR),
            (false, true) => return Err(Errno::EISDIR),
            (true, true) if !self.dir_entries(target).is_empty() => return Err(Errno::ENOTEMPTY),
            _ => {}
        }
        self.remove_entry(to, new_name);
        self.remove_entry(from, name);
        self.insert_entry(to, new_name, source);
        Ok(self.drop_nameless(target))
    }

    /// Binds `ino` to the node `id`, if that is possible. Returns whether the node has that number
    /// now.
    fn bind_ino(&mut self, id: NodeNumber, ino: Ino) -> bool {
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
    fn allows_answer(&mut self, outcome: &SpecOutcome, answer: &SpecAnswer) -> bool {
        match (outcome, answer) {
            (_, SpecAnswer::Unknown) => true,
            (SpecOutcome::Node(id), SpecAnswer::Node { ino, links, is_dir, size }) => {
                self.bind_ino(*id, *ino)
                    && self.count_links(*id) == *links
                    && self.is_dir(*id) == *is_dir
                    && self.file_size(*id) == *size
            }
            (SpecOutcome::File(expected), SpecAnswer::File(answer)) => expected == answer,
            (SpecOutcome::AnyObject, SpecAnswer::File(FileAnswer::Reserved { .. })) => true,
            (
                SpecOutcome::Removed { id: None, last },
                SpecAnswer::Removed { ino: None, last: reported },
            ) => last == reported,
            (
                SpecOutcome::Removed { id: Some((id, known)), last },
                SpecAnswer::Removed { ino: Some(ino), last: reported },
            ) => {
                let same = match known {
                    Some(known) => known == ino,
                    None if *last => self.nodes.values().all(|node| node.ino != Some(*ino)),
                    None => self.bind_ino(*id, *ino),
                };
                same && last == reported
            }
            (SpecOutcome::Names(entries), SpecAnswer::Names { names, upto, end }) => {
                let reported: BTreeMap<_, _> =
                    entries.iter().filter(|(name, _)| *end || hash_name(**name) <= *upto).collect();
                reported.len() == names.len()
                    && reported.into_iter().all(|(name, id)| {
                        names.get(name).is_some_and(|ino| self.bind_ino(*id, *ino))
                    })
            }
            _ => false,
        }
    }
}

/// The [`Specification`] of a namespace that begins with its root.
pub(crate) struct NamespaceSpec;

impl Specification for NamespaceSpec {
    type State = SpecNamespace;
    type Operation = SpecOperation;

    fn init() -> SpecNamespace {
        let dir = Some(SpecDir { parent: ROOT, entries: BTreeMap::new() });
        let file = SpecFile::default();
        let root = SpecNode { ino: Some(Ino::ROOT), names: 1, dir, file };
        SpecNamespace { nodes: BTreeMap::from([(ROOT, root)]), next: ROOT + 1 }
    }

    fn apply(operation: &SpecOperation, before: &SpecNamespace) -> (bool, SpecNamespace) {
        let mut after = before.clone();
        if let (SpecCall::File { call, .. }, SpecAnswer::Failed(errno)) =
            (&operation.call, &operation.answer)
            && call.may_fail(*errno)
        {
            return (true, after);
        }
        let fits = match after.execute_call(&operation.call) {
            Ok(outcome) => after.allows_answer(&outcome, &operation.answer),
            Err(errno) => match operation.answer {
                SpecAnswer::Failed(reported) => reported == errno,
                SpecAnswer::Unknown => true,
                _ => false,
            },
        };
        (fits, after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all_fit(operations: Vec<(SpecCall, SpecAnswer)>) -> bool {
        let mut state = NamespaceSpec::init();
        operations.into_iter().all(|(call, answer)| {
            let (fits, after) = NamespaceSpec::apply(&SpecOperation { call, answer }, &state);
            state = after;
            fits
        })
    }

    const A: Ino = Ino(100);
    const B: Ino = Ino(101);

    fn mkdir(dir: Ino, name: NameNumber, ino: Ino) -> (SpecCall, SpecAnswer) {
        let answer = SpecAnswer::Node { ino, links: 2, is_dir: true, size: 0 };
        (SpecCall::Create { dir, name, is_dir: true }, answer)
    }

    fn rename(
        from: (Ino, NameNumber),
        to: (Ino, NameNumber),
        answer: SpecAnswer,
    ) -> (SpecCall, SpecAnswer) {
        (SpecCall::Rename { from, to, mode: RenameMode::Replace }, answer)
    }

    #[test]
    fn a_directory_does_not_go_into_itself() {
        let into_itself = rename((Ino::ROOT, 0), (B, 7), SpecAnswer::Failed(Errno::EINVAL));
        assert!(all_fit(vec![mkdir(Ino::ROOT, 0, A), mkdir(A, 1, B), into_itself.clone()]));
        let done = rename((Ino::ROOT, 0), (B, 7), SpecAnswer::Removed { ino: None, last: false });
        assert!(!all_fit(vec![mkdir(Ino::ROOT, 0, A), mkdir(A, 1, B), done]));
    }

    #[test]
    fn a_new_inode_has_a_new_number() {
        assert!(all_fit(vec![mkdir(Ino::ROOT, 0, A), mkdir(Ino::ROOT, 1, B)]));
        assert!(!all_fit(vec![mkdir(Ino::ROOT, 0, A), mkdir(Ino::ROOT, 1, A)]));
    }

    #[test]
    fn what_a_dead_client_made_is_met_later() {
        let made =
            (SpecCall::Create { dir: Ino::ROOT, name: 0, is_dir: true }, SpecAnswer::Unknown);
        let seen = |ino| {
            let answer = SpecAnswer::Node { ino, links: 2, is_dir: true, size: 0 };
            (SpecCall::Lookup { dir: Ino::ROOT, name: 0 }, answer)
        };
        assert!(all_fit(vec![made.clone(), seen(A), seen(A), mkdir(A, 1, B)]));
        assert!(!all_fit(vec![made, seen(A), seen(B)]));
    }
}
