//! Members of an archive that are made together: by few requests for all of them.

use std::io::Write;
use tatami_client::tree::VolumeTree;
use tatami_client::{NameTarget, UnnamedFile};
use tatami_wire::batch::BatchOp;
use tatami_wire::meta::{InodeTemplate, MetaReply, MetaResult};
use tatami_wire::{Access, Errno, Ino, InodeKind, SetAttr};

/// Permission bits of a file until it has those of the archive.
const UNFINISHED_MODE: u16 = 0o600;

/// What a member is.
#[derive(Clone)]
pub enum MemberContent {
    /// A file with all its bytes, and whether these may lie beside its inode.
    Bytes(Vec<u8>, bool),
    /// Any other kind, but a directory.
    Node(InodeTemplate),
}

/// A member that was read and is not made yet.
pub struct UnpackMember {
    /// As in the archive, for messages.
    pub name: Vec<u8>,
    pub parent: Ino,
    /// Its name in the directory.
    pub entry: Vec<u8>,
    pub content: MemberContent,
    pub set: SetAttr,
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// The permission bits that it gets after its extended attributes.
    pub late_mode: Option<u16>,
    /// It is the first entry of a new directory.
    pub is_first: bool,
}

/// Makes members, or replaces what has their names. Returns the inode number of each. No name
/// leads to a file that has not all its bytes.
pub fn make_members(tree: &VolumeTree, members: &[UnpackMember]) -> Vec<Result<Ino, Errno>> {
    let mut batch = UnpackBatch {
        tree,
        members,
        results: vec![Err(Errno::EPROTO); members.len()],
        files: Vec::new(),
        others: Vec::new(),
        sets: Vec::new(),
    };
    // The first entry moves a new directory to the executor of its own shard. Until then no batch
    // can be run there.
    let is_spread = tree.client().map().first_shards().len() > 1;
    let is_before = |at: &usize| is_spread && members[*at].is_first;
    let (before, rest): (Vec<usize>, Vec<usize>) = (0..members.len()).partition(is_before);
    batch.make_some(&before);
    batch.make_some(&rest);
    batch.results
}

struct UnpackBatch<'a> {
    tree: &'a VolumeTree,
    members: &'a [UnpackMember],
    results: Vec<Result<Ino, Errno>>,
    /// Files that get their names when they are complete, by their numbers.
    files: Vec<(usize, UnnamedFile)>,
    /// Files that cannot lie beside their inodes.
    others: Vec<usize>,
    /// Nodes that get their attributes.
    sets: Vec<(usize, Ino)>,
}

