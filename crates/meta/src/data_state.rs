//! The state of a file's bytes, as its writers and its objects report it.

use crate::inode::Inode;
use tatami_wire::meta::DataState;
use tatami_wire::{ByteTimes, Errno, FILE_SIZE_MAX, Timestamp};

/// Returns whether a writer's report of the bytes is later than the last one.
///
/// A disk records the time of a write before it makes the file longer, so a reader in between sees
/// the new time with the old size. Of two states of the same time, the longer is the later.
pub(crate) fn is_later(state: &DataState, changed: Timestamp, size: u64) -> bool {
    (state.changed, state.size) >= (changed, size)
}

pub(crate) fn check_state(state: &DataState) -> Result<(), Errno> {
    if state.size > FILE_SIZE_MAX {
        return Err(Errno::EFBIG);
    }
    if !state.mtime.is_valid() || !state.changed.is_valid() {
        return Err(Errno::EINVAL);
    }
    Ok(())
}

/// Applies the state of the bytes that was recovered from objects after their writer died.
pub(crate) fn recover_data_state(inode: &mut Inode, state: &DataState) {
    let size = inode.size.max(state.size);
    let changed = inode.changed.max(state.changed);
    record_data_state(inode, &DataState { size, changed, ..*state });
}

/// Returns the times of the inode when its bytes are in `state`.
pub(crate) fn compute_times(inode: &Inode, state: &DataState) -> ByteTimes {
    let &Inode { mtime, ctime, changed, .. } = inode;
    // Of a tiled file, a piece may have been modified later than the base, whose change this is.
    let last = if inode.layout.is_tiled() { state.changed.max(state.mtime) } else { state.changed };
    let times = ByteTimes { mtime, ctime, object_changed: changed };
    times.updated_by(inode.size, &DataState { changed: last, ..*state })
}

/// Returns whether `state` differs from the inode's state of the bytes.
pub(crate) fn differs_from_inode(inode: &Inode, state: &DataState) -> bool {
    let times = compute_times(inode, state);
    (inode.size, inode.blocks, inode.mtime, inode.ctime)
        != (state.size, state.blocks, times.mtime, times.ctime)
}

/// Records the state of the bytes in the inode.
pub(crate) fn record_data_state(inode: &mut Inode, state: &DataState) {
    record_data_times(inode, state);
    (inode.size, inode.blocks) = (state.size, state.blocks);
}

/// Records in the inode when its bytes were changed.
pub(crate) fn record_data_times(inode: &mut Inode, state: &DataState) {
    let times = compute_times(inode, state);
    (inode.mtime, inode.ctime, inode.changed) = (times.mtime, times.ctime, state.changed);
}
