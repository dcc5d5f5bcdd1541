//! Removal of a directory tree by the servers. They are asked to clear stretches of directories,
//! and only the rest comes to the client: names of directories, and entries that they could not
//! remove.
//!
//! Other clients may work in the tree meanwhile. A directory that got a new entry after it was
//! cleared is cleared again, a few times.

use crate::tree::{Tree, join};
use crate::walk::Walk;
use std::collections::BTreeSet;
use tatami_wire::act::{Act, Left};
use tatami_wire::meta::{Bytes, MetaOp, MetaReply, MetaResult};
use tatami_wire::{Errno, Ino, Kind, READDIR_MAX};

/// How often a directory is cleared in which other clients keep making entries.
const ATTEMPTS: u32 = 8;

/// An event of a removal that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removing<'a> {
    /// A path was removed.
    Path(&'a [u8]),
    /// This many entries were removed, of which only the number is known.
    Many(u64),
    /// A path could not be removed. The directories above it stay, the rest is removed.
    Failed(&'a [u8], Errno),
}

/// The state of a directory, besides that in the walk.
#[derive(Clone, Default)]
struct Fate {
    /// An entry of it stays, so the directory stays, too.
    stays: bool,
    /// Why it could not be cleared.
    closed: Option<Errno>,
    attempts: u32,
    name: Bytes,
}

/// A removal that is under way.
struct Removal<'a> {
    tree: &'a Tree,
    tell: bool,
    watch: &'a mut dyn FnMut(Removing<'_>),
    walk: Walk,
    /// By the numbers of the walk.
    fates: Vec<Fate>,
    result: Result<(), Errno>,
    /// The parent of the first directory.
    top: Ino,
}

impl Tree {
    /// Removes a path and everything below it. With `tell`, `watch` gets every path, otherwise only
    /// numbers of entries.
    ///
    /// # Errors
    /// The first that `watch` got: the rest was removed.
    pub fn remove_all(
        &self,
        path: &[u8],
        tell: bool,
        watch: &mut dyn FnMut(Removing<'_>),
    ) -> Result<(), Errno> {
        let (top, name) = self.parent(path)?;
        let attr = self.stat(path, false)?;
        if attr.kind != Kind::Dir {
            self.remove_file(path)?;
            watch(Removing::Path(path));
            return Ok(());
        }
        let (walk, fates) = (Walk::default(), Vec::new());
        let mut removal = Removal { tree: self, tell, watch, walk, fates, result: Ok(()), top };
        removal.walk.add(None, path.to_vec(), attr.ino);
        removal.fates.push(Fate { name: Bytes::from(name), ..Fate::default() });
        removal.remove_new(&[0]);
        removal.run();
        removal.result
    }
}

impl Removal<'_> {
    fn run(&mut self) {
        loop {
            let wave = self.walk.wave();
            if wave.is_empty() {
                return;
            }
            let ops = wave.iter().map(|stretch| MetaOp::Clear {
                dir: self.walk.dirs[stretch.dir].ino,
                after: stretch.after,
                limit: READDIR_MAX,
                tell: self.tell,
            });
            let (client, cred) = (self.tree.client(), self.tree.cred());
            let answers = client.meta_several(cred, ops.collect());
            let (mut told, mut left, mut done) = (Vec::new(), Vec::new(), Vec::new());
            for (stretch, answer) in wave.into_iter().zip(answers) {
                match answer {
                    Ok(MetaReply::Cleared { removed, names, left: some, end, upto })
                        if end || upto > stretch.after =>
                    {
                        self.cleared(stretch.dir, removed, &names);
                        left.extend(some.into_iter().map(|one| (stretch.dir, one)));
                        told.push((stretch, end, upto));
                    }
                    other => {
                        self.fates[stretch.dir].closed = Some(other.err().unwrap_or(Errno::EPROTO));
                        done.extend(self.walk.is_done(stretch.dir).then_some(stretch.dir));
                    }
                }
            }
            // Before the stretches are ended: the new subdirectories keep their parents open.
            let new = self.take_left(left);
            done.extend(self.walk.go_on(client, cred, told));
            self.remove_new(&new);
            self.remove_empty(done);
        }
    }

    fn cleared(&mut self, dir: usize, removed: u32, names: &[Bytes]) {
        if self.tell {
            for name in names {
                (self.watch)(Removing::Path(&join(&self.walk.dirs[dir].path, name)));
            }
        } else if removed > 0 {
            (self.watch)(Removing::Many(removed.into()));
        }
    }

