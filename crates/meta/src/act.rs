//! Many operations in one request (a batch operation), see [`tatami_wire::act`].
//!
//! Each act is a transaction of its own, by the rules of its operation. All acts of a request go
//! into one store batch, with their answers. So a repeated request gets the first answers; or, if
//! the batch was lost, none of it has happened.

use crate::error::{Failure, Outcome};
use crate::permission::{self, want};
use crate::record::encode_reply;
use crate::shard::{Context, Meta, execute};
use crate::state::State;
use crate::store::Store;
use crate::txn::Txn;
use crate::{attr, entry, keys};
use tatami_wire::act::{ACTS_MAX, Act, Acted, Left, Sum};
use tatami_wire::meta::{DirEntry, MetaOp, MetaReply};
use tatami_wire::{Cred, Errno, Ino, Kind, VolumeKey};

/// A partition with more entries than this multiple of its split threshold grows by single
/// operations only: a split must fit a message.
const CROWD: u64 = 2;

/// The answer, and whether anything was written.
type Told = (MetaReply, bool);

impl<S: Store> Meta<S> {
    /// Runs an operation that changes something, or a batch of them.
    pub(crate) fn change(&mut self, ctx: &Context, cred: &Cred, op: &MetaOp) -> Outcome<Told> {
        let (reply, _) = match op {
            MetaOp::Acts { acts } => self.act_all(ctx, cred, acts)?,
            MetaOp::Clear { dir, after, limit, tell } => {
                let mut txn = Txn::new(&mut self.state, ctx, cred);
                let listing = entry::read_dir(&mut txn, *dir, *after, *limit, false)?;
                self.clear(ctx, cred, *dir, listing, *tell)?
            }
            _ => return self.change_one(ctx, cred, op),
        };
        // Also where nothing was done: the client would not know the effects of a late repetition.
        self.state.put(keys::reply(ctx.client, ctx.slot), Some(encode_reply(ctx.seq, &reply)?));
        Ok((reply, true))
    }

    fn change_one(&mut self, ctx: &Context, cred: &Cred, op: &MetaOp) -> Outcome<Told> {
        let mut txn = Txn::new(&mut self.state, ctx, cred);
        let reply = execute(&mut txn, &self.key, op)?;
        let wrote = txn.wrote();
        if wrote {
            txn.put(keys::reply(ctx.client, ctx.slot), encode_reply(ctx.seq, &reply)?);
        }
        self.garbage.extend(txn.finish()?);
        Ok((reply, wrote))
    }

    /// Runs several acts in order.
    ///
    /// # Errors
    /// `EINVAL` for too many. The answer has the result of each.
    pub(crate) fn act_all(&mut self, ctx: &Context, cred: &Cred, acts: &[Act]) -> Outcome<Told> {
        if acts.len() > ACTS_MAX {
            return Err(Errno::EINVAL.into());
        }
        let (mut all, mut wrote) = (Vec::with_capacity(acts.len()), false);
        for act in acts {
            let (acted, wrote_too) = self.act(ctx, cred, act);
            all.push(acted);
            wrote |= wrote_too;
        }
        Ok((MetaReply::Acted(all), wrote))
    }

    fn act(&mut self, ctx: &Context, cred: &Cred, act: &Act) -> (Acted, bool) {
        match self.try_act(ctx, cred, act) {
            Ok((reply, wrote)) => (Acted::of(reply).unwrap_or(Acted::Alone), wrote),
            Err(Failure::Missing(_)) => (Acted::Alone, false),
            // A batch does not wait for locks: the client repeats these acts later.
            Err(Failure::Locked(_)) => (Acted::Later, false),
            Err(Failure::Parted(part, range)) => (Acted::Parted { part, range }, false),
            Err(failure) => (Acted::Failed(self.note(&failure)), false),
        }
    }

    fn try_act(&mut self, ctx: &Context, cred: &Cred, act: &Act) -> Outcome<Told> {
        if let Some(elsewhere) = self.shard_elsewhere(act.target().shard())? {
            return Ok((elsewhere, false));
        }
        if let Act::Create { parent, .. } = act
            && is_crowded(&mut self.state, *parent)?
        {
            return Err(Failure::Locked(Vec::new()));
        }
        let mut txn = Txn::new(&mut self.state, ctx, cred);
        let mut reply = run(&mut txn, &self.key, act)?;
        attr::for_client(&mut txn, &mut reply)?;
        let wrote = txn.wrote();
        debug_assert!(!wrote || act.is_mutation(), "a reading act wrote");
        if wrote {
            self.garbage.extend(txn.finish()?);
        }
        Ok((reply, wrote))
    }

