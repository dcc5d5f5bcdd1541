//! Removal of a directory tree by the servers. They are asked to clear stretches of directories,
//! and only the rest comes to the client: names of directories, and entries that they could not
//! remove.
//!
//! Other clients may work in the tree meanwhile. A directory that got a new entry after it was
//! cleared is cleared again, a few times.

use crate::tree::{VolumeTree, join_path};
use crate::walk::TreeWalk;
use std::collections::BTreeSet;
use tatami_wire::batch::{BatchOp, RetainedEntry};
use tatami_wire::meta::{Bytes, MetaOp, MetaReply, MetaResult};
use tatami_wire::{Errno, Ino, InodeKind, READDIR_MAX};

/// How often a directory is cleared in which other clients keep making entries.
const ATTEMPTS: u32 = 8;

/// An event of a removal that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemovalEvent<'a> {
    /// A path was removed.
    Path(&'a [u8]),
    /// This many entries were removed, of which only the number is known.
    Many(u64),
    /// A path could not be removed. The directories above it stay, the rest is removed.
    Failed(&'a [u8], Errno),
}

/// The state of a directory, besides that in the walk.
#[derive(Clone, Default)]
struct DirFate {
    /// An entry of it stays, so the directory stays, too.
    stays: bool,
    /// Why it could not be cleared.
    closed: Option<Errno>,
    attempts: u32,
    name: Bytes,
}

/// A removal that is under way.
struct TreeRemoval<'a> {
    tree: &'a VolumeTree,
    report_paths: bool,
    watch: &'a mut dyn FnMut(RemovalEvent<'_>),
    walk: TreeWalk,
    /// By the numbers of the walk.
    fates: Vec<DirFate>,
    result: Result<(), Errno>,
    /// The parent of the first directory.
    top: Ino,
}

impl VolumeTree {
    /// Removes a path and everything below it. With `tell`, `watch` gets every path, otherwise only
    /// numbers of entries.
    ///
    /// # Errors
    /// The first that `watch` got: the rest was removed.
    pub fn remove_all(
        &self,
        path: &[u8],
        tell: bool,
        watch: &mut dyn FnMut(RemovalEvent<'_>),
    ) -> Result<(), Errno> {
        let (top, name) = self.resolve_parent(path)?;
        let attr = self.stat(path, false)?;
        if attr.kind != InodeKind::Dir {
            self.remove_file(path)?;
            watch(RemovalEvent::Path(path));
            return Ok(());
        }
        let (walk, fates) = (TreeWalk::default(), Vec::new());
        let mut removal =
            TreeRemoval { tree: self, report_paths: tell, watch, walk, fates, result: Ok(()), top };
        removal.walk.add_directory(None, path.to_vec(), attr.ino);
        removal.fates.push(DirFate { name: Bytes::from(name), ..DirFate::default() });
        removal.remove_or_clear(&[0]);
        removal.run();
        removal.result
    }
}

impl TreeRemoval<'_> {
    fn run(&mut self) {
        loop {
            let wave = self.walk.next_wave();
            if wave.is_empty() {
                return;
            }
            let ops = wave.iter().map(|stretch| MetaOp::ClearDir {
                dir: self.walk.dirs[stretch.dir].ino,
                after: stretch.after,
                limit: READDIR_MAX,
                with_names: self.report_paths,
            });
            let (client, cred) = (self.tree.client(), self.tree.cred());
            let answers = client.send_meta_several(cred, ops.collect());
            let (mut answered, mut left, mut done) = (Vec::new(), Vec::new(), Vec::new());
            for (stretch, answer) in wave.into_iter().zip(answers) {
                match answer {
                    Ok(MetaReply::DirCleared { removed, names, retained: some, end, upto })
                        if end || upto > stretch.after =>
                    {
                        self.report_cleared(stretch.dir, removed, &names);
                        left.extend(some.into_iter().map(|one| (stretch.dir, one)));
                        answered.push((stretch, end, upto));
                    }
                    other => {
                        self.fates[stretch.dir].closed = Some(other.err().unwrap_or(Errno::EPROTO));
                        done.extend(self.walk.finish_part(stretch.dir).then_some(stretch.dir));
                    }
                }
            }
            // Before the stretches are ended: the new subdirectories keep their parents open.
            let new = self.remove_leftovers(left);
            done.extend(self.walk.continue_stretches(client, cred, answered));
            self.remove_or_clear(&new);
            self.remove_finished(done);
        }
    }

    fn report_cleared(&mut self, dir: usize, removed: u32, names: &[Bytes]) {
        if self.report_paths {
            for name in names {
                (self.watch)(RemovalEvent::Path(&join_path(&self.walk.dirs[dir].path, name)));
            }
        } else if removed > 0 {
            (self.watch)(RemovalEvent::Many(removed.into()));
        }
    }

