//! Disk usage below a path of another site, added up here from listings.

use crate::site_tree;
use std::collections::HashSet;
use tatami_client::{Usage, UsageSum};
use tatami_remote::{SiteAttr, SiteFile};
use tatami_wire::{Errno, InodeKind};

/// A directory that is being summed.
struct UsageLevel {
    path: Vec<u8>,
    sum: UsageSum,
    /// Subdirectories that have not been visited, and their own attributes.
    todo: Vec<(SiteFile, SiteAttr)>,
}

fn add(sum: &mut UsageSum, more: &UsageSum) {
    sum.files = sum.files.saturating_add(more.files);
    sum.dirs = sum.dirs.saturating_add(more.dirs);
    sum.size = sum.size.saturating_add(more.size);
    sum.blocks = sum.blocks.saturating_add(more.blocks);
}

/// Sums the usage below a path. `watch` gets the number of names that were found.
///
/// # Errors
/// The path itself cannot be read.
pub fn sum_usage(file: &SiteFile, watch: &mut dyn FnMut(u64)) -> Result<Usage, Errno> {
    let attr = site_tree::look_at(file, false)?.attr;
    let path = site_tree::path_of(file).to_vec();
    let mut usage = Usage { paths: Vec::new(), failed: Vec::new() };
    if InodeKind::from_mode(attr.mode) != Some(InodeKind::Dir) {
        let (size, blocks) = (attr.size, attr.blocks);
        usage.paths.push((path, UsageSum { files: 1, dirs: 0, size, blocks }));
        return Ok(usage);
    }
    // Files with several names that were counted.
    let mut counted = HashSet::new();
    let mut levels: Vec<UsageLevel> = Vec::new();
    let mut next = Some((file.clone(), attr));
    loop {
        if let Some((dir, attr)) = next.take() {
            let path = site_tree::path_of(&dir).to_vec();
            let blocks = attr.blocks;
            let mut level = UsageLevel {
                path,
                // As in a volume, the length of a directory itself does not count.
                sum: UsageSum { files: 0, dirs: 1, size: 0, blocks },
                todo: Vec::new(),
            };
            match site_tree::list_dir(&dir) {
                Ok(entries) => {
                    watch(entries.len() as u64);
                    for entry in entries {
                        let attr = entry.attr;
                        if InodeKind::from_mode(attr.mode) == Some(InodeKind::Dir) {
                            level.todo.push((site_tree::append_name(&dir, &entry.name), attr));
                        } else if attr.nlink <= 1 || counted.insert((attr.dev, attr.ino)) {
                            let (size, blocks) = (attr.size, attr.blocks);
                            add(&mut level.sum, &UsageSum { files: 1, dirs: 0, size, blocks });
                        }
                    }
                    level.todo.reverse();
                }
                Err(e) if levels.is_empty() || e == Errno::EHOSTDOWN => return Err(e),
                Err(e) => usage.failed.push((level.path.clone(), e)),
            }
            levels.push(level);
        }
        let Some(level) = levels.last_mut() else { return Ok(usage) };
        next = level.todo.pop();
        if next.is_none() {
            let Some(done) = levels.pop() else { return Ok(usage) };
            if let Some(above) = levels.last_mut() {
                add(&mut above.sum, &done.sum);
            }
            usage.paths.push((done.path, done.sum));
        }
    }
}
