//! Many operations in one request (a batch operation), see [`tatami_wire::batch`].
//!
//! Each operation of a batch is a transaction of its own, by the same rules as alone. All of a
//! request go into one store batch, with their answers. So a repeated request gets the first
//! answers; or, if the batch was lost, none of it has happened.

use crate::context::OperationContext;
use crate::error::{MetaOutcome, OperationFailure};
use crate::execute::execute_operation;
use crate::namespace::Meta;
use crate::operation::Txn;
use crate::record::encode_reply;
use crate::state::MetaState;
use crate::store::Store;
use crate::{attr, entry, keys, whole_file};
use tatami_wire::batch::{BATCH_BYTES_MAX, BATCH_OPS_MAX, BatchOp, BatchResult, RetainedEntry};
use tatami_wire::inline::InlineReply;
use tatami_wire::meta::{DirEntry, InodeTemplate, MetaOp, MetaReply};
use tatami_wire::{Cred, Errno, Ino, InodeKind, Timestamp, VolumeKey};

/// A partition with more entries than this multiple of its limit grows by single operations only.
/// Batches would outrun the split, and make it ever larger.
const CROWDED_FACTOR: u64 = 2;

/// The answer, and whether anything was written.
type ReplyAndWrote = (MetaReply, bool);

impl<S: Store> Meta<S> {
    /// Runs an operation that changes something, or a batch of them.
    pub(crate) fn run_mutation(
        &mut self,
        ctx: &OperationContext,
        cred: &Cred,
        op: &MetaOp,
    ) -> MetaOutcome<ReplyAndWrote> {
        let (reply, _) = match op {
            MetaOp::Batch { operations } => self.run_batch(ctx, cred, operations)?,
            MetaOp::ClearDir { dir, after, limit, with_names } => {
                let mut txn = Txn::new(&mut self.state, ctx, cred);
                let listing = entry::read_dir(&mut txn, *dir, *after, *limit, false)?;
                self.clear_entries(ctx, cred, *dir, listing, *with_names)?
            }
            _ => return self.run_single(ctx, cred, op),
        };
        // Also where nothing was done: the client would not know the effects of a late repetition.
        self.state
            .put_record(keys::reply(ctx.client, ctx.slot), Some(encode_reply(ctx.seq, &reply)?));
        Ok((reply, true))
    }

    fn run_single(
        &mut self,
        ctx: &OperationContext,
        cred: &Cred,
        op: &MetaOp,
    ) -> MetaOutcome<ReplyAndWrote> {
        let mut txn = Txn::new(&mut self.state, ctx, cred);
        let reply = execute_operation(&mut txn, &self.key, op)?;
        let wrote = txn.has_writes();
        if wrote {
            txn.put_record(keys::reply(ctx.client, ctx.slot), encode_reply(ctx.seq, &reply)?);
        }
        self.garbage.extend(txn.apply_locally()?);
        Ok((reply, wrote))
    }

    /// Runs several operations in order.
    ///
    /// # Errors
    /// `EINVAL` for too many. The answer has the result of each.
    pub(crate) fn run_batch(
        &mut self,
        ctx: &OperationContext,
        cred: &Cred,
        operations: &[BatchOp],
    ) -> MetaOutcome<ReplyAndWrote> {
        if operations.len() > BATCH_OPS_MAX {
            return Err(Errno::EINVAL.into());
        }
        let (mut all, mut wrote) = (Vec::with_capacity(operations.len()), false);
        let mut read_bytes = 0;
        for operation in operations {
            // All bytes that are read must fit in the reply.
            if read_bytes >= BATCH_BYTES_MAX && matches!(operation, BatchOp::ReadInline { .. }) {
                all.push(BatchResult::Busy);
                continue;
            }
            let (outcome, wrote_too) = self.run_batch_op(ctx, cred, operation);
            if let BatchResult::Inline(InlineReply::Done { bytes, .. }) = &outcome {
                read_bytes += bytes.len();
            }
            all.push(outcome);
            wrote |= wrote_too;
        }
        Ok((MetaReply::BatchResults(all), wrote))
    }

    fn run_batch_op(
        &mut self,
        ctx: &OperationContext,
        cred: &Cred,
        operation: &BatchOp,
    ) -> (BatchResult, bool) {
        match self.try_batch_op(ctx, cred, operation) {
            Ok((reply, wrote)) => {
                (BatchResult::from_reply(reply).unwrap_or(BatchResult::NeedsOtherNodes), wrote)
            }
            Err(OperationFailure::Missing(_)) => (BatchResult::NeedsOtherNodes, false),
            // A batch does not wait for locks: the client repeats these operations later.
            Err(OperationFailure::Locked(_)) => (BatchResult::Busy, false),
            Err(OperationFailure::WrongPartition(part, range)) => {
                (BatchResult::WrongPartition { part, range }, false)
            }
            Err(failure) => (BatchResult::Failed(self.record_failure(&failure)), false),
        }
    }