    /// Removes the entries that the servers have left. Directories are added to the walk instead,
    /// and their numbers are returned.
    fn take_left(&mut self, left: Vec<(usize, Left)>) -> Vec<usize> {
        let (mut new, mut acts, mut whose) = (Vec::new(), Vec::new(), Vec::new());
        for (dir, Left { name, ino, kind, why }) in left {
            if let Some(errno) = why {
                self.entry_failed(dir, &name, errno);
            } else if kind == Kind::Dir {
                new.push(self.walk.add_below(dir, &name, ino));
                self.fates.push(Fate { name, ..Fate::default() });
            } else {
                let parent = self.walk.dirs[dir].ino;
                whose.push((dir, name.clone()));
                acts.push(Act::Unlink { parent, name, keep: false });
            }
        }
        let answers = self.tree.client().act(self.tree.cred(), acts);
        for ((dir, name), answer) in whose.into_iter().zip(answers) {
            match answer {
                Ok(_) => self.cleared(dir, 1, &[name]),
                // Another client may have put a directory there. It is found when the parent turns
                // out not to be empty.
                Err(Errno::EISDIR) => {}
                Err(errno) => self.entry_failed(dir, &name, errno),
            }
        }
        new
    }

    fn entry_failed(&mut self, dir: usize, name: &[u8], errno: Errno) {
        if errno != Errno::ENOENT {
            let path = join(&self.walk.dirs[dir].path, name);
            self.fail(&path, errno);
            self.fates[dir].stays = true;
        }
    }

    fn fail(&mut self, path: &[u8], errno: Errno) {
        (self.watch)(Removing::Failed(path, errno));
        if self.result.is_ok() {
            self.result = Err(errno);
        }
    }

    /// Tries to remove directories that may be empty. Those that are empty, and whose inode is
    /// beside their name, go at once. The others are cleared.
    fn remove_new(&mut self, new: &[usize]) {
        let answers = self.tree.client().try_act(self.tree.cred(), self.rmdirs(new));
        for (dir, answer) in new.iter().zip(answers) {
            match answer {
                Some(answer @ (Ok(_) | Err(Errno::ENOENT))) => self.removed(*dir, answer),
                // The entries go, even if the directory itself cannot.
                None | Some(Err(_)) => self.walk.begin(*dir),
            }
        }
    }

    /// Removes directories whose entries are all done.
    fn remove_empty(&mut self, mut done: Vec<usize>) {
        // Each round may end the last part of directories above.
        while !done.is_empty() {
            let (stay, go): (Vec<_>, Vec<_>) = done
                .into_iter()
                .collect::<BTreeSet<_>>()
                .into_iter()
                .partition(|d| self.fates[*d].stays);
            done = Vec::new();
            for dir in stay {
                done.extend(self.over(dir));
            }
            let answers = self.tree.client().act(self.tree.cred(), self.rmdirs(&go));
            for (dir, answer) in go.into_iter().zip(answers) {
                let fate = &mut self.fates[dir];
                fate.attempts += 1;
                let again = fate.closed.is_none() && fate.attempts < ATTEMPTS;
                // Another client made an entry since the clear, so the directory is cleared again.
                if answer == Err(Errno::ENOTEMPTY) && again {
                    self.walk.begin(dir);
                    continue;
                }
                done.extend(self.judged(dir, answer));
            }
        }
    }

    fn removed(&mut self, dir: usize, answer: MetaResult) {
        let above = self.judged(dir, answer);
        self.remove_empty(above.into_iter().collect());
    }

    /// Handles the reply to a removal of a directory. Returns the parent, if all parts of that are
    /// done.
    fn judged(&mut self, dir: usize, answer: MetaResult) -> Option<usize> {
        match answer {
            Ok(_) if self.tell => (self.watch)(Removing::Path(&self.walk.dirs[dir].path)),
            Ok(_) => (self.watch)(Removing::Many(1)),
            // Another client removed it.
            Err(Errno::ENOENT) => {}
            Err(errno) => {
                let why = self.fates[dir].closed.filter(|_| errno == Errno::ENOTEMPTY);
                let path = self.walk.dirs[dir].path.clone();
                self.fail(&path, why.unwrap_or(errno));
                self.fates[dir].stays = true;
            }
        }
        self.over(dir)
    }

    /// Ends a directory. Returns the parent, if all parts of that are done.
    fn over(&mut self, dir: usize) -> Option<usize> {
        let above = self.walk.dirs[dir].above?;
        self.fates[above].stays |= self.fates[dir].stays;
        self.walk.is_done(above).then_some(above)
    }

    fn rmdirs(&self, dirs: &[usize]) -> Vec<Act> {
        let act = |dir: &usize| {
            let above = self.walk.dirs[*dir].above;
            let parent = above.map_or(self.top, |above| self.walk.dirs[above].ino);
            Act::Rmdir { parent, name: self.fates[*dir].name.clone(), keep: false }
        };
        dirs.iter().map(act).collect()
    }
}
