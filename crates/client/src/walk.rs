//! Walks through a tree of directories on the servers. The client asks for many stretches of many
//! directories at a time, and for the partitions of a large directory at once.
//!
//! A walk records the directories that it has met, and the parts of each that are still to be asked
//! for. The caller chooses the requests and handles the replies.

use crate::Client;
use crate::tree::join_path;
use tatami_wire::meta::{MetaOp, MetaReply, MetaResult};
use tatami_wire::partition::HashRange;
use tatami_wire::{Cred, Ino};

/// Most stretches in one wave of requests.
const WAVE_MAX: usize = 32;

/// A directory of the walk.
pub(crate) struct WalkDir {
    /// The path where it was met.
    pub(crate) path: Vec<u8>,
    pub(crate) ino: Ino,
    /// The parent, by number; the first directory has none.
    pub(crate) above: Option<usize>,
    /// Stretches and subdirectories that are not done.
    open: usize,
    /// Its partitions are known.
    is_spread_out: bool,
}

/// Entries of a directory that are still to be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CookieStretch {
    /// The directory, by number.
    pub(crate) dir: usize,
    /// Entries with cookies above this one.
    pub(crate) after: u64,
    last: u64,
}

/// See the module.
#[derive(Default)]
pub(crate) struct TreeWalk {
    pub(crate) dirs: Vec<WalkDir>,
    todo: Vec<CookieStretch>,
}

impl TreeWalk {
    /// Adds a directory, without any request for it yet.
    pub(crate) fn add_directory(&mut self, above: Option<usize>, path: Vec<u8>, ino: Ino) -> usize {
        if let Some(above) = above {
            self.dirs[above].open += 1;
        }
        self.dirs.push(WalkDir { path, ino, above, open: 0, is_spread_out: false });
        self.dirs.len() - 1
    }

    /// As [`TreeWalk::add_directory`], for a name in a directory of the walk.
    pub(crate) fn add_subdirectory(&mut self, above: usize, name: &[u8], ino: Ino) -> usize {
        let path = join_path(&self.dirs[above].path, name);
        self.add_directory(Some(above), path, ino)
    }

    /// Plans requests for all of a directory.
    pub(crate) fn begin_directory(&mut self, dir: usize) {
        self.dirs[dir].open += 1;
        self.todo.push(CookieStretch { dir, after: 0, last: HashRange::ALL.last_hash() });
    }

    /// Takes the stretches of the next wave; the newest first, so that few directories are open at
    /// a time.
    pub(crate) fn next_wave(&mut self) -> Vec<CookieStretch> {
        self.todo.split_off(self.todo.len().saturating_sub(WAVE_MAX))
    }

    /// Ends a part of a directory: a stretch, or a subdirectory. Returns whether that was the last
    /// one.
    pub(crate) fn finish_part(&mut self, dir: usize) -> bool {
        let open = &mut self.dirs[dir].open;
        *open = open.saturating_sub(1);
        *open == 0
    }

    /// Goes on after replies about stretches, each up to a cookie or to its end. Returns the
    /// directories that are done now.
    pub(crate) fn continue_stretches(
        &mut self,
        client: &Client,
        cred: &Cred,
        answered: Vec<(CookieStretch, bool, u64)>,
    ) -> Vec<usize> {
        let (mut done, mut large) = (Vec::new(), Vec::new());
        for (stretch, end, upto) in answered {
            if end || upto >= stretch.last {
                done.extend(self.finish_part(stretch.dir).then_some(stretch.dir));
                continue;
            }
            if !std::mem::replace(&mut self.dirs[stretch.dir].is_spread_out, true) {
                large.push(stretch.dir);
            }
            self.todo.push(CookieStretch { after: upto, ..stretch });
        }
        let ops =
            large.iter().map(|dir| MetaOp::ListPartitions { dir: self.dirs[*dir].ino }).collect();
        for (dir, partitions) in large.into_iter().zip(client.send_meta_several(cred, ops)) {
            self.split_by_partition(dir, partitions);
        }
        done
    }

    /// Splits the rest of a directory, which was one stretch until now, into its partitions, so
    /// that all are asked at once.
    fn split_by_partition(&mut self, dir: usize, partitions: MetaResult) {
        // If the server cannot list the partitions, the stretch is asked for step by step.
        let Ok(MetaReply::Partitions(parts)) = partitions else { return };
        let Some(rest) = self.todo.iter_mut().rev().find(|stretch| stretch.dir == dir) else {
            return;
        };
        // The partition that begins with the next cookie stays with the rest.
        let next = rest.after + 1;
        let beyond = parts.iter().map(|part| part.range).filter(|range| range.from > next);
        let beyond: Vec<_> = beyond.collect();
        let Some(first) = beyond.iter().map(|range| range.from).min() else { return };
        rest.last = first - 1;
        self.dirs[dir].open += beyond.len();
        let stretches = beyond.into_iter().map(|range| CookieStretch {
            dir,
            after: range.from - 1,
            last: range.last_hash(),
        });
        self.todo.extend(stretches);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tatami_wire::ShardId;
    use tatami_wire::meta::PartitionInfo;

    fn part(from: u64, bits: u8) -> PartitionInfo {
        PartitionInfo { range: HashRange { from, bits }, shard: ShardId(0), entries: 1 }
    }

    /// Returns the bounds of the stretches of a directory with four partitions, after all entries
    /// up to a cookie have come.
    fn stretches(upto: u64) -> (TreeWalk, Vec<(u64, u64)>) {
        let mut walk = TreeWalk::default();
        let top = walk.add_directory(None, b"/d".to_vec(), Ino(7));
        walk.begin_directory(top);
        let stretch = walk.next_wave().pop().expect("one");
        walk.todo.push(CookieStretch { after: upto, ..stretch });
        let parts = (0..4).map(|n| part(n * QUARTER, 2)).collect();
        walk.split_by_partition(top, Ok(MetaReply::Partitions(parts)));
        let mut bounds: Vec<_> = walk.todo.iter().map(|s| (s.after, s.last)).collect();
        bounds.sort_unstable();
        (walk, bounds)
    }

    const QUARTER: u64 = 1 << 61;

    #[test]
    fn partitions_are_asked_for_at_once_and_each_once() {
        let last = HashRange::ALL.last_hash();
        let (third, fourth) = ((2 * QUARTER - 1, 3 * QUARTER - 1), (3 * QUARTER - 1, last));
        let (_, bounds) = stretches(5);
        assert_eq!(bounds, [(5, QUARTER - 1), (QUARTER - 1, 2 * QUARTER - 1), third, fourth]);
        // All of the first partition has come.
        let (_, bounds) = stretches(QUARTER - 1);
        assert_eq!(bounds, [(QUARTER - 1, 2 * QUARTER - 1), third, fourth]);
        let (_, bounds) = stretches(3 * QUARTER + 7);
        assert_eq!(bounds, [(3 * QUARTER + 7, last)]);
    }

    #[test]
    fn a_directory_is_done_when_all_below_is() {
        let (mut walk, _) = stretches(5);
        let below = walk.add_subdirectory(0, b"e", Ino(8));
        assert_eq!(walk.dirs[below].path, b"/d/e");
        // Four stretches, and a subdirectory.
        assert!((0..4).all(|_| !walk.finish_part(0)));
        assert!(walk.finish_part(0));
    }
}