impl UnpackBatch<'_> {
    /// Makes the members with these numbers.
    fn make_some(&mut self, which: &[usize]) {
        let operations = which.iter().map(|at| self.first_operation(&self.members[*at]));
        let made = self.run_batch(operations.collect());
        let mut existing = Vec::new();
        for (at, made) in which.iter().copied().zip(made) {
            match (&self.members[at].content, made) {
                (MemberContent::Bytes(_, true), Err(Errno::EXDEV)) => self.others.push(at),
                (_, Err(Errno::EEXIST)) => existing.push(at),
                (_, made) => self.handle_made(at, made),
            }
        }
        let others = std::mem::take(&mut self.others);
        let operations = others.iter().map(|at| self.unnamed_operation(&self.members[*at]));
        let made = self.run_batch(operations.collect());
        for (at, made) in others.into_iter().zip(made) {
            self.handle_unnamed(at, made);
        }
        self.set_node_attrs();
        self.name_files();
        for at in existing {
            self.results[at] = replace_member(self.tree, &self.members[at]);
        }
    }

    fn run_batch(&self, operations: Vec<BatchOp>) -> Vec<MetaResult> {
        self.tree.client().run_batch(self.tree.cred(), operations)
    }

    fn first_operation(&self, member: &UnpackMember) -> BatchOp {
        let (parent, name) = (member.parent, member.entry.clone().into());
        let layout = self.tree.client().new_layout();
        match &member.content {
            MemberContent::Bytes(bytes, true) => BatchOp::CreateFilled {
                parent,
                name,
                layout,
                mode: UNFINISHED_MODE,
                umask: 0,
                bytes: bytes.clone().into(),
                set: Some(member.set.clone()),
            },
            MemberContent::Bytes(..) => self.unnamed_operation(member),
            MemberContent::Node(node) => BatchOp::Create {
                parent,
                name,
                node: node.clone(),
                mode: mode_of_node(node),
                umask: 0,
                exclusive: true,
                open: None,
            },
        }
    }

    fn unnamed_operation(&self, member: &UnpackMember) -> BatchOp {
        BatchOp::Tmpfile {
            parent: member.parent,
            name: member.entry.clone().into(),
            layout: self.tree.client().new_layout(),
            mode: UNFINISHED_MODE,
            umask: 0,
            open: Access::WRITE,
        }
    }

    fn handle_made(&mut self, at: usize, made: MetaResult) {
        match (&self.members[at].content, made) {
            (MemberContent::Bytes(_, false), made) => self.handle_unnamed(at, made),
            (MemberContent::Bytes(..), Ok(MetaReply::Created { attr, .. })) => {
                self.results[at] = Ok(attr.ino);
            }
            (MemberContent::Node(_), Ok(MetaReply::Created { attr, .. })) => {
                self.sets.push((at, attr.ino));
            }
            (_, Err(e)) => self.results[at] = Err(e),
            _ => {}
        }
    }

    /// Writes the bytes of a file that has no name yet.
    fn handle_unnamed(&mut self, at: usize, made: MetaResult) {
        let written = made.and_then(|made| {
            let MetaReply::Created { attr, cap, created } = made else {
                return Err(Errno::EPROTO);
            };
            let member = &self.members[at];
            let made = tatami_client::Created { attr, cap, created };
            let mut file = self.tree.open_unnamed(member.parent, &member.entry, made)?;
            if let MemberContent::Bytes(bytes, _) = &member.content {
                file.handle().write_all(bytes).map_err(Errno::from)?;
            }
            Ok(file)
        });
        match written {
            Ok(file) => self.files.push((at, file)),
            Err(e) => self.results[at] = Err(e),
        }
    }

    fn set_node_attrs(&mut self) {
        let sets = std::mem::take(&mut self.sets);
        let operations = sets
            .iter()
            .map(|(at, ino)| BatchOp::SetAttr { ino: *ino, set: self.members[*at].set.clone() });
        let done = self.run_batch(operations.collect());
        for ((at, ino), done) in sets.into_iter().zip(done) {
            self.results[at] = done.map(|_| ino);
        }
    }

    /// Commits the sizes of complete files, sets their attributes, and gives them their names.
    fn name_files(&mut self) {
        let mut commits = Vec::new();
        for (at, mut file) in std::mem::take(&mut self.files) {
            match file.close_deferred() {
                Ok(commit) => {
                    commits.push(commit);
                    self.files.push((at, file));
                }
                Err(e) => self.results[at] = Err(e),
            }
        }
        self.run_on_files(commits);
        let sets = self.files.iter().map(|(at, file)| BatchOp::SetAttr {
            ino: file.ino(),
            set: self.members[*at].set.clone(),
        });
        self.run_on_files(sets.collect());
        let links: Vec<NameTarget> = self
            .files
            .iter()
            .map(|(at, file)| {
                let member = &self.members[*at];
                (file.ino(), member.parent, member.entry.clone())
            })
            .collect();
        let (client, cred) = (self.tree.client(), self.tree.cred());
        let mut linked = client.link_many(cred, links.clone());
        let exists: Vec<usize> =
            (0..linked.len()).filter(|n| linked[*n] == Err(Errno::EEXIST)).collect();
        let replaced =
            client.replace_many(cred, exists.iter().map(|n| links[*n].clone()).collect());
        for (n, replaced) in exists.into_iter().zip(replaced) {
            linked[n] = replaced;
        }
        for ((at, file), linked) in std::mem::take(&mut self.files).into_iter().zip(linked) {
            self.results[at] = linked.map(|()| file.ino());
            // Without a name, the drop of the file deletes it.
            if linked.is_ok() {
                file.forget_file();
            }
        }
    }

    /// Runs one operation for each file, and drops the files for which it fails.
    fn run_on_files(&mut self, operations: Vec<BatchOp>) {
        let done = self.run_batch(operations);
        for ((at, file), done) in std::mem::take(&mut self.files).into_iter().zip(done) {
            match done {
                Ok(_) => self.files.push((at, file)),
                Err(e) => self.results[at] = Err(e),
            }
        }
    }
}

/// A symbolic link has all permission bits for ever; other nodes get theirs later.
fn mode_of_node(node: &InodeTemplate) -> u16 {
    match node {
        InodeTemplate::Symlink(_) => 0o777,
        _ => UNFINISHED_MODE,
    }
}

/// Makes a member in the place of what has its name, but not of a directory.
fn replace_member(tree: &VolumeTree, member: &UnpackMember) -> Result<Ino, Errno> {
    let (client, cred) = (tree.client(), tree.cred());
    let (parent, entry, set) = (member.parent, &member.entry[..], member.set.clone());
    if client.lookup(cred, parent, entry)?.kind == InodeKind::Dir {
        return Err(Errno::EISDIR);
    }
    match &member.content {
        MemberContent::Bytes(bytes, _) => {
            let mut file = create_unnamed(tree, parent, entry)?;
            file.handle().write_all(bytes).map_err(Errno::from)?;
            let ino = file.ino();
            file.publish(Some(set), true).map(|()| ino)
        }
        MemberContent::Node(node) => {
            client.unlink(cred, parent, entry, false)?;
            let mode = mode_of_node(node);
            let made = client.create(cred, parent, entry, node.clone(), mode, 0, true, None)?;
            client.setattr(cred, made.attr.ino, set).map(|attr| attr.ino)
        }
    }
}

/// Makes a file that gets its name later.
///
/// # Errors
/// Those of open(2).
pub fn create_unnamed(tree: &VolumeTree, parent: Ino, entry: &[u8]) -> Result<UnnamedFile, Errno> {
    let new = vec![(entry.to_vec(), UNFINISHED_MODE)];
    let made = tree.client().create_unnamed_many(tree.cred(), parent, new, 0);
    let made = made.into_iter().next().unwrap_or(Err(Errno::EPROTO))?;
    tree.open_unnamed(parent, entry, made)
}