    /// Removes the entries that the servers have left. Directories are added to the walk instead,
    /// and their numbers are returned.
    fn remove_leftovers(&mut self, left: Vec<(usize, RetainedEntry)>) -> Vec<usize> {
        let (mut new, mut operations, mut whose) = (Vec::new(), Vec::new(), Vec::new());
        for (dir, RetainedEntry { name, ino, kind, reason: why }) in left {
            if let Some(errno) = why {
                self.record_entry_failure(dir, &name, errno);
            } else if kind == InodeKind::Dir {
                new.push(self.walk.add_subdirectory(dir, &name, ino));
                self.fates.push(DirFate { name, ..DirFate::default() });
            } else {
                let parent = self.walk.dirs[dir].ino;
                whose.push((dir, name.clone()));
                operations.push(BatchOp::Unlink { parent, name, keep: false });
            }
        }
        let answers = self.tree.client().run_batch(self.tree.cred(), operations);
        for ((dir, name), answer) in whose.into_iter().zip(answers) {
            match answer {
                Ok(_) => self.report_cleared(dir, 1, &[name]),
                // Another client may have put a directory there. It is found when the parent turns
                // out not to be empty.
                Err(Errno::EISDIR) => {}
                Err(errno) => self.record_entry_failure(dir, &name, errno),
            }
        }
        new
    }

    fn record_entry_failure(&mut self, dir: usize, name: &[u8], errno: Errno) {
        if errno != Errno::ENOENT {
            let path = join_path(&self.walk.dirs[dir].path, name);
            self.report_failure(&path, errno);
            self.fates[dir].stays = true;
        }
    }

    fn report_failure(&mut self, path: &[u8], errno: Errno) {
        (self.watch)(RemovalEvent::Failed(path, errno));
        if self.result.is_ok() {
            self.result = Err(errno);
        }
    }

    /// Tries to remove directories that may be empty. Those that are empty, and whose inode is
    /// beside their name, go at once. The others are cleared.
    fn remove_or_clear(&mut self, new: &[usize]) {
        let answers = self.tree.client().try_batch(self.tree.cred(), self.build_rmdirs(new));
        for (dir, answer) in new.iter().zip(answers) {
            match answer {
                Some(answer @ (Ok(_) | Err(Errno::ENOENT))) => self.handle_removed(*dir, answer),
                // The entries go, even if the directory itself cannot.
                None | Some(Err(_)) => self.walk.begin_directory(*dir),
            }
        }
    }

    /// Removes directories whose entries are all done.
    fn remove_finished(&mut self, mut done: Vec<usize>) {
        // Each round may end the last part of directories above.
        while !done.is_empty() {
            let (stay, go): (Vec<_>, Vec<_>) = done
                .into_iter()
                .collect::<BTreeSet<_>>()
                .into_iter()
                .partition(|d| self.fates[*d].stays);
            done = Vec::new();
            for dir in stay {
                done.extend(self.finish_directory(dir));
            }
            let answers = self.tree.client().run_batch(self.tree.cred(), self.build_rmdirs(&go));
            for (dir, answer) in go.into_iter().zip(answers) {
                let fate = &mut self.fates[dir];
                fate.attempts += 1;
                let again = fate.closed.is_none() && fate.attempts < ATTEMPTS;
                // Another client made an entry since the clear, so the directory is cleared again.
                if answer == Err(Errno::ENOTEMPTY) && again {
                    self.walk.begin_directory(dir);
                    continue;
                }
                done.extend(self.handle_rmdir_reply(dir, answer));
            }
        }
    }

    fn handle_removed(&mut self, dir: usize, answer: MetaResult) {
        let above = self.handle_rmdir_reply(dir, answer);
        self.remove_finished(above.into_iter().collect());
    }

    /// Handles the reply to a removal of a directory. Returns the parent, if all parts of that are
    /// done.
    fn handle_rmdir_reply(&mut self, dir: usize, answer: MetaResult) -> Option<usize> {
        match answer {
            Ok(_) if self.report_paths => {
                (self.watch)(RemovalEvent::Path(&self.walk.dirs[dir].path))
            }
            Ok(_) => (self.watch)(RemovalEvent::Many(1)),
            // Another client removed it.
            Err(Errno::ENOENT) => {}
            Err(errno) => {
                let why = self.fates[dir].closed.filter(|_| errno == Errno::ENOTEMPTY);
                let path = self.walk.dirs[dir].path.clone();
                self.report_failure(&path, why.unwrap_or(errno));
                self.fates[dir].stays = true;
            }
        }
        self.finish_directory(dir)
    }

    /// Ends a directory. Returns the parent, if all parts of that are done.
    fn finish_directory(&mut self, dir: usize) -> Option<usize> {
        let above = self.walk.dirs[dir].above?;
        self.fates[above].stays |= self.fates[dir].stays;
        self.walk.finish_part(above).then_some(above)
    }

    fn build_rmdirs(&self, dirs: &[usize]) -> Vec<BatchOp> {
        let operation = |dir: &usize| {
            let above = self.walk.dirs[*dir].above;
            let parent = above.map_or(self.top, |above| self.walk.dirs[above].ino);
            BatchOp::Rmdir { parent, name: self.fates[*dir].name.clone(), keep: false }
        };
        dirs.iter().map(operation).collect()
    }
}
