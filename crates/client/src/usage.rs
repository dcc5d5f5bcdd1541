//! Disk usage below a directory, added up by the servers. Each server returns for a stretch of a
//! directory the sum over its files, and the names of its subdirectories.

use crate::tree::{VolumeTree, join_path};
use crate::walk::{CookieStretch, TreeWalk};
use std::collections::HashSet;
use tatami_wire::batch::{BatchOp, DirTotals};
use tatami_wire::meta::{MetaOp, MetaReply};
use tatami_wire::{Attr, Errno, Ino, InodeKind, READDIR_MAX, hash};

/// Sums over files and directories.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UsageSum {
    /// Names of anything but directories. A file with several names counts once.
    pub files: u64,
    /// Directories.
    pub dirs: u64,
    /// Sizes, in bytes.
    pub size: u64,
    /// Storage in use, in units of 512 bytes.
    pub blocks: u64,
}

impl UsageSum {
    fn add_sum(&mut self, more: &UsageSum) {
        self.files = self.files.saturating_add(more.files);
        self.dirs = self.dirs.saturating_add(more.dirs);
        self.size = self.size.saturating_add(more.size);
        self.blocks = self.blocks.saturating_add(more.blocks);
    }

    fn add_file(&mut self, size: u64, blocks: u64) {
        self.add_sum(&UsageSum { files: 1, dirs: 0, size, blocks });
    }
}

/// The usage below a path.
#[derive(Clone, Debug, Default)]
pub struct Usage {
    /// Each directory with the sum of all below it: subdirectories before their parents, the path
    /// itself last.
    pub paths: Vec<(Vec<u8>, UsageSum)>,
    /// Paths that could not be read, and are not in the sums.
    pub failed: Vec<(Vec<u8>, Errno)>,
}

/// A sum in progress.
struct UsageWalk<'a> {
    tree: &'a VolumeTree,
    walk: TreeWalk,
    /// The sum of each directory, by the numbers of the walk.
    used: Vec<UsageSum>,
    /// Files with several names that have been counted.
    counted: HashSet<Ino, hash::HashBuilder>,
    failed: Vec<(Vec<u8>, Errno)>,
}

impl VolumeTree {
    /// Adds up the usage below a path; a file with several names counts once. `watch` gets the
    /// number of files and directories found since its last call.
    ///
    /// # Errors
    /// Of the path itself.
    pub fn sum_usage(&self, path: &[u8], watch: &mut dyn FnMut(u64)) -> Result<Usage, Errno> {
        let attr = self.stat(path, false)?;
        if attr.kind != InodeKind::Dir {
            let mut used = UsageSum::default();
            used.add_file(attr.size, attr.blocks);
            return Ok(Usage { paths: vec![(path.to_vec(), used)], failed: Vec::new() });
        }
        let (walk, counted) = (TreeWalk::default(), HashSet::default());
        let mut adding =
            UsageWalk { tree: self, walk, used: Vec::new(), counted, failed: Vec::new() };
        let first = adding.walk.add_directory(None, path.to_vec(), attr.ino);
        adding.used.push(UsageSum { dirs: 1, ..UsageSum::default() });
        adding.walk.begin_directory(first);
        while adding.process_wave(watch) {}
        Ok(adding.into_usage())
    }
}