    /// Removes all listed entries except directories.
    fn clear(
        &mut self,
        ctx: &Context,
        cred: &Cred,
        dir: Ino,
        listing: MetaReply,
        tell: bool,
    ) -> Outcome<Told> {
        let MetaReply::Entries { entries, end, upto, .. } = listing else {
            return Err(Errno::EIO.into());
        };
        let (mut removed, mut names, mut left, mut wrote) = (0, Vec::new(), Vec::new(), false);
        for DirEntry { name, ino, kind, .. } in entries {
            if kind == Kind::Dir {
                left.push(Left { name, ino, kind, why: None });
                continue;
            }
            let act = Act::Unlink { parent: dir, name, keep: false };
            let (acted, wrote_too) = self.act(ctx, cred, &act);
            wrote |= wrote_too;
            let Act::Unlink { name, .. } = act else { continue };
            match acted {
                Acted::Removed { .. } => {
                    removed += 1;
                    names.extend(tell.then_some(name));
                }
                Acted::Failed(why) => left.push(Left { name, ino, kind, why: Some(why) }),
                _ => left.push(Left { name, ino, kind, why: None }),
            }
        }
        Ok((MetaReply::Cleared { removed, names, left, end, upto }, wrote))
    }
}

/// Runs an act by the rules of its operation.
fn run<S: Store>(txn: &mut Txn<'_, S>, key: &VolumeKey, act: &Act) -> Outcome<MetaReply> {
    match act {
        Act::Find { parent, name } => entry::find(txn, *parent, name),
        Act::GetAttr { ino } => attr::get(txn, *ino),
        Act::SetAttr { ino, set } => attr::set(txn, *ino, set),
        Act::Create { parent, name, node, mode, umask, exclusive, open } => {
            let new = entry::New { node, mode: *mode, umask: *umask };
            entry::create(txn, key, *parent, name, &new, *exclusive, *open)
        }
        Act::Commit { ino, state, close } => attr::commit(txn, *ino, state.as_ref(), *close),
        Act::Unlink { parent, name, keep } => entry::unlink(txn, *parent, name, *keep),
        Act::Rmdir { parent, name, keep } => entry::rmdir(txn, *parent, name, *keep),
    }
}

/// Returns whether a partition waits for its split, and has too many entries for a batch of more.
fn is_crowded<S: Store>(state: &mut State<S>, part: Ino) -> Outcome<bool> {
    if !state.is_spread() {
        return Ok(false);
    }
    let most = state.split_above.saturating_mul(CROWD);
    let Some(inode) = state.inode(part)? else { return Ok(false) };
    Ok(inode.size > most && state.map().spans_nodes(part, inode.range))
}

/// [`MetaOp::Clear`] of a directory that lies elsewhere or is being changed: succeeds only if it
/// has no entries.
///
/// # Errors
/// `EAGAIN` where there are entries: the client asks again
pub(crate) fn clear_nothing<S: Store>(
    txn: &mut Txn<'_, S>,
    dir: Ino,
    after: u64,
    limit: u32,
) -> Outcome<MetaReply> {
    match entry::read_dir(txn, dir, after, limit, false)? {
        MetaReply::Entries { entries, end, upto, .. } if entries.is_empty() => {
            let (names, left) = (Vec::new(), Vec::new());
            Ok(MetaReply::Cleared { removed: 0, names, left, end, upto })
        }
        _ => Err(Errno::EAGAIN.into()),
    }
}

/// Sums up a directory: see [`MetaOp::Sum`].
pub(crate) fn sum<S: Store>(
    txn: &mut Txn<'_, S>,
    dir: Ino,
    after: u64,
    limit: u32,
) -> Outcome<MetaReply> {
    let listing = entry::read_dir(txn, dir, after, limit, false)?;
    let MetaReply::Entries { entries, end, upto, .. } = listing else {
        return Err(Errno::EIO.into());
    };
    if !entries.is_empty() {
        permission::check(&*txn.inode(dir)?, txn.cred, want::EXEC)?;
    }
    let mut sum = Sum::default();
    for DirEntry { name, ino, kind, .. } in entries {
        if kind == Kind::Dir {
            let found = txn.find_here(ino)?;
            let is_empty = found.is_some_and(|inode| {
                let may_read = permission::check(&inode, txn.cred, want::READ).is_ok();
                inode.size == 0 && !inode.is_parted() && may_read
            });
            sum.dirs.push((name, ino, is_empty));
            continue;
        }
        match txn.find_here(ino)? {
            None => sum.elsewhere.push(ino),
            Some(inode) if inode.nlink > 1 => sum.linked.push((ino, inode.size, inode.blocks)),
            Some(inode) => {
                sum.files += 1;
                sum.size = sum.size.saturating_add(inode.size);
                sum.blocks = sum.blocks.saturating_add(inode.blocks);
            }
        }
    }
    Ok(MetaReply::Summed { sum, end, upto })
}
