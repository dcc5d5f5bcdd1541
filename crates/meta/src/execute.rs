//! The dispatcher: each operation with the function that has its rule.

use crate::check::{self, parts, repair, ties};
use crate::error::MetaOutcome;
use crate::operation::Txn;
use crate::store::Store;
use crate::tiled::{self, file_move, relayout};
use crate::{attr, bulk_dir, entry, held, inline, job, orphan, rename, split, whole_file, xattr};
use tatami_wire::meta::{InodeTemplate, MetaOp, MetaReply};
use tatami_wire::{Errno, VolumeKey};

/// Executes an operation by the rules of the namespace.
pub(crate) fn execute_operation<S: Store>(
    txn: &mut Txn<'_, S>,
    key: &VolumeKey,
    op: &MetaOp,
) -> MetaOutcome<MetaReply> {
    let mut reply = run_operation(txn, key, op)?;
    attr::correct_for_client(txn, &mut reply)?;
    Ok(reply)
}

fn run_operation<S: Store>(
    txn: &mut Txn<'_, S>,
    key: &VolumeKey,
    op: &MetaOp,
) -> MetaOutcome<MetaReply> {
    match op {
        MetaOp::Lookup { parent, name } => entry::lookup(txn, *parent, name),
        MetaOp::LookupEntry { parent, name } => entry::lookup_referral(txn, *parent, name),
        MetaOp::GetAttr { ino } => attr::get_attr(txn, *ino),
        MetaOp::GetOwnAttr { ino } => attr::get_own_attr(txn, *ino),
        MetaOp::SetAttr { ino, set } => attr::set_attr(txn, *ino, set),
        MetaOp::Create { parent, name, node, mode, umask, exclusive, open } => {
            let new = entry::NewInode { name, node, mode: *mode, umask: *umask };
            entry::create(txn, key, *parent, &new, *exclusive, *open)
        }
        MetaOp::CreateFilled { parent, name, layout, mode, umask, bytes, set } => {
            let node = &InodeTemplate::File(*layout);
            let new = entry::NewInode { name, node, mode: *mode, umask: *umask };
            whole_file::create_filled(txn, key, *parent, &new, bytes, set.as_ref())
        }
        MetaOp::HoldDirectory { dir, count } => held::hold_directory(txn, *dir, *count),
        MetaOp::CreateNumbered { parent, name, ino, layout, mode, umask, first, open, time } => {
            let node = &InodeTemplate::File(*layout);
            let new = entry::NewInode { name, node, mode: *mode, umask: *umask };
            let held = held::HeldCreate { ino: *ino, open: *open, time: *time };
            held::create_numbered(txn, key, *parent, &new, &held, first)
        }
        MetaOp::Tmpfile { parent, layout, mode, umask, open } => {
            entry::tmpfile(txn, key, *parent, *layout, *mode, *umask, *open)
        }
        MetaOp::Open { ino, access, registered: noted } => {
            attr::open_inode(txn, key, *ino, *access, *noted)
        }
        MetaOp::Commit { ino, state, close } => {
            attr::commit_data(txn, *ino, state.as_ref(), *close)
        }
        MetaOp::ReportClosed { inos, empty, read } => attr::close_files(txn, inos, empty, read),
        // The daemon syncs once for all requests; the answer is the same.
        MetaOp::Sync => Ok(MetaReply::Synced { epoch: txn.state.epoch() }),
        MetaOp::Unlink { parent, name, keep } => entry::unlink(txn, *parent, name, *keep),
        MetaOp::Rmdir { parent, name, keep } => entry::rmdir(txn, *parent, name, *keep),
        MetaOp::Rename { parent, name, new_parent, new_name, mode, keep } => {
            let from = rename::EntryPosition { dir: *parent, name };
            let to = rename::EntryPosition { dir: *new_parent, name: new_name };
            rename::rename(txn, from, to, *mode, *keep)
        }
        MetaOp::Link { ino, parent, name } => entry::link(txn, *ino, *parent, name),
        MetaOp::Readlink { ino } => attr::readlink(txn, *ino),
        MetaOp::ReadDir { dir, after, limit, plus } => {
            entry::read_dir(txn, *dir, *after, *limit, *plus)
        }
        MetaOp::GetXattr { ino, name } => xattr::get_xattr(txn, *ino, name),
        MetaOp::SetXattr { ino, name, value, mode } => {
            xattr::set_xattr(txn, *ino, name, value, *mode)
        }
        MetaOp::ListXattr { ino } => xattr::list_xattrs(txn, *ino),
        MetaOp::RemoveXattr { ino, name } => xattr::remove_xattr(txn, *ino, name),
        MetaOp::Release { ino } => orphan::release_handles(txn, *ino),
        MetaOp::StatVolume => Ok(MetaReply::Volume { inodes: txn.state.inode_count() }),
        MetaOp::ListGarbage { node, limit } => orphan::list_garbage(txn, *node, *limit),
        MetaOp::ReportGarbageRemoved { node, inos } => {
            orphan::remove_garbage_records(txn, *node, inos)
        }
        MetaOp::ExpireClient { client } => orphan::expire_client(txn, *client),
        MetaOp::ListClients => orphan::list_clients(txn),
        MetaOp::ListPendingRecovery { limit } => orphan::list_pending_recovery(txn, *limit),
        MetaOp::SetRecoveredSize { ino, state } => orphan::recover_size(txn, *ino, state.as_ref()),
        MetaOp::ScanInodes { after, limit } => attr::scan_inodes(txn, *after, *limit),
        MetaOp::Check { after, limit, repair } => check::check_shard(txn, *after, *limit, *repair),
        MetaOp::ListPartitions { dir } => split::list_partitions(txn, *dir),
        MetaOp::SplitPartition { partition: part, above } => {
            split::split_partition(txn, *part, *above)
        }
        MetaOp::ScanBackPointers { after, last, limit, .. } => {
            ties::list_ties(txn, *after, *last, *limit)
        }
        MetaOp::ListEntriesOf { inos, .. } => repair::list_names_of(txn, inos),
        MetaOp::ScanPartitions { after, .. } => parts::list_partitioned(txn, *after),
        MetaOp::Repair { ino, repair: mend } => repair::repair_records(txn, *ino, mend),
        MetaOp::ListInFlight { node, inos } => orphan::list_in_flight(txn, *node, inos),
        MetaOp::AddPieces { ino, nodes } => tiled::add_pieces(txn, *ino, nodes),
        MetaOp::Publish { ino, updates: parts, cuts, base } => {
            tiled::publish_tiles(txn, *ino, parts, cuts, base.as_ref())
        }
        MetaOp::Reserve { ino, nodes } => relayout::reserve_objects(txn, *ino, nodes),
        MetaOp::Relayout { ino, pieces, base, state } => {
            relayout::apply_relayout(txn, *ino, pieces, *base, state)
        }
        MetaOp::ReadInline { ino } => whole_file::read_file(txn, *ino),
        MetaOp::BeginMove { ino, to } => file_move::begin_move(txn, *ino, *to),
        MetaOp::FinishMove { ino, moved } => file_move::finish_move(txn, *ino, moved),
        MetaOp::Inline { ino, cap, op } => inline::run_inline_op(txn, key, *ino, cap, op),
        MetaOp::ListTiles { ino, after, limit } => tiled::list_tiles(txn, *ino, *after, *limit),
        MetaOp::ListGarbagePieces { node, limit } => {
            orphan::list_dropped_objects(txn, *node, *limit)
        }
        MetaOp::ReportPiecesRemoved { node, pieces } => {
            orphan::remove_dropped_records(txn, *node, pieces)
        }
        MetaOp::Job { ino, open, rank, joined, op } => {
            let who = job::JobRank { ino: *ino, open: *open, rank: *rank };
            job::run_job_op(txn, who, *joined, *op)
        }
        MetaOp::ClearDir { dir, after, limit, .. } => {
            bulk_dir::clear_empty_dir(txn, *dir, *after, *limit)
        }
        MetaOp::SumDir { dir, after, limit } => bulk_dir::sum_directory(txn, *dir, *after, *limit),
        // The operations of a batch are run one by one; names to sync are looked up before. Locks
        // are handled by the node, and do not come here.
        MetaOp::Batch { .. } | MetaOp::SyncNames { .. } | MetaOp::Locks { .. } => {
            Err(Errno::EINVAL.into())
        }
    }
}