    fn try_batch_op(
        &mut self,
        ctx: &OperationContext,
        cred: &Cred,
        operation: &BatchOp,
    ) -> MetaOutcome<ReplyAndWrote> {
        if let Some(elsewhere) = self.check_shard_owner(operation.target_inode().owner_shard())? {
            return Ok((elsewhere, false));
        }
        if let BatchOp::Create { parent, .. }
        | BatchOp::CreateFilled { parent, .. }
        | BatchOp::Link { parent, .. } = operation
            && is_crowded(&mut self.state, *parent, self.tx.now)?
        {
            return Err(OperationFailure::Locked(Vec::new()));
        }
        let mut txn = Txn::new(&mut self.state, ctx, cred);
        let mut reply = execute_batch_op(&mut txn, &self.key, operation)?;
        attr::correct_for_client(&mut txn, &mut reply)?;
        let wrote = txn.has_writes();
        debug_assert!(!wrote || operation.is_mutation(), "a reading operation wrote");
        if wrote {
            self.garbage.extend(txn.apply_locally()?);
        }
        Ok((reply, wrote))
    }

    /// Removes all listed entries except directories.
    fn clear_entries(
        &mut self,
        ctx: &OperationContext,
        cred: &Cred,
        dir: Ino,
        listing: MetaReply,
        with_names: bool,
    ) -> MetaOutcome<ReplyAndWrote> {
        let MetaReply::Entries { entries, end, upto, .. } = listing else {
            return Err(Errno::EIO.into());
        };
        let (mut removed, mut names, mut left, mut wrote) = (0, Vec::new(), Vec::new(), false);
        for DirEntry { name, ino, kind, .. } in entries {
            if kind == InodeKind::Dir {
                left.push(RetainedEntry { name, ino, kind, reason: None });
                continue;
            }
            let operation = BatchOp::Unlink { parent: dir, name, keep: false };
            let (outcome, wrote_too) = self.run_batch_op(ctx, cred, &operation);
            wrote |= wrote_too;
            let BatchOp::Unlink { name, .. } = operation else { continue };
            match outcome {
                BatchResult::Removed { .. } => {
                    removed += 1;
                    names.extend(with_names.then_some(name));
                }
                BatchResult::Failed(why) => {
                    left.push(RetainedEntry { name, ino, kind, reason: Some(why) })
                }
                _ => left.push(RetainedEntry { name, ino, kind, reason: None }),
            }
        }
        Ok((MetaReply::DirCleared { removed, names, retained: left, end, upto }, wrote))
    }
}

/// Runs one operation of a batch by the rules that it has alone.
fn execute_batch_op<S: Store>(
    txn: &mut Txn<'_, S>,
    key: &VolumeKey,
    operation: &BatchOp,
) -> MetaOutcome<MetaReply> {
    match operation {
        BatchOp::LookupEntry { parent, name } => entry::lookup_referral(txn, *parent, name),
        BatchOp::GetAttr { ino } => attr::get_attr(txn, *ino),
        BatchOp::SetAttr { ino, set } => attr::set_attr(txn, *ino, set),
        BatchOp::Create { parent, name, node, mode, umask, exclusive, open } => {
            let new = entry::NewInode { name, node, mode: *mode, umask: *umask };
            entry::create(txn, key, *parent, &new, *exclusive, *open)
        }
        BatchOp::Commit { ino, state, close } => {
            attr::commit_data(txn, *ino, state.as_ref(), *close)
        }
        BatchOp::Unlink { parent, name, keep } => entry::unlink(txn, *parent, name, *keep),
        BatchOp::Rmdir { parent, name, keep } => entry::rmdir(txn, *parent, name, *keep),
        BatchOp::Tmpfile { parent, name, layout, mode, umask, open } => {
            // The same partition that the link will be sent to.
            let dir = txn.load_inode(*parent)?;
            txn.check_name_range(*parent, &dir, name)?;
            entry::tmpfile(txn, key, *parent, *layout, *mode, *umask, *open)
        }
        BatchOp::Link { ino, parent, name } => entry::link(txn, *ino, *parent, name),
        BatchOp::CreateFilled { parent, name, layout, mode, umask, bytes, set } => {
            let node = &InodeTemplate::File(*layout);
            let new = entry::NewInode { name, node, mode: *mode, umask: *umask };
            whole_file::create_filled(txn, key, *parent, &new, bytes, set.as_ref())
        }
        BatchOp::ReadInline { ino } => whole_file::read_file(txn, *ino),
    }
}

/// Returns whether a partition waits for its split, and has too many entries for a batch of more.
fn is_crowded<S: Store>(state: &mut MetaState<S>, part: Ino, now: Timestamp) -> MetaOutcome<bool> {
    if !state.is_spread() {
        return Ok(false);
    }
    let most = state.split_rule.current_limit(part, now).saturating_mul(CROWDED_FACTOR);
    let Some(inode) = state.load_inode(part)? else { return Ok(false) };
    Ok(inode.size > most && state.map().spans_nodes(part, inode.range))
}