impl UsageWalk<'_> {
    /// Asks for many stretches. Returns whether there were any.
    fn process_wave(&mut self, watch: &mut dyn FnMut(u64)) -> bool {
        let wave = self.walk.next_wave();
        let ops = wave.iter().map(|stretch| MetaOp::SumDir {
            dir: self.walk.dirs[stretch.dir].ino,
            after: stretch.after,
            limit: READDIR_MAX,
        });
        let (client, cred) = (self.tree.client(), self.tree.cred());
        let answers = client.send_meta_several(cred, ops.collect());
        let any = !wave.is_empty();
        let (mut answered, mut elsewhere, mut found) = (Vec::new(), Vec::new(), 0);
        for (stretch, answer) in wave.into_iter().zip(answers) {
            match answer {
                Ok(MetaReply::DirTotals { totals: sum, end, upto })
                    if end || upto > stretch.after =>
                {
                    answered.push((stretch, end, upto));
                    found += self.record_sum(stretch, sum, &mut elsewhere);
                }
                // The directory was removed meanwhile.
                Err(Errno::ENOENT | Errno::ESTALE)
                    if self.walk.dirs[stretch.dir].above.is_some() => {}
                other => {
                    let path = self.walk.dirs[stretch.dir].path.clone();
                    self.failed.push((path, other.err().unwrap_or(Errno::EPROTO)));
                }
            }
        }
        found += self.count_elsewhere(elsewhere);
        // The sums are added up at the end, so the directories that are done now do not matter.
        self.walk.continue_stretches(client, cred, answered);
        watch(found);
        any
    }

    /// Records the sum of a stretch. Returns the number of entries found. Inodes that must be asked
    /// for go to `elsewhere`, with their directory.
    fn record_sum(
        &mut self,
        stretch: CookieStretch,
        sum: DirTotals,
        elsewhere: &mut Vec<(usize, Ino)>,
    ) -> u64 {
        let dir = stretch.dir;
        let DirTotals { files, size, blocks, linked, remote: more, dirs } = sum;
        let found = files + (linked.len() + dirs.len()) as u64;
        self.used[dir].add_sum(&UsageSum { files, dirs: 0, size, blocks });
        for (ino, size, blocks) in linked {
            self.count_linked(dir, ino, size, blocks);
        }
        elsewhere.extend(more.into_iter().map(|ino| (dir, ino)));
        for (name, ino, is_empty) in dirs {
            let below = self.walk.add_subdirectory(dir, &name, ino);
            self.used.push(UsageSum { dirs: 1, ..UsageSum::default() });
            if !is_empty {
                self.walk.begin_directory(below);
            }
        }
        found
    }

    fn count_linked(&mut self, dir: usize, ino: Ino, size: u64, blocks: u64) {
        if self.counted.insert(ino) {
            self.used[dir].add_file(size, blocks);
        }
    }

    fn count_elsewhere(&mut self, elsewhere: Vec<(usize, Ino)>) -> u64 {
        let found = elsewhere.len() as u64;
        let operations = elsewhere.iter().map(|(_, ino)| BatchOp::GetAttr { ino: *ino }).collect();
        let answers = self.tree.client().run_batch(self.tree.cred(), operations);
        for ((dir, ino), answer) in elsewhere.into_iter().zip(answers) {
            match answer {
                Ok(MetaReply::Attr(Attr { nlink, size, blocks, .. })) if nlink > 1 => {
                    self.count_linked(dir, ino, size, blocks);
                }
                Ok(MetaReply::Attr(attr)) => self.used[dir].add_file(attr.size, attr.blocks),
                // The file was removed meanwhile.
                Err(Errno::ENOENT | Errno::ESTALE) => {}
                other => {
                    let path = join_path(&self.walk.dirs[dir].path, ino.to_string().as_bytes());
                    self.failed.push((path, other.err().unwrap_or(Errno::EPROTO)));
                }
            }
        }
        found
    }

    /// Returns each directory with the sum of all below it, in the order of du: by name,
    /// subdirectories before their parents.
    fn into_usage(self) -> Usage {
        let UsageWalk { walk, mut used, failed, .. } = self;
        // A directory has a higher number than its parent.
        let mut below: Vec<Vec<usize>> = vec![Vec::new(); used.len()];
        for dir in (1..used.len()).rev() {
            let sum = used[dir];
            if let Some(above) = walk.dirs[dir].above {
                used[above].add_sum(&sum);
                below[above].push(dir);
            }
        }
        let mut paths = Vec::with_capacity(used.len());
        let mut todo = vec![(0, false)];
        while let Some((dir, is_entered)) = todo.pop() {
            if is_entered {
                paths.push((walk.dirs[dir].path.clone(), used[dir]));
                continue;
            }
            todo.push((dir, true));
            let mut dirs = std::mem::take(&mut below[dir]);
            dirs.sort_unstable_by(|a, b| walk.dirs[*b].path.cmp(&walk.dirs[*a].path));
            todo.extend(dirs.into_iter().map(|dir| (dir, false)));
        }
        Usage { paths, failed }
    }
}
