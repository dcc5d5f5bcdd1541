//! Converts a container to an ordinary file and back.
//!
//! An ordinary file becomes a container's base: no byte is copied. A container is copied into a new
//! file, by several threads. Then one rename exchanges the two, so that a reader sees the one or
//! the other.

use crate::container::{self, Container};
use crate::container_state::ContainerState;
use crate::error::{ErrorContext, Result, TiledError};
use crate::file_state::FileState;
use crate::hints::Hints;
use crate::memory::Buffer;
use crate::reader::StreamReader;
use crate::{claim, recovery};
use rustix::io::Errno;
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tatami_layout::{Shape, View};

/// Bytes that a thread copies at a time.
const CHUNK: u64 = 16 << 20;

/// Makes an ordinary file a container.
///
/// # Errors
/// `EEXIST` where it is a container already; as for rename(2) and link(2).
pub fn to_container(path: &Path) -> Result<()> {
    let real = claim::resolve_links(path)?;
    let meta = std::fs::symlink_metadata(&real).context("relayout", path)?;
    if meta.is_dir() {
        let errno = if crate::marker::is_container(&real)? { Errno::EXIST } else { Errno::ISDIR };
        return Err(TiledError::new("relayout", path, errno));
    }
    if !meta.is_file() {
        return Err(TiledError::with_detail(
            "relayout",
            path,
            Errno::INVAL,
            "it is no ordinary file",
        ));
    }
    container::create_container(&real, meta.mode() & 0o777)
}

/// Makes a container an ordinary file, by `threads` threads, each of which passes the number of
/// copied bytes to `progress`. Returns the size.
///
/// # Errors
/// `EBUSY` while a program has it open for writing, `ENOSPC`; then the container stays as it was.
pub fn to_whole(path: &Path, threads: usize, progress: &(dyn Fn(u64) + Sync)) -> Result<u64> {
    let real = claim::resolve_links(path)?;
    let container = Arc::new(Container::open(&real)?);
    recovery::recover_dead_opens(&container, recovery::DamagePolicy::Refuse)?;
    // An open for writing takes this lock, so no program begins to write from here on.
    let _held = container.lock_index()?;
    // Dead opens were recovered above, so a rank table belongs to a living one.
    if !container.list_opens()?.is_empty() {
        let why = "a program has it open for writing";
        return Err(TiledError::with_detail("relayout", path, Errno::BUSY, why));
    }
    let mut world = ContainerState::new(container.clone());
    let size = world.current_size(None)?;
    let new = container.unused_sibling()?;
    let copied = std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(container.file_mode())
        .open(&new)
        .context("create", &new)
        .and_then(|file| {
            file.set_len(size).context("create", &new)?;
            copy_container(&container, &file, size, threads, progress)?;
            let times = std::fs::metadata(&real).and_then(|meta| {
                let _ = std::os::unix::fs::fchown(&file, Some(meta.uid()), Some(meta.gid()));
                meta.modified()
            });
            if let Ok(modified) = times {
                let _ = file.set_modified(modified);
            }
            // The bytes must be on the disk before the rename removes the container.
            file.sync_all().context("sync", &new)
        });
    let placed = copied.and_then(|()| container::replace_container(&real, &new));
    if placed.is_err() {
        let _ = std::fs::remove_file(&new);
    }
    placed.map(|()| size)
}

fn copy_container(
    container: &Arc<Container>,
    to: &File,
    size: u64,
    threads: usize,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<()> {
    let next = AtomicU64::new(0);
    let byte =
        Shape::bytes(1).map_err(|_| TiledError::new("copy", container.path(), Errno::INVAL))?;
    let work = || -> Result<()> {
        let mut world = ContainerState::new(container.clone());
        world.refresh_state(None, 0)?;
        let mut reader = StreamReader::new(&Hints::default());
        let mut bytes = vec![0; CHUNK.min(size) as usize];
        loop {
            let at = next.fetch_add(CHUNK, Ordering::Relaxed);
            if at >= size {
                return Ok(());
            }
            let len = CHUNK.min(size - at);
            // Ranges without data stay holes.
            if world.index().lookup(at, len).iter().any(|found| found.piece.is_some()) {
                let mut buffer = Buffer::from_slice(&mut bytes[..len as usize], &byte);
                reader.read(&mut world, &View::all_bytes(), at, &mut buffer)?;
                to.write_all_at(&bytes[..len as usize], at).context("write", container.path())?;
            }
            progress(len);
        }
    };
    let threads = threads.clamp(1, (size.div_ceil(CHUNK) as usize).max(1));
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| match worker.join() {
            Ok(done) => done,
            Err(_) => Err(TiledError::new("copy", container.path(), Errno::IO)),
        })
    })
}
